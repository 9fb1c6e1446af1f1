use std::time::Duration;

use slackwater_base::Instant;
use slackwater_wire::Expectation;

use super::Gittins;
use super::class::BINS;
use super::rule::Rule;
use crate::evict::{Evict, Link, RestoreError, Slot, Standing, Walk};

const BYTES: u64 = 65_536;

/// A policy and the slots of its blocks, where a block's slot has the block's number.
struct World {
    policy: Gittins,
    resident: Vec<bool>,
    kept: usize,
    capacity: usize,
    now: Instant,
    hits: usize,
    /// Blocks that were resident when they were asked for, but not all before them.
    orphans: usize,
    // What requests say of their chain from now on.
    expect: Option<Expectation>,
}

impl World {
    fn new(capacity: usize) -> Self {
        let mut policy = Gittins::new();
        policy.set_capacity(capacity as u64 * BYTES);
        Self {
            policy,
            resident: vec![false; 1 << 20],
            kept: 0,
            capacity,
            now: Instant::ZERO,
            hits: 0,
            orphans: 0,
            expect: None,
        }
    }

    /// Reads a chain and inserts what is missing; returns what was evicted for it, in order.
    fn request(&mut self, blocks: &[u32]) -> Vec<u32> {
        let link = |block: u32, here: bool| Link {
            hash: block.into(),
            slot: here.then_some(Slot(block)),
            bytes: BYTES,
        };
        let links: Vec<Link> = blocks
            .iter()
            .map(|&block| link(block, self.resident[block as usize]))
            .collect();
        let walk = Walk {
            expect: self.expect,
            ..Walk::at_root(self.now, &links)
        };
        let found = links.iter().take_while(|link| link.slot.is_some()).count();
        self.hits += found;
        let missed = &links[found..];
        self.orphans += missed.iter().filter(|link| link.slot.is_some()).count();
        self.policy.read(&Walk {
            found: found as u32,
            ..walk
        });
        let rest: Vec<Link> = blocks[found..]
            .iter()
            .map(|&block| link(block, true))
            .collect();
        if !rest.is_empty() {
            let parent = found.checked_sub(1).map(|last| links[last].hash);
            self.policy.insert(&Walk {
                links: &rest,
                parent,
                position: found as u32,
                ..walk
            });
        }
        for &block in &blocks[found..] {
            self.resident[block as usize] = true;
            self.kept += 1;
        }
        let mut gone = Vec::new();
        while self.kept > self.capacity {
            let victim = self.policy.victim(self.now).expect("nothing is excluded");
            self.policy.evicted(self.now, victim);
            self.resident[victim.0 as usize] = false;
            self.kept -= 1;
            gone.push(victim.0);
        }
        if self
            .policy
            .next_deadline()
            .is_some_and(|due| due <= self.now)
        {
            self.policy.on_deadline(self.now);
        }
        gone
    }

    /// Traffic to learn from: ten chains that return every hundred seconds, and one in between that never does. Where chains
    /// return within seconds, the first bins of age tell them apart badly.
    fn teach(&mut self, rounds: u32) {
        for round in 0..rounds {
            self.now += Duration::from_secs(10);
            let base = (round % 10) * 10;
            self.request(&(base..base + 10).collect::<Vec<_>>());
            let base = 1_000 + round * 10;
            self.request(&(base..base + 10).collect::<Vec<_>>());
        }
    }
}

#[test]
fn what_never_returns_is_not_admitted_once_that_is_known() {
    let mut world = World::new(100);
    world.teach(600);
    assert!(
        (0..100).all(|block| world.resident[block]),
        "the returning chains are all kept"
    );
    let newcomer: Vec<u32> = (500..510).collect();
    let gone = world.request(&newcomer);
    assert_eq!(
        gone,
        newcomer.iter().rev().copied().collect::<Vec<_>>(),
        "the newcomer goes, leaf first"
    );
}

