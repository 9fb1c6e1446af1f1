use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::http::Source;

/// How long a sample may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What an admin address tells at one moment.
pub(super) struct Sample {
    at: Instant,
    stats: Value,
    segments: Value,
    jobs: Value,
}

/// What happened between two samples, and how things stand at the second.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Snapshot {
    pub(super) objects: u64,
    pub(super) clients: Option<u64>,
    /// Reads served from memory, from SSD, and not at all, in a second.
    pub(super) reads: [f64; 3],
    /// Of all reads, those served from memory and from SSD; none without reads.
    pub(super) hit_ratios: Option<[f64; 2]>,
    /// Bytes served in a second.
    pub(super) read_bytes: f64,
    /// Values and bytes put in a second.
    pub(super) puts: [f64; 2],
    pub(super) evictions: f64,
    pub(super) offloads: f64,
    pub(super) promotions: f64,
    pub(super) segments: Vec<SegmentLine>,
    pub(super) jobs: Vec<Value>,
}

/// A segment and its node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SegmentLine {
    pub(super) name: String,
    pub(super) node: u64,
    pub(super) tier: String,
    pub(super) presence: String,
    pub(super) status: String,
    pub(super) used: u64,
    pub(super) capacity: u64,
}

impl Sample {
    pub(super) fn take(source: &Source) -> Result<Self> {
        let at = Instant::now();
        let get = |path| source.get(path, at + PATIENCE);
        Ok(Self {
            at,
            stats: get("/api/v1/stats")?,
            segments: get("/api/v1/segments")?,
            jobs: get("/api/v1/jobs")?,
        })
    }
}

impl Snapshot {
    pub(super) fn between(before: &Sample, after: &Sample) -> Self {
        let time = after.at.saturating_duration_since(before.at);
        let rate = |path: &str| rate(&before.stats, &after.stats, path, time);
        let reads = ["/reads/memory_hits", "/reads/ssd_hits", "/reads/misses"].map(rate);
        let all: f64 = reads.iter().sum();
        let jobs = after.jobs["jobs"].as_array().cloned().unwrap_or_default();
        let segments = after.segments["segments"].as_array();
        Self {
            objects: number(&after.stats, "/objects"),
            clients: after
                .stats
                .pointer("/nodes/clients")
                .and_then(Value::as_u64),
            hit_ratios: (all > 0.0).then(|| [reads[0] / all, reads[1] / all]),
            reads,
            read_bytes: rate("/reads/memory_bytes") + rate("/reads/ssd_bytes"),
            puts: [rate("/puts/stored"), rate("/puts/bytes")],
            evictions: rate("/evictions/count") + rate("/ssd_evictions/count"),
            offloads: rate("/offloads/completed"),
            promotions: rate("/promotions/completed"),
            segments: segments.into_iter().flatten().map(line).collect(),
            jobs: jobs
                .into_iter()
                .filter(|job| job["status"] == "RUNNING")
                .collect(),
        }
    }

    pub(super) fn json(&self) -> Value {
        let segment = |line: &SegmentLine| {
            json!({
                "name": line.name,
                "node": line.node,
                "tier": line.tier,
                "presence": line.presence,
                "status": line.status,
                "used_bytes": line.used,
                "capacity_bytes": line.capacity,
            })
        };
        let segments: Vec<Value> = self.segments.iter().map(segment).collect();
        json!({
            "objects": self.objects,
            "clients": self.clients,
            "reads_per_s": { "memory": self.reads[0], "ssd": self.reads[1], "missed": self.reads[2] },
            "hit_ratio": self.hit_ratios.map(|[memory, ssd]| json!({ "memory": memory, "ssd": ssd })),
            "read_bytes_per_s": self.read_bytes,
            "puts_per_s": self.puts[0],
            "put_bytes_per_s": self.puts[1],
            "evictions_per_s": self.evictions,
            "offloads_per_s": self.offloads,
            "promotions_per_s": self.promotions,
            "segments": segments,
            "jobs": self.jobs,
        })
    }
}

fn number(value: &Value, path: &str) -> u64 {
    value.pointer(path).and_then(Value::as_u64).unwrap_or(0)
}

/// How fast a counter grew. One that is smaller than before began anew.
fn rate(before: &Value, after: &Value, path: &str, time: Duration) -> f64 {
    let (before, after) = (number(before, path), number(after, path));
    let grown = after.checked_sub(before).unwrap_or(after);
    match time.as_secs_f64() {
        0.0 => 0.0,
        seconds => grown as f64 / seconds,
    }
}

fn line(segment: &Value) -> SegmentLine {
    let text = |name: &str| segment[name].as_str().unwrap_or_default().to_owned();
    SegmentLine {
        name: text("name"),
        node: number(segment, "/node"),
        tier: text("tier"),
        presence: text("presence"),
        status: text("status"),
        used: number(segment, "/used_bytes"),
        capacity: number(segment, "/capacity_bytes"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::top) fn sample(at: Instant, hits: u64, misses: u64) -> Sample {
        let segment = json!({
            "name": "memory-300", "node": 300, "tier": "memory", "presence": "here", "status": "OK",
            "used_bytes": 1 << 20, "capacity_bytes": 4 << 20,
        });
        let job = |status: &str| json!({ "job_id": "7", "status": status });
        Sample {
            at,
            stats: json!({
                "objects": 5,
                "reads": { "memory_hits": hits, "ssd_hits": hits / 2, "misses": misses },
                "nodes": { "clients": 3 },
            }),
            segments: json!({ "segments": [segment] }),
            jobs: json!({ "jobs": [job("RUNNING"), job("SUCCEEDED")] }),
        }
    }

    #[test]
    fn rates_are_of_what_was_counted_in_between() {
        let begun = Instant::now();
        let later = begun + Duration::from_secs(2);
        let snapshot = Snapshot::between(&sample(begun, 100, 10), &sample(later, 140, 20));
        assert_eq!(snapshot.reads, [20.0, 10.0, 5.0]);
        assert_eq!(snapshot.hit_ratios, Some([20.0 / 35.0, 10.0 / 35.0]));
        assert_eq!((snapshot.objects, snapshot.clients), (5, Some(3)));
        assert_eq!((snapshot.segments.len(), snapshot.jobs.len()), (1, 1));
        // The server was started again.
        let anew = Snapshot::between(&sample(begun, 100, 10), &sample(later, 4, 0));
        assert_eq!(anew.reads, [2.0, 1.0, 0.0]);
        let idle = Snapshot::between(&sample(begun, 100, 10), &sample(later, 100, 10));
        assert_eq!(idle.hit_ratios, None);
    }
}
