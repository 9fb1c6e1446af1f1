//! A Python process with pyzmq to talk to. `SLACKWATER_PYTHON` names the interpreter and must then have pyzmq; without
//! it `python3` is tried, and a test that finds no pyzmq there prints that and ends.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Longer than the 20 s after which the sockets of [`PRELUDE`] give up, so that Python's own error is seen first.
const PATIENCE: Duration = Duration::from_secs(30);

const PRELUDE: &str = r#"
import sys, zmq
c = zmq.Context()
def sock(kind, **opts):
    s = c.socket(kind)
    s.linger = 1000
    s.rcvtimeo = s.sndtimeo = 20000
    for k, v in opts.items(): setattr(s, k, v)
    return s
def say(*a):
    print(*a, flush=True)
"#;

pub(crate) struct Python {
    child: Child,
    lines: Receiver<String>,
    input: ChildStdin,
}

impl Python {
    /// `None`, after printing why, when there is no Python with pyzmq.
    pub(crate) fn start(script: &str, arguments: &[&str]) -> Option<Self> {
        let named = std::env::var("SLACKWATER_PYTHON").ok();
        let program = named.as_deref().unwrap_or("python3");
        let probe = Command::new(program)
            .args(["-c", "import zmq"])
            .stderr(Stdio::null())
            .status();
        if !probe.is_ok_and(|status| status.success()) {
            assert!(
                named.is_none(),
                "SLACKWATER_PYTHON is `{program}`, which has no zmq module"
            );
            #[expect(clippy::print_stderr, reason = "a skip must be seen")]
            {
                eprintln!(
                    "skipped: `{program}` has no zmq module (set SLACKWATER_PYTHON to one that has)"
                );
            }
            return None;
        }
        let mut command = Command::new(program);
        command
            .arg("-c")
            .arg(format!("{PRELUDE}{script}"))
            .args(arguments);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the probe ran");
        let output = child.stdout.take().expect("piped");
        let input = child.stdin.take().expect("piped");
        let (said, lines) = channel();
        // This thread ends with the process, whose pipe it reads, or with the test.
        std::thread::spawn(move || {
            BufReader::new(output)
                .lines()
                .map_while(Result::ok)
                .try_for_each(|l| said.send(l))
        });
        Some(Self {
            child,
            lines,
            input,
        })
    }

    /// The next line that the script prints.
    pub(crate) fn line(&mut self) -> String {
        self.lines
            .recv_timeout(PATIENCE)
            .unwrap_or_else(|error| panic!("the script printed no further line: {error}"))
    }

    /// Lets a script continue that reads a line.
    pub(crate) fn go_on(&mut self) {
        self.tell("");
    }

    /// Gives a script the line that it reads.
    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the peer waits for a line");
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