/// A segment counts its blocks in sixteen bits.
#[test]
fn a_chain_of_more_blocks_than_a_segment_holds_leaves_leaf_first() {
    const BLOCKS: u32 = 70_000;
    let mut world = World::new(BLOCKS as usize);
    let chain: Vec<u32> = (0..BLOCKS).collect();
    assert!(world.request(&chain).is_empty());
    let [first, last] = [0, BLOCKS - 1].map(|slot| world.policy.segment_of(Slot(slot)));
    assert_ne!(first, last);
    for block in chain.into_iter().rev() {
        assert_eq!(world.policy.victim(world.now), Some(Slot(block)));
        world.policy.evicted(world.now, Slot(block));
    }
    assert_eq!(world.policy.victim(world.now), None);
}

#[test]
fn the_root_outlives_the_leaf() {
    let mut world = World::new(40);
    for chain in 0..4u32 {
        world.now += Duration::from_secs(1);
        world.request(&(chain * 10..chain * 10 + 10).collect::<Vec<_>>());
    }
    world.now += Duration::from_secs(1);
    let gone = world.request(&(100..115).collect::<Vec<_>>());
    let expected: Vec<u32> = (0..10).rev().chain((15..20).rev()).collect();
    assert_eq!(
        gone, expected,
        "the oldest chain from its leaf on, then the next"
    );
}

#[test]
fn read_and_insert_of_one_request_make_one_chain() {
    let mut world = World::new(1_000);
    world.request(&[1, 2, 3]);
    world.now += Duration::from_secs(60);
    // The continuation inserts later than it read; its ancestors then have the same age.
    let links = [1, 2, 3].map(|block: u32| Link {
        hash: block.into(),
        slot: Some(Slot(block)),
        bytes: BYTES,
    });
    let walk = Walk::at_root(world.now, &links);
    world.policy.read(&Walk { found: 3, ..walk });
    let later = world.now + Duration::from_secs(30);
    let rest = [Link {
        hash: 4,
        slot: Some(Slot(4)),
        bytes: BYTES,
    }];
    world.policy.insert(&Walk {
        now: later,
        links: &rest,
        parent: Some(3),
        position: 3,
        ..walk
    });
    assert_eq!(
        world.policy.victim(later),
        Some(Slot(4)),
        "the leaf goes first"
    );
    for slot in 1..4 {
        let standing = world.policy.standing(later, Slot(slot)).unwrap();
        assert_eq!(standing.age, Duration::ZERO, "{slot}");
    }
}

/// The lists of hinted classes have no rank until there is such a block, and then all lists have other ranks than before.
#[test]
fn after_the_first_hint_every_block_is_still_found() {
    let mut world = World::new(100);
    world.teach(200);
    world.expect = Some(Expectation::Ends);
    world.request(&[900_001, 900_002, 900_003]);
    let mut found = 0;
    while let Some(slot) = world.policy.victim(world.now) {
        world.policy.evicted(world.now, slot);
        found += 1;
    }
    assert_eq!(found, world.kept);
}

#[test]
fn a_restart_keeps_what_was_learned() {
    let mut world = World::new(100);
    world.teach(600);
    let saved = world.policy.save();
    assert!(
        (30_000..50_000).contains(&saved.len()),
        "{} bytes",
        saved.len()
    );

    let mut restarted = World::new(100);
    restarted.now = world.now;
    assert_eq!(restarted.policy.restore(&saved), Ok(()));
    assert_eq!(restarted.policy.save(), saved);
    for round in 0..10 {
        restarted.now += Duration::from_secs(1);
        restarted.request(&(round * 10..round * 10 + 10).collect::<Vec<_>>());
    }
    for round in 0..10 {
        restarted.now += Duration::from_secs(1);
        restarted.request(&(round * 10..round * 10 + 10).collect::<Vec<_>>());
    }
    let newcomer: Vec<u32> = (500..510).collect();
    let gone = restarted.request(&newcomer);
    assert!(
        gone.iter().all(|block| newcomer.contains(block)),
        "bypassed from the start: {gone:?}"
    );
}

