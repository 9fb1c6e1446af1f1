use std::sync::atomic::{AtomicU64, Ordering};

use slackwater_meta::Master;
use slackwater_meta::evict::Leader;
use slackwater_tier::TierStats as AgentStats;
use slackwater_wait::Site;
use slackwater_wire::{SegmentId, SegmentKind, SegmentState};

use super::shared::Shared;
use super::{
    EvictionRules, Flow, PutStats, ReadStats, SsdStats, Stats, TierStats, ViewStats, WaitStats,
};
use crate::prometheus::Text;
use crate::waits;

impl Shared {
    pub(super) fn stats(&self) -> Stats {
        // The cores of a broken store are not looked at; what the shell counted is still given.
        let taken = self.look(|core| Counts {
            master: core.master().map(Stats::of_master).unwrap_or_default(),
            agent: core.node.agent.stats(),
            accepting: core.node.accepting,
            views: core.views.stats(),
        });
        let Counts {
            master,
            agent,
            accepting,
            views,
        } = taken.unwrap_or_default();
        let meters = &self.meters;
        let (reads, puts) = (master.reads, master.puts);
        let misses = reads.misses + get(&meters.misses);
        // The values of other processes do not pass the meters of this one.
        let is_served = self.served.is_some();
        Stats {
            ssd: self.ssd_stats(master.ssd.unwrap_or_default(), &agent, accepting),
            reads: match is_served {
                true => ReadStats { misses, ..reads },
                false => ReadStats {
                    memory_hits: get(&meters.memory_hits.count),
                    ssd_hits: get(&meters.ssd_hits.count),
                    misses,
                    memory_bytes: get(&meters.memory_hits.bytes),
                    ssd_bytes: get(&meters.ssd_hits.bytes),
                },
            },
            views,
            ssd_reads: self.disk.as_ref().map_or(0, |ssd| ssd.disk.readers.reads()),
            promotion_reads: self
                .disk
                .as_ref()
                .map_or(0, |ssd| get(&ssd.disk.device.footprint().extent_reads)),
            promotion_copies: agent.promotions_copied,
            puts: match is_served {
                true => puts,
                false => PutStats {
                    stored: get(&meters.stored.count),
                    existed: get(&meters.existed),
                    refused: get(&meters.refused),
                    bytes: get(&meters.stored.bytes),
                    waited: puts.waited,
                },
            },
            corrupt: get(&meters.corrupt_memory) + agent.records_corrupt,
            latency: meters.latencies(),
            phases: meters.phases.times(),
            waits: self
                .sites()
                .map(WaitStats::of)
                .chain(waits::of_process())
                .collect(),
            io: self
                .disk
                .as_ref()
                .map(|ssd| ssd.disk.choice.clone())
                .unwrap_or_default(),
            pages: self.pages.clone(),
            warnings: self.warnings.clone(),
            ..master
        }
    }

    fn ssd_stats(&self, master: SsdStats, agent: &AgentStats, accepting: bool) -> Option<SsdStats> {
        let ssd = self.disk.as_ref()?;
        let footprint = ssd.disk.device.footprint();
        Some(SsdStats {
            capacity_bytes: master.capacity_bytes,
            used_bytes: master.used_bytes,
            records: agent.records,
            accepting,
            written_bytes: get(&footprint.written_bytes),
            read_bytes: get(&footprint.read_bytes) + ssd.disk.readers.bytes(),
            recovered: get(&ssd.recovered),
            syncs: agent.syncs,
            write_window: agent.write_window_milli as f64 / 1e3,
            read_slowdown: agent.read_slowdown_milli as f64 / 1e3,
            reads_delayed_us: agent.reads_delayed.as_micros() as u64,
            unwritten_at_close: get(&self.unwritten),
        })
    }

    fn sites(&self) -> impl Iterator<Item = &Site> {
        let disk = self.disk.iter().map(|ssd| &ssd.disk);
        let disk = disk.flat_map(|disk| disk.device.sites().iter().chain([disk.readers.site()]));
        self.waits.sites().into_iter().chain(disk)
    }

    /// Everything of [`Stats`] in a text form.
    pub(super) fn write_metrics(&self, text: &mut Text) {
        let stats = self.stats();
        text.master(&stats);
        let ssd = stats.ssd.unwrap_or_default();
        text.gauge(
            "slackwater_ssd_accepting",
            "Whether the SSD takes records.",
            &[("", u64::from(ssd.accepting))],
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
            &self.meters.distributions(),
        );
        text.phases(&self.meters.phases);
        text.traces(slackwater_trace::counts());
    }
}

/// What the cores count at one moment.
#[derive(Default)]
struct Counts {
    master: Stats,
    agent: AgentStats,
    accepting: bool,
    views: ViewStats,
}

impl Stats {
    /// What a master counts, wherever its nodes are.
    pub(crate) fn of_master(master: &Master) -> Self {
        let (metrics, segments) = (master.metrics(), master.segments());
        let has_disk = segments.iter().any(|it| it.kind == SegmentKind::Disk);
        let disk = tier(&segments, SegmentKind::Disk);
        let ssd = SsdStats {
            capacity_bytes: disk.capacity_bytes,
            used_bytes: disk.used_bytes,
            ..SsdStats::default()
        };
        let leaders = master.eviction_leaders();
        Self {
            objects: master.objects(),
            memory: tier(&segments, SegmentKind::Memory),
            ssd: has_disk.then_some(ssd),
            reads: ReadStats {
                memory_hits: metrics.get_memory_hits,
                ssd_hits: metrics.get_disk_hits,
                misses: metrics.get_misses,
                memory_bytes: metrics.get_memory_bytes,
                ssd_bytes: metrics.get_disk_bytes,
            },
            puts: PutStats {
                stored: metrics.puts_published,
                existed: metrics.puts_existed,
                refused: metrics.puts_refused,
                bytes: metrics.puts_published_bytes,
                waited: metrics.puts_waited,
            },
            promotions: metrics.promotion,
            replication: metrics.replication,
            copies: Flow {
                count: metrics.values_copied,
                bytes: metrics.copied_bytes,
            },
            evictions: Flow {
                count: metrics.evictions,
                bytes: metrics.eviction_bytes,
            },
            ssd_evictions: Flow {
                count: metrics.disk_evictions,
                bytes: metrics.disk_eviction_bytes,
            },
            ssd_evictions_at_reclaim: metrics.disk_evictions_at_reclaim,
            eviction_rules: leaders.into_iter().map(eviction_rules).collect(),
            offloads: metrics.offload,
            ..Self::default()
        }
    }
}

fn eviction_rules((segment, kind, leader): (SegmentId, SegmentKind, Leader)) -> EvictionRules {
    let rates = leader.contenders.iter();
    EvictionRules {
        segment: segment.0,
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
