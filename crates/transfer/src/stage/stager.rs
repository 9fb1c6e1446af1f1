use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_wait::{Event, Site, Waiting, now};
use thiserror::Error;

use super::device::{CopyQueue, Device, DeviceCopy, DeviceError, Pinned, Ticket};
use crate::memory::{Memory, Stage, StageError, Staged};
use crate::region::Access;

/// Brings bytes of a device in and out through pinned host memory, a chunk at a time, without anybody waiting in a copy.
///
/// Chunks are made once and used again and again, at most as many as the limit allows; who finds none free stands in
/// line. One half of them is for requests of this process and one for requests of peers: what this process asks for
/// holds its chunks until a peer has some, so two processes that ask each other must not run out of the same ones.
/// One thread looks after copies under way: the device tells it to look, or it looks from time to time.
pub struct Stager {
    core: Arc<Core>,
    thread: Option<JoinHandle<()>>,
}

/// Bounds of a [`Stager`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageLimits {
    /// The bytes of one copy between device and host, a few MiB: long beside its start, short beside the whole.
    pub chunk_bytes: usize,
    /// The most pinned memory; at least two chunks each for this process and for its peers, so that one is with the
    /// device while the other is on the wire.
    pub pinned_bytes_max: usize,
    /// How the ends of copies are found.
    pub watch: Watch,
}

/// How the end of a device copy is found: its events are no file descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// The device calls back behind every copy.
    Callback,
    /// The thread looks this often while copies are under way.
    Poll(Duration),
}

impl Default for StageLimits {
    fn default() -> Self {
        Self { chunk_bytes: 2 << 20, pinned_bytes_max: 256 << 20, watch: Watch::Callback }
    }
}

