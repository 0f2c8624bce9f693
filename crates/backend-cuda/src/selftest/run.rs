//! The self-test of decode attention: device, ceiling, variants, checks, times. One JSON object a line, each with a `kind`.

use super::device_case::{DeviceCase, DevicePools, capacities, only_row, planned_parts};
use super::error::SelftestError;
use super::inputs::{Case, Exponents, HEAD_DIMS, Lengths, ListShape};
use super::reference::{Distance, distance, reference};
use super::{resources, timing};
use crate::ceiling;
use crate::decode::{DecodeKernel, Schedule, Variant};
use crate::gpu::{CudaGpu, Gpu, KernelStore};
use overshot_gpu_model::{Pin, Target};
use serde::Serialize;
use std::io::Write;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

/// Errors against float64. Rounding answers to bf16 costs 1.66e-3 on average and more where few distinct values occur:
/// a case may need a tenth more than its own rounding.
const OVERALL_LIMIT: f64 = 2e-3;
const ROUNDING_SLACK: f64 = 1.1;
const WORST_HEAD_LIMIT: f64 = 4e-3;
/// Rows whose reference is computed; all rows are looked at for NaN.
const ROWS_COMPARED: usize = 16;

#[derive(Clone, Debug)]
pub struct Options {
    /// Cubins made by `gpu-check build`, instead of built-in ones or NVRTC's.
    pub cubins: Option<PathBuf>,
    pub seed: u64,
    /// Only variants whose name contains one of these; all when empty.
    pub only: Vec<String>,
    /// Of all variants those alone that this device is served by.
    pub shipped_only: bool,
    /// This kernel alone, with its number of parts where one is given.
    pub pin: Option<Pin>,
    /// Only checked cases whose name contains one of these; all when empty.
    pub cases: Vec<String>,
    /// Timing rounds of each shape; 0 leaves timing out.
    pub rounds: usize,
    /// Entries of the compressed pool while timing; the window's has half as many.
    pub pool_entries: usize,
    /// Blocks a row while timing, instead of the planned number; 0 leaves the plan.
    pub splits: u32,
    /// What to time: see `suites::cases`; "main" when empty.
    pub suites: Vec<String>,
    /// Prices of rows and parts in quarters of a tile, instead of the variant's.
    pub prices: Option<[i32; 2]>,
    /// Launches of each checked case, all of which must give the same bits; 0 leaves checks out, for ablations.
    pub repeats: usize,
}

impl Default for Options {
    /// Everything, with a seed of its own.
    fn default() -> Self {
        Options {
            cubins: None,
            seed: fastrand::u64(..),
            only: vec![],
            shipped_only: false,
            pin: None,
            cases: vec![],
            rounds: 15,
            pool_entries: 1 << 18,
            splits: 0,
            suites: vec![],
            prices: None,
            repeats: 20,
        }
    }
}

impl Options {
    fn wants(&self, variant: &str) -> bool {
        let named = self.only.is_empty() || self.only.iter().any(|part| variant.contains(part));
        named && self.pin.as_ref().is_none_or(|pin| pin.kernel == variant)
    }

    /// Parts of a launch that are fixed, of at most as many as a kernel takes.
    pub(super) fn parts(&self, kernel: &DecodeKernel) -> Option<u32> {
        let most = kernel.variant.shape(1).parts_max.get();
        let pinned = self.pin.as_ref().and_then(|pin| pin.parts).map(NonZeroU32::get);
        pinned.or((self.splits > 0).then_some(self.splits)).map(|parts| parts.min(most))
    }
}

/// Runs everything and writes a line to `report` for each fact.
pub fn run(options: &Options, report: &mut dyn Write) -> Result<(), SelftestError> {
    let cuda = Arc::new(CudaGpu::open(0, kernel_store(options))?);
    let facts = cuda.device_facts().clone();
    line(report, "device", &facts)?;
    let schedule = Schedule::load(&*cuda)?;
    let target = cuda.facts()?.target();
    let bench = Bench { gpu: cuda.clone(), cuda, schedule, target };
    let read_gbs = ceiling::read_bytes_per_s(&bench.gpu)? / 1e9;
    line(report, "ceiling", &serde_json::json!({ "read_gbs": read_gbs }))?;
    let (mut kernels, mut unread) = (Vec::new(), 0);
    let ablations = if options.repeats == 0 { Variant::ablations() } else { Vec::new() };
    let all = if options.shipped_only { Variant::shipped(bench.target.sm) } else { Variant::all() };
    for variant in all.into_iter().chain(ablations) {
        if !options.wants(&variant.name) {
            continue;
        }
        let variant = Variant { prices: options.prices.unwrap_or(variant.prices), ..variant };
        let kernel = DecodeKernel::load(&*bench.gpu, &variant)?;
        let read = resources::read(&bench, &kernel);
        unread +=
            usize::from(read.as_ref().is_err() || read.as_ref().is_ok_and(|read| *read != kernel.facts));
        let facts = serde_json::json!({
            "variant": variant.name, "threads": variant.threads, "shared_bytes": variant.shared_bytes,
            "driver": kernel.facts, "read": read.as_ref().ok(), "unread": read.as_ref().err().map(ToString::to_string),
        });
        line(report, "kernel", &facts)?;
        kernels.push(kernel);
    }
    let (checked, wrong) =
        if options.repeats == 0 { (0, vec![]) } else { check_all(&bench, &kernels, options, report)? };
    kernels.retain(|kernel| !wrong.contains(&kernel.variant.name));
    if options.rounds > 0 {
        timing::time_all(&bench, &kernels, options, read_gbs, report)?;
    }
    if !wrong.is_empty() {
        return Err(SelftestError::Wrong { failed: wrong.len(), checked });
    }
    if unread > 0 { Err(SelftestError::Misread { kernels: unread }) } else { Ok(()) }
}

