//! A server and the clients of its links, as the measuring process sees them.

use std::ffi::OsString;

use super::links::SLICE;
use super::{BenchError, LinksRow, Options};
use crate::process::{Process, descriptor_limit};

/// The peer: many links over libzmq.
const LIBZMQ: &str = include_str!("links.py");

/// Descriptors that are no links.
pub(super) const OWN_DESCRIPTORS: usize = 100;

/// A server and the clients of its links: one, but where descriptors do not reach.
pub(super) struct Pair {
    server: Process,
    clients: Vec<Process>,
    pub(super) kind: Kind,
    pub(super) count: usize,
    heartbeats: bool,
    connect_seconds: f64,
    bytes_per_link: f64,
    pub(super) rows: Vec<LinksRow>,
}

/// Whose links they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Null,
    Curve,
    /// See [`bare`](super::bare).
    Bare,
    /// All sockets in one call of libzmq's own poll, for each turn.
    LibzmqPoll,
    /// The descriptors of libzmq's sockets in one epoll set.
    LibzmqEpoll,
}

impl Kind {
    fn mechanism(self) -> &'static str {
        match self {
            Kind::Null | Kind::LibzmqPoll | Kind::LibzmqEpoll => "NULL",
            Kind::Curve => "CURVE",
            Kind::Bare => "none",
        }
    }

    pub(super) fn client(self) -> &'static str {
        match self {
            Kind::Null | Kind::Curve => "ours",
            Kind::Bare => "bare epoll",
            Kind::LibzmqPoll => "libzmq poll",
            Kind::LibzmqEpoll => "libzmq epoll",
        }
    }

    pub(super) fn is_peer(self) -> bool {
        matches!(self, Kind::LibzmqPoll | Kind::LibzmqEpoll)
    }

    /// Links of one process: a socket of libzmq takes a descriptor of its own beside that of its connection.
    fn links_max(self) -> usize {
        (descriptor_limit() - OWN_DESCRIPTORS) / if self.is_peer() { 2 } else { 1 }
    }
}

impl Pair {
    pub(super) fn start(
        options: &Options,
        kind: Kind,
        count: usize,
        heartbeats: bool,
    ) -> Result<Self, BenchError> {
        let (patience, beats) = (options.patience(), if heartbeats { "on" } else { "off" });
        let serving: &[&str] = match kind {
            Kind::Bare => &["bare-server", &count.to_string()],
            _ => &["links-server", kind.mechanism(), beats],
        };
        let mut server = Process::start(&options.child, serving, patience)?;
        let address = server.hear("listening")?;
        let libzmq: [OsString; 3] = [options.python.clone().into(), "-c".into(), LIBZMQ.into()];
        let processes = count.div_ceil(kind.links_max()).max(1);
        let (mut clients, mut connect_seconds, mut bytes_per_link) = (Vec::new(), 0.0, 0.0);
        for number in 0..processes {
            let links = count / processes + usize::from(number < count % processes);
            let own = links.to_string();
            let mut client = match kind {
                Kind::Bare => {
                    Process::start(&options.child, &["bare-client", &address, &own], patience)?
                }
                Kind::Null | Kind::Curve => {
                    let asking = ["links-client", &address, &own, beats];
                    Process::start(&options.child, &asking, patience)?
                }
                Kind::LibzmqPoll => {
                    Process::start(&libzmq, &["poll", &address, &own, beats], patience)?
                }
                Kind::LibzmqEpoll => {
                    Process::start(&libzmq, &["epoll", &address, &own, beats], patience)?
                }
            };
            let [seconds, bytes] = client.numbers("ready")?;
            connect_seconds += seconds;
            bytes_per_link += bytes / processes as f64;
            clients.push(client);
        }
        Ok(Self {
            server,
            clients,
            kind,
            count,
            heartbeats,
            connect_seconds,
            bytes_per_link,
            rows: Vec::new(),
        })
    }

    pub(super) fn slice(&mut self, rate: u32) -> Result<(), BenchError> {
        self.server.say(&format!("tick {rate}"))?;
        self.server.hear("ticking")?;
        for client in &mut self.clients {
            client.say(&format!("measure {}", SLICE.as_secs_f64()))?;
        }
        // Of several clients the messages and CPU are added up, and the slowest one's latencies count.
        let (mut messages, mut seconds, mut cpu, mut calls) = (0.0, 0.0_f64, 0.0, 0.0);
        let (mut p50, mut p99) = (0.0_f64, 0.0_f64);
        for client in &mut self.clients {
            let measured: [f64; 6] = client.numbers("measured")?;
            messages += measured[0];
            seconds = seconds.max(measured[1]);
            cpu += measured[2];
            (p50, p99) = (p50.max(measured[3]), p99.max(measured[4]));
            calls += measured[5];
        }
        self.server.say("tick 0")?;
        self.server.hear("ticking")?;
        if self.kind.is_peer() {
            // A client that has fallen behind must not work on in the slices of others.
            for client in &mut self.clients {
                client.say("drain")?;
                client.hear("drained")?;
            }
        }
        self.rows.push(LinksRow {
            client: self.kind.client(),
            n: self.count,
            processes: self.clients.len(),
            heartbeats: if self.heartbeats { "on" } else { "off" },
            mechanism: self.kind.mechanism(),
            rate,
            arrived: messages / seconds,
            cpu_percent: 100.0 * cpu / seconds,
            cpu_us_per_msg: 1e6 * cpu / messages,
            p50_us: p50,
            p99_us: p99,
            syscalls_per_msg: (!self.kind.is_peer()).then_some(calls / messages),
            bytes_per_link: self.bytes_per_link,
            connect_seconds: self.connect_seconds,
        });
        Ok(())
    }
}
