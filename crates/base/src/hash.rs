use foldhash::fast::FixedState;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// A map whose order follows from its contents alone, so that a run replays by seed.
///
/// Keys from outside the process must already be hashed by [`KeyHash::of`] under a secret, or bounded in number.
pub type Map<K, V> = hashbrown::HashMap<K, V, FixedState>;

/// The set that corresponds to [`Map`].
pub type Set<K> = hashbrown::HashSet<K, FixedState>;

/// The stable 128-bit identity of a key of a tenant (XXH3-128 over both): the name of a key in SSD records and
/// policies.
///
/// Stable across versions and machines. Not a secret and not collision-proof against an adversary: a record holds
/// the whole key beside it, and readers compare that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub u128);

impl KeyHash {
    /// The hash of `key` of tenant number `tenant`.
    #[must_use]
    pub fn of(tenant: u32, key: &[u8]) -> Self {
        if tenant == 0 {
            return Self(xxh3_128(key));
        }
        let number = tenant.to_le_bytes();
        let whole = key.len() + 1 + number.len();
        let (mut short, mut long) = ([0; 256], Vec::new());
        // Keys are mostly short, and a batch has thousands.
        let joined = short.get_mut(..whole).unwrap_or_else(|| {
            long.resize(whole, 0);
            &mut long
        });
        joined[..key.len()].copy_from_slice(key);
        joined[key.len() + 1..].copy_from_slice(&number);
        Self(xxh3_128(joined))
    }

    /// 64 of its bits, for tables and sketches.
    #[must_use]
    pub const fn low64(self) -> u64 {
        self.0 as u64
    }
}

/// XXH3-64 of `bytes`: stable, fast, not for adversaries.
#[must_use]
pub fn hash64(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_have_separate_identities() {
        assert_ne!(KeyHash::of(0, b"a"), KeyHash::of(1, b"a"));
        assert_ne!(KeyHash::of(1, b"a"), KeyHash::of(2, b"a"));
        assert_eq!(KeyHash::of(0, b"a"), KeyHash(xxh3_128(b"a")));
    }

    /// What is on SSDs is named by it.
    #[test]
    fn identities_are_those_of_the_key_a_zero_and_the_tenant() {
        for length in [1, 250, 251, 252, 1024] {
            let key = vec![7; length];
            let joined = [&key[..], &[0], &0x0403_0201_u32.to_le_bytes()].concat();
            assert_eq!(
                KeyHash::of(0x0403_0201, &key),
                KeyHash(xxh3_128(&joined)),
                "{length}"
            );
        }
    }
}
