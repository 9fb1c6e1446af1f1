//! How a link to a process of this host is opened.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::geteuid;
use slackwater_base::Instant;
use slackwater_data_plane::seal::{InitiatorHandshake, SealError};
use slackwater_engine::{SealConfig, entropy};
use slackwater_memory::RefusedMemory;
use slackwater_wire::Incarnation;
use slackwater_wire::data::{GREETING_BYTES, Greeting};
use slackwater_zmtp::PublicKey;
use thiserror::Error;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::doorway::channel;
use super::identity::ProcessName;
use super::link_seal::{self, LinkSeal, greeting};
use super::message::{Goodbye, Hello, MAGIC, PACKET_BYTES, VERSION, Welcome};
use super::packets::{Packets, Received};
use super::page::ControlPage;
use super::process::Process;
use super::service::Service;

/// Why there is no link to a process of this host.
#[derive(Debug, Error)]
pub(crate) enum LinkError {
    /// The kernel refused, or no process listens.
    #[error("host socket: {0}")]
    System(#[from] io::Error),
    /// The other process belongs to another user.
    #[error("the process belongs to user {0}")]
    OtherUser(u32),
    /// No greeting came in time.
    #[error("no greeting in time")]
    TimedOut,
    /// The other process refused this one.
    #[error("turned away: {0}")]
    RefusedByPeer(&'static str),
    /// The answer is not a greeting of this protocol.
    #[error("no greeting of this protocol")]
    Garbled,
    /// The control page was refused.
    #[error("control page: {0}")]
    Page(#[from] RefusedMemory),
    /// One end has keys and the other has none, or the other does not prove the key that is expected of it.
    #[error("sealed link: {0}")]
    Seal(#[from] SealError),
}

/// The process to connect to.
pub(crate) struct LinkTarget<'a> {
    /// The name of its socket.
    pub(crate) name: &'a str,
    /// The incarnation that is expected.
    pub(crate) target: Incarnation,
    /// The key that it has to prove.
    pub(crate) key: Option<PublicKey>,
    /// How long its greeting is waited for.
    pub(crate) deadline: Instant,
    /// Called while waiting; returns when to call it next.
    pub(crate) meanwhile: &'a dyn Fn() -> Instant,
}

/// A link as its ends have agreed on it.
pub(super) struct Greeted {
    pub(super) packets: Packets,
    pub(super) page: ControlPage,
    /// The process, or why its private memory cannot be reached.
    pub(super) process: Result<Process, String>,
    pub(super) seal: Option<LinkSeal>,
}

/// Connects to a process, and exchanges greetings.
pub(super) fn greet(service: &Service, call: &LinkTarget<'_>) -> Result<Greeted, LinkError> {
    let keys = match (service.seal(), call.key) {
        (Some(seal), Some(key)) => Some((seal, key)),
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => return Err(SealError::Unsealed.into()),
    };
    let packets = Packets::connect(call.name)?;
    let peer = packets.peer()?;
    if peer.user != geteuid().as_raw() {
        return Err(LinkError::OtherUser(peer.user));
    }
    let mut seal = match keys {
        None => {
            packets.send(&[hello(service, call, 0).as_bytes()], &[])?;
            None
        }
        Some((own, key)) => Some(prove(&packets, service, call, own, key)?),
    };
    let mut buffer = vec![0; PACKET_BYTES];
    let (len, descriptors) = call.receive(&packets, &mut buffer)?;
    let len = link_seal::open(seal.as_mut(), &mut buffer, len)?;
    let (welcome, page) = welcome(&buffer[..len], descriptors, call.target)?;
    let process = match peer.pid {
        Some(pid) => reach(pid, &welcome),
        None => Err("the process is in a namespace out of sight".to_owned()),
    };
    let page = ControlPage::open(page, welcome.slots.get())?;
    Ok(Greeted {
        packets,
        page,
        process,
        seal,
    })
}

impl LinkTarget<'_> {
    /// The next packet of a process that has still to greet.
    fn receive(
        &self,
        packets: &Packets,
        buffer: &mut [u8],
    ) -> Result<(usize, Vec<OwnedFd>), LinkError> {
        loop {
            let until = (self.meanwhile)().min(self.deadline);
            match packets.receive_until(buffer, until)? {
                Received::Packet(len, descriptors) => return Ok((len, descriptors)),
                Received::Nothing if until == self.deadline => return Err(LinkError::TimedOut),
                Received::Nothing => {}
                Received::Closed => return Err(LinkError::RefusedByPeer("closed without a word")),
            }
        }
    }
}

fn hello(service: &Service, call: &LinkTarget<'_>, sealed: u32) -> Hello {
    Hello {
        magic: U64::new(MAGIC),
        version: U32::new(VERSION),
        sealed: U32::new(sealed),
        boot: service.boot(),
        incarnation: U64::new(service.incarnation().0),
        target: U64::new(call.target.0),
    }
}

/// Proves our key to the process at the other end, once that has proven the one that is expected of it.
fn prove(
    packets: &Packets,
    service: &Service,
    call: &LinkTarget<'_>,
    own: &SealConfig,
    key: PublicKey,
) -> Result<LinkSeal, LinkError> {
    let hello = hello(service, call, 1);
    let bound = channel(&hello, ProcessName::own()?, ProcessName::of_peer(packets)?);
    let said = greeting(service.incarnation(), call.target);
    let handshake = InitiatorHandshake::begin(&own.keys, &entropy()?, key, said, &bound)?;
    packets.send(&[hello.as_bytes(), &handshake.hello().to_bytes()], &[])?;
    let mut answer = [0; GREETING_BYTES];
    let (len, _) = call.receive(packets, &mut answer)?;
    if let Some(reason) = Goodbye::reason_in(&answer[..len]) {
        return Err(LinkError::RefusedByPeer(reason));
    }
    if len != GREETING_BYTES {
        return Err(LinkError::Garbled);
    }
    let answer = Greeting::from_bytes(&answer).map_err(|_| LinkError::Garbled)?;
    let mut seal = LinkSeal::new(handshake.finish(&answer)?);
    link_seal::send(packets, Some(&mut seal), &[], &[])?;
    Ok(seal)
}

/// Reads a greeting, or why there is none.
fn welcome(
    packet: &[u8],
    descriptors: Vec<OwnedFd>,
    target: Incarnation,
) -> Result<(Welcome, OwnedFd), LinkError> {
    if let Some(reason) = Goodbye::reason_in(packet) {
        return Err(LinkError::RefusedByPeer(reason));
    }
    let welcome = Welcome::read_from_bytes(packet).map_err(|_| LinkError::Garbled)?;
    let page = descriptors.into_iter().next().ok_or(LinkError::Garbled)?;
    let ours = welcome.magic.get() == MAGIC && welcome.version.get() == VERSION;
    if !ours || welcome.incarnation.get() != target.0 || welcome.slots.get() == 0 {
        return Err(LinkError::Garbled);
    }
    Ok((welcome, page))
}

/// Opens the process for cross-memory attach, if the probe can be read: then attaching is allowed, and it is the
/// process that sent the greeting.
fn reach(pid: rustix::process::Pid, welcome: &Welcome) -> Result<Process, String> {
    let process = Process::open(pid, welcome.started.get()).map_err(|error| error.to_string())?;
    let mut probe = [0; 16];
    // SAFETY: 16 bytes of this frame.
    match unsafe { process.read(probe.as_mut_ptr(), welcome.probe_address.get(), probe.len()) } {
        Ok(16) if probe == welcome.probe => Ok(process),
        Ok(_) => Err("the probe has other bytes than the process sent".to_owned()),
        Err(error) => Err(format!("reading its memory: {error}")),
    }
}
