//! Attention: window, compressed entries, the indexer that picks among them, and the grouped output.

use super::{Fault, Indexed, Oracle, Vector, dot, floats, product, rounded_activations, to_bf16};
use overshot_backend::{Activations, IndexKeyFormat, KvFormat};
use overshot_model::quant::{hadamard, round_entry, round_index_key_fp4, round_index_key_fp8};
use overshot_model::{
    Attention, Compressor, HEAD_DIM, INDEX_DIM, Indexer, LayerKind, NOPE_DIMS, ROPE_DIMS, WINDOW,
};

impl Oracle<'_> {
    pub(super) fn attention(
        &self,
        layer: usize,
        attn: &Attention,
        inputs: &[Vector],
    ) -> (Vec<Vector>, Indexed) {
        let (spec, kind) = (&self.model.spec, self.model.spec.layers[layer].kind);
        let frequencies = self.frequencies(kind);
        let mut qr = self.project(&attn.wq_a, inputs);
        qr.iter_mut().for_each(|x| self.norm(x, Some(&attn.q_norm)));
        let mut q = self.project(&attn.wq_b, &qr);
        let mut latents = self.project(&attn.wkv, inputs);
        for (t, (q, latent)) in q.iter_mut().zip(&mut latents).enumerate() {
            for head in q.chunks_exact_mut(HEAD_DIM) {
                self.norm(head, None);
                rotate(head, &frequencies, t, 1.0);
                if self.has(Fault::RoundsQueries) {
                    self.round_latent(head);
                }
            }
            self.norm(latent, Some(&attn.kv_norm));
            rotate(latent, &frequencies, t, 1.0);
        }
        let exact_latents = latents.clone();
        latents.iter_mut().for_each(|latent| self.round_latent(latent));
        let mut entries = match &attn.compressor {
            Some(compressor) => self.entries(compressor, kind, inputs, &frequencies),
            None => Vec::new(),
        };
        if !self.has(Fault::ExactEntries) {
            entries.iter_mut().for_each(|entry| self.round_latent(entry));
        }
        let indexed = match &attn.indexer {
            Some(indexer) => self.index(indexer, inputs, &qr, &frequencies),
            None => Indexed::default(),
        };

        let mut heads_out: Vec<Vector> = Vec::new();
        for (t, q) in q.iter().enumerate() {
            let mut keys: Vec<&Vector> = latents[(t + 1).saturating_sub(WINDOW)..=t].iter().collect();
            if self.has(Fault::ExactOwnLatent) {
                keys.pop();
                keys.push(&exact_latents[t]);
            }
            match kind {
                LayerKind::Window => {}
                LayerKind::Csa => keys.extend(indexed.picked[t].iter().map(|j| &entries[*j])),
                LayerKind::Hca => keys.extend(&entries[..(t + 1) / kind.ratio()]),
            }
            let mut out = Vec::new();
            for (head, sink) in q.chunks_exact(HEAD_DIM).zip(&attn.sink) {
                let mut o = attend(head, &keys, f64::from(*sink));
                rotate(&mut o, &frequencies, t, -1.0);
                out.extend(o);
            }
            heads_out.push(out);
        }

        let group = spec.heads / attn.wo_a.len() * HEAD_DIM;
        let mut z = vec![Vector::new(); inputs.len()];
        for (i, matrix) in attn.wo_a.iter().enumerate() {
            let of_group = heads_out.iter().map(|heads| {
                let heads = &heads[i * group..(i + 1) * group];
                match self.has(Fault::RoundsBeforeWoA) && self.numerics.act == Activations::E4m3 {
                    true => rounded_activations(heads),
                    false => heads.to_vec(),
                }
            });
            let parts = product(matrix, &of_group.collect::<Vec<_>>());
            z.iter_mut().zip(parts).for_each(|(z, part)| z.extend(part));
        }
        let y = match self.has(Fault::ExactBeforeWoB) {
            true => product(&attn.wo_b, &z),
            false => self.project(&attn.wo_b, &z),
        };
        (y, indexed)
    }

    /// The compressed entries of a whole sequence, rotated, not rounded.
    fn entries(
        &self,
        compressor: &Compressor,
        kind: LayerKind,
        inputs: &[Vector],
        frequencies: &[f32],
    ) -> Vec<Vector> {
        let (ratio, width) = (kind.ratio(), compressor.norm.len());
        let k = self.project(&compressor.wkv, inputs);
        let mut s = self.project(&compressor.wgate, inputs);
        let ape: Vec<Vector> = compressor.ape.chunks_exact(compressor.wkv.rows).map(floats).collect();
        for (t, s) in s.iter_mut().enumerate() {
            s.iter_mut().zip(&ape[t % ratio]).for_each(|(s, ape)| *s += ape);
        }
        let entry = |j: usize| {
            let window = j * ratio..(j + 1) * ratio;
            // Which (token, first channel) each row of the pool is.
            let rows: Vec<(usize, usize)> = match kind {
                LayerKind::Csa => {
                    let previous = window.start.saturating_sub(ratio)..window.start;
                    previous.map(|t| (t, 0)).chain(window.map(|t| (t, width))).collect()
                }
                _ => window.map(|t| (t, 0)).collect(),
            };
            let mut entry: Vector = (0..width)
                .map(|channel| {
                    let weights = rows.iter().map(|(t, first)| s[*t][first + channel].exp());
                    let values = rows.iter().map(|(t, first)| k[*t][first + channel]);
                    let sum: f64 = weights.clone().sum();
                    weights.zip(values).map(|(weight, value)| weight * value).sum::<f64>() / sum
                })
                .collect();
            self.norm(&mut entry, Some(&compressor.norm));
            rotate(&mut entry, frequencies, j * ratio, 1.0);
            entry
        };
        (0..inputs.len() / ratio).map(entry).collect()
    }

    fn index(&self, indexer: &Indexer, inputs: &[Vector], qr: &[Vector], frequencies: &[f32]) -> Indexed {
        let spec = &self.model.spec;
        let scale = (INDEX_DIM as f64).powf(-0.5) * (spec.index_heads as f64).powf(-0.5);
        let mut keys = self.entries(&indexer.compressor, LayerKind::Csa, inputs, frequencies);
        keys.iter_mut().for_each(|key| self.round_index(key, true));
        let mut queries = self.project(&indexer.wq_b, qr);
        let weights = self.project(&indexer.weights_proj, inputs);
        let mut indexed = Indexed::default();
        for (t, query) in queries.iter_mut().enumerate() {
            for head in query.chunks_exact_mut(INDEX_DIM) {
                rotate(head, frequencies, t, 1.0);
                self.round_index(head, !self.has(Fault::ExactIndexQueries));
            }
            let score = |key: &Vector| -> f64 {
                let heads = query.chunks_exact(INDEX_DIM).zip(&weights[t]);
                heads.map(|(head, weight)| weight * scale * dot(head, key).max(0.0)).sum()
            };
            let scores: Vector = keys[..(t + 1) / 4].iter().map(score).collect();
            let mut picked: Vec<usize> = (0..scores.len()).collect();
            picked.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
            picked.truncate(spec.index_topk);
            picked.sort_unstable();
            indexed.scores.push(scores);
            indexed.picked.push(picked);
        }
        indexed
    }

    /// What a cached latent becomes.
    fn round_latent(&self, latent: &mut [f64]) {
        if self.numerics.kv == KvFormat::F32 {
            return;
        }
        let exact: [f32; HEAD_DIM] = std::array::from_fn(|i| latent[i] as f32);
        let mut rounded = exact;
        round_entry(&mut rounded);
        if self.has(Fault::ExactRotaryDims) {
            rounded[NOPE_DIMS..].copy_from_slice(&exact[NOPE_DIMS..]);
        }
        latent.copy_from_slice(&floats(&rounded));
    }

    /// What a key or query of the indexer becomes; without `rounds` it is transformed only.
    fn round_index(&self, values: &mut [f64], rounds: bool) {
        let mut packed: [f32; INDEX_DIM] = std::array::from_fn(|i| values[i] as f32);
        match self.numerics.index_keys {
            IndexKeyFormat::F32 => return,
            IndexKeyFormat::Bf16 => {
                if rounds {
                    values.iter_mut().for_each(|x| *x = to_bf16(*x));
                }
                return;
            }
            IndexKeyFormat::Fp8 | IndexKeyFormat::Fp4 if !self.has(Fault::NoHadamard) => {
                hadamard(&mut packed)
            }
            IndexKeyFormat::Fp8 | IndexKeyFormat::Fp4 => {}
        }
        match self.numerics.index_keys {
            IndexKeyFormat::Fp8 if rounds => round_index_key_fp8(&mut packed),
            IndexKeyFormat::Fp4 if rounds => round_index_key_fp4(&mut packed),
            _ => {}
        }
        values.copy_from_slice(&floats(&packed));
    }

    /// One per pair of rotary dims, in float32 as the formulas demand.
    fn frequencies(&self, kind: LayerKind) -> Vec<f32> {
        let spec = &self.model.spec;
        let theta = if kind == LayerKind::Window { spec.rope_theta } else { spec.compress_rope_theta };
        let plain = |i: usize| 1.0 / f64::from(theta).powf(2.0 * i as f64 / ROPE_DIMS as f64) as f32;
        let pairs = 0..ROPE_DIMS / 2;
        if kind == LayerKind::Window {
            return pairs.map(plain).collect();
        }
        let yarn = &spec.yarn;
        let dim = |turns: f32| {
            let original = yarn.original_max_positions as f64;
            let ratio = original / (2.0 * std::f64::consts::PI * f64::from(turns));
            ROPE_DIMS as f64 * ratio.ln() / (2.0 * f64::from(theta).ln())
        };
        let lo = dim(yarn.beta_fast).floor().max(0.0) as f32;
        let mut hi = dim(yarn.beta_slow).ceil().min(ROPE_DIMS as f64 - 1.0) as f32;
        hi += if lo == hi { 0.001 } else { 0.0 };
        let stretched = |i: usize| {
            let w = ((i as f32 - lo) / (hi - lo)).clamp(0.0, 1.0);
            plain(i) / yarn.factor * w + plain(i) * (1.0 - w)
        };
        pairs.map(stretched).collect()
    }
}

