//! One question to the owner of memory at a time, and its answer.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use rustix::fs::{OFlags, fcntl_getfl, fstat};
use slackwater_base::Instant;
use slackwater_engine::Notice;
use slackwater_memory::Mapping;
use slackwater_wire::data::{Capability, Refusal};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::{Link, WindowError};
use crate::link_seal::{self, LinkSeal};
use crate::message::{
    ATTACH_MAX, Attach, AttachAnswer, Attached, BEFORE, DETACH_MAX, ENTRY_DESCRIPTOR, ENTRY_SHARED,
    Entry, Goodbye, NO_SLOT, NOT_HERE, PACKET_BYTES,
};
use crate::packets::Received;
use crate::window::{OpenWindow, WindowSlot, generations};

/// The most questions without an answer: with more the socket would be full, and the owner expels a peer that leaves
/// its answers unread.
const UNANSWERED_MAX: u32 = 16;
/// The most memories that are kept mapped for late answers.
const LATE_MAX: usize = 16;

/// What the packets of a link have in common, for the thread whose turn it is.
pub(crate) struct Exchange {
    question: u64,
    buffer: Vec<u8>,
    memories: Vec<MappedMemory>,
    /// Memory that the owner may count as mapped here, until no answer is late: that of windows that came with late
    /// answers, and what was mapped when a question was given up.
    late: Vec<Arc<Mapping>>,
    /// Questions that were not answered in time: their answers may still come, and no caller waits for them.
    unanswered: u32,
    /// With keys, what seals the packets.
    seal: Option<LinkSeal>,
    /// Why the owner has ended the link: it says so once, and the thread that asks next is told too.
    turned_away: Option<&'static str>,
    /// An answer was none of the protocol. Nobody knows which windows it opened, and later answers may belong to other
    /// questions.
    garbled: bool,
}

/// Shared memory of the peer that is mapped here as long as a window is on it.
struct MappedMemory {
    /// By what number the peer means it.
    id: u64,
    file: PassedFile,
    mapping: Weak<Mapping>,
}

/// Memory that a question found mapped.
struct HeldMemory {
    id: u64,
    file: PassedFile,
    mapping: Arc<Mapping>,
}

/// Which file a descriptor is of, and whether it lets write. No other file has its numbers while it is mapped.
#[derive(Clone, Copy, Eq, PartialEq)]
struct PassedFile {
    device: u64,
    inode: u64,
    writable: bool,
}

impl PassedFile {
    fn of(descriptor: &OwnedFd) -> io::Result<Self> {
        let stat = fstat(descriptor)?;
        Ok(Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            writable: fcntl_getfl(descriptor)?.contains(OFlags::RDWR),
        })
    }
}

impl Exchange {
    pub(super) fn new(seal: Option<LinkSeal>) -> Self {
        Self {
            question: 0,
            buffer: vec![0; PACKET_BYTES],
            memories: Vec::new(),
            late: Vec::new(),
            unanswered: 0,
            seal,
            turned_away: None,
            garbled: false,
        }
    }
}

impl Link {
    /// Asks one question and waits for its answer.
    pub(super) fn exchange(
        self: &Arc<Self>,
        exchange: &mut Exchange,
        capabilities: &[Capability],
        notice: Option<&Notice>,
        deadline: Instant,
    ) -> Result<(Vec<Result<OpenWindow, WindowError>>, bool), WindowError> {
        if let Some(reason) = exchange.turned_away {
            return Err(WindowError::TurnedAway(reason));
        }
        if exchange.garbled {
            return Err(WindowError::Garbled);
        }
        let ended = self.question(exchange, capabilities, notice, deadline);
        exchange.garbled = matches!(ended, Err(WindowError::Garbled));
        ended
    }

