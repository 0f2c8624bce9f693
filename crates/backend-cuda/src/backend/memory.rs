//! All that a rank takes of a device but its weights, once, when it starts. A plan of memory takes the same from a device that
//! only counts: see `budget.rs`.

use super::CudaOptions;
use super::decoding::Decoding;
use super::experts::Experts;
use super::inputs::{DrawsOn, Inputs};
use super::pools::DevicePools;
use super::products::Products;
use super::sampling::DeviceSampler;
use super::workspace::Workspace;
use crate::gpu::{Buffer, Gpu, GpuError};
use crate::matmul;
use overshot_backend::Shard;
use overshot_kv::Pool;
use overshot_model::{Model, Spec};
use std::sync::Arc;

/// A draw takes 12 bytes of scratch for every token of the vocabulary.
const DRAWS_AT_A_TIME: usize = 64;

/// Tokens of a part: experts' kernels count each once for every expert that it goes to.
pub fn tokens_max(spec: &Spec, options: CudaOptions) -> usize {
    options.tokens_max.min(matmul::TOKENS_MAX / (spec.experts_per_token + 1))
}

pub struct RankMemory {
    pub pools: DevicePools,
    pub inputs: Inputs,
    pub products: Products,
    pub experts: Experts,
    pub decoding: Option<Decoding>,
    pub space: Workspace,
    pub device_sampler: DeviceSampler,
    /// Of the rows of the plan under way that draw, `[rows, vocabulary]`: as much of it as is drawn from.
    pub draw_logits: Buffer<f32>,
}

impl RankMemory {
    pub fn take(
        gpu: &Arc<dyn Gpu>,
        model: &Model,
        options: CudaOptions,
        shard: &Shard,
        draws_on: DrawsOn,
    ) -> Result<Self, GpuError> {
        let spec = &model.spec;
        let CudaOptions { numerics, capacity, company, .. } = options;
        let tokens_max = tokens_max(spec, options);
        // Every row of a plan has a page of its own to write.
        let draws_max = match draws_on {
            DrawsOn::Device | DrawsOn::Devices => capacity.pages(Pool::Window),
            DrawsOn::Host => 0,
        };
        let vocab = draws_on.vocab(spec, shard);
        Ok(RankMemory {
            pools: DevicePools::new(gpu, spec, numerics, capacity)?,
            inputs: Inputs::new(gpu, spec, capacity, tokens_max)?,
            products: Products::new(gpu, model, shard, numerics, company, tokens_max)?,
            experts: Experts::new(gpu, model, shard, numerics, tokens_max)?,
            decoding: Decoding::new(gpu, spec, shard, CudaOptions { tokens_max, ..options })?,
            space: Workspace::new(gpu, spec, shard, tokens_max, capacity.longest_set_tokens())?,
            device_sampler: DeviceSampler::new(gpu, vocab, DRAWS_AT_A_TIME.min(draws_max))?,
            draw_logits: Buffer::new(gpu, draws_max * vocab)?,
        })
    }
}
