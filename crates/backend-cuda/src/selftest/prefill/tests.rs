//! The kernels on the emulator: what `gpu-check` asks of a GPU, with smaller shapes.

use super::decoding::DecodeStep;
use super::index::{IndexKernels, best};
use super::*;
use crate::backend::kernels::AttentionTiles;
use crate::decode::Variant;
use crate::emulator::{EmulatedGpu, Order};
use crate::gpu::Gpu;
use fastrand::Rng;
use overshot_backend::IndexKeyFormat;
use overshot_model::HEAD_DIM;
use std::sync::Arc;

/// `None`, said loudly, where there is no compiler.
fn open(order: Order) -> Option<Arc<dyn Gpu>> {
    match EmulatedGpu::new(order) {
        Ok(gpu) => Some(Arc::new(gpu)),
        Err(error) => {
            eprintln!("SKIPPED: attention was not checked ({error})");
            None
        }
    }
}

fn case(rows: &[(usize, usize)], heads: usize, seen: Seen) -> AttentionCase {
    let rows = rows.iter().map(|&(start, tokens)| Piece { start, tokens }).collect();
    AttentionCase { rows, heads, seen, sink_size: 4.0, sinks_off: 0, last_is_odd: false }
}

fn assert_right(gpu: &Arc<dyn Gpu>, case: &AttentionCase, random: &mut Rng) {
    let mut inputs = case.inputs(gpu, random).unwrap();
    let finding = inputs.check(&AttentionTiles::load(&**gpu).unwrap(), 1).unwrap();
    println!("{:.3} of what is allowed, {} not finite: {case:?}", finding.worst, finding.not_finite);
    assert!(finding.passed(), "{:.3}: {case:?}", finding.worst);
}

#[test]
fn every_kind_of_layer_is_right_at_its_edges() {
    let mut random = overshot_testing::rng();
    let Some(gpu) = open(Order::Ascending) else { return };
    for case in [
        case(&[(0, 1)], 16, Seen::Nothing),
        // In and out of the ring, over a tile's edge and the window's end, rows that share nothing.
        case(&[(126, 4), (0, 3), (300, 1)], 3, Seen::Nothing),
        // A row longer than what the ring could keep.
        case(&[(250, 6)], 20, Seen::All),
        // An entry completes in the midst of the row.
        case(&[(382, 4), (127, 1), (5, 2)], 4, Seen::All),
        // Fewer visible than chosen, none at all, more.
        case(&[(0, 5), (90, 3)], 16, Seen::Selected(12)),
        case(&[(200, 2)], 33, Seen::Selected(40)),
        // Sinks beside which the keys weigh next to nothing.
        AttentionCase { sink_size: 7.0, ..case(&[(0, 4)], 32, Seen::Nothing) },
        AttentionCase { sinks_off: 2, ..case(&[(40, 2)], 3, Seen::Selected(8)) },
    ] {
        assert_right(&gpu, &case, &mut random);
    }
}

#[test]
fn the_order_of_threads_does_not_show() {
    let seed = overshot_testing::seed();
    let case = case(&[(140, 3), (20, 2)], 17, Seen::All);
    let mut answers = Vec::new();
    for order in [Order::Ascending, Order::Descending, Order::Random(seed)] {
        let Some(gpu) = open(order) else { return };
        let mut inputs = case.inputs(&gpu, &mut Rng::with_seed(seed)).unwrap();
        answers.push(inputs.bits(&AttentionTiles::load(&*gpu).unwrap()).unwrap());
    }
    assert!(answers.iter().all(|bits| *bits == answers[0]), "the order of threads shows");
}

