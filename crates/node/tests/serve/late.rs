//! What a node does about a master, or a link to it, that is over.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use slackwater_base::{ByteSize, Checksum};
use slackwater_mq::{
    Address, Admission, Builder, Call, Category, ConnectOptions, ConnectionId, Level, LinkEvent,
    ListenOptions, Options, RequestOptions, Run, Running,
};
use slackwater_net::{Endpoint, UnixAccess};
use slackwater_node::Config;
use slackwater_node::pool::{MasterOptions, MasterServer, NodeOptions, NodeServer};
use slackwater_transfer::Capability;
use slackwater_wire::data::Segment as Contact;
use slackwater_wire::{
    AnnounceFirst, Attached, BytesCopied, ChainPlace, CheckWritten, ClientId, CopyBytes, DiskEntry,
    Durability, Epoch, ErrorCode, ExtentRef, Incarnation, Key, Mount, NodeHello, NodeWelcome,
    Order, Orders, Pin, Published, Report, Reports, Tenant, Version, WrittenChecked, body,
};

use super::LONG;

const EPOCH: Epoch = Epoch(5);
const FLOOR: u64 = 1000;

/// A master that attaches nodes as `attach` says of those that it has greeted before, and what it hears of them.
fn master(
    attach: impl Fn(usize) -> Attached + Send + Sync + 'static,
) -> (Running, Endpoint, Receiver<(ConnectionId, NodeHello)>) {
    reading(body::FORMAT, channel().0, attach)
}

/// The same, of one that reads reports up to this format; `reported` is told the bodies of those that come.
fn reading(
    reads: u8,
    reported: Sender<Vec<u8>>,
    attach: impl Fn(usize) -> Attached + Send + Sync + 'static,
) -> (Running, Endpoint, Receiver<(ConnectionId, NodeHello)>) {
    let (greeted, greetings) = channel();
    let mut builder = Builder::new(Options::default());
    let at_once = Category {
        run: Run::Inline,
        ..Category::default()
    };
    builder.category("nodes", at_once).unwrap();
    let before = AtomicUsize::new(0);
    builder
        .request_command("nodes.hello", move |call: &Call<'_>| {
            let hello: NodeHello = body::decode(call.part(0).unwrap()).unwrap();
            let attached = attach(before.fetch_add(1, Ordering::SeqCst));
            let welcome = NodeWelcome {
                epoch: EPOCH,
                attached,
                reads,
            };
            call.reply([body::encode(&welcome).unwrap()]).unwrap();
            greeted.send((call.from(), hello)).unwrap();
        })
        .unwrap();
    builder
        .command("nodes.reports", move |call: &Call<'_>| {
            // Most tests do not look.
            let _ = reported.send(call.part(0).unwrap().to_vec());
        })
        .unwrap();
    let master = builder.start().unwrap();
    let anybody = ListenOptions {
        admission: Admission::Everybody(Level::Admin),
        encrypted: false,
        plain_anywhere: false,
        access: UnixAccess::default(),
        beside: false,
    };
    let loopback = Endpoint::Tcp((Ipv4Addr::LOCALHOST, 0).into());
    let listening = master.listen(&loopback, &anybody).unwrap();
    (master, listening, greetings)
}

/// A node of that master, and when it was welcomed.
fn node(listening: &Endpoint) -> (NodeServer, Receiver<Result<(), ErrorCode>>) {
    node_of(listening, ByteSize::mib(16))
}

fn node_of(
    listening: &Endpoint,
    memory: ByteSize,
) -> (NodeServer, Receiver<Result<(), ErrorCode>>) {
    let config = Config {
        memory,
        ssd: ByteSize(0),
        ..Config::default()
    };
    let options = NodeOptions {
        master: Address::of(listening, None),
        ..NodeOptions::default()
    };
    let (told, welcomed) = channel();
    let node = NodeServer::start(config, options, move |_, result| {
        let _ = told.send(result);
    });
    (node.unwrap(), welcomed)
}

