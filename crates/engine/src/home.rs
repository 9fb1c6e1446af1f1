//! The target's side: the regions, the capabilities and the notices of this process.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_data_plane::Notice;
use slackwater_wait::{Event, Site, Waiting, now};
use slackwater_wire::Incarnation;
use slackwater_wire::data::{Capability, CapabilityKey, Grant, Refusal, Rights};

use crate::region::{Access, PeerRight, Region, Regions};

/// The regions of one engine, its incarnation, and the key of its capabilities. All movers share it.
pub struct Home {
    incarnation: Incarnation,
    regions: Regions,
    keys: RwLock<Keys>,
    /// How often the key was changed.
    rotations: AtomicU64,
    nonce: AtomicU64,
    notices: Mutex<Notices>,
    noticed: Event,
    rotated: Mutex<Vec<Rotated>>,
}

/// The key of capabilities, and the one before it.
struct Keys {
    secret: [u8; 32],
    current: CapabilityKey,
    /// It still admits reads, until then.
    previous: Option<(CapabilityKey, Instant)>,
}

/// Queued notices with their senders.
#[derive(Debug, Default)]
struct Notices {
    line: VecDeque<(Incarnation, Notice)>,
    bytes: usize,
}

/// Revokes what was opened under an old key; returns whether it is to be called at the next rotation too.
type Rotated = Box<dyn Fn() -> bool + Send>;

/// What a capability is to grant.
#[derive(Clone, Copy, Debug)]
pub struct GrantSpec {
    /// First byte, from the start of the region.
    pub offset: u64,
    /// Bytes from there.
    pub bytes: u64,
    /// Whether they may be read, and written.
    pub rights: Rights,
    /// The tenant on whose behalf the accesses are.
    pub tenant: u64,
    /// The only incarnation that may use it; `Incarnation(0)` for any bearer. On sealed connections it is
    /// [`crate::holder_of`] the bearer's key, not a claim.
    pub holder: Incarnation,
    /// How long it is valid; none for as long as the generation.
    pub ttl: Option<Duration>,
}

impl GrantSpec {
    /// All of a region, to any bearer, for as long as its generation.
    #[must_use]
    pub fn whole(region: &Region, rights: Rights) -> Self {
        Self {
            offset: 0,
            bytes: region.bytes(),
            rights,
            tenant: 0,
            holder: Incarnation(0),
            ttl: None,
        }
    }
}

/// The most queued notices; a sender beyond that is refused.
const NOTICES_MAX: usize = 4096;
const NOTICES_BYTES_MAX: usize = 16 << 20;

pub(crate) static NOTICES: Site = Site::new("transfer notices");

/// Every home of this process, so that engines of one process find each other.
static HOMES: Mutex<BTreeMap<Incarnation, Weak<Home>>> = Mutex::new(BTreeMap::new());

/// A home that other engines of this process can find until this is dropped.
#[derive(Debug)]
pub struct HomeGuard(Arc<Home>);

impl Home {
    /// A home with a fresh random incarnation and key, which other engines of this process can find while the
    /// `HomeGuard` exists.
    ///
    /// # Errors
    /// The operating system gives no randomness.
    pub fn open() -> Result<HomeGuard, getrandom::Error> {
        let mut number = [0; 8];
        getrandom::fill(&mut number)?;
        // Zero stands for "any" on the wire.
        let incarnation = Incarnation(u64::from_le_bytes(number).max(1));
        let home = Arc::new(Self {
            incarnation,
            regions: Regions::default(),
            keys: RwLock::new(Keys::new()?),
            rotations: AtomicU64::new(0),
            nonce: AtomicU64::new(0),
            notices: Mutex::default(),
            noticed: Event::new(),
            rotated: Mutex::default(),
        });
        homes().insert(incarnation, Arc::downgrade(&home));
        Ok(HomeGuard(home))
    }

