//! Links to hosts by name: every address is tried, and looking names up delays nothing else.

mod common;

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use slackwater_mq::*;
use slackwater_net::Endpoint;

const NAME: &str = "tcp://somewhere.example:7";

/// A client whose resolver answers for every name what `resolve` returns.
fn client_with(
    resolve: impl Fn() -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
) -> Running {
    let mut builder = Builder::new(options(2));
    builder.resolver(move |host, port| {
        assert_eq!((host, port), ("somewhere.example", 7));
        resolve()
    });
    builder.start().expect("a message layer")
}

fn name() -> Address {
    NAME.parse().expect("an address")
}

fn socket_of(address: &Address) -> SocketAddr {
    match address.endpoint().expect("loopback") {
        Endpoint::Tcp(address) => address,
        Endpoint::Unix(_) => panic!("a TCP address"),
    }
}

/// Addresses of this machine where nothing listens. That of a listener which was dropped was soon the address of a
/// server of another test: the kernel gives no listener these ports unasked.
const CLOSED: [SocketAddr; 2] = [
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1)),
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 2)),
];

/// A listener whose queue is full, so that the kernel leaves further connections without an answer; and its address.
fn silent() -> (Vec<socket2::Socket>, SocketAddr) {
    let new = || {
        socket2::Socket::new(
            socket2::Domain::IPV4,
            socket2::Type::STREAM.nonblocking(),
            None,
        )
        .expect("loopback works")
    };
    let listener = new();
    listener
        .bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())
        .expect("loopback works");
    listener.listen(0).expect("loopback works");
    let address = listener.local_addr().expect("loopback works");
    let mut sockets = vec![listener];
    for _ in 0..4 {
        let socket = new();
        // In progress, and some of them for ever.
        let _ = socket.connect(&address);
        sockets.push(socket);
    }
    (sockets, address.as_socket().expect("loopback works"))
}

/// Only the first address of a name was ever tried: a host with an IPv6 and an IPv4 address whose server listens at
/// one of them could not be reached.
#[test]
fn every_address_of_a_name_is_tried_in_order() {
    let server = server_builder(options(1)).start().unwrap();
    let listening = socket_of(&listen(&server, &everybody(false)));
    let addresses = [CLOSED[0], CLOSED[1], listening].to_vec();
    let client = client_with(move || Ok(addresses.clone()));
    let to = connect(&client, &name());
    assert_eq!(
        ask(&client, to, "test.echo", &[b"x"]),
        Ok(vec![b"x".to_vec()])
    );
    assert_eq!(client.metrics().caused("link", "connect_failed"), 2);
}

#[test]
fn an_address_that_does_not_answer_leaves_time_for_the_next() {
    let server = server_builder(options(1)).start().unwrap();
    let listening = socket_of(&listen(&server, &everybody(false)));
    let (_sockets, silent) = silent();
    let client = client_with(move || Ok(vec![silent, listening]));
    let brief = ConnectOptions {
        timeout: Some(Duration::from_secs(1)),
        ..ConnectOptions::default()
    };
    client
        .connect_wait(&name(), &brief)
        .expect("the second address answers");
    assert_eq!(client.metrics().caused("link", "connect_timeout"), 1);
}

/// In a tenth of a second a busy machine tried the first address only.
#[test]
fn a_failure_tells_which_addresses_were_tried() {
    let client = client_with(|| Ok(CLOSED.to_vec()));
    let brief = ConnectOptions {
        timeout: Some(Duration::from_secs(2)),
        ..ConnectOptions::default()
    };
    let Err(ConnectError::Failed { failure, .. }) = client.connect_wait(&name(), &brief) else {
        panic!("nobody listens")
    };
    let ConnectFailure::Ended { attempts, .. } = *failure else {
        panic!("the name is known")
    };
    let tried: Vec<Endpoint> = attempts
        .iter()
        .map(|attempt| attempt.endpoint.clone())
        .collect();
    assert_eq!(tried, CLOSED.map(Endpoint::Tcp));
    assert!(
        attempts
            .iter()
            .all(|attempt| attempt.error.contains("refused")),
        "{attempts:?}"
    );
}

/// A name that cannot be looked up ends a link that has never been up at once, not only when its time is over.
#[test]
fn an_unknown_name_is_reported_at_once() {
    let client = client_with(|| Err(io::Error::other("no such name")));
    let outcome = client.connect_wait(&name(), &ConnectOptions::default());
    assert_eq!(
        outcome.unwrap_err().to_string(),
        format!("{NAME}: host `somewhere.example`: no such name")
    );
    assert_eq!(client.books(), [0; 5]);
}

