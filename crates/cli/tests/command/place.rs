//! A place of its own for each test.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// A directory of its own for one test: the store, reports and temporary files all go below it.
pub(crate) struct Place {
    root: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self { root: tempfile::tempdir().unwrap() };
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

    /// The command with these arguments, in this place and without anything from outside.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slackwater"));
        command.args(arguments).current_dir(self.root.path()).env_clear().env("TMPDIR", self.temporary());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        output(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
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
    fn drain(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).unwrap();
            bytes
        })
    }
    let (stdout, stderr) = (drain(child.stdout.take().unwrap()), drain(child.stderr.take().unwrap()));
    let status = end(&mut child);
    Output { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

/// Waits for a child to be over, and ends one that hangs.
pub(crate) fn end(child: &mut Child) -> ExitStatus {
    let patience = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > patience {
            child.kill().unwrap();
            panic!("a child still runs after {PATIENCE:?}: {:?}", child.wait());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
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

/// Bytes of all files below a directory that may not be there.
pub(crate) fn bytes_below(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}