/// Why device memory cannot be staged.
#[derive(Debug, Error)]
pub enum NoStage {
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The thread did not start.
    #[error("staging: {0}")]
    System(#[from] io::Error),
    /// The bytes are not, or not all, memory of the device.
    #[error("{bytes} bytes at {address:#x} are no memory of {device}")]
    Foreign {
        /// Which device.
        device: String,
        /// First byte.
        address: u64,
        /// Length.
        bytes: usize,
    },
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

/// Chunks of one half, and the line for them.
#[derive(Default)]
struct Chunks {
    idle: Vec<Chunk>,
    made: usize,
    line: VecDeque<Wanted>,
    /// Those in line who were told to come, and have not yet.
    called: usize,
}

/// Pinned memory, and whose bytes may still lie in it.
struct Chunk {
    pinned: Pinned,
    tenant: Option<u64>,
    dirty: usize,
}

/// Who waits for a chunk.
enum Wanted {
    Fetch(Fetch),
    Lend(Box<dyn FnOnce() + Send>),
}

struct Fetch {
    access: Arc<Access>,
    offset: u64,
    bytes: usize,
    done: Box<dyn FnOnce(Result<Staged, StageError>) + Send>,
}

/// A copy under way.
struct Flight {
    ticket: Ticket,
    end: End,
}

/// What follows it.
enum End {
    Fetched(Fetch, Chunk),
    Stored { access: Arc<Access>, from: Staged, done: Box<dyn FnOnce(Result<(), StageError>) + Send> },
}

/// Gives a chunk back when what was lent is dropped.
struct Back {
    core: Arc<Core>,
    pool: usize,
    chunk: Option<Chunk>,
}

/// The half that an access draws on.
fn pool(access: &Access) -> usize {
    usize::from(access.is_for_peer())
}

const OUT: usize = 0;
const IN: usize = 1;

/// Without a call of the device the thread looks all the same this often: a device that is lost calls nobody.
const UNCALLED: Duration = Duration::from_millis(20);

static SITE: Site = Site::new("staging");

impl Stager {
    /// Staging for this device. Chunks are made as they are needed.
    ///
    /// # Errors
    /// The device has no pinned memory or queue, or no thread could be started.
    pub fn start(device: Arc<dyn Device>, limits: StageLimits) -> Result<Arc<Self>, NoStage> {
        let chunks_max = (limits.pinned_bytes_max / limits.chunk_bytes.max(1) / 2).max(2);
        let queues = [device.queue()?, device.queue()?];
        let mut state = State::default();
        // One of each, so that a device without pinned memory is found here.
        for chunks in &mut state.pools {
            chunks.idle.push(Chunk::new(device.pin(limits.chunk_bytes)?));
            chunks.made = 1;
        }
        let (state, changed) = (Mutex::new(state), Arc::new(Event::new()));
        let core = Arc::new(Core { device, limits, chunks_max, queues, state, changed });
        let working = Arc::clone(&core);
        let thread = thread::Builder::new().name("slackwater-stage".to_owned()).spawn(move || working.run())?;
        Ok(Arc::new(Self { core, thread: Some(thread) }))
    }

    /// Device memory to be registered. Whose memory it is, the device is asked here, once.
    ///
    /// # Errors
    /// It is not the device's.
    ///
    /// # Safety
    /// The memory stays allocated until its region is unregistered, and nobody relies on what it holds while a peer with
    /// a capability may write it.
    pub unsafe fn memory(self: &Arc<Self>, address: u64, bytes: usize) -> Result<Memory, NoStage> {
        let device = &self.core.device;
        let foreign = || NoStage::Foreign { device: device.name().to_owned(), address, bytes };
        let start = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(address as usize)).ok_or_else(foreign)?;
        if !device.owns(address, bytes as u64)? {
            return Err(foreign());
        }
        // SAFETY: the device has these bytes, and the caller keeps them.
        let memory = unsafe { Memory::borrowed(start, bytes, device.location()) };
        Ok(memory.staged_by(Arc::clone(self) as Arc<dyn Stage>))
    }

    /// Bytes of pinned memory, and who waits in line for some.
    #[must_use]
    pub fn pinned(&self) -> (usize, usize) {
        let state = self.core.state();
        let made: usize = state.pools.iter().map(|chunks| chunks.made).sum();
        (made * self.core.limits.chunk_bytes, state.pools.iter().map(|chunks| chunks.line.len()).sum())
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
        self.core.fetch(Fetch { access, offset, bytes, done });
    }

    fn lend(&self, access: &Access, bytes: usize, free: Box<dyn FnOnce() + Send>) -> Option<Staged> {
        let core = &self.core;
        debug_assert!(bytes <= core.limits.chunk_bytes, "a loan of more than a chunk");
        let mut state = core.state();
        let chunks = &mut state.pools[pool(access)];
        let chunk = if chunks.line.is_empty() || chunks.called > 0 { chunks.take(access.tenant()) } else { None };
        match chunk {
            Some(mut chunk) => {
                chunks.called = chunks.called.saturating_sub(1);
                drop(state);
                chunk.prepare(access.tenant(), bytes);
                Some(core.lent(pool(access), chunk, bytes))
            }
            None => {
                chunks.line.push_back(Wanted::Lend(free));
                drop(state);
                core.changed.notify_all();
                None
            }
        }
    }

    fn store(
        &self,
        access: Arc<Access>,
        offset: u64,
        from: Staged,
        bytes: usize,
        done: Box<dyn FnOnce(Result<(), StageError>) + Send>,
    ) {
        if let Err(error) = self.core.check(&access, offset, bytes.max(from.bytes())) {
            return done(Err(error));
        }
        let device = access.start().addr() as u64 + offset;
        let copy = DeviceCopy::ToDevice { device, host: from.start().as_ptr(), len: bytes };
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
        let inside = offset.checked_add(bytes as u64).is_some_and(|end| end <= access.bytes());
        match bytes <= max && inside {
            true => Ok(()),
            false => Err(StageError(format!(
                "{bytes} bytes at {offset} of an access of {} cannot be staged at once, {max} at most",
                access.bytes()
            ))),
        }
    }

    fn fetch(self: &Arc<Self>, fetch: Fetch) {
        let mut state = self.state();
        let chunks = &mut state.pools[pool(&fetch.access)];
        let chunk = if chunks.line.is_empty() { chunks.take(fetch.access.tenant()) } else { None };
        match chunk {
            Some(chunk) => {
                drop(state);
                self.begin_fetch(fetch, chunk);
            }
            None => {
                chunks.line.push_back(Wanted::Fetch(fetch));
                drop(state);
                self.changed.notify_all();
            }
        }
    }

    fn begin_fetch(self: &Arc<Self>, fetch: Fetch, mut chunk: Chunk) {
        chunk.prepare(fetch.access.tenant(), fetch.bytes);
        let device = fetch.access.start().addr() as u64 + fetch.offset;
        let copy = DeviceCopy::ToHost { host: chunk.pinned.as_ptr(), device, len: fetch.bytes };
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
                    // Refused, the thread looks from time to time.
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
            End::Fetched(Fetch { access, bytes, done, .. }, chunk) => {
                // Dropped where the copy failed, which gives the chunk back.
                let staged = self.lent(pool(&access), chunk, bytes);
                drop(access);
                done(result.map(|()| staged));
            }
            End::Stored { access, from, done } => {
                drop((access, from));
                done(result);
            }
        }
    }

