//! A node's process: the agent, its disk and memory, and the transfer of bytes to and from clients.

use std::collections::BTreeMap;

use slackwater_base::{Checksum, Rng};
use slackwater_tier::io::{DiskDone, DiskOp, LogFile, Part};
use slackwater_tier::testing::wrong_copies;
use slackwater_tier::{Agent, AgentInput, AgentOutput, FormatError};
use slackwater_wire::{DiskEntry, DiskState, Incarnation, OffloadTask, Report, TicketId};

use crate::announced::Announced;
use crate::check::{Checked, Invariant, Violation};
use crate::clock::DriftingClock;
use crate::disk::{Caller, Crash, Disk};
use crate::engine::Seed;
use crate::ledger::{Ledger, Promise, Trust};
use crate::memory::Memory;
use crate::net::Process;
use crate::options::Options;

use super::event::Event;
use super::faults::Moment;
use super::gate::Gate;
use super::serve::Serving;
use super::uplink::Uplink;
use super::{Timer, World};

/// A node's process and its hardware.
pub(crate) struct Node {
    pub(crate) agent: Option<Agent>,
    pub(crate) life: u64,
    pub(crate) clock: DriftingClock,
    pub(crate) disk: Disk,
    pub(crate) memory: Memory,
    pub(crate) ledger: Ledger,
    pub(super) uplink: Uplink,
    pub(super) gate: Gate,
    /// What its memory holds, as its master has said, and what of all that it holds is to be announced.
    pub(super) announced: Announced,
    /// Generations below are those of earlier masters.
    pub(super) floor: u64,
    /// What the log has reported while it was being opened.
    found: Vec<DiskEntry>,
    pub(crate) opened: bool,
    /// The state that the log last reported in this life.
    pub(crate) log_state: Option<DiskState>,
    /// Offloads under way.
    pub(super) tickets: BTreeMap<TicketId, OffloadTask>,
    /// Length and checksum that promotions under way must produce.
    pub(super) promoting: BTreeMap<TicketId, (u64, Checksum)>,
    timer: Timer,
    pub(super) serving: Serving,
    pub(super) rng: Rng,
    seed: Seed,
    index: u32,
    drift_ppm: u64,
    pub(crate) window: u64,
    pub(crate) links_resumed: u64,
    pub(crate) extents_announced: u64,
}

impl Node {
    /// Whether the log accepts records, as it must after every fault of the device and after it was full.
    pub(crate) fn log_works(&self) -> bool {
        self.log_state.is_none_or(|state| state.accepting)
    }

    pub(crate) fn new(seed: Seed, options: &Options, index: u32) -> Self {
        let number = u64::from(index);
        Self {
            agent: None,
            life: 0,
            clock: DriftingClock::new(
                &mut seed.stream("clock of a node", number),
                options.drift_ppm,
            ),
            disk: Disk::new(seed.stream("disk", number), options.disk_bytes),
            memory: Memory::default(),
            ledger: Ledger::default(),
            uplink: Uplink::new(&mut seed.stream("lives of a node", number)),
            gate: Gate::default(),
            announced: Announced::default(),
            floor: 0,
            found: Vec::new(),
            opened: false,
            log_state: None,
            tickets: BTreeMap::new(),
            promoting: BTreeMap::new(),
            timer: Timer::default(),
            serving: Serving::default(),
            rng: seed.stream("node", number),
            seed,
            index,
            drift_ppm: options.drift_ppm,
            window: 0,
            links_resumed: 0,
            extents_announced: 0,
        }
    }
}

