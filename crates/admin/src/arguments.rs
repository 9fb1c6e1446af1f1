use std::collections::BTreeMap;

use slackwater_wire::{Key, Tenant};

use crate::Failure;

/// The arguments of a query string, as bytes: a key need not be text.
#[derive(Debug)]
pub(crate) struct Arguments(BTreeMap<String, Vec<u8>>);

impl Arguments {
    /// Reads `name=value&…`, percent-encoded, of which `known` names may be there.
    pub(crate) fn of(query: Option<&str>, known: &[&str]) -> Result<Self, Failure> {
        let mut arguments = BTreeMap::new();
        for pair in query
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty())
        {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !known.contains(&name) {
                let takes = match known {
                    [] => "no parameters".to_owned(),
                    known => known.join(", "),
                };
                let shown = name.escape_default();
                return Err(Failure::argument(format!(
                    "there is no parameter `{shown}`: this path takes {takes}"
                )));
            }
            let value = decoded(value).ok_or_else(|| {
                Failure::argument(format!(
                    "`{name}` has a % that two hexadecimal digits must follow"
                ))
            })?;
            if arguments.insert(name.to_owned(), value).is_some() {
                return Err(Failure::argument(format!("`{name}` is there twice")));
            }
        }
        Ok(Self(arguments))
    }

    pub(crate) fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(Vec::as_slice)
    }

    pub(crate) fn needed(&self, name: &str) -> Result<&[u8], Failure> {
        self.bytes(name)
            .ok_or_else(|| Failure::argument(format!("the parameter `{name}` is missing")))
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>, Failure> {
        self.bytes(name)
            .map(std::str::from_utf8)
            .transpose()
            .map_err(|_| Failure::argument(format!("`{name}` is no UTF-8 text")))
    }

    pub(crate) fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Failure> {
        let parse = |text: &str| {
            text.parse().map_err(|_| {
                Failure::argument(format!(
                    "`{name}` is no fitting number: {}",
                    text.escape_default()
                ))
            })
        };
        self.text(name)?.map(parse).transpose()
    }

    pub(crate) fn key(&self, name: &str) -> Result<Key, Failure> {
        key(self.needed(name)?)
    }

    /// The tenant that is named, or none.
    pub(crate) fn named_tenant(&self, name: &str) -> Result<Option<Tenant>, Failure> {
        let tenant = self.text(name)?.map(Tenant::new).transpose();
        tenant.map_err(|error| Failure::argument(format!("`{name}`: {error}")))
    }

    /// The tenant that is named, or the default one.
    pub(crate) fn tenant(&self) -> Result<Tenant, Failure> {
        Ok(self.named_tenant("tenant")?.unwrap_or_default())
    }
}

/// The key of these bytes.
pub(crate) fn key(bytes: &[u8]) -> Result<Key, Failure> {
    Key::new(bytes).map_err(|error| Failure::argument(error.to_string()))
}

/// The bytes of a percent-encoded text, in which `+` is a space.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            b'+' => b' ',
            byte => byte,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_or_refused_with_the_reason() {
        let known = ["key", "limit", "tenant"];
        let check = |query: &str, expected: Result<&[u8], &str>| {
            let got = Arguments::of(Some(query), &known)
                .and_then(|arguments| arguments.needed("key").map(<[u8]>::to_vec))
                .map_err(|failure| failure.message);
            match expected {
                Ok(bytes) => assert_eq!(got.as_deref(), Ok(bytes), "{query}"),
                Err(part) => assert!(got.unwrap_err().contains(part), "{query}"),
            }
        };
        check("key=a", Ok(b"a"));
        check("key=a%2Fb+c&limit=1", Ok(b"a/b c"));
        check("key=%ff%00", Ok(b"\xff\x00"));
        check("key=a=b", Ok(b"a=b"));
        check("&key=&", Ok(b""));
        check("", Err("`key` is missing"));
        check("key=%f", Err("two hexadecimal digits"));
        check("key=%zz", Err("two hexadecimal digits"));
        check("key=%+1", Err("two hexadecimal digits"));
        check("key=a&key=b", Err("twice"));
        check("keys=a", Err("this path takes key, limit, tenant"));
        let none = Arguments::of(Some("a=1"), &[]).unwrap_err();
        assert!(none.message.contains("takes no parameters"));
    }

    #[test]
    fn numbers_and_texts_are_checked() {
        let of = |query| Arguments::of(Some(query), &["limit", "tenant"]).unwrap();
        assert_eq!(of("limit=7").number::<u32>("limit"), Ok(Some(7)));
        assert_eq!(of("").number::<u32>("limit"), Ok(None));
        for wrong in ["limit=", "limit=-1", "limit=4294967296", "limit=%ff"] {
            assert!(of(wrong).number::<u32>("limit").is_err(), "{wrong}");
        }
        assert_eq!(of("tenant=a").tenant().unwrap().name(), "a");
        assert!(of("").tenant().unwrap().is_default());
        assert!(of("tenant=%ff").tenant().is_err());
    }
}
