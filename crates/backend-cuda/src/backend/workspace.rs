//! Everything between a step's inputs and its logits, taken once: sizes follow from the model and the tokens of a part.
//! What stands within a product is of `products.rs` and `experts.rs`.

use super::kernels::{STREAM_PARTIALS, STREAM_SLICE};
use crate::gpu::{Buffer, Gpu, GpuError};
use overshot_backend::Shard;
use overshot_model::{HEAD_DIM, INDEX_DIM, STREAMS, Spec};
use std::sync::Arc;

/// Positions whose logits are made at a time.
pub const LOGIT_ROWS: usize = 64;
/// Index scores held at a time: 64 MiB, or one token's where a context is longer.
const SCORES: usize = 1 << 24;

/// Named after what they hold, `[tokens, ..]` unless said otherwise.
pub struct Workspace {
    pub streams: Buffer<f32>,
    pub mixing: Buffer<f32>,
    /// `[tokens, slices of the streams, what a slice leaves]`
    pub stream_partials: Buffer<f32>,
    pub embedded: Buffer<f32>,
    pub x: Buffer<f32>,
    pub qr: Buffer<f32>,
    pub latents: Buffer<f32>,
    pub packed: Buffer<u8>,
    pub k: Buffer<f32>,
    pub s: Buffer<f32>,
    pub index_k: Buffer<f32>,
    pub index_s: Buffer<f32>,
    pub index_q: Buffer<f32>,
    pub index_weights: Buffer<f32>,
    /// `[group of tokens, entries]`
    pub scores: Buffer<f32>,
    pub selected: Buffer<i32>,
    pub counts: Buffer<i32>,
    pub q: Buffer<f32>,
    pub heads_out: Buffer<f32>,
    pub z: Buffer<f32>,
    pub y: Buffer<f32>,
    pub y_shared: Buffer<f32>,
    pub gate: Buffer<f32>,
    pub ids: Buffer<i32>,
    pub weights: Buffer<f32>,
    /// Token indices, `[LOGIT_ROWS]`.
    pub wanted: Buffer<i32>,
    /// `[LOGIT_ROWS, hidden]`
    pub hidden: Buffer<f32>,
    /// `[LOGIT_ROWS, the rank's vocabulary]`
    pub logits: Buffer<f32>,
}

impl Workspace {
    pub fn new(
        gpu: &Arc<dyn Gpu>,
        spec: &Spec,
        shard: &Shard,
        tokens_max: usize,
        longest_set_tokens: usize,
    ) -> Result<Self, GpuError> {
        let floats = |each: usize| Buffer::<f32>::new(gpu, tokens_max * each);
        let (hidden, z) = (spec.hidden_size, shard.groups.len() * spec.o_lora_rank);
        // A sequence has no more positions than the model allows; its pages may have.
        let entries = longest_set_tokens.min(spec.max_positions) / 4;
        Ok(Workspace {
            streams: floats(STREAMS * hidden)?,
            mixing: floats(STREAMS + STREAMS * STREAMS)?,
            stream_partials: floats(hidden.div_ceil(STREAM_SLICE) * STREAM_PARTIALS)?,
            embedded: floats(hidden)?,
            x: floats(hidden)?,
            qr: floats(spec.q_lora_rank)?,
            latents: floats(HEAD_DIM)?,
            packed: Buffer::new(gpu, tokens_max * overshot_model::quant::ENTRY_BYTES)?,
            k: floats(2 * HEAD_DIM)?,
            s: floats(2 * HEAD_DIM)?,
            index_k: floats(2 * INDEX_DIM)?,
            index_s: floats(2 * INDEX_DIM)?,
            index_q: floats(shard.index_heads.len() * INDEX_DIM)?,
            index_weights: floats(shard.index_heads.len())?,
            scores: Buffer::new(gpu, (tokens_max * entries).min(SCORES).max(entries).max(1))?,
            selected: Buffer::new(gpu, tokens_max * spec.index_topk)?,
            counts: Buffer::new(gpu, tokens_max)?,
            q: floats(shard.heads.len() * HEAD_DIM)?,
            heads_out: floats(shard.heads.len() * HEAD_DIM)?,
            z: floats(z)?,
            y: floats(hidden)?,
            y_shared: floats(hidden)?,
            gate: floats(spec.experts)?,
            ids: Buffer::new(gpu, tokens_max * spec.experts_per_token)?,
            weights: floats(spec.experts_per_token)?,
            wanted: Buffer::new(gpu, LOGIT_ROWS)?,
            hidden: Buffer::new(gpu, LOGIT_ROWS * hidden)?,
            logits: Buffer::new(gpu, LOGIT_ROWS * shard.vocab.len())?,
        })
    }
}
