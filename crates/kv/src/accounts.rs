//! Who owns which page. Every operation either happens for the whole set or changes nothing.
//!
//! Pages of growing pools are shared by reference between a set, its forks and its snapshots, and copied when one
//! of them is about to write to a page that others still read. Window and compressor-row pages are rings that
//! every step overwrites, so a fork, a snapshot and a restored set each get their own copy at once.
//!
//! Copies come back as [`PageOp`]s. They belong into the next step plan, in the order in which the calls returned
//! them: a page that one call frees may be handed out by the next. They run before that plan's rows, so a fork or
//! snapshot that should hold what a step computes is taken after that step, never between its `extend` and its run.

use crate::pages::Pages;
use crate::set::Set;
use crate::{KvError, PageId, PageOp, PageTable, Pool, PoolCapacity, TOKENS_PER_PAGE};
use std::collections::BTreeMap;

/// A live set. Numbers are never used twice, so an id that outlives its set is an error, never another set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetId(u64);

/// A frozen set. As with [`SetId`], never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SnapshotId(u64);

impl std::fmt::Display for SetId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "set {}", self.0)
    }
}

impl std::fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "snapshot {}", self.0)
    }
}

/// The accounts of one backend's pools.
#[derive(Debug)]
pub struct Kv {
    /// In the order of `Pool::ALL`.
    pools: [Pages; 5],
    sets: BTreeMap<SetId, Set>,
    snapshots: BTreeMap<SnapshotId, Set>,
    /// Ids given so far, to sets and snapshots alike.
    ids: u64,
}

impl Kv {
    pub fn new(capacity: PoolCapacity) -> Self {
        Kv {
            pools: Pool::ALL.map(|pool| Pages::new(capacity.pages(pool))),
            sets: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            ids: 0,
        }
    }

    /// A new set of no positions. It takes its window and compressor-row pages at once.
    ///
    /// # Errors
    /// [`KvError::Full`], with nothing changed.
    pub fn create(&mut self) -> Result<SetId, KvError> {
        require(&self.pools, fixed_pages())?;
        let mut set = Set::default();
        for pool in Pool::FIXED {
            set.table.pages_mut(pool).push(take(&mut self.pools, pool)?);
        }
        Ok(self.insert(set))
    }

    /// Makes room for the next `tokens` positions, all of which the step that carries the copies must write.
    ///
    /// # Errors
    /// [`KvError::Full`], with nothing changed; [`KvError::NoSuchSet`].
    pub fn extend(&mut self, id: SetId, tokens: usize) -> Result<Vec<PageOp>, KvError> {
        let set = self.sets.get_mut(&id).ok_or(KvError::NoSuchSet { id })?;
        if tokens == 0 {
            return Ok(Vec::new());
        }
        let len = set.len.saturating_add(tokens);
        let first_written = set.len / TOKENS_PER_PAGE;

        let mut needed = [0; 5];
        for pool in Pool::GROWING {
            let (held, pages) = (set.table.pages(pool), &self.pools[pool.index()]);
            let shared = held.iter().skip(first_written).filter(|page| pages.is_shared(**page)).count();
            let new = pool.pages_for(len) - held.len();
            needed[pool.index()] = shared + new;
        }
        require(&self.pools, needed)?;

        let mut ops = Vec::new();
        for pool in Pool::GROWING {
            let held = set.table.pages_mut(pool);
            for page in held.iter_mut().skip(first_written) {
                if self.pools[pool.index()].is_shared(*page) {
                    let (from, to) = (*page, take(&mut self.pools, pool)?);
                    ops.push(PageOp::Copy { pool, from, to });
                    self.pools[pool.index()].release(from);
                    *page = to;
                }
            }
            while held.len() < pool.pages_for(len) {
                held.push(take(&mut self.pools, pool)?);
            }
        }
        set.len = len;
        set.furthest = set.furthest.max(len);
        Ok(ops)
    }

