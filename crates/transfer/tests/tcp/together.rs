//! Small requests of a crowd of callers, to a peer that a test plays: it answers when the test says so.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use slackwater_transfer::{Cause, Deadline, Engine, Refusal, Segment, Target, Tcp, TcpConfig};
use slackwater_wire::Incarnation;
use slackwater_wire::data::{
    Ack, Data, Features, Frame, GREETING_BYTES, Greeting, HANDSHAKE_BYTES, Request, VERSION,
};

use crate::support::*;

const BYTES: usize = 4096;
/// Callers with a connection each; one more makes a crowd.
const ALONE: usize = 7;
/// Those that lead a crowd, with a connection each too, when the first one joins them.
const LEAD: usize = 3;
/// All that have a connection of their own then.
const AHEAD: usize = ALONE + LEAD;
const JOINED: usize = 8;
/// The most callers that lead at once.
const LEADERS: usize = 6;

/// What the peer has seen, and what it does.
#[derive(Debug, Default)]
struct Peer {
    connections: usize,
    requests: usize,
    /// The most requests that came with one call.
    together: usize,
    /// It answers.
    answers: bool,
    /// It answers on the connection of the first caller that leads.
    answers_first: bool,
    /// It closes the connections that it has, and answers on others.
    closes: bool,
    refuses_odd: bool,
    /// It greets nobody who connects.
    silent: bool,
    /// Of requests that came together it answers the first one alone, until it is told to go on.
    holds_rest: bool,
    /// It answers on connections beyond those of the callers that can lead.
    late_answer: bool,
}

#[derive(Debug, Default)]
struct Played {
    peer: Mutex<Peer>,
    changed: Condvar,
}

struct Scene {
    alice: Engine,
    tcp: Arc<Tcp>,
    target: Target,
    played: Arc<Played>,
}

type Caller = JoinHandle<(Result<(), Cause>, Vec<u8>)>;

impl Played {
    fn peer<T>(&self, act: impl FnOnce(&mut Peer) -> T) -> T {
        let done = act(&mut self.peer.lock().unwrap());
        self.changed.notify_all();
        done
    }

    /// Waits until it is to answer; says whether the connection is to be closed instead.
    fn wait(&self, number: usize) -> bool {
        let peer = self.peer.lock().unwrap();
        let waits = |peer: &mut Peer| {
            let late = peer.late_answer && number > ALONE + LEADERS;
            let first = peer.answers_first && number == ALONE + 1;
            !peer.answers && !peer.closes && !late && !first
        };
        let (peer, waited) = self
            .changed
            .wait_timeout_while(peer, 20 * SECOND, waits)
            .unwrap();
        let since = "the test has not gone on within 20 s";
        assert!(
            !waited.timed_out(),
            "{since}: connection {number}, {peer:?}"
        );
        peer.closes && number <= AHEAD
    }

    fn go_on(&self) {
        let peer = self.peer.lock().unwrap();
        let holds = |peer: &mut Peer| peer.holds_rest;
        let waited = self.changed.wait_timeout_while(peer, 20 * SECOND, holds);
        assert!(!waited.unwrap().1.timed_out(), "not told within 20 s");
    }

    fn serve(self: &Arc<Self>, listener: TcpListener, greeting: [u8; GREETING_BYTES]) {
        let own = Arc::clone(self);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let number = own.peer(|peer| {
                    peer.connections += 1;
                    peer.connections
                });
                let own = Arc::clone(&own);
                std::thread::spawn(move || own.connection(stream, number, &greeting));
            }
        });
    }

    fn connection(&self, mut stream: TcpStream, number: usize, greeting: &[u8; GREETING_BYTES]) {
        if stream.read_exact(&mut [0; GREETING_BYTES]).is_err() {
            return;
        }
        let peer = self.peer.lock().unwrap();
        let silent = |peer: &mut Peer| peer.silent;
        let waited = self.changed.wait_timeout_while(peer, 20 * SECOND, silent);
        assert!(!waited.unwrap().1.timed_out(), "not told within 20 s");
        // A caller whose time was over has closed it.
        if stream.write_all(greeting).is_err() {
            return;
        }
        let (mut heard, mut piece) = (Vec::new(), [0; 64 << 10]);
        while let Ok(count @ 1..) = stream.read(&mut piece) {
            heard.extend_from_slice(&piece[..count]);
            let mut requests = Vec::new();
            while let Some((frame, length)) = Frame::read(&heard).unwrap() {
                heard.drain(..length);
                if let Frame::Request(request) = frame {
                    requests.push(request);
                }
            }
            self.peer(|peer| {
                peer.requests += requests.len();
                peer.together = peer.together.max(requests.len());
            });
            if self.wait(number) {
                return;
            }
            let refuses_odd = self.peer(|peer| peer.refuses_odd);
            let mut answers = Vec::new();
            for (index, request) in requests.iter().enumerate() {
                if index == 1 {
                    if stream.write_all(&answers).is_err() {
                        return;
                    }
                    answers.clear();
                    self.go_on();
                }
                answer(request, refuses_odd, &mut answers);
            }
            if stream.write_all(&answers).is_err() {
                return;
            }
        }
    }
}

