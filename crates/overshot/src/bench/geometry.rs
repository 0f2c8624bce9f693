//! The flags of `overshot bench` that ask for a model of some shape over random weights, where no checkpoint is at hand.

use crate::args::rank_count;
use crate::failure::bad_input;
use crate::model_source::ModelSource;
use crate::usage::at_least_one;
use anyhow::Context;
use clap::Args;
use overshot_model::{Config, Spec};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Without a checkpoint")]
pub struct GeometryFlags {
    /// Measure a model of this shape over random weights, behind caches that are full from the start: flash, pro, or a
    /// config.json
    #[arg(long, value_name = "flash|pro|FILE.json", conflicts_with_all = ["url", "model", "tp"])]
    geometry: Option<Shape>,

    /// Only its first N layers
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one, requires = "geometry")]
    layers: Option<NonZeroUsize>,

    /// One of N ranks that would share it, without its peers: a part of all heads, groups, experts and tokens
    #[arg(long, value_name = "1|2|4", default_value = "1", allow_negative_numbers = true, value_parser = rank_count, requires = "geometry")]
    rank_of: usize,

    /// Tokens of a prompt that a step computes
    #[arg(long, value_name = "N", default_value = "512", allow_negative_numbers = true, value_parser = at_least_one, requires = "geometry")]
    chunk_tokens: NonZeroUsize,
}

/// What is measured instead of a checkpoint.
pub struct Geometry {
    pub source: ModelSource,
    pub of_ranks: usize,
    pub chunk_tokens: usize,
}

#[derive(Clone, Debug)]
enum Shape {
    Flash,
    Pro,
    Config(PathBuf),
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "flash" => Ok(Shape::Flash),
            "pro" => Ok(Shape::Pro),
            file if file.ends_with(".json") => Ok(Shape::Config(file.into())),
            _ => Err("use flash, pro, or the path of a config.json".into()),
        }
    }
}

impl GeometryFlags {
    /// `None` where a checkpoint is measured.
    ///
    /// # Errors
    /// A configuration that cannot be read, or more layers than it has.
    pub fn geometry(&self) -> anyhow::Result<Option<Geometry>> {
        let Some(shape) = &self.geometry else { return Ok(None) };
        let (mut name, mut spec) = match shape {
            Shape::Flash => ("flash".to_owned(), Spec::flash()),
            Shape::Pro => ("pro".to_owned(), Spec::pro()),
            Shape::Config(path) => (path.display().to_string(), spec_of(path)?),
        };
        let all = spec.layers.len();
        let layers = self.layers.map_or(all, NonZeroUsize::get);
        if layers > all {
            return Err(bad_input(format!("--layers {layers}: {name} has {all}")));
        }
        spec.layers.truncate(layers);
        name += " over random weights";
        if layers < all {
            name += &format!(", {layers} of {all} layers");
        }
        if self.rank_of > 1 {
            name += &format!(", one of {} ranks", self.rank_of);
        }
        let source = ModelSource::Random { name, spec: Box::new(spec) };
        Ok(Some(Geometry { source, of_ranks: self.rank_of, chunk_tokens: self.chunk_tokens.get() }))
    }
}

fn spec_of(path: &PathBuf) -> anyhow::Result<Spec> {
    const CONFIG_BYTES_MAX: u64 = 16 << 20;
    crate::input::check_model_file(path, CONFIG_BYTES_MAX)?;
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    let spec = Config::parse(&text, &path.display().to_string())?.spec;
    // Experts are made in FP4, which has scales for 32 columns.
    match [spec.hidden_size, spec.expert_width].into_iter().find(|width| !width.is_multiple_of(32)) {
        None => Ok(spec),
        Some(width) => Err(bad_input(format!(
            "--geometry {}: experts that read {width} numbers cannot be FP4: use a multiple of 32",
            path.display()
        ))),
    }
}
