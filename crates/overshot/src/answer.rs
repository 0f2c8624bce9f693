//! What is delivered of an answer while it is parsed: everything, up to a stop string in its text. Thinking and
//! tool calls hold no stop strings: cutting them would lose their meaning.

use overshot_chat::{Delta, FinishReason, ParsedMessage, StopStrings};

/// Hands deltas on and keeps the message that they make.
pub struct Delivery {
    stops: StopStrings,
    message: ParsedMessage,
}

impl Delivery {
    pub fn new(stops: &[String]) -> Self {
        Delivery { stops: StopStrings::new(stops.to_vec()), message: ParsedMessage::default() }
    }

    /// Whether a stop string came: nothing is delivered any more.
    pub fn has_stopped(&self) -> bool {
        self.stops.matched().is_some()
    }

    pub fn deliver(
        &mut self,
        deltas: &[Delta],
        on_delta: &mut impl FnMut(&Delta) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for delta in deltas {
            if self.has_stopped() {
                return Ok(());
            }
            match delta {
                Delta::Content(text) => {
                    let free = self.stops.push(text);
                    self.hand_on(Delta::Content(free), on_delta)?;
                }
                other => {
                    // No stop string reaches over the end of the text.
                    self.release(on_delta)?;
                    self.hand_on(other.clone(), on_delta)?;
                }
            }
        }
        Ok(())
    }

    /// Delivers what was held back as the possible beginning of a stop string.
    pub fn finish(
        mut self,
        reason: FinishReason,
        on_delta: &mut impl FnMut(&Delta) -> anyhow::Result<()>,
    ) -> anyhow::Result<ParsedMessage> {
        self.release(on_delta)?;
        self.message.finish_reason = if self.has_stopped() { FinishReason::Stop } else { reason };
        Ok(self.message)
    }

    fn release(&mut self, on_delta: &mut impl FnMut(&Delta) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let held = self.stops.finish();
        self.hand_on(Delta::Content(held), on_delta)
    }

    fn hand_on(
        &mut self,
        delta: Delta,
        on_delta: &mut impl FnMut(&Delta) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if matches!(&delta, Delta::Content(text) if text.is_empty()) {
            return Ok(());
        }
        self.message.apply(&delta);
        on_delta(&delta)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered(stops: &[&str], deltas: &[Delta]) -> (Vec<Delta>, ParsedMessage) {
        let stops: Vec<String> = stops.iter().map(|stop| stop.to_string()).collect();
        let (mut delivery, mut seen) = (Delivery::new(&stops), Vec::new());
        let mut on_delta = |delta: &Delta| {
            seen.push(delta.clone());
            Ok(())
        };
        delivery.deliver(deltas, &mut on_delta).unwrap();
        let message = delivery.finish(FinishReason::Length, &mut on_delta).unwrap();
        (seen, message)
    }

    fn content(text: &str) -> Delta {
        Delta::Content(text.into())
    }

    #[test]
    fn text_ends_at_a_stop_string_and_thinking_does_not() {
        let thinking = Delta::Reasoning("END is not the end".into());
        let deltas = [thinking.clone(), content("one E"), content("ND two"), content("three")];
        let (seen, message) = delivered(&["END"], &deltas);
        assert_eq!(seen, [thinking, content("one ")]);
        assert_eq!((message.content.as_str(), message.finish_reason), ("one ", FinishReason::Stop));
    }

    #[test]
    fn what_never_became_a_stop_string_is_delivered_before_what_follows() {
        let call = Delta::ToolCallStart { index: 0, id: "a".into(), name: "f".into() };
        let deltas = [content("one E"), call.clone()];
        assert_eq!(delivered(&["END"], &deltas).0, [content("one "), content("E"), call]);
        let (seen, message) = delivered(&["END"], &deltas[..1]);
        assert_eq!(seen, [content("one "), content("E")]);
        assert_eq!((message.content.as_str(), message.finish_reason), ("one E", FinishReason::Length));
    }
}
