//! The shared fixtures, made by two independent implementations: every intermediate value, fed whole, token by token
//! and in ragged chunks.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Arrays, Bench, argmax, bits, open, repository, worst};
use overshot_backend::{IndexKeyFormat, KvFormat, Numerics, Wanted};
use overshot_backend_cpu::Capture;
use overshot_model::Model;
use std::sync::Arc;

const MODELS: [&str; 2] = ["fixtures/tiny-bf16", "fixtures/tiny-fp8fp4"];
/// Whole prompt, one token at a time, ragged chunks.
const FEEDS: [&[usize]; 3] = [&[usize::MAX], &[1], &[3, 1, 7, 4, 128, 2, 64]];

struct Fixture {
    model: Arc<Model>,
    logits_abs: f32,
    hidden_rel_to_max: f32,
    kvq_logits_abs: f32,
    cases: Vec<(String, Arrays)>,
}

fn load(folder: &str) -> Fixture {
    let text = std::fs::read_to_string(repository().join(folder).join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&text).unwrap();
    let tolerance = |name: &str| manifest["tolerance"][name].as_f64().unwrap() as f32;
    let cases = manifest["cases"].as_array().unwrap().iter().map(|case| {
        let file = format!("{folder}/{}", case["file"].as_str().unwrap());
        (file.clone(), Arrays::read(&file))
    });
    Fixture {
        model: open(folder),
        logits_abs: tolerance("logits_abs"),
        hidden_rel_to_max: tolerance("hidden_rel_to_max"),
        kvq_logits_abs: tolerance("kvq_logits_abs"),
        cases: cases.collect(),
    }
}

/// Rows `positions` of `[tokens, width]`.
fn rows(values: &[f32], width: usize, positions: &[u32]) -> Vec<f32> {
    positions.iter().flat_map(|&p| &values[p as usize * width..(p as usize + 1) * width]).copied().collect()
}

struct Run {
    prompt_logits: Vec<f32>,
    greedy_tokens: Vec<u32>,
    greedy_logits: Vec<f32>,
    prompt: Capture,
    last: Capture,
}

/// Feeds the prompt, then the given continuation token by token.
fn run(fixture: &Fixture, numerics: Numerics, prompt: &[u32], continuation: &[u32], chunks: &[usize]) -> Run {
    let mut bench = Bench::new(&fixture.model, numerics, 1, prompt.len() + continuation.len() + 1);
    let set = bench.kv.create().unwrap();
    bench.backend.start_capture();
    let prompt_logits = bench.feed(set, prompt, chunks);
    let captured = bench.backend.take_capture();
    let vocab = fixture.model.spec.vocab_size;
    let mut greedy_logits = prompt_logits[prompt_logits.len() - vocab..].to_vec();
    let mut greedy_tokens = vec![argmax(&greedy_logits)];
    for &token in continuation {
        bench.backend.start_capture();
        let logits = bench.step(&[(set, &[token])], Wanted::LastLogits).remove(0);
        greedy_tokens.push(argmax(&logits));
        greedy_logits.extend(logits);
    }
    greedy_tokens.truncate(continuation.len());
    greedy_logits.truncate(continuation.len() * vocab);
    let last = bench.backend.take_capture();
    Run { prompt_logits, greedy_tokens, greedy_logits, prompt: captured, last }
}

#[test]
fn every_value_of_every_case_is_met_by_every_way_of_feeding() {
    for folder in MODELS {
        let fixture = load(folder);
        for (name, case) in &fixture.cases {
            let prompt = case.ids("input_ids");
            let continuation = case.ids("greedy.tokens");
            let mut first: Option<Run> = None;
            for chunks in FEEDS {
                let label = format!("{name}, chunks {chunks:?}");
                let run = run(&fixture, Numerics::EXACT, &prompt, &continuation, chunks);
                check_logits(&fixture, case, &run, &label);
                check_layers(&fixture, case, &run, &label);
                if let Some(first) = &first {
                    assert_eq!(bits(&run.prompt_logits), bits(&first.prompt_logits), "{label}: other bits");
                    assert_eq!(bits(&run.greedy_logits), bits(&first.greedy_logits), "{label}: other bits");
                } else {
                    first = Some(run);
                }
            }
        }
    }
}

fn check_logits(fixture: &Fixture, case: &Arrays, run: &Run, label: &str) {
    let positions = case.ids("positions");
    let vocab = fixture.model.spec.vocab_size;
    let (difference, _) = worst(&rows(&run.prompt_logits, vocab, &positions), case.get("logits"));
    assert!(difference <= fixture.logits_abs, "{label}: logits differ by {difference}");
    let (difference, _) = worst(&run.greedy_logits, case.get("greedy.logits"));
    assert!(difference <= fixture.logits_abs, "{label}: greedy logits differ by {difference}");
    assert_eq!(run.greedy_tokens, case.ids("greedy.tokens"), "{label}: greedy tokens");
}

