//! What each shipped kernel may use, read out of its cubin without a GPU: a change of registers, spills, shared memory or
//! blocks per multiprocessor is a change of speed and must be made on purpose, here. The plain first versions of the other
//! kernels must compile for both architectures and spill nothing.
//!
//! Needs NVRTC (pip package nvidia-cuda-nvrtc, 109 MB; OVERSHOT_NVRTC names the library). Without it nothing is checked,
//! and the test says so.
#![allow(clippy::unwrap_used)]

use overshot_backend_cuda::backend;
use overshot_backend_cuda::cubins::Source;
use overshot_backend_cuda::cuda::Compiler;
use overshot_backend_cuda::decode::Variant;
use overshot_backend_cuda::matmul;
use overshot_gpu_model::{Architecture, Cubin, Launch};

/// Compiled with NVRTC 13.0. `spilled` counts instructions: no shipped kernel has any.
struct Gate {
    sm: u32,
    variant: &'static str,
    registers_at_most: u32,
    spilled_at_most: u32,
    blocks_per_multiprocessor: u32,
}

const GATES: [Gate; 6] = [
    // Ships nowhere: kept as it was, with all of an sm_120 block's shared memory, where it spills a little.
    gate(90, "v3", 128, 0, 2),
    gate(120, "v3", 128, 6, 1),
    gate(90, "v6_m1_t64_s4_x1", 128, 0, 1),
    gate(90, "v7_m1_t64_s4_q1", 128, 0, 1),
    gate(120, "v6_m1_t32_s4_x1", 128, 0, 1),
    gate(120, "v7_m1_t32_s3_q1", 128, 0, 1),
];

const fn gate(sm: u32, variant: &'static str, registers: u32, spilled: u32, blocks: u32) -> Gate {
    Gate {
        sm,
        variant,
        registers_at_most: registers,
        spilled_at_most: spilled,
        blocks_per_multiprocessor: blocks,
    }
}

/// Of the matmul family: variant, registers at most of each of its kernels, blocks per multiprocessor of sm_90 and of sm_120.
/// No spills.
const MATMUL_GATES: [(&str, u32, [u32; 2]); 9] = [
    ("dense_v3_r8c1t1_m1n1_b128_s3", 128, [2, 1]),
    ("dense_v3_r8c1t1_m1n2_b64_s4", 128, [2, 1]),
    ("dense_v3_r8c1t1_m1n4_b64_s4", 128, [2, 1]),
    ("dense_v3_r4c1t2_m2n4_b64_s2", 176, [1, 1]),
    ("experts_v3_r2c2t1_m2n1_b64_s3", 128, [4, 1]),
    ("experts_v3_r4c1t1_m2n1_b64_s4", 128, [4, 1]),
    ("experts_v3_r4c1t1_m2n2_b64_s3", 128, [4, 1]),
    ("experts_v3_r4c1t2_m2n2_b64_s4", 128, [2, 1]),
    ("experts_v3_r4c1t2_m2n4_b64_s2", 128, [2, 1]),
];

/// Version 2 of attention: registers at most, blocks per multiprocessor, on both.
const ATTENTION_GATE: (u32, u32) = (128, 2);

fn compiler() -> Option<Compiler> {
    match Compiler::open() {
        Ok(compiler) => Some(compiler),
        Err(error) => {
            eprintln!("SKIPPED: kernel resources were not checked ({error})");
            None
        }
    }
}

fn compile(compiler: &Compiler, source: &Source, sm: u32) -> Cubin {
    let options = source.options();
    let compiled =
        compiler.compile(&source.name, source.text, source.headers, &format!("sm_{sm}a"), &options).unwrap();
    Cubin::read(&compiled.cubin).unwrap()
}

