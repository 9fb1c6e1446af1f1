//! What only real processes can show: a store that is killed at any moment, and how much memory one takes.
//!
//! This program is its own harness, because it starts itself again as the process to be killed or measured.

#![expect(
    clippy::unwrap_used,
    reason = "a test: what goes wrong here must stop it, with the place where it did"
)]

mod killed;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use slackwater_base::{ByteSize, Rng, hash64};
use slackwater_node::config::Threads;
use slackwater_node::{Config, GetOptions, PutOptions, RemoveOptions, Store, ViewOptions};
use slackwater_wire::{Durability, PutMode, Tenant};

use killed::{killed_at_any_moment, name, value, writer};

const TESTS: [(&str, fn()); 7] = [
    (
        "an_idle_store_whose_threads_have_copied_uses_no_processor_time",
        idle_is_free,
    ),
    (
        "a_store_killed_at_any_moment_keeps_what_it_acknowledged",
        killed_at_any_moment,
    ),
    (
        "a_child_of_fork_does_not_keep_the_directory_of_a_dead_store",
        fork_outlives_its_store,
    ),
    (
        "a_child_of_fork_sees_what_is_viewed_and_ends_no_view_of_its_parent",
        fork_has_views,
    ),
    (
        "a_log_of_more_files_than_descriptors_loses_nothing",
        more_files_than_descriptors,
    ),
    (
        "memory_stays_within_what_is_configured_and_a_constant",
        memory_is_bounded,
    ),
    (
        "a_full_disk_costs_the_ssd_tier_and_nothing_else_until_there_is_room",
        disk_is_full,
    ),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("--writer") => return writer(Path::new(&arguments[1]), arguments[2].parse().unwrap()),
        Some("--thrifty") => return thrifty(Path::new(&arguments[1])),
        Some("--hog") => return hog(Path::new(&arguments[1])),
        Some("--idle") => return idle(Path::new(&arguments[1])),
        Some("--small") => return small(Path::new(&arguments[1])),
        Some("--viewing") => return viewing(),
        Some("--forking") => return forking(Path::new(&arguments[1])),
        _ => {}
    }
    let mut out = std::io::stdout();
    if arguments.iter().any(|argument| argument == "--list") {
        TESTS
            .iter()
            .for_each(|(name, _)| writeln!(out, "{name}: test").unwrap());
        return;
    }
    let filter = arguments.iter().find(|argument| !argument.starts_with('-'));
    for (name, test) in TESTS {
        if filter.is_none_or(|filter| name.contains(filter.as_str())) {
            let begun = Instant::now();
            test();
            writeln!(
                out,
                "test {name} ... ok ({:.1} s)",
                begun.elapsed().as_secs_f64()
            )
            .unwrap();
        }
    }
}

/// How long a process may say nothing.
const PATIENCE: Duration = Duration::from_secs(120);

