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
        source("sample_v1", file!("sample/v1_naive.cu")),
    ]
}

/// A kernel that takes `A`.
pub struct Launcher<A> {
    kernel: Box<dyn Kernel>,
    arguments: PhantomData<fn(A)>,
}

impl<A: Copy> Launcher<A> {
    fn load(gpu: &dyn Gpu, source: &Source, entry: &str, threads: u32) -> Result<Self, GpuError> {
        let kernel = gpu.load(source, entry, Shape { threads, shared_bytes: 0 })?;
        Ok(Launcher { kernel, arguments: PhantomData })
    }

    /// Queues a launch; an empty grid is nothing to do.
    pub(super) fn launch(&self, grid: Grid, arguments: &A) -> Result<(), GpuError> {
        if grid.0 == 0 || grid.1 == 0 || grid.2 == 0 {
            return Ok(());
        }
        // SAFETY: the struct mirrors the kernel's, and this module's parent fills it with addresses of buffers that its
        // rank owns, which wait for queued work before they go.
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
    pub copy_page: Launcher<args::CopyPage>,
    pub sample: Launcher<SampleArguments>,
}

/// Of all kernels of version 1 but `index_select`.
pub const THREADS: usize = 128;
pub const SELECT_THREADS: usize = 256;
const SAMPLE_THREADS: u32 = 256;
pub const SCORE_KEYS: usize = 32;

impl Kernels {
    pub fn load(gpu: &dyn Gpu) -> Result<Self, GpuError> {
        let [streams, matmul, experts, route, compress, index, attention, sample]: [Source; 8] =
            sources().try_into().expect("`sources` lists eight");
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
            copy_page: Launcher::load(gpu, &attention, "copy_page", t)?,
            sample: Launcher::load(gpu, &sample, "sample", SAMPLE_THREADS)?,
        })
    }
}
