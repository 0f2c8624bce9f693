//! Which kernels there are: the versions of the ladder and the parameters each was compiled with.

use super::schedule::WORKERS_MAX;
use crate::cubins::Source;
use crate::cuda::Header;
use overshot_gpu_model::{Dealing, KernelShape, Table};
use std::num::NonZeroU32;

macro_rules! kernel_file {
    ($name:literal) => {
        include_str!(concat!("../../kernels/decode/", $name))
    };
}

const HEADERS: &[Header] = &[
    Header { name: "args.cuh", text: kernel_file!("args.cuh") },
    Header { name: "types.cuh", text: include_str!("../../kernels/common/types.cuh") },
    Header { name: "ptx.cuh", text: include_str!("../../kernels/common/ptx.cuh") },
    Header { name: "device.cuh", text: include_str!("../../kernels/common/device.cuh") },
    Header { name: "merge.cuh", text: kernel_file!("merge.cuh") },
    Header { name: "cursor.cuh", text: kernel_file!("cursor.cuh") },
    Header { name: "values.cuh", text: kernel_file!("values.cuh") },
];

/// A step of the ladder; each file's head comment says what it taught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Naive,
    Campaign,
    Prototype,
    OneBarrier,
    WideTile,
    TwoRoles,
    NoWaves,
}

impl Version {
    pub fn number(self) -> u32 {
        match self {
            Version::Naive => 1,
            Version::Campaign => 2,
            Version::Prototype => 3,
            Version::OneBarrier => 4,
            Version::WideTile => 5,
            Version::TwoRoles => 6,
            Version::NoWaves => 7,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Version::Naive => kernel_file!("v1_naive.cu"),
            Version::Campaign => kernel_file!("v2_campaign.cu"),
            Version::Prototype => kernel_file!("v3_prototype.cu"),
            Version::OneBarrier => kernel_file!("v4_one_barrier.cu"),
            Version::WideTile => kernel_file!("v5_wide_tile.cu"),
            Version::TwoRoles => kernel_file!("v6_two_roles.cu"),
            Version::NoWaves => kernel_file!("v7_no_waves.cu"),
        }
    }
}

/// What version 2 is compiled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knobs {
    pub block_h: u32,
    pub block_t: u32,
    pub warps: u32,
    pub stages: u32,
    pub scale: Scale,
}

/// How often a scale byte is read while entries are converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    PerElement,
    PerEight,
}

/// Where version 7 has the queries of the next row: in shared memory, or in the L2 cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    Ahead,
    Cached,
}

/// Who of version 7 arrives at the barriers of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    EveryLane,
    EveryWarp,
}

impl Arrivals {
    fn suffix(self) -> &'static str {
        match self {
            Arrivals::EveryLane => "",
            Arrivals::EveryWarp => "_once",
        }
    }
}

/// Whether version 7 starts the scores of a tile after the softmax of the one before, or lets them overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    InTurn,
    Ahead,
}

impl Scores {
    fn suffix(self) -> &'static str {
        match self {
            Scores::InTurn => "",
            Scores::Ahead => "_ahead",
        }
    }
}

impl Default for Knobs {
    fn default() -> Self {
        Knobs { block_h: 32, block_t: 16, warps: 4, stages: 2, scale: Scale::PerElement }
    }
}

/// A version with its parameters, and what a launch of it needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    pub version: Version,
    pub name: String,
    pub definitions: Vec<(&'static str, u32)>,
    pub heads_per_block: u32,
    /// Cache entries that a block handles at a time.
    pub tile: u32,
    pub threads: u32,
    /// Tiles of shared memory that copies go ahead into.
    pub stages: u32,
    pub shared_bytes: u32,
    /// Versions that cannot share a row between blocks take 1.
    pub splits_max: u32,
    /// What the schedule counts for a row and for each part of a cut row, in quarters of a tile.
    pub prices: [i32; 2],
}

impl Variant {
    pub fn naive() -> Self {
        Variant {
            version: Version::Naive,
            name: "v1".into(),
            definitions: vec![],
            heads_per_block: 1,
            tile: 1024,
            threads: 256,
            stages: 0,
            shared_bytes: 0,
            splits_max: 1,
            prices: [0, 0],
        }
    }

