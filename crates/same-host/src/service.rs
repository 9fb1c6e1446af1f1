use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use slackwater_base::Instant;
use slackwater_engine::{Access, Home, Notice, Revocation, SealConfig};
use slackwater_wait::{Site, Waiting, now};
use slackwater_wire::Incarnation;
use slackwater_wire::data::Refusal;
use zerocopy::FromBytes;

use super::attached_peer::AttachedPeer;
use super::doorway::Doorway;
use super::granted::{Answer, GrantedWindows, Revoked};
use super::link_seal;
use super::message::{PACKET_BYTES, Question};
use super::packets::{Listener, Packets, Received};
use super::process::Process;
use super::watched::Watched;

/// Bounds of one process's host service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceLimits {
    /// The most processes that may have this one's memory open at a time.
    pub peers: usize,
    /// The most windows that one of them may have open at a time; each takes 64 bytes.
    pub windows_per_peer: u32,
    /// How long a new connection may take to greet, and to prove its key.
    pub greeting: Duration,
    /// How long closing waits for copies of peers that are under way.
    pub closing: Duration,
}

impl Default for ServiceLimits {
    fn default() -> Self {
        Self {
            peers: 1024,
            windows_per_peer: 1024,
            greeting: Duration::from_secs(5),
            closing: Duration::from_secs(2),
        }
    }
}

/// One thread that gives other processes of the host windows on this one's memory, and notices when they end.
///
/// It sleeps in the kernel unless a peer connects, asks or ends; copies do not pass through it.
pub(crate) struct Service {
    shared: Arc<ServiceState>,
    name: String,
    thread: Mutex<Option<JoinHandle<()>>>,
}

pub(super) struct ServiceState {
    pub(super) boot: [u8; 16],
    pub(super) home: Arc<Home>,
    pub(super) limits: ServiceLimits,
    /// The keys without which no process is let in.
    pub(super) seal: Option<SealConfig>,
    /// Processes that were refused for their keys.
    pub(super) refused: AtomicU64,
    pub(super) poll: OwnedFd,
    pub(super) stop: OwnedFd,
    pub(super) started: u64,
    /// Bytes that a peer reads to find out whether it can read this process. Their address is fixed.
    pub(super) probe: Box<[u8; 16]>,
    pub(super) next_token: AtomicU64,
    pub(super) peers: Mutex<BTreeMap<u64, AttachedPeer>>,
    /// No window is given any more. Changed and read under the lock of the peers.
    pub(super) closing: AtomicBool,
    pub(super) watched: Mutex<BTreeMap<u64, Arc<Watched>>>,
}

const LISTENER: u64 = 0;
const STOP: u64 = 1;
const FIRST_TOKEN: u64 = 2;
const EVENTS: usize = 64;

