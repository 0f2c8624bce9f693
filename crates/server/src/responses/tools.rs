//! Tools in the words of the Responses API, as the functions that the model is told of, and back.
//!
//! V4 knows functions only. A custom tool, which takes a text, is a function with the one parameter `input`. A tool in
//! a namespace is told with its namespace before it. Tools that OpenAI's servers run themselves do not exist here: those
//! that clients send unasked are left out, which the model never notices; others are refused.

use super::items::{CallItem, ToolKind};
use crate::error::ApiError;
use overshot_chat::{FunctionTag, Tool};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::HashMap;

/// Agents send these in every request, wanted or not.
const LEFT_OUT: [&str; 4] = ["web_search", "web_search_preview", "image_generation", "tool_search"];

/// The parameter that has a custom tool's text.
const CUSTOM_INPUT: &str = "input";

/// How a tool is declared. Schemas keep their exact text.
#[derive(Debug, Deserialize)]
struct GivenTool {
    r#type: String,
    name: Option<String>,
    description: Option<String>,
    parameters: Option<Box<RawValue>>,
    strict: Option<bool>,
    format: Option<GivenFormat>,
    tools: Option<Vec<Box<RawValue>>>,
}

#[derive(Debug, Deserialize)]
struct GivenFormat {
    syntax: Option<String>,
    definition: Option<String>,
}

/// What the model is told.
#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<Box<RawValue>>,
    /// Only where it is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

/// A tool as the client knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolName {
    pub kind: ToolKind,
    pub name: String,
    pub namespace: Option<String>,
}

/// The tools of one request.
#[derive(Debug, Default)]
pub struct Tools {
    /// What the model is told.
    pub functions: Vec<Tool>,
    /// Of each function: where the request declares it.
    pub places: Vec<String>,
    /// By the name that the model knows.
    names: HashMap<String, ToolName>,
}

impl Tools {
    /// # Errors
    /// A tool that is no tool, or one that this server cannot run.
    pub fn new(given: &[Box<RawValue>]) -> Result<Self, ApiError> {
        let mut tools = Tools::default();
        for (index, tool) in given.iter().enumerate() {
            tools.add(format!("tools[{index}]"), tool, None)?;
        }
        Ok(tools)
    }

    fn add(&mut self, place: String, tool: &RawValue, namespace: Option<&str>) -> Result<(), ApiError> {
        let given: GivenTool = serde_json::from_str(tool.get())
            .map_err(|error| ApiError::field(&*place, format!("{place} is no tool: {error}")))?;
        let name = |name: Option<String>| {
            let param = format!("{place}.name");
            name.ok_or_else(|| ApiError::field(&*param, format!("{param} is missing")))
        };
        match (given.r#type.as_str(), namespace) {
            ("function", _) => {
                let name = self.learn(ToolKind::Function, name(given.name)?, namespace);
                let (description, parameters) = (given.description, given.parameters);
                let strict = given.strict.filter(|is_strict| *is_strict);
                self.tell(place, &Function { name: &name, description, parameters, strict });
            }
            ("custom", _) => {
                let name = self.learn(ToolKind::Custom, name(given.name)?, namespace);
                let description = Some(custom_description(given.description, given.format));
                let parameters = Some(custom_parameters());
                self.tell(place, &Function { name: &name, description, parameters, strict: None });
            }
            ("namespace", None) => {
                let namespace = name(given.name)?;
                for (index, tool) in given.tools.unwrap_or_default().iter().enumerate() {
                    self.add(format!("{place}.tools[{index}]"), tool, Some(&namespace))?;
                }
            }
            (kind, None) if LEFT_OUT.contains(&kind) => {}
            (kind, _) => {
                let message = format!(
                    "{place}.type is `{kind}`: this server runs no tools of its own, use function or custom"
                );
                return Err(ApiError::field(format!("{place}.type"), message));
            }
        }
        Ok(())
    }

    fn learn(&mut self, kind: ToolKind, name: String, namespace: Option<&str>) -> String {
        let told = told_name(&name, namespace);
        self.names.insert(told.clone(), ToolName { kind, name, namespace: namespace.map(str::to_owned) });
        told
    }

    fn tell(&mut self, place: String, function: &Function) {
        let function = serde_json::value::to_raw_value(function)
            .expect("strings and JSON that was read before always serialise");
        self.functions.push(Tool { kind: FunctionTag::Function, function });
        self.places.push(place);
    }

