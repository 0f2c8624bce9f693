//! The bytes behind the page ids: one block of memory per pool, laid out `[layer within kind][page][page bytes]`.
//!
//! Memory is mapped zeroed at the start and only becomes resident when touched. Nothing here knows which request a
//! page belongs to.

use crate::simd::UnpackEntry;
use crate::{CpuError, Isa};
use memmap2::MmapMut;
use overshot_backend::{IndexKeyFormat, KvFormat, Numerics, Rehearsal};
use overshot_kv::{PageId, PageOp, Pool, PoolCapacity, TOKENS_PER_PAGE};
use overshot_model::memory::{CacheFormats, RingSlots};
use overshot_model::quant::{self, ENTRY_DATA_BYTES, ENTRY_SCALE_BYTES, INDEX_KEY_FP4_BYTES, PackedPage};
use overshot_model::{HEAD_DIM, INDEX_DIM, LayerKind, Spec};

pub struct Pools {
    pub window: Latents,
    pub csa: Latents,
    pub hca: Latents,
    pub index_keys: IndexKeys,
    pub compressor_rows: CompressorRows,
}

impl Pools {
    /// # Errors
    /// Memory that the machine will not map.
    pub fn new(
        spec: &Spec,
        numerics: Numerics,
        capacity: PoolCapacity,
        rehearsal: Option<Rehearsal>,
    ) -> Result<Self, CpuError> {
        let latents = |pool: Pool, layers: usize| {
            Latents::new(numerics.kv, layers, capacity.pages(pool), slots_per_page(pool))
        };
        let (csa, hca) = (spec.layers_of(LayerKind::Csa).count(), spec.layers_of(LayerKind::Hca).count());
        let mut pools = Pools {
            window: latents(Pool::Window, spec.layers.len())?,
            csa: latents(Pool::Csa, csa)?,
            hca: latents(Pool::Hca, hca)?,
            index_keys: IndexKeys::new(numerics.index_keys, csa, capacity.pages(Pool::IndexKeys))?,
            compressor_rows: CompressorRows::new(csa, hca, capacity.pages(Pool::CompressorRows))?,
        };
        if let Some(rehearsal) = rehearsal {
            pools.fill(numerics, rehearsal);
        }
        Ok(pools)
    }

    fn fill(&mut self, numerics: Numerics, rehearsal: Rehearsal) {
        let row_bytes = self.compressor_rows.page_floats * size_of::<f32>();
        for (pool, page_bytes, memory) in [
            (Pool::Window, self.window.pages.page_bytes, &mut self.window.pages.bytes),
            (Pool::Csa, self.csa.pages.page_bytes, &mut self.csa.pages.bytes),
            (Pool::Hca, self.hca.pages.page_bytes, &mut self.hca.pages.bytes),
            (Pool::IndexKeys, self.index_keys.pages.page_bytes, &mut self.index_keys.pages.bytes),
            (Pool::CompressorRows, row_bytes, &mut self.compressor_rows.data),
        ] {
            let contents = rehearsal.contents(pool, numerics, page_bytes);
            for part in memory.chunks_mut(contents.len()) {
                part.copy_from_slice(&contents[..part.len()]);
            }
        }
    }

    pub fn apply(&mut self, op: PageOp) {
        let PageOp::Copy { pool, from, to } = op;
        match pool {
            Pool::Window => self.window.pages.copy(from, to),
            Pool::Csa => self.csa.pages.copy(from, to),
            Pool::Hca => self.hca.pages.copy(from, to),
            Pool::IndexKeys => self.index_keys.pages.copy(from, to),
            Pool::CompressorRows => self.compressor_rows.copy(from, to),
        }
    }
}

