//! Several ranks against one: logits within the rounding of sums made in another order, the same likeliest tokens.

use crate::{Bench, Fixture, Setup, Subject, assert_near, bits, open};
use overshot_backend::{Numerics, Wanted};
use overshot_kv::SetId;

pub fn two_ranks_give_the_fixtures_of_one(subject: &impl Subject) {
    for folder in Fixture::MODELS {
        let fixture = Fixture::load(folder);
        for (label, case) in &fixture.cases {
            let (prompt, then) = (case.ids("input_ids"), case.ids("greedy.tokens"));
            if prompt.len() > subject.extent().choose(usize::MAX, 5) {
                continue;
            }
            let [alone, shared] = [1, 2].map(|tp| {
                let setup = Setup::new(Numerics::EXACT, 1, prompt.len() + then.len()).ranks(tp);
                let mut bench = Bench::start(subject, &fixture.model, setup);
                let set = bench.kv.create().unwrap();
                let mut logits = bench.feed(set, &prompt, &[64, 1, 200]);
                logits.extend(bench.feed(set, &then, &[1]));
                logits
            });
            assert_near(&fixture.model, &shared, &alone, label);
        }
    }
}

/// Sums over ranks change nothing about a row's independence of its batch.
pub fn rows_of_two_ranks_stand_alone(subject: &impl Subject) {
    let model = open("fixtures/tiny-fp8fp4");
    let mut random = fastrand::Rng::with_seed(11);
    let (rows, longer_by) = subject.extent().choose((5, 30), (2, 5));
    let first = subject.extent().choose(20, 6);
    let prompts: Vec<Vec<u32>> = (0..rows)
        .map(|i| (0..first + longer_by * i).map(|_| random.u32(0..model.spec.vocab_size as u32)).collect())
        .collect();
    let start =
        |sets, tokens| Bench::start(subject, &model, Setup::new(Numerics::default(), sets, tokens).ranks(2));
    let alone = prompts.iter().map(|prompt| bits(&start(1, prompt.len()).feed_new(prompt, &[usize::MAX])));
    let mut bench = start(prompts.len(), 500);
    let sets: Vec<SetId> = prompts.iter().map(|_| bench.kv.create().unwrap()).collect();
    let rows: Vec<(SetId, &[u32])> = sets.iter().copied().zip(prompts.iter().map(Vec::as_slice)).collect();
    let batched = bench.step(&rows, Wanted::AllLogits);
    assert!(batched.iter().map(|row| bits(row)).eq(alone));
}
