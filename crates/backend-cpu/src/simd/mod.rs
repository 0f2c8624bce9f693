//! Vector kernels outside the matmul, each written once over [`Lanes`] and compiled for every [`Isa`].
//!
//! `isa.run(Kernel { .. })` enters the right copy. Inside, everything must be `#[inline(always)]`, or it would be
//! compiled without the vector instructions.

mod attention;
mod lanes;
mod pointwise;

pub use attention::{Dots, Softmax, WeightedSum};
#[cfg(target_arch = "x86_64")]
pub use lanes::horizontal_sum;
pub use lanes::{Lanes, WIDTH, sum_of_lanes};
pub use pointwise::{Combine, GatedActivation, PoolRows, SumOfSquares, UnpackEntry};

use crate::Isa;

/// A computation generic over the vector type. Implement `run` with `#[inline(always)]`.
pub trait Kernel {
    type Out;
    fn run<L: Lanes>(self) -> Self::Out;
}

impl Isa {
    pub fn run<K: Kernel>(self, kernel: K) -> K::Out {
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2,fma")]
            fn with_avx2<K: Kernel>(kernel: K) -> K::Out {
                kernel.run::<lanes::Avx2>()
            }
            if let Isa::Avx2(_) = self {
                // SAFETY: `Isa::Avx2` exists only where the processor has AVX2 and FMA.
                #[allow(unsafe_code)]
                return unsafe { with_avx2(kernel) };
            }
        }
        kernel.run::<lanes::Scalar>()
    }
}
