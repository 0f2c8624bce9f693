//! Random scenarios in which a naive backend writes real contents through the page tables: whatever the accounting
//! did, every live set must read back its own tokens and nothing else.
#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions only, not in what they call

use overshot_kv::{
    Kv, KvError, PageId, PageOp, PageTable, Pool, PoolCapacity, ROLLBACK, SetId, SnapshotId, TOKENS_PER_PAGE,
};
use std::collections::{BTreeMap, HashMap};

/// Rows of the compressor rings, one after the other in a page: what a window needs plus `ROLLBACK`.
const RATIO_4_ROWS: usize = 8 + ROLLBACK;
const RATIO_128_ROWS: usize = 128 + ROLLBACK;

/// Contents by (pool, page, slot). What was never written reads as `None`.
#[derive(Default)]
struct Memory {
    slots: HashMap<(Pool, PageId), Vec<Option<u64>>>,
}

impl Memory {
    fn page(&mut self, pool: Pool, page: PageId) -> &mut Vec<Option<u64>> {
        let slots = match pool {
            Pool::Window => TOKENS_PER_PAGE,
            Pool::CompressorRows => RATIO_4_ROWS + RATIO_128_ROWS,
            _ => TOKENS_PER_PAGE / pool.tokens_per_slot().unwrap(),
        };
        self.slots.entry((pool, page)).or_insert_with(|| vec![None; slots])
    }

    fn apply(&mut self, ops: &[PageOp]) {
        for &PageOp::Copy { pool, from, to } in ops {
            *self.page(pool, to) = self.page(pool, from).clone();
        }
    }

    /// As a backend does for one token: ring rows first, then the entries that the token completes, pooled from
    /// the rings and not from anything remembered elsewhere.
    fn write(&mut self, table: &PageTable, position: usize, token: u64) {
        let ring = table.pages(Pool::Window)[0];
        self.page(Pool::Window, ring)[position % TOKENS_PER_PAGE] = Some(token);
        let rows = self.page(Pool::CompressorRows, table.pages(Pool::CompressorRows)[0]);
        rows[position % RATIO_4_ROWS] = Some(token);
        rows[RATIO_4_ROWS + position % RATIO_128_ROWS] = Some(token);
        let overlapped = pooled((first_row(position, 8)..=position).map(|p| rows[p % RATIO_4_ROWS]));
        let heavy =
            pooled((first_row(position, 128)..=position).map(|p| rows[RATIO_4_ROWS + p % RATIO_128_ROWS]));
        for (pool, entry) in [(Pool::Csa, overlapped), (Pool::IndexKeys, overlapped), (Pool::Hca, heavy)] {
            let ratio = pool.tokens_per_slot().unwrap();
            if (position + 1).is_multiple_of(ratio) {
                let page = table.pages(pool)[position / TOKENS_PER_PAGE];
                self.page(pool, page)[position % TOKENS_PER_PAGE / ratio] = entry;
            }
        }
    }

    /// Everything that a query after `tokens` reads.
    fn verify(&mut self, table: &PageTable, tokens: &[u64], what: &str) {
        let len = tokens.len();
        let ring = self.page(Pool::Window, table.pages(Pool::Window)[0]);
        for position in len.saturating_sub(128)..len {
            assert_eq!(
                ring[position % TOKENS_PER_PAGE],
                Some(tokens[position]),
                "{what}: window at {position}"
            );
        }
        let rows = self.page(Pool::CompressorRows, table.pages(Pool::CompressorRows)[0]);
        for position in (len / 4 * 4).saturating_sub(4)..len {
            assert_eq!(
                rows[position % RATIO_4_ROWS],
                Some(tokens[position]),
                "{what}: ratio-4 row {position}"
            );
        }
        for position in len / 128 * 128..len {
            let row = rows[RATIO_4_ROWS + position % RATIO_128_ROWS];
            assert_eq!(row, Some(tokens[position]), "{what}: ratio-128 row {position}");
        }
        for (pool, reach) in [(Pool::Csa, 8), (Pool::IndexKeys, 8), (Pool::Hca, 128)] {
            let ratio = pool.tokens_per_slot().unwrap();
            for last in (ratio - 1..len).step_by(ratio) {
                let expected = pooled((first_row(last, reach)..=last).map(|p| Some(tokens[p])));
                let page = table.pages(pool)[last / TOKENS_PER_PAGE];
                let entry = self.page(pool, page)[last % TOKENS_PER_PAGE / ratio];
                assert_eq!(entry, expected, "{what}: {pool:?} entry that ends at {last}");
            }
        }
    }
}

fn first_row(position: usize, reach: usize) -> usize {
    (position + 1).saturating_sub(reach)
}

/// Stands for the pooling of rows: depends on every row and on their order.
fn pooled(mut rows: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    rows.try_fold(17, |sum: u64, row| Some(sum.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(9) ^ row?))
}

#[derive(Clone, Default)]
struct Model {
    tokens: Vec<u64>,
    furthest: usize,
}

struct Scenario {
    random: fastrand::Rng,
    kv: Kv,
    memory: Memory,
    sets: BTreeMap<SetId, Model>,
    snapshots: BTreeMap<SnapshotId, Model>,
    refusals: usize,
    most_undone: usize,
}

