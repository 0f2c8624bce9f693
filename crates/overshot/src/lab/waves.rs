//! `overshot lab waves`: how a grid fills a card, where one request more costs a wave, and into how many CTAs to split a
//! request. Five questions, each asked by its own flag, all answered in one report:
//!
//! * `--ctas-per-request U`: the staircase of a kernel that starts U CTAs for each request.
//! * `--tiles N`: split rules compared, at costs given or found in `--measured` points.
//! * `--measured FILE`: what a CTA's work costs, and whether waves describe the kernel at all.
//! * `--kernel decode`: which of our kernels serves each batch, from the code that chooses it (`waves_kernel.rs`).
//! * `--explain A:B`: which CTAs a request would explain that B requests are slower than A.

use super::numbers::{BatchPair, Batches, at_least_one, batch_pair, batches, not_negative};
use super::points::read_points;
use super::waves_kernel;
use super::waves_report::{Explained, Report, Splits, Staircase};
use crate::failure::bad_input;
use clap::Args;
use overshot_gpu_model::{
    Anomaly, Card, Fit, Point, SplitLaunch, SplitRule, TileCosts, Waves, anomaly, cliffs, fit,
};
use std::io::Write;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  overshot lab waves --card \"RTX PRO 6000\" --ctas-per-request 4 --batch 64,80,96
  overshot lab waves --sms 188 --tiles 32 --t0 4 --target 512
  overshot lab waves --card H200 --ctas-per-sm 2 --tiles 32 --measured sweep.csv
  overshot lab waves --card H200 --kernel decode --heads 16 --batch 1..256
  overshot lab waves --sms 188 --explain 80:96 --step-ms 120.1 --floor-ms 36.3 --floor-ms-per-request 0.015

sweep.csv holds lines of batch,splits,time: 6 to 8 points at two batches are enough.";

/// How a grid fills a card: waves, cliffs, into how many CTAs to split a request.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// A card by its name, such as "RTX PRO 6000" or H200
    #[arg(long, value_name = "NAME", required_unless_present = "sms", conflicts_with = "sms")]
    card: Option<String>,

    /// SMs, for a card that is not known by name
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one)]
    sms: Option<NonZeroU32>,

    /// CTAs of the kernel that an SM holds; `overshot lab occupancy` says
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = at_least_one, default_value = "1")]
    ctas_per_sm: NonZeroU32,

    /// Requests that run together: a list, or a range such as 1..128
    #[arg(long, value_name = "LIST|A..B", allow_negative_numbers = true, value_parser = batches, default_value = "1,2,4,8,16,32,48,64,80,96,128")]
    batch: Batches,

    /// Show the staircase of a kernel that starts this many CTAs for each request
    #[arg(long, value_name = "U", allow_negative_numbers = true, value_parser = at_least_one)]
    ctas_per_request: Option<NonZeroU32>,

    /// Compare split rules for a request of this many KV tiles, at most 16384
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one)]
    tiles: Option<NonZeroU32>,

    /// CTAs that share the heads of a request, before splitting
    #[arg(long, value_name = "H", allow_negative_numbers = true, value_parser = at_least_one, default_value = "1")]
    head_blocks: NonZeroU32,

    /// CTAs that the static rule aims at
    #[arg(long, value_name = "CTAS", allow_negative_numbers = true, value_parser = at_least_one, default_value = "512")]
    target: NonZeroU32,

    /// Fixed cost of a CTA, in the unit of --t1
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = not_negative, default_value = "1")]
    t0: f64,

    /// Cost of one tile
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = not_negative, default_value = "1")]
    t1: f64,

    /// Cost of combining, for each split
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = not_negative, default_value = "0")]
    combine: f64,

    /// Find the three costs from measured points: a file with lines of batch,splits,time
    #[arg(long, value_name = "FILE", requires = "tiles", conflicts_with_all = ["t0", "t1", "combine"])]
    measured: Option<PathBuf>,

    #[command(flatten)]
    ours: waves_kernel::Flags,

    /// Explain why B requests give fewer tokens a second than A
    #[arg(long, value_name = "A:B", allow_negative_numbers = true, value_parser = batch_pair, requires = "step_ms")]
    explain: Option<BatchPair>,

    /// Time of a step at B requests
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = not_negative, requires = "explain")]
    step_ms: Option<f64>,

    /// Time of a step outside this kernel, whatever the batch
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = not_negative, default_value = "0")]
    floor_ms: f64,

    /// Time of a step outside this kernel, for each request
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = not_negative, default_value = "0")]
    floor_ms_per_request: f64,

    /// A fall of tokens a second by less would not have been noticed
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, value_parser = not_negative, default_value = "5")]
    noise: f64,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// # Errors
