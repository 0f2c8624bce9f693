//! A layer's experts: cases of choices and formats, and their check.
#![allow(unsafe_code)]

use super::stored::{Codes, Stored, Uploaded, activations, seen};
use super::{Finding, find};
use crate::gpu::{Buffer, Gpu, bytes_of};
use crate::matmul::{
    Activations, Expert, ExpertsCall, ExpertsScratch, Forms, MatmulError, Matmuls, PreparedMemory,
};
use crate::selftest::parallel;
use fastrand::Rng;
use overshot_model::Format;
use overshot_model::quant::round_activations;
use std::ops::Range;
use std::sync::Arc;

/// How tokens choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choices {
    Random,
    /// All tokens the same experts, so that the others have none.
    Same,
    /// None of this rank's.
    Elsewhere,
}

#[derive(Clone, Debug)]
pub struct ExpertsCase {
    pub name: &'static str,
    pub tokens: usize,
    pub experts: usize,
    pub per_token: usize,
    /// This rank's.
    pub own: Range<usize>,
    pub hidden: usize,
    pub width: usize,
    pub routed: Format,
    pub shared: Format,
    pub codes: Codes,
    pub choices: Choices,
    pub activations: Activations,
    pub limit: f32,
}

/// What numbers between the projections may change, of an output's norm, where they are rounded: those that float32 and float64
/// round to different sides. Without them float32 sums are all there is.
const ROUNDED_BETWEEN: f64 = 1e-3;
const EXACT_BETWEEN: f64 = 1e-5;

struct HostExpert {
    w1: Stored,
    w3: Stored,
    w2: Stored,
}

impl ExpertsCase {
    /// Runs the case on new random numbers: the routed sum of all tokens, then the shared expert's.
    pub fn check(
        &self,
        gpu: &Arc<dyn Gpu>,
        matmuls: &Matmuls,
        random: &mut Rng,
    ) -> Result<Finding, MatmulError> {
        let ExpertsCase { tokens, per_token, hidden, width, .. } = *self;
        let host: Vec<HostExpert> = (0..=self.own.len()).map(|at| self.expert(at, random)).collect();
        let uploaded = host.iter().map(|expert| expert.upload(gpu)).collect::<Result<Vec<_>, _>>()?;
        let table: Vec<u8> = uploaded.iter().flat_map(|(expert, _)| bytes_of(expert).to_vec()).collect();
        let table = Buffer::of(gpu, &table)?;
        let exact = activations(tokens * hidden, random);
        let x = seen(&exact, hidden, self.activations);
        let ids = self.ids(random);
        let weights: Vec<f32> = ids.iter().map(|_| random.f32()).collect();
        let there = Buffer::of(gpu, &exact)?;
        let forms = |second: bool| {
            let of = |expert: &HostExpert| if second { expert.w2.format } else { expert.w1.format };
            Forms::of(host.iter().map(of))
        };
        let numbers = tokens * hidden;
        let memory = PreparedMemory::new(gpu, self.activations.terms() * numbers, numbers)?;
        let shape = [tokens, hidden];
        // SAFETY: the buffers are sized by the case, and wait for queued work before they go.
        let prepared = unsafe {
            matmuls.prepare(self.activations, there.address(), hidden, &memory, forms(false), shape)
        }?;
        let (ids_there, weights_there) = (Buffer::of(gpu, &ids)?, Buffer::of(gpu, &weights)?);
        let out = || {
            let mut out = Buffer::<f32>::new(gpu, tokens * hidden)?;
            out.fill_bytes(0xff)?;
            Ok::<_, MatmulError>(out)
        };
        let (y, y_shared) = (out()?, out()?);
        let scratch =
            ExpertsScratch::new(gpu, tokens, per_token, hidden, width, self.activations, forms(true))?;
        let call = ExpertsCall {
            experts: table.address(),
            ids: ids_there.address(),
            weights: weights_there.address(),
            x: prepared,
            y: y.address(),
            y_shared: y_shared.address(),
            tokens,
            per_token,
            hidden,
            width,
            first_expert: self.own.start,
            count: self.own.len(),
            limit: self.limit,
        };
        // SAFETY: all addresses are of buffers above, sized by the case, which wait for queued work before they go.
        unsafe { matmuls.experts(&call, &scratch) }?;
        let answer = [y.copy_out()?, y_shared.copy_out()?].concat();
        let exact: Vec<f64> = exact.iter().map(|number| f64::from(*number)).collect();
        let reference = self.reference(&host, &ids, &weights, [&x, &exact]);
        let allowed = match self.activations {
            Activations::Exact => EXACT_BETWEEN,
            Activations::Rounded => ROUNDED_BETWEEN,
        };
        let norms: Vec<f64> = reference
            .chunks_exact(hidden)
            .map(|row| row.iter().map(|number| number * number).sum::<f64>().sqrt())
            .collect();
        Ok(find(&answer, &reference, |at| allowed * norms[at / hidden]))
    }

