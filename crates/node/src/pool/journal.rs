//! The journal of a master: what it must know again after a restart, in a file of its directory.
//!
//! Notes are committed by a thread, all that have come at a time in one transaction. Answers that acknowledge a change wait
//! until everything that was noted before them is durable; look-ups wait for nothing.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::{Database, ReadableDatabase, ReadableTable, Table, TableDefinition};
use slackwater_base::Instant;
use slackwater_meta::{Dead, Debt, Journaled, KeptJob, Note};
use slackwater_wait::{Event, Park, Site, Waiting, failpoint};
use slackwater_wire::{
    ClientId, Incarnation, JobId, NodeId, OperationId, Reply, SegmentId, Tenant, Version, body,
};
use thiserror::Error;

/// The file in the directory of a master.
const NAME: &str = "journal";
/// Nodes, and whether they have an SSD.
const NODES: TableDefinition<'_, u32, bool> = TableDefinition::new("nodes");
/// Quotas of memory and SSD by tenant.
const QUOTAS: TableDefinition<'_, &str, (u64, u64)> = TableDefinition::new("quotas");
/// Whether a node was ever forgotten.
const FORGOT: TableDefinition<'_, (), bool> = TableDefinition::new("forgot");
/// The newest dead versions, by what they are of.
const DEBTS: TableDefinition<'_, Owed<'_>, u64> = TableDefinition::new("debts");
/// Jobs: their states, as the answer to a question for them.
const JOBS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("jobs");
/// The segments that jobs empty, and the lives of their nodes.
const DRAINED: TableDefinition<'_, (u64, u32), u64> = TableDefinition::new("drained");
/// Jobs that were cancelled, so that these segments take new values.
const RELEASED: TableDefinition<'_, u64, bool> = TableDefinition::new("released");

/// A node, a tenant, one of the kinds below, and the hash of a key or a pattern.
type Owed<'a> = (u32, &'a str, u8, &'a [u8]);
const ALL: u8 = 0;
const TENANT: u8 = 1;
const PATTERN: u8 = 2;
const KEY: u8 = 3;

/// Why a journal cannot be used.
#[derive(Debug, Error)]
#[error(
    "the journal {} cannot be {done}: {why}; nothing was changed in it. Without it removals that nodes have not heard of are \
     undone and quotas are gone: move it away only if that is no loss", path.display()
)]
pub struct JournalError {
    path: PathBuf,
    done: &'static str,
    why: String,
}

/// The notes of a master on disk.
#[derive(Debug)]
pub(super) struct JournalFile {
    path: PathBuf,
    database: Database,
}

impl JournalFile {
    /// Opens the journal of a directory, or begins one; what it holds.
    ///
    /// # Errors
    /// When the file cannot be written, is none, or is damaged.
    pub(super) fn open(directory: &Path) -> Result<(Self, Journaled), JournalError> {
        let path = directory.join(NAME);
        let failed = |why: String| JournalError {
            path: path.clone(),
            done: "read",
            why,
        };
        let open = || -> Result<_, redb::Error> {
            let mut database = Database::create(&path)?;
            if !database.check_integrity()? {
                tracing::warn!(path = %path.display(), "the journal was repaired");
            }
            let file = database.begin_write()?;
            file.open_table(NODES)?;
            file.open_table(QUOTAS)?;
            file.open_table(DEBTS)?;
            file.open_table(FORGOT)?;
            file.open_table(JOBS)?;
            file.open_table(DRAINED)?;
            file.open_table(RELEASED)?;
            file.commit()?;
            let kept = read(&database)?;
            Ok((database, kept))
        };
        // A file that is none may be found to be so by an assertion.
        let opened = catch_unwind(AssertUnwindSafe(open));
        let opened = opened.map_err(|_| failed("it is damaged".to_owned()))?;
        let (database, kept) = opened.map_err(|error| failed(error.to_string()))?;
        let kept = kept.map_err(|error| failed(error.to_owned()))?;
        Ok((Self { path, database }, kept))
    }

