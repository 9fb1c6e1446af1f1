//! The chains that are read most, for people who look. Nothing is counted while nobody does.

use std::time::Duration;

use slackwater_base::{HeavyHitters, Instant};
use slackwater_wire::{Get, Key, Tenant};

use crate::master::Master;

/// Chains that have a counter: a count is too high by no more than one part of this of all look-ups.
const COUNTERS: usize = 128;
/// Chains that are told.
const TOLD: usize = 10;
/// Look-ups that are counted after a look: more than there are until the next one, where somebody looks again and again.
const COUNTED_A_LOOK: u64 = 10_000_000;
/// All counts are halved after this time, so that a chain read for the last time an hour ago counts for nothing.
const HALF_LIFE: Duration = Duration::from_secs(60);
/// So many halvings leave nothing of a count.
const HALVINGS_MAX: u128 = 64;

/// A chain that is read often.
#[derive(Clone, Debug, PartialEq)]
pub struct HotChain {
    /// The tenant that the chain belongs to.
    pub tenant: Tenant,
    /// Its first block.
    pub first: Key,
    /// Look-ups that began with this block lately, at most. One of a minute ago counts half.
    pub reads: f64,
    /// How many of these may have been look-ups of other chains.
    pub excess: f64,
}

/// Counts look-ups by the first block of their chain.
pub(crate) struct Hottest {
    chains: HeavyHitters<(Tenant, Key)>,
    /// Look-ups that are counted until the next look.
    left: u64,
    halved: Instant,
}

impl Default for Hottest {
    fn default() -> Self {
        Self {
            chains: HeavyHitters::with_counters(COUNTERS),
            left: 0,
            halved: Instant::ZERO,
        }
    }
}

impl Hottest {
    /// Counts a look-up by a tenant, whose first key has this hash, if somebody looks. A piece that continues a chain counts
    /// with the piece that began it, and one whose beginning is unknown not at all.
    pub(crate) fn read(&mut self, now: Instant, tenant: &Tenant, get: &Get, hash: u64) {
        if self.left > 0 && get.chain.begins_at_root() {
            self.left -= 1;
            self.age(now);
            let name = || (tenant.clone(), get.keys[0].clone());
            self.chains.add(hash, name);
        }
    }

    /// What is counted until the next look is counted from now on.
    fn look(&mut self, now: Instant) {
        if self.left == 0 {
            // Look-ups before this were not counted, so counts would be too low.
            self.chains.clear();
            self.halved = now;
        }
        self.left = COUNTED_A_LOOK;
        self.age(now);
    }

    /// Halves the counts as often as it is time.
    fn age(&mut self, now: Instant) {
        if self.halved + HALF_LIFE > now {
            return;
        }
        if self.halved.until(now).as_nanos() / HALF_LIFE.as_nanos() >= HALVINGS_MAX {
            self.chains.clear();
            self.halved = now;
        }
        while self.halved + HALF_LIFE <= now {
            self.chains.halve();
            self.halved += HALF_LIFE;
        }
    }
}

impl Master {
    /// The chains that were read most lately, the hottest first, and all look-ups of any chain. They are counted only for
    /// callers that look again and again: many after each call, and none before the first.
    pub fn hottest_chains(&mut self, now: Instant) -> (Vec<HotChain>, f64) {
        let hottest = &mut self.hottest;
        hottest.look(now);
        let top = hottest.chains.top(TOLD).into_iter();
        let chains = top.map(|counter| HotChain {
            tenant: counter.name.0.clone(),
            first: counter.name.1.clone(),
            reads: counter.count,
            excess: counter.excess,
        });
        (chains.collect(), hottest.chains.total())
    }
}

#[cfg(test)]
mod tests {
    use slackwater_wire::{Chain, Hold};

    use super::*;

    /// A piece of which the caller knew only the position, and one of which it knew nothing, were counted as chains that
    /// begin there.
    #[test]
    fn only_roots_begin_chains() {
        let count = |parent: Option<&[u8]>, position| {
            let chain = Chain {
                parent: parent.map(|key| Key::new(key).unwrap()),
                position,
                ..Chain::default()
            };
            let get = Get {
                tenant: Tenant::DEFAULT,
                keys: vec![Key::new(b"k").unwrap()],
                chain,
                hold: Hold::Lease,
                prefix_only: false,
            };
            let mut hottest = Hottest::default();
            hottest.look(Instant::ZERO);
            hottest.read(Instant::ZERO, &Tenant::DEFAULT, &get, 7);
            hottest.chains.total()
        };
        assert_eq!(count(None, 0), 1.0);
        assert_eq!(count(None, 3), 0.0);
        assert_eq!(count(None, Chain::POSITION_UNKNOWN), 0.0);
        assert_eq!(count(Some(b"p"), 1), 0.0);
        assert_eq!(count(Some(b"p"), 0), 0.0);
    }

    #[test]
    fn look_ups_that_nobody_asks_for_are_not_counted_for_ever() {
        let get = Get {
            tenant: Tenant::DEFAULT,
            keys: vec![Key::new(b"k").unwrap()],
            chain: Chain::default(),
            hold: Hold::Lease,
            prefix_only: false,
        };
        let now = Instant::from_nanos(7);
        let mut hottest = Hottest::default();
        hottest.look(now);
        hottest.left = 2;
        for _ in 0..5 {
            hottest.read(now, &Tenant::DEFAULT, &get, 7);
        }
        assert_eq!(hottest.chains.total(), 2.0);
        // What was left out makes the counts too low.
        hottest.look(now);
        assert_eq!(hottest.chains.total(), 0.0);
        hottest.read(now, &Tenant::DEFAULT, &get, 7);
        hottest.look(now);
        assert_eq!(hottest.chains.total(), 1.0);
        hottest.look(now + 63 * HALF_LIFE);
        assert!(hottest.chains.total() > 0.0);
        hottest.look(now + 128 * HALF_LIFE);
        assert_eq!(hottest.chains.total(), 0.0);
    }
}
