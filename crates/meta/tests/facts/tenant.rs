use slackwater_base::Checksum;
use slackwater_meta::{MasterConfig, Offload, OffloadMode, PutPolicy, Tenancy};
use slackwater_wire::*;

use crate::world::*;

fn world() -> World {
    World::tiers(
        MasterConfig {
            tenancy: Tenancy::On,
            ..plain()
        },
        100 * BLOCK,
        1024 * BLOCK,
    )
}

/// A memory of sixteen blocks, for tenants whose puts wait.
fn crowded(put: PutPolicy) -> World {
    let config = MasterConfig {
        tenancy: Tenancy::On,
        put,
        ..plain()
    };
    World::memory(config, 16 * BLOCK)
}

fn tenant(name: &str) -> Tenant {
    Tenant::new(name).expect("a tenant name")
}

fn quota(world: &mut World, name: &str, blocks: u64) {
    let set = Request::SetQuota {
        tenant: tenant(name),
        memory_bytes: blocks * BLOCK,
        disk_bytes: blocks * BLOCK,
    };
    assert_eq!(world.ask(set), Reply::Done);
}

fn put(world: &mut World, name: &str, of: &str, blocks: u64) -> Result<(), ErrorCode> {
    let entries = vec![PutEntry {
        key: key(of),
        bytes: blocks * BLOCK,
    }];
    let config = wait(std::time::Duration::ZERO);
    let start = PutStart {
        tenant: tenant(name),
        entries,
        chain: Chain::default(),
        config,
    };
    match world.ask(Request::PutStart(start)) {
        Reply::PutStart(mut results) => match results.remove(0) {
            PutStarted::Granted { version, .. } => {
                let puts = vec![PutDone {
                    key: key(of),
                    version,
                    checksum: Checksum(1),
                }];
                let ended = world.ask(Request::PutEnd(PutEnd {
                    tenant: tenant(name),
                    puts,
                    hosts: None,
                }));
                assert_eq!(ended, Reply::Each(vec![Ok(())]));
                Ok(())
            }
            PutStarted::Failed(code) => Err(code),
            PutStarted::Exists => Err(ErrorCode::ObjectAlreadyExists),
        },
        Reply::Failed(code) => Err(code),
        other => panic!("{other:?}"),
    }
}

fn get(world: &mut World, name: &str, of: &str) -> Lookup {
    let (keys, chain) = (vec![key(of)], Chain::default());
    let get = Get {
        tenant: tenant(name),
        keys,
        chain,
        hold: Hold::Guard,
        prefix_only: false,
    };
    let Reply::Get(mut lookups) = world.ask(Request::Get(get)) else {
        panic!()
    };
    lookups.remove(0)
}

fn has(world: &mut World, name: &str, of: &str) -> bool {
    matches!(
        world.ask(Request::Describe {
            tenant: tenant(name),
            key: key(of)
        }),
        Reply::Describe(_)
    )
}

#[test]
fn tenants_have_separate_keys_and_need_a_quota() {
    let mut world = world();
    assert_eq!(
        put(&mut world, "a", "k", 1),
        Err(ErrorCode::TenantNotRegistered)
    );
    quota(&mut world, "a", 10);
    quota(&mut world, "b", 10);
    assert_eq!(put(&mut world, "a", "k", 1), Ok(()));
    assert_eq!(put(&mut world, "default", "k", 1), Ok(()));
    assert!(!has(&mut world, "b", "k") && has(&mut world, "a", "k"));
    assert_eq!(get(&mut world, "nobody", "k"), Lookup::Missing);
    let remove = |of: Option<Tenant>| {
        Request::RemoveAll(RemoveAll {
            tenant: of,
            force: true,
        })
    };
    assert_eq!(world.ask(remove(Some(tenant("b")))), Reply::Count(0));
    assert_eq!(world.ask(remove(Some(tenant("a")))), Reply::Count(1));
    assert!(
        has(&mut world, "default", "k"),
        "one tenant's removal is no other's"
    );
    assert_eq!(world.ask(remove(None)), Reply::Count(1));
}

#[test]
fn without_tenancy_all_are_the_default_tenant() {
    let mut world = World::memory(plain(), 100 * BLOCK);
    assert_eq!(put(&mut world, "a", "k", 1), Ok(()));
    assert!(has(&mut world, "b", "k"));
    let set = Request::SetQuota {
        tenant: tenant("a"),
        memory_bytes: 1,
        disk_bytes: 1,
    };
    assert_eq!(
        world.ask(set),
        Reply::Failed(ErrorCode::UnavailableInCurrentMode)
    );
}

