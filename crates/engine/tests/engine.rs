//! The engine through its public door, over a device that notices every wrong page. `schedules.rs` has the random
//! mixtures.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions only, not in what they call

mod sim;

use overshot_backend::{Family, Sampling, SamplingError, Timing};
use overshot_engine::{
    Engine, EngineError, Event, Failure, Finish, Limits, Refused, Request, RequestId, StepLoop, Usage,
};
use overshot_kv::{Pool, PoolCapacity};
use sim::device::{Device, Fault, Latency};
use sim::model::Oracle;

fn engine(sets: usize, tokens: usize, limits: Limits) -> Engine {
    Engine::new(Device::new(PoolCapacity::for_sets(sets, tokens), 5000, Fault::None), limits, StepLoop::Plain)
        .unwrap()
}

fn faulty(fault: Fault) -> Engine {
    Engine::new(Device::new(PoolCapacity::for_sets(4, 2048), 5000, fault), Limits::default(), StepLoop::Plain)
        .unwrap()
}

fn request(prompt: &[u32], max_new_tokens: usize) -> Request {
    Request { max_new_tokens, ..Request::new(prompt.to_vec()) }
}

fn run_until_idle(engine: &mut Engine) -> Vec<Event> {
    let mut events = Vec::new();
    for _ in 0..10_000 {
        if engine.is_idle() {
            return events;
        }
        events.extend(engine.step().unwrap());
    }
    panic!("not idle after 10,000 steps");
}

fn tokens_of(events: &[Event], wanted: RequestId) -> Vec<u32> {
    let token = |event: &Event| match event {
        Event::Token { id, sampled } if *id == wanted => Some(sampled.token),
        _ => None,
    };
    events.iter().filter_map(token).collect()
}

fn end_of(events: &[Event], wanted: RequestId) -> Option<(Finish, Usage)> {
    events.iter().find_map(|event| match event {
        Event::Finished { id, reason, usage } if *id == wanted => Some((reason.clone(), *usage)),
        _ => None,
    })
}

fn assert_all_free(engine: &Engine) {
    assert_eq!(engine.kv().check(), Vec::<String>::new());
    let capacity = engine.backend().capacity();
    for pool in Pool::ALL {
        assert_eq!(engine.kv().free_pages(pool), capacity.pages(pool), "{pool:?}");
    }
}

#[test]
fn the_events_of_one_request_tell_its_whole_course() {
    let mut engine = engine(1, 256, Limits { chunk_tokens: 4, ..Limits::default() });
    let prompt: Vec<u32> = (0..10).collect();
    let id = engine.submit(request(&prompt, 3)).unwrap();
    let events = run_until_idle(&mut engine);
    let kinds: Vec<String> = events
        .iter()
        .map(|event| match event {
            Event::PrefillProgress { done, total, .. } => format!("{done}/{total}"),
            Event::Token { .. } => "token".into(),
            Event::Finished { reason, .. } => format!("{reason:?}"),
        })
        .collect();
    assert_eq!(kinds, ["4/10", "8/10", "10/10", "token", "token", "token", "Length"]);
    assert_eq!(tokens_of(&events, id), Oracle::continues(&prompt, &Sampling::greedy(), 3));
    assert_eq!(end_of(&events, id).unwrap().1, Usage { prompt_tokens: 10, generated_tokens: 3 });
    assert_all_free(&engine);
}

#[test]
fn a_stop_token_is_delivered_and_ends_the_request() {
    let prompt = [3, 1, 4];
    let expected = Oracle::continues(&prompt, &Sampling::greedy(), 20);
    let stop = expected[7];
    let first = expected.iter().position(|token| *token == stop).unwrap();
    let mut engine = engine(1, 256, Limits::default());
    let id = engine.submit(Request { stop_tokens: vec![99, stop], ..request(&prompt, 100) }).unwrap();
    let events = run_until_idle(&mut engine);
    assert_eq!(tokens_of(&events, id), expected[..=first]);
    assert_eq!(end_of(&events, id).unwrap().0, Finish::Stop(stop));
    assert_all_free(&engine);
}

