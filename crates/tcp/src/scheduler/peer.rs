//! The queue of one peer, and what the scheduler counts for it.

use std::collections::VecDeque;
use std::sync::Arc;

use slackwater_base::{Instant, Rng};
use slackwater_data_plane::Cause;
use slackwater_engine::PeerStats;
use slackwater_wire::data::Segment;

use super::fences::Fences;
use super::routes::Routes;
use super::{Action, LaneId, Limits};
use crate::task::Task;

#[derive(Debug)]
pub(super) struct PeerQueue {
    pub(super) segment: Arc<Segment>,
    urgent: VecDeque<Task>,
    normal: VecDeque<Task>,
    queued_bytes: u64,
    /// The queue was full: submitters wait until a quarter of it is free.
    held_back: bool,
    pub(super) in_ring: bool,
    pub(super) lanes: Vec<LaneId>,
    pub(super) routes: Routes,
    pub(super) last_error: Option<Cause>,
    pub(super) stats: PeerStats,
    pub(super) fences: Fences,
}

impl PeerQueue {
    pub(super) fn new(segment: &Arc<Segment>, limits: &Limits, rng: &mut Rng) -> Self {
        Self {
            segment: Arc::clone(segment),
            urgent: VecDeque::new(),
            normal: VecDeque::new(),
            queued_bytes: 0,
            held_back: false,
            in_ring: false,
            lanes: Vec::new(),
            routes: Routes::new(segment, limits, rng.split()),
            last_error: None,
            stats: PeerStats::default(),
            fences: Fences::new(),
        }
    }

    /// It was opened again under other addresses: new lanes go there.
    pub(super) fn moved(&mut self, segment: &Arc<Segment>, limits: &Limits, rng: &mut Rng) {
        self.segment = Arc::clone(segment);
        self.routes = Routes::new(segment, limits, rng.split());
    }

    /// Whether it can be forgotten: nothing but its counters is lost.
    pub(super) fn is_idle(&self) -> bool {
        self.lanes.is_empty() && self.queued() == 0 && self.fences.are_quiet()
    }

    pub(super) fn queued(&self) -> usize {
        self.urgent.len() + self.normal.len()
    }

    pub(super) fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    /// Tasks that its queues have memory for.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.urgent.capacity() + self.normal.capacity()
    }

    /// The task that goes next.
    pub(super) fn front(&self) -> Option<&Task> {
        self.urgent.front().or_else(|| self.normal.front())
    }

    /// When the oldest queued task was submitted.
    pub(super) fn oldest(&self) -> Option<Instant> {
        [&self.urgent, &self.normal]
            .into_iter()
            .filter_map(VecDeque::front)
            .map(|task| task.since)
            .min()
    }

    pub(super) fn push_back(&mut self, task: Task) {
        self.queued_bytes += task.bytes();
        self.line(&task).push_back(task);
    }

    pub(super) fn push_front(&mut self, task: Task) {
        self.queued_bytes += task.bytes();
        self.line(&task).push_front(task);
    }

    pub(super) fn pop(&mut self) -> Option<Task> {
        let task = self
            .urgent
            .pop_front()
            .or_else(|| self.normal.pop_front())?;
        self.queued_bytes -= task.bytes();
        Some(task)
    }

    /// Whether the queue takes no more tasks.
    pub(super) fn hold_back(&mut self, limits: &Limits) -> bool {
        self.held_back |=
            self.queued_bytes >= limits.queue_bytes || self.queued() >= limits.queue_entries;
        self.held_back
    }

    /// Wakes the waiting submitters, once a quarter of the queue is free.
    pub(super) fn let_in(&mut self, limits: &Limits, actions: &mut Vec<Action>) {
        let bytes_low = limits.queue_bytes - limits.queue_bytes / 4;
        let entries_low = limits.queue_entries - limits.queue_entries / 4;
        if self.held_back && self.queued_bytes < bytes_low && self.queued() < entries_low {
            self.held_back = false;
            actions.push(Action::Room);
        }
    }

    /// Ends the queued tasks for which `over` gives a cause.
    pub(super) fn fail_queued(
        &mut self,
        over: impl Fn(&Task) -> Option<Cause>,
        actions: &mut Vec<Action>,
    ) {
        if !self
            .urgent
            .iter()
            .chain(&self.normal)
            .any(|task| over(task).is_some())
        {
            return;
        }
        self.queued_bytes = 0;
        // Their memory is freed with them, so that a peer that is down keeps none.
        for task in std::mem::take(&mut self.urgent)
            .into_iter()
            .chain(std::mem::take(&mut self.normal))
        {
            match over(&task) {
                Some(cause) => self.fail(task, cause, actions),
                None => self.push_back(task),
            }
        }
    }

    /// Ends one task that is in no queue.
    pub(super) fn fail(&mut self, task: Task, cause: Cause, actions: &mut Vec<Action>) {
        self.fences.leave(task.epoch, actions);
        self.stats.failed += 1;
        actions.push(Action::Fail { task, cause });
    }

    /// A lane is closed. With the last one the memory of the queues is freed, which grew with the traffic.
    pub(super) fn leave_lane(&mut self, lane: LaneId) {
        self.lanes.retain(|id| *id != lane);
        if self.lanes.is_empty() && self.queued() == 0 {
            (self.urgent, self.normal, self.lanes) = Default::default();
        }
    }

    /// The next time at which something is due for this peer.
    pub(super) fn next_due(&self) -> Instant {
        let deadline = self
            .urgent
            .iter()
            .chain(&self.normal)
            .map(Task::deadline)
            .min()
            .unwrap_or(Instant::NEVER);
        // While a lane is open or connecting, only deadlines are due.
        if self.lanes.is_empty() {
            deadline.min(self.routes.retry_at())
        } else {
            deadline
        }
    }

    fn line(&mut self, task: &Task) -> &mut VecDeque<Task> {
        if task.is_urgent() {
            &mut self.urgent
        } else {
            &mut self.normal
        }
    }
}
