//! Cutting text before byte-pair merging, as the `pre_tokenizer` of a `tokenizer.json` says. Regular expressions
//! are run here, because the `tokenizers` crate panics when one needs too many steps; the other kinds are its own.
//!
//! Only the kinds that byte-level BPE is built from are read.

use onig::{MatchParam, Regex, RegexOptions, Region, SearchOptions, Syntax};
use serde::Deserialize;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::tokenizer::pattern::{Invert, Pattern};
use tokenizers::{PreTokenizedString, PreTokenizer, SplitDelimiterBehavior};

#[derive(Deserialize)]
#[serde(try_from = "Written")]
pub enum Splitter {
    /// One after the other, each on the stretches that the one before left.
    Sequence(Vec<Splitter>),
    Matches {
        of: Matcher,
        behavior: SplitDelimiterBehavior,
        invert: bool,
    },
    Digits(Digits),
    /// Cuts nothing: writes bytes as the characters that the vocabulary is spelled in.
    Bytes(ByteLevel),
}

/// The same as it is written.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum Written {
    Sequence { pretokenizers: Vec<Splitter> },
    Split { pattern: SplitPattern, behavior: SplitDelimiterBehavior, invert: bool },
    Digits { individual_digits: bool },
    ByteLevel { add_prefix_space: bool, use_regex: Option<bool> },
}

impl TryFrom<Written> for Splitter {
    type Error = String;

    fn try_from(written: Written) -> Result<Splitter, String> {
        Ok(match written {
            Written::Sequence { pretokenizers } => Splitter::Sequence(pretokenizers),
            Written::Split { pattern, behavior, invert } => {
                Splitter::Matches { of: Matcher::new(&pattern)?, behavior, invert }
            }
            Written::Digits { individual_digits } => Splitter::Digits(Digits::new(individual_digits)),
            Written::ByteLevel { use_regex: None | Some(true), .. } => {
                return Err("`use_regex` of `ByteLevel` is not false, as in every DeepSeek-V4".to_string());
            }
            Written::ByteLevel { add_prefix_space, .. } => {
                Splitter::Bytes(ByteLevel::new(add_prefix_space, false, false))
            }
        })
    }
}

impl PreTokenizer for Splitter {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> tokenizers::Result<()> {
        match self {
            Splitter::Sequence(steps) => steps.iter().try_for_each(|step| step.pre_tokenize(text)),
            Splitter::Matches { of, behavior, invert: false } => {
                text.split(|_, stretch| stretch.split(of, *behavior))
            }
            Splitter::Matches { of, behavior, invert: true } => {
                text.split(|_, stretch| stretch.split(Invert(of), *behavior))
            }
            Splitter::Digits(digits) => digits.pre_tokenize(text),
            Splitter::Bytes(bytes) => bytes.pre_tokenize(text),
        }
    }
}

pub struct Matcher(Regex);

impl Matcher {
    fn new(pattern: &SplitPattern) -> Result<Matcher, String> {
        let (text, syntax) = match pattern {
            SplitPattern::Regex(text) => (text, Syntax::default()),
            SplitPattern::String(text) => (text, Syntax::asis()),
        };
        let regex = Regex::with_options(text, RegexOptions::REGEX_OPTION_NONE, syntax);
        regex.map(Matcher).map_err(|error| format!("a splitting pattern cannot be read: {error}"))
    }
}

