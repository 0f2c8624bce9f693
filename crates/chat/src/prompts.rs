//! The fixed texts of a checkpoint's prompts. They belong to the model, not to the engine: `PromptTexts` reads
//! them from the model folder and never replaces a missing one. A request that needs a missing text is
//! refused; a text that differs from the published one is used and warned about.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::error::shown;
use crate::files::read_bounded;
use crate::python_literals::{self, Constant, FormatPart};
use crate::{ChatError, Effort, Special};

/// Where the texts lie in a model folder; the first that exists counts.
pub const PROMPTS_JSON: &str = "encoding/prompts.json";
pub const ENCODING_SCRIPT: &str = "encoding/encoding_dsv4.py";

/// The published script has a thirtieth of this.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The texts that a model's prompts may need; absent ones make only the requests fail that need them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptTexts {
    /// Stands before the JSON lines of the declared functions.
    pub tools_prefix: Option<String>,
    /// Stands behind them.
    pub tools_suffix: Option<String>,
    /// Asks for the longest thinking.
    pub effort_max: Option<String>,
    /// Asks for little thinking. Only later revisions have it; there, effort `xhigh` is no more than `high`.
    pub effort_low: Option<String>,
    /// Stands before the JSON schema that an answer must satisfy.
    pub response_format_prefix: Option<String>,
    /// Where the texts came from: ends the sentence "this request needs the ... text, which".
    #[serde(skip)]
    looked_in: String,
    #[serde(skip)]
    warnings: Vec<String>,
}

impl PromptTexts {
    /// Texts of `encoding/prompts.json`, else of `encoding/encoding_dsv4.py`, else none.
    ///
    /// # Errors
    /// A file that exists but cannot be read, or is no JSON of the known texts.
    pub fn from_model_folder(folder: &Path) -> Result<PromptTexts, ChatError> {
        type Reader = fn(&str, &str) -> Result<PromptTexts, ChatError>;
        let sources: [(&str, Reader); 2] = [
            (PROMPTS_JSON, PromptTexts::from_json),
            (ENCODING_SCRIPT, |text, name| Ok(PromptTexts::from_encoding_script(text, name))),
        ];
        for (file, read) in sources {
            let path = folder.join(file);
            match read_bounded(&path, FILE_BYTES_MAX) {
                Ok(bytes) => {
                    let name = path.display().to_string();
                    let text = String::from_utf8(bytes).map_err(|_| ChatError::PromptTexts {
                        name: name.clone(),
                        reason: "it is not UTF-8 text".to_string(),
                    })?;
                    return read(&text, &name);
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => return Err(ChatError::Read { path, source }),
            }
        }
        let looked_in = format!(
            "the model folder does not supply: {} has neither {PROMPTS_JSON} nor {ENCODING_SCRIPT}",
            folder.display()
        );
        Ok(PromptTexts { looked_in, ..PromptTexts::default() })
    }

    /// Texts of a `prompts.json`; `name` stands in messages.
    ///
    /// # Errors
    /// [`ChatError::PromptTexts`] if it is no JSON object of the known texts; a misspelt key is named.
    pub fn from_json(text: &str, name: &str) -> Result<PromptTexts, ChatError> {
        let texts: PromptTexts = serde_json::from_str(text).map_err(|error| ChatError::PromptTexts {
            name: name.to_string(),
            reason: shown(&error.to_string()),
        })?;
        Ok(PromptTexts { looked_in: format!("{name} does not hold"), ..texts })
    }

    /// Texts out of the string constants of a published encoding script; nothing of it is run.
    pub fn from_encoding_script(source: &str, name: &str) -> PromptTexts {
        let mut script = Script { constants: python_literals::constants(source), problems: Vec::new() };
        let tools = script.split("TOOLS_TEMPLATE", "tool_schemas");
        let format = script.split("response_format_template", "schema");
        if format.as_ref().is_some_and(|(_, behind)| !behind.is_empty()) {
            script.problems.push("response_format_template has text behind the schema".to_string());
        }
        let (tools_prefix, tools_suffix) = tools.unzip();
        let texts = PromptTexts {
            tools_prefix,
            tools_suffix,
            effort_max: script.effort("MAX", "max"),
            effort_low: script.effort("LOW", "low"),
            response_format_prefix: format.filter(|(_, behind)| behind.is_empty()).map(|(before, _)| before),
            looked_in: String::new(),
            warnings: Vec::new(),
        };
        let mut looked_in = format!("{name} does not hold in a form that can be read");
        if !script.problems.is_empty() {
            looked_in = format!("{looked_in} ({})", script.problems.join("; "));
        }
        let warnings = texts.differences_from_published(name);
        PromptTexts { looked_in, warnings, ..texts }
    }

    /// One sentence for each text that is not the one published for DeepSeek-V4.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn differences_from_published(&self, name: &str) -> Vec<String> {
        let differs = |(what, text, published): &(&str, &Option<String>, Published)| {
            let text = text.as_ref()?;
            (text.len() != published.bytes || sha256_hex(text) != published.sha256).then(|| {
                format!(
                    "the {what} in {name} ({} bytes) is not the published one ({} bytes); it is used as it is",
                    text.len(),
                    published.bytes
                )
            })
        };
        [
            ("text before the tools", &self.tools_prefix, TOOLS_PREFIX),
            ("text behind the tools", &self.tools_suffix, TOOLS_SUFFIX),
            ("text for effort max", &self.effort_max, EFFORT_MAX),
            ("text before the answer's schema", &self.response_format_prefix, RESPONSE_FORMAT_PREFIX),
        ]
        .iter()
        .filter_map(differs)
        .collect()
    }

