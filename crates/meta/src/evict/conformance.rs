//! What the catalog relies on, checked against every policy on random histories.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use slackwater_base::{Instant, Rng};

use super::{Evict, Link, PolicyKind, RestoreError, Slot, Standing, Walk};

const BLOCK_BYTES: u64 = 65_536;

/// A catalog reduced to what a policy sees of it: the slots of blocks, and which are excluded.
pub(super) struct PolicyHarness {
    policy: Box<dyn Evict>,
    /// Number of different block lengths.
    lengths: u64,
    slots: BTreeMap<u64, Slot>,
    blocks: BTreeMap<Slot, u64>,
    excluded: BTreeSet<Slot>,
    free: Vec<Slot>,
    capacity: usize,
    now: Instant,
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    /// A request for the first `length` blocks of conversation `chain`, misses inserted or not.
    Request {
        chain: u64,
        length: u32,
        insert: bool,
    },
    /// A request for one block of a chain, as a store without chains sees it.
    Lone {
        chain: u64,
        position: u32,
    },
    Exclude {
        pick: usize,
    },
    Include {
        pick: usize,
    },
    Remove {
        pick: usize,
    },
    EvictOther {
        pick: usize,
    },
    /// The next victim is marked as leaving.
    Leave,
    /// A block comes from another tier, with the standing of a block of this tier.
    ComeAs {
        pick: usize,
        hash: u64,
    },
    Wait {
        seconds: u64,
    },
    Estimate,
}

impl PolicyHarness {
    fn new(kind: PolicyKind, capacity: usize) -> Self {
        let policy = kind.build(capacity as u64 * BLOCK_BYTES);
        Self {
            lengths: 3,
            ..Self::with_equal_blocks(policy, capacity)
        }
    }

    pub(super) fn with_equal_blocks(policy: Box<dyn Evict>, capacity: usize) -> Self {
        Self {
            policy,
            lengths: 1,
            slots: BTreeMap::new(),
            blocks: BTreeMap::new(),
            excluded: BTreeSet::new(),
            free: Vec::new(),
            capacity,
            now: Instant::from_nanos(1_000_000_000),
        }
    }

    fn link(&self, hash: u64) -> Link {
        Link {
            hash,
            slot: self.slots.get(&hash).copied(),
            bytes: BLOCK_BYTES * (1 + hash % self.lengths),
        }
    }

    fn request(&mut self, hashes: &[u64], position: u32, insert: bool) {
        let parent = (position > 0).then(|| hashes[0] - 1);
        let mut links: Vec<Link> = hashes.iter().map(|&hash| self.link(hash)).collect();
        let first_miss = links
            .iter()
            .position(|link| link.slot.is_none())
            .unwrap_or(links.len());
        let found = first_miss as u32;
        self.policy.read(&Walk {
            links: &links,
            parent,
            position,
            found,
            ..walk_of(self.now)
        });
        if !insert || first_miss == links.len() {
            return;
        }
        for link in &mut links[first_miss..] {
            match link.slot {
                // It is resident already: this request does not place it.
                Some(_) => link.slot = None,
                None => link.slot = Some(self.place(link.hash)),
            }
        }
        let parent = first_miss
            .checked_sub(1)
            .map(|last| links[last].hash)
            .or(parent);
        let rest = Walk {
            links: &links[first_miss..],
            parent,
            position: position + first_miss as u32,
            ..walk_of(self.now)
        };
        self.policy.insert(&rest);
        while self.blocks.len() > self.capacity && self.evict_one() {}
    }

    fn evict_one(&mut self) -> bool {
        let Some(slot) = self.policy.victim(self.now) else {
            assert!(
                self.blocks.keys().all(|slot| self.excluded.contains(slot)),
                "no victim, though a slot is not excluded"
            );
            return false;
        };
        assert!(
            self.blocks.contains_key(&slot),
            "victim {slot:?} is not resident"
        );
        assert!(
            !self.excluded.contains(&slot),
            "victim {slot:?} is excluded"
        );
        assert_eq!(
            self.policy.victim(self.now + Duration::from_secs(5)),
            Some(slot),
            "the victim changed without a call"
        );
        self.policy.evicted(self.now, slot);
        self.forget(slot);
        true
    }

    fn forget(&mut self, slot: Slot) {
        let hash = self
            .blocks
            .remove(&slot)
            .expect("only resident slots are forgotten");
        self.slots.remove(&hash);
        self.excluded.remove(&slot);
        self.free.push(slot);
    }

