//! Requests that examine every object: removal by pattern or of all, and lists. They run in bounded steps, between
//! which other requests are served; an object that is there all the time is found.

use std::collections::{BTreeMap, BTreeSet};

use regex::bytes::{Regex, RegexBuilder};
use slackwater_base::Instant;
use slackwater_wire::{ErrorCode, Key, List, Listed, RemoveAll, RemoveMatching, Reply, Tenant};

use crate::catalog::{Object, ObjectId, TenantIndex};
use crate::drops::DropMark;
use crate::master::{Caller, Due, Master};
use crate::outbox::{AckId, Answer, Waiter};
use crate::owed::Sweep;
use crate::remove::Leases;

/// Scans under way.
#[derive(Default)]
pub(crate) struct Scans {
    open: BTreeMap<u64, Scan>,
    next: u64,
}

struct Scan {
    from: u32,
    /// Whose keys; of all tenants without one. By name: a tenant is forgotten with its last object, and its number is another's.
    tenant: Option<Tenant>,
    pattern: Option<Regex>,
    job: Job,
}

enum Job {
    Remove {
        ack: AckId,
        leases: Leases,
        /// The drops under way that have not been looked at, once all objects were: the removal waits for those that it covers, also
        /// of what left before the removal came to it.
        drops: Option<DropMark>,
    },
    List {
        caller: Caller,
        after: Option<Key>,
        limit: usize,
        found: BTreeSet<Key>,
    },
}

impl Scan {
    fn wants(&self, tenant: Option<TenantIndex>, object: &Object) -> bool {
        let matches = |pattern: &Regex| pattern.is_match(object.key.as_bytes());
        object.has_replicas()
            && tenant.is_none_or(|tenant| tenant == object.tenant)
            && self.pattern.as_ref().is_none_or(matches)
    }
}

impl Master {
    pub(crate) fn remove_matching(
        &mut self,
        now: Instant,
        caller: &Caller,
        remove: &RemoveMatching,
    ) {
        self.metrics.removes += 1;
        let pattern = match self.pattern(&remove.pattern) {
            Ok(pattern) => pattern,
            Err(code) => {
                return self
                    .outbox
                    .reply(caller.client, caller.operation, Reply::Failed(code));
            }
        };
        self.remove_scan(
            now,
            caller,
            Some(&remove.tenant),
            Some(pattern),
            Leases::of(remove.force),
        );
    }

    pub(crate) fn remove_all(&mut self, now: Instant, caller: &Caller, remove: &RemoveAll) {
        self.metrics.removes += 1;
        self.remove_scan(
            now,
            caller,
            remove.tenant.as_ref(),
            None,
            Leases::of(remove.force),
        );
    }

    fn remove_scan(
        &mut self,
        now: Instant,
        caller: &Caller,
        tenant: Option<&Tenant>,
        pattern: Option<Regex>,
        leases: Leases,
    ) {
        // A removal that is refused ends nothing.
        if let Err(code) = self.scan_limits() {
            return self
                .outbox
                .reply(caller.client, caller.operation, Reply::Failed(code));
        }
        let sweep = Sweep {
            tenant: tenant.map(|tenant| self.tenants.effective(tenant).clone()),
            pattern: pattern.clone(),
            up_to: self.numbers.newest_version(),
        };
        self.owed.matching(&sweep);
        let ack = self
            .acks
            .open(caller.client, caller.operation, Answer::Count(0));
        let scan = Scan {
            from: 0,
            tenant: sweep.tenant.clone(),
            pattern,
            job: Job::Remove {
                ack,
                leases,
                drops: None,
            },
        };
        self.begin_scan(now, scan, Some(sweep));
    }

    pub(crate) fn list(&mut self, now: Instant, caller: &Caller, list: List) {
        let pattern = list
            .pattern
            .as_deref()
            .map(|pattern| self.pattern(pattern))
            .transpose();
        let checked = pattern.and_then(|pattern| self.scan_limits().map(|()| pattern));
        let pattern = match checked {
            Ok(_) if list.limit == 0 => Err(ErrorCode::InvalidParams),
            other => other,
        };
        let pattern = match pattern {
            Ok(pattern) => pattern,
            Err(code) => {
                return self
                    .outbox
                    .reply(caller.client, caller.operation, Reply::Failed(code));
            }
        };
        let limit = self.config.limits.list_page.min(list.limit as usize);
        let job = Job::List {
            caller: caller.clone(),
            after: list.after,
            limit,
            found: BTreeSet::new(),
        };
        let scan = Scan {
            from: 0,
            tenant: Some(self.tenants.effective(&list.tenant).clone()),
            pattern,
            job,
        };
        self.begin_scan(now, scan, None);
    }

