//! Random histories against a small model: which values of a key may be read, and that the books balance after every
//! step (the world checks them).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use slackwater_meta::evict::PolicyKind;
use slackwater_meta::{
    Eviction, Input, MasterConfig, Offload, OffloadMode, OnHit, Output, Promotion, SoftPinned,
};
use slackwater_wire::*;

use crate::events::Told;
use crate::world::*;

#[derive(Clone, Debug)]
enum Step {
    Start {
        client: u8,
        key: u8,
        blocks: u8,
        upsert: bool,
        pin: u8,
        group: bool,
        durable: bool,
    },
    End {
        pick: usize,
    },
    Revoke {
        pick: usize,
    },
    Get {
        client: u8,
        key: u8,
        guard: bool,
    },
    GetEnd {
        pick: usize,
    },
    Exists {
        key: u8,
    },
    Remove {
        key: u8,
        force: bool,
    },
    RemoveMatching {
        digit: u8,
        force: bool,
    },
    ClientLost {
        client: u8,
    },
    /// The node carries out its oldest order, with success or failure.
    Node {
        pick: usize,
        badly: bool,
    },
    Lost {
        key: u8,
    },
    Disk {
        accepting: bool,
        pressure: bool,
    },
    /// The node loses its memory and comes back with what its SSD holds.
    Restart,
    Pass {
        millis: u32,
    },
    /// Who follows what is told has missed something.
    Missed,
    /// Is told of so many objects more.
    Tell {
        count: u8,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..12u8;
    let client = 1..4u8;
    prop_oneof![
        8 => (client.clone(), key.clone(), 1..6u8, any::<bool>(), 0..8u8, prop::bool::weighted(0.1), prop::bool::weighted(0.1))
            .prop_map(|(client, key, blocks, upsert, pin, group, durable)| {
                Step::Start { client, key, blocks, upsert, pin, group, durable }
            }),
        10 => any::<usize>().prop_map(|pick| Step::End { pick }),
        1 => any::<usize>().prop_map(|pick| Step::Revoke { pick }),
        8 => (client.clone(), key.clone(), prop::bool::weighted(0.4))
            .prop_map(|(client, key, guard)| Step::Get { client, key, guard }),
        3 => any::<usize>().prop_map(|pick| Step::GetEnd { pick }),
        2 => key.clone().prop_map(|key| Step::Exists { key }),
        2 => (key.clone(), any::<bool>()).prop_map(|(key, force)| Step::Remove { key, force }),
        1 => (0..4u8, any::<bool>()).prop_map(|(digit, force)| Step::RemoveMatching { digit, force }),
        1 => client.prop_map(|client| Step::ClientLost { client }),
        16 => (any::<usize>(), prop::bool::weighted(0.15)).prop_map(|(pick, badly)| Step::Node { pick, badly }),
        1 => key.prop_map(|key| Step::Lost { key }),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(accepting, pressure)| Step::Disk { accepting, pressure }),
        1 => Just(Step::Restart),
        4 => (0..20_000u32).prop_map(|millis| Step::Pass { millis }),
        1 => Just(Step::Missed),
        3 => (1..8u8).prop_map(|count| Step::Tell { count }),
    ]
}

fn configs() -> impl Strategy<Value = MasterConfig> {
    let modes = [
        OffloadMode::Off,
        OffloadMode::Eager,
        OffloadMode::OnEvict,
        OffloadMode::OnEvictForced,
    ];
    (
        prop::sample::select(modes.to_vec()),
        prop::sample::select(PolicyKind::ALL.to_vec()),
        1..8usize,
        any::<bool>(),
    )
        .prop_map(|(mode, policy, step, never)| MasterConfig {
            offload: Offload {
                mode,
                queue_limit: 8,
                ..Offload::default()
            },
            eviction: Eviction {
                policy,
                step,
                soft_pinned: if never {
                    SoftPinned::Never
                } else {
                    SoftPinned::Last
                },
                ..Eviction::default()
            },
            promotion: Promotion {
                on_hit: OnHit::Promote,
                queue_limit: 3,
                batch_max: 2,
                window: Duration::from_secs(15),
                ..Promotion::default()
            },
            ..plain()
        })
}

/// What the model knows of a key: the value that was published last, and whether a reader may still see it.
#[derive(Default)]
struct Model {
    /// Published and not removed, by key.
    live: BTreeMap<Key, Version>,
    /// What each put wrote.
    bytes: BTreeMap<Version, (Key, u64)>,
    /// Records that the SSD holds.
    records: BTreeSet<DiskEntry>,
}

