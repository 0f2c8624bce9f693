//! How randomised tests get their cases. The suite runs the same ones every time, so that a change is judged by what
//! it changed; `cargo xtask soak` looks for what those cases miss. It finds the tests by their use of this crate.
//!
//! `OVERSHOT_FUZZ_CASES` asks for so many other cases. Both it and `OVERSHOT_FUZZ_SEED`, as a test printed them, repeat its run.

use std::sync::LazyLock;

const CASES_VARIABLE: &str = "OVERSHOT_FUZZ_CASES";
const SEED_VARIABLE: &str = "OVERSHOT_FUZZ_SEED";
const SUITE_SEED: u64 = 7;

/// Cases that a soak asks for; `None` in the suite.
pub fn asked_cases() -> Option<usize> {
    asked(CASES_VARIABLE)
}

/// Cases to run: `in_the_suite`, unless a soak asks for another number.
pub fn cases(in_the_suite: usize) -> usize {
    asked_cases().unwrap_or(in_the_suite)
}

/// One for all tests of a process, or the variable could not repeat it.
static SEED: LazyLock<u64> = LazyLock::new(|| {
    let fresh = || asked_cases().map(|_| fastrand::u64(..));
    asked(SEED_VARIABLE).or_else(fresh).unwrap_or(SUITE_SEED)
});

/// What to draw everything from. Printed beside the test's name, to be seen when it fails.
pub fn seed() -> u64 {
    let cases = asked_cases().map_or(String::new(), |cases| format!("{CASES_VARIABLE}={cases} "));
    println!("{}: {cases}{SEED_VARIABLE}={}", std::thread::current().name().unwrap_or("test"), *SEED);
    *SEED
}

/// [`seed`] as a source of numbers.
pub fn rng() -> fastrand::Rng {
    fastrand::Rng::with_seed(seed())
}

/// A number in the environment of the tests.
fn asked<T: std::str::FromStr>(variable: &str) -> Option<T> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is `{text}`, which is not a number of cases or a seed")),
    )
}
