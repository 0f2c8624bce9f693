//! Projections against the oracle: the step-time tables, the uplifts with their intervals, and the speed-ups needed of the worked
//! example, as a separate implementation of the formulas in Python prints them.

#![allow(clippy::unwrap_used)]

use overshot_gpu_model::{Architecture, Launch, SplitLaunch, SplitRule, TileCosts};
use overshot_lab::Settings;
use overshot_lab::profile::{
    Curve, Experts, Family, Form, FormKind, Forms, Profile, ProfileFit, RunsByBatch, StepClock,
};
use overshot_lab::project::{
    Decision, Effect, FittedStep, Grid, Kernel, Lever, Mechanism, Part, Projection, REST, Roofline,
    SeenThroughput, StepModel, Transfer, TypedBend, TypedStep, Verdict, speedup_needed, uplift,
};
use std::num::NonZeroU32;

const BATCHES: [u32; 8] = [1, 8, 16, 32, 48, 64, 80, 96];
/// Seen at 96: the best run, from which the floor follows, and all runs.
const BEST_PER_S: f64 = 845.0;
const SEEN: SeenThroughput = SeenThroughput { low: 775.0, high: 845.0, batch: 96 };
const ATTENTION_MS: f64 = 0.79;
const MOE_MS: f64 = 0.015;
/// The weights of the experts that 96 requests touch, over four cards at 80 % of their bandwidth.
const EXPERTS_MS_AT_96: f64 = 23.030_857_375;

fn floor_ms(per_s: f64) -> f64 {
    96e3 / per_s - (ATTENTION_MS + MOE_MS) * 96.0
}

fn linear() -> TypedStep {
    TypedStep {
        floor_ms: floor_ms(BEST_PER_S),
        slopes_ms: vec![("attention".into(), ATTENTION_MS), ("moe".into(), MOE_MS)],
        sigma: 0.05,
        throughput: Some(SEEN),
        bends: vec![],
    }
}

fn concave() -> TypedStep {
    let form = Form::Concave(Experts::default());
    TypedStep {
        bends: vec![TypedBend { family: "moe".into(), ms: EXPERTS_MS_AT_96, batch: 96, form }],
        ..linear()
    }
}

fn project(model: &TypedStep, lever: &str, roofline: &Roofline) -> Projection {
    model.check().unwrap();
    let lever: Lever = lever.parse().unwrap();
    let Lever::Time { part, .. } = &lever else { panic!("{lever}") };
    let effect = Effect::of(&lever, part.clone(), None, None).unwrap();
    let random = &mut fastrand::Rng::with_seed(7);
    Projection::of(model, &effect, &BATCHES, Transfer::default(), roofline, random).unwrap()
}

fn close(found: f64, expected: f64, tolerance: f64, what: &str) {
    assert!((found - expected).abs() <= tolerance, "{what}: {found} and not {expected}");
}

#[test]
fn floors_and_shares_follow_from_the_throughput_seen() {
    for (per_s, step_ms, floor, attention_share, floor_share) in [
        (775.0, 123.9, 46.6, 0.612, 0.376),
        (810.0, 118.5, 41.2, 0.640, 0.348),
        (845.0, 113.6, 36.3, 0.668, 0.320),
    ] {
        let step = TypedStep { floor_ms: floor_ms(per_s), ..linear() }.best();
        let attention_ms = step.part_ms(&Part::Family("attention".into()), 96).unwrap();
        let floor_found = step.part_ms(&Part::Floor, 96).unwrap();
        close(step.step_ms(96), step_ms, 0.05, "step");
        close(floor_found, floor, 0.05, "floor");
        close(attention_ms / step.step_ms(96), attention_share, 5e-4, "share of attention");
        close(floor_found / step.step_ms(96), floor_share, 5e-4, "share of the floor");
        let slope: f64 = step.step.iter().map(Curve::last_slope_ms).sum();
        close(1e3 / slope, 1242.0, 0.5, "asymptote");
    }
}

/// Batch, then milliseconds of a step by the linear form, with concave experts, and with attention in stairs as well.
const STEPS: [(u32, f64, f64, f64); 8] = [
    (1, 37.1345, 16.1301, 24.9706),
    (8, 42.7695, 25.4939, 34.8234),
    (16, 49.2095, 35.4827, 44.5113),
    (32, 62.0895, 53.6678, 59.0849),
    (48, 74.9695, 70.1018, 80.9361),
    (64, 87.8495, 85.3378, 83.5321),
    (80, 100.7295, 99.7541, 103.3655),
    (96, 113.6095, 113.6095, 113.6095),
];

