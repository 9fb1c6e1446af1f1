use serde::Serialize;
use slackwater_base::Instant;
use slackwater_meta::{Books, Imbalance, Master};
use slackwater_wire::kv_events::KvEventCounts;
use slackwater_wire::{
    Description, Epoch, ErrorCode, JobId, JobSpec, JobState, Key, List, Listed, MetricsFormat,
    NodeId, QuotaState, Remove, RemoveAll, Reply, Request, SegmentState, Tenant,
};

use crate::StoreError;
use crate::decisions::LatestDecisions;
use crate::hottest::HottestChains;
use crate::store::{Reason, count, done, refusal};

/// What operators ask of a process with a master: a served store, or the master of a pool.
pub trait Operated: Send + Sync + 'static {
    /// Everything that is counted.
    type Stats: Serialize;

    /// Makes a request with every right and waits for its answer, no longer than the configured deadline. Errors name the
    /// request by `what`.
    ///
    /// # Errors
    /// When the master is closed or broken, or the deadline passes.
    fn ask(&self, what: &'static str, request: Request) -> Result<Reply, StoreError>;

    /// Does something with the master, while every request waits.
    ///
    /// # Errors
    /// When the master is closed or broken.
    fn with_master<T>(&self, step: impl FnOnce(&mut Master, Instant) -> T)
    -> Result<T, StoreError>;

    /// Looks at the master, while every request waits.
    ///
    /// # Errors
    /// When the master is closed or broken.
    fn look<T>(&self, look: impl FnOnce(&Master, Instant) -> T) -> Result<T, StoreError> {
        self.with_master(|master, now| look(master, now))
    }

    /// The latest decisions about single objects, kept for callers that ask again and again, with each key on one line as
    /// `shown` puts it.
    ///
    /// # Errors
    /// When the master is closed or broken.
    fn decisions(&self, shown: fn(&Key) -> String) -> Result<LatestDecisions, StoreError> {
        let told = self.with_master(|master, now| (master.decisions(), now));
        told.map(|(decisions, now)| LatestDecisions::told(decisions, now, shown))
    }

    /// The chains that were read most lately, counted for callers that ask again and again, with the first key of each on
    /// one line as `shown` puts it.
    ///
    /// # Errors
    /// When the master is closed or broken.
    fn hottest(&self, shown: fn(&Key) -> String) -> Result<HottestChains, StoreError> {
        let told = self.with_master(Master::hottest_chains);
        told.map(|(chains, reads)| HottestChains::told(&chains, reads, shown))
    }

    /// Whether requests of clients are served.
    ///
    /// # Errors
    /// Why they are not.
    fn check_serving(&self) -> Result<(), String>;

    /// Why each tier keeps an object, or will let it go; `None` when there is no such object.
    ///
    /// # Errors
    /// When the master is closed or broken.
    fn explain(&self, tenant: &Tenant, key: &Key) -> Result<Option<Vec<Reason>>, StoreError>;

    /// Everything that is counted.
    fn stats(&self) -> Self::Stats;

    /// Metrics in a text form.
    fn metrics_text(&self, format: MetricsFormat) -> String;

    /// What was told of KV events.
    fn kv_events(&self) -> KvEventCounts;

    /// The epoch of the master, which grows with each start.
    fn epoch(&self) -> Epoch;

    /// Where the bytes of a node come in and leave; empty when the node is not known.
    fn data_address(&self, node: NodeId) -> String;

    /// The segments and how full they are.
    ///
    /// # Errors
    /// When the master is closed or broken.
    fn segments(&self) -> Result<Vec<SegmentState>, StoreError> {
        self.look(|master, _| master.segments())
    }

    /// Counts everything again that the master holds and compares it with its totals, while every request waits.
    ///
    /// # Errors
    /// When the master is closed or broken; the inner error says which total is wrong.
    fn check_books(&self) -> Result<Result<Books, Imbalance>, StoreError> {
        self.look(|master, _| master.check_books())
    }

    /// One page of keys.
    ///
    /// # Errors
    /// When the pattern is no regular expression.
    fn list(&self, list: List) -> Result<Listed, StoreError> {
        match self.ask("a list", Request::List(list))? {
            Reply::List(listed) => Ok(listed),
            reply => Err(refusal(&reply)),
        }
    }

    /// Everything known about one object; neither a read nor a lease.
    ///
    /// # Errors
    /// When the master is closed or broken.
    fn describe(&self, tenant: Tenant, key: Key) -> Result<Option<Description>, StoreError> {
        match self.ask("a description", Request::Describe { tenant, key })? {
            Reply::Describe(description) => Ok(Some(*description)),
            Reply::Failed(ErrorCode::ObjectNotFound) => Ok(None),
            reply => Err(refusal(&reply)),
        }
    }

    /// Quotas and use of every tenant that has either.
    ///
    /// # Errors
    /// When the master is closed or broken.
    fn quotas(&self) -> Result<Vec<QuotaState>, StoreError> {
        match self.ask("quotas", Request::Quotas)? {
            Reply::Quotas(quotas) => Ok(quotas),
            reply => Err(refusal(&reply)),
        }
    }

    /// Sets or changes the byte quota of a tenant.
    ///
    /// # Errors
    /// When tenants are not told apart.
    fn set_quota(
        &self,
        tenant: Tenant,
        memory_bytes: u64,
        disk_bytes: u64,
    ) -> Result<(), StoreError> {
        let request = Request::SetQuota {
            tenant,
            memory_bytes,
            disk_bytes,
        };
        done(&self.ask("a quota", request)?)
    }

    /// Forgets the quota of a tenant that has no objects.
    ///
    /// # Errors
    /// When the tenant is unknown or has objects.
    fn delete_quota(&self, tenant: Tenant) -> Result<(), StoreError> {
        done(&self.ask("a quota", Request::DeleteQuota { tenant })?)
    }

    /// Begins a job.
    ///
    /// # Errors
    /// When it makes no sense.
    fn start_job(&self, spec: JobSpec) -> Result<JobState, StoreError> {
        job(self.ask("a job", Request::StartJob(spec))?)
    }

    /// How far a job is.
    ///
    /// # Errors
    /// When there is no such job.
    fn query_job(&self, id: JobId) -> Result<JobState, StoreError> {
        job(self.ask("a job", Request::QueryJob { job: id })?)
    }

    /// Ends a job: what is being carried arrives.
    ///
    /// # Errors
    /// When there is no such job.
    fn cancel_job(&self, id: JobId) -> Result<JobState, StoreError> {
        job(self.ask("a job", Request::CancelJob { job: id })?)
    }

    /// The latest jobs, the oldest first.
    ///
    /// # Errors
    /// When the master is closed or broken.
    fn jobs(&self) -> Result<Vec<JobState>, StoreError> {
        match self.ask("jobs", Request::Jobs)? {
            Reply::Jobs(jobs) => Ok(jobs),
            reply => Err(refusal(&reply)),
        }
    }

    /// Removes an object, also while readers hold leases on it if `force`.
    ///
    /// # Errors
    /// When there is none, it has a lease, or the deadline passes.
    fn remove(&self, tenant: Tenant, key: Key, force: bool) -> Result<(), StoreError> {
        let remove = Remove {
            tenant,
            keys: vec![key.clone()],
            force,
        };
        match self.ask("a removal", Request::Remove(remove))? {
            Reply::Each(codes) => {
                let code = codes.into_iter().next();
                let code = code.unwrap_or(Err(ErrorCode::InternalError));
                code.map_err(|code| StoreError::Refused { key, code })
            }
            reply => Err(refusal(&reply)),
        }
    }

    /// Removes the objects of a tenant, or of all, those too that readers hold leases on if `force`; says how many.
    ///
    /// # Errors
    /// When the deadline passes.
    fn remove_all(&self, tenant: Option<Tenant>, force: bool) -> Result<u64, StoreError> {
        count(&self.ask("a removal", Request::RemoveAll(RemoveAll { tenant, force }))?)
    }
}

fn job(reply: Reply) -> Result<JobState, StoreError> {
    match reply {
        Reply::Job(state) => Ok(*state),
        reply => Err(refusal(&reply)),
    }
}
