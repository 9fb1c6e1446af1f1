//! Ways in which a value that was removed or overwritten could come back, each with its story.

use slackwater_base::{Planted, plant};

use super::reuse::{
    a_log_that_was_stopped_opens_without_doubt,
    what_a_deleted_file_held_does_not_come_back_in_the_one_made_of_it,
};
use super::*;

impl World {
    /// Flips a bit in the first copy of each header of `file`, or in the second; `batches` are the file's.
    pub(super) fn rot_headers(&mut self, file: FileId, batches: &[(u64, u64)], second: bool) {
        for (start, end) in batches {
            let block = if second { end - BLOCK as u64 } else { *start };
            self.disk.flip(file, block + 60, 1);
        }
    }

    /// Writes records of new keys until one is in a file above `file`. They stay live, so that
    /// reclaim has no reason to empty the files.
    fn write_past(&mut self, file: FileId, next_key: &mut u8) {
        loop {
            let key = [*next_key];
            *next_key += 1;
            self.put(&key, 1, 9000);
            self.rest();
            if self.place(&key, 1).0 > file {
                return;
            }
        }
    }

    /// A bit of version 2 of a key flips while the node is down: version 1, whose drop was answered, must not be announced.
    fn check_newer_rots(&mut self, key: &[u8]) {
        assert_eq!(self.known[key].dropped, 1);
        let (file, offset) = self.place(key, 2);
        self.disk.flip(file, offset, 3);
        for crash in [Crash::LoseAll, Crash::Tear] {
            let announced = self.announced_by_opening(crash);
            let version = announced.get(key);
            assert!(version.is_none_or(|version| *version == 2), "{version:?}");
        }
    }

    /// Runs until the log is open, and no further.
    pub(super) fn open_only(&mut self, crash: Crash) {
        self.crash(crash);
        while self.opened.is_none() {
            assert!(self.complete(), "an opening comes to its end");
        }
    }
}

/// Headers rotted after the log was opened, and reclaim gave up the file's records. It did not
/// count that the older value of one of them was still in another file. The tombstone of that value
/// was taken for needless, or had never been written because the newer record served as one. The
/// file was deleted, and the next opening announced the older value.
#[test]
fn a_value_stays_dead_when_rot_destroys_the_newer_one() {
    for removed_first in [true, false] {
        let moment = format!("removed first: {removed_first}");
        let mut world = World::new(small_log(2 << 20), 3);
        let (key, mut next_key) = ([0], 1);
        world.put(&key, 1, 9000);
        world.rest();
        let old = world.place(&key, 1).0;
        world.write_past(old, &mut next_key);
        if removed_first {
            world.remove(&key, 1);
            world.rest();
            world.write_past(FileId(old.0 + 1), &mut next_key);
        }
        world.put(&key, 2, 9000);
        world.rest();
        let new = world.place(&key, 2).0;
        assert!(new > old, "{moment}");
        world.write_past(new, &mut next_key);

        // One copy of the headers is left, so the opening has the file emptied. Then that copy rots
        // too.
        world.rotten = true;
        let batches = world.batches(new);
        world.rot_headers(new, &batches, false);
        world.open_only(Crash::LoseAll);
        assert_eq!(world.announced.get(&key[..]), Some(&2), "{moment}");
        world.rot_headers(new, &batches, true);
        world.rest();
        world.put(&[200], 1, 100);
        world.rest();
        assert!(
            world.disk.files().iter().all(|file| file.file != new),
            "{moment}: the rotten file was reclaimed"
        );
        assert!(
            world.disk.files().iter().any(|file| file.file == old),
            "{moment}: the older value is still on the disk"
        );

        for round in 0..2 {
            world.reopen(Crash::LoseAll, &moment);
            assert_eq!(
                world.announced.get(&key[..]),
                None,
                "{moment}, opening {round}"
            );
            world.check_opened(&moment);
        }
    }
}

/// A record was removed that served as the tombstone of an older value. Its own tombstone was
/// delayed because the device refused a write. Meanwhile its file was deleted, because nothing in
/// it counted as needed. After a power cut the next opening announced the older value.
#[test]
fn a_record_that_keeps_another_dead_stays_until_its_tombstone_is_durable() {
    let mut world = World::new(small_log(2 << 20), 3);
    let (key, mut next_key) = ([0], 1);
    world.put(&key, 1, 9000);
    world.rest();
    let old = world.place(&key, 1).0;
    world.write_past(old, &mut next_key);
    world.put(&key, 2, 9000);
    world.rest();
    let new = world.place(&key, 2).0;
    assert!(new > old);
    world.write_past(new, &mut next_key);
    for other in 1..next_key {
        if world.agent_holds(&[other], 1) && world.place(&[other], 1).0 == new {
            world.remove(&[other], 1);
        }
    }
    world.rest();
    world.disk.fail_writing_at(world.disk.completed(), EIO);
    world.remove(&key, 2);
    // Time advances only for the device: the next try is not due yet.
    world.drain();
    world.reopen(Crash::LoseAll, "after the power cut");
    let announced = world.announced.get(&key[..]).copied();
    assert!(
        announced.is_none_or(|version| version == 2),
        "version {announced:?} is back"
    );
}

