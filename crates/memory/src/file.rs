//! Memory that is a piece of a file which other processes have too. They can change its bytes, which checksums find, and
//! make the file shorter, which [`crate::cut`] lives with and [`FilePiece::watch`] tells.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{FallocateFlags, OFlags, fallocate, fstatfs, inotify};
use rustix::io::{Errno, read, retry_on_intr, write};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::param::page_size;
use thiserror::Error;

use crate::Mapping;
use crate::cut::Guarded;
use crate::shared::HUGETLBFS_MAGIC;

/// A piece of a file, in whole pages, for which the file system keeps room. Clones share the descriptor.
#[derive(Clone, Debug)]
pub struct FilePiece {
    path: Arc<Path>,
    file: Arc<File>,
    offset: u64,
    bytes: usize,
    page: usize,
    in_memory: bool,
}

/// The type of a file system in memory (linux/magic.h).
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// Why a piece of a file cannot be memory.
#[derive(Debug, Error)]
pub enum RefusedFile {
    /// It cannot be opened for reading and writing.
    #[error("{}: {why}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        why: io::Error,
    },
    /// It is a directory, a device, a pipe or a socket.
    #[error("{} is no regular file", path.display())]
    NotAFile {
        /// The path that names it.
        path: PathBuf,
    },
    /// The piece does not begin with a page, or has none.
    #[error("{bytes} bytes from byte {offset} of {} on are no whole pages of {page} bytes", path.display())]
    Unaligned {
        /// The file.
        path: PathBuf,
        /// Where the piece begins.
        offset: u64,
        /// Its length.
        bytes: u64,
        /// Bytes of a page there.
        page: usize,
    },
    /// The file ends before the piece does.
    #[error("{} has {have} bytes: {bytes} from byte {offset} on are not there", path.display())]
    TooShort {
        /// The file.
        path: PathBuf,
        /// Its length.
        have: u64,
        /// Where the piece begins.
        offset: u64,
        /// The length of the piece.
        bytes: u64,
    },
    /// Its file system has no room for bytes that were never written.
    #[error("no room for {bytes} bytes of {}: {why}", path.display())]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// The length of the piece.
        bytes: u64,
        /// The error of the operating system.
        why: io::Error,
    },
}

impl FilePiece {
    /// Opens `bytes` bytes of a file from `offset` on, and has its file system keep room for them: a page that was never
    /// written and has no room would be found out by SIGBUS. What does not fill a page at the end is left out.
    ///
    /// # Errors
    /// When the file is none, has fewer bytes or no room for them, or the piece does not begin with a page.
    pub fn open(path: &Path, offset: u64, bytes: u64) -> Result<Self, RefusedFile> {
        let named = || path.to_owned();
        let cannot = |why: io::Error| RefusedFile::Open { path: named(), why };
        // A device or a pipe must not be waited for; what it is can only be asked of what is open.
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(path);
        let file = match file {
            Ok(file) => file,
            Err(why) if why.kind() == io::ErrorKind::IsADirectory => {
                return Err(RefusedFile::NotAFile { path: named() });
            }
            Err(why) => return Err(cannot(why)),
        };
        let found = file.metadata().map_err(cannot)?;
        if !found.is_file() {
            return Err(RefusedFile::NotAFile { path: named() });
        }
        let system = fstatfs(&file).map_err(|errno| cannot(errno.into()))?;
        let page = match system.f_type == HUGETLBFS_MAGIC {
            true => usize::try_from(system.f_bsize).unwrap_or_else(|_| page_size()),
            false => page_size(),
        };
        let have = found.size();
        if offset.checked_add(bytes).is_none_or(|end| end > have) {
            return Err(RefusedFile::TooShort {
                path: named(),
                have,
                offset,
                bytes,
            });
        }
        let whole = usize::try_from(bytes).ok().map(|bytes| bytes / page * page);
        let whole = whole.filter(|whole| *whole > 0 && offset.is_multiple_of(page as u64));
        let Some(whole) = whole else {
            return Err(RefusedFile::Unaligned {
                path: named(),
                offset,
                bytes,
                page,
            });
        };
        let refused = |why: io::Error| RefusedFile::NoRoom {
            path: named(),
            bytes,
            why,
        };
        // Asked before, as some file systems give what they have until there is no more. The pages of a file in memory are
        // memory, which the kernel would take from whatever process has it.
        let missing = (whole as u64).saturating_sub(found.blocks().saturating_mul(512));
        let free = system
            .f_bavail
            .saturating_mul(system.f_bsize.unsigned_abs());
        let has_huge_pages = system.f_type == HUGETLBFS_MAGIC;
        let is_bounded = system.f_blocks > 0 && !has_huge_pages;
        let is_tmpfs = system.f_type == TMPFS_MAGIC;
        if is_bounded && missing > free {
            return Err(refused(io::ErrorKind::StorageFull.into()));
        }
        if is_tmpfs && crate::available_bytes().is_some_and(|available| missing > available) {
            return Err(refused(io::ErrorKind::OutOfMemory.into()));
        }
        let keep = || fallocate(&file, FallocateFlags::KEEP_SIZE, offset, whole as u64);
        match retry_on_intr(keep) {
            // Some file systems cannot keep room: what is missing then is zeros, by `crate::cut`.
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(refused(errno.into())),
        }
        Ok(Self {
            path: path.into(),
            file: Arc::new(file),
            offset,
            bytes: whole,
            page,
            in_memory: is_tmpfs || has_huge_pages,
        })
    }

