//! The suite that every backend must pass: whole on a card, where there is one; on the emulator in part, or whole in a soak
//! (`cargo xtask soak --package backend-cuda`), which takes far longer. Without a compiler or a card nothing runs there, and
//! says so.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Device, InAnyCompany};
use overshot_conformance as suite;
use overshot_conformance::{Extent, Subject};
use overshot_testing::{asked_cases, seed};

/// A case takes about so many times as long as on the CPU, and a number of cases is meant for that.
const SLOWER_THAN_CPU: usize = 500;

fn devices() -> Vec<Device> {
    Device::all(asked_cases().map_or(Extent::Part, |_| Extent::Whole))
}

#[test]
fn fixtures_are_met() {
    for device in devices() {
        suite::fixtures_are_met(&device);
    }
}

#[test]
fn packed_cache_fixtures_are_met() {
    for device in devices() {
        suite::packed_cache_fixtures_are_met(&device);
    }
}

#[test]
fn bf16_rows_are_bit_identical_alone_and_in_any_batch() {
    for device in devices() {
        suite::rows_stand_alone(&device, "fixtures/tiny-bf16", seed());
    }
}

#[test]
fn fp8_and_fp4_rows_are_bit_identical_alone_and_in_any_batch() {
    for device in devices() {
        suite::rows_stand_alone(&device, "fixtures/tiny-fp8fp4", seed());
    }
}

#[test]
fn forks_snapshots_and_rollbacks_leave_no_trace() {
    for device in devices() {
        suite::forks_snapshots_and_rollbacks_leave_no_trace(&device, "fixtures/tiny-fp8fp4");
    }
}

#[test]
fn two_ranks_give_the_fixtures_of_one() {
    for device in devices() {
        suite::two_ranks_give_the_fixtures_of_one(&device);
    }
}

#[test]
fn rows_of_two_ranks_are_bit_identical_alone_and_in_a_batch() {
    for device in devices() {
        suite::rows_of_two_ranks_stand_alone(&device);
    }
}

#[test]
fn plans_made_ahead_of_their_tokens_draw_the_same() {
    for device in devices() {
        for tp in [1, 2] {
            suite::plans_made_ahead_of_their_tokens_draw_the_same(&device, "fixtures/tiny-fp8fp4", tp);
        }
    }
}

#[test]
fn masks_bind_their_rows_and_a_failed_row_fails_what_goes_on_from_it() {
    for device in devices() {
        suite::masks_bind_their_rows_and_a_failed_row_fails_what_goes_on_from_it(&device);
    }
}

#[test]
fn a_nan_in_a_matrix_spoils_every_token() {
    for device in devices() {
        suite::a_nan_in_a_matrix_spoils_every_token(&device);
    }
}

#[test]
fn a_nan_in_an_expert_spoils_its_tokens_and_what_follows_them() {
    for device in devices() {
        suite::a_nan_in_an_expert_spoils_its_tokens_and_what_follows_them(&device);
    }
}

#[test]
fn a_nan_in_a_compressor_spoils_what_sees_its_entries() {
    for device in devices() {
        suite::a_nan_in_a_compressor_spoils_what_sees_its_entries(&device);
    }
}

#[test]
fn prompts_are_continued_as_by_the_reference_and_roundings_change_little() {
    for device in devices() {
        suite::prompts_are_continued_as_by_the_reference(&device);
    }
}

#[test]
fn a_prompt_decodes_on_its_own() {
    for device in devices() {
        suite::a_prompt_decodes_on_its_own(&device);
    }
}

/// The scenarios that ask for no bits; of the emulator in part the quickest of them.
#[test]
fn in_any_company_rows_are_right() {
    for device in devices().into_iter().map(InAnyCompany) {
        suite::a_prompt_decodes_on_its_own(&device);
        if device.extent() == Extent::Whole {
            suite::prompts_are_continued_as_by_the_reference(&device);
            suite::a_nan_in_a_matrix_spoils_every_token(&device);
        }
    }
}

#[test]
fn accepted_mutations_run() {
    for device in devices() {
        let cases = asked_cases().map_or(6, |cases| (cases / SLOWER_THAN_CPU).max(1));
        suite::accepted_mutations_run(&device, cases as u64, seed());
    }
}
