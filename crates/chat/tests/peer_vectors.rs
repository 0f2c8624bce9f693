//! The same inputs through other implementations' parsers and renderer, compared once; what came out is in
//! `data/peer_vectors.json`. Here only this crate runs: it must still give what was compared. A vector on which
//! the peers differ says what they gave and which rule decided.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;

use overshot_chat::{Effort, End, Message, RenderOptions, Start, render};
use serde::Deserialize;

#[derive(Deserialize)]
struct Vectors {
    compared: BTreeMap<String, String>,
    parse: Vec<ParseVector>,
    render: Vec<RenderVector>,
}

/// Absent fields are empty.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ParseVector {
    name: String,
    output: String,
    start: String,
    end: String,
    reasoning: String,
    content: String,
    /// Names and arguments.
    calls: Vec<(String, String)>,
    unparsed: String,
    finish: String,
    why: Option<String>,
    /// By peer, the fields in which it differs.
    peers: BTreeMap<String, BTreeMap<String, serde_json::Value>>,
}

impl Default for ParseVector {
    fn default() -> ParseVector {
        ParseVector {
            name: String::new(),
            output: String::new(),
            start: "content".into(),
            end: "stop".into(),
            reasoning: String::new(),
            content: String::new(),
            calls: Vec::new(),
            unparsed: String::new(),
            finish: String::new(),
            why: None,
            peers: BTreeMap::new(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RenderVector {
    name: String,
    messages: Vec<Message>,
    #[serde(default = "no_effort")]
    effort: Effort,
    #[serde(default = "yes")]
    drop_thinking: bool,
    prompt: String,
    why: Option<String>,
    /// The other prompt, or nothing where the peer refuses the messages.
    #[serde(default)]
    peers: BTreeMap<String, Option<String>>,
}

fn no_effort() -> Effort {
    Effort::None
}

fn yes() -> bool {
    true
}

fn vectors() -> Vectors {
    serde_json::from_str(include_str!("data/peer_vectors.json")).unwrap()
}

#[test]
fn outputs_parse_as_they_did_beside_the_peers() {
    let vectors = vectors().parse;
    for vector in &vectors {
        let start = match vector.start.as_str() {
            "content" => Start::Content,
            "reasoning" => Start::Reasoning,
            other => panic!("{}: unknown start {other}", vector.name),
        };
        let end = match vector.end.as_str() {
            "stop" => End::Stop,
            "limit" => End::Limit,
            other => panic!("{}: unknown end {other}", vector.name),
        };
        let message = common::parse(&vector.output, start, end);
        let calls: Vec<_> =
            message.tool_calls.iter().map(|call| (call.name.clone(), call.arguments.clone())).collect();
        assert_eq!(message.reasoning_content, vector.reasoning, "{}", vector.name);
        assert_eq!(message.content, vector.content, "{}", vector.name);
        assert_eq!(calls, vector.calls, "{}", vector.name);
        assert_eq!(message.unparsed_tool_text, vector.unparsed, "{}", vector.name);
        assert_eq!(message.finish_reason.as_str(), vector.finish, "{}", vector.name);
    }
    let agreed = vectors.iter().filter(|vector| vector.peers.is_empty()).count();
    assert!(vectors.len() >= 240 && agreed >= 160, "{agreed} of {}", vectors.len());
}

#[test]
fn conversations_render_as_they_did_beside_the_peer() {
    let vectors = vectors().render;
    let texts = common::placeholder_texts();
    for vector in &vectors {
        let options = RenderOptions {
            effort: vector.effort,
            drop_thinking: vector.drop_thinking,
            ..RenderOptions::default()
        };
        let prompt = render(&vector.messages, &options, &texts).unwrap().text();
        assert_eq!(prompt, vector.prompt, "{}", vector.name);
    }
    let agreed = vectors.iter().filter(|vector| vector.peers.is_empty()).count();
    assert!(vectors.len() >= 160 && agreed >= 145, "{agreed} of {}", vectors.len());
}

#[test]
fn every_difference_is_real_and_has_its_reason() {
    let vectors = vectors();
    let known = |peer: &str| vectors.compared.keys().any(|compared| peer.starts_with(compared.as_str()));
    for vector in &vectors.parse {
        assert_eq!(vector.why.is_some(), !vector.peers.is_empty(), "{}", vector.name);
        for (peer, fields) in &vector.peers {
            assert!(known(peer) && !fields.is_empty(), "{}: {peer}", vector.name);
            for (field, value) in fields {
                let same = match field.as_str() {
                    "reasoning" => *value == vector.reasoning,
                    "content" => *value == vector.content,
                    "calls" => *value == serde_json::json!(vector.calls),
                    other => panic!("{}: unknown field {other}", vector.name),
                };
                assert!(!same, "{}: {peer} does not differ in {field}", vector.name);
            }
        }
    }
    for vector in &vectors.render {
        assert_eq!(vector.why.is_some(), !vector.peers.is_empty(), "{}", vector.name);
        for (peer, prompt) in &vector.peers {
            assert!(known(peer) && prompt.as_ref() != Some(&vector.prompt), "{}: {peer}", vector.name);
        }
    }
}
