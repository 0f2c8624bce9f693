//! The matmul kernels on the emulator: what `gpu-check` asks of a GPU, with smaller shapes.

use super::*;
use crate::emulator::{EmulatedGpu, Order};
use crate::gpu::Gpu;
use crate::matmul::{Activations, Company, Matmuls};
use fastrand::Rng;
use overshot_model::Format::{self, Bf16, F32, Fp4, Fp8};
use overshot_testing::seed;
use std::sync::Arc;

/// `None`, said loudly, where there is no compiler.
fn open(order: Order, company: Company) -> Option<(Arc<dyn Gpu>, Matmuls)> {
    match EmulatedGpu::new(order) {
        Ok(gpu) => {
            let gpu: Arc<dyn Gpu> = Arc::new(gpu);
            let matmuls = Matmuls::load(&gpu, company).unwrap();
            Some((gpu, matmuls))
        }
        Err(error) => {
            eprintln!("SKIPPED: the matmul kernels were not checked ({error})");
            None
        }
    }
}

fn dense(tokens: usize, matrices: &[(Format, usize, usize)]) -> DenseCase {
    DenseCase {
        name: "plain",
        tokens,
        matrices: matrices.to_vec(),
        codes: Codes::Natural,
        activations: Activations::Exact,
    }
}

fn assert_right(finding: &Finding, what: &dyn std::fmt::Debug) {
    let Finding { worst, not_finite, unprepared, .. } = finding;
    let found = format!("{worst:.3} of what is allowed, {not_finite} not finite, {unprepared} not prepared");
    println!("{found}: {what:?}");
    assert!(finding.passed(), "{found}: {what:?}");
}

#[test]
fn all_formats_are_right_in_one_launch_with_tails_of_rows_and_columns() {
    let seed = seed();
    let matrices =
        [(Fp8, 130, 272), (Bf16, 40, 72), (F32, 24, 104), (Fp4, 17, 320), (Fp8, 16, 1024), (Fp4, 150, 32)];
    let mut answers = Vec::new();
    for order in [Order::Ascending, Order::Descending, Order::Random(seed)] {
        let Some((gpu, matmuls)) = open(order, Company::Any) else { return };
        let case = dense(5, &matrices);
        let finding = case.check(&gpu, &matmuls, &mut Rng::with_seed(seed)).unwrap();
        assert_right(&finding, &case);
        answers.push(finding.bits);
    }
    assert!(answers.iter().all(|bits| *bits == answers[0]), "the order of threads shows");
}

#[test]
fn any_number_of_tokens_is_right() {
    let mut random = Rng::with_seed(seed());
    let Some((gpu, matmuls)) = open(Order::Random(random.u64(..)), Company::Any) else { return };
    for tokens in [1, 2, 7, 8, 9, 15, 16, 17, 33, 64, 65] {
        let case = dense(tokens, &[(Fp8, 16, 144), (Bf16, 16, 64), (Fp4, 16, 96)]);
        assert_right(&case.check(&gpu, &matmuls, &mut random).unwrap(), &case);
    }
}

#[test]
fn extreme_scales_and_rounded_activations_are_right() {
    let mut random = Rng::with_seed(seed());
    let Some((gpu, matmuls)) = open(Order::Ascending, Company::Any) else { return };
    let plain = dense(3, &[(Fp8, 160, 512), (Fp4, 48, 512)]);
    for case in [
        DenseCase { codes: Codes::Extreme, ..plain.clone() },
        DenseCase { activations: Activations::Rounded, ..plain.clone() },
        DenseCase { tokens: 70, codes: Codes::Extreme, ..plain.clone() },
        DenseCase { tokens: 20, ..plain },
    ] {
        assert_right(&case.check(&gpu, &matmuls, &mut random).unwrap(), &case);
    }
}

fn experts(tokens: usize) -> ExpertsCase {
    ExpertsCase {
        name: "plain",
        tokens,
        experts: 8,
        per_token: 3,
        own: 2..7,
        hidden: 96,
        width: 64,
        routed: Fp4,
        shared: Fp8,
        codes: Codes::Natural,
        choices: Choices::Random,
        activations: Activations::Exact,
        limit: 10.0,
    }
}

#[test]
fn experts_are_right_in_any_order_of_threads() {
    let seed = seed();
    let mut answers = Vec::new();
    for order in [Order::Ascending, Order::Descending, Order::Random(seed)] {
        let Some((gpu, matmuls)) = open(order, Company::Any) else { return };
        let case = experts(11);
        let finding = case.check(&gpu, &matmuls, &mut Rng::with_seed(seed)).unwrap();
        assert_right(&finding, &case);
        answers.push(finding.bits);
    }
    assert!(answers.iter().all(|bits| *bits == answers[0]), "the order of threads shows");
}

#[test]
fn experts_are_right_for_any_choices_formats_and_roundings() {
    let mut random = Rng::with_seed(seed());
    let Some((gpu, matmuls)) = open(Order::Ascending, Company::Any) else { return };
    let exact = ExpertsCase { routed: Bf16, shared: Bf16, ..experts(5) };
    for case in [
        experts(1),
        experts(9),
        ExpertsCase { choices: Choices::Same, ..experts(33) },
        ExpertsCase { choices: Choices::Same, ..experts(67) },
        ExpertsCase { choices: Choices::Elsewhere, own: 0..4, ..experts(4) },
        ExpertsCase { activations: Activations::Rounded, ..experts(6) },
        ExpertsCase { limit: f32::INFINITY, hidden: 288, width: 160, ..experts(3) },
        ExpertsCase { own: 0..8, ..exact.clone() },
        ExpertsCase { routed: F32, ..exact },
    ] {
        assert_right(&case.check(&gpu, &matmuls, &mut random).unwrap(), &case);
    }
}

#[test]
fn where_company_must_not_show_other_kernels_are_right_too() {
    let mut random = Rng::with_seed(seed());
    let Some((gpu, matmuls)) = open(Order::Ascending, Company::Invariant) else { return };
    for tokens in [3, 20] {
        let case = dense(tokens, &[(Fp8, 160, 1200), (Fp4, 48, 512), (Bf16, 20, 1000), (F32, 9, 136)]);
        assert_right(&case.check(&gpu, &matmuls, &mut random).unwrap(), &case);
        let case = experts(tokens);
        assert_right(&case.check(&gpu, &matmuls, &mut random).unwrap(), &case);
    }
}
