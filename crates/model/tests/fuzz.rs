//! Mutated checkpoints: whatever the bytes, the answer is a model or one sentence, in bounded memory.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Parts, TINY_BF16, TINY_FP8FP4, one_sentence};
use fastrand::Rng;
use overshot_model::{Bytes, Model, ModelError};
use serde_json::{Value, json};
use std::fs;

/// Far above the 3 MB of a fixture and its copies, far below what a believed hostile size would take.
const RESIDENT_BYTES_MAX: u64 = 512 << 20;

fn cases(share: f64) -> usize {
    (overshot_testing::cases(2_000) as f64 * share) as usize
}

/// Runs one case; a refusal must be one sentence. Says whether the model was accepted.
fn check(load: impl FnOnce() -> Result<Model, ModelError>) -> bool {
    match load() {
        Ok(model) => {
            // What was accepted can be read in full.
            for matrix in model.weights.matrices() {
                let mut row = vec![0.0; matrix.cols];
                matrix.decode_row(0, &mut row);
                matrix.decode_row(matrix.rows - 1, &mut row);
            }
            true
        }
        Err(error) => {
            one_sentence(Some(error));
            false
        }
    }
}

/// The largest resident size that this process ever had.
fn assert_memory_bounded() {
    let Ok(status) = fs::read_to_string("/proc/self/status") else { return };
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak_kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak_kib << 10 < RESIDENT_BYTES_MAX, "{peak_kib} KiB resident at the peak");
}

fn hostile_value(rng: &mut Rng) -> Value {
    match rng.u8(0..14) {
        0 => Value::Null,
        1 => json!(0),
        2 => json!(-1),
        3 => json!(u64::MAX),
        4 => json!(1u64 << rng.u32(0..64)),
        5 => json!(rng.u64(0..1_000)),
        6 => json!(1e308),
        7 => json!(-0.0),
        8 => json!(f64::from(rng.f32())),
        9 => json!("deepseek_v3\u{0}\n\u{202e}"),
        10 => json!([]),
        11 => json!({"a": [1, {"b": null}]}),
        12 => json!(rng.bool()),
        _ => json!(vec![rng.u64(0..200); rng.usize(0..80)]),
    }
}

/// Replaces, removes or adds values at random places of a JSON tree.
fn mutate_json(rng: &mut Rng, value: &mut Value) {
    match value {
        Value::Object(map) if !map.is_empty() && rng.u8(0..8) > 0 => {
            let name = map.keys().nth(rng.usize(0..map.len())).unwrap().clone();
            match rng.u8(0..8) {
                0 => drop(map.remove(&name)),
                1 => drop(map.insert(format!("{name}\u{7}x"), hostile_value(rng))),
                _ => mutate_json(rng, map.get_mut(&name).unwrap()),
            }
        }
        Value::Array(items) if !items.is_empty() && rng.u8(0..8) > 0 => {
            let index = rng.usize(0..items.len());
            match rng.u8(0..8) {
                0 => drop(items.remove(index)),
                1 => items.push(hostile_value(rng)),
                _ => mutate_json(rng, &mut items[index]),
            }
        }
        other => *other = hostile_value(rng),
    }
}

fn mutate_bytes(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.usize(1..6) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.usize(0..bytes.len());
        match rng.u8(0..5) {
            0 => bytes[at] ^= 1 << rng.u8(0..8),
            1 => bytes[at] = b"{}[]\",:0919eE-.\\\xff\x00"[rng.usize(0..18)],
            2 => drop(bytes.remove(at)),
            3 => bytes.insert(at, rng.u8(..)),
            _ => bytes.truncate(bytes.len().saturating_sub(rng.usize(0..64))),
        }
    }
}

/// A safetensors file with its header text replaced.
fn with_header(file: &[u8], header: &[u8]) -> Vec<u8> {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    [&(header.len() as u64).to_le_bytes(), header, &file[8 + length..]].concat()
}

fn header_of(file: &[u8]) -> &[u8] {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    &file[8..8 + length]
}

