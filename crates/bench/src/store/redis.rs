//! Redis, what many would take instead: a server of this run without persistence, on a Unix socket for one client, or on
//! TCP for many.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use slackwater_base::Rng;

use super::{Row, TARGETS, rate};
use crate::peer::Skipped;
use crate::process::Process;
use crate::usage::quantile;

pub(super) const GET: &str = "redis GET";
pub(super) const SET: &str = "redis SET";

/// The peer, for as long as it answers.
pub(super) struct Peer {
    redis: Option<Redis<UnixStream>>,
    pub(super) skipped: Vec<Skipped>,
}

impl Peer {
    /// Starts the server with its socket in `directory`.
    pub(super) fn start(wanted: bool, directory: &Path) -> Self {
        let mut peer = Self {
            redis: None,
            skipped: Vec::new(),
        };
        match if wanted {
            Redis::start(directory)
        } else {
            Err("left out, as asked".to_owned())
        } {
            Ok(redis) => peer.redis = Some(redis),
            Err(reason) => peer.skip(reason),
        }
        peer
    }

    /// Sets every value of `source` and gets it back, in turns with the store's own passes.
    pub(super) fn pass(
        &mut self,
        pass: usize,
        bytes: usize,
        source: &[u8],
        targets: &mut [u8],
        rows: &mut Vec<Row>,
    ) {
        let Some(redis) = &mut self.redis else { return };
        match redis.pass(bytes, source, targets) {
            Ok([set, get]) => {
                rows.push(Row {
                    what: SET,
                    pass,
                    gbps: set,
                });
                rows.push(Row {
                    what: GET,
                    pass,
                    gbps: get,
                });
            }
            Err(error) => {
                self.redis = None;
                self.skip(error.to_string());
            }
        }
    }

    fn skip(&mut self, reason: String) {
        self.skipped.push(Skipped {
            peer: "redis",
            reason,
        });
    }
}

/// A server and one connection to it.
pub(crate) struct Redis<S> {
    link: Link<S>,
    /// Where further connections are made.
    port: u16,
    /// Ends the server when it is dropped.
    _server: Process,
}

/// GETs on several connections at once.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    /// Keys, which are numbers.
    pub(crate) count: usize,
    /// Length of each value.
    pub(crate) block: usize,
    /// Connections, each with a thread of its own.
    pub(crate) concurrency: usize,
    pub(crate) window: Duration,
}

/// A connection.
struct Link<S>(BufReader<S>);

/// Starts a server without persistence in `directory`; port 0 is none.
fn start(directory: &Path, socket: Option<&Path>, port: u16) -> Result<Process, String> {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    command.args(["--save", "", "--appendonly", "no"]);
    command.args(["--daemonize", "no", "--logfile", ""]);
    if let Some(socket) = socket {
        command.arg("--unixsocket").arg(socket);
    }
    command.arg("--dir").arg(directory).stderr(Stdio::null());
    let server = Process::spawn(command, "redis-server", PATIENCE);
    let mut server = server.map_err(|error| format!("redis-server cannot be started: {error}"))?;
    // "Ready", or "now ready", by its version.
    server
        .hear_of("eady to accept connections")
        .map_err(|error| error.to_string())?;
    Ok(server)
}

impl Redis<UnixStream> {
    fn start(directory: &Path) -> Result<Self, String> {
        // The server works in the directory of its socket.
        let directory = std::fs::canonicalize(directory).map_err(|error| error.to_string())?;
        let socket = directory.join("redis");
        let server = start(&directory, Some(&socket), 0)?;
        let link = connect(&socket).map_err(|error| format!("{}: {error}", socket.display()))?;
        Ok(Self {
            link: Link(BufReader::new(link)),
            port: 0,
            _server: server,
        })
    }

    fn pass(&mut self, bytes: usize, source: &[u8], targets: &mut [u8]) -> io::Result<[f64; 2]> {
        let begun = Instant::now();
        for (number, value) in source.chunks(bytes).enumerate() {
            self.link.set(&number.to_string(), value)?;
        }
        let set = rate(source.len(), begun);
        let begun = Instant::now();
        for number in 0..source.len() / bytes {
            let target = number % TARGETS * bytes;
            let target = &mut targets[target..target + bytes];
            self.link.get(&number.to_string(), target)?;
        }
        let get = rate(source.len(), begun);
        let last = source.len() / bytes - 1;
        let (target, value) = (last % TARGETS * bytes, last * bytes);
        if targets[target..target + bytes] == source[value..value + bytes] {
            Ok([set, get])
        } else {
            Err(said(""))
        }
    }
}

