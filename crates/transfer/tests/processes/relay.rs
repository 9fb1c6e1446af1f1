//! A process between two others, which passes on what they say to each other.

use std::io::{BufRead, BufReader, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind,
    connect, listen, recvmsg, sendmsg, socket_with,
};
use slackwater_transfer::host::{HostLimits, HostMover};
use slackwater_transfer::{
    AllowList, Engine, GrantSpec, Home, HostContact, Level, Memory, Mover, Op, RegionSpec, Rights,
    SealConfig, Segment, Target, holder_of,
};
use slackwater_wire::Incarnation;
use slackwater_zmtp::{KeyPair, SecretKey};

use crate::world::{End, anonymous, request, submit};

const OWNER: &str = "SLACKWATER_TRANSFER_TEST_OWNER";
const DESCRIPTORS: usize = 64;

/// An engine with the host mover alone, and memory that it shares.
struct Party {
    engine: Engine,
    host: Arc<HostMover>,
    key: Option<KeyPair>,
}

impl Party {
    /// With a key, one that lets its neighbour map memory.
    fn new(key: Option<u8>, neighbour: u8) -> Self {
        let pair = |byte| KeyPair::of(SecretKey::from_bytes([byte; 32]));
        let seal = key.map(|own| SealConfig {
            keys: pair(own),
            clients: AllowList::of([(pair(neighbour).public(), Level::Admin)]),
        });
        let key = seal.as_ref().map(|seal| seal.keys.clone());
        let life = Home::open().unwrap();
        let host = HostMover::with_keys(&life, HostLimits::default(), seal, None).unwrap();
        let host = Arc::new(host);
        let segment = Segment {
            name: "party".to_owned(),
            incarnation: life.incarnation(),
            addresses: Vec::new(),
            public_key: key.as_ref().map(|key| *key.public().as_bytes()),
            host: Some(host.contact()),
        };
        let movers: Vec<Arc<dyn Mover>> = vec![host.clone()];
        Self {
            engine: Engine::assemble(life, segment, movers),
            host,
            key,
        }
    }

    fn segment_at(&self, socket: &str) -> Segment {
        Segment {
            host: Some(HostContact {
                socket: socket.to_owned(),
                ..self.host.contact()
            }),
            ..self.engine.segment().clone()
        }
    }
}

/// A process that listens where another is taken to, and its socket.
fn relay_to(owner: &str) -> (Child, String, BufReader<std::process::ChildStdout>) {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "relay::be_a_relay",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(OWNER, owner)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap());
    let socket = told(&mut lines);
    (process, socket, lines)
}

/// The next line that a relay says of itself.
fn told(lines: &mut impl BufRead) -> String {
    loop {
        let mut line = String::new();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "the relay goes on");
        if let Some((_, told)) = line.split_once("relay: ") {
            return told.trim().to_owned();
        }
    }
}

/// Between two processes with keys a third one could pass on what they say, open nothing of it, and keep the descriptors
/// of memory that come along: records are sealed, descriptors are not. So the handshake names the processes at both ends.
#[test]
fn a_process_in_between_gets_no_memory_from_those_with_keys() {
    let through = |keys: [Option<u8>; 2]| {
        let (near, far) = (Party::new(keys[0], 2), Party::new(keys[1], 1));
        let memory = Memory::shared(4096).unwrap();
        let (rights, gate) = (Rights::BOTH, None);
        let there = far.engine.register(RegionSpec {
            memory,
            rights,
            gate,
        });
        let there = there.unwrap();
        let spec = GrantSpec {
            holder: (near.key.as_ref()).map_or(Incarnation(0), |key| holder_of(&key.public())),
            ..GrantSpec::whole(&there, Rights::READ)
        };
        let (mut process, socket, mut lines) = relay_to(&far.host.contact().socket);
        let [read, passed] = [Some(socket), None].map(|socket| {
            let own = far.host.contact().socket;
            let segment = far.segment_at(socket.as_deref().unwrap_or(&own));
            let near = Party::new(keys[0], 2);
            let end = End {
                engine: near.engine,
                make: anonymous,
            };
            let here = end.field(4096);
            let target = Target {
                peer: end.engine.open(segment),
                offset: 0,
                capability: far.engine.grant(there.id(), &spec).unwrap(),
                key: None,
            };
            let read = request(Op::Read, vec![here.range(0, 4096)], target);
            end.engine.transfer(vec![read], &submit()).is_ok()
        });
        let descriptors: usize = told(&mut lines).parse().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
        ((read, passed), descriptors)
    };
    // What it can do where nobody proves a key: the page of the link and the memory pass through its hands.
    assert_eq!(through([None, None]), ((true, true), 2));
    assert_eq!(through([Some(1), Some(2)]), ((false, true), 0));
}

/// Not a test: what the process in between runs.
#[test]
#[ignore = "run by a test as another process"]
#[expect(clippy::print_stdout, reason = "the pipe to the parent")]
fn be_a_relay() {
    let Ok(owner) = std::env::var(OWNER) else {
        return;
    };
    let socket = || {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
        socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None).unwrap()
    };
    let at = |name: &str| SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let name = format!("slackwater-relay-{}", std::process::id());
    let listener = socket();
    bind(&listener, &at(&name)).unwrap();
    listen(&listener, 1).unwrap();
    println!("relay: {name}");
    let (near, far) = (accept(&listener).unwrap(), socket());
    connect(&far, &at(&owner)).unwrap();
    let mut passed = 0;
    loop {
        let mut ready = [
            PollFd::new(&near, PollFlags::IN),
            PollFd::new(&far, PollFlags::IN),
        ];
        poll(&mut ready, None).unwrap();
        let [from_near, from_far] = ready.map(|one| !one.revents().is_empty());
        let one = |is: bool, from: &OwnedFd, to: &OwnedFd| match is {
            true => pass_on(from, to),
            false => Some(0),
        };
        let both = [one(from_near, &near, &far), one(from_far, &far, &near)];
        match both {
            [Some(there), Some(back)] => passed += there + back,
            _ => break,
        }
    }
    println!("relay: {passed}");
}

/// Passes one packet on with its descriptors; says how many, none at the end.
fn pass_on(from: &OwnedFd, to: &OwnedFd) -> Option<usize> {
    let mut buffer = vec![0; 128 << 10];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let into = &mut [IoSliceMut::new(&mut buffer)];
    let bytes = recvmsg(from, into, &mut control, RecvFlags::empty())
        .ok()?
        .bytes;
    let kept: Vec<OwnedFd> = control
        .drain()
        .filter_map(|part| match part {
            RecvAncillaryMessage::ScmRights(passed) => Some(passed),
            _ => None,
        })
        .flatten()
        .collect();
    if bytes == 0 {
        return None;
    }
    let lent: Vec<_> = kept.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !lent.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&lent)));
    }
    let parts = [IoSlice::new(&buffer[..bytes])];
    sendmsg(to, &parts, &mut control, SendFlags::NOSIGNAL).ok()?;
    Some(kept.len())
}
