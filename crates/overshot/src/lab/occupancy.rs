//! `overshot lab occupancy`: how many CTAs of a kernel an SM holds, every resource that stops the next one, and what
//! would let it in; of numbers typed in, of a cubin, or of a folder of cubins as a table.

use super::cubins::{self, Found};
use super::numbers::{self, SharedBytes, at_least_one, ctas, kilobytes};
use crate::failure::{bad_input, note, one_line};
use crate::table::Table;
use clap::Args;
use overshot_gpu_model::device::THREADS_PER_WARP;
use overshot_gpu_model::{Architecture, Gate, Launch, Occupancy, Resource, Step};
use serde::Serialize;
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  overshot lab occupancy --regs 255 --warps 4 --smem 60 --arch sm_120
  overshot lab occupancy attention.cubin --warps 8 --dynamic-smem 96
  overshot lab occupancy ~/.triton/cache
  overshot lab occupancy ~/.triton/cache --json | jq '.kernels[] | select(.spill_instructions > 0) | .name'";

/// How many CTAs of a kernel an SM holds, what stops the next one, and what would let it in.
///
/// Reads a cubin, a folder of cubins (such as Triton's cache, whose JSON files are used), or numbers typed in.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// A .cubin file, or a folder with .cubin files in it or its subfolders
    #[arg(value_name = "CUBIN|FOLDER", required_unless_present = "regs", conflicts_with_all = ["regs", "smem"])]
    path: Option<PathBuf>,

    /// Registers of a thread
    #[arg(long, value_name = "R", allow_negative_numbers = true, value_parser = at_least_one, requires_all = ["warps", "arch"])]
    regs: Option<NonZeroU32>,

    /// Warps of a CTA [default: of a cubin, its launch bounds]
    #[arg(long, value_name = "W", allow_negative_numbers = true, value_parser = at_least_one)]
    warps: Option<NonZeroU32>,

    /// Shared memory of a CTA in KB of 1,024 bytes, static and dynamic [default: 0]
    #[arg(long, value_name = "KB", allow_negative_numbers = true, value_parser = kilobytes, requires = "regs")]
    smem: Option<SharedBytes>,

    /// Dynamic shared memory, which a launch asks for and a cubin does not state [default: Triton's, else 0]
    #[arg(long, value_name = "KB", allow_negative_numbers = true, value_parser = kilobytes, requires = "path")]
    dynamic_smem: Option<SharedBytes>,

    /// Named barriers of a CTA, 0 to 16 [default: 1, of a cubin what it states]
    #[arg(long, value_name = "B", allow_negative_numbers = true, value_parser = crate::usage::whole_number::<u32>)]
    barriers: Option<u32>,

    /// Architecture, such as sm_120 or 9.0 [default: of a cubin, its own]
    #[arg(long, value_name = "SM")]
    arch: Option<String>,

    /// Only kernels with TEXT in their name
    #[arg(long, value_name = "TEXT", requires = "path")]
    kernel: Option<String>,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    kernels: Vec<Row>,
    unreadable: Vec<String>,
}

/// One kernel with its answer, or with the reason why there is none.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    found: Option<Found>,
    #[serde(flatten)]
    answer: Option<Answer>,
    no_answer: Option<String>,
}

#[derive(Serialize)]
struct Answer {
    architecture: Architecture,
    launch: Launch,
    occupancy: Occupancy,
    next_cta: Gate,
    what_if: Vec<WhatIf>,
}

#[derive(Serialize)]
struct WhatIf {
    resource: Resource,
    steps: Vec<Step>,
}

/// # Errors
/// Numbers that no kernel has, files that are no cubins.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let report = match &arguments.path {
        Some(path) => of_path(arguments, path)?,
        None => Report { kernels: vec![typed(arguments)?], unreadable: vec![] },
    };
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
        return Ok(());
    }
    match report.kernels.as_slice() {
        [row] => write_one(row, out)?,
        rows => write_table(rows, arguments.path.as_deref(), out)?,
    }
    write_notes(arguments, &report, out)?;
    Ok(())
}

