use std::collections::{BTreeMap, VecDeque};

use slackwater_base::{Counted, Tally};
use slackwater_net::Origin;

use super::{Full, Task};

/// How many decisions may be due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmissionLimits {
    /// In all, those under way included.
    pub(crate) total: usize,
    /// For one source.
    pub(crate) per_source: usize,
    /// Under way for one source.
    pub(crate) abreast: usize,
}

/// Decisions on admission that are due or under way. Sources take turns, and none has all workers: a source that floods,
/// or whose decisions are slow, delays only itself.
pub(super) struct Admissions {
    limits: AdmissionLimits,
    sources: BTreeMap<Origin, Due>,
    /// Sources that may have something begun, in the order of their turns; each once.
    turns: VecDeque<Origin>,
    /// Decisions due or under way.
    count: Tally,
    active: Tally,
}

/// A decision under way.
pub(super) struct Deciding {
    source: Origin,
    of_all: Counted,
    of_active: Counted,
    of_source: Counted,
}

#[derive(Default)]
struct Due {
    tasks: VecDeque<(Counted, Task)>,
    active: Tally,
    has_turn: bool,
}

impl Admissions {
    pub(super) fn new(limits: AdmissionLimits) -> Self {
        Self {
            limits,
            sources: BTreeMap::new(),
            turns: VecDeque::new(),
            count: Tally::default(),
            active: Tally::default(),
        }
    }

    pub(super) fn push(&mut self, source: Origin, task: Task) -> Result<(), Full> {
        let known = self
            .sources
            .get(&source)
            .map_or(0, |due| due.tasks.len() + due.active.count());
        if self.count.count() >= self.limits.total || known >= self.limits.per_source {
            return Err(Full);
        }
        let due = self.sources.entry(source).or_default();
        due.tasks.push_back((self.count.add(), task));
        self.give_turn(source);
        Ok(())
    }

    /// Begins the decision whose turn it is.
    pub(super) fn next(&mut self) -> Option<(Deciding, Task)> {
        let source = self.turns.pop_front()?;
        let due = self.sources.get_mut(&source)?;
        due.has_turn = false;
        let (of_all, task) = due.tasks.pop_front()?;
        let deciding = Deciding {
            source,
            of_all,
            of_active: self.active.add(),
            of_source: due.active.add(),
        };
        self.give_turn(source);
        Some((deciding, task))
    }

    pub(super) fn ended(&mut self, deciding: Deciding) {
        let source = deciding.source;
        self.count.remove(deciding.of_all);
        self.active.remove(deciding.of_active);
        let Some(due) = self.sources.get_mut(&source) else {
            return;
        };
        due.active.remove(deciding.of_source);
        if due.active.count() == 0 && due.tasks.is_empty() {
            self.sources.remove(&source);
        }
        self.give_turn(source);
    }

    fn give_turn(&mut self, source: Origin) {
        if let Some(due) = self.sources.get_mut(&source)
            && !due.has_turn
            && !due.tasks.is_empty()
            && due.active.count() < self.limits.abreast
        {
            due.has_turn = true;
            self.turns.push_back(source);
        }
    }

    pub(super) fn has_next(&self) -> bool {
        !self.turns.is_empty()
    }

    pub(super) fn active(&self) -> usize {
        self.active.count()
    }

    pub(super) fn is_at_rest(&self) -> bool {
        self.count.count() == 0
    }

    /// Takes out everything that is due; what is under way ends by itself.
    pub(super) fn drain(&mut self) -> Vec<Task> {
        self.turns.clear();
        self.sources
            .values_mut()
            .for_each(|due| due.has_turn = false);
        let due: Vec<(Counted, Task)> = self
            .sources
            .values_mut()
            .flat_map(|due| due.tasks.drain(..))
            .collect();
        self.sources.retain(|_, due| due.active.count() > 0);
        due.into_iter()
            .map(|(counted, task)| {
                self.count.remove(counted);
                task
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn host(last: u8) -> Origin {
        Origin::Host(IpAddr::from([127, 0, 0, last]))
    }

    #[test]
    fn sources_take_turns_and_each_is_bounded() {
        let mut admissions = Admissions::new(AdmissionLimits {
            total: 5,
            per_source: 3,
            abreast: 1,
        });
        let push = |admissions: &mut Admissions, last| admissions.push(host(last), Box::new(|| {}));
        for _ in 0..3 {
            assert_eq!(push(&mut admissions, 1), Ok(()));
        }
        assert_eq!(push(&mut admissions, 1), Err(Full));
        assert_eq!(push(&mut admissions, 2), Ok(()));
        let next = |admissions: &mut Admissions, last| {
            let (deciding, _) = admissions.next().unwrap();
            assert_eq!(deciding.source, host(last));
            deciding
        };
        let first = next(&mut admissions, 1);
        let second = next(&mut admissions, 2);
        assert!(admissions.next().is_none());
        assert_eq!(push(&mut admissions, 3), Ok(()));
        assert_eq!(
            push(&mut admissions, 4),
            Err(Full),
            "five are due or under way"
        );
        admissions.ended(first);
        let rest = [next(&mut admissions, 3), next(&mut admissions, 1), second];
        rest.into_iter()
            .for_each(|deciding| admissions.ended(deciding));
        assert_eq!(admissions.drain().len(), 1);
        assert!(admissions.is_at_rest() && admissions.sources.is_empty());
    }
}
