use std::time;

use slackwater_base::{Checksum, Instant};
use slackwater_client::{Action, FlowOptions, PutFlow, PutOutcome, WriteFailure};
use slackwater_tier::arena::{Access as ArenaAccess, AccessId};
use slackwater_trace::{SpanKind, TraceSpan};
use slackwater_wire::{
    Chain, Durability, ErrorCode, ExtentRef, Key, OperationId, PutConfig, PutEntry, PutStart,
    Reply, limits,
};

use super::copier::PUT_BYTES_MIN;
use super::core::{Asked, Core};
use super::shared::Shared;
use super::slot::Later;
use super::{PutOptions, StoreError, Stored};
use crate::region::{Access, Grant, copy_in_all};

/// One value of a put.
pub(super) type Entry<'a> = (&'a [u8], &'a [u8]);

type Outcome = Result<Stored, StoreError>;

/// Part of memory that one request of a large batch may ask for: the first of its values must be published before the
/// last can find room.
const SHARE: u64 = 8;

/// One request's puts, under way: the flow decides, this moves the bytes.
struct Writer<'s, 'v> {
    shared: &'s Shared,
    options: &'s PutOptions,
    entries: &'v [Entry<'v>],
    /// The entries that can be put, with their positions in the request.
    keys: Vec<Key>,
    places: Vec<usize>,
    outcomes: Vec<Outcome>,
    actions: Vec<Action>,
    /// Room that was granted and is to be filled.
    writings: Vec<Writing>,
    /// An answer that comes later.
    awaited: Option<(OperationId, Later<Reply>)>,
}

/// An entry that is being copied to its replicas.
struct Writing {
    index: usize,
    extents: Vec<(Grant, AccessId)>,
    checksum: Checksum,
}

impl Shared {
    /// Puts values, an outcome each.
    pub(super) fn write(&self, entries: &[Entry<'_>], options: &PutOptions) -> Vec<Outcome> {
        let span = TraceSpan::root("slackwater.put", SpanKind::Internal).keys(entries.len());
        span.call_each(|| self.write_all(entries, options), StoreError::code)
    }

    fn write_all(&self, entries: &[Entry<'_>], options: &PutOptions) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(entries.len());
        let mut chain = options.chain.clone();
        let mut rest = entries;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(self.piece(rest));
            outcomes.extend(Writer::new(self, options, piece).run(&chain));
            chain.parent = piece.last().and_then(|(key, _)| Key::new(key).ok());
            chain.position = chain.position.saturating_add(piece.len() as u32);
            rest = after;
        }
        outcomes
    }

    /// How many of the entries, one at least, go into one request.
    fn piece(&self, entries: &[Entry<'_>]) -> usize {
        let share = self.config.memory.0 / SHARE;
        let mut bytes = 0;
        let fits = |(_, value): &&Entry<'_>| {
            bytes += slackwater_base::round_to_block(value.len() as u64);
            bytes <= share
        };
        entries
            .iter()
            .take(limits::BATCH_KEYS_MAX)
            .take_while(fits)
            .count()
            .max(1)
    }

    fn check_entry(&self, (key, value): &Entry<'_>) -> Result<Key, StoreError> {
        let key = Key::new(key)?;
        let (bytes, limit) = (value.len() as u64, self.config.memory.0);
        match bytes {
            0 => Err(StoreError::EmptyValue { key }),
            _ if bytes > limit => Err(StoreError::ValueTooLarge { key, bytes, limit }),
            _ => Ok(key),
        }
    }
}

impl<'s, 'v> Writer<'s, 'v> {
    fn new(shared: &'s Shared, options: &'s PutOptions, entries: &'v [Entry<'v>]) -> Self {
        let (keys, places, outcomes) = (Vec::new(), Vec::new(), Vec::new());
        let (actions, writings) = (Vec::new(), Vec::new());
        Self {
            shared,
            options,
            entries,
            keys,
            places,
            outcomes,
            actions,
            writings,
            awaited: None,
        }
    }