    /// What the client knows the called function as. One that nobody declared is a function of that name.
    pub fn called(&self, name: &str) -> ToolName {
        let undeclared = || ToolName { kind: ToolKind::Function, name: name.to_owned(), namespace: None };
        self.names.get(name).cloned().unwrap_or_else(undeclared)
    }
}

/// The name by which the model knows a tool.
pub fn told_name(name: &str, namespace: Option<&str>) -> String {
    match namespace {
        Some(namespace) => format!("{namespace}.{name}"),
        None => name.to_owned(),
    }
}

/// The arguments with which the model called, or would have called, this.
pub fn told_arguments(call: &CallItem) -> String {
    match call.kind {
        ToolKind::Function => call.given.clone(),
        ToolKind::Custom => serde_json::json!({ CUSTOM_INPUT: call.given }).to_string(),
    }
}

/// The text of a custom tool's call. Arguments that the model made up are given as they are.
pub fn custom_input(arguments: &str) -> String {
    let text = |arguments| match serde_json::from_str(arguments) {
        Ok(serde_json::Value::Object(mut fields)) if fields.len() == 1 => match fields.remove(CUSTOM_INPUT) {
            Some(serde_json::Value::String(text)) => Some(text),
            _ => None,
        },
        _ => None,
    };
    text(arguments).unwrap_or_else(|| arguments.to_owned())
}

fn custom_description(description: Option<String>, format: Option<GivenFormat>) -> String {
    let mut text = description.unwrap_or_default();
    if let Some(GivenFormat { syntax, definition: Some(definition) }) = format {
        let syntax = syntax.unwrap_or_default();
        text.push_str(&format!("\n\n`{CUSTOM_INPUT}` must match this {syntax} grammar:\n{definition}"));
    }
    text.trim_start().to_owned()
}

fn custom_parameters() -> Box<RawValue> {
    let schema = format!(
        r#"{{"type": "object", "properties": {{"{CUSTOM_INPUT}": {{"type": "string"}}}}, "required": ["{CUSTOM_INPUT}"]}}"#
    );
    RawValue::from_string(schema).expect("it is JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(json: &str) -> Result<Tools, ApiError> {
        Tools::new(&serde_json::from_str::<Vec<Box<RawValue>>>(json).unwrap())
    }

    #[test]
    fn functions_keep_their_exact_schema() {
        let tools =
            tools(r#"[{"type":"function","name":"f","strict":false,"parameters":{"z":1.0}}]"#).unwrap();
        assert_eq!(tools.functions[0].function.get(), r#"{"name":"f","parameters":{"z":1.0}}"#);
        assert_eq!(tools.called("f").kind, ToolKind::Function);
        assert_eq!(tools.called("g").name, "g");
    }

    #[test]
    fn custom_tools_and_namespaces_are_functions_to_the_model() {
        let json = r#"[{"type":"web_search"},{"type":"custom","name":"patch","description":"Patches.",
            "format":{"type":"grammar","syntax":"lark","definition":"start: X"}},
            {"type":"namespace","name":"mcp","description":"d","tools":[{"type":"function","name":"f"}]}]"#;
        let tools = tools(json).unwrap();
        assert_eq!(tools.places, ["tools[1]", "tools[2].tools[0]"]);
        assert!(tools.functions[0].function.get().contains("lark grammar"));
        let called = tools.called("mcp.f");
        assert_eq!((called.name.as_str(), called.namespace.as_deref()), ("f", Some("mcp")));
        assert_eq!(tools.called("patch").kind, ToolKind::Custom);
    }

    #[test]
    fn a_custom_tools_text_goes_there_and_back() {
        assert_eq!(custom_input(r#"{"input": "a\nb"}"#), "a\nb");
        assert_eq!(custom_input(r#"{"patch": "a"}"#), r#"{"patch": "a"}"#);
        assert_eq!(custom_input(r#"{"input": "a"#), r#"{"input": "a"#);
    }

    #[test]
    fn what_cannot_be_run_is_refused_by_name() {
        for (json, param) in [
            (r#"[{"type":"code_interpreter"}]"#, "tools[0].type"),
            (r#"[{"type":"function"}]"#, "tools[0].name"),
            (r#"[5]"#, "tools[0]"),
            (
                r#"[{"type":"namespace","name":"n","tools":[{"type":"web_search"}]}]"#,
                "tools[0].tools[0].type",
            ),
        ] {
            let Err(ApiError::BadField { param: found, .. }) = tools(json) else { panic!("{json}") };
            assert_eq!(found, param);
        }
    }
}
