//! Rotation of the last 64 dimensions of a head by the position.

use overshot_model::{ROPE_DIMS, Spec};

const PAIRS: usize = ROPE_DIMS / 2;

/// Frequencies of one kind of layer: ratio-0 layers have their own base; compressed layers another, with YaRN.
#[derive(Clone, Debug)]
pub struct Frequencies([f32; PAIRS]);

impl Frequencies {
    pub fn window(spec: &Spec) -> Self {
        Frequencies(base_frequencies(spec.rope_theta))
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
        Frequencies(frequencies)
    }

    /// The rotation of one position. The angle is a float32 product, as in training: at a million tokens an exact
    /// product would be a visibly different angle.
    pub fn at(&self, position: usize) -> Rotation {
        let angle = |i: usize| position as f32 * self.0[i];
        Rotation {
            cos: std::array::from_fn(|i| angle(i).cos()),
            sin: std::array::from_fn(|i| angle(i).sin()),
        }
    }
}

/// `theta^(2i/64)` is rounded to float32 before the division: rounding once at the end is off by up to two units in
/// the last place, which at a million tokens is 0.01 in the cosine.
fn base_frequencies(theta: f32) -> [f32; PAIRS] {
    std::array::from_fn(|i| 1.0 / (f64::from(theta).powf(2.0 * i as f64 / ROPE_DIMS as f64) as f32))
}

/// Cosines and sines of one position.
#[derive(Clone, Debug)]
pub struct Rotation {
    cos: [f32; PAIRS],
    sin: [f32; PAIRS],
}

impl Rotation {
    /// Rotates the last 64 numbers of `head`, pairs of neighbours.
    pub fn apply(&self, head: &mut [f32]) {
        self.rotate(head, 1.0);
    }

    /// Rotates them back.
    pub fn undo(&self, head: &mut [f32]) {
        self.rotate(head, -1.0);
    }

    fn rotate(&self, head: &mut [f32], sign: f32) {
        let start = head.len() - ROPE_DIMS;
        for (i, pair) in head[start..].chunks_exact_mut(2).enumerate() {
            let (even, odd) = (pair[0], pair[1]);
            let (cos, sin) = (self.cos[i], self.sin[i] * sign);
            pair[0] = even * cos - odd * sin;
            pair[1] = even * sin + odd * cos;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Units, flash_like_spec};

    #[test]
    fn frequencies_equal_the_fixture_bit_for_bit_and_rotations_agree() {
        let units = Units::read();
        let spec = flash_like_spec();
        let kinds =
            [("rope.main", Frequencies::window(&spec)), ("rope.compress", Frequencies::compressed(&spec))];
        for (name, frequencies) in kinds {
            assert_eq!(frequencies.0.as_slice(), units.f32(&format!("{name}.inv_freq")), "{name}");
            let (x, y) = (units.f32(&format!("{name}.x")), units.f32(&format!("{name}.y")));
            let (cos, sin) = (units.f32(&format!("{name}.cos")), units.f32(&format!("{name}.sin")));
            for (i, position) in units.i32("rope.positions").into_iter().enumerate() {
                let rotation = frequencies.at(position as usize);
                for pair in 0..PAIRS {
                    assert!(
                        (rotation.cos[pair] - cos[i * PAIRS + pair]).abs() <= 1e-6,
                        "{name} at {position}"
                    );
                    assert!(
                        (rotation.sin[pair] - sin[i * PAIRS + pair]).abs() <= 1e-6,
                        "{name} at {position}"
                    );
                }
                let width = x.len() / units.i32("rope.positions").len();
                let mut head = x[i * width..(i + 1) * width].to_vec();
                rotation.apply(&mut head);
                for (ours, theirs) in head.iter().zip(&y[i * width..]) {
                    assert!((ours - theirs).abs() <= 1e-5, "{name} at {position}: {ours} for {theirs}");
                }
                rotation.undo(&mut head);
                for (ours, theirs) in head.iter().zip(&x[i * width..]) {
                    assert!((ours - theirs).abs() <= 1e-5, "{name} at {position}: rotated back");
                }
            }
        }
    }
}
