//! A row's bits depend on the row alone: random batches, chunkings and thread counts against solo runs.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Bench, bits, open};
use overshot_backend::{Activations, Backend, IndexKeyFormat, KvFormat, Numerics, Wanted};
use overshot_backend_cpu::Isa;
use overshot_kv::SetId;
use overshot_model::Model;
use std::ops::Range;
use std::sync::Arc;

const CHUNKS: [usize; 5] = [1, 3, 4, 7, 128];

/// Long enough for an entry of every kind, and for a chunk of 128 that begins anywhere.
const LONG: Range<usize> = 130..300;
const SHORT: Range<usize> = 1..40;
/// One long sequence in so many.
const LONG_IN: usize = 8;

struct Sequence {
    tokens: Vec<u32>,
    /// Logits of every position, from a run alone, fed whole.
    alone: Vec<u32>,
}

#[test]
fn bf16_rows_are_bit_identical_alone_and_in_any_batch() {
    assert_rows_stand_alone("fixtures/tiny-bf16", 20_261_129);
}

#[test]
fn fp8_and_fp4_rows_are_bit_identical_alone_and_in_any_batch() {
    assert_rows_stand_alone("fixtures/tiny-fp8fp4", 20_261_130);
}

fn assert_rows_stand_alone(folder: &str, seed: u64) {
    let seed = std::env::var("OVERSHOT_SEED").ok().map_or(seed, |text| text.parse().unwrap());
    println!("{folder}: seed {seed} (OVERSHOT_SEED sets it)");
    let mut random = fastrand::Rng::with_seed(seed);
    let model = open(folder);
    let mut modes = all_numerics();
    random.shuffle(&mut modes);
    for &numerics in &modes[..3] {
        println!("{folder}: {numerics:?}");
        let mut bench = Bench::with(&model, numerics, 1, LONG.end, Some(1), Isa::detect());
        let sequences: Vec<Sequence> = (0..64)
            .map(|i| {
                let length = random.usize(if i % LONG_IN == 0 { LONG } else { SHORT });
                alone(&mut bench, &mut random, length)
            })
            .collect();
        for batch in [1, 2, 3, 5, 16, 64] {
            let mut picked: Vec<&Sequence> = sequences.iter().collect();
            random.shuffle(&mut picked);
            // A small batch is long throughout, or most of its steps would have one row.
            picked.sort_by_key(|s| batch <= LONG_IN && !LONG.contains(&s.tokens.len()));
            picked.truncate(batch);
            run_batched(&model, numerics, &picked, &mut random);
        }
    }
}

fn all_numerics() -> Vec<Numerics> {
    let mut all = Vec::new();
    for kv in [KvFormat::F32, KvFormat::Fp8] {
        for index_keys in
            [IndexKeyFormat::F32, IndexKeyFormat::Bf16, IndexKeyFormat::Fp8, IndexKeyFormat::Fp4]
        {
            all.extend([Activations::Exact, Activations::E4m3].map(|act| Numerics { kv, index_keys, act }));
        }
    }
    all
}

/// Random tokens, and their logits from a run of their own in `bench`.
fn alone(bench: &mut Bench, random: &mut fastrand::Rng, length: usize) -> Sequence {
    let vocab = bench.backend.spec().vocab_size as u32;
    let tokens: Vec<u32> = (0..length).map(|_| random.u32(0..vocab)).collect();
    let set = bench.kv.create().unwrap();
    let alone = bits(&bench.feed(set, &tokens, &[usize::MAX]));
    bench.kv.free(set).unwrap();
    Sequence { tokens, alone }
}

