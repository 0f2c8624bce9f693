//! References are most of what a check costs: they are made on all cores.

use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::thread::{available_parallelism, scope};

/// `of` each number below `count`, in order, shared between as many threads as there are cores.
pub fn map<T: Send>(count: usize, of: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let threads = available_parallelism().map_or(1, NonZeroUsize::get).clamp(1, count.max(1));
    let of = &of;
    scope(|scope| {
        // One in `threads` each: work that grows with the number is shared evenly, too.
        let strided = |thread| move || (thread..count).step_by(threads).map(of).collect::<Vec<T>>();
        let shares: Vec<_> = (0..threads).map(|thread| scope.spawn(strided(thread))).collect();
        let done = shares.into_iter().map(|share| share.join().unwrap_or_else(|panic| resume_unwind(panic)));
        let mut shares: Vec<_> = done.map(Vec::into_iter).collect();
        (0..count).filter_map(|at| shares[at % threads].next()).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::map;

    #[test]
    fn results_stand_in_order_however_many_there_are() {
        for count in [0, 1, 2, 3, 100] {
            assert_eq!(map(count, |at| at * at), (0..count).map(|at| at * at).collect::<Vec<_>>());
        }
    }
}
