//! Candidates: keys that met the condition for promotion and were refused for lack of room. They are tried again after
//! growing pauses.

use slackwater_base::{Backoff, Instant, Map};
use slackwater_wire::ChainPlace;

use super::admit::{Earned, PromotionRequest, Verdict};
use crate::catalog::{Mark, ObjectId};
use crate::master::{Due, Master};

/// Keys to be tried again.
#[derive(Default)]
pub(super) struct Candidates {
    pub(super) of: Map<ObjectId, Candidate>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    tried: Tried,
    chain: ChainPlace,
}

/// When a key was last read, and how often it has been tried since.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tried {
    seen: Instant,
    retries: u32,
}

impl Master {
    /// Adds a refused key. Another read resets its retries.
    pub(super) fn remember(&mut self, now: Instant, id: ObjectId, chain: ChainPlace) {
        let fresh = Tried {
            seen: now,
            retries: 0,
        };
        self.remember_as(now, id, chain, fresh);
    }

    /// Adds a key that was admitted and then found no room: its retries are not reset.
    pub(super) fn remember_again(
        &mut self,
        now: Instant,
        id: ObjectId,
        chain: ChainPlace,
        tried: Option<Tried>,
    ) {
        let most = self.config.promotion.candidate_retries;
        match tried {
            None => self.remember(now, id, chain),
            Some(tried) if tried.retries < most => self.remember_as(now, id, chain, tried),
            Some(_) => self.metrics.promotion.candidate_expired_evaluated += 1,
        }
    }

    fn remember_as(&mut self, now: Instant, id: ObjectId, chain: ChainPlace, tried: Tried) {
        // The eviction that made room may have evicted the object itself.
        if !self.catalog.is_object(id) {
            return;
        }
        let promotion = &self.config.promotion;
        let candidates = &mut self.promotions.candidates.of;
        let metrics = &mut self.metrics.promotion;
        if !candidates.contains_key(&id) && candidates.len() >= promotion.candidates_limit {
            metrics.candidate_dropped_limit += 1;
            return;
        }
        if candidates.insert(id, Candidate { tried, chain }).is_none() {
            metrics.candidate_recorded += 1;
        }
        metrics.candidates = candidates.len() as u64;
        self.retry_later(now, id);
        self.catalog.object_mut(id).mark(Mark::Candidate);
    }

    /// Has a candidate tried after its pause, or forgotten when its time is over before.
    fn retry_later(&mut self, now: Instant, id: ObjectId) {
        let promotion = &self.config.promotion;
        let Candidate { tried, .. } = self.promotions.candidates.of[&id];
        let next = retry_at(now, &promotion.backoff, tried.retries);
        let end = tried.seen + promotion.candidate_ttl;
        self.due.set(Due::Candidate(id), next.min(end));
    }

    /// Tries a key again. That does not count as a read.
    pub(crate) fn candidate_due(&mut self, now: Instant, id: ObjectId) {
        let config = &self.config.promotion;
        let Candidate { tried, chain } = self.promotions.candidates.of[&id];
        let end = tried.seen + config.candidate_ttl;
        if now >= end || tried.retries >= config.candidate_retries {
            let metrics = &mut self.metrics.promotion;
            if tried.retries > 0 {
                metrics.candidate_expired_evaluated += 1;
            } else {
                metrics.candidate_expired_unevaluated += 1;
            }
            return self.forget_candidate(id);
        }
        let retries = tried.retries + 1;
        let tried = Tried { retries, ..tried };
        let heat = self.promotions.heat_of(self.catalog.object(id).hash);
        let request = PromotionRequest {
            object: id,
            heat,
            chain,
            earned: Earned::Before,
            reader: None,
        };
        match self.request_promotion(now, request, Some(tried)) {
            Verdict::Admit(..) | Verdict::Bring(..) => {
                self.metrics.promotion.candidate_admitted += 1;
                self.request_group(now, id, heat, Some(tried), None);
            }
            Verdict::NoRoom(_) | Verdict::QueueFull => {
                self.metrics.promotion.candidate_admission_rejected += 1;
                // The eviction that made room may have evicted the object itself.
                if let Some(candidate) = self.promotions.candidates.of.get_mut(&id) {
                    candidate.tried = tried;
                    self.retry_later(now, id);
                }
            }
            Verdict::Off
            | Verdict::Unearned
            | Verdict::Gone
            | Verdict::Ineligible
            | Verdict::InFlight => {}
        }
    }
}

/// When a key is tried next: at the first multiple of the first pause after its own, as is every other whose pause ends by then.
/// Each would be a deadline of its own otherwise, more than a thousand a second under load.
fn retry_at(now: Instant, backoff: &Backoff, retries: u32) -> Instant {
    let earliest = (now + backoff.ceiling(retries)).as_nanos();
    let together = backoff.first.min(backoff.max).as_nanos();
    let together = u64::try_from(together).unwrap_or(u64::MAX);
    let at = earliest.checked_next_multiple_of(together.max(1));
    Instant::from_nanos(at.unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn keys_refused_within_a_first_pause_are_tried_together_and_none_before_its_time() {
        let ms = Duration::from_millis;
        let backoff = Backoff::doubling(ms(10), ms(1000));
        let check = |refused_us: u64, retries, expected_ms: u64| {
            let refused = Instant::ZERO + Duration::from_micros(refused_us);
            let at = retry_at(refused, &backoff, retries);
            assert_eq!(
                at,
                Instant::ZERO + ms(expected_ms),
                "{refused_us} {retries}"
            );
        };
        check(0, 0, 10);
        check(1, 0, 20);
        check(9_999, 0, 20);
        check(10_000, 0, 20);
        check(10_001, 0, 30);
        check(3, 2, 50);
        check(3, 20, 1010);
        let short = Backoff::doubling(ms(10), ms(4));
        assert_eq!(retry_at(Instant::ZERO, &short, 3), Instant::ZERO + ms(4));
        let none = Backoff::doubling(Duration::ZERO, Duration::ZERO);
        let now = Instant::from_nanos(7);
        assert_eq!(retry_at(now, &none, 3), now);
        assert_eq!(retry_at(Instant::NEVER, &backoff, 0), Instant::NEVER);
    }
}
