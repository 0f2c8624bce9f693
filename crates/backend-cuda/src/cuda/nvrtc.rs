//! NVRTC: CUDA C++ to a cubin, on any machine, with or without a GPU.
#![allow(unsafe_code)]

use super::CudaError;
use cudarc::nvrtc::sys;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::{CStr, CString, c_char};
use std::path::Path;

/// Names the library file where it is not on the library path.
const LIBRARY_VARIABLE: &str = "OVERSHOT_NVRTC";

/// A compiler that is there. Its version is part of what a cubin depends on.
#[derive(Clone, Copy, Debug)]
pub struct Compiler {
    pub version: (i32, i32),
}

/// A file that sources may include by `name`.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    pub name: &'static str,
    pub text: &'static str,
}

#[derive(Clone, Debug)]
pub struct Compiled {
    pub cubin: Vec<u8>,
    /// Warnings, and the assembler's report of registers and spills.
    pub log: String,
}

impl Compiler {
    pub fn open() -> Result<Self, CudaError> {
        if let Some(path) = std::env::var_os(LIBRARY_VARIABLE) {
            preload(Path::new(&path))?;
        }
        // SAFETY: opens the library and closes it again; its constructors are the vendor's.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoCompiler);
        }
        let mut version = (0, 0);
        // SAFETY: the library is there; both pointers are to live locals.
        accept("nvrtcVersion", unsafe { sys::nvrtcVersion(&mut version.0, &mut version.1) })?;
        Ok(Compiler { version })
    }

    /// Compiles `source` for `architecture` (`sm_90a`).
    pub fn compile(
        &self,
        name: &str,
        source: &str,
        headers: &[Header],
        architecture: &str,
        options: &[String],
    ) -> Result<Compiled, CudaError> {
        let text = |what: &str| CString::new(what).map_err(|_| CudaError::ZeroByte { what: name.into() });
        let (c_source, c_name) = (text(source)?, text(name)?);
        let names = headers.iter().map(|header| text(header.name)).collect::<Result<Vec<_>, _>>()?;
        let texts = headers.iter().map(|header| text(header.text)).collect::<Result<Vec<_>, _>>()?;
        let (names, texts) = (pointers(&names), pointers(&texts));
        let mut all = vec![text(&format!("--gpu-architecture={architecture}"))?];
        for option in options {
            all.push(text(option)?);
        }
        let options = pointers(&all);
        let mut program = Program(std::ptr::null_mut());
        // SAFETY: all strings and pointer arrays outlive the calls, and lengths are those of the arrays.
        unsafe {
            let made = sys::nvrtcCreateProgram(
                &mut program.0,
                c_source.as_ptr(),
                c_name.as_ptr(),
                headers.len() as i32,
                texts.as_ptr(),
                names.as_ptr(),
            );
            accept("nvrtcCreateProgram", made)?;
            let compiled = sys::nvrtcCompileProgram(program.0, options.len() as i32, options.as_ptr());
            let log = program.log()?;
            if compiled != sys::nvrtcResult::NVRTC_SUCCESS {
                let (name, architecture) = (name.into(), architecture.into());
                return Err(CudaError::Compile { name, architecture, log });
            }
            Ok(Compiled { cubin: program.cubin()?, log })
        }
    }
}

struct Program(sys::nvrtcProgram);

impl Program {
    /// SAFETY: the program must be created.
    unsafe fn log(&self) -> Result<String, CudaError> {
        let mut bytes = 0;
        // SAFETY: the buffer is as long as the library asked for and ends in the zero it writes.
        unsafe {
            accept("nvrtcGetProgramLogSize", sys::nvrtcGetProgramLogSize(self.0, &mut bytes))?;
            let mut log = vec![0u8; bytes + 1];
            accept("nvrtcGetProgramLog", sys::nvrtcGetProgramLog(self.0, log.as_mut_ptr().cast()))?;
            let log = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy).unwrap_or_default();
            Ok(log.into_owned())
        }
    }

    /// SAFETY: the program must be compiled.
    unsafe fn cubin(&self) -> Result<Vec<u8>, CudaError> {
        let mut bytes = 0;
        // SAFETY: the buffer is as long as the library asked for.
        unsafe {
            accept("nvrtcGetCUBINSize", sys::nvrtcGetCUBINSize(self.0, &mut bytes))?;
            let mut cubin = vec![0u8; bytes];
            accept("nvrtcGetCUBIN", sys::nvrtcGetCUBIN(self.0, cubin.as_mut_ptr().cast()))?;
            Ok(cubin)
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: created, destroyed once.
            let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
        }
    }
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).collect()
}

fn accept(call: &'static str, result: sys::nvrtcResult) -> Result<(), CudaError> {
    if result == sys::nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    Err(CudaError::Call { call, reason: format!("{result:?}") })
}

/// Loads the library by path for the whole process, so that looking it up by name finds it. It opens its builtins by
/// bare name and has no run path: those come first.
fn preload(path: &Path) -> Result<(), CudaError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let builtins =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path()).filter(|file| {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with("libnvrtc-builtins.so.")
        });
    for library in builtins.chain([path.to_path_buf()]) {
        // SAFETY: the vendor's libraries, named by the user; they stay loaded, so nothing dangles.
        let loaded = unsafe { Library::open(Some(&library), RTLD_NOW | RTLD_GLOBAL) };
        std::mem::forget(loaded.map_err(|_| CudaError::NoCompiler)?);
    }
    Ok(())
}
