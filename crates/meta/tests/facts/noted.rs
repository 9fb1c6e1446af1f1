//! Puts that need several hosts, whose nodes outlive their master: what was acknowledged is found by the next one.

use std::collections::BTreeMap;

use slackwater_meta::{Input, Limits, MasterConfig};
use slackwater_wire::*;

use super::put::granted;
use crate::world::*;

/// The first version of the second master.
const LATER: Version = Version(1 << 40);

/// Nodes 1 to 3 of a host each, and what they have noted.
#[derive(Default)]
struct Nodes(BTreeMap<u32, Vec<Published>>);

fn mount(world: &mut World, node: u32, generations: u64) {
    let mount = Mount {
        segment: SegmentId(node * 10),
        name: format!("segment-{node}"),
        node: NodeId(node),
        incarnation: Incarnation(1),
        kind: SegmentKind::Memory,
        bytes: 16 * BLOCK,
        host: format!("host-{node}"),
        generations: Some(generations),
        watermarks: None,
    };
    assert_eq!(world.ask(Request::Mount(mount)), Reply::Done);
}

fn announced(world: &mut World, node: u32) {
    let announced = Report::Announced {
        segment: SegmentId(node * 10),
        highest: Version(0),
    };
    world.report(NodeId(node), announced);
}

fn first() -> World {
    let mut world = World::new(MasterConfig {
        granule: BLOCK,
        ..plain()
    });
    for node in 1..=3 {
        mount(&mut world, node, 0);
        announced(&mut world, node);
    }
    world.obedient = false;
    world
}

/// The next master, to which all nodes have said hello.
fn next() -> World {
    let mut world = World::new(MasterConfig {
        granule: BLOCK,
        ..plain()
    });
    world.master.start_above(LATER);
    (1..=3).for_each(|node| mount(&mut world, node, 1 << 20));
    world
}

impl Nodes {
    /// A node takes its orders, which the master hears where it asked for that.
    fn take(&mut self, world: &mut World, node: u32) {
        let orders = std::mem::take(&mut world.orders).into_iter();
        let (own, others): (Vec<_>, Vec<_>) = orders.partition(|(of, _)| of.0 == node);
        world.orders = others.into();
        for (_, order) in own {
            if let Order::Published(entries) = order {
                self.0.entry(node).or_default().extend(entries);
            }
        }
        let marks = world.marks.extract_if(.., |(of, _)| of.0 == node);
        let marks: Vec<_> = marks.collect();
        for (node, mark) in marks {
            world.input(Input::Taken { node, mark });
        }
    }

    fn announce(&self, world: &mut World, node: u32) {
        if let Some(entries) = self.0.get(&node) {
            let holds = Report::Holds {
                segment: SegmentId(node * 10),
                entries: entries.clone(),
                ahead: false,
            };
            world.report(NodeId(node), holds);
        }
        announced(world, node);
    }
}

/// Puts `k` on nodes 1 and 2 up to the answer to its end, which nothing is heard of.
fn ended(world: &mut World) -> (Version, OperationId) {
    let config = PutConfig {
        replicas: 2,
        durability: Durability::Replicated,
        preferred: ["segment-1", "segment-2"].map(str::to_owned).into(),
        ..wait(seconds(0))
    };
    let (version, _) = granted(world.start("k", BLOCK, config));
    (version, world.send(ME, end_on(2, version)))
}

fn end_on(hosts: u32, version: Version) -> Request {
    match end("k", version) {
        Request::PutEnd(end) => Request::PutEnd(PutEnd {
            hosts: Some(hosts),
            ..end
        }),
        other => other,
    }
}

fn done() -> Option<Reply> {
    Some(Reply::Each(vec![Ok(())]))
}

fn failed(code: ErrorCode) -> Option<Reply> {
    Some(Reply::Each(vec![Err(code)]))
}

/// The answer did not wait until the nodes had heard what they hold: the master died in that moment, and the next one knew
/// nothing of a value that its caller was promised on two hosts.
#[test]
fn what_was_acknowledged_on_several_hosts_outlives_the_master_and_all_but_one_of_them() {
    for order in [[1, 2], [2, 1]] {
        let (mut world, mut nodes) = (first(), Nodes::default());
        let (version, call) = ended(&mut world);
        assert_eq!(world.found("k").version, version, "it is readable before");
        let mut heard = order.into_iter();
        let reply = loop {
            if let Some(reply) = world.reply(call) {
                break Some(reply);
            }
            let Some(node) = heard.next() else { break None };
            nodes.take(&mut world, node);
        };
        assert_eq!(reply, done(), "no more is needed");
        // Of what the nodes have heard by then, as the master dies.
        for lost in order {
            let mut next = next();
            let lives = |node: &u32| *node != lost;
            for node in (1..=3).filter(lives) {
                nodes.announce(&mut next, node);
            }
            assert_eq!(next.found("k").version, version, "without node {lost}");
        }
    }
}

