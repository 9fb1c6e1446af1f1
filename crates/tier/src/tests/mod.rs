//! One node on a disk in memory, with a master that remembers every report.

mod announce;
mod crash;
mod emptying;
mod faults;
mod opening;
mod orders;
mod outage;
mod random;
mod resurrection;
mod reuse;
mod room;
mod stories;
mod writes;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use slackwater_base::{ByteSize, Checksum, Instant, Rng};
use slackwater_wire::{
    DiskEntry, DiskState, ExtentRef, Incarnation, Key, NodeId, OffloadTask, Order, PromoteTask,
    PromotionFailure, Published, Report, SegmentId, TaskFailure, Tenant, TicketId, Version,
};

use crate::arena::MemorySegment;
use crate::format::{Decoded, Identity, decode_batch};
use crate::io::{DiskError, DiskOp, FileId};
use crate::testing::{Crash, MemDisk, Memory};
use crate::{Agent, AgentConfig, AgentInput, AgentOutput, FormatError, LogConfig, Opened, ReadEnd};

const MEMORY: SegmentId = SegmentId(1);
const DISK: SegmentId = SegmentId(2);
const ARENA_BYTES: u64 = 4 << 20;
const FRESH: u128 = 0x5eed_5eed_5eed;
const EIO: DiskError = DiskError::Device { errno: 5 };
const BLOCK: usize = 4096;

/// The bytes of the arena.
struct Bytes(Vec<u8>);

impl Memory for Bytes {
    fn read(&self, extent: ExtentRef, length: u64) -> Vec<u8> {
        self.0[extent.offset as usize..(extent.offset + length) as usize].to_vec()
    }

    fn write(&mut self, extent: ExtentRef, bytes: &[u8]) {
        self.0[extent.offset as usize..extent.offset as usize + bytes.len()].copy_from_slice(bytes);
    }
}

/// What the master knows of a key, by version.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Versions that were ordered to be written, and their lengths.
    ordered: BTreeMap<u64, u64>,
    /// The highest version that was reported as durable.
    durable: u64,
    /// The highest version whose drop was ordered, and reported.
    drop_ordered: u64,
    dropped: u64,
    /// The highest version that was reported as lost.
    lost: u64,
}

/// Keys, and the versions of them that are dropped.
type Dead = Vec<(Vec<u8>, u64)>;

/// One node, its disk, and its master.
struct World {
    agent: Agent,
    config: AgentConfig,
    crashed: bool,
    /// The medium flips bits: records may be lost, but no wrong bytes are returned and nothing
    /// dropped comes back.
    rotten: bool,
    disk: MemDisk,
    bytes: Bytes,
    now: Instant,
    log: LogConfig,
    incarnation: u64,
    generation: u64,
    next_ticket: u64,
    free: Vec<ExtentRef>,
    offloads: BTreeMap<TicketId, (DiskEntry, ExtentRef, bool)>,
    known: BTreeMap<Vec<u8>, Known>,
    announced: BTreeMap<Vec<u8>, u64>,
    opened: Option<Opened>,
    refused: Option<FormatError>,
    results: BTreeMap<TicketId, Result<(), TaskFailure>>,
    promoted: BTreeMap<TicketId, ExtentRef>,
    promotions_failed: BTreeMap<TicketId, PromotionFailure>,
    stages: Vec<(TicketId, u64)>,
    fenced: Vec<ExtentRef>,
    retired: Vec<ExtentRef>,
    holds: Vec<Published>,
    /// What was said ahead of its turn.
    ahead: Vec<Published>,
    /// Records were asked for: they are announced twice.
    asked_records: bool,
    /// Segments of which everything was announced.
    told_all: Vec<SegmentId>,
    lost: Vec<DiskEntry>,
    dropped: Vec<DiskEntry>,
    /// What was said to be written again, and what the master drops of it.
    emptying: Vec<DiskEntry>,
    worthless: BTreeSet<Vec<u8>>,
    answers: Vec<(Instant, Dead)>,
    flushed: BTreeSet<u64>,
    stopped: Option<usize>,
    state: Option<DiskState>,
    /// How often the state was reported.
    states: usize,
    /// Bytes that the log's last report asked to have dropped, less what was dropped since: a
    /// master acts on each report once.
    asked: u64,
    queue: Vec<AgentOutput>,
}

