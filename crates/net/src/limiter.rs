use slackwater_base::{Counted, Instant, Tally};
use std::collections::BTreeMap;

use crate::{Origin, TokenBucket};

/// Bounds on connections of unauthenticated peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreAuthLimits {
    /// Unproven connections in all; more wait in the kernel's queue.
    pub total: usize,
    /// Unproven connections of one source, an address or a user of this machine; more are closed.
    pub per_source: usize,
    /// New connections per second in all; more wait.
    pub rate: u32,
    /// New connections per second of one source; more are closed.
    pub rate_per_source: u32,
}

impl Default for PreAuthLimits {
    fn default() -> Self {
        Self {
            total: 1024,
            per_source: 64,
            rate: 10_000,
            rate_per_source: 2_000,
        }
    }
}

/// A connection that has not been authenticated, as the limiter counts it.
#[derive(Debug)]
pub(crate) struct Unproven {
    of_all: Counted,
    of_source: (Origin, Counted),
}

/// The cause for which a new connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// This source has too many unproven connections.
    SourceFull,
    /// This source opens connections too fast.
    SourceTooFast,
}

/// Counts unproven connections by source. Sources are remembered only while they have such connections or have
/// spent their tokens lately, and never more than [`SOURCES`] of them.
#[derive(Debug)]
pub(crate) struct Limiter {
    limits: PreAuthLimits,
    open: Tally,
    all: TokenBucket,
    sources: BTreeMap<Origin, Account>,
}

#[derive(Debug)]
struct Account {
    open: Tally,
    bucket: TokenBucket,
}

const SOURCES: usize = 16_384;

impl Limiter {
    pub(crate) fn new(limits: PreAuthLimits, now: Instant) -> Self {
        let all = TokenBucket::full(limits.rate, now);
        Self {
            limits,
            open: Tally::default(),
            all,
            sources: BTreeMap::new(),
        }
    }

    /// When the next connection may be taken from the kernel; `NEVER` while all slots are taken.
    pub(crate) fn next_slot(&mut self, now: Instant) -> Instant {
        if self.open.count() >= self.limits.total {
            return Instant::NEVER;
        }
        self.all.next_token(now)
    }

    /// A connection of `source` has been taken.
    pub(crate) fn enter(&mut self, source: Origin, now: Instant) -> Result<Unproven, Refused> {
        self.all.take(now);
        self.forget_idle(now);
        let rate = self.limits.rate_per_source;
        let account = self.sources.entry(source).or_insert_with(|| Account {
            open: Tally::default(),
            bucket: TokenBucket::full(rate, now),
        });
        if account.open.count() >= self.limits.per_source {
            return Err(Refused::SourceFull);
        }
        if !account.bucket.take(now) {
            return Err(Refused::SourceTooFast);
        }
        Ok(Unproven {
            of_source: (source, account.open.add()),
            of_all: self.open.add(),
        })
    }

    /// A connection that had entered is proven or gone.
    pub(crate) fn leave(&mut self, unproven: Unproven, now: Instant) {
        self.open.remove(unproven.of_all);
        let (source, counted) = unproven.of_source;
        if let Some(account) = self.sources.get_mut(&source) {
            account.open.remove(counted);
            if account.open.count() == 0 && account.bucket.is_full(now) {
                self.sources.remove(&source);
            }
        }
    }

    /// Unproven connections now.
    pub(crate) fn open(&self) -> usize {
        self.open.count()
    }

    fn forget_idle(&mut self, now: Instant) {
        if self.sources.len() >= SOURCES {
            self.sources
                .retain(|_, account| account.open.count() > 0 || !account.bucket.is_full(now));
        }
        // A source is not added at the expense of others when that many are known.
        if self.sources.len() >= SOURCES {
            self.sources.retain(|_, account| account.open.count() > 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use super::*;

    const A: Origin = Origin::Host(IpAddr::V4(Ipv4Addr::LOCALHOST));
    const B: Origin = Origin::User(1000);

    /// Connections by Unix sockets counted in all alone, so one user could take every slot.
    #[test]
    fn one_source_cannot_take_the_slots_of_another() {
        let limits = PreAuthLimits {
            total: 3,
            per_source: 2,
            ..PreAuthLimits::default()
        };
        let now = Instant::ZERO;
        for (one, other) in [(A, B), (B, A)] {
            let mut limiter = Limiter::new(limits, now);
            let first = limiter.enter(one, now).unwrap();
            assert!(limiter.enter(one, now).is_ok());
            assert_eq!(limiter.enter(one, now).unwrap_err(), Refused::SourceFull);
            assert!(limiter.enter(other, now).is_ok());
            assert_eq!(limiter.next_slot(now), Instant::NEVER);
            limiter.leave(first, now);
            assert_eq!(limiter.next_slot(now), now);
            assert_eq!(limiter.open(), 2);
        }
    }

    #[test]
    fn rates_refill_with_time() {
        let limits = PreAuthLimits {
            rate: 4,
            rate_per_source: 2,
            ..PreAuthLimits::default()
        };
        let mut limiter = Limiter::new(limits, Instant::ZERO);
        let mut enter = |source, millis| {
            let entered = limiter.enter(source, Instant::ZERO + Duration::from_millis(millis));
            entered.map(drop)
        };
        assert_eq!(enter(A, 0), Ok(()));
        assert_eq!(enter(A, 0), Ok(()));
        assert_eq!(enter(A, 0), Err(Refused::SourceTooFast));
        assert_eq!(enter(A, 500), Ok(()));
        let mut limiter = Limiter::new(limits, Instant::ZERO);
        for source in [A, A, B, B] {
            assert!(limiter.enter(source, Instant::ZERO).is_ok());
        }
        assert_eq!(
            limiter.next_slot(Instant::ZERO),
            Instant::ZERO + Duration::from_millis(250)
        );
    }

    #[test]
    fn sources_are_forgotten_when_they_owe_nothing() {
        let mut limiter = Limiter::new(PreAuthLimits::default(), Instant::ZERO);
        let entered = limiter.enter(A, Instant::ZERO).unwrap();
        limiter.leave(entered, Instant::ZERO + Duration::from_secs(2));
        assert!(limiter.sources.is_empty());
    }
}
