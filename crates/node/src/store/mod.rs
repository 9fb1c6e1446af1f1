//! The embedded store: both tiers inside the calling process.
//!
//! One lock guards the master and the node's agent (`Core`). A call asks under the lock, moves its bytes outside it, and
//! concludes under it again. A call that must wait for space or durability waits for its own answer (`slackwater-wait`). One
//! thread sleeps in the device, another until the next deadline; an idle store uses no processor time.

mod apart;
mod copier;
mod core;
mod error;
mod explain;
mod get;
mod inspect;
mod learned;
mod list;
pub(crate) mod meters;
mod metrics;
mod open;
mod options;
mod put;
pub(crate) mod remote;
mod shared;
mod sink;
pub(crate) mod slot;
mod socket;
mod stats;
mod view;
mod views;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_meta::{Books, Imbalance, Master};
use slackwater_trace::{SpanKind, TraceSpan};
use slackwater_wait::now;
use slackwater_wire::{
    Description, ErrorCode, Exists, Key, KeyList, MetricsFormat, QuotaState, Remove, RemoveAll,
    RemoveMatching, Reply, Request, SegmentState, Tenant, limits,
};

pub use error::{OpenError, StoreError};
pub use explain::{Learned, Reason, ReturnChance, Viewed};
pub use inspect::{Explanation, ExplanationSource, explain_at};
pub use options::{GetOptions, Got, PutOptions, RemoveOptions, Stored, Tier, Verify, ViewOptions};
pub use stats::{
    EvictionRules, Flow, Latencies, Latency, Phases, PutStats, ReadStats, SsdStats, Stats,
    TierStats, ViewStats, WaitStats,
};
pub use view::View;

pub(crate) use self::open::{GRANULE, Identity, Sharing, no_randomness, pool_config, random};
use self::shared::Shared;
use self::sink::Sink;
use self::socket::AnswerSocket;
use crate::config::Config;
use crate::host::Stopped;
use crate::prometheus::Text;

/// The name of the one memory segment.
const MEMORY_NAME: &str = "memory";

/// A tiered store inside this process. Clones share it; the last one that goes closes it.
///
/// Keys are 1 to 1,024 bytes, values 1 byte up to the size of memory. Every call is safe from any thread.
#[derive(Clone)]
pub struct Store {
    handle: Arc<Handle>,
}

/// The store and its threads, ended when the last user goes.
struct Handle {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Where others ask; taken away before the store ends.
    socket: Mutex<Option<AnswerSocket>>,
}

impl Store {
    /// Opens a store, and with an SSD tier everything that its directory holds from before.
    ///
    /// # Errors
    /// When the configuration contradicts itself, the directory is held by another process or cannot be used, what is
    /// in it is no log of this version, or the operating system refuses memory, threads or the device.
    pub fn open(config: Config) -> Result<Store, OpenError> {
        Self::open_for(config, None)
    }

    /// Opens a store whose memory other processes reach as well, through a gate.
    pub(crate) fn open_for(config: Config, shared: Option<Sharing>) -> Result<Store, OpenError> {
        Ok(Self {
            handle: Arc::new(open::open(config, shared)?),
        })
    }

    /// Puts one value. Returns when it is visible, and with [`slackwater_wire::Durability::Disk`] durable.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`] after waiting as long as `options` or the configuration say; refusals of the key, the
    /// value or the tenant; the deadline.
    pub fn put(
        &self,
        key: &[u8],
        value: &[u8],
        options: &PutOptions,
    ) -> Result<Stored, StoreError> {
        only(self.put_batch(&[(key, value)], options))
    }

    /// Puts values, a result each; one that fails does not touch its neighbours. Of equal keys the first wins.
    pub fn put_batch(
        &self,
        entries: &[(&[u8], &[u8])],
        options: &PutOptions,
    ) -> Vec<Result<Stored, StoreError>> {
        self.shared().write(entries, options)
    }

