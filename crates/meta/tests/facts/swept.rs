//! Removals of many keys, in the middle of which a node goes: what it has leaves the catalog before they come to it.

use slackwater_meta::{Input, Journaled, Limits, MasterConfig, Tenancy};
use slackwater_wire::*;

use crate::inventory::{all_announced, announced, entry, holds, mount_tiers};
use crate::world::*;

const OLD: u64 = 1 << 30;

/// A master that looks at one object a step.
fn begun(journal: Journaled) -> World {
    let mut world = World::new(MasterConfig {
        granule: BLOCK,
        tenancy: Tenancy::On,
        limits: Limits {
            scan_step: 1,
            scans: 1,
            ..MasterConfig::DEFAULT.limits
        },
        ..MasterConfig::DEFAULT
    });
    world.obedient = false;
    let now = world.now;
    world.master.restore(now, journal);
    world
}

/// `a` on the SSD of a node, behind objects that another node has.
fn with_a_record(memory: Vec<Published>) -> World {
    let mut world = begun(Journaled::default());
    world.mount(NodeId(2), SegmentId(3), SegmentKind::Memory, 16 * BLOCK);
    for name in ["b", "c", "d", "e"] {
        world.put(name, BLOCK);
    }
    mount_tiers(&mut world, &[MEMORY, DISK], Incarnation(1));
    holds(&mut world, memory);
    announced(&mut world);
    all_announced(&mut world, vec![reported("a", OLD, BLOCK)]);
    assert!(world.has("a"));
    world
}

fn sweep(world: &mut World) -> OperationId {
    let all = RemoveAll {
        tenant: Some(Tenant::DEFAULT),
        force: true,
    };
    let sweep = world.send(ME, Request::RemoveAll(all));
    assert_eq!(world.reply(sweep), None, "it takes several steps");
    sweep
}

/// The sweep had not come to `a` when its node was lost: it ended without it, and the node's record was taken for a living value.
#[test]
fn a_sweep_holds_for_a_node_that_is_lost_in_the_middle() {
    for back_before_the_end in [true, false] {
        let mut world = with_a_record(Vec::new());
        let sweep = sweep(&mut world);
        world.input(Input::NodeLost(NODE));
        let back = |world: &mut World| {
            mount_tiers(world, &[MEMORY, DISK], Incarnation(2));
            announced(world);
            all_announced(world, vec![reported("a", OLD, BLOCK)]);
        };
        if back_before_the_end {
            back(&mut world);
        }
        world.pass(seconds(1));
        assert!(matches!(world.reply(sweep), Some(Reply::Count(_))));
        if !back_before_the_end {
            back(&mut world);
        }
        assert!(!world.has("a"), "{back_before_the_end}");
    }
}

/// A removal that was refused, as too many were under way, was owed to the nodes that were away all the same.
#[test]
fn a_sweep_that_is_refused_ends_nothing() {
    let mut world = with_a_record(Vec::new());
    world.input(Input::NodeLost(NODE));
    let other = RemoveMatching {
        tenant: Tenant::DEFAULT,
        pattern: "z".to_owned(),
        force: true,
    };
    let first = world.send(ME, Request::RemoveMatching(other));
    assert_eq!(world.reply(first), None, "it takes several steps");
    let all = RemoveAll {
        tenant: Some(Tenant::DEFAULT),
        force: true,
    };
    let refused = world.ask(Request::RemoveAll(all));
    assert_eq!(refused, Reply::Failed(ErrorCode::TaskPendingLimitExceeded));
    mount_tiers(&mut world, &[MEMORY, DISK], Incarnation(2));
    announced(&mut world);
    all_announced(&mut world, vec![reported("a", OLD, BLOCK)]);
    assert!(world.has("a"));
}

