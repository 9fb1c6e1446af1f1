use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// An admin address.
pub(super) struct Source {
    pub(super) address: SocketAddr,
    pub(super) token: Option<String>,
}

impl Source {
    /// The JSON at a path.
    pub(super) fn get(&self, path: &str) -> Result<Value> {
        let what = || format!("http://{}{path}", self.address);
        let answer = self.ask(path).with_context(what)?;
        let (status, body) = parted(&answer).with_context(what)?;
        match status {
            200 => serde_json::from_str(body).with_context(what),
            401 => bail!(
                "{}: the token is missing or wrong: --token-file FILE",
                what()
            ),
            other => bail!("{}: status {other}: {}", what(), body.trim()),
        }
    }

    fn ask(&self, path: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let token = self.token.as_ref();
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        let (address, token) = (self.address, token.unwrap_or_default());
        // With this version the connection ends with the answer.
        write!(
            stream,
            "GET {path} HTTP/1.0\r\nHost: {address}\r\n{token}\r\n"
        )?;
        let mut answer = String::new();
        stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
        Ok(answer)
    }
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
