//! KV events of real servers, heard by pyzmq as routers of requests hear them, and decoded by msgspec.

#[path = "../../../../zmtp/tests/common/python.rs"]
mod python;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use slackwater_remote::{CallOptions, PutOptions, RemoveOptions};
use slackwater_wire::{ReplicaAt, SegmentId};

use super::admin::Administered;
use super::pool::Node;
use super::*;
use crate::place::lasting_address;
use python::Python;

/// What a router does: it hears events, follows what is held in which medium, and asks for what it has missed.
const ROUTER: &str = r#"
import msgspec
SHORT = {'BlockStored': '+', 'BlockRemoved': '-', 'AllBlocksCleared': '0', 'stored': '+', 'removed': '-', 'cleared': '0'}
class Router:
    def __init__(self, hears, replays, topic=b''):
        self.last, self.held, self.gaps, self.replays = None, set(), 0, replays
        self.s = sock(zmq.SUB)
        self.s.subscribe(topic)
        self.s.connect(hears)
    def take(self, sequence, body):
        if self.last is not None and sequence <= self.last: return []
        if self.last is not None and sequence != self.last + 1: self.gaps += 1
        self.last = sequence
        told = []
        for event in msgspec.msgpack.decode(body)[1]:
            if isinstance(event, list):
                kind, hashes, medium = event[0], event[1] if len(event) > 1 else [], event[2 if len(event) == 3 else 6] if len(event) > 1 else None
            else:
                kind, hashes, medium = event.get('event_type') or event['type'], event.get('block_hashes', []), event.get('medium')
            for hash in hashes or [None]:
                one = (SHORT[kind], hash, medium)
                told.append(one)
                if one[0] == '+': self.held.add(one[1:])
                elif one[0] == '-': self.held.discard(one[1:])
                else: self.held.clear()
        return told
    def hear(self):
        _, sequence, body = self.s.recv_multipart()
        return self.take(int.from_bytes(sequence, 'big'), body)
    def catch_up(self, begin):
        d = sock(zmq.DEALER)
        d.connect(self.replays)
        d.send_multipart([b'', begin.to_bytes(8, 'big')])
        told = []
        while True:
            _, _, sequence, body = d.recv_multipart()
            if int.from_bytes(sequence, 'big', signed=True) == -1: return told
            told += self.take(int.from_bytes(sequence, 'big'), body)
"#;

fn router(script: &str, arguments: &[&str]) -> Option<Python> {
    Python::start(&format!("{ROUTER}{script}"), arguments)
}

struct Telling {
    administered: Administered,
    events: String,
    replays: String,
}

impl Telling {
    fn start(place: &Place, arguments: &[&str]) -> Self {
        Self::at("127.0.0.1:0", "127.0.0.1:0", place, arguments)
    }

    fn at(events: &str, replays: &str, place: &Place, arguments: &[&str]) -> Self {
        Self::of("serve", [events, replays], place, arguments)
    }

    /// A store or the master of a pool.
    fn of(command: &str, at: [&str; 2], place: &Place, arguments: &[&str]) -> Self {
        let listen = format!("--kv-events={}", at[0]);
        let places = [command, &listen, "--kv-events-replay", at[1]];
        let mut administered = Administered::spawn(place, &[&places, arguments].concat());
        let events = administered.told("KV events at ");
        let replays = administered.told("replays of KV events at ");
        Self {
            administered,
            events,
            replays,
        }
    }

    fn put(&self, client: &Client, key: &str, bytes: usize) {
        let stored = client.put(key.as_bytes(), &value(7, bytes), &PutOptions::default());
        stored.unwrap_or_else(|error| panic!("{key}: {error}"));
    }

    fn counted(&self, name: &str) -> u64 {
        let status = self.administered.json("/kv_events/status");
        assert_eq!(status["enabled"], true);
        status[name].as_u64().unwrap()
    }

    /// Puts and removes a value until the router hears something: from then on it hears everything.
    fn until_heard(&self, client: &Client, router: &mut Python) {
        let heard = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !heard.load(Ordering::SeqCst) {
                    self.put(client, "4242", 10);
                    remove(client, "4242");
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let said = catch_unwind(AssertUnwindSafe(|| router.line()));
            // Also where it said nothing: the other thread goes on until then.
            heard.store(true, Ordering::SeqCst);
            assert_eq!(said.ok().as_deref(), Some("heard"));
        });
    }
}