struct Run {
    world: World,
    model: Model,
    open: Vec<(ClientId, Key, Version)>,
    guards: Vec<(ClientId, GuardId)>,
    staged: BTreeMap<TicketId, ExtentRef>,
    pending: BTreeMap<OperationId, (ClientId, Vec<(Key, u64)>)>,
    incarnation: u64,
    told: Told,
}

fn name(key: u8) -> String {
    format!("key-{key:02}")
}

impl Run {
    fn new(config: MasterConfig) -> Self {
        let mut world = World::tiers(config, 16 * BLOCK, 24 * BLOCK);
        world.obedient = false;
        world.master.tell_events();
        Self {
            world,
            model: Model::default(),
            open: Vec::new(),
            guards: Vec::new(),
            staged: BTreeMap::new(),
            pending: BTreeMap::new(),
            incarnation: 1,
            told: Told::default(),
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Start {
                client,
                key: of,
                blocks,
                upsert,
                pin,
                group,
                durable,
            } => {
                let config = PutConfig {
                    mode: if upsert {
                        PutMode::Upsert
                    } else {
                        PutMode::Create
                    },
                    pin: [Pin::Hard, Pin::Soft(Some(Duration::from_secs(5)))]
                        .get(usize::from(pin))
                        .copied()
                        .unwrap_or(Pin::None),
                    group: group.then_some(1),
                    durability: if durable {
                        Durability::Disk
                    } else {
                        Durability::Memory
                    },
                    ..PutConfig::default()
                };
                let (client, bytes) = (ClientId(client.into()), u64::from(blocks) * BLOCK - 7);
                let call = self.world.send(client, start(&name(of), bytes, config));
                self.pending
                    .insert(call, (client, vec![(key(&name(of)), bytes)]));
            }
            Step::End { pick } if !self.open.is_empty() => {
                let (client, of, version) = self.open.swap_remove(pick % self.open.len());
                let call = self.world.send(client, end(&of.to_string(), version));
                // Published or refused: the description shows which, even before the acknowledgement.
                let now = self.described(&of);
                if now == Some(version) {
                    self.model.live.insert(of, version);
                }
                drop(self.world.reply(call));
            }
            Step::Revoke { pick } if !self.open.is_empty() => {
                let (client, of, version) = self.open.swap_remove(pick % self.open.len());
                self.world.send(
                    client,
                    Request::PutRevoke {
                        tenant: Tenant::DEFAULT,
                        puts: vec![(of, version)],
                    },
                );
            }
            Step::Get {
                client,
                key: of,
                guard,
            } => self.get(ClientId(client.into()), &key(&name(of)), guard),
            Step::GetEnd { pick } if !self.guards.is_empty() => {
                let (client, guard) = self.guards.swap_remove(pick % self.guards.len());
                self.world.send(
                    client,
                    Request::GetEnd(GetEnd {
                        guards: vec![guard],
                    }),
                );
            }
            Step::Exists { key: of } => {
                let reply = self.world.ask(Request::Exists(Exists {
                    tenant: Tenant::DEFAULT,
                    keys: vec![key(&name(of))].into(),
                }));
                let Reply::Exists(there) = reply else {
                    panic!("{reply:?}")
                };
                assert!(!there[0] || self.model.live.contains_key(&key(&name(of))));
            }
            Step::Remove { key: of, force } => {
                self.world.send(ME, remove(&name(of), force));
                if self.described(&key(&name(of))).is_none() {
                    self.model.live.remove(&key(&name(of)));
                }
            }
            Step::RemoveMatching { digit, force } => {
                let pattern = format!("{digit}$");
                self.world.send(
                    ME,
                    Request::RemoveMatching(RemoveMatching {
                        tenant: Tenant::DEFAULT,
                        pattern,
                        force,
                    }),
                );
                for of in self.model.live.keys().cloned().collect::<Vec<_>>() {
                    if of.to_string().ends_with(&digit.to_string()) && self.described(&of).is_none()
                    {
                        self.model.live.remove(&of);
                    }
                }
            }
            Step::ClientLost { client } => {
                let client = ClientId(client.into());
                self.world.input(Input::ClientLost(client));
                self.open.retain(|(of, ..)| *of != client);
                self.guards.retain(|(of, _)| *of != client);
                self.pending.retain(|_, (of, _)| *of != client);
            }
            Step::Node { pick, badly } => self.node(pick, badly),
            Step::Lost { key: of } => {
                let lost: Vec<DiskEntry> = self
                    .model
                    .records
                    .iter()
                    .filter(|entry| entry.key == key(&name(of)))
                    .cloned()
                    .collect();
                self.model.records.retain(|entry| !lost.contains(entry));
                self.world.report(NODE, Report::Lost(lost));
            }
            Step::Disk {
                accepting,
                pressure,
            } => {
                let pressure = if pressure { 2 * BLOCK } else { 0 };
                self.world.report(
                    NODE,
                    Report::Disk(DiskState {
                        node: NODE,
                        accepting,
                        failing: false,
                        capacity: 24 * BLOCK,
                        pressure,
                    }),
                );
            }
            Step::Restart => self.restart(),
            Step::Pass { millis } => self.world.pass(Duration::from_millis(millis.into())),
            Step::Missed => self.told.lose(&mut self.world),
            Step::Tell { count } => self.world.master.tell_more(count.into()),
            Step::End { .. } | Step::Revoke { .. } | Step::GetEnd { .. } => {}
        }
        self.collect();
        let keys = (0..12).map(|of| key(&name(of)));
        self.told.follow(&mut self.world, keys);
    }

