//! Bugs that the simulator found, each with its story.

use super::*;
use crate::format::Entry;

impl World {
    /// Starts again after `crash`, and returns what is announced.
    fn announced(&mut self, crash: Crash) -> BTreeMap<Vec<u8>, u64> {
        self.reopen(crash, "announced");
        self.announced.clone()
    }

    /// As [`World::announced`], before anything else is done.
    pub(super) fn announced_by_opening(&mut self, crash: Crash) -> BTreeMap<Vec<u8>, u64> {
        self.crash(crash);
        while self.opened.is_none() {
            assert!(self.complete(), "an opening comes to its end");
        }
        self.announced.clone()
    }

    /// Panics when a record is written after a tombstone or after a newer record that makes it dead.
    pub(super) fn check_order(&self, moment: &str) {
        // Of each key, the versions below this one are dead.
        let mut dead_below: BTreeMap<slackwater_base::KeyHash, u64> = BTreeMap::new();
        for file in self.disk.files() {
            for (start, _) in self.batches(file.file) {
                let place = Identity {
                    log: FRESH,
                    file: file.file,
                };
                let bytes = &self.disk.content(file.file)[start as usize..];
                let Decoded::Batch(batch) = decode_batch(place, file.bytes, start, bytes) else {
                    continue;
                };
                for entry in batch.entries {
                    let (hash, below) = match &entry {
                        Entry::Tombstone { hash, version } => (*hash, version.0 + 1),
                        Entry::Record(record) => (record.hash, record.entry.version.0),
                    };
                    let highest = dead_below.entry(hash).or_default();
                    if let Entry::Record(record) = &entry {
                        assert!(
                            record.entry.version.0 >= *highest,
                            "{moment}: {:?} is written after what makes it dead",
                            record.entry
                        );
                    }
                    *highest = below.max(*highest);
                }
            }
        }
    }
}

/// Reclaim had read a record and queued its copy when the record was dropped. The tombstone was written first, and the
/// copy after it: rot in the headers of the tombstone would have given up older files only.
#[test]
fn a_copy_that_died_in_the_queue_is_not_written_after_its_tombstone() {
    let mut copied = 0;
    for cut in 0..40 {
        let mut world = world_of(10, 9000);
        // A failed sync makes the newest file suspect, so it is the file to be emptied.
        world.put(&[100], 1, 9000);
        world.give(AgentInput::Flush(1));
        world.disk.fail_at(world.disk.completed() + 1, EIO);
        for _ in 0..2 + cut {
            world.complete();
        }
        for key in 5..9 {
            world.remove(&[key], 1);
        }
        world.check_order(&format!("cut {cut}, before"));
        for _ in 0..200 {
            world.complete();
            world.check_order(&format!("cut {cut}"));
        }
        world.rest();
        world.check_order(&format!("cut {cut}, at rest"));
        copied += world.agent.stats().copied_bytes;
        world.check(&format!("cut {cut}"));
    }
    assert!(copied > 0, "reclaim was at work");
}

/// Failed syncs left files in which nothing was needed. The log was emptying another file and
/// needed room for its copies; the abandoned files had that room, but were to be deleted only
/// afterwards. Nothing was ever written again, and every removal waited.
#[test]
fn abandoned_files_make_way_for_the_one_being_emptied() {
    for syncs in 1..10 {
        let mut world = World::new(small_log(1 << 20), syncs);
        // The end of a reused file has a sync of its own, and each round is to fail that of its record.
        world.disk.set_reuses(false);
        for key in 0..30u8 {
            world.put(&[key], 1, 9000);
            world.rest();
        }
        for round in 0..syncs {
            world.put(&[100], round + 1, 9000);
            world.give(AgentInput::Flush(round));
            while !world.complete_sync(EIO) {}
            world.now = world.agent.next_deadline().unwrap_or(world.now);
            world.give(AgentInput::Flush(100 + round));
        }
        world.remove(&[0], 1);
        world.rest();
        assert_eq!(
            world.known[&vec![0]].dropped,
            1,
            "after {syncs} failed syncs a removal is carried out"
        );
        let ticket = world.put(b"last", 1, 9000);
        world.rest();
        assert_eq!(
            world.results[&ticket],
            Ok(()),
            "after {syncs} failed syncs a record is written"
        );
        world.check("afterwards");
    }
}

/// A sync failed, and after some errors its record was refused as if it had never been written. The
/// record may be on the device all the same, and the master has to know.
#[test]
fn a_record_that_may_have_been_written_is_refused_as_one() {
    for error in [EIO, DiskError::Full, DiskError::ReadOnly] {
        for nth in 0..2 {
            let mut world = world_of(1, 5000);
            let ticket = world.put(&[1], 1, 5000);
            world.give(AgentInput::Flush(1));
            (0..nth).for_each(|_| assert!(world.complete()));
            world.disk.set_outage(Some(error));
            world.run_for(world.log.retry_delay_max * 2);
            assert_eq!(
                world.results[&ticket],
                Err(TaskFailure::Device),
                "{error:?} at {nth}"
            );
        }
    }
}

