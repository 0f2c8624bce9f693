//! `overshot lab profile`: where the time of a decode step goes and how it grows with the batch. Sources are a sweep over this
//! process's engine or a server, traces of profilers, or a profile that was saved; all become the same profile, which is
//! analysed, shown and saved for `overshot lab project`.

use super::numbers::{at_least_one, not_negative};
use super::profile_sources::{Source, SourceFlags, read_source};
use super::profile_tables::{Experts, FamilyBytes, FamilyTiles, experts, family_bytes, family_tiles};
use crate::bench::subtitle;
use crate::failure::bad_input;
use crate::outputs::{Outputs, Report, check_place};
use clap::Args;
use overshot_gpu_model::Card;
use overshot_lab::profile::analysis::{Analysis, Iterations, unknown_family};
use overshot_lab::profile::families::DEFAULT_RULES;
use overshot_lab::profile::{self, FAMILIES_MAX, Forms, Profile, Stairs};
use overshot_lab::report::{Form, Plot};
use serde::Serialize;
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  overshot lab profile --concurrency 1,2,4,8,16
  overshot lab profile --url http://localhost:8000 --concurrency 1,8,32,96
  overshot lab profile --trace 16=b16.json.gz --trace 64=b64.json.gz --svg step.svg
  overshot lab profile --trace 16=b16.csv --trace 64=b64.csv --steps 100
  overshot lab profile --from profile.json --card H200 --roofline attention=16MB/request --bandwidth 4800

Traces: torch.profiler's chrome traces, as SGLang and vLLM write them, or cuda_gpu_trace or cuda_gpu_kern_sum as CSV of
nsys stats. Each is of one batch. More in docs/lab-profile.md.";

/// CTAs a request that are tried when a staircase is looked for.
const CTAS_PER_REQUEST_TRIED: NonZeroU32 = NonZeroU32::new(16).expect("16 is above 0");

/// Where the time of a step goes, and how it grows with the batch.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    source: SourceFlags,

    /// Save the profile to this file
    #[arg(long, value_name = "FILE.json")]
    save: Option<PathBuf>,

    /// Print the rules of families that are used unless --families gives others, and end
    #[arg(long)]
    print_families: bool,

    /// All experts and those that a token uses, for times that grow as more experts are touched; 0:0 for none
    #[arg(long, value_name = "ALL:USED", default_value = "256:6", value_parser = experts)]
    experts: Experts,

    /// The card, for times that grow in waves; its name, such as H200
    #[arg(long, value_name = "NAME", conflicts_with = "sms")]
    card: Option<String>,

    /// SMs of the card, where it is not known by name [default: what the trace says]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one)]
    sms: Option<NonZeroU32>,

    /// CTAs of a kernel that an SM holds [default: 1 and 2 are tried]
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = at_least_one)]
    ctas_per_sm: Option<NonZeroU32>,

    /// CTAs of a kernel for each request [default: 1 to 16 are tried]
    #[arg(long, value_name = "U", allow_negative_numbers = true, value_parser = at_least_one)]
    ctas_per_request: Option<NonZeroU32>,

    /// Tell what one tile of a family's kernel takes: tiles of a request; needs --layers, --ctas-per-request and a card
    #[arg(long, value_name = "FAMILY=TILES", value_parser = family_tiles, requires = "ctas_per_request", requires = "layers")]
    tiles: Vec<FamilyTiles>,

    /// Launches of such a kernel in a step
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one)]
    layers: Option<NonZeroU32>,

    /// Bytes that a family must move, such as attention=16MB/request or experts=36GB/step; several add up
    #[arg(long, value_name = "FAMILY=BYTES/PER", value_parser = family_bytes, requires = "bandwidth")]
    roofline: Vec<FamilyBytes>,

    /// What memory moves, for --roofline, in GB (of 10^9 bytes) per second
    #[arg(long, value_name = "GB/S", allow_negative_numbers = true, value_parser = not_negative, requires = "roofline")]
    bandwidth: Option<f64>,

    #[command(flatten)]
    outputs: Outputs,
}

/// # Errors
/// A source that cannot be read or measured, flags that name what is not there, files that cannot be written.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
    if arguments.print_families {
        return Ok(out.write_all(DEFAULT_RULES.as_bytes())?);
    }
    arguments.outputs.check()?;
    if let Some(path) = &arguments.save {
        check_place("--save", path)?;
    }
    let card = arguments.card.as_deref().map(Card::named).transpose();
    let card = card.map_err(|error| bad_input(format!("--card: {error}")))?;
    let Source { profile, sms, notes, seed } = read_source(&arguments.source)?;
    let profile = with_roofline(profile, arguments)?;
    if let Some(path) = &arguments.save {
        profile.write(path)?;
    }
    let told = card.and_then(|card| NonZeroU32::new(card.sms)).or(arguments.sms);
    let slots = slots(told.or(sms), arguments.ctas_per_sm)?;
    let forms = forms(arguments, &slots);
    let iterations = iterations(arguments, &slots)?;
    let random = &mut fastrand::Rng::with_seed(seed);
    let analysis =
        Analysis::of(&profile, &forms, &iterations, random).map_err(|error| bad_input(error.to_string()))?;
    arguments.outputs.write(&ProfileReport { analysis, notes }, out)
}

