//! Cubins on disk: a file, or a folder and its subfolders. Triton keeps each kernel in a subfolder named by a hash, with a
//! JSON beside the cubin that knows what the launch asks for; it is used where it is there. What cannot be read in a folder
//! is told beside what can.

use crate::failure::{bad_input, one_line};
use overshot_gpu_model::{Cubin, KernelResources};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const FILE_BYTES_MAX: u64 = 256 << 20;
const FILES_MAX: usize = 20_000;
/// The folder itself, its subfolders and theirs.
const DEPTH_MAX: usize = 3;

/// A kernel and where it was found.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    pub file: PathBuf,
    pub sm: u32,
    #[serde(flatten)]
    pub kernel: KernelResources,
    pub triton: Option<TritonLaunch>,
}

/// What Triton's JSON says of a launch.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct TritonLaunch {
    pub num_warps: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    pub num_stages: Option<u32>,
}

/// What was found under a path, and one sentence for each file that could not be read.
#[derive(Debug, Default)]
pub struct Search {
    pub kernels: Vec<Found>,
    pub unreadable: Vec<String>,
}

/// # Errors
/// A path that cannot be opened; a single file that is no cubin; a folder without a readable one.
pub fn search(path: &Path) -> anyhow::Result<Search> {
    let shown = path.display();
    let metadata =
        std::fs::metadata(path).map_err(|error| bad_input(format!("cannot open {shown}: {error}")))?;
    if !metadata.is_dir() {
        let kernels = read(path).map_err(|reason| bad_input(format!("{shown}: {reason}")))?;
        return Ok(Search { kernels, unreadable: vec![] });
    }
    let mut files = Vec::new();
    collect(path, DEPTH_MAX, &mut files).map_err(bad_input)?;
    files.sort();
    let mut search = Search::default();
    for file in &files {
        match read(file) {
            Ok(kernels) => search.kernels.extend(kernels),
            Err(reason) => search.unreadable.push(format!("{}: {reason}", file.display())),
        }
    }
    match (files.len(), search.unreadable.first()) {
        (0, _) => Err(bad_input(format!("no .cubin file in {shown} or its subfolders"))),
        (count, Some(first)) if count == search.unreadable.len() => Err(bad_input(format!(
            "none of {count} .cubin file(s) in {shown} can be read; the first: {first}"
        ))),
        _ => Ok(search),
    }
}

fn collect(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let told = |error: std::io::Error| format!("cannot list {}: {error}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(told)? {
        let path = entry.map_err(told)?.path();
        // What vanishes meanwhile, or hides, was not there.
        let Ok(metadata) = std::fs::metadata(&path) else { continue };
        if metadata.is_dir() && depth > 1 {
            collect(&path, depth - 1, files)?;
        } else if metadata.is_file() && path.extension().is_some_and(|ending| ending == "cubin") {
            if files.len() == FILES_MAX {
                return Err(format!("more than {FILES_MAX} .cubin files: give a smaller folder"));
            }
            files.push(path);
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<Found>, String> {
    let cubin = Cubin::read(&bytes(path)?).map_err(|error| error.to_string())?;
    if cubin.kernels.is_empty() {
        return Err("no kernel in it: it holds device functions or data only".into());
    }
    let triton = triton_launch(&path.with_extension("json"))?;
    let found = |kernel| Found { file: path.to_owned(), sm: cubin.sm, kernel, triton };
    Ok(cubin.kernels.into_iter().map(found).collect())
}

fn bytes(path: &Path) -> Result<Vec<u8>, String> {
    let told = |error: std::io::Error| format!("cannot be read: {error}");
    let metadata = std::fs::metadata(path).map_err(told)?;
    if !metadata.is_file() {
        return Err("not a regular file".into());
    }
    if metadata.len() > FILE_BYTES_MAX {
        return Err(format!("{} bytes, more than any cubin has ({FILE_BYTES_MAX})", metadata.len()));
    }
    std::fs::read(path).map_err(told)
}

/// `None` when there is no JSON, or it is somebody else's.
fn triton_launch(path: &Path) -> Result<Option<TritonLaunch>, String> {
    if !path.is_file() {
        return Ok(None);
    }
    let text = bytes(path).map_err(|reason| format!("{} beside it {reason}", path.display()))?;
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(&text) else {
        return Err(one_line(&format!("{} beside it is not JSON", path.display())));
    };
    if value.get("num_warps").is_none() || value.get("shared").is_none() {
        return Ok(None);
    }
    serde_json::from_value(value).map(Some).map_err(|error| {
        one_line(&format!("{} beside it is not what Triton writes: {error}", path.display()))
    })
}
