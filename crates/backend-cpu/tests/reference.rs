//! The backend against a plain float64 forward pass, in every numerics mode.
//!
//! A value on a rounding edge may fall either way, and in a whole pass every later token then differs by about as
//! much as the rounding itself: end to end, a wrong rule and a flip look alike. So each layer starts again from the
//! streams that the backend had there, where a flip stays small and rare, and quantiles over tokens are compared.
//! That these notice a wrong rule is shown by breaking each rule once.
#![allow(clippy::unwrap_used)]

mod common;
mod oracle;

use common::bench;
use oracle::{Fault, Oracle, Vector};
use overshot_backend::{Activations, IndexKeyFormat, KvFormat, Numerics};
use overshot_backend_cpu::Capture;
use overshot_conformance::{bits, open};
use overshot_model::{Model, STREAMS};
use std::sync::Arc;

/// What the backend made of a sequence.
struct Observed {
    tokens: Vec<u32>,
    logits: Vec<f32>,
    capture: Capture,
}

fn observe(model: &Arc<Model>, numerics: Numerics, tokens: usize) -> Observed {
    let mut random = fastrand::Rng::with_seed(29);
    let tokens: Vec<u32> = (0..tokens).map(|_| random.u32(0..model.spec.vocab_size as u32)).collect();
    let mut bench = bench(model, numerics, tokens.len());
    bench.backend.start_capture();
    let logits = bench.feed_new(&tokens, &[50, 1, 7]);
    Observed { logits, capture: bench.backend.take_capture(), tokens }
}

/// Differences of one kind, each relative to the largest number of its array.
#[derive(Debug, Default)]
struct Differences(Vec<f64>);

impl Differences {
    const MEDIAN_MAX: f64 = 2e-6;
    /// One token in ten may have met a rounding edge somewhere.
    const NINE_IN_TEN_MAX: f64 = 2e-4;

    /// 0 when nothing was compared.
    fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get((sorted.len() as f64 * share) as usize).copied().unwrap_or(0.0)
    }

    fn are_noise(&self) -> bool {
        self.quantile(0.5) <= Self::MEDIAN_MAX && self.quantile(0.9) <= Self::NINE_IN_TEN_MAX
    }
}

/// One row of each per token, and per layer but for the logits.
#[derive(Default)]
struct Comparison {
    streams: Differences,
    index_scores: Differences,
    logits: Differences,
    picks: usize,
    picked_otherwise: usize,
}

impl Comparison {
    fn agrees(&self) -> bool {
        let all = [&self.streams, &self.index_scores, &self.logits];
        all.iter().all(|differences| differences.are_noise()) && self.picked_otherwise * 50 <= self.picks
    }

    fn largest_median(&self) -> f64 {
        let all = [&self.streams, &self.index_scores, &self.logits];
        all.iter().fold(0.0, |largest, differences| differences.quantile(0.5).max(largest))
    }
}

impl std::fmt::Display for Comparison {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (what, differences) in
            [("streams", &self.streams), ("index scores", &self.index_scores), ("logits", &self.logits)]
        {
            let [median, nine_in_ten] = [0.5, 0.9].map(|share| differences.quantile(share));
            write!(f, "{what} median {median:.1e} 90 % {nine_in_ten:.1e}, ")?;
        }
        write!(f, "{} of {} tokens pick other entries", self.picked_otherwise, self.picks)
    }
}

/// Layer by layer, each from the streams that the backend had before it.
fn compare(oracle: &Oracle, observed: &Observed) -> Comparison {
    let spec = &oracle.model.spec;
    let mut comparison = Comparison::default();
    let mut streams = oracle.embed(&observed.tokens);
    for layer in 0..spec.layers.len() {
        let indexed = oracle.layer(layer, &observed.tokens, &mut streams);
        let theirs = observed.capture.get(&format!("layers.{layer}.out"));
        let width = STREAMS * spec.hidden_size;
        comparison.streams.0.extend(relative(&streams, theirs.chunks_exact(width)));
        let mut scores = observed.capture.get(&format!("layers.{layer}.index_scores"));
        let of_token = indexed.scores.iter().map(|ours| {
            let (theirs, rest) = scores.split_at(ours.len());
            scores = rest;
            theirs
        });
        comparison.index_scores.0.extend(relative(&indexed.scores, of_token));
        let picked = observed.capture.get(&format!("layers.{layer}.index_selected"));
        for (ours, theirs) in indexed.picked.iter().zip(picked.chunks_exact(spec.index_topk)) {
            let ours: Vec<f32> = ours.iter().map(|index| *index as f32).collect();
            let theirs: Vec<f32> = theirs.iter().copied().filter(|index| *index >= 0.0).collect();
            comparison.picks += 1;
            comparison.picked_otherwise += usize::from(ours != theirs);
        }
        streams = theirs.chunks_exact(width).map(|row| row.iter().map(|x| f64::from(*x)).collect()).collect();
    }
    let rows = observed.logits.chunks_exact(spec.vocab_size);
    comparison.logits.0 = relative(&oracle.logits(&streams), rows);
    comparison
}

/// Of each row, the largest difference over the largest number of all rows.
fn relative<'a>(ours: &[Vector], theirs: impl Iterator<Item = &'a [f32]>) -> Vec<f64> {
    let largest = ours.iter().flatten().fold(0.0_f64, |largest, x| largest.max(x.abs()));
    let worst = |(ours, theirs): (&Vector, &[f32])| {
        assert_eq!(ours.len(), theirs.len());
        let differences = ours.iter().zip(theirs).map(|(a, b)| (a - f64::from(*b)).abs());
        // NaN is passed over by `max`.
        differences.fold(0.0_f64, |worst, d| if d.is_nan() { f64::INFINITY } else { worst.max(d) }) / largest
    };
    ours.iter().zip(theirs).map(worst).collect()
}