impl World {
    /// Starts a node's process: a new life with empty memory and a log that must be read.
    pub(crate) fn start_node(&mut self, index: u32) -> Checked {
        let config = self.options.agent(index);
        let segments = self.options.segments(index);
        let node = &mut self.nodes[index as usize];
        node.life += 1;
        let mut rng = node
            .seed
            .stream("clock of a node", u64::from(node.index) << 32 | node.life);
        node.clock = DriftingClock::new(&mut rng, node.drift_ppm);
        node.timer = Timer::default();
        node.uplink = Uplink::new(&mut node.rng);
        (node.gate, node.announced) = (Gate::default(), Announced::default());
        node.floor = 0;
        let mut agent = Agent::new(config);
        for segment in segments {
            let segment = segment.lent(Incarnation(node.life));
            node.memory
                .mount(segment.segment, segment.incarnation, segment.bytes);
            agent.add_segment(segment);
        }
        node.agent = Some(agent);
        node.disk.sync_names();
        let files = node
            .disk
            .files()
            .into_iter()
            .map(|(file, bytes)| LogFile { file, bytes })
            .collect();
        let fresh = u128::from(node.rng.next_u64()) << 64 | u128::from(node.rng.next_u64());
        if self.options.has_log() {
            self.node_step(index, AgentInput::Open { files, fresh })
        } else {
            self.node_opened(index)
        }
    }

    /// Ends the process of a node; its memory is lost.
    pub(crate) fn stop_node(&mut self, index: u32, how: Crash) {
        self.promised.lose(index, self.engine.now());
        let node = &mut self.nodes[index as usize];
        node.agent = None;
        node.uplink.session = None;
        node.opened = false;
        node.log_state = None;
        node.found.clear();
        node.tickets.clear();
        node.promoting.clear();
        node.serving.stop();
        node.disk.crash(how);
    }

    /// The log is open, and what it holds is judged: the node connects.
    fn node_opened(&mut self, index: u32) -> Checked {
        let node = &mut self.nodes[index as usize];
        node.opened = true;
        let mut found = std::mem::take(&mut node.found);
        // One that outlives its master announces what it has found when there is one.
        let records = node.agent.iter().flat_map(Agent::records);
        found.extend(records.map(|reported| reported.entry));
        node.ledger.judge(&found, node.disk.trust())?;
        node.disk.was_judged();
        let life = node.life;
        self.node_connects(index, life);
        Ok(())
    }

    pub(super) fn node_wakes(&mut self, index: u32, life: u64) -> Checked {
        if !self.lives(Process::Node(index), life) {
            return Ok(());
        }
        let now = self.local(Process::Node(index));
        let node = &mut self.nodes[index as usize];
        node.timer.fired();
        let mut out = Vec::new();
        if let Some(agent) = &mut node.agent
            && agent.next_deadline().is_some_and(|at| at <= now)
        {
            agent.on_deadline(now, &mut out);
        }
        self.node_outputs(index, out)
    }

    pub(super) fn node_step(&mut self, index: u32, input: AgentInput) -> Checked {
        let now = self.local(Process::Node(index));
        let mut out = Vec::new();
        if let Some(agent) = &mut self.nodes[index as usize].agent {
            agent.handle(now, input, &mut out);
        }
        self.node_outputs(index, out)
    }

    /// Performs the agent's outputs.
    pub(super) fn node_outputs(&mut self, index: u32, out: Vec<AgentOutput>) -> Checked {
        let process = Process::Node(index);
        for output in out {
            if self.nodes[index as usize].agent.is_none() {
                return Ok(());
            }
            match output {
                AgentOutput::Disk { op, request } => {
                    self.submit(index, Caller::Agent(op), request)?
                }
                AgentOutput::Report(report) => self.node_reports(index, report)?,
                AgentOutput::Opened(opened) => {
                    let now = self.engine.now();
                    self.trace.note(now, format_args!("{process:?} {opened:?}"));
                    self.node_opened(index)?;
                }
                AgentOutput::Refused(error) if error.may_pass() => self.give_up_opening(index),
                // A write that went astray over the header of the only file leaves nothing by which to tell the log
                // from the files of another program: refusing those is right.
                AgentOutput::Refused(FormatError::Foreign { .. })
                    if self.nodes[index as usize].disk.trust() == Trust::LosesWrites =>
                {
                    self.replace_disk(index)
                }
                AgentOutput::Refused(error) => {
                    let what = format!("{process:?} refuses its own log: {error}");
                    return Err(Violation::new(Invariant::Acknowledgement, what));
                }
                AgentOutput::Flushed(_) | AgentOutput::Stopped { .. } => {}
            }
            self.note_sent(process)?;
        }
        self.arm_node(index);
        self.node_speaks(index)
    }

