//! Rehearsals on the emulator: one rank without its peers behind a cache that is full from the start gives what the same rank of the
//! CPU backend gives, over random weights; and a plan that asks for its time by family gets it.
#![allow(clippy::unwrap_used)]

use overshot_backend::{
    Backend, Choice, Family, Numerics, Rehearsal, Row, Sampled, Sampling, StepPlan, StepResult, Timing,
    Wanted,
};
use overshot_backend_cpu::{CpuBackend, CpuOptions, Isa};
use overshot_backend_cuda::backend::{Company, CudaBackend, CudaOptions};
use overshot_backend_cuda::emulator::{EmulatedGpu, Order};
use overshot_backend_cuda::gpu::Gpu;
use overshot_conformance::open;
use overshot_kv::{Kv, PoolCapacity};
use overshot_model::Model;
use std::sync::Arc;

const CONTEXT: usize = 300;
const ROWS: usize = 3;

fn model() -> Arc<Model> {
    Arc::new(Model::random(open("fixtures/tiny-fp8fp4").spec.clone(), 7))
}

fn capacity() -> PoolCapacity {
    PoolCapacity::for_sets(ROWS, ROWS * (CONTEXT + 8))
}

fn on_cpu(model: &Arc<Model>, numerics: Numerics, rehearsal: Rehearsal) -> CpuBackend {
    let options = CpuOptions {
        numerics,
        capacity: capacity(),
        tp: 1,
        threads: Some(1),
        isa: Isa::detect(),
        rehearsal: Some(rehearsal),
    };
    CpuBackend::new(model.clone(), options).unwrap()
}

fn on_device(model: &Arc<Model>, numerics: Numerics, rehearsal: Rehearsal) -> Option<CudaBackend> {
    on_devices(1, model, numerics, rehearsal)
}

fn on_devices(
    ranks: usize,
    model: &Arc<Model>,
    numerics: Numerics,
    rehearsal: Rehearsal,
) -> Option<CudaBackend> {
    let gpu = |_| EmulatedGpu::new(Order::Ascending).map(|gpu| Arc::new(gpu) as Arc<dyn Gpu>);
    let gpus = match (0..ranks).map(gpu).collect() {
        Ok(gpus) => gpus,
        Err(error) => {
            eprintln!("SKIPPED: nothing was rehearsed on the emulator ({error})");
            return None;
        }
    };
    let options = CudaOptions {
        numerics,
        capacity: capacity(),
        tokens_max: 8,
        company: Company::Any,
        rehearsal: Some(rehearsal),
    };
    Some(CudaBackend::new(model, options, gpus).unwrap())
}

/// One token for each of some sequences behind contexts that nobody computed.
fn step(backend: &mut dyn Backend, wanted: &Wanted, timing: Timing) -> StepResult {
    let mut kv = Kv::new(backend.capacity());
    let mut plan = StepPlan { timing, ..StepPlan::default() };
    for row in 0..ROWS {
        let set = kv.create().unwrap();
        let start = CONTEXT + 2 * row;
        kv.extend(set, start).unwrap();
        plan.page_ops.extend(kv.extend(set, 1).unwrap());
        let (tokens, pages) = (vec![5 + row as u32], kv.table(set).unwrap().clone());
        plan.rows.push(Row { tokens, start, placeholder: None, pages, wanted: wanted.clone() });
    }
    backend.step(plan).unwrap()
}

#[test]
fn a_rank_alone_is_the_cpus_behind_a_cache_that_nobody_computed() {
    let model = model();
    for (of_ranks, numerics, near) in
        [(1, Numerics::EXACT, 5e-5), (2, Numerics::EXACT, 5e-5), (2, Numerics::default(), 2e-1)]
    {
        let rehearsal = Rehearsal { of_ranks, seed: overshot_testing::seed() };
        let Some(mut device) = on_device(&model, numerics, rehearsal) else { return };
        let ours = step(&mut device, &Wanted::LastLogits, Timing::Off);
        let theirs = step(&mut on_cpu(&model, numerics, rehearsal), &Wanted::LastLogits, Timing::Off);
        for (ours, theirs) in ours.rows.iter().zip(&theirs.rows) {
            assert_eq!(ours.logits.len(), model.spec.vocab_size / of_ranks);
            let largest = theirs.logits.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
            let far = ours.logits.iter().zip(&theirs.logits).map(|(a, b)| (a - b).abs() / largest);
            let far = far.fold(0.0_f32, f32::max);
            assert!(largest.is_finite() && far <= near, "one of {of_ranks}, {numerics:?}: {far}");
        }
    }
}

