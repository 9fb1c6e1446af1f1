use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use slackwater_zmtp::{KeyPair, KeyTextError};
use thiserror::Error;
use zeroize::Zeroizing;

/// Why a key file cannot be read or written.
#[derive(Debug, Error)]
pub enum KeyFileError {
    /// The file system says no.
    #[error("{path}: {error}")]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Others may read it.
    #[error("{path}: mode {mode:o} lets others read a secret key; it must be 600")]
    Open {
        /// Which file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// There is no key in it.
    #[error("{path}: {error}")]
    Key {
        /// Which file.
        path: PathBuf,
        /// Why.
        error: KeyTextError,
    },
}

/// Reads the secret key in a file that only its owner may read.
///
/// # Errors
/// When it cannot be read, is open to others, or holds no key.
pub fn load_key(path: &Path) -> Result<KeyPair, KeyFileError> {
    let file_error = |error| KeyFileError::File {
        path: path.to_owned(),
        error,
    };
    let mode = std::fs::metadata(path)
        .map_err(file_error)?
        .permissions()
        .mode()
        & 0o777;
    if mode & 0o077 != 0 {
        return Err(KeyFileError::Open {
            path: path.to_owned(),
            mode,
        });
    }
    let text = Zeroizing::new(std::fs::read_to_string(path).map_err(file_error)?);
    KeyPair::from_file(&text).map_err(|error| KeyFileError::Key {
        path: path.to_owned(),
        error,
    })
}

/// Writes a secret key to a new file with mode 600; an existing file is left alone.
///
/// # Errors
/// When the file exists or cannot be written.
pub fn write_key(path: &Path, keys: &KeyPair) -> Result<(), KeyFileError> {
    let file_error = |error| KeyFileError::File {
        path: path.to_owned(),
        error,
    };
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(file_error)?;
    let mut text = Zeroizing::new(format!(
        "# secret key; its public key is {}\n",
        keys.public()
    ));
    for byte in keys.secret().expose() {
        text.push_str(&format!("{byte:02x}"));
    }
    text.push('\n');
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(file_error)
}

#[cfg(test)]
mod tests {
    use slackwater_zmtp::SecretKey;

    use super::*;

    #[test]
    fn keys_are_written_once_for_their_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let keys = KeyPair::of(SecretKey::from_bytes([7; 32]));
        write_key(&path, &keys).unwrap();
        assert_eq!(load_key(&path).unwrap().public(), keys.public());
        assert!(matches!(
            write_key(&path, &keys),
            Err(KeyFileError::File { .. })
        ));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(
            load_key(&path)
                .unwrap_err()
                .to_string()
                .ends_with("mode 644 lets others read a secret key; it must be 600")
        );
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "# nothing\n").unwrap();
        assert!(matches!(load_key(&path), Err(KeyFileError::Key { .. })));
    }
}