    /// Reads one value into fresh memory; `None` when there is none.
    ///
    /// # Errors
    /// Refusals of the key or the tenant.
    pub fn get(&self, key: &[u8], options: &GetOptions) -> Result<Option<Vec<u8>>, StoreError> {
        only(self.get_batch(&[key], options))
    }

    /// Reads values into fresh memory, a result each.
    pub fn get_batch(
        &self,
        keys: &[&[u8]],
        options: &GetOptions,
    ) -> Vec<Result<Option<Vec<u8>>, StoreError>> {
        let mut sinks: Vec<Sink<'_>> = keys.iter().map(|_| Sink::Fresh(Vec::new())).collect();
        let outcomes = self.shared().read(keys, &mut sinks, options);
        let value = |(outcome, sink): (get::Outcome, Sink<'_>)| match (outcome?, sink) {
            (Some(_), Sink::Fresh(value)) => Ok(Some(value)),
            _ => Ok(None),
        };
        outcomes.into_iter().zip(sinks).map(value).collect()
    }

    /// Reads one value into the front of the caller's buffer; `None` when there is none. The buffer's other bytes, and
    /// all of them when nothing is returned, are of no meaning afterwards.
    ///
    /// A read from SSD into a buffer that begins on a block (4,096 bytes) needs no copy.
    ///
    /// # Errors
    /// [`StoreError::BufferTooSmall`]; refusals of the key or the tenant.
    pub fn get_into(
        &self,
        key: &[u8],
        buffer: &mut [u8],
        options: &GetOptions,
    ) -> Result<Option<Got>, StoreError> {
        only(
            self.shared()
                .read(&[key], &mut [Sink::Given(buffer)], options),
        )
    }

    /// Reads values into the caller's buffers, a result each, in the order of the keys. Reads from SSD run beside each
    /// other.
    pub fn get_batch_into(
        &self,
        keys: &[&[u8]],
        buffers: &mut [&mut [u8]],
        options: &GetOptions,
    ) -> Vec<Result<Option<Got>, StoreError>> {
        let (count, given) = (keys.len(), buffers.len());
        if count != given {
            return keys
                .iter()
                .map(|_| {
                    Err(StoreError::BufferCount {
                        keys: count,
                        buffers: given,
                    })
                })
                .collect();
        }
        let mut sinks: Vec<Sink<'_>> = buffers
            .iter_mut()
            .map(|buffer| Sink::Given(buffer))
            .collect();
        self.shared().read(keys, &mut sinks, options)
    }

    /// Shows one value where it lies, without a copy; `None` when there is none. Its bytes stay as they are until the
    /// view is dropped, whatever becomes of the key and of the store meanwhile.
    ///
    /// # Errors
    /// Too many views, or one that is open for too long; [`StoreError::NoViewBuffer`]; refusals of the key or the tenant.
    pub fn view(&self, key: &[u8], options: &ViewOptions) -> Result<Option<View>, StoreError> {
        only(self.view_batch(&[key], options))
    }

    /// Shows values where they lie, a result each, in the order of the keys.
    pub fn view_batch(
        &self,
        keys: &[&[u8]],
        options: &ViewOptions,
    ) -> Vec<Result<Option<View>, StoreError>> {
        self.handle.shared.view(keys, options)
    }

    /// Whether objects are there, a truth each.
    ///
    /// # Errors
    /// When one of the keys is empty or too long, or the tenant is refused.
    pub fn exists(&self, keys: &[&[u8]], tenant: &Tenant) -> Result<Vec<bool>, StoreError> {
        let span = TraceSpan::root("slackwater.exists", SpanKind::Internal).keys(keys.len());
        span.call(|| self.are_there(keys, tenant), StoreError::code)
    }

    fn are_there(&self, keys: &[&[u8]], tenant: &Tenant) -> Result<Vec<bool>, StoreError> {
        let mut truths = Vec::with_capacity(keys.len());
        for piece in keys.chunks(limits::BATCH_KEYS_MAX) {
            let exists = Exists {
                tenant: tenant.clone(),
                keys: KeyList::new(piece.iter().copied())?,
            };
            match self.ask("exists", Request::Exists(exists))? {
                Reply::Exists(piece) => truths.extend(piece),
                reply => return Err(refusal(&reply)),
            }
        }
        Ok(truths)
    }

