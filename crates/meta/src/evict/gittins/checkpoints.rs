//! The segments of gone blocks: a table of bounded size from hash to segment.

/// Entries of eight bytes in buckets of one cache line. An entry whose segment is gone is not deleted: the reader
/// recognises it, and it may be overwritten. A bucket that is full of valid entries loses one, which costs one match.
///
/// The table grows by shards, so that no call pays for moving all of it.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    shards: [Vec<[Entry; WAYS]>; SHARDS],
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    tag: u32,
    /// ChainSegment number and, in the low eight bits, its generation. Zero where there is none.
    bearer: u32,
}

const WAYS: usize = 8;
const SHARDS: usize = 32;
const MOST_SEGMENTS: u32 = 1 << 24;
/// Entries allocated for each that is meant to be kept, in quarters.
const ROOM_QUARTERS: usize = 5;

impl Entry {
    /// Number and generation of the segment, where there is an entry.
    pub(super) const fn segment(self) -> Option<(u32, u8)> {
        match self.bearer {
            0 => None,
            bearer => Some(((bearer >> 8) - 1, bearer as u8)),
        }
    }
}

impl Checkpoints {
    /// Grows the shard of `tag` to its share of about `entries` in all, and keeps what is there.
    pub(super) fn size_for(&mut self, tag: u32, entries: usize) {
        let shard = &mut self.shards[shard(tag)];
        let wanted = (entries * ROOM_QUARTERS).div_ceil(4 * SHARDS * WAYS);
        if wanted <= shard.len() {
            return;
        }
        let old = std::mem::replace(shard, vec![[Entry::default(); WAYS]; wanted + wanted / 8]);
        for entry in old.into_iter().flatten() {
            if entry.bearer != 0 {
                self.put(entry, |_| true);
            }
        }
    }

    /// Records that the block with this tag belonged to that segment. `living` returns whether an entry is still valid.
    pub(super) fn add(
        &mut self,
        tag: u32,
        segment: u32,
        generation: u8,
        living: impl Fn(Entry) -> bool,
    ) {
        if segment + 1 < MOST_SEGMENTS {
            self.put(
                Entry {
                    tag,
                    bearer: (segment + 1) << 8 | u32::from(generation),
                },
                living,
            );
        }
    }

    /// All segments that a block with this tag may have belonged to.
    pub(super) fn find(&self, tag: u32) -> impl Iterator<Item = (u32, u8)> {
        let shard = &self.shards[shard(tag)];
        let bucket = shard.get(bucket(tag, shard.len())).into_iter().flatten();
        bucket
            .filter(move |entry| entry.tag == tag)
            .filter_map(|entry| entry.segment())
    }

    /// Removes the entry of the block with this tag and segment.
    pub(super) fn remove(&mut self, tag: u32, segment: u32, generation: u8) {
        let shard = &mut self.shards[shard(tag)];
        let bucket = bucket(tag, shard.len());
        for entry in shard.get_mut(bucket).into_iter().flatten() {
            if entry.tag == tag && entry.segment() == Some((segment, generation)) {
                *entry = Entry::default();
            }
        }
    }

    pub(super) fn overhead_bytes(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.capacity() * size_of::<[Entry; WAYS]>())
            .sum()
    }

    fn put(&mut self, entry: Entry, living: impl Fn(Entry) -> bool) {
        let shard = &mut self.shards[shard(entry.tag)];
        let bucket = bucket(entry.tag, shard.len());
        let Some(bucket) = shard.get_mut(bucket) else {
            return;
        };
        // Without a branch for each, which no processor could predict.
        let empty = |(at, old): (usize, &Entry)| u32::from(old.bearer == 0) << at;
        let empty = bucket.iter().enumerate().map(empty).sum::<u32>();
        let at = (empty != 0).then(|| empty.trailing_zeros() as usize);
        let at = at.or_else(|| bucket.iter().position(|&old| !living(old)));
        // When all eight are valid, any may be overwritten; the tag's low bits choose.
        bucket[at.unwrap_or(entry.tag as usize % WAYS)] = entry;
    }
}

const fn shard(tag: u32) -> usize {
    tag as usize % SHARDS
}

/// From the high bits, since the low ones chose the shard.
const fn bucket(tag: u32, buckets: usize) -> usize {
    ((tag as u64 * buckets as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_growth_and_dead_ones_make_room() {
        let mut table = Checkpoints::default();
        let tag = |at: u32| at.wrapping_mul(0x9e37_79b9);
        for at in 0..60 {
            table.size_for(tag(at), 100);
            table.add(tag(at), at, 7, |_| true);
        }
        (0..32).for_each(|shard| table.size_for(shard, 1000));
        assert_eq!(
            (0..60)
                .filter(|&at| table.find(tag(at)).eq([(at, 7)]))
                .count(),
            60
        );
        table.remove(tag(3), 3, 7);
        assert_eq!(table.find(tag(3)).count(), 0);
        for at in 60..10_000 {
            table.add(tag(at), at, 1, |old| {
                old.segment().is_some_and(|(segment, _)| segment + 500 > at)
            });
        }
        let kept = (9_500..10_000)
            .filter(|&at| table.find(tag(at)).next().is_some())
            .count();
        assert!(kept > 480, "{kept} of the 500 living are found");
    }
}
