//! `overshot lab project`: what a change would bring at every batch, before anybody makes it. The step comes from a profile or
//! is typed in; a lever of a kernel goes through that kernel's occupancy. The arithmetic is `overshot_lab::project`.

use super::numbers::{Batches, batches, not_negative};
use super::project_kernel::{KernelFlags, kernel, sms};
use super::project_report::{Decided, ProjectReport};
use super::project_texts::{
    FamilyAt, FamilySlope, ThroughputBand, family_at, family_slope, throughput_band, transfer,
};
use crate::failure::bad_input;
use crate::outputs::Outputs;
use crate::usage::whole_number;
use clap::Args;
use overshot_lab::profile::{Experts, Form, FormKind, Forms, Profile, ProfileFit, Stairs};
use overshot_lab::project::{
    Decision, Effect, FittedStep, Gain, Grid, Kernel, Lever, Mechanism, Part, Projection, Roofline,
    StepModel, Transfer, TypedBend, TypedStep,
};
use std::io::Write;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  overshot lab project \"attention / 1.5\" --profile profile.json --threshold 5
  overshot lab project \"attention / 2\" --floor 36.3 --slope attention=0.79 --slope moe=0.015 --throughput 775..845@96
  overshot lab project \"registers -> 128\" --floor 36.3 --slope attention=0.79 --regs 255 --warps 4 --smem 60 --arch sm_120
  overshot lab project \"CTAs/SM 1 -> 2\" --profile profile.json --card \"RTX PRO 6000\" --ctas-per-request 4

A lever: attention / 1.5, attention x 0.5, host gap - 50 %, floor - 10 ms, step - 2 ms, CTAs/SM 1 -> 2, registers -> 128,
shared memory -> 49 KB; the last three may begin with the family, as in \"moe: registers -> 128\". More in
docs/lab-project.md.";

const BATCHES_UNLESS_TOLD: [u32; 8] = [1, 8, 16, 32, 48, 64, 80, 96];
/// A kernel's family where the lever names none.
const KERNEL_FAMILY: &str = "attention";

/// What a change would bring to the whole step, at every batch, with an interval.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// What changes, such as "attention / 1.5"
    #[arg(value_name = "LEVER")]
    lever: Lever,

    /// Batches to project [default: those of the profile, or 1,8,16,32,48,64,80,96]
    #[arg(long, value_name = "LIST|A..B", allow_negative_numbers = true, value_parser = batches)]
    batch: Option<Batches>,

    /// The share of a gain that arrives in the step, equally likely between the two; `overshot lab plan` tells what
    /// closed levers teach of it [default: 0.7..1]
    #[arg(long, value_name = "LOW..HIGH", value_parser = transfer)]
    transfer: Option<Transfer>,

    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = whole_number::<u64>)]
    seed: u64,

    #[command(flatten)]
    step: StepFlags,

    #[command(flatten)]
    kernel: KernelFlags,

    #[command(flatten)]
    decision: DecisionFlags,

    #[command(flatten)]
    outputs: Outputs,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "The step")]
struct StepFlags {
    /// A profile, as `overshot lab profile` saves it
    #[arg(long, value_name = "FILE.json", required_unless_present = "floor", conflicts_with_all = ["floor", "slope", "throughput", "sigma", "concave", "roofline"])]
    profile: Option<PathBuf>,

    /// Without a profile: time of a step of no requests, by the line through large batches
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = not_negative)]
    floor: Option<f64>,

    /// Time that each request adds to a family; several
    #[arg(long, value_name = "FAMILY=MS", value_parser = family_slope)]
    slope: Vec<FamilySlope>,

    /// Tokens a second seen at a batch, from which the floor's uncertainty follows
    #[arg(long, value_name = "LOW..HIGH@BATCH", value_parser = throughput_band)]
    throughput: Option<ThroughputBand>,

    /// How well slopes (and a floor without --throughput) are known: one sigma
    #[arg(long, value_name = "PERCENT", default_value = "5", allow_negative_numbers = true, value_parser = not_negative)]
    sigma: f64,

    /// Show beside the line that a family grows with the experts touched, and takes MS at BATCH
    #[arg(long, value_name = "FAMILY=MS@BATCH", value_parser = family_at)]
    concave: Vec<FamilyAt>,

    /// What the hardware needs for the lever's family, for each request
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = not_negative)]
    roofline: Option<f64>,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Go or no-go")]
