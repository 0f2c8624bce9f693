//! `gpu-check sums`: sums over the ranks of several GPUs, checked, then timed: by each way of the devices where they reach each
//! other, else of the host. One JSON object a line.

use super::error::{Count, SelftestError};
use crate::backend::{Sums, Way};
use crate::gpu::{Buffer, Gpu};
use fastrand::Rng;
use overshot_backend::Member;
use serde::Serialize;
use std::io::Write;
use std::sync::Arc;

#[derive(Serialize)]
struct Line {
    ranks: usize,
    numbers: usize,
    /// "push", "pull", or "host".
    by: &'static str,
    passed: bool,
    us_p50: f64,
    /// Of what each rank brings.
    gbs: f64,
}

/// A layer's output for so many tokens of Flash.
const TOKENS: [usize; 7] = [1, 8, 16, 32, 64, 256, 2048];
const HIDDEN: usize = 4096;
const ROUNDS: usize = 9;
/// Sums between two marks.
const SUMS: usize = 20;

/// What a rank found: whether its sum was right, and microseconds of each round's.
type Found = Result<(bool, Vec<f64>), SelftestError>;

pub fn run(gpus: &[Arc<dyn Gpu>], report: &mut dyn Write) -> Result<(), SelftestError> {
    let (ranks, mut count) = (gpus.len(), Count::default());
    let points =
        TOKENS.iter().flat_map(|tokens| [(Way::Push, tokens * HIDDEN), (Way::Pull, tokens * HIDDEN)]);
    for (way, numbers) in points.filter(|(way, numbers)| way.takes(*numbers)) {
        let sums = Sums::between(gpus)?;
        let by = match (sums.iter().all(Sums::by_devices), way) {
            (true, Way::Push) => "push",
            (true, Way::Pull) => "pull",
            (false, Way::Pull) => "host",
            // Once is enough.
            (false, Way::Push) => continue,
        };
        let places = Member::group(ranks).into_iter().zip(sums).zip(gpus).enumerate();
        let found: Vec<Found> = std::thread::scope(|scope| {
            let threads: Vec<_> = places
                .map(|(rank, ((member, sums), gpu))| {
                    scope.spawn(move || of_rank(rank, &member, &sums, gpu, way, numbers))
                })
                .collect();
            // A thread that panicked has been reported by its panic.
            threads.into_iter().map(|thread| thread.join().unwrap_or(Ok((false, vec![])))).collect()
        });
        let found = found.into_iter().collect::<Result<Vec<_>, _>>()?;
        let passed = found.iter().all(|(right, _)| *right);
        let mut of_first = found.into_iter().next().unwrap_or_default().1;
        of_first.sort_by(f64::total_cmp);
        let us_p50 = of_first.get(of_first.len() / 2).copied().unwrap_or(f64::NAN);
        let gbs = 4.0 * numbers as f64 / us_p50 / 1e3;
        count.add(passed);
        let line = Line { ranks, numbers, by, passed, us_p50, gbs };
        writeln!(report, "{}", serde_json::to_string(&line).map_err(std::io::Error::from)?)?;
    }
    count.verdict()
}

fn summand(rank: usize, numbers: usize) -> Vec<f32> {
    let mut random = Rng::with_seed(rank as u64);
    (0..numbers).map(|_| random.f32() - 0.5).collect()
}

/// Checks one sum, then times others. A rank whose sum was wrong goes on: the others wait for it.
fn of_rank(rank: usize, member: &Member, sums: &Sums, gpu: &Arc<dyn Gpu>, way: Way, numbers: usize) -> Found {
    let ranks = sums.ranks();
    let mut x = Buffer::of(gpu, &summand(rank, numbers))?;
    sums.all_reduce_by(way, Some(member), &mut x, numbers)?;
    let mut expected = summand(0, numbers);
    for other in 1..ranks {
        expected.iter_mut().zip(summand(other, numbers)).for_each(|(sum, x)| *sum += x);
    }
    let right = x.copy_out()? == expected;
    // Numbers double with every sum, and are as good for a clock.
    let mut timeline = gpu.timeline()?;
    let round = |_| -> Result<f64, SelftestError> {
        timeline.mark(0)?;
        for _ in 0..SUMS {
            sums.all_reduce_by(way, Some(member), &mut x, numbers)?;
        }
        timeline.mark(1)?;
        Ok(timeline.microseconds(0, 1)? / SUMS as f64)
    };
    let times = (0..ROUNDS).map(round).collect::<Result<_, _>>()?;
    Ok((right, times))
}
