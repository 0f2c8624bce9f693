//! A model over random weights behind a cache that nobody computed gives sane numbers: streams neither vanish nor explode, and
//! sequences touch about as many experts as uniform routing does, so that what is timed resembles a real step.
#![allow(clippy::unwrap_used)]

use overshot_backend::{Backend, Numerics, Rehearsal, Row, StepPlan, Wanted};
use overshot_backend_cpu::{CpuBackend, CpuOptions, Isa};
use overshot_kv::{Kv, PoolCapacity};
use overshot_model::{Model, Spec};
use std::sync::Arc;

const ROWS: usize = 16;
const CONTEXT: usize = 700;

fn spec() -> Spec {
    let flash = Spec::flash();
    Spec {
        vocab_size: 512,
        hidden_size: 256,
        heads: 8,
        q_lora_rank: 128,
        o_groups: 2,
        o_lora_rank: 128,
        index_heads: 8,
        index_topk: 64,
        experts: 64,
        experts_per_token: 4,
        expert_width: 128,
        layers: flash.layers[..8].to_vec(),
        ..flash
    }
}

#[test]
fn streams_stay_sane_and_routing_about_uniform() {
    let model = Arc::new(Model::random(spec(), overshot_testing::seed()));
    let capacity = PoolCapacity::for_sets(ROWS, ROWS * (CONTEXT + 1));
    let options = CpuOptions {
        numerics: Numerics::default(),
        capacity,
        tp: 1,
        threads: Some(2),
        isa: Isa::detect(),
        rehearsal: Some(Rehearsal { of_ranks: 1, seed: overshot_testing::seed() }),
    };
    let mut backend = CpuBackend::new(model.clone(), options).unwrap();
    let (mut kv, mut plan) = (Kv::new(capacity), StepPlan::default());
    for row in 0..ROWS {
        let set = kv.create().unwrap();
        let start = CONTEXT - row;
        kv.extend(set, start).unwrap();
        plan.page_ops.extend(kv.extend(set, 1).unwrap());
        let pages = kv.table(set).unwrap().clone();
        let tokens = vec![31 * row as u32];
        plan.rows.push(Row { tokens, start, placeholder: None, pages, wanted: Wanted::LastLogits });
    }
    backend.start_capture();
    let result = backend.step(plan).unwrap();
    let capture = backend.take_capture();
    let rms = |x: &[f32]| (x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32).sqrt();
    let Spec { experts, experts_per_token, layers, .. } = &model.spec;
    let untouched = (1.0 - *experts_per_token as f64 / *experts as f64).powi(ROWS as i32);
    let expected = *experts as f64 * (1.0 - untouched);
    for layer in 0..layers.len() {
        let streams = rms(capture.get(&format!("layers.{layer}.out")));
        assert!((0.1..5.0).contains(&streams), "layer {layer}: {streams}");
        let mut touched: Vec<u32> =
            capture.get(&format!("layers.{layer}.experts")).iter().map(|id| *id as u32).collect();
        touched.sort_unstable();
        touched.dedup();
        let share = touched.len() as f64 / expected;
        assert!((0.75..1.25).contains(&share), "layer {layer}: {} experts of {expected:.1}", touched.len());
    }
    for row in result.rows {
        let logits = rms(&row.logits);
        assert!((0.3..3.0).contains(&logits), "{logits}");
    }
}