struct DecisionFlags {
    /// The uplift that counts: the largest of noise band, what a comparison can find, and the smallest gain worth the days
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, value_parser = not_negative)]
    threshold: Option<f64>,

    /// Batches that users run [default: all that are projected]
    #[arg(long, value_name = "LIST|A..B", allow_negative_numbers = true, value_parser = batches, requires = "threshold")]
    decide_at: Option<Batches>,

    /// Days that the lever would take, to rank it
    #[arg(long, value_name = "DAYS", allow_negative_numbers = true, value_parser = not_negative, requires = "threshold")]
    days: Option<f64>,
}

/// # Errors
/// A lever that the step or the kernel cannot have, files that are not there, numbers that describe no step.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
    arguments.outputs.check()?;
    let kernel = kernel(&arguments.kernel)?;
    let effect = effect(arguments, kernel.as_ref())?;
    check_use(arguments, kernel.as_ref(), &effect)?;
    let report = match &arguments.step.profile {
        Some(path) => of_profile(arguments, path, effect)?,
        None => of_typed(arguments, effect)?,
    };
    arguments.outputs.write(&report, out)
}

/// Refuses what would be passed over: a flag without a say reads as if it had one.
fn check_use(arguments: &Arguments, kernel: Option<&Kernel>, effect: &Effect) -> anyhow::Result<()> {
    let lever = &arguments.lever;
    if matches!(lever, Lever::Time { .. }) && kernel.is_some() {
        return Err(bad_input(format!(
            "`{lever}` is no lever of a kernel: leave --regs or --cubin, or write one such as `registers -> 128`"
        )));
    }
    if arguments.transfer.is_some() && matches!(effect.gain, Gain::Waves { .. }) {
        return Err(bad_input(format!(
            "--transfer is of levers whose gain is known: of `{lever}` anything from none to all that waves allow is taken"
        )));
    }
    if arguments.step.roofline.is_some() && !matches!(effect.part, Part::Family(_)) {
        return Err(bad_input(format!("--roofline is of a family, and `{}` is none", effect.part)));
    }
    Ok(())
}

fn of_profile(arguments: &Arguments, path: &Path, effect: Effect) -> anyhow::Result<ProjectReport> {
    let profile = Profile::read(path)?;
    let mut random = fastrand::Rng::with_seed(arguments.seed);
    let fit = ProfileFit::of(&profile, &forms(arguments, &effect)?, &mut random)
        .map_err(|error| bad_input(format!("{}: {error}", path.display())))?;
    let chosen = FittedStep::chosen(&fit);
    let others = [FormKind::Linear, FormKind::Staircase, FormKind::Concave];
    let (refuted, others): (Vec<FormKind>, Vec<FormKind>) = others
        .into_iter()
        .filter(|kind| fit.step.of_kind(*kind).is_some())
        .partition(|kind| fit.step.refutes(*kind));
    let others: Vec<FittedStep> = others
        .into_iter()
        .map(|kind| FittedStep::of_kind(&fit, kind))
        .filter(|other| !other.is_same_as(&chosen))
        .collect();
    let models: Vec<&dyn StepModel> = std::iter::once(&chosen as &dyn StepModel)
        .chain(others.iter().map(|m| m as &dyn StepModel))
        .collect();
    let roofline = match &effect.part {
        Part::Family(name) => {
            let family = profile.families().iter().find(|family| family.name.eq_ignore_ascii_case(name));
            family.map(|family| family.roofline_ms.clone()).unwrap_or_default()
        }
        Part::Step | Part::Floor => Roofline::new(),
    };
    let batches = arguments.batch.clone().map_or_else(|| profile.batches().collect(), |batches| batches.0);
    let report = projected(arguments, profile.subject().to_owned(), &models, effect, &batches, &roofline)?;
    let measured = profile.batches().next().zip(profile.batches().next_back());
    let outside = |batch: &u32| measured.is_some_and(|(least, most)| !(least..=most).contains(batch));
    Ok(ProjectReport {
        refuted: refuted.into_iter().map(|kind| kind.name().to_owned()).collect(),
        extrapolated: batches.into_iter().filter(outside).collect(),
        ..report
    })
}

