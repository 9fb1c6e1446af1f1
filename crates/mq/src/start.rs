use std::convert::Infallible;
use std::ops::Deref;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};

use slackwater_keys::new_keys;
use slackwater_net::{Limits as NetLimits, Loop, PreAuthLimits, is_inside_a_loop};

use slackwater_wait::Choice;

use crate::context::Context;
use crate::jobs::{AdmissionLimits, Jobs};
use crate::shard::{LoopCommand, Shard};
use crate::tagged::{Started, TaggedThread};
use crate::{Builder, Metrics, Mq, StartError};

/// A message layer that stops when this is dropped.
pub struct Running {
    mq: Mq,
    tagged: Mutex<Vec<Started>>,
}

impl Builder {
    /// Adds a thread of its own name; `start` runs first on it.
    pub fn tagged_thread(
        &mut self,
        name: &str,
        start: impl FnOnce() + Send + 'static,
    ) -> TaggedThread {
        let (planned, handle) = TaggedThread::plan(name, Box::new(start));
        self.tagged.push(planned);
        handle
    }

    /// Starts loops and threads.
    ///
    /// # Errors
    /// When a node has no keys, or the operating system gives no threads, descriptors or randomness.
    pub fn start(mut self) -> Result<Running, StartError> {
        if self.options.is_node && self.options.keys.is_none() {
            return Err(StartError::NodeWithoutKeys);
        }
        // Every wait takes the strategy that the environment names; one that does not exist is refused here.
        Choice::from_env()?;
        let keys = match self.options.keys.clone() {
            Some(keys) => keys,
            None => new_keys().map_err(StartError::Randomness)?,
        };
        let metrics = Arc::new(Metrics::default());
        let queueing: Vec<_> = self
            .registry
            .categories
            .iter()
            .map(|(_, category)| category.queueing)
            .collect();
        // A peer that is decided on has an unauthenticated connection, or has just lost it, so the limits are the same.
        let PreAuthLimits {
            total, per_source, ..
        } = self.options.pre_auth;
        let abreast = self.options.workers.admissions.saturating_sub(1).max(1);
        let admission_limits = AdmissionLimits {
            total,
            per_source,
            abreast,
        };
        let jobs = Jobs::new(
            self.options.workers,
            admission_limits,
            &queueing,
            Arc::clone(&metrics),
        );
        let planned = std::mem::take(&mut self.tagged);
        let context = Arc::new(Context::new(self, keys, jobs, Arc::clone(&metrics)));
        let options = &context.options;
        let limits = NetLimits {
            connections: options.connections,
            pre_auth: options.pre_auth,
            write_stall: options.write_stall,
            liveness: options.liveness,
            ..NetLimits::default()
        };
        let mut loops = Vec::new();
        for number in 0..options.loops.max(1) as u16 {
            let shard = Shard::new(Arc::clone(&context), number).map_err(StartError::Randomness)?;
            loops.push(Loop::start(&format!("mq-loop-{number}"), limits, shard)?);
        }
        context.loops.store(Arc::new(loops));
        let running = Running {
            mq: Mq(context),
            tagged: Mutex::default(),
        };
        for thread in planned {
            let started = thread.start(Arc::clone(&metrics));
            let started = started.map_err(|(name, error)| StartError::Thread { name, error })?;
            running
                .tagged
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(started);
        }
        Ok(running)
    }
}

impl Running {
    /// A handle that does not keep the message layer running: after the stop it sends nothing.
    #[must_use]
    pub fn handle(&self) -> Mq {
        self.mq.clone()
    }

    /// Stops: what runs finishes, what is queued is dropped, links close after writing what they hold.
    pub fn stop(&self) {
        let context = &self.mq.0;
        context.jobs.stop();
        let linger = context.options.linger;
        let (empty, rest) = channel::<Infallible>();
        context.order_all(|| LoopCommand::Shutdown {
            linger,
            empty: empty.clone(),
        });
        drop(empty);
        if !is_inside_a_loop() {
            // Each loop drops its end when its last connection has ended, at the latest after the linger.
            let _ = rest.recv_timeout(linger);
        }
        let loops = context.loops.swap(Arc::default());
        loops.iter().for_each(Loop::stop);
        let tagged =
            std::mem::take(&mut *self.tagged.lock().unwrap_or_else(PoisonError::into_inner));
        tagged.into_iter().for_each(Started::stop);
    }
}

impl Deref for Running {
    type Target = Mq;

    fn deref(&self) -> &Mq {
        &self.mq
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}