    fn question(
        self: &Arc<Self>,
        exchange: &mut Exchange,
        capabilities: &[Capability],
        notice: Option<&Notice>,
        deadline: Instant,
    ) -> Result<(Vec<Result<OpenWindow, WindowError>>, bool), WindowError> {
        debug_assert!(capabilities.len() <= ATTACH_MAX);
        // Held until the answer has come, a late one too: a memory that the owner assumes to be mapped here must not be unmapped
        // meanwhile. Taken before the detached windows: a window reports its end before it releases its memory.
        let held: Vec<HeldMemory> = exchange
            .memories
            .iter()
            .filter_map(|known| {
                Some(HeldMemory {
                    id: known.id,
                    file: known.file,
                    mapping: known.mapping.upgrade()?,
                })
            })
            .collect();
        exchange
            .memories
            .retain(|known| known.mapping.strong_count() > 0);
        let detached = {
            let mut all = self.detached();
            let beyond = all.len().saturating_sub(DETACH_MAX);
            all.split_off(beyond)
        };
        exchange.question += 1;
        let (name, bytes) = notice.map_or((&b""[..], &b""[..]), |notice| {
            (notice.name.as_bytes(), notice.bytes.as_slice())
        });
        let head = Attach {
            question: U64::new(exchange.question),
            detach: U32::new(detached.len() as u32),
            attach: U32::new(capabilities.len() as u32),
            notices: U32::new(u32::from(notice.is_some())),
            notice_name: U32::new(name.len() as u32),
            notice_bytes: U32::new(bytes.len() as u32),
            reserved: U32::ZERO,
        };
        let parts = [
            head.as_bytes(),
            detached.as_bytes(),
            capabilities.as_bytes(),
            name,
            bytes,
        ];
        if let Err(error) = self.put(exchange, &parts, &held, deadline) {
            // They were not sent, so they stay to be sent.
            self.detached().extend(&detached);
            return Err(error);
        }
        let (len, descriptors) = self.answer(exchange, &held, deadline)?;
        let answer = AttachAnswer::read(&exchange.buffer[..len]).ok_or(WindowError::Garbled)?;
        let AttachAnswer { head, entries } = answer;
        if entries.len() != capabilities.len() {
            return Err(WindowError::Garbled);
        }
        let mut descriptors = descriptors.into_iter();
        let memories = &mut exchange.memories;
        let opened = entries
            .iter()
            .map(|entry| self.open_window(entry, &mut descriptors, &held, memories))
            .collect();
        if exchange.unanswered == 0 {
            exchange.late.clear();
        }
        Ok((opened, head.noticed.get() > 0))
    }

    /// Sends a question, once the socket has room for it.
    fn put(
        self: &Arc<Self>,
        exchange: &mut Exchange,
        parts: &[&[u8]],
        held: &[HeldMemory],
        deadline: Instant,
    ) -> Result<(), WindowError> {
        loop {
            if exchange.unanswered < UNANSWERED_MAX {
                match link_seal::send(&self.packets, exchange.seal.as_mut(), parts, &[]) {
                    Ok(()) => return Ok(()),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return Err(self.gone()),
                }
            }
            // The owner is slow, or stopped: each answer makes room for a question.
            let (len, descriptors) = self.receive(exchange, deadline)?;
            self.forget_late(exchange, len, descriptors, held)?;
        }
    }

    /// The answer to the last question.
    fn answer(
        self: &Arc<Self>,
        exchange: &mut Exchange,
        held: &[HeldMemory],
        deadline: Instant,
    ) -> Result<(usize, Vec<OwnedFd>), WindowError> {
        loop {
            let (len, descriptors) = match self.receive(exchange, deadline) {
                Err(WindowError::TimedOut) => {
                    exchange.unanswered += 1;
                    let mapped = held.iter().map(|held| &held.mapping);
                    mapped.for_each(|mapping| keep(&mut exchange.late, mapping));
                    return Err(WindowError::TimedOut);
                }
                received => received?,
            };
            let (head, _) = Attached::read_from_prefix(&exchange.buffer[..len])
                .map_err(|_| WindowError::Garbled)?;
            if head.question.get() == exchange.question {
                return Ok((len, descriptors));
            }
            self.forget_late(exchange, len, descriptors, held)?;
        }
    }

    fn receive(
        &self,
        exchange: &mut Exchange,
        deadline: Instant,
    ) -> Result<(usize, Vec<OwnedFd>), WindowError> {
        match self.packets.receive_until(&mut exchange.buffer, deadline) {
            Ok(Received::Packet(len, descriptors)) => {
                let (seal, buffer) = (exchange.seal.as_mut(), &mut exchange.buffer);
                let len = link_seal::open(seal, buffer, len).map_err(|_| WindowError::Garbled)?;
                match Goodbye::reason_in(&buffer[..len]) {
                    Some(reason) => {
                        exchange.turned_away = Some(reason);
                        Err(WindowError::TurnedAway(reason))
                    }
                    None => Ok((len, descriptors)),
                }
            }
            Ok(Received::Nothing) => Err(WindowError::TimedOut),
            Ok(Received::Closed) => Err(self.gone()),
            Err(_) => Err(WindowError::Garbled),
        }
    }

