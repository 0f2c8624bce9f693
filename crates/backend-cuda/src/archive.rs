//! Kernels compiled ahead, in one file: so that a release needs a driver and no compiler. `gpu-check archive` writes it, the
//! build puts it into the crate (`build.rs`), and a cubin is found by the hash of everything it was made of but the compiler.
//! A kernel whose source, header or option changed since is not found: a miss, never a wrong kernel.
//!
//! ```text
//! 8 bytes OVCUBIN1, u64 fingerprint of the kernel files, u32 compiler major, u32 minor, u32 count,
//! then for each cubin: 12 bytes key, 16 bytes architecture, u32 bytes here, u32 bytes unpacked; then all of them, deflated
//! ```

use crate::cubins::{KEY_BYTES, Source};
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use std::collections::BTreeMap;
use std::io::{Read, Write};

const MAGIC: &[u8; 8] = b"OVCUBIN1";
const NAME_BYTES: usize = 16;
const CUBIN_BYTES_MAX: usize = 16 << 20;
const COUNT_MAX: usize = 4096;

/// Architectures that a release has kernels for: H100 and H200, B200, B300, RTX 50 and PRO 6000, GB10.
pub const ARCHITECTURES: [&str; 5] = ["sm_90a", "sm_100a", "sm_103a", "sm_120a", "sm_121a"];

/// Everything that a release has for an architecture: the kernels of a step, and what the self-test runs.
pub fn shipped_sources(architecture: &str) -> Vec<Source> {
    let mut all = crate::selftest::shipped_sources(architecture);
    all.extend(crate::backend::sources());
    all.extend(crate::matmul::shipped_sources());
    all
}

static EMBEDDED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cubins.archive"));

#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("this is no archive of kernels: {what} at byte {at}")]
    Format { what: &'static str, at: usize },
    #[error("the kernel cannot be packed: {0}")]
    Pack(#[from] std::io::Error),
    #[error("the build wrote no number for the kernel files: {given}")]
    Fingerprint { given: String },
}

/// What an archive says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archive<'bytes> {
    pub fingerprint: u64,
    pub compiler: (u32, u32),
    entries: Vec<Entry<'bytes>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry<'bytes> {
    key: [u8; KEY_BYTES],
    architecture: String,
    packed: &'bytes [u8],
    bytes: usize,
}

/// What the build put into this crate; `None` without an archive.
pub fn embedded() -> Option<Archive<'static>> {
    // What the build let through begins as an archive does; a damaged one is as good as none.
    Archive::parse(EMBEDDED).ok()
}

/// Of the kernel files that this crate was built from.
pub fn fingerprint() -> Result<u64, ArchiveError> {
    let given = env!("OVERSHOT_KERNELS_FINGERPRINT");
    given.parse().map_err(|_| ArchiveError::Fingerprint { given: given.into() })
}

/// The archive of these cubins, each with its source and architecture.
///
/// # Errors
/// A fingerprint that is no number, memory that cannot be had.
pub fn pack(compiler: (i32, i32), cubins: &[(Source, &str, Vec<u8>)]) -> Result<Vec<u8>, ArchiveError> {
    let mut head = MAGIC.to_vec();
    head.extend(fingerprint()?.to_le_bytes());
    for number in [compiler.0, compiler.1, cubins.len() as i32] {
        head.extend(number.to_le_bytes());
    }
    let mut body = Vec::new();
    for (source, architecture, cubin) in cubins {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(cubin)?;
        let packed = encoder.finish()?;
        let mut name = [0; NAME_BYTES];
        name.iter_mut().zip(architecture.bytes()).for_each(|(to, from)| *to = from);
        head.extend(source.key(architecture));
        head.extend(name);
        head.extend((packed.len() as u32).to_le_bytes());
        head.extend((cubin.len() as u32).to_le_bytes());
        body.extend(packed);
    }
    head.extend(body);
    Ok(head)
}

