//! What a store keeps and why, read from its directory while no store runs there. Nothing in the directory changes.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use slackwater_base::Instant;
use slackwater_meta::Master;
use slackwater_tier::AgentInput;
use slackwater_tier::io::{DiskDone, LogFile};
use slackwater_wait::Choice;
use slackwater_wire::{Incarnation, Key, Request, Tenant};

use super::core::{Asked, Core};
use super::open::{self, Identity};
use super::slot::Waits;
use super::socket::{self, Answer, Question};
use super::{OpenError, Reason, StoreError, learned};
use crate::config::Config;
use crate::disk::{DirectoryError, ReadOnlyDisk};

/// Why each tier of a store keeps an object, or will let it go.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The store or the directory that the answer comes from.
    pub source: ExplanationSource,
    /// The opinion of each tier; `None` when there is no such object.
    pub reasons: Option<Vec<Reason>>,
}

/// Where an [`Explanation`] comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExplanationSource {
    /// The store that runs in the directory.
    RunningStore,
    /// The directory, as the last store left it.
    Directory,
}

/// Why the store in `config.dir` keeps an object, or will let it go: asked of the store that runs there, or read from
/// the directory when none does. The directory is neither locked nor written.
///
/// Of a directory the answer tells what is on SSD alone, with ages that begin now, as they do when a store is opened.
///
/// # Errors
/// When the configuration is wrong, the directory or the log cannot be read, a store began to use the directory
/// meanwhile, or the running store does not answer.
pub fn explain_at(config: &Config, tenant: &Tenant, key: &Key) -> Result<Explanation, OpenError> {
    let problems = config.problems();
    if !problems.is_empty() {
        return Err(OpenError::Config(problems));
    }
    let directory = config.dir.clone().unwrap_or_default();
    let question = Question {
        key: key.as_bytes().to_vec(),
        tenant: if tenant.is_default() {
            String::new()
        } else {
            tenant.to_string()
        },
    };
    let silent = |why: String| OpenError::RunningStore {
        directory: directory.clone(),
        why,
    };
    match socket::ask(&directory, &question).map_err(|error| silent(error.to_string()))? {
        Some(Answer::Tiers(reasons)) => Ok(Explanation {
            source: ExplanationSource::RunningStore,
            reasons,
        }),
        Some(Answer::Error(why)) => Err(silent(why)),
        None => Ok(Explanation {
            source: ExplanationSource::Directory,
            reasons: read(config, &directory, tenant, key)?,
        }),
    }
}

/// Runs the master and the agent of a store over a disk that only reads, until the log is open.
fn read(
    config: &Config,
    directory: &Path,
    tenant: &Tenant,
    key: &Key,
) -> Result<Option<Vec<Reason>>, OpenError> {
    let log = |why: StoreError| OpenError::Log {
        directory: directory.to_owned(),
        why: why.to_string(),
    };
    let before = Contents::of(directory)?;
    let incarnation = Incarnation(1);
    let now = Instant::ZERO;
    let mut core = Core::new(
        Some(Master::new(open::master_config(config), 1)),
        open::agent(config, &Identity::OWN, incarnation),
        open::views(config),
    );
    for mount in open::mounts(config, &Identity::OWN, incarnation) {
        match core.ask(now, Request::Mount(mount)) {
            Asked::Now(slackwater_wire::Reply::Failed(code)) => {
                return Err(log(StoreError::RefusedCall(code)));
            }
            Asked::Now(_) | Asked::Later(_) => {}
        }
    }
    let files = before
        .files
        .iter()
        .map(|(file, bytes)| LogFile {
            file: *file,
            bytes: *bytes,
        })
        .collect();
    let disk = ReadOnlyDisk::new(directory);
    let opening = core.open(now, AgentInput::Open { files, fresh: 0 });
    while core.node.is_opening() {
        let mut done: Vec<DiskDone> = core
            .take_ops()
            .iter()
            .map(|(op, request)| DiskDone {
                op: *op,
                result: disk.perform(request),
            })
            .collect();
        if done.is_empty() {
            break;
        }
        core.disk_done(now, &mut done);
    }
    // Answered already, or never: nothing is under way.
    let waits = Waits::new(Choice::Park);
    let opened = opening.wait_until(Instant::ZERO, waits.at(&waits.log));
    if Contents::of(directory)? != before {
        return Err(OpenError::RunningStore {
            directory: directory.to_owned(),
            why: "it began to use the directory while that was read: ask again".to_owned(),
        });
    }
    match opened {
        Some(Ok(Ok(_))) => {}
        Some(Ok(Err(error))) => {
            return Err(OpenError::Log {
                directory: directory.to_owned(),
                why: error.to_string(),
            });
        }
        Some(Err(error)) => return Err(log(error)),
        None => {
            return Err(log(StoreError::RefusedCall(
                slackwater_wire::ErrorCode::InternalError,
            )));
        }
    }
    let opinions = core.master_mut().and_then(|master| {
        learned::restore(&learned::path_in(directory), |segment, bytes| {
            master.restore_learned(segment, bytes)
        });
        master.explain(now, tenant, key)
    });
    Ok(opinions.map(|opinions| opinions.into_iter().map(Reason::from).collect()))
}

/// What a store changes in a directory as soon as it opens it.
#[derive(PartialEq)]
struct Contents {
    files: Vec<(slackwater_tier::io::FileId, u64)>,
    locked_at: Option<SystemTime>,
}

impl Contents {
    fn of(directory: &Path) -> Result<Self, DirectoryError> {
        let lock: PathBuf = directory.join(crate::disk::LOCK_NAME);
        Ok(Self {
            files: crate::disk::log_files(directory)?,
            locked_at: std::fs::metadata(lock)
                .and_then(|lock| lock.modified())
                .ok(),
        })
    }
}
