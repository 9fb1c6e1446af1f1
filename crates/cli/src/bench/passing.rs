//! The directory of a benchmark, which goes with the run however that ends.

use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::answer;
use crate::interrupt::block_signals;

/// A directory on the device to be measured. Where this process is ended before it is dropped, by Ctrl-C or by a kill, another one
/// removes it: it hears of the end by its input.
pub(super) struct Passing {
    directory: Option<TempDir>,
    remover: Child,
}

impl Passing {
    pub(super) fn new(parent: &Path) -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix(PREFIX)
            .tempdir_in(parent)
            .with_context(|| format!("cannot make a directory in {}", parent.display()))?;
        let remover = Command::new(super::this_program()?)
            .args(["bench", "remove-child"])
            .arg(directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for the group of the terminal.
            .process_group(0)
            .spawn()
            .context("cannot start a process")?;
        let mut passing = Self {
            directory: Some(directory),
            remover,
        };
        let mut said = String::new();
        if let Some(output) = passing.remover.stdout.take() {
            BufReader::new(output).read_line(&mut said)?;
        }
        ensure!(said.trim() == READY, "nothing would remove the directory");
        Ok(passing)
    }

    pub(super) fn path(&self) -> &Path {
        let directory = self.directory.as_ref();
        directory.expect("there until the drop").path()
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        drop(self.directory.take());
        drop(self.remover.stdin.take());
        let _ = self.remover.wait();
    }
}

/// Removes a directory as soon as the process that made it is no more.
pub(super) fn remove(path: &Path) -> Result<()> {
    // What ends all processes of a name or of a service is no reason to leave something behind: it ends with its input.
    block_signals([libc::SIGTERM, libc::SIGINT, libc::SIGHUP].into_iter())
        .context("cannot hold signals back")?;
    let name = path.file_name().unwrap_or_default();
    if !name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
        bail!("{} is not the directory of a benchmark", path.display());
    }
    // Where nobody hears it the process has ended already.
    let _ = answer::say(READY);
    io::stdin().read_to_end(&mut Vec::new())?;
    if !path.exists() {
        return Ok(());
    }
    // What the run has started may still write, and finds no place for new files.
    let left = path.with_extension("ended");
    let moved = std::fs::rename(path, &left).map_or(path, |()| &left);
    let removed = std::fs::remove_dir_all(moved);
    removed.with_context(|| format!("cannot remove {}", moved.display()))
}

/// What the names of these directories begin with.
const PREFIX: &str = "slackwater-bench-";
/// What the process that removes says when no signal ends it any more.
const READY: &str = "ready";
