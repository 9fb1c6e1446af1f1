use std::time::{self, Duration};

use slackwater_base::{Checksum, Instant};
use slackwater_tier::arena::{Access as ArenaAccess, AccessId};
use slackwater_wire::{
    Chain, Durability, ErrorCode, ExtentRef, Key, PutConfig, PutDone, PutEnd, PutEntry, PutStart, PutStarted, Reply,
    Request, Version, limits,
};

use super::core::{Asked, Core};
use super::shared::Shared;
use super::{PutOptions, StoreError, Stored};
use crate::region::{Access, Grant};

/// One value of a put.
pub(super) type Entry<'a> = (&'a [u8], &'a [u8]);

type Outcome = Result<Stored, StoreError>;

/// Part of memory that one request of a large batch may ask for: the first of its values must be published before the
/// last can find room.
const SHARE: u64 = 8;

/// Room that was granted, to be filled.
struct Granted {
    version: Version,
    extents: Vec<(Grant, AccessId)>,
    /// Whether every extent can be filled; one that cannot was taken back already.
    whole: bool,
    checksum: Checksum,
}

impl Shared {
    /// Puts values, an outcome each.
    pub(super) fn write(&self, entries: &[Entry<'_>], options: &PutOptions) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(entries.len());
        let mut chain = options.chain.clone();
        let mut rest = entries;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(self.piece(rest));
            outcomes.extend(self.write_piece(piece, options, &chain));
            chain.parent = piece.last().and_then(|(key, _)| Key::new(key).ok());
            chain.position += piece.len() as u32;
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
        entries.iter().take(limits::BATCH_KEYS_MAX).take_while(fits).count().max(1)
    }

    fn write_piece(&self, entries: &[Entry<'_>], options: &PutOptions, chain: &Chain) -> Vec<Outcome> {
        let begun = time::Instant::now();
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(entries.len());
        let mut named = Vec::with_capacity(entries.len());
        for (at, entry) in entries.iter().enumerate() {
            let key = self.check(entry).map(|key| named.push((at, key)));
            outcomes.push(key.map(|()| Stored::New));
        }
        if let Err(error) = self.write_named(entries, &named, (options, chain), &mut outcomes) {
            for (at, _) in named {
                outcomes[at] = Err(error.clone());
            }
        }
        let took = begun.elapsed();
        for ((_, value), outcome) in entries.iter().zip(&outcomes) {
            self.meters.put(outcome, value.len(), took);
        }
        outcomes
    }

    fn check(&self, (key, value): &Entry<'_>) -> Result<Key, StoreError> {
        let key = Key::new(key)?;
        let (bytes, limit) = (value.len() as u64, self.config.memory.0);
        match bytes {
            0 => Err(StoreError::EmptyValue { key }),
            _ if bytes > limit => Err(StoreError::ValueTooLarge { key, bytes, limit }),
            _ => Ok(key),
        }
    }

    /// One request: find room, copy outside the lock, publish.
    fn write_named(
        &self,
        entries: &[Entry<'_>],
        named: &[(usize, Key)],
        (options, chain): (&PutOptions, &Chain),
        outcomes: &mut [Outcome],
    ) -> Result<(), StoreError> {
        self.check_open()?;
        if options.durability == Durability::Disk && self.disk.is_none() {
            return Err(StoreError::NeedsSsd { what: "a put that is durable when it returns" });
        }
        if named.is_empty() {
            return Ok(());
        }
        let wait = options.wait.unwrap_or(self.config.put_wait).min(self.config.deadline);
        let begun = time::Instant::now();
        let request = self.put_start(entries, named, (options, chain), wait);
        let asked = self.with(|core, now| match core.ask(now, request) {
            Asked::Now(reply) => Ok(self.begin_writes(core, now, reply)),
            Asked::Later(slot) => Err(slot),
        })?;
        // The master ends a put that waits for space by itself, by the time it was told.
        let started = match asked {
            Ok(started) => started,
            Err(slot) => {
                let reply = slot.wait()?;
                self.with(|core, now| self.begin_writes(core, now, reply))?
            }
        };
        let mut granted = Vec::with_capacity(named.len());
        for ((at, key), started) in named.iter().zip(started?) {
            match started {
                Begun::Granted(room) => granted.push((*at, key.clone(), room)),
                Begun::Existed => outcomes[*at] = Ok(Stored::Existed),
                Begun::Failed(ErrorCode::NoAvailableHandle) => {
                    let (key, bytes, waited) = (key.clone(), entries[*at].1.len() as u64, begun.elapsed());
                    outcomes[*at] = Err(StoreError::NoSpace { key, bytes, waited });
                }
                Begun::Failed(code) => outcomes[*at] = Err(StoreError::Refused { key: key.clone(), code }),
            }
        }
        for (at, _, Granted { extents, checksum, .. }) in &mut granted {
            for (grant, _) in extents {
                *checksum = grant.copy_in(entries[*at].1);
            }
        }
        self.publish(granted, options, outcomes)
    }

    fn put_start(
        &self,
        entries: &[Entry<'_>],
        named: &[(usize, Key)],
        (options, chain): (&PutOptions, &Chain),
        wait: Duration,
    ) -> Request {
        let entry = |(at, key): &(usize, Key)| PutEntry { key: key.clone(), bytes: entries[*at].1.len() as u64 };
        let PutOptions { tenant, mode, pin, group, durability, .. } = options;
        let config = PutConfig {
            mode: *mode,
            pin: *pin,
            group: *group,
            durability: *durability,
            wait: Some(wait),
            ..PutConfig::default()
        };
        let entries = named.iter().map(entry).collect();
        Request::PutStart(PutStart { tenant: tenant.clone(), entries, chain: chain.clone(), config })
    }

    fn begin_writes(&self, core: &mut Core, now: Instant, reply: Reply) -> Result<Vec<Begun>, StoreError> {
        let started = match reply {
            Reply::PutStart(started) => started,
            Reply::Failed(code) => return Err(StoreError::RefusedCall(code)),
            _ => return Err(StoreError::RefusedCall(ErrorCode::InternalError)),
        };
        let begin = |started: PutStarted| match started {
            PutStarted::Granted { version, extents } => {
                let want = extents.len();
                let extents: Vec<_> = extents.iter().filter_map(|extent| self.begin_write(core, now, extent)).collect();
                let whole = extents.len() == want;
                Begun::Granted(Granted { version, extents, whole, checksum: Checksum::default() })
            }
            PutStarted::Exists => Begun::Existed,
            PutStarted::Failed(code) => Begun::Failed(code),
        };
        Ok(started.into_iter().map(begin).collect())
    }

    fn begin_write(&self, core: &mut Core, now: Instant, extent: &ExtentRef) -> Option<(Grant, AccessId)> {
        let access = core.begin_access(extent, ArenaAccess::Write)?;
        // SAFETY: the master gave the extent to this put alone, and until the access ends the agent lets nobody else
        // touch it nor the master give it out again.
        match unsafe { self.segment.grant(extent, Access::Write) } {
            Some(grant) => Some((grant, access)),
            None => {
                core.end_access(now, access);
                None
            }
        }
    }

    /// Ends the writing and publishes; waits where the acknowledgement promises more than memory.
    fn publish(
        &self,
        granted: Vec<(usize, Key, Granted)>,
        options: &PutOptions,
        outcomes: &mut [Outcome],
    ) -> Result<(), StoreError> {
        let (mut puts, mut places, mut revoked, mut accesses) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (at, key, Granted { version, extents, whole, checksum }) in granted {
            accesses.extend(extents.into_iter().map(|(_, access)| access));
            if whole {
                puts.push(PutDone { key, version, checksum });
                places.push(at);
            } else {
                outcomes[at] = Err(StoreError::Refused { key: key.clone(), code: ErrorCode::InvalidWrite });
                revoked.push((key, version));
            }
        }
        let keys: Vec<Key> = puts.iter().map(|put| put.key.clone()).collect();
        let tenant = &options.tenant;
        let asked = self.with(|core, now| {
            for access in accesses {
                core.end_access(now, access);
            }
            if !revoked.is_empty() {
                core.ask(now, Request::PutRevoke { tenant: tenant.clone(), puts: revoked });
            }
            (!puts.is_empty()).then(|| core.ask(now, Request::PutEnd(PutEnd { tenant: tenant.clone(), puts })))
        })?;
        let reply = match asked {
            None => return Ok(()),
            Some(Asked::Now(reply)) => reply,
            Some(Asked::Later(slot)) => self.wait_in_time("a put", &slot)?,
        };
        match reply {
            Reply::Each(results) => {
                for ((at, key), result) in places.into_iter().zip(keys).zip(results) {
                    if let Err(code) = result {
                        outcomes[at] = Err(StoreError::Refused { key, code });
                    }
                }
                Ok(())
            }
            Reply::Failed(code) => Err(StoreError::RefusedCall(code)),
            _ => Err(StoreError::RefusedCall(ErrorCode::InternalError)),
        }
    }
}

/// What a put's start became, with leave to write where there is room.
enum Begun {
    Granted(Granted),
    Existed,
    Failed(ErrorCode),
}
