//! Peers that are down, restarted, silent or break the protocol.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use slackwater_transfer::{BatchError, Cause, Engine, Op, Segment, Status, TcpConfig};
use slackwater_wait::Waiting;
use slackwater_wire::data::{Frame, GREETING_BYTES, Greeting};

use crate::raw::greeting;
use crate::support::*;

static SITE: slackwater_wait::Site = slackwater_wait::Site::new("test");

/// The kernel gives no listener of another test this port.
fn nobody() -> std::net::SocketAddr {
    ([127, 0, 0, 1], 1).into()
}

#[test]
fn ten_thousand_requests_to_a_peer_that_is_down_end_by_their_deadline() {
    let (alice, bob) = (engine("alice", config()), engine("bob", config()));
    let (here, there) = (region(&alice, 4096), region(&bob, 4096));
    let down = Segment {
        addresses: vec![nobody()],
        ..bob.segment().clone()
    };
    let (peer, capability) = (alice.open(down), grant(&bob, &there));
    let requests = (0..10_000).map(|_| {
        request(
            Op::Read,
            vec![range(&here, 0, 64)],
            target(peer, capability, 0),
        )
    });
    let start = Instant::now();
    let batch = alice.submit(requests.collect(), &within(SECOND));
    assert!(matches!(
        batch.wait(&Waiting::at(&SITE)),
        Err(BatchError::Failed(Cause::Unreachable(_)))
    ));
    assert!(
        start.elapsed() >= SECOND && start.elapsed() < 10 * SECOND,
        "{:?}",
        start.elapsed()
    );
    assert!((0..10_000).all(|request| batch.status(request) == Some(Status::Failed)));
    assert!(alice.probe(peer, SECOND / 10).is_err());
}

#[test]
fn a_restarted_peer_is_gone_under_its_old_name() {
    let (alice, bob, carol) = (
        engine("alice", config()),
        engine("bob", config()),
        engine("carol", config()),
    );
    let (here, there) = (region(&alice, 4096), region(&bob, 4096));
    // Another process listens at bob's address.
    let moved = Segment {
        addresses: carol.segment().addresses.clone(),
        ..bob.segment().clone()
    };
    let (peer, capability) = (alice.open(moved), grant(&bob, &there));
    let read = request(
        Op::Read,
        vec![range(&here, 0, 64)],
        target(peer, capability, 0),
    );
    let (expected, found) = (bob.home().incarnation(), carol.home().incarnation());
    let gone = || Err(BatchError::Failed(Cause::Gone { expected, found }));
    assert_eq!(both_ways(&alice, &read, 20 * SECOND), [gone(), gone()]);
}

#[test]
fn the_second_address_serves_when_the_first_is_dead() {
    let (alice, bob) = (engine("alice", config()), engine("bob", config()));
    let (here, there) = (region(&alice, 4096), region(&bob, 4096));
    fill(&there, 4);
    let addresses = vec![nobody(), bob.segment().addresses[0]];
    let (peer, capability) = (
        alice.open(Segment {
            addresses,
            ..bob.segment().clone()
        }),
        grant(&bob, &there),
    );
    let read = request(
        Op::Read,
        vec![range(&here, 0, 4096)],
        target(peer, capability, 0),
    );
    assert_eq!(both_ways(&alice, &read, 20 * SECOND), [Ok(()), Ok(())]);
    assert!(bytes_of(&here, 0, 4096) == bytes_of(&there, 0, 4096));
}

#[test]
fn the_engine_speaks_both_versions_of_ip() {
    if TcpListener::bind("[::1]:0").is_err() {
        return assert!(
            TcpStream::connect("[::1]:1").is_err(),
            "without IPv6 there is nothing to show"
        );
    }
    let bind = vec!["[::1]:0".parse().unwrap(), "127.0.0.1:0".parse().unwrap()];
    let (alice, bob) = (
        engine("alice", config()),
        engine("bob", TcpConfig { bind, ..config() }),
    );
    assert_eq!(bob.segment().addresses.len(), 2);
    let (here, there) = (region(&alice, 4096), region(&bob, 4096));
    for address in bob.segment().addresses.clone() {
        let one = Segment {
            addresses: vec![address],
            ..bob.segment().clone()
        };
        let (peer, capability) = (alice.open(one), grant(&bob, &there));
        let read = request(
            Op::Read,
            vec![range(&here, 0, 4096)],
            target(peer, capability, 0),
        );
        assert_eq!(both_ways(&alice, &read, 20 * SECOND), [Ok(()), Ok(())]);
    }
}

