//! What the machine does without an engine: sockets, copies, and the memory of another process.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::net::sockopt;
use slackwater_base::Instant;
use slackwater_pool::copy::{Isa, Stores, copy_with};
use slackwater_wait::now;

use super::ends::number;
use super::{BenchError, Buffer, latencies};
use crate::process::{orders, pin, tell};

/// The size of one message, and of one piece that is copied.
pub(super) const MESSAGE: usize = 1 << 20;

/// A connection that is silent for so long is given up.
const SILENCE: Duration = Duration::from_secs(30);

/// What a connection is for: its first twelve bytes.
#[derive(Clone, Copy)]
struct Purpose {
    /// Bytes of the request; 0 streams without being asked.
    asked: u32,
    /// Bytes of the answer, or of one message of the stream.
    answered: u32,
    /// Buffers of the sockets; 0 leaves them to the kernel.
    socket_bytes: u32,
}

/// The passive side: memory to look at, and a listener that answers or streams out of it.
pub(super) fn serve(bytes: &str) -> Result<(), BenchError> {
    let buffer = Buffer::new(number(bytes)?)?;
    // Yama lets only ancestors look into a process unless it says otherwise.
    // SAFETY: the call takes plain numbers and changes who may read this process, which is what it is started for.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(BenchError::io("listen"))?;
    let address = listener.local_addr().map_err(BenchError::io("listen"))?;
    tell(&format!(
        "listening {address} {} {}",
        std::process::id(),
        buffer.start().addr()
    ))?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for stream in listener.incoming().map_while(Result::ok) {
                let buffer = &buffer;
                // It ends with its connection.
                scope.spawn(move || answer(stream, buffer));
            }
        });
        for order in orders() {
            if pin(&order)?.is_none() {
                return Err(BenchError::Arguments(order));
            }
        }
        // The threads sit in system calls on sockets; the process ends with its parent.
        std::process::exit(0)
    })
}

fn answer(mut stream: TcpStream, buffer: &Buffer) -> io::Result<()> {
    let mut words = [0; 12];
    stream.read_exact(&mut words)?;
    let word =
        |at: usize| u32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
    let purpose = Purpose {
        asked: word(0),
        answered: word(4),
        socket_bytes: word(8),
    };
    purpose.tune(&stream)?;
    let mut request = vec![0; purpose.asked as usize];
    let mut at = 0;
    loop {
        stream.read_exact(&mut request)?;
        stream.write_all(buffer.piece(at, purpose.answered as usize))?;
        at += purpose.answered as usize;
    }
}

impl Purpose {
    fn tune(self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        if self.socket_bytes > 0 {
            sockopt::set_socket_send_buffer_size(stream, self.socket_bytes as usize)?;
            sockopt::set_socket_recv_buffer_size(stream, self.socket_bytes as usize)?;
        }
        Ok(())
    }

    fn connect(self, address: SocketAddr) -> io::Result<Raw> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(SILENCE))?;
        self.tune(&stream)?;
        let words = [self.asked, self.answered, self.socket_bytes].map(u32::to_le_bytes);
        stream.write_all(words.as_flattened())?;
        Ok(Raw {
            stream,
            purpose: self,
        })
    }
}

/// One connection to the passive side.
struct Raw {
    stream: TcpStream,
    purpose: Purpose,
}

impl Raw {
    /// Receives into `buffer`, message by message, for `length`.
    fn run(&mut self, buffer: &mut Buffer, length: Duration) -> io::Result<Ran> {
        let request = vec![1; self.purpose.asked as usize];
        let answered = self.purpose.answered as usize;
        let (mut ran, began) = (Ran::new(), now());
        let mut at = 0;
        loop {
            let asked = now();
            self.stream.write_all(&request)?;
            self.stream.read_exact(buffer.piece_mut(at, answered))?;
            at += answered;
            if ran.took(answered, asked, began, length) {
                return Ok(ran);
            }
        }
    }
}

/// What one run of a limit moved.
pub(super) struct Ran {
    bytes: u64,
    seconds: f64,
    times: Histogram<u64>,
}

impl Ran {
    fn new() -> Self {
        Self {
            bytes: 0,
            seconds: 0.0,
            times: latencies(),
        }
    }

    /// Counts one message; says whether the time is over.
    fn took(&mut self, bytes: usize, asked: Instant, began: Instant, length: Duration) -> bool {
        let now = now();
        self.bytes += bytes as u64;
        self.times
            .saturating_record(now.since(asked).as_nanos() as u64);
        self.seconds = now.since(began).as_secs_f64();
        now.since(began) >= length
    }