/// A master died with a copy under way. Its question reached the node only when the next one had granted the same memory to
/// a put: the epoch was read by nobody, the books of the arena know no floor, and the copy overwrote what was put.
#[test]
fn a_late_copy_of_an_earlier_master_writes_nothing() {
    let (master, listening, greetings) = master(|_| Attached::New { floor: FLOOR });
    let (node, welcomed) = node(&listening);
    let (link, hello) = greetings.recv_timeout(LONG).unwrap();
    assert_eq!(welcomed.recv_timeout(LONG), Ok(Ok(())));
    let target = |generation: u64| ExtentRef {
        segment: hello.segments[0].segment,
        incarnation: hello.segments[0].incarnation,
        offset: 0,
        bytes: 1 << 16,
        generation,
    };
    let ask = |command: &str, body: Vec<u8>| {
        let options = RequestOptions {
            timeout: Some(LONG),
            ..RequestOptions::default()
        };
        let answer = master
            .handle()
            .request_wait(link, command, [body], &options);
        answer.unwrap().part(0).unwrap().to_vec()
    };
    let check = |epoch: u64, generation: u64, expected: ErrorCode| {
        let copy = CopyBytes {
            epoch: Epoch(epoch),
            contact: Contact {
                name: "nowhere".into(),
                incarnation: Incarnation(9),
                addresses: Vec::new(),
                public_key: None,
                host: None,
            },
            capability: Capability::from_bytes(&[0; Capability::BYTES]),
            offset: 0,
            bytes: 4096,
            checksum: Checksum(1),
            target: target(generation),
        };
        let answer = ask("bytes.copy", body::encode(&copy).unwrap());
        let copied: BytesCopied = body::decode(&answer).unwrap();
        assert_eq!(copied.result, Err(expected), "{epoch} {generation}");
    };
    check(4, FLOOR, ErrorCode::StaleEpoch);
    check(5, FLOOR - 1, ErrorCode::ReplicaIsGone);
    // Of these two that node takes only the last.
    check(5, FLOOR, ErrorCode::TransferFail);
    let written = CheckWritten {
        epoch: Epoch(4),
        written: Vec::new(),
    };
    let answer = ask("bytes.check", body::encode(&written).unwrap());
    let checked: WrittenChecked = body::decode(&answer).unwrap();
    assert_eq!(checked.result, Err(ErrorCode::StaleEpoch));
    node.close().unwrap();
    master.stop();
}

/// The numbers of a node's reports did not fit, so its master said goodbye to the link for the node to make it anew. The node
/// waited for the same link to come back: it was away until it was started again, and every end of a put at it was refused until
/// the put's deadline.
#[test]
fn a_link_that_ends_for_good_is_made_anew() {
    let (master, listening, greetings) = master(|before| match before {
        0 => Attached::New { floor: FLOOR },
        _ => Attached::Resumed { taken: 0 },
    });
    let (node, _welcomed) = node(&listening);
    let messages = master.handle();
    let (mut link, first) = greetings.recv_timeout(LONG).unwrap();
    for round in 0..4 {
        match round {
            0 | 3 => messages.renew(link),
            // The node ends it.
            _ => messages.send(link, "node.orders", ["none"]),
        }
        let (next, hello) = greetings.recv_timeout(LONG).unwrap();
        assert!(hello.welcomed && hello.life == first.life, "{hello:?}");
        assert_ne!(next, link);
        link = next;
        // The end of the earlier link does not end this one.
        for _ in 0..50 {
            let check = CheckWritten {
                epoch: EPOCH,
                written: Vec::new(),
            };
            let body = body::encode(&check).unwrap();
            let options = RequestOptions::default();
            let answer = messages.request_wait(link, "bytes.check", [body], &options);
            let answer = answer.unwrap().part(0).unwrap().to_vec();
            let checked: WrittenChecked = body::decode(&answer).unwrap();
            assert_eq!(checked.result, Ok(()));
        }
        assert!(greetings.try_recv().is_err(), "round {round}");
    }
    node.close().unwrap();
    master.stop();
}

/// The other half of the story: what a master cannot make sense of ends the link, and its opener comes back.
#[test]
fn a_master_that_wants_a_link_anew_says_no_goodbye() {
    let options = MasterOptions {
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        ..MasterOptions::default()
    };
    let master = MasterServer::start(&Config::default(), &options).unwrap();
    let (told, events) = channel();
    let mut builder = Builder::new(Options::default());
    builder.on_link(move |event| told.send(event).unwrap());
    let mq = builder.start().unwrap();
    let to = Address::tcp(master.address());
    let link = mq.connect_wait(&to, &ConnectOptions::default()).unwrap();
    let next = || events.recv_timeout(LONG).unwrap();
    assert!(matches!(next(), LinkEvent::Up { .. }));
    mq.send(link, "nodes.reports", ["none"]);
    let down = next();
    let comes_back = matches!(down, LinkEvent::Down { reconnecting, .. } if reconnecting);
    assert!(comes_back, "{down:?}");
    assert!(matches!(next(), LinkEvent::Up { .. }));
    mq.stop();
}

