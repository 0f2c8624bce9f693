//! A request to `/v1/responses` in the client's words, and the work that it makes.

use super::history::History;
use super::input::{Given, Input};
use super::items::{Item, ItemIds, RESPONSE_PREFIX};
use super::response::{Reasoning, Response, Settings, Status, Text};
use super::teller::{EncryptedContent, Teller};
use super::tools::{Tools, told_name};
use crate::answer_format::{AnswerFormat, FieldNames};
use crate::app::{App, fresh_id, now};
use crate::body;
use crate::conversation::{Conversation, Dialogue, OutputReading};
use crate::error::ApiError;
use crate::fields::{CommonFields, top_logprobs};
use crate::format_fields::call_choice;
use crate::job::{Delivery, Generation, Work};
use crate::switches::effort_word;
use overshot_chat::Effort;
use overshot_grammar::{CallCount, Form};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What chat requests do not have, or have otherwise. The rest is read from the same body as [`CommonFields`].
#[derive(Debug, Deserialize)]
struct CreateFields {
    #[serde(default)]
    input: Option<Input>,
    instructions: Option<String>,
    previous_response_id: Option<String>,
    tools: Option<Vec<Box<RawValue>>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    reasoning: Option<ReasoningFields>,
    text: Option<TextFields>,
    max_output_tokens: Option<usize>,
    top_logprobs: Option<usize>,
    include: Option<Vec<String>>,
    metadata: Option<BTreeMap<String, String>>,
    store: Option<bool>,
    background: Option<bool>,
    user: Option<String>,
    conversation: Option<IgnoredAny>,
    prompt: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
struct ReasoningFields {
    effort: Option<String>,
}

#[derive(Debug, Deserialize)]
struct TextFields {
    format: Option<Box<RawValue>>,
    verbosity: Option<String>,
}

/// How a response is answered, and what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// Gone once it is told.
    Passing(Delivery),
    /// Kept once it is told.
    Kept(Delivery),
    /// Made while nobody waits, and fetched when wanted; a stream may be joined at any time.
    Background(Delivery),
}

/// A request that has been understood.
pub struct Created {
    pub work: Work,
    pub teller: Teller,
    pub course: Course,
    pub input: Vec<Item>,
    pub previous: Option<String>,
}

/// What a request says, up to the prompt that it makes.
struct Understood {
    conversation: Conversation,
    generation: Generation,
    history: History,
    tools: Tools,
    input: Vec<Item>,
}

impl App {
    /// # Errors
    /// A field that is wrong or not supported, an earlier response that is not there, a prompt that is too long.
    pub fn created_response(&self, body: &[u8]) -> Result<Created, ApiError> {
        let mut common: CommonFields = body::parse(body)?;
        let mut fields: CreateFields = body::parse(body)?;
        let id = fresh_id(RESPONSE_PREFIX);
        let course = course(&fields, common.delivery())?;
        let understood = self.understood(&mut common, &mut fields, &id)?;
        let Understood { conversation, generation, history, tools, input } = understood;
        let work =
            self.work(&conversation, &generation).map_err(|error| history.translated(error, &tools))?;
        let encrypted = match includes(&fields, "reasoning.encrypted_content") {
            true => EncryptedContent::Told,
            false => EncryptedContent::Left,
        };
        let previous = fields.previous_response_id.clone();
        let status = match course {
            Course::Background(_) => Status::Queued,
            Course::Passing(_) | Course::Kept(_) => Status::InProgress,
        };
        let settings = self.settings(fields, &generation, conversation.effort, course)?;
        let response = Response::new(id, now(), status, settings);
        let teller = Teller::new(response, tools, self.model.tokenizer.clone(), encrypted);
        Ok(Created { work, teller, course, input, previous })
    }

    /// The tokens that a request's prompt has.
    ///
    /// # Errors
    /// As in [`App::created_response`].
    pub fn response_input_tokens(&self, body: &[u8]) -> Result<usize, ApiError> {
        let mut fields: CreateFields = body::parse(body)?;
        let understood = self.understood(&mut body::parse(body)?, &mut fields, &fresh_id(RESPONSE_PREFIX))?;
        Ok(understood.conversation.ids.len())
    }

