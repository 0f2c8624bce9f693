//! Which kernels there are: the versions of the ladder in `kernels/matmul/` and the parameters each is compiled with.

use super::launch::Company;
use crate::cubins::Source;
use crate::cuda::Header;
use crate::gpu::Shape;

macro_rules! kernel_file {
    ($name:literal) => {
        include_str!(concat!("../../kernels/matmul/", $name))
    };
}

const HEADERS: &[Header] = &[
    Header { name: "types.cuh", text: include_str!("../../kernels/common/types.cuh") },
    Header { name: "ptx.cuh", text: include_str!("../../kernels/common/ptx.cuh") },
    Header { name: "device.cuh", text: include_str!("../../kernels/common/device.cuh") },
    Header { name: "matrix.cuh", text: include_str!("../../kernels/common/matrix.cuh") },
    Header { name: "args.cuh", text: kernel_file!("args.cuh") },
    Header { name: "tile.cuh", text: kernel_file!("tile.cuh") },
];

/// What a kernel multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Dense,
    Experts,
}

impl Family {
    fn name(self) -> &'static str {
        match self {
            Family::Dense => "dense",
            Family::Experts => "experts",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Family::Dense => kernel_file!("v3_dense.cu"),
            Family::Experts => kernel_file!("v3_experts.cu"),
        }
    }
}

/// How a block's warps share its work (`kernels/matmul/tile.cuh`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Warps along rows, columns and tokens.
    pub warps: [u32; 3],
    /// Tiles of 16 rows and of 8 tokens of a warp.
    pub tiles: [u32; 2],
    /// Bytes of a row that a warp takes at a time: 64 or 128.
    pub block_bytes: u32,
    /// Of the ring, where FP4 meets two terms; other products have more of them in the same memory.
    pub stages: u32,
    /// Blocks of threads that a multiprocessor's registers are to hold.
    pub resident: u32,
}

impl Tiling {
    fn rows(self) -> u32 {
        self.warps[0] * self.tiles[0] * 16
    }

    fn tokens(self) -> u32 {
        self.warps[2] * self.tiles[1] * 8
    }

    fn shared_bytes(self) -> u32 {
        let (block, scales) = (self.block_bytes, self.block_bytes / 16);
        self.stages * self.warps[1] * (self.rows() * (block + scales) + self.tokens() * (8 * block + scales))
    }
}

/// A kernel with its parameters, and what a launch of it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    pub family: Family,
    pub name: String,
    pub definitions: Vec<(&'static str, u32)>,
    /// Weight rows of a block; of the experts' first projection half as many, of two matrices.
    pub rows: u32,
    /// Tokens of a block.
    pub tokens: u32,
    pub shape: Shape,
}

impl Variant {
    pub fn new(family: Family, tiling: Tiling) -> Self {
        let Tiling { warps: [rows, cols, tokens], tiles: [m, n], block_bytes, stages, resident } = tiling;
        let shared_bytes = tiling.shared_bytes();
        Variant {
            family,
            name: format!("{}_v3_r{rows}c{cols}t{tokens}_m{m}n{n}_b{block_bytes}_s{stages}", family.name()),
            definitions: vec![
                ("WARP_ROWS", rows),
                ("WARP_COLS", cols),
                ("WARP_TOKENS", tokens),
                ("M_TILES", m),
                ("N_TILES", n),
                ("BLOCK_BYTES", block_bytes),
                ("STAGES", stages),
                ("BLOCKS_MIN", resident),
                ("EXPECTED_SHARED_BYTES", shared_bytes),
            ],
            rows: tiling.rows(),
            tokens: tiling.tokens(),
            shape: Shape { threads: 32 * rows * cols * tokens, shared_bytes },
        }
    }

    /// By the tokens of a block, ascending. Where bits may not depend on company, no warps share a row: then its sums are
    /// made in one order by all.
    pub fn shipped(family: Family, company: Company) -> [Self; 4] {
        let few = match (family, company) {
            (Family::Dense, _) => tiling([8, 1, 1], [1, 1], 128, 3, 2),
            (Family::Experts, Company::Any) => tiling([2, 2, 1], [2, 1], 64, 3, 4),
            (Family::Experts, Company::Invariant) => tiling([4, 1, 1], [2, 1], 64, 4, 4),
        };
        let next = match family {
            Family::Dense => tiling([8, 1, 1], [1, 2], 64, 4, 2),
            Family::Experts => tiling([4, 1, 1], [2, 2], 64, 3, 4),
        };
        let many = match family {
            Family::Dense => [tiling([8, 1, 1], [1, 4], 64, 4, 2), tiling([4, 1, 2], [2, 4], 64, 2, 1)],
            Family::Experts => [tiling([4, 1, 2], [2, 2], 64, 4, 2), tiling([4, 1, 2], [2, 4], 64, 2, 2)],
        };
        [few, next, many[0], many[1]].map(|tiling| Self::new(family, tiling))
    }

    pub fn source(&self) -> Source {
        Source {
            name: self.name.clone(),
            text: self.family.text(),
            headers: HEADERS,
            definitions: self.definitions.clone(),
        }
    }
}

const fn tiling(warps: [u32; 3], tiles: [u32; 2], block_bytes: u32, stages: u32, resident: u32) -> Tiling {
    Tiling { warps, tiles, block_bytes, stages, resident }
}

/// Which variant's blocks hold so many tokens and no more than needed, or else the last; they ascend by tokens.
pub(super) fn for_tokens<'a>(variants: impl ExactSizeIterator<Item = &'a Variant>, tokens: usize) -> usize {
    let last = variants.len().saturating_sub(1);
    variants.take(last).position(|variant| tokens <= variant.tokens as usize).unwrap_or(last)
}

/// Threads of the kernels below.
pub(super) const SMALL_THREADS: u32 = 256;

pub fn prepare_source() -> Source {
    small_source("prepare", kernel_file!("prepare.cu"))
}

/// Kernels `sort` and `combine`.
pub fn sort_source() -> Source {
    small_source("sort", kernel_file!("sort.cu"))
}

/// All that ship, each once.
pub fn shipped() -> Vec<Variant> {
    let mut all: Vec<Variant> = Vec::new();
    for family in [Family::Dense, Family::Experts] {
        for company in [Company::Any, Company::Invariant] {
            let new = Variant::shipped(family, company).into_iter().filter(|variant| !all.contains(variant));
            all.extend(new.collect::<Vec<_>>());
        }
    }
    all
}

/// Texts of all kernels that [`super::Matmuls::load`] loads, for those who compile them ahead.
pub fn shipped_sources() -> Vec<Source> {
    let variants = shipped().into_iter().map(|variant| variant.source());
    variants.chain([prepare_source(), sort_source()]).collect()
}

fn small_source(name: &str, text: &'static str) -> Source {
    Source { name: format!("matmul_{name}"), text, headers: HEADERS, definitions: vec![] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_variant_fits_a_block_of_sm_120() {
        for variant in shipped() {
            assert!(variant.shape.shared_bytes <= 101_376, "{}", variant.name);
        }
    }

    #[test]
    fn the_smallest_variant_that_holds_the_tokens_is_taken() {
        let variants = Variant::shipped(Family::Dense, Company::Any);
        let chosen =
            [1, 8, 9, 16, 17, 32, 33, 64, 65, 4096].map(|tokens| for_tokens(variants.iter(), tokens));
        assert_eq!(chosen, [0, 0, 1, 1, 2, 2, 3, 3, 3, 3]);
    }
}
