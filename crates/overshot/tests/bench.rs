//! `overshot bench` through its command line: a small sweep over the built-in model, its files, and what is refused.

#![cfg(feature = "embedded-model")]
#![allow(clippy::unwrap_used)]

mod program;

use serde_json::Value;
use std::path::Path;
use std::process::Output;

fn overshot(folder: &Path, arguments: &[&str]) -> Output {
    program::overshot(arguments)
        .current_dir(folder)
        .env("NO_COLOR", "1")
        .output()
        .unwrap_or_else(|error| panic!("overshot cannot be started: {error}"))
}

const SWEEP: [&str; 17] = [
    "bench",
    "--concurrency",
    "1,3",
    "--prefill",
    "32",
    "--prompt-tokens",
    "16",
    "--max-tokens",
    "9",
    "--repeats",
    "2",
    "--noise-blocks",
    "1",
    "--threads",
    "2",
    "--out",
    "runs.jsonl",
];

#[test]
fn a_sweep_measures_writes_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [&SWEEP[..], &["--json", "--svg", "plot.svg", "--markdown", "table.md"]].concat();
    let first = overshot(folder.path(), &arguments);
    let log = String::from_utf8_lossy(&first.stderr).into_owned();
    assert!(first.status.success(), "{log}");
    // Four runs for the noise of decode and of prefill, then two rounds of three points.
    assert!(log.contains("[14/14]"), "{log}");
    let report: Value = serde_json::from_slice(&first.stdout).unwrap();
    let decode = &report["works"][0];
    assert_eq!(decode["work"], "decode");
    for point in decode["points"].as_array().unwrap() {
        for metric in ["tokens_per_s", "step_ms", "device_ms", "limit_ms", "context_tokens"] {
            let spread = &point["metrics"][metric];
            assert_eq!(spread["count"], 2, "{metric} in {point}");
            assert!(spread["median"].as_f64().unwrap() > 0.0, "{metric} in {point}");
        }
        let context = point["metrics"]["context_tokens"]["median"].as_f64().unwrap();
        assert!((17.0..60.0).contains(&context), "{context}");
    }
    assert!(decode["fit"]["line"]["slope"].as_f64().is_some());
    assert_eq!(report["works"][1]["points"][0]["metrics"]["prompt_tokens"]["median"], 32.0);
    assert!(decode["noise"]["bands"]["tokens_per_s"]["share"].as_f64().is_some());
    let svg = std::fs::read_to_string(folder.path().join("plot.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("streams"));
    assert!(std::fs::read_to_string(folder.path().join("table.md")).unwrap().contains("| streams |"));
    let runs = std::fs::read_to_string(folder.path().join("runs.jsonl")).unwrap();
    assert_eq!(runs.lines().count(), 15);

    // Nothing is missing: nothing is measured.
    let again = overshot(folder.path(), &SWEEP);
    let log = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(again.status.success() && !log.contains("warming up"), "{log}");
    assert!(String::from_utf8_lossy(&again.stdout).contains("step time: floor"));

    let other = [&SWEEP[..], &["--kv", "f32"]].concat();
    let refused = overshot(folder.path(), &other);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{told}");
    assert!(told.contains("runs.jsonl was measured with another numerics"), "{told}");
}

#[test]
fn what_cannot_be_measured_is_told_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = format!("http://{closed}");
    for (arguments, code, part) in [
        (&["bench", "--url", "localhost:8000"][..], 2, "must begin with http://"),
        (&["bench", "--url", &nobody], 1, "it cannot be reached"),
        (&["bench", "--url", &nobody, "--api-key-env", "NO_SUCH_NAME"], 2, "has no NO_SUCH_NAME"),
        (&["bench", "--api-key-env", "X"], 2, "required arguments were not provided: --url"),
        (&["bench", "--svg", "no/folder/x.svg"], 2, "no place for this file"),
        (&["bench", "--repeats", "0"], 2, "a whole number of at least 1"),
        (&["bench", "--concurrency", "2000"], 2, "from 1 to 1024"),
        (&["bench", "--timeout", "0", "--url", "http://x"], 2, "a number of seconds"),
    ] {
        let output = overshot(folder.path(), arguments);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {told}");
        assert!(told.contains(part) && told.lines().count() == 1, "{arguments:?}: {told}");
    }
}

#[test]
fn points_beyond_the_context_are_refused_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let output = overshot(folder.path(), &["bench", "--prefill", "99999999"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("where the model's context holds"), "{told}");
}
