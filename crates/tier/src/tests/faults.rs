use super::*;
use crate::format::{Decoded, FileHeader, Identity, decode_batch};
use crate::io::{DiskError, FileId};

const EIO: DiskError = DiskError::Device { errno: 5 };
const BLOCK: usize = 4096;

/// A world with records `0..count` of version 1, each in a batch of its own.
fn world_of(count: u8, length: u64) -> World {
    let mut world = World::new(small_log(2 << 20), 0);
    for key in 0..count {
        world.put(&[key], 1, length);
        world.rest();
    }
    assert!(world.results.values().all(Result::is_ok));
    world
}

impl World {
    fn reopen(&mut self, moment: &str) -> Opened {
        self.crash(Crash::LoseAll);
        self.rest();
        assert_eq!(self.refused, None, "{moment}");
        self.opened.unwrap_or_else(|| panic!("{moment}: the log opens"))
    }

    /// Where a record lies.
    pub(super) fn place(&mut self, key: &[u8], version: u64) -> (FileId, u64) {
        let mut out = Vec::new();
        let plan = self.agent.begin_read(self.now, &entry(key, version), &mut out).expect("the record is there");
        self.agent.end_read(self.now, plan, ReadEnd::Done, &mut out);
        self.take(out);
        (plan.file, plan.offset)
    }
}

#[test]
fn a_flipped_bit_in_a_value_loses_that_record_and_no_other() {
    for by_promotion in [false, true] {
        let mut world = world_of(4, 5000);
        let (file, offset) = world.place(&[1], 1);
        world.disk.flip(file, offset + 4999, 3);
        if by_promotion {
            let ticket = world.promote(&[1], 1, 5000);
            let extent = world.free.pop().unwrap();
            world.give(AgentInput::Order(Order::Staged { ticket, extent }));
            world.complete();
            assert_eq!(world.promotions_failed[&ticket], PromotionFailure::Corrupt);
        } else {
            assert_eq!(world.read(&[1], 1), None);
        }
        assert!(world.lost.is_empty(), "a crash could still bring it back");
        world.rest();
        assert_eq!(world.lost, [entry(&[1], 1)]);
        world.disk.flip(file, offset + 4999, 3);
        let opened = world.reopen("after the loss");
        assert_eq!((opened.records, world.announced.contains_key(&vec![1])), (3, false));
    }
}

#[test]
fn an_unreadable_value_is_lost() {
    let mut world = world_of(2, 5000);
    let (file, offset) = world.place(&[1], 1);
    world.disk.make_unreadable(file, offset + 4096);
    let ticket = world.promote(&[1], 1, 5000);
    let extent = world.free.pop().unwrap();
    world.give(AgentInput::Order(Order::Staged { ticket, extent }));
    world.rest();
    assert_eq!(world.promotions_failed[&ticket], PromotionFailure::Device);
    assert_eq!(world.lost, [entry(&[1], 1)]);
    assert_eq!(world.agent.arena().accesses(), 0);
}

/// A process out of descriptors could not open a file for a moment. The record that was to be read was taken for lost,
/// and a tombstone made that last: by a reader, by a promotion, and by reclaim, which gave up whole files.
#[test]
fn want_of_descriptors_costs_a_read_and_never_the_record() {
    let error = DiskError::Resources { errno: 24 };
    let mut world = world_of(2, 5000);
    let (file, _) = world.place(&[1], 1);
    world.disk.refuse_reads(file, Some(error));
    let mut out = Vec::new();
    let plan = world.agent.begin_read(world.now, &entry(&[1], 1), &mut out).unwrap();
    assert!(!world.agent.end_read(world.now, plan, ReadEnd::Failed(error), &mut out));
    world.take(out);
    let ticket = world.promote(&[1], 1, 5000);
    let extent = world.free.pop().unwrap();
    world.give(AgentInput::Order(Order::Staged { ticket, extent }));
    world.rest();
    assert_eq!(world.promotions_failed[&ticket], PromotionFailure::Busy);
    assert_eq!(world.lost, []);
    world.disk.refuse_reads(file, None);
    assert_eq!(world.readable(&[1]), Some(1));
}

