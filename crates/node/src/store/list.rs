use slackwater_wire::{Key, List, Listed, Reply, Request};

use super::{Store, StoreError, refusal};

impl Store {
    /// One page of keys in byte order, with the mark that says whether more follow. A page holds at most 65,536 keys.
    ///
    /// # Errors
    /// When the pattern is no regular expression.
    pub fn list(&self, list: List) -> Result<Listed, StoreError> {
        match self.ask("a list", Request::List(list))? {
            Reply::List(listed) => Ok(listed),
            reply => Err(refusal(&reply)),
        }
    }

    /// Keys in byte order, page after page: so many, or as many as there are when that is less.
    ///
    /// Not one moment's state: keys that come or go meanwhile may or may not be in it.
    ///
    /// # Errors
    /// As [`Store::list`].
    pub fn list_up_to(&self, list: List, limit: usize) -> Result<Vec<Key>, StoreError> {
        Ok(paged(list, limit, |list| self.list(list))?.keys)
    }

    /// All keys in byte order, page after page.
    ///
    /// # Errors
    /// [`StoreError::ListTooLong`] when there are more than `limit`, and as [`Store::list`].
    pub fn list_all(&self, list: List, limit: usize) -> Result<Vec<Key>, StoreError> {
        let listed = paged(list, limit, |list| self.list(list))?;
        if listed.more {
            Err(StoreError::ListTooLong { limit })
        } else {
            Ok(listed.keys)
        }
    }
}

/// The pages that `next` gives for `list`, up to `limit` keys in all; `more` says whether keys follow the last.
fn paged(
    mut list: List,
    limit: usize,
    mut next: impl FnMut(List) -> Result<Listed, StoreError>,
) -> Result<Listed, StoreError> {
    let mut all = Listed {
        keys: Vec::new(),
        more: true,
    };
    while all.more && all.keys.len() < limit {
        list.limit = u32::try_from(limit - all.keys.len()).unwrap_or(u32::MAX);
        let page = next(list.clone())?;
        // A page without a key would be asked for again for ever.
        all.more = page.more && !page.keys.is_empty();
        list.after = page.keys.last().cloned();
        all.keys.extend(page.keys);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use slackwater_wire::Tenant;

    use super::*;

    /// A store of `count` keys that gives at most three a page.
    fn store(count: u8) -> impl FnMut(List) -> Result<Listed, StoreError> {
        move |list| {
            let first = list.after.map_or(0, |key| key.as_bytes()[0] + 1);
            let most = u8::try_from(list.limit.min(3)).unwrap_or(3);
            let end = count.min(first + most);
            let keys = (first..end).map(|at| Key::new(&[at]).unwrap()).collect();
            Ok(Listed {
                keys,
                more: end < count,
            })
        }
    }

    fn list() -> List {
        List {
            tenant: Tenant::default(),
            pattern: None,
            after: None,
            limit: 0,
        }
    }

    /// A page of the store was taken for the whole: keys after its own limit were never listed.
    #[test]
    fn pages_are_asked_for_until_the_end_or_the_limit() {
        let check = |count: u8, limit: usize, keys: usize, more: bool| {
            let listed = paged(list(), limit, store(count)).unwrap();
            let expected: Vec<Key> = (0..keys)
                .map(|at| Key::new(&[u8::try_from(at).unwrap()]).unwrap())
                .collect();
            assert_eq!(
                (listed.keys, listed.more),
                (expected, more),
                "{count} keys, {limit}"
            );
        };
        check(10, 100, 10, false);
        check(10, 10, 10, false);
        check(10, 9, 9, true);
        check(9, 9, 9, false);
        check(10, 0, 0, true);
        check(0, 5, 0, false);
    }
}
