use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use slackwater_base::{Checksum, Instant};
use slackwater_client::{Action, GetFlow, GetOutcome, ReadFailure, Stamp};
use slackwater_trace::{SpanKind, TraceSpan};
use slackwater_transfer::Capability;
use slackwater_wait::{failpoint, now};
use slackwater_wire::limits::BATCH_KEYS_MAX;
use slackwater_wire::{
    Chain, ClientId, DiskEntry, Epoch, ErrorCode, ExtentRef, Get, Hold, Key, NodeId, OperationId,
    ReadRecord, ReplicaAt, Reply, Request, Tenant, Version,
};

use crate::carry::{Carrier, NotMoved, Source};
use crate::client::Call;
use crate::drive::Carry;
use crate::link::Unanswered;
use crate::locations::LocationCache;
use crate::{ClientError, GetOptions};

/// Where a value goes.
pub(crate) enum Sink<'a> {
    /// The caller's buffer.
    Given(&'a mut [u8]),
    /// Memory that is made when the length is known.
    Fresh(Vec<u8>),
    /// Parts of the value alone.
    Parts(Vec<Part<'a>>),
    /// The same where the value is in memory. What is on SSD is read whole at any rate, and kept for the parts to come.
    Session {
        /// The parts that are wanted now, which what is kept is not copied to.
        parts: Vec<Part<'a>>,
        /// The whole value, where it was on SSD.
        kept: Option<Vec<u8>>,
    },
}

/// A part of a value that is read alone.
#[derive(Debug)]
pub struct Part<'a> {
    /// Its first byte in the value.
    pub from: u64,
    /// Where it goes; as long as this is.
    pub into: &'a mut [u8],
}

impl Part<'_> {
    /// Whether it is part of a value of this length.
    pub(crate) fn is_in(&self, bytes: u64) -> bool {
        let end = self.from.checked_add(self.into.len() as u64);
        end.is_some_and(|end| end <= bytes)
    }
}

/// A value that was read, or parts of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Length of the value.
    pub(crate) bytes: usize,
    /// The put that wrote it.
    pub(crate) version: Version,
    /// The checksum of all its bytes.
    pub(crate) checksum: Checksum,
    /// Where it was read.
    pub(crate) from: ReplicaAt,
}

/// How one value was read; `None` when there is none.
pub(crate) type Outcome = Result<Option<Found>, ClientError>;

/// One request's reads.
struct Reading<'a, 'b> {
    carrier: Carrier<'a>,
    locations: &'a LocationCache,
    /// The look-up that is under way.
    asked: Option<LookUp>,
    tenant: Tenant,
    sinks: Vec<&'a mut Sink<'b>>,
    /// Errors that the flow's codes do not tell.
    errors: Vec<Option<ClientError>>,
    /// What was read without an error last: the outcomes of the flow tell neither version nor checksum.
    read: Vec<Option<(Version, Checksum)>>,
    /// The nodes that did not read a record in a moment.
    silent_disks: Vec<NodeId>,
}

/// How long a node may take to read a record, before all others have had their turn.
const RECORD_TIME: Duration = Duration::from_secs(3);

/// A look-up.
struct LookUp {
    operation: OperationId,
    /// When it was sent first.
    at: Instant,
    /// Of each key, from before that.
    stamps: Vec<Stamp>,
}

/// A replica that is to be read.
struct Wanted {
    index: usize,
    key: Key,
    version: Version,
    bytes: u64,
    checksum: Checksum,
    from: ReplicaAt,
    is_last: bool,
}

impl Wanted {
    fn of(action: Action) -> Self {
        match action {
            Action::Read {
                index,
                key,
                version,
                bytes,
                checksum,
                from,
                is_last,
            } => Self {
                index,
                key,
                version,
                bytes,
                checksum,
                from,
                is_last,
            },
            _ => unreachable!("a flow that reads does not write"),
        }
    }
}

