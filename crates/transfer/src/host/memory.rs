use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
    memfd_create,
};
use rustix::io::Errno;
use thiserror::Error;

use crate::memory::{Location, Memory, SharedFile};

/// Memory that can be mapped by other processes of this host: a memfd that can never shrink.
///
/// Since nobody can cut it, no access to it within its length can raise SIGBUS, whatever the other process does. It is
/// reached by address only: what another process may write is never a slice.
pub struct SharedMemory {
    fd: Arc<OwnedFd>,
    map: MmapRaw,
}

/// Why memory that a peer offered is not mapped.
#[derive(Debug, Error)]
pub enum RefusedMemory {
    /// The descriptor is no memfd: there is nothing that could keep it from being cut.
    #[error("not a memory descriptor that can be sealed: {0}")]
    NoMemory(io::Error),
    /// It could be cut under a running copy.
    #[error("memory is not sealed against shrinking (seals {seals:#x})")]
    Unsealed {
        /// The seals it has.
        seals: u32,
    },
    /// It is shorter than was said.
    #[error("memory has {have} bytes, {want} were announced")]
    TooShort {
        /// The bytes announced.
        want: u64,
        /// The bytes there are.
        have: u64,
    },
    /// The kernel refused.
    #[error("mapping {len} bytes: {cause}")]
    System {
        /// The bytes to be mapped.
        len: u64,
        /// Why.
        cause: io::Error,
    },
}

/// The type of a file system of huge pages (linux/magic.h).
const HUGETLBFS_MAGIC: rustix::fs::FsWord = 0x9584_58f6;

impl SharedMemory {
    /// New memory of `len` zero bytes, sealed against any change of its size.
    ///
    /// # Errors
    /// `len` is 0, or the kernel has no memory or descriptor for it.
    pub fn create(len: usize) -> io::Result<Self> {
        let fd = memfd_create(
            "slackwater",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        ftruncate(&fd, len as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let map = MmapOptions::new().len(len).map_raw(&fd)?;
        ask_for_huge_pages(&map);
        Ok(Self {
            fd: Arc::new(fd),
            map,
        })
    }

    /// Maps `len` bytes of the memory that a peer passed.
    ///
    /// The mapping is not inherited by children: only this process answers for its copies.
    ///
    /// # Errors
    /// It is not what it has to be; nothing was mapped.
    pub fn open(fd: OwnedFd, len: u64) -> Result<Self, RefusedMemory> {
        let no_memory = |errno: Errno| RefusedMemory::NoMemory(errno.into());
        let seals = fcntl_get_seals(&fd).map_err(no_memory)?;
        // Such pages come from a pool: a seal does not keep a first touch from finding it empty, which is a SIGBUS.
        if fstatfs(&fd).map_err(no_memory)?.f_type == HUGETLBFS_MAGIC {
            return Err(no_memory(Errno::OPNOTSUPP));
        }
        if !seals.contains(SealFlags::SHRINK) {
            return Err(RefusedMemory::Unsealed {
                seals: seals.bits(),
            });
        }
        // Only now: with the seal on it, what is long enough stays so.
        let system = |cause| RefusedMemory::System { len, cause };
        let have = fstat(&fd)
            .map_err(|errno| system(errno.into()))?
            .st_size
            .unsigned_abs();
        if have < len {
            return Err(RefusedMemory::TooShort { want: len, have });
        }
        let map_len =
            usize::try_from(len).map_err(|_| system(io::ErrorKind::OutOfMemory.into()))?;
        let map = MmapOptions::new()
            .len(map_len)
            .map_raw(&fd)
            .map_err(system)?;
        map.advise(Advice::DontFork).map_err(system)?;
        ask_for_huge_pages(&map);
        Ok(Self {
            fd: Arc::new(fd),
            map,
        })
    }

    /// All of it, to be registered: peers of the same host map it instead of asking the kernel for every copy.
    #[must_use]
    pub fn memory(self: &Arc<Self>) -> Memory {
        let start = NonNull::new(self.as_ptr()).expect("the kernel maps nothing at address 0");
        let file = SharedFile {
            fd: Arc::clone(&self.fd),
            offset: 0,
        };
        // SAFETY: the mapping lives as long as what keeps it, and this type hands out its address alone, never a
        // reference.
        unsafe { Memory::borrowed(start, self.len(), Location::Host) }
            .in_file(file)
            .kept_by(Arc::clone(self))
    }

    /// The first byte.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// How many bytes are mapped.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether there is none; there is always some.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.len() == 0
    }
}

/// Large memory in large pages, where the kernel has them for shared memory: fewer first touches, fewer misses of the
/// translation. Where it has none, nothing changes.
fn ask_for_huge_pages(map: &MmapRaw) {
    const HUGE_PAGE: usize = 2 << 20;
    if map.len() >= HUGE_PAGE {
        let _ = map.advise(Advice::HugePage);
    }
}

/// The descriptor to pass to a peer.
impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMemory")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn both_mappings_are_the_same_bytes() {
        let owner = SharedMemory::create(10_000).unwrap();
        let peer = SharedMemory::open(owner.as_fd().try_clone_to_owned().unwrap(), 10_000).unwrap();
        // SAFETY: both mappings have 10,000 bytes, and no other thread knows of them.
        unsafe {
            owner.as_ptr().add(9_999).write(7);
            assert_eq!(peer.as_ptr().add(9_999).read(), 7);
        }
    }

    #[test]
    fn sealed_memory_cannot_be_cut() {
        let memory = SharedMemory::create(8192).unwrap();
        assert_eq!(ftruncate(&memory, 4096), Err(rustix::io::Errno::PERM));
        assert_eq!(ftruncate(&memory, 16_384), Err(rustix::io::Errno::PERM));
    }

    #[test]
    fn what_could_be_cut_or_is_too_short_is_refused() {
        let unsealed =
            memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, 4096).unwrap();
        assert!(matches!(
            SharedMemory::open(unsealed, 4096),
            Err(RefusedMemory::Unsealed { .. })
        ));
        let short = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&short, 4096).unwrap();
        fcntl_add_seals(&short, SealFlags::SHRINK).unwrap();
        let refused = SharedMemory::open(short, 4097);
        assert!(
            matches!(
                refused,
                Err(RefusedMemory::TooShort {
                    want: 4097,
                    have: 4096
                })
            ),
            "{refused:?}"
        );
        let file = OwnedFd::from(File::open("/proc/self/exe").unwrap());
        assert!(matches!(
            SharedMemory::open(file, 1),
            Err(RefusedMemory::NoMemory(_))
        ));
    }
}
