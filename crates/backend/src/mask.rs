//! Which tokens may be drawn: a bit for each of the vocabulary.

/// Tokens beyond the vocabulary that it was made for are not allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u64>,
}

impl TokenMask {
    /// Allows no token of any vocabulary.
    pub const NOTHING: &TokenMask = &TokenMask { words: Vec::new() };

    /// Allows nothing yet.
    pub fn none(vocab_size: usize) -> Self {
        TokenMask { words: vec![0; vocab_size.div_ceil(64)] }
    }

    /// Allows the whole vocabulary.
    pub fn all(vocab_size: usize) -> Self {
        let mut mask = TokenMask { words: vec![u64::MAX; vocab_size.div_ceil(64)] };
        if let Some(last) = mask.words.last_mut() {
            *last >>= (64 - vocab_size % 64) % 64;
        }
        mask
    }

    /// Takes bits as others keep them: 32 a word, the lowest first. Bits beyond the vocabulary are dropped.
    pub fn from_halves(vocab_size: usize, halves: &[u32]) -> Self {
        let mut mask = TokenMask::all(vocab_size);
        for (index, word) in mask.words.iter_mut().enumerate() {
            let half = |at: usize| u64::from(halves.get(at).copied().unwrap_or(0));
            *word &= half(2 * index) | half(2 * index + 1) << 32;
        }
        mask
    }

    /// Allows `token`; nothing happens beyond the vocabulary.
    pub fn allow(&mut self, token: u32) {
        if let Some(word) = self.words.get_mut(token as usize / 64) {
            *word |= 1 << (token % 64);
        }
    }

    pub fn forbid(&mut self, token: u32) {
        if let Some(word) = self.words.get_mut(token as usize / 64) {
            *word &= !(1 << (token % 64));
        }
    }

    pub fn allows(&self, token: u32) -> bool {
        self.words.get(token as usize / 64).is_some_and(|word| word >> (token % 64) & 1 == 1)
    }

    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::TokenMask;

    #[test]
    fn only_what_was_allowed_is() {
        let mut mask = TokenMask::none(70);
        assert!(mask.is_empty());
        for token in [0, 63, 64, 69, 1000] {
            mask.allow(token);
        }
        let allowed: Vec<u32> = (0..2000).filter(|token| mask.allows(*token)).collect();
        assert_eq!(allowed, [0, 63, 64, 69]);
        for vocab_size in [0, 1, 63, 64, 65, 128] {
            let all = TokenMask::all(vocab_size);
            assert!(
                (0..300).all(|token| all.allows(token) == ((token as usize) < vocab_size)),
                "{vocab_size}"
            );
        }
    }

    #[test]
    fn bits_of_others_are_read_and_bits_beyond_the_vocabulary_dropped() {
        let mut mask = TokenMask::from_halves(66, &[1, 1 << 31, u32::MAX]);
        assert_eq!((0..200).filter(|token| mask.allows(*token)).collect::<Vec<u32>>(), [0, 63, 64, 65]);
        mask.forbid(64);
        mask.forbid(1000);
        assert_eq!((0..200).filter(|token| mask.allows(*token)).collect::<Vec<u32>>(), [0, 63, 65]);
        assert!(TokenMask::from_halves(200, &[]).is_empty());
    }
}
