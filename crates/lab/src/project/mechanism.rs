//! Whether a change of a kernel can change anything. A lever of registers or shared memory works through the CTAs that an SM
//! holds, and through the waves of the grid that follow: where these do not move, nothing does, however large the change. What
//! a moved mechanism brings is left as an interval, because CTAs of one SM share its memory and its pipes.

use super::lever::{Amount, KernelChange};
use crate::LabError;
use crate::stats::Interval;
use overshot_gpu_model::{Architecture, Gate, Launch, Resource, Waves};
use serde::Serialize;
use std::num::NonZeroU32;

/// A kernel as it is launched today.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Kernel {
    pub launch: Launch,
    pub architecture: Architecture,
}

/// How the kernel's grid grows with the batch, and the card it runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Grid {
    pub sms: NonZeroU32,
    pub ctas_per_request: NonZeroU32,
}

/// CTAs per SM before and after a change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mechanism {
    pub ctas_per_sm_before: u32,
    pub ctas_per_sm_after: u32,
    /// What stands in the way today; nothing where the kernel was not told.
    pub binding: Vec<Resource>,
    /// What one CTA more than today takes.
    pub gate: Option<Gate>,
    /// Of the change, what uses more than before and so can only cost.
    pub grows: Vec<Amount>,
}

impl Mechanism {
    /// # Errors
    /// A change of resources without a kernel, a launch that no CTA can have, or a kernel that is not as the lever says.
    pub fn of(change: &KernelChange, kernel: Option<&Kernel>) -> Result<Self, LabError> {
        match (change, kernel) {
            (KernelChange::CtasPerSm { from, to }, None) => Ok(Mechanism {
                ctas_per_sm_before: *from,
                ctas_per_sm_after: *to,
                binding: vec![],
                gate: None,
                grows: vec![],
            }),
            (KernelChange::CtasPerSm { from, to }, Some(kernel)) => {
                let mechanism = Mechanism::between(kernel, kernel.launch, vec![])?;
                match mechanism.ctas_per_sm_before {
                    has if has == *from => Ok(Mechanism { ctas_per_sm_after: *to, ..mechanism }),
                    has => Err(LabError::OtherKernel { told: *from, has }),
                }
            }
            (KernelChange::Resources(_), None) => Err(LabError::NoKernel),
            (KernelChange::Resources(amounts), Some(kernel)) => {
                let after = amounts.iter().fold(kernel.launch, |launch, amount| amount.applied_to(launch));
                let grows =
                    amounts.iter().filter(|amount| amount.amount > kernel.launch.uses(amount.resource));
                Mechanism::between(kernel, after, grows.copied().collect())
            }
        }
    }

    fn between(kernel: &Kernel, after: Launch, grows: Vec<Amount>) -> Result<Self, LabError> {
        let told = |error: overshot_gpu_model::LaunchError| LabError::BadLaunch { what: error.to_string() };
        let before = kernel.launch.occupancy(&kernel.architecture).map_err(told)?;
        if before.ctas_per_sm == 0 {
            let what = format!("an SM of {} cannot hold a single CTA of it today", kernel.architecture);
            return Err(LabError::BadLaunch { what });
        }
        let ctas_per_sm_after = after.ctas_per_sm(&kernel.architecture).map_err(told)?;
        if ctas_per_sm_after == 0 {
            let what = format!("after the change an SM of {} cannot hold a single CTA", kernel.architecture);
            return Err(LabError::BadLaunch { what });
        }
        Ok(Mechanism {
            ctas_per_sm_before: before.ctas_per_sm,
            ctas_per_sm_after,
            binding: before.binding,
            gate: Some(kernel.launch.gate(&kernel.architecture).map_err(told)?),
            grows,
        })
    }

    pub fn moves(&self) -> bool {
        self.ctas_per_sm_before != self.ctas_per_sm_after
    }

