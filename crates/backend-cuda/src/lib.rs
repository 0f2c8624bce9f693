//! The CUDA backend. So far: guarded access to CUDA ([`cuda`]), kernels compiled by NVRTC and kept ([`cubins`]) or
//! compiled ahead and built in ([`archive`]), the sparse decode attention ([`decode`]) and the matrix products ([`matmul`])
//! as ladders of versions, and the program that checks and times them ([`selftest`], `gpu-check`). [`gpu`] is a device as
//! all of that sees it: a real one, or with feature `emulator` one that
//! runs the kernels' own sources on the host.
//!
//! Nothing is needed to build it, and without a driver or a GPU every entry says so in an error ([`devices`]). [`backend`] is the model
//! behind the trait `Backend`: its products are [`matmul`]'s, attention of short rows is [`decode`]'s.

pub mod archive;
pub mod backend;
pub mod ceiling;
pub mod cubins;
pub mod cuda;
pub mod decode;
pub mod devices;
#[cfg(feature = "emulator")]
pub mod emulator;
pub mod gpu;
pub mod matmul;
pub mod selftest;

pub use cuda::{CudaError, Device, DeviceFacts};
