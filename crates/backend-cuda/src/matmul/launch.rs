//! The kernels, loaded, and dense products: plans made, arguments looked at, launches queued.
#![allow(unsafe_code)]

use super::args::{self, JOBS_MAX, Matrix, Prepared};
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

/// `out[token, ..] = matrix x input[token, first_col..]`
#[derive(Clone, Copy, Debug, Default)]
pub struct Product {
    pub matrix: Matrix,
    /// In the form that the matrix takes.
    pub input: Prepared,
    /// A multiple of 128.
    pub first_col: usize,
    /// float32
    pub out: DeviceAddress,
    /// In numbers.
    pub out_stride: i64,
}

/// Whether a token's bits may depend on how many others are computed with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    Any,
    /// They do not.
    Invariant,
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
    company: Company,
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
    pub fn load(gpu: &Arc<dyn Gpu>, company: Company) -> Result<Self, GpuError> {
        let [dense, experts] = [Family::Dense, Family::Experts].map(|of| Variant::shipped(of, company));
        let multiprocessors = gpu.facts()?.multiprocessors;
        let parts = plan::parts_max(multiprocessors);
        let tile = dense.iter().map(|variant| (variant.rows * variant.tokens) as usize).max().unwrap_or(0);
        let small = Shape { threads: SMALL_THREADS, shared_bytes: 0 };
        Ok(Matmuls {
            company,
            dense: Ladder::load(&**gpu, &dense, "dense")?,
            up: Ladder::load(&**gpu, &experts, "up")?,
            down: Ladder::load(&**gpu, &experts, "down")?,
            prepare: gpu.load(&prepare_source(), "prepare", small)?,
            sort: gpu.load(&sort_source(), "sort", small)?,
            combine: gpu.load(&sort_source(), "combine", small)?,
            partial: Buffer::new(gpu, parts * tile)?,
            arrivals: Buffer::zeroed(gpu, parts)?,
            multiprocessors,
        })
    }

    pub(super) fn prepare_kernel(&self) -> &dyn Kernel {
        &*self.prepare
    }

    /// Whether these kernels can multiply by this matrix.
    pub fn takes(matrix: &Matrix) -> bool {
        check::matrix(matrix).is_ok()
    }

    /// All products of the same tokens, 16 a launch. Outputs must not overlap.
    ///
    /// # Safety
    /// Every address is live and as large as its matrix, strides and `tokens` say, until the launches have run.
    pub unsafe fn dense(&self, products: &[Product], tokens: usize) -> Result<(), MatmulError> {
        check::tokens(tokens)?;
        products.iter().try_for_each(check::product)?;
        // Where bits may not depend on company, splits are those of one token tile, which need the most memory for parts:
        // there is enough for one such tile at a time.
        let most = self.dense.for_tokens(tokens).variant.tokens as usize;
        let step = if self.company == Company::Invariant { most } else { tokens };
        for products in products.chunks(JOBS_MAX) {
            for first in (0..tokens).step_by(step) {
                // SAFETY: the caller's word.
                unsafe { self.dense_at_once(products, first, step.min(tokens - first)) }?;
            }
        }
        Ok(())
    }

    unsafe fn dense_at_once(
        &self,
        products: &[Product],
        first: usize,
        tokens: usize,
    ) -> Result<(), MatmulError> {
        let Loaded { variant, kernel } = self.dense.for_tokens(tokens);
        let token_tiles = tokens.div_ceil(variant.tokens as usize) as u32;
        let extents: Vec<Extent> = products.iter().map(|product| extent(&product.matrix)).collect();
        // Rows of a tile decide how many splits there are: for all variants the same, where bits are to be.
        let tile_rows = if self.company == Company::Invariant { INVARIANT_ROWS } else { variant.rows };
        let splits = plan::splits(&extents, tile_rows, token_tiles, self.multiprocessors);
        let mut args = args::Dense {
            partial: self.partial.address(),
            arrivals: self.arrivals.address(),
            count: products.len() as i32,
            first: first as i32,
            tokens: tokens as i32,
            ..args::Dense::default()
        };
        let mut blocks = 0;
        for ((product, split), job) in products.iter().zip(splits).zip(&mut args.jobs) {
            let tiles = (product.matrix.rows as u32).div_ceil(variant.rows);
            *job = args::Job {
                matrix: product.matrix,
                input: product.input,
                out: product.out,
                out_stride: product.out_stride,
                first_col: product.first_col as i32,
                blocks_before: blocks,
                splits: split.count as i32,
                split_bytes: (split.units * plan::UNIT_BYTES) as i32,
                parts_before: args.parts,
                unused: 0,
            };
            blocks += (tiles * split.count) as i32;
            args.parts += if split.count > 1 { (tiles * split.count) as i32 } else { 0 };
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

/// Rows of a tile of every dense variant that does not depend on company.
const INVARIANT_ROWS: u32 = 128;

fn extent(matrix: &Matrix) -> Extent {
    let row_bytes = matrix.format().map_or(0, |format| format.row_bytes(matrix.cols as usize));
    Extent { rows: matrix.rows as u32, row_bytes: row_bytes as u32 }
}
