//! What a sealed connection that works loses while others knock at its target: connections that send a greeting with a handshake that
//! proves nothing, and go.

use std::collections::VecDeque;
use std::fs::DirBuilder;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde::Serialize;
use slackwater_base::Rng;
use slackwater_mq::{new_keys, write_key};
use slackwater_report::{Bound, Table, figure};
use slackwater_wire::Incarnation;
use slackwater_wire::data::{Features, Greeting, HANDSHAKE_BYTES, VERSION};

use super::ends::{Contact, number};
use super::grid::{Cell, Pair, start_initiator, start_target_in};
use super::raw::MESSAGE;
use super::{BenchError, Carrier, Direction, Options};
use crate::process::{Process, descriptor_limit, orders, tell};
use crate::usage::median;

/// Connections that are tried in a second.
const RATE: usize = 10_000;
/// Those that are open at once.
const OPEN: usize = 256;
/// How long a listener that takes nobody in is waited for.
const PATIENCE: Duration = Duration::from_millis(5);
/// Turns for each round of a run.
const TURNS: usize = 3;

/// A sealed connection beside a flood of those that prove nothing.
#[derive(Clone, Debug, Serialize)]
pub struct Handshakes {
    /// Where they come from: `one address`, or `an address each`.
    pub from: &'static str,
    /// Connections that were tried at the target in a second.
    pub per_second: f64,
    /// Those of them that the target's kernel took.
    pub made_per_second: f64,
    /// Bytes that the connection moved in a nanosecond without them.
    pub quiet_gbps: f64,
    /// The same while others knock at a target of another process with the same keys: what the CPU time of all this costs by itself.
    pub elsewhere_gbps: f64,
    /// Those that were tried there in a second.
    pub elsewhere_per_second: f64,
    /// The same while they knock at its own target.
    pub flooded_gbps: f64,
    /// The last over the one before, in turns: the median.
    pub flooded_over_elsewhere: f64,
}

/// The load of the connection that works.
const CELL: Cell = Cell {
    direction: Direction::Read,
    block: MESSAGE,
    concurrency: 1,
    batch: 16,
};

/// The keys of both ends, in files that only this user can read; gone when this is dropped.
struct Keys(PathBuf);

pub(super) fn measure(options: &Options) -> Result<Vec<Handshakes>, BenchError> {
    let keys = Keys::new()?;
    let (own, clients) = (keys.0.join("target"), keys.0.join("clients"));
    let environment = [
        ("SLACKWATER_TCP_SEAL_KEY", own.as_os_str()),
        ("SLACKWATER_TCP_SEAL_CLIENTS", clients.as_os_str()),
    ];
    let mut pair = Pair {
        target: start_target_in("target", options, Carrier::Tcp, None, &environment)?,
        initiator: start_initiator(
            options,
            Carrier::Tcp,
            "adaptive",
            None,
            Some(&keys.0.join("initiator")),
        )?,
    };
    let contact = pair.target.hear("serving")?;
    pair.initiator.say(&format!("open {contact}"))?;
    pair.initiator.hear("opened")?;
    let target = Contact::address(&contact)?;
    let mut other = start_target_in("target", options, Carrier::Tcp, None, &environment)?;
    let elsewhere = Contact::address(&other.hear("serving")?)?;
    let mut knocker = Process::start(&options.child, &["knocker"], options.patience())?;
    knocker.hear("ready")?;
    let froms = [("one address", 1), ("an address each", 1 << 16)];
    froms
        .into_iter()
        .map(|(from, addresses)| {
            let mut rounds = Vec::new();
            for turn in 0..TURNS * options.rounds.max(1) {
                let mut round = Turn {
                    quiet: pair.round(CELL, options.window.as_millis())?.gbps,
                    ..Turn::default()
                };
                let mut knocked = |at: SocketAddr| {
                    knocker.say(&format!("knock {at} {addresses}"))?;
                    let moved = pair.round(CELL, options.window.as_millis())?.gbps;
                    knocker.say("stop")?;
                    let [tried, made] = knocker.numbers("knocked")?;
                    Ok::<_, BenchError>((moved, tried, made))
                };
                // What a machine does to the first of two it does to each in turn.
                if turn % 2 == 0 {
                    round.there = knocked(elsewhere)?;
                }
                round.here = knocked(target)?;
                if turn % 2 == 1 {
                    round.there = knocked(elsewhere)?;
                }
                rounds.push(round);
            }
            Handshakes::of(from, &rounds)
        })
        .collect()
}

/// What one turn gave: bytes in a nanosecond, and connections tried and made in a second.
#[derive(Clone, Copy, Default)]
struct Turn {
    quiet: f64,
    there: (f64, f64, f64),
    here: (f64, f64, f64),
}

