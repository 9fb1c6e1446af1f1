use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, flock, fstat, fsync, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use slackwater_tier::io::FileId;

use super::DirectoryError;
use super::handles::{Handles, OpenFile, raise_limit};
use crate::fork::ParentOnly;

/// Name of the file whose lock says that a process holds the directory.
pub(crate) const LOCK_NAME: &str = "slackwater.lock";
const LOG_PREFIX: &str = "log-";
const LOG_SUFFIX: &str = ".slack";
const SPARE_PREFIX: &str = "spare-";
/// Most bytes of deleted files that are kept for new ones, but [`SPARES_LEAST`] files: what is kept is removed at closing.
const SPARE_BYTES_MAX: u64 = 1 << 30;
/// Files that are kept however long they are: as many as a full log leaves unbegun.
const SPARES_LEAST: usize = 2;

/// A directory that this process holds: the lock, and the log's files by number. Other files in it are left alone.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    handle: OwnedFd,
    direct: bool,
    files: Mutex<Handles>,
    spares: Mutex<Spares>,
    /// Released by the kernel when the process goes, however it goes: its children do not hold it.
    lock: ParentOnly<File>,
}

/// Files of the log that were deleted, by their numbers, and kept under other names: to give a file's blocks back takes the
/// device some 13 ms for 64 MiB, and it takes blocks that were written before faster than fresh ones.
#[derive(Debug, Default)]
struct Spares {
    /// Length of the last file that was made: others are of no use.
    bytes: u64,
    /// Whether the deletion of each is durable.
    kept: BTreeMap<FileId, bool>,
}

impl Spares {
    /// Whether another fits. One file is left out: it may be begun before the deletion of the last one is durable.
    fn has_place(&self, room: u64) -> bool {
        let kept = self.kept.len();
        let bytes = (kept as u64 + 1) * self.bytes;
        bytes + self.bytes <= room && (kept < SPARES_LEAST || bytes <= SPARE_BYTES_MAX)
    }
}

impl Drop for Directory {
    /// Unlocks by name: a child that another thread is just starting holds a copy of the descriptor until it executes,
    /// and closing ours would leave the directory locked for as long.
    fn drop(&mut self) {
        for spare in std::mem::take(&mut self.spares().kept).into_keys() {
            self.remove_spare(spare);
        }
        if let Err(error) = flock(&self.lock, FlockOperation::Unlock) {
            tracing::warn!(%error, path = %self.path.display(), "the directory's lock could not be given back");
        }
    }
}