pub struct Bench {
    pub gpu: Arc<dyn Gpu>,
    /// The same device: timing needs its stream.
    pub cuda: Arc<CudaGpu>,
    pub schedule: Schedule,
    pub target: Target,
}

fn kernel_store(options: &Options) -> KernelStore {
    options.cubins.clone().map_or_else(KernelStore::built_in, KernelStore::Folder)
}

pub fn line<T: Serialize>(report: &mut dyn Write, kind: &str, value: &T) -> Result<(), SelftestError> {
    let mut object = serde_json::to_value(value).map_err(std::io::Error::from)?;
    if let Some(fields) = object.as_object_mut() {
        fields.insert("kind".into(), kind.into());
    }
    writeln!(report, "{object}")?;
    Ok(report.flush()?)
}

#[derive(Serialize)]
struct Check<'a> {
    variant: &'a str,
    case: &'a str,
    splits: u32,
    seed: u64,
    distance: Distance,
    /// Launches of the same inputs whose bits differ from the first's.
    unstable: usize,
    /// Whether a row has the same bits alone as among all rows; not asked of kernels with a schedule.
    same_alone: Option<bool>,
    passed: bool,
}

/// The number of checks, and the names of variants that failed any, one entry a failure.
fn check_all(
    bench: &Bench,
    kernels: &[DecodeKernel],
    options: &Options,
    report: &mut dyn Write,
) -> Result<(usize, Vec<String>), SelftestError> {
    let seed = options.seed;
    let (mut checked, mut wrong) = (0, Vec::new());
    let wanted =
        |case: &Case| options.cases.is_empty() || options.cases.iter().any(|part| case.name.contains(part));
    for (number, case) in cases(seed).into_iter().enumerate().filter(|(_, case)| wanted(case)) {
        let mut random = fastrand::Rng::with_seed(seed + number as u64);
        let inputs = case.inputs(&mut random);
        let rows: Vec<usize> = if case.rows <= ROWS_COMPARED {
            (0..case.rows).collect()
        } else {
            (0..ROWS_COMPARED).map(|_| random.usize(0..case.rows)).chain([case.rows / 2]).collect()
        };
        let exact = reference(&case, &inputs, &rows);
        let pools = DevicePools::new(&bench.gpu, &inputs)?;
        let mut on_device = DeviceCase::new(&bench.gpu, &case, &inputs, &[], parts(&case, bench), 1)?;
        for kernel in kernels {
            for splits in split_choices(&case, kernel, &bench.target) {
                let args = on_device.args(&pools, 0, 0, splits);
                let mut first: Option<Vec<u16>> = None;
                let mut unstable = 0;
                for _ in 0..options.repeats {
                    on_device.poison()?;
                    on_device.schedule(&bench.schedule, kernel, 0, splits)?;
                    on_device.launch(kernel, &args)?;
                    bench.gpu.synchronize()?;
                    let answer = on_device.out.copy_out()?;
                    match &first {
                        None => first = Some(answer),
                        Some(first) if *first != answer => unstable += 1,
                        Some(_) => {}
                    }
                }
                let answer = first.unwrap_or_default();
                let same_alone = if kernel.variant.takes_schedule() {
                    None
                } else {
                    let row = case.rows / 2;
                    on_device.poison()?;
                    on_device.launch(kernel, &only_row(&args, row))?;
                    bench.gpu.synchronize()?;
                    let numbers = case.heads * HEAD_DIMS;
                    let row = row * numbers..(row + 1) * numbers;
                    Some(on_device.out.copy_out()?[row.clone()] == answer[row])
                };
                let distance = distance(&case, &answer, &exact, &rows);
                let passed = distance.overall <= OVERALL_LIMIT.max(ROUNDING_SLACK * distance.rounding)
                    && distance.worst_head <= WORST_HEAD_LIMIT
                    && distance.not_finite == 0
                    && unstable == 0
                    && same_alone != Some(false);
                let (variant, name) = (kernel.variant.name.as_str(), case.name.as_str());
                line(
                    report,
                    "check",
                    &Check {
                        variant,
                        case: name,
                        splits,
                        seed: case.seed,
                        distance,
                        unstable,
                        same_alone,
                        passed,
                    },
                )?;
                checked += 1;
                if !passed {
                    wrong.push(kernel.variant.name.clone());
                }
            }
        }
    }
    Ok((checked, wrong))
}

