//! Statistics that Nsight Systems exports as CSV (`nsys stats --format csv`): `cuda_gpu_trace`, a line for everything that
//! ran, or `cuda_gpu_kern_sum`, a line for every kernel with its time in all. Columns are found by the names in the head
//! line, which also have the unit; what `nsys` prints before is skipped.

use super::TracedSteps;
use super::csv::cells;
use super::steps::{self, StepRule, longest};
use super::timeline::{Ran, Timeline};
use crate::profile::StepClock;
use crate::profile::families::{FamilyRules, OTHER};
use std::collections::BTreeMap;
use std::io::{BufRead, Read};

const LINE_BYTES_MAX: u64 = 1 << 20;
const LINES_BEFORE_HEAD_MAX: usize = 200;

/// # Errors
/// The rest of a sentence: no such statistics, a line that is cut, no steps.
pub fn read(reader: &mut dyn BufRead, rule: &StepRule, rules: &FamilyRules) -> Result<TracedSteps, String> {
    let mut lines = Lines { reader, number: 0 };
    for _ in 0..LINES_BEFORE_HEAD_MAX {
        let Some(line) = lines.next()? else { break };
        let head = Head(cells(&line));
        let Some(name) = head.column("name") else { continue };
        if let (Some(start), Some(duration)) = (head.timed("start"), head.timed("duration")) {
            let device = head.column("device");
            return read_trace(
                &mut lines,
                &head,
                &TraceColumns { name, start, duration, device },
                rule,
                rules,
            );
        }
        if let Some(total) = head.timed("total time") {
            return read_sum(&mut lines, &head, name, total, rule, rules);
        }
    }
    Err("neither a chrome trace (JSON, perhaps packed by gzip) nor cuda_gpu_trace or cuda_gpu_kern_sum as CSV of nsys stats"
        .into())
}

struct TraceColumns {
    name: usize,
    start: Timed,
    duration: Timed,
    device: Option<usize>,
}

/// A column of times.
#[derive(Clone, Copy)]
struct Timed {
    column: usize,
    us_per_unit: f64,
}

struct Head(Vec<String>);

impl Head {
    fn column(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|cell| cell.trim().eq_ignore_ascii_case(name))
    }

    /// `Start (ns)` and its like.
    fn timed(&self, name: &str) -> Option<Timed> {
        self.0.iter().enumerate().find_map(|(column, cell)| {
            let (found, unit) = cell.trim().strip_suffix(')')?.rsplit_once('(')?;
            let us_per_unit = match unit {
                "ns" => 1e-3,
                "us" | "usec" | "\u{b5}s" => 1.0,
                "ms" | "msec" => 1e3,
                "s" | "sec" => 1e6,
                _ => return None,
            };
            found.trim().eq_ignore_ascii_case(name).then_some(Timed { column, us_per_unit })
        })
    }
}

struct Lines<'a> {
    reader: &'a mut dyn BufRead,
    number: usize,
}

impl Lines<'_> {
    fn next(&mut self) -> Result<Option<String>, String> {
        let mut bytes = Vec::new();
        let read = (&mut *self.reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes);
        self.number += 1;
        match read {
            Err(error) => Err(format!("cannot be read: {error}")),
            Ok(0) => Ok(None),
            Ok(length) if length as u64 == LINE_BYTES_MAX => {
                Err(format!("line {} is longer than any line of statistics", self.number))
            }
            Ok(_) => Ok(Some(String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_owned())),
        }
    }

    /// The cells of the next line below the head; an empty line ends a report.
    fn row(&mut self, head: &Head) -> Result<Option<Vec<String>>, String> {
        let Some(line) = self.next()?.filter(|line| !line.trim().is_empty()) else { return Ok(None) };
        let cells = cells(&line);
        if cells.len() < head.0.len() {
            let (have, need) = (cells.len(), head.0.len());
            let number = self.number;
            return Err(format!(
                "line {number} has {have} cells where the head has {need}: was the file cut short?"
            ));
        }
        Ok(Some(cells))
    }

    fn time(&self, cells: &[String], timed: Timed) -> Result<f64, String> {
        let text = cells[timed.column].trim();
        let time = text.parse().ok().filter(|time: &f64| time.is_finite() && *time >= 0.0);
        let shown: String = text.chars().take(40).collect();
        let time = time.ok_or_else(|| format!("line {}: `{shown}` is no time", self.number))?;
        Ok(time * timed.us_per_unit)
    }
}

fn read_trace(
    lines: &mut Lines<'_>,
    head: &Head,
    columns: &TraceColumns,
    rule: &StepRule,
    rules: &FamilyRules,
) -> Result<TracedSteps, String> {
    let mut timeline = Timeline::default();
    while let Some(cells) = lines.row(head)? {
        let start_us = lines.time(&cells, columns.start)?;
        let duration_us = lines.time(&cells, columns.duration)?;
        let name = timeline.name(cells[columns.name].trim())?;
        let device = columns.device.map_or("", |column| cells[column].trim());
        let place = timeline.place(device)?;
        timeline.push(Ran { start_us, duration_us, name, correlation: 0, place })?;
        if timeline.device.is_none() && !device.is_empty() {
            // `NVIDIA H200 (0)`: the number is the machine's.
            let card = device.rsplit_once(" (").map_or(device, |(card, _)| card);
            timeline.device = Some(card.to_owned());
        }
    }
    if timeline.ran.is_empty() {
        return Err("it has a head and no lines below".into());
    }
    steps::of_timeline(timeline, rule, rules)
}

