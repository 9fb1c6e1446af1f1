//! The effects of faults, and the end and restart of processes.

use std::time::Duration;

use crate::check::Checked;
use crate::disk::{Crash, DiskFaults};
use crate::fault::Fault;
use crate::net::Process;

use super::World;
use super::event::Event;

/// The end of a process that has not happened yet: it comes after a few more messages, or at an operation of its disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingEnd {
    messages: u32,
    moment: Moment,
    how: Crash,
    down: Duration,
    replace_disk: bool,
    /// Time from the restart until a power cut follows, if one does.
    power_cut_after: Option<Duration>,
}

/// The event at which a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Its last message was sent.
    Sent,
    /// Its disk has done a write that no sync has covered.
    Wrote,
    /// A sync of its disk has failed.
    SyncFailed,
}

impl Moment {
    /// A write if the number of events is even, otherwise a message.
    fn of(events: u64) -> Self {
        if events.is_multiple_of(2) {
            Self::Wrote
        } else {
            Self::Sent
        }
    }
}

impl PendingEnd {
    fn new(how: Crash, down: Duration) -> Self {
        Self {
            messages: 0,
            moment: Moment::Sent,
            how,
            down,
            replace_disk: false,
            power_cut_after: None,
        }
    }
}

impl World {
    pub(super) fn on_fault(&mut self, index: usize) -> Checked {
        let now = self.engine.now();
        let fault = self.plan.faults[index].fault.clone();
        self.trace.note(now, format_args!("fault {fault:?}"));
        self.faults_done += 1;
        match fault {
            Fault::Crash { process, how, down } => {
                let node = matches!(process, Process::Node(_));
                let moment = if node {
                    Moment::of(self.events)
                } else {
                    Moment::Sent
                };
                self.end_soon(
                    process,
                    PendingEnd {
                        moment,
                        ..PendingEnd::new(how, down)
                    },
                );
            }
            Fault::ReplaceDisk { node, down } => {
                let moment = Moment::of(self.events);
                self.end_soon(
                    Process::Node(node),
                    PendingEnd {
                        moment,
                        replace_disk: true,
                        ..PendingEnd::new(Crash::Power, down)
                    },
                );
            }
            Fault::KillThenPowerCut {
                node,
                at_failed_sync,
                down,
                after,
            } => {
                if at_failed_sync {
                    self.nodes[node as usize].disk.fail_next_sync();
                }
                let moment = if at_failed_sync {
                    Moment::SyncFailed
                } else {
                    Moment::Wrote
                };
                let end = PendingEnd {
                    moment,
                    power_cut_after: Some(after),
                    ..PendingEnd::new(Crash::Process, down)
                };
                self.end_soon(Process::Node(node), end);
            }
            Fault::Blackout { down } => {
                for process in self.processes() {
                    self.end(process, PendingEnd::new(Crash::Power, down));
                }
            }
            Fault::Pause { process, lasts } => {
                // A second pause neither ends nor prolongs the first: what the first delays would arrive after what only the
                // second does, and links would not be in order.
                if self.paused.get(&process).is_some_and(|until| *until > now) {
                    return Ok(());
                }
                let until = now + lasts;
                self.paused.insert(process, until);
                self.last_pause.insert(process, until);
                if lasts > self.options.link_timeout {
                    // A process that is silent for that long is taken for dead, and detects that when it continues.
                    for session in self.sessions_of(process) {
                        self.break_session(
                            session,
                            self.options.link_timeout,
                            self.options.link_timeout,
                        );
                    }
                }
            }
            Fault::Cut { from, to, lasts } => {
                self.net.cut(from, to, now + lasts);
                let timeout = self.options.link_timeout;
                if lasts > timeout {
                    let end = if from == Process::Master { to } else { from };
                    if from == Process::Master || to == Process::Master {
                        for session in self.sessions_of(end) {
                            self.break_session(session, timeout, timeout + timeout / 4);
                        }
                    }
                }
            }
            Fault::Slow { from, to, lasts } => self.net.slow(from, to, now + lasts),
            Fault::Disk {
                node,
                faults,
                lasts,
            } => {
                if faults.misdirect > 0.0 {
                    self.history.allow_resurrection();
                }
                let host = &mut self.nodes[node as usize];
                host.disk.set_faults(faults);
                host.window += 1;
                let window = host.window;
                self.engine
                    .push(now + lasts, Event::DiskFaultsEnd { node, window });
            }
            Fault::Rot { node, bits } => {
                (0..bits).for_each(|_| self.nodes[node as usize].disk.rot())
            }
            Fault::SpoiltStretches { node, blocks } => {
                let host = &mut self.nodes[node as usize];
                if host.opened {
                    (0..STRETCHES).for_each(|_| host.disk.spoil_stretch(blocks));
                }
            }
            Fault::Flip { node, bit } => {
                let segments = self.options.segments(node);
                if let Some(segment) = segments.get(bit as usize % segments.len().max(1)) {
                    self.nodes[node as usize].memory.flip(segment.segment, bit);
                }
            }
        }
        Ok(())
    }

