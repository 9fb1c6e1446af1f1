use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::PublicKey;

/// DEALER: whose turn it is. Links take turns, those without room are passed over, each at most once a turn.
#[derive(Clone, Debug)]
pub struct Rotation<L> {
    links: Vec<L>,
    turn: usize,
}

impl<L: Copy + PartialEq> Rotation<L> {
    /// No peer yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            links: Vec::new(),
            turn: 0,
        }
    }

    /// Adds a link to the end of the round.
    pub fn add(&mut self, link: L) {
        self.links.push(link);
    }

    /// Takes a link out; the turn of the others stays.
    pub fn remove(&mut self, link: L) {
        if let Some(at) = self.links.iter().position(|known| *known == link) {
            self.links.remove(at);
            if at < self.turn {
                self.turn -= 1;
            }
        }
    }

    /// The next link with room; none when every link was asked once and none has.
    pub fn next(&mut self, mut has_room: impl FnMut(L) -> bool) -> Option<L> {
        for step in 0..self.links.len() {
            let at = (self.turn + step) % self.links.len();
            if has_room(self.links[at]) {
                self.turn = (at + 1) % self.links.len();
                return Some(self.links[at]);
            }
        }
        None
    }
}

impl<L: Copy + PartialEq> Default for Rotation<L> {
    fn default() -> Self {
        Self::new()
    }
}

/// ROUTER: which link a routing id leads to.
#[derive(Clone, Debug)]
pub struct Routes<L> {
    by_id: BTreeMap<Vec<u8>, (L, Option<PublicKey>)>,
    next_generated: u32,
    plain_handover: bool,
}

/// The outcome for a link that asked for a routing id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry<L> {
    /// The id is its own; a generated one when it brought none.
    New(Vec<u8>),
    /// It took the id over from this link, which must be closed.
    Handover {
        /// The id.
        id: Vec<u8>,
        /// The link that had the id.
        from: L,
    },
    /// Another link has the id and may keep it.
    Taken,
}

impl<L: Copy + PartialEq> Routes<L> {
    /// No routes. An id changes hands only to a link with the same key; between links without keys only when
    /// `plain_handover` says so, because there any peer could take the id of another. An id that is `L` and a key (OxenMQ's
    /// form) is that key's: no other key gets it, and a link that has it without a key gives way.
    #[must_use]
    pub const fn new(plain_handover: bool) -> Self {
        Self {
            by_id: BTreeMap::new(),
            next_generated: 0,
            plain_handover,
        }
    }

    /// Enters `link` under the id it announced, or under a generated one when that is empty.
    pub fn enter(&mut self, announced: &[u8], key: Option<PublicKey>, link: L) -> Entry<L> {
        if announced.is_empty() {
            let id = self.generate();
            self.by_id.insert(id.clone(), (link, key));
            return Entry::New(id);
        }
        let id = announced.to_vec();
        let is_owner = key.map(|key| owner_of(announced) == Some(key));
        match self.by_id.get(announced) {
            _ if owner_of(announced).is_some() && is_owner == Some(false) => Entry::Taken,
            None => {
                self.by_id.insert(id.clone(), (link, key));
                Entry::New(id)
            }
            Some((from, owner))
                if *owner == key && (key.is_some() || self.plain_handover)
                    || is_owner == Some(true) =>
            {
                let from = *from;
                self.by_id.insert(id.clone(), (link, key));
                Entry::Handover { id, from }
            }
            Some(_) => Entry::Taken,
        }
    }

    /// The link an id leads to.
    #[must_use]
    pub fn find(&self, id: &[u8]) -> Option<L> {
        self.by_id.get(id).map(|(link, _)| *link)
    }

    /// Forgets the id, if it still leads to `link`.
    pub fn leave(&mut self, id: &[u8], link: L) {
        if self.find(id) == Some(link) {
            self.by_id.remove(id);
        }
    }

    /// The number of routes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there is no route.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    fn generate(&mut self) -> Vec<u8> {
        loop {
            let mut id = vec![0];
            id.extend_from_slice(&self.next_generated.to_be_bytes());
            self.next_generated = self.next_generated.wrapping_add(1);
            if !self.by_id.contains_key(&id) {
                return id;
            }
        }
    }
}

/// The key in an id of OxenMQ's form: `L`, then the 32 bytes of the key.
fn owner_of(id: &[u8]) -> Option<PublicKey> {
    let (first, key) = id.split_first()?;
    (*first == b'L')
        .then(|| key.try_into().ok().map(PublicKey::from_bytes))
        .flatten()
}

/// A subscriber asked for more topics than it may, or for longer ones.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("more than {limit} topics, or {bytes} bytes of them, on one link")]
pub struct TooManyTopics {
    /// How many it may have.
    pub limit: usize,
    /// How many bytes they may have together.
    pub bytes: usize,
}

/// Room for each topic that a link may have.
const TOPIC_BYTES: usize = 64;

