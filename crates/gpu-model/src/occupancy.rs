//! How many CTAs of a kernel an SM holds at once, every resource that stands in the way of one more, and how far each must
//! shrink. Arithmetic only: whether more CTAs are faster is a question for a measurement.
//!
//! The rules, per SM (R registers a thread, W warps a CTA, S bytes of shared memory a CTA, B named barriers a CTA):
//!
//! ```text
//! registers      floor(4 * floor(16384 / up(32 R, 256)) / W), and 0 when up(32 R, 256) * up(W, 4) > 65536
//! shared memory  floor(SM bytes / up(S + 1024, 128)), and 0 above the opt-in limit of a CTA
//! warps          floor(warps / W)
//! barriers       floor(barriers / B)
//! CTA slots      a number of the architecture
//! ```
//!
//! Not modelled: clusters (their CTAs must find room in one GPC), tensor memory of sm_100, and a carve-out that the
//! program itself has set below the largest.

use crate::device::{
    Architecture, NAMED_BARRIERS_PER_CTA_MAX, PARTITIONS, REGISTER_UNIT, REGISTERS_PER_SM,
    REGISTERS_PER_THREAD_MAX, SHARED_RESERVE_BYTES, SHARED_UNIT_BYTES, THREADS_PER_WARP, WARPS_PER_CTA_MAX,
};
use serde::Serialize;
use std::fmt;
use thiserror::Error;

/// What one CTA takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Launch {
    pub warps_per_cta: u32,
    pub registers_per_thread: u32,
    /// Static and dynamic together, without the system's KiB.
    pub shared_bytes_per_cta: u32,
    pub named_barriers_per_cta: u32,
}

/// A launch that no architecture can have been meant to run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LaunchError {
    #[error("{warps} warps a CTA: a CTA has 1 to {WARPS_PER_CTA_MAX} warps of {THREADS_PER_WARP} threads")]
    Warps { warps: u32 },
    #[error("{registers} registers a thread: a thread has 1 to {REGISTERS_PER_THREAD_MAX}")]
    Registers { registers: u32 },
    #[error("{barriers} named barriers a CTA: a CTA has at most {NAMED_BARRIERS_PER_CTA_MAX}")]
    Barriers { barriers: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    Registers,
    SharedMemory,
    Warps,
    NamedBarriers,
    CtaSlots,
}

impl Resource {
    pub const ALL: [Resource; 5] =
        [Self::Registers, Self::SharedMemory, Self::Warps, Self::NamedBarriers, Self::CtaSlots];
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Registers => "registers",
            Self::SharedMemory => "shared memory",
            Self::Warps => "warps",
            Self::NamedBarriers => "named barriers",
            Self::CtaSlots => "CTA slots",
        })
    }
}

/// The CTAs that one resource alone would allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limit {
    pub resource: Resource,
    pub ctas: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Occupancy {
    /// 0: the kernel cannot be launched at all.
    pub ctas_per_sm: u32,
    pub warps_per_sm: u32,
    /// Of the warps that the architecture can hold.
    pub warp_share_percent: u32,
    /// One for each resource that the kernel uses, in the order of `Resource::ALL`.
    pub limits: Vec<Limit>,
    /// Every resource whose limit is `ctas_per_sm`: each of them must give for one CTA more.
    pub binding: Vec<Resource>,
}

/// What one CTA more would take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gate {
    pub ctas_per_sm: u32,
    /// What must shrink, all of it together; registers as needed with the warps as they are. Empty in front of a wall.
    pub needs: Vec<Need>,
    /// Resources that no kernel can shrink enough: the architecture has no room for that many CTAs.
    pub walls: Vec<Resource>,
    /// Resources that would allow it as they are.
    pub not_in_the_way: Vec<Resource>,
}

/// `has` must come down to `at_most`: bytes, registers a thread, warps or barriers a CTA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Need {
    pub resource: Resource,
    pub has: u32,
    pub at_most: u32,
}

/// One step of a what-if: using at most `at_most`, a resource alone would allow `allows` CTAs, and with every other
/// resource as it is the SM would hold `ctas_per_sm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    pub at_most: u32,
    pub allows: u32,
    pub ctas_per_sm: u32,
}

impl Launch {
    /// # Errors
    /// Numbers that no CTA can have. Shared memory above an architecture's limit is none of these: it gives 0 CTAs.
    pub fn check(&self) -> Result<(), LaunchError> {
        if !(1..=WARPS_PER_CTA_MAX).contains(&self.warps_per_cta) {
            return Err(LaunchError::Warps { warps: self.warps_per_cta });
        }
        if !(1..=REGISTERS_PER_THREAD_MAX).contains(&self.registers_per_thread) {
            return Err(LaunchError::Registers { registers: self.registers_per_thread });
        }
        if self.named_barriers_per_cta > NAMED_BARRIERS_PER_CTA_MAX {
            return Err(LaunchError::Barriers { barriers: self.named_barriers_per_cta });
        }
        Ok(())
    }