#[test]
fn three_forms_of_the_step_agree_at_96_and_not_at_1() {
    // What attention took at 80, spread over the launches that its split rule makes.
    let number = |number| NonZeroU32::new(number).unwrap();
    let costs = TileCosts { t0: 1.0, t1: 1.0, c: 0.0 };
    let launch = SplitLaunch::new(NonZeroU32::MIN, number(32), number(188), costs).unwrap();
    let time = |batch| launch.point(batch, SplitRule::TargetCtas(number(512))).time;
    let attention_ms = |batch| ATTENTION_MS * 80.0 * time(batch) / time(80);
    let (linear, concave) = (linear().best(), concave().best());
    for (batch, by_line, by_experts, by_stairs) in STEPS {
        close(linear.step_ms(batch), by_line, 1e-3, "linear");
        close(concave.step_ms(batch), by_experts, 1e-3, "concave");
        let line_ms = |batch: u32| ATTENTION_MS * f64::from(batch);
        let stairs_ms =
            concave.step_ms(batch) - line_ms(batch) + attention_ms(batch) + line_ms(96) - attention_ms(96);
        close(stairs_ms, by_stairs, 1e-3, "staircase");
    }
    close(attention_ms(1), 6.0, 0.05, "attention at 1 by the stairs");
    // 14 to 18 % fewer tokens a second at 1 are more milliseconds than linear attention has in all.
    for (step, low, high) in [(&linear, 6.0, 8.2), (&concave, 2.6, 3.5)] {
        close(step.step_ms(1) * (1.0 / 0.86 - 1.0), low, 0.05, "14 %");
        close(step.step_ms(1) * (1.0 / 0.82 - 1.0), high, 0.05, "18 %");
    }
}

/// Batch; for attention 1.2, 1.5 and 2 times as fast the uplift as told by the linear form, the same by the concave one, and
/// 5, 50 and 95 % of 20,000 draws; the uplift without attention.
type Uplifts = (u32, [(f64, f64, f64, f64, f64); 3], f64);
const UPLIFTS: [Uplifts; 8] = [
    (
        1,
        [
            (0.00356, 0.00823, 0.00204, 0.00272, 0.00369),
            (0.00714, 0.01660, 0.00425, 0.00560, 0.00754),
            (0.01075, 0.02510, 0.00664, 0.00865, 0.01157),
        ],
        0.02174,
    ),
    (
        8,
        [
            (0.02525, 0.04310, 0.01497, 0.01952, 0.02593),
            (0.05181, 0.09008, 0.03165, 0.04093, 0.05404),
            (0.07978, 0.14149, 0.05034, 0.06450, 0.08499),
        ],
        0.17339,
    ),
    (
        16,
        [
            (0.04472, 0.06312, 0.02716, 0.03498, 0.04506),
            (0.09364, 0.13474, 0.05826, 0.07448, 0.09584),
            (0.14736, 0.21672, 0.09417, 0.11946, 0.15371),
        ],
        0.34564,
    ),
    (
        32,
        [
            (0.07280, 0.08520, 0.04584, 0.05782, 0.07266),
            (0.15703, 0.18626, 0.10070, 0.12628, 0.15867),
            (0.25561, 0.30808, 0.16725, 0.20884, 0.26283),
        ],
        0.68678,
    ),
    (
        48,
        [
            (0.09206, 0.09909, 0.05953, 0.07371, 0.09055),
            (0.20279, 0.21997, 0.13302, 0.16411, 0.20165),
            (0.33851, 0.37073, 0.22548, 0.27742, 0.34200),
        ],
        1.02350,
    ),
    (
        64,
        [
            (0.10610, 0.10956, 0.06971, 0.08573, 0.10422),
            (0.23738, 0.24609, 0.15786, 0.19338, 0.23505),
            (0.40403, 0.42093, 0.27248, 0.33269, 0.40548),
        ],
        1.35588,
    ),
    (
        80,
        [
            (0.11678, 0.11806, 0.07778, 0.09480, 0.11394),
            (0.26445, 0.26773, 0.17810, 0.21606, 0.25975),
            (0.45711, 0.46366, 0.31149, 0.37679, 0.45419),
        ],
        1.68401,
    ),
    (
        96,
        [
            (0.12519, 0.12519, 0.08409, 0.10185, 0.12198),
            (0.28620, 0.28620, 0.19422, 0.23435, 0.28034),
            (0.50099, 0.50099, 0.34324, 0.41319, 0.49537),
        ],
        2.00797,
    ),
];

