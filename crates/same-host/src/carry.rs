use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

use slackwater_base::{Checksum, Instant};
use slackwater_engine::{Buffers, Cause, Deadline, Job, Part, Remote};
use slackwater_pool::copy::{Isa, Stores, checksum, copy_checksum_with, copy_with};
use slackwater_pool::{Class, Kind, Pool};
use slackwater_wait::{failpoint, now};
use slackwater_wire::data::{Grant, Op, Refusal};

use super::cache_history::CacheHistory;
use super::copy_threads::CopyThreads;
use super::core::ENDED;
use super::page::Mark;
use super::process::Process;
use super::window::{OpenWindow, Reach};

/// The bytes copied between two checks of cancellation, deadline and epoch: some 60 µs.
const PIECE_BYTES: usize = 1 << 20;
/// Copies through the cache are cut into these: beyond, glibc's `memcpy` takes a way for what is not in the cache, which is
/// slower by a fifth where it is.
const CACHED_BYTES: usize = 256 << 10;
/// The smallest copy that is shared with the free threads of the pool.
const SHARED_BYTES_MIN: u64 = 8 << 20;

static COPY: Kind = Kind::new("host copy");

/// One request to copy.
pub(super) struct CopyRequest<'a> {
    pub(super) op: Op,
    pub(super) buffers: &'a Buffers,
    pub(super) remote: &'a Remote,
    pub(super) deadline: Instant,
    /// The part of a batch that it ends; none for a caller that waits in the call.
    pub(super) part: Option<&'a Part>,
    /// The bytes that were submitted with it, its own among them.
    pub(super) submitted_bytes: u64,
    /// The checksum of what is moved is wanted.
    pub(super) checksum: bool,
}

impl<'a> CopyRequest<'a> {
    pub(super) fn of(job: &'a Job, submitted_bytes: u64) -> Self {
        let Job {
            op,
            buffers,
            remote,
            deadline,
            part,
            ..
        } = job;
        Self {
            op: *op,
            buffers,
            remote,
            deadline: *deadline,
            part: Some(part),
            submitted_bytes,
            checksum: false,
        }
    }
}

/// One copy of at most [`PIECE_BYTES`].
struct CopyPiece<'a> {
    local: *mut u8,
    remote: Reach<'a>,
    len: usize,
}

// SAFETY: a chunk names ranges that its job and its mark hold for all threads of the copy.
unsafe impl Sync for CopyPiece<'_> {}

/// The checksum of a piece, if it was wanted, and its length in bytes.
type Summed = (Option<Checksum>, u64);

/// Why a request was not copied.
#[derive(Debug)]
pub(super) enum NotCopied {
    /// Its window was revoked before the first byte: the owner has to give the reason, or open another one.
    Stale,
    Failed(Cause),
}

impl From<Cause> for NotCopied {
    fn from(cause: Cause) -> Self {
        Self::Failed(cause)
    }
}

/// Copies one request, on this thread and, if it is long, on the free threads of the pool.
pub(super) fn carry(
    job: &CopyRequest<'_>,
    window: &OpenWindow,
    copy_threads: &CopyThreads,
) -> Result<Option<Checksum>, NotCopied> {
    let (pool, cache_history) = (copy_threads.pool(), copy_threads.cache_history());
    stop(job)?;
    let claims = job.remote.capability.claims();
    let bytes = job.buffers.bytes();
    // The owner checked the capability when it opened the window; what this request does with it is checked here.
    claims
        .covers(
            job.op.right(),
            (job.remote.offset, bytes),
            claims.holder,
            now().as_nanos(),
        )
        .map_err(Cause::Refused)?;
    if job.op == Op::Write && !window.is_writable() {
        return Err(Cause::Refused(Refusal::Rights).into());
    }
    let pieces = cut(job, window, window.position(job.remote.offset, &claims))
        .ok_or(Cause::Refused(Refusal::Range))?;
    if let Some(part) = job.part {
        part.started();
    }
    under_mark(window, &claims, |mark| {
        let check = || match !mark.is_stale() && window.is_live(&claims) {
            true => Ok(()),
            false => Err(Cause::Refused(Refusal::Generation)),
        };
        let one = |piece: &CopyPiece<'_>| {
            stop(job)?;
            check()?;
            // SAFETY: the local range is held by the job; the peer's lies in the window, which its owner leaves alone
            // while the mark stands; the chunks of a job have no byte in common.
            let checksum = unsafe { piece.copy(job, cache_history) }?;
            failpoint("host.copying");
            Ok((checksum, piece.len as u64))
        };
        let summed = if bytes >= SHARED_BYTES_MIN && pool.threads() > 1 && pieces.len() > 1 {
            share(&pieces, pool, one)?
        } else {
            pieces.iter().map(one).collect::<Result<_, _>>()?
        };
        let whole = summed.into_iter().reduce(|(sum, bytes), (next, more)| {
            let joined = sum.zip(next).map(|(sum, next)| sum.followed_by(next, more));
            (joined, bytes + more)
        });
        Ok(whole.and_then(|(checksum, _)| checksum))
    })
}

