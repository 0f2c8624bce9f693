//! Puts the archive of compiled kernels that OVERSHOT_CUBINS names into the crate (`gpu-check archive` writes one), or an empty
//! file without it: then kernels are compiled when they are needed. An archive of other kernel sources stops the build.

use std::path::{Path, PathBuf};

const VARIABLE: &str = "OVERSHOT_CUBINS";
/// As `src/archive.rs` writes it: eight bytes that say what the file is, then the fingerprint.
const MAGIC: &[u8; 8] = b"OVCUBIN1";

fn main() -> Result<(), String> {
    println!("cargo:rerun-if-env-changed={VARIABLE}");
    println!("cargo:rerun-if-changed=kernels");
    let folder = std::env::var("CARGO_MANIFEST_DIR").map_err(|error| error.to_string())?;
    let fingerprint = fingerprint(&Path::new(&folder).join("kernels"))?;
    println!("cargo:rustc-env=OVERSHOT_KERNELS_FINGERPRINT={fingerprint}");
    let archive = match std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        Some(path) => {
            println!("cargo:rerun-if-changed={}", PathBuf::from(&path).display());
            checked(&PathBuf::from(path), fingerprint)?
        }
        None => Vec::new(),
    };
    let out = std::env::var("OUT_DIR").map_err(|error| error.to_string())?;
    std::fs::write(Path::new(&out).join("cubins.archive"), archive).map_err(|error| error.to_string())
}

fn checked(path: &Path, fingerprint: u64) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let bytes = std::fs::read(path).map_err(|error| format!("{VARIABLE} names {shown}: {error}"))?;
    let Some((head, made_of)) = bytes.first_chunk::<16>().map(|head| head.split_at(8)) else {
        return Err(format!("{VARIABLE} names {shown}, which is no archive of kernels"));
    };
    if head != MAGIC {
        return Err(format!("{VARIABLE} names {shown}, which is no archive of kernels"));
    }
    if made_of != fingerprint.to_le_bytes() {
        return Err(format!("{shown} was made of other kernel sources: run gpu-check archive again"));
    }
    Ok(bytes)
}

/// Of the names and texts of all kernel files: no secret, only a way to see that they changed.
fn fingerprint(folder: &Path) -> Result<u64, String> {
    let mut files = Vec::new();
    list(folder, &mut files).map_err(|error| format!("{}: {error}", folder.display()))?;
    files.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut feed = |bytes: &[u8]| {
        for byte in bytes.iter().chain(&[0]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    };
    for file in files {
        let name = file.strip_prefix(folder).unwrap_or(&file);
        feed(name.to_string_lossy().as_bytes());
        feed(&std::fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?);
    }
    Ok(hash)
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { list(&path, files)? } else { files.push(path) }
    }
    Ok(())
}
