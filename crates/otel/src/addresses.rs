//! The addresses of a collector by its name.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::post::left;

type Found = io::Result<Vec<SocketAddr>>;

/// Looks a name up, each time anew. How long the system takes for that is up to its settings, so a thread of its own waits
/// for it: one at a time.
#[derive(Debug)]
pub(crate) struct Addresses {
    authority: String,
    look_up: fn(&str) -> Found,
    /// A look-up that took longer than its exchange had time.
    late: Mutex<Option<Receiver<Found>>>,
}

impl Addresses {
    /// Those of `HOST:PORT`.
    pub(crate) fn of(authority: String) -> Self {
        Self::by(authority, |authority| {
            Ok(authority.to_socket_addrs()?.collect())
        })
    }

    fn by(authority: String, look_up: fn(&str) -> Found) -> Self {
        Self {
            authority,
            look_up,
            late: Mutex::default(),
        }
    }

    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }

    /// What the name stands for now.
    ///
    /// # Errors
    /// When it stands for nothing, or that is not known before `until`.
    pub(crate) fn find(&self, until: Instant) -> Found {
        if let Ok(address) = self.authority.parse() {
            return Ok(vec![address]);
        }
        let left = left(until)?;
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = late.take().map_or_else(|| self.ask(), Ok)?;
        match asked.recv_timeout(left) {
            Ok(found) => found,
            Err(RecvTimeoutError::Timeout) => {
                *late = Some(asked);
                let why = format!("the address of {} is not known in time", self.authority);
                Err(io::Error::new(ErrorKind::TimedOut, why))
            }
            Err(RecvTimeoutError::Disconnected) => Err(ErrorKind::BrokenPipe.into()),
        }
    }

    fn ask(&self) -> io::Result<Receiver<Found>> {
        let (tell, asked) = channel();
        let (authority, look_up) = (self.authority.clone(), self.look_up);
        std::thread::Builder::new()
            .name("slack-names".to_owned())
            .spawn(move || {
                // Nobody may want to know any more.
                let _ = tell.send(look_up(&authority));
            })?;
        Ok(asked)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A resolver without an answer held the thread that exports, and the end of its process, for as long as it tried.
    #[test]
    fn a_name_is_waited_for_no_longer_than_there_is_time_and_asked_for_once_meanwhile() {
        static CLOSED: Mutex<()> = Mutex::new(());
        static ASKED: AtomicU32 = AtomicU32::new(0);
        let addresses = Addresses::by("collector:4318".to_owned(), |authority| {
            assert_eq!(authority, "collector:4318");
            ASKED.fetch_add(1, Ordering::Relaxed);
            drop(CLOSED.lock().unwrap());
            Ok(vec![([127, 0, 0, 9], 1).into()])
        });
        let closed = CLOSED.lock().unwrap();
        for _ in 0..3 {
            let error = addresses.find(Instant::now() + Duration::from_millis(20));
            assert_eq!(error.unwrap_err().kind(), ErrorKind::TimedOut);
        }
        drop(closed);
        let found = addresses.find(Instant::now() + PATIENCE).unwrap();
        assert_eq!(found, [([127, 0, 0, 9], 1).into()]);
        assert_eq!(ASKED.load(Ordering::Relaxed), 1);
        addresses.find(Instant::now() + PATIENCE).unwrap();
        assert_eq!(ASKED.load(Ordering::Relaxed), 2, "names change");
    }

    #[test]
    fn an_address_is_no_name_and_some_names_are_of_nothing() {
        let of = |authority: &str| {
            let addresses = Addresses::of(authority.to_owned());
            addresses.find(Instant::now() + PATIENCE)
        };
        let never: fn(&str) -> Found = |_| panic!("an address is looked up");
        let plain = Addresses::by("[::1]:4318".to_owned(), never);
        assert_eq!(plain.find(Instant::now()).unwrap()[0].port(), 4318);
        assert!(of("localhost:80").unwrap().iter().all(|it| it.port() == 80));
        assert!(of("a-name-without-a-port").is_err());
        let broken = Addresses::by("a:1".to_owned(), |_| panic!("as planned"));
        assert!(broken.find(Instant::now() + PATIENCE).is_err());
    }
}
