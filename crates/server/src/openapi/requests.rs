//! Bodies of requests as one type each, for the document alone: they are read in several passes, by structs that know
//! only their own fields, and messages by a crate that knows no network. Nothing here is ever constructed.

#![expect(dead_code, reason = "types are what is told of")]

use crate::fields::CommonFields;
use crate::format_fields::FormFields;
use crate::switches::ThinkingFields;
use serde_json::Value;
use utoipa::ToSchema;

#[derive(ToSchema)]
pub struct ChatRequest {
    #[serde(flatten)]
    common: CommonFields,
    #[serde(flatten)]
    conversation: ConversationFields,
    /// Whether log probabilities are told.
    logprobs: Option<bool>,
    /// How many of the likeliest tokens are told for each position.
    #[schema(maximum = 20)]
    top_logprobs: Option<usize>,
}

/// What makes a prompt: for `/tokenize` and `/v1/chat/completions/render` too.
#[derive(ToSchema)]
pub struct ConversationFields {
    #[schema(min_items = 1)]
    messages: Vec<MessageGiven>,
    #[serde(flatten)]
    reading: ReadingFields,
}

/// How the model's output is read.
#[derive(ToSchema)]
pub struct ReadingFields {
    #[serde(flatten)]
    thinking: ThinkingFields,
    tools: Option<Vec<ToolGiven>>,
    /// `auto`, `none`, `required`, or the one tool that must be called.
    #[schema(value_type = Option<Value>)]
    tool_choice: Option<Value>,
    #[serde(flatten)]
    form: FormFields,
}

#[derive(ToSchema)]
pub struct RenderRequest {
    model: Option<String>,
    #[serde(flatten)]
    conversation: ConversationFields,
}

#[derive(ToSchema)]
pub struct DerenderRequest {
    model: Option<String>,
    token_ids: Vec<u32>,
    /// What the output begins with; without it the thinking switches decide.
    start: Option<OutputStart>,
    finish_reason: Option<OutputEnd>,
    #[serde(flatten)]
    reading: ReadingFields,
}

#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
enum OutputStart {
    Reasoning,
    Content,
}

#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
enum OutputEnd {
    Stop,
    ToolCalls,
    Length,
}

/// Either `prompt` or `messages` with what goes with them.
#[derive(ToSchema)]
pub struct TokenizeRequest {
    model: Option<String>,
    prompt: Option<String>,
    /// Whether the begin token comes first; true unless told.
    add_special_tokens: Option<bool>,
    messages: Option<Vec<MessageGiven>>,
    #[serde(flatten)]
    reading: ReadingFields,
}

#[derive(ToSchema)]
struct MessageGiven {
    role: RoleGiven,
    content: Option<ContentGiven>,
    /// What the assistant thought before the content.
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<CallGiven>>,
    /// Of a tool's message: the call that it answers.
    tool_call_id: Option<String>,
    /// Has the last message, an assistant's, continued.
    prefix: Option<bool>,
}

#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
enum RoleGiven {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

#[derive(ToSchema)]
#[serde(untagged)]
enum ContentGiven {
    Text(String),
    Parts(Vec<PartGiven>),
}

#[derive(ToSchema)]
struct PartGiven {
    /// `text` is the only kind that there is.
    r#type: PartKind,
    text: Option<String>,
}

#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
enum PartKind {
    Text,
}

#[derive(ToSchema)]
struct CallGiven {
    id: Option<String>,
    function: FunctionCalled,
}

#[derive(ToSchema)]
struct FunctionCalled {
    name: String,
    /// The arguments as JSON text.
    arguments: String,
}

#[derive(ToSchema)]
struct ToolGiven {
    r#type: ToolKind,
    function: FunctionGiven,
}

#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
enum ToolKind {
    Function,
}

#[derive(ToSchema)]
struct FunctionGiven {
    #[schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9_.-]+$")]
    name: String,
    description: Option<String>,
    /// The JSON schema of the arguments.
    #[schema(value_type = Option<Object>)]
    parameters: Option<Value>,
    strict: Option<bool>,
}
