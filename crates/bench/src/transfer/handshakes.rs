//! What a sealed connection that works loses while others knock at its target: connections that send a greeting with a handshake that
//! proves nothing, and go.

use std::collections::VecDeque;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
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
    /// Connections that were tried in a second.
    pub per_second: f64,
    /// Bytes that the connection moved in a nanosecond without them.
    pub quiet_gbps: f64,
    /// The same while as many knock at a listener of another process, which does nothing but close them: what the CPU time of
    /// the kernel and of those who knock costs by itself.
    pub elsewhere_gbps: f64,
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
    let mut sink = Process::start(&options.child, &["sink"], options.patience())?;
    let elsewhere = sink.hear("serving")?;
    let mut knocker = Process::start(&options.child, &["knocker"], options.patience())?;
    knocker.hear("ready")?;
    let mut rows = Vec::new();
    for (from, addresses) in [("one address", 1), ("an address each", 1 << 16)] {
        let (mut quiet, mut beside, mut flooded) = (Vec::new(), Vec::new(), Vec::new());
        let (mut ratios, mut rates) = (Vec::new(), Vec::new());
        for _ in 0..TURNS * options.rounds.max(1) {
            quiet.push(pair.round(CELL, options.window.as_millis())?.gbps);
            let mut knocked = |at: &str| {
                knocker.say(&format!("knock {at} {addresses}"))?;
                let moved = pair.round(CELL, options.window.as_millis())?.gbps;
                knocker.say("stop")?;
                let [rate] = knocker.numbers("knocked")?;
                rates.push(rate);
                Ok::<f64, BenchError>(moved)
            };
            let (there, here) = (knocked(&elsewhere)?, knocked(&target.to_string())?);
            beside.push(there);
            flooded.push(here);
            ratios.push(here / there);
        }
        rows.push(Handshakes {
            from,
            per_second: median(&mut rates),
            quiet_gbps: median(&mut quiet),
            elsewhere_gbps: median(&mut beside),
            flooded_gbps: median(&mut flooded),
            flooded_over_elsewhere: median(&mut ratios),
        });
    }
    Ok(rows)
}

impl Keys {
    fn new() -> Result<Self, BenchError> {
        let name = format!("slackwater-bench-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).map_err(BenchError::io("make a directory for keys"))?;
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

/// Takes connections in and closes them.
pub(super) fn sink() -> Result<(), BenchError> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(BenchError::io("listen"))?;
    let address = listener.local_addr().map_err(BenchError::io("listen"))?;
    std::thread::spawn(move || listener.incoming().for_each(drop));
    tell(&format!("serving {address}"))?;
    orders().for_each(drop);
    Ok(())
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
        let (begun, mut tried, mut open) = (Instant::now(), 0, VecDeque::new());
        let mut rng = Rng::new(1);
        while matches!(
            stopped.try_recv(),
            Err(std::sync::mpsc::TryRecvError::Empty)
        ) {
            let due = (begun.elapsed().as_secs_f64() * RATE as f64) as usize;
            while tried < due {
                open.extend(knock_once(at, tried % addresses, &mut rng));
                tried += 1;
                if open.len() > OPEN {
                    open.pop_front();
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(open);
        let rate = tried as f64 / begun.elapsed().as_secs_f64();
        tell(&format!("knocked {rate}"))?;
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
    pub(super) fn bound(&self) -> Bound {
        let what = format!(
            "a sealed connection beside {RATE} attempts a second from {}: GB/s over that beside as many at another process",
            self.from
        );
        Bound::at_least(what, self.flooded_over_elsewhere, 0.9)
    }

    pub(super) fn table(rows: &[Self]) -> Option<Table> {
        let cells = |row: &Self| {
            let figures = [
                row.per_second,
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
            "a second",
            "without, GB/s",
            "at another process, GB/s",
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
