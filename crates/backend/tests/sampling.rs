//! What users of sampling parameters rely on, through the public door. All seeds are fixed.

use overshot_backend::{Sampled, Sampler, Sampling, SamplingError};

const NEVER: f32 = f32::NEG_INFINITY;

fn sample(
    logits: &[f32],
    sampling: &Sampling,
    seen: &[(u32, u32)],
    position: usize,
) -> Result<Sampled, SamplingError> {
    Sampler::default().sample(logits, sampling, seen, position)
}

fn token(logits: &[f32], sampling: &Sampling, seen: &[(u32, u32)]) -> u32 {
    match sample(logits, sampling, seen, 0) {
        Ok(sampled) => sampled.token,
        Err(error) => panic!("{error}"),
    }
}

/// How often each token is drawn at 40,000 positions.
fn shares(logits: &[f32], sampling: &Sampling) -> Vec<f64> {
    let mut sampler = Sampler::default();
    let mut counts = vec![0_u32; logits.len()];
    for position in 0..40_000 {
        match sampler.sample(logits, sampling, &[], position) {
            Ok(sampled) => counts[sampled.token as usize] += 1,
            Err(error) => panic!("{error}"),
        }
    }
    counts.into_iter().map(|count| f64::from(count) / 40_000.0).collect()
}

/// Four standard deviations of a share at 40,000 draws are at most 0.01.
fn assert_shares(logits: &[f32], sampling: &Sampling, expected: &[f64]) {
    let found = shares(logits, sampling);
    for (found_share, expected_share) in found.iter().zip(expected) {
        let close = (found_share - expected_share).abs() < 0.01;
        assert!(close && (*expected_share > 0.0 || *found_share == 0.0), "{found:?} against {expected:?}");
    }
}

/// Logits with these probabilities.
fn logits_of(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|probability| probability.ln() + 3.0).collect()
}

fn with(change: impl FnOnce(&mut Sampling)) -> Sampling {
    let mut sampling = Sampling { seed: 11, ..Sampling::default() };
    change(&mut sampling);
    sampling
}

#[test]
fn greedy_takes_the_lowest_id_on_ties() {
    assert_eq!(token(&[1.0, 3.0, 3.0, NEVER], &Sampling::greedy(), &[]), 1);
    assert_eq!(token(&[-0.0, 0.0], &Sampling::greedy(), &[]), 0);
}

#[test]
fn draws_follow_the_distribution() {
    let logits = logits_of(&[0.5, 0.0, 0.3, 0.2]);
    assert_shares(&logits, &with(|_| {}), &[0.5, 0.0, 0.3, 0.2]);
    // Temperature 0.5 squares the probabilities: 25, 9, 4 of 38.
    assert_shares(&logits, &with(|s| s.temperature = 0.5), &[0.658, 0.0, 0.237, 0.105]);
    assert_shares(&logits, &with(|s| s.temperature = 1e-30), &[1.0, 0.0, 0.0, 0.0]);
    assert_shares(&logits, &with(|s| s.temperature = 1e30), &[0.333, 0.0, 0.333, 0.333]);
}

#[test]
fn truncations_keep_what_they_say() {
    let logits = logits_of(&[0.05, 0.4, 0.15, 0.3, 0.1]);
    assert_shares(&logits, &with(|s| s.top_k = 2), &[0.0, 0.571, 0.0, 0.429, 0.0]);
    assert_shares(&logits, &with(|s| s.top_p = 0.69), &[0.0, 0.571, 0.0, 0.429, 0.0]);
    assert_shares(&logits, &with(|s| s.top_p = 0.75), &[0.0, 0.471, 0.176, 0.353, 0.0]);
    assert_shares(&logits, &with(|s| s.top_p = 1e-9), &[0.0, 1.0, 0.0, 0.0, 0.0]);
    assert_shares(&logits, &with(|s| s.min_p = 0.5), &[0.0, 0.571, 0.0, 0.429, 0.0]);
    assert_shares(&logits, &with(|s| s.min_p = 1.0), &[0.0, 1.0, 0.0, 0.0, 0.0]);
    assert_shares(&logits, &with(|s| s.top_k = 99), &[0.05, 0.4, 0.15, 0.3, 0.1]);
}

