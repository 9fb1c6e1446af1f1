use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slackwater_mq::{AllowList, load_key};
use slackwater_transfer::{
    Batch, BatchError, Capability, Cause, Engine, EngineConfig, EngineError, GrantSpec, LocalRange,
    Location, Memory, Notice, Op, PeerId, Priority, RegionId, RegionSpec, Request, Rights,
    SealConfig, Segment, StartError, Submit, Target,
};
use slackwater_wait::{Hook, Site, Waiting};
use slackwater_wire::{Class, ErrorCode, Incarnation};

use crate::status::{Failure, guard, quietly, sw_status};
use crate::values::{
    Context, SW_FOREVER, at, deadline, give, list, optional, optional_path, optional_text, places,
    sw_buffer, sw_bytes, take, text,
};

/// Moves bytes between registered memory of this process and of others. Any thread may use it; none may while it is closed.
pub struct sw_engine {
    engine: Engine,
    books: Mutex<Books>,
}

/// Regions and peers, by the numbers that callers know them by.
#[derive(Default)]
struct Books {
    last: u64,
    regions: BTreeMap<u64, (RegionId, u64)>,
    peers: BTreeMap<u64, PeerId>,
}

/// Transfers that were submitted together.
pub struct sw_batch(Batch);

/// Notices that peers sent.
pub struct sw_notices(Vec<(Incarnation, Notice)>);

/// Registered memory of this process.
pub type sw_region = u64;
/// An engine of another process.
pub type sw_peer = u64;

/// Bytes of a capability.
pub const SW_CAPABILITY_BYTES: usize = 88;
const _: () = assert!(SW_CAPABILITY_BYTES == Capability::BYTES);

/// Peers may read.
pub const SW_READ: u32 = 1;
/// Peers may write.
pub const SW_WRITE: u32 = 2;

/// The right to reach a range of a peer's region. It means nothing to anyone but the engine that granted it, so it may be
/// sent as it is to whom it is meant for, and to nobody else.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sw_capability {
    /// Opaque.
    pub data: [u8; SW_CAPABILITY_BYTES],
}

/// What an engine is started with. All zero is one that only initiates.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sw_engine_options {
    /// Its name; null for `engine`.
    pub name: *const c_char,
    /// Where peers reach it, `IP:PORT` with port 0 for a free one; null for an engine that only initiates. An address that
    /// other machines reach needs a key.
    pub listen: *const c_char,
    /// The file of its secret key: every connection is encrypted then; null for none.
    pub key_file: *const c_char,
    /// The file of the keys that may connect; null for none. Needs `key_file`.
    pub allow_list: *const c_char,
    /// Event loops; 0 for the default.
    pub io_threads: u32,
    /// Nothing but TCP, not even within this machine.
    pub force_tcp: bool,
}

/// One transfer: between a range of our region and as many bytes of a peer's.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sw_transfer {
    /// Whether the peer's bytes are written; they are read otherwise.
    pub write: bool,
    /// Our region.
    pub region: sw_region,
    /// Offset of its first byte in our region, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
    /// The engine that has the other range.
    pub peer: sw_peer,
    /// Offset of its first byte in the region of the peer, in bytes.
    pub peer_offset: u64,
    /// What its owner granted.
    pub capability: sw_capability,
}

/// Called once when a batch is over, on any thread; it must not block.
pub type sw_ended = Option<unsafe extern "C" fn(context: *mut c_void)>;

static BATCHES: Site = Site::new("c, batches");

/// Starts an engine.
///
/// # Safety
/// `options` is null or valid, with its texts; `engine` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_engine_start(
    options: *const sw_engine_options,
    engine: *mut *mut sw_engine,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let config = unsafe { engine_config(options) }?;
        let started = config.start().map_err(not_started)?;
        let books = Mutex::default();
        let started = sw_engine {
            engine: started,
            books,
        };
        // SAFETY: as the caller promises.
        unsafe { give(engine, started, "engine") }
    })
}

