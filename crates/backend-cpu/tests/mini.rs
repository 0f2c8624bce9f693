//! The small trained model against its reference run: token ids and logits in float32, answers and divergence with
//! the packed cache.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Bench, argmax, open, repository};
use overshot_backend::{IndexKeyFormat, Numerics, Wanted};
use overshot_model::Model;
use serde_json::Value;
use std::sync::Arc;

const PROMPT_CHUNK: usize = 256;

struct Prompt {
    id: String,
    exact: bool,
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    top5: Vec<(usize, Vec<(u32, f32)>)>,
}

fn prompts() -> Vec<Prompt> {
    let text = std::fs::read_to_string(repository().join("models/dsv4-mini/prompts.jsonl")).unwrap();
    let ids = |value: &Value| value.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect();
    let parse = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let top5 = line["top5"].as_array().unwrap().iter().map(|top| {
            let logits = top["logits"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32);
            let ids: Vec<u32> = ids(&top["ids"]);
            (top["pos"].as_u64().unwrap() as usize, ids.into_iter().zip(logits).collect())
        });
        Prompt {
            id: line["id"].as_str().unwrap().to_owned(),
            exact: line["exact"].as_bool().unwrap_or(false),
            prompt: ids(&line["prompt_ids"]),
            greedy: ids(&line["greedy_ids"]),
            top5: top5.collect(),
        }
    };
    text.lines().map(parse).collect()
}

/// Logits of every position of prompt and continuation (its last token is not fed), the prompt in chunks, the
/// continuation token by token, always feeding the reference's tokens.
fn logits(model: &Arc<Model>, numerics: Numerics, prompt: &Prompt) -> Vec<f32> {
    let mut bench = Bench::new(model, numerics, 1, prompt.prompt.len() + prompt.greedy.len());
    let set = bench.kv.create().unwrap();
    let mut logits = bench.feed(set, &prompt.prompt, &[PROMPT_CHUNK]);
    logits.extend(bench.feed(set, &prompt.greedy[..prompt.greedy.len() - 1], &[1]));
    logits
}

#[test]
fn every_prompt_is_continued_as_the_reference_does_with_its_logits() {
    let model = open("models/dsv4-mini");
    let vocab = model.spec.vocab_size;
    let mut worst = 0.0_f32;
    for prompt in prompts() {
        let logits = logits(&model, Numerics::EXACT, &prompt);
        let rows: Vec<&[f32]> = logits.chunks_exact(vocab).collect();
        for (step, &expected) in prompt.greedy.iter().enumerate() {
            let row = rows[prompt.prompt.len() - 1 + step];
            assert_eq!(argmax(row), expected, "{}: token {step} of the continuation", prompt.id);
        }
        for (position, top) in prompt.top5.iter().filter(|(position, _)| *position < rows.len()) {
            for &(id, expected) in top {
                let difference = (rows[*position][id as usize] - expected).abs();
                assert!(difference <= 2e-3, "{}: logit {id} at {position} is off by {difference}", prompt.id);
                worst = worst.max(difference);
            }
        }
    }
    println!("largest difference of a top-5 logit: {worst}");
}

/// Default numerics on all prompts; the other index-key formats, which only matter beyond 512 tokens, on those of
/// medium length.
#[test]
fn answers_hold_in_the_packed_cache_and_the_distribution_stays_close() {
    let model = open("models/dsv4-mini");
    let vocab = model.spec.vocab_size;
    let modes = [
        (IndexKeyFormat::Fp8, 0..usize::MAX),
        (IndexKeyFormat::Bf16, 500..1000),
        (IndexKeyFormat::Fp4, 500..2000),
    ];
    let mut totals = [Divergence::default(); 3];
    for prompt in prompts() {
        let exact = logits(&model, Numerics::EXACT, &prompt);
        for ((index_keys, lengths), total) in modes.iter().zip(&mut totals) {
            if !lengths.contains(&prompt.prompt.len()) {
                continue;
            }
            let rounded =
                logits(&model, Numerics { index_keys: *index_keys, ..Numerics::default() }, &prompt);
            for (p, q) in exact.chunks_exact(vocab).zip(rounded.chunks_exact(vocab)) {
                total.add(p, q);
            }
            if prompt.exact {
                let answer: Vec<u32> =
                    rounded.chunks_exact(vocab).skip(prompt.prompt.len() - 1).map(argmax).collect();
                assert_eq!(answer, prompt.greedy, "{} with index keys {index_keys}", prompt.id);
            }
        }
    }
    for ((index_keys, _), total) in modes.iter().zip(&totals) {
        let (mean, same) = (total.kl / total.positions, 100.0 * total.same / total.positions);
        println!(
            "index keys {index_keys}: {} positions, mean KL {mean:.4}, same argmax {same:.1} %",
            total.positions
        );
        assert!(mean <= 0.02, "mean KL {mean} with index keys {index_keys}");
    }
}

#[derive(Clone, Copy, Default)]
struct Divergence {
    kl: f64,
    same: f64,
    positions: f64,
}

impl Divergence {
    fn add(&mut self, p: &[f32], q: &[f32]) {
        self.kl += kl(p, q);
        self.same += f64::from(u8::from(argmax(p) == argmax(q)));
        self.positions += 1.0;
    }
}

/// Kullback-Leibler divergence of the distributions that two rows of logits stand for.
fn kl(p: &[f32], q: &[f32]) -> f64 {
    let log_total = |row: &[f32]| {
        let max = row.iter().fold(f32::NEG_INFINITY, |max, x| max.max(*x));
        f64::from(max) + row.iter().map(|x| f64::from(x - max).exp()).sum::<f64>().ln()
    };
    let (total_p, total_q) = (log_total(p), log_total(q));
    p.iter()
        .zip(q)
        .map(|(p, q)| {
            let (log_p, log_q) = (f64::from(*p) - total_p, f64::from(*q) - total_q);
            log_p.exp() * (log_p - log_q)
        })
        .sum()
}

/// The greedy continuation is the model's own, not only the reference's tokens fed back: decode for real once.
#[test]
fn a_prompt_decodes_on_its_own() {
    let model = open("models/dsv4-mini");
    let prompt = prompts().swap_remove(17);
    let mut bench = Bench::new(&model, Numerics::default(), 1, prompt.prompt.len() + prompt.greedy.len());
    let set = bench.kv.create().unwrap();
    let vocab = model.spec.vocab_size;
    let mut row = bench.feed(set, &prompt.prompt, &[PROMPT_CHUNK]);
    let mut tokens = Vec::new();
    while tokens.len() < prompt.greedy.len() {
        let token = argmax(&row[row.len() - vocab..]);
        tokens.push(token);
        row = bench.step(&[(set, &[token])], Wanted::LastLogits).remove(0);
    }
    assert_eq!(tokens, prompt.greedy);
}
