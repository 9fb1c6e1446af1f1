use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use slackwater_wait::{Choice, Cpus};

use crate::config::{Config, CrewPlan, NODES_MAX};
use crate::crew::{Crew, Taken, run_alone};
use crate::job::Kind;
use crate::member::Member;
use crate::placement::forks;
use crate::pool::Job;
use crate::record::{Record, add};
use crate::slot::{Borrowed, PublishedJob};

/// What the threads of a pool share, and how a job is spread over its crews.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) crews: Box<[Crew]>,
    pub(crate) threads: usize,
    /// The most participants of a job at present.
    pub(crate) restricted: AtomicUsize,
    pub(crate) callers: Record,
    pub(crate) jobs: AtomicU64,
    pub(crate) alone: AtomicU64,
    pub(crate) panics: AtomicU64,
    /// The fork generation it was started in: a child has none of the threads.
    born: u64,
}

impl Inner {
    pub(crate) fn new(config: &Config, plans: &[CrewPlan]) -> Self {
        let strategy = || config.wait.map(Choice::strategy);
        let mut next_thread = 1;
        let crews = plans
            .iter()
            .enumerate()
            .map(|(crew, plan)| {
                // The caller is one of the first crew. A pool of one thread still has a worker, which serves the queue.
                let workers = if crew == 0 {
                    plan.threads.saturating_sub(1)
                } else {
                    plan.threads
                };
                let workers = if plans.len() == 1 {
                    workers.max(1)
                } else {
                    workers
                };
                let first = next_thread;
                next_thread += workers;
                let node = (plans.len() > 1 || !config.nodes.is_empty()).then_some(plan.node.id);
                Crew::new(node, first..next_thread, config.background_max, strategy())
            })
            .collect();
        let threads = plans.iter().map(|plan| plan.threads).sum();
        Self {
            crews,
            threads,
            restricted: AtomicUsize::new(threads),
            callers: Record::new("pool submitter"),
            jobs: AtomicU64::new(0),
            alone: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            born: forks(),
        }
    }

    /// Whether this process is a fork of the one that started the pool: it has the memory but not the threads.
    pub(crate) fn is_orphaned(&self) -> bool {
        self.born != forks()
    }

    /// The crew that takes background tasks next: the one with the shortest queue.
    pub(crate) fn quietest(&self) -> &Crew {
        let crews = self.crews.iter().filter(|crew| crew.workers() > 0);
        crews
            .min_by_key(|crew| crew.queued())
            .unwrap_or(&self.crews[0])
    }

