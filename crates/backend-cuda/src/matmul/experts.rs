//! A layer's routed and shared experts: sort, two projections, and the sum, in five launches.
#![allow(unsafe_code)]

use super::args::{self, Prepared, TILE_BYTES};
use super::check;
use super::launch::{Loaded, MatmulError, Matmuls};
use super::prepared::{Activations, Forms, PreparedMemory};
use super::variant::SMALL_THREADS;
use crate::gpu::{Buffer, DeviceAddress, Gpu, GpuError, Grid, bytes_of};
use std::sync::Arc;

const EXPERTS_MAX: i64 = 1024;

/// Memory for the experts of up to so many tokens at a time.
pub struct ExpertsScratch {
    token_of: Buffer<i32>,
    weight_of: Buffer<f32>,
    slot_of: Buffer<i32>,
    tiles: Buffer<u8>,
    tile_count: Buffer<i32>,
    activations: Activations,
    inner: PreparedMemory,
    /// What w2 of some expert takes.
    inner_forms: Forms,
    inner_exact: Buffer<f32>,
    products: Buffer<f32>,
}

impl ExpertsScratch {
    /// Sizes follow from the model: `hidden` and `width` of an expert, `per_token` choices. `inner` is what second projections
    /// take.
    pub fn new(
        gpu: &Arc<dyn Gpu>,
        tokens_max: usize,
        per_token: usize,
        hidden: usize,
        width: usize,
        activations: Activations,
        inner: Forms,
    ) -> Result<Self, GpuError> {
        let slots = tokens_max * (per_token + 1);
        Ok(ExpertsScratch {
            token_of: Buffer::new(gpu, slots)?,
            weight_of: Buffer::new(gpu, slots)?,
            slot_of: Buffer::new(gpu, tokens_max * per_token)?,
            tiles: Buffer::new(gpu, slots * TILE_BYTES)?,
            tile_count: Buffer::new(gpu, 1)?,
            activations,
            inner: PreparedMemory::new(
                gpu,
                if inner.codes { activations.terms() * slots * width } else { 0 },
                if inner.floats { slots * width } else { 0 },
            )?,
            inner_forms: inner,
            inner_exact: Buffer::new(gpu, slots * width)?,
            products: Buffer::new(gpu, slots * hidden)?,
        })
    }
}

/// A layer's experts on some tokens.
#[derive(Clone, Copy, Debug)]
pub struct ExpertsCall {
    /// [`super::Expert`]s of this rank, `[count + 1]`; the shared one is the last.
    pub experts: DeviceAddress,
    /// int32 `[tokens, per_token]`: ids among all experts, ascending.
    pub ids: DeviceAddress,
    /// float32 `[tokens, per_token]`
    pub weights: DeviceAddress,
    /// `[tokens, hidden]`, in every form that a first projection takes.
    pub x: Prepared,
    /// float32 `[tokens, hidden]`: the sum over the routed experts of this rank.
    pub y: DeviceAddress,
    /// The same of the shared expert; null adds it to `y`.
    pub y_shared: DeviceAddress,
    pub tokens: usize,
    pub per_token: usize,
    pub hidden: usize,
    pub width: usize,
    /// Of this rank.
    pub first_expert: usize,
    pub count: usize,
    /// Infinity for no limit.
    pub limit: f32,
}

impl Matmuls {
    /// # Safety
    /// Every address is live and as large as its field says, until the launches have run; all matrices of `experts` are
    /// such as [`Matmuls::takes`] takes, w1 and w3 `[width, hidden]` in one format, w2 `[hidden, width]`.
    pub unsafe fn experts(&self, call: &ExpertsCall, scratch: &ExpertsScratch) -> Result<(), MatmulError> {
        // SAFETY: the caller's word.
        unsafe {
            self.experts_up(call, scratch)?;
            self.experts_down(call, scratch)
        }
    }

    /// The first half of [`Matmuls::experts`]: the sort, and w1 and w3.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn experts_up(&self, call: &ExpertsCall, scratch: &ExpertsScratch) -> Result<(), MatmulError> {
        check_call(call, scratch)?;
        let Loaded { variant, kernel } = self.up.for_tokens(tokens_of_an_expert(call));
        let tile_tokens = variant.tokens as usize;
        let (sort, args) = (sort_args(call, scratch, tile_tokens), experts_args(call, scratch)?);
        let blocks = (call.width as u32).div_ceil(variant.rows / 2);
        // SAFETY: each struct mirrors its kernel's; scratch buffers wait for queued work before they go, other addresses are
        // the caller's word; `check_call` saw that slots fit the scratch.
        unsafe {
            self.sort.launch(Grid(call.count as u32 + 1, 1, 1), bytes_of(&sort))?;
            Ok(kernel.launch(Grid(blocks, tiles_max(call, tile_tokens) as u32, 1), bytes_of(&args))?)
        }
    }

    /// The second half: w2, and the sums.
    ///
    /// # Safety
    /// As there; the first half of the same call was queued before.
    pub unsafe fn experts_down(
        &self,
        call: &ExpertsCall,
        scratch: &ExpertsScratch,
    ) -> Result<(), MatmulError> {
        check_call(call, scratch)?;
        // A block has as many tokens as an expert can have, at most; both halves use the tiles of the first.
        let tile_tokens = self.up.for_tokens(tokens_of_an_expert(call)).variant.tokens as usize;
        let tiles = tiles_max(call, tile_tokens) as u32;
        let args = experts_args(call, scratch)?;
        let slots = call.tokens * (call.per_token + 1);
        // SAFETY: as of the first half.
        unsafe {
            let ExpertsScratch { activations, inner, inner_forms, inner_exact, .. } = scratch;
            let shape = [slots, call.width];
            self.prepare(*activations, inner_exact.address(), call.width, inner, *inner_forms, shape)?;
            let Loaded { variant, kernel } = self.down.for_tokens(tokens_of_an_expert(call));
            kernel.launch(Grid((call.hidden as u32).div_ceil(variant.rows), tiles, 1), bytes_of(&args))?;
            let columns = (call.hidden as u32 / 4).div_ceil(SMALL_THREADS);
            let combine = combine_args(call, scratch);
            Ok(self.combine.launch(Grid(columns, call.tokens as u32, 1), bytes_of(&combine))?)
        }
    }
}

