//! Values that nodes bring from each other, as the master asks: the target reads as a client does, and verifies what it has.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use slackwater_base::Checksum;
use slackwater_client::ReadFailure;
use slackwater_tier::arena::{Access, AccessId};
use slackwater_wire::{CopyTask, ErrorCode, ReplicaAt, TicketId};

use crate::check::Checked;
use crate::net::Process;

use super::World;
use super::event::{Control, Data, Event, SessionId, TransferId};

/// What one life of a node is bringing.
pub(crate) type Brings = BTreeMap<TransferId, Bring>;

/// A value that a node brings into its memory.
pub(crate) struct Bring {
    task: CopyTask,
    /// The link on which it was asked for.
    asked: SessionId,
    access: AccessId,
    attempts: u32,
    /// What came, half of which is written.
    bytes: Option<Rc<[u8]>>,
}

impl World {
    /// The master asks a node for a copy.
    pub(super) fn node_copies(&mut self, index: u32, asked: SessionId, task: CopyTask) -> Checked {
        let node = &mut self.nodes[index as usize];
        let Some(agent) = &mut node.agent else {
            return Ok(());
        };
        let Some(access) = node.gate.begin(agent, task.target, Access::Write) else {
            let gone = Err(ErrorCode::ReplicaIsGone);
            return self.tell_copied(index, asked, task.ticket, gone);
        };
        self.next_transfer += 1;
        let transfer = TransferId(self.next_transfer);
        let bring = Bring {
            task,
            asked,
            access,
            attempts: 0,
            bytes: None,
        };
        self.nodes[index as usize]
            .serving
            .brings
            .insert(transfer, bring);
        self.ask_for_bytes(index, transfer);
        Ok(())
    }

    /// Asks the source for the bytes, for the first time or again.
    fn ask_for_bytes(&mut self, index: u32, transfer: TransferId) {
        let node = &mut self.nodes[index as usize];
        let life = node.life;
        let Some(bring) = node.serving.brings.get_mut(&transfer) else {
            return;
        };
        bring.attempts += 1;
        let task = &bring.task;
        let data = match task.source {
            ReplicaAt::Memory(extent) => Data::ReadMemory {
                transfer,
                extent,
                bytes: task.bytes,
            },
            ReplicaAt::Disk { .. } => Data::ReadRecord {
                transfer,
                entry: task.entry.clone(),
            },
        };
        let from = task.from.0;
        self.send(Process::Node(index), Process::Node(from), &data);
        let at = self.engine.now() + self.options.transfer_timeout;
        self.engine.push(
            at,
            Event::BringLate {
                node: index,
                life,
                transfer,
            },
        );
    }

    pub(super) fn on_bring_late(&mut self, index: u32, life: u64, transfer: TransferId) -> Checked {
        if !self.lives(Process::Node(index), life) {
            return Ok(());
        }
        let brings = &self.nodes[index as usize].serving.brings;
        let waiting = brings.get(&transfer).filter(|it| it.bytes.is_none());
        match waiting.map(|bring| bring.attempts) {
            Some(attempts) if attempts < ATTEMPTS => {
                self.ask_for_bytes(index, transfer);
                Ok(())
            }
            Some(_) => self.end_bring(index, transfer, Err(ErrorCode::TransferFail)),
            None => Ok(()),
        }
    }

    /// The bytes have come: half of them are written now and half a little later.
    pub(super) fn bytes_came(
        &mut self,
        index: u32,
        transfer: TransferId,
        result: Result<Rc<[u8]>, ReadFailure>,
    ) -> Checked {
        let now = self.engine.now();
        let node = &mut self.nodes[index as usize];
        let bring = node.serving.brings.get_mut(&transfer);
        let Some(bring) = bring.filter(|it| it.bytes.is_none()) else {
            return Ok(());
        };
        let bytes = match result {
            Ok(bytes) if bytes.len() as u64 == bring.task.bytes => bytes,
            Ok(_) | Err(ReadFailure::Corrupt) => {
                return self.end_bring(index, transfer, Err(ErrorCode::ChecksumMismatch));
            }
            Err(ReadFailure::Stale) => {
                return self.end_bring(index, transfer, Err(ErrorCode::ReplicaIsGone));
            }
            Err(_) => return self.end_bring(index, transfer, Err(ErrorCode::TransferFail)),
        };
        node.memory
            .write(bring.task.target, 0, &bytes[..bytes.len() / 2])?;
        bring.bytes = Some(bytes);
        let life = node.life;
        let at = now + Duration::from_nanos(node.rng.below(WRITE_NANOS));
        self.engine.push(
            at,
            Event::Brought {
                node: index,
                life,
                transfer,
            },
        );
        Ok(())
    }

    pub(super) fn on_brought(&mut self, index: u32, life: u64, transfer: TransferId) -> Checked {
        if !self.lives(Process::Node(index), life) {
            return Ok(());
        }
        let node = &mut self.nodes[index as usize];
        let Some(bring) = node.serving.brings.get(&transfer) else {
            return Ok(());
        };
        let Some(bytes) = &bring.bytes else {
            return Ok(());
        };
        let (target, half) = (bring.task.target, bytes.len() / 2);
        node.memory.write(target, half as u64, &bytes[half..])?;
        let held = node.memory.read(target, 0, bytes.len())?;
        let result = match Checksum::of(&held) == bring.task.checksum {
            true => Ok(()),
            false => Err(ErrorCode::ChecksumMismatch),
        };
        self.end_bring(index, transfer, result)
    }

    fn end_bring(
        &mut self,
        index: u32,
        transfer: TransferId,
        result: Result<(), ErrorCode>,
    ) -> Checked {
        let node = &mut self.nodes[index as usize];
        let Some(bring) = node.serving.brings.remove(&transfer) else {
            return Ok(());
        };
        let result = match self.end_access(index, bring.access)? {
            true => result,
            false => Err(ErrorCode::ReplicaIsGone),
        };
        self.tell_copied(index, bring.asked, bring.task.ticket, result)
    }

    /// Answers on the link on which it was asked, if that is still there.
    fn tell_copied(
        &mut self,
        index: u32,
        asked: SessionId,
        ticket: TicketId,
        result: Result<(), ErrorCode>,
    ) -> Checked {
        let process = Process::Node(index);
        if self.session_open(asked, process) {
            self.say(asked, process, Control::Copied { ticket, result });
        }
        self.note_sent(process)
    }
}

/// How often the source is asked.
const ATTEMPTS: u32 = 3;
/// Longest time between the halves of a write, in nanoseconds.
const WRITE_NANOS: u64 = 3_000_000;