    /// CTAs per SM: the smallest limit. 0 when the kernel cannot be launched at all.
    ///
    /// # Errors
    /// As `check`.
    pub fn ctas_per_sm(&self, architecture: &Architecture) -> Result<u32, LaunchError> {
        self.check()?;
        let limits = Resource::ALL.into_iter().filter_map(|resource| self.limit(architecture, resource));
        Ok(limits.min().unwrap_or(0))
    }

    /// CTAs per SM with every limit and which of them bind.
    ///
    /// # Errors
    /// As `check`.
    pub fn occupancy(&self, architecture: &Architecture) -> Result<Occupancy, LaunchError> {
        let ctas_per_sm = self.ctas_per_sm(architecture)?;
        let limit = |resource| Some(Limit { resource, ctas: self.limit(architecture, resource)? });
        let limits: Vec<Limit> = Resource::ALL.into_iter().filter_map(limit).collect();
        let binding = limits.iter().filter(|limit| limit.ctas == ctas_per_sm);
        let warps_per_sm = ctas_per_sm * self.warps_per_cta;
        Ok(Occupancy {
            ctas_per_sm,
            warps_per_sm,
            warp_share_percent: 100 * warps_per_sm / architecture.warps_per_sm,
            binding: binding.map(|limit| limit.resource).collect(),
            limits,
        })
    }

    /// What stands between this launch and one CTA more.
    ///
    /// # Errors
    /// As `check`.
    pub fn gate(&self, architecture: &Architecture) -> Result<Gate, LaunchError> {
        let occupancy = self.occupancy(architecture)?;
        let target = occupancy.ctas_per_sm + 1;
        let mut gate = Gate { ctas_per_sm: target, needs: vec![], walls: vec![], not_in_the_way: vec![] };
        for limit in occupancy.limits {
            let resource = limit.resource;
            if limit.ctas >= target {
                gate.not_in_the_way.push(resource);
            } else {
                match self.most_for(architecture, resource, target) {
                    Some(at_most) => gate.needs.push(Need { resource, has: self.uses(resource), at_most }),
                    None => gate.walls.push(resource),
                }
            }
        }
        if !gate.walls.is_empty() {
            gate.needs.clear();
        }
        Ok(gate)
    }

    /// What the SM would hold if one resource alone were used less or more, from one CTA upwards; a step for each
    /// number of CTAs that some amount allows.
    ///
    /// # Errors
    /// As `check`.
    pub fn what_if(&self, architecture: &Architecture, resource: Resource) -> Result<Vec<Step>, LaunchError> {
        let occupancy = self.occupancy(architecture)?;
        let others = occupancy.limits.iter().filter(|limit| limit.resource != resource);
        let others = others.map(|limit| limit.ctas).min().unwrap_or(architecture.ctas_per_sm);
        let mut steps: Vec<Step> = Vec::new();
        for allows in 1..=architecture.ctas_per_sm {
            let Some(at_most) = self.most_for(architecture, resource, allows) else { break };
            let step = Step { at_most, allows, ctas_per_sm: allows.min(others) };
            // The same amount may allow several numbers of CTAs: only the largest is true.
            match steps.last_mut() {
                Some(last) if last.at_most == at_most => *last = step,
                _ => steps.push(step),
            }
        }
        Ok(steps)
    }

    /// How much of a resource a CTA uses, in the resource's own unit.
    pub fn uses(&self, resource: Resource) -> u32 {
        match resource {
            Resource::Registers => self.registers_per_thread,
            Resource::SharedMemory => self.shared_bytes_per_cta,
            Resource::Warps => self.warps_per_cta,
            Resource::NamedBarriers => self.named_barriers_per_cta,
            Resource::CtaSlots => 1,
        }
    }

    /// CTAs per SM that a resource alone allows; `None` when it is not used or not counted.
    fn limit(&self, architecture: &Architecture, resource: Resource) -> Option<u32> {
        let warps = self.warps_per_cta;
        Some(match resource {
            Resource::Registers => {
                let per_warp = registers_per_warp(self.registers_per_thread);
                // The hardware checks a CTA as if its warps filled all partitions evenly.
                if per_warp * warps.next_multiple_of(PARTITIONS) > REGISTERS_PER_SM {
                    0
                } else {
                    REGISTERS_PER_SM / PARTITIONS / per_warp * PARTITIONS / warps
                }
            }
            Resource::SharedMemory if self.shared_bytes_per_cta > architecture.shared_bytes_per_cta => 0,
            Resource::SharedMemory => {
                let bytes =
                    (self.shared_bytes_per_cta + SHARED_RESERVE_BYTES).next_multiple_of(SHARED_UNIT_BYTES);
                architecture.shared_bytes_per_sm / bytes
            }
            Resource::Warps => architecture.warps_per_sm / warps,
            Resource::NamedBarriers => {
                architecture.named_barriers_per_sm?.checked_div(self.named_barriers_per_cta)?
            }
            Resource::CtaSlots => architecture.ctas_per_sm,
        })
    }

