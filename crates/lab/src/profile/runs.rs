//! A profile out of the runs of a decode sweep: of an engine in this process the step trace tells device and host apart;
//! over HTTP only the whole step is seen; a backend that times its kernels tells their families apart.

use super::{Family, HOST_GAP, Profile, RunsByBatch, StepClock, largest_first};
use crate::stats::Sample;
use crate::sweep::{RunKey, RunRecord};
use crate::{LabError, Measurement, Metric, Point, Settings};
use std::collections::{BTreeMap, BTreeSet};

/// The family of all that the backend computes, where its kernels are not told apart.
pub const DEVICE: &str = "device";

/// # Errors
/// No run of a decode point has a step time.
pub fn profile_of_runs(
    subject: &str,
    settings: Settings,
    records: &[RunRecord],
) -> Result<Profile, LabError> {
    let mut step_ms = RunsByBatch::new();
    let mut runs: Vec<(u32, BTreeMap<String, Part>)> = Vec::new();
    for record in records {
        let RunKey::Round { point: Point::Decode { streams }, .. } = record.key else { continue };
        let step = record.measurement.get(Metric::StepMs);
        let (Ok(batch), Some(step)) = (u32::try_from(streams), step) else { continue };
        step_ms.entry(batch).or_default().push(step);
        runs.push((batch, parts(&record.measurement)));
    }
    if step_ms.is_empty() {
        let what = "no run has a step time: streams must overlap long enough to be timed".into();
        return Err(LabError::BadProfile { subject: subject.to_owned(), what });
    }
    // Where one run cannot tell, families would be of other runs than the step.
    let names: BTreeSet<&String> = match runs.iter().any(|(_, parts)| parts.is_empty()) {
        true => BTreeSet::new(),
        false => runs.iter().flat_map(|(_, parts)| parts.keys()).collect(),
    };
    let families = names.into_iter().map(|name| family(name, &runs));
    let mut families = families.collect::<Result<Vec<_>, _>>()?;
    largest_first(&mut families);
    Profile::new(subject, settings, StepClock::Wall, step_ms, families)
}

/// What a run says of a family.
#[derive(Clone, Copy, Default)]
struct Part {
    ms: f64,
    limit_ms: Option<f64>,
}

/// By family; empty when only the whole step was seen.
fn parts(measurement: &Measurement) -> BTreeMap<String, Part> {
    let get = |metric| measurement.get(metric);
    let (Some(device_ms), Some(gap_ms)) = (get(Metric::DeviceMs), get(Metric::HostGapMs)) else {
        return BTreeMap::new();
    };
    let timed = measurement.family_ms.iter().map(|(name, ms)| {
        let limit_ms = measurement.family_limit_ms.get(name).copied();
        (name.clone(), Part { ms: *ms, limit_ms })
    });
    let mut parts: BTreeMap<String, Part> = timed.collect();
    if parts.is_empty() {
        parts.insert(DEVICE.into(), Part { ms: device_ms, limit_ms: get(Metric::LimitMs) });
    }
    parts.insert(HOST_GAP.into(), Part { ms: gap_ms, limit_ms: None });
    parts
}

fn family(name: &str, runs: &[(u32, BTreeMap<String, Part>)]) -> Result<Family, LabError> {
    let (mut step_ms, mut limits) = (RunsByBatch::new(), RunsByBatch::new());
    for (batch, parts) in runs {
        let part = parts.get(name).copied().unwrap_or_default();
        step_ms.entry(*batch).or_default().push(part.ms);
        if let Some(limit_ms) = part.limit_ms {
            limits.entry(*batch).or_default().push(limit_ms);
        }
    }
    let median = |(batch, limits)| Ok((batch, Sample::new("limits", limits)?.median()));
    let roofline_ms = limits.into_iter().map(median).collect::<Result<_, LabError>>()?;
    Ok(Family { name: name.to_owned(), step_ms, roofline_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut timed = engine(0, 8, 9.0);
        timed.measurement.family_ms = BTreeMap::from([("head".into(), 1.0), ("experts up".into(), 7.0)]);
        timed.measurement.family_limit_ms = BTreeMap::from([("experts up".into(), 2.0)]);
        let profile = profile_of_runs("timed", Settings::new(), &[timed]).unwrap();
        let names: Vec<&str> = profile.families().iter().map(|family| family.name.as_str()).collect();
        assert_eq!(names, ["experts up", "head", HOST_GAP]);
        assert_eq!(profile.family("experts up").unwrap().roofline_ms[&8], 2.0);
        let server = [record(0, 4, &[(Metric::StepMs, 7.0)])];
        assert!(profile_of_runs("server", Settings::new(), &server).unwrap().families().is_empty());
        let told = profile_of_runs("server", Settings::new(), &[record(0, 4, &[])]).unwrap_err().to_string();
        assert!(told.contains("no run has a step time"), "{told}");
    }
}
