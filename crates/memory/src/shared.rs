//! Memory that several processes of one host map: memfds that can never shrink.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fcntl_getfl, fstat,
    fstatfs, ftruncate, memfd_create, open,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, mmap};
use thiserror::Error;

use crate::{HUGE_PAGE_BYTES, Mapping};

/// Why memory that a peer offered is not mapped.
#[derive(Debug, Error)]
pub enum RefusedMemory {
    /// The descriptor is not a memfd, so it could be shortened at any time.
    #[error("not a memory descriptor that can be sealed: {0}")]
    NotSealable(io::Error),
    /// Its owner could shorten it during a copy.
    #[error("memory is not sealed against shrinking (seals {seals:#x})")]
    Unsealed {
        /// The seals that it has.
        seals: u32,
    },
    /// It is shorter than announced.
    #[error("memory has {have} bytes, {want} were announced")]
    TooShort {
        /// Bytes announced.
        want: u64,
        /// Bytes that it has.
        have: u64,
    },
    /// The kernel refused.
    #[error("mapping {len} bytes: {cause}")]
    System {
        /// The bytes to be mapped.
        len: u64,
        /// The kernel's error.
        cause: io::Error,
    },
}

/// The type of a file system of huge pages (linux/magic.h).
pub(crate) const HUGETLBFS_MAGIC: rustix::fs::FsWord = 0x9584_58f6;

