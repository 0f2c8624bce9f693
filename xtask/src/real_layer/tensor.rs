//! One tensor that does not exist until it is written.

use super::random;
use safetensors::tensor::{Dtype, View};
use std::borrow::Cow;

/// What a tensor is filled with. `rms` is the root mean square that its numbers (codes times scale) get.
#[derive(Clone, Copy, Debug)]
pub enum Filling {
    F32Uniform {
        rms: f32,
    },
    F32Constant(f32),
    Bf16Uniform {
        rms: f32,
    },
    Bf16Constant(f32),
    E4m3Codes,
    /// Two codes a byte.
    E2m1Codes,
    /// Power-of-two scales that bring E4M3 codes to this root mean square.
    E4m3Scales {
        rms: f32,
    },
    E2m1Scales {
        rms: f32,
    },
}

#[derive(Clone, Debug)]
pub struct Tensor {
    pub shape: Vec<usize>,
    pub filling: Filling,
    pub seed: u64,
}

impl Tensor {
    pub fn bytes(&self) -> usize {
        let per_element = match self.dtype() {
            Dtype::F32 => 4,
            Dtype::BF16 => 2,
            _ => 1,
        };
        self.shape.iter().product::<usize>() * per_element
    }
}

impl View for Tensor {
    fn dtype(&self) -> Dtype {
        match self.filling {
            Filling::F32Uniform { .. } | Filling::F32Constant(_) => Dtype::F32,
            Filling::Bf16Uniform { .. } | Filling::Bf16Constant(_) => Dtype::BF16,
            Filling::E4m3Codes => Dtype::F8_E4M3,
            Filling::E2m1Codes => Dtype::I8,
            Filling::E4m3Scales { .. } | Filling::E2m1Scales { .. } => Dtype::F8_E8M0,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let elements = self.shape.iter().product();
        let random = fastrand::Rng::with_seed(self.seed);
        Cow::Owned(match self.filling {
            Filling::F32Uniform { rms } => random::f32_uniform(random, elements, rms),
            Filling::F32Constant(value) => value.to_le_bytes().repeat(elements),
            Filling::Bf16Uniform { rms } => random::bf16_uniform(random, elements, rms),
            Filling::Bf16Constant(value) => random::bf16(value).to_le_bytes().repeat(elements),
            Filling::E4m3Codes => random::e4m3_codes(random, elements),
            Filling::E2m1Codes => random::e2m1_codes(random, elements),
            Filling::E4m3Scales { rms } => random::scales(random, elements, rms / random::E4M3_RMS),
            Filling::E2m1Scales { rms } => random::scales(random, elements, rms / random::e2m1_rms()),
        })
    }

    fn data_len(&self) -> usize {
        self.bytes()
    }
}
