//! Values that are read where they are: by look-ups, and where nodes are known to have them.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use slackwater_base::Checksum;
use slackwater_mq::{Address, Running};
use slackwater_remote::{
    Client, ClientError, ConnectOptions, GetOptions, Part, PutOptions, ReadSession, RemoveOptions,
};
use slackwater_transfer::{
    Capability, Engine, EngineConfig, GrantSpec, Memory, Region, RegionSpec, Rights, Segment,
    TcpConfig,
};
use slackwater_wire::{
    ErrorCode, ExtentRef, Key, Lookup, Object, ReplicaAt, Reply, Request, SegmentId, SegmentKind,
    Version,
};

use super::{LONG, connect, connect_by, limited_by, listen, reply, reply_with, server_of};

/// A node whose memory holds one value, which is the object of every key.
struct Node {
    engine: Engine,
    region: Arc<Region>,
    bytes: usize,
}

const VALUE: usize = 8192;

impl Node {
    fn start() -> Self {
        Self::of(VALUE)
    }

    fn of(bytes: usize) -> Self {
        let mut config = EngineConfig::new("node");
        config.tcp = TcpConfig {
            bind: vec![(Ipv4Addr::LOCALHOST, 0).into()],
            ..TcpConfig::default()
        };
        let engine = config.start().unwrap();
        let spec = RegionSpec {
            memory: Memory::shared(bytes).unwrap(),
            rights: Rights::BOTH,
            gate: None,
        };
        let region = engine.register(spec).unwrap();
        let node = Self {
            engine,
            region,
            bytes,
        };
        node.fill(1);
        node
    }

    fn fill(&self, byte: u8) {
        let access = self.region.access(0, self.bytes as u64).unwrap();
        access.copy_in(0, &vec![byte; self.bytes]);
    }

    /// The answer to a look-up of so many keys whose object is of this byte, and the rights that come with it.
    fn found(&self, keys: usize, byte: u8, lease: Duration) -> (Reply, Vec<Capability>) {
        let extent = ExtentRef {
            segment: SegmentId(1),
            incarnation: self.engine.home().incarnation(),
            offset: 0,
            bytes: self.bytes as u64,
            generation: 1,
        };
        let object = Object {
            version: Version(byte.into()),
            bytes: self.bytes as u64,
            checksum: Checksum::of(&vec![byte; self.bytes]),
            replicas: vec![ReplicaAt::Memory(extent)].into(),
            lease,
            guard: None,
        };
        let right = self
            .engine
            .home()
            .grant(&self.region, &GrantSpec::whole(&self.region, Rights::READ));
        (
            Reply::Get(vec![Lookup::Found(object); keys]),
            vec![right; keys],
        )
    }
}

/// What is between a client and a node.
struct Wire {
    segment: Segment,
    pace: Arc<(Mutex<Pace>, Condvar)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Pace {
    Fast,
    /// 14 MiB a second.
    Slow,
    /// Nothing comes.
    Still,
}

impl Wire {
    fn to(segment: &Segment) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let own = Segment {
            addresses: vec![listener.local_addr().unwrap()],
            host: None,
            ..segment.clone()
        };
        let pace = Arc::new((Mutex::new(Pace::Fast), Condvar::new()));
        let (theirs, address) = (Arc::clone(&pace), segment.addresses[0]);
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (near, far) = (near.unwrap(), TcpStream::connect(address).unwrap());
                let fast = Arc::new((Mutex::new(Pace::Fast), Condvar::new()));
                let there = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let pace = Arc::clone(&theirs);
                std::thread::spawn(move || carry(there.0, there.1, &fast));
                std::thread::spawn(move || carry(far, near, &pace));
            }
        });
        Self { segment: own, pace }
    }

    fn is(&self, pace: Pace) {
        *self.pace.0.lock().unwrap() = pace;
        self.pace.1.notify_all();
    }
}

/// Carries bytes until an end closes.
fn carry(mut from: TcpStream, mut to: TcpStream, (pace, changed): &(Mutex<Pace>, Condvar)) {
    let mut bytes = vec![0; 256 << 10];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        let still = |pace: &mut Pace| *pace == Pace::Still;
        let pace = changed.wait_while(pace.lock().unwrap(), still).unwrap();
        if *pace == Pace::Slow {
            // Under the lock: it is the rate of all connections together.
            let slow = Duration::from_secs(1) * read as u32 / (14 << 20);
            std::thread::sleep(slow);
        }
        drop(pace);
        if to.write_all(&bytes[..read]).is_err() {
            return;
        }
    }
}

