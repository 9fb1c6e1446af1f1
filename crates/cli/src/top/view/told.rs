//! What a server tells of each part, in words.

use serde_json::Value;

use super::{Chain, Counted, Decision, Fill, Holder, Job, Node, Timed, Tone, Warning};
use crate::printable::printable;
use crate::top::figures::{byte_rate, bytes, count, micros, percent, rate, seconds};
use crate::top::sample::{Sample, number};

/// The first time of a return curve that is at least this long is told.
const HORIZON_S: f64 = 600.0;

/// Lines of the funnels: words, the counters that are added up, and whether it is a reason of the line above. The page has
/// the same.
pub(super) const COUNTED: &[(&str, &[&str], bool)] = &[
    ("Promoted into memory", &["promotions.completed"], false),
    (
        "not: read too rarely",
        &["promotions.rejected_frequency"],
        true,
    ),
    (
        "not: worth less than what memory holds",
        &["promotions.rejected_index"],
        true,
    ),
    (
        "not: memory is too full",
        &["promotions.rejected_watermark"],
        true,
    ),
    (
        "not: too many under way",
        &["promotions.rejected_cap"],
        true,
    ),
    (
        "not: failed, late or cancelled",
        &[
            "promotions.failed",
            "promotions.expired",
            "promotions.cancelled",
        ],
        true,
    ),
    (
        "Another replica of what is read much",
        &["replication.completed"],
        false,
    ),
    ("would have been made", &["replication.observed"], true),
    ("not: it has enough", &["replication.rejected_enough"], true),
    (
        "not: no other node has room",
        &["replication.rejected_room"],
        true,
    ),
    (
        "not: the quota of the tenant is used up",
        &["replication.rejected_quota"],
        true,
    ),
    (
        "not: too many under way, gone or failed",
        &[
            "replication.rejected_queue",
            "replication.rejected_unready",
            "replication.failed",
        ],
        true,
    ),
    ("Written to SSD", &["offloads.completed"], false),
    (
        "not: the SSD would evict it first",
        &["offloads.skipped_not_worth"],
        true,
    ),
    ("not: too many under way", &["offloads.skipped_full"], true),
    ("not: no SSD takes it", &["offloads.skipped_no_disk"], true),
    (
        "not: the SSD is failing",
        &["offloads.skipped_failing"],
        true,
    ),
    (
        "not: failed, late or cancelled",
        &["offloads.failed", "offloads.expired", "offloads.cancelled"],
        true,
    ),
    ("Evicted from memory", &["evictions.count"], false),
    ("Evicted from SSD", &["ssd_evictions.count"], false),
    ("Puts stored", &["puts.stored"], false),
    ("not: the key was there", &["puts.existed"], true),
    ("not: refused or failed", &["puts.refused"], true),
    ("Puts that waited for space", &["puts.waited"], false),
];

/// What is timed: calls, and parts of reads.
const CALLS: [(&str, &str); 3] = [
    ("memory", "read from memory"),
    ("ssd", "read from SSD"),
    ("put", "put"),
];
const PARTS: [(&str, &str); 4] = [
    ("look_up", "look-up of a call"),
    ("queue", "wait before the SSD"),
    ("ssd", "SSD"),
    ("wire", "way to a client, from SSD"),
];

pub(super) const READS: [&str; 3] = ["reads.memory_hits", "reads.ssd_hits", "reads.misses"];
pub(super) const BYTES: [&str; 3] = ["reads.memory_bytes", "reads.ssd_bytes", "puts.bytes"];

/// Two samples of one life.
pub(super) struct Between<'a> {
    pub(super) before: &'a Sample,
    pub(super) now: &'a Sample,
}

impl Between<'_> {
    /// How fast a counter of the statistics grew, in a second.
    pub(super) fn rate(&self, path: &str) -> f64 {
        let seconds = self.now.age() - self.before.age();
        let grown = counter(&self.now.value()["stats"], path)
            .saturating_sub(counter(&self.before.value()["stats"], path));
        match seconds > 0.0 {
            true => grown as f64 / seconds,
            false => 0.0,
        }
    }
}

/// The counter at a path with points.
fn counter(stats: &Value, path: &str) -> u64 {
    number(stats, &format!("/{}", path.replace('.', "/")))
}

/// The shares of reads that memory and SSD served.
pub(super) fn hits([memory, ssd, missed]: [f64; 3]) -> Option<[f64; 2]> {
    let all = memory + ssd + missed;
    (all > 0.0).then(|| [memory / all, ssd / all])
}

pub(super) fn array(value: &Value) -> std::slice::Iter<'_, Value> {
    value
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
        .iter()
}

