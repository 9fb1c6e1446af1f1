//! A served store as any peer meets it: by messages and capabilities, honest ones and others.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

mod late;
mod outlives;
mod roles;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use slackwater_base::{ByteSize, Checksum};
use slackwater_mq::{
    Address, Builder, ConnectOptions, ConnectionId, Options, RequestOptions, Running,
};
use slackwater_node::pool::{MasterOptions, MasterServer, NodeOptions, NodeServer};
use slackwater_node::serve::{ServeOptions, Server};
use slackwater_node::{Config, Operated};
use slackwater_transfer::{
    Capability, Cause, Engine, EngineConfig, PeerId, Refusal, Target, TcpConfig,
};
use slackwater_wire::body::{self, Message};
use slackwater_wire::{
    Answered, Asked, ClientId, DiskEntry, Durability, Epoch, ErrorCode, ExtentRef, Get, Hello,
    Hold, Incarnation, Key, Lookup, Mount, NodeId, OperationId, PutConfig, PutDone, PutEnd,
    PutEntry, PutStart, PutStarted, ReadRecord, RecordStaged, Release, Remove, Reply, Request,
    SegmentId, SegmentKind, Tenant, Version, Welcome,
};

const LONG: Duration = Duration::from_secs(20);
const MEMORY: u64 = 16 << 20;

fn serve() -> Server {
    let config = Config {
        memory: ByteSize(MEMORY),
        ssd: ByteSize(0),
        ..Config::default()
    };
    let options = ServeOptions {
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        ..ServeOptions::default()
    };
    Server::start(config, &options).unwrap()
}

/// What answers on links.
trait Reached {
    fn address(&self) -> SocketAddr;
}

impl Reached for Server {
    fn address(&self) -> SocketAddr {
        Server::address(self)
    }
}

/// A store whose master and node are in one process and one host, or apart with a link between them.
enum Pool {
    Together(Box<Server>),
    Apart {
        master: Box<MasterServer>,
        _node: NodeServer,
    },
}

impl Reached for Pool {
    fn address(&self) -> SocketAddr {
        match self {
            Self::Together(server) => server.address(),
            Self::Apart { master, .. } => master.address(),
        }
    }
}

/// What holds for the one holds for the other.
fn both(check: impl Fn(&Pool)) {
    check(&Pool::Together(Box::new(serve())));
    check(&apart());
}

fn apart() -> Pool {
    let config = Config {
        memory: ByteSize(MEMORY),
        ssd: ByteSize(0),
        ..Config::default()
    };
    let options = MasterOptions {
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        ..MasterOptions::default()
    };
    let master = MasterServer::start(&config, &options).unwrap();
    let options = NodeOptions {
        master: Address::tcp(master.address()),
        ..NodeOptions::default()
    };
    let (joined, waits) = channel();
    let joined = move |node, taken| joined.send((node, taken)).unwrap();
    let node = NodeServer::start(config, options, joined).unwrap();
    assert_eq!(waits.recv_timeout(LONG), Ok((node.node(), Ok(()))));
    assert_eq!(master.nodes(), 1);
    Pool::Apart {
        master: Box::new(master),
        _node: node,
    }
}

#[test]
fn a_store_with_its_own_memory_takes_no_nodes() {
    let server = serve();
    let config = Config {
        memory: ByteSize(MEMORY),
        ssd: ByteSize(0),
        ..Config::default()
    };
    let options = NodeOptions {
        master: Address::tcp(server.address()),
        ..NodeOptions::default()
    };
    let (told, waits) = channel();
    let told = move |node, taken| told.send((node, taken)).unwrap();
    let node = NodeServer::start(config, options, told).unwrap();
    let refused = (node.node(), Err(ErrorCode::NotSupported));
    assert_eq!(waits.recv_timeout(LONG), Ok(refused));
}

