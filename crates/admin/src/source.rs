use slackwater_wire::kv_events::KvEventCounts;
use slackwater_wire::{
    Description, JobId, JobSpec, JobState, Key, List, Listed, MetricsFormat, QuotaState,
    SegmentState, Tenant, Watermarks,
};

use crate::Failure;

/// What there is to be told. Calls may wait for a lock; they run on threads of their own, a few at a time.
pub trait Source: Send + Sync + 'static {
    /// Whether requests of clients are served, or why they are not.
    ///
    /// # Errors
    /// The reason in words.
    fn ready(&self) -> Result<(), String>;

    /// The epoch of the master, which grows with each start.
    fn epoch(&self) -> u64;

    /// The address that clients connect to, with the key of the server where links are encrypted.
    fn address(&self) -> String;

    /// Every metric, in a text form.
    fn metrics(&self, format: MetricsFormat) -> String;

    /// What was told of KV events.
    fn kv_events(&self) -> KvEventCounts;

    /// Everything that is counted.
    ///
    /// # Errors
    /// When it cannot be written as JSON.
    fn stats(&self) -> Result<serde_json::Value, Failure>;

    /// What the master holds, counted anew and compared with its own totals. Other requests wait meanwhile.
    ///
    /// # Errors
    /// When the totals are wrong, or the source is closed.
    fn books(&self) -> Result<serde_json::Value, Failure>;

    /// The segments that are mounted.
    ///
    /// # Errors
    /// When the source is closed.
    fn segments(&self) -> Result<Vec<Segment>, Failure>;

    /// One page of keys.
    ///
    /// # Errors
    /// When the pattern is no regular expression, or the source is closed.
    fn list(&self, list: List) -> Result<Listed, Failure>;

    /// An object and its replicas.
    ///
    /// # Errors
    /// When the source is closed.
    fn describe(&self, tenant: &Tenant, key: &Key) -> Result<Option<Description>, Failure>;

    /// Why each tier keeps an object, or will let it go.
    ///
    /// # Errors
    /// When the source is closed.
    fn explain(&self, tenant: &Tenant, key: &Key) -> Result<Option<serde_json::Value>, Failure>;

    /// The latest decisions about single objects and how many there were, with keys. They are kept only for callers that
    /// ask again and again.
    ///
    /// # Errors
    /// When the source is closed.
    fn decisions(&self) -> Result<serde_json::Value, Failure>;

    /// The chains that were read most lately, by their first keys, and all reads. They are counted only for callers that
    /// ask again and again.
    ///
    /// # Errors
    /// When the source is closed.
    fn hottest(&self) -> Result<serde_json::Value, Failure>;

    /// Quotas and use of every tenant that has either.
    ///
    /// # Errors
    /// When the source is closed.
    fn quotas(&self) -> Result<Vec<QuotaState>, Failure>;

    /// Sets the bytes of memory and of SSD that a tenant may hold.
    ///
    /// # Errors
    /// When tenants are not told apart, or the source is closed.
    fn set_quota(&self, tenant: &Tenant, memory: u64, disk: u64) -> Result<(), Failure>;

    /// Forgets the quota of a tenant without objects.
    ///
    /// # Errors
    /// When there is none, the tenant has objects, or the source is closed.
    fn delete_quota(&self, tenant: &Tenant) -> Result<(), Failure>;

    /// Begins a job.
    ///
    /// # Errors
    /// When it makes no sense, or the source is closed.
    fn start_job(&self, spec: JobSpec) -> Result<JobState, Failure>;

    /// How far a job is.
    ///
    /// # Errors
    /// When there is no such job, or the source is closed.
    fn query_job(&self, job: JobId) -> Result<JobState, Failure>;

    /// Ends a job: what is being carried arrives.
    ///
    /// # Errors
    /// When there is no such job, or the source is closed.
    fn cancel_job(&self, job: JobId) -> Result<JobState, Failure>;

    /// The latest jobs, the oldest first.
    ///
    /// # Errors
    /// When the source is closed.
    fn jobs(&self) -> Result<Vec<JobState>, Failure>;

    /// Reads the list of allowed keys and the token of operators again from their files. Links whose key is not in the list
    /// any more end.
    ///
    /// # Errors
    /// When a file cannot be read or used; what was in force stays in force.
    fn reload(&self) -> Result<(), Failure>;

    /// Removes an object, also while readers hold leases on it if `force`.
    ///
    /// # Errors
    /// When there is none, it has a lease, or the source is closed.
    fn remove(&self, tenant: &Tenant, key: &Key, force: bool) -> Result<(), Failure>;

    /// Removes the objects of a tenant, or of all, those too that readers hold leases on if `force`; says how many.
    ///
    /// # Errors
    /// When the source is closed.
    fn remove_all(&self, tenant: Option<&Tenant>, force: bool) -> Result<u64, Failure>;
}

/// A segment, and how to reach its bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// What it is and how full.
    pub state: SegmentState,
    /// Where its bytes are moved from and to.
    pub endpoint: String,
    /// How they are moved: `tcp`, or `local` where only the process itself reaches them.
    pub protocol: &'static str,
    /// When it is evicted from.
    pub watermarks: Watermarks,
}
