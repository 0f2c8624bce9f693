//! Many requests at once over the CPU backend: each gets the tokens that it gets alone, whatever runs beside it,
//! however steps are cut, with either loop, preempted or not, on one rank or two.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions only, not in what they call

use overshot_backend::Numerics;
use overshot_backend_cpu::{CpuBackend, CpuOptions, Isa};
use overshot_engine::{Engine, Event, Finish, Limits, Request, RequestId, StepLoop};
use overshot_kv::{Pool, PoolCapacity};
use overshot_model::Model;
use overshot_testing::cases;
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A prompt and how it goes on: as many tokens as anybody will ask for, or up to its stop token.
struct Task {
    prompt: Vec<u32>,
    answer: Vec<u32>,
    stop_tokens: Vec<u32>,
}

/// How a batch of requests is run.
#[derive(Clone, Copy, Debug)]
struct Setting {
    streams: usize,
    chunk_tokens: usize,
    step_loop: StepLoop,
    tp: usize,
    /// Requests that the cache can hold at the same time, whatever their lengths.
    sets: usize,
    /// Positions that the cache holds over all of them, beside a page for each.
    cache_tokens: usize,
}

fn engine(model: &Arc<Model>, setting: Setting) -> Engine {
    let capacity = PoolCapacity::for_sets(setting.sets, setting.cache_tokens);
    let options = CpuOptions {
        numerics: Numerics::default(),
        capacity,
        threads: None,
        isa: Isa::detect(),
        tp: setting.tp,
        rehearsal: None,
    };
    let limits = Limits::for_batch(setting.streams, setting.chunk_tokens);
    Engine::new(Box::new(CpuBackend::new(model.clone(), options).unwrap()), limits, setting.step_loop)
        .unwrap()
}

fn request(task: &Task, max_new_tokens: usize) -> Request {
    Request { max_new_tokens, stop_tokens: task.stop_tokens.clone(), ..Request::new(task.prompt.clone()) }
}

/// Runs a prompt alone, as plainly as can be. Ranks add up in another order than one alone, so that a near tie may
/// fall the other way: a solo run has the ranks of those that it is compared with.
fn solo(model: &Arc<Model>, tp: usize, prompt: Vec<u32>, new_tokens: usize, stop_tokens: Vec<u32>) -> Task {
    let mut task = Task { prompt, answer: Vec::new(), stop_tokens };
    let cache_tokens = task.prompt.len() + new_tokens;
    let setting =
        Setting { streams: 1, chunk_tokens: 256, step_loop: StepLoop::Plain, tp, sets: 1, cache_tokens };
    let mut engine = engine(model, setting);
    engine.submit(request(&task, new_tokens)).unwrap();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Token { sampled, .. } = event {
                task.answer.push(sampled.token);
            }
        }
    }
    task
}

struct Stream<'a> {
    task: &'a Task,
    max_new_tokens: usize,
    drawn: Vec<u32>,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    finished: usize,
    cancelled: usize,
    preemptions: u64,
}

/// Keeps `setting.streams` requests going until `count` have been asked for; in about one of `steps_a_cancel` steps one
/// is cancelled.
fn run(
    model: &Arc<Model>,
    tasks: &[Task],
    setting: Setting,
    count: usize,
    steps_a_cancel: Option<usize>,
    random: &mut fastrand::Rng,
) -> Tally {
    let mut engine = engine(model, setting);
    let mut streams: HashMap<RequestId, Stream> = HashMap::new();
    let (mut asked, mut tally) = (0, Tally::default());
    while asked < count || !engine.is_idle() {
        while asked < count && streams.len() < setting.streams && (streams.is_empty() || random.u8(0..4) > 0)
        {
            let task = random.choice(tasks).unwrap();
            let max_new_tokens =
                if random.bool() { task.answer.len() } else { 1 + random.usize(0..task.answer.len()) };
            let id = engine.submit(request(task, max_new_tokens)).unwrap();
            streams.insert(id, Stream { task, max_new_tokens, drawn: Vec::new() });
            asked += 1;
        }
        for event in engine.step().unwrap() {
            take(event, &mut streams, &mut tally);
        }
        if steps_a_cancel.is_some_and(|steps| random.usize(0..steps) == 0)
            && let Some(id) = random.choice(streams.keys()).copied()
            && let Some(event) = engine.cancel(id)
        {
            take(event, &mut streams, &mut tally);
        }
    }
    assert!(streams.is_empty());
    assert_eq!(engine.kv().check(), Vec::<String>::new());
    for pool in Pool::ALL {
        assert_eq!(engine.kv().free_pages(pool), engine.backend().capacity().pages(pool), "{pool:?}");
    }
    tally.preemptions = engine.counters().preemptions;
    tally
}

fn take(event: Event, streams: &mut HashMap<RequestId, Stream>, tally: &mut Tally) {
    match event {
        Event::PrefillProgress { .. } => {}
        Event::Token { id, sampled } => streams.get_mut(&id).unwrap().drawn.push(sampled.token),
        Event::Finished { id, reason, .. } => {
            let Stream { task, max_new_tokens, drawn } = streams.remove(&id).unwrap();
            assert_eq!(drawn, task.answer[..drawn.len()], "{id} differs from its solo run");
            match reason {
                Finish::Cancelled => tally.cancelled += 1,
                Finish::Stop(_) | Finish::Length => {
                    assert_eq!(drawn.len(), max_new_tokens, "{id} ended early");
                    tally.finished += 1;
                }
                Finish::Failed(failure) => panic!("{id}: {failure}"),
            }
        }
    }
}

