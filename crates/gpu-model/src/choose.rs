//! Which kernel of decode attention a launch should use, and how it deals out the tiles of its rows: pure arithmetic on shapes
//! and on costs that a table holds for a device (`table.rs`), fitted to measured times (`tune.rs`). Printable, so that every
//! choice can be read, and pinned, so that every choice can be overruled.
//!
//! ```text
//! splits n    waves = ceil(rows head_blocks n / (multiprocessors CTAs_each))
//!             t = launch + waves start + ((waves - 1) mean(n) + longest(n)) tile + [n > 1] (share + n part)
//! workers w   rows whole   t = launch + k start + ((k - 1) mean + longest) tile,  k = ceil(rows / w)
//!             rows cut     t = launch + rows/w start + rows/w mean tile + share + parts part
//! ```
//!
//! `mean` and `longest` are tiles of a row, `mean(n)` and `longest(n)` those of a CTA that has an nth of it: all waves but one
//! are taken to last as long as a row of mean length, one as long as the longest. With several CTAs on a multiprocessor,
//! start and tile have a second, crowded cost, which counts when a grid has more CTAs than the device multiprocessors.
//! A kernel with workers deals rows out on the device, whole or cut, whichever ends first: so does this.
//!
//! Not here: what memory allows. Costs were measured, and hold for lists that are not in a cache already.

use crate::device::Card;
use crate::least_squares::Row;
use crate::splits::{BATCH_MAX, HEAD_BLOCKS_MAX, TILES_MAX, useful_splits};
use crate::table::{Basis, Entry, Table};
use crate::waves::Waves;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use thiserror::Error;

pub const COSTS: usize = 7;

/// What the parts of a launch cost, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// The launch itself.
    pub launch_us: f64,
    /// Beginning and ending a row, or a CTA's part of it.
    pub start_us: f64,
    pub tile_us: f64,
    /// The same two where CTAs share a multiprocessor.
    #[serde(default)]
    pub crowded_start_us: f64,
    #[serde(default)]
    pub crowded_tile_us: f64,
    /// Adding up parts of a row at all, and each of them.
    pub share_us: f64,
    pub part_us: f64,
}

/// How a kernel deals out tiles: several CTAs a row, or a fixed number of workers that share all rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dealing {
    Splits,
    Workers,
}

/// What a kernel is, as far as its time depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelShape {
    pub name: String,
    pub dealing: Dealing,
    pub heads_per_cta: NonZeroU32,
    /// Cache entries that a CTA handles at a time.
    pub tile: NonZeroU32,
    pub warps: NonZeroU32,
    /// Tiles in flight; 0 for a kernel that does not copy ahead.
    pub stages: u32,
    pub ctas_per_sm: NonZeroU32,
    /// The most splits of a row, or the most workers.
    pub parts_max: NonZeroU32,
}

/// The device, as the choice depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Target {
    pub name: String,
    pub sm: u32,
    pub multiprocessors: NonZeroU32,
}

/// The lists of all rows in one pool, in entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Lists {
    pub mean: f64,
    pub longest: u32,
}

/// What a launch has to do: rows of some heads over a window's list and a compressed one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Load {
    rows: u32,
    heads: u32,
    lists: [Lists; 2],
}

/// How a launch deals out its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Deal {
    /// CTAs a row and block of heads.
    Splits(u32),
    /// Workers a block of heads.
    Workers(u32),
}

/// A kernel, how it deals, and how long that should take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    pub kernel: String,
    pub deal: Deal,
    pub us: f64,
    pub grid: Waves,
}

/// The plan that should end first, with all that it depended on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    pub plan: Plan,
    pub shape: KernelShape,
    pub basis: Basis,
    pub reason: Reason,
    /// The best plan of each kernel that was not chosen, quickest first.
    pub rejected: Vec<Plan>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    Pinned,
    Quickest,
}

/// `NAME` or `NAME:N`: use this kernel, with so many splits or workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pin {
    pub kernel: String,
    pub parts: Option<NonZeroU32>,
}

