//! A profile out of the runs of a decode sweep: of an engine in this process the step trace tells device and host apart;
//! over HTTP only the whole step is seen.

use super::{Family, HOST_GAP, Profile, RunsByBatch, StepClock};
use crate::stats::Sample;
use crate::sweep::{RunKey, RunRecord};
use crate::{LabError, Metric, Point, Settings};
use std::collections::BTreeMap;

/// The family of all that the backend computes.
pub const DEVICE: &str = "device";

/// # Errors
/// No run of a decode point has a step time.
pub fn profile_of_runs(
    subject: &str,
    settings: Settings,
    records: &[RunRecord],
) -> Result<Profile, LabError> {
    let mut step_ms = RunsByBatch::new();
    let mut device =
        Family { name: DEVICE.into(), step_ms: RunsByBatch::new(), roofline_ms: BTreeMap::new() };
    let mut host_gap = Family { name: HOST_GAP.into(), ..device.clone() };
    let mut limits = RunsByBatch::new();
    let mut has_families = true;
    for record in records {
        let RunKey::Round { point: Point::Decode { streams }, .. } = record.key else { continue };
        let get = |metric| record.measurement.get(metric);
        let (Ok(batch), Some(step)) = (u32::try_from(streams), get(Metric::StepMs)) else { continue };
        step_ms.entry(batch).or_default().push(step);
        match (get(Metric::DeviceMs), get(Metric::HostGapMs)) {
            (Some(device_ms), Some(gap_ms)) => {
                device.step_ms.entry(batch).or_default().push(device_ms);
                host_gap.step_ms.entry(batch).or_default().push(gap_ms);
            }
            _ => has_families = false,
        }
        limits.entry(batch).or_default().extend(get(Metric::LimitMs));
    }
    for (batch, limits) in limits.into_iter().filter(|(_, limits)| !limits.is_empty()) {
        device.roofline_ms.insert(batch, Sample::new("limits", limits)?.median());
    }
    if step_ms.is_empty() {
        let what = "no run has a step time: streams must overlap long enough to be timed".into();
        return Err(LabError::BadProfile { subject: subject.to_owned(), what });
    }
    let families = if has_families { vec![device, host_gap] } else { Vec::new() };
    Profile::new(subject, settings, StepClock::Wall, step_ms, families)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Measurement;

    fn record(round: usize, streams: usize, metrics: &[(Metric, f64)]) -> RunRecord {
        let mut measurement = Measurement::default();
        metrics.iter().for_each(|(metric, value)| measurement.set(*metric, *value));
        RunRecord { key: RunKey::Round { round, point: Point::Decode { streams } }, measurement }
    }

    #[test]
    fn an_engine_has_families_and_a_server_has_none() {
        let engine = |round, streams, ms| {
            let limit = (Metric::LimitMs, ms / 4.0);
            let metrics =
                [(Metric::StepMs, ms), (Metric::DeviceMs, ms - 1.0), (Metric::HostGapMs, 1.0), limit];
            record(round, streams, &metrics)
        };
        let records = [engine(0, 1, 5.0), engine(0, 8, 9.0), engine(1, 1, 5.5), engine(1, 8, 9.5)];
        let profile = profile_of_runs("engine", Settings::new(), &records).unwrap();
        assert_eq!(profile.step_ms()[&1], [5.0, 5.5]);
        let device = profile.family(DEVICE).unwrap();
        assert_eq!((device.median_ms(8), device.roofline_ms[&8]), (Some(8.25), 2.3125));
        assert_eq!(profile.family(HOST_GAP).unwrap().median_ms(8), Some(1.0));
        let server = [record(0, 4, &[(Metric::StepMs, 7.0)])];
        assert!(profile_of_runs("server", Settings::new(), &server).unwrap().families().is_empty());
        let told = profile_of_runs("server", Settings::new(), &[record(0, 4, &[])]).unwrap_err().to_string();
        assert!(told.contains("no run has a step time"), "{told}");
    }
}
