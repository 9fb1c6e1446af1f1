use std::sync::atomic::Ordering;
use std::time::{self, Duration};

use slackwater_base::{Checksum, Instant};
use slackwater_tier::arena::{Access as ArenaAccess, AccessId};
use slackwater_tier::{ReadEnd, RecordRead as Record};
use slackwater_wire::{
    Chain, DiskEntry, ErrorCode, Get, GetEnd, GuardId, Hold, Key, Lookup, Object, ReplicaAt, ReplicaClear, Reply,
    Request, limits,
};

use super::core::{Asked, Core};
use super::shared::Shared;
use super::{GetOptions, Got, MEMORY_NAME, StoreError, Tier};
use crate::disk::RecordRead;
use crate::region::{Access, Grant};

/// What a read of one key gave.
pub(super) type Outcome = Result<Option<Got>, StoreError>;

/// Where a value goes.
pub(super) enum Sink<'a> {
    /// The caller's buffer.
    Given(&'a mut [u8]),
    /// Memory that is made when the length is known.
    Fresh(Vec<u8>),
}

impl Sink<'_> {
    fn check(&self, key: &Key, need: u64) -> Result<(), StoreError> {
        match self {
            Sink::Given(buffer) if (buffer.len() as u64) < need => {
                Err(StoreError::BufferTooSmall { key: key.clone(), need, have: buffer.len() })
            }
            Sink::Given(_) | Sink::Fresh(_) => Ok(()),
        }
    }

    /// Room for exactly the `bytes` bytes that were checked for.
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        match self {
            Sink::Given(buffer) => &mut buffer[..bytes],
            Sink::Fresh(vector) => {
                vector.resize(bytes, 0);
                vector
            }
        }
    }
}

/// One request's reads, under way.
struct Reader<'s, 'b> {
    shared: &'s Shared,
    options: &'s GetOptions,
    sinks: &'s mut [Sink<'b>],
    outcomes: Vec<Outcome>,
    /// In the order of the request.
    readings: Vec<Reading>,
    guards: Vec<GuardId>,
    /// Keys whose memory replica has wrong bytes.
    rotten: Vec<Key>,
    /// How long the look-up took: part of every value's time.
    lookup: Duration,
}

/// A found object that is being read.
struct Reading {
    found: Found,
    source: Source,
}

struct Found {
    /// Position in the request.
    at: usize,
    key: Key,
    object: Object,
    /// Replicas from here on were not tried yet.
    next: usize,
}

/// The replica that is being read.
enum Source {
    Memory { grant: Grant, access: AccessId },
    Disk(Record),
}

/// What came of reading it: the checksum of what arrived, if anything did.
struct Tried {
    arrived: Option<Checksum>,
    took: Duration,
}

impl Shared {
    /// Reads values into their sinks, an outcome each.
    pub(super) fn read(&self, keys: &[&[u8]], sinks: &mut [Sink<'_>], options: &GetOptions) -> Vec<Outcome> {
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(keys.len());
        let mut chain = options.chain.clone();
        for (keys, sinks) in keys.chunks(limits::BATCH_KEYS_MAX).zip(sinks.chunks_mut(limits::BATCH_KEYS_MAX)) {
            let stopped = options.prefix_only && outcomes.iter().any(|outcome| !matches!(outcome, Ok(Some(_))));
            if stopped {
                outcomes.extend(keys.iter().map(|_| Ok(None)));
                continue;
            }
            outcomes.extend(Reader::new(self, options, sinks).run(keys, &chain));
            chain.parent = keys.last().and_then(|key| Key::new(key).ok());
            chain.position += keys.len() as u32;
        }
        outcomes
    }
}

impl<'s, 'b> Reader<'s, 'b> {
    fn new(shared: &'s Shared, options: &'s GetOptions, sinks: &'s mut [Sink<'b>]) -> Self {
        let (outcomes, readings, guards, rotten) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { shared, options, sinks, outcomes, readings, guards, rotten, lookup: Duration::ZERO }
    }

    fn run(mut self, keys: &[&[u8]], chain: &Chain) -> Vec<Outcome> {
        let mut named = Vec::with_capacity(keys.len());
        for (at, key) in keys.iter().enumerate() {
            let key = Key::new(key).map(|key| named.push((at, key)));
            self.outcomes.push(key.map(|()| None).map_err(StoreError::from));
        }
        if let Err(error) = self.read(named, chain) {
            self.outcomes.fill_with(|| Err(error.clone()));
        }
        self.outcomes
    }

    /// Looks the keys up, reads what was found outside the lock, tries the next replica where one was not what it
    /// should be, and gives the guards back.
    fn read(&mut self, named: Vec<(usize, Key)>, chain: &Chain) -> Result<(), StoreError> {
        let shared = self.shared;
        shared.check_open()?;
        let begun = time::Instant::now();
        let request = Request::Get(Get {
            tenant: self.options.tenant.clone(),
            keys: named.iter().map(|(_, key)| key.clone()).collect(),
            chain: chain.clone(),
            hold: Hold::Guard,
            prefix_only: self.options.prefix_only,
        });
        shared.with(|core, now| self.look_up(core, now, request, named))??;
        self.lookup = begun.elapsed();
        while !(self.readings.is_empty() && self.guards.is_empty()) {
            let tried = self.fetch();
            shared.with(|core, now| self.conclude(core, now, tried))?;
        }
        Ok(())
    }

