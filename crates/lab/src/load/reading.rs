//! From answers to numbers: pure functions of times, so that tests need no clock and no server.

use super::exchange::{Answer, End};
use super::failure::Failure;
use crate::stats::Sample;
use crate::{Measurement, Metric};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Fewer deliveries a stream say little about a step.
const DELIVERIES_MIN: usize = 8;

/// Texts that end within a character are held back by servers, so slightly more than 1 is common.
const TOKENS_PER_DELIVERY_OF_NOTE: f64 = 1.05;

/// All streams were sent at the same time. Counts from when the last of them began to answer until the first of them ended: all
/// of them decode then, and nothing else happens. Streams that failed are left out and counted as errors.
pub fn read_decode(streams: usize, answers: &[Answer]) -> Measurement {
    let mut measurement = Measurement::default();
    let good = count_errors(answers, &mut measurement);
    let answered: Vec<&Answer> = good.into_iter().filter(|answer| !answer.arrivals.is_empty()).collect();
    let (Some(from), Some(to)) = (
        answered.iter().filter_map(|answer| answer.arrivals.first()).max(),
        answered.iter().filter_map(|answer| answer.arrivals.last()).min(),
    ) else {
        return measurement;
    };
    first_tokens(&answered, &mut measurement);
    let gaps = gaps_between(&answered, *from, *to);
    if answered.len() < streams {
        measurement.notes.push(format!("of {streams} streams {} were answered", answered.len()));
    }
    if gaps.len() < DELIVERIES_MIN * answered.len() {
        // The server runs fewer streams at once, or answers are too short: no step has them all.
        let (Some(first), Some(last)) = (
            answered.iter().filter_map(|answer| answer.arrivals.first()).min(),
            answered.iter().filter_map(|answer| answer.arrivals.last()).max(),
        ) else {
            return measurement;
        };
        count_tokens(&answered, *first, *last, &mut measurement);
        measurement.notes.push(format!(
            "the {} streams were hardly ever answered all at once: tok/s is over the whole run, and no step time is told; \
             longer answers (--max-tokens) may help, unless the server runs fewer at a time",
            answered.len()
        ));
        return measurement;
    }
    count_tokens(&answered, *from, *to, &mut measurement);
    token_gaps(&gaps, &mut measurement);
    for (gap, step) in [(Metric::TokenGapMs, Metric::StepMs), (Metric::TokenGapMsP99, Metric::StepMsP99)] {
        if let Some(ms) = measurement.get(gap) {
            measurement.set(step, ms);
        }
    }
    measurement
}

/// One prompt after the other, each answered by one token.
pub fn read_prefill(asked_tokens: usize, answers: &[Answer]) -> Measurement {
    let mut measurement = Measurement::default();
    let good = count_errors(answers, &mut measurement);
    first_tokens(&good, &mut measurement);
    // A p99 of three prompts would be their slowest.
    measurement.metrics.remove(&Metric::FirstTokenMsP99);
    let counted: Vec<f64> =
        good.iter().filter_map(|answer| answer.usage).map(|usage| usage.prompt_tokens as f64).collect();
    let tokens = match Sample::new("prompt tokens", counted) {
        Ok(sample) if sample.mean() > 0.0 => sample.mean(),
        _ => {
            measurement.notes.push("the server does not count prompt tokens: their number is a guess".into());
            asked_tokens as f64
        }
    };
    if let Some(ms) = measurement.get(Metric::FirstTokenMs) {
        measurement.set(Metric::PromptTokens, tokens);
        measurement.set(Metric::PromptTokensPerS, tokens / ms * 1e3);
    }
    measurement
}

/// Clients without a pause. Counts what came within the window; first tokens of requests that were sent in it.
pub fn read_mixed(answers: &[Answer], from: Instant, to: Instant) -> Measurement {
    let mut measurement = Measurement::default();
    let ended: Vec<Answer> = answers.iter().filter(|answer| answer.ended > from).cloned().collect();
    let good = count_errors(&ended, &mut measurement);
    let sent: Vec<&Answer> = good.iter().copied().filter(|answer| answer.sent >= from).collect();
    first_tokens(&sent, &mut measurement);
    let whole = good.iter().filter(|answer| answer.end == End::Whole && answer.ended <= to).count();
    measurement.set(Metric::RequestsPerS, whole as f64 / (to - from).as_secs_f64());
    count_tokens(&good, from, to, &mut measurement);
    token_gaps(&gaps_between(&good, from, to), &mut measurement);
    measurement
}

