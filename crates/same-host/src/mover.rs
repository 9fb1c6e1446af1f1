use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slackwater_engine::{
    Abilities, BatchId, Carried, Cause, Home, Job, Mover, Notice, Part, PeerStats, Revocation,
    SealConfig, SingleRequest, Submission, boot_id,
};
use slackwater_wire::Incarnation;
use slackwater_wire::data::{HostContact, Segment};
use thiserror::Error;

use super::copy_threads::CopyThreads;
use super::peer::HostPeer;
use super::service::{Service, ServiceLimits};

/// Copies between processes of one host: shared memory is mapped and copied by address, other memory is copied by the
/// kernel from process to process. The initiator does all of it; the owner's processor takes no part.
#[derive(Debug)]
pub struct HostMover {
    boot_id: String,
    service: Arc<Service>,
    copy_threads: Arc<CopyThreads>,
    fallback: Option<Arc<dyn Mover>>,
    limits: HostLimits,
    peers: Mutex<BTreeMap<Incarnation, Arc<HostPeer>>>,
}

/// Bounds of a [`HostMover`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLimits {
    /// Bounds on what other processes have open of this one.
    pub service: ServiceLimits,
    /// The threads that copy submitted requests.
    pub copy_threads: usize,
    /// Submissions of no more than this are copied by the thread that submits them.
    pub inline_bytes_max: u64,
    /// The most unfinished jobs to one peer.
    pub queue_entries: usize,
    /// How long a process may take to answer; after that it is not reached this way.
    pub answer_timeout: Duration,
    /// How long until it is tried again.
    pub retry_after: Duration,
}

impl Default for HostLimits {
    fn default() -> Self {
        Self {
            service: ServiceLimits::default(),
            copy_threads: 2,
            inline_bytes_max: 1 << 20,
            queue_entries: 65_536,
            answer_timeout: Duration::from_secs(2),
            retry_after: Duration::from_secs(30),
        }
    }
}

/// Why there is no mover between the processes of this host.
#[derive(Debug, Error)]
pub enum HostError {
    /// The kernel refused a socket, a thread or memory.
    #[error("host mover: {0}")]
    System(#[from] io::Error),
    /// The copy threads did not start.
    #[error("host mover: {0}")]
    Pool(#[from] slackwater_pool::PoolError),
}

impl HostMover {
    /// Opens `home` to the other processes of this host, and theirs to it. Requests that turn out not to go this way go
    /// to `fallback`.
    ///
    /// # Errors
    /// The kernel refuses what it needs.
    pub fn start(
        home: &Arc<Home>,
        limits: HostLimits,
        fallback: Option<Arc<dyn Mover>>,
    ) -> Result<Self, HostError> {
        Self::with_keys(home, limits, None, fallback)
    }

    /// The same; with keys, between processes that have proven theirs, of which the list of the owner of memory says that
    /// they may map it ([`AllowList::maps`](crate::AllowList::maps)). Others go to `fallback`.
    ///
    /// # Errors
    /// As [`HostMover::start`].
    pub fn with_keys(
        home: &Arc<Home>,
        limits: HostLimits,
        seal: Option<SealConfig>,
        fallback: Option<Arc<dyn Mover>>,
    ) -> Result<Self, HostError> {
        let boot_id = boot_id()?;
        let boot = boot_number(&boot_id)?;
        let service = Service::start(boot, Arc::clone(home), limits.service, seal)?;
        Ok(Self {
            boot_id,
            service: Arc::new(service),
            copy_threads: CopyThreads::start(limits.copy_threads)?,
            fallback,
            limits,
            peers: Mutex::default(),
        })
    }

    /// How the other processes find this one: to be published with the segment.
    #[must_use]
    pub fn contact(&self) -> HostContact {
        HostContact {
            boot_id: self.boot_id.clone(),
            pid: std::process::id(),
            socket: self.service.name().to_owned(),
        }
    }

    /// Why requests to this segment go another way at present, or some of them do.
    #[must_use]
    pub fn why_not(&self, segment: &Segment) -> Option<String> {
        match &segment.host {
            None => Some("the segment names no host".to_owned()),
            Some(contact) if contact.boot_id != self.boot_id => Some("another host".to_owned()),
            Some(_) => self.known(segment)?.why_not(),
        }
    }

    /// The number of processes that have memory of this one open, and of their windows.
    #[must_use]
    pub fn open_windows(&self) -> (usize, usize) {
        self.service.counts()
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<Incarnation, Arc<HostPeer>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, segment: &Segment) -> Option<Arc<HostPeer>> {
        self.peers().get(&segment.incarnation).map(Arc::clone)
    }

    fn peer(&self, segment: &Arc<Segment>) -> io::Result<Arc<HostPeer>> {
        let mut peers = self.peers();
        if let Some(peer) = peers.get(&segment.incarnation) {
            return Ok(Arc::clone(peer));
        }
        let (service, copy_threads) = (Arc::clone(&self.service), Arc::clone(&self.copy_threads));
        let peer = Arc::new(HostPeer::new(
            Arc::clone(segment),
            service,
            copy_threads,
            self.fallback.clone(),
            self.limits,
        )?);
        peers.insert(segment.incarnation, Arc::clone(&peer));
        // Processes that have ended have left a thread each.
        let ended: Vec<Arc<HostPeer>> = peers
            .extract_if(.., |_, peer| peer.is_over())
            .map(|(_, peer)| peer)
            .collect();
        drop(peers);
        ended.iter().for_each(|peer| peer.close());
        Ok(peer)
    }

    fn give_up(&self, cause: impl Fn(&Job) -> Option<Cause>) {
        let peers: Vec<Arc<HostPeer>> = self.peers().values().map(Arc::clone).collect();
        peers.iter().for_each(|peer| peer.give_up(&cause));
    }

    fn with_peer(&self, segment: &Arc<Segment>, part: Part, what: impl FnOnce(&HostPeer, Part)) {
        match self.peer(segment) {
            Ok(peer) => what(&peer, part),
            Err(error) => part.fail(Cause::Unreachable(error.to_string())),
        }
    }
}

/// The 128 bits of a boot id, which the kernel writes as a UUID.
fn boot_number(boot_id: &str) -> io::Result<[u8; 16]> {
    let digits: String = boot_id.chars().filter(|&digit| digit != '-').collect();
    let number = u128::from_str_radix(&digits, 16).map_err(io::Error::other)?;
    Ok(number.to_be_bytes())
}

impl Mover for HostMover {
    fn name(&self) -> &'static str {
        "host"
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            one_sided: true,
            ..Abilities::HOST
        }
    }

