//! Drawing a token from logits: the same code for every backend that has the logits on the host.
//!
//! The order is fixed, and each step works on what the one before left, renormalised:
//!
//! 1. repetition penalty, then presence and frequency penalties
//! 2. logit bias
//! 3. temperature (0: the likeliest token, done)
//! 4. top-k, then top-p, then min-p
//! 5. one draw
//!
//! Log probabilities are the model's own, taken before all of this, so that they mean the same whatever the
//! parameters. Which tokens a grammar allows comes as a mask, applied with the bias.

use crate::TokenMask;
use std::cmp::Ordering;

/// How a token is drawn. The draw depends on the seed and the position alone, never on the batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is argmax (lowest id on ties).
    pub temperature: f32,
    /// Keep the smallest set of tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keep this many most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Drop tokens less likely than this share of the likeliest; 0 drops none.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the prompt or the output; 1 is none.
    pub repetition_penalty: f32,
    /// Taken once from the logit of a token in the output; 0 is none.
    pub presence_penalty: f32,
    /// Taken from the logit of a token each time it is in the output; 0 is none.
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens; entries for the same token add up.
    pub logit_bias: Vec<(u32, f32)>,
    pub seed: u64,
    /// How many of the likeliest tokens to report with their log probabilities.
    pub top_logprobs: usize,
}

/// A drawn token with its log probability (before temperature and truncation), and the likeliest alternatives.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    pub token: u32,
    pub logprob: f32,
    /// Likeliest first, lowest id first on ties; tokens of probability 0 are left out.
    pub top: Vec<(u32, f32)>,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    #[error("{parameter} is {value}: use a number {allowed}")]
    OutOfRange { parameter: &'static str, value: f32, allowed: &'static str },
    #[error("{parameter} is {value}: at most {most} are possible")]
    TooMany { parameter: &'static str, value: usize, most: usize },
    #[error("{parameter} names token {token}: the vocabulary has {vocab_size} tokens")]
    NoSuchToken { parameter: &'static str, token: u32, vocab_size: usize },
    #[error("the logit of token {token} is {value}: the forward pass went wrong before sampling")]
    BadLogit { token: usize, value: f32 },
    #[error("no token can be drawn: none of the {vocab_size} logits is finite")]
    NoFiniteLogit { vocab_size: usize },
    #[error("no token can be drawn: the mask allows none whose logit is finite")]
    NothingAllowed,
}

impl Default for Sampling {
    /// The publisher's settings: the model's own distribution, nothing cut off.
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            top_logprobs: 0,
        }
    }
}

impl Sampling {
    /// More alternatives than this are refused: nobody reads them, and every step would sort for them.
    pub const MOST_TOP_LOGPROBS: usize = 128;

    /// Always the likeliest token.
    pub fn greedy() -> Self {
        Sampling { temperature: 0.0, ..Sampling::default() }
    }

    /// Whether drawing needs to know the tokens seen so far.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// # Errors
    /// The first parameter that is out of its range, by name.
    pub fn validate(&self, vocab_size: usize) -> Result<(), SamplingError> {
        let check = |parameter, value: f32, is_allowed: bool, allowed| match is_allowed {
            true => Ok(()),
            false => Err(SamplingError::OutOfRange { parameter, value, allowed }),
        };
        let finite = f32::MIN..=f32::MAX;
        let (temperature, repetition) = (self.temperature, self.repetition_penalty);
        check(
            "temperature",
            temperature,
            temperature >= 0.0 && finite.contains(&temperature),
            "of at least 0",
        )?;
        check("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1")?;
        check("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "from 0 to 1")?;
        check("repetition_penalty", repetition, repetition > 0.0 && finite.contains(&repetition), "above 0")?;
        for (parameter, value) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            check(parameter, value, (-2.0..=2.0).contains(&value), "from -2 to 2")?;
        }
        for &(token, bias) in &self.logit_bias {
            check("logit_bias", bias, (-100.0..=100.0).contains(&bias), "from -100 to 100")?;
            if token as usize >= vocab_size {
                return Err(SamplingError::NoSuchToken { parameter: "logit_bias", token, vocab_size });
            }
        }
        for (parameter, value, most) in [
            ("logit_bias (number of entries)", self.logit_bias.len(), vocab_size),
            ("top_logprobs", self.top_logprobs, Self::MOST_TOP_LOGPROBS),
        ] {
            if value > most {
                return Err(SamplingError::TooMany { parameter, value, most });
            }
        }
        Ok(())
    }
}

