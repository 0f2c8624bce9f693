//! `gpu-check prefill`: every case checked, then timed, on a device; steps that only decode, too. One JSON object a line.

use super::attention::{AttentionCase, Seen};
use super::decoding::{DecodeStep, attend};
use super::device_step::Piece;
use super::index::{IndexCase, IndexKernels};
use crate::backend::kernels::AttentionTiles;
use crate::decode::Variant;
use crate::gpu::{CudaGpu, Gpu, GpuError, KernelStore};
use crate::selftest::error::{Count, SelftestError};
use fastrand::Rng;
use overshot_backend::IndexKeyFormat;
use serde::Serialize;
use std::io::Write;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct Options {
    pub seed: u64,
    /// Launches of each case whose median is reported; 0 leaves timing out.
    pub rounds: usize,
}

#[derive(Serialize)]
struct Line<'a> {
    kernel: &'a str,
    /// What a token sees, or the format of index keys.
    of: String,
    heads: usize,
    start: usize,
    tokens: usize,
    passed: bool,
    /// The worst error as a multiple of what is allowed.
    worst: f64,
    us_p50: Option<f64>,
    tflops: Option<f64>,
}

/// A chunk of a prompt at its beginning, in its midst and far behind.
const STARTS: [usize; 3] = [0, 8192, 65_536];
const TOKENS: usize = 1024;
/// Heads of a rank of four, two and one.
const HEADS: [usize; 3] = [16, 32, 64];
/// Entries that are chosen.
const TOP: usize = 512;

fn attention_cases() -> Vec<AttentionCase> {
    let mut cases = Vec::new();
    for heads in HEADS {
        for seen in [Seen::Nothing, Seen::All, Seen::Selected(TOP)] {
            cases.extend(STARTS.map(|start| {
                let rows = vec![Piece { start, tokens: TOKENS }];
                AttentionCase { rows, heads, seen, sink_size: 4.0, sinks_off: 0, last_is_odd: false }
            }));
        }
    }
    cases
}

/// Rows of a token each, their windows and selections full.
fn decode_cases() -> Vec<AttentionCase> {
    const ROWS: usize = 64;
    let rows: Vec<Piece> = (0..ROWS).map(|row| Piece { start: 4 * TOP - 1 + 7 * row, tokens: 1 }).collect();
    let case = |heads, seen| AttentionCase {
        rows: rows.clone(),
        heads,
        seen,
        sink_size: 4.0,
        sinks_off: 0,
        last_is_odd: false,
    };
    let kinds = [Seen::Nothing, Seen::All, Seen::Selected(TOP)];
    HEADS.into_iter().flat_map(|heads| kinds.map(|seen| case(heads, seen))).collect()
}

fn index_cases() -> Vec<IndexCase> {
    let mut cases = Vec::new();
    for heads in HEADS {
        for format in [IndexKeyFormat::Bf16, IndexKeyFormat::Fp8, IndexKeyFormat::Fp4] {
            cases.extend(STARTS.map(|start| {
                let rows = vec![Piece { start, tokens: TOKENS }];
                IndexCase { rows, heads, top: TOP, format }
            }));
        }
    }
    cases
}

/// One in so many tokens is compared.
const COMPARED: usize = TOKENS / 16;
/// Of rows that are decoded.
const DECODED: usize = 4;

struct Run<'a> {
    gpu: Arc<dyn Gpu>,
    rounds: usize,
    report: &'a mut dyn Write,
    count: Count,
}

