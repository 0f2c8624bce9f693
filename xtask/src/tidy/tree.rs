//! The files of the repository, held in memory: what git tracks and what it would track.

use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Paths are relative to the root, with `/` between parts.
pub struct Tree {
    files: BTreeMap<String, Vec<u8>>,
}

impl Tree {
    /// Files that git tracks or does not ignore, so that a new file is checked before its first commit.
    pub fn of_repository(root: &Path) -> anyhow::Result<Self> {
        let listing = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .context("cannot run git, which tidy asks for the list of files")?;
        if !listing.status.success() {
            bail!("git ls-files failed: {}", String::from_utf8_lossy(&listing.stderr).trim());
        }
        let mut files = BTreeMap::new();
        for path in String::from_utf8_lossy(&listing.stdout).split('\0').filter(|path| !path.is_empty()) {
            let on_disk = root.join(path);
            // Deleted but not yet committed: nothing to check.
            if on_disk.is_file() {
                let bytes = std::fs::read(&on_disk).with_context(|| format!("cannot read {path}"))?;
                files.insert(path.to_owned(), bytes);
            }
        }
        Ok(Tree { files })
    }

    #[cfg(test)]
    pub fn of<const N: usize>(files: [(&str, &str); N]) -> Self {
        let files = files.into_iter().map(|(path, text)| (path.to_owned(), text.as_bytes().to_vec()));
        Tree { files: files.collect() }
    }

    #[cfg(test)]
    pub fn with_bytes(mut self, path: &str, bytes: Vec<u8>) -> Self {
        self.files.insert(path.to_owned(), bytes);
        self
    }

    pub fn len(&self) -> usize {
        self.files.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files.iter().map(|(path, bytes)| (path.as_str(), bytes.as_slice()))
    }

    /// Files that are UTF-8 text, with their text.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.iter().filter_map(|(path, bytes)| Some((path, std::str::from_utf8(bytes).ok()?)))
    }

    pub fn rust_files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts().filter(|(path, _)| path.ends_with(".rs"))
    }

    pub fn text(&self, path: &str) -> Option<&str> {
        std::str::from_utf8(self.files.get(path)?).ok()
    }

    /// A file, or a folder that holds one. A trailing `/` is allowed on folders.
    pub fn exists(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.files.contains_key(path) || self.has_folder(path)
    }

    /// Whether some file or folder has this path or ends in `/` and this path.
    pub fn exists_somewhere(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let (below, folder, inner) = (format!("/{path}"), format!("{path}/"), format!("/{path}/"));
        self.files.keys().any(|file| {
            file == path || file.ends_with(&below) || file.starts_with(&folder) || file.contains(&inner)
        })
    }

    pub fn has_folder(&self, path: &str) -> bool {
        let prefix = format!("{}/", path.trim_end_matches('/'));
        path.is_empty()
            || self.files.range(prefix.clone()..).next().is_some_and(|(k, _)| k.starts_with(&prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_exist_through_their_files() {
        let tree = Tree::of([("crates/kv/src/lib.rs", ""), ("README.md", "")]);
        assert!(tree.exists("crates/kv/"));
        assert!(tree.exists("README.md"));
        assert!(!tree.exists("crates/k"));
        assert!(tree.exists_somewhere("src/lib.rs"));
        assert!(tree.exists_somewhere("kv/src/"));
        assert!(!tree.exists_somewhere("v/src/lib.rs"));
    }
}
