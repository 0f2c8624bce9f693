//! The feed-forward half: a router picks a few experts per token; a shared one always runs.

use super::LayerPlace;
use crate::matmul::{self, Job, Output, Rows};
use crate::min_parallel_rows;
use crate::simd::GatedActivation;
use crate::step::Step;
use overshot_backend::PeerGone;
use overshot_model::{Expert, FeedForward, Routing, Spec};
use rayon::prelude::*;

/// An expert of a token and its weight.
#[derive(Clone, Copy)]
struct Choice {
    expert: u16,
    weight: f32,
}

/// The tokens of one expert, and where its rows stand in the arrays of all experts' rows.
struct Group<'a> {
    expert: &'a Expert,
    tokens: Vec<u32>,
    weights: Vec<f32>,
}

/// `x` is the normed input `[tokens, hidden]`; returns the layer's output, same shape.
pub fn forward(
    step: &mut Step,
    place: LayerPlace,
    ffn: &FeedForward,
    x: &[f32],
) -> Result<Vec<f32>, PeerGone> {
    let choices = route(step, ffn, x);
    capture(step, place.index, &choices);
    let groups = group(step, ffn, &choices);
    let products = run_experts(step, &groups, x);
    let (routed, shared) = groups.split_at(groups.len() - 1);
    let mut y = step.buffers.take_zeroed(x.len());
    let done = add_up(step, routed, &products, &mut y);
    // Every rank has the shared expert, so it comes after the sum over ranks.
    let mut y = step.all_reduce(y)?;
    add_up(step, shared, &products[done..], &mut y);
    step.buffers.give([products]);
    Ok(y)
}

/// `experts_per_token` choices per token, experts ascending: the order in which their outputs are added.
fn route(step: &mut Step, ffn: &FeedForward, x: &[f32]) -> Vec<Choice> {
    let spec = step.spec;
    let [mut scores] = step.project(x, [&ffn.gate]);
    let chosen: Vec<Vec<Choice>> = scores
        .par_chunks_exact_mut(spec.experts)
        .zip(&step.tokens)
        .with_min_len(min_parallel_rows(16 * spec.experts))
        .map(|(scores, token)| {
            scores.iter_mut().for_each(|score| *score = softplus(*score).sqrt());
            let ids = match &ffn.routing {
                Routing::Hash { experts_of_token } => experts_of_token
                    [token.id as usize * spec.experts_per_token..][..spec.experts_per_token]
                    .to_vec(),
                Routing::Learned { bias } => best(scores, bias, spec.experts_per_token),
            };
            weigh(spec, scores, ids)
        })
        .collect();
    step.buffers.give([scores]);
    chosen.concat()
}

fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// The largest of `score + bias`; of equal ones the lower id.
fn best(scores: &[f32], bias: &[f32], count: usize) -> Vec<u16> {
    let mut ids: Vec<u16> = (0..scores.len() as u16).collect();
    let key = |id: u16| scores[usize::from(id)] + bias[usize::from(id)];
    ids.select_nth_unstable_by(count - 1, |&a, &b| key(b).total_cmp(&key(a)).then(a.cmp(&b)));
    ids.truncate(count);
    ids
}

fn weigh(spec: &Spec, scores: &[f32], mut ids: Vec<u16>) -> Vec<Choice> {
    ids.sort_unstable();
    // Scores that all vanish (a router sure of other experts than the table's) weigh nothing, not NaN.
    let sum = ids.iter().map(|&id| scores[usize::from(id)]).sum::<f32>() + 1e-20;
    ids.into_iter()
        .map(|expert| Choice {
            expert,
            weight: scores[usize::from(expert)] / sum * spec.routed_scaling_factor,
        })
        .collect()
}

/// Gathers tokens by expert, the rank's experts ascending, the shared expert last.
fn group<'a>(step: &Step, ffn: &'a FeedForward, choices: &[Choice]) -> Vec<Group<'a>> {
    let (mine, tokens) = (&step.shard.experts, step.tokens.len());
    let mut groups: Vec<Group> = ffn.experts[mine.clone()]
        .iter()
        .map(|expert| Group { expert, tokens: Vec::new(), weights: Vec::new() })
        .collect();
    for (i, choice) in choices.iter().enumerate() {
        let expert = usize::from(choice.expert);
        if mine.contains(&expert) {
            let group = &mut groups[expert - mine.start];
            group.tokens.push((i / step.spec.experts_per_token) as u32);
            group.weights.push(choice.weight);
        }
    }
    groups.retain(|group| !group.tokens.is_empty());
    groups.push(Group {
        expert: &ffn.shared,
        tokens: (0..tokens as u32).collect(),
        weights: vec![1.0; tokens],
    });
    groups
}

