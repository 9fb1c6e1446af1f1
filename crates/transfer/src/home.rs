//! The passive side: what this process lets others reach.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_wait::{Event, Site, Waiting, now};
use slackwater_wire::Incarnation;
use slackwater_wire::data::{Capability, CapabilityKey, Grant, Op, Refusal, Rights};

use crate::mover::Notice;
use crate::region::{Access, Region, Regions};

/// The regions of one engine, its incarnation, and the key of its capabilities. All movers share it.
pub struct Home {
    incarnation: Incarnation,
    regions: Regions,
    key: RwLock<CapabilityKey>,
    nonce: AtomicU64,
    notices: Mutex<Notices>,
    noticed: Event,
    rotated: Mutex<Vec<Rotated>>,
}

/// Notices in line, with their senders.
#[derive(Debug, Default)]
struct Notices {
    line: VecDeque<(Incarnation, Notice)>,
    bytes: usize,
}

/// Takes back what was handed out under a key that is no more; says whether it wants to hear of the next rotation.
type Rotated = Box<dyn Fn() -> bool + Send>;

/// What to grant.
#[derive(Clone, Copy, Debug)]
pub struct GrantSpec {
    /// First byte, from the start of the region.
    pub offset: u64,
    /// Bytes from there.
    pub bytes: u64,
    /// What may be done with them.
    pub rights: Rights,
    /// On whose behalf.
    pub tenant: u64,
    /// The incarnation that alone may use it; `Incarnation(0)` for any bearer. Sealed connections do not take a claim
    /// for it: there it is [`crate::holder_of`] the bearer's key.
    pub holder: Incarnation,
    /// How long it holds; none for as long as the generation.
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

/// Notices that nobody has taken; a sender beyond that is told.
const NOTICES_MAX: usize = 4096;
const NOTICES_BYTES_MAX: usize = 16 << 20;

static NOTICES: Site = Site::new("transfer notices");

/// Every home of this process, so that engines side by side find each other.
static HOMES: Mutex<BTreeMap<Incarnation, Weak<Home>>> = Mutex::new(BTreeMap::new());

/// A home that others of this process can find; they no longer can when it is dropped.
#[derive(Debug)]
pub struct HomeGuard(Arc<Home>);

impl Home {
    /// A home with a fresh random incarnation and key, to be found by others of this process while `Life` lives.
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
            key: RwLock::new(new_key()?),
            nonce: AtomicU64::new(0),
            notices: Mutex::default(),
            noticed: Event::new(),
            rotated: Mutex::default(),
        });
        homes().insert(incarnation, Arc::downgrade(&home));
        Ok(HomeGuard(home))
    }

    /// The home of an incarnation that lives in this process.
    #[must_use]
    pub fn in_process(incarnation: Incarnation) -> Option<Arc<Home>> {
        homes().get(&incarnation).and_then(Weak::upgrade)
    }

    /// Which life of the process this is.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Its regions.
    #[must_use]
    pub fn regions(&self) -> &Regions {
        &self.regions
    }

    /// Grants a range of a region under its present generation. Rights beyond those of the region are left out.
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
        self.key
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .mint(&grant)
    }

    /// Checks a capability for one operation of `holder` and begins the access. The first of two checks: before a
    /// write is acknowledged, and after the bytes of a read are taken, [`Access::is_live`] is the second.
    ///
    /// # Errors
    /// What the capability or the region does not allow.
    pub fn admit(
        &self,
        capability: &Capability,
        op: Op,
        range: (u64, u64),
        holder: Incarnation,
    ) -> Result<Access, Refusal> {
        let grant = self
            .key
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .verify(capability)?;
        if grant.incarnation != self.incarnation {
            return Err(Refusal::Incarnation);
        }
        let wanted = match op {
            Op::Read => Rights::READ,
            Op::Write => Rights::WRITE,
        };
        grant.covers(wanted, range, holder, now().as_nanos())?;
        let access = self
            .regions
            .admit(grant.region, grant.generation, wanted, range)?;
        Ok(access.for_peer(grant.tenant))
    }

    /// Puts a notice of a peer in line, `from` as it would use a capability; says whether there was room.
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

    /// Takes the notices in line, in order, with their senders (as [`GrantSpec::holder`] names them); waits for the first
    /// until `deadline`.
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

    /// Takes a new key: when this returns, no request begins under a capability that was granted before, nor by anything
    /// that was opened for one. Requests that were admitted before go on and end; copies of other processes that are under
    /// way run out, and do not count.
    ///
    /// # Errors
    /// The operating system gives no randomness; the old key stays.
    pub fn rotate(&self) -> Result<(), getrandom::Error> {
        let key = new_key()?;
        *self.key.write().unwrap_or_else(PoisonError::into_inner) = key;
        // Only now: what is opened from here on was checked under the new key.
        self.rotated
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|take_back| take_back());
        Ok(())
    }

    /// Calls `take_back` at every rotation, when nothing is admitted under the old key any more. For a mover that checks a
    /// capability once and lets the peer go on by itself.
    pub(crate) fn when_rotated(&self, take_back: Rotated) {
        self.rotated
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(take_back);
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

fn new_key() -> Result<CapabilityKey, getrandom::Error> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret)?;
    Ok(CapabilityKey::new(&secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notices were counted, not weighed: four thousand of 64 KiB each, which nobody took, were 256 MiB.
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