    /// Removes objects, a result each. When it returns, no crash can bring them back.
    pub fn remove(&self, keys: &[&[u8]], options: &RemoveOptions) -> Vec<Result<(), StoreError>> {
        let span = TraceSpan::root("slackwater.remove", SpanKind::Internal).keys(keys.len());
        let pieces = keys.chunks(limits::BATCH_KEYS_MAX);
        let removed = pieces.flat_map(|piece| self.remove_piece(piece, options));
        span.call_each(|| removed.collect(), StoreError::code)
    }

    fn remove_piece(&self, keys: &[&[u8]], options: &RemoveOptions) -> Vec<Result<(), StoreError>> {
        let mut results: Vec<Result<(), StoreError>> = Vec::with_capacity(keys.len());
        let mut named = Vec::with_capacity(keys.len());
        for (at, key) in keys.iter().enumerate() {
            let key = Key::new(key).map(|key| named.push((at, key)));
            results.push(key.map_err(StoreError::from));
        }
        let keys = named.iter().map(|(_, key)| key.clone()).collect();
        let (tenant, force) = (options.tenant.clone(), options.force);
        match self.ask(
            "a removal",
            Request::Remove(Remove {
                tenant,
                keys,
                force,
            }),
        ) {
            Ok(Reply::Each(codes)) => {
                for ((at, key), code) in named.into_iter().zip(codes) {
                    results[at] = code.map_err(|code| StoreError::Refused { key, code });
                }
            }
            other => {
                let error = other.map_or_else(|error| error, |reply| refusal(&reply));
                named
                    .into_iter()
                    .for_each(|(at, _)| results[at] = Err(error.clone()));
            }
        }
        results
    }

    /// Removes every object in whose key the regular expression is found; says how many.
    ///
    /// # Errors
    /// When the pattern is no regular expression, or the deadline passes.
    pub fn remove_matching(
        &self,
        pattern: &str,
        options: &RemoveOptions,
    ) -> Result<u64, StoreError> {
        let (tenant, pattern, force) = (options.tenant.clone(), pattern.to_owned(), options.force);
        self.remove_by(Request::RemoveMatching(RemoveMatching {
            tenant,
            pattern,
            force,
        }))
    }

    /// Removes every object of the tenant; says how many.
    ///
    /// # Errors
    /// When the deadline passes.
    pub fn remove_all(&self, options: &RemoveOptions) -> Result<u64, StoreError> {
        let (tenant, force) = (Some(options.tenant.clone()), options.force);
        self.remove_by(Request::RemoveAll(RemoveAll { tenant, force }))
    }

    /// Removes every object of every tenant, those too that readers hold leases on if `force`; says how many.
    ///
    /// # Errors
    /// When the deadline passes.
    pub fn remove_all_of_all(&self, force: bool) -> Result<u64, StoreError> {
        let tenant = None;
        self.remove_by(Request::RemoveAll(RemoveAll { tenant, force }))
    }

    fn remove_by(&self, request: Request) -> Result<u64, StoreError> {
        let span = TraceSpan::root("slackwater.remove", SpanKind::Internal);
        let removed = || count(&self.ask("a removal", request)?);
        span.call(removed, StoreError::code)
    }

    /// Everything known about one object; neither a read nor a lease.
    ///
    /// # Errors
    /// When the key is empty or too long.
    pub fn describe(&self, key: &[u8], tenant: &Tenant) -> Result<Option<Description>, StoreError> {
        let (tenant, key) = (tenant.clone(), Key::new(key)?);
        match self.ask("a description", Request::Describe { tenant, key })? {
            Reply::Describe(description) => Ok(Some(*description)),
            Reply::Failed(ErrorCode::ObjectNotFound) => Ok(None),
            reply => Err(refusal(&reply)),
        }
    }

