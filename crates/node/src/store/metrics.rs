use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use slackwater_meta::evict::Leader;
use slackwater_meta::{Metrics, OffloadMetrics, PromotionMetrics};
use slackwater_tier::TierStats as AgentStats;
use slackwater_wait::Site;
use slackwater_wire::{SegmentKind, SegmentState};

use super::meters::Distribution;
use super::shared::Shared;
use super::{
    EvictionRules, Flow, PutStats, ReadStats, SsdStats, Stats, TierStats, ViewStats, WaitStats,
};

/// Upper ends of the buckets of times, in seconds.
const BOUNDS: [f64; 16] = [
    5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 1.0,
    10.0,
];

impl Shared {
    pub(super) fn stats(&self) -> Stats {
        // The cores of a broken store are not looked at; what the shell counted is still given.
        let taken = self.with(|core, _| {
            let books = Books {
                agent: core.node.agent.stats(),
                accepting: core.node.accepting,
                views: core.views.stats(),
                ..Books::default()
            };
            match core.master() {
                None => books,
                Some(master) => Books {
                    metrics: master.metrics().clone(),
                    objects: master.objects(),
                    segments: master.segments(),
                    leaders: master.eviction_leaders(),
                    ..books
                },
            }
        });
        let Books {
            metrics,
            objects,
            segments,
            agent,
            accepting,
            views,
            leaders,
        } = taken.unwrap_or_default();
        let (meters, memory_hits, ssd_hits) = (
            &self.meters,
            &self.meters.memory_hits,
            &self.meters.ssd_hits,
        );
        Stats {
            objects,
            memory: tier(&segments, SegmentKind::Memory),
            ssd: self.ssd_stats(&segments, &agent, accepting),
            reads: ReadStats {
                memory_hits: get(&memory_hits.count),
                ssd_hits: get(&ssd_hits.count),
                misses: metrics.get_misses + get(&meters.misses),
                memory_bytes: get(&memory_hits.bytes),
                ssd_bytes: get(&ssd_hits.bytes),
            },
            views,
            ssd_reads: self.disk.as_ref().map_or(0, |ssd| ssd.disk.readers.reads()),
            promotion_reads: self
                .disk
                .as_ref()
                .map_or(0, |ssd| get(&ssd.disk.device.footprint().extent_reads)),
            promotion_copies: agent.promotions_copied,
            puts: PutStats {
                stored: get(&meters.stored.count),
                existed: get(&meters.existed),
                refused: get(&meters.refused),
                bytes: get(&meters.stored.bytes),
                waited: metrics.puts_waited,
            },
            promotions: metrics.promotion,
            evictions: Flow {
                count: metrics.evictions,
                bytes: metrics.eviction_bytes,
            },
            ssd_evictions: Flow {
                count: metrics.disk_evictions,
                bytes: metrics.disk_eviction_bytes,
            },
            eviction_rules: leaders.into_iter().map(eviction_rules).collect(),
            offloads: metrics.offload,
            corrupt: get(&meters.corrupt_memory) + agent.records_corrupt,
            latency: meters.latencies(),
            waits: self.sites().map(wait).collect(),
            io: self
                .disk
                .as_ref()
                .map(|ssd| ssd.disk.choice.clone())
                .unwrap_or_default(),
            pages: self.pages.clone(),
            warnings: self.warnings.clone(),
        }
    }

    fn ssd_stats(
        &self,
        segments: &[SegmentState],
        agent: &AgentStats,
        accepting: bool,
    ) -> Option<SsdStats> {
        let ssd = self.disk.as_ref()?;
        let TierStats {
            capacity_bytes,
            used_bytes,
        } = tier(segments, SegmentKind::Disk);
        let footprint = ssd.disk.device.footprint();
        Some(SsdStats {
            capacity_bytes,
            used_bytes,
            records: agent.records,
            accepting,
            written_bytes: get(&footprint.written_bytes),
            read_bytes: get(&footprint.read_bytes) + ssd.disk.readers.bytes(),
            recovered: get(&ssd.recovered),
            syncs: agent.syncs,
            write_window: agent.write_window_milli as f64 / 1e3,
            read_slowdown: agent.read_slowdown_milli as f64 / 1e3,
            reads_delayed_us: agent.reads_delayed.as_micros() as u64,
        })
    }

    fn sites(&self) -> impl Iterator<Item = &Site> {
        let disk = self.disk.iter().map(|ssd| &ssd.disk);
        let disk = disk.flat_map(|disk| disk.device.sites().iter().chain([disk.readers.site()]));
        self.waits.sites().into_iter().chain(disk)
    }