    fn tell(&self) -> Result<(), BenchError> {
        let p50_us = self.times.value_at_quantile(0.5) as f64 / 1e3;
        Ok(tell(&format!(
            "ran {} {} {p50_us}",
            self.bytes, self.seconds
        ))?)
    }
}

/// The active side: one kind of run for each order, in memory of its own.
pub(super) fn drive(bytes: &str, address: &str, pid: &str, start: &str) -> Result<(), BenchError> {
    let mut buffer = Buffer::new(number(bytes)?)?;
    let mut source = Buffer::new(buffer.bytes())?;
    let address: SocketAddr = address
        .parse()
        .map_err(|_| BenchError::Arguments(vec![address.to_owned()]))?;
    let remote = Remote {
        pid: number(pid)? as libc::pid_t,
        start: number(start)?,
    };
    let mut open: Vec<((u32, u32, u32), Raw)> = Vec::new();
    tell("ready")?;
    for order in orders() {
        let words: Vec<&str> = order.iter().map(String::as_str).collect();
        let length = |text: &str| Ok::<_, BenchError>(Duration::from_millis(number(text)? as u64));
        match words[..] {
            ["socket", asked, answered, socket_bytes, millis] => {
                let key = (
                    number(asked)? as u32,
                    number(answered)? as u32,
                    number(socket_bytes)? as u32,
                );
                let known = open.iter().position(|(known, _)| *known == key);
                let known = known.map_or_else(
                    || {
                        let purpose = Purpose {
                            asked: key.0,
                            answered: key.1,
                            socket_bytes: key.2,
                        };
                        open.push((key, purpose.connect(address)?));
                        Ok(open.len() - 1)
                    },
                    Ok,
                );
                let raw = &mut open[known.map_err(BenchError::io("connect a plain socket"))?].1;
                // What waits in the buffers of the connection is not of this run.
                let warm = length(millis)? / 4;
                raw.run(&mut buffer, warm)
                    .map_err(BenchError::io("copy over a plain socket"))?;
                tell("begun")?;
                raw.run(&mut buffer, length(millis)?)
                    .map_err(BenchError::io("copy over a plain socket"))?
                    .tell()?;
            }
            ["copy", stores, millis] => {
                let stores = (stores == "streaming").then_some(Stores::Streaming);
                tell("begun")?;
                copy(&mut source, &mut buffer, stores, length(millis)?).tell()?;
            }
            ["attach", millis] => {
                tell("begun")?;
                match remote.copy(&mut buffer, length(millis)?) {
                    Ok(ran) => ran.tell()?,
                    Err(error) => tell(&format!("refused {error}"))?,
                }
            }
            _ if pin(&order)?.is_some() => {}
            _ => return Err(BenchError::Arguments(order)),
        }
    }
    Ok(())
}

/// Copies piece by piece between two buffers of this process; `None` by the compiler's own `memcpy`.
fn copy(from: &mut Buffer, to: &mut Buffer, stores: Option<Stores>, length: Duration) -> Ran {
    let (mut ran, began) = (Ran::new(), now());
    let mut at = 0;
    loop {
        let asked = now();
        let (source, target) = (from.piece(at, MESSAGE), to.piece_mut(at, MESSAGE));
        match stores {
            None => target.copy_from_slice(source),
            // SAFETY: two slices of one length in different buffers.
            Some(stores) => unsafe {
                copy_with(
                    Isa::current(),
                    target.as_mut_ptr(),
                    source.as_ptr(),
                    MESSAGE,
                    stores,
                )
            },
        }
        at += MESSAGE;
        if ran.took(MESSAGE, asked, began, length) {
            return ran;
        }
    }
}

/// The buffer of another process, as large as ours.
struct Remote {
    pid: libc::pid_t,
    start: usize,
}

impl Remote {
    /// Copies it piece by piece by cross-memory attach.
    fn copy(&self, into: &mut Buffer, length: Duration) -> io::Result<Ran> {
        let (mut ran, began) = (Ran::new(), now());
        let mut at = 0;
        loop {
            let asked = now();
            let offset = into.wrapped(at, MESSAGE);
            let remote = libc::iovec {
                iov_base: (self.start + offset) as *mut libc::c_void,
                iov_len: MESSAGE,
            };
            let piece = into.piece_mut(at, MESSAGE);
            let local = libc::iovec {
                iov_base: piece.as_mut_ptr().cast(),
                iov_len: MESSAGE,
            };
            // SAFETY: the local range is a slice borrowed alone; the kernel checks the remote one.
            let copied = unsafe {
                libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0)
            };
            match usize::try_from(copied) {
                Ok(MESSAGE) => at += MESSAGE,
                Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(_) => return Err(io::Error::last_os_error()),
            }
            if ran.took(MESSAGE, asked, began, length) {
                return Ok(ran);
            }
        }
    }
}
