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

/// Whether this binary has every kernel of a step for an architecture.
pub fn are_built_in(architecture: &str) -> bool {
    let Some(archive) = archive::embedded() else { return false };
    sources().iter().chain(&matmul::shipped_sources()).all(|source| archive.has(source, architecture))
}

/// Opens devices for the backend, by CUDA's numbers. Those that it cannot run on are refused before any of their memory is taken.
pub fn open(ordinals: &[usize]) -> Result<Vec<Arc<dyn Gpu>>, OpenError> {
    let devices = cuda::devices().map_err(|error| match error.is_absence() {
        true => OpenError::from(Unusable::Driver(error)),
        false => OpenError::from(GpuError::from(error)),
    })?;
    let nvrtc = Compiler::open().is_ok();
    check(&devices, ordinals, |architecture| nvrtc || are_built_in(architecture))?;
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
