//! The faults of a run and their times, as data that a shrinker can reduce.

use std::time::Duration;

use slackwater_base::Rng;

use crate::disk::{Crash, DiskFaults};
use crate::net::Process;

/// A fault at its time, counted from the beginning of the load.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Time since the beginning of the load.
    pub at: Duration,
    /// The fault.
    pub fault: Fault,
}

/// A fault.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// The process ends, possibly between two messages of one step, and is started again later.
    Crash {
        /// The process that ends.
        process: Process,
        /// How it ends; for a client, which has no disk, both are the same.
        how: Crash,
        /// Time until it is started again.
        down: Duration,
    },
    /// The node's process is killed after the next write of its disk, or after its next sync, which fails. The machine
    /// loses power soon after the process is back: what the first life left in the cache of the device, and the second
    /// announced, is lost.
    KillThenPowerCut {
        /// Index of the node.
        node: u32,
        /// Whether it is a sync that fails.
        at_failed_sync: bool,
        /// Time until it is started again, each time.
        down: Duration,
        /// Time between the restart and the power cut.
        after: Duration,
    },
    /// The node comes back with an empty disk.
    ReplaceDisk {
        /// Index of the node.
        node: u32,
        /// Time until it is started again.
        down: Duration,
    },
    /// Everything loses power at once.
    Blackout {
        /// Time until everything is started again.
        down: Duration,
    },
    /// The process does not run for a time and does not notice.
    Pause {
        /// The process that pauses.
        process: Process,
        /// How long.
        lasts: Duration,
    },
    /// One direction of a link delivers nothing.
    Cut {
        /// Sender.
        from: Process,
        /// Receiver.
        to: Process,
        /// How long.
        lasts: Duration,
    },
    /// One direction of a link has a hundredth of its throughput.
    Slow {
        /// Sender.
        from: Process,
        /// Receiver.
        to: Process,
        /// How long.
        lasts: Duration,
    },
    /// The disk misbehaves.
    Disk {
        /// Index of the node.
        node: u32,
        /// How.
        faults: DiskFaults,
        /// How long.
        lasts: Duration,
    },
    /// Bits flip on the medium of the disk.
    Rot {
        /// Index of the node.
        node: u32,
        /// How many.
        bits: u32,
    },
    /// Stretches of some files are read with a flipped bit in every block, until the process ends: long enough for both
    /// copies of the headers of some batches. Not while the log is being opened.
    SpoiltStretches {
        /// Index of the node.
        node: u32,
        /// Blocks of each stretch.
        blocks: u32,
    },
    /// A bit of memory flips.
    Flip {
        /// Index of the node.
        node: u32,
        /// Where, modulo its size.
        bit: u64,
    },
}

/// The kinds of fault that a run may have. They are drawn for each run, so that a bug that one kind of fault hides is
/// found in a run without it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultKinds {
    /// Processes that end and are started again.
    pub crashes: bool,
    /// Nodes that are killed and then lose power. No ordinary run has these.
    pub kills_then_power_cuts: bool,
    /// Processes that do not run for a time.
    pub pauses: bool,
    /// Masters that end and are started again, and links between them and nodes that break. No ordinary run has only these.
    pub restarts: bool,
    /// Links between nodes and their master that break for long, several at about the same time. No ordinary run has these.
    pub absences: bool,
    /// Links that are cut or slow.
    pub links: bool,
    /// Errors, full disks and stalls.
    pub disk_errors: bool,
    /// Devices that answer everything with errors for a time.
    pub outages: bool,
    /// Bits that flip and misdirected writes: after these, records may be missing.
    pub disk_rot: bool,
    /// Stretches that are read wrong, and reads and syncs that fail for a short time. No ordinary run has these.
    pub decay: bool,
    /// Disks that are replaced by empty ones.
    pub disk_loss: bool,
    /// Bits of memory that flip.
    pub memory_flips: bool,
}

/// The size of the cluster that faults are drawn for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterSize {
    /// Storage nodes.
    pub nodes: u32,
    /// Clients.
    pub clients: u32,
    /// Approximate duration of the load.
    pub lasts: Duration,
}

