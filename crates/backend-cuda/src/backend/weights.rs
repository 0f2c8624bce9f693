//! A rank's share of the weights on its device, in their stored formats: one allocation, filled from the mapped files.

use super::arguments as args;
use crate::gpu::{Buffer, DeviceAddress, Gpu, GpuError, bytes_of};
use overshot_backend::Shard;
use overshot_model::{
    Compressor, Expert, Format, HEAD_DIM, HyperConnection, INDEX_DIM, Layer, Matrix, Routing, Weights,
};
use std::ops::Range;
use std::sync::Arc;

/// Where everything is. The arena must outlive it.
pub struct DeviceWeights {
    pub embed: args::Matrix,
    pub layers: Vec<DeviceLayer>,
    pub hc_head: Site,
    pub norm: DeviceAddress,
    pub head: args::Matrix,
    _arena: Buffer<u8>,
}

/// One site's parameters, float32.
#[derive(Clone, Copy)]
pub struct Site {
    pub mix: DeviceAddress,
    pub base: DeviceAddress,
    pub scale: DeviceAddress,
}

pub struct DeviceLayer {
    pub hc_attn: Site,
    pub attn_norm: DeviceAddress,
    pub hc_ffn: Site,
    pub ffn_norm: DeviceAddress,
    pub wq_a: args::Matrix,
    pub q_norm: DeviceAddress,
    pub wq_b: args::Matrix,
    pub wkv: args::Matrix,
    pub kv_norm: DeviceAddress,
    pub sink: DeviceAddress,
    pub wo_a: Vec<args::Matrix>,
    pub wo_b: args::Matrix,
    pub compressor: Option<DeviceCompressor>,
    pub indexer: Option<DeviceIndexer>,
    pub gate: args::Matrix,
    /// Experts by token id, or null.
    pub table: DeviceAddress,
    /// Null where there is a table.
    pub bias: DeviceAddress,
    /// The rank's experts, then the shared one.
    pub experts: DeviceAddress,
    pub routed_format: Format,
    pub shared_format: Format,
}

pub struct DeviceCompressor {
    pub wkv: args::Matrix,
    pub wgate: args::Matrix,
    pub ape: DeviceAddress,
    pub norm: DeviceAddress,
}

pub struct DeviceIndexer {
    pub wq_b: args::Matrix,
    pub weights_proj: args::Matrix,
    pub compressor: DeviceCompressor,
}

impl DeviceWeights {
    pub fn upload(gpu: &Arc<dyn Gpu>, weights: &Weights, shard: &Shard) -> Result<Self, GpuError> {
        let mut counted = Arena { buffer: None, used: 0 };
        place(weights, shard, &mut counted)?;
        let mut arena = Arena { buffer: Some(Buffer::new(gpu, counted.used)?), used: 0 };
        let Placed { embed, layers, hc_head, norm, head } = place(weights, shard, &mut arena)?;
        let arena = arena.buffer.expect("made above");
        Ok(DeviceWeights { embed, layers, hc_head, norm, head, _arena: arena })
    }
}

/// Puts one thing behind the other. Without a buffer it only counts.
struct Arena {
    buffer: Option<Buffer<u8>>,
    used: usize,
}

const ALIGN: usize = 256;

impl Arena {
    fn bytes(&mut self, bytes: &[u8]) -> Result<DeviceAddress, GpuError> {
        let at = self.used;
        self.used = (at + bytes.len()).next_multiple_of(ALIGN);
        let Some(buffer) = &mut self.buffer else { return Ok(DeviceAddress::NULL) };
        buffer.copy_in_at(at, bytes)?;
        Ok(buffer.at(at))
    }

    fn floats(&mut self, values: &[f32]) -> Result<DeviceAddress, GpuError> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.bytes(&bytes)
    }

    fn matrix(&mut self, matrix: &Matrix) -> Result<args::Matrix, GpuError> {
        self.columns(matrix, 0..matrix.cols)
    }

    /// Some columns of a matrix, whose scales stay whole.
    fn columns(&mut self, matrix: &Matrix, columns: Range<usize>) -> Result<args::Matrix, GpuError> {
        let format = matrix.format;
        let data = if columns.len() == matrix.cols {
            self.bytes(matrix.data())?
        } else {
            let bytes = format.row_bytes(columns.start)..format.row_bytes(columns.end);
            let rows = (0..matrix.rows).flat_map(|row| &matrix.row(row)[bytes.clone()]);
            let cut: Vec<u8> = rows.copied().collect();
            self.bytes(&cut)?
        };
        let first_row = match format {
            Format::Fp8 => Format::FP8_BLOCK - matrix.rows_to_next_scale(0),
            _ => 0,
        };
        let scales = match matrix.rows {
            0 => &[][..],
            rows => &matrix.scales()[matrix.scale_row_range(0).start..matrix.scale_row_range(rows - 1).end],
        };
        Ok(args::Matrix {
            data,
            scales: self.bytes(scales)?,
            rows: matrix.rows as i32,
            cols: columns.len() as i32,
            format: format as i32,
            first_row: first_row as i32,
            first_col: columns.start as i32,
            scale_stride: format.scale_row_bytes(matrix.cols) as i32,
        })
    }

    fn site(&mut self, site: &HyperConnection) -> Result<Site, GpuError> {
        let mut mix = vec![0.0; site.mix.rows * site.mix.cols];
        mix.chunks_exact_mut(site.mix.cols).enumerate().for_each(|(row, out)| site.mix.decode_row(row, out));
        Ok(Site { mix: self.floats(&mix)?, base: self.floats(&site.base)?, scale: self.floats(&site.scale)? })
    }

    fn compressor(&mut self, compressor: &Compressor) -> Result<DeviceCompressor, GpuError> {
        Ok(DeviceCompressor {
            wkv: self.matrix(&compressor.wkv)?,
            wgate: self.matrix(&compressor.wgate)?,
            ape: self.floats(&compressor.ape)?,
            norm: self.floats(&compressor.norm)?,
        })
    }

    fn expert(&mut self, expert: &Expert) -> Result<args::Expert, GpuError> {
        Ok(args::Expert {
            w1: self.matrix(&expert.w1)?,
            w3: self.matrix(&expert.w3)?,
            w2: self.matrix(&expert.w2)?,
        })
    }
}