#[derive(Clone, Debug, PartialEq, Error)]
pub enum ChooseError {
    #[error("{what} is {given}: decode attention takes {limits}")]
    Load { what: &'static str, given: f64, limits: &'static str },
    #[error("no kernel is called {name}: use one of {known}")]
    UnknownKernel { name: String, known: String },
    #[error("{kernel} with {given} parts: it takes 1 to {most}")]
    Parts { kernel: String, given: u32, most: u32 },
    #[error("`{given}` names no kernel: write NAME or NAME:N, such as v6_m1_t64_s4_x1:2")]
    Pin { given: String },
}

impl Costs {
    pub fn array(&self) -> [f64; COSTS] {
        let Costs { launch_us, start_us, tile_us, crowded_start_us, crowded_tile_us, share_us, part_us } =
            *self;
        [launch_us, start_us, tile_us, crowded_start_us, crowded_tile_us, share_us, part_us]
    }

    pub fn of_array(costs: [f64; COSTS]) -> Self {
        let [launch_us, start_us, tile_us, crowded_start_us, crowded_tile_us, share_us, part_us] = costs;
        Costs { launch_us, start_us, tile_us, crowded_start_us, crowded_tile_us, share_us, part_us }
    }

    fn us(&self, terms: &Row<COSTS>) -> f64 {
        terms.iter().zip(self.array()).map(|(times, cost)| times * cost).sum()
    }
}

impl Lists {
    pub fn even(length: u32) -> Self {
        Lists { mean: f64::from(length), longest: length }
    }

    /// Tiles of a row of mean length and of the longest. A length that is not a multiple of the tile costs half a tile on
    /// average; equal lengths are known exactly.
    fn tiles(&self, tile: NonZeroU32) -> (f64, u32) {
        let longest = self.longest.div_ceil(tile.get());
        if self.mean == f64::from(self.longest) {
            return (f64::from(longest), longest);
        }
        ((self.mean / f64::from(tile.get()) + 0.5).min(f64::from(longest)), longest)
    }
}

impl Load {
    /// # Errors
    /// No rows or more than can be computed with, heads outside 1 to 1,024, lists whose mean is above their longest.
    pub fn new(rows: u32, heads: u32, lists: [Lists; 2]) -> Result<Self, ChooseError> {
        let refuse = |what, given, limits| Err(ChooseError::Load { what, given, limits });
        if !(1..=BATCH_MAX).contains(&rows) {
            return refuse("the number of rows", rows.into(), "1 to 65,536");
        }
        if !(1..=HEAD_BLOCKS_MAX).contains(&heads) {
            return refuse("the number of heads", heads.into(), "1 to 1,024");
        }
        for list in lists {
            if list.longest > TILES_MAX * 16 {
                return refuse("the longest list", list.longest.into(), "at most 262,144 entries");
            }
            if !(0.0..=f64::from(list.longest)).contains(&list.mean) {
                return refuse("the mean length", list.mean, "0 to the longest list");
            }
        }
        Ok(Load { rows, heads, lists })
    }

    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Mean and longest, at least a tile: a row without entries still begins and ends.
    fn tiles(&self, tile: NonZeroU32) -> (f64, u32) {
        let [window, extra] = self.lists.map(|list| list.tiles(tile));
        ((window.0 + extra.0).max(1.0), (window.1 + extra.1).max(1))
    }
}

impl Target {
    pub fn of_card(card: &Card) -> Self {
        let multiprocessors = NonZeroU32::new(card.sms).unwrap_or(NonZeroU32::MIN);
        Target { name: card.name.into(), sm: card.sm, multiprocessors }
    }
}

impl Deal {
    pub fn parts(self) -> u32 {
        match self {
            Deal::Splits(parts) | Deal::Workers(parts) => parts,
        }
    }
}

impl KernelShape {
    fn head_blocks(&self, heads: u32) -> u32 {
        heads.div_ceil(self.heads_per_cta.get())
    }

    /// Workers of a device: one for each place, heads side by side.
    pub fn workers(&self, heads: u32, multiprocessors: NonZeroU32) -> u32 {
        let places = multiprocessors.get().saturating_mul(self.ctas_per_sm.get());
        (places / self.head_blocks(heads)).clamp(1, self.parts_max.get())
    }