/// Reclaim copied a record while a newer value of its key was being written, and the copy was
/// written after it. When the headers of the newer value rot, the records before it are given up,
/// but the copy is not: the older value would have been announced.
#[test]
fn a_copy_is_not_written_after_a_newer_value_of_its_key() {
    let mut copied = 0;
    for cut in 0..60 {
        let mut world = world_of(10, 9000);
        // One copy of a header is gone: the next opening has the file emptied.
        let file = world.place(&[8], 1).0;
        let batches = world.batches(file);
        world.rotten = true;
        world.rot_headers(file, &batches[..1], false);
        world.open_only(Crash::LoseAll);
        for _ in 0..cut {
            world.complete();
        }
        for key in 5..9 {
            world.put(&[key], 2, 9000);
        }
        world.give(AgentInput::Flush(2));
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

/// The power was cut while the first batch of a new file was being written: its records were on the
/// medium, the file's first block was not. The opening took the file for empty and counted none of
/// its records. Reclaim did read them, and subtracted each when the file was deleted. A tombstone
/// was taken for needless while the record that it kept dead still lay in another file, and a later
/// opening announced that record (found by seed 24038 of the simulator).
#[test]
fn records_behind_a_lost_first_block_are_not_subtracted() {
    let mut world = world_of(2, 9000);
    let key = [0];
    let old = world.place(&key, 1).0;
    // Files of earlier openings are not appended to: the tombstone is in a file of its own.
    world.reopen(Crash::LoseAll, "before the removal");
    world.remove(&key, 1);
    world.rest();
    world.reopen(Crash::LoseAll, "before the power cut");
    world.put(&key, 2, 9000);
    world.give(AgentInput::Flush(1));
    while !world.disk.next_is_sync() {
        assert!(world.complete(), "the record is being written");
    }
    world.disk.crash(Crash::Process, &world.bytes);
    let newest = world.disk.files().last().expect("there are files").file;
    let mut bytes = world.disk.content(newest).to_vec();
    bytes[..BLOCK].fill(0);
    world.disk.plant(newest, bytes);

    world.boot();
    world.rest();
    assert_eq!(world.announced.get(&key[..]), None);
    let files = world.disk.files();
    assert!(
        files.iter().any(|file| file.file == old) && files.iter().all(|file| file.file != newest)
    );
    world.reopen(Crash::LoseAll, "at the end");
    assert_eq!(world.announced.get(&key[..]), None);
    world.check_opened("at the end");
}

/// The sync of the directory failed after the name of a file was removed, and the deletion was
/// taken for durable: the tombstones of the file's records were given up, and after a power cut the
/// file was back.
#[test]
fn a_deletion_whose_sync_failed_releases_no_tombstone() {
    for seed in 0..12 {
        let mut world = World::new(small_log(2 << 20), seed);
        let key = [0];
        world.put(&key, 1, 9000);
        world.rest();
        let old = world.place(&key, 1).0;
        // Files of earlier openings are not appended to: the tombstone is in the next one.
        world.reopen(Crash::LoseAll, "before the removal");
        world.disk.set_names_fail(true);
        world.remove(&key, 1);
        world.rest();
        // Only the tombstone is still needed in its file.
        let mut next_key = 1;
        world.write_past(FileId(old.0 + 1), &mut next_key);
        for other in 1..next_key {
            world.remove(&[other], 1);
        }
        world.rest();
        world.crash(Crash::Tear);
        world.disk.set_names_fail(false);
        world.rest();
        world.check_opened(&format!("seed {seed}"));
        assert_eq!(world.announced.get(&key[..]), None, "seed {seed}");
    }
}

/// A record was dropped; its tombstone was soon no longer needed, but still in its file. The same
/// version was offered again after an outage, written, and reported as durable. The next opening
/// read the tombstone, and the record was dead.
#[test]
fn a_version_under_a_spent_tombstone_is_not_reported_as_durable() {
    let mut world = world_of(1, 9000);
    world.reopen(Crash::LoseAll, "before the drop");
    world.remove(&[0], 1);
    world.rest();
    assert_eq!(world.agent.stats().tombstones, 0, "nothing needs it");
    let ticket = world.put(&[0], 1, 9000);
    world.rest();
    let written = world.results[&ticket];
    world.reopen(Crash::LoseAll, "afterwards");
    assert_eq!(world.announced.contains_key(&vec![0]), written.is_ok());
}

/// A value was overwritten; the drop of the older one was answered at once, since the newer record kept it dead. A bit of
/// the newer one flipped while the node was down. No later batch confirmed it, so it was taken for a torn write and left
/// out, and the older value was announced (ordinary seed 429217).
#[test]
fn a_value_stays_dead_when_the_newer_one_rots_in_the_last_batch() {
    for reopened in [false, true] {
        let mut world = world_of(2, 5000);
        world.put(&[0], 2, 5000);
        world.rest();
        if reopened {
            world.reopen(Crash::LoseAll, "before the drop");
        }
        world.remove(&[0], 1);
        world.rest();
        world.check_newer_rots(&[0]);
    }
}

/// A sync of one file failed while the first batch of the next file, with a newer value, was being written. That batch
/// was committed, but belonged to the life that had ended, and later batches of its file confirm only their own life. The
/// drop of the older value was answered as if they did. A bit of the newer one flipped while the node was down, and the
/// older one was announced.
#[test]
fn a_batch_of_an_ended_life_is_not_confirmed_by_later_ones_in_its_file() {
    let mut world = world_of(1, 5000);
    let (old, _) = world.place(&[0], 1);
    let mut next_key = 1;
    world.write_past(old, &mut next_key);
    // Five records are in the next file; a sixth fits, and what follows it goes to the one after that.
    for _ in 0..4 {
        world.put(&[next_key], 1, 9000);
        world.rest();
        next_key += 1;
    }
    world.put(&[next_key], 1, 9000);
    world.put(&[0], 2, 5000);
    world.give(AgentInput::Flush(1));
    while !world.complete_sync(EIO) {}
    world.rest();
    assert_eq!(world.place(&[0], 2).0, FileId(old.0 + 2));
    for key in [200, 201] {
        world.put(&[key], 1, 100);
        world.rest();
    }
    world.remove(&[0], 1);
    world.rest();
    assert!(world.disk.files().iter().any(|file| file.file == old));
    world.check_newer_rots(&[0]);
}

/// The drop of an overwritten value was answered at once, because a later batch confirmed the newer one. Then reclaim copied
/// the newer one to the end of the log, where nothing confirmed it, and deleted its file. A bit of the copy flipped while
/// the node was down, and the older value was announced.
#[test]
fn a_value_stays_dead_when_the_copy_of_the_newer_one_rots_in_the_last_batch() {
    let mut world = world_of(1, 5000);
    let (old, _) = world.place(&[0], 1);
    let mut next_key = 1;
    world.write_past(old, &mut next_key);
    world.put(&[0], 2, 5000);
    world.rest();
    let (new, _) = world.place(&[0], 2);
    world.write_past(new, &mut next_key);
    world.remove(&[0], 1);
    world.rest();
    for other in 1..next_key {
        if world.place(&[other], 1).0 == new {
            world.remove(&[other], 1);
        }
    }
    world.rest();
    // One copy of the headers is left, so the opening has the file emptied.
    world.rotten = true;
    let batches = world.batches(new);
    world.rot_headers(new, &batches, false);
    world.reopen(Crash::LoseAll, "before the copy");
    let (copy, _) = world.place(&[0], 2);
    let files = world.disk.files();
    assert!(copy > new && files.iter().all(|file| file.file != new));
    assert!(files.iter().any(|file| file.file == old));
    world.check_newer_rots(&[0]);
}

/// A drop costs no write when the newer record is the only one of its key.
#[test]
fn a_drop_under_a_lone_newer_record_is_answered_at_once() {
    let mut world = world_of(0, 0);
    world.put(&[0], 2, 5000);
    world.rest();
    let written = world.agent.stats().device_bytes_written;
    world.remove(&[0], 1);
    assert_eq!(world.known[&vec![0]].dropped, 1);
    world.rest();
    assert_eq!(world.agent.stats().device_bytes_written, written);
}

#[test]
fn every_planted_bug_of_the_log_breaks_its_story() {
    let stories: [(Planted, fn()); 7] = [
        (
            Planted::GiveUpForgetsCopies,
            a_value_stays_dead_when_rot_destroys_the_newer_one,
        ),
        (
            Planted::UnlinkCountsAsDurable,
            a_deletion_whose_sync_failed_releases_no_tombstone,
        ),
        (
            Planted::DeleteBeforeTombstone,
            a_record_that_keeps_another_dead_stays_until_its_tombstone_is_durable,
        ),
        (
            Planted::UncountedRecordsCountedOff,
            records_behind_a_lost_first_block_are_not_subtracted,
        ),
        (
            Planted::NewerRecordIsEnough,
            a_value_stays_dead_when_the_newer_one_rots_in_the_last_batch,
        ),
        (
            Planted::StaleHeadersCount,
            what_a_deleted_file_held_does_not_come_back_in_the_one_made_of_it,
        ),
        (
            Planted::ReusedFileNotEnded,
            a_log_that_was_stopped_opens_without_doubt,
        ),
    ];
    assert_eq!(stories.map(|(bug, _)| bug), Planted::LOG);
    for (bug, story) in stories {
        plant(Some(bug));
        let ended = std::panic::catch_unwind(story);
        plant(None);
        assert!(ended.is_err(), "{bug:?} goes unnoticed");
    }
}