fn typed(arguments: &Arguments) -> anyhow::Result<Row> {
    let needed = |flag: Option<NonZeroU32>| {
        flag.map(NonZeroU32::get).ok_or_else(|| bad_input("give --regs and --warps"))
    };
    let launch = Launch {
        warps_per_cta: needed(arguments.warps)?,
        registers_per_thread: needed(arguments.regs)?,
        shared_bytes_per_cta: arguments.smem.map_or(0, |bytes| bytes.0),
        named_barriers_per_cta: arguments.barriers.unwrap_or(1),
    };
    let architecture = architecture(arguments.arch.as_deref().unwrap_or_default())?;
    let answer = answer(architecture, launch).map_err(bad_input)?;
    Ok(Row { found: None, answer: Some(answer), no_answer: None })
}

fn of_path(arguments: &Arguments, path: &Path) -> anyhow::Result<Report> {
    let asked = arguments.arch.as_deref().map(architecture).transpose()?;
    let mut search = cubins::search(path)?;
    if let Some(text) = &arguments.kernel {
        search.kernels.retain(|found| found.kernel.name.contains(text.as_str()));
        if search.kernels.is_empty() {
            return Err(bad_input(format!("no kernel in {} has `{text}` in its name", path.display())));
        }
    }
    let row = |found: Found| {
        let answer = launch_of(arguments, &found).and_then(|launch| {
            let own = || Architecture::of_sm(found.sm).map_err(|error| error.to_string());
            answer(asked.map_or_else(own, Ok)?, launch)
        });
        let (answer, no_answer) = match answer {
            Ok(answer) => (Some(answer), None),
            Err(reason) => (None, Some(reason)),
        };
        Row { found: Some(found), answer, no_answer }
    };
    let mut kernels: Vec<Row> = search.kernels.into_iter().map(row).collect();
    kernels.sort_by_cached_key(sort_key);
    Ok(Report { kernels, unreadable: search.unreadable })
}

/// Fewest CTAs first, then fewest warps; kernels without an answer last.
fn sort_key(row: &Row) -> (bool, u32, u32, Option<(String, PathBuf)>) {
    let occupancy = row.answer.as_ref().map(|answer| &answer.occupancy);
    let (ctas, warps) = occupancy.map_or((0, 0), |occupancy| (occupancy.ctas_per_sm, occupancy.warps_per_sm));
    let name = row.found.as_ref().map(|found| (found.kernel.name.clone(), found.file.clone()));
    (row.answer.is_none(), ctas, warps, name)
}

/// What the command line says before what the cubin says before what Triton's JSON says.
fn launch_of(arguments: &Arguments, found: &Found) -> Result<Launch, String> {
    let kernel = &found.kernel;
    let bounds = kernel.max_threads.map(|threads| threads.div_ceil(THREADS_PER_WARP));
    let triton = found.triton.map(|launch| launch.num_warps);
    let warps = arguments.warps.map(NonZeroU32::get).or(bounds).or(triton);
    let dynamic = arguments.dynamic_smem.map(|bytes| bytes.0).or(found.triton.map(|launch| launch.shared));
    Ok(Launch {
        warps_per_cta: warps.ok_or("it states no launch bounds: give --warps")?,
        registers_per_thread: kernel.registers_per_thread,
        shared_bytes_per_cta: kernel.static_shared_bytes.saturating_add(dynamic.unwrap_or(0)),
        named_barriers_per_cta: arguments.barriers.unwrap_or(kernel.named_barriers),
    })
}

fn architecture(text: &str) -> anyhow::Result<Architecture> {
    text.parse::<Architecture>().map_err(|error| bad_input(format!("--arch: {error}")))
}

fn answer(architecture: Architecture, launch: Launch) -> Result<Answer, String> {
    let told = |error: overshot_gpu_model::LaunchError| error.to_string();
    let occupancy = launch.occupancy(&architecture).map_err(told)?;
    let used = |resource: &Resource| occupancy.limits.iter().any(|limit| limit.resource == *resource);
    let what_if = |resource: Resource| {
        Ok(WhatIf { resource, steps: launch.what_if(&architecture, resource).map_err(told)? })
    };
    let changeable = Resource::ALL.into_iter().filter(|resource| *resource != Resource::CtaSlots);
    Ok(Answer {
        architecture,
        launch,
        next_cta: launch.gate(&architecture).map_err(told)?,
        what_if: changeable.filter(used).map(what_if).collect::<Result<_, String>>()?,
        occupancy,
    })
}

