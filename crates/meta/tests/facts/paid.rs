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
