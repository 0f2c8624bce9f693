//! Sums over all ranks: on the devices where each reaches the others' memory, else by way of the host. Both add in the order
//! of ranks, so they give the same bits.
//!
//! A rank that leaves raises a word of its own that kernels look at which wait for it, so nobody does in vain; what they leave behind is no sum, and
//! the next meeting on the host says who is gone. What ranks share lives until the last of them is gone.

use super::arguments::{self as args, REDUCE_RANKS_MAX};
use super::kernels::{Launcher, REDUCE_THREADS, reduce_source};
use super::rank::RankError;
use crate::gpu::{Buffer, DeviceAddress, Gpu, GpuError, Grid, SharedWords};
use overshot_backend::Member;
use std::sync::Arc;

/// Numbers that are summed in one launch.
const SLOT: usize = 1 << 20;
/// Most blocks of a launch: enough to fill a link.
const BLOCKS_MAX: usize = 32;

/// What a rank's peers read, and where they tell it that they have delivered.
pub struct Outbox {
    numbers: Buffer<f32>,
    words: Buffer<u32>,
}

impl Outbox {
    pub fn new(gpu: &Arc<dyn Gpu>, ranks: usize) -> Result<Self, GpuError> {
        Ok(Outbox {
            numbers: Buffer::new(gpu, 2 * SLOT)?,
            words: Buffer::zeroed(gpu, (ranks + 1) * BLOCKS_MAX)?,
        })
    }
}

/// All outboxes of a group by rank, and the words that tell of ranks that left.
struct Group {
    outboxes: Vec<Outbox>,
    abandoned: Box<dyn SharedWords>,
    /// The same of all ranks and launches; few enough for every device to run all of them at once beside other work.
    blocks: u32,
}

/// A rank's place in a group of devices.
struct Place {
    rank: usize,
    gpu: Arc<dyn Gpu>,
    kernel: Launcher<args::Reduce>,
    group: Arc<Group>,
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
        let outboxes = gpus.iter().map(|gpu| Outbox::new(gpu, ranks)).collect::<Result<Vec<_>, _>>()?;
        // Words are zero before a peer's kernel sets one.
        gpus.iter().try_for_each(|gpu| gpu.synchronize())?;
        let mut blocks = BLOCKS_MAX as u32;
        for gpu in gpus {
            blocks = blocks.min(gpu.facts()?.multiprocessors / 4).max(1);
        }
        let group = Arc::new(Group { outboxes, abandoned: gpus[0].shared_words(ranks)?, blocks });
        let place = |(rank, gpu): (usize, &Arc<dyn Gpu>)| {
            let kernel = Launcher::load(&**gpu, &reduce_source(), "reduce", REDUCE_THREADS)?;
            let place = Place { rank, gpu: gpu.clone(), kernel, group: group.clone() };
            Ok(Sums { ranks, place: Some(place) })
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
        match (member, &self.place) {
            (None, _) => Ok(()),
            (Some(member), None) => {
                let mut sum = vec![0.0; len];
                member.all_reduce(x.copy_out_range(0..len)?, &mut sum)?;
                Ok(x.copy_in(&sum)?)
            }
            (Some(_), Some(place)) => Ok(place.reduce(x, len)?),
        }
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
    fn reduce(&self, x: &Buffer<f32>, len: usize) -> Result<(), GpuError> {
        let Group { outboxes, abandoned, blocks } = &*self.group;
        let mut reduce = args::Reduce {
            abandoned: abandoned.address(),
            slot: SLOT as i64,
            rank: self.rank as i32,
            ranks: outboxes.len() as i32,
            ..args::Reduce::default()
        };
        let by_rank = |address: fn(&Outbox) -> DeviceAddress| {
            std::array::from_fn(|rank| outboxes.get(rank).map_or(DeviceAddress::NULL, address))
        };
        reduce.outboxes = by_rank(|outbox| outbox.numbers.address());
        reduce.words = by_rank(|outbox| outbox.words.address());
        for first in (0..len).step_by(SLOT) {
            (reduce.x, reduce.len) = (x.at(first), SLOT.min(len - first) as i32);
            self.kernel.launch(Grid(*blocks, 1, 1), &reduce)?;
        }
        Ok(())
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
        for ranks in [2, 4] {
            let Some(gpus) = devices(ranks) else { return };
            let mut random = rng();
            let lengths = [1, 3, 4, 130, 4099, 2, 70_001, 5];
            let mut summand = |len| (0..len).map(|_| (random.f32() - 0.5) * 1e3).collect::<Vec<f32>>();
            let summands: Vec<Vec<Vec<f32>>> =
                lengths.iter().map(|len| (0..ranks).map(|_| summand(*len)).collect()).collect();
            let answers = on_all(&gpus, |rank, member, sums, gpu| {
                let mut reduce = |of_rank: &Vec<Vec<f32>>| {
                    let mut x = Buffer::of(gpu, &of_rank[rank]).unwrap();
                    let len = x.len();
                    sums.all_reduce(Some(&member), &mut x, len).unwrap();
                    x.copy_out().unwrap()
                };
                summands.iter().map(&mut reduce).collect::<Vec<_>>()
            });
            for (at, of_rank) in summands.iter().enumerate() {
                let mut expected = of_rank[0].clone();
                for other in &of_rank[1..] {
                    expected.iter_mut().zip(other).for_each(|(sum, x)| *sum += x);
                }
                assert!(answers.iter().all(|answer| answer[at] == expected), "{} numbers", lengths[at]);
            }
        }
    }

    #[test]
    fn nobody_waits_for_a_rank_that_left() {
        let Some(gpus) = devices(2) else { return };
        let ends = on_all(&gpus, |rank, member, sums, gpu| {
            let mut x = Buffer::of(gpu, &[1.0; 8]).unwrap();
            if rank == 0 {
                sums.all_reduce(Some(&member), &mut x, 8).unwrap();
                return member.broadcast_drawn(Vec::new()).is_ok();
            }
            true
        });
        assert_eq!(ends, [false, true]);
    }
}
