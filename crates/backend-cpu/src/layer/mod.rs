//! One layer: streams in, attention, streams mixed, experts, streams mixed. One file per kind of work.

mod attention;
mod compressor;
mod experts;
mod indexer;
mod streams;

pub use streams::collapse_for_head;

use crate::step::Step;
use overshot_backend::PeerGone;
use overshot_model::{Layer, LayerSpec};

/// Where a layer stands: in the model, and among the layers of its kind (which addresses the pools).
#[derive(Clone, Copy)]
pub struct LayerPlace {
    pub index: usize,
    pub index_in_kind: usize,
    pub spec: LayerSpec,
}

/// Passes the streams (`[tokens, 4, hidden]`) of all tokens of a step through one layer, in place.
pub fn forward(
    step: &mut Step,
    place: LayerPlace,
    layer: &Layer,
    streams: &mut [f32],
) -> Result<(), PeerGone> {
    let site = streams::enter(step, place, "attn_hc", &layer.hc_attn, &layer.attn_norm, streams);
    let y = attention::forward(step, place, &layer.attn, &site.x)?;
    step.capture(place.index, "attn_out", &y);
    streams::leave(step, site, y, streams);

    let site = streams::enter(step, place, "ffn_hc", &layer.hc_ffn, &layer.ffn_norm, streams);
    let y = experts::forward(step, place, &layer.ffn, &site.x)?;
    step.capture(place.index, "ffn_out", &y);
    streams::leave(step, site, y, streams);
    step.capture(place.index, "out", streams);
    Ok(())
}
