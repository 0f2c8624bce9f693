//! Typed access to a JSON object whose every refusal names file and field. Knows nothing about models.

use crate::ModelError;
use crate::error::shown;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// One JSON object of a configuration file.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    file: &'a str,
    /// Dotted path of this object inside the file, with its final dot; empty at the top.
    path: &'a str,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub fn new(file: &'a str, path: &'a str, map: &'a Map<String, Value>) -> Self {
        Fields { file, path, map }
    }

    pub fn error(&self, name: &str, reason: impl Into<String>) -> ModelError {
        ModelError::Field {
            file: self.file.to_string(),
            field: format!("{}{name}", self.path),
            reason: reason.into(),
        }
    }

    pub fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.map.keys().map(String::as_str)
    }

    /// The value of a field; JSON's `null` counts as absent.
    pub fn optional(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub fn required(&self, name: &str) -> Result<&'a Value, ModelError> {
        self.optional(name).ok_or_else(|| self.error(name, "is missing"))
    }

    /// The object in field `name`; `path` must be the dotted path of that object with a final dot.
    pub fn object(&self, name: &str, path: &'a str) -> Result<Option<Fields<'a>>, ModelError> {
        let Some(value) = self.optional(name) else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| self.mismatch(name, value, "an object"))?;
        Ok(Some(Fields { file: self.file, path, map }))
    }

    pub fn list(&self, name: &str) -> Result<Option<&'a [Value]>, ModelError> {
        let Some(value) = self.optional(name) else { return Ok(None) };
        Ok(Some(value.as_array().ok_or_else(|| self.mismatch(name, value, "a list"))?))
    }

    pub fn text(&self, name: &str) -> Result<Option<&'a str>, ModelError> {
        let Some(value) = self.optional(name) else { return Ok(None) };
        Ok(Some(value.as_str().ok_or_else(|| self.mismatch(name, value, "a string"))?))
    }

    pub fn integer(&self, name: &str, range: RangeInclusive<u64>) -> Result<usize, ModelError> {
        let value = self.required(name)?;
        let number = value.as_u64().ok_or_else(|| self.mismatch(name, value, "a whole number"))?;
        if !range.contains(&number) {
            let reason = format!("is {number}, outside {} to {}", range.start(), range.end());
            return Err(self.error(name, reason));
        }
        usize::try_from(number).map_err(|_| self.error(name, "does not fit this machine"))
    }

    /// A number that stays in `range` when rounded to `f32`.
    pub fn number(&self, name: &str, range: RangeInclusive<f32>) -> Result<f32, ModelError> {
        let value = self.required(name)?;
        let number = value.as_f64().ok_or_else(|| self.mismatch(name, value, "a number"))? as f32;
        if !range.contains(&number) {
            let reason = format!("is {}, outside {} to {}", brief(value), range.start(), range.end());
            return Err(self.error(name, reason));
        }
        Ok(number)
    }

    /// Refuses any value of `name` but `expected`; absence is fine.
    pub fn expect(&self, name: &str, expected: impl Into<Value>) -> Result<(), ModelError> {
        match self.optional(name) {
            Some(_) => self.require(name, expected),
            None => Ok(()),
        }
    }

    /// Refuses absence and any value of `name` but `expected`.
    pub fn require(&self, name: &str, expected: impl Into<Value>) -> Result<(), ModelError> {
        let (value, expected) = (self.required(name)?, expected.into());
        // 1 and 1.0 are one number.
        let equal = value == &expected || (value.is_number() && value.as_f64() == expected.as_f64());
        if equal {
            return Ok(());
        }
        Err(self.error(name, format!("is {}, every DeepSeek-V4 has {}", brief(value), brief(&expected))))
    }

    pub fn mismatch(&self, name: &str, value: &Value, expected: &str) -> ModelError {
        self.error(name, format!("is {}, expected {expected}", brief(value)))
    }
}

/// A JSON value for a message: composite ones by kind only.
pub(crate) fn brief(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".to_string(),
        Value::Object(_) => "an object".to_string(),
        Value::String(text) => format!("`{}`", shown(text)),
        plain => plain.to_string(),
    }
}
