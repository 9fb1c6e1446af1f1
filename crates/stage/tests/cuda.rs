//! The CUDA device against a driver that stands for the real one: names, types, contexts, ends and errors of its calls.
//!
//! The driver is looked for when the process first uses it, so each case runs in a process of its own that is told where
//! it lies. How fast a GPU is, and what it does that its documentation does not say, only a GPU can tell.
#![cfg(feature = "gpu")]
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::ffi::{CString, c_int};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::ptr;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use slackwater_engine::{Access, Region, RegionSpec, Regions, Rights, Stage, StageError, Staged};
use slackwater_stage::{CudaDevice, CudaMemory, Device, StageLimits, Stager, StagingError, Watch};

const CASE: &str = "SLACKWATER_CUDA_TEST_CASE";
const LIBRARY: &str = "SLACKWATER_CUDA_TEST_LIBRARY";
const PATIENCE: Duration = Duration::from_secs(20);
const CHUNK: usize = 4096;

/// The folder of the driver, built once.
static DRIVER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda");
    std::fs::create_dir_all(&folder).unwrap();
    // Renamed into place at once: another run may build it too.
    let fresh = folder.join(format!("fresh-{}", std::process::id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/driver.c");
    let built = Command::new("cc")
        .args([
            "-std=gnu11",
            "-O1",
            "-Wall",
            "-Werror",
            "-shared",
            "-fPIC",
            "-pthread",
            "-o",
        ])
        .arg(&fresh)
        .arg(source)
        .status()
        .expect("a C compiler, which Rust itself links with");
    assert!(built.success());
    std::fs::rename(fresh, folder.join("libcuda.so")).unwrap();
    folder
});

/// Runs a case in a process that finds the driver.
fn in_process(case: &str) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "be_a_child",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(CASE, case)
        .env(LIBRARY, DRIVER.join("libcuda.so"))
        .env("LD_LIBRARY_PATH", &*DRIVER)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let (tell, told) = channel();
    let id = child.id();
    std::thread::spawn(move || tell.send(child.wait()));
    match told.recv_timeout(3 * PATIENCE) {
        Ok(status) => assert!(status.unwrap().success(), "{case}"),
        Err(_) => {
            let _ = rustix::process::kill_process(
                rustix::process::Pid::from_raw(id.cast_signed()).unwrap(),
                rustix::process::Signal::KILL,
            );
            panic!("{case} hangs");
        }
    }
}

#[test]
fn bytes_go_in_and_out_by_either_watch() {
    in_process("copies");
}

/// A call made the context of its device current to the calling thread and left it so: a caller that worked on another
/// device went on with the wrong context.
#[test]
fn the_callers_context_stays_its_own() {
    in_process("contexts");
}

#[test]
fn what_the_driver_refuses_fails_alone() {
    in_process("errors");
}

#[test]
fn memory_of_others_is_refused() {
    in_process("foreign");
}

/// Not a test: what a process runs.
#[test]
#[ignore = "run by other tests in a process of its own"]
fn be_a_child() {
    let Ok(case) = std::env::var(CASE) else {
        return;
    };
    let driver = StandIn::open();
    assert_eq!(CudaDevice::count().unwrap(), 2);
    match case.as_str() {
        "copies" => copies(),
        "contexts" => contexts(&driver),
        "errors" => errors(&driver),
        "foreign" => foreign(),
        other => panic!("no case {other}"),
    }
    let deadline = Instant::now() + PATIENCE;
    while driver.ask("stand_in_lives") != 0 {
        assert!(
            Instant::now() < deadline,
            "{} things of the driver live on",
            driver.ask("stand_in_lives")
        );
        std::thread::yield_now();
    }
    assert_eq!(
        driver.ask("stand_in_current"),
        -1,
        "no context is left on this thread"
    );
}

/// The driver, as the test sees it.
struct StandIn(*mut libc::c_void);

impl StandIn {
    fn open() -> Self {
        let path = CString::new(std::env::var(LIBRARY).unwrap()).unwrap();
        // SAFETY: a path, and a library whose loading does nothing.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null());
        Self(library)
    }

    fn symbol(&self, name: &str) -> *mut libc::c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: an open library and a name.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!found.is_null());
        found
    }

    fn ask(&self, name: &str) -> c_int {
        // SAFETY: the functions that are asked have this type.
        let ask: extern "C" fn() -> c_int = unsafe { std::mem::transmute(self.symbol(name)) };
        ask()
    }

    fn set(&self, name: &str, value: c_int) {
        // SAFETY: the functions that are set by have this type.
        let set: extern "C" fn(c_int) = unsafe { std::mem::transmute(self.symbol(name)) };
        set(value);
    }
}

struct Rig {
    stager: Arc<Stager>,
    region: Arc<Region>,
    _regions: Regions,
    _memory: CudaMemory,
}

fn rig(watch: Watch) -> Rig {
    let device = Arc::new(CudaDevice::open(0).unwrap());
    let memory = device.allocate(64 * CHUNK).unwrap();
    let limits = StageLimits {
        chunk_bytes: CHUNK,
        pinned_bytes_max: 4 * CHUNK,
        watch,
    };
    let stager = Stager::start(device, limits).unwrap();
    // SAFETY: the rig keeps the allocation longer than the region.
    let staged = unsafe { stager.memory(memory.address(), memory.len()) }.unwrap();
    let regions = Regions::default();
    let region = regions
        .register(RegionSpec {
            memory: staged,
            rights: Rights::BOTH,
            gate: None,
        })
        .unwrap();
    Rig {
        stager,
        region,
        _regions: regions,
        _memory: memory,
    }
}

