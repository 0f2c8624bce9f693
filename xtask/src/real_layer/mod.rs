//! A checkpoint with the geometry of DeepSeek-V4-Flash, a few layers deep and with random weights: the size of
//! the real thing for measuring speed, with nothing to download. What it says is noise.
//!
//! A CSA layer is 3.6 GB: 3.4 GB of FP4 experts, 0.1 GB of FP8 attention. Tensors are made one at a time while
//! the file is written, so memory stays at the largest of them.

mod geometry;
mod random;
mod tensor;

use anyhow::Context;
use geometry::{Geometry, Kind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use tensor::Tensor;

#[derive(clap::Args)]
pub struct Arguments {
    /// Folder to write; made when absent.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Layers, all of one kind, each with 256 experts.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    layers: u16,
    /// What the layers' queries see beside the window: nothing, ratio-4 or ratio-128 entries.
    #[arg(long, default_value = "csa")]
    kind: Kind,
    /// Another seed gives other weights; the same seed the same bytes.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let geometry = Geometry::flash(usize::from(arguments.layers), arguments.kind);
    let bytes = write(&geometry, arguments.seed, &arguments.out)?;
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{}: {} {} layer(s), {:.2} GB in {seconds:.1} s",
        arguments.out.display(),
        arguments.layers,
        arguments.kind,
        bytes as f64 / 1e9
    );
    Ok(ExitCode::SUCCESS)
}

/// Writes `config.json` and `model.safetensors`; returns the bytes of all tensors.
fn write(geometry: &Geometry, seed: u64, folder: &Path) -> anyhow::Result<usize> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let config = serde_json::to_string_pretty(&geometry.config())?;
    let config_path = folder.join("config.json");
    std::fs::write(&config_path, config + "\n")
        .with_context(|| format!("cannot write {}", config_path.display()))?;

    let tensors = geometry.tensors(seed);
    let bytes = tensors.iter().map(|(_, tensor)| tensor.bytes()).sum();
    let weights_path = folder.join("model.safetensors");
    safetensors::serialize_to_file(tensors, None, &weights_path)
        .with_context(|| format!("cannot write {}", weights_path.display()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A geometry of a few hundred kilobytes with every tensor that the real one has.
    fn small(kind: Kind) -> Geometry {
        Geometry {
            vocab: 64,
            hidden: 128,
            heads: 4,
            q_lora: 64,
            o_groups: 2,
            o_lora: 32,
            index_heads: 4,
            index_topk: 8,
            experts: 4,
            experts_per_token: 2,
            expert_width: 64,
            ..Geometry::flash(2, kind)
        }
    }

    #[test]
    fn the_same_seed_writes_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, seed: u64| {
            let folder = folder.path().join(name);
            super::write(&small(Kind::Csa), seed, &folder).unwrap();
            std::fs::read(folder.join("model.safetensors")).unwrap()
        };
        let first = write("a", 7);
        assert_eq!(first, write("b", 7));
        assert_ne!(first, write("c", 8));
    }

    #[test]
    fn every_kind_opens_as_a_model() {
        for kind in [Kind::Window, Kind::Csa, Kind::Hca] {
            let folder = tempfile::tempdir().unwrap();
            let geometry = small(kind);
            super::write(&geometry, 1, folder.path()).unwrap();
            let model = overshot_model::Model::open(folder.path()).unwrap();
            assert_eq!(model.spec.layers.len(), geometry.layers);
            assert!(model.spec.layers.iter().all(|layer| layer.kind.ratio() == kind.ratio()));
            assert_eq!(model.weights.layers[1].ffn.experts.len(), geometry.experts);
        }
    }
}
