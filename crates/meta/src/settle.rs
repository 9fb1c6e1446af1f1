//! What an input made possible, done once at its end: eviction from segments that may be over their watermark, and then
//! room for the puts that wait.

use slackwater_base::{Instant, Planted, planted};
use slackwater_wire::NodeId;

use crate::catalog::SegmentIndex;
use crate::master::{Due, Master};
use crate::segment::Segments;

/// What is to be done at the end of an input. Whatever frees room or fills a segment says so here and does not act on
/// it: so the ends of replicas, offloads and puts know neither eviction nor the queue.
#[derive(Default)]
pub(crate) struct Unsettled {
    room: bool,
    jobs: bool,
    /// With repetitions.
    pressed: Vec<SegmentIndex>,
}

impl Unsettled {
    /// There may be room for puts that wait.
    pub(crate) fn room(&mut self) {
        self.room = true;
    }

    /// Jobs and replication may go on.
    pub(crate) fn jobs(&mut self) {
        self.jobs = true;
    }

    /// A segment has more that can be evicted: it may be over its watermark, and below that there may be room for puts
    /// that wait.
    pub(crate) fn press(&mut self, segment: SegmentIndex) {
        self.room |= !planted(Planted::CompletedMakesNoRoom);
        if self.pressed.last() != Some(&segment) {
            self.pressed.push(segment);
        }
    }

    /// Evictions on this node may go on, since something that they waited for has ended.
    pub(crate) fn resume(&mut self, segments: &Segments, node: NodeId) {
        for index in segments.of_node(node) {
            self.press(index);
        }
        self.room();
    }

    /// A segment is gone.
    pub(crate) fn forget(&mut self, segment: SegmentIndex) {
        self.pressed.retain(|pressed| *pressed != segment);
    }
}

impl Master {
    /// Ends an input or a deadline.
    pub(crate) fn settle(&mut self, now: Instant) {
        self.answer_held(now);
        self.ask_for_missed(now);
        let mut pressed = std::mem::take(&mut self.unsettled.pressed);
        pressed.sort_unstable();
        pressed.dedup();
        for index in pressed.drain(..) {
            self.relieve(now, index);
        }
        if std::mem::take(&mut self.unsettled.room) {
            self.serve(now);
        }
        if std::mem::take(&mut self.unsettled.jobs) {
            self.work_on_jobs(now);
            self.work_on_replicas(now);
        }
        // What this made possible in turn is another step, so that one input does a bounded amount.
        std::mem::swap(&mut pressed, &mut self.unsettled.pressed);
        for index in pressed.drain(..) {
            self.due.set(Due::Relieve(index), now);
        }
        let jobs = std::mem::take(&mut self.unsettled.jobs);
        if jobs {
            self.due.set(Due::Jobs, now);
        }
        self.unsettled = Unsettled {
            room: false,
            jobs: false,
            pressed,
        };
    }
}