#[test]
fn the_end_of_context_or_cache_is_a_matter_of_length() {
    let prompt = vec![5; 100];
    for (capacity, max_positions, positions) in [
        (PoolCapacity::for_sets(1, 0), 5000, 256),
        (PoolCapacity::for_sets(4, 2048), 120, 120),
        (PoolCapacity::for_sets(4, 2048), 100, 100),
    ] {
        let mut engine = Engine::new(
            Device::new(capacity, max_positions, Fault::None),
            Limits::default(),
            StepLoop::Plain,
        )
        .unwrap();
        let id = engine.submit(request(&prompt, usize::MAX)).unwrap();
        let events = run_until_idle(&mut engine);
        let (reason, usage) = end_of(&events, id).unwrap();
        // The last token drawn needs no position.
        assert_eq!((reason, usage.generated_tokens), (Finish::Length, positions - 100 + 1));
        assert_all_free(&engine);
    }
}

#[test]
fn requests_that_do_not_fit_together_run_one_after_the_other() {
    let mut engine = engine(2, 256, Limits::default());
    let prompts: Vec<Vec<u32>> = (0..4).map(|n| vec![n; 500]).collect();
    let ids: Vec<_> = prompts.iter().map(|prompt| engine.submit(request(prompt, 30)).unwrap()).collect();
    let mut events = engine.step().unwrap();
    assert_eq!((engine.running_requests(), engine.waiting_requests()), (1, 3));
    events.extend(run_until_idle(&mut engine));
    for (id, prompt) in ids.into_iter().zip(&prompts) {
        assert_eq!(tokens_of(&events, id), Oracle::continues(prompt, &Sampling::greedy(), 30));
    }
    assert_all_free(&engine);
}

#[test]
fn cancelling_frees_at_once_whatever_the_request_was_doing() {
    let mut engine = engine(4, 2048, Limits { chunk_tokens: 300, running_requests: 2, ..Limits::default() });
    let decoding = engine.submit(request(&[1, 2, 3], 500)).unwrap();
    let reading = engine.submit(request(&[7; 900], 5)).unwrap();
    let queued = engine.submit(request(&[8; 20], 5)).unwrap();
    let events = [engine.step().unwrap(), engine.step().unwrap()].concat();
    assert_eq!(tokens_of(&events, decoding).len(), 2);
    for (id, prompt_tokens, generated_tokens) in [(queued, 20, 0), (reading, 900, 0), (decoding, 3, 2)] {
        let usage = Usage { prompt_tokens, generated_tokens };
        assert_eq!(engine.cancel(id), Some(Event::Finished { id, reason: Finish::Cancelled, usage }));
        assert_eq!(engine.cancel(id), None);
    }
    assert!(engine.is_idle());
    assert_all_free(&engine);
    assert_eq!(engine.step().unwrap(), []);
}

#[test]
fn what_can_never_run_is_refused_with_the_numbers() {
    let limits = Limits { waiting_requests: 1, running_requests: 1, stop_tokens: 1, ..Limits::default() };
    let mut small = engine(2, 600, limits);
    let refusal = |engine: &mut Engine, request| engine.submit(request).unwrap_err().to_string();
    for (request, sentence) in [
        (request(&[], 1), "the prompt is empty: at least one token is needed"),
        (request(&[1; 5001], 1), "the prompt has 5001 tokens: the model's context holds 5000"),
        (
            request(&[1; 1281], 1),
            "the prompt has 1281 tokens: the cache holds 1280 when nothing else is in it",
        ),
        (request(&[1, 61], 1), "token 61 of the prompt, at index 1, is outside the vocabulary of 61 tokens"),
        (request(&[1], 0), "max_new_tokens is 0: ask for at least 1"),
        (
            Request { stop_tokens: vec![1, 2], ..request(&[1], 1) },
            "2 stop tokens are given: at most 1 are possible",
        ),
    ] {
        assert_eq!(refusal(&mut small, request), sentence);
    }
    let sampling = Sampling { top_p: 0.0, ..Sampling::default() };
    assert!(matches!(
        small.submit(Request { sampling, ..request(&[1], 1) }),
        Err(Refused::Sampling(SamplingError::OutOfRange { parameter: "top_p", .. }))
    ));
    small.submit(request(&[1; 1280], 1)).unwrap();
    small.submit(request(&[1], 1)).unwrap();
    assert_eq!(
        refusal(&mut small, request(&[1], 1)),
        "2 requests are waiting already, which is the limit: try again later"
    );
    run_until_idle(&mut small);
    assert_all_free(&small);
}

