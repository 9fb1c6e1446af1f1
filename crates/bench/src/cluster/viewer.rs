//! One who looks at the page: a stream of samples that is read as a browser reads it.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{ClusterError, failed};

/// How each sample begins.
const SAMPLE: &[u8] = b"event: sample";
/// How long a stream may be silent; there is a sample a second.
const PATIENCE: Duration = Duration::from_secs(60);

/// One open page.
pub(super) struct Viewer {
    stream: TcpStream,
    seen: Arc<Seen>,
    reader: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    samples: AtomicU64,
    bytes: AtomicU64,
}

impl Viewer {
    /// Opens the stream of an admin address, and returns when the first sample is there.
    pub(super) fn open(admin: &str) -> Result<Self, ClusterError> {
        let mut stream = TcpStream::connect(admin).map_err(failed)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        let request = format!("GET /api/v1/events HTTP/1.1\r\nHost: {admin}\r\n\r\n");
        stream.write_all(request.as_bytes()).map_err(failed)?;
        let mut counter = Counter::default();
        let seen = Arc::new(Seen::default());
        while counter.samples == 0 {
            let mut part = vec![0; 64 << 10];
            match stream.read(&mut part).map_err(failed)? {
                0 => {
                    let said = String::from_utf8_lossy(&counter.rest).into_owned();
                    return Err(failed(format!("no stream of samples: {said}")));
                }
                read => counter.take(&part[..read]),
            }
        }
        let mut source = stream.try_clone().map_err(failed)?;
        let told = Arc::clone(&seen);
        let reader = std::thread::spawn(move || {
            // A viewer has a machine of its own: here it takes what the pool leaves of this one.
            let _ = rustix::process::setpriority_process(None, 19);
            let mut part = vec![0; 64 << 10];
            loop {
                let before = counter.samples;
                match source.read(&mut part) {
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    // It was closed.
                    Ok(0) | Err(_) => return,
                    Ok(read) => {
                        counter.take(&part[..read]);
                        let new = counter.samples - before;
                        told.samples.fetch_add(new, Ordering::Relaxed);
                        told.bytes.fetch_add(read as u64, Ordering::Relaxed);
                    }
                }
            }
        });
        Ok(Self {
            stream,
            seen,
            reader: Some(reader),
        })
    }

    /// Samples after the first one, and their bytes.
    pub(super) fn seen(&self) -> [u64; 2] {
        [&self.seen.samples, &self.seen.bytes].map(|it| it.load(Ordering::Relaxed))
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        // The server may have closed it before.
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// Counts how often samples begin, however they are cut.
#[derive(Default)]
struct Counter {
    samples: u64,
    /// The end of what came, in which a sample may begin; all of it before the first.
    rest: Vec<u8>,
}

impl Counter {
    fn take(&mut self, part: &[u8]) {
        self.rest.extend(part);
        let windows = self.rest.windows(SAMPLE.len());
        let found = windows.filter(|window| *window == SAMPLE).count();
        self.samples += found as u64;
        if self.samples > 0 {
            // What is left is shorter than a beginning, so nothing is counted twice.
            let kept = self.rest.len() - self.rest.len().min(SAMPLE.len() - 1);
            self.rest.drain(..kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_counted_however_they_are_cut() {
        let text = b"HTTP/1.1 200 OK\r\n\r\nevent: sample\ndata: {}\n\nevent: failure\n\nevent: sample\ndata: 1\n\n";
        for length in 1..=text.len() {
            let mut counter = Counter::default();
            text.chunks(length).for_each(|part| counter.take(part));
            assert_eq!(counter.samples, 2, "in parts of {length}");
        }
    }
}