#[test]
fn a_tenant_over_its_quota_evicts_its_own_oldest() {
    let mut world = world();
    quota(&mut world, "a", 10);
    quota(&mut world, "b", 10);
    for n in 0..9 {
        put(&mut world, "b", &format!("b{n}"), 1).unwrap();
    }
    for n in 0..9 {
        put(&mut world, "a", &format!("a{n}"), 1).unwrap();
    }
    get(&mut world, "a", "a0");
    world.input(slackwater_meta::Input::ClientLost(ME));
    for n in 9..14 {
        put(&mut world, "a", &format!("a{n}"), 1).unwrap();
    }
    assert!(
        has(&mut world, "a", "a0") && !has(&mut world, "a", "a1"),
        "the least recently used goes"
    );
    for n in 0..9 {
        assert!(has(&mut world, "b", &format!("b{n}")), "nobody else's");
    }
    assert_eq!(
        world.master.metrics().evictions,
        world.master.metrics().quota_evictions
    );
}

#[test]
fn a_tenant_that_can_evict_nothing_is_refused() {
    let mut world = world();
    quota(&mut world, "a", 4);
    assert_eq!(
        put(&mut world, "a", "large", 5),
        Err(ErrorCode::TenantQuotaExceeded)
    );
    for n in 0..3 {
        put(&mut world, "a", &format!("a{n}"), 1).unwrap();
        get(&mut world, "a", &format!("a{n}"));
    }
    assert_eq!(
        put(&mut world, "a", "x", 2),
        Err(ErrorCode::TenantQuotaExceeded)
    );
    assert_eq!(
        put(&mut world, "default", "x", 2),
        Ok(()),
        "that is its own concern"
    );
}

#[test]
fn a_put_that_waits_for_quota_delays_no_other_tenant() {
    let mut world = world();
    quota(&mut world, "a", 2);
    put(&mut world, "a", "held", 1).unwrap();
    let Lookup::Found(held) = get(&mut world, "a", "held") else {
        panic!()
    };
    let entries = vec![PutEntry {
        key: key("more"),
        bytes: 2 * BLOCK,
    }];
    let start = PutStart {
        tenant: tenant("a"),
        entries,
        chain: Chain::default(),
        config: wait(seconds(5)),
    };
    let call = world.send(ME, Request::PutStart(start));
    assert_eq!(
        (world.reply(call), put(&mut world, "default", "x", 1)),
        (None, Ok(()))
    );
    world.ask(Request::GetEnd(GetEnd {
        guards: vec![held.guard.unwrap()],
    }));
    let Some(Reply::PutStart(results)) = world.reply(call) else {
        panic!("served when its own room is free")
    };
    assert!(matches!(results[0], PutStarted::Granted { .. }));
}

fn start_of(name: &str, of: &str, blocks: u64) -> Request {
    patient(name, of, blocks, seconds(5))
}

/// Puts a lease on a value that is there.
fn lease(world: &mut World, name: &str, of: &str) {
    let exists = Exists {
        tenant: tenant(name),
        keys: vec![key(of)].into(),
    };
    let there = Reply::Exists(vec![true]);
    assert_eq!(world.ask(Request::Exists(exists)), there);
}

fn patient(name: &str, of: &str, blocks: u64, time: std::time::Duration) -> Request {
    let entries = vec![PutEntry {
        key: key(of),
        bytes: blocks * BLOCK,
    }];
    Request::PutStart(PutStart {
        tenant: tenant(name),
        entries,
        chain: Chain::default(),
        config: wait(time),
    })
}

/// A put found nothing of its tenant to evict, as the other value was still being written. It was not tried again when
/// that was complete: it waited until its time was over.
#[test]
fn a_put_is_given_the_quota_of_values_that_are_complete_now() {
    let mut world = world();
    quota(&mut world, "a", 2);
    let Reply::PutStart(held) = world.ask(start_of("a", "held", 1)) else {
        panic!()
    };
    let PutStarted::Granted { version, .. } = held[0] else {
        panic!("{held:?}")
    };
    let call = world.send(OTHER, start_of("a", "more", 2));
    assert_eq!(world.reply(call), None, "a value in writing stays");
    world.ask(Request::PutEnd(PutEnd {
        tenant: tenant("a"),
        puts: vec![PutDone {
            key: key("held"),
            version,
            checksum: Checksum(1),
        }],
        hosts: None,
    }));
    assert!(is_granted(&world.reply(call)));
}

