use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use cudarc::driver::result::{self, DriverError, device, event, primary_ctx, stream};
use cudarc::driver::sys;
use slackwater_engine::Location;

use super::device::{CopyId, CopyQueue, Device, DeviceCopy, DeviceError, Pinned};

/// A GPU, through the CUDA driver of this machine, which is looked for at run time: nothing of CUDA is needed to build.
///
/// It uses the primary context of the device, which is that of PyTorch and everything else on the runtime API, so
/// pointers from there are valid here.
pub struct CudaDevice {
    context: Arc<Context>,
    name: String,
}

struct Context {
    ordinal: u32,
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: a context may be current to any number of threads at a time (CUDA driver API, "Context Management").
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

struct CudaQueue {
    context: Arc<Context>,
    stream: sys::CUstream,
    flights: Mutex<Flights>,
}

// SAFETY: streams and events may be used by any thread whose current context is theirs; each call here sees to that.
unsafe impl Send for CudaQueue {}
// SAFETY: as above; the driver itself serialises calls.
unsafe impl Sync for CudaQueue {}

#[derive(Default)]
struct Flights {
    next: u64,
    under_way: BTreeMap<CopyId, sys::CUevent>,
    /// Events of copies that are over, to be recorded again.
    spare: Vec<sys::CUevent>,
}

struct PinnedBytes {
    context: Arc<Context>,
    at: *mut c_void,
}

// SAFETY: it only frees the memory, which any thread may.
unsafe impl Send for PinnedBytes {}

impl CudaDevice {
    /// How many CUDA devices there are.
    ///
    /// # Errors
    /// There is no driver, or it does not work; the reason is text for the operator.
    pub fn count() -> Result<u32, DeviceError> {
        let unavailable = |reason: String| DeviceError::Unavailable {
            device: "cuda".to_owned(),
            reason,
        };
        // SAFETY: opens the driver's library and closes it again; its constructors are those of the driver.
        if !unsafe { sys::is_culib_present() } {
            return Err(unavailable(
                "no CUDA driver library (libcuda) on this machine".to_owned(),
            ));
        }
        result::init()
            .map_err(|error| unavailable(format!("the CUDA driver does not start: {error}")))?;
        let count = device::get_count()
            .map_err(|error| unavailable(format!("asking for devices: {error}")))?;
        Ok(count.unsigned_abs())
    }

    /// Opens the device with this number.
    ///
    /// # Errors
    /// There is no driver, no such device, or no context on it.
    pub fn open(ordinal: u32) -> Result<Self, DeviceError> {
        let name = format!("cuda:{ordinal}");
        let unavailable = |reason: String| DeviceError::Unavailable {
            device: name.clone(),
            reason,
        };
        let count = Self::count()?;
        if ordinal >= count {
            return Err(unavailable(format!(
                "this machine has {count} CUDA devices"
            )));
        }
        let refused = |error: DriverError| unavailable(error.to_string());
        let device = device::get(ordinal.cast_signed()).map_err(refused)?;
        // SAFETY: the device was just given; the context is released once, when the last user is dropped.
        let context = unsafe { primary_ctx::retain(device) }.map_err(refused)?;
        Ok(Self {
            context: Arc::new(Context {
                ordinal,
                device,
                context,
            }),
            name,
        })
    }
}

/// Memory of a [`CudaDevice`]. Freed when dropped.
pub struct CudaMemory {
    context: Arc<Context>,
    address: u64,
    len: usize,
}

impl CudaDevice {
    /// Takes `len` bytes of device memory. What is in it is not defined.
    ///
    /// # Errors
    /// The device has no more.
    pub fn allocate(&self, len: usize) -> Result<CudaMemory, DeviceError> {
        let _inside = self.context.enter()?;
        // SAFETY: the memory is freed once, when the value is dropped.
        let address = unsafe { result::malloc_sync(len) }
            .map_err(|error| self.context.failed("allocating", error))?;
        Ok(CudaMemory {
            context: Arc::clone(&self.context),
            address,
            len,
        })
    }
}

impl CudaMemory {
    /// The first byte, as the device counts.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        if let Ok(_inside) = self.context.enter() {
            // SAFETY: it came from `malloc_sync` and is freed once.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

impl fmt::Debug for CudaMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaMemory")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// While it lives, a context is current to this thread. The thread may be the caller's, which has work on another device:
/// what was current to it before is so again afterwards.
struct Inside(PhantomData<*const ()>);

impl Drop for Inside {
    fn drop(&mut self) {
        let mut popped = std::ptr::null_mut();
        // SAFETY: takes off what `enter` put on this thread, which the value has not left: it is not `Send`.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&raw mut popped) };
    }
}

impl Context {
    /// Makes the context current to this thread: every call below acts on that.
    #[must_use = "the context is current as long as this lives"]
    fn enter(&self) -> Result<Inside, DeviceError> {
        // SAFETY: the context is retained as long as `self` lives.
        let entered = unsafe { sys::cuCtxPushCurrent_v2(self.context) }.result();
        entered
            .map(|()| Inside(PhantomData))
            .map_err(|error| self.failed("entering the context", error))
    }

