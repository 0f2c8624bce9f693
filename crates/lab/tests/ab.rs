//! Comparisons with a known truth: how often equal things are told apart, how often a change of known size is found, and what
//! is written down on the way.

#![allow(clippy::unwrap_used)]

use overshot_lab::ab::{
    BandSource, Comparison, Course, Guard, Guards, Pairing, Phase, Progress, Question, ResultsFile, Side,
    Verdict, compare, compare_files, judge, planned_looks,
};
use overshot_lab::stats::{Interval, Noise};
use overshot_lab::sweep::{Results, RunKey, RunRecord};
use overshot_lab::{Better, LabError, Measurement, Metric, Point, Quantity, Settings};
use std::path::Path;

const POINT: Point = Point::Decode { streams: 8 };

/// Two at a time, by Box and Muller.
struct Normal {
    random: fastrand::Rng,
    spare: Option<f64>,
}

impl Normal {
    fn new(seed: u64) -> Self {
        Normal { random: fastrand::Rng::with_seed(seed), spare: None }
    }

    fn draw(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let radius = (-2.0 * (1.0 - self.random.f64()).ln()).sqrt();
        let angle = self.random.f64() * std::f64::consts::TAU;
        self.spare = Some(radius * angle.sin());
        radius * angle.cos()
    }
}

struct Simulated {
    faster: f64,
    slower: f64,
    mean_blocks: f64,
}

/// `comparisons` of three planned looks at pairs whose log ratios scatter by `sigma` around `effect`.
fn simulate(effect: f64, sigma: f64, comparisons: usize, seed: u64) -> Simulated {
    let looks = planned_looks();
    let mut normal = Normal::new(seed);
    let (mut faster, mut slower, mut blocks) = (0, 0, 0);
    for _ in 0..comparisons {
        let mut ratios = Vec::new();
        for look in looks {
            ratios.extend((ratios.len()..look.pairs).map(|_| effect + sigma * normal.draw()));
            let pairing = Pairing::Blocks { blocks: look.pairs };
            let found = Comparison::of_pairs(&ratios, pairing, &look, Better::Higher).unwrap();
            let verdict = judge(found.gain, found.interval, 0.0, Guards::Hold);
            faster += usize::from(verdict == Verdict::Win);
            slower += usize::from(verdict == Verdict::Loss);
            if verdict != Verdict::Inconclusive || look.pairs == looks[2].pairs {
                blocks += look.pairs;
                break;
            }
        }
    }
    let share = |count: usize| count as f64 / comparisons as f64;
    Simulated { faster: share(faster), slower: share(slower), mean_blocks: share(blocks) }
}

/// The worked example: pairs of 3 %, 20,000 comparisons a row.
#[test]
fn the_simulated_table_of_the_worked_example_comes_back() {
    const COMPARISONS: usize = 20_000;
    let seed = 11;
    for (effect, faster, slower, blocks) in [
        (0.0, 0.027, 0.027, 11.95),
        (0.02, 0.54, 0.0, 11.3),
        (0.027, 0.80, 0.0, 10.7),
        (0.04, 0.988, 0.0, 9.2),
        (0.06, 1.0, 0.0, 8.0),
    ] {
        let found = simulate(effect, 0.03, COMPARISONS, seed);
        // Four standard errors of a share, and half of the last digit that the example prints.
        let tolerance = |share: f64| 4.0 * (share * (1.0 - share) / COMPARISONS as f64).sqrt() + 0.0051;
        assert!(
            (found.faster - faster).abs() < tolerance(faster),
            "{effect}: faster {}, seed {seed}",
            found.faster
        );
        assert!(
            (found.slower - slower).abs() < tolerance(slower),
            "{effect}: slower {}, seed {seed}",
            found.slower
        );
        assert!(
            (found.mean_blocks - blocks).abs() < 0.25,
            "{effect}: {} blocks, seed {seed}",
            found.mean_blocks
        );
        if effect == 0.0 {
            assert!(found.faster + found.slower <= 0.065, "{} and {}", found.faster, found.slower);
        }
    }
}

/// What is printed as detectable is found 4 times of 5 by the whole plan.
#[test]
fn the_printed_effect_has_the_printed_power() {
    for (sigma, seed) in [(0.003, 1), (0.03, 2), (0.1, 3)] {
        let detectable = planned_looks()[2].detectable(sigma);
        let found = simulate(detectable.ln_1p(), sigma, 20_000, seed);
        assert!((0.80..0.85).contains(&found.faster), "sigma {sigma}: {}, seed {seed}", found.faster);
    }
}

fn question(threshold: f64) -> Question {
    Question {
        quantity: Quantity::Known(Metric::StepMs),
        better: Better::Lower,
        threshold,
        guards: Vec::new(),
        history: None,
    }
}

