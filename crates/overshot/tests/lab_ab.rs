//! `overshot lab noise`, `ab` and `import` as programs: what they print, what they leave in their files, and that bad input ends
//! with exit code 2 and one sentence.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn overshot(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_overshot")).args(arguments).current_dir(folder).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn good(folder: &Path, arguments: &[&str]) -> String {
    let output = overshot(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn refused(folder: &Path, arguments: &[&str], part: &str) {
    let output = overshot(folder, arguments);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {told}");
    let errors: Vec<&str> = told.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(
        matches!(errors.as_slice(), [error] if error.contains(part)),
        "{arguments:?}: {told}, not {part}"
    );
}

fn sample(name: &str) -> String {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lab/tests/data").join(name);
    path.to_str().unwrap().to_owned()
}

/// Prints `ms` off a file of made-up noise, one line a run: what a comparison says of known numbers.
fn program(folder: &Path, name: &str, middle: f64) -> String {
    let mut random = fastrand::Rng::with_seed(middle as u64);
    let mut line =
        |_| format!("{{\"ms\": {}, \"accuracy\": 0.5}}", middle * (1.0 + 0.01 * (random.f64() - 0.5)));
    let lines: Vec<String> = (0..60).map(&mut line).collect();
    std::fs::write(folder.join(name), lines.join("\n")).unwrap();
    format!("n=$(cat {name}.n 2>/dev/null || echo 1); echo $((n + 1)) > {name}.n; sed -n \"${{n}}p\" {name}")
}

#[test]
fn noise_is_learned_and_comparisons_use_it() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let (old, new) = (program(here, "old", 20.0), program(here, "new", 21.0));
    let metric = ["--metric", "ms", "--better", "lower"];
    let noise = |blocks: &str| {
        let flags = ["lab", "noise", "--command", &old, "--blocks", blocks, "--history", "noise.jsonl"];
        good(here, &[&flags[..], &metric].concat())
    };
    assert!(noise("4").contains("4 A/A blocks, 4 of them new"));
    let told = noise("6");
    assert!(told.contains("10 A/A blocks, 6 of them new") && told.contains("for 1.0 %"), "{told}");
    assert_eq!(std::fs::read_to_string(here.join("noise.jsonl")).unwrap().lines().count(), 10);

    std::fs::remove_file(here.join("old.n")).unwrap();
    let flags = ["lab", "ab", "--a", &old, "--b", &new, "--noise", "noise.jsonl", "--out", "ab.jsonl"];
    let compare = [&flags[..], &metric, &["--guard", "accuracy:1:higher"]].concat();
    let told = good(here, &compare);
    for part in
        ["verdict: loss", "worse", "A/A blocks of the history", "guard accuracy holds", "lower is better"]
    {
        assert!(told.contains(part), "{told}, not {part}");
    }
    let widest = told.lines().map(|line| line.chars().count()).filter(|width| *width > 100).count();
    assert!(widest <= 2, "only the commands themselves are long: {told}");
    // Everything is in the file: nothing runs again, and the same is said.
    let runs = std::fs::read_to_string(here.join("ab.jsonl")).unwrap();
    assert_eq!(good(here, &compare), told);
    assert_eq!(std::fs::read_to_string(here.join("ab.jsonl")).unwrap(), runs);
    let json: Value = serde_json::from_str(&good(here, &[&compare[..], &["--json"]].concat())).unwrap();
    let outcome = &json["outcomes"][0];
    assert_eq!((&outcome["verdict"], &outcome["band"]["source"]), (&"loss".into(), &"history".into()));
    assert!(outcome["comparison"]["gain"].as_f64().unwrap() < -0.03);

    // What a crash leaves: half a block is measured anew.
    let cut = runs.lines().take(runs.lines().count() - 2).collect::<Vec<_>>().join("\n");
    std::fs::write(here.join("ab.jsonl"), &cut[..cut.len() - 5]).unwrap();
    assert!(good(here, &compare).contains("verdict: loss"));
    let other = [&["lab", "ab", "--a", "x", "--b", "y", "--out", "ab.jsonl"][..], &metric].concat();
    refused(here, &other, "another a_command");
}

