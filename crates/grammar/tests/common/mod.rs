//! What the tests share: two tokenizers, schemas, a validator for the keywords they use, and random walks.
#![allow(dead_code, clippy::unwrap_used)]

pub mod schemas;
pub mod validator;

use fastrand::Rng;
use overshot_chat::{Special, Start, Tokenizer};
use overshot_engine::Constraint;
use overshot_grammar::{
    Arguments, CallCount, CallRules, Calls, Demand, Form, Function, Grammar, Grammars, Limits,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The mini model's: 4096 tokens.
pub static MINI: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::from_file(&repository().join("models/dsv4-mini/tokenizer.json")).unwrap());

/// For the fixtures' models of 256 tokens: the seven markers and all bytes that text can hold. The bytes that it
/// can't come last, the last of them beyond what those models draw.
pub static BYTES: LazyLock<Tokenizer> = LazyLock::new(|| {
    let added: Vec<Value> = Special::REQUIRED
        .iter()
        .enumerate()
        .map(|(id, special)| json!({ "id": id, "content": special.text() }))
        .collect();
    let never = |byte: &u8| matches!(byte, 0xc0 | 0xc1 | 0xf5..=0xff);
    let bytes = (0..=255u8).filter(|byte| !never(byte)).chain((0..=255).filter(never));
    let mut stand_in = 0x100;
    let characters: Vec<char> = (0..=255u8)
        .map(|byte| match byte {
            0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => byte as char,
            _ => {
                stand_in += 1;
                char::from_u32(stand_in - 1).unwrap()
            }
        })
        .collect();
    let vocab: serde_json::Map<String, Value> = bytes
        .enumerate()
        .map(|(index, byte)| (characters[byte as usize].to_string(), json!(added.len() + index)))
        .collect();
    let file = json!({
        "added_tokens": added,
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "use_regex": false },
    });
    Tokenizer::from_bytes(file.to_string().as_bytes(), "bytes").unwrap()
});

pub fn grammars(tokenizer: &Tokenizer) -> Grammars {
    Grammars::new(tokenizer, tokenizer.vocabulary_size(), Limits::default()).unwrap()
}

pub fn of_form(form: Form) -> Demand {
    Demand { form, calls: Calls::Unheld }
}

pub fn exact(index: usize, name: &str, schema: Value) -> Function {
    Function { index, name: name.to_string(), arguments: Arguments::Exact(Some(schema)) }
}

pub fn required(functions: Vec<Function>, count: CallCount) -> Demand {
    Demand { form: Form::Text, calls: Calls::Required(CallRules { functions, count }) }
}

/// What a walk drew, without the end token.
pub struct Walk {
    pub tokens: Vec<u32>,
    pub is_finished: bool,
}

impl Walk {
    pub fn bytes(&self, tokenizer: &Tokenizer) -> Vec<u8> {
        self.tokens.iter().flat_map(|token| tokenizer.bytes_of(*token)).copied().collect()
    }

    pub fn text(&self, tokenizer: &Tokenizer) -> String {
        String::from_utf8(self.bytes(tokenizer)).unwrap()
    }
}

pub fn allowed(constraint: &mut dyn Constraint, tokenizer: &Tokenizer) -> Vec<u32> {
    let all = 0..tokenizer.vocabulary_size() as u32;
    match constraint.mask().unwrap() {
        Some(mask) => all.filter(|token| mask.allows(*token)).collect(),
        None => all.collect(),
    }
}

/// Draws among the allowed tokens, now and then one that is likely to close something.
pub fn walk(constraint: &mut dyn Constraint, tokenizer: &Tokenizer, most: usize, rng: &mut Rng) -> Walk {
    let mut tokens = Vec::new();
    while tokens.len() < most {
        let mut allowed = allowed(constraint, tokenizer);
        assert!(!allowed.is_empty(), "nothing is allowed behind {tokens:?}");
        let may_end = allowed.contains(&tokenizer.end_of_sentence());
        allowed.retain(|token| *token != tokenizer.end_of_sentence());
        if may_end && (allowed.is_empty() || rng.u8(..) < 100) {
            return Walk { tokens, is_finished: true };
        }
        let closes = |token: &&u32| {
            let bytes = tokenizer.bytes_of(**token);
            tokenizer.is_added(**token) || bytes.iter().any(|byte| b"\"]}</".contains(byte))
        };
        let closing: Vec<u32> = allowed.iter().filter(closes).copied().collect();
        let among = if !closing.is_empty() && rng.u8(..) < 100 { closing } else { allowed };
        let token = rng.choice(among).unwrap();
        constraint.accept(token).unwrap();
        tokens.push(token);
    }
    Walk { tokens, is_finished: false }
}

/// Whether a fresh constraint lets these tokens through.
pub fn is_prefix(grammar: &Grammar, start: Start, tokens: &[u32]) -> bool {
    let mut constraint = grammar.constraint(start, &[]);
    tokens.iter().all(|token| {
        let mask = constraint.mask().unwrap();
        mask.is_none_or(|mask| mask.allows(*token)) && constraint.accept(*token).is_ok()
    })
}