/// Zeroed memory that becomes resident as it is touched.
fn map_zeroed(pages: usize, page_bytes: usize, layers: usize) -> Result<MmapMut, CpuError> {
    let bytes = pages.checked_mul(page_bytes).and_then(|bytes| bytes.checked_mul(layers));
    // An empty mapping is refused by the system; a pool without layers or pages is none of its business.
    let mapped = bytes.and_then(|bytes| MmapMut::map_anon(bytes.max(1)).ok());
    mapped.ok_or(CpuError::Memory { bytes: bytes.unwrap_or(usize::MAX) })
}

fn slots_per_page(pool: Pool) -> usize {
    pool.tokens_per_slot().map_or(TOKENS_PER_PAGE, |tokens| TOKENS_PER_PAGE / tokens)
}

struct PagedBytes {
    bytes: MmapMut,
    layers: usize,
    pages: usize,
    page_bytes: usize,
}

impl PagedBytes {
    fn new(layers: usize, pages: usize, page_bytes: usize) -> Result<Self, CpuError> {
        Ok(PagedBytes { bytes: map_zeroed(pages, page_bytes, layers)?, layers, pages, page_bytes })
    }

    fn start(&self, layer: usize, page: PageId) -> usize {
        (layer * self.pages + page.0 as usize) * self.page_bytes
    }

    fn page(&self, layer: usize, page: PageId) -> &[u8] {
        let start = self.start(layer, page);
        &self.bytes[start..start + self.page_bytes]
    }

    fn page_mut(&mut self, layer: usize, page: PageId) -> &mut [u8] {
        let start = self.start(layer, page);
        &mut self.bytes[start..start + self.page_bytes]
    }

    fn copy(&mut self, from: PageId, to: PageId) {
        for layer in 0..self.layers {
            let (from, to) = (self.start(layer, from), self.start(layer, to));
            self.bytes.copy_within(from..from + self.page_bytes, to);
        }
    }
}

/// Latents of 512 numbers: window slots or compressed entries, each key and value at once.
pub struct Latents {
    format: KvFormat,
    packed: PackedPage,
    pages: PagedBytes,
    pub slots_per_page: usize,
}

impl Latents {
    fn new(format: KvFormat, layers: usize, pages: usize, slots_per_page: usize) -> Result<Self, CpuError> {
        let packed = PackedPage { entries: slots_per_page };
        let page_bytes = match format {
            KvFormat::F32 => slots_per_page * HEAD_DIM * 4,
            KvFormat::Fp8 => packed.bytes(),
        };
        Ok(Latents { format, packed, pages: PagedBytes::new(layers, pages, page_bytes)?, slots_per_page })
    }

    /// Stores a latent, rounded as the format demands.
    pub fn write(&mut self, layer: usize, page: PageId, slot: usize, latent: &[f32]) {
        let page = self.pages.page_mut(layer, page);
        match self.format {
            KvFormat::F32 => write_f32(&mut page[slot * HEAD_DIM * 4..][..HEAD_DIM * 4], latent),
            KvFormat::Fp8 => {
                let (data, scales) = page.split_at_mut(self.packed.scale_offset(0));
                let data = &mut data[self.packed.entry_offset(slot)..];
                let scales = &mut scales[slot * ENTRY_SCALE_BYTES..];
                quant::encode_entry(array(latent), array_mut(data), array_mut(scales));
            }
        }
    }

    pub fn read(&self, isa: Isa, layer: usize, page: PageId, slot: usize, out: &mut [f32]) {
        let page = self.pages.page(layer, page);
        match self.format {
            KvFormat::F32 => read_f32(&page[slot * HEAD_DIM * 4..][..HEAD_DIM * 4], out),
            KvFormat::Fp8 => {
                let data = &page[self.packed.entry_offset(slot)..][..ENTRY_DATA_BYTES];
                let scales = &page[self.packed.scale_offset(slot)..][..ENTRY_SCALE_BYTES];
                isa.run(UnpackEntry { data, scales, out });
            }
        }
    }
}

/// Indexer keys of 128 numbers.
pub struct IndexKeys {
    format: IndexKeyFormat,
    pages: PagedBytes,
    pub slots_per_page: usize,
}