#[test]
fn uplifts_and_their_intervals_are_those_of_the_oracle() {
    for (index, k) in ["1.2", "1.5", "2"].into_iter().enumerate() {
        let lever = format!("attention / {k}");
        let (line, bent) =
            (project(&linear(), &lever, &Roofline::new()), project(&concave(), &lever, &Roofline::new()));
        for ((row, bent), (batch, expected, without)) in line.rows.iter().zip(&bent.rows).zip(&UPLIFTS) {
            let what = format!("{lever} at {batch}");
            let (as_told, concave, p5, p50, p95) = expected[index];
            assert_eq!(row.batch, *batch);
            close(row.as_told, as_told, 1e-4, &what);
            close(bent.as_told, concave, 1e-4, &what);
            // Both sides are draws: a fiftieth of the width apart, and the oracle varies attention alone.
            let tolerance = 2e-4 + 0.02 * (p95 - p5);
            close(row.p5, p5, tolerance, &what);
            close(row.p50, p50, tolerance, &what);
            close(row.p95, p95, tolerance, &what);
            close(row.ceiling.unwrap(), *without, 1e-4, &what);
        }
        assert!(line.differs_from(&bent), "at small batches the forms disagree");
        assert!(!line.differs_from(&line));
    }
}

#[test]
fn speedups_needed_and_milliseconds_off_the_floor() {
    let row = project(&linear(), "floor - 10 ms", &Roofline::new()).rows[7].clone();
    close(row.as_told, 0.0965, 1e-4, "10 ms off the floor at 96");
    let step = linear().best();
    let (step_ms, attention_ms) = (step.step_ms(96), ATTENTION_MS * 96.0);
    for (wanted, k) in [(0.05, 1.0768), (0.1, 1.1577), (0.2, 1.3327), (0.3, 1.5283), (0.5, 1.9974)] {
        close(speedup_needed(step_ms, attention_ms, wanted).unwrap(), k, 1e-4, "speed-up needed");
        close(uplift(step_ms, attention_ms * (1.0 - 1.0 / k)), wanted, 1e-4, "and back");
    }
    let halved = project(&linear(), "attention / 2", &Roofline::new());
    let needed = halved.rows[7].speedups_needed.map(Option::unwrap);
    close(needed[3], 1.9974, 1e-4, "+50 % at 96");
    assert_eq!(halved.rows[0].speedups_needed, [None; 4], "attention at 1 is 2 % of the linear step");
    // The change that was made brought 12.8 % at 64 and 5.7 % at 96: so attention had taken 1.22 and 1.09 times as long.
    for (batch, gained, ratio) in [(64, 0.128, 1.22), (96, 0.057, 1.085)] {
        let (after_ms, attention_ms) = (step.step_ms(batch), ATTENTION_MS * f64::from(batch));
        let lost_ms = after_ms * gained;
        close(
            speedup_needed(after_ms + lost_ms, attention_ms + lost_ms, gained).unwrap(),
            ratio,
            0.006,
            "implied",
        );
    }
}

#[test]
fn the_slope_is_88_times_its_roofline() {
    let bytes = 43.0 * (512.0 + 128.0) * 584.0;
    let per_request_ms = bytes / 1.792e12 * 1e3;
    let roofline: Roofline =
        BATCHES.iter().map(|batch| (*batch, per_request_ms * f64::from(*batch))).collect();
    for row in project(&linear(), "attention / 2", &roofline).rows {
        close(row.times_roofline.unwrap(), 88.0, 0.5, "times the roofline");
        assert!(row.ceiling.unwrap() < uplift(row.step_ms, row.part_ms));
    }
}

#[test]
fn a_lever_is_decided_by_a_threshold_fixed_before() {
    let decide = |lever: &str, batches: &[u32], threshold: f64| {
        let forms =
            [project(&linear(), lever, &Roofline::new()), project(&concave(), lever, &Roofline::new())];
        Decision::by(&forms, batches, threshold, Some(10.0))
    };
    // Halving attention: 34 to 50 % at 96, 1 % at 1.
    let at_96 = decide("attention / 2", &[96], 0.3);
    assert_eq!(at_96.verdict, Verdict::Go);
    close(at_96.expected_gain, 0.415, 0.01, "expected gain");
    close(at_96.gain_per_day.unwrap(), 0.0415, 0.001, "a day");
    assert_eq!(decide("attention / 2", &[1, 96], 0.3).verdict, Verdict::Open);
    assert_eq!(decide("attention / 2", &[1], 0.05).verdict, Verdict::NoGo);
    assert_eq!(decide("attention / 2", &[96], 0.42).verdict, Verdict::Open);
    assert_eq!(decide("attention x 1.2", &[64, 96], 0.01).verdict, Verdict::NoGo);
    close(decide("attention x 1.2", &[96], 0.01).expected_gain, 0.0, 1e-12, "a loss is not kept");
}