    fn expert(&self, at: usize, random: &mut Rng) -> HostExpert {
        let format = if at == self.own.len() { self.shared } else { self.routed };
        let mut matrix = |rows, cols| Stored::random(format, rows, cols, self.codes, random);
        HostExpert {
            w1: matrix(self.width, self.hidden),
            w3: matrix(self.width, self.hidden),
            w2: matrix(self.hidden, self.width),
        }
    }

    fn ids(&self, random: &mut Rng) -> Vec<i32> {
        let all: Vec<i32> = (0..self.experts as i32).collect();
        let from: Vec<i32> = match self.choices {
            Choices::Elsewhere => all.into_iter().filter(|id| !self.own.contains(&(*id as usize))).collect(),
            _ => all,
        };
        let mut draw = || {
            let mut ids = from.clone();
            random.shuffle(&mut ids);
            ids.truncate(self.per_token);
            ids.sort_unstable();
            ids
        };
        let first = draw();
        let choice = |_| if self.choices == Choices::Same { first.clone() } else { draw() };
        (0..self.tokens).flat_map(choice).collect()
    }

    /// `[2, tokens, hidden]`: routed and shared. `x` are the inputs of quantised and of other experts.
    fn reference(&self, host: &[HostExpert], ids: &[i32], weights: &[f32], x: [&[f64]; 2]) -> Vec<f64> {
        let of_token = |at: usize| {
            let (token, mut out) = (at % self.tokens, vec![0.0; self.hidden]);
            if at >= self.tokens {
                self.add(&host[self.own.len()], x, token, 1.0, &mut out);
                return out;
            }
            let choices = token * self.per_token..(token + 1) * self.per_token;
            for (id, weight) in ids[choices.clone()].iter().zip(&weights[choices]) {
                if let Some(at) = self.own.clone().position(|own| own as i32 == *id) {
                    self.add(&host[at], x, token, f64::from(*weight), &mut out);
                }
            }
            out
        };
        parallel::map(2 * self.tokens, of_token).concat()
    }

    fn add(&self, expert: &HostExpert, x: [&[f64]; 2], token: usize, weight: f64, out: &mut [f64]) {
        let x = &x[usize::from(!expert.w1.takes_codes())][token * self.hidden..][..self.hidden];
        let dot = |row: Vec<f64>, x: &[f64]| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
        let limit = f64::from(self.limit);
        let inner = (0..self.width).map(|row| {
            let gate = dot(expert.w1.row(row), x).min(limit);
            let up = dot(expert.w3.row(row), x).clamp(-limit, limit);
            gate / (1.0 + (-gate).exp()) * up * weight
        });
        let mut inner: Vec<f32> = inner.map(|number| number as f32).collect();
        if self.activations == Activations::Rounded && expert.w2.takes_codes() {
            round_activations(&mut inner);
        }
        let inner: Vec<f64> = inner.iter().copied().map(f64::from).collect();
        out.iter_mut().enumerate().for_each(|(row, out)| *out += dot(expert.w2.row(row), &inner));
    }
}

impl HostExpert {
    fn upload(&self, gpu: &Arc<dyn Gpu>) -> Result<(Expert, [Uploaded; 3]), MatmulError> {
        let [w1, w3, w2] = [self.w1.upload(gpu)?, self.w3.upload(gpu)?, self.w2.upload(gpu)?];
        Ok((Expert { w1: w1.matrix, w3: w3.matrix, w2: w2.matrix }, [w1, w3, w2]))
    }
}