/// A capability comes to nothing: at once, or where its node is another process, as soon as the node was told.
fn gone(mut attempt: impl FnMut() -> Result<(), Cause>) {
    let begun = Instant::now();
    loop {
        match attempt() {
            Ok(()) => assert!(begun.elapsed() < LONG, "it still works"),
            Err(cause) => return assert_eq!(cause, refused(Refusal::Generation)),
        }
    }
}

/// A peer that says whatever a test wants.
struct Peer {
    mq: Running,
    to: ConnectionId,
    engine: Engine,
    node: PeerId,
    epoch: Epoch,
    client: ClientId,
}

impl Peer {
    fn of(server: &impl Reached, client: u64) -> Self {
        let mq = Builder::new(Options::default()).start().unwrap();
        let address = Address::tcp(server.address());
        let to = mq
            .connect_wait(&address, &ConnectOptions::default())
            .unwrap();
        let mut config = EngineConfig::new("peer");
        config.tcp = TcpConfig {
            bind: Vec::new(),
            io_threads: 1,
            ..TcpConfig::default()
        };
        let engine = config.start().unwrap();
        let hello = Hello {
            epoch: Epoch(0),
            client: ClientId(client),
            host: None,
        };
        let welcome: Welcome = ask(&mq, to, "pool.hello", &hello);
        let [node] = welcome.nodes.try_into().unwrap();
        Self {
            node: engine.open(node),
            mq,
            to,
            engine,
            epoch: welcome.epoch,
            client: ClientId(client),
        }
    }

    fn ask(&self, operation: u64, request: Request) -> (Reply, Vec<Capability>) {
        let asked = Asked {
            epoch: self.epoch,
            client: self.client,
            operation: OperationId(operation),
            request,
            reads: body::LOOK_UPS,
            trace: None,
        };
        let command = match asked.request {
            Request::PutEnd(_) => "records.put_end",
            _ => "pool.request",
        };
        let answered: Answered = ask(&self.mq, self.to, command, &asked);
        (answered.reply, answered.capabilities)
    }

    fn start(&self, operation: u64, key: &str, bytes: u64) -> (Version, ExtentRef, Capability) {
        let (reply, rights) = self.ask(operation, put_start(key, bytes, PutConfig::default()));
        let Reply::PutStart(started) = reply else {
            panic!("{reply:?}");
        };
        match &started[..] {
            [PutStarted::Granted { version, extents }] => (*version, extents[0], rights[0]),
            other => panic!("{other:?}"),
        }
    }

    fn end(&self, operation: u64, key: &str, version: Version, value: &[u8]) -> Reply {
        let done = PutDone {
            key: named(key),
            version,
            checksum: Checksum::of(value),
        };
        let request = Request::PutEnd(PutEnd {
            tenant: Tenant::DEFAULT,
            puts: vec![done],
            hosts: None,
        });
        self.ask(operation, request).0
    }

    /// Puts a value in all its steps; the extent, and the right to write it.
    fn put(&self, operation: u64, key: &str, value: &[u8]) -> (ExtentRef, Capability) {
        let (version, extent, right) = self.start(operation, key, value.len() as u64);
        assert_eq!(self.write(extent, right, value), Ok(()));
        let ended = self.end(operation + 1, key, version, value);
        assert_eq!(ended, Reply::Each(vec![Ok(())]));
        (extent, right)
    }

    fn find(&self, operation: u64, key: &str) -> Option<(ExtentRef, Capability)> {
        let (reply, rights) = self.ask(operation, get(key, Hold::Lease));
        match reply {
            Reply::Get(found) => match &found[..] {
                [Lookup::Found(_)] => {
                    let extent = Reply::Get(found).extents()[0].extent;
                    Some((extent, rights[0]))
                }
                _ => None,
            },
            other => panic!("{other:?}"),
        }
    }

    fn remove(&self, operation: u64, key: &str) -> Reply {
        let remove = Remove {
            tenant: Tenant::DEFAULT,
            keys: vec![named(key)],
            force: true,
        };
        self.ask(operation, Request::Remove(remove)).0
    }