/// Ends all transfers of an engine and closes it; null is nothing. No call of it may be under way. When it returns, nothing
/// touches the memory of its regions any more.
///
/// # Safety
/// `engine` is null or came from `sw_engine_start`, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_engine_close(engine: *mut sw_engine) {
    quietly(|| {
        // SAFETY: as the caller promises.
        let Some(engine) = (unsafe { take(engine) }) else {
            return;
        };
        let regions: Vec<RegionId> = engine.books().regions.values().map(|(id, _)| *id).collect();
        // What peers have under way is ended first, so that their copies do not outlive the caller's memory.
        for region in regions {
            let _ = engine.engine.unregister(region, CLOSING);
        }
        engine.engine.close();
    });
}

/// How long the end of one region may take at the close of its engine.
const CLOSING: Duration = Duration::from_secs(30);

/// Writes the description that others open this engine by, a line of text without a zero byte, into `into` and says its
/// length. `SW_TOO_SMALL`, with the length that is needed, when it does not fit.
///
/// # Safety
/// Pointers are valid, with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_engine_segment(
    engine: *const sw_engine,
    into: sw_buffer,
    bytes: *mut usize,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (engine, into, bytes) = unsafe {
            let engine = at(engine, "engine")?;
            (engine, into.slice("into")?, places(bytes, 1, "bytes")?)
        };
        let segment = serde_json::to_vec(engine.engine.segment())
            .map_err(|error| Failure::new(ErrorCode::SerializeFail, error))?;
        bytes.fill(segment.len());
        let (have, need) = (into.len(), segment.len());
        let Some(front) = into.get_mut(..need) else {
            let text = format_args!("the description has {need} bytes, the buffer {have}");
            return Err(Failure::new(ErrorCode::BufferOverflow, text));
        };
        front.copy_from_slice(&segment);
        Ok(())
    })
}

/// Registers memory of the caller, which must stay until it is unregistered or the engine is closed. `rights` is the most
/// that peers may ever be granted: `SW_READ`, `SW_WRITE`, or both.
///
/// # Safety
/// `memory` is valid for reads and writes until then, and the caller expects its bytes to change when peers may write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_engine_register(
    engine: *const sw_engine,
    memory: sw_buffer,
    rights: u32,
    region: *mut sw_region,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (engine, region) = unsafe { (at(engine, "engine")?, places(region, 1, "region")?) };
        let start = NonNull::new(memory.data.cast::<u8>())
            .ok_or_else(|| Failure::invalid("memory is null"))?;
        if isize::try_from(memory.bytes).is_err() {
            return Err(Failure::invalid(format_args!(
                "memory: {} bytes are too many",
                memory.bytes
            )));
        }
        // SAFETY: as the caller promises.
        let memory = unsafe { Memory::borrowed(start, memory.bytes, Location::Host) };
        region.fill(engine.register(memory, rights)?);
        Ok(())
    })
}

/// Registers fresh zeroed memory of the library, which processes of this machine reach without a copy by the kernel. It
/// goes when it is unregistered or the engine is closed.
///
/// # Safety
/// Pointers are valid, with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_engine_allocate(
    engine: *const sw_engine,
    bytes: usize,
    rights: u32,
    region: *mut sw_region,
    memory: *mut *mut c_void,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (engine, region, place) = unsafe {
            let engine = at(engine, "engine")?;
            (
                engine,
                places(region, 1, "region")?,
                places(memory, 1, "memory")?,
            )
        };
        let memory = Memory::shared(bytes)
            .map_err(|error| Failure::new(ErrorCode::NoAvailableHandle, error))?;
        let start = memory.start();
        region.fill(engine.register(memory, rights)?);
        place.fill(start.as_ptr().cast());
        Ok(())
    })
}

/// Unregisters a region: peers are refused from now on, and when this succeeds nothing touches its memory any more. After
/// `SW_TIMED_OUT` accesses are still under way, and another call goes on.
///
/// # Safety
/// `engine` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_engine_unregister(
    engine: *const sw_engine,
    region: sw_region,
    timeout: u64,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let engine = unsafe { at(engine, "engine") }?;
        let (id, _) = engine.region(region)?;
        engine
            .engine
            .unregister(id, Duration::from_nanos(timeout))
            .map_err(refused)?;
        engine.books().regions.remove(&region);
        Ok(())
    })
}