fn split_kernel() -> Kernel {
    let launch = Launch {
        warps_per_cta: 4,
        registers_per_thread: 255,
        shared_bytes_per_cta: 60 << 10,
        named_barriers_per_cta: 1,
    };
    Kernel { launch, architecture: Architecture::of_sm(120).unwrap() }
}

fn project_kernel(lever: &str) -> Projection {
    let lever: Lever = lever.parse().unwrap();
    let Lever::Kernel { change, .. } = &lever else { panic!("{lever}") };
    let mechanism = Mechanism::of(change, Some(&split_kernel())).unwrap();
    let number = |number| NonZeroU32::new(number).unwrap();
    let grid = Grid { sms: number(188), ctas_per_request: number(4) };
    let effect = Effect::of(&lever, Part::Family("attention".into()), Some(mechanism), Some(grid)).unwrap();
    let random = &mut fastrand::Rng::with_seed(7);
    Projection::of(&linear(), &effect, &BATCHES, Transfer::default(), &Roofline::new(), random).unwrap()
}

#[test]
fn a_mechanism_that_does_not_move_projects_nothing() {
    let registers = project_kernel("registers -> 128");
    assert!(registers.rows.iter().all(|row| [row.as_told, row.p5, row.p50, row.p95] == [0.0; 4]));
    let decision = Decision::by(&[registers], &BATCHES, 0.0, Some(20.0));
    assert_eq!((decision.verdict, decision.expected_gain), (Verdict::NoMechanism, 0.0));
    // A second CTA: from nothing to what the waves allow, which is nothing where they do not change.
    let memory = project_kernel("shared memory -> 49 KB");
    let row = |batch| memory.rows.iter().find(|row| row.batch == batch).unwrap();
    assert_eq!((row(32).p95, row(32).as_told), (0.0, 0.0));
    close(row(96).as_told, 0.28620, 1e-4, "three waves become two");
    close(row(64).as_told, 0.40403, 1e-4, "two waves become one");
    assert!(row(96).p5 > 0.0 && row(96).p5 < 0.03 && row(96).p95 < row(96).as_told, "{:?}", row(96));
}

#[test]
fn a_profile_projects_as_the_numbers_it_was_made_of() {
    let concave = concave().best();
    let seed = 23;
    let mut random = fastrand::Rng::with_seed(seed);
    // Five runs at the larger batches only; what slows a run down slows all of it.
    let profiled = &BATCHES[3..];
    let factors: Vec<[f64; 5]> =
        profiled.iter().map(|_| std::array::from_fn(|_| 1.0 + 0.004 * (random.f64() - 0.5))).collect();
    let runs = |ms: &dyn Fn(u32) -> f64| -> RunsByBatch {
        let of_batch =
            |(batch, factors): (&u32, &[f64; 5])| (*batch, factors.map(|f| f * ms(*batch)).to_vec());
        profiled.iter().zip(&factors).map(of_batch).collect()
    };
    let families = ["attention", "moe", REST].map(|name| Family {
        name: name.into(),
        step_ms: runs(&|batch| concave.part_ms(&Part::Family(name.into()), batch).unwrap()),
        roofline_ms: Roofline::new(),
    });
    let step_ms = runs(&|batch| concave.step_ms(batch));
    let profile = Profile::new("mock", Settings::new(), StepClock::Wall, step_ms, families.into()).unwrap();
    let forms = Forms { experts: Some(Experts::default()), stairs: vec![] };
    let fit = ProfileFit::of(&profile, &forms, &mut random).unwrap();
    let (chosen, line) = (FittedStep::chosen(&fit), FittedStep::of_kind(&fit, FormKind::Linear));
    assert!(!chosen.is_same_as(&line) && chosen.is_same_as(&chosen));
    let lever: Lever = "attention / 2".parse().unwrap();
    let effect = Effect::of(&lever, Part::Family("attention".into()), None, None).unwrap();
    let mut of = |model: &FittedStep| {
        Projection::of(model, &effect, &BATCHES, Transfer::default(), &Roofline::new(), &mut random).unwrap()
    };
    let (by_experts, by_line) = (of(&chosen), of(&line));
    for (row, (batch, expected, _)) in by_experts.rows.iter().zip(&UPLIFTS) {
        close(row.as_told, expected[2].1, 0.01, &format!("batch {batch}, seed {seed}"));
    }
    assert!(by_experts.differs_from(&by_line), "a line through large batches is wrong at small ones");
}