    /// Makes notes durable, all or none.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn commit(&self, notes: &[Note]) -> Result<(), JournalError> {
        let write = || -> Result<(), redb::Error> {
            let file = self.database.begin_write()?;
            {
                let mut nodes = file.open_table(NODES)?;
                let mut quotas = file.open_table(QUOTAS)?;
                let mut debts = file.open_table(DEBTS)?;
                let mut jobs = JobTables {
                    states: file.open_table(JOBS)?,
                    drained: file.open_table(DRAINED)?,
                    released: file.open_table(RELEASED)?,
                };
                for note in notes {
                    match note {
                        Note::Node { node, ssd } => _ = nodes.insert(node.0, ssd)?,
                        Note::Forget(node) => {
                            file.open_table(FORGOT)?.insert((), true)?;
                            nodes.remove(node.0)?;
                            forget(&mut debts, *node)?;
                        }
                        Note::Quota { tenant, quota } => match quota {
                            Some([memory, disk]) => {
                                quotas.insert(tenant.name(), (*memory, *disk))?;
                            }
                            None => _ = quotas.remove(tenant.name())?,
                        },
                        Note::Owed { node, debt } => owe(&mut debts, *node, debt)?,
                        Note::Paid(node) => forget(&mut debts, *node)?,
                        Note::Job(kept) => keep_job(&mut jobs, kept)?,
                        Note::ForgetJob(job) => forget_job(&mut jobs, *job)?,
                    }
                }
            }
            file.commit()?;
            Ok(())
        };
        write().map_err(|error| JournalError {
            path: self.path.clone(),
            done: "written",
            why: error.to_string(),
        })
    }
}

/// The tables of jobs.
struct JobTables<'a> {
    states: Table<'a, u64, &'static [u8]>,
    drained: Table<'a, (u64, u32), u64>,
    released: Table<'a, u64, bool>,
}

fn keep_job(tables: &mut JobTables<'_>, kept: &KeptJob) -> Result<(), redb::Error> {
    let job = kept.state.job;
    forget_job(tables, job)?;
    let state = Reply::Job(Box::new(kept.state.clone()));
    let state = body::encode(&state).expect("the state of a job is short");
    tables.states.insert(job.0, state.as_slice())?;
    for (segment, life) in &kept.drained {
        tables.drained.insert((job.0, segment.0), life.0)?;
    }
    if kept.released {
        tables.released.insert(job.0, true)?;
    }
    Ok(())
}

fn forget_job(tables: &mut JobTables<'_>, job: JobId) -> Result<(), redb::Error> {
    tables.states.remove(job.0)?;
    tables.released.remove(job.0)?;
    let drained = &mut tables.drained;
    drained.retain_in((job.0, 0)..=(job.0, u32::MAX), |_, _| false)?;
    Ok(())
}

fn forget(debts: &mut Table<'_, Owed<'static>, u64>, node: NodeId) -> Result<(), redb::Error> {
    let of_node = (node.0, "", ALL, &[][..])..(node.0 + 1, "", ALL, &[][..]);
    debts.retain_in(of_node, |_, _| false)?;
    Ok(())
}

fn owe(
    debts: &mut Table<'_, Owed<'static>, u64>,
    node: NodeId,
    debt: &Debt,
) -> Result<(), redb::Error> {
    let (node, up_to) = (node.0, debt.up_to.0);
    match &debt.of {
        Dead::All => {
            forget(debts, NodeId(node))?;
            debts.insert((node, "", ALL, &[][..]), up_to)?;
        }
        Dead::Tenant(tenant) => {
            let name = tenant.name();
            let of_tenant = (node, name, TENANT, &[][..])..(node, name, KEY + 1, &[][..]);
            debts.retain_in(of_tenant, |_, _| false)?;
            debts.insert((node, name, TENANT, &[][..]), up_to)?;
        }
        Dead::Pattern(tenant, pattern) => {
            debts.insert((node, tenant.name(), PATTERN, pattern.as_bytes()), up_to)?;
        }
        Dead::Key(tenant, hash) => {
            let hash = hash.to_be_bytes();
            debts.insert((node, tenant.name(), KEY, &hash[..]), up_to)?;
        }
    }
    Ok(())
}

