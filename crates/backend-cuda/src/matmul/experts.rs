//! A layer's routed and shared experts: sort, two projections, and the sum, in four launches (five with rounding).
#![allow(unsafe_code)]

use super::args::{self, TILE_BYTES};
use super::check;
use super::launch::{Activations, Loaded, MatmulError, Matmuls};
use super::variant::SMALL_THREADS;
use crate::gpu::{Buffer, DeviceAddress, Gpu, GpuError, Grid, bytes_of};
use std::sync::Arc;

const EXPERTS_MAX: i64 = 1024;

/// What FP8 and FP4 matrices of experts read, before the first projection and between the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inner {
    /// bf16; every w2 is FP8 or FP4, so that it is written once, as it is read.
    Prepared,
    /// With the publisher's rounding.
    Rounded,
    /// In three terms: nothing is rounded.
    Terms,
    /// bf16, and some or all w2 are BF16 or F32.
    Exact,
}

impl Inner {
    /// What `x` has to be prepared as.
    pub fn activations(self) -> Activations {
        match self {
            Inner::Prepared | Inner::Exact => Activations::F32,
            Inner::Rounded => Activations::F32Rounded,
            Inner::Terms => Activations::F32Terms,
        }
    }

    /// Whether the first projection leaves float32 for `prepare`, whatever the format of w2.
    fn is_prepared_between(self) -> bool {
        matches!(self, Inner::Rounded | Inner::Terms)
    }
}

/// Memory for the experts of up to so many tokens at a time.
pub struct ExpertsScratch {
    token_of: Buffer<i32>,
    weight_of: Buffer<f32>,
    slot_of: Buffer<i32>,
    tiles: Buffer<u8>,
    tile_count: Buffer<i32>,
    inner: Buffer<u16>,
    inner_exact: Buffer<f32>,
    products: Buffer<f32>,
}

impl ExpertsScratch {
    /// Sizes follow from the model: `hidden` and `width` of an expert, `per_token` choices.
    pub fn new(
        gpu: &Arc<dyn Gpu>,
        tokens_max: usize,
        per_token: usize,
        hidden: usize,
        width: usize,
        inner: Inner,
    ) -> Result<Self, GpuError> {
        let slots = tokens_max * (per_token + 1);
        Ok(ExpertsScratch {
            token_of: Buffer::new(gpu, slots)?,
            weight_of: Buffer::new(gpu, slots)?,
            slot_of: Buffer::new(gpu, tokens_max * per_token)?,
            tiles: Buffer::new(gpu, slots * TILE_BYTES)?,
            tile_count: Buffer::new(gpu, 1)?,
            inner: Buffer::new(gpu, inner.activations().terms() * slots * width)?,
            inner_exact: Buffer::new(gpu, if inner == Inner::Prepared { 1 } else { slots * width })?,
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
    /// Prepared `[terms, tokens, hidden]`, as `inner` says; may be null when all experts are BF16 or F32.
    pub x: DeviceAddress,
    /// float32 `[tokens, hidden]`; may be null when none is.
    pub x_exact: DeviceAddress,
    /// float32 `[tokens, hidden]`: the sum over the routed experts of this rank.
    pub y: DeviceAddress,
    /// The same of the shared expert; null adds it to `y`.
    pub y_shared: DeviceAddress,
    pub inner: Inner,
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
        let (sort, args) = (sort_args(call, scratch, tile_tokens), experts_args(call, scratch));
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
        let args = experts_args(call, scratch);
        let slots = call.tokens * (call.per_token + 1);
        // SAFETY: as of the first half.
        unsafe {
            if call.inner.is_prepared_between() {
                let (from, to) = (scratch.inner_exact.address(), scratch.inner.address());
                self.prepare(call.inner.activations(), from, call.width, to, slots, call.width)?;
            }
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

fn experts_args(call: &ExpertsCall, scratch: &ExpertsScratch) -> args::Experts {
    let slots = call.tokens * (call.per_token + 1);
    let term_stride = |numbers: usize| if call.inner.activations().terms() > 1 { numbers as i64 } else { 0 };
    args::Experts {
        experts: call.experts,
        tiles: scratch.tiles.address(),
        tile_count: scratch.tile_count.address(),
        token_of: scratch.token_of.address(),
        weight_of: scratch.weight_of.address(),
        x: call.x,
        x_exact: call.x_exact,
        inner: scratch.inner.address(),
        inner_exact: scratch.inner_exact.address(),
        products: scratch.products.address(),
        x_term_stride: term_stride(call.tokens * call.hidden),
        inner_term_stride: term_stride(slots * call.width),
        hidden: call.hidden as i32,
        width: call.width as i32,
        shared: call.count as i32,
        inner_is_exact: i32::from(call.inner.is_prepared_between()),
        limit: call.limit,
        unused: 0,
    }
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
    let inner_width = call.inner.activations().terms() * call.width;
    if !fits(scratch.products.len(), call.hidden) || !fits(scratch.inner.len(), inner_width) {
        return check::refuse("tokens", call.tokens as i64, "at most those that the scratch was made for");
    }
    if call.inner != Inner::Prepared && !fits(scratch.inner_exact.len(), call.width) {
        return check::refuse("inner", 0, "scratch made for the same kind");
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
    if call.x == DeviceAddress::NULL && call.x_exact == DeviceAddress::NULL {
        return check::refuse("x", 0, "an input, prepared or exact");
    }
    Ok(())
}
