//! Loops with real sockets on loopback: an echo server and its clients, commands from many threads, waiting callers,
//! slow readers, unauthenticated peers over the limit.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use slackwater_net::*;
use slackwater_wait::{Completer, Completion, now};

const LONG: Duration = Duration::from_secs(20);

/// Echoes what it accepts; as a client, sends numbers of 8 bytes and completes the thread that waits for their echo.
#[derive(Default)]
struct Echo {
    seen: Option<Sender<String>>,
    waiting: BTreeMap<u64, Completer<()>>,
    partial: BTreeMap<ConnId, Vec<u8>>,
    accepted: BTreeMap<ConnId, ()>,
    flood: usize,
    /// The next number of each thread, and how often one came out of turn.
    steps: BTreeMap<usize, u64>,
    out_of_turn: u64,
    nested: Option<(Loop<Echo>, Arc<AtomicU64>)>,
}

enum Ask {
    Listen(Listen, Sender<Result<(ListenerId, Endpoint), String>>),
    Connect(Connect, Sender<Result<ConnId, String>>),
    Number(ConnId, u64, Completer<()>),
    Count,
    Step(usize, u64),
    Steps(Sender<Vec<u64>>),
    Nest(Loop<Echo>, Arc<AtomicU64>),
    Close(ConnId, Vec<u8>),
    Flood(ConnId, usize),
    /// A flood at the end of a turn that takes this long.
    LateFlood(ConnId, usize, Duration),
}

impl Protocol for Echo {
    type Command = Ask;

    fn handle(&mut self, net: &mut Net, event: Event<'_, Ask>) {
        let say = |text: String| {
            if let Some(seen) = &self.seen {
                let _ = seen.send(text);
            }
        };
        match event {
            Event::Accepted { conn, source, .. } => {
                self.accepted.insert(conn, ());
                say(format!("accepted {source}"));
                if self.flood > 0 {
                    net.wire(conn).expect("just accepted").resize(self.flood, 7);
                }
            }
            Event::Connected { .. } => say("connected".into()),
            Event::Bytes { conn, bytes } if self.accepted.contains_key(&conn) => {
                net.proven(conn);
                if let Some(wire) = net.wire(conn) {
                    wire.extend_from_slice(bytes);
                }
            }
            Event::Bytes { conn, bytes } => {
                let partial = self.partial.entry(conn).or_default();
                partial.extend_from_slice(bytes);
                let whole = partial.len() / 8 * 8;
                for number in partial.drain(..whole).collect::<Vec<_>>().chunks(8) {
                    let number = u64::from_le_bytes(number.try_into().expect("chunks of 8"));
                    self.waiting
                        .remove(&number)
                        .expect("an echo of what was sent")
                        .complete(());
                }
            }
            Event::Drained { .. } => say("drained".into()),
            Event::Closed { conn, end, .. } => {
                self.accepted.remove(&conn);
                say(format!("closed: {end}"));
            }
            Event::Timer { token } => say(format!("timer {token}")),
            Event::Command(ask) => self.ask(net, ask),
        }
    }
}

impl Echo {
    fn ask(&mut self, net: &mut Net, ask: Ask) {
        match ask {
            Ask::Listen(listen, answer) => {
                let _ = answer.send(net.listen(&listen).map_err(|error| error.to_string()));
            }
            Ask::Connect(connect, answer) => {
                let _ = answer.send(net.connect(&connect).map_err(|error| error.to_string()));
            }
            Ask::Number(conn, number, completion) => {
                self.waiting.insert(number, completion);
                net.wire(conn)
                    .expect("the echo server stays")
                    .extend_from_slice(&number.to_le_bytes());
            }
            Ask::Count => {
                if let Some((own, counter)) = &self.nested
                    && counter.fetch_add(1, Ordering::Relaxed).is_multiple_of(2)
                {
                    own.command(Ask::Count);
                }
            }
            Ask::Step(thread, number) => {
                let expected = self.steps.entry(thread).or_default();
                self.out_of_turn += u64::from(*expected != number);
                *expected = number + 1;
            }
            Ask::Steps(answer) => {
                let all = self
                    .steps
                    .values()
                    .copied()
                    .chain([self.out_of_turn])
                    .collect();
                answer.send(all).expect("the test waits");
            }
            Ask::Nest(own, counter) => self.nested = Some((own, counter)),
            Ask::Close(conn, last) => {
                net.wire(conn).expect("open").extend_from_slice(&last);
                net.close(conn, LONG);
            }
            Ask::Flood(conn, count) => {
                net.wire(conn).expect("open").resize(count, 7);
                net.call_when_drained(conn);
            }
            Ask::LateFlood(conn, count, turn) => {
                let end = now() + turn;
                while now() < end {
                    std::hint::spin_loop();
                }
                net.wire(conn).expect("open").resize(count, 7);
            }
        }
    }
}

