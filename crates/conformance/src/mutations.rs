//! Mutated checkpoints that are accepted all the same: whatever the numbers, a step ends with an answer for every
//! row, and a row that has no number to draw from says so.

use crate::{Bench, Checkpoint, Setup, Subject};
use fastrand::Rng;
use overshot_backend::{Activations, IndexKeyFormat, KvFormat, Numerics};
use overshot_model::Model;
use safetensors::Dtype;
use std::sync::Arc;

/// Tries so many mutations from this seed.
pub fn accepted_mutations_run(subject: &impl Subject, cases: u64, seed: u64) {
    let mut random = Rng::with_seed(seed);
    let checkpoint = Checkpoint::read("fixtures/tiny-fp8fp4");
    let (mut accepted, mut failed) = (0, 0);
    for case in 0..cases {
        let mut mutated = checkpoint.clone();
        for _ in 0..random.usize(1..4) {
            mutate(&mut random, &mut mutated);
        }
        let Ok(model) = mutated.load() else { continue };
        accepted += 1;
        failed += usize::from(runs_to_a_failure(subject, &mut random, &Arc::new(model), case));
    }
    println!("{accepted} of {cases} accepted, {failed} of those without a token");
    assert!(accepted * 4 >= cases, "{accepted} of {cases} accepted: too few to mean anything");
}

/// One change of a random tensor: mostly of its numbers, now and then of what it says it is.
fn mutate(random: &mut Rng, checkpoint: &mut Checkpoint) {
    let names: Vec<&String> = checkpoint.tensors.keys().filter(|name| !name.starts_with("mtp.")).collect();
    let name = names[random.usize(0..names.len())].clone();
    let tensor = checkpoint.tensor(&name);
    let at = random.usize(0..tensor.data.len());
    match random.u8(0..12) {
        0 => tensor.shape.reverse(),
        1 => tensor.dtype = other_dtype(random, tensor.dtype),
        // A whole row or so of noise.
        2 => tensor.data.iter_mut().skip(at).take(256).for_each(|byte| *byte = random.u8(..)),
        // Patterns that are NaN, infinity or huge in one dtype or another.
        3 => tensor.data.iter_mut().skip(at).take(4).for_each(|byte| *byte = 0x7f),
        4 => tensor.data.iter_mut().skip(at).take(4).for_each(|byte| *byte = 0xff),
        5 => tensor.data.fill(0),
        6 => tensor.data.iter_mut().skip(3).step_by(4).for_each(|byte| *byte = 0x7e),
        _ => tensor.data[at] ^= 1 << random.u8(0..8),
    }
}

/// Another dtype of the same size: the bytes stay, their meaning does not.
fn other_dtype(random: &mut Rng, dtype: Dtype) -> Dtype {
    let same_size = match dtype {
        Dtype::I8 | Dtype::U8 | Dtype::F8_E4M3 | Dtype::F8_E8M0 => {
            &[Dtype::I8, Dtype::U8, Dtype::F8_E4M3, Dtype::F8_E8M0][..]
        }
        Dtype::BF16 | Dtype::F16 => &[Dtype::BF16, Dtype::F16],
        Dtype::F32 | Dtype::I32 => &[Dtype::F32, Dtype::I32],
        _ => &[Dtype::I64, Dtype::F64],
    };
    same_size[random.usize(0..same_size.len())]
}

/// Runs a few tokens and wants one; whether there was none.
fn runs_to_a_failure(subject: &impl Subject, random: &mut Rng, model: &Arc<Model>, case: u64) -> bool {
    let numerics = Numerics {
        kv: [KvFormat::F32, KvFormat::Fp8][random.usize(0..2)],
        index_keys: [IndexKeyFormat::F32, IndexKeyFormat::Bf16, IndexKeyFormat::Fp8, IndexKeyFormat::Fp4]
            [random.usize(0..4)],
        act: [Activations::Exact, Activations::E4m3][random.usize(0..2)],
    };
    let setup = Setup::new(numerics, 2, 64).varied(random.u64(..));
    // Now and then long enough for selection in earnest.
    let count = if random.u8(0..16) == 0 { 45 } else { 3 };
    let tokens: Vec<u32> = (0..count).map(|_| random.u32(0..model.spec.vocab_size as u32)).collect();
    let mut bench = Bench::start(subject, model, setup);
    let [set, again] = [(); 2].map(|()| bench.kv.create().unwrap());
    let logits = bench.feed(set, &tokens, &[usize::MAX]);
    assert_eq!(logits.len(), count * model.spec.vocab_size, "case {case}");
    let last = &logits[logits.len() - model.spec.vocab_size..];
    let drawable = last.iter().all(|x| *x < f32::INFINITY) && last.iter().any(|x| x.is_finite());

    let row = bench.draw(again, &tokens);
    assert_eq!(row.tokens.len(), usize::from(drawable), "case {case}: {row:?}");
    assert_eq!(row.failure.is_none(), drawable, "case {case}: {row:?}");
    row.failure.is_some()
}