#[test]
fn damaged_tables_leave_a_fresh_policy() {
    let mut world = World::new(100);
    world.teach(100);
    let mut saved = world.policy.save();
    let middle = saved.len() / 2;
    saved[middle] ^= 0x10;
    let mut policy = Gittins::new();
    let fresh = policy.save();
    assert_eq!(policy.restore(&saved), Err(RestoreError::Damaged));
    assert_eq!(policy.save(), fresh);
}

#[test]
fn a_full_segment_keeps_what_outlives_its_lowest() {
    let mut world = World::new(100);
    let link = |hash: u64| Link {
        hash,
        slot: None,
        bytes: BYTES,
    };
    assert!(
        world.policy.would_keep(world.now, link(1)),
        "an empty one keeps everything"
    );
    world.teach(600);
    assert!(
        !world.policy.would_keep(world.now, link(999_999)),
        "new blocks are known never to return"
    );
    let standing = world.policy.standing(world.now, Slot(5)).expect("resident");
    assert!(
        world
            .policy
            .would_keep_as(world.now, link(999_999), standing),
        "as good as what is kept"
    );
    assert_eq!(world.policy.standing(world.now, Slot(1 << 19)), None);
}

/// A block was priced as at the beginning of its bin of age, which may be half its age: one that was as old as the next victim
/// counted as worth twice as much, and was copied for nothing.
#[test]
fn a_block_as_old_as_the_next_victim_is_not_copied() {
    let mut policy = Gittins::new();
    let link = |hash: u64, slot: Option<Slot>| Link {
        hash,
        slot,
        bytes: BYTES,
    };
    policy.insert(&Walk::at_root(Instant::ZERO, &[link(1, Some(Slot(0)))]));
    let now = Instant::ZERO + Duration::from_secs(8_000);
    let standing = policy.standing(now, Slot(0)).expect("resident");
    for (seconds, kept) in [(1, false), (1_000, false), (6_000, true)] {
        let age = standing.age - Duration::from_secs(seconds);
        let younger = Standing { age, ..standing };
        let keeps = policy.would_keep_as(now, link(2, None), younger);
        assert_eq!(keeps, kept, "{seconds} s younger");
    }
}

/// Whichever length came first: a search that forgot what it had found among the blocks of one went by that order.
#[test]
fn large_blocks_go_before_small_ones_of_their_kind() {
    let large = 64 * BYTES;
    for lengths in [
        [BYTES, large, BYTES],
        [large, BYTES, BYTES],
        [BYTES, BYTES, large],
    ] {
        let mut policy = Gittins::new();
        for (at, bytes) in (0..).zip(lengths) {
            let links = [Link {
                hash: u64::from(at),
                slot: Some(Slot(at)),
                bytes,
            }];
            policy.insert(&Walk::at_root(Instant::ZERO, &links));
        }
        let victim = policy.victim(Instant::ZERO).unwrap();
        assert_eq!(lengths[victim.0 as usize], large, "{lengths:?}");
    }
}

#[test]
fn an_explanation_tells_what_was_learned() {
    let mut world = World::new(100);
    world.teach(600);
    let returning = world.policy.explain(world.now, Slot(5)).expect("resident");
    assert!(returning.reuses > 10);
    assert!(returning.index > 0.0 && returning.index >= returning.lowest_index);
    let within_ten_minutes = returning.returns[2];
    assert_eq!(within_ten_minutes.within, Duration::from_secs(600));
    assert!(
        within_ten_minutes.chance > 0.8,
        "it returns every hundred seconds: {returning}"
    );
    assert!(
        returning
            .returns
            .windows(2)
            .all(|pair| pair[0].chance <= pair[1].chance)
    );
    assert!(
        returning.to_string().starts_with("kept: reused "),
        "{returning}"
    );
}

