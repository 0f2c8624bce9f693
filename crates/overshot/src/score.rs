//! `overshot score`: the logits of every position of given token ids, and how well the model predicts them. Talks
//! to the backend in step plans directly, as there is nothing to schedule; needs no tokenizer.

use crate::args::ComputeFlags;
use crate::compute::{Cache, Needs, ToLower, start_backend};
use crate::display::PrefillBar;
use crate::failure::bad_input;
use crate::feeder::Feeder;
use crate::input::{IDS_BYTES_MAX, read_file, read_text};
use crate::interrupt::Unfinished;
use crate::logits_file::LogitsFile;
use crate::usage::{from_1_to_1024, whole_number};
use clap::Args;
use overshot_backend::{argmax, log_sum_exp};
use overshot_kv::PoolCapacity;
use overshot_model::Spec;
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  echo '[0, 4083, 412, 308, 267, 2033]' > ids.json
  overshot score --ids ids.json
  overshot score --ids ids.json --out logits.safetensors --greedy 8 --kv f32 --index-keys f32

OUT holds `logits` [T, vocab] in float32, and with --greedy K `greedy.tokens` [K] and `greedy.logits` [K, vocab]:
row s chose token s, row 0 follows the last id.";

/// Compute the logits of every position of a list of token ids, and its perplexity.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// A JSON list of token ids; - reads it from the input
    #[arg(long, value_name = "FILE.json")]
    ids: PathBuf,

    /// Write the logits to this safetensors file
    #[arg(long, value_name = "OUT.safetensors")]
    out: Option<PathBuf>,

    /// Tokens that one step computes, 1 to 1024; results do not depend on it (on GPUs: with --batch-invariant)
    #[arg(long, value_name = "N", default_value_t = 128, allow_negative_numbers = true, value_parser = from_1_to_1024)]
    chunk: u16,

    /// Continue with the K likeliest tokens, one after the other
    #[arg(long, value_name = "K", default_value_t = 0, allow_negative_numbers = true, value_parser = whole_number::<usize>)]
    greedy: usize,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    pub compute: ComputeFlags,
}

#[derive(Serialize)]
struct Report {
    tokens: usize,
    /// Of tokens 1 and on, each given those before it; `None` when there is only one.
    perplexity: Option<f64>,
    /// Mean negative log likelihood of the same tokens, in nats.
    mean_nll: Option<f64>,
    greedy_tokens: Vec<u32>,
    seconds: f64,
    tokens_per_second: f64,
}

/// # Errors
/// Ids that the model cannot take, or a file that cannot be read or written.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let source = arguments.compute.source()?;
    let model = Arc::new(source.open()?);
    let ids = read_ids(&arguments.ids, &model.spec)?;
    // The last greedy token is chosen and not fed.
    let positions = ids.len().saturating_add(arguments.greedy.saturating_sub(1));
    if positions > model.spec.max_positions {
        let most = model.spec.max_positions;
        return Err(bad_input(format!(
            "{positions} positions are asked for: the model's context holds {most}"
        )));
    }
    let vocab = model.spec.vocab_size;
    let needs = Needs {
        cache: Cache::Fixed(PoolCapacity::for_sets(1, positions)),
        step_tokens: usize::from(arguments.chunk),
        to_lower: ToLower { requests: Some("--chunk"), cache: "the number of ids" },
        rehearsal: None,
    };
    let mut file = match &arguments.out {
        Some(path) => {
            let mut inputs = source.files(&model);
            inputs.push(arguments.ids.clone());
            let unfinished = Unfinished::default();
            unfinished.removed_on_ctrl_c()?;
            Some(LogitsFile::create(path, &inputs, &unfinished, ids.len(), arguments.greedy, vocab)?)
        }
        None => None,
    };
    let backend = start_backend(&arguments.compute, &source, model, needs)?.backend;
    let mut feeder = Feeder::start(backend, source.label())?;

    let started = Instant::now();
    let (nll, last_logits) = score(&mut feeder, &ids, usize::from(arguments.chunk), file.as_mut())?;
    let seconds = started.elapsed().as_secs_f64();
    let greedy_tokens = continue_greedily(&mut feeder, last_logits, arguments.greedy, file.as_mut())?;
    if let Some(file) = file {
        file.finish(&greedy_tokens)?;
    }

    let predicted = ids.len() - 1;
    let mean_nll = (predicted > 0).then(|| nll / predicted as f64);
    let report = Report {
        tokens: ids.len(),
        perplexity: mean_nll.map(f64::exp),
        mean_nll,
        greedy_tokens,
        seconds,
        tokens_per_second: ids.len() as f64 / seconds,
    };
    print(&report, arguments.json, out)
}

