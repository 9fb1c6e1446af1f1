//! An object that a tenant of a keyed pool holds, and what others cannot do to it with what they know of it.

use slackwater_transfer::{AllowList, SealConfig};
use slackwater_wire::StagedRecord;

use super::*;

/// What a client of a keyed pool reaches the memory of its one node by.
pub(super) struct Way {
    engine: Engine,
    node: PeerId,
}

impl Way {
    fn of(link: &Link, keys: &KeyPair) -> Self {
        let hello = Hello {
            epoch: Epoch(0),
            client: link.client,
            host: None,
        };
        let welcome: Welcome = link.send("pool.hello", &hello).unwrap();
        let [node] = welcome.nodes.try_into().unwrap();
        let mut config = EngineConfig::new("peer");
        config.tcp = TcpConfig {
            bind: Vec::new(),
            io_threads: 1,
            seal: Some(SealConfig {
                keys: keys.clone(),
                clients: AllowList::default(),
            }),
            ..TcpConfig::default()
        };
        let engine = config.start().unwrap();
        Self {
            node: engine.open(node),
            engine,
        }
    }

    fn to(&self, offset: u64, capability: Capability) -> Target {
        Target {
            peer: self.node,
            offset,
            capability,
            key: None,
        }
    }

    /// Whether the value is there.
    pub(super) fn reads(&self, offset: u64, right: Capability) -> Result<bool, Cause> {
        let mut value = vec![0; VALUE.len()];
        let to = self.to(offset, right);
        let read = self.engine.read_now(&to, &mut value, LONG);
        read.map(|()| value == VALUE)
    }
}

/// What tenant `a` puts.
const VALUE: [u8; 5000] = [0xa5; 5000];

/// An object of tenant `a` whose bytes are written: its client, and how that reaches it.
pub(super) struct Held {
    pub(super) link: Link,
    pub(super) way: Way,
    version: Version,
    pub(super) extent: ExtentRef,
    /// The right to write it.
    right: Capability,
}

impl Held {
    /// Puts up to the last step.
    fn write(pool: &Keyed) -> Self {
        let link = pool.link(&pool.of_a).unwrap();
        let way = Way::of(&link, &pool.of_a);
        let start = Request::PutStart(PutStart {
            tenant: a(),
            entries: vec![PutEntry {
                key: named("k"),
                bytes: VALUE.len() as u64,
            }],
            chain: Chain::default(),
            config: PutConfig {
                durability: Durability::Disk,
                ..PutConfig::default()
            },
        });
        let answered = link.ask_as(link.client, &start).unwrap();
        let Reply::PutStart(started) = &answered.reply else {
            panic!("{answered:?}");
        };
        let [PutStarted::Granted { version, extents }] = &started[..] else {
            panic!("{answered:?}");
        };
        let (extent, right) = (extents[0], answered.capabilities[0]);
        let to = way.to(extent.offset, right);
        assert_eq!(way.engine.write_now(&to, &VALUE, LONG), Ok(()));
        Self {
            version: *version,
            extent,
            right,
            link,
            way,
        }
    }

    /// The last step, in the name of a tenant.
    pub(super) fn end(&self, tenant: Tenant) -> Request {
        Request::PutEnd(PutEnd {
            tenant,
            puts: vec![PutDone {
                key: named("k"),
                version: self.version,
                checksum: Checksum::of(&VALUE),
            }],
            hosts: None,
        })
    }

    /// Puts in all steps: the object is in memory, and on SSD.
    pub(super) fn publish(pool: &Keyed) -> Self {
        let held = Self::write(pool);
        let ended = held.link.ask(&held.end(a()));
        assert_eq!(ended, Answer::Reply(Reply::Each(vec![Ok(())])));
        held
    }

    pub(super) fn entry(&self) -> DiskEntry {
        DiskEntry {
            tenant: a(),
            key: named("k"),
            version: self.version,
        }
    }

