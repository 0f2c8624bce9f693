//! The shared fixtures' intermediate values, fed whole, token by token and in ragged chunks. (Logits are the suite's.)
#![allow(clippy::unwrap_used)]

mod common;

use common::bench;
use overshot_backend::{Numerics, Wanted};
use overshot_backend_cpu::Capture;
use overshot_conformance::{Arrays, Fixture, worst};

/// Rows `positions` of `[tokens, width]`.
fn rows(values: &[f32], width: usize, positions: &[u32]) -> Vec<f32> {
    positions.iter().flat_map(|&p| &values[p as usize * width..(p as usize + 1) * width]).copied().collect()
}

/// What was captured over the prompt, and over the last token of the continuation.
struct Run {
    prompt: Capture,
    last: Capture,
}

/// Feeds the prompt, then the continuation token by token.
fn run(fixture: &Fixture, case: &Arrays, chunks: &[usize]) -> Run {
    let (tokens, continuation) = (case.ids("input_ids"), case.ids("greedy.tokens"));
    let mut bench = bench(&fixture.model, Numerics::EXACT, tokens.len() + continuation.len());
    let set = bench.kv.create().unwrap();
    bench.backend.start_capture();
    bench.feed(set, &tokens, chunks);
    let prompt = bench.backend.take_capture();
    for &token in &continuation {
        bench.backend.start_capture();
        bench.step(&[(set, &[token])], Wanted::LastLogits);
    }
    Run { prompt, last: bench.backend.take_capture() }
}

#[test]
fn every_value_of_every_case_is_met_by_every_way_of_feeding() {
    for folder in Fixture::MODELS {
        let fixture = Fixture::load(folder);
        for (name, case) in &fixture.cases {
            for chunks in Fixture::FEEDS {
                let run = run(&fixture, case, chunks);
                check_layers(&fixture, case, &run, &format!("{name}, chunks {chunks:?}"));
            }
        }
    }
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
