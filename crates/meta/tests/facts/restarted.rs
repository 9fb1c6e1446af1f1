//! Look-ups just after a restart of the master.

use std::time::Duration;

use slackwater_meta::{
    Absence, Held, Input, Journaled, Limits, MasterConfig, Offload, OffloadMode, Output, Tenancy,
};
use slackwater_wire::*;

use crate::inventory::{announced, entry, holds, holds_ahead, mount_as};
use crate::world::*;

const WAIT: Duration = Duration::from_secs(5);

fn config(wait: Duration) -> MasterConfig {
    MasterConfig {
        granule: BLOCK,
        absence: Absence {
            restart_wait: wait,
            ..plain().absence
        },
        ..plain()
    }
}

/// A master whose predecessor knew these nodes.
fn restarted(config: MasterConfig, nodes: &[NodeId]) -> World {
    let mut world = World::new(config);
    let journal = Journaled {
        nodes: nodes.iter().map(|node| (*node, false)).collect(),
        ..Journaled::default()
    };
    world.master.restore(world.now, journal);
    world.master.start_above(Version(1 << 30));
    world
}

fn mount(world: &mut World) {
    mount_as(world, MEMORY, SegmentKind::Memory, 1 << 20);
}

fn get(names: &[&str], prefix_only: bool) -> Request {
    Request::Get(Get {
        tenant: Tenant::DEFAULT,
        keys: names.iter().map(|name| key(name)).collect(),
        chain: Chain::default(),
        hold: Hold::Lease,
        prefix_only,
    })
}

fn exists(names: &[&str]) -> Request {
    Request::Exists(Exists {
        tenant: Tenant::DEFAULT,
        keys: names
            .iter()
            .map(|name| key(name))
            .collect::<Vec<_>>()
            .into(),
    })
}

fn describe(name: &str) -> Request {
    Request::Describe {
        tenant: Tenant::DEFAULT,
        key: key(name),
    }
}

/// What a reply says of each key.
fn found(reply: Option<Reply>) -> Option<Vec<bool>> {
    Some(match reply? {
        Reply::Get(lookups) => lookups
            .iter()
            .map(|lookup| matches!(lookup, Lookup::Found(_)))
            .collect(),
        Reply::Exists(each) => each,
        Reply::Describe(_) => vec![true],
        Reply::Failed(ErrorCode::ObjectNotFound) => vec![false],
        other => panic!("{other:?}"),
    })
}

/// A master was started again. Until its nodes had said what they hold, every read missed, and the values were computed
/// anew and put while they were there.
#[test]
fn look_ups_wait_for_what_nodes_have_yet_to_say() {
    let check = |request: Request, with_a: Option<&[bool]>, with_all: &[bool]| {
        let mut world = restarted(config(WAIT), &[NODE]);
        let call = world.send(ME, request.clone());
        mount(&mut world);
        assert_eq!(found(world.reply(call)), None, "{request:?}");
        holds(&mut world, vec![entry("a", 50, 0)]);
        let answer = found(world.reply(call));
        assert_eq!(answer.as_deref(), with_a, "{request:?}");
        if answer.is_some() {
            return;
        }
        holds(&mut world, vec![entry("b", 51, 1)]);
        announced(&mut world);
        assert_eq!(found(world.reply(call)).as_deref(), Some(with_all));
        assert_eq!(world.master.metrics().look_ups_held, 1);
        let now = world.send(ME, get(&["none"], false));
        assert_eq!(found(world.reply(now)), Some(vec![false]));
    };
    check(get(&["a"], false), Some(&[true]), &[]);
    check(exists(&["a", "a"]), Some(&[true, true]), &[]);
    check(describe("a"), Some(&[true]), &[]);
    check(get(&["a", "none"], false), None, &[true, false]);
    check(exists(&["none"]), None, &[false]);
    check(describe("none"), None, &[false]);
    check(exists(&["b", "a"]), None, &[true, true]);
}

