//! The tokens with a meaning in the chat format. Ids are looked up in the tokenizer by these texts; the ids
//! themselves differ between models and stand nowhere in this crate.

use crate::Task;

/// A token that only the engine (in prompts) or the model (in its output) can produce; text typed by a user
/// never becomes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Special {
    BeginOfSentence,
    EndOfSentence,
    User,
    Assistant,
    ThinkOpen,
    ThinkClose,
    /// The marker inside tool-call tags: `<` + this token + `invoke name="...">`.
    Dsml,
    LatestReminder,
    Task(Task),
}

impl Special {
    pub const ALL: [Special; 15] = [
        Special::BeginOfSentence,
        Special::EndOfSentence,
        Special::User,
        Special::Assistant,
        Special::ThinkOpen,
        Special::ThinkClose,
        Special::Dsml,
        Special::LatestReminder,
        Special::Task(Task::Action),
        Special::Task(Task::Query),
        Special::Task(Task::Authority),
        Special::Task(Task::Domain),
        Special::Task(Task::Title),
        Special::Task(Task::ExtractedUrl),
        Special::Task(Task::ReadUrl),
    ];

    /// Without these no conversation can be rendered or parsed; the others serve single features.
    pub const REQUIRED: [Special; 7] = [
        Special::BeginOfSentence,
        Special::EndOfSentence,
        Special::User,
        Special::Assistant,
        Special::ThinkOpen,
        Special::ThinkClose,
        Special::Dsml,
    ];

    /// The token's text in `tokenizer.json` and in the published encoder (bars U+FF5C, low blocks U+2581).
    pub const fn text(self) -> &'static str {
        match self {
            Special::BeginOfSentence => "<｜begin▁of▁sentence｜>",
            Special::EndOfSentence => "<｜end▁of▁sentence｜>",
            Special::User => "<｜User｜>",
            Special::Assistant => "<｜Assistant｜>",
            Special::ThinkOpen => "<think>",
            Special::ThinkClose => "</think>",
            Special::Dsml => "｜DSML｜",
            Special::LatestReminder => "<｜latest_reminder｜>",
            Special::Task(Task::Action) => "<｜action｜>",
            Special::Task(Task::Query) => "<｜query｜>",
            Special::Task(Task::Authority) => "<｜authority｜>",
            Special::Task(Task::Domain) => "<｜domain｜>",
            Special::Task(Task::Title) => "<｜title｜>",
            Special::Task(Task::ExtractedUrl) => "<｜extracted_url｜>",
            Special::Task(Task::ReadUrl) => "<｜read_url｜>",
        }
    }

    pub fn from_text(text: &str) -> Option<Special> {
        Special::ALL.into_iter().find(|special| special.text() == text)
    }

    /// The first special token's text in `text`: its byte offset and which. For tests and for parsing stored
    /// text; live output is read by token id.
    pub fn find(text: &str) -> Option<(usize, Special)> {
        text.char_indices().filter(|(_, c)| matches!(c, '<' | '｜')).find_map(|(at, _)| {
            let special = Special::ALL.into_iter().find(|special| text[at..].starts_with(special.text()))?;
            Some((at, special))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_is_a_prefix_of_another_so_that_finding_needs_no_longest_match() {
        for a in Special::ALL {
            for b in Special::ALL {
                assert!(a == b || !a.text().starts_with(b.text()), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn finds_the_first() {
        assert_eq!(Special::find("a < b <｜DSML｜x"), Some(("a < b <".len(), Special::Dsml)));
        assert_eq!(Special::find("<|DSML|x"), None);
    }
}
