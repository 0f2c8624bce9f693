//! `overshot bench --geometry` through its command line: shapes without a checkpoint, whole and one rank alone, on the CPU and, with
//! feature `gpu-emulator`, over the GPU's kernels on the host; and what is refused or left out.

#![allow(clippy::unwrap_used)]

mod program;

use serde_json::Value;
use std::path::Path;
use std::process::Output;

const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-fp8fp4/config.json");

fn overshot(folder: &Path, arguments: &[&str]) -> Output {
    program::overshot(arguments)
        .current_dir(folder)
        .env("NO_COLOR", "1")
        .output()
        .unwrap_or_else(|error| panic!("overshot cannot be started: {error}"))
}

fn bench(folder: &Path, flags: &[&str]) -> Output {
    let all =
        ["bench", "--geometry", CONFIG, "--noise-blocks", "0", "--max-tokens", "5", "--seconds", "0.01"];
    overshot(folder, &[&all[..], flags].concat())
}

fn report(output: &Output) -> Value {
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Medians of a metric, by point.
fn medians<'a>(work: &'a Value, metric: &'a str) -> impl Iterator<Item = f64> + 'a {
    let points = work["points"].as_array().unwrap().iter();
    points.map(move |point| point["metrics"][metric]["median"].as_f64().unwrap())
}

#[test]
fn a_shape_is_measured_behind_contexts_that_nobody_computed() {
    let folder = tempfile::tempdir().unwrap();
    let flags =
        ["--threads", "2", "--batch", "1,3", "--context", "3000", "--prefill", "40", "--chunk-tokens", "16"];
    let flags = [&flags[..], &["--repeats", "2", "--json", "--out", "runs.jsonl"]].concat();
    let report = report(&bench(folder.path(), &flags));
    let (decode, prefill) = (&report["works"][0], &report["works"][1]);
    assert!(medians(decode, "step_ms").all(|ms| ms > 0.0), "{report}");
    assert!(medians(decode, "context_tokens").all(|tokens| (2900.0..3010.0).contains(&tokens)), "{report}");
    assert!(decode["fit"]["line"]["slope"].as_f64().is_some(), "{report}");
    assert_eq!(medians(prefill, "prompt_tokens").collect::<Vec<_>>(), [40.0]);
    // The settings, and two runs of three points.
    assert_eq!(std::fs::read_to_string(folder.path().join("runs.jsonl")).unwrap().lines().count(), 7);
}

#[test]
fn one_rank_has_its_part_and_no_peers() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--rank-of", "2", "--layers", "1", "--batch", "2", "--repeats", "1", "--threads", "1"];
    let output = bench(folder.path(), &flags);
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(told.contains("config.json over random weights, 1 of 2 layers, one of 2 ranks on cpu"), "{told}");
    assert!(told.contains("Decode: one run a point"), "{told}");
}

#[test]
fn all_ranks_of_a_shape_are_measured_together() {
    let folder = tempfile::tempdir().unwrap();
    let flags =
        ["--tp", "2", "--batch", "1,3", "--context", "600", "--prefill", "40", "--chunk-tokens", "16"];
    let flags = [&flags[..], &["--repeats", "1", "--threads", "2", "--json"]].concat();
    let report = report(&bench(folder.path(), &flags));
    let backend = report["settings"]["backend"].as_str().unwrap();
    assert!(backend.contains("2 ranks x 1 threads"), "{report}");
    let (decode, prefill) = (&report["works"][0], &report["works"][1]);
    assert!(medians(decode, "step_ms").all(|ms| ms > 0.0), "{report}");
    assert!(medians(prefill, "prompt_tokens_per_s").all(|rate| rate > 0.0), "{report}");
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    for (flags, told) in [
        (&["--geometry", "huge"][..], "use flash, pro, or the path of a config.json"),
        (&["--geometry", "missing.json"], "missing.json"),
        (&["--geometry", CONFIG, "--layers", "3"], "has 2"),
        (&["--geometry", CONFIG, "--rank-of", "3"], "use 1, 2 or 4"),
        (&["--geometry", CONFIG, "--rank-of", "4"], "2 o_groups"),
        (&["--geometry", CONFIG, "--tp", "2", "--rank-of", "2"], "cannot be used with"),
        (&["--geometry", CONFIG, "--tp", "4"], "--tp 4: 4 ranks cannot share this model's 2 o_groups"),
        (&["--geometry", CONFIG, "--rank-of", "2", "--backend", "cuda", "--devices", "0,1"], "name one GPU"),
        (&["--geometry", CONFIG, "--context", "99999999"], "where the model's context holds"),
        (&["--layers", "1"], "--geometry"),
    ] {
        let output = overshot(folder.path(), &[&["bench"], flags].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        let lines = error.lines().filter(|line| !line.starts_with("warning: this is a debug build"));
        assert!(output.status.code() == Some(2) && error.contains(told), "{flags:?}: {error}");
        assert_eq!(lines.count(), 1, "{flags:?}: {error}");
    }
}

#[cfg(feature = "gpu-emulator")]
#[test]
fn ranks_on_devices_tell_their_sums_and_waits_apart() {
    if std::process::Command::new("c++").arg("--version").output().is_err() {
        eprintln!("SKIPPED: the emulator needs c++");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--backend", "cuda-emulator", "--tp", "2", "--batch", "1,2", "--context", "300"];
    let report = report(&bench(folder.path(), &[&flags[..], &["--repeats", "1", "--json"]].concat()));
    assert!(report["settings"]["backend"].as_str().unwrap().contains("2 ranks"), "{report}");
    assert!(medians(&report["works"][0], "peers_wait_ms").all(|ms| ms > 0.0), "{report}");
    let families = report["profile"]["families"].as_array().unwrap();
    for name in ["reduce", "wait"] {
        assert!(families.iter().any(|family| family["name"] == name), "{name}: {report}");
    }
}

#[cfg(feature = "gpu-emulator")]
#[test]
fn a_rank_on_a_device_leaves_out_what_does_not_fit() {
    if std::process::Command::new("c++").arg("--version").output().is_err() {
        eprintln!("SKIPPED: the emulator needs c++");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--backend", "cuda-emulator", "--rank-of", "2", "--batch", "1,2,1000", "--context", "2000"];
    let flags =
        [&flags[..], &["--prefill", "24", "--chunk-tokens", "16", "--repeats", "1", "--json"]].concat();
    let flags = [&flags[..], &["--save-profile", "profile.json"]].concat();
    let output = bench(folder.path(), &flags);
    let report = report(&output);
    let log = String::from_utf8_lossy(&output.stderr);
    let left_out = log.lines().find(|line| line.starts_with("decode, 1000 streams, is left out: ")).unwrap();
    assert!(left_out.contains("of GPU memory are needed"), "{log}");
    assert_eq!(report["works"][0]["points"].as_array().unwrap().len(), 2, "{report}");
    let families = report["profile"]["families"].as_array().unwrap();
    let of = |name: &str| families.iter().find(|family| family["name"] == name).unwrap();
    assert!(of("experts up")["cells"][0]["times_roofline"].as_f64().unwrap() > 0.0, "{report}");
    assert!(of("index scores")["growth"]["linear"]["slope_ms"].is_number(), "{report}");
    let saved = overshot(folder.path(), &["lab", "profile", "--from", "profile.json"]);
    assert!(String::from_utf8_lossy(&saved.stdout).contains("attention, CSA"), "{saved:?}");
    assert!(medians(&report["works"][1], "prompt_tokens_per_s").all(|rate| rate > 0.0), "{report}");
}
