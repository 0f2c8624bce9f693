//! The reader of cubins against what NVIDIA's own tools say of the same files, and against damaged ones.

#![allow(clippy::unwrap_used)]

use overshot_gpu_model::{Architecture, Cubin, CubinError, KernelResources, Launch};
use std::path::PathBuf;

fn data(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn kernel(file: &str, name: &str) -> KernelResources {
    let cubin = Cubin::read(&data(file)).unwrap();
    cubin.kernels.into_iter().find(|kernel| kernel.name == name).unwrap()
}

const FILES: [(&str, u32); 4] =
    [("sm_80.cubin", 80), ("sm_90a.cubin", 90), ("sm_90a.cuda12.cubin", 90), ("sm_120a.cubin", 120)];

#[test]
fn agrees_with_the_assembler() {
    let table = String::from_utf8(data("ptxas.tsv")).unwrap();
    let mut compared = 0;
    for line in table.lines().skip(2) {
        let cells: Vec<&str> = line.split('\t').collect();
        let number = |index: usize| cells[index].parse::<u32>().unwrap();
        let found = kernel(cells[0], cells[1]);
        let what = format!("{} of {}", cells[1], cells[0]);
        assert_eq!(found.registers_per_thread, number(2), "registers of {what}");
        assert_eq!(found.static_shared_bytes, number(3), "shared memory of {what}");
        assert_eq!(found.named_barriers, number(4), "barriers of {what}");
        assert_eq!(found.stack_bytes, number(5), "stack of {what}");
        assert_eq!(found.spill_instructions > 0, number(6) + number(7) > 0, "spills of {what}");
        compared += 1;
    }
    assert_eq!(compared, 24);
}

#[test]
fn the_file_says_its_architecture_and_its_kernels() {
    for (file, sm) in FILES {
        let cubin = Cubin::read(&data(file)).unwrap();
        let names: Vec<&str> = cubin.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
        let expected = [
            "constant_barriers",
            "dynamic_shared",
            "register_barrier",
            "spilling",
            "stack_user",
            "static_shared",
        ];
        assert_eq!((cubin.sm, names.as_slice()), (sm, expected.as_slice()), "{file}");
        assert!(cubin.kernels.iter().all(|kernel| kernel.code_bytes > 0 && kernel.parameter_bytes > 0));
    }
}

#[test]
fn spills_are_told_from_a_stack_that_the_source_asked_for() {
    for (file, _) in FILES {
        let (spilling, stack) = (kernel(file, "spilling"), kernel(file, "stack_user"));
        assert!(spilling.stack_bytes > 0 && spilling.spill_instructions >= 20, "{file}: {spilling:?}");
        assert_eq!((stack.stack_bytes, stack.spill_instructions), (200, 0), "{file}");
    }
}

#[test]
fn launch_bounds_are_read_where_they_are() {
    for (file, _) in FILES {
        assert_eq!(kernel(file, "static_shared").max_threads, Some(128), "{file}");
        assert_eq!(kernel(file, "dynamic_shared").max_threads, Some(256), "{file}");
        assert_eq!(kernel(file, "stack_user").max_threads, None, "{file}");
    }
}

/// The trap of sm_120: 24 named barriers an SM, and a number in a register takes all 16 of a CTA.
#[test]
fn a_barrier_number_in_a_register_costs_the_second_cta() {
    let launch = |file: &str, name: &str| {
        let kernel = kernel(file, name);
        Launch {
            warps_per_cta: 2,
            registers_per_thread: kernel.registers_per_thread,
            shared_bytes_per_cta: kernel.static_shared_bytes,
            named_barriers_per_cta: kernel.named_barriers,
        }
    };
    let ctas =
        |sm: u32, launch: Launch| launch.occupancy(&Architecture::of_sm(sm).unwrap()).unwrap().ctas_per_sm;
    assert_eq!(ctas(120, launch("sm_120a.cubin", "register_barrier")), 1);
    assert_eq!(ctas(120, launch("sm_120a.cubin", "constant_barriers")), 4);
    assert_eq!(ctas(90, launch("sm_90a.cubin", "register_barrier")), 4);
}

#[test]
fn what_is_no_cubin_is_named() {
    assert_eq!(Cubin::read(b""), Err(CubinError::Empty));
    assert_eq!(Cubin::read(b"//\n// Generated\n.version 8.8\n.target sm_120a\n"), Err(CubinError::Ptx));
    assert_eq!(Cubin::read(&[0x50, 0xed, 0x55, 0xba, 1, 0]), Err(CubinError::FatBinary));
    assert!(matches!(Cubin::read(b"\x7fELF"), Err(CubinError::NotElf { .. })));
    assert!(matches!(Cubin::read(b"some text"), Err(CubinError::NotElf { .. })));
    assert!(matches!(Cubin::read(&data("ptxas.tsv")), Err(CubinError::NotElf { .. })));
    let mut other = data("sm_120a.cubin");
    other[18] = 62;
    assert_eq!(Cubin::read(&other), Err(CubinError::HostProgram));
    other[18] = 8;
    assert_eq!(Cubin::read(&other), Err(CubinError::OtherMachine { machine: 8 }));
    for error in [CubinError::Empty, CubinError::Ptx, CubinError::FatBinary] {
        assert!(!error.to_string().contains('\n'));
    }
}

#[test]
fn files_cut_short_are_errors_at_every_length() {
    let whole = data("sm_90a.cubin");
    for length in (0..whole.len()).step_by(61) {
        assert!(Cubin::read(&whole[..length]).is_err(), "{length} of {} bytes", whole.len());
    }
}

/// Any bytes give a cubin or an error.
#[test]
fn damaged_files_do_no_harm() {
    let cases = overshot_testing::cases(2000);
    let seed = overshot_testing::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let originals: Vec<Vec<u8>> = FILES.iter().map(|(file, _)| data(file)).collect();
    let mut read = 0;
    for _ in 0..cases {
        let mut bytes = originals[random.usize(..originals.len())].clone();
        for _ in 0..random.usize(1..12) {
            damage(&mut bytes, &mut random);
        }
        if let Ok(cubin) = Cubin::read(&bytes) {
            read += 1;
            let names: usize = cubin.kernels.iter().map(|kernel| kernel.name.len()).sum();
            assert!(names <= 4 * bytes.len(), "seed {seed}: names of {names} bytes");
        }
    }
    println!("{read} of {cases} could still be read");
}

fn damage(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
    if bytes.len() < 64 {
        return;
    }
    let table = u64::from_le_bytes(*bytes[40..].first_chunk().unwrap()) as usize;
    let at = match random.u8(..4) {
        0 => random.usize(..64),
        // Section headers, where damage is likeliest to be believed.
        1 if table < bytes.len() => table + random.usize(..bytes.len() - table),
        _ => random.usize(..bytes.len()),
    };
    match random.u8(..6) {
        0 => bytes.truncate(at),
        1 => bytes[at] ^= 1 << random.u8(..8),
        2 => bytes[at] = random.u8(..),
        3 => bytes[at] = *random.choice(&[0, 1, 0x7f, 0x80, 0xff]).unwrap(),
        4 => {
            let end = (at + random.usize(1..9)).min(bytes.len());
            bytes[at..end].fill(0xff);
        }
        _ => {
            let from = random.usize(..bytes.len());
            let length = random.usize(1..65).min(bytes.len() - at.max(from));
            bytes.copy_within(from..from + length, at);
        }
    }
}
