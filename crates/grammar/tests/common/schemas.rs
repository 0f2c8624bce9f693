//! Schemas of all supported kinds.

use serde_json::{Value, json};

pub fn schemas() -> Vec<Value> {
    vec![
        json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 150}}, "required": ["name", "age"],
            "additionalProperties": false}),
        json!({"type": "array", "items": {"enum": ["red", "green", "blue", 7, null]}, "minItems": 1, "maxItems": 4}),
        json!({"anyOf": [{"type": "integer"}, {"type": "boolean"}, {"type": "null"}]}),
        json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {
            "value": {"type": "integer", "minimum": -5, "maximum": 5},
            "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}},
            "required": ["value"], "additionalProperties": false}}}),
        json!({"type": "object", "properties": {"kind": {"const": "point"},
            "at": {"type": "array", "prefixItems": [{"type": "number", "minimum": -100, "maximum": 100}, {"type": "integer", "maximum": 7}], "items": false,
            "minItems": 2}}, "required": ["kind", "at"], "additionalProperties": false}),
        json!({"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "object",
            "properties": {"c": {"type": "boolean"}}, "required": ["c"], "additionalProperties": false}},
            "required": ["b"], "additionalProperties": false}}, "required": ["a"], "additionalProperties": false}),
        json!({"type": "string", "enum": ["ä", "naïve", "中文", "a\"b", "\\", "\n"]}),
        json!({"type": "object", "properties": {"code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}},
            "required": ["code"], "additionalProperties": false}),
        json!({"type": "object", "additionalProperties": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9},
            "maxProperties": 3}),
        json!({"allOf": [{"type": "object", "properties": {"x": {"type": "integer", "multipleOf": 5,
            "minimum": -500, "maximum": 500}},
            "required": ["x"]}, {"type": "object", "properties": {"y": {"type": ["string", "null"], "maxLength": 2}},
            "required": ["y"]}]}),
        json!({"oneOf": [{"type": "object", "properties": {"t": {"const": "a"}, "n": {"type": "integer"}},
            "required": ["t", "n"], "additionalProperties": false}, {"type": "object", "properties": {
            "t": {"const": "b"}, "s": {"type": "string", "minLength": 1, "maxLength": 4}}, "required": ["t", "s"],
            "additionalProperties": false}]}),
        json!({"type": "string", "minLength": 2, "maxLength": 12}),
    ]
}
