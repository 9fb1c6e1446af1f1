//! One request over HTTP and its answer, on the thread that exports: a connection each, for spans leave twice a second at most.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Longest head of an answer, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Where a body is posted to.
#[derive(Clone, Copy)]
pub(crate) struct Destination<'a> {
    /// In the order in which they are tried.
    pub(crate) addresses: &'a [SocketAddr],
    /// What the collector is called.
    pub(crate) authority: &'a str,
    pub(crate) path: &'a str,
}

/// Sends a body and returns the status of the answer.
///
/// # Errors
/// When there is no connection or no answer before `until`, or the answer is not of HTTP.
pub(crate) fn post(
    to: Destination<'_>,
    headers: &[(String, String)],
    body: &[u8],
    until: Instant,
) -> io::Result<u16> {
    let Destination {
        addresses,
        authority,
        path,
    } = to;
    let mut stream = connect(addresses, until)?;
    let mut head = format!(
        "POST {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    send(&mut stream, head.as_bytes(), until)?;
    send(&mut stream, body, until)?;
    let mut answer = Vec::new();
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut piece = [0; 1024];
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if answer.len() > HEAD_BYTES_MAX {
            return Err(invalid("the head of the answer is too long"));
        }
    }
    status(&answer).ok_or_else(|| invalid("the answer is not of HTTP"))
}

fn connect(addresses: &[SocketAddr], until: Instant) -> io::Result<TcpStream> {
    let mut last = invalid("the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(address, left(until)?) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Sends bytes. Each write may take what is left: a collector that takes a few at a time is not waited for longer.
fn send(stream: &mut TcpStream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// What is left of the time; there has to be some.
pub(crate) fn left(until: Instant) -> io::Result<Duration> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

/// The status of an answer: `HTTP/1.1 200 OK`.
fn status(answer: &[u8]) -> Option<u16> {
    let rest = answer.strip_prefix(b"HTTP/1.")?;
    let digits = rest.get(2..5).filter(|_| rest[1] == b' ')?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Longer than any test may take.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn posted(address: SocketAddr, body: &[u8], until: Instant) -> io::Result<u16> {
        let to = Destination {
            addresses: &[address],
            authority: "collector:4318",
            path: "/v1/traces",
        };
        let headers = [("Content-Type".to_owned(), "a/b".to_owned())];
        post(to, &headers, body, until)
    }

    /// Answers one request with this, and returns the request.
    fn exchange(answer: &'static [u8]) -> (io::Result<u16>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"spans") {
                let mut piece = [0; 256];
                let count = stream.read(&mut piece).unwrap();
                request.extend_from_slice(&piece[..count]);
            }
            stream.write_all(answer).unwrap();
            String::from_utf8(request).unwrap()
        });
        let status = posted(address, b"spans", Instant::now() + PATIENCE);
        (status, server.join().unwrap())
    }

    #[test]
    fn a_body_is_posted_and_the_status_is_the_answer() {
        let (status, request) = exchange(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(status.unwrap(), 200);
        assert!(request.starts_with("POST /v1/traces HTTP/1.1\r\nHost: collector:4318\r\n"));
        assert!(request.contains("\r\nContent-Length: 5\r\nContent-Type: a/b\r\n\r\nspans"));
        let (status, _) = exchange(b"HTTP/1.0 503 Busy\r\n\r\n");
        assert_eq!(status.unwrap(), 503);
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        for answer in [
            b"".as_slice(),
            b"SSH-2.0\r\n\r\n",
            b"HTTP/1.1",
            b"HTTP/1.1 2x0 \r\n\r\n",
        ] {
            assert!(exchange(answer).0.is_err(), "{answer:?}");
        }
        let long: &'static [u8] = vec![b'a'; 2 * HEAD_BYTES_MAX].leak();
        assert!(exchange(long).0.is_err());
        // The kernel gives no listener of another test this port.
        let closed = ([127, 0, 0, 1], 1).into();
        assert!(posted(closed, b"spans", Instant::now() + PATIENCE).is_err());
    }

    /// The time was that of each write, so a collector that took a few bytes now and then held the thread, and the end of its
    /// process, for as long as it liked.
    #[test]
    fn an_exchange_takes_no_longer_than_it_may_however_slow_the_collector() {
        let check = |body: &[u8], slow: fn(&mut TcpStream) -> io::Result<()>| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                // Until the sender has gone.
                while slow(&mut stream).is_ok() {
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
            let until = Instant::now() + Duration::from_millis(300);
            let error = posted(address, body, until).unwrap_err();
            let kinds = [ErrorKind::TimedOut, ErrorKind::WouldBlock];
            assert!(kinds.contains(&error.kind()), "{error}");
            assert!(Instant::now() >= until);
            server.join().unwrap();
        };
        let takes_some = |stream: &mut TcpStream| {
            let mut piece = vec![0; 64 << 10];
            stream.read_exact(&mut piece)
        };
        check(&vec![0; 64 << 20], takes_some);
        check(b"spans", |stream| stream.write_all(b"x"));
    }
}