impl Call<'_> {
    /// Reads values into their sinks, an outcome each.
    pub(crate) async fn read(
        &self,
        keys: &[&[u8]],
        sinks: &mut [Sink<'_>],
        options: &GetOptions,
    ) -> Vec<Outcome> {
        let span = TraceSpan::root("slackwater.get", SpanKind::Client).keys(keys.len());
        let read = span
            .awaiting(pin!(self.read_all(keys, sinks, options)))
            .await;
        span.reads_over(read, |found| found.bytes, ClientError::code)
    }

    async fn read_all(
        &self,
        keys: &[&[u8]],
        sinks: &mut [Sink<'_>],
        options: &GetOptions,
    ) -> Vec<Outcome> {
        if let Err(error) = self.check_room() {
            return vec![Err(error); keys.len()];
        }
        let mut chain = options.chain.clone();
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(keys.len());
        for (keys, sinks) in keys
            .chunks(BATCH_KEYS_MAX)
            .zip(sinks.chunks_mut(BATCH_KEYS_MAX))
        {
            let missing = |outcome: &Outcome| !matches!(outcome, Ok(Some(_)));
            if options.prefix_only && outcomes.iter().any(missing) {
                outcomes.extend(keys.iter().map(|_| Ok(None)));
                continue;
            }
            let piece = self.read_piece(keys, sinks, &chain, options.prefix_only);
            outcomes.extend(piece.await);
            chain.parent = keys.last().and_then(|key| Key::new(key).ok());
            chain.position = chain.position.saturating_add(keys.len() as u32);
        }
        outcomes
    }

    async fn read_piece(
        &self,
        keys: &[&[u8]],
        sinks: &mut [Sink<'_>],
        chain: &Chain,
        prefix_only: bool,
    ) -> Vec<Outcome> {
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(keys.len());
        let (mut named, mut wanted) = (Vec::new(), Vec::new());
        for (key, sink) in keys.iter().zip(sinks) {
            match Key::new(key) {
                Ok(key) => {
                    named.push(key);
                    wanted.push(sink);
                    outcomes.push(Ok(None));
                }
                Err(error) => outcomes.push(Err(error.into())),
            }
        }
        if named.is_empty() {
            return outcomes;
        }
        let locations = self.client.locations();
        let found = locations.find(&self.options.tenant, &named, chain);
        let mut carrier = self.carrier();
        carrier.is_known = found.is_some();
        if let (Some([located]), [sink]) = (found.as_deref(), &mut wanted[..])
            && let Some(lone) = carrier.read_lone(located, sink).await
        {
            let place = outcomes.iter().position(Outcome::is_ok);
            outcomes[place.unwrap_or(0)] = Ok(Some(lone));
            return outcomes;
        }
        let get = Get {
            tenant: self.options.tenant.clone(),
            keys: named.clone(),
            chain: chain.clone(),
            hold: Hold::Lease,
            prefix_only,
        };
        let mut begun = Vec::new();
        let pick = self.client.link().pick();
        let options = self.flow_options();
        let mut flow = match found {
            Some(found) => {
                let known = found.into_iter().map(|located| {
                    carrier.granted(&located.rights);
                    located.known
                });
                GetFlow::start_known(self.begun, get, known.collect(), options, pick, &mut begun)
            }
            None => GetFlow::start(self.begun, get, options, pick, &mut begun),
        };
        let mut reading = Reading {
            carrier,
            locations,
            asked: None,
            tenant: self.options.tenant.clone(),
            errors: vec![None; wanted.len()],
            read: vec![None; wanted.len()],
            sinks: wanted,
            silent_disks: Vec::new(),
        };
        self.drive().run(&mut flow, begun, &mut reading).await;
        let ends = flow.outcomes().unwrap_or_default().into_iter();
        let ends = ends.zip(reading.errors).zip(reading.read).zip(&named);
        let mut settled = ends.map(|(((outcome, error), read), key)| match (outcome, error) {
            (_, Some(error)) => Err(error),
            (GetOutcome::Hit { bytes, from }, None) => Ok(read.map(|(version, checksum)| Found {
                bytes: bytes as usize,
                version,
                checksum,
                from,
            })),
            // A put of it is under way: for a reader it is not there yet.
            (GetOutcome::Miss | GetOutcome::Failed(ErrorCode::ReplicaIsNotReady), None) => Ok(None),
            (GetOutcome::Failed(code), None) => Err(self.failed("a get", key, code)),
        });
        for outcome in outcomes.iter_mut().filter(|outcome| outcome.is_ok()) {
            if let Some(settled) = settled.next() {
                *outcome = settled;
            }
        }
        outcomes
    }
}

impl Reading<'_, '_> {
    /// Reads replicas, an outcome each: those in memory together, then the others.
    async fn fetch(&mut self, wanted: &[Wanted]) -> Vec<Result<Checksum, ReadFailure>> {
        failpoint("get.located");
        let mut outcomes = Vec::with_capacity(wanted.len());
        // Of each sink: the outcome that is its own, and where it is read.
        let mut sources: BTreeMap<usize, (usize, Capability, u64)> = BTreeMap::new();
        let mut records = Vec::new();
        for (place, wanted) in wanted.iter().enumerate() {
            let room = self.make_room(wanted).await;
            let ready = room.and_then(|()| match wanted.from {
                ReplicaAt::Memory(extent) => {
                    let right = self.carrier.rights.get(&extent).copied();
                    Ok(Some((right.ok_or(ReadFailure::Stale)?, extent.offset)))
                }
                ReplicaAt::Disk { .. } => Ok(None),
            });
            if let Ok(Some((right, offset))) = ready {
                sources.insert(wanted.index, (place, right, offset));
            }
            if matches!(ready, Ok(None)) {
                records.push(place);
            }
            outcomes.push(Err(ready.err().unwrap_or(ReadFailure::Transfer)));
        }
        let (mut counts, mut reads) = (Vec::new(), Vec::new());
        for (index, sink) in self.sinks.iter_mut().enumerate() {
            if let Some((place, capability, offset)) = sources.remove(&index) {
                let before = reads.len();
                reads.extend(sources_of(sink, &wanted[place], capability, offset));
                counts.push((place, reads.len() - before));
            }
        }
        let read = self.carrier.read_all(reads).await;
        let mut rest = &read[..];
        for (place, count) in counts {
            let (read, after) = rest.split_at(count);
            rest = after;
            outcomes[place] = whole(&wanted[place], read, self.sinks[wanted[place].index]);
        }
        if !records.is_empty() {
            let reads = &self.carrier.link.record_reads;
            reads.fetch_add(1, Ordering::Relaxed);
        }
        for place in records {
            outcomes[place] = self.fetch_record(&wanted[place]).await;
        }
        outcomes
    }

    /// Tells a flow the outcome of a read.
    fn report(
        &mut self,
        flow: &mut GetFlow,
        wanted: &Wanted,
        read: Result<Checksum, ReadFailure>,
        out: &mut Vec<Action>,
    ) {
        let stays = match read {
            Ok(checksum) if checksum != wanted.checksum => {
                // It was fast, and wrong.
                if let ReplicaAt::Memory(extent) = wanted.from
                    && let Some(right) = self.carrier.rights.get(&extent)
                {
                    let node = right.claims().incarnation;
                    self.carrier.link.pace(|paces| paces.failed(now(), node));
                }
                false
            }
            Ok(checksum) => {
                self.read[wanted.index] = Some((wanted.version, checksum));
                true
            }
            Err(failure) => {
                matches!(
                    failure,
                    ReadFailure::BufferTooSmall | ReadFailure::Cancelled
                )
            }
        };
        match read {
            // Its node may be gone, and with it everything that was there; a caller out of time has not learnt that.
            Err(ReadFailure::Transfer) if now() < self.carrier.until => {
                self.locations.forget_all();
            }
            _ if !stays => self.locations.forget(std::slice::from_ref(&wanted.key)),
            _ => {}
        }
        flow.on_read(now(), wanted.index, read, out);
    }

    /// Makes room for a value where it goes.
    async fn make_room(&mut self, wanted: &Wanted) -> Result<(), ReadFailure> {
        let length = wanted.bytes as usize;
        let is_made = match &*self.sinks[wanted.index] {
            Sink::Fresh(_) => true,
            Sink::Session { .. } => matches!(wanted.from, ReplicaAt::Disk { .. }),
            Sink::Given(_) | Sink::Parts(_) => false,
        };
        // No object is longer than the memory that it was put into: nothing is made for one that is said to be. The answer is wrong
        // then, and not the bytes, which nobody else may lose for it.
        let Carrier {
            link,
            until,
            caller,
            ..
        } = self.carrier;
        if is_made && !link.may_have(wanted.bytes, until, caller).await {
            return Err(ReadFailure::Transfer);
        }
        match &mut *self.sinks[wanted.index] {
            Sink::Given(buffer) if buffer.len() < length => {
                self.errors[wanted.index] = Some(ClientError::BufferTooSmall {
                    key: wanted.key.clone(),
                    need: wanted.bytes,
                    have: buffer.len(),
                });
                return Err(ReadFailure::BufferTooSmall);
            }
            Sink::Fresh(value) => value.resize(length, 0),
            Sink::Session { kept, .. } => {
                *kept = match wanted.from {
                    ReplicaAt::Memory(_) => None,
                    ReplicaAt::Disk { .. } => Some(vec![0; length]),
                };
            }
            Sink::Given(_) | Sink::Parts(_) => {}
        }
        Ok(())
    }

    async fn fetch_record(&mut self, wanted: &Wanted) -> Result<Checksum, ReadFailure> {
        let Wanted {
            index,
            ref key,
            version,
            bytes,
            checksum,
            ..
        } = *wanted;
        let caller = self.carrier.caller;
        let is_patient = self.carrier.is_patient || self.carrier.is_known;
        if let (ReplicaAt::Disk { node, .. }, false) = (wanted.from, is_patient)
            && self.silent_disks.contains(&node)
        {
            return Err(ReadFailure::Transfer);
        }
        let until = match is_patient {
            true => now() + self.carrier.patience(),
            false => self.carrier.until.min(now() + RECORD_TIME),
        };
        let entry = DiskEntry {
            tenant: self.tenant.clone(),
            key: key.clone(),
            version,
        };
        let record = ReadRecord {
            epoch: Epoch(0),
            client: ClientId(0),
            entry,
            bytes,
            checksum,
            trace: None,
        };
        let staged = self.carrier.link.read_record(record, until, caller).await;
        if let (ReplicaAt::Disk { node, .. }, Err(Unanswered::Late)) = (wanted.from, &staged) {
            self.silent_disks.push(node);
        }
        let staged = staged.map_err(|unanswered| match unanswered {
            Unanswered::Refused(code @ ErrorCode::ValueTooLong) => {
                let key = key.clone();
                self.errors[index] = Some(ClientError::Refused { key, code });
                ReadFailure::BufferTooSmall
            }
            Unanswered::Refused(code) if code.class() == slackwater_wire::Class::Gone => {
                ReadFailure::Stale
            }
            Unanswered::Cancelled => ReadFailure::Cancelled,
            _ => ReadFailure::Transfer,
        })?;
        let (capability, offset) = (staged.capability, staged.offset);
        let reads = sources_of(self.sinks[index], wanted, capability, offset);
        let read = self.carrier.read_all(reads).await;
        let read = whole(wanted, &read, self.sinks[index]);
        self.carrier.link.release(&staged, read.is_ok());
        read
    }
}

/// What is read for a sink, for which there is room, of a value that begins at `begin` of a region.
fn sources_of<'s>(
    sink: &'s mut Sink<'_>,
    wanted: &Wanted,
    capability: Capability,
    begin: u64,
) -> Vec<Source<'s>> {
    let source = |from, into| Source {
        capability,
        offset: begin + from,
        into,
        is_last: wanted.is_last,
    };
    match sink {
        Sink::Given(buffer) => vec![source(0, &mut buffer[..wanted.bytes as usize])],
        Sink::Fresh(value)
        | Sink::Session {
            kept: Some(value), ..
        } => vec![source(0, value)],
        Sink::Parts(parts) | Sink::Session { parts, kept: None } => {
            let parts = parts.iter_mut();
            let there = parts.filter(|part| part.is_in(wanted.bytes) && !part.into.is_empty());
            there.map(|part| source(part.from, part.into)).collect()
        }
    }
}