/// See above; here reads fail while reclaim scans and copies, each in turn.
#[test]
fn reclaim_waits_for_descriptors_and_loses_nothing() {
    let mut reads = 0;
    for nth in 0.. {
        let mut world = World::new(small_log(2 << 20), nth);
        for key in 0..22u8 {
            world.put(&[key], 1, 9000);
            world.rest();
        }
        // A failed sync makes the newest file suspect, and so the one to be drained.
        world.put(&[100], 1, 9000);
        world.give(AgentInput::Flush(1));
        world.disk.fail_at(world.disk.completed() + 1, EIO);
        world.complete();
        world.complete();
        world.disk.fail_read_at(world.disk.completed() + nth, DiskError::Resources { errno: 24 });
        world.rest();
        let done = world.disk.is_read_failure_pending();
        reads += u32::from(!done);
        assert_eq!((&world.lost, world.agent.stats().records_lost), (&vec![], 0), "read {nth}");
        assert!(world.agent.stats().files_reclaimed > 0, "read {nth}");
        world.check(&format!("read {nth} failed"));
        if done {
            break;
        }
    }
    assert!(reads >= 4, "headers and records were read: {reads}");
}

#[test]
fn values_that_changed_places_are_both_found_out() {
    let mut world = world_of(2, 4096);
    let (first, second) = (world.place(&[0], 1), world.place(&[1], 1));
    assert_eq!(first.0, second.0);
    let mut content = world.disk.content(first.0).to_vec();
    let (low, high) = content.split_at_mut(second.1 as usize);
    low[first.1 as usize..][..BLOCK].swap_with_slice(&mut high[..BLOCK]);
    world.disk.plant(first.0, content);
    assert_eq!((world.read(&[0], 1), world.read(&[1], 1)), (None, None));
    world.rest();
    assert_eq!(world.lost.len(), 2);
}

/// Every byte of headers may rot: the second copy of the same headers stands in, wherever the flip is.
#[test]
fn a_rotten_header_is_read_from_its_second_copy() {
    for (batch, copy) in [(0, 0), (3, 0), (5, 0), (0, 1), (3, 1)] {
        for byte in [0, 9, 40, 70, 81, 88, 97, 150, 2000] {
            let mut world = world_of(6, 5000);
            world.remove(&[4], 1);
            world.rest();
            let (file, _) = world.place(&[0], 1);
            let (start, end) = world.batches(file)[batch];
            world.disk.flip(file, [start, end - BLOCK as u64][copy] + byte, 5);
            let opened = world.reopen("with a rotten header");
            let moment = format!("batch {batch}, copy {copy}, byte {byte}");
            assert_eq!((opened.records, opened.rotten, opened.doubtful), (5, 0, 0), "{moment}");
            assert_eq!(opened.repaired, u64::from(copy == 0), "{moment}");
            world.check_opened(&moment);
        }
    }
}

/// When both copies of a durable batch's headers are gone, nobody knows which records it made dead: the older ones are
/// given up, and stay given up wherever the clearing away is cut off.
#[test]
fn what_is_older_than_a_header_that_nobody_can_read_is_given_up() {
    for cut in 0..60 {
        let (mut world, file, (start, end)) = world_with_a_removal(cut);
        let rot = |world: &mut World| {
            world.disk.flip(file, start + 50, 1);
            world.disk.flip(file, end - BLOCK as u64 + 50, 1);
        };
        rot(&mut world);
        world.crash(Crash::LoseAll);
        for _ in 0..cut {
            world.complete();
        }
        world.crash(Crash::LoseAll);
        world.rest();
        let opened = world.opened.expect("the log opens");
        if cut == 0 {
            assert_eq!(opened.rotten, 1);
            assert!(opened.doubtful >= 23, "{}", opened.doubtful);
        }
        assert!(!world.announced.contains_key(&vec![0]), "cut {cut}: it was dropped");
        assert!((40..48).all(|key| world.announced.contains_key(&vec![key])), "cut {cut}: the newer ones stay");
        assert!(world.disk.content(file).is_empty(), "cut {cut}: the file is gone");
        assert!(!world.agent.holds(&entry(&[0], 1)));
        let again = world.reopen("once more");
        assert_eq!((again.rotten, again.doubtful), (0, 0), "cut {cut}");
        assert!(!world.announced.contains_key(&vec![0]), "cut {cut}: it was dropped");
    }
}

