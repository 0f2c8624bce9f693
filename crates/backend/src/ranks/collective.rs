//! Where ranks of one process meet: each brings something, and each leaves with what all have brought, in the order
//! of ranks. Sums, gatherings and broadcasts are made of that; sums in rank order, so they are the same on every rank
//! and every day.
//!
//! Waiting sleeps: there may be more ranks than cores. Nobody waits for a rank that is gone.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A rank's place in its group. Dropping it releases the others, with an error, from whatever they meet for.
pub struct Member {
    rank: usize,
    group: Arc<Group>,
}

/// What a rank brings.
#[derive(Debug, PartialEq)]
enum Parcel {
    Summand(Vec<f32>),
    Columns(Vec<f32>),
    Drawn(Vec<Option<u32>>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} is gone")]
pub struct PeerGone {
    rank: usize,
}

struct Group {
    meeting: Mutex<Meeting>,
    changed: Condvar,
}

#[derive(Default)]
struct Meeting {
    /// Meetings held so far.
    held: u64,
    /// By rank: what those who came to the next one brought.
    brought: Vec<Option<Parcel>>,
    /// What was brought to the last one. The next one cannot be held before all have read this.
    parcels: Arc<Vec<Parcel>>,
    gone: Option<usize>,
}

impl Member {
    /// Places for all ranks; none for one that has no peers.
    pub fn places(ranks: usize) -> Vec<Option<Member>> {
        Self::group(ranks).into_iter().map(|member| Some(member).filter(|_| ranks > 1)).collect()
    }

    pub fn group(ranks: usize) -> Vec<Member> {
        let brought = (0..ranks).map(|_| None).collect();
        let meeting = Mutex::new(Meeting { brought, ..Meeting::default() });
        let group = Arc::new(Group { meeting, changed: Condvar::new() });
        (0..ranks).map(|rank| Member { rank, group: group.clone() }).collect()
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The sum of all ranks' `x`, which have one length, into `sum`.
    pub fn all_reduce(&self, x: Vec<f32>, sum: &mut [f32]) -> Result<(), PeerGone> {
        let parcels = self.meet(Parcel::Summand(x))?;
        for (rank, parcel) in parcels.iter().enumerate() {
            let Parcel::Summand(x) = parcel else { mixed_up(parcel) };
            assert_eq!(x.len(), sum.len(), "rank {rank} sums something else");
            match rank {
                0 => sum.copy_from_slice(x),
                _ => sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x),
            }
        }
        Ok(())
    }

    /// Sets all ranks' columns side by side: `[rows, width]` of each into `[rows, ranks * width]` of `out`. Rank 0
    /// reads it; the others bring their share and pass nothing.
    pub fn gather_columns(&self, x: Vec<f32>, rows: usize, out: Option<&mut [f32]>) -> Result<(), PeerGone> {
        let parcels = self.meet(Parcel::Columns(x))?;
        let Some(out) = out.filter(|_| rows > 0) else { return Ok(()) };
        let stride = out.len() / rows;
        let mut column = 0;
        for parcel in parcels.iter() {
            let Parcel::Columns(x) = parcel else { mixed_up(parcel) };
            let width = x.len() / rows;
            for (out, x) in out.chunks_exact_mut(stride).zip(x.chunks_exact(width)) {
                out[column..column + width].copy_from_slice(x);
            }
            column += width;
        }
        Ok(())
    }

    /// What rank 0 says was drawn, by row. Others' words count for nothing.
    pub fn broadcast_drawn(&self, drawn: Vec<Option<u32>>) -> Result<Vec<Option<u32>>, PeerGone> {
        let parcels = self.meet(Parcel::Drawn(drawn))?;
        match &parcels[0] {
            Parcel::Drawn(drawn) => Ok(drawn.clone()),
            other => mixed_up(other),
        }
    }