/// Grants a range of a region to the bearer of the capability: `rights` as in `sw_engine_register`, for `ttl` nanoseconds,
/// or until the region goes when that is `SW_FOREVER`.
///
/// # Safety
/// Pointers are valid, with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_engine_grant(
    engine: *const sw_engine,
    region: sw_region,
    offset: u64,
    bytes: u64,
    rights: u32,
    ttl: u64,
    capability: *mut sw_capability,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (engine, capability) = unsafe {
            let engine = at(engine, "engine")?;
            (engine, places(capability, 1, "capability")?)
        };
        let (id, length) = engine.region(region)?;
        if offset.checked_add(bytes).is_none_or(|end| end > length) {
            return Err(Failure::invalid(format_args!(
                "{bytes} bytes from {offset} are not all in a region of {length}"
            )));
        }
        let spec = GrantSpec {
            offset,
            bytes,
            rights: rights_of(rights)?,
            tenant: 0,
            holder: Incarnation(0),
            ttl: (ttl != SW_FOREVER).then(|| Duration::from_nanos(ttl)),
        };
        let granted = engine.engine.grant(id, &spec).map_err(refused)?;
        capability.fill(sw_capability {
            data: granted.to_bytes(),
        });
        Ok(())
    })
}

/// Opens an engine by its description; nothing is connected yet. The same description opened again is the same peer.
///
/// # Safety
/// Pointers are valid, with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_engine_open(
    engine: *const sw_engine,
    segment: sw_bytes,
    peer: *mut sw_peer,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (engine, segment, peer) = unsafe {
            let engine = at(engine, "engine")?;
            (engine, segment.slice("segment")?, places(peer, 1, "peer")?)
        };
        let segment: Segment = serde_json::from_slice(segment).map_err(|error| {
            Failure::invalid(format_args!("segment is no description: {error}"))
        })?;
        // Another thread that forgets the peer does so before or after both.
        let mut books = engine.books();
        let id = engine.engine.open(segment);
        let known = books.peers.iter().find(|(_, known)| **known == id);
        let number = match known.map(|(number, _)| *number) {
            Some(number) => number,
            None => {
                let number = books.number();
                books.peers.insert(number, id);
                number
            }
        };
        peer.fill(number);
        Ok(())
    })
}

/// Forgets a peer. Transfers under way go on.
///
/// # Safety
/// `engine` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_engine_forget(engine: *const sw_engine, peer: sw_peer) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let engine = unsafe { at(engine, "engine") }?;
        let mut books = engine.books();
        let id = books.peers.remove(&peer);
        engine.engine.forget(id.ok_or_else(|| no_peer(peer))?);
        Ok(())
    })
}

/// Finds out whether a peer answers, within `timeout` nanoseconds.
///
/// # Safety
/// `engine` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_engine_probe(
    engine: *const sw_engine,
    peer: sw_peer,
    timeout: u64,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let engine = unsafe { at(engine, "engine") }?;
        let (peer, timeout) = (engine.peer(peer)?, Duration::from_nanos(timeout));
        engine.engine.probe(peer, timeout).map_err(ended)
    })
}

/// Reads a peer's bytes into memory that need not be registered, while the caller waits. On failure the contents of the
/// memory are of no meaning.
///
/// # Safety
/// Pointers are valid, with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_engine_read(
    engine: *const sw_engine,
    peer: sw_peer,
    offset: u64,
    capability: *const sw_capability,
    into: sw_buffer,
    timeout: u64,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (engine, capability, into) = unsafe {
            let engine = at(engine, "engine")?;
            (engine, at(capability, "capability")?, into.slice("into")?)
        };
        let target = engine.target(peer, offset, capability)?;
        let timeout = Duration::from_nanos(timeout);
        engine
            .engine
            .read_now(&target, into, timeout)
            .map_err(caused)
    })
}

/// Writes a peer's bytes from memory that need not be registered, while the caller waits. On failure the contents of the
/// peer's memory are of no meaning.
///
/// # Safety
/// Pointers are valid, with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_engine_write(
    engine: *const sw_engine,
    peer: sw_peer,
    offset: u64,
    capability: *const sw_capability,
    from: sw_bytes,
    timeout: u64,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (engine, capability, from) = unsafe {
            let engine = at(engine, "engine")?;
            (engine, at(capability, "capability")?, from.slice("from")?)
        };
        let target = engine.target(peer, offset, capability)?;
        let timeout = Duration::from_nanos(timeout);
        engine
            .engine
            .write_now(&target, from, timeout)
            .map_err(caused)
    })
}

