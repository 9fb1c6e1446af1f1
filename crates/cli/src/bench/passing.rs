//! The directory of a benchmark, which goes with the run however that ends.

use std::fs::Permissions;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::answer;
use crate::interrupt::block_signals;

/// A directory, such as one on the device to be measured. Where this process is ended before it is dropped, by Ctrl-C or by a kill,
/// another one removes it: it hears of the end by its input.
pub(super) struct Passing {
    directory: Option<TempDir>,
    remover: Child,
}

impl Passing {
    pub(super) fn new(parent: &Path) -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix(PREFIX)
            // Programs that run and keys that are secret may be in it.
            .permissions(Permissions::from_mode(0o700))
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

    /// A directory that no device is measured by: where temporary files are.
    pub(super) fn anywhere() -> Result<Self> {
        Self::new(&std::env::temp_dir())
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
    let left = path.with_extension("ended");
    let gone = until_away(|| remove_once(path, &left), || std::thread::sleep(PAUSE));
    gone.with_context(|| {
        let there = if left.exists() { &left } else { path };
        format!("cannot remove {}", there.display())
    })
}

/// Removes until nothing has come back for a while. The measured processes end with the benchmark, but not at once, and no process
/// but theirs is told of it: they may still write into files of the directory, or be about to make it.
fn until_away(
    mut remove: impl FnMut() -> io::Result<bool>,
    mut pause: impl FnMut(),
) -> io::Result<()> {
    let (mut turns, mut away) = (0, 0);
    while away < AWAY_TURNS {
        turns += 1;
        match remove() {
            Ok(false) => away += 1,
            _ if turns < TURNS => away = 0,
            Ok(true) => return Err(io::Error::other("it is made again and again")),
            Err(why) => return Err(why),
        }
        pause();
    }
    Ok(())
}

/// Whether there was anything to remove.
fn remove_once(path: &Path, left: &Path) -> io::Result<bool> {
    // Who still writes by name finds no place for new files.
    let _ = std::fs::rename(path, left);
    let [left, made_again] = [left, path].map(|place| match std::fs::remove_dir_all(place) {
        Ok(()) => Ok(true),
        Err(why) if why.kind() == ErrorKind::NotFound => Ok(false),
        Err(why) => Err(why),
    });
    Ok(left? | made_again?)
}

/// What the names of these directories begin with.
const PREFIX: &str = "slackwater-bench-";
/// What the process that removes says when no signal ends it any more.
const READY: &str = "ready";
/// Between two looks at a directory that is to stay away.
const PAUSE: Duration = Duration::from_millis(50);
/// How often in a row there is to be nothing: a second.
const AWAY_TURNS: usize = 20;
/// How often it is removed at most: ten seconds, and the time that removing takes.
const TURNS: usize = 200;

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::mpsc::channel;

    use rustix::fs::{Mode, OFlags, openat};

    use super::*;

    /// One try was made against processes that still wrote, and a gigabyte was left behind.
    #[test]
    fn what_cannot_be_removed_yet_is_tried_again() {
        let check = |failures: usize| {
            let mut turns = 0;
            let remove = || {
                turns += 1;
                match turns {
                    turn if turn <= failures => Err(ErrorKind::DirectoryNotEmpty.into()),
                    turn => Ok(turn == failures + 1),
                }
            };
            (until_away(remove, || {}), turns)
        };
        for failures in [0, 1, 100, TURNS - 2] {
            let (gone, turns) = check(failures);
            assert!(gone.is_ok(), "{failures}: {gone:?}");
            assert_eq!(turns, failures + 1 + AWAY_TURNS);
        }
        let (gone, turns) = check(usize::MAX - 1);
        assert_eq!(gone.unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
        assert_eq!(turns, TURNS, "not for ever");
        let mut turns = 0;
        let made_again = || {
            turns += 1;
            Ok(true)
        };
        let why = until_away(made_again, || {}).unwrap_err();
        assert_eq!(
            (why.to_string().as_str(), turns),
            ("it is made again and again", TURNS)
        );
    }

    /// The log of a node is opened by directory: its files went where the directory was moved to.
    #[test]
    fn a_directory_goes_although_files_are_still_made_in_it() {
        let place = tempfile::tempdir().unwrap();
        let [path, left] = ["benchmark", "left"].map(|name| place.path().join(name));
        std::fs::create_dir(&path).unwrap();
        let directory = File::open(&path).unwrap();
        let (writing, written) = channel();
        let write = move || {
            for number in 0..1_000 {
                let flags = OFlags::CREATE | OFlags::WRONLY;
                // None is made any more in a directory that is gone.
                if openat(&directory, number.to_string(), flags, Mode::RUSR).is_err() {
                    return;
                }
                let _ = writing.send(());
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(write);
            written.recv().unwrap();
            let pause = || std::thread::sleep(Duration::from_millis(1));
            until_away(|| remove_once(&path, &left), pause).unwrap();
        });
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }

    /// A process that had just begun made the directory again after it was removed.
    #[test]
    fn a_directory_that_is_made_again_goes_too() {
        let place = tempfile::tempdir().unwrap();
        let [path, left] = ["benchmark", "left"].map(|name| place.path().join(name));
        std::fs::create_dir(&path).unwrap();
        let mut pauses = 0;
        let pause = || {
            pauses += 1;
            if [3, AWAY_TURNS].contains(&pauses) {
                std::fs::create_dir_all(path.join("node-0")).unwrap();
            }
        };
        until_away(|| remove_once(&path, &left), pause).unwrap();
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
        assert_eq!(pauses, AWAY_TURNS + 1 + AWAY_TURNS);
    }

    #[test]
    fn a_directory_that_cannot_be_moved_is_removed_where_it_is() {
        let place = tempfile::tempdir().unwrap();
        let [path, nowhere] = ["benchmark", "missing/left"].map(|name| place.path().join(name));
        std::fs::create_dir_all(path.join("node-0")).unwrap();
        for was_there in [true, false] {
            assert_eq!(remove_once(&path, &nowhere).unwrap(), was_there);
            assert!(!path.exists());
        }
    }
}