    /// The plain tile kernel with the knobs that people turn; `Knobs::default` is where its campaign began.
    pub fn campaign(knobs: Knobs) -> Self {
        let Knobs { block_h, block_t, warps, stages, scale } = knobs;
        let tile = block_t * (592 + 8) * stages + block_t * 1040;
        let shared_bytes =
            block_h * 1040 + tile + block_h * (block_t + 8) * 6 + block_h * 12 + stages * block_t;
        let per_element = u32::from(scale == Scale::PerElement);
        Variant {
            version: Version::Campaign,
            name: format!("v2_h{block_h}_t{block_t}_w{warps}_s{stages}_e{per_element}"),
            definitions: vec![
                ("BLOCK_H", block_h),
                ("BLOCK_T", block_t),
                ("BLOCK_WARPS", warps),
                ("STAGES", stages),
                ("SCALE_PER_ELEMENT", per_element),
                ("EXPECTED_SHARED_BYTES", shared_bytes),
            ],
            heads_per_block: block_h,
            tile: block_t,
            threads: 32 * warps,
            stages,
            shared_bytes,
            splits_max: 64,
            prices: [0, 0],
        }
    }

    /// All stages by all warps, a barrier after each.
    pub fn prototype() -> Self {
        let shared_bytes = 32 * 512 + 2 * 64 * (592 + 8) + 2 * 16 * 144 + 8 * 128 + 8 * 16 * 4 + 4 * 64 * 8;
        Variant {
            version: Version::Prototype,
            name: "v3".into(),
            definitions: vec![("EXPECTED_SHARED_BYTES", shared_bytes)],
            heads_per_block: 16,
            tile: 64,
            threads: 256,
            stages: 2,
            shared_bytes,
            splits_max: 64,
            prices: [0, 0],
        }
    }

    /// `blocks_per_sm` bounds the registers; `stages` tiles lie in shared memory.
    pub fn one_barrier(head_groups: u32, stages: u32, blocks_per_sm: u32) -> Self {
        let entries = stages * 32 * (592 + 8);
        let per_group = 2 * (4 * 4 * 576) + 2 * 16 * 64 + 2 * 16 * 4 + 8 * 64;
        let shared_bytes = entries + head_groups * per_group + stages * (32 + 8);
        Variant {
            version: Version::OneBarrier,
            name: format!("v4_g{head_groups}_s{stages}_b{blocks_per_sm}"),
            definitions: vec![
                ("HEAD_GROUPS", head_groups),
                ("STAGES", stages),
                ("BLOCKS_PER_SM", blocks_per_sm),
                ("EXPECTED_SHARED_BYTES", shared_bytes),
            ],
            heads_per_block: 16 * head_groups,
            tile: 32,
            threads: 256 * head_groups,
            stages,
            shared_bytes,
            splits_max: 64,
            prices: [0, 0],
        }
    }

    /// Tiles of 64 entries, two barriers each.
    pub fn wide_tile(head_groups: u32, stages: u32, blocks_per_sm: u32) -> Self {
        let entries = stages * 64 * (592 + 8);
        let per_group = 4 * 8 * 576 + 16 * 144 + 16 * 4 + 8 * 64 * 2 + 16 * 8;
        let shared_bytes = entries + head_groups * per_group + stages * (64 + 16);
        Variant {
            version: Version::WideTile,
            name: format!("v5_g{head_groups}_s{stages}_b{blocks_per_sm}"),
            definitions: vec![
                ("HEAD_GROUPS", head_groups),
                ("STAGES", stages),
                ("BLOCKS_PER_SM", blocks_per_sm),
                ("EXPECTED_SHARED_BYTES", shared_bytes),
            ],
            heads_per_block: 16 * head_groups,
            tile: 64,
            threads: 256 * head_groups,
            stages,
            shared_bytes,
            splits_max: 64,
            prices: [0, 0],
        }
    }

    /// The same kernel with shared memory that it does not use, so that only blocks per multiprocessor differ.
    pub fn padded(mut self, shared_bytes: u32) -> Self {
        self.name += "_padded";
        self.shared_bytes = self.shared_bytes.max(shared_bytes);
        self
    }

