//! What runs when: blocks of A, B, B, A, each run written down as it ends. A block that was cut off is begun anew, since its
//! runs belong together in time; whole blocks that the results have already are not measured again.

use crate::sweep::{Results, RunKey, RunRecord, whole_blocks};
use crate::{LabError, Measurement, Point};
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Side {
    A,
    B,
}

impl Side {
    /// Of the four runs of a block.
    pub const ORDER: [Side; 4] = [Side::A, Side::B, Side::B, Side::A];
}

/// Which runs of a results file the blocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// A and B are the same thing.
    Noise,
    Pair,
}

/// For a line on the terminal.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    WarmingUp(Side),
    /// Place 0 to 3 of a block ended.
    Ended {
        block: usize,
        place: usize,
        record: &'a RunRecord,
    },
}

pub struct Course<'a> {
    pub point: Point,
    pub phase: Phase,
    pub results: &'a mut Results,
    /// Runs one side once.
    pub measure: &'a mut dyn FnMut(Side) -> Result<Measurement, LabError>,
    pub progress: &'a mut dyn FnMut(Progress<'_>),
    is_warm: bool,
}

impl<'a> Course<'a> {
    pub fn new(
        point: Point,
        phase: Phase,
        results: &'a mut Results,
        measure: &'a mut dyn FnMut(Side) -> Result<Measurement, LabError>,
        progress: &'a mut dyn FnMut(Progress<'_>),
    ) -> Self {
        Course { point, phase, results, measure, progress, is_warm: false }
    }

    /// Measures until there are so many whole blocks, and returns those, oldest first.
    ///
    /// # Errors
    /// A side cannot be measured, or a run cannot be written down. What was measured before stays valid.
    pub fn until(&mut self, blocks: usize) -> Result<Vec<[&RunRecord; 4]>, LabError> {
        let whole: Vec<usize> = self.whole().into_iter().map(|(block, _)| block).collect();
        for block in (0..blocks).filter(|block| !whole.contains(block)) {
            self.warm_up()?;
            for (place, side) in Side::ORDER.into_iter().enumerate() {
                let measurement = (self.measure)(side)?;
                let record = self.results.append(RunRecord { key: self.key(block, place), measurement })?;
                (self.progress)(Progress::Ended { block, place, record });
            }
        }
        Ok(self.whole().into_iter().filter(|(block, _)| *block < blocks).map(|(_, runs)| runs).collect())
    }

    /// Whatever runs first is slow in ways that no later run is.
    fn warm_up(&mut self) -> Result<(), LabError> {
        if self.is_warm {
            return Ok(());
        }
        let sides: &[Side] = match self.phase {
            Phase::Noise => &[Side::A],
            Phase::Pair => &[Side::A, Side::B],
        };
        for side in sides {
            (self.progress)(Progress::WarmingUp(*side));
            (self.measure)(*side)?;
        }
        self.is_warm = true;
        Ok(())
    }

    fn key(&self, block: usize, place: usize) -> RunKey {
        let point = self.point;
        match self.phase {
            Phase::Noise => RunKey::Noise { block, place, point },
            Phase::Pair => RunKey::Pair { block, place, point },
        }
    }

    fn whole(&self) -> Vec<(usize, [&RunRecord; 4])> {
        whole_blocks(self.results.records(), |key| match (*key, self.phase) {
            (RunKey::Noise { block, place, point }, Phase::Noise)
            | (RunKey::Pair { block, place, point }, Phase::Pair)
                if point == self.point =>
            {
                Some((block, place))
            }
            _ => None,
        })
    }
}
