//! One request over HTTP and its answer, on the thread that exports: a connection each, for spans leave twice a second at most.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// How long an exchange may take.
pub(crate) const TIME: Duration = Duration::from_secs(3);
/// Longest head of an answer, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Sends a body and returns the status of the answer.
///
/// # Errors
/// When there is no connection or no answer in time, or the answer is not of HTTP.
pub(crate) fn post(
    (authority, path): (&str, &str),
    headers: &[(String, String)],
    body: &[u8],
) -> io::Result<u16> {
    let until = Instant::now() + TIME;
    let mut stream = connect(authority, until)?;
    let mut head = format!(
        "POST {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.set_write_timeout(Some(left(until)?))?;
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    let mut answer = Vec::new();
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut piece = [0; 1024];
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut piece)? {
            0 => break,
            count => answer.extend_from_slice(&piece[..count]),
        }
        if answer.len() > HEAD_BYTES_MAX {
            return Err(invalid("the head of the answer is too long"));
        }
    }
    status(&answer).ok_or_else(|| invalid("the answer is not of HTTP"))
}

fn connect(authority: &str, until: Instant) -> io::Result<TcpStream> {
    let mut last = invalid("the name has no address");
    for address in authority.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left(until)?) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

/// The status of an answer: `HTTP/1.1 200 OK`.
fn status(answer: &[u8]) -> Option<u16> {
    let rest = answer.strip_prefix(b"HTTP/1.")?;
    let digits = rest.get(2..5).filter(|_| rest[1] == b' ')?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Answers one request with this, and returns the request.
    fn exchange(answer: &'static [u8]) -> (io::Result<u16>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let authority = listener.local_addr().unwrap().to_string();
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
        let headers = [("Content-Type".to_owned(), "a/b".to_owned())];
        let status = post((&authority, "/v1/traces"), &headers, b"spans");
        (status, server.join().unwrap())
    }

    #[test]
    fn a_body_is_posted_and_the_status_is_the_answer() {
        let (status, request) = exchange(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(status.unwrap(), 200);
        assert!(request.starts_with("POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1:"));
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
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
        let authority = free.unwrap().to_string();
        assert!(post((&authority, "/"), &[], b"spans").is_err());
    }
}
