use std::sync::atomic::Ordering;
use std::time::{self, Duration};

use slackwater_base::{Checksum, Instant};
use slackwater_client::{Action, FlowOptions, GetFlow, GetOutcome, LocalFirst, ReadFailure};
use slackwater_pool::copy::Copied;
use slackwater_tier::arena::{Access as ArenaAccess, AccessId};
use slackwater_tier::io::DiskError;
use slackwater_tier::{ReadEnd, RecordRead as Record};
use slackwater_trace::{SpanKind, TraceSpan};
use slackwater_wire::{Chain, DiskEntry, ErrorCode, Get, Key, ReplicaAt, Reply, limits};

use super::apart::read_apart;
use super::copier::READ_BYTES_MIN;
use super::core::{Asked, Core};
use super::shared::Shared;
use super::sink::Sink;
use super::views::{Hold, OpenView};
use super::{GetOptions, Got, StoreError, Tier, Verify};
use crate::disk::RecordRead;
use crate::region::{Access, Grant, copy_out_all};

/// What a read of one key gave.
pub(super) type Outcome = Result<Option<Got>, StoreError>;

/// One request's reads, under way: the flow decides, this moves the bytes.
pub(super) struct Reader<'s, 'b> {
    shared: &'s Shared,
    options: &'s GetOptions,
    sinks: &'s mut [Sink<'b>],
    /// The keys that are keys, with their positions in the request.
    keys: Vec<Key>,
    places: Vec<usize>,
    /// The answer to the first look-up, if it was made already.
    answer: Option<Reply>,
    outcomes: Vec<Outcome>,
    actions: Vec<Action>,
    /// In the order of the request.
    readings: Vec<Reading>,
    /// How long the look-up took: part of every value's time.
    lookup: Duration,
}

/// A value that is being read.
struct Reading {
    /// Which item of the flow.
    index: usize,
    bytes: usize,
    checksum: Checksum,
    source: Source,
}

/// The replica that it is read from.
enum Source {
    Memory { grant: Grant, access: AccessId },
    Disk(Record),
}

/// What came of reading it: the checksum of what arrived, or why nothing did.
struct Tried {
    arrived: Result<Checksum, DiskError>,
    took: Duration,
}

/// How a read ends that was not tried: it says nothing about the record.
const UNREAD: DiskError = DiskError::Resources { errno: 0 };

impl Shared {
    /// Reads values into their sinks, an outcome each.
    pub(super) fn read(
        &self,
        keys: &[&[u8]],
        mut sinks: &mut [Sink<'_>],
        options: &GetOptions,
    ) -> Vec<Outcome> {
        let read = |keys: &[&[u8]], chain: &Chain| {
            let (own, rest) = std::mem::take(&mut sinks).split_at_mut(keys.len());
            sinks = rest;
            Reader::new(self, options, own).run(keys, chain)
        };
        let span = TraceSpan::root("slackwater.get", SpanKind::Internal).keys(keys.len());
        let read = || in_pieces(keys, options, read);
        span.read_each(read, |got: &Got| got.bytes, StoreError::code)
    }
}

/// Looks keys up in pieces of what one request takes, each with its place in the chain.
pub(super) fn in_pieces<T>(
    keys: &[&[u8]],
    options: &GetOptions,
    mut look_up: impl FnMut(&[&[u8]], &Chain) -> Vec<Result<Option<T>, StoreError>>,
) -> Vec<Result<Option<T>, StoreError>> {
    if keys.len() <= limits::BATCH_KEYS_MAX {
        return look_up(keys, &options.chain);
    }
    let mut outcomes = Vec::with_capacity(keys.len());
    let mut chain = options.chain.clone();
    for keys in keys.chunks(limits::BATCH_KEYS_MAX) {
        let stopped = options.prefix_only
            && outcomes
                .iter()
                .any(|outcome| !matches!(outcome, Ok(Some(_))));
        if stopped {
            outcomes.extend(keys.iter().map(|_| Ok(None)));
            continue;
        }
        outcomes.extend(look_up(keys, &chain));
        chain.parent = keys.last().and_then(|key| Key::new(key).ok());
        chain.position = chain.position.saturating_add(keys.len() as u32);
    }
    outcomes
}

impl Shared {
    /// Copies pieces of memory to where they are wanted, with several threads when there is enough to copy.
    fn copy_out(&self, pieces: &mut [(&Grant, &mut [u8])]) -> Vec<Tried> {
        let bytes = pieces.iter().map(|(_, room)| room.len()).sum();
        let Some(pool) = self.copier.pool(bytes, READ_BYTES_MIN) else {
            let alone = |(grant, room): &mut (&Grant, &mut [u8])| {
                let begun = time::Instant::now();
                Tried {
                    arrived: Ok(grant.copy_out(room)),
                    took: begun.elapsed(),
                }
            };
            return pieces.iter_mut().map(alone).collect();
        };
        let tried = |copied: Copied| Tried {
            arrived: Ok(copied.checksum),
            took: copied.took,
        };
        copy_out_all(pool, pieces).into_iter().map(tried).collect()
    }
}

impl<'s, 'b> Reader<'s, 'b> {
    pub(super) fn new(
        shared: &'s Shared,
        options: &'s GetOptions,
        sinks: &'s mut [Sink<'b>],
    ) -> Self {
        let (keys, places, outcomes) = (Vec::new(), Vec::new(), Vec::new());
        let (actions, readings) = (Vec::new(), Vec::new());
        Self {
            shared,
            options,
            sinks,
            keys,
            places,
            answer: None,
            outcomes,
            actions,
            readings,
            lookup: Duration::ZERO,
        }
    }