    fn described(&mut self, of: &Key) -> Option<Version> {
        match self.world.ask(Request::Describe {
            tenant: Tenant::DEFAULT,
            key: of.clone(),
        }) {
            Reply::Describe(known)
                if known
                    .replicas
                    .iter()
                    .any(|(_, state, _)| *state == ReplicaState::Complete) =>
            {
                Some(known.version)
            }
            _ => None,
        }
    }

    /// A read must return the value that was published last and not removed, or nothing.
    fn get(&mut self, client: ClientId, of: &Key, guard: bool) {
        let get = Get {
            tenant: Tenant::DEFAULT,
            keys: vec![of.clone()],
            chain: Chain::default(),
            hold: if guard { Hold::Guard } else { Hold::Lease },
            prefix_only: false,
        };
        let Reply::Get(lookups) = self.world.ask_as(client, Request::Get(get)) else {
            panic!()
        };
        let Lookup::Found(object) = &lookups[0] else {
            return;
        };
        assert_eq!(
            Some(&object.version),
            self.model.live.get(of),
            "{of}: removed or replaced values are not read"
        );
        assert_eq!(
            self.model.bytes[&object.version],
            (of.clone(), object.bytes)
        );
        assert_eq!(object.checksum.0, object.version.0 * 31);
        self.guards
            .extend(object.guard.map(|guard| (client, guard)));
    }

    fn node(&mut self, pick: usize, badly: bool) {
        if self.world.orders.is_empty() {
            return;
        }
        // The log carries out its orders in sequence; other orders may overtake them.
        let logged =
            |(_, order): &(NodeId, Order)| matches!(order, Order::Drop(_) | Order::Offload(_));
        let mut at = pick % self.world.orders.len();
        if logged(&self.world.orders[at]) {
            at = self
                .world
                .orders
                .iter()
                .position(logged)
                .expect("this one at least");
        }
        let (node, order) = self.world.orders.remove(at).expect("within the queue");
        let report = match order {
            Order::Fence(extents) => Report::Fenced(extents),
            Order::Published(_) => return,
            Order::Drop(entries) => {
                self.model.records.retain(|entry| !entries.contains(entry));
                Report::Dropped(entries)
            }
            Order::Offload(tasks) => {
                let outcome = |task: OffloadTask| {
                    if badly {
                        return (task.ticket, Err(TaskFailure::NoRoom));
                    }
                    self.model.records.insert(task.entry);
                    (task.ticket, Ok(()))
                };
                Report::Offloaded(tasks.into_iter().map(outcome).collect())
            }
            Order::Promote(tasks) => {
                for PromoteTask { ticket, bytes, .. } in tasks {
                    let failure = PromotionFailure::Device;
                    let failed = Report::PromotionFailed { ticket, failure };
                    self.world.report(
                        node,
                        if badly {
                            failed
                        } else {
                            Report::Stage { ticket, bytes }
                        },
                    );
                }
                return;
            }
            Order::Staged { ticket, extent } if badly => {
                self.staged.insert(ticket, extent);
                return;
            }
            Order::Staged { ticket, extent } => Report::Promoted { ticket, extent },
            Order::Cancel { ticket } => match self.staged.remove(&ticket) {
                Some(extent) => Report::Promoted { ticket, extent },
                None => return,
            },
        };
        self.world.report(node, report);
    }