/// A world whose removal of the key 0 lies in the middle of its files; where the tombstone's batch is.
fn world_with_a_removal(seed: u64) -> (World, FileId, (u64, u64)) {
    let mut world = World::new(small_log(2 << 20), seed);
    for key in 0..48u8 {
        if key == 24 {
            world.remove(&[0], 1);
            world.rest();
        }
        world.put(&[key], 1, 14_000);
        world.rest();
    }
    let (file, _) = world.place(&[23], 1);
    let batches = world.batches(file);
    let batch = *batches.iter().find(|(start, end)| end - start == 2 * BLOCK as u64).expect("a tombstone");
    (world, file, batch)
}

/// A process out of descriptors could not open one file of its log. Recovery took the failed reads for a file without
/// batches: the tombstones in it were gone, so a removed value came back, and the file was deleted with all it held.
#[test]
fn a_file_that_cannot_be_opened_keeps_the_log_shut_and_costs_nothing() {
    for error in [DiskError::Resources { errno: 24 }, EIO, DiskError::Missing] {
        let (mut world, file, _) = world_with_a_removal(0);
        world.disk.refuse_reads(file, Some(error));
        let files = world.disk.files();
        world.crash(Crash::LoseAll);
        world.rest();
        let refusal = world.refused.take().unwrap_or_else(|| panic!("{error}: the log stays shut"));
        assert!(refusal.may_pass(), "{refusal}");
        match error {
            DiskError::Resources { .. } => assert_eq!(refusal, FormatError::Starved { file, error }),
            error => assert_eq!(refusal, FormatError::Unreadable { file, error }),
        }
        assert_eq!((world.opened, world.disk.files()), (None, files), "{error}");
        world.disk.refuse_reads(file, None);
        let opened = world.reopen("when the file can be read");
        assert_eq!((opened.records, opened.rotten, opened.torn), (47, 0, 0), "{error}");
        world.check_opened("when the file can be read");
    }
}

/// As above in every later pass: descriptors may run out while the log is being opened.
#[test]
fn want_of_descriptors_at_any_moment_of_opening_keeps_the_log_shut_and_costs_nothing() {
    let (mut world, ..) = world_with_a_removal(0);
    world.reopen("undisturbed");
    let begun = world.disk.completed();
    world.crash(Crash::LoseAll);
    while world.opened.is_none() {
        world.complete();
    }
    let error = DiskError::Resources { errno: 24 };
    for nth in 0..world.disk.completed() - begun {
        world.disk.fail_at(world.disk.completed() + nth, error);
        world.crash(Crash::LoseAll);
        world.rest();
        let refusal = world.refused.take().unwrap_or_else(|| panic!("operation {nth} fails: the log stays shut"));
        assert!(matches!(refusal, FormatError::Starved { error: of, .. } if of == error), "{refusal}");
        let opened = world.reopen("afterwards");
        assert_eq!((opened.records, opened.rotten, opened.torn), (47, 0, 0), "operation {nth}");
    }
}

