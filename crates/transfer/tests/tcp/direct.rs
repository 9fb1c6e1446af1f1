//! Requests that their callers drive themselves, to peers that keep to the protocol and are slow or silent.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use slackwater_transfer::{Cause, Deadline, Engine, Op, Refusal, Segment, Target, TcpConfig};
use slackwater_wire::data::{
    Ack, Data, Features, Frame, GREETING_BYTES, Greeting, HANDSHAKE_BYTES, VERSION,
};

use crate::support::*;

/// An engine, and a target at a peer that a test plays itself behind the listener.
struct Scene {
    alice: Engine,
    bob: Engine,
    target: Target,
    listener: Option<TcpListener>,
}

/// How a peer is slow: a byte at a time.
const DRIP: Duration = Duration::from_millis(50);
const TIMEOUT: Duration = Duration::from_secs(1);

impl Scene {
    fn new(config: TcpConfig) -> Self {
        let (alice, bob) = (
            engine("alice", config),
            engine("bob", crate::support::config()),
        );
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Bytes that it does not read stay with the sender.
        socket2::SockRef::from(&listener)
            .set_recv_buffer_size(64 << 10)
            .unwrap();
        let played = Segment {
            addresses: vec![listener.local_addr().unwrap()],
            ..bob.segment().clone()
        };
        let (peer, there) = (alice.open(played), region(&bob, 2 << 20));
        let target = target(peer, grant(&bob, &there), 0);
        Self {
            alice,
            bob,
            target,
            listener: Some(listener),
        }
    }

    /// Plays the peer of the first connection on another thread.
    fn play<T: Send + 'static>(
        &mut self,
        part: impl FnOnce(TcpStream) -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let (listener, greeting) = (self.listener.take().unwrap(), self.greeting());
        std::thread::spawn(move || {
            let done = part(greet(&listener, &greeting));
            // No second connection was made.
            listener.set_nonblocking(true).unwrap();
            assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
            done
        })
    }

    fn greeting(&self) -> [u8; GREETING_BYTES] {
        let own = Greeting {
            version_min: VERSION,
            version_max: VERSION,
            features: Features::default(),
            incarnation: self.bob.home().incarnation(),
            expects: self.alice.home().incarnation(),
            frame_bytes_max: 16 << 20,
            requests_max: 16,
            in_flight_bytes_max: 64 << 20,
            handshake: [0; HANDSHAKE_BYTES],
        };
        own.to_bytes()
    }
}

/// Accepts the next connection and exchanges greetings.
fn greet(listener: &TcpListener, greeting: &[u8; GREETING_BYTES]) -> TcpStream {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(20 * SECOND)).unwrap();
    stream.read_exact(&mut [0; GREETING_BYTES]).unwrap();
    stream.write_all(greeting).unwrap();
    stream
}

/// The next header.
fn frame(stream: &mut TcpStream) -> Frame {
    let mut bytes = Vec::new();
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
        if let Some((frame, _)) = Frame::read(&bytes).unwrap() {
            return frame;
        }
    }
}

/// Receives a whole write; returns its id.
fn take_write(stream: &mut TcpStream, bytes: usize) -> u64 {
    let Frame::Request(request) = frame(stream) else {
        panic!("no request")
    };
    let Frame::Data(data) = frame(stream) else {
        panic!("no data")
    };
    assert_eq!(
        (request.bytes, data.bytes as usize, data.last),
        (bytes as u64, bytes, true)
    );
    stream.read_exact(&mut vec![0; bytes]).unwrap();
    request.id
}

fn acknowledge(stream: &mut TcpStream, id: u64, bytes: u64, refusal: Option<Refusal>) {
    stream
        .write_all(&acknowledgement(id, bytes, refusal))
        .unwrap();
}

fn acknowledgement(id: u64, bytes: u64, refusal: Option<Refusal>) -> Vec<u8> {
    let mut ack = Vec::new();
    Frame::Ack(Ack { id, refusal, bytes }).write(&mut ack);
    ack
}

/// Sends byte after byte until the receiver stops reading.
fn drip(stream: &mut TcpStream, bytes: &[u8], enough: &Receiver<()>) {
    for byte in bytes {
        if enough.recv_timeout(DRIP) != Err(RecvTimeoutError::Timeout)
            || stream.write_all(&[*byte]).is_err()
        {
            return;
        }
    }
}

const LATE: Cause = Cause::TimedOut(Deadline::Total);

