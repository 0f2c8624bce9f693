//! What is delivered of an answer while it is parsed: everything, up to a stop string in its text. Thinking and
//! tool calls hold no stop strings: cutting them would lose their meaning.

use crate::{Delta, FinishReason, Finished, StopStrings};

/// Why an answer ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    pub reason: FinishReason,
    /// The stop string that cut the text, whatever the reason: a call may have been finished before it.
    pub stop_string: Option<String>,
}

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
        self.stops.as_ref().is_some_and(|stops| stops.matched().is_some())
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
    pub fn finish(mut self, finished: Finished) -> (Vec<Delta>, Ending) {
        let mut deltas = self.push(finished.deltas);
        if let Some(stops) = &mut self.stops {
            push_content(stops.finish(), &mut deltas);
        }
        let stop_string = self.stops.as_ref().and_then(StopStrings::matched_text).map(str::to_owned);
        let reason = match finished.message.finish_reason {
            FinishReason::Length if stop_string.is_some() => FinishReason::Stop,
            reason => reason,
        };
        (deltas, Ending { reason, stop_string })
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

    fn delivered(stops: &[&str], deltas: &[Delta]) -> (Vec<Delta>, Ending) {
        let stops: Vec<String> = stops.iter().map(|stop| stop.to_string()).collect();
        let mut delivery = Delivery::new(&stops);
        let mut seen = delivery.push(deltas.to_vec());
        let message = ParsedMessage { finish_reason: FinishReason::Length, ..ParsedMessage::default() };
        let (last, ending) = delivery.finish(Finished { deltas: Vec::new(), message });
        seen.extend(last);
        (seen, ending)
    }

    fn content(text: &str) -> Delta {
        Delta::Content(text.into())
    }

    #[test]
    fn text_ends_at_a_stop_string_and_thinking_does_not() {
        let thinking = Delta::Reasoning("END is not the end".into());
        let deltas = [thinking.clone(), content("one E"), content("ND two"), content("three")];
        let ending = Ending { reason: FinishReason::Stop, stop_string: Some("END".into()) };
        assert_eq!(delivered(&["no", "END"], &deltas), (vec![thinking, content("one ")], ending));
    }

    #[test]
    fn what_never_became_a_stop_string_is_delivered_before_what_follows() {
        let call = Delta::ToolCallStart { index: 0, id: "a".into(), name: "f".into() };
        let deltas = [content("one E"), call.clone()];
        assert_eq!(delivered(&["END"], &deltas).0, [content("one "), content("E"), call]);
        assert_eq!(
            delivered(&["END"], &deltas[..1]),
            (vec![content("one "), content("E")], Ending { reason: FinishReason::Length, stop_string: None })
        );
    }

    #[test]
    fn without_stop_strings_everything_passes() {
        let deltas = [content("a"), content("b")];
        let ending = Ending { reason: FinishReason::Length, stop_string: None };
        assert_eq!(delivered(&[], &deltas), (deltas.to_vec(), ending));
    }
}
