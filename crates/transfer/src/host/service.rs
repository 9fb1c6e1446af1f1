use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::process::geteuid;
use slackwater_base::Instant;
use slackwater_wait::{Site, Waiting, now};
use slackwater_wire::Incarnation;
use slackwater_wire::data::{Capability, Refusal};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::attached_peer::{AttachState, AttachedPeer};
use super::granted::{Answer, GrantedWindows, Revoked};
use super::message::{
    ATTACH_MAX, Attach, GOODBYE_BOOT, GOODBYE_CLOSING, GOODBYE_FULL, GOODBYE_INCARNATION,
    GOODBYE_USER, GOODBYE_VERSION, Goodbye, Hello, MAGIC, NOTICE_MAX, PACKET_MAX, VERSION, Welcome,
    split,
};
use super::packets::{Listener, Packets, Received};
use super::page::ControlPage;
use super::process::Process;
use crate::home::Home;
use crate::mover::Notice;
use crate::region::{Access, Revocation};

/// Bounds of one process's host service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceLimits {
    /// The most processes that may have this one's memory open at a time.
    pub peers: usize,
    /// The most windows that one of them may have open at a time; each takes 64 bytes.
    pub windows_per_peer: u32,
    /// How long a new connection may take to greet.
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

struct ServiceState {
    boot: [u8; 16],
    home: Arc<Home>,
    limits: ServiceLimits,
    poll: OwnedFd,
    stop: OwnedFd,
    started: u64,
    /// Bytes that a peer reads to find out whether it can read this process. Their address is fixed.
    probe: Box<[u8; 16]>,
    next_token: AtomicU64,
    peers: Mutex<BTreeMap<u64, AttachedPeer>>,
    /// No window is given any more. Changed and read under the lock of the peers.
    closing: AtomicBool,
    watched: Mutex<BTreeMap<u64, Arc<Watched>>>,
}

/// A link whose end is watched for.
pub(crate) struct Watched {
    gone: AtomicBool,
    tell: Box<dyn Fn() + Send + Sync>,
}

const LISTENER: u64 = 0;
const STOP: u64 = 1;
const FIRST_TOKEN: u64 = 2;
const EVENTS: usize = 64;
/// The pause before accepting again when there are no descriptors.
const DESCRIPTOR_RETRY: Duration = Duration::from_millis(100);

