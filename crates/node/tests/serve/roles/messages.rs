//! Every message that a process of a pool takes, sent to the master by every role that may not say it.

use std::collections::BTreeSet;
use std::path::Path;

use slackwater_mq::Refusal as Unheard;
use slackwater_transfer::Segment;
use slackwater_wire::data::MacKind;
use slackwater_wire::{
    Attached, MemoryAccess, NodeHello, NodeLeave, NodeLeft, NodeLife, NodeWelcome, Report, Reports,
    Secret,
};

use super::*;

/// What the sender of a message is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// By the message layer.
    Unheard(Unheard),
    Refused(ErrorCode),
    /// It is not answered, and changes nothing.
    Nothing,
}

const ILLEGAL: Told = Told::Refused(ErrorCode::IllegalClient);
const ROLE: Told = Told::Refused(ErrorCode::RoleNotPermitted);
const FORBIDDEN: Told = Told::Unheard(Unheard::Forbidden);
const UNKNOWN: Told = Told::Unheard(Unheard::UnknownCommand);

/// What a client of another tenant and operators are told when they speak for the client of tenant `a` or for a node, and
/// what the key of a node is told on a link on which no node said hello. A new kind of message needs a row here.
const ROWS: [(&str, [Told; 3]); 14] = [
    ("pool.hello", [ILLEGAL, ILLEGAL, FORBIDDEN]),
    ("pool.request", [ILLEGAL, ILLEGAL, FORBIDDEN]),
    ("records.put_end", [ILLEGAL, ILLEGAL, FORBIDDEN]),
    ("records.read", [ILLEGAL, ILLEGAL, FORBIDDEN]),
    ("records.release", [Told::Nothing; 3]),
    ("nodes.hello", [ROLE; 3]),
    ("nodes.leave", [ROLE; 3]),
    ("nodes.reports", [Told::Nothing; 3]),
    // A node takes these on the link that it has opened to its master, and nobody else takes them.
    ("node.orders", [UNKNOWN; 3]),
    ("node.announce_first", [UNKNOWN; 3]),
    ("node.release", [UNKNOWN; 3]),
    ("bytes.check", [UNKNOWN; 3]),
    ("bytes.stage", [UNKNOWN; 3]),
    ("bytes.copy", [UNKNOWN; 3]),
];

/// The names of the messages that the sources of this crate register.
fn registered(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            registered(&path, names);
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for call in [".command(", "request_command(", "request_command_together("] {
            for (_, rest) in text.match_indices(call).map(|(at, _)| text.split_at(at)) {
                let rest = rest[call.len()..].trim_start().strip_prefix('"');
                let name = rest.and_then(|rest| rest.split('"').next());
                let named =
                    "a message is registered by its name in quotes, so that this test finds it";
                names.insert(name.unwrap_or_else(|| panic!("{path:?}: {named}")).into());
            }
        }
    }
}

#[test]
fn every_kind_of_message_has_its_row() {
    let mut names = BTreeSet::new();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    registered(&sources, &mut names);
    let rows: BTreeSet<String> = ROWS.iter().map(|(name, _)| (*name).into()).collect();
    assert_eq!(names, rows);
}

