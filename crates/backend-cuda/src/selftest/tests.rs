//! The ladder's kernels on the emulator against the float64 reference: what `gpu-check run` asks of a GPU, with fewer and
//! smaller cases.

use super::device_case::{DeviceCase, DevicePools};
use super::inputs::{Case, Exponents, Lengths, ListShape};
use super::reference::{distance, reference};
use crate::decode::{DecodeKernel, Knobs, Schedule, Variant, WORKERS_MAX};
use crate::emulator::{EmulatedGpu, Order};
use crate::gpu::Gpu;
use std::sync::Arc;

fn cases() -> [Case; 3] {
    let base = Case {
        name: "plain".into(),
        rows: 2,
        heads: 16,
        window: ListShape { capacity: 128, page_entries: 256, entries: 512 },
        extra: ListShape { capacity: 96, page_entries: 64, entries: 1024 },
        lengths: Lengths::Full,
        exponents: Exponents::Natural,
        q_scale: 1.0,
        masked_one_in: 0,
        sinks_off: 0,
        seed: 41,
    };
    let odd = ListShape { capacity: 77, page_entries: 13, entries: 700 };
    [
        Case {
            name: "masked, uneven".into(),
            lengths: Lengths::Uneven,
            masked_one_in: 3,
            sinks_off: 5,
            ..base.clone()
        },
        Case {
            name: "odd pages, 3 heads".into(),
            heads: 3,
            window: odd,
            exponents: Exponents::Wild,
            ..base.clone()
        },
        base,
    ]
}

/// Checks `variant` with its rows in `parts` parts each, or with so many workers.
fn assert_right(variant: &Variant, parts: u32) {
    let mut answers = Vec::new();
    for order in [Order::Ascending, Order::Descending, Order::Random(7)] {
        let gpu: Arc<dyn Gpu> = match EmulatedGpu::new(order) {
            Ok(gpu) => Arc::new(gpu),
            Err(error) => return eprintln!("SKIPPED: {} was not checked ({error})", variant.name),
        };
        let kernel = DecodeKernel::load(&*gpu, variant).unwrap();
        let schedule = Schedule::load(&*gpu).unwrap();
        for case in cases() {
            let inputs = case.inputs(&mut fastrand::Rng::with_seed(case.seed));
            let rows: Vec<usize> = (0..case.rows).collect();
            let pools = DevicePools::new(&gpu, &inputs).unwrap();
            let room = (case.rows * parts as usize).max(2 * WORKERS_MAX as usize);
            let mut on_device = DeviceCase::new(&gpu, &case, &inputs, &[], room, 1).unwrap();
            on_device.poison().unwrap();
            if variant.takes_schedule() {
                on_device.schedule(&schedule, &kernel, 0, parts).unwrap();
            }
            on_device.launch(&kernel, &on_device.args(&pools, 0, 0, parts)).unwrap();
            let answer = on_device.out.copy_out().unwrap();
            let distance = distance(&case, &answer, &reference(&case, &inputs, &rows), &rows);
            let label = format!("{}, {}, {order}: {distance:?}", variant.name, case.name);
            assert!(distance.overall <= 2e-3_f64.max(1.1 * distance.rounding), "{label}");
            assert!(distance.worst_head <= 4e-3 && distance.not_finite == 0, "{label}");
            answers.push((case.name.clone(), answer));
        }
    }
    let cases = answers.len() / 3;
    for (at, (name, answer)) in answers.iter().enumerate().skip(cases) {
        assert!(*answer == answers[at % cases].1, "{}, {name}: the order of threads shows", variant.name);
    }
}

#[test]
fn the_naive_kernel_is_right() {
    assert_right(&Variant::naive(), 1);
}

#[test]
fn the_plain_tile_kernel_is_right_with_rows_whole_and_in_parts() {
    let variant = Variant::campaign(Knobs::default());
    assert_right(&variant, 1);
    assert_right(&variant, 3);
}

#[test]
fn the_prototype_is_right_with_rows_whole_and_in_parts() {
    assert_right(&Variant::prototype(), 1);
    assert_right(&Variant::prototype(), 3);
}

#[test]
fn the_kernels_that_ship_are_right() {
    for sm in [90, 120] {
        for variant in Variant::shipped(sm) {
            assert_right(&variant, if variant.takes_schedule() { 3 } else { 2 });
        }
    }
}
