//! The kernels of a step, each tied to the arguments that it takes.
#![allow(unsafe_code)]

use super::arguments as args;
use super::sampling::SampleArguments;
use crate::cubins::Source;
use crate::cuda::Header;
use crate::gpu::{Gpu, GpuError, Grid, Kernel, Shape, bytes_of};
use std::marker::PhantomData;

macro_rules! file {
    ($path:literal) => {
        include_str!(concat!("../../kernels/", $path))
    };
}

const HEADERS: &[Header] = &[
    Header { name: "types.cuh", text: file!("common/types.cuh") },
    Header { name: "ptx.cuh", text: file!("common/ptx.cuh") },
    Header { name: "device.cuh", text: file!("common/device.cuh") },
    Header { name: "matrix.cuh", text: file!("common/matrix.cuh") },
    Header { name: "step.cuh", text: file!("common/step.cuh") },
    Header { name: "index.cuh", text: file!("index/index.cuh") },
    Header { name: "attention.cuh", text: file!("attention/attention.cuh") },
];

fn source(name: &str, text: &'static str) -> Source {
    Source { name: name.into(), text, headers: HEADERS, definitions: Vec::new() }
}

/// Texts of all kernels of a step, for those who compile them ahead.
pub fn sources() -> Vec<Source> {
    vec![
        streams_source(),
        slices_source(),
        head_source(),
        matmul_source(),
        experts_source(),
        route_source(),
        compress_source(),
        index_source(),
        index_select_source(),
        latents_source(),
        attention_source(),
        attention_tiles_source(),
        around_decode_source(),
        sample_source(),
        reduce_source(),
        push_source(),
        index_tiles_source(1),
        index_tiles_source(2),
        index_tiles_source(4),
    ]
}

fn streams_source() -> Source {
    source("streams_v1", file!("streams/v1_naive.cu"))
}

fn slices_source() -> Source {
    source("streams_v3", file!("streams/v3_narrow_slices.cu"))
}

fn head_source() -> Source {
    source("head_v2", file!("streams/v2_head.cu"))
}

fn matmul_source() -> Source {
    source("matmul_v1", file!("matmul/v1_naive.cu"))
}

fn experts_source() -> Source {
    source("experts_v1", file!("experts/v1_naive.cu"))
}

fn route_source() -> Source {
    source("route_v3", file!("route/v3_blocks.cu"))
}

fn compress_source() -> Source {
    source("compress_v2", file!("compress/v2_teams.cu"))
}

fn index_source() -> Source {
    source("index_v1", file!("index/v1_naive.cu"))
}

fn latents_source() -> Source {
    source("latents_v3", file!("attention/v3_latents.cu"))
}

pub(crate) fn attention_source() -> Source {
    source("attention_v1", file!("attention/v1_naive.cu"))
}

fn around_decode_source() -> Source {
    source("decode_around", file!("decode/around.cu"))
}

fn sample_source() -> Source {
    source("sample_v1", file!("sample/v1_naive.cu"))
}

pub(super) fn reduce_source() -> Source {
    source("reduce_v1", file!("reduce/v1_one_shot.cu"))
}

pub(super) fn push_source() -> Source {
    source("reduce_v2", file!("reduce/v2_push.cu"))
}

pub(crate) fn index_select_source() -> Source {
    source("index_select_v2", file!("index/v2_select.cu"))
}

/// Version 2 of the indexer's scores, for up to so many times 16 heads: 1, 2 or 4.
pub(crate) fn index_tiles_source(head_tiles: u32) -> Source {
    let name = format!("index_v2_h{head_tiles}");
    Source { definitions: vec![("HEAD_TILES", head_tiles)], ..source(&name, file!("index/v2_tiles.cu")) }
}

/// Version 2 of attention.
pub(crate) fn attention_tiles_source() -> Source {
    let definitions = vec![("EXPECTED_SHARED_BYTES", ATTENTION_TILES_SHAPE.shared_bytes)];
    Source { definitions, ..source("attention_v2", file!("attention/v2_tiles.cu")) }
}

/// Of version 2 of attention.
pub const ATTENTION_TILES_SHAPE: Shape = Shape { threads: 256, shared_bytes: 33_920 };

/// Version 2 of attention: a block for 16 heads of a token.
pub struct AttentionTiles(Launcher<args::Attention>);

impl AttentionTiles {
    pub(crate) fn load(gpu: &dyn Gpu) -> Result<Self, GpuError> {
        Launcher::load_shaped(gpu, &attention_tiles_source(), "attention", ATTENTION_TILES_SHAPE).map(Self)
    }

    pub(crate) fn launch(&self, attention: &args::Attention) -> Result<(), GpuError> {
        let tiles = attention.step.tokens as u32 * (attention.heads as u32).div_ceil(16);
        self.0.launch(Grid(tiles, 1, 1), attention)
    }
}

/// A kernel that takes `A`.
pub struct Launcher<A> {
    kernel: Box<dyn Kernel>,
    arguments: PhantomData<fn(A)>,
}

