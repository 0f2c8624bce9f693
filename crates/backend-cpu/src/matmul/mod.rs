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

/// Columns that kernels work on before they go to the next rows.
const BLOCK_COLS: usize = 512;
/// Weight rows that one task handles at most: a multiple of every kernel's row tile.
const TASK_ROWS: usize = 32;
/// Weights that one task reads, when few inputs share them.
const TASK_BYTES: usize = 1 << 16;
/// Multiply-adds below which waking the other threads costs more than it brings.
const PARALLEL_MACS: usize = 1 << 17;

/// Input rows prepared for matrices of one format: in its column order, rounded if asked, and cut into blocks of
/// columns, `[block][row][column]`. Whole rows of a power-of-two width would all compete for the same few cache sets.
pub struct Input<'a> {
    format: Format,
    rows: usize,
    cols: usize,
    data: Cow<'a, [f32]>,
}

impl<'a> Input<'a> {
    /// `x` is `[rows, stride]`, of which columns `cols` are used.
    pub fn new(format: Format, x: &'a [f32], stride: usize, cols: Range<usize>) -> Self {
        let rows = x.len() / stride;
        if format == Format::F32 && rows == 1 {
            return Input { format, rows, cols: cols.len(), data: Cow::Borrowed(&x[cols]) };
        }
        Self::filled(format, rows, cols.len(), |row, block| {
            Cow::Borrowed(&x[row * stride..][cols.clone()][block])
        })
    }

    /// The same with the publisher's activation rounding (E4M3, blocks of 128) applied first.
    pub fn rounded(format: Format, x: &'a [f32], cols: usize) -> Self {
        const _: () = assert!(BLOCK_COLS.is_multiple_of(quant::ACTIVATION_BLOCK));
        Self::filled(format, x.len() / cols, cols, |row, block| {
            let mut rounded = x[row * cols..(row + 1) * cols][block].to_vec();
            quant::round_activations(&mut rounded);
            Cow::Owned(rounded)
        })
    }

    /// `source(row, columns)` gives a block of a row in natural order.
    fn filled<'s>(
        format: Format,
        rows: usize,
        cols: usize,
        source: impl Fn(usize, Range<usize>) -> Cow<'s, [f32]> + Sync,
    ) -> Self {
        let mut data = vec![0.0; rows * cols];
        data.par_chunks_mut((rows * BLOCK_COLS).max(1))
            .enumerate()
            .with_min_len(1 + PARALLEL_MACS / (rows * BLOCK_COLS + 1))
            .for_each(|(block, out)| {
                let start = block * BLOCK_COLS;
                let end = (start + BLOCK_COLS).min(cols);
                for (row, out) in out.chunks_exact_mut(end - start).enumerate() {
                    order::reorder(format, &source(row, start..end), out);
                }
            });
        Input { format, rows, cols, data: Cow::Owned(data) }
    }

    /// Whether matrices like this one take this input.
    pub fn serves(&self, matrix: &Matrix) -> bool {
        self.format == matrix.format && self.cols == matrix.cols
    }

    /// Columns `start .. start + BLOCK_COLS` (or to the end) of a row; `start` a multiple of `BLOCK_COLS`.
    #[inline(always)]
    fn block(&self, row: usize, start: usize) -> &[f32] {
        let width = (self.cols - start).min(BLOCK_COLS);
        &self.data[start * self.rows + row * width..][..width]
    }
}

/// One product: some rows of an input times a matrix, or times some of its columns, into columns of an output.
pub struct Job<'a> {
    pub matrix: &'a Matrix,
    /// Of the matrix, met by the whole width of the input. Sums of such parts are the product with all columns.
    pub columns: Range<usize>,
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
        Output {
            start: out.as_mut_ptr(),
            stride: width,
            width,
            rows: out.len() / width,
            _borrow: Default::default(),
        }
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
// disjointly); `run` consumes it, and `Block::store` writes each cell from one task only: tasks own disjoint rows of
// the matrix.
#[allow(unsafe_code)]
unsafe impl Sync for Output<'_> {}

// SAFETY: as a `&mut [f32]`, it may move to another thread.
#[allow(unsafe_code)]
unsafe impl Send for Output<'_> {}

/// A job's share for one task: some rows of its matrix.
struct Block<'a> {
    job: &'a Job<'a>,
    matrix: &'a Matrix,
    rows: Range<usize>,
    /// The matrix's bytes, looked up once: a small matrix has few multiplications to hide that behind.
    weights: &'a [u8],
    scales: &'a [u8],
    /// Of a row's bytes and of its scales, those of the job's columns.
    row_part: Range<usize>,
    first_scale: usize,
}

