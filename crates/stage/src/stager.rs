mod watch;

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_engine::{Access, Memory, Stage, StageError, Staged, StagingTurn};
use slackwater_wait::{Event, Site};

use super::chunks::{Chunk, Chunks, Fetch};
use super::device::{CopyId, CopyQueue, Device, DeviceCopy, DeviceError};
use super::limits::{StageLimits, StagingError, Watch};

/// Moves bytes of a device in and out through pinned host memory, a chunk at a time, without blocking a thread.
///
/// Chunks are made once and reused, at most as many as the limit allows; callers that find none free wait in a queue.
/// One half of them is for requests of this process and one for requests of peers: a request of this process holds its
/// chunk until a peer has one, so two processes that read from each other must not run out of the same ones.
pub struct Stager {
    core: Arc<Core>,
    thread: Option<JoinHandle<()>>,
}

struct Core {
    device: Arc<dyn Device>,
    limits: StageLimits,
    chunks_max: usize,
    /// Out of the device, and into it: both ways at a time.
    queues: [Arc<dyn CopyQueue>; 2],
    state: Mutex<State>,
    changed: Arc<Event>,
}

#[derive(Default)]
struct State {
    pools: [Chunks; 2],
    flights: [VecDeque<Flight>; 2],
    closing: bool,
}

/// A copy under way.
struct Flight {
    ticket: CopyId,
    end: End,
}

/// What follows its end.
enum End {
    Fetched(Fetch, Chunk),
    Loaded {
        access: Arc<Access>,
        into: Staged,
        done: Box<dyn FnOnce(Result<Staged, StageError>) + Send>,
    },
    Stored {
        access: Arc<Access>,
        from: Staged,
        done: Box<dyn FnOnce(Result<(), StageError>) + Send>,
    },
}

/// Gives a chunk back when what was lent is dropped.
struct Back {
    core: Arc<Core>,
    pool: usize,
    chunk: Option<Chunk>,
}

/// Passes a turn on when it is over.
struct Over {
    core: Arc<Core>,
    pool: usize,
}

/// The half that an access draws on.
fn pool(access: &Access) -> usize {
    usize::from(access.is_for_peer())
}

/// The smallest chunk.
const CHUNK_BYTES_MIN: usize = 4096;

const OUT: usize = 0;
const IN: usize = 1;

/// How often the thread polls without a call of the device: a lost device never calls.
const UNCALLED: Duration = Duration::from_millis(20);

pub(crate) static SITE: Site = Site::new("staging");

/// Runs a callback. If it panics, the panic ends there, reported by the panic hook: the thread has copies of other
/// callers to attend to.
fn guarded(call: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(call));
}

impl Stager {
    /// Staging for this device. Chunks are made as they are needed.
    ///
    /// # Errors
    /// The device has no pinned memory or queue, or no thread could be started.
    pub fn start(device: Arc<dyn Device>, limits: StageLimits) -> Result<Arc<Self>, StagingError> {
        let limits = StageLimits {
            chunk_bytes: limits.chunk_bytes.max(CHUNK_BYTES_MIN),
            ..limits
        };
        let chunks_max = (limits.pinned_bytes_max / limits.chunk_bytes / 2).max(2);
        let queues = [device.queue()?, device.queue()?];
        let mut state = State::default();
        // One of each, so that a device without pinned memory is found here.
        for chunks in &mut state.pools {
            chunks.first(device.pin(limits.chunk_bytes)?);
        }
        let (state, changed) = (Mutex::new(state), Arc::new(Event::new()));
        let core = Arc::new(Core {
            device,
            limits,
            chunks_max,
            queues,
            state,
            changed,
        });
        let working = Arc::clone(&core);
        let thread = thread::Builder::new()
            .name("slackwater-stage".to_owned())
            .spawn(move || working.run())?;
        Ok(Arc::new(Self {
            core,
            thread: Some(thread),
        }))
    }

