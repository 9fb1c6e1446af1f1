//! Records in files, read by capability as the memory of a device is.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};

use slackwater_transfer::stage::{FileLimits, FileRange, Files, StageLimits, memory_of_files};
use slackwater_transfer::{
    Batch, BatchError, Capability, Cause, Engine, EngineConfig, Extent, Op, PeerId, Refusal,
    Region, Rights,
};
use slackwater_wait::{Site, Waiting};
use slackwater_wire::data::Frame;

use crate::lender::{Lender, mint};
use crate::raw::{Raw, ask};
use crate::support::*;

const FILE: u64 = 64 << 10;
const CHUNK: usize = 8 << 10;

static SITE: Site = Site::new("files test");

/// Three files of the same length, and what is asked of them.
#[derive(Debug)]
struct Log {
    directory: PathBuf,
    asked: Mutex<Asked>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Asked {
    ranges: Vec<(u64, u64)>,
    /// Offsets at which reads wait for as long as they are here.
    held: BTreeSet<u64>,
    waiting: usize,
}

impl Files for Log {
    fn locate(&self, offset: u64, bytes: u64) -> io::Result<FileRange> {
        let mut asked = self.asked.lock().unwrap();
        asked.ranges.push((offset, bytes));
        asked.waiting += 1;
        while asked.held.contains(&offset) {
            asked = self.changed.wait(asked).unwrap();
        }
        asked.waiting -= 1;
        let path = self.directory.join((offset / FILE).to_string());
        // Blocks are read past the page cache where the file system can do that.
        let direct = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(&path);
        let file = direct.or_else(|_| File::open(&path))?;
        Ok(FileRange {
            file: Arc::new(file),
            offset: offset % FILE,
        })
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Log {
    fn hold(&self, offsets: impl IntoIterator<Item = u64>) {
        self.asked.lock().unwrap().held.extend(offsets);
    }

    fn let_go(&self, offset: u64) {
        self.asked.lock().unwrap().held.remove(&offset);
        self.changed.notify_all();
    }

    fn waiting(&self) -> usize {
        self.asked.lock().unwrap().waiting
    }
}

/// An engine whose log another one reads.
struct Reading {
    log: Arc<Log>,
    bytes: Vec<u8>,
    lender: Arc<Lender>,
    bob: Engine,
    there: Arc<Region>,
    alice: Engine,
    here: Arc<Region>,
    peer: PeerId,
}

fn reading(name: &str) -> Reading {
    let bytes = pattern(1, 3 * FILE as usize);
    let directory = std::env::temp_dir().join(format!("slackwater-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    for (index, contents) in bytes.chunks(FILE as usize).enumerate() {
        let mut file = File::create(directory.join(index.to_string())).unwrap();
        file.write_all(contents).unwrap();
    }
    let log = Arc::new(Log {
        directory,
        asked: Mutex::default(),
        changed: Condvar::new(),
    });
    let limits = FileLimits {
        reads: 4,
        stage: StageLimits {
            chunk_bytes: CHUNK,
            pinned_bytes_max: 16 * CHUNK,
            ..StageLimits::default()
        },
    };
    // Longer than any memory could be: it has no addresses.
    let memory = memory_of_files(Arc::clone(&log) as Arc<dyn Files>, 1 << 60, limits).unwrap();
    let lender = Arc::new(Lender::default());
    let (bob, alice) = (with_devices("bob"), engine("alice", config()));
    let there = bob.register(lender.region(memory, Rights::READ)).unwrap();
    let here = region(&alice, 3 * FILE as usize);
    let peer = alice.open(bob.segment().clone());
    Reading {
        log,
        bytes,
        lender,
        bob,
        there,
        alice,
        here,
        peer,
    }
}

/// An engine that takes what a stage brings in and out, too.
fn with_devices(name: &str) -> Engine {
    let started = EngineConfig {
        tcp: config(),
        force_tcp: true,
        ..EngineConfig::new(name)
    };
    started.start().unwrap()
}

impl Reading {
    fn record(&self, offset: u64, bytes: u64) -> Capability {
        let extent = self.lender.lend(offset, bytes);
        self.granted(extent)
    }

    fn granted(&self, extent: Extent) -> Capability {
        mint(self.bob.home(), &self.there, extent, Rights::READ)
    }

    fn submit(&self, capability: Capability, (offset, bytes): (u64, u64)) -> Batch {
        let read = request(
            Op::Read,
            vec![range(&self.here, offset % (3 * FILE), bytes)],
            target(self.peer, capability, offset),
        );
        self.alice.submit(vec![read], &within(20 * SECOND))
    }

    fn read(&self, capability: Capability, range: (u64, u64)) -> Result<(), BatchError> {
        self.submit(capability, range).wait(&Waiting::at(&SITE))
    }

    fn has(&self, (offset, bytes): (u64, u64)) -> bool {
        let read = bytes_of(&self.here, offset, bytes as usize);
        read == self.bytes[offset as usize..(offset + bytes) as usize]
    }
}

#[test]
fn ranges_of_records_are_read_and_nothing_beside_them() {
    let reading = reading("ranges");
    let block = 4096;
    let chunk = CHUNK as u64;
    let record = (FILE + 2 * block, 9 * block);
    let capability = reading.record(record.0, record.1);
    for range in [
        record,
        (record.0, 1),
        (record.0 + 1, 1),
        (record.0 + block - 1, 2),
        (record.0 + 5, record.1 - 6),
        (record.0 + record.1 - 1, 1),
        (record.0 + chunk, 3 * block + 17),
    ] {
        reading.log.asked.lock().unwrap().ranges.clear();
        reading.read(capability, range).unwrap();
        assert!(reading.has(range), "{range:?}");
        let mut asked = reading.log.asked.lock().unwrap().ranges.clone();
        asked.sort_unstable();
        let end = range.0 + range.1;
        let chunks = (range.0..end).step_by(CHUNK);
        let expected: Vec<_> = chunks.map(|at| (at, chunk.min(end - at))).collect();
        assert_eq!(asked, expected, "{range:?}");
    }
    let before = reading.read(capability, (record.0 - 1, 2));
    assert_eq!(before, Err(refused(Refusal::Range)));
    let last = reading.record(2 * FILE, FILE);
    reading.read(last, (2 * FILE, FILE)).unwrap();
    assert!(reading.has((2 * FILE, FILE)));
}

#[test]
fn reads_are_under_way_together_and_end_in_any_order() {
    let reading = reading("together");
    let offsets = [0, FILE, 2 * FILE];
    let held = reading.log.clone();
    held.hold(offsets);
    let batches = offsets.map(|offset| {
        let capability = reading.record(offset, CHUNK as u64);
        reading.submit(capability, (offset, CHUNK as u64))
    });
    until("all three are read", || held.waiting() == 3);
    for index in [1, 2, 0] {
        held.let_go(offsets[index]);
        batches[index].wait(&Waiting::at(&SITE)).unwrap();
        assert!(reading.has((offsets[index], CHUNK as u64)));
    }
}

#[test]
fn a_fenced_record_is_waited_for_as_long_as_it_is_read() {
    let reading = reading("fenced");
    let extent = reading.lender.lend(0, CHUNK as u64);
    reading.log.hold([0]);
    let batch = reading.submit(reading.granted(extent), (0, CHUNK as u64));
    until("it is read", || reading.log.waiting() == 1);
    reading.lender.fence(extent);
    reading.bob.release_extent(reading.there.id(), extent);
    // The reader has its answer while the file is still being read.
    assert_eq!(
        batch.wait(&Waiting::at(&SITE)),
        Err(refused(Refusal::Generation))
    );
    assert!(!reading.lender.is_idle(extent));
    reading.log.let_go(0);
    until("the read has ended", || reading.lender.is_idle(extent));
}

#[test]
fn what_no_file_has_fails_and_nothing_is_written() {
    let reading = reading("missing");
    let beyond = reading.record(7 * FILE, 4096);
    assert_eq!(
        reading.read(beyond, (7 * FILE, 4096)),
        Err(refused(Refusal::Memory))
    );
    let across = reading.record(FILE - 4096, 8192);
    assert_eq!(
        reading.read(across, (FILE - 4096, 8192)),
        Err(refused(Refusal::Memory)),
        "a record is in one file"
    );
    let extent = reading.lender.lend(0, 4096);
    let capability = mint(reading.bob.home(), &reading.there, extent, Rights::BOTH);
    let mut peer = Raw::connect(&reading.bob, 7);
    peer.send(&[ask(Op::Write, 1, capability, 4096)]);
    let Some(Frame::Ack(answer)) = peer.hear() else {
        panic!("it is answered")
    };
    assert_eq!(answer.refusal, Some(Refusal::Rights));
}

/// For its own process the region is memory like a device's: a source of what is sent, and no place for what is received.
#[test]
fn the_owner_sends_from_files_and_receives_nothing_into_them() {
    let reading = reading("own");
    let peer = reading.bob.open(reading.alice.segment().clone());
    let there = grant(&reading.alice, &reading.here);
    let (offset, bytes) = (4096 + 3, 3 * CHUNK as u64);
    let own = |op| {
        let local = vec![range(&reading.there, offset, bytes)];
        let request = request(op, local, target(peer, there, offset));
        let batch = reading.bob.submit(vec![request], &within(20 * SECOND));
        batch.wait(&Waiting::at(&SITE))
    };
    own(Op::Write).unwrap();
    assert!(reading.has((offset, bytes)));
    let received = own(Op::Read).unwrap_err().to_string();
    assert!(received.contains("files are only read"), "{received}");
}

fn refused(refusal: Refusal) -> BatchError {
    BatchError::Failed(Cause::Refused(refusal))
}
