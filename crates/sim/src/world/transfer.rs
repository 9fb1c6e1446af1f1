//! The client's side of transfers: in datagrams that are sent again a limited number of times.

use std::rc::Rc;
use std::time::Duration;

use slackwater_base::{Checksum, Instant};
use slackwater_client::{ReadFailure, WriteFailure};
use slackwater_wire::{DiskEntry, ExtentRef, Key, ReplicaAt, Version};

use crate::check::Checked;
use crate::net::Process;

use super::World;
use super::client::Flow;
use super::event::{Data, Event, TransferId};

#[derive(Clone, Debug, Default)]
pub(super) struct Arrived {
    pub(super) version: Version,
    pub(super) began: Instant,
    pub(super) bytes: Option<Rc<[u8]>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Writing {
    pub(super) open: usize,
    pub(super) failure: Option<WriteFailure>,
}

pub(super) struct Transfer {
    pub(super) index: usize,
    pub(super) to: Process,
    pub(super) attempts: u32,
    /// Whether its flow has cancelled it: nothing more is sent, but what was sent may still arrive.
    pub(super) cancelled: bool,
    pub(super) what: TransferKind,
}

#[derive(Clone)]
pub(super) enum TransferKind {
    Read(Data),
    /// A write in this number of pieces.
    Write(ExtentRef, usize),
}

impl World {
    pub(super) fn begin_read(
        &mut self,
        index: u32,
        item: usize,
        (key, version, bytes): (Key, Version, u64),
        from: ReplicaAt,
    ) {
        let Some(running) = &mut self.clients[index as usize].running else {
            return;
        };
        running.reads.insert(
            item,
            Arrived {
                version,
                began: running.asked_at,
                bytes: None,
            },
        );
        let tenant = running.names[item].0.clone();
        self.next_transfer += 1;
        let transfer = TransferId(self.next_transfer);
        let (to, data) = match from {
            ReplicaAt::Memory(extent) => (
                self.options.owner(extent.segment),
                Data::ReadMemory {
                    transfer,
                    extent,
                    bytes,
                },
            ),
            ReplicaAt::Disk { node, .. } => {
                let entry = DiskEntry {
                    tenant,
                    key,
                    version,
                };
                (node.0, Data::ReadRecord { transfer, entry })
            }
        };
        self.open_transfer(
            index,
            transfer,
            item,
            Process::Node(to),
            TransferKind::Read(data),
        );
    }

    pub(super) fn begin_write(&mut self, index: u32, item: usize, extents: &[ExtentRef]) {
        let Some(running) = &mut self.clients[index as usize].running else {
            return;
        };
        running.writes.insert(
            item,
            Writing {
                open: extents.len(),
                failure: None,
            },
        );
        for extent in extents {
            self.next_transfer += 1;
            let transfer = TransferId(self.next_transfer);
            let to = Process::Node(self.options.owner(extent.segment));
            let chunks = 1 + self.clients[index as usize].rng.below(3) as usize;
            self.open_transfer(
                index,
                transfer,
                item,
                to,
                TransferKind::Write(*extent, chunks),
            );
        }
    }

    fn open_transfer(
        &mut self,
        index: u32,
        transfer: TransferId,
        item: usize,
        to: Process,
        what: TransferKind,
    ) {
        let Some(running) = &mut self.clients[index as usize].running else {
            return;
        };
        running.transfers.insert(
            transfer,
            Transfer {
                index: item,
                to,
                attempts: 0,
                cancelled: false,
                what,
            },
        );
        self.send_transfer(index, transfer);
    }

    /// Sends all datagrams of a transfer, for the first time or again, and schedules the check of
    /// its progress.
    fn send_transfer(&mut self, index: u32, id: TransferId) {
        let from = Process::Client(index);
        let client = &mut self.clients[index as usize];
        let life = client.life;
        let Some(running) = &mut client.running else {
            return;
        };
        let Some(transfer) = running.transfers.get_mut(&id) else {
            return;
        };
        transfer.attempts += 1;
        let (to, item) = (transfer.to, transfer.index);
        let pieces = match transfer.what.clone() {
            TransferKind::Read(data) => vec![data],
            TransferKind::Write(extent, chunks) => {
                pieces(id, extent, &running.values[item], chunks)
            }
        };
        for piece in &pieces {
            self.send(from, to, piece);
        }
        let at = self.engine.now() + self.options.transfer_timeout;
        self.engine.push(
            at,
            Event::Resend {
                client: index,
                life,
                transfer: id,
            },
        );
    }

