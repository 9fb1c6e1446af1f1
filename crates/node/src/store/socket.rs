//! The socket on which a running store says why it keeps an object.
//!
//! A Unix socket in the directory of the SSD tier that only the directory's owner can connect to. A connection carries
//! one [`Question`] as a line of JSON and one [`Answer`] likewise; then the store closes it. One thread answers, one
//! connection at a time, each within [`LONGEST`]; between connections it sleeps in the kernel.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, fchmod, unlinkat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use super::Reason;
use crate::disk::Directory;
use crate::fork::ParentOnly;

/// Name of the socket in the directory.
const NAME: &str = "slackwater.sock";
/// Longest question in bytes: a key of 1,024 bytes as numbers, and a tenant.
const QUESTION_BYTES_MAX: u64 = 16 << 10;
/// Longest answer in bytes that a client takes.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Connections that may wait for their turn.
const BACKLOG: i32 = 16;
/// How long each direction of a connection may take.
const LONGEST: Duration = Duration::from_secs(2);
/// Pause after `accept` found the process short of descriptors or memory.
const PAUSE: Duration = Duration::from_secs(1);

/// A request of one connection: explain this key of this tenant.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Question {
    /// The key's bytes.
    pub(super) key: Vec<u8>,
    /// Name of the tenant; empty for the default one.
    #[serde(default)]
    pub(super) tenant: String,
}

/// The answer to a [`Question`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Answer {
    /// The opinion of each tier; none when there is no such object.
    Tiers(Option<Vec<Reason>>),
    /// Why there is no answer.
    Error(String),
}

/// The socket of one running store, and the thread that answers on it.
pub(super) struct AnswerSocket {
    shared: Arc<Listening>,
    thread: Option<JoinHandle<()>>,
}

struct Listening {
    listener: ParentOnly<UnixListener>,
    directory: Arc<Directory>,
    closing: AtomicBool,
    /// The connection that is being answered, to be cut off at the end.
    current: Mutex<Option<UnixStream>>,
}

impl AnswerSocket {
    /// Listens in the directory, and answers by `answer`. A socket that an earlier store left is replaced: the directory
    /// is held, so no process listens on it.
    ///
    /// # Errors
    /// What the operating system says.
    pub(super) fn open(
        directory: &Arc<Directory>,
        answer: impl Fn(Question) -> Answer + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Listening {
            listener: ParentOnly::new(listen(directory)?),
            directory: Arc::clone(directory),
            closing: AtomicBool::new(false),
            current: Mutex::new(None),
        });
        let listening = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("slack-explain".to_owned())
            .spawn(move || listening.run(&answer))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }
}

impl Drop for AnswerSocket {
    /// Ends the connection under way, and returns when the thread has ended.
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        remove(&self.shared.directory);
        // Ends an `accept` under way: a socket that is shut down accepts no more.
        if let Err(error) = rustix::net::shutdown(&self.shared.listener, Shutdown::Both) {
            tracing::warn!(%error, "the socket for questions could not be shut down");
        }
        if let Some(stream) = &*self.shared.current() {
            // Fails when the other end has closed it already.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the thread that answers questions panicked");
            }
        }
    }
}

impl Listening {
    fn run(&self, answer: &impl Fn(Question) -> Answer) {
        while !self.closing.load(Ordering::SeqCst) {
            let stream = match self.listener.get().accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) if self.closing.load(Ordering::SeqCst) => return,
                Err(error) => {
                    tracing::warn!(%error, "a question to the store was not accepted");
                    std::thread::park_timeout(PAUSE);
                    continue;
                }
            };
            match stream.try_clone() {
                Ok(clone) => *self.current() = Some(clone),
                Err(_) => continue,
            }
            // Closing looks at `current` after it said so: one of the two sees the other.
            if !self.closing.load(Ordering::SeqCst)
                && let Err(error) = converse(&stream, answer)
            {
                tracing::debug!(%error, "a question to the store was not answered");
            }
            *self.current() = None;
        }
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Option<UnixStream>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the question of one connection and answers it.
fn converse(stream: &UnixStream, answer: &impl Fn(Question) -> Answer) -> io::Result<()> {
    let line = read_line(stream, QUESTION_BYTES_MAX)?;
    let answer = match serde_json::from_slice(&line) {
        Ok(question) => answer(question),
        Err(error) => Answer::Error(format!("not a question: {error}")),
    };
    write_line(stream, &answer)
}

/// Asks the store that runs in a directory; `None` when none runs there.
///
/// # Errors
/// What the operating system says, or what the store says instead of an answer.
pub(super) fn ask(directory: &Path, question: &Question) -> io::Result<Option<Answer>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let handle = rustix::fs::open(directory, flags, Mode::empty())?;
    let stream = match UnixStream::connect(short_path(&handle)) {
        Ok(stream) => stream,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    write_line(&stream, question)?;
    let line = read_line(&stream, ANSWER_BYTES_MAX)?;
    Ok(Some(serde_json::from_slice(&line)?))
}

fn listen(directory: &Directory) -> io::Result<UnixListener> {
    remove(directory);
    let socket: OwnedFd = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // The file that `bind` makes takes its mode from the socket: there is no moment at which others could connect.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(
        &socket,
        &SocketAddrUnix::new(short_path(&directory.handle()))?,
    )?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

