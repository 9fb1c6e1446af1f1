//! The end of a trial: its history is checked, what is durable is read, and the books are at rest and empty, also when all
//! processes were killed and began again.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;
use slackwater_remote::{CallOptions, Client, GetOptions, RemoveOptions};

use super::super::until;
use super::cluster::{Cluster, LEASE, LOADS, MASTER, NODES, PROBE, QUOTA, SLACK};
use super::history::{Act, Bounds, Told, What, durable, violations};
use super::load::{DEADLINE, nanos, tenant_of};
use super::value;
use crate::place::PATIENCE;

/// Memory of a master or a node at the most: what is configured, with the buffers of a node, the program and its threads.
const PEAK_MAX: u64 = 96 << 20;

/// A call for the tenant of a key.
fn called_for(key: u64, deadline: Duration) -> CallOptions {
    CallOptions {
        tenant: tenant_of(key),
        deadline: Some(deadline),
        ..CallOptions::default()
    }
}

impl Cluster {
    /// Checks the history, what is durable, and the books; nothing is left when everything was removed.
    pub(super) fn settle(&mut self) {
        self.end_load();
        assert!(self.acts.len() > 100, "{} keys in calls", self.acts.len());
        self.announced();
        let peaks = self.memory_peaks();
        let few = peaks.iter().all(|peak| *peak <= PEAK_MAX);
        assert!(few, "seed {}: {peaks:?} bytes of memory (I8)", self.seed);
        self.give_back();
        self.read_all();
        self.recounted();
        self.read_all();
        let bounds = Bounds {
            lease: LEASE,
            call: DEADLINE + SLACK,
        };
        let mut wrong = violations(&self.acts, bounds);
        wrong.truncate(5);
        assert!(
            wrong.is_empty(),
            "seed {}: {wrong:#?}\n{}",
            self.seed,
            self.logs()
        );
        let operator = self.told(PROBE, "root");
        let client = self.network.on(PROBE, || operator.connect());
        for first in [0, value::RIVAL] {
            let force = RemoveOptions {
                force: true,
                call: called_for(first, DEADLINE),
            };
            let removed = self.network.on(PROBE, || client.remove_all(&force));
            assert!(removed.is_ok(), "{removed:?}");
        }
        self.books(true);
        // What the master counts is one thing, and what the nodes have on their SSDs another: none of it comes back.
        (MASTER..=NODES).for_each(|host| self.kill(host));
        (MASTER..=NODES).for_each(|host| self.begin(host));
        self.announced();
        self.books(true);
    }

    /// Waits until processes have no more descriptors than they began with: what dead and silent peers held was given back
    /// (I8).
    fn give_back(&self) {
        self.at_rest(|| {
            let open = self.open_descriptors();
            let mut both = open.iter().zip(&self.descriptors);
            let few = both.all(|(open, first)| open <= first);
            few.then_some(()).ok_or_else(|| {
                let first = &self.descriptors;
                format!("{open:?} descriptors are open, {first:?} were")
            })
        });
    }

