//! One rank on one device: its share of the model, its own copy of the cache.

use super::CudaOptions;
use super::inputs::{Inputs, Layout, parts};
use super::kernels::Kernels;
use super::pools::DevicePools;
use super::step::{Place, Step};
use super::weights::DeviceWeights;
use super::workspace::Workspace;
use crate::gpu::{Gpu, GpuError};
use overshot_backend::{Member, PeerGone, Rank, RowResult, Sampler, Shard, StepMasks, StepPlan, draw_rows};
use overshot_model::{Model, Spec};
use std::sync::Arc;

#[derive(Debug, thiserror::Error)]
pub enum RankError {
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    Peer(#[from] PeerGone),
}

pub struct CudaRank {
    model: Arc<Model>,
    options: CudaOptions,
    shard: Shard,
    member: Option<Member>,
    places: Vec<Place>,
    kernels: Kernels,
    weights: DeviceWeights,
    pools: DevicePools,
    inputs: Inputs,
    space: Workspace,
    sampler: Sampler,
    /// What the rows of the plan under way want, `[positions, vocab]`; on rank 0.
    logits: Vec<f32>,
    /// What the last plan drew, by row.
    drawn: Vec<Option<u32>>,
}

impl CudaRank {
    pub fn new(
        gpu: Arc<dyn Gpu>,
        model: Arc<Model>,
        options: CudaOptions,
        shard: Shard,
        member: Option<Member>,
    ) -> Result<Self, GpuError> {
        let spec = &model.spec;
        let capacity = options.capacity;
        Ok(CudaRank {
            places: places(spec),
            kernels: Kernels::load(&*gpu)?,
            weights: DeviceWeights::upload(&gpu, &model.weights, &shard)?,
            pools: DevicePools::new(&gpu, spec, options.numerics, capacity)?,
            inputs: Inputs::new(&gpu, spec, capacity, options.tokens_max)?,
            space: Workspace::new(&gpu, spec, &shard, options.tokens_max, capacity.longest_set_tokens())?,
            sampler: Sampler::default(),
            logits: Vec::new(),
            drawn: Vec::new(),
            options,
            shard,
            member,
            model,
        })
    }
}

fn places(spec: &Spec) -> Vec<Place> {
    (0..spec.layers.len())
        .map(|index| {
            let spec_of = spec.layers[index];
            let index_in_kind = spec.layers_of(spec_of.kind).take_while(|&other| other < index).count();
            Place { index, index_in_kind, spec: spec_of }
        })
        .collect()
}

impl Rank for CudaRank {
    type Error = RankError;

    fn forward(&mut self, plan: &StepPlan) -> Result<(), RankError> {
        for op in &plan.page_ops {
            self.pools.apply(&self.kernels, *op)?;
        }
        self.logits.clear();
        for part in parts(plan, self.options.tokens_max) {
            let layout = Layout::new(plan, &part, &self.drawn);
            let step = self.inputs.upload(&layout)?;
            let mut step = Step {
                spec: &self.model.spec,
                numerics: self.options.numerics,
                shard: &self.shard,
                member: self.member.as_ref(),
                kernels: &self.kernels,
                weights: &self.weights,
                pools: &self.pools,
                space: &mut self.space,
                layout: &layout,
                step,
                rotations: self.inputs.rotations.address(),
            };
            step.run(&self.places, &mut self.logits)?;
        }
        Ok(())
    }

    fn draw(&mut self, plan: &StepPlan, masks: &StepMasks) -> Result<Vec<RowResult>, RankError> {
        let vocab = self.model.spec.vocab_size;
        let results = draw_rows(&mut self.sampler, plan, masks, &self.drawn, &self.logits, vocab);
        let drawn = results.iter().map(|row| row.tokens.first().map(|sampled| sampled.token)).collect();
        self.drawn = match &self.member {
            Some(member) => member.broadcast_drawn(drawn)?,
            None => drawn,
        };
        Ok(results)
    }

    fn follow(&mut self, _: &StepPlan) -> Result<(), RankError> {
        if let Some(member) = &self.member {
            self.drawn = member.broadcast_drawn(Vec::new())?;
        }
        Ok(())
    }
}