/// Submits `count` transfers, which may take `timeout` nanoseconds, and returns. The batch is given back with
/// `sw_batch_free`.
///
/// # Safety
/// Pointers are valid for `count`, with what they point to. The regions' memory stays until the batch is over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_engine_submit(
    engine: *const sw_engine,
    count: usize,
    transfers: *const sw_transfer,
    timeout: u64,
    batch: *mut *mut sw_batch,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (engine, transfers) = unsafe {
            let engine = at(engine, "engine")?;
            (engine, list(transfers, count, "transfers")?)
        };
        let requests: Result<Vec<Request>, Failure> =
            transfers.iter().map(|one| engine.request(one)).collect();
        let submit = Submit {
            timeout: Duration::from_nanos(timeout),
            ..Submit::default()
        };
        let submitted = engine.engine.submit(requests?, &submit);
        // SAFETY: as the caller promises.
        unsafe { give(batch, sw_batch(submitted), "batch") }
    })
}

/// Waits until every transfer of a batch has ended. After `timeout` nanoseconds it cancels the batch and waits until its
/// memory is released, so that nothing touches it when this returns, however it ends.
///
/// # Safety
/// `batch` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_batch_wait(batch: *const sw_batch, timeout: u64) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let batch = unsafe { at(batch, "batch") }?;
        let waiting = Waiting::at(&BATCHES).until(deadline(timeout));
        batch.0.wait(&waiting).map_err(ended)
    })
}

/// Whether every transfer of a batch has ended; false for null.
///
/// # Safety
/// `batch` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_batch_is_done(batch: *const sw_batch) -> bool {
    // SAFETY: as the caller promises.
    unsafe { at(batch, "batch") }.is_ok_and(|batch| batch.0.is_done())
}

/// The outcome of one transfer of a batch that is over, and the bytes that are known to have arrived. `bytes` may be null.
///
/// # Safety
/// Pointers are valid, with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_batch_outcome(
    batch: *const sw_batch,
    index: usize,
    bytes: *mut u64,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let batch = unsafe { at(batch, "batch") }?;
        let outcome = batch.0.outcome(index).ok_or_else(|| {
            let text = format_args!("transfer {index} is not over, or not in this batch");
            Failure::new(ErrorCode::UnavailableInCurrentStatus, text)
        })?;
        if !bytes.is_null() {
            // SAFETY: as the caller promises.
            unsafe { places(bytes, 1, "bytes") }?.fill(outcome.bytes);
        }
        outcome.cause.map_or(Ok(()), |cause| Err(caused(cause)))
    })
}

/// Asks for the end of a batch, which comes soon: `sw_batch_wait` returns then.
///
/// # Safety
/// `batch` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_batch_cancel(batch: *const sw_batch) {
    quietly(|| {
        // SAFETY: as the caller promises.
        if let Ok(batch) = unsafe { at(batch, "batch") } {
            batch.0.cancel();
        }
    });
}

/// Has a function called once when a batch is over, or now if it is: to set an eventfd, for one. Waiters may return before it
/// does. A batch has one at most.
///
/// # Safety
/// `batch` is valid; `call` may be called with `context` on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_batch_on_end(
    batch: *const sw_batch,
    call: sw_ended,
    context: *mut c_void,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let batch = unsafe { at(batch, "batch") }?;
        // The function may give the handle back.
        let batch = batch.0.clone();
        // SAFETY: as the caller promises.
        let hook = unsafe { hook(call, context) }?;
        batch.hook(hook).map_err(Failure::invalid)
    })
}

/// Gives a batch back; null is nothing. Transfers that are still under way are cancelled and waited for, a function of
/// `sw_batch_on_end` is not.
///
/// # Safety
/// `batch` is null or came from `sw_engine_submit`, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_batch_free(batch: *mut sw_batch) {
    quietly(|| {
        // SAFETY: as the caller promises.
        if let Some(batch) = unsafe { take(batch) }
            && !batch.0.is_done()
        {
            batch.0.cancel();
            let _ = batch.0.watch(&Waiting::at(&BATCHES));
        }
    });
}