/// A master was told of a key in its turn only, behind all that filled the window of its node's reports; and whatever it
/// reads, it was told by the names of fields.
#[test]
fn what_a_master_asks_for_comes_next() {
    const EXTENTS: u64 = 24_000;
    let name = |at: u64| Key::new(format!("{at:08}").as_bytes()).unwrap();
    for reads in [body::FORMAT, body::HELD] {
        let (reported, reports) = channel();
        let (master, listening, greetings) = reading(reads, reported, |before| match before {
            0 | 2 => Attached::New { floor: FLOOR },
            _ => Attached::Unknown,
        });
        let (node, _welcomed) = node_of(&listening, ByteSize(EXTENTS * 4096));
        let messages = master.handle();
        let (link, hello) = greetings.recv_timeout(LONG).unwrap();
        let Mount {
            segment,
            incarnation,
            ..
        } = hello.segments[0];
        let extents = 0..EXTENTS;
        let published: Vec<Published> = extents
            .map(|at| Published {
                extent: ExtentRef {
                    segment,
                    incarnation,
                    offset: at * 4096,
                    bytes: 4096,
                    generation: FLOOR + at,
                },
                entry: DiskEntry {
                    tenant: Tenant::DEFAULT,
                    key: name(at),
                    version: Version(1 + at),
                },
                bytes: 4096,
                checksum: Checksum(at),
                writer: ClientId(9),
                pin: Pin::None,
                durability: Durability::Memory,
                group: None,
                chain: ChainPlace::default(),
            })
            .collect();
        let say = |link, taken: u64, first: u64, orders: Vec<Order>| {
            let message = Orders {
                epoch: EPOCH,
                taken,
                first,
                orders,
                asks: false,
            };
            messages.send(link, "node.orders", [body::encode(&message).unwrap()]);
        };
        for (at, part) in published.chunks(1000).enumerate() {
            say(
                link,
                0,
                1 + at as u64,
                vec![Order::Published(part.to_vec())],
            );
        }
        // It carried all of them out when it has answered what came behind them.
        let body = body::encode(&CheckWritten {
            epoch: EPOCH,
            written: Vec::new(),
        });
        let options = RequestOptions::default();
        let answer = messages.request_wait(link, "bytes.check", [body.unwrap()], &options);
        answer.unwrap();
        messages.renew(link);
        let (_, unknown) = greetings.recv_timeout(LONG).unwrap();
        assert!(unknown.welcomed);
        let (link, hello) = greetings.recv_timeout(LONG).unwrap();
        assert!(!hello.welcomed);
        let hear = || loop {
            let body = reports.recv_timeout(LONG).unwrap();
            let message: Reports = body::decode(&body).unwrap();
            let next = message.first + message.reports.len() as u64;
            // It told the first master of nothing that it holds.
            let holds = message
                .reports
                .into_iter()
                .filter_map(|report| match report {
                    Report::Holds { entries, ahead, .. } => Some((entries, ahead)),
                    _ => None,
                });
            let holds: Vec<(Vec<Published>, bool)> = holds.collect();
            if !holds.is_empty() {
                assert_eq!(body[0], reads, "the shortest that the master reads");
                return (holds, next - 1);
            }
        };
        // The window of what is not known to be taken has room for two thirds of it.
        let mut in_order = 0;
        let mut taken = 0;
        while in_order < EXTENTS as usize / 2 {
            let (holds, to) = hear();
            assert!(holds.iter().all(|(_, ahead)| !ahead));
            in_order += holds
                .iter()
                .map(|(entries, _)| entries.len())
                .sum::<usize>();
            taken = to;
        }
        let names = [EXTENTS - 1, EXTENTS, 0].map(|at| (Tenant::DEFAULT, name(at)));
        let asked = AnnounceFirst {
            epoch: EPOCH,
            names: names.into(),
        };
        messages.send(link, "node.announce_first", ["none"]);
        messages.send(link, "node.announce_first", [body::encode(&asked).unwrap()]);
        let ahead = loop {
            say(link, taken, 0, Vec::new());
            let (holds, to) = hear();
            taken = to;
            if let Some((ahead, _)) = holds.iter().find(|(_, ahead)| *ahead) {
                break ahead
                    .iter()
                    .map(|it| it.entry.key.clone())
                    .collect::<Vec<_>>();
            }
            in_order += holds
                .iter()
                .map(|(entries, _)| entries.len())
                .sum::<usize>();
        };
        assert_eq!(ahead, [name(EXTENTS - 1)]);
        assert!(in_order < EXTENTS as usize - 4096, "{in_order}");
        node.close().unwrap();
        master.stop();
    }
}
