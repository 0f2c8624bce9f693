//! Into how many CTAs to split the KV cache of a request. A launch has a unit for each request and block of heads; each
//! unit walks `tiles` tiles of KV and may be split over `n` CTAs, whose partial results are combined afterwards:
//!
//! ```text
//! i(n) = ceil(tiles / n)                       tiles that one CTA walks
//! G(n) = batch * head_blocks * n               CTAs of the grid
//! t(n) = ceil(G / slots) * (t0 + i t1) + c n   time; c counts only when n > 1
//! persistent: one CTA a slot, tiles dealt out evenly: ceil(units * tiles / slots) t1 + t0 a request touched
//! ```
//!
//! A number of splits that does not shorten i(n) only adds CTAs and is never chosen by the rules that look.

use crate::waves::{Point, Waves};
use serde::Serialize;
use std::num::NonZeroU32;
use thiserror::Error;

/// Keeps every product of this file below 2^63, and a search over splits short.
pub const TILES_MAX: u32 = 16_384;
pub const BATCH_MAX: u32 = 65_536;
pub const HEAD_BLOCKS_MAX: u32 = 1_024;

/// What a CTA's work costs, in any one unit of time. `fit.rs` finds them from measurements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TileCosts {
    /// A CTA's prologue and epilogue.
    pub t0: f64,
    /// One tile.
    pub t1: f64,
    /// Combining, for each split of more than one.
    pub c: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SplitLaunch {
    pub head_blocks: NonZeroU32,
    pub tiles: NonZeroU32,
    pub slots: NonZeroU32,
    pub costs: TileCosts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum SplitRule {
    /// As many splits as keep the grid at or below this many CTAs, at least one.
    TargetCtas(NonZeroU32),
    /// The rule of FlashAttention: no split once units fill 80 % of the slots, else the fewest splits within 85 % of the
    /// best efficiency of the waves, which it computes without rounding tiles.
    FlashAttention,
    /// The fewest splits of the shortest time by the formula above: one number for each batch.
    Best,
}

#[derive(Clone, Debug, PartialEq, Error)]
pub enum SplitError {
    #[error("{what} is {given}: at most {most} can be computed with")]
    TooLarge { what: &'static str, given: u32, most: u32 },
    #[error("the cost {what} is {given}: use a finite number of at least 0")]
    BadCost { what: &'static str, given: f64 },
}

/// What a rule makes of one batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Choice {
    pub splits: u32,
    pub grid: Waves,
    pub time: f64,
}

/// Every rule at one batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    pub batch: u32,
    pub target: Choice,
    pub flash_attention: Choice,
    pub best: Choice,
    pub persistent_time: f64,
}

impl SplitLaunch {
    /// # Errors
    /// Sizes beyond the limits above; costs that are negative or no numbers.
    pub fn new(
        head_blocks: NonZeroU32,
        tiles: NonZeroU32,
        slots: NonZeroU32,
        costs: TileCosts,
    ) -> Result<Self, SplitError> {
        for (what, given, most) in
            [("tiles", tiles.get(), TILES_MAX), ("blocks of heads", head_blocks.get(), HEAD_BLOCKS_MAX)]
        {
            if given > most {
                return Err(SplitError::TooLarge { what, given, most });
            }
        }
        for (what, given) in [("t0", costs.t0), ("t1", costs.t1), ("c", costs.c)] {
            if !given.is_finite() || given < 0.0 {
                return Err(SplitError::BadCost { what, given });
            }
        }
        Ok(SplitLaunch { head_blocks, tiles, slots, costs })
    }

    pub fn tiles_per_cta(&self, splits: u32) -> u32 {
        self.tiles.get().div_ceil(splits.max(1))
    }

    pub fn grid(&self, batch: u32, splits: u32) -> Waves {
        Waves::of(self.units(batch) * u64::from(splits), self.slots)
    }

    pub fn time(&self, batch: u32, splits: u32) -> f64 {
        let TileCosts { t0, t1, c } = self.costs;
        let combine = if splits > 1 { c * f64::from(splits) } else { 0.0 };
        self.grid(batch, splits).waves as f64 * (t0 + f64::from(self.tiles_per_cta(splits)) * t1) + combine
    }

    /// A scheduler that deals out tiles evenly pays the fixed cost for every request that a CTA touches.
    pub fn persistent_time(&self, batch: u32) -> f64 {
        let (units, tiles, slots) =
            (self.units(batch), u64::from(self.tiles.get()), u64::from(self.slots.get()));
        let share = (units * tiles).div_ceil(slots);
        let touched = if units > 1 { share.div_ceil(tiles) + 1 } else { 1 };
        share as f64 * self.costs.t1 + self.costs.t0 * touched as f64
    }

    pub fn splits(&self, batch: u32, rule: SplitRule) -> u32 {
        match rule {
            SplitRule::TargetCtas(target) => {
                let per_unit = u64::from(target.get()).checked_div(self.units(batch)).unwrap_or(0);
                per_unit.clamp(1, u64::from(self.tiles.get())) as u32
            }
            SplitRule::FlashAttention => self.flash_attention_splits(batch),
            SplitRule::Best => {
                let shortest = self
                    .eligible(self.tiles.get())
                    .min_by(|&one, &other| self.time(batch, one).total_cmp(&self.time(batch, other)));
                shortest.unwrap_or(1)
            }
        }
    }

    pub fn compare(&self, batch: u32, target: NonZeroU32) -> Comparison {
        let choice = |rule| {
            let splits = self.splits(batch, rule);
            Choice { splits, grid: self.grid(batch, splits), time: self.time(batch, splits) }
        };
        Comparison {
            batch,
            target: choice(SplitRule::TargetCtas(target)),
            flash_attention: choice(SplitRule::FlashAttention),
            best: choice(SplitRule::Best),
            persistent_time: self.persistent_time(batch),
        }
    }

    /// A batch as a point of a sweep, by a rule.
    pub fn point(&self, batch: u32, rule: SplitRule) -> Point {
        let splits = self.splits(batch, rule);
        Point { batch, grid: self.grid(batch, splits), time: self.time(batch, splits) }
    }

    fn units(&self, batch: u32) -> u64 {
        u64::from(batch) * u64::from(self.head_blocks.get())
    }

    fn eligible(&self, most: u32) -> impl Iterator<Item = u32> + use<> {
        useful_splits(self.tiles.get(), most)
    }

    fn flash_attention_splits(&self, batch: u32) -> u32 {
        const SPLITS_MAX: u32 = 128;
        let (units, slots) = (self.units(batch) as f64, f64::from(self.slots.get()));
        if units >= 0.8 * slots || units == 0.0 {
            return 1;
        }
        let efficiency = |splits: u32| {
            let waves = units * f64::from(splits) / slots;
            waves / waves.ceil()
        };
        let most = SPLITS_MAX.min(self.slots.get()).min(self.tiles.get());
        let best = self.eligible(most).map(efficiency).fold(0.0, f64::max);
        self.eligible(most).find(|&splits| efficiency(splits) >= 0.85 * best).unwrap_or(1)
    }
}

/// Numbers of splits up to a limit that make each CTA's walk shorter than the number before does, least first.
pub fn useful_splits(tiles: u32, most: u32) -> impl Iterator<Item = u32> {
    (1..=most).filter(move |&n| n == 1 || tiles.div_ceil(n) != tiles.div_ceil(n - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(value: u32) -> NonZeroU32 {
        NonZeroU32::new(value).unwrap()
    }

    #[test]
    fn the_table_of_the_campaign() {
        let costs = TileCosts { t0: 4.0, t1: 1.0, c: 0.0 };
        let launch = SplitLaunch::new(number(1), number(32), number(188), costs).unwrap();
        for (batch, target, flash, best, persistent) in [
            (8, (32, 10.0), (16, 6.0), (16, 6.0), 10.0),
            (64, (8, 24.0), (5, 22.0), (2, 20.0), 19.0),
            (96, (5, 33.0), (5, 33.0), (3, 30.0), 25.0),
        ] {
            let found = launch.compare(batch, number(512));
            let pair = |choice: Choice| (choice.splits, choice.time);
            assert_eq!(pair(found.target), target, "{batch}");
            assert_eq!(pair(found.flash_attention), flash, "{batch}");
            assert_eq!(pair(found.best), best, "{batch}");
            assert_eq!(found.persistent_time, persistent, "{batch}");
        }
    }

    #[test]
    fn combining_makes_splits_dearer() {
        let costs = |c| TileCosts { t0: 1.0, t1: 1.0, c };
        let splits = |c| {
            let launch = SplitLaunch::new(number(1), number(32), number(188), costs(c)).unwrap();
            launch.splits(8, SplitRule::Best)
        };
        assert!(splits(0.0) > splits(1.0) && splits(100.0) == 1);
    }

    #[test]
    fn sizes_and_costs_are_checked_and_the_largest_are_computed() {
        let costs = TileCosts { t0: 1.0, t1: 1.0, c: 1.0 };
        let new = |tiles, costs| SplitLaunch::new(number(HEAD_BLOCKS_MAX), number(tiles), number(1), costs);
        assert!(matches!(new(TILES_MAX + 1, costs), Err(SplitError::TooLarge { what: "tiles", .. })));
        assert!(matches!(
            new(1, TileCosts { c: f64::NAN, ..costs }),
            Err(SplitError::BadCost { what: "c", .. })
        ));
        assert!(matches!(
            new(1, TileCosts { t0: -1.0, ..costs }),
            Err(SplitError::BadCost { what: "t0", .. })
        ));
        let largest = new(TILES_MAX, costs).unwrap().compare(BATCH_MAX, NonZeroU32::MAX);
        assert!(largest.best.time.is_finite() && largest.persistent_time.is_finite());
        assert_eq!(new(8, costs).unwrap().compare(0, number(512)).best.splits, 1);
    }
}