    fn write(&self, extent: ExtentRef, right: Capability, value: &[u8]) -> Result<(), Cause> {
        let target = self.target(extent.offset, right);
        self.engine.write_now(&target, value, LONG)
    }

    fn read(&self, offset: u64, right: Capability, bytes: usize) -> Result<Vec<u8>, Cause> {
        let mut value = vec![0; bytes];
        let target = self.target(offset, right);
        self.engine
            .read_now(&target, &mut value, LONG)
            .map(|()| value)
    }

    fn target(&self, offset: u64, capability: Capability) -> Target {
        Target {
            peer: self.node,
            offset,
            capability,
            key: None,
        }
    }
}

fn ask<M: Message>(mq: &Running, to: ConnectionId, command: &str, message: &impl Message) -> M {
    let options = RequestOptions {
        timeout: Some(LONG),
        ..RequestOptions::default()
    };
    let body = body::encode(message).unwrap();
    let answer = mq.request_wait(to, command, [&body], &options).unwrap();
    body::decode(answer.part(0).unwrap()).unwrap()
}

fn named(key: &str) -> Key {
    Key::try_from(key).unwrap()
}

fn put_start(key: &str, bytes: u64, config: PutConfig) -> Request {
    Request::PutStart(PutStart {
        tenant: Tenant::DEFAULT,
        entries: vec![PutEntry {
            key: named(key),
            bytes,
        }],
        chain: Default::default(),
        config,
    })
}

fn get(key: &str, hold: Hold) -> Request {
    Request::Get(Get {
        tenant: Tenant::DEFAULT,
        keys: vec![named(key)],
        chain: Default::default(),
        hold,
        prefix_only: false,
    })
}

fn refused(refusal: Refusal) -> Cause {
    Cause::Refused(refusal)
}

/// The holder of a capability to write could change an object after it was published, for as long as it lay there.
#[test]
fn an_object_does_not_change_after_it_is_published() {
    both(|server| {
        let peer = Peer::of(server, 1 << 40);
        let value = vec![7; 10_000];
        let (extent, right) = peer.put(1, "k", &value);
        let late = peer.write(extent, right, &[9; 10_000]);
        assert_eq!(late, Err(refused(Refusal::Generation)));
        let (extent, right) = peer.find(3, "k").unwrap();
        assert_eq!(peer.read(extent.offset, right, 10_000), Ok(value));
        assert_eq!(
            peer.write(extent, right, b"x"),
            Err(refused(Refusal::Rights))
        );
    });
}

/// The end of a put was believed: a client that had written nothing was granted to read what the last owner of the memory,
/// perhaps another tenant, had left there.
#[test]
fn a_put_whose_bytes_are_not_there_is_not_published() {
    both(|server| {
        let (peer, other) = (Peer::of(server, 1 << 40), Peer::of(server, 2 << 40));
        let value = vec![7; 10_000];
        let mismatch = Reply::Failed(ErrorCode::ChecksumMismatch);
        for (number, written) in [(10, &[][..]), (20, &value[..9_999])] {
            let (version, extent, right) = other.start(number, "unwritten", 10_000);
            if !written.is_empty() {
                assert_eq!(other.write(extent, right, written), Ok(()));
            }
            let ended = other.end(number + 1, "unwritten", version, &value);
            assert_eq!(ended, mismatch);
            assert_eq!(other.find(number + 2, "unwritten"), None);
            let late = other.write(extent, right, &value);
            assert_eq!(
                late,
                Err(refused(Refusal::Generation)),
                "it was said to be complete"
            );
            let revoke = Request::Revoke {
                operation: OperationId(number),
            };
            assert_eq!(other.ask(number + 3, revoke).0, Reply::Done);
        }
        peer.put(1, "k", &value);
        assert!(peer.find(3, "k").is_some());
    });
}

