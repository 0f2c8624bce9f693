//! Reading the files of a model folder without trusting them: regular ones only, of bounded size.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// # Errors
/// What the system says, or that it is no regular file (a pipe or device would block or never end), or that it is
/// longer than `bytes_max`.
pub fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let reason = format!("it is longer than {bytes_max} bytes, which none of a model is");
        return Err(io::Error::other(reason));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_within_the_bound_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert_eq!(read_bounded(&path, 3).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(&path, "abc").unwrap();
        assert_eq!(read_bounded(&path, 3).unwrap(), b"abc");
        assert!(read_bounded(&path, 2).unwrap_err().to_string().contains("longer than 2 bytes"));
        for path in [folder.path(), Path::new("/dev/zero")] {
            let error = read_bounded(path, 3).unwrap_err().to_string();
            assert!(cfg!(not(unix)) || error.contains("no regular file"), "{error}");
        }
    }
}