impl Directory {
    /// Takes the directory for this process, making it where it is missing, and raises the process's soft limit on
    /// open files to the hard one: a log has many.
    ///
    /// # Errors
    /// When another opener holds it, or it cannot be made or written.
    pub fn hold(path: &Path) -> Result<Self, DirectoryError> {
        let unusable = |action: &'static str, at: &Path| {
            let path = at.to_owned();
            move |why: io::Error| DirectoryError::Unusable { path, action, why }
        };
        if path.exists() && !path.is_dir() {
            return Err(DirectoryError::NotADirectory {
                path: path.to_owned(),
            });
        }
        fs::create_dir_all(path).map_err(unusable("make it", path))?;
        let lock_path = path.join(LOCK_NAME);
        let open_lock = || {
            let mut options = OpenOptions::new();
            options
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&lock_path)
        };
        let mut lock = open_lock().map_err(unusable("write to it", &lock_path))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let pid = lock
                    .read_to_string(&mut text)
                    .ok()
                    .and_then(|_| text.trim().parse().ok());
                return Err(DirectoryError::Held {
                    path: path.to_owned(),
                    pid,
                });
            }
            Err(error) => return Err(unusable("lock it", &lock_path)(error.into())),
        }
        let sign = |lock: &mut File| -> io::Result<()> {
            lock.rewind()?;
            lock.set_len(0)?;
            writeln!(lock, "{}", std::process::id())
        };
        sign(&mut lock).map_err(unusable("write to it", &lock_path))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|error| unusable("open it", path)(error.into()))?;
        let probe = openat(
            &handle,
            LOCK_NAME,
            OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let held = Self {
            path: path.to_owned(),
            handle,
            direct: probe.is_ok(),
            files: Mutex::new(Handles::new(raise_limit())),
            spares: Mutex::default(),
            lock: ParentOnly::new(lock),
        };
        // A process that was killed kept them.
        for (spare, _) in files_named(path, SPARE_PREFIX)? {
            held.remove_spare(spare);
        }
        Ok(held)
    }

    /// The path that it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file system does direct I/O; otherwise its page cache stands between.
    #[must_use]
    pub fn direct(&self) -> bool {
        self.direct
    }

    /// The directory itself, to be synced.
    pub(crate) fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// The log's files and their lengths, oldest first. The directory is synced before it is read: a name that an
    /// earlier process removed, without making that durable, does not come back with the next power cut.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn list(&self) -> Result<Vec<(FileId, u64)>, DirectoryError> {
        self.sync().map_err(|why| DirectoryError::Unusable {
            path: self.path.clone(),
            action: "sync it",
            why: why.into(),
        })?;
        log_files(&self.path)
    }

    /// The file, opened if it is not.
    pub(super) fn open(&self, file: FileId) -> Result<Arc<OpenFile>, Errno> {
        if let Some(open) = self.handles().get(file) {
            return Ok(open);
        }
        let handle = self.open_with(&file_name(file), OFlags::empty())?;
        Ok(self.handles().keep(file, handle))
    }

    /// A new file of no length, in place of any that a crash left half made.
    pub(super) fn create(&self, file: FileId) -> Result<Arc<OpenFile>, Errno> {
        let handle = self.open_with(&file_name(file), OFlags::CREATE | OFlags::TRUNC)?;
        Ok(self.handles().keep(file, handle))
    }

    /// A deleted file of so many bytes to make a new one out of, if there is one: its number, and the file.
    pub(super) fn take_spare(&self, bytes: u64) -> Option<(FileId, Arc<OpenFile>)> {
        let mut spares = self.spares();
        spares.bytes = bytes;
        let ready = spares.kept.iter().find(|(_, durable)| **durable);
        let (spare, _) = ready.map(|(spare, durable)| (*spare, *durable))?;
        spares.kept.remove(&spare);
        drop(spares);
        let opened = self.open_with(&name(SPARE_PREFIX, spare), OFlags::empty());
        let fits = |handle: &OwnedFd| fstat(handle).is_ok_and(|it| it.st_size as u64 == bytes);
        match opened.ok().filter(fits) {
            Some(handle) => Some((spare, Arc::new(OpenFile::new(handle)))),
            None => {
                self.remove_spare(spare);
                None
            }
        }
    }

    /// Gives a deleted file the number of a new one. Durable after a sync of the directory.
    pub(super) fn adopt(
        &self,
        spare: FileId,
        file: FileId,
        open: &Arc<OpenFile>,
    ) -> Result<(), Errno> {
        let (old, new) = (name(SPARE_PREFIX, spare), file_name(file));
        renameat(&self.handle, old, &self.handle, new)?;
        self.handles().keep_open(file, Arc::clone(open));
        Ok(())
    }

    /// Removes a deleted file that is not to be kept. What fails here is tried again when the directory is held next.
    pub(super) fn remove_spare(&self, spare: FileId) {
        match unlinkat(&self.handle, name(SPARE_PREFIX, spare), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => {
                tracing::warn!(%error, path = %self.path.display(), file = spare.0, "a spare file could not be removed");
            }
        }
    }

    /// Takes the file out of the log under another name, to make a new one out of it, if it is one that can be used so: true
    /// then, and it is deleted after a sync of the directory and [`Directory::retired`]. A file that somebody uses, or that
    /// has writes which no sync covered, some of which may have failed, is not kept, nor one that has no place in `room` bytes of
    /// such files.
    pub(super) fn retire(&self, file: FileId, room: u64) -> bool {
        let mut spares = self.spares();
        let found = statat(&self.handle, file_name(file), AtFlags::SYMLINK_NOFOLLOW);
        // The sync of an earlier try may have failed.
        if found.err() == Some(Errno::NOENT) {
            return spares.kept.contains_key(&file);
        }
        let fits = found.is_ok_and(|it| it.st_size as u64 == spares.bytes && spares.bytes > 0);
        if !fits || !spares.has_place(room) || !self.handles().forget_idle(file) {
            return false;
        }
        let (old, new) = (file_name(file), name(SPARE_PREFIX, file));
        if renameat(&self.handle, old, &self.handle, new).is_err() {
            return false;
        }
        spares.kept.insert(file, false);
        true
    }

    /// The deletion of a retired file is durable.
    pub(super) fn retired(&self, file: FileId) {
        if let Some(durable) = self.spares().kept.get_mut(&file) {
            *durable = true;
        }
    }

    /// Removes the file's name; its bytes go with its last user. Durable after a sync of the directory.
    pub(super) fn unlink(&self, file: FileId) -> Result<(), Errno> {
        unlinkat(&self.handle, self.forget(file), AtFlags::empty())
    }

    /// Closes the file, as far as nobody uses it, and gives the name that is to be removed.
    pub(super) fn forget(&self, file: FileId) -> CString {
        self.handles().forget(file);
        CString::new(file_name(file)).expect("a file's name is letters and digits")
    }

    /// Makes creations and removals durable.
    pub(super) fn sync(&self) -> Result<(), Errno> {
        fsync(&self.handle)
    }

    fn open_with(&self, name: &str, extra: OFlags) -> Result<OwnedFd, Errno> {
        let direct = if self.direct {
            OFlags::DIRECT
        } else {
            OFlags::empty()
        };
        let flags = OFlags::RDWR | OFlags::CLOEXEC | direct | extra;
        loop {
            match openat(&self.handle, name, flags, Mode::RUSR | Mode::WUSR) {
                // The rest of the process took its part and more: ours are the ones that can be had again.
                Err(Errno::MFILE | Errno::NFILE) if self.handles().close_one() => {}
                opened => return opened,
            }
        }
    }

    fn handles(&self) -> MutexGuard<'_, Handles> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spares(&self) -> MutexGuard<'_, Spares> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The log's files in a directory, held or not, and their lengths, oldest first.