/// The answer to a read: the number of its block, again and again.
fn answer(request: &Request, refuses_odd: bool, out: &mut Vec<u8>) {
    let (id, block) = (request.id, request.offset / BYTES as u64);
    let refused = refuses_odd && block % 2 == 1;
    if !refused {
        let data = Data {
            id,
            bytes: BYTES as u32,
            last: true,
            offset: 0,
        };
        Frame::Data(data).write(out);
        out.extend_from_slice(&[block as u8; BYTES]);
    }
    Frame::Ack(Ack {
        id,
        refusal: refused.then_some(Refusal::Range),
        bytes: if refused { 0 } else { BYTES as u64 },
    })
    .write(out);
}

impl Scene {
    /// A peer that takes `requests_max` requests of a connection at once, and callers that wait for each other so long.
    fn new(requests_max: u32, crowd_patience: Duration) -> Self {
        Self::at(1, requests_max, crowd_patience)
    }

    /// A peer of which so many addresses are known.
    fn at(addresses: usize, requests_max: u32, crowd_patience: Duration) -> Self {
        let config_of_alice = TcpConfig {
            crowd_patience,
            ..config()
        };
        let (alice, tcp) = engine_and_mover("alice", config_of_alice);
        let bob = engine("bob", config());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let segment = Segment {
            addresses: vec![listener.local_addr().unwrap(); addresses],
            ..bob.segment().clone()
        };
        let own = Greeting {
            version_min: VERSION,
            version_max: VERSION,
            features: Features::default(),
            incarnation: bob.home().incarnation(),
            expects: Incarnation(0),
            frame_bytes_max: 16 << 20,
            requests_max,
            in_flight_bytes_max: 64 << 20,
            handshake: [0; HANDSHAKE_BYTES],
        };
        let played = Arc::<Played>::default();
        played.serve(listener, own.to_bytes());
        let there = region(&bob, 64 * BYTES);
        let target = target(alice.open(segment), grant(&bob, &there), 0);
        Self {
            alice,
            tcp,
            target,
            played,
        }
    }

    fn read(&self, block: usize, timeout: Duration) -> Caller {
        let (alice, mut target) = (self.alice.clone(), self.target);
        target.offset = (block * BYTES) as u64;
        std::thread::spawn(move || {
            let mut into = vec![0; BYTES];
            let outcome = alice.read_now(&target, &mut into, timeout);
            (outcome, into)
        })
    }

    /// A caller whose request the peer has when this returns.
    fn read_sent(&self, block: usize, timeout: Duration) -> Caller {
        let before = self.played.peer(|peer| peer.requests);
        let caller = self.read(block, timeout);
        until("the peer has the request", || {
            self.played.peer(|peer| peer.requests) == before + 1
        });
        caller
    }

    /// Callers 0 to 6, on a connection each.
    fn alone(&self) -> Vec<Caller> {
        let blocks = 0..ALONE;
        blocks
            .map(|block| self.read_sent(block, 20 * SECOND))
            .collect()
    }

    /// Callers on a connection each, the last of which lead, and those that join them with `timeout`.
    fn crowd(&self, timeout: Duration) -> Vec<Caller> {
        let mut callers = self.alone();
        callers.extend((ALONE..AHEAD).map(|block| self.read_sent(block, 20 * SECOND)));
        callers.extend((AHEAD..AHEAD + JOINED).map(|block| self.read(block, timeout)));
        until("they have joined", || self.joined() == JOINED as u64);
        callers
    }

    fn joined(&self) -> u64 {
        counted(&self.tcp, "requests_joined")
    }
}

fn ends(callers: Vec<Caller>) -> Vec<(Result<(), Cause>, Vec<u8>)> {
    callers
        .into_iter()
        .map(|caller| caller.join().unwrap())
        .collect()
}

fn assert_all_read(callers: Vec<Caller>) {
    for (block, (outcome, into)) in ends(callers).into_iter().enumerate() {
        assert_eq!(outcome, Ok(()), "block {block}");
        assert!(into == [block as u8; BYTES], "other bytes in block {block}");
    }
}

