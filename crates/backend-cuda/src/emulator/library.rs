//! A kernel's source as a shared object: compiled once by the system's C++ compiler, kept in a folder under a name made
//! of everything it depends on, loaded until the process ends.
#![allow(unsafe_code)]

use super::EmulatorError;
use crate::cubins::{Source, write_whole};
use crate::gpu::{Grid, Shape};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Found beside a kernel's own headers; a file of the same name replaces one of those.
const FILES: [(&str, &str); 4] = [
    ("cuda.hpp", include_str!("../../emulator/cuda.hpp")),
    ("fibers.hpp", include_str!("../../emulator/fibers.hpp")),
    ("launch.hpp", include_str!("../../emulator/launch.hpp")),
    ("ptx.cuh", include_str!("../../emulator/ptx.cuh")),
];

/// No contraction: sums are those that the text says. Hidden: loaded libraries must not share each other's variables.
const FLAGS: [&str; 10] = [
    "-std=c++17",
    // Some compilers set it by themselves; it ends programs that poison the storage around a variable, as ours do.
    "-U_FORTIFY_SOURCE",
    "-fvisibility=hidden",
    "-O2",
    "-fPIC",
    "-shared",
    "-ffp-contract=off",
    "-Wall",
    "-Wno-unknown-pragmas",
    "-Wno-sign-compare",
];

/// In which order threads take turns, where several could go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Ascending,
    Descending,
    /// A new order at every turn, from this seed.
    Random(u64),
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Order::Ascending => f.write_str("ascending"),
            Order::Descending => f.write_str("descending"),
            Order::Random(seed) => write!(f, "at random, seed {seed}"),
        }
    }
}

/// `c++`, and where its output is kept.
#[derive(Clone, Debug)]
pub struct Compiler {
    version: String,
    flags: Vec<&'static str>,
    folder: PathBuf,
}

impl Compiler {
    pub fn open() -> Result<Self, EmulatorError> {
        let asked = Command::new("c++").arg("--version").output();
        let output = asked.map_err(|error| EmulatorError::NoCompiler { reason: error.to_string() })?;
        let version = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut flags = FLAGS.to_vec();
        #[cfg(target_arch = "x86_64")]
        if std::is_x86_feature_detected!("avx2")
            && std::is_x86_feature_detected!("fma")
            && std::is_x86_feature_detected!("f16c")
        {
            flags.extend(["-mavx2", "-mfma", "-mf16c"]);
        }
        Ok(Compiler { version, flags, folder: std::env::temp_dir().join("overshot-emulator") })
    }

    fn files<'a>(&self, source: &'a Source) -> Vec<(&'a str, String)> {
        let own = source.headers.iter().map(|header| (header.name, header.text.to_owned()));
        let mut files: Vec<_> = own.filter(|(name, _)| FILES.iter().all(|(ours, _)| ours != name)).collect();
        files.extend(FILES.map(|(name, text)| (name, text.to_owned())));
        let definitions: String =
            source.definitions.iter().map(|(name, value)| format!("#define {name} {value}\n")).collect();
        let entries: String =
            entries(source.text).map(|entry| format!("OVERSHOT_ENTRY({entry})\n")).collect();
        let whole = format!(
            "{definitions}#include \"cuda.hpp\"\n#line 1 \"{}.cu\"\n{}{entries}",
            source.name, source.text
        );
        files.push(("kernel.cpp", whole));
        files
    }

    fn path(&self, source: &Source, files: &[(&str, String)]) -> PathBuf {
        let mut hash = Sha256::new();
        let parts = files.iter().flat_map(|(name, text)| [*name, text.as_str()]);
        for part in parts.chain(self.flags.iter().copied()).chain([self.version.as_str()]) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let key: String = hash.finalize().iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(format!("{}.{key}.so", source.name))
    }

    fn compile(&self, source: &Source, files: &[(&str, String)], path: &Path) -> Result<(), EmulatorError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| EmulatorError::File { path, source }
        };
        let folder = path.with_extension(format!("{}.build", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(at(&folder))?;
        for (name, text) in files {
            let file = folder.join(name);
            std::fs::write(&file, text).map_err(at(&file))?;
        }
        let object = folder.join("kernel.so");
        let mut command = Command::new("c++");
        command.args(&self.flags).arg(folder.join("kernel.cpp")).arg("-o").arg(&object);
        let output =
            command.output().map_err(|error| EmulatorError::NoCompiler { reason: error.to_string() })?;
        if !output.status.success() {
            let log = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(EmulatorError::Compile { name: source.name.clone(), log });
        }
        let bytes = std::fs::read(&object).map_err(at(&object))?;
        write_whole(path, &bytes).map_err(at(path))?;
        let _ = std::fs::remove_dir_all(&folder);
        Ok(())
    }
}

