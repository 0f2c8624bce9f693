//! What the founding campaign's numbers imply, against the worked example's own results.

#![allow(clippy::unwrap_used)]

use overshot_lab::ledger::{LeverName, Status};
use overshot_lab::project::Verdict;
use overshot_lab::replay::{Findings, campaign, ledger, write};

fn findings() -> Findings {
    Findings::of(campaign().unwrap()).unwrap()
}

fn close(found: f64, expected: f64, tolerance: f64, what: &str) {
    assert!((found - expected).abs() <= tolerance, "{what}: {found} and not {expected}");
}

#[test]
fn the_findings_are_those_of_the_worked_example() {
    let Findings { kernel, step, anomaly, noise, levers, .. } = findings();
    assert_eq!((kernel.occupancy.ctas_per_sm, kernel.gate.needs[0].at_most), (1, 49 << 10));
    close(step.line.floor, 36.3, 0.05, "floor");
    close(step.floor_ms_of_worst_run, 46.6, 0.05, "floor of the worst run");
    close(step.asymptote_per_s, 1242.0, 0.5, "asymptote");
    let one = &step.at[0];
    for (found, expected) in
        [(one.linear_ms, 37.1), (one.concave_ms, 16.1), (one.by_waves_ms, 25.0), (one.expert_weights_ms, 0.6)]
    {
        close(found, expected, 0.06, "a step of one request");
    }
    close(step.eight_warps_ms[0], 6.0, 0.06, "8 warps");
    close(step.attention_at_1_ms_by_waves, 6.0, 0.06, "attention by waves");
    close(anomaly.time_ratio_needed, 1.316, 0.002, "ratio needed");
    assert_eq!(anomaly.simplest.unwrap().ctas_per_request, 4);
    close(noise.sigma, 0.0372, 0.0005, "sigma");
    close(noise.single_run_band, 0.103, 0.001, "band");
    let inside: Vec<bool> = noise.claims.iter().map(|claim| claim.inside_band).collect();
    assert_eq!(inside, [false, true]);
    let [registers, memory, half] = levers.as_slice() else { panic!("{levers:?}") };
    assert_eq!((registers.ctas_per_sm, registers.decision.verdict), (Some((1, 1)), Verdict::NoMechanism));
    assert!(registers.rows.iter().all(|row| row.p5 == 0.0 && row.p95 == 0.0));
    assert_eq!(memory.ctas_per_sm, Some((1, 2)));
    assert_eq!(half.decision.verdict, Verdict::Go);
    close(half.rows.last().unwrap().as_told, 0.501, 0.001, "attention halved at 96");
    close(half.rows[0].as_told, 0.011, 0.001, "attention halved at 1");
}

/// What the files of open levers say of the projection is what is computed.
#[test]
fn stored_projections_are_the_computed_ones() {
    let findings = findings();
    let ledger = ledger().unwrap();
    for (name, lever) in
        [("registers-128", "registers -> 128"), ("shared-memory-49k", "shared memory -> 49 KB")]
    {
        let found = findings.levers.iter().find(|found| found.lever == lever).unwrap();
        let row = found.rows.last().unwrap();
        let stored = &ledger.entry(&name.parse().unwrap()).unwrap().lever.projections[0].uplift_percent;
        for (computed, stored) in [row.p5, row.p50, row.p95].into_iter().zip(stored) {
            close(computed * 100.0, *stored, 0.5, name);
        }
    }
}

#[test]
fn the_ledger_closes_nothing_that_was_not_tested() {
    let ledger = ledger().unwrap();
    assert_eq!(ledger.problems(), []);
    for (name, status) in [
        ("target-512-ctas", Status::Adopted),
        ("block-h-16", Status::NotTested),
        ("eight-warps", Status::Refuted),
        ("three-stages", Status::Refuted),
        ("two-ctas-per-sm", Status::NotTested),
        ("registers-128", Status::Open),
        ("shared-memory-49k", Status::Open),
        ("split-by-batch", Status::Open),
        ("overlap-scheduler", Status::Reverted),
    ] {
        let name: LeverName = name.parse().unwrap();
        assert_eq!(ledger.entry(&name).unwrap().ruling.status, status, "{name}");
    }
    assert_eq!(ledger.ranked()[0].name.as_str(), "shared-memory-49k");
    assert_eq!(ledger.ranked()[2].name.as_str(), "registers-128");
}

#[test]
fn the_report_says_so() {
    let mut text = Vec::new();
    write(&findings(), &ledger().unwrap(), &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "Simplest explanation: 4 CTAs per request",
        "registers -> 128: an SM holds 1 CTA as before (1 -> 1), so the projected uplift is 0: no-go.",
        "2 CTAs per SM need <= 49 KB of shared memory; registers are not the limit.",
        "two-ctas-per-sm not-tested A second CTA on each SM",
        "its mechanism did not move: CTAs per SM 1 -> 1 where 2 was predicted",
        "+5.7 % (512 CTAs at C=96) is inside the single-run band",
        "T(B) = 36.3 ms + 0.805 ms B",
        "no more than 1,242 tok/s",
        "The linear floor is wrong at small batches",
        "shared-memory-49k open Tiles of half the size: at most 49 KB of shared memory",
        "two single runs differ by up to 10.3 % by chance",
        "Next: shared-memory-49k",
    ] {
        assert!(words.contains(part), "no `{part}` in\n{text}");
    }
}