#[test]
fn what_is_no_step_is_refused() {
    let told = |step: TypedStep| step.check().expect_err("no step").to_string();
    let slope = |name: &str, ms| (name.to_owned(), ms);
    for (step, part) in [
        (TypedStep { floor_ms: -1.0, ..linear() }, "the floor takes -1 ms"),
        (TypedStep { floor_ms: f64::NAN, ..linear() }, "the floor takes NaN ms"),
        (TypedStep { slopes_ms: vec![slope("moe", f64::INFINITY)], ..linear() }, "moe takes inf ms"),
        (TypedStep { slopes_ms: vec![slope("moe", 1.0), slope("moe", 2.0)], ..linear() }, "told twice"),
        (TypedStep { sigma: 5.0, ..linear() }, "a sigma of 500 %"),
        (
            TypedStep { throughput: Some(SeenThroughput { high: 9.0, ..SEEN }), ..linear() },
            "smaller one first",
        ),
        (TypedStep { throughput: Some(SeenThroughput { low: 0.0, ..SEEN }), ..linear() }, "above 0"),
        (TypedStep { floor_ms: 9.0, throughput: None, ..concave() }, "more than floor and slopes leave"),
    ] {
        assert!(told(step).contains(part), "{part}");
    }
    let all: Lever = "step - 500 ms".parse().unwrap();
    let effect = Effect::of(&all, Part::Step, None, None).unwrap();
    let random = &mut fastrand::Rng::with_seed(1);
    let error =
        Projection::of(&linear(), &effect, &[96], Transfer::default(), &Roofline::new(), random).unwrap_err();
    assert!(error.to_string().contains("at batch 96 would be left"), "{error}");
}

#[test]
fn draws_end_at_the_roofline() {
    let roofline: Roofline = BATCHES.iter().map(|batch| (*batch, 0.5 * f64::from(*batch))).collect();
    let projection = project(&linear(), "attention / 10", &roofline);
    let row = projection.rows.last().unwrap();
    let ceiling = row.ceiling.unwrap();
    assert!(row.as_told > 1.5 * ceiling, "{row:?}");
    // Slopes are drawn, and the roofline is not: what is above it differs by several sigma of the slope.
    close(row.p50, ceiling, 0.15 * ceiling, "the middle");
    assert!(row.p95 < 0.7 * row.as_told, "{row:?}");
}

#[test]
fn a_draw_in_which_a_part_exceeds_the_step_is_no_end() {
    // Nearly all of the step is attention, so that by chance a draw has more of it than there is.
    let seed = 5;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut noisy = |share: f64| -> RunsByBatch {
        let mut runs = |batch: u32| -> Vec<f64> {
            (0..5).map(|_| share * f64::from(batch) * (0.9 + 0.2 * random.f64())).collect()
        };
        [8, 32, 64, 96].into_iter().map(|batch| (batch, runs(batch))).collect()
    };
    let (step_ms, attention_ms) = (noisy(1.0), noisy(0.99));
    let family = Family { name: "attention".into(), step_ms: attention_ms, roofline_ms: Roofline::new() };
    let profile = Profile::new("mock", Settings::new(), StepClock::Wall, step_ms, vec![family]).unwrap();
    let fit = ProfileFit::of(&profile, &Forms::default(), &mut random).unwrap();
    let lever: Lever = "attention / 100".parse().unwrap();
    let effect = Effect::of(&lever, Part::Family("attention".into()), None, None).unwrap();
    let (model, transfer) = (FittedStep::chosen(&fit), Transfer::default());
    let of = |batches: &[u32]| {
        let random = &mut fastrand::Rng::with_seed(seed);
        Projection::of(&model, &effect, batches, transfer, &Roofline::new(), random)
    };
    let projection = of(&BATCHES).unwrap();
    assert!(projection.rows.iter().all(|row| row.p5 > 0.0 && row.p95 <= 99.1), "{:?}", projection.rows);
    let many: Vec<u32> = (1..=257).collect();
    assert!(of(&many).unwrap_err().to_string().contains("at most 256"));
}
