//! A chat request in the words of OpenAI's API and its dialects in use: from JSON to what `conversation.rs` continues.

use crate::app::App;
use crate::body;
use crate::conversation::{Dialogue, OutputReading};
use crate::error::ApiError;
use crate::fields::{CommonFields, top_logprobs};
use crate::job::Job;
use crate::openai::{Format, OpenAi};
use crate::switches::ThinkingFields;
use overshot_chat::{Message, Role, Tool, ToolChoice};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

/// What only chat requests have. The other fields are read from the same body as [`CommonFields`] and
/// [`ThinkingFields`].
#[derive(Debug, Deserialize)]
struct ChatFields {
    messages: Vec<Message>,
    response_format: Option<ResponseFormat>,
    functions: Option<IgnoredAny>,
    function_call: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
struct ResponseFormat {
    r#type: String,
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
        Ok(Dialogue { messages, reading: self.output_reading(body)? })
    }

    /// # Errors
    /// A field that is wrong or not supported.
    pub fn output_reading(&self, body: &[u8]) -> Result<OutputReading, ApiError> {
        #[derive(Deserialize)]
        struct ToolFields {
            tools: Option<Vec<Tool>>,
            tool_choice: Option<Value>,
        }
        let fields: ToolFields = body::parse(body)?;
        let tools = fields.tools.unwrap_or_default();
        let effort = body::parse::<ThinkingFields>(body)?.effort(self.model.effort)?;
        Ok(OutputReading { effort, tools, tool_choice: tool_choice(fields.tool_choice.as_ref())? })
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
    if let Some(format) = fields.response_format.as_ref().filter(|format| format.r#type != "text") {
        let kind = &format.r#type;
        let message = format!("response_format of type `{kind}` is not supported yet: use text");
        return Err(ApiError::field("response_format", message));
    }
    Ok(())
}

/// # Errors
/// A choice that is not known or not supported.
pub fn tool_choice(value: Option<&Value>) -> Result<ToolChoice, ApiError> {
    let refuse = |what: String| Err(ApiError::field("tool_choice", what));
    match value {
        None | Some(Value::Null) => Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" => refuse("tool_choice `required` is not supported yet: use auto or none".into()),
            word => refuse(format!("tool_choice `{word}` is not known: use auto or none")),
        },
        Some(Value::Object(_)) => {
            refuse("a tool_choice that names a tool is not supported yet: use auto or none".into())
        }
        Some(_) => refuse("tool_choice is no word: use auto or none".into()),
    }
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
