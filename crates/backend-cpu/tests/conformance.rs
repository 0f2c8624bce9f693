//! The suite that every backend must pass, on the CPU, whole.
#![allow(clippy::unwrap_used)]

mod common;

use common::Cpu;
use overshot_backend_cpu::{CpuBackend, Isa};
use overshot_conformance as suite;
use overshot_conformance::{Extent, Setup, Subject};
use overshot_model::Model;
use overshot_testing::{cases, seed};
use std::sync::Arc;

#[test]
fn fixtures_are_met() {
    suite::fixtures_are_met(&Cpu::fast());
}

#[test]
fn packed_cache_fixtures_are_met() {
    suite::packed_cache_fixtures_are_met(&Cpu::fast());
}

#[test]
fn bf16_rows_are_bit_identical_alone_and_in_any_batch() {
    suite::rows_stand_alone(&Cpu::fast(), "fixtures/tiny-bf16", seed());
}

#[test]
fn fp8_and_fp4_rows_are_bit_identical_alone_and_in_any_batch() {
    suite::rows_stand_alone(&Cpu::fast(), "fixtures/tiny-fp8fp4", seed());
}

#[test]
fn forks_snapshots_and_rollbacks_leave_no_trace() {
    suite::forks_snapshots_and_rollbacks_leave_no_trace(&Cpu::fast(), "fixtures/tiny-bf16");
}

#[test]
fn two_ranks_give_the_fixtures_of_one() {
    suite::two_ranks_give_the_fixtures_of_one(&Cpu::fast());
}

#[test]
fn rows_of_two_ranks_are_bit_identical_alone_and_in_a_batch() {
    suite::rows_of_two_ranks_stand_alone(&Cpu::fast());
}

#[test]
fn plans_made_ahead_of_their_tokens_draw_the_same() {
    for (folder, tp) in [("fixtures/tiny-fp8fp4", 1), ("fixtures/tiny-fp8fp4", 2), ("models/dsv4-mini", 4)] {
        suite::plans_made_ahead_of_their_tokens_draw_the_same(&Cpu::fast(), folder, tp);
    }
}

#[test]
fn masks_bind_their_rows_and_a_failed_row_fails_what_goes_on_from_it() {
    suite::masks_bind_their_rows_and_a_failed_row_fails_what_goes_on_from_it(&Cpu::fast());
}

#[test]
fn a_nan_in_a_matrix_spoils_every_token() {
    Cpu::all().iter().for_each(suite::a_nan_in_a_matrix_spoils_every_token);
}

#[test]
fn a_nan_in_an_expert_spoils_its_tokens_and_what_follows_them() {
    Cpu::all().iter().for_each(suite::a_nan_in_an_expert_spoils_its_tokens_and_what_follows_them);
}

#[test]
fn a_nan_in_a_compressor_spoils_what_sees_its_entries() {
    Cpu::all().iter().for_each(suite::a_nan_in_a_compressor_spoils_what_sees_its_entries);
}

#[test]
fn prompts_are_continued_as_by_the_reference_and_roundings_change_little() {
    suite::prompts_are_continued_as_by_the_reference(&Cpu::fast());
}

#[test]
fn a_prompt_decodes_on_its_own() {
    suite::a_prompt_decodes_on_its_own(&Cpu::fast());
}

/// Mutations are tried with any kernels.
struct AnyKernels;

impl Subject for AnyKernels {
    type Backend = CpuBackend;

    fn start(&self, model: &Arc<Model>, setup: Setup) -> CpuBackend {
        let isa = [Isa::detect(), Isa::Scalar][setup.variation as usize % 2];
        Cpu { isa }.start(model, setup)
    }

    fn extent(&self) -> Extent {
        Extent::Whole
    }
}

#[test]
fn accepted_mutations_run() {
    suite::accepted_mutations_run(&AnyKernels, cases(200) as u64, seed());
}
