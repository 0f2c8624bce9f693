//! Dense products: cases of several matrices at once, and their check.
#![allow(unsafe_code)]

use super::stored::{Codes, Stored, activations, seen, unprepared};
use super::{Finding, find};
use crate::gpu::{Buffer, Gpu};
use crate::matmul::{Activations, Forms, MatmulError, Matmuls, Prepared, PreparedMemory, Product};
use crate::selftest::parallel;
use fastrand::Rng;
use overshot_model::Format;
use std::sync::Arc;

/// Matrices that multiply the same tokens in one launch; inputs by width, made once.
#[derive(Clone, Debug)]
pub struct DenseCase {
    pub name: &'static str,
    pub tokens: usize,
    /// Format, rows, columns.
    pub matrices: Vec<(Format, usize, usize)>,
    pub codes: Codes,
    /// What FP8 and FP4 matrices get.
    pub activations: Activations,
}

/// Columns of the input before the matrix's own.
const FIRST_COL: usize = 128;
/// Numbers between rows of input and output beyond their width: strides are used, not widths.
const IN_GAP: usize = 16;
const OUT_GAP: usize = 3;

impl DenseCase {
    /// Runs the case on new random numbers.
    pub fn check(
        &self,
        gpu: &Arc<dyn Gpu>,
        matmuls: &Matmuls,
        random: &mut Rng,
    ) -> Result<Finding, MatmulError> {
        let mut parts = Vec::new();
        for &(format, rows, cols) in &self.matrices {
            let stored = Stored::random(format, rows, cols, self.codes, random);
            parts.push(Part::new(self, gpu, matmuls, stored, random)?);
        }
        let products: Vec<Product> = parts.iter().map(Part::product).collect();
        // SAFETY: all addresses are of the parts' buffers, sized for `tokens`, which wait for queued work before they go.
        unsafe { matmuls.dense(&products, self.tokens) }?;
        let mut all = Finding { worst: 0.0, not_finite: 0, unprepared: 0, bits: vec![] };
        for part in &parts {
            let finding = part.compare(self.tokens)?;
            all.worst = all.worst.max(finding.worst);
            all.not_finite += finding.not_finite;
            all.unprepared += part.unprepared;
            all.bits.extend(finding.bits);
        }
        Ok(all)
    }
}

/// One matrix of a case, with its input and output on the device.
struct Part {
    stored: Stored,
    uploaded: super::stored::Uploaded,
    /// What the product sees, `[tokens, cols]`.
    x: Vec<f64>,
    input: Prepared,
    _memory: PreparedMemory,
    out: Buffer<f32>,
    unprepared: usize,
}

impl Part {
    fn new(
        case: &DenseCase,
        gpu: &Arc<dyn Gpu>,
        matmuls: &Matmuls,
        stored: Stored,
        random: &mut Rng,
    ) -> Result<Self, MatmulError> {
        let (tokens, cols, how) = (case.tokens, stored.cols, case.activations);
        let (wide, numbers) = (FIRST_COL + cols, tokens * (FIRST_COL + cols));
        let x = activations(numbers, random);
        let spread: Vec<f32> = x
            .chunks_exact(wide)
            .flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(f32::NAN, IN_GAP)))
            .collect();
        let spread = Buffer::of(gpu, &spread)?;
        let forms = Forms { codes: stored.takes_codes(), floats: !stored.takes_codes() };
        let memory = PreparedMemory::new(gpu, how.terms() * numbers, numbers)?;
        // SAFETY: the buffers have room for `tokens` rows, and wait for queued work before they go.
        let input =
            unsafe { matmuls.prepare(how, spread.address(), wide + IN_GAP, &memory, forms, [tokens, wide]) }?;
        let unprepared = unprepared(&memory, &x, wide, how, forms)?;
        let seen = match forms.codes {
            true => seen(&x, wide, how),
            false => x.iter().map(|number| f64::from(*number)).collect(),
        };
        let x = seen.chunks_exact(wide).flat_map(|row| row[FIRST_COL..].to_vec()).collect();
        let mut out = Buffer::new(gpu, tokens * (stored.rows + OUT_GAP))?;
        out.fill_bytes(0xff)?;
        Ok(Part { uploaded: stored.upload(gpu)?, stored, x, input, _memory: memory, out, unprepared })
    }

    fn product(&self) -> Product {
        Product {
            matrix: self.uploaded.matrix,
            input: self.input,
            first_col: FIRST_COL,
            out: self.out.address(),
            out_stride: (self.stored.rows + OUT_GAP) as i64,
        }
    }

    /// Allowed is what float32 sums of so many steps of 16 columns lose at most, each a unit of the sum of magnitudes: the
    /// tensor cores cut where the emulator rounds. Terms of a float32 leave 2^-22 of each product.
    fn compare(&self, tokens: usize) -> Result<Finding, MatmulError> {
        let Stored { rows, cols, .. } = self.stored;
        let (stored, x) = (&self.stored, &self.x);
        let of_row = |row: usize| -> Vec<[f64; 2]> {
            let weights = stored.row(row);
            let sums = |x: &[f64]| {
                let terms = weights.iter().zip(x).map(|(w, x)| w * x);
                terms.fold([0.0, 0.0], |[sum, magnitude], term| [sum + term, magnitude + term.abs()])
            };
            x.chunks_exact(cols).map(sums).collect()
        };
        let by_row = parallel::map(rows, of_row);
        let number = |which: usize| {
            (0..tokens * rows).map(|at| by_row[at % rows][at / rows][which]).collect::<Vec<_>>()
        };
        let [exact, magnitude] = [0, 1].map(number);
        let answer: Vec<f32> =
            self.out.copy_out()?.chunks_exact(rows + OUT_GAP).flat_map(|row| row[..rows].to_vec()).collect();
        let allowed = f64::powi(2.0, -23) * (cols as f64 / 16.0 + 8.0);
        Ok(find(&answer, &exact, |at| allowed * magnitude[at]))
    }
}