/// Every group's rows through its expert: `[rows of all groups, hidden]`, group after group, already weighted.
fn run_experts(step: &mut Step, groups: &[Group], x: &[f32]) -> Vec<f32> {
    let (isa, spec) = (step.isa, step.spec);
    let width = spec.expert_width;
    let rows: usize = groups.iter().map(|group| group.tokens.len()).sum();
    let mut gate = step.buffers.take(rows * width);
    let mut up = step.buffers.take(rows * width);
    // The shared expert, the last group, may be stored differently; each format's input is made once.
    let routed = step.input(&groups[0].expert.w1, x);
    let shared = &groups[groups.len() - 1].expert.w1;
    let shared = (!routed.serves(shared)).then(|| step.input(shared, x));
    let input_for = |expert: &Expert| match &shared {
        Some(shared) if shared.serves(&expert.w1) => shared,
        _ => &routed,
    };
    let mut jobs = Vec::with_capacity(2 * groups.len());
    let (mut gate_rest, mut up_rest) = (gate.as_mut_slice(), up.as_mut_slice());
    for Group { expert, tokens, .. } in groups {
        let input = input_for(expert);
        for (matrix, rest) in [(&expert.w1, &mut gate_rest), (&expert.w3, &mut up_rest)] {
            let output = Output::new(split_off(rest, tokens.len() * width), width);
            let columns = 0..matrix.cols;
            jobs.push(Job { matrix, columns, input, rows: Rows::Picked(tokens), output });
        }
    }
    matmul::run(isa, jobs);
    drop((routed, shared));

    let weights: Vec<f32> = groups.iter().flat_map(|group| &group.weights).copied().collect();
    let mut inner = step.buffers.take(rows * width);
    inner
        .par_chunks_exact_mut(width)
        .zip(gate.par_chunks_exact(width))
        .zip(up.par_chunks_exact(width))
        .zip(weights)
        .with_min_len(min_parallel_rows(8 * width))
        .for_each(|(((out, gate), up), weight)| {
            isa.run(GatedActivation { gate, up, limit: spec.swiglu_limit, weight, out });
        });
    step.buffers.give([gate]);
    step.buffers.give([up]);

    let mut products = step.buffers.take(rows * spec.hidden_size);
    let mut inputs = Vec::with_capacity(groups.len());
    let mut done = 0;
    for Group { expert, tokens, .. } in groups {
        inputs.push(step.input(&expert.w2, &inner[done..done + tokens.len() * width]));
        done += tokens.len() * width;
    }
    let mut rest = products.as_mut_slice();
    let mut jobs = Vec::with_capacity(groups.len());
    for (Group { expert, tokens, .. }, input) in groups.iter().zip(&inputs) {
        let output = Output::new(split_off(&mut rest, tokens.len() * spec.hidden_size), spec.hidden_size);
        let columns = 0..expert.w2.cols;
        jobs.push(Job { matrix: &expert.w2, columns, input, rows: Rows::First(tokens.len()), output });
    }
    matmul::run(isa, jobs);
    drop(inputs);
    step.buffers.give([inner]);
    products
}

fn split_off<'a>(rest: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (head, tail) = std::mem::take(rest).split_at_mut(len);
    *rest = tail;
    head
}

/// Adds each token's rows of some groups to `y`, in the order of the groups; gives the length of those rows.
fn add_up(step: &Step, groups: &[Group], products: &[f32], y: &mut [f32]) -> usize {
    let width = step.spec.hidden_size;
    let mut rows_of: Vec<Vec<u32>> = vec![Vec::new(); step.tokens.len()];
    let mut rows = 0;
    for &token in groups.iter().flat_map(|group| &group.tokens) {
        rows_of[token as usize].push(rows);
        rows += 1;
    }
    y.par_chunks_exact_mut(width).zip(rows_of).with_min_len(min_parallel_rows(8 * width)).for_each(
        |(y, rows)| {
            for row in rows {
                for (y, x) in y.iter_mut().zip(&products[row as usize * width..]) {
                    *y += x;
                }
            }
        },
    );
    rows as usize * width
}

fn capture(step: &mut Step, layer: usize, choices: &[Choice]) {
    if step.capture.is_some() {
        let experts: Vec<f32> = choices.iter().map(|choice| f32::from(choice.expert)).collect();
        let weights: Vec<f32> = choices.iter().map(|choice| choice.weight).collect();
        step.capture(layer, "experts", &experts);
        step.capture(layer, "expert_weights", &weights);
    }
}
