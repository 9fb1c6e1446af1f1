//! Files and headers that cannot be read, or belong to something else, when the log is opened.

use super::*;
use crate::format::FileHeader;

/// A flipped bit in any byte of the headers: the second copy of the headers is read instead.
#[test]
fn a_rotten_header_is_read_from_its_second_copy() {
    for (batch, copy) in [(0, 0), (3, 0), (5, 0), (0, 1), (3, 1)] {
        for byte in [0, 9, 40, 70, 81, 88, 97, 150, 2000] {
            let mut world = world_of(6, 5000);
            world.remove(&[4], 1);
            world.rest();
            let (file, _) = world.place(&[0], 1);
            let (start, end) = world.batches(file)[batch];
            world
                .disk
                .flip(file, [start, end - BLOCK as u64][copy] + byte, 5);
            let opened = world.reopen(Crash::LoseAll, "with a rotten header");
            let moment = format!("batch {batch}, copy {copy}, byte {byte}");
            assert_eq!(
                (opened.records, opened.rotten, opened.doubtful),
                (5, 0, 0),
                "{moment}"
            );
            assert_eq!(opened.repaired, u64::from(copy == 0), "{moment}");
            world.check_opened(&moment);
        }
    }
}

/// When both copies of a durable batch's headers are gone, it is unknown which records its
/// tombstones made dead. All older records are given up, and stay given up wherever a crash
/// interrupts that.
#[test]
fn what_is_older_than_an_unreadable_header_is_given_up() {
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
        assert!(
            !world.announced.contains_key(&vec![0]),
            "cut {cut}: it was dropped"
        );
        assert!(
            (40..48).all(|key| world.announced.contains_key(&vec![key])),
            "cut {cut}: the newer ones stay"
        );
        assert!(
            world.disk.content(file).is_empty(),
            "cut {cut}: the file is gone"
        );
        assert!(!world.agent.holds(&entry(&[0], 1)));
        let again = world.reopen(Crash::LoseAll, "once more");
        assert_eq!((again.rotten, again.doubtful), (0, 0), "cut {cut}");
        assert!(
            !world.announced.contains_key(&vec![0]),
            "cut {cut}: it was dropped"
        );
    }
}

/// A world with the removal of the key 0 in the middle of its files; the place of the tombstone's batch.
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
    let batch = *batches
        .iter()
        .find(|(start, end)| end - start == 2 * BLOCK as u64)
        .expect("a tombstone");
    (world, file, batch)
}

/// A process out of descriptors could not open one file of its log. Recovery took the failed reads
/// for a file without batches: the tombstones in it were gone, so a removed value came back, and
/// the file was deleted with its records.
#[test]
fn a_file_that_cannot_be_opened_keeps_the_log_shut_and_costs_nothing() {
    for error in [DiskError::Resources { errno: 24 }, EIO, DiskError::Missing] {
        let (mut world, file, _) = world_with_a_removal(0);
        world.disk.refuse_reads(file, Some(error));
        let files = world.disk.files();
        world.crash(Crash::LoseAll);
        world.rest();
        let refusal = world
            .refused
            .take()
            .unwrap_or_else(|| panic!("{error}: the log stays shut"));
        assert!(refusal.may_pass(), "{refusal}");
        match error {
            DiskError::Resources { .. } => {
                assert_eq!(refusal, FormatError::Starved { file, error })
            }
            error => assert_eq!(refusal, FormatError::Unreadable { file, error }),
        }
        assert_eq!((world.opened, world.disk.files()), (None, files), "{error}");
        world.disk.refuse_reads(file, None);
        let opened = world.reopen(Crash::LoseAll, "when the file can be read");
        assert_eq!(
            (opened.records, opened.rotten, opened.torn),
            (47, 0, 0),
            "{error}"
        );
        world.check_opened("when the file can be read");
    }
}

/// As above for every later operation of an opening.
#[test]
fn a_lack_of_descriptors_at_any_moment_of_opening_keeps_the_log_shut_and_costs_nothing() {
    let (mut world, ..) = world_with_a_removal(0);
    world.reopen(Crash::LoseAll, "undisturbed");
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
        let refusal = world
            .refused
            .take()
            .unwrap_or_else(|| panic!("operation {nth} fails: the log stays shut"));
        assert!(
            matches!(refusal, FormatError::Starved { error: of, .. } if of == error),
            "{refusal}"
        );
        let opened = world.reopen(Crash::LoseAll, "afterwards");
        assert_eq!(
            (opened.records, opened.rotten, opened.torn),
            (47, 0, 0),
            "operation {nth}"
        );
    }
}

