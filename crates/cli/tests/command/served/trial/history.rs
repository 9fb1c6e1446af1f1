//! What clients were told, each call with the time of its begin and its end, and what must be true of it.
//!
//! A cache may lose a value, so a miss proves nothing but of what is durable. Of the rest: a read gives all of one put
//! that had begun (I1); it gives none that was replaced or removed, once the leases of the readers are over (I4); a call
//! ends when it should (I7). A call without an outcome may take effect at any time, or never.

use std::collections::BTreeMap;
use std::time::Duration;

/// One key of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Act {
    /// The process that called: what it has changed itself it does not read from where it was.
    pub(super) process: u64,
    pub(super) began: u64,
    /// When it returned, or its process was dead.
    pub(super) ended: u64,
    pub(super) key: u64,
    pub(super) what: What,
    pub(super) told: Told,
}

/// What a call asks for; puts have numbers that are never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Put { put: u64, durable: bool },
    Remove,
    Get,
    Exists,
}

/// What the answer was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Stored,
    Existed,
    Removed,
    Found(u64),
    There,
    Missing,
    Wrong(String),
    /// A refusal or a deadline.
    Unknown(String),
    /// The process ended first.
    Died,
}

/// How long calls and leases last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) lease: Duration,
    /// Deadline of a call, with what the machine may add.
    pub(super) call: Duration,
}

/// The lines of one process, as it said them.
#[derive(Debug, Default)]
pub(super) struct Lines(pub(super) Vec<String>);

impl Lines {
    /// The calls of these lines, of a process that was dead by then.
    pub(super) fn acts(&self, process: u64, dead: u64) -> Vec<Act> {
        let mut acts: Vec<Act> = Vec::new();
        let mut open: BTreeMap<&str, std::ops::Range<usize>> = BTreeMap::new();
        for line in &self.0 {
            let mut words = line.split(' ');
            // A kill may cut the last line off, but none before it.
            match (words.next(), words.next(), words.next(), words.next()) {
                (Some("b"), Some(thread), Some(_), Some(at)) => {
                    let (Ok(began), Some(what)) = (at.parse(), words.next()) else {
                        continue;
                    };
                    let first = acts.len();
                    for key in words {
                        let (key, put) = key.split_once(':').unwrap_or((key, "0"));
                        let (Ok(key), Ok(put)) = (key.parse(), put.parse()) else {
                            continue;
                        };
                        acts.push(Act {
                            process,
                            began,
                            ended: dead,
                            key,
                            what: wanted(what, put),
                            told: Told::Died,
                        });
                    }
                    open.insert(thread, first..acts.len());
                }
                (Some("e"), Some(thread), Some(_), Some(at)) => {
                    let (Ok(ended), Some(open)) = (at.parse(), open.remove(thread)) else {
                        continue;
                    };
                    let results: Vec<&str> = words.collect();
                    for (act, result) in acts[open].iter_mut().zip(results) {
                        act.ended = ended;
                        act.told = answered(result);
                    }
                }
                _ => {}
            }
        }
        acts
    }

    /// How many calls have ended.
    pub(super) fn ended(&self) -> usize {
        self.0.iter().filter(|line| line.starts_with("e ")).count()
    }
}

fn wanted(what: &str, put: u64) -> What {
    match what {
        "upsert" | "create" | "upsert-disk" | "create-disk" => What::Put {
            put,
            durable: what.ends_with("-disk"),
        },
        "remove" => What::Remove,
        "get" => What::Get,
        "exists" => What::Exists,
        _ => panic!("a load does no `{what}`"),
    }
}

fn answered(result: &str) -> Told {
    match result.split_once(':') {
        Some(("found", put)) => put.parse().map_or_else(|_| cut_off(result), Told::Found),
        Some(("wrong", what)) => Told::Wrong(what.to_owned()),
        Some(("failed", code)) => Told::Unknown(code.to_owned()),
        _ => match result {
            "new" => Told::Stored,
            "existed" => Told::Existed,
            "removed" => Told::Removed,
            "there" => Told::There,
            "missing" => Told::Missing,
            _ => cut_off(result),
        },
    }
}

fn cut_off(result: &str) -> Told {
    Told::Unknown(format!("`{result}` was cut off"))
}

