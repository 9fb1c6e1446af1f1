//! The node's side of transfers: writes and reads of memory, and reads of records.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use slackwater_base::{Checksum, Instant};
use slackwater_client::{ReadFailure, WriteFailure};
use slackwater_tier::arena::{Access, AccessId};
use slackwater_tier::io::{DiskOp, DiskOutcome, Target};
use slackwater_tier::{ReadEnd, RecordRead};
use slackwater_wire::{DiskEntry, ExtentRef, TicketId};

use crate::check::Checked;
use crate::disk::{Caller, Ended};
use crate::net::Process;

use super::World;
use super::bring::Brings;
use super::event::{Data, Event, TransferId};

/// Transfers under way in one life of a node.
#[derive(Default)]
pub(crate) struct Serving {
    writes: BTreeMap<TransferId, Write>,
    copies: BTreeMap<TransferId, MemoryRead>,
    readers: BTreeMap<u64, Reader>,
    /// Reads of records whose bytes are being copied to the extent of a promotion.
    fills: BTreeMap<u64, Fill>,
    pub(super) brings: Brings,
    /// Not reset between lives, so that a late completion of the disk is never given to another reader.
    next_reader: u64,
}

/// A client's write that is arriving.
struct Write {
    from: Process,
    extent: ExtentRef,
    access: AccessId,
    got: BTreeSet<usize>,
}

/// A client's read of memory, half done.
struct MemoryRead {
    from: Process,
    extent: ExtentRef,
    access: AccessId,
    bytes: u64,
    half: Vec<u8>,
}

/// A client's read of a record.
struct Reader {
    from: Process,
    transfer: TransferId,
    read: RecordRead,
    /// When the node began it, on its own clock.
    since: Instant,
}

/// A client's read of a record that has come and fills the extent of a promotion, half done.
struct Fill {
    reader: Reader,
    /// Of the record.
    found: Checksum,
    bytes: Vec<u8>,
    ticket: TicketId,
    extent: ExtentRef,
}

impl Serving {
    pub(crate) fn count(&self) -> usize {
        self.writes.len()
            + self.copies.len()
            + self.readers.len()
            + self.fills.len()
            + self.brings.len()
    }

    pub(super) fn stop(&mut self) {
        *self = Self {
            next_reader: self.next_reader,
            ..Self::default()
        };
    }
}

impl World {
    /// Handles a client's datagram.
    pub(super) fn node_data(&mut self, index: u32, from: Process, data: Data) -> Checked {
        if self.nodes[index as usize].agent.is_none() {
            return Ok(());
        }
        match data {
            Data::Write {
                transfer,
                extent,
                offset,
                bytes,
                chunks,
            } => self.take_piece(index, (from, transfer), extent, (offset, &bytes, chunks)),
            Data::ReadMemory {
                transfer,
                extent,
                bytes,
            } => self.read_memory(index, (from, transfer), extent, bytes),
            Data::ReadRecord { transfer, entry } => {
                self.read_record(index, (from, transfer), &entry)
            }
            Data::Bytes { transfer, result } => self.bytes_came(index, transfer, result),
            Data::Written { .. } => Ok(()),
        }
    }

    /// Writes one piece of a value: the first piece of a transfer begins an access, the last ends it.
    fn take_piece(
        &mut self,
        index: u32,
        (from, transfer): (Process, TransferId),
        extent: ExtentRef,
        (offset, bytes, chunks): (usize, &[u8], usize),
    ) -> Checked {
        let node = &mut self.nodes[index as usize];
        let life = node.life;
        if !node.serving.writes.contains_key(&transfer) {
            let Some(agent) = &mut node.agent else {
                return Ok(());
            };
            match node.gate.begin(agent, extent, Access::Write) {
                Some(access) => {
                    node.serving.writes.insert(
                        transfer,
                        Write {
                            from,
                            extent,
                            access,
                            got: BTreeSet::new(),
                        },
                    );
                }
                None => {
                    let refusal = Data::Written {
                        transfer,
                        result: Err(WriteFailure::Stale),
                    };
                    self.send(Process::Node(index), from, &refusal);
                    return Ok(());
                }
            }
        }
        let node = &mut self.nodes[index as usize];
        let write = node.serving.writes.get_mut(&transfer).expect("begun above");
        node.memory.write(extent, offset as u64, bytes)?;
        write.got.insert(offset);
        let got = write.got.len();
        if got == chunks {
            return self.end_write(index, transfer, None);
        }
        let at = self.engine.now() + self.options.serve_timeout;
        self.engine.push(
            at,
            Event::Idle {
                node: index,
                life,
                transfer,
                chunks: got,
            },
        );
        Ok(())
    }

