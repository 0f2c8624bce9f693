//! Sums over all ranks: on the devices where each reaches the others' memory, else by way of the host. All ways add in the order
//! of ranks, so they give the same bits.
//!
//! A rank that leaves raises a word of its own that kernels look at which wait for it, so nobody does in vain; what they leave behind is no sum, and
//! the next meeting on the host says who is gone. What ranks share lives until the last of them is gone.

use super::arguments::{self as args, REDUCE_RANKS_MAX};
use super::kernels::{Launcher, REDUCE_THREADS, push_source, reduce_source};
use super::rank::RankError;
use crate::gpu::{Buffer, DeviceAddress, Gpu, GpuError, Grid, SharedWords};
use overshot_backend::{Member, Timing};
use std::sync::Arc;
use std::time::Duration;

/// Numbers that are pulled in one launch.
const PULL_SLOT: usize = 1 << 20;
/// Most numbers that are pushed: 64 tokens of Flash. Where pulling becomes quicker has not been measured: `gpu-check sums` does.
const PUSH_SLOT: usize = 1 << 18;
/// Most blocks of a launch: enough to fill a link.
const BLOCKS_MAX: usize = 32;
/// Numbers that a block pushes without turning back.
const PUSHED_BY_BLOCK: usize = 2 * REDUCE_THREADS as usize;

/// How numbers get from device to device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Each rank reads what its peers have laid out: as few bytes as can be.
    Pull,
    /// Each rank writes to its peers: as little waiting as can be.
    Push,
}

impl Way {
    pub fn of(len: usize) -> Self {
        if Way::Push.takes(len) { Way::Push } else { Way::Pull }
    }

    pub fn takes(self, len: usize) -> bool {
        self == Way::Pull || len <= PUSH_SLOT
    }
}

/// What a rank has on its device for its peers and for itself.
pub struct Mailbox {
    outbox: Buffer<f32>,
    words: Buffer<u32>,
    /// A number and the count of its launch each.
    inbox: Buffer<u64>,
    counts: Buffer<u32>,
    /// Nanoseconds that its kernels have waited for peers.
    waited: Buffer<u64>,
}

impl Mailbox {
    pub fn new(gpu: &Arc<dyn Gpu>, ranks: usize) -> Result<Self, GpuError> {
        Ok(Mailbox {
            outbox: Buffer::new(gpu, 2 * PULL_SLOT)?,
            words: Buffer::zeroed(gpu, (ranks + 1) * BLOCKS_MAX)?,
            inbox: Buffer::zeroed(gpu, ranks * 2 * PUSH_SLOT)?,
            counts: Buffer::zeroed(gpu, 2)?,
            waited: Buffer::zeroed(gpu, 1)?,
        })
    }
}

/// All mailboxes of a group by rank, and the words that tell of ranks that left.
struct Group {
    mailboxes: Vec<Mailbox>,
    abandoned: Box<dyn SharedWords>,
    /// Of a launch, on all ranks; few enough for every device to run all of them at once beside other work.
    blocks: u32,
}

impl Group {
    fn by_rank(&self, address: fn(&Mailbox) -> DeviceAddress) -> [DeviceAddress; REDUCE_RANKS_MAX] {
        std::array::from_fn(|rank| self.mailboxes.get(rank).map_or(DeviceAddress::NULL, address))
    }
}

/// A rank's place in a group of devices.
struct Place {
    rank: usize,
    gpu: Arc<dyn Gpu>,
    pull: Launcher<args::Reduce>,
    push: Launcher<args::Push>,
    group: Arc<Group>,
    /// What its kernels had waited before the plan whose waits are timed.
    waited_before: Option<u64>,
}

/// How a rank sums.
pub struct Sums {
    ranks: usize,
    /// None where there are no peers, or some cannot be reached.
    place: Option<Place>,
}

impl Sums {
    /// For each rank, with memory of its device where there are several.
    pub fn between(gpus: &[Arc<dyn Gpu>]) -> Result<Vec<Sums>, GpuError> {
        let ranks = gpus.len();
        if !(2..=REDUCE_RANKS_MAX).contains(&ranks) || !all_reach_all(gpus)? {
            return Ok((0..ranks).map(|_| Sums { ranks, place: None }).collect());
        }
        let mailboxes = gpus.iter().map(|gpu| Mailbox::new(gpu, ranks)).collect::<Result<Vec<_>, _>>()?;
        // What must be zero is, before a peer's kernel writes there.
        gpus.iter().try_for_each(|gpu| gpu.synchronize())?;
        let mut blocks = BLOCKS_MAX as u32;
        for gpu in gpus {
            blocks = blocks.min(gpu.facts()?.multiprocessors / 4).max(1);
        }
        let group = Arc::new(Group { mailboxes, abandoned: gpus[0].shared_words(ranks)?, blocks });
        let place = |(rank, gpu): (usize, &Arc<dyn Gpu>)| {
            let pull = Launcher::load(&**gpu, &reduce_source(), "reduce", REDUCE_THREADS)?;
            let push = Launcher::load(&**gpu, &push_source(), "push", REDUCE_THREADS)?;
            let (gpu, group) = (gpu.clone(), group.clone());
            Ok(Sums { ranks, place: Some(Place { rank, gpu, pull, push, group, waited_before: None }) })
        };
        gpus.iter().enumerate().map(place).collect()
    }

    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Rather than by way of the host.
    pub fn by_devices(&self) -> bool {
        self.place.is_some()
    }

