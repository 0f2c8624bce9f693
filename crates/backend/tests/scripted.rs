//! The scripted backend through its public door: who plays which script, placeholders, masks, time.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Plans, decode, mask, prompt, spec};
use overshot_backend::{
    Backend, BackendError, Choice, RowFailure, SamplingError, Script, ScriptError, ScriptStep,
    ScriptedBackend, StepMasks, Wanted,
};
use overshot_kv::{PageId, PageOp, Pool, PoolCapacity};
use std::time::{Duration, Instant};

const EOS: u32 = 1;

fn script(steps: &[&[u32]]) -> Script {
    Script::new(steps.iter().map(|tokens| ScriptStep { delay: Duration::ZERO, tokens: tokens.to_vec() }))
}

fn backend(scripts: Vec<Script>) -> Plans<ScriptedBackend> {
    Plans::of(ScriptedBackend::new(spec(), PoolCapacity::for_sets(8, 1_000_000_000), scripts).unwrap())
}

#[test]
fn sequences_take_the_scripts_in_turn_and_end_with_eos() {
    let mut backend = backend(vec![script(&[&[10], &[11, 12]]), script(&[&[20]])]);
    assert_eq!(backend.draw(vec![prompt(0, &[5, 6]), prompt(1, &[7])]), [vec![10], vec![20]]);
    assert_eq!(backend.draw(vec![decode(0, 2, &[10]), decode(1, 1, &[20])]), [vec![11, 12], vec![EOS]]);
    // The engine computes both tokens at once; another sequence begins, with the first script again.
    assert_eq!(backend.draw(vec![decode(0, 3, &[11, 12]), prompt(2, &[7])]), [vec![EOS], vec![10]]);
    assert_eq!(backend.inner.most_tokens_per_row(), 2);
}

#[test]
fn the_prompt_may_come_in_chunks() {
    let mut backend = backend(vec![script(&[&[10]])]);
    let chunk = |start, tokens: &[u32]| {
        let mut row = decode(3, start, tokens);
        row.wanted = Wanted::Nothing;
        row
    };
    assert_eq!(backend.draw(vec![chunk(0, &[5, 6])]), [vec![0; 0]]);
    assert_eq!(backend.draw(vec![chunk(2, &[7])]), [vec![0; 0]]);
    assert_eq!(backend.draw(vec![decode(3, 3, &[8, 9])]), [vec![10]]);
}

#[test]
fn a_preempted_sequence_goes_on_with_its_script() {
    let scripts = vec![script(&[&[10], &[11], &[12]]), script(&[&[20], &[21]]), script(&[&[30]])];
    let mut backend = backend(scripts);
    assert_eq!(backend.draw(vec![prompt(0, &[5, 6]), prompt(1, &[5, 6])]), [vec![10], vec![20]]);
    assert_eq!(backend.draw(vec![decode(0, 2, &[10])]), [vec![11]]);
    // Its page goes to a new sequence, with the same prompt; then both old ones come back elsewhere, in chunks.
    assert_eq!(backend.draw(vec![prompt(0, &[5, 6])]), [vec![30]]);
    let mut first_chunk = prompt(5, &[5, 6]);
    first_chunk.wanted = Wanted::Nothing;
    assert_eq!(backend.draw(vec![first_chunk, prompt(4, &[5, 6, 20])]), [vec![], vec![21]]);
    assert_eq!(backend.draw(vec![decode(5, 2, &[10, 11])]), [vec![12]]);
    // What was taken in anew is not there a second time.
    assert_eq!(backend.draw(vec![prompt(6, &[5, 6, 9])]), [vec![10]]);
}

#[test]
fn a_sequence_may_be_preempted_while_its_token_is_being_drawn() {
    let mut backend = backend(vec![script(&[&[10], &[11], &[12]]), script(&[&[20]])]);
    backend.submit(vec![prompt(3, &[8]), prompt(0, &[5, 6])]).unwrap();
    let mut again = prompt(1, &[5, 6, 0]);
    again.placeholder = Some(1);
    backend.submit(vec![again]).unwrap();
    assert_eq!(backend.collect().unwrap(), [vec![10], vec![20]]);
    assert_eq!(backend.collect().unwrap(), [vec![EOS]]);
    let mut lost = decode(1, 3, &[0]);
    lost.placeholder = Some(1);
    assert!(backend.submit(vec![lost]).unwrap_err().to_string().contains("draws no token"));
}

#[test]
fn a_copied_window_is_the_same_sequence() {
    let mut backend = backend(vec![script(&[&[10], &[11]]), script(&[&[20]])]);
    backend.draw(vec![prompt(0, &[5])]);
    backend.page_ops = vec![PageOp::Copy { pool: Pool::Window, from: PageId(0), to: PageId(7) }];
    assert_eq!(backend.draw(vec![decode(7, 1, &[10]), decode(0, 1, &[10])]), [vec![11], vec![11]]);
}