const INDEX_KEYS: [IndexKeyFormat; 4] =
    [IndexKeyFormat::F32, IndexKeyFormat::Bf16, IndexKeyFormat::Fp8, IndexKeyFormat::Fp4];
/// Everything rounded as in the publisher's training.
const ROUNDED: Numerics =
    Numerics { kv: KvFormat::Fp8, index_keys: IndexKeyFormat::Fp4, act: Activations::E4m3 };

fn assert_agreement(folder: &str, tokens: usize, modes: &[Numerics]) {
    let model = open(folder);
    for &numerics in modes {
        let observed = observe(&model, numerics, tokens);
        let comparison = compare(&Oracle { model: &model, numerics, fault: None }, &observed);
        println!("{folder}, {numerics:?}: {comparison}");
        assert!(comparison.agrees(), "{folder}, {numerics:?}: {comparison}");
    }
}

fn modes(act: Activations) -> Vec<Numerics> {
    let of = |kv| INDEX_KEYS.map(|index_keys| Numerics { kv, index_keys, act });
    [of(KvFormat::F32), of(KvFormat::Fp8)].concat()
}

#[test]
fn fp8_and_fp4_weights_agree_with_exact_activations() {
    assert_agreement("fixtures/tiny-fp8fp4", 150, &modes(Activations::Exact));
}

#[test]
fn fp8_and_fp4_weights_agree_with_rounded_activations() {
    assert_agreement("fixtures/tiny-fp8fp4", 150, &modes(Activations::E4m3));
}

#[test]
fn bf16_weights_agree() {
    let with_keys = |index_keys| Numerics { index_keys, ..Numerics::EXACT };
    let [f32, bf16, _, fp4] = INDEX_KEYS.map(with_keys);
    assert_agreement("fixtures/tiny-bf16", 150, &[f32, bf16, fp4, Numerics::default()]);
}

/// Wide enough for several scale blocks in a row of weights and of activations.
#[test]
fn the_small_trained_model_agrees() {
    assert_agreement("models/dsv4-mini", 40, &[Numerics::EXACT, Numerics::default(), ROUNDED]);
}

/// BF16 and F32 matrices never see rounded activations.
#[test]
fn rounding_activations_changes_no_bit_of_a_bf16_model() {
    let model = open("fixtures/tiny-bf16");
    let exact = observe(&model, Numerics::EXACT, 60).logits;
    let rounded = observe(&model, Numerics { act: Activations::E4m3, ..Numerics::EXACT }, 60).logits;
    assert_eq!(bits(&exact), bits(&rounded));
}

/// Without roundings nothing can flip, and the whole pass is compared from end to end.
#[test]
fn whole_passes_agree_without_roundings() {
    for folder in ["fixtures/tiny-bf16", "fixtures/tiny-fp8fp4"] {
        let model = open(folder);
        let observed = observe(&model, Numerics::EXACT, 150);
        let oracle = Oracle { model: &model, numerics: Numerics::EXACT, fault: None };
        let mut streams = oracle.embed(&observed.tokens);
        for layer in 0..model.spec.layers.len() {
            oracle.layer(layer, &observed.tokens, &mut streams);
        }
        let rows = observed.logits.chunks_exact(model.spec.vocab_size);
        let largest = relative(&oracle.logits(&streams), rows).into_iter().fold(0.0, f64::max);
        println!("{folder}: {largest:.1e}");
        assert!(largest <= 2e-5, "{folder}: logits differ by {largest} of the largest");
    }
}

/// The length of an activation block is not among them: E4M3 floats, so a scale of another power of two only shows in
/// its subnormals. The codec's own tests hold it to the byte.
#[test]
fn every_broken_rule_is_noticed() {
    let small = [
        Fault::RoundsBeforeWoA,
        Fault::ExactBeforeWoB,
        Fault::RoundsBeforeEveryMatrix,
        Fault::ExpertWeightAfterW2,
        Fault::ExactRotaryDims,
        Fault::ExactEntries,
        Fault::ExactOwnLatent,
        Fault::RoundsQueries,
    ];
    let with_keys = |index_keys| Numerics { index_keys, ..ROUNDED };
    assert_noticed(ROUNDED, &small);
    let of_keys = [Fault::ExactIndexQueries, Fault::NoHadamard];
    assert_noticed(with_keys(IndexKeyFormat::Fp4), &of_keys);
    assert_noticed(with_keys(IndexKeyFormat::Fp8), &of_keys);
    assert_noticed(with_keys(IndexKeyFormat::Bf16), &of_keys[..1]);
}

/// A broken rule stands out of the noise a hundredfold.
fn assert_noticed(numerics: Numerics, faults: &[Fault]) {
    let model = open("fixtures/tiny-fp8fp4");
    let observed = observe(&model, numerics, 150);
    for &fault in faults {
        let comparison = compare(&Oracle { model: &model, numerics, fault: Some(fault) }, &observed);
        println!("{fault:?}, {numerics:?}: {comparison}");
        assert!(!comparison.agrees(), "{fault:?}: {comparison}");
        assert!(comparison.largest_median() >= 100.0 * Differences::MEDIAN_MAX, "{fault:?}: {comparison}");
    }
}
