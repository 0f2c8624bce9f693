//! The fields by which OpenAI's API, and the servers that speak it, ask for a form of the answer: from JSON to an
//! [`AnswerFormat`]. Ways to ask that are not supported are refused by name: ignoring one would give an answer that
//! nobody asked for.

use crate::answer_format::{AnswerFormat, CallChoice};
use crate::body;
use crate::error::ApiError;
use overshot_grammar::{CallCount, Form};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use utoipa::ToSchema;

/// At most one of them may be there.
#[derive(Debug, Deserialize, ToSchema)]
pub struct FormFields {
    response_format: Option<ResponseFormat>,
    /// vLLM's word.
    structured_outputs: Option<StructuredOutputs>,
    /// A schema, or its JSON text: vLLM's word before.
    guided_json: Option<Value>,
    /// A pattern that the whole answer matches.
    guided_regex: Option<String>,
    /// Texts, one of which is the answer.
    guided_choice: Option<Vec<String>>,
    /// A schema, or its JSON text: SGLang's and llama.cpp's word.
    json_schema: Option<Value>,
    /// A pattern that the whole answer matches.
    regex: Option<String>,
    // Refused by name.
    #[schema(ignore)]
    guided_grammar: Option<IgnoredAny>,
    #[schema(ignore)]
    grammar: Option<IgnoredAny>,
    #[schema(ignore)]
    ebnf: Option<IgnoredAny>,
    #[schema(ignore)]
    structural_tag: Option<IgnoredAny>,
}