/// No question, an unknown card, numbers that cannot be, a file of points that does not hold any.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let (card, slots) = slots(arguments)?;
    let staircase = arguments.ctas_per_request.map(|ctas| staircase(arguments, ctas, slots));
    let (splits, fit) = match arguments.tiles {
        Some(tiles) => {
            let (splits, fit) = splits(arguments, tiles, slots)?;
            (Some(splits), fit)
        }
        None => (None, None),
    };
    let explained = match (arguments.explain, arguments.step_ms) {
        (Some(pair), Some(step_ms)) => Some(explain(arguments, pair, step_ms, slots)?),
        _ => None,
    };
    let choices = arguments.ours.answer(card, &arguments.batch)?;
    let ctas_per_sm = arguments.ctas_per_sm;
    let report = Report { card, ctas_per_sm, slots, staircase, fit, splits, choices, explained };
    if report.is_empty() {
        return Err(bad_input("nothing is asked: give --ctas-per-request, --tiles, --kernel or --explain"));
    }
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        report.write(out)?;
    }
    Ok(())
}

fn slots(arguments: &Arguments) -> anyhow::Result<(Option<Card>, NonZeroU32)> {
    let card = arguments.card.as_deref().map(Card::named).transpose();
    let card = card.map_err(|error| bad_input(format!("--card: {error}")))?;
    let of_card = card.and_then(|card| NonZeroU32::new(card.sms));
    let sms = of_card.or(arguments.sms).ok_or_else(|| bad_input("give --card or --sms"))?;
    let slots = sms.checked_mul(arguments.ctas_per_sm);
    let slots = slots.ok_or_else(|| bad_input("--sms times --ctas-per-sm is more than any card has"))?;
    Ok((card, slots))
}

fn staircase(arguments: &Arguments, ctas_per_request: NonZeroU32, slots: NonZeroU32) -> Staircase {
    let point = |batch: &u32| {
        let grid = Waves::of(u64::from(*batch) * u64::from(ctas_per_request.get()), slots);
        Point { batch: *batch, grid, time: grid.waves as f64 }
    };
    let points: Vec<Point> = arguments.batch.0.iter().map(point).collect();
    Staircase { ctas_per_request, cliffs: cliffs(&points), points }
}

fn splits(
    arguments: &Arguments,
    tiles: NonZeroU32,
    slots: NonZeroU32,
) -> anyhow::Result<(Splits, Option<Fit>)> {
    let typed = TileCosts { t0: arguments.t0, t1: arguments.t1, c: arguments.combine };
    let launch = |costs| {
        SplitLaunch::new(arguments.head_blocks, tiles, slots, costs)
            .map_err(|error| bad_input(error.to_string()))
    };
    let fit = match &arguments.measured {
        Some(path) => Some(fit_points(path, &launch(typed)?)?),
        None => None,
    };
    let launch = launch(fit.map_or(typed, |fit| fit.costs))?;
    let batches = &arguments.batch.0;
    let rows = batches.iter().map(|batch| launch.compare(*batch, arguments.target)).collect();
    let points: Vec<Point> =
        batches.iter().map(|batch| launch.point(*batch, SplitRule::TargetCtas(arguments.target))).collect();
    Ok((Splits { launch, target: arguments.target, rows, cliffs_of_target: cliffs(&points) }, fit))
}

fn fit_points(path: &Path, launch: &SplitLaunch) -> anyhow::Result<Fit> {
    let points = read_points(path)?;
    fit::fit(launch, &points).map_err(|error| bad_input(format!("{}: {error}", path.display())))
}

