//! When what is owed to a node is paid: once the node has said all that it may have brought back.

use slackwater_meta::{Journaled, MasterConfig, Note};
use slackwater_wire::*;

use crate::inventory::{Inventory, all_announced, announced, holds, mount_tiers};
use crate::kept_drops::Pool;
use crate::world::*;

/// Brings a node back whose value was removed while it was away: one segment is mounted and announced before the other.
fn check(what: &str, goes: fn(&mut Pool), order: [SegmentId; 2], life: u64) {
    let mut pool = Pool::new();
    pool.put_on_both();
    goes(&mut pool);
    pool.world.send(ME, remove("a", true));
    if life > 1 {
        pool.memory = Inventory::default();
    }
    for segment in order {
        mount_tiers(&mut pool.world, &[segment], Incarnation(life));
        if segment == DISK {
            all_announced(&mut pool.world, pool.records.clone());
        } else {
            holds(&mut pool.world, pool.memory.entries());
            announced(&mut pool.world);
        }
        assert!(!pool.world.has("a"), "{what}, {order:?}, life {life}");
    }
    // What is owed is not kept for ever.
    pool.world.obey();
    let mut journal = Journaled::default();
    let notes = pool.world.master.take_notes();
    notes.iter().for_each(|note| journal.apply(note));
    assert!(journal.debts.is_empty(), "{what}, {order:?}, life {life}");
}

/// The first segment to be mounted and announced ended what was owed to its node, which then brought back on the other one what
/// had been removed.
#[test]
fn what_is_owed_is_paid_when_the_whole_node_is_back() {
    for order in [[MEMORY, DISK], [DISK, MEMORY]] {
        for life in [1, 2] {
            check("it was lost", Pool::lose, order, life);
            let restarted = |pool: &mut Pool| {
                pool.lose();
                pool.restart();
            };
            check("with its master", restarted, order, life);
        }
    }
}

/// The SSD of the life before was taken for one that is back, and had nothing to say.
#[test]
fn a_segment_of_a_lost_life_pays_nothing() {
    let mut pool = Pool::new();
    pool.put_on_both();
    pool.hide();
    let call = pool.world.send(ME, remove("a", true));
    assert!(pool.world.reply(call).is_some(), "it is kept for the node");
    // Its new life has the record still: it was told nothing.
    mount_tiers(&mut pool.world, &[MEMORY], Incarnation(2));
    announced(&mut pool.world);
    mount_tiers(&mut pool.world, &[DISK], Incarnation(2));
    all_announced(&mut pool.world, pool.records.clone());
    assert!(!pool.world.has("a"));
}

/// What a node holds that its master meets for the first time may be older than the master. Memory that was mounted and announced
/// first ended that, and the SSD brought back what had been removed before.
#[test]
fn an_ssd_that_is_met_after_memory_may_be_as_old() {
    let orders: [&[&[SegmentId]]; 3] = [&[&[MEMORY], &[DISK]], &[&[MEMORY, DISK]], &[&[DISK]]];
    let check = |earlier: Option<Journaled>, mounted: &[&[SegmentId]]| {
        let mut world = World::new(MasterConfig {
            granule: BLOCK,
            ..plain()
        });
        let now = world.now;
        if let Some(earlier) = earlier.clone() {
            world.master.restore(now, earlier);
        }
        world.master.start_above(Version(100));
        world.ask(remove("a", true));
        for segments in mounted {
            mount_tiers(&mut world, segments, Incarnation(1));
            if segments.contains(&MEMORY) {
                announced(&mut world);
            }
        }
        all_announced(
            &mut world,
            vec![reported("a", 5, BLOCK), reported("b", 6, BLOCK)],
        );
        assert!(!world.has("a"), "{earlier:?}, {mounted:?}");
        // Of a node that may have been forgotten nothing is believed.
        assert_eq!(world.has("b"), earlier.is_none(), "{mounted:?}");
    };
    let forgot = Journaled {
        forgot: true,
        ..Journaled::default()
    };
    for mounted in orders {
        check(None, mounted);
        check(Some(forgot.clone()), mounted);
    }
}

