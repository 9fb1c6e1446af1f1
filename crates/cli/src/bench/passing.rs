//! The directory of a benchmark, which goes with the run however that ends.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// A directory on the device to be measured. Where this process is ended before it is dropped, by Ctrl-C or by a kill, another one
/// removes it: it hears of the end by its input.
pub(super) struct Passing {
    directory: Option<TempDir>,
    remover: Child,
}

impl Passing {
    pub(super) fn new(parent: &Path) -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("slackwater-bench-")
            .tempdir_in(parent)
            .with_context(|| format!("cannot make a directory in {}", parent.display()))?;
        let remover = Command::new(super::this_program()?)
            .args(["bench", "remove-child"])
            .arg(directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Ctrl-C is for the group of the terminal.
            .process_group(0)
            .spawn()
            .context("cannot start a process")?;
        Ok(Self {
            directory: Some(directory),
            remover,
        })
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