impl Service {
    pub(crate) fn start(
        boot: [u8; 16],
        home: Arc<Home>,
        limits: ServiceLimits,
        seal: Option<SealConfig>,
    ) -> io::Result<Self> {
        let mut secret = [0; 24];
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        let (tail, probe) = secret.split_at(8);
        let name = format!(
            "slackwater-{:016x}-{:016x}",
            home.incarnation().0,
            u64::read_from_bytes(tail).unwrap_or(0)
        );
        let listener = Listener::bind(&name)?;
        let poll = epoll::create(CreateFlags::CLOEXEC)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // Edge-triggered: connections are accepted until none waits.
        epoll::add(
            &poll,
            &listener,
            EventData::new_u64(LISTENER),
            EventFlags::IN | EventFlags::ET,
        )?;
        epoll::add(&poll, &stop, EventData::new_u64(STOP), EventFlags::IN)?;
        let life = home.incarnation();
        let mut doorway = Doorway::new(boot, life, seal.clone(), limits.greeting, now());
        let shared = Arc::new(ServiceState {
            boot,
            home,
            limits,
            seal,
            refused: AtomicU64::new(0),
            poll,
            stop,
            started: Process::own_start()?,
            probe: Box::new(probe.try_into().unwrap_or_default()),
            next_token: AtomicU64::new(FIRST_TOKEN),
            peers: Mutex::default(),
            closing: AtomicBool::new(false),
            watched: Mutex::default(),
        });
        let rotated = Arc::downgrade(&shared);
        shared.home.when_rotated(Box::new(move || {
            let shared = rotated.upgrade();
            shared.iter().for_each(|shared| shared.take_back(|_| true));
            shared.is_some()
        }));
        if let Some(seal) = &shared.seal {
            let relisted = Arc::downgrade(&shared);
            seal.clients.when_changed(move || {
                let shared = relisted.upgrade();
                shared.iter().for_each(|shared| shared.look_up_keys());
                shared.is_some()
            });
        }
        let serving = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("slackwater-host".to_owned())
            .spawn(move || serving.run(&listener, &mut doorway))?;
        Ok(Self {
            shared,
            name,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// The name under which other processes of the host find it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn boot(&self) -> [u8; 16] {
        self.shared.boot
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.shared.home.incarnation()
    }

    /// The keys of this process, which it proves to others too.
    pub(crate) fn seal(&self) -> Option<&SealConfig> {
        self.shared.seal.as_ref()
    }

    /// Processes that were refused for their keys, or whose keys were taken from the list.
    pub(crate) fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// Ends every window on a region that is closing, or on an extent that was fenced.
    pub(crate) fn invalidate(&self, revoked: &Revocation) {
        self.shared.take_back(|access| revoked.covers(access));
    }

    /// Watches for the end of the peer of this socket, until [`Service::unwatch`].
    pub(crate) fn watch(&self, packets: &Packets, watched: &Arc<Watched>) -> io::Result<u64> {
        let token = self.shared.next_token.fetch_add(1, Ordering::Relaxed);
        lock(&self.shared.watched).insert(token, Arc::clone(watched));
        // Only the end is watched for, no answers are read here; it is reported once, though the socket stays open.
        let flags = EventFlags::RDHUP | EventFlags::ET;
        if let Err(errno) = epoll::add(&self.shared.poll, packets, EventData::new_u64(token), flags)
        {
            lock(&self.shared.watched).remove(&token);
            return Err(errno.into());
        }
        Ok(token)
    }

    /// Ends [`Service::watch`].
    pub(crate) fn unwatch(&self, token: u64) {
        lock(&self.shared.watched).remove(&token);
    }

    /// The number of processes that have this one's memory open, and of their windows.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let peers = self.shared.peers();
        peers.values().fold((0, 0), |(peers, windows), peer| {
            (peers + 1, windows + peer.granted.windows())
        })
    }

    /// Refuses new peers, revokes all windows, and waits a while for copies that are under way.
    ///
    /// Memory at which a peer is still copying then (a stopped process, for example) is never reused in this process:
    /// its region stays in use.
    pub(crate) fn close(&self) {
        let Some(thread) = lock(&self.thread).take() else {
            return;
        };
        let busy = self.shared.close_windows();
        let deadline = now() + self.shared.limits.closing;
        // The thread runs on meanwhile, so the wait ends for a peer that ends.
        for window in &busy {
            window
                .page
                .drain(window.slot, &Waiting::at(&DRAINING).until(deadline));
        }
        // The counter cannot be full: this is the only write to it.
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
        // A panic in it was reported where it happened.
        let _ = thread.join();
        let peers = std::mem::take(&mut *self.shared.peers());
        for AttachedPeer {
            granted, holder, ..
        } in peers.into_values()
        {
            let (busy, page) = (granted.is_busy(), Arc::clone(granted.page()));
            if busy {
                tracing::warn!(peer = %holder, "a process is still at memory of a closed engine, which is kept");
                std::mem::forget(granted);
            }
            // Ends all waits for the peers of a closed service.
            page.close();
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.close();
    }
}

pub(crate) static DRAINING: Site = Site::new("host fence");

impl ServiceState {
    /// Revokes the windows on the accesses that `which` selects. A window at which a peer is copying ends with the
    /// copy, or with the peer; a separate thread waits for that, since a peer may be stopped for long.
    fn take_back(self: &Arc<Self>, which: impl Fn(&Access) -> bool) {
        let busy = self.revoke(&mut self.peers(), which);
        self.wait_for(busy);
    }

    pub(super) fn wait_for(self: &Arc<Self>, busy: Vec<(u64, Revoked)>) {
        if busy.is_empty() {
            return;
        }
        let (shared, waiting) = (Arc::clone(self), busy.clone());
        let thread = thread::Builder::new().name("slackwater-fence".to_owned());
        if thread.spawn(move || shared.drain(&waiting)).is_err() {
            // Without a thread to wait, this one does: the window must be released in the end.
            self.drain(&busy);
        }
    }

    fn revoke(
        &self,
        peers: &mut BTreeMap<u64, AttachedPeer>,
        which: impl Fn(&Access) -> bool,
    ) -> Vec<(u64, Revoked)> {
        let revoked = peers.iter_mut().flat_map(|(token, peer)| {
            let windows = peer.granted.revoke(&which).into_iter();
            windows.map(move |window| (*token, window))
        });
        revoked.collect()
    }

    /// Gives no more windows; returns those at which a peer is copying.
    fn close_windows(&self) -> Vec<Revoked> {
        let mut peers = self.peers();
        self.closing.store(true, Ordering::Relaxed);
        self.revoke(&mut peers, |_| true)
            .into_iter()
            .map(|(_, window)| window)
            .collect()
    }

    /// Waits until no copy is in flight at these windows, and releases them.
    fn drain(&self, windows: &[(u64, Revoked)]) {
        for (token, window) in windows {
            // Without the lock: a peer that ends is closed by the service's thread, which ends the wait.
            window.page.drain(window.slot, &Waiting::at(&DRAINING));
            if let Some(peer) = self.peers().get_mut(token) {
                peer.granted.release(window);
            }
        }
    }

    pub(super) fn peers(&self) -> MutexGuard<'_, BTreeMap<u64, AttachedPeer>> {
        lock(&self.peers)
    }

    fn run(self: &Arc<Self>, listener: &Listener, doorway: &mut Doorway) {
        let mut buffer = vec![0; PACKET_BYTES];
        let mut events = Vec::with_capacity(EVENTS);
        // When to accept again, while connections wait that could not be taken.
        let mut accept_again: Option<Instant> = None;
        loop {
            let at = now();
            doorway.drop_silent(at);
            if accept_again.is_some_and(|again| again <= at) {
                accept_again = doorway.accept(listener, &self.poll, &self.next_token, at);
            }
            let timeout = timeout(doorway.next_deadline().into_iter().chain(accept_again));
            events.clear();
            match epoll::wait(
                &self.poll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                // The descriptors are this service's own; without them there is nothing to serve.
                Err(_) => return,
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => {
                        accept_again =
                            doorway.accept(listener, &self.poll, &self.next_token, now());
                    }
                    STOP => return,
                    token if doorway.has(token) => {
                        let entrant = doorway.serve(token, &mut buffer, now(), &self.refused);
                        if let Some(entrant) = entrant {
                            self.let_in(token, entrant);
                        }
                    }
                    token if self.ended(token) => {}
                    token => self.serve(token, &mut buffer),
                }
            }
        }
    }

