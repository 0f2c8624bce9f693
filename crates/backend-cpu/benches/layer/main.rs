//! Speed of a checkpoint's layers against what the machine can do: each phase against
//! max(active bytes / read rate, flops / multiply-add peak).
//!
//! `cargo xtask real-layer --out DIR` writes one layer of V4-Flash's real size;
//! `cargo bench -p overshot-backend-cpu --bench layer -- DIR [--rounds N] [--context N] [--only PHASE]` measures it. Phases are
//! interleaved, round by round; the first round is warm-up; medians with the 10th and 90th percentile are printed.

use overshot_backend::{Backend, Numerics, Row, StepPlan, Wanted};
use overshot_backend_cpu::roofline::{Machine, MachineLimits, StepShape, work, working_set_bytes};
use overshot_backend_cpu::{CpuBackend, CpuOptions, Isa};
use overshot_kv::{Kv, PoolCapacity, SetId};
use overshot_model::Model;
use std::sync::Arc;
use std::time::Instant;

const PREFILL_TOKENS: usize = 512;

struct Options {
    model: String,
    rounds: usize,
    context: usize,
    /// Measure only the phase whose name contains this.
    only: String,
}

fn options() -> Option<Options> {
    let mut options = Options { model: String::new(), rounds: 9, context: 1024, only: String::new() };
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--rounds" => options.rounds = args.next()?.parse().ok()?,
            "--only" => options.only = args.next()?,
            "--context" => options.context = args.next()?.parse().ok()?,
            _ => options.model = arg,
        }
    }
    (!options.model.is_empty()).then_some(options)
}

/// One kind of step: so many sequences, so many tokens each.
struct Phase {
    name: &'static str,
    rows: usize,
    tokens: usize,
    seconds: Vec<f64>,
}

struct Runner {
    backend: CpuBackend,
    kv: Kv,
    number: u64,
    random: fastrand::Rng,
    vocab: u32,
}

impl Runner {
    fn new(model: &Arc<Model>, context: usize) -> Self {
        let capacity = PoolCapacity::for_sets(17, 17 * (context + 4 * PREFILL_TOKENS));
        let options = CpuOptions {
            numerics: Numerics::default(),
            capacity,
            tp: 1,
            threads: None,
            isa: Isa::detect(),
            rehearsal: None,
        };
        Runner {
            backend: CpuBackend::new(model.clone(), options).expect("threads start"),
            kv: Kv::new(capacity),
            number: 0,
            random: fastrand::Rng::with_seed(1),
            vocab: model.spec.vocab_size as u32,
        }
    }

    fn step(&mut self, sets: &[SetId], tokens: usize) -> f64 {
        let mut plan = StepPlan { number: self.number, ..StepPlan::default() };
        self.number += 1;
        for &set in sets {
            let start = self.kv.len(set).expect("live set");
            plan.page_ops.extend(self.kv.extend(set, tokens).expect("room"));
            let tokens = (0..tokens).map(|_| self.random.u32(0..self.vocab)).collect();
            let pages = self.kv.table(set).expect("live set").clone();
            plan.rows.push(Row { tokens, start, placeholder: None, pages, wanted: Wanted::Nothing });
        }
        let started = Instant::now();
        self.backend.step(plan).expect("a good plan");
        started.elapsed().as_secs_f64()
    }

    fn filled(&mut self, context: usize) -> SetId {
        let set = self.kv.create().expect("room");
        for first in (0..context).step_by(PREFILL_TOKENS) {
            self.step(&[set], PREFILL_TOKENS.min(context - first));
        }
        set
    }
}

fn main() {
    let Some(options) = options() else {
        eprintln!(
            "usage: cargo bench --bench layer -- MODEL_FOLDER [--rounds N] [--context N] [--only PHASE]"
        );
        return;
    };
    let model = Arc::new(Model::open(&options.model).expect("the checkpoint opens"));
    let mut runner = Runner::new(&model, options.context);
    println!("{} on {}", options.model, runner.backend.name());
    let sets: Vec<SetId> = (0..16).map(|_| runner.filled(options.context)).collect();
    let mut phases = vec![
        Phase { name: "decode, batch 1", rows: 1, tokens: 1, seconds: Vec::new() },
        Phase { name: "decode, batch 16", rows: 16, tokens: 1, seconds: Vec::new() },
        Phase { name: "prefill, 512 tokens", rows: 1, tokens: PREFILL_TOKENS, seconds: Vec::new() },
    ];
    phases.retain(|phase| phase.name.contains(&options.only));
    let machine = Machine::new(None, working_set_bytes(&model)).expect("threads start");
    let (mut read_rates, mut fma_rates) = (Vec::new(), Vec::new());
    for round in 0..=options.rounds {
        let limits = machine.measure();
        if round > 0 {
            read_rates.push(limits.read_bytes_per_s);
            fma_rates.push(limits.flops_per_s);
        }
        for phase in &mut phases {
            let scratch = (phase.tokens > 1).then(|| runner.filled(options.context));
            let rows = scratch.map_or_else(|| sets[..phase.rows].to_vec(), |set| vec![set]);
            // Batch 1 is short: the median of a few steps is one round's number.
            let repeats = if phase.rows * phase.tokens == 1 { 7 } else { 1 };
            let mut seconds: Vec<f64> = (0..repeats).map(|_| runner.step(&rows, phase.tokens)).collect();
            if round > 0 {
                phase.seconds.push(quantile(&mut seconds, 0.5));
            }
            if let Some(set) = scratch {
                runner.kv.free(set).expect("live set");
            }
        }
    }
    let (read, fma) = (quantile(&mut read_rates, 0.5), quantile(&mut fma_rates, 0.5));
    let limits = MachineLimits { read_bytes_per_s: read, flops_per_s: fma };
    println!(
        "read {:.1} GB/s ({:.1}..{:.1}), multiply-add {:.0} GFLOP/s ({:.0}..{:.0})",
        read / 1e9,
        quantile(&mut read_rates, 0.1) / 1e9,
        quantile(&mut read_rates, 0.9) / 1e9,
        fma / 1e9,
        quantile(&mut fma_rates, 0.1) / 1e9,
        quantile(&mut fma_rates, 0.9) / 1e9,
    );
    println!(
        "{:22} {:>10} {:>21} {:>10} {:>10} {:>8}",
        "phase", "ms", "p10..p90", "bytes ms", "flops ms", "of limit"
    );
    for phase in &mut phases {
        let shape = StepShape { rows: phase.rows, tokens: phase.tokens, context: options.context, drawn: 0 };
        let (by_bytes, by_flops) = limits.seconds(work(&model, shape));
        let median = quantile(&mut phase.seconds, 0.5);
        println!(
            "{:22} {:10.2} {:10.2}..{:9.2} {:10.2} {:10.2} {:7.0} %",
            phase.name,
            median * 1e3,
            quantile(&mut phase.seconds, 0.1) * 1e3,
            quantile(&mut phase.seconds, 0.9) * 1e3,
            by_bytes * 1e3,
            by_flops * 1e3,
            by_bytes.max(by_flops) / median * 100.0
        );
    }
}

fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * q).round() as usize]
}
