//! The clients of a served store: the links that each one has, the key that it has proven, and the requests that wait for
//! their answers.
//!
//! A client is one life of a process, under a name that it chose at random and that belongs to the key of its first link:
//! a link with another key cannot take part in its operations.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use slackwater_wire::{ClientId, ErrorCode, OperationId};

/// See the module. `L` names links, `K` keys, and `A` is the right to answer a request.
pub(crate) struct Clients<L, K, A> {
    by_id: BTreeMap<ClientId, Client<L, K>>,
    by_link: BTreeMap<L, ClientId>,
    /// Where in `places` what waits for an operation is.
    waiting: BTreeMap<(ClientId, OperationId), u32>,
    places: Vec<Option<Waiting<A>>>,
    free: Vec<u32>,
}

/// What waits for the answer to an operation: mostly one. Its owner lets go of it once others may use the table again.
#[derive(Debug)]
pub(crate) struct Waiting<A> {
    first: A,
    repeated: Vec<A>,
}

impl<A> Waiting<A> {
    /// From the oldest on.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &A> {
        std::iter::once(&self.first).chain(&self.repeated)
    }

    pub(crate) fn into_iter(self) -> impl Iterator<Item = A> {
        std::iter::once(self.first).chain(self.repeated)
    }
}

struct Client<L, K> {
    key: Option<K>,
    links: Vec<L>,
    host: Option<Arc<str>>,
}

/// Most links of one client: a client opens one, and a lost one may be noticed here only after its successor.
const LINKS_MAX: usize = 16;
/// Longest name of a host, in bytes: a boot id has 36.
const HOST_BYTES_MAX: usize = 64;
/// Most repetitions of one operation that are answered.
const REPEATED_MAX: usize = 4;
/// Operations that waited at once, above which their places are given back when none waits any more.
const PLACES_KEPT: usize = 1024;
/// Names up to this one are the process's own.
const OWN_NAMES: ClientId = ClientId(u32::MAX as u64);

