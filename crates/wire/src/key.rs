use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::limits::{KEY_BYTES_MAX, TENANT_BYTES_MAX};

/// The name of an object within its tenant: 1 to 1,024 bytes, any bytes. Clones share the bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<[u8]>);

/// Why bytes are not a key.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum KeyError {
    /// A key of no bytes.
    #[error("a key must not be empty")]
    Empty,
    /// A key over the limit.
    #[error("a key of {bytes} bytes is over the limit of {limit}")]
    TooLong {
        /// Length of the refused key.
        bytes: usize,
        /// Longest key there may be.
        limit: usize,
    },
}

impl Key {
    /// The key made of `bytes`.
    ///
    /// # Errors
    /// When `bytes` is empty or longer than [`KEY_BYTES_MAX`].
    pub fn new(bytes: &[u8]) -> Result<Self, KeyError> {
        Self::check(bytes)?;
        Ok(Self(bytes.into()))
    }

    /// Whether `bytes` make a key, which is not made.
    ///
    /// # Errors
    /// As [`Key::new`].
    pub fn check(bytes: &[u8]) -> Result<(), KeyError> {
        match bytes.len() {
            0 => Err(KeyError::Empty),
            n if n > KEY_BYTES_MAX => Err(KeyError::TooLong {
                bytes: n,
                limit: KEY_BYTES_MAX,
            }),
            _ => Ok(()),
        }
    }

    /// The bytes of the key.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The key on one line: the text that it is, or its bytes with escapes where it is none.
    #[must_use]
    pub fn line(&self) -> String {
        match std::str::from_utf8(&self.0) {
            Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
            _ => self.to_string(),
        }
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<&str> for Key {
    type Error = KeyError;

    fn try_from(text: &str) -> Result<Self, KeyError> {
        Self::new(text.as_bytes())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.escape_ascii().fmt(f)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(KeyVisitor)
    }
}

struct KeyVisitor;

impl serde::de::Visitor<'_> for KeyVisitor {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key of 1 to 1,024 bytes")
    }

    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Key, E> {
        Key::new(bytes).map_err(E::custom)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Key, E> {
        self.visit_bytes(text.as_bytes())
    }
}

/// Whose objects: every key belongs to one tenant. The default tenant has the name `default`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(Option<Arc<str>>);

/// Why a text names no tenant.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TenantError {
    /// Names that begin with an underscore are reserved.
    #[error("tenant `{0}` begins with `_`, which is reserved")]
    Reserved(String),
    /// A control character, NUL included.
    #[error("tenant {0:?} contains a control character")]
    Control(String),
    /// A name over the limit.
    #[error("a tenant name of {bytes} bytes is over the limit of {limit}")]
    TooLong {
        /// Length of the refused name.
        bytes: usize,
        /// Longest name there may be.
        limit: usize,
    },
}

impl Tenant {
    /// The tenant of callers that name none.
    pub const DEFAULT: Tenant = Tenant(None);

    /// The tenant called `name`; an empty name and `default` mean the default tenant.
    ///
    /// # Errors
    /// When the name is reserved, too long or has control characters.
    pub fn new(name: &str) -> Result<Self, TenantError> {
        match name {
            "" | "default" => Ok(Self::DEFAULT),
            _ if name.len() > TENANT_BYTES_MAX => Err(TenantError::TooLong {
                bytes: name.len(),
                limit: TENANT_BYTES_MAX,
            }),
            _ if name.starts_with('_') => Err(TenantError::Reserved(name.to_owned())),
            _ if name.chars().any(char::is_control) => Err(TenantError::Control(name.to_owned())),
            _ => Ok(Self(Some(name.into()))),
        }
    }

    /// The tenant's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.as_deref().unwrap_or("default")
    }

    /// Whether this is the default tenant.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.0.is_none()
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// By its name, the default tenant too: nothing at all is what an absent tenant looks like, which can mean all of them.
impl Serialize for Tenant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Tenant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_option(TenantVisitor)
    }
}