/// This program, started again as a process that speaks in lines; killed when dropped.
struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    fn start(command: &mut Command) -> std::io::Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (said, heard) = channel();
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .for_each(|line| _ = said.send(line))
        });
        Ok(Self {
            child,
            lines: heard,
        })
    }

    fn again(mode: &str, arguments: &[&str]) -> Self {
        Self::start(
            Command::new(std::env::current_exe().unwrap())
                .arg(mode)
                .args(arguments),
        )
        .unwrap()
    }

    /// The next line, or none when it has ended.
    fn line(&mut self) -> Option<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                panic!("a process hangs: it said nothing for {PATIENCE:?}")
            }
        }
    }

    /// What it says until it ends, and how it ends.
    fn end(mut self) -> (String, ExitStatus) {
        let said: String = std::iter::from_fn(|| self.line()).collect();
        (said, self.child.wait().unwrap())
    }

    /// The numbers that it says before it ends well.
    fn numbers<const N: usize>(self) -> [u64; N] {
        let (said, status) = self.end();
        assert!(status.success(), "{status}");
        let numbers: Vec<u64> = said
            .split_whitespace()
            .map(|number| number.parse().unwrap())
            .collect();
        numbers.try_into().unwrap_or_else(|_| panic!("{said}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn config(directory: &Path) -> Config {
    Config {
        memory: ByteSize::mib(8),
        ssd: ByteSize::mib(256),
        dir: Some(directory.to_owned()),
        flush_delay: Duration::from_millis(2),
        ..Config::default()
    }
}

/// What a child of `fork` says once it runs.
const FORKED: &str = "forked\n";

/// The lock of a directory belongs to the open file, which a child of `fork` shares: a worker that an engine had forked
/// kept the directory of a killed store locked for as long as it lived, and nobody could open it.
fn fork_outlives_its_store() {
    let root = tempfile::tempdir().unwrap();
    let mut parent = Process::again("--forking", &[root.path().to_str().unwrap()]);
    // The child gives the directory up as its first act, which may come long after the parent goes on.
    let said = [(); 2].map(|()| parent.line().unwrap());
    assert!(
        said.iter().any(|line| line == FORKED.trim_end()),
        "{said:?}"
    );
    let child: i32 = said.iter().find_map(|line| line.parse().ok()).unwrap();
    let held = Store::open(config(root.path())).err().unwrap();
    assert!(held.to_string().contains("held by"), "{held}");
    parent.child.kill().unwrap();
    parent.child.wait().unwrap();
    let opened = Store::open(config(root.path()));
    // SAFETY: sends a signal. The child waits for it, so that its number is its own.
    let killed = unsafe { libc::kill(child, libc::SIGKILL) };
    assert_eq!(killed, 0, "the child outlived its parent");
    let store = opened.unwrap();
    assert_eq!(
        store.get(b"k", &GetOptions::default()).unwrap().as_deref(),
        Some(&b"v"[..])
    );
    store.close().unwrap();
}

/// Opens a store, forks a child that does nothing, says its number, and waits to be killed.
fn forking(directory: &Path) {
    let store = Store::open(config(directory)).unwrap();
    let durable = PutOptions {
        durability: Durability::Disk,
        ..PutOptions::default()
    };
    store.put(b"k", b"v", &durable).unwrap();
    // SAFETY: the child only calls `write` and `pause`, which are allowed after `fork` of a process with threads.
    match unsafe { libc::fork() } {
        0 => loop {
            // SAFETY: writes bytes that live as long as the program, and waits for a signal.
            unsafe {
                libc::write(1, FORKED.as_ptr().cast(), FORKED.len());
                libc::pause();
            }
        },
        child => {
            let mut out = std::io::stdout();
            writeln!(out, "{child}").unwrap();
            out.flush().unwrap();
            loop {
                std::thread::park();
            }
        }
    }
}

/// A child that ended a view would take locks that another thread of its parent may have held at the fork.
fn fork_has_views() {
    let [in_child, in_parent] = Process::again("--viewing", &[]).numbers();
    assert_eq!((in_child, in_parent), (0, 0));
}

/// Views a value, forks, and says what the child found wrong and what was wrong in the parent after that.
fn viewing() {
    let store = Store::open(Config {
        memory: ByteSize::mib(4),
        ..Config::default()
    })
    .unwrap();
    store.put(b"k", &[7; 5000], &PutOptions::default()).unwrap();
    let view = store.view(b"k", &ViewOptions::default()).unwrap().unwrap();
    let wrong =
        |open: u64, same: bool| i32::from(!same) + 2 * i32::from(store.stats().views.open != open);
    // SAFETY: no other thread of this process uses the store or allocates now.
    let in_child = match unsafe { libc::fork() } {
        0 => {
            let same = *view == [7; 5000];
            drop(view);
            // SAFETY: ends the child.
            unsafe { libc::_exit(wrong(1, same)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child, and writes its status.
            let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(ended, child);
            status
        }
    };
    let mut in_parent = wrong(1, *view == [7; 5000]);
    drop(view);
    in_parent += wrong(0, true);
    let mut out = std::io::stdout();
    writeln!(out, "{in_child} {in_parent}").unwrap();
}

/// Every file of the log kept its descriptor for ever. Past the limit reads failed, the store took that for lost bytes,
/// and the next opener for empty files.
fn more_files_than_descriptors() {
    let root = tempfile::tempdir().unwrap();
    let [] = Process::again("--thrifty", &[root.path().to_str().unwrap()]).numbers();
}

/// Descriptors of the thrifty process: enough for the store's rings and half of what its log would take.
const FEW_FILES: u64 = 48;

fn thrifty(directory: &Path) {
    use rustix::process::{Resource, Rlimit, setrlimit};
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(FEW_FILES),
            maximum: Some(FEW_FILES),
        },
    )
    .unwrap();
    let settings = || Config {
        ssd: ByteSize::mib(128),
        file_bytes: ByteSize::mib(1),
        ..config(directory)
    };
    let keys: Vec<String> = (0..300).map(|number| format!("key {number}")).collect();
    let value = |key: &str| {
        let mut bytes = vec![0; 256 << 10];
        Rng::new(hash64(key.as_bytes())).fill(&mut bytes);
        bytes
    };
    let store = Store::open(settings()).unwrap();
    let options = PutOptions {
        durability: Durability::Disk,
        ..PutOptions::default()
    };
    for key in &keys {
        store.put(key.as_bytes(), &value(key), &options).unwrap();
    }
    store.close().unwrap();
    let files = std::fs::read_dir(directory).unwrap().count() as u64;
    assert!(files > FEW_FILES, "{files} files");
    for _ in 0..2 {
        let store = Store::open(settings()).unwrap();
        for key in &keys {
            let got = store.get(key.as_bytes(), &GetOptions::default()).unwrap();
            assert!(got.is_some_and(|got| got == value(key)), "{key} is gone");
        }
        store.close().unwrap();
    }
}

/// Memory of values in the measured process.
const MEMORY: ByteSize = ByteSize::mib(128);
/// What a store may take beyond it, in this test with 10,000 objects: read buffers (32 MiB by default), copies of
/// reclaim (16 MiB), batches on their way to SSD, the metadata, the program itself.
const BEYOND: ByteSize = ByteSize::mib(64);

/// The process that is measured: fills memory and SSD several times over and reads from both.
fn hog(directory: &Path) {
    let config = Config {
        memory: MEMORY,
        ssd: ByteSize::mib(512),
        dir: Some(directory.to_owned()),
        ..Config::default()
    };
    let store = Store::open(config).unwrap();
    let mut buffer = vec![0; 64 << 10];
    let mut rng = Rng::new(1);
    for number in 0..10_000u64 {
        buffer[..8].copy_from_slice(&number.to_le_bytes());
        store
            .put(
                format!("v{number}").as_bytes(),
                &buffer,
                &PutOptions::default(),
            )
            .unwrap();
        if number % 2 == 0 {
            let key = format!("v{}", rng.below(number + 1));
            store
                .get_into(key.as_bytes(), &mut buffer, &GetOptions::default())
                .unwrap();
        }
    }
    let (stats, status) = (
        store.stats(),
        std::fs::read_to_string("/proc/self/status").unwrap(),
    );
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap()
        .trim()
        .trim_end_matches(" kB");
    let peak_bytes = peak.parse::<u64>().unwrap() << 10;
    let mut out = std::io::stdout();
    writeln!(
        out,
        "{peak_bytes} {} {}",
        stats.reads.ssd_hits, stats.memory.used_bytes
    )
    .unwrap();
}

fn memory_is_bounded() {
    let root = tempfile::tempdir().unwrap();
    let [peak_bytes, ssd_hits, used_bytes] =
        Process::again("--hog", &[root.path().to_str().unwrap()]).numbers();
    assert!(
        ssd_hits > 1000 && used_bytes > MEMORY.0 / 2,
        "the tiers were not exercised: {ssd_hits} {used_bytes}"
    );
    let limit = MEMORY.0 + BEYOND.0;
    assert!(
        peak_bytes <= limit,
        "peak of {} is over {}",
        ByteSize(peak_bytes),
        ByteSize(limit)
    );
    let mut out = std::io::stdout();
    writeln!(
        out,
        "peak {} of {} allowed",
        ByteSize(peak_bytes),
        ByteSize(limit)
    )
    .unwrap();
}

/// Exit status of a process that may not mount.
const NO_MOUNT: i32 = 77;

/// The process with a disk of its own that runs full: a small file system in its own mount namespace.
fn small(directory: &Path) {
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64m", "tmpfs"])
        .arg(directory)
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        std::process::exit(NO_MOUNT);
    }
    let filler = directory.join("filler");
    std::fs::write(&filler, vec![0; 44 << 20]).unwrap();
    let store = Store::open(config(&directory.join("store"))).unwrap();
    let patience = Duration::from_secs(30);
    let put = |from: u64, count: u64| {
        for number in from..from + count {
            // Memory alone goes on, whatever becomes of the disk.
            store
                .put(
                    name(number).as_bytes(),
                    &value(number, number),
                    &PutOptions::default(),
                )
                .unwrap();
            if number % 32 == 0 {
                store.flush(patience).unwrap();
            }
        }
        store.flush(patience).unwrap();
    };
    put(0, 2000);
    let stats = store.stats();
    let kept = stats.offloads.completed;
    assert!(
        stats.ssd.is_some_and(|ssd| !ssd.accepting) && kept > 0 && kept < 2000,
        "{stats:#?}"
    );
    std::fs::remove_file(filler).unwrap();
    let begun = Instant::now();
    let mut next = 2000;
    while store.stats().offloads.completed < kept + 100 {
        assert!(
            begun.elapsed() < patience,
            "no record since there is room: {:#?}",
            store.stats()
        );
        put(next, 10);
        next += 10;
    }
    for number in 0..next {
        if let Some(found) = store
            .get(name(number).as_bytes(), &GetOptions::default())
            .unwrap()
        {
            assert!(found == value(number, number), "wrong bytes of {number}");
        }
    }
    assert_eq!(store.stats().corrupt, 0);
    store.close().unwrap();
}

fn disk_is_full() {
    let root = tempfile::tempdir().unwrap();
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "--mount"])
        .arg(std::env::current_exe().unwrap());
    let status =
        Process::start(command.arg("--small").arg(root.path())).map(|process| process.end().1);
    match status.as_ref().map(|status| status.code()) {
        Ok(Some(0)) => {}
        Err(_) | Ok(Some(NO_MOUNT | 1)) => {
            let mut out = std::io::stdout();
            writeln!(
                out,
                "skipped: a disk that runs full needs leave to mount ({status:?})"
            )
            .unwrap();
        }
        Ok(code) => panic!("the process with the small disk ended with {code:?}"),
    }
}