impl Scenario {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let capacity = PoolCapacity::for_sets(random.usize(1..10), random.usize(0..4000));
        Scenario {
            random,
            kv: Kv::new(capacity),
            memory: Memory::default(),
            sets: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            refusals: 0,
            most_undone: 0,
        }
    }

    fn step(&mut self) {
        let set = self.pick_set();
        match (self.random.u32(0..100), set) {
            (0..8, _) => self.create(),
            (8..50, Some(id)) => self.extend(id),
            (50..72, Some(id)) => self.rollback(id),
            (72..78, Some(id)) => self.snapshot(id),
            (78..84, _) => self.restore(),
            (84..90, Some(id)) => self.fork(id),
            (90..95, Some(id)) => {
                self.kv.free(id).unwrap();
                self.sets.remove(&id);
                assert_eq!(self.kv.len(id), Err(KvError::NoSuchSet { id }));
            }
            (95.., _) => self.drop_snapshot(),
            (_, None) => self.create(),
        }
    }

    fn pick_set(&mut self) -> Option<SetId> {
        self.random.choice(self.sets.keys()).copied()
    }

    fn create(&mut self) {
        let fits = self.kv.can_hold(0);
        let created = self.kv.create();
        assert_eq!(created.is_ok(), fits);
        match created {
            Ok(id) => drop(self.sets.insert(id, Model::default())),
            Err(error) => self.refused(error),
        }
    }

    fn extend(&mut self, id: SetId) {
        let tokens = match self.random.u32(0..6) {
            0 => self.random.usize(0..1200),
            1 => self.random.usize(0..140),
            _ => self.random.usize(1..10),
        };
        let ops = match self.kv.extend(id, tokens) {
            Ok(ops) => ops,
            Err(error) => return self.refused(error),
        };
        self.memory.apply(&ops);
        let table = self.kv.table(id).unwrap();
        let model = self.sets.get_mut(&id).unwrap();
        for _ in 0..tokens {
            let token = self.random.u64(..);
            self.memory.write(table, model.tokens.len(), token);
            model.tokens.push(token);
        }
        model.furthest = model.furthest.max(model.tokens.len());
    }

    fn rollback(&mut self, id: SetId) {
        let positions = self.random.usize(0..=ROLLBACK + 1);
        let model = self.sets.get_mut(&id).unwrap();
        let left = model.tokens.len().checked_sub(positions);
        let exact = left.is_some_and(|left| model.furthest - left <= ROLLBACK);
        match self.kv.rollback(id, positions) {
            Ok(()) => {
                assert!(exact, "{positions} positions were undone beyond what the rings hold");
                model.tokens.truncate(model.tokens.len() - positions);
                self.most_undone = self.most_undone.max(model.furthest - model.tokens.len());
            }
            Err(KvError::TooFarBack { .. }) => assert!(!exact, "undoing {positions} positions was possible"),
            Err(error) => panic!("{error}"),
        }
    }

    fn snapshot(&mut self, id: SetId) {
        match self.kv.snapshot(id) {
            Ok((snapshot, ops)) => {
                self.memory.apply(&ops);
                self.snapshots.insert(snapshot, self.sets[&id].clone());
            }
            Err(error) => self.refused(error),
        }
    }

    fn fork(&mut self, id: SetId) {
        match self.kv.fork(id) {
            Ok((fork, ops)) => {
                self.memory.apply(&ops);
                self.sets.insert(fork, self.sets[&id].clone());
            }
            Err(error) => self.refused(error),
        }
    }

    fn restore(&mut self) {
        let Some(&id) = self.random.choice(self.snapshots.keys()) else { return };
        match self.kv.restore(id) {
            Ok((set, ops)) => {
                self.memory.apply(&ops);
                self.sets.insert(set, self.snapshots[&id].clone());
            }
            Err(error) => self.refused(error),
        }
    }

    fn drop_snapshot(&mut self) {
        let Some(&id) = self.random.choice(self.snapshots.keys()) else { return };
        self.kv.drop_snapshot(id).unwrap();
        self.snapshots.remove(&id);
        assert_eq!(self.kv.restore(id), Err(KvError::NoSuchSnapshot { id }));
    }

    fn refused(&mut self, error: KvError) {
        assert!(matches!(error, KvError::Full { needed, free, .. } if needed > free), "{error}");
        self.refusals += 1;
    }

    fn verify(&mut self, what: &str) {
        assert_eq!(self.kv.check(), Vec::<String>::new(), "{what}");
        for (&id, model) in &self.sets {
            assert_eq!(self.kv.len(id), Ok(model.tokens.len()), "{what}: {id}");
            self.memory.verify(self.kv.table(id).unwrap(), &model.tokens, &format!("{what}, {id}"));
        }
    }

    fn end(&mut self) {
        for id in std::mem::take(&mut self.sets).into_keys() {
            self.kv.free(id).unwrap();
        }
        for id in std::mem::take(&mut self.snapshots).into_keys() {
            self.kv.drop_snapshot(id).unwrap();
        }
    }
}

#[test]
fn every_set_reads_its_own_tokens_whatever_happened() {
    let first_seed = overshot_testing::seed();
    let (mut refusals, mut most_undone) = (0, 0);
    for seed in (0..overshot_testing::cases(60) as u64).map(|n| first_seed.wrapping_add(n)) {
        let mut scenario = Scenario::new(seed);
        let all_free = Pool::ALL.map(|pool| scenario.kv.free_pages(pool));
        for step in 0..250 {
            scenario.step();
            scenario.verify(&format!("seed {seed}, step {step}"));
        }
        scenario.end();
        scenario.verify(&format!("seed {seed}, end"));
        assert_eq!(Pool::ALL.map(|pool| scenario.kv.free_pages(pool)), all_free, "seed {seed}");
        refusals += scenario.refusals;
        most_undone = most_undone.max(scenario.most_undone);
    }
    assert!(refusals > 0, "no scenario ran out of pages: the test proves less than it should");
    assert_eq!(most_undone, ROLLBACK, "no scenario went as far back as it may");
}
