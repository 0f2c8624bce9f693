//! The command line as a whole, and the flags that several commands share. A command's own flags stand in its
//! file. Nothing is looked up here: what a flag means for a model is checked where the model is known.

use crate::failure::bad_input;
use crate::model_source::ModelSource;
use crate::sampling::SamplingFlags;
use crate::usage::{at_least_one, from_1_to_1024};
use crate::{bench, chat, doctor, inspect, lab, run, score, selftest, serve};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand};
use overshot_backend::{Activations, IndexKeyFormat, KvFormat, Numerics};
use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

/// An inference engine for DeepSeek-V4.
///
/// Loads a checkpoint exactly as published and generates text from it. Without --model, a small trained model of
/// the same architecture answers; it is built in.
#[derive(Parser)]
#[command(name = "overshot", version, after_long_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  overshot run \"What is the capital of France?\"
  overshot chat --model ~/models/DeepSeek-V4-Flash
  overshot inspect ~/models/DeepSeek-V4-Flash

Exit codes: 0 well, 2 the input must change (one sentence says how), 3 no GPU for a command that needs one, 1 any other
failure.";

#[derive(Subcommand)]
pub enum Command {
    /// Answer one prompt.
    Run(run::Arguments),
    /// Talk with the model in the terminal.
    Chat(chat::Arguments),
    /// Serve the OpenAI API over HTTP.
    Serve(serve::Arguments),
    /// Compute the logits of every position of a list of token ids, and its perplexity.
    Score(score::Arguments),
    /// Show what a checkpoint holds, what its cache costs and which cards it fits on.
    Inspect(inspect::Arguments),
    /// Measure decode and prefill speed, of this engine or of any OpenAI-compatible server.
    Bench(bench::Arguments),
    /// Find out what limits a GPU kernel, and what a change could bring.
    Lab(lab::Arguments),
    /// Check this machine's GPU and our kernels on it, and time them.
    Selftest(selftest::Arguments),
    /// Show what this machine has and which code paths will run.
    Doctor(doctor::Arguments),
    #[cfg(feature = "manual")]
    Manual(crate::manual::Arguments),
}

/// Which model to run and how to compute.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model and computing")]
pub struct ComputeFlags {
    /// A checkpoint: its folder, a Hugging Face cache folder, or a .safetensors file beside its config.json
    /// [default: the built-in model]
    #[arg(long, value_name = "PATH")]
    pub model: Option<PathBuf>,

    #[command(flatten)]
    pub cache: CacheFlags,

    /// Rounding of activations before FP8 and FP4 matrices: none, or e4m3 as in the publisher's own script
    #[arg(long, value_name = "none|e4m3", default_value_t = Numerics::default().act)]
    pub act: Activations,

    /// Worker threads, 1 to 1024 [default: one per core]; results do not depend on it
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = from_1_to_1024)]
    pub threads: Option<u16>,

    /// Ranks that share the model between them, with their threads, or a GPU each: 1, 2 or 4 [default: 1, or as many as --devices]
    #[arg(long, value_name = "1|2|4", allow_negative_numbers = true, value_parser = rank_count)]
    pub tp: Option<usize>,

    /// GPUs to compute on, by their numbers, each once [default: the first ones, one a rank]
    #[arg(long, value_name = "N,N,..", allow_negative_numbers = true)]
    pub devices: Option<DeviceList>,

    /// On GPUs: let no bit of an answer depend on what is computed beside it, as on the CPU; the kernels for that are slower ones
    #[arg(long)]
    pub batch_invariant: bool,

    /// What computes: cpu, cuda, auto, which is cuda where --devices names GPUs or those of this machine are of a kind that was
    /// checked, and else cpu, or scripted:FILE, which plays the answers in FILE (JSON lines) and runs no model
    #[arg(long, value_name = "cpu|cuda|auto|scripted:FILE", default_value = "auto")]
    pub backend: BackendChoice,
}

impl ComputeFlags {
    pub fn numerics(&self) -> Numerics {
        Numerics { kv: self.cache.kv, index_keys: self.cache.index_keys, act: self.act }
    }

    /// Where the model comes from. Flags that contradict each other are refused here, before any file is opened.
    pub fn source(&self) -> anyhow::Result<ModelSource> {
        self.ranks()?;
        ModelSource::from_flag(self.model.as_deref())
    }

    /// Between which the model is shared.
    ///
    /// # Errors
    /// `--tp` and `--devices` that disagree, devices for what needs none.
    pub fn ranks(&self) -> anyhow::Result<usize> {
        let Some(devices) = &self.devices else { return Ok(self.tp.unwrap_or(1)) };
        let named = devices.0.len();
        if !matches!(self.backend, BackendChoice::Cuda | BackendChoice::Auto) {
            return Err(bad_input(format!(
                "--devices {devices} names GPUs: leave it out, or use --backend cuda"
            )));
        }
        match self.tp {
            Some(tp) if tp != named => Err(bad_input(format!(
                "--tp {tp} with --devices {devices}: every rank has a GPU of its own, so name {tp}, or leave --tp out"
            ))),
            _ => Ok(named),
        }
    }
}

pub fn rank_count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| [1, 2, 4].contains(count));
    count.ok_or_else(|| "use 1, 2 or 4".into())
}

/// What an answer may take and how it is made.
#[derive(Args, Clone, Debug, Default)]
pub struct AnswerFlags {
    /// End the answer after N tokens [default: when the model ends it, or the context is full]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one)]
    pub max_tokens: Option<NonZeroUsize>,

