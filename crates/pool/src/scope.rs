use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use slackwater_wait::{Event, Site};

use crate::crew::Task;
use crate::job::{Class, Verdict};
use crate::slot::{Borrowed, PublishedJob, Seat};
use crate::spread::Inner;

/// Tasks that borrow: all of them end before the scope does.
pub struct Scope<'scope, 'env: 'scope> {
    shared: &'scope Shared<'scope>,
    /// `'scope` and `'env` are invariant, as in the standard library's scope.
    lifetimes: PhantomData<(&'scope mut &'scope (), &'env mut &'env ())>,
}

/// What the threads of a scope share.
struct Shared<'a> {
    inner: &'a Inner,
    /// Their lifetime is that of the scope, forgotten here because none is left when it ends.
    tasks: Mutex<VecDeque<Task>>,
    /// Tasks spawned and not ended.
    pending: AtomicUsize,
    /// A task was spawned, or the last one ended.
    changed: Event,
    verdict: Verdict,
}

static SITE: Site = Site::new("pool scope");

/// Runs `f` with a scope, then the tasks it spawned.
pub(crate) fn run<'env, R>(
    inner: &Inner,
    f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
) -> R {
    let shared = Shared {
        inner,
        tasks: Mutex::new(VecDeque::new()),
        pending: AtomicUsize::new(0),
        changed: Event::new(),
        verdict: Verdict::default(),
    };
    let crew = inner.home();
    let borrowed = Borrowed::begin();
    let slot = if inner.is_orphaned() {
        None
    } else {
        crew.take_slot()
    };
    if let Some(slot) = slot {
        let seats = crew.workers() + 1;
        let work = PublishedJob {
            data: (&raw const shared).cast(),
            enter,
            base: 0,
            seats,
            lasting: true,
        };
        // SAFETY: the slot was just taken. `shared` is on this stack and the slot is retired below, on every path: `f`
        // and the tasks run under a guard, and nothing unwinds past `borrowed`.
        unsafe { crew.publish(slot, work, 0, crew.workers(), Class::Latency) };
    }
    // Tasks may hold a reference to it to spawn more, so it lives until the last of them has ended.
    let scope = Scope {
        shared: &shared,
        lifetimes: PhantomData,
    };
    let value = shared.verdict.guard(|| f(&scope));
    shared.finish();
    if let Some(slot) = slot {
        crew.retire(slot, Class::Latency, &crew.waiting(&SITE));
    }
    borrowed.end();
    match (shared.verdict.into_result(), value) {
        (Ok(()), Some(value)) => value,
        (Err(error), _) => unreachable!("a scope is not cancelled: {}", error.resume_panic()),
        (Ok(()), None) => unreachable!("without a value there is a panic"),
    }
}

/// Takes part in a scope: runs tasks while there are some.
///
/// # Safety
/// `data` points at a live scope.
unsafe fn enter(data: *const (), seat: &Seat<'_>) -> bool {
    // SAFETY: the caller's promise. The lifetimes are those of the scope that published itself; nothing is kept.
    let scope = unsafe { &*data.cast::<Shared<'_>>() };
    let mut found = false;
    let _inside = seat.member.enter();
    while scope.run_one() {
        found = true;
    }
    found
}

impl<'scope> Scope<'scope, '_> {
    /// Spawns a task. It may run before this returns, on another thread, or at the end of the scope on this one.
    pub fn spawn(&'scope self, task: impl FnOnce() + Send + 'scope) {
        let task: Box<dyn FnOnce() + Send + 'scope> = Box::new(task);
        // SAFETY: only the lifetime changes. `Shared::finish` returns after every task has run, and the scope ends after
        // that, so no task outlives what it borrows.
        let task = unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + 'scope>, Task>(task) };
        let shared = self.shared;
        shared.pending.fetch_add(1, Ordering::Relaxed);
        shared.lock().push_back(task);
        shared.inner.home().summon(1);
        shared.changed.notify(1);
    }
}

impl Shared<'_> {
    /// Runs one task, if there is one.
    fn run_one(&self) -> bool {
        let Some(task) = self.lock().pop_front() else {
            return false;
        };
        self.verdict.guard(task);
        // Release: a thread that sees no task pending sees what the tasks wrote.
        if self.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.changed.notify(1);
        }
        true
    }

    /// Helps until every task has ended.
    fn finish(&self) {
        let _inside = self.inner.caller().enter();
        loop {
            let seen = self.changed.seen();
            if self.run_one() {
                continue;
            }
            if self.pending.load(Ordering::Acquire) == 0 {
                return;
            }
            // Never closed and without a deadline: it ends with a notification.
            let _ = self.changed.wait(seen, &self.inner.home().waiting(&SITE));
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Task>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope")
            .field("pending", &self.shared.pending)
            .finish_non_exhaustive()
    }
}
