//! Result files of other tools, read into our runs: the kind is found by what is in the file, never by its name. A number
//! keeps its meaning or is left out; nothing is guessed.
//!
//! One file per family of tools. Where tools describe one thing by different words, `docs/lab-ab.md` has the table.

mod aiperf;
mod fields;
mod guidellm;
mod hyperfine;
mod llama_bench;
mod serving;
mod tables;

use crate::sweep::{Results, RunKey, RunRecord};
use crate::{LabError, Measurement, Point, Settings};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Runs of one file: a million repetitions of a program are no measurement that somebody waited for.
const RUNS_MAX: usize = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tool {
    Vllm,
    Sglang,
    Aiperf,
    Guidellm,
    LlamaBench,
    Hyperfine,
}

impl Tool {
    pub const ALL: [Tool; 6] =
        [Tool::Vllm, Tool::Sglang, Tool::Aiperf, Tool::Guidellm, Tool::LlamaBench, Tool::Hyperfine];
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tool::Vllm => "vLLM `bench serve` (json)",
            Tool::Sglang => "SGLang `bench_serving` (jsonl)",
            Tool::Aiperf => "AIPerf or genai-perf (profile_export json)",
            Tool::Guidellm => "GuideLLM (json)",
            Tool::LlamaBench => "llama-bench (json, jsonl, csv, md)",
            Tool::Hyperfine => "hyperfine (json)",
        })
    }
}

/// Runs that were measured under the same settings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    pub settings: Settings,
    pub runs: Vec<Run>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    pub point: Point,
    pub measurement: Measurement,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Import {
    pub tool: Tool,
    /// Of the file's bytes: the same file is not counted twice.
    pub check: u64,
    pub groups: Vec<Group>,
}

/// # Errors
/// A file that cannot be read, is of no known kind, is damaged, or has no number that can be compared.
pub fn read(path: &Path, concurrency: Option<usize>) -> Result<Import, LabError> {
    let bytes = crate::journal::read_regular(path)?;
    understand(&bytes, concurrency).map_err(|what| LabError::Import { path: path.to_owned(), what })
}

/// `concurrency`: of runs that do not say it themselves.
///
/// # Errors
/// One sentence about what is wrong with the file.
pub fn understand(bytes: &[u8], concurrency: Option<usize>) -> Result<Import, String> {
    let text =
        std::str::from_utf8(bytes).map_err(|_| format!("it is not text, and so none of {}", kinds()))?;
    let text = text.trim_start_matches('\u{feff}').trim();
    if text.is_empty() {
        return Err("the file is empty".into());
    }
    let (tool, runs) = if text.starts_with(['{', '[']) {
        from_json(text, concurrency)?
    } else if let Some(rows) = tables::llama_bench_rows(text)? {
        (Tool::LlamaBench, llama_bench::runs_of_rows(&rows)?)
    } else {
        return Err(unknown());
    };
    let mut groups: Vec<Group> = Vec::new();
    if runs.len() > RUNS_MAX {
        return Err(format!("it has {} runs: at most {RUNS_MAX} are read", runs.len()));
    }
    for (mut settings, run) in runs {
        settings.insert("tool".into(), tool.to_string());
        match groups.iter().position(|group| group.settings == settings) {
            Some(known) => groups[known].runs.push(run),
            None if groups.len() < GROUPS_MAX => groups.push(Group { settings, runs: vec![run] }),
            None => return Err(format!("it has more than {GROUPS_MAX} different settings")),
        }
    }
    if groups.is_empty() {
        return Err(format!("it looks like {tool} and has no finished run"));
    }
    Ok(Import { tool, check: crate::journal::fnv1a(bytes), groups })
}

const GROUPS_MAX: usize = 1000;

/// What each reader gives: runs with their settings.
type Runs = Vec<(Settings, Run)>;

fn from_json(text: &str, concurrency: Option<usize>) -> Result<(Tool, Runs), String> {
    let items = fields::json_items(text)?;
    let first = items.first().ok_or("the file holds an empty list")?;
    let tool = tool_of(first).ok_or_else(unknown)?;
    let mut runs = Vec::new();
    for item in &items {
        if tool_of(item) != Some(tool) {
            return Err(format!("its first entry is of {tool}, and another one is not"));
        }
        runs.extend(match tool {
            Tool::Vllm | Tool::Sglang => serving::runs(item, concurrency)?,
            Tool::Aiperf => aiperf::runs(item, concurrency)?,
            Tool::Guidellm => guidellm::runs(item, concurrency)?,
            Tool::LlamaBench => llama_bench::runs(item)?,
            Tool::Hyperfine => hyperfine::runs(item)?,
        });
    }
    Ok((tool, runs))
}

/// By the fields that only this tool writes together.
fn tool_of(item: &Value) -> Option<Tool> {
    let has = |name: &str| item.get(name).is_some();
    let is_list = |name: &str, of: &str| {
        item.get(name)
            .and_then(Value::as_array)
            .is_some_and(|list| list.iter().all(|one| one.get(of).is_some()))
    };
    if has("output_throughput") && has("request_throughput") && has("duration") {
        let is_vllm = has("model_id") || has("tokenizer_id") || has("endpoint_type");
        return Some(if is_vllm { Tool::Vllm } else { Tool::Sglang });
    }
    if has("input_config") && (has("request_throughput") || has("request_latency")) {
        return Some(Tool::Aiperf);
    }
    if is_list("benchmarks", "metrics") {
        return Some(Tool::Guidellm);
    }
    if has("n_prompt") && has("n_gen") && has("avg_ts") {
        return Some(Tool::LlamaBench);
    }
    is_list("results", "command").then_some(Tool::Hyperfine)
}

fn kinds() -> String {
    Tool::ALL.map(|tool| tool.to_string()).join(", ")
}

fn unknown() -> String {
    format!("it is none of the result files that are known: {}", kinds())
}

/// Adds a group to a results file, each run as the next round of its point. Returns how many were added.
///
/// # Errors
/// The results hold this very file already, or cannot be written.
pub fn append(import: &Import, group: &Group, path: &Path, results: &mut Results) -> Result<usize, LabError> {
    let note = format!("read from a file with check {:016x}", import.check);
    let mut next: BTreeMap<Point, usize> = BTreeMap::new();
    for record in results.records() {
        if record.measurement.notes.contains(&note) {
            let what = "its runs are in the results already: adding them again would count them twice".into();
            return Err(LabError::Import { path: path.to_owned(), what });
        }
        if let RunKey::Round { round, point } = record.key {
            let after = next.entry(point).or_default();
            *after = (*after).max(round + 1);
        }
    }
    for run in &group.runs {
        let round = next.entry(run.point).or_default();
        let mut measurement = run.measurement.clone();
        measurement.notes.push(note.clone());
        results.append(RunRecord { key: RunKey::Round { round: *round, point: run.point }, measurement })?;
        *round += 1;
    }
    Ok(group.runs.len())
}