    /// Gives up a write whose pieces no longer arrive: its access must not hold the extent for ever.
    pub(super) fn on_idle(
        &mut self,
        index: u32,
        life: u64,
        transfer: TransferId,
        chunks: usize,
    ) -> Checked {
        if !self.lives(Process::Node(index), life) {
            return Ok(());
        }
        let stuck = |write: &Write| write.got.len() == chunks;
        if self.nodes[index as usize]
            .serving
            .writes
            .get(&transfer)
            .is_some_and(stuck)
        {
            return self.end_write(index, transfer, Some(WriteFailure::Transfer));
        }
        Ok(())
    }

    fn end_write(
        &mut self,
        index: u32,
        transfer: TransferId,
        failure: Option<WriteFailure>,
    ) -> Checked {
        let Some(write) = self.nodes[index as usize].serving.writes.remove(&transfer) else {
            return Ok(());
        };
        let live = self.end_access(index, write.access)?;
        let result = match failure {
            Some(failure) => Err(failure),
            None if live => Ok(()),
            None => Err(WriteFailure::Stale),
        };
        let now = self.engine.now();
        self.trace.note(
            now,
            format_args!("node{index} {transfer:?} of {:?} {result:?}", write.extent),
        );
        self.send(
            Process::Node(index),
            write.from,
            &Data::Written { transfer, result },
        );
        Ok(())
    }

    /// Reads half of an extent now and half a little later, so that a forbidden write in between is caught.
    fn read_memory(
        &mut self,
        index: u32,
        (from, transfer): (Process, TransferId),
        extent: ExtentRef,
        bytes: u64,
    ) -> Checked {
        let now = self.engine.now();
        let node = &mut self.nodes[index as usize];
        let Some(agent) = &mut node.agent else {
            return Ok(());
        };
        if node.serving.copies.contains_key(&transfer) {
            return Ok(());
        }
        let Some(access) = node.gate.begin(agent, extent, Access::Read) else {
            let refusal = Data::Bytes {
                transfer,
                result: Err(ReadFailure::Stale),
            };
            self.send(Process::Node(index), from, &refusal);
            return Ok(());
        };
        let half = node.memory.read(extent, 0, bytes as usize / 2)?;
        node.serving.copies.insert(
            transfer,
            MemoryRead {
                from,
                extent,
                access,
                bytes,
                half,
            },
        );
        let at = now + Duration::from_nanos(node.rng.below(COPY_NANOS));
        self.engine.push(
            at,
            Event::Copy {
                node: index,
                life: node.life,
                transfer,
            },
        );
        Ok(())
    }

    pub(super) fn on_copy(&mut self, index: u32, life: u64, transfer: TransferId) -> Checked {
        if !self.lives(Process::Node(index), life) {
            return Ok(());
        }
        let node = &mut self.nodes[index as usize];
        let Some(mut copy) = node.serving.copies.remove(&transfer) else {
            return Ok(());
        };
        let done = copy.half.len();
        copy.half.extend(
            node.memory
                .read(copy.extent, done as u64, copy.bytes as usize - done)?,
        );
        let live = self.end_access(index, copy.access)?;
        let result = if live {
            Ok(copy.half.into())
        } else {
            Err(ReadFailure::Stale)
        };
        self.send(
            Process::Node(index),
            copy.from,
            &Data::Bytes { transfer, result },
        );
        Ok(())
    }

    pub(super) fn end_access(&mut self, index: u32, access: AccessId) -> Checked<bool> {
        let mut out = Vec::new();
        let node = &mut self.nodes[index as usize];
        let Some(agent) = &mut node.agent else {
            return Ok(false);
        };
        let live = node.gate.end(agent, access, &mut out);
        self.node_outputs(index, out)?;
        Ok(live)
    }