/// Just after a restart a put waited for a node with an SSD, and for as long values were evicted for it, each time that
/// the room of others was fenced, until none were left. It held up every other put too.
#[test]
fn a_put_that_waits_for_a_node_makes_no_room_and_holds_nobody_up() {
    let mut world = restarted(config(WAIT), &[NODE, NodeId(9)]);
    mount(&mut world);
    announced(&mut world);
    for at in 0..10 {
        world.put(&format!("k{at}"), BLOCK);
    }
    let durable = PutConfig {
        durability: Durability::Disk,
        ..wait(WAIT)
    };
    let waits = world.send(ME, start("durable", BLOCK, durable));
    assert_eq!(world.reply(waits), None);
    assert_eq!(
        world.master.books().objects,
        10,
        "nothing is evicted for it"
    );
    let other = world.send(OTHER, start("large", 8 * BLOCK, wait(WAIT)));
    assert!(is_granted(&world.reply(other)));
    let left = world.master.books().objects;
    assert!(left >= 3, "{left}: no more than its length is evicted");
    world.mount(NodeId(9), DISK, SegmentKind::Disk, 1 << 20);
    assert!(is_granted(&world.reply(waits)));
}

/// A read of a prefix waited for its first key only, and then missed the second, which came a moment later.
#[test]
fn a_prefix_is_waited_for_key_by_key() {
    let mut world = restarted(config(WAIT), &[NODE]);
    let call = world.send(ME, get(&["a", "b", "none", "c"], true));
    mount(&mut world);
    for (at, name) in ["c", "a"].into_iter().enumerate() {
        holds(&mut world, vec![entry(name, 50, at as u64)]);
        assert_eq!(world.reply(call), None, "{name}");
    }
    holds(&mut world, vec![entry("b", 51, 2)]);
    assert_eq!(world.reply(call), None, "the third may be there");
    announced(&mut world);
    let expected = vec![true, true, false, false];
    assert_eq!(found(world.reply(call)), Some(expected));
}

#[test]
fn nothing_waits_longer_than_is_configured() {
    for (wait, nodes, held) in [
        (WAIT, &[NODE][..], true),
        (Duration::ZERO, &[NODE][..], false),
        (WAIT, &[][..], false),
    ] {
        let mut world = restarted(config(wait), nodes);
        let calls: Vec<OperationId> = (0..600)
            .map(|at| world.send(ME, get(&[&format!("k{at}")], false)))
            .collect();
        let answered = |world: &mut World| {
            let each = calls.iter().map(|call| found(world.reply(*call)));
            each.filter(Option::is_some).count()
        };
        if held {
            world.pass(WAIT - Duration::from_nanos(1));
            assert_eq!(answered(&mut world), 0);
            world.pass(Duration::from_nanos(1));
        }
        assert_eq!(answered(&mut world), 600, "{wait:?} {nodes:?}");
        let late = world.send(ME, get(&["k"], false));
        assert_eq!(found(world.reply(late)), Some(vec![false]));
    }
    // A node that is given up is waited for no more.
    let mut world = restarted(config(Duration::from_secs(3600)), &[NODE]);
    let call = world.send(ME, get(&["k"], false));
    world.pass(plain().absence.given_up_after);
    assert_eq!(found(world.reply(call)), Some(vec![false]));
}

#[test]
fn what_is_found_or_put_is_answered_at_once() {
    let mut world = restarted(config(WAIT), &[NODE, NodeId(2)]);
    mount(&mut world);
    holds(&mut world, vec![entry("a", 50, 0)]);
    announced(&mut world);
    let call = world.send(ME, get(&["a"], false));
    assert_eq!(found(world.reply(call)), Some(vec![true]));
    let call = world.send(OTHER, get(&["new", "newer", "a"], false));
    assert_eq!(world.reply(call), None, "the second node may have it");
    world.put("new", BLOCK);
    assert_eq!(world.reply(call), None, "another one is missing");
    world.put("newer", BLOCK);
    assert_eq!(found(world.reply(call)), Some(vec![true; 3]));
}

/// A call that is over must not be answered, and one that is repeated once.
#[test]
fn waiting_calls_end_with_their_clients() {
    let mut world = restarted(config(WAIT), &[NODE]);
    let names: &[&str] = &["a", "b", "a", "b"];
    let mine = world.send(ME, exists(names));
    let other = world.send(OTHER, exists(&["a"]));
    assert_eq!(world.repeat(ME, mine, &exists(names)), None);
    world.ask(Request::Revoke { operation: mine });
    world.input(Input::ClientLost(OTHER));
    let last = world.send(ME, exists(&["a"]));
    assert_eq!(world.repeat(ME, last, &exists(&["a"])), None);
    world.pass(WAIT);
    assert_eq!((world.reply(mine), world.reply(other)), (None, None));
    assert_eq!(found(world.reply(last)), Some(vec![false]));
    assert_eq!(world.reply(last), None, "it is answered once");
}

