//! Links within a host, through the Unix socket beside a listener.

mod common;

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use common::*;
use slackwater_mq::*;
use slackwater_net::Endpoint;

fn tries(beside: bool) -> ConnectOptions {
    ConnectOptions {
        beside,
        timeout: Some(LONG),
        ..ConnectOptions::default()
    }
}

/// Admits everybody, and tells from where they came.
fn listening(encrypted: bool, beside: bool) -> (ListenOptions, Receiver<String>) {
    let (tell, told) = channel();
    let decide = move |peer: &Applicant| {
        // The test may be over.
        let _ = tell.send(peer.remote.clone());
        Some(Level::Basic)
    };
    let options = ListenOptions {
        beside,
        ..listen_options(Admission::Ask(Arc::new(decide)), encrypted)
    };
    (options, told)
}

#[test]
fn a_link_goes_by_the_socket_beside_where_both_ends_may() {
    for encrypted in [false, true] {
        for (listens, tried) in [(true, true), (true, false), (false, true)] {
            let server = server_builder(options(1)).start().unwrap();
            let (listening, from) = listening(encrypted, listens);
            let address = listen(&server, &listening);
            let client = client(2);
            let to = client.connect_wait(&address, &tries(tried)).unwrap();
            let said = ask(&client, to, "test.echo", &[b"x"]);
            assert_eq!(said, Ok(vec![b"x".to_vec()]), "{address}");
            let from = next(&from, "a peer");
            let here = from.contains(&format!("pid {}", std::process::id()));
            assert_eq!(here, listens && tried, "from {from}");
        }
    }
}

/// The socket goes with its process: the link is made again by TCP where the next one has none, and by the socket where the
/// one after that has.
#[test]
fn a_link_that_was_lost_finds_the_way_that_there_is_now() {
    // Of each server, the port of one that had stopped was given to another test.
    let endpoint = lasting_port();
    let address = Address::of(&endpoint, None);
    let client = client(2);
    let mut to = None;
    for (up, beside) in [true, false, true].into_iter().enumerate() {
        let server = server_builder(options(1)).start().unwrap();
        let (listening, from) = listening(false, beside);
        server.listen(&endpoint, &listening).unwrap();
        let to = *to.get_or_insert_with(|| client.connect_wait(&address, &tries(true)).unwrap());
        until(&client, "the link is up", |client| {
            client.metrics().links_up.get() == up as u64 + 1
        });
        assert_eq!(next(&from, "a peer").contains("pid "), beside);
        let said = ask(&client, to, "test.echo", &[b"x"]);
        assert_eq!(said, Ok(vec![b"x".to_vec()]));
        server.stop();
    }
}

/// A listener of an earlier release has no such socket, and that is nothing to tell.
#[test]
fn a_failure_names_the_address_alone() {
    // The kernel gives no listener of another test this port.
    let address = Address::tcp(([127, 0, 0, 1], 1).into());
    let client = client(2);
    let brief = ConnectOptions {
        timeout: Some(Duration::from_millis(500)),
        ..tries(true)
    };
    let Err(ConnectError::Failed { failure, .. }) = client.connect_wait(&address, &brief) else {
        panic!("nobody listens")
    };
    let ConnectFailure::Ended { attempts, .. } = *failure else {
        panic!("there is nothing to look up")
    };
    let tried: Vec<Endpoint> = attempts.into_iter().map(|it| it.endpoint).collect();
    assert_eq!(tried, [address.endpoint().unwrap()]);
    // One for each round, the last of which may have been cut short.
    let rounds = client.metrics().reconnects.get() + 1;
    let failed = client.metrics().caused("link", "connect_failed");
    assert!(failed <= rounds, "{failed} failures in {rounds} rounds");
}

/// A listener, and where; `taken` has the name beside it.
fn behind(taken: impl FnOnce(&Endpoint)) -> (Running, Address, Receiver<String>) {
    // No other test takes a port of this host before the server has it.
    let port = std::net::TcpListener::bind("127.0.0.88:0").expect("loopback");
    let address = port.local_addr().expect("loopback");
    drop(port);
    taken(&Endpoint::beside(address).expect("loopback"));
    let server = server_builder(options(1)).start().expect("loopback");
    let (listening, from) = listening(false, true);
    let bound = server
        .listen(&Endpoint::Tcp(address), &listening)
        .expect("loopback");
    (server, Address::of(&bound, None), from)
}

/// A process that has the name and refuses everybody, or says nothing, would have kept clients from the server.
#[test]
fn what_listens_beside_does_not_speak_for_what_listens_there() {
    let refusing = server_builder(options(3)).start().unwrap();
    let refuse = |name: &Endpoint| {
        let nobody = listen_options(Admission::Ask(Arc::new(|_| None)), false);
        refusing.listen(name, &nobody).unwrap();
    };
    let mut silent = None;
    let say_nothing = |name: &Endpoint| {
        let Endpoint::Unix(name) = name else {
            unreachable!("made as one")
        };
        let name = name.to_str().unwrap().trim_start_matches('@');
        let name = SocketAddr::from_abstract_name(name).unwrap();
        silent = Some(UnixListener::bind_addr(&name).unwrap());
    };
    let brief = ConnectOptions {
        timeout: Some(Duration::from_secs(4)),
        ..tries(true)
    };
    let check = |(_server, address, from): (Running, Address, Receiver<String>)| {
        let client = client(2);
        let to = client.connect_wait(&address, &brief).unwrap();
        let said = ask(&client, to, "test.echo", &[b"x"]);
        assert_eq!(said, Ok(vec![b"x".to_vec()]));
        assert_eq!(next(&from, "a peer"), "127.0.0.1");
    };
    check(behind(refuse));
    check(behind(say_nothing));
}
