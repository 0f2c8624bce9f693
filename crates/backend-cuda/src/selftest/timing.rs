//! Times of replayed graphs: variants take turns, several index sets a graph, median and 10/90 percentiles.

use super::device_case::{self, DeviceCase, DevicePools, planned_parts};
use super::error::SelftestError;
use super::inputs::{Case, HEAD_DIMS, Inputs, Lengths, ListShape};
use super::run::{Bench, Options, line};
use super::suites;
use crate::cuda::{Event, Graph};
use crate::decode::DecodeKernel;
use overshot_gpu_model::Lists;
use serde::Serialize;
use std::io::Write;

/// What a graph's launches read together: several times an L2 cache.
const GRAPH_BYTES: usize = 300_000_000;
const SETS_MAX: usize = 128;

#[derive(Serialize)]
struct Time<'a> {
    variant: &'a str,
    heads: usize,
    batch: usize,
    shape: &'a str,
    lengths: Lengths,
    splits: u32,
    us_p50: f64,
    us_p10: f64,
    us_p90: f64,
    /// How far the medians of even and of odd rounds lie apart: the kernel against itself, in turns.
    aa_percent: f64,
    rounds: usize,
    sets: usize,
    bytes: usize,
    gflop: f64,
    gbs: f64,
    share_of_read: f64,
    tflops: f64,
    /// Window and compressed.
    lists: [Lists; 2],
}

/// Every case of the suites, kernels taking turns.
pub(super) fn time_all(
    bench: &Bench,
    kernels: &[DecodeKernel],
    options: &Options,
    read_gbs: f64,
    report: &mut dyn Write,
) -> Result<(), SelftestError> {
    let mut random = fastrand::Rng::with_seed(options.seed);
    let tiny = suites::pools(options.pool_entries, options.seed);
    let mut inputs = tiny.inputs(&mut random);
    let pools = DevicePools::new(&bench.gpu, &inputs)?;
    for case in suites::cases(&options.suites, &tiny) {
        // Everything but the pools is drawn anew; theirs would take minutes.
        let small = |list: ListShape| ListShape { entries: 64, ..list };
        let fresh = Case { window: small(case.window), extra: small(case.extra), ..case.clone() };
        let fresh = fresh.inputs(&mut random);
        inputs.q = fresh.q;
        inputs.sink = fresh.sink;
        inputs.length = fresh.length;
        let sets = (GRAPH_BYTES / bytes(&case, &inputs)).clamp(2, SETS_MAX);
        let mut lists: Vec<[Vec<i32>; 2]> =
            (0..sets).map(|_| [case.window_indices(&mut random), case.extra_indices(&mut random)]).collect();
        inputs.index = lists.pop().unwrap_or_default();
        time_case(bench, kernels, options, &pools, &case, &inputs, &lists, read_gbs, report)?;
    }
    Ok(())
}

fn tokens(inputs: &Inputs) -> usize {
    inputs.length.iter().flatten().map(|length| *length as usize).sum()
}

/// What must move: each visible entry once, queries in, answers out, indices.
fn bytes(case: &Case, inputs: &Inputs) -> usize {
    tokens(inputs) * (584 + 4) + 2 * case.rows * case.heads * HEAD_DIMS * 2
}

