//! Calls that tasks of Python await: one thread of the process polls those that can go on, and the thread of each event loop hears
//! of the ends.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rustix::event::{EventfdFlags, eventfd};
use slackwater_remote::Cancel;
use slackwater_trace::awaited_within;
use slackwater_wait::{Event, Park, Site, Waiting};

use crate::cancelling::cancelled_by;
use crate::store::forks;
use crate::traces::caller;

thread_local! {
    /// What awaits the call that this thread is about to make, if it is not to wait itself, and the frame that makes it.
    static AWAITED: RefCell<Option<(Frame, Awaited)>> = const { RefCell::new(None) };
}

/// A frame of Python, by its address.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Frame(usize);

impl Frame {
    /// The one that runs.
    fn running(_py: Python<'_>) -> Self {
        // SAFETY: this thread is attached. The frame is borrowed and only compared.
        Self(unsafe { pyo3::ffi::PyEval_GetFrame() } as usize)
    }
}

/// What awaits the call that this thread makes; that one call alone. What the arguments of that call run, while they become values,
/// has a frame of its own: a call that it makes is not awaited.
pub(crate) fn awaited(py: Python<'_>) -> Option<Awaited> {
    let running = Frame::running(py);
    let taken = AWAITED.with_borrow_mut(|awaited| awaited.take_if(|(frame, _)| *frame == running));
    taken.map(|(_, awaited)| awaited)
}

/// How many calls of one client are under way.
#[pyclass(frozen, module = "slackwater._native")]
pub(crate) struct UnderWay(Arc<Count>);

struct Count {
    calls: AtomicUsize,
    none: Event,
    /// The number of forks before the process that counts.
    forks: u64,
}

/// One of them, until this is dropped.
struct Counted(Arc<Count>);

impl Counted {
    fn new(count: &Arc<Count>) -> Self {
        count.calls.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.0.calls.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.none.notify_all();
        }
    }
}

static CLOSING: Site = Site::new("end of awaited calls");

#[pymethods]
impl UnderWay {
    #[new]
    fn new() -> Self {
        Self(Arc::new(Count {
            calls: AtomicUsize::new(0),
            none: Event::new(),
            forks: forks(),
        }))
    }

    fn __len__(&self) -> usize {
        self.0.calls.load(Ordering::SeqCst)
    }

    /// wait()
    ///
    /// Waits on this thread until there is none.
    fn wait(&self, py: Python<'_>) {
        let count = &self.0;
        py.detach(|| {
            loop {
                let seen = count.none.seen();
                // A fork has none of what goes on with them.
                if count.calls.load(Ordering::SeqCst) == 0 || count.forks != forks() {
                    return;
                }
                // Rung at the end of the last; there may be others by then.
                let _ = count.none.wait(seen, &Waiting::at(&CLOSING).by(&Park));
            }
        });
    }
}

/// The ends of calls that tasks of one event loop await: a descriptor that can be read while there are some.
#[pyclass(frozen, module = "slackwater._native")]
pub(crate) struct Ends(Arc<Ended>);

struct Ended {
    event: OwnedFd,
    ends: Mutex<Vec<Settle>>,
}

