//! `overshot lab ab --a-url` and `lab noise --url`, against servers whose steps take as long as the test says.

#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../../lab/tests/common/mod.rs"]
mod mock;

use serde_json::Value;
use std::process::{Command, Output};

fn overshot(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_overshot")).args(arguments).output().unwrap()
}

fn report(arguments: &[&str]) -> Value {
    let output = overshot(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const LOAD: [&str; 7] = ["--concurrency", "2", "--prompt-tokens", "16", "--max-tokens", "16", "--json"];

#[test]
fn the_slower_of_two_servers_is_found() {
    let [fast, slow] =
        [5, 15].map(|step_ms| mock::serve(move |request, _| mock::good_answer(request, 5, step_ms)));
    let told = report(&[&["lab", "ab", "--a-url", &fast, "--b-url", &slow][..], &LOAD].concat());
    let outcome = &told["outcomes"][0];
    assert_eq!((&outcome["verdict"], &outcome["quantity"]), (&"loss".into(), &"step_ms".into()), "{told}");
    let gain = outcome["comparison"]["gain"].as_f64().unwrap();
    assert!((-3.0..-1.0).contains(&gain), "15 ms after 5 ms is 200 % worse: {told}");
    assert_eq!(told["differences"][0]["field"], "url", "{told}");
}

#[test]
fn a_server_has_noise() {
    let url = mock::serve(|request, _| mock::good_answer(request, 1, 5));
    let told = report(&[&["lab", "noise", "--url", &url, "--blocks", "2"][..], &LOAD].concat());
    assert_eq!((&told["blocks"], &told["quantity"]), (&2.into(), &"step_ms".into()), "{told}");
    assert!(told["median"].as_f64().unwrap() > 4.0, "{told}");
}

#[test]
fn answers_too_short_to_have_steps_are_told_at_once() {
    let url = mock::serve(|request, _| mock::good_answer(request, 1, 5));
    let short = ["--concurrency", "2", "--prompt-tokens", "16", "--max-tokens", "4"];
    let output = overshot(&[&["lab", "noise", "--url", &url, "--blocks", "40"][..], &short].concat());
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("the run gave no step_ms, only ") && !told.contains("[ 1/"), "{told}");
}