#[test]
fn a_latent_that_is_no_number_spoils_its_own_token_alone() {
    let seed = overshot_testing::seed();
    let Some(gpu) = open(Order::Ascending) else { return };
    let clean = case(&[(10, 2), (3, 4)], 5, Seen::Nothing);
    let odd = AttentionCase { last_is_odd: true, ..clean.clone() };
    let kernel = AttentionTiles::load(&*gpu).unwrap();
    let [clean, odd] = [&clean, &odd].map(|case| {
        let mut inputs = case.inputs(&gpu, &mut Rng::with_seed(seed)).unwrap();
        inputs.bits(&kernel).unwrap()
    });
    let (last, others) = odd.split_last().unwrap();
    assert!(last.iter().all(|bits| f32::from_bits(*bits).is_nan()), "the last token is not spoilt");
    assert!(others == &clean[..others.len()], "other tokens changed");
}

fn assert_decodes(gpu: &Arc<dyn Gpu>, case: &AttentionCase, random: &mut Rng) {
    let top = if let Seen::Selected(top) = case.seen { top } else { 1 };
    let mut inputs = case.inputs(gpu, random).unwrap();
    for kernel in Variant::shipped(gpu.facts().unwrap().sm) {
        let step = DecodeStep::load(gpu, case.heads, top, Some(&kernel)).unwrap();
        let off = step.off(&mut inputs, 1).unwrap();
        println!("{}, {off:?}: {case:?}", kernel.name);
        assert!(off.passed(), "{}, {off:?}: {case:?}", kernel.name);
    }
}

#[test]
fn decoding_is_right_at_every_edge_of_its_lists() {
    let mut random = overshot_testing::rng();
    let Some(gpu) = open(Order::Ascending) else { return };
    for case in [
        // One entry, a window not yet full, just full, sliding; tokens of a row see those before them.
        case(&[(0, 1), (3, 2), (126, 3), (127, 1), (128, 1)], 4, Seen::Nothing),
        // Over the ring's end, and where the window begins at its start.
        case(&[(255, 1), (254, 3), (256, 1), (383, 2)], 16, Seen::Nothing),
        // As many tokens as a row may have here.
        case(&[(509, 8)], 20, Seen::Nothing),
        // No entry, the first completed by this very token or between tokens, several pages.
        case(&[(126, 1), (127, 1), (126, 3), (900, 1)], 4, Seen::All),
        case(&[(2047, 2)], 33, Seen::All),
        // No entry, fewer than are chosen, exactly as many, more.
        case(&[(0, 2), (10, 1), (47, 1), (46, 3), (200, 1)], 4, Seen::Selected(12)),
        case(&[(1200, 2)], 16, Seen::Selected(130)),
        AttentionCase { sinks_off: 2, ..case(&[(40, 2)], 3, Seen::Selected(8)) },
    ] {
        assert_decodes(&gpu, &case, &mut random);
    }
}

#[test]
fn the_order_of_threads_does_not_show_when_decoding() {
    let seed = overshot_testing::seed();
    let case = case(&[(140, 3), (20, 2), (700, 1)], 17, Seen::Selected(40));
    let mut answers = Vec::new();
    for order in [Order::Ascending, Order::Descending, Order::Random(seed)] {
        let Some(gpu) = open(order) else { return };
        let step = DecodeStep::load(&gpu, 17, 40, None).unwrap();
        let mut inputs = case.inputs(&gpu, &mut Rng::with_seed(seed)).unwrap();
        // Twice: a launch leaves nothing behind for the next.
        for _ in 0..2 {
            let bits: Vec<u32> = step.answers(&mut inputs).unwrap().iter().map(|x| x.to_bits()).collect();
            answers.push(bits);
        }
    }
    assert!(answers.iter().all(|bits| *bits == answers[0]), "the order of threads shows");
}