/// Versions began at one again after a restart. The log still had tombstones of higher versions,
/// which made the new records dead at the next restart. A log reports the highest version that it
/// has seen, also of deleted records.
#[test]
fn a_log_remembers_versions_of_records_that_are_gone() {
    let mut world = world_of(2, 5000);
    world.put(&[0], 70, 100);
    world.rest();
    world.remove(&[0], 70);
    world.rest();
    let announced = world.announced(Crash::LoseAll);
    assert_eq!(
        (
            announced.values().max(),
            world.opened.unwrap().highest_version
        ),
        (Some(&1), Version(70))
    );
}

/// A block could not be read while the log was being opened, and its records were not announced.
/// The next opening could read it: a value that had been replaced and removed meanwhile, in memory
/// only, was back. What one opening does not announce, no later one may; a log that cannot
/// guarantee that stays shut.
#[test]
fn what_an_opening_could_not_read_never_comes_back() {
    let (mut shut, mut given_up) = (0, 0);
    let mut files = 0;
    for (file, block) in
        (0..8).flat_map(|file| (0..32).map(move |block| (FileId(file), block * 4096)))
    {
        let mut world = world_of(30, 9000);
        world.remove(&[3], 1);
        world.rest();
        // No later header says that the last batch was durable.
        world.put(&[50], 1, 9000);
        world.rest();
        let whole = world.announced(Crash::LoseAll);
        files = world.disk.files().len();
        world.disk.make_unreadable(file, block);
        // Headers have two copies: with the block before gone as well, neither can be read.
        world
            .disk
            .make_unreadable(file, block.saturating_sub(16384));
        world.crash(Crash::LoseAll);
        while world.opened.is_none() && world.refused.is_none() {
            assert!(world.complete(), "an opening comes to its end");
        }
        let (announced, open) = (world.announced.clone(), world.opened.is_some());
        shut += u32::from(!open);
        given_up += u32::from(open && announced.len() < whole.len());
        world.disk.mend();
        world.refused = None;
        let again = world.announced(Crash::LoseAll);
        assert_eq!(
            again,
            if open { announced } else { whole },
            "{file:?} at {block}"
        );
    }
    assert!(
        files > 4 && shut >= 4 && given_up > 4,
        "{files} files, {shut} times shut, {given_up} times given up"
    );
}

/// A sync failed while the log was being opened. The log opened all the same, without records that an unsynced tombstone
/// made dead; the next power cut took the tombstone, and they were back.
#[test]
fn a_log_that_cannot_be_synced_stays_shut() {
    let mut world = world_of(2, 5000);
    world.remove(&[1], 1);
    world.complete();
    let at = world.disk.completed();
    world.crash(Crash::Process);
    while !world.disk.next_is_sync() {
        assert!(
            world.complete(),
            "recovery syncs the files that it found, operation {}",
            world.disk.completed() - at
        );
    }
    world.disk.fail_at(world.disk.completed(), EIO);
    world.rest();
    assert!(world.opened.is_none() && world.announced.is_empty());
    assert!(world.refused.take().is_some_and(|error| error.may_pass()));
    assert_eq!(world.announced(Crash::Process).len(), 1);
}

/// A record was found torn and not announced; the process was killed before its file was emptied.
/// The next opening could not read the record, took it for a whole one, and announced it, though
/// the master did not know it (seed 5290).
#[test]
fn a_record_that_was_found_torn_is_not_announced_when_it_cannot_be_read() {
    let mut world = world_of(2, 5000);
    let (file, offset) = world.place(&[1], 1);
    world.disk.flip(file, offset, 3);
    assert_eq!(
        world.announced_by_opening(Crash::Process).len(),
        1,
        "no later batch confirms the last one"
    );
    world.disk.make_unreadable(file, offset);
    assert_eq!(world.announced_by_opening(Crash::Process).len(), 1);
}

/// Reclaim copied a durable record, and the process was killed while the copy was written, which was torn. The next
/// opening could not read the copy for a moment, took it for a whole one because nothing had shown otherwise, and it
/// took the place of the record that it had been copied from: that one was deleted with its file, the copy was found
/// torn, and an acknowledged record was lost (seed 620732).
#[test]
fn an_unreadable_copy_does_not_take_the_place_of_a_durable_record() {
    let mut world = world_of(10, 9000);
    let key = [8];
    let (file, _) = world.place(&key, 1);
    // One copy of a header is gone: the next opening has the file emptied.
    let batches = world.batches(file);
    world.rot_headers(file, &batches[..1], false);
    world.announced_by_opening(Crash::LoseAll);
    let value = value_of(&entry(&key, 1), 9000);
    let copy_in = |world: &World| {
        world
            .disk
            .files()
            .into_iter()
            .filter(|other| other.file > file)
            .find_map(|other| {
                let content = world.disk.content(other.file);
                let at = content
                    .chunks(BLOCK)
                    .position(|block| value.starts_with(block))?;
                Some((other.file, (at * BLOCK) as u64))
            })
    };
    let (copy, offset) = loop {
        assert!(world.complete(), "the record is copied");
        if let Some(found) = copy_in(&world) {
            break found;
        }
    };
    world.disk.flip(copy, offset, 3);
    world.disk.make_unreadable(copy, offset);
    assert_eq!(world.announced_by_opening(Crash::Process).len(), 10);
    world.disk.mend();
    world.rest();
    assert_eq!(world.lost, []);
    assert_eq!(world.readable(&key), Some(1));
    world.check_opened("afterwards");
    world.reopen(Crash::LoseAll, "once more");
    assert_eq!(world.readable(&key), Some(1));
}
