//! The figures of a run, for the terminal and the page.

use slackwater_node::store::{EvictionRules, Latency};
use slackwater_report::Unit;

use super::report::{Record, grouped, micros};

impl Record<'_> {
    /// The figures of the run, a name and a value each: the terminal's table and the page's are one.
    pub(super) fn figures(&self) -> Vec<Vec<String>> {
        let (outcome, funnel) = (self.outcome, &self.outcome.promotions);
        let count = grouped;
        let bytes = |value: u64| Unit::Bytes.format(value as f64);
        let times = |latency: &Latency| match latency.count {
            0 => "–".to_owned(),
            _ => format!(
                "{} / {}",
                Unit::Micros.format(latency.p50_us),
                Unit::Micros.format(latency.p99_us)
            ),
        };
        let calls = &self.tally.read_calls;
        let call = |quantile: f64| Unit::Micros.format(micros(calls.value_at_quantile(quantile)));
        let mut rows = vec![
            ("requests", count(outcome.requests)),
            ("blocks", count(outcome.blocks)),
            (
                "prefix hit rate",
                Unit::Share.format(outcome.prefix_hit_rate),
            ),
            ("block hit rate", Unit::Share.format(outcome.block_hit_rate)),
            ("hits in memory", count(outcome.memory_hits)),
            ("hits on SSD", count(outcome.ssd_hits)),
            ("misses", count(outcome.misses)),
            (
                "bytes read / put",
                format!(
                    "{} / {}",
                    bytes(outcome.get_bytes),
                    bytes(outcome.put_bytes)
                ),
            ),
            (
                "block from memory, p50 / p99",
                times(&self.stats.latency.memory),
            ),
            ("block from SSD, p50 / p99", times(&self.stats.latency.ssd)),
            (
                "prefix of a request, p50 / p99",
                format!("{} / {}", call(0.5), call(0.99)),
            ),
            (
                "evicted / written to SSD",
                format!("{} / {}", count(outcome.evictions), count(outcome.offloads)),
            ),
            (
                "not written: queue full / no room / SSD failing / not worth it / failed",
                outcome
                    .offloads_skipped
                    .reasons()
                    .map(|(_, blocks)| count(blocks))
                    .join(" / "),
            ),
            (
                "not written when the store was closed",
                count(outcome.unwritten_at_close),
            ),
            (
                "reads from SSD waited for writes",
                Unit::Seconds.format(outcome.ssd_read_delay_s),
            ),
            (
                "promotions admitted / completed",
                format!("{} / {}", count(funnel.admitted), count(funnel.completed)),
            ),
            (
                "promotions failed / expired / cancelled",
                format!(
                    "{} / {} / {}",
                    count(funnel.failed),
                    count(funnel.expired),
                    count(funnel.cancelled)
                ),
            ),
            (
                "not promoted: too seldom / memory full / queue full",
                format!(
                    "{} / {} / {}",
                    count(funnel.rejected_frequency),
                    count(funnel.rejected_watermark),
                    count(funnel.rejected_cap)
                ),
            ),
            ("corrupt reads", count(outcome.corrupt_reads)),
            (
                "wall / processor time",
                format!("{:.2} s / {:.2} s", outcome.wall_s, outcome.cpu_s),
            ),
            ("peak memory", bytes(outcome.peak_rss_bytes)),
            (
                "on SSD at the start",
                count(self.stats.ssd.map_or(0, |ssd| ssd.recovered)),
            ),
            (
                "SSD by",
                format!("{} ({})", self.stats.io.chosen, self.stats.io.reason),
            ),
        ];
        for rules in &self.stats.eviction_rules {
            let what = if rules.tier == "ssd" {
                "evictions from SSD follow"
            } else {
                "evictions from memory follow"
            };
            rows.push((what, followed(rules)));
        }
        for (what, errors) in [
            ("failed reads", &self.tally.read_errors),
            ("refused puts", &self.tally.put_errors),
        ] {
            let list: Vec<String> = errors
                .iter()
                .map(|(code, times)| format!("{code} × {times}"))
                .collect();
            if !list.is_empty() {
                rows.push((what, list.join(", ")));
            }
        }
        rows.into_iter()
            .map(|(name, value)| vec![name.to_owned(), value])
            .collect()
    }
}

/// The rule that evictions follow, and by how much it leads.
fn followed(rules: &EvictionRules) -> String {
    format!(
        "{}, {:+.1} points to the best other in simulated caches; changed {} times",
        rules.followed,
        100.0 * rules.lead,
        grouped(rules.changes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lead_is_said_in_points_of_the_hit_rate() {
        let rules = EvictionRules {
            tier: "memory",
            followed: "lru",
            lead: 0.0126,
            changes: 3,
            ..EvictionRules::default()
        };
        assert_eq!(
            followed(&rules),
            "lru, +1.3 points to the best other in simulated caches; changed 3 times"
        );
    }
}
