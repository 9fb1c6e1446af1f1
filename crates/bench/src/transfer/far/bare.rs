//! The limit: bytes over one bare blocking socket between two machines.
//!
//! The end that receives keeps the time, and does so while bytes keep coming: what waits in buffers counts for neither end.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::sockopt;
use slackwater_base::Instant;
use slackwater_wait::now;

use super::super::limits::PING;
use super::super::raw::MESSAGE;
use super::super::{Buffer, latencies};

/// A connection that is silent for so long is given up.
const SILENCE: Duration = Duration::from_secs(10);
/// How long a connection may take to show its token, and how many may try at once.
const GREETING: Duration = Duration::from_secs(2);
const UNPROVEN_MAX: usize = 8;
/// No run is longer.
const LENGTH_MAX: Duration = Duration::from_secs(60);
/// How long the sender goes on after its own time is over: the receiver's began later.
const LATER: Duration = Duration::from_millis(50);
/// Memory that the bytes come from and go to.
pub(super) const BARE_BYTES: usize = 64 << 20;

/// What goes over a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// A stream to the end that connected.
    Read = 0,
    /// A stream to the end that listens.
    Write = 1,
    /// 4 KiB there and back.
    Ping = 2,
}

/// The first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opening {
    pub(super) token: [u8; 16],
    pub(super) flow: Flow,
    /// Buffers of the sockets; 0 leaves them to the kernel.
    pub(super) socket_bytes: u32,
    /// How long bytes move before they count, and how long they count.
    pub(super) warm: Duration,
    pub(super) length: Duration,
}

/// What one run moved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    /// All bytes, those before the time began included.
    pub(super) bytes_in_all: u64,
    /// Of a ping.
    pub(super) p50_us: f64,
}

impl Opening {
    const BYTES: usize = 32;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.token);
        let words = [
            self.flow as u32,
            self.socket_bytes,
            self.warm.as_millis() as u32,
            self.length.as_millis() as u32,
        ];
        bytes[16..].copy_from_slice(words.map(u32::to_le_bytes).as_flattened());
        bytes
    }

    /// None if it asks for what there is not.
    fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let (token, words) = bytes.split_first_chunk::<16>()?;
        let mut words = words.chunks_exact(4).map(|word| {
            let word: [u8; 4] = word.try_into().unwrap_or_default();
            u32::from_le_bytes(word)
        });
        let mut word = || words.next();
        let flow = match word()? {
            0 => Flow::Read,
            1 => Flow::Write,
            2 => Flow::Ping,
            _ => return None,
        };
        let socket_bytes = word()?;
        let [warm, length] = [word()?, word()?].map(|ms| Duration::from_millis(u64::from(ms)));
        let opening = Self {
            token: *token,
            flow,
            socket_bytes,
            warm,
            length,
        };
        (warm + length <= LENGTH_MAX && socket_bytes <= 64 << 20).then_some(opening)
    }

    fn tune(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        if self.socket_bytes > 0 {
            sockopt::set_socket_send_buffer_size(stream, self.socket_bytes as usize)?;
            sockopt::set_socket_recv_buffer_size(stream, self.socket_bytes as usize)?;
        }
        Ok(())
    }
}

/// The end that listens, for one run of the benchmark; it ends when dropped.
#[derive(Debug)]
pub(super) struct Listener {
    socket: Arc<TcpListener>,
    port: u16,
    token: [u8; 16],
}

impl Listener {
    /// # Errors
    /// There is no port, or no memory.
    pub(super) fn start(ip: IpAddr, token: [u8; 16]) -> io::Result<Self> {
        let buffer = Buffer::new(BARE_BYTES).map_err(io::Error::other)?;
        let socket = Arc::new(TcpListener::bind((ip, 0))?);
        let port = socket.local_addr()?.port();
        let accepting = Arc::clone(&socket);
        std::thread::Builder::new()
            .name("bench-bare".to_owned())
            .spawn(move || accept(&accepting, token, buffer))?;
        Ok(Self {
            socket,
            port,
            token,
        })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn token(&self) -> [u8; 16] {
        self.token
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The thread that waits for a connection wakes up with an error.
        let _ = rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Both);
    }
}

