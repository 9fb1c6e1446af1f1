use super::*;

const FILE: FileId = FileId(1);
const BLOCK: usize = BLOCK_BYTES as usize;

struct TestDisk {
    disk: Disk,
    memory: Memory,
    next: u64,
}

impl TestDisk {
    fn new(seed: u64) -> Self {
        let mut bench = Self {
            disk: Disk::new(Rng::new(seed), 1 << 20),
            memory: Memory::default(),
            next: 0,
        };
        bench
            .run(DiskOp::Create {
                file: FILE,
                bytes: 1 << 16,
            })
            .unwrap();
        bench
    }

    fn submit(&mut self, what: DiskOp) -> Caller {
        self.next += 1;
        let caller = Caller::Agent(OpId(self.next));
        self.disk
            .submit(Instant::ZERO, caller, what, &self.memory)
            .unwrap();
        caller
    }

    fn run(&mut self, what: DiskOp) -> Ended {
        let op = self.submit(what);
        self.disk.complete(op, &mut self.memory).unwrap().unwrap()
    }

    fn write(&mut self, offset: u64, byte: u8, blocks: usize) -> Ended {
        self.run(DiskOp::Write {
            file: FILE,
            offset,
            parts: vec![Part::Bytes(vec![byte; blocks * BLOCK].into())],
        })
    }

    fn read(&mut self, offset: u64, blocks: usize) -> Result<Vec<u8>, DiskError> {
        let bytes = (blocks * BLOCK) as u64;
        let what = DiskOp::Read {
            file: FILE,
            offset,
            bytes,
            length: bytes,
            into: Target::Completion,
        };
        match self.run(what)? {
            DiskOutcome::Read { bytes, checksum } => {
                assert_eq!(checksum, Checksum::of(&bytes));
                Ok(bytes.into())
            }
            DiskOutcome::Done | DiskOutcome::Reused => panic!("a read gives bytes"),
        }
    }
}

#[test]
fn synced_writes_survive_any_power_cut_and_unsynced_ones_may_not() {
    let (mut kept, mut lost, mut torn) = (0, 0, 0);
    for seed in 0..200 {
        let mut bench = TestDisk::new(seed);
        bench.write(0, 7, 2).unwrap();
        bench.run(DiskOp::Sync { file: FILE }).unwrap();
        bench.write(8192, 8, 2).unwrap();
        bench.disk.crash(Crash::Power);
        assert_eq!(bench.read(0, 2).unwrap(), vec![7; 2 * BLOCK]);
        let after = bench.read(8192, 2).unwrap();
        match after.iter().filter(|byte| **byte == 8).count() {
            0 => lost += 1,
            n if n == 2 * BLOCK => kept += 1,
            _ => torn += 1,
        }
    }
    assert!(kept > 20 && lost > 20 && torn > 20, "{kept} {lost} {torn}");
}

#[test]
fn a_killed_process_leaves_its_writes_in_the_cache() {
    let mut bench = TestDisk::new(1);
    bench.write(0, 7, 4).unwrap();
    bench.disk.crash(Crash::Process);
    assert_eq!(bench.read(0, 4).unwrap(), vec![7; 4 * BLOCK]);
}

/// A sync covers the writes that had completed when it was submitted, and no later ones: group commit depends on that
/// order.
#[test]
fn a_sync_covers_only_writes_complete_at_its_submission() {
    let mut lost = 0;
    for seed in 0..100 {
        let mut bench = TestDisk::new(seed);
        let sync = bench.submit(DiskOp::Sync { file: FILE });
        bench.write(0, 7, 1).unwrap();
        bench.disk.complete(sync, &mut bench.memory).unwrap();
        bench.disk.crash(Crash::Power);
        lost += usize::from(bench.read(0, 1).unwrap() == vec![0; BLOCK]);
    }
    assert!(lost > 10);
}

#[test]
fn after_a_failed_sync_bytes_are_readable_until_a_power_cut() {
    let mut lost = 0;
    for seed in 0..100 {
        let mut bench = TestDisk::new(seed);
        bench.write(0, 7, 1).unwrap();
        bench.disk.set_faults(DiskFaults {
            sync_error: 1.0,
            ..DiskFaults::default()
        });
        assert_eq!(
            bench.run(DiskOp::Sync { file: FILE }),
            Err(DiskError::Device { errno: EIO })
        );
        bench.disk.set_faults(DiskFaults::default());
        bench.run(DiskOp::Sync { file: FILE }).unwrap();
        assert_eq!(bench.read(0, 1).unwrap(), vec![7; BLOCK]);
        bench.disk.crash(Crash::Power);
        lost += usize::from(bench.read(0, 1).unwrap() == vec![0; BLOCK]);
    }
    assert!((20..80).contains(&lost), "{lost}");
}

#[test]
fn operations_interrupted_by_a_crash_never_complete() {
    let mut bench = TestDisk::new(1);
    let op = bench.submit(DiskOp::Sync { file: FILE });
    bench.disk.crash(Crash::Process);
    assert_eq!(bench.disk.complete(op, &mut bench.memory).unwrap(), None);
}

#[test]
fn active_faults_give_their_errors() {
    let mut bench = TestDisk::new(1);
    bench.disk.set_faults(DiskFaults {
        full: true,
        ..DiskFaults::default()
    });
    assert_eq!(
        bench.run(DiskOp::Create {
            file: FileId(2),
            bytes: 4096
        }),
        Err(DiskError::Full)
    );
    assert!(
        bench.write(0, 1, 1).is_ok(),
        "an allocated file takes writes on a full disk"
    );
    bench.disk.set_faults(DiskFaults {
        read_only: true,
        ..DiskFaults::default()
    });
    assert_eq!(bench.write(0, 2, 1), Err(DiskError::ReadOnly));
    bench.disk.set_faults(DiskFaults {
        read_error: 1.0,
        ..DiskFaults::default()
    });
    assert!(bench.read(0, 1).is_err());
    bench.disk.set_faults(DiskFaults {
        read_flip: 1.0,
        ..DiskFaults::default()
    });
    assert_ne!(bench.read(0, 1).unwrap(), vec![1; BLOCK]);
    bench.disk.set_faults(DiskFaults::default());
    assert_eq!(bench.read(0, 1).unwrap(), vec![1; BLOCK]);
    for life in ["this", "the last"] {
        assert_eq!(
            bench.disk.trust(),
            Trust::Damaged,
            "reads of {life} life were spoilt"
        );
        bench.disk.was_judged();
        bench.disk.crash(Crash::Process);
    }
    assert_eq!(bench.disk.trust(), Trust::Intact);
    bench.disk.rot();
    assert_eq!(bench.disk.trust(), Trust::Damaged);
    assert_eq!(
        bench.run(DiskOp::Create {
            file: FileId(3),
            bytes: 2 << 20
        }),
        Err(DiskError::Full)
    );
}

#[test]
fn a_misaligned_or_renamed_operation_breaks_the_contract() {
    let mut bench = TestDisk::new(1);
    let odd = DiskOp::Write {
        file: FILE,
        offset: 512,
        parts: vec![],
    };
    assert!(
        bench
            .disk
            .submit(Instant::ZERO, Caller::Agent(OpId(99)), odd, &bench.memory)
            .is_err()
    );
    let again = DiskOp::Sync { file: FILE };
    assert!(
        bench
            .disk
            .submit(Instant::ZERO, Caller::Agent(OpId(99)), again, &bench.memory)
            .is_err()
    );
}