    pub(super) fn node_reports(&mut self, index: u32, report: Report) -> Checked {
        let now = self.engine.now();
        self.trace
            .note(now, format_args!("node{index} reports {report:?}"));
        let node = &mut self.nodes[index as usize];
        match &report {
            Report::Announce { entries, .. } if !node.opened => {
                let entries = entries.iter().map(|reported| reported.entry.clone());
                node.found.extend(entries);
            }
            Report::Announce { entries, .. } => {
                // Its master never heard how the offload went, and nobody compared its source.
                let flips = self.options.fault_kinds.memory_flips;
                let agent = node.agent.as_ref();
                let durable = |entry: &DiskEntry| match flips {
                    true => Some(Promise::Flawed),
                    false => agent?.holds_durably(entry).then_some(Promise::Durable),
                };
                node.announced.records(&mut node.ledger, entries, durable)?;
            }
            Report::Holds { entries, ahead, .. } => {
                node.announced.holds(entries)?;
                if !ahead {
                    node.extents_announced += entries.len() as u64;
                }
            }
            Report::Announced { segment, .. } => {
                let is_memory = node.memory.has(*segment);
                node.announced.complete(&node.ledger, *segment, is_memory)?;
                if is_memory {
                    let held = node.announced.extents(*segment);
                    node.memory.outlive(*segment, node.floor, held);
                }
            }
            Report::Fenced(extents) => {
                for extent in extents {
                    node.memory.fence(*extent)?;
                }
            }
            Report::Dropped(entries) => {
                entries.iter().for_each(|entry| node.ledger.dropped(entry));
            }
            Report::Lost(entries) => {
                let tries = self.options.agent(index).log.map(|log| log.read_tries_max);
                let readable = matches!(node.disk.trust(), Trust::Intact | Trust::Unread)
                    && node.disk.read_errors() < tries.unwrap_or_default().into();
                for entry in entries {
                    if readable && node.ledger.is_written(entry) && node.disk.write_errors() == 0 {
                        let what = format!("{entry:?} was reported as written and is lost");
                        return Err(Violation::new(Invariant::Acknowledgement, what));
                    }
                    if readable && node.ledger.owes(entry) {
                        let what = format!(
                            "{entry:?} was reported as lost after {} errors of the device",
                            node.disk.read_errors()
                        );
                        return Err(Violation::new(Invariant::Acknowledgement, what));
                    }
                    node.ledger.dropped(entry);
                }
            }
            Report::Disk(state) => node.log_state = Some(*state),
            Report::Offloaded(results) => {
                for (ticket, result) in results {
                    if let (Some(task), Ok(())) = (node.tickets.remove(ticket), result) {
                        let source = || node.memory.read(task.source, 0, task.bytes as usize);
                        let intact = !self.options.fault_kinds.memory_flips
                            || source().is_ok_and(|bytes| Checksum::of(&bytes) == task.checksum);
                        let agent = node.agent.as_ref();
                        let synced = agent.is_some_and(|agent| agent.holds_durably(&task.entry));
                        match (intact, task.promised || synced) {
                            (true, true) => node.ledger.durable(&task.entry),
                            (true, false) => node.ledger.written(&task.entry),
                            (false, _) => node.ledger.flawed(&task.entry),
                        }
                    }
                }
            }
            Report::Promoted { ticket, extent } => {
                if let Some((bytes, checksum)) = node.promoting.remove(ticket)
                    && Checksum::of(&node.memory.read(*extent, 0, bytes as usize)?) != checksum
                    && !self.options.fault_kinds.memory_flips
                {
                    let what = format!(
                        "the promotion {ticket} has filled {extent:?} with other bytes than were put"
                    );
                    return Err(Violation::new(Invariant::NoWrongBytes, what));
                }
            }
            _ => {}
        }
        node.uplink.reports.push(report);
        Ok(())
    }