/// Names of the kernels in a text: what follows `__global__` up to its parameter.
fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("extern \"C\" __global__").filter_map(|(at, start)| {
        let rest = text[at + start.len()..].trim_start().strip_prefix("void")?.trim_start();
        let rest = match rest.strip_prefix("__launch_bounds__(") {
            Some(bounds) => &bounds[bounds.find(')')? + 1..],
            None => rest,
        };
        rest.split('(').next().map(str::trim)
    })
}

pub struct Library {
    path: PathBuf,
    object: libloading::Library,
}

impl Library {
    /// Compiled and loaded by the first who asks; others wait for it.
    pub fn get(compiler: &Compiler, source: &Source) -> Result<Arc<Library>, EmulatorError> {
        type Loaded = HashMap<PathBuf, Arc<Mutex<Option<Arc<Library>>>>>;
        static LOADED: OnceLock<Mutex<Loaded>> = OnceLock::new();
        let files = compiler.files(source);
        let path = compiler.path(source, &files);
        let place = {
            let loaded = LOADED.get_or_init(Mutex::default);
            loaded.lock().unwrap_or_else(PoisonError::into_inner).entry(path.clone()).or_default().clone()
        };
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = &*place {
            return Ok(library.clone());
        }
        if !path.exists() {
            compiler.compile(source, &files, &path)?;
        }
        // SAFETY: our own code, compiled from the text that the path's name is made of; it runs nothing when loaded.
        let object = unsafe { libloading::Library::new(&path) }
            .map_err(|error| EmulatorError::Load { path: path.clone(), reason: error.to_string() })?;
        let library = Arc::new(Library { path, object });
        *place = Some(library.clone());
        Ok(library)
    }

    pub fn entry(self: &Arc<Self>, name: &str) -> Result<Entry, EmulatorError> {
        // SAFETY: OVERSHOT_ENTRY declares every such name with this type.
        let symbol = unsafe { self.object.get::<EntryFunction>(format!("emulated_{name}").as_bytes()) };
        let function = *symbol.map_err(|error| EmulatorError::Load {
            path: self.path.clone(),
            reason: format!("no kernel {name} in it ({error})"),
        })?;
        Ok(Entry { name: name.to_owned(), function, _library: self.clone() })
    }
}

/// As `emulator/fibers.hpp` declares it: change both.
#[repr(C)]
struct Launch {
    grid: [u32; 3],
    threads: u32,
    shared_bytes: u32,
    order: u32,
    seed: u64,
}

type EntryFunction = unsafe extern "C" fn(*const u8, u32, *const Launch, *mut c_char, u32) -> c_int;

/// A kernel's host entry.
pub struct Entry {
    pub name: String,
    function: EntryFunction,
    /// The function is in it.
    _library: Arc<Library>,
}

impl Entry {
    /// # Safety
    /// The addresses in `arguments` are live and large enough.
    pub unsafe fn call(
        &self,
        grid: Grid,
        shape: Shape,
        order: Order,
        arguments: &[u8],
    ) -> Result<(), EmulatorError> {
        let (number, seed) = match order {
            Order::Ascending => (0, 0),
            Order::Descending => (1, 0),
            Order::Random(seed) => (2, seed),
        };
        let Shape { threads, shared_bytes } = shape;
        let launch = Launch { grid: [grid.0, grid.1, grid.2], threads, shared_bytes, order: number, seed };
        let mut message = [0u8; 1024];
        // The kernel reads its parameter where it is: it has to be aligned.
        let mut aligned = vec![0u128; arguments.len().div_ceil(16)];
        // SAFETY: `aligned` has at least as many bytes; the entry reads `arguments.len()` of them if that is what it takes,
        // and writes a message that ends in zero.
        let failed = unsafe {
            std::ptr::copy_nonoverlapping(arguments.as_ptr(), aligned.as_mut_ptr().cast(), arguments.len());
            (self.function)(
                aligned.as_ptr().cast(),
                arguments.len() as u32,
                &launch,
                message.as_mut_ptr().cast(),
                message.len() as u32,
            )
        };
        if failed == 0 {
            return Ok(());
        }
        let message = CStr::from_bytes_until_nul(&message).map(CStr::to_string_lossy).unwrap_or_default();
        Err(EmulatorError::Launch { message: format!("{message} (threads {order})") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_found_by_name() {
        let text = "extern \"C\" __global__ void __launch_bounds__(THREADS) one(const Args a) {}
            extern \"C\" __global__ void two (const Args a) {}
            extern \"C\" __global__ void __launch_bounds__(512, 1)\n three(const Args a) {}";
        assert_eq!(entries(text).collect::<Vec<_>>(), ["one", "two", "three"]);
    }
}