/// Rotates the last 64 dims by the angles of a position, in neighbouring pairs; `sign` -1 goes back.
fn rotate(head: &mut [f64], frequencies: &[f32], position: usize, sign: f64) {
    let start = head.len() - ROPE_DIMS;
    for (pair, frequency) in head[start..].chunks_exact_mut(2).zip(frequencies) {
        let angle = sign * f64::from(position as f32 * frequency);
        let (even, odd) = (pair[0], pair[1]);
        pair[0] = even * angle.cos() - odd * angle.sin();
        pair[1] = even * angle.sin() + odd * angle.cos();
    }
}

fn attend(q: &[f64], keys: &[&Vector], sink: f64) -> Vector {
    let scores: Vector = keys.iter().map(|key| dot(q, key) / (HEAD_DIM as f64).sqrt()).collect();
    let max = scores.iter().fold(sink, |max, score| max.max(*score));
    let total: f64 = scores.iter().map(|score| (score - max).exp()).sum::<f64>() + (sink - max).exp();
    let mut out = vec![0.0; HEAD_DIM];
    for (score, key) in scores.iter().zip(keys) {
        let weight = (score - max).exp() / total;
        out.iter_mut().zip(key.iter()).for_each(|(out, value)| *out += weight * value);
    }
    out
}
