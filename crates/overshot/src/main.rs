//! `overshot`, the command line. Each command is a file with its flags beside what they do; this one only starts
//! them and turns their end into an exit code: 0 well, 2 the input must change, 3 no GPU, 1 anything else.

mod args;
mod bench;
mod chat;
mod compute;
mod compute_gpu;
mod display;
mod doctor;
mod doctor_gpu;
mod embedded;
mod failure;
mod feeder;
mod input;
mod inspect;
mod interrupt;
mod lab;
mod line_source;
mod logits_file;
#[cfg(feature = "manual")]
mod manual;
mod model_source;
mod outputs;
mod run;
mod sampling;
mod score;
mod scripted;
mod selftest;
mod serve;
mod serve_options;
mod session;
mod table;
mod trace_file;
mod usage;

use args::Command;
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = match args::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage::report(&error, std::env::args_os()),
    };
    let mut out = std::io::stdout().lock();
    let outcome = match arguments.command {
        Command::Run(arguments) => run::run(&arguments, &mut out),
        Command::Chat(arguments) => chat::run(&arguments, &mut out),
        Command::Serve(arguments) => serve::run(&arguments, &mut out),
        Command::Score(arguments) => score::run(&arguments, &mut out),
        Command::Inspect(arguments) => inspect::run(&arguments, &mut out),
        Command::Bench(arguments) => bench::run(&arguments, &mut out),
        Command::Lab(arguments) => lab::run(&arguments, &mut out),
        Command::Selftest(arguments) => selftest::run(&arguments, &mut out),
        Command::Doctor(arguments) => doctor::run(&arguments, &mut out),
        #[cfg(feature = "manual")]
        Command::Manual(arguments) => manual::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}