fn write_one(row: &Row, out: &mut dyn Write) -> io::Result<()> {
    if let Some(found) = &row.found {
        let kernel = &found.kernel;
        writeln!(
            out,
            "{} (sm_{}, {})",
            one_line(&kernel.name),
            found.sm,
            one_line(&found.file.display().to_string())
        )?;
        let local = match (kernel.stack_bytes, kernel.spill_instructions) {
            (0, _) => "no stack".to_owned(),
            (bytes, 0) => format!("a stack of {bytes} bytes a thread, no spills"),
            (bytes, spills) => {
                format!("{bytes} bytes of stack a thread; {spills} instructions spill or reload")
            }
        };
        writeln!(out, "  {local}; {} bytes of code", kernel.code_bytes)?;
    }
    match (&row.answer, &row.no_answer) {
        (Some(answer), _) => write_answer(answer, out),
        (None, Some(reason)) => writeln!(out, "  no answer: {reason}"),
        (None, None) => Ok(()),
    }
}

fn write_answer(answer: &Answer, out: &mut dyn Write) -> io::Result<()> {
    let Answer { architecture, launch, occupancy, .. } = answer;
    writeln!(
        out,
        "{architecture}: {} per SM, {} of {} warps ({} %)\n",
        ctas(occupancy.ctas_per_sm),
        occupancy.warps_per_sm,
        architecture.warps_per_sm,
        occupancy.warp_share_percent
    )?;
    let mut table = Table::new(&["resource", "a CTA uses", "allows CTAs", ""]);
    for limit in &occupancy.limits {
        let uses = amount(limit.resource, launch.uses(limit.resource));
        let mark = if occupancy.binding.contains(&limit.resource) { "binding" } else { "" };
        table.row([limit.resource.to_string(), uses, limit.ctas.to_string(), mark.into()]);
    }
    table.write(out)?;
    writeln!(out, "\nNext CTA: {}", gate_sentence(&answer.next_cta))?;
    // Of the others only what stands in the way: that they cannot help is no news.
    let telling = |resource: Resource| {
        matches!(resource, Resource::Registers | Resource::SharedMemory)
            || occupancy.binding.contains(&resource)
    };
    for what_if in answer.what_if.iter().filter(|what_if| telling(what_if.resource)) {
        writeln!(out, "  {}", what_if_sentence(what_if, occupancy.ctas_per_sm))?;
    }
    Ok(())
}

/// "2 CTAs need <= 49 KB shared memory (has 60 KB); registers and warps are not the limit".
pub(super) fn gate_sentence(gate: &Gate) -> String {
    let subject = format!("{} per SM", ctas(gate.ctas_per_sm));
    if !gate.walls.is_empty() {
        return format!("{subject} are not possible on this architecture, by {}", list(&gate.walls));
    }
    let verb = if gate.ctas_per_sm == 1 { "needs" } else { "need" };
    let needs: Vec<String> = gate
        .needs
        .iter()
        .map(|need| {
            format!(
                "<= {} (has {})",
                amount_named(need.resource, need.at_most),
                amount(need.resource, need.has)
            )
        })
        .collect();
    match gate.not_in_the_way.as_slice() {
        [] => format!("{subject} {verb} {}", needs.join(" and ")),
        [one] if *one != Resource::CtaSlots && *one != Resource::SharedMemory => {
            format!("{subject} {verb} {}; {one} are not the limit", needs.join(" and "))
        }
        [one] => format!("{subject} {verb} {}; {one} is not the limit", needs.join(" and ")),
        several => format!("{subject} {verb} {}; {} are not the limit", needs.join(" and "), list(several)),
    }
}

/// What one resource alone can change.
fn what_if_sentence(what_if: &WhatIf, now: u32) -> String {
    let resource = what_if.resource;
    let mut best = now;
    let mut steps = Vec::new();
    for step in &what_if.steps {
        if step.ctas_per_sm > best {
            best = step.ctas_per_sm;
            steps.push(format!("{} at <= {}", ctas(best), amount(resource, step.at_most)));
        }
    }
    if steps.is_empty() {
        format!("{resource} alone: no change brings more than {}", ctas(now))
    } else {
        format!("{resource} alone: {}", steps.join(", "))
    }
}