    /// Why each tier keeps an object, or will let it go; `None` when there is no such object. Neither a read nor a lease.
    ///
    /// # Errors
    /// When the key is empty or too long.
    pub fn explain(&self, key: &[u8], tenant: &Tenant) -> Result<Option<Vec<Reason>>, StoreError> {
        self.shared().explain(key, tenant)
    }

    /// Sets or changes the byte quota of a tenant.
    ///
    /// # Errors
    /// When tenants are not told apart.
    pub fn set_quota(
        &self,
        tenant: &Tenant,
        memory_bytes: u64,
        disk_bytes: u64,
    ) -> Result<(), StoreError> {
        done(&self.ask(
            "a quota",
            Request::SetQuota {
                tenant: tenant.clone(),
                memory_bytes,
                disk_bytes,
            },
        )?)
    }

    /// Forgets the quota of a tenant that has no objects.
    ///
    /// # Errors
    /// When the tenant is unknown or has objects.
    pub fn delete_quota(&self, tenant: &Tenant) -> Result<(), StoreError> {
        done(&self.ask(
            "a quota",
            Request::DeleteQuota {
                tenant: tenant.clone(),
            },
        )?)
    }

    /// Quotas and use of every tenant that has either.
    ///
    /// # Errors
    /// When the store is closed or broken.
    pub fn quotas(&self) -> Result<Vec<QuotaState>, StoreError> {
        match self.ask("quotas", Request::Quotas)? {
            Reply::Quotas(quotas) => Ok(quotas),
            reply => Err(refusal(&reply)),
        }
    }

    /// The segments and how full they are.
    ///
    /// # Errors
    /// When the store is closed or broken.
    pub fn segments(&self) -> Result<Vec<SegmentState>, StoreError> {
        Ok(self
            .look(|master, _| master.segments())?
            .unwrap_or_default())
    }

    /// Counts everything again that the master holds and compares it with its totals. All other calls wait meanwhile, for a
    /// time linear in the number of objects.
    ///
    /// # Errors
    /// When the store is closed or broken; the inner error says which total is wrong.
    pub fn check_books(&self) -> Result<Result<Books, Imbalance>, StoreError> {
        let checked = self.look(|master, _| master.check_books())?;
        checked.ok_or(StoreError::RefusedCall(ErrorCode::UnavailableInCurrentMode))
    }