impl Pattern for &Matcher {
    /// Byte ranges that cover the text, and whether each is a match.
    fn find_matches(&self, text: &str) -> tokenizers::Result<Vec<((usize, usize), bool)>> {
        let mut ranges = Vec::with_capacity(text.len());
        let mut region = Region::new();
        let (mut covered, mut from) = (0, 0);
        // No empty match directly behind a match: it would be found for ever.
        let mut last_end = None;
        while from <= text.len() {
            region.clear();
            let (options, limits) = (SearchOptions::SEARCH_OPTION_NONE, MatchParam::default());
            let found = self.0.search_with_param(text, from, text.len(), options, Some(&mut region), limits);
            let found =
                found.map_err(|error| format!("its splitting pattern gave up on this text: {error}"))?;
            let Some((start, end)) = found.and_then(|_| region.pos(0)) else { break };
            if start == end && last_end == Some(end) {
                from += text[from..].chars().next().map_or(1, char::len_utf8);
                continue;
            }
            if covered < start {
                ranges.push(((covered, start), false));
            }
            ranges.push(((start, end), true));
            (covered, from, last_end) = (end, end, Some(end));
        }
        if covered < text.len() || text.is_empty() {
            ranges.push(((covered, text.len()), false));
        }
        Ok(ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::pre_tokenizers::PreTokenizerWrapper;
    use tokenizers::{OffsetReferential, OffsetType};

    fn stretches(splitter: &impl PreTokenizer, text: &str) -> Vec<String> {
        let mut cut = PreTokenizedString::from(text);
        splitter.pre_tokenize(&mut cut).unwrap();
        let stretches = cut.get_splits(OffsetReferential::Original, OffsetType::Byte);
        stretches.into_iter().map(|(stretch, ..)| stretch.to_string()).collect()
    }

    #[test]
    fn cuts_as_the_tokenizers_crate_does() {
        let texts = ["", "a", "12 apples,  3 中文字 \r\n\n x\u{301}y 😀!", "   ", "....a..b", "aXbXX"];
        let split = |pattern: &str, behavior: &str, invert: bool| {
            format!(
                r#"{{"type": "Split", "pattern": {pattern}, "behavior": "{behavior}", "invert": {invert}}}"#
            )
        };
        let mut written = vec![
            r#"{"type": "Digits", "individual_digits": true}"#.to_string(),
            r#"{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}"#
                .to_string(),
        ];
        for pattern in [
            r#"{"Regex": "\\p{N}{1,3}"}"#,
            r#"{"Regex": "x*"}"#,
            r#"{"Regex": "(?=b)|\\s+(?!\\S)|\\s+"}"#,
            r#"{"String": "."}"#,
            r#"{"String": "X"}"#,
        ] {
            for behavior in ["Isolated", "Removed", "MergedWithNext", "MergedWithPrevious", "Contiguous"] {
                written.push(split(pattern, behavior, false));
                written.push(split(pattern, behavior, true));
            }
        }
        written.push(format!(r#"{{"type": "Sequence", "pretokenizers": [{}, {}]}}"#, written[5], written[0]));
        for json in written {
            let ours: Splitter = serde_json::from_str(&json).unwrap();
            let theirs: PreTokenizerWrapper = serde_json::from_str(&json).unwrap();
            for text in texts {
                assert_eq!(stretches(&ours, text), stretches(&theirs, text), "{json} on {text:?}");
            }
        }
    }

    #[test]
    fn a_pattern_that_needs_too_many_steps_is_an_error() {
        let json =
            r#"{"type": "Split", "pattern": {"Regex": "(a+)+b"}, "behavior": "Isolated", "invert": false}"#;
        let splitter: Splitter = serde_json::from_str(json).unwrap();
        let mut text = PreTokenizedString::from("a".repeat(64));
        let error = splitter.pre_tokenize(&mut text).unwrap_err().to_string();
        assert!(error.contains("gave up on this text") && error.contains("retry-limit"), "{error}");
    }

    #[test]
    fn other_kinds_are_refused_by_name() {
        let error = |json: &str| serde_json::from_str::<Splitter>(json).err().unwrap().to_string();
        assert!(error(r#"{"type": "Metaspace"}"#).contains("Metaspace"));
        assert!(error(r#"{"type": "ByteLevel", "add_prefix_space": false}"#).contains("use_regex"));
        let bad = r#"{"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": false}"#;
        assert!(error(bad).contains("cannot be read"), "{}", error(bad));
    }
}
