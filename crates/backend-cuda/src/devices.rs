//! Which GPUs the backend can run on, and one sentence for each reason why not. The rule is pure, so that `overshot doctor`, which
//! asks the driver in a process of its own, applies the same one.

use crate::archive;
use crate::backend::sources;
use crate::cuda::{self, Compiler, CudaError, DeviceFacts};
use crate::gpu::{CudaGpu, Gpu, GpuError, KernelStore};
use crate::matmul;
use std::sync::Arc;

/// Compute capability 9.0: what the kernels are written for, and what `archive::ARCHITECTURES` begins with.
const SM_MIN: u32 = 90;

/// Compute capabilities of cards that have run every check: the others are for those who ask for them.
const VERIFIED_SMS: [u32; 1] = [90];

#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    #[error(transparent)]
    Driver(CudaError),
    #[error("there is no GPU {ordinal}: this machine has {count}, numbered from 0")]
    NoSuchDevice { ordinal: usize, count: usize },
    #[error("GPU {ordinal} ({name}) is of compute capability {}.{}: kernels are written for 9.0 and newer", .sm / 10, .sm % 10)]
    OldDevice { ordinal: usize, name: String, sm: u32 },
    #[error(
        "GPU {ordinal} ({name}) has no kernels: none are built in for {architecture}, and there is no NVRTC to compile them (put \
         libnvrtc.so.13 on the library path, or name it in OVERSHOT_NVRTC)"
    )]
    NoKernels { ordinal: usize, name: String, architecture: String },
    #[error(
        "GPU {ordinal} ({name}) is of compute capability {}.{}, where no kernel was ever checked: add --backend cuda to take it all the \
         same", .sm / 10, .sm % 10
    )]
    Unverified { ordinal: usize, name: String, sm: u32 },
}