    fn pick(&self, pick: usize) -> Option<Slot> {
        let count = self.blocks.len();
        (count > 0).then(|| {
            *self
                .blocks
                .keys()
                .nth(pick % count)
                .expect("within the count")
        })
    }

    pub(super) fn step(&mut self, step: &Step) {
        self.now += Duration::from_millis(250);
        match *step {
            Step::Request {
                chain,
                length,
                insert,
            } => {
                let hashes: Vec<u64> = (0..u64::from(length)).map(|at| block(chain, at)).collect();
                self.request(&hashes, 0, insert);
            }
            Step::Lone { chain, position } => {
                self.request(&[block(chain, u64::from(position))], position, true)
            }
            Step::Exclude { pick } => {
                if let Some(slot) = self.pick(pick) {
                    self.policy.exclude(slot);
                    self.excluded.insert(slot);
                }
            }
            Step::Include { pick } => {
                let slot = self
                    .excluded
                    .iter()
                    .nth(pick % self.excluded.len().max(1))
                    .copied();
                if let Some(slot) = slot {
                    self.policy.include(slot);
                    self.excluded.remove(&slot);
                }
            }
            Step::Remove { pick } => {
                if let Some(slot) = self.pick(pick) {
                    self.policy.remove(slot);
                    self.forget(slot);
                }
            }
            Step::EvictOther { pick } => {
                if let Some(slot) = self.pick(pick) {
                    self.policy.evicted(self.now, slot);
                    self.forget(slot);
                }
            }
            Step::Leave => {
                if let Some(slot) = self.policy.victim(self.now) {
                    self.policy.mark_leaving(slot);
                    self.excluded.insert(slot);
                }
            }
            Step::ComeAs { pick, hash } => self.come_as(pick, hash),
            Step::Wait { seconds } => self.now += Duration::from_secs(seconds),
            Step::Estimate => self.policy.on_deadline(self.now),
        }
    }

    fn come_as(&mut self, pick: usize, hash: u64) {
        let standing = self
            .pick(pick)
            .and_then(|like| self.policy.standing(self.now, like));
        if self.slots.contains_key(&hash) {
            return;
        }
        let slot = self.place(hash);
        let link = self.link(hash);
        match standing {
            Some(standing) => {
                self.policy.insert_as(self.now, link, standing);
                let taken = self
                    .policy
                    .standing(self.now, slot)
                    .expect("it is resident");
                let kept = |standing: Standing| {
                    (
                        standing.class,
                        standing.kept_as,
                        standing.reuses,
                        standing.features,
                    )
                };
                assert_eq!(
                    kept(taken),
                    kept(standing),
                    "its standing is as it was in the other tier"
                );
                assert!(
                    taken.age.abs_diff(standing.age) < Duration::from_millis(100),
                    "{taken:?} as {standing:?}"
                );
            }
            None => self.policy.insert(&Walk {
                links: &[link],
                ..walk_of(self.now)
            }),
        }
        while self.blocks.len() > self.capacity && self.evict_one() {}
    }

    fn place(&mut self, hash: u64) -> Slot {
        let slot = self.free.pop().unwrap_or(Slot(self.blocks.len() as u32));
        self.slots.insert(hash, slot);
        self.blocks.insert(slot, hash);
        slot
    }

    pub(super) fn drain(&mut self) {
        for slot in std::mem::take(&mut self.excluded) {
            self.policy.include(slot);
        }
        while self.evict_one() {}
        assert!(
            self.blocks.is_empty(),
            "{} slots are never named",
            self.blocks.len()
        );
        assert_eq!(self.policy.victim(self.now), None);
    }
}

fn walk_of(now: Instant) -> Walk<'static> {
    Walk {
        now,
        links: &[],
        parent: None,
        position: 0,
        found: 0,
        hint: None,
        expect: None,
        output_tokens: Some(100),
        placed: None,
    }
}

/// Chains of the same conversation begin alike, and all share their first block.
fn block(chain: u64, position: u64) -> u64 {
    if position == 0 {
        1
    } else {
        1_000 * (chain + 1) + position
    }
}