    fn lent(self: &Arc<Self>, pool: usize, chunk: Chunk, bytes: usize) -> Staged {
        let start = NonNull::new(chunk.pinned.as_ptr()).unwrap_or(NonNull::dangling());
        let back = Back { core: Arc::clone(self), pool, chunk: Some(chunk) };
        // SAFETY: the chunk is at least `bytes` long, and nobody has it until `back` is dropped.
        unsafe { Staged::new(start, bytes, back) }
    }

    fn run(self: &Arc<Self>) {
        loop {
            let seen = self.changed.seen();
            let ended = self.ended();
            let idle = ended.is_empty();
            for (end, result) in ended {
                self.end(end, result);
            }
            let served = self.serve_line(0) | self.serve_line(1);
            if !idle || served {
                continue;
            }
            let (flying, closing) = {
                let state = self.state();
                (state.flights.iter().any(|flights| !flights.is_empty()), state.closing)
            };
            if closing && !flying {
                return self.turn_away();
            }
            let until = match self.limits.watch {
                _ if !flying => Instant::NEVER,
                Watch::Callback => now() + UNCALLED,
                Watch::Poll(pause) => now() + pause,
            };
            // Told, or time to look: both are looked at above.
            let _ = self.changed.wait(seen, &Waiting::at(&SITE).until(until));
        }
    }

    /// The copies that are over.
    fn ended(&self) -> Vec<(End, Result<(), DeviceError>)> {
        let mut ended = Vec::new();
        let mut state = self.state();
        for (way, queue) in self.queues.iter().enumerate() {
            while let Some(flight) = state.flights[way].front()
                && let Poll::Ready(result) = queue.poll(flight.ticket)
                && let Some(flight) = state.flights[way].pop_front()
            {
                ended.push((flight.end, result));
            }
        }
        ended
    }

    /// Gives chunks to those in line, and makes some while there may be more; says whether anybody was served.
    fn serve_line(self: &Arc<Self>, pool: usize) -> bool {
        let mut served = false;
        loop {
            let mut state = self.state();
            let chunks = &mut state.pools[pool];
            if chunks.line.is_empty() {
                return served;
            }
            if chunks.idle.is_empty() {
                if chunks.made >= self.chunks_max {
                    return served;
                }
                chunks.made += 1;
                drop(state);
                // Without the lock: pinning takes milliseconds.
                let made = self.device.pin(self.limits.chunk_bytes);
                let chunks = &mut self.state().pools[pool];
                match made {
                    Ok(pinned) => chunks.idle.push(Chunk::new(pinned)),
                    // The chunks there are have to do.
                    Err(_) => {
                        chunks.made -= 1;
                        return served;
                    }
                }
                continue;
            }
            match chunks.line.pop_front() {
                Some(Wanted::Fetch(fetch)) => {
                    let chunk = chunks.take(fetch.access.tenant());
                    drop(state);
                    if let Some(chunk) = chunk {
                        self.begin_fetch(fetch, chunk);
                    }
                }
                Some(Wanted::Lend(free)) => {
                    // It comes back for the chunk; if it does not, somebody else is glad of it.
                    chunks.called += 1;
                    drop(state);
                    free();
                }
                None => return served,
            }
            served = true;
        }
    }

    /// The end: nobody in line gets anything any more.
    fn turn_away(self: &Arc<Self>) {
        let lines = self.state().pools.each_mut().map(|chunks| std::mem::take(&mut chunks.line));
        for wanted in lines.into_iter().flatten() {
            match wanted {
                Wanted::Fetch(Fetch { access, done, .. }) => {
                    drop(access);
                    done(Err(StageError("staging is over".to_owned())));
                }
                Wanted::Lend(free) => free(),
            }
        }
    }
}

impl Chunks {
    /// A free chunk, one that the same tenant had last if there is one.
    fn take(&mut self, tenant: u64) -> Option<Chunk> {
        let same = self.idle.iter().rposition(|chunk| chunk.tenant == Some(tenant));
        same.map(|at| self.idle.swap_remove(at)).or_else(|| self.idle.pop())
    }
}

impl Chunk {
    fn new(pinned: Pinned) -> Self {
        Self { pinned, tenant: None, dirty: 0 }
    }