/// A machine on which B takes `change` more and every run scatters by `sigma`, while all of it slows down.
fn machine(change: f64, sigma: f64, seed: u64) -> impl FnMut(Side) -> Result<Measurement, LabError> {
    let mut normal = Normal::new(seed);
    let mut runs = 0;
    move |side| {
        runs += 1;
        let drift = 1.0 + 0.002 * f64::from(runs);
        let factor = if side == Side::B { 1.0 + change } else { 1.0 };
        let mut measurement = Measurement::default();
        measurement.set(Metric::StepMs, 20.0 * drift * factor * (sigma * normal.draw()).exp());
        measurement
            .set(Metric::FirstTokenMs, 100.0 * if side == Side::B { 1.2 } else { 1.0 } + normal.draw());
        measurement.named.insert("accuracy".into(), 0.8125);
        Ok(measurement)
    }
}

fn judged(change: f64, question: &Question, seed: u64) -> overshot_lab::ab::Outcome {
    let (mut results, mut measure) = (Results::in_memory(), machine(change, 0.01, seed));
    let mut silent = |_: Progress<'_>| {};
    compare(&mut Course::new(POINT, Phase::Pair, &mut results, &mut measure, &mut silent), question).unwrap()
}

#[test]
fn a_slow_step_loses_a_fast_one_wins_and_nothing_is_neither() {
    let seed = 5;
    let slow = judged(0.05, &question(0.0), seed);
    assert_eq!(slow.verdict, Verdict::Loss, "{slow:?}");
    assert!(slow.comparison.interval.contains(-0.05), "{slow:?}");
    let fast = judged(-0.05, &question(0.02), seed);
    assert_eq!(fast.verdict, Verdict::Win, "{fast:?}");
    assert!(fast.comparison.gain > fast.counts_from && fast.counts_from >= 0.02);
    let small = judged(-0.03, &question(0.10), seed);
    assert_eq!(small.verdict, Verdict::BelowThreshold, "{small:?}");
    let same = judged(0.0, &question(0.002), seed);
    assert!(matches!(same.verdict, Verdict::Inconclusive | Verdict::BelowThreshold), "{same:?}");
    assert_eq!(same.verdict == Verdict::Inconclusive, same.pairs_needed.is_some());
}

#[test]
fn a_band_comes_from_history_or_from_the_blocks_themselves() {
    let own = judged(0.05, &question(0.0), 9).band.unwrap();
    assert_eq!(own.source, BandSource::TheseBlocks);
    // A change of 5 % is no part of it.
    assert!(own.share < 0.03, "{own:?}");
    let with = |blocks: usize| {
        let history = Noise::new((0..blocks).map(|index| if index % 2 == 0 { 0.1 } else { -0.1 }).collect());
        judged(0.05, &Question { history: Some(history.unwrap()), ..question(0.0) }, 9).band.unwrap()
    };
    assert_eq!((with(9).source, with(10).source), (BandSource::TheseBlocks, BandSource::History));
    assert!(with(10).share > 0.05, "{:?}", with(10));
}

#[test]
fn what_is_guarded_can_turn_a_win_into_a_loss() {
    let guard = |name: &str, better, limit| Guard { quantity: Quantity::from(name), better, limit };
    let with = |guards| judged(-0.05, &Question { guards, ..question(0.0) }, 3);
    let broken = with(vec![guard("first_token_ms", Better::Lower, 0.05)]);
    assert_eq!((broken.verdict, broken.guards[0].state), (Verdict::Loss, Guards::Broken));
    let held =
        with(vec![guard("first_token_ms", Better::Lower, 0.30), guard("accuracy", Better::Higher, 0.0)]);
    assert_eq!((held.verdict, held.guards[1].state), (Verdict::Win, Guards::Hold));
    assert_eq!(held.guards[1].comparison.interval, Interval { low: 0.0, high: 0.0 });
}