/// The right to answer a put that waited for room stayed with the server after the put was revoked, for as long as the link.
#[test]
fn a_waiting_put_that_is_revoked_is_answered() {
    both(|server| {
        let peer = Peer::of(server, 1 << 40);
        peer.start(1, "all", MEMORY);
        let waits = PutConfig {
            wait: Some(LONG),
            ..PutConfig::default()
        };
        let asked = Asked {
            epoch: peer.epoch,
            client: peer.client,
            operation: OperationId(2),
            request: put_start("k", 1, waits),
            reads: body::LOOK_UPS,
            trace: None,
        };
        std::thread::scope(|scope| {
            let waiting =
                scope.spawn(|| -> Answered { ask(&peer.mq, peer.to, "pool.request", &asked) });
            // A revocation that comes first has the put refused when it comes.
            let operation = OperationId(2);
            assert_eq!(peer.ask(3, Request::Revoke { operation }).0, Reply::Done);
            assert!(matches!(waiting.join().unwrap().reply, Reply::Failed(_)));
        });
    });
}

/// Look-ups are answered in a shorter format, which clients of earlier releases take for no message.
#[test]
fn a_client_is_answered_in_the_format_that_it_reads() {
    both(|server| {
        let peer = Peer::of(server, 1 << 40);
        peer.put(1, "a", &[1; 5_000]);
        let (found, _) = peer.find(3, "a").unwrap();
        let answer = |operation, reads| {
            let asked = Asked {
                epoch: peer.epoch,
                client: peer.client,
                operation: OperationId(operation),
                request: get("a", Hold::Lease),
                reads,
                trace: None,
            };
            let body = body::encode(&asked).unwrap();
            let options = RequestOptions::default();
            let answer = (peer.mq).request_wait(peer.to, "pool.request", [body], &options);
            answer.unwrap().part(0).unwrap().to_vec()
        };
        for (operation, reads) in [(4, body::FORMAT), (5, body::LOOK_UPS)] {
            let answer = answer(operation, reads);
            assert_eq!(answer[0], reads);
            let Answered {
                reply,
                capabilities,
                ..
            } = body::decode(&answer).unwrap();
            let named = reply.extents();
            assert_eq!((named.len(), named[0].extent), (1, found));
            let read = peer.read(found.offset, capabilities[0], 5_000);
            assert_eq!(read, Ok(vec![1; 5_000]));
        }
    });
}

#[test]
fn a_capability_reaches_its_object_and_nothing_beside_it() {
    both(|server| {
        let peer = Peer::of(server, 1 << 40);
        peer.put(1, "a", &[1; 5_000]);
        peer.put(3, "b", &[2; 5_000]);
        let (extent, right) = peer.find(5, "a").unwrap();
        let beside = |offset, bytes| peer.read(extent.offset + offset, right, bytes);
        assert_eq!(beside(0, 5_000), Ok(vec![1; 5_000]));
        assert_eq!(beside(0, 5_001), Err(refused(Refusal::Range)), "behind it");
        assert_eq!(
            beside(8_192, 1),
            Err(refused(Refusal::Range)),
            "another one"
        );
        let mut forged = right.to_bytes();
        forged[70] ^= 1;
        let forged = Capability::from_bytes(&forged);
        let read = peer.read(extent.offset, forged, 1);
        assert_eq!(read, Err(refused(Refusal::Forged)));
    });
}

#[test]
fn a_removed_object_is_not_read_under_an_old_capability_and_its_room_is_used_again() {
    both(|server| {
        let peer = Peer::of(server, 1 << 40);
        let large = vec![1; 10 << 20];
        for round in 0..4 {
            let number = 10 * round + 1;
            // Two of them do not fit: each finds the room of the one before.
            peer.put(number, "k", &large);
            let (extent, right) = peer.find(number + 2, "k").unwrap();
            assert_eq!(peer.read(extent.offset, right, 1), Ok(vec![1]));
            let removed = peer.remove(number + 3, "k");
            assert_eq!(removed, Reply::Each(vec![Ok(())]));
            gone(|| peer.read(extent.offset, right, 1).map(drop));
        }
    });
}

