//! What every device must do, run against each on a real file system.

use std::time::Duration;

use bytes::Bytes;
use slackwater_base::{BLOCK_BYTES, Checksum, Planted, Rng, plant};
use slackwater_tier::io::{DiskError, DiskOutcome, FileId, Part};
use slackwater_wire::{ExtentRef, Incarnation, SegmentId};

use super::handles::Handles;
use super::job::Job;
use super::ring::Failure;
use super::transfer::Transfer;
use super::uring::UringDevice;
use super::*;
use crate::config::HugePages;
use crate::region::{self, Access};

const FILE: FileId = FileId(7);
/// Any number of deleted files is within the room of the log.
const ROOM: u64 = u64::MAX;
const DELETE: DiskOp = DiskOp::Delete {
    file: FILE,
    room: ROOM,
};
const BLOCK: usize = BLOCK_BYTES as usize;

struct World {
    _root: tempfile::TempDir,
    directory: Arc<Directory>,
    segment: Segment,
    disk: Disk,
    next: u64,
}

impl World {
    /// Both devices, each with its own directory.
    fn each(test: impl Fn(&mut World)) {
        for backend in [IoBackend::Uring, IoBackend::Pread] {
            let root = tempfile::tempdir().unwrap();
            let directory = Arc::new(Directory::hold(root.path()).unwrap());
            let region = Arc::new(region::map(8 << 20, HugePages::Off).unwrap().0);
            let segment = Segment {
                id: SegmentId(1),
                incarnation: Incarnation(5),
                region,
            };
            let how = Use {
                backend,
                depth: 4,
                read_buffer_bytes: 1 << 20,
            };
            let disk = start(&directory, segment.clone(), how).unwrap();
            assert_eq!(disk.choice.chosen, crate::config::Value::show(&backend));
            test(&mut World {
                _root: root,
                directory,
                segment,
                disk,
                next: 0,
            });
        }
    }

    /// Does the operations at once and returns their results in order.
    fn all(&mut self, ops: Vec<DiskOp>) -> Vec<Result<DiskOutcome, DiskError>> {
        let first = self.next;
        let count = ops.len();
        let mut named: Vec<(OpId, DiskOp)> = (first..).map(OpId).zip(ops).collect();
        self.next += count as u64;
        self.disk.device.submit(&mut named);
        assert!(named.is_empty());
        let mut done = Vec::new();
        while done.len() < count {
            self.disk.device.complete(&mut done).unwrap();
        }
        done.sort_by_key(|done| done.op);
        let names: Vec<u64> = done.iter().map(|done| done.op.0).collect();
        assert_eq!(
            names,
            (first..self.next).collect::<Vec<_>>(),
            "each operation completes once"
        );
        done.into_iter().map(|done| done.result).collect()
    }

    fn one(&mut self, op: DiskOp) -> Result<DiskOutcome, DiskError> {
        self.all(vec![op]).remove(0)
    }

    fn create(&mut self, bytes: u64) {
        assert_eq!(
            self.one(DiskOp::Create { file: FILE, bytes }),
            Ok(DiskOutcome::Done)
        );
    }

    fn fill(&self, extent: &ExtentRef, value: &[u8]) {
        // SAFETY: no operation is in flight, and the grant goes at once.
        let _ = unsafe { self.segment.grant(extent, Access::Write) }
            .unwrap()
            .copy_in(value);
    }
}

fn extent(offset: u64, bytes: u64) -> ExtentRef {
    ExtentRef {
        segment: SegmentId(1),
        incarnation: Incarnation(5),
        offset,
        bytes,
        generation: 1,
    }
}

fn random(seed: u64, bytes: usize) -> Vec<u8> {
    let mut value = vec![0; bytes];
    Rng::new(seed).fill(&mut value);
    value
}

fn read(offset: u64, bytes: u64, length: u64, into: Target) -> DiskOp {
    DiskOp::Read {
        file: FILE,
        offset,
        bytes,
        length,
        into,
    }
}

#[test]
fn a_new_file_has_its_length_and_reads_as_zeros() {
    World::each(|world| {
        world.create(1 << 20);
        assert_eq!(world.directory.list().unwrap(), [(FILE, 1 << 20)]);
        let zeros = vec![0; 8192];
        let expected = DiskOutcome::Read {
            checksum: Checksum::of(&zeros[..5000]),
            bytes: zeros.into(),
        };
        assert_eq!(
            world.one(read(4096, 8192, 5000, Target::Completion)),
            Ok(expected)
        );
    });
}