fn remove(client: &Client, key: &str) {
    let removed = client.remove(&[key.as_bytes()], &RemoveOptions::default());
    assert_eq!(removed, [Ok(())]);
}

/// In every form a router knows, from events alone, what the store holds after puts, removals, evictions and offloads.
#[test]
fn a_router_knows_what_is_held() {
    let script = r#"
router = Router(sys.argv[1], sys.argv[2], sys.argv[3].encode())
router.hear()
say('heard')
while not any(one[:2] == ('+', 999) for one in router.hear()): pass
say('here')
sys.stdin.readline()
router.catch_up(router.last + 1)
held = sorted(hash for hash, medium in router.held if medium == 'cpu' and hash not in (None, 4242))
say(router.gaps, *held)
say(router.last > 1 << 61)
say(*sorted({str(medium) for _, medium in router.held}))
"#;
    for (dialect, media) in [
        ("map", "STORAGE cpu"),
        ("legacy-array", "STORAGE cpu"),
        ("rfc1527", "cpu disk"),
    ] {
        let place = Place::new();
        // Its clock was ahead in its last life.
        std::fs::create_dir(place.path("store")).unwrap();
        let last = 1_u64 << 41;
        std::fs::write(place.path("store/epoch"), format!("{last}\n")).unwrap();
        let arguments = [
            "--memory",
            "4MiB",
            "--ssd",
            "64MiB",
            "--dir",
            "store",
            "--offload",
            "eager",
            "--kv-events-dialect",
            dialect,
            "--kv-events-topic",
            "kv@pod",
        ];
        let server = Telling::start(&place, &arguments);
        let arguments = [&*server.events, &server.replays, "kv@"];
        let Some(mut router) = router(script, &arguments) else {
            return;
        };
        let client = server.administered.served.connect();
        server.until_heard(&client, &mut router);
        for key in 0..40 {
            server.put(&client, &key.to_string(), 256 << 10);
        }
        remove(&client, "39");
        server.put(&client, "no hash in it", 100);
        // What is offloaded and evicted is told by the time that nothing is under way any more.
        let stats = || server.administered.json("/api/v1/stats");
        until("all is on SSD", || stats()["ssd"]["records"] == 40);
        server.put(&client, "999", 100);
        assert_eq!(router.line(), "here");
        router.go_on();
        let told = router.line();
        let mut told = told.split(' ');
        assert_eq!(told.next(), Some("0"), "{dialect}: gaps");
        let told: Vec<String> = told.map(str::to_owned).collect();
        let keys = (0..40).chain([999]).map(|key| key.to_string());
        let held = keys.filter(|key| is_in_memory(&server, key));
        let mut held: Vec<String> = held.collect();
        held.sort_by_key(|key| key.parse::<u64>().unwrap());
        assert_eq!(told, held, "{dialect}");
        assert!(told.len() < 20, "{dialect}: nothing was evicted");
        assert!(!told.contains(&"39".to_owned()));
        assert_eq!(router.line(), "True", "numbered from the epoch on");
        assert_eq!(router.line(), media);
        let unparsed = server.counted("skipped_unparsed_keys");
        assert_eq!(unparsed > 0, dialect != "rfc1527", "{dialect}: {unparsed}");
        assert_eq!(server.counted("dropped_events"), 0);
        assert!(server.counted("published_events") >= server.counted("published_batches"));
        let (_, metrics) = server.administered.ask("GET", "/metrics", "");
        assert!(metrics.contains("slackwater_kv_event_batches_total "));
    }
}

fn is_in_memory(server: &Telling, key: &str) -> bool {
    let path = format!("/batch_query_keys?keys={key}");
    let found = server.administered.json(&path);
    let memory = &found["data"][key]["values"];
    memory.as_array().is_some_and(|values| !values.is_empty())
}