#[test]
fn a_peer_that_falls_silent_is_given_up_in_time() {
    let impatient = TcpConfig {
        progress_timeout: SECOND / 5,
        ..config()
    };
    let (alice, bob) = (engine("alice", impatient), engine("bob", config()));
    let (here, there) = (region(&alice, 4096), region(&bob, 4096));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = Segment {
        addresses: vec![listener.local_addr().unwrap()],
        ..bob.segment().clone()
    };
    let (peer, capability) = (alice.open(silent), grant(&bob, &there));
    let read = request(
        Op::Read,
        vec![range(&here, 0, 4096)],
        target(peer, capability, 0),
    );
    let start = Instant::now();
    let ended = both_ways(&alice, &read, SECOND);
    assert!(start.elapsed() < 10 * SECOND);
    for ended in ended {
        let fit = matches!(
            ended,
            Err(BatchError::Failed(
                Cause::TimedOut(_) | Cause::Unreachable(_)
            ))
        );
        assert!(fit, "{ended:?}");
    }
}

/// Plays a target: greets as the engine that is meant, and hands over each connection. Says where it listens.
fn impostor(of: &Engine, mut play: impl FnMut(TcpStream) + Send + 'static) -> Segment {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let segment = Segment {
        addresses: vec![listener.local_addr().unwrap()],
        ..of.segment().clone()
    };
    let own = Greeting {
        incarnation: segment.incarnation,
        ..greeting(0)
    };
    std::thread::spawn(move || {
        // It ends with the process.
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let hello = stream.read_exact(&mut [0; GREETING_BYTES]);
            if hello.is_ok() && stream.write_all(&own.to_bytes()).is_ok() {
                play(stream);
            }
        }
    });
    segment
}

/// A read that its peer answered like a probe was reported complete, though not a byte of it had come.
#[test]
fn the_answer_to_another_question_completes_nothing() {
    let (alice, bob) = (engine("alice", config()), engine("bob", config()));
    let (here, there) = (region(&alice, 64), region(&bob, 64));
    let liar = impostor(&bob, |mut stream| {
        // One without a trace is shorter than the longest.
        let mut request = vec![0; Frame::BYTES_MAX];
        if let Ok(length) = stream.read(&mut request)
            && let Ok(Some((Frame::Request(asked), _))) = Frame::read(&request[..length])
        {
            let mut pong = Vec::new();
            Frame::Pong { token: asked.id }.write(&mut pong);
            let _ = stream.write_all(&pong);
            let _ = stream.read(&mut [0; 1]);
        }
    });
    let read = request(
        Op::Read,
        vec![range(&here, 0, 64)],
        target(alice.open(liar), grant(&bob, &there), 0),
    );
    let batch = alice.submit(vec![read], &within(4 * SECOND));
    let ended = batch.wait(&Waiting::at(&SITE));
    assert!(
        matches!(ended, Err(BatchError::Failed(Cause::Protocol(_)))),
        "{ended:?}"
    );
}

/// A peer that greeted, and closed the connection at the first request, was connected to as fast as the loop could.
#[test]
fn a_peer_that_greets_and_drops_is_not_stormed() {
    let (alice, bob) = (engine("alice", config()), engine("bob", config()));
    let (here, there) = (region(&alice, 64), region(&bob, 64));
    let drops = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&drops);
    let rude = impostor(&bob, move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let read = request(
        Op::Read,
        vec![range(&here, 0, 64)],
        target(alice.open(rude), grant(&bob, &there), 0),
    );
    let batch = alice.submit(vec![read], &within(2 * SECOND));
    assert!(batch.wait(&Waiting::at(&SITE)).is_err());
    // Pauses are the upper halves of 100, 200, 400, 800 and 1600 ms. Without pauses there were thousands of connections.
    assert!(
        (2..=7).contains(&drops.load(Ordering::Relaxed)),
        "{drops:?} connections in two seconds"
    );
}

#[test]
fn connections_leave_from_the_addresses_that_are_chosen() {
    let local = vec!["127.0.0.2".parse().unwrap(), "127.0.0.3".parse().unwrap()];
    let (alice, bob) = (
        engine("alice", TcpConfig { local, ..config() }),
        engine("bob", config()),
    );
    let (here, there) = (region(&alice, 64), region(&bob, 64));
    let (tell, sources) = std::sync::mpsc::channel();
    // Both routes fail, so both are tried.
    let rude = impostor(&bob, move |stream| {
        drop(tell.send(stream.peer_addr().unwrap().ip().to_string()))
    });
    let (peer, capability) = (alice.open(rude), grant(&bob, &there));
    let read = request(
        Op::Read,
        vec![range(&here, 0, 64)],
        target(peer, capability, 0),
    );
    let batch = alice.submit(vec![read.clone()], &within(20 * SECOND));
    let mut seen = [(); 2].map(|()| sources.recv_timeout(20 * SECOND).expect("a connection"));
    batch.cancel();
    seen.sort();
    assert_eq!(seen, ["127.0.0.2", "127.0.0.3"]);
    let honest = target(alice.open(bob.segment().clone()), capability, 0);
    assert_eq!(
        both_ways(&alice, &request(Op::Read, read.local, honest), 20 * SECOND),
        [Ok(()), Ok(())]
    );
}

