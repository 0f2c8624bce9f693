//! `--backend scripted:FILE` and injected faults, on the command line; and scripts under the real engine, which
//! preempts, cancels and overlaps: every answer that ends is one whole script, and no two are the same.

#![cfg(feature = "embedded-model")]
#![allow(clippy::unwrap_used)]

mod program;

use overshot_backend::{Script, ScriptStep, ScriptedBackend};
use overshot_engine::{Engine, Event, Finish, Limits, Request, RequestId, StepLoop};
use overshot_kv::PoolCapacity;
use overshot_model::{Model, Spec};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Output;
use std::time::Duration;

fn run(script: &str, fault: Option<&str>) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("script.jsonl");
    std::fs::write(&path, script).unwrap();
    let mut command =
        program::overshot(&["run", "Hello?", "--backend", &format!("scripted:{}", path.display())]);
    fault.map(|fault| command.env("OVERSHOT_FAULT", fault));
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn the_script_is_the_answer() {
    let output =
        run(r#"{"chunks":["Hel","lo ",{"hex":"e4 b8"},{"hex":"ad"},"!",{"eos":true},"not this"]}"#, None);
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("Hello 中!\n", ""));
    let output = run("{\"chunks\":[7]}", None);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("script.jsonl, line 1: chunk 1: 7 is none of"));
}

#[cfg(not(feature = "fault-injection"))]
#[test]
fn a_binary_without_faults_says_so() {
    let output = run(r#"{"chunks":["Hello"]}"#, Some("nan-row:1"));
    assert_eq!(text(&output.stdout), "Hello\n");
    assert_eq!(text(&output.stderr).lines().count(), 1);
    assert!(text(&output.stderr).contains("built without the feature fault-injection"));
}

#[cfg(feature = "fault-injection")]
#[test]
fn faults_come_when_asked_for() {
    let output = run(r#"{"chunks":["Hello"]}"#, Some("nan-row:1"));
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""));
    assert!(text(&output.stderr).contains("the logit of token 0 is NaN"), "{}", text(&output.stderr));
    let output = run(r#"{"chunks":["Hello"]}"#, Some("nan-rows:1"));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("`nan-rows:1` is no fault that can be injected"));
}

#[test]
fn the_engine_gives_every_request_one_whole_script() {
    let spec =
        Model::open(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/dsv4-mini"))).unwrap().spec;
    let cases = overshot_testing::cases(100) as u64;
    let mut preemptions = 0;
    for seed in 0..cases {
        preemptions += play(&spec, seed);
    }
    assert!(preemptions > 0, "nothing was preempted: the test shows nothing");
}

/// Plays random scripts to random requests, and says how many of them were preempted.
fn play(spec: &Spec, seed: u64) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let requests = random.usize(1..12);
    let most_tokens_per_step = random.usize(1..3);
    let scripts: Vec<Script> = (0..requests as u32)
        .map(|index| {
            // The first token tells the scripts apart.
            let further = (0..random.usize(0..400)).map(|_| random.u32(100..110)).collect::<Vec<_>>();
            let tokens = [vec![10 + index], further, vec![spec.eos_token]].concat();
            let steps = tokens.chunks(most_tokens_per_step);
            Script::new(steps.map(|tokens| ScriptStep { delay: Duration::ZERO, tokens: tokens.to_vec() }))
        })
        .collect();
    let capacity = PoolCapacity::for_sets(random.usize(3..12), 300);
    let backend = Box::new(ScriptedBackend::new(spec.clone(), capacity, scripts.clone()).unwrap());
    let chunk_tokens = random.usize(1..100);
    let limits = Limits { chunk_tokens, ..Limits::default() };
    let step_loop = if random.bool() { StepLoop::Plain } else { StepLoop::Overlapped };
    let mut engine = Engine::new(backend, limits, step_loop).unwrap();

    let mut answers: BTreeMap<RequestId, Vec<u32>> = BTreeMap::new();
    let mut whole = BTreeSet::new();
    let mut unsubmitted = requests;
    while unsubmitted > 0 || !engine.is_idle() {
        if unsubmitted > 0 && (engine.is_idle() || random.u8(..8) == 0) {
            unsubmitted -= 1;
            // Some prompts are equal.
            let prompt = vec![50 + random.u32(..2); random.usize(1..300)];
            let request = Request { stop_tokens: vec![spec.eos_token], ..Request::new(prompt) };
            answers.insert(engine.submit(request).unwrap(), Vec::new());
        }
        let cancelled = answers.keys().copied().nth(random.usize(..200)).filter(|_| random.u8(..100) == 0);
        let mut events = engine.step().unwrap();
        events.extend(cancelled.and_then(|id| engine.cancel(id)));
        for event in events {
            match event {
                Event::Token { id, sampled } => answers.get_mut(&id).unwrap().push(sampled.token),
                Event::Finished { id, reason: Finish::Stop(_), .. } => {
                    let answer = answers.remove(&id).unwrap();
                    assert!(
                        scripts.iter().any(|script| script.tokens() == answer),
                        "seed {seed}: {answer:?}"
                    );
                    assert!(whole.insert(answer), "seed {seed}: a script was played twice");
                }
                Event::Finished { id, reason, .. } => {
                    assert_eq!(reason, Finish::Cancelled, "seed {seed}");
                    let answer = answers.remove(&id).unwrap();
                    let begins = |script: &Script| script.tokens().starts_with(&answer);
                    assert!(scripts.iter().any(begins), "seed {seed}: {answer:?}");
                }
                Event::PrefillProgress { .. } => {}
            }
        }
    }
    engine.counters().preemptions
}