    /// Device memory to be registered. The device is asked here, once, whether the memory is its own.
    ///
    /// # Errors
    /// It is not memory of the device.
    ///
    /// # Safety
    /// The memory stays allocated until its region is unregistered, and nobody relies on what it holds while a peer with
    /// a capability may write it.
    pub unsafe fn memory(
        self: &Arc<Self>,
        address: u64,
        bytes: usize,
    ) -> Result<Memory, StagingError> {
        let device = &self.core.device;
        let foreign = || StagingError::Foreign {
            device: device.name().to_owned(),
            address,
            bytes,
        };
        let start = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(address as usize))
            .ok_or_else(foreign)?;
        if !device.owns(address, bytes as u64)? {
            return Err(foreign());
        }
        // SAFETY: the device has these bytes, and the caller keeps them.
        let memory = unsafe { Memory::borrowed(start, bytes, device.location()) };
        Ok(memory.staged_by(Arc::clone(self) as Arc<dyn Stage>))
    }

    /// Bytes of pinned memory, and the number of waiters.
    #[must_use]
    pub fn pinned(&self) -> (usize, usize) {
        let state = self.core.state();
        let (made, waiting) = state
            .pools
            .iter()
            .map(Chunks::counts)
            .fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        (made * self.core.limits.chunk_bytes, waiting)
    }
}

impl Stage for Stager {
    fn chunk_bytes(&self) -> usize {
        self.core.limits.chunk_bytes
    }

    fn fetch(
        &self,
        access: Arc<Access>,
        offset: u64,
        bytes: usize,
        done: Box<dyn FnOnce(Result<Staged, StageError>) + Send>,
    ) {
        if let Err(error) = self.core.check(&access, offset, bytes) {
            return done(Err(error));
        }
        self.core.fetch(Fetch {
            access,
            offset,
            bytes,
            done,
        });
    }

    fn lend(
        &self,
        access: &Access,
        bytes: usize,
        until: Instant,
        free: Box<dyn FnOnce(StagingTurn) + Send>,
    ) -> Option<Staged> {
        let core = &self.core;
        debug_assert!(
            bytes <= core.limits.chunk_bytes,
            "a loan of more than a chunk"
        );
        let lent = core.state().pools[pool(access)].lend(access.tenant(), until, free);
        match lent {
            Some(mut chunk) => {
                chunk.prepare(access.tenant(), bytes);
                Some(core.lent(pool(access), chunk, bytes))
            }
            None => {
                core.changed.notify_all();
                None
            }
        }
    }

    fn load(
        &self,
        access: Arc<Access>,
        offset: u64,
        into: Staged,
        bytes: usize,
        done: Box<dyn FnOnce(Result<Staged, StageError>) + Send>,
    ) {
        if let Err(error) = self.core.check_loan(&access, offset, (bytes, &into)) {
            drop(into);
            return done(Err(error));
        }
        let device = access.start().addr() as u64 + offset;
        let copy = DeviceCopy::ToHost {
            host: into.start().as_ptr(),
            device,
            len: bytes,
        };
        // SAFETY: the access holds the device's range and the flight both it and the lent memory, until the copy's end.
        unsafe {
            self.core
                .begin(OUT, copy, End::Loaded { access, into, done })
        };
    }

    fn store(
        &self,
        access: Arc<Access>,
        offset: u64,
        from: Staged,
        bytes: usize,
        done: Box<dyn FnOnce(Result<(), StageError>) + Send>,
    ) {
        if let Err(error) = self.core.check_loan(&access, offset, (bytes, &from)) {
            drop(from);
            return done(Err(error));
        }
        let device = access.start().addr() as u64 + offset;
        let copy = DeviceCopy::ToDevice {
            device,
            host: from.start().as_ptr(),
            len: bytes,
        };
        let end = End::Stored { access, from, done };
        // SAFETY: the access holds the device's range and the flight both it and the lent memory, until the copy's end.
        unsafe { self.core.begin(IN, copy, end) };
    }
}

