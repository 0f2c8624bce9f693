//! A grammar whose masks depend on every token before: a late or a lost one changes what may be drawn.

use super::model::VOCAB;
use overshot_backend::TokenMask;
use overshot_engine::Constraint;

#[derive(Clone, Debug)]
pub struct Grammar {
    /// Tokens that it lets pass before it begins, as before the end of a thinking part.
    pub free_tokens: usize,
    /// It gives up after so many.
    pub breaks_after: usize,
    state: u32,
    taken: usize,
}

impl Grammar {
    pub fn new(free_tokens: usize, breaks_after: usize) -> Self {
        Grammar { free_tokens, breaks_after, state: 1, taken: 0 }
    }

    pub fn allowed(&mut self) -> Result<Option<TokenMask>, String> {
        if self.taken < self.free_tokens {
            return Ok(None);
        }
        let mut mask = TokenMask::none(VOCAB);
        (0..VOCAB as u32).filter(|token| (token + self.state) % 5 < 2).for_each(|token| mask.allow(token));
        Ok(Some(mask))
    }

    pub fn take(&mut self, token: u32) -> Result<(), String> {
        self.taken += 1;
        self.state = (self.state * 7 + token) % 1009;
        if self.taken == self.breaks_after { Err("it gave up on purpose".into()) } else { Ok(()) }
    }
}

impl Constraint for Grammar {
    fn mask(&mut self) -> Result<Option<TokenMask>, String> {
        self.allowed()
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.take(token)
    }
}
