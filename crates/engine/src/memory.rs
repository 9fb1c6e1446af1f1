//! Memory that can be registered: where it is, what keeps it alive, and how its bytes are reached.

use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use slackwater_base::{Instant, Location};
use slackwater_memory::{Mapping, Pages};
use thiserror::Error;

use crate::region::Access;

/// A piece of memory to register: a range, and what keeps it in place.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    location: Location,
    file: Option<SharedFile>,
    stage: Option<Arc<dyn Stage>>,
    _keep: Option<Keep>,
}

/// The file behind shared memory, for movers that pass it to a process of the same host.
#[derive(Clone, Debug)]
pub struct SharedFile {
    /// A sealed memfd.
    pub fd: Arc<OwnedFd>,
    /// Where in the file the memory begins.
    pub offset: u64,
}

/// Moves bytes in and out of memory that the CPU cannot reach: through host memory, asynchronously.
///
/// All calls return at once. `done` is called exactly once, on any thread, when the copy is over and nothing touches
/// either side any more; it must not block. The access keeps the region in place meanwhile.
pub trait Stage: Send + Sync + fmt::Debug {
    /// The most bytes of one call below.
    fn chunk_bytes(&self) -> usize;

    /// [`Stage::lend`] and [`Stage::load`] in one; the access is held while waiting too.
    fn fetch(
        &self,
        access: Arc<Access>,
        offset: u64,
        bytes: usize,
        done: Box<dyn FnOnce(Result<Staged, StageError>) + Send>,
    );

    /// Lends host memory of `bytes` bytes on behalf of the tenant of `access`, wiped of bytes of other tenants. None
    /// while the cap on such memory is reached: then `free` is called when it is this caller's turn to ask again, or
    /// when `until` has passed.
    fn lend(
        &self,
        access: &Access,
        bytes: usize,
        until: Instant,
        free: Box<dyn FnOnce(StagingTurn) + Send>,
    ) -> Option<Staged>;

    /// Copies `bytes` bytes from `offset` within `access` into lent memory of at least that length.
    fn load(
        &self,
        access: Arc<Access>,
        offset: u64,
        into: Staged,
        bytes: usize,
        done: Box<dyn FnOnce(Result<Staged, StageError>) + Send>,
    );

    /// Copies the first `bytes` bytes of lent memory to `offset` within `access`.
    fn store(
        &self,
        access: Arc<Access>,
        offset: u64,
        from: Staged,
        bytes: usize,
        done: Box<dyn FnOnce(Result<(), StageError>) + Send>,
    );
}

/// The turn of a caller that waited for memory of a [`Stage`]: dropped, used or not, it passes to the next one.
pub struct StagingTurn(#[expect(dead_code, reason = "held for its drop")] Box<dyn Any + Send>);

/// Host memory lent by a [`Stage`]; goes back when dropped.
pub struct Staged {
    start: NonNull<u8>,
    bytes: usize,
    _back: Box<dyn Any + Send>,
}

/// A device copy failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct StageError(pub String);

/// What keeps memory in place until its region is gone.
struct Keep(#[expect(dead_code, reason = "held for its drop")] Box<dyn Any + Send + Sync>);

impl fmt::Debug for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keep")
    }
}

// SAFETY: a range of memory belongs to no thread; its bytes are reached through accesses alone, and what keeps it in
// place is `Send`.
unsafe impl Send for Memory {}
// SAFETY: as above; its own methods only read plain fields.
unsafe impl Sync for Memory {}
// SAFETY: lent memory is reached only by its holder, and what gives it back is `Send`.
unsafe impl Send for Staged {}
// SAFETY: through a shared reference only plain fields are read; what gives it back is reached by its drop alone.
unsafe impl Sync for Staged {}

impl Memory {
    /// Zeroed private memory of this process.
    ///
    /// # Errors
    /// The operating system gives no address space, or `bytes` is 0.
    pub fn anonymous(bytes: usize) -> io::Result<Self> {
        let (mapping, _) = Mapping::private(bytes, Pages::Ordinary)?;
        Ok(Self::mapped(Arc::new(mapping)))
    }

    /// Zeroed memory in a sealed file: peers of the same host map it instead of asking the kernel for every copy.
    ///
    /// # Errors
    /// The operating system gives no memory or descriptor, or `bytes` is 0.
    pub fn shared(bytes: usize) -> io::Result<Self> {
        Ok(Self::mapped(Arc::new(Mapping::shared(bytes)?)))
    }

    /// All of a mapping.
    #[must_use]
    pub fn mapped(mapping: Arc<Mapping>) -> Self {
        let file = mapping.file().map(|fd| SharedFile {
            fd: Arc::clone(fd),
            offset: 0,
        });
        // SAFETY: the mapping lives as long as what keeps it, and hands out its address alone, never a reference.
        let memory = unsafe { Self::borrowed(mapping.start(), mapping.bytes(), Location::Host) };
        Self { file, ..memory }.kept_by(mapping)
    }

    /// Memory that was allocated elsewhere.
    ///
    /// # Safety
    /// As long as a region or an access of it exists:
    /// - `start` is valid for reads and writes of `bytes` bytes by whatever `location` says;
    /// - nobody relies on what the bytes are while a peer with a capability may write them, and no Rust reference to
    ///   them is used meanwhile.
    #[must_use]
    pub unsafe fn borrowed(start: NonNull<u8>, bytes: usize, location: Location) -> Self {
        Self {
            start,
            bytes,
            location,
            file: None,
            stage: None,
            _keep: None,
        }
    }

    /// Drops `keep` only after the last use of the memory.
    #[must_use]
    pub fn kept_by(self, keep: impl Any + Send + Sync) -> Self {
        Self {
            _keep: Some(Keep(Box::new(keep))),
            ..self
        }
    }

    /// Says that the memory is a shared file, for movers of the same host.
    #[must_use]
    pub fn in_file(self, file: SharedFile) -> Self {
        Self {
            file: Some(file),
            ..self
        }
    }

    /// Says how to reach bytes that the CPU cannot.
    #[must_use]
    pub fn staged_by(self, stage: Arc<dyn Stage>) -> Self {
        Self {
            stage: Some(stage),
            ..self
        }
    }

    /// Its first byte.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The place of the memory.
    #[must_use]
    pub fn location(&self) -> Location {
        self.location
    }

    /// Whether its bytes have addresses, of the processor or a device, that nothing else has.
    pub(crate) fn has_addresses(&self) -> bool {
        self.location != Location::Files
    }

    /// The file behind it, if it is shared.
    #[must_use]
    pub fn file(&self) -> Option<&SharedFile> {
        self.file.as_ref()
    }

    /// The stage of memory that the CPU cannot reach.
    #[must_use]
    pub fn stage(&self) -> Option<&Arc<dyn Stage>> {
        self.stage.as_ref()
    }
}

impl StagingTurn {
    /// A turn that passes on when `next` is dropped.
    #[must_use]
    pub fn new(next: impl Any + Send) -> Self {
        Self(Box::new(next))
    }
}

impl fmt::Debug for StagingTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Place")
    }
}

impl Staged {
    /// Memory lent until `back` is dropped.
    ///
    /// # Safety
    /// Until then `start` is valid for reads and writes of `bytes` bytes, and nobody else touches them.
    #[must_use]
    pub unsafe fn new(start: NonNull<u8>, bytes: usize, back: impl Any + Send) -> Self {
        Self {
            start,
            bytes,
            _back: Box::new(back),
        }
    }

    /// Its first byte.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl fmt::Debug for Staged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staged")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
