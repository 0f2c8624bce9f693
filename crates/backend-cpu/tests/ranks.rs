//! Several ranks against one: the same tokens and choices, logits within the rounding of sums made in another order.
//! And what plans can say about a step that still runs: placeholders, and masks that come late.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Arrays, Bench, argmax, bits, open, repository, worst};
use overshot_backend::{
    Backend, Choice, Numerics, RowFailure, RowResult, Sampling, SamplingError, StepMasks, TokenMask, Wanted,
};
use overshot_backend_cpu::{Capture, CpuBackend, CpuOptions, Isa};
use overshot_kv::{PoolCapacity, SetId};
use overshot_model::Model;
use std::sync::Arc;

/// Of the largest logit: what another order of sums may change.
const LOGITS_REL: f32 = 1e-4;

/// What a run gives: logits of every position, and the tokens that it would have drawn at each.
struct Run {
    logits: Vec<f32>,
    capture: Capture,
}

/// A prompt in chunks, then tokens one by one.
fn run(model: &Arc<Model>, numerics: Numerics, tp: usize, prompt: &[u32], then: &[u32]) -> Run {
    let mut bench = Bench::ranks(model, numerics, 1, prompt.len() + then.len(), tp);
    let set = bench.kv.create().unwrap();
    bench.backend.start_capture();
    let mut logits = bench.feed(set, prompt, &[64, 1, 200]);
    logits.extend(bench.feed(set, then, &[1]));
    Run { logits, capture: bench.backend.take_capture() }
}

fn assert_near(model: &Model, ours: &[f32], alone: &[f32], label: &str) {
    let largest = alone.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
    let (difference, at) = worst(ours, alone);
    assert!(difference <= LOGITS_REL * largest, "{label}: logit {at} differs by {difference} of {largest}");
    let vocab = model.spec.vocab_size;
    let tokens = |logits: &[f32]| logits.chunks_exact(vocab).map(argmax).collect::<Vec<_>>();
    assert_eq!(tokens(ours), tokens(alone), "{label}: likeliest tokens");
}

#[test]
fn two_ranks_give_the_fixtures_of_one() {
    for folder in ["fixtures/tiny-bf16", "fixtures/tiny-fp8fp4"] {
        let model = open(folder);
        let text = std::fs::read_to_string(repository().join(folder).join("manifest.json")).unwrap();
        let manifest: serde_json::Value = serde_json::from_str(&text).unwrap();
        for case in manifest["cases"].as_array().unwrap() {
            let label = format!("{folder}/{}", case["file"].as_str().unwrap());
            let case = Arrays::read(&label);
            let (prompt, then) = (case.ids("input_ids"), case.ids("greedy.tokens"));
            let alone = run(&model, Numerics::EXACT, 1, &prompt, &then);
            let shared = run(&model, Numerics::EXACT, 2, &prompt, &then);
            assert_near(&model, &shared.logits, &alone.logits, &label);
            for layer in 0..model.spec.layers.len() {
                for what in ["experts", "index_selected"] {
                    let name = format!("layers.{layer}.{what}");
                    assert_eq!(shared.capture.get(&name), alone.capture.get(&name), "{label}: {name}");
                }
            }
        }
    }
}

/// Prompts of the small model with their continuations, by length of the prompt.
fn mini_prompts(shortest: usize, count: usize) -> Vec<(Vec<u32>, Vec<u32>)> {
    let text = std::fs::read_to_string(repository().join("models/dsv4-mini/prompts.jsonl")).unwrap();
    let ids = |value: &serde_json::Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect()
    };
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let mut prompts: Vec<_> =
        lines.map(|line| (ids(&line["prompt_ids"]), ids(&line["greedy_ids"]))).collect();
    prompts.retain(|(prompt, _)| prompt.len() >= shortest);
    prompts.sort_by_key(|(prompt, _)| prompt.len());
    prompts.truncate(count);
    prompts
}