/// How the read of what was wanted of a value ended. A part has no checksum to compare it with, unless it is all of the value: it
/// is taken as it is.
fn whole(
    wanted: &Wanted,
    read: &[Result<Checksum, NotMoved>],
    sink: &Sink<'_>,
) -> Result<Checksum, ReadFailure> {
    let is_whole = match sink {
        Sink::Parts(parts) | Sink::Session { parts, kept: None } => {
            matches!(&parts[..], [part] if part.from == 0 && part.into.len() as u64 == wanted.bytes)
        }
        Sink::Given(_) | Sink::Fresh(_) | Sink::Session { kept: Some(_), .. } => true,
    };
    let mut found = wanted.checksum;
    for read in read {
        let checksum = read.map_err(failure)?;
        found = if is_whole { checksum } else { found };
    }
    Ok(found)
}

fn failure(not_moved: NotMoved) -> ReadFailure {
    match not_moved {
        NotMoved::Stale => ReadFailure::Stale,
        NotMoved::Failed => ReadFailure::Transfer,
        NotMoved::Cancelled => ReadFailure::Cancelled,
    }
}

impl Carry<GetFlow> for Reading<'_, '_> {
    fn asks(&mut self, operation: OperationId, request: &Request) {
        let Request::Get(get) = request else {
            return;
        };
        // The lease may count from the first time that the operation is sent.
        if self
            .asked
            .as_ref()
            .is_none_or(|asked| asked.operation != operation)
        {
            self.asked = Some(LookUp {
                operation,
                at: now(),
                stamps: self.locations.stamps(&get.keys),
            });
        }
    }

