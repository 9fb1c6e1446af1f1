//! A client and the servers that it may meet: those that are too old, silent for a while, or none at all.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use slackwater_base::Checksum;
use slackwater_mq::{
    Access, Address, Admission, Builder, Call, Category, Level, ListenOptions, Options, Refusal,
    Running,
};
use slackwater_net::{Endpoint, UnixAccess};
use slackwater_remote::{
    CallOptions, Cancel, Client, ClientError, ConnectError, ConnectOptions, GetOptions, PutOptions,
    RemoveOptions,
};
use slackwater_transfer::{
    Capability, Engine, EngineConfig, GrantSpec, Memory, Region, RegionSpec, Rights, Segment,
    TcpConfig,
};
use slackwater_wire::body;
use slackwater_wire::{
    Answered, Asked, Epoch, ErrorCode, ExtentRef, Incarnation, Key, Lookup, Object, OperationId,
    PutStarted, ReplicaAt, Reply, Request, SegmentId, Version, Welcome,
};

const LONG: Duration = Duration::from_secs(20);

/// A server of epoch 5 whose requests `answer` gets, with how many came before.
fn server(answer: impl Fn(&Call<'_>, Asked, u64) + Send + Sync + 'static) -> (Running, Address) {
    server_of(Vec::new(), answer)
}

fn server_of(
    nodes: Vec<Segment>,
    answer: impl Fn(&Call<'_>, Asked, u64) + Send + Sync + 'static,
) -> (Running, Address) {
    let mut builder = Builder::new(Options::default());
    let category = Category {
        access: Access {
            level: Level::Basic,
            ..Access::default()
        },
        ..Category::default()
    };
    let count = AtomicU64::new(0);
    builder.category("pool", category).unwrap();
    builder
        .request_command("pool.hello", move |call| {
            let welcome = Welcome {
                epoch: Epoch(5),
                nodes: nodes.clone(),
                value_bytes_max: 64 << 20,
            };
            call.reply([body::encode(&welcome).unwrap()]).unwrap();
        })
        .unwrap();
    builder
        .request_command("pool.request", move |call| {
            let asked = body::decode(call.part(0).unwrap()).unwrap();
            answer(call, asked, count.fetch_add(1, Ordering::SeqCst));
        })
        .unwrap();
    listen(builder)
}

fn listen(builder: Builder) -> (Running, Address) {
    let running = builder.start().unwrap();
    let options = ListenOptions {
        admission: Admission::Everybody(Level::Admin),
        encrypted: false,
        access: UnixAccess::default(),
    };
    let any = Endpoint::Tcp((Ipv4Addr::LOCALHOST, 0).into());
    let endpoint = running.listen(&any, &options).unwrap();
    (running, Address::of(&endpoint, None))
}

fn connect(address: Address) -> Result<Client, ConnectError> {
    connect_by(false, address)
}

fn connect_by(force_tcp: bool, address: Address) -> Result<Client, ConnectError> {
    Client::connect(&ConnectOptions {
        address,
        force_tcp,
        connect_timeout: LONG,
        deadline: LONG,
        ..ConnectOptions::default()
    })
}

fn reply(call: &Call<'_>, epoch: u64, reply: Reply) {
    reply_with(call, epoch, reply, Vec::new());
}

fn reply_with(call: &Call<'_>, epoch: u64, reply: Reply, capabilities: Vec<Capability>) {
    let answered = Answered {
        epoch: Epoch(epoch),
        reply,
        capabilities,
    };
    call.reply([body::encode(&answered).unwrap()]).unwrap();
}

fn within(deadline: Duration) -> CallOptions {
    CallOptions {
        deadline: Some(deadline),
        ..CallOptions::default()
    }
}

#[test]
fn an_answer_of_an_earlier_master_does_not_count() {
    let (_server, address) = server(|call, _, before| {
        let epoch = if before < 2 { 4 } else { 5 };
        reply(call, epoch, Reply::Exists(vec![epoch == 5]));
    });
    let client = connect(address).unwrap();
    assert_eq!(client.exists(&[b"k"], &within(LONG)), Ok(vec![true]));
    let (_stale, address) = server(|call, _, _| reply(call, 4, Reply::Exists(vec![true])));
    let client = connect(address).unwrap();
    let late = client.exists(&[b"k"], &within(Duration::from_millis(200)));
    let told = late.unwrap_err().to_string();
    assert!(told.contains("earlier epoch"), "{told}");
}

#[test]
fn an_operation_that_was_not_answered_is_repeated_under_its_number() {
    let (told, heard) = channel();
    let (_server, address) = server(move |call, asked, before| {
        told.send((asked.client, asked.operation)).unwrap();
        match before {
            // The handler fails, and the next one is too busy.
            0 => call.refuse(Refusal::Failed).unwrap(),
            1 => call.refuse(Refusal::Busy).unwrap(),
            _ => reply(call, 5, Reply::Exists(vec![true])),
        }
    });
    let client = connect(address).unwrap();
    assert_eq!(client.exists(&[b"k"], &within(LONG)), Ok(vec![true]));
    let asked: Vec<_> = heard.try_iter().collect();
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|one| *one == asked[0]), "{asked:?}");
    assert_eq!(client.exists(&[b"k"], &within(LONG)), Ok(vec![true]));
    assert_ne!(heard.recv().unwrap(), asked[0], "another operation");
}

fn granted() -> Reply {
    let extent = ExtentRef {
        segment: SegmentId(1),
        incarnation: Incarnation(2),
        offset: 0,
        bytes: 4096,
        generation: 3,
    };
    Reply::PutStart(vec![PutStarted::Granted {
        version: Version(7),
        extents: vec![extent],
    }])
}

