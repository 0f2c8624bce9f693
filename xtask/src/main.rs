//! The project's own chores, run as `cargo xtask NAME`. Nothing here ships, and nothing here is needed to build.

mod dist;
mod gpu_check;
mod real_layer;
mod soak;
mod tidy;

use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The project's own chores.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Check what compilers do not: layering, file sizes, dead paths in documents, stray markers, unsafe code.
    Tidy,
    /// Run the randomised tests with many more cases than the suite does, or a server under many clients for a while.
    Soak(soak::Arguments),
    /// Check this machine's GPU and our kernels on it with the release binary.
    GpuCheck(gpu_check::Arguments),
    /// Write a checkpoint with the geometry of DeepSeek-V4-Flash, a few layers deep, with random weights.
    RealLayer(real_layer::Arguments),
    /// Build the release tarball: the binary, man pages, completions, the systemd unit and the documents.
    Dist(dist::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().chore {
        Chore::Tidy => tidy::run(&repository_root()),
        Chore::Soak(arguments) => soak::run(&repository_root(), &arguments),
        Chore::GpuCheck(arguments) => gpu_check::run(&repository_root(), &arguments),
        Chore::RealLayer(arguments) => real_layer::run(&arguments),
        Chore::Dist(arguments) => dist::run(&repository_root(), &arguments),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The folder that holds the workspace, wherever the command was started.
fn repository_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}