/// Sends a notice to a peer, and returns when the peer has it.
///
/// # Safety
/// Pointers are valid, with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_engine_notify(
    engine: *const sw_engine,
    peer: sw_peer,
    name: *const c_char,
    content: sw_bytes,
    timeout: u64,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (engine, name, content) = unsafe {
            let engine = at(engine, "engine")?;
            (engine, text(name, "name")?, content.slice("content")?)
        };
        let notice = Notice {
            name: name.to_owned(),
            bytes: content.to_vec(),
        };
        let (peer, timeout) = (engine.peer(peer)?, Duration::from_nanos(timeout));
        engine.engine.notify(peer, notice, timeout).map_err(ended)
    })
}

/// Takes the notices that peers sent; waits for the first for `timeout` nanoseconds. They are given back with
/// `sw_notices_free`.
///
/// # Safety
/// Pointers are valid, with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_engine_notices(
    engine: *const sw_engine,
    timeout: u64,
    notices: *mut *mut sw_notices,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let engine = unsafe { at(engine, "engine") }?;
        let taken = engine.engine.take_notices(deadline(timeout));
        // SAFETY: as the caller promises.
        unsafe { give(notices, sw_notices(taken), "notices") }
    })
}

/// How many notices there are; 0 for null.
///
/// # Safety
/// `notices` is null or came from `sw_engine_notices`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_notices_count(notices: *const sw_notices) -> usize {
    // SAFETY: as the caller promises.
    unsafe { at(notices, "notices") }.map_or(0, |notices| notices.0.len())
}

/// The name and the content of a notice, as long as they are not given back; none beyond their end. Either may be null.
///
/// # Safety
/// Pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_notices_at(
    notices: *const sw_notices,
    index: usize,
    name: *mut sw_bytes,
    content: *mut sw_bytes,
) {
    quietly(|| {
        // SAFETY: as the caller promises.
        let notices = unsafe { at(notices, "notices") }.ok();
        let notice = notices.and_then(|notices| notices.0.get(index));
        let notice = notice.map(|(_, notice)| notice);
        let (its_name, its_content) =
            notice.map_or((&[][..], &[][..]), |it| (it.name.as_bytes(), &it.bytes[..]));
        for (place, bytes) in [(name, its_name), (content, its_content)] {
            if !place.is_null() {
                // SAFETY: as the caller promises.
                unsafe { place.write(sw_bytes::of(bytes)) };
            }
        }
    });
}

/// Gives notices back; null is nothing.
///
/// # Safety
/// `notices` is null or came from `sw_engine_notices`, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_notices_free(notices: *mut sw_notices) {
    // SAFETY: as the caller promises.
    quietly(|| drop(unsafe { take(notices) }));
}

/// What calls a function of the caller once.
///
/// # Safety
/// `call` may be called with `context` on any thread.
pub(crate) unsafe fn hook(call: sw_ended, context: *mut c_void) -> Result<Hook, Failure> {
    let call = call.ok_or_else(|| Failure::invalid("call is null"))?;
    let context = Context(context);
    Ok(Hook::Call(Box::new(move || {
        let context = context;
        // SAFETY: as the caller promises.
        unsafe { call(context.0) };
    })))
}

unsafe fn engine_config(options: *const sw_engine_options) -> Result<EngineConfig, Failure> {
    let mut config = EngineConfig::new("engine");
    config.tcp.bind = Vec::new();
    // SAFETY: as the caller promises.
    let Some(options) = unsafe { optional(options, "options") }? else {
        return Ok(config);
    };
    // SAFETY: as the caller promises.
    let (name, listen, key_file, allow_list) = unsafe {
        (
            optional_text(options.name, "name")?,
            optional_text(options.listen, "listen")?,
            optional_path(options.key_file, "key_file")?,
            optional_path(options.allow_list, "allow_list")?,
        )
    };
    if let Some(name) = name {
        config.name = name.to_owned();
    }
    if let Some(listen) = listen {
        let address = listen.parse();
        let address = address
            .map_err(|_| Failure::invalid(format_args!("listen: {listen} is not IP:PORT")))?;
        config.tcp.bind = vec![address];
    }
    config.tcp.seal = match (key_file, allow_list) {
        (None, None) => None,
        (None, Some(_)) => return Err(Failure::invalid("allow_list without key_file")),
        (Some(key_file), allow_list) => Some(SealConfig {
            keys: load_key(&key_file).map_err(Failure::invalid)?,
            clients: match allow_list {
                Some(path) => AllowList::load(&path).map_err(Failure::invalid)?,
                None => AllowList::default(),
            },
        }),
    };
    if options.io_threads > 0 {
        config.tcp.io_threads = options.io_threads as usize;
    }
    config.force_tcp = options.force_tcp;
    Ok(config)
}

