//! Junk, half greetings, floods, peers that do not read, a server that is killed: other clients are served, and memory
//! stays bounded.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use slackwater_mq::*;
use slackwater_net::{Endpoint, PreAuthLimits};
use slackwater_zmtp::Limits;

fn socket_of(address: &Address) -> SocketAddr {
    match address.endpoint().expect("a loopback address") {
        Endpoint::Tcp(socket) => socket,
        Endpoint::Unix(_) => panic!("a TCP address"),
    }
}

#[test]
fn junk_is_closed_and_counted_while_good_clients_work() {
    let limits = Limits {
        handshake_time: Duration::from_millis(200),
        ..Limits::default()
    };
    let server = server_builder(Options {
        limits,
        ..options(1)
    })
    .start()
    .unwrap();
    let address = listen(&server, &everybody(true));
    let client = client(2);
    let to = connect(&client, &address);
    let mut greeting = [0u8; 64];
    (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xff, 0x7f, 3, 1);
    greeting[12..17].copy_from_slice(b"CURVE");
    let huge = [&greeting[..], b"\x06\xff\xff\xff\xff\xff\xff\xff\xff"].concat();
    let hello = [&greeting[..], b"\x04\xc8\x05HELLO\x01\x00", &[7; 192]].concat();
    let attacks: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 300],
        &huge,
        &hello,
        &greeting[..30],
    ];
    let attack = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(socket_of(&address)).unwrap();
        // The server may close while this is still writing.
        let _ = stream.write_all(bytes);
        stream
    };
    // One of each kind stays until it is counted; many more come and go while the good client works.
    let held: Vec<TcpStream> = attacks.iter().map(|bytes| attack(bytes)).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..300u32 {
                let body = number.to_le_bytes();
                assert_eq!(
                    ask(&client, to, "test.echo", &[&body]),
                    Ok(vec![body.to_vec()])
                );
            }
            done.store(true, Ordering::Relaxed);
        });
        for bytes in attacks.iter().cycle() {
            drop(attack(bytes));
            if done.load(Ordering::Relaxed) {
                break;
            }
        }
    });
    let caused = |cause: &str| server.metrics().caused("link", cause);
    until(&server, "every kind was counted", |_| {
        caused("not_zmtp") > 0
            && caused("frame_too_large") > 0
            && caused("box_closed") > 0
            && caused("handshake_timeout") > 0
    });
    drop(held);
    until(&server, "only the good link is left", |server| {
        server.books()[0] == 1
    });
}

#[test]
fn a_flood_of_connects_from_one_source_leaves_room_for_others() {
    let pre_auth = PreAuthLimits {
        total: 64,
        per_source: 16,
        rate: 5_000,
        rate_per_source: 500,
    };
    let server = server_builder(Options {
        pre_auth,
        ..options(1)
    })
    .start()
    .unwrap();
    let address = listen(&server, &everybody(true));
    let target = socket_of(&address);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flooding = scope.spawn(|| {
            let mut held = Vec::new();
            let mut count = 0u32;
            while !done.load(Ordering::Relaxed) && count < 5_000 {
                let socket = socket2_from([127, 0, 0, 2], target);
                held.extend(socket);
                count += 1;
                if held.len() > 100 {
                    held.drain(..50);
                }
            }
            count
        });
        for round in 0..5u8 {
            let client = client(10 + round);
            let to = connect(&client, &address);
            for number in 0..20u8 {
                assert_eq!(
                    ask(&client, to, "test.echo", &[&[number]]),
                    Ok(vec![vec![number]])
                );
            }
        }
        done.store(true, Ordering::Relaxed);
        assert!(flooding.join().unwrap() > 20);
    });
    let mut refused = 0;
    server.loop_counters(|counters| {
        refused += counters.refused_source_full.get() + counters.refused_source_rate.get()
    });
    assert!(refused > 0, "the flood met its limit");
    assert!(server.books()[2] <= 80, "connections stay bounded");
}