    /// Makes the first `len` numbers of `x` the sums of all ranks'.
    pub fn all_reduce(
        &self,
        member: Option<&Member>,
        x: &mut Buffer<f32>,
        len: usize,
    ) -> Result<(), RankError> {
        self.all_reduce_by(Way::of(len), member, x, len)
    }

    /// By a way that takes so many, where devices reach each other.
    pub fn all_reduce_by(
        &self,
        way: Way,
        member: Option<&Member>,
        x: &mut Buffer<f32>,
        len: usize,
    ) -> Result<(), RankError> {
        match (member, &self.place) {
            (None, _) => Ok(()),
            (Some(member), None) => {
                let mut sum = vec![0.0; len];
                member.all_reduce(x.copy_out_range(0..len)?, &mut sum)?;
                Ok(x.copy_in(&sum)?)
            }
            (Some(_), Some(place)) if way == Way::Push => Ok(place.push(x, len)?),
            (Some(_), Some(place)) => Ok(place.pull(x, len)?),
        }
    }

    /// Whether it is told how long kernels of the next plan wait for peers. Waits for the device if so.
    pub fn time_waits(&mut self, timing: Timing) -> Result<(), GpuError> {
        let Some(place) = &mut self.place else { return Ok(()) };
        place.waited_before = match timing {
            Timing::Off => None,
            Timing::ByFamily => Some(place.waited()?),
        };
        Ok(())
    }

    /// Of a plan that was to be told, on devices that reach each other. Waits for the device.
    pub fn waited(&self) -> Result<Option<Duration>, GpuError> {
        let Some(place) = &self.place else { return Ok(None) };
        let Some(before) = place.waited_before else { return Ok(None) };
        Ok(Some(Duration::from_nanos(place.waited()?.saturating_sub(before))))
    }
}

