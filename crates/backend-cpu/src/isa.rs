//! Which instructions the kernels use, chosen once when the backend starts.

use std::fmt;

/// Results are bit-identical within one of these whatever the batch, chunking or thread count; between the two
/// they differ in the last bits, because only one of them fuses multiply and add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// 8 lanes of float32 with fused multiply-add. Only made by [`Isa::detect`], which is what makes it sound to
    /// call the kernels behind it.
    Avx2(Avx2Token),
    /// Plain Rust that runs anywhere.
    Scalar,
}

/// Proof that this processor has AVX2 and FMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2Token(());

impl Isa {
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Isa::Avx2(Avx2Token(()));
        }
        Isa::Scalar
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Avx2(_) => "avx2",
            Isa::Scalar => "scalar",
        })
    }
}