#[test]
fn truncations_work_on_what_the_one_before_left() {
    let logits = logits_of(&[0.05, 0.4, 0.15, 0.3, 0.1]);
    // Of the three best (0.85), the first two hold 82 %: top-p 0.8 needs no third. Of all five, it would.
    let both = with(|s| (s.top_k, s.top_p) = (3, 0.8));
    assert_shares(&logits, &both, &[0.0, 0.571, 0.0, 0.429, 0.0]);
    // Temperature comes first: at 0.5 the best token alone holds 56 %.
    let hot = with(|s| (s.temperature, s.top_p) = (0.5, 0.55));
    assert_shares(&logits, &hot, &[0.0, 1.0, 0.0, 0.0, 0.0]);
    // Top-p before min-p: min-p 0.3 (0.15 of 0.4) would let token 2 stay, top-p has dropped it.
    let last = with(|s| (s.top_p, s.min_p) = (0.69, 0.3));
    assert_shares(&logits, &last, &[0.0, 0.571, 0.0, 0.429, 0.0]);
}

#[test]
fn one_token_left_is_the_greedy_one() {
    let mut random = fastrand::Rng::with_seed(3);
    for position in 0..300 {
        // Coarse logits, so that ties are common; a high temperature, so that near ties round to equal weights.
        let logits: Vec<f32> = (0..1000).map(|_| random.u32(0..300) as f32 * 1e-6).collect();
        let greedy = sample(&logits, &Sampling::greedy(), &[], position);
        for sampling in [
            with(|s| (s.top_k, s.temperature) = (1, 50.0)),
            with(|s| (s.top_p, s.temperature) = (1e-6, 50.0)),
        ] {
            assert_eq!(sample(&logits, &sampling, &[], position), greedy);
        }
    }
}

#[test]
fn top_p_is_exact_on_a_large_flat_vocabulary() {
    let logits = vec![0.5; 20_000];
    let sampling = with(|s| s.top_p = 0.5);
    let mut sampler = Sampler::default();
    let drawn: Vec<u32> =
        (0..50).filter_map(|p| sampler.sample(&logits, &sampling, &[], p).ok()).map(|s| s.token).collect();
    assert_eq!(drawn.len(), 50);
    assert!(drawn.iter().all(|token| *token < 10_000));
    assert!(drawn.iter().any(|token| *token > 5_000));
}

#[test]
fn penalties_apply_to_what_they_say() {
    let seen = [(0, 0), (1, 1), (2, 3)];
    let greedy = |change: fn(&mut Sampling)| {
        let mut sampling = Sampling::greedy();
        change(&mut sampling);
        sampling
    };
    // Repetition counts the prompt; presence and frequency do not.
    assert_eq!(token(&[2.0, 1.9, 1.9, 1.5], &greedy(|s| s.repetition_penalty = 2.0), &seen), 3);
    assert_eq!(token(&[2.0, 1.9, 1.9, 1.5], &greedy(|s| s.presence_penalty = 2.0), &seen), 0);
    assert_eq!(token(&[-1.0, -1.0, -1.0, -1.5], &greedy(|s| s.repetition_penalty = 2.0), &seen), 3);
    // Presence takes the same from one and three occurrences, frequency does not.
    assert_eq!(token(&[NEVER, 1.9, 2.0, 1.5], &greedy(|s| s.presence_penalty = 0.3), &seen), 2);
    assert_eq!(token(&[NEVER, 1.9, 2.0, 1.5], &greedy(|s| s.frequency_penalty = 0.3), &seen), 1);
    // Repetition first (2.0 -> 1.0), then presence (0.9): the other order would leave 0.95.
    let both = greedy(|s| (s.repetition_penalty, s.presence_penalty) = (2.0, 0.1));
    assert_eq!(token(&[0.92, 2.0], &both, &[(1, 1)]), 0);
    // Bias comes after the penalties: 2.0 / 2 + 1 = 2, not (2 + 1) / 2.
    let biased = greedy(|s| (s.repetition_penalty, s.logit_bias) = (2.0, vec![(1, 1.0)]));
    assert_eq!(token(&[1.9, 2.0], &biased, &[(1, 1)]), 1);
    assert_eq!(
        token(&[1.0, 1.0, 1.0], &greedy(|s| s.logit_bias = vec![(2, 1.0), (1, 0.6), (1, 0.6)]), &[]),
        1
    );
}