/// Those that did not fail. Failures are counted by kind, and one of each kind is quoted.
fn count_errors<'a>(answers: &'a [Answer], measurement: &mut Measurement) -> Vec<&'a Answer> {
    let mut kinds = BTreeSet::new();
    let mut good = Vec::with_capacity(answers.len());
    for answer in answers {
        let End::Failed(failure) = &answer.end else {
            good.push(answer);
            continue;
        };
        *measurement.errors.entry(failure.kind()).or_default() += 1;
        if kinds.insert(failure.kind()) {
            measurement.notes.push(format!("a request failed: {failure}"));
        }
    }
    measurement.set(Metric::Requests, good.len() as f64);
    good
}

/// The first failure, when nothing else came.
pub fn only_failures(answers: &[Answer]) -> Option<&Failure> {
    let mut first = None;
    for answer in answers {
        match &answer.end {
            End::Failed(failure) => first = first.or(Some(failure)),
            End::Whole | End::Cut => return None,
        }
    }
    first
}

fn first_tokens(answers: &[&Answer], measurement: &mut Measurement) {
    let waited = answers.iter().filter_map(|answer| Some(*answer.arrivals.first()? - answer.sent));
    if let Ok(sample) = Sample::new("times to the first token", waited.map(ms).collect()) {
        measurement.set(Metric::FirstTokenMs, sample.median());
        measurement.set(Metric::FirstTokenMsP99, sample.quantile(0.99));
    }
}

/// Between deliveries of one answer, both within the window, in milliseconds.
fn gaps_between(answers: &[&Answer], from: Instant, to: Instant) -> Vec<f64> {
    let pairs = answers.iter().flat_map(|answer| answer.arrivals.windows(2));
    pairs.filter(|pair| pair[0] >= from && pair[1] <= to).map(|pair| ms(pair[1] - pair[0])).collect()
}

fn token_gaps(gaps: &[f64], measurement: &mut Measurement) {
    if let Ok(sample) = Sample::new("gaps between deliveries", gaps.to_vec()) {
        measurement.set(Metric::TokenGapMs, sample.median());
        measurement.set(Metric::TokenGapMsP99, sample.quantile(0.99));
    }
}