struct World {
    looping: Loop<Echo>,
    seen: Receiver<String>,
}

impl World {
    fn start(limits: Limits, flood: usize) -> Self {
        let (seen, receiver) = channel();
        let echo = Echo {
            seen: Some(seen),
            flood,
            ..Echo::default()
        };
        Self {
            looping: Loop::start("echo", limits, echo).expect("a loop"),
            seen: receiver,
        }
    }

    fn listen(&self, endpoint: Endpoint, shared: bool) -> Result<(ListenerId, Endpoint), String> {
        let is_file = matches!(&endpoint, Endpoint::Unix(path) if path.is_absolute());
        let access = UnixAccess {
            mode: is_file.then_some(0o600),
            ..UnixAccess::default()
        };
        self.listen_with(endpoint, shared, access)
    }

    fn listen_with(
        &self,
        endpoint: Endpoint,
        shared: bool,
        access: UnixAccess,
    ) -> Result<(ListenerId, Endpoint), String> {
        let (answer, answered) = channel();
        let listen = Listen {
            endpoint,
            shared,
            access,
        };
        self.looping.command(Ask::Listen(listen, answer));
        answered.recv_timeout(LONG).expect("an answer")
    }

    fn listen_any(&self) -> SocketAddr {
        match self
            .listen(Endpoint::Tcp((Ipv4Addr::LOCALHOST, 0).into()), false)
            .expect("loopback")
        {
            (_, Endpoint::Tcp(address)) => address,
            (_, Endpoint::Unix(_)) => unreachable!("asked for TCP"),
        }
    }

    fn connect(&self, endpoint: Endpoint) -> Result<ConnId, String> {
        let (answer, answered) = channel();
        self.looping.command(Ask::Connect(
            Connect {
                endpoint,
                timeout: LONG,
                from: None,
                ports: None,
            },
            answer,
        ));
        answered.recv_timeout(LONG).expect("an answer")
    }

    fn expect(&self, text: &str) {
        let got = self
            .seen
            .recv_timeout(LONG)
            .unwrap_or_else(|_| panic!("nothing instead of `{text}`"));
        assert!(got.starts_with(text), "`{got}` instead of `{text}`");
    }

    fn connected(&self, endpoint: Endpoint) -> ConnId {
        let conn = self.connect(endpoint).expect("loopback");
        self.expect("connected");
        conn
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.looping.stop();
    }
}

#[expect(clippy::print_stdout, reason = "what is skipped is said")]
fn say(words: &str) {
    println!("{words}");
}

/// A name that no other test process has.
fn named(test: &str) -> Endpoint {
    Endpoint::Unix(format!("@slackwater-test-{test}-{}", std::process::id()).into())
}

/// A connection of a loop, over TCP or by a Unix socket, and its other end.
fn pairs(world: &World) -> Vec<(ConnId, Box<dyn Read>)> {
    let folder = tempfile::tempdir().expect("a listener of this test");
    let path = folder.path().join("socket");
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener of this test");
    let unix = std::os::unix::net::UnixListener::bind(&path).expect("a listener of this test");
    let over_tcp = world.connected(Endpoint::Tcp(
        tcp.local_addr().expect("a listener of this test"),
    ));
    let over_unix = world.connected(Endpoint::Unix(path));
    vec![
        (
            over_tcp,
            Box::new(tcp.accept().expect("a listener of this test").0),
        ),
        (
            over_unix,
            Box::new(unix.accept().expect("a listener of this test").0),
        ),
    ]
}

