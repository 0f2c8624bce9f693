//! Occupancy against NVIDIA's own answers on a grid, against the oracle's tables, and gates against the limits they open.

#![allow(clippy::unwrap_used)]

use overshot_gpu_model::device::ARCHITECTURES;
use overshot_gpu_model::{Architecture, Launch, Resource};
use serde_json::Value;

const GRID: &str = include_str!("data/occupancy_grid.tsv");
const FORMULAS: &str = include_str!("data/formulas.json");

/// The answers themselves would be 11 MB; their hash was taken by a program that calls NVIDIA's header.
#[test]
fn agrees_with_the_vendor_on_a_grid() {
    let mut points_in_all = 0;
    for line in GRID.lines().skip(2) {
        let cells: Vec<&str> = line.split('\t').collect();
        let number = |index: usize| cells[index].parse::<u32>().unwrap();
        let architecture = Architecture::of_sm(number(0)).unwrap();
        let (points, hash) = grid(&architecture, number(1) as usize, number(2) as usize);
        assert_eq!((points, format!("{hash:016x}")), (number(3), cells[4].to_owned()), "{architecture}");
        points_in_all += points;
    }
    assert!(points_in_all > 10_000_000, "{points_in_all} points");
}

/// Order and range as in the program that asked the header: warps, registers, shared memory from 0 to a little above
/// the limit, barriers.
fn grid(architecture: &Architecture, register_step: usize, shared_step: usize) -> (u32, u64) {
    let (mut points, mut hash) = (0, 0xcbf2_9ce4_8422_2325_u64);
    for warps_per_cta in 1..=32 {
        for registers_per_thread in (16..=255).step_by(register_step) {
            for shared_bytes_per_cta in (0..=architecture.shared_bytes_per_cta + 512).step_by(shared_step) {
                for named_barriers_per_cta in [0, 1, 5, 16] {
                    let launch = Launch {
                        warps_per_cta,
                        registers_per_thread,
                        shared_bytes_per_cta,
                        named_barriers_per_cta,
                    };
                    let ctas = launch.ctas_per_sm(architecture).unwrap();
                    hash = (hash ^ u64::from(ctas)).wrapping_mul(0x100_0000_01b3);
                    points += 1;
                }
            }
        }
    }
    (points, hash)
}

#[test]
fn agrees_with_the_oracle() {
    let formulas: Value = serde_json::from_str(FORMULAS).unwrap();
    let rows = formulas["occupancy"]["rows"].as_array().unwrap();
    assert!(rows.len() > 500);
    for row in rows {
        let number = |index: usize| row[index].as_u64().unwrap() as u32;
        let architecture: Architecture = row[0].as_str().unwrap().parse().unwrap();
        let launch = Launch {
            warps_per_cta: number(1),
            registers_per_thread: number(2),
            shared_bytes_per_cta: number(3) << 10,
            named_barriers_per_cta: 0,
        };
        let ctas = launch.ctas_per_sm(&architecture).unwrap();
        // The oracle does not know that a CTA's registers are checked as if its warps filled all partitions.
        if ctas != number(4) {
            assert_eq!((ctas, number(1) % 4 != 0), (0, true), "{row}");
        }
    }
}

#[test]
fn a_gate_opens_at_its_number_and_not_one_above() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..20_000 {
        let architecture = *random.choice(&ARCHITECTURES).unwrap();
        let launch = Launch {
            warps_per_cta: random.u32(1..=32),
            registers_per_thread: random.u32(1..=255),
            shared_bytes_per_cta: random.u32(0..=architecture.shared_bytes_per_cta + 4096),
            named_barriers_per_cta: random.u32(0..=16),
        };
        let gate = launch.gate(&architecture).unwrap();
        let what = format!("seed {seed}: {architecture} {launch:?} {gate:?}");
        if !gate.walls.is_empty() {
            assert!(gate.needs.is_empty(), "{what}");
            continue;
        }
        let open = gate.needs.iter().fold(launch, |launch, need| with(launch, need.resource, need.at_most));
        assert!(open.ctas_per_sm(&architecture).unwrap() >= gate.ctas_per_sm, "{what}");
        let fewer_warps = gate.needs.iter().any(|need| need.resource == Resource::Warps);
        for need in &gate.needs {
            // Registers are counted with the warps as they are: with fewer warps there is room for more of them.
            if fewer_warps && need.resource == Resource::Registers {
                continue;
            }
            // One more of any and the gate is shut again.
            let shut = with(open, need.resource, need.at_most + 1);
            let still_open = shut.ctas_per_sm(&architecture).is_ok_and(|ctas| ctas >= gate.ctas_per_sm);
            assert!(!still_open && need.at_most < need.has, "{what}");
        }
    }
}

fn with(launch: Launch, resource: Resource, amount: u32) -> Launch {
    match resource {
        Resource::Registers => Launch { registers_per_thread: amount, ..launch },
        Resource::SharedMemory => Launch { shared_bytes_per_cta: amount, ..launch },
        Resource::Warps => Launch { warps_per_cta: amount, ..launch },
        Resource::NamedBarriers => Launch { named_barriers_per_cta: amount, ..launch },
        Resource::CtaSlots => launch,
    }
}
