//! Man pages and shell completions, written from the definitions of the flags, so that they cannot differ from them.
//! Packaging runs it once (`cargo xtask dist`) in a build with the feature `manual`; the binary that ships is without.

use crate::args;
use crate::failure::note;
use anyhow::Context;
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use std::path::PathBuf;

const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Fish, Shell::Zsh];

/// Write man pages and shell completions.
#[derive(Args, Clone, Debug)]
#[command(hide = true, after_help = "Example:\n  overshot manual --out target/manual")]
pub struct Arguments {
    /// Folder to write to; made if it is missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// # Errors
/// A folder that cannot be written to.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let folder = &arguments.out;
    let cannot = || format!("cannot write to {}: name a folder of yours with --out", folder.display());
    std::fs::create_dir_all(folder).with_context(cannot)?;
    let command = args::Arguments::command();
    for shell in SHELLS {
        clap_complete::generate_to(shell, &mut command.clone(), "overshot", folder).with_context(cannot)?;
    }
    // A page for each command, and for each of theirs.
    clap_mangen::generate_to(command, folder).with_context(cannot)?;
    note(&format!("man pages and completions are in {}", folder.display()));
    Ok(())
}
