//! The device without a store: direct reads and writes of a plain file.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Instant;

use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use slackwater_base::{ByteSize, Rng};
use slackwater_tier::LogConfig;
use slackwater_wire::SegmentId;

use super::{Error, Limits, Options, Row};
use crate::usage::quantile;

/// A file of this length is read and written.
const FILE_BYTES: u64 = 1 << 30;
/// One write.
const WRITE_BYTES: usize = 1 << 20;
/// Bytes that are moved to learn how long a row's bytes take.
pub(crate) const SAMPLE_BYTES: u64 = 512 << 20;
/// Reads whose times are taken.
const READS: usize = 2000;
/// Reads that are under way at once where a device's rate is measured: more give no more.
const READERS: u64 = 8;
/// Direct I/O wants buffers at a multiple of this.
const ALIGNED: usize = 4096;

/// A file of the measurement; it goes with this value.
pub(super) struct RawFile {
    file: File,
    path: PathBuf,
    bytes: u64,
}

/// A buffer that direct I/O takes.
pub(super) struct Aligned(Vec<u8>, usize);

impl Aligned {
    pub(super) fn new(bytes: usize) -> Self {
        let whole = vec![0x5a; bytes + ALIGNED];
        let at = whole.as_ptr().align_offset(ALIGNED);
        Self(whole, at)
    }

    fn bytes(&mut self, length: usize) -> &mut [u8] {
        &mut self.0[self.1..self.1 + length]
    }
}

impl RawFile {
    /// A file that was written once, so that its blocks are there.
    pub(super) fn new(options: &Options) -> Result<Self, Error> {
        let bytes = (options.ssd_bytes / 2).next_multiple_of(WRITE_BYTES as u64);
        Self::of(&options.directory, FILE_BYTES.min(bytes))
    }

    /// A file of so many bytes, whole writes.
    fn of(directory: &Path, bytes: u64) -> Result<Self, Error> {
        let failed = |what| move |why| Error::Io { what, why };
        let path = directory.join("raw");
        let open = || {
            let mut open = OpenOptions::new();
            open.read(true).write(true).create(true).truncate(true);
            open
        };
        let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
        // A file system without direct I/O is measured through its cache, as the store uses it.
        let file = open()
            .custom_flags(direct)
            .open(&path)
            .or_else(|_| open().open(&path))
            .map_err(failed("making the raw file"))?;
        let raw = Self { file, path, bytes };
        let mut buffer = Aligned::new(WRITE_BYTES);
        for at in (0..bytes).step_by(WRITE_BYTES) {
            raw.write(&mut buffer, at)?;
        }
        raw.sync()?;
        Ok(raw)
    }

    fn write(&self, buffer: &mut Aligned, at: u64) -> Result<(), Error> {
        let written = self.file.write_all_at(buffer.bytes(WRITE_BYTES), at);
        written.map_err(|why| Error::Io {
            what: "writing the raw file",
            why,
        })
    }

    fn read(&self, buffer: &mut Aligned, bytes: usize, at: u64) -> Result<(), Error> {
        let read = self.file.read_exact_at(buffer.bytes(bytes), at);
        read.map_err(|why| Error::Io {
            what: "reading the raw file",
            why,
        })
    }

    /// Bytes written in a second, one after the other from two threads, to space that is allocated and was not written before, as
    /// that of a log is until its SSD is full.
    pub(super) fn write_rate(&self) -> Result<f64, Error> {
        // The blocks stay, at least on ext4: a file system may have the device discard those of a shortened file, for a second
        // and more, while the next part is measured.
        let fresh = FallocateFlags::ZERO_RANGE;
        let again = |_| {
            ftruncate(&self.file, 0)?;
            fallocate(&self.file, FallocateFlags::empty(), 0, self.bytes)
        };
        let allocated = fallocate(&self.file, fresh, 0, self.bytes).or_else(again);
        allocated.map_err(|why| Error::Io {
            what: "allocating the raw file",
            why: why.into(),
        })?;
        self.rewrite_rate()
    }

    /// The same for what was written before, as most files of a log on a full SSD were.
    pub(super) fn rewrite_rate(&self) -> Result<f64, Error> {
        self.sync()?;
        let begun = Instant::now();
        self.rewrite()?;
        Ok(self.bytes as f64 / begun.elapsed().as_secs_f64())
    }