/// A put found nothing of its tenant to evict, as a lease was on it. It was not tried again when that ended, as nobody
/// else looked at the value meanwhile.
#[test]
fn a_put_is_given_the_quota_of_values_whose_lease_is_over() {
    let mut world = world();
    quota(&mut world, "a", 2);
    put(&mut world, "a", "held", 1).unwrap();
    lease(&mut world, "a", "held");
    let lease = MasterConfig::DEFAULT.lease_ttl;
    let call = world.send(OTHER, patient("a", "more", 2, lease * 2));
    assert_eq!(world.reply(call), None, "the lease is kept");
    world.pass(lease);
    assert!(is_granted(&world.reply(call)));
}

/// Every event tried the calls of all tenants that wait for quota in one go. They are tried in steps, and none is left out
/// for those that cannot be served.
#[test]
fn many_tenants_that_wait_for_quota_are_served_in_steps() {
    let mut world = world();
    let names: Vec<String> = (0..40).map(|at| format!("t{at}")).collect();
    let (writing, leased) = names.split_at(20);
    for name in &names {
        quota(&mut world, name, 2);
    }
    for name in writing {
        world.ask(start_of(name, "held", 1));
    }
    for name in leased {
        put(&mut world, name, "held", 1).unwrap();
        lease(&mut world, name, "held");
    }
    let lease = MasterConfig::DEFAULT.lease_ttl;
    let mut wait = |name: &String| world.send(OTHER, patient(name, "more", 2, lease * 2));
    let stay: Vec<OperationId> = writing.iter().map(&mut wait).collect();
    let go: Vec<OperationId> = leased.iter().map(&mut wait).collect();
    world.now += lease;
    let mut out = Vec::new();
    world.master.on_deadline(world.now, &mut out);
    assert!(
        out.is_empty(),
        "a step does not reach those behind: {out:?}"
    );
    world.pass(std::time::Duration::ZERO);
    assert!(go.iter().all(|call| is_granted(&world.reply(*call))));
    assert!(stay.iter().all(|call| world.reply(*call).is_none()));
}

/// A tenant began to wait between two steps of a round and took the place of the last one, which was not tried again.
#[test]
fn a_tenant_that_begins_to_wait_takes_no_others_turn() {
    let mut world = world();
    let names: Vec<String> = (0..17).map(|at| format!("t{at}")).collect();
    for name in names.iter().map(String::as_str).chain(["new", "last"]) {
        quota(&mut world, name, 2);
        world.ask(start_of(name, "held", 1));
    }
    quota(&mut world, "last", 4);
    put(&mut world, "last", "leased", 1).unwrap();
    lease(&mut world, "last", "leased");
    let lease = MasterConfig::DEFAULT.lease_ttl;
    let wait = |world: &mut World, name: &str, blocks: u64| {
        world.send(OTHER, patient(name, "more", blocks, lease * 2))
    };
    for name in &names {
        wait(&mut world, name, 2);
    }
    let last = wait(&mut world, "last", 3);
    assert_eq!(world.reply(last), None, "the lease is kept");
    world.now += lease;
    let mut out = Vec::new();
    world.master.on_deadline(world.now, &mut out);
    assert!(out.is_empty(), "a step does not reach the last: {out:?}");
    let new = wait(&mut world, "new", 2);
    assert_eq!((world.reply(new), world.reply(last)), (None, None));
    world.pass(std::time::Duration::ZERO);
    assert!(is_granted(&world.reply(last)));
}

/// The quota of a tenant without objects was deleted while a put of it waited. The master panicked when the put was tried
/// again, or gave it the room under the number of the next tenant.
#[test]
fn a_tenant_whose_put_waits_keeps_its_quota() {
    let mut world = world();
    quota(&mut world, "a", 100);
    let all = wait(std::time::Duration::ZERO);
    world.start("everything", 100 * BLOCK, all);
    let call = world.send(OTHER, start_of("a", "more", 2));
    assert_eq!(world.reply(call), None, "all memory is being written");
    let delete = || Request::DeleteQuota {
        tenant: tenant("a"),
    };
    let refused = Reply::Failed(ErrorCode::TenantNotEmpty);
    assert_eq!(world.ask(delete()), refused);
    world.pass(seconds(5));
    assert!(world.reply(call).is_some());
    assert_eq!(world.ask(delete()), Reply::Done);
}