impl Run<'_> {
    /// The median of launches, unless the answer was wrong.
    fn time<E: From<GpuError>>(
        &self,
        passed: bool,
        launch: impl Fn() -> Result<(), E>,
    ) -> Result<Option<f64>, E> {
        let (mut times, mut timeline) = (Vec::new(), self.gpu.timeline()?);
        for _ in 0..if passed { self.rounds } else { 0 } {
            timeline.mark(0)?;
            launch()?;
            timeline.mark(1)?;
            times.push(timeline.microseconds(0, 1)?);
        }
        times.sort_by(f64::total_cmp);
        Ok(times.get(times.len() / 2).copied())
    }

    fn write(&mut self, line: &Line) -> Result<(), SelftestError> {
        self.count.add(line.passed);
        Ok(writeln!(self.report, "{}", serde_json::to_string(line).map_err(std::io::Error::from)?)?)
    }

    fn attention(&mut self, case: &AttentionCase, random: &mut Rng) -> Result<(), SelftestError> {
        let mut inputs = case.inputs(&self.gpu, random)?;
        let kernel = AttentionTiles::load(&*self.gpu)?;
        let finding = inputs.check(&kernel, COMPARED)?;
        let us_p50 = self.time(finding.passed(), || inputs.launch(&kernel))?;
        let tflops = us_p50.map(|us| inputs.flop() / us / 1e6);
        let (of, Piece { start, tokens }) = (format!("{:?}", case.seen), case.rows[0]);
        let (kernel, heads, passed, worst) = ("attention_v2", case.heads, finding.passed(), finding.worst);
        self.write(&Line { kernel, of, heads, start, tokens, passed, worst, us_p50, tflops })
    }

    /// A layer's launches, without those that are made once a step.
    fn decode(&mut self, case: &AttentionCase, random: &mut Rng) -> Result<(), SelftestError> {
        let mut inputs = case.inputs(&self.gpu, random)?;
        let shipped = Variant::shipped(self.gpu.facts()?.sm);
        for variant in shipped.iter().map(Some).chain([None]) {
            let step = DecodeStep::load(&self.gpu, case.heads, TOP, variant)?;
            let off = step.off(&mut inputs, DECODED)?;
            let decode = step.begin(&inputs)?;
            // Queries are used up by the first launch: what the others read is no query, and as good for a clock.
            let us_p50 = self.time(off.passed(), || attend(&decode, &inputs))?;
            let tflops = us_p50.map(|us| inputs.flop() / us / 1e6);
            let (of, Piece { start, .. }) = (format!("{:?}", case.seen), case.rows[0]);
            let kernel = &format!("decode_step {}", variant.map_or("as chosen", |variant| &variant.name));
            let (heads, tokens, passed, worst) = (case.heads, case.rows.len(), off.passed(), off.share());
            self.write(&Line { kernel, of, heads, start, tokens, passed, worst, us_p50, tflops })?;
        }
        Ok(())
    }

    fn index(&mut self, case: &IndexCase, random: &mut Rng) -> Result<(), SelftestError> {
        let Some(kernels) = IndexKernels::load(&*self.gpu, case.heads)? else { return Ok(()) };
        let mut inputs = case.inputs(&self.gpu, random)?;
        let finding = inputs.check(&kernels, COMPARED)?;
        let select = self.time(finding.passed(), || inputs.launch_select(&kernels))?;
        // Overwrites its own inputs: nothing after this looks at numbers.
        let scores = self.time(finding.passed(), || inputs.launch_scores(&kernels))?;
        for (kernel, us_p50) in [("index_v2", scores), ("index_select_v2", select)] {
            let is_scores = kernel == "index_v2";
            let tflops = us_p50.filter(|_| is_scores).map(|us| inputs.flop() / us / 1e6);
            let (of, Piece { start, tokens }) = (format!("{:?}", case.format), case.rows[0]);
            let (heads, passed, worst) = (case.heads, finding.passed(), finding.worst);
            self.write(&Line { kernel, of, heads, start, tokens, passed, worst, us_p50, tflops })?;
        }
        Ok(())
    }
}

pub fn run(options: &Options, report: &mut dyn Write) -> Result<(), SelftestError> {
    let gpu: Arc<dyn Gpu> = Arc::new(CudaGpu::open(0, KernelStore::built_in())?);
    let mut random = Rng::with_seed(options.seed);
    let mut run = Run { gpu, rounds: options.rounds, report, count: Count::default() };
    for case in attention_cases() {
        run.attention(&case, &mut random)?;
    }
    for case in decode_cases() {
        run.decode(&case, &mut random)?;
    }
    for case in index_cases() {
        run.index(&case, &mut random)?;
    }
    run.count.verdict()
}