/// Who comes late, or was away while the server was started again, sees by the numbers that there is more to ask for.
#[test]
fn who_missed_events_sees_the_gap_and_asks_for_them() {
    let script = r#"
def short(told): return ' '.join(f'{kind}{hash}' if hash is not None else kind for kind, hash, _ in told if hash != 4242)
late = Router(sys.argv[1], sys.argv[2])
say(short(late.catch_up(0)))
router = Router(sys.argv[1], sys.argv[2])
router.hear()
say('heard')
while not any(one[:2] == ('+', 5) for one in router.hear()): pass
say('gaps', router.gaps)
late.gaps = 0
told = late.catch_up(late.last + 1)
say(short(told))
say('gaps', late.gaps)
last = router.last
router.hear()
say('heard')
say('gaps', router.gaps, router.last > last + 1)
again = Router(sys.argv[1], sys.argv[2])
say(short(again.catch_up(last + 1)))
"#;
    let place = Place::new();
    let [events, replays] = [(); 2].map(|()| lasting_address());
    let server = Telling::at(&events, &replays, &place, &["--memory", "16MiB"]);
    let client = server.administered.served.connect();
    for key in ["1", "0x10", "3"] {
        server.put(&client, key, 100);
    }
    remove(&client, "3");
    until("events are published", || {
        server.counted("published_events") == 5
    });
    let arguments = [&*server.events, &server.replays];
    let Some(mut router) = router(script, &arguments) else {
        return;
    };
    assert_eq!(router.line(), "0 +1 +16 +3 -3");
    server.until_heard(&client, &mut router);
    server.put(&client, "5", 100);
    assert_eq!(router.line(), "gaps 0");
    assert_eq!(router.line(), "+5", "only what was missed");
    assert_eq!(router.line(), "gaps 0");
    drop(client);
    drop(server);
    let server = Telling::at(&events, &replays, &place, &["--memory", "16MiB"]);
    let client = server.administered.served.connect();
    server.put(&client, "6", 100);
    server.until_heard(&client, &mut router);
    assert_eq!(router.line(), "gaps 1 True");
    assert!(router.line().starts_with("0 +6"), "all of the new life");
}

/// What a script knows to be held, which it compares with each line of numbers that it is given once it knows of the last of
/// them.
const COMPARED: &str = r#"
def held(): return {hash for hash, medium in router.held if hash != 4242}
def compare(hear):
    for line in sys.stdin:
        if line == 'gap\n':
            gaps, told = router.gaps, []
            while router.gaps == gaps: told = hear()
            say('heard')
            say('told', told[0][0])
            continue
        wanted = set(map(int, line.split()))
        try:
            while held() != wanted: hear()
            say('same')
        except zmq.Again: say('held:', *sorted(held() - wanted), 'missing:', *sorted(wanted - held()))
"#;

/// Gives a script the numbers that are held, and waits until it knows of these and no others.
fn compare(router: &mut Python, held: impl IntoIterator<Item = u64>) {
    assert_eq!(compared(router, held), "same");
}

/// What a script says to these numbers.
fn compared(router: &mut Python, held: impl IntoIterator<Item = u64>) -> String {
    let held: Vec<String> = held.into_iter().map(|name| name.to_string()).collect();
    router.tell(&held.join(" "));
    router.line()
}

/// Events that come faster than they are published are dropped, and every subscriber sees that. They knew of nothing then that
/// was not stored again.
#[test]
fn behind_what_is_dropped_everything_is_told_anew() {
    let script = r#"
router = Router(sys.argv[1], sys.argv[2])
router.hear()
say('heard')
compare(router.hear)
"#;
    let place = Place::new();
    let arguments = ["--memory", "64MiB", "--kv-events-queue", "8"];
    let server = Telling::start(&place, &arguments);
    let arguments = [&*server.events, &server.replays];
    let Some(mut router) = router(&format!("{COMPARED}{script}"), &arguments) else {
        return;
    };
    let client = server.administered.served.connect();
    server.until_heard(&client, &mut router);
    for key in (0..600).chain(1_000..1_100) {
        server.put(&client, &key.to_string(), 100);
    }
    compare(&mut router, (0..600).chain(1_000..1_100));
    let dropped = server.counted("dropped_events");
    let force = RemoveOptions {
        force: true,
        ..RemoveOptions::default()
    };
    // In one step of the master, for which the queue has no room.
    assert_eq!(client.remove_matching("^1...$", &force), Ok(100));
    compare(&mut router, 0..600);
    assert!(server.counted("dropped_events") >= dropped + 100);
    server.put(&client, "600", 100);
    remove(&client, "0");
    compare(&mut router, 1..601);
    assert_eq!(client.remove_all(&force), Ok(600));
    compare(&mut router, []);
    server.put(&client, "7", 100);
    compare(&mut router, [7]);
}