/// A connection from a certain loopback address; none when the kernel's queue is full.
fn socket2_from(from: [u8; 4], to: SocketAddr) -> Option<TcpStream> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).ok()?;
    socket.bind(&SocketAddr::from((from, 0)).into()).ok()?;
    socket
        .connect_timeout(&to.into(), Duration::from_millis(200))
        .ok()?;
    Some(socket.into())
}

#[test]
fn a_reader_that_does_not_read_fills_only_its_own_queue() {
    let mut builder = server_builder(Options {
        queue_bytes: 1 << 20,
        write_stall: Duration::from_millis(300),
        ..options(1)
    });
    let (kept, callers) = std::sync::mpsc::channel();
    builder
        .command("quick.register", move |call| {
            kept.send(call.from()).unwrap()
        })
        .unwrap();
    let server = builder.start().unwrap();
    let address = listen(&server, &everybody(false));
    let mut lazy = TcpStream::connect(socket_of(&address)).unwrap();
    let mut greeting = [0u8; 64];
    (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xff, 0x7f, 3, 1);
    greeting[12..16].copy_from_slice(b"NULL");
    lazy.write_all(&greeting).unwrap();
    lazy.write_all(b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x00\x0equick.register")
        .unwrap();
    let reader = next(&callers, "it registers");
    let (told, failures) = std::sync::mpsc::channel();
    let body = vec![1u8; 64 << 10];
    for _ in 0..400 {
        let told = told.clone();
        let on_failure: Box<dyn FnOnce(SendError) + Send> =
            Box::new(move |error| told.send(error).unwrap());
        server.send_with(
            reader,
            "x.y",
            [&body],
            SendOptions {
                on_failure: Some(on_failure),
                ..SendOptions::default()
            },
        );
    }
    assert_eq!(next(&failures, "a refusal"), SendError::Full);
    assert!(server.books()[3] <= 17);
    let client = client(2);
    let to = connect(&client, &address);
    assert_eq!(
        ask(&client, to, "test.echo", &[b"x"]),
        Ok(vec![b"x".to_vec()])
    );
    until(&server, "it is dropped", |server| {
        server.metrics().caused("link", "stalled") == 1
    });
    until(&server, "and forgotten", |server| server.books()[0] == 1);
    drop(lazy);
}

/// A connection with greeting and READY behind it, on which the caller goes on by hand.
fn plain_peer(address: &Address, socket_type: &str) -> TcpStream {
    let mut stream = TcpStream::connect(socket_of(address)).expect("it listens");
    let mut greeting = [0u8; 64];
    (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xff, 0x7f, 3, 1);
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting).expect("the peer reads");
    let ready = [
        b"\x05READY\x0bSocket-Type\0\0\0",
        &[socket_type.len() as u8][..],
        socket_type.as_bytes(),
    ]
    .concat();
    stream
        .write_all(&[&[4, ready.len() as u8], &ready[..]].concat())
        .expect("the peer reads");
    stream
}

/// Every PING was answered into the connection's outbox, however full that was: a peer that sent them and read nothing
/// took as much memory as it could send PINGs within the time that a stalled writer is given.
#[test]
fn pings_of_a_peer_that_reads_nothing_fill_no_memory() {
    let server = server_builder(Options {
        write_stall: LONG,
        ..options(1)
    })
    .start()
    .unwrap();
    let address = listen(&server, &everybody(false));
    let mut lazy = plain_peer(&address, "DEALER");
    // Its greeting and the first two bytes of its READY: the peer is admitted.
    lazy.read_exact(&mut [0; 66]).unwrap();
    let ping = b"\x04\x17\x04PING\0\0sixteen bytes...";
    let pings = ping.repeat((64 << 10) / ping.len());
    let before = resident_kib();
    // 48 MiB, of which the kernel's buffers would hide a few.
    for _ in 0..768 {
        lazy.write_all(&pings)
            .unwrap_or_else(|error| panic!("{error}: {:?}", server.metrics().causes()));
    }
    until(&server, "answers are left out", |server| {
        server.metrics().queue_full.get() > 0
    });
    let client = client(2);
    let to = connect(&client, &address);
    assert_eq!(
        ask(&client, to, "test.echo", &[b"x"]),
        Ok(vec![b"x".to_vec()])
    );
    assert!(
        resident_kib() < before + (24 << 10),
        "{before} KiB, then {} KiB",
        resident_kib()
    );
}

