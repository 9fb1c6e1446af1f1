use crc_fast::{CrcAlgorithm, Digest};

/// CRC-64/NVME of a byte string: the checksum that travels with every value from where it enters to where it leaves.
///
/// Detects any burst error up to 64 bits and all but 2^-64 of others (NVM Express Base Specification 2.0, §8.3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Checksum(pub u64);

impl Checksum {
    /// The checksum of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(crc_fast::checksum(CrcAlgorithm::Crc64Nvme, bytes))
    }

    /// The checksum of these bytes followed by `next_bytes` more whose own checksum is `next`: pieces can be summed
    /// apart, by several threads, and put together.
    #[must_use]
    pub fn followed_by(self, next: Self, next_bytes: u64) -> Self {
        Self(crc_fast::checksum_combine(CrcAlgorithm::Crc64Nvme, self.0, next.0, next_bytes))
    }
}

/// A checksum taken piece by piece: the same as [`Checksum::of`] over the pieces in order.
#[derive(Clone, Debug)]
pub struct Checksummer(Digest);

impl Checksummer {
    /// A checksum over nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc64Nvme))
    }

    /// Takes `bytes` in.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of everything taken in.
    #[must_use]
    pub fn finish(&self) -> Checksum {
        Checksum(self.0.finalize())
    }
}

impl Default for Checksummer {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of the CRC catalogue for CRC-64/NVME.
    #[test]
    fn matches_the_catalogue() {
        assert_eq!(Checksum::of(b"123456789"), Checksum(0xae8b_1486_0a79_9888));
    }

    #[test]
    fn pieces_equal_the_whole() {
        let bytes: Vec<u8> = (0..10_000u32).map(|i| (i * 31 % 251) as u8).collect();
        for cut in [0, 1, 63, 64, 4096, 9_999, 10_000] {
            let mut pieces = Checksummer::new();
            pieces.update(&bytes[..cut]);
            pieces.update(&bytes[cut..]);
            assert_eq!(pieces.finish(), Checksum::of(&bytes), "cut at {cut}");
            let (first, rest) = bytes.split_at(cut);
            let joined = Checksum::of(first).followed_by(Checksum::of(rest), rest.len() as u64);
            assert_eq!(joined, Checksum::of(&bytes), "joined at {cut}");
        }
    }
}
