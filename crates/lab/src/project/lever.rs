//! What people write a change as ("attention / 1.5", "registers -> 128"), read into numbers. A lever says what changes,
//! not what that is worth: `mechanism.rs` asks whether it can change anything, `projection.rs` what the step gains.
//!
//! ```text
//! PART / K            the part takes a K-th of its time          attention / 1.5
//! PART x F            the part takes F times its time            attention x 0.5
//! PART - P %          the part takes P percent less              host gap - 50 %
//! PART - T ms         the part takes T ms less a step            floor - 10 ms
//! CTAs/SM A -> B      an SM holds B CTAs of the kernel           CTAs/SM 1 -> 2
//! RESOURCE -> AMOUNT  a CTA of the kernel uses another amount    shared memory -> 49 KB and registers -> 168
//! ```
//!
//! A part is `step`, `floor` (what a step of no requests would take) or a family of kernels by its name. The last two forms
//! may begin with `FAMILY:`, where the kernel belongs to.

use crate::LabError;
use overshot_gpu_model::{Launch, Resource};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// A longer text is no lever.
const CHARS_MAX: usize = 200;
const MS_MAX: f64 = 1e6;
const FACTOR_MAX: f64 = 1e4;
const CTAS_MAX: u32 = 32;
const SHARED_BYTES_MAX: f64 = 1024.0 * 1024.0;

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Lever {
    /// A part of the step takes another time, for whatever reason.
    Time { part: Part, change: Change },
    /// A kernel of the family is built or launched otherwise. `family` is `None` where the text names none.
    Kernel { family: Option<String>, change: KernelChange },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// All of it.
    Step,
    /// What does not grow with the batch, of all families together.
    Floor,
    Family(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The part takes this share of its time: 0 when it vanishes, above 1 when it gets slower.
    Keeps(f64),
    LessMs(f64),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelChange {
    CtasPerSm { from: u32, to: u32 },
    Resources(Vec<Amount>),
}

/// In the resource's own unit: bytes, registers a thread, warps or barriers a CTA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Amount {
    pub resource: Resource,
    pub amount: u32,
}

impl Amount {
    pub fn applied_to(self, launch: Launch) -> Launch {
        match self.resource {
            Resource::Registers => Launch { registers_per_thread: self.amount, ..launch },
            Resource::SharedMemory => Launch { shared_bytes_per_cta: self.amount, ..launch },
            Resource::Warps => Launch { warps_per_cta: self.amount, ..launch },
            Resource::NamedBarriers => Launch { named_barriers_per_cta: self.amount, ..launch },
            Resource::CtaSlots => launch,
        }
    }
}

impl FromStr for Lever {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        let read = if text.chars().count() > CHARS_MAX {
            Err(format!("it is longer than {CHARS_MAX} characters"))
        } else if text.contains("->") || text.contains('→') {
            kernel(text)
        } else {
            time(text)
        };
        read.map_err(|what| LabError::BadLever { given: text.chars().take(CHARS_MAX).collect(), what })
    }
}

fn time(text: &str) -> Result<Lever, String> {
    let lower = text.to_lowercase();
    let mut refusal = None;
    for (sign, is_letter) in [("/", false), ("*", false), ("×", false), ("x", true), ("-", false)] {
        for (at, _) in lower.match_indices(sign) {
            let (before, after) = (&lower[..at], lower[at + sign.len()..].trim());
            // The letter is a sign only where it stands alone: `max x 2`.
            if before.trim().is_empty()
                || !after.starts_with(|first: char| first.is_ascii_digit() || first == '.')
                || (is_letter && !before.ends_with(' '))
            {
                continue;
            }
            match change(sign, after) {
                Ok(change) => return Ok(Lever::Time { part: part(before), change }),
                // The sign may stand in a name, and the lever's own come later.
                Err(what) => refusal = refusal.or(Some(what)),
            }
        }
    }
    Err(refusal.unwrap_or_else(|| "it does not say how a time changes".into()))
}

