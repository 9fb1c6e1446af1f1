use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use slackwater_zmtp::{KeyLine, KeyTextError, PublicKey, key_lines};
use thiserror::Error;

/// What a peer may do. Levels are ordered: each includes those below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Connected, nothing more.
    #[default]
    None,
    /// A node of a pool: it lends memory, and asks for nothing itself.
    Node,
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
            Level::Node => "node",
            Level::Basic => "basic",
            Level::Admin => "admin",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Level::None, Level::Node, Level::Basic, Level::Admin]
            .into_iter()
            .find(|level| level.name() == word)
    }
}

/// Keys and their levels, in a file that may be reloaded while connections are open. Clones are handles to one list.
///
/// One key a line: `KEY LEVEL [tenants=TENANT,…] [memory=mapped] [NAME]`, the level `basic` when it is left out; `#` begins
/// a comment.
#[derive(Clone, Debug, Default)]
pub struct AllowList(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    path: Option<PathBuf>,
    keys: ArcSwap<BTreeMap<PublicKey, Allowed>>,
    version: AtomicU64,
    watchers: Watchers,
    /// Held from the reading of the file until what it says is in force.
    reloading: Mutex<()>,
}

/// What is called when the list has changed.
#[derive(Default)]
struct Watchers(Mutex<Vec<Watcher>>);

/// Says whether it is to be called at the next change too.
type Watcher = Box<dyn Fn() -> bool + Send>;

/// An entry of an [`AllowList`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// What the key may do.
    pub level: Level,
    /// The tenants whose objects it may reach; none for the default of the server that reads the list.
    pub tenants: Vec<String>,
    /// Its owner, in a process of the same host, may map all memory that is lent there, with the objects of every tenant in
    /// it. An [`Level::Admin`] may without being told so.
    pub maps: bool,
    /// The name of its owner, for people.
    pub name: String,
}

/// Why an allow-list cannot be read.
#[derive(Debug, Error)]
pub enum AllowListError {
    /// The file cannot be read.
    #[error("{path}: {error}")]
    File {
        /// The file of the list.
        path: PathBuf,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// A line's key cannot be read.
    #[error("{path}, line {line}: {error}")]
    Key {
        /// The file of the list.
        path: PathBuf,
        /// Counted from one.
        line: usize,
        /// Why the text is not a key.
        error: KeyTextError,
    },
    /// A line names a tenant without a name.
    #[error("{path}, line {line}: `tenants=` takes names with commas between them")]
    Tenant {
        /// The file of the list.
        path: PathBuf,
        /// Counted from one.
        line: usize,
    },
    /// A line names tenants where its owner's name stands, so that they would not count.
    #[error(
        "{path}, line {line}: `{word}` does not stand behind the level: write `KEY LEVEL tenants=TENANT,… NAME`"
    )]
    TenantsMisplaced {
        /// The file of the list.
        path: PathBuf,
        /// Counted from one.
        line: usize,
        /// The word.
        word: String,
    },
    /// A line has a word about memory that is none, or that does not stand before the name.
    #[error(
        "{path}, line {line}: `{word}` is not understood: write `KEY LEVEL [tenants=TENANT,…] [memory=mapped] NAME`"
    )]
    Memory {
        /// The file of the list.
        path: PathBuf,
        /// Counted from one.
        line: usize,
        /// The word.
        word: String,
    },
    /// A line limits a key to tenants that may read the objects of all of them.
    #[error(
        "{path}, line {line}: `memory=mapped` lets a key read the objects of all tenants: leave it out, or `tenants=`"
    )]
    MapsForTenants {
        /// The file of the list.
        path: PathBuf,
        /// Counted from one.
        line: usize,
    },
    /// A line limits a level that reaches the objects of all tenants.
    #[error(
        "{path}, line {line}: an `admin` key reaches all tenants: leave `tenants=` out, or write `basic`"
    )]
    TenantsOfAdmin {
        /// The file of the list.
        path: PathBuf,
        /// Counted from one.
        line: usize,
    },
    /// A line's level is unknown.
    #[error("{path}, line {line}: `{word}` is no level (none, node, basic, admin)")]
    Level {
        /// The file of the list.
        path: PathBuf,
        /// Counted from one.
        line: usize,
        /// The word in the place of the level.
        word: String,
    },
}

