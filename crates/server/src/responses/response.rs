//! The response object: what a request said, as it was understood, and what has become of it.

use super::items::Item;
use crate::dialect::AllCounts;
use crate::error::ApiError;
use overshot_chat::Effort;
use serde::Serialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use utoipa::ToSchema;

#[derive(Debug, Serialize, ToSchema)]
pub struct Response {
    pub id: String,
    #[schema(value_type = String)]
    object: &'static str,
    pub created_at: u64,
    #[schema(required)]
    pub completed_at: Option<u64>,
    pub status: Status,
    #[schema(required)]
    pub error: Option<Failure>,
    #[schema(required)]
    pub incomplete_details: Option<IncompleteDetails>,
    #[schema(value_type = Vec<Object>)]
    pub output: Vec<Item>,
    #[schema(required)]
    pub usage: Option<Usage>,
    #[serde(flatten)]
    pub settings: Settings,
}

impl Response {
    pub fn new(id: String, created_at: u64, status: Status, settings: Settings) -> Self {
        Response {
            id,
            object: "response",
            created_at,
            completed_at: None,
            status,
            error: None,
            incomplete_details: None,
            output: Vec::new(),
            usage: None,
            settings,
        }
    }
}

/// What the request asked for, told back.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ResponseSettings)]
pub struct Settings {
    pub model: String,
    #[schema(required)]
    pub instructions: Option<String>,
    #[schema(required)]
    pub previous_response_id: Option<String>,
    pub background: bool,
    pub store: bool,
    #[schema(required)]
    pub max_output_tokens: Option<usize>,
    pub temperature: f32,
    pub top_p: f32,
    pub top_logprobs: usize,
    pub parallel_tool_calls: bool,
    #[schema(value_type = serde_json::Value)]
    pub tool_choice: Box<RawValue>,
    #[schema(value_type = Vec<Object>)]
    pub tools: Vec<Box<RawValue>>,
    pub text: Text,
    pub reasoning: Reasoning,
    #[schema(value_type = String)]
    pub truncation: &'static str,
    #[schema(value_type = String)]
    pub service_tier: &'static str,
    pub metadata: BTreeMap<String, String>,
    #[schema(required)]
    pub user: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ResponseText)]
pub struct Text {
    #[schema(value_type = Object)]
    pub format: Box<RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verbosity: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ResponseReasoning)]
pub struct Reasoning {
    #[schema(value_type = String)]
    pub effort: Effort,
    /// Nothing here summarises.
    #[schema(value_type = Option<String>, required)]
    pub summary: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ResponseStatus)]
pub enum Status {
    /// In the background, before anything came.
    Queued,
    InProgress,
    Completed,
    /// Cut by a limit.
    Incomplete,
    Cancelled,
    Failed,
}

impl Status {
    pub fn is_final(self) -> bool {
        !matches!(self, Status::Queued | Status::InProgress)
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ResponseFailure)]
pub struct Failure {
    #[schema(value_type = String)]
    code: &'static str,
    message: String,
}

impl Failure {
    /// OpenAI has one code for all that can happen to an answer on its way; the message says which it was.
    pub fn new(error: &ApiError) -> Self {
        Failure { code: "server_error", message: error.message() }
    }
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct IncompleteDetails {
    #[schema(value_type = String)]
    reason: &'static str,
}

impl IncompleteDetails {
    pub const MAX_OUTPUT_TOKENS: Self = IncompleteDetails { reason: "max_output_tokens" };
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[schema(as = ResponseUsage)]
pub struct Usage {
    input_tokens: usize,
    input_tokens_details: InputDetails,
    output_tokens: usize,
    output_tokens_details: OutputDetails,
    total_tokens: usize,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[schema(as = ResponseInputDetails)]
struct InputDetails {
    cached_tokens: usize,
    cache_write_tokens: usize,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[schema(as = ResponseOutputDetails)]
struct OutputDetails {
    reasoning_tokens: usize,
}

impl Usage {
    pub fn new(counts: AllCounts) -> Self {
        let AllCounts { prompt, answers } = counts;
        Usage {
            input_tokens: prompt,
            // No prefix of a prompt is reused yet.
            input_tokens_details: InputDetails { cached_tokens: 0, cache_write_tokens: 0 },
            output_tokens: answers.completion,
            output_tokens_details: OutputDetails { reasoning_tokens: answers.reasoning },
            total_tokens: prompt + answers.completion,
        }
    }
}
