use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread::{self, JoinHandle};

use slackwater_base::BLOCK_BYTES;
use slackwater_engine::{Location, Memory};
use slackwater_wait::{Event, Site, Waiting};

use super::device::{CopyId, CopyQueue, Device, DeviceCopy, DeviceError, Pinned};
use super::limits::{StageLimits, StagingError};
use super::stager::Stager;

/// The files behind a region that peers may read.
pub trait Files: Send + Sync + fmt::Debug {
    /// Where `bytes` bytes from `offset` of the region lie. Called by the threads that read, so it may open a file; what
    /// an access was admitted to stays readable until the access ends.
    ///
    /// # Errors
    /// No file has these bytes.
    fn locate(&self, offset: u64, bytes: u64) -> io::Result<FileRange>;
}

/// A place in a file.
#[derive(Clone)]
pub struct FileRange {
    /// The file, open for reading. If it is open for direct I/O, the blocks that reads are rounded to are of 4 KiB.
    pub file: Arc<dyn AsFd + Send + Sync>,
    /// Where in it the bytes begin.
    pub offset: u64,
}

/// Bounds of the reading of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLimits {
    /// Reads under way at a time, each on a thread.
    pub reads: usize,
    /// The chunks that are read into.
    pub stage: StageLimits,
}

impl Default for FileLimits {
    fn default() -> Self {
        Self {
            reads: 8,
            stage: StageLimits {
                chunk_bytes: 1 << 20,
                pinned_bytes_max: 128 << 20,
                ..StageLimits::default()
            },
        }
    }
}

/// Bytes of files, to be registered as a region of `bytes` bytes that peers read: a chunk at a time, in whole blocks,
/// and no blocks but those of the range that is read. Where the files have no bytes, reads fail. Nothing is written
/// to them.
///
/// # Errors
/// No thread could be started.
pub fn memory_of_files(
    files: Arc<dyn Files>,
    bytes: u64,
    limits: FileLimits,
) -> Result<Memory, StagingError> {
    let device = Arc::new(FileDevice::start(files, bytes, limits.reads)?);
    let whole_blocks = limits.stage.chunk_bytes.next_multiple_of(BLOCK);
    let stager = Stager::start(
        device,
        StageLimits {
            chunk_bytes: whole_blocks,
            ..limits.stage
        },
    )?;
    // SAFETY: nothing is at the addresses of files, and nobody relies on what they hold while they are written.
    unsafe { stager.memory(FIRST_ADDRESS, bytes as usize) }
}

/// Reads files on threads of its own; its addresses are offsets in the region.
#[derive(Debug)]
struct FileDevice {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    files: Arc<dyn Files>,
    bytes: u64,
    queued: Mutex<Queued>,
    changed: Event,
    /// Where pinned memory begins, and how long it is.
    pinned: Mutex<BTreeMap<usize, usize>>,
}

#[derive(Default)]
struct Queued {
    reads: VecDeque<Read>,
    closed: bool,
}

/// A copy out of a file.
struct Read {
    host: *mut u8,
    offset: u64,
    len: usize,
    id: CopyId,
    queue: Arc<Ends>,
}

// SAFETY: the memory that it names is nobody else's until its end is reported.
unsafe impl Send for Read {}

struct FileQueue {
    device: Arc<Shared>,
    ends: Arc<Ends>,
}

/// The reads of one queue.
#[derive(Default)]
struct Ends(Mutex<EndsState>);

#[derive(Default)]
struct EndsState {
    next: u64,
    under_way: usize,
    ended: BTreeMap<CopyId, Result<(), DeviceError>>,
    wakes: VecDeque<Box<dyn FnOnce() + Send>>,
}

/// Memory in whole blocks, at the start of one.
struct Blocks {
    at: *mut u8,
    layout: Layout,
    device: Arc<Shared>,
}

// SAFETY: it only frees the memory, which any thread may.
unsafe impl Send for Blocks {}

/// Where the region begins, since no region begins at address 0.
const FIRST_ADDRESS: u64 = BLOCK_BYTES;
const BLOCK: usize = BLOCK_BYTES as usize;

