//! The codecs against `fixtures/units.safetensors`, byte for byte.

#![allow(clippy::unwrap_used)]

use overshot_model::quant::{self, PackedPage};
use safetensors::SafeTensors;
use std::path::PathBuf;

fn units() -> Vec<u8> {
    std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/units.safetensors")).unwrap()
}

fn bytes<'a>(file: &SafeTensors<'a>, name: &str) -> &'a [u8] {
    file.tensor(name).unwrap().data()
}

fn floats(file: &SafeTensors, name: &str) -> Vec<f32> {
    bytes(file, name).chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

fn rows<const N: usize>(file: &SafeTensors, name: &str) -> Vec<[f32; N]> {
    floats(file, name).chunks_exact(N).map(|row| row.try_into().unwrap()).collect()
}

#[test]
fn activation_blocks() {
    let data = units();
    let file = SafeTensors::deserialize(&data).unwrap();
    let (mut codes, mut scales) = ([0; 256], [0; 2]);
    for (row, values) in rows::<256>(&file, "fp8.x").iter().enumerate() {
        quant::encode_activations(values, &mut codes, &mut scales);
        assert_eq!(scales, bytes(&file, "fp8.scale_u8")[row * 2..][..2], "scales of row {row}");
        assert_eq!(codes, bytes(&file, "fp8.q_u8")[row * 256..][..256], "codes of row {row}");
    }
}

#[test]
fn packed_page() {
    let data = units();
    let file = SafeTensors::deserialize(&data).unwrap();
    let page = PackedPage { entries: 64 };
    let mut packed = vec![0; page.bytes()];
    let slots = bytes(&file, "kv_page.slots").chunks_exact(4);
    for (latent, slot) in rows::<512>(&file, "kv_page.x").iter().zip(slots) {
        let slot = i32::from_le_bytes(slot.try_into().unwrap()) as usize;
        let (data, scales) = packed.split_at_mut(page.scale_offset(0));
        let data = data[page.entry_offset(slot)..].first_chunk_mut().unwrap();
        let scales = scales[page.scale_offset(slot) - page.scale_offset(0)..].first_chunk_mut().unwrap();
        quant::encode_entry(latent, data, scales);

        let (mut decoded, mut rounded) = ([0.0; 512], *latent);
        quant::decode_entry(data, scales, &mut decoded);
        quant::round_entry(&mut rounded);
        assert_eq!(rounded, decoded);
    }
    assert!(packed == bytes(&file, "kv_page.bytes"));
}

#[test]
fn hadamard_transform() {
    let data = units();
    let file = SafeTensors::deserialize(&data).unwrap();
    for (mut key, expected) in
        rows::<128>(&file, "index.x").into_iter().zip(rows::<128>(&file, "index.hadamard"))
    {
        quant::hadamard(&mut key);
        for (index, (value, expected)) in key.iter().zip(expected).enumerate() {
            assert!(
                (value - expected).abs() <= 2e-6 * expected.abs().max(1.0),
                "{index}: {value} {expected}"
            );
        }
    }
}

#[test]
fn index_keys() {
    let data = units();
    let file = SafeTensors::deserialize(&data).unwrap();
    let dequantised = rows::<128>(&file, "index.fp4_dequant");
    for (row, key) in rows::<128>(&file, "index.hadamard").iter().enumerate() {
        let mut codes = [0; 128];
        let scale = quant::encode_index_key_fp8(key, &mut codes);
        assert_eq!(scale, floats(&file, "index.fp8_scale")[row]);
        assert_eq!(codes, bytes(&file, "index.fp8_u8")[row * 128..][..128]);

        let (mut packed, mut scales, mut decoded) = ([0; 64], [0; 4], [0.0; 128]);
        quant::encode_index_key_fp4(key, &mut packed, &mut scales);
        assert_eq!(packed, bytes(&file, "index.fp4_packed_u8")[row * 64..][..64]);
        assert_eq!(scales, bytes(&file, "index.fp4_scale_u8")[row * 4..][..4]);
        quant::decode_index_key_fp4(&packed, &scales, &mut decoded);
        assert_eq!(decoded, dequantised[row]);
    }
}
