//! How checks end, of whatever family.

use crate::backend::RankError;
use crate::cuda::CudaError;
use crate::decode::LaunchError;
use crate::gpu::GpuError;
use crate::matmul::MatmulError;

#[derive(Debug, thiserror::Error)]
pub enum SelftestError {
    #[error(transparent)]
    Cuda(#[from] CudaError),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    Rank(Box<RankError>),
    #[error("the report cannot be written: {0}")]
    Report(#[from] std::io::Error),
    #[error("{failed} of {checked} checks failed: see those with \"passed\":false in the report")]
    Wrong { failed: usize, checked: usize },
    #[error(
        "{kernels} kernel(s) use other resources than their cubins say: see the lines with \"kind\":\"kernel\", fields driver and read"
    )]
    Misread { kernels: usize },
}

impl SelftestError {
    /// Whether there is no GPU to test, rather than one that failed.
    pub fn is_absence(&self) -> bool {
        match self {
            SelftestError::Cuda(error) | SelftestError::Gpu(GpuError::Cuda(error)) => error.is_absence(),
            _ => false,
        }
    }
}

impl From<RankError> for SelftestError {
    fn from(error: RankError) -> Self {
        match error {
            RankError::Gpu(error) => SelftestError::Gpu(error),
            other => SelftestError::Rank(Box::new(other)),
        }
    }
}

impl From<LaunchError> for SelftestError {
    fn from(error: LaunchError) -> Self {
        RankError::from(error).into()
    }
}

impl From<MatmulError> for SelftestError {
    fn from(error: MatmulError) -> Self {
        RankError::from(error).into()
    }
}

/// Checks that were made, and those of them that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub checked: usize,
    pub failed: usize,
}

impl Count {
    pub fn add(&mut self, passed: bool) {
        self.checked += 1;
        self.failed += usize::from(!passed);
    }

    /// # Errors
    /// [`SelftestError::Wrong`] where a check failed.
    pub fn verdict(self) -> Result<(), SelftestError> {
        let Count { checked, failed } = self;
        if failed > 0 { Err(SelftestError::Wrong { failed, checked }) } else { Ok(()) }
    }
}
