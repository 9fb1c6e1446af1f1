//! The TCP mover.
//!
//! Each loop owns the connections it accepted and the lanes it opened (`loop_state`). A connection (`conn`) receives
//! and sends (`wire`) for one end of the [`protocol`](slackwater_data_plane::protocol): `server` or `client`. One pure table decides
//! which task goes next, and on which lane (`scheduler`).

mod client;
mod config;
mod conn;
mod context;
#[cfg(test)]
#[path = "../../../fuzz/src/corpora.rs"]
mod corpora;
mod cursor;
mod direct;
mod end;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod io;
#[cfg(test)]
#[path = "../../engine/tests/lender/mod.rs"]
mod lender;
mod loop_state;
mod mover;
mod nearness;
mod options;
mod scheduler;
mod server;
#[cfg(test)]
mod sim;
mod staged;
mod task;
mod turn;
mod wire;

use std::net::SocketAddr;
use std::sync::{Arc, Once, mpsc};
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_data_plane::Cause;
use slackwater_data_plane::protocol::{REQUEST_BYTES_MAX, SLICE_BYTES_MAX, SLICE_BYTES_MIN};
use slackwater_engine::{Home, Job, Mover, WhenFull};
use slackwater_net::{Limits as NetLimits, Loop, PreAuthLimits, is_inside_a_loop};
use slackwater_wait::{Site, Waiting, now};
use slackwater_wire::data::Segment;
use thiserror::Error;

pub use config::TcpConfig;
pub use options::{IGNORED, OPTIONS, OptionError, TcpOption};
pub use scheduler::LaneCounters;

use context::TcpContext;
use loop_state::{Command, LoopState};
use nearness::Nearness;
use scheduler::{Limits, Scheduler};
use task::Task;

/// Where the submitters of this mover and the callers that drive their own requests wait, with how: counted for the whole
/// process.
#[must_use]
pub fn wait_sites() -> [&'static Site; 2] {
    [&FULL, &direct::PAYLOAD]
}

/// Carries requests over TCP.
pub struct Tcp {
    context: Arc<TcpContext>,
    loops: Vec<Loop<LoopState>>,
    addresses: Vec<SocketAddr>,
}

/// Why the TCP mover could not start.
#[derive(Debug, Error)]
pub enum TcpError {
    /// The configuration contradicts itself, or asks for something that is not allowed.
    #[error("{0}")]
    Config(String),
    /// The operating system refused.
    #[error("{0}")]
    System(String),
}

static FULL: Site = Site::new("transfer queue");
/// The most jobs that are queued in one call of the scheduler.
const RUN_BYTES: u64 = 64 << 20;
const RUN_ENTRIES: usize = 1024;
/// New connections that are taken from the kernel in a second: accepting and closing one takes some 20 µs. Others wait
/// there.
const CONNECTIONS_PER_SECOND: u32 = 2000;
/// Sealed ones of one address; further ones are closed unread. Four agreements of keys take some 200 µs.
const HANDSHAKES_PER_SECOND: u32 = 200;
const LISTEN_TIMEOUT: Duration = Duration::from_secs(10);

impl Tcp {
    /// Starts the loops, and listens.
    ///
    /// # Errors
    /// The configuration is wrong, or the operating system gives no thread, socket, or port.
    pub fn start(home: &Arc<Home>, config: TcpConfig) -> Result<Self, TcpError> {
        let nearness = Nearness::of_system(&config)?;
        Self::start_near(home, config, nearness)
    }

    /// Starts with what a topology means.
    fn start_near(
        home: &Arc<Home>,
        config: TcpConfig,
        nearness: Nearness,
    ) -> Result<Self, TcpError> {
        check(&config)?;
        if config.insecure && config.seal.is_none() {
            static WARNED: Once = Once::new();
            WARNED.call_once(|| {
                tracing::warn!(
                    "insecure is set: payload may travel in the open beyond this machine"
                )
            });
        }
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(|error| TcpError::System(error.to_string()))?;
        let nearness = Arc::new(nearness);
        let limits = Limits {
            nearness: Arc::clone(&nearness),
            ..Limits::of(&config)
        };
        let scheduler = Scheduler::new(limits, u64::from_le_bytes(seed));
        let context = Arc::new(TcpContext::new(
            Arc::clone(home),
            config,
            scheduler,
            Arc::clone(&nearness),
        ));
        let limits = NetLimits {
            connections: context.config.connections_max,
            pre_auth: pre_auth_limits(&context.config),
            ..NetLimits::default()
        };
        let mut loops = Vec::new();
        for index in 0..context.config.io_threads {
            let state = LoopState::new(Arc::clone(&context), index);
            let name = format!("transfer-{index}");
            let started = Loop::start_on(&name, nearness.cpus(index), limits, state);
            loops.push(started.map_err(|error| TcpError::System(error.to_string()))?);
        }
        // Set only here: nothing else has the context yet.
        let _ = context
            .loops
            .set(loops.iter().map(Loop::downgrade).collect());
        if let Some(seal) = &context.config.seal {
            let context = Arc::downgrade(&context);
            seal.clients.when_changed(move || {
                let context = context.upgrade();
                context.iter().for_each(|context| context.relisted());
                context.is_some()
            });
        }
        let mut mover = Self {
            context,
            loops,
            addresses: Vec::new(),
        };
        mover.addresses = mover.listen()?;
        Ok(mover)
    }