impl Act {
    fn put(&self) -> Option<u64> {
        match self.what {
            What::Put { put, .. } => Some(put),
            _ => None,
        }
    }

    /// Whether nothing that was there before it is there since it was acknowledged. A removal that finds nothing has to
    /// remove what a node holds that is away.
    fn replaces(&self) -> bool {
        match self.what {
            What::Put { .. } => self.told == Told::Stored,
            What::Remove => matches!(self.told, Told::Removed | Told::Missing),
            What::Get | What::Exists => false,
        }
    }

    /// Whether it may have changed the key.
    fn may_change(&self) -> bool {
        match self.what {
            What::Put { .. } => self.told != Told::Existed,
            What::Remove => true,
            What::Get | What::Exists => false,
        }
    }
}

/// What is wrong with a history; nothing, if all is well.
pub(super) fn violations(acts: &[Act], bounds: Bounds) -> Vec<String> {
    let mut keys: BTreeMap<u64, Vec<&Act>> = BTreeMap::new();
    for act in acts {
        keys.entry(act.key).or_default().push(act);
    }
    let mut wrong = Vec::new();
    for acts in keys.values() {
        for act in acts {
            let broken = match &act.told {
                Told::Wrong(what) => Some(what.clone()),
                Told::Found(put) => impossible(acts, act, *put, bounds),
                Told::There => {
                    let puts = acts.iter().filter_map(|act| act.put());
                    let mut all = puts.map(|put| impossible(acts, act, put, bounds));
                    // One that can be there is enough.
                    let first = all.next().unwrap_or(Some("nobody has put it".into()));
                    first.filter(|_| all.all(|why| why.is_some()))
                }
                _ => None,
            };
            let broken = broken.into_iter().chain(late(act, bounds));
            wrong.extend(broken.map(|why| format!("{why}: {act:?}")));
        }
    }
    wrong
}

fn late(act: &Act, bounds: Bounds) -> Option<String> {
    let took = Duration::from_nanos(act.ended - act.began);
    (took > bounds.call && act.told != Told::Died).then(|| format!("it took {took:?}"))
}

/// Why a read cannot have given this put, or found it there.
fn impossible(acts: &[&Act], read: &Act, put: u64, bounds: Bounds) -> Option<String> {
    let Some(writer) = acts.iter().find(|act| act.put() == Some(put)) else {
        return Some(format!("no put {put} of this key was begun"));
    };
    if writer.began > read.ended {
        return Some(format!("put {put} had not begun"));
    }
    if writer.told == Told::Existed {
        return Some(format!("put {put} was not stored: there was a value"));
    }
    let lease = bounds.lease.as_nanos() as u64;
    let over = acts.iter().find(|act| {
        // What the process has changed itself, and what the master is asked, no lease covers.
        let covered = act.process != read.process && read.what != What::Exists;
        let until = act.ended + if covered { lease } else { 0 };
        // The end of a put that was given up may arrive behind a removal, but not behind a newer put.
        let certain = writer.told == Told::Stored || act.told == Told::Stored;
        act.replaces() && certain && act.began > writer.ended && until < read.began
    });
    over.map(|act| format!("put {put} was over at {}: {act:?}", act.ended))
}

/// Puts that were acknowledged as durable and that nothing may have ended since: a read of their keys must find them.
pub(super) fn durable(acts: &[Act]) -> BTreeMap<u64, u64> {
    let mut keys: BTreeMap<u64, Vec<&Act>> = BTreeMap::new();
    for act in acts.iter().filter(|act| act.may_change()) {
        keys.entry(act.key).or_default().push(act);
    }
    let last = |acts: Vec<&Act>| {
        let newest = acts.iter().max_by_key(|act| act.began)?;
        // A removal without an answer may still arrive, a put that was given up may not.
        let over = acts.iter().all(|act| {
            let settled = act.put().is_some() || act.replaces();
            act.began == newest.began || (settled && act.ended < newest.began)
        });
        match newest.what {
            What::Put { put, durable: true } if newest.told == Told::Stored && over => Some(put),
            _ => None,
        }
    };
    let found = keys.into_iter().map(|(key, acts)| (key, last(acts)));
    found.filter_map(|(key, put)| Some((key, put?))).collect()
}
