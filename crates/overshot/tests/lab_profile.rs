//! `overshot lab profile` as a program: traces to a report, a plot and a saved profile; a sweep over the built-in model; and
//! bad input ends with exit code 2 and one sentence.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Output};

fn overshot(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_overshot")).args(arguments).current_dir(folder).output().unwrap()
}

/// Six steps of attention (1 ms + 0.5 ms a request), experts (8 ms) and an unknown kernel (1 ms), 2 ms apart.
fn trace(batch: u32) -> String {
    let mut json = String::from("{\"traceEvents\": [");
    let mut now = 1000.0;
    for _ in 0..6 {
        for (name, ms) in
            [("flash_decode", 1.0 + 0.5 * f64::from(batch)), ("fused_moe", 8.0), ("my_own", 1.0)]
        {
            let us = ms * 1e3;
            write!(
                json,
                "{{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"{name}\",\"ts\":{now},\"dur\":{us}}},"
            )
            .unwrap();
            now += us;
        }
        now += 2000.0;
    }
    json.trim_end_matches(',').to_owned() + "]}"
}

#[test]
fn traces_become_a_report_and_a_profile() {
    let folder = tempfile::tempdir().unwrap();
    for batch in [1, 16, 64] {
        std::fs::write(folder.path().join(format!("b{batch}.json")), trace(batch)).unwrap();
    }
    let line = "lab profile --trace 1=b1.json --trace 16=b16.json --trace 64=b64.json --name mock --save p.json --svg p.svg \
                --markdown p.md";
    let output = overshot(folder.path(), &line.split_whitespace().collect::<Vec<_>>());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let text = text.replace("\n  ", " ");
    for part in [
        "mock\n",
        "The slope is attention: 0.500 of 0.500 ms a request (100 % of it); the floor is experts: 8.00 of 12.0 ms (67 % of it).",
        "Throughput saturates at 2,000 (2,000 to 2,000) tokens/s: half of it at B=2",
        "most of it `my_own`",
    ] {
        assert!(text.contains(part), "`{part}` is missing in\n{text}");
    }
    assert!(std::fs::read_to_string(folder.path().join("p.svg")).unwrap().starts_with("<svg"));
    assert!(std::fs::read_to_string(folder.path().join("p.md")).unwrap().contains("| family | B=1 |"));

    // What was saved says the same, and takes a roofline and tiles.
    let line = "lab profile --from p.json --json --roofline attention=10MB/request --roofline attention=100MB/step --bandwidth \
                1000 --sms 188 --ctas-per-request 4 --tiles attention=32 --layers 43";
    let output = overshot(folder.path(), &line.split_whitespace().collect::<Vec<_>>());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let attention = report["families"].as_array().unwrap().iter().find(|f| f["name"] == "attention").unwrap();
    let cell = &attention["cells"][2];
    assert_eq!((cell["batch"].as_u64(), cell["ms"].as_f64()), (Some(64), Some(33.0)));
    let near = |value: &Value, expected: f64| (value.as_f64().unwrap() / expected - 1.0).abs() < 1e-6;
    assert!(near(&cell["times_roofline"], 33.0 / 0.74), "{cell}");
    assert!(near(&cell["iteration_us"], 33e3 / (43.0 * 2.0 * 8.0)), "{cell}");
    assert!(near(&attention["growth"]["linear"]["slope_ms"], 0.5), "{attention}");
}

/// The example of the documentation is what a profile in this repository gives.
#[test]
fn the_transcript_of_the_documentation_is_real() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("docs/lab-profile.md")).unwrap();
    let block = text.split("```console\n$ overshot ").nth(1).unwrap().split("```").next().unwrap();
    let (command, shown) = block.split_once('\n').unwrap();
    let output = overshot(&root, &command.split_whitespace().collect::<Vec<_>>());
    let printed = String::from_utf8(output.stdout).unwrap();
    for part in shown.split("...\n") {
        assert!(printed.contains(part.trim()), "`{command}` prints\n{printed}\nand not\n{part}");
    }
}

#[test]
fn rules_of_families_are_printed_and_can_be_changed() {
    let folder = tempfile::tempdir().unwrap();
    let printed = overshot(folder.path(), &["lab", "profile", "--print-families"]).stdout;
    let rules =
        String::from_utf8(printed).unwrap() + "\n[[family]]\nname = \"mine\"\nkernels = [\"my_own\"]\n";
    std::fs::write(folder.path().join("rules.toml"), rules).unwrap();
    std::fs::write(folder.path().join("b1.json"), trace(1)).unwrap();
    let arguments = ["lab", "profile", "--trace", "1=b1.json", "--families", "rules.toml"];
    let text = String::from_utf8(overshot(folder.path(), &arguments).stdout).unwrap();
    assert!(text.contains("mine") && !text.contains("my_own") && text.contains("One batch:"), "{text}");
}

