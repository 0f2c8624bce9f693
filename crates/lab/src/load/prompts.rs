//! Prompts of a wanted length out of random words. Random, so that no server's prefix cache knows them: the generator
//! is never seeded the same way twice. How many tokens a word is differs from tokenizer to tokenizer and is learned from
//! the server's own usage counts.

/// Short and common: about one token each in vocabularies made from English text.
const WORDS: [&str; 128] = [
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school",
    "state", "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week",
    "company", "system", "program", "question", "work", "number", "night", "point", "home", "water", "room",
    "mother", "area", "money", "story", "fact", "month", "lot", "right", "study", "book", "eye", "job",
    "word", "business", "issue", "side", "kind", "head", "house", "service", "friend", "father", "power",
    "hour", "game", "line", "end", "member", "law", "car", "city", "name", "team", "minute", "idea", "body",
    "back", "parent", "face", "level", "office", "door", "health", "person", "art", "war", "history",
    "party", "result", "change", "morning", "reason", "girl", "guy", "moment", "air", "teacher", "force",
    "foot", "boy", "age", "policy", "music", "market", "sense", "plan", "food", "sun", "tree", "road",
    "form", "town", "rate", "paper", "space", "ground", "table", "court", "light", "wall", "voice", "bank",
    "film", "church", "field", "river", "wind", "rock", "ship", "farm", "king", "snow", "gold", "rain",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Every prompt is its own.
    Nothing,
    /// All prompts of one length begin with the same seven eighths.
    Prefix,
}

/// Tokens that a prompt of so many words has: `fixed` for what the chat format adds, and so many a word.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WordCost {
    fixed: f64,
    per_word: f64,
}

impl WordCost {
    /// As good as any guess.
    pub const UNKNOWN: WordCost = WordCost { fixed: 0.0, per_word: 1.0 };

    /// Through two prompts of which the server counted the tokens, as `(words, tokens)`.
    pub fn learn(short: (usize, u64), long: (usize, u64)) -> Self {
        let words = long.0.saturating_sub(short.0) as f64;
        let per_word = long.1.saturating_sub(short.1) as f64 / words;
        if words <= 0.0 || per_word <= 0.0 {
            return Self::UNKNOWN;
        }
        WordCost { fixed: (short.1 as f64 - per_word * short.0 as f64).max(0.0), per_word }
    }

    /// Words of a prompt of about `tokens` tokens; at least one.
    pub fn words(&self, tokens: usize) -> usize {
        (((tokens as f64 - self.fixed) / self.per_word).round() as usize).max(1)
    }
}

#[derive(Debug)]
pub struct Prompts {
    random: fastrand::Rng,
    sharing: Sharing,
    shared_seed: u64,
}

impl Prompts {
    pub fn new(sharing: Sharing) -> Self {
        let mut random = fastrand::Rng::new();
        Prompts { shared_seed: random.u64(..), random, sharing }
    }

    /// Another generator of the same sharing: prompts of both share what they are told to.
    pub fn like(other: &Prompts) -> Self {
        Prompts { random: fastrand::Rng::new(), sharing: other.sharing, shared_seed: other.shared_seed }
    }

    pub fn of_words(&mut self, words: usize) -> String {
        let shared = match self.sharing {
            Sharing::Nothing => 0,
            Sharing::Prefix => words * 7 / 8,
        };
        let mut shared_random = fastrand::Rng::with_seed(self.shared_seed);
        let mut text = String::with_capacity(words * 6);
        for index in 0..words {
            let random = if index < shared { &mut shared_random } else { &mut self.random };
            if index > 0 {
                text.push(' ');
            }
            text.push_str(WORDS[random.usize(..WORDS.len())]);
        }
        text
    }

    /// A length around `middle`: between a quarter and seven quarters of it, each as likely, at least 1.
    pub fn length_around(&mut self, middle: usize) -> usize {
        let low = (middle / 4).max(1);
        self.random.usize(low..=(middle.saturating_mul(2) - low).max(low))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_follow_the_servers_counts() {
        let cost = WordCost::learn((16, 16 * 2 + 5), (80, 80 * 2 + 5));
        assert_eq!(cost, WordCost { fixed: 5.0, per_word: 2.0 });
        assert_eq!((cost.words(105), cost.words(3)), (50, 1));
        assert_eq!(WordCost::learn((16, 40), (80, 40)), WordCost::UNKNOWN);
        assert_eq!(WordCost::UNKNOWN.words(12), 12);
    }

    #[test]
    fn prompts_share_what_they_are_told_to() {
        let mut own = Prompts::new(Sharing::Nothing);
        let (a, b) = (own.of_words(64), own.of_words(64));
        assert_eq!((a.split(' ').count(), b.split(' ').count()), (64, 64));
        assert_ne!(a.split(' ').take(16).collect::<Vec<_>>(), b.split(' ').take(16).collect::<Vec<_>>());
        let mut shared = Prompts::new(Sharing::Prefix);
        let (a, b) = (shared.of_words(64), shared.of_words(64));
        assert_eq!(a.split(' ').take(56).collect::<Vec<_>>(), b.split(' ').take(56).collect::<Vec<_>>());
        assert_ne!(a, b);
        let lengths: Vec<usize> = (0..200).map(|_| own.length_around(100)).collect();
        assert!(lengths.iter().all(|length| (25..=175).contains(length)));
        assert_eq!(own.length_around(1), 1);
    }
}
