//! A file of JSON lines that only grows: each line is written as what it tells of ends, and carries a check of its own. A
//! last line that was cut off, by a crash or a full disk, is dropped; any other damage is an error that names the line.
//!
//! Not here: what the lines mean. `sweep/results.rs` and `noise/history.rs` say so for theirs.

use crate::LabError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Of a file that is read: a line is a few hundred bytes. Reports of other tools that keep every request
/// are tens of megabytes.
const FILE_BYTES_MAX: u64 = 256 << 20;

const CHECK_KEY: &str = ",\"check\":\"";

/// What a file of one kind is called, and how every such file begins.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub name: &'static str,
    pub begins: &'static str,
}

#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// Up to the last line end: what lies behind is half a line.
    whole_bytes: u64,
}

impl Journal {
    /// Opens a file, or makes a new one, and reads its lines. Nothing is changed in it before the first `append`, and nobody
    /// else can open it as a journal meanwhile.
    ///
    /// # Errors
    /// A file that cannot be read, is of another kind, is damaged, or has a writer already.
    pub fn open<L: DeserializeOwned>(path: &Path, kind: Kind) -> Result<(Self, Vec<L>), LabError> {
        let read_error = |source| LabError::ReadResults { path: path.to_owned(), source };
        if path.exists() {
            check_regular(path)?;
        }
        let mut options = OpenOptions::new();
        let file =
            options.create(true).read(true).write(true).truncate(false).open(path).map_err(read_error)?;
        // Of two writers each would cut off what the other added. Where a file system has no locks, that is left to people.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(LabError::BeingWritten { path: path.to_owned() });
        }
        let (lines, whole_bytes) = read_lines(path, &file, kind)?;
        Ok((Journal { path: path.to_owned(), file, whole_bytes }, lines))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a line and waits until it is on the disk.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn append(&mut self, line: &impl Serialize) -> Result<(), LabError> {
        let text = serde_json::to_string(line).map_err(std::io::Error::from);
        let written = text.and_then(|text| {
            let sealed = sealed(&text);
            self.file.set_len(self.whole_bytes)?;
            self.file.seek(SeekFrom::End(0))?;
            self.file.write_all(sealed.as_bytes())?;
            self.file.sync_data()?;
            self.whole_bytes += sealed.len() as u64;
            Ok(())
        });
        written.map_err(|source| LabError::WriteResults { path: self.path.clone(), source })
    }
}

/// The lines of a file that is only looked at.
///
/// # Errors
/// A file that is not there, cannot be read, is of another kind or is damaged.
pub fn read<L: DeserializeOwned>(path: &Path, kind: Kind) -> Result<Vec<L>, LabError> {
    check_regular(path)?;
    let file = File::open(path).map_err(|source| LabError::ReadResults { path: path.to_owned(), source })?;
    Ok(read_lines(path, &file, kind)?.0)
}

/// For the time of a line.
pub fn unix_ms_now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Opening a pipe or a terminal would wait for somebody at its other end.
fn check_regular(path: &Path) -> Result<(), LabError> {
    let read_error = |source| LabError::ReadResults { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(read_error)?.is_file() {
        return Ok(());
    }
    Err(read_error(std::io::Error::other("it is not a regular file")))
}

/// The bytes of a file of results, whoever wrote it.
pub(crate) fn read_regular(path: &Path) -> Result<Vec<u8>, LabError> {
    check_regular(path)?;
    let opened = File::open(path);
    read_all(path, &opened.map_err(|source| LabError::ReadResults { path: path.to_owned(), source })?)
}

fn read_all(path: &Path, file: &File) -> Result<Vec<u8>, LabError> {
    let read_error = |source| LabError::ReadResults { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(read_error)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(read_error(std::io::Error::other("it is longer than 256 MiB")));
    }
    Ok(bytes)
}

fn read_lines<L: DeserializeOwned>(path: &Path, file: &File, kind: Kind) -> Result<(Vec<L>, u64), LabError> {
    let bytes = read_all(path, file)?;
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    if whole == 0 && !bytes.is_empty() && !bytes.starts_with(kind.begins.as_bytes()) {
        return Err(not_of_kind(path, 1, kind));
    }
    let mut lines = Vec::new();
    for (index, line) in bytes[..whole].split_inclusive(|byte| *byte == b'\n').enumerate() {
        lines.push(read_line(path, line, index + 1, kind)?);
    }
    Ok((lines, whole as u64))
}

fn read_line<L: DeserializeOwned>(
    path: &Path,
    line: &[u8],
    number: usize,
    kind: Kind,
) -> Result<L, LabError> {
    let bad = |what: &str| LabError::BadResults { path: path.to_owned(), line: number, what: what.into() };
    let text = std::str::from_utf8(line).map_err(|_| not_of_kind(path, number, kind))?;
    let body = unsealed(text.trim_end_matches('\n')).map_err(|fault| match (fault, number) {
        (_, 1) => not_of_kind(path, 1, kind),
        (Fault::NoCheck, _) => bad("it has no check, so it was not written by a measurement"),
        (Fault::WrongCheck, _) => bad("it was changed after it was written"),
    })?;
    if number == 1 && !body.starts_with(kind.begins) {
        return Err(not_of_kind(path, 1, kind));
    }
    serde_json::from_str(&body).map_err(|error| bad(&error.to_string()))
}

fn not_of_kind(path: &Path, line: usize, kind: Kind) -> LabError {
    LabError::BadResults { path: path.to_owned(), line, what: format!("this is not {}", kind.name) }
}

/// A JSON object with the check of all that stands before it as its last member, and a line end.
fn sealed(object: &str) -> String {
    let body = object.strip_suffix('}').unwrap_or(object);
    format!("{body}{CHECK_KEY}{:016x}\"}}\n", fnv1a(body.as_bytes()))
}

enum Fault {
    NoCheck,
    WrongCheck,
}

fn unsealed(line: &str) -> Result<String, Fault> {
    let (body, check) = line.rsplit_once(CHECK_KEY).ok_or(Fault::NoCheck)?;
    let check = check.strip_suffix("\"}").ok_or(Fault::NoCheck)?;
    if u64::from_str_radix(check, 16) != Ok(fnv1a(body.as_bytes())) {
        return Err(Fault::WrongCheck);
    }
    Ok(format!("{body}}}"))
}

/// Against accidents only: disks, editors, copies. Whoever wants to forge a result can.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
