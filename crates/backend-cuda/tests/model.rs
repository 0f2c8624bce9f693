//! The whole model on the emulator: against the CPU backend in every kind of numerics mode, and against itself in other
//! chunks, parts, batches, orders of threads and numbers of ranks, to the bit where nothing may differ.
#![allow(clippy::unwrap_used)]

use overshot_backend::{
    Activations, Backend, Choice, IndexKeyFormat, KvFormat, Numerics, Row, RowResult, Sampling, StepPlan,
    Wanted,
};
use overshot_backend_cpu::{CpuBackend, CpuOptions, Isa};
use overshot_backend_cuda::backend::{CudaBackend, CudaOptions};
use overshot_backend_cuda::emulator::{EmulatedGpu, Order};
use overshot_backend_cuda::gpu::Gpu;
use overshot_kv::{Kv, PageOp, PoolCapacity, SetId};
use overshot_model::Model;
use std::path::Path;
use std::sync::Arc;

const ROUNDED: Numerics =
    Numerics { kv: KvFormat::Fp8, index_keys: IndexKeyFormat::Fp4, act: Activations::E4m3 };
const FP8FP4: &str = "fixtures/tiny-fp8fp4";
const BF16: &str = "fixtures/tiny-bf16";

fn open(path: &str) -> Arc<Model> {
    Arc::new(Model::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap())
}

fn random_tokens(model: &Model, count: usize) -> Vec<u32> {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| random.u32(0..model.spec.vocab_size as u32)).collect()
}

/// A backend with its accounting.
struct Bench {
    backend: Box<dyn Backend>,
    kv: Kv,
    number: u64,
}

impl Bench {
    fn over(backend: impl Backend + 'static) -> Self {
        let kv = Kv::new(backend.capacity());
        Bench { backend: Box::new(backend), kv, number: 0 }
    }

    fn cpu(model: &Arc<Model>, numerics: Numerics, capacity: PoolCapacity) -> Self {
        let options = CpuOptions { numerics, capacity, tp: 1, threads: Some(1), isa: Isa::detect() };
        Self::over(CpuBackend::new(model.clone(), options).unwrap())
    }

    /// `None`, said loudly, where there is no compiler.
    fn emulated(model: &Arc<Model>, options: CudaOptions, orders: &[Order]) -> Option<Self> {
        let open = |order: &Order| EmulatedGpu::new(*order).map(|gpu| Arc::new(gpu) as Arc<dyn Gpu>);
        match orders.iter().map(open).collect() {
            Ok(gpus) => Some(Self::over(CudaBackend::new(model, options, gpus).unwrap())),
            Err(error) => {
                eprintln!("SKIPPED: the model was not run on the emulator ({error})");
                None
            }
        }
    }

    fn plan(&mut self, rows: &[(SetId, &[u32], Wanted)]) -> StepPlan {
        let mut plan = StepPlan { number: self.number, ..StepPlan::default() };
        self.number += 1;
        for (set, tokens, wanted) in rows {
            let start = self.kv.len(*set).unwrap();
            plan.page_ops.extend(self.kv.extend(*set, tokens.len()).unwrap());
            let pages = self.kv.table(*set).unwrap().clone();
            let (tokens, wanted) = (tokens.to_vec(), wanted.clone());
            plan.rows.push(Row { tokens, start, placeholder: None, pages, wanted });
        }
        plan
    }

    fn step(&mut self, rows: &[(SetId, &[u32], Wanted)]) -> Vec<RowResult> {
        let plan = self.plan(rows);
        self.backend.step(plan).unwrap().rows
    }

    fn copy(&mut self, page_ops: Vec<PageOp>) {
        let plan = StepPlan { number: self.number, page_ops, ..StepPlan::default() };
        self.number += 1;
        self.backend.step(plan).unwrap();
    }

    /// Logits of every position, the tokens fed in chunks of these sizes (cycled).
    fn feed(&mut self, set: SetId, tokens: &[u32], chunks: &[usize]) -> Vec<f32> {
        let (mut rest, mut logits) = (tokens, Vec::new());
        for &size in chunks.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (chunk, others) = rest.split_at(size.min(rest.len()));
            logits.extend(self.step(&[(set, chunk, Wanted::AllLogits)]).remove(0).logits);
            rest = others;
        }
        logits
    }

    fn feed_new(&mut self, tokens: &[u32], chunks: &[usize]) -> Vec<f32> {
        let set = self.kv.create().unwrap();
        self.feed(set, tokens, chunks)
    }
}

fn options(numerics: Numerics, sets: usize, tokens: usize) -> CudaOptions {
    CudaOptions { numerics, capacity: PoolCapacity::for_sets(sets, tokens), tokens_max: 256 }
}

fn assert_same(ours: &[f32], theirs: &[f32], label: &str) {
    assert_eq!(ours.len(), theirs.len(), "{label}");
    let differs = ours.iter().zip(theirs).position(|(a, b)| a.to_bits() != b.to_bits());
    assert_eq!(differs, None, "{label}: logit differs");
}

