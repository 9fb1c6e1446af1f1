//! Nothing follows from reading ahead.

use proptest::prelude::*;
use slackwater_meta::evict::PolicyKind;
use slackwater_meta::{Eviction, MasterConfig, Tenancy, single_key};
use slackwater_wire::*;

use crate::world::*;

fn get(tenant: &Tenant, names: &[u8]) -> Request {
    Request::Get(Get {
        tenant: tenant.clone(),
        keys: names.iter().map(|name| key(&name.to_string())).collect(),
        chain: Chain::default(),
        hold: Hold::Lease,
        prefix_only: false,
    })
}

fn exists(tenant: &Tenant, names: &[u8]) -> Request {
    let keys: Vec<Key> = names.iter().map(|name| key(&name.to_string())).collect();
    Request::Exists(Exists {
        tenant: tenant.clone(),
        keys: keys.into(),
    })
}

#[test]
fn only_requests_of_one_key_are_read_ahead_for() {
    let tenant = Tenant::new("a").unwrap();
    let check = |request: Request, expected: Option<&[u8]>| {
        let expected = expected.map(|key| (&tenant, key));
        assert_eq!(single_key(&request), expected, "{request:?}");
    };
    check(get(&tenant, &[7]), Some(b"7"));
    check(get(&tenant, &[7, 8]), None);
    check(get(&tenant, &[]), None);
    check(exists(&tenant, &[7]), Some(b"7"));
    check(exists(&tenant, &[7, 8]), None);
    check(exists(&tenant, &[]), None);
    check(Request::Quotas, None);
}

proptest! {
    /// Of two masters with the same history, one reads ahead for every request, also for those that never come.
    #[test]
    fn a_master_that_reads_ahead_answers_as_one_that_does_not(
        steps in prop::collection::vec(prop::collection::vec((0..5u8, 0..60u8), 1..80), 1..20),
        separate in any::<bool>(),
        policy in prop::sample::select(PolicyKind::ALL.to_vec()),
    ) {
        let config = || MasterConfig {
            tenancy: if separate { Tenancy::On } else { Tenancy::Off },
            eviction: Eviction { policy, ..plain().eviction },
            ..plain()
        };
        let unknown = Tenant::new("unknown").unwrap();
        let [mut plainly, mut ahead] = [(); 2].map(|()| World::tiers(config(), 24 * BLOCK, 48 * BLOCK));
        for step in &steps {
            let requests: Vec<Request> = (step.iter())
                .map(|(kind, name)| match kind {
                    0 => start(&name.to_string(), BLOCK, PutConfig::default()),
                    1 => get(&unknown, &[*name]),
                    2 => exists(&Tenant::DEFAULT, &[*name]),
                    3 => exists(&Tenant::DEFAULT, &[*name, name + 1]),
                    _ => get(&Tenant::DEFAULT, &[*name]),
                })
                .collect();
            ahead.master.read_ahead(requests.iter());
            for (request, (kind, name)) in requests.iter().zip(step) {
                let [one, other] = [&mut plainly, &mut ahead].map(|world| match kind {
                    0 => {
                        let name = name.to_string();
                        let started = world.start(&name, BLOCK, PutConfig::default());
                        if let PutStarted::Granted { version, .. } = &started {
                            world.end(ME, &name, *version);
                        }
                        format!("{started:?}")
                    }
                    _ => format!("{:?}", world.ask(request.clone())),
                });
                prop_assert_eq!(one, other);
            }
            for world in [&mut plainly, &mut ahead] {
                world.pass(seconds(1));
            }
            prop_assert_eq!(plainly.master.metrics(), ahead.master.metrics());
        }
    }
}
