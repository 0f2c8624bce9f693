//! `gpu-check prefill`: every case checked, then timed, on a device. One JSON object a line.

use super::attention::{AttentionCase, Seen, load_tiles};
use super::device_step::Piece;
use crate::gpu::{CudaGpu, Gpu, GpuError, KernelStore, Mark};
use fastrand::Rng;
use serde::Serialize;
use std::io::Write;
use std::sync::Arc;

#[derive(Debug, thiserror::Error)]
pub enum PrefillError {
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error("the report cannot be written: {0}")]
    Report(#[from] std::io::Error),
    #[error("{failed} of {checked} checks failed: see the lines with \"passed\":false")]
    Wrong { failed: usize, checked: usize },
}

#[derive(Clone, Debug)]
pub struct Options {
    pub seed: u64,
    /// Launches of each case whose median is reported; 0 leaves timing out.
    pub rounds: usize,
}

#[derive(Serialize)]
struct Line<'a> {
    kernel: &'a str,
    layer: String,
    heads: usize,
    start: usize,
    tokens: usize,
    passed: bool,
    /// The worst error as a multiple of what is allowed.
    worst: f64,
    us_p50: Option<f64>,
    tflops: Option<f64>,
}

/// Heads of a rank of four, two and one; a chunk of a prompt at its beginning, in its midst and far behind.
fn cases() -> Vec<AttentionCase> {
    let mut cases = Vec::new();
    for heads in [16, 32, 64] {
        for seen in [Seen::Nothing, Seen::All, Seen::Selected(512)] {
            for start in [0, 8192, 65_536] {
                let rows = vec![Piece { start, tokens: 1024 }];
                cases.push(AttentionCase { rows, heads, seen, sinks_off: 0, last_is_odd: false });
            }
        }
    }
    cases
}

/// Tokens of a case whose reference is computed.
const COMPARED: usize = 16;

pub fn run(options: &Options, report: &mut dyn Write) -> Result<(), PrefillError> {
    let gpu: Arc<dyn Gpu> = Arc::new(CudaGpu::open(0, KernelStore::built_in())?);
    let mut random = Rng::with_seed(options.seed);
    let kernels = [load_tiles(&*gpu, 1)?, load_tiles(&*gpu, 2)?];
    let (mut checked, mut failed) = (0, 0);
    for case in cases() {
        let mut inputs = case.inputs(&gpu, &mut random)?;
        let Piece { start, tokens } = case.rows[0];
        for (kernel, m_tiles) in kernels.iter().zip([1, 2]) {
            let finding = inputs.check(kernel, m_tiles, tokens.div_ceil(COMPARED))?;
            checked += 1;
            failed += usize::from(!finding.passed());
            let mut times = Vec::new();
            for _ in 0..if finding.passed() { options.rounds } else { 0 } {
                gpu.mark(Mark::Begin)?;
                inputs.launch(kernel, m_tiles)?;
                gpu.mark(Mark::End)?;
                times.push(gpu.microseconds()?);
            }
            times.sort_by(f64::total_cmp);
            let us_p50 = times.get(times.len() / 2).copied();
            let line = Line {
                kernel: if m_tiles == 1 { "attention_v2_m1" } else { "attention_v2_m2" },
                layer: format!("{:?}", case.seen),
                heads: case.heads,
                start,
                tokens,
                passed: finding.passed(),
                worst: finding.worst,
                us_p50,
                tflops: us_p50.map(|us| inputs.flop() / us / 1e6),
            };
            writeln!(report, "{}", serde_json::to_string(&line).map_err(std::io::Error::from)?)?;
        }
    }
    if failed > 0 { Err(PrefillError::Wrong { failed, checked }) } else { Ok(()) }
}