/// The last batch of a life has no later one to vouch for it. When neither copy of its headers could be read it was
/// taken for a write that a crash had cut off, and what its tombstone had kept dead came back.
#[test]
fn headers_that_the_device_cannot_read_are_never_taken_for_a_torn_write() {
    for rest_of_the_file in [false, true] {
        let (mut world, ..) = world_with_a_removal(0);
        world.remove(&[1], 1);
        world.rest();
        let (file, _) = world.place(&[47], 1);
        let (start, end) = *world.batches(file).last().unwrap();
        assert_eq!(end - start, 2 * BLOCK as u64, "a tombstone alone");
        let bytes = world.disk.content(file).len() as u64;
        let bad = if rest_of_the_file { BLOCK as u64..bytes } else { start..end };
        bad.step_by(BLOCK).for_each(|offset| world.disk.make_unreadable(file, offset));
        let opened = world.reopen("with unreadable headers");
        assert_eq!((opened.rotten, opened.torn, opened.records), (1, 0, 0));
        assert!(opened.doubtful >= 40, "{}", opened.doubtful);
        assert!(!world.agent.holds(&entry(&[1], 1)) && !world.agent.holds(&entry(&[0], 1)));
        let again = world.reopen("once more");
        assert_eq!((again.rotten, again.records), (0, 0));
    }
}

/// Headers of several blocks, of which the first could be read and the next could not, were asked for over and over.
#[test]
fn long_headers_that_can_be_read_in_part_do_not_keep_the_log_from_opening() {
    let mut world = World::new(small_log(2 << 20), 0);
    (0..60u8).for_each(|key| _ = world.put(&[key; 600], 1, 20));
    world.rest();
    world.put(b"after", 1, 20);
    world.rest();
    let (file, _) = world.place(&[0; 600], 1);
    let (start, end) = world.batches(file)[0];
    assert!(end - start >= 4 * BLOCK as u64);
    world.disk.make_unreadable(file, start + BLOCK as u64);
    world.disk.make_unreadable(file, end - BLOCK as u64);
    let opened = world.reopen("with half of the headers");
    assert_eq!(opened.rotten, 1);
    assert!(!world.announced.contains_key([0; 600].as_slice()));
}

#[test]
fn a_full_disk_is_reported_refuses_and_is_tried_again() {
    for (name, error) in [("full", DiskError::Full), ("read-only", DiskError::ReadOnly)] {
        let mut world = World::new(small_log(2 << 20), 0);
        world.rest();
        assert!(world.state.unwrap().accepting, "{name}");
        let set = |world: &mut World, on: bool| match error {
            DiskError::Full => world.disk.set_full(on),
            _ => world.disk.set_read_only(on),
        };
        set(&mut world, true);
        let ticket = world.put(b"a", 1, 100);
        world.now += Duration::from_millis(100);
        world.give(AgentInput::Flush(1));
        world.drain();
        assert_eq!(world.results[&ticket], Err(TaskFailure::NoRoom), "{name}");
        assert!(!world.state.unwrap().accepting, "{name}");
        let refused = world.put(b"b", 1, 100);
        assert_eq!(world.results[&refused], Err(TaskFailure::NoRoom), "{name}");
        let tries = world.disk.completed();
        for _ in 0..40 {
            world.now = world.agent.next_deadline().expect("it is tried again");
            let mut out = Vec::new();
            world.agent.on_deadline(world.now, &mut out);
            world.take(out);
            world.drain();
        }
        assert!(world.disk.completed() - tries <= 80, "{name}: with back-off");
        set(&mut world, false);
        world.rest();
        assert!(world.state.unwrap().accepting, "{name}");
        let ticket = world.put(b"c", 1, 100);
        world.rest();
        assert_eq!(world.results[&ticket], Ok(()), "{name}");
    }
}

#[test]
fn after_a_failed_sync_the_file_takes_nothing_more_and_what_was_acknowledged_is_moved() {
    let mut world = world_of(3, 3000);
    let (file, _) = world.place(&[0], 1);
    let ticket = world.put(&[3], 1, 3000);
    world.give(AgentInput::Flush(1));
    world.disk.fail_at(world.disk.completed() + 1, EIO);
    world.complete();
    world.complete();
    assert_eq!(world.results[&ticket], Err(TaskFailure::Device));
    assert!(!world.state.unwrap().accepting);
    for key in 0..3u8 {
        assert_eq!(world.readable(&[key]), Some(1), "acknowledged before");
    }
    world.rest();
    assert!(world.state.unwrap().accepting);
    assert_eq!(world.agent.stats().files_abandoned, 1);
    assert!(world.disk.content(file).is_empty(), "evacuated and deleted");
    world.check("after the evacuation");
    let ticket = world.put(&[3], 2, 5000);
    world.rest();
    assert_eq!(world.results[&ticket], Ok(()));
    world.reopen("after a failed sync");
    world.check_opened("after a failed sync");
}