/// After a long pause one call moves a bounded number of segments; later calls move the rest.
#[test]
fn a_long_pause_is_caught_up_in_steps() {
    let mut world = World::new(4_000);
    for block in 0..2_000 {
        world.now += Duration::from_millis(10);
        world.request(&[block]);
    }
    world.now += Duration::from_secs(7200);
    world.request(&[5_000]);
    assert!(world.policy.ages.behind);
    for block in 5_001..5_400 {
        world.request(&[block]);
    }
    assert!(!world.policy.ages.behind);
    let victim = world.policy.victim(world.now).expect("nothing is excluded");
    assert!(
        victim.0 < 2_000,
        "{victim:?} goes before those that waited two hours"
    );
}

/// A block was leaving a tier when its neighbour came from another. They shared a segment, which was in no order
/// because of the first. After the first was evicted, the second was never named again.
#[test]
fn the_neighbour_of_a_leaving_block_can_be_evicted() {
    for (story, ahead) in [("its child came", false), ("its parent came", true)] {
        let mut world = World::new(10);
        world.request(&[1, 2]);
        let like = world
            .policy
            .standing(world.now, Slot(2))
            .expect("it is resident");
        let come = |world: &mut World, block: u32, position: u32| {
            let link = Link {
                hash: block.into(),
                slot: Some(Slot(block)),
                bytes: BYTES,
            };
            world
                .policy
                .insert_as(world.now, link, Standing { position, ..like });
        };
        come(&mut world, 3, 5);
        world.policy.evicted(world.now, Slot(2));
        world.policy.evicted(world.now, Slot(1));
        assert_eq!(world.policy.victim(world.now), Some(Slot(3)), "{story}");
        world.policy.mark_leaving(Slot(3));
        come(&mut world, 4, if ahead { 4 } else { 6 });
        world.policy.evicted(world.now, Slot(3));
        assert_eq!(world.policy.victim(world.now), Some(Slot(4)), "{story}");
    }
}

#[test]
fn a_request_of_as_many_tokens_is_alike_whatever_a_block_holds() {
    let features = |tokens: u32, blocks: u32| {
        let mut world = World::new(1_000);
        world.policy.set_block_tokens(tokens);
        world.request(&(0..blocks).collect::<Vec<_>>());
        let standing = world.policy.standing(world.now, Slot(0));
        standing.expect("it is resident").features
    };
    assert_eq!(features(128, 64), features(512, 16));
    assert_eq!(features(2_048, 4), features(512, 16));
    assert_ne!(features(128, 16), features(512, 16));
}

#[test]
fn a_chain_that_comes_block_by_block_stays_one_chain() {
    for leaf_first in [true, false] {
        let mut above = World::new(10);
        above.request(&[1, 2, 3, 4]);
        let mut below = Gittins::new();
        let mut order = [1, 2, 3, 4];
        if leaf_first {
            order.reverse();
        }
        for (at, block) in order.into_iter().enumerate() {
            let standing = above.policy.standing(above.now, Slot(block));
            let mut standing = standing.expect("it is resident");
            if leaf_first {
                above.policy.evicted(above.now, Slot(block));
            } else {
                standing.position = at as u32;
            }
            let link = Link {
                hash: block.into(),
                slot: Some(Slot(block)),
                bytes: BYTES,
            };
            below.insert_as(above.now, link, standing);
        }
        let chains = order.map(|block| below.standing(above.now, Slot(block)).map(|it| it.chain));
        assert_eq!(chains, [chains[0]; 4], "leaf first: {leaf_first}");
    }
}

/// The blocks of a conversation are of several classes, by how often they were reused. When the class of the first ones
/// was rated lower than that of those after them, they were evicted first, and the rest stayed without being of any use:
/// up to one hit in a hundred was lost, on chat and agents more than plain LRU loses.
#[test]
fn blocks_do_not_outlive_those_before_them() {
    let mut world = World::new(400);
    let mut rng = slackwater_base::Rng::new(1);
    let mut lengths = [0u32; 60];
    for _ in 0..6_000 {
        world.now += Duration::from_millis(1 + rng.below(2_000));
        let chat = rng.below(60) as usize;
        if lengths[chat] > 40 || rng.chance(0.2) {
            lengths[chat] = 0;
        }
        lengths[chat] += 1 + rng.below(6) as u32;
        let first = chat as u32 * 1_000 + rng.below(2) as u32 * 100;
        world.request(&(first..first + lengths[chat]).collect::<Vec<_>>());
    }
    let (orphans, hits) = (world.orphans as f64, world.hits as f64);
    assert!(orphans < 0.01 * hits, "{orphans} beside {hits} hits");
}

