//! From the path a user gives to the files of a checkpoint: a folder, a Hugging Face cache folder, or one
//! `.safetensors` file beside its `config.json`. Reads no tensor.

use crate::ModelError;
use crate::error::shown;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Component, Path, PathBuf};

const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";
const CONFIG_FILE: &str = "config.json";

const CONFIG_BYTES_MAX: u64 = 16 << 20;
/// The index of the largest published checkpoint has about 15 MB.
const INDEX_BYTES_MAX: u64 = 256 << 20;
const REVISION_BYTES_MAX: u64 = 1 << 10;

/// Where the parts of a checkpoint lie.
#[derive(Debug)]
pub(crate) struct Located {
    /// Holds `config.json`, and the tokenizer when there is one.
    pub folder: PathBuf,
    pub config: PathBuf,
    pub weights: WeightFiles,
}

#[derive(Debug)]
pub(crate) enum WeightFiles {
    Single(PathBuf),
    Sharded {
        index: PathBuf,
        /// Tensor name to the file name, beside the index, that should hold it.
        shard_of: BTreeMap<String, String>,
    },
}

pub(crate) fn locate(path: &Path) -> Result<Located, ModelError> {
    let metadata =
        fs::metadata(path).map_err(|error| ModelError::Read { path: path.to_path_buf(), error })?;
    if metadata.is_dir() {
        let folder =
            if path.join(CONFIG_FILE).exists() { path.to_path_buf() } else { cached_snapshot(path)? };
        let weights = weight_files(&folder)?;
        return located(folder, weights);
    }
    if path.extension().is_none_or(|extension| extension != "safetensors") {
        return Err(not_a_model(path, "give a folder with config.json, or a .safetensors file beside one"));
    }
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    located(folder, WeightFiles::Single(path.to_path_buf()))
}

fn located(folder: PathBuf, weights: WeightFiles) -> Result<Located, ModelError> {
    let config = folder.join(CONFIG_FILE);
    if !config.exists() {
        return Err(not_a_model(&folder, "it has no config.json"));
    }
    if folder.join("hf_quant_config.json").exists() {
        let reason = "hf_quant_config.json marks a ModelOpt re-quantisation (NVFP4 and the like), which is not \
                      supported: use the publisher's FP8 and FP4 files";
        return Err(not_a_model(&folder, reason));
    }
    Ok(Located { folder, config, weights })
}

pub(crate) fn read_config(path: &Path) -> Result<String, ModelError> {
    read_text(path, CONFIG_BYTES_MAX)
}

/// A regular file opened for reading; a pipe or device would block or never end.
pub(crate) fn open_file(path: &Path) -> Result<(File, u64), ModelError> {
    let read_error = |error| ModelError::Read { path: path.to_path_buf(), error };
    let metadata = fs::metadata(path).map_err(read_error)?;
    if !metadata.is_file() {
        return Err(not_a_model(path, "it is no regular file"));
    }
    Ok((File::open(path).map_err(read_error)?, metadata.len()))
}

fn read_text(path: &Path, bytes_max: u64) -> Result<String, ModelError> {
    let (file, _) = open_file(path)?;
    let mut text = Vec::new();
    file.take(bytes_max + 1)
        .read_to_end(&mut text)
        .map_err(|error| ModelError::Read { path: path.to_path_buf(), error })?;
    if text.len() as u64 > bytes_max {
        return Err(malformed(path, format!("is longer than {bytes_max} bytes, which no checkpoint needs")));
    }
    String::from_utf8(text).map_err(|_| malformed(path, "is not UTF-8 text".to_string()))
}

fn weight_files(folder: &Path) -> Result<WeightFiles, ModelError> {
    let single = folder.join(SINGLE_FILE);
    if single.exists() {
        return Ok(WeightFiles::Single(single));
    }
    let index = folder.join(INDEX_FILE);
    if !index.exists() {
        let reason = format!("it has neither {SINGLE_FILE} nor {INDEX_FILE}");
        return Err(not_a_model(folder, &reason));
    }
    let shard_of = read_index(&index)?;
    Ok(WeightFiles::Sharded { index, shard_of })
}

fn read_index(path: &Path) -> Result<BTreeMap<String, String>, ModelError> {
    let value: Value = serde_json::from_str(&read_text(path, INDEX_BYTES_MAX)?)
        .map_err(|error| malformed(path, format!("is not valid JSON: {}", shown(&error.to_string()))))?;
    let entries = value.get("weight_map").and_then(Value::as_object);
    let entries = entries.ok_or_else(|| malformed(path, "has no object `weight_map`".to_string()))?;
    let mut shard_of = BTreeMap::new();
    for (tensor, shard) in entries {
        let shard = shard.as_str().filter(|name| is_plain_name(name)).ok_or_else(|| {
            malformed(path, format!("maps tensor `{}` to something else than a file name", shown(tensor)))
        })?;
        shard_of.insert(tensor.clone(), shard.to_string());
    }
    if shard_of.is_empty() {
        return Err(malformed(path, "lists no tensors".to_string()));
    }
    Ok(shard_of)
}

/// `models--org--name`: the snapshot that `refs/main` names, else the only one.
fn cached_snapshot(path: &Path) -> Result<PathBuf, ModelError> {
    let snapshots = path.join("snapshots");
    if !snapshots.is_dir() {
        return Err(not_a_model(
            path,
            "it has neither config.json nor the snapshots of a Hugging Face cache folder",
        ));
    }
    let reference = path.join("refs").join("main");
    if reference.exists() {
        let text = read_text(&reference, REVISION_BYTES_MAX)?;
        let revision = text.trim();
        let snapshot = snapshots.join(revision);
        if !is_plain_name(revision) || !snapshot.is_dir() {
            return Err(malformed(
                &reference,
                format!("names revision `{}`, which is not in snapshots", shown(revision)),
            ));
        }
        return Ok(snapshot);
    }
    let read_error = |error| ModelError::Read { path: snapshots.clone(), error };
    let mut revisions = Vec::new();
    for entry in fs::read_dir(&snapshots).map_err(read_error)? {
        let revision = entry.map_err(read_error)?.path();
        if revision.is_dir() {
            revisions.push(revision);
        }
    }
    match revisions.len() {
        1 => Ok(revisions.remove(0)),
        0 => Err(not_a_model(path, "its snapshots folder is empty: fetch the model again")),
        count => {
            Err(not_a_model(path, &format!("it has {count} snapshots and no refs/main: give one of them")))
        }
    }
}

/// One component that stays in its folder.
fn is_plain_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let first = components.next();
    matches!(first, Some(Component::Normal(only)) if only == name) && components.next().is_none()
}

fn not_a_model(path: &Path, reason: &str) -> ModelError {
    ModelError::NotAModel { path: path.to_path_buf(), reason: reason.to_string() }
}

fn malformed(path: &Path, reason: String) -> ModelError {
    ModelError::Malformed { file: path.display().to_string(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_within_the_folder_are_plain() {
        for name in ["model-00001-of-00002.safetensors", "a b", ".hidden"] {
            assert!(is_plain_name(name), "{name}");
        }
        for name in ["", ".", "..", "../x", "/etc/passwd", "a/b", "a/", "./a"] {
            assert!(!is_plain_name(name), "{name}");
        }
    }
}