    /// Tokens that prompt and answer may have together [default: the model's context, at most 65,536]
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true, value_parser = at_least_one)]
    pub context: Option<NonZeroUsize>,

    /// End the answer before TEXT; may be repeated. Thinking and tool calls are not searched
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub stop: Vec<String>,

    #[command(flatten)]
    pub sampling: SamplingFlags,

    #[command(flatten)]
    pub compute: ComputeFlags,
}

impl Default for ComputeFlags {
    fn default() -> Self {
        let Numerics { kv, index_keys, act } = Numerics::default();
        let cache = CacheFlags { kv, index_keys };
        ComputeFlags {
            model: None,
            cache,
            act,
            threads: None,
            tp: None,
            devices: None,
            batch_invariant: false,
            backend: BackendChoice::Auto,
        }
    }
}

/// How the cache stores what it keeps.
#[derive(Args, Clone, Copy, Debug)]
pub struct CacheFlags {
    /// Format of cached latents: f32, or fp8 (584 bytes each), which the model was trained with
    #[arg(long, value_name = "f32|fp8", default_value_t = Numerics::default().kv)]
    pub kv: KvFormat,

    /// Format of the indexer's keys and queries; fp8 and fp4 transform and round both
    #[arg(long, value_name = "f32|bf16|fp8|fp4", default_value_t = Numerics::default().index_keys)]
    pub index_keys: IndexKeyFormat,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendChoice {
    Cpu,
    Cuda,
    /// [`BackendChoice::Cuda`] where GPUs are named or verified ones are there, else [`BackendChoice::Cpu`].
    Auto,
    /// The GPU's kernels on the host: slow, and right.
    #[cfg(feature = "gpu-emulator")]
    CudaEmulator,
    /// Answers from a file: for tests of everything but the model. See `scripted.rs`.
    Scripted(PathBuf),
}

impl FromStr for BackendChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "cpu" => Ok(BackendChoice::Cpu),
            None if text == "cuda" => Ok(BackendChoice::Cuda),
            None if text == "auto" => Ok(BackendChoice::Auto),
            #[cfg(feature = "gpu-emulator")]
            None if text == "cuda-emulator" => Ok(BackendChoice::CudaEmulator),
            Some(("scripted", file)) if !file.is_empty() => Ok(BackendChoice::Scripted(file.into())),
            _ => Err("use cpu, cuda, auto, or scripted:FILE with the path of a script".into()),
        }
    }
}

/// Numbers of GPUs as CUDA counts them, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceList(pub Vec<usize>);

impl FromStr for DeviceList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split(',').map(|number| number.parse::<u16>().map(usize::from));
        let numbers: Vec<usize> =
            numbers.collect::<Result<_, _>>().map_err(|_| "use the numbers of GPUs, as in 0,1")?;
        match numbers.iter().enumerate().find(|(at, number)| numbers[..*at].contains(number)) {
            Some((_, twice)) => Err(format!("{twice} is there twice: every rank has a GPU of its own")),
            None => Ok(DeviceList(numbers)),
        }
    }
}

impl fmt::Display for DeviceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&numbers.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example_in_its_help() {
        for command in Arguments::command().get_subcommands().filter(|command| command.get_name() != "help") {
            let help = command.clone().render_long_help().to_string();
            assert!(help.contains("Example"), "{} --help has no example", command.get_name());
        }
    }

    #[test]
    fn no_flags_are_the_defaults() {
        let line =
            Arguments::try_parse_from(["overshot", "score", "--ids", "x"]).unwrap_or_else(|e| panic!("{e}"));
        let Command::Score(parsed) = line.command else { panic!("another command") };
        assert_eq!(format!("{:?}", parsed.compute), format!("{:?}", ComputeFlags::default()));
    }

    #[test]
    fn a_script_needs_a_path() {
        assert_eq!("scripted:a:b.jsonl".parse(), Ok(BackendChoice::Scripted("a:b.jsonl".into())));
        for text in ["", "gpu", "cpu:x", "scripted", "scripted:"] {
            assert!(text.parse::<BackendChoice>().is_err(), "{text}");
        }
    }

    #[test]
    fn ranks_and_devices_must_agree() {
        let ranks = |flags: &[&str]| {
            let line = [&["overshot", "score", "--ids", "x"], flags].concat();
            let Command::Score(parsed) = Arguments::try_parse_from(line)?.command else {
                panic!("another command")
            };
            parsed.compute.ranks()
        };
        assert_eq!(ranks(&[]).unwrap(), 1);
        assert_eq!(ranks(&["--tp", "4"]).unwrap(), 4);
        assert_eq!(ranks(&["--backend", "cuda", "--devices", "3,1"]).unwrap(), 2);
        assert_eq!(ranks(&["--devices", "0", "--tp", "1"]).unwrap(), 1);
        for (flags, told) in [
            (&["--backend", "cuda", "--devices", "0,1", "--tp", "4"][..], "so name 4"),
            (&["--devices", "0", "--backend", "cpu"], "use --backend cuda"),
            (&["--devices", "0", "--backend", "scripted:x"], "leave it out"),
            (&["--devices", "0,1,0"], "0 is there twice"),
            (&["--devices", "one"], "use the numbers of GPUs"),
            (&["--devices", ""], "use the numbers of GPUs"),
        ] {
            let error = ranks(flags).unwrap_err().to_string();
            assert!(error.contains(told), "{flags:?}: {error}");
        }
    }

    #[test]
    fn unknown_modes_are_refused_with_the_known_ones() {
        let error =
            Arguments::try_parse_from(["overshot", "run", "x", "--kv", "fp7"]).err().unwrap().to_string();
        assert!(error.contains("`fp7` is not one of: f32, fp8"), "{error}");
    }
}
