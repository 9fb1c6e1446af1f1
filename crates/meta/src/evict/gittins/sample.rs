//! Which chains the simulated caches see: a share of them by the hash of their root, so that a conversation is seen with
//! all its turns or not at all.

use crate::evict::Walk;
use crate::evict::ghosts::tag;

/// The choice of chains, and the prefixes that many chains share.
///
/// A prompt that opens many conversations is the root of all of them, and would put all of them into the sample or
/// none. Blocks that a good part of the requests begin with are therefore skipped: the root of a chain is the first
/// block after them. Any policy keeps such blocks, and they would fill a small cache.
#[derive(Debug)]
pub(super) struct Sample {
    /// Tags of blocks that requests began with, and how many did; decaying. Apart, and plain numbers, so that all are
    /// compared a few at a time.
    tags: [u32; HEADS],
    counts: [i32; HEADS],
    requests: i32,
}

const HEADS: usize = 64;
/// A block is shared when more than one request in this many goes through it.
const SHARED_SHARE: i32 = 32;
/// Requests after which the counts are halved.
const HALVING: i32 = 2048;
/// Requests before any block is taken as shared.
const LEAST_REQUESTS: i32 = 64;

impl Sample {
    pub(super) const fn new() -> Self {
        Self {
            tags: [0; HEADS],
            counts: [0; HEADS],
            requests: 0,
        }
    }

    /// Where the request's own chain begins in the walk, if the chain is in the sample: chains whose root has a hash below
    /// `threshold` are.
    pub(super) fn admit(&mut self, walk: &Walk<'_>, threshold: u64) -> Option<usize> {
        self.requests += 1;
        if self.requests == HALVING {
            self.requests /= 2;
            self.counts.iter_mut().for_each(|count| *count /= 2);
        }
        let mut at = 0;
        while self.is_shared(tag(walk.links.get(at)?.hash)) {
            at += 1;
        }
        let root = tag(walk.links[at].hash);
        // The tag's bits are well mixed already; others than those that tables use decide.
        (u64::from(root.wrapping_mul(0x9e37_79b1)) < threshold).then_some(at)
    }

    /// Counts the block, and returns whether many requests go through it. The rarest entry makes room for a new one
    /// (space saving; Metwally, Agrawal and El Abbadi 2005).
    fn is_shared(&mut self, tag: u32) -> bool {
        let (mut known, mut rarest) = (-1, i32::MAX);
        for (at, (&head, &count)) in self.tags.iter().zip(&self.counts).enumerate() {
            let at = at as i32;
            known = known.max(if head == tag && count > 0 { at } else { -1 });
            rarest = rarest.min(count * HEADS as i32 + at);
        }
        let is_known = known >= 0;
        let at = if is_known {
            known
        } else {
            rarest % HEADS as i32
        } as usize;
        self.tags[at] = tag;
        self.counts[at] += 1;
        // What a new entry inherits may all be of others.
        is_known
            && self.requests >= LEAST_REQUESTS
            && self.counts[at] > self.requests / SHARED_SHARE
    }
}

#[cfg(test)]
mod tests {
    use slackwater_base::Instant;

    use super::*;
    use crate::evict::Link;

    fn admit(sample: &mut Sample, hashes: &[u64], threshold: u64) -> Option<usize> {
        let links: Vec<Link> = hashes
            .iter()
            .map(|&hash| Link {
                hash: hash.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                slot: None,
                bytes: 1,
            })
            .collect();
        let walk = Walk::at_root(Instant::ZERO, &links);
        sample.admit(&walk, threshold)
    }

    const ALL: u64 = 1 << 32;

    #[test]
    fn a_conversation_is_seen_whole_or_not_at_all_and_the_share_is_kept() {
        let mut sample = Sample::new();
        let seen = |sample: &mut Sample, chat: u64, turns: u64| {
            let hashes: Vec<u64> = (0..turns).map(|turn| chat * 100 + turn).collect();
            admit(sample, &hashes, ALL / 4).is_some()
        };
        let mut count = 0;
        for chat in 1..=4_000 {
            let first = seen(&mut sample, chat, 1);
            assert_eq!(seen(&mut sample, chat, 5), first, "{chat}");
            count += u32::from(first);
        }
        assert!((900..1_100).contains(&count), "{count} of 4,000");
    }

    #[test]
    fn a_prompt_that_all_share_does_not_decide() {
        let mut sample = Sample::new();
        let mut starts = Vec::new();
        for chat in 10..2_000 {
            starts.push(admit(&mut sample, &[1, 2, chat * 100, chat * 100 + 1], ALL));
        }
        assert_eq!(starts[0], Some(0), "nothing is known of it yet");
        assert!(starts[300..].iter().all(|start| *start == Some(2)));
        assert_eq!(admit(&mut sample, &[1, 2], ALL), None, "nothing of its own");
    }

    #[test]
    fn a_prompt_that_few_still_use_is_not_shared_any_more() {
        let mut sample = Sample::new();
        for chat in 10..310 {
            admit(&mut sample, &[1, 2, chat * 100], ALL);
        }
        assert_eq!(admit(&mut sample, &[1, 2, 5], ALL), Some(2));
        for chat in 1_000..7_000 {
            admit(&mut sample, &[chat * 100], ALL);
        }
        assert_eq!(admit(&mut sample, &[1, 2, 5], ALL), Some(0));
    }
}