/// What a journal holds, or what is wrong with that.
fn read(database: &Database) -> Result<Result<Journaled, &'static str>, redb::Error> {
    let file = database.begin_read()?;
    let mut kept = Journaled {
        forgot: file.open_table(FORGOT)?.get(())?.is_some(),
        ..Journaled::default()
    };
    for row in file.open_table(NODES)?.iter()? {
        let (node, ssd) = row?;
        kept.nodes.insert(NodeId(node.value()), ssd.value());
    }
    for row in file.open_table(QUOTAS)?.iter()? {
        let (tenant, quota) = row?;
        let Ok(tenant) = Tenant::new(tenant.value()) else {
            return Ok(Err("it names a tenant that cannot be one"));
        };
        kept.quotas.insert(tenant, quota.value().into());
    }
    for row in file.open_table(DEBTS)?.iter()? {
        let (owed, up_to) = row?;
        let (node, tenant, kind, rest) = owed.value();
        let Some(of) = dead(tenant, kind, rest) else {
            return Ok(Err("it names a removal that cannot be one"));
        };
        let owed = (NodeId(node), of);
        kept.debts.insert(owed, Version(up_to.value()));
    }
    for row in file.open_table(JOBS)?.iter()? {
        let (job, state) = row?;
        let Ok(Reply::Job(state)) = body::decode(state.value()) else {
            return Ok(Err("it has a job that cannot be one"));
        };
        let kept_job = KeptJob {
            state: *state,
            drained: Vec::new(),
            released: false,
        };
        kept.jobs.insert(JobId(job.value()), kept_job);
    }
    for row in file.open_table(DRAINED)?.iter()? {
        let (of, life) = row?;
        let (job, segment) = of.value();
        if let Some(job) = kept.jobs.get_mut(&JobId(job)) {
            let segment = (SegmentId(segment), Incarnation(life.value()));
            job.drained.push(segment);
        }
    }
    for row in file.open_table(RELEASED)?.iter()? {
        let (job, released) = row?;
        if let Some(job) = kept.jobs.get_mut(&JobId(job.value())) {
            job.released = released.value();
        }
    }
    Ok(Ok(kept))
}

fn dead(tenant: &str, kind: u8, rest: &[u8]) -> Option<Dead> {
    let of = Tenant::new(tenant).ok()?;
    match kind {
        ALL => Some(Dead::All),
        TENANT => Some(Dead::Tenant(of)),
        PATTERN => Some(Dead::Pattern(of, String::from_utf8(rest.to_vec()).ok()?)),
        KEY => Some(Dead::Key(of, u64::from_be_bytes(rest.try_into().ok()?))),
        _ => None,
    }
}

/// An answer to a client.
type Answer = (ClientId, OperationId, Reply);

/// Notes on their way to the disk, and the answers that wait for them.
pub(super) struct Committer {
    file: JournalFile,
    state: Mutex<Committing>,
    bell: Event,
}

#[derive(Default)]
struct Committing {
    notes: Vec<Note>,
    /// Batches that have begun to wait, and those that are durable.
    queued: u64,
    committed: u64,
    held: VecDeque<(u64, Answer)>,
}

pub(crate) static COMMIT: Site = Site::new("master, journal");

impl Committer {
    pub(super) fn new(file: JournalFile) -> Self {
        Self {
            file,
            state: Mutex::default(),
            bell: Event::new(),
        }
    }

    /// Queues notes, and holds back those of the answers that may acknowledge them or earlier ones. Called under the
    /// master's lock, so that both keep their order.
    pub(super) fn queue(&self, mut notes: Vec<Note>, answers: Vec<Answer>) -> Vec<Answer> {
        let mut state = self.state();
        if !notes.is_empty() {
            // What comes while a batch is being written is the next one.
            if state.notes.is_empty() {
                state.queued += 1;
                self.bell.notify_all();
            }
            state.notes.append(&mut notes);
        }
        if state.committed == state.queued {
            return answers;
        }
        let (held, free): (Vec<_>, Vec<_>) = answers
            .into_iter()
            .partition(|(.., reply)| acknowledges(reply));
        let queued = state.queued;
        state.held.extend(held.into_iter().map(|it| (queued, it)));
        free
    }