/// Of a master that drops nothing of what is to be written again.
fn small_log(capacity: u64) -> LogConfig {
    LogConfig {
        file_bytes: 128 << 10,
        batch_bytes: 32 << 10,
        batch_delay: Duration::from_millis(100),
        announce_entries_max: 7,
        recovery_reads_max: 3,
        reclaim_bytes_in_flight_max: 24 << 10,
        reclaim_answer_wait: Duration::ZERO,
        ..LogConfig::new(DISK, ByteSize(capacity))
    }
}

/// Promotions here have no readers: the device reads for them at once.
fn agent_config() -> AgentConfig {
    AgentConfig {
        promotion_reader_wait: Duration::ZERO,
        ..AgentConfig::new(NodeId(0))
    }
}

fn entry(key: &[u8], version: u64) -> DiskEntry {
    DiskEntry {
        tenant: Tenant::DEFAULT,
        key: Key::new(key).unwrap(),
        version: Version(version),
    }
}

/// A world with records `0..count` of version 1, each in a batch of its own.
fn world_of(count: u8, length: u64) -> World {
    let mut world = World::new(small_log(2 << 20), u64::from(count));
    for key in 0..count {
        world.put(&[key], 1, length);
        world.rest();
    }
    assert!(world.results.values().all(Result::is_ok));
    world
}