    pub(crate) fn job(&self, len: usize) -> Job<'_> {
        Job::new(self, len)
    }

    pub(crate) fn run(&self, len: usize, body: impl Fn(usize) + Sync) {
        if let Err(error) = self.job(len).run(body) {
            // Without a cancel handle only a panic ends a job early.
            error.resume_panic();
        }
    }

    pub(crate) fn join<A: Send, B: Send>(
        &self,
        a: impl FnOnce() -> A + Send,
        b: impl FnOnce() -> B + Send,
    ) -> (A, B) {
        let (a, b) = (Mutex::new((Some(a), None)), Mutex::new((Some(b), None)));
        self.run(2, |index| {
            if index == 0 {
                let task = a.lock().unwrap_or_else(PoisonError::into_inner).0.take();
                let value = task.map(|task| task());
                a.lock().unwrap_or_else(PoisonError::into_inner).1 = value;
            } else {
                let task = b.lock().unwrap_or_else(PoisonError::into_inner).0.take();
                let value = task.map(|task| task());
                b.lock().unwrap_or_else(PoisonError::into_inner).1 = value;
            }
        });
        let (a, b) = (a.into_inner(), b.into_inner());
        let value = "both have run: each index runs once, and a panic was passed on";
        let (a, b) = (
            a.unwrap_or_else(PoisonError::into_inner).1,
            b.unwrap_or_else(PoisonError::into_inner).1,
        );
        (a.expect(value), b.expect(value))
    }

    /// The crew of a lasting job, such as a scope's: the caller's own.
    pub(crate) fn home(&self) -> &Crew {
        &self.crews[0]
    }

    /// The member that the calling thread is in a job it submits.
    pub(crate) fn caller(&self) -> Member {
        Member::current().unwrap_or(Member {
            thread: 0,
            node: None,
        })
    }

    /// Threads that can take part in a job of `len` tasks now.
    fn participants(&self, job: &Job<'_>, len: u32) -> usize {
        if self.is_orphaned() {
            return 1;
        }
        // More participants than CPUs would only wait for each other's time slices.
        let cpus = Cpus::current().usable as usize;
        let restricted = self.restricted.load(Ordering::Relaxed);
        job.threads_max.min(restricted).min(cpus).min(len as usize)
    }

    /// Spreads a job over the crews, takes part in it, and returns when no thread uses it any more.
    ///
    /// # Safety
    /// `work` is valid during the call, from any thread.
    pub(crate) unsafe fn spread(&self, job: &Job<'_>, work: PublishedJob, len: u32) {
        add(&self.jobs, 1);
        let participants = self.participants(job, len);
        let member = self.caller();
        let short = self.crews.len() == 1 && self.home().is_too_short(job.kind, job.len);
        if participants == 1 || short {
            add(&self.alone, 1);
            // SAFETY: the caller's promise.
            return unsafe { run_alone(work, len, member, &self.callers) };
        }
        let mut parts = Parts::new();
        self.deal(job, len, participants, &mut parts);
        let borrowed = Borrowed::begin();
        // The crews of other nodes first: their workers have the longer way.
        for part in parts.iter_mut().rev() {
            let crew = &self.crews[part.crew];
            let work = PublishedJob {
                base: part.base,
                seats: part.seats,
                ..work
            };
            part.slot = crew.take_slot();
            if let Some(slot) = part.slot {
                // SAFETY: the slot was just taken; `work` is valid until it is retired below.
                unsafe { crew.publish(slot, work, part.len, part.places, job.class) };
                crew.summon(part.places);
            }
        }
        for part in parts.iter() {
            let crew = &self.crews[part.crew];
            match part.slot {
                // SAFETY: published above. Seat 0 is the submitter's in the crew where it has a place.
                Some(slot) if part.places < part.seats => unsafe {
                    crew.participate(slot, member, &self.callers);
                },
                Some(slot) => crew.visit(slot, member, &self.callers),
                // SAFETY: the caller's promise.
                None => unsafe {
                    run_alone(
                        PublishedJob {
                            base: part.base,
                            ..work
                        },
                        part.len,
                        member,
                        &self.callers,
                    )
                },
            }
        }
        for part in parts.iter() {
            if let Some(slot) = part.slot {
                let crew = &self.crews[part.crew];
                let site = job.kind.map_or(&self.callers.idle, Kind::join_site);
                crew.retire(slot, job.class, &crew.waiting(site));
            }
        }
        borrowed.end();
    }

    /// Cuts the indices into one part for each crew, in proportion to the threads that take part: the same index meets
    /// the same node each time.
    fn deal(&self, job: &Job<'_>, len: u32, participants: usize, parts: &mut Parts) {
        let mut left = participants - 1;
        for (index, crew) in self.crews.iter().enumerate() {
            // The first crew is the caller's, unless a node was asked for: then it is that node's.
            let wanted = job.node.is_none_or(|node| crew.node == Some(node));
            let places = if wanted { crew.workers().min(left) } else { 0 };
            left -= places;
            let seats =
                places + usize::from(parts.is_empty() && (wanted || index + 1 == self.crews.len()));
            if seats > 0 {
                parts.push(Part {
                    crew: index,
                    base: 0,
                    len: 0,
                    seats,
                    places,
                    slot: None,
                });
            }
        }
        let seats: usize = parts.iter().map(|part| part.seats).sum();
        let (mut dealt, mut seated) = (0, 0);
        for part in parts.iter_mut() {
            seated += part.seats;
            let end = (u64::from(len) * seated as u64 / seats as u64) as u32;
            (part.base, part.len) = (dealt, end - dealt);
            dealt = end;
        }
    }
}

/// The part of a job that one crew gets.
#[derive(Clone, Copy, Debug)]
struct Part {
    crew: usize,
    base: u32,
    len: u32,
    /// Participants, and how many of them are workers.
    seats: usize,
    places: usize,
    slot: Option<Taken>,
}

/// Up to one part for each node, without an allocation.
#[derive(Debug)]
struct Parts {
    parts: [Option<Part>; NODES_MAX],
    len: usize,
}

impl Parts {
    fn new() -> Self {
        Self {
            parts: [None; NODES_MAX],
            len: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn push(&mut self, part: Part) {
        self.parts[self.len] = Some(part);
        self.len += 1;
    }

    fn iter(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().flatten()
    }

    fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Part> {
        self.parts.iter_mut().flatten()
    }
}