    /// Why the owner has ended the link, if it has said so.
    pub(crate) fn farewell(&self) -> Option<&'static str> {
        let mut exchange = self.turn();
        if exchange.turned_away.is_some() {
            return exchange.turned_away;
        }
        // Answers that nobody waits for any more may come before it.
        for _ in 0..=UNANSWERED_MAX {
            match self.receive(&mut exchange, Instant::ZERO) {
                Ok(_) => {}
                Err(WindowError::TurnedAway(reason)) => return Some(reason),
                Err(_) => return None,
            }
        }
        None
    }

    fn gone(&self) -> WindowError {
        self.watched.end();
        WindowError::Gone
    }

    /// Takes the late answer to an earlier question. The windows that it opens are unused: the owner is told to release
    /// them. Until it has heard that it counts their memory as mapped here, and does not pass it again.
    fn forget_late(
        self: &Arc<Self>,
        exchange: &mut Exchange,
        len: usize,
        descriptors: Vec<OwnedFd>,
        held: &[HeldMemory],
    ) -> Result<(), WindowError> {
        let Exchange {
            buffer,
            memories,
            late,
            unanswered,
            ..
        } = exchange;
        let answer = AttachAnswer::read(&buffer[..len]).ok_or(WindowError::Garbled)?;
        *unanswered = unanswered.checked_sub(1).ok_or(WindowError::Garbled)?;
        let mut descriptors = descriptors.into_iter();
        for entry in answer.entries {
            // One that cannot be opened is as unused.
            let opened = self.open_window(entry, &mut descriptors, held, memories);
            if let Some(memory) = opened.as_ref().ok().and_then(OpenWindow::memory) {
                keep(late, memory);
            }
        }
        Ok(())
    }

    fn open_window(
        self: &Arc<Self>,
        entry: &Entry,
        descriptors: &mut impl Iterator<Item = OwnedFd>,
        held: &[HeldMemory],
        memories: &mut Vec<MappedMemory>,
    ) -> Result<OpenWindow, WindowError> {
        match entry.refused.get() {
            0 => {}
            NO_SLOT => return Err(WindowError::NoSlot),
            BEFORE => return Err(WindowError::Before),
            NOT_HERE => return Err(WindowError::NoAttach("it is not host memory".to_owned())),
            number => {
                let refusal = u16::try_from(number).ok().and_then(Refusal::from_number);
                return Err(refusal.map_or(WindowError::Garbled, WindowError::Refused));
            }
        }
        if entry.slot.get() >= self.page.slots() {
            return Err(WindowError::Garbled);
        }
        // From here on the slot is given back to the owner, also if the window is unusable.
        let slot = WindowSlot::new(self, entry.slot.get(), entry.epoch.get());
        let (start, len) = (entry.start.get(), entry.len.get());
        let end = start.checked_add(len).ok_or(WindowError::Garbled)?;
        if entry.flags.get() & ENTRY_SHARED == 0 {
            let dead = generations(entry, descriptors)?;
            return match &self.process {
                Ok(_) => Ok(OpenWindow::in_process(slot, start, len).on_region(dead)),
                Err(reason) => Err(WindowError::NoAttach(reason.clone())),
            };
        }
        let id = entry.memory.get();
        let passed = (entry.flags.get() & ENTRY_DESCRIPTOR != 0)
            .then(|| descriptors.next())
            .flatten();
        let memory = match (passed, known(id, held, memories)) {
            // The number may have come to mean another memory, so that it is the file that is looked for. An owner that has
            // released its last window on a memory passes the memory again with the next one.
            (Some(descriptor), _) => {
                let file = PassedFile::of(&descriptor).map_err(|_| WindowError::Garbled)?;
                let mapped = held.iter().find(|held| held.file == file);
                let memory = match mapped {
                    Some(held) if held.mapping.bytes() as u64 == entry.memory_len.get() => {
                        Arc::clone(&held.mapping)
                    }
                    _ => Arc::new(Mapping::open(descriptor, entry.memory_len.get())?),
                };
                memories.retain(|known| known.id != id);
                memories.push(MappedMemory {
                    id,
                    file,
                    mapping: Arc::downgrade(&memory),
                });
                memory
            }
            (None, Some(memory)) => memory,
            (None, None) => return Err(WindowError::Garbled),
        };
        let dead = generations(entry, descriptors)?;
        match end <= memory.bytes() as u64 {
            true => Ok(OpenWindow::in_shared(slot, memory, start as usize, len).on_region(dead)),
            false => Err(WindowError::Garbled),
        }
    }
}

/// Keeps a memory mapped for late answers.
fn keep(late: &mut Vec<Arc<Mapping>>, memory: &Arc<Mapping>) {
    if !late.iter().any(|it| Arc::ptr_eq(it, memory)) {
        late.push(Arc::clone(memory));
    }
    // A false owner may pass another one with each window.
    late.drain(..late.len().saturating_sub(LATE_MAX));
}

fn known(id: u64, held: &[HeldMemory], memories: &[MappedMemory]) -> Option<Arc<Mapping>> {
    // The newest first: one of this answer, else an earlier one.
    let fresh = memories
        .iter()
        .find(|known| known.id == id)
        .and_then(|known| known.mapping.upgrade());
    fresh.or_else(|| {
        held.iter()
            .find(|known| known.id == id)
            .map(|known| Arc::clone(&known.mapping))
    })
}
