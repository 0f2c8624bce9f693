//! What plans can say about a step that still runs: placeholders, masks that come late, rows that fail.

use crate::{Bench, Setup, Subject, bits, open};
use overshot_backend::{
    Backend, Choice, Numerics, RowFailure, RowResult, Sampling, SamplingError, StepMasks, TokenMask, Wanted,
};
use overshot_kv::SetId;
use overshot_model::Model;
use std::sync::Arc;

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

fn streams<B: Backend>(bench: &mut Bench<B>, model: &Model) -> Vec<Stream> {
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

/// Step after step, every token known before the next plan is made.
///
/// Three requests, of up to 40 tokens.
pub fn drawn_plainly(
    subject: &impl Subject,
    model: &Arc<Model>,
    setup: Setup,
    steps: usize,
) -> Vec<Vec<u32>> {
    let mut bench = Bench::start(subject, model, setup);
    let mut streams = streams(&mut bench, model);
    for step in 0..steps {
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
fn drawn_ahead(
    subject: &impl Subject,
    model: &Arc<Model>,
    setup: Setup,
    steps: usize,
    choice: Choice,
) -> Vec<Vec<u32>> {
    let mut bench = Bench::start(subject, model, setup);
    let mut streams = streams(&mut bench, model);
    let place = |stream: usize, step: usize| (stream + step) % 3;
    for step in 0..=steps {
        if step < steps {
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

/// Drawn ahead, masked or not, the tokens are those drawn one by one.
pub fn plans_made_ahead_of_their_tokens_draw_the_same(subject: &impl Subject, folder: &str, tp: usize) {
    let model = open(folder);
    let steps = subject.extent().choose(60, 5);
    let setup = Setup::new(Numerics::default(), 3, 3 * 120).ranks(tp);
    let plainly = drawn_plainly(subject, &model, setup, steps);
    assert!(plainly.iter().all(|tokens| tokens.len() == steps));
    for choice in [Choice::Free, Choice::Masked] {
        let ahead = drawn_ahead(subject, &model, setup, steps, choice);
        assert_eq!(ahead, plainly, "{folder}, {tp} ranks, {choice:?}");
    }
}

pub fn masks_bind_their_rows_and_a_failed_row_fails_what_goes_on_from_it(subject: &impl Subject) {
    let model = open("fixtures/tiny-bf16");
    let vocab = model.spec.vocab_size;
    for tp in [1, 2] {
        let mut bench = Bench::start(subject, &model, Setup::new(Numerics::default(), 3, 96).ranks(tp));
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
        let mut known = Bench::start(subject, &model, Setup::new(Numerics::default(), 1, 96).ranks(tp));
        let set = known.kv.create().unwrap();
        known.step(&[(set, &[4, 5])], Wanted::Nothing);
        let expected = known.step(&[(set, &[first[1].tokens[0].token])], Wanted::LastLogits);
        assert_eq!(bits(&second[2].logits), bits(&expected[0]), "{tp} ranks");
    }
}
