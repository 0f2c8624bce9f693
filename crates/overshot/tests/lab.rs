//! `overshot lab` as a program: what docs/lab.md and docs/lab-project.md show is what it prints, and bad input ends with
//! exit code 2 and one sentence.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn overshot(arguments: &[String]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_overshot")).args(arguments).current_dir(root()).output().unwrap()
}

/// Words of a command line, as a shell would split one that has double quotes only.
fn words(line: &str) -> Vec<String> {
    let quoted = line.split('"').enumerate();
    let parts = quoted.flat_map(|(index, part)| match index % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect::<Vec<_>>(),
        _ => vec![part.to_owned()],
    });
    parts.collect()
}

#[test]
fn the_transcripts_of_the_documentation_are_real() {
    let pages = ["docs/lab.md", "docs/lab-project.md", "docs/gpu-kernels.md"];
    let text = pages.map(|page| std::fs::read_to_string(root().join(page)).unwrap()).concat();
    let blocks = text.split("```console\n$ overshot ").skip(1);
    let mut compared = 0;
    for block in blocks {
        let (command, shown) = block.split("```").next().unwrap().split_once('\n').unwrap();
        let output = overshot(&words(command));
        assert!(output.status.success(), "{command}");
        let printed = String::from_utf8(output.stdout).unwrap();
        // Dots stand for lines left out.
        for part in shown.split("...\n") {
            assert!(printed.contains(part.trim()), "`{command}` prints\n{printed}\nand not\n{part}");
        }
        compared += 1;
    }
    assert_eq!(compared, 10);
}

#[test]
fn bad_input_is_one_sentence_and_exit_code_2() {
    let cubin = std::fs::read(root().join("crates/gpu-model/tests/data/sm_120a.cubin")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let measured = format!(
        "lab waves --sms 9 --tiles 9 --measured {}",
        file("points", b"1,1,NaN\n2,1,1\n3,1,1\n4,1,1\n")
    );
    for (line, part) in [
        (format!("lab occupancy {}", file("empty.cubin", b"")), "the file is empty"),
        (format!("lab occupancy {}", file("short.cubin", &cubin[..cubin.len() / 2])), "damaged or cut short"),
        (format!("lab occupancy {}", file("kernel.ptx", b".version 8.8\n.target sm_120a\n")), "this is PTX"),
        (format!("lab occupancy {}", file("notes.cubin", b"my notes")), "not an ELF file"),
        (format!("lab occupancy {}", folder.path().display()), "can be read"),
        ("lab occupancy --regs 255 --warps 4".into(), "--arch"),
        ("lab occupancy --regs 255 --warps 4 --smem -1 --arch sm_120".into(), "KB of 1,024 bytes"),
        ("lab waves --sms 188".into(), "nothing is asked"),
        ("lab project attention/x --floor 36.3".into(), "is no lever"),
        (format!("lab project attention/2 --profile {}", file("profile.json", b"{\"a\"")), "not a profile"),
        (measured, "time NaN"),
    ] {
        let output = overshot(&words(&line));
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}: {told}");
        assert!(told.contains(part) && told.lines().count() == 1, "{line}: {told}");
    }
}

/// Hardly anything of the step is the kernel's: no growth of it explains the fall, and no infinite one is asked for.
#[test]
fn a_fall_that_no_kernel_causes_is_told_so() {
    let line = "lab waves --sms 188 --explain 80:96 --step-ms 120 --floor-ms 119.999";
    let printed = String::from_utf8(overshot(&words(line)).stdout).unwrap();
    assert!(printed.contains("more than this kernel can cause") && !printed.contains("inf"), "{printed}");
    let simplest = "No number of CTAs a request explains it";
    assert!(printed.contains(simplest), "{printed}");
}