#[test]
fn what_is_faster_than_its_roofline_is_told() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("b4.json"), trace(4)).unwrap();
    let line = "lab profile --trace 4=b4.json --roofline attention=6GB/step --bandwidth 1000";
    let output = overshot(folder.path(), &line.split_whitespace().collect::<Vec<_>>());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("attention takes 50 % of its roofline's time at B=4, which cannot be"), "{text}");
}

#[cfg(feature = "embedded-model")]
#[test]
fn the_engine_in_this_process_is_profiled() {
    let folder = tempfile::tempdir().unwrap();
    let line = "lab profile --concurrency 1,4 --repeats 2 --prompt-tokens 16 --max-tokens 9 --seconds 0.2 --threads 2 --json \
                --out runs.jsonl";
    let output = overshot(folder.path(), &line.split_whitespace().collect::<Vec<_>>());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<&str> = report["families"]
        .as_array()
        .unwrap()
        .iter()
        .map(|family| family["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["device", "host gap"]);
    assert!(report["families"][0]["cells"][1]["times_roofline"].as_f64().unwrap() > 0.0);
    assert!(report["growth"]["linear"]["slope_ms"].as_f64().is_some());
}

#[test]
fn bad_input_is_one_sentence_and_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let good = trace(4);
    for (name, bytes) in [
        ("good.json", good.as_str()),
        ("cut.json", &good[..good.len() / 2]),
        ("cut.json.gz", "\u{1f}\u{8b}"),
        ("empty.json", ""),
        ("other.json", "{\"a\": 1}"),
        ("notes.txt", "my notes\n"),
        ("sum.csv", "Total Time (ns),Name\n5000,k\n"),
        ("rules.toml", "[[family]]\nname = \"a\"\nkernels = [\"*\"]\n"),
        (
            "profile.json",
            "{\"profile_format\": 1, \"subject\": \"x\", \"clock\": \"wall\", \"step_ms\": {\"0\": [1]}}",
        ),
    ] {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    for (line, part) in [
        ("--trace 4=cut.json", "cut.json: the trace ends in the middle"),
        ("--trace 4=cut.json.gz", "cut.json.gz: "),
        ("--trace 4=empty.json", "the file is empty"),
        ("--trace 4=other.json", "without traceEvents"),
        ("--trace 4=notes.txt", "neither a chrome trace"),
        ("--trace 4=sum.csv", "--steps"),
        ("--trace 4=no/such.json", "cannot be opened"),
        ("--trace 4=.", "not a regular file"),
        ("--trace good.json", "such as 64=trace.json.gz"),
        ("--trace 0=good.json", "such as 64=trace.json.gz"),
        ("--trace 4=good.json --steps 0", "at least 1"),
        ("--trace 4=good.json --step-kernel nccl", "runs 0 times"),
        ("--trace 4=good.json --category cpu_op", "category `cpu_op`"),
        ("--trace 4=good.json --families rules.toml", "matches everything"),
        ("--trace 4=good.json --url http://x", "cannot be used with"),
        (
            "--trace 4=good.json --roofline atention=1MB/step --bandwidth 9",
            "no family `atention`; its families: experts, attention",
        ),
        ("--trace 4=good.json --roofline attention=1MB --bandwidth 9", "attention=16MB/request"),
        ("--trace 4=good.json --tiles attention=3 --layers 3 --ctas-per-request 3", "--card or --sms"),
        ("--trace 4=good.json --card abacus", "no known card"),
        ("--trace 4=good.json --experts 3", "such as 256:6"),
        ("--trace 4=good.json --seed 3", "cannot be used with"),
        ("--trace 4=good.json --trace 8=good.json", "--trace 8=good.json: this file is given twice"),
        ("--trace 4=good.json --svg one --markdown one", "--svg and --markdown are the same file"),
        ("--from profile.json --steps 3", "cannot be used with"),
        ("--from profile.json --name mine", "cannot be used with"),
        ("--from profile.json", "batch 0"),
        ("--from good.json", "not a profile"),
        ("--trace 4=good.json --save no/folder/p.json", "no place for this file"),
    ] {
        let arguments: Vec<&str> = ["lab", "profile"].into_iter().chain(line.split_whitespace()).collect();
        let output = overshot(folder.path(), &arguments);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{line}: {told}");
        assert!(told.contains(part) && told.lines().count() == 1, "{line}: {told}");
    }
}
