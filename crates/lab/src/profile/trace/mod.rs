//! Traces of profilers as a source of profiles: what ran on the device in the steps of one file. Two kinds are read, told
//! apart by their first bytes: chrome traces as PyTorch's profiler writes them (and so SGLang and vLLM), plain or packed by
//! gzip, and statistics that Nsight Systems exports as CSV.
//!
//! Everything is read as a stream and counted: a trace is hundreds of megabytes, and a small packed file may unpack to more.

mod chrome;
mod csv;
mod nsight;
mod steps;
mod timeline;

pub use steps::StepRule;

use super::families::{FamilyRules, Pattern};
use super::{Family, Profile, RunsByBatch, StepClock, largest_first};
use crate::{LabError, Settings};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Unpacked.
const TRACE_BYTES_MAX: u64 = 8 << 30;

const TEXT_BYTES_MAX: usize = 64 << 20;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

#[derive(Clone, Debug)]
pub struct TraceOptions {
    pub rules: FamilyRules,
    pub steps: StepRule,
    /// Events of this category instead of what ran on a device, such as `cpu_op`; of nested ones the outermost.
    pub category: Option<String>,
}

/// What one trace says of its steps.
#[derive(Clone, Debug, PartialEq)]
pub struct TracedSteps {
    pub clock: StepClock,
    pub step_ms: Vec<f64>,
    /// By name, as many as steps; the host gap among them where the clock is the wall's.
    pub families: BTreeMap<String, Vec<f64>>,
    /// The card, as the trace names it, and its SMs.
    pub device: Option<String>,
    pub sms: Option<u32>,
    /// Kernels that no rule knows, longest first: name and share of all kernel time.
    pub unknown: Vec<(String, f64)>,
    /// What a reader must know about how the numbers were made.
    pub notes: Vec<String>,
}

/// # Errors
/// One sentence with the file: what it is not, where it is cut, why no steps can be told in it.
pub fn read_trace(path: &Path, options: &TraceOptions) -> Result<TracedSteps, LabError> {
    let told = |what: String| LabError::BadProfile { subject: path.display().to_string(), what };
    let metadata = std::fs::metadata(path).map_err(|error| told(format!("cannot be opened: {error}")))?;
    if !metadata.is_file() {
        return Err(told("not a regular file".into()));
    }
    let file = File::open(path).map_err(|error| told(format!("cannot be opened: {error}")))?;
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let begin = reader.fill_buf().map_err(|error| told(format!("cannot be read: {error}")))?;
    if begin.is_empty() {
        return Err(told("the file is empty".into()));
    }
    if begin.starts_with(&GZIP_MAGIC) {
        let unpacked = flate2::bufread::MultiGzDecoder::new(reader);
        read_plain(&mut BufReader::with_capacity(1 << 20, unpacked.take(TRACE_BYTES_MAX)), options)
    } else {
        read_plain(&mut reader.take(TRACE_BYTES_MAX), options)
    }
    .map_err(told)
}

fn read_plain(reader: &mut dyn BufRead, options: &TraceOptions) -> Result<TracedSteps, String> {
    let begin = reader.fill_buf().map_err(|error| format!("cannot be read: {error}"))?;
    let first = begin.iter().copied().find(|byte| !byte.is_ascii_whitespace());
    match first {
        Some(b'{' | b'[') => {
            let timeline =
                chrome::read(&mut ShortTexts { reader, since_quote: 0 }, options.category.as_deref())?;
            steps::of_timeline(timeline, &options.steps, &options.rules)
        }
        Some(_) if options.category.is_some() => {
            Err("--category asks for events of a chrome trace, and this is none".into())
        }
        Some(_) => nsight::read(reader, &options.steps, &options.rules),
        None => Err("the file holds nothing but spaces".into()),
    }
}

/// Refuses what no trace has, a text of many megabytes: it would be held in memory whole.
struct ShortTexts<'a> {
    reader: &'a mut dyn BufRead,
    since_quote: usize,
}

impl Read for ShortTexts<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.reader.read(into)?;
        self.since_quote = match into[..count].iter().rposition(|byte| *byte == b'"') {
            Some(place) => count - place,
            None => self.since_quote + count,
        };
        if self.since_quote > TEXT_BYTES_MAX {
            return Err(std::io::Error::other("a text or number in it is longer than 64 MiB"));
        }
        Ok(count)
    }
}

/// The traces of several batches as one profile. Several traces of a batch are more runs of it.
///
/// # Errors
/// Traces whose steps are timed differently, or that come from different cards.
pub fn profile_of_traces(subject: &str, traces: &[(u32, PathBuf, TracedSteps)]) -> Result<Profile, LabError> {
    let other = |what: String| LabError::BadProfile { subject: subject.to_owned(), what };
    let clock = traces.first().map_or(StepClock::Wall, |(_, _, steps)| steps.clock);
    let device = traces.first().and_then(|(_, _, steps)| steps.device.clone());
    let mut step_ms = RunsByBatch::new();
    let mut names: Vec<&String> = Vec::new();
    for (_, path, steps) in traces {
        if steps.clock != clock {
            let what =
                format!("{} has other step times than the first trace: use one kind of file", path.display());
            return Err(other(what));
        }
        if steps.device != device {
            let shown = |device: &Option<String>| device.clone().unwrap_or_else(|| "an unknown card".into());
            let (found, first) = (shown(&steps.device), shown(&device));
            return Err(other(format!("{} ran on {found} and the first trace on {first}", path.display())));
        }
        names.extend(steps.families.keys().filter(|name| !names.contains(name)).collect::<Vec<_>>());
    }
    let mut families: Vec<Family> = names
        .iter()
        .map(|name| Family {
            name: (*name).clone(),
            step_ms: RunsByBatch::new(),
            roofline_ms: BTreeMap::new(),
        })
        .collect();
    for (batch, _, steps) in traces {
        step_ms.entry(*batch).or_default().extend(&steps.step_ms);
        for family in &mut families {
            let absent = vec![0.0; steps.step_ms.len()];
            let runs = steps.families.get(&family.name).unwrap_or(&absent);
            family.step_ms.entry(*batch).or_default().extend(runs);
        }
    }
    largest_first(&mut families);
    let settings = device.map(|device| ("card".to_owned(), device)).into_iter().collect::<Settings>();
    Profile::new(subject, settings, clock, step_ms, families)
}

/// A pattern for names of annotations or kernels.
///
/// # Errors
/// The rest of a sentence.
pub fn pattern(text: &str) -> Result<Pattern, String> {
    Pattern::new(text).ok_or_else(|| "use a part of a name, such as ProfilerStep".into())
}
