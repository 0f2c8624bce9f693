//! Cubins, compiled once: from the cache folder if they are there, from NVRTC otherwise.
//!
//! A cubin depends on its source, the headers, the options, the architecture and the compiler, and its file is named
//! after all of them: nothing in the folder is ever stale, and the folder may be deleted at any time.

use crate::cuda::{Compiled, Compiler, CudaError, Header};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Of a key: the beginning of a hash that is twice as long.
pub const KEY_BYTES: usize = 12;

/// One compilation, fully described.
#[derive(Clone, Debug)]
pub struct Source {
    pub name: String,
    pub text: &'static str,
    pub headers: &'static [Header],
    /// `-D` definitions, in order.
    pub definitions: Vec<(&'static str, u32)>,
}

/// A folder of compiled kernels and the compiler that fills it.
#[derive(Clone, Debug)]
pub struct Cubins {
    pub compiler: Compiler,
    pub folder: Option<PathBuf>,
}

impl Source {
    pub fn options(&self) -> Vec<String> {
        let mut options = vec!["--std=c++17".into(), "--ptxas-options=-v".into(), "-lineinfo".into()];
        options.extend(self.definitions.iter().map(|(name, value)| format!("-D{name}={value}")));
        options
    }

    /// Whether each of its kernels waits by itself for the launch before (`kernels/common/ptx.cuh`), and so may be launched
    /// before that has ended. Read from the text, so that no kernel is taken for one that does.
    pub fn waits_for_launch_before(&self) -> bool {
        let mut kernels = self.text.split("__global__").skip(1).peekable();
        kernels.peek().is_some() && kernels.all(|kernel| kernel.matches("_launch_before();").count() == 1)
    }

    /// What a cubin is made of but the compiler.
    pub fn key(&self, architecture: &str) -> [u8; KEY_BYTES] {
        let mut hash = Sha256::new();
        let mut feed = |part: &str| {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        };
        feed(self.text);
        for header in self.headers {
            feed(header.name);
            feed(header.text);
        }
        self.options().iter().for_each(|option| feed(option));
        feed(architecture);
        let hash = hash.finalize();
        std::array::from_fn(|at| hash[at])
    }

    fn file_name(&self, architecture: &str, version: (i32, i32)) -> String {
        let key: String = self.key(architecture).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}.{architecture}.{}.{}.{key}.cubin", self.name, version.0, version.1)
    }
}

impl Cubins {
    /// The cubin of `source`. A folder that cannot be written costs the next run a compilation, nothing else.
    pub fn get(&self, source: &Source, architecture: &str) -> Result<Vec<u8>, CudaError> {
        let Some(folder) = &self.folder else { return Ok(self.compile(source, architecture)?.cubin) };
        let path = folder.join(source.file_name(architecture, self.compiler.version));
        if let Ok(cubin) = std::fs::read(&path) {
            return Ok(cubin);
        }
        let compiled = self.compile(source, architecture)?;
        let _ = write_whole(&path, &compiled.cubin);
        Ok(compiled.cubin)
    }

    pub fn compile(&self, source: &Source, architecture: &str) -> Result<Compiled, CudaError> {
        self.compiler.compile(&source.name, source.text, source.headers, architecture, &source.options())
    }
}

/// Under another name first, of this call alone: a process that ends half-way must not leave half a cubin.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    static WRITTEN: AtomicUsize = AtomicUsize::new(0);
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let partial = path.with_extension(format!("partial-{}-{number}", std::process::id()));
    std::fs::write(&partial, bytes)?;
    std::fs::rename(&partial, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_depends_on_everything_that_makes_a_cubin() {
        let source = Source { name: "k".into(), text: "a", headers: &[], definitions: vec![("N", 1)] };
        let key = source.key("sm_90a");
        assert_eq!(key, source.clone().key("sm_90a"));
        assert_ne!(key, source.key("sm_120a"));
        assert_ne!(source.file_name("sm_90a", (13, 0)), source.file_name("sm_90a", (13, 1)));
        assert_ne!(key, Source { text: "b", ..source.clone() }.key("sm_90a"));
        assert_ne!(key, Source { definitions: vec![("N", 2)], ..source.clone() }.key("sm_90a"));
        let headers: &[Header] = &[Header { name: "h", text: "x" }];
        assert_ne!(key, Source { headers, ..source.clone() }.key("sm_90a"));
    }

    #[test]
    fn a_text_begins_early_only_if_each_of_its_kernels_waits() {
        let waits = |text| {
            let source = Source { name: "k".into(), text, headers: &[], definitions: vec![] };
            source.waits_for_launch_before()
        };
        assert!(waits(
            "__global__ a() { begin_after_launch_before(); } __global__ b() { wait_for_launch_before(); }"
        ));
        assert!(!waits("__global__ a() { begin_after_launch_before(); } __global__ b() { }"));
        assert!(!waits(
            "__global__ a() { wait_for_launch_before(); wait_for_launch_before(); } __global__ b() { }"
        ));
        assert!(!waits("__global__ a() { }"));
        assert!(!waits(""));
    }
}
