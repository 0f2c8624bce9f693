//! The kernels, loaded, and dense products: plans made, arguments looked at, launches queued.
#![allow(unsafe_code)]

use super::args::{self, JOBS_MAX, Matrix};
use super::check;
use super::plan::{self, Extent};
use super::variant::{Family, SMALL_THREADS, Variant, for_tokens, prepare_source, sort_source};
use crate::gpu::{Buffer, DeviceAddress, Gpu, GpuError, Grid, Kernel, Shape, bytes_of};
use std::sync::Arc;

#[derive(Debug, thiserror::Error)]
pub enum MatmulError {
    #[error("{field} is {given}, which the matmul kernels do not take: {limit}")]
    Argument { field: &'static str, given: i64, limit: &'static str },
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

/// `out[token, ..] = matrix x input[token, ..]`; strides count numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Product {
    pub matrix: Matrix,
    /// Prepared bf16 for FP8 and FP4, float32 for the others.
    pub input: DeviceAddress,
    /// Numbers from each of three terms of a prepared input to the next; 0 where it is one.
    pub term_stride: i64,
    /// float32
    pub out: DeviceAddress,
    pub in_stride: i64,
    pub out_stride: i64,
}

/// Whether a token's bits may depend on how many others are computed with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    Any,
    /// They do not.
    Invariant,
}

/// What `prepare` reads, and what it makes of it.
#[derive(Clone, Copy, Debug)]
pub enum Activations {
    F32,
    /// float32, rounded as the publisher does (E4M3, blocks of 128).
    F32Rounded,
    /// float32 as three terms: nothing is rounded.
    F32Terms,
    Bf16,
}

impl Activations {
    /// Of bf16 for each number that is prepared.
    pub fn terms(self) -> usize {
        if matches!(self, Activations::F32Terms) { 3 } else { 1 }
    }
}

/// A variant on a device.
pub(super) struct Loaded {
    pub variant: Variant,
    pub kernel: Box<dyn Kernel>,
}

/// A family's kernels by the tokens of a block, ascending.
pub(super) struct Ladder(Vec<Loaded>);

impl Ladder {
    pub(super) fn load(gpu: &dyn Gpu, variants: &[Variant], entry: &str) -> Result<Self, GpuError> {
        let load = |variant: &Variant| {
            let kernel = gpu.load(&variant.source(), entry, variant.shape)?;
            Ok(Loaded { variant: variant.clone(), kernel })
        };
        Ok(Ladder(variants.iter().map(load).collect::<Result<_, GpuError>>()?))
    }

    pub(super) fn for_tokens(&self, tokens: usize) -> &Loaded {
        &self.0[for_tokens(self.0.iter().map(|loaded| &loaded.variant), tokens)]
    }
}

/// All kernels of the family, and the memory that their launches share: one user at a time, on one stream.
pub struct Matmuls {
    dense: Ladder,
    pub(super) up: Ladder,
    pub(super) down: Ladder,
    prepare: Box<dyn Kernel>,
    pub(super) sort: Box<dyn Kernel>,
    pub(super) combine: Box<dyn Kernel>,
    partial: Buffer<f32>,
    arrivals: Buffer<i32>,
    multiprocessors: u32,
}

impl Matmuls {
    pub fn load(gpu: &Arc<dyn Gpu>) -> Result<Self, GpuError> {
        Self::with(gpu, &Variant::shipped(Family::Dense), &Variant::shipped(Family::Experts))
    }

    /// Other variants than those that ship, ascending by tokens: for checks and timing.
    pub fn with(gpu: &Arc<dyn Gpu>, dense: &[Variant], experts: &[Variant]) -> Result<Self, GpuError> {
        let multiprocessors = gpu.facts()?.multiprocessors;
        let parts = plan::parts_max(multiprocessors);
        let tile = dense.iter().map(|variant| (variant.rows * variant.tokens) as usize).max().unwrap_or(0);
        let small = Shape { threads: SMALL_THREADS, shared_bytes: 0 };
        Ok(Matmuls {
            dense: Ladder::load(&**gpu, dense, "dense")?,
            up: Ladder::load(&**gpu, experts, "up")?,
            down: Ladder::load(&**gpu, experts, "down")?,
            prepare: gpu.load(&prepare_source(), "prepare", small)?,
            sort: gpu.load(&sort_source(), "sort", small)?,
            combine: gpu.load(&sort_source(), "combine", small)?,
            partial: Buffer::new(gpu, parts * tile)?,
            arrivals: Buffer::zeroed(gpu, parts)?,
            multiprocessors,
        })
    }

    /// Whether these kernels can multiply by this matrix.
    pub fn takes(matrix: &Matrix) -> bool {
        check::matrix(matrix).is_ok()
    }