    fn failed(&self, operation: &'static str, error: DriverError) -> DeviceError {
        DeviceError::Failed {
            device: format!("cuda:{}", self.ordinal),
            operation,
            cause: error.to_string(),
        }
    }

    /// One attribute of a pointer; `None` if CUDA does not know the pointer.
    fn attribute<T: Default>(
        &self,
        which: sys::CUpointer_attribute,
        address: u64,
    ) -> Result<Option<T>, DeviceError> {
        let mut value = T::default();
        // SAFETY: the attributes asked for below have the size of the `T` named there.
        let asked = unsafe { sys::cuPointerGetAttribute((&raw mut value).cast(), which, address) };
        match asked {
            sys::CUresult::CUDA_ERROR_INVALID_VALUE => Ok(None),
            other => {
                other
                    .result()
                    .map_err(|error| self.failed("asking for a pointer", error))?;
                Ok(Some(value))
            }
        }
    }
}

impl Device for CudaDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn location(&self) -> Location {
        Location::Cuda(self.context.ordinal)
    }

    fn owns(&self, address: u64, len: u64) -> Result<bool, DeviceError> {
        use sys::CUpointer_attribute as Attribute;
        let context = &self.context;
        let _inside = context.enter()?;
        let Some(kind) =
            context.attribute::<u32>(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)?
        else {
            return Ok(false);
        };
        let ordinal =
            context.attribute::<i32>(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)?;
        if kind != sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32
            || ordinal != Some(context.ordinal.cast_signed())
        {
            return Ok(false);
        }
        let start =
            context.attribute::<u64>(Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address)?;
        let size =
            context.attribute::<usize>(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, address)?;
        let (Some(start), Some(size)) = (start, size) else {
            return Ok(false);
        };
        let end = address.checked_add(len);
        Ok(end.is_some_and(|end| end <= start.saturating_add(size as u64)))
    }

    fn pin(&self, len: usize) -> Result<Pinned, DeviceError> {
        let _inside = self.context.enter()?;
        // SAFETY: the memory is freed once, by the guard.
        let at = unsafe { result::malloc_host(len, sys::CU_MEMHOSTALLOC_PORTABLE) }
            .map_err(|error| self.context.failed("pinning memory", error))?;
        let release = PinnedBytes {
            context: Arc::clone(&self.context),
            at,
        };
        let pinned = at.cast::<u8>();
        // SAFETY: fresh memory of that length, which the driver gives without clearing it.
        unsafe { std::ptr::write_bytes(pinned, 0, len) };
        // SAFETY: it is nobody else's until the guard frees it.
        Ok(unsafe { Pinned::new(pinned, len, Box::new(release)) })
    }

