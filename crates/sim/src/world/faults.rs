//! Faults as they happen, and what processes leave behind when they end.

use std::time::Duration;

use crate::check::Checked;
use crate::disk::{Crash, DiskFaults};
use crate::fault::Fault;
use crate::net::Process;

use super::World;
use super::event::Event;

/// A process that ends after it has said a few more things: in the middle of what it is doing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doom {
    words: u32,
    moment: Moment,
    how: Crash,
    down: Duration,
    replace_disk: bool,
    /// When it is back, it loses power after this.
    relapse: Option<Duration>,
}

/// What a doomed process ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Its last word.
    Said,
    /// Its disk has taken a write, which no sync has covered.
    Wrote,
    /// A sync of its disk has failed.
    SyncFailed,
}

impl Moment {
    /// At a write for every second event, so that the two come in turns.
    fn of(events: u64) -> Self {
        if events.is_multiple_of(2) {
            Self::Wrote
        } else {
            Self::Said
        }
    }
}

impl Doom {
    fn new(how: Crash, down: Duration) -> Self {
        Self {
            words: 0,
            moment: Moment::Said,
            how,
            down,
            replace_disk: false,
            relapse: None,
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
                    Moment::Said
                };
                self.doom(
                    process,
                    Doom {
                        moment,
                        ..Doom::new(how, down)
                    },
                );
            }
            Fault::ReplaceDisk { node, down } => {
                let moment = Moment::of(self.events);
                self.doom(
                    Process::Node(node),
                    Doom {
                        moment,
                        replace_disk: true,
                        ..Doom::new(Crash::Power, down)
                    },
                );
            }
            Fault::Relapse {
                node,
                in_vain,
                down,
                after,
            } => {
                if in_vain {
                    self.nodes[node as usize].disk.fail_next_sync();
                }
                let moment = if in_vain {
                    Moment::SyncFailed
                } else {
                    Moment::Wrote
                };
                let doom = Doom {
                    moment,
                    relapse: Some(after),
                    ..Doom::new(Crash::Process, down)
                };
                self.doom(Process::Node(node), doom);
            }
            Fault::Blackout { down } => {
                for process in self.processes() {
                    self.end(process, Doom::new(Crash::Power, down));
                }
            }
            Fault::Pause { process, lasts } => {
                // A second pause must not end the first: what that one holds back would come after what is said later.
                let until = self
                    .paused
                    .get(&process)
                    .map_or(now + lasts, |before| (now + lasts).max(*before));
                self.paused.insert(process, until);
                self.last_pause.insert(process, until);
                if lasts > self.options.link_timeout {
                    // A process that is silent for that long is taken for dead, and finds out when it goes on.
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
                    self.history.excuse();
                }
                let host = &mut self.nodes[node as usize];
                host.disk.set_faults(faults);
                host.window += 1;
                let window = host.window;
                self.engine
                    .push(now + lasts, Event::DiskCalm { node, window });
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

    /// Lets a process say up to three more things before it ends, so that it ends between two of them.
    fn doom(&mut self, process: Process, doom: Doom) {
        let (life, up) = self.life(process);
        if !up {
            return;
        }
        let doom = Doom {
            words: (life ^ self.events) as u32 % 4,
            ..doom
        };
        let Doom { words, moment, .. } = doom;
        if words == 0 && moment == Moment::Said {
            return self.end(process, doom);
        }
        self.doomed.insert(process, doom);
        let at = self.engine.now()
            + if moment == Moment::Said {
                DOOM
            } else {
                DOOM_OF_DISK
            };
        self.engine.push(at, Event::Doom { process, life });
    }

    pub(super) fn on_doom(&mut self, process: Process, life: u64) -> Checked {
        if self.lives(process, life)
            && let Some(doom) = self.doomed.remove(&process)
        {
            self.end(process, doom);
        }
        Ok(())
    }

    /// A process has said something: the last thing, if it is doomed.
    pub(crate) fn spoke(&mut self, process: Process) -> Checked {
        let said = |doom: &&mut Doom| doom.moment == Moment::Said;
        let Some(doom) = self.doomed.get_mut(&process).filter(said) else {
            return Ok(());
        };
        doom.words -= 1;
        if doom.words == 0
            && let Some(doom) = self.doomed.remove(&process)
        {
            self.end(process, doom);
        }
        Ok(())
    }

    /// A node whose log cannot be read at the moment ends, and is started again as its keeper would.
    pub(super) fn give_up_opening(&mut self, node: u32) {
        let doom = Doom::new(Crash::Process, REOPENING);
        self.end(Process::Node(node), doom);
    }

    /// The disk of a node has done something: its last deed, if the node is doomed to that.
    pub(crate) fn reached(&mut self, node: u32, moment: Moment) {
        let process = Process::Node(node);
        if self
            .doomed
            .get(&process)
            .is_some_and(|doom| doom.moment == moment)
            && let Some(doom) = self.doomed.remove(&process)
        {
            self.end(process, doom);
        }
    }

    /// Ends a process now and has it started again later.
    fn end(&mut self, process: Process, doom: Doom) {
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
            self.end_one(process, doom);
        }
        if let (Some(after), Process::Node(node)) = (doom.relapse, process) {
            self.engine.push(
                now + doom.down + after,
                Event::Relapse {
                    node,
                    down: doom.down,
                },
            );
        }
        self.trace.note(now, format_args!("{process:?} ends"));
    }