fn explain(
    arguments: &Arguments,
    pair: BatchPair,
    step_ms: f64,
    slots: NonZeroU32,
) -> anyhow::Result<Explained> {
    const CTAS_PER_REQUEST_SHOWN: u32 = 16;
    let seen = Anomaly {
        slots,
        from_batch: pair.from,
        to_batch: pair.to,
        to_step_ms: step_ms,
        other_ms: arguments.floor_ms,
        other_ms_per_request: arguments.floor_ms_per_request,
        noise_percent: arguments.noise,
    };
    let told = |error: overshot_gpu_model::AnomalyError| bad_input(error.to_string());
    let explanations = seen.explanations(CTAS_PER_REQUEST_SHOWN).map_err(told)?;
    Ok(Explained {
        seen,
        time_ratio_needed: seen.time_ratio_needed().map_err(told)?,
        simplest: anomaly::simplest(&explanations).copied(),
        explanations,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn print(flags: &[&str]) -> Result<String, String> {
        let line = Line::try_parse_from([&["waves"], flags].concat()).map_err(|error| error.to_string())?;
        let mut out = Vec::new();
        run(&line.arguments, &mut out).map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&out).into_owned())
    }

    fn assert_parts(text: &str, parts: &[&str]) {
        for part in parts {
            assert!(text.contains(part), "{part} is missing in:\n{text}");
        }
    }

    #[test]
    fn cliffs_are_named() {
        let text = print(&["--card", "pro 6000", "--ctas-per-request", "4", "--batch", "64,80,96"]).unwrap();
        assert_parts(
            &text,
            &["188 SMs", "C=96: 384 CTAs = 2x188+8, a third wave for 8: 1.50x the time of C=80"],
        );
        let even = print(&["--sms", "188", "--ctas-per-request", "5", "--batch", "80,96"]).unwrap();
        assert_parts(&even, &["No cliff"]);
    }

    #[test]
    fn rules_are_compared() {
        let text = print(&["--sms", "188", "--tiles", "32", "--t0", "4", "--batch", "96", "--json"]).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let row = &value["splits"]["rows"][0];
        let choice = |rule: &str| (row[rule]["splits"].as_u64(), row[rule]["time"].as_f64());
        assert_eq!(choice("target"), (Some(5), Some(33.0)));
        assert_eq!(choice("best"), (Some(3), Some(30.0)));
        assert_eq!(row["persistent_time"], 25.0);
    }

    #[test]
    fn costs_come_from_measured_points() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sweep.csv");
        let launch = SplitLaunch::new(
            NonZeroU32::MIN,
            NonZeroU32::new(32).unwrap(),
            NonZeroU32::new(188).unwrap(),
            TileCosts { t0: 12.0, t1: 3.0, c: 0.5 },
        )
        .unwrap();
        let sizes = [64, 96].into_iter().flat_map(|batch| [1, 2, 4, 8].map(|splits| (batch, splits)));
        let lines = sizes.map(|(batch, splits)| format!("{batch},{splits},{}\n", launch.time(batch, splits)));
        std::fs::write(&path, format!("batch,splits,us\n{}", lines.collect::<String>())).unwrap();
        let text = print(&["--sms", "188", "--tiles", "32", "--measured", path.to_str().unwrap()]).unwrap();
        assert_parts(
            &text,
            &["a CTA takes 12 + 3 a tile, combining 0.5 a split", "waves describe this kernel"],
        );
        std::fs::write(&path, "64,1,1\n64,1,1\n64,1,1\n64,1,1\n").unwrap();
        let alike =
            print(&["--sms", "188", "--tiles", "32", "--measured", path.to_str().unwrap()]).unwrap_err();
        assert_parts(&alike, &["sweep.csv", "cannot tell the costs apart"]);
    }

    #[test]
    fn the_anomaly_is_explained() {
        let flags = ["--sms", "188", "--explain", "80:96", "--step-ms", "120.1", "--floor-ms", "36.3"];
        let text = print(&[&flags[..], &["--floor-ms-per-request", "0.015"]].concat()).unwrap();
        assert_parts(&text, &["needs 1.316x the kernel's time", "Simplest explanation: 4 CTAs a request"]);
    }

    #[test]
    fn bad_input_is_one_sentence() {
        for (flags, part) in [
            (&["--sms", "188"][..], "nothing is asked"),
            (&["--tiles", "3"], "--card"),
            (&["--card", "abacus", "--tiles", "3"], "`abacus` is no known card"),
            (&["--sms", "0", "--tiles", "3"], "at least 1"),
            (&["--sms", "188", "--tiles", "16385"], "at most 16384"),
            (&["--sms", "188", "--tiles", "3", "--t0", "NaN"], "from 0 to 1e15"),
            (&["--sms", "4294967295", "--ctas-per-sm", "2", "--tiles", "3"], "more than any card has"),
            (&["--sms", "188", "--tiles", "3", "--batch", "9..1"], "a range such as"),
            (&["--sms", "188", "--explain", "96:80", "--step-ms", "1"], "the smaller one first"),
            (
                &["--sms", "188", "--explain", "80:96", "--step-ms", "0.1", "--floor-ms", "36"],
                "check the units",
            ),
            (&["--sms", "188", "--tiles", "3", "--measured", "no/such.csv"], "cannot open no/such.csv"),
        ] {
            let error = print(flags).expect_err(part);
            assert!(error.contains(part), "{error}");
        }
    }
}
