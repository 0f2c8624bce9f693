//! Whether and how much the model thinks. Clients say it in five ways; this is the one place that knows them all.
//!
//! A switch says whether, a level says how much, and where they disagree the switch wins. Of several switches the
//! first of these counts: `thinking`, `enable_thinking`, then `enable_thinking` and `thinking` within
//! `chat_template_kwargs`. Of several levels: `reasoning_effort`, then the one within `chat_template_kwargs`. Without
//! any of them the server's default holds.

use crate::error::ApiError;
use overshot_chat::Effort;
use serde::Deserialize;
use utoipa::ToSchema;

#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct ThinkingFields {
    thinking: Option<Thinking>,
    enable_thinking: Option<bool>,
    chat_template_kwargs: Option<TemplateArguments>,
    #[schema(pattern = "^(none|minimal|low|medium|high|xhigh|max)$")]
    reasoning_effort: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
struct Thinking {
    #[schema(pattern = "^(enabled|disabled)$")]
    r#type: String,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
struct TemplateArguments {
    enable_thinking: Option<bool>,
    thinking: Option<bool>,
    reasoning_effort: Option<String>,
}

impl ThinkingFields {
    /// # Errors
    /// A word that is no level or no state of the switch.
    pub fn effort(&self, default: Effort) -> Result<Effort, ApiError> {
        let level = self.level()?;
        let switch = self.switch()?.map(|is_on| if is_on { Switch::On } else { Switch::Off });
        Ok(settled(switch, level, default))
    }

    fn switch(&self) -> Result<Option<bool>, ApiError> {
        let thinking = match &self.thinking {
            None => None,
            Some(Thinking { r#type }) => match r#type.as_str() {
                "enabled" => Some(true),
                "disabled" => Some(false),
                other => {
                    let message = format!("thinking.type is `{other}`: use enabled or disabled");
                    return Err(ApiError::field("thinking.type", message));
                }
            },
        };
        let template = self.chat_template_kwargs.as_ref();
        let within = template.and_then(|arguments| arguments.enable_thinking.or(arguments.thinking));
        Ok(thinking.or(self.enable_thinking).or(within))
    }

    fn level(&self) -> Result<Option<Effort>, ApiError> {
        let template = self.chat_template_kwargs.as_ref();
        let within = template.and_then(|arguments| arguments.reasoning_effort.as_deref());
        let named = [
            ("reasoning_effort", self.reasoning_effort.as_deref()),
            ("chat_template_kwargs.reasoning_effort", within),
        ];
        let Some((param, word)) = named.into_iter().find_map(|(param, word)| Some((param, word?))) else {
            return Ok(None);
        };
        effort_word(param, word).map(Some)
    }
}

/// # Errors
/// A word that is no level.
pub fn effort_word(param: &'static str, word: &str) -> Result<Effort, ApiError> {
    match word {
        // OpenAI's word for the least thinking there is.
        "minimal" => Ok(Effort::Low),
        word => word.parse().map_err(|error: String| ApiError::field(param, error)),
    }
}

/// What a request says of whether to think.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    On,
    Off,
}

/// Where switch and level disagree, the switch wins; without either, the default holds.
pub fn settled(switch: Option<Switch>, level: Option<Effort>, default: Effort) -> Effort {
    match switch {
        None => level.unwrap_or(default),
        Some(Switch::Off) => Effort::None,
        Some(Switch::On) => {
            let thinking = [level, Some(default)].into_iter().flatten().find(|effort| effort.thinks());
            thinking.unwrap_or(Effort::High)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effort(json: &str, default: Effort) -> Result<Effort, ApiError> {
        serde_json::from_str::<ThinkingFields>(json).unwrap().effort(default)
    }

    #[test]
    fn a_switch_says_whether_and_a_level_how_much() {
        for (json, default, expected) in [
            ("{}", Effort::None, Effort::None),
            ("{}", Effort::Max, Effort::Max),
            (r#"{"reasoning_effort":"none"}"#, Effort::High, Effort::None),
            (r#"{"reasoning_effort":"low"}"#, Effort::None, Effort::Low),
            (r#"{"thinking":{"type":"enabled"}}"#, Effort::None, Effort::High),
            (r#"{"thinking":{"type":"enabled"}}"#, Effort::Max, Effort::Max),
            (r#"{"thinking":{"type":"enabled"},"reasoning_effort":"max"}"#, Effort::None, Effort::Max),
            (r#"{"thinking":{"type":"enabled"},"reasoning_effort":"none"}"#, Effort::None, Effort::High),
            (r#"{"thinking":{"type":"disabled"},"reasoning_effort":"max"}"#, Effort::High, Effort::None),
            (r#"{"thinking":{"type":"disabled"},"enable_thinking":true}"#, Effort::None, Effort::None),
            (r#"{"enable_thinking":true}"#, Effort::None, Effort::High),
            (r#"{"chat_template_kwargs":{"thinking":true}}"#, Effort::None, Effort::High),
            (
                r#"{"enable_thinking":false,"chat_template_kwargs":{"thinking":true}}"#,
                Effort::High,
                Effort::None,
            ),
            (
                r#"{"chat_template_kwargs":{"enable_thinking":true,"thinking":false,"reasoning_effort":"max"}}"#,
                Effort::None,
                Effort::Max,
            ),
        ] {
            assert_eq!(effort(json, default), Ok(expected), "{json}");
        }
    }

    #[test]
    fn unknown_words_name_their_field() {
        let wrong = effort(r#"{"reasoning_effort":"huge"}"#, Effort::None);
        assert!(matches!(wrong, Err(ApiError::BadField { param, .. }) if param == "reasoning_effort"));
        let wrong = effort(r#"{"thinking":{"type":"maybe"}}"#, Effort::None);
        assert!(matches!(wrong, Err(ApiError::BadField { param, .. }) if param == "thinking.type"));
    }
}
