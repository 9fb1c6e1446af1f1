//! In any order of grants, invalidations, rotations, unregistrations and registrations, a write changes bytes if and
//! only if its capability is valid for the present use of exactly those bytes.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use slackwater_transfer::{
    Capability, Engine, EngineConfig, GrantSpec, Memory, PeerId, Region, RegionSpec, Rights,
    Target, TcpConfig,
};
use slackwater_wire::Incarnation;

const SECOND: Duration = Duration::from_secs(1);
const BYTES: usize = 256;
const REGIONS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Grant {
        region: usize,
        offset: u64,
        bytes: u64,
        writes: bool,
    },
    /// Uses any capability ever granted, within its range or not.
    Write {
        grant: usize,
        offset: u64,
        bytes: u64,
        value: u8,
    },
    Invalidate {
        region: usize,
    },
    Replace {
        region: usize,
    },
    Rotate,
}

/// One capability and whether it is still valid.
struct Granted {
    capability: Capability,
    region: usize,
    range: (u64, u64),
    stands: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (region, offset, bytes) = (0..REGIONS, 0..BYTES as u64, 1..BYTES as u64);
    let step = prop_oneof![
        4 => (region.clone(), offset.clone(), bytes.clone(), prop::bool::weighted(0.9))
            .prop_map(|(region, offset, bytes, writes)| Step::Grant { region, offset, bytes, writes }),
        8 => (any::<usize>(), offset, bytes, any::<u8>())
            .prop_map(|(grant, offset, bytes, value)| Step::Write { grant, offset, bytes, value }),
        1 => region.clone().prop_map(|region| Step::Invalidate { region }),
        1 => region.prop_map(|region| Step::Replace { region }),
        1 => Just(Step::Rotate),
    ];
    prop::collection::vec(step, 1..60)
}

struct World {
    bob: Engine,
    alice: Engine,
    peer: PeerId,
    regions: Vec<Arc<Region>>,
    shadow: Vec<Vec<u8>>,
    grants: Vec<Granted>,
}

fn region(engine: &Engine) -> Arc<Region> {
    engine
        .register(RegionSpec {
            memory: Memory::anonymous(BYTES).unwrap(),
            rights: Rights::BOTH,
            gate: None,
        })
        .unwrap()
}

impl World {
    fn new(force_tcp: bool) -> Self {
        let tcp = TcpConfig {
            io_threads: 1,
            ..TcpConfig::default()
        };
        let start = |name: &str| {
            EngineConfig {
                tcp: tcp.clone(),
                force_tcp,
                ..EngineConfig::new(name)
            }
            .start()
            .unwrap()
        };
        let (bob, alice) = (start("bob"), start("alice"));
        let peer = alice.open(bob.segment().clone());
        let regions = (0..REGIONS).map(|_| region(&bob)).collect();
        Self {
            bob,
            alice,
            peer,
            regions,
            shadow: vec![vec![0; BYTES]; REGIONS],
            grants: Vec::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Grant {
                region,
                offset,
                bytes,
                writes,
            } => {
                let rights = if writes { Rights::BOTH } else { Rights::READ };
                let spec = GrantSpec {
                    offset,
                    bytes,
                    rights,
                    tenant: 0,
                    holder: Incarnation(0),
                    ttl: None,
                };
                let capability = self.bob.grant(self.regions[region].id(), &spec).unwrap();
                self.grants.push(Granted {
                    capability,
                    region,
                    range: (offset, bytes),
                    stands: writes,
                });
            }
            Step::Write {
                grant,
                offset,
                bytes,
                value,
            } => self.write(grant, offset, bytes, value),
            Step::Invalidate { region } => {
                self.bob
                    .invalidate(self.regions[region].id(), 20 * SECOND)
                    .unwrap();
                self.void(|granted| granted.region == region);
            }
            Step::Replace { region: index } => {
                self.bob
                    .unregister(self.regions[index].id(), 20 * SECOND)
                    .unwrap();
                self.regions[index] = region(&self.bob);
                self.shadow[index] = vec![0; BYTES];
                self.void(|granted| granted.region == index);
            }
            Step::Rotate => {
                self.bob.home().rotate(Duration::ZERO).unwrap();
                self.void(|_| true);
            }
        }
    }

    fn write(&mut self, grant: usize, offset: u64, bytes: u64, value: u8) {
        if self.grants.is_empty() {
            return;
        }
        let granted = &self.grants[grant % self.grants.len()];
        let end = granted.range.0 + granted.range.1;

        let target = Target {
            peer: self.peer,
            offset,
            capability: granted.capability,
            key: None,
        };
        let written = self
            .alice
            .write_now(&target, &vec![value; bytes as usize], 20 * SECOND);
        let inside =
            offset >= granted.range.0 && offset + bytes <= end && offset + bytes <= BYTES as u64;
        assert_eq!(written.is_ok(), granted.stands && inside, "{written:?}");
        if written.is_ok() {
            self.shadow[granted.region][offset as usize..(offset + bytes) as usize].fill(value);
        }
    }

    fn void(&mut self, which: impl Fn(&Granted) -> bool) {
        self.grants
            .iter_mut()
            .filter(|granted| which(granted))
            .for_each(|granted| granted.stands = false);
    }

    fn compare(&self) {
        for (region, shadow) in self.regions.iter().zip(&self.shadow) {
            let mut bytes = vec![0; BYTES];
            region
                .access(0, BYTES as u64)
                .unwrap()
                .copy_out(0, &mut bytes);
            assert_eq!(&bytes, shadow);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_late_write_changes_a_byte(steps in steps(), force_tcp in any::<bool>()) {
        let mut world = World::new(force_tcp);
        for step in &steps {
            world.step(step);
            world.compare();
        }
    }
}
