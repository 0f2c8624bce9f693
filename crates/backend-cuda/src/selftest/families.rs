//! Every family of kernels in turn, as one run.

use super::error::SelftestError;
use super::run::{self, Options};
use super::{matmul, prefill, sums};
use crate::cuda;
use crate::gpu::{CudaGpu, Gpu, KernelStore};
use serde_json::{Map, Value};
use std::io::Write;
use std::sync::Arc;

/// Checks and times decode attention, then whatever else a step launches; a pinned kernel of decode attention alone. A family that
/// is wrong does not keep the next from being checked, a device that fails does.
///
/// # Errors
/// Checks that failed, counted over all families; no device, or one that fails.
pub fn run_all(options: &Options, report: &mut dyn Write) -> Result<(), SelftestError> {
    let decode = run::run(options, report);
    if options.pin.is_some() {
        return decode;
    }
    let (seed, rounds) = (options.seed, options.rounds);
    let mut verdict = Verdict::of(decode)?;
    verdict.add(of_family("matmul", report, |lines| matmul::run(seed, lines)))?;
    verdict
        .add(of_family("prefill", report, |lines| prefill::run(&prefill::Options { seed, rounds }, lines)))?;
    if let Some(pair) = two_alike()? {
        verdict.add(of_family("sums", report, |lines| sums::run(&pair, lines)))?;
    }
    verdict.0.map_or(Ok(()), Err)
}

/// The first device and another of its kind.
fn two_alike() -> Result<Option<[Arc<dyn Gpu>; 2]>, SelftestError> {
    let devices = cuda::devices()?;
    let alike = |device: &cuda::DeviceFacts| device.sm == devices[0].sm;
    let Some(other) = devices.iter().skip(1).position(alike) else { return Ok(None) };
    let open = |ordinal: usize| -> Result<Arc<dyn Gpu>, SelftestError> {
        Ok(Arc::new(CudaGpu::open(ordinal as i32, KernelStore::built_in())?))
    };
    Ok(Some([open(0)?, open(other + 1)?]))
}

/// What was wrong so far.
struct Verdict(Option<SelftestError>);

impl Verdict {
    /// # Errors
    /// What ends the whole run.
    fn of(outcome: Result<(), SelftestError>) -> Result<Self, SelftestError> {
        let mut verdict = Verdict(None);
        verdict.add(outcome).map(|()| verdict)
    }

    fn add(&mut self, outcome: Result<(), SelftestError>) -> Result<(), SelftestError> {
        use SelftestError::{Misread, Wrong};
        self.0 = match (self.0.take(), outcome) {
            (before, Ok(())) => before,
            (Some(Wrong { failed, checked }), Err(Wrong { failed: more, checked: also })) => {
                Some(Wrong { failed: failed + more, checked: checked + also })
            }
            (_, Err(wrong @ (Wrong { .. } | Misread { .. }))) => Some(wrong),
            (_, Err(failure)) => return Err(failure),
        };
        Ok(())
    }
}

/// Runs a family's own checks, whose lines get its name as their kind.
fn of_family(
    kind: &str,
    report: &mut dyn Write,
    check: impl FnOnce(&mut dyn Write) -> Result<(), SelftestError>,
) -> Result<(), SelftestError> {
    let mut lines = Vec::new();
    let outcome = check(&mut lines);
    for line in String::from_utf8_lossy(&lines).lines() {
        let mut line: Map<String, Value> = serde_json::from_str(line).map_err(std::io::Error::from)?;
        line.insert("kind".into(), kind.into());
        writeln!(report, "{}", Value::Object(line))?;
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_families_are_counted_together_and_failures_end_the_run() {
        let wrong = |failed, checked| Err(SelftestError::Wrong { failed, checked });
        let mut verdict = Verdict::of(Err(SelftestError::Misread { kernels: 1 })).unwrap();
        verdict.add(Ok(())).unwrap();
        assert!(matches!(verdict.0, Some(SelftestError::Misread { kernels: 1 })));
        verdict.add(wrong(1, 5)).unwrap();
        verdict.add(wrong(2, 7)).unwrap();
        assert!(matches!(verdict.0, Some(SelftestError::Wrong { failed: 3, checked: 12 })));
        assert!(verdict.add(Err(std::io::Error::other("full").into())).is_err());
    }

    #[test]
    fn lines_of_a_family_are_named_whatever_comes_of_it() {
        let mut report = Vec::new();
        let outcome = of_family("sums", &mut report, |lines| {
            writeln!(lines, "{{\"ranks\":2,\"passed\":false}}")?;
            Err(SelftestError::Wrong { failed: 1, checked: 1 })
        });
        assert!(outcome.is_err());
        assert_eq!(String::from_utf8(report).unwrap(), "{\"ranks\":2,\"passed\":false,\"kind\":\"sums\"}\n");
    }
}