    fn read_record(
        &mut self,
        index: u32,
        (from, transfer): (Process, TransferId),
        entry: &DiskEntry,
    ) -> Checked {
        let now = self.local(Process::Node(index));
        let node = &mut self.nodes[index as usize];
        let Some(agent) = &mut node.agent else {
            return Ok(());
        };
        let mut out = Vec::new();
        let Some(found) = agent.begin_read(now, entry, &mut out) else {
            let refusal = Data::Bytes {
                transfer,
                result: Err(ReadFailure::Stale),
            };
            self.send(Process::Node(index), from, &refusal);
            return self.node_outputs(index, out);
        };
        node.serving.next_reader += 1;
        let reader = node.serving.next_reader;
        node.serving.readers.insert(
            reader,
            Reader {
                from,
                transfer,
                read: found,
                since: now,
            },
        );
        let what = DiskOp::Read {
            file: found.file,
            offset: found.offset,
            bytes: found.bytes,
            length: found.length,
            into: Target::Completion,
        };
        self.submit(index, Caller::Reader(reader), what)
    }

    pub(super) fn on_reader_disk(
        &mut self,
        index: u32,
        life: u64,
        number: u64,
        ended: Ended,
    ) -> Checked {
        if !self.lives(Process::Node(index), life) {
            return Ok(());
        }
        let node = &mut self.nodes[index as usize];
        let Some(reader) = node.serving.readers.remove(&number) else {
            return Ok(());
        };
        let (found, bytes) = match ended {
            Ok(DiskOutcome::Read {
                mut bytes,
                checksum,
            }) => {
                bytes.truncate(reader.read.length as usize);
                (checksum, bytes.into())
            }
            Ok(DiskOutcome::Done | DiskOutcome::Reused) => unreachable!("a read gives bytes"),
            Err(error) => {
                return self.end_record_read(
                    index,
                    reader,
                    ReadEnd::Failed(error),
                    Err(ReadFailure::Transfer),
                );
            }
        };
        let wanted = match &mut node.agent {
            Some(agent) if found == reader.read.checksum => agent.promotion_of(&reader.read),
            _ => None,
        };
        let Some((ticket, extent)) = wanted else {
            return self.end_record_read(index, reader, ReadEnd::Checked(found), Ok(bytes));
        };
        node.memory.write(extent, 0, &bytes[..bytes.len() / 2])?;
        let fill = Fill {
            reader,
            found,
            bytes,
            ticket,
            extent,
        };
        node.serving.fills.insert(number, fill);
        let at = self.engine.now() + Duration::from_nanos(node.rng.below(COPY_NANOS));
        self.engine.push(
            at,
            Event::Fill {
                node: index,
                life,
                reader: number,
            },
        );
        Ok(())
    }

    pub(super) fn on_fill(&mut self, index: u32, life: u64, number: u64) -> Checked {
        if !self.lives(Process::Node(index), life) {
            return Ok(());
        }
        let now = self.local(Process::Node(index));
        let node = &mut self.nodes[index as usize];
        let Some(fill) = node.serving.fills.remove(&number) else {
            return Ok(());
        };
        let done = fill.bytes.len() / 2;
        node.memory
            .write(fill.extent, done as u64, &fill.bytes[done..])?;
        let mut out = Vec::new();
        if let Some(agent) = &mut node.agent {
            agent.copied(now, fill.ticket, fill.found, &mut out);
        }
        self.node_outputs(index, out)?;
        self.end_record_read(
            index,
            fill.reader,
            ReadEnd::Checked(fill.found),
            Ok(fill.bytes),
        )
    }

    fn end_record_read(
        &mut self,
        index: u32,
        reader: Reader,
        end: ReadEnd,
        bytes: Result<Vec<u8>, ReadFailure>,
    ) -> Checked {
        let now = self.local(Process::Node(index));
        let Some(agent) = &mut self.nodes[index as usize].agent else {
            return Ok(());
        };
        let mut out = Vec::new();
        let took = reader.since.until(now);
        let right = agent.end_read(now, reader.read, (end, took), &mut out);
        let result = bytes.and_then(|bytes| {
            if right {
                Ok(bytes.into())
            } else {
                Err(ReadFailure::Corrupt)
            }
        });
        self.node_outputs(index, out)?;
        self.send(
            Process::Node(index),
            reader.from,
            &Data::Bytes {
                transfer: reader.transfer,
                result,
            },
        );
        Ok(())
    }
}

/// Longest time between the halves of a copy, in nanoseconds.
const COPY_NANOS: u64 = 3_000_000;
