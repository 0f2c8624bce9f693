//! The binary as a user meets it: what it prints, where, and with which exit code.

#![cfg(feature = "embedded-model")]
#![allow(clippy::unwrap_used)]

mod program;

use safetensors::SafeTensors;
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

fn overshot(arguments: &[&str]) -> Output {
    overshot_with_input(arguments, "")
}

fn overshot_with_input(arguments: &[&str], input: &str) -> Output {
    let mut child = program::overshot(arguments)
        .current_dir(std::env::temp_dir())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that fails early does not read its input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn succeeds(arguments: &[&str]) -> String {
    let output = overshot(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    stdout(&output).to_owned()
}

/// Runs a command that must refuse its input: exit code 2, nothing on the output, one sentence of error.
fn refused(arguments: &[&str]) -> String {
    let output = overshot(arguments);
    let error = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
    assert_eq!(stdout(&output), "", "{arguments:?}");
    assert_eq!(error.trim_end().lines().count(), 1, "{arguments:?}: {error}");
    error
}

/// A copy of the built-in model's folder, without some files and with another `config.json`.
fn model_folder(files: &[&str], change_config: impl Fn(&str) -> String) -> tempfile::TempDir {
    let (original, folder) = (repository("models/dsv4-mini"), tempfile::tempdir().unwrap());
    std::fs::create_dir(folder.path().join("encoding")).unwrap();
    for file in files {
        std::fs::copy(original.join(file), folder.path().join(file)).unwrap();
    }
    let config = std::fs::read_to_string(original.join("config.json")).unwrap();
    std::fs::write(folder.path().join("config.json"), change_config(&config)).unwrap();
    folder
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_readme_question_is_answered() {
    assert_eq!(succeeds(&["run", "What is the capital of France?"]), "The capital of France is Paris.\n");
}

#[test]
fn only_the_answer_goes_to_the_output() {
    let output = overshot(&["run", "What is 6 times 4?", "--effort", "high"]);
    assert_eq!(stdout(&output), "24\n");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "[thinking] 6 * 4 = 24.\n");
}

#[test]
fn json_has_the_answer_and_its_numbers() {
    let value: Value =
        serde_json::from_str(&succeeds(&["run", "What is 6 times 4?", "--effort", "high", "--json"]))
            .unwrap();
    assert_eq!((&value["content"], &value["reasoning_content"]), (&"24".into(), &"6 * 4 = 24.".into()));
    assert_eq!((&value["finish_reason"], &value["timing"]["prompt_tokens"]), (&"stop".into(), &12.into()));
}

#[test]
fn limits_and_raw_prompts_are_kept_to() {
    let cut = succeeds(&["run", "What is the capital of France?", "--max-tokens", "3", "--json"]);
    let cut: Value = serde_json::from_str(&cut).unwrap();
    assert_eq!((&cut["content"], &cut["finish_reason"]), (&"The capital of".into(), &"length".into()));
    let raw = "<｜User｜>What is the capital of France?<｜Assistant｜></think>";
    assert_eq!(succeeds(&["run", "--raw", raw]), "The capital of France is Paris.\n");
}

#[test]
fn answers_end_before_a_stop_string() {
    let question = "What is the capital of France?";
    let cut = succeeds(&["run", question, "--stop", "nowhere", "--stop", "France is", "--json"]);
    let cut: Value = serde_json::from_str(&cut).unwrap();
    assert_eq!((&cut["content"], &cut["finish_reason"]), (&"The capital of ".into(), &"stop".into()));
    // The, capital, of, F, rance, is: nothing is computed after the token that completes the stop string.
    assert_eq!(cut["timing"]["generated_tokens"], 6);
    let raw = format!("<｜User｜>{question}<｜Assistant｜></think>");
    assert_eq!(succeeds(&["run", "--raw", &raw, "--stop", " is"]), "The capital of France\n");
    assert!(refused(&["run", question, "--stop", ""]).contains("--stop"));
}

#[test]
fn an_answer_that_is_cut_says_so_on_the_error_stream() {
    let question = "What is the capital of France?";
    for arguments in [&["run", question][..], &["run", "--raw", "It was"], &["chat"]] {
        let input = if arguments == ["chat"] { question } else { "" };
        let output = overshot_with_input(&[arguments, &["--max-tokens", "3"]].concat(), input);
        assert!(output.status.success());
        assert_eq!(String::from_utf8_lossy(&output.stderr), "[cut at 3 tokens]\n", "{arguments:?}");
    }
    assert_eq!(String::from_utf8_lossy(&overshot(&["run", question]).stderr), "");
}

#[test]
fn a_seed_repeats_an_answer() {
    let story = ["run", "--raw", "It was a dark night", "--temperature", "1", "--max-tokens", "30", "--seed"];
    let ask = |seed: &str| succeeds(&[&story[..], &[seed]].concat());
    assert_eq!(ask("1"), ask("1"));
    assert_ne!(ask("1"), ask("2"));
}

#[test]
fn a_conversation_goes_on_line_by_line() {
    let input = "What is the capital of France?\n/effort high\nWhat is 6 times 4?\n/effort great\n/efort low\n/new\n/quit\nnever\n";
    let output = overshot_with_input(&["chat"], input);
    assert!(output.status.success());
    let expected = "The capital of France is Paris.\n[effort high]\n[thinking] 6 * 4 = 24.\n\n[answer] 24\n\
                    effort `great` is none of none, low, medium, high, xhigh, max\n\
                    there is no command `/efort low`: /help lists them, and a space before it makes it a message\n\
                    [a new conversation]\n";
    assert_eq!(stdout(&output), expected);
}

#[test]
fn a_conversation_survives_what_goes_wrong_in_a_turn() {
    let folder =
        model_folder(&["model.safetensors", "tokenizer.json", "generation_config.json"], str::to_owned);
    let long = "word ".repeat(200);
    let input = format!("/effort max\nHello\n/effort none\n{long}\nWhat is the capital of France?\n");
    let output = overshot_with_input(&["chat", "--context", "100", "--model", shown(folder.path())], &input);
    assert!(output.status.success());
    let lines: Vec<&str> = stdout(&output).lines().collect();
    assert_eq!(lines.len(), 5, "{lines:?}");
    assert_eq!((lines[0], lines[2]), ("[effort max]", "[effort none]"));
    assert!(lines[1].contains("max") && lines[3].contains("raise --context"), "{lines:?}");
    assert_eq!(lines[4], "The capital of France is Paris.");
}

#[test]
fn a_tokenizer_of_another_model_is_refused() {
    for (field, token) in [("eos_token_id", "end"), ("bos_token_id", "begin")] {
        let change = |config: &str| {
            let mut config: Value = serde_json::from_str(config).unwrap();
            config[field] = 77.into();
            config.to_string()
        };
        let folder = model_folder(&["model.safetensors", "tokenizer.json"], change);
        let error = refused(&["run", "x", "--model", shown(folder.path())]);
        assert!(error.contains("another model") && error.contains(token) && error.contains("77"), "{error}");
    }
}

#[test]
fn damaged_weights_are_named_as_the_cause() {
    let folder = model_folder(
        &["model.safetensors", "tokenizer.json", "generation_config.json", "encoding/prompts.json"],
        str::to_owned,
    );
    let weights = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let (header_bytes, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let (start, end) = header.info("head.weight").unwrap().data_offsets;
    // All bits set is a NaN in bfloat16. Big matrices are not searched for them at the start.
    bytes[8 + header_bytes + start..8 + header_bytes + end].fill(0xff);
    std::fs::write(&weights, bytes).unwrap();
    let ids = folder.path().join("ids.json");
    std::fs::write(&ids, "[0, 5]").unwrap();
    let model = shown(folder.path());
    for arguments in
        [&["run", "Hello", "--model", model][..], &["score", "--ids", shown(&ids), "--model", model]]
    {
        let output = overshot(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(
            error.contains(model) && error.contains("are not numbers: its weights are damaged"),
            "{error}"
        );
    }
}

#[test]
fn model_files_that_are_no_files_are_refused() {
    for broken in ["tokenizer.json", "generation_config.json"] {
        let files: Vec<_> = ["model.safetensors", "tokenizer.json", "generation_config.json"]
            .into_iter()
            .filter(|file| *file != broken)
            .collect();
        let folder = model_folder(&files, str::to_owned);
        std::fs::create_dir(folder.path().join(broken)).unwrap();
        let error = refused(&["run", "x", "--model", shown(folder.path())]);
        assert!(error.contains(broken) && error.contains("no regular file"), "{error}");
    }
}

#[test]
fn a_folder_and_the_built_in_model_are_the_same() {
    let folder = repository("models/dsv4-mini");
    let ask = ["run", "Sort: pear, apple, fig", "--seed", "3", "--temperature", "1"];
    assert_eq!(succeeds(&[&ask[..], &["--model", shown(&folder)]].concat()), succeeds(&ask));
}

#[test]
fn bad_input_is_refused_in_one_sentence() {
    let fixture = repository("fixtures/tiny-bf16");
    assert!(refused(&["run", "x", "--model", "no-such-folder"]).contains("no-such-folder"));
    assert!(refused(&["run", "x", "--model", shown(&fixture)]).contains("tokenizer.json"));
    assert!(refused(&["run", "x", "--temperature", "-1"]).contains("temperature"));
    assert!(refused(&["run", "x", "--logit-bias", "4096=1"]).contains("token 4096"));
    assert!(refused(&["run", "x", "--context", "99999999"]).contains("--context"));
    assert!(refused(&["run", &"word ".repeat(200), "--context", "100"]).contains("raise --context"));
    for flags in [["--chunk", "0"], ["--chunk", "1025"], ["--threads", "0"], ["--threads", "1025"]] {
        assert!(refused(&[&["score", "--ids", "x"], &flags[..]].concat()).contains("1 to 1024"));
    }
    assert!(refused(&["inspect", "no-such-folder"]).contains("no-such-folder"));
    assert!(refused(&["score", "--ids", "no-such-file.json"]).contains("no-such-file.json"));
}

#[test]
fn ids_that_are_none_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ids.json");
    for (text, part) in [
        ("[]", "at least one"),
        ("[4096]", "4096"),
        ("[-1]", "not a JSON list"),
        ("{\"a\": 1}", "not a JSON list"),
        ("[1, 2", "not a JSON list"),
    ] {
        std::fs::write(&path, text).unwrap();
        assert!(refused(&["score", "--ids", shown(&path)]).contains(part), "{text}");
    }
}

#[test]
#[cfg(unix)]
fn input_without_end_is_refused() {
    assert!(refused(&["score", "--ids", "/dev/zero"]).contains("no regular file"));
    let endless = |arguments: &[&str]| {
        let zeros = std::fs::File::open("/dev/zero").unwrap();
        let output = program::overshot(arguments).stdin(zeros).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(String::from_utf8(output.stderr).unwrap().contains("longer than"), "{arguments:?}");
    };
    endless(&["score", "--ids", "-"]);
    endless(&["run", "-"]);
    endless(&["chat"]);
    let output = overshot_with_input(&["score", "--ids", "-"], "[0, 5]");
    assert!(stdout(&output).starts_with("2 tokens"));
}

#[test]
#[cfg(target_os = "linux")]
fn an_error_stream_that_takes_nothing_changes_nothing_else() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let run = |arguments: &[&str]| program::overshot(arguments).stderr(full()).output().unwrap();
    assert_eq!(run(&["inspect", "no-such-folder"]).status.code(), Some(2));
    assert_eq!(run(&["run"]).status.code(), Some(2));
    let thinking = run(&["run", "What is 6 times 4?", "--effort", "high"]);
    assert_eq!((thinking.status.code(), stdout(&thinking)), (Some(0), "24\n"));
}

#[test]
fn scores_never_go_where_something_would_be_lost() {
    let folder = model_folder(&["model.safetensors"], str::to_owned);
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("ids.json"), "[0, 5]").unwrap();
    let (model, ids) = (shown(folder.path()).to_owned(), shown(&at("ids.json")).to_owned());
    let before = std::fs::read(at("model.safetensors")).unwrap();
    for out in ["ids.json", "model.safetensors", "./config.json", ".", "nowhere/out"] {
        let out = at(out);
        let error = refused(&["score", "--model", &model, "--ids", &ids, "--out", shown(&out)]);
        assert!(error.contains(&format!("cannot write {}", shown(&out))), "{error}");
    }
    assert!(std::fs::read(at("model.safetensors")).unwrap() == before);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4);
}

#[test]
fn the_last_greedy_token_needs_no_position() {
    let change =
        |config: &str| config.replace("\"max_position_embeddings\": 16384", "\"max_position_embeddings\": 8");
    let folder = model_folder(&["model.safetensors"], change);
    let ids = folder.path().join("ids.json");
    std::fs::write(&ids, "[0, 5, 6, 7]").unwrap();
    let score = ["score", "--json", "--model", shown(folder.path()), "--ids", shown(&ids), "--greedy"];
    let value: Value = serde_json::from_str(&succeeds(&[&score[..], &["5"]].concat())).unwrap();
    assert_eq!(value["greedy_tokens"].as_array().unwrap().len(), 5);
    assert!(refused(&[&score[..], &["6"]].concat()).contains("9 positions"));
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let mut child = program::overshot(&["inspect", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn doctor_finds_the_built_in_model_healthy() {
    let value: Value = serde_json::from_str(&succeeds(&["doctor", "--json"])).unwrap();
    assert_eq!(value["built_in_model"]["state"], "healthy");
}
