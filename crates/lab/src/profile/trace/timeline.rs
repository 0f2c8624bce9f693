//! What ran when, before steps are told apart: names once, times in microseconds.

use std::collections::HashMap;

/// Of one trace: at 32 bytes each, half a gigabyte.
pub const EVENTS_MAX: usize = 16_000_000;
const NAMES_MAX: usize = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ran {
    pub start_us: f64,
    pub duration_us: f64,
    /// Into `Timeline::names`.
    pub name: u32,
    /// The launch that it belongs to, 0 when it is not known.
    pub correlation: u32,
    /// A device, or a thread of the host.
    pub place: u16,
}

/// A span with a name that may be a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Annotation {
    /// Into `Timeline::names`.
    pub name: u32,
    pub start_us: f64,
    pub duration_us: f64,
    pub clock: AnnotationClock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnnotationClock {
    /// Around what ran.
    Device,
    /// Around what was launched; it ran later.
    Host,
}

#[derive(Debug, Default)]
pub struct Timeline {
    pub ran: Vec<Ran>,
    pub annotations: Vec<Annotation>,
    /// When the host launched, by correlation.
    pub launches: HashMap<u32, f64>,
    pub device: Option<String>,
    pub sms: Option<u32>,
    /// Whether events ran where the annotations were made: operators of the host.
    pub on_host: bool,
    names: Vec<String>,
    places: HashMap<String, u16>,
    numbers: HashMap<String, u32>,
}

impl Timeline {
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// # Errors
    /// More names than any trace has.
    pub fn name(&mut self, name: &str) -> Result<u32, String> {
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        if self.names.len() == NAMES_MAX {
            return Err(format!("more than {NAMES_MAX} different names: this is no trace of steps"));
        }
        let number = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        Ok(number)
    }

    /// # Errors
    /// More devices or threads than can be told apart.
    pub fn place(&mut self, place: &str) -> Result<u16, String> {
        if let Some(number) = self.places.get(place) {
            return Ok(*number);
        }
        let number = u16::try_from(self.places.len()).map_err(|_| "more than 65,536 devices or threads")?;
        self.places.insert(place.to_owned(), number);
        Ok(number)
    }

    /// # Errors
    /// Times that cannot be, or more events than are read.
    pub fn push(&mut self, ran: Ran) -> Result<(), String> {
        if !(ran.start_us.is_finite() && ran.duration_us.is_finite() && ran.duration_us >= 0.0) {
            let name = &self.names[ran.name as usize];
            let shown: String = name.chars().take(80).collect();
            return Err(format!(
                "`{shown}` runs for {} us from {}: that is no time",
                ran.duration_us, ran.start_us
            ));
        }
        if self.ran.len() == EVENTS_MAX {
            return Err(format!("more than {EVENTS_MAX} kernels: trace fewer steps"));
        }
        self.ran.push(ran);
        Ok(())
    }

    /// Annotations without times are none.
    ///
    /// # Errors
    /// More than are read.
    pub fn annotate(&mut self, annotation: Annotation) -> Result<(), String> {
        let Annotation { start_us, duration_us, .. } = annotation;
        if start_us.is_finite() && duration_us.is_finite() && duration_us >= 0.0 {
            if self.annotations.len() == EVENTS_MAX {
                return Err(format!("more than {EVENTS_MAX} annotations: trace fewer steps"));
            }
            self.annotations.push(annotation);
        }
        Ok(())
    }

    /// # Errors
    /// More than are read.
    pub fn launch(&mut self, correlation: u32, start_us: f64) -> Result<(), String> {
        if self.launches.len() == EVENTS_MAX {
            return Err(format!("more than {EVENTS_MAX} launches: trace fewer steps"));
        }
        self.launches.insert(correlation, start_us);
        Ok(())
    }

    /// Leaves the place where most time was spent, and says how many there were.
    pub fn keep_the_busiest_place(&mut self) -> usize {
        let mut busy: HashMap<u16, f64> = HashMap::new();
        for ran in &self.ran {
            *busy.entry(ran.place).or_default() += ran.duration_us;
        }
        let busiest = busy.iter().max_by(|one, other| one.1.total_cmp(other.1).then(other.0.cmp(one.0)));
        if let Some((&place, _)) = busiest {
            self.ran.retain(|ran| ran.place == place);
        }
        busy.len()
    }

    /// In the order of their starts, what contains others first.
    pub fn sort(&mut self) {
        self.ran.sort_by(|one, other| {
            let starts = one.start_us.total_cmp(&other.start_us);
            starts.then(other.duration_us.total_cmp(&one.duration_us))
        });
        self.annotations.sort_by(|one, other| one.start_us.total_cmp(&other.start_us));
    }

    /// Of sorted events in one place, leaves those that lie in no other.
    pub fn keep_outermost(&mut self) {
        let mut end_us = f64::NEG_INFINITY;
        self.ran.retain(|ran| {
            let outermost = ran.start_us >= end_us;
            if outermost {
                end_us = ran.start_us + ran.duration_us;
            }
            outermost
        });
    }
}
