//! Memory on the emulator: what a backend takes is what was planned, a device that is too small refuses it, and nothing is left
//! behind.
#![allow(clippy::unwrap_used)]

use overshot_backend::Numerics;
use overshot_backend_cuda::backend::{
    CacheSize, Company, CudaBackend, CudaOptions, Demand, RESERVE_BYTES, plan,
};
use overshot_backend_cuda::emulator::{EmulatedGpu, Order};
use overshot_backend_cuda::gpu::Gpu;
use overshot_conformance::open;
use overshot_model::Model;
use std::sync::Arc;

const TOKENS_MAX: usize = 16;

fn devices(count: usize, bytes: usize) -> Option<Vec<Arc<dyn Gpu>>> {
    let device = || {
        let gpu = EmulatedGpu::new(Order::Ascending).map(|gpu| gpu.with_memory(bytes));
        gpu.map(|gpu| Arc::new(gpu) as Arc<dyn Gpu>)
    };
    match (0..count).map(|_| device()).collect() {
        Ok(devices) => Some(devices),
        Err(error) => {
            eprintln!("SKIPPED: nothing was started on the emulator ({error})");
            None
        }
    }
}

fn free(gpu: &Arc<dyn Gpu>) -> u64 {
    gpu.facts().unwrap().memory_free_bytes as u64
}

fn demand() -> Demand {
    Demand {
        numerics: Numerics::default(),
        cache: CacheSize::Rest { requests: 2 },
        tokens_max: TOKENS_MAX,
        company: Company::Any,
        rehearsal: None,
    }
}

fn start(model: &Arc<Model>, options: CudaOptions, gpus: &[Arc<dyn Gpu>]) -> Result<CudaBackend, String> {
    CudaBackend::new(model, options, gpus.to_vec()).map_err(|error| error.to_string())
}

#[test]
fn a_backend_takes_what_was_planned_and_gives_it_back() {
    let model = open("fixtures/tiny-fp8fp4");
    let demand = demand();
    let Demand { numerics, tokens_max, company, rehearsal, .. } = demand;
    for ranks in [1, 2] {
        let memory = RESERVE_BYTES as usize + (24 << 20);
        let Some(gpus) = devices(ranks, memory) else { return };
        let facts: Vec<_> = gpus.iter().map(|gpu| gpu.facts().unwrap()).collect();
        let budget = plan(&model, demand, &facts).unwrap();
        let planned = budget.needed_bytes() - RESERVE_BYTES;
        let options = CudaOptions { numerics, capacity: budget.capacity, tokens_max, company, rehearsal };
        let backend = start(&model, options, &gpus).unwrap();
        for gpu in &gpus {
            // A plan counts in the pieces that a driver hands out; the emulator counts bytes.
            let taken = memory as u64 - free(gpu);
            assert!(taken <= planned && planned - taken < 24 << 20, "{ranks} ranks: {taken} of {planned}");
        }
        drop(backend);
        assert!(gpus.iter().all(|gpu| free(gpu) == memory as u64));
    }
}

#[test]
fn a_device_that_another_process_filled_refuses_and_keeps_nothing() {
    let model = open("fixtures/tiny-fp8fp4");
    let Some(gpus) = devices(1, RESERVE_BYTES as usize + (64 << 20)) else { return };
    let demand = demand();
    let Demand { numerics, tokens_max, company, rehearsal, .. } = demand;
    let capacity = plan(&model, demand, &[gpus[0].facts().unwrap()]).unwrap().capacity;
    for memory in [1 << 10, 1 << 20, 4 << 20] {
        let Some(gpus) = devices(1, memory) else { return };
        let options = CudaOptions { numerics, capacity, tokens_max, company, rehearsal };
        let error = start(&model, options, &gpus);
        let error = error.err().unwrap();
        assert!(error.contains("bytes of emulated memory cannot be had"), "{error}");
        assert_eq!(free(&gpus[0]), memory as u64);
    }
}
