//! A function's schema as the parameters of a call, and each parameter's schema as the spellings of its value: a
//! string stands raw in `string="true"`, anything else as JSON in `string="false"`.
//!
//! Raw text can be held to a length or to a list. A string that must match a pattern or a format is written as JSON,
//! which the chat format reads just as well.

use crate::error::Trouble;
use crate::schema::referred;
use serde_json::{Map, Value, json};

/// What a call may say, parameter by parameter, in this order.
#[derive(Debug, PartialEq)]
pub(crate) enum Parameters {
    /// Whatever names there are.
    Free,
    Listed(Vec<Parameter>),
}

#[derive(Debug, PartialEq)]
pub(crate) struct Parameter {
    pub name: String,
    pub presence: Presence,
    pub spellings: Spellings,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Required,
    Optional,
}

/// The ways to write a value; none at all for a schema that nothing satisfies.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Spellings {
    pub texts: Vec<Text>,
    /// Each with the definitions that it refers to.
    pub json: Vec<Value>,
}

/// Values that are written raw.
#[derive(Debug, PartialEq)]
pub(crate) enum Text {
    OfLength { least: u64, most: Option<u64> },
    Exactly(String),
}

/// Keywords that say nothing about a value.
const NOTES: [&str; 16] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "default",
    "definitions",
    "deprecated",
    "description",
    "example",
    "examples",
    "readOnly",
    "title",
    "writeOnly",
];
/// Keywords of an arguments object that parameters written one by one can't be held to.
const TOGETHER: [&str; 16] = [
    "allOf",
    "anyOf",
    "const",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "enum",
    "if",
    "maxProperties",
    "minProperties",
    "not",
    "oneOf",
    "patternProperties",
    "propertyNames",
    "unevaluatedProperties",
];
const LENGTHS: [&str; 2] = ["minLength", "maxLength"];
const NAME_BYTES_MAX: usize = 256;
/// References that lead to references.
const REFERENCES_MAX: usize = 16;

/// # Errors
/// A schema that parameters can't be held to.
pub(crate) fn parameters(root: &Value) -> Result<Parameters, Trouble> {
    let schema = follow(root, root).ok_or_else(|| Trouble::new(".$ref", "the reference leads nowhere"))?;
    let Value::Object(fields) = schema else { return Ok(Parameters::Free) };
    if let Some(kind) = fields.get("type").filter(|kind| !has_type(kind, "object")) {
        return Err(Trouble::new(".type", format!("arguments are an object: {kind} is none")));
    }
    if let Some(keyword) = TOGETHER.iter().find(|keyword| fields.contains_key(**keyword)) {
        let reason = format!("`{keyword}` can't be held to across parameters: use it within one of them");
        return Err(Trouble::new(format!(".{keyword}"), reason));
    }
    let others = fields.get("additionalProperties").unwrap_or(&Value::Bool(true));
    let empty = Map::new();
    let properties = fields.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let required: Vec<&str> = fields
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if properties.is_empty() && required.is_empty() && *others == Value::Bool(true) {
        return Ok(Parameters::Free);
    }

    let undeclared =
        required.iter().filter(|name| !properties.contains_key(**name)).map(|name| (*name, others));
    let declared = properties.iter().map(|(name, schema)| (name.as_str(), schema));
    let parameter = |(name, schema): (&str, &Value)| {
        check_name(name)?;
        let presence = if required.contains(&name) { Presence::Required } else { Presence::Optional };
        Ok(Parameter { name: name.to_string(), presence, spellings: spellings(schema, root) })
    };
    Ok(Parameters::Listed(declared.chain(undeclared).map(parameter).collect::<Result<_, Trouble>>()?))
}

