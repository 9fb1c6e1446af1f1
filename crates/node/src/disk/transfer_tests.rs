use proptest::prelude::*;
use slackwater_base::Rng;
use slackwater_tier::io::FileId;

use super::*;
use crate::config::HugePages;
use crate::disk::Directory;
use crate::disk::job::Job;
use crate::region;

pub(crate) fn segment(bytes: usize) -> Segment {
    let region = Arc::new(region::map(bytes, HugePages::Off).unwrap().0);
    Segment {
        id: SegmentId(1),
        incarnation: Incarnation(9),
        region,
    }
}

fn extent(offset: u64, bytes: u64) -> ExtentRef {
    ExtentRef {
        segment: SegmentId(1),
        incarnation: Incarnation(9),
        offset,
        bytes,
        generation: 1,
    }
}

/// Plays a device that does `step` bytes at a time, and returns what it was given.
fn play(transfer: &mut Transfer, step: &mut impl FnMut() -> usize) -> Vec<u8> {
    let mut given = Vec::new();
    loop {
        let window = transfer.window();
        assert_eq!(window.offset, 8192 + given.len() as u64);
        // SAFETY: the window's entries live in the transfer.
        let pieces = unsafe { std::slice::from_raw_parts(window.pieces, window.count as usize) };
        let mut want = step();
        let before = given.len();
        for piece in pieces {
            let take = want.min(piece.iov_len);
            // SAFETY: a piece is a valid range as long as the transfer lives, and nobody writes it here.
            given.extend_from_slice(unsafe {
                std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), take)
            });
            want -= take;
        }
        match transfer.after(Ok(given.len() - before)) {
            Progress::Again => {}
            Progress::Done => return given,
            Progress::Failed(error) => panic!("{error:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However a device cuts a write up, it is given every byte once and in order, and zeros for padding.
    #[test]
    fn a_write_done_in_parts_loses_nothing(seed: u64, lengths in prop::collection::vec(1usize..20_000, 1..8)) {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::hold(root.path()).unwrap();
        let file = directory.create(FileId(1)).unwrap();
        let segment = segment(1 << 20);
        let mut rng = Rng::new(seed);
        let (mut parts, mut expected, mut at) = (Vec::new(), Vec::new(), 0u64);
        for length in lengths {
            let mut value = vec![0; length];
            rng.fill(&mut value);
            if rng.chance(0.3) {
                value.resize(length.next_multiple_of(BLOCK), 0);
                expected.extend_from_slice(&value);
                let bytes = if rng.chance(0.5) {
                    let mut aligned = AlignedBuffer::zeroed(value.len());
                    aligned.copy_from_slice(&value);
                    Bytes::from_owner(Scratch::from(aligned))
                } else {
                    value.into()
                };
                parts.push(Part::Bytes(bytes));
                continue;
            }
            at += if rng.chance(0.5) { 4096 - at % 4096 } else { 64 };
            let bytes = round_to_block(length as u64);
            let extent = extent(at, bytes);
            at += bytes;
            // SAFETY: the only grant of these bytes while it lives.
            let _ = unsafe { segment.grant(&extent, Access::Write) }.unwrap().copy_in(&value);
            value.resize(bytes as usize, 0);
            expected.extend_from_slice(&value);
            parts.push(Part::Extent { extent, length: length as u64 });
        }
        // SAFETY: nobody writes the extents any more.
        let mut transfer = unsafe { Transfer::write(file, 8192, parts, &segment) }.unwrap();
        let given = play(&mut transfer, &mut || 1 + rng.below(9000) as usize);
        prop_assert!(given == expected);
        prop_assert_eq!(transfer.outcome(), DiskOutcome::Done);
    }
}

/// A copy of reclaim was once cleared, read, copied twice and cleared again on its way.
#[test]
fn what_was_read_is_written_from_where_it_is() {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::hold(root.path()).unwrap();
    let file = directory.create(FileId(1)).unwrap();
    let segment = segment(1 << 20);
    let buffers = Buffers::new(2 * BLOCK);
    let write = |bytes: &Bytes| {
        let parts = vec![Part::Bytes(bytes.clone())];
        // SAFETY: no part names an extent.
        unsafe { Transfer::write(Arc::clone(&file), 0, parts, &segment) }.unwrap()
    };
    let mut content = vec![0; 4 * BLOCK + 1];
    Rng::new(1).fill(&mut content);
    let given = Bytes::from(content).slice(1..);
    assert_eq!(Job::Move(write(&given)).finish(), Ok(()));
    let read = |offset: usize| {
        let place = Place {
            offset: offset as u64,
            bytes: 2 * BLOCK_BYTES,
            length: 2 * BLOCK_BYTES,
        };
        let (file, into) = (Arc::clone(&file), Target::Completion);
        // SAFETY: nothing is read into an extent.
        let read = unsafe { Transfer::read(file, place, &into, &segment, &buffers) };
        let mut job = Job::Move(read.unwrap());
        assert_eq!(job.finish(), Ok(()));
        let DiskOutcome::Read { bytes, .. } = job.outcome() else {
            panic!("a read gives bytes");
        };
        assert_eq!(bytes, given.slice(offset..offset + 2 * BLOCK));
        bytes
    };
    // The second finds no memory left in the buffers.
    let (first, second) = (read(0), read(2 * BLOCK));
    assert_eq!(buffers.given_out(), 1);
    for (bytes, lent) in [(first, 1), (second, 0)] {
        let write = write(&bytes);
        let from = write.window().pieces;
        // SAFETY: a write of one part has at least one piece.
        let first = unsafe { *from };
        assert_eq!(first.iov_base.cast_const().cast(), bytes.as_ptr());
        assert!(write.scratch.is_empty());
        drop(bytes);
        assert_eq!(buffers.given_out(), lent);
        assert_eq!(Job::Move(write).finish(), Ok(()));
        assert_eq!(buffers.given_out(), 0);
    }
    // The buffer of the first, which is used again.
    drop(read(2 * BLOCK));
}

/// Of memory that is lent in whole blocks no more is given out than was read, and nothing before it was read.
#[test]
fn a_read_gives_out_what_was_asked_for_when_it_has_ended() {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::hold(root.path()).unwrap();
    let file = directory.create(FileId(1)).unwrap();
    let (segment, buffers) = (segment(1 << 20), Buffers::new(2 * BLOCK));
    let place = Place {
        offset: 0,
        bytes: 5000,
        length: 4500,
    };
    // SAFETY: nothing is read into an extent.
    let read = unsafe { Transfer::read(file, place, &Target::Completion, &segment, &buffers) };
    let mut read = read.unwrap();
    assert_eq!(read.after(Ok(4096)), Progress::Again);
    let early = std::panic::AssertUnwindSafe(|| read.outcome());
    assert!(std::panic::catch_unwind(early).is_err());
    assert_eq!(read.after(Ok(904)), Progress::Done);
    let DiskOutcome::Read { bytes, .. } = read.outcome() else {
        panic!("a read gives bytes");
    };
    assert_eq!(bytes.len(), 5000);
}

#[test]
fn what_a_system_call_says_decides_how_it_goes_on() {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::hold(root.path()).unwrap();
    let file = directory.create(FileId(1)).unwrap();
    let segment = segment(1 << 20);
    let check = |into: Option<Target>, result: Result<usize, i32>, expected: Progress| {
        let file = Arc::clone(&file);
        let mut transfer = match into {
            // SAFETY: one transfer at a time touches the segment.
            Some(into) => unsafe {
                Transfer::read(
                    file,
                    Place {
                        offset: 0,
                        bytes: 8192,
                        length: 8000,
                    },
                    &into,
                    &segment,
                    &Buffers::new(4 << 20),
                )
            },
            // SAFETY: as above.
            None => unsafe {
                Transfer::write(file, 0, vec![Part::Bytes(vec![1; 8192].into())], &segment)
            },
        }
        .unwrap();
        assert_eq!(transfer.after(result), expected, "{into:?} {result:?}");
    };
    let device = |errno: i32| Progress::Failed(DiskError::Device { errno });
    for read in [
        None,
        Some(Target::Completion),
        Some(Target::Nowhere),
        Some(Target::Extent(extent(0, 8192))),
    ] {
        check(read, Err(libc::EINTR), Progress::Again);
        check(read, Err(libc::EAGAIN), Progress::Again);
        check(read, Ok(512), Progress::Again);
        check(read, Ok(8192), Progress::Done);
        check(read, Err(libc::EIO), device(libc::EIO));
        check(read, Err(libc::ENOSPC), Progress::Failed(DiskError::Full));
        check(
            read,
            Err(libc::EROFS),
            Progress::Failed(DiskError::ReadOnly),
        );
    }
    check(
        Some(Target::Nowhere),
        Ok(0),
        Progress::Failed(DiskError::Missing),
    );
    check(None, Ok(0), device(libc::EIO));
}

#[test]
fn extents_of_others_and_too_short_ones_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::hold(root.path()).unwrap();
    let file = directory.create(FileId(1)).unwrap();
    let segment = segment(1 << 20);
    let refused = [
        ExtentRef {
            incarnation: Incarnation(8),
            ..extent(0, 8192)
        },
        ExtentRef {
            segment: SegmentId(2),
            ..extent(0, 8192)
        },
        extent(2 << 20, 8192),
        extent(0, 4096),
    ];
    for extent in refused {
        let place = Place {
            offset: 0,
            bytes: 8192,
            length: 8000,
        };
        // SAFETY: nothing is transferred.
        let read = unsafe {
            Transfer::read(
                Arc::clone(&file),
                place,
                &Target::Extent(extent),
                &segment,
                &Buffers::new(BLOCK),
            )
        };
        // SAFETY: as above.
        let write = unsafe {
            Transfer::write(
                Arc::clone(&file),
                0,
                vec![Part::Extent {
                    extent,
                    length: 8000,
                }],
                &segment,
            )
        };
        assert_eq!(read.unwrap_err(), FOREIGN);
        assert_eq!(write.unwrap_err(), FOREIGN);
    }
}
