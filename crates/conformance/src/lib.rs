//! The tests that every backend must pass: a function a scenario, over a [`Subject`] that starts the backend. A
//! backend's own `tests/` call them one by one and add what only it can show (captured values, threads, kernels).
//!
//! There is one policy for all backends, and none has a tolerance of its own. Chunks, the batch, [variations] and
//! cache operations change no bit; another number of ranks changes logits by the rounding of sums; the shared
//! fixtures and the trained model's reference run are met within the tolerance that is written beside them.
//!
//! Everything here is test code, in a crate because two crates' tests use it: it panics where a backend is wrong, and
//! nothing that ships depends on it.
//!
//! [variations]: Setup::variation
#![allow(clippy::unwrap_used)]

mod bench;
mod compare;
mod draws;
mod files;
mod fixtures;
mod forks;
mod mutations;
mod prompts;
mod ranks;
mod rows;
mod spoilt;

pub use bench::{Bench, Extent, Setup, Subject};
pub use compare::{argmax, assert_near, bits, worst};
pub use draws::{
    drawn_plainly, masks_bind_their_rows_and_a_failed_row_fails_what_goes_on_from_it,
    plans_made_ahead_of_their_tokens_draw_the_same,
};
pub use files::{Arrays, Checkpoint, open, repository};
pub use fixtures::{Fixture, fixtures_are_met, packed_cache_fixtures_are_met};
pub use forks::forks_snapshots_and_rollbacks_leave_no_trace;
pub use mutations::accepted_mutations_run;
pub use prompts::{Prompt, a_prompt_decodes_on_its_own, prompts_are_continued_as_by_the_reference};
pub use ranks::{rows_of_two_ranks_stand_alone, two_ranks_give_the_fixtures_of_one};
pub use rows::rows_stand_alone;
pub use spoilt::{
    a_nan_in_a_compressor_spoils_what_sees_its_entries, a_nan_in_a_matrix_spoils_every_token,
    a_nan_in_an_expert_spoils_its_tokens_and_what_follows_them,
};
