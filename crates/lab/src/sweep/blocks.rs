//! Runs that belong together as A, B, B, A: found in records, and only when all four are there.

use super::{RunKey, RunRecord};
use std::collections::BTreeMap;

/// The four runs of every whole block in the order of their places, ascending by the name that `place_of` gives a block.
pub fn whole_blocks<Name: Ord>(
    records: &[RunRecord],
    place_of: impl Fn(&RunKey) -> Option<(Name, usize)>,
) -> Vec<(Name, [&RunRecord; 4])> {
    let mut places: BTreeMap<Name, BTreeMap<usize, &RunRecord>> = BTreeMap::new();
    for record in records {
        if let Some((name, place)) = place_of(&record.key) {
            places.entry(name).or_default().insert(place, record);
        }
    }
    let whole = places.into_iter().filter_map(|(name, runs)| {
        let [a1, b1, b2, a2] = [0, 1, 2, 3].map(|place| runs.get(&place).copied());
        Some((name, [a1?, b1?, b2?, a2?]))
    });
    whole.collect()
}