fn time_case(
    bench: &Bench,
    kernels: &[DecodeKernel],
    options: &Options,
    pools: &DevicePools,
    case: &Case,
    inputs: &Inputs,
    more_sets: &[[Vec<i32>; 2]],
    read_gbs: f64,
    report: &mut dyn Write,
) -> Result<(), SelftestError> {
    let lists = device_case::lists(inputs);
    let splits_of = |kernel: &DecodeKernel| {
        let planned = || planned_parts(kernel, &bench.target, case.rows, case.heads, lists);
        options.parts(kernel).unwrap_or_else(planned)
    };
    let splits: Vec<u32> = kernels.iter().map(splits_of).collect();
    let parts_of = |(kernel, splits): (&DecodeKernel, &u32)| {
        let each = if kernel.variant.takes_schedule() { 2 } else { case.rows };
        each * *splits as usize
    };
    let parts = kernels.iter().zip(&splits).map(parts_of).max().unwrap_or(1);
    let on_device = DeviceCase::new(&bench.gpu, case, inputs, more_sets, parts, kernels.len())?;
    let mut graphs = Vec::new();
    for (number, (kernel, splits)) in kernels.iter().zip(&splits).enumerate() {
        on_device.schedule(&bench.schedule, kernel, number, *splits)?;
        let graph: Graph = bench.cuda.stream().capture(|| -> Result<(), SelftestError> {
            (0..on_device.sets())
                .try_for_each(|set| on_device.launch(kernel, &on_device.args(pools, set, number, *splits)))?;
            Ok(())
        })?;
        graph.launch(bench.cuda.stream())?;
        graphs.push(graph);
    }
    bench.cuda.stream().synchronize()?;
    let (begin, end) = (Event::new(bench.cuda.device())?, Event::new(bench.cuda.device())?);
    let mut times = vec![Vec::new(); graphs.len()];
    for _ in 0..options.rounds {
        for (graph, times) in graphs.iter().zip(&mut times) {
            begin.record(bench.cuda.stream())?;
            graph.launch(bench.cuda.stream())?;
            end.record(bench.cuda.stream())?;
            times.push(end.microseconds_since(&begin)? / on_device.sets() as f64);
        }
    }
    let bytes = bytes(case, inputs);
    let gflop = (tokens(inputs) * case.heads * 4 * HEAD_DIMS) as f64 / 1e9;
    for ((kernel, splits), times) in kernels.iter().zip(splits).zip(&mut times) {
        let aa_percent = aa_percent(times);
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
        let gbs = bytes as f64 / at(0.5) / 1e3;
        let time = Time {
            variant: &kernel.variant.name,
            heads: case.heads,
            batch: case.rows,
            shape: &case.name,
            lengths: case.lengths,
            splits,
            us_p50: at(0.5),
            us_p10: at(0.1),
            us_p90: at(0.9),
            aa_percent,
            rounds: times.len(),
            sets: on_device.sets(),
            bytes,
            gflop,
            gbs,
            share_of_read: gbs / read_gbs,
            tflops: gflop / at(0.5) * 1e3,
            lists,
        };
        line(report, "time", &time)?;
    }
    time_schedule(bench, kernels, &on_device, case, report)
}

fn aa_percent(times: &[f64]) -> f64 {
    let median = |odd: usize| {
        let mut half: Vec<f64> = times.iter().copied().skip(odd).step_by(2).collect();
        half.sort_by(f64::total_cmp);
        half.get(half.len() / 2).copied()
    };
    // One round has nothing to compare with.
    let (Some(even), Some(odd)) = (median(0), median(1)) else { return 0.0 };
    100.0 * (even / odd - 1.0).abs()
}

/// The first kernel's schedule, made once a step for all layers of a kind.
fn time_schedule(
    bench: &Bench,
    kernels: &[DecodeKernel],
    on_device: &DeviceCase,
    case: &Case,
    report: &mut dyn Write,
) -> Result<(), SelftestError> {
    const LAUNCHES: usize = 20;
    let Some(kernel) = kernels.iter().find(|kernel| kernel.variant.takes_schedule()) else { return Ok(()) };
    let workers = kernel.variant.shape(1).workers(case.heads as u32, bench.target.multiprocessors);
    let graph: Graph = bench.cuda.stream().capture(|| -> Result<(), SelftestError> {
        (0..LAUNCHES).try_for_each(|_| on_device.schedule(&bench.schedule, kernel, 0, workers))?;
        Ok(())
    })?;
    let (begin, end) = (Event::new(bench.cuda.device())?, Event::new(bench.cuda.device())?);
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        begin.record(bench.cuda.stream())?;
        graph.launch(bench.cuda.stream())?;
        end.record(bench.cuda.stream())?;
        best = best.min(end.microseconds_since(&begin)? / LAUNCHES as f64);
    }
    let facts = serde_json::json!({
        "variant": kernel.variant.name, "heads": case.heads, "batch": case.rows, "shape": case.name,
        "lengths": case.lengths, "workers": workers, "us_min": best,
    });
    line(report, "schedule", &facts)
}