/// The connection of a failed write was closed like any other: the kernel went on sending what it had taken, and the
/// target was written to long after the caller had the error.
#[test]
fn of_a_failed_write_nothing_goes_out_after_the_call() {
    let mut scene = Scene::new(TcpConfig {
        drain_timeout: TIMEOUT,
        ..config()
    });
    let (told, over) = channel();
    let peer = scene.play(move |mut stream| {
        over.recv_timeout(20 * SECOND).unwrap();
        let (mut bytes, mut piece) = (0, vec![0; 64 << 10]);
        loop {
            match stream.read(&mut piece) {
                Ok(0) => panic!("the connection ended in good order after {bytes} bytes"),
                Ok(count) => bytes += count,
                Err(error) => return (bytes, error.kind()),
            }
        }
    });
    assert_eq!(
        scene
            .alice
            .write_now(&scene.target, &vec![7; 1 << 20], TIMEOUT),
        Err(LATE)
    );
    told.send(()).unwrap();
    let (bytes, end) = peer.join().unwrap();
    assert_eq!(end, ErrorKind::ConnectionReset);
    assert!(bytes < 1 << 20, "{bytes} bytes went out");
}

/// A write whose acknowledgement was late on a used connection counted as one that was not begun: it was begun again on
/// a new connection, and its target was not asked to stop.
#[test]
fn a_write_out_of_time_is_taken_back_and_not_begun_again() {
    let mut scene = Scene::new(TcpConfig {
        drain_timeout: 30 * SECOND,
        ..config()
    });
    let peer = scene.play(|mut stream| {
        let first = take_write(&mut stream, 4096);
        acknowledge(&mut stream, first, 4096, None);
        let second = take_write(&mut stream, 4096);
        let given_up = frame(&mut stream);
        acknowledge(&mut stream, second, 0, Some(Refusal::Cancelled));
        (given_up, Frame::Cancel { id: second })
    });
    let bytes = [7; 4096];
    assert_eq!(
        scene.alice.write_now(&scene.target, &bytes, 20 * SECOND),
        Ok(())
    );
    let start = Instant::now();
    assert_eq!(
        scene.alice.write_now(&scene.target, &bytes, TIMEOUT),
        Err(LATE)
    );
    assert!(start.elapsed() < 20 * SECOND, "the peer's word was there");
    let (given_up, expected) = peer.join().unwrap();
    assert_eq!(given_up, expected);
}

/// Only single system calls had a limit: a peer that sent a byte before each of them ran out delayed its caller for as
/// long as it liked.
#[test]
fn an_answer_that_drips_does_not_outlast_the_deadline() {
    for bytes in [4096, 128 << 10] {
        let mut scene = Scene::new(config());
        let (told, enough) = channel();
        let peer = scene.play(move |mut stream| {
            let Frame::Request(request) = frame(&mut stream) else {
                panic!("no request")
            };
            let data = Data {
                id: request.id,
                bytes: request.bytes as u32,
                last: true,
                offset: 0,
            };
            drip(
                &mut stream,
                &[data.to_bytes().as_slice(), &[7; 400]].concat(),
                &enough,
            );
        });
        let start = Instant::now();
        assert_eq!(
            scene
                .alice
                .read_now(&scene.target, &mut vec![0; bytes], TIMEOUT),
            Err(LATE)
        );
        // All bytes would take twice as long.
        assert!(
            start.elapsed() < 10 * SECOND,
            "{:?} for {bytes} bytes",
            start.elapsed()
        );
        // The peer may know by the end of the connection.
        let _ = told.send(());
        peer.join().unwrap();
    }
}

/// Connections left from any port that the kernel chose: behind a firewall that lets some through, none could be made.
#[test]
fn connections_leave_from_the_ports_that_are_configured() {
    let port_of = |listener: &TcpListener| listener.local_addr().unwrap().port();
    let from = |port: u16| TcpConfig {
        local_ports: Some(format!("{port}-{port}").parse().unwrap()),
        ..config()
    };
    // Below those that the kernel gives to connections of other tests.
    let is_free = |&port: &u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let free = (20_000..30_000).find(is_free).expect("a free port");
    let mut scene = Scene::new(from(free));
    let listener = scene.listener.take().unwrap();
    let expected = |host: [u8; 4]| std::net::SocketAddr::from((host, free));
    // The peer does not greet, so that neither the caller nor a loop keeps its connection.
    let alone = scene.alice.read_now(&scene.target, &mut [0; 64], TIMEOUT);
    assert!(matches!(alone, Err(Cause::Unreachable(_))), "{alone:?}");
    assert_eq!(listener.accept().unwrap().1, expected([127, 0, 0, 1]));

    let mut scene = Scene::new(TcpConfig {
        local: vec!["127.0.0.7".parse().unwrap()],
        ..from(free)
    });
    let listener = scene.listener.take().unwrap();
    let here = region(&scene.alice, 4096);
    let read = request(Op::Read, vec![range(&here, 0, 4096)], scene.target);
    let batch = scene.alice.submit(vec![read], &within(20 * SECOND));
    assert_eq!(listener.accept().unwrap().1, expected([127, 0, 0, 7]));
    batch.cancel();

    // What is listened at cannot be left from.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = port_of(&taken);
    let scene = Scene::new(from(port));
    let read = scene.alice.read_now(&scene.target, &mut [0; 64], TIMEOUT);
    let said = format!("every local port of {port}-{port} is in use");
    assert!(
        matches!(&read, Err(Cause::Unreachable(why)) if why.contains(&said)),
        "{read:?}"
    );
}

