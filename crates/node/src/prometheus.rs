//! Metrics in the text forms of Prometheus (exposition format 0.0.4) and OpenMetrics (1.0.0), which differ in a few lines.

use std::fmt::Write;
use std::time::SystemTime;

use slackwater_meta::{OffloadMetrics, PromotionMetrics, ReplicationMetrics};
use slackwater_trace::TraceCounts;
use slackwater_wire::MetricsFormat;
use slackwater_wire::kv_events::KvEventCounts;

use crate::pool::NodesStats;
use crate::store::meters::{Distribution, Exemplar, PhaseMeters};
use crate::store::{EvictionRules, Stats, TierStats, ViewStats, WaitStats};

/// Upper ends of the buckets of times, in seconds.
pub(crate) const BOUNDS: [f64; 16] = [
    5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 1.0,
    10.0,
];

/// Metrics as they are written, family after family.
pub(crate) struct Text {
    text: String,
    format: MetricsFormat,
}

/// Units that names of families end in.
const UNITS: [&str; 3] = ["seconds", "bytes", "ratio"];

impl Text {
    pub(crate) fn new(format: MetricsFormat) -> Self {
        Self {
            text: String::new(),
            format,
        }
    }

    /// The whole text, as it is sent in answer to a request for metrics.
    pub(crate) fn finish(mut self) -> String {
        if self.format == MetricsFormat::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    /// What a master counts.
    pub(crate) fn master(&mut self, stats: &Stats) {
        self.gauge(
            "slackwater_objects",
            "Objects there are.",
            &[("", stats.objects)],
        );
        let ssd = stats.ssd.unwrap_or_default();
        let tiers = |memory: u64, ssd: u64| [("tier=\"memory\"", memory), ("tier=\"ssd\"", ssd)];
        let (memory, reads) = (stats.memory, stats.reads);
        self.gauge(
            "slackwater_capacity_bytes",
            "Size of a tier.",
            &tiers(memory.capacity_bytes, ssd.capacity_bytes),
        );
        self.gauge(
            "slackwater_used_bytes",
            "Bytes that replicas occupy.",
            &tiers(memory.used_bytes, ssd.used_bytes),
        );
        let hits = tiers(reads.memory_hits, reads.ssd_hits);
        self.counter("slackwater_hits_total", "Reads served, by tier.", &hits);
        self.counter(
            "slackwater_hit_bytes_total",
            "Bytes served.",
            &tiers(reads.memory_bytes, reads.ssd_bytes),
        );
        self.counter(
            "slackwater_misses_total",
            "Reads of what is not there.",
            &[("", reads.misses)],
        );
        let puts = stats.puts;
        let ends = [
            ("status=\"stored\"", puts.stored),
            ("status=\"existed\"", puts.existed),
            ("status=\"refused\"", puts.refused),
        ];
        self.counter("slackwater_puts_total", "Puts, by how they ended.", &ends);
        self.counter(
            "slackwater_put_bytes_total",
            "Bytes put.",
            &[("", puts.bytes)],
        );
        self.counter(
            "slackwater_puts_waited_total",
            "Puts that waited for space.",
            &[("", puts.waited)],
        );
        let evictions = tiers(stats.evictions.count, stats.ssd_evictions.count);
        self.counter(
            "slackwater_evictions_total",
            "Replicas evicted.",
            &evictions,
        );
        let evicted = tiers(stats.evictions.bytes, stats.ssd_evictions.bytes);
        self.counter(
            "slackwater_eviction_bytes_total",
            "Bytes of replicas evicted.",
            &evicted,
        );
        self.counter(
            "slackwater_evictions_at_reclaim_total",
            "Replicas evicted from SSD that would have had to be written again, because their file was emptied.",
            &[("", stats.ssd_evictions_at_reclaim)],
        );
        self.eviction_rules(&stats.eviction_rules);
        self.offloads(&stats.offloads);
        self.promotions(&stats.promotions);
        self.replication(&stats.replication);
        self.counter(
            "slackwater_copies_total",
            "Values that a node brought from another one: for jobs, for readers, and because they are read much.",
            &[("", stats.copies.count)],
        );
        self.counter(
            "slackwater_copy_bytes_total",
            "Bytes of values that a node brought from another one.",
            &[("", stats.copies.bytes)],
        );
    }

    /// What was told of KV events.
    pub(crate) fn kv_events(&mut self, counts: &KvEventCounts) {
        let counters = [
            (
                "slackwater_kv_event_batches_total",
                "Messages of KV events published.",
                counts.published_batches,
            ),
            (
                "slackwater_kv_events_total",
                "KV events published.",
                counts.published_events,
            ),
            (
                "slackwater_kv_events_dropped_total",
                "KV events dropped because too many waited to be published.",
                counts.dropped_events,
            ),
            (
                "slackwater_kv_events_unparsed_total",
                "KV events left out because no block can be named by their keys.",
                counts.skipped_unparsed_keys,
            ),
        ];
        for (name, help, value) in counters {
            self.counter(name, help, &[("", value)]);
        }
    }

    /// The nodes and clients of a pool.
    pub(crate) fn nodes(&mut self, stats: &NodesStats) {
        self.gauge(
            "slackwater_clients",
            "Clients that have a link.",
            &[("", stats.clients)],
        );
        let count = |presence: &str| {
            let nodes = stats.nodes.iter();
            nodes.filter(|node| node.presence == presence).count() as u64
        };
        let by_presence = [
            ("presence=\"here\"", count("here")),
            ("presence=\"away\"", count("away")),
            ("presence=\"hidden\"", count("hidden")),
        ];
        let help = "Nodes that lend something, by whether they have a link.";
        self.gauge("slackwater_nodes", help, &by_presence);
        self.gauge(
            "slackwater_nodes_partial",
            "Whether a node has yet to announce a part of what it holds.",
            &[("", u64::from(stats.partial))],
        );
        self.counter(
            "slackwater_nodes_hidden_total",
            "Times that what a node holds was hidden, because it had no link.",
            &[("", stats.hidden)],
        );
        self.counter(
            "slackwater_nodes_given_up_total",
            "Times that a node was given up, because it had no link for long.",
            &[("", stats.given_up)],
        );
        let announced = [
            ("tier=\"memory\"", stats.extents_announced),
            ("tier=\"ssd\"", stats.records_announced),
        ];
        let help = "Replicas that nodes announced, which a new master or a new life of a node needs, and a lost link does not.";
        self.counter("slackwater_announced_total", help, &announced);
        let tiers = stats.nodes.iter().flat_map(|node| {
            let tiers = [("memory", Some(node.memory)), ("ssd", node.ssd)];
            tiers.into_iter().filter_map(|(tier, state)| {
                let labels = format!("node=\"{}\",tier=\"{tier}\"", node.node);
                Some((labels, state?))
            })
        });
        let tiers: Vec<(String, TierStats)> = tiers.collect();
        let mut by_tier = |name, help, value: fn(&TierStats) -> u64| {
            let samples = tiers
                .iter()
                .map(|(labels, it)| (labels.as_str(), value(it)));
            let samples: Vec<_> = samples.collect();
            self.gauge(name, help, &samples);
        };
        let name = "slackwater_node_capacity_bytes";
        by_tier(name, "Size of a tier of a node.", |it| it.capacity_bytes);
        let name = "slackwater_node_used_bytes";
        let help = "Bytes that replicas occupy on a node.";
        by_tier(name, help, |it| it.used_bytes);
    }

    pub(crate) fn counter(&mut self, name: &str, help: &str, samples: &[(&str, u64)]) {
        self.family(name, help, "counter", samples);
    }

    pub(crate) fn gauge(&mut self, name: &str, help: &str, samples: &[(&str, u64)]) {
        self.family(name, help, "gauge", samples);
    }

    pub(crate) fn number(&mut self, name: &str, help: &str, (kind, value): (&str, f64)) {
        self.head(name, help, kind);
        self.sample(name, "", &value.to_string());
    }

    fn family(&mut self, name: &str, help: &str, kind: &str, samples: &[(&str, u64)]) {
        self.head(name, help, kind);
        for (labels, value) in samples {
            self.sample(name, labels, &value.to_string());
        }
    }

    pub(crate) fn views(&mut self, views: &ViewStats) {
        let gauges = [
            ("slackwater_views_open", "Views that are open.", views.open),
            (
                "slackwater_views_open_bytes",
                "Bytes that open views keep in place.",
                views.open_bytes,
            ),
            (
                "slackwater_views_late",
                "Views that are open for longer than they may be.",
                views.late,
            ),
        ];
        for (name, help, value) in gauges {
            self.gauge(name, help, &[("", value)]);
        }
        let counters = [
            ("slackwater_views_total", "Views opened.", views.opened),
            (
                "slackwater_views_became_late_total",
                "Views that were open for longer than they may be.",
                views.became_late,
            ),
            (
                "slackwater_views_refused_total",
                "Calls for views refused because of those that were open.",
                views.refused,
            ),
        ];
        for (name, help, value) in counters {
            self.counter(name, help, &[("", value)]);
        }
    }

    fn eviction_rules(&mut self, segments: &[EvictionRules]) {
        let name = "slackwater_eviction_rule_followed";
        self.head(name, "Whether evictions follow this rule.", "gauge");
        for it in segments {
            for (rule, _) in &it.hit_rates {
                let followed = u8::from(*rule == it.followed);
                let labels = format!("{},rule=\"{rule}\"", place(it));
                self.sample(name, &labels, &followed.to_string());
            }
        }
        let name = "slackwater_eviction_rule_hit_ratio";
        let help = "Share of blocks that a simulated cache under this rule hit lately.";
        self.head(name, help, "gauge");
        for it in segments {
            for (rule, rate) in &it.hit_rates {
                let labels = format!("{},rule=\"{rule}\"", place(it));
                self.sample(name, &labels, &format!("{rate:.4}"));
            }
        }
        let name = "slackwater_eviction_rule_changes_total";
        self.head(
            name,
            "How often evictions began to follow another rule.",
            "counter",
        );
        for it in segments {
            self.sample(name, &place(it), &it.changes.to_string());
        }
    }

    fn offloads(&mut self, o: &OffloadMetrics) {
        self.gauge(
            "slackwater_offloads_in_flight",
            "Offloads under way.",
            &[("", o.in_flight)],
        );
        self.counter(
            "slackwater_offloads_started_total",
            "Offloads begun.",
            &[("", o.started)],
        );
        let ends = ends([o.completed, o.failed, o.expired, o.cancelled]);
        self.counter(
            "slackwater_offloads_total",
            "Offloads ended, by how.",
            &ends,
        );
        self.counter(
            "slackwater_offload_bytes_total",
            "Bytes of values written to SSD.",
            &[("", o.completed_bytes)],
        );
        let skipped = [
            ("status=\"full\"", o.skipped_full),
            ("status=\"no_disk\"", o.skipped_no_disk),
            ("status=\"failing\"", o.skipped_failing),
            ("status=\"not_worth\"", o.skipped_not_worth),
        ];
        self.counter(
            "slackwater_offloads_skipped_total",
            "Offloads not begun, by why.",
            &skipped,
        );
    }

    fn promotions(&mut self, promotions: &PromotionMetrics) {
        let p = promotions;
        self.gauge(
            "slackwater_promotions_in_flight",
            "Promotions under way.",
            &[("", p.in_flight)],
        );
        self.counter(
            "slackwater_promotions_admitted_total",
            "Promotions begun.",
            &[("", p.admitted)],
        );
        let ends = ends([p.completed, p.failed, p.expired, p.cancelled]);
        self.counter(
            "slackwater_promotions_total",
            "Promotions ended, by how.",
            &ends,
        );
        let bytes = (
            "slackwater_promotion_bytes_total",
            "Bytes brought back into memory.",
        );
        self.counter(bytes.0, bytes.1, &[("", p.completed_bytes)]);
        self.counter(
            "slackwater_promotions_to_reader_total",
            "Promotions to a node of the reader's host, from a record on another.",
            &[("", p.to_reader)],
        );
        let refusals = [
            ("status=\"frequency\"", p.rejected_frequency),
            ("status=\"index\"", p.rejected_index),
            ("status=\"watermark\"", p.rejected_watermark),
            ("status=\"cap\"", p.rejected_cap),
        ];
        self.counter(
            "slackwater_promotions_rejected_total",
            "Reads that earned none, by the gate.",
            &refusals,
        );
        let candidates = [
            ("status=\"recorded\"", p.candidate_recorded),
            ("status=\"admitted\"", p.candidate_admitted),
            (
                "status=\"admission_rejected\"",
                p.candidate_admission_rejected,
            ),
            (
                "status=\"expired_evaluated\"",
                p.candidate_expired_evaluated,
            ),
            (
                "status=\"expired_unevaluated\"",
                p.candidate_expired_unevaluated,
            ),
            ("status=\"dropped_limit\"", p.candidate_dropped_limit),
        ];
        let name = "slackwater_promotion_candidates_total";
        self.counter(
            name,
            "Promotions remembered to be tried again, by outcome.",
            &candidates,
        );
    }

    fn replication(&mut self, replication: &ReplicationMetrics) {
        let r = replication;
        let gauges = [
            (
                "slackwater_replications_in_flight",
                "Further replicas under way.",
                r.in_flight,
            ),
            (
                "slackwater_extra_replicas",
                "Replicas that exist because they are read much.",
                r.extras,
            ),
        ];
        for (name, help, value) in gauges {
            self.gauge(name, help, &[("", value)]);
        }
        let counters = [
            (
                "slackwater_hot_objects_total",
                "Values that were read often enough for another replica.",
                r.hot,
            ),
            (
                "slackwater_replications_observed_total",
                "Replicas that would have been made.",
                r.observed,
            ),
            (
                "slackwater_replication_bytes_total",
                "Bytes of further replicas.",
                r.completed_bytes,
            ),
            (
                "slackwater_extra_replicas_evicted_total",
                "Further replicas that went when memory was short.",
                r.extras_evicted,
            ),
            (
                "slackwater_reads_untracked_total",
                "Reads that were not counted for replication.",
                r.untracked,
            ),
        ];
        for (name, help, value) in counters {
            self.counter(name, help, &[("", value)]);
        }
        let ends = [
            ("status=\"completed\"", r.completed),
            ("status=\"failed\"", r.failed),
        ];
        self.counter(
            "slackwater_replications_total",
            "Further replicas, by how their copies ended.",
            &ends,
        );
        let refusals = [
            ("status=\"enough\"", r.rejected_enough),
            ("status=\"room\"", r.rejected_room),
            ("status=\"quota\"", r.rejected_quota),
            ("status=\"unready\"", r.rejected_unready),
            ("status=\"queue\"", r.rejected_queue),
        ];
        self.counter(
            "slackwater_replications_rejected_total",
            "Hot values that got no further replica, by why.",
            &refusals,
        );
    }

    pub(crate) fn waits(&mut self, waits: &[WaitStats]) {
        let mut by_site = |name: &str, help: &str, value: fn(&WaitStats) -> u64| {
            let labels: Vec<String> = waits
                .iter()
                .map(|wait| format!("site=\"{}\"", wait.site))
                .collect();
            let samples: Vec<_> = labels
                .iter()
                .map(String::as_str)
                .zip(waits.iter().map(value))
                .collect();
            self.counter(name, help, &samples);
        };
        by_site("slackwater_waits_total", "Waits, by what for.", |wait| {
            wait.waits
        });
        by_site(
            "slackwater_wait_spins_total",
            "Waits that ended while they still looked.",
            |wait| wait.spun,
        );
        by_site(
            "slackwater_wait_looks_total",
            "Looks at what was waited for, before sleep.",
            |wait| wait.looks,
        );
        by_site(
            "slackwater_wait_parks_total",
            "Times a waiter slept in the kernel.",
            |wait| wait.parked,
        );
        by_site(
            "slackwater_wait_timeouts_total",
            "Waits that ended at their deadline.",
            |wait| wait.timeouts,
        );
    }

    /// The parts of reads.
    pub(crate) fn phases(&mut self, phases: &PhaseMeters) {
        self.histogram(
            "slackwater_read_phase_seconds",
            "Time of a part of a read.",
            &phases.distributions(),
        );
    }

    /// The spans of this process, by how they ended.
    pub(crate) fn traces(&mut self, counts: TraceCounts) {
        let ends = [
            ("status=\"exported\"", counts.exported),
            ("status=\"dropped\"", counts.dropped),
        ];
        let help = "Spans of traces, by whether a collector took them.";
        self.counter("slackwater_trace_spans_total", help, &ends);
    }

    pub(crate) fn histogram(&mut self, name: &str, help: &str, series: &[(&str, Distribution)]) {
        self.head(name, help, "histogram");
        for (labels, distribution) in series {
            let Distribution {
                below,
                count,
                seconds,
                exemplars,
            } = distribution;
            let ends = BOUNDS.iter().map(|bound| self.bound(*bound));
            let ends: Vec<String> = ends.chain(["+Inf".to_owned()]).collect();
            let counts = below.iter().chain([count]);
            for ((end, count), exemplar) in ends.iter().zip(counts).zip(exemplars) {
                let exemplar = exemplar.as_ref().map(shown).unwrap_or_default();
                let exemplar = match self.format {
                    MetricsFormat::Prometheus => "",
                    MetricsFormat::OpenMetrics => &exemplar,
                };
                self.sample(
                    &format!("{name}_bucket"),
                    &format!("{labels},le=\"{end}\""),
                    &format!("{count}{exemplar}"),
                );
            }
            self.sample(&format!("{name}_sum"), labels, &seconds.to_string());
            self.sample(&format!("{name}_count"), labels, &count.to_string());
        }
    }

    /// The upper end of a bucket. OpenMetrics wants the digits that other programs write, as it compares them as text.
    fn bound(&self, bound: f64) -> String {
        match self.format {
            MetricsFormat::Prometheus => bound.to_string(),
            MetricsFormat::OpenMetrics if bound < 1e-4 => {
                let scientific = format!("{bound:e}");
                let (digits, exponent) = scientific.split_once("e-").unwrap_or((&scientific, "0"));
                format!("{digits}e-{exponent:0>2}")
            }
            MetricsFormat::OpenMetrics => format!("{bound:?}"),
        }
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        let is_open = self.format == MetricsFormat::OpenMetrics;
        // There the ending is of the samples of a counter, not of its name.
        let family = match name.strip_suffix("_total") {
            Some(family) if is_open => family,
            _ => name,
        };
        // Writing to a `String` does not fail.
        let _ = writeln!(self.text, "# HELP {family} {help}\n# TYPE {family} {kind}");
        let unit = family.rsplit_once('_').map(|(_, last)| last);
        if let Some(unit) = unit.filter(|unit| is_open && UNITS.contains(unit)) {
            let _ = writeln!(self.text, "# UNIT {family} {unit}");
        }
    }

    fn sample(&mut self, name: &str, labels: &str, value: &str) {
        let labels = if labels.is_empty() {
            String::new()
        } else {
            format!("{{{labels}}}")
        };
        let _ = writeln!(self.text, "{name}{labels} {value}");
    }
}

/// An exemplar as it follows a sample.
fn shown(exemplar: &Exemplar) -> String {
    let Exemplar { trace, seconds, at } = exemplar;
    let at = at.duration_since(SystemTime::UNIX_EPOCH);
    let at = at.unwrap_or_default().as_secs_f64();
    format!(" # {{trace_id=\"{trace}\"}} {seconds} {at:.3}")
}

/// The labels of a segment: of one tier there are as many as there are nodes.
fn place(rules: &EvictionRules) -> String {
    format!("segment=\"{}\",tier=\"{}\"", rules.segment, rules.tier)
}

/// How what the master began has ended.
fn ends(counts: [u64; 4]) -> [(&'static str, u64); 4] {
    let labels = [
        "status=\"completed\"",
        "status=\"failed\"",
        "status=\"expired\"",
        "status=\"cancelled\"",
    ];
    std::array::from_fn(|at| (labels[at], counts[at]))
}
