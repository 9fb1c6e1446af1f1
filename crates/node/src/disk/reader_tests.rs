//! Reads of records that lie one after another.

use slackwater_tier::io::{DiskOp, DiskOutcome, Part};
use slackwater_wire::{Incarnation, SegmentId};

use super::*;
use crate::config::{HugePages, IoBackend};
use crate::disk::{Disk, Segment, Use, start};
use crate::region;

const FILE: FileId = FileId(3);
const BLOCK: usize = BLOCK_BYTES as usize;
const FILE_BLOCKS: usize = 256;

/// A disk of each kind with a file whose blocks all differ.
fn each(check: impl Fn(&Disk, &[u8])) {
    for backend in [IoBackend::Auto, IoBackend::Pread] {
        let root = tempfile::tempdir().unwrap();
        let directory = Arc::new(Directory::hold(root.path()).unwrap());
        let segment = Segment {
            id: SegmentId(1),
            incarnation: Incarnation(5),
            region: Arc::new(region::map(1 << 20, HugePages::Off).unwrap().0),
        };
        let how = Use {
            backend,
            depth: 4,
            read_buffer_bytes: 1 << 20,
        };
        let disk = start(&directory, segment, how).unwrap();
        let mut bytes = vec![0; FILE_BLOCKS * BLOCK];
        slackwater_base::Rng::new(5).fill(&mut bytes);
        let ops = [
            DiskOp::Create {
                file: FILE,
                bytes: bytes.len() as u64,
            },
            DiskOp::Write {
                file: FILE,
                offset: 0,
                parts: vec![Part::Bytes(bytes.clone().into())],
            },
        ];
        for (number, op) in ops.into_iter().enumerate() {
            let mut done = Vec::new();
            let number = slackwater_tier::io::OpId(number as u64);
            disk.device.submit(&mut vec![(number, op)]);
            while done.is_empty() {
                disk.device.complete(&mut done).unwrap();
            }
            assert_eq!(done[0].result, Ok(DiskOutcome::Done));
        }
        check(&disk, &bytes);
    }
}

fn record(file: FileId, block: usize, blocks: usize, into: &mut [u8]) -> RecordRead<'_> {
    RecordRead {
        file,
        offset: (block * BLOCK) as u64,
        bytes: (blocks * BLOCK) as u64,
        into,
        result: None,
        took: Duration::ZERO,
        waited: Duration::ZERO,
    }
}

#[test]
fn records_in_a_row_are_read_as_one_up_to_a_length() {
    let most = RUN_BYTES_MAX as usize / BLOCK;
    // File, first block and blocks of each record; the runs that they are read in.
    let check = |records: &[(u64, usize, usize)], expected: &[&[usize]]| {
        let records: Vec<RecordRead<'_>> = records
            .iter()
            .map(|(file, block, blocks)| record(FileId(*file), *block, *blocks, &mut []))
            .collect();
        assert_eq!(runs(&records), expected);
    };
    check(&[], &[]);
    check(&[(1, 5, 2)], &[&[0]]);
    check(&[(1, 0, 2), (1, 2, 1), (1, 3, 4)], &[&[0, 1, 2]]);
    // The blocks of a chain leave memory from its end: they lie in the other order.
    check(&[(1, 3, 4), (1, 2, 1), (1, 0, 2)], &[&[2, 1, 0]]);
    check(&[(1, 0, 2), (1, 3, 1)], &[&[0], &[1]]);
    check(&[(1, 0, 2), (2, 2, 1)], &[&[0], &[1]]);
    check(&[(2, 0, 1), (1, 0, 1), (2, 1, 1)], &[&[1], &[0, 2]]);
    // The same record twice is two reads.
    check(&[(1, 0, 2), (1, 0, 2)], &[&[0], &[1]]);
    check(
        &[(1, 0, most - 1), (1, most - 1, 1), (1, most, 1)],
        &[&[0, 1], &[2]],
    );
    check(&[(1, 0, most + 1), (1, most + 1, 1)], &[&[0], &[1]]);
}

