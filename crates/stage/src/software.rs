use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use slackwater_base::Instant;
use slackwater_engine::Location;
use slackwater_wait::{Event, Site, Waiting, now};

use super::device::{CopyId, CopyQueue, Device, DeviceCopy, DeviceError, Pinned};

/// A device made of host memory and a thread, for machines without one and for tests.
///
/// Its memory has addresses at which nothing is mapped, so an access of the host faults at once. Copies run one after
/// the other on the device's thread, after the delay and with the errors asked for.
pub struct SoftwareDevice {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The faults of a [`SoftwareDevice`], and its delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Every copy lasts at least this long.
    pub delay: Duration,
    /// Every so many copies one fails; 0 means none.
    pub fail_every: u64,
    /// No copy begins while this is set.
    pub stopped: bool,
}

/// Memory of a [`SoftwareDevice`]. Freed when dropped; copies that still name it fail.
#[derive(Debug)]
pub struct SoftwareMemory {
    device: Weak<Shared>,
    address: u64,
    len: u64,
}

struct Shared {
    number: u32,
    name: String,
    state: Mutex<State>,
    changed: Event,
}

#[derive(Default)]
struct State {
    memory: BTreeMap<u64, Block>,
    faults: Faults,
    waiting: VecDeque<DeviceTask>,
    next_ticket: u64,
    begun: u64,
    pinned: usize,
    closed: bool,
}

/// An entry of the device's queue.
enum DeviceTask {
    Copy {
        copy: DeviceCopy,
        ticket: CopyId,
        ends: Arc<Ends>,
        ready: Instant,
    },
    Wake(Box<dyn FnOnce() + Send>),
}

#[derive(Default)]
struct Ends(Mutex<BTreeMap<CopyId, Option<Result<(), DeviceError>>>>);

struct Block {
    bytes: Vec<u8>,
    _range: Reserved,
}

/// Addresses that nothing else gets and that cannot be touched.
struct Reserved {
    at: *mut std::ffi::c_void,
    len: usize,
}

// SAFETY: nobody touches what is there.
unsafe impl Send for Reserved {}

struct SoftwareQueue {
    device: Arc<Shared>,
    ends: Arc<Ends>,
}

static SITE: Site = Site::new("software device");

impl SoftwareDevice {
    /// A device with this number and no memory in use.
    ///
    /// # Errors
    /// Its thread could not be started.
    pub fn start(number: u32) -> io::Result<Self> {
        let name = Location::Software(number).to_string();
        let shared = Arc::new(Shared {
            number,
            name,
            state: Mutex::default(),
            changed: Event::new(),
        });
        let working = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("slackwater-soft".to_owned())
            .spawn(move || working.run())?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Takes `len` zero bytes of device memory.
    ///
    /// # Errors
    /// The process has no address space left.
    pub fn allocate(&self, len: usize) -> io::Result<SoftwareMemory> {
        let range = Reserved::new(len)?;
        let address = range.at.expose_provenance() as u64;
        self.shared.state().memory.insert(
            address,
            Block {
                bytes: vec![0; len],
                _range: range,
            },
        );
        Ok(SoftwareMemory {
            device: Arc::downgrade(&self.shared),
            address,
            len: len as u64,
        })
    }

    /// Sets the faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.shared.state().faults = faults;
        self.shared.changed.notify_all();
    }

    /// Bytes of pinned memory in use.
    #[must_use]
    pub fn pinned_bytes(&self) -> usize {
        self.shared.state().pinned
    }

    /// Copies begun so far.
    #[must_use]
    pub fn copies(&self) -> u64 {
        self.shared.state().begun
    }
}

impl SoftwareMemory {
    /// The first byte, as the device counts.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes as they are, as a debugger would see them.
    #[must_use]
    pub fn load(&self) -> Vec<u8> {
        let Some(device) = self.device.upgrade() else {
            return Vec::new();
        };
        let state = device.state();
        state
            .memory
            .get(&self.address)
            .map(|block| block.bytes.clone())
            .unwrap_or_default()
    }

