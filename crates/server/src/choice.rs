//! One answer on its way from tokens to text. The same pieces make a stream and a whole response, so the two cannot
//! disagree.

use crate::mailbox::ChoiceEnd;
use overshot_backend::Sampled;
use overshot_chat::{
    Delivery, Delta, Detokenizer, End, Ending, FinishReason, OutputParser, ParseOptions, Special, Start,
    StopStrings, Tokenizer,
};
use std::sync::Arc;

/// Something to deliver: text, a part of a call, or only log probabilities.
#[derive(Clone, Debug, Default)]
pub struct Piece {
    pub delta: Option<Delta>,
    /// Of the tokens whose text this piece completes; none unless wanted.
    pub logprobs: Vec<TokenLogprob>,
}

#[derive(Clone, Debug)]
pub struct TokenLogprob {
    pub sampled: Sampled,
    pub part: Part,
}

/// What a token belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Reasoning,
    Content,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// Tokens drawn, end tokens included, up to the one that completed a stop string.
    pub completion: usize,
    /// Those of them up to the end of the thinking, its marker included.
    pub reasoning: usize,
}

/// What all choices of one request have in common.
#[derive(Clone, Debug)]
pub struct ChoiceOptions {
    pub stop_strings: Vec<String>,
    /// End an answer, and are no part of it.
    pub stop_tokens: Arc<[u32]>,
    pub logprobs: LogprobsWanted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogprobsWanted {
    Yes,
    No,
}

pub struct Choice {
    decoder: Decoder,
    stop_tokens: Arc<[u32]>,
    eos_token: u32,
    think_close: Option<u32>,
    part: Part,
    counts: TokenCounts,
    logprobs: LogprobsWanted,
    /// Of tokens whose text is still held back.
    held_logprobs: Vec<TokenLogprob>,
}

enum Decoder {
    Chat(Box<ChatDecoder>),
    Text { detokenizer: Detokenizer, stops: Option<StopStrings> },
    Finished,
}

struct ChatDecoder {
    parser: OutputParser,
    delivery: Delivery,
}

impl Choice {
    /// An answer in a conversation.
    pub fn chat(tokenizer: &Tokenizer, parse: ParseOptions, options: &ChoiceOptions) -> Self {
        let part = if parse.start == Start::Reasoning { Part::Reasoning } else { Part::Content };
        let delivery = Delivery::new(&options.stop_strings);
        let parser = OutputParser::new(tokenizer, parse);
        Self::new(tokenizer, Decoder::Chat(Box::new(ChatDecoder { parser, delivery })), part, options)
    }

    /// The continuation of a plain text.
    pub fn text(tokenizer: &Tokenizer, options: &ChoiceOptions) -> Self {
        let stops = &options.stop_strings;
        let stops = (!stops.is_empty()).then(|| StopStrings::new(stops.clone()));
        let decoder = Decoder::Text { detokenizer: Detokenizer::new(tokenizer), stops };
        Self::new(tokenizer, decoder, Part::Content, options)
    }

    fn new(tokenizer: &Tokenizer, decoder: Decoder, part: Part, options: &ChoiceOptions) -> Self {
        Choice {
            decoder,
            stop_tokens: Arc::clone(&options.stop_tokens),
            eos_token: tokenizer.end_of_sentence(),
            think_close: tokenizer.special_id(Special::ThinkClose),
            part,
            counts: TokenCounts::default(),
            logprobs: options.logprobs,
            held_logprobs: Vec::new(),
        }
    }

    /// Takes the next token and gives what it completes.
    pub fn push(&mut self, sampled: Sampled, deliver: &mut impl FnMut(Piece)) {
        let token = sampled.token;
        self.counts.completion += 1;
        if token == self.eos_token || self.stop_tokens.contains(&token) {
            return;
        }
        let part = self.part;
        let ends_reasoning = part == Part::Reasoning && Some(token) == self.think_close;
        if part == Part::Reasoning {
            self.counts.reasoning += 1;
        }
        if ends_reasoning {
            self.part = Part::Content;
        } else if self.logprobs == LogprobsWanted::Yes {
            self.held_logprobs.push(TokenLogprob { sampled, part });
        }
        match &mut self.decoder {
            Decoder::Chat(chat) => {
                let deltas = chat.delivery.push(chat.parser.push(token));
                self.hand_on(deltas, deliver);
            }
            Decoder::Text { detokenizer, stops } => {
                let text = detokenizer.push(token);
                let text = match stops {
                    Some(stops) => stops.push(&text),
                    None => text,
                };
                self.hand_on_text(text, deliver);
            }
            Decoder::Finished => {}
        }
    }

    /// Whether a stop string came: no further token is wanted.
    pub fn has_stopped(&self) -> bool {
        match &self.decoder {
            Decoder::Chat(chat) => chat.delivery.has_stopped(),
            Decoder::Text { stops, .. } => stops.as_ref().is_some_and(|stops| stops.matched().is_some()),
            Decoder::Finished => false,
        }
    }

    /// Gives what was held back, and why the answer ended.
    pub fn finish(&mut self, end: ChoiceEnd, deliver: &mut impl FnMut(Piece)) -> Ending {
        let has_stopped = self.has_stopped();
        if has_stopped {
            // Their text was dropped, at least in part.
            self.held_logprobs.clear();
        }
        let ending = match std::mem::replace(&mut self.decoder, Decoder::Finished) {
            Decoder::Chat(chat) => {
                let ChatDecoder { parser, delivery } = *chat;
                let end = if has_stopped || end == ChoiceEnd::Stop { End::Stop } else { End::Limit };
                let (deltas, ending) = delivery.finish(parser.finish(end));
                self.hand_on(deltas, deliver);
                ending
            }
            Decoder::Text { mut detokenizer, stops } => {
                let mut text = detokenizer.finish().to_owned();
                let mut stop_string = None;
                if let Some(mut stops) = stops {
                    text = stops.push(&text);
                    text.push_str(&stops.finish());
                    stop_string = stops.matched_text().map(str::to_owned);
                }
                self.hand_on_text(text, deliver);
                let is_stop = stop_string.is_some() || end == ChoiceEnd::Stop;
                let reason = if is_stop { FinishReason::Stop } else { FinishReason::Length };
                Ending { reason, stop_string }
            }
            Decoder::Finished => Ending::default(),
        };
        if !self.held_logprobs.is_empty() {
            deliver(Piece { delta: None, logprobs: std::mem::take(&mut self.held_logprobs) });
        }
        ending
    }

    pub fn counts(&self) -> TokenCounts {
        self.counts
    }

    fn hand_on(&mut self, deltas: Vec<Delta>, deliver: &mut impl FnMut(Piece)) {
        for delta in deltas {
            deliver(Piece { delta: Some(delta), logprobs: std::mem::take(&mut self.held_logprobs) });
        }
    }

    fn hand_on_text(&mut self, text: String, deliver: &mut impl FnMut(Piece)) {
        if !text.is_empty() {
            let logprobs = std::mem::take(&mut self.held_logprobs);
            deliver(Piece { delta: Some(Delta::Content(text)), logprobs });
        }
    }
}