/// One tenant's calls filled the queue for space, and every other tenant's put waited behind all of them, or was refused
/// because the queue was full.
#[test]
fn the_waiting_puts_of_one_tenant_do_not_hold_up_anothers() {
    let mut world = crowded(PutPolicy {
        queue_limit: 8,
        ..PutPolicy::DEFAULT
    });
    for name in ["many", "one"] {
        quota(&mut world, name, 1000);
    }
    let held: Vec<(String, Version)> = (0..16)
        .map(|n| {
            let name = format!("held{n}");
            let PutStarted::Granted { version, .. } = world.start(&name, BLOCK, wait(seconds(0)))
            else {
                panic!("no room")
            };
            (name, version)
        })
        .collect();
    let many: Vec<OperationId> = (0..8)
        .map(|n| world.send(ME, start_of("many", &format!("m{n}"), 1)))
        .collect();
    let one = world.send(OTHER, start_of("one", "a", 1));
    let displaced = world.reply(many[7]);
    assert!(
        matches!(
            &displaced,
            Some(Reply::PutStart(results))
                if results[0] == PutStarted::Failed(ErrorCode::NoAvailableHandle)
        ),
        "the newest call of the tenant with most calls is refused: {displaced:?}"
    );
    let revoke = |world: &mut World, (name, version): &(String, Version)| {
        let puts = vec![(key(name), *version)];
        let revoke = Request::PutRevoke {
            tenant: Tenant::DEFAULT,
            puts,
        };
        assert_eq!(world.ask(revoke), Reply::Each(vec![Ok(())]));
    };
    revoke(&mut world, &held[0]);
    assert!(
        is_granted(&world.reply(many[0])),
        "first come, first served"
    );
    revoke(&mut world, &held[1]);
    assert!(is_granted(&world.reply(one)), "and then the other tenant");
    revoke(&mut world, &held[2]);
    assert!(is_granted(&world.reply(many[1])));
}

#[test]
fn a_full_queue_refuses_the_tenant_whose_calls_take_most() {
    let mut world = crowded(PutPolicy {
        queue_bytes: 4096,
        ..PutPolicy::DEFAULT
    });
    for name in ["large", "small"] {
        quota(&mut world, name, 1000);
    }
    world.start("held", 16 * BLOCK, wait(seconds(0)));
    let call = |world: &mut World, tenant, n: u32, bytes| {
        let key = format!("{n}").repeat(bytes);
        world.send(ME, start_of(tenant, &key, 1))
    };
    let large = [1, 2].map(|n| call(&mut world, "large", n, 1000));
    let small = [3, 4, 5].map(|n| call(&mut world, "small", n, 500));
    let waits = |call| world.reply(call).is_none();
    assert_eq!(large.map(waits), [true, false], "its newest went");
    assert_eq!(small.map(|call| world.reply(call).is_none()), [true; 3]);
    let next = call(&mut world, "large", 6, 1000);
    assert!(world.reply(next).is_some(), "it takes most already");
}

/// Calls that wait for quota hold their part of the queue like those that wait for space.
#[test]
fn a_full_queue_refuses_calls_that_wait_for_quota_too() {
    let mut world = crowded(PutPolicy {
        queue_limit: 4,
        ..PutPolicy::DEFAULT
    });
    for (name, blocks) in [("many", 2), ("one", 2)] {
        quota(&mut world, name, blocks);
        world.ask(start_of(name, "held", 1));
    }
    let mut call = |name: &str, of: &str| world.send(OTHER, patient(name, of, 2, seconds(5)));
    let many = ["a", "b", "c", "d"].map(|of| call("many", of));
    let one = call("one", "a");
    let refused = PutStarted::Failed(ErrorCode::TenantQuotaExceeded);
    let newest = Some(Reply::PutStart(vec![refused]));
    assert_eq!(
        many.map(|call| world.reply(call)),
        [None, None, None, newest]
    );
    assert_eq!(world.reply(one), None, "it waits in its place");
}