    /// The most of a resource that a CTA may use for `ctas` of them to fit by it; `None` when no amount does.
    fn most_for(&self, architecture: &Architecture, resource: Resource, ctas: u32) -> Option<u32> {
        match resource {
            Resource::Registers => {
                let fits = |registers: &u32| {
                    let launch = Launch { registers_per_thread: *registers, ..*self };
                    launch.limit(architecture, resource).is_some_and(|limit| limit >= ctas)
                };
                (1..=REGISTERS_PER_THREAD_MAX).rev().find(fits)
            }
            Resource::SharedMemory => {
                let share = architecture.shared_bytes_per_sm / ctas / SHARED_UNIT_BYTES * SHARED_UNIT_BYTES;
                let bytes = share.checked_sub(SHARED_RESERVE_BYTES)?;
                Some(bytes.min(architecture.shared_bytes_per_cta))
            }
            Resource::Warps => {
                let warps = architecture.warps_per_sm / ctas;
                (warps > 0).then_some(warps.min(WARPS_PER_CTA_MAX))
            }
            Resource::NamedBarriers => {
                let barriers = architecture.named_barriers_per_sm? / ctas;
                Some(barriers.min(NAMED_BARRIERS_PER_CTA_MAX))
            }
            Resource::CtaSlots => (ctas <= architecture.ctas_per_sm).then_some(1),
        }
    }
}

/// What a warp is given: its threads' registers in whole units.
fn registers_per_warp(registers_per_thread: u32) -> u32 {
    (registers_per_thread * THREADS_PER_WARP).next_multiple_of(REGISTER_UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sm_120() -> Architecture {
        Architecture::of_sm(120).unwrap()
    }

    fn launch(warps_per_cta: u32, registers_per_thread: u32, shared_kib: u32) -> Launch {
        let shared_bytes_per_cta = shared_kib << 10;
        Launch { warps_per_cta, registers_per_thread, shared_bytes_per_cta, named_barriers_per_cta: 1 }
    }

    #[test]
    fn every_binding_resource_is_named() {
        // 8 warps of 255 registers fill the registers once, and 60 KB fit once.
        let both = launch(8, 255, 60).occupancy(&sm_120()).unwrap();
        assert_eq!((both.ctas_per_sm, both.binding), (1, vec![Resource::Registers, Resource::SharedMemory]));
        let gate = launch(8, 255, 60).gate(&sm_120()).unwrap();
        let needs: Vec<(u32, u32)> = gate.needs.iter().map(|need| (need.has, need.at_most)).collect();
        assert_eq!(needs, [(255, 128), (60 << 10, 49 << 10)]);
    }

    #[test]
    fn the_gate_of_the_split_kernel_is_shared_memory_alone() {
        let gate = launch(4, 255, 60).gate(&sm_120()).unwrap();
        let need = Need { resource: Resource::SharedMemory, has: 60 << 10, at_most: 49 << 10 };
        assert_eq!((gate.ctas_per_sm, gate.needs.as_slice()), (2, [need].as_slice()));
        assert!(gate.not_in_the_way.contains(&Resource::Registers));
        let fewer_registers = launch(4, 255, 60).what_if(&sm_120(), Resource::Registers).unwrap();
        assert!(fewer_registers.iter().all(|step| step.ctas_per_sm == 1), "{fewer_registers:?}");
        let less_memory = launch(4, 255, 60).what_if(&sm_120(), Resource::SharedMemory).unwrap();
        let step = |at_most, allows, ctas_per_sm| Step { at_most, allows, ctas_per_sm };
        assert_eq!(less_memory[..3], [step(99 << 10, 1, 1), step(49 << 10, 2, 2), step(33_024, 3, 2)]);
    }

    #[test]
    fn what_cannot_be_launched_is_told_what_would() {
        let too_big = launch(4, 128, 120).gate(&sm_120()).unwrap();
        assert_eq!((too_big.ctas_per_sm, too_big.needs[0].at_most), (1, 99 << 10));
        let too_many = launch(32, 255, 0).gate(&sm_120()).unwrap();
        assert_eq!((too_many.ctas_per_sm, too_many.needs[0].at_most), (1, 64));
    }

    #[test]
    fn the_slots_of_an_sm_are_a_wall() {
        let gate = launch(1, 16, 0).gate(&sm_120()).unwrap();
        assert_eq!((gate.ctas_per_sm, gate.needs.as_slice()), (25, [].as_slice()));
        assert_eq!(gate.walls, [Resource::CtaSlots]);
    }

    #[test]
    fn numbers_that_no_cta_has_are_refused() {
        for bad in
            [launch(0, 32, 0), launch(33, 32, 0), launch(1, 0, 0), launch(1, 256, 0), launch(u32::MAX, 1, 0)]
        {
            assert!(bad.occupancy(&sm_120()).is_err(), "{bad:?}");
        }
        let barriers = Launch { named_barriers_per_cta: 17, ..launch(1, 32, 0) };
        assert_eq!(barriers.check(), Err(LaunchError::Barriers { barriers: 17 }));
    }
}
