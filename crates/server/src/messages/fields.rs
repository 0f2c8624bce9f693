//! The fields of a Messages request, as JSON has them. Those that chat requests have as well (`model`, `stream`, sampling)
//! are read from the same body as `CommonFields`; unknown ones are ignored.

use crate::error::ApiError;
use crate::messages::tools::{ToolChoiceFields, ToolFields};
use crate::switches::{Switch, settled};
use overshot_chat::Effort;
use overshot_grammar::Form;
use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt;

#[derive(Debug, Deserialize)]
pub struct MessagesFields {
    pub messages: Option<Vec<TurnFields>>,
    pub system: Option<Blocks>,
    pub max_tokens: Option<usize>,
    pub stop_sequences: Option<Vec<String>>,
    pub tools: Option<Vec<ToolFields>>,
    pub tool_choice: Option<ToolChoiceFields>,
    thinking: Option<Thinking>,
    output_config: Option<OutputConfig>,
    /// What came before `output_config.format`.
    output_format: Option<OutputFormat>,
    mcp_servers: Option<Vec<IgnoredAny>>,
}

#[derive(Debug, Deserialize)]
struct Thinking {
    r#type: String,
}

#[derive(Debug, Deserialize)]
struct OutputConfig {
    effort: Option<String>,
    format: Option<OutputFormat>,
}

#[derive(Debug, Deserialize)]
struct OutputFormat {
    r#type: String,
    schema: Option<Value>,
}

#[derive(Debug, Deserialize)]
pub struct TurnFields {
    pub role: TurnRole,
    #[serde(default)]
    pub content: Blocks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TurnRole {
    User,
    Assistant,
    System,
}

/// Content: blocks, or a string, which is one text block.
#[derive(Debug, Default)]
pub struct Blocks(pub Vec<Block>);

/// A block of any type. Which fields mean something is decided by its type.
#[derive(Debug, Default, Deserialize)]
pub struct Block {
    pub r#type: String,
    pub text: Option<String>,
    pub thinking: Option<String>,
    pub id: Option<String>,
    pub name: Option<String>,
    pub input: Option<Box<RawValue>>,
    pub tool_use_id: Option<String>,
    pub tool_name: Option<String>,
    pub content: Option<Blocks>,
}

impl MessagesFields {
    /// Ignoring these without a word would give answers that were not asked for.
    pub fn refuse_unsupported(&self) -> Result<(), ApiError> {
        match &self.mcp_servers {
            Some(servers) if !servers.is_empty() => Err(ApiError::field(
                "mcp_servers",
                "mcp_servers is not supported: this server calls no tools itself, declare them in `tools`",
            )),
            _ => Ok(()),
        }
    }

    /// The form of the answer's text, with the field that asks for it.
    ///
    /// # Errors
    /// A form that is unknown, or without its schema.
    pub fn form(&mut self) -> Result<(&'static str, Form), ApiError> {
        let of_config = self.output_config.as_mut().and_then(|config| config.format.take());
        let (field, format) = match of_config {
            Some(format) => ("output_config.format.schema", format),
            None => match self.output_format.take() {
                Some(format) => ("output_format.schema", format),
                None => return Ok(("output_config.format.schema", Form::Text)),
            },
        };
        match (format.r#type.as_str(), format.schema) {
            ("json_schema", Some(schema)) => Ok((field, Form::JsonSchema(schema))),
            ("json_schema", None) => Err(ApiError::field(field, format!("{field} is missing"))),
            (other, _) => {
                let param = field.replace("schema", "type");
                Err(ApiError::field(&param, format!("{param} is `{other}`: use json_schema")))
            }
        }
    }

    /// `thinking.type` says whether, `output_config.effort` how much.
    ///
    /// # Errors
    /// A word that is neither.
    pub fn effort(&self, default: Effort) -> Result<Effort, ApiError> {
        let switch = match self.thinking.as_ref().map(|thinking| thinking.r#type.as_str()) {
            None => None,
            // How much is the model's own choice in any case.
            Some("enabled" | "adaptive") => Some(Switch::On),
            Some("disabled") => Some(Switch::Off),
            Some(other) => {
                let message = format!("thinking.type is `{other}`: use enabled, adaptive or disabled");
                return Err(ApiError::field("thinking.type", message));
            }
        };
        let word = self.output_config.as_ref().and_then(|config| config.effort.as_deref());
        let level = word.map(str::parse).transpose();
        let level = level.map_err(|error: String| ApiError::field("output_config.effort", error))?;
        Ok(settled(switch, level, default))
    }
}

impl<'de> Deserialize<'de> for Blocks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BlocksVisitor;

        impl<'de> Visitor<'de> for BlocksVisitor {
            type Value = Blocks;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a string or a list of content blocks")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Blocks, E> {
                Ok(Blocks::default())
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Blocks, E> {
                let block = Block { r#type: "text".into(), text: Some(text.into()), ..Block::default() };
                Ok(Blocks(vec![block]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Blocks, A::Error> {
                let mut blocks = Vec::new();
                while let Some(block) = items.next_element()? {
                    blocks.push(block);
                }
                Ok(Blocks(blocks))
            }
        }

        deserializer.deserialize_any(BlocksVisitor)
    }
}
