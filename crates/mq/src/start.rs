use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use slackwater_net::{Limits as NetLimits, Loop};
use slackwater_zmtp::{KeyPair, SecretKey};

use crate::hub::Hub;
use crate::jobs::Jobs;
use crate::shard::{Order, Shard};
use crate::tagged::{Started, TaggedThread};
use crate::{Builder, Metrics, Mq, StartError};

/// A message layer that stops when this is dropped.
pub struct Running {
    mq: Mq,
    tagged: Mutex<Vec<Started>>,
}

impl Builder {
    /// Adds a thread of its own name; `start` runs first on it.
    pub fn tagged_thread(&mut self, name: &str, start: impl FnOnce() + Send + 'static) -> TaggedThread {
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
        let keys = match self.options.keys.clone() {
            Some(keys) => keys,
            None => new_keys().map_err(StartError::Randomness)?,
        };
        let metrics = Arc::new(Metrics::default());
        let queueing: Vec<_> = self.registry.categories.iter().map(|(_, category)| category.queueing).collect();
        let jobs = Jobs::new(self.options.workers, &queueing, Arc::clone(&metrics));
        let planned = std::mem::take(&mut self.tagged);
        let hub = Arc::new(Hub::new(self, keys, jobs, Arc::clone(&metrics)));
        let options = &hub.options;
        let limits = NetLimits {
            connections: options.connections,
            pre_auth: options.pre_auth,
            write_stall: options.write_stall,
            liveness: options.liveness,
            ..NetLimits::default()
        };
        let mut loops = Vec::new();
        for number in 0..options.loops.max(1) as u16 {
            let shard = Shard::new(Arc::clone(&hub), number).map_err(StartError::Randomness)?;
            loops.push(Loop::start(&format!("mq-loop-{number}"), hub.clock, limits, shard)?);
        }
        hub.loops.store(Arc::new(loops));
        let running = Running { mq: Mq(hub), tagged: Mutex::default() };
        for thread in planned {
            let started = thread.start(Arc::clone(&metrics));
            let started = started.map_err(|(name, error)| StartError::Thread { name, error })?;
            running.tagged.lock().unwrap_or_else(PoisonError::into_inner).push(started);
        }
        Ok(running)
    }
}

impl Running {
    /// A handle that outlives nothing: after the stop it sends to nobody.
    #[must_use]
    pub fn handle(&self) -> Mq {
        self.mq.clone()
    }

    /// Stops: what runs finishes, what is queued is dropped, links close after writing what they hold.
    pub fn stop(&self) {
        let hub = &self.mq.0;
        hub.jobs.stop();
        let linger = hub.options.linger;
        hub.order_all(|| Order::Shutdown { linger });
        let until = hub.clock.now() + linger;
        let mut waited = Duration::from_micros(50);
        // Lingering connections say when they are done only by going away.
        while self.mq.inspect().connections > 0 && hub.clock.now() < until {
            std::thread::sleep(waited);
            waited = (waited * 2).min(Duration::from_millis(20));
        }
        let loops = hub.loops.swap(Arc::default());
        loops.iter().for_each(Loop::stop);
        let tagged = std::mem::take(&mut *self.tagged.lock().unwrap_or_else(PoisonError::into_inner));
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

/// Fresh keys.
pub(crate) fn new_keys() -> Result<KeyPair, getrandom::Error> {
    let mut secret = zeroize::Zeroizing::new([0; 32]);
    getrandom::fill(secret.as_mut_slice())?;
    Ok(KeyPair::of(SecretKey::from_bytes(*secret)))
}
