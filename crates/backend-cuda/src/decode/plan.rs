//! How many blocks share a row: pure arithmetic on shapes, so that a captured launch does not depend on lengths.

/// What a plan depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    pub rows: u32,
    pub head_blocks: u32,
    /// Tiles of the longest row, both lists.
    pub tiles: u32,
    pub multiprocessors: u32,
    pub blocks_per_multiprocessor: u32,
    pub splits_max: u32,
}

/// What a block costs, in units of one tile of a block that has a multiprocessor to itself. Fitted to sweeps of split counts
/// on an H200 (60 shapes, 5 to 7 counts each); for version 5 the plan is on average 0.8 % slower than the best count, at
/// most 13 %. Other devices need their own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Starting and ending.
    pub fixed: f64,
    /// How much longer a tile takes when a multiprocessor is full of blocks, and the same for starting and ending.
    pub crowded_tile: f64,
    pub crowded_fixed: f64,
    /// Writing and adding up parts at all, and each of them.
    pub merge: f64,
    pub merge_each: f64,
    /// A tile, in microseconds: what versions are compared by.
    pub tile_us: f64,
}

impl Costs {
    pub const H200: Costs = Costs {
        fixed: 1.5,
        crowded_tile: 1.5,
        crowded_fixed: 1.8,
        merge: 0.0,
        merge_each: 0.1,
        tile_us: 2.24,
    };
    /// Version 6 with 16 heads a block, and with 32. These two were fitted by hand to 40 shapes.
    pub const H200_TWO_ROLES: [Costs; 2] = [
        Costs {
            fixed: 4.5,
            crowded_tile: 1.0,
            crowded_fixed: 1.0,
            merge: 1.0,
            merge_each: 0.05,
            tile_us: 1.45,
        },
        Costs {
            fixed: 5.0,
            crowded_tile: 1.0,
            crowded_fixed: 1.0,
            merge: 1.0,
            merge_each: 0.05,
            tile_us: 2.4,
        },
    ];

    fn of(&self, load: Load, splits: u32, tiles_each: u32) -> f64 {
        let blocks = load.rows * load.head_blocks * splits;
        let places = load.multiprocessors.max(1) * load.blocks_per_multiprocessor.max(1);
        let time = if blocks <= load.multiprocessors || load.blocks_per_multiprocessor <= 1 {
            f64::from(blocks.div_ceil(places)) * (f64::from(tiles_each) + self.fixed)
        } else {
            let block = f64::from(tiles_each) * self.crowded_tile + self.fixed * self.crowded_fixed;
            f64::from(blocks.div_ceil(places)) * block
        };
        time + if splits > 1 { self.merge + self.merge_each * f64::from(splits) } else { 0.0 }
    }
}

/// What a launch of version 7 takes, in microseconds: fitted by hand to batches of 1 to 256 rows of 2 and 10 tiles on an
/// H200; off by 7 % at most there. Other devices need their own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunCosts {
    pub launch_us: f64,
    pub row_us: f64,
    pub tile_us: f64,
    /// When rows are cut: the parts' own starts and ends, and adding them up.
    pub cut_us: f64,
}

impl RunCosts {
    pub const H200: RunCosts = RunCosts { launch_us: 6.0, row_us: 2.5, tile_us: 1.62, cut_us: 6.0 };

    /// The better of rows dealt whole and rows cut evenly, which the schedule kernel finds out by itself.
    pub fn us(&self, rows: u32, tiles: u32, workers: u32) -> f64 {
        let row_us = f64::from(tiles.max(1)) * self.tile_us + self.row_us;
        let whole = f64::from(rows.div_ceil(workers.max(1))) * row_us;
        let cut = f64::from(rows) / f64::from(workers.max(1)) * row_us + self.cut_us;
        self.launch_us + whole.min(cut)
    }
}

/// Parts of a row that do not depend on the rest of the batch: a row gives the same bits in any company. Five tiles a part
/// keep single rows quick at little cost to full batches.
pub fn batch_invariant_splits(tiles: u32, splits_max: u32) -> u32 {
    tiles.div_ceil(5).clamp(1, splits_max.max(1))
}

/// Split counts of a row that differ in anything: `tiles` dealt in runs of equal length.
fn choices(tiles: u32) -> impl Iterator<Item = (u32, u32)> {
    (1..=tiles.max(1)).filter_map(move |splits| {
        let each = tiles.max(1).div_ceil(splits);
        (tiles.max(1).div_ceil(each) == splits).then_some((splits, each))
    })
}

/// A plan: blocks a row, and how long the launch should take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    pub splits: u32,
    pub us: f64,
}

/// The number of blocks a row that should end first.
pub fn plan(load: Load, costs: Costs) -> Plan {
    let mut best = (f64::INFINITY, 1);
    for (splits, each) in choices(load.tiles).take_while(|(splits, _)| *splits <= load.splits_max.max(1)) {
        let cost = costs.of(load, splits, each);
        if cost < best.0 - 1e-9 {
            best = (cost, splits);
        }
    }
    Plan { splits: best.1, us: best.0 * costs.tile_us }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Load = Load {
        rows: 1,
        head_blocks: 1,
        tiles: 10,
        multiprocessors: 132,
        blocks_per_multiprocessor: 2,
        splits_max: 64,
    };

    #[test]
    fn few_rows_are_split_and_many_are_not() {
        let of = |rows| plan(Load { rows, ..H200 }, Costs::H200).splits;
        assert_eq!([1, 8, 32, 64, 80, 128, 256].map(of), [10, 10, 4, 2, 3, 2, 1]);
        assert_eq!(plan(Load { tiles: 0, ..H200 }, Costs::H200).splits, 1);
        assert_eq!(plan(Load { splits_max: 1, ..H200 }, Costs::H200).splits, 1);
    }

    #[test]
    fn a_split_is_never_longer_than_the_row() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2000 {
            let load = Load {
                rows: random.u32(1..400),
                head_blocks: random.u32(1..9),
                tiles: random.u32(0..300),
                multiprocessors: random.u32(1..200),
                blocks_per_multiprocessor: random.u32(1..5),
                ..H200
            };
            let splits = plan(load, Costs::H200).splits;
            assert!((1..=load.tiles.max(1)).contains(&splits), "{load:?}");
        }
    }
}
