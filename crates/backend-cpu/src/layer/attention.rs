//! Multi-query attention over one latent per token: the window, and the compressed entries that a query may see.

use super::{LayerPlace, compressor, indexer};
use crate::matmul::{self, Input, Job, Output, Rows};
use crate::norm::{inverse_rms, rms_norm, rms_norm_rows};
use crate::simd::{Dots, Softmax, WeightedSum};
use crate::step::{Step, Token};
use overshot_backend::PeerGone;
use overshot_kv::{Pool, TOKENS_PER_PAGE};
use overshot_model::{Attention, HEAD_DIM, LayerKind, Matrix, WINDOW};
use rayon::prelude::*;
use std::ops::Range;

/// Tokens of a row whose latents enter the window ring before any of them attends. The ring keeps the last
/// `TOKENS_PER_PAGE` positions, and the first token of a wave still needs the `WINDOW - 1` before it.
const WAVE: usize = TOKENS_PER_PAGE - WINDOW;

/// Tokens whose queries are held at a time: 16 MiB for 64 heads.
const GROUP_TOKENS: usize = 128;

/// Latents unpacked at a time: 64 KiB, in the second-level cache for all heads.
const BLOCK_KEYS: usize = 32;

/// The heads of one rank, and what their outputs pass through.
struct Heads<'a> {
    /// `[heads * 512, q_lora]`
    wq_b: Matrix,
    sink: &'a [f32],
    /// Of the rank's groups.
    wo_a: &'a [Matrix],
    /// Columns of `wo_b` that meet these groups.
    wo_b_columns: Range<usize>,
}

impl<'a> Heads<'a> {
    fn of(step: &Step, attn: &'a Attention) -> Self {
        let (heads, groups) = (&step.shard.heads, &step.shard.groups);
        let rank = step.spec.o_lora_rank;
        Heads {
            wq_b: attn.wq_b.slice_rows(heads.start * HEAD_DIM..heads.end * HEAD_DIM),
            sink: &attn.sink[heads.clone()],
            wo_a: &attn.wo_a[groups.clone()],
            wo_b_columns: groups.start * rank..groups.end * rank,
        }
    }

    /// Low-rank outputs of a token.
    fn z_width(&self) -> usize {
        self.wo_b_columns.len()
    }
}

/// `x` is the normed input `[tokens, hidden]`; returns the layer's output, same shape.
pub fn forward(
    step: &mut Step,
    place: LayerPlace,
    attn: &Attention,
    x: &[f32],
) -> Result<Vec<f32>, PeerGone> {
    let (spec, isa, kind) = (step.spec, step.isa, place.spec.kind);
    let [mut qr, mut latents] = step.project(x, [&attn.wq_a, &attn.wkv]);
    rms_norm_rows(isa, &mut qr, &attn.q_norm, spec.rms_eps);
    if let Some(compressor) = &attn.compressor {
        let [k, s] = step.project(x, [&compressor.wkv, &compressor.wgate]);
        compressor::forward(step, place, compressor, &k, &s);
        step.buffers.give([k, s]);
    }
    let selected = match &attn.indexer {
        None => None,
        Some(indexer) => {
            let (wq_b, weights_proj) = indexer::heads_of(step, indexer);
            let [k, s, mut weights] =
                step.project(x, [&indexer.compressor.wkv, &indexer.compressor.wgate, &weights_proj]);
            let [mut q] = step.project(&qr, [&wq_b]);
            let products = indexer::Products { q: &mut q, weights: &mut weights, k: &k, s: &s };
            let selected = indexer::forward(step, place, indexer, products)?;
            step.buffers.give([k, s, weights, q]);
            Some(selected)
        }
    };
    for (latent, token) in latents.chunks_exact_mut(HEAD_DIM).zip(&step.tokens) {
        rms_norm(isa, latent, &attn.kv_norm, spec.rms_eps);
        token.rotation(kind).apply(latent);
    }
    let heads = Heads::of(step, attn);
    let z = attend_in_waves(step, place, &heads, selected.as_deref(), &qr, &latents);
    let y = step.project_columns(&z, &attn.wo_b, heads.wo_b_columns);
    step.buffers.give([qr, latents, z]);
    step.all_reduce(y)
}