    /// Goes on from this answer of the master to the look-up of all keys.
    pub(super) fn answered(self, answer: Option<Reply>) -> Self {
        Self { answer, ..self }
    }

    pub(super) fn run(mut self, keys: &[&[u8]], chain: &Chain) -> Vec<Outcome> {
        for (at, key) in keys.iter().enumerate() {
            match Key::new(key) {
                Ok(key) => {
                    self.keys.push(key);
                    self.places.push(at);
                    self.outcomes.push(Ok(None));
                }
                Err(error) => self.outcomes.push(Err(error.into())),
            }
        }
        if let Err(error) = self.read(chain) {
            self.outcomes.fill_with(|| Err(error.clone()));
        }
        self.outcomes
    }

    /// Looks the keys up, moves bytes outside the lock, and goes on as the flow wants until it has every outcome.
    fn read(&mut self, chain: &Chain) -> Result<(), StoreError> {
        let shared = self.shared;
        shared.check_open()?;
        let begun = time::Instant::now();
        let get = Get {
            tenant: self.options.tenant.clone(),
            keys: self.keys.clone(),
            chain: chain.clone(),
            hold: slackwater_wire::Hold::Guard,
            prefix_only: self.options.prefix_only,
        };
        let now = shared.clock.now();
        let options = FlowOptions::once(now + shared.config.deadline);
        // The master names a replica in memory before one on SSD, and all of them are this process's.
        let pick = Box::new(LocalFirst::default());
        let mut flow = GetFlow::start(now, get, options, pick, &mut self.actions);
        let is_asked = self.answer.is_none();
        shared.with(|core, now| self.act(core, now, &mut flow))?;
        self.lookup = begun.elapsed();
        if is_asked {
            shared.meters.phases.look_up.add(self.lookup);
        }
        while !self.readings.is_empty() {
            let tried = self.fetch();
            self.promote(&tried)?;
            shared.with(|core, now| self.conclude(core, now, &mut flow, tried))?;
        }
        for (index, outcome) in flow.outcomes().into_iter().flatten().enumerate() {
            self.settle(index, outcome);
        }
        Ok(())
    }

    /// Does what the flow wants, as far as it needs the lock.
    fn act(&mut self, core: &mut Core, now: Instant, flow: &mut GetFlow) {
        while !self.actions.is_empty() {
            for action in std::mem::take(&mut self.actions) {
                match action {
                    Action::Ask { operation, request } => {
                        let asked = match self.answer.take() {
                            Some(reply) => Asked::Now(reply),
                            None => core.ask(now, request),
                        };
                        match asked {
                            Asked::Now(reply) => {
                                flow.on_reply(now, operation, reply, &mut self.actions)
                            }
                            Asked::Later(_) => flow.on_link_lost(now, &mut self.actions),
                        }
                    }
                    Action::Tell { request, .. } => _ = core.ask(now, request),
                    Action::Read {
                        index,
                        key,
                        version,
                        bytes,
                        checksum,
                        from,
                        ..
                    } => {
                        let entry = DiskEntry {
                            tenant: self.options.tenant.clone(),
                            key,
                            version,
                        };
                        match self.open(core, now, (index, bytes, checksum), &entry, &from) {
                            Ok(source) => {
                                let bytes = bytes as usize;
                                let reading = Reading {
                                    index,
                                    bytes,
                                    checksum,
                                    source,
                                };
                                if self.is_shown_unread(&reading) {
                                    let shown = self.show(core, now, flow, reading, self.lookup);
                                    flow.on_read(now, index, shown, &mut self.actions);
                                } else {
                                    self.readings.push(reading);
                                }
                            }
                            Err(failure) => {
                                flow.on_read(now, index, Err(failure), &mut self.actions)
                            }
                        }
                    }
                    Action::Cancel { index } => self.cancel(core, now, index, flow),
                    Action::Write { .. } => unreachable!("a flow that reads does not write"),
                }
            }
        }
    }

