//! The flags of `overshot bench` that ask for a model of some shape over random weights, where no checkpoint is at hand.

use crate::args::rank_count;
use crate::failure::bad_input;
use crate::model_source::ModelSource;
use crate::outputs::check_place;
use crate::usage::at_least_one;
use clap::Args;
use overshot_lab::Settings;
use overshot_lab::profile::analysis::Analysis;
use overshot_lab::profile::runs::profile_of_runs;
use overshot_lab::profile::{Experts, Forms};
use overshot_lab::sweep::RunRecord;
use overshot_model::{Config, Spec};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::str::FromStr;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Without a checkpoint")]
pub struct GeometryFlags {
    /// Measure a model of this shape over random weights, behind caches that are full from the start: flash, pro, or a
    /// config.json
    #[arg(long, value_name = "flash|pro|FILE.json", conflicts_with_all = ["url", "model"])]
    geometry: Option<Shape>,

    /// Only its first N layers
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one, requires = "geometry")]
    layers: Option<NonZeroUsize>,

    /// One of N ranks that would share it, without its peers: a part of all heads, groups, experts and tokens; --tp N has all of
    /// them
    #[arg(long, value_name = "1|2|4", default_value = "1", allow_negative_numbers = true, value_parser = rank_count, requires = "geometry", conflicts_with = "tp")]
    rank_of: usize,

    /// Tokens of a prompt that a step computes
    #[arg(long, value_name = "N", default_value = "512", allow_negative_numbers = true, value_parser = at_least_one, requires = "geometry")]
    chunk_tokens: NonZeroUsize,

    /// Save where the time of a step goes to this file, for overshot lab profile --from
    #[arg(long, value_name = "FILE.json", requires = "geometry")]
    save_profile: Option<PathBuf>,
}

/// What is measured instead of a checkpoint.
pub struct Geometry {
    pub source: ModelSource,
    rank_of: usize,
    pub chunk_tokens: usize,
    /// For times that grow as more of them are touched.
    experts: Option<Experts>,
}

impl Geometry {
    /// Ranks that the model is split by, where `ranks` of them are there.
    ///
    /// # Errors
    /// Several ranks that are to be measured without their peers.
    pub fn of_ranks(&self, ranks: usize) -> anyhow::Result<usize> {
        match (ranks, self.rank_of) {
            (1, of_ranks) => Ok(of_ranks),
            (_, 1) => Ok(ranks),
            (_, of_ranks) => Err(bad_input(format!(
                "--rank-of {of_ranks} measures one rank without its peers: name one GPU in --devices, or leave --rank-of out to \
                 measure all {ranks}"
            ))),
        }
    }
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
        if let Some(path) = &self.save_profile {
            check_place("--save-profile", path)?;
        }
        let number = |count: usize| u32::try_from(count).ok().and_then(NonZeroU32::new);
        let experts = number(spec.experts).zip(number(spec.experts_per_token));
        let experts = experts.map(|(all, used_by_a_request)| Experts { all, used_by_a_request });
        let source = ModelSource::Random { name, spec: Box::new(spec) };
        let (rank_of, chunk_tokens) = (self.rank_of, self.chunk_tokens.get());
        Ok(Some(Geometry { source, rank_of, chunk_tokens, experts }))
    }

    /// Where the time of decode steps goes, and how it grows with the batch; `None` where none were measured or families cannot
    /// be told apart.
    ///
    /// # Errors
    /// The profile cannot be saved.
    pub fn profile(
        &self,
        geometry: &Geometry,
        name: &str,
        settings: &Settings,
        runs: &[RunRecord],
        seed: u64,
    ) -> anyhow::Result<Option<Analysis>> {
        if runs.iter().all(|run| run.measurement.family_ms.is_empty()) {
            return match self.save_profile {
                None => Ok(None),
                Some(_) => Err(bad_input(
                    "--save-profile: no decode step was timed by family; that takes --backend cuda and --batch",
                )),
            };
        }
        let profile = profile_of_runs(name, settings.clone(), runs)?;
        if let Some(path) = &self.save_profile {
            profile.write(path)?;
        }
        let forms = Forms { experts: geometry.experts, stairs: Vec::new() };
        Ok(Some(Analysis::of(&profile, &forms, &[], &mut fastrand::Rng::with_seed(seed))?))
    }
}

fn spec_of(path: &Path) -> anyhow::Result<Spec> {
    const CONFIG_BYTES_MAX: u64 = 16 << 20;
    crate::input::check_model_file(path, CONFIG_BYTES_MAX)?;
    let text = std::fs::read_to_string(path)
        .map_err(|error| bad_input(format!("--geometry: cannot read {}: {error}", path.display())))?;
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
