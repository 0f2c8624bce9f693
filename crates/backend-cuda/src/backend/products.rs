//! Products of a step with dense matrices: the tile kernels wherever [`Matmuls`] takes the matrix, version 1 for the rest
//! (rows that are no multiple of 16 bytes, a rank's columns that begin inside of a block of scales). The matrix alone
//! decides, so that a row of a plan gives the same bits in any company. Experts: `experts.rs`.
//!
//! FP8 and FP4 matrices read activations with the publisher's rounding or, where the mode has none, in as many bits as float32
//! sums have use for: no mode computes with fewer bits than it says.
#![allow(unsafe_code)]

use super::arguments as args;
use super::kernels::{Kernels, blocks};
use super::rank::RankError;
use crate::gpu::{Buffer, DeviceAddress, Gpu, GpuError, Grid};
use crate::matmul::{Activations, Company, Forms, Matmuls, Prepared, PreparedMemory, Product};
use overshot_backend::{self as plain, Numerics, Shard};
use overshot_model::{HEAD_DIM, Model};
use std::sync::Arc;

/// Whether FP8 and FP4 matrices read an input rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    ByMode,
    Never,
}

/// Activations of all tokens, float32 `[tokens, cols]`.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    pub at: DeviceAddress,
    pub cols: usize,
    pub rounding: Rounding,
}

/// A matrix that reads an input from column `first_col` on, and where its outputs go.
#[derive(Clone, Copy, Debug)]
pub struct Factor {
    pub matrix: args::Matrix,
    pub first_col: usize,
    pub out: DeviceAddress,
    pub out_stride: usize,
}

impl Factor {
    /// Outputs have rows of their own.
    pub fn new(matrix: args::Matrix, out: DeviceAddress) -> Self {
        Factor { matrix, first_col: 0, out, out_stride: matrix.rows as usize }
    }
}

/// The tile kernels, and what inputs become before a matrix reads them: made anew for each call, one user at a time.
pub struct Products {
    pub(super) matmuls: Matmuls,
    act: plain::Activations,
    prepared: PreparedMemory,
    /// The same for version 1, float32 `[tokens, cols]`; none where nothing is rounded.
    rounded: Buffer<f32>,
}

impl Products {
    pub fn new(
        gpu: &Arc<dyn Gpu>,
        model: &Model,
        shard: &Shard,
        numerics: Numerics,
        company: Company,
        tokens_max: usize,
    ) -> Result<Self, GpuError> {
        let (spec, act) = (&model.spec, numerics.act);
        let by_mode = spec.hidden_size.max(spec.q_lora_rank).max(shard.groups.len() * spec.o_lora_rank);
        let heads = shard.heads.len() * HEAD_DIM;
        let terms = |rounding| tile_activations(act, rounding).terms();
        let codes = (terms(Rounding::ByMode) * by_mode).max(terms(Rounding::Never) * heads);
        let heads_as_floats = model
            .weights
            .layers
            .iter()
            .any(|layer| layer.attn.wo_a.iter().any(|matrix| !matrix.format.is_quantised()));
        let floats = if heads_as_floats { by_mode.max(heads) } else { by_mode };
        let rounded = if act == plain::Activations::Exact { 0 } else { by_mode };
        Ok(Products {
            matmuls: Matmuls::load(gpu, company)?,
            act,
            prepared: PreparedMemory::new(gpu, tokens_max * codes, tokens_max * floats)?,
            rounded: Buffer::new(gpu, tokens_max * rounded)?,
        })
    }

    /// Multiplies the input by each matrix.
    pub fn dense(
        &self,
        kernels: &Kernels,
        input: Input,
        factors: &[Factor],
        tokens: usize,
    ) -> Result<(), RankError> {
        let (taken, left): (Vec<&Factor>, Vec<&Factor>) =
            factors.iter().partition(|factor| Matmuls::takes(&factor.matrix));
        self.dense_by_tiles(input, &taken, tokens)?;
        self.dense_by_version_1(kernels, input, &left, tokens)
    }

