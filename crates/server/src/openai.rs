//! Chat and text completions as dialects: their whole responses here, their chunks in `chunks.rs`.

use crate::app::{App, fresh_id, now};
use crate::choice::LogprobsWanted;
use crate::chunks::ChunkWriter;
use crate::dialect::{AllCounts, Answer, Dialect, EventWriter};
use crate::fields::UsageChunk;
use crate::job::json_response;
use crate::wire::{
    ChatLogprobs, ChatResponse, ChatResponseChoice, TextLogprobs, TextResponse, TextResponseChoice, Usage,
};
use axum::body::Body;
use axum::http::Response;

/// Which endpoint's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Chat,
    Text,
}

#[derive(Debug)]
pub struct OpenAi {
    pub format: Format,
    pub id: String,
    pub usage: UsageChunk,
    pub logprobs: LogprobsWanted,
}

impl OpenAi {
    pub fn new(format: Format, usage: UsageChunk, logprobs: LogprobsWanted) -> Self {
        let id = fresh_id(match format {
            Format::Chat => "chatcmpl-",
            Format::Text => "cmpl-",
        });
        OpenAi { format, id, usage, logprobs }
    }

    fn chat(&self, answers: Vec<Answer>, usage: Usage, app: &App) -> Response<Body> {
        let choice = |(index, answer): (usize, Answer)| ChatResponseChoice {
            index,
            finish_reason: answer.ending.reason.as_str(),
            logprobs: (self.logprobs == LogprobsWanted::Yes)
                .then(|| ChatLogprobs::new(&app.model.tokenizer, &answer.logprobs)),
            message: answer.message().into(),
        };
        json_response(&ChatResponse {
            id: &self.id,
            object: "chat.completion",
            created: now(),
            model: &app.model.name,
            choices: answers.into_iter().enumerate().map(choice).collect(),
            usage,
        })
    }

    fn text(&self, answers: Vec<Answer>, usage: Usage, app: &App) -> Response<Body> {
        let choice = |(index, answer): (usize, Answer)| TextResponseChoice {
            index,
            finish_reason: answer.ending.reason.as_str(),
            logprobs: (self.logprobs == LogprobsWanted::Yes)
                .then(|| TextLogprobs::new(&app.model.tokenizer, &answer.logprobs, &mut 0)),
            text: answer.message().content,
        };
        json_response(&TextResponse {
            id: &self.id,
            object: "text_completion",
            created: now(),
            model: &app.model.name,
            choices: answers.into_iter().enumerate().map(choice).collect(),
            usage,
        })
    }
}

impl Dialect for OpenAi {
    fn whole(self: Box<Self>, answers: Vec<Answer>, counts: AllCounts, app: &App) -> Response<Body> {
        match self.format {
            Format::Chat => self.chat(answers, Usage::new(counts), app),
            Format::Text => self.text(answers, Usage::new(counts), app),
        }
    }

    fn events(self: Box<Self>, choices: usize, app: &App) -> Box<dyn EventWriter> {
        Box::new(ChunkWriter::new(*self, choices, app))
    }
}
