//! How a grid of equal CTAs fills a card. A card has slots: SMs times the CTAs of this kernel that an SM holds. CTAs run in
//! waves of as many as there are slots, and the last wave takes as long as a full one, so time is a staircase over the
//! size of the grid; where a step of the batch costs more than it brings there is a cliff.
//!
//! The model holds for kernels bound by what an SM does. A grid that is bound by memory finishes a small last wave sooner,
//! as its CTAs have the bandwidth to themselves; `fit.rs` says from measurements whether the model holds.

use serde::Serialize;
use std::fmt;
use std::num::NonZeroU32;

/// How `ctas` fill the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Waves {
    pub ctas: u64,
    pub slots: NonZeroU32,
    pub waves: u64,
}

impl Waves {
    pub fn of(ctas: u64, slots: NonZeroU32) -> Self {
        Waves { ctas, slots, waves: ctas.div_ceil(u64::from(slots.get())) }
    }

    /// CTAs over the slots of all waves, 0 to 1. Of an empty grid: 0.
    pub fn efficiency(&self) -> f64 {
        if self.waves == 0 {
            0.0
        } else {
            self.ctas as f64 / (self.waves as f64 * f64::from(self.slots.get()))
        }
    }

    /// CTAs of the last wave when it is not full, else 0.
    pub fn rest(&self) -> u64 {
        self.ctas % u64::from(self.slots.get())
    }
}

/// One batch of a sweep: its grid and how long it takes, in any unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    pub batch: u32,
    pub grid: Waves,
    pub time: f64,
}

/// A step of the batch that costs more than it brings: requests a second fall from `from_batch` to `batch`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cliff {
    pub from_batch: u32,
    pub batch: u32,
    pub grid: Waves,
    /// Time at `batch` over time at `from_batch`.
    pub time_ratio: f64,
    /// `batch` over `from_batch`: what the time might grow by without loss.
    pub batch_ratio: f64,
}

/// The cliffs of a sweep in the order of its batches.
pub fn cliffs(points: &[Point]) -> Vec<Cliff> {
    let cliff = |pair: &[Point]| {
        let (from, to) = (pair[0], pair[1]);
        let cliff = Cliff {
            from_batch: from.batch,
            batch: to.batch,
            grid: to.grid,
            time_ratio: to.time / from.time,
            batch_ratio: f64::from(to.batch) / f64::from(from.batch),
        };
        let costs_more = cliff.time_ratio > cliff.batch_ratio * (1.0 + 1e-9);
        (costs_more && to.grid.waves > from.grid.waves).then_some(cliff)
    };
    points.windows(2).filter_map(cliff).collect()
}

impl fmt::Display for Cliff {
    /// `C=96: 384 CTAs = 2x188+8, a third wave for 8`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waves { ctas, slots, waves } = self.grid;
        let wave = ordinal(waves);
        match self.grid.rest() {
            0 => write!(f, "C={}: {ctas} CTAs = {waves}x{slots}, {wave} wave", self.batch),
            rest => write!(
                f,
                "C={}: {ctas} CTAs = {}x{slots}+{rest}, {wave} wave for {rest}",
                self.batch,
                waves - 1
            ),
        }
    }
}

/// `a third`, `a 12th`, with its article.
fn ordinal(number: u64) -> String {
    const WORDS: [&str; 10] = [
        "a first",
        "a second",
        "a third",
        "a fourth",
        "a fifth",
        "a sixth",
        "a seventh",
        "an eighth",
        "a ninth",
        "a tenth",
    ];
    let word = number.checked_sub(1).and_then(|index| WORDS.get(usize::try_from(index).ok()?));
    if let Some(word) = word {
        return (*word).to_owned();
    }
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    let article = if matches!(number, 11 | 18 | 80..=89) { "an" } else { "a" };
    format!("{article} {number}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(number: u32) -> NonZeroU32 {
        NonZeroU32::new(number).unwrap()
    }

    fn sweep(ctas_per_request: u64, slots_: u32, batches: impl IntoIterator<Item = u32>) -> Vec<Point> {
        let point = |batch| {
            let grid = Waves::of(u64::from(batch) * ctas_per_request, slots(slots_));
            Point { batch, grid, time: grid.waves as f64 }
        };
        batches.into_iter().map(point).collect()
    }

    #[test]
    fn the_cliff_of_four_ctas_a_request_is_named() {
        let found = cliffs(&sweep(4, 188, [64, 80, 96]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].to_string(), "C=96: 384 CTAs = 2x188+8, a third wave for 8");
        assert_eq!((found[0].from_batch, found[0].time_ratio, found[0].batch_ratio), (80, 1.5, 1.2));
        assert!(cliffs(&sweep(5, 188, [80, 96])).is_empty());
    }

    /// To be checked on an H200: a kernel of 4 CTAs a request steps there, depending on its CTAs per SM.
    #[test]
    fn one_request_too_many_is_found_where_it_is() {
        for (ctas_per_sm, batch) in [(2, 67), (1, 34)] {
            let found = cliffs(&sweep(4, 132 * ctas_per_sm, 1..=70));
            assert_eq!(found[0].batch, batch);
        }
    }

    #[test]
    fn full_waves_and_empty_grids_are_well_defined() {
        let full = Waves::of(376, slots(188));
        assert_eq!((full.waves, full.efficiency(), full.rest()), (2, 1.0, 0));
        let empty = Waves::of(0, slots(188));
        assert_eq!((empty.waves, empty.efficiency()), (0, 0.0));
        let jump = cliffs(&sweep(47, 188, [4, 5, 8])).iter().map(Cliff::to_string).collect::<Vec<_>>();
        assert_eq!(jump, ["C=5: 235 CTAs = 1x188+47, a second wave for 47"]);
    }

    #[test]
    fn ordinals_read_well() {
        let texts = [1, 2, 8, 11, 12, 18, 21, 22, 23, 80, 111].map(ordinal);
        let expected = [
            "a first",
            "a second",
            "an eighth",
            "an 11th",
            "a 12th",
            "an 18th",
            "a 21st",
            "a 22nd",
            "a 23rd",
            "an 80th",
            "a 111th",
        ];
        assert_eq!(texts, expected);
    }
}
