//! Which kernels there are: the versions of the ladder and the parameters each was compiled with.

use super::plan::{self, Costs, Load, Plan, RunCosts};
use crate::cubins::Source;
use crate::cuda::Header;

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

/// A step of the ladder; each file's head comment says what it taught. 3 is kept free for the prototype that came before 4: raw
/// bytes, three barriers a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Naive,
    Campaign,
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
    pub shared_bytes: u32,
    /// Versions that cannot share a row between blocks take 1.
    pub splits_max: u32,
    pub costs: Costs,
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
            shared_bytes: 0,
            splits_max: 1,
            costs: Costs::H200,
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
            shared_bytes,
            splits_max: 64,
            costs: Costs::H200,
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
            shared_bytes,
            splits_max: 64,
            costs: Costs::H200,
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
            shared_bytes,
            splits_max: 64,
            costs: Costs::H200,
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
            shared_bytes,
            splits_max: 64,
            costs: Costs::H200_TWO_ROLES[usize::from(m_tiles > 1)],
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
            shared_bytes,
            splits_max: 1,
            costs: Costs::H200_TWO_ROLES[usize::from(m_tiles > 1)],
            prices: [5, 2],
        }
    }

    /// How a launch deals out work: a version that takes a schedule has workers, the others split rows.
    pub fn takes_schedule(&self) -> bool {
        self.version == Version::NoWaves
    }

    /// Workers of a device: one a multiprocessor, blocks of all heads together.
    pub fn workers(&self, heads: u32, multiprocessors: u32) -> u32 {
        (multiprocessors / heads.div_ceil(self.heads_per_block)).clamp(1, super::WORKERS_MAX)
    }

    /// The variants that a device of this architecture is served by: blocks that split rows, for batches that fit the
    /// device at once, and workers that share all rows, for others.
    pub fn shipped(sm: u32) -> [Self; 2] {
        if sm < 100 {
            [Self::two_roles(1, 64, 4, 1, Arrivals::EveryLane), Self::no_waves(1, 64, 4, Query::Ahead)]
        } else {
            [Self::two_roles(1, 32, 4, 1, Arrivals::EveryLane), Self::no_waves(1, 32, 3, Query::Ahead)]
        }
    }

    /// The shipped variant that should end first, and its plan. `lists` are the longest window and compressed list.
    pub fn choose(sm: u32, rows: u32, heads: u32, lists: [u32; 2], multiprocessors: u32) -> (Self, Plan) {
        let [splitting, sharing] = Self::shipped(sm);
        let [split, shared] =
            [&splitting, &sharing].map(|variant| variant.plan(rows, heads, lists, multiprocessors, 1));
        if shared.us < split.us { (sharing, shared) } else { (splitting, split) }
    }

    /// A variant and a number of parts with which a row's answer does not depend on the other rows.
    pub fn batch_invariant(sm: u32, lists: [u32; 2]) -> (Self, u32) {
        let [splitting, _] = Self::shipped(sm);
        let splits = plan::batch_invariant_splits(splitting.tiles(lists), splitting.splits_max);
        (splitting, splits)
    }

    /// Tiles of a row whose lists are this long.
    fn tiles(&self, lists: [u32; 2]) -> u32 {
        lists.map(|capacity| capacity.div_ceil(self.tile)).iter().sum()
    }

    /// `splits` of the plan is the number of workers for a variant that takes a schedule.
    pub fn plan(&self, rows: u32, heads: u32, lists: [u32; 2], multiprocessors: u32, blocks: u32) -> Plan {
        if self.takes_schedule() {
            let workers = self.workers(heads, multiprocessors);
            return Plan { splits: workers, us: RunCosts::H200.us(rows, self.tiles(lists), workers) };
        }
        let load = Load {
            rows,
            head_blocks: heads.div_ceil(self.heads_per_block),
            tiles: self.tiles(lists),
            multiprocessors,
            blocks_per_multiprocessor: blocks,
            splits_max: self.splits_max,
        };
        plan::plan(load, self.costs)
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

    #[test]
    fn an_h200_shares_rows_when_splitting_them_takes_several_waves() {
        let of = |rows, heads| {
            let (variant, plan) = Variant::choose(90, rows, heads, [128, 512], 132);
            (variant.version.number(), plan.splits)
        };
        assert_eq!([1, 16, 64, 132].map(|rows| of(rows, 16)), [(6, 10), (6, 5), (6, 2), (6, 1)]);
        assert_eq!([133, 160, 200].map(|rows| of(rows, 16)), [(7, 132); 3]);
        assert_eq!([64, 80, 256].map(|rows| of(rows, 32)), [(6, 1), (7, 66), (7, 66)]);
        assert_eq!([32, 48, 256].map(|rows| of(rows, 64)), [(6, 1), (7, 33), (7, 33)]);
    }

    #[test]
    fn batch_invariant_parts_depend_on_the_lists_alone() {
        let splits = |lists| Variant::batch_invariant(90, lists).1;
        assert_eq!([[128, 512], [128, 0], [0, 0], [128, 8192]].map(splits), [2, 1, 1, 26]);
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