/// Gives a task the end of its call.
type Settle = Box<dyn FnOnce(Python<'_>) -> PyResult<()> + Send>;

impl Ended {
    fn push(&self, settle: Settle) {
        let mut ends = lock(&self.ends);
        ends.push(settle);
        if ends.len() == 1 {
            // Fails only when the count is at its end, and then it can be read already.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

#[pymethods]
impl Ends {
    #[new]
    fn new() -> PyResult<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = event.map_err(io::Error::from)?;
        let ends = Mutex::default();
        Ok(Self(Arc::new(Ended { event, ends })))
    }

    /// discard()
    ///
    /// Forgets the ends that there are: their loop was closed.
    fn discard(&self) {
        let ends = std::mem::take(&mut *lock(&self.0.ends));
        drop(ends);
    }

    fn fileno(&self) -> i32 {
        self.0.event.as_raw_fd()
    }

    /// settle()
    ///
    /// Gives tasks the ends that there are, on the thread of their loop.
    fn settle(&self, py: Python<'_>) {
        let mut count = [0; 8];
        // Before the look: an end that comes from here on can be read of again.
        let _ = rustix::io::read(&self.0.event, &mut count);
        let ends = std::mem::take(&mut *lock(&self.0.ends));
        for settle in ends {
            if let Err(error) = settle(py) {
                error.write_unraisable(py, None);
            }
        }
    }
}

/// A call of a client that is begun on one thread and ends on another.
#[pyclass(frozen, module = "slackwater._native")]
pub(crate) struct Awaiting {
    cancel: Cancel,
    ends: Arc<Ended>,
    count: Arc<Count>,
}

#[pymethods]
impl Awaiting {
    /// Awaiting(ends, under_way)
    ///
    /// The end of a call that `begin` has begun comes by `ends`.
    #[new]
    fn new(ends: &Ends, under_way: &UnderWay) -> Self {
        Self {
            cancel: Cancel::new(),
            ends: Arc::clone(&ends.0),
            count: Arc::clone(&under_way.0),
        }
    }

    /// cancel()
    ///
    /// Ends the call soon: it is told of once nothing touches the caller's memory any more.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.cancel.cancel());
    }

    /// begin(future, function, arguments, keywords)
    ///
    /// Makes a call of a client: whether it is under way, to give `future` its end, and if it is over, its result.
    fn begin<'py>(
        &self,
        future: Py<PyAny>,
        function: &Bound<'py, PyAny>,
        arguments: &Bound<'py, PyTuple>,
        keywords: &Bound<'py, PyDict>,
    ) -> PyResult<(bool, Bound<'py, PyAny>)> {
        let begun = Arc::<AtomicBool>::default();
        let awaited = Awaited {
            begun: Arc::clone(&begun),
            count: Arc::clone(&self.count),
            end: End {
                ends: Arc::clone(&self.ends),
                future: Some(future),
            },
        };
        let before = AWAITED.replace(Some((Frame::running(function.py()), awaited)));
        let result = cancelled_by(&self.cancel, || function.call(arguments, Some(keywords)));
        if let Some((_, mut unused)) = AWAITED.replace(before) {
            // No call was begun: the task has its end from here.
            unused.end.future = None;
        }
        Ok((begun.load(Ordering::Relaxed), result?))
    }
}

/// What awaits a call.
pub(crate) struct Awaited {
    /// Whether the call goes on after its beginning.
    begun: Arc<AtomicBool>,
    count: Arc<Count>,
    end: End,
}

/// How far a call is.
enum Came<T> {
    /// Its first poll has not returned yet.
    Not,
    /// It ended with that.
    AtOnce(T),
    /// Its task is to be told of its end.
    Later,
}

impl Awaited {
    /// Polls a call for the first time: its result if it is over then, else nothing.
    pub(crate) fn begin<T: Send + 'static>(
        self,
        py: Python<'_>,
        call: impl Future<Output = T> + Send + 'static,
        result: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Py<PyAny>> {
        let Self { begun, count, end } = self;
        let came = Arc::new(Mutex::new((Came::Not, Some(result))));
        let told = Arc::clone(&came);
        let parent = caller(py);
        let (runner, counted) = (runner()?, Counted::new(&count));
        let mut call = Box::pin(call);
        let call = async move {
            let mut end = end;
            let outcome = match parent {
                Some(parent) => awaited_within(parent, call.as_mut()).await,
                None => call.as_mut().await,
            };
            // With all that it holds of the client.
            drop(call);
            let result = {
                let mut came = lock(&told);
                if matches!(came.0, Came::Not) {
                    came.0 = Came::AtOnce(outcome);
                    end.future = None;
                    return;
                }
                came.1.take()
            };
            // Not under way any more when its task hears of the end.
            drop(counted);
            if let Some(result) = result {
                end.come(|py| result(py, outcome));
            }
        };
        let task = Arc::new(Task {
            call: Mutex::new(Some(Box::pin(call))),
            runner,
        });
        py.detach(|| task.poll());
        let at_once = {
            let mut came = lock(&came);
            let before = std::mem::replace(&mut came.0, Came::Later);
            match before {
                Came::AtOnce(outcome) => came.1.take().map(|result| (result, outcome)),
                Came::Not | Came::Later => None,
            }
        };
        if let Some((result, outcome)) = at_once {
            return result(py, outcome);
        }
        begun.store(true, Ordering::Relaxed);
        Ok(py.None())
    }
}

/// The end of a call for its task. One that is dropped tells that there is no result.
struct End {
    ends: Arc<Ended>,
    /// None when the task knows.
    future: Option<Py<PyAny>>,
}

impl End {
    fn come(&mut self, result: impl FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send + 'static) {
        let Some(future) = self.future.take() else {
            return;
        };
        self.ends.push(Box::new(move |py| {
            let future = future.bind(py);
            // Where its loop was closed in the middle.
            if future.call_method0(intern!(py, "done"))?.is_truthy()? {
                return Ok(());
            }
            // A panic, as for want of memory, is the end of this call and of no other.
            let result = catch_unwind(AssertUnwindSafe(|| result(py)));
            let panicked = |_| Err(PyRuntimeError::new_err("the result could not be made"));
            match result.unwrap_or_else(panicked) {
                Ok(result) => future.call_method1(intern!(py, "set_result"), (result,))?,
                Err(error) => {
                    let error = error.into_value(py);
                    future.call_method1(intern!(py, "set_exception"), (error,))?
                }
            };
            Ok(())
        }));
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let lost = "the call ended without a result";
        self.come(move |_| Err(PyRuntimeError::new_err(lost)));
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
