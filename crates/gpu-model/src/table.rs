//! Tables of what decode attention's kernels cost on a device: checked in under `tables/`, one file a device, built into the
//! binary, made by `overshot lab tune` from measured times. A device without a table of its own is served with the costs of
//! another, and every choice says so.

use crate::choose::{Costs, KernelShape, Target};
use crate::device::Architecture;
use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

const H200: &str = include_str!("../tables/decode-h200.json");
/// A kernel has a few hundred bytes in a table.
pub const TABLE_BYTES_MAX: usize = 1 << 20;
const ENTRIES_MAX: usize = 256;

/// Shared memory that a CTA may have, as kernels are made for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SharedMemory {
    /// Less: 99 KiB on sm_89 and sm_12x.
    Small,
    /// 227 KiB: sm_90, sm_10x, sm_110.
    Large,
}

/// A kernel, its costs, and how well they describe what was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub shape: KernelShape,
    /// The devices that this kernel is chosen for; none when it is only kept for comparison.
    pub serves: Option<SharedMemory>,
    pub costs: Costs,
    pub residuals: Residuals,
}

/// Predicted over measured, less 1, over all points of the fit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Residuals {
    pub points: usize,
    /// Root of the mean square.
    pub percent: f64,
    /// The one furthest from 0.
    pub worst_percent: f64,
}

/// What of measured times was lost by the choices: over the best kernel timed at a shape, less 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lost {
    pub shapes: usize,
    pub mean_percent: f64,
    pub worst_percent: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// A card by its name in `device.rs`.
    pub card: String,
    /// Files of measured times.
    pub runs: Vec<String>,
    pub lost: Lost,
    pub kernels: Vec<Entry>,
}

/// Whose costs a choice rests on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    Measured {
        card: String,
    },
    /// No table for this device.
    Fallback {
        card: String,
        device: String,
    },
}