    /// How many times faster the kernel gets at a batch: from 1, when CTAs that share an SM only slow each other down, to the
    /// ratio of the waves, when they do not slow each other at all. From the ratio to 1 when an SM holds fewer than before.
    pub fn speedup(&self, grid: &Grid, batch: u32) -> Interval {
        let ctas = u64::from(batch) * u64::from(grid.ctas_per_request.get());
        let waves = |ctas_per_sm: u32| {
            let slots = grid.sms.saturating_mul(NonZeroU32::new(ctas_per_sm).unwrap_or(NonZeroU32::MIN));
            Waves::of(ctas, slots).waves.max(1) as f64
        };
        let ratio = waves(self.ctas_per_sm_before) / waves(self.ctas_per_sm_after);
        Interval { low: ratio.min(1.0), high: ratio.max(1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::project::Lever;

    /// The split-K kernel of the worked example: 4 warps, 255 registers, 60 KB of shared memory on sm_120.
    fn kernel() -> Kernel {
        Kernel {
            launch: Launch {
                warps_per_cta: 4,
                registers_per_thread: 255,
                shared_bytes_per_cta: 60 << 10,
                named_barriers_per_cta: 1,
            },
            architecture: Architecture::of_sm(120).unwrap(),
        }
    }

    fn mechanism(text: &str) -> Result<Mechanism, LabError> {
        let Lever::Kernel { change, .. } = text.parse().unwrap() else { panic!("{text}") };
        Mechanism::of(&change, Some(&kernel()))
    }

    #[test]
    fn registers_do_not_move_it_and_shared_memory_does() {
        let registers = mechanism("registers -> 128").unwrap();
        assert_eq!((registers.ctas_per_sm_before, registers.ctas_per_sm_after), (1, 1));
        assert!(!registers.moves() && registers.binding == [Resource::SharedMemory]);
        assert_eq!(registers.gate.unwrap().needs[0].at_most, 49 << 10);
        let memory = mechanism("shared memory -> 49 KB").unwrap();
        assert_eq!((memory.moves(), memory.ctas_per_sm_after), (true, 2));
        assert_eq!(mechanism("shared memory -> 50 KB").unwrap().ctas_per_sm_after, 1);
        assert_eq!(mechanism("shared memory -> 32 KB and registers -> 168").unwrap().ctas_per_sm_after, 3);
        let more = mechanism("shared memory -> 81 KB").unwrap();
        assert!(!more.moves() && more.grows.len() == 1);
        assert!(matches!(mechanism("shared memory -> 120 KB"), Err(LabError::BadLaunch { .. })));
    }

    #[test]
    fn a_lever_must_fit_its_kernel() {
        assert!(mechanism("CTAs/SM 1 -> 2").is_ok());
        assert!(matches!(mechanism("CTAs/SM 2 -> 3"), Err(LabError::OtherKernel { told: 2, has: 1 })));
        assert!(matches!(mechanism("registers -> 300"), Err(LabError::BadLaunch { .. })));
        let change = KernelChange::Resources(vec![]);
        assert!(matches!(Mechanism::of(&change, None), Err(LabError::NoKernel)));
        let too_large = Launch { shared_bytes_per_cta: 120 << 10, ..kernel().launch };
        let kernel = Kernel { launch: too_large, ..kernel() };
        assert!(matches!(Mechanism::of(&change, Some(&kernel)), Err(LabError::BadLaunch { .. })));
    }

    #[test]
    fn waves_bound_what_a_second_cta_brings() {
        let number = |number| NonZeroU32::new(number).unwrap();
        let grid = Grid { sms: number(188), ctas_per_request: number(4) };
        let second = mechanism("CTAs/SM 1 -> 2").unwrap();
        let most = [32, 64, 80, 96].map(|batch| second.speedup(&grid, batch));
        // 128 CTAs fill one wave either way; 256 and 320 need two and then one; 384 need three and then two.
        assert_eq!(
            most.map(|speedup| (speedup.low, speedup.high)),
            [(1.0, 1.0), (1.0, 2.0), (1.0, 2.0), (1.0, 1.5)]
        );
        let fewer = Mechanism { ctas_per_sm_before: 2, ctas_per_sm_after: 1, ..second };
        assert_eq!(fewer.speedup(&grid, 64), Interval { low: 0.5, high: 1.0 });
    }
}
