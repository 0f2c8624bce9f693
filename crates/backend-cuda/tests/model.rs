//! The whole model on the emulator, and on a card where there is one, against the CPU backend, in every kind of numerics mode,
//! and to the bit in other orders of threads and parts; and that the kernels which should be taken are. What every backend must pass is in
//! `conformance.rs`.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Device, InAnyCompany, TOKENS_MAX};
use overshot_backend::{Activations, IndexKeyFormat, KvFormat, Numerics, Wanted};
use overshot_backend_cpu::{CpuBackend, CpuOptions, Isa};
use overshot_backend_cuda::backend::{Company, CudaBackend};
use overshot_backend_cuda::emulator::{EmulatedGpu, Launches, Order};
use overshot_backend_cuda::gpu::Gpu;
use overshot_backend_cuda::selftest::logit_differences;
use overshot_conformance::{Bench, Extent, Prompt, Setup, Subject, argmax, bits, drawn_plainly, open};
use overshot_model::Model;
use std::sync::Arc;

const ROUNDED: Numerics =
    Numerics { kv: KvFormat::Fp8, index_keys: IndexKeyFormat::Fp4, act: Activations::E4m3 };
const FP8FP4: &str = "fixtures/tiny-fp8fp4";
const BF16: &str = "fixtures/tiny-bf16";

fn random_tokens(model: &Model, count: usize) -> Vec<u32> {
    let mut random = overshot_testing::rng();
    (0..count).map(|_| random.u32(0..model.spec.vocab_size as u32)).collect()
}

/// What the devices are compared with.
struct Cpu;

impl Subject for Cpu {
    type Backend = CpuBackend;

    fn start(&self, model: &Arc<Model>, setup: Setup) -> CpuBackend {
        let Setup { numerics, capacity, tp, .. } = setup;
        let options =
            CpuOptions { numerics, capacity, tp, threads: Some(1), isa: Isa::detect(), rehearsal: None };
        CpuBackend::new(model.clone(), options).unwrap()
    }

    fn extent(&self) -> Extent {
        Extent::Part
    }
}

fn differences(model: &Model, ours: &[f32], theirs: &[f32]) -> Vec<f32> {
    assert_eq!(ours.len(), theirs.len());
    logit_differences(ours, theirs, model.spec.vocab_size)
}

/// Feeds `tokens` to both backends, a device in `chunks`.
fn assert_near_cpu(folder: &str, numerics: Numerics, tokens: usize, chunks: &[usize]) {
    let model = open(folder);
    let tokens = random_tokens(&model, tokens);
    let setup = Setup::new(numerics, 1, tokens.len());
    let expected = Bench::start(&Cpu, &model, setup).feed_new(&tokens, &[usize::MAX]);
    // A value on a rounding edge may fall either way, and later tokens then differ by about as much as the rounding itself.
    let (median_max, most_max) = if numerics == Numerics::EXACT { (5e-6, 5e-5) } else { (2e-2, 2e-1) };
    for device in Device::all(Extent::Part) {
        let ours = Bench::start(&device, &model, setup).feed_new(&tokens, chunks);
        let mut differences = differences(&model, &ours, &expected);
        differences.sort_by(f32::total_cmp);
        let (median, most) = (differences[differences.len() / 2], differences[differences.len() - 1]);
        println!("{folder}, {numerics:?}: median {median}, most {most}");
        assert!(median <= median_max && most <= most_max, "{folder}, {numerics:?}: {median}, {most}");
    }
}

#[test]
fn exact_numbers_are_the_cpus_past_an_entry_of_every_kind() {
    assert_near_cpu(BF16, Numerics::EXACT, 140, &[70, 1, 3]);
    assert_near_cpu(FP8FP4, Numerics::EXACT, 140, &[130, 1, 7]);
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
    if Device::emulator(Extent::Part).is_none() {
        return;
    }
    let model = open(FP8FP4);
    let tokens = random_tokens(&model, 45);
    for numerics in [Numerics::default(), ROUNDED] {
        let run = |order: Order, tokens_max: usize, chunks: &[usize]| {
            let setup = Setup::new(numerics, 1, tokens.len());
            let gpus = common::emulated(setup, order);
            let backend = common::start_on(gpus, &model, setup, tokens_max, Company::Invariant);
            bits(&Bench::over(backend).feed_new(&tokens, chunks))
        };
        let whole = run(Order::Ascending, TOKENS_MAX, &[usize::MAX]);
        let others = [
            (Order::Descending, TOKENS_MAX, &[usize::MAX][..]),
            (Order::Random(overshot_testing::seed()), TOKENS_MAX, &[1, 6]),
            (Order::Ascending, 7, &[20, 5]),
        ];
        for (order, tokens_max, chunks) in others {
            let label = format!("{numerics:?}, threads {order}, {tokens_max} at a time, chunks {chunks:?}");
            assert!(run(order, tokens_max, chunks) == whole, "{label}");
        }
    }
}