    pub(super) fn on_disk_calm(&mut self, node: u32, window: u64) -> Checked {
        let host = &mut self.nodes[node as usize];
        if host.window == window {
            host.disk.set_faults(DiskFaults::default());
        }
        Ok(())
    }

    /// Ends a process after up to three more messages, so that it may end between two messages of one step.
    fn end_soon(&mut self, process: Process, end: PendingEnd) {
        let (life, up) = self.life(process);
        if !up {
            return;
        }
        let end = PendingEnd {
            messages: (life ^ self.events) as u32 % 4,
            ..end
        };
        let PendingEnd {
            messages, moment, ..
        } = end;
        if messages == 0 && moment == Moment::Sent {
            return self.end(process, end);
        }
        self.ending.insert(process, end);
        let at = self.engine.now()
            + if moment == Moment::Sent {
                END_DELAY_MAX
            } else {
                END_DELAY_MAX_DISK
            };
        self.engine.push(at, Event::EndOverdue { process, life });
    }

    pub(super) fn on_end_overdue(&mut self, process: Process, life: u64) -> Checked {
        if self.lives(process, life)
            && let Some(end) = self.ending.remove(&process)
        {
            self.end(process, end);
        }
        Ok(())
    }

    /// A process has sent a message; ends the process if that was its last one.
    pub(crate) fn note_sent(&mut self, process: Process) -> Checked {
        let said = |end: &&mut PendingEnd| end.moment == Moment::Sent;
        let Some(end) = self.ending.get_mut(&process).filter(said) else {
            return Ok(());
        };
        end.messages -= 1;
        if end.messages == 0
            && let Some(end) = self.ending.remove(&process)
        {
            self.end(process, end);
        }
        Ok(())
    }

    /// Ends a node whose log cannot be read now, and starts it again later, as an operator would.
    pub(super) fn give_up_opening(&mut self, node: u32) {
        let end = PendingEnd::new(Crash::Process, REOPENING);
        self.end(Process::Node(node), end);
    }

    /// Ends a node whose files are not a log any more, and starts it again later over an empty disk, as an operator
    /// would.
    pub(super) fn replace_disk(&mut self, node: u32) {
        let end = PendingEnd {
            replace_disk: true,
            ..PendingEnd::new(Crash::Process, REOPENING)
        };
        self.end(Process::Node(node), end);
    }

    /// The disk of a node has reached `moment`; ends the node if it was to end there.
    pub(crate) fn reached(&mut self, node: u32, moment: Moment) {
        let process = Process::Node(node);
        if self
            .ending
            .get(&process)
            .is_some_and(|end| end.moment == moment)
            && let Some(end) = self.ending.remove(&process)
        {
            self.end(process, end);
        }
    }

