//! A row's bits depend on the row alone: random batches, chunkings and variations against solo runs.

use crate::{Bench, Setup, Subject, bits, open};
use overshot_backend::{Activations, Backend, IndexKeyFormat, KvFormat, Numerics, Wanted};
use overshot_kv::SetId;
use overshot_model::Model;
use std::ops::Range;
use std::sync::Arc;

const CHUNKS: [usize; 5] = [1, 3, 4, 7, 128];
/// One long sequence in so many.
const LONG_IN: usize = 8;

/// What is tried.
struct Scale {
    modes: usize,
    sequences: usize,
    long: Range<usize>,
    short: Range<usize>,
    batches: &'static [usize],
}

/// Long ones have an entry of every kind, and a chunk of 128 that begins anywhere.
const WHOLE: Scale =
    Scale { modes: 3, sequences: 64, long: 130..300, short: 1..40, batches: &[1, 2, 3, 5, 16, 64] };
const PART: Scale = Scale { modes: 2, sequences: 4, long: 20..40, short: 1..16, batches: &[1, 4] };

struct Sequence {
    tokens: Vec<u32>,
    /// Logits of every position, from a run alone, fed whole.
    alone: Vec<u32>,
}

pub fn rows_stand_alone(subject: &impl Subject, folder: &str, seed: u64) {
    let scale = subject.extent().choose(WHOLE, PART);
    let mut random = fastrand::Rng::with_seed(seed);
    let model = open(folder);
    let mut modes = all_numerics();
    random.shuffle(&mut modes);
    for &numerics in &modes[..scale.modes] {
        println!("{folder}: {numerics:?}");
        let mut bench = Bench::start(subject, &model, Setup::new(numerics, 1, scale.long.end));
        let sequences: Vec<Sequence> = (0..scale.sequences)
            .map(|i| {
                let range = if i % LONG_IN == 0 { scale.long.clone() } else { scale.short.clone() };
                let length = random.usize(range);
                alone(&mut bench, &mut random, length)
            })
            .collect();
        for &batch in scale.batches {
            let mut picked: Vec<&Sequence> = sequences.iter().collect();
            random.shuffle(&mut picked);
            // A small batch is long throughout, or most of its steps would have one row.
            picked.sort_by_key(|s| batch <= LONG_IN && !scale.long.contains(&s.tokens.len()));
            picked.truncate(batch);
            run_batched(subject, &model, numerics, &picked, &mut random);
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
fn alone<B: Backend>(bench: &mut Bench<B>, random: &mut fastrand::Rng, length: usize) -> Sequence {
    let vocab = bench.backend.spec().vocab_size as u32;
    let tokens: Vec<u32> = (0..length).map(|_| random.u32(0..vocab)).collect();
    let set = bench.kv.create().unwrap();
    let alone = bits(&bench.feed(set, &tokens, &[usize::MAX]));
    bench.kv.free(set).unwrap();
    Sequence { tokens, alone }
}

/// Steps over random subsets with random chunk sizes until every sequence is through.
fn run_batched(
    subject: &impl Subject,
    model: &Arc<Model>,
    numerics: Numerics,
    sequences: &[&Sequence],
    random: &mut fastrand::Rng,
) {
    let vocab = model.spec.vocab_size;
    let total: usize = sequences.iter().map(|s| s.tokens.len()).sum();
    let variation = random.u64(1..);
    let setup = Setup::new(numerics, sequences.len(), total).varied(variation);
    let mut bench = Bench::start(subject, model, setup);
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
            assert!(
                bits(logits) == expected,
                "{numerics:?}, variation {variation}: sequence {index}, positions {range:?}"
            );
            done[index] = range.end;
        }
    }
}
