//! The shared fixtures, made by two independent implementations: logits of a prompt, then of its greedy tokens one by
//! one, the prompt fed whole, token by token and in ragged chunks.

use crate::{Arrays, Bench, Extent, Setup, Subject, argmax, bits, open, repository, worst};
use overshot_backend::{KvFormat, Numerics, Wanted};
use overshot_model::Model;
use std::sync::Arc;

/// A tiny model and the runs that are known of it.
pub struct Fixture {
    pub model: Arc<Model>,
    pub logits_abs: f32,
    pub hidden_rel_to_max: f32,
    pub kvq_logits_abs: f32,
    /// By the file that they are from.
    pub cases: Vec<(String, Arrays)>,
}

impl Fixture {
    pub const MODELS: [&str; 2] = ["fixtures/tiny-bf16", "fixtures/tiny-fp8fp4"];
    /// Whole prompt, one token at a time, ragged chunks.
    pub const FEEDS: [&[usize]; 3] = [&[usize::MAX], &[1], &[3, 1, 7, 4, 128, 2, 64]];

    pub fn load(folder: &str) -> Self {
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

    /// Those that a subject can afford: in part, up to just past an entry of every kind.
    fn affordable(&self, extent: Extent) -> impl Iterator<Item = &(String, Arrays)> {
        let longest = extent.choose(usize::MAX, 130);
        self.cases.iter().filter(move |(_, case)| case.ids("input_ids").len() <= longest)
    }
}

/// Ways of feeding a prompt: a long one whole only, where that is all that can be afforded.
fn feeds(extent: Extent, prompt: &[u32]) -> &'static [&'static [usize]] {
    &Fixture::FEEDS[..extent.choose(3, if prompt.len() > 5 { 1 } else { 2 })]
}

struct Run {
    prompt_logits: Vec<f32>,
    /// Of the prompt's last position, then of all of the continuation but its last.
    greedy_logits: Vec<f32>,
}

impl Run {
    /// Feeds the prompt, then the given continuation token by token.
    fn of(
        subject: &impl Subject,
        model: &Arc<Model>,
        numerics: Numerics,
        prompt: &[u32],
        continuation: &[u32],
        chunks: &[usize],
    ) -> Self {
        let setup = Setup::new(numerics, 1, prompt.len() + continuation.len() + 1);
        let mut bench = Bench::start(subject, model, setup);
        let set = bench.kv.create().unwrap();
        let prompt_logits = bench.feed(set, prompt, chunks);
        let mut greedy_logits = prompt_logits[prompt_logits.len() - model.spec.vocab_size..].to_vec();
        for &token in &continuation[..continuation.len() - 1] {
            greedy_logits.extend(bench.step(&[(set, &[token])], Wanted::LastLogits).remove(0));
        }
        Run { prompt_logits, greedy_logits }
    }

    /// The largest differences from a case's prompt and greedy logits, named with this prefix.
    fn differences(&self, case: &Arrays, prefix: &str, vocab: usize) -> (f32, f32) {
        let rows: Vec<&[f32]> = self.prompt_logits.chunks_exact(vocab).collect();
        let ours: Vec<f32> = case.ids("positions").iter().flat_map(|&p| rows[p as usize]).copied().collect();
        let (prompt, _) = worst(&ours, case.get(&format!("{prefix}logits")));
        let (greedy, _) = worst(&self.greedy_logits, case.get(&format!("{prefix}greedy.logits")));
        (prompt, greedy)
    }

    fn greedy_tokens(&self, vocab: usize) -> Vec<u32> {
        self.greedy_logits.chunks_exact(vocab).map(argmax).collect()
    }
}

/// Without roundings, every way of feeding gives the fixtures' logits and tokens, and the same bits as every other way.
pub fn fixtures_are_met(subject: &impl Subject) {
    for folder in Fixture::MODELS {
        let fixture = Fixture::load(folder);
        let vocab = fixture.model.spec.vocab_size;
        for (name, case) in fixture.affordable(subject.extent()) {
            let (prompt, continuation) = (case.ids("input_ids"), case.ids("greedy.tokens"));
            let mut first: Option<Run> = None;
            for &chunks in feeds(subject.extent(), &prompt) {
                let label = format!("{name}, chunks {chunks:?}");
                let run = Run::of(subject, &fixture.model, Numerics::EXACT, &prompt, &continuation, chunks);
                let (of_prompt, greedy) = run.differences(case, "", vocab);
                println!("{label}: prompt {of_prompt}, greedy {greedy}");
                assert!(of_prompt.max(greedy) <= fixture.logits_abs, "{label}: {of_prompt}, {greedy}");
                assert_eq!(run.greedy_tokens(vocab), continuation, "{label}: greedy tokens");
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

/// The packed cache. A value on a rounding edge may fall either way and moves everything after it a little, so the
/// tolerance is wide, and greedy tokens are asked for only where the gap is clear.
pub fn packed_cache_fixtures_are_met(subject: &impl Subject) {
    let numerics = Numerics { kv: KvFormat::Fp8, ..Numerics::EXACT };
    for folder in Fixture::MODELS {
        let fixture = Fixture::load(folder);
        let vocab = fixture.model.spec.vocab_size;
        for (name, case) in fixture.affordable(subject.extent()).filter(|(_, case)| case.has("kvq.logits")) {
            let (prompt, continuation) = (case.ids("input_ids"), case.ids("kvq.greedy.tokens"));
            for &chunks in feeds(subject.extent(), &prompt) {
                let run = Run::of(subject, &fixture.model, numerics, &prompt, &continuation, chunks);
                let (of_prompt, greedy) = run.differences(case, "kvq.", vocab);
                let label = format!("{name}, chunks {chunks:?}");
                println!("{label}: packed cache: prompt {of_prompt}, greedy {greedy}");
                assert!(of_prompt.max(greedy) <= fixture.kvq_logits_abs, "{label}: {of_prompt}, {greedy}");
                let theirs = case.get("kvq.greedy.logits").chunks_exact(vocab);
                for (step, (ours, theirs)) in run.greedy_tokens(vocab).into_iter().zip(theirs).enumerate() {
                    let mut sorted = theirs.to_vec();
                    sorted.sort_by(|a, b| b.total_cmp(a));
                    if sorted[0] - sorted[1] > 2.0 * greedy {
                        assert_eq!(ours, argmax(theirs), "{label}: greedy step {step}");
                    }
                }
            }
        }
    }
}
