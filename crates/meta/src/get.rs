//! Reads: where objects are, and the effects of a read on leases, policies and promotion.

use slackwater_base::Instant;
use slackwater_wire::{
    ChainPlace, ErrorCode, Exists, Get, GetEnd, Hold, Key, Lookup, Object, Presence, Reads,
    ReplicaAt, Reply, Version,
};

use crate::catalog::{Mark, ObjectId, Replica, ReplicaId, SegmentIndex, TenantIndex};
use crate::evict::{Link, Slot, Walk};
use crate::lease::{after_probe, after_read};
use crate::master::{Caller, Master};
use crate::segment::{Medium, Segment, Segments};

/// With up to this many segments, every policy is told of every read; with more, only those that hold a part of it.
const SEGMENTS_TOLD: usize = 8;

/// Keys whose cache misses are started together.
pub(crate) const WARMED_AT_ONCE: usize = 64;

/// The working data of a read, key by key. Kept between reads, so that a read does not allocate.
#[derive(Default)]
pub(crate) struct Reading {
    links: Vec<Link>,
    ids: Vec<u32>,
    /// Replicas found, with the index of their key in the request.
    resident: Vec<(SegmentIndex, u32, Slot)>,
    /// The same by segment, and where the next one of each segment goes there.
    sorted: Vec<(SegmentIndex, u32, Slot)>,
    ends: Vec<u32>,
    /// The positions in `links` of the replicas of one segment.
    placed: Vec<u32>,
    /// Objects found on SSD only, with the index of their key in the request.
    cold: Vec<(ObjectId, u32)>,
    /// Where the replicas of one object are.
    places: Vec<ReplicaAt>,
}

impl Reading {
    pub(crate) fn begin(&mut self, hashes: impl Iterator<Item = u64>) {
        self.links.clear();
        self.links.extend(hashes.map(|hash| Link {
            hash,
            slot: None,
            bytes: 0,
        }));
        self.resident.clear();
        self.cold.clear();
    }

    pub(crate) fn keys(&self) -> usize {
        self.links.len()
    }

    /// The numbers of the objects that [`Master::warm`] has found last.
    pub(crate) fn found(&self) -> &[u32] {
        &self.ids
    }

    /// Orders the replicas found by segment. They are in the order of the request, which stays within each segment: counting
    /// them costs less than comparing them where there are many.
    fn sort_resident(&mut self) {
        let Self {
            resident,
            sorted,
            ends,
            ..
        } = self;
        let Some(last) = resident.iter().map(|(segment, ..)| segment.0).max() else {
            return;
        };
        if resident.len() <= usize::from(last) / 4 {
            // Fewer replicas than there are segments to be counted.
            resident.sort_by_key(|(segment, ..)| *segment);
            return;
        }
        ends.clear();
        ends.resize(usize::from(last) + 1, 0);
        for (segment, ..) in &*resident {
            ends[usize::from(segment.0)] += 1;
        }
        let mut begin = 0;
        for end in &mut *ends {
            begin += std::mem::replace(end, begin);
        }
        sorted.clear();
        sorted.extend_from_slice(resident);
        for one in &*resident {
            let end = &mut ends[usize::from(one.0.0)];
            sorted[*end as usize] = *one;
            *end += 1;
        }
        std::mem::swap(resident, sorted);
    }
}

impl Master {
    pub(crate) fn get(&mut self, now: Instant, caller: &Caller, get: &Get) -> Reply {
        self.get_versions(now, caller, get, &[])
    }