/// A server that says of every key that it is where `node` has it, and what it was asked.
fn lending(
    node: &Arc<Node>,
    byte: &Arc<AtomicU64>,
    lease: Duration,
) -> (Running, Address, Receiver<Request>) {
    lending_at(node, node.engine.segment().clone(), byte, lease)
}

/// The same, where `segment` is how clients reach the node.
fn lending_at(
    node: &Arc<Node>,
    segment: Segment,
    byte: &Arc<AtomicU64>,
    lease: Duration,
) -> (Running, Address, Receiver<Request>) {
    lending_up_to([64 << 20].into(), node, segment, byte, lease)
}

/// The same, with the longest values that each hello is told of.
fn lending_up_to(
    limits: Vec<u64>,
    node: &Arc<Node>,
    segment: Segment,
    byte: &Arc<AtomicU64>,
    lease: Duration,
) -> (Running, Address, Receiver<Request>) {
    let (told, heard) = channel();
    let (of, byte) = (Arc::clone(node), Arc::clone(byte));
    let nodes = vec![segment];
    let builder = limited_by(limits, nodes, move |call, asked, _| {
        let byte = byte.load(Ordering::SeqCst) as u8;
        let (found, rights) = match &asked.request {
            Request::Get(get) => of.found(get.keys.len(), byte, lease),
            Request::Reads(reads) => of.found(reads.keys().count(), byte, lease),
            Request::Remove(remove) => (Reply::Each(vec![Ok(()); remove.keys.len()]), Vec::new()),
            Request::RemoveAll(_) => (Reply::Count(1), Vec::new()),
            _ => (Reply::Failed(ErrorCode::ObjectNotFound), Vec::new()),
        };
        told.send(asked.request).unwrap();
        reply_with(call, 5, found, rights);
    });
    let (running, address) = listen(builder);
    (running, address, heard)
}

/// A client that had connected before a node with more memory came took a longer value for a damaged one, and told the master so: its
/// only copy went.
#[test]
fn a_value_longer_than_all_memory_was_at_first_is_read_and_not_suspected() {
    let check = |limits: Vec<u64>, expected: bool| {
        let (node, byte) = (Arc::new(Node::start()), Arc::new(AtomicU64::new(1)));
        let segment = node.engine.segment().clone();
        let (_server, address, heard) = lending_up_to(limits, &node, segment, &byte, LONG);
        let client = connect(address).unwrap();
        let mut options = GetOptions::default();
        options.call.deadline = Some(if expected {
            LONG
        } else {
            Duration::from_secs(1)
        });
        let found = client.get(b"a", &options).ok().flatten();
        assert_eq!(found.is_some_and(|value| value == [1; VALUE]), expected);
        assert!(!asked(&heard).contains(&"suspect"));
    };
    check(vec![1024, 64 << 20], true);
    // What is said to be so long is made no room for.
    check(vec![1024], false);
}

/// What was asked, but for reads that the master is told of when a second is over.
fn asked(heard: &Receiver<Request>) -> Vec<&'static str> {
    let kind = |request: Request| match request {
        Request::Get(_) => Some("get"),
        Request::Reads(_) => None,
        Request::Remove(_) => Some("remove"),
        Request::Suspect { .. } => Some("suspect"),
        _ => Some("other"),
    };
    heard.try_iter().filter_map(kind).collect()
}

#[test]
fn an_object_is_read_where_it_was_until_it_changes_or_its_lease_ends() {
    let (node, byte) = (Arc::new(Node::start()), Arc::new(AtomicU64::new(1)));
    let (_server, address, heard) = lending(&node, &byte, LONG);
    let client = connect(address).unwrap();
    let get = || client.get(b"k", &GetOptions::default());
    for _ in 0..3 {
        assert_eq!(get(), Ok(Some(vec![1; VALUE])));
    }
    assert_eq!(asked(&heard), ["get"]);
    // What the client changed itself is looked up again.
    client
        .remove(&[b"k"], &RemoveOptions::default())
        .remove(0)
        .unwrap();
    assert_eq!(get(), Ok(Some(vec![1; VALUE])));
    assert!(client.put(b"k", b"v", &PutOptions::default()).is_err());
    assert_eq!(get(), Ok(Some(vec![1; VALUE])));
    assert_eq!(client.remove_all(&RemoveOptions::default()), Ok(1));
    assert_eq!(get(), Ok(Some(vec![1; VALUE])));
    let others = asked(&heard);
    assert_eq!(
        others.iter().filter(|kind| **kind == "get").count(),
        3,
        "{others:?}"
    );
    // Other bytes than were put: nothing of the location is believed any more.
    node.fill(2);
    byte.store(2, Ordering::SeqCst);
    assert_eq!(get(), Ok(Some(vec![2; VALUE])));
    assert_eq!(get(), Ok(Some(vec![2; VALUE])));
    let mut others = asked(&heard);
    others.sort_unstable();
    assert_eq!(others, ["get", "suspect"]);
}

