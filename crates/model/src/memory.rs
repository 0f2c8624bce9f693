//! How much memory a model takes: state per request and per token, weights per rank, what is left on a card. Pure
//! arithmetic. What an engine adds for its own sake (longer rings) is the caller's to say; pages round up besides.

use crate::quant::ENTRY_BYTES;
use crate::{Expert, HEAD_DIM, INDEX_DIM, Layer, LayerKind, Matrix, Routing, Spec, WINDOW, Weights};
use serde::Serialize;

/// Bytes of one cached thing under a choice of formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CacheFormats {
    /// A latent: window and compressed entries alike.
    pub entry_bytes: usize,
    pub index_key_bytes: usize,
}

impl CacheFormats {
    pub const ENTRY_FP8: usize = ENTRY_BYTES;
    pub const ENTRY_F32: usize = 4 * HEAD_DIM;
    /// Codes and one `f32` scale.
    pub const INDEX_KEY_FP8: usize = INDEX_DIM + 4;
    /// Nibbles and four scale bytes.
    pub const INDEX_KEY_FP4: usize = INDEX_DIM / 2 + 4;
    pub const INDEX_KEY_BF16: usize = 2 * INDEX_DIM;
    pub const INDEX_KEY_F32: usize = 4 * INDEX_DIM;
    /// The default: FP8 entries and FP8 index keys.
    pub const PACKED: CacheFormats =
        CacheFormats { entry_bytes: Self::ENTRY_FP8, index_key_bytes: Self::INDEX_KEY_FP8 };
}

/// Slots of the rings that every request has in each layer, however short its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RingSlots {
    /// Latents of the sliding window, in all layers.
    pub window: usize,
    /// Rows of unfinished compression windows in CSA layers, main and indexer alike.
    pub csa_rows: usize,
    /// The same in HCA layers.
    pub hca_rows: usize,
}

impl RingSlots {
    /// What the model needs; an engine that can undo positions keeps more. Ratio 4 keeps two windows, which overlap.
    pub const LEAST: RingSlots =
        RingSlots { window: WINDOW, csa_rows: 2 * LayerKind::Csa.ratio(), hca_rows: LayerKind::Hca.ratio() };
}

/// What a request holds besides what grows with its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RequestState {
    /// Latents of the last tokens, all layers.
    pub window_bytes: u64,
    /// Float32 rows of unfinished compression windows.
    pub compressor_bytes: u64,
}

impl RequestState {
    pub fn bytes(self) -> u64 {
        self.window_bytes + self.compressor_bytes
    }
}

impl Spec {
    fn count_of(&self, kind: LayerKind) -> u64 {
        self.layers_of(kind).count() as u64
    }

    /// Bytes that a token of context adds, averaged over the compression windows.
    pub fn cache_bytes_per_token(&self, formats: CacheFormats) -> f64 {
        let csa = self.count_of(LayerKind::Csa) * (formats.entry_bytes + formats.index_key_bytes) as u64;
        let hca = self.count_of(LayerKind::Hca) * formats.entry_bytes as u64;
        csa as f64 / LayerKind::Csa.ratio() as f64 + hca as f64 / LayerKind::Hca.ratio() as f64
    }

    pub fn request_state(&self, formats: CacheFormats, rings: RingSlots) -> RequestState {
        // A row is two float32 vectors, values and scores. Ratio 4 has a half for each of two windows.
        let row_bytes = |width: usize| (2 * 4 * width) as u64;
        let csa = rings.csa_rows as u64 * (row_bytes(2 * HEAD_DIM) + row_bytes(2 * INDEX_DIM));
        let hca = rings.hca_rows as u64 * row_bytes(HEAD_DIM);
        RequestState {
            window_bytes: self.layers.len() as u64 * (rings.window * formats.entry_bytes) as u64,
            compressor_bytes: self.count_of(LayerKind::Csa) * csa + self.count_of(LayerKind::Hca) * hca,
        }
    }

    /// Whether the model splits over that many ranks: heads, output groups, indexer heads and experts do not share.
    pub fn splits_over(&self, ranks: usize) -> bool {
        let indexer = if self.count_of(LayerKind::Csa) > 0 { self.index_heads } else { 0 };
        ranks > 0
            && [self.heads, self.o_groups, self.experts, indexer]
                .iter()
                .all(|parts| parts.is_multiple_of(ranks))
    }
}

/// The weights of a model by what a tensor-parallel split does with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WeightSplit {
    /// Divided among the ranks: query heads, output groups, indexer heads, routed experts.
    pub divided_bytes: u64,
    /// Embedding and head, divided by rows of the vocabulary.
    pub vocabulary_bytes: u64,
    /// The same on every rank: latent and compressor projections, router, norms, streams, the shared expert.
    pub replicated_bytes: u64,
}

impl WeightSplit {
    pub fn of(weights: &Weights) -> Self {
        let vocabulary_bytes = weights.embed.stored_bytes() + weights.head.stored_bytes();
        let all: u64 = weights.matrices().map(Matrix::stored_bytes).sum();
        let divided_bytes = weights.layers.iter().map(divided_bytes).sum();
        let vectors = 4 * weights.vector_len() as u64 + weights.layers.iter().map(table_bytes).sum::<u64>();
        WeightSplit {
            divided_bytes,
            vocabulary_bytes,
            replicated_bytes: all - divided_bytes - vocabulary_bytes + vectors,
        }
    }

    /// Bytes on the fullest of `ranks` ranks.
    pub fn bytes_per_rank(self, ranks: usize) -> u64 {
        let ranks = ranks.max(1) as u64;
        self.divided_bytes.div_ceil(ranks) + self.vocabulary_bytes.div_ceil(ranks) + self.replicated_bytes
    }
}