/// The name was looked up on the thread that connected or sent: while the resolver was slow that thread was blocked,
/// and if it was a handler that runs inline, so did its loop with all its links.
#[test]
fn a_slow_resolver_holds_up_neither_senders_nor_other_links() {
    let server = server_builder(options(1)).start().unwrap();
    let address = listen(&server, &everybody(false));
    let listening = socket_of(&address);
    let (release, held) = channel::<()>();
    let (held, asked) = (Mutex::new(held), Arc::new(Mutex::new(0)));
    let client = client_with({
        let asked = Arc::clone(&asked);
        move || {
            *asked.lock().unwrap() += 1;
            let _ = held.lock().unwrap().recv();
            Ok(vec![listening])
        }
    });
    let (told, outcomes) = channel();
    let by_name: Vec<ConnectionId> = (0..3)
        .map(|_| {
            let told = told.clone();
            client.connect(&name(), &ConnectOptions::default(), move |outcome| {
                told.send(outcome).unwrap()
            })
        })
        .collect();
    let (answered, answers) = channel();
    for to in &by_name {
        let answered = answered.clone();
        client.request(
            *to,
            "test.echo",
            ["x"],
            &RequestOptions::default(),
            move |outcome| answered.send(outcome.map(drop)).unwrap(),
        );
    }
    // The same loop serves another link meanwhile.
    let other = connect(&client, &address);
    assert_eq!(
        ask(&client, other, "test.echo", &[b"y"]),
        Ok(vec![b"y".to_vec()])
    );
    assert!(
        outcomes.try_recv().is_err() && answers.try_recv().is_err(),
        "the name is not known yet"
    );
    drop(release);
    for _ in &by_name {
        assert_eq!(next(&outcomes, "the link is up"), Ok(()));
        assert_eq!(next(&answers, "the queued request is answered"), Ok(()));
    }
    assert_eq!(
        *asked.lock().unwrap(),
        1,
        "links that wait for one name share its look-up"
    );
}

/// Connections that pass through here can be cut while both ends stay.
struct Relay {
    address: SocketAddr,
    passing: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback works");
        let address = listener.local_addr().expect("loopback works");
        let passing = Arc::new(Mutex::new(Vec::new()));
        let streams = Arc::clone(&passing);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (
                    client.expect("loopback works"),
                    TcpStream::connect(server).expect("loopback works"),
                );
                for (mut from, mut to) in
                    [(&client, &server), (&server, &client)].map(|(from, to)| {
                        (
                            from.try_clone().expect("loopback works"),
                            to.try_clone().expect("loopback works"),
                        )
                    })
                {
                    std::thread::spawn(move || io::copy(&mut from, &mut to));
                }
                streams.lock().expect("no panic").push(client);
            }
        });
        Self { address, passing }
    }

    fn connections(&self) -> usize {
        self.passing.lock().expect("no panic").len()
    }

    fn cut(&self) {
        for stream in &*self.passing.lock().expect("no panic") {
            stream.shutdown(Shutdown::Both).expect("loopback works");
        }
    }
}

/// A name was looked up once for the life of a link, so a server that had moved was never found again.
#[test]
fn a_lost_link_looks_its_name_up_again_and_falls_back_on_what_it_knew() {
    let server = server_builder(options(1)).start().unwrap();
    let listening = socket_of(&listen(&server, &everybody(false)));
    let relays = [Relay::to(listening), Relay::to(listening)];
    let place = Arc::new(Mutex::new(Ok(relays[0].address)));
    let client = client_with({
        let place = Arc::clone(&place);
        move || match *place.lock().unwrap() {
            Ok(address) => Ok(vec![address]),
            Err(()) => Err(io::Error::other("the resolver is down")),
        }
    });
    let to = connect(&client, &name());
    for (says, lost, through) in [
        (Ok(relays[1].address), &relays[0], [1, 1]),
        (Err(()), &relays[1], [1, 2]),
    ] {
        *place.lock().unwrap() = says;
        let before = client.metrics().links_up.get();
        lost.cut();
        until(&client, "the link is up again", |client| {
            client.metrics().links_up.get() > before
        });
        assert_eq!(
            ask(&client, to, "test.echo", &[b"x"]),
            Ok(vec![b"x".to_vec()])
        );
        assert_eq!(relays.each_ref().map(Relay::connections), through);
    }
}