    /// Leaves nothing of another tenant behind, and notes who has the first `bytes` bytes now.
    fn prepare(&mut self, tenant: u64, bytes: usize) {
        if self.tenant.is_some_and(|last| last != tenant) {
            // SAFETY: the bytes are within the chunk, which is this caller's alone.
            unsafe { ptr::write_bytes(self.pinned.as_ptr(), 0, self.dirty) };
            self.dirty = 0;
        }
        self.tenant = Some(tenant);
        self.dirty = self.dirty.max(bytes);
    }
}

impl Drop for Back {
    fn drop(&mut self) {
        if let Some(chunk) = self.chunk.take() {
            let mut state = self.core.state();
            let chunks = &mut state.pools[self.pool];
            chunks.idle.push(chunk);
            let wanted = !chunks.line.is_empty();
            drop(state);
            if wanted {
                self.core.changed.notify_all();
            }
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
            // It panics only where a callback does, and that has been told.
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
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use slackwater_base::Rng;
    use slackwater_wire::data::Rights;

    use super::super::software::{Faults, SoftwareDevice, SoftwareMemory};
    use super::*;
    use crate::region::{Region, RegionSpec, Regions};

    const CHUNK: usize = 4096;
    const PATIENCE: Duration = Duration::from_secs(20);

    struct Rig {
        device: Arc<SoftwareDevice>,
        stager: Arc<Stager>,
        regions: Regions,
        memory: Arc<SoftwareMemory>,
        region: Arc<Region>,
    }

    fn rig(chunks: usize, watch: Watch) -> Rig {
        let device = Arc::new(SoftwareDevice::start(0).unwrap());
        let limits = StageLimits { chunk_bytes: CHUNK, pinned_bytes_max: 2 * chunks * CHUNK, watch };
        let stager = Stager::start(Arc::clone(&device) as Arc<dyn Device>, limits).unwrap();
        let memory = Arc::new(device.allocate(64 * CHUNK).unwrap());
        // SAFETY: the allocation is kept by the rig, longer than the region is used.
        let staged = unsafe { stager.memory(memory.address(), 64 * CHUNK) }.unwrap();
        let regions = Regions::default();
        let region = regions.register(RegionSpec { memory: staged, rights: Rights::BOTH }).unwrap();
        Rig { device, stager, regions, memory, region }
    }

    impl Rig {
        fn access(&self, tenant: u64) -> Arc<Access> {
            Arc::new(self.region.access(0, self.region.bytes()).unwrap().for_peer(tenant))
        }

        fn fetch(&self, tenant: u64, offset: usize, bytes: usize) -> Receiver<Result<Staged, StageError>> {
            let (tell, told) = channel();
            let done = Box::new(move |result| tell.send(result).unwrap_or_default());
            self.stager.fetch(self.access(tenant), offset as u64, bytes, done);
            told
        }

        fn store(&self, offset: usize, from: Staged, bytes: usize) -> Result<(), StageError> {
            let (tell, told) = channel();
            let done = Box::new(move |result| tell.send(result).unwrap_or_default());
            self.stager.store(self.access(0), offset as u64, from, bytes, done);
            told.recv_timeout(PATIENCE).unwrap()
        }

        fn lend(&self, tenant: u64, bytes: usize) -> Staged {
            loop {
                let (tell, told) = channel();
                let free = Box::new(move || tell.send(()).unwrap_or_default());
                match self.stager.lend(&self.access(tenant), bytes, free) {
                    Some(staged) => return staged,
                    None => told.recv_timeout(PATIENCE).unwrap(),
                }
            }
        }
    }

    fn bytes(staged: &Staged) -> &[u8] {
        // SAFETY: the loan holds so many bytes, and nobody writes them meanwhile.
        unsafe { std::slice::from_raw_parts(staged.start().as_ptr(), staged.bytes()) }
    }

    fn write(staged: &Staged, from: &[u8]) {
        // SAFETY: the loan is at least as long.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), staged.start().as_ptr(), from.len()) };
    }

    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut rng = Rng::new(seed);
        (0..len).map(|_| rng.next_u64() as u8).collect()
    }

    #[test]
    fn chunks_go_in_and_out_of_a_device_however_its_copies_are_watched() {
        for watch in [Watch::Callback, Watch::Poll(Duration::from_micros(20))] {
            let rig = rig(3, watch);
            let data = noise(1, 64 * CHUNK);
            rig.memory.store(&data);
            // More at a time than there are chunks: the rest stands in line.
            let fetched: Vec<_> = (0..64).map(|chunk| rig.fetch(0, chunk * CHUNK, CHUNK)).collect();
            for (chunk, told) in fetched.into_iter().enumerate() {
                let staged = told.recv_timeout(PATIENCE).unwrap().unwrap();
                assert!(bytes(&staged) == &data[chunk * CHUNK..][..CHUNK], "chunk {chunk}");
            }
            let other = noise(2, 1000);
            let staged = rig.lend(0, 1000);
            write(&staged, &other);
            rig.store(77, staged, 1000).unwrap();
            assert!(rig.memory.load()[77..1077] == other);
            assert_eq!(rig.stager.pinned(), (4 * CHUNK, 0), "three for peers, and the one there always is");
            assert_eq!(rig.region.in_flight(), 0, "nothing is at the region any more");
        }
    }

    #[test]
    fn an_error_of_the_device_fails_its_own_copy_alone() {
        let rig = rig(2, Watch::Callback);
        rig.device.set_faults(Faults { fail_every: 3, ..Faults::default() });
        let failed = (0..30).filter(|_| rig.fetch(0, 0, 8).recv_timeout(PATIENCE).unwrap().is_err()).count();
        assert_eq!(failed, 10);
        let mut failed = 0;
        for _ in 0..30 {
            let staged = rig.lend(0, 8);
            failed += usize::from(rig.store(0, staged, 8).is_err());
        }
        assert_eq!(failed, 10);
        assert!(rig.stager.pinned().0 <= 3 * CHUNK);
    }

    #[test]
    fn a_tenant_finds_no_byte_of_another_in_its_staging() {
        let rig = rig(2, Watch::Callback);
        rig.memory.store(&vec![0xee; 64 * CHUNK]);
        for tenant in 0..8 {
            let loans = [rig.lend(tenant, CHUNK), rig.lend(tenant, CHUNK)];
            assert!(loans.iter().all(|loan| bytes(loan).iter().all(|&byte| byte == 0)), "tenant {tenant}");
            drop(loans);
            let held: Vec<_> =
                [0, 1].map(|_| rig.fetch(tenant, 0, CHUNK)).map(|told| told.recv_timeout(PATIENCE).unwrap()).into();
            assert!(held.iter().all(Result::is_ok));
        }
    }

    #[test]
    fn memory_stays_in_use_until_its_copy_is_over() {
        let rig = rig(2, Watch::Callback);
        rig.device.set_faults(Faults { stopped: true, ..Faults::default() });
        let told = rig.fetch(0, 0, CHUNK);
        rig.region.close();
        let soon = now() + Duration::from_millis(1);
        assert!(rig.regions.reopen(&rig.region, soon).is_err(), "a copy is under way");
        assert!(told.try_recv().is_err());
        rig.device.set_faults(Faults::default());
        assert!(told.recv_timeout(PATIENCE).unwrap().is_ok());
        rig.regions.reopen(&rig.region, now() + PATIENCE).unwrap();
    }

    #[test]
    fn foreign_memory_and_ranges_outside_are_refused() {
        let rig = rig(2, Watch::Callback);
        let host = vec![0u8; CHUNK];
        // SAFETY: what is refused is not registered.
        let refused = unsafe { rig.stager.memory(host.as_ptr().addr() as u64, CHUNK) };
        assert!(matches!(refused, Err(NoStage::Foreign { .. })), "{refused:?}");
        // SAFETY: as above.
        assert!(unsafe { rig.stager.memory(rig.memory.address() + 1, 64 * CHUNK) }.is_err());
        assert!(rig.fetch(0, 63 * CHUNK + 1, CHUNK).recv_timeout(PATIENCE).unwrap().is_err());
        assert!(rig.fetch(0, 0, CHUNK + 1).recv_timeout(PATIENCE).unwrap().is_err());
    }

    #[test]
    fn what_stands_in_line_ends_with_the_staging() {
        let Rig { stager, regions, region, memory, device } = rig(2, Watch::Callback);
        let access = region.access(0, 8).unwrap();
        let mut loans = Vec::new();
        while loans.len() < 2 {
            let (tell, told) = channel();
            match stager.lend(&access, 8, Box::new(move || tell.send(()).unwrap_or_default())) {
                Some(loan) => loans.push(loan),
                None => told.recv_timeout(PATIENCE).unwrap(),
            }
        }
        let (tell, told) = channel();
        assert!(stager.lend(&access, 8, Box::new(move || tell.send(()).unwrap_or_default())).is_none());
        drop(access);
        region.close();
        regions.remove(&region, now() + PATIENCE).unwrap();
        drop((region, stager));
        told.recv_timeout(PATIENCE).unwrap();
        drop((loans, memory));
        assert_eq!(device.pinned_bytes(), 0, "all pinned memory is given back");
    }
}
