//! The message layer against libzmq, through pyzmq, on loopback: raw frames as OxenMQ peers and KV-event consumers
//! send them.

mod common;
#[path = "../../zmtp/tests/common/python.rs"]
mod python;

use common::*;
use python::Python;
use slackwater_mq::*;
use slackwater_net::Endpoint;

/// How a script makes one of its sockets an encrypted client.
const CURVE: &str = r#"
def curve(s, server):
    p, k = zmq.curve_keypair()
    s.curve_serverkey = server.encode(); s.curve_publickey = p; s.curve_secretkey = k
"#;

fn start(script: &str, arguments: &[&str]) -> Option<Python> {
    Python::start(&format!("{CURVE}{script}"), arguments)
}

fn port(address: &Address) -> String {
    match &address.place {
        Place::Tcp { port, .. } => port.to_string(),
        Place::Ipc(_) => panic!("a TCP address"),
    }
}

#[test]
fn their_dealer_calls_us_with_upstream_s_frames() {
    let script = r#"
s = sock(zmq.DEALER, heartbeat_ivl=100, heartbeat_timeout=5000)
if sys.argv[2]: curve(s, sys.argv[2])
s.connect('tcp://127.0.0.1:' + sys.argv[1])
def ask(*frames):
    s.send_multipart(frames)
    say(s.recv_multipart())
tag = b't' * 15
ask(b'HI')
ask(b'test.echo', tag, b'a', b'', b'b')
ask(b'test.echo', b'short tag', b'a')
ask(b'no.such', tag, b'a')
ask(b'no.such', b'a')
ask(b'nodot')
ask(b'admin.echo', tag)
ask(b'test.echo')
ask(b'test.panic', tag)
s.send_multipart([b'FORBIDDEN', b'REPLY', tag])
s.send_multipart([b'UNKNOWNCOMMAND'])
s.send_multipart([b'BYE'])
ask(b'test.echo', tag, b'x' * 500000)
"#;
    for encrypted in [false, true] {
        let server = server_builder(options(1)).start().unwrap();
        let address = listen(&server, &everybody(encrypted));
        let key = if encrypted {
            server.public_key().to_z85()
        } else {
            String::new()
        };
        let Some(mut python) = start(script, &[&port(&address), &key]) else {
            return;
        };
        let mut check = |want: &str| assert_eq!(python.line(), want);
        check("[b'HELLO']");
        check("[b'REPLY', b'ttttttttttttttt', b'a', b'', b'b']");
        check("[b'REPLY', b'short tag', b'a']");
        check("[b'UNKNOWNCOMMAND', b'REPLY', b'ttttttttttttttt']");
        check("[b'UNKNOWNCOMMAND', b'no.such']");
        check("[b'UNKNOWNCOMMAND', b'nodot']");
        check("[b'FORBIDDEN', b'REPLY', b'ttttttttttttttt']");
        check("[b'NO_REPLY_TAG', b'test.echo']");
        // FAILED is a word that only peers of our own know.
        check("[b'NOT_A_SERVICE_NODE', b'REPLY', b'ttttttttttttttt']");
        // Errors are not answered with errors.
        assert!(
            python
                .line()
                .starts_with("[b'REPLY', b'ttttttttttttttt', b'xxx")
        );
        until(&server, "the failed handler is counted", |server| {
            server.metrics().handlers_failed.get() == 1
        });
    }
}

/// A requester that is not ours heard nothing of a full queue and waited for its timeout of 15 s. Of the words that OxenMQ's
/// own code takes as the failure of a request, one comes at once, while the worker is still held.
#[test]
fn their_request_to_a_full_queue_fails_at_once() {
    let script = r#"
s = sock(zmq.DEALER)
s.connect('tcp://127.0.0.1:' + sys.argv[1])
tags = [bytes([n]) * 15 for n in b'123']
for tag in tags:
    s.send_multipart([b'slow.work', tag, b'x'])
    sys.stdin.readline()
s.send_multipart([b'slow.work', b'4' * 15])
for _ in range(4): say(s.recv_multipart())
"#;
    let (server, begun, release) = slow_server();
    let address = listen(&server, &everybody(false));
    let Some(mut python) = start(script, &[&port(&address)]) else {
        return;
    };
    next(&begun, "the first is at work");
    python.go_on();
    until(&server, "the second waits", |server| {
        server.waiting_commands() == [1, 0]
    });
    python.go_on();
    python.go_on();
    let refused = |tag: &str| format!("[b'NOT_A_SERVICE_NODE', b'REPLY', b'{}']", tag.repeat(15));
    assert_eq!(python.line(), refused("3"));
    assert_eq!(python.line(), refused("4"));
    assert_eq!(server.metrics().caused("refusal", "BUSY"), 2);
    drop(release);
    for tag in ["1", "2"] {
        let done = format!("[b'REPLY', b'{}', b'done']", tag.repeat(15));
        assert_eq!(python.line(), done);
    }
}

