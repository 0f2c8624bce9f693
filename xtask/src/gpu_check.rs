//! Has this machine's GPU checked: the release binary by its own `overshot selftest`, whose flags may follow, then the whole
//! model by the suite that every backend must pass. Adds no check of its own; kernels that do not ship, their ladder and
//! ablations are the business of `gpu-check run`.

use anyhow::Context;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};

/// Has the suite fail where it would skip the card: see `crates/backend-cuda/tests/common/mod.rs`.
const CARD_VARIABLE: &str = "OVERSHOT_REQUIRE_CARD";

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
    if !checked.success() {
        return Ok(exit_code(checked));
    }
    let suite = ["test", "--package", "overshot-backend-cuda", "--test", "conformance", "--test", "model"];
    Ok(exit_code(cargo(root, suite.into_iter())?))
}

fn cargo<'a>(root: &Path, arguments: impl Iterator<Item = &'a str>) -> anyhow::Result<ExitStatus> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(arguments).current_dir(root).env(CARD_VARIABLE, "1");
    cargo.status().context("cargo cannot be started")
}

fn exit_code(status: ExitStatus) -> ExitCode {
    status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
