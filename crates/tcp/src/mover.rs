//! The contract of movers, kept over TCP.

use std::sync::Arc;
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_data_plane::Cause;
use slackwater_data_plane::protocol::NOTICE_BYTES_MAX;
use slackwater_engine::{
    Abilities, BatchId, Carried, Job, Mover, Notice, Part, PeerStats, Revocation, SingleRequest,
    Submission,
};
use slackwater_net::{Loop, is_inside_a_loop};
use slackwater_wait::now;
use slackwater_wire::data::{Op, Refusal, Segment};

use crate::loop_state::Command;
use crate::scheduler;
use crate::task::{Task, TaskKind};
use crate::{RUN_BYTES, RUN_ENTRIES, Tcp};

const NOTICE_TIMEOUT: Duration = Duration::from_secs(30);

impl Mover for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn abilities(&self) -> Abilities {
        Abilities::HOST
    }

    fn reaches(&self, segment: &Segment) -> bool {
        segment
            .addresses
            .iter()
            .any(|address| self.context.config.may_reach(segment, address))
    }

    fn invalidate(&self, revoked: &Revocation) {
        if revoked.extent.is_none() {
            self.context
                .schedule(None, |scheduler, _, actions| scheduler.release(actions));
        }
        self.loops
            .iter()
            .for_each(|each| each.command(Command::Release(*revoked)));
    }

    fn submit(&self, segment: &Arc<Segment>, submission: Submission) -> Vec<Job> {
        let (mut tasks, mut given_back, mut bytes) = (Vec::new(), Vec::new(), 0);
        for job in submission.jobs {
            // Queued in groups, so that the limits of the queue hold within one large batch too.
            if bytes >= RUN_BYTES || tasks.len() >= RUN_ENTRIES {
                self.submit_tasks(segment, std::mem::take(&mut tasks));
                bytes = 0;
            }
            bytes += job.buffers.bytes();
            if !job.buffers.are_host() {
                given_back.push(job);
                continue;
            }
            if job.remote.offset.checked_add(job.buffers.bytes()).is_none() {
                // If it were cut into pieces, the last of them would lie at the start of the region.
                Task::new(segment.incarnation, TaskKind::Job(job))
                    .end(Err(Cause::Refused(Refusal::Range)));
                continue;
            }
            if let Err(cause) = self.wait_for_room(segment, submission.when_full, job.deadline) {
                Task::new(segment.incarnation, TaskKind::Job(job)).end(Err(cause));
                continue;
            }
            tasks.extend(
                self.stripe(job)
                    .into_iter()
                    .map(|job| Task::new(segment.incarnation, TaskKind::Job(job))),
            );
        }
        if !tasks.is_empty() {
            self.submit_tasks(segment, tasks);
        }
        given_back
    }

    fn carry_now(&self, segment: &Arc<Segment>, single: SingleRequest) -> Carried {
        // A loop must not block, a large request is faster over several lanes, and only lanes can be sealed or leave
        // from a chosen address.
        let config = &self.context.config;
        let lanes_alone =
            config.seal.is_some() || segment.public_key.is_some() || !config.local.is_empty();
        if lanes_alone
            || is_inside_a_loop()
            || !single.buffers.are_host()
            || single.buffers.bytes() > config.stripe_bytes_min
        {
            return Carried::Back(single);
        }
        let first = self.context.direct.is_empty();
        let (op, bytes) = (single.op, single.buffers.bytes());
        let carried = self.context.direct.carry(&self.context, segment, single);
        if first && let Some(watcher) = self.loops.first() {
            // The first loop collects idle borrowed connections from now on.
            watcher.command(Command::Watch);
        }
        if let Carried::Done(outcome) = &carried {
            let moved = match (outcome, op) {
                (Err(_), _) => scheduler::Moved::Nothing,
                (Ok(_), Op::Read) => scheduler::Moved::Read(bytes),
                (Ok(_), Op::Write) => scheduler::Moved::Written(bytes),
            };
            self.context.scheduler().count_direct(segment, moved);
        }
        carried
    }

    fn cancel(&self, batch: BatchId) {
        self.context.schedule(None, |scheduler, _, actions| {
            scheduler.cancel(batch, actions)
        });
        self.loops
            .iter()
            .for_each(|each| each.command(Command::Cancel(batch)));
    }

    fn fence(&self, segment: &Arc<Segment>, part: Part) {
        self.context.schedule(None, |scheduler, _, actions| {
            scheduler.fence(segment, part, actions)
        });
    }

    fn notify(&self, segment: &Arc<Segment>, notice: Notice, part: Part) {
        let bytes = notice.name.len() + notice.bytes.len();
        if bytes as u64 > NOTICE_BYTES_MAX {
            return part.fail(Cause::Invalid(format!(
                "a notice of {bytes} bytes; {NOTICE_BYTES_MAX} are the most"
            )));
        }
        let kind = TaskKind::Notify {
            notice,
            part,
            deadline: now() + NOTICE_TIMEOUT,
        };
        self.submit_tasks(segment, vec![Task::new(segment.incarnation, kind)]);
    }

    fn probe(&self, segment: &Arc<Segment>, deadline: Instant, part: Part) {
        self.submit_tasks(
            segment,
            vec![Task::new(
                segment.incarnation,
                TaskKind::Probe { part, deadline },
            )],
        );
    }

    fn stats(&self, segment: &Segment) -> PeerStats {
        self.context.scheduler().stats(segment.incarnation)
    }

    fn metrics(&self) -> Vec<(&'static str, u64)> {
        let scheduler = self.context.scheduler();
        let (counters, busiest) = (
            scheduler.counters(),
            scheduler.lanes_by_loop().into_iter().max().unwrap_or(0),
        );
        vec![
            ("transfers_active", scheduler.active() as u64),
            ("transfers_pending", scheduler.pending() as u64),
            (
                "oldest_pending_nanos",
                scheduler.oldest_pending(now()).as_nanos() as u64,
            ),
            ("lanes_busiest_loop", busiest as u64),
            ("lanes_slow", scheduler.slow_lanes(now()) as u64),
            ("lanes_created", counters.created),
            ("connects_failed", counters.connect_failed),
            ("retries", counters.retries),
            ("lanes_closed_idle", counters.closed_idle),
            ("lanes_closed_peer", counters.closed_peer),
            ("requests_joined", self.context.direct.joined()),
            ("connections_served", self.context.connections() as u64),
        ]
        .into_iter()
        .chain(self.context.refused.all())
        .collect()
    }

    fn close(&self) {
        self.context.direct.close();
        self.context
            .schedule(None, |scheduler, _, actions| scheduler.close(actions));
        for each in &self.loops {
            each.command(Command::Close);
        }
        self.loops.iter().for_each(Loop::stop);
    }
}
