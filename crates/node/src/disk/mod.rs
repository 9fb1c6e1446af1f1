//! The disk under the SSD tier: a directory that one process holds, and devices that do the tiers' operations in it.
//!
//! There are two devices, io_uring and blocking calls on a few threads; which one runs is decided at start and
//! reported with its reason. Both make the same system calls in the same order: a `Job` knows the next one, a
//! device only makes it. All `unsafe` of this module is in `buffer`, `scratch`, `transfer`, `ring` and the calls into them.

mod buffer;
mod directory;
mod error;
mod handles;
mod job;
mod pread;
mod read_only;
mod reader;
mod ring;
mod scratch;
mod transfer;
mod uring;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use slackwater_tier::io::{DiskDone, DiskOp, OpId, Part, Target};
use slackwater_wait::Site;

pub use directory::Directory;
pub(crate) use directory::{LOCK_NAME, log_files};
pub use error::DirectoryError;
pub use handles::HANDLES_MAX;
pub(crate) use read_only::ReadOnlyDisk;
pub use reader::{Readers, RecordRead};
pub(crate) use scratch::{Buffers, Scratch};
pub use transfer::Segment;

use crate::config::IoBackend;
use crate::selection::Selection;

/// Does disk operations. Any thread submits, one thread at a time completes.
pub trait Device: Send + Sync {
    /// Takes the operations; the completion of each comes out of [`Device::complete`] once.
    ///
    /// The submitter keeps extents that are written out from being changed, and those that are read into from being
    /// touched, until the completion.
    fn submit(&self, ops: &mut Vec<(OpId, DiskOp)>);

    /// Waits until operations are over or [`Device::wake`] was called, and adds what is over to `done`.
    ///
    /// # Errors
    /// When the device as such has failed; nothing further will complete.
    fn complete(&self, done: &mut Vec<DiskDone>) -> io::Result<()>;

    /// Ends a wait in [`Device::complete`], or the next one.
    fn wake(&self);

    /// What the device did so far.
    fn footprint(&self) -> &Footprint;

    /// How its threads wait, where they do so elsewhere than in the kernel's own queue.
    fn sites(&self) -> &[Site] {
        &[]
    }
}

/// Bytes and operations that a device has begun.
#[derive(Debug, Default)]
pub struct Footprint {
    /// Bytes written, headers and padding included.
    pub written_bytes: AtomicU64,
    /// Bytes read.
    pub read_bytes: AtomicU64,
    /// Reads into extents: promotions.
    pub extent_reads: AtomicU64,
}

impl Footprint {
    fn count(&self, op: &DiskOp) {
        match op {
            DiskOp::Write { parts, .. } => {
                let bytes: u64 = parts.iter().map(Part::padded).sum();
                self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            DiskOp::Read { bytes, into, .. } => {
                self.read_bytes.fetch_add(*bytes, Ordering::Relaxed);
                let promotes = u64::from(matches!(into, Target::Extent(_)));
                self.extent_reads.fetch_add(promotes, Ordering::Relaxed);
            }
            DiskOp::Create { .. } | DiskOp::Sync { .. } | DiskOp::Delete { .. } => {}
        }
    }
}

/// How a disk is to be used.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// The device that is asked for.
    pub backend: IoBackend,
    /// Operations under way at once.
    pub depth: usize,
    /// Memory for reads that cannot go straight into a caller's buffer.
    pub read_buffer_bytes: usize,
}

/// The device that runs, and why.
pub struct Disk {
    /// The device of the tiers.
    pub device: Arc<dyn Device>,
    /// The reads of callers.
    pub readers: Arc<Readers>,
    /// The name of the device, and the reason for it.
    pub choice: Selection,
}

/// Starts the device that `how` asks for on a directory; extents are those of `segment`.
///
/// # Errors
/// When io_uring is insisted on and not to be had, or there are no threads.
pub fn start(directory: &Arc<Directory>, segment: Segment, how: Use) -> io::Result<Disk> {
    let uring = || uring::UringDevice::new(Arc::clone(directory), segment.clone(), how.depth);
    let pread = || pread::PreadDevice::new(Arc::clone(directory), segment.clone(), how.depth);
    let (device, chosen, reason): (Arc<dyn Device>, _, _) = match how.backend {
        IoBackend::Uring => (Arc::new(uring()?), "uring", "asked for".to_owned()),
        IoBackend::Pread => (Arc::new(pread()?), "pread", "asked for".to_owned()),
        IoBackend::Auto => match uring() {
            Ok(device) => (Arc::new(device), "uring", "the kernel offers it".to_owned()),
            Err(error) => (Arc::new(pread()?), "pread", format!("no io_uring: {error}")),
        },
    };
    let cache = if directory.direct() {
        "direct I/O"
    } else {
        "page cache, as the file system has no direct I/O"
    };
    let choice = Selection::new(chosen, format!("{reason}; {cache}"));
    let is_uring = chosen == "uring";
    let readers = Readers::new(
        Arc::clone(directory),
        is_uring,
        how.depth,
        how.read_buffer_bytes,
    );
    Ok(Disk {
        device,
        readers: Arc::new(readers),
        choice,
    })
}

#[cfg(test)]
mod tests;