#[test]
fn what_is_no_number_spoils_its_own_answers_alone_when_decoding() {
    let seed = overshot_testing::seed();
    let Some(gpu) = open(Order::Ascending) else { return };
    let step = DecodeStep::load(&gpu, 5, 1, None).unwrap();
    let clean = case(&[(10, 2), (300, 3)], 5, Seen::Nothing);
    let run = |case: &AttentionCase, spoilt: Option<usize>| {
        let mut inputs = case.inputs(&gpu, &mut Rng::with_seed(seed)).unwrap();
        spoilt.into_iter().for_each(|token| inputs.spoil_query(token));
        step.answers(&mut inputs).unwrap()
    };
    let expected = run(&clean, None);
    let same = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
    // The newest latent is seen by the last token alone.
    let odd = run(&AttentionCase { last_is_odd: true, ..clean.clone() }, None);
    let last = 4 * 5 * HEAD_DIM;
    assert!(odd[last..].iter().all(|x| x.is_nan()), "a latent that is no number does not show");
    assert!(same(&odd[..last], &expected[..last]), "a latent that is no number shows elsewhere");
    let odd = run(&clean, Some(2));
    let head = 2 * 5 * HEAD_DIM..(2 * 5 + 1) * HEAD_DIM;
    assert!(odd[head.clone()].iter().all(|x| x.is_nan()), "a query that is no number does not show");
    assert!(same(&odd[..head.start], &expected[..head.start]), "it shows before");
    assert!(same(&odd[head.end..], &expected[head.end..]), "it shows behind");
}

fn index(rows: &[(usize, usize)], heads: usize, top: usize, format: IndexKeyFormat) -> IndexCase {
    let rows = rows.iter().map(|&(start, tokens)| Piece { start, tokens }).collect();
    IndexCase { rows, heads, top, format }
}

#[test]
fn scores_are_right_in_every_format_and_choices_follow_from_them() {
    let mut random = overshot_testing::rng();
    let seed = random.u64(..);
    for (order, case) in [
        // More tokens than a block has, across a tile and a page of keys; some see fewer than are chosen.
        (Order::Ascending, index(&[(270, 19)], 8, 12, IndexKeyFormat::Fp8)),
        (Order::Descending, index(&[(60, 3), (0, 5), (30, 9)], 16, 8, IndexKeyFormat::Fp4)),
        (Order::Random(seed), index(&[(255, 2), (513, 1)], 5, 8, IndexKeyFormat::Bf16)),
        // A second block of keys.
        (Order::Ascending, index(&[(2100, 1)], 1, 3, IndexKeyFormat::Fp4)),
        // Of up to 32 heads and up to 64 there are variants of their own, which differ in a number.
        (Order::Ascending, index(&[(80, 9)], 50, 4, IndexKeyFormat::Fp8)),
    ] {
        let Some(gpu) = open(order) else { return };
        let kernels = IndexKernels::load(&*gpu, case.heads).unwrap().unwrap();
        let finding = case.inputs(&gpu, &mut random).unwrap().check(&kernels, 1).unwrap();
        println!("{:.3} of what is allowed: {case:?}", finding.worst);
        assert!(finding.passed(), "{:.3}, {} unlike: {case:?}", finding.worst, finding.unprepared);
    }
}

#[test]
fn equal_scores_are_chosen_from_below_however_many_there_are() {
    let mut random = overshot_testing::rng();
    let Some(gpu) = open(Order::Ascending) else { return };
    let kernels = IndexKernels::load(&*gpu, 1).unwrap().unwrap();
    // The last is more equal keys than shared memory has room for.
    for (visible, top, values) in
        [(9, 8, 3), (1025, 8, 2), (2500, 600, 40), (3000, 512, 1 << 20), (4500, 70, 1)]
    {
        let case = index(&[(visible * 4 - 1, 1)], 1, top, IndexKeyFormat::Bf16);
        let mut inputs = case.inputs(&gpu, &mut random).unwrap();
        let scores: Vec<f32> = (0..visible)
            .map(|_| match random.u32(0..values) {
                0 => -0.0,
                1 => 0.0,
                value => (f64::from(value) - f64::from(values / 2)) as f32 * 1e-3,
            })
            .collect();
        assert_eq!(
            inputs.choose(&kernels, &scores).unwrap(),
            best(&scores, top),
            "{top} of {visible}, {values} values"
        );
    }
}