/// How long a store is watched while nothing is asked of it.
const IDLE: Duration = Duration::from_secs(1);

/// The process that copied with several threads, and then does nothing: prints what doing nothing cost.
fn idle(directory: &Path) {
    let store = Store::open(Config {
        copy_threads: Threads::Count(2),
        ..config(directory)
    })
    .unwrap();
    let large = vec![7; 4 << 20];
    store.put(b"large", &large, &PutOptions::default()).unwrap();
    assert!(
        store
            .get(b"large", &GetOptions::default())
            .unwrap()
            .is_some_and(|found| found == large)
    );
    store.flush(Duration::from_secs(30)).unwrap();
    let look = |_| {
        let before = used();
        // The one sleep: nothing is waited for, it is what is measured.
        std::thread::sleep(IDLE);
        let after = used();
        (after.0 - before.0, after.1 - before.1)
    };
    // The first may see threads end what they did.
    let (micros, switches) = (0..3).map(look).min().expect("there are some");
    let mut out = std::io::stdout();
    writeln!(out, "{micros} {switches}").unwrap();
    store.close().unwrap();
}

/// Microseconds of processor time of this process so far, and times that its threads gave up the processor.
fn used() -> (u64, u64) {
    // SAFETY: all fields of the plain structure are numbers, of which zero is one.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is valid for writes during the call.
    let answer = unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    assert_eq!(answer, 0);
    let micros = |time: libc::timeval| time.tv_sec * 1_000_000 + time.tv_usec;
    let micros = micros(usage.ru_utime) + micros(usage.ru_stime);
    (
        micros.cast_unsigned(),
        (usage.ru_nvcsw + usage.ru_nivcsw).cast_unsigned(),
    )
}

fn idle_is_free() {
    let root = tempfile::tempdir().unwrap();
    let [micros, switches] = Process::again("--idle", &[root.path().to_str().unwrap()]).numbers();
    // One thread that polls every millisecond would be switched a thousand times.
    assert!(
        micros <= 10_000 && switches <= 100,
        "{micros} us of processor time, {switches} switches in {IDLE:?}"
    );
    let mut out = std::io::stdout();
    writeln!(out, "{micros} us, {switches} switches in {IDLE:?}").unwrap();
}
