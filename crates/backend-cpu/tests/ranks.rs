//! Several ranks of a CPU: they choose as one does, continue prompts as one does, are refused and end as they should.
#![allow(clippy::unwrap_used)]

mod common;

use common::Cpu;
use overshot_backend::{Backend, Numerics, Wanted};
use overshot_backend_cpu::{Capture, CpuBackend, CpuOptions, Isa};
use overshot_conformance::{Bench, Fixture, Prompt, Setup, argmax, assert_near, open};
use overshot_kv::PoolCapacity;
use overshot_model::Model;
use std::sync::Arc;

/// What a run gives: logits of every position, and the tokens that it would have drawn at each.
struct Run {
    logits: Vec<f32>,
    capture: Capture,
}

/// A prompt in chunks, then tokens one by one.
fn run(model: &Arc<Model>, numerics: Numerics, tp: usize, prompt: &[u32], then: &[u32]) -> Run {
    let setup = Setup::new(numerics, 1, prompt.len() + then.len()).ranks(tp);
    let mut bench = Bench::start(&Cpu::fast(), model, setup);
    let set = bench.kv.create().unwrap();
    bench.backend.start_capture();
    let mut logits = bench.feed(set, prompt, &[64, 1, 200]);
    logits.extend(bench.feed(set, then, &[1]));
    Run { logits, capture: bench.backend.take_capture() }
}

/// Experts and entries are chosen from the same numbers, to the last of them.
#[test]
fn two_ranks_make_the_choices_of_one() {
    for folder in Fixture::MODELS {
        let fixture = Fixture::load(folder);
        for (label, case) in &fixture.cases {
            let (prompt, then) = (case.ids("input_ids"), case.ids("greedy.tokens"));
            let [alone, shared] =
                [1, 2].map(|tp| run(&fixture.model, Numerics::EXACT, tp, &prompt, &then).capture);
            for layer in 0..fixture.model.spec.layers.len() {
                for what in ["experts", "index_selected"] {
                    let name = format!("layers.{layer}.{what}");
                    assert_eq!(shared.get(&name), alone.get(&name), "{label}: {name}");
                }
            }
        }
    }
}

/// Prompts of the small model with at least so many tokens, the shortest first.
fn mini_prompts(shortest: usize, count: usize) -> Vec<Prompt> {
    let mut prompts = Prompt::all();
    prompts.retain(|prompt| prompt.prompt.len() >= shortest);
    prompts.sort_by_key(|prompt| prompt.prompt.len());
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
        for Prompt { prompt, greedy: then, .. } in prompts {
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

#[test]
fn a_model_that_does_not_divide_is_refused_with_the_flag() {
    let model = open("fixtures/tiny-bf16");
    let capacity = PoolCapacity::for_sets(1, 1);
    let start = |tp| {
        let numerics = Numerics::default();
        CpuBackend::new(
            model.clone(),
            CpuOptions { numerics, capacity, tp, threads: Some(4), isa: Isa::Scalar, rehearsal: None },
        )
    };
    let told = |tp| start(tp).err().unwrap().to_string();
    assert_eq!(told(4), "--tp 4: 4 ranks cannot share this model's 2 o_groups evenly, use --tp 2");
    assert_eq!(told(0), "--tp 0: there can be 1, 2 or 4 ranks");
    assert_eq!(start(1).unwrap().name(), "cpu (scalar, 4 threads)");
    assert_eq!(start(2).unwrap().name(), "cpu (scalar, 2 ranks x 2 threads)");
}

#[test]
fn dropping_a_backend_while_it_computes_ends_it() {
    let model = open("models/dsv4-mini");
    for tp in [1, 2, 4] {
        let mut bench =
            Bench::start(&Cpu::fast(), &model, Setup::new(Numerics::default(), 2, 1024).ranks(tp));
        for tokens in [300, 400] {
            let set = bench.kv.create().unwrap();
            let plan = bench.plan(&[(set, &vec![5; tokens], Wanted::LastLogits)]);
            bench.backend.submit(plan).unwrap();
        }
    }
}