/// A subscriber that takes nothing for a while misses what does not fit its link. It sees that by the numbers, and has it
/// when it asks.
#[test]
fn a_slow_subscriber_asks_for_what_it_has_missed() {
    let script = r#"
router = Router(sys.argv[1], sys.argv[2])
router.s.close(0)
router.s = sock(zmq.SUB, rcvhwm=1, rcvbuf=4096)
router.s.subscribe(b'')
router.s.connect(sys.argv[1])
router.hear()
say('heard')
sys.stdin.readline()
missed = 0
while not missed or 999999 not in {hash for hash, _ in router.held}:
    _, sequence, body = router.s.recv_multipart()
    sequence, last = int.from_bytes(sequence, 'big'), router.last
    missed += sequence - last - 1
    if sequence > last + 1: router.catch_up(last + 1)
    router.take(sequence, body)
say('heard')
say(router.gaps, missed > 0, len({hash for hash, _ in router.held if hash != 4242}))
"#;
    let place = Place::new();
    let arguments = ["--memory", "128MiB", "--kv-events-dialect", "rfc1527"];
    let server = Telling::start(&place, &arguments);
    let arguments = [&*server.events, &server.replays];
    let Some(mut router) = router(script, &arguments) else {
        return;
    };
    let client = server.administered.served.connect();
    server.until_heard(&client, &mut router);
    // Events name the key: these are more than a link and the sockets below it keep.
    let model = "m".repeat(1_000);
    let keys: Vec<String> = (100_000..116_000)
        .map(|name| format!("{model}@0@0@{name:x}"))
        .collect();
    for keys in keys.chunks(250) {
        let pairs: Vec<(&[u8], &[u8])> = keys
            .iter()
            .map(|key| (key.as_bytes(), &b"value"[..]))
            .collect();
        let stored = client.put_batch(&pairs, &PutOptions::default());
        assert!(stored.iter().all(Result::is_ok));
    }
    server.put(&client, "999999", 100);
    assert_eq!(server.counted("dropped_events"), 0);
    router.go_on();
    server.until_heard(&client, &mut router);
    assert_eq!(router.line(), "0 True 16001", "it knows all");
}

/// A router that begins when most is kept no more asked for it, got nothing, and never knew what had been stored before.
#[test]
fn a_router_that_comes_late_is_told_what_is_held() {
    let script = r#"
router = Router(sys.argv[1], sys.argv[2])
router.hear()
say('heard')
router.catch_up(0)
compare(router.hear)
"#;
    let place = Place::new();
    let kept = ["--memory", "16MiB", "--kv-events-replay-messages", "4"];
    let server = Telling::start(&place, &kept);
    let client = server.administered.served.connect();
    for key in 0..300 {
        server.put(&client, &key.to_string(), 100);
    }
    remove(&client, "7");
    let arguments = [&*server.events, &server.replays];
    let Some(mut router) = router(&format!("{COMPARED}{script}"), &arguments) else {
        return;
    };
    server.until_heard(&client, &mut router);
    compare(&mut router, (0..300).filter(|key| *key != 7));
}

