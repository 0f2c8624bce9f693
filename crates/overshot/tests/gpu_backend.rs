//! `--backend cuda` on the command line: what it says on a machine where it cannot run, and, with feature `gpu-emulator`, the whole
//! way from flags to answers over the GPU's kernels on the host. Unlike in other tests nothing chooses a backend unseen.

#![cfg(feature = "embedded-model")]
#![allow(clippy::unwrap_used)]

#[cfg(feature = "gpu-emulator")]
mod serving;

use std::process::{Command, Output};

fn overshot(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_overshot")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// By what the doctor says, which asks in another way than the backend.
fn has_gpu() -> bool {
    let report: serde_json::Value = serde_json::from_slice(&overshot(&["doctor", "--json"]).stdout).unwrap();
    report["gpu"]["devices"].as_array().is_some_and(|devices| !devices.is_empty())
}

#[test]
fn without_a_gpu_cuda_is_refused_in_a_sentence_and_auto_takes_the_processor() {
    if has_gpu() {
        eprintln!("SKIPPED: this machine has a GPU");
        return;
    }
    let question = "What is the capital of France?";
    let output = overshot(&["run", question, "--backend", "cuda", "--tp", "2"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(3), ""));
    let error = text(&output.stderr);
    assert!(error.starts_with("error: --backend cuda: ") && error.lines().count() == 1, "{error}");
    let output = overshot(&["run", question, "--devices", "0"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(3), ""));
    assert!(text(&output.stderr).starts_with("error: --devices 0: "), "{}", text(&output.stderr));
    let doctor = overshot(&["doctor"]);
    assert!(text(&doctor.stdout).contains("backend         cpu, unless"), "{}", text(&doctor.stdout));
    for flags in [&["--backend", "auto"][..], &[]] {
        let output = overshot(&[&["run", question], flags].concat());
        assert_eq!(text(&output.stdout), "The capital of France is Paris.\n");
        let told = text(&output.stderr);
        // A card that is not taken is told of; that there is none is not.
        let expected = if error.contains(": no GPU: ") { "" } else { "backend cpu: " };
        assert!(
            told.starts_with(expected) && told.lines().count() == usize::from(!expected.is_empty()),
            "{told}"
        );
    }
}

#[test]
fn flags_that_contradict_each_other_are_refused() {
    for (flags, told) in [
        (&["--backend", "cpu", "--devices", "0"][..], "use --backend cuda"),
        (&["--devices", "0,1", "--tp", "1"], "every rank has a GPU of its own"),
    ] {
        for command in [&["run", "Hello?"][..], &["serve"], &["score", "--ids", "-"], &["bench"]] {
            // The flags are looked at first: of this model nothing is said.
            let output = overshot(&[command, &["--model", "no-such-folder"], flags].concat());
            assert_eq!(output.status.code(), Some(2));
            assert!(text(&output.stderr).contains(told), "{command:?}: {}", text(&output.stderr));
        }
    }
}

#[cfg(feature = "gpu-emulator")]
mod emulated {
    use super::serving::http::Exchange;
    use super::{overshot, serving, text};
    use std::time::Duration;

    /// A whole answer of kernels that run on the host, on a machine that others keep busy.
    const PATIENCE: Duration = Duration::from_secs(300);

    /// Where there is no `c++` the emulator says so, and nothing here can be checked.
    fn has_compiler() -> bool {
        let found = std::process::Command::new("c++").arg("--version").output().is_ok();
        if !found {
            eprintln!("SKIPPED: the emulator needs c++");
        }
        found
    }

    #[test]
    fn the_plan_is_printed_and_the_answer_is_the_processors() {
        if !has_compiler() {
            return;
        }
        let flags = ["What is 6 times 4?", "--context", "64", "--max-tokens", "3", "--temperature", "0"];
        let run = |backend: &str| overshot(&[&["run", "--backend", backend], &flags[..]].concat());
        let (cpu, emulated) = (run("cpu"), run("cuda-emulator"));
        assert_eq!(text(&emulated.stdout), text(&cpu.stdout), "{}", text(&emulated.stderr));
        let told = text(&emulated.stderr);
        assert!(told.starts_with("GPU memory of emulator, threads ascending\n"), "{told}");
        for part in ["weights", "requests", "cache", "workspace", "reserve", "left", "free"] {
            assert!(told.lines().any(|line| line.trim_start().starts_with(part)), "{part} in {told}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_flag_to_lower() {
        if !has_compiler() {
            return;
        }
        let output =
            overshot(&["serve", "--port", "0", "--backend", "cuda-emulator", "--kv-pool-tokens", "9000000"]);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""));
        let error = text(&output.stderr);
        assert!(
            error.starts_with("error: the model does not fit: ") && error.lines().count() == 1,
            "{error}"
        );
        assert!(error.ends_with("; lower --kv-pool-tokens\n"), "{error}");
    }

    #[test]
    fn a_server_answers_over_the_emulator() {
        if !has_compiler() {
            return;
        }
        let server = serving::Server::with_model(&["--backend", "cuda-emulator", "--max-batch", "2"]);
        let body = serving::chat("What is 6 times 4?").to_string();
        let exchange = Exchange::begin(server.address, "POST", "/v1/chat/completions", Some(&body));
        let answer = exchange.within(PATIENCE).whole().json();
        assert_eq!(answer["choices"][0]["message"]["content"], "24", "{answer}");
    }
}