/// Parts that a launch may write: a row has at most 8, a worker 2.
fn parts(case: &Case, bench: &Bench) -> usize {
    (case.rows * 8).max(2 * bench.target.multiprocessors.get() as usize)
}

/// Split counts to check, or numbers of workers.
fn split_choices(case: &Case, kernel: &DecodeKernel, target: &Target) -> Vec<u32> {
    let planned = planned_parts(kernel, target, case.rows, case.heads, capacities(case));
    let most = if kernel.variant.takes_schedule() { planned } else { kernel.variant.splits_max.min(8) };
    let mut choices = vec![1, planned.min(most), 3.min(most), 41.min(most), most];
    choices.sort_unstable();
    choices.dedup();
    choices
}

/// Small enough for the float64 reference, and every corner that the kernels promise to take.
fn cases(seed: u64) -> Vec<Case> {
    let window = ListShape { capacity: 128, page_entries: 256, entries: 4096 };
    let extra = ListShape { capacity: 512, page_entries: 64, entries: 16_384 };
    let none = ListShape { capacity: 0, page_entries: 64, entries: 64 };
    let base = Case {
        name: "plain".into(),
        rows: 5,
        heads: 16,
        window,
        extra,
        lengths: Lengths::Full,
        exponents: Exponents::Natural,
        q_scale: 1.0,
        masked_one_in: 0,
        sinks_off: 0,
        seed,
    };
    let named = |name: &str, case: Case| Case { name: name.into(), ..case };
    let b = || base.clone();
    vec![
        b(),
        named("window only", Case { extra: none, ..b() }),
        named("compressed only", Case { window: none, ..b() }),
        named("one row", Case { rows: 1, ..b() }),
        named("4x queries", Case { q_scale: 4.0, ..b() }),
        named("tiny queries", Case { q_scale: 1e-12, ..b() }),
        named("huge queries", Case { q_scale: 1e6, ..b() }),
        named(
            "masked, uneven",
            Case { rows: 19, lengths: Lengths::Uneven, masked_one_in: 3, sinks_off: 5, ..b() },
        ),
        named("one long row", Case { rows: 9, lengths: Lengths::OneLong, sinks_off: 16, ..b() }),
        named("empty rows", Case { lengths: Lengths::Zero, sinks_off: 8, ..b() }),
        named("everything masked", Case { masked_one_in: 1, sinks_off: 8, ..b() }),
        named("small entries", Case { exponents: Exponents::Moved(-60), ..b() }),
        named("large entries", Case { exponents: Exponents::Moved(40), ..b() }),
        named("wild exponents", Case { exponents: Exponents::Wild, rows: 7, ..b() }),
        named("1 head", Case { heads: 1, ..b() }),
        named("8 heads", Case { heads: 8, ..b() }),
        named("24 heads", Case { heads: 24, masked_one_in: 9, ..b() }),
        named("32 heads", Case { heads: 32, lengths: Lengths::Uneven, ..b() }),
        named("64 heads", Case { heads: 64, ..b() }),
        named("128 heads", Case { heads: 128, rows: 3, ..b() }),
        named("page of 2", Case { extra: ListShape { capacity: 64, page_entries: 2, entries: 5000 }, ..b() }),
        named("top-k 1152", Case { extra: ListShape { capacity: 1152, ..extra }, rows: 3, ..b() }),
        named(
            "8192 entries",
            Case { extra: ListShape { capacity: 8192, page_entries: 2, entries: 9000 }, rows: 2, ..b() },
        ),
        named(
            "odd lengths",
            Case {
                window: ListShape { capacity: 77, page_entries: 13, entries: 700 },
                extra: ListShape { capacity: 301, page_entries: 1, entries: 999 },
                lengths: Lengths::Uneven,
                rows: 33,
                ..b()
            },
        ),
        named("200 rows", Case { rows: 200, lengths: Lengths::Uneven, ..b() }),
    ]
}
