//! Builds the release binary and lets it check this machine's GPU: `overshot selftest`, whose flags may follow. Adds no check of
//! its own; kernels that do not ship, their ladder and ablations are the business of `gpu-check run`.

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
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["run", "--release", "--package", "overshot", "--", "selftest"]).args(&arguments.flags);
    let status = cargo.current_dir(root).status().context("cargo cannot be started")?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}