impl<A: Copy> Launcher<A> {
    pub(crate) fn load(gpu: &dyn Gpu, source: &Source, entry: &str, threads: u32) -> Result<Self, GpuError> {
        Self::load_shaped(gpu, source, entry, Shape { threads, shared_bytes: 0 })
    }

    pub(crate) fn load_shaped(
        gpu: &dyn Gpu,
        source: &Source,
        entry: &str,
        shape: Shape,
    ) -> Result<Self, GpuError> {
        let kernel = gpu.load(source, entry, shape)?;
        Ok(Launcher { kernel, arguments: PhantomData })
    }

    /// Queues a launch; an empty grid is nothing to do.
    pub(crate) fn launch(&self, grid: Grid, arguments: &A) -> Result<(), GpuError> {
        if grid.0 == 0 || grid.1 == 0 || grid.2 == 0 {
            return Ok(());
        }
        // SAFETY: the struct mirrors the kernel's, and those who launch fill it with addresses of buffers that they
        // own, which wait for queued work before they go.
        unsafe { self.kernel.launch(grid, bytes_of(arguments)) }
    }
}

/// Version 2 of the indexer's queries and scores, for all keys but float32.
pub struct IndexTiles {
    queries: Launcher<args::Index>,
    by_tiles: Launcher<args::Index>,
    by_keys: Launcher<args::Index>,
    /// Of a block of `by_tiles`.
    tokens: usize,
}

/// What a block of index scores shares; bits are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexWay {
    /// Keys, between many tokens.
    Tiles,
    /// One token, between many keys.
    Keys,
}

impl IndexWay {
    /// Where rows are short, keys have few tokens to share them.
    pub(crate) fn of_step(step: &args::Step) -> Self {
        if step.tokens <= 4 * step.rows { IndexWay::Keys } else { IndexWay::Tiles }
    }
}

/// As `kernels/index/v2_tiles.cu` has them: a warp a head of `queries`, keys of a block of `by_tiles`, and warps of one of
/// `by_keys`, which takes two times 8 keys a warp or more.
const INDEX_WARPS: usize = 8;
const INDEX_KEYS: usize = 512;
const INDEX_KEY_WARPS: usize = 4;
const INDEX_RUN_MIN: usize = 16 * INDEX_KEY_WARPS;
/// Blocks of `by_keys` that fill any card: four for each multiprocessor of an H200.
const INDEX_BLOCKS: usize = 528;

impl IndexTiles {
    /// `None` for more heads than the kernels have room for.
    pub(crate) fn load(gpu: &dyn Gpu, heads: usize) -> Result<Option<Self>, GpuError> {
        let Some(head_tiles) = [1, 2, 4].into_iter().find(|tiles| heads <= tiles * 16) else {
            return Ok(None);
        };
        let source = index_tiles_source(head_tiles as u32);
        let load = |entry, warps: usize| Launcher::load(gpu, &source, entry, 32 * warps as u32);
        Ok(Some(IndexTiles {
            queries: load("index_queries", INDEX_WARPS)?,
            by_tiles: load("index_scores", INDEX_WARPS)?,
            by_keys: load("index_scores_by_keys", INDEX_KEY_WARPS)?,
            tokens: INDEX_WARPS * if head_tiles == 1 { 2 } else { 1 },
        }))
    }

    /// Of all tokens of the step.
    pub(crate) fn queries(&self, index: &args::Index) -> Result<(), GpuError> {
        let blocks = (index.heads as usize).div_ceil(INDEX_WARPS);
        self.queries.launch(Grid(blocks as u32, index.step.tokens as u32, 1), index)
    }

    /// Of the tokens and up to the visible entries that `index` names.
    pub(crate) fn scores(&self, index: &args::Index, way: IndexWay) -> Result<(), GpuError> {
        let (tokens, keys) = ((index.end - index.first) as usize, index.score_stride as usize);
        if way == IndexWay::Tiles {
            let grid = Grid(keys.div_ceil(INDEX_KEYS) as u32, tokens.div_ceil(self.tokens) as u32, 1);
            return self.by_tiles.launch(grid, index);
        }
        let runs = INDEX_BLOCKS.div_ceil(tokens.max(1)).min(keys.div_ceil(INDEX_RUN_MIN));
        self.by_keys.launch(Grid(runs as u32, tokens as u32, 1), index)
    }
}

/// What stands around decode attention.
pub struct AroundDecode {
    pub lists: Launcher<args::Lists>,
    pub selected: Launcher<args::Selected>,
    queries: Launcher<args::Heads>,
    answers: Launcher<args::Heads>,
}

impl AroundDecode {
    pub fn load(gpu: &dyn Gpu) -> Result<Self, GpuError> {
        let (source, threads) = (around_decode_source(), THREADS as u32);
        Ok(AroundDecode {
            lists: Launcher::load(gpu, &source, "lists", threads)?,
            selected: Launcher::load(gpu, &source, "selected", threads)?,
            queries: Launcher::load(gpu, &source, "queries", threads)?,
            answers: Launcher::load(gpu, &source, "answers", threads)?,
        })
    }