#[test]
fn every_record_of_a_run_comes_to_its_own_buffer() {
    each(|disk, bytes| {
        let mut rng = slackwater_base::Rng::new(7);
        for _ in 0..50 {
            let (mut block, mut places) = (rng.below(8) as usize, Vec::new());
            while block + 20 < FILE_BLOCKS && places.len() < 24 {
                let blocks = 1 + rng.below(20) as usize;
                let length = (blocks - 1) * BLOCK + 1 + rng.below(BLOCK as u64) as usize;
                let shift = [0, 0, 16, 63][rng.below(4) as usize];
                places.push((block, blocks, length, shift));
                block += blocks + usize::from(rng.chance(0.2));
            }
            places.sort_by_cached_key(|_| rng.below(u64::MAX));
            let mut rooms: Vec<_> = places
                .iter()
                .map(|(_, _, length, shift)| {
                    crate::disk::buffer::AlignedBuffer::zeroed(length + shift)
                })
                .collect();
            let mut records: Vec<_> = places
                .iter()
                .zip(&mut rooms)
                .map(|((block, blocks, _, shift), room)| {
                    record(FILE, *block, *blocks, &mut room[*shift..])
                })
                .collect();
            disk.readers.read(&mut records);
            for (record, (block, _, length, _)) in records.iter().zip(&places) {
                let expected = &bytes[block * BLOCK..][..*length];
                assert_eq!(record.result, Some(Ok(Checksum::of(expected))));
                assert!(record.into == expected && record.took > Duration::ZERO);
            }
            assert_eq!(disk.readers.buffers_given_out(), 0);
        }
    });
}

/// Of a run that could not be read nobody knew which record was at fault: a bad sector would have counted against
/// all of them, and some would have been given up.
#[test]
fn a_record_that_cannot_be_read_costs_those_beside_it_nothing() {
    each(|disk, bytes| {
        let mut rooms = vec![vec![0; 2 * BLOCK]; 5];
        let mut records: Vec<_> = rooms
            .iter_mut()
            .enumerate()
            // The fourth ends behind the file's end, and the fifth begins there.
            .map(|(nth, room)| record(FILE, FILE_BLOCKS - 7 + 2 * nth, 2, room))
            .collect();
        assert_eq!(runs(&records), [[0, 1, 2, 3, 4]]);
        for of_ring in [true, false] {
            if of_ring {
                // A second run has the batch go through a ring.
                let mut apart = vec![0; BLOCK];
                let mut records: Vec<_> = std::iter::once(record(FILE, 0, 1, &mut apart))
                    .chain(records.iter_mut().map(|it| RecordRead {
                        into: &mut *it.into,
                        ..*it
                    }))
                    .collect();
                disk.readers.read(&mut records);
                check(&records[1..], bytes);
                assert_eq!(records[0].result, Some(Ok(Checksum::of(&bytes[..BLOCK]))));
            } else {
                disk.readers.read(&mut records);
                check(&records, bytes);
            }
        }
        fn check(records: &[RecordRead<'_>], bytes: &[u8]) {
            for (nth, record) in records.iter().enumerate() {
                let expected = match nth {
                    0..3 => Ok(Checksum::of(&bytes[record.offset as usize..][..2 * BLOCK])),
                    _ => Err(DiskError::Missing),
                };
                assert_eq!(record.result, Some(expected), "{nth}");
            }
        }
        let mut long = vec![0; 3 * BLOCK];
        let mut right = vec![0; BLOCK];
        let mut records = [
            record(FILE, 0, 2, &mut long),
            record(FILE, 2, 1, &mut right),
        ];
        disk.readers.read(&mut records);
        assert_eq!(
            records[0].result,
            Some(Err(DiskError::Missing)),
            "no such length"
        );
        assert!(matches!(records[1].result, Some(Ok(_))));
    });
}