/// Each device is asked, as reaching need not go both ways.
fn all_reach_all(gpus: &[Arc<dyn Gpu>]) -> Result<bool, GpuError> {
    for (at, gpu) in gpus.iter().enumerate() {
        for (_, other) in gpus.iter().enumerate().filter(|(other, _)| *other != at) {
            if !gpu.reach(other.identity())? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

impl Place {
    fn mailbox(&self) -> &Mailbox {
        &self.group.mailboxes[self.rank]
    }

    fn waited(&self) -> Result<u64, GpuError> {
        Ok(self.mailbox().waited.copy_out()?.first().copied().unwrap_or_default())
    }

    /// Null where nobody asks.
    fn clock(&self) -> DeviceAddress {
        self.waited_before.map_or(DeviceAddress::NULL, |_| self.mailbox().waited.address())
    }

    fn pull(&self, x: &Buffer<f32>, len: usize) -> Result<(), GpuError> {
        let group = &*self.group;
        let mut reduce = args::Reduce {
            outboxes: group.by_rank(|mailbox| mailbox.outbox.address()),
            words: group.by_rank(|mailbox| mailbox.words.address()),
            abandoned: group.abandoned.address(),
            waited: self.clock(),
            slot: PULL_SLOT as i64,
            rank: self.rank as i32,
            ranks: group.mailboxes.len() as i32,
            ..args::Reduce::default()
        };
        for first in (0..len).step_by(PULL_SLOT) {
            (reduce.x, reduce.len) = (x.at(first), PULL_SLOT.min(len - first) as i32);
            self.pull.launch(Grid(group.blocks, 1, 1), &reduce)?;
        }
        Ok(())
    }

    fn push(&self, x: &Buffer<f32>, len: usize) -> Result<(), GpuError> {
        let group = &*self.group;
        let push = args::Push {
            x: x.address(),
            inboxes: group.by_rank(|mailbox| mailbox.inbox.address()),
            counts: self.mailbox().counts.address(),
            abandoned: group.abandoned.address(),
            waited: self.clock(),
            slot: PUSH_SLOT as i64,
            len: len as i32,
            rank: self.rank as i32,
            ranks: group.mailboxes.len() as i32,
            unused: 0,
        };
        let blocks = (len.div_ceil(PUSHED_BY_BLOCK) as u32).min(group.blocks);
        self.push.launch(Grid(blocks, 1, 1), &push)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.group.abandoned.raise(self.rank);
        // Its kernels read what may be freed next. A failure has nobody to go to.
        let _ = self.gpu.synchronize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulator::{EmulatedGpu, Order};
    use overshot_testing::rng;

    fn devices(count: usize) -> Option<Vec<Arc<dyn Gpu>>> {
        let gpu = |_| EmulatedGpu::new(Order::Ascending).map(|gpu| Arc::new(gpu) as Arc<dyn Gpu>);
        match (0..count).map(gpu).collect() {
            Ok(gpus) => Some(gpus),
            Err(error) => {
                eprintln!("SKIPPED: no sums were made on the emulator ({error})");
                None
            }
        }
    }

    /// Runs `work` on all ranks at once; answers in the order of ranks.
    fn on_all<T: Send>(
        gpus: &[Arc<dyn Gpu>],
        work: impl Fn(usize, Member, Sums, &Arc<dyn Gpu>) -> T + Sync,
    ) -> Vec<T> {
        let (work, members) = (&work, Member::group(gpus.len()));
        let ranks = members.into_iter().zip(Sums::between(gpus).unwrap()).zip(gpus).enumerate();
        std::thread::scope(|scope| {
            let threads: Vec<_> = ranks
                .map(|(rank, ((member, sums), gpu))| scope.spawn(move || work(rank, member, sums, gpu)))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_ranks_get_the_bits_that_the_host_would_give() {
        for (ranks, way) in [(2, Way::Pull), (4, Way::Pull), (2, Way::Push), (4, Way::Push)] {
            let Some(gpus) = devices(ranks) else { return };
            let mut random = rng();
            let lengths = [1, 3, 4, 130, 4099, 2, 70_001, 5, 1];
            let mut summand = |len| (0..len).map(|_| (random.f32() - 0.5) * 1e3).collect::<Vec<f32>>();
            let summands: Vec<Vec<Vec<f32>>> =
                lengths.iter().map(|len| (0..ranks).map(|_| summand(*len)).collect()).collect();
            let answers = on_all(&gpus, |rank, member, sums, gpu| {
                let mut reduce = |of_rank: &Vec<Vec<f32>>| {
                    let mut x = Buffer::of(gpu, &of_rank[rank]).unwrap();
                    let len = x.len();
                    sums.all_reduce_by(way, Some(&member), &mut x, len).unwrap();
                    x.copy_out().unwrap()
                };
                summands.iter().map(&mut reduce).collect::<Vec<_>>()
            });
            for (at, of_rank) in summands.iter().enumerate() {
                let mut expected = of_rank[0].clone();
                for other in &of_rank[1..] {
                    expected.iter_mut().zip(other).for_each(|(sum, x)| *sum += x);
                }
                assert!(
                    answers.iter().all(|answer| answer[at] == expected),
                    "{way:?}: {} numbers",
                    lengths[at]
                );
            }
        }
    }

    #[test]
    fn nobody_waits_for_a_rank_that_left() {
        for way in [Way::Pull, Way::Push] {
            let Some(gpus) = devices(2) else { return };
            let ends = on_all(&gpus, |rank, member, sums, gpu| {
                let mut x = Buffer::of(gpu, &[1.0; 8]).unwrap();
                if rank == 0 {
                    sums.all_reduce_by(way, Some(&member), &mut x, 8).unwrap();
                    return member.broadcast_drawn(Vec::new()).is_ok();
                }
                true
            });
            assert_eq!(ends, [false, true], "{way:?}");
        }
    }

    #[test]
    fn a_rank_is_told_how_long_it_waited_if_it_asks() {
        const LATE: Duration = Duration::from_millis(30);
        for way in [Way::Pull, Way::Push] {
            let Some(gpus) = devices(2) else { return };
            let waits = on_all(&gpus, |rank, member, mut sums, gpu| {
                let mut x = Buffer::of(gpu, &[1.0; 8]).unwrap();
                let mut told = Vec::new();
                for timing in [Timing::Off, Timing::ByFamily, Timing::Off] {
                    sums.time_waits(timing).unwrap();
                    std::thread::sleep(LATE * rank as u32);
                    sums.all_reduce_by(way, Some(&member), &mut x, 8).unwrap();
                    told.push(sums.waited().unwrap());
                }
                told
            });
            assert!(waits.iter().all(|told| told[0].is_none() && told[2].is_none()), "{way:?}: {waits:?}");
            assert!(waits[0][1].unwrap() > LATE / 2 && waits[1][1].is_some(), "{way:?}: {waits:?}");
        }
    }
}
