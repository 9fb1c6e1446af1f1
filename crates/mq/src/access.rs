use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use slackwater_zmtp::{KeyLine, KeyTextError, PublicKey, key_lines};
use thiserror::Error;

/// What a peer may do. Levels are ordered: whoever has one has those below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Connected, nothing more.
    #[default]
    None,
    /// An ordinary client.
    Basic,
    /// An operator.
    Admin,
}

impl Level {
    /// The word for it in key lists.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Level::None => "none",
            Level::Basic => "basic",
            Level::Admin => "admin",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Level::None, Level::Basic, Level::Admin]
            .into_iter()
            .find(|level| level.name() == word)
    }
}

/// What a category asks of its callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The least level.
    pub level: Level,
    /// The caller must be an active node.
    pub remote_node: bool,
    /// This side must be a node.
    pub local_node: bool,
}

/// A peer that asks to come in.
#[derive(Clone, Debug)]
pub struct Applicant {
    /// Its address as text: an IP, or uid, gid and pid on a Unix socket.
    pub remote: String,
    /// The key it has proven; none on a plain listener.
    pub key: Option<PublicKey>,
    /// Whether the key is an active node's.
    pub is_node: bool,
}

/// A decision on an applicant; none refuses it.
pub type Decide = Arc<dyn Fn(&Applicant) -> Option<Level> + Send + Sync>;

/// How a listener decides who may come in.
#[derive(Clone)]
pub enum Admission {
    /// Everybody, with this level.
    Everybody(Level),
    /// Those in the list, with the level it gives; re-read whenever it is reloaded.
    Listed(Arc<AllowList>),
    /// A function decides. It runs on a worker, never on a loop, and may take its time: the peer waits alone.
    Ask(Decide),
}

/// Keys and their levels, in a file that may be reloaded while links are open.
///
/// One key a line: `KEY LEVEL [NAME]`; `#` begins a comment.
pub struct AllowList {
    path: Option<PathBuf>,
    keys: ArcSwap<BTreeMap<PublicKey, Allowed>>,
}

/// An entry of an [`AllowList`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// What the key may do.
    pub level: Level,
    /// Who it is, for people.
    pub name: String,
}

/// Why an allow-list cannot be read.
#[derive(Debug, Error)]
pub enum AllowListError {
    /// The file cannot be read.
    #[error("{path}: {error}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A line's key cannot be read.
    #[error("line {line}: {error}")]
    Key {
        /// Counted from one.
        line: usize,
        /// Why.
        error: KeyTextError,
    },
    /// A line's level is unknown.
    #[error("line {line}: `{word}` is no level (none, basic, admin)")]
    Level {
        /// Counted from one.
        line: usize,
        /// What stands there.
        word: String,
    },
}

impl AllowList {
    /// A list of the given keys, with no file behind it.
    #[must_use]
    pub fn of(keys: impl IntoIterator<Item = (PublicKey, Level)>) -> Self {
        let keys = keys
            .into_iter()
            .map(|(key, level)| {
                (
                    key,
                    Allowed {
                        level,
                        name: String::new(),
                    },
                )
            })
            .collect();
        Self {
            path: None,
            keys: ArcSwap::from_pointee(keys),
        }
    }

    /// The list in `path`.
    ///
    /// # Errors
    /// When the file or a line of it cannot be read; nobody is let in on half a list.
    pub fn load(path: &Path) -> Result<Self, AllowListError> {
        let keys = read(path)?;
        Ok(Self {
            path: Some(path.to_owned()),
            keys: ArcSwap::from_pointee(keys),
        })
    }

    /// Reads the file again. Links of keys that are no longer in it close when the owner calls
    /// [`Mq::rights_changed`](crate::Mq::rights_changed).
    ///
    /// # Errors
    /// As [`AllowList::load`]; the old list stays in force then.
    pub fn reload(&self) -> Result<(), AllowListError> {
        if let Some(path) = &self.path {
            self.keys.store(Arc::new(read(path)?));
        }
        Ok(())
    }

    /// Replaces the keys.
    pub fn replace(&self, keys: impl IntoIterator<Item = (PublicKey, Level)>) {
        let keys = keys
            .into_iter()
            .map(|(key, level)| {
                (
                    key,
                    Allowed {
                        level,
                        name: String::new(),
                    },
                )
            })
            .collect();
        self.keys.store(Arc::new(keys));
    }

    /// What `key` may do; none when it is not in the list.
    #[must_use]
    pub fn find(&self, key: &PublicKey) -> Option<Allowed> {
        self.keys.load().get(key).cloned()
    }

    /// Keys in the list.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.load().len()
    }

    /// Whether the list admits nobody.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn read(path: &Path) -> Result<BTreeMap<PublicKey, Allowed>, AllowListError> {
    let text = std::fs::read_to_string(path).map_err(|error| AllowListError::File {
        path: path.to_owned(),
        error,
    })?;
    parse(&text)
}

fn parse(text: &str) -> Result<BTreeMap<PublicKey, Allowed>, AllowListError> {
    let mut keys = BTreeMap::new();
    for KeyLine {
        number: line,
        key,
        about,
    } in key_lines(text)
    {
        let key = key.map_err(|error| AllowListError::Key { line, error })?;
        let word = about.first().copied().unwrap_or("basic");
        let level = Level::parse(word).ok_or_else(|| AllowListError::Level {
            line,
            word: word.to_owned(),
        })?;
        keys.insert(
            key,
            Allowed {
                level,
                name: about.get(1..).unwrap_or_default().join(" "),
            },
        );
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "54fcba24e93249969316fb617c872bb0c1d1ff14800427c594cbfacf1bc2d652";

    #[test]
    fn lists_read_and_errors_name_the_line() {
        let keys = parse(&format!("# people\n{KEY} admin the operator # on call\n\n")).unwrap();
        let allowed = keys.values().next().unwrap();
        assert_eq!(
            (allowed.level, allowed.name.as_str()),
            (Level::Admin, "the operator")
        );
        assert_eq!(
            parse(KEY).unwrap().values().next().unwrap().level,
            Level::Basic
        );
        assert_eq!(
            parse(&format!("\n{KEY} root")).unwrap_err().to_string(),
            "line 2: `root` is no level (none, basic, admin)"
        );
        assert!(
            parse("nokey basic")
                .unwrap_err()
                .to_string()
                .starts_with("line 1: a key of 5 characters")
        );
    }

    #[test]
    fn a_broken_file_leaves_the_old_list_in_force() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("allowed");
        std::fs::write(&path, KEY).unwrap();
        let list = AllowList::load(&path).unwrap();
        std::fs::write(&path, "rubbish").unwrap();
        assert!(list.reload().is_err());
        assert_eq!(list.len(), 1);
        std::fs::write(&path, "").unwrap();
        list.reload().unwrap();
        assert!(list.is_empty());
    }
}
