//! Links within a host, through the Unix socket beside a listener.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

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

fn socket_of(address: &Address) -> SocketAddr {
    match address.endpoint().expect("loopback") {
        Endpoint::Tcp(address) => address,
        Endpoint::Unix(_) => panic!("a TCP address"),
    }
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
    let mut address = Address::of(&any_port(), None);
    let client = client(2);
    let mut to = None;
    for (up, beside) in [true, false, true].into_iter().enumerate() {
        let server = server_builder(options(1)).start().unwrap();
        let (listening, from) = listening(false, beside);
        if up == 0 {
            address = listen(&server, &listening);
        } else {
            let endpoint = address.endpoint().unwrap();
            server.listen(&endpoint, &listening).unwrap();
        }
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
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::tcp(closed.local_addr().unwrap());
    drop(closed);
    let client = client(2);
    let brief = ConnectOptions {
        timeout: Some(std::time::Duration::from_millis(500)),
        ..tries(true)
    };
    let Err(ConnectError::Failed { failure, .. }) = client.connect_wait(&address, &brief) else {
        panic!("nobody listens")
    };
    let ConnectFailure::Ended { attempts, .. } = *failure else {
        panic!("there is nothing to look up")
    };
    let tried: Vec<Endpoint> = attempts.into_iter().map(|it| it.endpoint).collect();
    assert_eq!(tried, [Endpoint::Tcp(socket_of(&address))]);
}

/// Where the name is taken, processes of this host connect as those of others do.
#[test]
fn a_taken_name_leaves_the_listener_as_it_is() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap();
    drop(port);
    let squatter = server_builder(options(3)).start().unwrap();
    let name = Endpoint::beside(address).unwrap();
    squatter.listen(&name, &everybody(false)).unwrap();
    let server = server_builder(options(1)).start().unwrap();
    let (listening, from) = listening(false, true);
    let bound = server.listen(&Endpoint::Tcp(address), &listening).unwrap();
    let client = client(2);
    let to = client
        .connect_wait(&Address::of(&bound, None), &tries(false))
        .unwrap();
    let said = ask(&client, to, "test.echo", &[b"x"]);
    assert_eq!(said, Ok(vec![b"x".to_vec()]));
    assert_eq!(next(&from, "a peer"), "127.0.0.1");
}