#[test]
fn an_answer_does_not_wait_for_a_node_that_is_lost_or_stays_away() {
    let check = |name: &str, happens: &dyn Fn(&mut World), expected: Option<Reply>| {
        let (mut world, mut nodes) = (first(), Nodes::default());
        let (_, call) = ended(&mut world);
        nodes.take(&mut world, 1);
        happens(&mut world);
        assert_eq!(world.reply(call), expected, "{name}");
        world.input(Input::NodeBack(NodeId(2)));
        nodes.take(&mut world, 2);
        let late = if expected.is_none() { done() } else { None };
        assert_eq!(world.reply(call), late, "{name}");
        assert_eq!(world.master.books().unanswered, 0, "{name}");
    };
    let hidden = MasterConfig::DEFAULT.absence.hidden_after;
    check("nothing", &|_| {}, None);
    let away = |world: &mut World| world.input(Input::NodeAway(NodeId(2)));
    check("away for a moment", &away, None);
    let long_away = |world: &mut World| {
        away(world);
        world.pass(hidden);
    };
    let code = ErrorCode::UnavailableInCurrentStatus;
    check("away for long", &long_away, failed(code));
    let lost = |world: &mut World| world.input(Input::NodeLost(NodeId(2)));
    check("lost", &lost, failed(ErrorCode::ReplicaIsGone));
}

/// The second of two requests for the end of a put was answered at once.
#[test]
fn a_repeated_end_waits_for_the_same_nodes() {
    let (mut world, mut nodes) = (first(), Nodes::default());
    let (version, call) = ended(&mut world);
    let again = world.send(ME, end_on(2, version));
    for node in [1, 2] {
        assert_eq!((world.reply(call), world.reply(again)), (None, None));
        nodes.take(&mut world, node);
    }
    assert_eq!((world.reply(call), world.reply(again)), (done(), done()));
    let later = world.send(ME, end_on(2, version));
    (1..=2).for_each(|node| nodes.take(&mut world, node));
    assert_eq!(world.reply(later), done());
}

/// A master that had not granted a put, and found the value on one node, took its end for one that needs no more.
#[test]
fn the_next_master_acknowledges_no_fewer_hosts_than_were_promised() {
    let check = |announce: &[u32], hosts: Option<u32>, expected: Reply| {
        let (mut world, mut nodes) = (first(), Nodes::default());
        let (version, _) = ended(&mut world);
        (1..=2).for_each(|node| nodes.take(&mut world, node));
        let mut next = next();
        for node in announce {
            nodes.announce(&mut next, *node);
        }
        let again = match hosts {
            Some(hosts) => end_on(hosts, version),
            None => end("k", version),
        };
        let reply = next.ask(again);
        assert_eq!(reply, expected, "{announce:?}, {hosts:?}");
    };
    let (done, gone) = (done().unwrap(), failed(ErrorCode::ReplicaIsGone).unwrap());
    let later = Reply::Failed(ErrorCode::UnavailableInCurrentStatus);
    check(&[1, 2, 3], Some(2), done.clone());
    check(&[1, 2, 3], Some(3), gone);
    check(&[1, 2], Some(2), done.clone());
    // What is not there may be on a node that has yet to say what it holds.
    check(&[1, 3], Some(2), later.clone());
    check(&[3], Some(2), later);
    // Clients of earlier releases do not say it.
    check(&[1], None, done);
}

/// A node came back without its memory.
#[test]
fn the_next_master_acknowledges_nothing_that_went_with_a_node() {
    let (mut world, mut nodes) = (first(), Nodes::default());
    let (version, _) = ended(&mut world);
    (1..=2).for_each(|node| nodes.take(&mut world, node));
    let mut next = next();
    nodes.announce(&mut next, 1);
    (2..=3).for_each(|node| announced(&mut next, node));
    let reply = next.ask(end_on(2, version));
    assert_eq!(Some(reply), failed(ErrorCode::ReplicaIsGone));
    assert_eq!(next.found("k").version, version, "it stays readable");
}

/// A node that had a link and never said what it had taken was waited for by any number of answers.
#[test]
fn a_node_that_takes_nothing_is_waited_for_by_a_limited_number() {
    let config = plain();
    let mut world = World::new(MasterConfig {
        granule: BLOCK,
        limits: Limits {
            untaken: 3,
            ..config.limits
        },
        ..config
    });
    for node in 1..=2 {
        mount(&mut world, node, 0);
        announced(&mut world, node);
    }
    world.obedient = false;
    let mut nodes = Nodes::default();
    let mut put = |world: &mut World, name: &str| {
        let config = PutConfig {
            replicas: 2,
            durability: Durability::Replicated,
            ..wait(seconds(0))
        };
        let (version, _) = granted(world.start(name, BLOCK, config));
        let call = world.send(ME, end(name, version));
        nodes.take(world, 1);
        call
    };
    let calls = ["a", "b", "c"].map(|name| put(&mut world, name));
    let full = failed(ErrorCode::TaskPendingLimitExceeded);
    for name in ["d", "e"] {
        let call = put(&mut world, name);
        assert_eq!(world.reply(call), full, "{name}");
        assert!(world.has(name), "it can be read as any other");
    }
    assert_eq!(calls.map(|call| world.reply(call)), [None, None, None]);
    Nodes::default().take(&mut world, 2);
    assert_eq!(
        calls.map(|call| world.reply(call)),
        [done(), done(), done()]
    );
    let call = put(&mut world, "f");
    Nodes::default().take(&mut world, 2);
    assert_eq!(world.reply(call), done(), "there is room for others");
}

/// A node of an earlier release knows two kinds of durability, and leaves a link on which it is told of a third.
#[test]
fn nodes_are_told_what_those_of_earlier_releases_know() {
    let mut world = first();
    ended(&mut world);
    let told = world.taken(|order| match order {
        Order::Published(entries) => Some(entries.clone()),
        _ => None,
    });
    let told = told.concat();
    let told: Vec<Durability> = told.iter().map(|it| it.durability).collect();
    assert_eq!(told, [Durability::Memory; 2]);
}
