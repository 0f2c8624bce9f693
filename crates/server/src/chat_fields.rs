//! A chat request in the words of OpenAI's API and its dialects in use: from JSON to what `conversation.rs` continues.

use crate::app::App;
use crate::body;
use crate::conversation::{Dialogue, OutputReading};
use crate::error::ApiError;
use crate::fields::{CommonFields, top_logprobs};
use crate::format_fields::answer_format;
use crate::job::Job;
use crate::openai::{Format, OpenAi};
use crate::switches::ThinkingFields;
use overshot_chat::{Message, Role, Tool};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// What only chat requests have. The other fields are read from the same body as [`CommonFields`] and
/// [`ThinkingFields`].
#[derive(Debug, Deserialize)]
struct ChatFields {
    messages: Vec<Message>,
    functions: Option<IgnoredAny>,
    function_call: Option<IgnoredAny>,
}

/// Beside `Message`: the word of DeepSeek's API for an assistant message that is to be continued.
#[derive(Debug, Deserialize)]
struct PrefixFields {
    messages: Vec<PrefixField>,
}

#[derive(Debug, Deserialize)]
struct PrefixField {
    prefix: Option<bool>,
}

impl App {
    /// # Errors
    /// A field that is wrong or not supported.
    pub fn chat_dialogue(&self, body: &[u8]) -> Result<Dialogue, ApiError> {
        let fields: ChatFields = body::parse(body)?;
        refuse_unsupported(&fields)?;
        let mut messages = fields.messages;
        mark_prefix(&mut messages, &body::parse::<PrefixFields>(body)?)?;
        Ok(Dialogue { messages, reading: self.output_reading(body)?, format: answer_format(body)? })
    }

    /// # Errors
    /// A field that is wrong or not supported.
    pub fn output_reading(&self, body: &[u8]) -> Result<OutputReading, ApiError> {
        #[derive(Deserialize)]
        struct ToolFields {
            tools: Option<Vec<Tool>>,
        }
        let fields: ToolFields = body::parse(body)?;
        let tools = fields.tools.unwrap_or_default();
        let effort = body::parse::<ThinkingFields>(body)?.effort(self.model.effort)?;
        Ok(OutputReading { effort, tools, tool_choice: answer_format(body)?.calls.reading() })
    }

    /// # Errors
    /// A field that is wrong or not supported, a prompt that is too long.
    pub fn chat_job(&self, body: &[u8]) -> Result<Job, ApiError> {
        let mut common: CommonFields = body::parse(body)?;
        self.check_model(common.model.as_deref())?;
        let generation = common.generation(self, 1, chat_logprobs(self, body)?)?;
        let conversation = self.conversation(self.chat_dialogue(body)?)?;
        let dialect = OpenAi::new(Format::Chat, common.usage_chunk(), generation.options.logprobs);
        self.job(&conversation, &generation, dialect, common.delivery())
    }
}

fn chat_logprobs(app: &App, body: &[u8]) -> Result<Option<usize>, ApiError> {
    #[derive(Deserialize)]
    struct LogprobFields {
        logprobs: Option<bool>,
        top_logprobs: Option<usize>,
    }
    let fields: LogprobFields = body::parse(body)?;
    let top = top_logprobs("top_logprobs", fields.top_logprobs, app.limits())?;
    match (fields.logprobs, top) {
        (Some(true), top) => Ok(Some(top.unwrap_or(0))),
        (_, None | Some(0)) => Ok(None),
        (_, Some(_)) => Err(ApiError::field("top_logprobs", "top_logprobs needs `logprobs`: true")),
    }
}

/// Ignoring these without a word would give answers that were not asked for.
fn refuse_unsupported(fields: &ChatFields) -> Result<(), ApiError> {
    if fields.functions.is_some() || fields.function_call.is_some() {
        return Err(ApiError::field("functions", "functions and function_call are not supported: use tools"));
    }
    Ok(())
}

/// DeepSeek's word for an assistant message that is to be continued.
fn mark_prefix(messages: &mut [Message], prefix: &PrefixFields) -> Result<(), ApiError> {
    let wants_prefix =
        |index: &usize| prefix.messages.get(*index).and_then(|field| field.prefix) == Some(true);
    let Some(index) = (0..messages.len()).find(wants_prefix) else { return Ok(()) };
    if index + 1 != messages.len() || messages[index].role != Role::Assistant {
        let param = format!("messages[{index}].prefix");
        return Err(ApiError::field(param, "`prefix` belongs to the last message, an assistant's"));
    }
    messages[index].wo_eos = true;
    Ok(())
}
