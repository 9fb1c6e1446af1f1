//! What it costs to remove everything while all of it waits to be written to SSD.

use std::time::{Duration, Instant as Clock};

use serde::Serialize;
use slackwater_base::{ByteSize, Instant};
use slackwater_meta::{Input, Master, MasterConfig, Offload, OffloadMode, Output};
use slackwater_tier::arena::MemorySegment;
use slackwater_tier::{Agent, AgentConfig, AgentInput, AgentOutput, LogConfig};
use slackwater_wire::{
    ClientId, Incarnation, Mount, NodeId, OperationId, Permissions, RemoveAll,
    Report as NodeReport, Request, SegmentId, SegmentKind,
};

use crate::meta::{end, key, start};

/// Removals of everything, with few and with many records that wait.
#[derive(Clone, Debug, Serialize)]
pub struct Removal {
    /// The rows, by records that wait.
    pub rows: Vec<Row>,
    /// Cost a key of the last row by that of the first: about 1 when a drop does not walk what else waits.
    pub ratio: f64,
}

/// One removal of everything.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    /// Records that wait to be written.
    pub queued: usize,
    /// Time a key, in master and agent, from the request until every drop is reported, in nanoseconds.
    pub key_ns: f64,
}

/// Measures with each of these numbers of records, the best of three runs.
pub(crate) fn run(queued: &[usize]) -> Removal {
    let best = |queued: usize| (0..3).map(|_| remove(queued)).fold(f64::MAX, f64::min);
    let rows: Vec<Row> = queued
        .iter()
        .map(|queued| Row {
            queued: *queued,
            key_ns: best(*queued),
        })
        .collect();
    let cost = |row: Option<&Row>| row.map_or(f64::NAN, |row| row.key_ns);
    let ratio = cost(rows.last()) / cost(rows.first());
    Removal { rows, ratio }
}

const NODE: NodeId = NodeId(1);
const CLIENT: ClientId = ClientId(1);
const MEMORY: SegmentId = SegmentId(1);
const DISK: SegmentId = SegmentId(2);
const GRANULE: u64 = 4096;
const BATCH: usize = 256;
const NOW: Instant = Instant::from_nanos(1_000_000_000);

/// Master and agent of one node whose device does nothing: what is to be written waits.
struct Pair {
    master: Master,
    agent: Agent,
    operation: u64,
    from_master: Vec<Output>,
    from_agent: Vec<AgentOutput>,
}

/// Nanoseconds a key.
fn remove(queued: usize) -> f64 {
    let mut pair = Pair::new(queued);
    for first in (0..queued).step_by(BATCH) {
        let keys: Vec<_> = (first..queued.min(first + BATCH)).map(key).collect();
        pair.ask(start(&keys));
        let granted = pair.from_master.drain(..).find_map(|output| match output {
            Output::Reply { reply, .. } => Some(reply),
            Output::Order { .. }
            | Output::AwaitTaken { .. }
            | Output::Copy { .. }
            | Output::AnnounceFirst { .. } => None,
        });
        pair.ask(end(keys, &granted.expect("the memory has room for all")));
        pair.settle();
    }
    let waiting = pair.master.books().offload.in_flight;
    assert_eq!(waiting as usize, queued, "all of it waits to be written");
    let begun = Clock::now();
    pair.ask(Request::RemoveAll(RemoveAll {
        tenant: None,
        force: true,
    }));
    pair.settle();
    let took = begun.elapsed();
    assert_eq!(pair.master.books().drops, 0, "every drop is reported");
    took.as_nanos() as f64 / queued as f64
}

impl Pair {
    fn new(queued: usize) -> Self {
        let bytes = 2 * queued as u64 * GRANULE;
        let offload = Offload {
            mode: OffloadMode::Eager,
            queue_limit: queued,
            ..Offload::DEFAULT
        };
        let config = MasterConfig {
            offload,
            ..MasterConfig::DEFAULT
        };
        let mut log = LogConfig::new(DISK, ByteSize(4 * bytes + ByteSize::mib(64).0));
        log.records_queued_max = queued;
        // Full batches would be on their way, and the rest would not wait in the queue.
        (log.batch_bytes, log.batch_delay) = (u64::MAX, Duration::from_secs(600));
        let mut agent = Agent::new(AgentConfig {
            log: Some(log),
            ..AgentConfig::new(NODE)
        });
        agent.add_segment(MemorySegment {
            segment: MEMORY,
            incarnation: Incarnation(1),
            bytes,
            granule: GRANULE,
        });
        let mut pair = Self {
            master: Master::new(config, 1),
            agent,
            operation: 0,
            from_master: Vec::new(),
            from_agent: Vec::new(),
        };
        for (segment, kind, bytes) in [
            (MEMORY, SegmentKind::Memory, bytes),
            (DISK, SegmentKind::Disk, 4 * bytes),
        ] {
            pair.ask(Request::Mount(Mount {
                segment,
                name: format!("{kind:?}"),
                node: NODE,
                incarnation: Incarnation(1),
                kind,
                bytes,
                host: "here".to_owned(),
                generations: None,
                watermarks: None,
            }));
        }
        let open = AgentInput::Open {
            files: Vec::new(),
            fresh: 1,
        };
        pair.agent.handle(NOW, open, &mut pair.from_agent);
        pair.settle();
        pair
    }

    fn ask(&mut self, request: Request) {
        self.operation += 1;
        let input = Input::Request {
            client: CLIENT,
            host: None,
            permissions: Permissions::FULL,
            operation: OperationId::unrepeated(self.operation),
            request,
        };
        self.master.handle(NOW, input, &mut self.from_master);
    }

    /// Carries orders and reports until there are none, and what is due now.
    fn settle(&mut self) {
        loop {
            if self.master.next_deadline().is_some_and(|due| due <= NOW) {
                self.master.on_deadline(NOW, &mut self.from_master);
            }
            let orders = std::mem::take(&mut self.from_master);
            let mut quiet = true;
            for output in orders {
                if let Output::Order { order, .. } = output {
                    quiet = false;
                    let order = AgentInput::Order(order);
                    self.agent.handle(NOW, order, &mut self.from_agent);
                }
            }
            for output in std::mem::take(&mut self.from_agent) {
                if let AgentOutput::Report(report) = output {
                    quiet = false;
                    self.report(report);
                }
            }
            let due = self.master.next_deadline().is_some_and(|due| due <= NOW);
            if quiet && !due && self.from_master.is_empty() {
                return;
            }
        }
    }

    fn report(&mut self, report: NodeReport) {
        let input = Input::Report { node: NODE, report };
        self.master.handle(NOW, input, &mut self.from_master);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_run_gives_a_row_for_each_number() {
        let removal = run(&[10, 300]);
        assert_eq!(
            removal.rows.iter().map(|row| row.queued).sum::<usize>(),
            310
        );
        assert!(removal.ratio > 0.0);
    }
}