    /// Everything of [`Stats`] in the text form of Prometheus (exposition format 0.0.4).
    pub(super) fn metrics_text(&self) -> String {
        let stats = self.stats();
        let mut text = Text::default();
        text.gauge(
            "slackwater_objects",
            "Objects there are.",
            &[("", stats.objects)],
        );
        let ssd = stats.ssd.unwrap_or_default();
        let tiers = |memory: u64, ssd: u64| [("tier=\"memory\"", memory), ("tier=\"ssd\"", ssd)];
        let (memory, reads) = (stats.memory, stats.reads);
        text.gauge(
            "slackwater_capacity_bytes",
            "Size of a tier.",
            &tiers(memory.capacity_bytes, ssd.capacity_bytes),
        );
        text.gauge(
            "slackwater_used_bytes",
            "Bytes that replicas occupy.",
            &tiers(memory.used_bytes, ssd.used_bytes),
        );
        text.gauge(
            "slackwater_ssd_accepting",
            "Whether the SSD takes records.",
            &[("", u64::from(ssd.accepting))],
        );
        let hits = tiers(reads.memory_hits, reads.ssd_hits);
        text.counter("slackwater_hits_total", "Reads served, by tier.", &hits);
        text.counter(
            "slackwater_hit_bytes_total",
            "Bytes served.",
            &tiers(reads.memory_bytes, reads.ssd_bytes),
        );
        text.counter(
            "slackwater_misses_total",
            "Reads of what is not there.",
            &[("", reads.misses)],
        );
        text.counter(
            "slackwater_ssd_reads_total",
            "Records read from SSD for a reader.",
            &[("", stats.ssd_reads)],
        );
        let read = (
            "slackwater_promotion_reads_total",
            "Records read from SSD to be promoted.",
        );
        text.counter(read.0, read.1, &[("", stats.promotion_reads)]);
        text.counter(
            "slackwater_promotion_copies_total",
            "Records promoted with the bytes of the read that earned it.",
            &[("", stats.promotion_copies)],
        );
        text.views(&stats.views);
        let puts = stats.puts;
        let ends = [
            ("status=\"stored\"", puts.stored),
            ("status=\"existed\"", puts.existed),
            ("status=\"refused\"", puts.refused),
        ];
        text.counter("slackwater_puts_total", "Puts, by how they ended.", &ends);
        text.counter(
            "slackwater_put_bytes_total",
            "Bytes put.",
            &[("", puts.bytes)],
        );
        text.counter(
            "slackwater_puts_waited_total",
            "Puts that waited for space.",
            &[("", puts.waited)],
        );
        let evictions = tiers(stats.evictions.count, stats.ssd_evictions.count);
        text.counter(
            "slackwater_evictions_total",
            "Replicas evicted.",
            &evictions,
        );
        let evicted = tiers(stats.evictions.bytes, stats.ssd_evictions.bytes);
        text.counter(
            "slackwater_eviction_bytes_total",
            "Bytes of replicas evicted.",
            &evicted,
        );
        text.eviction_rules(&stats.eviction_rules);
        text.offloads(&stats.offloads);
        text.promotions(&stats.promotions);
        text.counter(
            "slackwater_corrupt_total",
            "Replicas with wrong bytes, none returned.",
            &[("", stats.corrupt)],
        );
        text.counter(
            "slackwater_ssd_written_bytes_total",
            "Bytes written to the device.",
            &[("", ssd.written_bytes)],
        );
        text.counter(
            "slackwater_ssd_read_bytes_total",
            "Bytes read from the device.",
            &[("", ssd.read_bytes)],
        );
        text.counter(
            "slackwater_ssd_syncs_total",
            "Syncs of the log's files.",
            &[("", ssd.syncs)],
        );
        text.number(
            "slackwater_ssd_write_window",
            "Pieces of writes that may be under way beside reads; below 1 a share of the time.",
            ("gauge", ssd.write_window),
        );
        text.number(
            "slackwater_ssd_read_slowdown_ratio",
            "Time of the last reads from SSD over what they take without writes.",
            ("gauge", ssd.read_slowdown),
        );
        text.number(
            "slackwater_ssd_read_delay_seconds_total",
            "Time that reads from SSD took longer because of writes.",
            ("counter", ssd.reads_delayed_us as f64 / 1e6),
        );
        text.waits(&stats.waits);
        text.histogram(
            "slackwater_call_seconds",
            "Time of a value.",
            &self.meters.distributions(&BOUNDS),
        );
        text.0
    }
}