impl Mapping {
    /// Memory of `bytes` zero bytes in a memfd that is sealed against any change of its size. Its owner cannot shorten
    /// it, so an access of another process within its length raises no SIGBUS.
    ///
    /// # Errors
    /// `bytes` is 0, or the kernel has no memory or descriptor for it.
    pub fn shared(bytes: usize) -> io::Result<Self> {
        let file = memfd_create(
            "slackwater",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        ftruncate(&file, bytes as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::of_file(file, bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps `len` bytes of the memory that a peer passed, for reading alone if its descriptor is ([`read_only`]). A forked
    /// child does not inherit the mapping, so only this process copies from or to it.
    ///
    /// # Errors
    /// The descriptor is not a memfd of ordinary pages, sealed against shrinking, and of `len` bytes; nothing was mapped.
    pub fn open(file: OwnedFd, len: u64) -> Result<Self, RefusedMemory> {
        let not_sealable = |errno: Errno| RefusedMemory::NotSealable(errno.into());
        let seals = fcntl_get_seals(&file).map_err(not_sealable)?;
        // Pages of hugetlbfs come from a pool: a seal does not keep a first touch from finding the pool empty, which is
        // a SIGBUS.
        if fstatfs(&file).map_err(not_sealable)?.f_type == HUGETLBFS_MAGIC {
            return Err(not_sealable(Errno::OPNOTSUPP));
        }
        if !seals.contains(SealFlags::SHRINK) {
            return Err(RefusedMemory::Unsealed {
                seals: seals.bits(),
            });
        }
        // The length is read after the seals: a sealed file that is long enough stays so.
        let system = |cause| RefusedMemory::System { len, cause };
        let have = fstat(&file)
            .map_err(|errno| system(errno.into()))?
            .st_size
            .unsigned_abs();
        if have < len {
            return Err(RefusedMemory::TooShort { want: len, have });
        }
        let bytes = usize::try_from(len).map_err(|_| system(io::ErrorKind::OutOfMemory.into()))?;
        let mode = fcntl_getfl(&file).map_err(|errno| system(errno.into()))? & OFlags::ACCMODE;
        let access = match mode == OFlags::RDONLY {
            true => ProtFlags::READ,
            false => ProtFlags::READ | ProtFlags::WRITE,
        };
        let mapping = Self::of_file(file, bytes, access).map_err(system)?;
        mapping.advise(Advice::LinuxDontFork).map_err(system)?;
        Ok(mapping)
    }

    fn of_file(file: OwnedFd, bytes: usize, access: ProtFlags) -> io::Result<Self> {
        // SAFETY: a null hint lets the kernel choose unused addresses; no existing memory is replaced.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                access,
                MapFlags::SHARED,
                &file,
                0,
            )?
        };
        let mut mapping = Self::of(start.cast(), bytes, Some(Arc::new(file)))?;
        mapping.writable = access.contains(ProtFlags::WRITE);
        if bytes >= HUGE_PAGE_BYTES {
            // Huge pages cause fewer page faults and TLB misses. Where the kernel has none for shared memory, nothing
            // changes.
            let _ = mapping.advise(Advice::LinuxHugepage);
        }
        Ok(mapping)
    }
}

/// A descriptor of the same memfd that memory can be mapped through for reading alone. It keeps a reader's errors from
/// the memory, and no more: a process of the same user can open the memory for writing again.
///
/// # Errors
/// `/proc` is not there, or there are no descriptors.
pub fn read_only(file: &OwnedFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::mm::{MprotectFlags, mprotect};

    use super::*;

    fn memfd(flags: MemfdFlags, bytes: u64) -> Result<OwnedFd, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags;
        let file = memfd_create("test", flags)?;
        ftruncate(&file, bytes).unwrap();
        Ok(file)
    }

    #[test]
    fn both_mappings_are_the_same_bytes() {
        let owner = Mapping::shared(10_000).unwrap();
        let passed = owner.file().unwrap().try_clone().unwrap();
        let peer = Mapping::open(passed, 10_000).unwrap();
        // SAFETY: both mappings have 10,000 bytes, and no other thread knows of them.
        unsafe {
            owner.start().add(9_999).write(7);
            assert_eq!(peer.start().add(9_999).read(), 7);
        }
    }

    #[test]
    fn memory_that_was_passed_for_reading_cannot_be_written() {
        let owner = Mapping::shared(4096).unwrap();
        let passed = read_only(owner.file().unwrap()).unwrap();
        let reader = Mapping::open(passed, 4096).unwrap();
        assert!(owner.is_writable() && !reader.is_writable());
        // SAFETY: both mappings have 4096 bytes, and no other thread knows of them.
        unsafe {
            owner.start().add(9).write(7);
            assert_eq!(reader.start().add(9).read(), 7);
            let writable = MprotectFlags::READ | MprotectFlags::WRITE;
            let changed = mprotect(reader.start().as_ptr().cast(), 4096, writable);
            assert_eq!(changed, Err(Errno::ACCESS));
        }
    }

    #[test]
    fn sealed_memory_cannot_be_shortened() {
        let memory = Mapping::shared(8192).unwrap();
        let file = memory.file().unwrap();
        assert_eq!(ftruncate(file, 4096), Err(Errno::PERM));
        assert_eq!(ftruncate(file, 16_384), Err(Errno::PERM));
    }

    #[test]
    fn memory_that_could_be_shortened_or_is_too_short_is_refused() {
        let unsealed = memfd(MemfdFlags::empty(), 4096).unwrap();
        assert!(matches!(
            Mapping::open(unsealed, 4096),
            Err(RefusedMemory::Unsealed { .. })
        ));
        let short = memfd(MemfdFlags::empty(), 4096).unwrap();
        fcntl_add_seals(&short, SealFlags::SHRINK).unwrap();
        let refused = Mapping::open(short, 4097);
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
            Mapping::open(file, 1),
            Err(RefusedMemory::NotSealable(_))
        ));
    }

    /// Memory of hugetlbfs can fault with SIGBUS, seal or no seal, when its owner punches holes and the pool of its
    /// pages is empty.
    #[test]
    fn memory_of_reserved_huge_pages_is_refused() {
        let file = match memfd(MemfdFlags::HUGETLB, 2 << 20) {
            Ok(file) => file,
            Err(errno) => {
                let known = std::fs::read_to_string("/proc/filesystems").unwrap();
                return assert!(
                    !known.contains("hugetlbfs"),
                    "a kernel that has such memory gives it: {errno}"
                );
            }
        };
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        let refused = Mapping::open(file, 4096);
        assert!(
            matches!(refused, Err(RefusedMemory::NotSealable(_))),
            "{refused:?}"
        );
    }
}