#[test]
fn we_call_their_router_and_come_back_when_it_does() {
    let script = r#"
port = sys.argv[1]
for turn in range(2):
    s = sock(zmq.ROUTER)
    s.bind('tcp://127.0.0.1:' + port)
    if turn == 0:
        port = s.last_endpoint.decode().rsplit(':', 1)[1]
        say(port)
    while True:
        m = s.recv_multipart()
        if m[1] == b'end.turn': break
        s.send_multipart([m[0], b'REPLY', m[2], b'turn', str(turn).encode()])
    s.close(linger=0)
    # Closing goes on in the background; only the end of the context says that nobody listens any more.
    c.term(); c = zmq.Context()
    say('closed')
    sys.stdin.readline()
"#;
    let Some(mut python) = start(script, &["*"]) else {
        return;
    };
    let port: u16 = python.line().parse().unwrap();
    let client = client(2);
    let raw = ConnectOptions {
        probe: false,
        ..ConnectOptions::default()
    };
    let address: Address = format!("tcp://127.0.0.1:{port}").parse().unwrap();
    let to = client.connect_wait(&address, &raw).unwrap();
    assert_eq!(
        ask(&client, to, "any.thing", &[b"x"]),
        Ok(vec![b"turn".to_vec(), b"0".to_vec()])
    );
    client.send(to, "end.turn", [""; 0]);
    assert_eq!(python.line(), "closed");
    until(&client, "the link is lost", |client| {
        client.metrics().links_down.get() == 1
    });
    python.go_on();
    assert_eq!(
        ask(&client, to, "any.thing", &[b"x"]),
        Ok(vec![b"turn".to_vec(), b"1".to_vec()])
    );
    assert!(client.metrics().reconnects.get() >= 1);
}

#[test]
fn their_allow_list_is_ours() {
    let script = r#"
from zmq.utils.monitor import recv_monitor_message
s = sock(zmq.DEALER)
m = s.get_monitor_socket(); m.rcvtimeo = 20000
curve(s, sys.argv[2])
s.connect('tcp://127.0.0.1:' + sys.argv[1])
while True:
    e = recv_monitor_message(m)
    if e['event'] == zmq.EVENT_HANDSHAKE_FAILED_AUTH: say('refused', e['value']); break
"#;
    let server = server_builder(options(1)).start().unwrap();
    let list = AllowList::of([]);
    let address = listen(&server, &listen_options(Admission::Listed(list), true));
    let key = server.public_key().to_z85();
    let Some(mut python) = start(script, &[&port(&address), &key]) else {
        return;
    };
    assert_eq!(python.line(), "refused 400");
}

#[test]
fn their_sub_hears_our_stream_and_replays_it() {
    let script = r#"
s = sock(zmq.SUB)
r = sock(zmq.REQ)
if sys.argv[3]: curve(s, sys.argv[3]); curve(r, sys.argv[3])
s.subscribe(b'kv')
s.connect('tcp://127.0.0.1:' + sys.argv[1])
say(s.recv_multipart()[0])
while s.recv_multipart()[2] != b'last': pass
say('last')
d = sock(zmq.DEALER)
if sys.argv[3]: curve(d, sys.argv[3])
d.connect('tcp://127.0.0.1:' + sys.argv[2])
d.send_multipart([b'', (3).to_bytes(8, 'big')])
n = 3
while True:
    e, topic, seq, body = d.recv_multipart()
    assert e == b''
    seq = int.from_bytes(seq, 'big', signed=True)
    if seq == -1: break
    assert seq == n, (seq, n)
    n += 1
say('replayed', body == b'', n > 4)
r.connect('tcp://127.0.0.1:' + sys.argv[2])
r.send((10 ** 9).to_bytes(8, 'big'))
say(r.recv_multipart())
"#;
    for encrypted in [false, true] {
        let server = client(1);
        let listen = everybody(encrypted);
        let publisher = server
            .publish(
                &any_port(),
                Some(&any_port()),
                &listen,
                &StreamOptions::default(),
            )
            .unwrap();
        let key = if encrypted {
            server.public_key().to_z85()
        } else {
            String::new()
        };
        let port = |endpoint: &Endpoint| port(&Address::of(endpoint, None));
        let (stream, replay) = (
            port(publisher.endpoint()),
            port(publisher.replay_endpoint().unwrap()),
        );
        let Some(mut python) = start(script, &[&stream, &replay, &key]) else {
            return;
        };
        until(&server, "the subscriber stands", |server| {
            server.metrics().subscriptions.get() == 1
        });
        (0..6).for_each(|_| publisher.publish(b"kv", b"first"));
        publisher.publish(b"kv", b"last");
        assert_eq!(python.line(), "b'kv'");
        assert_eq!(python.line(), "last");
        assert_eq!(python.line(), "replayed True True");
        assert_eq!(
            python.line(),
            r"[b'', b'\xff\xff\xff\xff\xff\xff\xff\xff', b'']"
        );
    }
}