    fn queue(&self) -> Result<Arc<dyn CopyQueue>, DeviceError> {
        let _inside = self.context.enter()?;
        let stream = stream::create(stream::StreamKind::NonBlocking)
            .map_err(|error| self.context.failed("making a stream", error))?;
        Ok(Arc::new(CudaQueue {
            context: Arc::clone(&self.context),
            stream,
            flights: Mutex::default(),
        }))
    }
}

impl CudaQueue {
    fn flights(&self) -> MutexGuard<'_, Flights> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an event behind the copies begun so far.
    fn record(&self, flights: &mut Flights) -> Result<sys::CUevent, DriverError> {
        let mark = match flights.spare.pop() {
            Some(spare) => spare,
            None => event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?,
        };
        // SAFETY: both are of this queue and live.
        let recorded = unsafe { event::record(mark, self.stream) };
        if let Err(error) = recorded {
            flights.spare.push(mark);
            return Err(error);
        }
        Ok(mark)
    }
}

impl CopyQueue for CudaQueue {
    unsafe fn begin(&self, copy: DeviceCopy) -> Result<CopyId, DeviceError> {
        let _inside = self.context.enter()?;
        let mut flights = self.flights();
        let begun = match copy {
            // SAFETY: both ranges are valid until the end is told, by the caller's promise.
            DeviceCopy::ToHost { host, device, len } => unsafe {
                sys::cuMemcpyDtoHAsync_v2(host.cast(), device, len, self.stream)
            },
            // SAFETY: as above.
            DeviceCopy::ToDevice { device, host, len } => unsafe {
                sys::cuMemcpyHtoDAsync_v2(device, host.cast(), len, self.stream)
            },
        };
        begun
            .result()
            .map_err(|error| self.context.failed("beginning a copy", error))?;
        match self.record(&mut flights) {
            Ok(mark) => {
                flights.next += 1;
                let ticket = CopyId(flights.next);
                flights.under_way.insert(ticket, mark);
                Ok(ticket)
            }
            Err(error) => {
                // The copy runs without an event to find its end by: it is waited for here.
                // SAFETY: the stream is of this queue and live.
                let _ = unsafe { stream::synchronize(self.stream) };
                Err(self.context.failed("marking a copy", error))
            }
        }
    }

    fn poll(&self, ticket: CopyId) -> Poll<Result<(), DeviceError>> {
        let _inside = match self.context.enter() {
            Ok(inside) => inside,
            Err(error) => {
                // The context is destroyed, by a reset of the device or the end of the process: with it, all its work.
                self.flights().under_way.remove(&ticket);
                return Poll::Ready(Err(error));
            }
        };
        let mut flights = self.flights();
        let Some(&mark) = flights.under_way.get(&ticket) else {
            let unknown = DriverError(sys::CUresult::CUDA_ERROR_INVALID_HANDLE);
            return Poll::Ready(Err(self.context.failed("asking for a copy", unknown)));
        };
        // SAFETY: the event is of this queue and live.
        let asked = unsafe { event::query(mark) };
        if asked == Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) {
            return Poll::Pending;
        }
        flights.under_way.remove(&ticket);
        flights.spare.push(mark);
        // An error is that of this copy or of one before it; the driver keeps what broke the context for every call.
        Poll::Ready(asked.map_err(|error| self.context.failed("copying", error)))
    }

    fn wake_after(&self, wake: Box<dyn FnOnce() + Send>) -> Result<(), DeviceError> {
        let _inside = self.context.enter()?;
        let argument = Box::into_raw(Box::new(wake));
        // SAFETY: the function takes the box back, once; it makes no CUDA call, as its contract demands.
        let launched = unsafe { stream::launch_host_function(self.stream, call, argument.cast()) };
        launched.map_err(|error| {
            // SAFETY: the driver refused, so it will not call.
            drop(unsafe { Box::from_raw(argument) });
            self.context.failed("asking to be woken", error)
        })
    }
}

/// What the driver calls: runs the wake in the box.
///
/// # Safety
/// `argument` is a box of a wake that nobody else has.
unsafe extern "C" fn call(argument: *mut c_void) {
    // SAFETY: the caller's promise.
    let wake = unsafe { Box::from_raw(argument.cast::<Box<dyn FnOnce() + Send>>()) };
    // A panic that left this function would end the process.
    let _ = catch_unwind(AssertUnwindSafe(wake));
}

impl Drop for CudaQueue {
    fn drop(&mut self) {
        let Ok(_inside) = self.context.enter() else {
            return;
        };
        let flights = self
            .flights
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for mark in flights.under_way.values().chain(&flights.spare) {
            // SAFETY: the events are of this queue and destroyed once.
            let _ = unsafe { event::destroy(*mark) };
        }
        // SAFETY: the stream is of this queue and destroyed once; what it still carries runs out first, wakes among it.
        let _ = unsafe { stream::destroy(self.stream) };
    }
}

impl Drop for PinnedBytes {
    fn drop(&mut self) {
        if let Ok(_inside) = self.context.enter() {
            // SAFETY: the memory came from `malloc_host` and is freed once.
            let _ = unsafe { result::free_host(self.at) };
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once by `open`; nothing that needs it is left.
        let _ = unsafe { primary_ctx::release(self.device) };
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDevice")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_the_device_says_why() {
        let Err(error) = CudaDevice::open(4096) else {
            panic!("no machine has that many")
        };
        let DeviceError::Unavailable { reason, .. } = error else {
            panic!("{error}")
        };
        assert!(!reason.is_empty());
    }
}
