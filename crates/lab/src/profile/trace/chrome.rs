//! Chrome traces as PyTorch's profiler writes them: a JSON object with `traceEvents`, or the list alone. Read event by event,
//! so that memory holds what ran and nothing of the rest. Only complete events (`"ph": "X"`) count; categories are
//!
//! ```text
//! kernel, gpu_memcpy, gpu_memset          what ran on a device (args.device, args.correlation)
//! gpu_user_annotation, user_annotation    spans that may be steps, on the device's or the host's clock
//! cuda_runtime, cuda_driver               launches, which tie what ran to the host's spans
//! ```
//!
//! Fields come in several types from several writers, so a field of an unexpected type is one that is not there.

use super::timeline::{Annotation, AnnotationClock, Ran, Timeline};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use std::fmt;
use std::io::{BufReader, Read};

/// # Errors
/// The rest of a sentence: not JSON, not a trace, or cut short.
pub fn read(reader: &mut impl Read, category: Option<&str>) -> Result<Timeline, String> {
    let mut timeline = Timeline::default();
    timeline.on_host = category.is_some();
    let mut found = false;
    let seed = TraceSeed { timeline: &mut timeline, category, found: &mut found };
    // The parser asks for single bytes.
    let mut json = serde_json::Deserializer::from_reader(BufReader::with_capacity(64 << 10, reader));
    seed.deserialize(&mut json).and_then(|()| json.end()).map_err(|error| told(&error))?;
    if !found {
        return Err("it is JSON without traceEvents, so no trace of a profiler".into());
    }
    if timeline.ran.is_empty() {
        return Err(match category {
            Some(category) => format!("no event of the category `{category}` with a time is in it"),
            None => "no kernel is in it: trace the device too, or name what to count with --category (such as cpu_op)".into(),
        });
    }
    Ok(timeline)
}

fn told(error: &serde_json::Error) -> String {
    let place = format!("line {}, column {}", error.line(), error.column());
    match error.classify() {
        serde_json::error::Category::Eof => {
            format!("the trace ends in the middle, at {place}: it was cut short, export it again")
        }
        serde_json::error::Category::Io => {
            let is_cut = error.io_error_kind().is_some_and(|kind| {
                matches!(kind, std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::InvalidInput)
            });
            let hint = if is_cut { ": the packed file was cut short, export it again" } else { "" };
            format!("cannot be read: {error}{hint}")
        }
        serde_json::error::Category::Syntax => format!("not a chrome trace: {error}"),
        serde_json::error::Category::Data => error.to_string(),
    }
}

struct TraceSeed<'a> {
    timeline: &'a mut Timeline,
    category: Option<&'a str>,
    found: &'a mut bool,
}

impl<'de> DeserializeSeed<'de> for TraceSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TraceSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a chrome trace")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "traceEvents" => {
                    *self.found = true;
                    map.next_value_seed(EventsSeed { timeline: self.timeline, category: self.category })?;
                }
                "deviceProperties" => {
                    let FirstDevice(device) = map.next_value()?;
                    let name = device.name.text();
                    self.timeline.device = (!name.is_empty()).then(|| name.to_owned());
                    self.timeline.sms = Some(device.sms.number() as u32).filter(|sms| *sms > 0);
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        *self.found = true;
        EventsSeed { timeline: self.timeline, category: self.category }.visit_seq(seq)
    }
}

struct EventsSeed<'a> {
    timeline: &'a mut Timeline,
    category: Option<&'a str>,
}

impl<'de> DeserializeSeed<'de> for EventsSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for EventsSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("traceEvents as a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(event) = seq.next_element::<Event>()? {
            take(event, self.timeline, self.category).map_err(de::Error::custom)?;
        }
        Ok(())
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Event {
    ph: Scalar,
    cat: Scalar,
    name: Scalar,
    ts: Scalar,
    dur: Scalar,
    tid: Scalar,
    args: Args,
}