/// Draws tokens, keeping its scratch space (8 bytes a token of the vocabulary) from one to the next.
#[derive(Debug, Default)]
pub struct Sampler {
    /// After penalties and bias.
    logits: Vec<f32>,
    /// Ids of the tokens still in play.
    kept: Vec<u32>,
}

impl Sampler {
    /// Draws the token for `position` from `logits` `[vocab]`. `seen` has every token of prompt and output with
    /// the times it is in the output (0 when only in the prompt); it is read when there are penalties.
    ///
    /// A logit of -inf is a token that is never drawn.
    ///
    /// # Errors
    /// A logit that is NaN or +inf, no finite logit at all, or a token outside the vocabulary.
    pub fn sample(
        &mut self,
        logits: &[f32],
        sampling: &Sampling,
        seen: &[(u32, u32)],
        position: usize,
    ) -> Result<Sampled, SamplingError> {
        self.sample_among(logits, sampling, seen, position, None)
    }

    /// As [`Sampler::sample`], among the tokens of a mask.
    ///
    /// # Errors
    /// Also a mask that allows nothing.
    pub fn sample_among(
        &mut self,
        logits: &[f32],
        sampling: &Sampling,
        seen: &[(u32, u32)],
        position: usize,
        allowed: Option<&TokenMask>,
    ) -> Result<Sampled, SamplingError> {
        let log_total = log_sum_exp(logits)?;
        self.adjust(logits, sampling, seen)?;
        if let Some(mask) = allowed {
            self.forbid_all_but(mask);
        }
        let likeliest = match argmax(&self.logits) {
            Err(_) if allowed.is_some() => return Err(SamplingError::NothingAllowed),
            likeliest => likeliest?,
        };
        let token = match sampling.temperature {
            0.0 => likeliest,
            temperature => {
                let max = self.logits[likeliest as usize];
                self.truncate(sampling, |logit| weight(logit, max, temperature));
                self.draw(uniform(sampling.seed, position), |logit| weight(logit, max, temperature))
                    .unwrap_or(likeliest)
            }
        };
        let logprob = |token: u32| (f64::from(logits[token as usize]) - log_total) as f32;
        let top =
            self.likeliest(logits, sampling.top_logprobs).map(|token| (token, logprob(token))).collect();
        Ok(Sampled { token, logprob: logprob(token), top })
    }

    fn adjust(
        &mut self,
        logits: &[f32],
        sampling: &Sampling,
        seen: &[(u32, u32)],
    ) -> Result<(), SamplingError> {
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        let vocab_size = logits.len();
        let penalised = if sampling.has_penalties() { seen } else { &[] };
        for &(token, times) in penalised {
            let missing =
                SamplingError::NoSuchToken { parameter: "the list of seen tokens", token, vocab_size };
            let logit = self.logits.get_mut(token as usize).ok_or(missing)?;
            let repetition = sampling.repetition_penalty;
            *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
            *logit -= sampling.frequency_penalty * times as f32;
            *logit -= if times > 0 { sampling.presence_penalty } else { 0.0 };
            // A penalty far below 1 may overflow; the largest number still sorts and subtracts.
            *logit = logit.min(f32::MAX);
        }
        for &(token, bias) in &sampling.logit_bias {
            let missing = SamplingError::NoSuchToken { parameter: "logit_bias", token, vocab_size };
            *self.logits.get_mut(token as usize).ok_or(missing)? += bias;
        }
        Ok(())
    }