impl IndexKeys {
    fn new(format: IndexKeyFormat, layers: usize, pages: usize) -> Result<Self, CpuError> {
        let slots_per_page = slots_per_page(Pool::IndexKeys);
        let pages = PagedBytes::new(layers, pages, slots_per_page * key_bytes(format))?;
        Ok(IndexKeys { format, pages, slots_per_page })
    }

    pub fn write(&mut self, layer: usize, page: PageId, slot: usize, key: &[f32]) {
        let bytes = key_bytes(self.format);
        let entry = &mut self.pages.page_mut(layer, page)[slot * bytes..][..bytes];
        match self.format {
            IndexKeyFormat::F32 => write_f32(entry, key),
            IndexKeyFormat::Bf16 => {
                for (out, &x) in entry.chunks_exact_mut(2).zip(key) {
                    out.copy_from_slice(&quant::bf16_encode(x).to_le_bytes());
                }
            }
            IndexKeyFormat::Fp8 => {
                let (codes, scale) = entry.split_at_mut(INDEX_DIM);
                let value = quant::encode_index_key_fp8(&transformed(key), array_mut(codes));
                scale.copy_from_slice(&value.to_le_bytes());
            }
            IndexKeyFormat::Fp4 => {
                let (codes, scales) = entry.split_at_mut(INDEX_KEY_FP4_BYTES);
                quant::encode_index_key_fp4(&transformed(key), array_mut(codes), array_mut(scales));
            }
        }
    }

    pub fn read(&self, layer: usize, page: PageId, slot: usize, out: &mut [f32]) {
        let bytes = key_bytes(self.format);
        let entry = &self.pages.page(layer, page)[slot * bytes..][..bytes];
        match self.format {
            IndexKeyFormat::F32 => read_f32(entry, out),
            IndexKeyFormat::Bf16 => {
                for (out, x) in out.iter_mut().zip(entry.chunks_exact(2)) {
                    *out = quant::bf16_decode(u16::from_le_bytes([x[0], x[1]]));
                }
            }
            IndexKeyFormat::Fp8 => {
                let (codes, scale) = entry.split_at(INDEX_DIM);
                quant::decode_index_key_fp8(array(codes), f32::from_le_bytes(*array(scale)), array_mut(out));
            }
            IndexKeyFormat::Fp4 => {
                let (codes, scales) = entry.split_at(INDEX_KEY_FP4_BYTES);
                quant::decode_index_key_fp4(array(codes), array(scales), array_mut(out));
            }
        }
    }

    /// Rounds an indexer query head the way its keys are rounded.
    pub fn round_query(&self, head: &mut [f32]) {
        let head: &mut [f32; INDEX_DIM] = array_mut(head);
        match self.format {
            IndexKeyFormat::F32 => {}
            IndexKeyFormat::Bf16 => {
                head.iter_mut().for_each(|x| *x = quant::bf16_decode(quant::bf16_encode(*x)))
            }
            IndexKeyFormat::Fp8 => {
                quant::hadamard(head);
                quant::round_index_key_fp8(head);
            }
            IndexKeyFormat::Fp4 => {
                quant::hadamard(head);
                quant::round_index_key_fp4(head);
            }
        }
    }
}

fn transformed(key: &[f32]) -> [f32; INDEX_DIM] {
    let mut key = *array(key);
    quant::hadamard(&mut key);
    key
}

/// The first `N` of a slice that has them by construction: entries and keys have one size each.
fn array<T, const N: usize>(slice: &[T]) -> &[T; N] {
    slice.first_chunk().expect("entries and keys have a fixed size")
}

fn array_mut<T, const N: usize>(slice: &mut [T]) -> &mut [T; N] {
    slice.first_chunk_mut().expect("entries and keys have a fixed size")
}

