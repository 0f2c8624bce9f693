//! The CUDA backend. So far: guarded access to CUDA ([`cuda`]), kernels compiled by NVRTC and kept ([`cubins`]), the
//! sparse decode attention as a ladder of versions ([`decode`]), and the program that checks and times them
//! ([`selftest`], `gpu-check`).
//!
//! Nothing is needed to build it, and without a driver or a GPU every entry says so in an error. What is not here yet:
//! the other kernels of a layer, and the `Backend` itself.

pub mod cubins;
pub mod cuda;
pub mod decode;
pub mod selftest;

pub use cuda::{CudaError, Device, DeviceFacts};