#[test]
fn two_and_four_ranks_continue_prompts_as_one_does() {
    let model = open("models/dsv4-mini");
    // Beyond 512 tokens, 128 of the entries are chosen.
    let cases = [
        (mini_prompts(0, 2), Numerics::EXACT),
        (mini_prompts(0, 2), Numerics::default()),
        (mini_prompts(520, 1), Numerics::EXACT),
    ];
    for (prompts, numerics) in cases {
        for (prompt, then) in prompts {
            let then = &then[..then.len().min(24)];
            let alone = run(&model, numerics, 1, &prompt, then);
            for tp in [2, 4] {
                let shared = run(&model, numerics, tp, &prompt, then);
                let label = format!("{tp} ranks, prompt of {}, {numerics:?}", prompt.len());
                if numerics == Numerics::EXACT {
                    assert_near(&model, &shared.logits, &alone.logits, &label);
                }
                let rows = shared.logits.chunks_exact(model.spec.vocab_size).skip(prompt.len() - 1);
                assert!(rows.map(argmax).take(then.len()).eq(then.iter().copied()), "{label}: continuation");
            }
        }
    }
}

/// Sums over ranks change nothing about a row's independence of its batch.
#[test]
fn rows_of_two_ranks_are_bit_identical_alone_and_in_a_batch() {
    let model = open("fixtures/tiny-fp8fp4");
    let mut random = fastrand::Rng::with_seed(11);
    let prompts: Vec<Vec<u32>> = (0..5)
        .map(|i| (0..20 + 30 * i).map(|_| random.u32(0..model.spec.vocab_size as u32)).collect())
        .collect();
    let alone: Vec<_> = prompts
        .iter()
        .map(|prompt| {
            let mut bench = Bench::ranks(&model, Numerics::default(), 1, prompt.len(), 2);
            let set = bench.kv.create().unwrap();
            bits(&bench.feed(set, prompt, &[usize::MAX]))
        })
        .collect();
    let mut bench = Bench::ranks(&model, Numerics::default(), 5, 500, 2);
    let sets: Vec<SetId> = prompts.iter().map(|_| bench.kv.create().unwrap()).collect();
    let rows: Vec<(SetId, &[u32])> = sets.iter().copied().zip(prompts.iter().map(Vec::as_slice)).collect();
    let batched = bench.step(&rows, Wanted::AllLogits);
    assert!(batched.iter().map(|row| bits(row)).eq(alone));
}

#[test]
fn a_model_that_does_not_divide_is_refused_with_the_flag() {
    let model = open("fixtures/tiny-bf16");
    let capacity = PoolCapacity::for_sets(1, 1);
    let start = |tp| {
        let numerics = Numerics::default();
        CpuBackend::new(
            model.clone(),
            CpuOptions { numerics, capacity, tp, threads: Some(4), isa: Isa::Scalar },
        )
    };
    let told = |tp| start(tp).err().unwrap().to_string();
    assert_eq!(told(4), "--tp 4: 4 ranks cannot share this model's 2 o_groups evenly, use --tp 2");
    assert_eq!(told(0), "--tp 0: there can be 1, 2 or 4 ranks");
    assert_eq!(start(1).unwrap().name(), "cpu (scalar, 4 threads)");
    assert_eq!(start(2).unwrap().name(), "cpu (scalar, 2 ranks x 2 threads)");
}

/// Draws with every penalty, so that a token that is missing from what was seen shows.
fn drawing(seed: u64, seen: &[(u32, u32)], choice: Choice) -> Wanted {
    let sampling = Sampling {
        repetition_penalty: 1.3,
        presence_penalty: 0.5,
        frequency_penalty: 0.7,
        temperature: 0.8,
        seed,
        ..Sampling::default()
    };
    Wanted::Token { sampling: Arc::new(sampling), seen: seen.to_vec(), choice }
}

