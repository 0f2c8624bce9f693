//! Manifold-constrained hyper-connections: four residual streams that a site collapses into one input, and into
//! which it mixes its output. There is no other residual.

use super::LayerPlace;
use crate::norm::{inverse_rms, rms_norm};
use crate::simd::Combine;
use crate::step::Step;
use crate::{Isa, min_parallel_rows};
use overshot_model::{HyperConnection, STREAMS, Spec};
use rayon::prelude::*;

/// Mixing coefficients of one token at one site.
#[derive(Clone, Copy)]
struct Mixing {
    post: [f32; STREAMS],
    /// First index: the old stream. Mixing uses the transpose.
    comb: [[f32; STREAMS]; STREAMS],
}

/// What a site hands to its layer, and keeps for `leave`.
pub struct Site {
    /// Normed input of the layer, `[tokens, hidden]`.
    pub x: Vec<f32>,
    mixing: Vec<Mixing>,
}

pub fn enter(
    step: &mut Step,
    place: LayerPlace,
    name: &str,
    site: &HyperConnection,
    gain: &[f32],
    streams: &[f32],
) -> Site {
    let (isa, spec) = (step.isa, step.spec);
    let width = spec.hidden_size;
    let [coefficients] = step.project(streams, [&site.mix]);
    let mut x = step.buffers.take(streams.len() / STREAMS);
    let mut mixing: Vec<Mixing> = Vec::new();
    streams
        .par_chunks_exact(STREAMS * width)
        .zip(coefficients.par_chunks_exact(site.mix.rows))
        .zip(x.par_chunks_exact_mut(width))
        .with_min_len(min_parallel_rows(STREAMS * width))
        .map(|((streams, m), x)| {
            let inverse = inverse_rms(isa, streams, spec.rms_eps);
            let (pre, mixing) = coefficients_of(spec, site, m, inverse);
            isa.run(Combine { weights: &pre, rows: streams, out: x });
            mixing
        })
        .collect_into_vec(&mut mixing);
    step.buffers.give([coefficients]);
    if step.capture.is_some() {
        capture_site(step, place, name, &x, &mixing);
    }
    x.par_chunks_exact_mut(width)
        .with_min_len(min_parallel_rows(width))
        .for_each(|x| rms_norm(isa, x, gain, spec.rms_eps));
    Site { x, mixing }
}

/// Mixes the layer's output `y` (`[tokens, hidden]`) into the streams.
pub fn leave(step: &mut Step, site: Site, y: Vec<f32>, streams: &mut [f32]) {
    let isa = step.isa;
    let width = step.spec.hidden_size;
    streams
        .par_chunks_exact_mut(STREAMS * width)
        .zip(y.par_chunks_exact(width))
        .zip(&site.mixing)
        .with_min_len(min_parallel_rows(STREAMS * width))
        .for_each_init(Vec::new, |rows, ((streams, y), mixing)| {
            rows.clear();
            rows.extend_from_slice(y);
            rows.extend_from_slice(streams);
            for (k, stream) in streams.chunks_exact_mut(width).enumerate() {
                let mut weights = [mixing.post[k], 0.0, 0.0, 0.0, 0.0];
                for j in 0..STREAMS {
                    weights[1 + j] = mixing.comb[j][k];
                }
                isa.run(Combine { weights: &weights, rows, out: stream });
            }
        });
    step.buffers.give([site.x]);
    step.buffers.give([y]);
}

/// The final head's collapse: no mixing, no Sinkhorn. `streams` is `[4, hidden]` of one token, `m` its 4 products
/// with the head's mix matrix.
pub fn collapse_for_head(
    isa: Isa,
    spec: &Spec,
    head: &HyperConnection,
    m: &[f32],
    streams: &[f32],
    out: &mut [f32],
) {
    let inverse = inverse_rms(isa, streams, spec.rms_eps);
    let pre: [f32; STREAMS] =
        std::array::from_fn(|i| sigmoid(m[i] * inverse * head.scale[0] + head.base[i]) + spec.hc_eps);
    isa.run(Combine { weights: &pre, rows: streams, out });
}