    fn reaches(&self, segment: &Segment) -> bool {
        let here = segment
            .host
            .as_ref()
            .is_some_and(|contact| contact.boot_id == self.boot_id);
        here && self.known(segment).is_none_or(|peer| !peer.is_shut())
    }

    fn invalidate(&self, revoked: &Revocation) {
        self.service.invalidate(revoked);
        if revoked.extent.is_none() {
            self.give_up(|job| job.buffers.closing());
        }
    }

    fn submit(&self, segment: &Arc<Segment>, submission: Submission) -> Vec<Job> {
        match self.peer(segment) {
            Ok(peer) => peer.submit(submission.jobs, submission.when_full),
            // There is no thread to be had; another mover may need none.
            Err(_) => submission.jobs,
        }
    }

    fn carry_now(&self, segment: &Arc<Segment>, single: SingleRequest) -> Carried {
        match self.known(segment) {
            Some(peer) => peer.carry_now(single),
            None => Carried::Back(single),
        }
    }

    fn cancel(&self, batch: BatchId) {
        self.give_up(|job| (job.part.batch() == batch).then_some(Cause::Cancelled));
    }

    fn fence(&self, segment: &Arc<Segment>, part: Part) {
        self.with_peer(segment, part, HostPeer::fence);
    }

    fn notify(&self, segment: &Arc<Segment>, notice: Notice, part: Part) {
        self.with_peer(segment, part, |peer, part| peer.notify(notice, part));
    }

    fn probe(&self, segment: &Arc<Segment>, deadline: slackwater_base::Instant, part: Part) {
        self.with_peer(segment, part, |peer, part| peer.probe(deadline, part));
    }

    fn stats(&self, segment: &Segment) -> PeerStats {
        self.known(segment)
            .map(|peer| peer.stats())
            .unwrap_or_default()
    }

    fn metrics(&self) -> Vec<(&'static str, u64)> {
        let (attached, windows) = self.service.counts();
        vec![
            ("peers_attached", attached as u64),
            ("windows_open", windows as u64),
            ("peers_refused", self.service.refused()),
        ]
    }

    fn close(&self) {
        let peers = std::mem::take(&mut *self.peers());
        peers.values().for_each(|peer| peer.close());
        self.copy_threads.settle();
        self.service.close();
    }
}

impl Drop for HostMover {
    fn drop(&mut self) {
        self.close();
    }
}