/// Of a node that is not believed up to a version, the next master was told the older one of a removal of all keys.
#[test]
fn the_next_master_believes_a_strange_node_no_more() {
    let mut world = World::new(MasterConfig {
        granule: BLOCK,
        ..plain()
    });
    let now = world.now;
    let mut journal = Journaled {
        forgot: true,
        ..Journaled::default()
    };
    world.master.restore(now, journal.clone());
    world.master.start_above(Version(100));
    let all = RemoveAll {
        tenant: None,
        force: true,
    };
    world.ask(Request::RemoveAll(all));
    world.master.start_above(Version(200));
    mount_tiers(&mut world, &[DISK], Incarnation(1));
    let notes = world.master.take_notes();
    notes.iter().for_each(|note| journal.apply(note));
    let owed: Vec<u64> = journal.debts.values().map(|up_to| up_to.0).collect();
    assert_eq!(owed.len(), 1);
    assert!(owed[0] >= 200, "{owed:?}");
}

/// The SSD had announced everything when memory was mounted that ends with its master, which has nothing to announce: what was owed
/// was kept for ever.
#[test]
fn memory_that_announces_nothing_is_the_rest_of_a_node() {
    let mut pool = Pool::new();
    pool.put_on_both();
    pool.lose();
    pool.world.send(ME, remove("a", true));
    pool.restart();
    mount_tiers(&mut pool.world, &[DISK], Incarnation(1));
    all_announced(&mut pool.world, Vec::new());
    assert!(!pool.world.master.take_notes().contains(&Note::Paid(NODE)));
    pool.world
        .mount(NODE, MEMORY, SegmentKind::Memory, 16 * BLOCK);
    assert!(pool.world.master.take_notes().contains(&Note::Paid(NODE)));
}

/// Memory that the node lends beside its first.
const SECOND: SegmentId = SegmentId(3);

/// A node with two segments of memory and an SSD, whose value in the second was removed while the node was away.
fn of_two_memories() -> (Pool, Vec<Published>) {
    let mut pool = Pool::new();
    mount_tiers(&mut pool.world, &[SECOND], Incarnation(1));
    second_holds(&mut pool, Vec::new());
    pool.world.put_at("a", BLOCK, "segment-3");
    pool.memory.learn(&mut pool.world);
    let held = pool.memory.entries();
    assert_eq!(held[0].extent.segment, SECOND);
    pool.lose();
    pool.world.send(ME, remove("a", true));
    // The node was owed something when it came first.
    pool.world.master.take_notes();
    (pool, held)
}

fn second_holds(pool: &mut Pool, entries: Vec<Published>) {
    let (segment, ahead) = (SECOND, false);
    let holds = Report::Holds {
        segment,
        entries,
        ahead,
    };
    pool.world.report(NODE, holds);
    let highest = Version(0);
    pool.world
        .report(NODE, Report::Announced { segment, highest });
}

fn is_paid(pool: &mut Pool) -> bool {
    pool.world.obey();
    pool.world.master.take_notes().contains(&Note::Paid(NODE))
}

/// Any memory of the node and its SSD ended what was owed to it, and its other memory brought the removed value back.
#[test]
fn each_memory_of_a_life_is_waited_for() {
    let orders: [&[SegmentId]; 3] = [
        &[MEMORY, DISK, SECOND],
        &[SECOND, DISK, MEMORY],
        &[DISK, SECOND, MEMORY],
    ];
    for order in orders {
        let (mut pool, held) = of_two_memories();
        for segment in order {
            assert!(!is_paid(&mut pool), "{order:?}: not all of it is back");
            mount_tiers(&mut pool.world, &[*segment], Incarnation(1));
            match *segment {
                MEMORY => announced(&mut pool.world),
                DISK => all_announced(&mut pool.world, Vec::new()),
                _ => second_holds(&mut pool, held.clone()),
            }
            assert!(!pool.world.has("a"), "{order:?}");
        }
        assert!(is_paid(&mut pool), "{order:?}");
    }
}

/// Memory goes with the life in which it was lent: a node that came back with less of it, or with none, was owed for ever.
#[test]
fn memory_of_a_life_that_is_over_is_not_waited_for() {
    let orders: [&[SegmentId]; 2] = [&[MEMORY, DISK], &[DISK]];
    for order in orders {
        let (mut pool, _) = of_two_memories();
        mount_tiers(&mut pool.world, order, Incarnation(2));
        if order.contains(&MEMORY) {
            announced(&mut pool.world);
        }
        all_announced(&mut pool.world, Vec::new());
        assert!(is_paid(&mut pool), "{order:?}");
    }
}

/// What is on an SSD may come back in any life.
#[test]
fn an_ssd_is_waited_for_in_every_life() {
    let (mut pool, _) = of_two_memories();
    for life in 1..4 {
        mount_tiers(&mut pool.world, &[MEMORY], Incarnation(life));
        announced(&mut pool.world);
        assert!(!is_paid(&mut pool), "{life}");
        pool.lose();
    }
}
