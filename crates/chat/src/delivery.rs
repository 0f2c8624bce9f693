//! What is delivered of an answer while it is parsed: everything, up to a stop string in its text. Thinking and
//! tool calls hold no stop strings: cutting them would lose their meaning.

use crate::{Delta, FinishReason, Finished, StopStrings};

/// Stands between a parser and whoever shows or sends its deltas.
#[derive(Clone, Debug, Default)]
pub struct Delivery {
    /// `None` when nothing can stop the text: deltas then pass untouched.
    stops: Option<StopStrings>,
}

impl Delivery {
    /// Empty strings in `stops` never match.
    pub fn new(stops: &[String]) -> Delivery {
        Delivery { stops: (!stops.is_empty()).then(|| StopStrings::new(stops.to_vec())) }
    }

    /// Whether a stop string came: nothing is delivered any more.
    pub fn has_stopped(&self) -> bool {
        self.matched().is_some()
    }

    /// Which stop string ended the text, as its index.
    pub fn matched(&self) -> Option<usize> {
        self.stops.as_ref().and_then(StopStrings::matched)
    }

    /// What can be delivered now.
    pub fn push(&mut self, deltas: Vec<Delta>) -> Vec<Delta> {
        let Some(stops) = &mut self.stops else { return deltas };
        let mut free = Vec::with_capacity(deltas.len());
        for delta in deltas {
            if stops.matched().is_some() {
                break;
            }
            match delta {
                Delta::Content(text) => push_content(stops.push(&text), &mut free),
                other => {
                    // No stop string reaches over the end of the text.
                    push_content(stops.finish(), &mut free);
                    free.push(other);
                }
            }
        }
        free
    }

    /// The last deltas, those held back as the possible beginning of a stop string among them, and why the answer
    /// ended.
    pub fn finish(mut self, finished: Finished) -> (Vec<Delta>, FinishReason) {
        let mut deltas = self.push(finished.deltas);
        if let Some(stops) = &mut self.stops {
            push_content(stops.finish(), &mut deltas);
        }
        let reason = match finished.message.finish_reason {
            FinishReason::Length if self.has_stopped() => FinishReason::Stop,
            reason => reason,
        };
        (deltas, reason)
    }
}

fn push_content(text: String, deltas: &mut Vec<Delta>) {
    if !text.is_empty() {
        deltas.push(Delta::Content(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ParsedMessage;

    fn delivered(stops: &[&str], deltas: &[Delta]) -> (Vec<Delta>, FinishReason) {
        let stops: Vec<String> = stops.iter().map(|stop| stop.to_string()).collect();
        let mut delivery = Delivery::new(&stops);
        let mut seen = delivery.push(deltas.to_vec());
        let message = ParsedMessage { finish_reason: FinishReason::Length, ..ParsedMessage::default() };
        let (last, reason) = delivery.finish(Finished { deltas: Vec::new(), message });
        seen.extend(last);
        (seen, reason)
    }

    fn content(text: &str) -> Delta {
        Delta::Content(text.into())
    }

    #[test]
    fn text_ends_at_a_stop_string_and_thinking_does_not() {
        let thinking = Delta::Reasoning("END is not the end".into());
        let deltas = [thinking.clone(), content("one E"), content("ND two"), content("three")];
        assert_eq!(delivered(&["END"], &deltas), (vec![thinking, content("one ")], FinishReason::Stop));
    }

    #[test]
    fn what_never_became_a_stop_string_is_delivered_before_what_follows() {
        let call = Delta::ToolCallStart { index: 0, id: "a".into(), name: "f".into() };
        let deltas = [content("one E"), call.clone()];
        assert_eq!(delivered(&["END"], &deltas).0, [content("one "), content("E"), call]);
        assert_eq!(
            delivered(&["END"], &deltas[..1]),
            (vec![content("one "), content("E")], FinishReason::Length)
        );
    }

    #[test]
    fn without_stop_strings_everything_passes() {
        let deltas = [content("a"), content("b")];
        assert_eq!(delivered(&[], &deltas), (deltas.to_vec(), FinishReason::Length));
    }
}