fn read_sum(
    lines: &mut Lines<'_>,
    head: &Head,
    name: usize,
    total: Timed,
    rule: &StepRule,
    rules: &FamilyRules,
) -> Result<TracedSteps, String> {
    let StepRule::Count(steps) = rule else {
        return Err(
            "a sum over all steps: say with --steps how many there were, or export cuda_gpu_trace".into()
        );
    };
    let names: Vec<&str> = rules.names().collect();
    let mut family_ms = vec![0.0; names.len()];
    let mut unknown = Vec::new();
    while let Some(cells) = lines.row(head)? {
        let ms = lines.time(&cells, total)? / 1e3 / f64::from(steps.get());
        let kernel = cells[name].trim();
        let family = rules.family_of(kernel);
        family_ms[family] += ms;
        if names[family] == OTHER {
            unknown.push((kernel.to_owned(), ms));
        }
    }
    let step_ms: f64 = family_ms.iter().sum();
    if step_ms <= 0.0 {
        return Err("it has a head and no times below".into());
    }
    let families = names.iter().zip(family_ms).filter(|(_, ms)| *ms > 0.0);
    Ok(TracedSteps {
        clock: StepClock::Kernels,
        step_ms: vec![step_ms],
        families: families.map(|(name, ms)| ((*name).to_owned(), vec![ms])).collect::<BTreeMap<_, _>>(),
        device: None,
        sms: None,
        unknown: longest(unknown.into_iter().map(|(kernel, ms)| (kernel, ms / step_ms)).collect()),
        notes: vec![
            "a step is the sum of its kernels: what runs side by side counts twice, and no host gap is known"
                .into(),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::families::Pattern;
    use std::num::NonZeroU32;

    fn of(text: &str, rule: &StepRule) -> Result<TracedSteps, String> {
        read(&mut text.as_bytes(), rule, &FamilyRules::default())
    }

    const SUM: &str = "Processing [run.sqlite] with [cuda_gpu_kern_sum.py]...\n\n\
        Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n\
        75.0,30000000,860,1.0,1.0,1,1,0.0,\"void flash_fwd<int, 2>(float*)\"\n\
        25.0,10000000,860,1.0,1.0,1,1,0.0,my_kernel\n\n";

    #[test]
    fn sums_are_shared_out_over_the_steps() {
        let traced = of(SUM, &StepRule::Count(NonZeroU32::new(10).unwrap())).unwrap();
        assert_eq!((traced.step_ms, traced.clock), (vec![4.0], StepClock::Kernels));
        assert_eq!((traced.families["attention"][0], traced.families[OTHER][0]), (3.0, 1.0));
        assert_eq!(traced.unknown, [("my_kernel".to_owned(), 0.25)]);
        assert!(of(SUM, &StepRule::Found).unwrap_err().contains("--steps"));
    }

    #[test]
    fn a_trace_gives_steps() {
        let mut text = "Start (us),Duration (us),CorrId,GrdX,Device,Ctx,Strm,Name\n".to_owned();
        for step in 0..4 {
            let start = f64::from(step) * 1000.0;
            text += &format!("{start},600,1,8,NVIDIA H200 (0),1,7,\"fused_moe<a, b>\"\n");
            text += &format!("{},300,1,8,NVIDIA H200 (0),1,7,flash_decode\n", start + 610.0);
        }
        let traced = of(&text, &StepRule::Kernel(Pattern::new("moe").unwrap())).unwrap();
        assert_eq!((traced.step_ms.len(), traced.step_ms[0]), (3, 1.0));
        assert!((traced.families["experts"][1] - 0.6).abs() < 1e-9);
        assert!((traced.families["host gap"][1] - 0.1).abs() < 1e-9);
        assert_eq!(traced.device.as_deref(), Some("NVIDIA H200"));
    }

    #[test]
    fn what_are_no_statistics_is_told() {
        let count = StepRule::Count(NonZeroU32::MIN);
        let cut = &SUM[..SUM.len() - 20];
        for (text, part) in [
            ("my notes\n", "neither a chrome trace"),
            (cut, "cut short?"),
            ("Name,Total Time (ns)\n", "no times below"),
            ("Name,Total Time (ns)\nk,NaN\n", "`NaN` is no time"),
            ("Name,Total Time (parsec)\nk,1\n", "neither"),
            ("Name,Start (ns),Duration (ns)\n", "no lines below"),
        ] {
            let told = of(text, &count).unwrap_err();
            assert!(told.contains(part), "{text}: {told}");
        }
    }
}