///
/// # Errors
/// What the operating system says.
pub(crate) fn log_files(path: &Path) -> Result<Vec<(FileId, u64)>, DirectoryError> {
    files_named(path, LOG_PREFIX)
}

fn files_named(path: &Path, prefix: &str) -> Result<Vec<(FileId, u64)>, DirectoryError> {
    let read = || -> io::Result<Vec<(FileId, u64)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if let Some(file) = entry
                .file_name()
                .to_str()
                .and_then(|text| parse_name(prefix, text))
            {
                found.push((file, entry.metadata()?.len()));
            }
        }
        found.sort_unstable();
        Ok(found)
    };
    read().map_err(|why| DirectoryError::Unusable {
        path: path.to_owned(),
        action: "list it",
        why,
    })
}

/// Name of a file of the log.
pub(super) fn file_name(file: FileId) -> String {
    name(LOG_PREFIX, file)
}

fn name(prefix: &str, file: FileId) -> String {
    format!("{prefix}{:016}{LOG_SUFFIX}", file.0)
}

/// The number in a file's name, of names that [`name`] would give and no others.
fn parse_name(prefix: &str, text: &str) -> Option<FileId> {
    let number = text
        .strip_prefix(prefix)?
        .strip_suffix(LOG_SUFFIX)?
        .parse()
        .ok()?;
    let file = FileId(number);
    (name(prefix, file) == text).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_directory_is_made_and_foreign_files_are_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b");
        let directory = Directory::hold(&path).unwrap();
        for foreign in [
            "notes.txt",
            "log-7.slack",
            "log-x.slack",
            "log-0000000000000003.slack.bak",
        ] {
            fs::write(path.join(foreign), "mine").unwrap();
        }
        directory.create(FileId(12)).unwrap();
        directory.create(FileId(3)).unwrap();
        assert_eq!(directory.list().unwrap(), [(FileId(3), 0), (FileId(12), 0)]);
        directory.unlink(FileId(3)).unwrap();
        assert_eq!(directory.list().unwrap(), [(FileId(12), 0)]);
        drop(directory);
        assert_eq!(fs::read_to_string(path.join("notes.txt")).unwrap(), "mine");
    }

    /// One descriptor a file was kept for ever: a log of 200 GiB needed three times the usual soft limit.
    #[test]
    fn files_beyond_the_limit_are_closed_but_not_those_in_use_or_unsynced() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::hold(root.path()).unwrap();
        *directory.handles() = Handles::new(3);
        let unsynced = directory.create(FileId(0)).unwrap();
        unsynced.begin_write();
        unsynced.end_write();
        let used = directory.create(FileId(1)).unwrap();
        for file in 2..20 {
            directory.create(FileId(file)).unwrap();
            assert!(directory.handles().len() <= 3);
        }
        assert!(Arc::ptr_eq(&used, &directory.open(FileId(1)).unwrap()));
        let covers = unsynced.begin_sync();
        drop(unsynced);
        assert!(
            directory.handles().get(FileId(0)).is_some(),
            "it waits for its sync"
        );
        directory.open(FileId(0)).unwrap().end_sync(covers);
        while directory.handles().close_one() {}
        assert_eq!(directory.handles().len(), 1, "the one in use");
        directory.open(FileId(7)).unwrap();
    }

    #[test]
    fn a_second_opener_is_told_who_holds_it_until_the_first_lets_go() {
        let root = tempfile::tempdir().unwrap();
        let first = Directory::hold(root.path()).unwrap();
        let error = Directory::hold(root.path()).unwrap_err();
        assert!(
            matches!(error, DirectoryError::Held { pid: Some(pid), .. } if pid == std::process::id()),
            "{error}"
        );
        assert!(error.to_string().contains(&format!(
            "held by another process (pid {})",
            std::process::id()
        )));
        drop(first);
        Directory::hold(root.path()).unwrap();
    }

    #[test]
    fn what_cannot_be_a_directory_says_so() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(matches!(
            Directory::hold(&file),
            Err(DirectoryError::NotADirectory { .. })
        ));
        let below = Directory::hold(&file.join("below")).unwrap_err();
        assert!(below.to_string().contains("cannot make it"), "{below}");
        let unwritable = Directory::hold(Path::new("/proc/self/net")).unwrap_err();
        assert!(
            unwritable.to_string().contains("cannot write to it"),
            "{unwritable}"
        );
    }

    /// Files that are kept of a log with so much room, one after the other.
    fn kept(bytes: u64, room: u64) -> usize {
        let mut spares = Spares {
            bytes,
            ..Spares::default()
        };
        while spares.kept.len() < 100 && spares.has_place(room) {
            spares.kept.insert(FileId(spares.kept.len() as u64), true);
        }
        spares.kept.len()
    }

    /// Five files went at once when the SSD was full, two were kept, and to give the blocks of the others back took the device
    /// ten milliseconds each, in which no read ended.
    #[test]
    fn deleted_files_are_kept_while_the_log_is_shorter_than_it_may_be() {
        let (mib, gib) = (1 << 20, 1 << 30);
        for (bytes, files_of_room, expected) in [
            (64 * mib, 0, 0),
            (64 * mib, 1, 0),
            (64 * mib, 3, 2),
            (64 * mib, 8, 7),
            (64 * mib, 50, 16),
            (gib, 2, 1),
            (gib, 50, 2),
        ] {
            assert_eq!(
                kept(bytes, files_of_room * bytes),
                expected,
                "{files_of_room} files of {bytes} bytes"
            );
        }
    }
}