    /// Undoes the last `positions` positions; pages that only they needed are freed. Moves no byte.
    ///
    /// # Errors
    /// [`KvError::TooFarBack`] when that is more than [`Kv::rollback_room`]; [`KvError::NoSuchSet`].
    pub fn rollback(&mut self, id: SetId, positions: usize) -> Result<(), KvError> {
        let set = self.sets.get_mut(&id).ok_or(KvError::NoSuchSet { id })?;
        let possible = set.rollback_room();
        if positions > possible {
            return Err(KvError::TooFarBack { id, positions, possible });
        }
        set.len -= positions;
        for pool in Pool::GROWING {
            for page in set.table.pages_mut(pool).drain(pool.pages_for(set.len)..) {
                self.pools[pool.index()].release(page);
            }
        }
        Ok(())
    }

    /// Freezes a copy of a set.
    ///
    /// # Errors
    /// [`KvError::Full`], with nothing changed; [`KvError::NoSuchSet`].
    pub fn snapshot(&mut self, id: SetId) -> Result<(SnapshotId, Vec<PageOp>), KvError> {
        let source = self.set(id)?.clone();
        let (copy, ops) = self.duplicate(source)?;
        self.ids += 1;
        let snapshot = SnapshotId(self.ids);
        self.snapshots.insert(snapshot, copy);
        Ok((snapshot, ops))
    }

    /// A new set that continues from a snapshot; the snapshot stays.
    ///
    /// # Errors
    /// [`KvError::Full`], with nothing changed; [`KvError::NoSuchSnapshot`].
    pub fn restore(&mut self, id: SnapshotId) -> Result<(SetId, Vec<PageOp>), KvError> {
        let source = self.snapshots.get(&id).ok_or(KvError::NoSuchSnapshot { id })?.clone();
        let (copy, ops) = self.duplicate(source)?;
        Ok((self.insert(copy), ops))
    }

    /// A second set that holds the same positions and goes its own way from there.
    ///
    /// # Errors
    /// [`KvError::Full`], with nothing changed; [`KvError::NoSuchSet`].
    pub fn fork(&mut self, id: SetId) -> Result<(SetId, Vec<PageOp>), KvError> {
        let source = self.set(id)?.clone();
        let (copy, ops) = self.duplicate(source)?;
        Ok((self.insert(copy), ops))
    }

    /// Gives back everything a set holds.
    ///
    /// # Errors
    /// [`KvError::NoSuchSet`].
    pub fn free(&mut self, id: SetId) -> Result<(), KvError> {
        let set = self.sets.remove(&id).ok_or(KvError::NoSuchSet { id })?;
        self.release(&set);
        Ok(())
    }

    /// Gives back everything a snapshot holds.
    ///
    /// # Errors
    /// [`KvError::NoSuchSnapshot`].
    pub fn drop_snapshot(&mut self, id: SnapshotId) -> Result<(), KvError> {
        let set = self.snapshots.remove(&id).ok_or(KvError::NoSuchSnapshot { id })?;
        self.release(&set);
        Ok(())
    }

    /// The pages of a set, for the rows of a step plan.
    ///
    /// # Errors
    /// [`KvError::NoSuchSet`].
    pub fn table(&self, id: SetId) -> Result<&PageTable, KvError> {
        Ok(&self.set(id)?.table)
    }

    /// Positions that a set holds.
    ///
    /// # Errors
    /// [`KvError::NoSuchSet`].
    pub fn len(&self, id: SetId) -> Result<usize, KvError> {
        Ok(self.set(id)?.len)
    }

    /// Positions that [`Kv::rollback`] can undo now, at most [`crate::ROLLBACK`].
    ///
    /// # Errors
    /// [`KvError::NoSuchSet`].
    pub fn rollback_room(&self, id: SetId) -> Result<usize, KvError> {
        Ok(self.set(id)?.rollback_room())
    }

    pub fn free_pages(&self, pool: Pool) -> usize {
        self.pools[pool.index()].free_count()
    }

    /// Whether one more set of `tokens` positions fits beside all that is held now.
    pub fn can_hold(&self, tokens: usize) -> bool {
        Pool::ALL.into_iter().all(|pool| pool.pages_for(tokens) <= self.free_pages(pool))
    }

