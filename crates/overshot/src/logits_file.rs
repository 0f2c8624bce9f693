//! Writes logits to a safetensors file while they are computed. The header comes first in that format, so the
//! number of rows is fixed at the start; memory stays at one chunk, however long the text.

use crate::failure::bad_input;
use crate::interrupt::Unfinished;
use anyhow::{anyhow, bail};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file in the making. It gets its name when [`LogitsFile::finish`] is called, so no half file is left behind
/// under it. Devices and pipes are written as they are: replacing them would break them for everybody.
pub struct LogitsFile {
    /// The path as it was given, for messages.
    given: String,
    /// `None` when `out` is the place itself.
    replacement: Option<Replacement>,
    out: BufWriter<File>,
    vocab: usize,
    /// Numbers still to come in `logits` and `greedy.logits`.
    missing: usize,
    greedy_steps: usize,
}

impl LogitsFile {
    /// For `positions` rows of `logits` and, when it is not 0, `greedy_steps` rows of `greedy.logits`.
    ///
    /// # Errors
    /// A place that cannot be written, or one of `inputs`, which must not be lost.
    pub fn create(
        path: &Path,
        inputs: &[PathBuf],
        unfinished: &Unfinished,
        positions: usize,
        greedy_steps: usize,
        vocab: usize,
    ) -> anyhow::Result<Self> {
        let given = path.display().to_string();
        let refuse = |reason: String| bad_input(format!("cannot write {given}: {reason}"));
        let (replacement, file) = open(path, inputs, unfinished).map_err(refuse)?;
        let out = BufWriter::with_capacity(1 << 20, file);
        let missing = (positions + greedy_steps) * vocab;
        let mut file = LogitsFile { given, replacement, out, vocab, missing, greedy_steps };
        let header = header(positions, greedy_steps, vocab);
        file.write(&(header.len() as u64).to_le_bytes())?;
        file.write(header.as_bytes())?;
        Ok(file)
    }

    /// The next rows: those of `logits` in order of position, then those of `greedy.logits`.
    pub fn append(&mut self, logits: &[f32]) -> anyhow::Result<()> {
        if !logits.len().is_multiple_of(self.vocab) || logits.len() > self.missing {
            bail!(
                "{} logits came where at most {} rows of {} fit",
                logits.len(),
                self.missing / self.vocab,
                self.vocab
            );
        }
        for logit in logits {
            self.write(&logit.to_le_bytes())?;
        }
        self.missing -= logits.len();
        Ok(())
    }

    pub fn finish(mut self, greedy_tokens: &[u32]) -> anyhow::Result<()> {
        if self.missing > 0 || greedy_tokens.len() != self.greedy_steps {
            bail!("{} is not complete: {} logits are missing", self.given, self.missing);
        }
        for token in greedy_tokens {
            self.write(&(*token as i32).to_le_bytes())?;
        }
        let flushed = self.out.flush();
        let finished = flushed.and_then(|()| self.replacement.take().map_or(Ok(()), Replacement::finish));
        finished.map_err(|error| self.failed(&error))
    }

    fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.out.write_all(bytes).map_err(|error| self.failed(&error))
    }

    /// Not as a cause: a reader of OUT that leaves early loses logits, which is a failure, unlike one of the output.
    fn failed(&self, error: &io::Error) -> anyhow::Error {
        anyhow!("cannot write {}: {error}", self.given)
    }
}

/// A file beside its target, which it replaces at the end or leaves alone.
struct Replacement {
    partial: PathBuf,
    target: PathBuf,
    unfinished: Unfinished,
}

impl Replacement {
    fn create(target: PathBuf, unfinished: &Unfinished) -> io::Result<(Self, File)> {
        let folder = target.parent().unwrap_or(Path::new("/"));
        let (partial, file) = unfinished.create(|| new_file(folder))?;
        Ok((Replacement { partial, target, unfinished: unfinished.clone() }, file))
    }

    fn finish(self) -> io::Result<()> {
        fs::rename(&self.partial, &self.target)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // Gone already when `finish` has renamed it.
        let _ = fs::remove_file(&self.partial);
        self.unfinished.forget(&self.partial);
    }
}