/// A request was counted by the keys that it awaited, one for a prefix of ten thousand, though it is kept whole; and one client
/// could take what was there for all.
#[test]
fn what_waits_is_bounded_for_all_and_for_each_client() {
    let limits = |held_calls: usize, held_keys: usize| MasterConfig {
        limits: Limits {
            held_calls,
            held_keys,
            ..plain().limits
        },
        ..config(WAIT)
    };
    let clients = |count: u64| (1..=count).map(|client| ClientId(100 + client));
    let waits = |world: &mut World, client: ClientId, request: Request| {
        let call = world.send(client, request);
        world.reply(call).is_none()
    };
    let long: Vec<String> = (0..10).map(|name| format!("k{name}")).collect();
    let long: Vec<&str> = long.iter().map(String::as_str).collect();

    // A client may keep a quarter of forty keys, and of eight calls.
    let mut world = restarted(limits(8, 40), &[NODE]);
    assert!(waits(&mut world, ME, get(&long, true)));
    assert!(!waits(&mut world, ME, exists(&["a"])), "an eleventh key");
    for _ in 0..2 {
        assert!(waits(&mut world, OTHER, exists(&["a", "a"])));
    }
    assert!(!waits(&mut world, OTHER, exists(&["a"])), "a third call");
    // An end makes room.
    world.input(Input::ClientLost(OTHER));
    assert!(waits(&mut world, OTHER, exists(&["a"])));

    // All clients together may keep forty keys, or eight calls.
    for (request, most) in [(get(&long, false), 4), (exists(&["a"]), 8)] {
        let mut world = restarted(limits(8, 40), &[NODE]);
        let held = clients(10).map(|client| waits(&mut world, client, request.clone()));
        let held: Vec<bool> = held.collect();
        let expected: Vec<bool> = (0..10).map(|client| client < most).collect();
        assert_eq!(held, expected);
        // An end makes room for others.
        world.input(Input::ClientLost(ClientId(101)));
        assert!(waits(&mut world, ME, request));
    }
}

/// One step answered 256 requests, of up to ten thousand keys each.
#[test]
fn long_requests_are_answered_a_few_at_a_time() {
    let mut world = restarted(config(WAIT), &[NODE]);
    let long: Vec<String> = (0..1000).map(|name| format!("k{name}")).collect();
    let long: Vec<&str> = long.iter().map(String::as_str).collect();
    let calls = (0..8).map(|_| world.send(ME, exists(&long)));
    let calls: Vec<OperationId> = calls.collect();
    world.now += WAIT;
    let mut steps = Vec::new();
    while world
        .master
        .next_deadline()
        .is_some_and(|at| at <= world.now)
    {
        let mut out = Vec::new();
        world.master.on_deadline(world.now, &mut out);
        let answers = out.iter().filter(|it| matches!(it, Output::Reply { .. }));
        steps.push(answers.count());
    }
    steps.retain(|answers| *answers > 0);
    assert_eq!((calls.len(), &steps[..]), (8, &[5, 3][..]));
}

/// Records were announced, and reads of them went on waiting for the rest.
#[test]
fn a_record_ends_the_wait_for_its_key() {
    let mut world = restarted(config(WAIT), &[NODE]);
    let call = world.send(ME, get(&["a"], false));
    mount_as(&mut world, DISK, SegmentKind::Disk, 0);
    let entries = vec![reported("a", 50, BLOCK)];
    let segment = DISK;
    world.report(NODE, Report::Announce { segment, entries });
    assert_eq!(found(world.reply(call)), Some(vec![true]));
}

