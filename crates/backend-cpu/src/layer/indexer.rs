//! The indexer of ratio-4 layers: which compressed entries a query attends to.

use super::LayerPlace;
use super::compressor::{Advance, entry_address};
use crate::min_parallel_rows;
use crate::pools::{Pools, RowsOf};
use crate::simd::Dots;
use crate::step::Step;
use overshot_backend::{Member, PeerGone};
use overshot_kv::Pool;
use overshot_model::{INDEX_DIM, Indexer, LayerKind, Matrix};
use rayon::prelude::*;

/// Products that the indexer needs, one row per token.
pub struct Products<'a> {
    /// The rank's query heads, `[tokens, heads * 128]`, not yet rotated.
    pub q: &'a mut [f32],
    /// Their weights, `[tokens, heads]`, not yet scaled.
    pub weights: &'a mut [f32],
    pub k: &'a [f32],
    pub s: &'a [f32],
}

/// The rows of `wq_b` and `weights_proj` that make the rank's heads.
pub fn heads_of(step: &Step, indexer: &Indexer) -> (Matrix, Matrix) {
    let heads = &step.shard.index_heads;
    let wq_b = indexer.wq_b.slice_rows(heads.start * INDEX_DIM..heads.end * INDEX_DIM);
    (wq_b, indexer.weights_proj.slice_rows(heads.clone()))
}

/// Appends the keys of this step, then chooses the entries of every token: indices ascending. A score is a sum over
/// the heads of all ranks, so all of them choose the same.
pub fn forward(
    step: &mut Step,
    place: LayerPlace,
    indexer: &Indexer,
    products: Products,
) -> Result<Vec<Vec<u32>>, PeerGone> {
    append_keys(step, place.index_in_kind, indexer, products.k, products.s);
    let (spec, pools, tokens) = (step.spec, &*step.pools, &step.tokens);
    let heads = step.shard.index_heads.len();
    let scale = (INDEX_DIM as f32).powf(-0.5) * (spec.index_heads as f32).powf(-0.5);
    products.weights.iter_mut().for_each(|w| *w *= scale);
    let visible = |token: usize| (tokens[token].position + 1) / LayerKind::Csa.ratio();
    let capturing = step.capture.is_some();
    // Scores are only needed where there is something to leave out.
    let scored: Vec<bool> = (0..tokens.len()).map(|t| visible(t) > spec.index_topk || capturing).collect();
    products
        .q
        .par_chunks_exact_mut(heads * INDEX_DIM)
        .enumerate()
        .with_min_len(min_parallel_rows(heads * INDEX_DIM))
        .filter(|(token, _)| scored[*token])
        .for_each(|(token, q)| {
            for head in q.chunks_exact_mut(INDEX_DIM) {
                tokens[token].rotation(LayerKind::Csa).apply(head);
                pools.index_keys.round_query(head);
            }
        });

    let (q, weights) = (&*products.q, &*products.weights);
    let mut selected = Vec::with_capacity(tokens.len());
    let mut captured = Vec::new();
    let scores_of = |token: usize| if scored[token] { visible(token) } else { 0 };
    for group in groups_of_scores(tokens.len(), scores_of) {
        let mut scores: Vec<Vec<f32>> = group.clone().map(|token| vec![0.0; scores_of(token)]).collect();
        let mut tasks: Vec<(usize, usize, &mut [f32])> = Vec::new();
        for (token, scores) in group.clone().zip(&mut scores) {
            for (block, scores) in scores.chunks_mut(TASK_KEYS).enumerate() {
                tasks.push((token, block * TASK_KEYS, scores));
            }
        }
        tasks.into_par_iter().for_each(|(token, first, out)| {
            let task = ScoreTask {
                layer: place.index_in_kind,
                pages: step.pages(&tokens[token]).pages(Pool::IndexKeys),
                q: &q[token * heads * INDEX_DIM..][..heads * INDEX_DIM],
                weights: &weights[token * heads..][..heads],
                first,
            };
            task.run(step, out);
        });
        if let Some(member) = step.member {
            add_up(member, &mut scores)?;
        }
        let choose = |(token, scores): (usize, &Vec<f32>)| match scored[token] {
            true => largest(scores, spec.index_topk),
            false => (0..visible(token) as u32).collect(),
        };
        selected.par_extend(group.into_par_iter().zip(&scores).map(choose));
        if capturing {
            captured.append(&mut scores);
        }
    }
    if capturing {
        capture(step, place.index, &captured, &selected);
    }
    Ok(selected)
}

/// Sums the scores of every token over all ranks, which have the same tokens to score.
fn add_up(member: &Member, scores: &mut [Vec<f32>]) -> Result<(), PeerGone> {
    let mine = scores.concat();
    if mine.is_empty() {
        return Ok(());
    }
    let mut sums = vec![0.0; mine.len()];
    member.all_reduce(mine, &mut sums)?;
    let mut rest = sums.as_slice();
    for scores in scores {
        let (sums, others) = rest.split_at(scores.len());
        scores.copy_from_slice(sums);
        rest = others;
    }
    Ok(())
}

