//! The learned tables as bytes, which are kept over a restart.

use slackwater_base::Checksum;

use crate::evict::RestoreError;

/// Magic and version; a change of what the numbers mean changes the version.
const HEADER: [u8; 8] = *b"SWGITT\x00\x04";

/// Writes `numbers` behind the header and before a CRC-64/NVME of all of it.
pub(super) fn write(numbers: impl Iterator<Item = f64>) -> Vec<u8> {
    let mut bytes = HEADER.to_vec();
    for number in numbers {
        bytes.extend_from_slice(&(number as f32).to_le_bytes());
    }
    let checksum = Checksum::of(&bytes);
    bytes.extend_from_slice(&checksum.0.to_le_bytes());
    bytes
}

/// Reads exactly `count` numbers, none of them negative, infinite or NaN.
pub(super) fn read(bytes: &[u8], count: usize) -> Result<Vec<f64>, RestoreError> {
    if !bytes.starts_with(&HEADER) {
        return Err(RestoreError::Foreign);
    }
    let (body, checksum) = bytes.split_last_chunk::<8>().ok_or(RestoreError::Damaged)?;
    let numbers = body.get(HEADER.len()..).ok_or(RestoreError::Damaged)?;
    if numbers.len() != count * 4 || Checksum::of(body) != Checksum(u64::from_le_bytes(*checksum)) {
        return Err(RestoreError::Damaged);
    }
    let (chunks, _) = numbers.as_chunks::<4>();
    let numbers: Vec<f64> = chunks
        .iter()
        .map(|chunk| f64::from(f32::from_le_bytes(*chunk)))
        .collect();
    let sound = numbers
        .iter()
        .all(|number| number.is_finite() && *number >= 0.0);
    if sound {
        Ok(numbers)
    } else {
        Err(RestoreError::Damaged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_back_and_any_damage_is_detected() {
        let numbers = [0.0, 1.5, 1e30];
        let bytes = write(numbers.into_iter());
        assert_eq!(read(&bytes, 3).unwrap()[1], 1.5);
        assert_eq!(read(&bytes, 4), Err(RestoreError::Damaged));
        assert_eq!(read(b"", 0), Err(RestoreError::Foreign));
        assert_eq!(read(&HEADER, 0), Err(RestoreError::Damaged));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            let expected = if at < HEADER.len() {
                RestoreError::Foreign
            } else {
                RestoreError::Damaged
            };
            assert_eq!(read(&damaged, 3), Err(expected), "byte {at}");
        }
        assert_eq!(
            read(&write([f64::NAN].into_iter()), 1),
            Err(RestoreError::Damaged)
        );
        assert_eq!(
            read(&write([-1.0].into_iter()), 1),
            Err(RestoreError::Damaged)
        );
    }
}
