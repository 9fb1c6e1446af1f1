use slackwater_engine::Buffers;

use crate::io::{VECTORS_MAX, Vectors};

/// A position in a list of ranges. It finds the next bytes, and those near them, without a walk from the start.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    /// A range, and the offset of its first byte from the start of the list.
    span: usize,
    at: u64,
}

/// Memory of one request, from some byte on.
pub(crate) struct Place<'a> {
    pub(crate) buffers: &'a Buffers,
    pub(crate) cursor: &'a mut Cursor,
    /// From the start of the buffers.
    pub(crate) offset: u64,
}

/// What holds the memory of one request.
pub(crate) trait SpanMemory {
    /// The memory from this byte of the request on; none if it has none.
    fn place(&mut self, offset: u64) -> Option<Place<'_>>;
}

impl Place<'_> {
    /// Adds the ranges of the next `bytes` bytes to `out`, as many as have room; returns how many bytes they are.
    pub(crate) fn vectors(&mut self, bytes: usize, out: &mut Vectors) -> usize {
        let (mut added, mut within) = (0, self.seek());
        for span in &self.buffers.spans()[self.cursor.span..] {
            if added == bytes || out.len() >= VECTORS_MAX {
                break;
            }
            let take = (span.bytes() - within).min(bytes - added);
            out.push(libc::iovec {
                iov_base: span.start().wrapping_add(within).cast(),
                iov_len: take,
            });
            added += take;
            within = 0;
        }
        added
    }

    /// Copies to the next bytes.
    pub(crate) fn copy_in(&mut self, mut from: &[u8]) {
        self.check(from.len());
        while !from.is_empty() {
            let within = self.seek();
            let span = &self.buffers.spans()[self.cursor.span];
            let take = (span.bytes() - within).min(from.len());
            // SAFETY: `within + take` lies inside the span, which `buffers` keeps valid for writes; the source is a
            // buffer of the connection's own, so the two are apart.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), span.start().add(within), take) };
            from = &from[take..];
            self.offset += take as u64;
        }
    }

    /// Copies the next bytes out.
    pub(crate) fn copy_out(&mut self, mut into: &mut [u8]) {
        self.check(into.len());
        while !into.is_empty() {
            let within = self.seek();
            let span = &self.buffers.spans()[self.cursor.span];
            let take = (span.bytes() - within).min(into.len());
            // SAFETY: as for `copy_in`, for reads.
            unsafe {
                std::ptr::copy_nonoverlapping(span.start().add(within), into.as_mut_ptr(), take)
            };
            into = &mut into[take..];
            self.offset += take as u64;
        }
    }

    fn check(&self, bytes: usize) {
        assert!(
            self.offset + bytes as u64 <= self.buffers.bytes(),
            "a payload is checked against its request"
        );
    }

    /// Moves the cursor to the range of the offset; returns where in it that is.
    fn seek(&mut self) -> usize {
        let (spans, cursor) = (self.buffers.spans(), &mut *self.cursor);
        while self.offset < cursor.at {
            cursor.span -= 1;
            cursor.at -= spans[cursor.span].bytes() as u64;
        }
        while let Some(span) = spans.get(cursor.span) {
            let end = cursor.at + span.bytes() as u64;
            if self.offset < end {
                break;
            }
            (cursor.span, cursor.at) = (cursor.span + 1, end);
        }
        (self.offset - cursor.at) as usize
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slackwater_engine::{Memory, RegionSpec, Regions};
    use slackwater_wire::data::Rights;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// Whatever was sought before, the bytes at an offset are the same.
        #[test]
        fn every_offset_is_found_from_every_other(
            lengths in prop::collection::vec(1u64..40, 1..12),
            visits in prop::collection::vec((any::<prop::sample::Index>(), 1usize..90), 1..20),
        ) {
            let total: u64 = lengths.iter().sum();
            let regions = Regions::default();
            let region = regions.register(RegionSpec {
                memory: Memory::anonymous(2 * total as usize).unwrap(),
                rights: Rights::NONE, gate: None,
            }).unwrap();
            // Every second run of bytes, so that neighbours in the list are apart in memory.
            let mut at = 0;
            let accesses: Vec<_> = lengths.iter().map(|bytes| {
                let access = regions.access(region.id(), at, *bytes).unwrap();
                at += 2 * bytes;
                access
            }).collect();
            let buffers = Buffers::held(accesses);
            let mut cursor = Cursor::default();
            let all: Vec<u8> = (0..total).map(|index| index as u8).collect();
            Place { buffers: &buffers, cursor: &mut cursor, offset: 0 }.copy_in(&all);
            for (index, bytes) in visits {
                let offset = index.index(total as usize);
                let bytes = bytes.min(total as usize - offset);
                let mut place = Place { buffers: &buffers, cursor: &mut cursor, offset: offset as u64 };
                let (mut vectors, mut out) = (Vectors::new(), vec![0; bytes]);
                prop_assert_eq!(place.vectors(bytes, &mut vectors), bytes);
                place.copy_out(&mut out);
                prop_assert_eq!(out.as_slice(), &all[offset..offset + bytes]);
                prop_assert_eq!(vectors.iter().map(|range| range.iov_len).sum::<usize>(), bytes);
            }
        }
    }
}
