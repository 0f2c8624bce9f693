//! The bytes behind the page ids on a device: one allocation per pool, `[layer within kind][page][page bytes]`, in the
//! formats of the numerics modes; compressor rows `[page]`, all layers' rings in one page.

use super::arguments as args;
use super::kernels::Kernels;
use crate::gpu::{Buffer, DeviceAddress, Gpu, GpuError, Grid};
use overshot_backend::{IndexKeyFormat, KvFormat, Numerics, Rehearsal};
use overshot_kv::{PageOp, Pool, PoolCapacity, ROLLBACK, TOKENS_PER_PAGE};
use overshot_model::memory::{CacheFormats, RingSlots};
use overshot_model::quant::PackedPage;
use overshot_model::{HEAD_DIM, INDEX_DIM, LayerKind, Spec};
use std::sync::Arc;

/// Pages of one pool.
struct Paged {
    data: Buffer<u8>,
    layers: usize,
    layer_bytes: usize,
    page_bytes: usize,
    slots: usize,
    format: i32,
}

pub struct DevicePools {
    window: Paged,
    csa: Paged,
    hca: Paged,
    index_keys: Paged,
    compressor_rows: Paged,
    rings: Rings,
}

/// Where rings lie in a page of compressor rows, in floats; and how many rows they hold: one compression window (two at
/// ratio 4, which overlap) and those that can be taken back.
#[derive(Clone, Copy)]
struct Rings {
    csa_layers: usize,
}

/// Which compressor's ring. Numbers are layers within their kind.
#[derive(Clone, Copy)]
pub enum RingOf {
    Csa(usize),
    Indexer(usize),
    Hca(usize),
}

impl Rings {
    const CSA_ROWS: usize = RingSlots::LEAST.csa_rows + ROLLBACK;
    const HCA_ROWS: usize = RingSlots::LEAST.hca_rows + ROLLBACK;
    const CSA_FLOATS: usize = Self::CSA_ROWS * 2 * 2 * HEAD_DIM;
    const INDEXER_FLOATS: usize = Self::CSA_ROWS * 2 * 2 * INDEX_DIM;
    const HCA_FLOATS: usize = Self::HCA_ROWS * 2 * HEAD_DIM;

    fn page_floats(csa_layers: usize, hca_layers: usize) -> usize {
        csa_layers * (Self::CSA_FLOATS + Self::INDEXER_FLOATS) + hca_layers * Self::HCA_FLOATS
    }

    /// First float and rows.
    fn of(self, ring: RingOf) -> (usize, usize) {
        let per_csa = Self::CSA_FLOATS + Self::INDEXER_FLOATS;
        match ring {
            RingOf::Csa(layer) => (layer * per_csa, Self::CSA_ROWS),
            RingOf::Indexer(layer) => (layer * per_csa + Self::CSA_FLOATS, Self::CSA_ROWS),
            RingOf::Hca(layer) => (self.csa_layers * per_csa + layer * Self::HCA_FLOATS, Self::HCA_ROWS),
        }
    }
}

impl Paged {
    fn new(
        gpu: &Arc<dyn Gpu>,
        layers: usize,
        pages: usize,
        page_bytes: usize,
        slots: usize,
        format: i32,
    ) -> Result<Self, GpuError> {
        let layer_bytes = pages * page_bytes;
        Ok(Paged {
            data: Buffer::zeroed(gpu, layers * layer_bytes)?,
            layers,
            layer_bytes,
            page_bytes,
            slots,
            format,
        })
    }

    fn layer(&self, layer: usize) -> args::Pages {
        args::Pages {
            data: self.data.at(layer * self.layer_bytes),
            page_bytes: self.page_bytes as i64,
            slots: self.slots as i32,
            format: self.format,
        }
    }
}

fn slots_of(pool: Pool) -> usize {
    pool.tokens_per_slot().map_or(TOKENS_PER_PAGE, |tokens| TOKENS_PER_PAGE / tokens)
}