/// A file under a name of its own.
fn new_file(folder: &Path) -> io::Result<(PathBuf, File)> {
    let mut attempt = 0;
    loop {
        let path = folder.join(format!(".overshot-{}-{attempt}.partial", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < ATTEMPTS => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}

/// At names for a file in the making, and at links from one to the next.
const ATTEMPTS: usize = 40;

/// The error is the reason alone.
fn open(
    path: &Path,
    inputs: &[PathBuf],
    unfinished: &Unfinished,
) -> Result<(Option<Replacement>, File), String> {
    let target = target(path)?;
    match fs::metadata(&target) {
        Ok(found) if found.is_dir() => return Err("it is a folder".into()),
        Ok(found) if !found.is_file() => {
            let file = OpenOptions::new().write(true).open(&target).map_err(|error| error.to_string())?;
            return Ok((None, file));
        }
        Ok(_) if inputs.iter().any(|input| fs::canonicalize(input).is_ok_and(|input| input == target)) => {
            return Err("it is a file that this command reads".into());
        }
        Ok(found) if found.permissions().readonly() => return Err("it is read-only".into()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error.to_string()),
    }
    let (replacement, file) = Replacement::create(target, unfinished)
        .map_err(|error| format!("its folder takes no new file: {error}"))?;
    Ok((Some(replacement), file))
}

/// Where a path leads, links followed, in its only spelling; the file itself need not be there.
fn target(path: &Path) -> Result<PathBuf, String> {
    let mut path = path.to_path_buf();
    for _ in 0..ATTEMPTS {
        match fs::metadata(&path) {
            // A pipe has a name under /proc and no path of its own.
            Ok(found) if !found.is_file() && !found.is_dir() => return Ok(path),
            Ok(_) => return fs::canonicalize(&path).map_err(|error| error.to_string()),
            Err(_) => {}
        }
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        match fs::read_link(&path) {
            Ok(next) => path = folder.join(next),
            Err(_) => {
                let name = path.file_name().ok_or("it names no file")?;
                let folder = fs::canonicalize(folder).map_err(|error| format!("its folder: {error}"))?;
                return Ok(folder.join(name));
            }
        }
    }
    Err("it is a link to links without end".into())
}

/// Padded with spaces to a multiple of 8 bytes, as the format asks.
fn header(positions: usize, greedy_steps: usize, vocab: usize) -> String {
    let mut end = 0;
    let mut tensor = |dtype: &str, shape: &[usize]| {
        let begin = end;
        end += shape.iter().product::<usize>() * 4;
        serde_json::json!({ "dtype": dtype, "shape": shape, "data_offsets": [begin, end] })
    };
    let mut tensors = serde_json::Map::new();
    tensors.insert("logits".into(), tensor("F32", &[positions, vocab]));
    if greedy_steps > 0 {
        tensors.insert("greedy.logits".into(), tensor("F32", &[greedy_steps, vocab]));
        tensors.insert("greedy.tokens".into(), tensor("I32", &[greedy_steps]));
    }
    let mut header = serde_json::Value::Object(tensors).to_string();
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::{Dtype, SafeTensors};

    #[test]
    fn what_is_written_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.safetensors");
        let mut file = LogitsFile::create(&path, &[], &Unfinished::default(), 3, 2, 2).unwrap();
        file.append(&[1.0, 2.0, 3.0, 4.0]).unwrap();
        file.append(&[5.0, 6.0]).unwrap();
        file.append(&[5.0, 6.0, 7.0, 8.0]).unwrap();
        file.finish(&[1, 1]).unwrap();

        let bytes = std::fs::read(&path).unwrap();
        let read = SafeTensors::deserialize(&bytes).unwrap();
        let logits = read.tensor("logits").unwrap();
        assert_eq!((logits.dtype(), logits.shape()), (Dtype::F32, &[3, 2][..]));
        assert_eq!(&logits.data()[..4], 1f32.to_le_bytes());
        assert_eq!(read.tensor("greedy.logits").unwrap().shape(), [2, 2]);
        assert_eq!(read.tensor("greedy.tokens").unwrap().data(), [1, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_unfinished_file_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.safetensors");
        let mut file = LogitsFile::create(&path, &[], &Unfinished::default(), 1, 0, 2).unwrap();
        assert!(file.append(&[0.0; 4]).is_err());
        assert!(file.finish(&[]).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    #[cfg(unix)]
    fn inputs_links_and_devices_stay_what_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let create =
            |path: &Path| LogitsFile::create(path, &[at("ids.json")], &Unfinished::default(), 0, 0, 1);
        let refused = |path: &Path| {
            let error = create(path).err().unwrap();
            assert!(error.is::<crate::failure::BadInput>(), "{error}");
            error.to_string()
        };
        std::fs::write(at("ids.json"), "[1]").unwrap();
        std::os::unix::fs::symlink("ids.json", at("ids-link")).unwrap();
        assert!(refused(&at("ids.json")).contains("reads"));
        assert!(refused(&at("ids-link")).contains("ids-link: it is a file that this command reads"));
        assert!(refused(folder.path()).contains("folder"));
        assert!(refused(&at("nowhere/out")).contains("its folder"));
        assert!(refused(&at("ids.json/out")).contains("Not a directory"));

        std::os::unix::fs::symlink("target", at("link")).unwrap();
        create(&at("link")).unwrap().finish(&[]).unwrap();
        assert!(at("link").is_symlink() && !at("target").is_symlink() && at("target").is_file());
        std::os::unix::fs::symlink("loop", at("loop")).unwrap();
        assert!(refused(&at("loop")).contains("link"));
        create(Path::new("/dev/null")).unwrap().finish(&[]).unwrap();
        assert!(!Path::new("/dev/null").is_file());
        assert_eq!(std::fs::read(at("ids.json")).unwrap(), b"[1]");
    }
}