fn random_setting(random: &mut fastrand::Rng, longest: usize) -> Setting {
    let streams = *random.choice(&[1, 2, 5, 16, 64]).unwrap();
    // Barely one long request beside a few short ones, or enough for all.
    let is_tight = random.bool();
    let (sets, cache_tokens) = if is_tight { (streams.min(3), longest) } else { (streams, 3 * longest) };
    Setting {
        streams,
        chunk_tokens: *random.choice(&[1, 3, 7, 64, 512]).unwrap(),
        step_loop: *random.choice(&[StepLoop::Plain, StepLoop::Overlapped]).unwrap(),
        tp: *random.choice(&[1, 2]).unwrap(),
        sets,
        cache_tokens,
    }
}

#[test]
fn random_schedules_on_the_fixtures() {
    let mut random = overshot_testing::rng();
    for fixture in ["fixtures/tiny-fp8fp4", "fixtures/tiny-bf16"] {
        let model = Arc::new(Model::open(repository().join(fixture)).unwrap());
        let vocab_size = model.spec.vocab_size as u32;
        // The last outgrows its first page.
        let lengths = [(1, 60), (2, 70), (9, 70), (40, 70), (127, 70), (128, 70), (200, 70), (30, 250)];
        let prompts = lengths.map(|(length, new_tokens)| {
            let prompt: Vec<u32> = (0..length).map(|_| random.u32(0..vocab_size)).collect();
            (prompt, new_tokens)
        });
        let tasks_of = |tp| {
            let task = |(prompt, new_tokens): &(Vec<u32>, usize)| {
                solo(&model, tp, prompt.clone(), *new_tokens, Vec::new())
            };
            prompts.iter().map(task).collect::<Vec<Task>>()
        };
        let tasks = [tasks_of(1), tasks_of(2)];
        let mut total = Tally::default();
        for _ in 0..cases(6).min(2_000) {
            let setting = random_setting(&mut random, 280);
            let count = random.usize(1..=setting.streams.max(8));
            let tally = run(&model, &tasks[setting.tp - 1], setting, count, Some(150), &mut random);
            total.finished += tally.finished;
            total.cancelled += tally.cancelled;
            total.preemptions += tally.preemptions;
        }
        println!("{fixture}: {total:?}");
        assert!(total.finished > 10, "too tame a test: {total:?}");
    }
}

/// Three requests that come to three pages each, where six pages are: some give way, and nobody sees it.
#[test]
fn preempted_requests_go_on_as_if_nothing_had_been() {
    let mut random = fastrand::Rng::with_seed(7);
    let model = Arc::new(Model::open(repository().join("models/dsv4-mini")).unwrap());
    let prompt = (0..240).map(|_| random.u32(0..model.spec.vocab_size as u32)).collect();
    let tasks = [solo(&model, 1, prompt, 290, Vec::new())];
    for step_loop in [StepLoop::Plain, StepLoop::Overlapped] {
        let setting = Setting { streams: 3, chunk_tokens: 100, step_loop, tp: 1, sets: 3, cache_tokens: 600 };
        let mut tally = Tally::default();
        // Whether all three run to their ends is drawn.
        while tally.preemptions == 0 {
            tally = run(&model, &tasks, setting, 3, None, &mut random);
            assert_eq!(tally.finished, 3);
        }
    }
}

/// Copying, looking up and calling tools with the small trained model: what breaks first when state gets mixed up.
#[test]
fn the_small_model_answers_each_of_many_as_alone() {
    let mut random = overshot_testing::rng();
    let folder = repository().join("models/dsv4-mini");
    let model = Arc::new(Model::open(&folder).unwrap());
    let is_long_run = overshot_testing::asked_cases().is_some();
    let kinds: &[&str] = match is_long_run {
        true => &["copy", "longcopy", "kv@256", "tool-call", "tool-answer"],
        false => &["copy", "kv@256", "tool-call"],
    };
    let text = std::fs::read_to_string(folder.join("prompts.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let prompts: Vec<Vec<u32>> = lines
        .filter(|line| kinds.contains(&line["kind"].as_str().unwrap()))
        .take(if is_long_run { usize::MAX } else { 3 })
        .map(|line| {
            line["prompt_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
        })
        .collect();
    let tasks_of = |tp| {
        let task = |prompt: &Vec<u32>| solo(&model, tp, prompt.clone(), 150, vec![model.spec.eos_token]);
        prompts.iter().map(task).collect::<Vec<Task>>()
    };
    let tasks = [tasks_of(1), tasks_of(2)];
    for (one, two) in tasks[0].iter().zip(&tasks[1]) {
        assert_eq!(one.answer, two.answer, "a trained model's answers leave no near ties to ranks");
    }
    let streams = if is_long_run { &[1, 8, 32, 64][..] } else { &[8][..] };
    let requests = cases(16).min(5_000);
    let longest = tasks[0].iter().map(|task| task.prompt.len() + task.answer.len()).max().unwrap();
    let mut finished = 0;
    for (index, &streams) in streams.iter().enumerate() {
        for (half, step_loop) in [StepLoop::Plain, StepLoop::Overlapped].into_iter().enumerate() {
            let setting = Setting {
                streams,
                chunk_tokens: *random.choice(&[64, 256, 512]).unwrap(),
                step_loop,
                tp: 1 + (index + half) % 2,
                sets: streams,
                cache_tokens: longest * streams.div_ceil(2),
            };
            let count = requests.div_ceil(2 * if is_long_run { 4 } else { 1 });
            let tally = run(&model, &tasks[setting.tp - 1], setting, count, None, &mut random);
            println!("{setting:?}: {tally:?}");
            finished += tally.finished;
        }
    }
    assert!(finished >= requests, "{finished} of {requests}");
}
