//! The JSON of responses, as types, for what is written once a request. Chunks of a stream are written by hand in
//! `chunks.rs`.

use crate::choice::{Part, TokenLogprob};
use crate::dialect::AllCounts;
use overshot_chat::{ParsedMessage, Tokenizer};
use serde::Serialize;
use std::collections::BTreeMap;
use utoipa::ToSchema;

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
struct PromptDetails {
    cached_tokens: usize,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
struct CompletionDetails {
    reasoning_tokens: usize,
}

impl Usage {
    /// A prompt counts once, however many answers it has.
    pub fn new(counts: AllCounts) -> Self {
        let AllCounts { prompt, answers } = counts;
        Usage {
            prompt_tokens: prompt,
            completion_tokens: answers.completion,
            total_tokens: prompt + answers.completion,
            // No prefix of a prompt is reused yet.
            prompt_tokens_details: PromptDetails { cached_tokens: 0 },
            completion_tokens_details: CompletionDetails { reasoning_tokens: answers.reasoning },
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ChatMessage {
    #[schema(value_type = String)]
    role: &'static str,
    /// `None` when there are only calls.
    #[schema(required)]
    content: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    reasoning_content: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
    #[serde(skip_serializing_if = "String::is_empty")]
    unparsed_tool_text: String,
}

#[derive(Debug, Serialize, ToSchema)]
struct Call {
    id: String,
    #[schema(value_type = String)]
    r#type: &'static str,
    function: Function,
}

#[derive(Debug, Serialize, ToSchema)]
struct Function {
    name: String,
    arguments: String,
}

impl From<ParsedMessage> for ChatMessage {
    fn from(message: ParsedMessage) -> Self {
        let calls = message.tool_calls.into_iter().map(|call| Call {
            id: call.id,
            r#type: "function",
            function: Function { name: call.name, arguments: call.arguments },
        });
        let tool_calls: Vec<Call> = calls.collect();
        let has_content = tool_calls.is_empty() || !message.content.is_empty();
        ChatMessage {
            role: "assistant",
            content: has_content.then_some(message.content),
            reasoning_content: message.reasoning_content,
            tool_calls,
            unparsed_tool_text: message.unparsed_tool_text,
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ChatResponse<'a> {
    #[schema(value_type = String)]
    pub id: &'a str,
    #[schema(value_type = String)]
    pub object: &'static str,
    pub created: u64,
    #[schema(value_type = String)]
    pub model: &'a str,
    pub choices: Vec<ChatResponseChoice>,
    pub usage: Usage,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ChatResponseChoice {
    pub index: usize,
    pub message: ChatMessage,
    #[schema(required)]
    pub logprobs: Option<ChatLogprobs>,
    #[schema(value_type = String, pattern = "^(stop|length|tool_calls)$")]
    pub finish_reason: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct TextResponse<'a> {
    #[schema(value_type = String)]
    pub id: &'a str,
    #[schema(value_type = String)]
    pub object: &'static str,
    pub created: u64,
    #[schema(value_type = String)]
    pub model: &'a str,
    pub choices: Vec<TextResponseChoice>,
    pub usage: Usage,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct TextResponseChoice {
    pub index: usize,
    pub text: String,
    #[schema(required)]
    pub logprobs: Option<TextLogprobs>,
    #[schema(value_type = String, pattern = "^(stop|length|tool_calls)$")]
    pub finish_reason: &'static str,
}

/// Log probabilities of a chat answer: the tokens of the thinking stand apart, markers and end tokens nowhere.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatLogprobs {
    content: Vec<ChatLogprob>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasoning_content: Vec<ChatLogprob>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatLogprob {
    #[serde(flatten)]
    token: TokenShown,
    top_logprobs: Vec<TokenShown>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
struct TokenShown {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl TokenShown {
    fn new(tokenizer: &Tokenizer, token: u32, logprob: f32) -> Self {
        let bytes = tokenizer.bytes_of(token).to_vec();
        TokenShown { token: String::from_utf8_lossy(&bytes).into_owned(), logprob: finite(logprob), bytes }
    }
}

impl ChatLogprobs {
    pub fn new(tokenizer: &Tokenizer, logprobs: &[TokenLogprob]) -> Self {
        let of = |part: Part| {
            let tokens = logprobs.iter().filter(|logprob| logprob.part == part);
            let shown = |logprob: &TokenLogprob| ChatLogprob {
                token: TokenShown::new(tokenizer, logprob.sampled.token, logprob.sampled.logprob),
                top_logprobs: top(tokenizer, logprob),
            };
            tokens.map(shown).collect()
        };
        ChatLogprobs { content: of(Part::Content), reasoning_content: of(Part::Reasoning) }
    }

    /// Without those of the thinking.
    pub fn into_content(self) -> Vec<ChatLogprob> {
        self.content
    }
}

fn top(tokenizer: &Tokenizer, logprob: &TokenLogprob) -> Vec<TokenShown> {
    let likeliest = logprob.sampled.top.iter();
    likeliest.map(|(token, logprob)| TokenShown::new(tokenizer, *token, *logprob)).collect()
}

/// Log probabilities of a text completion, as lists over its tokens.
#[derive(Debug, Serialize, ToSchema)]
pub struct TextLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<BTreeMap<String, f32>>,
    /// Where a token begins in the text, in characters.
    text_offset: Vec<usize>,
}

impl TextLogprobs {
    /// `offset`: characters of the text before the first of these tokens; moved behind the last.
    pub fn new(tokenizer: &Tokenizer, logprobs: &[TokenLogprob], offset: &mut usize) -> Self {
        let text = |token: u32| String::from_utf8_lossy(tokenizer.bytes_of(token)).into_owned();
        let mut lists = TextLogprobs {
            tokens: Vec::new(),
            token_logprobs: Vec::new(),
            top_logprobs: Vec::new(),
            text_offset: Vec::new(),
        };
        for TokenLogprob { sampled, .. } in logprobs {
            let shown = text(sampled.token);
            lists.text_offset.push(*offset);
            *offset += shown.chars().count();
            lists.tokens.push(shown);
            lists.token_logprobs.push(finite(sampled.logprob));
            let top = sampled.top.iter().map(|(token, logprob)| (text(*token), finite(*logprob)));
            lists.top_logprobs.push(top.collect());
        }
        lists
    }
}

/// JSON has no infinity; OpenAI writes this number for tokens that cannot come.
fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}