    /// Replaces the first bytes.
    ///
    /// # Panics
    /// There are more than the memory has.
    pub fn store(&self, bytes: &[u8]) {
        if let Some(device) = self.device.upgrade()
            && let Some(block) = device.state().memory.get_mut(&self.address)
        {
            block.bytes[..bytes.len()].copy_from_slice(bytes);
        }
    }
}

impl Drop for SoftwareMemory {
    fn drop(&mut self) {
        if let Some(device) = self.device.upgrade() {
            device.state().memory.remove(&self.address);
        }
    }
}

impl Device for SoftwareDevice {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn location(&self) -> Location {
        Location::Software(self.shared.number)
    }

    fn owns(&self, address: u64, len: u64) -> Result<bool, DeviceError> {
        Ok(self.shared.state().find(address, len).is_some())
    }

    fn pin(&self, len: usize) -> Result<Pinned, DeviceError> {
        let mut bytes = vec![0u8; len].into_boxed_slice();
        self.shared.state().pinned += len;
        let at = bytes.as_mut_ptr();
        let release = PinnedBytes {
            _bytes: Box::into_raw(bytes),
            len,
            device: Arc::clone(&self.shared),
        };
        // SAFETY: the box is reached by this address alone until the guard frees it.
        Ok(unsafe { Pinned::new(at, len, Box::new(release)) })
    }

    fn queue(&self) -> Result<Arc<dyn CopyQueue>, DeviceError> {
        Ok(Arc::new(SoftwareQueue {
            device: Arc::clone(&self.shared),
            ends: Arc::default(),
        }))
    }
}

struct PinnedBytes {
    _bytes: *mut [u8],
    len: usize,
    device: Arc<Shared>,
}

// SAFETY: it only frees the box, which any thread may.
unsafe impl Send for PinnedBytes {}

impl Drop for PinnedBytes {
    fn drop(&mut self) {
        self.device.state().pinned -= self.len;
        // SAFETY: the pointer came from a box and is given up here, once.
        drop(unsafe { Box::from_raw(self._bytes) });
    }
}

impl CopyQueue for SoftwareQueue {
    unsafe fn begin(&self, copy: DeviceCopy) -> Result<CopyId, DeviceError> {
        let mut state = self.device.state();
        if state.closed {
            return Err(self
                .device
                .failed("copying", "the device is gone".to_owned()));
        }
        state.next_ticket += 1;
        let ticket = CopyId(state.next_ticket);
        lock(&self.ends.0).insert(ticket, None);
        let ready = now() + state.faults.delay;
        state.waiting.push_back(DeviceTask::Copy {
            copy,
            ticket,
            ends: Arc::clone(&self.ends),
            ready,
        });
        drop(state);
        self.device.changed.notify_all();
        Ok(ticket)
    }

    fn poll(&self, ticket: CopyId) -> Poll<Result<(), DeviceError>> {
        let mut ends = lock(&self.ends.0);
        match ends.get(&ticket) {
            Some(None) => Poll::Pending,
            Some(Some(_)) => Poll::Ready(ends.remove(&ticket).flatten().unwrap_or(Ok(()))),
            None => Poll::Ready(Err(self
                .device
                .failed("asking for a copy", "there is no such copy".to_owned()))),
        }
    }