/// A value that is known is read without asking, and must not be taken for whole where it has no room.
#[test]
fn a_value_that_is_known_needs_room_for_all_of_it() {
    let (node, byte) = (Arc::new(Node::start()), Arc::new(AtomicU64::new(1)));
    let (_server, address, heard) = lending(&node, &byte, LONG);
    let client = connect(address).unwrap();
    let options = GetOptions::default();
    assert_eq!(client.get(b"k", &options), Ok(Some(vec![1; VALUE])));
    let mut short = vec![0; VALUE - 1];
    let refused = client.get_into(b"k", &mut short, &options).unwrap_err();
    let ClientError::BufferTooSmall { need, have, .. } = refused else {
        panic!("{refused}");
    };
    assert_eq!((need, have), (VALUE as u64, VALUE - 1));
    let mut long = vec![9; VALUE + 3];
    assert_eq!(client.get_into(b"k", &mut long, &options), Ok(Some(VALUE)));
    assert_eq!(
        (&long[..VALUE], &long[VALUE..]),
        (&[1; VALUE][..], &[9; 3][..])
    );
    assert_eq!(asked(&heard), ["get"]);
}

/// Bytes that come after the lease may be those of another object: they are not what was asked for, whatever they are.
#[test]
fn what_comes_after_its_lease_is_looked_up_again() {
    // Shorter than a node may be silent.
    const LEASE: Duration = Duration::from_millis(500);
    let (node, byte) = (Arc::new(Node::start()), Arc::new(AtomicU64::new(1)));
    let wire = Wire::to(node.engine.segment());
    let (_server, address, heard) = lending_at(&node, wire.segment.clone(), &byte, LEASE);
    let client = connect_by(true, address).unwrap();
    let options = GetOptions::default();
    let begun = Instant::now();
    assert_eq!(client.get(b"k", &options), Ok(Some(vec![1; VALUE])));
    wire.is(Pace::Still);
    let read = std::thread::spawn(move || client.get(b"k", &GetOptions::default()));
    while begun.elapsed() < LEASE {
        std::thread::sleep(LEASE.saturating_sub(begun.elapsed()));
    }
    wire.is(Pace::Fast);
    assert_eq!(read.join().unwrap(), Ok(Some(vec![1; VALUE])));
    let asked = asked(&heard);
    assert_eq!(
        asked.iter().filter(|kind| **kind == "get").count(),
        2,
        "{asked:?}"
    );
}

/// The master learns of reads that did not ask it, and its answer brings the next lease.
#[test]
fn reads_without_a_look_up_are_told_to_the_master() {
    let (node, byte) = (Arc::new(Node::start()), Arc::new(AtomicU64::new(1)));
    let (_server, address, heard) = lending(&node, &byte, LONG);
    let client = connect(address).unwrap();
    let keys: [&[u8]; 2] = [b"a", b"b"];
    for _ in 0..2 {
        let got = client.get_batch(&keys, &GetOptions::default());
        assert!(got.iter().all(|got| *got == Ok(Some(vec![1; VALUE]))));
    }
    assert!(matches!(heard.recv_timeout(LONG).unwrap(), Request::Get(_)));
    let told = heard.recv_timeout(LONG).unwrap();
    let Request::Reads(reads) = told else {
        panic!("{told:?}");
    };
    let named: Vec<&[u8]> = reads.keys().map(Key::as_bytes).collect();
    assert_eq!((reads.calls.len(), named), (1, keys.to_vec()));
}