/// Prompts of every length, in batches of many sizes, each in two chunks: 99.9 % of logits are within 0.05, and a token is another
/// one only where the two likeliest are nearer than twice that. Rounded activations are another matter: sums in another order round
/// some of them to the other side, and what follows from that with them. What can be asked there is that both devices are about
/// as far from float32, and no farther from each other than what is drawn twice: by the root of 2.
#[test]
fn prompts_of_every_length_are_near_the_cpus_in_any_batch() {
    const NEAR: f32 = 0.05;
    let with_keys = |index_keys| Numerics { index_keys, ..Numerics::default() };
    let all = [Numerics::EXACT, Numerics::default(), with_keys(IndexKeyFormat::Fp4), ROUNDED];
    for device in Device::all(Extent::Part) {
        let (folder, longest, batches) = match device.extent() {
            Extent::Whole => ("models/dsv4-mini", 300, &[1, 2, 3, 5, 33, 256][..]),
            Extent::Part => (FP8FP4, 10, &[1, 3, 6][..]),
        };
        let model = open(folder);
        let text: Vec<u32> = match device.extent() {
            Extent::Whole => {
                Prompt::all().into_iter().find_map(|p| p.prompt.get(..longest).map(Vec::from)).unwrap()
            }
            Extent::Part => random_tokens(&model, longest),
        };
        let on_cpu = |numerics| {
            Bench::start(&Cpu, &model, Setup::new(numerics, 1, longest)).feed_new(&text, &[usize::MAX])
        };
        for &numerics in &all[..device.extent().choose(all.len(), 1)] {
            let expected = on_cpu(numerics);
            let mut bench =
                Bench::start(&device, &model, Setup::new(numerics, longest, longest * (longest + 1) / 2));
            let ours = every_prefix(&mut bench, &text, batches);
            let near = most_of(&ours, &expected);
            let vocab = model.spec.vocab_size;
            let rows = ours.chunks_exact(vocab).zip(expected.chunks_exact(vocab));
            let margins = rows.filter_map(|(ours, theirs)| {
                let (token, likeliest) = (argmax(ours) as usize, argmax(theirs) as usize);
                (token != likeliest).then(|| theirs[likeliest] - theirs[token])
            });
            let farthest = margins.fold(0.0, f32::max);
            println!(
                "{folder}, {numerics:?}: 99.9 % within {near}, another token's margin at most {farthest}"
            );
            if numerics.act == Activations::Exact {
                assert!(near <= NEAR && farthest < 2.0 * NEAR, "{folder}, {numerics:?}: {near}, {farthest}");
            } else {
                let exact = on_cpu(Numerics::EXACT);
                let [cpu, own] = [&expected, &ours].map(|logits| mean_difference(logits, &exact));
                println!("{folder}, {numerics:?}: {own} from float32 in the mean, the CPU {cpu}");
                assert!(own <= 1.05 * cpu, "{folder}, {numerics:?}: {own} from float32, the CPU {cpu}");
                let apart = std::f32::consts::SQRT_2 * most_of(&expected, &exact);
                assert!(near <= apart, "{folder}, {numerics:?}: {near} from the CPU, of {apart}");
            }
        }
    }
}

fn mean_difference(ours: &[f32], theirs: &[f32]) -> f64 {
    let sum: f64 = ours.iter().zip(theirs).map(|(a, b)| f64::from((a - b).abs())).sum();
    sum / ours.len() as f64
}

/// What 99.9 % of all differences are within.
fn most_of(ours: &[f32], theirs: &[f32]) -> f32 {
    assert_eq!(ours.len(), theirs.len());
    let mut differences: Vec<f32> = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).collect();
    differences.sort_by(f32::total_cmp);
    differences[differences.len() * 999 / 1000]
}