/// Runs `copy` between the mark that announces it to the owner and the one that ends it. The copy counts only if the
/// window was in force, its owner alive, and the extent of the capability in the use that is meant, until it had ended.
pub(super) fn under_mark<T>(
    window: &OpenWindow,
    granted: &Grant,
    copy: impl FnOnce(&Mark<'_>) -> Result<T, Cause>,
) -> Result<T, NotCopied> {
    let mark = window.mark().map_err(|_| NotCopied::Stale)?;
    let copied = copy(&mark)?;
    let live = window.is_live(granted);
    if mark.finish().is_err() || !live {
        return Err(Cause::Refused(Refusal::Generation).into());
    }
    match window.link().is_gone() {
        true => Err(Cause::Lost(ENDED.to_owned()).into()),
        false => Ok(copied),
    }
}

/// Checks whether the rest still has to be copied: not cancelled, not late, and the local region not closing.
fn stop(job: &CopyRequest<'_>) -> Result<(), Cause> {
    if job.part.is_some_and(Part::is_cancelled) {
        return Err(Cause::Cancelled);
    }
    if now() >= job.deadline {
        return Err(Cause::TimedOut(Deadline::Total));
    }
    job.buffers.closing().map_or(Ok(()), Err)
}

fn share<'a>(
    pieces: &[CopyPiece<'a>],
    pool: &Pool,
    one: impl Fn(&CopyPiece<'a>) -> Result<Summed, Cause> + Sync,
) -> Result<Vec<Summed>, Cause> {
    let failed: Mutex<Option<Cause>> = Mutex::new(None);
    let sums: Vec<OnceLock<Summed>> = pieces.iter().map(|_| OnceLock::new()).collect();
    let copied = pool
        .job(pieces.len())
        .class(Class::Bulk)
        .kind(&COPY)
        .run(|index| {
            let over = failed
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .is_some();
            if over {
                return;
            }
            match one(&pieces[index]) {
                Ok(summed) => _ = sums[index].set(summed),
                Err(cause) => {
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    failed.get_or_insert(cause);
                }
            }
        });
    debug_assert!(
        copied.is_ok(),
        "copies do not panic, and the job has no cancel handle"
    );
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        None => Ok(sums.into_iter().filter_map(OnceLock::into_inner).collect()),
        Some(cause) => Err(cause),
    }
}

/// The pieces that a request is copied in; `None` where the window ends too early.
fn cut<'a>(
    job: &CopyRequest<'_>,
    window: &'a OpenWindow,
    offset: u64,
) -> Option<Vec<CopyPiece<'a>>> {
    let mut at = offset;
    let mut pieces = Vec::with_capacity(job.buffers.spans().len());
    for span in job.buffers.spans() {
        let mut done = 0;
        while done < span.bytes() {
            let len = PIECE_BYTES.min(span.bytes() - done);
            pieces.push(CopyPiece {
                local: span.start().wrapping_add(done),
                remote: window.reach(at, len as u64)?,
                len,
            });
            done += len;
            at += len as u64;
        }
    }
    Some(pieces)
}

impl CopyPiece<'_> {
    /// # Safety
    /// - `local` is valid for writes (of a read) or reads (of a write) of `len` bytes, which nothing else touches.
    /// - The window that `remote` was taken from is marked.
    unsafe fn copy(
        &self,
        job: &CopyRequest<'_>,
        cache_history: &CacheHistory,
    ) -> Result<Option<Checksum>, Cause> {
        match (self.remote, job.op) {
            (Reach::Mapped(theirs), op) => {
                let (into, from) = if op == Op::Read {
                    (self.local, theirs)
                } else {
                    (theirs, self.local)
                };
                let stores = cache_history.stores(into, self.len as u64, job.submitted_bytes);
                if job.checksum && into.addr().abs_diff(from.addr()) >= self.len {
                    // SAFETY: both ranges are valid, by the caller's promise, and have no byte in common.
                    return Ok(Some(unsafe {
                        copy_checksum_with(Isa::current(), into, from, self.len, stores)
                    }));
                }
                // SAFETY: both ranges are valid, by the caller's promise.
                unsafe { copy_any(into, from, self.len, stores) };
            }
            (Reach::Process(process, address), op) => {
                // SAFETY: the local range is the caller's; the owner has opened the other one.
                unsafe { attach(process, op, self.local, address, self.len) }?;
            }
        }
        // SAFETY: the local range is valid for reads by now, and nothing else writes it.
        let moved = || unsafe { std::slice::from_raw_parts(self.local, self.len) };
        Ok(job.checksum.then(|| checksum(moved())))
    }
}

/// # Safety
/// Both ranges are valid for `len` bytes. They may overlap: this process may have registered the same shared memory.
unsafe fn copy_any(into: *mut u8, from: *const u8, len: usize, stores: Stores) {
    let mut done = 0;
    while done < len {
        let apart = into.addr().abs_diff(from.addr()) >= len;
        let piece = if apart && stores == Stores::Cached {
            CACHED_BYTES.min(len - done)
        } else {
            len
        };
        // SAFETY: pieces of the caller's ranges; the first form is used only where they are apart.
        unsafe {
            match apart {
                true => copy_with(
                    Isa::current(),
                    into.add(done),
                    from.add(done),
                    piece,
                    stores,
                ),
                false => ptr::copy(from, into, len),
            }
        }
        done += piece;
    }
}

/// # Safety
/// As for [`Process::read`] and [`Process::write`].
unsafe fn attach(
    process: &Process,
    op: Op,
    local: *mut u8,
    address: u64,
    len: usize,
) -> Result<(), Cause> {
    let mut done = 0;
    while done < len {
        let (local, address, left) = (local.wrapping_add(done), address + done as u64, len - done);
        // SAFETY: the rest of ranges that are valid by the contract of this function.
        let copied = unsafe {
            match op {
                Op::Read => process.read(local, address, left),
                Op::Write => process.write(local, address, left),
            }
        };
        match copied {
            Ok(0) => {
                return Err(Cause::Lost(
                    "the process has unmapped the memory".to_owned(),
                ));
            }
            Ok(bytes) => done += bytes,
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                return Err(Cause::Lost(ENDED.to_owned()));
            }
            Err(error) => return Err(Cause::Lost(format!("reaching into the process: {error}"))),
        }
    }
    Ok(())
}