    fn wake_after(&self, wake: Box<dyn FnOnce() + Send>) -> Result<(), DeviceError> {
        let mut state = self.device.state();
        if state.closed {
            return Err(self
                .device
                .failed("waking", "the device is gone".to_owned()));
        }
        state.waiting.push_back(DeviceTask::Wake(wake));
        drop(state);
        self.device.changed.notify_all();
        Ok(())
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn failed(&self, operation: &'static str, cause: String) -> DeviceError {
        DeviceError::Failed {
            device: self.name.clone(),
            operation,
            cause,
        }
    }

    fn run(&self) {
        loop {
            let seen = self.changed.seen();
            let mut state = self.state();
            if state.closed {
                return self.give_up(std::mem::take(&mut state.waiting), state);
            }
            let next = match state.waiting.front() {
                Some(DeviceTask::Copy { ready, .. }) if state.faults.stopped || now() < *ready => {
                    Some(*ready)
                }
                Some(_) if state.faults.stopped => Some(Instant::NEVER),
                Some(_) => None,
                None => Some(Instant::NEVER),
            };
            if let Some(next) = next {
                let until = if state.faults.stopped {
                    Instant::NEVER
                } else {
                    next
                };
                drop(state);
                // Either something changed or the next copy is due: both are checked above.
                let _ = self.changed.wait(seen, &Waiting::at(&SITE).until(until));
                continue;
            }
            match state.waiting.pop_front() {
                Some(DeviceTask::Copy {
                    copy, ticket, ends, ..
                }) => {
                    state.begun += 1;
                    let fails = state.faults.fail_every;
                    let result = if fails > 0 && state.begun.is_multiple_of(fails) {
                        Err("injected".to_owned())
                    } else {
                        // SAFETY: the caller that began the copy keeps its memory valid until its end is reported, below.
                        unsafe { state.carry_out(copy) }
                    };
                    drop(state);
                    let result = result.map_err(|cause| self.failed("copying", cause));
                    lock(&ends.0).insert(ticket, Some(result));
                }
                Some(DeviceTask::Wake(wake)) => {
                    drop(state);
                    wake();
                }
                None => {}
            }
        }
    }
}

impl Shared {
    /// Ends the copies that were not begun.
    fn give_up(&self, waiting: VecDeque<DeviceTask>, state: MutexGuard<'_, State>) {
        drop(state);
        for work in waiting {
            match work {
                DeviceTask::Copy { ticket, ends, .. } => {
                    let gone = self.failed("copying", "the device is gone".to_owned());
                    lock(&ends.0).insert(ticket, Some(Err(gone)));
                }
                DeviceTask::Wake(wake) => wake(),
            }
        }
    }
}

impl State {
    /// The block and the offset in it of all these bytes.
    fn find(&self, address: u64, len: u64) -> Option<(u64, usize)> {
        let (&start, block) = self.memory.range(..=address).next_back()?;
        let offset = address - start;
        (offset.checked_add(len)? <= block.bytes.len() as u64).then_some((start, offset as usize))
    }

    /// # Safety
    /// The host's range is valid, and nothing else touches it meanwhile.
    unsafe fn carry_out(&mut self, copy: DeviceCopy) -> Result<(), String> {
        let (DeviceCopy::ToHost { device, len, .. } | DeviceCopy::ToDevice { device, len, .. }) =
            copy;
        let Some((start, offset)) = self.find(device, len as u64) else {
            return Err(format!(
                "{len} bytes at {device:#x} are no memory of the device"
            ));
        };
        let Some(block) = self.memory.get_mut(&start) else {
            return Ok(());
        };
        let bytes = &mut block.bytes[offset..offset + len];
        match copy {
            // SAFETY: the host's range is the caller's; the device's is a vector that nobody else has.
            DeviceCopy::ToHost { host, .. } => unsafe {
                ptr::copy_nonoverlapping(bytes.as_ptr(), host, len)
            },
            // SAFETY: as above.
            DeviceCopy::ToDevice { host, .. } => unsafe {
                ptr::copy_nonoverlapping(host, bytes.as_mut_ptr(), len)
            },
        }
        Ok(())
    }
}

impl Reserved {
    fn new(len: usize) -> io::Result<Self> {
        let len = len.max(1);
        // SAFETY: a new range at an address of the kernel's choice, which overlaps nothing.
        let at =
            unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE) }?;
        Ok(Self { at, len })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, is unmapped once, and nothing can refer into it.
        let _ = unsafe { munmap(self.at, self.len) };
    }
}

impl Drop for SoftwareDevice {
    fn drop(&mut self) {
        self.shared.state().closed = true;
        self.shared.changed.close();
        if let Some(thread) = self.thread.take() {
            // It panics only if a wake does, which was reported.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for SoftwareDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SoftwareDevice")
            .field("name", &self.shared.name)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