/// The logits behind every prefix of `text`, shuffled into batches of these sizes, which hold all of them; each prefix in two
/// chunks.
fn every_prefix(bench: &mut Bench<CudaBackend>, text: &[u32], batches: &[usize]) -> Vec<f32> {
    let mut lengths: Vec<usize> = (1..=text.len()).collect();
    let mut random = overshot_testing::rng();
    random.shuffle(&mut lengths);
    let mut logits = vec![Vec::new(); text.len()];
    let mut rest = lengths.as_slice();
    for &batch in batches {
        let (now, later) = rest.split_at(batch);
        rest = later;
        for (length, of_length) in now.iter().zip(last_logits(bench, text, now, &mut random)) {
            logits[length - 1] = of_length;
        }
    }
    assert!(rest.is_empty(), "batches do not hold every length");
    logits.concat()
}

/// The logits behind the first tokens of `text`, as many as each length says, all of them in one batch of two chunks.
fn last_logits(
    bench: &mut Bench<CudaBackend>,
    text: &[u32],
    lengths: &[usize],
    random: &mut fastrand::Rng,
) -> Vec<Vec<f32>> {
    let cut: Vec<_> = lengths
        .iter()
        .map(|&length| (bench.kv.create().unwrap(), text[..length].split_at(random.usize(0..length))))
        .collect();
    let begun: Vec<_> = cut.iter().filter(|(_, (first, _))| !first.is_empty()).collect();
    let first: Vec<_> = begun.iter().map(|(set, (first, _))| (*set, *first)).collect();
    if !first.is_empty() {
        bench.step(&first, Wanted::Nothing);
    }
    let second: Vec<_> = cut.iter().map(|(set, (_, second))| (*set, *second)).collect();
    let logits = bench.step(&second, Wanted::LastLogits);
    for (set, _) in &cut {
        bench.kv.free(*set).unwrap();
    }
    logits
}

/// Feeds tokens in chunks to so many ranks, then asks each what it launched.
fn launches(
    model: &Arc<Model>,
    tp: usize,
    numerics: Numerics,
    company: Company,
    chunks: &[usize],
) -> Vec<Launches> {
    let gpus: Vec<_> = (0..tp).map(|_| Arc::new(EmulatedGpu::new(Order::Ascending).unwrap())).collect();
    let tokens = random_tokens(model, chunks.iter().sum());
    let setup = Setup::new(numerics, 1, tokens.len()).ranks(tp);
    let devices = gpus.iter().map(|gpu| gpu.clone() as Arc<dyn Gpu>).collect();
    let backend = common::start_on(devices, model, setup, TOKENS_MAX, company);
    Bench::over(backend).feed_new(&tokens, chunks);
    gpus.iter().map(|gpu| gpu.launches()).collect()
}

/// Two steps of the model's two layers: of 9 tokens and of 1.
#[test]
fn the_tile_kernels_are_taken_for_every_matrix_that_they_take() {
    if Device::emulator(Extent::Part).is_none() {
        return;
    }
    let model = open(FP8FP4);
    const TILES: [(&str, usize); 6] = [
        // Inputs, queries, groups of heads, output, gate; and the head.
        ("dense_v3_r8c1t1_m1n1_b128_s3 dense", 11),
        ("dense_v3_r8c1t1_m1n2_b64_s4 dense", 11),
        ("experts_v3_r4c1t1_m2n1_b64_s4 up", 4),
        ("experts_v3_r4c1t1_m2n1_b64_s4 down", 4),
        ("matmul_sort sort", 4),
        ("matmul_sort combine", 4),
    ];
    let version_1 =
        ["matmul_v1 dense", "matmul_v1 round_rows", "experts_v1 expert_up", "experts_v1 expert_down"];
    for numerics in [Numerics::default(), ROUNDED] {
        let launched = launches(&model, 1, numerics, Company::Invariant, &[9, 1]).remove(0);
        for (kernel, count) in TILES {
            assert_eq!(launched.get(kernel), Some(&count), "{kernel}, {numerics:?}: {launched:?}");
        }
        assert!(launched.contains_key("matmul_prepare prepare"), "{launched:?}");
        let left = version_1.iter().find(|kernel| launched.contains_key(**kernel));
        assert_eq!(left, None, "{numerics:?}: {launched:?}");
    }
    // The second rank's columns of wo_b begin inside of a block of scales: version 1.
    let launched = launches(&model, 2, Numerics::default(), Company::Invariant, &[9, 1]);
    let of_version_1 = launched.iter().map(|launches| launches.get("matmul_v1 dense").copied());
    assert_eq!(of_version_1.collect::<Vec<_>>(), [None, Some(4)], "{launched:?}");
}