/// About as many as an expert gets, where all ranks' are chosen alike; more experts of other ranks make it an upper bound. A tile for
/// all tokens of the step would multiply mostly by nothing: of 64 tokens an expert of Flash has one or two.
fn tokens_of_an_expert(call: &ExpertsCall) -> usize {
    (call.tokens * call.per_token).div_ceil(call.count.max(1)).min(call.tokens)
}

/// Tiles of slots that any choices of so many tokens make, at most.
fn tiles_max(call: &ExpertsCall, tile_tokens: usize) -> usize {
    let pairs = call.tokens * call.per_token;
    let routed = pairs.min(call.count + pairs / tile_tokens);
    call.tokens.div_ceil(tile_tokens) + routed
}

fn sort_args(call: &ExpertsCall, scratch: &ExpertsScratch, tile_tokens: usize) -> args::Sort {
    args::Sort {
        ids: call.ids,
        weights: call.weights,
        token_of: scratch.token_of.address(),
        weight_of: scratch.weight_of.address(),
        slot_of: scratch.slot_of.address(),
        tiles: scratch.tiles.address(),
        tile_count: scratch.tile_count.address(),
        tokens: call.tokens as i32,
        per_token: call.per_token as i32,
        first_expert: call.first_expert as i32,
        count: call.count as i32,
        tile_tokens: tile_tokens as i32,
        unused: 0,
    }
}

fn experts_args(call: &ExpertsCall, scratch: &ExpertsScratch) -> Result<args::Experts, MatmulError> {
    let slots = call.tokens * (call.per_token + 1);
    Ok(args::Experts {
        experts: call.experts,
        tiles: scratch.tiles.address(),
        tile_count: scratch.tile_count.address(),
        token_of: scratch.token_of.address(),
        weight_of: scratch.weight_of.address(),
        x: call.x,
        inner: scratch.inner.at(scratch.activations, scratch.inner_forms, [slots, call.width])?,
        inner_exact: scratch.inner_exact.address(),
        products: scratch.products.address(),
        hidden: call.hidden as i32,
        width: call.width as i32,
        limit: call.limit,
        unused: 0,
    })
}

fn combine_args(call: &ExpertsCall, scratch: &ExpertsScratch) -> args::Combine {
    args::Combine {
        products: scratch.products.address(),
        slot_of: scratch.slot_of.address(),
        y: call.y,
        y_shared: call.y_shared,
        tokens: call.tokens as i32,
        per_token: call.per_token as i32,
        hidden: call.hidden as i32,
        unused: 0,
    }
}

fn check_call(call: &ExpertsCall, scratch: &ExpertsScratch) -> Result<(), MatmulError> {
    check::tokens(call.tokens * (call.per_token + 1))?;
    let fits = |len: usize, each: usize| call.tokens * (call.per_token + 1) * each <= len;
    if !fits(scratch.products.len(), call.hidden) || !fits(scratch.inner_exact.len(), call.width) {
        return check::refuse("tokens", call.tokens as i64, "at most those that the scratch was made for");
    }
    if !(1..=EXPERTS_MAX).contains(&(call.count as i64)) || call.first_expert as i64 > EXPERTS_MAX {
        return check::refuse("count", call.count as i64, "1 to 1,024 experts");
    }
    if ![call.hidden, call.width].iter().all(|width| *width > 0 && width.is_multiple_of(32)) {
        return check::refuse("hidden", call.hidden as i64, "a multiple of 32, as width");
    }
    for (field, address) in [("y", call.y), ("experts", call.experts), ("ids", call.ids)] {
        check::aligned(field, address)?;
    }
    let has = |address| address != DeviceAddress::NULL;
    check::forms(&call.x, Forms { codes: has(call.x.codes), floats: has(call.x.floats) })?;
    if call.x.cols as usize != call.hidden {
        return check::refuse("x", call.x.cols.into(), "as wide as the experts' inputs");
    }
    Ok(())
}
