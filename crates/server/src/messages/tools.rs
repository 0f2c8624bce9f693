//! Tools as Anthropic's API declares them, to the functions of the prompt. One whose loading is deferred is not in the
//! prompt's list: the model reads it where a search for tools has found it.
//!
//! Also, whose calls are sent before they are whole. A call that is being made may prove to be none, and this API cannot
//! take a begun block back. So a call is held until it is whole, unless the client asked for its pieces as they are made
//! and thereby to be ready for one that never becomes whole: by `eager_input_streaming` on the tool, or by the beta of
//! that name, for all tools that do not say.

use crate::answer_format::CallChoice;
use crate::conversation::check_tool_name;
use crate::error::ApiError;
use axum::http::HeaderMap;
use overshot_chat::{FunctionTag, Tool};
use overshot_grammar::CallCount;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use std::collections::{BTreeMap, HashSet};

const EAGER_BETA: &str = "fine-grained-tool-streaming";

#[derive(Debug, Deserialize)]
pub struct ToolFields {
    r#type: Option<String>,
    name: Option<String>,
    description: Option<String>,
    input_schema: Option<Box<RawValue>>,
    strict: Option<bool>,
    eager_input_streaming: Option<bool>,
    defer_loading: Option<bool>,
}

#[derive(Debug, Deserialize)]
pub struct ToolChoiceFields {
    r#type: String,
    name: Option<String>,
    disable_parallel_tool_use: Option<bool>,
}

/// # Errors
/// A tool that only Anthropic's models know, one without a name or a schema.
pub fn declared(tools: Vec<ToolFields>) -> Result<DeclaredTools, ApiError> {
    let mut declared = DeclaredTools::default();
    for (index, tool) in tools.into_iter().enumerate() {
        let deferred = tool.name.clone().filter(|_| tool.defer_loading == Some(true));
        let tool = function(index, tool)?;
        let place = format!("tools[{index}]");
        match deferred {
            Some(name) => drop(declared.deferred.insert(name, (place, tool))),
            None => {
                declared.places.push(place);
                declared.tools.push(tool);
            }
        }
    }
    Ok(declared)
}

#[derive(Debug, Default)]
pub struct DeclaredTools {
    /// Those that the prompt lists.
    pub tools: Vec<Tool>,
    /// Of each of them: where the request declares it.
    pub places: Vec<String>,
    /// The others by name, with their places.
    pub deferred: BTreeMap<String, (String, Tool)>,
}

impl DeclaredTools {
    /// What the model reads of a tool that it is referred to: its declaration, or its name if the prompt has that.
    pub fn spelled<'a>(&'a self, name: &'a str) -> &'a str {
        self.deferred.get(name).map_or(name, |(_, tool)| tool.function.get())
    }
}

fn function(index: usize, tool: ToolFields) -> Result<Tool, ApiError> {
    #[derive(Serialize)]
    struct Function<'a> {
        name: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        description: Option<&'a str>,
        parameters: &'a RawValue,
        #[serde(skip_serializing_if = "Option::is_none")]
        strict: Option<bool>,
    }
    let refuse = |field: &str, what: String| {
        let param = format!("tools[{index}].{field}");
        let message = format!("{param} {what}");
        Err(ApiError::field(param, message))
    };
    if let Some(kind) = tool.r#type.as_deref().filter(|kind| *kind != "custom") {
        return refuse(
            "type",
            format!("is `{kind}`, which is not supported: give a name and an input_schema"),
        );
    }
    let name = tool.name.unwrap_or_default();
    check_tool_name(&format!("tools[{index}].name"), &name)?;
    let Some(schema) = tool.input_schema.filter(|schema| schema.get().starts_with('{')) else {
        return refuse("input_schema", "is missing or no object".into());
    };
    let description = tool.description.as_deref();
    let strict = tool.strict.filter(|is_strict| *is_strict);
    let function = to_raw_value(&Function { name: &name, description, parameters: &schema, strict });
    let function = function.map_err(|error| ApiError::field(format!("tools[{index}]"), error.to_string()))?;
    Ok(Tool { kind: FunctionTag::Function, function })
}

/// Which calls there may be, and how many.
///
/// # Errors
/// A choice that is unknown, or without its name.
pub fn choice(fields: Option<&ToolChoiceFields>) -> Result<(CallChoice, CallCount), ApiError> {
    let Some(fields) = fields else { return Ok((CallChoice::Auto, CallCount::Several)) };
    let calls = match (fields.r#type.as_str(), &fields.name) {
        ("auto", _) => CallChoice::Auto,
        ("any", _) => CallChoice::Required,
        ("none", _) => CallChoice::None,
        ("tool", Some(name)) => CallChoice::Named(name.clone()),
        ("tool", None) => {
            return Err(ApiError::field("tool_choice.name", "tool_choice.name is missing: say which tool"));
        }
        (other, _) => {
            let message = format!("tool_choice.type is `{other}`: use auto, any, tool or none");
            return Err(ApiError::field("tool_choice.type", message));
        }
    };
    let count = match fields.disable_parallel_tool_use {
        Some(true) => CallCount::One,
        _ => CallCount::Several,
    };
    Ok((calls, count))
}

/// Whether the request's headers ask for pieces of calls as they are made.
pub fn asks_for_eager_tools(headers: &HeaderMap) -> EagerTools {
    let betas = headers.get_all("anthropic-beta").iter().filter_map(|value| value.to_str().ok());
    let mut betas = betas.flat_map(|value| value.split(','));
    if betas.any(|beta| beta.trim().starts_with(EAGER_BETA)) { EagerTools::All } else { EagerTools::none() }
}

/// Tools whose calls are told as they are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EagerTools {
    /// Whatever is called.
    All,
    Named(HashSet<String>),
}

impl EagerTools {
    pub fn none() -> Self {
        EagerTools::Named(HashSet::new())
    }

    /// What the tools themselves say comes first.
    pub fn of(self, tools: &[ToolFields]) -> Self {
        let says = |wanted: bool| tools.iter().any(|tool| tool.eager_input_streaming == Some(wanted));
        let is_default = self == EagerTools::All;
        if is_default && !says(false) {
            return self;
        }
        let eager = tools.iter().filter(|tool| tool.eager_input_streaming.unwrap_or(is_default));
        EagerTools::Named(eager.filter_map(|tool| tool.name.clone()).collect())
    }

    pub fn has(&self, name: &str) -> bool {
        match self {
            EagerTools::All => true,
            EagerTools::Named(names) => names.contains(name),
        }
    }
}
