//! Structured answers of a model with random weights at temperature 1, through the real engine: every answer that its
//! grammar finished is valid, every one that a limit cut is the beginning of a valid one. Both step loops draw
//! the same tokens.
#![allow(clippy::unwrap_used)]

mod common;

use common::schemas::schemas;
use common::validator::is_valid;
use common::{BYTES, grammars, is_prefix, of_form, repository};
use fastrand::Rng;
use overshot_backend::{Numerics, Sampling};
use overshot_backend_cpu::{CpuBackend, CpuOptions, Isa};
use overshot_chat::{Special, Start};
use overshot_engine::{Engine, Event, Failure, Finish, Limits, Request, RequestId, StepLoop};
use overshot_grammar::{Form, Grammar};
use overshot_kv::PoolCapacity;
use overshot_model::Model;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

const MOST_TOKENS: usize = 48;
const TOGETHER: usize = 24;

/// Runs of a schema with a seed. The project promises 500, which a soak runs at least; here is a share of them.
fn runs() -> usize {
    overshot_testing::asked_cases().map_or(120, |cases| (cases / 100).max(500))
}

static MODEL: LazyLock<Arc<Model>> =
    LazyLock::new(|| Arc::new(Model::open(repository().join("fixtures/tiny-bf16")).unwrap()));

fn engine(step_loop: StepLoop, tp: usize) -> Engine {
    let capacity = PoolCapacity::for_sets(TOGETHER, 128);
    let options = CpuOptions {
        numerics: Numerics::default(),
        capacity,
        tp,
        threads: Some(2),
        isa: Isa::detect(),
        rehearsal: None,
    };
    let backend = CpuBackend::new(MODEL.clone(), options).unwrap();
    Engine::new(Box::new(backend), Limits::for_batch(TOGETHER, 64), step_loop).unwrap()
}

/// One answer to be made.
struct Run {
    grammar: Grammar,
    schema: Value,
    start: Start,
    seed: u64,
}

impl Run {
    fn request(&self) -> Request {
        let mut rng = Rng::with_seed(self.seed);
        let end = BYTES.end_of_sentence();
        Request {
            sampling: Sampling { temperature: 1.0, seed: self.seed, ..Sampling::default() },
            max_new_tokens: MOST_TOKENS,
            stop_tokens: vec![end],
            constraint: Some(self.grammar.constraint(self.start, &[])),
            ..Request::new((0..rng.usize(1..12)).map(|_| rng.u32(7..250)).collect())
        }
    }
}

fn cases(count: usize, first_seed: u64) -> Vec<Run> {
    let grammars = grammars(&BYTES);
    let compiled: Vec<(Grammar, Value)> = schemas()
        .into_iter()
        .map(|schema| {
            (grammars.compile(&of_form(Form::JsonSchema(schema.clone()))).unwrap().unwrap(), schema)
        })
        .collect();
    let case = |index: usize| {
        let (grammar, schema) = compiled[index % compiled.len()].clone();
        Run { grammar, schema, start: Start::Content, seed: first_seed.wrapping_add(index as u64) }
    };
    (0..count).map(case).collect()
}

/// The tokens of each, in order, with its end.
fn answer(engine: &mut Engine, runs: &[Run]) -> Vec<(Vec<u32>, Finish)> {
    let ids: Vec<RequestId> = runs.iter().map(|run| engine.submit(run.request()).unwrap()).collect();
    let mut tokens: BTreeMap<RequestId, Vec<u32>> = BTreeMap::new();
    let mut ends: BTreeMap<RequestId, Finish> = BTreeMap::new();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            match event {
                Event::Token { id, sampled } => tokens.entry(id).or_default().push(sampled.token),
                Event::Finished { id, reason, .. } => drop(ends.insert(id, reason)),
                Event::PrefillProgress { .. } => {}
            }
        }
    }
    ids.iter().map(|id| (tokens.remove(id).unwrap_or_default(), ends.remove(id).unwrap())).collect()
}