/// Scores held at a time: 64 MiB, however long the contexts are.
const GROUP_SCORES: usize = 1 << 24;

/// Consecutive tokens whose scores fit together; at least one token each.
fn groups_of_scores(tokens: usize, scores_of: impl Fn(usize) -> usize) -> Vec<std::ops::Range<usize>> {
    let mut groups = Vec::new();
    let (mut start, mut held) = (0, 0);
    for token in 0..tokens {
        if token > start && held + scores_of(token) > GROUP_SCORES {
            groups.push(start..token);
            (start, held) = (token, 0);
        }
        held += scores_of(token);
    }
    groups.push(start..tokens);
    groups
}

/// Keys that one task scores, and that are unpacked at a time.
const TASK_KEYS: usize = 1024;
const BLOCK_KEYS: usize = 48;

struct ScoreTask<'a> {
    layer: usize,
    pages: &'a [overshot_kv::PageId],
    q: &'a [f32],
    weights: &'a [f32],
    first: usize,
}

impl ScoreTask<'_> {
    /// `out[j] = sum_h weights[h] * max(0, q_h · key_j)`, heads in order.
    fn run(&self, step: &Step, out: &mut [f32]) {
        let keys_pool = &step.pools.index_keys;
        let heads = self.weights.len();
        let mut keys = vec![0.0; BLOCK_KEYS * INDEX_DIM];
        let mut dots = vec![0.0; heads * BLOCK_KEYS];
        for (block, out) in out.chunks_mut(BLOCK_KEYS).enumerate() {
            let keys = &mut keys[..out.len() * INDEX_DIM];
            for (i, key) in keys.chunks_exact_mut(INDEX_DIM).enumerate() {
                let index = self.first + block * BLOCK_KEYS + i;
                let (page, slot) = entry_address(self.pages, index, keys_pool.slots_per_page);
                keys_pool.read(self.layer, page, slot, key);
            }
            step.isa.run(Dots {
                a: self.q,
                b: keys,
                width: INDEX_DIM,
                out: &mut dots,
                out_stride: BLOCK_KEYS,
            });
            for (j, out) in out.iter_mut().enumerate() {
                *out = (0..heads).map(|h| self.weights[h] * rectified(dots[h * BLOCK_KEYS + j])).sum();
            }
        }
    }
}

/// `max(0, x)` that keeps NaN.
fn rectified(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

fn append_keys(step: &mut Step, layer: usize, indexer: &Indexer, k: &[f32], s: &[f32]) {
    let fixed = step.constants();
    let Pools { index_keys, compressor_rows, .. } = &mut *step.pools;
    let advance = Advance { compressor: &indexer.compressor, of: RowsOf::CsaIndexer(layer), k, s };
    advance.run(&fixed, compressor_rows, |row, index, key| {
        let pages = row.pages.pages(Pool::IndexKeys);
        let (page, slot) = entry_address(pages, index, index_keys.slots_per_page);
        index_keys.write(layer, page, slot, key);
    });
}

/// Indices of the `count` largest scores, ascending; of equal scores the lower index wins.
fn largest(scores: &[f32], count: usize) -> Vec<u32> {
    let mut indices: Vec<u32> = (0..scores.len() as u32).collect();
    if count < indices.len() {
        let better = |a: &u32, b: &u32| scores[*b as usize].total_cmp(&scores[*a as usize]).then(a.cmp(b));
        indices.select_nth_unstable_by(count, better);
        indices.truncate(count);
        indices.sort_unstable();
    }
    indices
}

fn capture(step: &mut Step, layer: usize, scores: &[Vec<f32>], selected: &[Vec<u32>]) {
    for (scores, selected) in scores.iter().zip(selected) {
        step.capture(layer, "index_scores", scores);
        let mut padded = vec![-1.0; step.spec.index_topk];
        for (to, &index) in padded.iter_mut().zip(selected) {
            *to = index as f32;
        }
        step.capture(layer, "index_selected", &padded);
    }
}

#[cfg(test)]
mod tests {
    use super::{GROUP_SCORES, groups_of_scores, largest};

    #[test]
    fn groups_cover_all_tokens_and_stay_within_the_bound() {
        let group = |sizes: &[usize]| groups_of_scores(sizes.len(), |token| sizes[token]);
        assert_eq!(group(&[1, 2, 3]), vec![0..3; 1]);
        assert_eq!(group(&[GROUP_SCORES, 1, GROUP_SCORES - 1, 2]), [0..1, 1..3, 3..4]);
        assert_eq!(group(&[2 * GROUP_SCORES, 2 * GROUP_SCORES]), [0..1, 1..2]);
    }

    #[test]
    fn the_largest_scores_win_and_ties_go_to_the_lower_index() {
        assert_eq!(largest(&[1.0, 3.0, 2.0, 3.0, 3.0], 2), [1, 3]);
        assert_eq!(largest(&[0.0, -1.0, 0.5], 3), [0, 1, 2]);
        assert_eq!(largest(&[], 4), Vec::<u32>::new());
        assert_eq!(largest(&[f32::NAN, 1.0, 2.0], 1).len(), 1);
    }
}
