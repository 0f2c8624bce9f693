//! The time that the trace is written by. Decisions read no clock.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time since some beginning; never goes back.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Clock {
    pub fn system() -> Self {
        let beginning = Instant::now();
        Clock(Arc::new(move || beginning.elapsed()))
    }

    /// A clock of the caller's, for simulations.
    pub fn from_fn(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Clock(Arc::new(now))
    }

    pub fn now(&self) -> Duration {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({:?})", self.now())
    }
}
