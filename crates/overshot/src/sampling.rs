//! From sampling flags and the model's own defaults to [`Sampling`].

use crate::failure::bad_input;
use crate::usage::{number, whole_number};
use clap::Args;
use overshot_backend::{Sampling, SamplingError};
use serde::Deserialize;
use std::str::FromStr;

/// How tokens are drawn. What is not given comes from the model's generation_config.json.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingFlags {
    /// 0 always takes the likeliest token; higher is more varied
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = number)]
    temperature: Option<f32>,

    /// Keep the smallest set of tokens whose probability reaches P
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = number)]
    top_p: Option<f32>,

    /// Keep the K likeliest tokens; 0 keeps all
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = whole_number::<usize>)]
    top_k: Option<usize>,

    /// Drop tokens less likely than this share of the likeliest
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, value_parser = number)]
    min_p: Option<f32>,

    /// Same seed, same answer (on GPUs: with --batch-invariant) [default: from the clock]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number::<u64>)]
    seed: Option<u64>,

    /// Above 1: tokens of prompt and answer become less likely
    #[arg(long, value_name = "F", allow_negative_numbers = true, value_parser = number)]
    repetition_penalty: Option<f32>,

    /// Taken once from the logit of a token that is in the answer, -2 to 2
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = number)]
    presence_penalty: Option<f32>,

    /// Taken from the logit of a token each time it is in the answer, -2 to 2
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = number)]
    frequency_penalty: Option<f32>,

    /// Add VALUE (-100 to 100) to the logit of token ID; may be repeated
    #[arg(long, value_name = "ID=VALUE", allow_hyphen_values = true)]
    logit_bias: Vec<LogitBias>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct LogitBias {
    token: u32,
    value: f32,
}

impl FromStr for LogitBias {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('=').and_then(|(id, value)| {
            Some(LogitBias { token: id.trim().parse().ok()?, value: value.trim().parse().ok()? })
        });
        parsed.ok_or_else(|| format!("`{text}` is not of the form ID=VALUE, such as 42=-5"))
    }
}

/// The part of a generation_config.json that concerns sampling.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct GenerationDefaults {
    do_sample: Option<bool>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<usize>,
}

impl GenerationDefaults {
    /// Reads the text of a generation_config.json; `name` is what messages call it.
    pub fn parse(text: &str, name: &str) -> anyhow::Result<Self> {
        serde_json::from_str(text).map_err(|error| bad_input(format!("{name} cannot be used: {error}")))
    }

    fn sampling(&self) -> Sampling {
        let publisher = Sampling::default();
        let sampling = Sampling {
            temperature: self.temperature.unwrap_or(publisher.temperature),
            top_p: self.top_p.unwrap_or(publisher.top_p),
            top_k: self.top_k.unwrap_or(publisher.top_k),
            ..publisher
        };
        match self.do_sample {
            Some(false) => Sampling { temperature: 0.0, ..sampling },
            _ => sampling,
        }
    }
}

impl SamplingFlags {
    /// Flags first, then the model's defaults, then the publisher's.
    ///
    /// # Errors
    /// A value out of its range, or a token that the vocabulary does not have.
    pub fn resolve(&self, defaults: &GenerationDefaults, vocab_size: usize) -> anyhow::Result<Sampling> {
        let base = defaults.sampling();
        let sampling = Sampling {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_p: self.top_p.unwrap_or(base.top_p),
            top_k: self.top_k.unwrap_or(base.top_k),
            min_p: self.min_p.unwrap_or(base.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(base.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(base.frequency_penalty),
            logit_bias: self.logit_bias.iter().map(|bias| (bias.token, bias.value)).collect(),
            seed: self.seed.unwrap_or_else(seed_from_clock),
            top_logprobs: base.top_logprobs,
        };
        sampling.validate(vocab_size).map_err(|error| self.where_it_stands(&error))?;
        Ok(sampling)
    }

    /// The error with its parameter named as whoever has to change it knows it.
    fn where_it_stands(&self, error: &SamplingError) -> anyhow::Error {
        let told = error.to_string();
        let (parameter, rest) = told.split_once(' ').unwrap_or((&told, ""));
        let is_default = match parameter {
            "temperature" => self.temperature.is_none(),
            "top_p" => self.top_p.is_none(),
            "top_k" => self.top_k.is_none(),
            _ => false,
        };
        bad_input(if is_default {
            format!("generation_config.json: {told}")
        } else {
            format!("--{} {rest}", parameter.replace('_', "-"))
        })
    }
}

fn seed_from_clock() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |duration| duration.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: SamplingFlags,
    }

    fn resolve(config: &str, flags: &[&str]) -> anyhow::Result<Sampling> {
        let line = Line::try_parse_from([&["x"], flags].concat())?;
        line.flags.resolve(&GenerationDefaults::parse(config, "generation_config.json")?, 100)
    }

    #[test]
    fn a_model_that_does_not_sample_is_greedy_unless_told() {
        let greedy = r#"{"do_sample": false, "temperature": 1.0, "top_p": 0.9}"#;
        assert_eq!(resolve(greedy, &[]).unwrap().temperature, 0.0);
        assert_eq!(resolve(greedy, &["--temperature", "0.7"]).unwrap().temperature, 0.7);
        assert_eq!(resolve(r#"{"do_sample": true, "temperature": 0.6}"#, &[]).unwrap().temperature, 0.6);
        assert_eq!(resolve("{}", &[]).unwrap().temperature, 1.0);
    }

    #[test]
    fn values_out_of_range_are_named() {
        let error = |flags: &[&str]| resolve("{}", flags).unwrap_err().to_string();
        assert!(error(&["--temperature", "-1"]).starts_with("--temperature is -1"));
        assert!(error(&["--top-p", "0"]).starts_with("--top-p is 0"));
        let broken = resolve(r#"{"temperature": -1}"#, &[]).unwrap_err().to_string();
        assert!(broken.starts_with("generation_config.json: temperature is -1"), "{broken}");
        assert!(error(&["--logit-bias", "100=1"]).contains("token 100"));
        assert!(error(&["--logit-bias", "1:1"]).contains("ID=VALUE"));
        assert!(error(&["--min-p", "nan"]).contains("--min-p"));
    }

    #[test]
    fn all_flags_arrive() {
        let flags = "--temperature 0.5 --top-p 0.9 --top-k 40 --min-p 0.1 --seed 7 --repetition-penalty 1.1 \
                     --presence-penalty -0.5 --frequency-penalty 0.25 --logit-bias 3=-100 --logit-bias 4=2";
        let sampling = resolve("{}", &flags.split_whitespace().collect::<Vec<_>>()).unwrap();
        let expected = Sampling {
            temperature: 0.5,
            top_p: 0.9,
            top_k: 40,
            min_p: 0.1,
            repetition_penalty: 1.1,
            presence_penalty: -0.5,
            frequency_penalty: 0.25,
            logit_bias: vec![(3, -100.0), (4, 2.0)],
            seed: 7,
            top_logprobs: 0,
        };
        assert_eq!(sampling, expected);
    }
}
