//! The built-in model on the GPU beside the processor: whatever a step launches, in a row. What no family checks alone is seen here:
//! streams, router, compressors, latents, the head.

use crate::embedded::embedded_model;
use crate::feeder::Feeder;
use anyhow::Context;
use overshot_backend::{Backend, Numerics};
use overshot_backend_cpu::{CpuBackend, CpuOptions, Isa};
use overshot_backend_cuda::backend::{Company, CudaBackend, CudaOptions};
use overshot_backend_cuda::gpu::Gpu;
use overshot_backend_cuda::selftest::logit_differences;
use overshot_kv::PoolCapacity;
use overshot_model::{Bytes, Model};
use serde::Serialize;
use std::sync::Arc;

/// Past a window, its ring and entries of every kind, in steps of a prompt, of an answer and of several tokens at once.
const STEPS: [usize; 10] = [140, 30, 1, 1, 1, 1, 1, 1, 8, 24];

/// How one numerics mode came out, by [`logit_differences`].
#[derive(Debug, Serialize)]
pub struct Check {
    numerics: String,
    tokens: usize,
    median: f32,
    nine_in_ten: f32,
    pub passed: bool,
}

/// `None` in a binary that has no model inside.
///
/// # Errors
/// A backend that does not start, or fails.
pub fn check(gpu: &Arc<dyn Gpu>, seed: u64) -> anyhow::Result<Option<[Check; 2]>> {
    let Some(embedded) = embedded_model() else { return Ok(None) };
    let model = Model::from_parts(embedded.config, Bytes::from_static(embedded.weights))?;
    let model = Arc::new(model);
    let mut random = fastrand::Rng::with_seed(seed);
    let count = STEPS.iter().sum();
    let tokens: Vec<u32> = (0..count).map(|_| random.u32(..model.spec.vocab_size as u32)).collect();
    // Where values are rounded, one on an edge may fall either way, and what follows with it.
    let exact = check_mode(gpu, &model, &tokens, Numerics::EXACT, [1e-4, 1e-3])?;
    Ok(Some([exact, check_mode(gpu, &model, &tokens, Numerics::default(), [2e-2, 1e-1])?]))
}

/// `limits` are of the median and of nine in ten.
fn check_mode(
    gpu: &Arc<dyn Gpu>,
    model: &Arc<Model>,
    tokens: &[u32],
    numerics: Numerics,
    limits: [f32; 2],
) -> anyhow::Result<Check> {
    let capacity = PoolCapacity::for_sets(1, tokens.len());
    let isa = Isa::detect();
    let on_cpu = CpuOptions { numerics, capacity, tp: 1, threads: None, isa, rehearsal: None };
    let tokens_max = STEPS.into_iter().max().unwrap_or(1);
    let on_gpu = CudaOptions { numerics, capacity, tokens_max, company: Company::Any, rehearsal: None };
    let theirs = logits(Box::new(CpuBackend::new(model.clone(), on_cpu)?), tokens)?;
    let gpus = vec![gpu.clone()];
    let ours =
        CudaBackend::new(model, on_gpu, gpus).context("the built-in model cannot be brought to the GPU")?;
    let ours = logits(Box::new(ours), tokens)?;
    let mut differences = logit_differences(&ours, &theirs, model.spec.vocab_size);
    differences.sort_by(f32::total_cmp);
    let [median, nine_in_ten] = [differences.len() / 2, differences.len() * 9 / 10].map(|at| differences[at]);
    let passed = median <= limits[0] && nine_in_ten <= limits[1];
    let numerics = format!("kv {}, index keys {}, act {}", numerics.kv, numerics.index_keys, numerics.act);
    Ok(Check { numerics, tokens: tokens.len(), median, nine_in_ten, passed })
}

fn logits(backend: Box<dyn Backend>, mut tokens: &[u32]) -> anyhow::Result<Vec<f32>> {
    let mut feeder = Feeder::start(backend, "the built-in model".into())?;
    let mut all = Vec::new();
    for step in STEPS {
        let (now, rest) = tokens.split_at(step);
        all.extend(feeder.feed_whatever_comes(now)?);
        tokens = rest;
    }
    Ok(all)
}

#[cfg(all(test, feature = "gpu-emulator", feature = "embedded-model"))]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_model_is_right_on_the_emulator() {
        use overshot_backend_cuda::emulator::{EmulatedGpu, Order};

        let gpu: Arc<dyn Gpu> = match EmulatedGpu::new(Order::Ascending) {
            Ok(gpu) => Arc::new(gpu),
            Err(error) => return eprintln!("SKIPPED: the emulator does not start ({error})"),
        };
        for check in check(&gpu, 7).unwrap().unwrap() {
            println!("{check:?}");
            assert!(check.passed && check.median > 0.0, "{check:?}");
        }
    }
}