fn take(event: Event, timeline: &mut Timeline, category: Option<&str>) -> Result<(), String> {
    if event.ph.text() != "X" {
        return Ok(());
    }
    let (start_us, duration_us) = (event.ts.number(), event.dur.number());
    let found = event.cat.text();
    if let Some(category) = category {
        if found == category {
            let place = timeline.place(&event.tid.shown())?;
            let name = timeline.name(event.name.text())?;
            timeline.push(Ran { start_us, duration_us, name, correlation: 0, place })?;
        } else if found == "user_annotation" {
            let name = timeline.name(event.name.text())?;
            timeline.annotate(Annotation { name, start_us, duration_us, clock: AnnotationClock::Host })?;
        }
        return Ok(());
    }
    match found {
        "kernel" | "gpu_memcpy" | "gpu_memset" | "Kernel" | "Memcpy" | "Memset" => {
            let place = timeline.place(&event.args.device.shown())?;
            let name = timeline.name(event.name.text())?;
            timeline.push(Ran { start_us, duration_us, name, correlation: event.args.correlation(), place })
        }
        "gpu_user_annotation" | "user_annotation" => {
            let is_device = found == "gpu_user_annotation";
            let clock = if is_device { AnnotationClock::Device } else { AnnotationClock::Host };
            let name = timeline.name(event.name.text())?;
            timeline.annotate(Annotation { name, start_us, duration_us, clock })
        }
        "cuda_runtime" | "cuda_driver" | "hip_runtime" | "Runtime" => {
            let correlation = event.args.correlation();
            if correlation != 0 && start_us.is_finite() {
                timeline.launch(correlation, start_us)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Device {
    name: Scalar,
    #[serde(rename = "numSms")]
    sms: Scalar,
}

/// Of a list: the cards of one machine are of one kind.
struct FirstDevice(Device);

impl<'de> Deserialize<'de> for FirstDevice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(FirstDeviceVisitor)
    }
}

struct FirstDeviceVisitor;

impl<'de> Visitor<'de> for FirstDeviceVisitor {
    type Value = FirstDevice;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("deviceProperties as a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<FirstDevice, A::Error> {
        let first = seq.next_element()?.unwrap_or_default();
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(FirstDevice(first))
    }
}

/// A number, a text, or something else that does not count.
#[derive(Default)]
enum Scalar {
    #[default]
    Nothing,
    Number(f64),
    Text(String),
}

impl Scalar {
    fn text(&self) -> &str {
        match self {
            Scalar::Text(text) => text,
            Scalar::Nothing | Scalar::Number(_) => "",
        }
    }

    /// NaN where there is none.
    fn number(&self) -> f64 {
        match self {
            Scalar::Number(number) => *number,
            Scalar::Text(text) => text.parse().unwrap_or(f64::NAN),
            Scalar::Nothing => f64::NAN,
        }
    }

    fn shown(&self) -> String {
        match self {
            Scalar::Nothing => String::new(),
            Scalar::Number(number) => number.to_string(),
            Scalar::Text(text) => text.clone(),
        }
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Scalar, E> {
        Ok(Scalar::Nothing)
    }

    fn visit_unit<E>(self) -> Result<Scalar, E> {
        Ok(Scalar::Nothing)
    }

    fn visit_i64<E>(self, number: i64) -> Result<Scalar, E> {
        Ok(Scalar::Number(number as f64))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Scalar, E> {
        Ok(Scalar::Number(number as f64))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Scalar, E> {
        Ok(Scalar::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Scalar, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar::Nothing)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar::Nothing)
    }
}

/// The two of an event's arguments that matter.
#[derive(Default)]
struct Args {
    device: Scalar,
    correlation: Scalar,
}

impl Args {
    /// 0 where there is none.
    fn correlation(&self) -> u32 {
        self.correlation.number() as u32
    }
}

impl<'de> Deserialize<'de> for Args {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ArgsVisitor)
    }
}

struct ArgsVisitor;

impl<'de> Visitor<'de> for ArgsVisitor {
    type Value = Args;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("arguments of an event")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Args, A::Error> {
        let mut args = Args::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "device" => args.device = map.next_value()?,
                "correlation" => args.correlation = map.next_value()?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(args)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Args, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Args::default())
    }

    fn visit_unit<E>(self) -> Result<Args, E> {
        Ok(Args::default())
    }

    fn visit_str<E>(self, _: &str) -> Result<Args, E> {
        Ok(Args::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(json: &str, category: Option<&str>) -> Result<Timeline, String> {
        read(&mut json.as_bytes(), category)
    }

    const SMALL: &str = r#"{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}],
        "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 10.5, "dur": 2, "args": {"device": 0, "correlation": 9}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 3, "dur": 1, "args": {"correlation": 9}},
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "ts": "2", "dur": 5, "args": []},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "tid": "main", "ts": 2.5, "dur": 3},
        {"ph": "i", "name": "Record Window End", "pid": "", "ts": 99, "args": null}]}"#;

    #[test]
    fn what_ran_is_found() {
        let found = timeline(SMALL, None).unwrap();
        let name = found.ran[0].name;
        assert_eq!(found.names()[name as usize], "k");
        assert_eq!(found.ran, [Ran { start_us: 10.5, duration_us: 2.0, name, correlation: 9, place: 0 }]);
        assert_eq!(found.launches[&9], 3.0);
        assert_eq!(found.annotations[0].start_us, 2.0);
        assert_eq!((found.device.as_deref(), found.sms), (Some("NVIDIA H200"), Some(132)));
        assert_eq!(timeline(SMALL, Some("cpu_op")).unwrap().ran.len(), 1);
        let list = "[{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"k\",\"ts\":1,\"dur\":1}]";
        assert_eq!(timeline(list, None).unwrap().ran.len(), 1);
    }

    #[test]
    fn what_is_no_trace_is_told() {
        for (json, part) in [
            (&SMALL[..300], "cut short"),
            (&SMALL[..SMALL.len() - 1], "cut short"),
            ("{}", "without traceEvents"),
            ("{\"traceEvents\": {}}", "traceEvents as a list"),
            ("{\"traceEvents\": [3]}", "line 1"),
            ("{\"traceEvents\": []}", "no kernel is in it"),
            ("{what", "not a chrome trace"),
            ("[]]", "not a chrome trace"),
            ("[{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"k\",\"ts\":1,\"dur\":-1}]", "`k` runs for -1 us"),
            ("[{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"k\",\"ts\":1}]", "that is no time"),
        ] {
            let told = timeline(json, None).unwrap_err();
            assert!(told.contains(part), "{json}: {told}");
        }
        assert!(timeline(SMALL, Some("gpu_op")).unwrap_err().contains("category `gpu_op`"));
    }
}