/// A server that stopped told its subscribers so in a message of one part, which is none of their stream.
#[test]
fn their_sub_hears_nothing_but_messages_of_the_stream_when_we_stop() {
    let script = r#"
from zmq.utils.monitor import recv_monitor_message
s = sock(zmq.SUB)
m = s.get_monitor_socket(); m.rcvtimeo = 20000
s.subscribe(b'')
s.connect('tcp://127.0.0.1:' + sys.argv[1])
say(len(s.recv_multipart()))
while recv_monitor_message(m)['event'] != zmq.EVENT_DISCONNECTED: pass
say(s.recv_multipart() if s.poll(300) else 'nothing')
"#;
    let server = client(1);
    let stream = StreamOptions::default();
    let publisher = server.publish(&any_port(), None, &everybody(false), &stream);
    let publisher = publisher.unwrap();
    let port = port(&Address::of(publisher.endpoint(), None));
    let Some(mut python) = start(script, &[&port]) else {
        return;
    };
    until(&server, "the subscriber stands", |server| {
        server.metrics().subscriptions.get() == 1
    });
    publisher.publish(b"kv", b"body");
    assert_eq!(python.line(), "3");
    server.stop();
    assert_eq!(python.line(), "nothing");
}

/// A replay took the numbers in its window to follow each other: behind a gap it began at the wrong message.
#[test]
fn their_replay_begins_at_the_right_message_behind_a_gap() {
    let script = r#"
def replay(begin):
    d = sock(zmq.DEALER)
    d.connect('tcp://127.0.0.1:' + sys.argv[1])
    d.send_multipart([b'', begin.to_bytes(8, 'big')])
    numbers = []
    while True:
        _, _, number, _ = d.recv_multipart()
        numbers.append(int.from_bytes(number, 'big', signed=True))
        if numbers[-1] == -1: return numbers
for begin in (0, 7, 8, 10, 11, 12): say(replay(begin))
"#;
    let server = client(1);
    let listen = everybody(false);
    let options = StreamOptions {
        first: 7,
        ..StreamOptions::default()
    };
    let publisher = server.publish(&any_port(), Some(&any_port()), &listen, &options);
    let publisher = publisher.unwrap();
    let (done, all) = std::sync::mpsc::channel();
    for lost in [0, 2, 0] {
        let done = done.clone();
        publisher.publish_after(lost, b"kv", Vec::new(), move || done.send(()).unwrap());
    }
    (0..3).for_each(|_| next(&all, "it is published"));
    let replay = port(&Address::of(publisher.replay_endpoint().unwrap(), None));
    let Some(mut python) = start(script, &[&replay]) else {
        return;
    };
    assert_eq!(python.line(), "[7, 10, 11, -1]");
    assert_eq!(python.line(), "[7, 10, 11, -1]");
    assert_eq!(python.line(), "[10, 11, -1]");
    assert_eq!(python.line(), "[10, 11, -1]");
    assert_eq!(python.line(), "[11, -1]");
    assert_eq!(python.line(), "[-1]");
}

#[test]
fn we_hear_their_pub() {
    let script = r#"
s = sock(zmq.XPUB)
say(s.bind_to_random_port('tcp://127.0.0.1'))
s.recv()
for n in (0, 1, 5): s.send_multipart([b'kv', n.to_bytes(8, 'big'), b'body'])
sys.stdin.readline()
"#;
    let Some(mut python) = start(script, &[]) else {
        return;
    };
    let address: Address = format!("tcp://127.0.0.1:{}", python.line())
        .parse()
        .unwrap();
    let (said, heard) = std::sync::mpsc::channel();
    let listener = client(2);
    listener.subscribe(&address, &[b"kv"], &ConnectOptions::default(), move |m| {
        said.send((m.sequence, m.gap())).unwrap()
    });
    assert_eq!(next(&heard, "0"), (0, None));
    assert_eq!(next(&heard, "1"), (1, None));
    assert_eq!(next(&heard, "5"), (5, Some(Gap::Missing(3))));
}
