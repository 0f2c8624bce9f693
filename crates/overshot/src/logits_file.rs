//! Writes logits to a safetensors file while they are computed. The header comes first in that format, so the
//! number of rows is fixed at the start; memory stays at one chunk, however long the text.

use anyhow::{Context, bail};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file in the making. It gets its name when [`LogitsFile::finish`] is called, so no half file is left behind
/// under it.
pub struct LogitsFile {
    path: PathBuf,
    partial: PathBuf,
    out: BufWriter<File>,
    vocab: usize,
    /// Numbers still to come in `logits` and `greedy.logits`.
    missing: usize,
    greedy_steps: usize,
}

impl LogitsFile {
    /// For `positions` rows of `logits` and, when it is not 0, `greedy_steps` rows of `greedy.logits`.
    pub fn create(path: &Path, positions: usize, greedy_steps: usize, vocab: usize) -> anyhow::Result<Self> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let file = File::create(&partial).with_context(|| format!("cannot write {}", partial.display()))?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let header = header(positions, greedy_steps, vocab);
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(header.as_bytes())?;
        let missing = (positions + greedy_steps) * vocab;
        Ok(LogitsFile { path: path.to_path_buf(), partial, out, vocab, missing, greedy_steps })
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
            self.out
                .write_all(&logit.to_le_bytes())
                .with_context(|| format!("cannot write {}", self.partial.display()))?;
        }
        self.missing -= logits.len();
        Ok(())
    }

    pub fn finish(mut self, greedy_tokens: &[u32]) -> anyhow::Result<()> {
        if self.missing > 0 || greedy_tokens.len() != self.greedy_steps {
            bail!("{} is not complete: {} logits are missing", self.path.display(), self.missing);
        }
        for token in greedy_tokens {
            self.out.write_all(&(*token as i32).to_le_bytes())?;
        }
        self.out.flush().with_context(|| format!("cannot write {}", self.partial.display()))?;
        std::fs::rename(&self.partial, &self.path)
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

impl Drop for LogitsFile {
    fn drop(&mut self) {
        // Gone already when `finish` has renamed it.
        let _ = std::fs::remove_file(&self.partial);
    }
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
        let mut file = LogitsFile::create(&path, 3, 2, 2).unwrap();
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
        let mut file = LogitsFile::create(&path, 1, 0, 2).unwrap();
        assert!(file.append(&[0.0; 4]).is_err());
        assert!(file.finish(&[]).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