    fn run(mut self, chain: &Chain) -> Vec<Outcome> {
        let begun = time::Instant::now();
        for (at, entry) in self.entries.iter().enumerate() {
            match self.shared.check_entry(entry) {
                Ok(key) => {
                    self.keys.push(key);
                    self.places.push(at);
                    self.outcomes.push(Ok(Stored::New));
                }
                Err(error) => self.outcomes.push(Err(error)),
            }
        }
        if let Err(error) = self.write(chain) {
            for at in &self.places {
                self.outcomes[*at] = Err(error.clone());
            }
        }
        let took = begun.elapsed();
        for ((_, value), outcome) in self.entries.iter().zip(&self.outcomes) {
            self.shared.meters.put(outcome, value.len(), took);
        }
        self.outcomes
    }

    /// Finds room, copies outside the lock, publishes, and waits where the acknowledgement promises more than memory.
    fn write(&mut self, chain: &Chain) -> Result<(), StoreError> {
        let shared = self.shared;
        shared.check_open()?;
        if self.options.durability == Durability::Disk && shared.disk.is_none() {
            return Err(StoreError::NeedsSsd {
                what: "a put that is durable when it returns",
            });
        }
        if self.keys.is_empty() {
            return Ok(());
        }
        let begun = shared.clock.now();
        let deadline = begun + shared.config.deadline;
        let mut flow = PutFlow::start(
            begun,
            self.put_start(chain),
            FlowOptions::once(deadline),
            &mut self.actions,
        );
        shared.with(|core, now| self.act(core, now, &mut flow))?;
        if let Some((operation, room)) = self.awaited.take() {
            // The master ends a put that waits for space by itself, at the time it was told.
            let reply = room.wait(&shared.waits.at(&shared.waits.space))?;
            shared.with(|core, now| {
                flow.on_reply(now, operation, reply, &mut self.actions);
                self.act(core, now, &mut flow);
            })?;
        }
        let waited = begun.until(shared.clock.now());
        if !self.writings.is_empty() {
            self.copy();
            shared.with(|core, now| self.conclude(core, now, &mut flow))?;
        }
        if let Some((operation, published)) = self.awaited.take() {
            let waiting = shared.waits.at(&shared.waits.durable);
            let reply = published.wait_until(shared.clock.wait_until(deadline), waiting);
            shared.with(|core, now| {
                match reply {
                    Some(Ok(reply)) => flow.on_reply(now, operation, reply, &mut self.actions),
                    Some(Err(_)) | None => flow.on_deadline(deadline, &mut self.actions),
                }
                self.act(core, now, &mut flow);
            })?;
        }
        for (index, outcome) in flow.outcomes().into_iter().flatten().enumerate() {
            self.settle(index, outcome, waited);
        }
        Ok(())
    }

    fn put_start(&self, chain: &Chain) -> PutStart {
        let PutOptions {
            tenant,
            mode,
            pin,
            group,
            durability,
            wait,
            ..
        } = self.options;
        let entry = |(key, at): (&Key, &usize)| PutEntry {
            key: key.clone(),
            bytes: self.entries[*at].1.len() as u64,
        };
        let config = &self.shared.config;
        PutStart {
            tenant: tenant.clone(),
            entries: self.keys.iter().zip(&self.places).map(entry).collect(),
            chain: chain.clone(),
            config: PutConfig {
                mode: *mode,
                pin: *pin,
                group: *group,
                durability: *durability,
                wait: Some(wait.unwrap_or(config.put_wait).min(config.deadline)),
                ..PutConfig::default()
            },
        }
    }

    /// Does what the flow wants, as far as it needs the lock.
    fn act(&mut self, core: &mut Core, now: Instant, flow: &mut PutFlow) {
        while !self.actions.is_empty() {
            for action in std::mem::take(&mut self.actions) {
                match action {
                    Action::Ask { operation, request } => match core.ask(now, request) {
                        Asked::Now(reply) => {
                            flow.on_reply(now, operation, reply, &mut self.actions)
                        }
                        Asked::Later(later) => self.awaited = Some((operation, later)),
                    },
                    Action::Tell { request, .. } => _ = core.ask(now, request),
                    Action::Write { index, extents } => {
                        self.open(core, now, (index, extents), flow)
                    }
                    Action::Cancel { index } => self.cancel(core, now, index, flow),
                    Action::Read { .. } => unreachable!("a flow that puts does not read"),
                }
            }
        }
    }