#[test]
fn extreme_penalties_do_not_break_the_draw() {
    let sampling = with(|s| s.repetition_penalty = 1e-38);
    assert_eq!(token(&[1e9, 2.0, 3.0], &sampling, &[(0, 1)]), 0);
    let sampling = with(|s| s.repetition_penalty = f32::MAX);
    assert_eq!(token(&[-1e9, 2.0, NEVER], &sampling, &[(0, 1)]), 1);
}

#[test]
fn log_probabilities_are_the_models_own() {
    let logits = logits_of(&[0.1, 0.2, 0.3, 0.4]);
    let sampling = Sampling {
        temperature: 0.3,
        top_k: 1,
        logit_bias: vec![(1, 50.0)],
        top_logprobs: 3,
        ..Sampling::default()
    };
    let Ok(sampled) = sample(&logits, &sampling, &[], 0) else { panic!("no token") };
    let close = |logprob: f32, probability: f32| (logprob - probability.ln()).abs() < 1e-5;
    assert_eq!(sampled.token, 1);
    assert!(close(sampled.logprob, 0.2));
    assert_eq!(sampled.top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [3, 2, 1]);
    assert!(sampled.top.iter().zip([0.4, 0.3, 0.2]).all(|(&(_, logprob), p)| close(logprob, p)));

    let sampling = Sampling { top_logprobs: 5, ..Sampling::greedy() };
    let Ok(sampled) = sample(&[2.0, NEVER, 2.0], &sampling, &[], 0) else { panic!("no token") };
    assert_eq!(sampled.top, [(0, -std::f32::consts::LN_2), (2, -std::f32::consts::LN_2)]);
}

#[test]
fn a_draw_depends_on_seed_and_position_alone() {
    let logits: Vec<f32> = (0..1000).map(|token| (token % 7) as f32 * 0.1).collect();
    let mut used = Sampler::default();
    let mut draws = Vec::new();
    for position in 0..100 {
        let fresh = sample(&logits, &with(|_| {}), &[], position);
        assert_eq!(used.sample(&logits, &with(|_| {}), &[], position), fresh);
        // Whatever else the same scratch space is used for.
        assert!(used.sample(&logits[..50], &with(|s| s.top_logprobs = 9), &[], position).is_ok());
        draws.extend(fresh.map(|sampled| sampled.token));
    }
    let other: Vec<u32> =
        (0..100).map(|p| sample(&logits, &with(|s| s.seed = 12), &[], p).map_or(0, |s| s.token)).collect();
    let equal = draws.iter().zip(&other).filter(|(a, b)| a == b).count();
    assert!(equal < 10, "{equal} of 100 draws are equal under another seed");
    draws.sort_unstable();
    draws.dedup();
    assert!(draws.len() > 80, "only {} of 100 draws differ", draws.len());
}

#[test]
fn bad_logits_are_errors_with_a_name() {
    for sampling in [Sampling::greedy(), with(|s| s.top_p = 0.5)] {
        for (logits, message) in [
            (vec![], "no token can be drawn: none of the 0 logits is finite"),
            (vec![NEVER; 3], "no token can be drawn: none of the 3 logits is finite"),
            (vec![1.0, f32::NAN], "the logit of token 1 is NaN: the forward pass went wrong before sampling"),
            (
                vec![f32::INFINITY, 0.0],
                "the logit of token 0 is inf: the forward pass went wrong before sampling",
            ),
        ] {
            assert_eq!(
                sample(&logits, &sampling, &[], 0).map_err(|error| error.to_string()),
                Err(message.to_string())
            );
        }
    }
    let penalty = with(|s| s.presence_penalty = 1.0);
    assert_eq!(
        sample(&[0.0], &penalty, &[(4, 1)], 0).map_err(|error| error.to_string()),
        Err("the list of seen tokens names token 4: the vocabulary has 1 tokens".to_string())
    );
}