#[test]
fn limits_under_which_nothing_runs_are_refused() {
    let new = |limits| {
        Engine::new(Device::new(PoolCapacity::for_sets(1, 1), 10, Fault::None), limits, StepLoop::Plain)
            .err()
            .map(|error| error.to_string())
    };
    let zero = Some("the limit chunk_tokens is 0: use at least 1".to_string());
    assert_eq!(new(Limits { chunk_tokens: 0, ..Limits::default() }), zero);
    let small = "the limit step_tokens is 8: use at least 64, one for each of running_requests".to_string();
    assert_eq!(new(Limits { step_tokens: 8, ..Limits::default() }), Some(small));
}

#[test]
fn a_refused_plan_fails_its_requests_and_nobody_else() {
    let mut engine = faulty(Fault::RefusesPlan(2));
    let hit = engine.submit(request(&[1, 2], 10)).unwrap();
    let mut events = [engine.step().unwrap(), engine.step().unwrap(), engine.step().unwrap()].concat();
    let (reason, usage) = end_of(&events, hit).unwrap();
    let what = "step plan 2: refused on purpose".to_string();
    assert_eq!(reason, Finish::Failed(Failure::StepRefused { what }));
    assert_eq!(usage.generated_tokens, 2);
    assert_all_free(&engine);
    let later = engine.submit(request(&[1, 2], 10)).unwrap();
    events.extend(run_until_idle(&mut engine));
    assert_eq!(tokens_of(&events, later), Oracle::continues(&[1, 2], &Sampling::greedy(), 10));
}

/// The step that a refused plan follows may have been a request's last.
#[test]
fn a_refused_plan_spares_those_that_had_just_ended() {
    let prompt = [1, 2];
    let expected = Oracle::continues(&prompt, &Sampling::greedy(), 3);
    let stop = expected[2];
    assert!(!expected[..2].contains(&stop), "choose another prompt");
    let device = Device::new(PoolCapacity::for_sets(4, 2048), 5000, Fault::RefusesPlan(3));
    let mut engine = Engine::new(device, Limits::default(), StepLoop::Overlapped).unwrap();
    let ends = engine.submit(Request { stop_tokens: vec![stop], ..request(&prompt, 10) }).unwrap();
    let hit = engine.submit(request(&[3, 4], 10)).unwrap();
    let events = run_until_idle(&mut engine);
    assert_eq!(tokens_of(&events, ends), expected);
    assert_eq!(end_of(&events, ends).unwrap().0, Finish::Stop(stop));
    assert!(matches!(end_of(&events, hit), Some((Finish::Failed(Failure::StepRefused { .. }), _))));
    assert_all_free(&engine);
}

#[test]
fn a_free_place_is_no_queue() {
    let limits = Limits { waiting_requests: 1, running_requests: 3, ..Limits::default() };
    let mut engine = engine(4, 2048, limits);
    for _ in 0..4 {
        engine.submit(request(&[1, 2], 3)).unwrap();
    }
    assert_eq!(engine.submit(request(&[1, 2], 3)), Err(Refused::QueueFull { waiting: 4 }));
    engine.step().unwrap();
    assert_eq!(engine.submit(request(&[1, 2], 3)), Err(Refused::QueueFull { waiting: 1 }));
    run_until_idle(&mut engine);
}