fn next_revocation(heard: &Receiver<Request>) -> Request {
    let is_revocation =
        |request: &Request| matches!(request, Request::PutRevoke { .. } | Request::Revoke { .. });
    loop {
        let request = heard.recv_timeout(LONG).unwrap();
        if is_revocation(&request) {
            return request;
        }
    }
}

/// A grant without the right to write is none: the put fails, and its room is given back until the server has said that
/// it has it.
#[test]
fn what_is_not_used_is_given_back_until_the_server_has_it() {
    let (told, heard) = channel();
    let (_server, address) = server(move |call, asked, before| {
        told.send(asked.request.clone()).unwrap();
        match asked.request {
            Request::PutStart(_) => reply(call, 5, granted()),
            _ if before < 3 => call.refuse(Refusal::Busy).unwrap(),
            _ => reply(call, 5, Reply::Done),
        }
    });
    let client = connect(address).unwrap();
    let put = client.put(b"k", b"value", &PutOptions::default());
    assert_eq!(put.unwrap_err().code(), ErrorCode::InvalidWrite);
    let revoked = Request::PutRevoke {
        tenant: Default::default(),
        puts: vec![(Key::try_from("k").unwrap(), Version(7))],
    };
    for _ in 0..3 {
        assert_eq!(next_revocation(&heard), revoked);
    }
}

/// Its answer may come after the end of the call, and grants nothing then.
#[test]
fn an_unanswered_put_is_revoked_when_its_caller_gives_up() {
    let (told, heard) = channel();
    let (_server, address) = server(move |call, asked, _| {
        let silent = matches!(asked.request, Request::PutStart(_));
        told.send((asked.operation, asked.request)).unwrap();
        if !silent {
            reply(call, 5, Reply::Done);
        }
    });
    let client = connect(address).unwrap();
    let cancel = Cancel::new();
    let options = PutOptions {
        call: CallOptions {
            cancel: Some(cancel.clone()),
            ..CallOptions::default()
        },
        ..PutOptions::default()
    };
    let writer = std::thread::spawn(move || client.put(b"k", b"value", &options));
    let (operation, _) = heard.recv_timeout(LONG).unwrap();
    cancel.cancel();
    let ended = writer.join().unwrap();
    assert_eq!(ended, Err(ClientError::Cancelled { what: "a put" }));
    let (other, revoked) = heard.recv_timeout(LONG).unwrap();
    assert_eq!(revoked, Request::Revoke { operation });
    assert!(other > operation && other < OperationId(1 << 62));
}

#[test]
fn a_refusal_of_the_server_is_the_error_of_the_call() {
    let (_server, address) = server(|call, _, _| {
        reply(call, 5, Reply::Failed(ErrorCode::TenantNotPermitted));
    });
    let client = connect(address).unwrap();
    let check = |error: ClientError| assert_eq!(error.code(), ErrorCode::TenantNotPermitted);
    check(client.exists(&[b"k"], &within(LONG)).unwrap_err());
    check(client.get(b"k", &GetOptions::default()).unwrap_err());
    check(client.put(b"k", b"v", &PutOptions::default()).unwrap_err());
    check(client.stat(b"k", &within(LONG)).unwrap_err());
    let removed = client.remove(&[b"k"], &Default::default()).remove(0);
    check(removed.unwrap_err());
    let empty = client.get(b"", &GetOptions::default()).unwrap_err();
    assert_eq!(empty.code(), ErrorCode::InvalidKey);
}

#[test]
fn what_answers_and_is_no_server_is_named() {
    let (_other, address) = listen(Builder::new(Options::default()));
    let told = connect(address.clone()).unwrap_err().to_string();
    assert!(
        told.contains("is no server that this release understands"),
        "{told}"
    );
    let mut builder = Builder::new(Options::default());
    builder.category("pool", Category::default()).unwrap();
    let garbled = |call: &Call<'_>| call.reply([[9u8, 9]]).unwrap();
    builder.request_command("pool.hello", garbled).unwrap();
    let (_later, address) = listen(builder);
    let told = connect(address).unwrap_err().to_string();
    assert!(told.contains("format 9"), "{told}");
}

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
        let engine = Engine::start(config).unwrap();
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
            replicas: vec![ReplicaAt::Memory(extent)],
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
    let (told, heard) = channel();
    let (of, byte) = (Arc::clone(node), Arc::clone(byte));
    let nodes = vec![segment];
    let (running, address) = server_of(nodes, move |call, asked, _| {
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
    (running, address, heard)
}

fn asked(heard: &Receiver<Request>) -> Vec<&'static str> {
    let kind = |request: Request| match request {
        Request::Get(_) => "get",
        Request::Reads(_) => "reads",
        Request::Remove(_) => "remove",
        Request::Suspect { .. } => "suspect",
        _ => "other",
    };
    heard.try_iter().map(kind).collect()
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

/// A caller who had little time made the client forget where everything is.
#[test]
fn a_caller_who_is_out_of_time_has_not_learnt_that_a_node_ended() {
    let (node, byte) = (Arc::new(Node::start()), Arc::new(AtomicU64::new(1)));
    let wire = Wire::to(node.engine.segment());
    let (_server, address, heard) = lending_at(&node, wire.segment.clone(), &byte, LONG);
    let client = connect_by(true, address).unwrap();
    let get = |key: &[u8], within: Duration| {
        let call = self::within(within);
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
    assert!(get(b"a", Duration::from_millis(50)).is_err());
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
