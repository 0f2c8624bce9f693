//! `overshot doctor`: what this machine has and which code paths will run. Looks, and changes nothing; GPUs are asked by a process
//! of their own (`doctor_gpu.rs`).

use crate::args::{AnswerFlags, BackendChoice, ComputeFlags};
use crate::doctor_gpu::{self, Gpu};
use crate::embedded::embedded_model;
use crate::failure::sentence;
use crate::interrupt::StopRequest;
use crate::session::{Session, Timing};
use crate::table::bytes;
use anyhow::bail;
use clap::Args;
use overshot_backend_cpu::Isa;
use overshot_chat::{Message, RenderOptions};
use serde::Serialize;
use std::io::Write;
use std::num::NonZeroUsize;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  overshot doctor
  overshot doctor --json | jq .cpu.features";

/// Show what this machine has and which code paths will run.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,

    /// What the process of its own is started with: ask the driver, print one JSON object
    #[arg(long, hide = true)]
    ask_driver: bool,
}

#[derive(Serialize)]
struct Report {
    version: &'static str,
    cpu: Cpu,
    memory: Memory,
    gpu: Gpu,
    built_in_model: BuiltInModel,
}

#[derive(Serialize)]
struct Cpu {
    name: Option<String>,
    /// Cores that this process may use.
    cores: usize,
    /// Of the instruction sets that matter to inference, those that are there.
    features: Vec<&'static str>,
    /// What the kernels will use.
    path: String,
}

#[derive(Serialize)]
struct Memory {
    total_bytes: Option<u64>,
    available_bytes: Option<u64>,
}

#[derive(Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
enum BuiltInModel {
    Absent,
    /// It opened and gave the right answer.
    Healthy {
        start_ms: f64,
        answer: Timing,
    },
    Broken {
        reason: String,
    },
}

/// # Errors
/// The built-in model is there and does not work.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
    if arguments.ask_driver {
        writeln!(out, "{}", serde_json::to_string(&doctor_gpu::ask())?)?;
        return Ok(());
    }
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        cpu: Cpu {
            name: cpu_name(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            features: cpu_features(),
            path: Isa::detect().to_string(),
        },
        memory: memory(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default()),
        gpu: Gpu::look(),
        built_in_model: built_in_model(),
    };
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        write_text(&report, out)?;
    }
    match report.built_in_model {
        BuiltInModel::Broken { reason } => bail!("the built-in model is broken: {reason}"),
        BuiltInModel::Absent | BuiltInModel::Healthy { .. } => Ok(()),
    }
}

fn write_text(report: &Report, out: &mut dyn Write) -> std::io::Result<()> {
    let Report { version, cpu, memory, gpu, built_in_model } = report;
    let amount = |known: Option<u64>| known.map_or("unknown".to_owned(), bytes);
    let model = match built_in_model {
        BuiltInModel::Absent => "none: this binary was built without one".to_owned(),
        BuiltInModel::Broken { reason } => format!("broken: {reason}"),
        BuiltInModel::Healthy { start_ms, answer } => format!(
            "healthy: ready in {start_ms:.0} ms, right answer in {:.0} ms more",
            answer.total_seconds * 1e3
        ),
    };
    writeln!(out, "overshot        {version}")?;
    writeln!(out, "processor       {}, {} cores", cpu.name.as_deref().unwrap_or("unknown"), cpu.cores)?;
    writeln!(out, "instructions    {}", cpu.features.join(" "))?;
    writeln!(out, "kernels         {}", cpu.path)?;
    writeln!(
        out,
        "memory          {} available of {}",
        amount(memory.available_bytes),
        amount(memory.total_bytes)
    )?;
    gpu.write(out)?;
    writeln!(out, "built-in model  {model}")
}

/// Instruction sets that some kernel of this project uses, or might.
fn cpu_features() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    {
        let known = [
            ("avx2", is_x86_feature_detected!("avx2")),
            ("fma", is_x86_feature_detected!("fma")),
            ("f16c", is_x86_feature_detected!("f16c")),
            ("avx512f", is_x86_feature_detected!("avx512f")),
            ("avx512bw", is_x86_feature_detected!("avx512bw")),
            ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
            ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
        ];
        known.into_iter().filter(|(_, present)| *present).map(|(name, _)| name).collect()
    }
    #[cfg(not(target_arch = "x86_64"))]
    Vec::new()
}

pub fn cpu_name() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}

/// Reads the text of `/proc/meminfo`, whose numbers are in KiB.
fn memory(meminfo: &str) -> Memory {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
    };
    Memory { total_bytes: field("MemTotal"), available_bytes: field("MemAvailable") }
}

fn built_in_model() -> BuiltInModel {
    if embedded_model().is_none() {
        return BuiltInModel::Absent;
    }
    match ask_built_in_model() {
        Ok(healthy) => healthy,
        Err(error) => BuiltInModel::Broken { reason: sentence(&error) },
    }
}

/// One question through everything that an answer needs: weights, kernels, cache, tokenizer, parser.
fn ask_built_in_model() -> anyhow::Result<BuiltInModel> {
    const QUESTION: &str = "What is the capital of France?";
    const ANSWER: &str = "The capital of France is Paris.";
    let started = Instant::now();
    // On the processor: what GPUs do is told beside it.
    let compute = ComputeFlags { backend: BackendChoice::Cpu, ..ComputeFlags::default() };
    let flags = AnswerFlags { max_tokens: NonZeroUsize::new(32), compute, ..AnswerFlags::default() };
    let mut session = Session::start(&flags)?;
    let start_ms = started.elapsed().as_secs_f64() * 1e3;
    let messages = [Message::user(QUESTION)];
    let answer = session.answer(&messages, &RenderOptions::default(), &StopRequest::default(), |_| Ok(()))?;
    if answer.message.content != ANSWER {
        bail!("to `{QUESTION}` it answered {:?}", answer.message.content);
    }
    Ok(BuiltInModel::Healthy { start_ms, answer: answer.timing })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        let memory = memory("MemTotal:       24580468 kB\nMemFree: 1 kB\nMemAvailable:   1024 kB\n");
        assert_eq!((memory.total_bytes, memory.available_bytes), (Some(25_170_399_232), Some(1_048_576)));
        assert_eq!(super::memory("").total_bytes, None);
    }

    #[test]
    #[cfg(feature = "embedded-model")]
    fn the_report_is_json_and_text() {
        let print = |json: bool| {
            let mut out = Vec::new();
            run(&Arguments { json, ask_driver: false }, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let value: serde_json::Value = serde_json::from_str(&print(true)).unwrap();
        assert!(value["cpu"]["cores"].as_u64().unwrap() >= 1);
        assert_eq!(value["built_in_model"]["state"], "healthy");
        assert!(print(false).contains("kernels"));
    }
}