fn round_trips(client: &Loop<Echo>, conn: ConnId, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let (completer, mut completion) = Completion::new();
        client.command(Ask::Number(conn, number, completer));
        let echoed = client.wait(&mut completion, now() + LONG);
        assert_eq!(echoed, Ok(()), "no echo of {number}");
    }
}

#[test]
fn bytes_come_back_over_tcp_and_over_unix_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    for endpoint in [
        Endpoint::Tcp("127.0.0.1:0".parse().unwrap()),
        Endpoint::Tcp("[::1]:0".parse().unwrap()),
        Endpoint::Unix(path.clone()),
        named("bytes"),
    ] {
        let (server, client) = (
            World::start(Limits::default(), 0),
            World::start(Limits::default(), 0),
        );
        let (_, bound) = server.listen(endpoint.clone(), false).expect("loopback");
        let conn = client.connected(bound);
        let source = if matches!(endpoint, Endpoint::Unix(_)) {
            "accepted uid"
        } else {
            "accepted "
        };
        server.expect(source);
        round_trips(&client.looping, conn, 0..200);
        drop(server);
        client.expect("closed: closed by the peer");
    }
    assert!(!path.exists(), "the socket file goes with the listener");
}

/// Each message over a Unix socket woke its sender once more, when its peer had read it.
#[test]
fn a_message_wakes_its_reader_alone() {
    for endpoint in [
        Endpoint::Tcp("127.0.0.1:0".parse().unwrap()),
        named("wakes"),
    ] {
        let (server, client) = (
            World::start(Limits::default(), 0),
            World::start(Limits::default(), 0),
        );
        let (_, bound) = server.listen(endpoint, false).expect("loopback");
        let conn = client.connected(bound);
        round_trips(&client.looping, conn, 0..10);
        let events = || {
            let of = |world: &World| world.looping.counters().events.get();
            of(&server) + of(&client)
        };
        let before = events();
        round_trips(&client.looping, conn, 10..210);
        // One at each end for each, and a waker now and then.
        let events = events() - before;
        assert!(events <= 500, "{events} events for 200 round trips");
    }
}

/// An abstract name is no file: it has no mode that would keep others away, and goes with its listener.
#[test]
fn an_abstract_name_has_no_owner_and_can_be_taken_again() {
    let endpoint = named("owner");
    let first = World::start(Limits::default(), 0);
    let access = UnixAccess {
        mode: Some(0o600),
        ..UnixAccess::default()
    };
    let refused = first.listen_with(endpoint.clone(), false, access);
    assert!(refused.unwrap_err().contains("no owner and no mode"));
    first.listen(endpoint.clone(), false).expect("a free name");
    let second = World::start(Limits::default(), 0);
    let taken = second.listen(endpoint.clone(), false).unwrap_err();
    assert!(taken.contains("in use"), "{taken}");
    drop(first);
    second.listen(endpoint, false).expect("it is free again");
}

/// A name belongs to the process that takes it first: one of another user could have answered in the place of a server.
#[test]
fn what_another_user_listens_on_is_not_connected_to() {
    let endpoint = named("other");
    let Endpoint::Unix(name) = &endpoint else {
        unreachable!("made as one")
    };
    let name = name.to_str().unwrap().trim_start_matches('@');
    let listens = format!(
        "use Socket; socket(S, PF_UNIX, SOCK_STREAM, 0); bind(S, pack_sockaddr_un(\"\\0{name}\")) or die; \
         listen(S, 1); $| = 1; print \"ready\\n\"; <STDIN>;"
    );
    let spawned = Command::new("perl")
        .args(["-e", &listens])
        .uid(65_534)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut other = match spawned {
        Ok(other) => other,
        Err(why) => return say(&format!("skipped: no process of another user: {why}")),
    };
    let mut said = [0; 6];
    other
        .stdout
        .take()
        .unwrap()
        .read_exact(&mut said)
        .expect("it listens");
    let world = World::start(Limits::default(), 0);
    let refused = world.connect(endpoint.clone()).unwrap_err();
    assert!(refused.contains("another user, 65534"), "{refused}");
    drop(other.stdin.take());
    other.wait().unwrap();
}

