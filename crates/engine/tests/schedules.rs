//! Random schedules on a virtual clock: loops, ranks, aborts, time-outs, masks, stop strings and preemption in every
//! mixture. Whatever happens, every request draws the tokens that it draws alone, and nothing hangs or leaks.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions only, not in what they call

mod sim;

use overshot_engine::Bug;
use sim::scenario::{Mistakes, Scenario, Size, Tally};

/// Schedules to run. They are short: a soak runs five for each of its cases, a million unless told.
fn schedules() -> u64 {
    overshot_testing::asked_cases().map_or(5_000, |cases| (5 * cases as u64).max(5_000))
}

/// Runs as many scenarios on all cores; seeds follow one another from a printed one.
fn run_all(count: u64, size: Size) -> Tally {
    let first_seed = overshot_testing::seed();
    let workers = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    std::thread::scope(|scope| {
        let run_part = move |worker: u64| {
            let mut tally = Tally::default();
            for seed in (worker..count).step_by(workers as usize).map(|n| first_seed.wrapping_add(n)) {
                match Scenario::new(seed, size, Mistakes::default()).run() {
                    Ok(more) => tally.add(more),
                    Err(what) => panic!("seed {seed}: {what}"),
                }
            }
            tally
        };
        let parts: Vec<_> = (0..workers).map(|worker| scope.spawn(move || run_part(worker))).collect();
        let mut tally = Tally::default();
        parts.into_iter().for_each(|part| tally.add(part.join().unwrap()));
        tally
    })
}

#[test]
fn many_small_schedules() {
    let count = schedules();
    let tally = run_all(count, Size::SMALL);
    println!("{count} schedules: {tally:?}");
    assert!(tally.requests as u64 > 3 * count && tally.cancelled > count && tally.failed > count / 20);
}

#[test]
fn large_schedules() {
    let count = schedules() / 50;
    let tally = run_all(count, Size::LARGE);
    println!("{count} schedules: {tally:?}");
    assert!(tally.most_rows >= 5 && tally.preemptions > count / 4, "too tame a test: {tally:?}");
}

/// How many schedules it takes until a mistake is noticed.
fn schedules_to_find(mistakes: Mistakes) -> u64 {
    let first_seed = overshot_testing::seed();
    for n in 0..10_000 {
        if let Err(what) = Scenario::new(first_seed.wrapping_add(n), Size::SMALL, mistakes).run() {
            println!("{mistakes:?} found by schedule {n}: {what}");
            return n + 1;
        }
    }
    panic!("{mistakes:?} was not found in 10,000 schedules");
}

#[test]
fn pages_freed_one_step_early_are_noticed() {
    schedules_to_find(Mistakes { bug: Some(Bug::FreesEarly), ..Mistakes::default() });
}

#[test]
fn a_dropped_late_token_is_noticed() {
    schedules_to_find(Mistakes { bug: Some(Bug::DropsLateToken), ..Mistakes::default() });
}

#[test]
fn a_rank_that_decides_by_its_own_clock_is_noticed() {
    schedules_to_find(Mistakes { rank_has_own_clock: true, ..Mistakes::default() });
}