/// What a sweep has left, since it is read, is none of its removals once it has ended.
#[test]
fn a_sweep_that_has_ended_holds_for_nobody_who_goes_later() {
    let mut world = with_a_record(Vec::new());
    world.get("a");
    let all = RemoveAll {
        tenant: Some(Tenant::DEFAULT),
        force: false,
    };
    let sweep = world.send(ME, Request::RemoveAll(all));
    world.pass(std::time::Duration::from_millis(10));
    assert!(matches!(world.reply(sweep), Some(Reply::Count(_))));
    assert!(world.has("a"), "it was read");
    world.input(Input::NodeLost(NODE));
    mount_tiers(&mut world, &[MEMORY, DISK], Incarnation(2));
    announced(&mut world);
    all_announced(&mut world, vec![reported("a", OLD, BLOCK)]);
    assert!(world.has("a"));
}

/// Sweeping began to keep removals for a hidden node only when it met a drop that was outstanding there, of a value that lived on
/// elsewhere until the sweep was past its place: nothing was owed, and the next master took the record for a living value.
#[test]
fn a_sweep_holds_for_a_node_for_which_removals_come_to_be_kept_in_the_middle() {
    let mut world = with_a_record(vec![entry("a", OLD, 0)]);
    let quota = |world: &mut World, memory_bytes, disk_bytes| {
        let tenant = Tenant::DEFAULT;
        let quota = Request::SetQuota {
            tenant,
            memory_bytes,
            disk_bytes,
        };
        assert_eq!(world.ask(quota), Reply::Done);
    };
    assert_eq!(world.found("a").replicas.len(), 2);
    world.pass(seconds(11));
    world.input(Input::NodeAway(NODE));
    quota(&mut world, 16 * BLOCK, 1);
    assert_eq!(world.master.metrics().disk_evictions, 1);
    world.pass(MasterConfig::DEFAULT.absence.hidden_after + seconds(11));
    let sweep = sweep(&mut world);
    quota(&mut world, 1, 1);
    assert!(
        world.master.metrics().evictions > 0,
        "the other copy is gone"
    );
    world.pass(seconds(1));
    assert!(matches!(world.reply(sweep), Some(Reply::Count(_))));
    let mut journal = Journaled::default();
    let notes = world.master.take_notes();
    notes.iter().for_each(|note| journal.apply(note));
    let now = world.now;
    world = begun(journal);
    world.now = now;
    world.master.start_above(Version(1 << 40));
    mount_tiers(&mut world, &[MEMORY, DISK], Incarnation(1));
    holds(&mut world, Vec::new());
    announced(&mut world);
    all_announced(&mut world, vec![reported("a", OLD, BLOCK)]);
    assert!(!world.has("a"));
}

/// A master with a node that has these records.
fn with_records(records: Vec<ReportedEntry>) -> World {
    let mut world = begun(Journaled::default());
    mount_tiers(&mut world, &[MEMORY, DISK], Incarnation(1));
    announced(&mut world);
    all_announced(&mut world, records);
    world.master.start_above(Version(OLD));
    world
}

fn of(tenant: &str, name: &str, version: u64) -> ReportedEntry {
    let mut record = reported(name, version, BLOCK);
    record.entry.tenant = Tenant::new(tenant).expect("a tenant name");
    record
}

fn remove_of(tenant: &str, name: &str) -> Request {
    Request::Remove(Remove {
        tenant: Tenant::new(tenant).expect("a tenant name"),
        keys: vec![key(name)],
        force: true,
    })
}

/// Of a tenant with nothing left.
fn removals_of(tenant: &str) -> [Request; 2] {
    let tenant = Tenant::new(tenant).expect("a tenant name");
    [
        Request::RemoveAll(RemoveAll {
            tenant: Some(tenant.clone()),
            force: true,
        }),
        Request::RemoveMatching(RemoveMatching {
            tenant,
            pattern: "a".to_owned(),
            force: true,
        }),
    ]
}

const A_MOMENT: std::time::Duration = std::time::Duration::from_millis(10);

