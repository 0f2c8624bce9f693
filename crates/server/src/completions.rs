//! The fields of a text completion, and the prompts that they make.

use crate::answer_format::HeldTo;
use crate::app::App;
use crate::body;
use crate::choice::Choice;
use crate::error::ApiError;
use crate::fields::{CommonFields, check_prompt_tokens, top_logprobs};
use crate::format_fields::{FormFields, text_format};
use crate::job::{Job, Work};
use crate::openai::{Format, OpenAi};
use overshot_chat::Start;
use serde::Deserialize;
use utoipa::ToSchema;

#[derive(Debug, Deserialize, ToSchema)]
struct TextFields {
    prompt: Prompts,
    /// How many of the likeliest tokens are told for each position.
    #[schema(maximum = 20)]
    logprobs: Option<usize>,
    echo: Option<bool>,
    suffix: Option<String>,
    best_of: Option<usize>,
}

/// The whole body, for the document alone.
#[derive(ToSchema)]
#[expect(dead_code, reason = "types are what is told of")]
pub struct TextRequest {
    #[serde(flatten)]
    common: CommonFields,
    #[serde(flatten)]
    text: TextFields,
    #[serde(flatten)]
    form: FormFields,
}

/// One prompt or several, as text or as token ids.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "a string, a list of strings, a list of token ids or a list of such lists was expected"
)]
enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<u32>),
    ManyIds(Vec<Vec<u32>>),
}

impl App {
    /// # Errors
    /// A field that is wrong or not supported, a prompt that is too long.
    pub fn text_job(&self, body: &[u8]) -> Result<Job, ApiError> {
        let mut common: CommonFields = body::parse(body)?;
        self.check_model(common.model.as_deref())?;
        let fields: TextFields = body::parse(body)?;
        refuse_unsupported(&fields)?;
        let logprobs = top_logprobs("logprobs", fields.logprobs, self.limits())?;
        let count = match &fields.prompt {
            Prompts::Text(_) | Prompts::Ids(_) => 1,
            Prompts::Texts(texts) => texts.len(),
            Prompts::ManyIds(lists) => lists.len(),
        };
        if count == 0 {
            return Err(ApiError::field("prompt", "prompt is empty: at least one prompt is needed"));
        }
        let generation = common.generation(self, count, logprobs)?;
        let prompts = self.prompts(fields.prompt)?;
        let prompt_tokens = prompts.iter().map(Vec::len).sum();
        check_prompt_tokens(prompt_tokens, generation.choices, self.limits())?;
        let dialect = OpenAi::new(Format::Text, common.usage_chunk(), generation.options.logprobs);
        let mut work = Work::new(prompt_tokens);
        let format = text_format(body)?;
        work.hold(HeldTo { demand: format.demand(&[], &[])?, start: Start::Content, fields: format.fields });
        for ids in prompts {
            let most_new_tokens = generation.most_new_tokens(ids.len(), self.model.context)?;
            for index in 0..generation.choices {
                let choice = Choice::text(&self.model.tokenizer, &generation.options);
                work.push(choice, &ids, &generation, index, most_new_tokens);
            }
        }
        Ok(Job::of(work, dialect, common.delivery()))
    }

    fn prompts(&self, prompts: Prompts) -> Result<Vec<Vec<u32>>, ApiError> {
        match prompts {
            Prompts::Text(text) => Ok(vec![self.text_ids(&text)?]),
            Prompts::Texts(texts) => texts.iter().map(|text| self.text_ids(text)).collect(),
            Prompts::Ids(ids) => Ok(vec![ids]),
            Prompts::ManyIds(lists) => Ok(lists),
        }
    }

    /// Tokens of a prompt in which markers are meant as such; the begin token is put first where it is missing.
    ///
    /// # Errors
    /// A text that the tokenizer gives up on.
    pub fn text_ids(&self, text: &str) -> Result<Vec<u32>, ApiError> {
        let mut ids = self.model.tokenizer.encode_with_specials(text).map_err(|error| {
            let message = error.to_string();
            ApiError::field("prompt", message)
        })?;
        if ids.first() != Some(&self.model.bos_token) {
            ids.insert(0, self.model.bos_token);
        }
        Ok(ids)
    }
}

fn refuse_unsupported(fields: &TextFields) -> Result<(), ApiError> {
    if fields.echo == Some(true) {
        return Err(ApiError::field("echo", "echo is not supported: the prompt is not sent back"));
    }
    if fields.suffix.as_deref().is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::field("suffix", "suffix is not supported: the model only continues a text"));
    }
    if fields.best_of.is_some_and(|best_of| best_of > 1) {
        return Err(ApiError::field("best_of", "best_of is not supported: use n"));
    }
    Ok(())
}