/// Steps over random subsets with random chunk sizes until every sequence is through.
fn run_batched(model: &Arc<Model>, numerics: Numerics, sequences: &[&Sequence], random: &mut fastrand::Rng) {
    let vocab = model.spec.vocab_size;
    let total: usize = sequences.iter().map(|s| s.tokens.len()).sum();
    let threads = Some(random.usize(1..4));
    let mut bench = Bench::with(model, numerics, sequences.len(), total, threads, Isa::detect());
    let sets: Vec<SetId> = sequences.iter().map(|_| bench.kv.create().unwrap()).collect();
    let mut done = vec![0; sequences.len()];
    while (0..sequences.len()).any(|i| done[i] < sequences[i].tokens.len()) {
        let mut picked: Vec<(usize, Range<usize>)> = Vec::new();
        for (index, sequence) in sequences.iter().enumerate() {
            let left = sequence.tokens.len() - done[index];
            if left > 0 && random.u8(0..4) > 0 {
                let count = CHUNKS[random.usize(0..CHUNKS.len())].min(left);
                picked.push((index, done[index]..done[index] + count));
            }
        }
        let rows: Vec<(SetId, &[u32])> =
            picked.iter().map(|(i, range)| (sets[*i], &sequences[*i].tokens[range.clone()])).collect();
        let results = bench.step(&rows, Wanted::AllLogits);
        for ((index, range), logits) in picked.into_iter().zip(&results) {
            let expected = &sequences[index].alone[range.start * vocab..range.end * vocab];
            assert!(bits(logits) == expected, "{numerics:?}: sequence {index}, positions {range:?}");
            done[index] = range.end;
        }
    }
}

/// Another rounding, the same model: the plain kernels stay within the fixtures' tolerance of the fast ones.
#[test]
fn the_scalar_kernels_agree_with_the_vector_kernels() {
    let model = open("fixtures/tiny-fp8fp4");
    let tokens: Vec<u32> = (0..150).map(|i| i * 37 % 192).collect();
    let run = |isa| {
        let mut bench = Bench::with(&model, Numerics::EXACT, 1, tokens.len(), None, isa);
        let set = bench.kv.create().unwrap();
        bench.feed(set, &tokens, &[64])
    };
    let (difference, _) = common::worst(&run(Isa::detect()), &run(Isa::Scalar));
    assert!(difference <= 2e-4, "{difference}");
}

/// Forks share pages and then part; a rollback undoes positions exactly.
#[test]
fn forks_snapshots_and_rollbacks_leave_no_trace() {
    let model = open("fixtures/tiny-bf16");
    let vocab = model.spec.vocab_size as u32;
    let seed = 7;
    let mut random = fastrand::Rng::with_seed(seed);
    println!("seed {seed}");
    for length in [5, 8, 127, 128, 131, 255, 256, 260, 300] {
        let tokens: Vec<u32> = (0..length).map(|_| random.u32(0..vocab)).collect();
        let tail: Vec<u32> = (0..12).map(|_| random.u32(0..vocab)).collect();
        let mut bench = Bench::new(&model, Numerics::default(), 4, 4 * 400);
        let set = bench.kv.create().unwrap();
        bench.feed(set, &tokens, &[64, 1]);
        let (fork, fork_ops) = bench.kv.fork(set).unwrap();
        bench.copy(fork_ops);
        let expected = bits(&bench.feed(set, &tail, &[1]));

        let wrong: Vec<u32> = (0..8).map(|_| random.u32(0..vocab)).collect();
        bench.feed(fork, &wrong, &[3]);
        let undone = bench.kv.rollback_room(fork).unwrap().min(8);
        assert_eq!(undone, 8);
        bench.kv.rollback(fork, undone).unwrap();
        let (snapshot, ops) = bench.kv.snapshot(fork).unwrap();
        bench.copy(ops);
        assert!(bits(&bench.feed(fork, &tail, &[5])) == expected, "rolled-back fork at {length}");
        let (restored, ops) = bench.kv.restore(snapshot).unwrap();
        bench.copy(ops);
        assert!(bits(&bench.feed(restored, &tail, &[7])) == expected, "restored snapshot at {length}");
    }
}