    fn look_up(
        &mut self,
        core: &mut Core,
        now: Instant,
        request: Request,
        named: Vec<(usize, Key)>,
    ) -> Result<(), StoreError> {
        let lookups = match core.ask(now, request) {
            Asked::Now(Reply::Get(lookups)) => lookups,
            Asked::Now(Reply::Failed(code)) => return Err(StoreError::RefusedCall(code)),
            Asked::Now(_) | Asked::Later(_) => return Err(StoreError::RefusedCall(ErrorCode::InternalError)),
        };
        for ((at, key), lookup) in named.into_iter().zip(lookups) {
            match lookup {
                Lookup::Found(object) => {
                    self.guards.extend(object.guard);
                    match self.sinks[at].check(&key, object.bytes) {
                        Ok(()) => self.choose(core, now, Found { at, key, object, next: 0 }),
                        Err(error) => self.outcomes[at] = Err(error),
                    }
                }
                Lookup::NotReady | Lookup::Missing => {}
                Lookup::Failed(code) => self.outcomes[at] = Err(StoreError::Refused { key, code }),
            }
        }
        Ok(())
    }

    /// Begins to read the next replica that can be read; without one the key is missing.
    fn choose(&mut self, core: &mut Core, now: Instant, mut found: Found) {
        while let Some(replica) = found.object.replicas.get(found.next) {
            found.next += 1;
            if let Some(source) = self.open(core, now, &found, replica) {
                self.readings.push(Reading { found, source });
                return;
            }
        }
        self.shared.meters.misses.fetch_add(1, Ordering::Relaxed);
    }

    fn open(&self, core: &mut Core, now: Instant, found: &Found, replica: &ReplicaAt) -> Option<Source> {
        match replica {
            ReplicaAt::Memory(extent) => {
                let access = core.begin_access(extent, ArenaAccess::Read)?;
                // SAFETY: the look-up names extents that were filled and published, and until this access ends the
                // agent lets nobody write to it nor the master give it out again.
                match unsafe { self.shared.segment.grant(extent, Access::Read) } {
                    Some(grant) => Some(Source::Memory { grant, access }),
                    None => {
                        core.end_access(now, access);
                        None
                    }
                }
            }
            ReplicaAt::Disk { .. } => {
                let (tenant, key) = (self.options.tenant.clone(), found.key.clone());
                let entry = DiskEntry { tenant, key, version: found.object.version };
                core.begin_read(now, &entry).map(Source::Disk)
            }
        }
    }

    /// Copies or reads every value that is under way to its sink.
    fn fetch(&mut self) -> Vec<Tried> {
        let mut tried = Vec::with_capacity(self.readings.len());
        let (mut records, mut owners) = (Vec::new(), Vec::new());
        let mut sinks = self.sinks.iter_mut().enumerate();
        for (index, reading) in self.readings.iter().enumerate() {
            let (_, sink) =
                sinks.find(|(at, _)| *at == reading.found.at).expect("readings keep the order of the sinks");
            let room = sink.room(reading.found.object.bytes as usize);
            tried.push(Tried { arrived: None, took: Duration::ZERO });
            match &reading.source {
                Source::Memory { grant, .. } => {
                    let begun = time::Instant::now();
                    tried[index].arrived = Some(grant.copy_out(room));
                    tried[index].took = begun.elapsed();
                }
                Source::Disk(Record { file, offset, bytes, .. }) => {
                    let (file, offset, bytes) = (*file, *offset, *bytes);
                    records.push(RecordRead { file, offset, bytes, into: room, result: None, took: Duration::ZERO });
                    owners.push(index);
                }
            }
        }
        if let Some(ssd) = &self.shared.disk {
            ssd.disk.readers.read(&mut records);
        }
        for (record, owner) in records.into_iter().zip(owners) {
            let arrived = record.result.and_then(Result::ok);
            tried[owner] = Tried { arrived, took: record.took };
        }
        tried
    }

    /// Ends the reads, takes what is right, goes on to the next replica where something is not.
    fn conclude(&mut self, core: &mut Core, now: Instant, tried: Vec<Tried>) {
        for (reading, Tried { arrived, took }) in std::mem::take(&mut self.readings).into_iter().zip(tried) {
            let Reading { found, source } = reading;
            let right = arrived == Some(found.object.checksum);
            let (tier, live) = match source {
                Source::Memory { grant, access } => {
                    drop(grant);
                    (Tier::Memory, core.end_access(now, access))
                }
                Source::Disk(record) => {
                    let end = arrived.map_or(ReadEnd::Failed, ReadEnd::Checked);
                    core.end_read(now, record, end);
                    (Tier::Disk, true)
                }
            };
            if live && right {
                let bytes = found.object.bytes as usize;
                self.outcomes[found.at] = Ok(Some(Got { bytes, tier }));
                self.shared.meters.read(tier, bytes, self.lookup + took);
                continue;
            }
            if arrived.is_some() && !right {
                self.shared.meters.corrupt.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(key = %found.key, ?tier, "wrong bytes: the replica is dropped");
                if tier == Tier::Memory {
                    self.rotten.push(found.key.clone());
                }
            }
            self.choose(core, now, found);
        }
        if self.readings.is_empty() {
            self.give_back(core, now);
        }
    }

    fn give_back(&mut self, core: &mut Core, now: Instant) {
        let guards = std::mem::take(&mut self.guards);
        if !guards.is_empty() {
            core.ask(now, Request::GetEnd(GetEnd { guards }));
        }
        let keys = std::mem::take(&mut self.rotten);
        if !keys.is_empty() {
            let (tenant, segment) = (self.options.tenant.clone(), Some(MEMORY_NAME.to_owned()));
            core.ask(now, Request::ReplicaClear(ReplicaClear { tenant, keys, segment }));
        }
    }
}