/// From the 24 products of a token to its pre, post and combination weights.
fn coefficients_of(
    spec: &Spec,
    site: &HyperConnection,
    m: &[f32],
    inverse_rms: f32,
) -> ([f32; STREAMS], Mixing) {
    let eps = spec.hc_eps;
    let logit = |i: usize, scale: usize| m[i] * inverse_rms * site.scale[scale] + site.base[i];
    let pre = std::array::from_fn(|i| sigmoid(logit(i, 0)) + eps);
    let post = std::array::from_fn(|i| 2.0 * sigmoid(logit(STREAMS + i, 1)));
    let logits = std::array::from_fn(|i| std::array::from_fn(|j| logit(2 * STREAMS + i * STREAMS + j, 2)));
    (pre, Mixing { post, comb: sinkhorn(logits, spec.hc_sinkhorn_iterations, eps) })
}

/// Row softmax, then columns and rows normalised in turn: `iterations` column passes, the last one last.
fn sinkhorn(logits: [[f32; STREAMS]; STREAMS], iterations: usize, eps: f32) -> [[f32; STREAMS]; STREAMS] {
    let mut c = logits.map(|row| {
        let max = row.into_iter().fold(f32::NEG_INFINITY, f32::max);
        let row = row.map(|x| (x - max).exp());
        let sum: f32 = row.iter().sum();
        row.map(|x| x / sum + eps)
    });
    for iteration in 0..iterations {
        if iteration > 0 {
            for row in &mut c {
                let sum = row.iter().sum::<f32>() + eps;
                row.iter_mut().for_each(|x| *x /= sum);
            }
        }
        let sums: [f32; STREAMS] = std::array::from_fn(|j| c.iter().map(|row| row[j]).sum::<f32>() + eps);
        for row in &mut c {
            for (x, sum) in row.iter_mut().zip(sums) {
                *x /= sum;
            }
        }
    }
    c
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn capture_site(step: &mut Step, place: LayerPlace, name: &str, collapsed: &[f32], mixing: &[Mixing]) {
    step.capture(place.index, &format!("{name}.collapsed"), collapsed);
    for mixing in mixing {
        step.capture(place.index, &format!("{name}.post"), &mixing.post);
        step.capture(place.index, &format!("{name}.comb"), mixing.comb.as_flattened());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Units, flash_like_spec};
    use overshot_model::{Bytes, Format, Matrix};

    #[test]
    fn a_site_of_the_fixture_is_met() {
        let units = Units::read();
        let x = units.f32("hc.x");
        let width = x.len() / 6 / STREAMS;
        let bytes: Vec<u8> = units.f32("hc.fn").iter().flat_map(|x| x.to_le_bytes()).collect();
        let site = HyperConnection {
            mix: Matrix::new(Format::F32, 24, STREAMS * width, Bytes::from_vec(bytes), Bytes::empty()),
            base: units.f32("hc.base"),
            scale: units.f32("hc.scale"),
        };
        let spec = flash_like_spec();
        let near = |ours: &[f32], name: &str, token: usize| {
            let theirs = units.f32(name);
            let theirs = &theirs[token * ours.len()..][..ours.len()];
            for (ours, theirs) in ours.iter().zip(theirs) {
                assert!((ours - theirs).abs() <= 1e-5, "{name} of token {token}: {ours} for {theirs}");
            }
        };
        for (token, streams) in x.chunks_exact(STREAMS * width).enumerate() {
            let mut row = vec![0.0; STREAMS * width];
            let products: Vec<f32> = (0..24)
                .map(|i| {
                    site.mix.decode_row(i, &mut row);
                    row.iter().zip(streams).map(|(w, x)| w * x).sum()
                })
                .collect();
            let inverse = inverse_rms(Isa::Scalar, streams, spec.rms_eps);
            let (pre, mixing) = coefficients_of(&spec, &site, &products, inverse);
            let mut collapsed = vec![0.0; width];
            Isa::Scalar.run(Combine { weights: &pre, rows: streams, out: &mut collapsed });
            near(&collapsed, "hc.collapsed", token);
            near(&mixing.post, "hc.post", token);
            near(mixing.comb.as_flattened(), "hc.comb", token);
        }
    }
}