#[test]
fn files_of_other_tools_are_read_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let told = good(here, &["lab", "import", &sample("vllm.json"), "--out", "a.jsonl"]);
    assert!(
        told.contains("vLLM `bench serve`") && told.contains("76.8") && told.contains("1 runs added"),
        "{told}"
    );
    refused(here, &["lab", "import", &sample("vllm.json"), "--out", "a.jsonl"], "count them twice");
    refused(here, &["lab", "import", &sample("aiperf.json"), "--out", "a.jsonl"], "measured with another");
    // One run of each says nothing.
    refused(here, &["lab", "ab", "--a-file", "a.jsonl", "--b-file", "a.jsonl"], "at least twice in each");

    refused(here, &["lab", "import", &sample("hyperfine.json"), "--out", "c.jsonl"], "say with --pick which");
    for (pick, file) in [("1", "short.jsonl"), ("2", "long.jsonl")] {
        good(here, &["lab", "import", &sample("hyperfine.json"), "--pick", pick, "--out", file]);
    }
    let told = good(here, &["lab", "ab", "--a-file", "short.jsonl", "--b-file", "long.jsonl"]);
    assert!(told.contains("verdict: loss") && told.contains("6 rounds, paired"), "{told}");
    let told =
        good(here, &["lab", "ab", "--a-file", "long.jsonl", "--b-file", "short.jsonl", "--threshold", "5"]);
    assert!(told.contains("verdict: win"), "{told}");
    refused(
        here,
        &["lab", "ab", "--a-file", "short.jsonl", "--b-file", "short.jsonl"],
        "all 6 ratios of B to A are 1",
    );

    good(here, &["lab", "import", &sample("llama_bench.json"), "--out", "one.jsonl"]);
    good(here, &["lab", "import", &sample("llama_bench.csv"), "--out", "two.jsonl"]);
    let unlike = ["lab", "ab", "--a-file", "one.jsonl", "--b-file", "two.jsonl"];
    refused(here, &unlike, "A and B were not measured alike");
}

#[test]
fn a_bad_file_among_good_ones_adds_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("bad.json"), "{").unwrap();
    refused(here, &["lab", "import", &sample("vllm.json"), "bad.json", "--out", "a.jsonl"], "cut short");
    assert!(!here.join("a.jsonl").exists());
    refused(here, &["lab", "import", &sample("vllm.json"), "--pick", "1"], "--out");
}

/// As a terminal does it: to the command and to what it runs.
#[test]
#[cfg(unix)]
fn ctrl_c_says_what_is_left() {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::Stdio;
    let folder = tempfile::tempdir().unwrap();
    let interrupted = |arguments: &[&str], after: &str, part: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_overshot"));
        command.args(arguments).current_dir(folder.path()).process_group(0).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut told = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        told.find(|line| line.contains(after)).unwrap();
        // Of another command for the same file nothing is taken.
        if let Some(at) = arguments.iter().position(|argument| argument.ends_with(".jsonl")) {
            let flags = ["lab", "ab", "--a", "true", "--b", "true", "--out", arguments[at]];
            refused(folder.path(), &flags, "another command is adding to");
        }
        let group = format!("-{}", child.id());
        assert!(Command::new("kill").args(["-INT", "--", &group]).status().unwrap().success());
        let rest: Vec<String> = told.collect();
        assert!(rest.last().unwrap().starts_with("interrupted: ") && !rest.join("").contains("error"));
        assert!(rest.last().unwrap().contains(part), "{rest:?}");
        assert_eq!(child.wait().unwrap().code(), Some(130));
    };
    let sides = ["lab", "ab", "--a", "sleep 0.1", "--b", "sleep 0.1"];
    let kept = [&sides[..], &["--out", "ab.jsonl"]].concat();
    interrupted(&kept, "[ 2/48]", "the runs that ended are in ab.jsonl");
    assert!(std::fs::read_to_string(folder.path().join("ab.jsonl")).unwrap().lines().count() >= 3);
    interrupted(&kept, "[ 1/48]", "the same command goes on from there");
    interrupted(&sides, "[ 1/48]", "nothing is kept without --out");
    let noise = ["lab", "noise", "--command", "sleep 0.1", "--history", "noise.jsonl"];
    interrupted(&noise, "[ 5/40]", "the blocks that ended are in noise.jsonl");
    interrupted(&noise[..4], "[ 1/40]", "nothing is kept without --history");
}

