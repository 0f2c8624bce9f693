//! Which kernels there are: the versions of the ladder and the parameters each was compiled with.

use super::plan::Costs;
use crate::cubins::Source;
use crate::cuda::Header;

macro_rules! kernel_file {
    ($name:literal) => {
        include_str!(concat!("../../kernels/decode/", $name))
    };
}

const HEADERS: &[Header] = &[
    Header { name: "args.cuh", text: kernel_file!("args.cuh") },
    Header { name: "ptx.cuh", text: kernel_file!("ptx.cuh") },
    Header { name: "merge.cuh", text: kernel_file!("merge.cuh") },
];

/// A step of the ladder; each file's head comment says what it taught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Naive,
    OneBarrier,
    WideTile,
}

impl Version {
    pub fn number(self) -> u32 {
        match self {
            Version::Naive => 1,
            Version::OneBarrier => 4,
            Version::WideTile => 5,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Version::Naive => kernel_file!("v1_naive.cu"),
            Version::OneBarrier => kernel_file!("v4_one_barrier.cu"),
            Version::WideTile => kernel_file!("v5_wide_tile.cu"),
        }
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
        }
    }

    /// What ships, and what it is compared with.
    pub fn all() -> Vec<Self> {
        vec![
            Self::naive(),
            Self::one_barrier(1, 4, 2),
            Self::wide_tile(1, 2, 2),
            Self::wide_tile(2, 2, 1),
            Self::wide_tile(2, 3, 1),
        ]
    }

    /// Variants with a stage left out: their results are wrong, their times say what the stage costs.
    pub fn ablations() -> Vec<Self> {
        let whole = Self::wide_tile(1, 2, 2);
        [
            (1, "no_copies"),
            (2, "no_scores"),
            (4, "no_values"),
            (8, "no_softmax"),
            (14, "copies_only"),
            (15, "nothing"),
        ]
        .into_iter()
        .map(|(bits, name)| {
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