/// One request whose tokens are drawn one by one.
struct Stream {
    set: SetId,
    seed: u64,
    prompt: Vec<u32>,
    drawn: Vec<u32>,
}

impl Stream {
    fn seen(&self) -> Vec<(u32, u32)> {
        let mut times = std::collections::BTreeMap::new();
        self.prompt.iter().for_each(|token| *times.entry(*token).or_insert(0) += 0);
        self.drawn.iter().for_each(|token| *times.entry(*token).or_insert(0) += 1);
        times.into_iter().collect()
    }
}

fn streams(bench: &mut Bench, model: &Model) -> Vec<Stream> {
    let vocab = model.spec.vocab_size as u32;
    let mut random = fastrand::Rng::with_seed(5);
    let mut stream = |length: usize| Stream {
        set: bench.kv.create().unwrap(),
        seed: length as u64,
        prompt: (0..length).map(|_| random.u32(0..vocab)).collect(),
        drawn: Vec::new(),
    };
    vec![stream(3), stream(40), stream(7)]
}

const STEPS: usize = 60;

/// Step after step, every token known before the next plan is made.
fn drawn_plainly(model: &Arc<Model>, tp: usize) -> Vec<Vec<u32>> {
    let mut bench = Bench::ranks(model, Numerics::default(), 3, 3 * 120, tp);
    let mut streams = streams(&mut bench, model);
    for step in 0..STEPS {
        let rows: Vec<(SetId, Vec<u32>, Wanted)> = streams
            .iter()
            .map(|s| {
                let tokens = if step == 0 { s.prompt.clone() } else { vec![s.drawn[step - 1]] };
                (s.set, tokens, drawing(s.seed, &s.seen(), Choice::Free))
            })
            .collect();
        let rows: Vec<_> =
            rows.iter().map(|(set, tokens, wanted)| (*set, &tokens[..], wanted.clone())).collect();
        let plan = bench.plan(&rows);
        let results = bench.backend.step(plan).unwrap().rows;
        streams.iter_mut().zip(results).for_each(|(s, row)| s.drawn.push(row.tokens[0].token));
    }
    streams.into_iter().map(|s| s.drawn).collect()
}

/// Each plan is made and submitted while the one before runs; rows change places from plan to plan.
fn drawn_ahead(model: &Arc<Model>, tp: usize, choice: Choice) -> Vec<Vec<u32>> {
    let mut bench = Bench::ranks(model, Numerics::default(), 3, 3 * 120, tp);
    let mut streams = streams(&mut bench, model);
    let place = |stream: usize, step: usize| (stream + step) % 3;
    for step in 0..=STEPS {
        if step < STEPS {
            let mut order: Vec<&Stream> = streams.iter().collect();
            order.rotate_right(step % 3);
            let rows: Vec<(SetId, Vec<u32>, Wanted)> = order
                .iter()
                .map(|s| {
                    let tokens = if step == 0 { s.prompt.clone() } else { vec![u32::MAX] };
                    (s.set, tokens, drawing(s.seed, &s.seen(), choice))
                })
                .collect();
            let rows: Vec<_> =
                rows.iter().map(|(set, tokens, wanted)| (*set, &tokens[..], wanted.clone())).collect();
            let mut plan = bench.plan(&rows);
            if step > 0 {
                for stream in 0..3 {
                    plan.rows[place(stream, step)].placeholder = Some(place(stream, step - 1));
                }
            }
            bench.backend.submit(plan).unwrap();
        }
        if step > 0 {
            let done = step - 1;
            if choice == Choice::Masked {
                let rows = (0..3).map(|row| (row, TokenMask::all(model.spec.vocab_size))).collect();
                let missing = bench.backend.collect().unwrap_err().to_string();
                assert!(missing.ends_with("has masked rows [0, 1, 2], and masks came for []"), "{missing}");
                bench.backend.supply(StepMasks { number: done as u64, rows }).unwrap();
            }
            let results = bench.backend.collect().unwrap().rows;
            for (stream, s) in streams.iter_mut().enumerate() {
                s.drawn.push(results[place(stream, done)].tokens[0].token);
            }
        }
    }
    streams.into_iter().map(|s| s.drawn).collect()
}