    /// The home of this incarnation, if it is in this process.
    #[must_use]
    pub fn in_process(incarnation: Incarnation) -> Option<Arc<Home>> {
        homes().get(&incarnation).and_then(Weak::upgrade)
    }

    /// The incarnation of this process.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Its regions.
    #[must_use]
    pub fn regions(&self) -> &Regions {
        &self.regions
    }

    /// The secret under which capabilities of this process are minted. Its holder grants all that the regions allow,
    /// by [`CapabilityKey::mint`], which needs nothing else of this process; so it goes to nobody but an authority of
    /// the pool, over an encrypted connection. A grant's expiry is by the clock of this process (`slackwater_wait::now`):
    /// an authority that was told a reading of that clock, and counts from the moment it heard it, is never ahead of it.
    #[must_use]
    pub fn capability_secret(&self) -> [u8; 32] {
        self.keys().secret
    }

    /// Grants a range of a region under its present generation. Rights beyond those of the region are left out. Extents
    /// of a gated region have generations of their own: capabilities for them are minted ([`Home::capability_secret`]).
    #[must_use]
    pub fn grant(&self, region: &Region, spec: &GrantSpec) -> Capability {
        let grant = Grant {
            incarnation: self.incarnation,
            region: region.id().index(),
            generation: region.generation(),
            offset: spec.offset,
            bytes: spec.bytes,
            rights: spec.rights.and(region.rights()),
            tenant: spec.tenant,
            holder: spec.holder,
            expires_nanos: spec.ttl.map_or(u64::MAX, |ttl| (now() + ttl).as_nanos()),
            nonce: self.nonce.fetch_add(1, Ordering::Relaxed),
        };
        self.keys().current.mint(&grant)
    }

    /// Checks a capability for accesses of `holder` with the rights `wanted`, and begins one. This is the first of two
    /// checks; [`Home::confirm`] is the second.
    ///
    /// # Errors
    /// What the capability or the region does not allow.
    pub fn admit(
        &self,
        capability: &Capability,
        wanted: Rights,
        range: (u64, u64),
        holder: Incarnation,
    ) -> Result<Access, Refusal> {
        if wanted == Rights::NONE {
            return Err(Refusal::Rights);
        }
        let now = now();
        let (grant, outdated, rotations) = {
            let keys = self.keys();
            let (grant, outdated) = keys.verify(capability, wanted, now)?;
            (grant, outdated, self.rotations.load(Ordering::Relaxed))
        };
        if grant.incarnation != self.incarnation {
            return Err(Refusal::Incarnation);
        }
        grant.covers(wanted, range, holder, now.as_nanos())?;
        let access = self.regions.admit(&grant, wanted, range)?;
        Ok(access.for_peer(PeerRight {
            rights: wanted,
            tenant: grant.tenant,
            expires_nanos: grant.expires_nanos,
            rotations,
            outdated,
        }))
    }

    /// Checks an access of [`Home::admit`] once more, before a write under it is acknowledged: its region is not closing,
    /// its capability has not expired, and the key was not changed.
    ///
    /// # Errors
    /// What is not allowed any more.
    pub fn confirm(&self, access: &Access) -> Result<(), Refusal> {
        if !access.is_live() {
            return Err(Refusal::Generation);
        }
        let Some(right) = access.peer() else {
            return Ok(());
        };
        if right.expires_nanos <= now().as_nanos() {
            return Err(Refusal::Expired);
        }
        match right.rotations == self.rotations.load(Ordering::Acquire) {
            true => Ok(()),
            false => Err(Refusal::Forged),
        }
    }

    /// Queues a notice of a peer, `from` as it would use a capability; says whether there was room.
    pub fn deliver(&self, from: Incarnation, notice: Notice) -> bool {
        let mut notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = notices.bytes + notice.name.len() + notice.bytes.len();
        if notices.line.len() >= NOTICES_MAX || bytes > NOTICES_BYTES_MAX {
            return false;
        }
        notices.bytes = bytes;
        notices.line.push_back((from, notice));
        drop(notices);
        self.noticed.notify_all();
        true
    }