    fn understood(
        &self,
        common: &mut CommonFields,
        fields: &mut CreateFields,
        id: &str,
    ) -> Result<Understood, ApiError> {
        self.check_model(common.model.as_deref())?;
        refuse_unsupported(fields)?;
        let generation = self.response_generation(common, fields)?;
        let mut tools = Tools::new(fields.tools.as_deref().unwrap_or_default())?;
        let input = self.input(fields.input.take().unwrap_or_default(), &ItemIds::new(id))?;
        let earlier = match &fields.previous_response_id {
            Some(previous) => self.responses.history(previous)?,
            None => Vec::new(),
        };
        let mut history = History::new(fields.instructions.as_deref(), &earlier, &input);
        let format = answer_format(fields, &tools)?;
        let reading = OutputReading {
            effort: self.effort(fields)?,
            tools: std::mem::take(&mut tools.functions),
            tool_choice: format.calls.reading(),
        };
        let conversation = self
            .conversation(Dialogue { messages: history.messages()?, reading, format })
            .map_err(|error| history.translated(error, &tools))?;
        Ok(Understood { conversation, generation, history, tools, input })
    }

    fn effort(&self, fields: &CreateFields) -> Result<Effort, ApiError> {
        match fields.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_deref()) {
            Some(word) => effort_word("reasoning.effort", word),
            None => Ok(self.model.effort),
        }
    }

    fn response_generation(
        &self,
        common: &mut CommonFields,
        fields: &CreateFields,
    ) -> Result<Generation, ApiError> {
        let top = top_logprobs("top_logprobs", fields.top_logprobs, self.limits())?;
        let wanted = includes(fields, "message.output_text.logprobs") || top.is_some_and(|top| top > 0);
        let mut generation = common.generation(self, 1, wanted.then_some(top.unwrap_or(0)))?;
        if generation.choices != 1 {
            return Err(ApiError::field("n", "n is not 1: a response has one answer"));
        }
        match fields.max_output_tokens {
            Some(0) => {
                let message = "max_output_tokens is 0: ask for at least 1";
                return Err(ApiError::field("max_output_tokens", message));
            }
            Some(tokens) => generation.most_new_tokens = Some(tokens),
            None => {}
        }
        Ok(generation)
    }

    /// The items of the input, those that earlier responses have among them.
    fn input(&self, input: Input, ids: &ItemIds) -> Result<Vec<Item>, ApiError> {
        let item = |(index, given): (usize, Given)| match given {
            Given::Item(item) => Ok(item),
            Given::Reference { id } => self.responses.item(&id).ok_or_else(|| {
                let param = format!("input[{index}].id");
                let message = format!("{param} is `{id}`, and no response that is kept here has this item");
                ApiError::field(param, message)
            }),
        };
        input.items(ids)?.into_iter().enumerate().map(item).collect()
    }

    fn settings(
        &self,
        fields: CreateFields,
        generation: &Generation,
        effort: Effort,
        course: Course,
    ) -> Result<Settings, ApiError> {
        let raw = |value: Value| {
            serde_json::value::to_raw_value(&value).map_err(|error| ApiError::Failed(error.to_string()))
        };
        let text = fields.text.unwrap_or(TextFields { format: None, verbosity: None });
        let format = match text.format {
            Some(format) => format,
            None => raw(json!({"type": "text"}))?,
        };
        Ok(Settings {
            model: self.model.name.clone(),
            instructions: fields.instructions,
            previous_response_id: fields.previous_response_id,
            background: matches!(course, Course::Background(_)),
            store: !matches!(course, Course::Passing(_)),
            max_output_tokens: fields.max_output_tokens,
            temperature: generation.sampling.temperature,
            top_p: generation.sampling.top_p,
            top_logprobs: generation.sampling.top_logprobs,
            parallel_tool_calls: fields.parallel_tool_calls.unwrap_or(true),
            tool_choice: raw(fields.tool_choice.unwrap_or_else(|| "auto".into()))?,
            tools: fields.tools.unwrap_or_default(),
            text: Text { format, verbosity: text.verbosity },
            reasoning: Reasoning { effort, summary: None },
            truncation: "disabled",
            service_tier: "default",
            metadata: fields.metadata.unwrap_or_default(),
            user: fields.user,
        })
    }
}

