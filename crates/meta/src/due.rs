use std::collections::BTreeSet;
use std::hash::Hash;

use slackwater_base::{Instant, Map};

/// Deadlines: one for each key, exact, which can be changed and cancelled.
#[derive(Debug)]
pub(crate) struct Deadlines<K> {
    queue: BTreeSet<(Instant, K)>,
    of: Map<K, Instant>,
}

impl<K: Copy + Ord + Hash> Deadlines<K> {
    pub(crate) fn new() -> Self {
        Self {
            queue: BTreeSet::new(),
            of: Map::default(),
        }
    }

    /// Sets the deadline of `key`, and replaces an earlier one.
    pub(crate) fn set(&mut self, key: K, at: Instant) {
        if let Some(before) = self.of.insert(key, at) {
            self.queue.remove(&(before, key));
        }
        self.queue.insert((at, key));
    }

    pub(crate) fn cancel(&mut self, key: K) {
        if let Some(before) = self.of.remove(&key) {
            self.queue.remove(&(before, key));
        }
    }

    /// The deadline of `key`, if it has one.
    pub(crate) fn at(&self, key: &K) -> Option<Instant> {
        self.of.get(key).copied()
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.queue.first().map(|(at, _)| *at)
    }

    pub(crate) fn first(&self) -> Option<K> {
        self.queue.first().map(|(_, key)| *key)
    }

    /// Removes and returns the first key whose deadline has come.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<K> {
        let (at, key) = *self.queue.first()?;
        if at > now {
            return None;
        }
        self.queue.pop_first();
        self.of.remove(&key);
        Some(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_deadline() {
        let at = Instant::from_nanos;
        let mut due = Deadlines::new();
        due.set('a', at(5));
        due.set('b', at(3));
        due.set('a', at(1));
        assert_eq!((due.next(), due.pop(at(0))), (Some(at(1)), None));
        assert_eq!(
            (due.pop(at(9)), due.pop(at(9)), due.pop(at(9))),
            (Some('a'), Some('b'), None)
        );
        due.set('c', at(1));
        due.cancel('c');
        assert_eq!((due.next(), due.len()), (None, 0));
    }
}