    fn need<'a>(&self, text: &'a Option<String>, what: &'static str) -> Result<&'a str, ChatError> {
        let looked_in = match self.looked_in.as_str() {
            "" => "was not given".to_string(),
            text => text.to_string(),
        };
        text.as_deref().ok_or(ChatError::NoPromptText { what, looked_in })
    }

    /// The texts around declared functions: before, behind.
    ///
    /// # Errors
    /// [`ChatError::NoPromptText`] naming the files that were looked into.
    pub fn around_tools(&self) -> Result<(&str, &str), ChatError> {
        let what = "text that announces tools";
        Ok((self.need(&self.tools_prefix, what)?, self.need(&self.tools_suffix, what)?))
    }

    /// The text before a response schema.
    ///
    /// # Errors
    /// [`ChatError::NoPromptText`] naming the files that were looked into.
    pub fn before_schema(&self) -> Result<&str, ChatError> {
        self.need(&self.response_format_prefix, "text that announces an answer's schema")
    }

    /// The text that asks for this effort, if it is asked for by a text.
    ///
    /// # Errors
    /// [`ChatError::NoPromptText`] naming the files that were looked into.
    pub fn effort_text(&self, effort: Effort) -> Result<Option<&str>, ChatError> {
        let has_low = self.effort_low.is_some();
        match effort {
            Effort::None | Effort::Medium | Effort::High => Ok(None),
            Effort::Low => Ok(self.effort_low.as_deref()),
            Effort::XHigh if has_low => Ok(None),
            Effort::XHigh | Effort::Max => self.need(&self.effort_max, "text for effort max").map(Some),
        }
    }
}

/// The publisher's constants, with a note of each that could not be used.
struct Script {
    constants: HashMap<String, Constant>,
    problems: Vec<String>,
}

impl Script {
    fn text(&mut self, name: &str) -> Option<String> {
        match self.constants.get(name)? {
            Constant::Text(text) => return Some(text.clone()),
            Constant::Dict(_) => self.problems.push(format!("{name} is a dict")),
            Constant::Unreadable(reason) => self.problems.push(format!("{name} {reason}")),
        }
        None
    }

    /// The effort text of a level: a constant of its own, or an entry of the table that later revisions have.
    fn effort(&mut self, constant: &str, key: &str) -> Option<String> {
        if let Some(Constant::Dict(entries)) = self.constants.get("REASONING_EFFORT_PROMPTS") {
            return entries.iter().find(|(name, _)| name == key).map(|(_, text)| text.clone());
        }
        self.text(&format!("REASONING_EFFORT_{constant}"))
    }

    /// A template's text before and behind the one field named `field`, the other fields filled in.
    fn split(&mut self, name: &str, field: &str) -> Option<(String, String)> {
        let template = self.text(name)?;
        match self.fill(&template, field) {
            Ok(halves) => Some(halves),
            Err(reason) => {
                self.problems.push(format!("{name} {reason}"));
                None
            }
        }
    }

    fn fill(&self, template: &str, field: &str) -> Result<(String, String), String> {
        let mut halves = vec![String::new()];
        for part in python_literals::format_parts(template)? {
            let text = match part {
                FormatPart::Text(text) => text,
                FormatPart::Field(name) if name == field => {
                    halves.push(String::new());
                    continue;
                }
                FormatPart::Field(name) => match (self.constants.get(&name), name.as_str()) {
                    (Some(Constant::Text(text)), _) => text.clone(),
                    (_, "dsml_token") => Special::Dsml.text().to_string(),
                    (_, "thinking_start_token") => Special::ThinkOpen.text().to_string(),
                    (_, "thinking_end_token") => Special::ThinkClose.text().to_string(),
                    _ => return Err(format!("holds the unknown field {{{name}}}")),
                },
            };
            halves.last_mut().into_iter().for_each(|half| half.push_str(&text));
        }
        match <[String; 2]>::try_from(halves) {
            Ok([before, behind]) => Ok((before, behind)),
            Err(halves) => Err(format!("holds {{{field}}} {} times where it belongs once", halves.len() - 1)),
        }
    }
}

/// Identity of a text published with DeepSeek-V4: its size and hash, not the text.
struct Published {
    bytes: usize,
    sha256: &'static str,
}

const TOOLS_PREFIX: Published =
    Published { bytes: 890, sha256: "c7c9042638154a237b5d1bd48be772374a35a4d24c5cacfd1ffbd92703da329c" };