    fn dense_by_tiles(&self, input: Input, factors: &[&Factor], tokens: usize) -> Result<(), RankError> {
        if factors.is_empty() {
            return Ok(());
        }
        let forms = Forms::of(factors.iter().filter_map(|factor| factor.matrix.format()));
        let prepared = self.prepare(input, forms, tokens)?;
        let product = |factor: &&Factor| Product {
            matrix: factor.matrix,
            input: prepared,
            first_col: factor.first_col,
            out: factor.out,
            out_stride: factor.out_stride as i64,
        };
        let products: Vec<Product> = factors.iter().map(product).collect();
        // SAFETY: as of `Launcher::launch`: all addresses are of buffers of the rank, sized for its matrices and tokens.
        Ok(unsafe { self.matmuls.dense(&products, tokens) }?)
    }

    /// The input in the forms that matrices of the tile kernels take, until the next one is prepared.
    pub(super) fn prepare(&self, input: Input, forms: Forms, tokens: usize) -> Result<Prepared, RankError> {
        let how = tile_activations(self.act, input.rounding);
        let Input { at, cols, .. } = input;
        // SAFETY: as of `Launcher::launch`; everything is queued on the rank's device.
        Ok(unsafe { self.matmuls.prepare(how, at, cols, &self.prepared, forms, [tokens, cols]) }?)
    }

    /// The input as FP8 and FP4 matrices of version 1 read it.
    pub(super) fn rounded(
        &self,
        kernels: &Kernels,
        input: Input,
        tokens: usize,
    ) -> Result<DeviceAddress, RankError> {
        if self.act == plain::Activations::Exact || input.rounding == Rounding::Never {
            return Ok(input.at);
        }
        round(kernels, input.at, self.rounded.address(), tokens, input.cols)?;
        Ok(self.rounded.address())
    }

    fn dense_by_version_1(
        &self,
        kernels: &Kernels,
        input: Input,
        factors: &[&Factor],
        tokens: usize,
    ) -> Result<(), RankError> {
        let rounded = match factors.iter().any(|factor| factor.matrix.takes_codes()) {
            true => self.rounded(kernels, input, tokens)?,
            false => input.at,
        };
        for factors in factors.chunks(args::JOBS_MAX) {
            let count = factors.len() as i32;
            let mut dense = args::Dense { count, tokens: tokens as i32, ..Default::default() };
            for (factor, job) in factors.iter().zip(&mut dense.jobs) {
                let from = if factor.matrix.takes_codes() { rounded } else { input.at };
                *job = args::Job {
                    matrix: factor.matrix,
                    input: from.plus(4 * factor.first_col),
                    out: factor.out,
                    in_stride: input.cols as i64,
                    out_stride: factor.out_stride as i64,
                };
            }
            let outputs = factors.iter().map(|factor| blocks(factor.matrix.rows as usize)).sum();
            kernels.dense.launch(Grid(outputs, tokens as u32, 1), &dense)?;
        }
        Ok(())
    }
}

/// What FP8 and FP4 matrices of the tile kernels read.
pub(super) fn tile_activations(act: plain::Activations, rounding: Rounding) -> Activations {
    match (act, rounding) {
        (plain::Activations::E4m3, Rounding::ByMode) => Activations::Rounded,
        _ => Activations::Exact,
    }
}

/// The publisher's rounding for version 1, blocks of 128 columns.
pub(super) fn round(
    kernels: &Kernels,
    from: DeviceAddress,
    to: DeviceAddress,
    rows: usize,
    cols: usize,
) -> Result<(), RankError> {
    let round = args::Round { input: from, out: to, rows: rows as i32, cols: cols as i32 };
    Ok(kernels.round_rows.launch(Grid(blocks(rows * cols.div_ceil(128)), 1, 1), &round)?)
}