#[test]
fn a_repeated_operation_gets_the_first_answer() {
    both(|server| {
        let peer = Peer::of(server, 1 << 40);
        let first = peer.start(1, "k", 100);
        let again = peer.start(1, "k", 100);
        assert_eq!((first.0, first.1), (again.0, again.1));
        assert_eq!(peer.write(again.1, again.2, &[5; 100]), Ok(()));
        let done = Reply::Each(vec![Ok(())]);
        assert_eq!(peer.end(2, "k", first.0, &[5; 100]), done);
        assert_eq!(peer.end(2, "k", first.0, &[5; 100]), done);
        assert_eq!(peer.remove(3, "k"), done);
        assert_eq!(peer.remove(3, "k"), done, "and not that there is none");
    });
}

/// The room of puts comes back when the link of their writer is gone, however many of them there were.
#[test]
fn what_a_lost_client_was_writing_is_given_back() {
    both(|server| {
        let peer = Peer::of(server, 1 << 40);
        for round in 0..4 {
            let lost = Peer::of(server, (2 << 40) + round);
            let (_, extent, right) = lost.start(1, "k", 10 << 20);
            assert_eq!(lost.write(extent, right, &[3; 1000]), Ok(()));
            lost.mq.stop();
            // Waits for room, which there is only without the other one.
            let number = 10 * round + 1;
            let (reply, _) = peer.ask(number, put_start("next", 10 << 20, PutConfig::default()));
            assert!(
                matches!(&reply, Reply::PutStart(started) if matches!(started[..], [PutStarted::Granted { .. }])),
                "{reply:?}"
            );
            let revoke = Request::Revoke {
                operation: OperationId(number),
            };
            assert_eq!(peer.ask(number + 1, revoke).0, Reply::Done);
            gone(|| lost.write(extent, right, &[3; 1000]));
        }
        assert_eq!(peer.find(100, "k"), None, "nothing is half published");
    });
}

/// The end of a put that a dead master had granted published what another client was writing under the same version.
#[test]
fn no_version_of_one_master_is_given_by_the_next() {
    let first = serve();
    let (version, ..) = Peer::of(&first, 1 << 40).start(1, "k", 100);
    drop(first);
    let second = serve();
    let peer = Peer::of(&second, 1 << 40);
    let (next, ..) = peer.start(1, "k", 100);
    assert!(next > version);
    let late = peer.end(2, "k", version, &[0; 100]);
    assert_eq!(late, Reply::Each(vec![Err(ErrorCode::InvalidVersion)]));
}

#[test]
fn what_only_others_may_ask_for_is_refused() {
    both(|server| {
        let peer = Peer::of(server, 1 << 40);
        let check = |number, request: Request, code| {
            assert_eq!(peer.ask(number, request).0, Reply::Failed(code));
        };
        // A guard never ends by itself: a client that is stopped would hold its replica for ever.
        check(1, get("k", Hold::Guard), ErrorCode::NotSupported);
        let mount = Mount {
            segment: SegmentId(9),
            name: "mine".into(),
            node: NodeId(9),
            incarnation: Incarnation(9),
            kind: SegmentKind::Memory,
            bytes: 1 << 30,
            host: String::new(),
            generations: None,
            watermarks: None,
        };
        check(2, Request::Mount(mount), ErrorCode::RoleNotPermitted);
        let durable = PutConfig {
            durability: Durability::Disk,
            ..PutConfig::default()
        };
        let no_ssd = ErrorCode::UnavailableInCurrentMode;
        check(3, put_start("k", 1, durable), no_ssd);
    });
}

