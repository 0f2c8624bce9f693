//! The suite that every backend must pass, on the emulator: in part, or whole in a soak
//! (`cargo xtask soak --package backend-cuda`), which takes far longer. Without a
//! compiler nothing runs, and says so.
#![allow(clippy::unwrap_used)]

mod common;

use common::Emulated;
use overshot_conformance as suite;
use overshot_conformance::Extent;
use overshot_testing::{asked_cases, seed};

/// A case takes about so many times as long as on the CPU, and a number of cases is meant for that.
const SLOWER_THAN_CPU: usize = 500;

fn emulated() -> Option<Emulated> {
    Emulated::find(asked_cases().map_or(Extent::Part, |_| Extent::Whole))
}

#[test]
fn fixtures_are_met() {
    let Some(emulated) = emulated() else { return };
    suite::fixtures_are_met(&emulated);
}

#[test]
fn packed_cache_fixtures_are_met() {
    let Some(emulated) = emulated() else { return };
    suite::packed_cache_fixtures_are_met(&emulated);
}

#[test]
fn bf16_rows_are_bit_identical_alone_and_in_any_batch() {
    let Some(emulated) = emulated() else { return };
    suite::rows_stand_alone(&emulated, "fixtures/tiny-bf16", seed());
}

#[test]
fn fp8_and_fp4_rows_are_bit_identical_alone_and_in_any_batch() {
    let Some(emulated) = emulated() else { return };
    suite::rows_stand_alone(&emulated, "fixtures/tiny-fp8fp4", seed());
}

#[test]
fn forks_snapshots_and_rollbacks_leave_no_trace() {
    let Some(emulated) = emulated() else { return };
    suite::forks_snapshots_and_rollbacks_leave_no_trace(&emulated, "fixtures/tiny-fp8fp4");
}

#[test]
fn two_ranks_give_the_fixtures_of_one() {
    let Some(emulated) = emulated() else { return };
    suite::two_ranks_give_the_fixtures_of_one(&emulated);
}

#[test]
fn rows_of_two_ranks_are_bit_identical_alone_and_in_a_batch() {
    let Some(emulated) = emulated() else { return };
    suite::rows_of_two_ranks_stand_alone(&emulated);
}

#[test]
fn plans_made_ahead_of_their_tokens_draw_the_same() {
    let Some(emulated) = emulated() else { return };
    for tp in [1, 2] {
        suite::plans_made_ahead_of_their_tokens_draw_the_same(&emulated, "fixtures/tiny-fp8fp4", tp);
    }
}

#[test]
fn masks_bind_their_rows_and_a_failed_row_fails_what_goes_on_from_it() {
    let Some(emulated) = emulated() else { return };
    suite::masks_bind_their_rows_and_a_failed_row_fails_what_goes_on_from_it(&emulated);
}

#[test]
fn a_nan_in_a_matrix_spoils_every_token() {
    let Some(emulated) = emulated() else { return };
    suite::a_nan_in_a_matrix_spoils_every_token(&emulated);
}

#[test]
fn a_nan_in_an_expert_spoils_its_tokens_and_what_follows_them() {
    let Some(emulated) = emulated() else { return };
    suite::a_nan_in_an_expert_spoils_its_tokens_and_what_follows_them(&emulated);
}

#[test]
fn a_nan_in_a_compressor_spoils_what_sees_its_entries() {
    let Some(emulated) = emulated() else { return };
    suite::a_nan_in_a_compressor_spoils_what_sees_its_entries(&emulated);
}

#[test]
fn prompts_are_continued_as_by_the_reference_and_roundings_change_little() {
    let Some(emulated) = emulated() else { return };
    suite::prompts_are_continued_as_by_the_reference(&emulated);
}

#[test]
fn a_prompt_decodes_on_its_own() {
    let Some(emulated) = emulated() else { return };
    suite::a_prompt_decodes_on_its_own(&emulated);
}

#[test]
fn accepted_mutations_run() {
    let Some(emulated) = emulated() else { return };
    let cases = asked_cases().map_or(6, |cases| (cases / SLOWER_THAN_CPU).max(1));
    suite::accepted_mutations_run(&emulated, cases as u64, seed());
}