    /// Ends a process now and has it started again later.
    fn end(&mut self, process: Process, end: PendingEnd) {
        let (_, up) = self.life(process);
        let now = self.engine.now();
        if !up {
            return;
        }
        let processes = if self.options.embedded {
            self.processes()
        } else {
            vec![process]
        };
        for process in processes {
            self.end_one(process, end);
        }
        if let (Some(after), Process::Node(node)) = (end.power_cut_after, process) {
            self.engine.push(
                now + end.down + after,
                Event::PowerCut {
                    node,
                    down: end.down,
                },
            );
        }
        self.trace.note(now, format_args!("{process:?} ends"));
    }

    fn end_one(&mut self, process: Process, end: PendingEnd) {
        let now = self.engine.now();
        self.ending.remove(&process);
        self.paused.remove(&process);
        let sessions = self.sessions_of(process);
        match process {
            Process::Master => {
                self.master.core = None;
                self.history.master_ended(now);
                self.promised.master_ended(now);
            }
            Process::Node(node) => {
                self.stop_node(node, end.how);
                if end.replace_disk {
                    let host = &mut self.nodes[node as usize];
                    host.disk.replace();
                    host.ledger.void();
                }
            }
            Process::Client(client) => self.stop_client(client),
        }
        // The kernel of a killed process closes its connections; a machine without power sends nothing.
        let silence = if end.how == Crash::Power {
            self.options.link_timeout
        } else {
            Duration::from_micros(200)
        };
        for session in sessions {
            self.break_session(session, silence, silence);
        }
        self.engine.push(now + end.down, Event::Start { process });
    }

    /// A node that was killed a little earlier loses power.
    pub(super) fn on_power_cut(&mut self, node: u32, down: Duration) {
        if !self.healed {
            self.end(Process::Node(node), PendingEnd::new(Crash::Power, down));
        }
    }

    pub(super) fn on_start(&mut self, process: Process) -> Checked {
        if self.life(process).1 {
            return Ok(());
        }
        let now = self.engine.now();
        let opening = self.options.embedded && self.options.has_log() && !self.master.announced;
        if opening && matches!(process, Process::Client(_)) {
            // An embedded store accepts calls once its log is open and announced.
            self.engine.push(now + OPENING, Event::Start { process });
            return Ok(());
        }
        self.trace.note(now, format_args!("{process:?} starts"));
        match process {
            Process::Master => self.start_master(),
            Process::Node(node) => self.start_node(node),
            Process::Client(client) => {
                self.start_client(client);
                Ok(())
            }
        }
    }

    /// All processes, the master first.
    pub(crate) fn processes(&self) -> Vec<Process> {
        let nodes = (0..self.options.nodes).map(Process::Node);
        let clients = (0..self.options.clients).map(Process::Client);
        std::iter::once(Process::Master)
            .chain(nodes)
            .chain(clients)
            .collect()
    }

    /// Ends all faults for good, and starts all processes that are not running.
    pub(crate) fn heal(&mut self) -> Checked {
        self.healed = true;
        self.net.heal();
        self.ending.clear();
        for node in &mut self.nodes {
            node.disk.set_faults(DiskFaults::default());
        }
        for process in self.processes() {
            self.on_start(process)?;
        }
        Ok(())
    }
}

/// Stretches that one fault spoils: several, because few files are reclaimed before the process ends.
const STRETCHES: u32 = 8;
/// Longest time until a process ends that is to end at an operation of its disk.
const END_DELAY_MAX_DISK: Duration = Duration::from_millis(300);
/// Pause after which a client tries again whether the embedded store is open.
const OPENING: Duration = Duration::from_millis(1);
/// Time until a node is started again whose log could not be read.
const REOPENING: Duration = Duration::from_millis(50);
/// Longest time until a process ends that is to end after some messages.
const END_DELAY_MAX: Duration = Duration::from_millis(20);