    /// The same as durable bytes: with a log's syncs by time (those by bytes come first on a fast device) and one at the end.
    pub(super) fn synced_rate(&self) -> Result<f64, Error> {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let delay = LogConfig::new(SegmentId(1), ByteSize(self.bytes)).sync_delay;
        self.sync()?;
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let syncs = scope.spawn(move || {
                while stopped.recv_timeout(delay) == Err(RecvTimeoutError::Timeout) {
                    self.sync()?;
                }
                Ok::<(), Error>(())
            });
            let written = self.rewrite();
            drop(stop);
            written.and(syncs.join().expect("a sync does not panic"))
        })?;
        self.sync()?;
        Ok(self.bytes as f64 / begun.elapsed().as_secs_f64())
    }

    fn sync(&self) -> Result<(), Error> {
        self.file.sync_data().map_err(|why| Error::Io {
            what: "syncing the raw file",
            why,
        })
    }

    /// Writes all of it, one piece after the other from two threads.
    fn rewrite(&self) -> Result<(), Error> {
        let next = AtomicU64::new(0);
        together(2, |_| {
            let mut buffer = Aligned::new(WRITE_BYTES);
            loop {
                let at = next.fetch_add(WRITE_BYTES as u64, Ordering::Relaxed);
                if at >= self.bytes {
                    return Ok(());
                }
                self.write(&mut buffer, at)?;
            }
        })
    }
}

impl Drop for RawFile {
    fn drop(&mut self) {
        // It lies in a directory that goes as a whole.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Runs a worker on each of so many threads, which are numbered.
fn together(threads: u64, worker: impl Fn(u64) -> Result<(), Error> + Sync) -> Result<(), Error> {
    let worker = &worker;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|number| scope.spawn(move || worker(number)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a reader does not panic"))
    })
}

pub(super) fn limits(options: &Options) -> Result<Limits, Error> {
    let raw = RawFile::new(options)?;
    let (mut rng, mut times) = (Rng::new(7), Vec::with_capacity(READS));
    let bytes = options.block_bytes.next_multiple_of(ALIGNED);
    let mut buffer = Aligned::new(bytes);
    for _ in 0..READS {
        let at = rng.below((raw.bytes - bytes as u64) / ALIGNED as u64) * ALIGNED as u64;
        let begun = Instant::now();
        raw.read(&mut buffer, bytes, at)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    Ok(Limits {
        raw_write_bytes_per_s: raw.write_rate()?,
        raw_read_p50_us: quantile(&mut times, 0.5),
        raw_read_p99_us: quantile(&mut times, 0.99),
    })
}

/// Reads of `bytes` bytes that the device does in a second, measured by so many of random places of a file in `directory`,
/// [`READERS`] at a time.
pub(crate) fn reads_per_s(directory: &Path, bytes: usize, reads: u64) -> Result<f64, Error> {
    let bytes = bytes.next_multiple_of(ALIGNED);
    let file_bytes = (bytes as u64 * reads).min(SAMPLE_BYTES.max(bytes as u64));
    let raw = RawFile::of(directory, file_bytes.next_multiple_of(WRITE_BYTES as u64))?;
    let next = AtomicU64::new(0);
    let begun = Instant::now();
    let worker = |seed: u64| -> Result<(), Error> {
        let (mut rng, mut buffer) = (Rng::new(seed), Aligned::new(bytes));
        while next.fetch_add(1, Ordering::Relaxed) < reads {
            let places = (raw.bytes - bytes as u64) / ALIGNED as u64 + 1;
            raw.read(&mut buffer, bytes, rng.below(places) * ALIGNED as u64)?;
        }
        Ok(())
    };
    together(READERS, worker)?;
    Ok(reads as f64 / begun.elapsed().as_secs_f64())
}

/// The time that the device alone takes for a row's bytes: blocks are read at random places by as many threads as the row has
/// requests under way, and the bytes are written in the same proportion among them.
pub(super) fn floor(options: &Options, row: &Row) -> Result<f64, Error> {
    let all = row.device_read_bytes + row.device_write_bytes;
    if all == 0 {
        return Ok(0.0);
    }
    let raw = RawFile::new(options)?;
    let bytes = options.block_bytes.next_multiple_of(ALIGNED);
    let sample = SAMPLE_BYTES.min(all);
    let (reads, writes) = (
        (row.device_read_bytes as f64 / all as f64 * sample as f64) as u64 / bytes as u64,
        (row.device_write_bytes as f64 / all as f64 * sample as f64) as u64 / WRITE_BYTES as u64,
    );
    let operations = reads + writes;
    let next = AtomicU64::new(0);
    let begun = Instant::now();
    let worker = |seed: u64| -> Result<(), Error> {
        let (mut rng, mut buffer) = (Rng::new(seed), Aligned::new(bytes.max(WRITE_BYTES)));
        loop {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            if nth >= operations {
                return Ok(());
            }
            // Writes are spread evenly among the reads.
            if nth * writes / operations != (nth + 1) * writes / operations {
                let at = nth * writes / operations * WRITE_BYTES as u64 % raw.bytes;
                raw.write(&mut buffer, at)?;
            } else {
                let places = (raw.bytes - bytes as u64) / ALIGNED as u64;
                raw.read(&mut buffer, bytes, rng.below(places) * ALIGNED as u64)?;
            }
        }
    };
    together(row.in_flight.max(2) as u64, worker)?;
    let moved = (reads * bytes as u64 + writes * WRITE_BYTES as u64).max(1);
    Ok(begun.elapsed().as_secs_f64() * all as f64 / moved as f64)
}
