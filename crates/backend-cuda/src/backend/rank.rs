//! One rank on one device: its share of the model, its own copy of the cache.

use super::CudaOptions;
use super::decoding::Decoding;
use super::experts::Experts;
use super::inputs::{DrawsOn, Inputs, Layout, parts};
use super::kernels::Kernels;
use super::loading::{Loading, Progress};
use super::memory::{RankMemory, tokens_max};
use super::pools::DevicePools;
use super::products::Products;
use super::sampling::{DeviceSampler, Request};
use super::step::{Place, Step};
use super::stopwatch::Stopwatch;
use super::sums::Sums;
use super::weights::DeviceWeights;
use super::workspace::Workspace;
use crate::decode::LaunchError;
use crate::gpu::{Buffer, Gpu, GpuError};
use crate::matmul::MatmulError;
use overshot_backend::{
    Family, Member, PeerGone, Rank, RowDraw, RowResult, Sampler, Shard, StepMasks, StepPlan, draw_rows,
};
use overshot_gpu_model::ChooseError;
use overshot_model::{Model, Spec};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum RankError {
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    Matmul(#[from] MatmulError),
    #[error(transparent)]
    Decode(#[from] LaunchError),
    #[error(transparent)]
    Choice(#[from] ChooseError),
    #[error(transparent)]
    Peer(#[from] PeerGone),
}

pub struct CudaRank {
    /// Goes first: its kernels may wait for peers, which may wait for ours.
    sums: Sums,
    model: Arc<Model>,
    options: CudaOptions,
    shard: Shard,
    member: Option<Member>,
    places: Vec<Place>,
    kernels: Kernels,
    products: Products,
    experts: Experts,
    decoding: Option<Decoding>,
    weights: DeviceWeights,
    pools: DevicePools,
    inputs: Inputs,
    space: Workspace,
    stopwatch: Stopwatch,
    draws_on: DrawsOn,
    /// Of draws on the host.
    sampler: Sampler,
    device_sampler: DeviceSampler,
    /// Of the rows of the plan under way that draw, `[rows, vocabulary]`, where they are drawn from on devices.
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
        mut options: CudaOptions,
        shard: Shard,
        member: Option<Member>,
        sums: Sums,
        loading: Loading,
        progress: &Progress,
    ) -> Result<Self, GpuError> {
        let spec = &model.spec;
        options.tokens_max = tokens_max(spec, options);
        // What may be missing is looked for before minutes of reading.
        let kernels = Kernels::load(&*gpu, shard.index_heads.len())?;
        let draws_on = match (&member, sums.by_devices()) {
            (None, _) => DrawsOn::Device,
            (Some(_), true) => DrawsOn::Devices,
            (Some(_), false) => DrawsOn::Host,
        };
        let memory = RankMemory::take(&gpu, &model, options, &shard, draws_on)?;
        let RankMemory { mut pools, inputs, products, experts, decoding, space, device_sampler, draw_logits } =
            memory;
        if let Some(rehearsal) = options.rehearsal {
            pools.fill(options.numerics, rehearsal)?;
        }
        Ok(CudaRank {
            sums,
            places: places(spec),
            kernels,
            weights: DeviceWeights::load(&gpu, &model.weights, &shard, loading, progress)?,
            pools,
            inputs,
            products,
            experts,
            decoding,
            space,
            stopwatch: Stopwatch::new(&gpu),
            draws_on,
            sampler: Sampler::default(),
            device_sampler,
            draw_logits,
            logits: Vec::new(),
            drawn: Vec::new(),
            options,
            shard,
            member,
            model,
        })
    }
}

impl CudaRank {
    fn draw_on_device(&mut self, plan: &StepPlan, masks: &StepMasks) -> Result<Vec<RowResult>, RankError> {
        let vocab = self.draws_on.vocab(&self.model.spec, &self.shard);
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
        self.stopwatch.start(plan.timing);
        self.sums.time_waits(plan.timing)?;
        self.stopwatch.enter(Family::Copies)?;
        for op in &plan.page_ops {
            self.pools.apply(&self.kernels, *op)?;
        }
        self.logits.clear();
        let draw_vocab = self.draws_on.vocab(&self.model.spec, &self.shard);
        let mut draws_before = 0;
        let meeting = match self.draws_on {
            DrawsOn::Devices => plan.rows.iter().filter(|row| row.draws()).count() * draw_vocab,
            DrawsOn::Device | DrawsOn::Host => 0,
        };
        // What is not a rank's own is 0, and the sum of all ranks' is all.
        self.draw_logits.fill_first(meeting, 0)?;
        for part in parts(plan, self.options.tokens_max) {
            let layout = Layout::new(plan, &part, &self.drawn, self.draws_on);
            self.stopwatch.enter(Family::Copies)?;
            let step = self.inputs.upload(&layout)?;
            self.stopwatch.enter(Family::Schedule)?;
            let decode = match &self.decoding {
                Some(decoding) => decoding.begin(step, layout.positions(), layout.longest_row)?,
                None => None,
            };
            let mut step = Step {
                spec: &self.model.spec,
                numerics: self.options.numerics,
                shard: &self.shard,
                member: self.member.as_ref(),
                sums: &self.sums,
                kernels: &self.kernels,
                products: &self.products,
                experts: &self.experts,
                decode,
                stopwatch: &self.stopwatch,
                weights: &self.weights,
                pools: &self.pools,
                space: &mut self.space,
                layout: &layout,
                step,
                rotations: self.inputs.rotations.address(),
                draw_logits: &self.draw_logits,
                draw_vocab,
                draws_before,
            };
            step.run(&self.places, &mut self.logits)?;
            draws_before += layout.draws.len();
        }
        if meeting > 0 {
            self.stopwatch.enter(Family::Reduce)?;
            self.sums.all_reduce(self.member.as_ref(), &mut self.draw_logits, meeting)?;
        }
        // What comes next may wait for masks.
        Ok(self.stopwatch.leave()?)
    }

    fn draw(&mut self, plan: &StepPlan, masks: &StepMasks) -> Result<Vec<RowResult>, RankError> {
        let vocab = self.model.spec.vocab_size;
        self.stopwatch.enter(Family::Sample)?;
        let results = match self.draws_on {
            DrawsOn::Device | DrawsOn::Devices => self.draw_on_device(plan, masks)?,
            DrawsOn::Host => draw_rows(&mut self.sampler, plan, masks, &self.drawn, &self.logits, vocab),
        };
        self.stopwatch.leave()?;
        let drawn = results.iter().map(|row| row.tokens.first().map(|sampled| sampled.token)).collect();
        self.drawn = match &self.member {
            Some(member) => member.broadcast_drawn(drawn)?,
            None => drawn,
        };
        Ok(results)
    }

    fn families(&mut self) -> Result<Vec<(Family, Duration)>, RankError> {
        let mut families = self.stopwatch.read()?;
        let waited = self.sums.waited()?;
        let sums = families.iter_mut().find(|(family, _)| *family == Family::Reduce);
        if let (Some((_, time)), Some(waited)) = (sums, waited) {
            *time = time.saturating_sub(waited);
            families.push((Family::Wait, waited));
        }
        Ok(families)
    }

    fn follow(&mut self, _: &StepPlan) -> Result<(), RankError> {
        if let Some(member) = &self.member {
            self.drawn = member.broadcast_drawn(Vec::new())?;
        }
        Ok(())
    }
}
