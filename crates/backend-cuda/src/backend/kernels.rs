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
    Header { name: "attention.cuh", text: file!("attention/attention.cuh") },
];

fn source(name: &str, text: &'static str) -> Source {
    Source { name: name.into(), text, headers: HEADERS, definitions: Vec::new() }
}

/// Texts of all kernels of a step, for those who compile them ahead.
pub fn sources() -> Vec<Source> {
    vec![
        source("streams_v1", file!("streams/v1_naive.cu")),
        source("matmul_v1", file!("matmul/v1_naive.cu")),
        source("experts_v1", file!("experts/v1_naive.cu")),
        source("route_v1", file!("route/v1_naive.cu")),
        source("compress_v1", file!("compress/v1_naive.cu")),
        source("index_v1", file!("index/v1_naive.cu")),
        source("attention_v1", file!("attention/v1_naive.cu")),
        attention_tiles_source(1),
        attention_tiles_source(2),
        source("sample_v1", file!("sample/v1_naive.cu")),
    ]
}

/// Version 2 of attention, with so many tiles of 16 heads a block: 1 or 2.
pub(crate) fn attention_tiles_source(m_tiles: u32) -> Source {
    let shared_bytes = attention_tiles_shape(m_tiles).shared_bytes;
    let definitions = vec![("M_TILES", m_tiles), ("EXPECTED_SHARED_BYTES", shared_bytes)];
    let name = format!("attention_v2_m{m_tiles}");
    Source { definitions, ..source(&name, file!("attention/v2_tiles.cu")) }
}

/// Of version 2 of attention.
pub fn attention_tiles_shape(m_tiles: u32) -> Shape {
    Shape { threads: 256, shared_bytes: if m_tiles == 1 { 33_920 } else { 47_808 } }
}

/// A kernel that takes `A`.
pub struct Launcher<A> {
    kernel: Box<dyn Kernel>,
    arguments: PhantomData<fn(A)>,
}

impl<A: Copy> Launcher<A> {
    fn load(gpu: &dyn Gpu, source: &Source, entry: &str, threads: u32) -> Result<Self, GpuError> {
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

pub struct Kernels {
    pub embed: Launcher<args::Embed>,
    pub streams: Launcher<args::Streams>,
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
    pub index_select: Launcher<args::Index>,
    pub latents: Launcher<args::Latents>,
    pub append_window: Launcher<args::Window>,
    pub attention: Launcher<args::Attention>,
    /// Version 2, of packed entries, with one and with two tiles a block: the same bits.
    pub attention_tiles: [Launcher<args::Attention>; 2],
    pub copy_page: Launcher<args::CopyPage>,
    pub sample: Launcher<SampleArguments>,
}

/// Of all kernels of version 1 but `index_select` and `sample`.
pub const THREADS: usize = 128;
pub const SELECT_THREADS: usize = 256;
const SAMPLE_THREADS: u32 = 256;
pub const SCORE_KEYS: usize = 32;

impl Kernels {
    pub fn load(gpu: &dyn Gpu) -> Result<Self, GpuError> {
        let [
            streams,
            matmul,
            experts,
            route,
            compress,
            index,
            attention,
            attention_m1,
            attention_m2,
            sample,
        ]: [Source; 10] = sources().try_into().expect("`sources` lists ten");
        let tiles = |m_tiles: u32, source: &Source| {
            Launcher::load_shaped(gpu, source, "attention", attention_tiles_shape(m_tiles))
        };
        let t = THREADS as u32;
        Ok(Kernels {
            embed: Launcher::load(gpu, &streams, "embed", t)?,
            streams: Launcher::load(gpu, &streams, "streams", t)?,
            collapse_for_head: Launcher::load(gpu, &streams, "collapse_for_head", t)?,
            dense: Launcher::load(gpu, &matmul, "dense", t)?,
            round_rows: Launcher::load(gpu, &matmul, "round_rows", t)?,
            expert_up: Launcher::load(gpu, &experts, "expert_up", t)?,
            expert_down: Launcher::load(gpu, &experts, "expert_down", t)?,
            route: Launcher::load(gpu, &route, "route", t)?,
            compress: Launcher::load(gpu, &compress, "compress", t)?,
            keep_rows: Launcher::load(gpu, &compress, "keep_rows", t)?,
            index_queries: Launcher::load(gpu, &index, "index_queries", t)?,
            index_scores: Launcher::load(gpu, &index, "index_scores", t)?,
            index_select: Launcher::load(gpu, &index, "index_select", SELECT_THREADS as u32)?,
            latents: Launcher::load(gpu, &attention, "latents", t)?,
            append_window: Launcher::load(gpu, &attention, "append_window", t)?,
            attention: Launcher::load(gpu, &attention, "attention", t)?,
            attention_tiles: [tiles(1, &attention_m1)?, tiles(2, &attention_m2)?],
            copy_page: Launcher::load(gpu, &attention, "copy_page", t)?,
            sample: Launcher::load(gpu, &sample, "sample", SAMPLE_THREADS)?,
        })
    }
}
