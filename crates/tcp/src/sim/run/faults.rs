//! What goes wrong, and the owner's orders.

use slackwater_data_plane::Cause;
use slackwater_data_plane::protocol::{CloseReason, initiating::Output};
use slackwater_wire::data::Refusal;

use super::{Answer, Task, World, pick};
use crate::sim::Bug;
use crate::sim::target::{EXTENTS, Server};

impl World {
    pub(super) fn cut(&mut self) {
        if let Some(conn) = pick(&mut self.rng, self.conns.values_mut()) {
            conn.cut = true;
            self.met.cuts += 1;
        }
    }

    /// The ends of a connection that was cut see it at some time, each by itself: behind the bytes on their way, or
    /// before them.
    pub(super) fn notice_ends(&mut self) {
        let cut: Vec<u64> = self
            .conns
            .iter()
            .filter(|(_, conn)| conn.cut)
            .map(|(id, _)| *id)
            .collect();
        for id in cut {
            let lost = CloseReason::Lost(Cause::Lost("cut".to_owned()));
            if self.rng.chance(0.05) {
                self.end_client(id, &lost);
            }
            let behind = self.conns[&id].up.is_empty();
            if self.rng.chance(if behind { 0.2 } else { 0.01 }) {
                self.end_server(id);
            }
            let conn = &self.conns[&id];
            if conn.client.is_none() && conn.server.is_none() {
                self.conns.remove(&id);
            }
        }
    }

    /// The owner closes an extent, and the mover tells the connections at once, or they find it out.
    pub(super) fn close_extent(&mut self) {
        let extent = self.rng.below(EXTENTS as u64) as usize;
        let idle = |extent: &usize| self.target.is_drained(*extent);
        if !idle(&extent)
            && !(0..EXTENTS)
                .filter(|other| *other != extent)
                .all(|other| idle(&other))
        {
            self.met.fenced_beside += 1;
        }
        let revoked = self.target.fence(extent);
        if self.rng.chance(0.5) {
            return;
        }
        for (id, conn) in &mut self.conns {
            let Some((responder, _)) = &mut conn.server else {
                continue;
            };
            let held: Vec<u64> = responder
                .memories()
                .filter(|(_, held)| revoked.covers(&held.access))
                .map(|(id, _)| id)
                .collect();
            for request in held {
                let mut server = Server {
                    conn: *id,
                    responder,
                    target: &mut self.target,
                };
                let revoked = server.handle(Answer::Revoked(request, Refusal::Generation));
                assert!(revoked.is_ok(), "a revocation is no fault of the peer's");
            }
        }
    }

    /// Extents whose last access has ended get another use.
    pub(super) fn reuse_extents(&mut self) {
        for extent in 0..EXTENTS {
            let drained =
                self.target.is_drained(extent) || self.bug == Some(Bug::ReuseWithoutFence);
            if self.target.is_fenced(extent) && drained {
                self.target.reuse(extent);
                self.met.reuses += 1;
            }
        }
    }

    pub(super) fn rotate(&mut self) {
        self.target.rotate();
        self.met.rotations += 1;
    }

    pub(super) fn kill_target(&mut self) {
        let ids: Vec<u64> = self.conns.keys().copied().collect();
        ids.into_iter().for_each(|id| self.end_server(id));
        self.target.restart();
        self.met.kills += 1;
    }

    /// The initiator's process ends; what it has sent may still arrive.
    pub(super) fn kill_initiator(&mut self) {
        let mut tasks: Vec<Task> = self.waiting.drain(..).collect();
        for conn in self.conns.values_mut() {
            conn.cut = true;
            if let Some((mut client, _)) = conn.client.take() {
                client.close(self.target.now, &CloseReason::Idle);
                tasks.extend(client.out.drain(..).filter_map(|output| match output {
                    Output::Ended { task, .. } | Output::Again(task) => Some(task),
                    Output::Ready(_) => None,
                }));
            }
        }
        for task in tasks {
            self.target.ledger.jobs[task.job].unanswered = true;
            self.ended(&task, Err(Cause::Cancelled));
        }
        self.met.kills += 1;
    }
}