impl FaultKinds {
    /// Draws the kinds that a run may have: one run in eight has none.
    pub fn draw(rng: &mut Rng) -> Self {
        if rng.chance(0.125) {
            return Self::default();
        }
        Self {
            crashes: rng.chance(0.6),
            kills_then_power_cuts: false,
            pauses: rng.chance(0.4),
            restarts: false,
            absences: false,
            links: rng.chance(0.5),
            disk_errors: rng.chance(0.4),
            outages: false,
            disk_rot: rng.chance(0.2),
            decay: false,
            disk_loss: rng.chance(0.1),
            memory_flips: rng.chance(0.15),
        }
    }

    /// Draws `count` faults in order of time.
    pub fn plan(&self, rng: &mut Rng, cluster: ClusterSize, count: u32) -> Vec<Planned> {
        let mut kinds: Vec<fn(&mut Rng, ClusterSize) -> Fault> = Vec::new();
        for (wanted, draw) in [
            (self.crashes, crash as fn(&mut Rng, ClusterSize) -> Fault),
            (self.kills_then_power_cuts, power_cut_after),
            (self.pauses, pause),
            (self.restarts, restart),
            (self.restarts, restart),
            (self.links, link),
            (self.disk_errors, disk_error),
            (self.outages, outage),
            (self.disk_rot, rot),
            (self.decay, decay),
            (self.decay, decay),
            (self.decay, decay),
            (self.disk_loss, replace_disk),
            (self.memory_flips, flip),
            (self.absences, absence),
            (self.absences, absence),
        ] {
            if wanted {
                kinds.push(draw);
            }
        }
        if kinds.is_empty() {
            return Vec::new();
        }
        let mut planned: Vec<Planned> = (0..count)
            .map(|_| {
                let at = span(rng, Duration::ZERO, cluster.lasts);
                let draw = kinds[rng.below(kinds.len() as u64) as usize];
                Planned {
                    at,
                    fault: draw(rng, cluster),
                }
            })
            .collect();
        planned.extend(power_cuts_after_kills(rng, &planned));
        if self.restarts {
            planned.extend(restarts_after_restarts(rng, &planned));
        }
        if self.absences {
            planned.extend(absences_beside(rng, &planned, cluster));
        }
        planned.sort_by_key(|planned| planned.at);
        planned
    }
}

fn crash(rng: &mut Rng, cluster: ClusterSize) -> Fault {
    let down = span(rng, Duration::from_millis(1), Duration::from_millis(800));
    if rng.chance(0.1) {
        return Fault::Blackout { down };
    }
    let how = if rng.chance(0.5) {
        Crash::Power
    } else {
        Crash::Process
    };
    Fault::Crash {
        process: process(rng, cluster),
        how,
        down,
    }
}

/// Power cuts for some of the nodes whose process is killed, soon after they are back: what the first life left in the
/// cache of the device, and the second read from there, is lost in the third.
fn power_cuts_after_kills(rng: &mut Rng, planned: &[Planned]) -> Vec<Planned> {
    let mut more = Vec::new();
    for Planned { at, fault } in planned {
        if let Fault::Crash {
            process: process @ Process::Node(_),
            how: Crash::Process,
            down,
        } = fault
            && rng.chance(0.5)
        {
            let at = *at + *down + span(rng, Duration::from_millis(2), Duration::from_millis(120));
            let down = span(rng, Duration::from_millis(1), Duration::from_millis(200));
            more.push(Planned {
                at,
                fault: Fault::Crash {
                    process: *process,
                    how: Crash::Power,
                    down,
                },
            });
        }
    }
    more
}

/// More ends of masters soon after they are back: while their nodes announce.
fn restarts_after_restarts(rng: &mut Rng, planned: &[Planned]) -> Vec<Planned> {
    let mut more = Vec::new();
    for Planned { at, fault } in planned {
        if let Fault::Crash {
            process: Process::Master,
            how,
            down,
        } = fault
            && rng.chance(0.5)
        {
            let soon = span(rng, Duration::from_millis(1), Duration::from_millis(90));
            let fault = Fault::Crash {
                process: Process::Master,
                how: *how,
                down: *down,
            };
            let at = *at + *down + soon;
            more.push(Planned { at, fault });
        }
    }
    more
}

