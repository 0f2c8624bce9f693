//! Decode attention as a step does it, from queries and pages to answers, on the inputs of [`AttentionInputs`]: lists, schedules
//! and what stands around the kernel are what is checked here; the kernels alone are of the self-test above.

use super::attention::{AttentionInputs, Seen};
use crate::backend::RankError;
use crate::backend::arguments as args;
use crate::backend::decoding::{Decode, Decoding, Sizes};
use crate::backend::kernels::{Launcher, THREADS, attention_source};
use crate::decode::Variant;
use crate::gpu::{Gpu, GpuError, Grid};
use crate::selftest::parallel;
use overshot_gpu_model::Pin;
use overshot_model::quant::{bf16_decode, bf16_encode};
use overshot_model::{HEAD_DIM, LayerKind};
use std::sync::Arc;

pub struct DecodeStep {
    decoding: Decoding,
    append_window: Launcher<args::Window>,
}

/// Root of the summed squares of errors over that of the answers: of all, of the worst head of a token.
#[derive(Clone, Copy, Debug)]
pub struct Off {
    pub overall: f64,
    pub worst_head: f64,
}

impl DecodeStep {
    /// For so many heads and selected entries, by the kernel that is chosen or by a given one.
    pub fn load(
        gpu: &Arc<dyn Gpu>,
        heads: usize,
        top: usize,
        kernel: Option<&Variant>,
    ) -> Result<Self, GpuError> {
        let sizes = Sizes { heads, top, tokens_max: 64, entries_max: 64, has: [true; 3] };
        let chosen = Decoding::sized(gpu, sizes)?;
        Ok(DecodeStep {
            decoding: match kernel {
                Some(variant) => chosen.pinned(Pin { kernel: variant.name.clone(), parts: None }),
                None => chosen,
            },
            append_window: Launcher::load(&**gpu, &attention_source(), "append_window", THREADS as u32)?,
        })
    }

    /// What comes before all layers, and the tokens of the step put into the ring.
    pub fn begin(&self, inputs: &AttentionInputs) -> Result<Decode<'_>, RankError> {
        let args = &inputs.args;
        let window = args::Window {
            step: args.step,
            latents: args.latents,
            packed: args.packed,
            window: args.window,
            long_rows: 0,
            unused: 0,
        };
        self.append_window.launch(Grid(args.step.tokens as u32, 1, 1), &window)?;
        let positions: Vec<i32> = inputs.step.tokens.iter().map(|token| token.1 as i32).collect();
        let longest_row = inputs.step.rows.iter().map(|row| row.tokens).max().unwrap_or(0);
        let decode = self.decoding.begin(args.step, &positions, longest_row)?;
        Ok(decode.expect("rows of cases are short and few"))
    }

    /// Launches over poison.
    pub fn answers(&self, inputs: &mut AttentionInputs) -> Result<Vec<f32>, RankError> {
        let decode = self.begin(inputs)?;
        inputs.upload_queries()?;
        inputs.out.fill_bytes(0xff)?;
        attend(&decode, inputs)?;
        Ok(inputs.out.copy_out()?)
    }

    /// Compares every `one_in`-th token.
    pub fn off(&self, inputs: &mut AttentionInputs, one_in: usize) -> Result<Off, RankError> {
        let answers = self.answers(inputs)?;
        let heads = inputs.case.heads;
        let to_bf16 = |q: f64| f64::from(bf16_decode(bf16_encode(q as f32)));
        let mut off = Off { overall: 0.0, worst_head: 0.0 };
        let (mut errors, mut squares) = (0.0, 0.0);
        let compared: Vec<usize> =
            (0..answers.len() / HEAD_DIM).filter(|at| (at / heads).is_multiple_of(one_in)).collect();
        let (inputs, answers) = (&*inputs, &answers);
        let of_head = |number: usize| {
            let at = compared[number];
            let (exact, _) = inputs.reference(at / heads, at % heads, to_bf16);
            let answer = answers[at * HEAD_DIM..].iter();
            let error: f64 = answer.zip(&exact).map(|(a, e)| (f64::from(*a) - e).powi(2)).sum();
            (error, exact.iter().map(|e| e * e).sum::<f64>())
        };
        for (error, square) in parallel::map(compared.len(), of_head) {
            // NaN is no maximum, but stays in sums.
            off.worst_head = off.worst_head.max((error / square).sqrt());
            (errors, squares) = (errors + error, squares + square);
        }
        off.overall = (errors / squares).sqrt();
        Ok(off)
    }
}

pub fn attend(decode: &Decode, inputs: &AttentionInputs) -> Result<(), RankError> {
    let kind = match inputs.case.seen {
        Seen::Nothing => LayerKind::Window,
        Seen::All => LayerKind::Hca,
        Seen::Selected(_) => LayerKind::Csa,
    };
    decode.attend(kind, &inputs.args)
}

impl Off {
    /// Of what is allowed, which is what the kernels alone may be off: rounding answers to bf16 costs 1.7e-3.
    pub fn share(&self) -> f64 {
        self.overall / 2e-3
    }

    pub fn passed(&self) -> bool {
        self.share() <= 1.0 && self.worst_head <= 4e-3
    }
}