    /// Eight warps score, eight add up values; `m_tiles` x 16 heads a block.
    pub fn two_roles(m_tiles: u32, tile: u32, stages: u32, score_buffers: u32, arrivals: Arrivals) -> Self {
        let once = u32::from(arrivals == Arrivals::EveryWarp);
        let heads = 16 * m_tiles;
        let entries = stages * tile * (592 + 8);
        let handed_over =
            score_buffers * m_tiles * 4 * (tile / 8) * 576 + 2 * heads * (2 * tile + 16) + 8 * tile * 2;
        let shared_bytes = entries + handed_over + heads * 16 + stages * (tile + 8) + 32;
        Variant {
            version: Version::TwoRoles,
            name: format!("v6_m{m_tiles}_t{tile}_s{stages}_x{score_buffers}{}", arrivals.suffix()),
            definitions: vec![
                ("M_TILES", m_tiles),
                ("TILE", tile),
                ("STAGES", stages),
                ("SCORE_BUFFERS", score_buffers),
                ("ARRIVE_ONCE", once),
                ("EXPECTED_SHARED_BYTES", shared_bytes),
            ],
            heads_per_block: heads,
            tile,
            threads: 512,
            stages,
            shared_bytes,
            splits_max: 64,
            prices: [0, 0],
        }
    }

    /// As `two_roles`, but workers share the tiles of all rows.
    pub fn no_waves(m_tiles: u32, tile: u32, stages: u32, query: Query) -> Self {
        Self::no_waves_with(m_tiles, tile, stages, query, Arrivals::EveryLane, Scores::InTurn)
    }

    /// `no_waves` with what was tried on it.
    pub fn no_waves_with(
        m_tiles: u32,
        tile: u32,
        stages: u32,
        query: Query,
        arrivals: Arrivals,
        scores: Scores,
    ) -> Self {
        let once = u32::from(arrivals == Arrivals::EveryWarp);
        let scores_ahead = u32::from(scores == Scores::Ahead);
        let heads = 16 * m_tiles;
        let entries = stages * tile * (592 + 8);
        let handed_over =
            (1 + scores_ahead) * m_tiles * 4 * (tile / 8) * 576 + 2 * heads * (2 * tile + 16) + 8 * tile * 2;
        let ahead = u32::from(query == Query::Ahead);
        let ring = 8 * tile * 17;
        let small = heads * 8 + 4 * heads * 8 + m_tiles * 256 + 8 * 32 + 16 + 16;
        let shared_bytes =
            entries + handed_over + ring + small + stages.div_ceil(2) * 16 + 32 + ahead * heads * 1056;
        Variant {
            version: Version::NoWaves,
            name: format!("v7_m{m_tiles}_t{tile}_s{stages}_q{ahead}{}{}", arrivals.suffix(), scores.suffix()),
            definitions: vec![
                ("M_TILES", m_tiles),
                ("TILE", tile),
                ("STAGES", stages),
                ("QUERY_AHEAD", ahead),
                ("ARRIVE_ONCE", once),
                ("SCORES_AHEAD", scores_ahead),
                ("EXPECTED_SHARED_BYTES", shared_bytes),
            ],
            heads_per_block: heads,
            tile,
            threads: 512,
            stages,
            shared_bytes,
            splits_max: 1,
            prices: [5, 2],
        }
    }

    /// How a launch deals out work: a version that takes a schedule has workers, the others split rows.
    pub fn takes_schedule(&self) -> bool {
        self.version == Version::NoWaves
    }

    /// What its time depends on, for the chooser. `ctas_per_sm` is what a device holds of it.
    pub fn shape(&self, ctas_per_sm: u32) -> KernelShape {
        let number = |value| NonZeroU32::new(value).unwrap_or(NonZeroU32::MIN);
        let (dealing, parts_max) = if self.takes_schedule() {
            (Dealing::Workers, WORKERS_MAX)
        } else {
            (Dealing::Splits, self.splits_max)
        };
        KernelShape {
            name: self.name.clone(),
            dealing,
            heads_per_cta: number(self.heads_per_block),
            tile: number(self.tile),
            warps: number(self.threads / 32),
            stages: self.stages,
            ctas_per_sm: number(ctas_per_sm),
            parts_max: number(parts_max),
        }
    }