/// Keys of values are told to those alone who may connect, unless it is said that everybody may know them.
#[test]
fn only_those_who_may_connect_are_told() {
    let place = Place::new();
    let refused = |arguments: &[&str]| {
        let serve = ["serve", "--listen", "127.0.0.1:0", "--memory", "16MiB"];
        let refused = place.run(&[&serve, arguments].concat());
        assert!(!refused.status.success());
        stderr(&refused)
    };
    let why = refused(&["--kv-events=tcp://*:0"]);
    assert!(why.contains("--kv-events-open"), "{why}");
    let why = refused(&["--kv-events", "--kv-events-replay=0.0.0.0:0"]);
    assert!(why.contains("0.0.0.0:0 can be read"), "{why}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let replay = format!("--kv-events-replay={taken}");
    let why = refused(&["--kv-events=127.0.0.1:0", &replay]);
    assert!(
        why.contains("cannot tell KV events") && why.contains(&taken),
        "{why}"
    );
    let why = refused(&["--kv-events-open", "--staging=1"]);
    assert!(
        why.contains("--kv-events-open") && why.contains("no effect"),
        "{why}"
    );

    let script = r#"
server, *keys = sys.argv[3:]
def hears(address, key):
    s = sock(zmq.SUB, rcvtimeo=1500)
    if key:
        public, secret = key.split(',')
        s.curve_serverkey, s.curve_publickey, s.curve_secretkey = map(bytes.fromhex, (server, public, secret))
    s.subscribe(b'')
    s.connect(address)
    return s
others = [hears(sys.argv[1], key) for key in ['', *keys]]
client, everybody = others.pop(1), hears(sys.argv[2], '')
say('connected')
for s in (client, everybody):
    s.rcvtimeo = 20000
    for _ in range(3): s.recv_multipart()
    say('told')
# There is more to hear all the while.
for s in others:
    try: s.recv_multipart(); say('told')
    except zmq.Again: say('not told')
"#;
    let public = make_key(&place, "server", "");
    let key = |name: &str, words: &str| {
        let public = make_key(&place, name, words);
        format!("{public},{}", secret(&place, name))
    };
    let keys = [
        key("anna", "basic"),
        key("bert", "basic tenants=acme"),
        key("node", "node"),
        key("mallory", ""),
    ];
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let files = [&KEYED, &["--memory", "16MiB"][..]].concat();
    let closed = Telling::start(&place, &files);
    let open = Telling::start(&place, &[&files[..], &["--kv-events-open"]].concat());
    let places = [&*closed.events, &open.events, &public];
    let Some(mut python) = Python::start(script, &[&places, &keys[..]].concat()) else {
        return;
    };
    assert_eq!(python.line(), "connected");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                for server in [&closed, &open] {
                    let put = ["put", "77", "-", "--upsert", "--key-file", "anna"];
                    let put = server.administered.served.run(&place, &put, b"v");
                    assert!(put.status.success(), "{}", stderr(&put));
                }
            }
        });
        let heard = catch_unwind(AssertUnwindSafe(|| {
            assert_eq!(python.line(), "told", "a client");
            assert_eq!(python.line(), "told", "everybody, where that is said");
            assert_eq!(python.line(), "not told", "without a key");
            assert_eq!(python.line(), "not told", "a client of one tenant");
            assert_eq!(python.line(), "not told", "a node");
            assert_eq!(python.line(), "not told", "a key that is not listed");
        }));
        over.store(true, Ordering::SeqCst);
        heard.unwrap_or_else(|panic| resume_unwind(panic));
    });
}

/// What was said to be open could be listened on for this machine alone.
#[test]
fn everybody_hears_what_is_open_at_every_address() {
    let script = r#"
places = ['tcp://127.0.0.1:' + address.rsplit(':', 1)[1] for address in sys.argv[1:3]]
router = Router(*places)
router.hear()
say('heard')
say(len(Router(*places).catch_up(0)) > 0)
"#;
    let place = Place::new();
    let arguments = ["--memory", "16MiB", "--kv-events-open"];
    let server = Telling::at("tcp://*:0", "tcp://*:0", &place, &arguments);
    assert!(
        server.events.starts_with("tcp://0.0.0.0:"),
        "{}",
        server.events
    );
    let Some(mut router) = router(script, &[&server.events, &server.replays]) else {
        return;
    };
    let client = server.administered.served.connect();
    server.until_heard(&client, &mut router);
    assert_eq!(router.line(), "True", "replays too");
}

