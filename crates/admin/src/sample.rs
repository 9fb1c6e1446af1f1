//! What is told at one moment: the answers of the paths that each tell a part of it, taken together.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::jobs::job_described;
use crate::paths::{quota, segment};
use crate::warnings::warnings;
use crate::{Failure, Source};

/// Tenants in a sample: those that hold most.
const TENANTS_MAX: usize = 100;
/// Jobs in a sample: the latest.
const JOBS_MAX: usize = 20;

/// How long ago the statistics are that a sample is compared with for warnings: in a second little happens.
const LATELY: Duration = Duration::from_secs(30);

/// Takes samples, and knows those of a while ago.
pub(crate) struct Sampler {
    begun: Instant,
    before: VecDeque<(Instant, Value)>,
}

impl Sampler {
    /// One whose times are seconds since `begun`.
    pub(crate) fn new(begun: Instant) -> Self {
        Self {
            begun,
            before: VecDeque::new(),
        }
    }

    /// What there is now.
    pub(crate) fn take(&mut self, source: &dyn Source) -> Result<Value, Failure> {
        let now = Instant::now();
        let stats = source.stats()?;
        let segments: Vec<Value> = source.segments()?.iter().map(segment).collect();
        let mut quotas = source.quotas()?;
        quotas.sort_by_key(|quota| std::cmp::Reverse(quota.memory_bytes + quota.disk_bytes));
        let shown = &quotas[..quotas.len().min(TENANTS_MAX)];
        let jobs = source.jobs()?;
        let jobs = &jobs[jobs.len().saturating_sub(JOBS_MAX)..];
        let ready = source.ready();
        let mut sample = json!({
            "time_s": now.duration_since(self.begun).as_secs_f64(),
            "version": env!("CARGO_PKG_VERSION"),
            "address": source.address(),
            "epoch": source.epoch(),
            "ready": ready.is_ok(),
            "not_ready": ready.err(),
            "stats": stats,
            "segments": segments,
            "quotas": shown.iter().map(quota).collect::<Vec<_>>(),
            "tenants_left": quotas.len() - shown.len(),
            "decisions": source.decisions()?,
            "hottest": source.hottest()?,
            "jobs": jobs.iter().map(job_described).collect::<Vec<_>>(),
        });
        self.forget(now);
        let before = self.before.front().map(|(_, stats)| stats);
        let found = warnings(before, &sample, &quotas);
        sample["warnings"] = found.iter().map(|warning| warning.json()).collect();
        self.remember(now, sample["stats"].clone());
        Ok(sample)
    }

    /// Nobody has looked for a while: what happened since then did not happen lately.
    fn forget(&mut self, now: Instant) {
        let last = self.before.back();
        if last.is_some_and(|(at, _)| now.duration_since(*at) > LATELY) {
            self.before.clear();
        }
    }

    /// Keeps the statistics of the last while, and the latest before it.
    fn remember(&mut self, now: Instant, stats: Value) {
        self.before.push_back((now, stats));
        let old = |at: &Instant| now.duration_since(*at) >= LATELY;
        while self.before.get(1).is_some_and(|(at, _)| old(at)) {
            self.before.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_compared_with_what_was_a_while_ago() {
        let begun = Instant::now();
        let mut sampler = Sampler::new(begun);
        for second in 0..100 {
            sampler.remember(begun + Duration::from_secs(second), json!(second));
            let (_, oldest) = sampler.before.front().unwrap();
            assert_eq!(*oldest, json!(second.saturating_sub(LATELY.as_secs())));
        }
        sampler.remember(begun + Duration::from_secs(3600), json!(3600));
        assert_eq!(sampler.before.len(), 1 + 1);
        sampler.forget(begun + Duration::from_secs(3600) + LATELY);
        assert_eq!(sampler.before.len(), 2);
        sampler.forget(begun + Duration::from_secs(3601) + LATELY);
        assert!(sampler.before.is_empty());
    }
}