    fn granted(&mut self, request: &Request, reply: &Reply, extents: Vec<(ExtentRef, Capability)>) {
        if let (Request::Get(get), Reply::Get(lookups), Some(asked)) = (request, reply, &self.asked)
        {
            let (keys, stamps) = (get.keys.iter(), &asked.stamps);
            self.locations.keep(
                &self.tenant,
                keys,
                (stamps, &[]),
                asked.at,
                (lookups, &extents),
            );
        }
        self.carrier.is_known = false;
        self.carrier.granted(&extents);
    }

    async fn carry(&mut self, flow: &mut GetFlow, moves: Vec<Action>, out: &mut Vec<Action>) {
        let mut pending: Vec<Wanted> = moves.into_iter().map(Wanted::of).collect();
        // What its only node did not send in a moment waits until all others are read, from other replicas too.
        let mut deferred = Vec::new();
        self.carrier.is_patient = false;
        loop {
            if pending.is_empty() {
                pending = std::mem::take(&mut deferred);
                self.carrier.is_patient = true;
            }
            if pending.is_empty() {
                return;
            }
            let reads = self.fetch(&pending).await;
            for (wanted, read) in pending.into_iter().zip(reads) {
                let patient = self.carrier.is_patient || self.carrier.is_known;
                let silent = read == Err(ReadFailure::Transfer) && now() < self.carrier.until;
                match silent && wanted.is_last && !patient {
                    true => deferred.push(wanted),
                    false => self.report(flow, &wanted, read, out),
                }
            }
            let next = out.extract_if(.., |action| matches!(action, Action::Read { .. }));
            pending = next.map(Wanted::of).collect();
            self.carrier.is_patient = false;
        }
    }

