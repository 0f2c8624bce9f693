//! Bytes and tokens to text, piece by piece. A character is sent when its last byte is there; bytes that are
//! no UTF-8 become U+FFFD exactly as `String::from_utf8_lossy` would have it for the whole, so the result does
//! not depend on how the bytes were cut.

use crate::Tokenizer;

/// An incremental `from_utf8_lossy`.
#[derive(Clone, Debug, Default)]
pub struct Utf8Stream {
    /// The begun character at the end, at most three bytes.
    held: Vec<u8>,
}

impl Utf8Stream {
    /// The text that `bytes` completed.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(bytes);
        let mut out = String::with_capacity(all.len());
        let mut rest = all.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    out.push_str(text);
                    return out;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    // The part up to `valid_up_to` is valid, so nothing is replaced here.
                    out.push_str(&String::from_utf8_lossy(valid));
                    match error.error_len() {
                        Some(wrong_bytes) => {
                            out.push(char::REPLACEMENT_CHARACTER);
                            rest = &after[wrong_bytes..];
                        }
                        None => {
                            self.held = after.to_vec();
                            return out;
                        }
                    }
                }
            }
        }
    }

    /// What is left at the end: nothing, or one U+FFFD for a character that was cut.
    pub fn finish(&mut self) -> &'static str {
        if std::mem::take(&mut self.held).is_empty() { "" } else { "\u{fffd}" }
    }
}

/// Tokens to plain text, added tokens included as they are spelled. For completion without a chat format;
/// the answer to a chat goes through `OutputParser`.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    utf8: Utf8Stream,
}

impl Detokenizer {
    pub fn new(tokenizer: &Tokenizer) -> Detokenizer {
        Detokenizer { tokenizer: tokenizer.clone(), utf8: Utf8Stream::default() }
    }

    /// The text that this token completed; often empty in the middle of a character.
    pub fn push(&mut self, token: u32) -> String {
        self.utf8.push(self.tokenizer.bytes_of(token))
    }

    pub fn finish(&mut self) -> &'static str {
        self.utf8.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_of_any_bytes_gives_what_the_whole_gives() {
        let seed = 11;
        let mut random = fastrand::Rng::with_seed(seed);
        let samples: [&[u8]; 7] =
            ["é".as_bytes(), "中".as_bytes(), "😀".as_bytes(), b"a", &[0xff], &[0xe4, 0xb8], &[0xf0, 0x9f]];
        for case in 0..3000 {
            let mut bytes: Vec<u8> = Vec::new();
            for _ in 0..random.usize(0..8) {
                bytes.extend_from_slice(samples[random.usize(0..samples.len())]);
                if random.u8(0..4) == 0 {
                    bytes.push(random.u8(..));
                }
            }
            let mut stream = Utf8Stream::default();
            let mut text = String::new();
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let (now, later) = rest.split_at(random.usize(1..=rest.len()));
                text.push_str(&stream.push(now));
                rest = later;
            }
            text.push_str(stream.finish());
            assert_eq!(text, String::from_utf8_lossy(&bytes), "seed {seed} case {case}: {bytes:02x?}");
        }
    }
}
