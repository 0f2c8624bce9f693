//! Endpoints between text and tokens that ask nothing of the engine: what a prompt is, what tokens mean.

use crate::app::{App, fresh_id};
use crate::body;
use crate::conversation::check_tools;
use crate::error::ApiError;
use crate::job::json_response;
use crate::wire::ChatMessage;
use axum::body::Body;
use axum::http::Response;
use overshot_chat::{Delivery, Detokenizer, End, OutputParser, ParseOptions, ParsedMessage, Start};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Deserialize)]
struct TokenizeFields {
    model: Option<String>,
    prompt: Option<String>,
    messages: Option<serde::de::IgnoredAny>,
    add_special_tokens: Option<bool>,
}

#[derive(Serialize, ToSchema)]
pub struct Tokenized {
    count: usize,
    max_model_len: usize,
    tokens: Vec<u32>,
}

#[derive(Deserialize, ToSchema)]
pub struct DetokenizeFields {
    model: Option<String>,
    tokens: Vec<u32>,
}

#[derive(Serialize, ToSchema)]
pub struct Detokenized {
    prompt: String,
}

#[derive(Serialize, ToSchema)]
pub struct Rendered {
    prompt: String,
    token_ids: Vec<u32>,
    prompt_tokens: usize,
    /// `reasoning` or `content`: what the model's output begins with.
    #[schema(value_type = String, pattern = "^(reasoning|content)$")]
    start: &'static str,
}

#[derive(Deserialize)]
struct DerenderFields {
    model: Option<String>,
    token_ids: Vec<u32>,
    start: Option<String>,
    finish_reason: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub struct Derendered {
    message: ChatMessage,
    #[schema(value_type = String, pattern = "^(stop|length|tool_calls)$")]
    finish_reason: &'static str,
}

impl App {
    /// `/tokenize`: the tokens of a text or of a conversation, as a completion would see them.
    pub fn tokenize(&self, body: &[u8]) -> Result<Response<Body>, ApiError> {
        let fields: TokenizeFields = body::parse(body)?;
        self.check_model(fields.model.as_deref())?;
        let tokens = match (fields.prompt, fields.messages) {
            (Some(text), None) if fields.add_special_tokens == Some(false) => {
                let ids = self.model.tokenizer.encode_with_specials(&text);
                ids.map_err(|error| ApiError::field("prompt", error.to_string()))?
            }
            (Some(text), None) => self.text_ids(&text)?,
            (None, Some(_)) => self.conversation(self.chat_dialogue(body)?)?.ids,
            _ => return Err(ApiError::field("prompt", "give either `prompt` or `messages`")),
        };
        Ok(json_response(&Tokenized { count: tokens.len(), max_model_len: self.model.context, tokens }))
    }

    /// `/detokenize`: the text of tokens, markers spelled out.
    pub fn detokenize(&self, body: &[u8]) -> Result<Response<Body>, ApiError> {
        let fields: DetokenizeFields = body::parse(body)?;
        self.check_model(fields.model.as_deref())?;
        self.check_tokens("tokens", &fields.tokens)?;
        let mut detokenizer = Detokenizer::new(&self.model.tokenizer);
        let mut prompt: String = fields.tokens.iter().map(|token| detokenizer.push(*token)).collect();
        prompt.push_str(detokenizer.finish());
        Ok(json_response(&Detokenized { prompt }))
    }

    /// `/v1/chat/completions/render`: the prompt that a chat request makes.
    pub fn render(&self, body: &[u8]) -> Result<Response<Body>, ApiError> {
        #[derive(Deserialize)]
        struct ModelField {
            model: Option<String>,
        }
        self.check_model(body::parse::<ModelField>(body)?.model.as_deref())?;
        let conversation = self.conversation(self.chat_dialogue(body)?)?;
        Ok(json_response(&Rendered {
            prompt: conversation.prompt.text(),
            prompt_tokens: conversation.ids.len(),
            token_ids: conversation.ids,
            start: match conversation.parse.start {
                Start::Reasoning => "reasoning",
                Start::Content => "content",
            },
        }))
    }

    /// `/v1/chat/completions/derender`: the message that a model's output makes.
    pub fn derender(&self, body: &[u8]) -> Result<Response<Body>, ApiError> {
        let fields: DerenderFields = body::parse(body)?;
        self.check_model(fields.model.as_deref())?;
        self.check_tokens("token_ids", &fields.token_ids)?;
        let reading = self.output_reading(body)?;
        check_tools(&reading.tools)?;
        let start = match fields.start.as_deref() {
            Some("reasoning") => Start::Reasoning,
            Some("content") => Start::Content,
            Some(other) => {
                let message = format!("start is `{other}`: use reasoning or content");
                return Err(ApiError::field("start", message));
            }
            None if reading.effort.thinks() => Start::Reasoning,
            None => Start::Content,
        };
        let end = match fields.finish_reason.as_deref() {
            None | Some("stop" | "tool_calls") => End::Stop,
            Some("length") => End::Limit,
            Some(other) => {
                let message = format!("finish_reason is `{other}`: use stop or length");
                return Err(ApiError::field("finish_reason", message));
            }
        };
        let options = ParseOptions {
            start,
            tools: reading.tools,
            tool_choice: reading.tool_choice,
            call_id_prefix: fresh_id("call_") + "_",
        };
        let mut parser = OutputParser::new(&self.model.tokenizer, options);
        let mut message = ParsedMessage::default();
        for token in fields.token_ids {
            parser.push(token).iter().for_each(|delta| message.apply(delta));
        }
        let (deltas, ending) = Delivery::default().finish(parser.finish(end));
        deltas.iter().for_each(|delta| message.apply(delta));
        Ok(json_response(&Derendered { message: message.into(), finish_reason: ending.reason.as_str() }))
    }

    fn check_tokens(&self, param: &'static str, tokens: &[u32]) -> Result<(), ApiError> {
        let vocab_size = self.model.vocab_size;
        match tokens.iter().position(|token| *token as usize >= vocab_size) {
            None => Ok(()),
            Some(index) => Err(ApiError::field(
                param,
                format!("{param}[{index}] is {}: the vocabulary has {vocab_size} tokens", tokens[index]),
            )),
        }
    }
}
