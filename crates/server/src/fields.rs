//! The fields that chat and text completions share, and what they mean for the engine.

use crate::app::App;
use crate::choice::{ChoiceOptions, LogprobsWanted};
use crate::error::ApiError;
use crate::job::{Delivery, Generation};
use crate::limits::ServerLimits;
use overshot_backend::Sampling;
use serde::Deserialize;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Read from the same body as the endpoint's own fields.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct CommonFields {
    /// The served model, which is the default.
    pub model: Option<String>,
    /// Answers to each prompt.
    #[schema(minimum = 1, maximum = 128)]
    n: Option<usize>,
    /// Whether the answer comes as server-sent events.
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    stop: Option<OneOrMany>,
    #[schema(minimum = 1)]
    max_tokens: Option<usize>,
    /// Counts before `max_tokens`.
    #[schema(minimum = 1)]
    max_completion_tokens: Option<usize>,
    #[schema(minimum = 0)]
    temperature: Option<f32>,
    #[schema(exclusive_minimum = 0, maximum = 1)]
    top_p: Option<f32>,
    /// 0 or -1 for all.
    #[schema(minimum = -1)]
    top_k: Option<i64>,
    #[schema(minimum = 0, maximum = 1)]
    min_p: Option<f32>,
    seed: Option<i64>,
    #[schema(exclusive_minimum = 0)]
    repetition_penalty: Option<f32>,
    #[schema(minimum = -2, maximum = 2)]
    presence_penalty: Option<f32>,
    #[schema(minimum = -2, maximum = 2)]
    frequency_penalty: Option<f32>,
    /// By the id of a token.
    logit_bias: Option<BTreeMap<String, f32>>,
    /// Whether the model's own end token is drawn like any other.
    ignore_eos: Option<bool>,
    /// Tokens that end an answer as the model's own does.
    #[schema(max_items = 63)]
    stop_token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
struct StreamOptions {
    /// Whether a chunk with the usage comes last.
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a string or a list of strings was expected")]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// Whether a stream ends with a chunk that tells the usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageChunk {
    Sent,
    Left,
}

impl CommonFields {
    pub fn delivery(&self) -> Delivery {
        if self.stream == Some(true) { Delivery::Stream } else { Delivery::Whole }
    }

    pub fn usage_chunk(&self) -> UsageChunk {
        match self.stream_options.as_ref().and_then(|options| options.include_usage) {
            Some(true) => UsageChunk::Sent,
            _ => UsageChunk::Left,
        }
    }

    /// What the request says of drawing and ending; `prompts` is how many it continues.
    ///
    /// # Errors
    /// A value out of its range.
    pub fn generation(
        &mut self,
        app: &App,
        prompts: usize,
        top_logprobs: Option<usize>,
    ) -> Result<Generation, ApiError> {
        let limits = app.limits();
        let sampling = self.sampling(&app.model.sampling, top_logprobs.unwrap_or(0))?;
        sampling.validate(app.model.vocab_size)?;
        Ok(Generation {
            choices: self.choices(prompts, limits)?,
            options: ChoiceOptions {
                stop_strings: checked_stop_strings("stop", self.stop_strings(), limits)?,
                stop_tokens: self.stop_tokens(app.model.eos_token, limits)?.into(),
                logprobs: if top_logprobs.is_some() { LogprobsWanted::Yes } else { LogprobsWanted::No },
            },
            sampling,
            most_new_tokens: self.asked_tokens()?,
        })
    }

    /// Answers to one prompt.
    ///
    /// # Errors
    /// 0, or more than the limit once multiplied with the prompts.
    fn choices(&self, prompts: usize, limits: &ServerLimits) -> Result<usize, ApiError> {
        let n = self.n.unwrap_or(1);
        if n == 0 {
            return Err(ApiError::field("n", "n is 0: ask for at least 1 answer"));
        }
        let all = n.saturating_mul(prompts);
        if all > limits.choices {
            let message = format!("{all} answers are asked for: at most {} are possible", limits.choices);
            return Err(ApiError::field("n", message));
        }
        Ok(n)
    }

    fn stop_strings(&mut self) -> Vec<String> {
        match self.stop.take() {
            None => Vec::new(),
            Some(OneOrMany::One(stop)) => vec![stop],
            Some(OneOrMany::Many(stops)) => stops,
        }
    }