pub(crate) static SITE: Site = Site::new("file reads");

impl FileDevice {
    fn start(files: Arc<dyn Files>, bytes: u64, reads: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            files,
            bytes,
            queued: Mutex::default(),
            changed: Event::new(),
            pinned: Mutex::default(),
        });
        let mut device = Self {
            shared,
            threads: Vec::new(),
        };
        for _ in 0..reads.max(1) {
            let shared = Arc::clone(&device.shared);
            let thread = thread::Builder::new().name("slackwater-file".to_owned());
            device.threads.push(thread.spawn(move || shared.run())?);
        }
        Ok(device)
    }
}

impl Device for FileDevice {
    fn name(&self) -> &str {
        "files"
    }

    fn location(&self) -> Location {
        Location::Files
    }

    fn owns(&self, address: u64, len: u64) -> Result<bool, DeviceError> {
        let end = address
            .checked_sub(FIRST_ADDRESS)
            .and_then(|first| first.checked_add(len));
        Ok(end.is_some_and(|end| end <= self.shared.bytes))
    }

    fn pin(&self, len: usize) -> Result<Pinned, DeviceError> {
        let layout = Layout::from_size_align(len.next_multiple_of(BLOCK).max(BLOCK), BLOCK)
            .map_err(|error| failed("taking memory", error.to_string()))?;
        // SAFETY: the layout has bytes.
        let at = unsafe { alloc_zeroed(layout) };
        if at.is_null() {
            return Err(failed(
                "taking memory",
                format!("{len} bytes are not to be had"),
            ));
        }
        lock(&self.shared.pinned).insert(at.addr(), layout.size());
        let device = Arc::clone(&self.shared);
        let blocks = Blocks { at, layout, device };
        // SAFETY: the memory was just taken, and `blocks` alone frees it.
        Ok(unsafe { Pinned::new(at, len, Box::new(blocks)) })
    }

    fn queue(&self) -> Result<Arc<dyn CopyQueue>, DeviceError> {
        Ok(Arc::new(FileQueue {
            device: Arc::clone(&self.shared),
            ends: Arc::default(),
        }))
    }
}

impl CopyQueue for FileQueue {
    unsafe fn begin(&self, copy: DeviceCopy) -> Result<CopyId, DeviceError> {
        let DeviceCopy::ToHost { host, device, len } = copy else {
            return Err(failed("writing", "files are only read".to_owned()));
        };
        let mut queued = lock(&self.device.queued);
        if queued.closed {
            return Err(failed("reading", "the device is gone".to_owned()));
        }
        let id = {
            let mut ends = lock(&self.ends.0);
            (ends.next, ends.under_way) = (ends.next + 1, ends.under_way + 1);
            CopyId(ends.next)
        };
        queued.reads.push_back(Read {
            host,
            offset: device - FIRST_ADDRESS,
            len,
            id,
            queue: Arc::clone(&self.ends),
        });
        drop(queued);
        self.device.changed.notify(1);
        Ok(id)
    }

    fn poll(&self, id: CopyId) -> Poll<Result<(), DeviceError>> {
        match lock(&self.ends.0).ended.remove(&id) {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        }
    }

    fn wake_after(&self, wake: Box<dyn FnOnce() + Send>) -> Result<(), DeviceError> {
        let mut ends = lock(&self.ends.0);
        if ends.under_way > 0 && ends.ended.is_empty() {
            ends.wakes.push_back(wake);
            return Ok(());
        }
        drop(ends);
        // An end that came before this call is not to be waited for.
        wake();
        Ok(())
    }

    fn is_ordered(&self) -> bool {
        false
    }
}

impl Ends {
    /// A read has ended: as many wakes are called as reads end, and all with the last.
    fn end(&self, id: CopyId, result: Result<(), DeviceError>) {
        let wakes: Vec<_> = {
            let mut ends = lock(&self.0);
            ends.ended.insert(id, result);
            ends.under_way -= 1;
            let called = if ends.under_way == 0 { usize::MAX } else { 1 };
            let called = called.min(ends.wakes.len());
            ends.wakes.drain(..called).collect()
        };
        wakes.into_iter().for_each(|wake| wake());
    }
}