/// Within a bin of age, classes that are alike were in no order, and a block could go before one that was 40 % older: half of
/// what was lost to LRU where all classes return alike.
#[test]
fn of_like_classes_the_older_block_goes_first() {
    let mut policy = Gittins::new();
    // The one that was inserted first is of the class with the higher number.
    for (slot, seconds, output_tokens) in [(0, 0, Some(500)), (1, 40, Some(10))] {
        let links = [Link {
            hash: u64::from(slot),
            slot: Some(Slot(slot)),
            bytes: BYTES,
        }];
        policy.insert(&Walk {
            output_tokens,
            ..Walk::at_root(Instant::ZERO + Duration::from_secs(seconds), &links)
        });
    }
    let now = Instant::ZERO + Duration::from_secs(170);
    assert_eq!(policy.victim(now), Some(Slot(0)));
}

/// The rule that is followed changes the order of eviction, and nothing that is known of the blocks.
#[test]
fn the_order_follows_the_rule_and_nothing_is_lost_when_it_changes() {
    let mut world = World::new(100);
    world.teach(600);
    // Every block is once more asked for; then one chain that is known never to return.
    let newcomer: Vec<u32> = (500..510).collect();
    world.request(&newcomer);
    let explained = |world: &World| {
        let slots = (0..100).filter(|&slot| world.resident[slot as usize]);
        let known = slots.map(|slot| world.policy.explain(world.now, Slot(slot)));
        known.map(|it| it.map(|it| it.index)).collect::<Vec<_>>()
    };
    let before = explained(&world);
    world.policy.switch(Rule::Recency);
    assert_eq!(explained(&world), before, "what was learned stays");
    let order: Vec<u32> = std::iter::from_fn(|| {
        let slot = world.policy.victim(world.now)?;
        let age = world.policy.standing(world.now, slot).map(|it| it.age);
        world.policy.evicted(world.now, slot);
        age.map(|age| age.as_millis() as u32)
    })
    .collect();
    assert!(order.len() >= 90, "{} blocks", order.len());
    assert!(order.windows(2).all(|pair| pair[0] >= pair[1]), "{order:?}");
}

/// What is hardly better than the next victim was written again, whenever the file that it lies in was emptied. By age alone a block
/// is before another, but not so many times as good.
#[test]
fn a_block_is_worth_moving_by_what_was_learned_of_it_and_not_by_its_age() {
    let mut world = World::new(100);
    world.teach(600);
    let slots: Vec<u32> = (0..100).filter(|at| world.resident[*at as usize]).collect();
    let mut kinds = [0; 2];
    for slot in &slots {
        let known = world
            .policy
            .explain(world.now, Slot(*slot))
            .expect("resident");
        let times = known.index / known.lowest_index;
        let moves = world.policy.would_move(world.now, Slot(*slot), BYTES);
        if !(5.9..6.1).contains(&times) {
            assert_eq!(moves, times > 6.0, "{slot}: {times}");
            kinds[usize::from(moves)] += 1;
        }
    }
    assert!(kinds.iter().all(|count| *count > 0), "{kinds:?}");
    world.policy.switch(Rule::Recency);
    let moves = |slot: &u32| world.policy.would_move(world.now, Slot(*slot), BYTES);
    assert!(slots.iter().all(moves));
}

