//! Connections whose protocol reads and writes itself.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use slackwater_net::{
    ConnId, Endpoint, Event, Limits, Listen, Loop, Net, Protocol, Readiness, UnixAccess,
};

/// Sends back what comes, at most `SHARE` bytes a turn.
struct Echo {
    told: Sender<Endpoint>,
    buffer: Vec<u8>,
    /// Bytes that the kernel would not take.
    rest: Vec<u8>,
}

const SHARE: usize = 4096;
const SECONDS: Duration = Duration::from_secs(20);

impl Protocol for Echo {
    type Command = ();

    fn handle(&mut self, net: &mut Net, event: Event<'_, ()>) {
        match event {
            Event::Command(()) => {
                let endpoint = Endpoint::Tcp("127.0.0.1:0".parse().unwrap());
                let listen = Listen {
                    endpoint,
                    shared: false,
                    access: UnixAccess::default(),
                };
                self.told.send(net.listen(&listen).unwrap().1).unwrap();
            }
            Event::Accepted { conn, .. } => net.take_over(conn),
            other => panic!("a raw connection has no other events: {other:?}"),
        }
    }

    fn ready(&mut self, net: &mut Net, conn: ConnId, readiness: Readiness) {
        let socket = net.descriptor(conn).unwrap();
        if !self.rest.is_empty() {
            if let Ok(count) = send(socket, &self.rest, SendFlags::empty()) {
                self.rest.drain(..count);
            }
            // The next edge of room goes on; what can be read stays readable.
            return net.serve_again(
                conn,
                Readiness {
                    writable: false,
                    ..readiness
                },
            );
        }
        if !readiness.readable {
            return;
        }
        match recv(socket, &mut self.buffer[..SHARE], RecvFlags::empty()) {
            Ok((0, _)) => net.abort(conn),
            Ok((count, _)) => {
                let sent = send(socket, &self.buffer[..count], SendFlags::empty()).unwrap_or(0);
                self.rest.extend_from_slice(&self.buffer[sent..count]);
                net.serve_again(
                    conn,
                    Readiness {
                        readable: true,
                        writable: false,
                    },
                );
            }
            Err(Errno::AGAIN) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_raw_connection_is_served_in_shares_until_its_end() {
    let (told, addresses) = channel();
    let echo = Echo {
        told,
        buffer: vec![0; SHARE],
        rest: Vec::new(),
    };
    let looping = Loop::start("raw", Limits::default(), echo).unwrap();
    looping.command(());
    let Endpoint::Tcp(address) = addresses.recv_timeout(SECONDS).unwrap() else {
        panic!("a TCP address")
    };
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SECONDS)).unwrap();
    // Many shares in one go, and less than the kernel holds, so that one thread can do both ends.
    let sent: Vec<u8> = (0..10 * SHARE + 7)
        .map(|index| (index * 31) as u8)
        .collect();
    stream.write_all(&sent).unwrap();
    let mut got = vec![0; sent.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(got, sent);
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(
        stream.read(&mut got).unwrap(),
        0,
        "the end is an edge as well"
    );
    assert!(looping.downgrade().upgrade().is_some());
    looping.stop();
}

/// Takes connections in and gives them to the other loop.
enum Pass {
    First {
        to: Loop<Pass>,
        told: Sender<Endpoint>,
    },
    Second {
        told: Sender<Vec<u8>>,
    },
}

enum PassCommand {
    Listen,
    Adopt(TcpStream),
}

impl Protocol for Pass {
    type Command = PassCommand;

    fn handle(&mut self, net: &mut Net, event: Event<'_, PassCommand>) {
        match (self, event) {
            (Pass::First { told, .. }, Event::Command(PassCommand::Listen)) => {
                let listen = Listen {
                    endpoint: Endpoint::Tcp("127.0.0.1:0".parse().unwrap()),
                    shared: false,
                    access: UnixAccess::default(),
                };
                told.send(net.listen(&listen).unwrap().1).unwrap();
            }
            (Pass::First { to, .. }, Event::Accepted { conn, .. }) => {
                let stream = net.release(conn).unwrap();
                to.command(PassCommand::Adopt(stream));
            }
            (Pass::Second { .. }, Event::Command(PassCommand::Adopt(stream))) => {
                let conn = net.adopt(stream).unwrap();
                net.take_over(conn);
            }
            _ => panic!("no other events are expected"),
        }
    }

    fn ready(&mut self, net: &mut Net, conn: ConnId, readiness: Readiness) {
        let Pass::Second { told } = self else {
            panic!("the first loop has given its connections away")
        };
        if !readiness.readable {
            return;
        }
        let mut buffer = [0; 16];
        match recv(
            net.descriptor(conn).unwrap(),
            &mut buffer[..],
            RecvFlags::empty(),
        ) {
            Ok((count, _)) => told.send(buffer[..count].to_vec()).unwrap(),
            Err(Errno::AGAIN) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// A connection was given to another loop as a duplicate of its descriptor, and the descriptor was closed. The duplicate
/// kept the connection in the interest list of the first loop, which was woken by every byte for the second.
#[test]
fn a_connection_given_to_another_loop_wakes_only_that_one() {
    let (told, bytes) = channel();
    let start = |name, pass| Loop::start(name, Limits::default(), pass).unwrap();
    let second = start("second", Pass::Second { told });
    let (told, addresses) = channel();
    let to = second.clone();
    let first = start("first", Pass::First { to, told });
    first.command(PassCommand::Listen);
    let Endpoint::Tcp(address) = addresses.recv_timeout(SECONDS).unwrap() else {
        panic!("a TCP address")
    };
    let mut stream = TcpStream::connect(address).unwrap();
    let mut exchange = |byte: u8| {
        stream.write_all(&[byte]).unwrap();
        assert_eq!(bytes.recv_timeout(SECONDS).unwrap(), [byte]);
    };
    exchange(0);
    let before = first.counters().events.get();
    (1..=100).for_each(&mut exchange);
    // An event that the kernel has for the first loop is there by now: its edge came before that of the second.
    first.command(PassCommand::Listen);
    addresses.recv_timeout(SECONDS).unwrap();
    let after = first.counters().events.get();
    assert!(after <= before + 1, "{} events", after - before);
    first.stop();
    second.stop();
}
