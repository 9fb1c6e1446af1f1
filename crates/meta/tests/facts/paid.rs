//! When what is owed to a node is paid: once the node has said all that it may have brought back.

use slackwater_meta::Journaled;
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
