//! Links connected to libzmq, through pyzmq, on loopback.
#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a test with real sockets may use them"
)]

mod common;
#[path = "common/python.rs"]
mod python;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::time::Duration;

use common::*;
use python::Python;
use slackwater_zmtp::*;

/// The keys below under the names that the scripts use.
const KEYS: &str = r#"
server_public, server_secret = b'rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7', b'JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6'
client_public, client_secret = b'Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID', b'D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs'
"#;
const SERVER_SECRET: &str = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6";
const CLIENT_SECRET: &str = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs";

fn keys(secret: &str) -> KeyPair {
    KeyPair::of(secret.parse().expect("a documented key"))
}

/// A link over a blocking socket.
struct Socket {
    end: End,
    stream: TcpStream,
}

const LONG: Duration = Duration::from_secs(20);

impl Socket {
    fn new(config: LinkConfig, stream: TcpStream) -> Self {
        stream
            .set_read_timeout(Some(LONG))
            .expect("a duration above zero");
        Self {
            end: End::new(config, 3),
            stream,
        }
    }

    /// Reads and answers until `done`; the peer ending the stream counts as an input.
    fn until(&mut self, done: impl Fn(&End) -> bool) {
        let mut buffer = [0; 70_000];
        while !done(&self.end) {
            self.flush();
            match self
                .stream
                .read(&mut buffer)
                .expect("the peer answers within its time")
            {
                0 => self.end.handle(Input::Eof),
                count => self.end.handle(Input::Bytes(&buffer[..count])),
            }
            if self
                .end
                .events
                .iter()
                .filter(|e| matches!(e, Event::Admission(_)))
                .count()
                > 0
            {
                self.end.handle(Input::Admit(Verdict::Accept));
            }
            assert!(
                self.end.cause().is_none() || done(&self.end),
                "closed: {:?}",
                self.end.cause()
            );
        }
        self.flush();
    }

    fn flush(&mut self) {
        self.stream
            .write_all(&std::mem::take(&mut self.end.wire))
            .expect("the peer reads");
    }

    fn messages(&mut self, count: usize) -> Vec<Message> {
        self.until(|end| end.messages().len() >= count);
        self.end.messages()
    }
}

fn client_config(socket: SocketType, curve: bool) -> LinkConfig {
    let mechanism = match curve {
        false => Mechanism::Null(Side::Connect),
        true => Mechanism::CurveClient {
            keys: keys(CLIENT_SECRET),
            server: keys(SERVER_SECRET).public(),
        },
    };
    LinkConfig::new(socket, mechanism)
}

fn server_config(socket: SocketType, curve: bool) -> LinkConfig {
    let mechanism = match curve {
        false => Mechanism::Null(Side::Listen),
        true => Mechanism::CurveServer(keys(SERVER_SECRET)),
    };
    LinkConfig::new(socket, mechanism)
}

fn connect(python: &mut Python, config: LinkConfig) -> Socket {
    let port: u16 = python
        .line()
        .parse()
        .expect("the peer prints its port first");
    Socket::new(
        config,
        TcpStream::connect(("127.0.0.1", port)).expect("the peer listens"),
    )
}

fn start(script: &str, arguments: &[String]) -> Option<Python> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Python::start(&format!("{KEYS}{script}"), &arguments)
}

/// The link of a peer that connects in time.
fn accept(listener: TcpListener, config: LinkConfig) -> Socket {
    let (accepted, taken) = channel();
    std::thread::spawn(move || accepted.send(listener.accept()));
    let (stream, _) = taken
        .recv_timeout(LONG)
        .expect("the peer connects")
        .expect("loopback");
    Socket::new(config, stream)
}

#[test]
fn our_dealer_talks_to_their_router_and_survives_their_heartbeats() {
    for curve in [false, true] {
        let script = r#"
s = sock(zmq.ROUTER, heartbeat_ivl=50, heartbeat_timeout=5000, heartbeat_ttl=5000)
if sys.argv[1] == 'true':
    s.curve_server = True; s.curve_secretkey = server_secret; s.curve_publickey = server_public
say(s.bind_to_random_port('tcp://127.0.0.1'))
for _ in range(3):
    m = s.recv_multipart()
    s.send_multipart(m + [b'seen'])
# A socket that closes with one of our PONGs unread resets the connection, and with it what we have not read.
sys.stdin.readline()
"#;
        let Some(mut python) = start(script, &[curve.to_string()]) else {
            return;
        };
        let mut config = client_config(SocketType::Dealer, curve);
        config.identity = b"our-id".to_vec();
        let mut socket = connect(&mut python, config);
        socket.until(|end| end.link.is_up());
        let large = vec![7u8; 300_000];
        for (number, part) in [&b""[..], b"small", &large].into_iter().enumerate() {
            socket.end.send(&[b"part", part]).unwrap();
            socket.flush();
            let got = socket.messages(number + 1).pop().unwrap();
            assert_eq!(got, Message::of([b"part", part, b"seen"]));
        }
        assert_eq!(socket.end.peer().unwrap().socket, "ROUTER");
    }
}