/// No later batch confirms the last batch of a life. When neither copy of its headers could be
/// read, it was taken for a write that a crash had interrupted, and the record that its tombstone
/// had kept dead came back.
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
        let bad = if rest_of_the_file {
            BLOCK as u64..bytes
        } else {
            start..end
        };
        bad.step_by(BLOCK)
            .for_each(|offset| world.disk.make_unreadable(file, offset));
        let opened = world.reopen(Crash::LoseAll, "with unreadable headers");
        assert_eq!((opened.rotten, opened.torn, opened.records), (1, 0, 0));
        assert!(opened.doubtful >= 40, "{}", opened.doubtful);
        assert!(!world.agent.holds(&entry(&[1], 1)) && !world.agent.holds(&entry(&[0], 1)));
        let again = world.reopen(Crash::LoseAll, "once more");
        assert_eq!((again.rotten, again.records), (0, 0));
    }
}

/// Headers of several blocks, of which the first could be read and the next could not, were read
/// again and again without end.
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
    let opened = world.reopen(Crash::LoseAll, "with half of the headers");
    assert_eq!(opened.rotten, 1);
    assert!(!world.announced.contains_key([0; 600].as_slice()));
}

#[test]
fn foreign_files_are_refused_by_name_and_not_changed() {
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
    let header = FileHeader {
        log: FRESH,
        file: FileId(9),
        life: 1,
        bytes: 8192,
        highest_version: Version(1),
    };
    let padded = |mut bytes: Vec<u8>| {
        bytes.resize(2 * BLOCK, 0);
        bytes
    };
    assert_eq!(
        refused(9, padded(b"\x7fELF-something".to_vec())),
        "log file 9 is not a Slackwater log (it begins with \"\\x7fELF-som\"): move it away, or choose another directory"
    );
    let mut newer = header.encode();
    newer[8] = 2;
    let checksum = Checksum::of(&newer[..64]);
    newer[64..72].copy_from_slice(&checksum.0.to_le_bytes());
    assert_eq!(
        refused(9, padded(newer)),
        "log file 9 has format 2, this version reads up to 1: upgrade, or empty the directory to start cold"
    );
    let misplaced =
        "log file 8 belongs to another log or place: it was copied or renamed; move it away";
    assert_eq!(refused(8, padded(header.encode())), misplaced);
    assert!(refused(9, b"a note".to_vec()).starts_with("log file 9 is not a Slackwater log"));
    let other = FileHeader {
        log: 1,
        file: FileId(8),
        ..header
    };
    assert_eq!(refused(8, padded(other.encode())), misplaced);
}

#[test]
fn files_without_a_header_are_cleared_away() {
    let mut world = world_of(2, 100);
    world.disk.plant(FileId(70), vec![0; 4 * BLOCK]);
    world.disk.plant(FileId(69), Vec::new());
    let opened = world.reopen(Crash::LoseAll, "with an empty file");
    assert_eq!((opened.records, opened.torn, opened.rotten), (2, 0, 0));
    assert!(world.disk.content(FileId(70)).is_empty());
    world.put(b"next", 2, 100);
    world.rest();
    assert!(
        world.disk.files().iter().any(|file| file.file > FileId(70)),
        "its number is not used again"
    );
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
    let opened = world.reopen(Crash::LoseAll, "with a damaged first block");
    assert_eq!(opened.records, 5);
    world.check_opened("with a damaged first block");
    assert!(world.disk.content(file).is_empty(), "it was evacuated");
}

/// A disk wrote a batch over the first block of its file (seed 5049 of the simulator). The file was
/// taken for a foreign one, and the whole log could not be opened.
#[test]
fn a_batch_written_over_the_first_block_keeps_no_log_shut() {
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
    assert_eq!(
        world
            .reopen(Crash::LoseAll, "with a batch in the first block")
            .records,
        4
    );
    world.check_opened("with a batch in the first block");
}

/// A value that looks like the headers of a batch is not read as one: it would have to contain the
/// identity of the log.
#[test]
fn a_value_is_never_read_as_headers() {
    let mut world = world_of(1, 100);
    let (file, _) = world.place(&[0], 1);
    let (start, end) = world.batches(file)[0];
    let bytes = world.disk.content(file).to_vec();
    let forged = &bytes[start as usize..start as usize + BLOCK];
    let file_bytes = bytes.len() as u64;
    let ours = Identity { log: FRESH, file };
    assert!(matches!(
        decode_batch(ours, file_bytes, start, forged),
        Decoded::Batch(_)
    ));
    assert_eq!(
        decode_batch(
            Identity {
                log: FRESH + 1,
                file
            },
            file_bytes,
            start,
            forged
        ),
        Decoded::Other
    );
    assert_eq!(
        decode_batch(
            Identity {
                log: FRESH,
                file: FileId(file.0 + 1)
            },
            file_bytes,
            start,
            forged
        ),
        Decoded::Other
    );
    assert_eq!(
        decode_batch(ours, file_bytes, end, forged),
        Decoded::Other,
        "a header that went elsewhere"
    );
}
