//! A rank's share of the weights on its device, in their stored formats: one allocation, and what of the model lies where in
//! it. Filled from the mapped files by `loading.rs`.

use super::arguments as args;
use super::loading::{Loading, Progress, load};
use super::pieces::{Arena, Group};
use crate::gpu::{Buffer, DeviceAddress, Gpu, GpuError, bytes_of};
use crate::matmul::{Forms, Matmuls};
use overshot_backend::Shard;
use overshot_model::{
    Compressor, Expert, FeedForward, Format, HEAD_DIM, HyperConnection, INDEX_DIM, Indexer, Layer, Matrix,
    Routing, Weights,
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
    pub experts_kind: ExpertsKind,
}

/// What the experts of a layer have in common, on every rank.
#[derive(Clone, Copy, Debug)]
pub struct ExpertsKind {
    pub routed: Format,
    pub shared: Format,
    /// Whether the tile kernels take every matrix.
    pub go_by_tiles: bool,
    /// Of the inputs that the matrices take.
    pub forms: Forms,
}

impl ExpertsKind {
    pub fn of(ffn: &FeedForward) -> Self {
        let experts = || ffn.experts.iter().chain([&ffn.shared]);
        let matrices = || {
            let all = experts().flat_map(|expert| [&expert.w1, &expert.w3, &expert.w2]);
            let (data, scales) = (DeviceAddress::NULL, DeviceAddress::NULL);
            all.map(move |m| args::Matrix::whole(m.format, m.rows, m.cols, data, scales))
        };
        let alike = experts().all(|expert| expert.w1.format == expert.w3.format);
        // As `Matmuls::experts` has it: hidden size and width.
        let in_blocks = matrices().all(|matrix| matrix.cols % 32 == 0);
        ExpertsKind {
            routed: ffn.experts[0].w1.format,
            shared: ffn.shared.w1.format,
            go_by_tiles: alike && in_blocks && matrices().all(|matrix| Matmuls::takes(&matrix)),
            forms: Forms::of(matrices().filter_map(|matrix| matrix.format())),
        }
    }
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
    /// Bytes of a rank's share on its device.
    pub fn bytes(weights: &Weights, shard: &Shard) -> usize {
        let mut arena = Arena::counting();
        place(weights, shard, &mut arena);
        arena.used()
    }

    pub fn load(
        gpu: &Arc<dyn Gpu>,
        weights: &Weights,
        shard: &Shard,
        loading: Loading,
        progress: &Progress,
    ) -> Result<Self, GpuError> {
        let buffer = Buffer::new(gpu, Self::bytes(weights, shard))?;
        let mut arena = Arena::at(buffer.address());
        let Placed { embed, layers, hc_head, norm, head } = place(weights, shard, &mut arena);
        load(gpu, &arena.into_pieces(), &buffer, loading, progress)?;
        Ok(DeviceWeights { embed, layers, hc_head, norm, head, _arena: buffer })
    }
}

/// What the model's parts become in an arena.
impl Arena {
    fn floats(&mut self, group: Group, tensor: &'static str, values: &[f32]) -> DeviceAddress {
        let bytes = || values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.made(group, tensor, size_of_val(values), bytes)
    }

    fn matrix(&mut self, group: Group, tensor: &'static str, matrix: &Matrix) -> args::Matrix {
        self.columns(group, tensor, matrix, 0..matrix.cols)
    }

    /// Some columns of a matrix, whose scales stay whole.
    fn columns(
        &mut self,
        group: Group,
        tensor: &'static str,
        matrix: &Matrix,
        columns: Range<usize>,
    ) -> args::Matrix {
        let format = matrix.format;
        let bytes = format.row_bytes(columns.start)..format.row_bytes(columns.end);
        let first_row = match format {
            Format::Fp8 => Format::FP8_BLOCK - matrix.rows_to_next_scale(0),
            _ => 0,
        };
        let scales = match matrix.rows {
            0 => 0..0,
            rows => matrix.scale_row_range(0).start..matrix.scale_row_range(rows - 1).end,
        };
        args::Matrix {
            data: self.data(group, tensor, matrix, bytes),
            scales: self.scales(group, tensor, matrix, scales),
            rows: matrix.rows as i32,
            cols: columns.len() as i32,
            format: format as i32,
            first_row: first_row as i32,
            first_col: columns.start as i32,
            scale_stride: format.scale_row_bytes(matrix.cols) as i32,
        }
    }

    fn site(&mut self, group: Group, site: &HyperConnection) -> Site {
        let (rows, cols) = (site.mix.rows, site.mix.cols);
        let mix = || {
            let mut mix = vec![0.0; rows * cols];
            mix.chunks_exact_mut(cols).enumerate().for_each(|(row, out)| site.mix.decode_row(row, out));
            mix.into_iter().flat_map(f32::to_le_bytes).collect()
        };
        Site {
            mix: self.made(group, "mix", rows * cols * size_of::<f32>(), mix),
            base: self.floats(group, "base", &site.base),
            scale: self.floats(group, "scale", &site.scale),
        }
    }

    fn compressor(&mut self, group: Group, compressor: &Compressor) -> DeviceCompressor {
        DeviceCompressor {
            wkv: self.matrix(group, "wkv", &compressor.wkv),
            wgate: self.matrix(group, "wgate", &compressor.wgate),
            ape: self.floats(group, "ape", &compressor.ape),
            norm: self.floats(group, "norm", &compressor.norm),
        }
    }

