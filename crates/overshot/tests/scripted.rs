//! `--backend scripted:FILE` and injected faults, on the command line.

#![cfg(feature = "embedded-model")]
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn run(script: &str, fault: Option<&str>) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("script.jsonl");
    std::fs::write(&path, script).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_overshot"));
    command.args(["run", "Hello?", "--backend", &format!("scripted:{}", path.display())]);
    fault.map(|fault| command.env("OVERSHOT_FAULT", fault));
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn the_script_is_the_answer() {
    let output =
        run(r#"{"chunks":["Hel","lo ",{"hex":"e4 b8"},{"hex":"ad"},"!",{"eos":true},"not this"]}"#, None);
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("Hello 中!\n", ""));
    let output = run("{\"chunks\":[7]}", None);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("script.jsonl, line 1: chunk 1: 7 is none of"));
}

#[cfg(not(feature = "fault-injection"))]
#[test]
fn a_binary_without_faults_says_so() {
    let output = run(r#"{"chunks":["Hello"]}"#, Some("nan-row:1"));
    assert_eq!(text(&output.stdout), "Hello\n");
    assert_eq!(text(&output.stderr).lines().count(), 1);
    assert!(text(&output.stderr).contains("built without the feature fault-injection"));
}

#[cfg(feature = "fault-injection")]
#[test]
fn faults_come_when_asked_for() {
    let output = run(r#"{"chunks":["Hello"]}"#, Some("nan-row:1"));
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""));
    assert!(text(&output.stderr).contains("the logit of token 0 is NaN"), "{}", text(&output.stderr));
    let output = run(r#"{"chunks":["Hello"]}"#, Some("nan-rows:1"));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("`nan-rows:1` is no fault that can be injected"));
}
