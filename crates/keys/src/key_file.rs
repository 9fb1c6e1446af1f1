use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use slackwater_zmtp::{KeyPair, KeyTextError, SecretKey};
use thiserror::Error;
use zeroize::Zeroizing;

/// Why a key file cannot be read or written.
#[derive(Debug, Error)]
pub enum KeyFileError {
    /// The file system refused.
    #[error("{path}: {error}")]
    File {
        /// The key file.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// Others may read it.
    #[error("{path}: mode {mode:o} lets others read a secret key; it must be 600")]
    Open {
        /// The key file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It is longer than a key with its comments can be.
    #[error("{path}: longer than {FILE_BYTES} bytes")]
    TooLong {
        /// The key file.
        path: PathBuf,
    },
    /// There is no key in it.
    #[error("{path}: {error}")]
    Key {
        /// The key file.
        path: PathBuf,
        /// What is wrong with its text.
        error: KeyTextError,
    },
}

/// A key file is read in one piece of at most this many bytes, so that no copy of the secret stays behind in memory.
const FILE_BYTES: usize = 64 << 10;

/// A fresh key pair from the randomness of the operating system.
///
/// # Errors
/// When the operating system gives none.
pub fn new_keys() -> Result<KeyPair, getrandom::Error> {
    let mut secret = Zeroizing::new([0; 32]);
    getrandom::fill(secret.as_mut_slice())?;
    Ok(KeyPair::of(SecretKey::from_bytes(*secret)))
}

/// Reads the secret key in a file that only its owner may read: its first line that is neither empty nor a comment.
///
/// # Errors
/// When it cannot be read, is open to others, or holds no key.
pub fn load_key(path: &Path) -> Result<KeyPair, KeyFileError> {
    let file_error = |error| KeyFileError::File {
        path: path.to_owned(),
        error,
    };
    let mut file = File::open(path).map_err(file_error)?;
    // The permissions of the open file, and not of another file that has its name by now.
    let mode = file.metadata().map_err(file_error)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(KeyFileError::Open {
            path: path.to_owned(),
            mode,
        });
    }
    let mut bytes = Zeroizing::new(vec![0; FILE_BYTES + 1]);
    let mut length = 0;
    while length < bytes.len() {
        match file.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(file_error(error)),
        }
    }
    if length > FILE_BYTES {
        return Err(KeyFileError::TooLong {
            path: path.to_owned(),
        });
    }
    let text = std::str::from_utf8(&bytes[..length])
        .map_err(|error| file_error(io::Error::new(io::ErrorKind::InvalidData, error)))?;
    KeyPair::from_file(text).map_err(|error| KeyFileError::Key {
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
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(file_error)?;
    let comment = format!("# secret key; its public key is {}\n", keys.public());
    let secret = keys.secret().expose();
    // Allocated at its final size: a string that grows leaves copies of the secret in memory.
    let mut text = Zeroizing::new(String::with_capacity(comment.len() + 2 * secret.len() + 1));
    text.push_str(&comment);
    for byte in secret {
        // Writing to a string does not fail.
        let _ = write!(*text, "{byte:02x}");
    }
    text.push('\n');
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(file_error)
}

#[cfg(test)]
mod tests {
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
    }

    #[test]
    fn files_that_hold_no_secret_key_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let key = "07".repeat(32);
        let check = |text: &[u8], mode, reason: &str| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let error = load_key(&path).unwrap_err().to_string();
            let place = path.display().to_string();
            assert!(
                error.starts_with(&place) && error.contains(reason),
                "{error}"
            );
        };
        let others = "lets others read a secret key; it must be 600";
        check(key.as_bytes(), 0o644, others);
        check(key.as_bytes(), 0o640, others);
        check(b"# nothing\n", 0o600, "a key of 0 characters");
        check(
            &[0xff; 64],
            0o600,
            "invalid utf-8 sequence of 1 bytes from index 0",
        );
        let long = format!("{key}\n{}", "#".repeat(FILE_BYTES));
        check(long.as_bytes(), 0o600, "longer than 65536 bytes");
    }
}