    fn meet(&self, parcel: Parcel) -> Result<Arc<Vec<Parcel>>, PeerGone> {
        let mut meeting = self.group.lock();
        meeting.brought[self.rank] = Some(parcel);
        if meeting.brought.iter().all(Option::is_some) {
            meeting.parcels = Arc::new(meeting.brought.iter_mut().filter_map(Option::take).collect());
            meeting.held += 1;
            self.group.changed.notify_all();
            return Ok(meeting.parcels.clone());
        }
        let held = meeting.held;
        while meeting.held == held {
            // One that was held counts, even if somebody has left since.
            if let Some(rank) = meeting.gone {
                return Err(PeerGone { rank });
            }
            meeting = self.group.changed.wait(meeting).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(meeting.parcels.clone())
    }
}

impl Group {
    fn lock(&self) -> MutexGuard<'_, Meeting> {
        // Nothing that can panic happens under the lock.
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.group.lock().gone.get_or_insert(self.rank);
        self.group.changed.notify_all();
    }
}

/// Ranks run the same plans with the same code: that they meet for different things is a bug.
fn mixed_up(parcel: &Parcel) -> ! {
    let kind = match parcel {
        Parcel::Summand(_) => "a sum",
        Parcel::Columns(_) => "a gathering",
        Parcel::Drawn(_) => "a broadcast",
    };
    panic!("ranks met for different things: one brought its part of {kind}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Runs `work` on every member of a group at once; answers in the order of ranks.
    fn on_all<T: Send>(ranks: usize, work: impl Fn(usize, Member) -> T + Sync) -> Vec<T> {
        let work = &work;
        std::thread::scope(|scope| {
            let members = Member::group(ranks).into_iter().enumerate();
            let threads: Vec<_> =
                members.map(|(rank, member)| scope.spawn(move || work(rank, member))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn sums_are_made_in_the_order_of_ranks_on_all_of_them() {
        const ROUNDS: usize = 300;
        let value = |rank: usize, round: usize| {
            let mut random = fastrand::Rng::with_seed((rank * ROUNDS + round) as u64);
            (0..round % 7).map(|_| random.f32() * 10.0_f32.powi(random.i32(-8..8))).collect::<Vec<f32>>()
        };
        for ranks in [1, 2, 4] {
            let sums = on_all(ranks, |rank, member| {
                let mut random = fastrand::Rng::with_seed(rank as u64);
                let reduce = |round| {
                    if random.u8(0..20) == 0 {
                        std::thread::sleep(Duration::from_micros(random.u64(0..200)));
                    }
                    let x = value(rank, round);
                    let mut sum = vec![f32::NAN; x.len()];
                    member.all_reduce(x, &mut sum).map(|()| sum)
                };
                (0..ROUNDS).map(reduce).collect::<Result<Vec<_>, _>>().unwrap()
            });
            for round in 0..ROUNDS {
                let mut expected = value(0, round);
                for rank in 1..ranks {
                    expected.iter_mut().zip(value(rank, round)).for_each(|(sum, x)| *sum += x);
                }
                assert!(sums.iter().all(|sums| sums[round] == expected), "round {round} of {ranks} ranks");
            }
        }
    }

    #[test]
    fn columns_stand_side_by_side_on_rank_0() {
        let gathered = on_all(3, |rank, member| {
            let x = (0..4).map(|i| (10 * rank + i) as f32).collect();
            let mut out = vec![0.0; if rank == 0 { 12 } else { 0 }];
            member.gather_columns(x, 2, (rank == 0).then_some(&mut out)).unwrap();
            out
        });
        assert_eq!(gathered[0], [0.0, 1.0, 10.0, 11.0, 20.0, 21.0, 2.0, 3.0, 12.0, 13.0, 22.0, 23.0]);
        let none = on_all(2, |rank, member| {
            member.gather_columns(Vec::new(), 0, (rank == 0).then_some(&mut [])).is_ok()
        });
        assert_eq!(none, [true, true]);
    }

    #[test]
    fn everyone_hears_rank_0() {
        let heard = on_all(4, |rank, member| member.broadcast_drawn(vec![Some(rank as u32), None]).unwrap());
        assert_eq!(heard, vec![vec![Some(0), None]; 4]);
    }

    #[test]
    fn a_rank_that_leaves_releases_the_others_but_spoils_no_meeting_that_was_held() {
        let ends = on_all(3, |rank, member| {
            let mut sum = [0.0];
            member.all_reduce(vec![1.0], &mut sum).unwrap();
            assert_eq!(sum, [3.0]);
            if rank == 1 {
                drop(member);
                return Ok(());
            }
            member.all_reduce(vec![1.0], &mut sum)
        });
        let gone = Err(PeerGone { rank: 1 });
        assert_eq!(ends, [gone, Ok(()), gone]);
        assert_eq!(PeerGone { rank: 1 }.to_string(), "rank 1 is gone");
    }

    #[test]
    fn ranks_that_meet_for_different_things_do_not_wait_for_each_other() {
        let panics = on_all(2, |rank, member| {
            let meet = std::panic::AssertUnwindSafe(|| match rank {
                0 => member.all_reduce(vec![1.0], &mut [0.0]).map(|()| Vec::new()),
                _ => member.broadcast_drawn(Vec::new()),
            });
            std::panic::catch_unwind(meet).is_err()
        });
        assert_eq!(panics, [true, true]);
    }
}
