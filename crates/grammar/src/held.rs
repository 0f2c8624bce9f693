//! An answer's course under a grammar: thinking, which is free; free text, if only calls are held; the grammar; its
//! end.
//!
//! Where an answer is owed, the end token can't come while the model still thinks. Where only calls are held, a
//! block that the model writes while it thinks could come to count; so the DSML token can't come there.

use crate::error::told;
use crate::vocabulary::Vocabulary;
use llguidance::Matcher;
use overshot_backend::TokenMask;
use overshot_chat::Start;
use overshot_engine::Constraint;
use std::fmt;
use std::sync::Arc;

/// Where the grammar takes over, once the thinking is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begins {
    AtOnce,
    /// Behind the first DSML token. It comes only behind a `<`.
    AtMarkup,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Thinking,
    FreeText(LastToken),
    Held,
    /// The end token came, and did not end the request.
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastToken {
    OpensTag,
    Other,
}

pub(crate) struct HeldAnswer {
    vocabulary: Arc<Vocabulary>,
    matcher: Matcher,
    begins: Begins,
    phase: Phase,
    /// What may come at the end, the model's end token among them.
    ends: Vec<u32>,
}

impl HeldAnswer {
    pub fn new(
        vocabulary: Arc<Vocabulary>,
        matcher: Matcher,
        begins: Begins,
        start: Start,
        ends: &[u32],
    ) -> Self {
        let ends = ends.iter().copied().chain([vocabulary.end]).collect();
        let phase = match start {
            Start::Reasoning => Phase::Thinking,
            Start::Content => Self::behind_thinking(begins),
        };
        HeldAnswer { vocabulary, matcher, begins, phase, ends }
    }

    fn behind_thinking(begins: Begins) -> Phase {
        match begins {
            Begins::AtOnce => Phase::Held,
            Begins::AtMarkup => Phase::FreeText(LastToken::Other),
        }
    }

    fn grammar_mask(&mut self) -> Result<TokenMask, String> {
        let bits = self.matcher.compute_mask_or_eos().map_err(|error| told(&error))?;
        let mut mask = TokenMask::from_halves(self.vocabulary.vocab_size, bits.as_slice());
        if mask.allows(self.vocabulary.end) {
            self.ends.iter().for_each(|token| mask.allow(*token));
        }
        Ok(mask)
    }
}

impl Constraint for HeldAnswer {
    fn mask(&mut self) -> Result<Option<TokenMask>, String> {
        match self.phase {
            Phase::Thinking => Ok(Some(match self.begins {
                Begins::AtOnce => self.vocabulary.all_but_end.clone(),
                Begins::AtMarkup => self.vocabulary.all_but_dsml.clone(),
            })),
            Phase::FreeText(LastToken::OpensTag) => Ok(None),
            Phase::FreeText(LastToken::Other) => Ok(Some(self.vocabulary.all_but_dsml.clone())),
            Phase::Held => self.grammar_mask().map(Some),
            Phase::Over => {
                let mut mask = TokenMask::none(self.vocabulary.vocab_size);
                self.ends.iter().for_each(|token| mask.allow(*token));
                Ok(Some(mask))
            }
        }
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        let vocabulary = &self.vocabulary;
        self.phase = match self.phase {
            Phase::Thinking if token == vocabulary.think_close => Self::behind_thinking(self.begins),
            Phase::Thinking => Phase::Thinking,
            Phase::FreeText(LastToken::OpensTag) if token == vocabulary.dsml => Phase::Held,
            Phase::FreeText(_) if token == vocabulary.end => Phase::Over,
            Phase::FreeText(_) if vocabulary.opens_tag(token) => Phase::FreeText(LastToken::OpensTag),
            Phase::FreeText(_) => Phase::FreeText(LastToken::Other),
            Phase::Held if token == vocabulary.end => Phase::Over,
            Phase::Held => {
                self.matcher.consume_token(token).map_err(|error| told(&error))?;
                Phase::Held
            }
            Phase::Over => Phase::Over,
        };
        Ok(())
    }
}

impl fmt::Debug for HeldAnswer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("HeldAnswer")
            .field("begins", &self.begins)
            .field("phase", &self.phase)
            .finish_non_exhaustive()
    }
}