/// Splits may then follow the tokens: other sums, no fewer bits.
#[test]
fn in_any_company_numbers_are_as_near_the_cpus() {
    if Device::emulator(Extent::Part).is_none() {
        return;
    }
    let model = open(BF16);
    let tokens = random_tokens(&model, 70);
    let setup = Setup::new(Numerics::EXACT, 1, tokens.len());
    let gpus: Vec<Arc<dyn Gpu>> = vec![Arc::new(EmulatedGpu::new(Order::Ascending).unwrap())];
    let backend = common::start_on(gpus, &model, setup, TOKENS_MAX, Company::Any);
    let ours = Bench::over(backend).feed_new(&tokens, &[usize::MAX]);
    let expected = Bench::start(&Cpu, &model, setup).feed_new(&tokens, &[usize::MAX]);
    let most = differences(&model, &ours, &expected).into_iter().fold(0.0, f32::max);
    assert!(most <= 5e-5, "{most}");
}

/// Over a window's end, CSA entries fewer, as many as and more than are chosen, HCA entries none and one, in rows of one token and
/// of some. Decode attention rounds queries and answers to bf16: logits move by some thousandths, but where an expert or an
/// entry was as good as another one.
#[test]
fn decode_attention_is_near_the_cpus_past_every_edge() {
    let numerics = Numerics { kv: KvFormat::Fp8, ..Numerics::EXACT };
    for (folder, tp) in [(BF16, 1), (FP8FP4, 2)] {
        let model = open(folder);
        let tokens = random_tokens(&model, 140);
        let setup = Setup::new(numerics, 1, tokens.len());
        let expected = Bench::start(&Cpu, &model, setup).feed_new(&tokens, &[usize::MAX]);
        for device in Device::all(Extent::Part) {
            let mut bench = Bench::start(&InAnyCompany(device), &model, setup.ranks(tp));
            let ours = bench.feed_new(&tokens, &[1, 8, 3, 22, 1, 3, 84, 3, 2, 1, 8, 3, 1]);
            let mut differences = differences(&model, &ours, &expected);
            differences.sort_by(f32::total_cmp);
            let [median, all_but_some, most] = [2, 10, usize::MAX]
                .map(|one_in| differences[differences.len() - differences.len().div_ceil(one_in)]);
            println!("{folder}, {tp} ranks: median {median}, of nine in ten {all_but_some}, most {most}");
            let label = format!("{folder}, {tp} ranks: {median}, {all_but_some}, {most}");
            assert!(median <= 1e-2 && all_but_some <= 3e-2 && most <= 5e-1, "{label}");
        }
    }
}

/// Of four steps two have short rows alone; a layer each of three kinds and a second CSA layer.
#[test]
fn short_rows_alone_take_the_decode_kernels() {
    if Device::emulator(Extent::Part).is_none() {
        return;
    }
    let model = open(BF16);
    let count = |launched: &Launches, part: &str| -> usize {
        launched.iter().filter(|(name, _)| name.contains(part)).map(|(_, count)| count).sum()
    };
    let chunks = [9, 1, 20, 8];
    for tp in [1, 2] {
        for launched in launches(&model, tp, Numerics::default(), Company::Any, &chunks) {
            let kernels = [" decode", " queries", " answers", " lists", "_around selected", "attention_v2"];
            let counts = kernels.map(|kernel| count(&launched, kernel));
            assert_eq!(counts, [8, 8, 8, 2, 4, 8], "{tp} ranks: {launched:?}");
        }
    }
    let launched = launches(&model, 1, Numerics::default(), Company::Invariant, &chunks).remove(0);
    assert_eq!((count(&launched, " decode"), count(&launched, "attention_v2")), (0, 16), "{launched:?}");
    let launched = launches(&model, 1, Numerics::EXACT, Company::Any, &chunks).remove(0);
    assert_eq!(count(&launched, "attention_v1 attention"), 16, "float32 entries: {launched:?}");
}

/// Without roundings logits are too near each other for a draw to fall otherwise.
#[test]
fn drawn_tokens_are_the_cpus() {
    let model = open(FP8FP4);
    let setup = Setup::new(Numerics::EXACT, 3, 3 * 64);
    let expected = drawn_plainly(&Cpu, &model, setup, 5);
    for device in Device::all(Extent::Part) {
        assert_eq!(drawn_plainly(&device, &model, setup, 5), expected);
    }
}