impl DevicePools {
    pub fn new(
        gpu: &Arc<dyn Gpu>,
        spec: &Spec,
        numerics: Numerics,
        capacity: PoolCapacity,
    ) -> Result<Self, GpuError> {
        let latents = |pool: Pool, layers: usize| {
            let slots = slots_of(pool);
            let (page_bytes, format) = match numerics.kv {
                KvFormat::F32 => (slots * HEAD_DIM * 4, 0),
                KvFormat::Fp8 => (PackedPage { entries: slots }.bytes(), 1),
            };
            Paged::new(gpu, layers, capacity.pages(pool), page_bytes, slots, format)
        };
        let (csa, hca) = (spec.layers_of(LayerKind::Csa).count(), spec.layers_of(LayerKind::Hca).count());
        let (key_bytes, key_format) = match numerics.index_keys {
            IndexKeyFormat::F32 => (CacheFormats::INDEX_KEY_F32, 0),
            IndexKeyFormat::Bf16 => (CacheFormats::INDEX_KEY_BF16, 1),
            IndexKeyFormat::Fp8 => (CacheFormats::INDEX_KEY_FP8, 2),
            IndexKeyFormat::Fp4 => (CacheFormats::INDEX_KEY_FP4, 3),
        };
        let key_slots = slots_of(Pool::IndexKeys);
        let pages = |pool| capacity.pages(pool);
        let row_bytes = Rings::page_floats(csa, hca) * 4;
        Ok(DevicePools {
            window: latents(Pool::Window, spec.layers.len())?,
            csa: latents(Pool::Csa, csa)?,
            hca: latents(Pool::Hca, hca)?,
            index_keys: Paged::new(
                gpu,
                csa,
                pages(Pool::IndexKeys),
                key_slots * key_bytes,
                key_slots,
                key_format,
            )?,
            compressor_rows: Paged::new(gpu, 1, pages(Pool::CompressorRows), row_bytes, 1, 0)?,
            rings: Rings { csa_layers: csa },
        })
    }

    /// With what a rehearsal reads.
    pub fn fill(&mut self, numerics: Numerics, rehearsal: Rehearsal) -> Result<(), GpuError> {
        for (pool, pages) in [
            (Pool::Window, &mut self.window),
            (Pool::Csa, &mut self.csa),
            (Pool::Hca, &mut self.hca),
            (Pool::IndexKeys, &mut self.index_keys),
            (Pool::CompressorRows, &mut self.compressor_rows),
        ] {
            let contents = rehearsal.contents(pool, numerics, pages.page_bytes);
            for at in (0..pages.data.len()).step_by(contents.len()) {
                let count = contents.len().min(pages.data.len() - at);
                pages.data.copy_in_at(at, &contents[..count])?;
            }
        }
        Ok(())
    }

    pub fn window(&self, layer: usize) -> args::Pages {
        self.window.layer(layer)
    }

    /// Entries of a compressed layer, by its number within its kind.
    pub fn entries(&self, kind: LayerKind, layer: usize) -> args::Pages {
        match kind {
            LayerKind::Hca => self.hca.layer(layer),
            LayerKind::Csa | LayerKind::Window => self.csa.layer(layer),
        }
    }

    pub fn index_keys(&self, layer: usize) -> args::Pages {
        self.index_keys.layer(layer)
    }

    /// A ring's place in the first page, floats from page to page, and its rows.
    pub fn ring(&self, ring: RingOf) -> (DeviceAddress, i64, i32) {
        let (first, rows) = self.rings.of(ring);
        (self.compressor_rows.data.at(first * 4), (self.compressor_rows.page_bytes / 4) as i64, rows as i32)
    }

    pub fn apply(&self, kernels: &Kernels, op: PageOp) -> Result<(), GpuError> {
        let PageOp::Copy { pool, from, to } = op;
        let pages = match pool {
            Pool::Window => &self.window,
            Pool::Csa => &self.csa,
            Pool::Hca => &self.hca,
            Pool::IndexKeys => &self.index_keys,
            Pool::CompressorRows => &self.compressor_rows,
        };
        let copy = args::CopyPage {
            data: pages.data.address(),
            layer_bytes: pages.layer_bytes as i64,
            page_bytes: pages.page_bytes as i64,
            from: from.0 as i32,
            to: to.0 as i32,
        };
        kernels.copy_page.launch(Grid(pages.layers as u32, 1, 1), &copy)
    }
}