/// 16 and 64 threads with one block of 4 KiB each made as many connections, and each block cost two calls of the kernel and
/// two wakes at either end.
#[test]
fn requests_of_a_crowd_go_out_with_one_call_on_one_connection() {
    let check = |requests_max, together| {
        let scene = Scene::new(requests_max, 60 * SECOND);
        let callers = scene.crowd(20 * SECOND);
        scene.played.peer(|peer| peer.answers_first = true);
        until("the peer has every request", || {
            scene.played.peer(|peer| peer.requests) == AHEAD + JOINED
        });
        scene.played.peer(|peer| {
            assert_eq!((peer.connections, peer.together), (AHEAD, together));
            peer.answers = true;
        });
        assert_all_read(callers);
    };
    check(64, JOINED);
    // A peer is sent no more than it takes.
    check(2, 2);
    check(1, 1);
}

/// A patience without an end was multiplied to more than a duration holds: every caller of a crowd panicked.
#[test]
fn a_crowd_may_wait_for_its_leader_without_an_end() {
    let scene = Scene::new(64, Duration::MAX);
    let callers = scene.crowd(20 * SECOND);
    scene.played.peer(|peer| peer.answers = true);
    assert_all_read(callers);
}

#[test]
fn a_caller_in_a_crowd_leaves_at_its_own_deadline() {
    let scene = Scene::new(64, 60 * SECOND);
    let mut callers = scene.crowd(SECOND);
    let late = ends(callers.split_off(AHEAD));
    for (outcome, _) in late {
        assert_eq!(outcome, Err(Cause::TimedOut(Deadline::Total)));
    }
    // Nobody else has ended, and none of the late ones was sent.
    assert_eq!(scene.played.peer(|peer| peer.requests), AHEAD);
    scene.played.peer(|peer| peer.answers = true);
    assert_all_read(callers);
    assert_eq!(scene.played.peer(|peer| peer.requests), AHEAD);
    // The connections are of use to the next one.
    assert_all_read(vec![scene.read(0, 20 * SECOND)]);
    assert_eq!(scene.played.peer(|peer| peer.connections), AHEAD);
}

/// Those that were started are late while another caller leads.
#[test]
fn a_request_that_was_sent_with_others_ends_at_its_own_deadline() {
    let scene = Scene::new(64, 60 * SECOND);
    let callers = scene.crowd(20 * SECOND);
    scene.played.peer(|peer| peer.answers = true);
    assert_all_read(callers);
    scene.played.peer(|peer| peer.answers = false);
    // The crowd lasts for a while: these lead, and have the latest deadlines.
    let leaders = (0..LEAD).map(|block| scene.read_sent(block, 20 * SECOND));
    let leaders: Vec<Caller> = leaders.collect();
    let joined: Vec<Caller> = (0..4).map(|block| scene.read(block, SECOND)).collect();
    until("they have joined", || scene.joined() == JOINED as u64 + 4);
    for (outcome, _) in ends(joined) {
        assert_eq!(outcome, Err(Cause::TimedOut(Deadline::Total)));
    }
    scene.played.peer(|peer| peer.answers = true);
    assert_all_read(leaders);
}

/// A read that was given up is under way until the peer answers it; the next caller that led could start nothing, and waited for
/// the peer and not for its deadline.
#[test]
fn a_leader_that_the_peer_takes_nothing_from_ends_at_its_own_deadline() {
    let scene = Scene::new(1, 60 * SECOND);
    let alone = scene.alone();
    let mut late: Vec<Caller> = (ALONE..AHEAD)
        .map(|block| scene.read_sent(block, SECOND))
        .collect();
    late.push(scene.read(AHEAD, 2 * SECOND));
    let started = Instant::now();
    for (outcome, _) in ends(late) {
        assert_eq!(outcome, Err(Cause::TimedOut(Deadline::Total)));
    }
    assert!(started.elapsed() < 15 * SECOND, "{:?}", started.elapsed());
    scene.played.peer(|peer| peer.answers = true);
    assert_all_read(alone);
}

#[test]
fn each_caller_of_a_crowd_has_the_answer_to_its_own_request() {
    let scene = Scene::new(64, 60 * SECOND);
    let callers = scene.crowd(20 * SECOND);
    scene
        .played
        .peer(|peer| (peer.answers, peer.refuses_odd) = (true, true));
    for (block, (outcome, into)) in ends(callers).into_iter().enumerate() {
        match block % 2 {
            0 => assert_eq!((outcome, into), (Ok(()), vec![block as u8; BYTES])),
            _ => assert_eq!(
                outcome,
                Err(Cause::Refused(Refusal::Range)),
                "block {block}"
            ),
        }
    }
}

