//! From the times of a run's steps to what a benchmark says of them, whoever ran the steps.

use overshot_lab::stats::Sample;
use overshot_lab::{LabError, Measurement, Metric};
use std::time::Duration;

/// One step that counts.
pub struct StepTime {
    /// From the end of the step before it to its own.
    pub period: Duration,
    pub device: Duration,
    /// In which the device had nothing to do.
    pub gap: Duration,
}

/// Of steps that delivered so many tokens together.
///
/// # Errors
/// No steps.
pub fn step_times(steps: &[StepTime], tokens: usize) -> Result<Measurement, LabError> {
    let ms = |time: fn(&StepTime) -> Duration| {
        Sample::new("step times", steps.iter().map(|step| time(step).as_secs_f64() * 1e3).collect())
    };
    let periods = ms(|step| step.period)?;
    let seconds = periods.mean() * steps.len() as f64 / 1e3;
    let mut measurement = Measurement::default();
    measurement.set(Metric::StepMs, periods.median());
    measurement.set(Metric::StepMsP99, periods.quantile(0.99));
    measurement.set(Metric::DeviceMs, ms(|step| step.device)?.median());
    measurement.set(Metric::HostGapMs, ms(|step| step.gap)?.median());
    measurement.set(Metric::AnswerTokens, tokens as f64);
    measurement.set(Metric::MeasuredS, seconds);
    measurement.set(Metric::TokensPerS, tokens as f64 / seconds);
    measurement.set(Metric::Steps, steps.len() as f64);
    Ok(measurement)
}