/// A target could announce one byte more than was asked for unnoticed. A caller that drives its connection itself, with
/// a small answer as with a large one, fails the read; a loop ends the connection at the header alone.
#[test]
fn an_answer_longer_than_its_request_is_refused() {
    for bytes in [4096, 128 << 10] {
        let mut scene = Scene::new(config());
        let peer = scene.play(move |mut stream| {
            answer_too_long(&mut stream);
            // A small answer is checked when all of it has arrived.
            let rest = [vec![7; bytes], acknowledgement(1, bytes as u64, None)].concat();
            let _ = stream.write_all(&rest);
            ends(&mut stream)
        });
        let read = scene
            .alice
            .read_now(&scene.target, &mut vec![0; bytes], 20 * SECOND);
        assert!(matches!(read, Err(Cause::Protocol(_))), "{read:?}");
        assert!(peer.join().unwrap(), "{bytes} bytes");
    }
    let mut scene = Scene::new(config());
    let here = region(&scene.alice, 4096);
    let (listener, greeting) = (scene.listener.take().unwrap(), scene.greeting());
    let peer = std::thread::spawn(move || {
        let mut stream = greet(&listener, &greeting);
        answer_too_long(&mut stream);
        ends(&mut stream)
    });
    let read = request(Op::Read, vec![range(&here, 0, 4096)], scene.target);
    // A read is tried again on another connection, which is not greeted here.
    let batch = scene.alice.submit(vec![read], &within(60 * SECOND));
    assert!(peer.join().unwrap(), "the connection of the loop ends");
    batch.cancel();
}

/// Takes a request, and announces one byte more than it asks for.
fn answer_too_long(stream: &mut TcpStream) {
    let Frame::Request(request) = frame(stream) else {
        panic!("no request")
    };
    let data = Data {
        id: request.id,
        bytes: request.bytes as u32 + 1,
        last: true,
        offset: 0,
    };
    stream.write_all(&data.to_bytes()).unwrap();
}

/// Whether the peer ends the connection, rather than to wait for more.
fn ends(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

/// It looks for the rest of a payload before it sleeps, and no longer than a sleep costs: an answer that stays away for
/// 300 ms takes a small part of that of its CPU.
#[test]
fn the_rest_of_a_payload_that_stays_away_is_slept_for() {
    let mut scene = Scene::new(config());
    let (told, enough) = channel();
    let peer = scene.play(move |mut stream| {
        let Frame::Request(request) = frame(&mut stream) else {
            panic!("no request")
        };
        let data = Data {
            id: request.id,
            bytes: request.bytes as u32,
            last: true,
            offset: 0,
        };
        let begun = [data.to_bytes().as_slice(), &[7; 64 << 10]].concat();
        stream.write_all(&begun).unwrap();
        enough.recv_timeout(20 * SECOND).unwrap();
    });
    let sites = slackwater_transfer::wait_sites();
    let site = sites.iter().find(|site| site.name() == "transfer payload");
    let site = site.expect("the site of callers that wait for a payload");
    let (before, used_before) = (site.counts(), processor_time());
    let read = scene
        .alice
        .read_now(&scene.target, &mut vec![0; 1 << 20], TIMEOUT);
    assert_eq!(read, Err(LATE));
    let (after, used) = (site.counts(), processor_time() - used_before);
    told.send(()).unwrap();
    peer.join().unwrap();
    assert!(after.parks > before.parks);
    // Of this thread alone: others wait at the site too, and a busy machine takes the processor away in the middle of a spin.
    assert!(used < TIMEOUT / 4, "{used:?} of {TIMEOUT:?}");
}

/// Processor time of this thread so far.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The same of a greeting.
#[test]
fn a_greeting_that_drips_does_not_outlast_the_deadline() {
    let mut scene = Scene::new(config());
    let (told, enough) = channel();
    let (listener, greeting) = (scene.listener.take().unwrap(), scene.greeting());
    let peer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        drip(&mut stream, &greeting, &enough);
    });
    let start = Instant::now();
    let read = scene.alice.read_now(&scene.target, &mut [0; 64], TIMEOUT);
    assert!(matches!(read, Err(Cause::Unreachable(_))), "{read:?}");
    assert!(start.elapsed() < 10 * TIMEOUT, "{:?}", start.elapsed());
    told.send(()).unwrap();
    peer.join().unwrap();
}

