//! From samples to what panes show, in words and shares. Nothing here knows of a terminal.

mod told;

use std::collections::VecDeque;

use serde_json::Value;

use self::told::{
    BYTES, Between, READS, array, chains, counted, hits, nodes, rules, text, tiers, tiles, times,
};
use super::figures::seconds;
use super::sample::{Sample, number};

/// Samples over which rates are means, as on the page; those of curves are over one.
const MEAN: usize = 5;
/// Points that curves keep.
const POINTS_MAX: usize = 600;
/// Decisions that the list keeps.
const LATEST_MAX: usize = 200;

/// What a thing is to its reader, and hence its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Quiet,
    Good,
    Fair,
    Bad,
    Memory,
    Ssd,
    Clients,
}

/// What happened between two samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    /// Seconds since the first sample.
    pub(super) at_s: f64,
    /// Of all reads, those served from memory and from SSD; none without reads.
    pub(super) hits: Option<[f64; 2]>,
    /// Bytes in a second: from memory, from SSD, put.
    pub(super) bytes: [f64; 3],
}

/// The last samples of one life of a server, and what is remembered beyond it.
#[derive(Default)]
pub(super) struct History {
    samples: VecDeque<Sample>,
    points: VecDeque<Point>,
    /// The latest first.
    decisions: VecDeque<Decision>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct View {
    pub(super) address: String,
    pub(super) version: String,
    pub(super) epoch: u64,
    /// Why requests are not served.
    pub(super) not_ready: Option<String>,
    /// Clients that have a link; none where there is one process alone.
    pub(super) clients: Option<u64>,
    /// The worst first.
    pub(super) warnings: Vec<Warning>,
    pub(super) tiles: Vec<(&'static str, String)>,
    /// All memory, and all SSDs.
    pub(super) tiers: Vec<Fill>,
    pub(super) nodes: Vec<Node>,
    pub(super) points: Vec<Point>,
    pub(super) hits: Option<[f64; 2]>,
    /// Bytes in a second: from memory, from SSD, put; none before two samples.
    pub(super) bytes: Option<[f64; 3]>,
    pub(super) counted: Vec<Counted>,
    /// The rules that evictions follow, a sentence for each tier.
    pub(super) rules: Vec<String>,
    /// Decisions that were made; those of `latest` are a part of them.
    pub(super) made: u64,
    /// The latest first.
    pub(super) latest: Vec<Decision>,
    pub(super) times: Vec<Timed>,
    pub(super) chains: Vec<Chain>,
    pub(super) tenants: Vec<Holder>,
    /// Tenants that hold less than those.
    pub(super) tenants_left: u64,
    /// The latest first.
    pub(super) jobs: Vec<Job>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Warning {
    pub(super) tone: Tone,
    pub(super) what: String,
    pub(super) action: String,
}

/// How full something is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fill {
    pub(super) name: String,
    pub(super) tone: Tone,
    /// From 0 to 1; none where nothing limits it.
    pub(super) share: Option<f64>,
    /// Where eviction ends and where it begins.
    pub(super) marks: Option<[f64; 2]>,
    /// Used bytes of all.
    pub(super) words: String,
}

/// A node and its segments; a store that is alone is one node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) number: u64,
    pub(super) tone: Tone,
    /// Whether it has a link.
    pub(super) link: String,
    pub(super) address: String,
    pub(super) fingerprint: Option<String>,
    pub(super) segments: Vec<Fill>,
}

/// How often something was decided.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Counted {
    pub(super) words: &'static str,
    /// Whether it says why the line above did not happen.
    pub(super) is_reason: bool,
    pub(super) now: String,
    pub(super) all: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Decision {
    number: u64,
    /// The server's time when it was made.
    at_s: f64,
    pub(super) tone: Tone,
    pub(super) words: String,
    pub(super) ago: String,
    /// Key, tenant, length and segment.
    pub(super) subject: String,
    pub(super) reason: String,
}

/// How long something took.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Timed {
    pub(super) words: &'static str,
    pub(super) is_part: bool,
    /// p50, p95, p99, p99.9.
    pub(super) quantiles: [String; 4],
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Chain {
    pub(super) key: String,
    pub(super) tenant: Option<String>,
    pub(super) reads: String,
    pub(super) share: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Holder {
    pub(super) name: String,
    pub(super) objects: String,
    pub(super) tiers: [Fill; 2],
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Job {
    pub(super) title: String,
    pub(super) tone: Tone,
    pub(super) status: String,
    pub(super) progress: Fill,
    /// Keys that failed, and why.
    pub(super) errors: Option<String>,
}

impl History {
    /// Takes a sample in; whether it is another one than the last.
    pub(super) fn push(&mut self, sample: Sample) -> bool {
        if let Some(before) = self.samples.back() {
            if sample.is(before) {
                return false;
            }
            if !sample.follows(before) {
                // What another life counted, and the numbers of its decisions, began anew.
                self.samples.clear();
                self.decisions.clear();
            }
        }
        self.samples.push_back(sample);
        if self.samples.len() > MEAN + 1 {
            self.samples.pop_front();
        }
        self.remember();
        true
    }

    fn remember(&mut self) {
        if let [.., before, now] = self.samples.make_contiguous() {
            let seconds = now.age() - before.age();
            let between = Between { before, now };
            let point = Point {
                at_s: self.points.back().map_or(0.0, |point| point.at_s) + seconds,
                hits: hits(READS.map(|path| between.rate(path))),
                bytes: BYTES.map(|path| between.rate(path)),
            };
            self.points.push_back(point);
            if self.points.len() > POINTS_MAX {
                self.points.pop_front();
            }
        }
        let Some(now) = self.samples.back() else {
            return;
        };
        let last = self.decisions.front().map_or(0, |decision| decision.number);
        for told in array(&now.value()["decisions"]["latest"]) {
            let decision = Decision::told(told, now.age());
            let number = decision.number;
            match self
                .decisions
                .iter_mut()
                .find(|known| known.number == number)
            {
                // The server's own clock goes before ours: that of a replay is the trace's.
                Some(known) => known.at_s = decision.at_s,
                None if number > last => self.decisions.push_front(decision),
                None => {}
            }
        }
        self.decisions.truncate(LATEST_MAX);
    }

    /// What there is to be seen now; nothing before the first sample.
    pub(super) fn view(&self) -> Option<View> {
        let now = self.samples.back()?;
        let first = self.samples.front().filter(|_| self.samples.len() > 1);
        let mean = first.map(|before| Between { before, now });
        let sample = now.value();
        let stats = &sample["stats"];
        let age = now.age();
        let latest = self.decisions.iter().map(|decision| Decision {
            ago: format!("{} ago", seconds((age - decision.at_s).max(0.0))),
            ..decision.clone()
        });
        Some(View {
            address: text(&sample["address"]),
            version: text(&sample["version"]),
            epoch: number(sample, "/epoch"),
            not_ready: (sample["ready"] == false).then(|| text(&sample["not_ready"])),
            clients: stats.pointer("/nodes/clients").and_then(Value::as_u64),
            warnings: array(&sample["warnings"]).map(Warning::told).collect(),
            tiles: tiles(stats, mean.as_ref()),
            tiers: tiers(sample),
            nodes: nodes(sample),
            points: self.points.iter().copied().collect(),
            hits: mean
                .as_ref()
                .and_then(|mean| hits(READS.map(|path| mean.rate(path)))),
            bytes: mean.as_ref().map(|mean| BYTES.map(|path| mean.rate(path))),
            counted: counted(stats, mean.as_ref()),
            rules: rules(stats),
            made: number(sample, "/decisions/made"),
            latest: latest.collect(),
            times: times(stats),
            chains: chains(&sample["hottest"]),
            tenants: array(&sample["quotas"]).map(Holder::told).collect(),
            tenants_left: number(sample, "/tenants_left"),
            jobs: array(&sample["jobs"]).rev().map(Job::told).collect(),
        })
    }
}

#[cfg(test)]
mod tests;
