//! The reference implementation's answers to the calls of the catalog.

use super::*;

impl Evict for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn read(&mut self, walk: &Walk<'_>) {
        self.advance(walk.now);
        self.requests += 1;
        let (mut taken, mut known) = self.take(walk);
        self.match_ghosts(walk, &mut known);
        known.matched = known.matched.max(walk.position + walk.found);
        let features = self.features(walk, &known);
        let blocks = walk
            .links
            .iter()
            .map(|link| link.slot.and_then(|slot| taken.remove(&slot)))
            .collect();
        let fresh = self.build(walk, features, blocks);
        let found = self.publish(&fresh, &Found::default());
        let prefix = walk.links[..walk.found as usize].last();
        let first = walk.parent.or(walk.links.first().map(|link| link.hash));
        if let Some(key) = prefix.map(|link| link.hash).or(first) {
            self.pending.put(Pending {
                key,
                features,
                ghosts: known.ghosts,
                found,
                sampled: false,
            });
        }
    }

    fn insert(&mut self, walk: &Walk<'_>) {
        self.advance(walk.now);
        let Some(key) = walk.parent.or(walk.links.first().map(|link| link.hash)) else {
            return;
        };
        let pending = self.pending.take(key).unwrap_or_else(|| {
            self.requests += 1;
            let mut known = Known {
                matched: walk.position,
                last_use: None,
                ghosts: GhostRuns::default(),
            };
            self.match_ghosts(walk, &mut known);
            Pending {
                features: self.features(walk, &known),
                ghosts: known.ghosts,
                ..Pending::default()
            }
        });
        let block = |(at, link): (usize, &Link)| {
            let count = pending.ghosts.count(walk.position + at as u32).min(127);
            link.slot.map(|slot| Block {
                tag: tag(link.hash),
                slot: Some(slot),
                count,
                excluded: false,
                noted: false,
            })
        };
        let blocks = walk.links.iter().enumerate().map(block).collect();
        let fresh = self.build(walk, pending.features, blocks);
        let found = self.publish(&fresh, &pending.found);
        if let Some(last) = walk.links.last() {
            self.pending.put(Pending {
                key: last.hash,
                found,
                ..pending
            });
        }
    }

    fn remove(&mut self, slot: Slot) {
        self.discard(slot);
    }

    fn victim(&mut self, now: Instant) -> Option<Slot> {
        self.advance(now);
        self.choose()
    }

    fn evicted(&mut self, now: Instant, slot: Slot) {
        let Some((number, at)) = self.find(slot) else {
            return;
        };
        self.advance(now);
        if at + 1 != self.segments[&number].cached() {
            return self.discard(slot);
        }
        let segment = self.segment(number);
        segment.blocks[at].slot = None;
        segment.count = segment.blocks[at].count;
        segment.blocks[at].noted = segment.is_checkpoint(at);
        self.tidy(number);
        self.limit_ghosts(number);
    }

    fn exclude(&mut self, slot: Slot) {
        if let Some((number, at)) = self.find(slot) {
            self.segment(number).blocks[at].excluded = true;
        }
    }

    fn include(&mut self, slot: Slot) {
        let Some((number, at)) = self.find(slot) else {
            return;
        };
        let earliest = -self.place();
        let segment = self.segment(number);
        segment.blocks[at].excluded = false;
        if matches!(segment.place, Place::Aside | Place::Stuck) {
            (segment.place, segment.by_place) = (Place::Shelved, earliest);
        }
    }

    fn set_capacity(&mut self, _bytes: u64) {}

    fn on_deadline(&mut self, now: Instant) {
        self.advance(now);
        self.tables.estimate(self.now);
        self.tables.decay(self.requests - self.estimated_at);
        self.estimated_at = self.requests;
    }

    fn overhead_bytes(&self) -> usize {
        0
    }
}
