//! E2M1: three bits of magnitude and a sign, two numbers in a byte, the low nibble first.

/// The value of every code.
pub static E2M1_VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Both values of every byte: `[low nibble, high nibble]`.
pub static E2M1_PAIRS: [[f32; 2]; 256] = pairs();

const fn pairs() -> [[f32; 2]; 256] {
    let mut table = [[0.0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = [E2M1_VALUES[byte & 15], E2M1_VALUES[byte >> 4]];
        byte += 1;
    }
    table
}

/// The nearest code, ties to the even one; beyond 6 the largest. The sign stays even on zero.
#[inline]
pub fn e2m1_encode(value: f32) -> u8 {
    let magnitude = value.abs();
    // Counts the midpoints passed; at a midpoint below an even code the tie goes up.
    let code = u8::from(magnitude > 0.25)
        + u8::from(magnitude >= 0.75)
        + u8::from(magnitude > 1.25)
        + u8::from(magnitude >= 1.75)
        + u8::from(magnitude > 2.5)
        + u8::from(magnitude >= 3.5)
        + u8::from(magnitude > 5.0);
    code | ((value.to_bits() >> 28) & 8) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_a_round_trip() {
        for code in 0..16u8 {
            assert_eq!(e2m1_encode(E2M1_VALUES[usize::from(code)]), code);
        }
        assert_eq!((e2m1_encode(100.0), e2m1_encode(f32::NEG_INFINITY)), (7, 15));
        assert_eq!(E2M1_PAIRS[0xd2], [1.0, -3.0]);
    }

    #[test]
    fn midpoints_go_to_the_even_code() {
        for code in 0..7u8 {
            let middle = (E2M1_VALUES[usize::from(code)] + E2M1_VALUES[usize::from(code + 1)]) / 2.0;
            assert_eq!(e2m1_encode(middle), code + (code & 1));
            assert_eq!(e2m1_encode(-middle), (code + (code & 1)) | 8);
            assert_eq!((e2m1_encode(middle.next_down()), e2m1_encode(middle.next_up())), (code, code + 1));
        }
    }
}