/// A session took its whole value with the first part, so that the first layer of a model waited for all of them.
#[test]
fn a_session_reads_what_is_asked_for_alone_until_its_value_is_another() {
    let (node, byte) = (Arc::new(Node::start()), Arc::new(AtomicU64::new(1)));
    let (_server, address, heard) = lending(&node, &byte, LONG);
    let client = connect(address).unwrap();
    let read = |session: &ReadSession, from: usize, bytes: usize| {
        let mut into = vec![0; bytes];
        let part = Part {
            from: from as u64,
            into: &mut into,
        };
        let options = GetOptions::default();
        let read = client.read_sessions(&[session], vec![vec![part]], &options);
        let read = read.into_iter().next().unwrap();
        (read.map_err(|error| error.code()), into)
    };
    let session = ReadSession::new(b"k");
    for (from, bytes) in [(0, 100), (4000, 96), (VALUE - 1, 1)] {
        assert_eq!(read(&session, from, bytes), (Ok(VALUE), vec![1; bytes]));
    }
    let outside = (Ok(VALUE), vec![0]);
    assert_eq!(read(&session, VALUE, 1), outside, "it is not in the value");
    let moved: u64 = client.moved().iter().map(|(_, way)| way.bytes_read).sum();
    assert_eq!(moved, 197);
    assert_eq!(asked(&heard), ["get"]);
    // Another put of the key, of which the client learns with its next look-up.
    node.fill(2);
    byte.store(2, Ordering::SeqCst);
    let removed = client.remove(&[b"k"], &RemoveOptions::default());
    assert_eq!(removed, [Ok(())]);
    let expired = Err(ErrorCode::LeaseExpired);
    assert_eq!(read(&session, 0, 1).0, expired);
    assert_eq!(read(&ReadSession::new(b"k"), 0, 1), (Ok(VALUE), vec![2]));
    let too_few = client.read_sessions(&[&session], Vec::new(), &GetOptions::default());
    assert!(matches!(
        too_few[..],
        [Err(ClientError::BufferCount { .. })]
    ));
}

#[test]
fn a_value_is_viewed_from_memory_and_stays_as_it_was() {
    let (node, byte) = (Arc::new(Node::start()), Arc::new(AtomicU64::new(1)));
    let (_server, address, _heard) = lending(&node, &byte, LONG);
    let client = connect(address).unwrap();
    let view = client.view(b"k", &GetOptions::default()).unwrap().unwrap();
    drop(client);
    node.fill(2);
    assert_eq!(view[..], [1; VALUE]);
    assert_eq!((view.kind(), view.is_intact()), (SegmentKind::Memory, true));
}

#[test]
fn a_client_without_locations_asks_each_time() {
    let (node, byte) = (Arc::new(Node::start()), Arc::new(AtomicU64::new(1)));
    let (_server, address, heard) = lending(&node, &byte, LONG);
    let client = Client::connect(&ConnectOptions {
        address,
        locations: 0,
        ..ConnectOptions::default()
    });
    for _ in 0..2 {
        let got = client.as_ref().unwrap().get(b"k", &GetOptions::default());
        assert_eq!(got, Ok(Some(vec![1; VALUE])));
    }
    assert_eq!(asked(&heard), ["get", "get"]);
}

/// Bytes that were read where they were known to be had to come within a second, all of them: long values never did.
#[test]
fn a_long_read_goes_on_while_bytes_come() {
    // A piece, and a little behind it.
    let bytes = (16 << 20) + 4096;
    let (node, byte) = (Arc::new(Node::of(bytes)), Arc::new(AtomicU64::new(1)));
    let wire = Wire::to(node.engine.segment());
    let (_server, address, heard) = lending_at(&node, wire.segment.clone(), &byte, LONG);
    let client = connect_by(true, address).unwrap();
    let get = || client.get(b"k", &GetOptions::default()).unwrap().unwrap();
    assert!(get() == vec![1; bytes]);
    wire.is(Pace::Slow);
    let begun = std::time::Instant::now();
    assert!(get() == vec![1; bytes]);
    assert!(begun.elapsed() > Duration::from_secs(1), "the wire is slow");
    let asked = asked(&heard);
    assert_eq!(
        asked.iter().filter(|kind| **kind == "get").count(),
        1,
        "{asked:?}"
    );
}

/// A caller who had little time made the client forget where everything is. What it was told was that no answer had come,
/// although the server had answered all.
#[test]
fn a_caller_who_is_out_of_time_has_not_learnt_that_a_node_ended() {
    let (node, byte) = (Arc::new(Node::start()), Arc::new(AtomicU64::new(1)));
    let wire = Wire::to(node.engine.segment());
    let (_server, address, heard) = lending_at(&node, wire.segment.clone(), &byte, LONG);
    let client = connect_by(true, address).unwrap();
    let get = |key: &[u8], within: Duration| {
        let call = super::within(within);
        client.get(
            key,
            &GetOptions {
                call,
                ..GetOptions::default()
            },
        )
    };
    for key in [b"a", b"b"] {
        assert_eq!(get(key, LONG), Ok(Some(vec![1; VALUE])));
    }
    wire.is(Pace::Still);
    let late = get(b"a", Duration::from_millis(50)).unwrap_err();
    assert_eq!(
        late.to_string(),
        "a get was not answered within 50ms: the server answered, and the bytes did not move in time"
    );
    wire.is(Pace::Fast);
    assert_eq!(asked(&heard), ["get", "get"]);
    assert_eq!(get(b"b", LONG), Ok(Some(vec![1; VALUE])));
    let later = asked(&heard);
    assert!(!later.contains(&"get"), "{later:?}");
}