#[test]
fn parts_come_back_as_they_were_with_zeros_for_padding() {
    World::each(|world| {
        world.create(4 << 20);
        let (header, value) = (random(1, BLOCK), random(2, 1_000_001));
        let source = extent(1 << 20, 1_003_520);
        world.fill(&source, &random(3, 1_003_520));
        world.fill(&source, &value);
        let parts = vec![
            Part::Bytes(header.clone().into()),
            Part::Extent {
                extent: source,
                length: value.len() as u64,
            },
        ];
        let ops = vec![
            DiskOp::Write {
                file: FILE,
                offset: 8192,
                parts,
            },
            DiskOp::Sync { file: FILE },
        ];
        assert_eq!(
            world.all(ops),
            [Ok(DiskOutcome::Done), Ok(DiskOutcome::Done)]
        );

        let mut padded = value.clone();
        padded.resize(1_003_520, 0);
        let whole = [header.clone(), padded].concat();
        let bytes = whole.len() as u64;
        let expected = DiskOutcome::Read {
            checksum: Checksum::of(&header),
            bytes: whole.into(),
        };
        assert_eq!(
            world.one(read(8192, bytes, BLOCK_BYTES, Target::Completion)),
            Ok(expected)
        );
        for (into, place) in [
            (Target::Nowhere, None),
            (Target::Extent(extent(4 << 20, 1_003_520)), Some(4 << 20)),
        ] {
            let checksum = Checksum::of(&value);
            let result = world.one(read(
                8192 + BLOCK_BYTES,
                1_003_520,
                value.len() as u64,
                into,
            ));
            assert_eq!(
                result,
                Ok(DiskOutcome::Read {
                    bytes: Bytes::new(),
                    checksum
                })
            );
            if let Some(place) = place {
                let mut back = vec![0; value.len()];
                // SAFETY: no operation is in flight.
                let grant = unsafe { world.segment.grant(&extent(place, 1_003_520), Access::Read) }
                    .unwrap();
                assert_eq!(grant.copy_out(&mut back), checksum);
                assert_eq!(back, value);
            }
        }
    });
}

#[test]
fn an_extent_off_the_blocks_is_written_and_read_all_the_same() {
    World::each(|world| {
        world.create(1 << 20);
        let value = random(4, 10_000);
        let (source, target) = (extent(64, 10_048), extent(1 << 20, 10_048));
        world.fill(&source, &value);
        let parts = vec![Part::Extent {
            extent: source,
            length: 10_000,
        }];
        assert_eq!(
            world.one(DiskOp::Write {
                file: FILE,
                offset: 0,
                parts
            }),
            Ok(DiskOutcome::Done)
        );
        let checksum = Checksum::of(&value);
        let expected = Ok(DiskOutcome::Read {
            bytes: Bytes::new(),
            checksum,
        });
        assert_eq!(
            world.one(read(0, 12_288, 10_000, Target::Extent(target))),
            expected
        );
        // SAFETY: no operation is in flight.
        let grant = unsafe { world.segment.grant(&target, Access::Read) }.unwrap();
        assert_eq!(grant.checksum(10_000), checksum);
    });
}

#[test]
fn more_operations_than_the_depth_all_complete() {
    World::each(|world| {
        world.create(4 << 20);
        let value = |index: u64| random(index, BLOCK);
        let write = |index: u64| DiskOp::Write {
            file: FILE,
            offset: index * BLOCK_BYTES,
            parts: vec![Part::Bytes(value(index).into())],
        };
        let count = 100;
        assert!(
            world
                .all((0..count).map(write).collect())
                .iter()
                .all(Result::is_ok)
        );
        let reads = (0..count).map(|index| {
            read(
                index * BLOCK_BYTES,
                BLOCK_BYTES,
                BLOCK_BYTES,
                Target::Completion,
            )
        });
        for (index, result) in world.all(reads.collect()).into_iter().enumerate() {
            let bytes = value(index as u64);
            assert_eq!(
                result,
                Ok(DiskOutcome::Read {
                    checksum: Checksum::of(&bytes),
                    bytes: bytes.into()
                })
            );
        }
        assert_eq!(
            world
                .disk
                .device
                .footprint()
                .written_bytes
                .load(Ordering::Relaxed),
            count * BLOCK_BYTES
        );
    });
}

