use slackwater_base::Checksum;
use slackwater_meta::{MasterConfig, Offload, OffloadMode, Tenancy};
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
fn who_waits_for_quota_keeps_no_other_tenant_waiting() {
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
