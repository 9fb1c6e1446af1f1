//! A file as the device keeps it: what is durable, what its cache holds, and what reads of it return wrong.

use slackwater_base::{BLOCK_BYTES, Rng};
use slackwater_tier::io::FileId;

#[derive(Debug)]
pub(super) struct File {
    pub(super) durable: Vec<u8>,
    pub(super) cached: Vec<u8>,
    pub(super) unsynced: Vec<Unsynced>,
}

#[derive(Clone, Debug)]
pub(super) struct Unsynced {
    pub(super) number: u64,
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
}

impl File {
    pub(super) fn of(bytes: u64) -> Self {
        Self {
            durable: vec![0; bytes as usize],
            cached: vec![0; bytes as usize],
            unsynced: Vec::new(),
        }
    }

    pub(super) fn apply(&mut self, write: Unsynced) {
        put(&mut self.cached, write.offset, &write.bytes);
        self.unsynced.push(write);
    }
}

/// Blocks of a file that are read with a flipped bit each.
#[derive(Clone, Debug)]
pub(super) struct Stretch {
    pub(super) file: FileId,
    pub(super) blocks: std::ops::Range<u64>,
    /// The bit that is flipped, counted from the start of the block.
    pub(super) bit: u64,
}

impl Stretch {
    /// Flips the bits that lie in `span`; returns whether there were any.
    pub(super) fn spoil(&self, span: &Span, bytes: &mut [u8]) -> bool {
        let mut hit = false;
        for block in self.blocks.clone().filter(|_| self.file == span.file) {
            let at = (block * BLOCK_BYTES + self.bit / 8) as usize;
            if let Some(byte) = at.checked_sub(span.offset).and_then(|at| bytes.get_mut(at)) {
                *byte ^= 1 << (self.bit % 8);
                hit = true;
            }
        }
        hit
    }
}

pub(super) struct Span {
    pub(super) file: FileId,
    pub(super) offset: usize,
    pub(super) bytes: usize,
    pub(super) length: usize,
}

pub(super) fn put(file: &mut [u8], offset: u64, bytes: &[u8]) {
    file[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
}

/// Applies an unsynced write at a power cut: wholly, not at all, or some of its sectors.
pub(super) fn land(rng: &mut Rng, file: &mut [u8], offset: u64, bytes: &[u8]) {
    let kept = match rng.below(3) {
        0 => return,
        1 => 1.0,
        _ => rng.unit(),
    };
    let sector = if rng.chance(0.5) {
        512
    } else {
        BLOCK_BYTES as usize
    };
    for (index, chunk) in bytes.chunks(sector).enumerate() {
        if rng.chance(kept) {
            put(file, offset + (index * sector) as u64, chunk);
        }
    }
}
