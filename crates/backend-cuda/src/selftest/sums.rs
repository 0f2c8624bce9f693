//! `gpu-check sums`: sums over the ranks of several GPUs, checked, then timed: by each way of the devices where they reach each
//! other, else of the host. One JSON object a line.

use crate::backend::{RankError, Sums, Way};
use crate::gpu::{Buffer, Gpu, GpuError};
use fastrand::Rng;
use overshot_backend::Member;
use serde::Serialize;
use std::io::Write;
use std::sync::Arc;

#[derive(Debug, thiserror::Error)]
pub enum SumsError {
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    Rank(Box<RankError>),
    #[error("the report cannot be written: {0}")]
    Report(#[from] std::io::Error),
    #[error("a sum of {numbers} numbers is wrong")]
    Wrong { numbers: usize },
}

impl From<RankError> for SumsError {
    fn from(error: RankError) -> Self {
        SumsError::Rank(Box::new(error))
    }
}

#[derive(Serialize)]
struct Line {
    ranks: usize,
    numbers: usize,
    /// "push", "pull", or "host".
    by: &'static str,
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

pub fn run(gpus: &[Arc<dyn Gpu>], report: &mut dyn Write) -> Result<(), SumsError> {
    let ranks = gpus.len();
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
        let times: Vec<Result<Vec<f64>, SumsError>> = std::thread::scope(|scope| {
            let threads: Vec<_> = places
                .map(|(rank, ((member, sums), gpu))| {
                    scope.spawn(move || of_rank(rank, &member, &sums, gpu, way, numbers))
                })
                .collect();
            // A thread that panicked has been reported by its panic.
            let wrong = || Err(SumsError::Wrong { numbers });
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| wrong())).collect()
        });
        let times = times.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut of_first = times.into_iter().next().unwrap_or_default();
        of_first.sort_by(f64::total_cmp);
        let us_p50 = of_first.get(of_first.len() / 2).copied().unwrap_or(f64::NAN);
        let gbs = 4.0 * numbers as f64 / us_p50 / 1e3;
        let line = Line { ranks, numbers, by, us_p50, gbs };
        writeln!(report, "{}", serde_json::to_string(&line).map_err(std::io::Error::from)?)?;
    }
    Ok(())
}

fn summand(rank: usize, numbers: usize) -> Vec<f32> {
    let mut random = Rng::with_seed(rank as u64);
    (0..numbers).map(|_| random.f32() - 0.5).collect()
}

/// Checks one sum, then gives microseconds of each round's.
fn of_rank(
    rank: usize,
    member: &Member,
    sums: &Sums,
    gpu: &Arc<dyn Gpu>,
    way: Way,
    numbers: usize,
) -> Result<Vec<f64>, SumsError> {
    let ranks = sums.ranks();
    let mut x = Buffer::of(gpu, &summand(rank, numbers))?;
    sums.all_reduce_by(way, Some(member), &mut x, numbers)?;
    let mut expected = summand(0, numbers);
    for other in 1..ranks {
        expected.iter_mut().zip(summand(other, numbers)).for_each(|(sum, x)| *sum += x);
    }
    if x.copy_out()? != expected {
        return Err(SumsError::Wrong { numbers });
    }
    // Numbers double with every sum, and are as good for a clock.
    let mut timeline = gpu.timeline()?;
    let round = |_| {
        timeline.mark(0)?;
        for _ in 0..SUMS {
            sums.all_reduce_by(way, Some(member), &mut x, numbers)?;
        }
        timeline.mark(1)?;
        Ok(timeline.microseconds(0, 1)? / SUMS as f64)
    };
    (0..ROUNDS).map(round).collect()
}