    /// The same, of these versions of the keys where there are any: another one counts as missing.
    fn get_versions(
        &mut self,
        now: Instant,
        caller: &Caller,
        get: &Get,
        versions: &[Version],
    ) -> Reply {
        if get.keys.len() > self.config.limits.batch_keys {
            return Reply::Failed(ErrorCode::InvalidParams);
        }
        let Some(tenant) = self.tenants.find(&get.tenant) else {
            self.metrics.get_misses += get.keys.len() as u64;
            return Reply::Get(vec![Lookup::Missing; get.keys.len()]);
        };
        let mut reading = self.reading.take().unwrap_or_default();
        reading.begin(get.keys.iter().map(|key| self.tenants.hash(tenant, key)));
        if let Some(first) = reading.links.first() {
            let tenant = &self.tenants.at(tenant).tenant;
            self.hottest.read(now, tenant, get, first.hash);
        }
        let mut answers = Vec::with_capacity(get.keys.len());
        for (at, key) in get.keys.iter().enumerate() {
            if at.is_multiple_of(WARMED_AT_ONCE) {
                self.warm(&mut reading, at);
            }
            let meant = versions.get(at);
            let answer = self.look_up(
                now,
                caller,
                (tenant, key, at, meant),
                get.hold,
                &mut reading,
            );
            // What a report names was found when it was read.
            if meant.is_none() || matches!(answer, Lookup::Found(_)) {
                self.count(&answer);
            }
            let stop = get.prefix_only && !matches!(answer, Lookup::Found(_));
            answers.push(answer);
            if stop {
                self.add_unread(tenant, &get.keys, at + 1, &mut reading);
                break;
            }
        }
        let found = answers
            .iter()
            .take_while(|answer| matches!(answer, Lookup::Found(_)))
            .count() as u32;
        answers.resize(get.keys.len(), Lookup::Missing);
        let chain = self.chain_start(tenant, &get.chain);
        self.tell_policies(now, &mut reading, chain, found);
        self.consider(
            now,
            &reading.links,
            &reading.cold,
            chain,
            caller.host.as_deref(),
        );
        self.reading = Some(reading);
        Reply::Get(answers)
    }

    /// Takes in reads that needed no look-up, a call after the other.
    pub(crate) fn reads(&mut self, now: Instant, caller: &Caller, reads: &Reads) -> Reply {
        if reads.keys().count() > self.config.limits.batch_keys {
            return Reply::Failed(ErrorCode::InvalidParams);
        }
        let mut answers = Vec::new();
        for call in &reads.calls {
            if ![0, call.keys.len()].contains(&call.versions.len()) {
                return Reply::Failed(ErrorCode::InvalidParams);
            }
            let get = Get {
                tenant: reads.tenant.clone(),
                keys: call.keys.clone(),
                chain: call.chain.clone(),
                hold: Hold::Lease,
                prefix_only: false,
            };
            match self.get_versions(now, caller, &get, &call.versions) {
                Reply::Get(lookups) => answers.extend(lookups),
                other => return other,
            }
        }
        Reply::Get(answers)
    }

    /// Starts the cache misses of the keys from `from` on together, so that they overlap: of no more than stay in the cache
    /// until they are looked up.
    pub(crate) fn warm(&self, reading: &mut Reading, from: usize) {
        let Reading { links, ids, .. } = reading;
        let step = &links[from..links.len().min(from + WARMED_AT_ONCE)];
        self.catalog.warm(step, ids, |replica| {
            let segment = self.segments.at(replica.segment);
            segment
                .memory()
                .map_or(0, |memory| memory.extents.warm(replica.piece))
        });
    }

    fn look_up(
        &mut self,
        now: Instant,
        caller: &Caller,
        (tenant, key, at, meant): (TenantIndex, &Key, usize, Option<&Version>),
        hold: Hold,
        reading: &mut Reading,
    ) -> Lookup {
        let link = &mut reading.links[at];
        let Some(id) = self.catalog.find(tenant, key, link.hash) else {
            return Lookup::Missing;
        };
        let object = self.catalog.object(id);
        if !object.has_replicas() {
            return Lookup::NotReady;
        }
        let is_meant = meant.is_none_or(|version| *version == object.version);
        if !is_meant || !self.segments.is_readable(&self.catalog, id) {
            return Lookup::Missing;
        }
        link.bytes = object.bytes;
        let answer = self.read(now, caller, id, hold, at as u32, reading);
        if matches!(&answer, Lookup::Found(object) if matches!(object.replicas[0], ReplicaAt::Disk { .. }))
        {
            reading.cold.push((id, at as u32));
        } else {
            self.heat(now, id);
        }
        answer
    }

    /// Adds the rest of a prefix read that ended early: the request was for these blocks too, and policies learn from
    /// that.
    fn add_unread(&self, tenant: TenantIndex, keys: &[Key], from: usize, reading: &mut Reading) {
        for (at, key) in keys.iter().enumerate().skip(from) {
            let link = &mut reading.links[at];
            let Some(id) = self.catalog.find(tenant, key, link.hash) else {
                continue;
            };
            link.bytes = self.catalog.object(id).bytes;
            let replicas = self.catalog.replicas(id);
            let known = |(_, facts): (ReplicaId, &Replica)| {
                known_to(self.segments.at(facts.segment), facts, at as u32)
            };
            reading.resident.extend(replicas.flat_map(known));
        }
    }

