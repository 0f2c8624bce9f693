//! A backend that only has its speed measured: it may be one rank without its peers, and its cache is full from the start, so that
//! steps behind long contexts can be timed which nobody has computed.

use crate::{IndexKeyFormat, KvFormat, Numerics};
use overshot_kv::{Pool, TOKENS_PER_PAGE};
use overshot_model::memory::CacheFormats;
use overshot_model::quant::{
    ENTRY_DATA_BYTES, ENTRY_SCALE_BYTES, INDEX_KEY_FP4_BYTES, PackedPage, bf16_encode, encode_entry,
    encode_index_key_fp4, encode_index_key_fp8,
};
use overshot_model::{HEAD_DIM, INDEX_DIM};

/// What is measured. Its answers mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rehearsal {
    /// All of so many ranks are there, or the first of them alone: then sums are its own part, and it draws among its own tokens.
    pub of_ranks: usize,
    /// Of what the cache holds.
    pub seed: u64,
}

/// Bytes after which the contents of a pool repeat: many pages, so that requests do not see the same.
const TILE_BYTES: usize = 8 << 20;

impl Rehearsal {
    /// What fills a pool from its start, again and again: pages of this size with valid entries in the formats of `numerics`,
    /// as large as normed ones are.
    pub fn contents(self, pool: Pool, numerics: Numerics, page_bytes: usize) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(self.seed ^ pool.index() as u64);
        let slots = TOKENS_PER_PAGE / pool.tokens_per_slot().unwrap_or(1);
        let mut tile = Vec::with_capacity(TILE_BYTES + page_bytes);
        while tile.len() < TILE_BYTES {
            let start = tile.len();
            match (pool, numerics.kv, numerics.index_keys) {
                (Pool::CompressorRows, ..) => floats(TILE_BYTES / 4, &mut tile, &mut random),
                (Pool::IndexKeys, _, format) => {
                    (0..slots).for_each(|_| index_key(format, &mut tile, &mut random));
                }
                (_, KvFormat::F32, _) => floats(slots * HEAD_DIM, &mut tile, &mut random),
                (_, KvFormat::Fp8, _) => {
                    tile.resize(start + page_bytes, 0);
                    packed_page(slots, &mut tile[start..], &mut random);
                }
            }
        }
        tile
    }
}

/// Of mean square 1.
fn number(random: &mut fastrand::Rng) -> f32 {
    (2.0 * random.f32() - 1.0) * 3.0_f32.sqrt()
}

fn numbers<const N: usize>(random: &mut fastrand::Rng) -> [f32; N] {
    std::array::from_fn(|_| number(random))
}

fn floats(count: usize, out: &mut Vec<u8>, random: &mut fastrand::Rng) {
    (0..count).for_each(|_| out.extend(number(random).to_le_bytes()));
}

fn packed_page(slots: usize, page: &mut [u8], random: &mut fastrand::Rng) {
    let layout = PackedPage { entries: slots };
    for slot in 0..slots {
        let (mut data, mut scales) = ([0; ENTRY_DATA_BYTES], [0; ENTRY_SCALE_BYTES]);
        encode_entry(&numbers::<HEAD_DIM>(random), &mut data, &mut scales);
        page[layout.entry_offset(slot)..][..ENTRY_DATA_BYTES].copy_from_slice(&data);
        page[layout.scale_offset(slot)..][..ENTRY_SCALE_BYTES].copy_from_slice(&scales);
    }
}

fn index_key(format: IndexKeyFormat, out: &mut Vec<u8>, random: &mut fastrand::Rng) {
    let key = numbers::<INDEX_DIM>(random);
    match format {
        IndexKeyFormat::F32 => out.extend(key.iter().flat_map(|x| x.to_le_bytes())),
        IndexKeyFormat::Bf16 => out.extend(key.iter().flat_map(|x| bf16_encode(*x).to_le_bytes())),
        IndexKeyFormat::Fp8 => {
            let mut codes = [0; INDEX_DIM];
            let scale = encode_index_key_fp8(&key, &mut codes);
            out.extend(codes);
            out.extend(scale.to_le_bytes());
        }
        IndexKeyFormat::Fp4 => {
            let mut codes = [0; INDEX_KEY_FP4_BYTES];
            let mut scales = [0; CacheFormats::INDEX_KEY_FP4 - INDEX_KEY_FP4_BYTES];
            encode_index_key_fp4(&key, &mut codes, &mut scales);
            out.extend(codes);
            out.extend(scales);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overshot_model::quant::{decode_entry, decode_index_key_fp8};

    const REHEARSAL: Rehearsal = Rehearsal { of_ranks: 1, seed: 3 };

    fn is_sane(numbers: &[f32]) -> bool {
        let mean_square = numbers.iter().map(|x| x * x).sum::<f32>() / numbers.len() as f32;
        numbers.iter().all(|x| x.is_finite()) && (0.7..1.4).contains(&mean_square)
    }

    #[test]
    fn packed_pages_are_full_of_valid_entries_and_differ() {
        let layout = PackedPage { entries: 64 };
        let tile = REHEARSAL.contents(Pool::Csa, Numerics::default(), layout.bytes());
        assert!(tile.len().is_multiple_of(layout.bytes()) && tile.len() >= TILE_BYTES);
        for page in tile.chunks(layout.bytes()).step_by(50) {
            for slot in [0, 7, 63] {
                let data = page[layout.entry_offset(slot)..].first_chunk().unwrap();
                let scales = page[layout.scale_offset(slot)..].first_chunk().unwrap();
                let mut latent = [0.0; HEAD_DIM];
                decode_entry(data, scales, &mut latent);
                assert!(is_sane(&latent), "{latent:?}");
            }
        }
        assert_ne!(tile[..layout.bytes()], tile[layout.bytes()..2 * layout.bytes()]);
    }

    #[test]
    fn keys_of_every_format_have_their_size() {
        for (index_keys, bytes) in [
            (IndexKeyFormat::F32, CacheFormats::INDEX_KEY_F32),
            (IndexKeyFormat::Bf16, CacheFormats::INDEX_KEY_BF16),
            (IndexKeyFormat::Fp8, CacheFormats::INDEX_KEY_FP8),
            (IndexKeyFormat::Fp4, CacheFormats::INDEX_KEY_FP4),
        ] {
            let numerics = Numerics { index_keys, ..Numerics::default() };
            let tile = REHEARSAL.contents(Pool::IndexKeys, numerics, 64 * bytes);
            assert!(tile.len().is_multiple_of(64 * bytes), "{index_keys}");
            if index_keys == IndexKeyFormat::Fp8 {
                let (codes, scale) = tile[5 * bytes..].split_at(INDEX_DIM);
                let mut key = [0.0; INDEX_DIM];
                let scale = f32::from_le_bytes(*scale.first_chunk().unwrap());
                decode_index_key_fp8(codes.first_chunk().unwrap(), scale, &mut key);
                assert!(is_sane(&key), "{key:?}");
            }
        }
    }
}