#[test]
fn a_link_speaks_for_one_client_and_for_no_master_of_the_future() {
    both(|server| {
        let peer = Peer::of(server, 1 << 40);
        let check = |epoch, client, code| {
            let asked = Asked {
                epoch,
                client: ClientId(client),
                operation: OperationId(1),
                request: Request::Quotas,
                reads: body::LOOK_UPS,
                trace: None,
            };
            let answered: Answered = ask(&peer.mq, peer.to, "pool.request", &asked);
            assert_eq!(answered.reply, Reply::Failed(code));
            assert_eq!(answered.epoch, peer.epoch);
        };
        check(peer.epoch, 2 << 40, ErrorCode::IllegalClient);
        check(peer.epoch, 1, ErrorCode::IllegalClient);
        check(Epoch(peer.epoch.0 + 1), 1 << 40, ErrorCode::StaleEpoch);
        let body = [body::FORMAT, 0xc1];
        let answer = peer
            .mq
            .request_wait(peer.to, "pool.request", [body], &RequestOptions::default())
            .unwrap();
        let answered: Answered = body::decode(answer.part(0).unwrap()).unwrap();
        assert_eq!(answered.reply, Reply::Failed(ErrorCode::DeserializeFail));
    });
}

#[test]
fn a_record_that_is_not_there_is_gone() {
    let server = serve();
    let peer = Peer::of(&server, 1 << 40);
    let check = |bytes, code| {
        let record = ReadRecord {
            epoch: peer.epoch,
            client: peer.client,
            entry: DiskEntry {
                tenant: Tenant::DEFAULT,
                key: named("k"),
                version: Version(1),
            },
            bytes,
            checksum: Checksum(1),
            trace: None,
        };
        let staged: RecordStaged = ask(&peer.mq, peer.to, "records.read", &record);
        assert_eq!(staged.result.unwrap_err(), code, "{bytes}");
    };
    check(4096, ErrorCode::ReplicaIsGone);
    check(0, ErrorCode::ValueTooLong);
    check(u64::MAX, ErrorCode::ValueTooLong);
    check((32 << 20) + 1, ErrorCode::ValueTooLong);
    // Many that fail leave no room behind that is not given back.
    (0..20).for_each(|_| check(30 << 20, ErrorCode::ReplicaIsGone));
}

/// The time that a reader had waited for bytes that never came was counted as that of their way.
#[test]
fn only_bytes_that_came_have_a_time_on_their_way() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        memory: ByteSize(MEMORY),
        ssd: ByteSize::mib(64),
        dir: Some(folder.path().to_owned()),
        ..Config::default()
    };
    let options = ServeOptions {
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        ..ServeOptions::default()
    };
    let server = Server::start(config, &options).unwrap();
    let peer = Peer::of(&server, 1 << 40);
    let value = vec![7; 10_000];
    let durable = PutConfig {
        durability: Durability::Disk,
        ..PutConfig::default()
    };
    let (reply, rights) = peer.ask(1, put_start("k", value.len() as u64, durable));
    let Reply::PutStart(started) = reply else {
        panic!("{reply:?}");
    };
    let [PutStarted::Granted { version, extents }] = &started[..] else {
        panic!("{started:?}");
    };
    assert_eq!(peer.write(extents[0], rights[0], &value), Ok(()));
    let ended = peer.end(2, "k", *version, &value);
    assert_eq!(ended, Reply::Each(vec![Ok(())]));
    let done_with = |fetched: bool| {
        let record = ReadRecord {
            epoch: peer.epoch,
            client: peer.client,
            entry: DiskEntry {
                tenant: Tenant::DEFAULT,
                key: named("k"),
                version: *version,
            },
            bytes: value.len() as u64,
            checksum: Checksum::of(&value),
            trace: None,
        };
        let staged: RecordStaged = ask(&peer.mq, peer.to, "records.read", &record);
        let staged = staged.result.unwrap();
        let release = Release {
            client: peer.client,
            generation: staged.generation,
            node: staged.node,
            fetched,
        };
        let release = body::encode(&release).unwrap();
        peer.mq.send(peer.to, "records.release", [release]);
    };
    let timed = || server.operated().stats().phases.wire.count;
    done_with(false);
    done_with(true);
    let begun = Instant::now();
    while timed() == 0 {
        assert!(begun.elapsed() < LONG, "the way of what came is timed");
        std::thread::yield_now();
    }
    assert_eq!(timed(), 1);
}