    fn count(&mut self, answer: &Lookup) {
        let metrics = &mut self.metrics;
        metrics.gets += 1;
        match answer {
            Lookup::Found(object) if matches!(object.replicas[0], ReplicaAt::Memory(_)) => {
                metrics.get_memory_hits += 1;
                metrics.get_memory_bytes += object.bytes;
            }
            Lookup::Found(object) => {
                metrics.get_disk_hits += 1;
                metrics.get_disk_bytes += object.bytes;
            }
            Lookup::NotReady => metrics.get_not_ready += 1,
            Lookup::Missing | Lookup::Failed(_) => metrics.get_misses += 1,
        }
    }

    /// Holds a readable object for the caller and returns where it is, memory before SSD; what is on a node without a link only
    /// if it is nowhere else.
    fn read(
        &mut self,
        now: Instant,
        caller: &Caller,
        id: ObjectId,
        hold: Hold,
        position: u32,
        reading: &mut Reading,
    ) -> Lookup {
        let Reading {
            resident,
            places: replicas,
            ..
        } = reading;
        replicas.clear();
        let mut first: Option<ReplicaId> = None;
        let (mut in_memory, mut here) = (0, 0);
        for (replica, facts) in self.catalog.replicas(id) {
            let segment = self.segments.at(facts.segment);
            if segment.presence == Presence::Hidden {
                continue;
            }
            resident.extend(known_to(segment, facts, position));
            let (is_memory, at) = match &segment.medium {
                Medium::Memory(_) => (
                    true,
                    ReplicaAt::Memory(segment.reference(segment.extent(facts.piece))),
                ),
                Medium::Disk(_) => (
                    false,
                    ReplicaAt::Disk {
                        node: segment.node,
                        segment: segment.id,
                    },
                ),
            };
            let place = match segment.presence {
                Presence::Here if is_memory => in_memory,
                Presence::Here => here,
                Presence::Away | Presence::Hidden => replicas.len(),
            };
            if segment.presence == Presence::Here {
                here += 1;
                in_memory += usize::from(is_memory);
            }
            if place == 0 {
                first = Some(replica);
            }
            replicas.insert(place, at);
        }
        let first = first.expect("a readable object has a replica");
        // Nobody need try a node that lost its link.
        if here > 0 {
            replicas.truncate(here);
        }
        let guard = match hold {
            Hold::Lease => None,
            Hold::Guard => match self.guards.hold((caller.client, caller.operation), first) {
                Ok(guard) => {
                    self.hold(first);
                    // The guard keeps the first in place and no other, so no other is named.
                    replicas.truncate(1);
                    Some(guard)
                }
                Err(code) => return Lookup::Failed(code),
            },
        };
        let ttl = self.config.lease_ttl;
        if hold == Hold::Lease {
            let object = self.catalog.object_mut(id);
            object.lease = after_read(object.lease, now, ttl);
            if object.is(Mark::Group) {
                let (tenant, own) = (object.tenant, object.lease);
                self.groups
                    .renew(tenant, id, own, |lease| after_read(lease, now, ttl));
            }
        }
        if self.tenants.is_on() {
            self.touch_replicas(id);
        }
        let object = self.catalog.object(id);
        Lookup::Found(Object {
            version: object.version,
            bytes: object.bytes,
            checksum: object.checksum,
            replicas: replicas.as_slice().into(),
            lease: ttl,
            guard,
        })
    }

    fn touch_replicas(&mut self, id: ObjectId) {
        let tenant = self.catalog.object(id).tenant;
        let replicas: Vec<(ReplicaId, SegmentIndex)> = self
            .catalog
            .replicas(id)
            .map(|(replica, facts)| (replica, facts.segment))
            .collect();
        for (replica, segment) in replicas {
            let ledger = self.segments.at(segment).ledger();
            self.tenants.touch(tenant, ledger, replica);
        }
    }

