//! The tensors of a checkpoint by stored name: mapped, bounded, their kind read from the header, their meaning not
//! yet known. A file that says more bytes than it has, or a tensor in two files, ends here.

use crate::error::shown;
use crate::locate::{WeightFiles, open_file};
use crate::{Bytes, ModelError};
use memmap2::Mmap;
use rayon::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes before the header that hold its length.
const LENGTH_BYTES: usize = 8;
/// What the format itself allows.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// One tensor as stored.
#[derive(Debug)]
pub(crate) struct StoredTensor {
    pub file: Arc<str>,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Bytes,
    used: AtomicBool,
}

/// A weight file and its length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WeightFile {
    pub path: String,
    pub bytes: u64,
}

/// All tensors of all files.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    /// The file that messages about an absent tensor name: the only one, or the index.
    pub label: String,
    pub files: Vec<WeightFile>,
    tensors: BTreeMap<String, StoredTensor>,
}

type Tensors = Vec<(String, StoredTensor)>;

impl Checkpoint {
    pub fn open(weights: &WeightFiles) -> Result<Self, ModelError> {
        match weights {
            WeightFiles::Single(path) => {
                let file = path.display().to_string();
                Checkpoint::from_bytes(&file, map_file(path)?)
            }
            WeightFiles::Sharded { index, shard_of } => Checkpoint::open_shards(index, shard_of),
        }
    }

    /// The tensors of one file that is already in memory or mapped.
    pub fn from_bytes(file: &str, bytes: Bytes) -> Result<Self, ModelError> {
        let files = vec![WeightFile { path: file.to_string(), bytes: bytes.len() as u64 }];
        let tensors = read_tensors(file, &bytes)?.into_iter().collect();
        Ok(Checkpoint { label: file.to_string(), files, tensors })
    }

    fn open_shards(index: &Path, shard_of: &BTreeMap<String, String>) -> Result<Self, ModelError> {
        let folder = index.parent().unwrap_or(Path::new("."));
        let label = index.display().to_string();
        let shards: BTreeSet<&str> = shard_of.values().map(String::as_str).collect();
        if let Some(shard) = shards.iter().find(|shard| !folder.join(shard).exists()) {
            return Err(ModelError::MissingShard { index: label, shard: shard.to_string() });
        }
        let shards: Vec<&str> = shards.into_iter().collect();
        let open = |shard: &&str| -> Result<(WeightFile, Tensors), ModelError> {
            let path = folder.join(shard);
            let (file, bytes) = (path.display().to_string(), map_file(&path)?);
            let tensors = read_tensors(&file, &bytes)?;
            Ok((WeightFile { path: file, bytes: bytes.len() as u64 }, tensors))
        };
        // Collected whole, so that the first fault in file order is the one reported.
        let opened: Vec<_> = shards.par_iter().map(open).collect();

        let mut checkpoint = Checkpoint { label, files: Vec::new(), tensors: BTreeMap::new() };
        for (shard, opened) in shards.iter().zip(opened) {
            let (file, tensors) = opened?;
            checkpoint.files.push(file);
            for (name, tensor) in tensors {
                checkpoint.add(name, tensor, shard, shard_of)?;
            }
        }
        let absent = shard_of.iter().find(|(name, _)| !checkpoint.tensors.contains_key(*name));
        match absent {
            Some((name, shard)) => Err(ModelError::MissingTensor {
                file: folder.join(shard).display().to_string(),
                tensor: name.clone(),
            }),
            None => Ok(checkpoint),
        }
    }

    fn add(
        &mut self,
        name: String,
        tensor: StoredTensor,
        shard: &str,
        shard_of: &BTreeMap<String, String>,
    ) -> Result<(), ModelError> {
        if let Some(other) = self.tensors.get(&name) {
            return Err(ModelError::DuplicateTensor {
                tensor: name,
                first: other.file.to_string(),
                second: tensor.file.to_string(),
            });
        }
        if shard_of.get(&name).is_none_or(|listed| listed != shard) {
            let reason = format!("is not listed in {} for this file", shown(&self.label));
            return Err(ModelError::Value { file: tensor.file.to_string(), tensor: name, reason });
        }
        self.tensors.insert(name, tensor);
        Ok(())
    }

    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The tensor `name`, which from now on counts as used.
    pub fn take(&self, name: &str) -> Option<&StoredTensor> {
        let tensor = self.tensors.get(name)?;
        tensor.used.store(true, Ordering::Relaxed);
        Some(tensor)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &StoredTensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Tensors that nobody took, except those for which `ignored` holds.
    pub fn unused(&self, ignored: impl Fn(&str) -> bool) -> impl Iterator<Item = (&str, &StoredTensor)> {
        self.iter().filter(move |(name, tensor)| !tensor.used.load(Ordering::Relaxed) && !ignored(name))
    }
}

fn map_file(path: &Path) -> Result<Bytes, ModelError> {
    let (file, bytes) = open_file(path)?;
    if bytes == 0 {
        return Ok(Bytes::empty());
    }
    let map = map(&file).map_err(|error| ModelError::Read { path: path.to_path_buf(), error })?;
    Ok(Bytes::mapped(Arc::new(map)))
}

#[allow(unsafe_code)]
fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the map is private and read-only, and nothing in this process writes the file. Another process that
    // rewrites it can change the numbers read, and one that cuts it can end this process by SIGBUS: the documented
    // price of not copying 160 GB.
    unsafe { Mmap::map(file) }
}

/// Reads the header of one file and cuts its bytes into tensors.
fn read_tensors(file: &str, bytes: &Bytes) -> Result<Tensors, ModelError> {
    let malformed = |reason: String| ModelError::Malformed { file: file.to_string(), reason };
    let Some(length) = bytes.first_chunk::<LENGTH_BYTES>() else {
        return Err(malformed(format!("is no safetensors file: it has {} bytes", bytes.len())));
    };
    let header_bytes = u64::from_le_bytes(*length);
    if header_bytes > HEADER_BYTES_MAX {
        return Err(malformed(format!("is no safetensors file: its header would have {header_bytes} bytes")));
    }
    let data_start = LENGTH_BYTES + header_bytes as usize;
    let length_error =
        |expected| ModelError::FileLength { file: file.to_string(), expected, found: bytes.len() as u64 };
    let Some(header) = bytes.get(LENGTH_BYTES..data_start) else {
        return Err(length_error(data_start as u64));
    };
    // Checks that tensors follow each other without gap or overlap and that shape, type and bytes agree.
    let metadata: Metadata = serde_json::from_slice(header)
        .map_err(|error| malformed(format!("has a bad safetensors header: {}", shown(&error.to_string()))))?;
    let expected = (data_start as u64).saturating_add(metadata.data_len() as u64);
    if expected != bytes.len() as u64 {
        return Err(length_error(expected));
    }

    let label: Arc<str> = file.into();
    let mut tensors = Vec::new();
    // In order of names, so that of several faults always the same one is reported.
    for (name, info) in BTreeMap::from_iter(metadata.tensors()) {
        let (start, end) = info.data_offsets;
        if start > end || end > bytes.len() - data_start {
            return Err(malformed(format!("places tensor `{}` outside its bytes", shown(&name))));
        }
        tensors.push((
            name,
            StoredTensor {
                file: label.clone(),
                dtype: info.dtype,
                shape: info.shape.clone(),
                bytes: bytes.slice(data_start + start..data_start + end),
                used: AtomicBool::new(false),
            },
        ));
    }
    Ok(tensors)
}
