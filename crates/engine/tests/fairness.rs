//! What readers and short prompts notice of a long prompt, in virtual time.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions only, not in what they call

mod sim;

use overshot_engine::{Engine, Event, Limits, Request, RequestId, StepLoop};
use overshot_kv::PoolCapacity;
use sim::device::{Device, Fault, Latency, VirtualTime};
use std::collections::BTreeMap;

const STEP: u64 = 1_000_000;
const TOKEN: u64 = 10_000;

/// An engine with the times at which each request's tokens came.
struct Watch {
    engine: Engine,
    time: VirtualTime,
    tokens: BTreeMap<RequestId, Vec<u64>>,
}

impl Watch {
    fn new(limits: Limits, step_loop: StepLoop) -> Self {
        let latency = Latency { floor: STEP, per_token: TOKEN, jitter: 0 };
        let capacity = PoolCapacity::for_sets(8, 40_000);
        let device = Device::with_ranks(capacity, 30_000, Fault::None, 1, latency, 0);
        let time = device.time.clone();
        Watch { engine: Engine::new(device, limits, step_loop).unwrap(), time, tokens: BTreeMap::new() }
    }

    fn submit(&mut self, prompt_tokens: usize, max_new_tokens: usize) -> RequestId {
        let prompt = vec![7; prompt_tokens];
        self.engine.submit(Request { max_new_tokens, ..Request::new(prompt) }).unwrap()
    }

    fn step(&mut self) {
        for event in self.engine.step().unwrap() {
            if let Event::Token { id, .. } = event {
                self.tokens.entry(id).or_default().push(self.time.now());
            }
        }
    }

    fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| self.step());
    }
}

#[test]
fn readers_and_short_prompts_do_not_wait_for_a_long_one() {
    let limits = Limits { chunk_tokens: 256, step_tokens: 512, ..Limits::default() };
    let longest_step = STEP + 512 * TOKEN;
    for step_loop in [StepLoop::Plain, StepLoop::Overlapped] {
        let mut watch = Watch::new(limits, step_loop);
        let reader = watch.submit(10, 2_000);
        watch.steps(5);
        let long = watch.submit(20_000, 5);
        watch.steps(3);
        let asked = watch.time.now();
        let short = watch.submit(100, 5);
        while !watch.tokens.contains_key(&long) {
            watch.step();
        }
        let first = watch.tokens[&short][0] - asked;
        assert!(first <= 3 * longest_step, "the short prompt waited {first} ns ({step_loop:?})");
        let gaps = watch.tokens[&reader].windows(2).map(|pair| pair[1] - pair[0]);
        let worst = gaps.max().unwrap();
        assert!(worst <= longest_step, "a reader waited {worst} ns for a token ({step_loop:?})");
        // A chunk a step, at the least: short prompts beside it took none of that.
        let steps = 20_000_u64.div_ceil(256) + 8;
        assert!(watch.time.now() <= steps * longest_step, "the long prompt was held up ({step_loop:?})");
    }
}

#[test]
fn a_stream_of_short_prompts_does_not_starve_a_long_one() {
    let limits = Limits { chunk_tokens: 128, step_tokens: 192, running_requests: 6, ..Limits::default() };
    let mut watch = Watch::new(limits, StepLoop::Overlapped);
    let long = watch.submit(5_000, 1);
    let mut steps = 0;
    while !watch.tokens.contains_key(&long) {
        while watch.engine.running_requests() + watch.engine.waiting_requests() < 6 {
            watch.submit(120, 1);
        }
        watch.step();
        steps += 1;
        assert!(steps <= 5_000 / 128 + 5, "after {steps} steps the long prompt is still not read");
    }
    assert!(watch.tokens.len() > 15, "the short ones got on too");
}
