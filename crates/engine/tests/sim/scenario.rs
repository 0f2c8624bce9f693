//! A random course of things on a virtual clock: requests of all kinds come, are aborted, run out of time, match stop
//! strings, are preempted. Everything follows from the seed, and every error names it.

use super::device::{Device, Fault, Latency, VirtualTime};
use super::grammar::Grammar;
use super::model::{Oracle, VOCAB};
use overshot_backend::Sampling;
use overshot_engine::{
    Bug, Engine, Event, Failure, Finish, Limits, Refused, Request, RequestId, StepLoop, Usage,
};
use overshot_kv::{Pool, PoolCapacity};
use std::collections::BTreeMap;

/// What can be wrong in a world, to see that it is noticed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mistakes {
    pub bug: Option<Bug>,
    pub rank_has_own_clock: bool,
}

/// How big the world is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub requests: usize,
    pub prompt_tokens: usize,
    pub new_tokens: usize,
}

impl Size {
    /// Many short requests in a small cache: most schedules a second.
    pub const SMALL: Size = Size { requests: 9, prompt_tokens: 40, new_tokens: 24 };
    /// Prompts and answers over several pages: preemption is common.
    pub const LARGE: Size = Size { requests: 12, prompt_tokens: 300, new_tokens: 700 };
}

/// What a scenario came to, to see that the tests are not tame.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub requests: usize,
    pub preemptions: u64,
    pub cancelled: u64,
    pub failed: u64,
    pub most_rows: usize,
}

impl Tally {
    pub fn add(&mut self, other: Tally) {
        self.requests += other.requests;
        self.preemptions += other.preemptions;
        self.cancelled += other.cancelled;
        self.failed += other.failed;
        self.most_rows = self.most_rows.max(other.most_rows);
    }
}

struct Spec {
    prompt: Vec<u32>,
    sampling: Sampling,
    max_new_tokens: usize,
    stop_tokens: Vec<u32>,
    grammar: Option<Grammar>,
    /// Two tokens in a row that its reader takes for a stop string: it cancels then.
    stop_string: Option<[u32; 2]>,
    /// When its reader loses patience.
    deadline: Option<u64>,
}

struct Course {
    spec: Spec,
    drawn: Vec<u32>,
    prefilled: usize,
    end: Option<(Finish, Usage)>,
}

pub struct Scenario {
    random: fastrand::Rng,
    size: Size,
    engine: Engine,
    time: VirtualTime,
    /// Nanoseconds of a middling step.
    pace: u64,
    positions: usize,
    /// Answers run to their full length, as many as there can be: the cache gets tight.
    is_talkative: bool,
    courses: BTreeMap<RequestId, Course>,
    tally: Tally,
}