    /// Splits with which a row's answer does not depend on the rest of the batch, as they follow from the longest lists alone.
    /// Five tiles of 64 a part keep single rows quick at little cost to full batches.
    pub fn batch_invariant_splits(&self, longest: [u32; 2]) -> u32 {
        const TILES_EACH: u32 = 5;
        let tiles: u32 = longest.map(|entries| entries.div_ceil(self.tile.get())).iter().sum();
        tiles.div_ceil(TILES_EACH).clamp(1, self.parts_max.get())
    }

    fn grid(&self, target: &Target, load: &Load, deal: Deal) -> Waves {
        let slots = target.multiprocessors.saturating_mul(self.ctas_per_sm);
        let each = u64::from(self.head_blocks(load.heads)) * u64::from(deal.parts());
        let rows = if matches!(deal, Deal::Splits(_)) { u64::from(load.rows) } else { 1 };
        Waves::of(rows * each, slots)
    }

    /// The multiples of the costs that a launch adds up to, for each way in which it may go on the device.
    pub fn ways(&self, target: &Target, load: &Load, deal: Deal) -> Vec<Row<COSTS>> {
        let (mean, longest) = load.tiles(self.tile);
        let even = mean == f64::from(longest);
        match deal {
            Deal::Splits(splits) => {
                let splits = splits.max(1);
                let grid = self.grid(target, load, deal);
                let longest_each = f64::from(longest.div_ceil(splits));
                let mean_each = match (even, splits) {
                    (true, _) => longest_each,
                    (false, 1) => mean,
                    (false, _) => (mean / f64::from(splits) + 0.5).min(longest_each),
                };
                let waves = grid.waves as f64;
                let tiles = (waves - 1.0) * mean_each + longest_each;
                let crowded =
                    self.ctas_per_sm.get() > 1 && grid.ctas > u64::from(target.multiprocessors.get());
                let parts = if splits > 1 { f64::from(splits) } else { 0.0 };
                let shares = f64::from(u8::from(splits > 1));
                vec![if crowded {
                    [1.0, 0.0, 0.0, waves, tiles, shares, parts]
                } else {
                    [1.0, waves, tiles, 0.0, 0.0, shares, parts]
                }]
            }
            Deal::Workers(workers) => {
                let workers = workers.max(1);
                let rows = f64::from(load.rows.div_ceil(workers));
                let whole = [1.0, rows, (rows - 1.0) * mean + f64::from(longest), 0.0, 0.0, 0.0, 0.0];
                let rows = f64::from(load.rows) / f64::from(workers);
                let tiles = (rows * mean).max(1.0);
                let parts = (f64::from(longest) / tiles).max(1.0);
                let cut = [1.0, rows.max(1.0), tiles, 0.0, 0.0, 1.0, parts];
                vec![whole, cut]
            }
        }
    }

    /// # Errors
    /// More parts than the kernel takes, or none.
    pub fn deal(&self, parts: u32) -> Result<Deal, ChooseError> {
        let most = self.parts_max.get();
        if !(1..=most).contains(&parts) {
            return Err(ChooseError::Parts { kernel: self.name.clone(), given: parts, most });
        }
        Ok(match self.dealing {
            Dealing::Splits => Deal::Splits(parts),
            Dealing::Workers => Deal::Workers(parts),
        })
    }

    pub fn plan_with(&self, costs: &Costs, target: &Target, load: &Load, deal: Deal) -> Plan {
        let us =
            self.ways(target, load, deal).iter().map(|terms| costs.us(terms)).fold(f64::INFINITY, f64::min);
        Plan { kernel: self.name.clone(), deal, us, grid: self.grid(target, load, deal) }
    }

    /// The number of parts with which this kernel should end first; of equally quick ones the least.
    pub fn plan(&self, costs: &Costs, target: &Target, load: &Load) -> Plan {
        if self.dealing == Dealing::Workers {
            let workers = Deal::Workers(self.workers(load.heads, target.multiprocessors));
            return self.plan_with(costs, target, load, workers);
        }
        let (_, tiles) = load.tiles(self.tile);
        let first = self.plan_with(costs, target, load, Deal::Splits(1));
        let most = tiles.min(self.parts_max.get());
        let plans = useful_splits(tiles, most).skip(1);
        plans.map(|splits| self.plan_with(costs, target, load, Deal::Splits(splits))).fold(
            first,
            |best, plan| {
                if plan.us < best.us - 1e-9 { plan } else { best }
            },
        )
    }
}

