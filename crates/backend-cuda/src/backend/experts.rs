//! A layer's routed and shared experts: by tiles where [`Matmuls`](crate::matmul::Matmuls) takes every matrix of the layer, version 1 otherwise.
//! Here too a layer's matrices alone decide, and neither way has a sum whose order depends on other tokens.
#![allow(unsafe_code)]

use super::arguments as args;
use super::kernels::{Kernels, blocks};
use super::products::{Input, Products, Rounding, round, tile_activations};
use super::rank::RankError;
use super::stopwatch::Stopwatch;
use super::weights::{DeviceLayer, ExpertsKind};
use crate::gpu::{Buffer, DeviceAddress, Gpu, GpuError, Grid};
use crate::matmul::{ExpertsCall, ExpertsScratch, Forms};
use overshot_backend::{Activations, Family, Numerics, Shard};
use overshot_model::{Format, Model};
use std::ops::Range;
use std::sync::Arc;

/// What the layers of a rank have in common, and memory between the two projections.
pub struct Experts {
    act: Activations,
    per_token: usize,
    hidden: usize,
    width: usize,
    own: Range<usize>,
    limit: f32,
    /// Where some layer goes by tiles.
    scratch: Option<ExpertsScratch>,
    /// `[tokens, choices + 1, width]`, where some layer goes by version 1; and with the publisher's rounding.
    inner: Buffer<f32>,
    inner_rounded: Buffer<f32>,
}

/// The tokens' inputs and choices, and where the sums go: all as in [`ExpertsCall`].
#[derive(Clone, Copy, Debug)]
pub struct Routed {
    pub x: DeviceAddress,
    pub ids: DeviceAddress,
    pub weights: DeviceAddress,
    pub y: DeviceAddress,
    pub y_shared: DeviceAddress,
}

impl Experts {
    pub fn new(
        gpu: &Arc<dyn Gpu>,
        model: &Model,
        shard: &Shard,
        numerics: Numerics,
        tokens_max: usize,
    ) -> Result<Self, GpuError> {
        let spec = &model.spec;
        let (per_token, hidden, width) = (spec.experts_per_token, spec.hidden_size, spec.expert_width);
        let layers: Vec<_> = model.weights.layers.iter().map(|layer| ExpertsKind::of(&layer.ffn)).collect();
        let by_tiles = layers.iter().filter(|experts| experts.go_by_tiles);
        let inner = by_tiles.map(|experts| experts.forms).reduce(Forms::and);
        let act = tile_activations(numerics.act, Rounding::ByMode);
        let scratch =
            inner.map(|inner| ExpertsScratch::new(gpu, tokens_max, per_token, hidden, width, act, inner));
        let plain =
            if layers.iter().all(|experts| experts.go_by_tiles) { 0 } else { (per_token + 1) * width };
        let rounded = if numerics.act == Activations::Exact { 0 } else { plain };
        Ok(Experts {
            act: numerics.act,
            per_token,
            hidden,
            width,
            own: shard.experts.clone(),
            limit: spec.swiglu_limit.unwrap_or(f32::INFINITY),
            scratch: scratch.transpose()?,
            inner: Buffer::new(gpu, tokens_max * plain)?,
            inner_rounded: Buffer::new(gpu, tokens_max * rounded)?,
        })
    }

    /// Leaves the routed experts' sums in `y`, the shared one's outputs in `y_shared`.
    pub fn run(
        &self,
        kernels: &Kernels,
        products: &Products,
        layer: &DeviceLayer,
        routed: Routed,
        tokens: usize,
        stopwatch: &Stopwatch,
    ) -> Result<(), RankError> {
        stopwatch.enter(Family::ExpertsUp)?;
        match &self.scratch {
            Some(scratch) if layer.experts_kind.go_by_tiles => {
                self.by_tiles(products, scratch, layer, routed, tokens, stopwatch)
            }
            _ => self.by_version_1(kernels, products, layer, routed, tokens, stopwatch),
        }
    }

    fn by_tiles(
        &self,
        products: &Products,
        scratch: &ExpertsScratch,
        layer: &DeviceLayer,
        routed: Routed,
        tokens: usize,
        stopwatch: &Stopwatch,
    ) -> Result<(), RankError> {
        let call = ExpertsCall {
            experts: layer.experts,
            ids: routed.ids,
            weights: routed.weights,
            x: products.prepare(self.input(routed.x), layer.experts_kind.forms, tokens)?,
            y: routed.y,
            y_shared: routed.y_shared,
            tokens,
            per_token: self.per_token,
            hidden: self.hidden,
            width: self.width,
            first_expert: self.own.start,
            count: self.own.len(),
            limit: self.limit,
        };
        // SAFETY: as of `Launcher::launch`: all addresses are of buffers of the rank, sized for its tokens; `go_by_tiles`
        // says that the matrices are such as these kernels take.
        unsafe {
            products.matmuls.experts_up(&call, scratch)?;
            stopwatch.enter(Family::ExpertsDown)?;
            Ok(products.matmuls.experts_down(&call, scratch)?)
        }
    }

    fn input(&self, x: DeviceAddress) -> Input {
        Input { at: x, cols: self.hidden, rounding: Rounding::ByMode }
    }

    fn by_version_1(
        &self,
        kernels: &Kernels,
        products: &Products,
        layer: &DeviceLayer,
        routed: Routed,
        tokens: usize,
        stopwatch: &Stopwatch,
    ) -> Result<(), RankError> {
        let kind = &layer.experts_kind;
        let x_rounded = products.rounded(kernels, self.input(routed.x), tokens)?;
        let (inner, inner_rounded) = (self.inner.address(), self.inner_rounded.address());
        let input = |format: Format, exact: DeviceAddress, rounded: DeviceAddress| {
            let rounds = self.act == Activations::E4m3 && format.is_quantised();
            if rounds { rounded } else { exact }
        };
        let args = args::Experts {
            experts: layer.experts,
            ids: routed.ids,
            weights: routed.weights,
            x: input(kind.routed, routed.x, x_rounded),
            x_shared: input(kind.shared, routed.x, x_rounded),
            inner,
            inner_routed: input(kind.routed, inner, inner_rounded),
            inner_shared: input(kind.shared, inner, inner_rounded),
            y: routed.y,
            y_shared: routed.y_shared,
            tokens: tokens as i32,
            per_token: self.per_token as i32,
            hidden: self.hidden as i32,
            width: self.width as i32,
            first_expert: self.own.start as i32,
            count: self.own.len() as i32,
            limit: self.limit,
            unused: 0,
        };
        let (up, down, slots) = (blocks(self.width), blocks(self.hidden), self.per_token + 1);
        kernels.expert_up.launch(Grid(up, slots as u32, tokens as u32), &args)?;
        stopwatch.enter(Family::ExpertsDown)?;
        if self.act == Activations::E4m3 {
            round(kernels, inner, inner_rounded, tokens * slots, self.width)?;
        }
        Ok(kernels.expert_down.launch(Grid(down, tokens as u32, 1), &args)?)
    }
}
