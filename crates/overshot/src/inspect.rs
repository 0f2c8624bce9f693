//! `overshot inspect`: what a checkpoint holds, what its cache costs, and which cards it fits on. Opens the
//! checkpoint as every command does, so what it prints is what would run; needs no tokenizer.

use crate::args::CacheFlags;
use crate::failure::one_line;
use crate::model_source::ModelSource;
use crate::table::{Table, bytes, count};
use clap::Args;
use overshot_backend::{IndexKeyFormat, KvFormat};
use overshot_kv::{ROLLBACK, TOKENS_PER_PAGE};
use overshot_model::memory::{
    CARDS, CacheFormats, Card, RequestState, RingSlots, WeightSplit, context_tokens,
};
use overshot_model::{Drafter, LayerKind, Model, NameStyle, RoutingKind, Spec, Summary};
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  overshot inspect
  overshot inspect ~/models/DeepSeek-V4-Flash --kv fp8 --index-keys fp4
  overshot inspect ~/models/DeepSeek-V4-Flash --json | jq .cache.bytes_per_token";

/// Show what a checkpoint holds, what its cache costs and which cards it fits on.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// A checkpoint: its folder, a Hugging Face cache folder, or a .safetensors file beside its config.json
    /// [default: the built-in model]
    #[arg(value_name = "MODEL", conflicts_with = "model_flag")]
    model: Option<PathBuf>,

    /// The same as MODEL
    #[arg(long = "model", id = "model_flag", value_name = "PATH")]
    model_flag: Option<PathBuf>,

    #[command(flatten)]
    cache: CacheFlags,

    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// What this engine keeps of every request, to be able to undo positions.
const RINGS: RingSlots = RingSlots {
    window: TOKENS_PER_PAGE,
    csa_rows: RingSlots::LEAST.csa_rows + ROLLBACK,
    hca_rows: RingSlots::LEAST.hca_rows + ROLLBACK,
};

/// Ranks of a tensor-parallel split that the card table shows.
const RANKS: [usize; 4] = [1, 2, 4, 8];

#[derive(Serialize)]
struct Report<'a> {
    model: String,
    shape: &'a Spec,
    summary: &'a Summary,
    cache: Cache,
    placement: Vec<Placement>,
}

#[derive(Serialize)]
struct Cache {
    kv: String,
    index_keys: String,
    formats: CacheFormats,
    bytes_per_token: f64,
    request_state: RequestState,
}

/// One way to split the model.
#[derive(Serialize)]
struct Placement {
    ranks: usize,
    /// Heads, groups and experts divide by the number of ranks.
    possible: bool,
    weight_bytes_per_rank: u64,
    cards: Vec<Fit>,
}

#[derive(Serialize)]
struct Fit {
    #[serde(flatten)]
    card: Card,
    /// Tokens of context that fit beside the weights; `None` when the weights do not fit.
    context_tokens: Option<u64>,
}

/// # Errors
/// A checkpoint that no command would run either.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let path = arguments.model.as_deref().or(arguments.model_flag.as_deref());
    let source = ModelSource::from_flag(path)?;
    let model = source.open()?;
    let report = Report {
        model: source.label(),
        shape: &model.spec,
        summary: &model.summary,
        cache: cache(&model.spec, arguments.cache),
        placement: placement(&model, cache_formats(arguments.cache)),
    };
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        write_text(&report, out)?;
    }
    Ok(())
}

fn cache_formats(flags: CacheFlags) -> CacheFormats {
    CacheFormats {
        entry_bytes: match flags.kv {
            KvFormat::F32 => CacheFormats::ENTRY_F32,
            KvFormat::Fp8 => CacheFormats::ENTRY_FP8,
        },
        index_key_bytes: match flags.index_keys {
            IndexKeyFormat::F32 => CacheFormats::INDEX_KEY_F32,
            IndexKeyFormat::Bf16 => CacheFormats::INDEX_KEY_BF16,
            IndexKeyFormat::Fp8 => CacheFormats::INDEX_KEY_FP8,
            IndexKeyFormat::Fp4 => CacheFormats::INDEX_KEY_FP4,
        },
    }
}

fn cache(spec: &Spec, flags: CacheFlags) -> Cache {
    let formats = cache_formats(flags);
    Cache {
        kv: flags.kv.to_string(),
        index_keys: flags.index_keys.to_string(),
        formats,
        bytes_per_token: spec.cache_bytes_per_token(formats),
        request_state: spec.request_state(formats, RINGS),
    }
}

fn placement(model: &Model, formats: CacheFormats) -> Vec<Placement> {
    let split = WeightSplit::of(&model.weights);
    let fit = |ranks: usize, card: Card| Fit {
        card,
        context_tokens: context_tokens(&model.spec, split, ranks, formats, RINGS, card.memory_bytes),
    };
    let placement = |ranks: usize| Placement {
        ranks,
        possible: model.spec.splits_over(ranks),
        weight_bytes_per_rank: split.bytes_per_rank(ranks),
        cards: CARDS.iter().map(|card| fit(ranks, *card)).collect(),
    };
    RANKS.into_iter().map(placement).collect()
}

fn write_text(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    write_head(report, out)?;
    write_layers(report, out)?;
    write_formats(report.summary, out)?;
    write_cache(&report.cache, report.shape.max_positions, out)?;
    write_cards(&report.placement, out)
}