/// Largest difference of each position, over the largest logit.
fn differences(model: &Model, ours: &[f32], theirs: &[f32]) -> Vec<f32> {
    assert_eq!(ours.len(), theirs.len());
    let largest = theirs.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    let rows = ours.chunks_exact(model.spec.vocab_size).zip(theirs.chunks_exact(model.spec.vocab_size));
    let worst = |(a, b): (&[f32], &[f32])| {
        let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
        differences.fold(0.0, |worst: f32, d| if d.is_nan() { f32::INFINITY } else { worst.max(d) })
    };
    rows.map(|row| worst(row) / largest).collect()
}

/// Feeds `tokens` to both backends, the emulated one in `chunks`.
fn assert_near_cpu(folder: &str, numerics: Numerics, tokens: usize, chunks: &[usize]) {
    let model = open(folder);
    let tokens = random_tokens(&model, tokens);
    let options = options(numerics, 1, tokens.len());
    let Some(mut emulated) = Bench::emulated(&model, options, &[Order::Ascending]) else { return };
    let expected = Bench::cpu(&model, numerics, options.capacity).feed_new(&tokens, &[usize::MAX]);
    let mut differences = differences(&model, &emulated.feed_new(&tokens, chunks), &expected);
    differences.sort_by(f32::total_cmp);
    let (median, most) = (differences[differences.len() / 2], differences[differences.len() - 1]);
    println!("{folder}, {numerics:?}: median {median}, most {most}");
    // A value on a rounding edge may fall either way, and later tokens then differ by about as much as the rounding itself.
    let (median_max, most_max) = if numerics == Numerics::EXACT { (5e-6, 5e-5) } else { (2e-2, 2e-1) };
    assert!(median <= median_max && most <= most_max, "{folder}, {numerics:?}: {median}, {most}");
}

#[test]
fn exact_numbers_are_the_cpus_past_an_entry_of_every_kind() {
    assert_near_cpu(BF16, Numerics::EXACT, 140, &[70, 1, 3]);
    assert_near_cpu(FP8FP4, Numerics::EXACT, 140, &[1]);
}

#[test]
fn a_chunk_longer_than_the_window_sees_what_was_in_the_ring_before_it() {
    assert_near_cpu(FP8FP4, Numerics::EXACT, 330, &[90, 240]);
}

#[test]
fn rounded_numbers_are_near_the_cpus_in_every_format() {
    assert_near_cpu(FP8FP4, ROUNDED, 60, &[60]);
    assert_near_cpu(BF16, Numerics::default(), 60, &[31]);
    assert_near_cpu(FP8FP4, Numerics { index_keys: IndexKeyFormat::Bf16, ..Numerics::EXACT }, 60, &[60]);
}

#[test]
fn neither_chunks_nor_parts_nor_the_order_of_threads_change_a_bit() {
    let model = open(FP8FP4);
    let tokens = random_tokens(&model, 45);
    for numerics in [Numerics::default(), ROUNDED] {
        let run = |order: Order, tokens_max: usize, chunks: &[usize]| {
            let options = CudaOptions { tokens_max, ..options(numerics, 1, tokens.len()) };
            Bench::emulated(&model, options, &[order]).map(|mut bench| bench.feed_new(&tokens, chunks))
        };
        let Some(whole) = run(Order::Ascending, 256, &[usize::MAX]) else { return };
        let others = [
            (Order::Descending, 256, &[usize::MAX][..]),
            (Order::Random(fastrand::u64(..)), 256, &[1]),
            (Order::Ascending, 7, &[20, 5]),
        ];
        for (order, tokens_max, chunks) in others {
            let label = format!("{numerics:?}, threads {order}, {tokens_max} at a time, chunks {chunks:?}");
            assert_same(&run(order, tokens_max, chunks).unwrap(), &whole, &label);
        }
    }
}

#[test]
fn rows_are_the_same_alone_and_beside_others() {
    let model = open(BF16);
    let prompts: Vec<Vec<u32>> = [37, 5, 14].map(|count| random_tokens(&model, count)).to_vec();
    let options = options(Numerics::default(), 3, 60);
    let Some(mut bench) = Bench::emulated(&model, options, &[Order::Ascending]) else { return };
    let sets: Vec<SetId> = prompts.iter().map(|_| bench.kv.create().unwrap()).collect();
    let rows: Vec<_> =
        sets.iter().zip(&prompts).map(|(set, prompt)| (*set, prompt.as_slice(), Wanted::AllLogits)).collect();
    let together = bench.step(&rows);
    for (prompt, together) in prompts.iter().zip(together) {
        let Some(mut alone) = Bench::emulated(&model, options, &[Order::Ascending]) else { return };
        assert_same(&together.logits, &alone.feed_new(prompt, &[usize::MAX]), "together and alone");
    }
}