#[test]
fn plans_made_ahead_of_their_tokens_draw_the_same() {
    for (folder, tp) in [("fixtures/tiny-fp8fp4", 1), ("fixtures/tiny-fp8fp4", 2), ("models/dsv4-mini", 4)] {
        let model = open(folder);
        let plainly = drawn_plainly(&model, tp);
        assert!(plainly.iter().all(|tokens| tokens.len() == STEPS));
        for choice in [Choice::Free, Choice::Masked] {
            assert_eq!(drawn_ahead(&model, tp, choice), plainly, "{folder}, {tp} ranks, {choice:?}");
        }
    }
}

#[test]
fn masks_bind_their_rows_and_a_failed_row_fails_what_goes_on_from_it() {
    let model = open("fixtures/tiny-bf16");
    let vocab = model.spec.vocab_size;
    for tp in [1, 2] {
        let mut bench = Bench::ranks(&model, Numerics::default(), 3, 96, tp);
        let sets = [(); 3].map(|()| bench.kv.create().unwrap());
        let drawing =
            |choice| Wanted::Token { sampling: Arc::new(Sampling::greedy()), seen: Vec::new(), choice };
        let first = bench.plan(&[
            (sets[0], &[1, 2, 3], drawing(Choice::Masked)),
            (sets[1], &[4, 5], drawing(Choice::Free)),
            (sets[2], &[6], drawing(Choice::Masked)),
        ]);
        bench.backend.submit(first).unwrap();
        let mut second = bench.plan(&[
            (sets[2], &[u32::MAX], drawing(Choice::Free)),
            (sets[0], &[u32::MAX], drawing(Choice::Free)),
            (sets[1], &[u32::MAX], Wanted::LastLogits),
        ]);
        for (row, named) in [2, 0, 1].into_iter().enumerate() {
            second.rows[row].placeholder = Some(named);
        }
        bench.backend.submit(second).unwrap();
        let mut seven = TokenMask::none(vocab);
        seven.allow(7);
        let rows = vec![(0, TokenMask::none(vocab)), (2, seven)];
        bench.backend.supply(StepMasks { number: 0, rows }).unwrap();
        let first = bench.backend.collect().unwrap().rows;
        let nothing = RowFailure::Sampling(SamplingError::NothingAllowed);
        assert_eq!(first[0], RowResult { failure: Some(nothing), ..RowResult::default() }, "{tp} ranks");
        assert_eq!(first[2].tokens[0].token, 7);
        let second = bench.backend.collect().unwrap().rows;
        let failed = RowResult { failure: Some(RowFailure::NoPlaceholderToken), ..RowResult::default() };
        assert_eq!(second[1], failed, "{tp} ranks");
        assert!(second[0].failure.is_none() && second[2].failure.is_none());
        // The same as with the token known.
        let mut known = Bench::ranks(&model, Numerics::default(), 1, 96, tp);
        let set = known.kv.create().unwrap();
        known.step(&[(set, &[4, 5])], Wanted::Nothing);
        let expected = known.step(&[(set, &[first[1].tokens[0].token])], Wanted::LastLogits);
        assert_eq!(bits(&second[2].logits), bits(&expected[0]), "{tp} ranks");
    }
}

#[test]
fn dropping_a_backend_while_it_computes_ends_it() {
    let model = open("models/dsv4-mini");
    for tp in [1, 2, 4] {
        let mut bench = Bench::ranks(&model, Numerics::default(), 2, 1024, tp);
        for tokens in [300, 400] {
            let set = bench.kv.create().unwrap();
            let plan = bench.plan(&[(set, &vec![5; tokens], Wanted::LastLogits)]);
            bench.backend.submit(plan).unwrap();
        }
    }
}
