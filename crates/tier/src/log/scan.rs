use slackwater_base::BLOCK_BYTES;

use crate::format::{Batch, Decoded, Identity, decode_batch};
use crate::io::{DiskError, DiskOp, Target};

/// Walks the batches of one file, by the reads that it asks for.
///
/// It hops from headers to headers. Where there are none, it sweeps on block by block: the second copy of the same
/// headers, or the next batch, shows where to go on.
#[derive(Debug)]
pub(crate) struct FileScan {
    identity: Identity,
    bytes: u64,
    at: u64,
    want: u64,
    sweeping: bool,
    /// Where headers are that were asked for in full because they are longer than what was at hand.
    asked: Option<u64>,
    /// Where headers were expected and not found, in neither copy.
    pub(crate) holes: Vec<Hole>,
    /// Headers that were read from their second copy.
    pub(crate) repaired: u64,
}

/// A place where headers were expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hole {
    pub(crate) at: u64,
    /// Blocks that may have been headers could not be read, each tried by itself.
    pub(crate) unreadable: bool,
}

/// What a read led to.
#[derive(Debug)]
pub(crate) enum Step {
    /// The next batch.
    Batch(Batch),
    /// More must be read.
    More,
    /// There are no further batches.
    End,
}

impl FileScan {
    pub(crate) fn new(identity: Identity, bytes: u64) -> Self {
        let (at, want) = (BLOCK_BYTES, HOP_BYTES);
        Self {
            identity,
            bytes,
            at,
            want,
            sweeping: false,
            asked: None,
            holes: Vec::new(),
            repaired: 0,
        }
    }

    /// Where the walk is: after the last batch that was found.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// The next read, or `None` at the end of the file.
    pub(crate) fn read(&self) -> Option<DiskOp> {
        let bytes = self.want.min(self.bytes.saturating_sub(self.at));
        let read = DiskOp::Read {
            file: self.identity.file,
            offset: self.at,
            bytes,
            length: bytes,
            into: Target::Completion,
        };
        (bytes > 0).then_some(read)
    }

    /// Goes on from where the walk ended, because more is known to be there.
    pub(crate) fn sweep_on(&mut self) {
        self.holes.push(Hole {
            at: self.at,
            unreadable: false,
        });
        self.sweep_from(self.at + BLOCK_BYTES);
    }

    /// Takes what the read that was asked for gave.
    pub(crate) fn take(&mut self, result: Result<&[u8], DiskError>) -> Step {
        let step = if self.sweeping {
            self.sweep(result)
        } else {
            self.hop(result)
        };
        match step {
            Step::More if self.at >= self.bytes => Step::End,
            step => step,
        }
    }

    fn hop(&mut self, result: Result<&[u8], DiskError>) -> Step {
        let decoded = result.map(|bytes| decode_batch(self.identity, self.bytes, self.at, bytes));
        match decoded {
            Ok(Decoded::Batch(batch)) => self.found(batch),
            Ok(Decoded::Longer(bytes)) => {
                self.want = bytes;
                Step::More
            }
            Ok(Decoded::Blank) => {
                self.want = 0;
                Step::End
            }
            Ok(Decoded::Other) => {
                self.sweep_on();
                Step::More
            }
            // The failure may lie beyond the first block, or be over: the sweep begins with it.
            Err(_) => {
                self.holes.push(Hole {
                    at: self.at,
                    unreadable: false,
                });
                self.sweep_from(self.at);
                Step::More
            }
        }
    }

    fn sweep(&mut self, result: Result<&[u8], DiskError>) -> Step {
        let step = self.want.min(self.bytes - self.at);
        let Ok(bytes) = result else {
            // One unreadable block must not hide the headers beside it.
            if step > BLOCK_BYTES {
                self.want = BLOCK_BYTES;
            } else {
                self.cannot_read();
                self.sweep_from(self.at + step);
            }
            return Step::More;
        };
        for (block, piece) in (0..bytes.len())
            .step_by(BLOCK_BYTES as usize)
            .map(|block| (block, &bytes[block..]))
        {
            let here = self.at + block as u64;
            match decode_batch(self.identity, self.bytes, here, piece) {
                Decoded::Batch(batch) => {
                    if self.holes.last().is_some_and(|hole| hole.at == batch.start) {
                        self.holes.pop();
                        self.repaired += u64::from(here != batch.start);
                    }
                    return self.found(batch);
                }
                // Asked for once: headers longer than one read can return cannot be read at all.
                Decoded::Longer(_) if self.asked == Some(here) => self.cannot_read(),
                Decoded::Longer(want) => {
                    (self.at, self.want, self.asked) = (here, want, Some(here));
                    return Step::More;
                }
                Decoded::Blank | Decoded::Other => {}
            }
        }
        self.sweep_from(self.at + step);
        Step::More
    }

    fn cannot_read(&mut self) {
        if let Some(hole) = self.holes.last_mut() {
            hole.unreadable = true;
        }
    }

    fn found(&mut self, batch: Batch) -> Step {
        self.at = batch.end();
        self.want = HOP_BYTES;
        self.sweeping = false;
        Step::Batch(batch)
    }

    fn sweep_from(&mut self, at: u64) {
        self.at = at;
        self.want = SWEEP_BYTES;
        self.sweeping = true;
    }
}

/// Enough for the headers of a batch of some hundred records with ordinary keys.
const HOP_BYTES: u64 = 16 << 10;
const SWEEP_BYTES: u64 = 512 << 10;