    fn end_one(&mut self, process: Process, doom: Doom) {
        let now = self.engine.now();
        self.doomed.remove(&process);
        self.paused.remove(&process);
        let sessions = self.sessions_of(process);
        match process {
            Process::Master => {
                self.forget_debts();
                self.master.core = None;
                self.history.master_ended();
            }
            Process::Node(node) => {
                self.stop_node(node, doom.how);
                if doom.replace_disk {
                    let host = &mut self.nodes[node as usize];
                    host.disk.replace();
                    host.ledger.void();
                }
            }
            Process::Client(client) => self.stop_client(client),
        }
        // The kernel of a killed process says so; a machine without power says nothing.
        let silence = if doom.how == Crash::Power {
            self.options.link_timeout
        } else {
            Duration::from_micros(200)
        };
        for session in sessions {
            self.break_session(session, silence, silence);
        }
        self.engine.push(now + doom.down, Event::Start { process });
    }

    /// A node that was killed a little earlier loses power.
    pub(super) fn on_relapse(&mut self, node: u32, down: Duration) {
        if !self.healed {
            self.end(Process::Node(node), Doom::new(Crash::Power, down));
        }
    }

    pub(super) fn on_start(&mut self, process: Process) -> Checked {
        if self.life(process).1 {
            return Ok(());
        }
        let now = self.engine.now();
        let opening = self.options.embedded && self.options.has_log() && !self.master.announced;
        if opening && matches!(process, Process::Client(_)) {
            // An embedded store takes calls once its log is open and known.
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

    /// Everything that runs, the master first.
    pub(crate) fn processes(&self) -> Vec<Process> {
        let nodes = (0..self.options.nodes).map(Process::Node);
        let clients = (0..self.options.clients).map(Process::Client);
        std::iter::once(Process::Master)
            .chain(nodes)
            .chain(clients)
            .collect()
    }

    /// Ends all trouble for good: links, disks and processes are whole from now on.
    pub(crate) fn heal(&mut self) -> Checked {
        self.healed = true;
        self.net.heal();
        self.doomed.clear();
        for node in &mut self.nodes {
            node.disk.set_faults(DiskFaults::default());
        }
        for process in self.processes() {
            self.on_start(process)?;
        }
        Ok(())
    }
}

/// Stretches that are spoilt at a time: few files are reclaimed before the process ends.
const STRETCHES: u32 = 8;
/// How long one that is to end with a deed of its disk may wait for that.
const DOOM_OF_DISK: Duration = Duration::from_millis(300);
/// How often a caller looks whether the embedded store is open.
const OPENING: Duration = Duration::from_millis(1);
/// How long after a log could not be read its node is started again.
const REOPENING: Duration = Duration::from_millis(50);
/// How long a doomed process may stay silent before it ends anyway.
const DOOM: Duration = Duration::from_millis(20);