    fn pattern(&self, pattern: &str) -> Result<Regex, ErrorCode> {
        let limit = self.config.limits.pattern_bytes;
        let built = RegexBuilder::new(pattern)
            .size_limit(limit)
            .dfa_size_limit(limit)
            .build();
        built.map_err(|_| ErrorCode::InvalidParams)
    }

    fn scan_limits(&self) -> Result<(), ErrorCode> {
        let limits = &self.config.limits;
        let full = self.scans.open.len() >= limits.scans || self.acks.len() >= limits.acks;
        if full {
            Err(ErrorCode::TaskPendingLimitExceeded)
        } else {
            Ok(())
        }
    }

    fn begin_scan(&mut self, now: Instant, scan: Scan, sweep: Option<Sweep>) {
        let number = self.scans.next;
        self.scans.next += 1;
        if let Some(sweep) = sweep {
            self.owed.begin_sweep(number, sweep);
        }
        self.scans.open.insert(number, scan);
        self.scan_step(now, number);
    }

    pub(crate) fn scan_step(&mut self, now: Instant, number: u64) {
        let mut scan = self
            .scans
            .open
            .remove(&number)
            .expect("deadlines name open scans");
        if let Job::Remove {
            drops: Some(mark), ..
        } = scan.job
        {
            return self.scan_drops(now, number, scan, mark);
        }
        let tenant = scan.tenant.as_ref();
        let tenant = tenant.map(|tenant| self.tenants.find_exact(tenant));
        if let Some(None) = tenant {
            return self.scan_drops(now, number, scan, DropMark::FIRST);
        }
        let tenant = tenant.flatten();
        let (objects, next) = self.catalog.scan(scan.from, self.config.limits.scan_step);
        let found: Vec<ObjectId> = objects
            .filter(|(_, object)| scan.wants(tenant, object))
            .map(|(id, _)| id)
            .collect();
        match &mut scan.job {
            Job::Remove { ack, leases, .. } => {
                for id in found {
                    self.remove_found(now, id, *leases, *ack);
                }
            }
            Job::List {
                after,
                limit,
                found: keys,
                ..
            } => {
                for id in found {
                    let key = &self.catalog.object(id).key;
                    let late = keys.len() > *limit && keys.last().is_some_and(|last| key >= last);
                    if !late && after.as_ref().is_none_or(|after| key > after) {
                        keys.insert(key.clone());
                    }
                    if keys.len() > *limit + 1 {
                        keys.pop_last();
                    }
                }
            }
        }
        match next {
            Some(next) => {
                scan.from = next;
                self.scans.open.insert(number, scan);
                self.due.set(Due::Scan(number), now);
            }
            None => self.scan_drops(now, number, scan, DropMark::FIRST),
        }
        self.unsettled.room();
    }

    /// All objects were looked at: one step over the drops under way, where the scan removes.
    fn scan_drops(&mut self, now: Instant, number: u64, mut scan: Scan, mark: DropMark) {
        let Job::Remove { ack, drops, .. } = &mut scan.job else {
            return self.end_scan(number, scan.job);
        };
        let sweep = self.owed.sweep(number).cloned();
        let (count, waiter) = (self.config.limits.scan_step, Waiter { ack: *ack, at: 0 });
        *drops = sweep.and_then(|sweep| self.await_drops_from(mark, count, waiter, &sweep));
        match drops {
            Some(_) => {
                self.scans.open.insert(number, scan);
                self.due.set(Due::Scan(number), now);
            }
            None => self.end_scan(number, scan.job),
        }
    }

    fn remove_found(&mut self, now: Instant, id: ObjectId, leases: Leases, ack: AckId) {
        // Earlier removals of this step may have removed it too, as a member of a group.
        if self.catalog.is_object(id)
            && self
                .remove_one(now, id, leases, Waiter { ack, at: 0 })
                .is_ok()
        {
            self.acks.count(ack);
        }
    }

    fn end_scan(&mut self, number: u64, job: Job) {
        match job {
            Job::Remove { ack, .. } => {
                self.owed.end_sweep(number);
                self.tell_if_cleared();
                self.acks.done(ack, &mut self.outbox);
            }
            Job::List {
                caller,
                limit,
                mut found,
                ..
            } => {
                let more = found.len() > limit;
                while found.len() > limit {
                    found.pop_last();
                }
                let keys = found.into_iter().collect();
                self.outbox.reply(
                    caller.client,
                    caller.operation,
                    Reply::List(Listed { keys, more }),
                );
            }
        }
    }
}