    /// Ends a read whose bytes are not moving: under the lock none are, as they move between two holds of it.
    fn cancel(&mut self, core: &mut Core, now: Instant, index: usize, flow: &mut GetFlow) {
        let same = |reading: &Reading| reading.index == index;
        if let Some(at) = self.readings.iter().position(same) {
            match self.readings.remove(at).source {
                Source::Memory { grant, access } => {
                    drop(grant);
                    core.end_access(now, access);
                }
                Source::Disk(record) => {
                    core.end_read(now, record, (ReadEnd::Failed(UNREAD), Duration::ZERO))
                }
            }
        }
        let cancelled = Err(ReadFailure::Cancelled);
        flow.on_read(now, index, cancelled, &mut self.actions);
    }

    fn open(
        &mut self,
        core: &mut Core,
        now: Instant,
        (index, bytes, checksum): (usize, u64, Checksum),
        entry: &DiskEntry,
        from: &ReplicaAt,
    ) -> Result<Source, ReadFailure> {
        let at = self.places[index];
        if !self.sinks[at].fits(bytes) {
            let have = if let Sink::Given(buffer) = &self.sinks[at] {
                buffer.len()
            } else {
                0
            };
            self.outcomes[at] = Err(StoreError::BufferTooSmall {
                key: entry.key.clone(),
                need: bytes,
                have,
            });
            return Err(ReadFailure::BufferTooSmall);
        }
        match from {
            ReplicaAt::Memory(extent) => {
                let access = core
                    .begin_access(extent, ArenaAccess::Read)
                    .ok_or(ReadFailure::Stale)?;
                // SAFETY: the look-up names extents that were filled and published, and until this access ends the
                // agent lets nobody write to it nor the master give it out again.
                match unsafe { self.shared.segment.grant(extent, Access::Read) } {
                    Some(grant) => Ok(Source::Memory { grant, access }),
                    None => {
                        core.end_access(now, access);
                        Err(ReadFailure::Stale)
                    }
                }
            }
            ReplicaAt::Disk { .. } => {
                let record = core.begin_read(now, entry).ok_or(ReadFailure::Stale)?;
                // What a client in another process says of a record may be wrong, and nothing is wrong with the record.
                if (record.length, record.checksum) != (bytes, checksum) {
                    core.end_read(now, record, (ReadEnd::Failed(UNREAD), Duration::ZERO));
                    return Err(ReadFailure::Stale);
                }
                Ok(Source::Disk(record))
            }
        }
    }

