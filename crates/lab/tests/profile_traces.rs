//! Profiles out of traces through the public door: known costs come back, and no damage to a file makes a panic.

#![allow(clippy::unwrap_used)]

use overshot_lab::profile::families::FamilyRules;
use overshot_lab::profile::trace::{StepRule, TraceOptions, TracedSteps, profile_of_traces, read_trace};
use overshot_lab::profile::{Experts, FormKind, Forms, HOST_GAP, ProfileFit};
use overshot_lab::report;
use std::fmt::Write as _;
use std::io::Write as _;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

/// Kernels of a step with what they cost: floor and slope in ms, launches a step.
const COSTS: [(&str, &str, f64, f64, u32); 4] = [
    ("void flash_fwd_splitkv_mla_kernel<Traits<576>>(Params)", "attention", 0.4, 0.79, 4),
    ("fused_moe_kernel", "experts", 20.0, 0.015, 4),
    ("nvjet_tst_64x8_64x16_4x1_v_bz_TNN", "dense matmul", 9.0, 0.002, 8),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "communication", 3.0, 0.004, 4),
];
const GAP_MS: f64 = 1.5;
const STEPS: usize = 12;

fn step_ms(batch: u32) -> f64 {
    GAP_MS + COSTS.iter().map(|(_, _, floor, slope, _)| floor + slope * f64::from(batch)).sum::<f64>()
}

/// As PyTorch's profiler writes it, steps annotated on the device, every time off by up to 1 %.
fn chrome_trace(batch: u32, random: &mut fastrand::Rng) -> String {
    let mut json = String::from(
        "{\"schemaVersion\": 1, \"deviceProperties\": [{\"id\": 0, \"name\": \"NVIDIA H200\", \"numSms\": 132}],\n\"traceEvents\": [\n",
    );
    let mut now = 5.0e6;
    for step in 0..=STEPS {
        let begin = now;
        let mut noisy = |ms: f64| ms * 1e3 * (1.0 + 0.02 * (random.f64() - 0.5));
        for (kernel, _, floor, slope, launches) in COSTS {
            let each = (floor + slope * f64::from(batch)) / f64::from(launches);
            for _ in 0..launches {
                let us = noisy(each);
                writeln!(
                    json,
                    "{{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"{kernel}\", \"pid\": 0, \"tid\": 7, \"ts\": {now:.3}, \"dur\": {us:.3}, \
                     \"args\": {{\"device\": 0, \"stream\": 7, \"correlation\": {step}}}}},"
                )
                .unwrap();
                now += us;
            }
        }
        writeln!(
            json,
            "{{\"ph\": \"X\", \"cat\": \"gpu_user_annotation\", \"name\": \"step[DECODE bs={batch}]\", \"pid\": 0, \"tid\": 7, \"ts\": \
             {begin:.3}, \"dur\": {:.3}}},",
            now - begin
        )
        .unwrap();
        now += noisy(GAP_MS);
    }
    json + "{\"ph\": \"i\", \"name\": \"Record Window End\", \"pid\": \"\", \"tid\": \"\", \"ts\": 1}]}"
}

fn kernel_trace_csv(batch: u32) -> String {
    let mut csv = "Start (ns),Duration (ns),CorrId,Device,Ctx,Strm,Name\n".to_owned();
    let mut now = 1000.0;
    for _ in 0..=STEPS {
        for (kernel, _, floor, slope, _) in COSTS {
            let ns = (floor + slope * f64::from(batch)) * 1e6;
            writeln!(csv, "{now:.0},{ns:.0},1,NVIDIA H200 (0),1,7,\"{kernel}\"").unwrap();
            now += ns;
        }
        now += GAP_MS * 1e6;
    }
    csv
}

fn options(steps: StepRule) -> TraceOptions {
    TraceOptions { rules: FamilyRules::default(), steps, category: None }
}