/// The node without an SSD came first after a restart, and a put that had to be durable was refused for good: nobody lent an
/// SSD yet. Likewise one that only the memory of a node that was still to come could hold.
#[test]
fn puts_wait_for_what_only_nodes_that_are_to_come_can_hold() {
    let durable = PutConfig {
        durability: Durability::Disk,
        ..wait(seconds(5))
    };
    for (put, bytes) in [(durable, BLOCK), (wait(seconds(5)), 8 * BLOCK)] {
        let mut world = restarted(config(WAIT), &[NODE]);
        world.mount(NodeId(2), SegmentId(11), SegmentKind::Memory, 4 * BLOCK);
        let call = world.send(ME, start("a", bytes, put));
        assert_eq!(world.reply(call), None, "{bytes}");
        mount(&mut world);
        mount_as(&mut world, DISK, SegmentKind::Disk, 0);
        announced(&mut world);
        let (segment, highest) = (DISK, Version(0));
        world.report(NODE, Report::Announced { segment, highest });
        let granted = world.reply(call);
        assert!(is_granted(&granted), "{granted:?}");
    }
}

/// The keys that nodes were asked for since the last call, with the nodes.
fn asked(world: &mut World) -> Vec<(Vec<NodeId>, Vec<String>)> {
    let text = |key: &Key| String::from_utf8_lossy(key.as_bytes()).into_owned();
    let asked = std::mem::take(&mut world.asked).into_iter();
    let keys = |names: Vec<ObjectName>| names.iter().map(|(_, key)| text(key)).collect();
    asked.map(|(nodes, names)| (nodes, keys(names))).collect()
}

fn names<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(str::to_owned).into()
}

/// A look-up waited for the turn of its key among all that its node held: seconds with a million values.
#[test]
fn nodes_are_asked_for_what_look_ups_miss() {
    let mut world = restarted(config(WAIT), &[NODE, NodeId(2)]);
    let early = world.send(ME, get(&["a", "b", "a"], false));
    assert_eq!(asked(&mut world), [], "nobody is there");
    mount(&mut world);
    mount_as(&mut world, DISK, SegmentKind::Disk, 0);
    assert_eq!(asked(&mut world), [], "it would not know what is meant");
    holds(&mut world, vec![entry("c", 50, 0)]);
    assert_eq!(asked(&mut world), [(vec![NODE], names(["a", "b"]))]);
    holds(&mut world, vec![entry("d", 50, 1)]);
    assert_eq!(asked(&mut world), [], "it was asked");
    let entries = vec![reported("c", 50, BLOCK)];
    let segment = DISK;
    world.report(NODE, Report::Announce { segment, entries });
    assert_eq!(asked(&mut world), [], "it was asked for all that it has");

    // Of a prefix for all, though it waits for the first.
    let late = world.send(OTHER, get(&["e", "b", "c", "f"], true));
    assert_eq!(asked(&mut world), [(vec![NODE], names(["e", "b", "f"]))]);
    world.send(OTHER, exists(&["f", "x"]));
    assert_eq!(asked(&mut world), [], "a moment ago");
    world.pass(Duration::from_millis(5));
    assert_eq!(asked(&mut world), [(vec![NODE], names(["x"]))]);
    world.pass(Duration::from_millis(5));
    assert_eq!(asked(&mut world), []);

    let ahead = ["e", "f", "b", "a"].into_iter().zip([9, 6, 5, 12]);
    let ahead: Vec<Published> = ahead.map(|(name, at)| entry(name, 50, at)).collect();
    holds_ahead(&mut world, ahead.clone());
    assert_eq!(found(world.reply(early)), Some(vec![true; 3]));
    assert_eq!(found(world.reply(late)), Some(vec![true; 4]));
    world.pass(Duration::from_millis(5));
    assert_eq!(asked(&mut world), []);
    // In their turn, with what lies between.
    let mut all = ahead.clone();
    all.extend([entry("g", 50, 2), entry("h", 50, 7), entry("i", 50, 13)]);
    all.sort_by_key(|published| published.extent.offset);
    holds(&mut world, all);
    holds_ahead(&mut world, ahead);
    assert_eq!(world.master.metrics().extents_announced, 9);
    assert_eq!(world.master.metrics().extents_stale, 0);
    announced(&mut world);
    let fences = world.orders.iter();
    let fences = fences.filter(|(_, order)| matches!(order, Order::Fence(_)));
    assert_eq!(fences.count(), 0);
    let each = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    let all = world.send(ME, exists(&each));
    assert_eq!(found(world.reply(all)), Some(vec![true; 9]));
    // Thirteen of sixteen blocks are behind the first of them, nine are taken.
    assert_eq!(world.master.segments()[0].used_bytes, 9 * BLOCK);
}