    /// Copies or reads every value that is under way to its sink.
    fn fetch(&mut self) -> Vec<Tried> {
        let mut tried: Vec<Tried> = Vec::with_capacity(self.readings.len());
        let (mut records, mut record_owners) = (Vec::new(), Vec::new());
        let (mut pieces, mut piece_owners) = (Vec::new(), Vec::new());
        let mut sinks = self.sinks.iter_mut().enumerate();
        for (
            number,
            Reading {
                index,
                bytes,
                source,
                ..
            },
        ) in self.readings.iter().enumerate()
        {
            let place = self.places[*index];
            let (_, sink) = sinks
                .find(|(at, _)| *at == place)
                .expect("readings keep the order of the sinks");
            tried.push(Tried {
                arrived: Err(UNREAD),
                took: Duration::ZERO,
            });
            if let (Source::Memory { grant, .. }, Sink::View(_)) = (source, &*sink) {
                let begun = time::Instant::now();
                tried[number].arrived = Ok(grant.checksum(*bytes));
                tried[number].took = begun.elapsed();
                continue;
            }
            let Some(room) = sink.room(*bytes) else {
                let (key, bytes) = (self.keys[*index].clone(), *bytes as u64);
                self.outcomes[place] = Err(StoreError::NoViewBuffer { key, bytes });
                continue;
            };
            match source {
                Source::Memory { grant, .. } => {
                    pieces.push((grant, room));
                    piece_owners.push(number);
                }
                Source::Disk(Record {
                    file,
                    offset,
                    bytes,
                    ..
                }) => {
                    let (file, offset, bytes) = (*file, *offset, *bytes);
                    records.push(RecordRead {
                        file,
                        offset,
                        bytes,
                        into: room,
                        result: None,
                        took: Duration::ZERO,
                        waited: Duration::ZERO,
                    });
                    record_owners.push(number);
                }
            }
        }
        for (piece, owner) in self
            .shared
            .copy_out(&mut pieces)
            .into_iter()
            .zip(piece_owners)
        {
            tried[owner] = piece;
        }
        if let Some(ssd) = self.shared.disk.as_ref().filter(|_| !records.is_empty()) {
            let mut span = TraceSpan::here("slackwater.ssd_read", SpanKind::Internal);
            let bytes: usize = records.iter().map(|record| record.into.len()).sum();
            span.note("slackwater.bytes", bytes as u64);
            ssd.disk.readers.read(&mut records);
            for (record, owner) in records.iter_mut().zip(&record_owners) {
                let expected = self.readings[*owner].checksum;
                read_apart(record, expected, |again| ssd.disk.readers.read(again));
            }
        }
        for (record, owner) in records.into_iter().zip(record_owners) {
            self.shared.meters.phases.read(&record);
            tried[owner] = Tried {
                arrived: record.result.unwrap_or(Err(UNREAD)),
                took: record.took,
            };
        }
        tried
    }

    /// Copies what was read from SSD to where promotions want it, so that the device is not asked for it again. Each copy
    /// gives a promotion's slot to the next one, whose bytes may be here as well.
    fn promote(&mut self, tried: &[Tried]) -> Result<(), StoreError> {
        let shared = self.shared;
        // A promotion may have begun to wait while the bytes came: where the master is another process, its order takes the longer way.
        let of_disk = |reading: &Reading| matches!(reading.source, Source::Disk(_));
        let mut expected = self.readings.iter().any(of_disk);
        while expected {
            let mut copies = Vec::new();
            shared.with(|core, now| {
                for (reading, tried) in self.readings.iter().zip(tried) {
                    let Source::Disk(record) = &reading.source else {
                        continue;
                    };
                    if tried.arrived != Ok(record.checksum) {
                        continue;
                    }
                    let Some((ticket, extent)) = core.promotion_of(record) else {
                        continue;
                    };
                    // SAFETY: the agent reserved the extent for this promotion and lets nobody else touch it until it
                    // hears that the bytes are there, or that they are not.
                    match unsafe { shared.segment.grant(&extent, Access::Write) } {
                        Some(grant) => copies.push((reading, ticket, grant)),
                        None => core.copied(now, ticket, Checksum(!record.checksum.0)),
                    }
                }
            })?;
            let mut copied = Vec::with_capacity(copies.len());
            for (reading, ticket, mut grant) in copies {
                let sink = &self.sinks[self.places[reading.index]];
                copied.push((ticket, grant.copy_in(sink.bytes(reading.bytes))));
            }
            expected = shared.with(|core, now| {
                for (ticket, found) in &copied {
                    core.copied(now, *ticket, *found);
                }
                !copied.is_empty() && core.expects_readers()
            })?;
        }
        Ok(())
    }