impl<L: Copy + Ord, K: Copy + Eq, A> Clients<L, K, A> {
    pub(crate) fn new() -> Self {
        Self {
            by_id: BTreeMap::new(),
            by_link: BTreeMap::new(),
            waiting: BTreeMap::new(),
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    /// A client has sent something on a link whose key is proven.
    ///
    /// # Errors
    /// [`ErrorCode::IllegalClient`] for the name of another client, and [`ErrorCode::TaskPendingLimitExceeded`] for one
    /// with too many links.
    pub(crate) fn arrive(
        &mut self,
        link: L,
        client: ClientId,
        key: Option<K>,
    ) -> Result<(), ErrorCode> {
        match self.by_link.get(&link) {
            Some(known) if *known == client => return Ok(()),
            Some(_) => return Err(ErrorCode::IllegalClient),
            None if client <= OWN_NAMES => return Err(ErrorCode::IllegalClient),
            None => {}
        }
        let known = self.by_id.entry(client).or_insert_with(|| Client {
            key,
            links: Vec::new(),
            host: None,
        });
        if known.key != key {
            return Err(ErrorCode::IllegalClient);
        }
        if known.links.len() == LINKS_MAX {
            return Err(ErrorCode::TaskPendingLimitExceeded);
        }
        known.links.push(link);
        self.by_link.insert(link, client);
        Ok(())
    }

    /// A client says on which host it is. A name that is none is as good as no word of it.
    pub(crate) fn place(&mut self, client: ClientId, host: Option<&str>) {
        let host = host.filter(|host| (1..=HOST_BYTES_MAX).contains(&host.len()));
        if let Some(known) = self.by_id.get_mut(&client) {
            known.host = host.map(Arc::from);
        }
    }

    /// The host of a client, if it has said so.
    pub(crate) fn host_of(&self, client: ClientId) -> Option<Arc<str>> {
        self.by_id.get(&client)?.host.clone()
    }

    /// A link is gone: the client whose last one it was, and what waited for answers to it. The owner lets go of that once others
    /// may use this table again.
    pub(crate) fn leave(&mut self, link: L) -> Option<(ClientId, Vec<A>)> {
        let client = self.by_link.remove(&link)?;
        let known = self.by_id.get_mut(&client)?;
        known.links.retain(|other| *other != link);
        if !known.links.is_empty() {
            return None;
        }
        self.by_id.remove(&client);
        let of = (client, OperationId(0))..=(client, OperationId(u64::MAX));
        let waiting: Vec<_> = self.waiting.range(of).map(|(of, _)| *of).collect();
        let waiting = waiting.into_iter().filter_map(|of| self.take(of));
        Some((client, waiting.flat_map(Waiting::into_iter).collect()))
    }

    /// Whether the link is one of this client.
    pub(crate) fn is(&self, link: L, client: ClientId) -> bool {
        self.by_link.get(&link) == Some(&client)
    }

    /// An operation, or a repetition of it, waits for its answer, unless its link is gone: then nobody would get it. What does
    /// not wait, or not any more: the owner lets go of it once others may use this table again.
    #[must_use]
    pub(crate) fn wait(
        &mut self,
        link: L,
        client: ClientId,
        operation: OperationId,
        answer: A,
    ) -> Option<A> {
        if !self.is(link, client) {
            return Some(answer);
        }
        let Entry::Vacant(vacant) = self.waiting.entry((client, operation)) else {
            return self.repeat((client, operation), answer);
        };
        let waiting = Some(Waiting {
            first: answer,
            repeated: Vec::new(),
        });
        if let Some(place) = self.free.pop() {
            self.places[place as usize] = waiting;
            vacant.insert(place);
        } else {
            vacant.insert(self.places.len() as u32);
            self.places.push(waiting);
        }
        None
    }

    /// An operation waits once more, and the oldest that did so no longer if those are too many.
    fn repeat(&mut self, of: (ClientId, OperationId), answer: A) -> Option<A> {
        let place = self.waiting.get(&of).copied();
        let waiting = place.and_then(|place| self.places.get_mut(place as usize)?.as_mut());
        let Some(waiting) = waiting else {
            return Some(answer);
        };
        waiting.repeated.push(answer);
        (waiting.repeated.len() == REPEATED_MAX)
            .then(|| std::mem::replace(&mut waiting.first, waiting.repeated.remove(0)))
    }

    fn take(&mut self, of: (ClientId, OperationId)) -> Option<Waiting<A>> {
        let place = self.waiting.remove(&of)?;
        let waiting = self.places[place as usize].take();
        self.free.push(place);
        if self.waiting.is_empty() && self.places.len() > PLACES_KEPT {
            (self.places, self.free) = (Vec::new(), Vec::new());
        }
        waiting
    }

    /// Everything that waits for the answer to an operation, and the key of its client.
    pub(crate) fn answer(
        &mut self,
        client: ClientId,
        operation: OperationId,
    ) -> (Option<Waiting<A>>, Option<K>) {
        let waiting = self.take((client, operation));
        let key = self.by_id.get(&client).and_then(|known| known.key);
        (waiting, key)
    }

    /// Clients with a link.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const ANNA: ClientId = ClientId(1 << 40);
    const BERT: ClientId = ClientId(2 << 40);

    type Table = Clients<u32, char, &'static str>;

    #[test]
    fn a_name_belongs_to_the_key_that_used_it_first() {
        let mut table = Table::new();
        let mut check = |link, client, key, expected: Result<(), ErrorCode>| {
            assert_eq!(table.arrive(link, client, key), expected, "{link} {key:?}");
        };
        let illegal = Err(ErrorCode::IllegalClient);
        check(1, ANNA, Some('a'), Ok(()));
        check(1, ANNA, Some('a'), Ok(()));
        check(1, BERT, Some('a'), illegal);
        check(2, ANNA, Some('b'), illegal);
        check(2, ANNA, None, illegal);
        check(3, ANNA, Some('a'), Ok(()));
        check(4, ClientId(1), Some('a'), illegal);
        check(4, OWN_NAMES, None, illegal);
        assert_eq!(table.leave(1), None, "another link is open");
        assert_eq!(table.leave(2), None, "it was refused");
        assert_eq!(table.leave(3), Some((ANNA, vec![])));
        assert_eq!((table.leave(3), table.len()), (None, 0));
        assert_eq!(table.arrive(2, ANNA, Some('b')), Ok(()));
    }

    #[test]
    fn answers_reach_each_repetition_and_end_with_the_client() {
        let mut table = Table::new();
        let operation = OperationId(7);
        table.arrive(1, ANNA, Some('a')).unwrap();
        table.arrive(2, BERT, None).unwrap();
        let mut wait = |link, client, answer| table.wait(link, client, operation, answer);
        assert_eq!(wait(1, ANNA, "first"), None);
        assert_eq!(wait(1, ANNA, "again"), None);
        assert_eq!(wait(2, BERT, "another's"), None);
        let gone = "of a link that is gone";
        assert_eq!(wait(3, ANNA, gone), Some(gone));
        let (answered, key) = table.answer(ANNA, operation);
        let answered: Vec<_> = answered.into_iter().flat_map(Waiting::into_iter).collect();
        assert_eq!((answered, key), (vec!["first", "again"], Some('a')));
        assert!(table.answer(ANNA, operation).0.is_none());
        let all = ["1", "2", "3", "4", "5", "6"];
        let displaced = all.map(|answer| table.wait(1, ANNA, operation, answer));
        assert_eq!(displaced, [None, None, None, None, Some("1"), Some("2")]);
        assert_eq!(table.leave(1), Some((ANNA, vec!["3", "4", "5", "6"])));
        assert_eq!(table.waiting.len(), 1, "the other client's");
    }

    #[test]
    fn places_are_used_again_and_given_back() {
        let mut table = Table::new();
        table.arrive(1, ANNA, None).unwrap();
        let many = PLACES_KEPT as u64 + 1;
        let mut check = |count: u64, places: usize| {
            for operation in (0..count).map(OperationId) {
                assert_eq!(table.wait(1, ANNA, operation, "first"), None);
            }
            assert_eq!(table.wait(1, ANNA, OperationId(1), "again"), None);
            for operation in (0..count).map(OperationId) {
                let answered = table.answer(ANNA, operation).0.unwrap();
                assert_eq!(answered.iter().count(), 1 + usize::from(operation.0 == 1));
            }
            assert_eq!(table.places.len(), places, "{count}");
            assert!(table.places.iter().all(Option::is_none));
        };
        check(2, 2);
        check(3, 3);
        check(2, 3);
        check(many, 0);
        check(many - 1, PLACES_KEPT);
        check(2, PLACES_KEPT);
    }

    /// A request that is let go of is refused on its link, and who sends something may find other work of the loop to do first,
    /// such as the failed check of a node that has ended, which is an answer to a client. With the table in use by the same
    /// thread, neither came to an end.
    #[test]
    fn nothing_is_let_go_of_inside_the_table() {
        struct Held<'a>(&'a Cell<bool>);
        impl Drop for Held<'_> {
            fn drop(&mut self) {
                assert!(!self.0.get(), "the table is in use");
            }
        }
        let (inside, operation) = (Cell::new(false), OperationId(7));
        let mut table = Clients::<u32, char, Held<'_>>::new();
        table.arrive(1, ANNA, None).unwrap();
        for link in [1, 1, 1, 1, 1, 2] {
            inside.set(true);
            let over = table.wait(link, ANNA, operation, Held(&inside));
            inside.set(false);
            drop(over);
        }
        inside.set(true);
        let left = table.leave(1);
        inside.set(false);
        drop(left);
    }