/// What was announced ahead is removed or replaced before its turn, which may be under way then.
#[test]
fn what_was_ahead_may_be_gone_in_its_turn() {
    let mut world = restarted(config(WAIT), &[NODE]);
    world.obedient = false;
    mount(&mut world);
    let a = entry("a", 50, 7);
    holds_ahead(&mut world, vec![a.clone()]);
    let remove = world.send(
        ME,
        Request::Remove(Remove {
            tenant: Tenant::DEFAULT,
            keys: vec![key("a")],
            force: true,
        }),
    );
    let fence = |world: &mut World| {
        let fences = world.orders.drain(..);
        let fences = fences.filter_map(|(_, order)| match order {
            Order::Fence(extents) => Some(extents),
            _ => None,
        });
        fences.flatten().collect::<Vec<_>>()
    };
    assert_eq!(fence(&mut world), [a.extent]);
    holds(&mut world, vec![entry("b", 50, 1), a.clone()]);
    assert_eq!(fence(&mut world), [], "it was told");
    let a_there = world.send(ME, exists(&["a"]));
    assert_eq!(world.reply(remove), None, "its node has not forgotten it");
    world.report(NODE, Report::Fenced(vec![a.extent]));
    assert_eq!(world.reply(remove), Some(Reply::Each(vec![Ok(())])));
    holds(&mut world, vec![entry("c", 50, 9)]);
    announced(&mut world);
    assert_eq!(found(world.reply(a_there)), Some(vec![false]));
    assert_eq!(world.master.segments()[0].used_bytes, 2 * BLOCK);
    // Only with its place are seven blocks in a row free.
    world.put("long", 7 * BLOCK);
    assert_eq!(world.master.segments()[0].used_bytes, 9 * BLOCK);
}

/// What cannot be right ahead of its turn is left to its turn: it may have come.
#[test]
fn what_does_not_fit_ahead_is_no_mistake() {
    let mut world = restarted(config(WAIT), &[NODE]);
    mount(&mut world);
    holds(&mut world, vec![entry("a", 50, 3)]);
    holds_ahead(&mut world, vec![entry("b", 50, 1), entry("c", 51, 3)]);
    assert_eq!(world.orders.len(), 0);
    let all = world.send(ME, exists(&["a", "b", "c"]));
    assert_eq!(world.reply(all), None);
    announced(&mut world);
    assert_eq!(found(world.reply(all)), Some(vec![true, false, false]));
}

/// The link of a node broke with what it was asked in it, and came back: nobody asked again.
#[test]
fn a_node_that_was_away_is_asked_again() {
    let mut world = restarted(config(WAIT), &[NODE]);
    mount(&mut world);
    holds(&mut world, vec![entry("a", 50, 0)]);
    let call = world.send(ME, exists(&["b"]));
    assert_eq!(asked(&mut world).len(), 1);
    world.input(Input::NodeAway(NODE));
    world.pass(Duration::from_millis(5));
    world.send(OTHER, exists(&["c"]));
    assert_eq!(asked(&mut world), [], "it is not there");
    world.input(Input::NodeBack(NODE));
    holds(&mut world, vec![entry("d", 50, 1)]);
    assert_eq!(asked(&mut world), [(vec![NODE], names(["b", "c"]))]);
    // Its new link was there before the end of the old one was noticed.
    world.input(Input::NodeBack(NODE));
    holds(&mut world, vec![entry("e", 50, 2)]);
    assert_eq!(asked(&mut world), [(vec![NODE], names(["b", "c"]))]);
    holds_ahead(&mut world, vec![entry("b", 50, 5)]);
    assert_eq!(found(world.reply(call)), Some(vec![true]));
}