fn part(text: &str) -> Part {
    let name = text.trim();
    let name = name.strip_suffix(" time").unwrap_or(name).trim();
    match name {
        "step" | "whole step" => Part::Step,
        "floor" => Part::Floor,
        family => Part::Family(family.to_owned()),
    }
}

fn change(sign: &str, amount: &str) -> Result<Change, String> {
    let (digits, unit) = number_and_unit(amount);
    let number: f64 = digits.parse().map_err(|_| format!("`{amount}` is no number"))?;
    match (sign, unit) {
        ("-", "ms") => within(number, MS_MAX, "ms").map(Change::LessMs),
        ("-", "us" | "µs") => within(number / 1e3, MS_MAX, "ms").map(Change::LessMs),
        ("-", "%") => within(number, 100.0, "%").map(|percent| Change::Keeps(1.0 - percent / 100.0)),
        ("-", _) => Err(format!("`- {amount}` has no unit that is known: use ms, us or %")),
        ("/", "") if number <= 0.0 => Err("nothing can be divided by 0".into()),
        ("/", "") => within(number, FACTOR_MAX, "times").map(|times| Change::Keeps(1.0 / times)),
        (_, "") => within(number, FACTOR_MAX, "times").map(Change::Keeps),
        _ => Err(format!("`{unit}` stands behind a factor, which has no unit")),
    }
}

fn within(number: f64, most: f64, unit: &str) -> Result<f64, String> {
    if number > 0.0 && number <= most {
        Ok(number)
    } else {
        Err(format!("{number} {unit} is not above 0 and at most {most}"))
    }
}

/// `49 KB` in two, the unit in small letters.
fn number_and_unit(text: &str) -> (&str, &str) {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let end = text.find(|c: char| !is_number(c)).unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

fn kernel(text: &str) -> Result<Lever, String> {
    let (family, changes) = match text.split_once(':') {
        Some((family, _)) if family.trim().is_empty() => return Err("no family stands before `:`".into()),
        Some((family, changes)) => (Some(family.trim().to_lowercase()), changes),
        None => (None, text),
    };
    let lower = changes.to_lowercase().replace('→', "->").replace(" and ", ",");
    let parts: Vec<(&str, &str)> = lower
        .split(',')
        .map(|part| part.split_once("->").ok_or_else(|| format!("`{}` has no `->`", part.trim())))
        .collect::<Result<_, _>>()?;
    let change = match parts.as_slice() {
        [(before, after)] if before.trim().starts_with("cta") => ctas(before.trim(), after.trim())?,
        several => {
            let amounts = several.iter().map(|(name, amount)| resource(name.trim(), amount.trim()));
            KernelChange::Resources(distinct(amounts.collect::<Result<_, _>>()?)?)
        }
    };
    Ok(Lever::Kernel { family, change })
}

fn ctas(before: &str, after: &str) -> Result<KernelChange, String> {
    let names = ["ctas/sm", "ctas per sm", "cta/sm"];
    let from = names.iter().find_map(|name| before.strip_prefix(name));
    let from = from.ok_or_else(|| format!("`{before}` is not CTAs/SM"))?;
    let number = |text: &str| {
        let number = text.trim().parse().ok().filter(|number| (1..=CTAS_MAX).contains(number));
        number.ok_or_else(|| format!("`{}` is no number of CTAs from 1 to {CTAS_MAX}", text.trim()))
    };
    Ok(KernelChange::CtasPerSm { from: number(from)?, to: number(after)? })
}

fn resource(name: &str, amount: &str) -> Result<Amount, String> {
    let resource = match name {
        "registers" | "regs" => Resource::Registers,
        "shared memory" | "smem" => Resource::SharedMemory,
        "warps" => Resource::Warps,
        "named barriers" | "barriers" => Resource::NamedBarriers,
        _ => {
            return Err(format!(
                "`{name}` is none of registers, shared memory, warps, named barriers, CTAs/SM"
            ));
        }
    };
    let (digits, unit) = number_and_unit(amount);
    let number: f64 = digits.parse().map_err(|_| format!("`{amount}` is no amount of {resource}"))?;
    let amount = match (resource, unit) {
        (Resource::SharedMemory, "kb" | "kib") => within(number * 1024.0, SHARED_BYTES_MAX, "bytes")?,
        (Resource::SharedMemory, "b" | "bytes") => within(number, SHARED_BYTES_MAX, "bytes")?,
        (Resource::SharedMemory, _) => {
            return Err(format!("`{amount}` has no unit that is known: use KB of 1,024 bytes, or B"));
        }
        (_, "") if number.fract() == 0.0 && number <= 1024.0 => number,
        _ => return Err(format!("`{amount}` is no whole number of {resource}")),
    };
    Ok(Amount { resource, amount: amount.ceil() as u32 })
}

fn distinct(amounts: Vec<Amount>) -> Result<Vec<Amount>, String> {
    for (index, amount) in amounts.iter().enumerate() {
        if amounts[..index].iter().any(|other| other.resource == amount.resource) {
            return Err(format!("{} are told twice", amount.resource));
        }
    }
    Ok(amounts)
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Step => "step",
            Part::Floor => "floor",
            Part::Family(name) => name,
        })
    }
}

