//! A weight that is NaN spoils every row that it reaches, visibly: no kernel, norm, clamp or rounding may turn it back
//! into a number that looks like an answer.

use crate::{Bench, Checkpoint, Extent, Setup, Subject, bits};
use overshot_backend::{Activations, IndexKeyFormat, KvFormat, Numerics, Wanted};
use overshot_model::{Model, Routing};
use safetensors::Dtype;
use std::sync::Arc;

const TOKENS: [u32; 6] = [3, 141, 59, 26, 53, 58];

/// The first number of a row (or of the last one) made NaN.
fn poison(checkpoint: &Checkpoint, name: &str, row: usize) -> Arc<Model> {
    let mut poisoned = checkpoint.clone();
    let tensor = poisoned.tensor(name);
    let nan: &[u8] = match tensor.dtype {
        Dtype::BF16 => &[0xc0, 0x7f],
        Dtype::F32 => &[0, 0, 0xc0, 0x7f],
        other => panic!("{name} is {other:?}"),
    };
    let at = row.min(tensor.shape[0] - 1) * tensor.shape[1] * nan.len();
    tensor.data[at..at + nan.len()].copy_from_slice(nan);
    Arc::new(poisoned.load().unwrap())
}

/// In part, without roundings and with all of them.
fn modes(extent: Extent) -> Vec<Numerics> {
    let rounded = Numerics { kv: KvFormat::Fp8, index_keys: IndexKeyFormat::Fp4, act: Activations::E4m3 };
    extent.choose(vec![Numerics::EXACT, Numerics::default(), rounded], vec![Numerics::EXACT, rounded])
}

/// Every position has NaN among its logits, and a draw fails.
fn assert_spoilt(subject: &impl Subject, model: &Arc<Model>, what: &str) {
    for numerics in modes(subject.extent()) {
        let label = format!("{what}, {numerics:?}");
        let mut bench = Bench::start(subject, model, Setup::new(numerics, 2, 64));
        let [set, again] = [(); 2].map(|()| bench.kv.create().unwrap());
        for (position, logits) in
            bench.feed(set, &TOKENS, &[4, 1]).chunks_exact(model.spec.vocab_size).enumerate()
        {
            assert!(logits.iter().any(|x| x.is_nan()), "{label}: position {position} has only numbers");
        }
        let row = bench.draw(again, &TOKENS);
        assert!(row.failure.is_some() && row.tokens.is_empty(), "{label}: drew {:?}", row.tokens);
    }
}

/// Matrices that every token passes through, whatever it is. FP8 ones are not among them: their NaN codes may be read
/// as numbers (see `Format::Fp8`).
pub fn a_nan_in_a_matrix_spoils_every_token(subject: &impl Subject) {
    let checkpoint = Checkpoint::read("fixtures/tiny-bf16");
    for name in [
        "layers.1.hc_attn_fn",
        "layers.1.attn.wq_a.weight",
        "layers.1.attn.wq_b.weight",
        "layers.1.attn.wkv.weight",
        "layers.1.attn.wo_a.weight",
        "layers.1.attn.wo_b.weight",
        "layers.2.hc_ffn_fn",
        "layers.2.ffn.gate.weight",
        "layers.2.ffn.shared_experts.w1.weight",
        "layers.2.ffn.shared_experts.w2.weight",
        "layers.2.ffn.shared_experts.w3.weight",
        "hc_head_fn",
        "head.weight",
    ] {
        assert_spoilt(subject, &poison(&checkpoint, name, 5), name);
    }
    // Their inputs are rounded here.
    let checkpoint = Checkpoint::read("fixtures/tiny-fp8fp4");
    for name in ["layers.0.hc_attn_fn", "layers.1.hc_ffn_fn", "layers.1.ffn.gate.weight"] {
        assert_spoilt(subject, &poison(&checkpoint, name, 5), name);
    }
}

/// Hash routing says which tokens an expert sees: those are spoilt; the ones before them, and another row of the same
/// step, are untouched to the bit.
pub fn a_nan_in_an_expert_spoils_its_tokens_and_what_follows_them(subject: &impl Subject) {
    let checkpoint = Checkpoint::read("fixtures/tiny-bf16");
    let clean = Arc::new(checkpoint.load().unwrap());
    let Routing::Hash { experts_of_token } = &clean.weights.layers[0].ffn.routing else {
        panic!("layer 0 routes by hash")
    };
    let top = clean.spec.experts_per_token;
    let sees = |token: u32, expert: u16| experts_of_token[token as usize * top..][..top].contains(&expert);
    let expert = 3;
    let seen = (0..clean.spec.vocab_size as u32).find(|token| sees(*token, expert)).unwrap();
    let others = (0..clean.spec.vocab_size as u32).filter(|token| !sees(*token, expert)).take(3);
    let tokens: Vec<u32> = others.chain([seen]).collect();
    let vocab = clean.spec.vocab_size;
    for matrix in ["w1", "w2", "w3"] {
        let model = poison(&checkpoint, &format!("layers.0.ffn.experts.{expert}.{matrix}.weight"), 5);
        for numerics in modes(subject.extent()) {
            let run = |model: &Arc<Model>| {
                let mut bench = Bench::start(subject, model, Setup::new(numerics, 2, 64));
                let [other, set] = [(); 2].map(|()| bench.kv.create().unwrap());
                let rows: [(_, &[u32]); 2] = [(other, &tokens[..3]), (set, &tokens)];
                bench.step(&rows, Wanted::AllLogits)
            };
            let ([other, spoilt], [expected_other, expected]) =
                (<[_; 2]>::try_from(run(&model)).unwrap(), <[_; 2]>::try_from(run(&clean)).unwrap());
            assert_eq!(bits(&other), bits(&expected_other), "{matrix}, {numerics:?}");
            let before = 3 * vocab;
            assert_eq!(bits(&spoilt[..before]), bits(&expected[..before]), "{matrix}, {numerics:?}");
            assert!(spoilt[before..].iter().any(|x| x.is_nan()), "{matrix}, {numerics:?}: only numbers");
        }
    }
}

/// Entries carry it on, to the tokens that see them and no others.
pub fn a_nan_in_a_compressor_spoils_what_sees_its_entries(subject: &impl Subject) {
    let checkpoint = Checkpoint::read("fixtures/tiny-fp8fp4");
    let clean = Arc::new(checkpoint.load().unwrap());
    let vocab = clean.spec.vocab_size;
    // The second half of the channels, so that the first entry has it already.
    for name in ["layers.0.attn.compressor.wkv.weight", "layers.0.attn.compressor.wgate.weight"] {
        let model = poison(&checkpoint, name, 600);
        for numerics in modes(subject.extent()) {
            let run = |model: &Arc<Model>| {
                let mut bench = Bench::start(subject, model, Setup::new(numerics, 1, 64));
                let set = bench.kv.create().unwrap();
                bench.feed(set, &TOKENS, &[2])
            };
            let (spoilt, expected) = (run(&model), run(&clean));
            assert_eq!(bits(&spoilt[..3 * vocab]), bits(&expected[..3 * vocab]), "{name}, {numerics:?}");
            for (position, logits) in spoilt.chunks_exact(vocab).enumerate().skip(3) {
                assert!(logits.iter().any(|x| x.is_nan()), "{name}, {numerics:?}: position {position}");
            }
        }
    }
}