    /// Waits until everything that was queued is durable; false when it will not be.
    pub(super) fn settle(&self, until: Instant) -> bool {
        let target = self.state().queued;
        loop {
            let seen = self.bell.seen();
            if self.state().committed >= target {
                return true;
            }
            let waiting = Waiting::at(&COMMIT).by(&Park).until(until);
            if self.bell.is_closed() || self.bell.wait(seen, &waiting).is_err() {
                return self.state().committed >= target;
            }
        }
    }

    /// Commits what comes until it is closed. What waited is given to `answer`.
    ///
    /// # Errors
    /// When the journal cannot be written. Nothing that waits for it is answered.
    pub(super) fn run(&self, answer: impl Fn(Answer)) -> Result<(), JournalError> {
        loop {
            let seen = self.bell.seen();
            let (notes, batch) = {
                let mut state = self.state();
                (std::mem::take(&mut state.notes), state.queued)
            };
            if notes.is_empty() {
                if self.bell.is_closed() {
                    return Ok(());
                }
                let waiting = Waiting::at(&COMMIT).by(&Park).until(Instant::NEVER);
                // Closed: the next turn ends.
                let _ = self.bell.wait(seen, &waiting);
                continue;
            }
            failpoint("journal.committing");
            self.file.commit(&notes)?;
            failpoint("journal.committed");
            let released: Vec<Answer> = {
                let mut state = self.state();
                state.committed = batch;
                let count = state.held.partition_point(|(needs, _)| *needs <= batch);
                state.held.drain(..count).map(|(_, held)| held).collect()
            };
            self.bell.notify_all();
            released.into_iter().for_each(&answer);
        }
    }

    /// Commits what was queued and ends.
    pub(super) fn close(&self) {
        self.bell.close();
    }

    fn state(&self) -> MutexGuard<'_, Committing> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an answer says that something was changed for good.
fn acknowledges(reply: &Reply) -> bool {
    matches!(
        reply,
        Reply::Each(_) | Reply::Count(_) | Reply::Done | Reply::Job(_) | Reply::Failed(_)
    )
}

#[cfg(test)]
mod tests {
    use slackwater_base::Rng;
    use slackwater_wire::{ErrorCode, JobSpec, JobState, JobStatus, JobWork, Key};

    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant::new(name).unwrap()
    }

    fn some_note(rng: &mut Rng) -> Note {
        let node = NodeId(rng.below(3) as u32);
        let tenant = tenant(["", "a", "ab"][rng.below(3) as usize]);
        match rng.below(12) {
            10 => Note::Job(Box::new(some_job(rng))),
            11 => Note::ForgetJob(JobId(rng.below(4))),
            0 => Note::Node {
                node,
                ssd: rng.below(2) == 0,
            },
            1 => Note::Forget(node),
            2 => Note::Quota {
                tenant,
                quota: (rng.below(2) == 0).then(|| [rng.below(9), rng.below(9)]),
            },
            3 if rng.below(3) == 0 => Note::Paid(node),
            kind => {
                let of = match kind {
                    4 if rng.below(3) == 0 => Dead::All,
                    5 => Dead::Tenant(tenant),
                    6 => Dead::Pattern(tenant, ["^x", "y"][rng.below(2) as usize].to_owned()),
                    _ => Dead::Key(tenant, rng.below(20)),
                };
                let up_to = Version(rng.below(1 << 40));
                Note::Owed {
                    node,
                    debt: Debt { of, up_to },
                }
            }
        }
    }