impl Service {
    pub(crate) fn start(
        boot: [u8; 16],
        home: Arc<Home>,
        limits: ServiceLimits,
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
        let shared = Arc::new(ServiceState {
            boot,
            home,
            limits,
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
        let serving = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("slackwater-host".to_owned())
            .spawn(move || serving.run(&listener))?;
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
        let open = peers.values().filter_map(|peer| peer.state.granted());
        open.fold((0, 0), |(peers, windows), granted| {
            (peers + 1, windows + granted.windows())
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
        for peer in peers.into_values() {
            let (AttachState::Open(granted) | AttachState::Expelled(granted)) = peer.state else {
                continue;
            };
            let (busy, page) = (granted.is_busy(), Arc::clone(granted.page()));
            if busy {
                tracing::warn!(peer = %peer.incarnation, "a process is still at memory of a closed engine, which is kept");
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

impl Watched {
    /// `tell` is called once, by the service's thread, when the peer has ended; it must not block.
    pub(crate) fn new(tell: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            gone: AtomicBool::new(false),
            tell: Box::new(tell),
        })
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    pub(crate) fn end(&self) {
        self.gone.store(true, Ordering::Release);
        (self.tell)();
    }
}

static DRAINING: Site = Site::new("host fence");

impl ServiceState {
    /// Revokes the windows on the accesses that `which` selects. A window at which a peer is copying ends with the
    /// copy, or with the peer; a separate thread waits for that, since a peer may be stopped for long.
    fn take_back(self: &Arc<Self>, which: impl Fn(&Access) -> bool) {
        let busy = self.revoke(&mut self.peers(), which);
        self.wait_for(busy);
    }

    fn wait_for(self: &Arc<Self>, busy: Vec<(u64, Revoked)>) {
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
        let open = peers
            .iter_mut()
            .filter_map(|(token, peer)| Some((*token, peer.state.granted_mut()?)));
        open.flat_map(|(token, granted)| {
            granted
                .revoke(&which)
                .into_iter()
                .map(move |window| (token, window))
        })
        .collect()
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
            if let Some(granted) = self
                .peers()
                .get_mut(token)
                .and_then(|peer| peer.state.granted_mut())
            {
                granted.release(window);
            }
        }
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<u64, AttachedPeer>> {
        lock(&self.peers)
    }

    fn run(self: &Arc<Self>, listener: &Listener) {
        let mut buffer = vec![0; PACKET_MAX];
        let mut events = Vec::with_capacity(EVENTS);
        // When to accept again, while connections wait and there are no descriptors.
        let mut accept_again: Option<Instant> = None;
        loop {
            if accept_again.is_some_and(|at| at <= now()) {
                accept_again = self.accept(listener).err();
            }
            let timeout = self.timeout(accept_again);
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
                    LISTENER => accept_again = self.accept(listener).err(),
                    STOP => return,
                    token if self.ended(token) => {}
                    token => self.serve(token, &mut buffer),
                }
            }
            self.drop_silent();
        }
    }

    /// How long to sleep: for ever, unless an unauthenticated peer has a deadline or connections wait for descriptors.
    fn timeout(&self, accept_again: Option<Instant>) -> Option<Timespec> {
        let silent = self
            .peers()
            .values()
            .filter_map(|peer| peer.state.deadline())
            .min();
        let first = silent.into_iter().chain(accept_again).min()?;
        let left = now().until(first);
        Some(Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: i64::from(left.subsec_nanos()),
        })
    }

    fn drop_silent(&self) {
        let at = now();
        self.peers()
            .retain(|_, peer| peer.state.deadline().is_none_or(|deadline| at < deadline));
    }

    /// Accepts the waiting connections. Without a descriptor for them, says when to try again.
    fn accept(&self, listener: &Listener) -> Result<(), Instant> {
        loop {
            let packets = match listener.accept() {
                Ok(Some(packets)) => packets,
                Ok(None) => return Ok(()),
                Err(_) => return Err(now() + DESCRIPTOR_RETRY),
            };
            let Ok(peer) = packets.peer() else { continue };
            if peer.user != geteuid().as_raw() {
                say_goodbye(&packets, GOODBYE_USER);
                continue;
            }
            let mut peers = self.peers();
            if peers.len() >= self.limits.peers {
                say_goodbye(&packets, GOODBYE_FULL);
                continue;
            }
            let token = self.next_token.fetch_add(1, Ordering::Relaxed);
            let flags = EventFlags::IN | EventFlags::RDHUP;
            if epoll::add(&self.poll, &packets, EventData::new_u64(token), flags).is_ok() {
                let state = AttachState::Unauthenticated(now() + self.limits.greeting);
                peers.insert(
                    token,
                    AttachedPeer {
                        packets,
                        incarnation: Incarnation(0),
                        state,
                    },
                );
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
        let stays = match (&peer.state, peer.packets.receive(buffer)) {
            (AttachState::Expelled(_), _) => false,
            (_, Ok(Received::Packet(len, _))) => self.answer(peer, &buffer[..len]),
            (_, Ok(Received::Nothing)) => true,
            (_, Ok(Received::Closed) | Err(_)) => false,
        };
        if stays {
            return;
        }
        if !peer.packets.is_closed() && peer.state.granted().is_some() {
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
        if let Some(granted) = peer.state.granted() {
            granted.page().close();
        }
    }

    /// Says whether the peer keeps to the protocol.
    fn answer(&self, peer: &mut AttachedPeer, packet: &[u8]) -> bool {
        match &mut peer.state {
            AttachState::Unauthenticated(_) => match self.greet(&peer.packets, packet) {
                Ok((incarnation, granted)) => {
                    (peer.incarnation, peer.state) = (incarnation, AttachState::Open(granted));
                    true
                }
                Err(reason) => {
                    say_goodbye(&peer.packets, reason);
                    false
                }
            },
            AttachState::Open(granted) => self
                .attach(granted, peer.incarnation, packet)
                .is_some_and(|answer| {
                    peer.packets
                        .send(&[&answer.bytes], &answer.descriptors())
                        .is_ok()
                }),
            AttachState::Expelled(_) => false,
        }
    }

    /// Revokes everything from a peer that breaks the protocol. It may be alive and in the middle of a copy: so its end
    /// is still watched for, and nothing else.
    fn expel(&self, token: u64, peer: &mut AttachedPeer) -> Vec<(u64, Revoked)> {
        // Without it the loop would be woken for every packet that is not read.
        let _ = epoll::modify(
            &self.poll,
            &peer.packets,
            EventData::new_u64(token),
            EventFlags::RDHUP,
        );
        let state = std::mem::replace(
            &mut peer.state,
            AttachState::Unauthenticated(Instant::NEVER),
        );
        let mut busy = Vec::new();
        if let AttachState::Open(mut granted) | AttachState::Expelled(mut granted) = state {
            let revoked = granted.revoke(|_| true).into_iter();
            busy.extend(revoked.map(|window| (token, window)));
            peer.state = AttachState::Expelled(granted);
        }
        // Last: a peer that sees the end of its link finds nothing that it may still begin.
        peer.packets.hang_up();
        busy
    }

    fn greet(
        &self,
        packets: &Packets,
        packet: &[u8],
    ) -> Result<(Incarnation, GrantedWindows), u32> {
        let hello = Hello::read_from_bytes(packet).map_err(|_| GOODBYE_VERSION)?;
        if hello.magic.get() != MAGIC || hello.version.get() != VERSION {
            return Err(GOODBYE_VERSION);
        }
        if self.closing.load(Ordering::Relaxed) {
            return Err(GOODBYE_CLOSING);
        }
        if hello.boot != self.boot {
            return Err(GOODBYE_BOOT);
        }
        if hello.target.get() != self.home.incarnation().0 {
            return Err(GOODBYE_INCARNATION);
        }
        let page =
            Arc::new(ControlPage::create(self.limits.windows_per_peer).map_err(|_| GOODBYE_FULL)?);
        let welcome = Welcome {
            magic: U64::new(MAGIC),
            version: U32::new(VERSION),
            slots: U32::new(page.slots()),
            incarnation: U64::new(self.home.incarnation().0),
            started: U64::new(self.started),
            probe_address: U64::new(self.probe.as_ptr().expose_provenance() as u64),
            probe: *self.probe,
        };
        packets
            .send(&[welcome.as_bytes()], &[page.as_fd()])
            .map_err(|_| GOODBYE_FULL)?;
        Ok((
            Incarnation(hello.incarnation.get()),
            GrantedWindows::new(page),
        ))
    }

    /// `None` when the question breaks the protocol.
    fn attach(
        &self,
        granted: &mut GrantedWindows,
        from: Incarnation,
        packet: &[u8],
    ) -> Option<Answer> {
        let (head, rest) = Attach::read_from_prefix(packet).ok()?;
        let (detached, rest) = split(rest, head.detach.get())?;
        let (capabilities, rest) = split::<Capability>(rest, head.attach.get())?;
        let (name, rest) = split::<u8>(rest, head.notice_name.get())?;
        let (bytes, rest) = split::<u8>(rest, head.notice_bytes.get())?;
        if capabilities.len() > ATTACH_MAX
            || name.len() + bytes.len() > NOTICE_MAX
            || !rest.is_empty()
        {
            return None;
        }
        let noticed = head.notices.get() > 0 && {
            let name = String::from_utf8(name.to_vec()).ok()?;
            self.home.deliver(
                from,
                Notice {
                    name,
                    bytes: bytes.to_vec(),
                },
            )
        };
        granted.detach(detached);
        let mut answer = Answer::new(head.question, capabilities.len(), noticed);
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

/// A refused peer is told the reason, if it still reads.
fn say_goodbye(packets: &Packets, reason: u32) {
    let goodbye = Goodbye {
        magic: U64::new(MAGIC),
        version: U32::new(VERSION),
        reason: U32::new(reason),
    };
    let _ = packets.send(&[goodbye.as_bytes()], &[]);
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