#[test]
fn what_is_not_there_is_missing_and_what_is_deleted_is_gone() {
    World::each(|world| {
        assert_eq!(
            world.one(read(0, BLOCK_BYTES, 1, Target::Nowhere)),
            Err(DiskError::Missing)
        );
        assert_eq!(
            world.one(DiskOp::Sync { file: FILE }),
            Err(DiskError::Missing)
        );
        world.create(1 << 20);
        assert_eq!(
            world.one(read(1 << 20, BLOCK_BYTES, 1, Target::Nowhere)),
            Err(DiskError::Missing)
        );
        assert_eq!(world.one(DELETE), Ok(DiskOutcome::Done));
        assert_eq!(world.directory.list().unwrap(), []);
        assert_eq!(
            world.one(read(0, BLOCK_BYTES, 1, Target::Nowhere)),
            Err(DiskError::Missing)
        );
        assert_eq!(
            world.one(DELETE),
            Ok(DiskOutcome::Done),
            "what is gone is deleted, once that is durable"
        );
    });
}

/// A write of `bytes` to `file`, made durable.
fn written(file: FileId, bytes: Vec<u8>) -> Vec<DiskOp> {
    let parts = vec![Part::Bytes(bytes.into())];
    let offset = 0;
    vec![
        DiskOp::Write {
            file,
            offset,
            parts,
        },
        DiskOp::Sync { file },
    ]
}

/// Each file that was emptied gave its blocks back, some 13 ms of the device for 64 MiB, and each new one took fresh blocks,
/// which a file system writes at two thirds of the speed.
#[test]
fn a_file_is_made_out_of_a_deleted_one_with_a_blank_first_block() {
    World::each(|world| {
        let (bytes, old) = (64 << 10, random(5, 64 << 10));
        world.create(bytes);
        for op in written(FILE, old.clone()) {
            assert_eq!(world.one(op), Ok(DiskOutcome::Done));
        }
        assert_eq!(world.one(DELETE), Ok(DiskOutcome::Done));
        assert_eq!(world.directory.list().unwrap(), []);
        let gone = world.one(read(0, BLOCK_BYTES, 1, Target::Nowhere));
        assert_eq!(gone, Err(DiskError::Missing));
        let next = FileId(FILE.0 + 1);
        let create = DiskOp::Create { file: next, bytes };
        assert_eq!(world.one(create), Ok(DiskOutcome::Reused));
        assert_eq!(world.directory.list().unwrap(), [(next, bytes)]);
        let found = std::fs::read(world.directory.path().join(directory::file_name(next))).unwrap();
        assert!(found[..BLOCK].iter().all(|byte| *byte == 0));
        assert!(found[BLOCK..] == old[BLOCK..]);
        let other = DiskOp::Create { file: FILE, bytes };
        assert_eq!(
            world.one(other),
            Ok(DiskOutcome::Done),
            "there is no second"
        );
    });
}

#[test]
fn only_idle_files_of_the_length_in_use_are_kept_within_the_room_of_the_log() {
    World::each(|world| {
        let bytes = 64 << 10;
        let files: Vec<FileId> = (1..=6).map(FileId).collect();
        for file in &files {
            let file = *file;
            let bytes = if file == files[0] { 2 * bytes } else { bytes };
            let create = DiskOp::Create { file, bytes };
            assert_eq!(world.one(create), Ok(DiskOutcome::Done));
        }
        let unsynced = written(files[1], vec![1; BLOCK]).remove(0);
        assert_eq!(world.one(unsynced), Ok(DiskOutcome::Done));
        let reader = world.directory.open(files[2]).unwrap();
        for file in &files {
            let room = 3 * bytes;
            let delete = DiskOp::Delete { file: *file, room };
            assert_eq!(world.one(delete), Ok(DiskOutcome::Done));
        }
        drop(reader);
        let names = || {
            let entries = std::fs::read_dir(world.directory.path()).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.filter(|name| name != LOCK_NAME).collect();
            names.sort();
            names
        };
        let kept = [
            "spare-0000000000000004.slack",
            "spare-0000000000000005.slack",
        ];
        assert_eq!(
            names(),
            kept,
            "not a longer one, nor one in use, nor a third"
        );
    });
}