    /// The addresses it listens on, or those that the configuration publishes instead.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        match self.context.config.advertise.as_slice() {
            [] => &self.addresses,
            advertised => advertised,
        }
    }

    /// Transfers under way, and queued.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        let scheduler = self.context.scheduler();
        (scheduler.active(), scheduler.pending())
    }

    /// Counters of the connections.
    #[must_use]
    pub fn lane_counters(&self) -> LaneCounters {
        self.context.scheduler().counters()
    }

    /// Lanes of each loop.
    #[must_use]
    pub fn lanes_by_loop(&self) -> Vec<usize> {
        self.context.scheduler().lanes_by_loop()
    }

    /// Every loop listens on every address; all use the ports that the first one got.
    fn listen(&self) -> Result<Vec<SocketAddr>, TcpError> {
        let mut addresses = self.context.config.bind.clone();
        if addresses.is_empty() {
            return Ok(addresses);
        }
        for address in &addresses {
            slackwater_net::Net::check_free(&slackwater_net::Endpoint::Tcp(*address))
                .map_err(|error| TcpError::System(error.to_string()))?;
        }
        for each in &self.loops {
            let (answer, answered) = mpsc::channel();
            each.command(Command::Listen {
                addresses: addresses.clone(),
                answer,
            });
            let bound = answered.recv_timeout(LISTEN_TIMEOUT);
            let bound = bound
                .map_err(|error| TcpError::System(format!("a loop does not answer: {error}")))?;
            addresses = bound.map_err(|error| TcpError::System(error.to_string()))?;
        }
        Ok(addresses)
    }

    /// Waits until the queue of a peer has room; the cause, when the caller does not want to wait.
    fn wait_for_room(
        &self,
        segment: &Segment,
        when_full: WhenFull,
        deadline: Instant,
    ) -> Result<(), Cause> {
        loop {
            let seen = self.context.room.seen();
            let Some(queued) = self.context.scheduler().full(segment) else {
                return Ok(());
            };
            if when_full == WhenFull::Exceed {
                return Ok(());
            }
            // A loop must not wait for itself.
            if when_full == WhenFull::Refuse || is_inside_a_loop() {
                return Err(Cause::Full { queued });
            }
            if self
                .context
                .room
                .wait(seen, &Waiting::at(&FULL).until(deadline))
                .is_err()
                && now() >= deadline
            {
                return Err(Cause::Full { queued });
            }
        }
    }

    /// Cuts a large job into one for each possible lane, and into none larger than every peer accepts.
    fn stripe(&self, job: Job) -> Vec<Job> {
        let config = &self.context.config;
        let bytes = job.buffers.bytes();
        let lanes = if bytes <= config.stripe_bytes_min {
            1
        } else {
            config.lanes_per_peer as u64
        };
        let slice = config.slice_bytes as u64;
        let share = bytes
            .div_ceil(lanes)
            .next_multiple_of(slice)
            .min(REQUEST_BYTES_MAX);
        if bytes <= share {
            return vec![job];
        }
        let count = bytes.div_ceil(share);
        let Job {
            op,
            buffers,
            remote,
            deadline,
            priority,
            part,
        } = job;
        let cut = part
            .split(count as u32)
            .into_iter()
            .zip(0u64..)
            .map(|(part, index)| Job {
                op,
                buffers: buffers.cut(index * share, share),
                remote: slackwater_engine::Remote {
                    offset: remote.offset + index * share,
                    ..remote
                },
                deadline,
                priority,
                part,
            });
        cut.collect()
    }

    fn submit_tasks(&self, segment: &Arc<Segment>, tasks: Vec<Task>) {
        self.context.schedule(None, |scheduler, now, actions| {
            scheduler.submit(segment, tasks, now, actions)
        });
    }
}

/// What the loops take of unauthenticated peers, each its part.
fn pre_auth_limits(config: &TcpConfig) -> PreAuthLimits {
    let part = |all: u32| (all / config.io_threads as u32).max(1);
    PreAuthLimits {
        rate: part(CONNECTIONS_PER_SECOND),
        rate_per_source: part(match config.seal {
            Some(_) => HANDSHAKES_PER_SECOND,
            None => CONNECTIONS_PER_SECOND,
        }),
        ..PreAuthLimits::default()
    }
}

fn check(config: &TcpConfig) -> Result<(), TcpError> {
    let wrong = |what: &str| Err(TcpError::Config(what.to_owned()));
    if config.io_threads == 0 || config.max_transfers == 0 || config.lanes_per_peer == 0 {
        return wrong("io_threads, max_transfers and lanes_per_peer must be at least 1");
    }
    if !(SLICE_BYTES_MIN..=SLICE_BYTES_MAX).contains(&config.slice_bytes) {
        return wrong(
            "slice_bytes must be from 64 KiB to 16 MiB, the largest frame that peers take",
        );
    }
    if config.stripe_bytes_min > REQUEST_BYTES_MAX || config.in_flight_bytes_max < REQUEST_BYTES_MAX
    {
        return wrong(
            "stripe_bytes_min must be at most 64 MiB, and in_flight_bytes_max at least that: so large is a request",
        );
    }
    if config.requests_max == 0 || config.connections_per_peer_max == 0 {
        return wrong("requests_max and connections_per_peer_max must be at least 1");
    }
    let allowed = config.insecure || config.seal.is_some();
    if let Some(address) = config
        .bind
        .iter()
        .find(|address| !address.ip().is_loopback() && !allowed)
    {
        return Err(TcpError::Config(format!(
            "refusing to listen on {address}: the bytes would travel in the open beyond this machine (give keys to seal them, or set insecure to do it all the same)"
        )));
    }
    Ok(())
}

impl std::fmt::Debug for Tcp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tcp")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        self.close();
    }
}