impl Shared {
    fn run(&self) {
        let mut scratch = Vec::new();
        loop {
            let seen = self.changed.seen();
            let (read, closed) = {
                let mut queued = lock(&self.queued);
                (queued.reads.pop_front(), queued.closed)
            };
            match read {
                Some(Read { id, queue, .. }) if closed => {
                    queue.end(id, Err(failed("reading", "the device is gone".to_owned())));
                }
                Some(read) => {
                    let result = self.read(&read, &mut scratch);
                    let result = result.map_err(|error| failed("reading", error.to_string()));
                    read.queue.end(read.id, result);
                }
                None if closed => return,
                // Closed or notified: both are looked at above.
                None => drop(self.changed.wait(seen, &Waiting::at(&SITE))),
            }
        }
    }

    /// Reads the blocks of a range: in place, where the range begins with a block and the memory has room for the last
    /// one; else beside, from where the range is copied.
    fn read(&self, read: &Read, scratch: &mut Vec<u8>) -> io::Result<()> {
        let FileRange { file, offset } = self.files.locate(read.offset, read.len as u64)?;
        let skew = (offset % BLOCK_BYTES) as usize;
        let blocks = (skew + read.len).next_multiple_of(BLOCK);
        if skew == 0 && read.host.addr().is_multiple_of(BLOCK) && blocks <= self.room(read.host) {
            // SAFETY: the memory is pinned, `blocks` long, and nobody else's until the end of the read is reported.
            return unsafe { read_at(&*file, read.host, blocks, (offset, read.len)) };
        }
        scratch.resize((blocks + BLOCK).max(scratch.len()), 0);
        let aligned = scratch.as_ptr().align_offset(BLOCK);
        let beside = &mut scratch[aligned..aligned + blocks];
        let first = offset - skew as u64;
        // SAFETY: the bytes are borrowed alone.
        unsafe {
            read_at(
                &*file,
                beside.as_mut_ptr(),
                blocks,
                (first, skew + read.len),
            )
        }?;
        let range = &beside[skew..skew + read.len];
        // SAFETY: the caller of `begin` has the memory valid for writes of `len` bytes; it is not the scratch memory.
        unsafe { ptr::copy_nonoverlapping(range.as_ptr(), read.host, read.len) };
        Ok(())
    }

    /// Bytes of pinned memory from this address on.
    fn room(&self, host: *mut u8) -> usize {
        let pinned = lock(&self.pinned);
        let before = pinned.range(..=host.addr()).next_back();
        before.map_or(0, |(start, len)| (start + len).saturating_sub(host.addr()))
    }
}

/// Reads `bytes` bytes from `offset`, of which the first `wanted` must be there: the file may end within the last block.
///
/// # Safety
/// `into` is valid for writes of `bytes` bytes.
unsafe fn read_at(
    file: &(dyn AsFd + Send + Sync),
    into: *mut u8,
    bytes: usize,
    (offset, wanted): (u64, usize),
) -> io::Result<()> {
    let file = file.as_fd();
    let mut done = 0;
    while done < wanted {
        let at = (offset + done as u64) as libc::off_t;
        // SAFETY: the rest of the caller's memory.
        let read =
            unsafe { libc::pread(file.as_raw_fd(), into.add(done).cast(), bytes - done, at) };
        match read {
            0 => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    format!(
                        "the file ends {done} bytes after {offset}, and {wanted} were asked for"
                    ),
                ));
            }
            1.. => done += read as usize,
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

fn failed(operation: &'static str, cause: String) -> DeviceError {
    DeviceError::Failed {
        device: "files".to_owned(),
        operation,
        cause,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Blocks {
    fn drop(&mut self) {
        lock(&self.device.pinned).remove(&self.at.addr());
        // SAFETY: it was taken with this layout, and is given back once.
        unsafe { dealloc(self.at, self.layout) };
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        lock(&self.shared.queued).closed = true;
        self.shared.changed.close();
        for thread in self.threads.drain(..) {
            // It panics only if a wake does, which was reported.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for FileRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileRange")
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}
