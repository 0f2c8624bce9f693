//! How many blocks share a tile of rows, and how long a launch should take: pure arithmetic on shapes.
//!
//! Splits depend on the matrices of a launch, the device and, where that is allowed, on the number of token tiles; never
//! on lengths or on what else is in the batch.

/// Bytes of each row that splits are multiples of: stages of all variants divide it. With fewer, filling and draining a ring
/// would be most of what a block of threads does.
pub const UNIT_BYTES: u32 = 512;
/// Blocks of threads that a launch should have for each multiprocessor: while one starts or ends, another streams.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 2;

/// A matrix as a plan sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub rows: u32,
    pub row_bytes: u32,
}

impl Extent {
    fn tiles(self, tile_rows: u32) -> u32 {
        self.rows.div_ceil(tile_rows.max(1)).max(1)
    }

    fn units(self) -> u32 {
        self.row_bytes.div_ceil(UNIT_BYTES).max(1)
    }
}

/// Blocks that share a tile of rows, and how many units each takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    pub count: u32,
    pub units: u32,
}

/// Of each matrix of a launch, so that its blocks are about equally long and fill the device.
pub fn splits(extents: &[Extent], tile_rows: u32, token_tiles: u32, multiprocessors: u32) -> Vec<Split> {
    let work: u64 = extents
        .iter()
        .map(|extent| u64::from(extent.tiles(tile_rows)) * u64::from(extent.units()))
        .sum::<u64>()
        * u64::from(token_tiles.max(1));
    let places = u64::from((multiprocessors * BLOCKS_PER_MULTIPROCESSOR).max(1));
    let run = work.div_ceil(places).clamp(1, u64::from(u32::MAX)) as u32;
    extents
        .iter()
        .map(|extent| {
            let all = extent.units();
            // Runs of equal length, none of them empty.
            let units = all.div_ceil(all.div_ceil(run));
            Split { count: all.div_ceil(units), units }
        })
        .collect()
}

/// The most parts that `splits` with one token tile makes on such a device: a run is at least half of what it aims at.
pub fn parts_max(multiprocessors: u32) -> usize {
    2 * (multiprocessors * BLOCKS_PER_MULTIPROCESSOR) as usize
}

/// What a launch cannot be quicker than. Measured rates replace these when there are some.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    pub launch_us: f64,
    pub bytes_per_us: f64,
    /// Of multiply-adds counted as two.
    pub flop_per_us: f64,
}

impl Rates {
    /// 4.3 TB/s copied and 476 TFLOP/s of bf16 `mma.sync`, both measured; 3 us of launch assumed.
    pub const H200: Rates = Rates { launch_us: 3.0, bytes_per_us: 4.3e6, flop_per_us: 4.76e8 };

    /// Each byte of weights once, every multiplication by whole tiles of 8 tokens.
    pub fn us(&self, weight_bytes: u64, weights: u64, tokens: u64) -> f64 {
        let flop = 2.0 * weights as f64 * tokens.next_multiple_of(8) as f64;
        self.launch_us + (weight_bytes as f64 / self.bytes_per_us).max(flop / self.flop_per_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flash, a CSA layer's first launch on one rank of two: wq_a, wkv, the compressor's and the indexer's matrices.
    const FIRST: [Extent; 7] = [
        Extent { rows: 1024, row_bytes: 4096 },
        Extent { rows: 512, row_bytes: 4096 },
        Extent { rows: 1024, row_bytes: 8192 },
        Extent { rows: 1024, row_bytes: 8192 },
        Extent { rows: 256, row_bytes: 8192 },
        Extent { rows: 256, row_bytes: 8192 },
        Extent { rows: 32, row_bytes: 8192 },
    ];

    #[test]
    fn a_launch_fills_the_device_in_blocks_of_about_equal_length() {
        let splits = splits(&FIRST, 128, 1, 132);
        let blocks: u32 =
            FIRST.iter().zip(&splits).map(|(extent, split)| extent.tiles(128) * split.count).sum();
        assert!((200..=2 * 264).contains(&blocks), "{blocks}");
        assert_eq!(super::splits(&[Extent { rows: 64_640, row_bytes: 8192 }], 128, 1, 132)[0].count, 1);
    }

    #[test]
    fn splits_are_never_empty_and_parts_fit_the_workspace() {
        let mut random = overshot_testing::rng();
        for _ in 0..2000 {
            let extents: Vec<Extent> = (0..random.usize(1..17))
                .map(|_| Extent { rows: random.u32(1..70_000), row_bytes: 16 * random.u32(1..1200) })
                .collect();
            let multiprocessors = random.u32(1..200);
            let splits = splits(&extents, 128, 1, multiprocessors);
            let mut parts = 0;
            for (extent, Split { count, units }) in extents.iter().zip(splits) {
                assert_eq!(extent.units().div_ceil(units), count, "{extent:?}");
                parts += if count > 1 { (extent.tiles(128) * count) as usize } else { 0 };
            }
            assert!(parts <= parts_max(multiprocessors), "{parts} parts on {multiprocessors}");
        }
    }

    #[test]
    fn few_tokens_are_bound_by_memory_and_many_by_multiplication() {
        let us = |tokens| Rates::H200.us(16 << 20, 16 << 20, tokens);
        assert_eq!(us(1), us(48));
        assert!(us(256) > 2.0 * us(64));
    }
}
