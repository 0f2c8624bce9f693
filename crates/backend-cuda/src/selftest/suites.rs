//! What is timed: lists of cases by name.

use super::inputs::{Case, Exponents, Lengths, ListShape};

const BATCHES: [usize; 10] = [1, 8, 16, 32, 48, 64, 80, 96, 128, 256];
const FEW_BATCHES: [usize; 5] = [1, 16, 64, 128, 256];
const HEADS: [usize; 3] = [16, 32, 64];

/// The pools that all timed cases share.
pub fn pools(entries: usize, seed: u64) -> Case {
    Case {
        name: "pools".into(),
        rows: 1,
        heads: 1,
        window: ListShape { capacity: 128, page_entries: 64, entries: entries / 2 },
        extra: ListShape { capacity: 512, page_entries: 64, entries },
        lengths: Lengths::Full,
        exponents: Exponents::Natural,
        q_scale: 1.0,
        masked_one_in: 0,
        sinks_off: 0,
        seed,
    }
}

/// `main`: window alone and with 512 compressed entries at every head count; `steps`: 16 and 32 heads at every batch size
/// from 15 to 256; `few`: around the ends of waves; `large`: four cases for a profiler; `long`: other lengths of the compressed list; `uneven`: rows of different lengths. Unknown names are
/// empty suites.
pub fn cases(suites: &[String], pools: &Case) -> Vec<Case> {
    let of = |rows: usize, heads: usize, capacity: usize, lengths: Lengths| {
        let name = if capacity == 0 { "128".into() } else { format!("128+{capacity}") };
        Case { name, rows, heads, extra: ListShape { capacity, ..pools.extra }, lengths, ..pools.clone() }
    };
    let grid = |capacities: &[usize], batches: &[usize], lengths: Lengths| -> Vec<Case> {
        let mut cases = Vec::new();
        for capacity in capacities {
            for heads in HEADS {
                cases.extend(batches.iter().map(|rows| of(*rows, heads, *capacity, lengths)));
            }
        }
        cases
    };
    let suite = |name: &str| match name {
        "main" => grid(&[0, 512], &BATCHES, Lengths::Full),
        "steps" => [16, 32]
            .iter()
            .flat_map(|heads| (15..=256).map(|rows| of(rows, *heads, 512, Lengths::Full)))
            .collect(),
        "large" => vec![
            of(256, 16, 512, Lengths::Full),
            of(128, 32, 512, Lengths::Full),
            of(128, 16, 8192, Lengths::Full),
            of(128, 32, 8192, Lengths::Full),
        ],
        "few" => [(128, 16), (132, 16), (133, 16), (256, 16), (80, 32), (256, 32), (80, 64), (256, 64)]
            .iter()
            .map(|&(rows, heads)| of(rows, heads, 512, Lengths::Full))
            .collect(),
        "long" => grid(&[64, 1024, 8192], &FEW_BATCHES, Lengths::Full),
        "uneven" => [Lengths::Uneven, Lengths::OneLong]
            .into_iter()
            .flat_map(|lengths| grid(&[512, 8192], &FEW_BATCHES, lengths))
            .collect(),
        _ => vec![],
    };
    if suites.is_empty() { suite("main") } else { suites.iter().flat_map(|name| suite(name)).collect() }
}