    fn open(
        &mut self,
        core: &mut Core,
        now: Instant,
        (index, extents): (usize, Vec<ExtentRef>),
        flow: &mut PutFlow,
    ) {
        let want = extents.len();
        let open: Vec<_> = extents
            .iter()
            .filter_map(|extent| self.begin(core, now, extent))
            .collect();
        if open.len() == want {
            self.writings.push(Writing {
                index,
                extents: open,
                checksum: Checksum::default(),
            });
            return;
        }
        for (grant, access) in open {
            drop(grant);
            core.end_access(now, access);
        }
        flow.on_written(now, index, Err(WriteFailure::Stale), &mut self.actions);
    }

    /// Ends a write whose bytes are not moving: under the lock none are, as they move between two holds of it.
    fn cancel(&mut self, core: &mut Core, now: Instant, index: usize, flow: &mut PutFlow) {
        let same = |writing: &Writing| writing.index == index;
        if let Some(at) = self.writings.iter().position(same) {
            for (grant, access) in self.writings.remove(at).extents {
                drop(grant);
                core.end_access(now, access);
            }
        }
        let cancelled = Err(WriteFailure::Cancelled);
        flow.on_written(now, index, cancelled, &mut self.actions);
    }

    fn begin(
        &self,
        core: &mut Core,
        now: Instant,
        extent: &ExtentRef,
    ) -> Option<(Grant, AccessId)> {
        let access = core.begin_access(extent, ArenaAccess::Write)?;
        // SAFETY: the master gave the extent to this put alone, and until the access ends the agent lets nobody else
        // touch it nor the master give it out again.
        match unsafe { self.shared.segment.grant(extent, Access::Write) } {
            Some(grant) => Some((grant, access)),
            None => {
                core.end_access(now, access);
                None
            }
        }
    }

    /// Copies the values to their replicas, with several threads when there is enough to copy.
    fn copy(&mut self) {
        let (entries, places) = (self.entries, &self.places);
        let value = |index: usize| entries[places[index]].1;
        let bytes = self
            .writings
            .iter()
            .map(|writing| value(writing.index).len() * writing.extents.len())
            .sum();
        let Some(pool) = self.shared.copier.pool(bytes, PUT_BYTES_MIN) else {
            for Writing {
                index,
                extents,
                checksum,
            } in &mut self.writings
            {
                for (grant, _) in extents {
                    *checksum = grant.copy_in(value(*index));
                }
            }
            return;
        };
        let (mut sums, mut replicas) = (Vec::new(), Vec::new());
        for Writing {
            index,
            extents,
            checksum,
        } in &mut self.writings
        {
            sums.push((checksum, extents.len()));
            replicas.extend(extents.iter_mut().map(|(grant, _)| (grant, value(*index))));
        }
        let mut copied = copy_in_all(pool, &mut replicas).into_iter();
        for (checksum, replicas) in sums {
            // All replicas hold the same bytes: one sum stands for them.
            if let Some(last) = copied.by_ref().take(replicas).last() {
                *checksum = last.checksum;
            }
        }
    }

    /// Ends the writing and tells the flow, which publishes.
    fn conclude(&mut self, core: &mut Core, now: Instant, flow: &mut PutFlow) {
        for Writing {
            index,
            extents,
            checksum,
        } in std::mem::take(&mut self.writings)
        {
            let mut live = true;
            for (grant, access) in extents {
                drop(grant);
                live &= core.end_access(now, access);
            }
            let result = if live {
                Ok(checksum)
            } else {
                Err(WriteFailure::Stale)
            };
            flow.on_written(now, index, result, &mut self.actions);
        }
        self.act(core, now, flow);
    }

    fn settle(&mut self, index: usize, outcome: PutOutcome, waited: time::Duration) {
        let (at, key) = (self.places[index], self.keys[index].clone());
        self.outcomes[at] = match outcome {
            PutOutcome::Stored => Ok(Stored::New),
            PutOutcome::Existed => Ok(Stored::Existed),
            PutOutcome::Failed(ErrorCode::NoAvailableHandle) => Err(StoreError::NoSpace {
                key,
                bytes: self.entries[at].1.len() as u64,
                waited,
            }),
            PutOutcome::Failed(code) => Err(StoreError::Refused { key, code }),
            PutOutcome::Unknown => Err(StoreError::Deadline {
                what: "a put",
                after: self.shared.config.deadline,
            }),
        };
    }
}