    /// What is asked for the record of it.
    pub(super) fn record(&self) -> ReadRecord {
        ReadRecord {
            epoch: Epoch(0),
            client: self.link.client,
            entry: self.entry(),
            bytes: VALUE.len() as u64,
            checksum: Checksum::of(&VALUE),
            trace: None,
        }
    }

    /// Has the record of it brought to the memory of its node.
    pub(super) fn stage(&self) -> StagedRecord {
        let staged: RecordStaged = self.link.send("records.read", &self.record()).unwrap();
        staged.result.unwrap()
    }

    /// The right to read it.
    fn find(&self) -> Capability {
        let get = &requests()[0];
        let answered = self.link.ask_as(self.link.client, get).unwrap();
        let extents = answered.reply.extents();
        let at: Vec<ExtentRef> = extents.iter().map(|named| named.extent).collect();
        assert_eq!(at, [self.extent], "{answered:?}");
        answered.capabilities[0]
    }

    /// It is where it was, and its own client reads it.
    pub(super) fn check(&self) {
        let right = self.find();
        assert_eq!(self.way.reads(self.extent.offset, right), Ok(true));
        let staged = self.stage();
        let read = self.way.reads(staged.offset, staged.capability);
        assert_eq!(read, Ok(true), "its record is there too");
    }
}

/// A put is ended by the client that began it: not by another tenant, and not in the name of another client.
#[test]
fn nobody_ends_the_put_of_another_client() {
    let pool = Keyed::start();
    let keys = [&pool.of_b, &pool.operator, &pool.node];
    let [of_b, operator, node] = keys.map(|keys| {
        let link = pool.link(keys).unwrap();
        // The first message of a link says whose it is, and is none that ends a put.
        link.ask(&Request::Quotas);
        link
    });
    let held = Held::write(&pool);
    let end = held.end(a());
    assert!(is_refused(&of_b.ask(&end), ErrorCode::TenantNotPermitted));
    assert_eq!(node.ask(&end), Answer::Forbidden);
    for link in [&of_b, &operator] {
        let answered = link.ask_as(held.link.client, &end).unwrap();
        assert_eq!(answered.reply, Reply::Failed(ErrorCode::IllegalClient));
    }
    let none = Reply::Each(vec![Err(ErrorCode::ObjectNotFound)]);
    assert_eq!(of_b.ask(&held.end(b())), Answer::Reply(none));
    // It may name the tenant, and it is not the client that began.
    let refused = Reply::Each(vec![Err(ErrorCode::IllegalClient)]);
    assert_eq!(operator.ask(&end), Answer::Reply(refused));
    let ended = held.link.ask(&end);
    assert_eq!(ended, Answer::Reply(Reply::Each(vec![Ok(())])));
    held.check();
}

/// A capability is of use to the key that it was granted to, and to no other one that the node knows: also not to that of an
/// operator, which reads the object by a capability of its own.
#[test]
fn a_capability_of_another_holder_is_refused() {
    let pool = Keyed::start();
    let held = Held::write(&pool);
    let links = [&pool.of_b, &pool.operator].map(|keys| (pool.link(keys).unwrap(), keys));
    let ways = links.each_ref().map(|(link, keys)| Way::of(link, keys));
    let stolen = Cause::Refused(Refusal::Holder);
    for way in &ways {
        let to = way.to(held.extent.offset, held.right);
        let written = way.engine.write_now(&to, &[1; 100], LONG);
        assert_eq!(written, Err(stolen.clone()));
    }
    let ended = held.link.ask(&held.end(a()));
    assert_eq!(ended, Answer::Reply(Reply::Each(vec![Ok(())])));
    let (right, staged) = (held.find(), held.stage());
    for way in &ways {
        for (offset, right) in [
            (held.extent.offset, right),
            (staged.offset, staged.capability),
        ] {
            assert_eq!(way.reads(offset, right), Err(stolen.clone()));
        }
    }
    held.check();
}
