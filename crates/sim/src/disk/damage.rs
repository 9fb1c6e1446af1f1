//! What happens to the disk from outside: its user ends, its power is cut, its medium rots.

use slackwater_base::BLOCK_BYTES;
use slackwater_tier::io::{DiskError, DiskOp};

use super::file::{File, Stretch, Unsynced, land};
use super::{Crash, Disk, EIO, Flight};

impl Disk {
    /// Ends the process that uses the disk. Operations under way never complete; they may be done wholly, in part or
    /// not at all.
    pub fn crash(&mut self, how: Crash) {
        for flight in std::mem::take(&mut self.flights).into_values() {
            self.abandon(flight);
        }
        (self.last_op, self.failing_sync) = (None, false);
        (self.read_errors, self.write_errors) = (0, 0);
        self.spoilt_stretches.clear();
        let spoilt = std::mem::take(&mut self.spoilt);
        if std::mem::take(&mut self.judged) {
            self.spoilt_before = spoilt;
        } else {
            self.spoilt_before.failed |= spoilt.failed;
            self.spoilt_before.flipped |= spoilt.flipped;
        }
        if how == Crash::Process {
            return;
        }
        let rng = &mut self.rng;
        for (id, file) in std::mem::take(&mut self.unlinked) {
            if rng.chance(0.5) {
                self.files.entry(id).or_insert(file);
            }
        }
        for file in self.files.values_mut() {
            let mut waiting = std::mem::take(&mut file.unsynced);
            self.stats.torn += u64::from(!waiting.is_empty());
            while !waiting.is_empty() {
                let write = waiting.swap_remove(rng.below(waiting.len() as u64) as usize);
                land(rng, &mut file.durable, write.offset, &write.bytes);
            }
            file.cached.clone_from(&file.durable);
        }
    }

    /// Flips one bit of one file on the medium; the disk no longer counts as intact.
    pub fn rot(&mut self) {
        let total: u64 = self
            .files
            .values()
            .map(|file| file.durable.len() as u64)
            .sum();
        if total == 0 {
            return;
        }
        let mut at = self.rng.below(total);
        let bit = 1 << self.rng.below(8);
        for file in self.files.values_mut() {
            if at < file.durable.len() as u64 {
                file.durable[at as usize] ^= bit;
                file.cached[at as usize] ^= bit;
                break;
            }
            at -= file.durable.len() as u64;
        }
        self.intact = false;
        self.stats.rotten += 1;
    }

    /// Spoils a stretch of one file: until the process ends, every read of it returns a flipped bit in each of its
    /// blocks.
    ///
    /// Only while the log is in use. No later header says that the last batches were durable: an opening cannot tell
    /// whether their headers rotted or were never written, and takes them for never written.
    pub fn spoil_stretch(&mut self, blocks: u32) {
        let Some(last) = self.files.len().checked_sub(1) else {
            return;
        };
        let nth = self.rng.below(last as u64 + 1) as usize;
        let Some((file, content)) = self.files.iter().nth(nth) else {
            return;
        };
        let all = content.cached.len() as u64 / BLOCK_BYTES;
        let first = self.rng.below(all.max(1));
        self.spoilt_stretches.push(Stretch {
            file: *file,
            blocks: first..all.min(first + u64::from(blocks)),
            bit: self.rng.below(8 * BLOCK_BYTES),
        });
    }

    /// Loses everything: an empty disk takes its place.
    pub fn replace(&mut self) {
        self.files.clear();
        self.unlinked.clear();
        self.spare = None;
        self.flights.clear();
        self.last_op = None;
        self.intact = true;
        self.loses_writes = false;
    }

    /// Ends an operation that a crash interrupted: wholly, in part or not at all.
    fn abandon(&mut self, flight: Flight) {
        match flight.what {
            DiskOp::Create { file, bytes }
                if self.rng.chance(0.5) && !self.files.contains_key(&file) =>
            {
                if self.rng.chance(0.5) {
                    let _unheard = self.make(file, bytes);
                } else {
                    let short = self.rng.below(bytes / BLOCK_BYTES + 1) * BLOCK_BYTES;
                    self.files.insert(file, File::of(short));
                }
            }
            DiskOp::Write { file, offset, .. } => {
                let Some(file) = self.files.get_mut(&file) else {
                    return;
                };
                if offset + flight.early.len() as u64 > file.cached.len() as u64
                    || self.rng.chance(0.3)
                {
                    return;
                }
                let mut bytes =
                    file.cached[offset as usize..offset as usize + flight.early.len()].to_vec();
                land(&mut self.rng, &mut bytes, 0, &flight.early);
                self.writes += 1;
                file.apply(Unsynced {
                    number: self.writes,
                    offset,
                    bytes,
                });
            }
            DiskOp::Delete { file, .. } if self.rng.chance(0.5) => {
                let durable = self.rng.chance(0.5);
                let _unheard =
                    self.delete(file, (!durable).then_some(DiskError::Device { errno: EIO }));
            }
            DiskOp::Sync { file } if self.rng.chance(0.5) => {
                let _unheard = self.sync(file, flight.barrier, None);
            }
            _ => {}
        }
    }
}