#[test]
fn idle_time_belongs_to_no_step() {
    for step_loop in [StepLoop::Plain, StepLoop::Overlapped] {
        let latency = Latency { floor: 1000, per_token: 0, jitter: 0 };
        let device = Device::with_ranks(PoolCapacity::for_sets(1, 256), 5000, Fault::None, 1, latency, 0);
        let time = device.time.clone();
        let mut engine = Engine::new(device, Limits::default(), step_loop).unwrap();
        engine.set_clock(time.clock());
        let id = engine.submit(request(&[1, 2], 50)).unwrap();
        (0..5).for_each(|_| drop(engine.step().unwrap()));
        engine.cancel(id);
        run_until_idle(&mut engine);
        time.wait_until(1_000_000_000);
        engine.submit(request(&[1, 2], 5)).unwrap();
        run_until_idle(&mut engine);
        let longest = engine.trace().records().map(|record| record.period).max().unwrap();
        assert!(longest.as_nanos() <= 1000, "{longest:?} ({step_loop:?})");
    }
}

#[test]
fn steps_that_are_asked_leave_their_time_by_family_in_the_trace() {
    for step_loop in [StepLoop::Plain, StepLoop::Overlapped] {
        let device = Device::new(PoolCapacity::for_sets(1, 256), 5000, Fault::None);
        let mut engine = Engine::new(device, Limits::default(), step_loop).unwrap();
        engine.submit(request(&[1, 2], 20)).unwrap();
        for timing in [Timing::Off, Timing::ByFamily, Timing::Off] {
            engine.set_timing(timing);
            (0..5).for_each(|_| drop(engine.step().unwrap()));
        }
        run_until_idle(&mut engine);
        let told = engine.trace().records().map(|record| match record.families.as_slice() {
            [] => false,
            families => families == [(Family::Head, record.device_time)],
        });
        assert_eq!(told.filter(|is_told| *is_told).count(), 5, "{step_loop:?}");
    }
}

#[test]
fn a_row_that_fails_says_why_and_leaves_the_others_alone() {
    let mut engine = faulty(Fault::BreaksFirstRow(1));
    let hit = engine.submit(request(&[1, 2], 10)).unwrap();
    let spared = engine.submit(request(&[3, 4], 10)).unwrap();
    let events = run_until_idle(&mut engine);
    let (reason, usage) = end_of(&events, hit).unwrap();
    let Finish::Failed(failure) = reason else { panic!("{reason:?}") };
    let sentence = "the logit of token 7 is NaN: the forward pass went wrong before sampling";
    assert_eq!((failure.to_string().as_str(), usage.generated_tokens), (sentence, 1));
    assert_eq!(tokens_of(&events, spared), Oracle::continues(&[3, 4], &Sampling::greedy(), 10));
    assert_all_free(&engine);
}

#[test]
fn a_row_without_its_token_fails_its_request() {
    let mut engine = faulty(Fault::DrawsNothing(1));
    let id = engine.submit(request(&[1, 2], 10)).unwrap();
    let events = run_until_idle(&mut engine);
    assert!(matches!(end_of(&events, id), Some((Finish::Failed(_), Usage { generated_tokens: 1, .. }))));
    assert_all_free(&engine);
}

#[test]
fn an_answer_that_does_not_fit_its_plan_stops_the_engine() {
    let mut engine = faulty(Fault::LosesRow(0));
    let id = engine.submit(request(&[1, 2], 10)).unwrap();
    assert!(matches!(engine.step(), Err(EngineError::WrongAnswer { rows: 1, answered_rows: 0, .. })));
    assert!(matches!(engine.step(), Err(EngineError::Stopped)));
    assert!(engine.cancel(id).is_some());
    assert_all_free(&engine);
}
