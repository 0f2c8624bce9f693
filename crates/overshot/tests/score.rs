//! `overshot score` against the fixtures: the whole way from files to logits, by the command alone.

#![allow(clippy::unwrap_used)]

mod program;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

struct Case {
    model: PathBuf,
    bytes: Vec<u8>,
}

impl Case {
    fn open(model: &str, file: &str) -> Self {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(model);
        let bytes = std::fs::read(model.join(file)).unwrap();
        Case { model, bytes }
    }

    fn ints(&self, name: &str) -> Vec<i32> {
        ints(&self.bytes, name)
    }

    /// Runs `score` and returns the file that it wrote, and what it printed.
    fn score(&self, flags: &[&str]) -> (Vec<u8>, Value) {
        let folder = tempfile::tempdir().unwrap();
        let (ids, out) = (folder.path().join("ids.json"), folder.path().join("out.safetensors"));
        std::fs::write(&ids, serde_json::to_string(&self.ints("input_ids")).unwrap()).unwrap();
        let output = program::overshot(&["score", "--json", "--model"])
            .arg(&self.model)
            .arg("--ids")
            .arg(&ids)
            .arg("--out")
            .arg(&out)
            .args(flags)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (std::fs::read(&out).unwrap(), serde_json::from_slice(&output.stdout).unwrap())
    }
}

fn floats(file: &[u8], name: &str) -> Vec<f32> {
    let tensors = SafeTensors::deserialize(file).unwrap();
    let tensor = tensors.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), Dtype::F32);
    tensor.data().as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

fn ints(file: &[u8], name: &str) -> Vec<i32> {
    let tensors = SafeTensors::deserialize(file).unwrap();
    let tensor = tensors.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), Dtype::I32);
    tensor.data().as_chunks::<4>().0.iter().map(|&bytes| i32::from_le_bytes(bytes)).collect()
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

const EXACT: [&str; 6] = ["--kv", "f32", "--index-keys", "f32", "--act", "none"];
/// From the fixtures' manifests.
const LOGITS_TOLERANCE: f32 = 2e-4;

#[test]
fn logits_and_greedy_tokens_are_those_of_the_fixtures() {
    for (model, file) in [
        ("tiny-bf16", "case_0001.safetensors"),
        ("tiny-bf16", "case_0129.safetensors"),
        ("tiny-bf16", "case_0301.safetensors"),
        ("tiny-fp8fp4", "case_0005.safetensors"),
        ("tiny-fp8fp4", "case_0130.safetensors"),
    ] {
        let case = Case::open(model, file);
        let steps = case.ints("greedy.tokens").len();
        let (out, _) = case.score(&[&EXACT[..], &["--greedy", &steps.to_string()]].concat());

        assert_eq!(ints(&out, "greedy.tokens"), case.ints("greedy.tokens"), "{model}/{file}");
        let greedy =
            largest_difference(&floats(&out, "greedy.logits"), &floats(&case.bytes, "greedy.logits"));
        assert!(greedy <= LOGITS_TOLERANCE, "{model}/{file}: greedy logits differ by {greedy}");

        let logits = floats(&out, "logits");
        let vocab = logits.len() / case.ints("input_ids").len();
        let rows = case.ints("positions").into_iter().flat_map(|at| {
            let start = at as usize * vocab;
            logits[start..start + vocab].to_vec()
        });
        let prompt = largest_difference(&rows.collect::<Vec<_>>(), &floats(&case.bytes, "logits"));
        assert!(prompt <= LOGITS_TOLERANCE, "{model}/{file}: logits differ by {prompt}");
    }
}

#[test]
fn chunks_and_threads_change_no_bit() {
    let case = Case::open("tiny-fp8fp4", "case_0130.safetensors");
    let (whole, _) = case.score(&["--greedy", "3"]);
    for flags in [["--chunk", "1"], ["--chunk", "7"], ["--threads", "1"]] {
        let (other, _) = case.score(&[&flags[..], &["--greedy", "3"]].concat());
        assert!(whole == other, "{flags:?} changed the result");
    }
}

#[test]
fn perplexity_is_that_of_the_logits() {
    let case = Case::open("tiny-bf16", "case_0127.safetensors");
    let (out, printed) = case.score(&[]);
    let (logits, ids) = (floats(&out, "logits"), case.ints("input_ids"));
    let vocab = logits.len() / ids.len();
    let nll = |at: usize| {
        let row = &logits[at * vocab..(at + 1) * vocab];
        let sum: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
        sum.ln() - f64::from(row[ids[at + 1] as usize])
    };
    let mean = (0..ids.len() - 1).map(nll).sum::<f64>() / (ids.len() - 1) as f64;
    assert!((printed["mean_nll"].as_f64().unwrap() - mean).abs() < 1e-9);
    assert!((printed["perplexity"].as_f64().unwrap() / mean.exp() - 1.0).abs() < 1e-9);
}

#[test]
#[cfg(unix)]
fn an_interrupted_run_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let (ids, out) = (folder.path().join("ids.json"), folder.path().join("out.safetensors"));
    let names = || -> Vec<_> {
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    // More than can be done before the signal comes.
    std::fs::write(&ids, serde_json::to_string([400; 16_000].as_slice()).unwrap()).unwrap();
    let mut score = program::overshot(&["score", "--model"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/dsv4-mini"))
        .arg("--ids")
        .arg(&ids)
        .arg("--out")
        .arg(&out)
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while names().len() == 1 {
        assert_eq!(score.try_wait().unwrap(), None, "it ended before it wrote anything");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let interrupt = ["-INT", &score.id().to_string()];
    assert!(Command::new("kill").args(interrupt).status().unwrap().success());
    assert_eq!(score.wait().unwrap().code(), Some(130));
    assert_eq!(names(), ["ids.json"]);
}
