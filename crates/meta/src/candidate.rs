//! Keys that earned a promotion and were refused for a reason that passes: tried again, later and later.

use slackwater_base::{Instant, Map};

use crate::catalog::{Aside, ObjectId};
use crate::master::{Due, Master};
use crate::promote::Admission;
use crate::put::ChainPlace;

/// Why a key was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Too much of the holder's memory is used.
    Watermark,
    /// As many promotions are in flight as may be.
    QueueFull,
    /// Admitted, but then there was no room, or the node was busy.
    NoRoom,
}

/// Keys to be tried again.
#[derive(Default)]
pub(crate) struct Candidates {
    of: Map<ObjectId, Candidate>,
}

/// How long and how often a key has been tried since it was last read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tried {
    seen: Instant,
    retries: u32,
}

struct Candidate {
    seen: Instant,
    retries: u32,
    reason: Reason,
    place: ChainPlace,
}

impl Master {
    /// Remembers a refused key. Being read again makes it fresh.
    pub(crate) fn remember(
        &mut self,
        now: Instant,
        id: ObjectId,
        reason: Reason,
        place: ChainPlace,
    ) {
        let promotion = &self.config.promotion;
        let candidates = &mut self.promotions.candidates.of;
        if !candidates.contains_key(&id) && candidates.len() >= promotion.candidates_limit {
            self.metrics.promotion.candidate_dropped_limit += 1;
            return;
        }
        if candidates
            .insert(
                id,
                Candidate {
                    seen: now,
                    retries: 0,
                    reason,
                    place,
                },
            )
            .is_none()
        {
            self.metrics.promotion.candidate_recorded += 1;
        }
        self.metrics.promotion.candidates = candidates.len() as u64;
        self.due
            .set(Due::Candidate(id), now + promotion.backoff.ceiling(0));
        self.catalog.object_mut(id).mark(Aside::Candidate);
    }

    /// Remembers a key that was admitted and then found no room: another of its retries, not a fresh start.
    pub(crate) fn remember_again(
        &mut self,
        now: Instant,
        id: ObjectId,
        place: ChainPlace,
        tried: Option<Tried>,
    ) {
        let most = self.config.promotion.candidate_retries;
        if tried.is_some_and(|tried| tried.retries >= most) {
            self.metrics.promotion.candidate_expired_evaluated += 1;
            return;
        }
        self.remember(now, id, Reason::NoRoom, place);
        if let (Some(Tried { seen, retries }), Some(candidate)) =
            (tried, self.promotions.candidates.of.get_mut(&id))
        {
            (candidate.seen, candidate.retries) = (seen, retries);
            self.due.set(
                Due::Candidate(id),
                now + self.config.promotion.backoff.ceiling(retries),
            );
        }
    }

    pub(crate) fn forget_candidate(&mut self, id: ObjectId) {
        if self.catalog.object(id).is(Aside::Candidate) {
            self.catalog.object_mut(id).unmark(Aside::Candidate);
            self.due.cancel(Due::Candidate(id));
            self.promotions.candidates.of.remove(&id);
            self.metrics.promotion.candidates = self.promotions.candidates.of.len() as u64;
        }
    }

    /// Tries a key again, without counting that as a read.
    pub(crate) fn candidate_due(&mut self, now: Instant, id: ObjectId) {
        let config = &self.config.promotion;
        let (ttl, most) = (config.candidate_ttl, config.candidate_retries);
        let candidate = &self.promotions.candidates.of[&id];
        let (seen, retries, place) = (candidate.seen, candidate.retries, candidate.place);
        if now >= seen + ttl || retries >= most {
            let metrics = &mut self.metrics.promotion;
            if retries > 0 {
                metrics.candidate_expired_evaluated += 1;
            } else {
                metrics.candidate_expired_unevaluated += 1;
            }
            return self.forget_candidate(id);
        }
        let heat = self.heat_of(id);
        match self.admit(now, id, heat, place) {
            Admission::Admitted => {
                self.metrics.promotion.candidate_admitted += 1;
                self.note_tries(
                    id,
                    Tried {
                        seen,
                        retries: retries + 1,
                    },
                );
                self.forget_candidate(id);
                self.admit_group(now, id, heat);
            }
            Admission::Ineligible => self.forget_candidate(id),
            Admission::Rejected(reason) => {
                self.metrics.promotion.candidate_admission_rejected += 1;
                let next =
                    (now + self.config.promotion.backoff.ceiling(retries + 1)).min(seen + ttl);
                // The eviction that the gate began may have taken the object itself along.
                if let Some(candidate) = self.promotions.candidates.of.get_mut(&id) {
                    (candidate.retries, candidate.reason) = (retries + 1, reason);
                    self.due.set(Due::Candidate(id), next);
                }
            }
        }
    }
}