/// Appends latents to the window and attends, `WAVE` tokens of each row at a time. Returns the low-rank outputs of
/// the rank's groups of heads, `[tokens, groups * o_lora]`.
fn attend_in_waves(
    step: &mut Step,
    place: LayerPlace,
    heads: &Heads,
    selected: Option<&[Vec<u32>]>,
    qr: &[f32],
    latents: &[f32],
) -> Vec<f32> {
    let width = heads.z_width();
    let mut z = step.buffers.take(step.tokens.len() * width);
    let qr = step.input(&heads.wq_b, qr);
    let longest = step.rows.iter().map(|row| row.tokens.len()).max().unwrap_or(0);
    for wave in (0..longest).step_by(WAVE) {
        let mut in_wave: Vec<u32> = Vec::new();
        for (index, token) in step.tokens.iter().enumerate() {
            let row = &step.rows[token.row];
            if (wave..wave + WAVE).contains(&(token.position - row.start)) {
                let (page, slot) = (row.pages.pages(Pool::Window)[0], token.position % TOKENS_PER_PAGE);
                step.pools.window.write(place.index, page, slot, &latents[index * HEAD_DIM..][..HEAD_DIM]);
                in_wave.push(index as u32);
            }
        }
        for tokens in in_wave.chunks(GROUP_TOKENS) {
            let group = attend_group(step, place, heads, selected, &qr, tokens);
            for (&token, row) in tokens.iter().zip(group.chunks_exact(width)) {
                z[token as usize * width..][..width].copy_from_slice(row);
            }
            step.buffers.give([group]);
        }
    }
    z
}

/// Queries, attention and the first output projection of some tokens of the step.
fn attend_group(
    step: &mut Step,
    place: LayerPlace,
    heads: &Heads,
    selected: Option<&[Vec<u32>]>,
    qr: &Input,
    tokens: &[u32],
) -> Vec<f32> {
    let (spec, isa, kind) = (step.spec, step.isa, place.spec.kind);
    let (matrix, sink) = (&heads.wq_b, heads.sink);
    let width = matrix.rows;
    let mut q = step.buffers.take(tokens.len() * width);
    let output = Output::new(&mut q, width);
    let columns = 0..matrix.cols;
    matmul::run(isa, vec![Job { matrix, columns, input: qr, rows: Rows::Picked(tokens), output }]);
    let mut heads_out = step.buffers.take_zeroed(q.len());
    let groups = head_groups(sink.len(), tokens.len());
    let step_now = &*step;
    heads_out
        .par_chunks_exact_mut(width / groups)
        .zip(q.par_chunks_exact_mut(width / groups))
        .enumerate()
        .for_each(|(task, (out, q))| {
            let (index, group) = (tokens[task / groups] as usize, task % groups);
            let token = &step_now.tokens[index];
            for head in q.chunks_exact_mut(HEAD_DIM) {
                let inverse = inverse_rms(isa, head, spec.rms_eps);
                head.iter_mut().for_each(|x| *x *= inverse);
                token.rotation(kind).apply(head);
            }
            let keys = Keys::of(step_now, place, token, selected.map(|s| s[index].as_slice()));
            attend(step_now, &keys, q, &sink[group * sink.len() / groups..], out);
            for head in out.chunks_exact_mut(HEAD_DIM) {
                token.rotation(kind).undo(head);
            }
        });
    step.buffers.give([q]);
    project_groups(step, heads.wo_a, heads_out)
}

/// Tasks per token: one when there are tokens enough for all threads, else as many as divide the heads evenly.
fn head_groups(heads: usize, tokens: usize) -> usize {
    let wanted = (2 * rayon::current_num_threads()).div_ceil(tokens);
    (1..=wanted.min(heads)).rev().find(|groups| heads.is_multiple_of(*groups)).unwrap_or(1)
}

/// The latents one query sees: window positions ascending, then entries ascending. The order is part of the result's
/// bits, so it depends on the position alone.
struct Keys<'a> {
    step: &'a Step<'a>,
    place: LayerPlace,
    token: &'a Token,
    window_start: usize,
    window: usize,
    entries: Entries<'a>,
}

enum Entries<'a> {
    /// The first so many.
    All(usize),
    Picked(&'a [u32]),
}