/// Takes a name without memory of its own, since most are that of the default tenant.
struct TenantVisitor;

impl<'de> serde::de::Visitor<'de> for TenantVisitor {
    type Value = Tenant;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a tenant")
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<Tenant, E> {
        Ok(Tenant::DEFAULT)
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Tenant, E> {
        Ok(Tenant::DEFAULT)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tenant, D::Error> {
        deserializer.deserialize_str(self)
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Tenant, E> {
        Tenant::new(name).map_err(E::custom)
    }

    fn visit_bytes<E: serde::de::Error>(self, name: &[u8]) -> Result<Tenant, E> {
        self.visit_str(std::str::from_utf8(name).map_err(E::custom)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_one_to_1024_bytes() {
        assert_eq!(Key::new(b""), Err(KeyError::Empty));
        assert!(Key::new(&[0; 1024]).is_ok());
        assert_eq!(
            Key::new(&[0; 1025]),
            Err(KeyError::TooLong {
                bytes: 1025,
                limit: 1024
            })
        );
        assert_eq!(Key::new(b"a\n\xff").unwrap().to_string(), "a\\n\\xff");
    }

    #[test]
    fn tenants_follow_the_naming_rule() {
        assert_eq!(Tenant::new(""), Ok(Tenant::DEFAULT));
        assert_eq!(Tenant::new("default"), Ok(Tenant::DEFAULT));
        assert_eq!(Tenant::new("acme").unwrap().name(), "acme");
        assert_eq!(Tenant::new("_x"), Err(TenantError::Reserved("_x".into())));
        assert_eq!(
            Tenant::new("a\0b"),
            Err(TenantError::Control("a\0b".into()))
        );
    }

    #[test]
    fn a_tenant_may_be_said_in_every_way_a_text_is_and_be_absent() {
        #[derive(Deserialize)]
        struct Named {
            #[serde(default)]
            tenant: Tenant,
        }
        let acme = Tenant::new("acme").unwrap();
        let check = |bytes: &[u8], expected: Option<&Tenant>| {
            let read = rmp_serde::from_slice::<Tenant>(bytes);
            assert_eq!(read.ok().as_ref(), expected, "{bytes:x?}");
        };
        check(b"\xa4acme", Some(&acme));
        check(b"\xc4\x04acme", Some(&acme));
        check(b"\xc0", Some(&Tenant::DEFAULT));
        check(b"\xa0", Some(&Tenant::DEFAULT));
        check(b"\xc4\x01\xff", None);
        check(b"\xa2_x", None);
        check(b"\x07", None);
        let named = |bytes: &[u8]| rmp_serde::from_slice::<Named>(bytes).unwrap().tenant;
        assert_eq!(named(b"\x80"), Tenant::DEFAULT);
        assert_eq!(named(b"\x81\xa6tenant\xa4acme"), acme);
    }

    #[test]
    fn a_key_takes_one_line_whatever_its_bytes() {
        let check = |bytes: &[u8], expected: &str| {
            assert_eq!(Key::new(bytes).unwrap().line(), expected);
        };
        check(b"a/b c", "a/b c");
        check("caf\u{e9}".as_bytes(), "caf\u{e9}");
        check(b"a\nb", "a\\nb");
        check(b"\xff\x00", "\\xff\\x00");
    }

    #[test]
    fn keys_and_tenants_survive_the_wire() {
        let key = Key::new(b"\x00bin\xff").unwrap();
        let bytes = rmp_serde::to_vec_named(&key).unwrap();
        assert_eq!(rmp_serde::from_slice::<Key>(&bytes).unwrap(), key);
        assert!(
            rmp_serde::from_slice::<Key>(&rmp_serde::to_vec_named(&Vec::<u8>::new()).unwrap())
                .is_err()
        );
        for tenant in [Tenant::DEFAULT, Tenant::new("acme").unwrap()] {
            let bytes = rmp_serde::to_vec_named(&tenant).unwrap();
            assert_eq!(rmp_serde::from_slice::<Tenant>(&bytes).unwrap(), tenant);
        }
    }
}