impl Redis<TcpStream> {
    /// A server of its own on a free port of the loopback.
    pub(crate) fn over_tcp(directory: &Path) -> Result<Self, String> {
        // The server cannot choose a port; that of a socket that was just closed is free, most likely.
        let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|socket| socket.local_addr());
        let port = free.map_err(|error| error.to_string())?.port();
        let server = start(directory, None, port)?;
        let link = Link::over_tcp(port).map_err(|error| error.to_string())?;
        Ok(Self {
            link,
            port,
            _server: server,
        })
    }

    pub(crate) fn set(&mut self, key: &str, value: &[u8]) -> io::Result<()> {
        self.link.set(key, value)
    }

    /// Values a second, and the microseconds that half and 99 of 100 took at most.
    pub(crate) fn gets(&mut self, load: Load) -> io::Result<[f64; 3]> {
        let port = self.port;
        let barrier = Barrier::new(load.concurrency);
        let begun = Instant::now();
        let taken: io::Result<Vec<Vec<f64>>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..load.concurrency)
                .map(|thread| {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        let link = Link::over_tcp(port);
                        barrier.wait();
                        link?.gets(load, thread as u64 + 1)
                    })
                })
                .collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended
                .map(|end| end.unwrap_or_else(|_| Err(said("a thread panicked"))))
                .collect()
        });
        let seconds = begun.elapsed().as_secs_f64();
        let mut micros = taken?.concat();
        let rate = micros.len() as f64 / seconds;
        Ok([
            rate,
            quantile(&mut micros, 0.5),
            quantile(&mut micros, 0.99),
        ])
    }
}

impl Link<TcpStream> {
    fn over_tcp(port: u16) -> io::Result<Self> {
        let link = TcpStream::connect(("127.0.0.1", port))?;
        link.set_nodelay(true)?;
        link.set_read_timeout(Some(PATIENCE))?;
        link.set_write_timeout(Some(PATIENCE))?;
        Ok(Self(BufReader::new(link)))
    }
}

impl<S: Read + Write> Link<S> {
    /// The microseconds of each GET.
    fn gets(&mut self, load: Load, seed: u64) -> io::Result<Vec<f64>> {
        let (mut rng, mut target) = (Rng::new(seed), vec![0; load.block]);
        let (begun, mut micros) = (Instant::now(), Vec::new());
        while begun.elapsed() < load.window {
            let key = rng.below(load.count as u64).to_string();
            let asked = Instant::now();
            self.get(&key, &mut target)?;
            micros.push(asked.elapsed().as_nanos() as f64 / 1e3);
        }
        Ok(micros)
    }

    fn set(&mut self, key: &str, value: &[u8]) -> io::Result<()> {
        let head = format!(
            "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n",
            key.len(),
            value.len()
        );
        let link = self.0.get_mut();
        link.write_all(head.as_bytes())?;
        link.write_all(value)?;
        link.write_all(b"\r\n")?;
        self.expect("+OK")
    }

    fn get(&mut self, key: &str, target: &mut [u8]) -> io::Result<()> {
        let command = format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len());
        self.0.get_mut().write_all(command.as_bytes())?;
        self.expect(&format!("${}", target.len()))?;
        self.0.read_exact(target)?;
        self.expect("")
    }

    fn expect(&mut self, line: &str) -> io::Result<()> {
        let mut answer = String::new();
        let mut read = self.0.by_ref().take(LINE_BYTES_MAX);
        read.read_line(&mut answer)?;
        if answer.strip_suffix("\r\n") == Some(line) {
            Ok(())
        } else {
            Err(said(&answer))
        }
    }
}

fn connect(socket: &Path) -> io::Result<UnixStream> {
    let link = UnixStream::connect(socket)?;
    link.set_read_timeout(Some(PATIENCE))?;
    link.set_write_timeout(Some(PATIENCE))?;
    Ok(link)
}

fn said(answer: &str) -> io::Error {
    io::Error::other(format!(
        "it gave something else than was set or asked for: `{}`",
        answer.trim()
    ))
}

/// A server that takes longer to start or to answer counts as missing.
const PATIENCE: Duration = Duration::from_secs(10);
/// Its answers are shorter, the values apart.
const LINE_BYTES_MAX: u64 = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_either_runs_or_is_named_with_the_reason() {
        let root = tempfile::tempdir().unwrap();
        let (bytes, mut rows) = (10_000, Vec::new());
        let source = crate::store::random(1, bytes * 20);
        let mut targets = vec![0; bytes * TARGETS];
        let mut peer = Peer::start(true, root.path());
        peer.pass(0, bytes, &source, &mut targets, &mut rows);
        if peer.redis.is_some() {
            assert_eq!(
                rows.iter().map(|row| row.what).collect::<Vec<_>>(),
                [SET, GET]
            );
            assert!(rows.iter().all(|row| row.gbps > 0.0));
            assert_eq!(targets[..source.len()], source);
            assert!(peer.skipped.is_empty());
        } else {
            assert!(rows.is_empty());
            assert!(!peer.skipped[0].reason.is_empty());
        }
        let asked = Peer::start(false, root.path());
        assert_eq!(
            (asked.skipped[0].peer, asked.skipped[0].reason.as_str()),
            ("redis", "left out, as asked")
        );
    }
}