/// A peer that was opened again under other addresses, with the same incarnation, was still looked for at the old ones.
#[test]
fn a_peer_that_moved_is_found_where_it_is() {
    let (alice, bob) = (engine("alice", config()), engine("bob", config()));
    let (here, there) = (region(&alice, 64), region(&bob, 64));
    let read = |segment: Segment, timeout| {
        let to = target(alice.open(segment), grant(&bob, &there), 0);
        let batch = alice.submit(
            vec![request(Op::Read, vec![range(&here, 0, 64)], to)],
            &within(timeout),
        );
        batch.wait(&Waiting::at(&SITE))
    };
    let old = Segment {
        addresses: vec![nobody()],
        ..bob.segment().clone()
    };
    assert!(read(old, SECOND / 10).is_err());
    assert_eq!(read(bob.segment().clone(), 20 * SECOND), Ok(()));
}

#[test]
fn unauthenticated_peers_and_junk_do_not_disturb_the_others() {
    let (alice, bob) = (engine("alice", config()), engine("bob", config()));
    let (here, there) = (region(&alice, 1 << 20), region(&bob, 1 << 20));
    let (peer, capability) = (alice.open(bob.segment().clone()), grant(&bob, &there));
    let address = bob.segment().addresses[0];
    let mut rude: Vec<TcpStream> = (0..20)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    for (index, stream) in rude.iter_mut().enumerate() {
        stream.set_read_timeout(Some(20 * SECOND)).unwrap();
        if index % 2 == 0 {
            stream.write_all(&pattern(index as u64, 200)).unwrap();
            // Junk is answered by the end of the connection.
            assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)));
        }
    }
    for _ in 0..20 {
        let read = request(
            Op::Read,
            vec![range(&here, 0, 1 << 20)],
            target(peer, capability, 0),
        );
        assert_eq!(both_ways(&alice, &read, 20 * SECOND), [Ok(()), Ok(())]);
    }
}

#[test]
fn idle_lanes_are_closed_and_made_anew_when_needed() {
    let brief = TcpConfig {
        idle_timeout: SECOND / 20,
        gc_interval: SECOND / 20,
        ..config()
    };
    let ((alice, tcp), bob) = (engine_and_mover("alice", brief), engine("bob", config()));
    let (here, there) = (region(&alice, 4096), region(&bob, 4096));
    let (peer, capability) = (alice.open(bob.segment().clone()), grant(&bob, &there));
    for round in 1..=2 {
        let read = request(
            Op::Read,
            vec![range(&here, 0, 4096)],
            target(peer, capability, 0),
        );
        alice
            .submit(vec![read], &within(20 * SECOND))
            .wait(&Waiting::at(&SITE))
            .unwrap();
        until("an idle lane is closed", || {
            tcp.lane_counters().closed_idle == round
        });
        assert_eq!(tcp.lane_counters().created, round);
        assert_eq!(tcp.lanes_by_loop(), [0, 0]);
    }
}

/// A region was unregistered only when all requests of its own process on it had ended, and a peer that never answers
/// kept it for as long as they had time; requests of others that were before them in the queue did as well.
#[test]
fn a_region_is_unregistered_whatever_its_peers_do() {
    let few = TcpConfig {
        max_transfers: 2,
        ..config()
    };
    let ((alice, tcp), bob) = (engine_and_mover("alice", few), engine("bob", config()));
    let there = region(&bob, 4096);
    let mut kept = Vec::new();
    let silent = impostor(&bob, move |stream| kept.push(stream));
    let (peer, capability) = (alice.open(silent), grant(&bob, &there));
    let other = region(&alice, 4096);
    for op in [Op::Read, Op::Write] {
        let here = region(&alice, 4096);
        let of = |region| {
            request(
                op,
                vec![range(region, 0, 4096)],
                target(peer, capability, 0),
            )
        };
        let requests = [&here, &other, &here, &here, &other].map(|region| of(region));
        let batch = alice.submit(requests.to_vec(), &within(60 * SECOND));
        until("some are under way and some queued", || {
            let (active, queued) = tcp.load();
            active > 0 && queued > 0
        });
        alice.unregister(here.id(), 10 * SECOND).unwrap();
        for (index, ends) in [true, false, true, true, false].into_iter().enumerate() {
            // Its memory is let go of before it is told.
            let ended = || batch.outcome(index).map(|outcome| outcome.cause);
            match ends {
                true => until("it has ended", || {
                    let cause = ended();
                    let fits = matches!(cause, None | Some(Some(Cause::Invalid(_))));
                    assert!(fits, "{cause:?}");
                    cause.is_some()
                }),
                false => assert_eq!(ended(), None, "{op:?} {index}"),
            }
        }
        batch.cancel();
        let _ = batch.wait(&Waiting::at(&SITE));
    }
}