    fn some_job(rng: &mut Rng) -> KeptJob {
        let places = vec!["300".to_owned(); rng.below(3) as usize];
        let work = JobWork::Drain {
            places,
            targets: Vec::new(),
            disks: rng.below(2) == 0,
        };
        let state = JobState {
            job: JobId(rng.below(4)),
            spec: JobSpec {
                work,
                concurrency: 3,
                bytes_per_second: Some(rng.below(9)),
                time: None,
            },
            status: [JobStatus::Running, JobStatus::Failed][rng.below(2) as usize],
            age: std::time::Duration::from_millis(rng.below(9)),
            unchanged: std::time::Duration::from_millis(rng.below(9)),
            active: 0,
            done: rng.below(9),
            done_bytes: rng.below(9),
            failed: rng.below(9),
            left_bytes: rng.below(9),
            errors: vec![(Key::new(b"k").unwrap(), ErrorCode::NoAvailableHandle)],
        };
        let segments = 0..rng.below(3) as u32;
        let drained = segments.map(|it| (SegmentId(it), Incarnation(rng.below(9))));
        KeptJob {
            state,
            drained: drained.collect(),
            released: rng.below(2) == 0,
        }
    }

    #[test]
    fn what_was_committed_is_there_after_any_restart() {
        let folder = tempfile::tempdir().unwrap();
        let mut rng = Rng::new(7);
        let (mut file, mut expected) = JournalFile::open(folder.path()).unwrap();
        assert_eq!(expected, Journaled::default());
        for round in 0..60 {
            let notes: Vec<Note> = (0..rng.below(40)).map(|_| some_note(&mut rng)).collect();
            file.commit(&notes).unwrap();
            notes.iter().for_each(|note| expected.apply(note));
            drop(file);
            let kept;
            (file, kept) = JournalFile::open(folder.path()).unwrap();
            assert_eq!(kept, expected, "round {round}");
        }
    }

    #[test]
    fn a_journal_that_cannot_be_used_is_named_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let check = |why: &str| {
            let error = JournalFile::open(folder.path()).unwrap_err().to_string();
            assert!(error.contains(&path.display().to_string()), "{error}");
            assert!(error.contains("cannot be read"), "{why}: {error}");
        };
        std::fs::write(&path, vec![7; 100_000]).unwrap();
        check("foreign");
        assert_eq!(std::fs::read(&path).unwrap(), vec![7; 100_000]);
        std::fs::remove_file(&path).unwrap();
        let (file, _) = JournalFile::open(folder.path()).unwrap();
        check("in use");
        let notes: Vec<Note> = (0..500)
            .map(|node| Note::Node {
                node: NodeId(node),
                ssd: true,
            })
            .collect();
        file.commit(&notes).unwrap();
        drop(file);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[4096..].fill(0xab);
        std::fs::write(&path, &bytes).unwrap();
        check("damaged");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        check("a directory");
    }

    fn answer(operation: u64, reply: Reply) -> Answer {
        (ClientId(1), OperationId(operation), reply)
    }

    #[test]
    fn answers_wait_for_the_notes_before_them_and_for_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let (file, _) = JournalFile::open(folder.path()).unwrap();
        let committer = Committer::new(file);
        let note = |node| Note::Paid(NodeId(node));
        let done = |operation| answer(operation, Reply::Done);
        assert_eq!(committer.queue(vec![], vec![done(1)]), [done(1)]);
        assert_eq!(committer.queue(vec![note(1)], vec![done(2)]), []);
        let looked_up = answer(3, Reply::Get(Vec::new()));
        let refused = answer(4, Reply::Failed(ErrorCode::ObjectNotFound));
        let free = committer.queue(vec![], vec![looked_up.clone(), refused.clone()]);
        assert_eq!(free, [looked_up]);
        committer.close();
        let released = Mutex::new(Vec::new());
        committer
            .run(|it| released.lock().unwrap().push(it))
            .unwrap();
        assert_eq!(*released.lock().unwrap(), [done(2), refused]);
        assert!(committer.settle(Instant::ZERO));
        assert_eq!(committer.queue(vec![], vec![done(5)]), [done(5)]);
    }
}