    /// Whether the event is the end of a peer whose memory this process has open.
    fn ended(&self, token: u64) -> bool {
        let Some(watched) = lock(&self.watched).remove(&token) else {
            return false;
        };
        watched.end();
        true
    }

    /// Answers a peer, or ends its connection.
    fn serve(self: &Arc<Self>, token: u64, buffer: &mut [u8]) {
        let mut peers = self.peers();
        let Some(peer) = peers.get_mut(&token) else {
            return;
        };
        // One question: further ones are reported again, after the other peers had their turn.
        let stays = match (peer.expelled, peer.packets.receive(buffer)) {
            (true, _) => false,
            (_, Ok(Received::Packet(len, _))) => {
                let text = link_seal::open(peer.seal.as_mut(), buffer, len);
                text.is_ok_and(|len| self.answer(peer, &buffer[..len]))
            }
            (_, Ok(Received::Nothing)) => true,
            (_, Ok(Received::Closed) | Err(_)) => false,
        };
        if stays {
            return;
        }
        if !peer.packets.is_closed() {
            let busy = self.expel(token, peer);
            drop(peers);
            return self.wait_for(busy);
        }
        let Some(peer) = peers.remove(&token) else {
            return;
        };
        drop(peers);
        // The kernel closes a process's sockets after its last thread has left user memory (and its system calls), so
        // nothing of that process is in flight any more; and one that closes a link itself has no copy on it.
        peer.granted.page().close();
    }