fn absence(rng: &mut Rng, cluster: ClusterSize) -> Fault {
    if rng.chance(0.15) {
        return Fault::Crash {
            process: Process::Master,
            how: Crash::Process,
            down: span(rng, Duration::from_millis(1), Duration::from_millis(100)),
        };
    }
    let (from, to) = (Process::Node(node(rng, cluster)), Process::Master);
    let lasts = span(rng, Duration::from_millis(100), Duration::from_millis(1500));
    Fault::Cut { from, to, lasts }
}

/// Cuts of other nodes soon after some of the cuts: what one node has lost, another may have the last copy of.
fn absences_beside(rng: &mut Rng, planned: &[Planned], cluster: ClusterSize) -> Vec<Planned> {
    let mut more = Vec::new();
    for Planned { at, fault } in planned {
        if let Fault::Cut { from, to, lasts } = fault
            && rng.chance(0.8)
        {
            let other = Process::Node(node(rng, cluster));
            if other != *from {
                let (to, lasts) = (*to, *lasts);
                let at = *at + span(rng, Duration::ZERO, Duration::from_millis(100));
                let fault = Fault::Cut {
                    from: other,
                    to,
                    lasts,
                };
                more.push(Planned { at, fault });
            }
        }
    }
    more
}

fn power_cut_after(rng: &mut Rng, cluster: ClusterSize) -> Fault {
    let down = span(rng, Duration::from_millis(1), Duration::from_millis(60));
    let after = span(rng, Duration::from_millis(3), Duration::from_millis(60));
    Fault::KillThenPowerCut {
        node: node(rng, cluster),
        at_failed_sync: rng.chance(0.3),
        down,
        after,
    }
}

fn replace_disk(rng: &mut Rng, cluster: ClusterSize) -> Fault {
    let down = span(rng, Duration::from_millis(1), Duration::from_millis(800));
    Fault::ReplaceDisk {
        node: node(rng, cluster),
        down,
    }
}

fn pause(rng: &mut Rng, cluster: ClusterSize) -> Fault {
    let longest = if rng.chance(0.3) {
        Duration::from_secs(3)
    } else {
        Duration::from_millis(100)
    };
    Fault::Pause {
        process: process(rng, cluster),
        lasts: span(rng, Duration::from_millis(1), longest),
    }
}

fn restart(rng: &mut Rng, cluster: ClusterSize) -> Fault {
    if rng.chance(0.6) {
        // That of a machine is noticed late.
        let how = match rng.chance(0.2) {
            true => Crash::Power,
            false => Crash::Process,
        };
        return Fault::Crash {
            process: Process::Master,
            how,
            down: span(rng, Duration::from_millis(1), Duration::from_millis(100)),
        };
    }
    let (mut from, mut to) = (Process::Node(node(rng, cluster)), Process::Master);
    if rng.chance(0.5) {
        (from, to) = (to, from);
    }
    let lasts = span(rng, Duration::from_millis(200), Duration::from_millis(800));
    Fault::Cut { from, to, lasts }
}

fn link(rng: &mut Rng, cluster: ClusterSize) -> Fault {
    let client = Process::Client(rng.below(u64::from(cluster.clients)) as u32);
    let (mut from, mut to) = match rng.below(3) {
        0 => (client, Process::Master),
        1 => (client, Process::Node(node(rng, cluster))),
        _ => (Process::Node(node(rng, cluster)), Process::Master),
    };
    if rng.chance(0.5) {
        (from, to) = (to, from);
    }
    let longest = if rng.chance(0.5) {
        Duration::from_millis(1500)
    } else {
        Duration::from_millis(150)
    };
    let lasts = span(rng, Duration::from_millis(1), longest);
    if rng.chance(0.7) {
        Fault::Cut { from, to, lasts }
    } else {
        Fault::Slow { from, to, lasts }
    }
}

fn disk_error(rng: &mut Rng, cluster: ClusterSize) -> Fault {
    let mut faults = DiskFaults::default();
    let often = [0.02, 0.2, 1.0][rng.below(3) as usize];
    match rng.below(7) {
        0 => faults.read_error = often,
        1 => faults.write_error = often,
        2 => faults.sync_error = often,
        3 => faults.full = true,
        4 => faults.read_only = true,
        5 => faults.stall = span(rng, Duration::from_millis(1), Duration::from_millis(700)),
        _ => (faults.read_error, faults.write_error, faults.sync_error) = (0.1, 0.1, 0.1),
    }
    let lasts = span(rng, Duration::from_millis(1), Duration::from_millis(800));
    Fault::Disk {
        node: node(rng, cluster),
        faults,
        lasts,
    }
}