/// The bytes of a version of a key: they name their key and version.
fn value_of(entry: &DiskEntry, length: u64) -> Vec<u8> {
    let seed =
        slackwater_base::hash64(entry.key.as_bytes()) ^ entry.version.0.wrapping_mul(0x9e37_79b9);
    let mut bytes = vec![0; length as usize];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

impl World {
    fn new(log: LogConfig, seed: u64) -> Self {
        Self::with(log, agent_config(), seed)
    }

    fn with(log: LogConfig, config: AgentConfig, seed: u64) -> Self {
        let disk = MemDisk::new(log.capacity * 2, seed);
        let mut world = Self {
            agent: Agent::new(config.clone()),
            config,
            crashed: false,
            rotten: false,
            disk,
            bytes: Bytes(vec![0; ARENA_BYTES as usize]),
            now: Instant::from_nanos(1),
            log,
            incarnation: 0,
            generation: 0,
            next_ticket: 0,
            free: Vec::new(),
            offloads: BTreeMap::new(),
            known: BTreeMap::new(),
            announced: BTreeMap::new(),
            opened: None,
            refused: None,
            results: BTreeMap::new(),
            promoted: BTreeMap::new(),
            promotions_failed: BTreeMap::new(),
            stages: Vec::new(),
            fenced: Vec::new(),
            retired: Vec::new(),
            holds: Vec::new(),
            ahead: Vec::new(),
            asked_records: false,
            told_all: Vec::new(),
            lost: Vec::new(),
            dropped: Vec::new(),
            emptying: Vec::new(),
            worthless: BTreeSet::new(),
            answers: Vec::new(),
            flushed: BTreeSet::new(),
            stopped: None,
            state: None,
            states: 0,
            asked: 0,
            queue: Vec::new(),
        };
        world.boot();
        world
    }

    /// Starts a process over what the disk holds.
    fn boot(&mut self) {
        self.incarnation += 1;
        let log = Some(self.log.clone());
        self.agent = Agent::new(AgentConfig {
            log,
            ..self.config.clone()
        });
        let incarnation = Incarnation(self.incarnation);
        self.agent.add_segment(MemorySegment {
            segment: MEMORY,
            incarnation,
            bytes: ARENA_BYTES,
            granule: 4096,
        });
        let size = 64 << 10;
        self.free = (0..ARENA_BYTES / size)
            .map(|at| ExtentRef {
                segment: MEMORY,
                incarnation,
                offset: at * size,
                bytes: size,
                generation: 0,
            })
            .collect();
        self.offloads.clear();
        self.announced.clear();
        self.opened = None;
        (self.state, self.asked) = (None, 0);
        self.stopped = None;
        self.disk.sync_names();
        self.give(AgentInput::Open {
            files: self.disk.files(),
            fresh: FRESH,
        });
    }

    fn crash(&mut self, crash: Crash) {
        self.crashed = true;
        self.disk.crash(crash, &self.bytes);
        self.boot();
    }

    /// Starts again after `crash`, on a log that opens.
    fn reopen(&mut self, crash: Crash, moment: &str) -> Opened {
        self.crash(crash);
        self.rest();
        assert_eq!(self.refused, None, "{moment}");
        self.opened
            .unwrap_or_else(|| panic!("{moment}: the log opens"))
    }

    fn give(&mut self, input: AgentInput) {
        let mut out = std::mem::take(&mut self.queue);
        self.agent.handle(self.now, input, &mut out);
        self.take(out);
    }

    /// What the master drops of what it heard a millisecond before that time.
    fn answer(&mut self, until: Instant) {
        while let Some((at, _)) = self.answers.first().filter(|(at, _)| *at <= until) {
            self.now = self.now.max(*at);
            let (_, dropped) = self.answers.remove(0);
            self.remove_all(dropped);
        }
    }

    fn take(&mut self, mut out: Vec<AgentOutput>) {
        for output in out.drain(..) {
            match output {
                AgentOutput::Disk { op, request } => {
                    check_request(&request);
                    self.disk.submit(op, request);
                }
                AgentOutput::Report(report) => self.report(report),
                AgentOutput::Opened(opened) => self.opened = Some(opened),
                AgentOutput::Refused(error) => self.refused = Some(error),
                AgentOutput::Flushed(number) => {
                    assert!(self.flushed.insert(number), "flush {number} answered twice")
                }
                AgentOutput::Stopped { lost, .. } => self.stopped = Some(lost),
            }
        }
        self.queue = out;
    }

    fn report(&mut self, report: Report) {
        match report {
            Report::Offloaded(done) => {
                for (ticket, result) in done {
                    let (entry, extent, promised) = self
                        .offloads
                        .remove(&ticket)
                        .expect("an offload is answered once");
                    self.generation += 1;
                    self.bytes.0[extent.offset as usize..][..extent.bytes as usize].fill(0xdd);
                    self.free.push(ExtentRef {
                        generation: self.generation,
                        ..extent
                    });
                    if result.is_ok() && promised {
                        let known = self.known.entry(entry.key.as_bytes().to_vec()).or_default();
                        known.durable = known.durable.max(entry.version.0);
                    }
                    self.results.insert(ticket, result);
                }
            }
            Report::Dropped(entries) => {
                for entry in entries {
                    let known = self.known.entry(entry.key.as_bytes().to_vec()).or_default();
                    known.dropped = known.dropped.max(entry.version.0);
                    self.dropped.push(entry);
                }
            }
            Report::Lost(entries) => {
                for entry in entries {
                    let known = self.known.entry(entry.key.as_bytes().to_vec()).or_default();
                    known.lost = known.lost.max(entry.version.0);
                    self.lost.push(entry);
                }
            }
            Report::Emptying(entries) => {
                let worthless = entries.iter().filter_map(|entry| {
                    let key = entry.key.as_bytes();
                    (self.worthless.contains(key)).then(|| (key.to_vec(), entry.version.0))
                });
                let answer = (self.now + Duration::from_millis(1), worthless.collect());
                self.answers.push(answer);
                self.emptying.extend(entries);
            }
            Report::Announce { segment, entries } => {
                assert_eq!(segment, DISK);
                assert!(!entries.is_empty() && entries.len() <= self.log.announce_entries_max);
                for reported in entries {
                    let value = value_of(&reported.entry, reported.bytes);
                    assert_eq!(
                        reported.checksum,
                        Checksum::of(&value),
                        "{:?}",
                        reported.entry
                    );
                    let key = reported.entry.key.as_bytes().to_vec();
                    let known = &self.known[&key];
                    let gone = known.dropped.max(known.lost);
                    assert!(
                        reported.entry.version.0 > gone,
                        "{:?} came back, gone {gone}",
                        reported.entry
                    );
                    let before = self.announced.insert(key, reported.entry.version.0);
                    assert!(before.is_none() || self.asked_records, "announced twice");
                }
            }
            Report::Holds {
                segment,
                entries,
                ahead,
            } => {
                assert!(segment == MEMORY && !entries.is_empty());
                assert!(entries.len() <= self.config.announce_extents_max);
                let told = if ahead {
                    &mut self.ahead
                } else {
                    &mut self.holds
                };
                told.extend(entries);
            }
            Report::Announced { segment, .. } if segment == MEMORY => self.told_all.push(segment),
            Report::Announced { segment, highest } => {
                assert_eq!(segment, DISK);
                self.told_all.push(segment);
                let newest = self.announced.values().max().copied().unwrap_or_default();
                assert!(
                    highest.0 >= newest,
                    "{highest} is below an announced version, {newest}"
                );
            }
            Report::Stage { ticket, bytes } => self.stages.push((ticket, bytes)),
            Report::Promoted { ticket, extent } => {
                self.promoted.insert(ticket, extent);
            }
            Report::PromotionFailed { ticket, failure } => {
                self.promotions_failed.insert(ticket, failure);
            }
            Report::Fenced(extents) => self.fenced.extend(extents),
            Report::Retired(extents) => self.retired.extend(extents),
            Report::Disk(state) => {
                self.asked = state.pressure;
                self.state = Some(state);
                self.states += 1;
            }
        }
    }

    fn ticket(&mut self) -> TicketId {
        self.next_ticket += 1;
        TicketId(self.next_ticket)
    }

    /// Orders a version of a key to be written, and to be durable when its end is reported.
    fn put(&mut self, key: &[u8], version: u64, length: u64) -> TicketId {
        self.order_offload(key, version, length, true)
    }

    /// Orders a version of a key to be written for which nobody waits.
    fn offer(&mut self, key: &[u8], version: u64, length: u64) -> TicketId {
        self.order_offload(key, version, length, false)
    }

    fn order_offload(&mut self, key: &[u8], version: u64, length: u64, promised: bool) -> TicketId {
        let entry = entry(key, version);
        let value = value_of(&entry, length);
        let source = self
            .free
            .pop()
            .expect("the arena is large enough for what is in flight");
        self.bytes.write(source, &value);
        let ticket = self.ticket();
        self.known
            .entry(key.to_vec())
            .or_default()
            .ordered
            .insert(version, length);
        self.offloads
            .insert(ticket, (entry.clone(), source, promised));
        let task = OffloadTask {
            ticket,
            entry,
            bytes: length,
            checksum: Checksum::of(&value),
            source,
            promised,
        };
        self.give(AgentInput::Order(Order::Offload(vec![task])));
        ticket
    }

    fn remove(&mut self, key: &[u8], version: u64) {
        self.remove_all([(key.to_vec(), version)]);
    }

    /// Removes several by one order.
    fn remove_all(&mut self, keys: impl IntoIterator<Item = (Vec<u8>, u64)>) {
        let mut entries = Vec::new();
        for (key, version) in keys {
            entries.push(entry(&key, version));
            let known = self.known.entry(key).or_default();
            known.drop_ordered = known.drop_ordered.max(version);
        }
        self.give(AgentInput::Order(Order::Drop(entries)));
    }

    fn promote(&mut self, key: &[u8], version: u64, length: u64) -> TicketId {
        let entry = entry(key, version);
        let ticket = self.ticket();
        let checksum = Checksum::of(&value_of(&entry, length));
        self.give(AgentInput::Order(Order::Promote(vec![PromoteTask {
            ticket,
            entry,
            bytes: length,
            checksum,
        }])));
        ticket
    }

    /// Ends one operation of the disk; false when there is none.
    fn complete(&mut self) -> bool {
        self.now += Duration::from_micros(10);
        self.answer(self.now);
        match self.disk.complete(&mut self.bytes) {
            Some(done) => {
                self.give(AgentInput::Disk(done));
                true
            }
            None => false,
        }
    }

    /// Ends one operation, which fails if it is a sync; says whether it was one.
    fn complete_sync(&mut self, error: DiskError) -> bool {
        let sync = self.disk.next_is_sync();
        if sync {
            self.disk.fail_at(self.disk.completed(), error);
        }
        assert!(self.complete(), "a sync is under way");
        sync
    }

    /// Lets the time of the next deadline come, which there is.
    fn step_to_deadline(&mut self) {
        let at = self.agent.next_deadline().expect("something falls due");
        self.fall_due(at);
    }

    fn fall_due(&mut self, at: Instant) {
        self.answer(at);
        self.now = self.now.max(at);
        let mut out = std::mem::take(&mut self.queue);
        self.agent.on_deadline(self.now, &mut out);
        self.take(out);
    }

    /// Does what is due at once, which is what earlier steps left.
    fn catch_up(&mut self) {
        for _ in 0..10_000 {
            match self.agent.next_deadline() {
                Some(at) if at <= self.now => self.fall_due(at),
                _ => return,
            }
        }
        panic!("a deadline that has passed would spin");
    }

    /// Ends operations until there are none; time advances only for them.
    fn drain(&mut self) {
        for _ in 0..100_000 {
            if !self.complete() {
                return;
            }
        }
        panic!("the disk is never idle");
    }

    /// Ends operations until the offload is answered.
    fn until_answered(&mut self, ticket: TicketId) {
        while !self.results.contains_key(&ticket) {
            if !self.complete() {
                self.step_to_deadline();
            }
        }
    }

    /// Lets time and disk run until nothing is left to do, at most for ten minutes of its time.
    fn rest(&mut self) {
        let end = self.now + Duration::from_secs(600);
        loop {
            self.drain();
            let Some(at) = self.agent.next_deadline().filter(|at| *at <= end) else {
                return;
            };
            self.fall_due(at);
            self.catch_up();
        }
    }

    /// As [`World::rest`], for `span` of time.
    fn run_for(&mut self, span: Duration) {
        let end = self.now + span;
        self.drain();
        while let Some(at) = self.agent.next_deadline().filter(|at| *at <= end) {
            self.fall_due(at);
            self.drain();
        }
        self.now = self.now.max(end);
    }

    /// Reads as a reader inside the process does, with an error of the device.
    fn fail_to_read(&mut self, key: &[u8], version: u64, error: DiskError) {
        let mut out = Vec::new();
        let plan = self
            .agent
            .begin_read(self.now, &entry(key, version), &mut out)
            .expect("the record is there");
        let end = ReadEnd::Failed(error);
        assert!(
            !self
                .agent
                .end_read(self.now, plan, (end, Duration::ZERO), &mut out)
        );
        self.take(out);
    }

    /// Reads a record as a reader inside the process does.
    fn read(&mut self, key: &[u8], version: u64) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let plan = self
            .agent
            .begin_read(self.now, &entry(key, version), &mut out);
        self.take(std::mem::take(&mut out));
        let plan = plan?;
        let content = self.disk.content(plan.file);
        let bytes = content[plan.offset as usize..][..plan.length as usize].to_vec();
        let end = ReadEnd::Checked(Checksum::of(&bytes));
        let right = self
            .agent
            .end_read(self.now, plan, (end, Duration::ZERO), &mut out);
        self.take(out);
        right.then_some(bytes)
    }

    /// The version of a key that can be read now, with its bytes checked.
    fn readable(&mut self, key: &[u8]) -> Option<u64> {
        let ordered = self
            .known
            .get(key)
            .map(|known| known.ordered.clone())
            .unwrap_or_default();
        let mut found = None;
        for (version, length) in ordered {
            if self.agent_holds(key, version) {
                assert_eq!(found, None, "two versions of a key can be read");
                found = Some(version);
                let value = value_of(&entry(key, version), length);
                let bytes = self.read(key, version);
                let lost = self.rotten && bytes.is_none();
                assert!(
                    lost || bytes == Some(value),
                    "wrong bytes of {}",
                    key.escape_ascii()
                );
            }
        }
        found
    }

    /// Where the bytes of a record are.
    fn place(&mut self, key: &[u8], version: u64) -> (FileId, u64) {
        let mut out = Vec::new();
        let plan = self
            .agent
            .begin_read(self.now, &entry(key, version), &mut out)
            .expect("the record is there");
        self.agent
            .end_read(self.now, plan, (ReadEnd::Done, Duration::ZERO), &mut out);
        self.take(out);
        (plan.file, plan.offset)
    }

    /// Where the batches of a file begin, by their first headers.
    fn batches(&self, file: FileId) -> Vec<(u64, u64)> {
        let content = self.disk.content(file);
        let bytes = content.len() as u64;
        let mut found = Vec::new();
        let mut at = slackwater_base::BLOCK_BYTES;
        while at < bytes {
            match decode_batch(
                Identity { log: FRESH, file },
                bytes,
                at,
                &content[at as usize..],
            ) {
                Decoded::Batch(batch) => {
                    found.push((batch.start, batch.end()));
                    at = batch.end();
                }
                _ => break,
            }
        }
        found
    }

    fn agent_holds(&mut self, key: &[u8], version: u64) -> bool {
        self.agent.holds(&entry(key, version))
    }

    /// What must hold for every key at any moment, unless bits were flipped.
    fn check(&mut self, moment: &str) {
        let keys: Vec<Vec<u8>> = self.known.keys().cloned().collect();
        for key in keys {
            let found = self.readable(&key);
            let known = &self.known[&key];
            let name = key.escape_ascii().to_string();
            if let Some(version) = found {
                assert!(
                    known.ordered.contains_key(&version),
                    "{moment}: {name} {version} was never written"
                );
                assert!(
                    version > known.dropped,
                    "{moment}: {name} {version} came back, dropped {}",
                    known.dropped
                );
            }
            if known.durable > known.drop_ordered && !self.rotten {
                assert!(
                    found >= Some(known.durable),
                    "{moment}: {name} {found:?} is gone, {known:?}"
                );
            }
        }
    }

    /// As [`World::check`], and exactly the announced records can be read.
    fn check_opened(&mut self, moment: &str) -> Opened {
        let opened = self.opened.expect("the log opens");
        assert_eq!(opened.records as usize, self.announced.len(), "{moment}");
        let highest = self.announced.values().copied().max().unwrap_or(0);
        assert!(
            opened.highest_version.0 >= highest,
            "{moment}: {} < {highest}",
            opened.highest_version
        );
        for (key, version) in self.announced.clone() {
            let found = self.readable(&key);
            let lost = self.rotten && found.is_none();
            assert!(
                lost || found == Some(version),
                "{moment}: {} {found:?}",
                key.escape_ascii()
            );
        }
        self.check(moment);
        opened
    }
}

/// The contract of the device: whole blocks, and a value within its read.
fn check_request(request: &DiskOp) {
    let whole = |number: u64| assert!(number.is_multiple_of(4096), "{request:?}");
    match request {
        DiskOp::Create { bytes, .. } => whole(*bytes),
        DiskOp::Write { offset, parts, .. } => {
            whole(*offset);
            for part in parts {
                if let crate::io::Part::Bytes(bytes) = part {
                    whole(bytes.len() as u64);
                }
            }
        }
        DiskOp::Read {
            offset,
            bytes,
            length,
            ..
        } => {
            whole(*offset);
            whole(*bytes);
            assert!(length <= bytes && *length > 0, "{request:?}");
        }
        DiskOp::Sync { .. } | DiskOp::Delete { .. } => {}
    }
}