/// Fails every single operation of a run in turn, with every kind of failure.
#[test]
fn whichever_operation_fails_nothing_acknowledged_is_lost_and_work_goes_on() {
    for error in [EIO, DiskError::Full, DiskError::ReadOnly] {
        for nth in 0.. {
            let mut world = World::new(small_log(2 << 20), nth);
            world.disk.fail_writing_at(nth, error);
            for key in 0..24u8 {
                world.put(&[key], 1, 9000);
                if key % 3 == 0 {
                    world.rest();
                }
                if key > 12 {
                    world.remove(&[key - 12], 1);
                }
            }
            world.rest();
            let moment = format!("{error:?} at {nth}");
            world.check(&moment);
            assert!(world.known.values().all(|known| known.dropped >= known.drop_ordered), "{moment}");
            let failed = world.results.values().filter(|result| result.is_err()).count();
            let done = world.disk.is_failure_pending();
            let ticket = world.put(b"last", 1, 100);
            world.rest();
            assert!(done || world.results[&ticket] == Ok(()), "{moment}: {:?}", world.state);
            world.crash(Crash::Tear);
            world.rest();
            world.check_opened(&moment);
            if done {
                assert_eq!(failed, 0, "nothing was to fail in the last run");
                break;
            }
        }
    }
}

#[test]
fn a_log_that_is_full_of_live_records_says_so_and_goes_on_when_some_are_dropped() {
    let mut world = World::new(small_log(1 << 20), 0);
    let mut taken = 0u64;
    let mut version = 0;
    loop {
        let ticket = world.put(&taken.to_le_bytes(), version + 1, 4096);
        world.rest();
        if world.results[&ticket].is_err() {
            assert_eq!(world.results[&ticket], Err(TaskFailure::NoRoom));
            break;
        }
        (taken, version) = (taken + 1, version + 1);
    }
    let state = world.state.unwrap();
    assert!(!state.accepting && state.pressure > 0, "{state:?}");
    assert!(taken * 4096 >= state.capacity / 4, "{taken} records in {}", state.capacity);
    world.check("full");
    for round in 0..20u64 {
        // The master frees what it is asked to, the oldest first.
        let Some(state) = world.state.filter(|state| !state.accepting) else { break };
        assert!(round < 19, "dropping what was asked for makes room");
        let mut freed = 0;
        for key in 0..taken {
            let known = world.known.get_mut(key.to_le_bytes().as_slice()).unwrap();
            if known.drop_ordered == 0 && freed < state.pressure.max(1) {
                freed += 4096;
                world.remove(&key.to_le_bytes(), key + 1);
            }
        }
        world.rest();
    }
    let ticket = world.put(b"more", version + 10, 4096);
    world.rest();
    assert_eq!(world.results[&ticket], Ok(()));
    world.check("with room again");
    world.reopen("with room again");
    world.check_opened("with room again");
}