#[test]
fn a_plan_that_asks_is_told_its_time_by_family_and_others_are_not() {
    let rehearsal = Rehearsal { of_ranks: 2, seed: 1 };
    let drawn =
        Wanted::Token { sampling: Arc::new(Sampling::default()), seen: Vec::new(), choice: Choice::Free };
    for (timing, is_told) in [(Timing::Off, false), (Timing::ByFamily, true)] {
        let Some(mut device) = on_device(&model(), Numerics::default(), rehearsal) else { return };
        let result = step(&mut device, &drawn, timing);
        assert!(result.rows.iter().all(|row| row.tokens.len() == 1 && row.failure.is_none()), "{result:?}");
        let told: Vec<Family> = result.families.iter().map(|(family, _)| *family).collect();
        // This shape has no window layer, and no peers.
        let expected = Family::ALL.into_iter().filter(|family| {
            is_told && !matches!(family, Family::WindowAttention | Family::Reduce | Family::Wait)
        });
        assert_eq!(told, expected.collect::<Vec<_>>());
        let all: std::time::Duration = result.families.iter().map(|(_, time)| *time).sum();
        assert!(all <= result.device_time, "{all:?} of {:?}", result.device_time);
    }
}

#[test]
fn all_ranks_are_told_their_sums_and_what_they_wait_apart() {
    let rehearsal = Rehearsal { of_ranks: 2, seed: 1 };
    let drawn =
        Wanted::Token { sampling: Arc::new(Sampling::default()), seen: Vec::new(), choice: Choice::Free };
    for (timing, is_told) in [(Timing::Off, false), (Timing::ByFamily, true)] {
        let Some(mut devices) = on_devices(2, &model(), Numerics::default(), rehearsal) else { return };
        let result = step(&mut devices, &drawn, timing);
        assert!(result.rows.iter().all(|row| row.tokens.len() == 1 && row.failure.is_none()), "{result:?}");
        for family in [Family::Reduce, Family::Wait] {
            assert_eq!(
                result.families.iter().filter(|(told, _)| *told == family).count(),
                usize::from(is_told)
            );
        }
        assert_eq!(result.peers_wait.is_some(), is_told);
        let all: std::time::Duration = result.families.iter().map(|(_, time)| *time).sum();
        assert!(all <= result.device_time, "{all:?} of {:?}", result.device_time);
    }
}

#[test]
fn two_ranks_draw_what_one_draws() {
    let model = model();
    for temperature in [0.0, 1.0] {
        let sampling = Arc::new(Sampling { temperature, seed: 3, top_logprobs: 5, ..Sampling::default() });
        let wanted = Wanted::Token { sampling, seen: Vec::new(), choice: Choice::Free };
        let drawn = |ranks| {
            let rehearsal = Rehearsal { of_ranks: ranks, seed: 1 };
            let mut devices = on_devices(ranks, &model, Numerics::EXACT, rehearsal)?;
            Some(step(&mut devices, &wanted, Timing::Off).rows)
        };
        let (Some(one), Some(two)) = (drawn(1), drawn(2)) else { return };
        for (one, two) in one.iter().zip(&two).map(|(one, two)| (&one.tokens[0], &two.tokens[0])) {
            assert_eq!(one.token, two.token, "temperature {temperature}");
            let alternatives =
                |drawn: &Sampled| drawn.top.iter().map(|(token, _)| *token).collect::<Vec<_>>();
            assert_eq!(alternatives(one), alternatives(two), "temperature {temperature}");
            assert!((one.logprob - two.logprob).abs() < 1e-4, "{one:?}, {two:?}");
        }
    }
}
