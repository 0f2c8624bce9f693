//! Has this machine's GPU checked: the release binary by its own `overshot selftest`, whose flags may follow, then the whole
//! model by the suite that every backend must pass. Adds no check of its own; kernels that do not ship, their ladder and
//! ablations are the business of `gpu-check run`.

use anyhow::Context;
use std::path::Path;
use std::process::{Command, ExitCode};

#[derive(clap::Args)]
pub struct Arguments {
    /// Flags of `overshot selftest`, such as --quick or --json FILE.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    flags: Vec<String>,
}

pub fn run(root: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let selftest = ["run", "--release", "--package", "overshot", "--", "selftest"];
    let flags = arguments.flags.iter().map(String::as_str);
    let checked = cargo(root, selftest.into_iter().chain(flags))?;
    if checked != ExitCode::SUCCESS {
        return Ok(checked);
    }
    let suite = ["test", "--package", "overshot-backend-cuda", "--test", "conformance", "--test", "model"];
    cargo(root, suite.into_iter())
}

fn cargo<'a>(root: &Path, arguments: impl Iterator<Item = &'a str>) -> anyhow::Result<ExitCode> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let status = cargo.args(arguments).current_dir(root).status().context("cargo cannot be started")?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}
