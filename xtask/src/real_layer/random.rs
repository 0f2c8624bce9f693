//! Random weights in stored formats, fast enough to fill gigabytes in seconds. Eight bytes come from each draw.

use fastrand::Rng;

/// Bytes of E4M3 numbers, every finite code equally likely.
pub fn e4m3_codes(mut random: Rng, elements: usize) -> Vec<u8> {
    let mut codes = vec![0; elements];
    random.fill(&mut codes);
    // 0x7F and 0xFF are the two NaN codes; their neighbours are +-448.
    codes.iter_mut().filter(|code| **code & 0x7F == 0x7F).for_each(|code| *code ^= 1);
    codes
}

/// Bytes of two E2M1 numbers each; every code is a number.
pub fn e2m1_codes(mut random: Rng, elements: usize) -> Vec<u8> {
    let mut codes = vec![0; elements];
    random.fill(&mut codes);
    codes
}

/// UE8M0 bytes of scales around `scale`, half of them one power of two below the other half: the blocks of a
/// real checkpoint differ too, and a reader that mixes them up must not get away with it.
pub fn scales(mut random: Rng, elements: usize, scale: f32) -> Vec<u8> {
    // Halves at s and s/2 have a mean square of 5/8 s^2.
    let upper = (scale.log2() + (8.0f32 / 5.0).sqrt().log2()).round() as i32 + 127;
    let upper = upper.clamp(1, 254) as u8;
    (0..elements).map(|_| upper - u8::from(random.bool())).collect()
}

pub fn f32_uniform(random: Rng, elements: usize, rms: f32) -> Vec<u8> {
    uniform(random, elements, rms).flat_map(f32::to_le_bytes).collect()
}

pub fn bf16_uniform(random: Rng, elements: usize, rms: f32) -> Vec<u8> {
    uniform(random, elements, rms).flat_map(|value| bf16(value).to_le_bytes()).collect()
}

/// The upper half of the float: rounding down is good enough for noise.
pub fn bf16(value: f32) -> u16 {
    (value.to_bits() >> 16) as u16
}

/// Root mean square of [`e4m3_codes`], read as numbers.
pub fn e4m3_rms() -> f32 {
    let square = |code: u8| {
        let (exponent, mantissa) = (i32::from(code >> 3), f32::from(code & 7) / 8.0);
        let value =
            if exponent == 0 { mantissa * 2f32.powi(-6) } else { (1.0 + mantissa) * 2f32.powi(exponent - 7) };
        value * value
    };
    ((0..=0x7E).map(square).sum::<f32>() / 127.0).sqrt()
}

/// Root mean square of [`e2m1_codes`], read as numbers.
pub fn e2m1_rms() -> f32 {
    let squares = [0.0f32, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0].map(|value| value * value);
    (squares.iter().sum::<f32>() / squares.len() as f32).sqrt()
}

fn uniform(mut random: Rng, elements: usize, rms: f32) -> impl Iterator<Item = f32> {
    // A uniform number in -1 .. 1 has the root mean square 1 / sqrt(3).
    let width = rms * 3f32.sqrt();
    (0..elements).map(move |_| (random.f32() * 2.0 - 1.0) * width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_code_is_a_nan() {
        let codes = e4m3_codes(Rng::with_seed(1), 100_000);
        assert!(codes.iter().all(|code| code & 0x7F != 0x7F));
        assert!((0..=255u8).filter(|code| code & 0x7F != 0x7F).all(|code| codes.contains(&code)));
    }

    #[test]
    fn scales_bring_codes_to_the_wanted_size() {
        for wanted in [0.01f32, 0.0156, 0.03, 1.0] {
            let scales = scales(Rng::with_seed(2), 10_000, wanted / e2m1_rms());
            let squares = scales.iter().map(|&byte| 2f32.powi(2 * (i32::from(byte) - 127))).sum::<f32>();
            let rms = (squares / scales.len() as f32).sqrt() * e2m1_rms();
            // A power of two comes no closer than half a step.
            assert!(rms / wanted < 1.45 && wanted / rms < 1.45, "wanted {wanted}, got {rms}");
        }
    }

    #[test]
    fn uniform_numbers_have_the_wanted_size() {
        let bytes = f32_uniform(Rng::with_seed(3), 50_000, 0.5);
        let squares: f32 = bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b).powi(2)).sum();
        assert!(((squares / 50_000.0).sqrt() - 0.5).abs() < 0.01);
        assert_eq!(bf16(1.0), 0x3F80);
    }
}