/// Text, or what the answer must be.
#[derive(Debug, Deserialize, ToSchema)]
struct ResponseFormat {
    #[schema(pattern = "^(text|json_object|json_schema|regex)$")]
    r#type: String,
    /// Of the type `json_schema`.
    json_schema: Option<NamedSchema>,
    /// Of the type `regex`.
    pattern: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
struct NamedSchema {
    #[schema(value_type = Option<Object>)]
    schema: Option<Value>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
struct StructuredOutputs {
    json: Option<Value>,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    json_object: Option<bool>,
    #[schema(ignore)]
    grammar: Option<IgnoredAny>,
    #[schema(ignore)]
    structural_tag: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
struct CallFields {
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
}

/// A form with the field that asks for it.
type Asked = (&'static str, Form);

/// # Errors
/// A field that is wrong, not supported, or asks for a second form.
pub fn answer_format(body: &[u8]) -> Result<AnswerFormat, ApiError> {
    let fields: CallFields = body::parse(body)?;
    let format = text_format(body)?;
    let count = match fields.parallel_tool_calls {
        Some(false) => CallCount::One,
        _ => CallCount::Several,
    };
    Ok(AnswerFormat { calls: call_choice(fields.tool_choice.as_ref())?, count, ..format })
}

/// The form alone, for answers that call nothing.
///
/// # Errors
/// As [`answer_format`].
pub fn text_format(body: &[u8]) -> Result<AnswerFormat, ApiError> {
    let fields: FormFields = body::parse(body)?;
    let mut asked: Vec<Asked> = Vec::new();
    if let Some(format) = fields.response_format {
        asked.extend(response_format(format)?);
    }
    let outputs = fields.structured_outputs.unwrap_or_default();
    for (field, is_there) in [
        ("grammar", fields.grammar.is_some()),
        ("ebnf", fields.ebnf.is_some()),
        ("structural_tag", fields.structural_tag.is_some()),
        ("guided_grammar", fields.guided_grammar.is_some()),
        ("structured_outputs.grammar", outputs.grammar.is_some()),
        ("structured_outputs.structural_tag", outputs.structural_tag.is_some()),
    ] {
        if is_there {
            return Err(ApiError::field(
                field,
                format!("{field} is not supported: use a schema or a pattern"),
            ));
        }
    }
    for (field, schema) in [
        ("guided_json", fields.guided_json),
        ("json_schema", fields.json_schema),
        ("structured_outputs.json", outputs.json),
    ] {
        if let Some(schema) = schema {
            asked.push((field, Form::JsonSchema(schema_or_text(field, schema)?)));
        }
    }
    let patterns = [
        ("guided_regex", fields.guided_regex),
        ("regex", fields.regex),
        ("structured_outputs.regex", outputs.regex),
    ];
    asked.extend(patterns.into_iter().filter_map(|(field, pattern)| Some((field, Form::Pattern(pattern?)))));
    let choices = [("guided_choice", fields.guided_choice), ("structured_outputs.choice", outputs.choice)];
    asked.extend(choices.into_iter().filter_map(|(field, choices)| Some((field, Form::Choice(choices?)))));
    if outputs.json_object == Some(true) {
        asked.push(("structured_outputs.json_object", Form::JsonObject));
    }

    let mut format = AnswerFormat::default();
    let mut asked = asked.into_iter();
    if let Some((field, form)) = asked.next() {
        format.form = form;
        format.fields.form = field.to_string();
    }
    match asked.next() {
        Some((field, _)) => {
            Err(ApiError::field(field, format!("{field} asks for a second form of the answer")))
        }
        None => Ok(format),
    }
}

fn response_format(format: ResponseFormat) -> Result<Option<Asked>, ApiError> {
    match format.r#type.as_str() {
        "text" => Ok(None),
        "json_object" => Ok(Some(("response_format", Form::JsonObject))),
        "json_schema" => {
            let field = "response_format.json_schema.schema";
            let schema = format.json_schema.and_then(|named| named.schema);
            let schema = schema.ok_or_else(|| ApiError::field(field, format!("{field} is missing")))?;
            Ok(Some((field, Form::JsonSchema(schema))))
        }
        "regex" => {
            let field = "response_format.pattern";
            let pattern =
                format.pattern.ok_or_else(|| ApiError::field(field, format!("{field} is missing")))?;
            Ok(Some((field, Form::Pattern(pattern))))
        }
        other => {
            let message = format!(
                "response_format of type `{other}` is not supported: use text, json_object, json_schema or regex"
            );
            Err(ApiError::field("response_format.type", message))
        }
    }
}

/// Some clients send the schema's JSON text.
fn schema_or_text(field: &'static str, schema: Value) -> Result<Value, ApiError> {
    match schema {
        Value::String(text) => serde_json::from_str(&text)
            .map_err(|error| ApiError::field(field, format!("{field} is a text that is no JSON: {error}"))),
        schema => Ok(schema),
    }
}

/// # Errors
/// A choice that is unknown.
pub fn call_choice(value: Option<&Value>) -> Result<CallChoice, ApiError> {
    let refuse = |what: String| Err(ApiError::field("tool_choice", what));
    let words = "use auto, none, required, or name a function";
    match value {
        None | Some(Value::Null) => Ok(CallChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => Ok(CallChoice::Auto),
            "none" => Ok(CallChoice::None),
            "required" => Ok(CallChoice::Required),
            word => refuse(format!("tool_choice `{word}` is not known: {words}")),
        },
        Some(object @ Value::Object(_)) => match (&object["type"], &object["function"]["name"]) {
            (Value::Null, Value::String(name)) => Ok(CallChoice::Named(name.clone())),
            (Value::String(kind), Value::String(name)) if kind == "function" => {
                Ok(CallChoice::Named(name.clone()))
            }
            _ => refuse(format!("tool_choice is an object without a function's name: {words}")),
        },
        Some(_) => refuse(format!("tool_choice is no word: {words}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(fields: Value) -> Result<AnswerFormat, String> {
        answer_format(fields.to_string().as_bytes()).map_err(|error| match error {
            ApiError::BadField { param, .. } => param,
            other => other.to_string(),
        })
    }

    #[test]
    fn every_way_to_ask_gives_a_form_and_its_field() {
        let schema = json!({"type": "object"});
        for (fields, field) in [
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}),
                "response_format.json_schema.schema",
            ),
            (json!({"guided_json": schema}), "guided_json"),
            (json!({"guided_json": schema.to_string()}), "guided_json"),
            (json!({"structured_outputs": {"json": schema}}), "structured_outputs.json"),
        ] {
            let format = read(fields.clone()).unwrap();
            assert_eq!(format.fields.form, field);
            assert!(matches!(&format.form, Form::JsonSchema(read) if *read == schema), "{fields}");
        }
        for fields in
            [json!({}), json!({"response_format": {"type": "text"}}), json!({"response_format": null})]
        {
            assert!(matches!(read(fields).unwrap().form, Form::Text));
        }
        let pattern = read(json!({"response_format": {"type": "regex", "pattern": "a+"}})).unwrap();
        assert!(matches!(pattern.form, Form::Pattern(pattern) if pattern == "a+"));
        assert!(matches!(read(json!({"guided_choice": ["a"]})).unwrap().form, Form::Choice(_)));
        let calls = |choice: Value| read(json!({"tool_choice": choice})).map(|format| format.calls);
        assert_eq!(calls(json!("required")), Ok(CallChoice::Required));
        let named = json!({"type": "function", "function": {"name": "f"}});
        assert_eq!(calls(named), Ok(CallChoice::Named("f".into())));
        assert_eq!(read(json!({"parallel_tool_calls": false})).unwrap().count, CallCount::One);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (fields, param) in [
            (json!({"response_format": {"type": "xml"}}), "response_format.type"),
            (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema.schema"),
            (json!({"response_format": {"type": "regex"}}), "response_format.pattern"),
            (json!({"grammar": "root ::= x"}), "grammar"),
            (json!({"structured_outputs": {"structural_tag": {}}}), "structured_outputs.structural_tag"),
            (json!({"guided_json": "{"}), "guided_json"),
            (json!({"guided_json": {}, "regex": "a"}), "regex"),
            (json!({"tool_choice": "maybe"}), "tool_choice"),
            (json!({"tool_choice": {"type": "allowed_tools"}}), "tool_choice"),
            (json!({"tool_choice": 5}), "tool_choice"),
        ] {
            assert_eq!(read(fields.clone()).unwrap_err(), param, "{fields}");
        }
    }
}