/// Names stand in a tag that knows no escapes.
fn check_name(name: &str) -> Result<(), Trouble> {
    let is_plain = !name.contains("\" string=") && !name.chars().any(char::is_control);
    if is_plain && (1..=NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    let shown: String = name.chars().take(100).collect();
    Err(Trouble::new(".properties", format!("a parameter can't be called `{}`", shown.escape_debug())))
}

fn spellings(schema: &Value, root: &Value) -> Spellings {
    let mut spellings = Spellings::default();
    collect(schema, root, &mut spellings);
    spellings
}

fn collect(schema: &Value, root: &Value, out: &mut Spellings) {
    let Some(schema) = follow(schema, root) else {
        // Compiling it tells what is wrong with the reference.
        return out.push_json(schema.clone(), root);
    };
    let Value::Object(fields) = schema else {
        return match schema {
            Value::Bool(true) => out.push_anything(),
            _ => out.push_json(schema.clone(), root),
        };
    };
    let keywords: Vec<&str> =
        fields.keys().map(String::as_str).filter(|keyword| !NOTES.contains(keyword)).collect();
    let only = |allowed: &[&str]| keywords.iter().all(|keyword| allowed.contains(keyword));
    let kind = fields.get("type");
    if keywords.is_empty() {
        out.push_anything();
    } else if only(&["type", "enum", "const"])
        && let Some(values) = listed_values(fields)
    {
        out.push_listed(values, kind, root);
    } else if only(&["anyOf"])
        && let Some(branches) = fields.get("anyOf").and_then(Value::as_array)
    {
        branches.iter().for_each(|branch| collect(branch, root, out));
    } else if !keywords.iter().any(|keyword| ["pattern", "format", "enum", "const", "$ref"].contains(keyword))
        && !keywords.iter().any(|keyword| ["anyOf", "oneOf", "allOf", "not", "if"].contains(keyword))
        && kind.is_some_and(|kind| has_type(kind, "string"))
    {
        let length = |keyword: &str| fields.get(keyword).and_then(Value::as_u64);
        out.texts.push(Text::OfLength { least: length("minLength").unwrap_or(0), most: length("maxLength") });
        if let Some(rest) = without_strings(fields) {
            out.push_json(rest, root);
        }
    } else {
        out.push_json(schema.clone(), root);
    }
}

impl Spellings {
    fn push_anything(&mut self) {
        self.texts.push(Text::OfLength { least: 0, most: None });
        self.json.push(json!({ "type": ["object", "array", "number", "boolean", "null"] }));
    }

    fn push_listed(&mut self, values: Vec<Value>, kind: Option<&Value>, root: &Value) {
        let takes_strings = kind.is_none_or(|kind| has_type(kind, "string"));
        let mut rest = Vec::new();
        for value in values {
            match value {
                Value::String(text) if takes_strings => self.texts.push(Text::Exactly(text)),
                Value::String(_) => {}
                other => rest.push(other),
            }
        }
        if !rest.is_empty() {
            let mut schema = json!({ "enum": rest });
            if let Some(kind) = kind {
                schema["type"] = kind.clone();
            }
            self.push_json(schema, root);
        }
    }

    /// `schema` with the definitions of `root`, if it refers to any.
    fn push_json(&mut self, mut schema: Value, root: &Value) {
        if let Value::Object(fields) = &mut schema
            && refers(fields.values())
        {
            for key in ["$defs", "definitions"] {
                if let Some(definitions) = root.get(key) {
                    fields.entry(key).or_insert_with(|| definitions.clone());
                }
            }
        }
        self.json.push(schema);
    }
}

/// Whether a reference stands in any of `values`, or among them.
fn refers<'value>(values: impl Iterator<Item = &'value Value>) -> bool {
    let mut values = values;
    values.any(|value| match value {
        Value::Object(fields) => refers(fields.values()),
        Value::Array(items) => refers(items.iter()),
        Value::String(text) => text.starts_with('#'),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    })
}

/// The schema at the end of references that stand alone.
fn follow<'schema>(schema: &'schema Value, root: &'schema Value) -> Option<&'schema Value> {
    let mut current = schema;
    for _ in 0..REFERENCES_MAX {
        let Some(fields) = current.as_object() else { return Some(current) };
        let Some(reference) = fields.get("$ref").and_then(Value::as_str) else { return Some(current) };
        if fields.keys().any(|keyword| keyword != "$ref" && !NOTES.contains(&keyword.as_str())) {
            return Some(current);
        }
        current = referred(root, reference)?;
    }
    None
}

