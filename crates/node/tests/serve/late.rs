//! What a node hears of a master that is over.

use std::net::Ipv4Addr;
use std::sync::mpsc::channel;

use slackwater_base::{ByteSize, Checksum};
use slackwater_mq::{
    Address, Admission, Builder, Call, Category, Level, ListenOptions, Options, RequestOptions, Run,
};
use slackwater_net::{Endpoint, UnixAccess};
use slackwater_node::Config;
use slackwater_node::pool::{NodeOptions, NodeServer};
use slackwater_transfer::Capability;
use slackwater_wire::data::Segment as Contact;
use slackwater_wire::{
    Attached, BytesCopied, CheckWritten, CopyBytes, Epoch, ErrorCode, ExtentRef, Incarnation,
    NodeHello, NodeWelcome, WrittenChecked, body,
};

use super::LONG;

const EPOCH: Epoch = Epoch(5);
const FLOOR: u64 = 1000;

/// A master died with a copy under way. Its question reached the node only when the next one had granted the same memory to
/// a put: the epoch was read by nobody, the books of the arena know no floor, and the copy overwrote what was put.
#[test]
fn a_late_copy_of_an_earlier_master_writes_nothing() {
    let (greeted, greetings) = channel();
    let mut builder = Builder::new(Options::default());
    let at_once = Category {
        run: Run::Inline,
        ..Category::default()
    };
    builder.category("nodes", at_once).unwrap();
    builder
        .request_command("nodes.hello", move |call: &Call<'_>| {
            let hello: NodeHello = body::decode(call.part(0).unwrap()).unwrap();
            let attached = Attached::New { floor: FLOOR };
            let welcome = NodeWelcome {
                epoch: EPOCH,
                attached,
            };
            call.reply([body::encode(&welcome).unwrap()]).unwrap();
            greeted.send((call.from(), hello)).unwrap();
        })
        .unwrap();
    builder.command("nodes.reports", |_: &Call<'_>| {}).unwrap();
    let master = builder.start().unwrap();
    let anybody = ListenOptions {
        admission: Admission::Everybody(Level::Admin),
        encrypted: false,
        plain_anywhere: false,
        access: UnixAccess::default(),
    };
    let loopback = Endpoint::Tcp((Ipv4Addr::LOCALHOST, 0).into());
    let listening = master.listen(&loopback, &anybody).unwrap();
    let config = Config {
        memory: ByteSize::mib(16),
        ssd: ByteSize(0),
        ..Config::default()
    };
    let options = NodeOptions {
        master: Address::of(&listening, None),
        ..NodeOptions::default()
    };
    let (told, welcomed) = channel();
    let node = NodeServer::start(config, options, move |_, result| {
        let _ = told.send(result);
    });
    let node = node.unwrap();
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
