//! A store that other processes use: servers and clients are processes of their own.

mod admin;
mod awaited;
mod clocks;
mod faults;
mod jobs;
mod keys;
mod kv_events;
mod network;
mod page;
mod pool;
mod promised;
mod quick_start;
mod replicas;
mod signals;
mod top;
mod traces;
mod trial;
mod verbs;
mod watermarks;
mod wire;

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use slackwater_remote::{Client, ConnectError, ConnectOptions};

use crate::place::{PATIENCE, Place, end, output, stderr};

/// What makes a process one with keys: its own is `server`, and others are in the list of [`make_key`].
pub(crate) const KEYED: [&str; 4] = ["--key-file", "server", "--allow", "list"];

/// A server, ended with the test.
pub(crate) struct Served {
    pub(crate) child: Child,
    pub(crate) address: String,
}

impl Served {
    /// Starts a server at a free port and returns when it serves.
    pub(crate) fn start(place: &Place, arguments: &[&str]) -> Self {
        let listen = ["serve", "--listen", "127.0.0.1:0", "--log", "warn"];
        Self::spawn(place.command(&[&listen[..], arguments].concat()))
    }

    /// Starts this server and returns when it serves.
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.trim().strip_prefix("serving at ");
        let address = address
            .unwrap_or_else(|| panic!("the server said `{line}`"))
            .to_owned();
        Self { child, address }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if signal == Signal::STOP {
            return stop(&self.child);
        }
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The command of a client.
    pub(crate) fn client(&self, place: &Place, arguments: &[&str]) -> Command {
        let mut command = place.command(arguments);
        command.env("SLACKWATER_CONNECT", &self.address);
        command
    }

    /// Runs a client to its end.
    pub(crate) fn run(&self, place: &Place, arguments: &[&str], input: &[u8]) -> Output {
        feed(self.client(place, arguments), input)
    }

    pub(crate) fn connect(&self) -> Client {
        self.connect_as(ConnectOptions::default())
    }

    pub(crate) fn connect_as(&self, options: ConnectOptions) -> Client {
        Client::connect(&ConnectOptions {
            address: self.address.parse().unwrap(),
            connect_timeout: PATIENCE,
            deadline: PATIENCE,
            ..options
        })
        .unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended, as the test wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes a key of this name and enters it into the list, with these words behind it; returns its public half.
pub(crate) fn make_key(place: &Place, name: &str, level: &str) -> String {
    let made = place.run(&["keys", "new", name]);
    assert!(made.status.success(), "{}", stderr(&made));
    let text = String::from_utf8(made.stdout).unwrap();
    let key = text
        .split_whitespace()
        .find(|word| word.len() == 64)
        .unwrap()
        .to_owned();
    if !level.is_empty() {
        let list = place.path("list");
        let mut lines = std::fs::read_to_string(&list).unwrap_or_default();
        lines += &format!("{key} {level} {name}\n");
        std::fs::write(&list, lines).unwrap();
    }
    key
}

/// A client with the key of this file, whose calls take no longer than `deadline`.
pub(crate) fn connect_with_key(
    address: &str,
    key_file: PathBuf,
    deadline: Duration,
) -> Result<Client, ConnectError> {
    Client::connect(&ConnectOptions {
        address: address.parse().unwrap(),
        key_file: Some(key_file),
        connect_timeout: PATIENCE,
        deadline,
        ..ConnectOptions::default()
    })
}

/// Stops a child, and returns when none of its threads runs any more.
pub(crate) fn stop(child: &Child) {
    kill_process(Pid::from_child(child), Signal::STOP).unwrap();
    stopped(child);
}

/// Waits until a child that was told to stop runs no more: the signal takes effect after the call that sends it, and at
/// some threads before others.
pub(crate) fn stopped(child: &Child) {
    let options = WaitOptions::UNTRACED | WaitOptions::NOHANG;
    until("the child has stopped", || {
        let told = waitpid(Some(Pid::from_child(child)), options).unwrap();
        told.is_some_and(|(_, status)| {
            assert!(status.stopped(), "it has ended");
            true
        })
    });
}

/// Runs a command to its end, with this on its standard input.
pub(crate) fn feed(mut command: Command, input: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let input = input.to_vec();
    // A command that fails at once does not read its input.
    let fed = std::thread::spawn(move || _ = pipe.write_all(&input));
    let output = output(child);
    fed.join().unwrap();
    output
}

/// Bytes that say which value they belong to, at every place.
pub(crate) fn value(name: u64, bytes: usize) -> Vec<u8> {
    let words = (0..bytes.div_ceil(8) as u64).flat_map(|at| {
        let word = name.rotate_left(32) ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.to_le_bytes()
    });
    words.take(bytes).collect()
}

/// Does something until it holds, with pauses, as long as a test waits.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for the end of a server that was told to end.
pub(crate) fn exit_code(served: &mut Served) -> Option<i32> {
    end(&mut served.child).code()
}
