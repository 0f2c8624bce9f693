//! What a sweep shows: a line per run on the error stream while it lasts, and at the end its summary.

use crate::failure::note;
use crate::outputs::Report;
use overshot_lab::profile::{self, analysis::Analysis};
use overshot_lab::report::{self, Form, Plot, Summary, number};
use overshot_lab::sweep::{Progress, RunKey, RunRecord};
use overshot_lab::{Metric, Settings};
use serde::Serialize;
use std::io::{self, Write};

/// A sweep's summary, and what it was measured on.
pub struct SweepReport<'a> {
    pub name: &'a str,
    pub settings: &'a Settings,
    pub summary: &'a Summary,
    /// Of decode steps by family of kernels, where they were told apart.
    pub profile: Option<&'a Analysis>,
}

impl Report for SweepReport<'_> {
    fn title(&self) -> &str {
        self.name
    }

    fn subtitle(&self) -> String {
        subtitle(self.settings)
    }

    fn plot(&self) -> Plot {
        report::plot(self.summary, self.name, &self.subtitle())
    }

    fn text(&self, form: Form, out: &mut dyn Write) -> io::Result<()> {
        report::write(self.summary, form, out)?;
        self.profile.map_or(Ok(()), |analysis| profile::text::write(analysis, form, out))
    }

    fn json(&self) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct Json<'a> {
            name: &'a str,
            settings: &'a Settings,
            #[serde(flatten)]
            summary: &'a Summary,
            #[serde(skip_serializing_if = "Option::is_none")]
            profile: Option<&'a Analysis>,
        }
        let SweepReport { name, settings, summary, profile } = *self;
        serde_json::to_string(&Json { name, settings, summary, profile })
    }
}

/// What the name does not say already.
pub fn subtitle(settings: &Settings) -> String {
    let told = ["prompt_tokens", "max_tokens", "numerics", "machine", "build"];
    let parts =
        told.iter().filter_map(|name| Some(format!("{} {}", name.replace('_', " "), settings.get(*name)?)));
    parts.collect::<Vec<_>>().join("; ")
}

pub fn progress(progress: Progress<'_>) {
    match progress {
        Progress::WarmingUp => note("warming up"),
        Progress::Begins { .. } => {}
        Progress::Ended { done, all, record } => note(&line(done, all, record)),
    }
}

/// `[ 7/47] decode, 16 streams, round 1: 612 tok/s, step 26.1 ms`
fn line(done: usize, all: usize, record: &RunRecord) -> String {
    let phase = match record.key {
        RunKey::Noise { block, place, .. } => {
            format!("A/A block {}, {}", block + 1, ["A", "B", "B", "A"][place % 4])
        }
        RunKey::Pair { block, place, .. } => {
            format!("block {}, {}", block + 1, ["A", "B", "B", "A"][place % 4])
        }
        RunKey::Round { round, .. } => format!("round {}", round + 1),
    };
    let shown = [Metric::TokensPerS, Metric::PromptTokensPerS, Metric::StepMs, Metric::FirstTokenMs];
    let numbers = shown.iter().filter_map(|metric| {
        Some(format!("{} {}", number(record.measurement.get(*metric)?), metric.title()))
    });
    let mut line =
        format!("[{done:>width$}/{all}] {}, {phase}: ", record.key.point(), width = all.to_string().len());
    line += &numbers.collect::<Vec<_>>().join(", ");
    let errors: u64 = record.measurement.errors.values().sum();
    if errors > 0 {
        line += &format!(", {errors} failed");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use overshot_lab::{Measurement, Point};

    #[test]
    fn runs_are_told_in_a_line() {
        let mut measurement = Measurement::default();
        measurement.set(Metric::TokensPerS, 612.34);
        measurement.set(Metric::StepMs, 26.13);
        let key = RunKey::Round { round: 0, point: Point::Decode { streams: 16 } };
        let told = line(7, 47, &RunRecord { key, measurement });
        assert_eq!(told, "[ 7/47] decode, 16 streams, round 1: 612 tok/s, 26.1 step ms");
    }
}
