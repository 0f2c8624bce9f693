//! Routing and experts.

use super::{Fault, Oracle, Vector};
use overshot_model::{Expert, FeedForward, Routing};

impl Oracle<'_> {
    pub(super) fn experts(&self, ffn: &FeedForward, tokens: &[u32], inputs: &[Vector]) -> Vec<Vector> {
        let spec = &self.model.spec;
        let mut outputs = self.expert(&ffn.shared, inputs, &vec![1.0; inputs.len()]);
        let scores = self.project(&ffn.gate, inputs);
        let choices: Vec<Vec<(usize, f64)>> = tokens
            .iter()
            .zip(scores)
            .map(|(token, logits)| {
                let p: Vector = logits.iter().map(|x| x.exp().ln_1p().sqrt()).collect();
                let ids = chosen(&ffn.routing, *token, &p, spec.experts_per_token);
                let sum: f64 = ids.iter().map(|id| p[*id]).sum();
                let factor = f64::from(spec.routed_scaling_factor);
                ids.into_iter().map(|id| (id, p[id] / sum * factor)).collect()
            })
            .collect();
        for (id, expert) in ffn.experts.iter().enumerate() {
            let weight_of = |token: usize| choices[token].iter().find(|choice| choice.0 == id);
            let (chosen_by, weights): (Vec<usize>, Vector) =
                (0..inputs.len()).filter_map(|token| Some((token, weight_of(token)?.1))).unzip();
            let picked: Vec<Vector> = chosen_by.iter().map(|token| inputs[*token].clone()).collect();
            for (token, y) in chosen_by.iter().zip(self.expert(expert, &picked, &weights)) {
                outputs[*token].iter_mut().zip(y).for_each(|(sum, y)| *sum += y);
            }
        }
        outputs
    }

    /// `w2 (g * silu(w1 x) * w3 x)`: the weight `g` of the expert stands before `w2` and its rounding.
    fn expert(&self, expert: &Expert, inputs: &[Vector], weights: &[f64]) -> Vec<Vector> {
        let limit = self.model.spec.swiglu_limit.map_or(f64::INFINITY, f64::from);
        let after = self.has(Fault::ExpertWeightAfterW2);
        let (gates, ups) = (self.project(&expert.w1, inputs), self.project(&expert.w3, inputs));
        let inner = gates.iter().zip(&ups).zip(weights).map(|((gate, up), weight)| {
            let before = if after { 1.0 } else { *weight };
            let value = |(gate, up): (&f64, &f64)| {
                let gate = gate.min(limit);
                before * gate / (1.0 + (-gate).exp()) * up.clamp(-limit, limit)
            };
            gate.iter().zip(up).map(value).collect()
        });
        let mut outputs = self.project(&expert.w2, &inner.collect::<Vec<_>>());
        if after {
            for (y, weight) in outputs.iter_mut().zip(weights) {
                y.iter_mut().for_each(|y| *y *= weight);
            }
        }
        outputs
    }
}

fn chosen(routing: &Routing, token: u32, p: &[f64], count: usize) -> Vec<usize> {
    match routing {
        Routing::Hash { experts_of_token } => {
            let table = &experts_of_token[token as usize * count..][..count];
            table.iter().map(|id| usize::from(*id)).collect()
        }
        Routing::Learned { bias } => {
            let mut ids: Vec<usize> = (0..p.len()).collect();
            let key = |id: usize| p[id] + f64::from(bias[id]);
            ids.sort_by(|a, b| key(*b).total_cmp(&key(*a)));
            ids.truncate(count);
            ids
        }
    }
}