impl Unusable {
    /// Whether nothing here looks like a GPU: nobody who did not ask for one needs to be told.
    pub fn is_bare_machine(&self) -> bool {
        match self {
            Unusable::Driver(error) => error.is_bare_machine(),
            Unusable::NoSuchDevice { count, .. } => *count == 0,
            _ => false,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Unusable(#[from] Unusable),
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

/// Whether the backend could run on these of a machine's devices.
pub fn check(
    devices: &[DeviceFacts],
    ordinals: &[usize],
    has_kernels: impl Fn(&str) -> bool,
) -> Result<(), Unusable> {
    for &ordinal in ordinals {
        let count = devices.len();
        let device = devices.get(ordinal).ok_or(Unusable::NoSuchDevice { ordinal, count })?;
        let (name, architecture) = (device.name.clone(), device.architecture());
        if device.sm < SM_MIN {
            return Err(Unusable::OldDevice { ordinal, name, sm: device.sm });
        }
        if !has_kernels(&architecture) {
            return Err(Unusable::NoKernels { ordinal, name, architecture });
        }
    }
    Ok(())
}

/// Whether the backend may run on them though nobody asked for a GPU.
pub fn check_unasked(
    devices: &[DeviceFacts],
    ordinals: &[usize],
    has_kernels: impl Fn(&str) -> bool,
) -> Result<(), Unusable> {
    check(devices, ordinals, has_kernels)?;
    let named = ordinals.iter().filter_map(|&ordinal| Some((ordinal, devices.get(ordinal)?)));
    match named.into_iter().find(|(_, device)| !VERIFIED_SMS.contains(&device.sm)) {
        Some((ordinal, device)) => {
            Err(Unusable::Unverified { ordinal, name: device.name.clone(), sm: device.sm })
        }
        None => Ok(()),
    }
}

/// Whether this binary has every kernel of a step for an architecture.
pub fn are_built_in(architecture: &str) -> bool {
    let Some(archive) = archive::embedded() else { return false };
    sources().iter().chain(&matmul::shipped_sources()).all(|source| archive.has(source, architecture))
}

/// Opens devices for the backend, by CUDA's numbers. Those that it cannot run on are refused before any of their memory is taken.
pub fn open(ordinals: &[usize]) -> Result<Vec<Arc<dyn Gpu>>, OpenError> {
    open_if(ordinals, |devices, has_kernels| check(devices, ordinals, has_kernels))
}

/// As [`open`], where nobody asked for a GPU.
pub fn open_unasked(ordinals: &[usize]) -> Result<Vec<Arc<dyn Gpu>>, OpenError> {
    open_if(ordinals, |devices, has_kernels| check_unasked(devices, ordinals, has_kernels))
}

fn open_if(
    ordinals: &[usize],
    rule: impl Fn(&[DeviceFacts], &dyn Fn(&str) -> bool) -> Result<(), Unusable>,
) -> Result<Vec<Arc<dyn Gpu>>, OpenError> {
    let devices = cuda::devices().map_err(|error| match error.is_absence() {
        true => OpenError::from(Unusable::Driver(error)),
        false => OpenError::from(GpuError::from(error)),
    })?;
    let nvrtc = Compiler::open().is_ok();
    rule(&devices, &|architecture| nvrtc || are_built_in(architecture))?;
    let open = |ordinal: &usize| {
        let gpu = CudaGpu::open(*ordinal as i32, KernelStore::built_in())?;
        Ok(Arc::new(gpu) as Arc<dyn Gpu>)
    };
    ordinals.iter().map(open).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, sm: u32) -> DeviceFacts {
        DeviceFacts {
            name: name.into(),
            driver_cuda_version: 13_000,
            sm,
            multiprocessors: 132,
            memory_bytes: 1 << 37,
            l2_bytes: 1 << 26,
            shared_bytes_per_sm: 233_472,
            shared_bytes_per_cta: 232_448,
            registers_per_sm: 65_536,
            threads_per_sm: 2048,
            clock_khz: 1_980_000,
            memory_clock_khz: 3_201_000,
            memory_bus_bits: 6016,
        }
    }

    #[test]
    fn what_was_never_checked_is_for_those_who_ask() {
        let devices = [device("H200", 90), device("RTX PRO 6000", 120), device("RTX 4090", 89)];
        let told = |ordinals: &[usize]| check_unasked(&devices, ordinals, |_| true).unwrap_err();
        assert!(check_unasked(&devices, &[0], |_| true).is_ok());
        assert!(check(&devices, &[0, 1], |_| true).is_ok());
        assert_eq!(
            told(&[0, 1]).to_string(),
            "GPU 1 (RTX PRO 6000) is of compute capability 12.0, where no kernel was ever checked: add --backend cuda to take it all \
             the same"
        );
        assert!(!told(&[2]).to_string().contains("--backend cuda"), "{}", told(&[2]));
        let none = check_unasked(&[], &[0], |_| true).unwrap_err();
        assert!(none.is_bare_machine() && !told(&[1]).is_bare_machine() && !told(&[3]).is_bare_machine());
        assert!(Unusable::Driver(CudaError::NoDriver).is_bare_machine());
        assert!(!Unusable::Driver(CudaError::OldDriver { version: 12_080 }).is_bare_machine());
    }

    #[test]
    fn each_reason_is_a_sentence() {
        let devices = [device("H200", 90), device("RTX 4090", 89), device("Next", 130)];
        let hopper = |architecture: &str| architecture == "sm_90a";
        let told = |ordinals: &[usize]| check(&devices, ordinals, hopper).unwrap_err().to_string();
        assert!(check(&devices, &[0], hopper).is_ok());
        assert!(check(&devices, &[0, 2], |_| true).is_ok());
        assert_eq!(told(&[0, 3]), "there is no GPU 3: this machine has 3, numbered from 0");
        assert_eq!(
            told(&[1]),
            "GPU 1 (RTX 4090) is of compute capability 8.9: kernels are written for 9.0 and newer"
        );
        assert!(told(&[0, 2]).starts_with("GPU 2 (Next) has no kernels: none are built in for sm_130a"));
    }
}
