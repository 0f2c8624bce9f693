//! Where results go: a line per run on the error stream, and at the end text or JSON, a plot, a Markdown file.

use crate::failure::{bad_input, note, one_line};
use anyhow::Context;
use clap::Args;
use overshot_lab::report::{self, Form, Summary, number};
use overshot_lab::sweep::{Progress, RunKey, RunRecord};
use overshot_lab::{Metric, Settings};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Args, Clone, Debug)]
pub struct Outputs {
    /// Write a plot of all points to this file
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,

    /// Write the tables to this file, as Markdown
    #[arg(long, value_name = "FILE.md")]
    markdown: Option<PathBuf>,

    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

impl Outputs {
    /// That files can be written is found out before hours of measuring, not after.
    pub fn check(&self) -> anyhow::Result<()> {
        for (flag, path) in [("--svg", &self.svg), ("--markdown", &self.markdown)] {
            let Some(path) = path else { continue };
            let folder =
                path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            if path.is_dir() || !folder.is_dir() {
                return Err(bad_input(format!("{flag} {}: there is no place for this file", path.display())));
            }
        }
        Ok(())
    }

    pub fn write(
        &self,
        name: &str,
        settings: &Settings,
        summary: &Summary,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        let subtitle = subtitle(settings);
        if let Some(path) = &self.svg {
            let plot = report::plot(summary, name, &subtitle).svg();
            std::fs::write(path, plot).with_context(|| format!("cannot write {}", path.display()))?;
        }
        if let Some(path) = &self.markdown {
            let mut text = format!("## {}\n\n{subtitle}\n", one_line(name)).into_bytes();
            report::write(summary, Form::Markdown, &mut text)?;
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        if self.json {
            #[derive(Serialize)]
            struct Report<'a> {
                name: &'a str,
                settings: &'a Settings,
                #[serde(flatten)]
                summary: &'a Summary,
            }
            writeln!(out, "{}", serde_json::to_string(&Report { name, settings, summary })?)?;
            return Ok(());
        }
        writeln!(out, "{}\n{}", one_line(name), one_line(&subtitle))?;
        let mut text = Vec::new();
        report::write(summary, Form::Terminal, &mut text)?;
        // Notes may quote a server.
        for line in String::from_utf8_lossy(&text).lines() {
            writeln!(out, "{}", one_line(line))?;
        }
        Ok(())
    }
}

/// What the name does not say already.
fn subtitle(settings: &Settings) -> String {
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

    #[test]
    fn places_for_files_are_looked_at_first() {
        let outputs = Outputs { svg: Some("no/such/folder/x.svg".into()), markdown: None, json: false };
        assert!(outputs.check().unwrap_err().to_string().contains("--svg no/such/folder/x.svg"));
    }
}