    /// The path that it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether its file system is one in memory. Pages of another may be taken from memory at any time, so that who touches
    /// them waits for its device.
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    /// Whether the file still has all of it.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let end = self.offset + self.bytes as u64;
        self.file.metadata().is_ok_and(|found| found.size() >= end)
    }

    /// Tells when the file is made shorter.
    ///
    /// # Errors
    /// When the system has no watch or descriptor for it.
    pub fn watch(&self) -> io::Result<Watch> {
        let events = inotify::init(inotify::CreateFlags::CLOEXEC)?;
        // By its descriptor: the path may name another file by now.
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        inotify::add_watch(&events, path, inotify::WatchFlags::MODIFY)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Watch {
            piece: self.clone(),
            events,
            stop: Arc::new(stop),
        })
    }
}

/// Knows of each change of the length of a file.
#[derive(Debug)]
pub struct Watch {
    piece: FilePiece,
    events: OwnedFd,
    stop: Arc<OwnedFd>,
}

/// Ends a [`Watch`] when it is dropped.
#[derive(Debug)]
pub struct WatchEnd(Arc<OwnedFd>);

impl Watch {
    /// A handle that ends the watch when it is dropped.
    #[must_use]
    pub fn end(&self) -> WatchEnd {
        WatchEnd(Arc::clone(&self.stop))
    }

    /// Waits until the file is shorter than its piece: true; false when the watch is ended, or fails.
    #[must_use]
    pub fn wait(&self) -> bool {
        loop {
            if !self.piece.is_whole() {
                return true;
            }
            let mut ready = [
                PollFd::new(&self.events, PollFlags::IN),
                PollFd::new(&self.stop, PollFlags::IN),
            ];
            if retry_on_intr(|| poll(&mut ready, None)).is_err() || !ready[1].revents().is_empty() {
                return false;
            }
            // What they say does not matter: the length is looked at.
            let mut events = [0_u8; 4096];
            if retry_on_intr(|| read(&self.events, &mut events)).is_err() {
                return false;
            }
        }
    }
}