    #[test]
    fn a_client_is_on_the_host_that_it_said_last() {
        let mut table = Table::new();
        let mut check = |said: Option<&str>, expected: Option<&str>| {
            table.arrive(1, ANNA, None).unwrap();
            table.place(ANNA, said);
            assert_eq!(table.host_of(ANNA).as_deref(), expected, "{said:?}");
            assert_eq!(table.host_of(BERT), None, "who has no link is nowhere");
            table.place(BERT, Some("b"));
        };
        let longest = "x".repeat(HOST_BYTES_MAX);
        check(Some("a"), Some("a"));
        check(Some(&longest), Some(&longest));
        check(Some(&(longest.clone() + "x")), None);
        check(Some("a"), Some("a"));
        check(Some(""), None);
        check(None, None);
        table.place(ANNA, Some("a"));
        drop(table.leave(1));
        assert_eq!(table.host_of(ANNA), None);
    }

    #[test]
    fn the_links_of_a_client_are_bounded() {
        let mut table = Table::new();
        for link in 0..LINKS_MAX as u32 {
            table.arrive(link, ANNA, None).unwrap();
        }
        let refused = Err(ErrorCode::TaskPendingLimitExceeded);
        assert_eq!(table.arrive(99, ANNA, None), refused);
        drop(table.leave(0));
        assert_eq!(table.arrive(99, ANNA, None), Ok(()));
    }
}