#[test]
fn their_dealer_talks_to_our_router() {
    for curve in [false, true] {
        let script = r#"
s = sock(zmq.DEALER, routing_id=b'theirs', heartbeat_ivl=50, heartbeat_timeout=5000)
if sys.argv[1] == 'true':
    s.curve_serverkey = server_public; s.curve_secretkey = client_secret; s.curve_publickey = client_public
s.connect('tcp://127.0.0.1:' + sys.argv[2])
s.send_multipart([b'hello', b'x' * 200000, b''])
say(len(s.recv_multipart()[1]))
"#;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let Some(mut python) = start(script, &[curve.to_string(), port.to_string()]) else {
            return;
        };
        let mut socket = accept(listener, server_config(SocketType::Router, curve));
        let got = socket.messages(1).pop().unwrap();
        assert_eq!(got, Message::of([&b"hello"[..], &[b'x'; 200_000], b""]));
        let peer = socket.end.peer().unwrap();
        assert_eq!(
            (peer.identity.as_slice(), peer.socket.as_str()),
            (&b"theirs"[..], "DEALER")
        );
        assert_eq!(peer.key, curve.then(|| keys(CLIENT_SECRET).public()));
        socket.end.send(&[b"back", &[1; 100_000]]).unwrap();
        socket.flush();
        assert_eq!(python.line(), "100000");
    }
}

#[test]
fn our_sub_receives_from_their_pub_and_their_sub_from_our_pub() {
    for curve in [false, true] {
        let script = r#"
s = sock(zmq.XPUB)
if sys.argv[1] == 'true':
    s.curve_server = True; s.curve_secretkey = server_secret; s.curve_publickey = server_public
say(s.bind_to_random_port('tcp://127.0.0.1'))
say(s.recv())
s.send_multipart([b'other', b'no']); s.send_multipart([b'kv.a', b'yes'])
say(s.recv())
"#;
        let Some(mut python) = start(script, &[curve.to_string()]) else {
            return;
        };
        let mut socket = connect(&mut python, client_config(SocketType::Sub, curve));
        socket.until(|end| end.link.is_up());
        let minor = socket.end.peer().unwrap().minor;
        socket.end.subscribe(b"kv.", true, minor);
        assert_eq!(
            {
                socket.flush();
                python.line()
            },
            r"b'\x01kv.'"
        );
        assert_eq!(socket.messages(1), [Message::of(["kv.a", "yes"])]);
        socket.end.subscribe(b"kv.", false, minor);
        assert_eq!(
            {
                socket.flush();
                python.line()
            },
            r"b'\x00kv.'"
        );

        let script = r#"
s = sock(zmq.SUB)
if sys.argv[1] == 'true':
    s.curve_serverkey = server_public; s.curve_secretkey = client_secret; s.curve_publickey = client_public
s.subscribe(b'kv.')
s.connect('tcp://127.0.0.1:' + sys.argv[2])
say(s.recv_multipart())
s.unsubscribe(b'kv.')
s.subscribe(b'end')
say(s.recv_multipart())
"#;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let Some(mut python) = start(script, &[curve.to_string(), port.to_string()]) else {
            return;
        };
        let mut socket = accept(listener, server_config(SocketType::Pub, curve));
        socket.until(|end| end.events.contains(&Event::Subscribe(b"kv.".to_vec())));
        socket.end.send(&[b"kv.b", b"1"]).unwrap();
        socket.flush();
        assert_eq!(python.line(), "[b'kv.b', b'1']");
        socket.until(|end| {
            end.events.contains(&Event::Cancel(b"kv.".to_vec()))
                && end.events.contains(&Event::Subscribe(b"end".to_vec()))
        });
        socket.end.send(&[b"end", b"2"]).unwrap();
        socket.flush();
        assert_eq!(python.line(), "[b'end', b'2']");
    }
}

#[test]
fn a_client_without_our_key_is_refused_by_them_and_by_us() {
    let script = r#"
s = sock(zmq.DEALER)
m = s.get_monitor_socket()
m.rcvtimeo = 20000
s.curve_serverkey = client_public; s.curve_secretkey = client_secret; s.curve_publickey = client_public
s.connect('tcp://127.0.0.1:' + sys.argv[1])
from zmq.utils.monitor import recv_monitor_message
while True:
    e = recv_monitor_message(m)['event']
    if e in (zmq.EVENT_DISCONNECTED, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): say('refused'); break
"#;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let Some(mut python) = start(script, &[port.to_string()]) else {
        return;
    };
    let mut socket = accept(listener, server_config(SocketType::Router, true));
    socket.until(|end| end.cause() == Some(&Cause::BoxClosed { what: "HELLO" }));
    drop(socket);
    assert_eq!(python.line(), "refused");
}