struct Placed {
    embed: args::Matrix,
    layers: Vec<DeviceLayer>,
    hc_head: Site,
    norm: DeviceAddress,
    head: args::Matrix,
}

fn place(weights: &Weights, shard: &Shard, arena: &mut Arena) -> Result<Placed, GpuError> {
    Ok(Placed {
        embed: arena.matrix(&weights.embed.slice_rows(shard.vocab.clone()))?,
        head: arena.matrix(&weights.head.slice_rows(shard.vocab.clone()))?,
        hc_head: arena.site(&weights.hc_head)?,
        norm: arena.floats(&weights.norm)?,
        layers: weights
            .layers
            .iter()
            .map(|layer| place_layer(layer, shard, arena))
            .collect::<Result<_, _>>()?,
    })
}

fn place_layer(layer: &Layer, shard: &Shard, arena: &mut Arena) -> Result<DeviceLayer, GpuError> {
    let (attn, ffn) = (&layer.attn, &layer.ffn);
    let rows = |range: &Range<usize>, each: usize| range.start * each..range.end * each;
    let o_lora = attn.wo_a[0].rows;
    let indexer = attn.indexer.as_ref().map(|indexer| {
        Ok::<_, GpuError>(DeviceIndexer {
            wq_b: arena.matrix(&indexer.wq_b.slice_rows(rows(&shard.index_heads, INDEX_DIM)))?,
            weights_proj: arena.matrix(&indexer.weights_proj.slice_rows(shard.index_heads.clone()))?,
            compressor: arena.compressor(&indexer.compressor)?,
        })
    });
    let (table, bias) = match &ffn.routing {
        Routing::Hash { experts_of_token } => {
            let bytes: Vec<u8> = experts_of_token.iter().flat_map(|expert| expert.to_le_bytes()).collect();
            (arena.bytes(&bytes)?, DeviceAddress::NULL)
        }
        Routing::Learned { bias } => (DeviceAddress::NULL, arena.floats(bias)?),
    };
    let own = ffn.experts[shard.experts.clone()].iter().chain([&ffn.shared]);
    let experts = own.map(|expert| arena.expert(expert)).collect::<Result<Vec<_>, _>>()?;
    let experts: Vec<u8> = experts.iter().flat_map(|expert| bytes_of(expert).to_vec()).collect();
    Ok(DeviceLayer {
        hc_attn: arena.site(&layer.hc_attn)?,
        attn_norm: arena.floats(&layer.attn_norm)?,
        hc_ffn: arena.site(&layer.hc_ffn)?,
        ffn_norm: arena.floats(&layer.ffn_norm)?,
        wq_a: arena.matrix(&attn.wq_a)?,
        q_norm: arena.floats(&attn.q_norm)?,
        wq_b: arena.matrix(&attn.wq_b.slice_rows(rows(&shard.heads, HEAD_DIM)))?,
        wkv: arena.matrix(&attn.wkv)?,
        kv_norm: arena.floats(&attn.kv_norm)?,
        sink: arena.floats(&attn.sink[shard.heads.clone()])?,
        wo_a: attn.wo_a[shard.groups.clone()]
            .iter()
            .map(|matrix| arena.matrix(matrix))
            .collect::<Result<_, _>>()?,
        wo_b: arena.columns(&attn.wo_b, rows(&shard.groups, o_lora))?,
        compressor: attn.compressor.as_ref().map(|compressor| arena.compressor(compressor)).transpose()?,
        indexer: indexer.transpose()?,
        gate: arena.matrix(&ffn.gate)?,
        table,
        bias,
        experts: arena.bytes(&experts)?,
        routed_format: ffn.experts[0].w1.format,
        shared_format: ffn.shared.w1.format,
    })
}