    /// Takes the queued notices, in order, with their senders (as [`GrantSpec::holder`] names them); waits for the
    /// first until `deadline`.
    #[must_use]
    pub fn take_notices(&self, deadline: Instant) -> Vec<(Incarnation, Notice)> {
        loop {
            let seen = self.noticed.seen();
            let taken =
                std::mem::take(&mut *self.notices.lock().unwrap_or_else(PoisonError::into_inner));
            if !taken.line.is_empty() {
                return taken.line.into();
            }
            if self
                .noticed
                .wait(seen, &Waiting::at(&NOTICES).until(deadline))
                .is_err()
            {
                return Vec::new();
            }
        }
    }

    /// Takes a new key: when this returns, no write begins under a capability that was granted before, nor a copy through
    /// a window that was opened for one, and no read once `grace` is over. What is under way goes on and does not count:
    /// a write is refused at its end, a copy of another process is not reported as done.
    ///
    /// # Errors
    /// The operating system gives no randomness; the old key stays.
    pub fn rotate(&self, grace: Duration) -> Result<(), getrandom::Error> {
        let fresh = Keys::new()?;
        {
            let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
            let replaced = std::mem::replace(&mut *keys, fresh);
            keys.previous = Some((replaced.current, now() + grace));
            self.rotations.fetch_add(1, Ordering::Release);
        }
        // Only after the key was changed: whatever is opened from here on was checked under the new key.
        self.rotated
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|take_back| take_back());
        Ok(())
    }

    /// Calls `take_back` at every rotation, after the old key admits nothing any more. For a mover that checks a
    /// capability once and then lets the peer copy by itself.
    pub fn when_rotated(&self, take_back: Rotated) {
        self.rotated
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(take_back);
    }

    fn keys(&self) -> RwLockReadGuard<'_, Keys> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keys {
    fn new() -> Result<Self, getrandom::Error> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret)?;
        Ok(Self {
            secret,
            current: CapabilityKey::new(&secret),
            previous: None,
        })
    }

    /// What a capability grants, and whether it was minted under the previous key.
    fn verify(
        &self,
        capability: &Capability,
        wanted: Rights,
        now: Instant,
    ) -> Result<(Grant, bool), Refusal> {
        match (self.current.verify(capability), &self.previous) {
            (Err(_), Some((previous, until))) if wanted == Rights::READ && now < *until => {
                Ok((previous.verify(capability)?, true))
            }
            (verified, _) => Ok((verified?, false)),
        }
    }
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Home")
            .field("incarnation", &self.incarnation)
            .field("regions", &self.regions)
            .finish_non_exhaustive()
    }
}

impl std::ops::Deref for HomeGuard {
    type Target = Arc<Home>;

    fn deref(&self) -> &Arc<Home> {
        &self.0
    }
}

impl Drop for HomeGuard {
    fn drop(&mut self) {
        homes().remove(&self.0.incarnation);
    }
}

fn homes() -> std::sync::MutexGuard<'static, BTreeMap<Incarnation, Weak<Home>>> {
    HOMES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notices were limited in number and not in bytes: four thousand of 64 KiB each, which were never taken, were 256
    /// MiB.
    #[test]
    fn notices_are_bounded_in_number_and_in_bytes() {
        let home = Home::open().unwrap();
        let send = |bytes| {
            home.deliver(
                Incarnation(1),
                Notice {
                    name: "n".to_owned(),
                    bytes: vec![0; bytes],
                },
            )
        };
        let large = (0..).take_while(|_| send((64 << 10) - 1)).count();
        assert_eq!(large, NOTICES_BYTES_MAX >> 16);
        assert_eq!(home.take_notices(Instant::ZERO).len(), large);
        assert_eq!((0..).take_while(|_| send(0)).count(), NOTICES_MAX);
    }
}