impl Books {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

impl sw_engine {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register(&self, memory: Memory, rights: u32) -> Result<sw_region, Failure> {
        let spec = RegionSpec {
            memory,
            rights: rights_of(rights)?,
            gate: None,
        };
        let region = self
            .engine
            .register(spec)
            .map_err(|error| Failure::invalid(format_args!("memory: {error}")))?;
        let mut books = self.books();
        let number = books.number();
        books.regions.insert(number, (region.id(), region.bytes()));
        Ok(number)
    }

    fn region(&self, region: sw_region) -> Result<(RegionId, u64), Failure> {
        let known = self.books().regions.get(&region).copied();
        known.ok_or_else(|| Failure::invalid(format_args!("there is no region {region}")))
    }

    fn peer(&self, peer: sw_peer) -> Result<PeerId, Failure> {
        let known = self.books().peers.get(&peer).copied();
        known.ok_or_else(|| no_peer(peer))
    }

    fn target(
        &self,
        peer: sw_peer,
        offset: u64,
        capability: &sw_capability,
    ) -> Result<Target, Failure> {
        Ok(Target {
            peer: self.peer(peer)?,
            offset,
            capability: Capability::from_bytes(&capability.data),
            key: None,
        })
    }

    fn request(&self, one: &sw_transfer) -> Result<Request, Failure> {
        let (region, _) = self.region(one.region)?;
        Ok(Request {
            op: if one.write { Op::Write } else { Op::Read },
            local: vec![LocalRange {
                region,
                offset: one.offset,
                bytes: one.bytes,
            }],
            target: self.target(one.peer, one.peer_offset, &one.capability)?,
            timeout: None,
            priority: Priority::default(),
        })
    }
}

fn rights_of(rights: u32) -> Result<Rights, Failure> {
    match rights {
        SW_READ => Ok(Rights::READ),
        SW_WRITE => Ok(Rights::WRITE),
        both if both == SW_READ | SW_WRITE => Ok(Rights::BOTH),
        _ => Err(Failure::invalid(format_args!(
            "rights are SW_READ, SW_WRITE or both, not {rights}"
        ))),
    }
}

fn no_peer(peer: sw_peer) -> Failure {
    Failure::invalid(format_args!("there is no peer {peer}"))
}

fn refused(error: EngineError) -> Failure {
    let code = match &error {
        EngineError::StillBusy(_) => ErrorCode::DeadlinePassed,
        _ => ErrorCode::InvalidParams,
    };
    Failure::new(code, error)
}

fn not_started(error: StartError) -> Failure {
    let code = match &error {
        StartError::System(_) => ErrorCode::UnavailableInCurrentMode,
        StartError::Tcp(_) => ErrorCode::InvalidParams,
    };
    Failure::new(code, error)
}

fn caused(cause: Cause) -> Failure {
    let code = match &cause {
        Cause::Invalid(_) => ErrorCode::InvalidParams,
        Cause::TimedOut(_) => ErrorCode::DeadlinePassed,
        Cause::Cancelled => ErrorCode::Cancelled,
        Cause::Closed => ErrorCode::ShuttingDown,
        Cause::Full { .. } => ErrorCode::NoAvailableHandle,
        Cause::Unreachable(_) => ErrorCode::RpcFail,
        Cause::Refused(_) if cause.class() == Class::Refused => ErrorCode::RoleNotPermitted,
        _ => ErrorCode::TransferFail,
    };
    Failure::new(code, cause)
}

fn ended(error: BatchError) -> Failure {
    match error {
        BatchError::Failed(cause) => caused(cause),
        BatchError::TimedOut => Failure::new(ErrorCode::DeadlinePassed, error),
        BatchError::Cancelled => Failure::new(ErrorCode::Cancelled, error),
    }
}
