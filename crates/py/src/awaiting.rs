//! Calls that tasks of Python await: one thread of the process polls those that can go on, and tells their tasks of the ends.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use slackwater_remote::Cancel;
use slackwater_trace::awaited_within;
use slackwater_wait::{Event, Park, Site, Waiting};

use crate::cancelling::cancelled_by;
use crate::store::forks;
use crate::traces::caller;

thread_local! {
    /// What awaits the call that this thread is about to make, if it is not to wait itself.
    static AWAITED: RefCell<Option<Awaited>> = const { RefCell::new(None) };
}

/// What awaits the call that this thread is about to make; that one call alone.
pub(crate) fn awaited() -> Option<Awaited> {
    AWAITED.take()
}

/// A call of a client that is begun on one thread and ends on another.
#[pyclass(frozen, module = "slackwater._native")]
pub(crate) struct Awaiting {
    cancel: Cancel,
    tell: Py<PyAny>,
}

#[pymethods]
impl Awaiting {
    /// Awaiting(tell)
    ///
    /// `tell(result, error)` is called once, on any thread, at the end of a call that `begin` has begun.
    #[new]
    fn new(tell: Py<PyAny>) -> Self {
        let cancel = Cancel::new();
        Self { cancel, tell }
    }

    /// cancel()
    ///
    /// Ends the call soon: it is told of once nothing touches the caller's memory any more.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.cancel.cancel());
    }

    /// begin(function, arguments, keywords)
    ///
    /// Makes a call of a client: whether it is under way, and if it is over, its result.
    fn begin<'py>(
        &self,
        function: &Bound<'py, PyAny>,
        arguments: &Bound<'py, PyTuple>,
        keywords: &Bound<'py, PyDict>,
    ) -> PyResult<(bool, Bound<'py, PyAny>)> {
        let (begun, tell) = (
            Arc::<AtomicBool>::default(),
            self.tell.clone_ref(function.py()),
        );
        let awaited = Awaited {
            begun: Arc::clone(&begun),
            tell,
        };
        let before = AWAITED.replace(Some(awaited));
        let result = cancelled_by(&self.cancel, || function.call(arguments, Some(keywords)));
        AWAITED.set(before);
        Ok((begun.load(Ordering::Relaxed), result?))
    }
}

/// What awaits a call.
pub(crate) struct Awaited {
    /// Whether the call goes on after its beginning.
    begun: Arc<AtomicBool>,
    tell: Py<PyAny>,
}

/// The end of a call that is under way.
enum End<T> {
    /// Its first poll has not returned yet.
    Beginning,
    /// It came with that.
    Came(T),
    /// Its task is to be told of it.
    Told,
}

impl Awaited {
    /// Polls a call for the first time: its result if it is over then, else nothing.
    pub(crate) fn begin<T: Send + 'static>(
        self,
        py: Python<'_>,
        call: impl Future<Output = T> + Send + 'static,
        result: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Py<PyAny>> {
        let Self { begun, tell } = self;
        let end = Arc::new(Mutex::new((End::Beginning, Some(result))));
        let told = Arc::clone(&end);
        let parent = caller(py);
        let runner = runner()?;
        let call = async move {
            let tell = Tell(Some(tell));
            let outcome = match parent {
                Some(parent) => awaited_within(parent, call).await,
                None => call.await,
            };
            let result = {
                let mut end = lock(&told);
                if matches!(end.0, End::Beginning) {
                    end.0 = End::Came(outcome);
                    tell.of_nothing();
                    return;
                }
                end.1.take()
            };
            if let Some(result) = result {
                tell.of(|py| result(py, outcome));
            }
        };
        let task = Arc::new(Task {
            call: Mutex::new(Some(Box::pin(call))),
            runner,
        });
        py.detach(|| task.poll());
        let (came, result) = {
            let mut end = lock(&end);
            match std::mem::replace(&mut end.0, End::Told) {
                End::Came(outcome) => (Some(outcome), end.1.take()),
                End::Beginning | End::Told => (None, None),
            }
        };
        if let (Some(outcome), Some(result)) = (came, result) {
            return result(py, outcome);
        }
        begun.store(true, Ordering::Relaxed);
        Ok(py.None())
    }
}

/// Tells a task of the end of its call. One that is dropped tells that there is no result.
struct Tell(Option<Py<PyAny>>);

impl Tell {
    /// The task knows.
    fn of_nothing(mut self) {
        self.0 = None;
    }

    fn of(mut self, result: impl FnOnce(Python<'_>) -> PyResult<Py<PyAny>>) {
        self.tell(result);
    }

    fn tell(&mut self, result: impl FnOnce(Python<'_>) -> PyResult<Py<PyAny>>) {
        let Some(tell) = self.0.take() else {
            return;
        };
        // An interpreter that ends has no tasks any more.
        Python::try_attach(|py| {
            let told = match result(py) {
                Ok(result) => tell.call1(py, (result, py.None())),
                Err(error) => tell.call1(py, (py.None(), error.into_value(py))),
            };
            if let Err(error) = told {
                error.write_unraisable(py, None);
            }
        });
    }
}

impl Drop for Tell {
    fn drop(&mut self) {
        self.tell(|_| Err(PyRuntimeError::new_err("the call ended without a result")));
    }
}

/// A call that is under way.
struct Task {
    /// None once it is over.
    call: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    runner: Arc<Runner>,
}

impl Task {
    fn poll(self: &Arc<Self>) {
        let mut call = lock(&self.call);
        let waker = Waker::from(Arc::clone(self));
        let Some(polled) = &mut *call else {
            return;
        };
        let mut context = Context::from_waker(&waker);
        let poll = AssertUnwindSafe(|| polled.as_mut().poll(&mut context));
        // One that panics is over: to drop it tells its task.
        if catch_unwind(poll).is_ok_and(|poll| poll.is_pending()) {
            return;
        }
        let over = call.take();
        drop(call);
        drop(over);
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let runner = Arc::clone(&self.runner);
        lock(&runner.ready).push_back(self);
        runner.bell.notify_all();
    }
}

/// The calls that can go on, and what wakes the thread that polls them.
#[derive(Default)]
struct Runner {
    ready: Mutex<VecDeque<Arc<Task>>>,
    bell: Event,
}

static SITE: Site = Site::new("calls that are awaited");

impl Runner {
    fn run(&self) {
        loop {
            // Taken before the look at what is ready, so that a ring from here on ends the wait.
            let seen = self.bell.seen();
            let ready = lock(&self.ready).pop_front();
            match ready {
                Some(task) => task.poll(),
                // Only a ring ends it.
                None => _ = self.bell.wait(seen, &Waiting::at(&SITE).by(&Park)),
            }
        }
    }
}

/// That of this process, and the number of forks before it began.
static RUNNER: Mutex<Option<(Arc<Runner>, u64)>> = Mutex::new(None);

fn runner() -> PyResult<Arc<Runner>> {
    let mut present = lock(&RUNNER);
    if let Some((runner, before)) = &*present
        && *before == forks()
    {
        return Ok(Arc::clone(runner));
    }
    let runner = Arc::<Runner>::default();
    let running = Arc::clone(&runner);
    std::thread::Builder::new()
        .name("slack-awaited".to_owned())
        .spawn(move || running.run())?;
    *present = Some((Arc::clone(&runner), forks()));
    Ok(runner)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
