//! Which kernels there are: the versions of the ladder in `kernels/matmul/` and the parameters each is compiled with.

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
            Family::Dense => kernel_file!("v2_dense.cu"),
            Family::Experts => kernel_file!("v2_experts.cu"),
        }
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
    /// Version 2: `m_tiles` x 16 rows a warp, `n_tiles` x 8 tokens, `stages` x 128 bytes of each row under way.
    pub fn rings(family: Family, warps: u32, m_tiles: u32, n_tiles: u32, stages: u32) -> Self {
        let shared_bytes = warps * stages * m_tiles * 2048;
        Variant {
            family,
            name: format!("{}_v2_w{warps}_m{m_tiles}_n{n_tiles}_s{stages}", family.name()),
            definitions: vec![
                ("WARPS", warps),
                ("M_TILES", m_tiles),
                ("N_TILES", n_tiles),
                ("STAGES", stages),
                ("EXPECTED_SHARED_BYTES", shared_bytes),
            ],
            rows: warps * m_tiles * 16,
            tokens: 8 * n_tiles,
            shape: Shape { threads: 32 * warps, shared_bytes },
        }
    }

    /// By the tokens of a block, ascending. All have the same rows: a row's sums do not depend on the choice.
    pub fn shipped(family: Family) -> [Self; 4] {
        [1, 2, 4, 8].map(|n_tiles| match family {
            Family::Dense => Self::rings(family, 8, 1, n_tiles, 4),
            Family::Experts => Self::rings(family, 4, 2, n_tiles, 4),
        })
    }

    /// What ships, and what it is to be compared with.
    pub fn all() -> Vec<Self> {
        let [dense, experts] = [Family::Dense, Family::Experts].map(Self::shipped);
        let tried = [1, 4, 8].into_iter().flat_map(|n_tiles| {
            [
                Self::rings(Family::Dense, 8, 1, n_tiles, 3),
                Self::rings(Family::Dense, 8, 1, n_tiles, 6),
                Self::rings(Family::Dense, 4, 1, n_tiles, 4),
                Self::rings(Family::Dense, 4, 2, n_tiles, 3),
                Self::rings(Family::Experts, 4, 2, n_tiles, 3),
                Self::rings(Family::Experts, 4, 2, n_tiles, 6),
                Self::rings(Family::Experts, 2, 2, n_tiles, 4),
                Self::rings(Family::Experts, 8, 2, n_tiles, 3),
            ]
        });
        dense.into_iter().chain(experts).chain(tried).collect()
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

/// Texts of all kernels that [`super::Matmuls::load`] loads, for those who compile them ahead.
pub fn shipped_sources() -> Vec<Source> {
    let variants = [Family::Dense, Family::Experts].into_iter().flat_map(Variant::shipped);
    variants.map(|variant| variant.source()).chain([prepare_source(), sort_source()]).collect()
}

fn small_source(name: &str, text: &'static str) -> Source {
    Source { name: format!("matmul_{name}"), text, headers: HEADERS, definitions: vec![] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_variant_fits_a_block_of_sm_120() {
        for variant in [Family::Dense, Family::Experts].iter().flat_map(|family| Variant::shipped(*family)) {
            assert!(variant.shape.shared_bytes <= 101_376, "{}", variant.name);
        }
    }

    #[test]
    fn the_smallest_variant_that_holds_the_tokens_is_taken() {
        let variants = Variant::shipped(Family::Dense);
        let chosen =
            [1, 8, 9, 16, 17, 32, 33, 64, 65, 4096].map(|tokens| for_tokens(variants.iter(), tokens));
        assert_eq!(chosen, [0, 0, 1, 1, 2, 2, 3, 3, 3, 3]);
    }
}