/// A node ended, and each read of what it was known to have tried to reach it until the end of the call.
#[test]
fn what_a_node_had_that_ended_is_looked_up_again() {
    let (node, other) = (Arc::new(Node::start()), Arc::new(Node::start()));
    let (of, turn) = (
        [Arc::clone(&node), Arc::clone(&other)],
        Arc::new(AtomicU64::new(0)),
    );
    let nodes = of.each_ref().map(|node| node.engine.segment().clone());
    let now_at = Arc::clone(&turn);
    let (_server, address) = server_of(nodes.to_vec(), move |call, asked, _| {
        let at = &of[now_at.load(Ordering::SeqCst) as usize];
        let Request::Get(get) = &asked.request else {
            return reply(call, 5, Reply::Failed(ErrorCode::ObjectNotFound));
        };
        let (found, rights) = at.found(get.keys.len(), 1, LONG);
        reply_with(call, 5, found, rights);
    });
    let client = connect(address).unwrap();
    let get = |key: u8| client.get(&[key], &GetOptions::default());
    (1..20).for_each(|key| assert_eq!(get(key), Ok(Some(vec![1; VALUE]))));
    turn.store(1, Ordering::SeqCst);
    node.engine.close();
    let begun = std::time::Instant::now();
    (1..20).for_each(|key| assert_eq!(get(key), Ok(Some(vec![1; VALUE]))));
    assert!(
        begun.elapsed() < LONG / 4,
        "one of them waits, and not for long"
    );
}

/// Bytes of one node gave another one new time, so that each few values of a batch waited for a node that had ended: the
/// call took all of its time, and the values of the nodes that were there did not come.
#[test]
fn a_node_that_sends_nothing_is_waited_for_once_in_a_call() {
    // The length of each node's value; the second node falls silent. Values of the last one are read alone.
    let lengths = [VALUE, VALUE, 16 << 20];
    let nodes = lengths.map(|bytes| Arc::new(Node::of(bytes)));
    // `then` is where the master says that its values are: elsewhere, or there still, and it sends again.
    let check = |pattern: &[u8], then: usize| {
        let wire = Arc::new(Wire::to(nodes[1].engine.segment()));
        let mut segments = nodes.each_ref().map(|node| node.engine.segment().clone());
        segments[1] = wire.segment.clone();
        let (told, heard) = channel();
        let (of, there) = (nodes.clone(), Arc::clone(&wire));
        let (_server, address) = server_of(segments.to_vec(), move |call, asked, before| {
            let Request::Get(get) = &asked.request else {
                return reply(call, 5, Reply::Done);
            };
            if then == 1 {
                there.is(Pace::Fast);
            }
            let (mut lookups, mut rights) = (Vec::new(), Vec::new());
            for key in &get.keys {
                let at = match key.as_bytes()[0] {
                    1 if before > 0 => then,
                    at => at.into(),
                };
                let (Reply::Get(found), right) = of[at].found(1, 1, LONG) else {
                    unreachable!("it is found");
                };
                lookups.extend(found);
                rights.extend(right);
            }
            told.send(get.keys.clone()).unwrap();
            reply_with(call, 5, Reply::Get(lookups), rights);
        });
        let client = connect_by(true, address).unwrap();
        let keys: Vec<Vec<u8>> = (0..6)
            .flat_map(|turn| pattern.iter().map(move |node| vec![*node, turn]))
            .collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let length = |key: &&[u8]| Ok(Some(lengths[usize::from(key[0])]));
        let expected: Vec<_> = keys.iter().map(length).collect();
        let get = || -> Vec<_> {
            let got = client.get_batch(&keys, &GetOptions::default()).into_iter();
            got.map(|got| got.map(|value| value.map(|value| value.len())))
                .collect()
        };
        assert_eq!(get(), expected);
        wire.is(Pace::Still);
        let begun = std::time::Instant::now();
        assert_eq!(get(), expected);
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(5), "{pattern:?}: {took:?}");
        let looked_up: Vec<Vec<Key>> = heard.try_iter().skip(1).collect();
        let lost = |key: &&&[u8]| key[0] == 1;
        let lost: Vec<Key> = keys
            .iter()
            .filter(lost)
            .map(|key| Key::new(key).unwrap())
            .collect();
        assert_eq!(looked_up, [lost], "what was there is not looked up");
    };
    // What is read together, and each value alone.
    check(&[0, 1, 2], 0);
    check(&[2, 1], 1);
}