    fn restart(&mut self) {
        self.world.input(Input::NodeLost(NODE));
        self.world.orders.clear();
        self.incarnation += 1;
        for (segment, kind, bytes) in [
            (MEMORY, SegmentKind::Memory, 16),
            (DISK, SegmentKind::Disk, 24),
        ] {
            let mount = Mount {
                segment,
                name: format!("segment-{segment}"),
                node: NODE,
                incarnation: Incarnation(self.incarnation),
                kind,
                bytes: bytes * BLOCK,
                host: String::new(),
                generations: None,
                watermarks: None,
            };
            let call = self.world.send(ME, Request::Mount(mount));
            assert_eq!(self.world.reply(call), Some(Reply::Done));
        }
        let entries: Vec<ReportedEntry> = self
            .model
            .records
            .iter()
            .map(|entry| self.reported(entry))
            .collect();
        if !entries.is_empty() {
            self.world.report(
                NODE,
                Report::Announce {
                    segment: DISK,
                    entries,
                },
            );
        }
        self.world.report(
            NODE,
            Report::Announce {
                segment: DISK,
                entries: vec![],
            },
        );
    }

    fn reported(&self, entry: &DiskEntry) -> ReportedEntry {
        let checksum = slackwater_base::Checksum(entry.version.0 * 31);
        ReportedEntry {
            entry: entry.clone(),
            bytes: self.model.bytes[&entry.version].1,
            checksum,
        }
    }

    /// Puts that were granted, at once or after a wait.
    fn collect(&mut self) {
        for (call, (client, entries)) in std::mem::take(&mut self.pending) {
            match self.world.reply(call) {
                None => {
                    self.pending.insert(call, (client, entries));
                }
                Some(Reply::PutStart(results)) => {
                    for (result, (of, bytes)) in results.into_iter().zip(entries) {
                        if let PutStarted::Granted { version, .. } = result {
                            self.model.bytes.insert(version, (of.clone(), bytes));
                            self.open.push((client, of, version));
                        }
                    }
                }
                Some(other) => panic!("{other:?}"),
            }
        }
    }

    /// All clients are lost and the node carries out all orders; then everything can be removed.
    fn wind_up(&mut self) {
        for client in 1..4 {
            self.step(Step::ClientLost { client });
        }
        for _ in 0..200 {
            while !self.world.orders.is_empty() {
                self.step(Step::Node {
                    pick: 0,
                    badly: false,
                });
            }
            self.step(Step::Pass { millis: 700_000 });
        }
        let all = self.world.send(
            ME,
            Request::RemoveAll(RemoveAll {
                tenant: None,
                force: true,
            }),
        );
        while !self.world.orders.is_empty() {
            self.step(Step::Node {
                pick: 0,
                badly: false,
            });
        }
        assert!(
            matches!(self.world.reply(all), Some(Reply::Count(_))),
            "acknowledged when all is dropped"
        );
        // The removal of the last hard-pinned member of a group schedules a step for the present moment.
        self.step(Step::Pass { millis: 0 });
        let books = self.world.master.check_books().expect("books balance");
        assert_eq!(
            (books.objects, books.replicas, books.orphans, books.guards),
            (0, 0, 0, 0),
            "{books:?}"
        );
        assert_eq!(
            (
                books.open_puts,
                books.waiting_puts,
                books.unanswered,
                books.drops
            ),
            (0, 0, 0, 0),
            "{books:?}"
        );
        assert_eq!(
            (
                books.promotion.in_flight,
                books.offload.in_flight,
                books.deadlines
            ),
            (0, 0, 0),
            "{books:?}"
        );
        for segment in books.segments {
            assert_eq!(
                (segment.live, segment.quarantined, segment.free),
                (0, 0, segment.capacity)
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, max_shrink_iters: 4000, ..ProptestConfig::default() })]

    #[test]
    fn no_history_reads_what_is_gone_or_unbalances_the_books(config in configs(), steps in prop::collection::vec(step(), 1..200)) {
        let mut run = Run::new(config);
        for step in steps {
            run.step(step);
        }
        let keys = (0..12).map(|of| key(&name(of)));
        run.told.catch_up(&mut run.world, 3, keys);
        run.wind_up();
    }

    #[test]
    fn the_same_inputs_give_the_same_outputs(config in configs(), names in prop::collection::vec(0..30u8, 1..100)) {
        let outputs = || {
            let mut world = World::tiers(config.clone(), 16 * BLOCK, 24 * BLOCK);
            let mut out: Vec<Output> = Vec::new();
            for (call, of) in names.iter().enumerate() {
                let request = if of % 3 == 0 { remove(&name(*of), true) } else { start(&name(*of), BLOCK, upsert()) };
                let (client, operation) = (ME, OperationId(call as u64));
                world.master.handle(world.now, Input::Request { client, host: None, permissions: Permissions::FULL, operation, request }, &mut out);
            }
            out
        };
        prop_assert_eq!(outputs(), outputs());
    }
}
