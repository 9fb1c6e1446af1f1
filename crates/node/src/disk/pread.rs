use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use slackwater_tier::io::{DiskDone, DiskOp, OpId};

use super::directory::Directory;
use super::job::Job;
use super::transfer::Segment;
use super::{Device, Footprint};

/// Most worker threads: beyond it a device gains nothing that threads could give.
const WORKERS_MAX: usize = 8;

/// The device on blocking system calls: a few workers take operations from a queue.
pub(super) struct PreadDevice {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    footprint: Footprint,
}

struct Shared {
    directory: Arc<Directory>,
    segment: Segment,
    state: Mutex<State>,
    /// Something to do, or time to go.
    work: Condvar,
    /// Something done, or a wake.
    news: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<(OpId, DiskOp)>,
    done: Vec<DiskDone>,
    woken: bool,
    closing: bool,
}

impl PreadDevice {
    pub(super) fn new(directory: Arc<Directory>, segment: Segment, depth: usize) -> io::Result<Self> {
        let state = Mutex::default();
        let shared = Arc::new(Shared { directory, segment, state, work: Condvar::new(), news: Condvar::new() });
        let mut device = Self { shared, workers: Vec::new(), footprint: Footprint::default() };
        for number in 0..depth.clamp(1, WORKERS_MAX) {
            let shared = Arc::clone(&device.shared);
            let builder = std::thread::Builder::new().name(format!("slack-pread-{number}"));
            device.workers.push(builder.spawn(move || shared.work())?);
        }
        Ok(device)
    }
}

impl Device for PreadDevice {
    fn submit(&self, ops: &mut Vec<(OpId, DiskOp)>) {
        if ops.is_empty() {
            return;
        }
        let mut state = self.shared.lock();
        for (op, what) in ops.drain(..) {
            self.footprint.count(&what);
            state.queue.push_back((op, what));
        }
        drop(state);
        self.shared.work.notify_all();
    }

    fn complete(&self, done: &mut Vec<DiskDone>) -> io::Result<()> {
        let idle = |state: &mut State| state.done.is_empty() && !state.woken;
        let waited = self.shared.news.wait_while(self.shared.lock(), idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.woken = false;
        done.append(&mut state.done);
        Ok(())
    }

    fn wake(&self) {
        self.shared.lock().woken = true;
        self.shared.news.notify_all();
    }

    fn footprint(&self) -> &Footprint {
        &self.footprint
    }
}

impl Drop for PreadDevice {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.work.notify_all();
        for worker in self.workers.drain(..) {
            if worker.join().is_err() {
                tracing::error!("a disk worker panicked");
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        loop {
            let idle = |state: &mut State| state.queue.is_empty() && !state.closing;
            let mut state = self.work.wait_while(self.lock(), idle).unwrap_or_else(PoisonError::into_inner);
            let Some((op, what)) = state.queue.pop_front() else { return };
            drop(state);
            // SAFETY: the agent that made the operation keeps its extents from others until the completion.
            let job = unsafe { Job::begin(what, &self.directory, &self.segment) };
            let result = job.and_then(|mut job| job.finish());
            self.lock().done.push(DiskDone { op, result });
            self.news.notify_one();
        }
    }
}
