//! Which family of kernels each stretch of a device's queue belongs to, for plans that ask for their time. A stretch reaches from one
//! change of family to the next, so the families of a step add up to all of its time: gaps between launches, where the host is
//! slower than the device, count to the family before them. Off, nothing is queued and nothing is allocated.

use crate::gpu::{Gpu, GpuError, Timeline};
use overshot_backend::{Family, Timing};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub struct Stopwatch {
    gpu: Arc<dyn Gpu>,
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    timing: Timing,
    timeline: Option<Box<dyn Timeline>>,
    /// What begins at each point of the timeline; `None` is nobody's.
    begins: Vec<Option<Family>>,
}

impl Stopwatch {
    pub fn new(gpu: &Arc<dyn Gpu>) -> Self {
        Stopwatch { gpu: gpu.clone(), inner: RefCell::default() }
    }

    /// Forgets the plan before.
    pub fn start(&self, timing: Timing) {
        let inner = &mut *self.inner.borrow_mut();
        inner.timing = timing;
        inner.begins.clear();
    }

    /// What is queued from here on belongs to `family`.
    pub fn enter(&self, family: Family) -> Result<(), GpuError> {
        self.change(Some(family))
    }

    /// What passes from here on is nobody's.
    pub fn leave(&self) -> Result<(), GpuError> {
        self.change(None)
    }

    fn change(&self, to: Option<Family>) -> Result<(), GpuError> {
        let inner = &mut *self.inner.borrow_mut();
        if inner.timing == Timing::Off || inner.begins.last() == Some(&to) {
            return Ok(());
        }
        let timeline = match &mut inner.timeline {
            Some(timeline) => timeline,
            none => none.insert(self.gpu.timeline()?),
        };
        timeline.mark(inner.begins.len())?;
        inner.begins.push(to);
        Ok(())
    }

    /// The time of each family, once it has left; waits for the device.
    pub fn read(&self) -> Result<Vec<(Family, Duration)>, GpuError> {
        let inner = self.inner.borrow();
        let Some(timeline) = &inner.timeline else { return Ok(Vec::new()) };
        let mut times = BTreeMap::<Family, f64>::new();
        for (point, begins) in inner.begins.iter().enumerate().take(inner.begins.len().saturating_sub(1)) {
            if let Some(family) = begins {
                *times.entry(*family).or_default() += timeline.microseconds(point, point + 1)?;
            }
        }
        let duration = |microseconds: f64| Duration::from_secs_f64(microseconds.max(0.0) / 1e6);
        Ok(times.into_iter().map(|(family, time)| (family, duration(time))).collect())
    }
}
