//! Accesses behind the end of a file that became shorter while it was mapped.
//!
//! The kernel answers them with SIGBUS, which ends a process. Here the mapping from the page of the access on becomes private
//! zeroed memory, and the access is made again: its bytes are not those that were put, which their checksum tells, and the
//! process goes on. Shared-memory pools of Wayland (`wl_shm_buffer_begin_access`) live with their clients in the same way.
//!
//! The handler is installed with the first mapping of a file. What is no access to such a mapping goes to the handler that
//! was there before, or ends the process.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use libc::{c_int, c_void};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// Mappings of files that there may be at a time.
const GUARDED_MAX: usize = 256;

static SLOTS: [Slot; GUARDED_MAX] = [const { Slot::new() }; GUARDED_MAX];
/// Held while a slot is taken.
static TAKING: Mutex<()> = Mutex::new(());
/// The handler that was there before, once ours is.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A guarded range of addresses; a free one ends at 0.
struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    page: AtomicUsize,
    /// Where what is still of the file ends.
    whole: AtomicUsize,
}

/// A mapping of a file whose accesses behind the end of the file do no harm, until this is dropped.
#[derive(Debug)]
pub(crate) struct Guarded(usize);

impl Guarded {
    /// Guards `bytes` bytes from `start` on, in pages of `page` bytes.
    ///
    /// # Errors
    /// When too many are guarded, or there can be no handler.
    pub(crate) fn new(start: NonNull<u8>, bytes: usize, page: usize) -> io::Result<Self> {
        let _taking = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
        install()?;
        let free = |slot: &Slot| slot.end.load(Ordering::Relaxed) == 0;
        let Some(index) = SLOTS.iter().position(free) else {
            let many = format!("{GUARDED_MAX} files are mapped already");
            return Err(io::Error::other(many));
        };
        let slot = &SLOTS[index];
        let start = start.as_ptr().expose_provenance();
        slot.whole.store(start + bytes, Ordering::Relaxed);
        slot.page.store(page, Ordering::Relaxed);
        slot.start.store(start, Ordering::Relaxed);
        // Last: from here on the handler finds it.
        slot.end.store(start + bytes, Ordering::Release);
        Ok(Self(index))
    }

    /// Whether a part of it became zeros.
    pub(crate) fn is_cut(&self) -> bool {
        let slot = &SLOTS[self.0];
        slot.whole.load(Ordering::Acquire) < slot.end.load(Ordering::Acquire)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        SLOTS[self.0].end.store(0, Ordering::Release);
    }
}

impl Slot {
    const fn new() -> Self {
        Self {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            page: AtomicUsize::new(0),
            whole: AtomicUsize::new(0),
        }
    }

    /// Makes memory of what lies behind the page of `address`, if that is here.
    fn mend(&self, address: usize) -> bool {
        let end = self.end.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Acquire);
        let page = self.page.load(Ordering::Acquire);
        // A slot that changed hands meanwhile is not the one of this access, whose mapping is there as long as it lasts.
        if !(start..end).contains(&address) || self.end.load(Ordering::Acquire) != end {
            return false;
        }
        let from = address - (address - start) % page;
        let whole = self.whole.load(Ordering::Acquire);
        if from >= whole {
            // Another thread has mended it since the access.
            return true;
        }
        // All that follows too, so that the mapping never falls into more than two parts.
        // SAFETY: the range is a part of a mapping of ours that the interrupted thread uses, so that it is there. Nothing but
        // its bytes changes, of which nobody relies on more than their checksum. The call allocates and locks nothing.
        let mended = unsafe {
            mmap_anonymous(
                std::ptr::with_exposed_provenance_mut(from),
                whole - from,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
            )
        };
        if mended.is_ok() {
            self.whole.fetch_min(from, Ordering::AcqRel);
        }
        mended.is_ok()
    }
}

/// Has SIGBUS come here.
fn install() -> io::Result<()> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    // SAFETY: all zeros are a value of this structure of numbers.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = (on_bus_error as *const ()).expose_provenance();
    // On the thread's stack for signals, if it has one.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: asks for the handler that is there, into a structure of ours.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Before the handler can run.
    let _ = BEFORE.set(before);
    // SAFETY: the handler has the signature of these flags, and calls nothing that a signal must not.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a filled structure to a handler with these flags.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr()) };
    let address = address.expose_provenance();
    let behind_the_end = code == libc::BUS_ADRERR;
    if behind_the_end && SLOTS.iter().any(|slot| slot.mend(address)) {
        return;
    }
    pass_on(signal, info, context);
}

/// To the handler that was there before; without one the process ends as it would have.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let before = BEFORE.get();
    let handler = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    if handler != libc::SIG_DFL && handler != libc::SIG_IGN {
        let takes_information = before.is_some_and(|it| it.sa_flags & libc::SA_SIGINFO != 0);
        let handler = std::ptr::with_exposed_provenance::<()>(handler);
        if takes_information {
            // SAFETY: installed with these flags, a handler has this signature.
            let handler = unsafe { std::mem::transmute::<*const (), Informed>(handler) };
            handler(signal, info, context);
        } else {
            // SAFETY: as above, without them.
            let handler = unsafe { std::mem::transmute::<*const (), Plain>(handler) };
            handler(signal);
        }
        return;
    }
    // SAFETY: all zeros are a value of this structure of numbers, that of the default action.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: sets the default action, and sends a signal to this thread, which takes it when the handler returns: an access
    // is also made again, but what was sent would be lost.
    unsafe {
        libc::sigaction(signal, &raw const default, std::ptr::null_mut());
        libc::raise(signal);
    }
}

type Informed = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
type Plain = extern "C" fn(c_int);
