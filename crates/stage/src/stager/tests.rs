use std::sync::mpsc::{Receiver, channel};

use slackwater_base::Rng;
use slackwater_engine::{Region, RegionSpec, Regions};
use slackwater_wait::now;
use slackwater_wire::data::Rights;

use super::*;
use crate::software::{Faults, SoftwareDevice, SoftwareMemory};

const CHUNK: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(20);

struct Rig {
    device: Arc<SoftwareDevice>,
    stager: Arc<Stager>,
    regions: Regions,
    memory: Arc<SoftwareMemory>,
    region: Arc<Region>,
}

fn rig(chunks: usize, watch: Watch) -> Rig {
    let device = Arc::new(SoftwareDevice::start(0).unwrap());
    let limits = StageLimits {
        chunk_bytes: CHUNK,
        pinned_bytes_max: 2 * chunks * CHUNK,
        watch,
    };
    let stager = Stager::start(Arc::clone(&device) as Arc<dyn Device>, limits).unwrap();
    let memory = Arc::new(device.allocate(64 * CHUNK).unwrap());
    // SAFETY: the allocation is kept by the rig, longer than the region is used.
    let staged = unsafe { stager.memory(memory.address(), 64 * CHUNK) }.unwrap();
    let regions = Regions::default();
    let region = regions
        .register(RegionSpec {
            memory: staged,
            rights: Rights::BOTH,
            gate: None,
        })
        .unwrap();
    Rig {
        device,
        stager,
        regions,
        memory,
        region,
    }
}

impl Rig {
    fn access(&self, tenant: u64) -> Arc<Access> {
        Arc::new(
            self.region
                .access(0, self.region.bytes())
                .unwrap()
                .for_peer(slackwater_engine::PeerRight {
                    tenant,
                    ..Default::default()
                }),
        )
    }

    fn fetch(
        &self,
        tenant: u64,
        offset: usize,
        bytes: usize,
    ) -> Receiver<Result<Staged, StageError>> {
        let (tell, told) = channel();
        let done = Box::new(move |result| tell.send(result).unwrap_or_default());
        self.stager
            .fetch(self.access(tenant), offset as u64, bytes, done);
        told
    }

    fn store(&self, offset: usize, from: Staged, bytes: usize) -> Result<(), StageError> {
        let (tell, told) = channel();
        let done = Box::new(move |result| tell.send(result).unwrap_or_default());
        self.stager
            .store(self.access(0), offset as u64, from, bytes, done);
        told.recv_timeout(PATIENCE).unwrap()
    }

    fn lend(&self, tenant: u64, bytes: usize) -> Staged {
        loop {
            let (tell, told) = channel();
            let free = Box::new(move |_| tell.send(()).unwrap_or_default());
            match self
                .stager
                .lend(&self.access(tenant), bytes, Instant::NEVER, free)
            {
                Some(staged) => return staged,
                None => told.recv_timeout(PATIENCE).unwrap(),
            }
        }
    }
}

fn bytes(staged: &Staged) -> &[u8] {
    // SAFETY: the loan holds so many bytes, and nobody writes them meanwhile.
    unsafe { std::slice::from_raw_parts(staged.start().as_ptr(), staged.bytes()) }
}

