//! Occupancy against NVIDIA's own answers on a grid, against the oracle's tables, and gates against the limits they open.

#![allow(clippy::unwrap_used)]

use overshot_gpu_model::device::ARCHITECTURES;
use overshot_gpu_model::{Architecture, Launch, Resource};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

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
        let steps = Steps { registers: number(1), shared_bytes: number(2) };
        let (mut points, mut hash) = (0, 0xcbf2_9ce4_8422_2325_u64);
        for launch in grid(architecture, steps) {
            let ctas = launch.ctas_per_sm(&architecture).unwrap();
            hash = (hash ^ u64::from(ctas)).wrapping_mul(0x100_0000_01b3);
            points += 1;
        }
        assert_eq!((points, format!("{hash:016x}")), (number(3), cells[4].to_owned()), "{architecture}");
        points_in_all += points;
    }
    assert!(points_in_all > 10_000_000, "{points_in_all} points");
}

/// Names the folder of NVIDIA's `cuda_occupancy.h`, which is not part of this repository.
const HEADER_VARIABLE: &str = "OVERSHOT_OCCUPANCY_HEADER";

/// The header itself, launch by launch. Needs it and a C compiler; without the header nothing is asked, and the test says so.
#[test]
fn agrees_with_the_header_where_it_is_at_hand() {
    let Some(folder) = std::env::var_os(HEADER_VARIABLE) else {
        eprintln!("SKIPPED: NVIDIA's occupancy header was not asked ({HEADER_VARIABLE} names no folder)");
        return;
    };
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ask_header");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/ask_header.c");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let compiled =
        Command::new(compiler).arg("-O2").arg("-I").arg(folder).arg("-o").arg(&program).arg(source).status();
    assert!(compiled.unwrap().success(), "the program that asks the header does not compile");
    let steps = Steps { registers: 2, shared_bytes: 1531 };
    for architecture in ARCHITECTURES {
        let answers = Command::new(&program)
            .args([architecture.sm, architecture.warps_per_sm].map(|number| number.to_string()))
            .args(
                [architecture.shared_bytes_per_sm, architecture.shared_bytes_per_cta].map(|n| n.to_string()),
            )
            .args([steps.registers, steps.shared_bytes].map(|step| step.to_string()))
            .output()
            .unwrap();
        assert!(answers.status.success(), "the header does not know {architecture}");
        let mut points = 0;
        for (launch, answer) in grid(architecture, steps).zip(&answers.stdout) {
            assert_eq!(
                launch.ctas_per_sm(&architecture).unwrap(),
                u32::from(*answer),
                "{architecture}: {launch:?}"
            );
            points += 1;
        }
        assert_eq!((points, grid(architecture, steps).count()), (answers.stdout.len(), points));
        println!("{architecture}: {points} launches as the header says");
        assert!(points >= 1_000_000);
    }
}

#[derive(Clone, Copy)]
struct Steps {
    registers: u32,
    shared_bytes: u32,
}

/// Order and range as in `data/ask_header.c`: warps, registers, shared memory from 0 to a little above the limit, barriers.
fn grid(architecture: Architecture, steps: Steps) -> impl Iterator<Item = Launch> {
    let registers = move || (16..=255).step_by(steps.registers as usize);
    let shared_bytes =
        move || (0..=architecture.shared_bytes_per_cta + 512).step_by(steps.shared_bytes as usize);
    (1..=32).flat_map(move |warps_per_cta| {
        registers().flat_map(move |registers_per_thread| {
            shared_bytes().flat_map(move |shared_bytes_per_cta| {
                [0, 1, 5, 16].into_iter().map(move |named_barriers_per_cta| Launch {
                    warps_per_cta,
                    registers_per_thread,
                    shared_bytes_per_cta,
                    named_barriers_per_cta,
                })
            })
        })
    })
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
    let seed = overshot_testing::seed();
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
