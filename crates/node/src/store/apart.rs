use std::time::Duration;

use slackwater_base::Checksum;

use crate::disk::RecordRead;

/// Reads a record whose bytes arrived wrong once more, to memory of its own. The caller's buffer is no proof against the
/// record, which is dropped if it is wrong: the buffer's owner may have written to it between the read and the checksum.
pub(super) fn read_apart(
    record: &mut RecordRead<'_>,
    expected: Checksum,
    read: impl FnOnce(&mut [RecordRead<'_>]),
) {
    let Some(Ok(arrived)) = record.result else {
        return;
    };
    if arrived == expected {
        return;
    }
    let mut apart = vec![0; record.into.len()];
    let mut again = [RecordRead {
        into: &mut apart,
        result: None,
        took: Duration::ZERO,
        ..*record
    }];
    read(&mut again);
    let [again] = again;
    (record.result, record.took) = (again.result, again.took);
    record.into.copy_from_slice(&apart);
}

#[cfg(test)]
mod tests {
    use slackwater_tier::io::{DiskError, FileId};

    use super::*;

    /// Two threads read two keys into one buffer. Each found the bytes of the other there, and both records were dropped from
    /// the SSD as rotten.
    #[test]
    fn a_record_is_judged_by_bytes_that_nobody_else_can_write() {
        let (right, other) = (vec![1u8; 5000], vec![2u8; 5000]);
        let expected = Checksum::of(&right);
        let failed = Err(DiskError::Device { errno: 5 });
        // What arrived at first, whether it is read again, and what that gives.
        let cases = [
            (Ok(expected), false, Ok(expected)),
            (failed, false, failed),
            (Ok(Checksum::of(&other)), true, Ok(expected)),
            (Ok(Checksum::of(&other)), true, Ok(Checksum(7))),
            (Ok(Checksum::of(&other)), true, failed),
        ];
        for (arrived, again, outcome) in cases {
            let mut buffer = other.clone();
            let mut record = RecordRead {
                file: FileId(3),
                offset: 4096,
                bytes: 8192,
                into: &mut buffer,
                result: Some(arrived),
                took: Duration::from_micros(1),
                waited: Duration::from_micros(5),
            };
            let mut reads = 0;
            read_apart(&mut record, expected, |records| {
                let [record] = records else { panic!("one") };
                reads += 1;
                assert_eq!(
                    (record.file, record.offset, record.bytes),
                    (FileId(3), 4096, 8192)
                );
                record.into.copy_from_slice(&right);
                (record.result, record.took) = (Some(outcome), Duration::from_micros(2));
            });
            assert_eq!(reads, usize::from(again), "{arrived:?}");
            assert_eq!(record.result, Some(outcome));
            assert_eq!(record.took.as_micros(), 1 + u128::from(again));
            assert_eq!(record.waited.as_micros(), 5);
            assert_eq!(buffer, if again { &right } else { &other }[..]);
        }
    }
}
