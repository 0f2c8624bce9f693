//! Reading what a user points to, within bounds: a device or a file of the wrong kind must not fill the memory or
//! hang the program. Checkpoints have the same rules in their own crate.

use crate::failure::bad_input;
use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::Path;

/// The model's million tokens are a quarter of these 16 MiB.
pub const PROMPT_BYTES_MAX: u64 = 16 << 20;
/// A million token ids with their commas are an eighth of these 64 MiB.
pub const IDS_BYTES_MAX: u64 = 64 << 20;
/// A page of a book has 3 kB.
pub const LINE_BYTES_MAX: u64 = 1 << 20;

/// Checks a file of a model folder before it is read. A file that is not there is left to whoever needs it.
///
/// # Errors
/// Something that is no regular file, or one longer than `bytes_max`.
pub fn check_model_file(path: &Path, bytes_max: u64) -> anyhow::Result<()> {
    let shown = path.display();
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(bad_input(format!("cannot read {shown}: {error}"))),
        Ok(found) if !found.is_file() => Err(bad_input(format!("{shown} is no regular file"))),
        Ok(found) if found.len() > bytes_max => {
            let bytes = found.len();
            Err(bad_input(format!("{shown} has {bytes} bytes: more than {bytes_max}, which no model needs")))
        }
        Ok(_) => Ok(()),
    }
}

/// All of `reader` as text; `name` is what messages call it.
///
/// # Errors
/// Text that cannot be read, is not UTF-8, or is longer than `bytes_max`.
pub fn read_text(reader: impl Read, name: &str, bytes_max: u64) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let read = reader.take(bytes_max + 1).read_to_end(&mut bytes);
    read.map_err(|error| bad_input(format!("cannot read {name}: {error}")))?;
    check_length(&bytes, name, bytes_max)?;
    text(bytes, name)
}

/// All of a regular file as text; anything else could block or never end.
///
/// # Errors
/// As of [`read_text`], and a path that leads to no regular file.
pub fn read_file(path: &Path, bytes_max: u64) -> anyhow::Result<String> {
    let shown = path.display();
    let refuse = |error: io::Error| bad_input(format!("cannot read {shown}: {error}"));
    // Asked before it is opened: opening a pipe waits for its writer.
    if !std::fs::metadata(path).map_err(refuse)?.is_file() {
        return Err(bad_input(format!("{shown} is no regular file: give a file, or - for the input")));
    }
    read_text(File::open(path).map_err(refuse)?, &shown.to_string(), bytes_max)
}

/// The next line with its end; `None` when there is none.
///
/// # Errors
/// A line that cannot be read, or is longer than 1 MiB.
pub fn read_line(input: &mut impl BufRead, name: &str) -> anyhow::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let read = input.take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut bytes);
    read.map_err(|error| bad_input(format!("cannot read {name}: {error}")))?;
    check_length(&bytes, name, LINE_BYTES_MAX)?;
    Ok(if bytes.is_empty() { None } else { Some(bytes) })
}

/// # Errors
/// Bytes that are not UTF-8.
pub fn text(bytes: Vec<u8>, name: &str) -> anyhow::Result<String> {
    String::from_utf8(bytes).map_err(|error| bad_input(format!("{name} is not UTF-8 text: {error}")))
}

/// # Errors
/// More bytes than `bytes_max`.
pub fn check_length(bytes: &[u8], name: &str, bytes_max: u64) -> anyhow::Result<()> {
    if bytes.len() as u64 > bytes_max {
        return Err(bad_input(format!("{name} is longer than {bytes_max} bytes, the most that is read")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_and_broken_text_is_refused() {
        assert!(read_text(io::repeat(b'a'), "the prompt", 9).unwrap_err().to_string().contains("longer"));
        assert!(read_text(&b"a\xff"[..], "the prompt", 9).unwrap_err().to_string().contains("UTF-8"));
        let mut lines = &b"\xff\nb"[..];
        let mut line = || read_line(&mut lines, "the message").unwrap();
        assert!(text(line().unwrap(), "the message").is_err());
        assert_eq!((line().as_deref(), line()), (Some(&b"b"[..]), None));
        assert!(read_line(&mut io::BufReader::new(io::repeat(b'a')), "the message").is_err());
    }

    #[test]
    fn model_files_are_regular_and_of_bounded_size() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokenizer.json");
        check_model_file(&file, 3).unwrap();
        std::fs::write(&file, "four").unwrap();
        check_model_file(&file, 4).unwrap();
        assert!(check_model_file(&file, 3).unwrap_err().to_string().contains("has 4 bytes"));
        assert!(check_model_file(folder.path(), 3).unwrap_err().to_string().contains("no regular file"));
    }
}