    pub(super) fn on_resend(&mut self, index: u32, life: u64, id: TransferId) -> Checked {
        if !self.lives(Process::Client(index), life) {
            return Ok(());
        }
        let Some(running) = &mut self.clients[index as usize].running else {
            return Ok(());
        };
        let Some(transfer) = running.transfers.get(&id).filter(|it| !it.cancelled) else {
            return Ok(());
        };
        if transfer.attempts < TRANSFER_ATTEMPTS {
            self.send_transfer(index, id);
            return Ok(());
        }
        match transfer.what {
            TransferKind::Read(_) => self.read_ended(index, id, Err(ReadFailure::Transfer)),
            TransferKind::Write(..) => self.write_ended(index, id, Err(WriteFailure::Transfer)),
        }
    }

    /// Cancels the transfers of an item, which takes a short time.
    pub(super) fn cancel_transfers(&mut self, index: u32, item: usize) {
        let client = &mut self.clients[index as usize];
        let life = client.life;
        let Some(running) = &mut client.running else {
            return;
        };
        let of_item = running
            .transfers
            .iter_mut()
            .filter(|(_, transfer)| transfer.index == item);
        for (id, transfer) in of_item {
            transfer.cancelled = true;
            let event = Event::Cancelled {
                client: index,
                life,
                transfer: *id,
            };
            let stops = Duration::from_nanos(client.rng.below(CANCEL_NANOS));
            self.engine.push(self.engine.now() + stops, event);
        }
    }

    pub(super) fn on_cancelled(&mut self, index: u32, life: u64, id: TransferId) -> Checked {
        if !self.lives(Process::Client(index), life) {
            return Ok(());
        }
        let running = self.clients[index as usize].running.as_ref();
        let transfer = running.and_then(|running| running.transfers.get(&id));
        match transfer.map(|transfer| &transfer.what) {
            Some(TransferKind::Read(_)) => self.read_ended(index, id, Err(ReadFailure::Cancelled)),
            Some(TransferKind::Write(..)) => {
                self.write_ended(index, id, Err(WriteFailure::Cancelled))
            }
            None => Ok(()),
        }
    }

    pub(super) fn client_data(&mut self, index: u32, data: Data) -> Checked {
        match data {
            Data::Bytes { transfer, result } => self.read_ended(index, transfer, result),
            Data::Written { transfer, result } => self.write_ended(index, transfer, result),
            Data::Write { .. } | Data::ReadMemory { .. } | Data::ReadRecord { .. } => Ok(()),
        }
    }

    fn read_ended(
        &mut self,
        index: u32,
        id: TransferId,
        result: Result<Rc<[u8]>, ReadFailure>,
    ) -> Checked {
        let local = self.local(Process::Client(index));
        let Some(running) = &mut self.clients[index as usize].running else {
            return Ok(());
        };
        let Some(transfer) = running.transfers.remove(&id) else {
            return Ok(());
        };
        let item = transfer.index;
        let seen = result
            .as_ref()
            .map(|bytes| Checksum::of(bytes))
            .map_err(|failure| *failure);
        if let (Ok(bytes), Some(arrived)) = (result, running.reads.get_mut(&item)) {
            arrived.bytes = Some(bytes);
        }
        let mut actions = Vec::new();
        if let Flow::Get(flow) = &mut running.flow {
            flow.on_read(local, item, seen, &mut actions);
        }
        self.act(index, actions)
    }

    fn write_ended(
        &mut self,
        index: u32,
        id: TransferId,
        result: Result<(), WriteFailure>,
    ) -> Checked {
        let local = self.local(Process::Client(index));
        let Some(running) = &mut self.clients[index as usize].running else {
            return Ok(());
        };
        let Some(transfer) = running.transfers.remove(&id) else {
            return Ok(());
        };
        let item = transfer.index;
        let Some(writing) = running.writes.get_mut(&item) else {
            return Ok(());
        };
        writing.open -= 1;
        writing.failure = writing.failure.or(result.err());
        if writing.open > 0 {
            return Ok(());
        }
        let written = match writing.failure {
            Some(failure) => Err(failure),
            None => Ok(Checksum::of(&running.values[item])),
        };
        let mut actions = Vec::new();
        if let Flow::Put(flow) = &mut running.flow {
            flow.on_written(local, item, written, &mut actions);
        }
        self.act(index, actions)
    }
}

/// A value cut into datagrams.
fn pieces(transfer: TransferId, extent: ExtentRef, value: &Rc<[u8]>, chunks: usize) -> Vec<Data> {
    let size = value.len().div_ceil(chunks);
    let count = value.len().div_ceil(size);
    let piece = |(at, bytes): (usize, &[u8])| Data::Write {
        transfer,
        extent,
        offset: at * size,
        bytes: bytes.into(),
        chunks: count,
    };
    value.chunks(size).enumerate().map(piece).collect()
}

/// Longest time until a cancelled transfer has ended, in nanoseconds.
const CANCEL_NANOS: u64 = 2_000_000;
/// How often a client sends a transfer before the link counts as broken.
const TRANSFER_ATTEMPTS: u32 = 3;
