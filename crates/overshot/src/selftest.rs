//! `overshot selftest`: whether this machine's GPU computes what it should, and how fast: the kernels that ship, family by family,
//! against float64 on fresh random inputs, what the driver says of decode attention against what we read and reckon, and times.
//! The checks are `overshot-backend-cuda`'s; this chooses how much of them, and prints. Needs a GPU: without one it says so, exit
//! code 3.

mod model;

use crate::failure::{bad_input, gpu_error, sentence};
use crate::table::Table;
use anyhow::Context;
use clap::Args;
use overshot_backend_cuda::decode::Variant;
use overshot_backend_cuda::gpu::{CudaGpu, Gpu, KernelStore};
use overshot_backend_cuda::selftest::{self, Options, SelftestError};
use overshot_gpu_model::Pin;
use serde_json::{Map, Value};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  overshot selftest
  overshot selftest --quick
  overshot selftest --json selftest.json --seed 7
  overshot selftest --decode-kernel v6_m1_t64_s4_x1:2

Exit codes: 0 all is right, 3 there is no GPU that can be used, 1 a check failed.";

/// Families that are checked behind decode attention, and what their lists in the report are of.
const FAMILIES: [(&str, &str); 4] = [
    ("matmul", "products and experts"),
    ("prefill", "attention of prompts, indexer, steps that decode"),
    ("sums", "sums over two GPUs"),
    ("model", "the built-in model beside the processor"),
];

/// Check this machine's GPU and our kernels on it, and time them.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Checks only, each launch repeated 3 times instead of 20; no times
    #[arg(long)]
    quick: bool,

    /// Write everything to this file, as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Of the random inputs [default: another each time]; printed, so that a failure can be repeated
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Only this kernel of decode attention, with N splits or workers if given
    #[arg(long, value_name = "NAME[:N]")]
    decode_kernel: Option<Pin>,
}

/// # Errors
/// No GPU, a check that failed, a report that cannot be written.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut options =
        Options { suites: vec!["few".into()], pin: arguments.decode_kernel.clone(), ..Options::default() };
    options.seed = arguments.seed.unwrap_or(options.seed);
    options.rounds = if arguments.quick { 0 } else { options.rounds };
    options.repeats = if arguments.quick { 3 } else { options.repeats };
    if let Some(pin) = &options.pin
        && Variant::named(&pin.kernel).is_none()
    {
        return Err(bad_input(format!("--decode-kernel {}: there is no kernel of this name", pin.kernel)));
    }
    options.shipped_only = options.pin.is_none();
    let started = Instant::now();
    let mut lines = Vec::new();
    let mut outcome = selftest::run_all(&options, &mut lines).map_err(gpu_error);
    let mut report = selftest::report(&String::from_utf8_lossy(&lines));
    if options.pin.is_none() && outcome.is_ok() {
        outcome = check_model(options.seed, &mut report);
    }
    report.insert("version".into(), env!("CARGO_PKG_VERSION").into());
    report.insert("seed".into(), options.seed.into());
    report.insert("seconds".into(), started.elapsed().as_secs_f64().into());
    report.insert("passed".into(), outcome.is_ok().into());
    report.insert("error".into(), outcome.as_ref().err().map(sentence).into());
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    // A machine without a GPU has nothing to print but that.
    if report.contains_key("device") {
        write_text(&report, out)?;
    }
    outcome
}

fn check_model(seed: u64, report: &mut Map<String, Value>) -> anyhow::Result<()> {
    let gpu: Arc<dyn Gpu> = Arc::new(CudaGpu::open(0, KernelStore::built_in())?);
    let Some(checks) = model::check(&gpu, seed)? else { return Ok(()) };
    report.insert("model".into(), serde_json::to_value(&checks)?);
    match checks.iter().filter(|check| !check.passed).count() {
        0 => Ok(()),
        failed => Err(SelftestError::Wrong { failed, checked: checks.len() }.into()),
    }
}