/// Tokens that came after `from` and until `to`: deliveries, each worth as many tokens as the server's count of the whole
/// answer says. An answer that was cut is worth what the others are.
fn count_tokens(answers: &[&Answer], from: Instant, to: Instant, measurement: &mut Measurement) {
    let worth = |answer: &Answer| {
        let tokens = answer.usage.map(|usage| usage.completion_tokens).filter(|tokens| *tokens > 0)?;
        (!answer.arrivals.is_empty()).then(|| tokens as f64 / answer.arrivals.len() as f64)
    };
    let counted: Vec<f64> = answers.iter().filter_map(|answer| worth(answer)).collect();
    let usual = match Sample::new("tokens per delivery", counted) {
        Ok(sample) => sample.median(),
        Err(_) => {
            measurement
                .notes
                .push("the server does not count tokens: every delivery with text is taken for one".into());
            1.0
        }
    };
    let in_window = |answer: &Answer| answer.arrivals.iter().filter(|at| **at > from && **at <= to).count();
    let tokens: f64 =
        answers.iter().map(|answer| in_window(answer) as f64 * worth(answer).unwrap_or(usual)).sum();
    let seconds = (to - from).as_secs_f64();
    measurement.set(Metric::AnswerTokens, tokens);
    measurement.set(Metric::MeasuredS, seconds);
    measurement.set(Metric::TokensPerS, tokens / seconds);
    measurement.set(Metric::TokensPerDelivery, usual);
    if usual > TOKENS_PER_DELIVERY_OF_NOTE {
        let note = "deliveries carry several tokens, some or all: step and gap times are those of deliveries";
        measurement.notes.push(note.into());
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::delivery::Usage;

    /// `arrivals` in ms after the start of the test's time.
    fn answer(start: Instant, sent: u64, arrivals: impl IntoIterator<Item = u64>, tokens: u64) -> Answer {
        let at = |ms| start + Duration::from_millis(ms);
        let arrivals: Vec<Instant> = arrivals.into_iter().map(at).collect();
        let usage = (tokens > 0).then_some(Usage { prompt_tokens: 100, completion_tokens: tokens });
        let ended = arrivals.last().copied().unwrap_or(at(sent));
        Answer { sent: at(sent), arrivals, ended, usage, end: End::Whole }
    }

    fn steps(first: u64, count: u64) -> impl Iterator<Item = u64> {
        (0..count).map(move |index| first + index * 10)
    }

    fn near(measurement: &Measurement, metric: Metric, value: f64) {
        let found = measurement.get(metric).unwrap();
        assert!((found - value).abs() < 1e-6 * value.max(1.0), "{metric:?}: {found}, not {value}");
    }

    #[test]
    fn decode_counts_while_all_streams_decode() {
        let start = Instant::now();
        // Two streams at 10 ms a step, the second 200 ms behind; both alone for a while.
        let answers = [answer(start, 0, steps(50, 60), 60), answer(start, 0, steps(250, 60), 60)];
        let measurement = read_decode(2, &answers);
        near(&measurement, Metric::StepMs, 10.0);
        near(&measurement, Metric::TokensPerS, 200.0);
        near(&measurement, Metric::MeasuredS, 0.39);
        near(&measurement, Metric::FirstTokenMs, 150.0);
        near(&measurement, Metric::TokensPerDelivery, 1.0);
        assert!(measurement.notes.is_empty(), "{:?}", measurement.notes);
    }

    #[test]
    fn deliveries_are_worth_what_the_server_counts() {
        let start = Instant::now();
        let measurement = read_decode(1, &[answer(start, 0, steps(50, 31), 93)]);
        near(&measurement, Metric::TokensPerS, 300.0);
        near(&measurement, Metric::TokensPerDelivery, 3.0);
        assert!(measurement.notes[0].contains("several tokens"));
        let measurement = read_decode(1, &[answer(start, 0, steps(50, 31), 0)]);
        near(&measurement, Metric::TokensPerS, 100.0);
        assert!(measurement.notes[0].contains("does not count tokens"));
    }

    #[test]
    fn streams_that_never_ran_at_once_give_no_step_time() {
        let start = Instant::now();
        let answers = [answer(start, 0, steps(0, 20), 20), answer(start, 0, steps(500, 20), 20)];
        let measurement = read_decode(2, &answers);
        assert_eq!(measurement.get(Metric::StepMs), None);
        near(&measurement, Metric::TokensPerS, 39.0 / 0.69);
        assert!(measurement.notes[0].contains("hardly ever"));
        assert_eq!(read_decode(2, &[]).get(Metric::TokensPerS), None);
    }

    #[test]
    fn failures_are_counted_and_left_out() {
        let start = Instant::now();
        let failed = |status| Answer {
            end: End::Failed(Failure::Status { status, sentence: "no".into(), retry_after: None }),
            ..answer(start, 0, [], 0)
        };
        let answers = [answer(start, 0, steps(50, 30), 30), failed(429), failed(429), failed(500)];
        let measurement = read_decode(4, &answers);
        near(&measurement, Metric::TokensPerS, 100.0);
        assert_eq!(measurement.errors["status 429"], 2);
        assert_eq!(measurement.errors["status 500"], 1);
        assert!(measurement.notes.iter().any(|note| note == "of 4 streams 1 were answered"));
        assert!(only_failures(&answers).is_none());
        assert_eq!(only_failures(&answers[1..]).unwrap().kind(), "status 429");
    }

    #[test]
    fn prefill_is_tokens_over_time_to_the_first() {
        let start = Instant::now();
        let answers = [answer(start, 0, [40], 1), answer(start, 100, [150], 1), answer(start, 200, [260], 1)];
        let measurement = read_prefill(90, &answers);
        near(&measurement, Metric::FirstTokenMs, 50.0);
        near(&measurement, Metric::PromptTokensPerS, 2000.0);
        let guessed = read_prefill(90, &[answer(start, 0, [45], 0)]);
        near(&guessed, Metric::PromptTokensPerS, 2000.0);
        assert!(guessed.notes[0].contains("guess"));
    }

    #[test]
    fn a_mixed_load_counts_what_falls_into_the_window() {
        let start = Instant::now();
        let mut cut = answer(start, 600, steps(650, 60), 0);
        cut.end = End::Cut;
        let answers = [answer(start, 0, steps(50, 20), 20), answer(start, 250, steps(300, 30), 60), cut];
        let (from, to) = (start + Duration::from_millis(200), start + Duration::from_millis(1200));
        let measurement = read_mixed(&answers, from, to);
        // 4 single tokens, 30 deliveries of 2, and 56 of the cut one at the median of 1 and 2.
        near(&measurement, Metric::TokensPerS, 4.0 + 60.0 + 56.0 * 1.5);
        near(&measurement, Metric::RequestsPerS, 2.0);
        near(&measurement, Metric::FirstTokenMs, 50.0);
    }
}
