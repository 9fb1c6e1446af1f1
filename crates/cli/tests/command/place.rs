//! A place of its own for each test.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::Timespec;
use serde_json::Value;
use tempfile::TempDir;

/// An address of this machine for a server that comes back there. The kernel gives its port to nobody else meanwhile: it is
/// below those that it gives out.
pub(crate) fn lasting_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let own = 10_000 + std::process::id() % 200 * 20;
    let addresses = std::iter::repeat_with(|| {
        let port = own + NEXT.fetch_add(1, Ordering::Relaxed);
        format!("127.0.0.1:{port}")
    });
    let is_free = |address: &String| TcpListener::bind(address).is_ok();
    addresses.take(100).find(is_free).expect("one is free")
}

/// A directory of its own for one test: the store, reports and temporary files all go below it.
pub(crate) struct Place {
    root: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self {
            root: tempfile::tempdir().unwrap(),
        };
        std::fs::create_dir(place.temporary()).unwrap();
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Where the command puts what goes with the run.
    pub(crate) fn temporary(&self) -> PathBuf {
        self.path("tmp")
    }

    /// The command with these arguments, in this place and without anything from outside. A server has no admin address
    /// unless it is given one: tests that run side by side would have the same.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slackwater"));
        command
            .args(arguments)
            .current_dir(self.root.path())
            .env_clear()
            .env("TMPDIR", self.temporary())
            .env("SLACKWATER_ADMIN", "none");
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        output(
            command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap(),
        )
    }

    /// Runs a replay that must end well and returns its one object.
    pub(crate) fn replay(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[&["replay", "--json"], arguments].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        object(&output)
    }
}

/// What the child, whose output is piped, has printed when it is over.
pub(crate) fn output(mut child: Child) -> Output {
    fn drain(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.into_iter()
                .for_each(|mut pipe| _ = pipe.read_to_end(&mut bytes).unwrap());
            bytes
        })
    }
    let (stdout, stderr) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let status = end(&mut child);
    Output {
        status,
        stdout: stdout.join().unwrap(),
        stderr: stderr.join().unwrap(),
    }
}

/// Waits for a child to be over, and ends one that hangs.
pub(crate) fn end(child: &mut Child) -> ExitStatus {
    let over = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).unwrap();
    if !ready(&over, PollFlags::IN) {
        child.kill().unwrap();
        panic!("a child still runs after {PATIENCE:?}: {:?}", child.wait());
    }
    child.wait().unwrap()
}

/// Whether a descriptor becomes so within [`PATIENCE`].
pub(crate) fn ready(descriptor: impl std::os::fd::AsFd, so: PollFlags) -> bool {
    let patience = Timespec {
        tv_sec: PATIENCE.as_secs().cast_signed(),
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(&descriptor, so)], Some(&patience)).unwrap() > 0
}

/// Starts a replay that keeps running, and returns when its store is open. What it prints is for [`output`].
pub(crate) fn open(place: &Place, arguments: &[&str]) -> Child {
    let mut command = place.command(&[&["replay", "--json", "--log", "info"], arguments].concat());
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let (said, heard) = channel();
    // It goes on listening when nobody hears it: a full pipe would stop the child.
    std::thread::spawn(move || {
        lines
            .map_while(Result::ok)
            .for_each(|line| _ = said.send(line))
    });
    while !heard
        .recv_timeout(PATIENCE)
        .expect("the store was not opened")
        .contains("the log is open")
    {}
    child
}

/// How long anything that a test waits for may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The one object on standard output.
pub(crate) fn object(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().count(), 1, "one object on one line: {text}");
    serde_json::from_str(&text).unwrap()
}