fn write(staged: &Staged, from: &[u8]) {
    // SAFETY: the loan is at least as long.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr(), staged.start().as_ptr(), from.len()) };
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

#[test]
fn chunks_go_in_and_out_of_a_device_however_its_copies_are_watched() {
    for watch in [Watch::Callback, Watch::Poll(Duration::from_micros(20))] {
        let rig = rig(3, watch);
        let data = noise(1, 64 * CHUNK);
        rig.memory.store(&data);
        // More at a time than there are chunks: the rest waits.
        let fetched: Vec<_> = (0..64)
            .map(|chunk| rig.fetch(0, chunk * CHUNK, CHUNK))
            .collect();
        for (chunk, told) in fetched.into_iter().enumerate() {
            let staged = told.recv_timeout(PATIENCE).unwrap().unwrap();
            assert!(
                bytes(&staged) == &data[chunk * CHUNK..][..CHUNK],
                "chunk {chunk}"
            );
        }
        let other = noise(2, 1000);
        let staged = rig.lend(0, 1000);
        write(&staged, &other);
        rig.store(77, staged, 1000).unwrap();
        assert!(rig.memory.load()[77..1077] == other);
        assert_eq!(
            rig.stager.pinned(),
            (4 * CHUNK, 0),
            "three for peers, and the one there always is"
        );
        assert_eq!(
            rig.region.in_flight(),
            0,
            "nothing is at the region any more"
        );
    }
}

#[test]
fn an_error_of_the_device_fails_its_own_copy_alone() {
    let rig = rig(2, Watch::Callback);
    rig.device.set_faults(Faults {
        fail_every: 3,
        ..Faults::default()
    });
    let failed = (0..30)
        .filter(|_| rig.fetch(0, 0, 8).recv_timeout(PATIENCE).unwrap().is_err())
        .count();
    assert_eq!(failed, 10);
    let mut failed = 0;
    for _ in 0..30 {
        let staged = rig.lend(0, 8);
        failed += usize::from(rig.store(0, staged, 8).is_err());
    }
    assert_eq!(failed, 10);
    assert!(rig.stager.pinned().0 <= 3 * CHUNK);
}

#[test]
fn a_tenant_finds_no_byte_of_another_in_its_staging() {
    let rig = rig(2, Watch::Callback);
    rig.memory.store(&vec![0xee; 64 * CHUNK]);
    for tenant in 0..8 {
        let loans = [rig.lend(tenant, CHUNK), rig.lend(tenant, CHUNK)];
        assert!(
            loans
                .iter()
                .all(|loan| bytes(loan).iter().all(|&byte| byte == 0)),
            "tenant {tenant}"
        );
        drop(loans);
        let held: Vec<_> = [0, 1]
            .map(|_| rig.fetch(tenant, 0, CHUNK))
            .map(|told| told.recv_timeout(PATIENCE).unwrap())
            .into();
        assert!(held.iter().all(Result::is_ok));
    }
}

#[test]
fn memory_stays_in_use_until_its_copy_is_over() {
    let rig = rig(2, Watch::Callback);
    rig.device.set_faults(Faults {
        stopped: true,
        ..Faults::default()
    });
    let told = rig.fetch(0, 0, CHUNK);
    rig.region.close();
    let soon = now() + Duration::from_millis(1);
    assert!(
        rig.regions.reopen(&rig.region, soon).is_err(),
        "a copy is under way"
    );
    assert!(told.try_recv().is_err());
    rig.device.set_faults(Faults::default());
    assert!(told.recv_timeout(PATIENCE).unwrap().is_ok());
    rig.regions.reopen(&rig.region, now() + PATIENCE).unwrap();
}

/// A store of more bytes than were lent copied what follows the loan into the device: bytes of another tenant.
#[test]
fn no_more_leaves_a_loan_than_was_lent() {
    let rig = rig(2, Watch::Callback);
    let whole = rig.lend(1, CHUNK);
    write(&whole, &[0xee; CHUNK]);
    drop(whole);
    let staged = rig.lend(1, 8);
    assert!(rig.store(0, staged, 9).is_err());
    let (tell, told) = channel();
    let done = Box::new(move |loaded: Result<Staged, StageError>| {
        tell.send(loaded.is_ok()).unwrap_or_default()
    });
    rig.stager.load(rig.access(1), 0, rig.lend(1, 8), 9, done);
    assert!(!told.recv_timeout(PATIENCE).unwrap());
    assert!(rig.memory.load().iter().all(|&byte| byte == 0));
}

/// A callback that panicked ended the thread, and the ends of all copies under way were lost with it.
#[test]
fn a_callback_that_panics_ends_alone() {
    let rig = rig(2, Watch::Callback);
    rig.stager
        .fetch(rig.access(0), 0, 8, Box::new(|_| panic!("as a hook might")));
    assert!(rig.fetch(0, 0, 8).recv_timeout(PATIENCE).unwrap().is_ok());
}

#[test]
fn foreign_memory_and_ranges_outside_are_refused() {
    let rig = rig(2, Watch::Callback);
    let host = vec![0u8; CHUNK];
    // SAFETY: what is refused is not registered.
    let refused = unsafe { rig.stager.memory(host.as_ptr().addr() as u64, CHUNK) };
    assert!(
        matches!(refused, Err(StagingError::Foreign { .. })),
        "{refused:?}"
    );
    // SAFETY: as above.
    assert!(unsafe { rig.stager.memory(rig.memory.address() + 1, 64 * CHUNK) }.is_err());
    assert!(
        rig.fetch(0, 63 * CHUNK + 1, CHUNK)
            .recv_timeout(PATIENCE)
            .unwrap()
            .is_err()
    );
    assert!(
        rig.fetch(0, 0, CHUNK + 1)
            .recv_timeout(PATIENCE)
            .unwrap()
            .is_err()
    );
}

#[test]
fn waiters_end_with_the_staging() {
    let Rig {
        stager,
        regions,
        region,
        memory,
        device,
    } = rig(2, Watch::Callback);
    let access = region.access(0, 8).unwrap();
    let mut loans = Vec::new();
    while loans.len() < 2 {
        let (tell, told) = channel();
        match stager.lend(
            &access,
            8,
            Instant::NEVER,
            Box::new(move |_| tell.send(()).unwrap_or_default()),
        ) {
            Some(loan) => loans.push(loan),
            None => told.recv_timeout(PATIENCE).unwrap(),
        }
    }
    let (tell, told) = channel();
    assert!(
        stager
            .lend(
                &access,
                8,
                Instant::NEVER,
                Box::new(move |_| tell.send(()).unwrap_or_default())
            )
            .is_none()
    );
    drop(access);
    region.close();
    regions.remove(&region, now() + PATIENCE).unwrap();
    drop((region, stager));
    told.recv_timeout(PATIENCE).unwrap();
    drop((loans, memory));
    assert_eq!(device.pinned_bytes(), 0, "all pinned memory is given back");
}
