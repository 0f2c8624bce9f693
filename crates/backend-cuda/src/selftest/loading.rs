//! How fast weights come to devices, beside a plain read of the same files by as many threads: what `gpu-check load` prints. The
//! first read may come from the disk and all later ones from the system's cache: each is a line of its own, so that whoever wants
//! cold numbers empties the cache and looks at the first.

use crate::backend::{CudaBackendError, Loading, bring_weights};
use crate::gpu::Gpu;
use overshot_model::{Model, ModelError};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const PART_BYTES: u64 = 16 << 20;
const ROUNDS: usize = 2;

#[derive(Debug, thiserror::Error)]
pub enum LoadingError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Backend(#[from] CudaBackendError),
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("the result cannot be written: {0}")]
    Out(#[from] io::Error),
}

/// Reads and loads in turn, and prints a line for each.
pub fn compare(model: &Path, gpus: &[Arc<dyn Gpu>], out: &mut dyn Write) -> Result<(), LoadingError> {
    let opened = Model::open(model)?;
    let folder = opened.folder.clone().unwrap_or_default();
    let names = opened.summary.files.iter().filter_map(|file| Path::new(&file.path).file_name());
    let files: Vec<PathBuf> = names.map(|name| folder.join(name)).collect();
    let loading = Loading::quietly();
    for round in 1..=ROUNDS {
        let started = Instant::now();
        let read = read_plainly(&files, loading.threads)?;
        let plain = speed(read, started);
        writeln!(out, "round {round}: read {read} bytes of files at {plain:.2} GB/s")?;
        let started = Instant::now();
        let brought = bring_weights(&opened, gpus, loading)?;
        let loaded = speed(brought, started);
        writeln!(
            out,
            "round {round}: brought {brought} bytes of weights to {} GPU(s) at {loaded:.2} GB/s, {:.0} % of that",
            gpus.len(),
            loaded / plain * 100.0
        )?;
    }
    Ok(())
}

/// GB a second.
fn speed(bytes: u64, started: Instant) -> f64 {
    bytes as f64 / started.elapsed().as_secs_f64().max(1e-9) / 1e9
}

/// Parts of all files, dealt out among threads; what is read is dropped.
fn read_plainly(files: &[PathBuf], threads: usize) -> Result<u64, LoadingError> {
    let mut parts = Vec::new();
    let mut all = 0;
    for path in files {
        let bytes = std::fs::metadata(path).map_err(|source| failed(path, source))?.len();
        all += bytes;
        parts.extend((0..bytes.div_ceil(PART_BYTES)).map(|part| (path, part * PART_BYTES)));
    }
    let next = AtomicUsize::new(0);
    let read = || {
        let mut buffer = Vec::new();
        while let Some((path, start)) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            buffer.clear();
            read_part(path, *start, &mut buffer).map_err(|source| failed(path, source))?;
        }
        Ok::<(), LoadingError>(())
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..threads).map(|_| scope.spawn(read)).collect();
        // A reader that panicked has been reported by its panic.
        readers.into_iter().try_for_each(|reader| reader.join().unwrap_or(Ok(())))
    })?;
    Ok(all)
}

fn read_part(path: &Path, start: u64, buffer: &mut Vec<u8>) -> io::Result<()> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(start))?;
    file.take(PART_BYTES).read_to_end(buffer).map(|_| ())
}

fn failed(path: &Path, source: io::Error) -> LoadingError {
    LoadingError::File { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulator::{EmulatedGpu, Order};

    #[test]
    fn both_ways_are_timed_in_turn() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny-fp8fp4");
        let gpu = || EmulatedGpu::new(Order::Ascending).map(|gpu| Arc::new(gpu) as Arc<dyn Gpu>);
        let Ok(gpus) = (0..2).map(|_| gpu()).collect::<Result<Vec<_>, _>>() else {
            eprintln!("SKIPPED: there is no emulator to load to");
            return;
        };
        let mut out = Vec::new();
        compare(&model, &gpus, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let bytes = std::fs::metadata(model.join("model.safetensors")).unwrap().len();
        assert_eq!(lines.len(), 2 * ROUNDS);
        assert!(lines[2].starts_with(&format!("round 2: read {bytes} bytes of files at ")), "{text}");
        assert!(lines[3].contains("bytes of weights to 2 GPU(s) at "), "{text}");
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = read_plainly(&["no/such/file".into()], 2).unwrap_err().to_string();
        assert!(error.starts_with("no/such/file: "), "{error}");
    }
}