#[test]
fn forks_and_rollbacks_leave_no_trace() {
    let model = open(FP8FP4);
    let (tokens, tail, wrong) =
        (random_tokens(&model, 131), random_tokens(&model, 6), random_tokens(&model, 8));
    let Some(mut bench) = Bench::emulated(&model, options(Numerics::default(), 4, 800), &[Order::Ascending])
    else {
        return;
    };
    let set = bench.kv.create().unwrap();
    bench.feed(set, &tokens, &[64]);
    let (fork, ops) = bench.kv.fork(set).unwrap();
    bench.copy(ops);
    let expected = bench.feed(set, &tail, &[1]);
    bench.feed(fork, &wrong, &[3]);
    bench.kv.rollback(fork, 8).unwrap();
    assert_same(&bench.feed(fork, &tail, &[4]), &expected, "a fork taken back");
}

#[test]
fn two_ranks_give_the_logits_of_one() {
    for folder in [BF16, FP8FP4] {
        let model = open(folder);
        let tokens = random_tokens(&model, 45);
        let options = options(Numerics::EXACT, 1, tokens.len());
        let run = |orders: &[Order]| {
            Bench::emulated(&model, options, orders).map(|mut bench| bench.feed_new(&tokens, &[40]))
        };
        let Some(alone) = run(&[Order::Ascending]) else { return };
        let shared = run(&[Order::Ascending, Order::Descending]).unwrap();
        let worst = differences(&model, &shared, &alone).into_iter().fold(0.0, f32::max);
        assert!(worst <= 1e-4, "{folder}: {worst}");
    }
}

/// The second step goes on from a token that the first still draws.
#[test]
fn a_placeholder_stands_for_what_the_step_before_draws() {
    let model = open(FP8FP4);
    let tokens = random_tokens(&model, 9);
    let options = options(Numerics::EXACT, 1, 64);
    let Some(mut bench) = Bench::emulated(&model, options, &[Order::Ascending]) else { return };
    let wanted = Wanted::Token {
        sampling: Arc::new(Sampling { seed: 5, top_p: 0.9, ..Sampling::default() }),
        seen: Vec::new(),
        choice: Choice::Free,
    };
    let set = bench.kv.create().unwrap();
    let first = bench.plan(&[(set, &tokens, wanted.clone())]);
    let mut second = bench.plan(&[(set, &[0], wanted.clone())]);
    second.rows[0].placeholder = Some(0);
    bench.backend.submit(first).unwrap();
    bench.backend.submit(second).unwrap();
    let drawn: Vec<u32> = (0..2).map(|_| bench.backend.collect().unwrap().rows[0].tokens[0].token).collect();
    let mut cpu = Bench::cpu(&model, Numerics::EXACT, options.capacity);
    let set = cpu.kv.create().unwrap();
    let first = cpu.step(&[(set, &tokens, wanted.clone())])[0].tokens[0].token;
    let second = cpu.step(&[(set, &[first], wanted)])[0].tokens[0].token;
    assert_eq!(drawn, [first, second]);
}

/// The numbers of two implementations that are not ours: prompts, then their greedy tokens one by one.
#[test]
fn the_shared_fixtures_are_met() {
    for (folder, longest) in [(BF16, 5), (FP8FP4, 130)] {
        let model = open(folder);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
        let manifest: serde_json::Value =
            serde_json::from_slice(&std::fs::read(path.join("manifest.json")).unwrap()).unwrap();
        let tolerance = manifest["tolerance"]["logits_abs"].as_f64().unwrap() as f32;
        let cases = manifest["cases"].as_array().unwrap();
        for case in cases.iter().filter(|case| case["prompt_tokens"].as_u64() <= Some(longest)) {
            let file = case["file"].as_str().unwrap();
            let bytes = std::fs::read(path.join(file)).unwrap();
            let arrays = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let words = |name: &str| -> Vec<u32> {
                let data = arrays.tensor(name).unwrap().data().chunks_exact(4);
                data.map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
            };
            let (prompt, greedy, positions) =
                (words("input_ids"), words("greedy.tokens"), words("positions"));
            let options = options(Numerics::EXACT, 1, prompt.len() + greedy.len());
            let Some(mut bench) = Bench::emulated(&model, options, &[Order::Ascending]) else { return };
            let set = bench.kv.create().unwrap();
            let mut logits = bench.feed(set, &prompt, &[usize::MAX]);
            logits.extend(bench.feed(set, &greedy, &[1]));
            let last = prompt.len() as u32 - 1;
            let wanted = positions.into_iter().chain((0..greedy.len() as u32).map(|step| last + step));
            let rows: Vec<&[f32]> = logits.chunks_exact(model.spec.vocab_size).collect();
            let ours: Vec<f32> = wanted.flat_map(|position| rows[position as usize]).copied().collect();
            let theirs = words("logits").into_iter().chain(words("greedy.logits")).map(f32::from_bits);
            let theirs: Vec<f32> = theirs.collect();
            assert_eq!(ours.len(), theirs.len());
            let near = |(a, b): (&f32, &f32)| (a - b).abs() <= tolerance;
            let differs = ours.iter().zip(&theirs).position(|pair| !near(pair));
            assert_eq!(differs, None, "{folder}, {file}: logit differs");
        }
    }
}