    fn cancelled(&mut self, flow: &mut GetFlow, index: usize, out: &mut Vec<Action>) {
        let cancelled = Err(ReadFailure::Cancelled);
        flow.on_read(now(), index, cancelled, out);
    }
}

#[cfg(test)]
mod tests {
    use slackwater_wire::{Incarnation, SegmentId};

    use super::*;

    #[test]
    fn what_is_read_whole_is_compared_and_a_part_is_taken_as_it_is() {
        let extent = ExtentRef {
            segment: SegmentId(1),
            incarnation: Incarnation(1),
            offset: 0,
            bytes: 4096,
            generation: 1,
        };
        let wanted = Wanted {
            index: 0,
            key: Key::new(b"k").unwrap(),
            version: Version(1),
            bytes: 8,
            checksum: Checksum(1),
            from: ReplicaAt::Memory(extent),
            is_last: true,
        };
        let check = |sink: &Sink<'_>, reads: &[Result<u64, NotMoved>], expected| {
            let reads: Vec<_> = reads.iter().map(|read| read.map(Checksum)).collect();
            let found = whole(&wanted, &reads, sink);
            assert_eq!(found.map(|checksum| checksum.0), expected, "{reads:?}");
        };
        check(&Sink::Given(&mut [0; 8]), &[Ok(2)], Ok(2));
        check(&Sink::Fresh(vec![0; 8]), &[Ok(2)], Ok(2));
        let (mut eight, mut two) = ([0; 8], [0; 2]);
        let all = Part {
            from: 0,
            into: &mut eight,
        };
        check(&Sink::Parts(vec![all]), &[Ok(2)], Ok(2));
        let part = Part {
            from: 0,
            into: &mut two,
        };
        let parts = Sink::Parts(vec![part]);
        check(&parts, &[Ok(2)], Ok(1));
        check(&parts, &[], Ok(1));
        let stale = Err(ReadFailure::Stale);
        check(&parts, &[Err(NotMoved::Stale)], stale);
        let one_failed = [Ok(2), Err(NotMoved::Failed), Err(NotMoved::Stale)];
        check(&parts, &one_failed, Err(ReadFailure::Transfer));
    }
}