fn key_bytes(format: IndexKeyFormat) -> usize {
    match format {
        IndexKeyFormat::F32 => CacheFormats::INDEX_KEY_F32,
        IndexKeyFormat::Bf16 => CacheFormats::INDEX_KEY_BF16,
        IndexKeyFormat::Fp8 => CacheFormats::INDEX_KEY_FP8,
        IndexKeyFormat::Fp4 => CacheFormats::INDEX_KEY_FP4,
    }
}

fn write_f32(to: &mut [u8], from: &[f32]) {
    for (to, x) in to.chunks_exact_mut(4).zip(from) {
        to.copy_from_slice(&x.to_le_bytes());
    }
}

fn read_f32(from: &[u8], to: &mut [f32]) {
    for (to, x) in to.iter_mut().zip(from.chunks_exact(4)) {
        *to = f32::from_le_bytes([x[0], x[1], x[2], x[3]]);
    }
}

/// Which compressor's rows: every compressed layer has one, ratio-4 layers a second one in their indexer. Numbers
/// are layers within their kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsOf {
    Csa(usize),
    CsaIndexer(usize),
    Hca(usize),
}

impl RowsOf {
    pub fn kind(self) -> LayerKind {
        match self {
            RowsOf::Csa(_) | RowsOf::CsaIndexer(_) => LayerKind::Csa,
            RowsOf::Hca(_) => LayerKind::Hca,
        }
    }
}

/// Rings of (K, S) rows in float32, one page a request: `[csa layers: 16 x 2 x 1024, 16 x 2 x 256][hca layers:
/// 136 x 2 x 512]`. A ring holds one compression window (two at ratio 4, which overlap) and 8 rows more, so that
/// the last 8 positions can be taken back.
pub struct CompressorRows {
    data: MmapMut,
    csa_layers: usize,
    page_floats: usize,
}

impl CompressorRows {
    pub const CSA_RING: usize = RingSlots::LEAST.csa_rows + overshot_kv::ROLLBACK;
    pub const HCA_RING: usize = RingSlots::LEAST.hca_rows + overshot_kv::ROLLBACK;
    const CSA_FLOATS: usize = Self::CSA_RING * 2 * 2 * HEAD_DIM;
    const INDEXER_FLOATS: usize = Self::CSA_RING * 2 * 2 * INDEX_DIM;
    const HCA_FLOATS: usize = Self::HCA_RING * 2 * HEAD_DIM;

    fn new(csa_layers: usize, hca_layers: usize, pages: usize) -> Result<Self, CpuError> {
        let page_floats =
            csa_layers * (Self::CSA_FLOATS + Self::INDEXER_FLOATS) + hca_layers * Self::HCA_FLOATS;
        Ok(CompressorRows {
            data: map_zeroed(pages, page_floats, size_of::<f32>())?,
            csa_layers,
            page_floats,
        })
    }

    /// The ring of one compressor: `[row][K or S][channel]`.
    pub fn ring(&mut self, of: RowsOf, page: PageId) -> &mut [f32] {
        let (per_csa, page_floats) = (Self::CSA_FLOATS + Self::INDEXER_FLOATS, self.page_floats);
        let (start, len) = match of {
            RowsOf::Csa(layer) => (layer * per_csa, Self::CSA_FLOATS),
            RowsOf::CsaIndexer(layer) => (layer * per_csa + Self::CSA_FLOATS, Self::INDEXER_FLOATS),
            RowsOf::Hca(layer) => (self.csa_layers * per_csa + layer * Self::HCA_FLOATS, Self::HCA_FLOATS),
        };
        &mut self.floats()[page.0 as usize * page_floats + start..][..len]
    }

    fn copy(&mut self, from: PageId, to: PageId) {
        let (from, to) = (from.0 as usize * self.page_floats, to.0 as usize * self.page_floats);
        let page_floats = self.page_floats;
        self.floats().copy_within(from..from + page_floats, to);
    }

    fn floats(&mut self) -> &mut [f32] {
        let whole = self.data.len() / size_of::<f32>() * size_of::<f32>();
        bytemuck::cast_slice_mut(&mut self.data[..whole])
    }
}
