//! Injected faults through the public door: whom they strike, and whom not.

#![cfg(feature = "fault-injection")]
#![allow(clippy::unwrap_used)]

mod common;

use common::{Plans, decode, prompt, spec};
use overshot_backend::{
    Backend, FaultyBackend, RowFailure, SamplingError, Script, ScriptStep, ScriptedBackend,
};
use overshot_kv::PoolCapacity;
use std::time::{Duration, Instant};

fn backend(faults: &str) -> Plans<FaultyBackend> {
    let steps = (10..60).map(|token| ScriptStep { delay: Duration::ZERO, tokens: vec![token] });
    let scripted = ScriptedBackend::new(spec(), PoolCapacity::for_sets(8, 1000), vec![Script::new(steps)]);
    Plans::of(FaultyBackend::new(Box::new(scripted.unwrap()), faults.parse().unwrap()))
}

#[test]
fn one_row_of_all_gets_the_nan() {
    let mut backend = backend("nan-row:3");
    assert_eq!(backend.draw(vec![prompt(0, &[5]), prompt(1, &[6])]), [vec![10], vec![10]]);
    backend.submit(vec![decode(0, 1, &[10]), decode(1, 1, &[10])]).unwrap();
    let mut follower = decode(0, 2, &[0]);
    follower.placeholder = Some(0);
    backend.submit(vec![follower]).unwrap();
    let rows = backend.inner.collect().unwrap().rows;
    let Some(RowFailure::Sampling(SamplingError::BadLogit { value, .. })) = rows[0].failure else {
        panic!("{:?}", rows[0])
    };
    assert!(value.is_nan() && rows[0].tokens.is_empty() && rows[1].tokens[0].token == 11);
    let late = backend.inner.collect().unwrap().rows.remove(0);
    assert_eq!((late.failure, late.tokens), (Some(RowFailure::NoPlaceholderToken), vec![]));
    assert_eq!(backend.draw(vec![decode(1, 2, &[11]), prompt(0, &[5])]), [vec![12], vec![10]], "once only");
}

#[test]
fn the_first_sequence_with_that_many_tokens_fails() {
    let mut backend = backend("fail-after-token:2");
    backend.draw(vec![prompt(0, &[5])]);
    backend.draw(vec![prompt(1, &[5]), decode(0, 1, &[10])]);
    // A new sequence in the page counts from 0.
    backend.draw(vec![prompt(0, &[7]), decode(1, 1, &[10])]);
    backend.submit(vec![decode(0, 1, &[10]), decode(1, 2, &[11])]).unwrap();
    let rows = backend.inner.collect().unwrap().rows;
    assert_eq!(rows[0].tokens[0].token, 11);
    assert_eq!(rows[1].failure, Some(SamplingError::NoFiniteLogit { vocab_size: 64 }.into()));
    assert_eq!(backend.draw(vec![decode(0, 2, &[11])]), [vec![12]]);
}

#[test]
fn steps_are_slowed_and_one_is_stalled() {
    let mut backend = backend("slow-step:5ms,stall-step:300ms");
    let mut times = Vec::new();
    for position in 0..8 {
        let started = Instant::now();
        backend.draw(vec![decode(0, position, &[if position == 0 { 5 } else { 9 + position as u32 }])]);
        times.push(started.elapsed());
    }
    assert!(times.iter().all(|time| *time >= Duration::from_millis(5)), "{times:?}");
    assert!(times[5] >= Duration::from_millis(305), "{times:?}");
    assert!(times[..5].iter().chain(&times[6..]).all(|time| *time < Duration::from_millis(300)), "{times:?}");
    assert!(backend.inner.name().contains("faults injected"));
}
