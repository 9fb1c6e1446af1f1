//! Which chains are told as the hottest, and for whom they are counted.

use slackwater_meta::{HotChain, MasterConfig, Tenancy};
use slackwater_wire::*;

use crate::world::*;

fn look_up(world: &mut World, keys: &[&str], parent: Option<&str>) {
    let get = Get {
        tenant: Tenant::DEFAULT,
        keys: keys.iter().map(|name| key(name)).collect(),
        chain: Chain {
            parent: parent.map(key),
            ..Chain::default()
        },
        hold: Hold::Lease,
        prefix_only: true,
    };
    world.ask(Request::Get(get));
}

fn hottest(world: &mut World) -> (Vec<(String, f64)>, f64) {
    let (chains, reads) = world.master.hottest_chains(world.now);
    let chains = chains.into_iter();
    let chains = chains.map(|it| (it.first.to_string(), it.reads));
    (chains.collect(), reads)
}

fn counted(chains: &[(&str, f64)], reads: f64) -> (Vec<(String, f64)>, f64) {
    let chains = chains.iter();
    let chains = chains.map(|(name, reads)| ((*name).to_owned(), *reads));
    (chains.collect(), reads)
}

#[test]
fn chains_are_counted_by_their_first_block_while_somebody_looks() {
    let mut world = World::memory(plain(), 64 * BLOCK);
    world.put("a", BLOCK);
    look_up(&mut world, &["a", "b"], None);
    assert_eq!(hottest(&mut world), counted(&[], 0.0));
    for keys in [["a", "b"], ["a", "c"], ["x", "y"], ["a", "b"]] {
        look_up(&mut world, &keys, None);
    }
    // A piece that goes on with a chain is no further look-up of it, and what has no keys is none.
    look_up(&mut world, &["c"], Some("b"));
    look_up(&mut world, &[], None);
    let call = ReadCall {
        keys: vec![key("a")],
        versions: Vec::new(),
        chain: Chain::default(),
    };
    let tenant = Tenant::DEFAULT;
    let calls = vec![call];
    world.ask(Request::Reads(Reads { tenant, calls }));
    assert_eq!(hottest(&mut world), counted(&[("a", 4.0), ("x", 1.0)], 5.0));
    // A minute later each counts half.
    world.pass(seconds(59));
    assert_eq!(hottest(&mut world).1, 5.0);
    world.pass(seconds(1));
    look_up(&mut world, &["x"], None);
    assert_eq!(hottest(&mut world), counted(&[("a", 2.0), ("x", 1.5)], 3.5));
    // Two minutes pass before the next one.
    world.pass(seconds(120));
    look_up(&mut world, &["a"], None);
    assert_eq!(hottest(&mut world).0[0], ("a".to_owned(), 1.5));
}

#[test]
fn ten_of_many_chains_are_told_with_what_their_counts_may_be_too_high() {
    let mut world = World::memory(plain(), 64 * BLOCK);
    world.master.hottest_chains(world.now);
    for n in 0..1000 {
        look_up(&mut world, &[&format!("once {n}")], None);
        if n % 2 == 0 {
            look_up(&mut world, &["hot"], None);
        }
    }
    let (chains, reads) = world.master.hottest_chains(world.now);
    assert_eq!((chains.len(), reads), (10, 1500.0));
    let HotChain {
        tenant,
        first,
        reads,
        excess,
    } = &chains[0];
    assert!(tenant.is_default() && *first == key("hot"));
    assert_eq!((*reads, *excess), (500.0, 0.0));
    assert!(chains[1].reads <= 1500.0 / 128.0 + 1.0 && chains[1].excess > 0.0);
}

#[test]
fn chains_of_tenants_are_told_apart_and_those_of_unknown_tenants_are_not_counted() {
    let tenancy = Tenancy::On;
    let mut world = World::memory(MasterConfig { tenancy, ..plain() }, 64 * BLOCK);
    let of = Tenant::new("a").unwrap();
    let quota = Request::SetQuota {
        tenant: of.clone(),
        memory_bytes: BLOCK,
        disk_bytes: BLOCK,
    };
    assert_eq!(world.ask(quota), Reply::Done);
    world.master.hottest_chains(world.now);
    for tenant in [
        of.clone(),
        Tenant::DEFAULT,
        of.clone(),
        Tenant::new("nobody").unwrap(),
    ] {
        let keys = vec![key("k")];
        let chain = Chain::default();
        let hold = Hold::Lease;
        let prefix_only = false;
        world.ask(Request::Get(Get {
            tenant,
            keys,
            chain,
            hold,
            prefix_only,
        }));
    }
    let (chains, reads) = world.master.hottest_chains(world.now);
    let told: Vec<(Tenant, f64)> = chains.into_iter().map(|it| (it.tenant, it.reads)).collect();
    assert_eq!(told, [(of, 2.0), (Tenant::DEFAULT, 1.0)]);
    assert_eq!(reads, 3.0);
}