    /// From `numbers` to `rounded`.
    pub fn queries(&self, heads: &args::Heads) -> Result<(), GpuError> {
        self.queries.launch(Self::grid(heads), heads)
    }

    /// From `rounded` to `numbers`.
    pub fn answers(&self, heads: &args::Heads) -> Result<(), GpuError> {
        self.answers.launch(Self::grid(heads), heads)
    }

    /// A warp a head.
    fn grid(heads: &args::Heads) -> Grid {
        Grid((heads.heads as usize).div_ceil(THREADS / 32) as u32, heads.step.tokens as u32, 1)
    }
}

pub struct Kernels {
    pub embed: Launcher<args::Embed>,
    pub mix_streams: Launcher<args::Streams>,
    pub enter_site: Launcher<args::Streams>,
    pub collapse_for_head: Launcher<args::Head>,
    pub dense: Launcher<args::Dense>,
    pub round_rows: Launcher<args::Round>,
    pub expert_up: Launcher<args::Experts>,
    pub expert_down: Launcher<args::Experts>,
    pub route: Launcher<args::Route>,
    pub compress: Launcher<args::Compress>,
    pub keep_rows: Launcher<args::Compress>,
    pub index_queries: Launcher<args::Index>,
    pub index_scores: Launcher<args::Index>,
    pub index_tiles: Option<IndexTiles>,
    pub index_select: Launcher<args::Index>,
    pub latents: Launcher<args::Latents>,
    pub append_window: Launcher<args::Window>,
    pub attention: Launcher<args::Attention>,
    /// Version 2, of packed entries.
    pub attention_tiles: AttentionTiles,
    pub copy_page: Launcher<args::CopyPage>,
    pub sample: Launcher<SampleArguments>,
}

/// Of all kernels that name no other number.
pub const THREADS: usize = 128;
pub(crate) const SELECT_THREADS: u32 = 256;
const HEAD_THREADS: u32 = 1024;
const COMPRESS_THREADS: u32 = 512;
const SAMPLE_THREADS: u32 = 256;
/// Dims of the streams that a block mixes, and tokens; what it leaves of each.
pub const STREAM_SLICE: usize = 32;
pub const STREAM_TOKENS: usize = 8;
pub const STREAM_PARTIALS: usize = 32;
/// A warp a token.
const MIX_THREADS: u32 = 32 * STREAM_TOKENS as u32;
const ENTER_THREADS: u32 = 512;
/// Dims of a token that the threads of `enter` have room for.
pub(super) const HIDDEN_MAX: usize = 4 * 4 * ENTER_THREADS as usize;
pub(super) const REDUCE_THREADS: u32 = 512;
pub const SCORE_KEYS: usize = 32;

/// Blocks that have a thread for each of so many.
pub fn blocks(count: usize) -> u32 {
    count.div_ceil(THREADS) as u32
}

impl Kernels {
    /// For so many heads of the indexer.
    pub fn load(gpu: &dyn Gpu, index_heads: usize) -> Result<Self, GpuError> {
        let (streams, matmul, experts) = (streams_source(), matmul_source(), experts_source());
        let (compress, index, attention) = (compress_source(), index_source(), attention_source());
        let t = THREADS as u32;
        Ok(Kernels {
            embed: Launcher::load(gpu, &streams, "embed", t)?,
            mix_streams: Launcher::load(gpu, &slices_source(), "mix", MIX_THREADS)?,
            enter_site: Launcher::load(gpu, &slices_source(), "enter", ENTER_THREADS)?,
            collapse_for_head: Launcher::load(gpu, &head_source(), "collapse_for_head", HEAD_THREADS)?,
            dense: Launcher::load(gpu, &matmul, "dense", t)?,
            round_rows: Launcher::load(gpu, &matmul, "round_rows", t)?,
            expert_up: Launcher::load(gpu, &experts, "expert_up", t)?,
            expert_down: Launcher::load(gpu, &experts, "expert_down", t)?,
            route: Launcher::load(gpu, &route_source(), "route", t)?,
            compress: Launcher::load(gpu, &compress, "compress", COMPRESS_THREADS)?,
            keep_rows: Launcher::load(gpu, &compress, "keep_rows", t)?,
            index_queries: Launcher::load(gpu, &index, "index_queries", t)?,
            index_scores: Launcher::load(gpu, &index, "index_scores", t)?,
            index_tiles: IndexTiles::load(gpu, index_heads)?,
            index_select: Launcher::load(gpu, &index_select_source(), "index_select", SELECT_THREADS)?,
            latents: Launcher::load(gpu, &latents_source(), "latents", t)?,
            append_window: Launcher::load(gpu, &attention, "append_window", t)?,
            attention: Launcher::load(gpu, &attention, "attention", t)?,
            attention_tiles: AttentionTiles::load(gpu)?,
            copy_page: Launcher::load(gpu, &attention, "copy_page", t)?,
            sample: Launcher::load(gpu, &sample_source(), "sample", SAMPLE_THREADS)?,
        })
    }
}

#[cfg(test)]
mod tests;
