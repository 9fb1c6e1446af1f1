use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use slackwater_pool::{Config, Handle, JobError, Pool, SubmitError};
use slackwater_wire::ErrorCode;

use crate::status::{Failure, guard, quietly, sw_status};
use crate::values::{Context, at, deadline, give, take};

/// Threads for short bursts of work: they watch for a learned time after each and then sleep.
pub struct sw_pool {
    pool: Pool,
    stopped: Arc<AtomicBool>,
}

/// A task in the background.
pub struct sw_task {
    /// None once its outcome is known.
    handle: Option<Handle<()>>,
    outcome: Result<(), Failure>,
    stopped: Arc<AtomicBool>,
}

/// Does the indices from `begin` to before `end`. Called on several threads at once; it must not throw.
pub type sw_body = Option<unsafe extern "C" fn(context: *mut c_void, begin: usize, end: usize)>;

/// Does a task. Called on any thread; it must not throw.
pub type sw_work = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// Starts a pool of `threads` threads, the caller of a job among them; 0 for as many as there are usable CPUs.
///
/// # Safety
/// `pool` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_pool_start(threads: u32, pool: *mut *mut sw_pool) -> sw_status {
    guard(|| {
        let config = match threads {
            0 => Config::default(),
            threads => Config::threads(threads as usize),
        };
        let started = Pool::start(&config).map_err(Failure::invalid)?;
        // SAFETY: as the caller promises.
        unsafe {
            let stopped = Arc::default();
            give(
                pool,
                sw_pool {
                    pool: started,
                    stopped,
                },
                "pool",
            )
        }
    })
}

/// Waits for what runs, and ends the threads; what is queued is dropped. Null is nothing.
///
/// # Safety
/// `pool` is null or came from `sw_pool_start`, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_pool_stop(pool: *mut sw_pool) {
    quietly(|| {
        // SAFETY: as the caller promises.
        if let Some(pool) = unsafe { take(pool) } {
            pool.stopped.store(true, Ordering::Release);
        }
    });
}

/// The threads that take part in a job, its caller among them; 0 for null.
///
/// # Safety
/// `pool` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_pool_threads(pool: *const sw_pool) -> usize {
    // SAFETY: as the caller promises.
    unsafe { at(pool, "pool") }.map_or(0, |pool| pool.pool.threads())
}

/// Does every index below `count` once, in ranges, on as many threads as are free, and returns when all are done.
///
/// # Safety
/// `pool` is valid; `body` may be called with `context` on several threads at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_pool_run(
    pool: *const sw_pool,
    count: usize,
    body: sw_body,
    context: *mut c_void,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let pool = unsafe { at(pool, "pool") }?;
        let body = body.ok_or_else(|| Failure::invalid("body is null"))?;
        let context = Context(context);
        let done = pool.pool.job(count).run_ranges(|range| {
            let context = &context;
            // SAFETY: as the caller promises.
            unsafe { body(context.0, range.start, range.end) };
        });
        done.map_err(failed)
    })
}

/// Queues a task. `task` may be null when nobody waits for it; else it is given back with `sw_task_free`.
///
/// # Safety
/// `pool` is valid, `task` is null or valid for a write; `work` may be called with `context` on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_pool_submit(
    pool: *const sw_pool,
    work: sw_work,
    context: *mut c_void,
    task: *mut *mut sw_task,
) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let pool = unsafe { at(pool, "pool") }?;
        let work = work.ok_or_else(|| Failure::invalid("work is null"))?;
        let context = Context(context);
        let queued = pool.pool.spawn(move || {
            let context = context;
            // SAFETY: as the caller promises.
            unsafe { work(context.0) };
        });
        let handle = queued.map_err(|error| {
            let code = match error {
                SubmitError::Full { .. } => ErrorCode::NoAvailableHandle,
                SubmitError::Forked => ErrorCode::UnavailableInCurrentMode,
            };
            Failure::new(code, error)
        })?;
        match task.is_null() {
            true => Ok(()),
            // SAFETY: as the caller promises.
            false => unsafe {
                let queued = sw_task {
                    handle: Some(handle),
                    outcome: Ok(()),
                    stopped: Arc::clone(&pool.stopped),
                };
                give(task, queued, "task")
            },
        }
    })
}

/// Waits until a task is done, and does it in this thread, to its end, when no other has begun it. `SW_TIMED_OUT` after
/// `timeout` nanoseconds: another call goes on. `SW_CANCELLED` when the pool was stopped before it began. One thread waits for
/// a task at a time.
///
/// # Safety
/// `task` is valid and used by this call alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_task_wait(task: *mut sw_task, timeout: u64) -> sw_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe { at(task, "task") }?;
        // SAFETY: not null, and nobody else uses it, as the caller promises.
        let task = unsafe { &mut *task };
        if let Some(handle) = task.handle.take() {
            if task.stopped.load(Ordering::Acquire) {
                // What the pool has not begun is not done any more: what it works with may be gone.
                handle.cancel();
            }
            match handle.wait_until(deadline(timeout)) {
                Ok(done) => task.outcome = done.map_err(failed),
                Err(handle) => {
                    task.handle = Some(handle);
                    let text = "deadline passed while waiting for a task";
                    return Err(Failure::new(ErrorCode::DeadlinePassed, text));
                }
            }
        }
        task.outcome.clone()
    })
}

/// Gives a task back; null is nothing. It is done all the same, unless the pool is stopped first.
///
/// # Safety
/// `task` is null or came from `sw_pool_submit`, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_task_free(task: *mut sw_task) {
    // SAFETY: as the caller promises.
    quietly(|| drop(unsafe { take(task) }));
}

fn failed(error: JobError) -> Failure {
    let code = match error {
        JobError::Panicked(_) => ErrorCode::InternalError,
        JobError::Cancelled => ErrorCode::Cancelled,
    };
    Failure::new(code, error)
}
