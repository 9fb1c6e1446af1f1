//! A place of its own for each test.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

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
        self.command(arguments).output().unwrap()
    }

    /// Runs a replay that must end well and returns its one object.
    pub(crate) fn replay(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[&["replay", "--json"], arguments].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        object(&output)
    }
}

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
