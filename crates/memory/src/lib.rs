//! Memory mappings: the arena of a node, regions of the transfer engine, memory that processes of one host share, and
//! pieces of files that are lent by their path.
//!
//! A [`Mapping`] is reached by address and never handed out as a slice: a device, a peer or another process may write
//! its bytes at any time. It is unmapped when it is dropped, so every access keeps it alive.

mod cut;
mod file;
mod shared;

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

pub use file::{FilePiece, RefusedFile, Watch, WatchEnd};
pub use shared::{RefusedMemory, read_only};

/// Size of the huge pages that are asked for, in bytes.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// One mapping of zeroed memory, or of a piece of a file, whose pages are faulted in when they are touched.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// The sealed memfd behind it; none for private memory.
    file: Option<Arc<OwnedFd>>,
    writable: bool,
    /// That of a piece of a file.
    guarded: Option<cut::Guarded>,
}

// SAFETY: a mapping belongs to no thread, and its methods hand out its address alone.
unsafe impl Send for Mapping {}
// SAFETY: its methods only read plain fields.
unsafe impl Sync for Mapping {}

/// The kind of pages that a mapping is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Pages of the usual size.
    Ordinary,
    /// Huge pages where the kernel finds them (`madvise`), ordinary ones elsewhere.
    TransparentHuge,
    /// Huge pages from the pool that the operator has reserved (`vm.nr_hugepages`).
    ReservedHuge,
}

/// The kind of pages that a mapping got, and why it is not the one that was asked for.
#[derive(Debug)]
pub struct Obtained {
    /// The kind of pages of the mapping.
    pub pages: Pages,
    /// Why the kind that was asked for was not available; `None` if it was.
    pub instead_because: Option<String>,
}

impl Mapping {
    /// Private memory of this process: at least `bytes` bytes, rounded up to whole huge pages where those are asked for.
    /// Without such pages it is made of ordinary ones.
    ///
    /// # Errors
    /// `bytes` is 0, or the operating system gives no address space.
    pub fn private(bytes: usize, pages: Pages) -> io::Result<(Self, Obtained)> {
        let rounded = match pages {
            Pages::Ordinary => bytes,
            Pages::TransparentHuge | Pages::ReservedHuge => bytes
                .checked_next_multiple_of(HUGE_PAGE_BYTES)
                .ok_or(io::ErrorKind::OutOfMemory)?,
        };
        // All reserved pages must be there now: without NORESERVE the kernel reports a lack at once and not by SIGBUS
        // later.
        let reserved = MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        let mut instead_because = None;
        if pages == Pages::ReservedHuge {
            match Self::anonymous(rounded, reserved) {
                Ok(mapping) => return Ok((mapping, Obtained::as_asked(pages))),
                Err(error) => {
                    instead_because = Some(format!(
                        "too few huge pages are reserved (`vm.nr_hugepages`): {error}"
                    ));
                }
            }
        }
        let mapping = Self::anonymous(rounded, MapFlags::NORESERVE)?;
        if pages == Pages::TransparentHuge {
            match mapping.advise(Advice::LinuxHugepage) {
                Ok(()) => return Ok((mapping, Obtained::as_asked(pages))),
                Err(error) => {
                    instead_because = Some(format!("the kernel makes no huge pages: {error}"));
                }
            }
        }
        let obtained = Obtained {
            pages: Pages::Ordinary,
            instead_because,
        };
        Ok((mapping, obtained))
    }

    fn anonymous(bytes: usize, flags: MapFlags) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint lets the kernel choose unused addresses; no existing memory is replaced.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                protection,
                MapFlags::PRIVATE | flags,
            )?
        };
        Self::of(start.cast(), bytes, None)
    }

    /// The mapping that the kernel has just made at `start`.
    fn of(start: *mut u8, bytes: usize, file: Option<Arc<OwnedFd>>) -> io::Result<Self> {
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            start,
            bytes,
            file,
            writable: true,
            guarded: None,
        })
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: the range is the whole mapping. The advice that this crate gives (huge pages, no copy in a forked
        // child) changes no contents.
        Ok(unsafe { madvise(self.start.as_ptr().cast(), self.bytes, advice) }?)
    }

    /// Its first byte.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Whether its bytes may be written through it.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The sealed memfd behind it, to be passed to another process; none for private memory.
    #[must_use]
    pub fn file(&self) -> Option<&Arc<OwnedFd>> {
        self.file.as_ref()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Before the addresses are free for other memory.
        self.guarded = None;
        // SAFETY: start and length are those of the whole mapping. Callers that use an address keep the mapping alive,
        // so no address is in use any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// Memory of this machine that can be had without swapping, by the kernel's estimate; `None` where it says nothing.
#[must_use]
pub fn available_bytes() -> Option<u64> {
    available(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

impl Obtained {
    fn as_asked(pages: Pages) -> Self {
        Self {
            pages,
            instead_because: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_page_gives_zeroed_memory_that_can_be_written() {
        for pages in [Pages::Ordinary, Pages::TransparentHuge, Pages::ReservedHuge] {
            let (mapping, obtained) = Mapping::private((3 << 20) + 1, pages).unwrap();
            let rounded = if pages == Pages::Ordinary {
                (3 << 20) + 1
            } else {
                4 << 20
            };
            assert_eq!(mapping.bytes(), rounded);
            assert_eq!(obtained.pages == pages, obtained.instead_because.is_none());
            assert!(mapping.file().is_none());
            let last = mapping.start().as_ptr().wrapping_add(3 << 20);
            // SAFETY: the byte lies within the mapping, which no other thread has.
            unsafe {
                assert_eq!(last.read(), 0);
                last.write(7);
                assert_eq!(last.read(), 7);
            }
        }
    }

    #[test]
    fn no_bytes_and_more_than_there_are_addresses_are_errors() {
        for pages in [Pages::Ordinary, Pages::TransparentHuge] {
            assert!(Mapping::private(0, pages).is_err(), "{pages:?}");
            assert!(
                Mapping::private(usize::MAX - 4096, pages).is_err(),
                "{pages:?}"
            );
        }
    }

    #[test]
    fn free_memory_is_read_from_what_the_kernel_tells() {
        assert_eq!(
            available("MemTotal: 9 kB\nMemAvailable:    1024 kB\n"),
            Some(1 << 20)
        );
        assert_eq!(available("MemTotal: 9 kB\n"), None);
    }
}