impl<'bytes> Archive<'bytes> {
    /// # Errors
    /// Bytes that are no archive, said with the place.
    pub fn parse(bytes: &'bytes [u8]) -> Result<Self, ArchiveError> {
        let mut rest = Cursor { bytes, at: 0 };
        if rest.take(MAGIC.len())? != MAGIC {
            return Err(ArchiveError::Format { what: "another beginning", at: 0 });
        }
        let fingerprint = u64::from_le_bytes(rest.array()?);
        let compiler = (rest.number()?, rest.number()?);
        let count = rest.number()? as usize;
        if count > COUNT_MAX {
            return Err(ArchiveError::Format { what: "more kernels than there can be", at: rest.at });
        }
        let mut heads = Vec::with_capacity(count);
        for _ in 0..count {
            let key = rest.array()?;
            let name: [u8; NAME_BYTES] = rest.array()?;
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            let architecture = String::from_utf8_lossy(name).into_owned();
            heads.push((key, architecture, rest.number()? as usize, rest.number()? as usize));
        }
        let mut entries = Vec::with_capacity(count);
        for (key, architecture, packed, bytes) in heads {
            if bytes > CUBIN_BYTES_MAX {
                return Err(ArchiveError::Format { what: "a kernel too large", at: rest.at });
            }
            entries.push(Entry { key, architecture, packed: rest.take(packed)?, bytes });
        }
        Ok(Archive { fingerprint, compiler, entries })
    }

    pub fn has(&self, source: &Source, architecture: &str) -> bool {
        let key = source.key(architecture);
        self.entries.iter().any(|entry| entry.key == key)
    }

    /// The cubin of `source`, unless the archive has another or none.
    pub fn get(&self, source: &Source, architecture: &str) -> Option<Vec<u8>> {
        let key = source.key(architecture);
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        let mut cubin = Vec::with_capacity(entry.bytes);
        DeflateDecoder::new(entry.packed).take(entry.bytes as u64 + 1).read_to_end(&mut cubin).ok()?;
        (cubin.len() == entry.bytes).then_some(cubin)
    }

    /// Kernels of each architecture.
    pub fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for entry in &self.entries {
            *counts.entry(entry.architecture.clone()).or_insert(0) += 1;
        }
        counts
    }
}

struct Cursor<'bytes> {
    bytes: &'bytes [u8],
    at: usize,
}

impl<'bytes> Cursor<'bytes> {
    fn take(&mut self, count: usize) -> Result<&'bytes [u8], ArchiveError> {
        let end = self.at.checked_add(count);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or(ArchiveError::Format { what: "an early end", at: self.at })?;
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ArchiveError> {
        let at = self.at;
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| ArchiveError::Format { what: "an early end", at })
    }

    fn number(&mut self) -> Result<u32, ArchiveError> {
        Ok(u32::from_le_bytes(self.array()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &'static str) -> Source {
        Source { name: "k".into(), text, headers: &[], definitions: vec![] }
    }

    fn archive() -> Vec<u8> {
        let cubins = [
            (source("a"), "sm_90a", vec![7; 5000]),
            (source("a"), "sm_120a", vec![8; 3]),
            (source("b"), "sm_90a", vec![]),
        ];
        pack((13, 0), &cubins).unwrap()
    }

    #[test]
    fn what_was_packed_is_found_by_all_it_was_made_of() {
        let bytes = archive();
        let archive = Archive::parse(&bytes).unwrap();
        assert_eq!(archive.get(&source("a"), "sm_90a"), Some(vec![7; 5000]));
        assert_eq!(archive.get(&source("a"), "sm_120a"), Some(vec![8; 3]));
        assert_eq!(archive.get(&source("b"), "sm_120a"), None);
        assert!(archive.has(&source("b"), "sm_90a") && !archive.has(&source("b"), "sm_120a"));
        assert_eq!(archive.get(&Source { definitions: vec![("N", 1)], ..source("a") }, "sm_90a"), None);
        assert_eq!((archive.compiler, archive.counts()["sm_90a"]), ((13, 0), 2));
        assert_eq!(Some(archive.fingerprint), fingerprint().ok());
    }

    #[test]
    fn no_bytes_are_trusted() {
        let good = archive();
        for end in 0..good.len() {
            let _ = Archive::parse(&good[..end]);
        }
        let seed = overshot_testing::seed();
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..2000 {
            let mut bytes = good.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(0..bytes.len());
                bytes[at] = random.u8(..);
            }
            if let Ok(archive) = Archive::parse(&bytes) {
                let cubin = archive.get(&source("a"), "sm_90a");
                assert!(cubin.is_none_or(|cubin| cubin.len() <= CUBIN_BYTES_MAX), "seed {seed}");
            }
        }
    }

    /// Only a build with an archive has anything to check.
    #[test]
    fn an_embedded_archive_has_every_kernel_that_ships() {
        let Some(archive) = embedded() else { return };
        for architecture in ARCHITECTURES {
            for source in shipped_sources(architecture) {
                assert!(archive.get(&source, architecture).is_some(), "{} for {architecture}", source.name);
            }
        }
    }
}
