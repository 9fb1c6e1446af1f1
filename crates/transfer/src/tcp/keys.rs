//! The keys of sealed connections, as files hold them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use slackwater_zmtp::{KeyPair, PublicKey, key_lines};
use zeroize::Zeroizing;

use super::config::TcpConfig;
use super::seal::SealConfig;

/// The keys that may connect. Clones are handles to the same list, so that it can be changed while engines use it: a
/// connection whose key was struck off ends with its next request.
#[derive(Clone, Debug, Default)]
pub struct AllowList(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    file: Option<PathBuf>,
    keys: RwLock<BTreeSet<PublicKey>>,
    /// Counts changes.
    version: AtomicU64,
}

impl AllowList {
    /// The list in a file, as `slackwater keys allow` keeps it: a key a line, then its level (`none` is not let in).
    ///
    /// # Errors
    /// The file, or a line of it, cannot be read; nobody is let in on half a list.
    pub fn load(path: &Path) -> Result<Self, String> {
        let keys = RwLock::new(read(path)?);
        Ok(Self(Arc::new(Inner {
            file: Some(path.to_owned()),
            keys,
            version: AtomicU64::new(0),
        })))
    }

    /// Reads its file again, if it has one.
    ///
    /// # Errors
    /// As for [`AllowList::load`]; the old list stays in force then.
    pub fn reload(&self) -> Result<(), String> {
        self.0
            .file
            .as_deref()
            .map_or(Ok(()), |path| read(path).map(|keys| self.replace(keys)))
    }

    /// Replaces the keys.
    pub fn replace(&self, keys: impl IntoIterator<Item = PublicKey>) {
        *self.0.keys.write().unwrap_or_else(PoisonError::into_inner) = keys.into_iter().collect();
        self.0.version.fetch_add(1, Ordering::Release);
    }

    /// Whether a key may connect.
    #[must_use]
    pub fn contains(&self, key: &PublicKey) -> bool {
        self.0
            .keys
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(key)
    }

    /// How often it was changed.
    pub(crate) fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }
}

impl FromIterator<PublicKey> for AllowList {
    fn from_iter<I: IntoIterator<Item = PublicKey>>(keys: I) -> Self {
        let keys = RwLock::new(keys.into_iter().collect());
        Self(Arc::new(Inner {
            keys,
            ..Inner::default()
        }))
    }
}

impl<const COUNT: usize> From<[PublicKey; COUNT]> for AllowList {
    fn from(keys: [PublicKey; COUNT]) -> Self {
        keys.into_iter().collect()
    }
}

/// Has the connections sealed under the key in a file.
pub(super) fn set_key(config: &mut TcpConfig, file: &str) -> Result<(), String> {
    let keys = load_pair(Path::new(file))?;
    let clients = config
        .seal
        .take()
        .map(|seal| seal.clients)
        .unwrap_or_default();
    config.seal = Some(SealConfig { keys, clients });
    Ok(())
}

/// Lets those in whose keys are in a file.
pub(super) fn set_clients(config: &mut TcpConfig, file: &str) -> Result<(), String> {
    let seal = config
        .seal
        .as_mut()
        .ok_or("a list of clients is of use with a seal_key alone")?;
    seal.clients = AllowList::load(Path::new(file))?;
    Ok(())
}

/// The pair in a key file that only its owner may read.
fn load_pair(path: &Path) -> Result<KeyPair, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let mode = fs::metadata(path)
        .map_err(|error| wrong(&error))?
        .permissions()
        .mode()
        & 0o777;
    if mode & 0o077 != 0 {
        return Err(wrong(&format!(
            "mode {mode:o} lets others read a secret key; it must be 600"
        )));
    }
    let text = Zeroizing::new(fs::read_to_string(path).map_err(|error| wrong(&error))?);
    KeyPair::from_file(&text).map_err(|error| wrong(&error))
}

fn read(path: &Path) -> Result<BTreeSet<PublicKey>, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let let_in = key_lines(&text).filter(|line| line.about.first() != Some(&"none"));
    let keys = let_in.map(|line| {
        line.key
            .map_err(|error| format!("{}, line {}: {error}", path.display(), line.number))
    });
    keys.collect()
}

#[cfg(test)]
mod tests {
    use slackwater_zmtp::SecretKey;

    use super::*;

    fn public(byte: u8) -> PublicKey {
        KeyPair::of(SecretKey::from_bytes([byte; 32])).public()
    }

    #[test]
    fn a_list_is_read_again_whole_or_not_at_all() {
        let folder = std::env::temp_dir().join(format!("slackwater-allow-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("allowed");
        fs::write(
            &path,
            format!(
                "# clients\n{} basic alice\n{} none bob\n",
                public(1),
                public(2)
            ),
        )
        .unwrap();
        let list = AllowList::load(&path).unwrap();
        let (held, listed) = (list.clone(), |list: &AllowList| {
            [1, 2, 3].map(|byte| list.contains(&public(byte)))
        });
        assert_eq!(listed(&held), [true, false, false]);
        fs::write(&path, format!("{}\nno key\n", public(3))).unwrap();
        assert!(list.reload().unwrap_err().contains("line 2"));
        assert_eq!((listed(&held), held.version()), ([true, false, false], 0));
        fs::write(&path, format!("{}\n", public(3))).unwrap();
        list.reload().unwrap();
        assert_eq!((listed(&held), held.version()), ([false, false, true], 1));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_secret_that_others_may_read_is_no_secret() {
        let path = std::env::temp_dir().join(format!("slackwater-key-{}", std::process::id()));
        fs::write(&path, format!("# secret key\n{}\n", "07".repeat(32))).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(
            load_pair(&path)
                .unwrap_err()
                .ends_with("mode 640 lets others read a secret key; it must be 600")
        );
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(load_pair(&path).unwrap().public(), public(7));
        fs::remove_file(&path).unwrap();
    }
}