    /// Says whether the peer keeps to the protocol.
    fn answer(&self, peer: &mut AttachedPeer, packet: &[u8]) -> bool {
        let Some(answer) = self.attach(&mut peer.granted, peer.holder, packet) else {
            return false;
        };
        let (seal, parts) = (peer.seal.as_mut(), [answer.bytes.as_slice()]);
        link_seal::send(&peer.packets, seal, &parts, &answer.descriptors()).is_ok()
    }

    /// Revokes everything from a peer. It may be alive and in the middle of a copy: so its end is still watched for, and
    /// nothing else.
    pub(super) fn expel(&self, token: u64, peer: &mut AttachedPeer) -> Vec<(u64, Revoked)> {
        // Without it the loop would be woken for every packet that is not read.
        let _ = epoll::modify(
            &self.poll,
            &peer.packets,
            EventData::new_u64(token),
            EventFlags::RDHUP,
        );
        peer.expelled = true;
        let revoked = peer.granted.revoke(|_| true).into_iter();
        let busy = revoked.map(|window| (token, window)).collect();
        // Last: a peer that sees the end of its link finds nothing that it may still begin.
        peer.packets.hang_up();
        busy
    }

    /// `None` when the question breaks the protocol.
    fn attach(
        &self,
        granted: &mut GrantedWindows,
        from: Incarnation,
        packet: &[u8],
    ) -> Option<Answer> {
        let question = Question::read(packet)?;
        let noticed = question.head.notices.get() > 0 && {
            let name = String::from_utf8(question.notice_name.to_vec()).ok()?;
            let bytes = question.notice_bytes.to_vec();
            self.home.deliver(from, Notice { name, bytes })
        };
        granted.detach(question.detach);
        let capabilities = question.attach;
        let mut answer = Answer::new(question.head.question, capabilities.len(), noticed);
        // Under the lock that an invalidation takes after the region was closed, and a rotation after the key was
        // changed: either the access is refused here, or they find the window.
        for capability in capabilities {
            if self.closing.load(Ordering::Relaxed) {
                answer.refuse(Refusal::Closing.number().into());
                continue;
            }
            // A window allows all that the capability does.
            let claims = capability.claims();
            let range = (claims.offset, claims.bytes);
            match self.home.admit(capability, claims.rights, range, from) {
                Ok(access) => granted.open(access, &mut answer),
                Err(refusal) => answer.refuse(refusal.number().into()),
            }
        }
        Some(answer)
    }
}

/// How long to sleep: for ever, unless something has a time.
fn timeout(times: impl Iterator<Item = Instant>) -> Option<Timespec> {
    let left = now().until(times.min()?);
    Some(Timespec {
        tv_sec: left.as_secs().cast_signed(),
        tv_nsec: i64::from(left.subsec_nanos()),
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