fn course(fields: &CreateFields, delivery: Delivery) -> Result<Course, ApiError> {
    match (fields.store.unwrap_or(true), fields.background.unwrap_or(false)) {
        (true, true) => Ok(Course::Background(delivery)),
        (true, false) => Ok(Course::Kept(delivery)),
        (false, false) => Ok(Course::Passing(delivery)),
        (false, true) => {
            let message = "background needs `store`: what is not kept cannot be fetched";
            Err(ApiError::field("background", message))
        }
    }
}

/// Ignoring these without a word would give answers that were not asked for.
fn refuse_unsupported(fields: &CreateFields) -> Result<(), ApiError> {
    if fields.conversation.is_some() {
        let message = "conversation is not supported: use previous_response_id, or send all items as input";
        return Err(ApiError::field("conversation", message));
    }
    if fields.prompt.is_some() {
        return Err(ApiError::field("prompt", "prompt is not supported: send its text as instructions"));
    }
    Ok(())
}

fn answer_format(fields: &CreateFields, tools: &Tools) -> Result<AnswerFormat, ApiError> {
    let count = match fields.parallel_tool_calls {
        Some(false) => CallCount::One,
        _ => CallCount::Several,
    };
    let (form_field, form) = form(fields.text.as_ref().and_then(|text| text.format.as_deref()))?;
    Ok(AnswerFormat {
        form,
        calls: call_choice(chat_tool_choice(fields.tool_choice.as_ref()).as_ref())?,
        count,
        unlisted: Vec::new(),
        fields: FieldNames { form: form_field.into(), tools: tools.places.clone(), schema: "parameters" },
    })
}

/// The form of the answer's text, with the field that asks for it.
fn form(format: Option<&RawValue>) -> Result<(&'static str, Form), ApiError> {
    #[derive(Deserialize)]
    struct FormatFields {
        r#type: String,
        schema: Option<Value>,
    }
    let (field, schema_field) = ("text.format", "text.format.schema");
    let Some(format) = format else { return Ok((field, Form::Text)) };
    let FormatFields { r#type, schema } = serde_json::from_str(format.get())
        .map_err(|error| ApiError::field(field, format!("text.format is no format: {error}")))?;
    match (r#type.as_str(), schema) {
        ("text", _) => Ok((field, Form::Text)),
        ("json_object", _) => Ok((field, Form::JsonObject)),
        ("json_schema", Some(schema)) => Ok((schema_field, Form::JsonSchema(schema))),
        ("json_schema", None) => {
            Err(ApiError::field(schema_field, "text.format.schema is missing: give the JSON schema"))
        }
        (other, _) => {
            let message = format!("text.format.type is `{other}`: use text, json_object or json_schema");
            Err(ApiError::field("text.format.type", message))
        }
    }
}

fn includes(fields: &CreateFields, what: &str) -> bool {
    fields.include.iter().flatten().any(|included| included == what)
}

/// A choice that names a tool, in the words of chat requests.
fn chat_tool_choice(choice: Option<&Value>) -> Option<Value> {
    let named = |choice: &Value| {
        let kind = choice.get("type")?.as_str()?;
        let name = choice.get("name")?.as_str()?;
        let namespace = choice.get("namespace").and_then(Value::as_str);
        let told = json!({"type": "function", "function": {"name": told_name(name, namespace)}});
        matches!(kind, "function" | "custom").then_some(told)
    };
    choice.map(|choice| named(choice).unwrap_or_else(|| choice.clone()))
}