    /// Ends the reads, tells the flow their outcomes, and does what it wants next.
    fn conclude(&mut self, core: &mut Core, now: Instant, flow: &mut GetFlow, tried: Vec<Tried>) {
        for (reading, Tried { arrived, took }) in
            std::mem::take(&mut self.readings).into_iter().zip(tried)
        {
            if let Sink::View(_) = self.sinks[self.places[reading.index]]
                && arrived == Ok(reading.checksum)
            {
                let index = reading.index;
                let shown = self.show(core, now, flow, reading, self.lookup + took);
                flow.on_read(now, index, shown, &mut self.actions);
                continue;
            }
            let Reading {
                index,
                bytes,
                checksum,
                source,
            } = reading;
            let (tier, live) = match source {
                Source::Memory { grant, access } => {
                    drop(grant);
                    (Tier::Memory, core.end_access(now, access))
                }
                Source::Disk(record) => {
                    let end = arrived.map_or_else(ReadEnd::Failed, ReadEnd::Checked);
                    core.end_read(now, record, (end, took));
                    (Tier::Disk, true)
                }
            };
            let result = match arrived {
                _ if !live => Err(ReadFailure::Stale),
                Ok(arrived) => Ok(arrived),
                Err(_) => Err(ReadFailure::Transfer),
            };
            if result == Ok(checksum) {
                self.shared.meters.read(tier, bytes, self.lookup + took);
            } else if result.is_ok() {
                let of_memory = u64::from(tier == Tier::Memory);
                self.shared
                    .meters
                    .corrupt_memory
                    .fetch_add(of_memory, Ordering::Relaxed);
                tracing::warn!(key = %self.keys[index], ?tier, "wrong bytes: the replica is dropped");
            }
            flow.on_read(now, index, result, &mut self.actions);
        }
        if flow.next_deadline().is_some_and(|deadline| deadline <= now) {
            // Other replicas would be read after the call's time.
            flow.on_deadline(now, &mut self.actions);
        }
        self.act(core, now, flow);
        // A replica that is tried instead of another joins behind those before it.
        self.readings.sort_by_key(|reading| reading.index);
    }

    /// Whether a view shows these bytes as they are: they were verified when they came into memory.
    fn is_shown_unread(&self, reading: &Reading) -> bool {
        let sink = &self.sinks[self.places[reading.index]];
        matches!(sink, Sink::View(viewing) if viewing.verify == Verify::OnArrival)
            && matches!(reading.source, Source::Memory { .. })
    }

    /// Leaves the bytes of a reading to its view instead of ending it. The view is refused as one without room is: no
    /// other replica would help.
    fn show(
        &mut self,
        core: &mut Core,
        now: Instant,
        flow: &mut GetFlow,
        reading: Reading,
        took: Duration,
    ) -> Result<Checksum, ReadFailure> {
        let Reading {
            index,
            bytes,
            checksum,
            source,
        } = reading;
        let at = self.places[index];
        let Sink::View(viewing) = &mut self.sinks[at] else {
            unreachable!("what is shown goes to a view");
        };
        let admitted = core.views.admit(now);
        let hold = match source {
            Source::Memory { grant, access } if admitted.is_ok() => {
                viewing.found(grant, bytes);
                let guard = flow.take_guard(index);
                Some(Hold::Extent { access, guard })
            }
            Source::Memory { access, .. } => {
                core.end_access(now, access);
                None
            }
            Source::Disk(record) => {
                core.end_read(now, record, (ReadEnd::Checked(checksum), took));
                admitted.is_ok().then_some(Hold::Buffer)
            }
        };
        let Some(hold) = hold else {
            self.outcomes[at] = admitted.map(|()| None);
            return Err(ReadFailure::BufferTooSmall);
        };
        let tier = hold.tier();
        let view = OpenView {
            tenant: self.options.tenant.clone(),
            key: self.keys[index].clone(),
            bytes,
            hold,
        };
        viewing.opened(core.views.open(now, view), tier);
        self.shared.meters.read(tier, bytes, took);
        Ok(checksum)
    }

    fn settle(&mut self, index: usize, outcome: GetOutcome) {
        let at = self.places[index];
        if self.outcomes[at].is_err() {
            return;
        }
        self.outcomes[at] = match outcome {
            GetOutcome::Hit { bytes, from } => {
                let tier = if matches!(from, ReplicaAt::Memory(_)) {
                    Tier::Memory
                } else {
                    Tier::Disk
                };
                Ok(Some(Got {
                    bytes: bytes as usize,
                    tier,
                }))
            }
            GetOutcome::Miss => Ok(None),
            // A put of it is under way: for a reader it is not there yet. An SSD that cannot be read is none.
            GetOutcome::Failed(ErrorCode::ReplicaIsNotReady | ErrorCode::TransferFail) => Ok(None),
            GetOutcome::Failed(code) => Err(StoreError::Refused {
                key: self.keys[index].clone(),
                code,
            }),
        };
    }
}

#[cfg(test)]
mod tests;
