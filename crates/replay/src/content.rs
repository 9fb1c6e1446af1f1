use slackwater_base::hash64;

/// The bytes of a block, which are determined by its key: what was put can be checked without keeping a copy.
///
/// Word `i` is a mix of a Weyl sequence that begins at the key's hash, so each word depends on its position and its
/// block: a block of another key, a shifted block and a torn block all differ from the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    seed: u64,
}

/// The first byte in which a block differs from the content of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Offset of the byte in the block.
    pub offset: usize,
    /// The byte of the content.
    pub expected: u8,
    /// The byte that was read.
    pub found: u8,
}

impl Content {
    /// The content that belongs to `key`.
    #[must_use]
    pub fn of(key: &[u8]) -> Self {
        Self { seed: hash64(key) }
    }

    /// Writes the content into `block`, from its first byte.
    pub fn fill(self, block: &mut [u8]) {
        let mut place = self.seed;
        let (words, rest) = block.as_chunks_mut::<WORD>();
        for word in words {
            *word = mix(place).to_le_bytes();
            place = place.wrapping_add(STEP);
        }
        rest.copy_from_slice(&mix(place).to_le_bytes()[..rest.len()]);
    }

    /// Compares every bit of `block` with the content, without allocating.
    ///
    /// # Errors
    /// The first byte that differs.
    pub fn check(self, block: &[u8]) -> Result<(), Difference> {
        for (page, bytes) in block.chunks(PAGE).enumerate() {
            if self.differs(page, bytes) {
                return Err(self.first_difference(page, bytes));
            }
        }
        Ok(())
    }

    /// Whether any bit of a page differs: no branch inside, so that the loop runs at the speed of memory.
    fn differs(self, page: usize, bytes: &[u8]) -> bool {
        let mut place = self.place(page);
        let mut difference = 0;
        let (words, rest) = bytes.as_chunks::<WORD>();
        for word in words {
            difference |= u64::from_le_bytes(*word) ^ mix(place);
            place = place.wrapping_add(STEP);
        }
        difference != 0 || *rest != mix(place).to_le_bytes()[..rest.len()]
    }

    fn first_difference(self, page: usize, bytes: &[u8]) -> Difference {
        let start = self.place(page);
        let expected = |index: usize| {
            let place = start.wrapping_add(STEP.wrapping_mul((index / WORD) as u64));
            mix(place).to_le_bytes()[index % WORD]
        };
        let index = (0..bytes.len())
            .find(|index| bytes[*index] != expected(*index))
            .unwrap_or(0);
        Difference {
            offset: page * PAGE + index,
            expected: expected(index),
            found: bytes[index],
        }
    }

    fn place(self, page: usize) -> u64 {
        self.seed
            .wrapping_add(STEP.wrapping_mul((page * PAGE / WORD) as u64))
    }
}

const WORD: usize = 8;
const PAGE: usize = 4096;
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// One multiplication is enough: the words need to be all different and hard to hit by accident, not secret.
const fn mix(place: u64) -> u64 {
    let folded = place ^ (place >> 32);
    folded.wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// Changes a byte in every 64, so that a read that leaves the buffer as it was cannot pass for a right one.
pub fn spoil(buffer: &mut [u8]) {
    for line in buffer.chunks_mut(64) {
        // Not its own inverse: what was asked for and not found may be spoiled again.
        line[0] = line[0].wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(key: &str, bytes: usize) -> Vec<u8> {
        let mut block = vec![0; bytes];
        Content::of(key.as_bytes()).fill(&mut block);
        block
    }

    #[test]
    fn what_was_filled_checks_at_every_length() {
        for bytes in [0, 1, 7, 8, 9, 4095, 4096, 4097, 12_291] {
            assert_eq!(
                Content::of(b"k").check(&block("k", bytes)),
                Ok(()),
                "{bytes}"
            );
        }
    }

    #[test]
    fn what_was_spoiled_is_right_nowhere() {
        for bytes in [1, 63, 64, 65, 4096, 12_291] {
            let mut spoiled = block("k", bytes);
            spoil(&mut spoiled);
            spoil(&mut spoiled);
            for from in (0..bytes).step_by(64) {
                let difference = Content::of(b"k").check(&spoiled).unwrap_err();
                assert_eq!(difference.offset, from, "of {bytes}");
                spoiled[from] = difference.expected;
            }
            assert_eq!(Content::of(b"k").check(&spoiled), Ok(()));
        }
    }

    #[test]
    fn every_single_flipped_bit_is_found_where_it_is() {
        let mut bytes = block("k", 8195);
        for bit in (0..bytes.len() * 8).step_by(61) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let difference = Content::of(b"k").check(&bytes).unwrap_err();
            assert_eq!(difference.offset, bit / 8);
            assert_eq!(difference.expected ^ difference.found, 1 << (bit % 8));
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn another_key_a_shift_and_a_torn_tail_differ() {
        let right = block("k", 16_384);
        assert_eq!(Content::of(b"k2").check(&right).unwrap_err().offset, 0);
        let mut shifted = right.clone();
        shifted.copy_within(4096.., 0);
        assert_eq!(Content::of(b"k").check(&shifted).unwrap_err().offset, 0);
        let mut torn = right;
        torn[8192..].fill(0);
        assert_eq!(Content::of(b"k").check(&torn).unwrap_err().offset, 8192);
    }
}
