use crate::job::Buffers;
use crate::tcp::io::{VECTORS_MAX, Vectors};

/// A position in local memory that moves from start to end.
#[derive(Debug)]
pub(crate) struct Cursor {
    buffers: Buffers,
    span: usize,
    within: usize,
    left: u64,
}

impl Cursor {
    pub(crate) fn new(buffers: Buffers) -> Self {
        let left = buffers.bytes();
        Self {
            buffers,
            span: 0,
            within: 0,
            left,
        }
    }

    pub(crate) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Bytes left up to the end.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Adds the ranges of the next `bytes` bytes to `out`, as many as have room; returns how many bytes they are.
    pub(crate) fn vectors(&self, bytes: usize, out: &mut Vectors) -> usize {
        let (mut added, mut within) = (0, self.within);
        for span in &self.buffers.spans()[self.span..] {
            if added == bytes || out.len() >= VECTORS_MAX {
                break;
            }
            let take = (span.bytes() - within).min(bytes - added);
            out.push(libc::iovec {
                iov_base: span.start().wrapping_add(within).cast(),
                iov_len: take,
            });
            added += take;
            within = 0;
        }
        added
    }

    /// Moves on by `bytes`.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.left -= bytes as u64;
        let mut rest = bytes;
        while rest > 0 {
            let step = (self.buffers.spans()[self.span].bytes() - self.within).min(rest);
            self.within += step;
            rest -= step;
            if self.within == self.buffers.spans()[self.span].bytes() {
                self.span += 1;
                self.within = 0;
            }
        }
    }

    /// Copies to the next bytes, and moves on.
    pub(crate) fn copy_in(&mut self, mut from: &[u8]) {
        assert!(
            from.len() as u64 <= self.left,
            "a payload is checked against its request"
        );
        while !from.is_empty() {
            let span = &self.buffers.spans()[self.span];
            let take = (span.bytes() - self.within).min(from.len());
            // SAFETY: `within + take` lies inside the span, which `buffers` keeps valid for writes; the source is a
            // buffer of the loop's own, so the two are apart.
            unsafe {
                std::ptr::copy_nonoverlapping(from.as_ptr(), span.start().add(self.within), take)
            };
            from = &from[take..];
            self.advance(take);
        }
    }

    /// A cursor over the next `bytes` bytes; this one moves past them.
    pub(crate) fn take(&mut self, bytes: u64) -> Cursor {
        let at = self.buffers.bytes() - self.left;
        let taken = match at == 0 && bytes == self.left {
            true => self.buffers.clone(),
            false => self.buffers.cut(at, bytes),
        };
        self.advance(bytes as usize);
        Cursor::new(taken)
    }
}
