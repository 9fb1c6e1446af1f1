use std::collections::VecDeque;
use std::io::IoSlice;

/// Bytes on their way out: small writes share buffers, and one system call gathers many. A connection without anything to
/// write gives it back to the [`Spare`].
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pieces: VecDeque<Vec<u8>>,
    /// Bytes of the first piece that are already written.
    written: usize,
    /// Bytes queued in all pieces but the last, which may still grow, without those already written.
    sealed_bytes: usize,
}

/// Outboxes and buffers that wait for their next use; shared by all connections of a loop.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    pieces: Vec<Vec<u8>>,
    #[expect(
        clippy::vec_box,
        reason = "the box itself goes to and fro between connections"
    )]
    outboxes: Vec<Box<Outbox>>,
}

/// A piece that has grown beyond this takes no further writes.
const PIECE_BYTES: usize = 64 << 10;
/// Larger buffers are given back to the allocator instead of being kept.
const KEPT_BYTES: usize = 256 << 10;
const KEPT: usize = 64;
/// Pieces gathered into one system call.
pub(crate) const GATHER: usize = 64;

impl Outbox {
    /// The buffer to append to.
    pub(crate) fn tail(&mut self, spare: &mut Spare) -> &mut Vec<u8> {
        if self
            .pieces
            .back()
            .is_none_or(|last| last.len() >= PIECE_BYTES)
        {
            self.sealed_bytes += self.pieces.back().map_or(0, Vec::len);
            self.pieces
                .push_back(spare.pieces.pop().unwrap_or_default());
        }
        self.pieces
            .back_mut()
            .expect("a piece was pushed if there was none")
    }

    pub(crate) fn bytes(&self) -> usize {
        self.sealed_bytes + self.pieces.back().map_or(0, Vec::len) - self.written
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// What to write next: how many slices, and how many bytes.
    pub(crate) fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>; GATHER]) -> (usize, usize) {
        let (mut count, mut bytes, mut from) = (0, 0, self.written);
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            *slice = IoSlice::new(&piece[from..]);
            (count, bytes, from) = (count + 1, bytes + slice.len(), 0);
        }
        (count, bytes)
    }

    /// The first `count` bytes are written.
    pub(crate) fn advance(&mut self, mut count: usize, spare: &mut Spare) {
        count += self.written;
        self.written = 0;
        while let Some(first) = self.pieces.front() {
            if count < first.len() {
                self.written = count;
                return;
            }
            count -= first.len();
            let only = self.pieces.len() == 1;
            if !only {
                self.sealed_bytes -= first.len();
            }
            if let Some(piece) = self.pieces.pop_front() {
                spare.put(piece);
            }
        }
    }
}

impl Spare {
    pub(crate) fn outbox(&mut self) -> Box<Outbox> {
        self.outboxes.pop().unwrap_or_default()
    }

    /// Takes an outbox back with whatever is in it.
    pub(crate) fn take_back(&mut self, mut outbox: Box<Outbox>) {
        outbox.pieces.drain(..).for_each(|piece| self.put(piece));
        (outbox.written, outbox.sealed_bytes) = (0, 0);
        if outbox.pieces.capacity() <= GATHER && self.outboxes.len() < KEPT {
            self.outboxes.push(outbox);
        }
    }

    fn put(&mut self, mut piece: Vec<u8>) {
        if piece.capacity() <= KEPT_BYTES && self.pieces.len() < KEPT {
            piece.clear();
            self.pieces.push(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn bytes_leave_in_order_and_are_counted(
            steps in prop::collection::vec((any::<bool>(), 0usize..90_000), 1..40),
        ) {
            let (mut outbox, mut spare) = (Outbox::default(), Spare::default());
            let mut model: VecDeque<u8> = VecDeque::new();
            let mut next = 0u8;
            for (is_write, size) in steps {
                if is_write {
                    let tail = outbox.tail(&mut spare);
                    for _ in 0..size {
                        tail.push(next);
                        model.push_back(next);
                        next = next.wrapping_mul(5).wrapping_add(3);
                    }
                } else {
                    let mut slices = [IoSlice::new(&[]); GATHER];
                    let (filled, offered) = outbox.gather(&mut slices);
                    let all: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.iter().copied()).collect();
                    prop_assert_eq!(all.len(), offered);
                    let count = size.min(all.len());
                    prop_assert!(all[..count].iter().eq(model.iter().take(count)));
                    outbox.advance(count, &mut spare);
                    model.drain(..count);
                }
                prop_assert_eq!(outbox.bytes(), model.len());
            }
        }
    }

    #[test]
    fn an_outbox_that_comes_back_is_empty_and_used_again() {
        let mut spare = Spare::default();
        let mut outbox = spare.outbox();
        outbox.tail(&mut spare).extend_from_slice(&[1; 100]);
        outbox.advance(40, &mut spare);
        let address = std::ptr::from_ref(&*outbox);
        spare.take_back(outbox);
        let again = spare.outbox();
        assert!(again.is_empty() && again.pieces.is_empty() && std::ptr::eq(&*again, address));
        assert_eq!(spare.pieces.len(), 1);
    }
}