/// The kernel has no number for a process that is in a namespace out of sight, and one was read from it all the same.
#[test]
fn a_peer_out_of_sight_is_served_without_a_number() {
    const INSIDE: &str = "SLACKWATER_TEST_SOCKET_BESIDE";
    if let Ok(name) = std::env::var(INSIDE) {
        let world = World::start(Limits::default(), 0);
        world.listen(Endpoint::Unix(name.into()), false).unwrap();
        say("ready");
        return world.expect("accepted uid 0 gid 0 pid 0");
    }
    let endpoint = named("sight");
    let Endpoint::Unix(name) = &endpoint else {
        unreachable!("made as one")
    };
    let spawned = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child"])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "a_peer_out_of_sight_is_served_without_a_number",
            "--nocapture",
        ])
        .env(INSIDE, name)
        .stdout(Stdio::piped())
        .spawn();
    let mut inside = match spawned {
        Ok(inside) => inside,
        Err(why) => return say(&format!("skipped: no namespace of processes: {why}")),
    };
    let mut lines = BufReader::new(inside.stdout.take().unwrap()).lines();
    if !lines.any(|line| line.unwrap().contains("ready")) {
        return say("skipped: no namespace of processes");
    }
    let world = World::start(Limits::default(), 0);
    world.connected(endpoint);
    let rest: Vec<String> = lines.map(|line| line.unwrap()).collect();
    assert!(inside.wait().unwrap().success(), "{rest:?}");
}

#[test]
fn callers_on_many_threads_are_all_answered() {
    let (server, client) = (
        World::start(Limits::default(), 0),
        World::start(Limits::default(), 0),
    );
    let address = server.listen_any();
    let conns: Vec<ConnId> = (0..4)
        .map(|_| client.connected(Endpoint::Tcp(address)))
        .collect();
    std::thread::scope(|scope| {
        for (thread, conn) in conns.iter().enumerate() {
            let client = &client.looping;
            scope.spawn(move || {
                round_trips(
                    client,
                    *conn,
                    thread as u64 * 1000..thread as u64 * 1000 + 500,
                )
            });
        }
    });
}

#[test]
fn no_command_is_lost_however_many_threads_give_them_even_from_inside() {
    let world = World::start(Limits::default(), 0);
    let nested = Arc::new(AtomicU64::new(0));
    world
        .looping
        .command(Ask::Nest(world.looping.clone(), Arc::clone(&nested)));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..2_000).for_each(|_| world.looping.command(Ask::Count)));
        }
    });
    // The last holder empties the inbox before it leaves, and every thread has left. Each second count adds one.
    let (answer, answered) = channel();
    let probe = Connect {
        endpoint: Endpoint::Unix("/nonexistent".into()),
        timeout: LONG,
        from: None,
        ports: None,
    };
    world.looping.command(Ask::Connect(probe, answer));
    assert!(answered.recv_timeout(LONG).unwrap().is_err());
    let counted = nested.load(Ordering::Relaxed);
    assert!(
        (12_000..=16_001).contains(&counted),
        "{counted} of 8,000 commands and those they gave"
    );
}

/// A command that found the loop busy waits in the inbox; the next one of its thread may find the loop free again and
/// must not overtake it.
#[test]
fn commands_of_one_thread_keep_their_order() {
    let world = World::start(Limits::default(), 0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let looping = &world.looping;
            scope.spawn(move || {
                (0..20_000).for_each(|number| looping.command(Ask::Step(thread, number)))
            });
        }
    });
    let (answer, answered) = channel();
    world.looping.command(Ask::Steps(answer));
    assert_eq!(
        answered.recv_timeout(LONG).unwrap(),
        [20_000, 20_000, 20_000, 20_000, 0]
    );
}