/// Records followed the memory of their node, until they could be asked for: the policy of the SSD had such a block twice.
#[test]
fn a_record_may_come_before_what_is_in_memory() {
    let on_evict = Offload {
        mode: OffloadMode::OnEvict,
        ..Offload::default()
    };
    let config = MasterConfig {
        offload: on_evict,
        ..config(WAIT)
    };
    let mut world = restarted(config, &[NODE]);
    mount(&mut world);
    mount_as(&mut world, DISK, SegmentKind::Disk, 0);
    let (memory, record) = (entry("a", 50, 3), reported("a", 50, BLOCK));
    let same = (record.bytes, record.checksum);
    assert_eq!((memory.bytes, memory.checksum), same);
    let announce = |world: &mut World| {
        let (segment, entries) = (DISK, vec![record.clone()]);
        world.report(NODE, Report::Announce { segment, entries });
    };
    announce(&mut world);
    holds(&mut world, vec![memory, entry("b", 50, 4)]);
    announce(&mut world);
    assert_eq!(world.master.metrics().records_announced, 1);
    let known = |name: &str| {
        let opinions = world
            .master
            .explain(world.now, &Tenant::DEFAULT, &key(name));
        let opinions = opinions.unwrap_or_default().into_iter();
        opinions
            .map(|opinion| (opinion.kind, opinion.held))
            .collect::<Vec<_>>()
    };
    let in_memory = (SegmentKind::Memory, Held::Here);
    assert_eq!(known("a"), [in_memory, (SegmentKind::Disk, Held::Here)]);
    assert_eq!(known("b"), [in_memory, (SegmentKind::Disk, Held::Above)]);
}

/// Each key that a client made up would have been a message to every node.
#[test]
fn nodes_are_asked_seldom_and_for_few_keys() {
    let mut world = restarted(config(WAIT), &[NODE]);
    mount(&mut world);
    let long = |call: u64| -> Vec<String> { (0..4000).map(|at| format!("{call} {at}")).collect() };
    let send = |world: &mut World, client: u64, keys: &[String]| {
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        world.send(ClientId(100 + client), exists(&keys))
    };
    for call in 0..8 {
        let _ = send(&mut world, call / 2, &long(call));
    }
    let mut messages = asked(&mut world);
    assert_eq!(messages.len(), 1, "the others wait");
    for millis in 1..100 {
        world.pass(Duration::from_millis(1));
        let now = asked(&mut world);
        assert_eq!(
            now.len(),
            usize::from(millis % 5 == 0 && millis <= 80),
            "{millis}"
        );
        messages.extend(now);
    }
    assert!(messages.iter().all(|(_, keys)| keys.len() == 1024));
    // A node that begins later is asked for some of each client.
    holds(&mut world, vec![entry("a", 50, 0)]);
    let of_begun = asked(&mut world);
    let keys: Vec<&String> = of_begun.iter().flat_map(|(_, keys)| keys).collect();
    assert_eq!(keys.len(), 4096);
    for call in [0, 2, 4, 6] {
        assert!(keys.contains(&&format!("{call} 1000")), "{call}");
    }
    // One of a few clients that all ask for much has its turn.
    let mut world = restarted(config(WAIT), &[NODE]);
    mount(&mut world);
    for client in 0..4 {
        send(&mut world, client, &long(client));
    }
    send(&mut world, 9, &["mine".to_owned()]);
    let _ = asked(&mut world);
    world.pass(Duration::from_millis(5));
    let second = asked(&mut world).remove(0);
    assert!(second.1.contains(&"mine".to_owned()));
    // Long names make fewer of them a message.
    let mut world = restarted(config(WAIT), &[NODE]);
    mount(&mut world);
    let keys: Vec<String> = (0..1000).map(|at| format!("{at:01000}")).collect();
    send(&mut world, 0, &keys);
    assert_eq!(asked(&mut world)[0].1.len(), 66);
}

/// A key that somebody was about to be asked for went with the client that missed it first, and nobody else could ask for it.
#[test]
fn what_others_wait_for_is_asked_for_though_the_first_is_gone() {
    let mut world = restarted(config(WAIT), &[NODE]);
    mount(&mut world);
    world.send(ME, exists(&["a"]));
    world.send(OTHER, exists(&["b"]));
    world.send(ME, exists(&["b"]));
    world.input(Input::ClientLost(OTHER));
    let _ = asked(&mut world);
    world.pass(Duration::from_millis(5));
    assert_eq!(asked(&mut world), [(vec![NODE], names(["b"]))]);
}

