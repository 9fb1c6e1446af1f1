//! Randomness of the operating system.

use zeroize::Zeroizing;

use crate::seal::{Entropy, SealError};

/// Bytes for one key.
pub(crate) fn entropy() -> Result<Entropy, SealError> {
    let mut bytes = Zeroizing::new([0; 32]);
    getrandom::fill(bytes.as_mut_slice()).map_err(|_| SealError::Randomness)?;
    Ok(bytes)
}