    /// Looks until all is at rest; what was seen until then says what is not.
    fn at_rest<T>(&self, mut look: impl FnMut() -> Result<T, String>) -> T {
        let begun = Instant::now();
        loop {
            let seen = match look() {
                Ok(found) => return found,
                Err(seen) => seen,
            };
            assert!(
                begun.elapsed() < PATIENCE,
                "seed {}: never at rest: {seen}\n{}",
                self.seed,
                self.logs()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until every node is there, and has announced what it has.
    fn announced(&self) {
        until("the nodes have announced everything", || {
            let stats = self.json("/api/v1/stats");
            let here = |node: &Value| node["presence"] == "here";
            let nodes = stats["nodes"]["nodes"].as_array().unwrap();
            nodes.len() == NODES && nodes.iter().all(here) && stats["nodes"]["partial"] == false
        });
    }

    /// Reads every key as a client that remembers nothing; what is durable must be there.
    fn read_all(&mut self) {
        let must = durable(&self.acts);
        assert!(must.len() >= LOADS, "{must:?} are durable");
        let of_rival = must.range(value::RIVAL..).count();
        let of_both = (1..must.len()).contains(&of_rival);
        assert!(of_both, "{must:?} are durable, of one tenant alone");
        let keys: BTreeSet<u64> = self.acts.iter().map(|act| act.key).collect();
        self.processes += 1;
        let told = self.told(PROBE, "load");
        let read = |client: &Client, key: u64| {
            let options = GetOptions {
                call: called_for(key, PATIENCE),
                ..GetOptions::default()
            };
            let began = nanos();
            let bytes = client.get(value::name(key).as_bytes(), &options).unwrap();
            let put = bytes.map(|bytes| value::check(key, &bytes).unwrap());
            (began, nanos(), put)
        };
        let reads: Vec<_> = self.network.on(PROBE, || {
            let (client, rival) = (told.connect(), told.connect_rival());
            let read = |key: &u64| match *key {
                own @ 0..value::RIVAL => (own, read(&client, own)),
                rivals => (rivals, read(&rival, rivals)),
            };
            keys.iter().map(read).collect()
        });
        for (key, (began, ended, put)) in reads {
            let whole = |key| !self.damaged.contains(key);
            if let Some((_, durable)) = must.get_key_value(&key).filter(|(key, _)| whole(key)) {
                let history: Vec<&Act> = self.acts.iter().filter(|act| act.key == key).collect();
                assert_eq!(
                    put,
                    Some(*durable),
                    "seed {}: key {key} was durable: {history:#?}\n{}",
                    self.seed,
                    self.logs()
                );
            }
            self.acts.push(Act {
                process: told.process,
                began,
                ended,
                key,
                what: What::Get,
                told: put.map_or(Told::Missing, Told::Found),
            });
        }
    }

    /// A master that knows nothing counts the same from what the nodes announce as the one before it did (I6, I11), under a
    /// later epoch (I5).
    fn recounted(&mut self) {
        let counted = |books: &Value| {
            let of_segment =
                |it: &Value| ["segment", "live", "replicas"].map(|name| it[name].clone());
            let segments = books["segments"].as_array().unwrap();
            let mut segments: Vec<_> = segments.iter().map(of_segment).collect();
            segments.sort_by_key(|[segment, ..]| segment.to_string());
            (
                books["objects"].clone(),
                books["replicas"].clone(),
                segments,
            )
        };
        let mut before = counted(&self.books(false));
        // What may begin when a lease ends, or waits for its turn, has begun when nothing has changed for longer than that.
        self.at_rest(|| {
            std::thread::sleep(LEASE + Duration::from_millis(500));
            let now = counted(&self.books(false));
            let last = std::mem::replace(&mut before, now);
            (last == before)
                .then_some(())
                .ok_or_else(|| format!("{last:?} became {before:?}"))
        });
        let first = self.epoch();
        self.kill(MASTER);
        self.begin(MASTER);
        self.announced();
        let second = self.epoch();
        assert!(second > first, "{second} came after {first}");
        self.at_rest(|| {
            let after = counted(&self.books(false));
            (after == before)
                .then_some(())
                .ok_or_else(|| format!("{before:?} was counted, and from the nodes {after:?}"))
        });
    }

    fn epoch(&self) -> u64 {
        self.json("/leader")["view_version"].as_u64().unwrap()
    }

    /// Waits until nothing is under way, and the books balance; with nothing in them, if so.
    fn books(&self, empty: bool) -> Value {
        let books = self.at_rest(|| {
            let books = self.json("/debug/books");
            let zero = |name: &str| books[name] == 0;
            let calm = [
                "open_puts",
                "waiting_puts",
                "unanswered",
                "drops",
                "orphans",
            ];
            let idle = |name: &str| books[name]["in_flight"] == 0;
            let segments = books["segments"].as_array().unwrap();
            let balanced = |it: &Value| {
                let bytes = |name: &str| it[name].as_u64().unwrap();
                let left = bytes("capacity") - bytes("free") - bytes("live");
                left == 0 && bytes("quarantined") == 0 && (!empty || bytes("live") == 0)
            };
            let none = !empty || (zero("objects") && zero("replicas"));
            if calm.into_iter().all(zero)
                && idle("offload")
                && idle("promotion")
                && none
                && segments.iter().all(balanced)
            {
                return Ok(books);
            }
            Err(format!("the books: {books:#}"))
        });
        assert_eq!(books["segments"].as_array().unwrap().len(), 2 * NODES);
        let tenants = books["tenants"].as_array().unwrap();
        let acme = tenants.iter().find(|it| it["tenant"] == "acme");
        let acme = acme.unwrap_or_else(|| panic!("the quota was lost: {books:#}"));
        let quota = (acme["memory_quota"].as_u64(), acme["disk_quota"].as_u64());
        assert_eq!(quota, (Some(QUOTA.0), Some(QUOTA.1)), "{acme}");
        books
    }
}