fn write_table(rows: &[Row], root: Option<&Path>, out: &mut dyn Write) -> io::Result<()> {
    const NAME_CHARS_MAX: usize = 48;
    const FILE_CHARS_MAX: usize = 28;
    let head = [
        "kernel", "arch", "warps", "regs", "smem", "stack", "spills", "bars", "CTAs/SM", "warps/SM",
        "binding", "next CTA", "file",
    ];
    let mut table = Table::new(&head);
    for row in rows {
        let Some(Found { kernel, sm, file, .. }) = &row.found else { continue };
        // Of a single file it is empty.
        let file = root.and_then(|root| file.strip_prefix(root).ok()).unwrap_or(file).display().to_string();
        let file = shortened(&one_line(&file), FILE_CHARS_MAX);
        let name = shortened(&one_line(&kernel.name), NAME_CHARS_MAX);
        let (stack, spills) = (kernel.stack_bytes.to_string(), kernel.spill_instructions.to_string());
        let registers = kernel.registers_per_thread.to_string();
        table.row(match &row.answer {
            Some(Answer { architecture, launch, occupancy, next_cta, .. }) => [
                name,
                architecture.to_string(),
                launch.warps_per_cta.to_string(),
                registers,
                numbers::shared(launch.shared_bytes_per_cta),
                stack,
                spills,
                launch.named_barriers_per_cta.to_string(),
                occupancy.ctas_per_sm.to_string(),
                occupancy.warps_per_sm.to_string(),
                list(&occupancy.binding),
                gate_cell(occupancy, next_cta),
                file,
            ],
            None => [
                name,
                format!("sm_{sm}"),
                "-".into(),
                registers,
                numbers::shared(kernel.static_shared_bytes),
                stack,
                spills,
                kernel.named_barriers.to_string(),
                "-".into(),
                "-".into(),
                one_line(row.no_answer.as_deref().unwrap_or_default()),
                String::new(),
                file,
            ],
        });
    }
    table.write(out)
}

fn gate_cell(occupancy: &Occupancy, gate: &Gate) -> String {
    if occupancy.warp_share_percent == 100 {
        return "all warps taken".into();
    }
    if !gate.walls.is_empty() {
        return "not possible".into();
    }
    let needs =
        gate.needs.iter().map(|need| format!("{} <= {}", need.resource, amount(need.resource, need.at_most)));
    needs.collect::<Vec<_>>().join(", ")
}

fn write_notes(arguments: &Arguments, report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let of_cubins = report.kernels.iter().filter_map(|row| row.found.as_ref());
    let without_json = of_cubins.filter(|found| found.triton.is_none()).count();
    if without_json > 0 && arguments.dynamic_smem.is_none() {
        writeln!(
            out,
            "\nShared memory is what the file states: add what the launch asks for with --dynamic-smem."
        )?;
    }
    for sentence in &report.unreadable {
        note(&format!("note: {sentence}"));
    }
    Ok(())
}

fn amount(resource: Resource, number: u32) -> String {
    if resource == Resource::SharedMemory { numbers::shared(number) } else { number.to_string() }
}

fn amount_named(resource: Resource, number: u32) -> String {
    format!("{} {resource}", amount(resource, number))
}

/// "registers, warps and CTA slots".
pub(super) fn list(resources: &[Resource]) -> String {
    match resources {
        [] => String::new(),
        [one] => one.to_string(),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(Resource::to_string).collect();
            format!("{} and {last}", first.join(", "))
        }
    }
}