fn outage(rng: &mut Rng, cluster: ClusterSize) -> Fault {
    let faults = DiskFaults {
        outage: true,
        ..DiskFaults::default()
    };
    let longest = if rng.chance(0.5) {
        Duration::from_millis(50)
    } else {
        Duration::from_millis(1500)
    };
    Fault::Disk {
        node: node(rng, cluster),
        faults,
        lasts: span(rng, Duration::from_millis(1), longest),
    }
}

fn rot(rng: &mut Rng, cluster: ClusterSize) -> Fault {
    let node = node(rng, cluster);
    if rng.chance(0.5) {
        return Fault::Rot {
            node,
            bits: 1 + rng.below(8) as u32,
        };
    }
    let mut faults = DiskFaults::default();
    if rng.chance(0.5) {
        faults.read_flip = 0.3;
    } else {
        faults.misdirect = 0.1;
    }
    Fault::Disk {
        node,
        faults,
        lasts: span(rng, Duration::from_millis(1), Duration::from_millis(500)),
    }
}

fn decay(rng: &mut Rng, cluster: ClusterSize) -> Fault {
    let node = node(rng, cluster);
    let mut faults = DiskFaults::default();
    match rng.below(6) {
        0 => faults.read_error = [0.02, 0.3][rng.below(2) as usize],
        1 => faults.sync_error = 0.5,
        _ => {
            let blocks = 1 + rng.below(16) as u32;
            return Fault::SpoiltStretches { node, blocks };
        }
    }
    Fault::Disk {
        node,
        faults,
        lasts: span(rng, Duration::from_millis(1), Duration::from_millis(100)),
    }
}

fn flip(rng: &mut Rng, cluster: ClusterSize) -> Fault {
    Fault::Flip {
        node: node(rng, cluster),
        bit: rng.next_u64(),
    }
}

fn process(rng: &mut Rng, cluster: ClusterSize) -> Process {
    match rng.below(4) {
        0 => Process::Master,
        1 | 2 => Process::Node(node(rng, cluster)),
        _ => Process::Client(rng.below(u64::from(cluster.clients)) as u32),
    }
}

fn node(rng: &mut Rng, cluster: ClusterSize) -> u32 {
    rng.below(u64::from(cluster.nodes)) as u32
}

/// A duration between two bounds.
pub(crate) fn span(rng: &mut Rng, least: Duration, most: Duration) -> Duration {
    let spread = u64::try_from(most.saturating_sub(least).as_nanos()).unwrap_or(u64::MAX);
    least + Duration::from_nanos(rng.below(spread.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_has_only_its_kinds_of_fault_in_order_of_time() {
        let cluster = ClusterSize {
            nodes: 3,
            clients: 2,
            lasts: Duration::from_secs(4),
        };
        let fault_kinds = FaultKinds {
            pauses: true,
            ..FaultKinds::default()
        };
        let plan = fault_kinds.plan(&mut Rng::new(1), cluster, 50);
        assert_eq!(plan.len(), 50);
        assert!(
            plan.iter()
                .all(|planned| matches!(planned.fault, Fault::Pause { .. }))
        );
        assert!(plan.is_sorted_by_key(|planned| planned.at));
        assert!(
            FaultKinds::default()
                .plan(&mut Rng::new(1), cluster, 50)
                .is_empty()
        );
    }

    #[test]
    fn every_kind_is_drawn_sooner_or_later() {
        let mut rng = Rng::new(1);
        let drawn: Vec<FaultKinds> = (0..400).map(|_| FaultKinds::draw(&mut rng)).collect();
        assert!(
            drawn
                .iter()
                .any(|fault_kinds| *fault_kinds == FaultKinds::default())
        );
        for kind in [
            |a: &FaultKinds| a.crashes,
            |a: &FaultKinds| a.pauses,
            |a: &FaultKinds| a.links,
            |a: &FaultKinds| a.disk_errors,
            |a: &FaultKinds| a.disk_rot,
            |a: &FaultKinds| a.disk_loss,
            |a: &FaultKinds| a.memory_flips,
        ] {
            assert!(drawn.iter().any(kind) && !drawn.iter().all(kind));
        }
    }
}
