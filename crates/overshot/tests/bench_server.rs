//! `overshot bench --url` against `overshot serve`: two processes that meet over HTTP only.

#![cfg(feature = "embedded-model")]
#![allow(clippy::unwrap_used)]

mod program;

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Output, Stdio};

struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start() -> Self {
        let mut child = program::overshot(&["serve", "--port", "0", "--threads", "2"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        Server { child, url }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn bench(url: &str, arguments: &[&str]) -> Output {
    let flags = ["bench", "--url", url, "--noise-blocks", "0", "--repeats", "1", "--json"];
    program::overshot(&flags).args(arguments).output().unwrap()
}

fn report(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn median(point: &Value, metric: &str) -> f64 {
    point["metrics"][metric]["median"].as_f64().unwrap_or_else(|| panic!("no {metric} in {point}"))
}

#[test]
fn our_server_is_measured_like_any_other() {
    let server = Server::start();
    let sizes = ["--prompt-tokens", "30", "--max-tokens", "32"];
    let sweep = bench(&server.url, &[&sizes[..], &["--concurrency", "1,3", "--prefill", "64"]].concat());
    let log = String::from_utf8_lossy(&sweep.stderr).into_owned();
    assert!(!log.contains("counts no passes") && !log.contains("refuses"), "{log}");
    let report_of_sweep = report(&sweep);
    assert_eq!(report_of_sweep["settings"]["model"], "dsv4-mini");
    for point in report_of_sweep["works"][0]["points"].as_array().unwrap() {
        for metric in ["tokens_per_s", "step_ms", "first_token_ms", "passes_per_s"] {
            assert!(median(point, metric) > 0.0, "{metric} in {point}");
        }
        assert_eq!(point["errors"], serde_json::json!({}));
    }
    // Words have the length that the server's counts say.
    let prompt_tokens = median(&report_of_sweep["works"][1]["points"][0], "prompt_tokens");
    assert!((48.0..80.0).contains(&prompt_tokens), "{prompt_tokens}");

    let mixed = ["--mixed", "--concurrency", "2", "--seconds", "1", "--api", "completions"];
    let report_of_mixed = report(&bench(&server.url, &[&sizes[..], &mixed].concat()));
    assert!(median(&report_of_mixed["works"][0]["points"][0], "tokens_per_s") > 0.0);

    let url = server.url.clone();
    drop(server);
    let gone = bench(&url, &[]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&gone.stderr).contains("cannot be reached"));
}