#[test]
fn mutated_configurations() {
    let mut rng = overshot_testing::rng();
    let parts = [Parts::read(TINY_BF16), Parts::read(TINY_FP8FP4)];
    let files = parts.each_ref().map(|parts| Bytes::from_vec(parts.file()));
    let mut accepted = 0;
    for case in 0..cases(0.4) {
        let which = case % 2;
        let mut config = parts[which].config.clone();
        for _ in 0..rng.usize(1..3) {
            mutate_json(&mut rng, &mut config);
        }
        let mut text = config.to_string().into_bytes();
        if rng.u8(0..3) == 0 {
            mutate_bytes(&mut rng, &mut text);
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        accepted += usize::from(check(|| Model::from_parts(&text, files[which].clone())));
    }
    println!("{accepted} accepted");
    assert_memory_bounded();
}

#[test]
fn mutated_headers() {
    let mut rng = overshot_testing::rng();
    let parts = Parts::read(TINY_FP8FP4);
    let (config, file) = (parts.config.to_string(), parts.file());
    let parsed: Value = serde_json::from_slice(header_of(&file)).unwrap();
    let mut accepted = 0;
    for _ in 0..cases(0.25) {
        let mutated = if rng.bool() {
            let mut header = parsed.clone();
            let tensors = header.as_object_mut().unwrap();
            let name = tensors.keys().nth(rng.usize(0..tensors.len())).unwrap().clone();
            match rng.u8(0..6) {
                0 => drop(tensors.remove(&name)),
                1 => {
                    tensors[&name]["dtype"] =
                        json!(["F4", "U8", "I64", "F8_E8M0", "C64", "?"][rng.usize(0..6)])
                }
                2 => tensors[&name]["shape"] = json!(vec![rng.u64(0..5) << rng.u32(0..61); rng.usize(0..4)]),
                3 => tensors[&name]["data_offsets"] = json!([rng.u64(..) >> rng.u32(0..64), rng.u64(..)]),
                4 => {
                    let moved = tensors.remove(&name).unwrap();
                    tensors.insert(format!("{name}.x"), moved);
                }
                _ => mutate_json(&mut rng, &mut tensors[&name]),
            }
            with_header(&file, header.to_string().as_bytes())
        } else {
            let mut header = header_of(&file).to_vec();
            mutate_bytes(&mut rng, &mut header);
            with_header(&file, &header)
        };
        accepted += usize::from(check(|| Model::from_parts(&config, Bytes::from_vec(mutated))));
    }
    println!("{accepted} accepted");
    assert_memory_bounded();
}

#[test]
fn mutated_bytes() {
    let mut rng = overshot_testing::rng();
    let parts = Parts::read(TINY_FP8FP4);
    let (config, file) = (parts.config.to_string(), parts.file());
    let mut accepted = 0;
    for _ in 0..cases(0.25) {
        let mut mutated = file.clone();
        match rng.u8(0..4) {
            0 => mutated[..8].copy_from_slice(&(rng.u64(..) >> rng.u32(0..64)).to_le_bytes()),
            1 => mutated.truncate(rng.usize(0..file.len())),
            2 => mutated.extend(vec![0; rng.usize(1..4_096)]),
            _ => {
                // Values behind the header: often enough flips that vectors, scales and tables are hit too.
                let values = 8 + header_of(&file).len()..mutated.len();
                for _ in 0..1 << rng.u32(0..12) {
                    mutated[rng.usize(values.clone())] = rng.u8(..);
                }
            }
        }
        accepted += usize::from(check(|| Model::from_parts(&config, Bytes::from_vec(mutated))));
    }
    println!("{accepted} accepted");
    assert_memory_bounded();
}

#[test]
fn mutated_folders() {
    let mut rng = overshot_testing::rng();
    let parts = Parts::read(TINY_FP8FP4);
    let folder = tempfile::tempdir().unwrap();
    let shards = parts.write_shards(folder.path(), 3);
    let names = [&shards[..], &["model.safetensors.index.json".into(), "config.json".into()]].concat();
    let mut accepted = 0;
    for _ in 0..cases(0.1) {
        let path = folder.path().join(&names[rng.usize(0..names.len())]);
        let original = fs::read(&path).unwrap();
        let mut mutated = original.clone();
        match rng.u8(0..3) {
            0 => mutated.truncate(rng.usize(0..original.len())),
            _ => mutate_bytes(&mut rng, &mut mutated),
        }
        fs::write(&path, mutated).unwrap();
        accepted += usize::from(check(|| Model::open(folder.path())));
        fs::write(&path, original).unwrap();
    }
    println!("{accepted} accepted");
    assert_memory_bounded();
}
