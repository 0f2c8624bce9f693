//! Forks share pages and then part; a rollback undoes positions exactly; a snapshot restores what was.

use crate::{Bench, Setup, Subject, bits, open};
use overshot_backend::Numerics;

const LENGTHS: [usize; 9] = [131, 5, 260, 8, 127, 128, 255, 256, 300];

pub fn forks_snapshots_and_rollbacks_leave_no_trace(subject: &impl Subject, folder: &str) {
    let model = open(folder);
    let vocab = model.spec.vocab_size as u32;
    let mut random = fastrand::Rng::with_seed(7);
    for &length in &LENGTHS[..subject.extent().choose(LENGTHS.len(), 3)] {
        let tokens: Vec<u32> = (0..length).map(|_| random.u32(0..vocab)).collect();
        let tail: Vec<u32> = (0..12).map(|_| random.u32(0..vocab)).collect();
        let mut bench = Bench::start(subject, &model, Setup::new(Numerics::default(), 4, 4 * 400));
        let set = bench.kv.create().unwrap();
        bench.feed(set, &tokens, &[64, 1]);
        let (fork, fork_ops) = bench.kv.fork(set).unwrap();
        bench.copy(fork_ops);
        let expected = bits(&bench.feed(set, &tail, &[1]));

        let wrong: Vec<u32> = (0..8).map(|_| random.u32(0..vocab)).collect();
        bench.feed(fork, &wrong, &[3]);
        let undone = bench.kv.rollback_room(fork).unwrap().min(8);
        assert_eq!(undone, 8);
        bench.kv.rollback(fork, undone).unwrap();
        let (snapshot, ops) = bench.kv.snapshot(fork).unwrap();
        bench.copy(ops);
        assert!(bits(&bench.feed(fork, &tail, &[5])) == expected, "rolled-back fork at {length}");
        let (restored, ops) = bench.kv.restore(snapshot).unwrap();
        bench.copy(ops);
        assert!(bits(&bench.feed(restored, &tail, &[7])) == expected, "restored snapshot at {length}");
    }
}