const TOOLS_SUFFIX: Published =
    Published { bytes: 99, sha256: "690702850fe256512cb1ee67c4e436ecb3e735c71ebee77ca45ff357a75fb5a7" };
const EFFORT_MAX: Published =
    Published { bytes: 476, sha256: "f7a24f3b3050d4a83781e9b755b316aae2ec1d9dc87562541d90bcb04d7350f7" };
const RESPONSE_FORMAT_PREFIX: Published =
    Published { bytes: 80, sha256: "5200f58413f49f3957c43beddbc97bead023232cb5934fad0c1997c30c139112" };

fn sha256_hex(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = r###"
dsml_token: str = "｜DSML｜"
tool_call_template = "<{dsml_token}invoke>"
TOOLS_TEMPLATE = """## Own tools
<{dsml_token}tool_calls> {{"x": 1}} after {thinking_end_token}

{tool_schemas}

The end.
"""
REASONING_EFFORT_MAX = (
    "Think "
    "long.\n\n"
)
response_format_template = (
    "## Own format\n{schema}"
)
"###;

    #[test]
    fn reads_the_constants_of_a_script() {
        let texts = PromptTexts::from_encoding_script(SCRIPT, "script");
        let (prefix, suffix) = texts.around_tools().unwrap();
        assert_eq!(prefix, "## Own tools\n<｜DSML｜tool_calls> {\"x\": 1} after </think>\n\n");
        assert_eq!(suffix, "\n\nThe end.\n");
        assert_eq!(texts.effort_text(Effort::Max).unwrap(), Some("Think long.\n\n"));
        assert_eq!(texts.before_schema().unwrap(), "## Own format\n");
        assert_eq!(texts.warnings().len(), 4, "{:?}", texts.warnings());
        assert!(texts.warnings()[0].contains("890 bytes"));
    }

    #[test]
    fn hashes_are_sha256_in_hex() {
        assert_eq!(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn efforts_between_follow_the_revision() {
        let preview = PromptTexts::from_encoding_script(SCRIPT, "script");
        assert_eq!(preview.effort_text(Effort::Low).unwrap(), None);
        assert_eq!(preview.effort_text(Effort::XHigh).unwrap(), Some("Think long.\n\n"));
        let table = "REASONING_EFFORT_PROMPTS = {'max': 'M', 'low': 'L'}";
        let later = PromptTexts::from_encoding_script(table, "script");
        assert_eq!(later.effort_text(Effort::Low).unwrap(), Some("L"));
        assert_eq!(later.effort_text(Effort::XHigh).unwrap(), None);
        assert_eq!(later.effort_text(Effort::Max).unwrap(), Some("M"));
    }

    #[test]
    fn a_missing_text_is_refused_by_naming_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let texts = PromptTexts::from_model_folder(folder.path()).unwrap();
        let message = texts.around_tools().unwrap_err().to_string();
        assert!(message.contains(PROMPTS_JSON) && message.contains(ENCODING_SCRIPT), "{message}");
        assert!(texts.effort_text(Effort::High).is_ok());

        let script = PromptTexts::from_encoding_script("TOOLS_TEMPLATE = '{a} {tool_schemas}'", "script.py");
        let message = script.around_tools().unwrap_err().to_string();
        assert!(message.contains("script.py") && message.contains("{a}"), "{message}");
    }

    #[test]
    fn prompts_json_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("encoding")).unwrap();
        std::fs::write(folder.path().join(ENCODING_SCRIPT), SCRIPT).unwrap();
        let texts = PromptTexts::from_model_folder(folder.path()).unwrap();
        assert_eq!(texts.before_schema().unwrap(), "## Own format\n");
        std::fs::write(folder.path().join(PROMPTS_JSON), r#"{"effort_max": "own"}"#).unwrap();
        let texts = PromptTexts::from_model_folder(folder.path()).unwrap();
        assert_eq!(texts.effort_text(Effort::Max).unwrap(), Some("own"));
        assert!(texts.warnings().is_empty());
        assert!(texts.before_schema().unwrap_err().to_string().contains("prompts.json"));
        let misspelt =
            PromptTexts::from_json(r#"{"effort_mx": "own"}"#, PROMPTS_JSON).unwrap_err().to_string();
        assert!(misspelt.contains("unknown field `effort_mx`, expected one of `tools_prefix`"), "{misspelt}");
        std::fs::write(folder.path().join(PROMPTS_JSON), " ".repeat((1 << 20) + 1)).unwrap();
        let longer = PromptTexts::from_model_folder(folder.path()).unwrap_err().to_string();
        assert!(longer.contains("prompts.json: it is longer than 1048576 bytes"), "{longer}");
        std::fs::write(folder.path().join(PROMPTS_JSON), r#"{"effort_max": 5}"#).unwrap();
        assert!(
            PromptTexts::from_model_folder(folder.path()).unwrap_err().to_string().contains("prompts.json")
        );
    }
}
