//! One part of a plan as launches, in order: embed, layers, head. Reads like `forward.rs` of the CPU backend; nothing is
//! allocated, and nothing here waits for the device but copies of logits, and of sums where devices cannot reach each other.

use super::arguments as args;
use super::decoding::Decode;
use super::experts::{Experts, Routed};
use super::inputs::{Layout, growing_pool};
use super::kernels::{IndexWay, Kernels, SCORE_KEYS, STREAM_SLICE, STREAM_TOKENS};
use super::pools::{DevicePools, RingOf};
use super::products::{Factor, Input, Products, Rounding};
use super::rank::RankError;
use super::stopwatch::Stopwatch;
use super::sums::Sums;
use super::weights::{DeviceCompressor, DeviceIndexer, DeviceLayer, DeviceWeights, Site};
use super::workspace::{LOGIT_ROWS, Workspace};
use crate::gpu::{Buffer, DeviceAddress, Grid};
use overshot_backend::{Family, IndexKeyFormat, KvFormat, Member, Numerics, Shard};
use overshot_kv::TOKENS_PER_PAGE;
use overshot_model::{HEAD_DIM, INDEX_DIM, LayerKind, LayerSpec, Spec, WINDOW};

/// Rows of up to so many tokens leave in the ring all that their own tokens see.
const SHORT_ROW: usize = TOKENS_PER_PAGE - WINDOW;

pub struct Step<'a> {
    pub spec: &'a Spec,
    pub numerics: Numerics,
    pub shard: &'a Shard,
    pub member: Option<&'a Member>,
    pub sums: &'a Sums,
    pub kernels: &'a Kernels,
    pub products: &'a Products,
    pub experts: &'a Experts,
    /// Attention's way where all rows are short, and may be in any company.
    pub decode: Option<Decode<'a>>,
    pub stopwatch: &'a Stopwatch,
    pub weights: &'a DeviceWeights,
    pub pools: &'a DevicePools,
    pub space: &'a mut Workspace,
    pub layout: &'a Layout,
    pub step: args::Step,
    pub rotations: DeviceAddress,
    /// `[draws of the plan, draw_vocab]`; the next one's place comes after `draws_before` of earlier parts.
    pub draw_logits: &'a Buffer<f32>,
    pub draw_vocab: usize,
    pub draws_before: usize,
}

/// Where a layer stands: in the model, and among the layers of its kind.
#[derive(Clone, Copy)]
pub struct Place {
    pub index: usize,
    pub index_in_kind: usize,
    pub spec: LayerSpec,
}

/// Grid of one block for each of so many.
fn each(count: usize) -> Grid {
    Grid(count as u32, 1, 1)
}

/// An input that FP8 and FP4 matrices read rounded, where a mode says so.
fn rounded(x: &Buffer<f32>, cols: usize) -> Input {
    Input { at: x.address(), cols, rounding: Rounding::ByMode }
}

