//! Scalar codecs of every rounded format, exact to the bit: the meaning of the bytes, and the oracle of faster code.
//!
//! All functions work on slices or arrays that the caller owns and allocate nothing. Rounding is to nearest, ties to
//! even. Scales are powers of two held as exponent bytes (UE8M0). SIMD versions live in the backends.

mod cache;
mod fp4;
mod fp8;
mod index_key;
mod rows;
mod scale;

pub use cache::{
    ENTRY_BYTES, ENTRY_DATA_BYTES, ENTRY_SCALE_BYTES, PackedPage, decode_entry, encode_entry, round_entry,
};
pub use fp4::{E2M1_PAIRS, E2M1_VALUES, e2m1_encode};
pub use fp8::{ACTIVATION_BLOCK, E4M3_MAX, E4M3_VALUES, e4m3_encode, encode_activations, round_activations};
pub use index_key::{
    INDEX_KEY_FP4_BYTES, INDEX_KEY_FP4_SCALES, decode_index_key_fp4, decode_index_key_fp8,
    encode_index_key_fp4, encode_index_key_fp8, hadamard, round_index_key_fp4, round_index_key_fp8,
};
pub use scale::{bf16_decode, bf16_encode, e2m1_scale, e4m3_scale, ue8m0_decode, ue8m0_reciprocal};