#[test]
fn every_finished_answer_is_valid_and_every_cut_one_a_valid_beginning() {
    let first_seed = overshot_testing::seed();
    let runs = cases(runs(), first_seed);
    let mut engine = engine(StepLoop::Overlapped, 1);
    let (mut finished, mut cut) = (0, 0);
    for (run, (mut tokens, end)) in runs.iter().zip(answer(&mut engine, &runs)) {
        let seed = run.seed;
        match end {
            Finish::Stop(token) => {
                assert_eq!(tokens.pop(), Some(token), "seed {seed}");
                let bytes: Vec<u8> =
                    tokens.iter().flat_map(|token| BYTES.bytes_of(*token)).copied().collect();
                let text = String::from_utf8(bytes).unwrap();
                let value: Value = serde_json::from_str(&text)
                    .unwrap_or_else(|error| panic!("seed {seed}: {text:?} is no JSON: {error}"));
                assert!(
                    is_valid(&value, &run.schema, &run.schema),
                    "seed {seed}: {text} against {}",
                    run.schema
                );
                finished += 1;
            }
            Finish::Length => {
                assert_eq!(tokens.len(), MOST_TOKENS, "seed {seed}");
                cut += 1;
            }
            other => panic!("seed {seed} ended as {other:?}"),
        }
        assert!(is_prefix(&run.grammar, run.start, &tokens), "seed {seed}: {tokens:?}");
    }
    println!("{finished} answers finished, {cut} were cut");
    assert!(finished > runs.len() / 4 && cut > runs.len() / 20);
    assert_eq!(engine.kv().free_pages(overshot_kv::Pool::Window), TOGETHER);
}

/// Two ranks sum in another order than one, and a draw at temperature 1 may fall between the two sums.
#[test]
fn both_loops_draw_the_same_tokens_with_two_ranks_too() {
    let first_seed = overshot_testing::seed();
    let runs = cases(24, first_seed);
    let [alone, shared] = [1, 2].map(|tp| {
        let plain = answer(&mut engine(StepLoop::Plain, tp), &runs);
        assert!(plain == answer(&mut engine(StepLoop::Overlapped, tp), &runs), "{tp} ranks");
        plain
    });
    let same = alone.iter().zip(&shared).filter(|(one, other)| one == other).count();
    println!("{same} of {} answers are the same with 1 rank and with 2", runs.len());
    assert!(same > runs.len() / 2);
}

#[test]
fn thinking_is_free_and_then_the_grammar_holds() {
    let mut runs = cases(24, 1);
    runs.iter_mut().for_each(|run| run.start = Start::Reasoning);
    let close = BYTES.special_id(Special::ThinkClose).unwrap();
    let mut behind = 0;
    for (run, (tokens, end)) in runs.iter().zip(answer(&mut engine(StepLoop::Overlapped, 1), &runs)) {
        assert!(is_prefix(&run.grammar, run.start, tokens.strip_suffix(&[1]).unwrap_or(&tokens)));
        let thinks_to_the_end = !tokens.contains(&close);
        assert!(!thinks_to_the_end || end == Finish::Length, "an end without an answer");
        behind += usize::from(!thinks_to_the_end);
    }
    println!("{behind} of {} answers came past their thinking", runs.len());
}

/// A grammar whose first masks are cheap and later ones are not, under the smallest budget that the first ones fit in.
fn costly_grammar() -> Grammar {
    let form = of_form(Form::Pattern("[ab]{4}(.*[cd]){20}".into()));
    let budgets = (4..).map(|power| 1 << power);
    let grammar = |mask_fuel: u64| {
        let limits = overshot_grammar::Limits { mask_fuel, ..overshot_grammar::Limits::default() };
        let grammars = overshot_grammar::Grammars::new(&BYTES, BYTES.vocabulary_size(), limits).unwrap();
        grammars.compile(&form).ok().flatten()
    };
    budgets.take(16).find_map(grammar).unwrap()
}

#[test]
fn a_grammar_that_costs_too_much_ends_its_own_answer_alone() {
    let mut runs = cases(12, 5);
    runs.push(Run { grammar: costly_grammar(), schema: Value::Null, start: Start::Content, seed: 1 });
    let mut engine = engine(StepLoop::Overlapped, 1);
    let mut ends: Vec<Finish> = answer(&mut engine, &runs).into_iter().map(|(_, end)| end).collect();
    let costly = ends.pop().unwrap();
    println!("{costly:?}");
    assert!(matches!(costly, Finish::Failed(Failure::Constraint { .. })), "{costly:?}");
    assert!(ends.iter().all(|end| !matches!(end, Finish::Failed(_))), "{ends:?}");
}