impl<'a> Block<'a> {
    fn new(job: &'a Job<'a>, rows: Range<usize>) -> Self {
        let (matrix, columns) = (job.matrix, &job.columns);
        let format = matrix.format;
        Block {
            job,
            matrix,
            rows,
            weights: matrix.data(),
            scales: matrix.scales(),
            row_part: format.row_bytes(columns.start)..format.row_bytes(columns.end),
            first_scale: if matrix.scales().is_empty() { 0 } else { columns.start / scale_block(format) },
        }
    }

    #[inline(always)]
    fn row(&self, row: usize) -> &[u8] {
        let start = row * self.matrix.row_bytes();
        &self.weights[start + self.row_part.start..start + self.row_part.end]
    }

    #[inline(always)]
    fn scale_row(&self, row: usize) -> &[u8] {
        let range = self.matrix.scale_row_range(row);
        &self.scales[range.start + self.first_scale..range.end]
    }

    #[inline(always)]
    fn cols(&self) -> usize {
        self.job.columns.len()
    }

    /// Whether the columns begin with a scale and come in steps: what the vector kernels need.
    fn is_in_steps(&self) -> bool {
        self.cols().is_multiple_of(order::STEP)
            && self.job.columns.start.is_multiple_of(scale_block(self.matrix.format))
    }

    /// The end of the rows of this block that share FP8 scales with `row`.
    fn scale_block_end(&self, row: usize) -> usize {
        self.rows.end.min(row + self.matrix.rows_to_next_scale(row))
    }

    fn inputs(&self) -> usize {
        self.job.rows.len()
    }

    /// A block of columns of the job's m-th input row.
    #[inline(always)]
    fn input(&self, m: usize, start: usize) -> &[f32] {
        let row = match self.job.rows {
            Rows::First(_) => m,
            Rows::Picked(picked) => picked[m] as usize,
        };
        self.job.input.block(row, start)
    }

    #[allow(unsafe_code)]
    #[inline(always)]
    fn store(&self, m: usize, row: usize, value: f32) {
        let output = &self.job.output;
        assert!(m < output.rows && row < self.rows.end);
        // SAFETY: the cell lies in the borrowed slice, because `rows` ends within the output's width (`run` checks
        // it); no other task has this matrix row.
        unsafe { output.start.add(m * output.stride + row).write(value) }
    }
}

/// Columns that share a scale; 1 where there are no scales.
fn scale_block(format: Format) -> usize {
    match format {
        Format::F32 | Format::Bf16 => 1,
        Format::Fp8 => Format::FP8_BLOCK,
        Format::Fp4 => Format::FP4_BLOCK,
    }
}

/// Buffers of the vector kernels, kept per thread.
#[derive(Default)]
struct Scratch {
    /// Unpacked weights.
    panel: Vec<f32>,
    /// Unfinished sums.
    sums: Vec<f32>,
    /// Inputs with a scale of the weights in them.
    inputs: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Runs all jobs; their outputs are disjoint by borrow, and taking the jobs makes sure that each runs once. Panics
/// when shapes do not fit: they are fixed by the `Spec`.
pub fn run(isa: Isa, jobs: Vec<Job>) {
    let mut tasks: Vec<Block> = Vec::new();
    let mut macs = 0;
    for job in &jobs {
        let matrix = job.matrix;
        assert!(
            job.input.format == matrix.format && job.input.cols == job.columns.len(),
            "input prepared for another format or width"
        );
        assert!(job.columns.end <= matrix.cols, "columns");
        assert_eq!(job.output.width, matrix.rows, "output width");
        assert!(job.rows.len() <= job.output.rows, "output rows");
        if job.rows.len() == 0 {
            continue;
        }
        macs += job.rows.len() * matrix.rows * job.columns.len();
        let task_rows = task_rows(job);
        for start in (0..matrix.rows).step_by(task_rows) {
            let rows = start..(start + task_rows).min(matrix.rows);
            tasks.push(Block::new(job, rows));
        }
    }
    if macs < PARALLEL_MACS {
        tasks.iter().for_each(|block| run_block(isa, block));
    } else {
        tasks.par_iter().for_each(|block| run_block(isa, block));
    }
}

/// Weight rows of one task: enough to be worth a task, few enough that all threads get some.
fn task_rows(job: &Job) -> usize {
    const TILE: usize = 4;
    let rows = if job.rows.len() > TILE {
        // Inputs are re-read once per task: as many rows as leave two tasks for each thread.
        job.matrix.rows / (2 * rayon::current_num_threads())
    } else {
        TASK_BYTES / job.matrix.format.row_bytes(job.columns.len())
    };
    rows.next_multiple_of(TILE).clamp(TILE, TASK_ROWS)
}

fn run_block(isa: Isa, block: &Block) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(_) if block.is_in_steps() => {
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

#[cfg(test)]
mod tests;