/// Of every number of CTAs that an SM may hold; none where no card is known.
fn slots(sms: Option<NonZeroU32>, ctas_per_sm: Option<NonZeroU32>) -> anyhow::Result<Vec<NonZeroU32>> {
    let Some(sms) = sms else { return Ok(Vec::new()) };
    let held = ctas_per_sm.map_or(vec![1, 2], |held| vec![held.get()]);
    let slots = held.into_iter().map(|held| sms.get().checked_mul(held).and_then(NonZeroU32::new));
    let slots: Option<Vec<NonZeroU32>> = slots.collect();
    slots.ok_or_else(|| bad_input("--sms times --ctas-per-sm is more than any card has"))
}

fn forms(arguments: &Arguments, slots: &[NonZeroU32]) -> Forms {
    let stairs = match arguments.ctas_per_request {
        Some(ctas) => slots.iter().map(|slots| Stairs { slots: *slots, ctas_per_request: ctas }).collect(),
        None => Stairs::search(slots, CTAS_PER_REQUEST_TRIED),
    };
    Forms { experts: arguments.experts.0, stairs }
}

fn iterations(arguments: &Arguments, slots: &[NonZeroU32]) -> anyhow::Result<Vec<Iterations>> {
    let (Some(ctas_per_request), Some(layers)) = (arguments.ctas_per_request, arguments.layers) else {
        return Ok(Vec::new());
    };
    let Some(slots) = slots.first().copied() else {
        let missing = "--tiles needs to know the card: give --card or --sms";
        return if arguments.tiles.is_empty() { Ok(Vec::new()) } else { Err(bad_input(missing)) };
    };
    let stairs = Stairs { slots, ctas_per_request };
    let walk =
        |told: &FamilyTiles| Iterations { family: told.family.clone(), layers, tiles: told.tiles, stairs };
    Ok(arguments.tiles.iter().map(walk).collect())
}

/// The profile with what `--roofline` says; what it knew before stays for other families.
fn with_roofline(profile: Profile, arguments: &Arguments) -> anyhow::Result<Profile> {
    let Some(gb_per_s) = arguments.bandwidth else { return Ok(profile) };
    if gb_per_s == 0.0 {
        return Err(bad_input("--bandwidth 0 moves nothing: give GB per second, such as 4800"));
    }
    debug_assert!(profile.families().len() <= FAMILIES_MAX);
    let mut families = profile.families().to_vec();
    for family in &mut families {
        let mut of_family = arguments.roofline.iter().filter(|told| told.family == family.name).peekable();
        if of_family.peek().is_none() {
            continue;
        }
        let bytes = |batch: u32| of_family.clone().map(|told| told.at(batch)).sum::<f64>();
        let ms = |batch: u32| bytes(batch) / (gb_per_s * 1e9) * 1e3;
        family.roofline_ms = profile.batches().map(|batch| (batch, ms(batch))).collect();
    }
    if let Some(told) = arguments.roofline.iter().find(|told| profile.family(&told.family).is_none()) {
        return Err(anyhow::Error::new(unknown_family(&profile, &told.family)).context("--roofline"));
    }
    let (subject, settings, clock) = (profile.subject(), profile.settings().clone(), profile.clock());
    Ok(Profile::new(subject, settings, clock, profile.step_ms().clone(), families)?)
}

/// The analysis, and what was noticed while its source was read.
#[derive(Serialize)]
struct ProfileReport {
    #[serde(flatten)]
    analysis: Analysis,
    notes: Vec<String>,
}

impl Report for ProfileReport {
    fn title(&self) -> &str {
        &self.analysis.subject
    }

    fn subtitle(&self) -> String {
        let card = self.analysis.settings.get("card").map(|card| format!("card {card}"));
        card.into_iter()
            .chain([subtitle(&self.analysis.settings)])
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join("; ")
    }

    fn plot(&self) -> Plot {
        profile::plots::plot(&self.analysis, &self.subtitle())
    }

    fn text(&self, form: Form, out: &mut dyn Write) -> io::Result<()> {
        profile::text::write(&self.analysis, form, out)?;
        self.notes.iter().try_for_each(|note| profile::text::sentence(form, &format!("Note: {note}."), out))
    }

    fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}
