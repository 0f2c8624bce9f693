//! Rotation of the last 64 dimensions of a head by the position.

use overshot_model::{ROPE_DIMS, ROPE_PAIRS, RopeFrequencies};

/// Cosines and sines of one position.
#[derive(Clone, Debug)]
pub struct Rotation {
    cos: [f32; ROPE_PAIRS],
    sin: [f32; ROPE_PAIRS],
}

impl Rotation {
    /// The rotation of one position. The angle is a float32 product, as in training: at a million tokens an exact
    /// product would be a visibly different angle.
    pub fn at(frequencies: &RopeFrequencies, position: usize) -> Self {
        let angle = |i: usize| position as f32 * frequencies.0[i];
        Rotation {
            cos: std::array::from_fn(|i| angle(i).cos()),
            sin: std::array::from_fn(|i| angle(i).sin()),
        }
    }

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
        let kinds = [
            ("rope.main", RopeFrequencies::window(&spec)),
            ("rope.compress", RopeFrequencies::compressed(&spec)),
        ];
        for (name, frequencies) in kinds {
            assert_eq!(frequencies.0.as_slice(), units.f32(&format!("{name}.inv_freq")), "{name}");
            let (x, y) = (units.f32(&format!("{name}.x")), units.f32(&format!("{name}.y")));
            let (cos, sin) = (units.f32(&format!("{name}.cos")), units.f32(&format!("{name}.sin")));
            for (i, position) in units.i32("rope.positions").into_iter().enumerate() {
                let rotation = Rotation::at(&frequencies, position as usize);
                for pair in 0..ROPE_PAIRS {
                    assert!(
                        (rotation.cos[pair] - cos[i * ROPE_PAIRS + pair]).abs() <= 1e-6,
                        "{name} at {position}"
                    );
                    assert!(
                        (rotation.sin[pair] - sin[i * ROPE_PAIRS + pair]).abs() <= 1e-6,
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