    /// Walks all tables and says in words whatever does not add up. Empty when all is well.
    pub fn check(&self) -> Vec<String> {
        let named_sets = self.sets.iter().map(|(id, set)| (id.to_string(), set));
        let named_snapshots = self.snapshots.iter().map(|(id, set)| (id.to_string(), set));
        let mut found = Pool::ALL.map(|pool| vec![0_u32; self.pools[pool.index()].count()]);
        let mut wrong = Vec::new();
        for (name, set) in named_sets.chain(named_snapshots) {
            wrong.extend(set.check(&name));
            for pool in Pool::ALL {
                for page in set.table.pages(pool) {
                    match found[pool.index()].get_mut(page.0 as usize) {
                        Some(owners) => *owners += 1,
                        None => wrong.push(format!("{name}: {pool:?} has no page {}", page.0)),
                    }
                }
            }
        }
        for pool in Pool::ALL {
            wrong.extend(self.pools[pool.index()].check(pool, &found[pool.index()]));
        }
        for pool in Pool::FIXED {
            for (page, owners) in found[pool.index()].iter().enumerate().filter(|(_, owners)| **owners > 1) {
                wrong.push(format!("{pool:?} page {page}: a ring that {owners} sets write to"));
            }
        }
        wrong
    }

    fn set(&self, id: SetId) -> Result<&Set, KvError> {
        self.sets.get(&id).ok_or(KvError::NoSuchSet { id })
    }

    fn insert(&mut self, set: Set) -> SetId {
        self.ids += 1;
        self.sets.insert(SetId(self.ids), set);
        SetId(self.ids)
    }

    fn duplicate(&mut self, mut set: Set) -> Result<(Set, Vec<PageOp>), KvError> {
        require(&self.pools, fixed_pages())?;
        for pool in Pool::GROWING {
            for page in set.table.pages(pool) {
                self.pools[pool.index()].share(*page);
            }
        }
        let mut ops = Vec::new();
        for pool in Pool::FIXED {
            for page in set.table.pages_mut(pool) {
                let (from, to) = (*page, take(&mut self.pools, pool)?);
                ops.push(PageOp::Copy { pool, from, to });
                *page = to;
            }
        }
        Ok((set, ops))
    }

    fn release(&mut self, set: &Set) {
        for pool in Pool::ALL {
            for page in set.table.pages(pool) {
                self.pools[pool.index()].release(*page);
            }
        }
    }
}

/// Pages that every set has whatever its length, by pool.
fn fixed_pages() -> [usize; 5] {
    Pool::ALL.map(|pool| pool.pages_for(0))
}

/// All pages or none: asked before the first is taken.
fn require(pools: &[Pages; 5], needed: [usize; 5]) -> Result<(), KvError> {
    for pool in Pool::ALL {
        let (needed, free) = (needed[pool.index()], pools[pool.index()].free_count());
        if needed > free {
            return Err(KvError::Full { pool, needed, free });
        }
    }
    Ok(())
}