/// The kernel that should end first, of those that serve this device; or the pinned one.
///
/// # Errors
/// A pin that names no kernel of the table, or more parts than the kernel takes.
pub fn choose(table: &Table, target: &Target, load: &Load, pin: Option<&Pin>) -> Result<Choice, ChooseError> {
    let plan = |entry: &Entry| entry.shape.plan(&entry.costs, target, load);
    let mut rejected: Vec<(Plan, KernelShape)> =
        table.serving(target.sm).map(|entry| (plan(entry), entry.shape.clone())).collect();
    rejected.sort_by(|one, other| one.0.us.total_cmp(&other.0.us));
    let pinned = match pin {
        Some(pin) => Some(pinned(table, target, load, pin)?),
        None => None,
    };
    let reason = if pinned.is_some() { Reason::Pinned } else { Reason::Quickest };
    // A table without a kernel for a device is refused when it is read.
    let (plan, shape) = pinned.unwrap_or_else(|| rejected.remove(0));
    let rejected = rejected.into_iter().map(|(plan, _)| plan).filter(|other| other.kernel != plan.kernel);
    Ok(Choice { rejected: rejected.collect(), plan, shape, basis: table.basis(target), reason })
}

fn pinned(
    table: &Table,
    target: &Target,
    load: &Load,
    pin: &Pin,
) -> Result<(Plan, KernelShape), ChooseError> {
    let entry = table.entry(&pin.kernel).ok_or_else(|| ChooseError::UnknownKernel {
        name: pin.kernel.clone(),
        known: table.names().collect::<Vec<_>>().join(", "),
    })?;
    let plan = match pin.parts {
        Some(parts) => entry.shape.plan_with(&entry.costs, target, load, entry.shape.deal(parts.get())?),
        None => entry.shape.plan(&entry.costs, target, load),
    };
    Ok((plan, entry.shape.clone()))
}

impl FromStr for Pin {
    type Err = ChooseError;

    fn from_str(text: &str) -> Result<Self, ChooseError> {
        let bad = || ChooseError::Pin { given: text.chars().take(80).collect() };
        let (kernel, parts) = match text.split_once(':') {
            Some((kernel, parts)) => (kernel, Some(parts.parse().map_err(|_| bad())?)),
            None => (text, None),
        };
        if kernel.is_empty() {
            return Err(bad());
        }
        Ok(Pin { kernel: kernel.into(), parts })
    }
}

impl fmt::Display for Deal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Deal::Splits(1) => write!(f, "rows whole"),
            Deal::Splits(splits) => write!(f, "{splits} splits"),
            Deal::Workers(workers) => write!(f, "{workers} workers"),
        }
    }
}

impl fmt::Display for Choice {
    /// `v6_m1_t64_s4_x1, 2 splits: 18.2 us (...)`, and why.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choice { plan: Plan { kernel, deal, us, grid }, shape, basis, reason, rejected } = self;
        write!(
            f,
            "{kernel}, {deal}: {us:.1} us (tiles of {}, {} warps, {} stages, {} CTAs in {} of {} slots); ",
            shape.tile,
            shape.warps,
            shape.stages,
            grid.ctas,
            if grid.waves == 1 { "a wave".to_owned() } else { format!("{} waves", grid.waves) },
            grid.slots
        )?;
        match reason {
            Reason::Pinned => write!(f, "pinned")?,
            Reason::Quickest => write!(f, "the quickest of {}", rejected.len() + 1)?,
        }
        if let Some(next) = rejected.first() {
            write!(f, ", {} with {} should take {:.1} us", next.kernel, next.deal, next.us)?;
        }
        write!(f, "; {basis}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn h200() -> Target {
        Target::of_card(&Card::named("H200").unwrap())
    }

