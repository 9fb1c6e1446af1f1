//! Bytes between a caller's buffer and an extent of a node.

use std::pin::pin;
use std::time::Duration;

use slackwater_base::{Checksum, Instant, Map};
use slackwater_trace::{SpanKind, TraceSpan};
use slackwater_transfer::{Batch, Capability, Cause, Engine, Target};
use slackwater_wait::now;
use slackwater_wire::{Class, ExtentRef, Incarnation};

use crate::Cancel;
use crate::cancel::Ends;
use crate::link::Link;
use crate::waits::{Caller, Waits};

/// Bytes that are moved before the next look at whether the caller has cancelled, where that does not end them.
const PIECE_BYTES: usize = 16 << 20;
/// Most reads that go together: those of parts may be many.
const GROUP_MAX: usize = 4_096;

/// How long a node may be silent before all others have had their turn. One that has ended is tried again and again until then, and
/// not again in the same call while there is another way.
const FIRST_TIME: Duration = Duration::from_secs(1);
/// What is asked for together may take longer: so many times as long as is to be expected of the node.
const TIMES_EXPECTED: u32 = 8;
/// The same where nothing is known of it.
const FIRST_BYTES_PER_SECOND: u64 = 4 << 20;
/// How long a node is waited for at least when all others have had their turn; else for half of the time that is left.
const PATIENT_TIME: Duration = Duration::from_secs(3);
/// Most bytes that are asked for of such nodes at first, so that a slow one is heard in time.
const FIRST_BYTES: usize = 1 << 20;

/// The transfers of one call.
pub(crate) struct Carrier<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) link: &'a Link,
    pub(crate) caller: Caller<'a>,
    /// When the call ends.
    pub(crate) until: Instant,
    /// The bytes to come are read where they are known to be, and not where the master has just said that they are.
    pub(crate) is_known: bool,
    /// Whether nodes are waited for. Otherwise they are given a moment.
    pub(crate) is_patient: bool,
    /// The nodes that did not send their bytes in this call when they had a moment: bytes of other nodes say nothing of these.
    pub(crate) silent: Vec<Incarnation>,
    pub(crate) rights: Map<ExtentRef, Capability>,
}

/// Bytes to be read.
pub(crate) struct Source<'a> {
    pub(crate) capability: Capability,
    /// In the region that the capability names.
    pub(crate) offset: u64,
    pub(crate) into: &'a mut [u8],
    /// Whether nobody else has them.
    pub(crate) is_last: bool,
}

/// Why bytes did not move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotMoved {
    /// The extent, or its node, is gone.
    Stale,
    /// The connection failed, or time ran out.
    Failed,
    /// The caller cancelled.
    Cancelled,
}