/// A killed process leaves deleted files that it kept, beyond the capacity of a log that is opened with a smaller one.
#[test]
fn files_that_were_kept_go_when_the_directory_is_held_and_given_back() {
    let root = tempfile::tempdir().unwrap();
    let spare = root.path().join("spare-0000000000000004.slack");
    std::fs::write(&spare, [1; BLOCK]).unwrap();
    let foreign = root.path().join("spare-4.slack");
    std::fs::write(&foreign, "mine").unwrap();
    let directory = Directory::hold(root.path()).unwrap();
    assert!(!spare.exists() && foreign.exists());
    assert!(directory.take_spare(BLOCK_BYTES).is_none());
    directory.create(FILE).unwrap();
    std::fs::write(root.path().join(directory::file_name(FILE)), [1; BLOCK]).unwrap();
    assert!(directory.retire(FILE, ROOM));
    assert!(directory.take_spare(BLOCK_BYTES).is_none(), "not durable");
    directory.retired(FILE);
    drop(directory);
    let left: Vec<_> = std::fs::read_dir(root.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "the lock and what is not ours: {left:?}");
}

#[test]
fn a_wake_ends_the_wait_even_when_it_came_first() {
    World::each(|world| {
        let mut done = Vec::new();
        world.disk.device.wake();
        world.disk.device.complete(&mut done).unwrap();
        let device = Arc::clone(&world.disk.device);
        let waker = std::thread::spawn(move || device.wake());
        world.disk.device.complete(&mut done).unwrap();
        waker.join().unwrap();
        assert_eq!(done, []);
    });
}

#[test]
fn callers_read_into_buffers_of_any_alignment_and_length() {
    World::each(|world| {
        world.create(8 << 20);
        let value = random(9, 3 << 20);
        let parts = vec![Part::Bytes(value.clone().into())];
        assert_eq!(
            world.one(DiskOp::Write {
                file: FILE,
                offset: 0,
                parts
            }),
            Ok(DiskOutcome::Done)
        );
        let cases = [
            (0, 1usize, 0usize),
            (0, 4096, 0),
            (4096, 100_000, 0),
            (8192, 100_000, 3),
            (1 << 20, 1 << 20, 16),
        ];
        let mut buffers: Vec<buffer::AlignedBuffer> = cases
            .iter()
            .map(|(_, length, shift)| buffer::AlignedBuffer::zeroed(length + shift))
            .collect();
        let record = |((offset, length, shift), buffer)| {
            let (bytes, into) = (slackwater_base::round_to_block(length as u64), buffer);
            let into: &mut buffer::AlignedBuffer = into;
            RecordRead {
                file: FILE,
                offset,
                bytes,
                into: &mut into[shift..shift + length],
                result: None,
                took: Duration::ZERO,
                waited: Duration::ZERO,
            }
        };
        let mut records: Vec<RecordRead<'_>> =
            cases.into_iter().zip(&mut buffers).map(record).collect();
        world.disk.readers.read(&mut records);
        let (one, rest) = records.split_first_mut().unwrap();
        world.disk.readers.read(std::slice::from_mut(one));
        for (record, (offset, length, _)) in std::iter::once(&*one).chain(&*rest).zip(cases) {
            let expected = &value[offset as usize..offset as usize + length];
            assert_eq!(
                record.result,
                Some(Ok(Checksum::of(expected))),
                "{offset} {length}"
            );
            assert!(record.into == expected);
        }
        assert_eq!(world.disk.readers.reads(), cases.len() as u64 + 1);
        let mut byte = [0];
        let mut lost = [RecordRead {
            file: FileId(1),
            offset: 0,
            bytes: 4096,
            into: &mut byte,
            result: None,
            took: Duration::ZERO,
            waited: Duration::ZERO,
        }];
        world.disk.readers.read(&mut lost);
        assert_eq!(lost[0].result, Some(Err(DiskError::Missing)));
    });
}

#[test]
fn a_long_record_read_alone_is_whole_in_any_buffer_and_missing_when_its_end_is() {
    World::each(|world| {
        world.create(4 << 20);
        let value = random(13, 4 << 20);
        let parts = vec![Part::Bytes(value.clone().into())];
        assert_eq!(
            world.one(DiskOp::Write {
                file: FILE,
                offset: 0,
                parts
            }),
            Ok(DiskOutcome::Done)
        );
        let check = |offset: usize, length: usize, shift: usize, there: bool| {
            let mut buffer = buffer::AlignedBuffer::zeroed(length + shift);
            let (bytes, into) = (
                slackwater_base::round_to_block(length as u64),
                &mut buffer[shift..],
            );
            let offset = offset as u64;
            let mut record = RecordRead {
                file: FILE,
                offset,
                bytes,
                into,
                result: None,
                took: Duration::ZERO,
                waited: Duration::ZERO,
            };
            world.disk.readers.read(std::slice::from_mut(&mut record));
            if there {
                let expected = &value[offset as usize..][..length];
                assert_eq!(
                    record.result,
                    Some(Ok(Checksum::of(expected))),
                    "{offset} {length} {shift}"
                );
                assert!(record.into == expected && record.took > Duration::ZERO);
            } else {
                assert_eq!(
                    record.result,
                    Some(Err(DiskError::Missing)),
                    "{offset} {length} {shift}"
                );
            }
        };
        for shift in [0, 16] {
            check(4096, 1 << 20, shift, true);
            check(8192, (2 << 20) + 1, shift, true);
            check(0, (3 << 20) + 4097, shift, true);
            check((3 << 20) + 4096, 1 << 20, shift, false);
        }
        assert!(world.disk.readers.reads() == 8 && world.disk.readers.buffers_given_out() == 0);
        world.disk.readers.fail_ring(broken(1));
        check(0, 1 << 20, 0, true);
    });
}

