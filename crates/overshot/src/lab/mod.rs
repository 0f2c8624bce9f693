//! `overshot lab`: questions about where the time goes and what a change could bring. Each command is a file with its flags;
//! the arithmetic is in `overshot-gpu-model`, profiles and the ledger are in `overshot-lab`.

mod ab;
mod ab_report;
mod cubins;
mod import;
mod lever;
mod lever_report;
mod noise;
mod numbers;
mod occupancy;
mod plan;
mod points;
mod profile;
mod profile_sources;
mod profile_tables;
mod project;
mod project_kernel;
mod project_report;
mod project_texts;
mod replay;
mod subjects;
mod tune;
mod tune_plot;
mod waves;
mod waves_kernel;
mod waves_report;

use clap::{Args, Subcommand};
use std::io::Write;

const EXAMPLES: &str = "\
Examples:
  overshot lab occupancy --regs 255 --warps 4 --smem 60 --arch sm_120
  overshot lab occupancy ~/.triton/cache
  overshot lab waves --card \"RTX PRO 6000\" --ctas-per-request 4 --batch 64,80,96
  overshot lab profile --trace 16=b16.json.gz --trace 64=b64.json.gz
  overshot lab project \"attention / 1.5\" --profile profile.json --threshold 5
  overshot lab plan --out levers/PLAN.md";

/// Find out what limits a step or a GPU kernel, and what a change could bring.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    question: Question,
}

#[derive(Subcommand, Clone, Debug)]
enum Question {
    /// Where the time of a step goes, and how it grows with the batch.
    Profile(Box<profile::Arguments>),
    /// How many CTAs of a kernel an SM holds, what stops the next one, and what would let it in.
    Occupancy(occupancy::Arguments),
    /// How a grid fills a card: waves, cliffs, into how many CTAs to split a request.
    Waves(waves::Arguments),
    /// What our decode attention costs on a card, from the times of a self-test: the table its kernels are chosen by.
    Tune(tune::Arguments),
    /// What a change would bring to the whole step, before anybody makes it: with an interval, go or no-go.
    Project(Box<project::Arguments>),
    /// How far equal measurements lie apart: the noise band that a change must exceed.
    Noise(noise::Arguments),
    /// Whether B is better than A: two commands, servers, sets of flags or results files.
    Ab(ab::Arguments),
    /// Read result files of other tools, as runs that `ab` can compare.
    Import(import::Arguments),
    /// Keep a ledger of performance ideas: what each should bring, what was measured, what follows.
    Lever(lever::Arguments),
    /// What is worth doing next and what was decided by which numbers: a page made from the ledger.
    Plan(plan::Arguments),
    /// Replay the campaign that the lab was born from: its numbers, what they imply, and the plan that follows.
    Replay(replay::Arguments),
}

/// # Errors
/// Input that the question cannot be asked of.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
    match &arguments.question {
        Question::Profile(arguments) => profile::run(arguments, out),
        Question::Occupancy(arguments) => occupancy::run(arguments, out),
        Question::Waves(arguments) => waves::run(arguments, out),
        Question::Tune(arguments) => tune::run(arguments, out),
        Question::Project(arguments) => project::run(arguments, out),
        Question::Noise(arguments) => noise::run(arguments, out),
        Question::Ab(arguments) => ab::run(arguments, out),
        Question::Import(arguments) => import::run(arguments, out),
        Question::Lever(arguments) => lever::run(arguments, out),
        Question::Plan(arguments) => plan::run(arguments, out),
        Question::Replay(arguments) => replay::run(arguments, out),
    }
}