#[test]
fn a_connection_that_cannot_be_made_says_why() {
    let world = World::start(Limits::default(), 0);
    // The kernel gives no listener of another test this port.
    let closed = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    if world.connect(Endpoint::Tcp(closed)).is_ok() {
        world.expect("closed: connect: Connection refused");
    }
    let error = world
        .connect(Endpoint::Unix("/nonexistent/socket".into()))
        .unwrap_err();
    assert_eq!(
        error,
        "ipc:///nonexistent/socket: No such file or directory (os error 2)"
    );
}

#[test]
fn a_taken_port_is_an_error_even_for_sharers() {
    let world = World::start(Limits::default(), 0);
    let taken = world.listen_any();
    assert!(
        world
            .listen(Endpoint::Tcp(taken), false)
            .unwrap_err()
            .contains("Address already in use")
    );
    assert!(Net::check_free(&Endpoint::Tcp(taken)).is_err());
    let (_, shared) = world
        .listen(Endpoint::Tcp("127.0.0.1:0".parse().unwrap()), true)
        .unwrap();
    assert!(
        Net::check_free(&shared).is_err(),
        "a sharer is somebody, too"
    );
    assert!(world.listen(shared, true).is_ok());
}

#[test]
fn a_dead_socket_file_is_replaced_and_a_live_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let world = World::start(Limits::default(), 0);
    world.listen(Endpoint::Unix(path.clone()), false).unwrap();
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert!(
        world
            .listen(Endpoint::Unix(path), false)
            .unwrap_err()
            .contains("Address already in use")
    );
    let file = folder.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(world.listen(Endpoint::Unix(file.clone()), false).is_err());
    assert_eq!(std::fs::read(file).unwrap(), b"precious");
}

#[test]
fn what_is_queued_is_written_before_a_close() {
    let world = World::start(Limits::default(), 0);
    for (conn, mut stream) in pairs(&world) {
        world.looping.command(Ask::Close(conn, vec![9; 8 << 20]));
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        assert_eq!(got.len(), 8 << 20);
        world.expect("closed: closed by this side");
    }
}

#[test]
fn a_full_outbox_says_when_it_has_drained() {
    let world = World::start(Limits::default(), 0);
    let mut pairs = pairs(&world);
    for (conn, stream) in &mut pairs {
        // A second time, when the first has filled the socket and emptied it.
        for _ in 0..2 {
            world.looping.command(Ask::Flood(*conn, 8 << 20));
            let mut got = vec![0; 8 << 20];
            stream.read_exact(&mut got).unwrap();
            world.expect("drained");
        }
    }
}

/// The time within which a peer must read was counted from the beginning of the turn that wrote. A turn that took longer
/// than that dropped every peer whose outbox it had just filled, before the peer could read a byte.
#[test]
fn a_long_turn_leaves_peers_their_time_to_read() {
    let limits = Limits {
        write_stall: Duration::from_secs(1),
        ..Limits::default()
    };
    let world = World::start(limits, 0);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let conn = world.connected(Endpoint::Tcp(listener.local_addr().unwrap()));
    let (mut stream, _) = listener.accept().unwrap();
    let turn = Duration::from_millis(1300);
    world.looping.command(Ask::LateFlood(conn, 8 << 20, turn));
    let mut got = vec![0; 8 << 20];
    stream.read_exact(&mut got).expect("the peer reads");
}