impl Scenario {
    pub fn new(seed: u64, size: Size, mistakes: Mistakes) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let running_requests = random.usize(1..12);
        let limits = Limits {
            waiting_requests: random.usize(1..20),
            running_requests,
            step_tokens: running_requests + random.usize(0..300),
            chunk_tokens: *random.choice(&[1, 3, 4, 7, 64, 128, 500]).unwrap(),
            trace_steps: random.usize(1..50),
            ..Limits::default()
        };
        let sets = random.usize(1..10);
        let capacity = PoolCapacity::for_sets(sets, random.usize(1..=size.prompt_tokens + size.new_tokens));
        let max_positions = random.usize(50..1200);
        let latency = Latency {
            floor: random.u64(0..2000),
            per_token: random.u64(0..200),
            jitter: *random.choice(&[0, 100, 3000]).unwrap(),
        };
        let ranks = *random.choice(&[1, 1, 2, 4]).unwrap();
        let fault = match mistakes.rank_has_own_clock {
            true => Fault::RankHasOwnClock(random.u64(1000..40_000)),
            false => Fault::None,
        };
        let device = Device::with_ranks(capacity, max_positions, fault, ranks, latency, random.u64(..));
        let time = device.time.clone();
        let step_loop = *random.choice(&[StepLoop::Plain, StepLoop::Overlapped]).unwrap();
        let mut engine = Engine::new(device, limits, step_loop).unwrap();
        engine.set_clock(time.clock());
        if let Some(bug) = mistakes.bug {
            engine.plant(bug);
        }
        Scenario {
            size,
            engine,
            time,
            pace: latency.floor + latency.jitter / 2 + latency.per_token * 20 + 1,
            is_talkative: random.bool(),
            positions: capacity.longest_set_tokens().min(max_positions),
            courses: BTreeMap::new(),
            tally: Tally::default(),
            random,
        }
    }

    /// Lets everything happen, then looks at what everybody got.
    pub fn run(mut self) -> Result<Tally, String> {
        for _ in 0..8 * self.size.requests {
            match self.random.u32(0..10) {
                0..3 if self.courses.len() < self.size.requests => self.submit()?,
                3 if self.random.bool() => self.abort_any()?,
                4 => self.time.wait_until(self.time.now() + self.random.u64(0..self.pace * 3)),
                _ => self.step()?,
            }
        }
        let mut steps = 0;
        while !self.engine.is_idle() {
            self.step()?;
            steps += 1;
            if steps > 60_000 {
                return Err("it hangs: 60,000 steps, and requests are left".into());
            }
        }
        for (id, course) in &self.courses {
            verify(course, self.positions).map_err(|what| format!("{id}: {what}"))?;
        }
        self.all_is_free()?;
        let counters = self.engine.counters();
        self.tally.requests = self.courses.len();
        self.tally.preemptions = counters.preemptions;
        (self.tally.cancelled, self.tally.failed) = (counters.cancelled, counters.failed);
        Ok(self.tally)
    }

    fn random_spec(&mut self) -> Spec {
        let (size, now, pace) = (self.size, self.time.now(), self.pace);
        let random = &mut self.random;
        let token = |random: &mut fastrand::Rng| random.u32(0..VOCAB as u32);
        let length = (size.prompt_tokens >> random.u32(0..4)).max(1);
        let prompt: Vec<u32> = (0..random.usize(1..=length)).map(|_| token(random)).collect();
        let sampling = match random.u32(0..4) {
            0 => Sampling::greedy(),
            1 => Sampling { seed: random.u64(..), ..Sampling::default() },
            2 => Sampling { repetition_penalty: 1.3, frequency_penalty: 0.4, ..Sampling::greedy() },
            _ => Sampling { seed: random.u64(..), top_p: 0.7, presence_penalty: 0.5, ..Sampling::default() },
        };
        let breaks_after = *random.choice(&[3, 10, 1000]).unwrap();
        let mut spec = Spec {
            prompt,
            sampling,
            max_new_tokens: random.usize(1..=size.new_tokens),
            stop_tokens: (0..random.usize(0..3)).map(|_| token(random)).collect(),
            grammar: (random.u32(0..4) == 0).then(|| Grammar::new(random.usize(0..4), breaks_after)),
            stop_string: (random.u32(0..3) == 0).then(|| [token(random), token(random)]),
            deadline: (random.u32(0..6) == 0).then(|| now + random.u64(0..pace * 40)),
        };
        if self.is_talkative {
            spec.max_new_tokens = size.new_tokens;
            spec.stop_tokens.clear();
            spec.stop_string = None;
        }
        spec
    }

    fn submit(&mut self) -> Result<(), String> {
        let spec = self.random_spec();
        let request = Request {
            sampling: spec.sampling.clone(),
            max_new_tokens: spec.max_new_tokens,
            stop_tokens: spec.stop_tokens.clone(),
            constraint: spec.grammar.clone().map(|grammar| Box::new(grammar) as _),
            ..Request::new(spec.prompt.clone())
        };
        match self.engine.submit(request) {
            Ok(id) => {
                let course = Course { spec, drawn: vec![], prefilled: 0, end: None };
                if self.courses.insert(id, course).is_some() {
                    return Err(format!("{id} was given twice"));
                }
            }
            Err(Refused::QueueFull { .. }) => {}
            Err(
                Refused::BeyondContext { prompt_tokens, most } | Refused::BeyondCache { prompt_tokens, most },
            ) if prompt_tokens > most && most >= self.positions => {}
            Err(error) => return Err(error.to_string()),
        }
        Ok(())
    }

    fn abort_any(&mut self) -> Result<(), String> {
        match self.random.choice(self.courses.keys()).copied() {
            Some(id) => self.abort(id),
            None => Ok(()),
        }
    }

    fn abort(&mut self, id: RequestId) -> Result<(), String> {
        let free = |engine: &Engine| Pool::ALL.map(|pool| engine.kv().free_pages(pool));
        let before = free(&self.engine);
        match self.engine.cancel(id) {
            Some(event) => self.take(event)?,
            None if self.courses[&id].end.is_none() => return Err(format!("{id} can't be cancelled")),
            None => {}
        }
        match free(&self.engine).iter().zip(before).all(|(after, before)| *after >= before) {
            true => Ok(()),
            false => Err(format!("cancelling {id} took pages")),
        }
    }

    fn step(&mut self) -> Result<(), String> {
        let now = self.time.now();
        let is_late =
            |course: &Course| course.end.is_none() && course.spec.deadline.is_some_and(|at| at < now);
        let late: Vec<RequestId> =
            self.courses.iter().filter(|(_, course)| is_late(course)).map(|(id, _)| *id).collect();
        for id in late {
            self.abort(id)?;
        }
        let events = self.engine.step().map_err(|error| error.to_string())?;
        for event in events {
            let stopped = self.matches_stop_string(&event);
            self.take(event)?;
            // When the token was its last anyway, its end is among the events still to come.
            if let Some(event) = stopped.and_then(|id| self.engine.cancel(id)) {
                self.take(event)?;
            }
        }
        let wrong = self.engine.kv().check();
        self.tally.most_rows = self.tally.most_rows.max(self.engine.running_requests());
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }

    fn matches_stop_string(&self, event: &Event) -> Option<RequestId> {
        let Event::Token { id, sampled } = event else { return None };
        let course = &self.courses[id];
        let [first, second] = course.spec.stop_string?;
        (course.end.is_none() && course.drawn.last() == Some(&first) && sampled.token == second)
            .then_some(*id)
    }

    fn take(&mut self, event: Event) -> Result<(), String> {
        let (Event::PrefillProgress { id, .. } | Event::Token { id, .. } | Event::Finished { id, .. }) =
            &event;
        let id = *id;
        let course = self.courses.get_mut(&id).ok_or("an event of nobody's")?;
        if course.end.is_some() {
            return Err(format!("{event:?} after the end of its request"));
        }
        match event {
            Event::PrefillProgress { done, total, .. } => {
                if done <= course.prefilled || done > total || total != course.spec.prompt.len() {
                    return Err(format!("{id}: progress {done} of {total} after {}", course.prefilled));
                }
                course.prefilled = done;
            }
            Event::Token { sampled, .. } if course.prefilled == course.spec.prompt.len() => {
                course.drawn.push(sampled.token);
            }
            Event::Token { .. } => return Err(format!("{id}: a token before the prompt was computed")),
            Event::Finished { reason, usage, .. } => course.end = Some((reason, usage)),
        }
        Ok(())
    }

    fn all_is_free(&self) -> Result<(), String> {
        let capacity = self.engine.backend().capacity();
        for pool in Pool::ALL {
            let (free, all) = (self.engine.kv().free_pages(pool), capacity.pages(pool));
            if free != all {
                return Err(format!("{free} of {all} pages of {pool:?} are free at the end"));
            }
        }
        Ok(())
    }
}

