//! A forward pass: embed, layers, head, results.

use crate::buffers::Buffers;
use crate::capture::Capture;
use crate::layer::{self, LayerPlace};
use crate::norm::rms_norm;
use crate::pools::Pools;
use crate::step::{Rope, Step};
use crate::{Isa, min_parallel_rows};
use overshot_backend::{Numerics, Row, RowResult, Sampler, Wanted};
use overshot_model::{Model, STREAMS, Spec, Weights};
use rayon::prelude::*;

/// What stays the same from step to step.
pub struct Machinery<'a> {
    pub model: &'a Model,
    pub isa: Isa,
    pub numerics: Numerics,
    pub rope: &'a Rope,
    pub places: &'a [LayerPlace],
}

pub fn forward(
    fixed: Machinery,
    rows: &[Row],
    pools: &mut Pools,
    buffers: &mut Buffers,
    capture: Option<&mut Capture>,
) -> Vec<RowResult> {
    let Machinery { model, isa, numerics, rope, places } = fixed;
    let tokens = Step::tokens_of(rows, rope);
    let mut step = Step { isa, spec: &model.spec, numerics, rope, rows, tokens, pools, buffers, capture };
    let mut streams = embed(&mut step, &model.weights);
    for &place in places {
        layer::forward(&mut step, place, &model.weights.layers[place.index], &mut streams);
    }
    let results = finish(&mut step, &model.weights, &streams);
    step.buffers.give([streams]);
    results
}

pub fn places(spec: &Spec) -> Vec<LayerPlace> {
    (0..spec.layers.len())
        .map(|index| {
            let kind = spec.layers[index].kind;
            let index_in_kind = spec.layers_of(kind).take_while(|&other| other < index).count();
            LayerPlace { index, index_in_kind, spec: spec.layers[index] }
        })
        .collect()
}

/// Every stream of a token starts as its embedding: `[tokens, 4, hidden]`.
fn embed(step: &mut Step, weights: &Weights) -> Vec<f32> {
    let width = step.spec.hidden_size;
    let mut streams = step.buffers.take(step.tokens.len() * STREAMS * width);
    for (token, streams) in step.tokens.iter().zip(streams.chunks_exact_mut(STREAMS * width)) {
        let (first, rest) = streams.split_at_mut(width);
        weights.embed.decode_row(token.id as usize, first);
        rest.chunks_exact_mut(width).for_each(|stream| stream.copy_from_slice(first));
    }
    streams
}

/// Token indices (within the step) whose logits a row wants.
fn wanted_tokens(row: &Row, first: usize) -> std::ops::Range<usize> {
    let end = first + row.tokens.len();
    match row.wanted {
        Wanted::Nothing => end..end,
        Wanted::Token { .. } | Wanted::LastLogits => end - 1..end,
        Wanted::AllLogits => first..end,
    }
}

/// Collapses the streams of the wanted tokens, applies the head, and gives each row its logits or its draw.
fn finish(step: &mut Step, weights: &Weights, streams: &[f32]) -> Vec<RowResult> {
    let (isa, spec) = (step.isa, step.spec);
    let mut first = 0;
    let mut wanted = Vec::with_capacity(step.rows.len());
    for row in step.rows {
        wanted.push(wanted_tokens(row, first));
        first += row.tokens.len();
    }
    let width = STREAMS * spec.hidden_size;
    let picked: Vec<f32> = wanted
        .iter()
        .flat_map(|tokens| &streams[tokens.start * width..tokens.end * width])
        .copied()
        .collect();
    let mut hidden = step.buffers.take(picked.len() / STREAMS);
    let [mixes] = step.project(&picked, [&weights.hc_head.mix]);
    hidden
        .par_chunks_exact_mut(spec.hidden_size)
        .zip(picked.par_chunks_exact(width))
        .zip(mixes.par_chunks_exact(STREAMS))
        .with_min_len(min_parallel_rows(width))
        .for_each(|((hidden, streams), mixes)| {
            layer::collapse_for_head(isa, spec, &weights.hc_head, mixes, streams, hidden);
            rms_norm(isa, hidden, &weights.norm, spec.rms_eps);
        });
    if let Some(capture) = &mut step.capture {
        capture.append_global("final_hidden", &hidden);
    }
    let [logits] = step.project(&hidden, [&weights.head]);
    let mut rest = logits.as_slice();
    let mut sampler = Sampler::default();
    let results = step
        .rows
        .iter()
        .zip(&wanted)
        .map(|(row, tokens)| {
            let (logits, others) = rest.split_at(tokens.len() * spec.vocab_size);
            rest = others;
            result_of(row, logits, &mut sampler)
        })
        .collect();
    step.buffers.give([hidden, mixes, logits]);
    results
}

fn result_of(row: &Row, logits: &[f32], sampler: &mut Sampler) -> RowResult {
    match &row.wanted {
        Wanted::Nothing => RowResult::default(),
        Wanted::LastLogits | Wanted::AllLogits => {
            RowResult { logits: logits.to_vec(), ..RowResult::default() }
        }
        Wanted::Token { sampling, seen, .. } => {
            match sampler.sample(logits, sampling, seen, row.start + row.tokens.len()) {
                Ok(sampled) => RowResult { tokens: vec![sampled], ..RowResult::default() },
                Err(error) => RowResult { failure: Some(error.into()), ..RowResult::default() },
            }
        }
    }
}