    /// Tokens that end an answer and are not part of it.
    ///
    /// # Errors
    /// More than the limit.
    fn stop_tokens(&mut self, eos_token: u32, limits: &ServerLimits) -> Result<Vec<u32>, ApiError> {
        let mut tokens = self.stop_token_ids.take().unwrap_or_default();
        if self.ignore_eos != Some(true) {
            tokens.push(eos_token);
        }
        if tokens.len() > limits.stop_tokens {
            let (all, most) = (tokens.len(), limits.stop_tokens);
            let message =
                format!("{all} tokens end the answer, the model's own included: at most {most} are possible");
            return Err(ApiError::field("stop_token_ids", message));
        }
        Ok(tokens)
    }

    /// # Errors
    /// 0 tokens.
    fn asked_tokens(&self) -> Result<Option<usize>, ApiError> {
        let (param, asked) = match (self.max_completion_tokens, self.max_tokens) {
            (Some(tokens), _) => ("max_completion_tokens", Some(tokens)),
            (None, tokens) => ("max_tokens", tokens),
        };
        match asked {
            Some(0) => Err(ApiError::field(param, format!("{param} is 0: ask for at least 1"))),
            asked => Ok(asked),
        }
    }

    /// The request's own values over `defaults`; without a seed, a random one.
    ///
    /// # Errors
    /// A value that is not even of the right kind; ranges are checked by [`Sampling::validate`].
    fn sampling(&self, defaults: &Sampling, top_logprobs: usize) -> Result<Sampling, ApiError> {
        let top_k = match self.top_k {
            None => defaults.top_k,
            // Others write "all" as -1.
            Some(-1) => 0,
            Some(top_k) => usize::try_from(top_k).map_err(|_| {
                ApiError::field("top_k", format!("top_k is {top_k}: use 0 or -1 for all, or more"))
            })?,
        };
        Ok(Sampling {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            top_k,
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(defaults.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            logit_bias: self.logit_bias()?,
            // Negative seeds are seeds as well.
            seed: self.seed.map_or_else(|| fastrand::u64(..), |seed| seed as u64),
            top_logprobs,
        })
    }

    fn logit_bias(&self) -> Result<Vec<(u32, f32)>, ApiError> {
        let entries = self.logit_bias.iter().flatten();
        let entry = |(token, bias): (&String, &f32)| match token.trim().parse() {
            Ok(token) => Ok((token, *bias)),
            Err(_) => {
                Err(ApiError::field("logit_bias", format!("logit_bias: `{token}` is not the id of a token")))
            }
        };
        entries.map(entry).collect()
    }
}

/// Stop strings without the empty ones, which would end every answer at once.
///
/// # Errors
/// More of them, or longer ones, than the limits allow.
pub fn checked_stop_strings(
    param: &'static str,
    mut stops: Vec<String>,
    limits: &ServerLimits,
) -> Result<Vec<String>, ApiError> {
    stops.retain(|stop| !stop.is_empty());
    let (count, most) = (stops.len(), limits.stop_strings);
    if count > most {
        let message = format!("{count} stop strings are given: at most {most} are possible");
        return Err(ApiError::field(param, message));
    }
    let bytes: usize = stops.iter().map(String::len).sum();
    let most = limits.stop_bytes;
    if bytes > most {
        let message = format!("the stop strings have {bytes} bytes: at most {most} are possible");
        return Err(ApiError::field(param, message));
    }
    Ok(stops)
}

/// Bounds what a request has the engine compute before a token is drawn.
///
/// # Errors
/// More prompt tokens than the limit, once multiplied with the answers to each prompt.
pub fn check_prompt_tokens(tokens: usize, choices: usize, limits: &ServerLimits) -> Result<(), ApiError> {
    let all = tokens.saturating_mul(choices);
    if all <= limits.prompt_tokens {
        return Ok(());
    }
    let message = format!(
        "{choices} answers to {tokens} prompt tokens make {all} to compute: at most {} are possible in one request",
        limits.prompt_tokens
    );
    Err(ApiError::field(if choices > 1 { "n" } else { "prompt" }, message))
}

/// How many of the likeliest tokens are reported, or `None` when no log probabilities are wanted.
///
/// # Errors
/// More than the limit.
pub fn top_logprobs(
    param: &'static str,
    asked: Option<usize>,
    limits: &ServerLimits,
) -> Result<Option<usize>, ApiError> {
    match asked {
        Some(count) if count > limits.top_logprobs => {
            let most = limits.top_logprobs;
            Err(ApiError::field(param, format!("{param} is {count}: at most {most} are possible")))
        }
        asked => Ok(asked),
    }
}