#[test]
#[cfg(feature = "embedded-model")]
fn flags_of_our_own_bench_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let load =
        ["--concurrency", "2", "--prompt-tokens", "4", "--max-tokens", "8", "--seconds", "0.05", "--json"];
    let flags = ["lab", "noise", "--flags", "--overlap off --backend cpu", "--blocks", "2"];
    let noise: Value = serde_json::from_str(&good(folder.path(), &[&flags[..], &load].concat())).unwrap();
    assert_eq!(
        (&noise["quantity"], &noise["subject"]),
        (&"step_ms".into(), &"bench --overlap off --backend cpu".into())
    );
    assert!(noise["median"].as_f64().unwrap() > 0.0 && noise["blocks"] == 2, "{noise}");
    let unlike = ["lab", "ab", "--a-flags", "--max-batch 1", "--b-flags", ""];
    refused(folder.path(), &unlike, "unexpected argument");
}

#[test]
fn what_cannot_be_compared_is_told_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("notes"), "my notes\n").unwrap();
    std::fs::write(here.join("empty"), "").unwrap();
    let ab = |a: &'static str, b: &'static str, rest: &[&'static str], part: &str| {
        refused(here, &[&["lab", "ab", "--a", a, "--b", b], rest].concat(), part);
    };
    let constant = "echo '{\"ms\": 5}'";
    ab(constant, constant, &["--metric", "ms", "--better", "lower"], "do not scatter at all");
    ab(constant, constant, &["--metric", "ms"], "does not say which way is better");
    ab(
        constant,
        constant,
        &["--metric", "s", "--better", "lower"],
        "printed no `s` in its JSON, which has ms",
    );
    ab("echo '{\"ms\": NaN}'", constant, &["--metric", "ms", "--better", "lower"], "printed what is no JSON");
    ab(
        "echo '{\"ms\": \"5 ms\"}'",
        constant,
        &["--metric", "ms", "--better", "lower"],
        "no number at `ms` but a text",
    );
    ab("exit 3", constant, &[], "ended with exit status: 3");
    ab(constant, constant, &["--noise", "notes"], "this is not a history of noise");
    ab(constant, constant, &["--noise", "absent"], "cannot read the results file absent");
    ab(constant, constant, &["--guard", "x"], "use NAME:PERCENT");
    ab(constant, constant, &["--threshold", "-1"], "a number from 0 to");
    for (flags, part) in [
        (&["lab", "ab"][..], "nothing to compare"),
        (&["lab", "ab", "--a", "x"], "--b <CMD>"),
        (&["lab", "ab", "--a-file", "notes", "--b-file", "notes"], "this is not a results file"),
        (&["lab", "ab", "--a-file", "empty", "--b-file", "empty"], "the file has no runs"),
        (&["lab", "ab", "--a-url", "localhost", "--b-url", "localhost"], "must begin with http://"),
        (&["lab", "noise"], "nothing to measure"),
        (&["lab", "noise", "--command", "exit 1"], "ended with exit status: 1"),
        (&["lab", "noise", "--command", "true", "--blocks", "1"], "at least 2 blocks"),
        (&["lab", "noise", "--command", "true", "--blocks", "0"], "at least 1"),
        (&["lab", "noise", "--flags", "--model 'x"], "a quote is not closed"),
        (&["lab", "import", "notes"], "none of the result files that are known"),
        (&["lab", "import", "empty"], "the file is empty"),
        (&["lab", "import", "absent"], "absent"),
        (&["lab", "import"], "<FILE>"),
    ] {
        refused(here, flags, part);
    }
}