fn write_text(report: &Map<String, Value>, out: &mut dyn Write) -> std::io::Result<()> {
    let list = |name: &str| report.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let device = &report["device"];
    writeln!(
        out,
        "{}, sm_{}, {} multiprocessors; seed {}",
        text(&device["name"]),
        device["sm"],
        device["multiprocessors"],
        report["seed"]
    )?;
    for kernel in list("kernels") {
        let verdict =
            if kernel["driver"] == kernel["read"] { "as its cubin says" } else { "NOT as its cubin says" };
        let driver = &kernel["driver"];
        writeln!(
            out,
            "{}: {} registers, {} CTA(s) a multiprocessor, {verdict}",
            text(&kernel["variant"]),
            driver["registers_per_thread"],
            driver["ctas_per_sm"]
        )?;
    }
    let checks = list("checks");
    let failed: Vec<&Value> = checks.iter().filter(|check| check["passed"] == false).collect();
    let worst = checks.iter().filter_map(|check| check["distance"]["overall"].as_f64()).fold(0.0, f64::max);
    writeln!(
        out,
        "decode attention: {} of {} checks passed, error at most {worst:.2e}",
        checks.len() - failed.len(),
        checks.len()
    )?;
    for check in failed {
        writeln!(
            out,
            "  FAILED {}, {}, {} parts",
            text(&check["variant"]),
            text(&check["case"]),
            check["splits"]
        )?;
    }
    for (family, what) in FAMILIES {
        write_family(what, list(family), out)?;
    }
    write_times(list("times"), out)
}

/// Nothing of a family that was not reached, or takes more than this machine has.
fn write_family(what: &str, checks: &[Value], out: &mut dyn Write) -> std::io::Result<()> {
    if checks.is_empty() {
        return Ok(());
    }
    let failed: Vec<&Value> = checks.iter().filter(|check| check["passed"] == false).collect();
    writeln!(out, "{what}: {} of {} checks passed", checks.len() - failed.len(), checks.len())?;
    failed.iter().try_for_each(|check| writeln!(out, "  FAILED {check}"))
}

fn write_times(times: &[Value], out: &mut dyn Write) -> std::io::Result<()> {
    if times.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["kernel", "heads", "rows", "parts", "us", "10 to 90 %", "A/A"]);
    for time in times {
        let us = |field: &str| time[field].as_f64().unwrap_or(f64::NAN);
        table.row([
            text(&time["variant"]).to_owned(),
            time["heads"].to_string(),
            time["batch"].to_string(),
            time["splits"].to_string(),
            format!("{:.1}", us("us_p50")),
            format!("{:.1} to {:.1}", us("us_p10"), us("us_p90")),
            format!("{:.1} %", us("aa_percent")),
        ]);
    }
    table.write(out)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_aloud() {
        let lines = r#"{"kind":"device","name":"NVIDIA H200","sm":90,"multiprocessors":132}
{"kind":"kernel","variant":"v6","driver":{"registers_per_thread":128,"ctas_per_sm":1},"read":{"registers_per_thread":127,"ctas_per_sm":1}}
{"kind":"check","variant":"v6","case":"plain","splits":2,"passed":false,"distance":{"overall":0.5}}
{"case":"dense","passed":true,"kind":"matmul"}
{"kernel":"index_v2","passed":true,"kind":"prefill"}
{"kernel":"attention_v2","passed":false,"kind":"prefill"}
{"kind":"time","variant":"v6","heads":16,"batch":64,"splits":2,"us_p50":18.04,"us_p10":18.0,"us_p90":18.1,"aa_percent":0.3}"#;
        let mut report = selftest::report(lines);
        report.insert("seed".into(), 7.into());
        let mut out = Vec::new();
        write_text(&report, &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        for part in [
            "seed 7",
            "NOT as its cubin says",
            "decode attention: 0 of 1 checks",
            "FAILED v6, plain, 2 parts",
            "products and experts: 1 of 1 checks",
            "steps that decode: 1 of 2 checks",
            "FAILED {\"kernel\":\"attention_v2\",\"passed\":false}",
            "18.0 to 18.1",
            "0.3 %",
        ] {
            assert!(out.contains(part), "{part} is missing in:\n{out}");
        }
    }
}