fn float(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// Text of others, which no terminal obeys; nothing where there is none.
pub(super) fn text(value: &Value) -> String {
    printable(value.as_str().unwrap_or_default())
}

pub(super) fn tiles(stats: &Value, mean: Option<&Between<'_>>) -> Vec<(&'static str, String)> {
    let speed = |paths: &[&str], shown: fn(f64) -> String| match mean {
        Some(mean) => shown(paths.iter().map(|path| mean.rate(path)).sum()),
        None => "–".to_owned(),
    };
    let served = mean.and_then(|mean| hits(READS.map(|path| mean.rate(path))));
    vec![
        ("objects", count(number(stats, "/objects") as f64)),
        ("reads", speed(&READS, rate)),
        (
            "hits",
            served.map_or_else(|| "–".to_owned(), |[memory, ssd]| percent(memory + ssd)),
        ),
        ("bytes read", speed(&BYTES[..2], byte_rate)),
        ("puts", speed(&["puts.stored"], rate)),
        ("bytes put", speed(&BYTES[2..], byte_rate)),
    ]
}

impl Fill {
    /// So many bytes of so many; without a limit there is no share.
    fn of(name: String, tone: Tone, used: u64, limit: Option<u64>) -> Self {
        let share = |limit: u64| (used as f64 / limit as f64).min(1.0);
        let held = bytes(used as f64);
        Self {
            name,
            tone,
            share: limit.filter(|limit| *limit > 0).map(share),
            marks: None,
            words: match limit {
                Some(limit) => format!("{held} of {}", bytes(limit as f64)),
                None => format!("{held}, no quota"),
            },
        }
    }
}

fn tone_of_tier(tier: &Value) -> Tone {
    match tier == "ssd" {
        true => Tone::Ssd,
        false => Tone::Memory,
    }
}

/// All memory, and all SSDs; the marks are those that all segments of the tier have.
pub(super) fn tiers(sample: &Value) -> Vec<Fill> {
    let fill = |(tier, name, tone): (&str, &str, Tone)| {
        let held = &sample["stats"][tier];
        if held.is_null() {
            return None;
        }
        let (used, all) = (number(held, "/used_bytes"), number(held, "/capacity_bytes"));
        let mut marks = array(&sample["segments"])
            .filter(|segment| segment["tier"] == tier)
            .map(marks);
        let first = marks.next().flatten();
        Some(Fill {
            marks: first.filter(|_| marks.all(|other| other == first)),
            ..Fill::of(name.to_owned(), tone, used, Some(all))
        })
    };
    let all = [
        ("memory", "memory", Tone::Memory),
        ("ssd", "SSD", Tone::Ssd),
    ];
    all.into_iter().filter_map(fill).collect()
}

fn marks(segment: &Value) -> Option<[f64; 2]> {
    let [low, high] = ["low_watermark", "high_watermark"].map(|mark| segment[mark].as_f64());
    Some([low?, high?])
}

pub(super) fn nodes(sample: &Value) -> Vec<Node> {
    let known = sample.pointer("/stats/nodes/nodes").unwrap_or(&Value::Null);
    let mut nodes: Vec<Node> = Vec::new();
    for segment in array(&sample["segments"]) {
        let number = number(segment, "/node");
        let at = nodes.iter().position(|node| node.number == number);
        let at = at.unwrap_or_else(|| {
            let about = array(known).find(|node| node["node"] == number);
            nodes.push(Node::told(number, segment, about.unwrap_or(&Value::Null)));
            nodes.len() - 1
        });
        nodes[at].segments.push(segment_fill(segment, number));
    }
    nodes
}

impl Node {
    pub(super) fn told(number: u64, segment: &Value, about: &Value) -> Self {
        let (tone, link) = match segment["presence"].as_str() {
            Some("here") => (Tone::Good, "has a link".to_owned()),
            Some("away") => (Tone::Fair, "lost its link".to_owned()),
            Some("hidden") => (Tone::Bad, "has no link".to_owned()),
            _ => (Tone::Bad, text(&segment["presence"])),
        };
        let address = match about["data_address"].as_str() {
            Some(address) => printable(address),
            None => text(&segment["endpoint"]),
        };
        Self {
            number,
            tone,
            link,
            address,
            fingerprint: about["fingerprint"].as_str().map(printable),
            segments: Vec::new(),
        }
    }
}

fn segment_fill(segment: &Value, node: u64) -> Fill {
    // Its line stands below that of its node.
    let name = text(&segment["name"]).replace(&format!("-{node}"), "");
    let name = match segment["status"].as_str() {
        Some(status @ ("DRAINING" | "DRAINED")) => format!("{name}, {}", status.to_lowercase()),
        _ => name,
    };
    let (used, all) = (
        number(segment, "/used_bytes"),
        number(segment, "/capacity_bytes"),
    );
    Fill {
        marks: marks(segment),
        ..Fill::of(name, tone_of_tier(&segment["tier"]), used, Some(all))
    }
}

impl Warning {
    pub(super) fn told(told: &Value) -> Self {
        Self {
            tone: match told["severity"].as_str() {
                Some("critical") => Tone::Bad,
                Some("warning") => Tone::Fair,
                _ => Tone::Plain,
            },
            what: text(&told["what"]),
            action: text(&told["action"]),
        }
    }
}

pub(super) fn counted(stats: &Value, mean: Option<&Between<'_>>) -> Vec<Counted> {
    let of_ssd = ["promotions.", "offloads.", "ssd_evictions."];
    let is_shown = |paths: &[&str]| {
        !stats["ssd"].is_null() || !of_ssd.iter().any(|group| paths[0].starts_with(group))
    };
    let shown = COUNTED.iter().filter(|(_, paths, _)| is_shown(paths));
    shown
        .map(|&(words, paths, is_reason)| Counted {
            words,
            is_reason,
            now: match mean {
                Some(mean) => rate(paths.iter().map(|path| mean.rate(path)).sum()),
                None => "–".to_owned(),
            },
            all: count(paths.iter().map(|path| counter(stats, path) as f64).sum()),
        })
        .collect()
}

/// What evictions of each tier follow, with the hit rates of the simulated caches as means over its segments.
pub(super) fn rules(stats: &Value) -> Vec<String> {
    let of_tier = |(tier, name): (&str, &str)| {
        let segments: Vec<&Value> = array(&stats["eviction_rules"])
            .filter(|rule| rule["tier"] == tier)
            .collect();
        let mut followed: Vec<String> = segments.iter().map(|it| text(&it["followed"])).collect();
        followed.sort();
        followed.dedup();
        let mut rates: Vec<(String, Vec<f64>)> = Vec::new();
        for pair in segments.iter().flat_map(|it| array(&it["hit_rates"])) {
            let (rule, rate) = (text(&pair[0]), float(&pair[1]));
            match rates.iter_mut().find(|(known, _)| *known == rule) {
                Some((_, known)) => known.push(rate),
                None => rates.push((rule, vec![rate])),
            }
        }
        let rates: Vec<String> = rates
            .into_iter()
            .map(|(rule, rates)| {
                let mean = rates.iter().sum::<f64>() / rates.len() as f64;
                format!("{rule} {}", percent(mean))
            })
            .collect();
        (!segments.is_empty()).then(|| {
            let (followed, rates) = (followed.join(", "), rates.join(", "));
            format!("Eviction from {name} follows {followed}; simulated caches hit: {rates}.")
        })
    };
    let tiers = [("memory", "memory"), ("ssd", "SSD")];
    tiers.into_iter().filter_map(of_tier).collect()
}

impl Decision {
    pub(super) fn told(told: &Value, sampled_s: f64) -> Self {
        let tier = match told["tier"].as_str() {
            Some("ssd") => "SSD".to_owned(),
            _ => text(&told["tier"]),
        };
        let (tone, words) = match told["decision"].as_str() {
            Some("evicted") => (Tone::Fair, format!("Evicted from {tier}")),
            Some("offloaded") => (Tone::Ssd, "Written to SSD".to_owned()),
            Some("not_offloaded") => (Tone::Quiet, "Not written to SSD".to_owned()),
            Some("promoted") => (Tone::Memory, "Promoted into memory".to_owned()),
            Some("not_promoted") => (Tone::Quiet, "Not promoted".to_owned()),
            _ => (Tone::Quiet, text(&told["decision"])),
        };
        let whose = match told["tenant"].as_str() {
            None | Some("default") => String::new(),
            Some(tenant) => format!(" of {}", printable(tenant)),
        };
        let length = bytes(number(told, "/bytes") as f64);
        Self {
            number: number(told, "/number"),
            at_s: sampled_s - float(&told["age_s"]),
            tone,
            words,
            ago: String::new(),
            subject: format!(
                "{}{whose}, {length}, segment {}",
                text(&told["key"]),
                number(told, "/segment")
            ),
            reason: reason(&text(&told["why"]), &told["learned"]),
        }
    }
}

/// The cause, and what was known of the object: class, age, expected return, worth.
fn reason(why: &str, learned: &Value) -> String {
    if learned.is_null() {
        return format!("{why}.");
    }
    let mut parts = vec![
        text(&learned["class"]),
        format!("last read {} ago", seconds(float(&learned["age_s"]))),
    ];
    let mut curve = array(&learned["returns"]);
    let last = curve.clone().next_back();
    let point = curve.find(|point| float(&point["within_s"]) >= HORIZON_S);
    if let Some(point) = point.or(last) {
        let (chance, within) = (float(&point["chance"]), float(&point["within_s"]));
        parts.push(format!(
            "returns with {} within {}",
            percent(chance),
            seconds(within)
        ));
    }
    let [index, lowest] = ["index", "lowest_index"].map(|name| hourly(float(&learned[name])));
    parts.push(format!(
        "worth {index} hits an hour, what goes next {lowest}"
    ));
    if let Some(rule) = learned["rule"].as_str() {
        parts.push(format!("rule {}", printable(rule)));
    }
    format!("{why}: {}.", parts.join("; "))
}

/// Hits an hour, from hits a second: two figures of small ones.
fn hourly(index: f64) -> String {
    let hour = index * 3600.0;
    if hour >= 99.5 {
        return count(hour);
    }
    let digits = match hour {
        hour if hour >= 9.95 => 0,
        hour if hour >= 0.995 => 1,
        hour if hour >= 0.0995 => 2,
        _ => 3,
    };
    format!("{hour:.digits$}")
}

pub(super) fn times(stats: &Value) -> Vec<Timed> {
    let timed = |group: &str, (name, words): (&str, &'static str), is_part: bool| {
        let measured = &stats[group][name];
        let quantile = |field: &str| micros(float(&measured[field]));
        (number(measured, "/count") > 0).then(|| Timed {
            words,
            is_part,
            quantiles: ["p50_us", "p95_us", "p99_us", "p999_us"].map(quantile),
        })
    };
    let calls = CALLS.into_iter().map(|call| timed("latency", call, false));
    let parts = PARTS.into_iter().map(|part| timed("phases", part, true));
    calls.chain(parts).flatten().collect()
}

pub(super) fn chains(hottest: &Value) -> Vec<Chain> {
    let all = float(&hottest["reads"]);
    array(&hottest["chains"])
        .map(|chain| Chain {
            key: text(&chain["key"]),
            tenant: chain["tenant"]
                .as_str()
                .filter(|tenant| *tenant != "default")
                .map(printable),
            reads: count(float(&chain["reads"])),
            share: match all > 0.0 {
                true => percent(float(&chain["reads"]) / all),
                false => "–".to_owned(),
            },
        })
        .collect()
}

impl Holder {
    pub(super) fn told(quota: &Value) -> Self {
        let tier = |name: &str, tone, tier: &str| {
            let used = number(quota, &format!("/{tier}_bytes"));
            let limit = quota[format!("{tier}_quota_bytes")].as_u64();
            Fill::of(name.to_owned(), tone, used, limit)
        };
        Self {
            name: text(&quota["tenant_id"]),
            objects: format!("{} objects", count(number(quota, "/objects") as f64)),
            tiers: [
                tier("memory", Tone::Memory, "memory"),
                tier("SSD", Tone::Ssd, "ssd"),
            ],
        }
    }
}

impl Job {
    pub(super) fn told(job: &Value) -> Self {
        let status = text(&job["status"]);
        let [carried, left] =
            ["/migrated_bytes", "/left_bytes"].map(|name| number(job, name) as f64);
        let failed = match number(job, "/failed_units") {
            0 => String::new(),
            failed => format!(", {} failed", count(failed as f64)),
        };
        let share = match (carried + left > 0.0, status.as_str()) {
            (true, _) => carried / (carried + left),
            (false, "RUNNING") => 0.0,
            (false, _) => 1.0,
        };
        let errors: Vec<String> = array(&job["errors"])
            .map(|error| format!("{}: {}", text(&error["key"]), text(&error["error_name"])))
            .collect();
        Self {
            title: format!("{}: {}", text(&job["job_id"]), work(&job["work"])),
            tone: match status.as_str() {
                "RUNNING" => Tone::Fair,
                "SUCCEEDED" => Tone::Good,
                "FAILED" => Tone::Bad,
                _ => Tone::Plain,
            },
            status: status.to_lowercase(),
            progress: Fill {
                name: String::new(),
                tone: Tone::Memory,
                share: Some(share),
                marks: None,
                words: format!(
                    "{} in {} values{failed}, {} left, {}",
                    bytes(carried),
                    count(number(job, "/succeeded_units") as f64),
                    bytes(left),
                    seconds(number(job, "/age_ms") as f64 / 1e3)
                ),
            },
            errors: (!errors.is_empty()).then(|| errors.join("; ")),
        }
    }
}

fn work(work: &Value) -> String {
    let all = |names: &Value| {
        let names: Vec<String> = array(names).map(text).collect();
        names.join(", ")
    };
    match work["type"].as_str() {
        Some("drain") => format!("drain {}", all(&work["segments"])),
        Some("copy") => format!("copy {} to {}", text(&work["key"]), all(&work["targets"])),
        _ => format!("move {} to {}", text(&work["key"]), text(&work["target"])),
    }
}