fn write_head(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let Report { shape, summary, .. } = report;
    let file_bytes = summary.files.iter().map(|file| file.bytes).sum();
    let names = match summary.name_style {
        NameStyle::Publisher => "published names",
        NameStyle::Transformers => "names of transformers",
    };
    writeln!(out, "{}", one_line(&report.model))?;
    writeln!(
        out,
        "  {} layers, hidden {}, {} heads, {} experts of which {} a token, vocabulary {}, context {}",
        shape.layers.len(),
        count(shape.hidden_size as u64),
        shape.heads,
        shape.experts,
        shape.experts_per_token,
        count(shape.vocab_size as u64),
        count(shape.max_positions as u64)
    )?;
    writeln!(
        out,
        "  {} parameters, {} tensors ({names}), {} in {} file(s)",
        count(summary.parameters),
        count(summary.tensors as u64),
        bytes(file_bytes),
        summary.files.len()
    )?;
    match summary.drafter {
        Drafter::None => writeln!(out, "  no drafter"),
        Drafter::Mtp { blocks } => {
            writeln!(out, "  {blocks} MTP block(s), {}, not used yet", bytes(summary.ignored_bytes))
        }
        Drafter::DSpark => {
            writeln!(out, "  a DSpark drafter, {}, not used yet", bytes(summary.ignored_bytes))
        }
    }
}

fn write_layers(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\nLayers")?;
    let mut table = Table::new(&["layer", "kind", "routing", "bytes", "experts"]);
    for (index, layer) in report.summary.layers.iter().enumerate() {
        let kind = match layer.kind {
            LayerKind::Window => "window",
            LayerKind::Csa => "CSA",
            LayerKind::Hca => "HCA",
        };
        let routing = match layer.routing {
            RoutingKind::Hash => "hash",
            RoutingKind::Learned => "learned",
        };
        let (all, experts) = (bytes(layer.bytes), bytes(layer.expert_bytes));
        table.row([index.to_string(), kind.into(), routing.into(), all, experts]);
    }
    table.write(out)
}

fn write_formats(summary: &Summary, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\nTensors as stored")?;
    let mut tensors = Table::new(&["dtype", "tensors", "bytes"]);
    for (name, amount) in &summary.dtypes {
        tensors.row([name.clone(), count(amount.count as u64), bytes(amount.bytes)]);
    }
    tensors.write(out)?;
    writeln!(out, "\nMatrices as computed with, without their scales")?;
    let mut matrices = Table::new(&["format", "matrices", "bytes"]);
    for (name, amount) in &summary.formats {
        matrices.row([name.to_string(), count(amount.count as u64), bytes(amount.bytes)]);
    }
    matrices.write(out)
}

fn write_cache(cache: &Cache, max_positions: usize, out: &mut dyn Write) -> io::Result<()> {
    let Cache { kv, index_keys, bytes_per_token, request_state, .. } = cache;
    let full = (bytes_per_token * max_positions as f64) as u64 + request_state.bytes();
    writeln!(out, "\nCache (--kv {kv} --index-keys {index_keys})")?;
    writeln!(out, "  {bytes_per_token:.0} bytes a token of context")?;
    writeln!(
        out,
        "  {} a request besides: {} window, {} compressor rows",
        bytes(request_state.bytes()),
        bytes(request_state.window_bytes),
        bytes(request_state.compressor_bytes)
    )?;
    writeln!(out, "  {} at the full context of {} tokens", bytes(full), count(max_positions as u64))
}

fn write_cards(placement: &[Placement], out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "\nTokens of context that fit beside the weights, one request, by cards in tensor parallel"
    )?;
    let mut table = Table::new(&["card", "TP1", "TP2", "TP4", "TP8"]);
    let weights = placement
        .iter()
        .map(|split| if split.possible { bytes(split.weight_bytes_per_rank) } else { "-".into() });
    table.row(std::iter::once("weights a card".to_owned()).chain(weights));
    for (index, card) in CARDS.iter().enumerate() {
        let fits = placement.iter().map(|split| match split.cards[index].context_tokens {
            Some(tokens) if split.possible => count(tokens),
            _ => "-".into(),
        });
        table.row(std::iter::once(card.name.to_owned()).chain(fits));
    }
    table.write(out)?;
    writeln!(out, "  - : does not fit, or does not divide. Estimates: no GPU backend has run them yet.")
}

#[cfg(test)]
#[cfg(feature = "embedded-model")]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn print(flags: &[&str]) -> String {
        let line = Line::parse_from([&["inspect"], flags].concat());
        let mut out = Vec::new();
        run(&line.arguments, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_built_in_model_is_described() {
        let text = print(&[]);
        for part in [
            "dsv4-mini (built in)",
            "7 layers",
            "922 tensors",
            "F8_E4M3",
            "CSA",
            "HCA",
            "window",
            "fp4",
            "TP8",
        ] {
            assert!(text.contains(part), "{part} is missing in:\n{text}");
        }
    }

    #[test]
    fn json_says_the_same_in_numbers() {
        let value: serde_json::Value = serde_json::from_str(&print(&["--json", "--kv", "f32"])).unwrap();
        assert_eq!(value["shape"]["layers"].as_array().unwrap().len(), 7);
        assert_eq!(value["shape"]["layers"][2]["kind"], value["summary"]["layers"][2]["kind"]);
        assert_eq!(value["shape"]["index_topk"], 128);
        assert_eq!(value["summary"]["tensors"], 922);
        // 3 CSA layers with 2048 + 132 bytes per 4 tokens, 2 HCA layers with 2048 per 128.
        let per_token = value["cache"]["bytes_per_token"].as_f64().unwrap();
        assert_eq!(per_token, 3.0 * (2048.0 + 132.0) / 4.0 + 2.0 * 2048.0 / 128.0);
        assert_eq!(value["placement"][2]["ranks"], 4);
    }
}