impl AllowList {
    /// A list without a file.
    #[must_use]
    pub fn of(keys: impl IntoIterator<Item = (PublicKey, Level)>) -> Self {
        Self(Arc::new(Inner {
            keys: ArcSwap::from_pointee(without_names(keys)),
            ..Inner::default()
        }))
    }

    /// The list in `path`.
    ///
    /// # Errors
    /// When the file or a line of it cannot be read; no key of such a file is used.
    pub fn load(path: &Path) -> Result<Self, AllowListError> {
        let keys = read(path)?;
        Ok(Self(Arc::new(Inner {
            path: Some(path.to_owned()),
            keys: ArcSwap::from_pointee(keys),
            ..Inner::default()
        })))
    }

    /// Reads its file again, if it has one. Of several that do so at once each reads what is there when its turn comes.
    ///
    /// # Errors
    /// As [`AllowList::load`]; the old list stays in force then.
    pub fn reload(&self) -> Result<(), AllowListError> {
        match &self.0.path {
            Some(path) => self.reload_by(|| read(path)),
            None => Ok(()),
        }
    }

    fn reload_by(
        &self,
        read: impl FnOnce() -> Result<BTreeMap<PublicKey, Allowed>, AllowListError>,
    ) -> Result<(), AllowListError> {
        let reloading = &self.0.reloading;
        let _turn = reloading.lock().unwrap_or_else(PoisonError::into_inner);
        self.set(read()?);
        Ok(())
    }

    /// Replaces the keys.
    pub fn replace(&self, keys: impl IntoIterator<Item = (PublicKey, Level)>) {
        self.set(without_names(keys));
    }

    /// What `key` may do; none when it is not in the list.
    #[must_use]
    pub fn find(&self, key: &PublicKey) -> Option<Allowed> {
        self.0.keys.load().get(key).cloned()
    }

    /// Whether `key` is in the list with more than the level `none`.
    #[must_use]
    pub fn admits(&self, key: &PublicKey) -> bool {
        let keys = self.0.keys.load();
        keys.get(key).is_some_and(|found| found.level > Level::None)
    }

    /// Whether `key` is in the list and may map memory of a process of its host ([`Allowed::maps`]).
    #[must_use]
    pub fn maps(&self, key: &PublicKey) -> bool {
        let keys = self.0.keys.load();
        let found = keys.get(key).filter(|found| found.level > Level::None);
        found.is_some_and(|found| found.maps || found.level == Level::Admin)
    }

    /// Calls `changed` each time that the list was replaced, on the thread that did it, until it returns false. It must not
    /// replace or reload the list itself.
    pub fn when_changed(&self, changed: impl Fn() -> bool + Send + 'static) {
        let Watchers(watchers) = &self.0.watchers;
        let mut watchers = watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.push(Box::new(changed));
    }

    /// The keys that `wanted` takes, with their levels: for a list of those of them that may do something.
    #[must_use]
    pub fn those(&self, wanted: impl Fn(&Allowed) -> bool) -> Vec<(PublicKey, Level)> {
        let keys = self.0.keys.load();
        let wanted = keys.iter().filter(|(_, allowed)| wanted(allowed));
        wanted.map(|(key, allowed)| (*key, allowed.level)).collect()
    }

    /// How often the list has been replaced; a reader that has seen this number need not look its keys up again.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }

    /// Keys in the list.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.keys.load().len()
    }

    /// Whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn set(&self, keys: BTreeMap<PublicKey, Allowed>) {
        self.0.keys.store(Arc::new(keys));
        // After the keys, so that a reader of the new number finds the new keys.
        self.0.version.fetch_add(1, Ordering::Release);
        let Watchers(watchers) = &self.0.watchers;
        let mut watchers = watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|changed| changed());
    }
}

impl fmt::Debug for Watchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watchers")
    }
}

/// Ordinary clients.
impl FromIterator<PublicKey> for AllowList {
    fn from_iter<I: IntoIterator<Item = PublicKey>>(keys: I) -> Self {
        Self::of(keys.into_iter().map(|key| (key, Level::Basic)))
    }
}

impl<const COUNT: usize> From<[PublicKey; COUNT]> for AllowList {
    fn from(keys: [PublicKey; COUNT]) -> Self {
        keys.into_iter().collect()
    }
}

fn without_names(
    keys: impl IntoIterator<Item = (PublicKey, Level)>,
) -> BTreeMap<PublicKey, Allowed> {
    let name = String::new;
    keys.into_iter()
        .map(|(key, level)| {
            (
                key,
                Allowed {
                    level,
                    tenants: Vec::new(),
                    maps: false,
                    name: name(),
                },
            )
        })
        .collect()
}

