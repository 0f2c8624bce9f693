//! What a mask costs the engine's thread, and a grammar before it: `cargo bench -p overshot-grammar`. Over the mini
//! model's tokens, and over a vocabulary of V4's size made from pairs of them.
#![allow(clippy::unwrap_used)]

#[path = "../tests/common/mod.rs"]
mod common;

use common::{MINI, allowed, exact, grammars, of_form, repository, required, schemas::schemas};
use fastrand::Rng;
use overshot_chat::{Start, Tokenizer};
use overshot_grammar::{CallCount, Demand, Form};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::time::{Duration, Instant};

const LARGE: u32 = 129_280;
const WALKS: usize = 8;
const TOKENS: usize = 80;

/// The mini model's tokenizer with pairs of its tokens as further ones. The merges do not know them; masks do.
fn large_tokenizer() -> Tokenizer {
    let text = std::fs::read_to_string(repository().join("models/dsv4-mini/tokenizer.json")).unwrap();
    let mut file: Value = serde_json::from_str(&text).unwrap();
    let mut rng = Rng::with_seed(1);
    let vocab = file["model"]["vocab"].as_object_mut().unwrap();
    let small: Vec<String> = vocab.keys().cloned().collect();
    let mut known: HashSet<String> = small.iter().cloned().collect();
    let mut id = MINI.vocabulary_size() as u32;
    while id < LARGE {
        let token = rng.choice(&small).unwrap().clone() + rng.choice(&small).unwrap();
        if token.len() <= 20 && known.insert(token.clone()) {
            vocab.insert(token, json!(id));
            id += 1;
        }
    }
    Tokenizer::from_bytes(file.to_string().as_bytes(), "large").unwrap()
}

fn demands() -> Vec<Demand> {
    let parameters = json!({"type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "array",
        "items": {"type": "integer"}}, "mode": {"enum": ["read", "write"]}}, "required": ["path"]});
    let tools = (0..20).map(|index| exact(index, &format!("tool_{index}"), parameters.clone())).collect();
    let forms = schemas().into_iter().map(|schema| of_form(Form::JsonSchema(schema)));
    forms.chain([of_form(Form::JsonObject), required(tools, CallCount::Several)]).collect()
}

fn main() {
    for (name, tokenizer) in [("mini", MINI.clone()), ("large", large_tokenizer())] {
        let began = Instant::now();
        let grammars = grammars(&tokenizer);
        let made = began.elapsed();
        let (mut compiled, mut masks): (Vec<Duration>, Vec<Duration>) = (Vec::new(), Vec::new());
        let mut rng = Rng::with_seed(2);
        for demand in demands() {
            let began = Instant::now();
            let grammar = grammars.compile(&demand).unwrap().unwrap();
            compiled.push(began.elapsed());
            for _ in 0..WALKS {
                let mut constraint = grammar.constraint(Start::Content, &[]);
                for _ in 0..TOKENS {
                    let began = Instant::now();
                    constraint.mask().unwrap();
                    masks.push(began.elapsed());
                    let allowed = allowed(constraint.as_mut(), &tokenizer);
                    let token = *rng.choice(&allowed).unwrap();
                    if token == tokenizer.end_of_sentence() {
                        break;
                    }
                    constraint.accept(token).unwrap();
                }
            }
        }
        println!("{name}: {} tokens, made in {:.0} ms", tokenizer.vocabulary_size(), milliseconds(made));
        println!("  {}", described("compile", compiled));
        println!("  {}", described("mask", masks));
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn described(what: &str, mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |share: f64| milliseconds(times[((times.len() - 1) as f64 * share) as usize]);
    let (median, p99, most) = (at(0.5), at(0.99), at(1.0));
    format!("{what}, of {}: median {median:.3} ms, p99 {p99:.3} ms, most {most:.3} ms", times.len())
}
