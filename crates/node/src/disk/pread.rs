use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use slackwater_tier::io::{DiskDone, DiskOp, OpId};
use slackwater_wait::{Event, Park, Site, Waiting};

use super::directory::Directory;
use super::job::Job;
use super::scratch::{BUFFER_BYTES, Buffers};
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
    /// For what is not read straight into an extent.
    buffers: Arc<Buffers>,
    state: Mutex<State>,
    /// Operations are queued, or the device closes: the workers wait for it.
    work: Event,
    /// Operations have ended, or a wake: [`Device::complete`] waits for it.
    news: Event,
    /// How the workers wait, and how `complete` does.
    sites: [Site; 2],
}

#[derive(Default)]
struct State {
    queue: VecDeque<(OpId, DiskOp)>,
    done: Vec<DiskDone>,
    woken: bool,
    closing: bool,
}

impl PreadDevice {
    pub(super) fn new(
        directory: Arc<Directory>,
        segment: Segment,
        depth: usize,
    ) -> io::Result<Self> {
        let sites = [Site::new("disk, work"), Site::new("disk, completion")];
        let (work, news) = (Event::new(), Event::new());
        let shared = Arc::new(Shared {
            directory,
            segment,
            buffers: Buffers::new(BUFFER_BYTES),
            state: Mutex::default(),
            work,
            news,
            sites,
        });
        let mut device = Self {
            shared,
            workers: Vec::new(),
            footprint: Footprint::default(),
        };
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
        ops.iter().for_each(|(_, what)| self.footprint.count(what));
        let count = ops.len() as u32;
        self.shared.lock().queue.extend(ops.drain(..));
        self.shared.work.notify(count);
    }

    fn complete(&self, done: &mut Vec<DiskDone>) -> io::Result<()> {
        let Shared {
            news,
            sites: [_, site],
            ..
        } = &*self.shared;
        self.shared.wait(news, site, |state| {
            done.append(&mut state.done);
            (std::mem::take(&mut state.woken) || !done.is_empty()).then_some(())
        });
        Ok(())
    }

    fn wake(&self) {
        self.shared.lock().woken = true;
        self.shared.news.notify_all();
    }

    fn footprint(&self) -> &Footprint {
        &self.footprint
    }

    fn sites(&self) -> &[Site] {
        &self.shared.sites
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

    /// Waits until `take` finds what it looks for. The device is slow beside any spin.
    fn wait<T>(
        &self,
        event: &Event,
        site: &Site,
        mut take: impl FnMut(&mut State) -> Option<T>,
    ) -> T {
        loop {
            let seen = event.seen();
            if let Some(found) = take(&mut self.lock()) {
                return found;
            }
            // Without a deadline, and never closed: it ends with a later generation.
            let _ = event.wait(seen, &Waiting::at(site).by(&Park));
        }
    }

    fn work(&self) {
        loop {
            let next = |state: &mut State| match state.queue.pop_front() {
                None if !state.closing => None,
                next => Some(next),
            };
            let Some((op, what)) = self.wait(&self.work, &self.sites[0], next) else {
                return;
            };
            // SAFETY: the agent that made the operation keeps its extents from others until the completion.
            let job = unsafe { Job::begin(what, &self.directory, &self.segment, &self.buffers) };
            let result = job.and_then(|mut job| job.finish().map(|()| job.outcome()));
            self.lock().done.push(DiskDone { op, result });
            self.news.notify_all();
        }
    }
}
