use std::time::Duration;

use slackwater_base::{Instant, Map};

use crate::ConnectionId;

/// What a subscription changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// There was none.
    New,
    /// There was one with other data.
    Changed,
    /// There was the same one; it lasts longer now.
    Refreshed,
}

/// Subscribers with their expiry and data: application-level publish and subscribe over ordinary commands.
/// [`Subscriptions::publish`] skips expired entries and removes them.
#[derive(Clone, Debug)]
pub struct Subscriptions<T = ()> {
    entries: Map<ConnectionId, (T, Instant)>,
    lasts: Duration,
    limit: usize,
}

/// The default duration of a subscription.
const LASTS: Duration = Duration::from_secs(30 * 60);

impl<T: PartialEq> Subscriptions<T> {
    /// At most `limit` subscribers, each for half an hour.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self::lasting(limit, LASTS)
    }

    /// At most `limit` subscribers, each for `lasts`.
    #[must_use]
    pub fn lasting(limit: usize, lasts: Duration) -> Self {
        Self {
            entries: Map::default(),
            lasts,
            limit,
        }
    }

    /// Adds or renews a subscription; none when there are too many.
    pub fn subscribe(&mut self, connection: ConnectionId, data: T, now: Instant) -> Option<Change> {
        let expires = now + self.lasts;
        if self.entries.len() >= self.limit && !self.entries.contains_key(&connection) {
            self.entries.retain(|_, (_, expires)| *expires > now);
            if self.entries.len() >= self.limit {
                return None;
            }
        }
        match self.entries.insert(connection, (data, expires)) {
            Some((_, until)) if until <= now => Some(Change::New),
            None => Some(Change::New),
            Some((old, _)) => {
                let is_same = self
                    .entries
                    .get(&connection)
                    .is_some_and(|(new, _)| *new == old);
                Some(if is_same {
                    Change::Refreshed
                } else {
                    Change::Changed
                })
            }
        }
    }

    /// Ends a subscription; whether there was one.
    pub fn unsubscribe(&mut self, connection: ConnectionId, now: Instant) -> bool {
        self.entries
            .remove(&connection)
            .is_some_and(|(_, expires)| expires > now)
    }

    /// Calls `each` for every subscriber and forgets those whose time is over.
    pub fn publish(&mut self, now: Instant, mut each: impl FnMut(ConnectionId, &T)) {
        self.entries.retain(|connection, (data, expires)| {
            let lives = *expires > now;
            if lives {
                each(*connection, data);
            }
            lives
        });
    }

    /// Entries, the expired ones too.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LinkId;

    #[test]
    fn subscriptions_are_new_changed_refreshed_and_expire() {
        let at = |secs| Instant::ZERO + Duration::from_secs(secs);
        let connection = |serial| ConnectionId::Link(LinkId { shard: 0, serial });
        let mut subscriptions = Subscriptions::lasting(2, Duration::from_secs(10));
        assert_eq!(
            subscriptions.subscribe(connection(1), "a", at(0)),
            Some(Change::New)
        );
        assert_eq!(
            subscriptions.subscribe(connection(1), "b", at(1)),
            Some(Change::Changed)
        );
        assert_eq!(
            subscriptions.subscribe(connection(1), "b", at(2)),
            Some(Change::Refreshed)
        );
        assert_eq!(
            subscriptions.subscribe(connection(2), "c", at(5)),
            Some(Change::New)
        );
        assert_eq!(subscriptions.subscribe(connection(3), "d", at(6)), None);
        let mut heard = Vec::new();
        subscriptions.publish(at(13), |_, data| heard.push(*data));
        assert_eq!((heard, subscriptions.len()), (vec!["c"], 1));
        assert_eq!(
            subscriptions.subscribe(connection(3), "d", at(13)),
            Some(Change::New)
        );
        assert!(subscriptions.unsubscribe(connection(3), at(13)));
        assert!(!subscriptions.unsubscribe(connection(3), at(13)));
        assert_eq!(
            subscriptions.subscribe(connection(2), "c", at(20)),
            Some(Change::New)
        );
    }
}
