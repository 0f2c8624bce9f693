//! The fields of a chat request, and the prompt that they make.

use crate::app::{App, fresh_id};
use crate::body;
use crate::choice::{Choice, ChoiceOptions, LogprobsWanted};
use crate::chunks::Format;
use crate::error::ApiError;
use crate::fields::{CommonFields, check_prompt_tokens, top_logprobs};
use crate::job::Job;
use crate::switches::ThinkingFields;
use overshot_chat::{
    ChatError, Content, Effort, Message, ParseOptions, Prompt, RenderOptions, Role, Tool, ToolChoice, render,
};
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

/// A conversation, ready to be continued.
pub struct Conversation {
    pub prompt: Prompt,
    pub ids: Vec<u32>,
    pub effort: Effort,
    pub parse: ParseOptions,
}

/// How a model's output is to be read.
pub struct OutputReading {
    pub effort: Effort,
    pub tools: Vec<Tool>,
    pub tool_choice: ToolChoice,
}

impl App {
    /// # Errors
    /// A field that is wrong or not supported.
    pub fn conversation(&self, body: &[u8]) -> Result<Conversation, ApiError> {
        let fields: ChatFields = body::parse(body)?;
        refuse_unsupported(&fields)?;
        let mut messages = fields.messages;
        check_messages(&messages)?;
        let prefix = body::parse::<PrefixFields>(body)?;
        prepare(&mut messages, &prefix)?;

        let reading = self.output_reading(body)?;
        // What the model must not call, it need not know.
        let request_tools = if reading.tool_choice == ToolChoice::None { Vec::new() } else { reading.tools };
        let mut declared = request_tools.clone();
        declared.extend(messages.iter().flat_map(|message| message.tools.clone()));
        let options =
            RenderOptions { effort: reading.effort, tools: request_tools, ..RenderOptions::default() };
        let prompt = render(&messages, &options, &self.model.texts).map_err(ApiError::from)?;
        let ids = prompt.ids(&self.model.tokenizer).map_err(ApiError::from)?;
        let parse = ParseOptions {
            start: prompt.start(),
            tools: declared,
            tool_choice: reading.tool_choice,
            ..ParseOptions::default()
        };
        Ok(Conversation { prompt, ids, effort: reading.effort, parse })
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
        check_tools(&tools)?;
        let effort = body::parse::<ThinkingFields>(body)?.effort(self.model.effort)?;
        Ok(OutputReading { effort, tools, tool_choice: tool_choice(fields.tool_choice.as_ref())? })
    }

    /// # Errors
    /// A field that is wrong or not supported, a prompt that is too long.
    pub fn chat_job(&self, body: &[u8]) -> Result<Job, ApiError> {
        let mut common: CommonFields = body::parse(body)?;
        self.check_model(common.model.as_deref())?;
        let logprobs = chat_logprobs(self, body)?;
        let choices = common.choices(1, self.limits())?;
        let options = self.choice_options(&mut common, logprobs)?;
        let sampling = self.sampling(&common, logprobs)?;
        let conversation = self.conversation(body)?;
        let most_new_tokens = common.most_new_tokens(conversation.ids.len(), self.model.context)?;
        check_prompt_tokens(conversation.ids.len(), choices, self.limits())?;

        let mut job = Job::new(Format::Chat, common.delivery(), options.logprobs);
        job.prompt_tokens = conversation.ids.len();
        for index in 0..choices {
            let parse =
                ParseOptions { call_id_prefix: fresh_id("call_") + "_", ..conversation.parse.clone() };
            let choice = Choice::chat(&self.model.tokenizer, parse, &options);
            job.push(choice, &conversation.ids, &sampling, index, most_new_tokens, &options);
        }
        Ok(job)
    }

    /// The options that all choices of a request share.
    pub fn choice_options(
        &self,
        common: &mut CommonFields,
        logprobs: Option<usize>,
    ) -> Result<ChoiceOptions, ApiError> {
        Ok(ChoiceOptions {
            stop_strings: common.stop_strings(self.limits())?,
            stop_tokens: common.stop_tokens(self.model.eos_token, self.limits())?.into(),
            logprobs: if logprobs.is_some() { LogprobsWanted::Yes } else { LogprobsWanted::No },
        })
    }

    pub fn sampling(
        &self,
        common: &CommonFields,
        logprobs: Option<usize>,
    ) -> Result<overshot_backend::Sampling, ApiError> {
        let sampling = common.sampling(&self.model.sampling, logprobs.unwrap_or(0))?;
        sampling.validate(self.model.vocab_size)?;
        Ok(sampling)
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

fn tool_choice(value: Option<&Value>) -> Result<ToolChoice, ApiError> {
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

fn check_tools(tools: &[Tool]) -> Result<(), ApiError> {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    for (index, tool) in tools.iter().enumerate() {
        let param = || format!("tools[{index}].function.name");
        let named: Named = serde_json::from_str(tool.function.get())
            .map_err(|_| ApiError::field(param(), format!("{} is missing or no string", param())))?;
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
        if !(1..=64).contains(&named.name.len()) || !named.name.bytes().all(allowed) {
            let message = format!("{} must be 1 to 64 of the characters A-Z a-z 0-9 _ . -", param());
            return Err(ApiError::field(param(), message));
        }
    }
    Ok(())
}

fn check_messages(messages: &[Message]) -> Result<(), ApiError> {
    if messages.is_empty() {
        return Err(ApiError::field("messages", "messages is empty: at least one message is needed"));
    }
    for (index, message) in messages.iter().enumerate() {
        let Content::Parts(parts) = &message.content else { continue };
        if let Some(position) = parts.iter().position(|part| part.kind != "text") {
            let param = format!("messages[{index}].content[{position}].type");
            let kind = &parts[position].kind;
            return Err(ApiError::field(
                param,
                format!("content parts of type `{kind}` are not supported: the model reads text only"),
            ));
        }
    }
    Ok(())
}

/// Turns the API's meaning of messages into the format's. OpenAI's developer is who V4 calls system; V4's own
/// developer asks like a user, and would be dropped with old thinking.
fn prepare(messages: &mut [Message], prefix: &PrefixFields) -> Result<(), ApiError> {
    for message in messages.iter_mut().filter(|message| message.role == Role::Developer) {
        message.role = Role::System;
    }
    let last = messages.len() - 1;
    let wants_prefix = |index: usize| prefix.messages.get(index).and_then(|field| field.prefix) == Some(true);
    if let Some(index) = (0..messages.len()).find(|index| wants_prefix(*index)) {
        if index != last || messages[index].role != Role::Assistant {
            let param = format!("messages[{index}].prefix");
            return Err(ApiError::field(param, "`prefix` belongs to the last message, an assistant's"));
        }
        messages[last].wo_eos = true;
    }
    if messages[last].role == Role::Assistant && !messages[last].wo_eos {
        let param = format!("messages[{last}].role");
        return Err(ApiError::field(
            param,
            "the last message is the assistant's: add a user's, or set its `prefix` to true to have it continued",
        ));
    }
    Ok(())
}

impl From<ChatError> for ApiError {
    fn from(error: ChatError) -> Self {
        let message = error.to_string();
        match error {
            ChatError::Message { index, field, .. } => {
                ApiError::field(format!("messages[{index}].{field}"), message)
            }
            ChatError::Request { field, .. } => ApiError::field(field, message),
            _ => ApiError::field("messages", message),
        }
    }
}