/// Clients that had much to ask for came first, and one that waits for one key was never asked for.
#[test]
fn few_keys_of_one_are_asked_for_beside_many_of_others() {
    let mut world = restarted(config(WAIT), &[NODE]);
    let long =
        |client: u64| -> Vec<String> { (0..4000).map(|at| format!("{client} {at}")).collect() };
    let send = |world: &mut World, client: u64, keys: &[String]| {
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        world.send(ClientId(100 + client), exists(&keys))
    };
    let fill = |world: &mut World, name: &str| {
        for client in 0..200 {
            let keys = if client < 8 { 4000 } else { 100 };
            send(world, client, &long(client)[..keys]);
        }
        send(world, 900, &[name.to_owned()]);
    };
    // Before its node begins.
    fill(&mut world, "early");
    mount(&mut world);
    holds(&mut world, vec![entry("a", 50, 0)]);
    let begun = asked(&mut world);
    assert!(
        begun
            .iter()
            .any(|(_, keys)| keys.contains(&"early".to_owned()))
    );
    let all = begun.iter().map(|(_, keys)| keys.len());
    assert_eq!(all.sum::<usize>(), 4096);
    // And after.
    let mut world = restarted(config(WAIT), &[NODE]);
    mount(&mut world);
    fill(&mut world, "late");
    let _ = asked(&mut world);
    world.pass(Duration::from_millis(5));
    assert!(asked(&mut world)[0].1.contains(&"late".to_owned()));
}

/// Where tenants are not told apart, nodes know every object as the default tenant's: they were asked for that of the request,
/// which they did not have.
#[test]
fn nodes_are_asked_for_the_tenant_that_they_know() {
    let tenant = Tenant::new("acme").unwrap();
    for (tenancy, known) in [
        (Tenancy::Off, Tenant::DEFAULT),
        (Tenancy::On, tenant.clone()),
    ] {
        let config = MasterConfig {
            tenancy,
            ..config(WAIT)
        };
        let mut world = restarted(config, &[NODE]);
        mount(&mut world);
        let key = key("a");
        world.send(
            ME,
            Request::Describe {
                tenant: tenant.clone(),
                key: key.clone(),
            },
        );
        assert_eq!(world.asked, [(vec![NODE], vec![(known, key)])]);
    }
}

/// A call that had found all but one of its keys had all of them asked for again.
#[test]
fn what_was_found_is_not_asked_for_again() {
    let mut world = restarted(config(WAIT), &[NODE]);
    mount(&mut world);
    world.send(ME, exists(&["a", "b", "c"]));
    holds(&mut world, vec![entry("a", 50, 0)]);
    holds_ahead(&mut world, vec![entry("c", 50, 3)]);
    let _ = asked(&mut world);
    world.input(Input::NodeBack(NODE));
    holds(&mut world, vec![entry("d", 50, 1)]);
    assert_eq!(asked(&mut world), [(vec![NODE], names(["b"]))]);
}

/// What had been asked for was remembered although nobody waited for it any more, and what nobody waited for was asked for.
#[test]
fn nodes_are_not_asked_for_what_nobody_waits_for() {
    let mut world = restarted(config(WAIT), &[NODE]);
    mount(&mut world);
    let long: Vec<String> = (0..3000).map(|at| at.to_string()).collect();
    let long: Vec<&str> = long.iter().map(String::as_str).collect();
    world.send(ME, exists(&long));
    assert_eq!(asked(&mut world).len(), 1);
    world.input(Input::ClientLost(ME));
    world.pass(Duration::from_millis(5));
    assert_eq!(asked(&mut world), []);
    world.send(OTHER, exists(&["0"]));
    assert_eq!(asked(&mut world), [(vec![NODE], names(["0"]))]);
}

/// Of an extent that came ahead and was of no use nobody knew: it was counted neither then nor in its turn.
#[test]
fn what_is_ahead_and_of_no_use_is_counted_once() {
    let mut world = restarted(config(WAIT), &[NODE]);
    mount(&mut world);
    let unsound = Published {
        bytes: 2 * BLOCK,
        ..entry("a", 50, 3)
    };
    holds_ahead(&mut world, vec![unsound.clone()]);
    holds(&mut world, vec![unsound]);
    let metrics = world.master.metrics();
    assert_eq!((metrics.extents_announced, metrics.extents_stale), (1, 1));
}
