//! A run's times by family of kernels, from steps that were asked for them.

use overshot_backend::Family;
use overshot_lab::stats::Sample;
use overshot_lab::{LabError, Measurement, Metric};
use std::collections::BTreeMap;
use std::time::Duration;

/// Steps whose time is told by family, after those that count: the events between families would be part of these.
pub const FAMILY_STEPS: usize = 5;

/// The median of each family over such steps; none where the backend cannot tell them apart.
///
/// # Errors
/// Times that are no numbers.
pub fn set_families<'a>(
    measurement: &mut Measurement,
    steps: impl IntoIterator<Item = &'a [(Family, Duration)]>,
) -> Result<(), LabError> {
    let mut times: BTreeMap<Family, Vec<f64>> = BTreeMap::new();
    for (family, time) in steps.into_iter().flatten() {
        times.entry(*family).or_default().push(time.as_secs_f64() * 1e3);
    }
    for (family, ms) in times {
        measurement.family_ms.insert(family.to_string(), Sample::new("family times", ms)?.median());
    }
    Ok(())
}

/// The median of how long peers of the first rank waited in such steps; nothing where there are none.
///
/// # Errors
/// Times that are no numbers.
pub fn set_peers_wait(
    measurement: &mut Measurement,
    waits: impl IntoIterator<Item = Duration>,
) -> Result<(), LabError> {
    let ms: Vec<f64> = waits.into_iter().map(|wait| wait.as_secs_f64() * 1e3).collect();
    if !ms.is_empty() {
        measurement.set(Metric::PeersWaitMs, Sample::new("peers' waits", ms)?.median());
    }
    Ok(())
}
