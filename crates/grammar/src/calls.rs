//! Tool calls as a grammar, in the words of the chat format: a block of invocations with their parameters. Tags hold
//! the DSML token, which no text can spell; so raw values need no escapes, and text up to that token is theirs.

use crate::arguments::{Parameter, Parameters, Presence, Spellings, Text, parameters};
use crate::error::Trouble;
use crate::{Arguments, CallCount, CallRules, Function, Limits, lark, schema};
use serde_json::json;
use std::fmt::Write;

/// Rules for `block`: all of a block behind its first DSML token.
pub(crate) struct BlockRules {
    pub text: String,
    /// Functions whose schemas they hold to.
    pub held: Vec<usize>,
}

/// What to do about a schema that is only preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preferences {
    Held,
    Dropped,
}

/// # Errors
/// The position in the rules of a function whose schema is unusable, with the reason.
pub(crate) fn block(
    rules: &CallRules,
    preferences: Preferences,
    dsml: u32,
    limits: &Limits,
) -> Result<BlockRules, (usize, Trouble)> {
    let mut writer = Writer { text: String::new(), dsml: lark::token(dsml) };
    let mut held = Vec::new();
    for (position, function) in rules.functions.iter().enumerate() {
        let wanted = match arguments(function, preferences, limits) {
            Ok(wanted) => wanted,
            Err(trouble) => return Err((position, trouble)),
        };
        if wanted.is_some() {
            held.push(position);
        }
        writer.call(position, &function.name, wanted.as_ref().unwrap_or(&Parameters::Free));
    }
    writer.block(rules.functions.len(), rules.count);
    Ok(BlockRules { text: writer.text, held })
}

/// `None` for a function that is not held to a schema.
fn arguments(
    function: &Function,
    preferences: Preferences,
    limits: &Limits,
) -> Result<Option<Parameters>, Trouble> {
    match &function.arguments {
        Arguments::Free => Ok(None),
        Arguments::Exact(None) => Ok(Some(Parameters::Listed(Vec::new()))),
        Arguments::Exact(Some(schema)) => {
            schema::check(schema, limits)?;
            parameters(schema).map(Some)
        }
        Arguments::Preferred(_) if preferences == Preferences::Dropped => Ok(None),
        Arguments::Preferred(schema) => {
            Ok(schema::check(schema, limits).and_then(|()| parameters(schema)).ok())
        }
    }
}

struct Writer {
    text: String,
    dsml: String,
}

impl Writer {
    fn line(&mut self, rule: &str, body: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{rule}: {body}");
    }

    fn block(&mut self, functions: usize, count: CallCount) {
        let dsml = self.dsml.clone();
        let names: Vec<String> = (0..functions).map(|position| format!("call_{position}")).collect();
        let more = if count == CallCount::Several { r#" ("\n" call)*"# } else { "" };
        self.line("call", &format!(r#""<" {dsml} ( {} )"#, names.join(" | ")));
        self.line("block", &format!(r#""tool_calls>\n" call{more} "\n</" {dsml} "tool_calls>""#));
    }

    fn call(&mut self, position: usize, name: &str, parameters: &Parameters) {
        let dsml = self.dsml.clone();
        let opening = lark::literal(&format!("invoke name=\"{name}\">"));
        let body = match parameters {
            Parameters::Free => self.free_parameters(position),
            Parameters::Listed(listed) => self.listed_parameters(position, listed),
        };
        self.line(&format!("call_{position}"), &format!(r#"{opening} ( {body} ) {dsml} "invoke>""#));
    }

    /// The empty line stands where there is no parameter, as the model was trained.
    fn listed_parameters(&mut self, position: usize, listed: &[Parameter]) -> String {
        let mut sequence = String::new();
        for (index, parameter) in listed.iter().enumerate() {
            let rule = format!("parameter_{position}_{index}");
            self.parameter(&rule, parameter);
            let mark = if parameter.presence == Presence::Optional { "?" } else { "" };
            let _ = write!(sequence, "{rule}{mark} ");
        }
        if listed.is_empty() {
            return r#""\n\n</""#.to_string();
        }
        let may_be_empty = listed.iter().all(|parameter| parameter.presence == Presence::Optional);
        let empty = if may_be_empty { r#""\n\n</" | "# } else { "" };
        format!(r#"{empty}{sequence}"\n</""#)
    }

    fn free_parameters(&mut self, position: usize) -> String {
        let rule = format!("free_{position}");
        let dsml = self.dsml.clone();
        let text = lark::text_to_closing(0, None);
        let json = lark::json(&json!({ "type": ["object", "array", "number", "boolean", "null"] }));
        let name = r#"/parameter name="[A-Za-z0-9_.\-]{1,64}" string="#;
        self.line(
            &rule,
            &format!(
                r#""\n<" {dsml} ( {name}"true">/ {text} | {name}"false">/ {rule}_json "</" ) {dsml} "parameter>""#
            ),
        );
        self.line(&format!("{rule}_json"), &json);
        format!(r#""\n\n</" | {rule}* "\n</""#)
    }

    fn parameter(&mut self, rule: &str, parameter: &Parameter) {
        let dsml = self.dsml.clone();
        let Spellings { texts, json } = &parameter.spellings;
        let opening =
            |kind: &str| lark::literal(&format!("parameter name=\"{}\" string=\"{kind}\">", parameter.name));
        let mut ways = Vec::new();
        if !texts.is_empty() {
            let texts: Vec<String> = texts.iter().map(text).collect();
            ways.push(format!("{} ( {} )", opening("true"), texts.join(" | ")));
        }
        if !json.is_empty() {
            let names: Vec<String> = (0..json.len()).map(|index| format!("{rule}_json_{index}")).collect();
            for (name, schema) in names.iter().zip(json) {
                self.line(name, &lark::json(schema));
            }
            ways.push(format!(r#"{} ( {} ) "</""#, opening("false"), names.join(" | ")));
        }
        self.line(rule, &format!(r#""\n<" {dsml} ( {} ) {dsml} "parameter>""#, ways.join(" | ")));
    }
}

/// A raw value with the `</` behind it.
fn text(text: &Text) -> String {
    match text {
        Text::OfLength { least, most } => lark::text_to_closing(*least, *most),
        Text::Exactly(text) => lark::literal(&format!("{text}</")),
    }
}