    /// Tells each policy of the read, with the slots of its own replicas.
    fn tell_policies(
        &mut self,
        now: Instant,
        reading: &mut Reading,
        chain: ChainPlace,
        found: u32,
    ) {
        reading.sort_resident();
        let Reading {
            links,
            resident,
            placed,
            ..
        } = reading;
        let mut tell = |segments: &mut Segments, index, mine: &[(SegmentIndex, u32, Slot)]| {
            debug_assert!(
                links.iter().all(|link| link.slot.is_none()),
                "a policy is told of its own slots alone"
            );
            placed.clear();
            placed.extend(mine.iter().map(|(_, position, _)| *position));
            placed.dedup();
            for (_, position, slot) in mine {
                links[*position as usize].slot = Some(*slot);
            }
            let walk = Walk {
                now,
                links,
                placed: Some(placed),
                parent: chain.parent,
                position: chain.position,
                found,
                hint: chain.hint,
                expect: chain.expect,
                output_tokens: chain.output_tokens,
            };
            segments.tell_policy(index, |policy| policy.read(&walk));
            for (_, position, _) in mine {
                links[*position as usize].slot = None;
            }
        };
        if self.segments.len() > SEGMENTS_TOLD {
            for mine in resident.chunk_by(|one, next| one.0 == next.0) {
                tell(&mut self.segments, mine[0].0, mine);
            }
            return;
        }
        let mut rest = resident.as_slice();
        let mut next = self.segments.from(SegmentIndex(0));
        while let Some(index) = next {
            let end = rest.partition_point(|(other, ..)| *other <= index);
            let (mine, others) = rest.split_at(end);
            rest = others;
            tell(&mut self.segments, index, mine);
            next = self.segments.from(SegmentIndex(index.0 + 1));
        }
    }

    pub(crate) fn get_end(&mut self, now: Instant, caller: &Caller, end: &GetEnd) -> Reply {
        for guard in &end.guards {
            if let Some(replica) = self.guards.end(caller.client, *guard) {
                self.unhold(now, replica);
            }
        }
        self.unsettled.room();
        Reply::Done
    }

    pub(crate) fn exists(&mut self, now: Instant, exists: &Exists) -> Reply {
        if exists.keys.len() > self.config.limits.batch_keys {
            return Reply::Failed(ErrorCode::InvalidParams);
        }
        self.metrics.probes += exists.keys.len() as u64;
        let Some(tenant) = self.tenants.find(&exists.tenant) else {
            return Reply::Exists(vec![false; exists.keys.len()]);
        };
        let mut reading = self.reading.take().unwrap_or_default();
        let mut keys = exists.keys.iter();
        reading.begin(keys.clone().map(|key| self.tenants.hash(tenant, key)));
        let mut there = Vec::with_capacity(exists.keys.len());
        for links in reading.links.chunks(WARMED_AT_ONCE) {
            // Neither extents nor policies take part in a probe.
            self.catalog.warm(links, &mut reading.ids, |_| 0);
            let step = keys.by_ref().take(links.len()).zip(links);
            there.extend(step.map(|(key, link)| self.probe(now, (tenant, key), link.hash)));
        }
        self.reading = Some(reading);
        Reply::Exists(there)
    }

    fn probe(&mut self, now: Instant, (tenant, key): (TenantIndex, &[u8]), hash: u64) -> bool {
        let Some(id) = self.catalog.find(tenant, key, hash) else {
            return false;
        };
        let ttl = self.config.lease_ttl;
        if !self.segments.is_readable(&self.catalog, id) {
            return false;
        }
        let object = self.catalog.object_mut(id);
        object.lease = after_probe(object.lease, now, ttl);
        if object.is(Mark::Group) {
            let own = object.lease;
            self.groups
                .renew(tenant, id, own, |lease| after_probe(lease, now, ttl));
        }
        true
    }
}

/// The policies that know a replica, and its slot there: the policy of its segment, and the policy of the SSD of which
/// it is a prospect.
fn known_to(
    segment: &Segment,
    replica: &Replica,
    position: u32,
) -> impl Iterator<Item = (SegmentIndex, u32, Slot)> + use<> {
    let own = (replica.segment, position, Slot(replica.slot));
    let below = segment
        .below
        .zip(replica.prospect())
        .map(|(below, slot)| (below, position, slot));
    std::iter::once(own).chain(below)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Few replicas and many segments, and the other way round: both ways of sorting say the same.
        #[test]
        fn replicas_of_a_segment_stay_in_the_order_of_the_request(
            segments in prop::collection::vec(0..40u16, 0..60),
            far in any::<bool>(),
        ) {
            let resident = segments.iter().enumerate().map(|(at, segment)| {
                let segment = if far { segment * 1_000 } else { *segment };
                (SegmentIndex(segment), at as u32 / 2, Slot(100 - at as u32))
            });
            let mut reading = Reading { resident: resident.collect(), ..Reading::default() };
            let mut expected = reading.resident.clone();
            expected.sort_by_key(|(segment, ..)| *segment);
            // What an earlier read has left is no part of it.
            for _ in 0..2 {
                reading.sort_resident();
                prop_assert_eq!(&reading.resident, &expected);
            }
        }
    }
}
