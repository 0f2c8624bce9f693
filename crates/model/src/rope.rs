//! Rotary frequencies: what an angle is multiplied from. Rotating is the backends' work.

use crate::{ROPE_DIMS, Spec};

pub const ROPE_PAIRS: usize = ROPE_DIMS / 2;

/// Frequencies of one kind of layer: ratio-0 layers have their own base; compressed layers another, with YaRN.
#[derive(Clone, Debug)]
pub struct RopeFrequencies(pub [f32; ROPE_PAIRS]);

impl RopeFrequencies {
    pub fn window(spec: &Spec) -> Self {
        RopeFrequencies(base_frequencies(spec.rope_theta))
    }

    pub fn compressed(spec: &Spec) -> Self {
        let mut frequencies = base_frequencies(spec.compress_rope_theta);
        let yarn = spec.yarn;
        let dimension = |rotations: f32| {
            let wavelengths =
                yarn.original_max_positions as f64 / (2.0 * std::f64::consts::PI * f64::from(rotations));
            ROPE_DIMS as f64 * wavelengths.ln() / (2.0 * f64::from(spec.compress_rope_theta).ln())
        };
        let low = dimension(yarn.beta_fast).floor().max(0.0) as f32;
        let mut high = dimension(yarn.beta_slow).ceil().min((ROPE_DIMS - 1) as f64) as f32;
        if low == high {
            high += 0.001;
        }
        for (i, frequency) in frequencies.iter_mut().enumerate() {
            let stretched = ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
            *frequency = *frequency / yarn.factor * stretched + *frequency * (1.0 - stretched);
        }
        RopeFrequencies(frequencies)
    }
}

/// `theta^(2i/64)` is rounded to float32 before the division: rounding once at the end is off by up to two units in
/// the last place, which at a million tokens is 0.01 in the cosine.
fn base_frequencies(theta: f32) -> [f32; ROPE_PAIRS] {
    std::array::from_fn(|i| 1.0 / (f64::from(theta).powf(2.0 * i as f64 / ROPE_DIMS as f64) as f32))
}