#[test]
fn parameters_out_of_range_are_named() {
    type Change = fn(&mut Sampling);
    assert_eq!(Sampling::default().validate(10), Ok(()));
    assert_eq!(Sampling::greedy().validate(10), Ok(()));
    let cases: [(Change, &str); 12] = [
        (|s| s.temperature = -0.1, "temperature is -0.1: use a number of at least 0"),
        (|s| s.temperature = f32::INFINITY, "temperature is inf: use a number of at least 0"),
        (|s| s.temperature = f32::NAN, "temperature is NaN: use a number of at least 0"),
        (|s| s.top_p = 0.0, "top_p is 0: use a number above 0 and at most 1"),
        (|s| s.top_p = f32::NAN, "top_p is NaN: use a number above 0 and at most 1"),
        (|s| s.min_p = 1.5, "min_p is 1.5: use a number from 0 to 1"),
        (|s| s.repetition_penalty = 0.0, "repetition_penalty is 0: use a number above 0"),
        (|s| s.presence_penalty = 2.5, "presence_penalty is 2.5: use a number from -2 to 2"),
        (|s| s.frequency_penalty = f32::NAN, "frequency_penalty is NaN: use a number from -2 to 2"),
        (|s| s.logit_bias = vec![(3, 1e9)], "logit_bias is 1000000000: use a number from -100 to 100"),
        (|s| s.logit_bias = vec![(10, 1.0)], "logit_bias names token 10: the vocabulary has 10 tokens"),
        (|s| s.top_logprobs = 129, "top_logprobs is 129: at most 128 are possible"),
    ];
    for (change, message) in cases {
        let found = with(change).validate(10).map_err(|error| error.to_string());
        assert_eq!(found, Err(message.to_string()));
    }
}

/// Whatever valid parameters meet whatever logits: a token of the vocabulary that was possible, or a typed error.
#[test]
fn random_rows_and_parameters_never_panic() {
    let seed = overshot_testing::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut sampler = Sampler::default();
    let mut drawn = 0;
    for position in 0..20_000 {
        let scale = *random.choice(&[1e-3, 1.0, 30.0, 1e30]).unwrap_or(&1.0);
        let mut logits: Vec<f32> = (0..random.usize(1..90)).map(|_| (random.f32() - 0.5) * scale).collect();
        for _ in 0..random.usize(0..4) {
            let index = random.usize(0..logits.len());
            logits[index] =
                *random.choice(&[NEVER, NEVER, NEVER, f32::NAN, 0.0, f32::MAX, f32::MIN]).unwrap_or(&0.0);
        }
        let vocab = logits.len() as u32;
        let sampling = Sampling {
            temperature: *random.choice(&[0.0, 1e-40, 0.3, 1.0, 1e38]).unwrap_or(&1.0),
            top_p: *random.choice(&[1.0, 1.0, 0.9, 0.1, f32::MIN_POSITIVE]).unwrap_or(&1.0),
            top_k: random.usize(0..100),
            min_p: *random.choice(&[0.0, 0.0, 0.2, 1.0]).unwrap_or(&0.0),
            repetition_penalty: *random.choice(&[1.0, 1.1, 1e-38, f32::MAX]).unwrap_or(&1.0),
            presence_penalty: random.f32() * 4.0 - 2.0,
            frequency_penalty: random.f32() * 4.0 - 2.0,
            logit_bias: vec![(random.u32(0..vocab), random.f32() * 200.0 - 100.0)],
            seed: random.u64(..),
            top_logprobs: random.usize(0..128),
        };
        assert_eq!(sampling.validate(logits.len()), Ok(()));
        let seen = [(random.u32(0..vocab), random.u32(0..3))];
        match sampler.sample(&logits, &sampling, &seen, position) {
            Ok(sampled) => {
                drawn += 1;
                assert!(logits[sampled.token as usize] > NEVER);
                assert!(sampled.logprob <= 1e-6, "{}", sampled.logprob);
                assert!(sampled.top.is_sorted_by(|a, b| a.1 >= b.1));
            }
            Err(SamplingError::BadLogit { .. } | SamplingError::NoFiniteLogit { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert!(drawn > 10_000);
}