/// A PING may say after how much silence its sender wants to be given up. The timer that stood for later, or none at
/// all, was left as it was, and a peer that had announced its end was kept.
#[test]
fn a_peer_that_asks_for_it_is_given_up_early() {
    let server = server_builder(Options {
        heartbeat: None,
        ..options(1)
    })
    .start()
    .unwrap();
    let mut peer = plain_peer(&listen(&server, &everybody(false)), "DEALER");
    peer.write_all(b"\x04\x07\x04PING\0\x01").unwrap();
    until(&server, "a tenth of a second of silence", |server| {
        server.metrics().caused("link", "heartbeat_lost") == 1
    });
}

/// A peer that disconnected while the decision on it was due had its connection's place back at once, and the decision
/// stayed in the queue of all callbacks: one address could fill it, and all replies waited behind it.
#[test]
fn decisions_on_one_address_are_bounded_and_hold_up_no_reply() {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let decide: Decide = std::sync::Arc::new(move |_: &Applicant| {
        let _ = held.lock().unwrap().recv();
        Some(Level::Basic)
    });
    let pre_auth = PreAuthLimits {
        per_source: 8,
        ..PreAuthLimits::default()
    };
    let server = server_builder(Options {
        pre_auth,
        ..options(1)
    })
    .start()
    .unwrap();
    let asking = listen(&server, &listen_options(Admission::Ask(decide), false));
    let open = listen(&server, &everybody(false));
    let client = client(2);
    let to = connect(&client, &open);
    let refused = |server: &Mq| server.metrics().caused("link", "admission_full");
    while refused(&server) == 0 {
        let mut waiting = plain_peer(&asking, "DEALER");
        // It leaves as soon as it has been taken in and greeted; its decision stays behind.
        waiting.read_exact(&mut [0; 64]).unwrap();
    }
    let (told, outcome) = std::sync::mpsc::channel();
    client.request(
        to,
        "test.echo",
        ["x"],
        &RequestOptions::default(),
        move |answer| {
            told.send(answer.is_ok()).unwrap();
        },
    );
    assert!(next(&outcome, "the reply, from a worker"));
    drop(release);
    until(&server, "the books are clean", |server| {
        server.books()[0] == 1
    });
}

#[test]
fn a_frame_over_the_limit_closes_the_link_and_the_next_one_works() {
    let server = server_builder(options(1)).start().unwrap();
    let address = listen(&server, &everybody(true));
    let client = client(2);
    let to = connect(&client, &address);
    assert_eq!(
        ask(&client, to, "test.echo", &[&vec![0; 2 << 20]]),
        Err(RequestError::Gone)
    );
    until(&server, "the reason is counted", |server| {
        server.metrics().caused("link", "frame_too_large") == 1
    });
    assert_eq!(
        ask(&client, to, "test.echo", &[b"x"]),
        Ok(vec![b"x".to_vec()])
    );
}

const SERVER: &str = "SLACKWATER_TEST_SERVER";

/// Not a test of its own: the server that the next test kills. Listens at the port of the environment variable.
#[test]
fn server_process() {
    let Ok(port) = std::env::var(SERVER) else {
        return;
    };
    let server = server_builder(Options {
        ephemeral_ids: true,
        ..options(1)
    })
    .start()
    .unwrap();
    let endpoint = Endpoint::Tcp(([127, 0, 0, 1], port.parse().unwrap()).into());
    let bound = server.listen(&endpoint, &everybody(true)).unwrap();
    let mut out = std::io::stdout();
    writeln!(out, "\nlistening {bound}").unwrap();
    out.flush().unwrap();
    // Ends when the parent closes the pipe, if it is not killed before.
    let _ = std::io::stdin().read(&mut [0]);
}