fn remove(directory: &Directory) {
    match unlinkat(directory.handle(), NAME, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => {
            tracing::warn!(%error, name = NAME, "the socket for questions could not be removed");
        }
    }
}

/// A path to the socket that fits the 107 bytes of a socket's address however deep the directory is.
fn short_path(directory: &impl AsFd) -> String {
    format!("/proc/self/fd/{}/{NAME}", directory.as_fd().as_raw_fd())
}

/// The bytes up to a line feed or the end, no more than `most` and for no longer than [`LONGEST`].
fn read_line(stream: &UnixStream, most: u64) -> io::Result<Vec<u8>> {
    let deadline = slackwater_wait::now() + LONGEST;
    let mut line = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let left = slackwater_wait::now().until(deadline);
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let count = (&mut &*stream).read(&mut piece)?;
        let new = &piece[..count];
        let end = new.iter().position(|byte| *byte == b'\n');
        line.extend_from_slice(&new[..end.unwrap_or(count)]);
        if line.len() as u64 > most {
            return Err(io::Error::other(format!(
                "a line of more than {most} bytes"
            )));
        }
        if end.is_some() || count == 0 {
            return Ok(line);
        }
    }
}

fn write_line(stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.set_write_timeout(Some(LONGEST))?;
    (&mut &*stream).write_all(&line)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc::channel;

    use super::*;

    fn reason(words: &str) -> Answer {
        Answer::Error(words.to_owned())
    }

    fn said(answer: Option<Answer>) -> String {
        match answer {
            Some(Answer::Error(words)) => words,
            other => format!("{other:?}"),
        }
    }

    fn question(key: &[u8]) -> Question {
        Question {
            key: key.to_vec(),
            tenant: "acme".to_owned(),
        }
    }

    #[test]
    fn a_question_is_answered_while_the_socket_is_open_and_by_its_owner_alone() {
        let root = tempfile::tempdir().unwrap();
        // Longer than the address of a socket may be.
        let path = root.path().join("d".repeat(200));
        let directory = Arc::new(Directory::hold(&path).unwrap());
        assert!(ask(&path, &question(b"k")).unwrap().is_none());
        for _ in 0..2 {
            let socket = AnswerSocket::open(&directory, |question| {
                reason(&format!("{:?} of {}", question.key, question.tenant))
            })
            .unwrap();
            let mode = std::fs::metadata(path.join(NAME)).unwrap().permissions();
            assert_eq!(mode.mode() & 0o777, 0o600);
            let answer = ask(&path, &question(&[0xff; 1024])).unwrap();
            assert!(said(answer).ends_with("255] of acme"));
            drop(socket);
            assert!(ask(&path, &question(b"k")).unwrap().is_none());
            assert!(!path.join(NAME).exists());
        }
    }

    /// A store that was killed leaves its socket: connecting to it is refused, and the next store could not bind.
    #[test]
    fn a_socket_without_a_listener_is_no_store_and_is_replaced() {
        let root = tempfile::tempdir().unwrap();
        let left = UnixListener::bind(root.path().join(NAME)).unwrap();
        drop(left);
        assert!(root.path().join(NAME).exists());
        assert!(ask(root.path(), &question(b"k")).unwrap().is_none());
        let directory = Arc::new(Directory::hold(root.path()).unwrap());
        let _socket = AnswerSocket::open(&directory, |_| reason("here")).unwrap();
        assert_eq!(said(ask(root.path(), &question(b"k")).unwrap()), "here");
    }

    #[test]
    fn what_is_no_question_is_refused_and_the_next_one_answered() {
        let root = tempfile::tempdir().unwrap();
        let directory = Arc::new(Directory::hold(root.path()).unwrap());
        let _socket = AnswerSocket::open(&directory, |_| reason("here")).unwrap();
        let check = |sent: &[u8], answered: &str| {
            let mut stream = UnixStream::connect(root.path().join(NAME)).unwrap();
            // A line that is too long is cut off, perhaps while it is still being sent.
            let _ = stream.write_all(sent);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            assert!(answer.contains(answered), "{answer:?}");
            if answered.is_empty() {
                assert_eq!(answer, "");
            }
            assert_eq!(said(ask(root.path(), &question(b"k")).unwrap()), "here");
        };
        check(b"", "not a question");
        check(b"why?\n", "not a question");
        check(b"{\"key\":[1],\"delete\":true}\n", "unknown field");
        check(&[b' '; QUESTION_BYTES_MAX as usize + 1], "");
    }

    #[test]
    fn a_client_that_says_nothing_does_not_hold_up_the_end() {
        let root = tempfile::tempdir().unwrap();
        let directory = Arc::new(Directory::hold(root.path()).unwrap());
        let (taken, seen) = channel();
        let socket = AnswerSocket::open(&directory, move |_| {
            taken.send(()).unwrap();
            reason("here")
        })
        .unwrap();
        let mut silent = UnixStream::connect(root.path().join(NAME)).unwrap();
        let begun = slackwater_wait::now();
        drop(socket);
        assert!(begun.until(slackwater_wait::now()) < LONGEST);
        let mut nothing = Vec::new();
        let _ = silent.read_to_end(&mut nothing);
        assert!(nothing.is_empty() && seen.try_recv().is_err());
    }
}
