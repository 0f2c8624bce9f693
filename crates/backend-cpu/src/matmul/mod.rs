//! `Y = X Wᵀ` for weights in any stored format, many matrices at a time, on all threads.
//!
//! An output's bits depend on its input row and its weight row alone: not on the other inputs, the thread count or
//! how the work was cut. Everything the engine promises about batching rests on this.

mod order;
mod scalar;

#[cfg(target_arch = "x86_64")]
mod avx2;

use crate::Isa;
use overshot_model::{Format, Matrix, quant};
use rayon::prelude::*;
use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;

/// Weight rows that one task handles: a multiple of every kernel's row tile.
const TASK_ROWS: usize = 32;
/// Multiply-adds below which waking the other threads costs more than it brings.
const PARALLEL_MACS: usize = 1 << 17;

/// Input rows prepared for matrices of one format: in its column order, and rounded if asked.
pub struct Input<'a> {
    format: Format,
    cols: usize,
    data: Cow<'a, [f32]>,
}

impl<'a> Input<'a> {
    /// `x` is `[rows, stride]`, of which columns `cols` are used.
    pub fn new(format: Format, x: &'a [f32], stride: usize, cols: Range<usize>) -> Self {
        let width = cols.len();
        if format == Format::F32 && width == stride {
            return Input { format, cols: width, data: Cow::Borrowed(x) };
        }
        let mut data = vec![0.0; x.len() / stride * width];
        fill_rows(&mut data, width, |row, out| {
            order::reorder(format, &x[row * stride..][cols.clone()], out);
        });
        Input { format, cols: width, data: Cow::Owned(data) }
    }

    /// The same with the publisher's activation rounding (E4M3, blocks of 128) applied first.
    pub fn rounded(format: Format, x: &[f32], cols: usize) -> Input<'static> {
        let mut data = vec![0.0; x.len()];
        fill_rows(&mut data, cols, |row, out| {
            let mut rounded = x[row * cols..(row + 1) * cols].to_vec();
            quant::round_activations(&mut rounded);
            order::reorder(format, &rounded, out);
        });
        Input { format, cols, data: Cow::Owned(data) }
    }
}

impl Input<'_> {
    /// Whether matrices like this one take this input.
    pub fn serves(&self, matrix: &Matrix) -> bool {
        self.format == matrix.format && self.cols == matrix.cols
    }
}

fn fill_rows(data: &mut [f32], cols: usize, fill: impl Fn(usize, &mut [f32]) + Sync) {
    if data.len() < PARALLEL_MACS {
        data.chunks_exact_mut(cols).enumerate().for_each(|(row, out)| fill(row, out));
    } else {
        data.par_chunks_exact_mut(cols).enumerate().for_each(|(row, out)| fill(row, out));
    }
}

/// One product: some rows of an input times a whole matrix, into columns of an output.
pub struct Job<'a> {
    pub matrix: &'a Matrix,
    pub input: &'a Input<'a>,
    /// Which input rows, in order.
    pub rows: Rows<'a>,
    pub output: Output<'a>,
}

#[derive(Clone, Copy)]
pub enum Rows<'a> {
    First(usize),
    Picked(&'a [u32]),
}

impl Rows<'_> {
    fn len(&self) -> usize {
        match self {
            Rows::First(count) => *count,
            Rows::Picked(picked) => picked.len(),
        }
    }
}

/// Where a job writes: `matrix.rows` numbers per input row, at `[row * stride + column ..]`.
pub struct Output<'a> {
    // Tasks of one job write disjoint columns of the same rows, which a slice cannot express.
    start: *mut f32,
    stride: usize,
    width: usize,
    rows: usize,
    _borrow: std::marker::PhantomData<&'a mut [f32]>,
}

impl<'a> Output<'a> {
    /// Contiguous rows of `width` numbers.
    pub fn new(out: &'a mut [f32], width: usize) -> Self {
        Output { start: out.as_mut_ptr(), stride: width, width, rows: out.len() / width, _borrow: Default::default() }
    }

    /// Splits rows of `parts * width` numbers into side-by-side outputs of `width`.
    pub fn side_by_side(out: &'a mut [f32], parts: usize, width: usize) -> Vec<Self> {
        let stride = parts * width;
        let rows = out.len() / stride;
        let start = out.as_mut_ptr();
        (0..parts)
            .map(|part| Output {
                // Within the first row; only dereferenced when there is one.
                start: start.wrapping_add(part * width),
                stride,
                width,
                rows,
                _borrow: Default::default(),
            })
            .collect()
    }
}

// SAFETY: an `Output` stands for a `&mut [f32]` whose cells it owns exclusively (`side_by_side` deals them out
// disjointly), and `Block::store` writes each cell from one task only: tasks own disjoint rows of the matrix.
#[allow(unsafe_code)]
unsafe impl Sync for Output<'_> {}

/// A job's share for one task: some rows of its matrix.
struct Block<'a> {
    job: &'a Job<'a>,
    matrix: &'a Matrix,
    rows: Range<usize>,
}

impl Block<'_> {
    fn cols(&self) -> usize {
        self.matrix.cols
    }

    fn inputs(&self) -> usize {
        self.job.rows.len()
    }

    fn input(&self, m: usize) -> &[f32] {
        let row = match self.job.rows {
            Rows::First(_) => m,
            Rows::Picked(picked) => picked[m] as usize,
        };
        let cols = self.job.input.cols;
        &self.job.input.data[row * cols..(row + 1) * cols]
    }

    #[allow(unsafe_code)]
    fn store(&self, m: usize, row: usize, value: f32) {
        let output = &self.job.output;
        assert!(m < output.rows && row < output.width && self.rows.contains(&row));
        // SAFETY: the cell lies in the borrowed slice by the assertion; no other task has this matrix row.
        unsafe { output.start.add(m * output.stride + row).write(value) }
    }
}

/// Buffers of the panel kernel, kept per thread.
#[derive(Default)]
struct PanelScratch {
    panel: Vec<f32>,
    sums: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<PanelScratch> = RefCell::default();
}

/// Runs all jobs; their outputs are disjoint by borrow. Panics when shapes do not fit: they are fixed by the `Spec`.
pub fn run(isa: Isa, jobs: &[Job]) {
    let mut tasks: Vec<Block> = Vec::new();
    let mut macs = 0;
    for job in jobs {
        let matrix = job.matrix;
        assert!(job.input.serves(matrix), "input prepared for another format or width");
        assert_eq!(job.output.width, matrix.rows, "output width");
        assert!(job.rows.len() <= job.output.rows, "output rows");
        if job.rows.len() == 0 {
            continue;
        }
        macs += job.rows.len() * matrix.rows * matrix.cols;
        for start in (0..matrix.rows).step_by(TASK_ROWS) {
            tasks.push(Block { job, matrix, rows: start..(start + TASK_ROWS).min(matrix.rows) });
        }
    }
    if macs < PARALLEL_MACS {
        tasks.iter().for_each(|block| run_block(isa, block));
    } else {
        tasks.par_iter().for_each(|block| run_block(isa, block));
    }
}

fn run_block(isa: Isa, block: &Block) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(_) if block.cols() % order::STEP == 0 => {
            SCRATCH.with_borrow_mut(|scratch| {
                // SAFETY: `Isa::Avx2` exists only where the processor has AVX2 and FMA.
                #[allow(unsafe_code)]
                unsafe {
                    avx2::run(block, scratch)
                }
            })
        }
        _ => scalar::run(block),
    }
}