impl fmt::Display for Lever {
    /// So that it reads back as the same lever.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lever::Time { part, change: Change::LessMs(ms) } => write!(f, "{part} - {ms} ms"),
            Lever::Time { part, change: Change::Keeps(0.0) } => write!(f, "{part} - 100 %"),
            Lever::Time { part, change: Change::Keeps(share) } => {
                // As the rounder of the two: a third of the time is `/ 3`.
                let (times, factor) = (format!("x {share}"), format!("/ {}", 1.0 / share));
                let divides = factor.len() < times.len() && 1.0 / (1.0 / share) == *share;
                write!(f, "{part} {}", if divides { factor } else { times })
            }
            Lever::Kernel { family, change } => {
                if let Some(family) = family {
                    write!(f, "{family}: ")?;
                }
                match change {
                    KernelChange::CtasPerSm { from, to } => write!(f, "CTAs/SM {from} -> {to}"),
                    KernelChange::Resources(amounts) => {
                        let texts: Vec<String> = amounts.iter().map(Amount::to_string).collect();
                        f.write_str(&texts.join(" and "))
                    }
                }
            }
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Amount { resource, amount } = self;
        match resource {
            Resource::SharedMemory if amount.is_multiple_of(1024) => {
                write!(f, "{resource} -> {} KB", amount / 1024)
            }
            Resource::SharedMemory => write!(f, "{resource} -> {amount} B"),
            _ => write!(f, "{resource} -> {amount}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Lever {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn family(name: &str, change: Change) -> Lever {
        Lever::Time { part: Part::Family(name.into()), change }
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        for text in
            ["attention / 2", "attention time / 2", "Attention/2", "attention x 0.5", "attention * .5"]
        {
            assert_eq!(read(text), family("attention", Change::Keeps(0.5)), "{text}");
        }
        assert_eq!(read("host gap - 50 %"), family("host gap", Change::Keeps(0.5)));
        assert_eq!(read("host-gap - 2 ms"), family("host-gap", Change::LessMs(2.0)));
        assert_eq!(read("max x 2"), family("max", Change::Keeps(2.0)));
        assert_eq!(read("moe - 100%"), family("moe", Change::Keeps(0.0)));
        assert_eq!(read("floor - 10 ms"), Lever::Time { part: Part::Floor, change: Change::LessMs(10.0) });
        assert_eq!(read("step - 500 us"), Lever::Time { part: Part::Step, change: Change::LessMs(0.5) });
    }

    #[test]
    fn kernels_change_in_resources_or_ctas() {
        let ctas = KernelChange::CtasPerSm { from: 1, to: 2 };
        assert_eq!(read("CTAs/SM 1 -> 2"), Lever::Kernel { family: None, change: ctas.clone() });
        assert_eq!(
            read("attention: ctas per SM 1→2"),
            Lever::Kernel { family: Some("attention".into()), change: ctas }
        );
        let amounts = vec![
            Amount { resource: Resource::SharedMemory, amount: 49 << 10 },
            Amount { resource: Resource::Registers, amount: 168 },
        ];
        assert_eq!(
            read("shared memory -> 49 KB and registers -> 168"),
            Lever::Kernel { family: None, change: KernelChange::Resources(amounts) }
        );
    }

    #[test]
    fn what_is_written_reads_back() {
        for text in
            ["attention / 1.5", "attention / 3", "moe x 0.8", "host gap - 0.25 ms", "registers -> 128"]
        {
            assert_eq!(read(text).to_string(), text);
        }
        for text in [
            "attention / 1.5",
            "moe - 100 %",
            "floor - 10 ms",
            "step x 1.25",
            "CTAs/SM 1 -> 2",
            "attention: registers -> 128 and smem -> 8.5 KB",
            "warps -> 8, barriers -> 4",
        ] {
            let lever = read(text);
            assert_eq!(read(&lever.to_string()), lever, "{text}");
        }
    }

    #[test]
    fn what_is_no_lever_is_told_with_the_forms_that_are() {
        for (text, part) in [
            ("", "how a time changes"),
            ("attention", "how a time changes"),
            ("faster attention", "how a time changes"),
            ("/ 2", "how a time changes"),
            ("attention / 0", "divided by 0"),
            ("attention / NaN", "how a time changes"),
            ("attention / 1.2.3", "no number"),
            ("attention / 2 ms", "has no unit"),
            ("attention - 2", "use ms, us or %"),
            ("attention - 101 %", "at most 100"),
            ("attention - 2 KB", "use ms, us or %"),
            ("attention x 1000000", "at most 10000"),
            ("CTAs/SM 0 -> 2", "no number of CTAs"),
            ("CTAs/SM -> 2", "no number of CTAs"),
            ("CTAs 1 -> 2", "is not CTAs/SM"),
            ("shared memory -> 49", "use KB of 1,024 bytes"),
            ("registers -> 128 KB", "no whole number"),
            ("registers -> 1.5", "no whole number"),
            ("registers -> -4", "no amount"),
            ("tensor memory -> 4", "is none of registers"),
            ("registers -> 4 and warps", "has no `->`"),
            ("registers -> 4, regs -> 5", "told twice"),
            (": registers -> 4", "no family"),
            (&"x".repeat(9999), "longer than"),
        ] {
            let error = text.parse::<Lever>().expect_err(text).to_string();
            assert!(error.contains(part) && error.contains("CTAs/SM 1 -> 2"), "{text}: {error}");
            assert!(error.len() < 600 && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn any_text_is_a_lever_or_an_error() {
        let cases = overshot_testing::cases(2000);
        let seed = overshot_testing::seed();
        let mut random = fastrand::Rng::with_seed(seed);
        let pieces = [
            "attention",
            " ",
            "/",
            "-",
            "->",
            "→",
            "x",
            "×",
            "%",
            "ms",
            "1.5",
            "0",
            "-1",
            "1e9",
            "registers",
            ":",
            "shared memory",
            "KB",
            "CTAs/SM",
            " and ",
            ",",
            "ünï",
            "\u{0}",
            "99999999999999999999",
        ];
        for _ in 0..cases {
            let text: String =
                (0..random.usize(..12)).map(|_| pieces[random.usize(..pieces.len())]).collect();
            // A lever near the limit may be longer when it is written in full.
            if text.len() < CHARS_MAX / 2
                && let Ok(lever) = text.parse::<Lever>()
            {
                let again = lever.to_string().parse::<Lever>();
                assert!(again.is_ok(), "seed {seed}: {text:?} gave {lever}, which gave {again:?}");
            }
        }
    }
}