#[test]
fn a_rule_that_leads_is_followed_from_the_next_estimation_on() {
    let mut world = World::new(100);
    world.policy = Gittins::adaptive();
    assert_eq!(world.policy.name(), "adaptive");
    world.teach(300);
    let told = world.policy.leader().expect("it has rules");
    assert_eq!(told.policy, "gittins");
    let changes = told.changes;
    let explanation = world.policy.explain(world.now, Slot(5)).expect("resident");
    assert!(
        explanation.to_string().contains("; gittins leads by "),
        "{explanation}"
    );

    // A gap in the race that the traffic would need long to show.
    let net = world.policy.net.as_mut().expect("it is adaptive");
    (0..3_000).for_each(|_| net.race.count(20, [1, 11, 2]));
    world.teach(20);
    let told = world.policy.leader().expect("it has rules");
    assert_eq!((told.policy, told.changes), ("lru", changes + 1));
    assert!(
        !world.resident[..100].iter().all(|held| *held),
        "chains that never return push"
    );
}

/// The real cache holds chains that return and not those that do not; so do the simulated ones, from which the rates are.
#[test]
fn the_simulated_caches_hit_what_the_real_one_would_under_each_rule() {
    let mut rates = Vec::new();
    for rule in Rule::ALL {
        let mut world = World::new(300);
        world.policy = Gittins::adaptive();
        for round in 0..2_000u32 {
            world.now += Duration::from_millis(500);
            let chain = if round % 2 == 0 {
                round / 2 % 20
            } else {
                100 + round
            };
            world.request(&(chain * 10..chain * 10 + 10).collect::<Vec<_>>());
            world
                .policy
                .net
                .as_mut()
                .expect("it is adaptive")
                .race
                .leader = rule;
            world.policy.switch(rule);
        }
        let real = world.hits as f64 / 20_000.0;
        let net = world.policy.net.as_ref().expect("it is adaptive");
        rates.push((real, net.race.rate(rule)));
    }
    for (real, simulated) in &rates {
        assert!((real - simulated).abs() < 0.1, "{rates:?}");
    }
    assert!(rates[0].1 > rates[1].1 + 0.2, "{rates:?}");
}

/// Classes that no block is of are left out of estimation: what asks for the worth of one takes it in.
#[test]
fn blocks_of_a_class_that_was_left_out_have_a_worth() {
    let gone = Link {
        hash: 77,
        slot: None,
        bytes: 64,
    };
    let walk = |link, now| Walk {
        output_tokens: Some(100),
        ..Walk::at_root(now, std::slice::from_ref(link))
    };
    let mut adaptive = Gittins::adaptive();
    adaptive.read(&walk(&gone, Instant::ZERO));
    assert_eq!(
        adaptive.tables.ranked().len(),
        BINS,
        "a simulated cache may value it"
    );
    let held = Link {
        hash: 5,
        slot: Some(Slot(0)),
        ..gone
    };
    let old = Instant::ZERO + Duration::from_secs(3_600);
    let filled = || {
        let mut policy = Gittins::new();
        policy.insert(&walk(&held, Instant::ZERO));
        policy
    };
    assert!(filled().would_keep(old, gone));
    let standing = Standing {
        class: 0,
        kept_as: 0,
        ..filled()
            .standing(Instant::ZERO, Slot(0))
            .expect("it is held")
    };
    assert!(filled().would_keep_as(old, gone, standing));
}

/// A segment is a run of one chain. Blocks of a request that are apart were taken for neighbours where only their places were
/// known, as nothing is between these.
#[test]
fn blocks_that_are_apart_are_no_run() {
    let mut world = World::new(1_000);
    world.request(&[1, 2, 3]);
    let links = [1, 2, 3].map(|block: u32| Link {
        hash: block.into(),
        slot: (block != 2).then_some(Slot(block)),
        bytes: BYTES,
    });
    world.policy.read(&Walk {
        placed: Some(&[0, 2]),
        found: 1,
        ..Walk::at_root(world.now, &links)
    });
    let segment_of = |slot| world.policy.segment_of(Slot(slot)).unwrap();
    assert_ne!(segment_of(1), segment_of(3));
}