/// A read that could not begin kept its buffer for ever, and so did the flights of a ring that failed: in the end every
/// read that needed a buffer waited for one that nobody would give back.
#[test]
fn reads_that_fail_give_their_buffers_back() {
    World::each(|world| {
        for _ in 0..100 {
            let mut bytes = [[0u8; 100]; 3];
            let mut records: Vec<RecordRead<'_>> = bytes
                .iter_mut()
                .map(|into| RecordRead {
                    file: FileId(99),
                    offset: 0,
                    bytes: 1 << 20,
                    into,
                    result: None,
                    took: Duration::ZERO,
                    waited: Duration::ZERO,
                })
                .collect();
            world.disk.readers.read(&mut records);
            world.disk.readers.read(&mut records[..1]);
            assert!(
                records
                    .iter()
                    .all(|record| record.result == Some(Err(DiskError::Missing)))
            );
            assert_eq!(world.disk.readers.buffers_given_out(), 0);
        }
    });
}

/// A ring that failed was dropped with its reads under way, and the buffers they went to were read into again, by the
/// caller's thread and then given back to the caller, while the kernel could still write to them.
#[test]
fn a_ring_that_fails_is_emptied_before_its_buffers_are_used_again() {
    World::each(|world| {
        world.create(8 << 20);
        let value = random(11, 4 << 20);
        let parts = vec![Part::Bytes(value.clone().into())];
        assert_eq!(
            world.one(DiskOp::Write {
                file: FILE,
                offset: 0,
                parts
            }),
            Ok(DiskOutcome::Done)
        );
        for turns in [1, 3] {
            let rings = world.disk.readers.fail_ring(broken(turns));
            assert_eq!(rings, world.disk.choice.chosen == "uring");
            let mut buffers: Vec<Vec<u8>> = (0..4).map(|_| vec![0; 1_000_001]).collect();
            let record = |(number, into)| {
                let into: &mut Vec<u8> = into;
                let (offset, bytes) = (
                    number as u64 * (1 << 20),
                    slackwater_base::round_to_block(into.len() as u64),
                );
                RecordRead {
                    file: FILE,
                    offset,
                    bytes,
                    into,
                    result: None,
                    took: Duration::ZERO,
                    waited: Duration::ZERO,
                }
            };
            let mut records: Vec<RecordRead<'_>> =
                buffers.iter_mut().enumerate().map(record).collect();
            world.disk.readers.read(&mut records);
            for (number, record) in records.iter().enumerate() {
                let expected = &value[number << 20..][..1_000_001];
                assert_eq!(record.result, Some(Ok(Checksum::of(expected))));
                assert!(*record.into == *expected);
            }
            assert_eq!(world.disk.readers.buffers_given_out(), 0);
        }
    });
}

/// A kernel that was short of memory for a moment made `io_uring_enter` fail with ENOMEM. The device counted as failed,
/// and the store refused every later call.
#[test]
fn what_passes_in_the_kernel_ends_no_device() {
    for errno in [libc::EINTR, libc::EAGAIN, libc::EBUSY, libc::ENOMEM] {
        for submits in [false, true] {
            assert!(
                outlives(errno, submits),
                "error {errno}, submits: {submits}"
            );
        }
    }
    assert!(!outlives(libc::EBADF, false), "a ring that is none is told");
}

