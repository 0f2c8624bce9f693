//! The whole cache state of one sequence: its pages, its length, and how far it can go back.

use crate::{PageTable, Pool};

/// Positions that a set can undo. The rings in a backend's pools are sized for it: they keep the rows of this
/// many positions beyond what a query or an unfinished compression window needs (window: 256 slots for 128;
/// ratio-4 rows: 16 for 8; ratio-128 rows: 136 for 128).
pub const ROLLBACK: usize = 8;

#[derive(Clone, Debug, Default)]
pub(crate) struct Set {
    pub table: PageTable,
    /// Positions held: `0 .. len`.
    pub len: usize,
    /// The greatest length it, or the set that it was copied from, ever had. What was written up to there has
    /// overwritten older ring slots for good, so it is from here that undone positions count, not from `len`:
    /// append 8, undo 8, append 1 leaves one position to undo, not 8.
    pub furthest: usize,
}

impl Set {
    /// Positions that can be undone now with every byte that is needed still in place.
    pub fn rollback_room(&self) -> usize {
        self.len.min((self.len + ROLLBACK).saturating_sub(self.furthest))
    }

    /// What is wrong with it, leaving out what only all sets together can tell.
    pub fn check(&self, name: &str) -> Vec<String> {
        let mut wrong = Vec::new();
        for pool in Pool::ALL {
            let (held, due) = (self.table.pages(pool), pool.pages_for(self.len));
            if held.len() != due {
                wrong.push(format!(
                    "{name}: {} {pool:?} pages, {} positions need {due}",
                    held.len(),
                    self.len
                ));
            }
            let mut sorted = held.to_vec();
            sorted.sort_unstable();
            for twice in sorted.windows(2).filter(|pair| pair[0] == pair[1]) {
                wrong.push(format!("{name}: {pool:?} page {} is in its table twice", twice[0].0));
            }
        }
        if !(self.len..=self.len.saturating_add(ROLLBACK)).contains(&self.furthest) {
            wrong.push(format!("{name}: {} positions, but it once reached {}", self.len, self.furthest));
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_to_roll_back_counts_from_the_furthest_position() {
        let room = |len, furthest| Set { table: PageTable::default(), len, furthest }.rollback_room();
        assert_eq!(room(0, 0), 0);
        assert_eq!(room(5, 5), 5);
        assert_eq!(room(100, 100), 8);
        assert_eq!(room(95, 100), 3);
        assert_eq!(room(92, 100), 0);
        assert_eq!(room(2, 5), 2);
    }
}
