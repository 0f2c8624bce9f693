//! One answer, cut into what its decode steps yield.

use std::time::Duration;

/// What one decode step yields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScriptStep {
    /// How long the step takes.
    pub delay: Duration,
    /// Several are what a verified draft would give.
    pub tokens: Vec<u32>,
}

/// An answer to play. Addressed by the number of tokens before, not by steps taken, so that it does not matter how
/// many tokens of a step somebody took, or whether a position is computed twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    tokens: Vec<u32>,
    /// Offset behind each step's last token, and the step's delay.
    steps: Vec<(usize, Duration)>,
}

impl Script {
    /// Steps without tokens are left out.
    pub fn new(steps: impl IntoIterator<Item = ScriptStep>) -> Self {
        let mut script = Script::default();
        for step in steps.into_iter().filter(|step| !step.tokens.is_empty()) {
            script.tokens.extend(step.tokens);
            script.steps.push((script.tokens.len(), step.delay));
        }
        script
    }

    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The rest of the step that token `offset` belongs to; empty behind the end.
    pub fn step_from(&self, offset: usize) -> &[u32] {
        let index = self.steps.partition_point(|(end, _)| *end <= offset);
        self.steps.get(index).map_or(&[], |(end, _)| &self.tokens[offset..*end])
    }

    /// The delay of the step that begins at `offset`; whoever goes on within a step does not wait again.
    pub fn delay_at(&self, offset: usize) -> Duration {
        let index = self.steps.partition_point(|(end, _)| *end <= offset);
        let begin = index.checked_sub(1).map_or(0, |before| self.steps[before].0);
        match self.steps.get(index) {
            Some((_, delay)) if begin == offset => *delay,
            _ => Duration::ZERO,
        }
    }

    pub fn most_tokens_per_step(&self) -> usize {
        let begins = std::iter::once(0).chain(self.steps.iter().map(|(end, _)| *end));
        self.steps.iter().zip(begins).map(|((end, _), begin)| end - begin).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_found_by_the_tokens_before_them() {
        let delay = Duration::from_millis;
        let step = |delay, tokens: &[u32]| ScriptStep { delay, tokens: tokens.to_vec() };
        let script = Script::new([step(delay(5), &[1, 2, 3]), step(delay(9), &[]), step(delay(7), &[4])]);
        let played: Vec<&[u32]> = (0..6).map(|offset| script.step_from(offset)).collect();
        assert_eq!(played, [&[1, 2, 3][..], &[2, 3], &[3], &[4], &[], &[]]);
        let delays: Vec<Duration> = (0..5).map(|offset| script.delay_at(offset)).collect();
        assert_eq!(delays, [delay(5), delay(0), delay(0), delay(7), delay(0)]);
        assert_eq!(script.most_tokens_per_step(), 3);
        assert_eq!(Script::default().most_tokens_per_step(), 0);
    }
}
