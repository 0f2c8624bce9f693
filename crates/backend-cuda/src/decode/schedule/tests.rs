//! What is refused, and what workers are dealt: on the emulator, beside a deal tile by tile.

use super::*;
use crate::decode::RUN_BYTES;
use crate::emulator::{EmulatedGpu, Order};
use crate::gpu::Buffer;
use std::sync::Arc;

const RUN_INTS: usize = RUN_BYTES / 4;
const QUARTERS: i32 = 4;

#[test]
fn a_schedule_that_could_overflow_is_refused() {
    let good = ScheduleArgs {
        rows: 256,
        workers: 132,
        tile: 64,
        extra_capacity: 8192,
        row_quarters: 5,
        ..ScheduleArgs::default()
    };
    assert!(check(&good).is_ok());
    for bad in [
        ScheduleArgs { rows: 0, ..good },
        ScheduleArgs { rows: 8193, ..good },
        ScheduleArgs { workers: 257, ..good },
        ScheduleArgs { tile: 0, ..good },
        ScheduleArgs { extra_capacity: i32::MAX, ..good },
        ScheduleArgs { rows: 8192, extra_capacity: 600_000, ..good },
        ScheduleArgs { part_quarters: 4, ..good },
        ScheduleArgs { row_quarters: 0, ..good },
    ] {
        assert!(check(&bad).is_err(), "{bad:?}");
    }
}

/// What one worker was dealt, as `Run` of args.cuh has it.
#[derive(Debug)]
struct Run {
    first: i32,
    first_tile: i32,
    last: i32,
    last_end: i32,
    part: i32,
    parts: [i32; 2],
    lengths: [i32; 2],
}

impl Run {
    fn read(v: &[i32]) -> Self {
        Run {
            first: v[0],
            first_tile: v[1],
            last: v[2],
            last_end: v[3],
            part: v[4],
            parts: [v[5], v[6]],
            lengths: [v[7], v[8]],
        }
    }

    /// The rows of this worker: which, from which tile to before which, which of how many parts.
    fn pieces(&self, tiles: &[i32]) -> Vec<(usize, i32, i32, [i32; 2])> {
        let piece = |row: i32| {
            let (begin, part) = if row == self.first {
                (self.first_tile, [self.part, self.parts[0]])
            } else {
                (0, [0, if row == self.last { self.parts[1] } else { 1 }])
            };
            let end = if row == self.last { self.last_end } else { tiles[row as usize] };
            (row as usize, begin, end, part)
        };
        (self.first..=self.last).map(piece).collect()
    }
}

struct Deal {
    lengths: Vec<[i32; 2]>,
    tiles: Vec<i32>,
    workers: i32,
    /// Of a row, and of each part of a cut one, in quarters of a tile.
    prices: [i32; 2],
}

impl Deal {
    fn random(random: &mut fastrand::Rng, case: usize) -> Self {
        let rows = [1, 2, 5, 133, 256, random.usize(1..300), random.usize(1..1500)][case % 7];
        let longest = [640, 64, 1, 9000][random.usize(0..4)];
        let even = random.bool();
        let mut length = || if even { longest } else { random.i32(0..=longest) };
        let mut lengths: Vec<[i32; 2]> = (0..rows).map(|_| [length().min(128), length()]).collect();
        if case.is_multiple_of(3) {
            lengths[rows / 2][1] = 9000;
        }
        let tiles = lengths.iter().map(|[window, extra]| (window + 63) / 64 + (extra + 63) / 64).collect();
        let prices = [[5, 2], [3, 2], [1, 1], [8, 0]][random.usize(0..4)];
        Deal { lengths, tiles, workers: [132, 1, 33, 188][case % 4], prices }
    }

    /// The most parts of a row when workers with this budget take rows in turn, one tile after the other; none where the workers
    /// do not suffice.
    fn parts_by(&self, budget: i32) -> Option<i32> {
        let [row_price, part_price] = self.prices;
        let (mut left, mut workers, mut most) = (budget, 1, 1);
        for tiles in &self.tiles {
            if row_price + tiles * QUARTERS <= left {
                left -= row_price + tiles * QUARTERS;
                continue;
            }
            let (mut open, mut parts) = (*tiles, 0);
            // A worker that can take no tile beside what it has leaves the row, whole, to the next.
            while parts == 0 || open > 0 {
                let whole = row_price + open * QUARTERS <= left && parts == 0;
                let take = ((left - row_price - part_price) / QUARTERS).clamp(0, open);
                if whole || take > 0 {
                    parts += 1;
                    left -= row_price + if whole { open * QUARTERS } else { part_price + take * QUARTERS };
                    open -= if whole { open } else { take };
                }
                if open > 0 || parts == 0 {
                    (left, workers) = (budget, workers + 1);
                }
            }
            most = most.max(parts);
        }
        (workers <= self.workers).then_some(most)
    }