impl Core {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, access: &Access, offset: u64, bytes: usize) -> Result<(), StageError> {
        let max = self.limits.chunk_bytes;
        let inside = offset
            .checked_add(bytes as u64)
            .is_some_and(|end| end <= access.bytes());
        match bytes <= max && inside {
            true => Ok(()),
            false => Err(StageError(format!(
                "{bytes} bytes at {offset} of an access of {} cannot be staged at once, {max} at most",
                access.bytes()
            ))),
        }
    }

    /// Never more bytes than were lent: behind them may be bytes of another tenant.
    fn check_loan(
        &self,
        access: &Access,
        offset: u64,
        (bytes, loan): (usize, &Staged),
    ) -> Result<(), StageError> {
        self.check(access, offset, bytes)?;
        match bytes <= loan.bytes() {
            true => Ok(()),
            false => Err(StageError(format!(
                "{bytes} bytes of a loan of {}",
                loan.bytes()
            ))),
        }
    }

    fn fetch(self: &Arc<Self>, fetch: Fetch) {
        let begun = self.state().pools[pool(&fetch.access)].fetch(fetch);
        match begun {
            Some((fetch, chunk)) => self.begin_fetch(fetch, chunk),
            None => {
                self.changed.notify_all();
            }
        }
    }

    fn begin_fetch(self: &Arc<Self>, fetch: Fetch, mut chunk: Chunk) {
        chunk.prepare(fetch.access.tenant(), fetch.bytes);
        let device = fetch.access.start().addr() as u64 + fetch.offset;
        let copy = DeviceCopy::ToHost {
            host: chunk.pinned.as_ptr(),
            device,
            len: fetch.bytes,
        };
        // SAFETY: the access holds the device's range and the flight both it and the chunk, until the copy's end.
        unsafe { self.begin(OUT, copy, End::Fetched(fetch, chunk)) };
    }

    /// Begins a copy, or ends it at once if the device refuses.
    ///
    /// # Safety
    /// As for [`CopyQueue::begin`]; `end` holds what has to stay.
    unsafe fn begin(self: &Arc<Self>, way: usize, copy: DeviceCopy, end: End) {
        let begun = {
            let mut state = self.state();
            // Under the lock, so that the flights are in the order of the queue.
            // SAFETY: the caller's promise.
            match unsafe { self.queues[way].begin(copy) } {
                Ok(ticket) => {
                    state.flights[way].push_back(Flight { ticket, end });
                    Ok(())
                }
                Err(error) => Err((error, end)),
            }
        };
        match begun {
            Ok(()) => {
                if self.limits.watch == Watch::Callback {
                    let changed = Arc::clone(&self.changed);
                    // If that is refused, the thread polls.
                    let _ = self.queues[way].wake_after(Box::new(move || {
                        changed.notify_all();
                    }));
                }
                self.changed.notify_all();
            }
            Err((error, end)) => self.end(end, Err(error)),
        }
    }

    fn end(self: &Arc<Self>, end: End, result: Result<(), DeviceError>) {
        let result = result.map_err(|error| StageError(error.to_string()));
        match end {
            End::Fetched(
                Fetch {
                    access,
                    bytes,
                    done,
                    ..
                },
                chunk,
            ) => {
                // Dropped where the copy failed, which gives the chunk back.
                let staged = self.lent(pool(&access), chunk, bytes);
                drop(access);
                done(result.map(|()| staged));
            }
            End::Loaded { access, into, done } => {
                drop(access);
                done(result.map(|()| into));
            }
            End::Stored { access, from, done } => {
                drop((access, from));
                done(result);
            }
        }
    }

    fn turn(self: &Arc<Self>, pool: usize) -> StagingTurn {
        StagingTurn::new(Over {
            core: Arc::clone(self),
            pool,
        })
    }

    fn lent(self: &Arc<Self>, pool: usize, chunk: Chunk, bytes: usize) -> Staged {
        let start = NonNull::new(chunk.pinned.as_ptr()).unwrap_or(NonNull::dangling());
        let back = Back {
            core: Arc::clone(self),
            pool,
            chunk: Some(chunk),
        };
        // SAFETY: the chunk is at least `bytes` long, and nobody has it until `back` is dropped.
        unsafe { Staged::new(start, bytes, back) }
    }
}

impl Drop for Back {
    fn drop(&mut self) {
        if let Some(chunk) = self.chunk.take() {
            let wanted = self.core.state().pools[self.pool].back(chunk);
            if wanted {
                self.core.changed.notify_all();
            }
        }
    }
}

impl Drop for Over {
    fn drop(&mut self) {
        let wanted = self.core.state().pools[self.pool].turn_over();
        if wanted {
            self.core.changed.notify_all();
        }
    }
}

impl Drop for Stager {
    fn drop(&mut self) {
        self.core.state().closing = true;
        self.core.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            // It panics only if a callback does, which was reported.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Stager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stager")
            .field("device", &self.core.device)
            .field("limits", &self.core.limits)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
