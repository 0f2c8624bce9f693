//! A row's bits depend on the row alone: random batches, chunkings and thread counts against solo runs.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Bench, bits, open};
use overshot_backend::{Numerics, Wanted};
use overshot_backend_cpu::Isa;
use overshot_kv::SetId;

const CHUNKS: [usize; 5] = [1, 3, 4, 7, 128];

struct Sequence {
    tokens: Vec<u32>,
    /// Logits of every position, from a run alone, fed whole.
    alone: Vec<u32>,
    done: usize,
    set: Option<SetId>,
}

#[test]
fn rows_are_bit_identical_alone_and_in_any_batch() {
    let seed = std::env::var("OVERSHOT_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_261_129);
    println!("seed {seed} (OVERSHOT_SEED sets it)");
    let mut random = fastrand::Rng::with_seed(seed);
    for folder in ["fixtures/tiny-bf16", "fixtures/tiny-fp8fp4"] {
        let model = open(folder);
        let vocab = model.spec.vocab_size;
        for numerics in [Numerics::EXACT, Numerics::default()] {
            for batch in [1, 2, 3, 5, 16, 64] {
                let mut sequences: Vec<Sequence> = (0..batch)
                    .map(|_| {
                        let len = random.usize(1..if batch > 16 { 80 } else { 300 });
                        let tokens: Vec<u32> = (0..len).map(|_| random.u32(0..vocab as u32)).collect();
                        let mut bench = Bench::with(&model, numerics, 1, len, Some(1), Isa::detect());
                        let set = bench.kv.create().unwrap();
                        let alone = bits(&bench.feed(set, &tokens, &[usize::MAX]));
                        Sequence { tokens, alone, done: 0, set: None }
                    })
                    .collect();
                let threads = Some(random.usize(1..4));
                let total: usize = sequences.iter().map(|s| s.tokens.len()).sum();
                let mut bench = Bench::with(&model, numerics, batch, total, threads, Isa::detect());
                for sequence in &mut sequences {
                    sequence.set = Some(bench.kv.create().unwrap());
                }
                run_batched(&mut bench, &mut sequences, &mut random, vocab);
            }
        }
    }
}

/// Steps over random subsets with random chunk sizes until every sequence is through.
fn run_batched(bench: &mut Bench, sequences: &mut [Sequence], random: &mut fastrand::Rng, vocab: usize) {
    loop {
        let mut picked: Vec<(usize, usize)> = Vec::new();
        for (index, sequence) in sequences.iter().enumerate() {
            let left = sequence.tokens.len() - sequence.done;
            if left > 0 && random.u8(0..4) > 0 {
                picked.push((index, CHUNKS[random.usize(0..CHUNKS.len())].min(left)));
            }
        }
        if picked.is_empty() {
            if sequences.iter().all(|s| s.done == s.tokens.len()) {
                return;
            }
            continue;
        }
        let rows: Vec<(SetId, &[u32])> = picked
            .iter()
            .map(|&(index, count)| {
                let s = &sequences[index];
                (s.set.unwrap(), &s.tokens[s.done..s.done + count])
            })
            .collect();
        let results = bench.step(&rows, Wanted::AllLogits);
        for (&(index, count), logits) in picked.iter().zip(&results) {
            let s = &mut sequences[index];
            let expected = &s.alone[s.done * vocab..(s.done + count) * vocab];
            assert!(bits(logits) == expected, "sequence {index}, positions {}..{}", s.done, s.done + count);
            s.done += count;
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