fn written(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn assert_costs_come_back(traces: &[(u32, PathBuf, TracedSteps)], steps: usize, off_by: f64) {
    let profile = profile_of_traces("pair", traces).unwrap();
    let random = &mut fastrand::Rng::with_seed(3);
    let fit = ProfileFit::of(&profile, &Forms::default(), random).unwrap();
    let runs: Vec<usize> = profile.step_ms().values().map(Vec::len).collect();
    assert_eq!(runs, [steps; 2]);
    for (_, family, floor, slope, _) in COSTS {
        let found = fit.family(family).unwrap().linear().curve;
        assert!((found.slope_ms - slope).abs() < off_by * (slope + floor / 50.0), "{family}: {found:?}");
        assert!((found.floor_ms - floor).abs() < off_by * (floor + 30.0 * slope), "{family}: {found:?}");
    }
    let gap = fit.family(HOST_GAP).unwrap();
    assert!((gap.at(40) - GAP_MS).abs() < off_by * GAP_MS, "{gap:?}");
    assert!((fit.step.at(40) - step_ms(40)).abs() < off_by * step_ms(40));
}

#[test]
fn known_costs_come_back_from_a_pair_of_chrome_traces() {
    let folder = tempfile::tempdir().unwrap();
    let seed = 61;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut traces = Vec::new();
    for batch in [16, 96] {
        let trace = chrome_trace(batch, &mut random);
        let path = written(folder.path(), &format!("b{batch}.json.gz"), &packed(trace.as_bytes()));
        let steps = read_trace(&path, &options(StepRule::Found)).unwrap();
        assert_eq!((steps.device.as_deref(), steps.sms), (Some("NVIDIA H200"), Some(132)));
        // Plain is the same as packed.
        let plain = written(folder.path(), "plain.json", trace.as_bytes());
        assert_eq!(read_trace(&plain, &options(StepRule::Found)).unwrap(), steps);
        traces.push((batch, path, steps));
    }
    assert_costs_come_back(&traces, STEPS, 0.02);
}

#[test]
fn known_costs_come_back_from_statistics_of_nsight_systems() {
    let folder = tempfile::tempdir().unwrap();
    let traces = [16, 96].map(|batch| {
        let path = written(folder.path(), &format!("b{batch}.csv"), kernel_trace_csv(batch).as_bytes());
        (batch, path.clone(), read_trace(&path, &options(StepRule::Found)).unwrap())
    });
    // Found by their gaps, the first step may be one that was cut.
    assert_costs_come_back(&traces, STEPS - 1, 0.001);
}

#[test]
fn traces_of_two_cards_or_kinds_are_not_mixed() {
    let folder = tempfile::tempdir().unwrap();
    let random = &mut fastrand::Rng::with_seed(1);
    let chrome = chrome_trace(16, random);
    let read = |name: &str, bytes: &str, steps| {
        let path = written(folder.path(), name, bytes.as_bytes());
        (16, path.clone(), read_trace(&path, &options(steps)).unwrap())
    };
    let one = read("a.json", &chrome, StepRule::Found);
    let other = read("b.json", &chrome.replace("H200", "B200"), StepRule::Found);
    let told = profile_of_traces("pair", &[one.clone(), other]).unwrap_err().to_string();
    assert!(told.contains("b.json ran on NVIDIA B200 and the first trace on NVIDIA H200"), "{told}");
    let sum = "Total Time (ns),Name\n5000,k\n";
    let other = read("c.csv", sum, StepRule::Count(NonZeroU32::MIN));
    let told = profile_of_traces("pair", &[one, other]).unwrap_err().to_string();
    assert!(told.contains("c.csv has other step times"), "{told}");
}

/// The plot and the text of what was read hold every family, and no number that is none.
#[test]
fn what_was_read_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let random = &mut fastrand::Rng::with_seed(1);
    let traces = [1, 8, 16, 32, 64, 96].map(|batch| {
        let path = written(folder.path(), "trace.json", chrome_trace(batch, random).as_bytes());
        (batch, path.clone(), read_trace(&path, &options(StepRule::Found)).unwrap())
    });
    let profile = profile_of_traces("pair", &traces).unwrap();
    let forms = Forms { experts: Some(Experts::default()), stairs: Vec::new() };
    let analysis = overshot_lab::profile::analysis::Analysis::of(&profile, &forms, &[], random).unwrap();
    assert_eq!(analysis.growth.as_ref().unwrap().chosen.curve.form.kind(), FormKind::Linear);
    for form in [report::Form::Terminal, report::Form::Markdown] {
        let mut text = Vec::new();
        overshot_lab::profile::text::write(&analysis, form, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for part in [
            "The slope is attention: 0.7",
            "the floor is experts: 20",
            "communication",
            "Throughput saturates at 1,2",
            "A tenth less of attention brings 7.3 % at B=96 and 0.3 % at B=1.",
            "whole step",
        ] {
            assert!(text.contains(part), "`{part}` is missing in\n{text}");
        }
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        let widest = text.lines().filter(|line| line.starts_with(' ')).map(|line| line.chars().count()).max();
        assert!(form == report::Form::Markdown || widest.unwrap() <= 100, "{text}");
    }
    let svg = overshot_lab::profile::plots::plot(&analysis, "H200").svg();
    assert!(svg.contains("requests that decode together") && svg.contains(">attention</text>"));
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
}

#[test]
fn no_mutation_makes_it_panic() {
    let folder = tempfile::tempdir().unwrap();
    let seed = 67;
    let mut random = fastrand::Rng::with_seed(seed);
    let small = |text: String| text.lines().take(40).collect::<Vec<_>>().join("\n");
    let chrome = small(chrome_trace(16, &mut random)).trim_end_matches(',').to_owned() + "]}";
    let csv = small(kernel_trace_csv(16));
    let rules =
        std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/profile/families.toml")).unwrap();
    let good: [(&str, Vec<u8>); 4] = [
        ("a.json", chrome.clone().into_bytes()),
        ("a.json.gz", packed(chrome.as_bytes())),
        ("a.csv", csv.into_bytes()),
        ("a.toml", rules),
    ];
    let cases = overshot_testing::asked_cases();
    let rule = [
        StepRule::Found,
        StepRule::Count(NonZeroU32::MIN),
        StepRule::Kernel(overshot_lab::profile::trace::pattern("moe").unwrap()),
    ];
    for case in 0..cases.unwrap_or(2000_usize) {
        let (name, good) = &good[case % good.len()];
        let mut bytes = good.clone();
        for _ in 0..random.usize(1..5) {
            let at = random.usize(..bytes.len());
            match random.u8(..4) {
                0 => bytes[at] = random.u8(..),
                1 => bytes.truncate(at.max(1)),
                2 => bytes.insert(at, *random.choice(b"0123456789-.eE{}[],:\"n\n*").unwrap()),
                _ => bytes[at] = *random.choice(b"0123456789-.eE{}[],:\"n\n*").unwrap(),
            }
        }
        let path = written(folder.path(), name, &bytes);
        if name.ends_with("toml") {
            if let Err(error) = FamilyRules::read(&path) {
                assert!(error.is_bad_input(), "seed {seed}, case {case}: {error}");
            }
            continue;
        }
        match read_trace(&path, &options(rule[case % rule.len()].clone())) {
            // Whatever is read is a profile, or its times are beyond what one holds.
            Ok(steps) => {
                if let Err(error) = profile_of_traces("mutated", &[(16, path, steps)]) {
                    assert!(error.is_bad_input(), "seed {seed}, case {case}: {error}");
                }
            }
            Err(error) => assert!(error.is_bad_input(), "seed {seed}, case {case}: {error}"),
        }
    }
}