/// Long names keep both ends: of mangled names the end tells them apart.
fn shortened(text: &str, chars_max: usize) -> String {
    let count = text.chars().count();
    if count <= chars_max {
        return text.to_owned();
    }
    let (head, tail) = (chars_max / 2, chars_max - chars_max / 2 - 3);
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(count - tail).collect();
    format!("{start}...{end}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    const CUBIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../gpu-model/tests/data/sm_120a.cubin");

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn print(flags: &[&str]) -> Result<String, String> {
        let line =
            Line::try_parse_from([&["occupancy"], flags].concat()).map_err(|error| error.to_string())?;
        let mut out = Vec::new();
        run(&line.arguments, &mut out).map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&out).into_owned())
    }

    #[test]
    fn the_gate_of_the_split_kernel_is_told_in_words() {
        let text = print(&["--regs", "255", "--warps", "4", "--smem", "60", "--arch", "sm_120"]).unwrap();
        for part in [
            "1 CTA per SM",
            "2 CTAs per SM need <= 49 KB shared memory (has 60 KB); registers, warps, named barriers and CTA slots are \
             not the limit",
            "registers alone: no change brings more than 1 CTA",
            "shared memory alone: 2 CTAs at <= 49 KB",
        ] {
            assert!(text.contains(part), "{part} is missing in:\n{text}");
        }
    }

    #[test]
    fn a_cubin_is_a_table_and_one_kernel_of_it_a_page() {
        let table = print(&[CUBIN]).unwrap();
        assert!(table.contains("register_barrier") && table.contains("give --warps"), "{table}");
        let page = print(&[CUBIN, "--kernel", "spill", "--warps", "4", "--dynamic-smem", "60"]).unwrap();
        assert!(page.contains("instructions spill or reload") && page.contains("1 CTA per SM"), "{page}");
        assert!(!page.contains("--dynamic-smem"), "{page}");
    }

    #[test]
    fn json_has_every_limit() {
        let text = print(&[CUBIN, "--kernel", "register_barrier", "--json"]).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let kernel = &value["kernels"][0];
        assert_eq!(kernel["named_barriers"], 16);
        assert_eq!(kernel["occupancy"]["ctas_per_sm"], 1);
        assert_eq!(kernel["occupancy"]["binding"][0], "named_barriers");
        assert_eq!(kernel["next_cta"]["needs"][0]["at_most"], 12);
    }

    /// A cache as Triton leaves it: its JSON knows the dynamic shared memory, foreign and broken files are told.
    #[test]
    fn a_triton_cache_is_read_with_its_json() {
        let cache = tempfile::tempdir().unwrap();
        let cubin = std::fs::read(CUBIN).unwrap();
        for (folder, json) in [
            ("ABCDEF", r#"{"num_warps": 4, "num_stages": 2, "shared": 61440, "name": "x"}"#),
            ("GHIJKL", "{"),
        ] {
            std::fs::create_dir(cache.path().join(folder)).unwrap();
            std::fs::write(cache.path().join(folder).join("kernel.cubin"), &cubin).unwrap();
            std::fs::write(cache.path().join(folder).join("kernel.json"), json).unwrap();
        }
        std::fs::write(cache.path().join("broken.cubin"), "text").unwrap();
        let text = print(&[cache.path().to_str().unwrap(), "--json"]).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let kernels = value["kernels"].as_array().unwrap();
        assert_eq!((kernels.len(), value["unreadable"].as_array().unwrap().len()), (6, 2));
        for kernel in kernels {
            assert_eq!(kernel["occupancy"]["ctas_per_sm"], 1, "{kernel}");
        }
        // No launch bounds in the source: Triton's JSON knows the warps.
        let stack_user = kernels.iter().find(|kernel| kernel["name"] == "stack_user").unwrap();
        assert_eq!(stack_user["launch"]["warps_per_cta"], 4);
    }

    #[test]
    fn bad_input_is_one_sentence() {
        let empty = tempfile::tempdir().unwrap();
        let folder = empty.path().to_str().unwrap().to_owned();
        for (flags, part) in [
            (&["--regs", "300", "--warps", "4", "--arch", "sm_120"][..], "300 registers a thread"),
            (&["--regs", "32", "--warps", "33", "--arch", "sm_120"], "33 warps a CTA"),
            (&["--regs", "32", "--warps", "4", "--arch", "sm_52"], "`sm_52` is no known GPU architecture"),
            (&["--regs", "32", "--warps", "4", "--arch", "sm_90", "--barriers", "17"], "17 named barriers"),
            (&["--regs", "32", "--warps", "4", "--arch", "sm_90", "--smem", "NaN"], "KB of 1,024 bytes"),
            (&["--regs", "32"], "--warps"),
            (&["no/such/file.cubin"], "cannot open no/such/file.cubin"),
            (&[folder.as_str()], "no .cubin file in"),
            (&[CUBIN, "--kernel", "absent"], "has `absent` in its name"),
            (&[concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")], "not an ELF file"),
        ] {
            let error = print(flags).expect_err(part);
            assert!(error.contains(part), "{error}");
        }
    }
}