impl Carrier<'_> {
    /// How long a node is waited for when all others have had their turn. The rest is for what the master may know better then.
    pub(crate) fn patience(&self) -> Duration {
        let left = now().until(self.until);
        left.min(PATIENT_TIME.max(left / 2))
    }

    /// Most bytes that may be asked for of a node together, and how long that may take with `rest` to come of it, or with all of a
    /// group.
    fn portion(&self, node: Incarnation, rest: usize) -> (usize, Duration) {
        let left = now().until(self.until);
        if self.is_patient && !self.is_known {
            return (PIECE_BYTES, self.patience());
        }
        let asked = rest.min(PIECE_BYTES) as u64;
        let expected = self.link.pace(|paces| paces.expected(now(), node, asked));
        let (most, time) = match expected {
            Some(expected) => (PIECE_BYTES, TIMES_EXPECTED * expected),
            None => {
                let asked = asked.min(FIRST_BYTES as u64);
                let slow = Duration::from_micros(asked * 1_000_000 / FIRST_BYTES_PER_SECOND);
                (FIRST_BYTES, slow)
            }
        };
        (most, left.min(FIRST_TIME + time))
    }

    /// Where bytes are read from; nowhere if their node was silent before in this call, and there is another way, or will be more
    /// time.
    async fn source(
        &self,
        capability: Capability,
        offset: u64,
        is_last: bool,
    ) -> Result<Target, NotMoved> {
        let node = capability.claims().incarnation;
        let may_wait = self.is_known || !is_last || !self.is_patient;
        if may_wait && self.silent.contains(&node) {
            return Err(NotMoved::Failed);
        }
        self.target(capability, offset).await
    }

    /// Why the bytes of a source did not come.
    fn unread(&mut self, source: &Target, cause: &Cause) -> NotMoved {
        let why = self.failed(cause);
        // A call that is over says nothing of the node.
        if why == NotMoved::Failed && now() < self.until {
            let node = source.capability.claims().incarnation;
            self.link.pace(|paces| paces.failed(now(), node));
            if !self.silent.contains(&node) {
                self.silent.push(node);
            }
        }
        why
    }

    /// Bytes of these nodes came, which were asked for together at `begun`. How fast each of several was is not known, and for
    /// each of them it is as slow as all.
    fn came(&self, nodes: &[Incarnation], bytes: u64, begun: Instant) {
        let at = now();
        self.link.pace(|paces| {
            for node in nodes {
                paces.came(at, *node, bytes, at.since(begun));
            }
        });
    }

    /// Takes the rights in that came with an answer, or are known.
    pub(crate) fn granted(&mut self, extents: &[(ExtentRef, Capability)]) {
        // Many extents are of few nodes.
        let mut lives: Vec<(Incarnation, Incarnation)> = Vec::new();
        for (extent, capability) in extents {
            let life = (extent.incarnation, capability.claims().incarnation);
            if !lives.contains(&life) {
                lives.push(life);
            }
        }
        self.link.pace(|paces| {
            for (extents, node) in lives {
                paces.reached(extents, node);
            }
        });
        self.rights.extend(extents.iter().copied());
    }

    /// Reads several values, as many together as the next look at a cancellation may wait for; an outcome each, with the
    /// checksum of what was read.
    pub(crate) async fn read_all(
        &mut self,
        sources: Vec<Source<'_>>,
    ) -> Vec<Result<Checksum, NotMoved>> {
        let mut outcomes = Vec::with_capacity(sources.len());
        let mut group = Vec::new();
        let (mut bytes, mut most, mut latest) = (0, PIECE_BYTES, None);
        for source in sources {
            let node = source.capability.claims().incarnation;
            if latest != Some(node) {
                latest = Some(node);
                most = most.min(self.portion(node, 0).0);
            }
            let is_full = group.len() == GROUP_MAX || bytes + source.into.len() > most;
            if !group.is_empty() && is_full {
                let full = std::mem::take(&mut group);
                self.read_group(full, &mut outcomes).await;
                (bytes, most) = (0, self.portion(node, 0).0);
            }
            bytes += source.into.len();
            group.push(source);
        }
        self.read_group(group, &mut outcomes).await;
        outcomes
    }

    async fn read_group(
        &mut self,
        mut group: Vec<Source<'_>>,
        outcomes: &mut Vec<Result<Checksum, NotMoved>>,
    ) {
        if group.len() == 1
            && let Some(source) = group.pop()
        {
            outcomes.push(self.read(source).await);
            return;
        }
        let bytes: usize = group.iter().map(|source| source.into.len()).sum();
        let mut latest = None;
        let (mut places, mut targeted) = (Vec::new(), Vec::new());
        for Source {
            capability,
            offset,
            into,
            is_last,
        } in group
        {
            let target = self.source(capability, offset, is_last).await;
            // What has no target stays as it is; the others are replaced.
            outcomes.push(Err(*target.as_ref().err().unwrap_or(&NotMoved::Failed)));
            if let Ok(target) = target {
                places.push(outcomes.len() - 1);
                let node = capability.claims().incarnation;
                let time = match latest {
                    Some((same, time)) if same == node => time,
                    _ => self.portion(node, bytes).1,
                };
                latest = Some((node, time));
                targeted.push((target, into, time));
            }
        }
        let begun = now();
        let read = self.read_together(&mut targeted).await;
        let mut sent: Vec<Incarnation> = Vec::new();
        let mut all_came = true;
        for ((place, read), (source, ..)) in places.into_iter().zip(read).zip(&targeted) {
            let node = source.capability.claims().incarnation;
            all_came &= read.is_ok();
            if read.is_ok() && !sent.contains(&node) {
                sent.push(node);
            }
            outcomes[place] = read.map_err(|cause| self.unread(source, &cause));
        }
        // What did not come took its time for the others too.
        if all_came {
            self.came(&sent, bytes as u64, begun);
        }
    }

    /// Writes several values, as [`Carrier::read_all`] reads them.
    pub(crate) async fn write_all(
        &self,
        writes: &[(Capability, u64, &[u8])],
    ) -> Vec<Result<Checksum, NotMoved>> {
        let mut outcomes = Vec::with_capacity(writes.len());
        let mut rest = writes;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |(.., from): &&(Capability, u64, &[u8])| {
                bytes += from.len();
                bytes <= PIECE_BYTES
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (group, after) = rest.split_at(count);
            rest = after;
            match group {
                [(capability, offset, from)] => {
                    outcomes.push(self.write(*capability, *offset, from).await);
                }
                group => self.write_group(group, &mut outcomes).await,
            }
        }
        outcomes
    }

    async fn write_group(
        &self,
        group: &[(Capability, u64, &[u8])],
        outcomes: &mut Vec<Result<Checksum, NotMoved>>,
    ) {
        let (mut places, mut targeted) = (Vec::new(), Vec::new());
        for (capability, offset, from) in group {
            let target = self.target(*capability, *offset).await;
            outcomes.push(Err(*target.as_ref().err().unwrap_or(&NotMoved::Failed)));
            if let Ok(target) = target {
                places.push(outcomes.len() - 1);
                targeted.push((target, *from));
            }
        }
        let written = self.write_together(&targeted).await;
        for (place, written) in places.into_iter().zip(written) {
            outcomes[place] = written.map_err(|cause| self.failed(&cause));
        }
    }

    /// Reads one value; the checksum of what was read.
    pub(crate) async fn read(&mut self, source: Source<'_>) -> Result<Checksum, NotMoved> {
        let Source {
            capability,
            offset,
            into,
            is_last,
        } = source;
        let node = capability.claims().incarnation;
        let (mut at, mut whole) = (0, None::<Checksum>);
        let mut rest = into;
        while !rest.is_empty() {
            let (most, time) = self.portion(node, rest.len());
            let length = most.min(rest.len());
            let (piece, after) = rest.split_at_mut(length);
            rest = after;
            let source = self.source(capability, offset + at, is_last).await?;
            let bytes = length as u64;
            at += bytes;
            let begun = now();
            let mut read = self.read_together(&mut [(source, piece, time)]).await;
            let read = read.pop().unwrap_or(Err(Cause::Dropped));
            let next = read.map_err(|cause| self.unread(&source, &cause))?;
            self.came(&[node], bytes, begun);
            whole = Some(whole.map_or(next, |whole| whole.followed_by(next, bytes)));
        }
        Ok(whole.unwrap_or_else(|| Checksum::of(&[])))
    }

    /// Writes to `offset` of the region that a capability names; the checksum of what was written.
    async fn write(
        &self,
        capability: Capability,
        offset: u64,
        from: &[u8],
    ) -> Result<Checksum, NotMoved> {
        let (mut at, mut whole) = (0, None::<Checksum>);
        for piece in from.chunks(PIECE_BYTES) {
            let target = self.target(capability, offset + at).await?;
            let bytes = piece.len() as u64;
            at += bytes;
            let mut written = self.write_together(&[(target, piece)]).await;
            let written = written.pop().unwrap_or(Err(Cause::Dropped));
            let next = written.map_err(|cause| self.failed(&cause))?;
            whole = Some(whole.map_or(next, |whole| whole.followed_by(next, bytes)));
        }
        Ok(whole.unwrap_or_else(|| Checksum::of(&[])))
    }

    /// Reads that a cancellation ends: a node that sends nothing may be waited for for long.
    async fn read_together(
        &self,
        reads: &mut [(Target, &mut [u8], Duration)],
    ) -> Vec<Result<Checksum, Cause>> {
        let moves = reads.iter().map(|(target, into, _)| (target, into.len()));
        let span = self.span("slackwater.read", moves);
        let Caller { waits, cancel } = self.caller;
        let read = match (waits, cancel) {
            (Waits::Thread, None) => span.during(|| self.engine.read_all(reads)),
            (Waits::Thread, Some(cancel)) => span.during(|| {
                self.engine
                    .read_all_watched(reads, |batch| watch(cancel, batch))
            }),
            (Waits::Task, _) => {
                let watch = |batch: &Batch| cancel.map(|cancel| watch(cancel, batch));
                #[expect(unsafe_code, reason = "the memory of calls that tasks make is theirs")]
                // SAFETY: such a call owns the memory that it reads into, see `Calls`: if it is leaked, so is that.
                let read = unsafe { self.engine.read_all_awaited(reads, watch) };
                span.awaiting(pin!(read)).await
            }
        };
        end(span, &read);
        read
    }

    async fn write_together(&self, writes: &[(Target, &[u8])]) -> Vec<Result<Checksum, Cause>> {
        let left = now().until(self.until);
        let moves = writes.iter().map(|(target, from)| (target, from.len()));
        let span = self.span("slackwater.write", moves);
        let Caller { waits, cancel } = self.caller;
        let written = match (waits, cancel) {
            (Waits::Thread, None) => span.during(|| self.engine.write_all(writes, left)),
            (Waits::Thread, Some(cancel)) => span.during(|| {
                self.engine
                    .write_all_watched(writes, left, |batch| watch(cancel, batch))
            }),
            (Waits::Task, _) => {
                let watch = |batch: &Batch| cancel.map(|cancel| watch(cancel, batch));
                #[expect(unsafe_code, reason = "the memory of calls that tasks make is theirs")]
                // SAFETY: as in `read_together`.
                let written = unsafe { self.engine.write_all_awaited(writes, left, watch) };
                span.awaiting(pin!(written)).await
            }
        };
        end(span, &written);
        written
    }

    /// The span of what goes between this process and nodes together. Where the way is one copy within the host, the nodes
    /// have no part in it, and no span.
    fn span<'t>(
        &self,
        name: &'static str,
        mut moves: impl Iterator<Item = (&'t Target, usize)>,
    ) -> TraceSpan {
        let Some((first, bytes)) = moves.next() else {
            return TraceSpan::default();
        };
        let mut span = TraceSpan::here(name, SpanKind::Client);
        if span.is_recording() {
            let (count, bytes) = moves.fold((1u64, bytes), |(count, sum), (_, bytes)| {
                (count + 1, sum + bytes)
            });
            let way = self.engine.mover(first.peer);
            span.note("slackwater.values", count);
            span.note("slackwater.bytes", bytes as u64);
            span.note("slackwater.way", way.unwrap_or("none"));
        }
        span
    }

    async fn target(&self, capability: Capability, offset: u64) -> Result<Target, NotMoved> {
        if self.caller.is_cancelled() {
            return Err(NotMoved::Cancelled);
        }
        let incarnation = capability.claims().incarnation;
        let peer = self
            .link
            .node(incarnation, self.until, self.caller)
            .await
            .ok_or(NotMoved::Stale)?;
        Ok(Target {
            peer,
            offset,
            capability,
            key: None,
        })
    }

    fn failed(&self, cause: &Cause) -> NotMoved {
        tracing::debug!(%cause, "bytes did not move");
        if self.caller.is_cancelled() {
            return NotMoved::Cancelled;
        }
        match cause.class() {
            Class::Gone => NotMoved::Stale,
            _ => NotMoved::Failed,
        }
    }
}

/// Ends the span of what went together, and some of which may have failed.
fn end<T>(mut span: TraceSpan, outcomes: &[Result<T, Cause>]) {
    if let Some(cause) = outcomes.iter().find_map(|outcome| outcome.as_ref().err()) {
        span.fail(cause);
    }
}

/// Has a cancellation end a batch, until what is returned is dropped.
fn watch<'a>(cancel: &'a Cancel, batch: &Batch) -> Ends<'a> {
    let batch = batch.clone();
    cancel.ends(move || _ = batch.cancel())
}