fn of_typed(arguments: &Arguments, effect: Effect) -> anyhow::Result<ProjectReport> {
    let flags = &arguments.step;
    let line = TypedStep {
        floor_ms: flags.floor.ok_or_else(|| bad_input("give --profile or --floor"))?,
        slopes_ms: flags.slope.iter().map(|slope| (slope.family.clone(), slope.ms)).collect(),
        sigma: flags.sigma / 100.0,
        throughput: flags.throughput.map(|band| band.0),
        bends: vec![],
    };
    line.check()?;
    let bend = |told: &FamilyAt| TypedBend {
        family: told.family.clone(),
        ms: told.ms,
        batch: told.batch,
        form: Form::Concave(Experts::default()),
    };
    let bent = TypedStep { bends: flags.concave.iter().map(bend).collect(), ..line.clone() };
    bent.check()?;
    let models: &[&dyn StepModel] = if bent.bends.is_empty() { &[&line] } else { &[&line, &bent] };
    let batches = arguments.batch.clone().map_or_else(|| BATCHES_UNLESS_TOLD.to_vec(), |batches| batches.0);
    let roofline =
        flags.roofline.map(|ms| batches.iter().map(|batch| (*batch, ms * f64::from(*batch))).collect());
    projected(arguments, subject(&line), models, effect, &batches, &roofline.unwrap_or_default())
}

/// `floor 36.3 ms, attention 0.79 ms a request`
fn subject(step: &TypedStep) -> String {
    let slopes = step.slopes_ms.iter().map(|(family, ms)| format!(", {family} {ms} ms a request"));
    let seen = step.throughput.map_or(String::new(), |seen| {
        format!(", {} to {} tok/s seen at {}", seen.low, seen.high, seen.batch)
    });
    format!("typed in: floor {} ms{}{seen}", step.floor_ms, slopes.collect::<String>())
}

/// The first model is the one that is believed; others are told where they disagree.
fn projected(
    arguments: &Arguments,
    subject: String,
    models: &[&dyn StepModel],
    effect: Effect,
    batches: &[u32],
    roofline: &Roofline,
) -> anyhow::Result<ProjectReport> {
    let transfer = arguments.transfer.unwrap_or_default();
    let of = |model: &&dyn StepModel| {
        // The same draws for every form, so that forms differ and luck does not.
        let random = &mut fastrand::Rng::with_seed(arguments.seed);
        Projection::of(*model, &effect, batches, transfer, roofline, random)
    };
    let mut forms = models.iter().map(of).collect::<Result<Vec<_>, _>>()?;
    let agreeing: Vec<String> = forms[1..]
        .iter()
        .filter(|other| !forms[0].differs_from(other))
        .map(|form| form.form.clone())
        .collect();
    forms.retain(|form| !agreeing.contains(&form.form));
    let flags = &arguments.decision;
    let decided = match flags.threshold {
        None => None,
        Some(percent) => {
            let at = flags.decide_at.as_ref().map_or(batches, |at| &at.0);
            if let Some(missing) = at.iter().find(|batch| !batches.contains(batch)) {
                return Err(bad_input(format!(
                    "--decide-at {missing}: this batch is not projected; add it to --batch"
                )));
            }
            if flags.days.is_some_and(|days| days <= 0.0) {
                return Err(bad_input("--days 0: a lever takes some time"));
            }
            let decision = Decision::by(&forms, at, percent / 100.0, flags.days);
            Some(Decided { decision, days: flags.days })
        }
    };
    Ok(ProjectReport {
        title: format!("Projection of {}", arguments.lever),
        lever: arguments.lever.clone(),
        subject,
        uncertainty: models[0].uncertainty().to_owned(),
        transfer,
        effect,
        forms,
        agreeing,
        refuted: Vec::new(),
        extrapolated: Vec::new(),
        decided,
    })
}

