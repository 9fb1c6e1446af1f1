use std::sync::atomic::{AtomicUsize, Ordering};

use slackwater_base::BLOCK_BYTES;

use super::*;
use crate::evict::Walk;

/// A policy that wants to run at these times, one after another, from the first read on, and first of all when it is told
/// of new blocks.
struct Runs {
    times: Vec<Instant>,
    was_read: bool,
    ran: Arc<AtomicUsize>,
}

impl Evict for Runs {
    fn name(&self) -> &'static str {
        "runs"
    }

    fn read(&mut self, _: &Walk<'_>) {
        self.was_read = true;
    }

    fn insert(&mut self, walk: &Walk<'_>) {
        self.times.insert(0, walk.now);
    }

    fn remove(&mut self, _: Slot) {}

    fn victim(&mut self, _: Instant) -> Option<Slot> {
        None
    }

    fn evicted(&mut self, _: Instant, _: Slot) {}

    fn exclude(&mut self, _: Slot) {}

    fn include(&mut self, _: Slot) {}

    fn set_capacity(&mut self, _: u64) {}

    fn next_deadline(&self) -> Option<Instant> {
        self.times.first().copied().filter(|_| self.was_read)
    }

    fn on_deadline(&mut self, _: Instant) {
        self.times.remove(0);
        self.ran.fetch_add(1, Ordering::Relaxed);
    }

    fn overhead_bytes(&self) -> usize {
        0
    }
}

/// Every policy was asked after every request when it wants to run: a thousand instructions of a look-up with 64 segments.
#[test]
fn policies_run_when_they_want_to_and_once_each_time() {
    let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
    let mut segments = Segments::default();
    let mut add = |id: u32, times: &[u64]| {
        let ran = Arc::new(AtomicUsize::new(0));
        let policy = Runs {
            times: times.iter().map(|it| at(*it)).collect(),
            was_read: false,
            ran: Arc::clone(&ran),
        };
        let mount = Mount {
            segment: SegmentId(id),
            name: String::new(),
            node: NodeId(1),
            incarnation: Incarnation(1),
            kind: SegmentKind::Memory,
            bytes: BLOCK_BYTES,
            host: String::new(),
            generations: None,
            watermarks: None,
        };
        let segment = Segment::new(&mount, BLOCK_BYTES, 1, Box::new(policy));
        (segments.add(segment), ran)
    };
    let (one, of_one) = add(1, &[5, 7, 7, 20]);
    let (other, of_other) = add(2, &[6]);
    let ran = || [&of_one, &of_other].map(|ran| ran.load(Ordering::Relaxed));
    let walk = |seconds| Walk::at_root(at(seconds), &[]);
    let read = |segments: &mut Segments, index| {
        segments.tell_policy(index, |policy| policy.read(&walk(0)));
    };
    assert_eq!(segments.policies_due(), None);
    read(&mut segments, other);
    read(&mut segments, one);
    let mut check = |now: u64, expected: [usize; 2], due: Option<u64>| {
        segments.run_policies(at(now));
        assert_eq!(ran(), expected, "at {now}");
        assert_eq!(segments.policies_due(), due.map(at), "at {now}");
        assert!(segments.are_policies_noted());
    };
    check(4, [0, 0], Some(5));
    check(5, [1, 0], Some(6));
    check(8, [2, 1], Some(7));
    check(8, [3, 1], Some(20));
    segments.tell_policy(one, |policy| policy.insert(&walk(12)));
    assert_eq!(
        segments.policies_due(),
        Some(at(12)),
        "it wants to run earlier"
    );
    segments.take(one);
    assert_eq!(segments.policies_due(), None, "it is gone");
}

/// A log writes the headers of a record twice, with its names.
#[test]
fn a_record_counts_its_blocks_and_its_names() {
    let check = |key: usize, bytes, counted| {
        let key = Key::new(&vec![b'k'; key]).unwrap();
        assert_eq!(record_bytes(&key, bytes), counted);
    };
    check(1, 1, 4096 + 512);
    check(128, 4096, 4096 + 512);
    check(129, 4097, 8192 + 1024);
    check(1024, 1 << 20, (1 << 20) + 2560);
}
