//! A conversation in no API's words, and the prompt and the job that it makes. Chat completions, and whatever other API
//! asks for an answer, come down to a [`Dialogue`]; everything from there on is the same for all.

use crate::answer_format::{AnswerFormat, HeldTo};
use crate::app::{App, fresh_id};
use crate::choice::Choice;
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::fields::check_prompt_tokens;
use crate::job::{Delivery, Generation, Job, Work};
use overshot_chat::{
    ChatError, Content, Effort, Message, ParseOptions, Prompt, RenderOptions, Role, Tool, ToolChoice, render,
};
use overshot_grammar::Form;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};

/// What was said, and how the answer is to be read. Errors name messages as `messages[i]` and tools as `tools[i]`.
pub struct Dialogue {
    pub messages: Vec<Message>,
    pub reading: OutputReading,
    pub format: AnswerFormat,
}

/// How a model's output is to be read.
pub struct OutputReading {
    pub effort: Effort,
    pub tools: Vec<Tool>,
    pub tool_choice: ToolChoice,
}

/// A conversation, ready to be continued.
pub struct Conversation {
    pub prompt: Prompt,
    pub ids: Vec<u32>,
    pub effort: Effort,
    pub parse: ParseOptions,
    pub held: HeldTo,
}

impl App {
    /// # Errors
    /// A message or a tool that the model's format has no place for.
    pub fn conversation(&self, dialogue: Dialogue) -> Result<Conversation, ApiError> {
        let Dialogue { mut messages, reading, format } = dialogue;
        check_tools(&reading.tools)?;
        check_messages(&messages)?;
        prepare(&mut messages)?;
        let response_schema = self.response_schema(&messages, &format)?;
        // What the model must not call, it need not know.
        let request_tools = if reading.tool_choice == ToolChoice::None { Vec::new() } else { reading.tools };
        let other_tools: Vec<Tool> = messages.iter().flat_map(|message| message.tools.clone()).collect();
        let demand = format.demand(&request_tools, &other_tools)?;
        let declared = [request_tools.clone(), format.unlisted, other_tools].concat();
        let options = RenderOptions {
            effort: reading.effort,
            tools: request_tools,
            response_schema,
            ..RenderOptions::default()
        };
        let prompt = render(&messages, &options, &self.model.texts).map_err(ApiError::from)?;
        let ids = prompt.ids(&self.model.tokenizer).map_err(ApiError::from)?;
        let parse = ParseOptions {
            start: prompt.start(),
            tools: declared,
            tool_choice: reading.tool_choice,
            ..ParseOptions::default()
        };
        let held = HeldTo { demand, start: parse.start, fields: format.fields };
        Ok(Conversation { prompt, ids, effort: reading.effort, parse, held })
    }

    /// The schema for the prompt. A checkpoint without a text for it gets none: the answer is held to it anyhow.
    fn response_schema(
        &self,
        messages: &[Message],
        format: &AnswerFormat,
    ) -> Result<Option<Box<RawValue>>, ApiError> {
        let is_continued = messages.last().is_some_and(|message| message.wo_eos);
        if is_continued && !matches!(format.form, Form::Text) {
            let field = &format.fields.form;
            let message = format!(
                "{field} asks for a form of an answer whose beginning is given: end with a user's message"
            );
            return Err(ApiError::field(field.clone(), message));
        }
        match &format.form {
            Form::JsonSchema(schema) if self.model.texts.response_format_prefix.is_some() => {
                Ok(to_raw_value(schema).ok())
            }
            _ => Ok(None),
        }
    }

    /// The answers to a conversation, told in that dialect.
    ///
    /// # Errors
    /// A prompt that is too long.
    pub fn job(
        &self,
        conversation: &Conversation,
        generation: &Generation,
        dialect: impl Dialect + 'static,
        delivery: Delivery,
    ) -> Result<Job, ApiError> {
        Ok(Job::of(self.work(conversation, generation)?, dialect, delivery))
    }

    /// What the engine has to compute for the answers to a conversation.
    ///
    /// # Errors
    /// A prompt that is too long.
    pub fn work(&self, conversation: &Conversation, generation: &Generation) -> Result<Work, ApiError> {
        let prompt_tokens = conversation.ids.len();
        let most_new_tokens = generation.most_new_tokens(prompt_tokens, self.model.context)?;
        check_prompt_tokens(prompt_tokens, generation.choices, self.limits())?;
        let mut work = Work::new(prompt_tokens);
        work.hold(conversation.held.clone());
        for index in 0..generation.choices {
            let parse =
                ParseOptions { call_id_prefix: fresh_id("call_") + "_", ..conversation.parse.clone() };
            let choice = Choice::chat(&self.model.tokenizer, parse, &generation.options);
            work.push(choice, &conversation.ids, generation, index, most_new_tokens);
        }
        Ok(work)
    }
}

/// # Errors
/// A tool without a name that can be called.
pub fn check_tools(tools: &[Tool]) -> Result<(), ApiError> {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    for (index, tool) in tools.iter().enumerate() {
        let param = || format!("tools[{index}].function.name");
        let named: Named = serde_json::from_str(tool.function.get())
            .map_err(|_| ApiError::field(param(), format!("{} is missing or no string", param())))?;
        check_tool_name(&param(), &named.name)?;
    }
    Ok(())
}

/// # Errors
/// A name that the model cannot call.
pub fn check_tool_name(param: &str, name: &str) -> Result<(), ApiError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    if (1..=64).contains(&name.len()) && name.bytes().all(allowed) {
        return Ok(());
    }
    Err(ApiError::field(param, format!("{param} must be 1 to 64 of the characters A-Z a-z 0-9 _ . -")))
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

/// Instructions between a user's turn and its answer have no place in the model's format, which would not begin the
/// answer behind them: they join that turn. So do those at the end.
fn join_late_instructions(messages: &mut [Message]) {
    let (mut begun, mut previous) = (None, None);
    for index in 0..=messages.len() {
        let role = messages.get(index).map(|message| message.role);
        match role {
            Some(Role::System) if previous.is_some_and(|previous| previous != Role::System) => {
                begun = Some(index);
            }
            Some(Role::System) => {}
            Some(Role::Assistant) | None => {
                let run = begun.take().map_or(&mut [][..], |begun| &mut messages[begun..index]);
                // What these declare belongs to instructions.
                let plain =
                    |message: &&mut Message| message.tools.is_empty() && message.response_format.is_none();
                run.iter_mut().filter(plain).for_each(|message| message.role = Role::User);
            }
            Some(_) => begun = None,
        }
        previous = role;
    }
}

/// OpenAI's developer is who V4 calls system; V4's own developer asks like a user, and would be dropped with old
/// thinking.
fn prepare(messages: &mut [Message]) -> Result<(), ApiError> {
    for message in messages.iter_mut().filter(|message| message.role == Role::Developer) {
        message.role = Role::System;
    }
    join_late_instructions(messages);
    let last = messages.len() - 1;
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