fn effect(arguments: &Arguments, kernel: Option<&Kernel>) -> anyhow::Result<Effect> {
    let (part, mechanism) = match &arguments.lever {
        Lever::Time { part, .. } => (part.clone(), None),
        Lever::Kernel { family, change } => {
            let told = |error: overshot_lab::LabError| match error {
                overshot_lab::LabError::NoKernel => {
                    bad_input(format!("{error}, with --regs, --warps, --smem and --arch, or with --cubin"))
                }
                other => other.into(),
            };
            let family = family.clone().unwrap_or_else(|| KERNEL_FAMILY.to_owned());
            (Part::Family(family), Some(Mechanism::of(change, kernel).map_err(told)?))
        }
    };
    let grid = match (sms(&arguments.kernel)?, arguments.kernel.ctas_per_request) {
        (Some(sms), Some(ctas_per_request)) => Some(Grid { sms, ctas_per_request }),
        _ => None,
    };
    Effect::of(&arguments.lever, part, mechanism, grid).map_err(|error| match error {
        overshot_lab::LabError::NoGrid => {
            bad_input(format!("{error}, with --card or --sms, and with --ctas-per-request"))
        }
        other => other.into(),
    })
}

/// Stairs are a form where the card and the grid are told; today's, so with as many CTAs an SM as it holds before the change.
fn forms(arguments: &Arguments, effect: &Effect) -> anyhow::Result<Forms> {
    let held = match &effect.gain {
        Gain::Waves { mechanism, .. } | Gain::Nothing { mechanism } => mechanism.ctas_per_sm_before,
        Gain::Time(_) => 1,
    };
    let slots = sms(&arguments.kernel)?.map(|sms| sms.get().saturating_mul(held)).and_then(NonZeroU32::new);
    let stairs = match (slots, arguments.kernel.ctas_per_request) {
        (Some(slots), Some(ctas_per_request)) => vec![Stairs { slots, ctas_per_request }],
        _ => vec![],
    };
    Ok(Forms { experts: Some(Experts::default()), stairs })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use overshot_lab::Settings;
    use overshot_lab::profile::{Family, RunsByBatch, StepClock};

    const CUBIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../gpu-model/tests/data/sm_120a.cubin");
    const STEP: [&str; 8] = [
        "--floor",
        "36.3",
        "--slope",
        "attention=0.79",
        "--slope",
        "moe=0.015",
        "--throughput",
        "775..845@96",
    ];
    const SECOND_CTA: [&str; 5] = ["CTAs/SM 1 -> 2", "--sms", "188", "--ctas-per-request", "4"];
    const KERNEL: [&str; 8] = ["--regs", "255", "--warps", "4", "--smem", "60", "--arch", "sm_120"];

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn print(flags: &[&str]) -> Result<String, String> {
        let line = Line::try_parse_from([&["project"], flags].concat()).map_err(|error| error.to_string())?;
        let mut out = Vec::new();
        run(&line.arguments, &mut out).map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&out).into_owned())
    }

    fn assert_parts(text: &str, parts: &[&str]) {
        for part in parts {
            assert!(text.contains(part), "{part} is missing in:\n{text}");
        }
    }

    #[test]
    fn the_register_rewrite_is_a_no_go_and_shared_memory_is_not() {
        let of =
            |lever: &str, more: &[&str]| print(&[&[lever], &STEP[..], &KERNEL[..], more].concat()).unwrap();
        let registers = of("registers -> 128", &["--threshold", "5"]);
        assert_parts(
            &registers,
            &[
                "CTAs per SM stay at 1, today bound by shared memory",
                "need <= 49 KB shared memory",
                "Projected: 0 at every batch",
                "Verdict: no-go\n  the mechanism does not move",
            ],
        );
        let grid = ["--card", "pro 6000", "--ctas-per-request", "4", "--batch", "64,96"];
        let memory =
            of("shared memory -> 49 KB", &[&grid[..], &["--threshold", "5", "--days", "8"]].concat());
        assert_parts(
            &memory,
            &["CTAs per SM 1 -> 2", "at most", "40.4 %", "28.6 %", "for each of 8 days", "Verdict: "],
        );
    }

    #[test]
    fn forms_that_disagree_are_both_shown() {
        let flags =
            [&["attention / 2"], &STEP[..], &["--concave", "moe=23.03@96", "--batch", "1,96"]].concat();
        let text = print(&flags).unwrap();
        assert_parts(
            &text,
            &["by the linear form", "by the concave form", "the forms disagree", "2.5 %", "50.1 %"],
        );
        let value: serde_json::Value =
            serde_json::from_str(&print(&[&flags[..], &["--json"]].concat()).unwrap()).unwrap();
        assert_eq!(value["forms"].as_array().unwrap().len(), 2);
        let row = &value["forms"][0]["rows"][1];
        assert!((row["as_told"].as_f64().unwrap() - 0.5010).abs() < 0.001 && row["batch"] == 96, "{row}");
        let alike =
            [&["attention / 2"], &STEP[..], &["--concave", "moe=23.03@96", "--batch", "80,96"]].concat();
        assert_parts(&print(&alike).unwrap(), &["by the concave form the uplifts are about the same"]);
    }

    #[test]
    fn a_profile_is_projected_and_files_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let series = |floor: f64, slope: f64| -> RunsByBatch {
            let runs =
                |batch: u32| [0.99, 1.0, 1.01].map(|f| f * (floor + slope * f64::from(batch))).to_vec();
            [8, 32, 64, 96].into_iter().map(|batch| (batch, runs(batch))).collect()
        };
        let family = |name: &str, floor, slope, roofline: f64| Family {
            name: name.into(),
            step_ms: series(floor, slope),
            roofline_ms: [8, 32, 64, 96]
                .into_iter()
                .map(|batch| (batch, roofline * f64::from(batch)))
                .collect(),
        };
        let families = vec![family("attention", 0.0, 0.79, 0.1), family("moe", 30.0, 0.015, 0.0)];
        let clock = StepClock::Wall;
        let profile =
            Profile::new("mock server", Settings::new(), clock, series(36.3, 0.805), families).unwrap();
        profile.write(Path::new(&place("profile.json"))).unwrap();
        let (profile, svg, page) = (place("profile.json"), place("p.svg"), place("p.md"));
        let flags =
            ["attention / 2", "--profile", &profile, "--svg", &svg, "--markdown", &page, "--threshold", "5"];
        let text = print(&flags).unwrap();
        assert_parts(
            &text,
            &[
                "mock server",
                "50.1 %",
                "the runs of the profile, resampled",
                "at its roofline, of which it takes up to 7.9 times",
            ],
        );
        assert!(std::fs::read_to_string(svg).unwrap().contains("requests in the batch (C)"));
        assert_parts(
            &std::fs::read_to_string(page).unwrap(),
            &["## Projection of attention / 2", "| 96 |", "Verdict: go"],
        );
        let unknown = print(&["sampling / 2", "--profile", &profile]).unwrap_err();
        assert_parts(&unknown, &["no family `sampling`", "attention, moe"]);
    }

    fn write_profile(path: &Path, step_ms: impl Fn(f64) -> f64) {
        let runs = |batch: u32| [0.99, 1.0, 1.01].map(|share| share * step_ms(f64::from(batch))).to_vec();
        let series: RunsByBatch =
            [1, 8, 16, 32, 48, 64, 80, 96].into_iter().map(|batch| (batch, runs(batch))).collect();
        let attention =
            Family { name: "attention".into(), step_ms: series.clone(), roofline_ms: Roofline::new() };
        let profile =
            Profile::new("mock", Settings::new(), StepClock::Wall, series, vec![attention]).unwrap();
        profile.write(path).unwrap();
    }

    #[test]
    fn forms_that_the_profile_refutes_have_no_say() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("profile.json");
        write_profile(&path, |batch| 5.0 + batch);
        let flags = ["step / 1.5", "--profile", path.to_str().unwrap(), "--sms", "188"];
        let flags = [&flags[..], &["--ctas-per-request", "4", "--batch", "16,512"]].concat();
        let text = print(&flags).unwrap();
        assert_parts(
            &text,
            &["staircase form is left out", "C=512: outside of the batches that were profiled"],
        );
        assert!(!text.contains("by the staircase form of the step"), "{text}");
    }

    #[test]
    fn a_roofline_ends_what_can_be_gained() {
        let text = print(&[&["attention / 10"], &STEP[..], &["--roofline", "0.5", "--batch", "96"]].concat());
        assert_parts(&text.unwrap(), &["asks for more than the roofline leaves at C=96"]);
        let text = print(&[&["attention / 2"], &STEP[..], &["--roofline", "2", "--batch", "96"]].concat());
        assert_parts(&text.unwrap(), &["takes less than its roofline at C=96"]);
    }

    #[test]
    fn a_kernel_comes_from_its_cubin() {
        let flags = [
            "registers -> 24",
            "--cubin",
            CUBIN,
            "--kernel",
            "spilling",
            "--warps",
            "4",
            "--dynamic-smem",
            "60",
        ];
        let text = print(&[&flags[..], &STEP[..]].concat()).unwrap();
        assert_parts(&text, &["CTAs per SM stay at 1, today bound by shared memory"]);
    }

    #[test]
    fn bad_input_is_one_sentence() {
        let with_step = |flags: &[&str]| print(&[flags, &STEP[..]].concat());
        for (result, part) in [
            (with_step(&["attention"]), "`attention` is no lever"),
            (with_step(&["sampling / 2"]), "no family `sampling`: it has attention, moe, rest"),
            (with_step(&["registers -> 128"]), "with --regs, --warps"),
            (with_step(&["CTAs/SM 1 -> 2"]), "with --card or --sms"),
            (with_step(&[&["CTAs/SM 2 -> 3"], &KERNEL[..]].concat()), "this kernel has 1"),
            (with_step(&[&["smem -> 120 KB"], &KERNEL[..]].concat()), "cannot hold a single CTA"),
            (with_step(&["step - 100 %"]), "would be left"),
            (with_step(&["attention / 2", "--threshold", "5", "--decide-at", "7"]), "--decide-at 7"),
            (with_step(&["attention / 2", "--batch", "1..4096"]), "give at most 256"),
            (with_step(&[&["attention / 2"], &KERNEL[..]].concat()), "is no lever of a kernel"),
            (with_step(&["attention / 2", "--warps", "4"]), "--regs"),
            (with_step(&["attention / 2", "--sms", "188"]), "--ctas-per-request"),
            (with_step(&["floor - 10 ms", "--roofline", "0.1"]), "`floor` is none"),
            (with_step(&[&SECOND_CTA[..], &["--transfer", "1"]].concat()), "from none to all"),
            (
                print(&[
                    "attention / 2",
                    "--floor",
                    "100",
                    "--slope",
                    "attention=0.8",
                    "--throughput",
                    "800@96",
                ]),
                "floor and slopes make 543 tok/s",
            ),
            (with_step(&["moe / 2", "--concave", "moe=23@96", "--concave", "moe=23@96"]), "told twice"),
            (with_step(&["attention / 2", "--threshold", "5", "--days", "0"]), "--days 0"),
            (with_step(&["attention / 2", "--threshold", "NaN"]), "from 0 to 1e15"),
            (with_step(&["attention / 2", "--sigma", "80"]), "not between 0 and 50 %"),
            (with_step(&["attention / 2", "--concave", "moe=99@96"]), "more than floor and slopes leave"),
            (with_step(&["registers -> 24", "--cubin", CUBIN]), "say which with --kernel"),
            (with_step(&["registers -> 24", "--cubin", CUBIN, "--kernel", "absent"]), "no kernel in"),
            (with_step(&["attention / 2", "--profile", "no.json"]), "cannot be used with"),
            (print(&["attention / 2", "--profile", "no/such.json"]), "no/such.json: cannot be opened"),
            (print(&["attention / 2"]), "--profile"),
            (print(&["attention / 2", "--floor", "-1"]), "from 0 to 1e15"),
        ] {
            let error = result.expect_err(part);
            assert!(error.contains(part), "{error}");
        }
    }
}