    fn budget(&self) -> i32 {
        let [row_price, part_price] = self.prices;
        let all: i32 = self.tiles.iter().map(|tiles| row_price + tiles * QUARTERS).sum();
        let least = ((all + self.workers - 1) / self.workers).max(row_price + part_price + QUARTERS);
        let price = |budget: &i32| {
            let parts = self.parts_by(*budget)?;
            Some(budget * 5 + if parts > 1 { 5 * QUARTERS + parts } else { 0 })
        };
        let budgets = (0..16).map(|at| least + 2 * at).filter(|budget| price(budget).is_some());
        budgets.min_by_key(|budget| price(budget)).unwrap()
    }

    /// Every tile is dealt once and in order, parts are numbered, and no worker has more than the best budget.
    fn assert_dealt(&self, runs: &[Run]) {
        let [row_price, part_price] = self.prices;
        let budget = self.budget();
        let mut dealt: Vec<(usize, i32, i32, [i32; 2])> = vec![];
        for run in runs {
            let begins = run.first as usize;
            assert_eq!(run.lengths, self.lengths[begins], "{run:?}");
            let pieces = run.pieces(&self.tiles);
            let price = |(_, begin, end, [_, parts]): &(usize, i32, i32, [i32; 2])| {
                row_price + (end - begin) * QUARTERS + if *parts > 1 { part_price } else { 0 }
            };
            let taken: i32 = pieces.iter().map(price).sum();
            assert!(taken <= budget, "{taken} of {budget}: {run:?}");
            dealt.extend(pieces);
        }
        let mut dealt = dealt.into_iter();
        for (row, tiles) in self.tiles.iter().enumerate() {
            let mut parts = vec![dealt.next().unwrap()];
            while parts.last().unwrap().2 < *tiles {
                parts.push(dealt.next().unwrap());
            }
            let mut from = 0;
            for (number, part) in parts.iter().enumerate() {
                assert_eq!(*part, (row, from, part.2, [number as i32, parts.len() as i32]));
                from = part.2;
            }
            assert_eq!(from, *tiles);
        }
        assert_eq!(dealt.next(), None);
    }
}

#[test]
fn every_tile_is_dealt_once_and_nobody_has_more_than_the_best_budget() {
    let gpu: Arc<dyn Gpu> = match EmulatedGpu::new(Order::Ascending) {
        Ok(gpu) => Arc::new(gpu),
        Err(error) => return eprintln!("SKIPPED: schedules were not checked ({error})"),
    };
    let schedule = Schedule::load(&*gpu).unwrap();
    let mut random = overshot_testing::rng();
    for case in 0..overshot_testing::cases(28) {
        let deal = Deal::random(&mut random, case);
        let list = |at: usize| {
            Buffer::of(&gpu, &deal.lengths.iter().map(|both| both[at]).collect::<Vec<_>>()).unwrap()
        };
        let (window, extra) = (list(0), list(1));
        let runs = Buffer::<i32>::zeroed(&gpu, deal.workers as usize * RUN_INTS).unwrap();
        let args = ScheduleArgs {
            window_length: window.address(),
            extra_length: extra.address(),
            runs: runs.address(),
            window_capacity: 128,
            extra_capacity: 9000,
            rows: deal.tiles.len() as i32,
            workers: deal.workers,
            tile: 64,
            row_quarters: deal.prices[0],
            part_quarters: deal.prices[1],
            unused: 0,
        };
        // SAFETY: the buffers are as large as `args` says and outlive the launch.
        unsafe { schedule.launch(&args) }.unwrap();
        gpu.synchronize().unwrap();
        let runs: Vec<Run> = runs.copy_out().unwrap().chunks_exact(RUN_INTS).map(Run::read).collect();
        deal.assert_dealt(&runs);
    }
}
