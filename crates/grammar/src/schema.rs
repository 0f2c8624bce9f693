//! What is checked in a schema before anything is compiled: its size, and that it stands alone. What its keywords
//! mean, and which are known, is `llguidance`'s business.

use crate::Limits;
use crate::error::Trouble;
use serde_json::Value;

/// Their values are data, in which nothing is a keyword.
const DATA: [&str; 4] = ["const", "default", "enum", "examples"];

/// # Errors
/// What is no schema, too large, too deep, or refers to something outside of itself.
pub(crate) fn check(schema: &Value, limits: &Limits) -> Result<(), Trouble> {
    match schema {
        Value::Object(_) | Value::Bool(_) => {}
        _ => return Err(Trouble::new("", "a schema is an object")),
    }
    let mut walk = Walk { limits, values: 0 };
    walk.value(schema, &mut String::new(), 0, Role::Schema)?;
    let bytes = schema.to_string().len();
    if bytes > limits.source_bytes {
        let most = limits.source_bytes;
        return Err(Trouble::new("", format!("the schema has {bytes} bytes: at most {most} are possible")));
    }
    Ok(())
}

/// The schema that a reference within `root` leads to.
pub(crate) fn referred<'schema>(root: &'schema Value, reference: &str) -> Option<&'schema Value> {
    root.pointer(reference.strip_prefix('#')?)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Schema,
    Data,
}

struct Walk<'limits> {
    limits: &'limits Limits,
    values: usize,
}

impl Walk<'_> {
    /// `path` is given back as it came.
    fn value(&mut self, value: &Value, path: &mut String, depth: usize, role: Role) -> Result<(), Trouble> {
        self.values += 1;
        if self.values > self.limits.values {
            let most = self.limits.values;
            return Err(Trouble::new("", format!("the schema holds more than {most} values")));
        }
        if depth > self.limits.depth {
            let most = self.limits.depth;
            return Err(Trouble::new(
                path.as_str(),
                format!("the schema is nested deeper than {most} values"),
            ));
        }
        let length = path.len();
        match value {
            Value::Object(fields) => {
                for (key, inner) in fields {
                    path.push('.');
                    path.push_str(key);
                    if role == Role::Schema && key == "$ref" {
                        check_reference(inner, path)?;
                    }
                    if role == Role::Schema && key == "properties" {
                        self.check_count(inner, path)?;
                    }
                    let role = if DATA.contains(&key.as_str()) { Role::Data } else { role };
                    self.value(inner, path, depth + 1, role)?;
                    path.truncate(length);
                }
            }
            Value::Array(items) => {
                for (index, inner) in items.iter().enumerate() {
                    path.push_str(&format!("[{index}]"));
                    self.value(inner, path, depth + 1, role)?;
                    path.truncate(length);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        Ok(())
    }

    fn check_count(&self, properties: &Value, path: &str) -> Result<(), Trouble> {
        let (count, most) = (properties.as_object().map_or(0, |object| object.len()), self.limits.properties);
        if count <= most {
            return Ok(());
        }
        Err(Trouble::new(path, format!("{count} properties are declared: at most {most} are possible")))
    }
}

fn check_reference(target: &Value, path: &str) -> Result<(), Trouble> {
    match target.as_str() {
        Some(target) if !target.starts_with('#') => {
            let shown: String = target.chars().take(100).collect();
            let reason = format!("`{shown}` leads out of the schema: nothing is fetched, use `#/$defs/...`");
            Err(Trouble::new(path, reason))
        }
        // A property may be called `$ref`, and then a schema stands here.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn trouble(schema: &Value) -> Trouble {
        check(schema, &Limits::default()).unwrap_err()
    }

    #[test]
    fn trouble_is_named_by_its_path() {
        let remote = json!({"properties": {"a": {"items": [{"$ref": "https://example.com/s"}]}}});
        assert_eq!(trouble(&remote).path, ".properties.a.items[0].$ref");
        assert!(trouble(&json!([1])).reason.contains("object"));
        let mut deep = json!({});
        for _ in 0..100 {
            deep = json!({ "items": deep });
        }
        assert!(trouble(&deep).reason.contains("deeper"), "{:?}", trouble(&deep));
        assert!(trouble(&json!({"enum": vec![0; 30_000]})).reason.contains("values"));
        let wide: serde_json::Map<String, Value> = (0..1001).map(|n| (n.to_string(), json!({}))).collect();
        assert_eq!(trouble(&json!({"items": {"properties": wide}})).path, ".items.properties");
        assert!(trouble(&json!({"description": "x".repeat(200_000)})).reason.contains("bytes"));
    }

    #[test]
    fn data_and_names_are_no_keywords() {
        let schema = json!({
            "properties": {"$ref": {"type": "string"}},
            "default": {"$ref": "https://example.com"},
            "$defs": {"a": {"$ref": "#/$defs/a"}},
        });
        check(&schema, &Limits::default()).unwrap();
        assert_eq!(referred(&schema, "#/properties/$ref"), Some(&json!({"type": "string"})));
        assert_eq!(referred(&schema, "#"), Some(&schema));
        assert_eq!(referred(&schema, "#/$defs/b"), None);
    }
}