impl Keys {
    fn new() -> Result<Self, BenchError> {
        let mut number = [0; 8];
        getrandom::fill(&mut number).map_err(|error| BenchError::Transfer(error.to_string()))?;
        let name = format!("slackwater-bench-{:016x}", u64::from_le_bytes(number));
        let directory = std::env::temp_dir().join(name);
        let made = DirBuilder::new().mode(0o700).create(&directory);
        made.map_err(BenchError::io("make a directory for keys"))?;
        let keys = Self(directory);
        for end in ["target", "initiator"] {
            let failed = |error: &dyn std::fmt::Display| BenchError::Transfer(error.to_string());
            let pair = new_keys().map_err(|error| failed(&error))?;
            write_key(&keys.0.join(end), &pair).map_err(|error| failed(&error))?;
            if end == "initiator" {
                let line = format!("{} basic\n", pair.public());
                std::fs::write(keys.0.join("clients"), line)
                    .map_err(BenchError::io("write the list of clients"))?;
            }
        }
        Ok(keys)
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // What cannot be removed is of no use to anyone: the keys were for this run.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Knocks where it is told until it is told to stop.
pub(super) fn knock() -> Result<(), BenchError> {
    descriptor_limit();
    let (told, stopped) = std::sync::mpsc::channel::<Vec<String>>();
    // The pace is kept while the next order is waited for.
    std::thread::spawn(move || orders().try_for_each(|order| told.send(order)));
    tell("ready")?;
    while let Ok(order) = stopped.recv() {
        let said: Vec<&str> = order.iter().map(String::as_str).collect();
        let ["knock", at, addresses] = said[..] else {
            return Err(BenchError::Arguments(order));
        };
        let wrong = |_| BenchError::Arguments(order.clone());
        let (at, addresses): (SocketAddr, usize) = (at.parse().map_err(wrong)?, number(addresses)?);
        let (begun, mut tried, mut made) = (Instant::now(), 0, 0);
        let (mut open, mut rng) = (VecDeque::new(), Rng::new(1));
        while matches!(stopped.try_recv(), Err(TryRecvError::Empty)) {
            let due = (begun.elapsed().as_secs_f64() * RATE as f64) as usize;
            if tried >= due {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            if let Some(stream) = knock_once(at, tried % addresses, &mut rng) {
                open.push_back(stream);
                made += 1;
            }
            tried += 1;
            if open.len() > OPEN {
                open.pop_front();
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        drop(open);
        let [tried, made] = [tried, made].map(|count| count as f64 / seconds);
        tell(&format!("knocked {tried} {made}"))?;
    }
    Ok(())
}

/// A connection from one of the addresses of loopback that has sent a greeting; none where there is no room for it. Closed without a
/// farewell, so that it leaves no port behind.
fn knock_once(at: SocketAddr, number: usize, rng: &mut Rng) -> Option<TcpStream> {
    let [.., high, low] = (number as u32 + 1).to_be_bytes();
    let from = SocketAddrV4::new(Ipv4Addr::new(127, 7, high, low.max(1)), 0);
    let flags = SocketFlags::CLOEXEC;
    let socket: OwnedFd =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).ok()?;
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).ok()?;
    rustix::net::sockopt::set_socket_timeout(
        &socket,
        rustix::net::sockopt::Timeout::Send,
        Some(PATIENCE),
    )
    .ok()?;
    rustix::net::bind(&socket, &from).ok()?;
    rustix::net::connect(&socket, &at).ok()?;
    let mut stream = TcpStream::from(socket);
    let mut handshake = [0; HANDSHAKE_BYTES];
    rng.fill(&mut handshake);
    let greeting = Greeting {
        version_min: VERSION,
        version_max: VERSION,
        features: Features::default(),
        incarnation: Incarnation(rng.next_u64()),
        expects: Incarnation(0),
        frame_bytes_max: 1 << 20,
        requests_max: 64,
        in_flight_bytes_max: 64 << 20,
        handshake,
    };
    // The target may have closed it already.
    let _ = stream.write_all(&greeting.to_bytes());
    Some(stream)
}

impl Handshakes {
    fn of(from: &'static str, turns: &[Turn]) -> Result<Self, BenchError> {
        let middle =
            |value: fn(&Turn) -> f64| median(&mut turns.iter().map(value).collect::<Vec<_>>());
        let row = Self {
            from,
            per_second: middle(|turn| turn.here.1),
            made_per_second: middle(|turn| turn.here.2),
            quiet_gbps: middle(|turn| turn.quiet),
            elsewhere_gbps: middle(|turn| turn.there.0),
            elsewhere_per_second: middle(|turn| turn.there.1),
            flooded_gbps: middle(|turn| turn.here.0),
            flooded_over_elsewhere: middle(|turn| turn.here.0 / turn.there.0),
        };
        // Nothing was measured then.
        match row.made_per_second > 0.0 {
            true => Ok(row),
            false => Err(BenchError::Transfer(format!(
                "no connection came to the target, of {:.0} a second that were tried",
                row.per_second
            ))),
        }
    }

    pub(super) fn bound(&self) -> Bound {
        let what = format!(
            "a sealed connection beside {:.0} handshakes a second from {}: GB/s over that beside those at another target",
            self.made_per_second, self.from
        );
        Bound::at_least(what, self.flooded_over_elsewhere, 0.9)
    }

    pub(super) fn table(rows: &[Self]) -> Option<Table> {
        let cells = |row: &Self| {
            let figures = [
                row.per_second,
                row.made_per_second,
                row.elsewhere_per_second,
                row.quiet_gbps,
                row.elsewhere_gbps,
                row.flooded_gbps,
                row.flooded_over_elsewhere,
            ];
            let figures = figures.map(figure);
            [row.from.to_owned()].into_iter().chain(figures).collect()
        };
        let heading = [
            "attempts from",
            "tried a second",
            "made a second",
            "tried at another target",
            "without, GB/s",
            "at another target, GB/s",
            "at its target, GB/s",
            "ratio",
        ];
        (!rows.is_empty()).then(|| {
            Table::new(
                "A sealed connection beside connections that prove nothing",
                &heading,
                rows.iter().map(cells),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_gone_after_the_run() {
        let keys = Keys::new().unwrap();
        let (directory, list) = (keys.0.clone(), keys.0.join("clients"));
        assert!(std::fs::read_to_string(list).unwrap().ends_with(" basic\n"));
        drop(keys);
        assert!(!directory.exists());
    }
}
