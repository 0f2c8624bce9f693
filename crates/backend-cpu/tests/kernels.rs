//! The plain kernels and the fast ones: another rounding, the same model.
#![allow(clippy::unwrap_used)]

mod common;

use common::Cpu;
use overshot_backend::Numerics;
use overshot_conformance::{Bench, Setup, open, worst};

#[test]
fn the_scalar_kernels_agree_with_the_vector_kernels() {
    let model = open("fixtures/tiny-fp8fp4");
    let tokens: Vec<u32> = (0..150).map(|i| i * 37 % 192).collect();
    let [fast, scalar] = Cpu::all().map(|cpu| {
        let setup = Setup::new(Numerics::EXACT, 1, tokens.len());
        Bench::start(&cpu, &model, setup).feed_new(&tokens, &[64])
    });
    let (difference, _) = worst(&fast, &scalar);
    assert!(difference <= 2e-4, "{difference}");
}