/// A ring that took nothing any more was dropped with jobs that the kernel had never seen. Nothing could give them back,
/// and after a second the whole process was ended.
#[test]
fn jobs_that_the_kernel_never_had_are_not_waited_for() {
    World::each(|world| {
        world.create(1 << 20);
        let mut buffers = vec![vec![0; 4096]; 3];
        let mut records: Vec<RecordRead<'_>> = buffers
            .iter_mut()
            .map(|into| RecordRead {
                file: FILE,
                offset: 0,
                bytes: 4096,
                into,
                result: None,
                took: Duration::ZERO,
                waited: Duration::ZERO,
            })
            .collect();
        world.disk.readers.fail_ring(Failure {
            submits: false,
            ..broken(u32::MAX)
        });
        world.disk.readers.read(&mut records);
        let zeros = Some(Ok(Checksum::of(&[0; 4096])));
        assert!(records.iter().all(|record| record.result == zeros));
    });
}

/// The kernel tells of a failed write those who have the file open: a file that is closed in between, and opened for the
/// sync alone, may be synced without a word.
#[test]
fn a_file_with_a_failed_write_stays_open() {
    assert!(keeps_a_file_whose_write_failed());
}

/// Mistakes that somebody could make here are seen by the checks of this file.
#[test]
fn every_planted_bug_of_the_shell_is_caught() {
    let holds = |bug: Planted| match bug {
        Planted::ShortageEndsDevice => outlives(libc::ENOMEM, false),
        Planted::FailedWriteSettles => keeps_a_file_whose_write_failed(),
        other => panic!("nothing checks {other:?}"),
    };
    for bug in Planted::SHELL {
        assert!(holds(*bug), "{bug:?} is not planted");
        plant(Some(*bug));
        let unseen = holds(*bug);
        plant(None);
        assert!(!unseen, "{bug:?} is not seen");
    }
}

/// Whether a device on io_uring does its operations after `io_uring_enter` has failed three times with `errno`.
fn outlives(errno: i32, submits: bool) -> bool {
    let root = tempfile::tempdir().unwrap();
    let directory = Arc::new(Directory::hold(root.path()).unwrap());
    let region = Arc::new(region::map(2 << 20, HugePages::Off).unwrap().0);
    let segment = Segment {
        id: SegmentId(1),
        incarnation: Incarnation(5),
        region,
    };
    let device = UringDevice::new(directory, segment, 4).unwrap();
    device.fail(Failure {
        errno,
        turns: 3,
        submits,
    });
    let create = DiskOp::Create {
        file: FILE,
        bytes: 1 << 20,
    };
    device.submit(&mut vec![(OpId(1), create)]);
    let mut done = Vec::new();
    while done.is_empty() {
        if device.complete(&mut done).is_err() {
            return false;
        }
    }
    let result = Ok(DiskOutcome::Done);
    done == [DiskDone {
        op: OpId(1),
        result,
    }]
}

/// Whether a file stays open after a write to it failed, and a sync that does not cover it.
fn keeps_a_file_whose_write_failed() -> bool {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("read-only");
    std::fs::write(&path, [0; BLOCK]).unwrap();
    let region = Arc::new(region::map(2 << 20, HugePages::Off).unwrap().0);
    let segment = Segment {
        id: SegmentId(1),
        incarnation: Incarnation(5),
        region,
    };
    let mut handles = Handles::new(1);
    let file = handles.keep(FILE, std::fs::File::open(&path).unwrap().into());
    let parts = vec![Part::Bytes(vec![1; BLOCK].into())];
    // SAFETY: no part names an extent.
    let write = unsafe { Transfer::write(Arc::clone(&file), 0, parts, &segment) }.unwrap();
    let result = Job::Move(write).finish();
    assert_eq!(result, Err(DiskError::Device { errno: libc::EBADF }));
    file.end_sync(file.begin_sync());
    drop(file);
    !handles.close_one()
}

/// A ring that does not work, after it has handed over what was started.
fn broken(turns: u32) -> Failure {
    Failure {
        errno: libc::EBADF,
        turns,
        submits: true,
    }
}

#[test]
fn auto_says_what_it_chose() {
    let root = tempfile::tempdir().unwrap();
    let directory = Arc::new(Directory::hold(root.path()).unwrap());
    let region = Arc::new(region::map(2 << 20, HugePages::Off).unwrap().0);
    let segment = Segment {
        id: SegmentId(1),
        incarnation: Incarnation(5),
        region,
    };
    let how = Use {
        backend: IoBackend::Auto,
        depth: 4,
        read_buffer_bytes: 1 << 20,
    };
    let choice = start(&directory, segment, how).unwrap().choice;
    assert!(
        ["uring", "pread"].contains(&choice.chosen.as_str()) && !choice.reason.is_empty(),
        "{choice:?}"
    );
}
