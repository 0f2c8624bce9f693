//! The bytes that each family of kernels must move in a decode step of one rank: weights that are read, cache entries that are seen,
//! and of what passes between kernels the residual streams and index scores, which are too large to stay anywhere.
//! Families that have neither are left out: launches and latency are all that they are.
//!
//! Routed experts are as many distinct ones as uniform routing touches in the mean: each of E with chance 1 - (1 - k/E)^rows.

use crate::{Family, IndexKeyFormat, KvFormat, Numerics, Shard};
use overshot_model::memory::CacheFormats;
use overshot_model::{
    Compressor, Expert, HEAD_DIM, INDEX_DIM, Layer, LayerKind, Matrix, Model, STREAMS, Spec, WINDOW,
};
use std::collections::BTreeMap;
use std::ops::Range;

const FLOAT: f64 = 4.0;

/// Sequences that decode one token each, all behind about the same number of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeShape {
    pub rows: usize,
    pub context: usize,
}

/// By family, in the mean over steps.
pub fn decode_bytes(
    model: &Model,
    shard: &Shard,
    numerics: Numerics,
    shape: DecodeShape,
) -> BTreeMap<Family, f64> {
    let mut count = Count { spec: &model.spec, shard, numerics, shape, bytes: BTreeMap::new() };
    for (layer, spec) in model.weights.layers.iter().zip(&model.spec.layers) {
        count.attention(layer, spec.kind);
        count.feed_forward(layer);
    }
    let rows = shape.rows as f64;
    count.add(Family::Embed, rows * model.weights.embed.row_bytes() as f64);
    count.add(Family::Head, stored(&model.weights.head.slice_rows(shard.vocab.clone())));
    count.add(Family::Sample, rows * shard.vocab.len() as f64 * FLOAT);
    count.bytes
}

struct Count<'a> {
    spec: &'a Spec,
    shard: &'a Shard,
    numerics: Numerics,
    shape: DecodeShape,
    bytes: BTreeMap<Family, f64>,
}

impl Count<'_> {
    fn add(&mut self, family: Family, bytes: f64) {
        *self.bytes.entry(family).or_default() += bytes;
    }

    fn rows(&self) -> f64 {
        self.shape.rows as f64
    }

    fn attention(&mut self, layer: &Layer, kind: LayerKind) {
        let (attn, shard) = (&layer.attn, self.shard);
        // Both sites read their matrix, a layer's output, and read and write all streams.
        let site = (2 * STREAMS + 1) as f64 * self.spec.hidden_size as f64 * FLOAT;
        self.add(
            Family::Streams,
            stored(&layer.hc_attn.mix) + stored(&layer.hc_ffn.mix) + 2.0 * self.rows() * site,
        );
        self.add(Family::Inputs, stored(&attn.wq_a) + stored(&attn.wkv));
        self.add(Family::Queries, stored(&attn.wq_b.slice_rows(times(&shard.heads, HEAD_DIM))));
        let share = shard.groups.len() as f64 / self.spec.o_groups as f64;
        let groups = attn.wo_a[shard.groups.clone()].iter().map(stored).sum::<f64>();
        self.add(Family::Outputs, groups + share * stored(&attn.wo_b));
        if let Some(compressor) = &attn.compressor {
            self.compressor(compressor, kind, HEAD_DIM);
        }
        if let Some(indexer) = &attn.indexer {
            let heads = &shard.index_heads;
            self.add(Family::Queries, stored(&indexer.wq_b.slice_rows(times(heads, INDEX_DIM))));
            self.add(Family::Inputs, stored(&indexer.weights_proj.slice_rows(heads.clone())));
            self.compressor(&indexer.compressor, kind, INDEX_DIM);
            self.index();
        }
        let entry = match self.numerics.kv {
            KvFormat::F32 => CacheFormats::ENTRY_F32,
            KvFormat::Fp8 => CacheFormats::ENTRY_FP8,
        };
        let context = self.shape.context;
        let (family, entries) = match kind {
            LayerKind::Window => (Family::WindowAttention, 0),
            LayerKind::Csa => (Family::CsaAttention, (context / kind.ratio()).min(self.spec.index_topk)),
            LayerKind::Hca => (Family::HcaAttention, context / kind.ratio()),
        };
        let seen = (context.min(WINDOW) + entries) as f64;
        self.add(family, self.rows() * seen * entry as f64);
    }

    /// Its matrices; of its ring the row of every token, and the rows of a window once in `ratio` steps.
    fn compressor(&mut self, compressor: &Compressor, kind: LayerKind, width: usize) {
        self.add(Family::Inputs, stored(&compressor.wkv) + stored(&compressor.wgate));
        // Ratio 4 keeps both halves of a row, and reads one of each of 8 rows.
        let (kept, read) = match kind {
            LayerKind::Csa => (2 * width, 2 * width),
            LayerKind::Hca | LayerKind::Window => (width, width),
        };
        self.add(Family::Compress, self.rows() * 2.0 * (kept + read) as f64 * FLOAT);
    }

    /// Nothing is scored where all entries are chosen.
    fn index(&mut self) {
        let visible = self.shape.context / LayerKind::Csa.ratio();
        if visible <= self.spec.index_topk {
            return;
        }
        let key = match self.numerics.index_keys {
            IndexKeyFormat::F32 => CacheFormats::INDEX_KEY_F32,
            IndexKeyFormat::Bf16 => CacheFormats::INDEX_KEY_BF16,
            IndexKeyFormat::Fp8 => CacheFormats::INDEX_KEY_FP8,
            IndexKeyFormat::Fp4 => CacheFormats::INDEX_KEY_FP4,
        };
        let scored = self.rows() * visible as f64;
        self.add(Family::IndexScores, scored * (key as f64 + FLOAT));
        self.add(Family::IndexSelect, scored * FLOAT);
    }

    fn feed_forward(&mut self, layer: &Layer) {
        let ffn = &layer.ffn;
        self.add(Family::Gate, stored(&ffn.gate));
        let used = self.spec.experts_per_token as f64 / self.spec.experts as f64;
        let touched = 1.0 - (1.0 - used).powf(self.rows());
        let own = &ffn.experts[self.shard.experts.clone()];
        let up = |expert: &Expert| stored(&expert.w1) + stored(&expert.w3);
        let down = |expert: &Expert| stored(&expert.w2);
        self.add(Family::ExpertsUp, touched * own.iter().map(up).sum::<f64>() + up(&ffn.shared));
        self.add(Family::ExpertsDown, touched * own.iter().map(down).sum::<f64>() + down(&ffn.shared));
    }
}

