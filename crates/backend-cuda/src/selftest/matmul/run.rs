//! `gpu-check matmul`: the products and experts of the model's own shapes, checked on a device. One JSON object a line. How
//! fast they are is seen in whole steps, where each layer's weights are others.

use super::{Choices, Codes, DenseCase, ExpertsCase, Finding};
use crate::gpu::{CudaGpu, Gpu, KernelStore};
use crate::matmul::{Activations, Company, MatmulError, Matmuls};
use crate::selftest::error::{Count, SelftestError};
use fastrand::Rng;
use overshot_model::Format::{self, Bf16, F32, Fp4, Fp8};
use serde::Serialize;
use std::io::Write;
use std::sync::Arc;

#[derive(Serialize)]
struct Line {
    case: String,
    passed: bool,
    /// Whether a second launch on the same numbers gave the same bits.
    repeats: bool,
    /// As [`Finding`] has them.
    worst: f64,
    not_finite: usize,
    unprepared: usize,
}

/// Tokens on both sides of every tile's end.
const TOKENS: [usize; 9] = [1, 2, 7, 8, 9, 16, 33, 64, 65];

/// What a layer multiplies in one launch, with rows cut to what the host can check in a moment.
const LAUNCHES: [&[(Format, usize, usize)]; 4] = [
    &[(Fp8, 1024, 4096), (Fp8, 512, 4096), (Bf16, 130, 4096), (F32, 64, 4096)],
    &[(Fp8, 2048, 1024), (Fp8, 1000, 1024)],
    &[(Fp8, 256, 4096), (Fp8, 40, 8192), (Fp4, 256, 2048)],
    &[(Bf16, 3000, 4096)],
];

fn dense_cases() -> Vec<DenseCase> {
    let mut cases = Vec::new();
    for (at, matrices) in LAUNCHES.iter().enumerate() {
        for tokens in TOKENS {
            let is_rounded = (at + tokens) % 2 == 0;
            let activations = if is_rounded { Activations::Rounded } else { Activations::Exact };
            let codes = if tokens == 7 { Codes::Extreme } else { Codes::Natural };
            cases.push(DenseCase {
                name: "shapes of Flash",
                tokens,
                matrices: matrices.to_vec(),
                codes,
                activations,
            });
        }
    }
    cases
}

fn experts_cases() -> Vec<ExpertsCase> {
    let plain = ExpertsCase {
        name: "experts of Flash, narrower",
        tokens: 1,
        experts: 16,
        per_token: 6,
        own: 0..8,
        hidden: 1024,
        width: 512,
        routed: Fp4,
        shared: Fp8,
        codes: Codes::Natural,
        choices: Choices::Random,
        activations: Activations::Rounded,
        limit: 10.0,
    };
    let mut cases = Vec::new();
    for tokens in [1, 5, 16, 40, 97] {
        for activations in [Activations::Rounded, Activations::Exact] {
            cases.push(ExpertsCase { tokens, activations, ..plain.clone() });
        }
        cases.push(ExpertsCase { tokens, choices: Choices::Same, ..plain.clone() });
    }
    cases.push(ExpertsCase { choices: Choices::Elsewhere, ..plain.clone() });
    cases.push(ExpertsCase {
        tokens: 9,
        routed: Bf16,
        shared: Bf16,
        activations: Activations::Exact,
        ..plain
    });
    cases
}

struct Run<'a> {
    report: &'a mut dyn Write,
    count: Count,
}

impl Run<'_> {
    /// `check` runs a case on numbers of this seed.
    fn case(
        &mut self,
        case: String,
        random: &mut Rng,
        check: impl Fn(&mut Rng) -> Result<Finding, MatmulError>,
    ) -> Result<(), SelftestError> {
        let seed = random.u64(..);
        let [first, second] = [check(&mut Rng::with_seed(seed))?, check(&mut Rng::with_seed(seed))?];
        let repeats = first.bits == second.bits;
        let passed = first.passed() && repeats;
        self.count.add(passed);
        let Finding { worst, not_finite, unprepared, .. } = first;
        let line = Line { case, passed, repeats, worst, not_finite, unprepared };
        Ok(writeln!(self.report, "{}", serde_json::to_string(&line).map_err(std::io::Error::from)?)?)
    }
}

pub fn run(seed: u64, report: &mut dyn Write) -> Result<(), SelftestError> {
    let gpu: Arc<dyn Gpu> = Arc::new(CudaGpu::open(0, KernelStore::built_in())?);
    let mut random = Rng::with_seed(seed);
    let mut run = Run { report, count: Count::default() };
    for company in [Company::Any, Company::Invariant] {
        let matmuls = Matmuls::load(&gpu, company)?;
        for case in dense_cases() {
            let name = format!("{company:?} {case:?}");
            run.case(name, &mut random, |random| case.check(&gpu, &matmuls, random))?;
        }
        for case in experts_cases() {
            let name = format!("{company:?} {case:?}");
            run.case(name, &mut random, |random| case.check(&gpu, &matmuls, random))?;
        }
    }
    run.count.verdict()
}