fn step() -> impl Strategy<Value = Step> {
    let any_pick = 0usize..1000;
    prop_oneof![
        8 => (0u64..12, 1u32..40, prop::bool::weighted(0.9))
            .prop_map(|(chain, length, insert)| Step::Request { chain, length, insert }),
        2 => (0u64..12, 1u32..40).prop_map(|(chain, position)| Step::Lone { chain, position }),
        3 => any_pick.clone().prop_map(|pick| Step::Exclude { pick }),
        2 => any_pick.clone().prop_map(|pick| Step::Include { pick }),
        1 => any_pick.clone().prop_map(|pick| Step::Remove { pick }),
        1 => any_pick.clone().prop_map(|pick| Step::EvictOther { pick }),
        4 => Just(Step::Leave),
        4 => (any_pick, 0u64..12, 1u64..40).prop_map(|(pick, chain, at)| Step::ComeAs { pick, hash: block(chain, at) }),
        1 => (1u64..4000).prop_map(|seconds| Step::Wait { seconds }),
        1 => Just(Step::Estimate),
    ]
}

/// A step as [`step`] draws it, from a seeded generator: the same on every run.
pub(super) fn random_step(rng: &mut Rng) -> Step {
    let pick = rng.below(1000) as usize;
    match rng.below(20) {
        0..10 => Step::Request {
            chain: rng.below(12),
            length: 1 + rng.below(39) as u32,
            insert: rng.chance(0.9),
        },
        10..12 => Step::Lone {
            chain: rng.below(12),
            position: 1 + rng.below(39) as u32,
        },
        12..14 => Step::Exclude { pick },
        14..16 => Step::Include { pick },
        16 => Step::Remove { pick },
        17 => Step::EvictOther { pick },
        18 => Step::Wait {
            seconds: 1 + rng.below(4000),
        },
        _ => Step::Estimate,
    }
}