/// A message of this kind that would take something from A, or have its sender pass for A's client or for a node.
fn message(command: &str, held: &Held, node: NodeId, generation: u64) -> Vec<u8> {
    let client = held.link.client;
    let asked = |request| Asked {
        epoch: Epoch(0),
        client,
        operation: OperationId(1 << 20),
        request,
        reads: body::LOOK_UPS,
        trace: None,
    };
    let encoded = match command {
        "pool.hello" => body::encode(&Hello {
            epoch: Epoch(0),
            client,
            host: None,
        }),
        "pool.request" => body::encode(&asked(Request::Remove(Remove {
            tenant: a(),
            keys: vec![named("k")],
            force: true,
        }))),
        "records.put_end" => body::encode(&asked(held.end(a()))),
        "records.read" => body::encode(&held.record()),
        "records.release" | "node.release" => body::encode(&Release {
            client,
            generation,
            node,
            fetched: true,
        }),
        "nodes.hello" => body::encode(&NodeHello {
            epoch: Epoch(0),
            node: NodeId(300),
            life: NodeLife([1, 2]),
            welcomed: false,
            taken: 0,
            segments: vec![Mount {
                segment: SegmentId(600),
                name: "mine".into(),
                node: NodeId(300),
                incarnation: Incarnation(1),
                kind: SegmentKind::Memory,
                bytes: 1 << 20,
                host: String::new(),
                generations: None,
                watermarks: None,
            }],
            memory: MemoryAccess {
                contact: Segment {
                    name: "mine".into(),
                    incarnation: Incarnation(1),
                    addresses: Vec::new(),
                    public_key: None,
                    host: None,
                },
                region: 0,
                secret: Secret([0; 32]),
                clock_nanos: 0,
                macs: MacKind::LATEST.number(),
            },
        }),
        "nodes.leave" => body::encode(&NodeLeave {
            epoch: Epoch(0),
            time: Duration::from_millis(10),
        }),
        "nodes.reports" => body::encode(&Reports {
            epoch: Epoch(0),
            taken: 0,
            first: 1,
            clock_nanos: 0,
            reports: vec![
                Report::Lost(vec![held.entry()]),
                Report::Dropped(vec![held.entry()]),
                Report::Retired(vec![held.extent]),
                Report::Fenced(vec![held.extent]),
            ],
        }),
        // No bytes are wanted of it: nobody is to look at them.
        "node.orders" | "node.announce_first" | "bytes.check" | "bytes.stage" | "bytes.copy" => {
            return Vec::new();
        }
        _ => panic!("what a {command} says"),
    };
    encoded.unwrap()
}

/// Why a message was refused by its handler.
fn refusal(command: &str, answer: &[u8]) -> ErrorCode {
    match command {
        "records.read" => {
            let staged: RecordStaged = body::decode(answer).unwrap();
            staged.result.unwrap_err()
        }
        "nodes.leave" => {
            let left: NodeLeft = body::decode(answer).unwrap();
            left.result.unwrap_err()
        }
        "nodes.hello" => {
            let welcome: NodeWelcome = body::decode(answer).unwrap();
            match welcome.attached {
                Attached::Refused(code) => code,
                other => panic!("{other:?}"),
            }
        }
        _ => {
            let answered: Answered = body::decode(answer).unwrap();
            match answered.reply {
                Reply::Failed(code) => code,
                other => panic!("{command}: {other:?}"),
            }
        }
    }
}

#[test]
fn no_message_is_taken_from_a_role_that_may_not_say_it() {
    let pool = Keyed::start();
    let held = Held::publish(&pool);
    let staged = held.stage();
    let keys = [&pool.of_b, &pool.operator, &pool.node];
    for (command, expected) in ROWS {
        for (keys, expected) in keys.into_iter().zip(expected) {
            let link = pool.link(keys).unwrap();
            // Known by its own name, as a message of a link that is not is refused for that.
            let greeted = link.ask(&Request::Quotas);
            let body = message(command, &held, staged.node, staged.generation);
            let told = match expected {
                Told::Nothing => {
                    link.mq.send(link.to, command, [&body]);
                    // What a link says is heard in its order.
                    assert_eq!(link.ask(&Request::Quotas), greeted);
                    Told::Nothing
                }
                _ => {
                    let options = RequestOptions {
                        timeout: Some(LONG),
                        ..RequestOptions::default()
                    };
                    match link.mq.request_wait(link.to, command, [&body], &options) {
                        Ok(answer) => Told::Refused(refusal(command, answer.part(0).unwrap())),
                        Err(RequestError::Refused(why)) => Told::Unheard(why),
                        Err(other) => panic!("{command}: {other}"),
                    }
                }
            };
            assert_eq!(told, expected, "{command} by {}", keys.public());
        }
        assert_eq!(pool.master.nodes(), 1, "{command}");
        held.check();
        let read = held.way.reads(staged.offset, staged.capability);
        assert_eq!(read, Ok(true), "{command}: it was given back");
    }
    // The client itself gives it back.
    let body = message("records.release", &held, staged.node, staged.generation);
    held.link.mq.send(held.link.to, "records.release", [body]);
    gone(|| {
        let read = held.way.reads(staged.offset, staged.capability);
        read.map(drop)
    });
}
