//! Kernels at sizes that no fixture has, on the emulator: here the router; and which kernels begin early.

mod streams;

use super::*;
use crate::emulator::{EmulatedGpu, Order};
use crate::gpu::Buffer;
use std::sync::Arc;

const TOKENS: usize = 5;

/// Experts and weights of a token, from its scores: of equal ones the lower expert.
fn routed(raw: &[f32], bias: &[f32], per_token: usize) -> (Vec<i32>, Vec<f32>) {
    let scores: Vec<f32> = raw.iter().map(|x| x.exp().ln_1p().sqrt()).collect();
    let mut by_rank: Vec<usize> = (0..raw.len()).collect();
    by_rank.sort_by(|a, b| (raw[*b] + bias[*b]).total_cmp(&(raw[*a] + bias[*a])));
    let mut chosen = by_rank[..per_token].to_vec();
    chosen.sort_unstable();
    let sum: f32 = chosen.iter().map(|e| scores[*e]).sum();
    (chosen.iter().map(|e| *e as i32).collect(), chosen.iter().map(|e| scores[*e] / sum * 1.5).collect())
}

#[test]
fn tokens_go_to_their_best_experts_and_of_equals_to_the_lower() {
    let gpu: Arc<dyn Gpu> = match EmulatedGpu::new(Order::Random(1)) {
        Ok(gpu) => Arc::new(gpu),
        Err(absent) => return eprintln!("SKIPPED: the router was not checked ({absent})"),
    };
    let kernel: Launcher<args::Route> =
        Launcher::load(&*gpu, &route_source(), "route", THREADS as u32).unwrap();
    let mut random = overshot_testing::rng();
    for (experts, per_token) in [(5, 5), (32, 1), (256, 6), (257, 6), (384, 6), (385, 40), (1000, 64)] {
        // Few different scores, so that most are equal to some other.
        let raw: Vec<f32> = (0..TOKENS * experts).map(|_| random.i32(-9..30) as f32 / 4.0).collect();
        let bias = vec![0.25; experts];
        let on_device = (Buffer::of(&gpu, &raw).unwrap(), Buffer::of(&gpu, &bias).unwrap());
        let ids = Buffer::<i32>::new(&gpu, TOKENS * per_token).unwrap();
        let weights = Buffer::<f32>::new(&gpu, TOKENS * per_token).unwrap();
        let route = args::Route {
            step: args::Step { tokens: TOKENS as i32, ..Default::default() },
            scores: on_device.0.address(),
            bias: on_device.1.address(),
            ids: ids.address(),
            weights: weights.address(),
            experts: experts as i32,
            per_token: per_token as i32,
            factor: 1.5,
            ..Default::default()
        };
        kernel.launch(Grid(TOKENS as u32, 1, 1), &route).unwrap();
        let (ids, weights) = (ids.copy_out().unwrap(), weights.copy_out().unwrap());
        for token in 0..TOKENS {
            let (best, of_best) = routed(&raw[token * experts..][..experts], &bias, per_token);
            assert_eq!(ids[token * per_token..][..per_token], best, "{experts} experts");
            for (ours, theirs) in weights[token * per_token..].iter().zip(of_best) {
                assert!((ours - theirs).abs() <= 1e-6 * theirs, "{experts} experts: {ours}, {theirs}");
            }
        }
    }
}

/// A kernel that stops waiting for the launch before would silently be launched in order, as these are.
#[test]
fn all_of_a_step_but_sums_begins_early() {
    let all = sources().into_iter().chain(crate::matmul::shipped_sources());
    let in_order: Vec<String> =
        all.filter(|source| !source.waits_for_launch_before()).map(|source| source.name).collect();
    assert_eq!(in_order, [reduce_source().name, push_source().name]);
}