fn accept(listener: &TcpListener, token: [u8; 16], buffer: Buffer) {
    let memory = Mutex::new(buffer);
    let unproven = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for stream in listener.incoming() {
            let stream = match stream {
                Ok(stream) => stream,
                // The peer was gone before it was looked at.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(_) => return,
            };
            if unproven.fetch_add(1, Ordering::Relaxed) >= UNPROVEN_MAX {
                unproven.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (memory, unproven) = (&memory, &unproven);
            // It ends with its connection, which ends in time.
            scope.spawn(move || {
                let mut stream = stream;
                let opening = prove(&mut stream, token);
                unproven.fetch_sub(1, Ordering::Relaxed);
                if let Ok(opening) = opening {
                    // One at a time: they share the memory, and would disturb each other.
                    let mut buffer = memory.lock().unwrap_or_else(PoisonError::into_inner);
                    // The other end sees it if this fails.
                    let _ = answer(stream, opening, &mut buffer);
                }
            });
        }
    });
}

/// Only a run that was begun knows the token.
fn prove(stream: &mut TcpStream, token: [u8; 16]) -> io::Result<Opening> {
    stream.set_read_timeout(Some(GREETING))?;
    let mut bytes = [0; Opening::BYTES];
    let by = now() + GREETING;
    let mut at = 0;
    while at < bytes.len() {
        match stream.read(&mut bytes[at..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => at += more,
        }
        if now() >= by {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    let opening = Opening::from_bytes(&bytes).ok_or(io::ErrorKind::InvalidData)?;
    // In a time that does not depend on how much of it is right.
    let wrong = opening
        .token
        .iter()
        .zip(token)
        .fold(0, |all, (one, other)| all | (one ^ other));
    if wrong != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(opening)
}

fn answer(mut stream: TcpStream, opening: Opening, buffer: &mut Buffer) -> io::Result<()> {
    opening.tune(&stream)?;
    let by = now() + opening.warm + opening.length + SILENCE;
    match opening.flow {
        Flow::Read => send(&mut stream, buffer, by),
        Flow::Write => {
            let ran = receive(&mut stream, buffer, opening.warm, opening.length)?;
            let nanos = (ran.seconds * 1e9) as u64;
            stream.write_all([ran.bytes, nanos].map(u64::to_le_bytes).as_flattened())?;
            // The answer reaches the other end only if nothing that it sent is left unread.
            let mut at = 0;
            while now() < by && stream.read(buffer.piece_mut(at, MESSAGE))? > 0 {
                at += MESSAGE;
            }
            Ok(())
        }
        Flow::Ping => {
            while now() < by {
                stream.read_exact(buffer.piece_mut(0, PING))?;
                stream.write_all(buffer.piece(0, PING))?;
            }
            Ok(())
        }
    }
}

/// Message after message until the peer closes, or a time.
fn send(stream: &mut TcpStream, buffer: &Buffer, by: Instant) -> io::Result<()> {
    let mut at = 0;
    while now() < by {
        stream.write_all(buffer.piece(at, MESSAGE))?;
        at += MESSAGE;
    }
    Ok(())
}

/// Counts what comes in `length` after a `warm` time, or until the stream ends.
fn receive(
    stream: &mut TcpStream,
    buffer: &mut Buffer,
    warm: Duration,
    length: Duration,
) -> io::Result<Ran> {
    let mut at = 0;
    let mut message = |stream: &mut TcpStream| {
        let read = stream.read_exact(buffer.piece_mut(at, MESSAGE));
        at += MESSAGE;
        match read {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            read => read.map(|()| true),
        }
    };
    message(stream)?;
    let (first, mut before) = (now(), 1);
    while now().since(first) < warm && message(stream)? {
        before += 1;
    }
    let (began, mut messages, mut last) = (now(), 0, now());
    while last.since(began) < length && message(stream)? {
        messages += 1;
        last = now();
    }
    Ok(Ran {
        bytes: messages * MESSAGE as u64,
        seconds: last.since(began).as_secs_f64(),
        bytes_in_all: (before + messages) * MESSAGE as u64,
        p50_us: 0.0,
    })
}

/// One run from the end that connects, over a connection of its own.
pub(super) fn run(to: SocketAddr, opening: Opening, buffer: &mut Buffer) -> io::Result<Ran> {
    let mut stream = TcpStream::connect_timeout(&to, SILENCE)?;
    opening.tune(&stream)?;
    stream.write_all(&opening.to_bytes())?;
    let ran = match opening.flow {
        Flow::Read => {
            let ran = receive(&mut stream, buffer, opening.warm, opening.length)?;
            if ran.seconds < opening.length.as_secs_f64() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            ran
        }
        Flow::Write => {
            let by = now() + opening.warm + opening.length + LATER;
            let mut sent = 0;
            while now() < by {
                stream.write_all(buffer.piece(sent as usize, MESSAGE))?;
                sent += MESSAGE as u64;
            }
            stream.shutdown(Shutdown::Write)?;
            let mut words = [[0; 8]; 2];
            stream.read_exact(words.as_flattened_mut())?;
            let [bytes, nanos] = words.map(u64::from_le_bytes);
            Ran {
                bytes,
                seconds: nanos as f64 / 1e9,
                bytes_in_all: sent,
                p50_us: 0.0,
            }
        }
        Flow::Ping => ping(&mut stream, buffer, &opening)?,
    };
    if ran.bytes == 0 {
        // Also what a clock that stands still would make of the rate.
        let bits = MESSAGE * 8 / 1000;
        return Err(io::Error::other(format!(
            "less than 1 MiB in {:?}: measure longer with --window on a path of under {} kbit/s",
            opening.length,
            bits as f64 / opening.length.as_secs_f64(),
        )));
    }
    Ok(ran)
}

fn ping(stream: &mut TcpStream, buffer: &mut Buffer, opening: &Opening) -> io::Result<Ran> {
    let (mut times, mut bytes) = (latencies(), 0);
    let began = now();
    loop {
        let asked = now();
        stream.write_all(buffer.piece(0, PING))?;
        stream.read_exact(buffer.piece_mut(0, PING))?;
        let (over, so_far) = (now(), now().since(began));
        if so_far < opening.warm {
            continue;
        }
        times.saturating_record(over.since(asked).as_nanos() as u64);
        bytes += PING as u64;
        if so_far >= opening.warm + opening.length {
            return Ok(Ran {
                bytes,
                seconds: so_far.as_secs_f64(),
                bytes_in_all: bytes,
                p50_us: times.value_at_quantile(0.5) as f64 / 1e3,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: [u8; 16] = [7; 16];

    fn opening(flow: Flow) -> Opening {
        let millis = Duration::from_millis;
        Opening {
            token: TOKEN,
            flow,
            socket_bytes: 0,
            warm: millis(5),
            length: millis(20),
        }
    }

    #[test]
    fn bytes_move_both_ways_and_the_receiver_keeps_the_time() {
        let listener = Listener::start([127, 0, 0, 1].into(), TOKEN).unwrap();
        let to = SocketAddr::from(([127, 0, 0, 1], listener.port()));
        let mut buffer = Buffer::new(4 << 20).unwrap();
        for flow in [Flow::Read, Flow::Write, Flow::Ping, Flow::Read] {
            let ran = run(to, opening(flow), &mut buffer).unwrap();
            assert!(
                ran.bytes > 0 && ran.bytes <= ran.bytes_in_all,
                "{flow:?} {ran:?}"
            );
            assert!(ran.seconds > 0.0 && ran.seconds < 10.0, "{flow:?} {ran:?}");
            // What moved before the time began is not of the rate.
            assert_eq!(ran.bytes < ran.bytes_in_all, flow != Flow::Ping, "{ran:?}");
            assert_eq!(ran.p50_us > 0.0, flow == Flow::Ping, "{ran:?}");
        }
        drop(listener);
        assert!(
            run(to, opening(Flow::Read), &mut buffer).is_err(),
            "it ended with its run"
        );
    }

    #[test]
    fn who_does_not_know_the_token_gets_nothing() {
        let listener = Listener::start([127, 0, 0, 1].into(), TOKEN).unwrap();
        let to = SocketAddr::from(([127, 0, 0, 1], listener.port()));
        let mut buffer = Buffer::new(4 << 20).unwrap();
        let mut token = TOKEN;
        token[15] = 8;
        let wrong = Opening {
            token,
            ..opening(Flow::Read)
        };
        assert!(run(to, wrong, &mut buffer).is_err());
        // Those that say nothing take no place of the one that knows it.
        let silent: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(to).unwrap()).collect();
        assert!(run(to, opening(Flow::Read), &mut buffer).is_ok());
        drop(silent);
    }

    #[test]
    fn an_opening_is_read_as_it_was_written_and_asks_for_no_more_than_there_is() {
        let good = Opening {
            socket_bytes: 1 << 20,
            ..opening(Flow::Write)
        };
        assert_eq!(Opening::from_bytes(&good.to_bytes()), Some(good));
        let refused = |change: fn(&mut [u8; Opening::BYTES])| {
            let mut bytes = good.to_bytes();
            change(&mut bytes);
            assert_eq!(Opening::from_bytes(&bytes), None);
        };
        refused(|bytes| bytes[16] = 3);
        refused(|bytes| bytes[23] = 0x10);
        refused(|bytes| bytes[27] = 1);
        refused(|bytes| bytes[31] = 1);
    }
}