impl Step<'_> {
    /// Adds the logits that the part's rows want to `logits`, `[positions, vocab]`; only rank 0 does.
    pub fn run(&mut self, places: &[Place], logits: &mut Vec<f32>) -> Result<(), RankError> {
        self.embed()?;
        let weights = self.weights;
        let mut before = None;
        for (place, layer) in places.iter().zip(&weights.layers) {
            self.streams(before, Some((layer.hc_attn, layer.attn_norm)), place.index == 0)?;
            self.attention(*place, layer)?;
            self.streams(Some(DeviceAddress::NULL), Some((layer.hc_ffn, layer.ffn_norm)), false)?;
            self.feed_forward(layer)?;
            before = Some(self.space.y_shared.address());
        }
        self.streams(before, None, places.is_empty())?;
        self.head(logits)
    }

    fn tokens(&self) -> usize {
        self.layout.tokens
    }

    fn enter(&self, family: Family) -> Result<(), RankError> {
        Ok(self.stopwatch.enter(family)?)
    }

    fn embed(&mut self) -> Result<(), RankError> {
        self.enter(Family::Embed)?;
        let embed = args::Embed {
            step: self.step,
            embed: self.weights.embed,
            embedded: self.space.embedded.address(),
            rotations: self.rotations,
            first_id: self.shard.vocab.start as i32,
            unused: 0,
        };
        self.kernels.embed.launch(each(self.tokens()), &embed)?;
        let len = self.tokens() * self.spec.hidden_size;
        all_reduce(self.sums, self.member, self.stopwatch, &mut self.space.embedded, len)
    }

    /// Mixes the last layer's output into the streams (`before`: what is added to `y`, if anything), and enters the next
    /// site.
    fn streams(
        &mut self,
        before: Option<DeviceAddress>,
        next: Option<(Site, DeviceAddress)>,
        is_first: bool,
    ) -> Result<(), RankError> {
        self.enter(Family::Streams)?;
        let (space, null) = (&self.space, DeviceAddress::NULL);
        let none = Site { mix: null, base: null, scale: null };
        let (site, gain) = next.unwrap_or((none, null));
        let slices = self.spec.hidden_size.div_ceil(STREAM_SLICE);
        let streams = args::Streams {
            streams: space.streams.address(),
            embedded: if is_first { space.embedded.address() } else { null },
            y: before.map_or(null, |_| space.y.address()),
            also: before.unwrap_or(null),
            mixing: space.mixing.address(),
            mix: site.mix,
            base: site.base,
            scale: site.scale,
            gain,
            x: space.x.address(),
            partial: space.stream_partials.address(),
            hidden: self.spec.hidden_size as i32,
            iterations: self.spec.hc_sinkhorn_iterations as i32,
            rms_eps: self.spec.rms_eps,
            hc_eps: self.spec.hc_eps,
            tokens: self.tokens() as i32,
            slices: slices as i32,
        };
        let grid = Grid(slices as u32, self.tokens().div_ceil(STREAM_TOKENS) as u32, 1);
        self.kernels.mix_streams.launch(grid, &streams)?;
        match next {
            Some(_) => Ok(self.kernels.enter_site.launch(each(self.tokens()), &streams)?),
            None => Ok(()),
        }
    }

    fn dense(&self, input: Input, factors: &[Factor]) -> Result<(), RankError> {
        self.products.dense(self.kernels, input, factors, self.tokens())
    }

    /// Leaves the layer's output in `y`.
    fn attention(&mut self, place: Place, layer: &DeviceLayer) -> Result<(), RankError> {
        let (w, spec) = (&self.space, self.spec);
        let mut factors =
            vec![Factor::new(layer.wq_a, w.qr.address()), Factor::new(layer.wkv, w.latents.address())];
        if let Some(compressor) = &layer.compressor {
            factors.push(Factor::new(compressor.wkv, w.k.address()));
            factors.push(Factor::new(compressor.wgate, w.s.address()));
        }
        if let Some(indexer) = &layer.indexer {
            factors.push(Factor::new(indexer.compressor.wkv, w.index_k.address()));
            factors.push(Factor::new(indexer.compressor.wgate, w.index_s.address()));
            factors.push(Factor::new(indexer.weights_proj, w.index_weights.address()));
        }
        self.enter(Family::Inputs)?;
        self.dense(rounded(&w.x, spec.hidden_size), &factors)?;
        self.latents(place, layer)?;
        self.compress(place, layer)?;

        let w = &self.space;
        let mut factors = vec![Factor::new(layer.wq_b, w.q.address())];
        factors.extend(layer.indexer.iter().map(|i| Factor::new(i.wq_b, w.index_q.address())));
        self.enter(Family::Queries)?;
        self.dense(rounded(&w.qr, spec.q_lora_rank), &factors)?;
        if let Some(indexer) = &layer.indexer {
            self.select(place, indexer)?;
        }
        self.attend(place, layer)?;
        if self.layout.longest_row > SHORT_ROW {
            self.append_window(place)?;
        }
        self.project_out(layer)
    }

    /// Leaves latents of short rows in the ring, too.
    fn latents(&self, place: Place, layer: &DeviceLayer) -> Result<(), RankError> {
        self.enter(Family::Latents)?;
        let latents = args::Latents {
            step: self.step,
            qr: self.space.qr.address(),
            q_norm: layer.q_norm,
            latents: self.space.latents.address(),
            kv_norm: layer.kv_norm,
            packed: self.space.packed.address(),
            window: self.pools.window(place.index),
            q_lora: self.spec.q_lora_rank as i32,
            compressed: i32::from(place.spec.kind != LayerKind::Window),
            format: i32::from(self.numerics.kv == KvFormat::Fp8),
            rms_eps: self.spec.rms_eps,
        };
        Ok(self.kernels.latents.launch(Grid(self.tokens() as u32, 2, 1), &latents)?)
    }

    /// Of long rows, whose own tokens saw what was in the ring before.
    fn append_window(&self, place: Place) -> Result<(), RankError> {
        self.enter(Family::Latents)?;
        let window = args::Window {
            step: self.step,
            latents: self.space.latents.address(),
            packed: self.space.packed.address(),
            window: self.pools.window(place.index),
            long_rows: 1,
            unused: 0,
        };
        Ok(self.kernels.append_window.launch(each(self.tokens()), &window)?)
    }

    /// Entries and index keys that complete in this step, then the rows that later steps need.
    fn compress(&self, place: Place, layer: &DeviceLayer) -> Result<(), RankError> {
        let Some(compressor) = &layer.compressor else { return Ok(()) };
        self.enter(Family::Compress)?;
        let (w, kind) = (&self.space, place.spec.kind);
        let of =
            |c: &DeviceCompressor, k: DeviceAddress, s: DeviceAddress, ring: RingOf, pages, pool, width| {
                let (rings, page_floats, ring_rows) = self.pools.ring(ring);
                args::Compressor {
                    k,
                    s,
                    ape: c.ape,
                    norm: c.norm,
                    rings,
                    page_floats,
                    pages,
                    pool: pool as i32,
                    width: width as i32,
                    channels: c.wkv.rows,
                    ratio: kind.ratio() as i32,
                    ring_rows,
                    is_index: i32::from(width == INDEX_DIM),
                }
            };
        let at = place.index_in_kind;
        let ring = if kind == LayerKind::Hca { RingOf::Hca(at) } else { RingOf::Csa(at) };
        let (k, s, pages) = (w.k.address(), w.s.address(), self.pools.entries(kind, at));
        let mut compress =
            args::Compress { step: self.step, rms_eps: self.spec.rms_eps, ..Default::default() };
        compress.jobs[0] = of(compressor, k, s, ring, pages, growing_pool(kind), HEAD_DIM);
        if let Some(indexer) = &layer.indexer {
            let (k, s, pages) = (w.index_k.address(), w.index_s.address(), self.pools.index_keys(at));
            let pool = args::GrowingPool::IndexKeys;
            compress.jobs[1] = of(&indexer.compressor, k, s, RingOf::Indexer(at), pages, pool, INDEX_DIM);
        }
        let of_kind = usize::from(kind == LayerKind::Hca);
        compress.completing = self.step.completing[of_kind];
        let jobs = 1 + u32::from(layer.indexer.is_some());
        let completing = self.layout.completing[of_kind];
        self.kernels.compress.launch(Grid(completing as u32, jobs, 1), &compress)?;
        Ok(self.kernels.keep_rows.launch(Grid(self.tokens() as u32, jobs, 1), &compress)?)
    }

    /// Chooses the entries of every token, in groups whose scores fit.
    fn select(&mut self, place: Place, indexer: &DeviceIndexer) -> Result<(), RankError> {
        let (tokens, spec) = (self.tokens(), self.spec);
        let heads = indexer.weights_proj.rows as u32;
        let w = &mut *self.space;
        let visible = self.layout.longest_context / LayerKind::Csa.ratio();
        let mut index = args::Index {
            step: self.step,
            q: w.index_q.address(),
            weights: w.index_weights.address(),
            scores: w.scores.address(),
            selected: w.selected.address(),
            counts: w.counts.address(),
            keys: self.pools.index_keys(place.index_in_kind),
            heads: heads as i32,
            top: spec.index_topk as i32,
            score_stride: visible as i32,
            first: 0,
            end: tokens as i32,
            scale: (INDEX_DIM as f32).powf(-0.5) * (spec.index_heads as f32).powf(-0.5),
        };
        if visible <= spec.index_topk {
            self.stopwatch.enter(Family::IndexSelect)?;
            return Ok(self.kernels.index_select.launch(each(tokens), &index)?);
        }
        let is_f32 = self.numerics.index_keys == IndexKeyFormat::F32;
        let tiles = self.kernels.index_tiles.as_ref().filter(|_| !is_f32);
        self.stopwatch.enter(Family::IndexScores)?;
        match tiles {
            Some(tiles) => tiles.queries(&index)?,
            None => self.kernels.index_queries.launch(Grid(heads, tokens as u32, 1), &index)?,
        }
        let group = (w.scores.len() / visible).max(1);
        for first in (0..tokens).step_by(group) {
            let count = group.min(tokens - first);
            (index.first, index.end) = (first as i32, (first + count) as i32);
            let keys = visible.div_ceil(SCORE_KEYS) as u32;
            self.stopwatch.enter(Family::IndexScores)?;
            match tiles {
                Some(tiles) => tiles.scores(&index, IndexWay::of_step(&index.step))?,
                None => self.kernels.index_scores.launch(Grid(keys, count as u32, 1), &index)?,
            }
            all_reduce(self.sums, self.member, self.stopwatch, &mut w.scores, count * visible)?;
            self.stopwatch.enter(Family::IndexSelect)?;
            self.kernels.index_select.launch(each(count), &index)?;
        }
        Ok(())
    }

    fn attend(&self, place: Place, layer: &DeviceLayer) -> Result<(), RankError> {
        let (w, kind, heads) = (&self.space, place.spec.kind, self.shard.heads.len());
        let (entries, family) = match kind {
            LayerKind::Window => (args::Entries::None, Family::WindowAttention),
            LayerKind::Csa => (args::Entries::Selected, Family::CsaAttention),
            LayerKind::Hca => (args::Entries::All, Family::HcaAttention),
        };
        self.enter(family)?;
        let attention = args::Attention {
            step: self.step,
            q: w.q.address(),
            sink: layer.sink,
            latents: w.latents.address(),
            packed: w.packed.address(),
            window: self.pools.window(place.index),
            entries: match kind {
                LayerKind::Window => args::Pages::default(),
                _ => self.pools.entries(kind, place.index_in_kind),
            },
            selected: w.selected.address(),
            counts: w.counts.address(),
            out: w.heads_out.address(),
            heads: heads as i32,
            selected_stride: self.spec.index_topk as i32,
            kind: entries as i32,
            pool: growing_pool(kind) as i32,
            ratio: kind.ratio() as i32,
            compressed: i32::from(kind != LayerKind::Window),
            rms_eps: self.spec.rms_eps,
            scale: (HEAD_DIM as f32).powf(-0.5),
        };
        if let Some(decode) = &self.decode {
            return decode.attend(kind, &attention);
        }
        if self.numerics.kv == KvFormat::F32 {
            let grid = Grid(heads as u32, self.tokens() as u32, 1);
            return Ok(self.kernels.attention.launch(grid, &attention)?);
        }
        Ok(self.kernels.attention_tiles.launch(&attention)?)
    }

    /// The grouped output projection, then the common one.
    fn project_out(&mut self, layer: &DeviceLayer) -> Result<(), RankError> {
        self.enter(Family::Outputs)?;
        let (tokens, w) = (self.tokens(), &self.space);
        let (groups, rank) = (layer.wo_a.len(), self.spec.o_lora_rank);
        let of_group = |(group, matrix): (usize, &args::Matrix)| Factor {
            matrix: *matrix,
            first_col: group * matrix.cols as usize,
            out: w.z.at(group * rank),
            out_stride: groups * rank,
        };
        let factors: Vec<Factor> = layer.wo_a.iter().enumerate().map(of_group).collect();
        // Not rounded in any mode: the publisher keeps this one matrix in BF16.
        let heads = self.shard.heads.len() * HEAD_DIM;
        self.dense(Input { at: w.heads_out.address(), cols: heads, rounding: Rounding::Never }, &factors)?;
        self.dense(rounded(&w.z, groups * rank), &[Factor::new(layer.wo_b, w.y.address())])?;
        let len = tokens * self.spec.hidden_size;
        all_reduce(self.sums, self.member, self.stopwatch, &mut self.space.y, len)
    }

    /// Leaves the routed experts' sum in `y`, the shared one's output in `y_shared`.
    fn feed_forward(&mut self, layer: &DeviceLayer) -> Result<(), RankError> {
        let (tokens, spec, w) = (self.tokens(), self.spec, &self.space);
        self.enter(Family::Gate)?;
        self.dense(rounded(&w.x, spec.hidden_size), &[Factor::new(layer.gate, w.gate.address())])?;
        let route = args::Route {
            step: self.step,
            scores: w.gate.address(),
            table: layer.table,
            bias: layer.bias,
            ids: w.ids.address(),
            weights: w.weights.address(),
            experts: spec.experts as i32,
            per_token: spec.experts_per_token as i32,
            factor: spec.routed_scaling_factor,
            unused: 0,
        };
        self.enter(Family::Route)?;
        self.kernels.route.launch(each(tokens), &route)?;
        let routed = Routed {
            x: w.x.address(),
            ids: w.ids.address(),
            weights: w.weights.address(),
            y: w.y.address(),
            y_shared: w.y_shared.address(),
        };
        self.experts.run(self.kernels, self.products, layer, routed, tokens, self.stopwatch)?;
        let len = tokens * spec.hidden_size;
        all_reduce(self.sums, self.member, self.stopwatch, &mut self.space.y, len)
    }

    fn head(&mut self, logits: &mut Vec<f32>) -> Result<(), RankError> {
        self.enter(Family::Head)?;
        let spec = self.spec;
        for (group, draws) in self.layout.draws.chunks(LOGIT_ROWS).enumerate() {
            let first = self.draws_before + group * LOGIT_ROWS;
            // Beside the place of the other ranks' tokens, where those have one.
            let own = if self.draw_vocab == spec.vocab_size { self.shard.vocab.start } else { 0 };
            self.logits_of(draws, self.draw_logits.at(first * self.draw_vocab + own), self.draw_vocab)?;
        }
        for wanted in self.layout.wanted.chunks(LOGIT_ROWS) {
            self.logits_of(wanted, self.space.logits.address(), self.shard.vocab.len())?;
            let mine = self.space.logits.copy_out_range(0..wanted.len() * self.shard.vocab.len())?;
            match self.member {
                None => logits.extend(mine),
                Some(member) => {
                    let is_rank_0 = member.rank() == 0;
                    let mut all = vec![0.0; if is_rank_0 { wanted.len() * spec.vocab_size } else { 0 }];
                    member.gather_columns(mine, wanted.len(), is_rank_0.then_some(&mut all))?;
                    logits.extend(all);
                }
            }
        }
        Ok(())
    }

    /// The rank's logits of up to `LOGIT_ROWS` tokens.
    fn logits_of(&mut self, tokens: &[i32], out: DeviceAddress, out_stride: usize) -> Result<(), RankError> {
        self.space.wanted.copy_in(tokens)?;
        let (spec, weights, w) = (self.spec, self.weights, &self.space);
        let head = args::Head {
            streams: w.streams.address(),
            wanted: w.wanted.address(),
            mix: weights.hc_head.mix,
            base: weights.hc_head.base,
            scale: weights.hc_head.scale,
            gain: weights.norm,
            out: w.hidden.address(),
            hidden: spec.hidden_size as i32,
            rms_eps: spec.rms_eps,
            hc_eps: spec.hc_eps,
            unused: 0,
        };
        self.kernels.collapse_for_head.launch(each(tokens.len()), &head)?;
        let input = Input { at: w.hidden.address(), cols: spec.hidden_size, rounding: Rounding::Never };
        let factor = Factor { out_stride, ..Factor::new(weights.head, out) };
        self.products.dense(self.kernels, input, &[factor], tokens.len())
    }
}

/// Leaves the sum of all ranks' first `len` numbers in `x`.
fn all_reduce(
    sums: &Sums,
    member: Option<&Member>,
    stopwatch: &Stopwatch,
    x: &mut Buffer<f32>,
    len: usize,
) -> Result<(), RankError> {
    if member.is_some() {
        stopwatch.enter(Family::Reduce)?;
    }
    sums.all_reduce(member, x, len)
}
