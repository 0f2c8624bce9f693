//! One rank on one device: its share of the model, its own copy of the cache.

use super::CudaOptions;
use super::inputs::{DrawsOn, Inputs, Layout, parts};
use super::kernels::Kernels;
use super::pools::DevicePools;
use super::sampling::{DeviceSampler, Request};
use super::step::{Place, Step};
use super::weights::DeviceWeights;
use super::workspace::Workspace;
use crate::gpu::{Buffer, Gpu, GpuError};
use overshot_backend::{
    Member, PeerGone, Rank, RowDraw, RowResult, Sampler, Shard, StepMasks, StepPlan, draw_rows,
};
use overshot_kv::Pool;
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
    /// Several ranks draw on the host, where their logits meet.
    sampler: Sampler,
    device_sampler: DeviceSampler,
    /// Of the rows of the plan under way that draw, `[rows, vocab]`.
    draw_logits: Buffer<f32>,
    /// What the other rows of it want, `[positions, vocab]`; on rank 0.
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
        // Every row of a plan has a page of its own to write.
        let rows_max = if member.is_some() { 0 } else { capacity.pages(Pool::Window) };
        Ok(CudaRank {
            places: places(spec),
            kernels: Kernels::load(&*gpu)?.with_index_heads(&*gpu, shard.index_heads.len())?,
            weights: DeviceWeights::upload(&gpu, &model.weights, &shard)?,
            pools: DevicePools::new(&gpu, spec, options.numerics, capacity)?,
            inputs: Inputs::new(&gpu, spec, capacity, options.tokens_max)?,
            space: Workspace::new(&gpu, spec, &shard, options.tokens_max, capacity.longest_set_tokens())?,
            sampler: Sampler::default(),
            device_sampler: DeviceSampler::new(&gpu, spec.vocab_size, DRAWS_AT_A_TIME.min(rows_max))?,
            draw_logits: Buffer::new(&gpu, rows_max * spec.vocab_size)?,
            logits: Vec::new(),
            drawn: Vec::new(),
            options,
            shard,
            member,
            model,
        })
    }
}

/// A draw takes 12 bytes of scratch for every token of the vocabulary.
const DRAWS_AT_A_TIME: usize = 64;

impl CudaRank {
    fn draws_on(&self) -> DrawsOn {
        if self.member.is_some() { DrawsOn::Host } else { DrawsOn::Device }
    }

    fn draw_on_device(&mut self, plan: &StepPlan, masks: &StepMasks) -> Result<Vec<RowResult>, RankError> {
        let vocab = self.model.spec.vocab_size;
        let draws: Vec<_> = plan
            .rows
            .iter()
            .enumerate()
            .map(|(index, row)| RowDraw::of(row, &self.drawn, masks.of_row(index)))
            .collect();
        let mut requests = Vec::new();
        // Of a row that fails for its placeholder, too.
        let mut place = 0;
        for (row, draw) in plan.rows.iter().zip(&draws) {
            if let Ok(Some(RowDraw { sampling, seen, position, mask })) = draw {
                let logits = self.draw_logits.at(place * vocab);
                requests.push(Request { logits, sampling, seen, position: *position, mask: *mask });
            }
            place += usize::from(row.draws());
        }
        let mut drawn = self.device_sampler.draw(&self.kernels, &requests)?.into_iter();
        let mut rest = self.logits.as_slice();
        let mut results = Vec::with_capacity(plan.rows.len());
        for (row, draw) in plan.rows.iter().zip(&draws) {
            let wanted = if row.draws() { 0 } else { row.wanted_positions().len() * vocab };
            let (logits, others) = rest.split_at(wanted);
            rest = others;
            results.push(match draw {
                Err(failure) => RowResult { failure: Some(failure.clone()), ..RowResult::default() },
                Ok(None) => RowResult { logits: logits.to_vec(), ..RowResult::default() },
                Ok(Some(_)) => drawn.next().map(RowResult::of_draw).unwrap_or_default(),
            });
        }
        Ok(results)
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
        let draws_on = self.draws_on();
        let mut draws_before = 0;
        for part in parts(plan, self.options.tokens_max) {
            let layout = Layout::new(plan, &part, &self.drawn, draws_on);
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
                draw_logits: &self.draw_logits,
                draws_before,
            };
            step.run(&self.places, &mut self.logits)?;
            draws_before += layout.draws.len();
        }
        Ok(())
    }

    fn draw(&mut self, plan: &StepPlan, masks: &StepMasks) -> Result<Vec<RowResult>, RankError> {
        let vocab = self.model.spec.vocab_size;
        let results = match self.draws_on() {
            DrawsOn::Device => self.draw_on_device(plan, masks)?,
            DrawsOn::Host => draw_rows(&mut self.sampler, plan, masks, &self.drawn, &self.logits, vocab),
        };
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
