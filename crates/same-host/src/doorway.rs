//! Processes that have connected and are not let in yet.
//!
//! Without keys a process comes in by its greeting. With keys it comes in when it has proven one that the list has, by
//! the handshake of sealed connections over TCP, bound to the two processes that the kernel names. Until then it costs a
//! descriptor and two hundred bytes, and it is given none.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::process::geteuid;
use slackwater_base::Instant;
use slackwater_data_plane::seal::{Channel, holder_of};
use slackwater_engine::{SealConfig, entropy};
use slackwater_net::TokenBucket;
use slackwater_wire::Incarnation;
use slackwater_wire::data::{GREETING_BYTES, Greeting};
use slackwater_zmtp::PublicKey;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::identity::ProcessName;
use super::link_seal::{self, LinkSeal, greeting};
use super::message::{
    GOODBYE_BOOT, GOODBYE_FULL, GOODBYE_INCARNATION, GOODBYE_KEY, GOODBYE_OPEN, GOODBYE_SEALED,
    GOODBYE_USER, GOODBYE_VERSION, Goodbye, Hello, MAGIC, VERSION,
};
use super::packets::{Listener, Packets, Received};

/// Owned by the thread of the service.
pub(super) struct Doorway {
    boot: [u8; 16],
    own: Incarnation,
    seal: Option<SealConfig>,
    patience: Duration,
    callers: BTreeMap<u64, Caller>,
    attempts: TokenBucket,
    handshakes: TokenBucket,
}

struct Caller {
    packets: Packets,
    /// It must be let in before this.
    until: Instant,
    /// What it has said of its key, and has to prove.
    claim: Option<Claim>,
}

struct Claim {
    key: PublicKey,
    seal: LinkSeal,
}

/// A process that may come in.
pub(super) struct Entrant {
    pub(super) packets: Packets,
    /// The holder whose capabilities it may use: the incarnation that it claims, or the one that follows from its key.
    pub(super) holder: Incarnation,
    /// The key that it has proven.
    pub(super) key: Option<PublicKey>,
    pub(super) seal: Option<LinkSeal>,
}

/// What comes of a packet of a caller.
enum Heard {
    Claim(Claim),
    Entrant(Incarnation, Option<(PublicKey, LinkSeal)>),
    /// It is told the reason, if there is one to be told.
    Refused(Option<u32>),
}

/// New connections that are taken from the kernel in a second; as over TCP. Others wait there.
const ATTEMPTS_PER_SECOND: u32 = 2000;
/// The pause when there were more: the thread wakes for some twenty of them.
const ATTEMPTS_PAUSE: Duration = Duration::from_millis(10);
/// Handshakes that are begun in a second, as for one address over TCP: all these processes have one.
const HANDSHAKES_PER_SECOND: u32 = 200;
/// With more, the one that has waited longest is disconnected: an honest one is through in less than a millisecond.
const CALLERS_MAX: usize = 128;
/// The pause before accepting again when there are no descriptors.
const DESCRIPTOR_RETRY: Duration = Duration::from_millis(100);

impl Doorway {
    pub(super) fn new(
        boot: [u8; 16],
        own: Incarnation,
        seal: Option<SealConfig>,
        patience: Duration,
        now: Instant,
    ) -> Self {
        Self {
            boot,
            own,
            seal,
            patience,
            callers: BTreeMap::new(),
            attempts: TokenBucket::full(ATTEMPTS_PER_SECOND, now),
            handshakes: TokenBucket::full(HANDSHAKES_PER_SECOND, now),
        }
    }