/// Closing an engine did not reach callers that drove their own connections: they went on until their deadlines, and
/// new ones were accepted.
#[test]
fn a_closed_engine_ends_the_callers_at_work_and_takes_no_others() {
    let mut scene = Scene::new(config());
    let (asked, question) = channel();
    let peer = scene.play(move |mut stream| {
        let request = frame(&mut stream);
        asked.send(()).unwrap();
        // Until the connection ends.
        let _ = stream.read_to_end(&mut Vec::new());
        assert!(matches!(request, Frame::Request(_)), "{request:?}");
    });
    let (alice, target) = (scene.alice.clone(), scene.target);
    let caller = std::thread::spawn(move || {
        let start = Instant::now();
        (
            alice.read_now(&target, &mut [0; 4096], 60 * SECOND),
            start.elapsed(),
        )
    });
    question.recv_timeout(20 * SECOND).unwrap();
    scene.alice.close();
    let (read, took) = caller.join().unwrap();
    assert_eq!(read, Err(Cause::Closed));
    assert!(took < 30 * SECOND, "{took:?}");
    assert_eq!(
        scene.alice.read_now(&target, &mut [0; 4096], SECOND),
        Err(Cause::Closed)
    );
    peer.join().unwrap();
}

/// A lone request had one chance: a peer that turned its connection away, or was not there for a moment, failed it, while
/// a batch was tried again until its deadline.
#[test]
fn a_lone_request_that_is_turned_away_goes_by_the_lanes() {
    let mut scene = Scene::new(config());
    let (listener, greeting) = (scene.listener.take().unwrap(), scene.greeting());
    let peer = std::thread::spawn(move || {
        let mut away = greet(&listener, &greeting);
        let mut goaway = Vec::new();
        Frame::Goaway.write(&mut goaway);
        away.write_all(&goaway).unwrap();
        let mut stream = greet(&listener, &greeting);
        let Frame::Request(request) = frame(&mut stream) else {
            panic!("no request")
        };
        let data = Data {
            id: request.id,
            bytes: 8,
            last: true,
            offset: 0,
        };
        stream.write_all(&data.to_bytes()).unwrap();
        stream.write_all(b"eight by").unwrap();
        acknowledge(&mut stream, request.id, 8, None);
        // Until the engine closes.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let mut bytes = [0; 8];
    let read = scene.alice.read_now(&scene.target, &mut bytes, 20 * SECOND);
    assert_eq!((read, &bytes), (Ok(()), b"eight by"));
    scene.alice.close();
    peer.join().unwrap();
}

/// A caller that asked for several at once, and had one, paid for two turns of an event loop.
#[test]
fn one_of_several_that_is_alone_goes_by_the_thread_that_waits() {
    let (alice, tcp) = engine_and_mover("alice", config());
    let bob = engine("bob", config());
    let there = region(&bob, 2 << 20);
    let peer = alice.open(bob.segment().clone());
    let target = target(peer, grant(&bob, &there), 0);
    let (bytes, mut one, mut two) = (pattern(1, 4096), vec![0; 4096], vec![0; 4096]);
    let written = alice.write_all(&[(target, &bytes)], 20 * SECOND);
    assert_eq!(written, [Ok(slackwater_base::Checksum::of(&bytes))]);
    let read = |reads: &mut [(Target, &mut [u8], Duration)]| {
        let all = alice.read_all(reads);
        assert!(all.iter().all(Result::is_ok), "{all:?}");
        counted(&tcp, "lanes_created")
    };
    assert_eq!(read(&mut [(target, &mut one, 20 * SECOND)]), 0);
    assert_eq!(one, bytes);
    one.fill(0);
    let both = &mut [
        (target, &mut one[..], 20 * SECOND),
        (target, &mut two[..], 20 * SECOND),
    ];
    assert!(read(both) > 0);
    assert_eq!((&one, &two), (&bytes, &bytes));
}