    fn forbid_all_but(&mut self, mask: &TokenMask) {
        for (token, logit) in self.logits.iter_mut().enumerate() {
            if !mask.allows(token as u32) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    /// Leaves in `kept` what top-k, top-p and min-p leave, always at least the likeliest token.
    fn truncate(&mut self, sampling: &Sampling, weight: impl Fn(f32) -> f64) {
        let (logits, kept) = (&self.logits, &mut self.kept);
        kept.clear();
        kept.extend(0..logits.len() as u32);
        if (1..kept.len()).contains(&sampling.top_k) {
            sort_head(kept, sampling.top_k, logits);
            kept.truncate(sampling.top_k);
        }
        if sampling.top_p < 1.0 {
            let total: f64 = kept.iter().map(|&token| weight(logits[token as usize])).sum();
            let reached = shortest_head(kept, logits, f64::from(sampling.top_p) * total, &weight);
            kept.truncate(reached);
        }
        if sampling.min_p > 0.0 {
            // The likeliest token weighs 1.
            kept.retain(|&token| weight(logits[token as usize]) >= f64::from(sampling.min_p));
        }
    }

    /// The token at share `uniform` of the weight of all that are kept.
    fn draw(&self, uniform: f64, weight: impl Fn(f32) -> f64) -> Option<u32> {
        let weights = || self.kept.iter().map(|&token| (token, weight(self.logits[token as usize])));
        let target = uniform * weights().map(|(_, weight)| weight).sum::<f64>();
        let mut sum = 0.0;
        let mut last = None;
        for (token, weight) in weights().filter(|(_, weight)| *weight > 0.0) {
            sum += weight;
            last = Some(token);
            if sum > target {
                break;
            }
        }
        last
    }

    fn likeliest(&mut self, logits: &[f32], count: usize) -> impl Iterator<Item = u32> + '_ {
        let count = count.min(logits.len());
        self.kept.clear();
        if count > 0 {
            self.kept.extend((0..logits.len() as u32).filter(|&token| logits[token as usize].is_finite()));
            sort_head(&mut self.kept, count, logits);
            self.kept.truncate(count);
        }
        self.kept.iter().copied()
    }
}

/// Weight relative to the likeliest token's, which is 1.
fn weight(logit: f32, max: f32, temperature: f32) -> f64 {
    f64::from(((logit - max) / temperature).exp())
}

/// The logarithm of the softmax's denominator, in nats, summed in float64: a token's log probability is its logit
/// less this.
///
/// # Errors
/// A logit that is NaN or +inf, or no finite logit at all.
pub fn log_sum_exp(logits: &[f32]) -> Result<f64, SamplingError> {
    if let Some((token, &value)) =
        logits.iter().enumerate().find(|(_, logit)| logit.is_nan() || **logit == f32::INFINITY)
    {
        return Err(SamplingError::BadLogit { token, value });
    }
    let max = f64::from(logits[argmax(logits)? as usize]);
    let total: f64 = logits.iter().map(|logit| (f64::from(*logit) - max).exp()).sum();
    Ok(max + total.ln())
}

/// The lowest id among the greatest logits; NaN is never the greatest.
///
/// # Errors
/// No logit above -inf.
pub fn argmax(logits: &[f32]) -> Result<u32, SamplingError> {
    let mut best = None;
    let mut max = f32::NEG_INFINITY;
    for (token, &logit) in logits.iter().enumerate() {
        if logit > max {
            (best, max) = (Some(token as u32), logit);
        }
    }
    best.ok_or(SamplingError::NoFiniteLogit { vocab_size: logits.len() })
}

/// Brings the `count` likeliest tokens to the front, likeliest first, lowest id first on ties.
fn sort_head(tokens: &mut [u32], count: usize, logits: &[f32]) {
    // Adding +0 turns -0 into it: both zeros are equal to `argmax`, and must be here.
    let key = |token: u32| logits[token as usize] + 0.0;
    let by_logit = |a: &u32, b: &u32| -> Ordering { key(*b).total_cmp(&key(*a)).then(a.cmp(b)) };
    let count = count.min(tokens.len());
    if (1..tokens.len()).contains(&count) {
        tokens.select_nth_unstable_by(count - 1, by_logit);
    }
    tokens[..count].sort_unstable_by(by_logit);
}

/// Sorts as much of the head as it takes to reach `target`, and says how many tokens that is. Grows from a small
/// head because a handful of 129,280 tokens usually do.
fn shortest_head(tokens: &mut [u32], logits: &[f32], target: f64, weight: impl Fn(f32) -> f64) -> usize {
    let mut count = 64.min(tokens.len());
    loop {
        sort_head(tokens, count, logits);
        let mut sum = 0.0;
        for (index, &token) in tokens[..count].iter().enumerate() {
            sum += weight(logits[token as usize]);
            if sum >= target {
                return index + 1;
            }
        }
        if count == tokens.len() {
            return count;
        }
        count = (count * 8).min(tokens.len());
    }
}

/// In 0 .. 1. A function of its arguments, without state: what a row draws can't depend on the rows beside it, and a
/// preempted or replayed request draws the same again.
fn uniform(seed: u64, position: usize) -> f64 {
    let bits = splitmix64(seed ^ splitmix64(position as u64));
    (bits >> 11) as f64 * (0.5_f64).powi(53)
}

/// Output function of SplitMix64 (Steele, Lea, Flood 2014).
fn splitmix64(state: u64) -> u64 {
    let mut mixed = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix64_is_the_published_generator() {
        // The first outputs for state 0; the generator adds the increment itself.
        assert_eq!(splitmix64(0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(splitmix64(0x9E37_79B9_7F4A_7C15), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn uniform_numbers_are_in_range_and_even() {
        for seed in [0, 1, 2, u64::MAX] {
            let mut counts = [0_u32; 10];
            for position in 0..100_000 {
                let number = uniform(seed, position);
                assert!((0.0..1.0).contains(&number));
                counts[(number * 10.0) as usize] += 1;
            }
            // 10,000 expected, standard deviation 95.
            assert!(counts.iter().all(|count| (9_600..10_400).contains(count)), "seed {seed}: {counts:?}");
        }
        let equal = (0..1000).filter(|&position| uniform(1, position) == uniform(2, position)).count();
        assert_eq!(equal, 0);
    }

    #[test]
    fn the_first_of_two_kept_zeros_is_the_likeliest_whatever_their_signs() {
        for logits in [[-1.0, -0.0, 0.0], [-1.0, 0.0, -0.0]] {
            let sample = |sampling: &Sampling| Sampler::default().sample(&logits, sampling, &[], 3).unwrap();
            let likeliest = sample(&Sampling { top_logprobs: 1, ..Sampling::greedy() });
            let kept = sample(&Sampling { top_k: 1, ..Sampling::default() });
            assert_eq!((likeliest.token, likeliest.top[0].0, kept.token), (1, 1, 1));
        }
    }

    #[test]
    fn log_probabilities_are_those_of_a_softmax() {
        let logits = [1.0, 2.0, 2.0, -1000.0, f32::NEG_INFINITY];
        let log_total = log_sum_exp(&logits).unwrap();
        let total: f64 = logits.iter().map(|logit| (f64::from(*logit) - log_total).exp()).sum();
        assert!((total - 1.0).abs() < 1e-12);
        assert!((log_sum_exp(&[500.0, 500.0]).unwrap() - 500.0 - 2f64.ln()).abs() < 1e-12);
        assert_eq!(argmax(&logits), Ok(1));
        assert!(log_sum_exp(&[0.0, f32::NAN]).is_err());
    }

    #[test]
    fn a_head_is_the_start_of_the_whole_order() {
        let mut random = fastrand::Rng::with_seed(5);
        let logits: Vec<f32> = (0..500).map(|_| random.u32(0..40) as f32).collect();
        let mut whole: Vec<u32> = (0..500).collect();
        whole.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
        for count in [0, 1, 7, 499, 500, 501] {
            let mut tokens: Vec<u32> = (0..500).rev().collect();
            sort_head(&mut tokens, count, &logits);
            let count = count.min(500);
            assert_eq!(tokens[..count], whole[..count]);
        }
        let mut tokens: Vec<u32> = (0..500).collect();
        assert_eq!(shortest_head(&mut tokens, &logits, 300.0, |_| 1.0), 300);
        assert_eq!(tokens[..300], whole[..300]);
    }
}
