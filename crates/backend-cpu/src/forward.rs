//! A forward pass: embed, layers, head.

use crate::layer::{self, LayerPlace};
use crate::min_parallel_rows;
use crate::norm::rms_norm;
use crate::step::Step;
use overshot_backend::PeerGone;
use overshot_model::{STREAMS, Spec, Weights};
use rayon::prelude::*;

/// The logits that the rows want, `[positions, vocab]`, row after row. Several ranks give them to rank 0 alone: the
/// others have none.
pub fn forward(step: &mut Step, weights: &Weights, places: &[LayerPlace]) -> Result<Vec<f32>, PeerGone> {
    let mut streams = embed(step, weights)?;
    for &place in places {
        layer::forward(step, place, &weights.layers[place.index], &mut streams)?;
    }
    let logits = head(step, weights, &streams)?;
    step.buffers.give([streams]);
    Ok(logits)
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
fn embed(step: &mut Step, weights: &Weights) -> Result<Vec<f32>, PeerGone> {
    let width = step.spec.hidden_size;
    let mut streams = step.buffers.take(step.tokens.len() * STREAMS * width);
    let firsts = streams.chunks_exact_mut(STREAMS * width).map(|streams| &mut streams[..width]);
    match step.member {
        None => {
            for (token, first) in step.tokens.iter().zip(firsts) {
                weights.embed.decode_row(token.id as usize, first);
            }
        }
        Some(_) => {
            let embedded = embed_across(step, weights)?;
            firsts.zip(embedded.chunks_exact(width)).for_each(|(first, row)| first.copy_from_slice(row));
            step.buffers.give([embedded]);
        }
    }
    for streams in streams.chunks_exact_mut(STREAMS * width) {
        let (first, rest) = streams.split_at_mut(width);
        rest.chunks_exact_mut(width).for_each(|stream| stream.copy_from_slice(first));
    }
    Ok(streams)
}

/// Each token's embedding comes from the rank that has it; the others add nothing.
fn embed_across(step: &mut Step, weights: &Weights) -> Result<Vec<f32>, PeerGone> {
    let width = step.spec.hidden_size;
    let mut embedded = step.buffers.take_zeroed(step.tokens.len() * width);
    for (token, row) in step.tokens.iter().zip(embedded.chunks_exact_mut(width)) {
        if step.shard.vocab.contains(&(token.id as usize)) {
            weights.embed.decode_row(token.id as usize, row);
        }
    }
    step.all_reduce(embedded)
}

/// Collapses the streams of the wanted positions and applies the head.
fn head(step: &mut Step, weights: &Weights, streams: &[f32]) -> Result<Vec<f32>, PeerGone> {
    let (isa, spec) = (step.isa, step.spec);
    let width = STREAMS * spec.hidden_size;
    let mut picked: Vec<f32> = Vec::new();
    let mut first = 0;
    for row in step.rows {
        let wanted = row.wanted_positions();
        picked.extend_from_slice(&streams[(first + wanted.start) * width..(first + wanted.end) * width]);
        first += row.tokens.len();
    }
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
    let [logits] = step.project(&hidden, [&weights.head.slice_rows(step.shard.vocab.clone())]);
    let positions = hidden.len() / spec.hidden_size;
    step.buffers.give([hidden, mixes]);
    gather_logits(step, logits, positions)
}

fn gather_logits(step: &mut Step, mine: Vec<f32>, positions: usize) -> Result<Vec<f32>, PeerGone> {
    let Some(member) = step.member else { return Ok(mine) };
    let wanted = if member.rank() == 0 { positions * step.spec.vocab_size } else { 0 };
    let mut all = step.buffers.take(wanted);
    member.gather_columns(mine, positions, (wanted > 0).then_some(&mut all))?;
    Ok(all)
}