    fn indexer(&mut self, layer: usize, indexer: &Indexer, shard: &Shard) -> DeviceIndexer {
        let group = Group::of_layer(layer, "attn.indexer");
        let heads = &shard.index_heads;
        let wq_b = indexer.wq_b.slice_rows(heads.start * INDEX_DIM..heads.end * INDEX_DIM);
        let weights_proj = indexer.weights_proj.slice_rows(heads.clone());
        DeviceIndexer {
            wq_b: self.matrix(group, "wq_b", &wq_b),
            weights_proj: self.matrix(group, "weights_proj", &weights_proj),
            compressor: self
                .compressor(Group::of_layer(layer, "attn.indexer.compressor"), &indexer.compressor),
        }
    }

    fn expert(&mut self, group: Group, expert: &Expert) -> args::Expert {
        args::Expert {
            w1: self.matrix(group, "w1", &expert.w1),
            w3: self.matrix(group, "w3", &expert.w3),
            w2: self.matrix(group, "w2", &expert.w2),
        }
    }

    /// The rank's experts, then the shared one; their table is what kernels are given.
    fn experts(&mut self, layer: usize, ffn: &FeedForward, shard: &Shard) -> DeviceAddress {
        let group = Group::of_layer(layer, "ffn.experts");
        let routed = shard.experts.clone().map(|index| (group.numbered(index), &ffn.experts[index]));
        let shared = (Group::of_layer(layer, "ffn.shared"), &ffn.shared);
        let experts: Vec<_> =
            routed.chain([shared]).map(|(group, expert)| self.expert(group, expert)).collect();
        let table = || experts.iter().flat_map(|expert| bytes_of(expert).to_vec()).collect();
        self.made(group, "table", size_of_val(experts.as_slice()), table)
    }
}

struct Placed {
    embed: args::Matrix,
    layers: Vec<DeviceLayer>,
    hc_head: Site,
    norm: DeviceAddress,
    head: args::Matrix,
}

fn place(weights: &Weights, shard: &Shard, arena: &mut Arena) -> Placed {
    let (model, vocab) = (Group::MODEL, &shard.vocab);
    Placed {
        embed: arena.matrix(model, "embed", &weights.embed.slice_rows(vocab.clone())),
        head: arena.matrix(model, "head", &weights.head.slice_rows(vocab.clone())),
        hc_head: arena.site(Group { part: "hc_head", ..model }, &weights.hc_head),
        norm: arena.floats(model, "norm", &weights.norm),
        layers: weights
            .layers
            .iter()
            .enumerate()
            .map(|(index, layer)| place_layer(index, layer, shard, arena))
            .collect(),
    }
}

fn place_layer(index: usize, layer: &Layer, shard: &Shard, arena: &mut Arena) -> DeviceLayer {
    let (attn, ffn) = (&layer.attn, &layer.ffn);
    let group = |part| Group::of_layer(index, part);
    let (whole, at, feed) = (group(""), group("attn"), group("ffn"));
    let rows = |range: &Range<usize>, each: usize| range.start * each..range.end * each;
    let (table, bias) = match &ffn.routing {
        Routing::Hash { experts_of_token } => {
            let bytes = || experts_of_token.iter().flat_map(|expert| expert.to_le_bytes()).collect();
            let len = size_of_val(experts_of_token.as_slice());
            (arena.made(feed, "experts_of_token", len, bytes), DeviceAddress::NULL)
        }
        Routing::Learned { bias } => (DeviceAddress::NULL, arena.floats(feed, "bias", bias)),
    };
    let wo_a = shard.groups.clone().map(|number| (number, &attn.wo_a[number]));
    DeviceLayer {
        hc_attn: arena.site(group("hc_attn"), &layer.hc_attn),
        attn_norm: arena.floats(whole, "attn_norm", &layer.attn_norm),
        hc_ffn: arena.site(group("hc_ffn"), &layer.hc_ffn),
        ffn_norm: arena.floats(whole, "ffn_norm", &layer.ffn_norm),
        wq_a: arena.matrix(at, "wq_a", &attn.wq_a),
        q_norm: arena.floats(at, "q_norm", &attn.q_norm),
        wq_b: arena.matrix(at, "wq_b", &attn.wq_b.slice_rows(rows(&shard.heads, HEAD_DIM))),
        wkv: arena.matrix(at, "wkv", &attn.wkv),
        kv_norm: arena.floats(at, "kv_norm", &attn.kv_norm),
        sink: arena.floats(at, "sink", &attn.sink[shard.heads.clone()]),
        wo_a: wo_a.map(|(number, matrix)| arena.matrix(at.numbered(number), "wo_a", matrix)).collect(),
        wo_b: arena.columns(at, "wo_b", &attn.wo_b, rows(&shard.groups, attn.wo_a[0].rows)),
        compressor: attn
            .compressor
            .as_ref()
            .map(|compressor| arena.compressor(group("attn.compressor"), compressor)),
        indexer: attn.indexer.as_ref().map(|indexer| arena.indexer(index, indexer, shard)),
        gate: arena.matrix(feed, "gate", &ffn.gate),
        table,
        bias,
        experts: arena.experts(index, ffn, shard),
        experts_kind: ExpertsKind::of(ffn),
    }
}