impl Rig {
    fn access(&self) -> Arc<Access> {
        Arc::new(self.region.access(0, self.region.bytes()).unwrap())
    }

    fn fetch(&self, chunk: usize) -> Receiver<Result<Staged, StageError>> {
        let (tell, told) = channel();
        let done = Box::new(move |result| tell.send(result).unwrap_or_default());
        self.stager
            .fetch(self.access(), (chunk * CHUNK) as u64, CHUNK, done);
        told
    }

    fn store(&self, chunk: usize, byte: u8) -> Result<(), StageError> {
        let staged = loop {
            let (tell, told) = channel();
            let free = Box::new(move |_| tell.send(()).unwrap_or_default());
            match self
                .stager
                .lend(&self.access(), CHUNK, slackwater_base::Instant::NEVER, free)
            {
                Some(staged) => break staged,
                None => told.recv_timeout(PATIENCE).unwrap(),
            }
        };
        // SAFETY: the loan is that long, and nobody else's.
        unsafe { ptr::write_bytes(staged.start().as_ptr(), byte, CHUNK) };
        let (tell, told) = channel();
        let done = Box::new(move |result| tell.send(result).unwrap_or_default());
        self.stager
            .store(self.access(), (chunk * CHUNK) as u64, staged, CHUNK, done);
        told.recv_timeout(PATIENCE).unwrap()
    }

    fn check(&self, chunk: usize, byte: u8) {
        let staged = self.fetch(chunk).recv_timeout(PATIENCE).unwrap().unwrap();
        // SAFETY: the loan is that long, and nobody writes it.
        let bytes = unsafe { std::slice::from_raw_parts(staged.start().as_ptr(), CHUNK) };
        assert!(bytes.iter().all(|&found| found == byte), "chunk {chunk}");
    }
}

fn copies() {
    for watch in [Watch::Callback, Watch::Poll(Duration::from_micros(50))] {
        let rig = rig(watch);
        for chunk in 0..64 {
            rig.store(chunk, chunk as u8).unwrap();
        }
        let fetched: Vec<_> = (0..64).map(|chunk| rig.fetch(chunk)).collect();
        for told in fetched {
            told.recv_timeout(PATIENCE).unwrap().unwrap();
        }
        (0..64).for_each(|chunk| rig.check(chunk, chunk as u8));
        assert_eq!(rig.region.in_flight(), 0);
    }
}

fn contexts(driver: &StandIn) {
    let other = CudaDevice::open(1).unwrap();
    let push: extern "C" fn(*mut libc::c_void) -> c_int =
        // SAFETY: the driver's own function of this type.
        unsafe { std::mem::transmute(driver.symbol("cuCtxPushCurrent_v2")) };
    let retain: extern "C" fn(*mut *mut libc::c_void, c_int) -> c_int =
        // SAFETY: as above.
        unsafe { std::mem::transmute(driver.symbol("cuDevicePrimaryCtxRetain")) };
    let mut context = ptr::null_mut();
    assert_eq!((retain(&raw mut context, 1), push(context)), (0, 0));
    let stays = || assert_eq!(driver.ask("stand_in_current"), 1);
    {
        let rig = rig(Watch::Callback);
        stays();
        rig.store(0, 1).unwrap();
        stays();
        rig.check(0, 1);
    }
    stays();
    drop(other);
    let release: extern "C" fn(c_int) -> c_int =
        // SAFETY: as above.
        unsafe { std::mem::transmute(driver.symbol("cuDevicePrimaryCtxRelease_v2")) };
    let pop: extern "C" fn(*mut *mut libc::c_void) -> c_int =
        // SAFETY: as above.
        unsafe { std::mem::transmute(driver.symbol("cuCtxPopCurrent_v2")) };
    assert_eq!((pop(&raw mut context), release(1)), (0, 0));
}

fn errors(driver: &StandIn) {
    let rig = rig(Watch::Callback);
    rig.store(0, 7).unwrap();
    driver.set("stand_in_fail_copy", 1);
    assert!(rig.store(1, 8).is_err());
    // A copy that runs without an event: its memory is released only after its end.
    driver.set("stand_in_fail_record", 1);
    assert!(rig.fetch(0).recv_timeout(PATIENCE).unwrap().is_err());
    rig.store(2, 9).unwrap();
    rig.check(0, 7);
    rig.check(2, 9);
    driver.set("stand_in_stop", 1);
    let told = rig.fetch(0);
    assert!(
        told.recv_timeout(Duration::from_millis(50)).is_err(),
        "it is not over before its event is"
    );
    assert_eq!(rig.region.in_flight(), 1);
    driver.set("stand_in_stop", 0);
    told.recv_timeout(PATIENCE).unwrap().unwrap();
}

fn foreign() {
    let rig = rig(Watch::Callback);
    let other = CudaDevice::open(1).unwrap();
    let elsewhere = other.allocate(CHUNK).unwrap();
    let host = vec![0u8; CHUNK];
    let pinned = CudaDevice::open(0).unwrap().pin(CHUNK).unwrap();
    for (what, address, bytes) in [
        ("another device", elsewhere.address(), CHUNK),
        ("the host", host.as_ptr().addr() as u64, CHUNK),
        ("pinned memory", pinned.as_ptr().addr() as u64, CHUNK),
        (
            "more than was allocated",
            rig._memory.address(),
            rig._memory.len() + 1,
        ),
        ("all there is", rig._memory.address(), usize::MAX),
    ] {
        // SAFETY: what is refused is not used.
        let refused = unsafe { rig.stager.memory(address, bytes) };
        assert!(
            matches!(refused, Err(StagingError::Foreign { .. })),
            "{what}: {refused:?}"
        );
    }
    assert!(CudaDevice::open(2).is_err());
}