/// Whatever ran beside it, a request drew what it draws alone, and ended when it had to.
fn verify(course: &Course, positions: usize) -> Result<(), String> {
    let Course { spec, drawn, end, .. } = course;
    let expected = Oracle::continues_within(&spec.prompt, &spec.sampling, spec.grammar.clone(), drawn.len());
    if *drawn != expected {
        return Err(format!("it drew {drawn:?}, alone it draws {expected:?}"));
    }
    let (reason, usage) = end.as_ref().ok_or("it never ended")?;
    if *usage != (Usage { prompt_tokens: spec.prompt.len(), generated_tokens: drawn.len() }) {
        return Err(format!("{usage:?} for {} tokens drawn", drawn.len()));
    }
    let most = spec.max_new_tokens.min(positions - spec.prompt.len() + 1);
    let stopped = drawn.iter().position(|token| spec.stop_tokens.contains(token));
    let is_right = match reason {
        Finish::Stop(token) => (stopped, drawn.last()) == (Some(drawn.len() - 1), Some(token)),
        Finish::Length => stopped.is_none() && drawn.len() == most,
        Finish::Cancelled => stopped.is_none() && drawn.len() < most,
        Finish::Failed(Failure::Constraint { .. }) => {
            spec.grammar.as_ref().is_some_and(|grammar| drawn.len() == grammar.breaks_after)
        }
        Finish::Failed(_) => false,
    };
    if is_right {
        Ok(())
    } else {
        Err(format!("it ended with {reason:?} after {} of {most} tokens", drawn.len()))
    }
}
