//! Random weights in stored formats, fast enough to fill gigabytes in seconds. Eight bytes come from each draw.

use fastrand::Rng;
use overshot_model::quant::e4m3_encode;

/// Root mean square of [`e4m3_codes`], read as numbers. Quantisation brings the largest of 16,384 weights to between 224 and
/// 448, which is some 4 times this.
pub const E4M3_RMS: f32 = 80.0;

/// Bytes of E4M3 numbers, normally distributed as trained weights about are. So a subnormal is rare: 1 code of 7,000 here
/// (in a small trained model, 1 of 5,400), and of uniformly drawn codes 1 of 18.
pub fn e4m3_codes(mut random: Rng, elements: usize) -> Vec<u8> {
    const TABLE_BITS: u32 = 16;
    let table: Vec<u8> = (0..1 << TABLE_BITS).map(|_| e4m3_encode(normal(&mut random) * E4M3_RMS)).collect();
    let mut draws = std::iter::repeat_with(|| random.u64(..))
        .flat_map(|draw| (0..4).map(move |i| (draw >> (16 * i)) as u16));
    (0..elements).map(|_| table[usize::from(draws.next().unwrap_or_default())]).collect()
}

/// Sum of 12 uniform numbers: mean 0, variance 1.
fn normal(random: &mut Rng) -> f32 {
    (0..12).map(|_| random.f32()).sum::<f32>() - 6.0
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
    use overshot_model::quant::E4M3_VALUES;

    #[test]
    fn e4m3_codes_are_numbers_of_the_promised_size() {
        let codes = e4m3_codes(Rng::with_seed(1), 100_000);
        assert!(codes.iter().all(|code| code & 0x7F != 0x7F));
        let squares = codes.iter().map(|code| E4M3_VALUES[usize::from(*code)].powi(2)).sum::<f32>();
        let rms = (squares / codes.len() as f32).sqrt();
        assert!((rms / E4M3_RMS - 1.0).abs() < 0.02, "{rms}");
        let subnormal = codes.iter().filter(|code| *code & 0x78 == 0 && *code & 7 != 0).count();
        assert!((1..100).contains(&subnormal), "{subnormal}");
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