#[test]
fn shipped_kernels_use_what_the_table_says() {
    let Some(compiler) = compiler() else { return };
    for gate in &GATES {
        let variant = Variant::named(gate.variant).unwrap_or_else(|| panic!("no variant {}", gate.variant));
        let cubin = compile(&compiler, &variant.source(), gate.sm);
        let kernel = cubin.kernels.iter().find(|kernel| kernel.name == "decode").unwrap();
        let launch = Launch {
            warps_per_cta: variant.threads / 32,
            registers_per_thread: kernel.registers_per_thread,
            shared_bytes_per_cta: variant.shared_bytes + kernel.static_shared_bytes,
            named_barriers_per_cta: kernel.named_barriers,
        };
        let blocks = launch.ctas_per_sm(&Architecture::of_sm(gate.sm).unwrap()).unwrap();
        let what = format!("{} for sm_{}: {kernel:?}", gate.variant, gate.sm);
        assert!(kernel.registers_per_thread <= gate.registers_at_most, "registers of {what}");
        assert!(kernel.spill_instructions <= gate.spilled_at_most, "spills of {what}");
        assert_eq!(blocks, gate.blocks_per_multiprocessor, "blocks per multiprocessor of {what}");
    }
    for sm in [90, 120] {
        for variant in Variant::shipped(sm) {
            let line = GATES.iter().any(|gate| gate.sm == sm && gate.variant == variant.name);
            assert!(line, "{} ships for sm_{sm} and has no line", variant.name);
        }
    }
}

#[test]
fn kernels_of_a_step_compile_for_both_architectures_and_spill_nothing() {
    let Some(compiler) = compiler() else { return };
    for source in backend::sources() {
        for sm in [90, 120] {
            let cubin = compile(&compiler, &source, sm);
            assert!(!cubin.kernels.is_empty(), "{}", source.name);
            for kernel in &cubin.kernels {
                assert_eq!(kernel.spill_instructions, 0, "{} for sm_{sm}: {kernel:?}", source.name);
                assert!(kernel.static_shared_bytes <= 48 << 10, "{} for sm_{sm}: {kernel:?}", source.name);
            }
        }
    }
}

#[test]
fn attention_by_tiles_uses_what_the_table_says() {
    let Some(compiler) = compiler() else { return };
    let (registers, expected) = ATTENTION_GATE;
    let source = backend::sources().into_iter().find(|source| source.name == "attention_v2").unwrap();
    let shape = backend::ATTENTION_TILES_SHAPE;
    for sm in [90, 120] {
        let kernel = &compile(&compiler, &source, sm).kernels[0];
        let launch = Launch {
            warps_per_cta: shape.threads / 32,
            registers_per_thread: kernel.registers_per_thread,
            shared_bytes_per_cta: shape.shared_bytes + kernel.static_shared_bytes,
            named_barriers_per_cta: kernel.named_barriers,
        };
        let blocks = launch.ctas_per_sm(&Architecture::of_sm(sm).unwrap()).unwrap();
        assert!(kernel.registers_per_thread <= registers, "for sm_{sm}: {kernel:?}");
        assert_eq!(blocks, expected, "for sm_{sm}: {kernel:?}");
    }
}

#[test]
fn shipped_matmul_kernels_use_what_the_table_says() {
    let Some(compiler) = compiler() else { return };
    let shipped = matmul::shipped();
    for variant in &shipped {
        for (at, sm) in [90, 120].into_iter().enumerate() {
            let cubin = compile(&compiler, &variant.source(), sm);
            for kernel in &cubin.kernels {
                let found = MATMUL_GATES.iter().find(|(name, ..)| *name == variant.name);
                let (_, registers, expected) =
                    found.unwrap_or_else(|| panic!("{} ships and has no line", variant.name));
                let launch = Launch {
                    warps_per_cta: variant.shape.threads / 32,
                    registers_per_thread: kernel.registers_per_thread,
                    shared_bytes_per_cta: variant.shape.shared_bytes + kernel.static_shared_bytes,
                    named_barriers_per_cta: kernel.named_barriers,
                };
                let blocks = launch.ctas_per_sm(&Architecture::of_sm(sm).unwrap()).unwrap();
                let what = format!("{} for sm_{sm}: {kernel:?}", variant.name);
                assert!(kernel.registers_per_thread <= *registers, "registers of {what}");
                assert_eq!(kernel.spill_instructions, 0, "spills of {what}");
                assert_eq!(blocks, expected[at], "blocks per multiprocessor of {what}");
            }
        }
    }
}