/// PUB: the subscriptions of each peer, by prefix. Finding the receivers of a topic costs one look-up for each *length* that
/// any prefix has, not one for each subscriber.
#[derive(Clone, Debug)]
pub struct Subscriptions<L> {
    by_prefix: BTreeMap<Vec<u8>, BTreeMap<L, u32>>,
    lengths: BTreeMap<usize, usize>,
    by_link: BTreeMap<L, Held>,
    limit: usize,
}

/// What one link wants.
#[derive(Clone, Debug, Default)]
struct Held {
    topics: BTreeSet<Vec<u8>>,
    bytes: usize,
}

impl<L: Copy + Ord> Subscriptions<L> {
    /// No subscriptions; each link may hold `limit` different prefixes of 64 bytes on average.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self {
            by_prefix: BTreeMap::new(),
            lengths: BTreeMap::new(),
            by_link: BTreeMap::new(),
            limit,
        }
    }

    /// `link` wants topics that begin with `prefix`. The same prefix may be wanted several times.
    ///
    /// # Errors
    /// [`TooManyTopics`] beyond the limit; nothing was changed then.
    pub fn subscribe(&mut self, link: L, prefix: &[u8]) -> Result<(), TooManyTopics> {
        let held = self.by_link.entry(link).or_default();
        if !held.topics.contains(prefix) {
            let most = self.limit.saturating_mul(TOPIC_BYTES);
            if held.topics.len() >= self.limit || held.bytes + prefix.len() > most {
                return Err(TooManyTopics {
                    limit: self.limit,
                    bytes: most,
                });
            }
            held.topics.insert(prefix.to_vec());
            held.bytes += prefix.len();
        }
        let links = self.by_prefix.entry(prefix.to_vec()).or_insert_with(|| {
            *self.lengths.entry(prefix.len()).or_default() += 1;
            BTreeMap::new()
        });
        let wishes: &mut u32 = links.entry(link).or_default();
        *wishes = wishes.saturating_add(1);
        Ok(())
    }

    /// `link` takes one wish for `prefix` back.
    pub fn cancel(&mut self, link: L, prefix: &[u8]) {
        let Some(links) = self.by_prefix.get_mut(prefix) else {
            return;
        };
        let Some(count) = links.get_mut(&link) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.drop_prefix(link, prefix);
            if let Some(held) = self.by_link.get_mut(&link)
                && held.topics.remove(prefix)
            {
                held.bytes -= prefix.len();
            }
        }
    }

    /// Forgets everything `link` wanted.
    pub fn remove(&mut self, link: L) {
        for prefix in self.by_link.remove(&link).unwrap_or_default().topics {
            self.drop_prefix(link, &prefix);
        }
    }

    /// The links that want `topic`, each once, in order.
    #[must_use]
    pub fn receivers(&self, topic: &[u8]) -> Vec<L> {
        let mut found = Vec::new();
        for length in self
            .lengths
            .range(..=topic.len())
            .map(|(length, _)| *length)
        {
            if let Some(links) = self.by_prefix.get(&topic[..length]) {
                found.extend(links.keys().copied());
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn drop_prefix(&mut self, link: L, prefix: &[u8]) {
        let Some(links) = self.by_prefix.get_mut(prefix) else {
            return;
        };
        links.remove(&link);
        if links.is_empty() {
            self.by_prefix.remove(prefix);
            if let Some(count) = self.lengths.get_mut(&prefix.len()) {
                *count -= 1;
                if *count == 0 {
                    self.lengths.remove(&prefix.len());
                }
            }
        }
    }
}

/// SUB: the subscriptions of this side, sent to every publisher that it connects to.
#[derive(Clone, Debug, Default)]
pub struct Interests(BTreeMap<Vec<u8>, u32>);

impl Interests {
    /// Nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Wants topics beginning with `prefix`; true when publishers must be sent it.
    pub fn add(&mut self, prefix: &[u8]) -> bool {
        let count = self.0.entry(prefix.to_vec()).or_default();
        *count += 1;
        *count == 1
    }

    /// Takes one wish back; true when publishers must be sent it.
    pub fn remove(&mut self, prefix: &[u8]) -> bool {
        match self.0.get_mut(prefix) {
            Some(1) => self.0.remove(prefix).is_some(),
            Some(count) => {
                *count -= 1;
                false
            }
            None => false,
        }
    }

    /// All prefixes, for a publisher that has just come up.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.keys().map(Vec::as_slice)
    }

    /// Whether `topic` is wanted: a publisher of minor version 0 may send more than was asked for.
    #[must_use]
    pub fn wants(&self, topic: &[u8]) -> bool {
        self.0.keys().any(|prefix| topic.starts_with(prefix))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn turns_pass_over_links_without_room_and_end() {
        let mut rotation = Rotation::new();
        for link in ["a", "b", "c"] {
            rotation.add(link);
        }
        let mut next = |full: &str| rotation.next(|link| !full.contains(link));
        assert_eq!(
            [next(""), next(""), next("")],
            [Some("a"), Some("b"), Some("c")]
        );
        assert_eq!(next("a"), Some("b"));
        assert_eq!(next("abc"), None);
        rotation.remove("b");
        assert_eq!(rotation.next(|_| true), Some("c"));
        assert_eq!(rotation.next(|_| true), Some("a"));
    }

    #[test]
    fn an_id_changes_hands_only_to_the_same_key() {
        let key = |byte| Some(PublicKey::from_bytes([byte; 32]));
        let mut routes = Routes::new(false);
        assert_eq!(routes.enter(b"x", key(1), 1), Entry::New(b"x".to_vec()));
        assert_eq!(routes.enter(b"x", key(2), 2), Entry::Taken);
        assert_eq!(routes.enter(b"x", None, 2), Entry::Taken);
        assert_eq!(
            routes.enter(b"x", key(1), 3),
            Entry::Handover {
                id: b"x".to_vec(),
                from: 1
            }
        );
        routes.leave(b"x", 1);
        assert_eq!(routes.find(b"x"), Some(3));
        assert_eq!(routes.enter(b"y", None, 4), Entry::New(b"y".to_vec()));
        assert_eq!(routes.enter(b"y", None, 5), Entry::Taken);
        assert_eq!(
            Routes::new(true).enter(b"", None, 5),
            Entry::New(vec![0, 0, 0, 0, 0])
        );
        let mut plain = Routes::new(true);
        plain.enter(b"y", None, 4);
        assert_eq!(
            plain.enter(b"y", None, 5),
            Entry::Handover {
                id: b"y".to_vec(),
                from: 4
            }
        );
    }

    /// Any admitted peer could announce the id of another peer before that one came, and it was refused for ever.
    #[test]
    fn an_id_made_of_a_key_is_that_keys() {
        let key = |byte| PublicKey::from_bytes([byte; 32]);
        let id = [&b"L"[..], key(1).as_bytes()].concat();
        let mut routes = Routes::new(false);
        assert_eq!(routes.enter(&id, Some(key(2)), 2), Entry::Taken);
        assert_eq!(routes.enter(&id, None, 3), Entry::New(id.clone()));
        assert_eq!(routes.enter(&id, None, 4), Entry::Taken);
        assert_eq!(routes.enter(&id, Some(key(2)), 5), Entry::Taken);
        assert_eq!(
            routes.enter(&id, Some(key(1)), 6),
            Entry::Handover {
                id: id.clone(),
                from: 3
            }
        );
        assert_eq!(
            routes.enter(&id, Some(key(1)), 7),
            Entry::Handover {
                id: id.clone(),
                from: 6
            }
        );
        assert_eq!(routes.enter(&id, None, 8), Entry::Taken);
    }

    proptest! {
        /// Against the obvious model: a list of (link, prefix) wishes.
        #[test]
        fn receivers_are_those_with_a_matching_wish(
            steps in prop::collection::vec((0u8..4, 0u8..3, "[ab]{0,3}"), 0..60),
            topic in "[ab]{0,5}",
        ) {
            let mut subscriptions = Subscriptions::new(64);
            let mut model: Vec<(u8, String)> = Vec::new();
            for (action, link, prefix) in steps {
                match action {
                    0 | 1 => {
                        subscriptions.subscribe(link, prefix.as_bytes()).unwrap();
                        model.push((link, prefix));
                    }
                    2 => {
                        subscriptions.cancel(link, prefix.as_bytes());
                        if let Some(at) = model.iter().position(|wish| *wish == (link, prefix.clone())) {
                            model.remove(at);
                        }
                    }
                    _ => {
                        subscriptions.remove(link);
                        model.retain(|(owner, _)| *owner != link);
                    }
                }
            }
            let want: BTreeSet<u8> =
                model.iter().filter(|(_, prefix)| topic.starts_with(prefix)).map(|(link, _)| *link).collect();
            prop_assert_eq!(subscriptions.receivers(topic.as_bytes()), want.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn topics_of_a_link_are_bounded() {
        let mut subscriptions = Subscriptions::new(2);
        subscriptions.subscribe(1, b"a").unwrap();
        subscriptions.subscribe(1, b"b").unwrap();
        subscriptions.subscribe(1, b"a").unwrap();
        assert_eq!(
            subscriptions.subscribe(1, b"c"),
            Err(TooManyTopics {
                limit: 2,
                bytes: 128
            })
        );
        subscriptions.subscribe(2, b"c").unwrap();
        // A thousand topics of a megabyte each were a thousand topics.
        assert!(subscriptions.subscribe(2, &[b'c'; 128]).is_err());
        subscriptions.subscribe(2, &[b'c'; 127]).unwrap();
        subscriptions.cancel(2, &[b'c'; 127]);
        subscriptions.subscribe(2, &[b'd'; 127]).unwrap();
        subscriptions.cancel(2, &[b'd'; 127]);
        assert!(subscriptions.receivers(b"c").eq(&[2]));
    }

    #[test]
    fn interests_are_told_once() {
        let mut interests = Interests::new();
        assert!(interests.add(b"a"));
        assert!(!interests.add(b"a"));
        assert!(interests.wants(b"ab") && !interests.wants(b"b"));
        assert!(!interests.remove(b"a"));
        assert!(interests.remove(b"a"));
        assert!(!interests.remove(b"a"));
    }
}