#[test]
fn requests_of_a_crowd_whose_connection_breaks_go_by_the_lanes() {
    let scene = Scene::new(64, 60 * SECOND);
    let callers = scene.crowd(20 * SECOND);
    scene
        .played
        .peer(|peer| (peer.answers, peer.closes) = (true, true));
    assert_all_read(callers);
}

/// The callers that led had little time, in which the first address did not answer, and none left for the second: all that had
/// joined them failed as too late to connect, with all of their own time left.
#[test]
fn callers_outlast_leaders_that_have_no_time_to_connect() {
    let scene = Scene::at(2, 64, 60 * SECOND);
    let alone = scene.alone();
    scene.played.peer(|peer| peer.silent = true);
    let leaders: Vec<Caller> = (ALONE..AHEAD)
        .map(|block| scene.read(block, 2 * SECOND))
        .collect();
    until("they connect", || {
        scene.played.peer(|peer| peer.connections) == AHEAD
    });
    let joined: Vec<Caller> = (0..JOINED)
        .map(|block| scene.read(block, 20 * SECOND))
        .collect();
    until("they have joined", || scene.joined() == JOINED as u64);
    for (late, _) in ends(leaders) {
        assert!(matches!(late, Err(Cause::TimedOut(_))), "{late:?}");
    }
    scene
        .played
        .peer(|peer| (peer.silent, peer.answers) = (false, true));
    assert_all_read(joined);
    assert_all_read(alone);
}

#[test]
fn a_crowd_ends_when_the_mover_is_closed() {
    let scene = Scene::new(64, 60 * SECOND);
    let callers = scene.crowd(20 * SECOND);
    scene.alice.close();
    for (outcome, _) in ends(callers) {
        assert_eq!(outcome, Err(Cause::Closed));
    }
}

/// A caller that came while another one waited for a peer that reads from a disk had to wait as long before its request was sent.
#[test]
fn a_crowd_does_not_wait_for_a_leader_whose_peer_is_slow() {
    // A hundred times as long later they would go by the lanes, with connections of their own.
    let scene = Scene::new(64, Duration::from_millis(50));
    let callers = scene.crowd(20 * SECOND);
    until("the peer has every request", || {
        scene.played.peer(|peer| peer.requests) == AHEAD + JOINED
    });
    scene.played.peer(|peer| {
        let more = peer.connections - AHEAD;
        assert!((1..=LEADERS - LEAD).contains(&more), "{more}");
        peer.answers = true;
    });
    assert_all_read(callers);
    // No caller leads any more, and none is taken to lead: the next one is not queued.
    assert_all_read(vec![scene.read(0, 20 * SECOND)]);
}

/// Callers that led and waited for their answers, as many as may, kept every later request from being sent until it was too late.
#[test]
fn who_comes_while_all_leaders_wait_goes_by_the_lanes() {
    let scene = Scene::new(64, Duration::from_millis(1));
    let mut callers = scene.crowd(20 * SECOND);
    let led = || scene.played.peer(|peer| peer.connections) - ALONE;
    until("the peer has every request", || {
        scene.played.peer(|peer| peer.requests) == AHEAD + JOINED
    });
    // One that leads takes what comes before it waits, so that not each of them leads, or finds nobody to take it.
    while led() < LEADERS {
        callers.push(scene.read_sent(callers.len(), 20 * SECOND));
    }
    scene.played.peer(|peer| peer.late_answer = true);
    let (block, late) = loop {
        let block = callers.len();
        let caller = scene.read_sent(block, 20 * SECOND);
        if led() > LEADERS {
            break (block, caller);
        }
        callers.push(caller);
    };
    assert_eq!(late.join().unwrap(), (Ok(()), vec![block as u8; BYTES]));
    scene.played.peer(|peer| peer.answers = true);
    assert_all_read(callers);
}

/// The caller that led left with its own answer; those whose requests were under way on its connection would have had none.
#[test]
fn a_leader_with_its_answer_leaves_those_under_way_to_another_caller() {
    let scene = Scene::new(64, 60 * SECOND);
    let callers = scene.crowd(20 * SECOND);
    scene
        .played
        .peer(|peer| (peer.answers, peer.holds_rest) = (true, true));
    until("one that joined has its answer", || {
        callers[AHEAD..].iter().any(Caller::is_finished)
    });
    let finished = callers.iter().filter(|caller| caller.is_finished()).count();
    assert!(finished <= AHEAD + LEAD, "{finished}");
    scene.played.peer(|peer| peer.holds_rest = false);
    assert_all_read(callers);
    assert_eq!(scene.played.peer(|peer| peer.connections), AHEAD);
}
