use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::http::Source;

/// How long a sample may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What an admin address tells at one moment: the sample that pages are told too.
pub(super) struct Sample(Value);

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
    /// Nodes whose links proved keys, and the fingerprints of those.
    pub(super) keys: Vec<(u64, String)>,
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
    /// Shares of it at which eviction ends and begins; none from servers that do not say.
    pub(super) watermarks: Option<[f64; 2]>,
}

impl Sample {
    pub(super) fn take(source: &Source) -> Result<Self> {
        let sample = source.get("/api/v1/sample", Instant::now() + PATIENCE)?;
        Ok(Self(sample))
    }

    /// Whether it is the one that was taken before: the next one was not due yet.
    pub(super) fn is(&self, before: &Self) -> bool {
        self.life() == before.life() && self.age() == before.age()
    }

    /// Whether it is of the same life of the server, and not of an earlier moment.
    pub(super) fn follows(&self, before: &Self) -> bool {
        self.life() == before.life() && before.age() <= self.age()
    }

    /// All that was told.
    pub(super) fn value(&self) -> &Value {
        &self.0
    }

    fn life(&self) -> u64 {
        number(&self.0, "/epoch")
    }

    /// Seconds since the server began.
    pub(super) fn age(&self) -> f64 {
        self.0["time_s"].as_f64().unwrap_or(0.0)
    }
}

impl Snapshot {
    pub(super) fn between(before: &Sample, after: &Sample) -> Self {
        // Where the server began anew, it has counted since then.
        let since = match after.follows(before) {
            true => before.age(),
            false => 0.0,
        };
        let time = after.age() - since;
        let (earlier, sample) = (&before.0, &after.0);
        let rate = |path: &str| rate(&earlier["stats"], &sample["stats"], path, time);
        let reads = ["/reads/memory_hits", "/reads/ssd_hits", "/reads/misses"].map(rate);
        let all: f64 = reads.iter().sum();
        let jobs = sample["jobs"].as_array().cloned().unwrap_or_default();
        let segments = sample["segments"].as_array();
        let clients = sample.pointer("/stats/nodes/clients");
        Self {
            objects: number(sample, "/stats/objects"),
            clients: clients.and_then(Value::as_u64),
            hit_ratios: (all > 0.0).then(|| [reads[0] / all, reads[1] / all]),
            reads,
            read_bytes: rate("/reads/memory_bytes") + rate("/reads/ssd_bytes"),
            puts: [rate("/puts/stored"), rate("/puts/bytes")],
            evictions: rate("/evictions/count") + rate("/ssd_evictions/count"),
            offloads: rate("/offloads/completed"),
            promotions: rate("/promotions/completed"),
            segments: segments.into_iter().flatten().map(line).collect(),
            keys: keys(sample),
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
                "low_watermark": line.watermarks.map(|[low, _]| low),
                "high_watermark": line.watermarks.map(|[_, high]| high),
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
            "keys": self.keys.iter().map(|(node, print)| json!({ "node": node, "fingerprint": print })).collect::<Vec<_>>(),
            "jobs": self.jobs,
        })
    }
}

/// The number at a path; zero where there is none.
pub(super) fn number(value: &Value, path: &str) -> u64 {
    value.pointer(path).and_then(Value::as_u64).unwrap_or(0)
}

fn keys(sample: &Value) -> Vec<(u64, String)> {
    let nodes = sample
        .pointer("/stats/nodes/nodes")
        .and_then(Value::as_array);
    let key = |node: &Value| {
        let print = node["fingerprint"].as_str()?;
        Some((number(node, "/node"), print.to_owned()))
    };
    nodes.into_iter().flatten().filter_map(key).collect()
}

/// How fast a counter grew. One that is smaller than before began anew.
fn rate(before: &Value, after: &Value, path: &str, seconds: f64) -> f64 {
    let (before, after) = (number(before, path), number(after, path));
    let grown = after.checked_sub(before).unwrap_or(after);
    match seconds > 0.0 {
        true => grown as f64 / seconds,
        false => 0.0,
    }
}

fn line(segment: &Value) -> SegmentLine {
    let text = |name: &str| segment[name].as_str().unwrap_or_default().to_owned();
    let [low, high] = ["low_watermark", "high_watermark"].map(|mark| segment[mark].as_f64());
    SegmentLine {
        watermarks: low.zip(high).map(|(low, high)| [low, high]),
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

    /// A sample as a server would tell it.
    pub(in crate::top) fn told(value: Value) -> Sample {
        Sample(value)
    }

    pub(in crate::top) fn sample(time_s: f64, hits: u64, misses: u64) -> Sample {
        let segment = json!({
            "name": "memory-300", "node": 300, "tier": "memory", "presence": "here", "status": "OK",
            "used_bytes": 1 << 20, "capacity_bytes": 4 << 20,
            "low_watermark": 0.25, "high_watermark": 0.5,
        });
        let job = |status: &str| json!({ "job_id": "7", "status": status });
        Sample(json!({
            "epoch": 7,
            "time_s": time_s,
            "stats": {
                "objects": 5,
                "reads": { "memory_hits": hits, "ssd_hits": hits / 2, "misses": misses },
                "nodes": { "clients": 3, "nodes": [{ "node": 4, "fingerprint": "6668-7aad-f862-bd77" }, { "node": 5, "fingerprint": null }] },
            },
            "segments": [segment],
            "jobs": [job("RUNNING"), job("SUCCEEDED")],
        }))
    }

    #[test]
    fn rates_are_of_what_was_counted_in_between() {
        let (first, next) = (sample(10.0, 100, 10), sample(12.0, 140, 20));
        let snapshot = Snapshot::between(&first, &next);
        assert_eq!(snapshot.reads, [20.0, 10.0, 5.0]);
        assert_eq!(snapshot.hit_ratios, Some([20.0 / 35.0, 10.0 / 35.0]));
        assert_eq!((snapshot.objects, snapshot.clients), (5, Some(3)));
        assert_eq!((snapshot.segments.len(), snapshot.jobs.len()), (1, 1));
        assert_eq!(snapshot.keys, [(4, "6668-7aad-f862-bd77".to_owned())]);
        let told = &snapshot.json()["segments"][0];
        assert_eq!(
            (
                told["low_watermark"].as_f64(),
                told["high_watermark"].as_f64()
            ),
            (Some(0.25), Some(0.5))
        );
        let told = &snapshot.json()["keys"];
        assert_eq!(
            told,
            &json!([{ "node": 4, "fingerprint": "6668-7aad-f862-bd77" }])
        );
        // The server was started again.
        let anew = Snapshot::between(&first, &sample(2.0, 4, 0));
        assert_eq!(anew.reads, [2.0, 1.0, 0.0]);
        let mut other = sample(16.0, 4, 0);
        other.0["epoch"] = json!(8);
        assert_eq!(Snapshot::between(&first, &other).reads, [0.25, 0.125, 0.0]);
        let idle = Snapshot::between(&first, &sample(12.0, 100, 10));
        assert_eq!(idle.hit_ratios, None);
        assert!(
            first.is(&sample(10.0, 100, 10)) && !next.is(&first) && !other.is(&sample(16.0, 4, 0))
        );
    }
}