/// A log that was longer than its lowered capacity had no room for the tombstones that would have brought it down, so
/// nothing was dropped, nothing was deleted and no record was taken any more.
#[test]
fn a_log_longer_than_its_capacity_comes_down_to_it_and_takes_records_again() {
    for (before, after, files) in [(4 << 20, 1 << 20, 128 << 10), (8 << 20, 1 << 20, 512 << 10)] {
        let mut world = World::new(LogConfig { file_bytes: files, ..small_log(before) }, 3);
        let mut keys = Vec::new();
        for key in 0u64.. {
            let ticket = world.put(&key.to_le_bytes(), key + 1, 4096);
            world.rest();
            if world.results[&ticket].is_err() {
                break;
            }
            keys.push(key);
        }
        assert!(world.agent.stats().file_bytes > 3 * after);
        world.log = small_log(after);
        world.crash(Crash::LoseAll);
        world.rest();
        let mut oldest = keys.iter();
        let mut rounds = 0;
        while world.state.is_none_or(|state| !state.accepting) || world.agent.stats().file_bytes > after {
            rounds += 1;
            assert!(rounds < 200, "{:?} {:?}", world.state, world.agent.stats());
            // The master frees what it is asked to, the oldest first.
            let freed = world.state.map_or(0, |state| state.pressure).div_ceil(4096);
            for key in oldest.by_ref().take(freed as usize) {
                world.remove(&key.to_le_bytes(), key + 1);
            }
            world.rest();
        }
        assert!(oldest.next().is_some(), "what still fits is kept");
        let ticket = world.put(b"more", 1 << 20, 4096);
        world.rest();
        assert_eq!(world.results[&ticket], Ok(()));
        world.check("come down");
        world.reopen("come down");
        world.check_opened("come down");
    }
}

#[test]
fn churn_within_the_stated_capacity_never_runs_out_of_room() {
    let mut world = World::new(small_log(2 << 20), 7);
    world.rest();
    let held = world.state.unwrap().capacity * 9 / 10 / 8192;
    let mut rng = Rng::new(7);
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    for version in 1..1500u64 {
        let key = rng.below(held);
        if let Some(old) = live.insert(key, version) {
            world.remove(&key.to_le_bytes(), old);
        }
        let ticket = world.put(&key.to_le_bytes(), version, 8192);
        if version % 4 == 0 {
            world.rest();
        }
        assert_ne!(world.results.get(&ticket), Some(&Err(TaskFailure::NoRoom)), "version {version}");
    }
    world.rest();
    let stats = world.agent.stats();
    let refused = world.results.values().filter(|result| **result == Err(TaskFailure::NoRoom)).count();
    assert_eq!(refused, 0);
    assert!(stats.files_reclaimed > 20 && stats.file_bytes <= world.log.capacity, "{stats:?}");
    assert!(stats.tombstones < 1500, "tombstones go with what they keep dead: {}", stats.tombstones);
    world.check("after the churn");
}

#[test]
fn reclaim_copies_no_faster_than_its_rate() {
    let mut log = small_log(1 << 20);
    log.reclaim_bytes_per_second = 64 << 10;
    let mut world = World::new(log, 0);
    let mut keys = 0u8;
    while world.agent.stats().files < 6 {
        world.put(&[keys], 1, 8192);
        keys += 1;
        world.rest();
    }
    for key in (0..keys).step_by(2) {
        world.remove(&[key], 1);
    }
    world.rest();
    let (start, copied) = (world.now, world.agent.stats().copied_bytes);
    while world.agent.stats().copied_bytes < copied + (96 << 10) {
        world.put(&[keys], 1, 8192);
        keys += 1;
        world.rest();
    }
    assert!(start.until(world.now) >= Duration::from_millis(1200), "{:?}", start.until(world.now));
}