fn read(path: &Path) -> Result<BTreeMap<PublicKey, Allowed>, AllowListError> {
    let text = std::fs::read_to_string(path).map_err(|error| AllowListError::File {
        path: path.to_owned(),
        error,
    })?;
    parse(path, &text)
}

/// How a word begins that names tenants.
const TENANTS: &str = "tenants=";
/// How a word begins that says what may be done with memory of the host, and the one that there is.
const MEMORY: &str = "memory=";
const MAPPED: &str = "memory=mapped";

fn parse(path: &Path, text: &str) -> Result<BTreeMap<PublicKey, Allowed>, AllowListError> {
    let mut keys = BTreeMap::new();
    for KeyLine {
        number: line,
        key,
        about,
    } in key_lines(text)
    {
        let key = key.map_err(|error| AllowListError::Key {
            path: path.to_owned(),
            line,
            error,
        })?;
        let is_tenants = |word: &&&str| word.starts_with(TENANTS);
        let named = about.get(1).and_then(|word| word.strip_prefix(TENANTS));
        let elsewhere = about.iter().enumerate().filter(|(at, _)| *at != 1);
        if let Some(word) = elsewhere.map(|(_, word)| word).find(is_tenants) {
            return Err(AllowListError::TenantsMisplaced {
                path: path.to_owned(),
                line,
                word: (*word).to_owned(),
            });
        }
        let word = about.first().copied().unwrap_or("basic");
        let level = Level::parse(word).ok_or_else(|| AllowListError::Level {
            path: path.to_owned(),
            line,
            word: word.to_owned(),
        })?;
        if level == Level::Admin && named.is_some() {
            return Err(AllowListError::TenantsOfAdmin {
                path: path.to_owned(),
                line,
            });
        }
        let mut rest = about.get(1..).unwrap_or_default();
        let mut tenants = Vec::new();
        if let Some(named) = named {
            rest = &rest[1..];
            tenants.extend(named.split(',').map(str::to_owned));
            if tenants.iter().any(String::is_empty) {
                return Err(AllowListError::Tenant {
                    path: path.to_owned(),
                    line,
                });
            }
        }
        let maps = rest.first() == Some(&MAPPED);
        if maps {
            rest = &rest[1..];
        }
        if let Some(word) = rest.iter().find(|word| word.starts_with(MEMORY)) {
            return Err(AllowListError::Memory {
                path: path.to_owned(),
                line,
                word: (*word).to_owned(),
            });
        }
        if maps && !tenants.is_empty() {
            return Err(AllowListError::MapsForTenants {
                path: path.to_owned(),
                line,
            });
        }
        let allowed = Allowed {
            level,
            tenants,
            maps,
            name: rest.join(" "),
        };
        keys.insert(key, allowed);
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "54fcba24e93249969316fb617c872bb0c1d1ff14800427c594cbfacf1bc2d652";

    /// Of two reloads at once the one that had read the file first could put its list in force last: a key that was taken away
    /// stayed.
    #[test]
    fn the_list_that_was_read_last_is_in_force() {
        let list = AllowList::of([]);
        let entries = |level: &str| parse(Path::new("list"), &format!("{KEY} {level}"));
        let (done, is_done) = std::sync::mpsc::channel();
        let newer = std::thread::scope(|scope| {
            let mut newer = None;
            let older = list.reload_by(|| {
                let read = entries("admin");
                newer = Some(scope.spawn(|| {
                    let reloaded = list.reload_by(|| entries("node"));
                    // The older one may be over by then.
                    let _ = done.send(());
                    reloaded
                }));
                // Nothing comes while the newer one waits for its turn.
                let _ = is_done.recv_timeout(std::time::Duration::from_millis(50));
                read
            });
            assert!(older.is_ok());
            newer.unwrap().join().unwrap()
        });
        assert!(newer.is_ok());
        let levels = list.those(|_| true).into_iter().map(|(_, level)| level);
        assert_eq!(levels.collect::<Vec<_>>(), [Level::Node]);
    }

    #[test]
    fn lists_read_and_errors_name_the_line() {
        let parse = |text: &str| parse(Path::new("list"), text);
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
        let of_node = parse(&format!("{KEY} node rack 7")).unwrap();
        assert_eq!(of_node.values().next().unwrap().level, Level::Node);
        let of_tenants = parse(&format!("{KEY} basic tenants=acme,globex the gateway")).unwrap();
        let allowed = of_tenants.values().next().unwrap();
        assert_eq!(
            (&allowed.tenants[..], allowed.name.as_str()),
            (&["acme".into(), "globex".into()][..], "the gateway")
        );
        assert_eq!(
            parse(&format!("{KEY} basic tenants=acme,,b"))
                .unwrap_err()
                .to_string(),
            "list, line 1: `tenants=` takes names with commas between them"
        );
        assert_eq!(
            parse(&format!("\n{KEY} root")).unwrap_err().to_string(),
            "list, line 2: `root` is no level (none, node, basic, admin)"
        );
        // Such a word was taken for a part of the owner's name, and the key reached the default tenant's objects.
        let check = |about: &str, expected: &str| {
            let told = parse(&format!("{KEY} {about}")).unwrap_err().to_string();
            assert!(told.contains(expected), "{about}: {told}");
        };
        for misplaced in [
            "basic anna tenants=acme",
            "tenants=acme",
            "none a b tenants=",
        ] {
            check(misplaced, "does not stand behind the level");
        }
        check("basic tenants=acme tenants=globex", "`tenants=globex`");
        check("admin tenants=acme", "an `admin` key reaches all tenants");
        check(
            "basic tenants=acme memory=mapped",
            "lets a key read the objects of all tenants",
        );
        for misplaced in [
            "basic memory=map",
            "basic anna memory=mapped",
            "node memory=mapped memory=mapped",
        ] {
            check(misplaced, "is not understood: write `KEY LEVEL");
        }
        // The level may be left out only where nothing stands behind it.
        check("memory=mapped", "`memory=mapped` is no level");
        assert!(
            parse("nokey basic")
                .unwrap_err()
                .to_string()
                .starts_with("list, line 1: a key of 5 characters")
        );
    }

    #[test]
    fn a_key_maps_memory_where_its_line_says_so_or_it_is_an_operators() {
        let key: PublicKey = KEY.parse().unwrap();
        for (about, expected, name) in [
            ("basic", false, ""),
            ("basic memory=mapped the engine", true, "the engine"),
            ("node memory=mapped", true, ""),
            ("none memory=mapped", false, ""),
            ("admin", true, ""),
            ("basic tenants=acme", false, ""),
        ] {
            let keys = parse(Path::new("list"), &format!("{KEY} {about}")).unwrap();
            assert_eq!(keys[&key].name, name);
            let list = AllowList(Arc::new(Inner {
                keys: ArcSwap::from_pointee(keys),
                ..Inner::default()
            }));
            assert_eq!(list.maps(&key), expected, "{about}");
        }
        assert!(!AllowList::default().maps(&key));
    }

    #[test]
    fn watchers_see_the_new_list_until_they_want_no_more() {
        let key: PublicKey = KEY.parse().unwrap();
        let list = AllowList::from([key]);
        let (seen, watched) = (Arc::new(Mutex::new(Vec::new())), list.clone());
        let told = Arc::clone(&seen);
        list.when_changed(move || {
            let mut told = told.lock().unwrap();
            told.push((watched.version(), watched.admits(&key)));
            told.len() < 2
        });
        for level in [Level::None, Level::Basic, Level::None] {
            list.replace([(key, level)]);
        }
        assert_eq!(*seen.lock().unwrap(), [(1, false), (2, true)]);
    }

    #[test]
    fn a_list_is_read_again_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("allowed");
        let key: PublicKey = KEY.parse().unwrap();
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        write(KEY);
        let list = AllowList::load(&path).unwrap();
        let held = list.clone();
        let check = |admits, len, version| {
            assert_eq!((held.admits(&key), held.len()), (admits, len));
            assert_eq!(held.version(), version);
        };
        check(true, 1, 0);
        write(&format!("{KEY} none\nno key\n"));
        let error = list.reload().unwrap_err().to_string();
        assert!(error.contains("allowed, line 2"), "{error}");
        check(true, 1, 0);
        write(&format!("{KEY} none\n"));
        list.reload().unwrap();
        check(false, 1, 1);
        write("");
        list.reload().unwrap();
        check(false, 0, 2);
        list.replace([(key, Level::Admin)]);
        check(true, 1, 3);
    }
}
