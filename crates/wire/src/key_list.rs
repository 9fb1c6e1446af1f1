use std::fmt;

use serde::de::{DeserializeSeed, Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::key::{Key, KeyError};
use crate::limits::BATCH_KEYS_MAX;

/// The keys of a request about many objects, in one piece of memory: a [`Key`] each would be allocated and freed one by one,
/// which costs more than to look the object up. On the wire a list of keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct KeyList {
    bytes: Vec<u8>,
    /// Where each key ends.
    ends: Vec<u32>,
}

impl KeyList {
    /// The list of `keys`, in their order.
    ///
    /// # Errors
    /// When one of them is no key; see [`Key::new`].
    pub fn new<'k>(keys: impl IntoIterator<Item = &'k [u8]>) -> Result<Self, KeyError> {
        let mut list = Self::default();
        keys.into_iter().try_for_each(|key| list.push(key))?;
        Ok(list)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The bytes of each, in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        let mut start = 0;
        self.ends.iter().map(move |end| {
            let end = *end as usize;
            &self.bytes[std::mem::replace(&mut start, end)..end]
        })
    }

    fn push(&mut self, key: &[u8]) -> Result<(), KeyError> {
        Key::check(key)?;
        self.bytes.extend_from_slice(key);
        let end = u32::try_from(self.bytes.len());
        self.ends.push(end.expect("a request has far fewer bytes"));
        Ok(())
    }
}

impl From<Vec<Key>> for KeyList {
    fn from(keys: Vec<Key>) -> Self {
        Self::new(keys.iter().map(Key::as_bytes)).expect("they are keys")
    }
}

impl fmt::Debug for KeyList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.iter().map(|key| key.escape_ascii().to_string());
        f.debug_list().entries(keys).finish()
    }
}

impl Serialize for KeyList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        /// A key as [`Key`] writes it.
        struct Bytes<'k>(&'k [u8]);

        impl Serialize for Bytes<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_bytes(self.0)
            }
        }

        serializer.collect_seq(self.iter().map(Bytes))
    }
}

impl<'de> Deserialize<'de> for KeyList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ListVisitor)
    }
}

struct ListVisitor;

impl<'de> Visitor<'de> for ListVisitor {
    type Value = KeyList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {BATCH_KEYS_MAX} keys")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<KeyList, A::Error> {
        // The length that the body announces is its sender's claim: no room is taken for it.
        let mut list = KeyList::default();
        while items.next_element_seed(Next(&mut list))?.is_some() {
            if list.len() > BATCH_KEYS_MAX {
                return Err(A::Error::invalid_length(list.len(), &self));
            }
        }
        Ok(list)
    }
}

/// Reads one more key of a list.
struct Next<'l>(&'l mut KeyList);

impl<'de> DeserializeSeed<'de> for Next<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_bytes(self)
    }
}

impl Visitor<'_> for Next<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key of 1 to 1,024 bytes")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<(), E> {
        self.0.push(bytes).map_err(E::custom)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.visit_bytes(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_its_keys_are() {
        let keys = [&b"a"[..], b"\x00bin\xff", &[7; 1024]].map(|key| Key::new(key).unwrap());
        let list = KeyList::from(keys.to_vec());
        assert!(list.iter().eq(keys.iter().map(Key::as_bytes)));
        assert_eq!((list.len(), list.is_empty()), (3, false));
        assert_eq!(format!("{list:?}")[..20], *"[\"a\", \"\\\\x00bin\\\\xff");
        let bytes = rmp_serde::to_vec_named(&list).unwrap();
        assert_eq!(bytes, rmp_serde::to_vec_named(&keys.to_vec()).unwrap());
        assert_eq!(rmp_serde::from_slice::<KeyList>(&bytes).unwrap(), list);
        let none = rmp_serde::to_vec_named(&KeyList::default()).unwrap();
        assert!(rmp_serde::from_slice::<KeyList>(&none).unwrap().is_empty());
    }

    #[test]
    fn what_is_no_key_or_one_too_many_is_refused() {
        assert_eq!(KeyList::new([&b"a"[..], b""]), Err(KeyError::Empty));
        let is_read = |keys: &[&str]| {
            let bytes = rmp_serde::to_vec(keys).unwrap();
            rmp_serde::from_slice::<KeyList>(&bytes).is_ok()
        };
        assert!(is_read(&["a"; BATCH_KEYS_MAX]));
        assert!(!is_read(&["a"; BATCH_KEYS_MAX + 1]));
        assert!(is_read(&["a", &"k".repeat(1024)]));
        assert!(!is_read(&["a", &"k".repeat(1025)]));
        assert!(!is_read(&["a", ""]));
        assert!(rmp_serde::from_slice::<KeyList>(b"\x92\xa1a\x01").is_err());
        // A list of four thousand million keys is only announced.
        assert!(rmp_serde::from_slice::<KeyList>(b"\xdd\xff\xff\xff\xff\xa1a").is_err());
    }
}
