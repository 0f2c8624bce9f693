//! The least time that a step can take on this machine: `max(bytes it must read / read rate, operations it must do /
//! multiply-add peak)`. Bytes and operations follow from the model; the two rates are measured. What a step really takes is
//! for whoever measures steps.

mod machine;

pub use machine::Machine;

use overshot_model::{HEAD_DIM, INDEX_DIM, LayerKind, Matrix, Model, STREAMS, Spec, WINDOW};

/// One kind of step: so many sequences, so many tokens each, behind so many positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepShape {
    pub rows: usize,
    /// Of each row.
    pub tokens: usize,
    /// Positions before a row's first token.
    pub context: usize,
    /// Rows that draw a token, or want logits.
    pub drawn: usize,
}

/// Bytes that a step must read at least once, and float operations that it must do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    pub bytes: f64,
    pub flops: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MachineLimits {
    pub read_bytes_per_s: f64,
    /// 2 a multiply-add.
    pub flops_per_s: f64,
}

impl MachineLimits {
    /// Seconds that reading takes, and seconds that computing takes: the limit is the larger.
    pub fn seconds(&self, work: Work) -> (f64, f64) {
        (work.bytes / self.read_bytes_per_s, work.flops / self.flops_per_s)
    }

    pub fn limit_s(&self, work: Work) -> f64 {
        let (reading, computing) = self.seconds(work);
        reading.max(computing)
    }
}

/// Counts matrices and attention, not norms and activations; of the cache no bytes, which long contexts would add.
/// Experts are as many distinct ones as uniform routing touches in the mean.
pub fn work(model: &Model, shape: StepShape) -> Work {
    let spec = &model.spec;
    let StepShape { rows, tokens, context, drawn } = shape;
    let count = (rows * tokens) as f64;
    let share = spec.experts_per_token as f64 / spec.experts as f64;
    let touched = 1.0 - (1.0 - share).powf(count);
    let (mut bytes, mut flops) = (0.0, 0.0);
    for layer in &model.weights.layers {
        let experts = layer.ffn.experts.iter().flat_map(|expert| [&expert.w1, &expert.w2, &expert.w3]);
        let routed = Size::of(experts);
        let all = Size::of(layer.matrices());
        bytes += all.bytes - routed.bytes + touched * routed.bytes;
        flops += 2.0 * count * (all.weights - routed.weights + share * routed.weights);
    }
    for layer in &spec.layers {
        for token in 0..tokens {
            flops += rows as f64 * attention_flops(spec, layer.kind, context + token);
        }
    }
    flops += count * (spec.layers.len() * 2 * (STREAMS + 1) * STREAMS * spec.hidden_size * 2) as f64;
    if drawn > 0 {
        let head = Size::of([&model.weights.head]);
        bytes += head.bytes;
        flops += 2.0 * drawn as f64 * head.weights;
    }
    Work { bytes, flops }
}

/// Bytes of all matrices that steps read as a whole: what caches would have to hold.
pub fn working_set_bytes(model: &Model) -> u64 {
    // Of the embedding a step reads a few rows.
    model.weights.matrices().map(Matrix::stored_bytes).sum::<u64>() - model.weights.embed.stored_bytes()
}

struct Size {
    bytes: f64,
    weights: f64,
}

impl Size {
    fn of<'a>(matrices: impl IntoIterator<Item = &'a Matrix>) -> Self {
        matrices.into_iter().fold(Size { bytes: 0.0, weights: 0.0 }, |size, matrix| Size {
            bytes: size.bytes + matrix.stored_bytes() as f64,
            weights: size.weights + (matrix.rows * matrix.cols) as f64,
        })
    }
}

fn attention_flops(spec: &Spec, kind: LayerKind, position: usize) -> f64 {
    let window = (position + 1).min(WINDOW);
    let (entries, index_flops) = match kind {
        LayerKind::Window => (0, 0),
        LayerKind::Hca => ((position + 1) / 128, 0),
        LayerKind::Csa => {
            let visible = (position + 1) / 4;
            let scored = if visible > spec.index_topk { visible } else { 0 };
            (visible.min(spec.index_topk), scored * spec.index_heads * INDEX_DIM * 2)
        }
    };
    ((window + entries) * spec.heads * HEAD_DIM * 4 + index_flops) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_of_reading_and_computing_is_the_limit() {
        let limits = MachineLimits { read_bytes_per_s: 10.0, flops_per_s: 100.0 };
        assert_eq!(limits.limit_s(Work { bytes: 30.0, flops: 100.0 }), 3.0);
        assert_eq!(limits.limit_s(Work { bytes: 30.0, flops: 900.0 }), 9.0);
    }
}
