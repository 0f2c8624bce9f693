//! Dense products: cases of several matrices at once, and their check.
#![allow(unsafe_code)]

use super::stored::{Codes, Stored, activations, prepared};
use super::{Finding, find};
use crate::gpu::{Buffer, Gpu};
use crate::matmul::{Activations, Company, MatmulError, Matmuls, Product};
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
    pub company: Company,
    /// What FP8 and FP4 matrices get.
    pub activations: Activations,
}

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
        unsafe { matmuls.dense(&products, self.tokens, self.company) }?;
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
    input: Buffer<u8>,
    term_stride: usize,
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
        let (tokens, cols) = (case.tokens, stored.cols);
        let x = activations(tokens * cols, random);
        let stride = cols + IN_GAP;
        let spread: Vec<f32> = x
            .chunks_exact(cols)
            .flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(f32::NAN, IN_GAP)))
            .collect();
        let spread = Buffer::of(gpu, &spread)?;
        let mut unprepared = 0;
        let (x, input) = if stored.takes_prepared() {
            let how = case.activations;
            let (x, expected) = prepared(&x, cols, how);
            let made = Buffer::<u16>::new(gpu, how.terms() * tokens * cols)?;
            // SAFETY: both buffers have room for `tokens` rows, and wait for queued work before they go.
            unsafe { matmuls.prepare(how, spread.address(), stride, made.address(), tokens, cols) }?;
            let made = made.copy_out()?;
            unprepared = made.iter().zip(&expected).filter(|(made, expected)| made != expected).count();
            let bytes: Vec<u8> = made
                .chunks_exact(cols)
                .flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(0x7fff, IN_GAP)))
                .flat_map(u16::to_le_bytes)
                .collect();
            (x, Buffer::of(gpu, &bytes)?)
        } else {
            let bytes: Vec<u8> = spread.copy_out()?.iter().flat_map(|number| number.to_le_bytes()).collect();
            (x.iter().map(|number| f64::from(*number)).collect(), Buffer::of(gpu, &bytes)?)
        };
        let mut out = Buffer::new(gpu, tokens * (stored.rows + OUT_GAP))?;
        out.fill_bytes(0xff)?;
        let several = stored.takes_prepared() && case.activations.terms() > 1;
        let term_stride = if several { tokens * stride } else { 0 };
        Ok(Part { uploaded: stored.upload(gpu)?, stored, x, input, term_stride, out, unprepared })
    }

    fn product(&self) -> Product {
        Product {
            matrix: self.uploaded.matrix,
            input: self.input.address(),
            term_stride: self.term_stride as i64,
            out: self.out.address(),
            in_stride: (self.stored.cols + IN_GAP) as i64,
            out_stride: (self.stored.rows + OUT_GAP) as i64,
        }
    }

    /// Allowed is what float32 sums of so many steps of 16 columns lose at most, each a unit of the sum of magnitudes: the
    /// tensor cores cut where the emulator rounds. Three bf16 terms of a float32 leave 2^-22 of each product.
    fn compare(&self, tokens: usize) -> Result<Finding, MatmulError> {
        let Stored { rows, cols, .. } = self.stored;
        let (mut exact, mut magnitude) = (vec![0.0; tokens * rows], vec![0.0; tokens * rows]);
        for row in 0..rows {
            let weights = self.stored.row(row);
            for (token, x) in self.x.chunks_exact(cols).enumerate() {
                let terms = weights.iter().zip(x).map(|(w, x)| w * x);
                exact[token * rows + row] = terms.clone().sum();
                magnitude[token * rows + row] = terms.map(f64::abs).sum();
            }
        }
        let answer: Vec<f32> =
            self.out.copy_out()?.chunks_exact(rows + OUT_GAP).flat_map(|row| row[..rows].to_vec()).collect();
        let allowed = f64::powi(2.0, -23) * (cols as f64 / 16.0 + 8.0);
        Ok(find(&answer, &exact, |at| allowed * magnitude[at]))
    }
}