fn listed_values(fields: &Map<String, Value>) -> Option<Vec<Value>> {
    match (fields.get("enum"), fields.get("const")) {
        (Some(Value::Array(values)), None) => Some(values.clone()),
        (None, Some(value)) => Some(vec![value.clone()]),
        _ => None,
    }
}

fn has_type(kind: &Value, name: &str) -> bool {
    match kind {
        Value::Array(kinds) => kinds.iter().any(|kind| kind == name),
        kind => kind == name,
    }
}

/// The schema for its other types, if it has any.
fn without_strings(fields: &Map<String, Value>) -> Option<Value> {
    let kinds = fields.get("type")?.as_array()?;
    let others: Vec<&Value> = kinds.iter().filter(|kind| *kind != "string").collect();
    if others.is_empty() {
        return None;
    }
    let mut rest: Map<String, Value> = fields
        .iter()
        .filter(|(key, _)| !LENGTHS.contains(&key.as_str()))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    rest.insert("type".to_string(), json!(others));
    Some(Value::Object(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(schema: Value) -> Spellings {
        let root =
            json!({ "properties": { "a": schema }, "$defs": { "color": { "enum": ["red", "blue"] } } });
        let Ok(Parameters::Listed(mut listed)) = parameters(&root) else { panic!("{root}") };
        listed.remove(0).spellings
    }

    const ANY: Text = Text::OfLength { least: 0, most: None };

    #[test]
    fn strings_are_raw_and_the_rest_is_json() {
        assert_eq!(of(json!({"type": "string", "title": "t"})), Spellings { texts: vec![ANY], json: vec![] });
        assert_eq!(of(json!({"type": "integer"})).texts, []);
        let either = of(json!({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]}));
        assert_eq!(either.texts, [Text::OfLength { least: 0, most: Some(3) }]);
        assert_eq!(either.json, [json!({"type": "null"})]);
        let both = of(json!({"type": ["string", "integer"], "minimum": 3}));
        assert_eq!((both.texts, both.json), (vec![ANY], vec![json!({"type": ["integer"], "minimum": 3})]));
        assert_eq!(of(json!({})).texts, [ANY]);
        assert_eq!(of(json!(true)).json.len(), 1);
        let mixed = of(json!({"enum": ["a", 1, null]}));
        assert_eq!(
            (mixed.texts, mixed.json),
            (vec![Text::Exactly("a".into())], vec![json!({"enum": [1, null]})])
        );
    }

    #[test]
    fn references_are_followed_or_kept_with_their_definitions() {
        assert_eq!(of(json!({"$ref": "#/$defs/color"})).texts.len(), 2);
        let list = of(json!({"type": "array", "items": {"$ref": "#/$defs/color"}}));
        assert!(list.json[0]["$defs"]["color"].is_object(), "{list:?}");
        assert_eq!(of(json!({"type": "string", "pattern": "^a"})).texts, []);
    }

    #[test]
    fn objects_are_listed_or_free() {
        assert_eq!(parameters(&json!({"type": "object"})), Ok(Parameters::Free));
        let closed = json!({"type": "object", "properties": {}, "additionalProperties": false});
        assert_eq!(parameters(&closed), Ok(Parameters::Listed(vec![])));
        let undeclared = json!({"required": ["b"], "additionalProperties": {"type": "null"}});
        let Ok(Parameters::Listed(listed)) = parameters(&undeclared) else { panic!() };
        assert_eq!(
            (listed[0].presence, &listed[0].spellings.json),
            (Presence::Required, &vec![json!({"type": "null"})])
        );
        assert_eq!(parameters(&json!({"anyOf": []})).unwrap_err().path, ".anyOf");
        assert_eq!(parameters(&json!({"type": "string"})).unwrap_err().path, ".type");
        assert_eq!(
            parameters(&json!({"properties": {"a\" string=\"true": {}}})).unwrap_err().path,
            ".properties"
        );
        assert_eq!(parameters(&json!({"$ref": "#"})).unwrap_err().path, ".$ref");
    }
}
