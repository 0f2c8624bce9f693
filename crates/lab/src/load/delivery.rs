//! One event of a streamed answer, read for what measuring needs: whether it brings text, whether it ends the answer,
//! usage, errors. The text itself is not kept.

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use std::fmt;

/// What an event says. One event may say several of these things.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    /// It carries something that the model wrote: text, reasoning or part of a tool call.
    pub has_text: bool,
    /// It has a finish reason.
    pub is_last: bool,
    pub usage: Option<Usage>,
    /// The server gave up on the answer.
    pub error: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Usage {
    #[serde(default)]
    pub prompt_tokens: u64,
    #[serde(default)]
    pub completion_tokens: u64,
}

impl Delivery {
    /// # Errors
    /// Data that is no JSON object of the expected kind, with what is wrong.
    pub fn parse(data: &[u8]) -> Result<Self, String> {
        let chunk: Chunk = serde_json::from_slice(data).map_err(|error| error.to_string())?;
        let mut delivery = Delivery { usage: chunk.usage, ..Delivery::default() };
        for choice in chunk.choices.unwrap_or_default() {
            let delta = choice.delta.unwrap_or_default();
            let texts =
                [delta.content, delta.reasoning_content, delta.reasoning, delta.tool_calls, choice.text];
            delivery.has_text |= texts.into_iter().any(|text| text.0);
            delivery.is_last |= choice.finish_reason.0;
        }
        delivery.error = chunk.error.as_ref().map(error_sentence);
        Ok(delivery)
    }
}

/// The sentence of an error body, in the OpenAI envelope or nearly so; the text itself when it is neither.
pub fn error_of_body(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Envelope {
        error: Option<serde_json::Value>,
        message: Option<String>,
        detail: Option<serde_json::Value>,
    }
    match serde_json::from_slice::<Envelope>(body) {
        Ok(Envelope { error: Some(error), .. }) => error_sentence(&error),
        Ok(Envelope { message: Some(message), .. }) => message,
        Ok(Envelope { detail: Some(detail), .. }) => error_sentence(&detail),
        _ => String::from_utf8_lossy(body).into_owned(),
    }
}

fn error_sentence(error: &serde_json::Value) -> String {
    let message = error.get("message").and_then(serde_json::Value::as_str).or_else(|| error.as_str());
    message.map_or_else(|| error.to_string(), str::to_owned)
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Option<Vec<Choice>>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    error: Option<serde_json::Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Choice {
    delta: Option<Delta>,
    text: IsFilled,
    finish_reason: IsFilled,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Delta {
    content: IsFilled,
    reasoning_content: IsFilled,
    reasoning: IsFilled,
    tool_calls: IsFilled,
}

/// Whether a value is a text or list with something in it: thousands a second are looked at, and none is kept.
#[derive(Clone, Copy, Debug, Default)]
struct IsFilled(bool);

impl<'de> Deserialize<'de> for IsFilled {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Look;
        impl<'de> Visitor<'de> for Look {
            type Value = IsFilled;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a list or null")
            }

            fn visit_str<E>(self, text: &str) -> Result<IsFilled, E> {
                Ok(IsFilled(!text.is_empty()))
            }

            fn visit_unit<E>(self) -> Result<IsFilled, E> {
                Ok(IsFilled(false))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<IsFilled, A::Error> {
                let mut count = 0;
                while items.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(IsFilled(count > 0))
            }
        }
        deserializer.deserialize_any(Look)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(data: &str) -> Delivery {
        Delivery::parse(data.as_bytes()).unwrap()
    }

    #[test]
    fn text_is_found_wherever_servers_put_it() {
        for data in [
            r#"{"choices":[{"delta":{"content":"a"}}]}"#,
            r#"{"choices":[{"delta":{"content":null,"reasoning_content":"a"},"finish_reason":null}],"usage":null}"#,
            r#"{"choices":[{"delta":{"reasoning":"\u00e9"}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}"#,
            r#"{"choices":[{"text":" a","index":0,"logprobs":null}]}"#,
        ] {
            assert_eq!(parse(data), Delivery { has_text: true, ..Delivery::default() }, "{data}");
        }
        for data in [
            r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"choices":[]}"#,
            r#"{"choices":null}"#,
            "{}",
        ] {
            assert_eq!(parse(data), Delivery::default(), "{data}");
        }
    }

    #[test]
    fn ends_usage_and_errors_are_told() {
        let last = parse(
            r#"{"choices":[{"delta":{},"finish_reason":"length"}],"usage":{"prompt_tokens":7,"completion_tokens":9,"total_tokens":16}}"#,
        );
        assert!(last.is_last && !last.has_text);
        assert_eq!(last.usage, Some(Usage { prompt_tokens: 7, completion_tokens: 9 }));
        assert_eq!(parse(r#"{"error":{"message":"no room","code":500}}"#).error.unwrap(), "no room");
        assert_eq!(parse(r#"{"error":"no room"}"#).error.unwrap(), "no room");
        assert!(Delivery::parse(b"{").is_err());
        assert!(Delivery::parse("[".repeat(1000).as_bytes()).is_err());
        for (body, sentence) in [
            (r#"{"error":{"message":"a"}}"#, "a"),
            (r#"{"object":"error","message":"b"}"#, "b"),
            (r#"{"detail":"c"}"#, "c"),
            ("<html>", "<html>"),
        ] {
            assert_eq!(error_of_body(body.as_bytes()), sentence);
        }
    }
}