#[test]
fn files_that_are_not_ours_are_refused_by_name_and_left_alone() {
    let refused = |file: u64, bytes: Vec<u8>| {
        let mut world = world_of(2, 100);
        world.disk.plant(FileId(file), bytes);
        let files = world.disk.files();
        world.crash(Crash::LoseAll);
        world.rest();
        assert_eq!(world.disk.files(), files);
        assert_eq!(world.opened, None);
        world.refused.expect("the log does not open").to_string()
    };
    let header = FileHeader { log: FRESH, file: FileId(9), life: 1, bytes: 8192, highest_version: Version(1) };
    let padded = |mut bytes: Vec<u8>| {
        bytes.resize(2 * BLOCK, 0);
        bytes
    };
    assert_eq!(
        refused(9, padded(b"\x7fELF-something".to_vec())),
        "log file 9 is no Slackwater log (it begins with \"\\x7fELF-som\"): move it away, or choose another directory"
    );
    let mut newer = header.encode();
    newer[8] = 2;
    let checksum = Checksum::of(&newer[..64]);
    newer[64..72].copy_from_slice(&checksum.0.to_le_bytes());
    assert_eq!(
        refused(9, padded(newer)),
        "log file 9 has format 2, this version reads up to 1: upgrade, or empty the directory to start cold"
    );
    let misplaced = "log file 8 belongs to another log or place: it was copied or renamed; move it away";
    assert_eq!(refused(8, padded(header.encode())), misplaced);
    assert!(refused(9, b"a note".to_vec()).starts_with("log file 9 is no Slackwater log"));
    let other = FileHeader { log: 1, file: FileId(8), ..header };
    assert_eq!(refused(8, padded(other.encode())), misplaced);
}

#[test]
fn files_without_a_header_are_cleared_away() {
    let mut world = world_of(2, 100);
    world.disk.plant(FileId(70), vec![0; 4 * BLOCK]);
    world.disk.plant(FileId(69), Vec::new());
    let opened = world.reopen("with an empty file");
    assert_eq!((opened.records, opened.torn, opened.rotten), (2, 0, 0));
    assert!(world.disk.content(FileId(70)).is_empty());
    world.put(b"next", 2, 100);
    world.rest();
    assert!(world.disk.files().iter().any(|file| file.file > FileId(70)), "its number is not used again");
}

#[test]
fn a_damaged_first_block_costs_no_record() {
    let mut world = world_of(3, 100);
    let (file, _) = world.place(&[0], 1);
    world.put(b"elsewhere", 1, 100);
    world.rest();
    world.crash(Crash::LoseAll);
    world.rest();
    world.put(b"new", 2, 100);
    world.rest();
    world.disk.flip(file, 30, 2);
    let opened = world.reopen("with a damaged first block");
    assert_eq!(opened.records, 5);
    world.check_opened("with a damaged first block");
    assert!(world.disk.content(file).is_empty(), "it was evacuated");
}

/// A disk laid a batch over the first block of its file (seed 5049 of the simulator) and the file was taken for somebody
/// else's, which kept the whole log from opening.
#[test]
fn a_batch_laid_over_the_first_block_keeps_no_log_shut() {
    let mut world = world_of(3, 100);
    let (file, _) = world.place(&[0], 1);
    world.crash(Crash::LoseAll);
    world.rest();
    world.put(b"new", 2, 100);
    world.rest();
    let start = world.batches(file)[0].0 as usize;
    let mut bytes = world.disk.content(file).to_vec();
    bytes.copy_within(start..start + BLOCK, 0);
    world.disk.plant(file, bytes);
    assert_eq!(world.reopen("with a batch in the first block").records, 4);
    world.check_opened("with a batch in the first block");
}

/// A value that looks like the headers of a batch, at the place where it lies, is not taken for one: it would have to
/// name the log.
#[test]
fn a_value_cannot_pass_for_headers() {
    let mut world = world_of(1, 100);
    let (file, _) = world.place(&[0], 1);
    let (start, end) = world.batches(file)[0];
    let bytes = world.disk.content(file).to_vec();
    let forged = &bytes[start as usize..start as usize + BLOCK];
    let file_bytes = bytes.len() as u64;
    let ours = Identity { log: FRESH, file };
    assert!(matches!(decode_batch(ours, file_bytes, start, forged), Decoded::Batch(_)));
    assert_eq!(decode_batch(Identity { log: FRESH + 1, file }, file_bytes, start, forged), Decoded::Other);
    assert_eq!(
        decode_batch(Identity { log: FRESH, file: FileId(file.0 + 1) }, file_bytes, start, forged),
        Decoded::Other
    );
    assert_eq!(decode_batch(ours, file_bytes, end, forged), Decoded::Other, "a header that went elsewhere");
}