impl Drop for WatchEnd {
    fn drop(&mut self) {
        // A counter that is full has ended the watch already.
        let _ = write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl Mapping {
    /// Maps a piece of a file. Where the file is made shorter later, the missing bytes become zeros of this process, and
    /// [`Mapping::is_cut`] says so. Its descriptor is not for other processes, which could not live with that.
    ///
    /// # Errors
    /// When the operating system gives no address space, or too many files are mapped.
    pub fn piece(piece: &FilePiece) -> io::Result<Self> {
        // SAFETY: a null hint lets the kernel choose unused addresses; no existing memory is replaced.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                piece.bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &*piece.file,
                piece.offset,
            )?
        };
        let mut mapping = Self::of(start.cast(), piece.bytes, None)?;
        let guarded = Guarded::new(mapping.start, piece.bytes, piece.page)?;
        mapping.guarded = Some(guarded);
        Ok(mapping)
    }

    /// Whether bytes of it were lost when the file that it was mapped from became shorter.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.guarded.as_ref().is_some_and(Guarded::is_cut)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const PIECE: u64 = 64 << 10;

    fn file_of(folder: &Path, bytes: u64) -> PathBuf {
        let path = folder.join("file");
        File::create(&path).unwrap().set_len(bytes).unwrap();
        path
    }

    #[test]
    fn a_mapping_has_the_bytes_of_its_piece() {
        let folder = tempfile::tempdir().unwrap();
        let path = file_of(folder.path(), 2 * PIECE);
        std::fs::write(&path, vec![7; 2 * PIECE as usize]).unwrap();
        let piece = FilePiece::open(&path, PIECE, PIECE).unwrap();
        let mapping = Mapping::piece(&piece).unwrap();
        assert!(mapping.is_writable() && mapping.file().is_none() && !mapping.is_cut());
        assert_eq!(mapping.bytes() as u64, PIECE);
        // SAFETY: the bytes are within the mapping, which no other thread has.
        unsafe {
            assert_eq!(mapping.start().read(), 7);
            mapping.start().add(9).write(8);
        }
        drop(mapping);
        let found = std::fs::read(&path).unwrap();
        assert_eq!((found[9], found[PIECE as usize + 9]), (7, 8));
        assert_eq!((piece.bytes() as u64, piece.path()), (PIECE, &*path));
    }

