//! The reader of cubins against the assembler itself: kernels compiled here, and for each what `ptxas -v` says in the log of the
//! same compilation. The files stored beside crates/gpu-model pin a compiler; this follows the one that is installed.
//!
//! Needs NVRTC as `gates.rs` does, and skips as loudly without it.

#![allow(clippy::unwrap_used)]

use overshot_backend_cuda::cuda::Compiler;
use overshot_gpu_model::Cubin;
use std::collections::BTreeMap;

const SOURCES: [(&str, &str); 2] = [
    ("resources", include_str!("data/resources.cu")),
    ("basics", include_str!("../../gpu-model/tests/data/resources.cu")),
];
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90a", "sm_120a"];

/// Of one kernel, in the assembler's words.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    registers: u32,
    barriers: u32,
    shared_bytes: u32,
    stack_bytes: u32,
    spilled_bytes: u32,
}

/// The kernels of a log, by name. Functions that cannot be launched have properties too, and no registers.
fn read_log(log: &str) -> BTreeMap<String, Said> {
    let mut kernels = BTreeMap::new();
    let mut entry: Option<String> = None;
    let mut of_entry = false;
    for line in log.lines() {
        if let Some(rest) = line.split_once("Compiling entry function '") {
            let name = rest.1.split('\'').next().unwrap().to_owned();
            kernels.insert(name.clone(), Said::default());
            entry = Some(name);
        } else if let Some((_, name)) = line.split_once("Function properties for ") {
            of_entry = entry.as_deref() == Some(name.trim());
        } else if let Some(said) = entry.as_ref().and_then(|name| kernels.get_mut(name)) {
            if line.contains("bytes stack frame") && of_entry {
                said.stack_bytes = before(line, "bytes stack frame");
                said.spilled_bytes = before(line, "bytes spill stores") + before(line, "bytes spill loads");
            } else if line.contains(" registers") && line.contains("Used ") {
                said.registers = before(line, "registers");
                said.barriers = before(line, "barriers");
                said.shared_bytes = before(line, "bytes smem");
                // With the functions that it calls; told where it differs from the frame.
                said.stack_bytes = said.stack_bytes.max(before(line, "bytes cumulative stack size"));
            }
        }
    }
    kernels
}

/// The number in front of a unit, 0 where the line has no such unit.
fn before(line: &str, unit: &str) -> u32 {
    let Some((head, _)) = line.split_once(unit) else { return 0 };
    head.trim_end().rsplit(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

#[test]
fn the_reader_of_cubins_agrees_with_the_assembler() {
    let compiler = match Compiler::open() {
        Ok(compiler) => compiler,
        Err(error) => {
            eprintln!("SKIPPED: the reader of cubins was not compared with the assembler ({error})");
            return;
        }
    };
    let options = ["--std=c++17", "--ptxas-options=-v", "-default-device"].map(String::from);
    for architecture in ARCHITECTURES {
        let (mut compared, mut spilling, mut with_stack, mut with_shared, mut all_barriers) = (0, 0, 0, 0, 0);
        for (name, text) in SOURCES {
            let compiled = compiler.compile(name, text, &[], architecture, &options).unwrap();
            let said = read_log(&compiled.log);
            let cubin = Cubin::read(&compiled.cubin).unwrap();
            assert_eq!(cubin.kernels.len(), said.len(), "{architecture}:\n{}", compiled.log);
            for kernel in &cubin.kernels {
                let said = said[&kernel.name];
                let what = format!("{} for {architecture}: {kernel:?} and {said:?}", kernel.name);
                assert_eq!(kernel.registers_per_thread, said.registers, "registers of {what}");
                assert_eq!(kernel.named_barriers, said.barriers, "barriers of {what}");
                assert_eq!(kernel.static_shared_bytes, said.shared_bytes, "shared memory of {what}");
                assert_eq!(kernel.stack_bytes, said.stack_bytes, "stack of {what}");
                assert_eq!(kernel.spill_instructions > 0, said.spilled_bytes > 0, "spills of {what}");
                compared += 1;
                spilling += u32::from(said.spilled_bytes > 0);
                with_stack += u32::from(said.stack_bytes > 0 && said.spilled_bytes == 0);
                with_shared += u32::from(said.shared_bytes > 0);
                all_barriers += u32::from(said.barriers == 16);
            }
        }
        println!("{architecture}: {compared} kernels as the assembler says");
        assert!(compared >= 24 && spilling >= 3 && with_stack >= 2 && with_shared >= 5 && all_barriers >= 2);
    }
}
