//! The program that is tested, as a process of its own.

use std::process::Command;

/// Commands that compute, so that they take `--backend`.
const COMPUTING: [&str; 5] = ["run", "chat", "serve", "score", "bench"];

/// The program with these arguments. Unless they name a backend it computes on the processor: no test may depend on the GPUs of
/// the machine that runs it.
pub fn overshot(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_overshot"));
    let Some((first, rest)) = arguments.split_first() else { return command };
    command.arg(first);
    if COMPUTING.contains(first) && !rest.contains(&"--backend") {
        command.args(["--backend", "cpu"]);
    }
    command.args(rest);
    command
}