/// A peer of which nothing is known could have the server keep long messages, on each of thousands of links.
#[test]
fn little_is_kept_for_unauthenticated_peers() {
    let script = r#"
import socket
from zmq.utils.monitor import recv_monitor_message
d = sock(zmq.DEALER)
m = d.get_monitor_socket(); m.rcvtimeo = 20000
def until(event):
    while recv_monitor_message(m)['event'] != event: pass
d.connect(sys.argv[2])
until(zmq.EVENT_HANDSHAKE_SUCCEEDED)
d.send_multipart([b'', b'x' * 5000])
until(zmq.EVENT_DISCONNECTED)
say('dropped')
d.close(0)
host, port = sys.argv[1].removeprefix('tcp://').split(':')
GREETING = b'\xff' + bytes(8) + b'\x7f\x03\x01NULL' + bytes(16 + 32)
READY = b'\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB'
def link(number):
    # An address has few links that have not said who they are.
    s = socket.create_connection((host, int(port)), 20, ('127.0.0.%d' % (2 + number // 50), 0))
    s.sendall(GREETING + READY)
    return s
def stands(s):
    got = b''
    while b'READY' not in got:
        more = s.recv(100)
        assert more, got
        got += more
links = [link(number) for number in range(512)]
for s in links: stands(s)
say('full')
more = link(600)
more.settimeout(0.5)
try: say('got', more.recv(1))
except TimeoutError: say('waits')
links.pop().close()
more.settimeout(20)
stands(more)
say('stands')
"#;
    let place = Place::new();
    let server = Telling::start(&place, &["--memory", "16MiB"]);
    let Some(mut python) = Python::start(script, &[&server.events, &server.replays]) else {
        return;
    };
    for expected in ["dropped", "full", "waits", "stands"] {
        assert_eq!(python.line(), expected);
    }
}

/// A key that is taken from the list reads no more, and without one nothing is answered.
#[test]
fn a_key_that_is_taken_away_hears_no_more() {
    let script = r#"
from zmq.utils.monitor import recv_monitor_message
server, public, secret = map(bytes.fromhex, sys.argv[3:])
def keyed(kind):
    s = sock(kind)
    s.curve_serverkey, s.curve_publickey, s.curve_secretkey = server, public, secret
    return s
d = sock(zmq.DEALER, rcvtimeo=1500)
d.connect(sys.argv[2])
d.send_multipart([b'', bytes(8)])
try: say('told', d.recv_multipart())
except zmq.Again: say('not told')
d = keyed(zmq.DEALER)
d.connect(sys.argv[2])
d.send_multipart([b'', bytes(8)])
say('told', d.recv_multipart()[2] != b'')
s = keyed(zmq.SUB)
m = s.get_monitor_socket(); m.rcvtimeo = 20000
s.subscribe(b'')
s.connect(sys.argv[1])
s.recv_multipart()
say('heard')
for event in (zmq.EVENT_DISCONNECTED, zmq.EVENT_HANDSHAKE_FAILED_AUTH):
    while recv_monitor_message(m)['event'] != event: pass
    say(event.name)
"#;
    let place = Place::new();
    let server_key = make_key(&place, "server", "");
    make_key(&place, "root", "admin");
    let list = std::fs::read_to_string(place.path("list")).unwrap();
    let public = make_key(&place, "anna", "basic");
    let secret = secret(&place, "anna");
    let files = [&KEYED, &["--memory", "16MiB"][..]].concat();
    let server = Telling::start(&place, &files);
    let arguments = [
        &*server.events,
        &server.replays,
        &server_key,
        &public,
        &secret,
    ];
    let Some(mut python) = Python::start(script, &arguments) else {
        return;
    };
    assert_eq!(python.line(), "not told");
    assert_eq!(python.line(), "told True");
    let address = &server.administered.served.address;
    let client = connect_with_key(address, place.path("root"), PATIENCE).unwrap();
    server.until_heard(&client, &mut python);
    std::fs::write(place.path("list"), list).unwrap();
    server.administered.served.signal(Signal::HUP);
    assert_eq!(python.line(), "DISCONNECTED");
    assert_eq!(python.line(), "HANDSHAKE_FAILED_AUTH");
}

/// The secret half of a key.
fn secret(place: &Place, name: &str) -> String {
    let file = std::fs::read_to_string(place.path(name)).unwrap();
    let secret = file.split_whitespace().rfind(|word| word.len() == 64);
    secret.unwrap().to_owned()
}

/// A router hears of a pool by keys: what its nodes hold is told through evictions, the death of a node, and that of the master.
#[test]
fn a_router_follows_a_pool() {
    let script = r#"
plain = sock
server, public, secret = map(bytes.fromhex, sys.argv[3:])
def sock(kind, **opts):
    s = plain(kind, **opts)
    s.curve_serverkey, s.curve_publickey, s.curve_secretkey = server, public, secret
    return s
router = Router(sys.argv[1], sys.argv[2])
def hear():
    _, sequence, body = router.s.recv_multipart()
    sequence, last = int.from_bytes(sequence, 'big'), router.last or 0
    told = router.catch_up(last + 1) if sequence > last + 1 else []
    return told + router.take(sequence, body)
hear()
say('heard')
compare(hear)
"#;
    let place = Place::new();
    let server_key = make_key(&place, "server", "");
    let public = make_key(&place, "root", "admin");
    let secret = secret(&place, "root");
    make_key(&place, "one", "node");
    make_key(&place, "two", "node");
    let files = [&KEYED, &["--directory", "master"][..]].concat();
    let [listen, events, replays] = [(); 3].map(|()| lasting_address());
    let files = [&files[..], &["--listen", &listen]].concat();
    let master = Telling::of("master", [&events, &replays], &place, &files);
    let arguments = [
        &*master.events,
        &master.replays,
        &server_key,
        &public,
        &secret,
    ];
    let Some(mut router) = router(&format!("{COMPARED}{script}"), &arguments) else {
        return;
    };
    let address = master.administered.served.address.clone();
    let node = |key: &str| {
        let sizes = ["--memory", "4MiB", "--key-file", key, "--allow", "list"];
        Node::start(&place, &address, &sizes)
    };
    let _one = node("one");
    let client = connect_with_key(&address, place.path("root"), PATIENCE).unwrap();
    let put = |name: u64, bytes: usize| {
        let (key, bytes) = (name.to_string(), value(7, bytes));
        until("there is room", || {
            let stored = client.put(key.as_bytes(), &bytes, &PutOptions::default());
            stored.is_ok()
        });
    };
    put(1000, 100);
    let one = segment_of(&client, 1000).unwrap();
    let two = node("two");
    master.until_heard(&client, &mut router);
    (0..60).for_each(|name| put(name, 256 << 10));
    (1001..1003).for_each(|name| put(name, 100));
    let force = RemoveOptions {
        force: true,
        ..RemoveOptions::default()
    };
    // It may have been evicted already.
    let _ = client.remove(&[b"1002"], &force);
    let look = || -> BTreeMap<u64, SegmentId> {
        let names = (0..60).chain(1000..1003);
        let found = names.filter_map(|name| Some((name, segment_of(&client, name)?)));
        found.collect()
    };
    let mut places = look();
    until("nothing is evicted any more", || {
        let before = std::mem::replace(&mut places, look());
        before == places
    });
    // Something may be evicted after all, from one look to the next.
    until("the router knows what is held", || {
        places = look();
        compared(&mut router, places.keys().copied()) == "same"
    });
    assert!(places.len() < 60 && !places.contains_key(&1002));
    two.kill();
    let on_one = places.iter().filter(|(_, at)| **at == one);
    let of_one: BTreeSet<u64> = on_one.map(|(name, _)| *name).collect();
    assert!(!of_one.is_empty() && of_one.len() < places.len());
    compare(&mut router, of_one.iter().copied());
    // The master is killed, and another begins at its addresses.
    drop(master);
    let master = Telling::of("master", [&events, &replays], &place, &files);
    let known = of_one.first().unwrap().to_string();
    until("the node has said what it holds", || {
        let there = client.exists(&[known.as_bytes()], &CallOptions::default());
        there == Ok(vec![true])
    });
    put(1003, 100);
    router.tell("gap");
    master.until_heard(&client, &mut router);
    assert_eq!(router.line(), "told 0", "nothing is held in a new life");
    compare(&mut router, of_one.into_iter().chain([1003]));
}

/// The segment of the only replica of a value that can be read.
fn segment_of(client: &Client, name: u64) -> Option<SegmentId> {
    let found = client.stat(name.to_string().as_bytes(), &CallOptions::default());
    let found = found.unwrap()?;
    let ReplicaAt::Memory(extent) = &found.replicas.first()?.0 else {
        panic!("the pool has no SSD");
    };
    Some(extent.segment)
}