fn divided_bytes(layer: &Layer) -> u64 {
    let attn = &layer.attn;
    let heads = [&attn.wq_b, &attn.wo_b].into_iter().chain(&attn.wo_a);
    let indexer = attn.indexer.iter().flat_map(|indexer| [&indexer.wq_b, &indexer.weights_proj]);
    let experts = layer.ffn.experts.iter().flat_map(|Expert { w1, w2, w3 }| [w1, w2, w3]);
    heads.chain(indexer).chain(experts).map(Matrix::stored_bytes).sum()
}

fn table_bytes(layer: &Layer) -> u64 {
    match &layer.ffn.routing {
        Routing::Hash { experts_of_token } => size_of_val(experts_of_token.as_slice()) as u64,
        Routing::Learned { .. } => 0,
    }
}

/// A card and the memory that its driver reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Card {
    pub name: &'static str,
    pub memory_bytes: u64,
}

const fn card(name: &'static str, memory_mib: u64) -> Card {
    Card { name, memory_bytes: memory_mib << 20 }
}

/// Cards to answer "where does it fit" for, smallest first.
pub const CARDS: [Card; 6] = [
    card("RTX 5090 32 GB", 32_607),
    card("L40S 48 GB", 46_068),
    card("H100 80 GB", 81_559),
    card("RTX PRO 6000 96 GB", 97_887),
    card("H200 141 GB", 143_771),
    card("B200 180 GB", 183_359),
];

/// Kept free on every card for the driver, kernels and activations.
pub const RESERVED_BYTES: u64 = 4 << 30;

/// Tokens of context that one card of `memory_bytes` holds beside its share of the weights, for one request: every
/// rank keeps the whole cache. `None` when the weights alone do not fit.
pub fn context_tokens(
    spec: &Spec,
    split: WeightSplit,
    ranks: usize,
    formats: CacheFormats,
    rings: RingSlots,
    memory_bytes: u64,
) -> Option<u64> {
    let fixed = split.bytes_per_rank(ranks) + RESERVED_BYTES + spec.request_state(formats, rings).bytes();
    let left = memory_bytes.checked_sub(fixed)?;
    let tokens = left as f64 / spec.cache_bytes_per_token(formats);
    // Without compressed layers nothing grows with the context; positions are the bound then.
    Some((tokens as u64).min(spec.max_positions as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Model;

    #[test]
    fn flash_takes_the_published_bytes() {
        let spec = Spec::flash();
        assert_eq!(spec.cache_bytes_per_token(CacheFormats::PACKED).round(), 3_850.0);
        let state = spec.request_state(CacheFormats::PACKED, RingSlots::LEAST);
        assert_eq!(state.window_bytes, 43 * 128 * 584);
        assert_eq!(state.compressor_bytes, 21 * (64 + 16) * 1024 + 20 * 512 * 1024);
        // Rings for undoing 8 positions: twice the window, twice and 17/16 times the rows.
        let rings = RingSlots { window: 256, csa_rows: 16, hca_rows: 136 };
        let longer = spec.request_state(CacheFormats::PACKED, rings);
        assert_eq!(longer.window_bytes, 2 * state.window_bytes);
        assert_eq!(longer.compressor_bytes, 21 * 2 * (64 + 16) * 1024 + 20 * 544 * 1024);
    }

    #[test]
    fn ranks_must_divide_what_is_split() {
        let spec = Spec::flash();
        assert!([1, 2, 4, 8].iter().all(|ranks| spec.splits_over(*ranks)));
        assert!(!spec.splits_over(0) && !spec.splits_over(3) && !spec.splits_over(16));
    }

    #[test]
    fn a_split_counts_every_stored_byte_once() {
        for (config, weights) in [crate::tests::TINY_FP8FP4, crate::tests::TINY_BF16] {
            let model = Model::from_parts(config, crate::Bytes::from_static(weights)).unwrap();
            let split = WeightSplit::of(&model.weights);
            let used = model.summary.tensor_bytes - model.summary.ignored_bytes;
            // BF16 vectors are held as f32, routing tables as u16: a few hundred bytes either way.
            let total = split.bytes_per_rank(1);
            assert!(total.abs_diff(used) < used / 20, "{total} held, {used} stored");
            let half = split.bytes_per_rank(2);
            assert_eq!(total - half, (split.divided_bytes + split.vocabulary_bytes) / 2);
            assert!(split.bytes_per_rank(0) == total && split.replicated_bytes > 0);
        }
    }

    #[test]
    fn flash_fits_where_its_bytes_do() {
        // From the published shapes: 147.2 GB of experts, 4.5 GB of heads; the MTP block is left out.
        let split = WeightSplit {
            divided_bytes: 151_680_000_000,
            vocabulary_bytes: 2_118_000_000,
            replicated_bytes: 2_190_000_000,
        };
        let tokens = |ranks, card: &str| {
            let card = CARDS.iter().find(|known| known.name.contains(card)).unwrap();
            context_tokens(
                &Spec::flash(),
                split,
                ranks,
                CacheFormats::PACKED,
                RingSlots::LEAST,
                card.memory_bytes,
            )
        };
        assert_eq!((tokens(1, "H200"), tokens(2, "L40S"), tokens(4, "5090")), (None, None, None));
        assert_eq!((tokens(1, "B200"), tokens(2, "6000")), (Some(1 << 20), Some(1 << 20)));
        // 48.3 GB hold 37.9 + 0.5 + 2.2 GB of weights and the reserve; 3.4 GB at 3,850 bytes a token are left.
        assert!(tokens(4, "L40S").is_some_and(|tokens| (800_000..900_000).contains(&tokens)));
        assert!(tokens(2, "H100").is_some_and(|tokens| (400_000..700_000).contains(&tokens)));
    }
}
