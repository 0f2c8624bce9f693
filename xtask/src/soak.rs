//! Runs the randomised tests for as many cases as patience allows. A randomised test takes cases
//! and seeds from the crate `overshot-testing`; that is also how this command finds them. In the suite they are the same
//! every time; here each run draws others. Or it keeps one server under many clients for a while, which is a test of its
//! own kind. It adds no test itself.

use anyhow::{Context, bail};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

const CASES_VARIABLE: &str = "OVERSHOT_FUZZ_CASES";
/// The crate that they take cases and seeds from.
const TESTING: &str = "overshot_testing";
const SERVER_VARIABLE: &str = "OVERSHOT_SOAK_SECONDS";

#[derive(clap::Args)]
pub struct Arguments {
    /// Cases that each randomised test tries.
    #[arg(long, default_value_t = 200_000)]
    cases: u64,
    /// Only packages whose name contains this.
    #[arg(long)]
    package: Option<String>,
    /// Instead, keep a server under 64 clients for that many seconds: some leave, some send nonsense.
    #[arg(long, value_name = "N", conflicts_with_all = ["cases", "package"])]
    server_seconds: Option<u64>,
}

/// One test binary: the unit tests of a package, or one file of its `tests/`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Target {
    package: String,
    /// `None` is the package's own unit tests.
    test: Option<String>,
}

pub fn run(root: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if let Some(seconds) = arguments.server_seconds {
        return run_server(root, seconds);
    }
    let wanted = arguments.package.as_deref().unwrap_or_default();
    let targets: Vec<Target> =
        targets(root)?.into_iter().filter(|target| target.package.contains(wanted)).collect();
    if targets.is_empty() {
        bail!("no test of such a package uses {TESTING}");
    }
    let mut failed = 0;
    for target in &targets {
        let started = Instant::now();
        let passed = run_target(root, target, arguments.cases)?;
        let verdict = if passed { "passed" } else { "FAILED" };
        println!("soak: {} {verdict} in {:.0} s", target.describe(), started.elapsed().as_secs_f64());
        failed += usize::from(!passed);
    }
    println!(
        "soak: {} of {} test targets passed, {} cases a test",
        targets.len() - failed,
        targets.len(),
        arguments.cases
    );
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// With the profile of the tests: it is optimised, and an overflow stops it. Out of the whole workspace, as the suite has
/// built it: one package alone would be built again, with fewer features of what it stands on.
fn run_server(root: &Path, seconds: u64) -> anyhow::Result<ExitCode> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--workspace", "--test", "serve_soak", "--", "--nocapture"]);
    cargo.env(SERVER_VARIABLE, seconds.to_string()).current_dir(root);
    let passed = cargo.status().context("cannot run cargo")?.success();
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_target(root: &Path, target: &Target, cases: u64) -> anyhow::Result<bool> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--release", "--package", &target.package]);
    match &target.test {
        Some(test) => cargo.args(["--test", test]),
        None => cargo.args(["--lib", "--bins"]),
    };
    // Release speed, but an overflow or a broken assertion must still stop the test.
    cargo
        .env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true")
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true")
        .env(CASES_VARIABLE, cases.to_string())
        .current_dir(root);
    Ok(cargo.status().context("cannot run cargo")?.success())
}

/// The test targets whose sources take their cases from that crate.
fn targets(root: &Path) -> anyhow::Result<BTreeSet<Target>> {
    let found = Command::new("git")
        .args(["grep", "--files-with-matches", "--untracked", TESTING, "--", "crates/*.rs"])
        .current_dir(root)
        .output()
        .context("cannot run git, which soak asks for the randomised tests")?;
    Ok(String::from_utf8_lossy(&found.stdout).lines().filter_map(target_of).collect())
}

/// `crates/chat/tests/fuzz.rs` is test `fuzz` of `overshot-chat`; a file below `src/` is its unit tests.
fn target_of(path: &str) -> Option<Target> {
    let (folder, inside) = path.strip_prefix("crates/")?.split_once('/')?;
    let package = if folder == "overshot" { folder.to_owned() } else { format!("overshot-{folder}") };
    let test = match inside.strip_prefix("tests/") {
        Some(file) => Some(file.split('/').next()?.trim_end_matches(".rs").to_owned()),
        None => inside.strip_prefix("src/").map(|_| None)?,
    };
    Some(Target { package, test })
}

impl Target {
    fn describe(&self) -> String {
        match &self.test {
            Some(test) => format!("{} tests/{test}.rs", self.package),
            None => format!("{} unit tests", self.package),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_name_their_test_target() {
        let target = |package: &str, test: Option<&str>| {
            Some(Target { package: package.to_owned(), test: test.map(str::to_owned) })
        };
        assert_eq!(target_of("crates/chat/tests/fuzz.rs"), target("overshot-chat", Some("fuzz")));
        assert_eq!(target_of("crates/overshot/src/args.rs"), target("overshot", None));
        assert_eq!(target_of("crates/kv/src/set.rs"), target("overshot-kv", None));
        assert_eq!(target_of("crates/kv/build.rs"), None);
    }
}
