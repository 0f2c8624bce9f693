//! Which part of the model a rank computes, as the publisher splits it: attention and the indexer by head, the output
//! projection by groups of heads, routed experts by id, embedding and head by vocabulary. All the rest is the same on
//! every rank, caches included.

use crate::{Activations, Numerics, Rehearsal};
use overshot_model::Spec;
use overshot_model::quant::ACTIVATION_BLOCK;
use std::ops::Range;

/// Numbers of ranks that can be had.
const RANKS: [usize; 3] = [1, 2, 4];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    #[error("--tp {ranks}: there can be 1, 2 or 4 ranks")]
    RankCount { ranks: usize },
    #[error(
        "--tp {ranks}: {ranks} ranks cannot share this model's {count} {what} evenly, use --tp {possible}"
    )]
    NotDivisible { ranks: usize, what: &'static str, count: usize, possible: usize },
    #[error(
        "{ranks} of {of_ranks} ranks cannot be rehearsed: all of them can, or the first without its peers"
    )]
    Rehearsal { ranks: usize, of_ranks: usize },
}

/// One rank's shares; together the ranks' shares are everything, once.
#[derive(Clone, Debug)]
pub struct Shard {
    pub heads: Range<usize>,
    /// Runs of heads that share a block of the first output projection.
    pub groups: Range<usize>,
    pub index_heads: Range<usize>,
    pub experts: Range<usize>,
    /// Token ids.
    pub vocab: Range<usize>,
}

impl Shard {
    /// `ranks` passed [`Shard::check`].
    pub fn of(spec: &Spec, rank: usize, ranks: usize) -> Self {
        let share = |count: usize| count / ranks * rank..count / ranks * (rank + 1);
        Shard {
            heads: share(spec.heads),
            groups: share(spec.o_groups),
            index_heads: share(spec.index_heads),
            experts: share(spec.experts),
            vocab: share(spec.vocab_size),
        }
    }

    /// Those of the ranks that are here, rank 0 first.
    ///
    /// # Errors
    /// A number of ranks that this model cannot be split by, or several in a rehearsal of more.
    pub fn of_ranks(
        spec: &Spec,
        numerics: Numerics,
        ranks: usize,
        rehearsal: Option<Rehearsal>,
    ) -> Result<Vec<Self>, ShardError> {
        let all = match rehearsal {
            None => ranks,
            Some(Rehearsal { of_ranks, .. }) if ranks == 1 || ranks == of_ranks => of_ranks,
            Some(Rehearsal { of_ranks, .. }) => return Err(ShardError::Rehearsal { ranks, of_ranks }),
        };
        Self::check(spec, numerics, all)?;
        Ok((0..ranks).map(|rank| Shard::of(spec, rank, all)).collect())
    }

    /// # Errors
    /// [`ShardError::RankCount`] or [`ShardError::NotDivisible`].
    pub fn check(spec: &Spec, numerics: Numerics, ranks: usize) -> Result<(), ShardError> {
        if !RANKS.contains(&ranks) {
            return Err(ShardError::RankCount { ranks });
        }
        let undivided = |ranks| undivided(spec, numerics, ranks);
        let Some((what, count)) = undivided(ranks) else { return Ok(()) };
        let possible = RANKS.into_iter().filter(|ranks| undivided(*ranks).is_none()).max().unwrap_or(1);
        Err(ShardError::NotDivisible { ranks, what, count, possible })
    }
}

/// The first part of the model that `ranks` ranks cannot share evenly.
fn undivided(spec: &Spec, numerics: Numerics, ranks: usize) -> Option<(&'static str, usize)> {
    if ranks == 1 {
        return None;
    }
    let parts = [
        ("attention heads", spec.heads, 1),
        ("o_groups", spec.o_groups, 1),
        ("index heads", spec.index_heads, 1),
        ("routed experts", spec.experts, 1),
        ("tokens in its vocabulary", spec.vocab_size, 1),
    ];
    // Columns that are rounded together must stay together, or the ranks would round otherwise than one alone.
    let rounded = ("columns of wo_b in blocks of 128", spec.o_groups * spec.o_lora_rank, ACTIVATION_BLOCK);
    let rounded = (numerics.act == Activations::E4m3).then_some(rounded);
    let mut all = parts.into_iter().chain(rounded);
    all.find(|(_, count, unit)| !count.is_multiple_of(ranks * unit)).map(|(what, count, _)| (what, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        let parts = Spec { heads: 4, o_groups: 2, o_lora_rank: 32, ..Spec::hollow(16, 1 << 20) };
        Spec { index_heads: 4, experts: 4, ..parts }
    }

    fn told(spec: &Spec, numerics: Numerics, ranks: usize) -> Option<String> {
        Shard::check(spec, numerics, ranks).err().map(|error| error.to_string())
    }

    #[test]
    fn shares_are_everything_once() {
        let spec = spec();
        let shards: Vec<Shard> = (0..2).map(|rank| Shard::of(&spec, rank, 2)).collect();
        assert_eq!((shards[0].heads.clone(), shards[1].heads.clone()), (0..2, 2..4));
        assert_eq!((shards[0].groups.clone(), shards[1].groups.clone()), (0..1, 1..2));
        assert_eq!((shards[0].vocab.clone(), shards[1].vocab.clone()), (0..8, 8..16));
        assert_eq!(Shard::of(&spec, 0, 1).experts, 0..spec.experts);
    }

    #[test]
    fn a_rehearsal_is_of_the_first_rank_alone_or_of_all() {
        let spec = spec();
        let shards = |ranks, of_ranks| {
            let rehearsal = Some(Rehearsal { of_ranks, seed: 0 });
            let shards = Shard::of_ranks(&spec, Numerics::EXACT, ranks, rehearsal)?;
            Ok(shards.into_iter().map(|shard| (shard.heads.start, shard.heads.end)).collect::<Vec<_>>())
        };
        assert_eq!(shards(1, 2), Ok(vec![(0, 2)]));
        assert_eq!(shards(2, 2), Ok(vec![(0, 2), (2, 4)]));
        assert_eq!(shards(2, 4), Err(ShardError::Rehearsal { ranks: 2, of_ranks: 4 }));
        assert_eq!(Shard::of_ranks(&spec, Numerics::EXACT, 2, None).unwrap().len(), 2);
    }

    #[test]
    fn what_does_not_divide_is_named_with_the_flag() {
        let spec = spec();
        assert_eq!(told(&spec, Numerics::EXACT, 1), None);
        assert_eq!(told(&spec, Numerics::EXACT, 2), None);
        let expected = "--tp 4: 4 ranks cannot share this model's 2 o_groups evenly, use --tp 2";
        assert_eq!(told(&spec, Numerics::EXACT, 4).as_deref(), Some(expected));
        assert_eq!(told(&spec, Numerics::EXACT, 3).as_deref(), Some("--tp 3: there can be 1, 2 or 4 ranks"));
        let odd = Spec { experts: 5, ..spec.clone() };
        let expected = "--tp 2: 2 ranks cannot share this model's 5 routed experts evenly, use --tp 1";
        assert_eq!(told(&odd, Numerics::EXACT, 2).as_deref(), Some(expected));
        let rounding = Numerics { act: Activations::E4m3, ..Numerics::EXACT };
        assert!(told(&spec, rounding, 2).unwrap().contains("64 columns of wo_b in blocks of 128"));
        assert_eq!(told(&spec, rounding, 1), None);
    }
}