fn stored(matrix: &Matrix) -> f64 {
    matrix.stored_bytes() as f64
}

fn times(range: &Range<usize>, each: usize) -> Range<usize> {
    range.start * each..range.end * each
}

#[cfg(test)]
mod tests {
    use super::*;
    use overshot_model::LayerSpec;

    fn flash(kinds: Range<usize>) -> Model {
        let flash = Spec::flash();
        let layers: Vec<LayerSpec> = flash.layers[kinds].to_vec();
        // The experts would only take time to make.
        Model::random(Spec { layers, experts: 16, vocab_size: 512, ..flash }, 1)
    }

    fn bytes(model: &Model, ranks: usize, rows: usize, context: usize) -> BTreeMap<Family, f64> {
        let shard = Shard::of(&model.spec, 0, ranks);
        decode_bytes(model, &shard, Numerics::default(), DecodeShape { rows, context })
    }

    #[test]
    fn weights_are_read_once_and_entries_by_every_row() {
        let model = flash(2..4);
        let (one, many) = (bytes(&model, 1, 1, 8192), bytes(&model, 1, 64, 8192));
        assert_eq!(one[&Family::CsaAttention], (128.0 + 512.0) * 584.0);
        assert_eq!(one[&Family::HcaAttention], (128.0 + 64.0) * 584.0);
        assert_eq!(many[&Family::CsaAttention], 64.0 * one[&Family::CsaAttention]);
        // 2,048 keys of 132 bytes, and a score each.
        assert_eq!(one[&Family::IndexScores], 2048.0 * 136.0);
        for family in [Family::Inputs, Family::Queries, Family::Outputs, Family::Gate, Family::Head] {
            assert_eq!(one[&family], many[&family], "{family}");
        }
        // Two layers: FP8 of 32,768 x 1,024, and in one the indexer's 8,192 x 1,024; a scale a block.
        let queries = (2 * 32_768 + 8192) as f64 * 1024.0 * (1.0 + 1.0 / 16_384.0);
        assert_eq!(one[&Family::Queries], queries);
    }

    #[test]
    fn a_rank_reads_its_part_and_more_rows_touch_more_experts() {
        let model = flash(2..3);
        let (whole, half) = (bytes(&model, 1, 4, 1024), bytes(&model, 2, 4, 1024));
        assert_eq!(half[&Family::Queries] * 2.0, whole[&Family::Queries]);
        assert_eq!(half[&Family::Outputs] * 2.0, whole[&Family::Outputs]);
        assert_eq!(half[&Family::Gate], whole[&Family::Gate]);
        // All entries are chosen: nothing is scored.
        assert!(!whole.contains_key(&Family::IndexScores));
        let up = |rows| bytes(&model, 1, rows, 1024)[&Family::ExpertsUp];
        let shared = 2.0 * 2048.0 * 4096.0 * (1.0 + 1.0 / 16_384.0);
        let expert = 2.0 * 2048.0 * 4096.0 * (0.5 + 1.0 / 32.0);
        let close =
            |got: f64, expected: f64| assert!((got / expected - 1.0).abs() < 1e-9, "{got}, {expected}");
        close(up(1), shared + 6.0 * expert);
        close(up(1000), shared + 16.0 * expert);
    }
}