    #[test]
    fn what_is_no_piece_is_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = file_of(folder.path(), PIECE);
        let check = |path: &Path, offset, bytes, reason: &str| {
            let refused = FilePiece::open(path, offset, bytes)
                .unwrap_err()
                .to_string();
            assert!(refused.contains(reason), "{refused}");
        };
        check(&folder.path().join("none"), 0, PIECE, "No such file");
        check(Path::new(""), 0, PIECE, "No such file");
        check(Path::new(&"x".repeat(5000)), 0, PIECE, "too long");
        check(folder.path(), 0, PIECE, "is no regular file");
        check(Path::new("/dev/null"), 0, PIECE, "is no regular file");
        let large = folder.path().join("large");
        File::create(&large).unwrap().set_len(1 << 43).unwrap();
        check(&large, 0, 1 << 43, "no room for 8796093022208 bytes");
        check(&path, 0, PIECE + 1, "65536 bytes: 65537 from byte 0 on");
        check(&path, u64::MAX, 2, "are not there");
        check(&path, 1, 4096, "no whole pages");
        check(&path, 0, 0, "no whole pages");
        check(&path, 0, 4095, "no whole pages");
        assert_eq!(FilePiece::open(&path, 4096, 8191).unwrap().bytes(), 4096);
    }

    #[test]
    fn a_piece_knows_whether_its_pages_are_memory_alone() {
        for folder in [std::env::temp_dir(), "/dev/shm".into()] {
            let folder = tempfile::tempdir_in(folder).unwrap();
            let path = file_of(folder.path(), PIECE);
            let mut told = Command::new("stat");
            let told = told.args(["-f", "-c", "%T"]).arg(&path).output().unwrap();
            let told = String::from_utf8(told.stdout).unwrap();
            let in_memory = ["tmpfs", "hugetlbfs"].contains(&told.trim());
            let piece = FilePiece::open(&path, 0, PIECE).unwrap();
            assert_eq!(piece.is_in_memory(), in_memory, "{told}");
        }
    }

    /// A file that is lent can be made shorter by all who may write it. Accesses behind its end ended the process.
    #[test]
    fn bytes_behind_the_end_of_a_file_become_zeros() {
        let folder = tempfile::tempdir().unwrap();
        let path = file_of(folder.path(), PIECE);
        let piece = FilePiece::open(&path, 0, PIECE).unwrap();
        let mapping = Mapping::piece(&piece).unwrap();
        let at = |byte: usize| mapping.start().as_ptr().wrapping_add(byte);
        // SAFETY: the bytes are within the mapping, which no other thread has.
        unsafe {
            at(0).write_volatile(1);
            at(40_000).write_volatile(2);
            File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(8192)
                .unwrap();
            assert!(!piece.is_whole());
            assert_eq!((at(0).read_volatile(), at(40_000).read_volatile()), (1, 0));
            assert!(mapping.is_cut());
            // It is memory again.
            at(65_535).write_volatile(3);
            at(20_000).write_volatile(4);
            let found = [0, 20_000, 65_535].map(|byte| at(byte).read_volatile());
            assert_eq!(found, [1, 4, 3]);
        }
        drop(mapping);
        assert_eq!(std::fs::read(&path).unwrap().len(), 8192);
    }

    #[test]
    fn a_watch_tells_of_a_file_that_becomes_shorter_and_of_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = file_of(folder.path(), PIECE);
        let piece = FilePiece::open(&path, 0, PIECE).unwrap();
        let watch = piece.watch().unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(2 * PIECE).unwrap();
        file.set_len(PIECE).unwrap();
        let shorter = std::thread::spawn(move || watch.wait());
        std::fs::rename(&path, folder.path().join("other")).unwrap();
        file.set_len(PIECE - 1).unwrap();
        assert!(shorter.join().unwrap());
        let watch = piece.watch().unwrap();
        assert!(watch.wait(), "it is shorter already");
        file.set_len(PIECE).unwrap();
        let watch = piece.watch().unwrap();
        drop(watch.end());
        assert!(!watch.wait());
    }

    /// Named by the test below, which runs it in a process of its own.
    const DIES: &str = "SLACKWATER_TEST_DIES_OF_SIGBUS";

    #[test]
    fn an_access_to_other_memory_ends_the_process_as_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = file_of(folder.path(), PIECE);
        let Some(how) = std::env::var_os(DIES) else {
            for how in ["memory", "raised"] {
                let name = "file::tests::an_access_to_other_memory_ends_the_process_as_before";
                let died = Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", name])
                    .env(DIES, how)
                    .output()
                    .unwrap();
                let signal = std::os::unix::process::ExitStatusExt::signal(&died.status);
                assert_eq!(signal, Some(libc::SIGBUS), "{how}: {died:?}");
            }
            return;
        };
        let piece = FilePiece::open(&path, 0, PIECE).unwrap();
        let _guarded = Mapping::piece(&piece).unwrap();
        if how == "raised" {
            // The handler of Rust's own runtime takes the first one, and is gone then.
            for _ in 0..2 {
                // SAFETY: a signal to this thread.
                unsafe { libc::raise(libc::SIGBUS) };
            }
            unreachable!("it ends the process");
        }
        let access = ProtFlags::READ;
        // SAFETY: a new mapping, which is the only access of its file.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                4096,
                access,
                MapFlags::SHARED,
                &*piece.file,
                0,
            )
            .unwrap()
        };
        piece.file.set_len(0).unwrap();
        // SAFETY: the byte lies within the mapping; the kernel answers with a signal.
        unsafe { start.cast::<u8>().read_volatile() };
        unreachable!("it ends the process");
    }
}