/// What the cores count at one moment.
#[derive(Default)]
struct Books {
    metrics: Metrics,
    objects: u64,
    segments: Vec<SegmentState>,
    agent: AgentStats,
    accepting: bool,
    views: ViewStats,
    leaders: Vec<(SegmentKind, Leader)>,
}

fn eviction_rules((kind, leader): (SegmentKind, Leader)) -> EvictionRules {
    let rates = leader.contenders.iter();
    EvictionRules {
        tier: match kind {
            SegmentKind::Memory => "memory",
            SegmentKind::Disk => "ssd",
        },
        followed: leader.policy,
        lead: leader.lead(),
        changes: leader.changes,
        hit_rates: rates.map(|rule| (rule.policy, rule.hit_rate)).collect(),
    }
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn tier(segments: &[SegmentState], kind: SegmentKind) -> TierStats {
    let of_kind = segments.iter().filter(|segment| segment.kind == kind);
    of_kind.fold(TierStats::default(), |sum, segment| TierStats {
        capacity_bytes: sum.capacity_bytes + segment.bytes,
        used_bytes: sum.used_bytes + segment.used_bytes,
    })
}

fn wait(site: &Site) -> WaitStats {
    let counts = site.counts();
    WaitStats {
        site: site.name(),
        waits: counts.waits,
        spun: counts.spin_hits,
        parked: counts.parks,
        timeouts: counts.timeouts,
        spun_us: counts.spin_nanos / 1000,
        parked_us: counts.park_nanos / 1000,
    }
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

#[derive(Default)]
struct Text(String);

impl Text {
    fn counter(&mut self, name: &str, help: &str, samples: &[(&str, u64)]) {
        self.family(name, help, "counter", samples);
    }

    fn gauge(&mut self, name: &str, help: &str, samples: &[(&str, u64)]) {
        self.family(name, help, "gauge", samples);
    }

    fn number(&mut self, name: &str, help: &str, (kind, value): (&str, f64)) {
        self.head(name, help, kind);
        self.sample(name, "", &value.to_string());
    }

    fn family(&mut self, name: &str, help: &str, kind: &str, samples: &[(&str, u64)]) {
        self.head(name, help, kind);
        for (labels, value) in samples {
            self.sample(name, labels, &value.to_string());
        }
    }

    fn views(&mut self, views: &ViewStats) {
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

    fn eviction_rules(&mut self, tiers: &[EvictionRules]) {
        let name = "slackwater_eviction_rule_followed";
        self.head(name, "Whether evictions follow this rule.", "gauge");
        for tier in tiers {
            for (rule, _) in &tier.hit_rates {
                let followed = u8::from(*rule == tier.followed);
                let labels = format!("tier=\"{}\",rule=\"{rule}\"", tier.tier);
                self.sample(name, &labels, &followed.to_string());
            }
        }
        let name = "slackwater_eviction_rule_hit_ratio";
        let help = "Share of blocks that a simulated cache under this rule hit lately.";
        self.head(name, help, "gauge");
        for tier in tiers {
            for (rule, rate) in &tier.hit_rates {
                let labels = format!("tier=\"{}\",rule=\"{rule}\"", tier.tier);
                self.sample(name, &labels, &format!("{rate:.4}"));
            }
        }
        let name = "slackwater_eviction_rule_changes_total";
        self.head(
            name,
            "How often evictions began to follow another rule.",
            "counter",
        );
        for tier in tiers {
            let labels = format!("tier=\"{}\"", tier.tier);
            self.sample(name, &labels, &tier.changes.to_string());
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

    fn waits(&mut self, waits: &[WaitStats]) {
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

    fn histogram(&mut self, name: &str, help: &str, series: &[(&str, Distribution)]) {
        self.head(name, help, "histogram");
        for (
            labels,
            Distribution {
                below,
                count,
                seconds,
            },
        ) in series
        {
            for (bound, count) in BOUNDS.iter().zip(below) {
                self.sample(
                    &format!("{name}_bucket"),
                    &format!("{labels},le=\"{bound}\""),
                    &count.to_string(),
                );
            }
            self.sample(
                &format!("{name}_bucket"),
                &format!("{labels},le=\"+Inf\""),
                &count.to_string(),
            );
            self.sample(&format!("{name}_sum"), labels, &seconds.to_string());
            self.sample(&format!("{name}_count"), labels, &count.to_string());
        }
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        // Writing to a `String` does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: &str) {
        let labels = if labels.is_empty() {
            String::new()
        } else {
            format!("{{{labels}}}")
        };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }
}
