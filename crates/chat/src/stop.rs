//! Stop strings: text passes until one of them appears; that one and what follows are dropped. Whatever
//! could still become a stop string is held back, so nothing that must be dropped is ever sent.
//!
//! The match that is complete first wins, and of those that end together the longest: this can be decided
//! character by character, so it does not depend on how the text was cut.

#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    /// The end of the text so far that may still turn into a stop string.
    held: String,
    matched: Option<usize>,
}

impl StopStrings {
    /// Empty strings in `stops` never match.
    pub fn new(stops: Vec<String>) -> StopStrings {
        StopStrings { stops, held: String::new(), matched: None }
    }

    /// The text that can be sent now. Once a stop string has matched, always empty.
    pub fn push(&mut self, text: &str) -> String {
        let mut sent = String::new();
        for c in text.chars() {
            if self.matched.is_some() {
                break;
            }
            self.held.push(c);
            match self.ending_match() {
                Some(index) => {
                    self.matched = Some(index);
                    sent.push_str(&self.held[..self.held.len() - self.stops[index].len()]);
                    self.held.clear();
                }
                None => sent.extend(self.held.drain(..self.free_bytes())),
            }
        }
        sent
    }

    /// The text held back that turned out to be free, at the end of the output.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Which stop string ended the text, as its index.
    pub fn matched(&self) -> Option<usize> {
        self.matched
    }

    /// The stop string that ended the text.
    pub fn matched_text(&self) -> Option<&str> {
        self.matched.and_then(|index| self.stops.get(index)).map(String::as_str)
    }

    fn ending_match(&self) -> Option<usize> {
        let ends = |stop: &String| !stop.is_empty() && self.held.ends_with(stop.as_str());
        (0..self.stops.len())
            .filter(|&index| ends(&self.stops[index]))
            .max_by_key(|&index| self.stops[index].len())
    }

    /// Length of the part of `held` at its start that is in no stop string's beginning.
    fn free_bytes(&self) -> usize {
        let begins = |tail: &str| self.stops.iter().any(|stop| stop.starts_with(tail));
        self.held
            .char_indices()
            .map(|(at, _)| at)
            .find(|&at| begins(&self.held[at..]))
            .unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], chunks: &[&str]) -> (String, Option<usize>) {
        let mut filter = StopStrings::new(stops.iter().map(|stop| stop.to_string()).collect());
        let mut text: String = chunks.iter().map(|chunk| filter.push(chunk)).collect();
        text.push_str(&filter.finish());
        (text, filter.matched())
    }

    #[test]
    fn cuts_at_the_first_complete_match() {
        assert_eq!(run(&["END", "###"], &["one###two END"]), ("one".into(), Some(1)));
        assert_eq!(run(&["abcd", "bc"], &["xabcd"]), ("xa".into(), Some(1)));
        assert_eq!(run(&["c", "bc"], &["abc"]), ("a".into(), Some(1)));
        assert_eq!(run(&[""], &["abc"]), ("abc".into(), None));
        assert_eq!(run(&[], &["abc"]), ("abc".into(), None));
    }

    #[test]
    fn a_begun_stop_string_is_sent_at_the_end_only() {
        let mut filter = StopStrings::new(vec!["aab".into()]);
        assert_eq!(filter.push("xaaa"), "xa");
        assert_eq!(filter.push("c"), "aac");
        assert_eq!(filter.push("aa"), "");
        assert_eq!(filter.finish(), "aa");
    }

    #[test]
    fn chunking_changes_nothing() {
        let seed = 3;
        let mut random = fastrand::Rng::with_seed(seed);
        for case in 0..2000 {
            let mut word = |max: usize| {
                (0..random.usize(1..=max)).map(|_| ['a', 'b', 'é'][random.usize(0..3)]).collect()
            };
            let stops: Vec<String> = (0..3).map(|_| word(4)).collect();
            let text: String = word(20);
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let whole = run(&stops, &[&text]);
            let first_end = stops.iter().filter_map(|stop| Some(text.find(stop)? + stop.len())).min();
            assert_eq!(whole.1.is_some(), first_end.is_some());
            for (at, _) in text.char_indices() {
                let (left, right) = text.split_at(at);
                assert_eq!(
                    run(&stops, &[left, right]),
                    whole,
                    "seed {seed} case {case} {stops:?} {text} at {at}"
                );
            }
        }
    }
}
