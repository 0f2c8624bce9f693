//! Ranks that compute nothing: order, overlap, masks, stops. Collectives are tested where they are.

use super::*;
use crate::{Choice, Row, Sampled, Sampling, Wanted};
use overshot_kv::{Kv, SetId};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Broken(&'static str);

/// What a fake rank does to a plan instead of computing.
#[derive(Clone, Copy)]
enum Trouble {
    Error,
    Panic,
}

struct Fake {
    /// A word for each plan before its forward pass ends, where the test wants a say in it.
    gate: Option<Receiver<()>>,
    log: Sender<String>,
    trouble: Option<(u64, Trouble)>,
}

impl Rank for Fake {
    type Error = Broken;

    fn forward(&mut self, plan: &StepPlan) -> Result<(), Broken> {
        if let Some(gate) = &self.gate {
            let _ = self.log.send(format!("begin {}", plan.number));
            gate.recv().map_err(|_| Broken("the gate is gone"))?;
        }
        let _ = self.log.send(format!("forward {}", plan.number));
        match self.trouble {
            Some((number, Trouble::Error)) if number == plan.number => Err(Broken("a cable is loose")),
            Some((number, Trouble::Panic)) if number == plan.number => panic!("a bit fell over"),
            _ => Ok(()),
        }
    }

    fn draw(&mut self, plan: &StepPlan, masks: &StepMasks) -> Result<Vec<RowResult>, Broken> {
        let _ = self.log.send(format!("draw {} with {} masks", plan.number, masks.rows.len()));
        let drawn = Sampled { token: plan.number as u32, logprob: 0.0, top: Vec::new() };
        Ok(vec![RowResult { tokens: vec![drawn], ..RowResult::default() }; plan.rows.len()])
    }

    fn follow(&mut self, plan: &StepPlan) -> Result<(), Broken> {
        let _ = self.log.send(format!("follow {}", plan.number));
        Ok(())
    }
}

struct Group {
    ranks: Ranks,
    kv: Kv,
    set: SetId,
    logs: Vec<Receiver<String>>,
    gates: Vec<Sender<()>>,
}

const TOKENS: usize = 64;

impl Group {
    fn new(count: usize, trouble: Option<(usize, u64, Trouble)>) -> Self {
        Self::with(count, trouble, false)
    }

    fn gated(count: usize) -> Self {
        Self::with(count, None, true)
    }

    fn with(count: usize, trouble: Option<(usize, u64, Trouble)>, has_gates: bool) -> Self {
        let (mut logs, mut gates, mut ranks) = (Vec::new(), Vec::new(), Vec::new());
        for rank in 0..count {
            let (log, lines) = channel();
            logs.push(lines);
            let gate = has_gates.then(|| {
                let (open, gate) = channel();
                gates.push(open);
                gate
            });
            let trouble = trouble.filter(|(at, ..)| *at == rank).map(|(_, plan, trouble)| (plan, trouble));
            ranks.push(Fake { gate, log, trouble });
        }
        let capacity = PoolCapacity::for_sets(1, TOKENS);
        let info = RanksInfo { name: "fake".into(), spec: spec(), capacity };
        let ranks = Ranks::start(info, ranks).unwrap();
        let mut kv = Kv::new(capacity);
        let set = kv.create().unwrap();
        Group { ranks, kv, set, logs, gates }
    }

    /// A plan of one row of one token that draws.
    fn plan(&mut self, number: u64, choice: Choice) -> StepPlan {
        let start = self.kv.len(self.set).unwrap();
        let page_ops = self.kv.extend(self.set, 1).unwrap();
        let wanted = Wanted::Token { sampling: Arc::new(Sampling::greedy()), seen: Vec::new(), choice };
        let pages = self.kv.table(self.set).unwrap().clone();
        let row = Row { tokens: vec![1], start, placeholder: None, pages, wanted };
        StepPlan { number, page_ops, rows: vec![row], ..StepPlan::default() }
    }

    fn submit(&mut self, number: u64) -> Result<(), BackendError> {
        let plan = self.plan(number, Choice::Free);
        self.ranks.submit(plan)
    }

    fn logged(&self, rank: usize) -> Vec<String> {
        self.logs[rank].try_iter().collect()
    }
}

fn spec() -> Spec {
    Spec::hollow(16, 1024)
}

fn told(result: Result<impl std::fmt::Debug, BackendError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn every_rank_runs_every_plan_and_rank_0_answers() {
    let mut group = Group::new(3, None);
    for number in 0..5 {
        group.submit(number).unwrap();
        let result = group.ranks.collect().unwrap();
        assert_eq!((result.number, result.rows[0].tokens[0].token), (number, number as u32));
    }
    assert_eq!(group.logged(0)[..2], ["forward 0", "draw 0 with 0 masks"]);
    for rank in [1, 2] {
        let expected: Vec<String> =
            (0..5).flat_map(|number| [format!("forward {number}"), format!("follow {number}")]).collect();
        assert_eq!(group.logged(rank), expected);
    }
    assert_eq!(told(group.ranks.collect()), "no step plan is waiting to be collected");
}

/// The ranks stand still until the test opens their gates, so a `submit` that waited for them would never return.
#[test]
fn submitting_waits_for_no_rank_and_two_plans_may_be_under_way() {
    let mut group = Group::gated(2);
    group.submit(0).unwrap();
    group.submit(1).unwrap();
    let third = group.plan(2, Choice::Free);
    let full = "step plan 2 came while 2 are under way: collect one first";
    assert_eq!(told(group.ranks.submit(third.clone())), full);
    group.gates.iter().for_each(|gate| gate.send(()).unwrap());
    assert_eq!(group.ranks.collect().unwrap().number, 0);
    // Its number was not used up, and plan 1 still stands at the gate.
    group.ranks.submit(third).unwrap();
    for number in [1, 2] {
        group.gates.iter().for_each(|gate| gate.send(()).unwrap());
        assert_eq!(group.ranks.collect().unwrap().number, number);
    }
}

#[test]
fn plans_out_of_turn_and_bad_plans_are_refused_at_once() {
    let mut group = Group::new(2, None);
    assert_eq!(told(group.submit(1)), "step plan 1 arrived where plan 0 was due");
    let mut bad = group.plan(0, Choice::Free);
    bad.rows[0].tokens[0] = 16;
    assert!(told(group.ranks.submit(bad)).starts_with("step plan 0, row 0: token 16"));
    // The number of a refused plan is used up, and the ranks do not mind the gap.
    assert_eq!(told(group.submit(0)), "step plan 0 arrived where plan 1 was due");
    for number in [1, 2] {
        group.submit(number).unwrap();
        assert_eq!(group.ranks.collect().unwrap().number, number);
    }
}

#[test]
fn a_placeholder_names_a_row_that_draws_in_the_plan_before() {
    let mut group = Group::new(1, None);
    let mut going_on = |number, from| {
        let mut plan = group.plan(number, Choice::Free);
        plan.rows[0].placeholder = Some(from);
        plan.rows[0].tokens = vec![u32::MAX];
        plan
    };
    let (none_before, good) = (going_on(0, 0), going_on(2, 0));
    let (no_such_row, after_refused, undrawn) = (going_on(3, 1), going_on(4, 0), going_on(6, 0));
    let mut silent = group.plan(5, Choice::Free);
    silent.rows[0].wanted = Wanted::Nothing;
    let row = "row 0: it goes on from row";
    assert_eq!(
        told(group.ranks.submit(none_before)),
        format!("step plan 0, {row} 0 of the step plan before, which never ran")
    );
    group.submit(1).unwrap();
    group.ranks.submit(good).unwrap();
    assert_eq!(
        told(group.ranks.submit(no_such_row.clone())),
        "step plan 3 came while 2 are under way: collect one first"
    );
    group.ranks.collect().unwrap();
    group.ranks.collect().unwrap();
    assert_eq!(
        told(group.ranks.submit(no_such_row)),
        format!("step plan 3, {row} 1 of step plan 2, which has 1 rows")
    );
    assert_eq!(
        told(group.ranks.submit(after_refused)),
        format!("step plan 4, {row} 0 of the step plan before, which never ran")
    );
    group.ranks.submit(silent).unwrap();
    assert_eq!(
        told(group.ranks.submit(undrawn)),
        format!("step plan 6, {row} 0 of step plan 5, which draws nothing")
    );
}

#[test]
fn masks_may_come_late_and_are_never_waited_for_by_the_host() {
    let mut group = Group::new(2, None);
    let plan = group.plan(0, Choice::Masked);
    let masks = |number, rows: &[usize]| StepMasks {
        number,
        rows: rows.iter().map(|row| (*row, crate::TokenMask::none(16))).collect(),
    };
    assert!(told(group.ranks.supply(masks(0, &[0]))).starts_with("step plan 0 has masked rows []"));
    group.ranks.submit(plan).unwrap();
    let next = group.plan(1, Choice::Masked);
    group.ranks.submit(next).unwrap();
    // The forward pass does not wait for them.
    let mut forwards = group.logs[0].iter();
    assert_eq!(forwards.next().as_deref(), Some("forward 0"));
    let missing = "step plan 0 has masked rows [0], and masks came for []";
    assert_eq!(told(group.ranks.collect()), missing);
    assert_eq!(
        told(group.ranks.supply(masks(1, &[0]))),
        "step plan 1: its masks came where those of step plan 0 were due"
    );
    assert_eq!(
        told(group.ranks.supply(masks(0, &[0, 1]))),
        "step plan 0 has masked rows [0], and masks came for [0, 1]"
    );
    group.ranks.supply(masks(0, &[0])).unwrap();
    assert_eq!(group.ranks.collect().unwrap().number, 0);
    assert_eq!(forwards.next().as_deref(), Some("draw 0 with 1 masks"));
    assert!(told(group.ranks.collect()).starts_with("step plan 1 has masked rows [0]"));
    // Dropped while rank 0 waits for masks that never come.
}

#[test]
fn a_rank_that_sees_a_plan_out_of_turn_stops_with_both_numbers() {
    let mut group = Group::new(2, None);
    group.submit(0).unwrap();
    group.ranks.collect().unwrap();
    let lost = Arc::new(group.plan(1, Choice::Free));
    let later = Arc::new(group.plan(2, Choice::Free));
    let fate = group.ranks.fate.clone();
    // Rank 1 never hears of plan 1.
    let before = Order { plan: lost, follows: Some(0) };
    group.ranks.workers[0].order(before, &fate).unwrap();
    for worker in &group.ranks.workers {
        worker.order(Order { plan: later.clone(), follows: Some(1) }, &fate).unwrap();
    }
    let expected = "rank 1 stopped: step plan 2 follows step plan 1, but what ran here last was step plan 0";
    assert_eq!(told(group.ranks.workers[1].report(&fate)), expected);
    assert_eq!(told(group.submit(3)), expected);
    assert_eq!(told(group.ranks.supply(StepMasks::default())), expected);
}

#[test]
fn whoever_stops_is_named_with_its_reason_and_nobody_hangs() {
    for (trouble, what) in
        [(Trouble::Error, "a cable is loose"), (Trouble::Panic, "it panicked: a bit fell over")]
    {
        for rank in [0, 1, 2] {
            let mut group = Group::new(3, Some((rank, 1, trouble)));
            group.submit(0).unwrap();
            group.submit(1).unwrap();
            assert_eq!(group.ranks.collect().unwrap().number, 0);
            let expected = format!("rank {rank} stopped: {what}");
            assert_eq!(told(group.ranks.collect()), expected);
            assert_eq!(told(group.ranks.collect()), expected);
            assert_eq!(told(group.submit(2)), expected);
        }
    }
}

#[test]
fn dropping_a_group_ends_it_after_the_step_it_is_in() {
    let mut group = Group::gated(2);
    group.submit(0).unwrap();
    group.submit(1).unwrap();
    let Group { ranks, logs, gates, .. } = group;
    for log in &logs {
        assert_eq!(log.recv().unwrap(), "begin 0");
    }
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        gates.iter().for_each(|gate| gate.send(()).unwrap());
        gates
    });
    drop(ranks);
    opener.join().unwrap();
    let logged: Vec<Vec<String>> = logs.iter().map(|log| log.iter().collect()).collect();
    assert_eq!(logged, [["forward 0", "draw 0 with 0 masks"], ["forward 0", "follow 0"]]);
}

#[test]
fn the_time_of_a_step_leaves_out_the_wait_for_masks() {
    let mut group = Group::new(1, None);
    let plan = group.plan(0, Choice::Masked);
    group.ranks.submit(plan).unwrap();
    assert_eq!(group.logs[0].recv().unwrap(), "forward 0");
    std::thread::sleep(Duration::from_millis(300));
    let rows = vec![(0, crate::TokenMask::none(16))];
    group.ranks.supply(StepMasks { number: 0, rows }).unwrap();
    let result = group.ranks.collect().unwrap();
    assert!(result.device_time > Duration::ZERO && result.device_time < Duration::from_millis(250));
}
