//! The small trained model against its reference run: token ids and logits in float32, answers and divergence with
//! the packed cache.

use crate::{Bench, Extent, Setup, Subject, argmax, open, repository};
use overshot_backend::{Activations, IndexKeyFormat, Numerics, Wanted};
use overshot_model::Model;
use serde_json::Value;
use std::ops::Range;
use std::sync::Arc;

const PROMPT_CHUNK: usize = 256;

pub struct Prompt {
    id: String,
    /// There is one right answer.
    exact: bool,
    pub prompt: Vec<u32>,
    pub greedy: Vec<u32>,
    top5: Vec<(usize, Vec<(u32, f32)>)>,
}

impl Prompt {
    /// All that the model comes with.
    pub fn all() -> Vec<Prompt> {
        let text = std::fs::read_to_string(repository().join("models/dsv4-mini/prompts.jsonl")).unwrap();
        let ids =
            |value: &Value| value.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect();
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

    /// Those that a subject can afford: in part, the two with the fewest tokens.
    fn affordable(extent: Extent) -> Vec<Prompt> {
        let mut prompts = Prompt::all();
        if extent == Extent::Part {
            prompts.sort_by_key(|prompt| prompt.prompt.len() + prompt.greedy.len());
            prompts.truncate(2);
        }
        prompts
    }
}

/// Logits of every position of prompt and continuation (its last token is not fed), the prompt in chunks, the
/// continuation token by token, always feeding the reference's tokens.
fn logits(subject: &impl Subject, model: &Arc<Model>, numerics: Numerics, prompt: &Prompt) -> Vec<f32> {
    let setup = Setup::new(numerics, 1, prompt.prompt.len() + prompt.greedy.len());
    let mut bench = Bench::start(subject, model, setup);
    let set = bench.kv.create().unwrap();
    let mut logits = bench.feed(set, &prompt.prompt, &[PROMPT_CHUNK]);
    logits.extend(bench.feed(set, &prompt.greedy[..prompt.greedy.len() - 1], &[1]));
    logits
}

/// Token ids and logits of the reference run; the largest difference of a logit.
fn check_against_reference(prompt: &Prompt, exact: &[f32], vocab: usize) -> f32 {
    let rows: Vec<&[f32]> = exact.chunks_exact(vocab).collect();
    for (step, &expected) in prompt.greedy.iter().enumerate() {
        let row = rows[prompt.prompt.len() - 1 + step];
        assert_eq!(argmax(row), expected, "{}: token {step} of the continuation", prompt.id);
    }
    let mut worst = 0.0_f32;
    for (position, top) in prompt.top5.iter().filter(|(position, _)| *position < rows.len()) {
        for &(id, expected) in top {
            let difference = (rows[*position][id as usize] - expected).abs();
            assert!(difference <= 2e-3, "{}: logit {id} at {position} is off by {difference}", prompt.id);
            worst = worst.max(difference);
        }
    }
    worst
}

/// A rounded mode, the lengths of the prompts it runs on, and the mean KL it may have.
struct Mode {
    numerics: Numerics,
    lengths: Range<usize>,
    kl_max: f64,
}

/// The default on all prompts, others where they cost little and matter: index keys are chosen among only beyond 512
/// tokens. With `OVERSHOT_ALL_PROMPTS` set, all on all. In part, the default alone.
fn modes(extent: Extent) -> Vec<Mode> {
    let with_keys = |index_keys| Numerics { index_keys, ..Numerics::default() };
    let trained = Numerics { act: Activations::E4m3, ..with_keys(IndexKeyFormat::Fp4) };
    let modes = [
        (Numerics::default(), 0..usize::MAX, 0.02),
        (with_keys(IndexKeyFormat::Bf16), 500..1000, 0.02),
        (with_keys(IndexKeyFormat::Fp4), 500..2000, 0.02),
        // Only part of the training rounded activations, and none of it all of them.
        (trained, 0..500, 0.05),
    ];
    let all_prompts = std::env::var_os("OVERSHOT_ALL_PROMPTS").is_some();
    let mode = |(numerics, lengths, kl_max)| {
        let lengths = if all_prompts { 0..usize::MAX } else { lengths };
        Mode { numerics, lengths, kl_max }
    };
    modes.into_iter().take(extent.choose(4, 1)).map(mode).collect()
}

/// In float32 every prompt is continued as by the reference, with its logits; rounded, right answers stay right and
/// the distribution close. One scenario, because a float32 run of all prompts takes a while and serves both.
pub fn prompts_are_continued_as_by_the_reference(subject: &impl Subject) {
    let model = open("models/dsv4-mini");
    let vocab = model.spec.vocab_size;
    let modes = modes(subject.extent());
    let mut totals: Vec<Divergence> = modes.iter().map(|_| Divergence::default()).collect();
    let mut worst = 0.0_f32;
    for prompt in Prompt::affordable(subject.extent()) {
        let exact = logits(subject, &model, Numerics::EXACT, &prompt);
        worst = worst.max(check_against_reference(&prompt, &exact, vocab));
        for (mode, total) in modes.iter().zip(&mut totals) {
            if mode.lengths.contains(&prompt.prompt.len()) {
                total.add_prompt(&prompt, &exact, &logits(subject, &model, mode.numerics, &prompt), vocab);
            }
        }
    }
    println!("float32: largest difference of a top-5 logit: {worst}");
    for (mode, total) in modes.iter().zip(&totals) {
        let Numerics { kv, index_keys, act } = mode.numerics;
        let label = format!("--kv {kv} --index-keys {index_keys} --act {act}");
        println!("{label}: {total}");
        assert!(total.kl() <= mode.kl_max, "{label}: {total}");
        assert_eq!(total.skills_held, total.skills, "{label}: {total}");
    }
}

/// How far a mode is from float32, over all positions of its prompts.
#[derive(Default)]
struct Divergence {
    kl: f64,
    same: usize,
    positions: usize,
    prompts: usize,
    /// Prompts whose whole continuation is the reference's.
    continued: usize,
    /// Prompts with one right answer, and those of them that were answered so.
    skills: usize,
    skills_held: usize,
}

impl Divergence {
    fn add_prompt(&mut self, prompt: &Prompt, exact: &[f32], rounded: &[f32], vocab: usize) {
        for (p, q) in exact.chunks_exact(vocab).zip(rounded.chunks_exact(vocab)) {
            self.kl += kl(p, q);
            self.same += usize::from(argmax(p) == argmax(q));
            self.positions += 1;
        }
        let rows = rounded.chunks_exact(vocab).skip(prompt.prompt.len() - 1);
        let held = rows.map(argmax).eq(prompt.greedy.iter().copied());
        self.prompts += 1;
        self.continued += usize::from(held);
        self.skills += usize::from(prompt.exact);
        self.skills_held += usize::from(prompt.exact && held);
    }

    fn kl(&self) -> f64 {
        self.kl / self.positions as f64
    }
}

impl std::fmt::Display for Divergence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Divergence { same, positions, prompts, continued, skills, skills_held, .. } = self;
        let (kl, share) = (self.kl(), 100.0 * *same as f64 / *positions as f64);
        write!(
            f,
            "{skills_held} of {skills} right answers, {continued} of {prompts} continuations as in float32, "
        )?;
        write!(f, "mean KL {kl:.4} and same argmax {share:.1} % over {positions} positions")
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
pub fn a_prompt_decodes_on_its_own(subject: &impl Subject) {
    let model = open("models/dsv4-mini");
    let prompt = Prompt::all().swap_remove(subject.extent().choose(17, 3));
    let setup = Setup::new(Numerics::default(), 1, prompt.prompt.len() + prompt.greedy.len());
    let mut bench = Bench::start(subject, &model, setup);
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