    /// Makes activations `[rows, cols]` what FP8 and FP4 matrices take: `out` is bf16 `[terms, rows, cols]`.
    ///
    /// # Safety
    /// `input` holds `rows` rows, `in_stride` numbers apart, and `out` has room, until the launch has run.
    pub unsafe fn prepare(
        &self,
        activations: Activations,
        input: DeviceAddress,
        in_stride: usize,
        out: DeviceAddress,
        rows: usize,
        cols: usize,
    ) -> Result<(), MatmulError> {
        let rows = check::tokens(rows)?;
        if cols == 0 || !cols.is_multiple_of(8) || cols > in_stride || cols > 1 << 20 {
            return check::refuse("cols", cols as i64, "a multiple of 8, at most in_stride");
        }
        check::aligned("out", out)?;
        let args = args::Prepare {
            input,
            out,
            in_stride: in_stride as i64,
            rows,
            cols: cols as i32,
            is_bf16: i32::from(matches!(activations, Activations::Bf16)),
            round_to_e4m3: i32::from(matches!(activations, Activations::F32Rounded)),
            terms: activations.terms() as i32,
            unused: 0,
        };
        let threads = rows as u32 * cols.div_ceil(128) as u32 * 16;
        // SAFETY: `Prepare` mirrors the kernel's struct; the addresses are the caller's word.
        Ok(unsafe { self.prepare.launch(Grid(threads.div_ceil(SMALL_THREADS), 1, 1), bytes_of(&args)) }?)
    }

    /// All products of the same tokens, 16 a launch. Outputs must not overlap.
    ///
    /// # Safety
    /// Every address is live and as large as its matrix, strides and `tokens` say, until the launches have run.
    pub unsafe fn dense(
        &self,
        products: &[Product],
        tokens: usize,
        company: Company,
    ) -> Result<(), MatmulError> {
        check::tokens(tokens)?;
        for products in products.chunks(JOBS_MAX) {
            let formats = products.iter().map(check::product).collect::<Result<Vec<_>, _>>()?;
            let most = self.dense.for_tokens(tokens).variant.tokens as usize;
            // Splits of one token tile need the most memory for parts: there is enough for one such tile at a time.
            let step = if company == Company::Invariant { most } else { tokens };
            for first in (0..tokens).step_by(step) {
                let moved: Vec<Product> = products
                    .iter()
                    .zip(&formats)
                    .map(|(product, format)| Product {
                        input: product
                            .input
                            .plus(first * (product.in_stride * check::input_bytes(*format)) as usize),
                        out: product.out.plus(4 * first * product.out_stride as usize),
                        ..*product
                    })
                    .collect();
                // SAFETY: the caller's word, of rows from `first` on.
                unsafe { self.dense_at_once(&moved, step.min(tokens - first)) }?;
            }
        }
        Ok(())
    }

    unsafe fn dense_at_once(&self, products: &[Product], tokens: usize) -> Result<(), MatmulError> {
        let Loaded { variant, kernel } = self.dense.for_tokens(tokens);
        let token_tiles = tokens.div_ceil(variant.tokens as usize) as u32;
        let extents: Vec<Extent> = products.iter().map(|product| extent(&product.matrix)).collect();
        let splits = plan::splits(&extents, variant.rows, token_tiles, self.multiprocessors);
        let mut args = args::Dense {
            partial: self.partial.address(),
            arrivals: self.arrivals.address(),
            count: products.len() as i32,
            tokens: tokens as i32,
            ..args::Dense::default()
        };
        let mut blocks = 0;
        for ((product, splits), job) in products.iter().zip(splits).zip(&mut args.jobs) {
            let tiles = (product.matrix.rows as u32).div_ceil(variant.rows);
            *job = args::Job {
                matrix: product.matrix,
                input: product.input,
                out: product.out,
                in_stride: product.in_stride,
                out_stride: product.out_stride,
                term_stride: product.term_stride,
                blocks_before: blocks,
                splits: splits as i32,
                parts_before: args.parts,
                unused: 0,
            };
            blocks += (tiles * splits) as i32;
            args.parts += if splits > 1 { (tiles * splits) as i32 } else { 0 };
        }
        let parts = args.parts as usize * token_tiles as usize;
        if parts > self.arrivals.len() {
            return check::refuse("parts", parts as i64, "at most as many as the workspace was made for");
        }
        // SAFETY: `Dense` mirrors the kernel's struct; its own buffers wait for queued work before they go, the other
        // addresses are the caller's word.
        Ok(unsafe { kernel.launch(Grid(blocks as u32, token_tiles, 1), bytes_of(&args)) }?)
    }
}

fn extent(matrix: &Matrix) -> Extent {
    let row_bytes = matrix.format().map_or(0, |format| format.row_bytes(matrix.cols as usize));
    Extent { rows: matrix.rows as u32, row_bytes: row_bytes as u32 }
}