    fn chosen(rows: u32, heads: u32, lists: [Lists; 2]) -> Choice {
        let load = Load::new(rows, heads, lists).unwrap();
        choose(&Table::built_in(), &h200(), &load, None).unwrap()
    }

    fn even(rows: u32, heads: u32) -> (String, Deal) {
        let plan = chosen(rows, heads, [Lists::even(128), Lists::even(512)]).plan;
        (plan.kernel, plan.deal)
    }

    #[test]
    fn few_rows_are_split_and_many_are_shared() {
        let deals = [1, 16, 64, 132, 133, 160, 200].map(|rows| even(rows, 16).1);
        let [splits, workers] = [Deal::Splits, Deal::Workers];
        assert_eq!(deals[..4], [splits(10), splits(5), splits(2), splits(1)]);
        assert_eq!(deals[4..], [workers(132); 3]);
    }

    /// One list of 8,192 among short ones: split by rows it is the whole launch.
    #[test]
    fn uneven_rows_are_shared() {
        let uneven = [Lists { mean: 64.0, longest: 128 }, Lists { mean: 576.0, longest: 8192 }];
        let choice = chosen(64, 16, uneven);
        assert_eq!(choice.plan.deal, Deal::Workers(132), "{choice}");
        assert!(choice.plan.us < 40.0 && choice.rejected[0].us > 50.0, "{choice}");
    }

    #[test]
    fn a_pin_overrules_and_is_checked() {
        let load = Load::new(64, 16, [Lists::even(128), Lists::even(512)]).unwrap();
        let pinned = |text: &str| {
            let pin = text.parse::<Pin>()?;
            choose(&Table::built_in(), &h200(), &load, Some(&pin))
        };
        let choice = pinned("v6_m1_t64_s4_x1:7").unwrap();
        assert_eq!((choice.plan.deal, choice.reason), (Deal::Splits(7), Reason::Pinned));
        assert!(choice.to_string().contains("pinned"), "{choice}");
        assert!(pinned("v9").unwrap_err().to_string().contains("v6_m1_t64_s4_x1"));
        assert!(pinned("v6_m1_t64_s4_x1:999").unwrap_err().to_string().contains("1 to 64"));
        for bad in ["", ":2", "v6:", "v6:0", "v6:-1", "v6:x"] {
            assert!(bad.parse::<Pin>().is_err(), "{bad}");
        }
    }

    #[test]
    fn loads_that_cannot_be_are_refused() {
        let lists = [Lists::even(128), Lists::even(0)];
        for (rows, heads) in [(0, 16), (BATCH_MAX + 1, 16), (1, 0), (1, 1025)] {
            assert!(Load::new(rows, heads, lists).is_err());
        }
        for mean in [f64::NAN, -1.0, 129.0, f64::INFINITY] {
            assert!(Load::new(1, 1, [Lists { mean, longest: 128 }, lists[1]]).is_err(), "{mean}");
        }
        assert!(Load::new(1, 1, [Lists::even(u32::MAX), lists[1]]).is_err());
    }

    #[test]
    fn any_load_has_a_finite_plan() {
        let seed = overshot_testing::seed();
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..500 {
            let mut lists = || {
                let longest = random.u32(0..=TILES_MAX * 16);
                Lists { mean: random.f64() * f64::from(longest), longest }
            };
            let lists = [lists(), lists()];
            let load = Load::new(random.u32(1..=BATCH_MAX), random.u32(1..=128), lists).unwrap();
            for card in crate::CARDS {
                let choice = choose(&Table::built_in(), &Target::of_card(&card), &load, None).unwrap();
                assert!(choice.plan.us.is_finite() && choice.plan.us > 0.0, "seed {seed}: {choice}");
            }
        }
    }

    #[test]
    fn batch_invariant_parts_depend_on_the_lists_alone() {
        let table = Table::built_in();
        let shape = &table.entry("v6_m1_t64_s4_x1").unwrap().shape;
        let splits =
            [[128, 512], [128, 0], [0, 0], [128, 8192]].map(|lists| shape.batch_invariant_splits(lists));
        assert_eq!(splits, [2, 1, 1, 26]);
    }
}