#[test]
fn a_placeholder_stands_for_the_token_of_the_step_before() {
    let mut backend = backend(vec![script(&[&[10], &[11, 12], &[13]])]);
    backend.submit(vec![prompt(0, &[5])]).unwrap();
    for position in 1..5 {
        let mut row = decode(0, position, &[0]);
        row.placeholder = Some(0);
        backend.submit(vec![row]).unwrap();
    }
    let drawn: Vec<_> = (0..5).map(|_| backend.collect().unwrap().remove(0)).collect();
    assert_eq!(drawn, [vec![10], vec![11, 12], vec![12], vec![13], vec![EOS]], "each position of its own");
}

#[test]
fn masks_have_the_last_word() {
    let mut backend = backend(vec![script(&[&[10, 11]])]);
    let masked = || {
        let mut row = prompt(0, &[5]);
        let Wanted::Token { choice, .. } = &mut row.wanted else { panic!("a prompt draws") };
        *choice = Choice::Masked;
        row
    };
    for (allowed, expected) in [(&[10, 3][..], vec![10]), (&[9, 3], vec![3])] {
        let number = backend.submit(vec![masked()]).unwrap();
        backend.inner.supply(StepMasks { number, rows: vec![(0, mask(allowed))] }).unwrap();
        assert_eq!(backend.collect().unwrap(), [expected]);
    }
    let number = backend.submit(vec![masked()]).unwrap();
    let mut follower = decode(0, 1, &[0]);
    follower.placeholder = Some(0);
    backend.submit(vec![follower]).unwrap();
    let wrong = StepMasks { number, rows: vec![(1, mask(&[1]))] };
    assert!(matches!(backend.inner.supply(wrong), Err(BackendError::WrongMasks { .. })));
    backend.inner.supply(StepMasks { number, rows: vec![(0, mask(&[]))] }).unwrap();
    let failure = |result: overshot_backend::StepResult| result.rows[0].failure.clone().unwrap();
    assert_eq!(failure(backend.inner.collect().unwrap()), SamplingError::NothingAllowed.into());
    assert_eq!(failure(backend.inner.collect().unwrap()), RowFailure::NoPlaceholderToken);
    backend.submit(vec![masked()]).unwrap();
    assert!(matches!(backend.collect(), Err(BackendError::WrongMasks { .. })), "never waited for");
}

#[test]
fn only_collecting_waits_and_steps_do_not_overlap() {
    let delayed =
        |ms, token| Script::new([ScriptStep { delay: Duration::from_millis(ms), tokens: vec![token] }]);
    let mut backend = backend(vec![delayed(100, 10), delayed(200, 20), delayed(150, 30)]);
    let started = Instant::now();
    backend.submit(vec![prompt(0, &[5]), prompt(1, &[5])]).unwrap();
    backend.submit(vec![prompt(2, &[5])]).unwrap();
    assert!(started.elapsed() < Duration::from_millis(150), "submitting waited");
    assert_eq!(backend.inner.collect().unwrap().device_time, Duration::from_millis(200));
    assert!(started.elapsed() >= Duration::from_millis(200));
    std::thread::sleep(Duration::from_millis(150));
    let again = Instant::now();
    backend.collect().unwrap();
    assert!(started.elapsed() >= Duration::from_millis(350));
    assert!(again.elapsed() < Duration::from_millis(100), "time passed while the caller did something else");
}

#[test]
fn what_cannot_be_played_is_refused() {
    let mut backend = backend(vec![script(&[&[10]])]);
    let mut refused = |row| backend.submit(vec![row]).unwrap_err().to_string();
    assert!(refused(decode(0, 4, &[5])).contains("no sequence began"));
    assert!(refused(prompt(0, &[99])).contains("not below the vocabulary's 64"));
    assert!(refused(prompt(8, &[5])).contains("do not cover"));
    let mut logits = prompt(0, &[5]);
    logits.wanted = Wanted::LastLogits;
    assert!(refused(logits).contains("a script has none"));
    assert!(refused(decode(0, 4, &[5])).contains("starts at position 4 of a sequence of 1 positions"));
    let out_of_turn = overshot_backend::StepPlan::default();
    assert!(matches!(
        backend.inner.submit(out_of_turn),
        Err(BackendError::OutOfOrder { number: 0, expected: 5 })
    ));

    let new = |scripts| ScriptedBackend::new(spec(), PoolCapacity::for_sets(1, 1), scripts).err().unwrap();
    assert!(matches!(new(vec![]), ScriptError::NoScript));
    assert!(matches!(new(vec![script(&[&[64]])]), ScriptError::NoSuchToken { index: 0, token: 64, .. }));
}