    /// The variant of this name, as the chooser and flags call it.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|variant| variant.name == name)
    }

    /// The variants that a device of this architecture is served by, as the table of costs says.
    pub fn shipped(sm: u32) -> Vec<Self> {
        let table = Table::built_in();
        table.serving(sm).filter_map(|entry| Self::named(&entry.shape.name)).collect()
    }

    /// A variant and a number of parts with which a row's answer does not depend on the other rows.
    pub fn batch_invariant(sm: u32, longest: [u32; 2]) -> Option<(Self, u32)> {
        let splitting = Self::shipped(sm).into_iter().find(|variant| !variant.takes_schedule())?;
        let splits = splitting.shape(1).batch_invariant_splits(longest);
        Some((splitting, splits))
    }

    /// What ships, and what it is compared with.
    pub fn all() -> Vec<Self> {
        vec![
            Self::naive(),
            Self::campaign(Knobs::default()),
            Self::campaign(Knobs { warps: 8, ..Knobs::default() }),
            Self::campaign(Knobs { stages: 3, ..Knobs::default() }),
            Self::campaign(Knobs { block_h: 16, ..Knobs::default() }),
            Self::campaign(Knobs { scale: Scale::PerEight, ..Knobs::default() }),
            Self::campaign(Knobs { block_t: 32, warps: 8, scale: Scale::PerEight, ..Knobs::default() }),
            Self::prototype(),
            Self::one_barrier(1, 4, 2),
            Self::wide_tile(1, 2, 2),
            Self::wide_tile(1, 2, 2).padded(120_000),
            Self::two_roles(1, 64, 4, 1, Arrivals::EveryLane),
            Self::two_roles(1, 64, 4, 1, Arrivals::EveryWarp),
            Self::two_roles(2, 64, 4, 1, Arrivals::EveryLane),
            Self::two_roles(1, 64, 4, 2, Arrivals::EveryLane),
            Self::two_roles(1, 32, 4, 1, Arrivals::EveryLane),
            Self::two_roles(2, 32, 3, 1, Arrivals::EveryLane),
            Self::no_waves(1, 64, 4, Query::Ahead),
            Self::no_waves_with(1, 64, 4, Query::Ahead, Arrivals::EveryWarp, Scores::InTurn),
            Self::no_waves_with(1, 64, 4, Query::Ahead, Arrivals::EveryLane, Scores::Ahead),
            Self::no_waves_with(1, 64, 4, Query::Ahead, Arrivals::EveryWarp, Scores::Ahead),
            Self::no_waves(2, 64, 3, Query::Ahead),
            Self::no_waves_with(2, 64, 3, Query::Ahead, Arrivals::EveryWarp, Scores::InTurn),
            Self::no_waves(1, 32, 3, Query::Ahead),
        ]
    }

    /// Variants with a stage left out: their results are wrong, their times say what the stage costs.
    pub fn ablations() -> Vec<Self> {
        let stages = [
            (1, "no_copies"),
            (2, "no_scores"),
            (4, "no_values"),
            (8, "no_softmax"),
            (14, "copies_only"),
            (15, "nothing"),
        ];
        let wholes = [
            Self::wide_tile(1, 2, 2),
            Self::no_waves(1, 64, 4, Query::Ahead),
            Self::no_waves_with(1, 64, 4, Query::Ahead, Arrivals::EveryWarp, Scores::InTurn),
            Self::no_waves(2, 64, 3, Query::Ahead),
        ];
        let all = wholes.iter().flat_map(|whole| stages.map(|(bits, name)| (whole, bits, name)));
        all.map(|(whole, bits, name)| {
            let mut variant = whole.clone();
            variant.name = format!("{}_{name}", variant.name);
            variant.definitions.push(("ABLATE", bits));
            variant
        })
        .collect()
    }

    pub fn source(&self) -> Source {
        Source {
            name: self.name.clone(),
            text: self.version.text(),
            headers: HEADERS,
            definitions: self.definitions.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table is text: this is what keeps it and the kernels together.
    #[test]
    fn the_table_of_costs_describes_these_variants() {
        for entry in Table::built_in().kernels {
            let variant = Variant::named(&entry.shape.name).unwrap_or_else(|| panic!("{}", entry.shape.name));
            assert_eq!(variant.shape(entry.shape.ctas_per_sm.get()), entry.shape);
        }
    }

    #[test]
    fn batch_invariant_launches_split_rows() {
        let (variant, splits) = Variant::batch_invariant(90, [128, 512]).unwrap();
        assert_eq!((variant.version, splits), (Version::TwoRoles, 2));
    }

    #[test]
    fn every_variant_fits_the_architecture_it_ships_for() {
        for (sm, limit) in [(90, 232_448), (120, 101_376)] {
            for variant in Variant::shipped(sm) {
                assert!(variant.shared_bytes <= limit, "{} has {}", variant.name, variant.shared_bytes);
            }
        }
    }
}
