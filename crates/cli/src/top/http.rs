use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::printable::printable;

/// Longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// An admin address.
pub(super) struct Source {
    pub(super) address: SocketAddr,
    pub(super) token: Option<String>,
}

impl Source {
    /// The JSON at a path, whole before `until`.
    pub(super) fn get(&self, path: &str, until: Instant) -> Result<Value> {
        let what = || format!("http://{}{path}", self.address);
        let answer = self.ask(path, until).with_context(what)?;
        let (status, body) = parted(&answer).with_context(what)?;
        match status {
            200 => serde_json::from_str(body).with_context(what),
            401 => bail!(
                "{}: the token is missing or wrong: --token-file FILE",
                what()
            ),
            other => bail!("{}: status {other}: {}", what(), reason(body)),
        }
    }

    fn ask(&self, path: &str, until: Instant) -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.address, left(until)?)?;
        stream.set_write_timeout(Some(left(until)?))?;
        let token = self.token.as_ref();
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        let (address, token) = (self.address, token.unwrap_or_default());
        // With this version the connection ends with the answer.
        write!(
            stream,
            "GET {path} HTTP/1.0\r\nHost: {address}\r\n{token}\r\n"
        )?;
        let (mut answer, mut part) = (Vec::new(), [0; 16 << 10]);
        loop {
            // Each read may take what is left: a server that sends a byte at a time is not waited for longer.
            stream.set_read_timeout(Some(left(until)?))?;
            match stream.read(&mut part)? {
                0 => break,
                read => answer.extend_from_slice(&part[..read]),
            }
            if answer.len() > ANSWER_BYTES_MAX {
                return Err(ErrorKind::FileTooLarge.into());
            }
        }
        String::from_utf8(answer).map_err(|_| ErrorKind::InvalidData.into())
    }
}

/// What is left of the time; there has to be some.
fn left(until: Instant) -> std::io::Result<Duration> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

/// What a refusal says: its message, or all of it.
fn reason(body: &str) -> String {
    let refusal: Option<Value> = serde_json::from_str(body).ok();
    let message = refusal.as_ref().and_then(|it| it["error_message"].as_str());
    printable(message.unwrap_or(body.trim()))
}

/// The status and the body of an answer.
fn parted(answer: &str) -> Result<(u16, &str)> {
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .context("the answer is cut off")?;
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    Ok((status.context("the answer is not HTTP")?, body))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_refusal_is_said_in_its_own_words() {
        let check = |body: &str, said: &str| assert_eq!(reason(body), said, "{body}");
        let refusal =
            r#"{"success":false,"error_code":-1,"error_message":"the store is broken: x"}"#;
        check(refusal, "the store is broken: x");
        check("no JSON\n", "no JSON");
        check("{}", "{}");
    }

    /// The time was that of each read, so a server that sent a byte a second was listened to for ever, and no key was.
    #[test]
    fn an_answer_takes_no_longer_than_it_may_however_it_comes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // Until the reader has gone.
            while stream.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let source = Source {
            address,
            token: None,
        };
        let until = Instant::now() + Duration::from_millis(500);
        let error = source.ask("/", until).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock),
            "{error}"
        );
        assert!(Instant::now() >= until);
    }
}
