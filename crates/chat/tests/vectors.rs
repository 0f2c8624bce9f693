//! Rendering and parsing against the published encoder's own results, and prompts of the small model against
//! the token ids it was measured with.

#![allow(clippy::unwrap_used)]

mod common;

use overshot_chat::{
    Effort, End, Message, ParseOptions, PromptTexts, RenderOptions, Start, Tool, parse_text, render,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Vectors {
    encode: Vec<EncodeVector>,
    parse: Vec<ParseVector>,
}

#[derive(Deserialize)]
struct EncodeVector {
    name: String,
    messages: Vec<Message>,
    options: EncodeOptions,
    prompt: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EncodeOptions {
    thinking_mode: String,
    reasoning_effort: Option<Effort>,
    drop_thinking: Option<bool>,
}

#[derive(Deserialize)]
struct ParseVector {
    name: String,
    thinking_mode: String,
    completion: String,
    message: Message,
}

fn vectors() -> Vectors {
    let text = std::fs::read_to_string(common::repository().join("fixtures/chat_vectors.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn effort(thinking_mode: &str, effort: Option<Effort>) -> Effort {
    match thinking_mode {
        "chat" => Effort::None,
        "thinking" => effort.unwrap_or(Effort::High),
        other => panic!("unknown mode {other}"),
    }
}

#[test]
fn every_conversation_renders_to_its_prompt() {
    let vectors = vectors();
    assert_eq!(vectors.encode.len(), 20);
    for vector in vectors.encode {
        let options = RenderOptions {
            effort: effort(&vector.options.thinking_mode, vector.options.reasoning_effort),
            drop_thinking: vector.options.drop_thinking.unwrap_or(true),
            ..RenderOptions::default()
        };
        let prompt = render(&vector.messages, &options, &common::placeholder_texts()).unwrap();
        assert_eq!(prompt.text(), vector.prompt, "{}", vector.name);
        let thinks = if vector.prompt.ends_with("<think>") { Start::Reasoning } else { Start::Content };
        assert_eq!(prompt.start(), thinks, "{}", vector.name);
    }
}

/// Tools and schema given with the request land where they stand when a message carries them.
#[test]
fn request_fields_render_like_message_fields() {
    let mut seen = 0;
    for vector in vectors().encode {
        let mut messages = vector.messages.clone();
        let Some(first) = messages.first_mut() else { continue };
        let tools: Vec<Tool> = std::mem::take(&mut first.tools);
        let response_schema = first.response_format.take();
        if tools.is_empty() && response_schema.is_none() {
            continue;
        }
        if first.content.to_text().is_empty() {
            messages.remove(0);
        }
        seen += 1;
        let options = RenderOptions {
            effort: effort(&vector.options.thinking_mode, vector.options.reasoning_effort),
            tools,
            response_schema,
            ..RenderOptions::default()
        };
        let prompt = render(&messages, &options, &common::placeholder_texts()).unwrap();
        assert_eq!(prompt.text(), vector.prompt, "{}", vector.name);
    }
    assert!(seen >= 8, "{seen}");
}

#[test]
fn every_completion_parses_to_its_message() {
    let vectors = vectors();
    assert_eq!(vectors.parse.len(), 4);
    for vector in vectors.parse {
        let start = match vector.thinking_mode.as_str() {
            "thinking" => Start::Reasoning,
            _ => Start::Content,
        };
        let options = ParseOptions { start, tools: common::tools(), ..ParseOptions::default() };
        let parsed = parse_text(&vector.completion, options, End::Stop);
        let expected = vector.message;
        assert_eq!(parsed.content, expected.content.to_text(), "{}", vector.name);
        assert_eq!(Some(parsed.reasoning_content.clone()), expected.reasoning_content, "{}", vector.name);
        assert_eq!(parsed.unparsed_tool_text, "", "{}", vector.name);
        let functions: Vec<_> =
            parsed.to_message().tool_calls.into_iter().map(|call| call.function).collect();
        let expected_functions: Vec<_> = expected.tool_calls.into_iter().map(|call| call.function).collect();
        assert_eq!(functions, expected_functions, "{}", vector.name);
    }
}

#[derive(Deserialize)]
struct ModelPrompt {
    id: String,
    thinking: bool,
    messages: Option<Vec<Message>>,
    text: String,
    prompt_ids: Vec<u32>,
    greedy_ids: Vec<u32>,
    greedy_text: String,
    finish: String,
    effort: Option<Effort>,
}

fn model_prompts() -> Vec<ModelPrompt> {
    let text = std::fs::read_to_string(common::model_folder().join("prompts.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_small_models_prompts_have_the_ids_it_was_measured_with() {
    let texts = PromptTexts::from_model_folder(&common::model_folder()).unwrap();
    let tokenizer = common::tokenizer();
    let mut chats = 0;
    for prompt in model_prompts() {
        assert_eq!(tokenizer.encode_with_specials(&prompt.text).unwrap(), prompt.prompt_ids, "{}", prompt.id);
        let Some(messages) = prompt.messages else { continue };
        chats += 1;
        let effort = match prompt.thinking {
            true => prompt.effort.unwrap_or(Effort::High),
            false => Effort::None,
        };
        let options = RenderOptions { effort, ..RenderOptions::default() };
        let rendered = render(&messages, &options, &texts).unwrap();
        assert_eq!(rendered.text(), prompt.text, "{}", prompt.id);
        assert_eq!(rendered.ids(tokenizer).unwrap(), prompt.prompt_ids, "{}", prompt.id);
    }
    assert!(chats >= 20, "{chats}");
}

/// The answers that the model gives, token by token through the parser and back through the renderer.
#[test]
fn the_small_models_answers_survive_parsing_and_rendering() {
    let texts = PromptTexts::from_model_folder(&common::model_folder()).unwrap();
    let tokenizer = common::tokenizer();
    let mut with_calls = 0;
    for prompt in model_prompts() {
        let mut detokenizer = overshot_chat::Detokenizer::new(tokenizer);
        let mut text: String = prompt.greedy_ids.iter().map(|id| detokenizer.push(*id)).collect();
        text.push_str(detokenizer.finish());
        assert_eq!(text, prompt.greedy_text, "{}", prompt.id);

        let Some(mut messages) = prompt.messages.filter(|_| prompt.finish == "stop") else { continue };
        let effort = if prompt.thinking { Effort::High } else { Effort::None };
        let options = RenderOptions { effort, drop_thinking: false, ..RenderOptions::default() };
        let rendered = render(&messages, &options, &texts).unwrap();
        let tools: Vec<Tool> = messages.iter().flat_map(|message| message.tools.clone()).collect();
        let parse_options = ParseOptions { start: rendered.start(), tools, ..ParseOptions::default() };
        let mut parser = overshot_chat::OutputParser::new(tokenizer, parse_options);
        for id in &prompt.greedy_ids {
            parser.push(*id);
        }
        let answer = parser.finish(End::Stop).message;
        assert_eq!(answer.unparsed_tool_text, "", "{}", prompt.id);
        with_calls += usize::from(!answer.tool_calls.is_empty());
        messages.push(answer.to_message());
        let whole = render(&messages, &options, &texts).unwrap();
        let expected = [prompt.prompt_ids.clone(), prompt.greedy_ids.clone()].concat();
        assert_eq!(whole.ids(tokenizer).unwrap(), expected, "{}", prompt.id);
    }
    assert!(with_calls >= 2, "{with_calls}");
}
