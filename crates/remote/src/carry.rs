//! Bytes between a caller's buffer and an extent of a node.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use slackwater_base::{Checksum, Instant, Map};
use slackwater_transfer::{Capability, Cause, Engine, Target};
use slackwater_wait::now;
use slackwater_wire::{Class, ExtentRef, Incarnation};

use crate::Cancel;
use crate::link::Link;

/// Bytes that are moved before the next look at whether the caller has cancelled.
const PIECE_BYTES: usize = 16 << 20;

/// How long a node may take to send bytes that it was known to have, or that another node has too, and that are asked for
/// together: one that has ended is tried again and again until then, and one that was known, not again in the same call.
const KNOWN_TIME: Duration = Duration::from_secs(1);
/// What is asked for together may take longer, by as much as it takes at this rate.
const KNOWN_BYTES_PER_SECOND: u64 = 4 << 20;

/// The transfers of one call.
pub(crate) struct Carrier<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) link: &'a Link,
    pub(crate) cancel: Option<&'a Cancel>,
    /// When the call ends.
    pub(crate) until: Instant,
    /// Of bytes that are read where they are known to be, the nodes that did not send theirs: bytes of other nodes say
    /// nothing of these. None for bytes that the master has just named the place of.
    pub(crate) silent: RefCell<Option<BTreeSet<Incarnation>>>,
    /// Whether the bytes to come may be read elsewhere, so that their node is not waited for until the call ends.
    pub(crate) is_hurried: Cell<bool>,
    pub(crate) rights: Map<ExtentRef, Capability>,
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
    /// The bytes to come are read where they are known to be.
    pub(crate) fn known(&mut self) {
        *self.silent.get_mut() = Some(BTreeSet::new());
    }

    /// The bytes to come are read where the master says that they are.
    pub(crate) fn named(&mut self) {
        *self.silent.get_mut() = None;
    }

    /// How long so many bytes may take: where they were only known to be, the master may know better after a while, and another
    /// node may have them.
    pub(crate) fn left(&self, bytes: u64) -> Duration {
        let left = now().until(self.until);
        if self.silent.borrow().is_none() && !self.is_hurried.get() {
            return left;
        }
        let slow = Duration::from_micros(bytes * 1_000_000 / KNOWN_BYTES_PER_SECOND);
        left.min(KNOWN_TIME + slow)
    }

    /// Where bytes are read from; nowhere if their node did not send others that it was known to have.
    fn source(&self, capability: Capability, offset: u64) -> Result<Target, NotMoved> {
        let node = capability.claims().incarnation;
        let silent = self.silent.borrow();
        if silent.as_ref().is_some_and(|silent| silent.contains(&node)) {
            return Err(NotMoved::Failed);
        }
        self.target(capability, offset)
    }

    /// Why the bytes of a source did not come.
    fn unread(&self, source: &Target, cause: &Cause) -> NotMoved {
        let why = self.failed(cause);
        let node = source.capability.claims().incarnation;
        if why == NotMoved::Failed {
            self.link.pace(|paces| paces.failed(now(), node));
        }
        if let (NotMoved::Failed, Some(silent)) = (why, &mut *self.silent.borrow_mut()) {
            silent.insert(node);
        }
        why
    }

    /// Bytes of a source came, which were asked for at `begun`.
    fn came(&self, source: &Target, bytes: u64, begun: Instant) {
        let (at, node) = (now(), source.capability.claims().incarnation);
        self.link
            .pace(|paces| paces.came(at, node, bytes, at.since(begun)));
    }

    /// Takes the rights in that came with an answer.
    pub(crate) fn granted(&mut self, extents: impl IntoIterator<Item = (ExtentRef, Capability)>) {
        self.rights.extend(extents);
    }

    /// Reads several values, each from an offset of the region that its capability names, as many together as the next look
    /// at a cancellation may wait for; an outcome each, with the checksum of what was read.
    pub(crate) fn read_all(
        &self,
        reads: Vec<(Capability, u64, &mut [u8])>,
    ) -> Vec<Result<Checksum, NotMoved>> {
        let mut outcomes = Vec::with_capacity(reads.len());
        let mut group = Vec::new();
        let mut bytes = 0;
        for (capability, offset, into) in reads {
            if !group.is_empty() && bytes + into.len() > PIECE_BYTES {
                self.read_group(std::mem::take(&mut group), &mut outcomes);
                bytes = 0;
            }
            bytes += into.len();
            group.push((capability, offset, into));
        }
        self.read_group(group, &mut outcomes);
        outcomes
    }

    fn read_group(
        &self,
        group: Vec<(Capability, u64, &mut [u8])>,
        outcomes: &mut Vec<Result<Checksum, NotMoved>>,
    ) {
        if group.len() == 1 {
            let alone = group.into_iter();
            outcomes.extend(alone.map(|(right, offset, into)| self.read(right, offset, into)));
            return;
        }
        let (mut places, mut targeted) = (Vec::new(), Vec::new());
        for (capability, offset, into) in group {
            let target = self.source(capability, offset);
            // What has no target stays as it is; the others are replaced.
            outcomes.push(Err(*target.as_ref().err().unwrap_or(&NotMoved::Failed)));
            if let Ok(target) = target {
                places.push(outcomes.len() - 1);
                targeted.push((target, into));
            }
        }
        let bytes = targeted.iter().map(|(_, into)| into.len() as u64).sum();
        let begun = now();
        let read = self.engine.read_all(&mut targeted, self.left(bytes));
        if let Some((first, _)) = targeted.first() {
            let mut others = targeted.iter();
            // What several nodes sent together says nothing of one of them.
            let alone = others.all(|(source, _)| source.peer == first.peer);
            if alone && read.iter().all(Result::is_ok) {
                self.came(first, bytes, begun);
            }
        }
        for ((place, read), (source, _)) in places.into_iter().zip(read).zip(&targeted) {
            outcomes[place] = read.map_err(|cause| self.unread(source, &cause));
        }
    }

    /// Writes several values, as [`Carrier::read_all`] reads them.
    pub(crate) fn write_all(
        &self,
        writes: &[(Capability, u64, &[u8])],
    ) -> Vec<Result<(), NotMoved>> {
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
                    outcomes.push(self.write(*capability, *offset, from))
                }
                group => self.write_group(group, &mut outcomes),
            }
        }
        outcomes
    }

    fn write_group(
        &self,
        group: &[(Capability, u64, &[u8])],
        outcomes: &mut Vec<Result<(), NotMoved>>,
    ) {
        let (mut places, mut targeted) = (Vec::new(), Vec::new());
        for (capability, offset, from) in group {
            let target = self.target(*capability, *offset);
            outcomes.push(Err(*target.as_ref().err().unwrap_or(&NotMoved::Failed)));
            if let Ok(target) = target {
                places.push(outcomes.len() - 1);
                targeted.push((target, *from));
            }
        }
        let bytes = targeted.iter().map(|(_, from)| from.len() as u64).sum();
        let written = self.engine.write_all(&targeted, self.left(bytes));
        for (place, written) in places.into_iter().zip(written) {
            outcomes[place] = written.map_err(|cause| self.failed(&cause));
        }
    }

    /// Reads from `offset` of the region that a capability names; the checksum of what was read.
    pub(crate) fn read(
        &self,
        capability: Capability,
        offset: u64,
        into: &mut [u8],
    ) -> Result<Checksum, NotMoved> {
        let (mut at, mut whole) = (0, None::<Checksum>);
        for piece in into.chunks_mut(PIECE_BYTES) {
            let source = self.source(capability, offset + at)?;
            let bytes = piece.len() as u64;
            at += bytes;
            let begun = now();
            let read = self.engine.read_checked(&source, piece, self.left(bytes));
            let next = read.map_err(|cause| self.unread(&source, &cause))?;
            self.came(&source, bytes, begun);
            whole = Some(whole.map_or(next, |whole| whole.followed_by(next, bytes)));
        }
        Ok(whole.unwrap_or_else(|| Checksum::of(&[])))
    }

    /// Writes to `offset` of the region that a capability names.
    pub(crate) fn write(
        &self,
        capability: Capability,
        offset: u64,
        from: &[u8],
    ) -> Result<(), NotMoved> {
        let mut at = 0;
        for piece in from.chunks(PIECE_BYTES) {
            let target = self.target(capability, offset + at)?;
            let bytes = piece.len() as u64;
            at += bytes;
            self.engine
                .write_now(&target, piece, self.left(bytes))
                .map_err(|cause| self.failed(&cause))?;
        }
        Ok(())
    }

    fn target(&self, capability: Capability, offset: u64) -> Result<Target, NotMoved> {
        if self.cancel.is_some_and(Cancel::is_cancelled) {
            return Err(NotMoved::Cancelled);
        }
        let incarnation = capability.claims().incarnation;
        let peer = self
            .link
            .node(incarnation, self.until, self.cancel)
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
        match cause.class() {
            Class::Gone => NotMoved::Stale,
            _ => NotMoved::Failed,
        }
    }
}