impl<'a> Keys<'a> {
    fn of(step: &'a Step, place: LayerPlace, token: &'a Token, selected: Option<&'a [u32]>) -> Self {
        let window_start = (token.position + 1).saturating_sub(WINDOW);
        let entries = match (selected, place.spec.kind) {
            (Some(picked), _) => Entries::Picked(picked),
            (None, LayerKind::Window) => Entries::All(0),
            (None, kind) => Entries::All((token.position + 1) / kind.ratio()),
        };
        Keys { step, place, token, window_start, window: token.position + 1 - window_start, entries }
    }

    fn len(&self) -> usize {
        self.window
            + match self.entries {
                Entries::All(count) => count,
                Entries::Picked(picked) => picked.len(),
            }
    }

    fn read(&self, index: usize, out: &mut [f32]) {
        let Step { isa, pools, .. } = self.step;
        let table = self.step.pages(self.token);
        if index < self.window {
            let slot = (self.window_start + index) % TOKENS_PER_PAGE;
            return pools.window.read(*isa, self.place.index, table.pages(Pool::Window)[0], slot, out);
        }
        let entry = match self.entries {
            Entries::All(_) => index - self.window,
            Entries::Picked(picked) => picked[index - self.window] as usize,
        };
        let (pool, latents) = match self.place.spec.kind {
            LayerKind::Hca => (Pool::Hca, &pools.hca),
            _ => (Pool::Csa, &pools.csa),
        };
        let (page, slot) = compressor::entry_address(table.pages(pool), entry, latents.slots_per_page);
        latents.read(*isa, self.place.index_in_kind, page, slot, out);
    }
}

/// Attention of some heads of one token: `q` and `out` are `[heads, 512]`, `out` zero on entry.
///
/// Two passes over the keys, scores first: the maximum is then exact and no output is ever rescaled. Latents are
/// unpacked twice, which is little beside the arithmetic of 64 heads on each.
fn attend(step: &Step, keys: &Keys, q: &[f32], sinks: &[f32], out: &mut [f32]) {
    let (isa, heads, count) = (step.isa, q.len() / HEAD_DIM, keys.len());
    let mut block = vec![0.0; BLOCK_KEYS * HEAD_DIM];
    let mut scores = vec![0.0; heads * count];
    let mut each_block = |apply: &mut dyn FnMut(usize, &[f32])| {
        for first in (0..count).step_by(BLOCK_KEYS) {
            let block = &mut block[..(count - first).min(BLOCK_KEYS) * HEAD_DIM];
            for (i, key) in block.chunks_exact_mut(HEAD_DIM).enumerate() {
                keys.read(first + i, key);
            }
            apply(first, block);
        }
    };
    each_block(&mut |first, block| {
        let out = &mut scores[first..];
        isa.run(Dots { a: q, b: block, width: HEAD_DIM, out, out_stride: count });
    });
    let scale = (HEAD_DIM as f32).powf(-0.5);
    for (scores, &sink) in scores.chunks_exact_mut(count).zip(sinks) {
        isa.run(Softmax { scores, scale, sink });
    }
    each_block(&mut |first, block| {
        let weights = &scores[first..];
        isa.run(WeightedSum { weights, weights_stride: count, values: block, width: HEAD_DIM, out });
    });
}

/// The grouped output projection: each run of heads through its own `wo_a`.
fn project_groups(step: &mut Step, wo_a: &[Matrix], heads_out: Vec<f32>) -> Vec<f32> {
    let groups = wo_a.len();
    let (cols, rank) = (wo_a[0].cols, wo_a[0].rows);
    let tokens = heads_out.len() / (groups * cols);
    let mut z = step.buffers.take(tokens * groups * rank);
    // Not rounded in any mode: the publisher keeps this one matrix in BF16.
    let inputs: Vec<Input> = wo_a
        .iter()
        .enumerate()
        .map(|(group, matrix)| {
            Input::new(matrix.format, &heads_out, groups * cols, group * cols..(group + 1) * cols)
        })
        .collect();
    let jobs = wo_a
        .iter()
        .zip(&inputs)
        .zip(Output::side_by_side(&mut z, groups, rank))
        .map(|((matrix, input), output)| Job {
            matrix,
            columns: 0..cols,
            input,
            rows: Rows::First(tokens),
            output,
        })
        .collect();
    matmul::run(step.isa, jobs);
    drop(inputs);
    step.buffers.give([heads_out]);
    z
}