    fn arm_node(&mut self, index: u32) {
        let now = self.engine.now();
        let node = &mut self.nodes[index as usize];
        let Some(agent) = &node.agent else { return };
        let deadline = agent.next_deadline().map(|at| node.clock.world(at));
        if let Some(at) = node.timer.arm(now, deadline) {
            let life = node.life;
            self.engine.push(
                at,
                Event::Wake {
                    process: Process::Node(index),
                    life,
                },
            );
        }
    }

    pub(super) fn submit(&mut self, index: u32, caller: Caller, what: DiskOp) -> Checked {
        let now = self.engine.now();
        self.trace.note(
            now,
            format_args!("node{index} {caller:?} {}", line_of(&what)),
        );
        if let DiskOp::Write {
            file,
            offset,
            parts,
        } = &what
            && let Some(entry) = wrong_copies(*file, *offset, parts).first()
        {
            let what = format!("node{index} copies {entry:?} with bytes that are not its own");
            return Err(Violation::new(Invariant::NoWrongBytes, what));
        }
        let node = &mut self.nodes[index as usize];
        let at = node.disk.submit(now, caller, what, &node.memory)?;
        let life = node.life;
        self.engine.push(
            at,
            Event::Device {
                node: index,
                life,
                caller,
            },
        );
        Ok(())
    }

    /// The device has done an operation; a paused process is told later.
    pub(super) fn on_device(&mut self, index: u32, life: u64, caller: Caller) -> Checked {
        if !self.lives(Process::Node(index), life) {
            return Ok(());
        }
        let now = self.engine.now();
        let node = &mut self.nodes[index as usize];
        let (write, sync) = (node.disk.is_write(caller), node.disk.is_sync(caller));
        let Some(ended) = node.disk.complete(caller, &mut node.memory)? else {
            return Ok(());
        };
        let failed = ended.is_err();
        let event = match caller {
            Caller::Agent(op) => Event::AgentDisk {
                node: index,
                life,
                done: DiskDone { op, result: ended },
            },
            Caller::Reader(reader) => Event::ReaderDisk {
                node: index,
                life,
                reader,
                ended,
            },
        };
        self.engine.push(now, event);
        if write {
            self.reached(index, Moment::Wrote);
        } else if sync && failed {
            self.reached(index, Moment::SyncFailed);
        }
        Ok(())
    }

    pub(super) fn on_agent_disk(&mut self, index: u32, life: u64, done: DiskDone) -> Checked {
        if !self.lives(Process::Node(index), life) {
            return Ok(());
        }
        let now = self.engine.now();
        let failed = done.result.as_ref().err();
        self.trace
            .note(now, format_args!("node{index} {:?} {failed:?}", done.op));
        self.node_step(index, AgentInput::Disk(done))?;
        let node = &mut self.nodes[index as usize];
        if let Some(agent) = &node.agent {
            for entry in node.ledger.unsynced() {
                if agent.holds_durably(&entry) {
                    node.ledger.durable(&entry);
                }
            }
        }
        Ok(())
    }
}

/// An operation as text for the trace: everything but the bytes.
fn line_of(what: &DiskOp) -> String {
    match what {
        DiskOp::Write {
            file,
            offset,
            parts,
        } => {
            let lengths: Vec<u64> = parts
                .iter()
                .map(|part| match part {
                    Part::Bytes(bytes) => bytes.len() as u64,
                    Part::Extent { length, .. } => *length,
                })
                .collect();
            format!("write {file:?} at {offset} {lengths:?}")
        }
        other => format!("{other:?}"),
    }
}