/// A tenant is forgotten with its last object, and a removal of all that it has was answered while a node had yet to drop that one:
/// the next master was told of it again.
#[test]
fn a_removal_waits_for_what_a_forgotten_tenant_had() {
    for removal in removals_of("t") {
        let mut world = with_records(vec![of("t", "a", 5)]);
        let first = world.send(ME, remove_of("t", "a"));
        assert_eq!(world.reply(first), None);
        let call = world.send(OTHER, removal.clone());
        world.pass(A_MOMENT);
        assert_eq!(world.reply(call), None, "{removal:?}");
        world.obey();
        world.pass(A_MOMENT);
        assert_eq!(world.reply(call), Some(Reply::Count(0)), "{removal:?}");
    }
}

/// A tenant was forgotten in the middle of a removal that had looked at some of the drops under way: the master ended.
#[test]
fn a_tenant_may_be_forgotten_in_the_middle_of_its_removal() {
    for removal in removals_of("t") {
        let mut world = with_records(vec![of("t", "a", 5), of("x", "b", 6), of("x", "c", 7)]);
        for name in ["b", "c"] {
            world.send(OTHER, remove_of("x", name));
        }
        let call = world.send(ME, removal.clone());
        assert_eq!(world.reply(call), None, "{removal:?}");
        world.send(OTHER, remove_of("t", "a"));
        world.pass(A_MOMENT);
        world.obey();
        world.pass(A_MOMENT);
        assert!(world.reply(call).is_some(), "{removal:?}");
    }
}

/// A tenant was forgotten in the middle of a removal or a list of what it had, and another one took its number: that one's objects
/// were removed, and listed.
#[test]
fn what_is_done_to_a_forgotten_tenant_is_not_done_to_the_next() {
    let list = Request::List(List {
        tenant: Tenant::new("t").expect("a tenant name"),
        pattern: None,
        after: None,
        limit: 100,
    });
    for request in removals_of("t").into_iter().chain([list]) {
        let mut world = with_records(vec![of("t", "a", 5), of("x", "b", 6), of("x", "c", 7)]);
        let call = world.send(ME, request.clone());
        assert_eq!(world.reply(call), None, "{request:?}");
        world.send(OTHER, remove_of("t", "a"));
        // The first one may take the place that has been looked at.
        let (segment, entries) = (DISK, vec![of("u", "ab", 9), of("u", "ac", 8)]);
        world.report(NODE, Report::Announce { segment, entries });
        world.pass(A_MOMENT);
        world.obey();
        world.pass(A_MOMENT);
        match world.reply(call) {
            Some(Reply::List(listed)) => assert!(listed.keys.iter().all(|it| *it == key("a"))),
            reply => assert!(matches!(reply, Some(Reply::Count(0..=1))), "{reply:?}"),
        }
        for name in ["ab", "ac"] {
            let tenant = Tenant::new("u").expect("a tenant name");
            let key = key(name);
            let reply = world.ask(Request::Describe { tenant, key });
            assert!(
                matches!(reply, Reply::Describe(_)),
                "{request:?}: {reply:?}"
            );
        }
    }
}

/// The SSD had evicted `a` before the removal came to it, or somebody else had removed it: the removal was answered while its node had
/// yet to drop the record, and the next master was told of it again.
#[test]
fn a_sweep_waits_for_what_leaves_in_the_middle() {
    type Leaves = fn(&mut World);
    let leaves: [(&str, Leaves); 2] = [
        ("evicted", |world| {
            let quota = Request::SetQuota {
                tenant: Tenant::DEFAULT,
                memory_bytes: 16 * BLOCK,
                disk_bytes: 1,
            };
            assert_eq!(world.ask(quota), Reply::Done);
        }),
        ("removed", |world| _ = world.send(OTHER, remove("a", true))),
    ];
    for (what, leaves) in leaves {
        let mut world = with_a_record(Vec::new());
        let sweep = sweep(&mut world);
        leaves(&mut world);
        assert!(!world.has("a"), "{what}");
        world.pass(seconds(1));
        assert_eq!(world.reply(sweep), None, "{what}");
        world.obey();
        assert!(
            matches!(world.reply(sweep), Some(Reply::Count(_))),
            "{what}"
        );
    }
}