fn check_layers(fixture: &Fixture, case: &Arrays, run: &Run, label: &str) {
    let spec = &fixture.model.spec;
    let positions = case.ids("positions");
    let near = |what: &str, ours: &[f32], theirs: &[f32]| {
        let largest = theirs.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
        let (difference, at) = worst(ours, theirs);
        let limit = fixture.hidden_rel_to_max * largest;
        assert!(difference <= limit, "{label}: {what} differs by {difference} at {at}, {limit} allowed");
    };
    let hidden = spec.hidden_size;
    near("final_hidden", &rows(run.prompt.get("final_hidden"), hidden, &positions), case.get("final_hidden"));
    for layer in 0..spec.layers.len() {
        let name = |what: &str| format!("layers.{layer}.{what}");
        let top = spec.experts_per_token;
        assert_eq!(
            rows(run.prompt.get(&name("experts")), top, &positions),
            case.get(&name("experts")),
            "{label}: experts of layer {layer}"
        );
        for (what, width) in [
            ("out", 4 * hidden),
            ("expert_weights", top),
            ("attn_out", hidden),
            ("ffn_out", hidden),
            ("attn_hc.collapsed", hidden),
            ("attn_hc.post", 4),
            ("attn_hc.comb", 16),
            ("ffn_hc.collapsed", hidden),
            ("ffn_hc.post", 4),
            ("ffn_hc.comb", 16),
        ] {
            let name = name(what);
            if case.has(&name) {
                near(&name, &rows(run.prompt.get(&name), width, &positions), case.get(&name));
            }
        }
        let compressed = name("compressed");
        if case.has(&compressed) {
            near(&compressed, run.prompt.get(&compressed), case.get(&compressed));
        }
        let last = format!("greedy.last.layers.{layer}.out");
        near(&last, run.last.get(&name("out")), case.get(&last));
        check_indexer(fixture, case, run, layer, label);
    }
}

fn check_indexer(fixture: &Fixture, case: &Arrays, run: &Run, layer: usize, label: &str) {
    let (selected, raw) =
        (format!("layers.{layer}.index_selected"), format!("layers.{layer}.index_scores_raw"));
    let positions = case.ids("positions");
    if case.has(&selected) {
        let (ours, width) = (run.prompt.get(&selected), fixture.model.spec.index_topk);
        let theirs_width = case.shape(&selected)[1];
        for (i, &position) in positions.iter().enumerate() {
            let ours = &ours[position as usize * width..][..theirs_width];
            let theirs = &case.get(&selected)[i * theirs_width..][..theirs_width];
            assert_eq!(ours, theirs, "{label}: selection of layer {layer} at {position}");
        }
    }
    if case.has(&raw) {
        let ours = run.prompt.get(&format!("layers.{layer}.index_scores"));
        let width = case.shape(&raw)[1];
        let mut start = 0;
        let mut at = Vec::new();
        for position in 0..case.ids("input_ids").len() {
            let visible = (position + 1) / 4;
            at.push((start, visible));
            start += visible;
        }
        for (i, &position) in positions.iter().enumerate() {
            let (start, visible) = at[position as usize];
            let (difference, _) =
                worst(&ours[start..start + visible], &case.get(&raw)[i * width..i * width + visible]);
            assert!(difference <= 1e-4, "{label}: index scores of layer {layer} at {position}: {difference}");
        }
    }
}

/// The packed cache. A value on a rounding edge may fall either way and moves everything after it a little, so the
/// tolerance is wide, and greedy tokens are asked for only where the gap is clear.
#[test]
fn the_packed_cache_meets_its_fixtures() {
    let numerics = Numerics { kv: KvFormat::Fp8, index_keys: IndexKeyFormat::F32, ..Numerics::EXACT };
    for folder in MODELS {
        let fixture = load(folder);
        let vocab = fixture.model.spec.vocab_size;
        for (name, case) in fixture.cases.iter().filter(|(_, case)| case.has("kvq.logits")) {
            let continuation = case.ids("kvq.greedy.tokens");
            let positions = case.ids("positions");
            for chunks in FEEDS {
                let run = run(&fixture, numerics, &case.ids("input_ids"), &continuation, chunks);
                let (prompt, _) = worst(&rows(&run.prompt_logits, vocab, &positions), case.get("kvq.logits"));
                let (greedy, _) = worst(&run.greedy_logits, case.get("kvq.greedy.logits"));
                println!("{name}, chunks {chunks:?}: prompt {prompt}, greedy {greedy}");
                assert!(
                    prompt.max(greedy) <= fixture.kvq_logits_abs,
                    "{name}, chunks {chunks:?}: {prompt}, {greedy}"
                );
                for (step, theirs) in case.get("kvq.greedy.logits").chunks_exact(vocab).enumerate() {
                    let mut sorted = theirs.to_vec();
                    sorted.sort_by(|a, b| b.total_cmp(a));
                    if sorted[0] - sorted[1] > 2.0 * greedy {
                        assert_eq!(run.greedy_tokens[step], argmax(theirs), "{name}: greedy step {step}");
                    }
                }
            }
        }
    }
}