#[test]
fn a_peer_that_reads_nothing_is_dropped_and_others_are_served() {
    let limits = Limits {
        write_stall: Duration::from_secs(1),
        ..Limits::default()
    };
    let world = World::start(limits, 16 << 20);
    let address = world.listen_any();
    let lazy = TcpStream::connect(address).unwrap();
    world.expect("accepted");
    let mut good = TcpStream::connect(address).unwrap();
    world.expect("accepted");
    let mut flood = vec![0; 16 << 20];
    good.read_exact(&mut flood).unwrap();
    good.write_all(b"hello").unwrap();
    let mut echo = [0; 5];
    good.read_exact(&mut echo).unwrap();
    world.expect("closed: the peer does not read");
    assert_eq!(world.looping.counters().stalled.get(), 1);
    drop(lazy);
}

#[test]
fn connections_over_the_limit_wait_or_are_refused_and_others_come_in() {
    let pre_auth = PreAuthLimits {
        total: 3,
        per_source: 2,
        ..PreAuthLimits::default()
    };
    let world = World::start(
        Limits {
            pre_auth,
            ..Limits::default()
        },
        0,
    );
    let address = world.listen_any();
    let silent: Vec<TcpStream> = (0..2)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    silent
        .iter()
        .for_each(|_| world.expect("accepted 127.0.0.1"));
    let mut third = TcpStream::connect(address).unwrap();
    assert_eq!(
        third.read(&mut [0]).unwrap_or(0),
        0,
        "the third of one source is closed"
    );
    assert_eq!(world.looping.counters().refused_source_full.get(), 1);

    // Another source has its own account; after it all slots are taken and a further one waits until one frees.
    let client = World::start(Limits::default(), 0);
    let from = |last: u8| Connect {
        endpoint: Endpoint::Tcp(address),
        timeout: LONG,
        from: Some((Ipv4Addr::new(127, 0, 0, last), 0).into()),
        ports: None,
    };
    let (answer, answered) = channel();
    client
        .looping
        .command(Ask::Connect(from(2), answer.clone()));
    answered.recv_timeout(LONG).unwrap().unwrap();
    world.expect("accepted 127.0.0.2");
    client.looping.command(Ask::Connect(from(3), answer));
    answered.recv_timeout(LONG).unwrap().unwrap();
    drop(silent);
    let mut seen = Vec::new();
    while !seen
        .iter()
        .any(|text: &String| text.starts_with("accepted 127.0.0.3"))
    {
        seen.push(
            world
                .seen
                .recv_timeout(LONG)
                .expect("the one that waited comes in"),
        );
    }
    assert!(world.looping.counters().accept_paused.get() > 0);
}

#[test]
fn idle_connections_cost_no_system_calls() {
    let calls_of = |idle: usize| {
        let (server, client) = (
            World::start(Limits::default(), 0),
            World::start(Limits::default(), 0),
        );
        let address = server.listen_any();
        let conns: Vec<ConnId> = (0..idle)
            .map(|_| {
                let conn = client.connected(Endpoint::Tcp(address));
                server.expect("accepted");
                // The first byte proves a connection to the echo server, so that unauthenticated connections never pile up.
                round_trips(&client.looping, conn, 0..1);
                conn
            })
            .collect();
        let before = client.looping.counters().hot_system_calls()
            + server.looping.counters().hot_system_calls();
        round_trips(&client.looping, conns[0], 0..200);
        client.looping.counters().hot_system_calls() + server.looping.counters().hot_system_calls()
            - before
    };
    let (few, many) = (calls_of(2), calls_of(300));
    assert!(
        few <= 200 * 7 && many <= 200 * 7,
        "{few} and {many} system calls for 200 round trips"
    );
}

#[test]
fn a_slot_is_freed_by_proof() {
    let pre_auth = PreAuthLimits {
        per_source: 1,
        ..PreAuthLimits::default()
    };
    let world = World::start(
        Limits {
            pre_auth,
            ..Limits::default()
        },
        0,
    );
    let address = world.listen_any();
    let mut proven = TcpStream::connect(address).unwrap();
    proven.write_all(b"x").unwrap();
    proven.read_exact(&mut [0]).unwrap();
    let mut second = TcpStream::connect(address).unwrap();
    second.write_all(b"y").unwrap();
    second.read_exact(&mut [0]).unwrap();
    world.expect("accepted");
    world.expect("accepted");
}