#[test]
fn a_broken_comparison_goes_on_with_the_block_that_was_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ab.jsonl");
    let settings = Settings::from([("a_command".into(), "x".into())]);
    let mut machine = machine(0.02, 0.02, 4);
    let mut runs = 0;
    // Two warm-ups, two blocks, and two runs of the third.
    let mut breaks = |side| {
        runs += 1;
        if runs == 13 {
            Err(LabError::Target { point: "x".into(), what: "gone".into() })
        } else {
            machine(side)
        }
    };
    let mut silent = |_: Progress<'_>| {};
    let mut results = Results::open(&path, &settings).unwrap();
    compare(&mut Course::new(POINT, Phase::Pair, &mut results, &mut breaks, &mut silent), &question(0.0))
        .unwrap_err();
    drop(results);
    assert_eq!(Results::open(&path, &settings).unwrap().records().len(), 10);
    let mut results = Results::open(&path, &settings).unwrap();
    let mut again = Vec::new();
    let mut sides = |side| {
        again.push(side);
        machine(side)
    };
    let mut course = Course::new(POINT, Phase::Pair, &mut results, &mut sides, &mut silent);
    assert_eq!(course.until(4).unwrap().len(), 4);
    assert_eq!(again.len(), 2 + 8, "one more warm-up of each side, and two blocks");
    // All there: nothing runs.
    let mut nothing = |_| panic!("measured again");
    let mut course = Course::new(POINT, Phase::Pair, &mut results, &mut nothing, &mut silent);
    assert_eq!(course.until(4).unwrap().len(), 4);
}

fn file(path: &Path, values: &[f64]) -> ResultsFile {
    let mut results = Results::open(path, &Settings::from([("model".into(), "m".into())])).unwrap();
    for (round, value) in values.iter().enumerate() {
        let mut measurement = Measurement::default();
        measurement.set(Metric::StepMs, *value);
        results.append(RunRecord { key: RunKey::Round { round, point: POINT }, measurement }).unwrap();
    }
    ResultsFile::read(path).unwrap()
}

#[test]
fn files_are_paired_by_round_where_they_have_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let of = |name: &str, values: &[f64]| file(&folder.path().join(name), values);
    let a = of("a", &[10.0, 11.0, 12.0, 13.0]);
    // 5 % faster in every round, with little scatter; unpaired, the rounds scatter by 11 %.
    let b = of("b", &[9.51, 10.46, 11.39, 12.36]);
    let [outcome] = &compare_files(&a, &b, None, 0.0, &[]).unwrap()[..] else { panic!() };
    assert_eq!((outcome.verdict, outcome.comparison.pairing), (Verdict::Win, Pairing::Rounds { rounds: 4 }));
    let shorter = of("c", &[9.51, 10.46, 11.39]);
    let [outcome] = &compare_files(&a, &shorter, None, 0.0, &[]).unwrap()[..] else { panic!() };
    assert_eq!(outcome.comparison.pairing, Pairing::Unpaired { a: 4, b: 3 });
    assert_eq!(outcome.verdict, Verdict::Inconclusive, "{outcome:?}");

    let told =
        |a: &ResultsFile, b: &ResultsFile| compare_files(a, b, None, 0.0, &[]).unwrap_err().to_string();
    let same = told(&a, &of("d", &[10.0, 11.0, 12.0, 13.0]));
    assert!(same.contains("all 4 ratios of B to A are 1"), "{same}");
    let one = told(&a, &of("e", &[10.0]));
    assert!(one.contains("no point in common that was measured at least twice in each"), "{one}");
    let zero = told(&a, &of("f", &[10.0, 0.0, 1.0, 1.0]));
    assert!(zero.contains("only numbers above 0 have a ratio"), "{zero}");
    let metric = Some((Quantity::from("tokens_per_s"), Better::Higher));
    let absent = compare_files(&a, &b, metric, 0.0, &[]).unwrap_err().to_string();
    assert!(absent.contains("runs with tokens_per_s in A are decode, 8 streams: 0"), "{absent}");
}

/// Changed bytes are an error or fewer runs, and never a panic.
#[test]
fn no_damage_of_a_results_file_makes_a_comparison_panic() {
    let cases = overshot_testing::cases(2000);
    let folder = tempfile::tempdir().unwrap();
    let a = file(&folder.path().join("a"), &[10.0, 11.0, 12.0, 13.0]);
    file(&folder.path().join("b"), &[9.5, 10.5, 11.0, 13.0]);
    let good = std::fs::read(folder.path().join("b")).unwrap();
    let path = folder.path().join("c");
    let seed = overshot_testing::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    for case in 0..cases {
        let mut bytes = good.clone();
        for _ in 0..random.usize(1..5) {
            let at = random.usize(..bytes.len());
            match random.u8(..4) {
                0 => bytes[at] = random.u8(..),
                1 => bytes.truncate(at.max(1)),
                2 => bytes.insert(at, random.u8(..)),
                _ => bytes.extend_from_within(at..),
            }
        }
        std::fs::write(&path, &bytes).unwrap();
        if let Ok(b) = ResultsFile::read(&path) {
            let outcomes = compare_files(&a, &b, None, 0.0, &[]);
            assert!(
                outcomes.is_ok_and(|outcomes| outcomes.len() == 1) || bytes != good,
                "case {case}, seed {seed}"
            );
        }
    }
}