fn start_server(port: u16) -> (Child, u16) {
    let mut child = Command::new(std::env::current_exe().expect("this test is a program"))
        .args(["--exact", "server_process", "--nocapture"])
        .env(SERVER, port.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test starts itself");
    let mut lines = BufReader::new(child.stdout.take().expect("piped"))
        .lines()
        .map_while(Result::ok);
    let (told, port) = std::sync::mpsc::channel();
    // Ends with the child, whose pipe it reads.
    std::thread::spawn(move || {
        let port = lines.find_map(|line| {
            Some(
                line.strip_prefix("listening tcp://127.0.0.1:")?
                    .parse::<u16>(),
            )
        });
        told.send(port)
    });
    let port = next(&port, "where the server listens")
        .expect("it says so before it ends")
        .expect("a port");
    (child, port)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("Linux").count()
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("every process has a size");
    line.trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number")
}

/// A number from the environment, for runs by hand that are larger than the suite has time for.
fn scale(name: &str, default: usize) -> usize {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// `SLACKWATER_TEST_LINKS` and `SLACKWATER_TEST_ROUNDS` make it larger: 10,000 links and ten rounds take a minute in
/// release.
#[test]
fn clients_return_after_their_server_was_killed_without_leaking() {
    let (link_count, rounds) = (
        scale("SLACKWATER_TEST_LINKS", 200),
        scale("SLACKWATER_TEST_ROUNDS", 3),
    );
    let (mut child, port) = start_server(0);
    let client = Builder::new(Options {
        ephemeral_ids: true,
        request_timeout: LONG,
        ..options(2)
    })
    .start()
    .unwrap();
    let address: Address = format!("curve://127.0.0.1:{port}/{}", keys(1).public())
        .parse()
        .unwrap();
    let links: Vec<ConnectionId> = (0..link_count)
        .map(|_| connect(&client, &address))
        .collect();
    let books = client.books();
    let baseline = descriptors();
    let mut resident = 0;
    for round in 0..rounds {
        child.kill().unwrap();
        child.wait().unwrap();
        until(&client, "every link is noticed to be lost", |client| {
            client.links_up() == 0
        });
        (child, _) = start_server(port);
        until(&client, "every link is back", |client| {
            client.links_up() == link_count
        });
        for link in &links {
            assert_eq!(
                ask(&client, *link, "test.echo", &[b"x"]),
                Ok(vec![b"x".to_vec()]),
                "round {round}"
            );
        }
        until(&client, "the books are as before", |client| {
            client.books() == books
        });
        // The tests beside this one hold descriptors of their own; links would show by the hundred.
        assert!(
            descriptors() < baseline + link_count / 2,
            "{baseline} descriptors before, {} after",
            descriptors()
        );
        // The first round fills the allocator's pools; after it nothing grows by more than noise.
        match round {
            0 => resident = resident_kib(),
            _ => assert!(
                resident_kib() < resident + resident / 4 + 8_192,
                "{resident} KiB, then {}",
                resident_kib()
            ),
        }
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// A peer chose how long the tags of its requests were. Each is kept until its request is answered, which may take minutes:
/// a few thousand of them filled the server's memory.
#[test]
fn a_longer_tag_than_any_peer_needs_is_refused() {
    let server = server_builder(options(1)).start().unwrap();
    let client = client(2);
    let to = connect(&client, &listen(&server, &everybody(true)));
    // A plain command's first part stands where the tag of a request does.
    let request = |tag_bytes: usize| client.send(to, "test.echo", [vec![b't'; tag_bytes], vec![1]]);
    request(64);
    until(&client, "it is answered", |client| {
        client.metrics().late_replies.get() == 1
    });
    request(65);
    request(1 << 20);
    until(&client, "both are refused", |client| {
        client.metrics().caused("refused_by_peer", "NO_REPLY_TAG") == 2
    });
    assert_eq!(client.metrics().late_replies.get(), 1);
}