/// The first call that waited was for more than could be freed, and all later ones waited for its end.
#[test]
fn a_large_put_is_passed_by_as_much_as_it_waits_for_and_no_more() {
    let mut world = crowded(PutPolicy::DEFAULT);
    for name in ["large", "small"] {
        quota(&mut world, name, 1000);
    }
    world.start("held", 12 * BLOCK, wait(seconds(0)));
    let large = world.send(ME, start_of("large", "l", 8));
    let own = world.send(ME, start_of("large", "after", 1));
    let passed: Vec<OperationId> = (0..2)
        .map(|n| world.send(OTHER, start_of("small", &format!("s{n}"), 1)))
        .collect();
    for call in passed {
        assert!(is_granted(&world.reply(call)), "there is room for it");
    }
    assert_eq!(
        (world.reply(large), world.reply(own)),
        (None, None),
        "within a tenant calls stay in order"
    );
    for n in 2..8 {
        let call = world.send(OTHER, start_of("small", &format!("s{n}"), 1));
        let granted = is_granted(&world.reply(call));
        assert_eq!(granted, n < 4, "put {n}: while there is room");
    }
    for n in 0..4 {
        let puts = vec![(key(&format!("s{n}")), Version(n + 2))];
        let revoke = Request::PutRevoke {
            tenant: tenant("small"),
            puts,
        };
        world.ask_as(OTHER, revoke);
    }
    let call = world.send(OTHER, start_of("small", "last", 1));
    assert_eq!(
        world.reply(call),
        None,
        "as much has passed the large one as it waits for"
    );
}

#[test]
fn quotas_are_shown_with_use_and_forgotten_when_empty() {
    let mut world = world();
    quota(&mut world, "a", 10);
    put(&mut world, "a", "k", 2).unwrap();
    let Reply::Quotas(states) = world.ask(Request::Quotas) else {
        panic!()
    };
    let state = states
        .iter()
        .find(|state| state.tenant == tenant("a"))
        .unwrap();
    assert_eq!(
        (state.memory_quota, state.memory_bytes, state.objects),
        (Some(10 * BLOCK), 2 * BLOCK, 1)
    );
    let delete = |name: &str| Request::DeleteQuota {
        tenant: tenant(name),
    };
    assert_eq!(
        world.ask(delete("a")),
        Reply::Failed(ErrorCode::TenantNotEmpty)
    );
    assert_eq!(
        world.ask(delete("b")),
        Reply::Failed(ErrorCode::TenantNotRegistered)
    );
    world.ask(Request::RemoveAll(RemoveAll {
        tenant: Some(tenant("a")),
        force: true,
    }));
    assert_eq!(world.ask(delete("a")), Reply::Done);
    assert_eq!(
        put(&mut world, "a", "k", 2),
        Err(ErrorCode::TenantNotRegistered)
    );
}

#[test]
fn the_ssd_quota_is_kept_by_evicting_the_tenants_own_records() {
    let offload = Offload {
        mode: OffloadMode::Eager,
        ..Offload::default()
    };
    let config = MasterConfig {
        tenancy: Tenancy::On,
        offload,
        ..plain()
    };
    let mut world = World::tiers(config, 100 * BLOCK, 1024 * BLOCK);
    quota(&mut world, "a", 10);
    for n in 0..30 {
        put(&mut world, "a", &format!("a{n}"), 1).unwrap();
        offload_all(&mut world);
    }
    let books = world.master.books();
    let state = books
        .tenants
        .iter()
        .find(|state| state.tenant == tenant("a"))
        .unwrap();
    assert!(
        state.disk_bytes <= 10 * BLOCK && state.memory_bytes <= 10 * BLOCK,
        "{state:?}"
    );
    assert!(has(&mut world, "a", "a29") && !has(&mut world, "a", "a5"));
}

#[test]
fn a_smaller_quota_takes_effect_at_once() {
    let mut world = world();
    quota(&mut world, "a", 50);
    for n in 0..20 {
        put(&mut world, "a", &format!("a{n}"), 1).unwrap();
    }
    quota(&mut world, "a", 10);
    let books = world.master.books();
    assert!(
        books
            .tenants
            .iter()
            .all(|state| state.memory_bytes <= 10 * BLOCK)
    );
}

#[test]
fn records_of_other_tenants_are_kept_apart_also_while_tenancy_is_off() {
    let mut world = World::tiers(plain(), MIB, MIB);
    let entry = DiskEntry {
        tenant: tenant("a"),
        ..reported("k", 1, 1).entry
    };
    let entries = vec![ReportedEntry {
        entry,
        ..reported("k", 1, 1)
    }];
    world.report(
        NODE,
        Report::Announce {
            segment: DISK,
            entries,
        },
    );
    assert_eq!(
        (world.get("k"), world.master.books().objects),
        (Lookup::Missing, 1)
    );
}