    /// Accepts the waiting connections, and says when to try again if some were left.
    pub(super) fn accept(
        &mut self,
        listener: &Listener,
        poll: &OwnedFd,
        tokens: &AtomicU64,
        now: Instant,
    ) -> Option<Instant> {
        loop {
            if self.attempts.next_token(now) > now {
                return Some(now + ATTEMPTS_PAUSE);
            }
            let packets = match listener.accept() {
                Ok(Some(packets)) => packets,
                Ok(None) => return None,
                Err(_) => return Some(now + DESCRIPTOR_RETRY),
            };
            self.attempts.take(now);
            let Ok(peer) = packets.peer() else { continue };
            if peer.user != geteuid().as_raw() {
                say_goodbye(&packets, None, GOODBYE_USER);
                continue;
            }
            if self.callers.len() >= CALLERS_MAX {
                self.callers.pop_first();
            }
            let token = tokens.fetch_add(1, Ordering::Relaxed);
            let flags = EventFlags::IN | EventFlags::RDHUP;
            if epoll::add(poll, &packets, EventData::new_u64(token), flags).is_ok() {
                let caller = Caller {
                    packets,
                    until: now + self.patience,
                    claim: None,
                };
                self.callers.insert(token, caller);
            }
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.callers.values().map(|caller| caller.until).min()
    }

    pub(super) fn drop_silent(&mut self, now: Instant) {
        self.callers.retain(|_, caller| now < caller.until);
    }

    pub(super) fn has(&self, token: u64) -> bool {
        self.callers.contains_key(&token)
    }

    /// Takes what a caller has sent; returns it when it may come in. Counts one that is refused for its key.
    pub(super) fn serve(
        &mut self,
        token: u64,
        buffer: &mut [u8],
        now: Instant,
        refused: &AtomicU64,
    ) -> Option<Entrant> {
        let mut caller = self.callers.remove(&token)?;
        let heard = match caller.packets.receive(buffer) {
            Ok(Received::Nothing) => {
                self.callers.insert(token, caller);
                return None;
            }
            Ok(Received::Packet(len, _)) => match caller.claim.take() {
                None => self.greeted(&caller.packets, &buffer[..len], now),
                Some(claim) => proven(claim, buffer, len),
            },
            Ok(Received::Closed) | Err(_) => return None,
        };
        match heard {
            Heard::Claim(claim) => {
                caller.claim = Some(claim);
                self.callers.insert(token, caller);
                None
            }
            Heard::Entrant(holder, proven) => {
                let (key, seal) = proven.unzip();
                Some(Entrant {
                    packets: caller.packets,
                    holder,
                    key,
                    seal,
                })
            }
            Heard::Refused(reason) => {
                if matches!(reason, None | Some(GOODBYE_KEY | GOODBYE_SEALED)) {
                    refused.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(reason, "a process of this host is not let in");
                }
                if let Some(reason) = reason {
                    say_goodbye(&caller.packets, None, reason);
                }
                None
            }
        }
    }

    fn greeted(&mut self, packets: &Packets, packet: &[u8], now: Instant) -> Heard {
        match self.greet(packets, packet, now) {
            Ok(heard) => heard,
            Err(reason) => Heard::Refused(Some(reason)),
        }
    }

    fn greet(&mut self, packets: &Packets, packet: &[u8], now: Instant) -> Result<Heard, u32> {
        let (hello, rest) = Hello::read_from_prefix(packet).map_err(|_| GOODBYE_VERSION)?;
        if hello.magic.get() != MAGIC || hello.version.get() != VERSION {
            return Err(GOODBYE_VERSION);
        }
        if hello.boot != self.boot {
            return Err(GOODBYE_BOOT);
        }
        if hello.target.get() != self.own.0 {
            return Err(GOODBYE_INCARNATION);
        }
        let Some(seal) = &self.seal else {
            return match (hello.sealed.get(), rest) {
                (0, []) => Ok(Heard::Entrant(Incarnation(hello.incarnation.get()), None)),
                (0, _) => Err(GOODBYE_VERSION),
                _ => Err(GOODBYE_OPEN),
            };
        };
        let offered = <&[u8; GREETING_BYTES]>::try_from(rest).ok();
        let offered = offered.and_then(|bytes| Greeting::from_bytes(bytes).ok());
        let offered = offered.ok_or(GOODBYE_SEALED)?;
        if !self.handshakes.take(now) {
            return Err(GOODBYE_FULL);
        }
        let names = ProcessName::of_peer(packets).and_then(|from| Ok((from, ProcessName::own()?)));
        let (from, here) = names.map_err(|_| GOODBYE_KEY)?;
        let channel = channel(&hello, from, here);
        let own = greeting(self.own, Incarnation(hello.incarnation.get()));
        let (key, answered, keys) = entropy()
            .and_then(|entropy| seal.answer(&entropy, &offered, own, &channel))
            .map_err(|_| GOODBYE_KEY)?;
        packets
            .send(&[&answered.to_bytes()], &[])
            .map_err(|_| GOODBYE_FULL)?;
        let seal = LinkSeal::new(keys);
        Ok(Heard::Claim(Claim { key, seal }))
    }
}

/// The first sealed packet, which is empty: nobody but the owner of the key could have made it.
fn proven(Claim { key, mut seal }: Claim, buffer: &mut [u8], len: usize) -> Heard {
    match link_seal::open(Some(&mut seal), buffer, len) {
        Ok(0) => Heard::Entrant(holder_of(&key), Some((key, seal))),
        Ok(_) | Err(_) => Heard::Refused(None),
    }
}

/// What the handshake of a link is bound to.
pub(super) fn channel(hello: &Hello, initiator: ProcessName, target: ProcessName) -> Channel {
    Channel::host(hello.as_bytes(), initiator.as_bytes(), target.as_bytes())
}

/// A refused peer is told the reason, if it still reads.
pub(super) fn say_goodbye(packets: &Packets, seal: Option<&mut LinkSeal>, reason: u32) {
    let goodbye = Goodbye {
        magic: U64::new(MAGIC),
        version: U32::new(VERSION),
        reason: U32::new(reason),
    };
    let _ = link_seal::send(packets, seal, &[goodbye.as_bytes()], &[]);
}