    /// What the store counts. Of a closed store, what it counted last.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared().stats()
    }

    /// Metrics in a text form.
    #[must_use]
    pub fn metrics_text(&self, format: MetricsFormat) -> String {
        let mut text = Text::new(format);
        self.write_metrics(&mut text);
        text.finish()
    }

    pub(crate) fn write_metrics(&self, text: &mut Text) {
        self.shared().write_metrics(text);
    }

    /// Moves the store's clock to at least `since_open` after it was opened, as if the caller had waited: what is
    /// on its way between the tiers arrives, leases and pins end, and eviction sees the ages that its policy would have
    /// seen. For replays that are faster than what they replay.
    ///
    /// # Errors
    /// When the store is closed or broken, and [`StoreError::Deadline`] when the SSD does not get done.
    pub fn skip_to(&self, since_open: Duration) -> Result<(), StoreError> {
        let shared = self.shared();
        shared.check_open()?;
        if shared.clock.is_ahead_of(since_open) {
            return Ok(());
        }
        let (resting, _flushed) = shared.with(|core, now| (core.rest(now), core.flush(now)))?;
        shared.wait_in_time("what is under way", resting)?;
        shared.clock.skip_to(since_open);
        shared.with(|core, now| {
            core.on_deadline(now);
            // The steward sleeps until a moment of the clock as it was.
            core.steward_wakes = Instant::NEVER;
        })
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.shared().config
    }

    /// Returns when everything queued for SSD is durable.
    ///
    /// # Errors
    /// [`StoreError::Deadline`] when that takes longer.
    pub fn flush(&self, deadline: Duration) -> Result<(), StoreError> {
        self.shared().check_open()?;
        let shared = self.shared();
        let flushed = shared.with(|core, now| core.flush(now))?;
        let waiting = shared.waits.at(&shared.waits.flush);
        flushed
            .wait_until(now() + deadline, waiting)
            .unwrap_or(Err(StoreError::Deadline {
                what: "a flush",
                after: deadline,
            }))
    }

    /// Makes everything queued for SSD durable and ends the store; later calls on clones answer
    /// [`StoreError::Closed`]. What the SSD does not take, and nobody was promised, is a cache's loss: it is counted in
    /// [`SsdStats::unwritten_at_close`] and in a line of the log.
    ///
    /// # Errors
    /// [`StoreError::NotDurable`] when the SSD did not take what a caller waited for and was not told of, and
    /// [`StoreError::Deadline`] when the end did not come within the configured time. The store is closed all the same.
    pub fn close(self) -> Result<(), StoreError> {
        self.handle.close()
    }

    fn shared(&self) -> &Shared {
        &self.handle.shared
    }

    /// Looks at its master; `None` when that is in another process.
    fn look<T>(&self, look: impl FnOnce(&Master, Instant) -> T) -> Result<Option<T>, StoreError> {
        self.with_master(|master, now| look(master, now))
    }

    /// Does something with its master; `None` when that is in another process.
    pub(crate) fn with_master<T>(
        &self,
        step: impl FnOnce(&mut Master, Instant) -> T,
    ) -> Result<Option<T>, StoreError> {
        let shared = self.shared();
        shared.check_open()?;
        shared.with(|core, now| core.master_mut().map(|master| step(master, now)))
    }

    /// Makes a request of its master and waits for the answer.
    pub(crate) fn ask(&self, what: &'static str, request: Request) -> Result<Reply, StoreError> {
        self.shared().check_open()?;
        self.shared().ask(what, request)
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let config = self.config();
        f.debug_struct("Store")
            .field("memory", &config.memory)
            .field("ssd", &config.ssd)
            .finish_non_exhaustive()
    }
}

impl Handle {
    fn close(&self) -> Result<(), StoreError> {
        if !self.shared.close() {
            return Ok(());
        }
        drop(
            self.socket
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        self.shared.save_learned();
        let open = self.shared.with(|core, _| core.views.stats().open);
        if let Ok(views @ 1..) = open {
            tracing::info!(
                views,
                "closed while views are open: the memory of values stays until they end"
            );
        }
        let stopped = self
            .shared
            .with(|core, now| core.stop(now))
            .and_then(|stopped| {
                let Stopped {
                    lost,
                    promised,
                    given_back,
                } = self.shared.wait_in_time("closing", stopped)?;
                let unwritten = lost + given_back;
                self.shared.unwritten.store(unwritten as u64, Ordering::Relaxed);
                let dropped = unwritten - promised;
                if dropped > 0 {
                    tracing::warn!(
                        dropped,
                        "closed while the SSD took no more: these records and removals were not written"
                    );
                }
                match promised {
                    0 => Ok(()),
                    records => Err(StoreError::NotDurable { records }),
                }
            });
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.end(threads);
        stopped
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(%error, "the store was not closed cleanly");
        }
    }
}

fn only<T>(mut outcomes: Vec<Result<T, StoreError>>) -> Result<T, StoreError> {
    outcomes.pop().expect("one outcome for one key")
}

/// The count in a reply.
pub(crate) fn count(reply: &Reply) -> Result<u64, StoreError> {
    if let Reply::Count(count) = reply {
        Ok(*count)
    } else {
        Err(refusal(reply))
    }
}

/// Whether a reply says that it is done.
pub(crate) fn done(reply: &Reply) -> Result<(), StoreError> {
    if *reply == Reply::Done {
        Ok(())
    } else {
        Err(refusal(reply))
    }
}

/// What a reply of another kind than the request's means.
pub(crate) fn refusal(reply: &Reply) -> StoreError {
    match reply {
        Reply::Failed(code) => StoreError::RefusedCall(*code),
        _ => StoreError::RefusedCall(ErrorCode::InternalError),
    }
}

#[cfg(test)]
mod effects;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod view_tests;