fn print(report: &Report, json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    if json {
        writeln!(out, "{}", serde_json::to_string(report)?)?;
        return Ok(());
    }
    let Report { tokens, seconds, tokens_per_second, .. } = report;
    writeln!(out, "{tokens} tokens in {seconds:.2} s ({tokens_per_second:.1} tokens/s)")?;
    match report.perplexity.zip(report.mean_nll) {
        Some((perplexity, nll)) => writeln!(out, "perplexity {perplexity:.4} (mean nll {nll:.6})")?,
        None => writeln!(out, "perplexity needs at least two tokens")?,
    }
    if !report.greedy_tokens.is_empty() {
        writeln!(out, "greedy {:?}", report.greedy_tokens)?;
    }
    Ok(())
}

fn read_ids(path: &Path, spec: &Spec) -> anyhow::Result<Vec<u32>> {
    let (text, shown) = if path == Path::new("-") {
        let name = "the list on the input";
        (read_text(std::io::stdin(), name, IDS_BYTES_MAX)?, name.to_owned())
    } else {
        (read_file(path, IDS_BYTES_MAX)?, path.display().to_string())
    };
    let ids: Vec<u32> = serde_json::from_str(&text)
        .map_err(|error| bad_input(format!("{shown} is not a JSON list of token ids: {error}")))?;
    if ids.is_empty() {
        return Err(bad_input(format!("{shown} holds no token ids: at least one is needed")));
    }
    if let Some(index) = ids.iter().position(|&id| id as usize >= spec.vocab_size) {
        let (id, most) = (ids[index], spec.vocab_size);
        return Err(bad_input(format!(
            "{shown}: id {id} at index {index} is outside the vocabulary of {most} tokens"
        )));
    }
    Ok(ids)
}

/// Feeds all ids; returns the negative log likelihood of all but the first, and the last row of logits.
fn score(
    feeder: &mut Feeder,
    ids: &[u32],
    chunk: usize,
    mut file: Option<&mut LogitsFile>,
) -> anyhow::Result<(f64, Vec<f32>)> {
    let vocab = feeder.vocab;
    let mut nll = 0.0;
    let mut last_logits = Vec::new();
    let bar = PrefillBar::new(ids.len());
    for start in (0..ids.len()).step_by(chunk) {
        let end = ids.len().min(start + chunk);
        let logits = feeder.feed(&ids[start..end])?;
        for (row, next) in logits.chunks_exact(vocab).zip(&ids[start + 1..]) {
            nll += log_sum_exp(row)? - f64::from(row[*next as usize]);
        }
        if let Some(file) = file.as_deref_mut() {
            file.append(&logits)?;
        }
        last_logits = logits[logits.len() - vocab..].to_vec();
        bar.show(end);
    }
    bar.clear();
    Ok((nll, last_logits))
}

fn continue_greedily(
    feeder: &mut Feeder,
    mut logits: Vec<f32>,
    steps: usize,
    mut file: Option<&mut LogitsFile>,
) -> anyhow::Result<Vec<u32>> {
    let mut tokens = Vec::with_capacity(steps);
    while tokens.len() < steps {
        let token = argmax(&logits)?;
        tokens.push(token);
        if let Some(file) = file.as_deref_mut() {
            file.append(&logits)?;
        }
        if tokens.len() < steps {
            logits = feeder.feed(&[token])?;
        }
    }
    Ok(tokens)
}
