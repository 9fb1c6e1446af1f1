use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use slackwater_net::Source;

use super::{Full, Task};

/// The source of peers that ask for admission, as far as limits tell sources apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AdmissionSource {
    /// A host, or the network that it may pick its address from.
    Host(IpAddr),
    /// A user of this machine.
    User(u32),
}

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
    sources: BTreeMap<AdmissionSource, Due>,
    /// Sources that may have something begun, in the order of their turns; each once.
    turns: VecDeque<AdmissionSource>,
    /// Decisions due or under way.
    count: usize,
    active: usize,
}

#[derive(Default)]
struct Due {
    tasks: VecDeque<Task>,
    active: usize,
    has_turn: bool,
}

impl AdmissionSource {
    pub(crate) fn of(source: &Source) -> Self {
        match source {
            Source::Ip(address) => AdmissionSource::Host(source.ip().unwrap_or(address.ip())),
            Source::Process { uid, .. } => AdmissionSource::User(*uid),
        }
    }
}

impl Admissions {
    pub(super) fn new(limits: AdmissionLimits) -> Self {
        Self {
            limits,
            sources: BTreeMap::new(),
            turns: VecDeque::new(),
            count: 0,
            active: 0,
        }
    }

    pub(super) fn push(&mut self, source: AdmissionSource, task: Task) -> Result<(), Full> {
        let known = self
            .sources
            .get(&source)
            .map_or(0, |due| due.tasks.len() + due.active);
        if self.count >= self.limits.total || known >= self.limits.per_source {
            return Err(Full);
        }
        let due = self.sources.entry(source).or_default();
        due.tasks.push_back(task);
        self.count += 1;
        self.give_turn(source);
        Ok(())
    }

    /// Begins the decision whose turn it is.
    pub(super) fn next(&mut self) -> Option<(AdmissionSource, Task)> {
        let source = self.turns.pop_front()?;
        let due = self.sources.get_mut(&source)?;
        due.has_turn = false;
        let task = due.tasks.pop_front()?;
        due.active += 1;
        self.active += 1;
        self.give_turn(source);
        Some((source, task))
    }

    pub(super) fn ended(&mut self, source: AdmissionSource) {
        self.count -= 1;
        self.active -= 1;
        let Some(due) = self.sources.get_mut(&source) else {
            return;
        };
        due.active -= 1;
        if due.active == 0 && due.tasks.is_empty() {
            self.sources.remove(&source);
        }
        self.give_turn(source);
    }

    fn give_turn(&mut self, source: AdmissionSource) {
        if let Some(due) = self.sources.get_mut(&source)
            && !due.has_turn
            && !due.tasks.is_empty()
            && due.active < self.limits.abreast
        {
            due.has_turn = true;
            self.turns.push_back(source);
        }
    }

    pub(super) fn has_next(&self) -> bool {
        !self.turns.is_empty()
    }

    pub(super) fn active(&self) -> usize {
        self.active
    }

    pub(super) fn is_at_rest(&self) -> bool {
        self.count == 0
    }

    /// Takes out everything that is due; what is under way ends by itself.
    pub(super) fn drain(&mut self) -> Vec<Task> {
        self.turns.clear();
        self.sources
            .values_mut()
            .for_each(|due| due.has_turn = false);
        let due: Vec<Task> = self
            .sources
            .values_mut()
            .flat_map(|due| due.tasks.drain(..))
            .collect();
        self.sources.retain(|_, due| due.active > 0);
        self.count -= due.len();
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(last: u8) -> AdmissionSource {
        AdmissionSource::Host(IpAddr::from([127, 0, 0, last]))
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
        let next = |admissions: &mut Admissions| admissions.next().map(|(source, _)| source);
        assert_eq!(
            [
                next(&mut admissions),
                next(&mut admissions),
                next(&mut admissions)
            ],
            [Some(host(1)), Some(host(2)), None]
        );
        assert_eq!(push(&mut admissions, 3), Ok(()));
        assert_eq!(
            push(&mut admissions, 4),
            Err(Full),
            "five are due or under way"
        );
        admissions.ended(host(1));
        assert_eq!(
            [next(&mut admissions), next(&mut admissions)],
            [Some(host(3)), Some(host(1))]
        );
        for last in [1, 2, 3] {
            admissions.ended(host(last));
        }
        assert_eq!(admissions.drain().len(), 1);
        assert!(admissions.is_at_rest() && admissions.sources.is_empty());
    }
}