fn for_every_policy(check: impl Fn(PolicyKind)) {
    for kind in PolicyKind::ALL {
        check(kind);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_history_keeps_the_promises(steps in prop::collection::vec(step(), 1..120), capacity in 1usize..120) {
        for_every_policy(|kind| {
            let mut segment = PolicyHarness::new(kind, capacity);
            for step in &steps {
                segment.step(step);
            }
            segment.drain();
        });
    }
}

/// The memory of a policy per slot does not grow with the length of the history.
#[test]
fn overhead_is_bounded_by_what_is_resident() {
    const CAPACITY: usize = 10_000;
    for_every_policy(|kind| {
        let mut segment = PolicyHarness::new(kind, CAPACITY);
        let mut rng = Rng::new(3);
        for _ in 0..6_000 {
            let (chain, length) = (rng.below(5_000), 1 + rng.below(30));
            segment.now += Duration::from_millis(100);
            let hashes: Vec<u64> = (0..length).map(|at| block(chain, at)).collect();
            segment.request(&hashes, 0, true);
            if segment
                .policy
                .next_deadline()
                .is_some_and(|at| at <= segment.now)
            {
                segment.policy.on_deadline(segment.now);
            }
        }
        assert_eq!(segment.blocks.len(), CAPACITY);
        let growing = segment.policy.overhead_bytes() - segment.policy.fixed_bytes();
        let limit = if kind == PolicyKind::Lru { 24 } else { 64 };
        assert!(
            growing <= limit * CAPACITY,
            "{kind}: {} bytes a block",
            growing as f64 / CAPACITY as f64
        );
    });
}

#[test]
fn reads_protect_what_is_read() {
    for_every_policy(|kind| {
        let mut segment = PolicyHarness::new(kind, 100);
        for round in 0..60u64 {
            segment.now += Duration::from_secs(1);
            let fresh: Vec<u64> = (0..10).map(|at| 1_000_000 + round * 10 + at).collect();
            let kept: Vec<u64> = (0..20).map(|at| block(1, at)).collect();
            segment.request(&kept, 0, true);
            segment.request(&fresh, 0, true);
        }
        let kept = (0..20)
            .filter(|&at| segment.slots.contains_key(&block(1, at)))
            .count();
        assert_eq!(kept, 20, "{kind}: read every second for a minute, and gone");
    });
}

#[test]
fn foreign_bytes_are_refused() {
    for_every_policy(|kind| {
        let mut policy = kind.build(1 << 30);
        assert_eq!(
            policy.restore(b"not what any policy wrote"),
            Err(RestoreError::Foreign),
            "{kind}"
        );
        let saved = policy.save();
        assert_eq!(policy.restore(&saved), Ok(()), "{kind}");
    });
}

/// A master tells each of many segments where its own few blocks are among those of a request.
#[test]
fn who_knows_where_the_resident_blocks_are_learns_the_same() {
    for_every_policy(|kind| {
        let mut rng = Rng::new(5);
        let mut pair = [(); 2].map(|()| kind.build(64 * BLOCK_BYTES));
        let mut now = Instant::from_nanos(1_000_000_000);
        for number in 0..96u32 {
            let links = [Link {
                hash: number.into(),
                slot: Some(Slot(number)),
                bytes: BLOCK_BYTES,
            }];
            for policy in &mut pair {
                policy.insert(&Walk {
                    links: &links,
                    ..walk_of(now)
                });
            }
        }
        for _ in 0..400 {
            now += Duration::from_millis(rng.below(500));
            let first = rng.below(80);
            let links: Vec<Link> = (first..first + 16)
                .map(|hash| Link {
                    hash,
                    slot: (rng.below(3) > 0).then_some(Slot(hash as u32)),
                    bytes: BLOCK_BYTES,
                })
                .collect();
            let resident = links.iter().enumerate();
            let resident = resident.filter(|(_, link)| link.slot.is_some());
            let placed: Vec<u32> = resident.map(|(at, _)| at as u32).collect();
            for (policy, placed) in pair.iter_mut().zip([None, Some(placed.as_slice())]) {
                policy.read(&Walk {
                    links: &links,
                    placed,
                    ..walk_of(now)
                });
                if policy.next_deadline().is_some_and(|due| due <= now) {
                    policy.on_deadline(now);
                }
            }
        }
        for left in (1..=96).rev() {
            let named = pair.each_mut().map(|policy| policy.victim(now));
            assert_eq!(named[0], named[1], "{kind}, {left} left");
            let slot = named[0].expect("nothing is excluded");
            for policy in &mut pair {
                policy.evicted(now, slot);
            }
        }
        assert_eq!(pair[0].save(), pair[1].save(), "{kind}");
    });
}

/// Without its ancestors a block is of no use, so it is the colder one of those that are read together.
#[test]
fn of_blocks_read_together_the_leaf_is_the_coldest() {
    let mut policy = PolicyKind::Lru.build(64 * BLOCK_BYTES);
    let links = [0, 1, 2].map(|number: u32| Link {
        hash: number.into(),
        slot: Some(Slot(number)),
        bytes: BLOCK_BYTES,
    });
    let now = Instant::from_nanos(1_000_000_000);
    let walk = Walk {
        links: &links,
        ..walk_of(now)
    };
    policy.insert(&walk);
    for placed in [None, Some(&[0, 1, 2][..])] {
        policy.read(&Walk { placed, ..walk });
        assert_eq!(policy.victim(now), Some(Slot(2)), "{placed:?}");
    }
}

/// W-TinyLFU counts requests for blocks that it does not hold, and keeps them for it when they come.
#[test]
fn misses_count_where_frequency_decides() {
    let order = |misses: u32| {
        let mut policy = PolicyKind::WTinyLfu.build(64 * BLOCK_BYTES);
        let now = Instant::from_nanos(1_000_000_000);
        for number in 0..64u32 {
            let mut link = Link {
                hash: number.into(),
                slot: None,
                bytes: BLOCK_BYTES,
            };
            for _ in 0..if number == 40 { misses } else { 1 } {
                policy.read(&Walk {
                    links: &[link],
                    placed: Some(&[]),
                    ..walk_of(now)
                });
            }
            link.slot = Some(Slot(number));
            policy.insert(&Walk {
                links: &[link],
                ..walk_of(now)
            });
        }
        let gone = std::iter::from_fn(|| {
            let slot = policy.victim(now)?;
            policy.evicted(now, slot);
            Some(slot.0)
        });
        gone.collect::<Vec<_>>()
    };
    assert_ne!(order(1), order(9));
}

#[test]
fn unknown_slots_are_ignored() {
    for_every_policy(|kind| {
        let mut policy = kind.build(1 << 30);
        policy.remove(Slot(7));
        policy.evicted(Instant::ZERO, Slot(7));
        policy.exclude(Slot(7));
        policy.include(Slot(7));
        let links = [Link {
            hash: 1,
            slot: Some(Slot(7)),
            bytes: 1,
        }];
        policy.read(&Walk {
            links: &links,
            ..walk_of(Instant::ZERO)
        });
        assert_eq!(policy.victim(Instant::ZERO), None, "{kind}");
    });
}