#[derive(Debug, Error)]
pub enum TableError {
    #[error("this is no table of kernel costs: {0}")]
    Json(#[from] serde_json::Error),
    #[error("{given} bytes: a table has at most {TABLE_BYTES_MAX}")]
    TooLong { given: usize },
    #[error("{kernel}: {field} is {given}: costs are finite and at least 0")]
    Cost { kernel: String, field: &'static str, given: f64 },
    #[error("{given} kernels: a table has 1 to {ENTRIES_MAX}")]
    Entries { given: usize },
    #[error("{kernel} stands there twice")]
    Twice { kernel: String },
    #[error("no kernel serves devices with {memory:?} shared memory")]
    Unserved { memory: SharedMemory },
}

impl SharedMemory {
    /// Of an architecture; unknown ones are taken to have little.
    pub fn of_sm(sm: u32) -> Self {
        const LARGE_BYTES: u32 = 227 << 10;
        match Architecture::of_sm(sm) {
            Ok(known) if known.shared_bytes_per_cta >= LARGE_BYTES => SharedMemory::Large,
            _ => SharedMemory::Small,
        }
    }
}

impl Table {
    /// The table that is built in; its costs are those of the card it names.
    pub fn built_in() -> Self {
        Table::parse(H200).expect("a test reads the table that is checked in")
    }

    /// # Errors
    /// Text that is no table, costs that cannot be, devices that nothing serves.
    pub fn parse(text: &str) -> Result<Self, TableError> {
        if text.len() > TABLE_BYTES_MAX {
            return Err(TableError::TooLong { given: text.len() });
        }
        let table: Table = serde_json::from_str(text)?;
        table.check()?;
        Ok(table)
    }

    fn check(&self) -> Result<(), TableError> {
        if !(1..=ENTRIES_MAX).contains(&self.kernels.len()) {
            return Err(TableError::Entries { given: self.kernels.len() });
        }
        for (index, entry) in self.kernels.iter().enumerate() {
            let kernel = || entry.shape.name.clone();
            let Costs { launch_us, start_us, tile_us, crowded_start_us, crowded_tile_us, share_us, part_us } =
                entry.costs;
            for (field, given) in [
                ("launch_us", launch_us),
                ("start_us", start_us),
                ("tile_us", tile_us),
                ("crowded_start_us", crowded_start_us),
                ("crowded_tile_us", crowded_tile_us),
                ("share_us", share_us),
                ("part_us", part_us),
            ] {
                // A second for one tile is no cost of a kernel; products with it stay finite.
                if !(0.0..=1e6).contains(&given) {
                    return Err(TableError::Cost { kernel: kernel(), field, given });
                }
            }
            if self.kernels[..index].iter().any(|other| other.shape.name == entry.shape.name) {
                return Err(TableError::Twice { kernel: kernel() });
            }
        }
        for memory in [SharedMemory::Small, SharedMemory::Large] {
            if !self.kernels.iter().any(|entry| entry.serves == Some(memory)) {
                return Err(TableError::Unserved { memory });
            }
        }
        Ok(())
    }

    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.kernels.iter().find(|entry| entry.shape.name == name)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.kernels.iter().map(|entry| entry.shape.name.as_str())
    }

    /// The kernels that are chosen from on this architecture.
    pub fn serving(&self, sm: u32) -> impl Iterator<Item = &Entry> {
        let memory = SharedMemory::of_sm(sm);
        self.kernels.iter().filter(move |entry| entry.serves == Some(memory))
    }

    /// Costs for a kernel that may have none of its own: then those of one that deals alike, with tiles of the same size if
    /// there is one.
    pub fn costs_like(&self, shape: &KernelShape) -> Costs {
        let alike = |entry: &&Entry| entry.shape.dealing == shape.dealing;
        let found = self
            .entry(&shape.name)
            .or_else(|| self.kernels.iter().filter(alike).find(|entry| entry.shape.tile == shape.tile))
            .or_else(|| self.kernels.iter().find(alike));
        found.map_or_else(Costs::default, |entry| entry.costs)
    }

    pub fn basis(&self, target: &Target) -> Basis {
        let card = self.card.clone();
        let name = target.name.strip_prefix("NVIDIA ").unwrap_or(&target.name);
        if name == card {
            Basis::Measured { card }
        } else {
            Basis::Fallback { card, device: target.name.clone() }
        }
    }
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Basis::Measured { card } => write!(f, "costs measured on this card ({card})"),
            Basis::Fallback { card, device } => {
                write!(f, "no table for {device}: costs of the {card}, so the times are not this card's")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_that_is_checked_in_is_read() {
        let table = Table::parse(H200).unwrap();
        for sm in [90, 100, 103, 120, 121, 999] {
            assert!(table.serving(sm).count() >= 2, "sm_{sm}");
        }
        assert_eq!(SharedMemory::of_sm(90), SharedMemory::Large);
        assert_eq!(SharedMemory::of_sm(120), SharedMemory::Small);
    }

    #[test]
    fn tables_that_cannot_be_are_refused_by_name() {
        let refused =
            |from: &str, to: &str| Table::parse(&H200.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(refused("\"launch_us\": ", "\"launch_us\": -1").contains("launch_us"));
        assert!(refused("\"launch_us\"", "\"lunch_us\"").contains("lunch_us"));
        assert!(refused("\"large\"", "\"middling\"").contains("middling"));
        assert!(refused("v6_m1_t64_s4_x1", "v7_m1_t64_s4_q1").contains("twice"));
        let unserved = H200.replace("\"small\"", "null");
        assert!(Table::parse(&unserved).unwrap_err().to_string().contains("Small"));
        assert!(Table::parse(&" ".repeat(TABLE_BYTES_MAX + 1)).is_err());
        assert!(Table::parse("[").is_err());
    }

    #[test]
    fn a_strange_device_is_told_apart() {
        let table = Table::built_in();
        let target =
            |name: &str| Target { name: name.into(), sm: 90, multiprocessors: std::num::NonZeroU32::MIN };
        assert_eq!(table.basis(&target("NVIDIA H200")), Basis::Measured { card: "H200".into() });
        assert!(table.basis(&target("NVIDIA H20")).to_string().contains("no table for NVIDIA H20"));
    }
}