fn take(pools: &mut [Pages; 5], pool: Pool) -> Result<PageId, KvError> {
    pools[pool.index()].take().ok_or(KvError::Full { pool, needed: 1, free: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ROLLBACK;

    fn kv(sets: usize, tokens: usize) -> Kv {
        Kv::new(PoolCapacity::for_sets(sets, tokens))
    }

    #[test]
    fn a_stale_id_is_an_error() {
        let mut kv = kv(2, 512);
        let old = kv.create().unwrap();
        kv.free(old).unwrap();
        let new = kv.create().unwrap();
        assert_ne!(old, new);
        assert_eq!(kv.len(old), Err(KvError::NoSuchSet { id: old }));
        assert_eq!(kv.free(old), Err(KvError::NoSuchSet { id: old }));
        let (snapshot, _) = kv.snapshot(new).unwrap();
        kv.drop_snapshot(snapshot).unwrap();
        assert_eq!(kv.restore(snapshot), Err(KvError::NoSuchSnapshot { id: snapshot }));
    }

    #[test]
    fn what_does_not_fit_changes_nothing() {
        let mut kv = kv(1, 512);
        let set = kv.create().unwrap();
        kv.extend(set, 300).unwrap();
        let before = kv.table(set).unwrap().clone();
        let full = KvError::Full { pool: Pool::Csa, needed: 2, free: 1 };
        assert_eq!(kv.extend(set, 600), Err(full));
        assert!(matches!(kv.extend(set, usize::MAX), Err(KvError::Full { .. })));
        assert_eq!(kv.create(), Err(KvError::Full { pool: Pool::Window, needed: 1, free: 0 }));
        assert!(matches!(kv.fork(set), Err(KvError::Full { .. })));
        assert_eq!(kv.table(set).unwrap(), &before);
        assert_eq!(kv.len(set), Ok(300));
        assert_eq!(kv.check(), Vec::<String>::new());
    }

    #[test]
    fn the_page_that_a_fork_writes_to_is_copied_once() {
        let mut kv = kv(2, 1024);
        let set = kv.create().unwrap();
        kv.extend(set, 300).unwrap();
        let (fork, rings) = kv.fork(set).unwrap();
        assert_eq!(rings.len(), Pool::FIXED.len());
        assert_eq!(kv.extend(fork, 1).unwrap().len(), Pool::GROWING.len());
        assert_eq!(kv.extend(fork, 1).unwrap(), []);
        assert_eq!(kv.extend(set, 1).unwrap(), [], "its fork no longer reads the page");
        assert_eq!(kv.table(set).unwrap().pages(Pool::Csa)[0], kv.table(fork).unwrap().pages(Pool::Csa)[0]);
        assert_eq!(kv.check(), Vec::<String>::new());
    }

    #[test]
    fn full_pages_stay_shared() {
        let mut kv = kv(2, 1024);
        let set = kv.create().unwrap();
        kv.extend(set, 512).unwrap();
        let (snapshot, _) = kv.snapshot(set).unwrap();
        assert_eq!(kv.extend(set, 5).unwrap(), []);
        kv.free(set).unwrap();
        let (set, _) = kv.restore(snapshot).unwrap();
        assert_eq!(kv.len(set), Ok(512));
        assert_eq!(kv.free_pages(Pool::Hca), 4);
    }

    #[test]
    fn rolling_back_is_bounded_by_what_the_rings_still_hold() {
        let mut kv = kv(2, 1024);
        let set = kv.create().unwrap();
        kv.extend(set, 257).unwrap();
        assert_eq!(
            kv.rollback(set, 9),
            Err(KvError::TooFarBack { id: set, positions: 9, possible: ROLLBACK })
        );
        kv.rollback(set, 3).unwrap();
        assert_eq!(kv.table(set).unwrap().pages(Pool::IndexKeys).len(), 1);
        kv.extend(set, 1).unwrap();
        assert_eq!(kv.rollback_room(set), Ok(6));
        let (fork, _) = kv.fork(set).unwrap();
        assert_eq!(kv.rollback_room(fork), Ok(6), "its rings are copies, overwritten slots included");
        kv.rollback(fork, 6).unwrap();
        assert_eq!(kv.rollback_room(fork), Ok(0));
        assert_eq!(kv.check(), Vec::<String>::new());
    }

    #[test]
    fn the_walk_finds_damage() {
        let mut kv = kv(2, 1024);
        let (a, b) = (kv.create().unwrap(), kv.create().unwrap());
        kv.extend(a, 10).unwrap();
        let ring = kv.table(a).unwrap().pages(Pool::Window)[0];
        let damaged = kv.sets.get_mut(&b).unwrap();
        damaged.table.pages_mut(Pool::Window)[0] = ring;
        damaged.table.pages_mut(Pool::Csa).push(PageId(77));
        damaged.furthest = 20;
        let wrong = kv.check();
        for part in [
            "1 Csa pages, 0 positions need 0",
            "Csa has no page 77",
            "0 positions, but it once reached 20",
            "Window page 0: 1 owners counted, 2 found",
            "Window page 1: 1 owners counted, 0 found",
            "Window page 0: a ring that 2 sets write to",
        ] {
            assert!(wrong.iter().any(|line| line.contains(part)), "{part} in {wrong:#?}");
        }
    }
}
