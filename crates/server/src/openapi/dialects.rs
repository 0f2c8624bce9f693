//! Bodies of requests to the Messages and the Responses API, for the document alone, as in `requests.rs`: the main
//! fields, and what they may hold as far as a type can say it. Their documentation has the rest.

#![expect(dead_code, reason = "types are what is told of")]

use serde_json::Value;
use std::collections::BTreeMap;
use utoipa::ToSchema;

#[derive(ToSchema)]
pub struct MessagesRequest {
    #[serde(flatten)]
    prompt: MessagesPrompt,
    #[schema(minimum = 1)]
    max_tokens: usize,
    stop_sequences: Option<Vec<String>>,
    #[serde(flatten)]
    drawing: DrawingFields,
}

/// What makes a prompt: for `/v1/messages/count_tokens` too.
#[derive(ToSchema)]
pub struct MessagesPrompt {
    /// The served model, which is the default.
    model: Option<String>,
    #[schema(min_items = 1)]
    messages: Vec<TurnGiven>,
    system: Option<TextOrObjects>,
    thinking: Option<ThinkingGiven>,
    output_config: Option<OutputConfigGiven>,
    tools: Option<Vec<MessagesToolGiven>>,
    tool_choice: Option<MessagesToolChoiceGiven>,
}

/// How tokens are drawn and told, as in chat requests, which have more of it.
#[derive(ToSchema)]
struct DrawingFields {
    /// Whether the answer comes as server-sent events.
    stream: Option<bool>,
    #[schema(minimum = 0)]
    temperature: Option<f32>,
    #[schema(exclusive_minimum = 0, maximum = 1)]
    top_p: Option<f32>,
    #[schema(minimum = -1)]
    top_k: Option<i64>,
    seed: Option<i64>,
}

#[derive(ToSchema)]
struct TurnGiven {
    role: TurnRole,
    content: TextOrObjects,
}

#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
enum TurnRole {
    User,
    Assistant,
    System,
}

/// A text, or blocks, parts or items, each with its `type`.
#[derive(ToSchema)]
#[serde(untagged)]
enum TextOrObjects {
    Text(String),
    #[schema(value_type = Vec<Object>)]
    Objects(Vec<Value>),
}

#[derive(ToSchema)]
struct ThinkingGiven {
    r#type: ThinkingKind,
}

#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
enum ThinkingKind {
    Enabled,
    Adaptive,
    Disabled,
}

#[derive(ToSchema)]
struct OutputConfigGiven {
    /// low, medium, high, xhigh or max.
    effort: Option<String>,
    /// What the text is held to.
    format: Option<SchemaGiven>,
}

#[derive(ToSchema)]
struct SchemaGiven {
    r#type: SchemaKind,
    #[schema(value_type = Object)]
    schema: Value,
}

#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
enum SchemaKind {
    JsonSchema,
}

#[derive(ToSchema)]
struct MessagesToolGiven {
    #[schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9_.-]+$")]
    name: String,
    description: Option<String>,
    #[schema(value_type = Object)]
    input_schema: Value,
    strict: Option<bool>,
    eager_input_streaming: Option<bool>,
    defer_loading: Option<bool>,
}

#[derive(ToSchema)]
struct MessagesToolChoiceGiven {
    r#type: MessagesChoiceKind,
    /// Of the tool, where the type is `tool`.
    name: Option<String>,
    disable_parallel_tool_use: Option<bool>,
}

#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
enum MessagesChoiceKind {
    Auto,
    Any,
    Tool,
    None,
}

#[derive(ToSchema)]
pub struct ResponsesRequest {
    #[serde(flatten)]
    prompt: ResponsesPrompt,
    #[schema(minimum = 1)]
    max_output_tokens: Option<usize>,
    #[serde(flatten)]
    drawing: DrawingFields,
    #[schema(maximum = 20)]
    top_logprobs: Option<usize>,
    include: Option<Vec<String>>,
    /// Whether the response can be fetched and continued; true unless told.
    store: Option<bool>,
    background: Option<bool>,
    metadata: Option<BTreeMap<String, String>>,
    user: Option<String>,
}

/// What makes a prompt: for `/v1/responses/input_tokens` too.
#[derive(ToSchema)]
pub struct ResponsesPrompt {
    /// The served model, which is the default.
    model: Option<String>,
    input: TextOrObjects,
    instructions: Option<String>,
    /// The response that is continued.
    previous_response_id: Option<String>,
    /// Functions, custom tools, namespaces of both.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Value>,
    /// `auto`, `none`, `required`, or the one tool that must be called.
    #[schema(value_type = Option<Value>)]
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    reasoning: Option<ReasoningGiven>,
    text: Option<TextGiven>,
}

#[derive(ToSchema)]
struct ReasoningGiven {
    /// none, minimal, low, medium, high, xhigh or max.
    effort: Option<String>,
}

#[derive(ToSchema)]
struct TextGiven {
    format: Option<TextFormatGiven>,
}

/// What the text is held to.
#[derive(ToSchema)]
struct TextFormatGiven {
    r#type: TextFormatKind,
    /// Where the type is `json_schema`.
    #[schema(value_type = Option<Object>)]
    schema: Option<Value>,
}

#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
enum TextFormatKind {
    Text,
    JsonObject,
    JsonSchema,
}
