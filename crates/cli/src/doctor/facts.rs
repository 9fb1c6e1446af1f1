use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, getrlimit};
use slackwater_base::BLOCK_BYTES;
use slackwater_node::Config;
use slackwater_pool::copy::{Isa, IsaChoice, Tuning};
use slackwater_transfer::{AesLibrary, Cipher};

/// What the machine says about itself. Everything the checks judge is in here.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// Release of the kernel.
    pub(super) kernel: String,
    /// What a ring of eight entries gives.
    pub(super) io_uring: Option<Refusal>,
    /// `kernel.io_uring_disabled`.
    pub(super) io_uring_disabled: Option<u64>,
    /// The bracketed word of the transparent huge page setting.
    pub(super) transparent_pages: Option<String>,
    /// Reserved huge pages that are free, and the size of one in bytes.
    pub(super) reserved_pages: (u64, u64),
    /// Memory that could be had, in bytes.
    pub(super) memory_available: Option<u64>,
    /// What the control group allows, in bytes.
    pub(super) memory_limit: Option<u64>,
    /// Bytes that may be locked; `None` is no limit.
    pub(super) locked_bytes: Option<u64>,
    /// Files that may be open now, and after raising the limit; `None` is no limit.
    pub(super) files: (Option<u64>, Option<u64>),
    /// Memory nodes.
    pub(super) nodes: usize,
    /// What copies and checksums of a store are made of.
    pub(super) isa: Option<Isa>,
    /// The widest that the processor has.
    pub(super) isa_widest: Option<Isa>,
    /// Copies from this length on, in bytes, go past the cache.
    pub(super) streaming_bytes_min: u64,
    /// Whose AES-256-GCM seals connections of transfers; none where the processor has no instructions for it.
    pub(super) aes: Option<AesLibrary>,
    /// The kernel's clock.
    pub(super) clock: Option<String>,
    /// The directory of the SSD tier.
    pub(super) disk: Disk,
}

/// Why the system refused something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal(pub(super) String);

/// What a directory says about itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    /// The directory, or the nearest one above it that is there.
    pub(super) path: PathBuf,
    /// Name of its file system.
    pub(super) kind: String,
    /// Free bytes.
    pub(super) free: Option<u64>,
    /// Why a file could not be written, if so.
    pub(super) write: Option<Refusal>,
    /// Why it could not be written past the page cache, if so.
    pub(super) direct: Option<Refusal>,
}

impl Facts {
    pub(super) fn gather(config: &Config) -> Self {
        let meminfo = text("/proc/meminfo").unwrap_or_default();
        let (locked, files) = (getrlimit(Resource::Memlock), getrlimit(Resource::Nofile));
        Self {
            kernel: text("/proc/sys/kernel/osrelease").unwrap_or_default(),
            io_uring: io_uring::IoUring::new(8).err().map(Refusal::from),
            io_uring_disabled: number("/proc/sys/kernel/io_uring_disabled"),
            transparent_pages: text("/sys/kernel/mm/transparent_hugepage/enabled")
                .and_then(|text| chosen(&text)),
            reserved_pages: (
                field(&meminfo, "HugePages_Free").unwrap_or(0),
                field(&meminfo, "Hugepagesize").unwrap_or(0) << 10,
            ),
            memory_available: field(&meminfo, "MemAvailable").map(|kib| kib << 10),
            memory_limit: number("/sys/fs/cgroup/memory.max"),
            locked_bytes: locked.current,
            files: (files.current, files.maximum),
            nodes: text("/sys/devices/system/node/online").map_or(1, |list| count(&list)),
            isa: Some(match config.isa {
                IsaChoice::Auto => Isa::current(),
                IsaChoice::Forced(isa) => isa,
            }),
            isa_widest: Some(Isa::widest()),
            streaming_bytes_min: Tuning::current().streaming_bytes_min as u64,
            aes: Cipher::has_aes().then(AesLibrary::current),
            clock: text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            disk: Disk::gather(config.dir.as_deref().unwrap_or(Path::new("."))),
        }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

impl Disk {
    fn gather(directory: &Path) -> Self {
        let path = existing(directory);
        let opened = rustix::fs::open(&path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        let system = opened
            .as_ref()
            .ok()
            .and_then(|handle| rustix::fs::fstatfs(handle).ok());
        let free = system.map(|system| {
            system
                .f_bavail
                .saturating_mul(u64::try_from(system.f_bsize).unwrap_or(0))
        });
        Self {
            write: probe(&path, OFlags::empty()).err().map(Refusal::from),
            direct: probe(&path, OFlags::DIRECT).err().map(Refusal::from),
            kind: system
                .map(|system| kind(system.f_type as u64))
                .unwrap_or_default(),
            free,
            path,
        }
    }
}

/// Writes and reads a block through a file that has no name, so that nothing stays behind.
fn probe(directory: &Path, flags: OFlags) -> io::Result<()> {
    let file = tempfile::tempfile_in(directory)?;
    let old = rustix::fs::fcntl_getfl(file.as_fd())?;
    rustix::fs::fcntl_setfl(file.as_fd(), old | flags)?;
    let mut room = vec![0u8; 2 * BLOCK_BYTES as usize];
    let start = room.as_ptr().align_offset(BLOCK_BYTES as usize);
    let block = &mut room[start..start + BLOCK_BYTES as usize];
    block.fill(0x5a);
    std::os::unix::fs::FileExt::write_all_at(&file, block, 0)?;
    block.fill(0);
    std::os::unix::fs::FileExt::read_exact_at(&file, block, 0)?;
    if block.iter().all(|byte| *byte == 0x5a) {
        Ok(())
    } else {
        Err(io::Error::other("read back something else"))
    }
}

/// The directory itself, or the nearest one above it that is there.
fn existing(directory: &Path) -> PathBuf {
    let absolute = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    absolute
        .ancestors()
        .find(|path| path.is_dir())
        .map_or_else(|| absolute.clone(), Path::to_owned)
}

fn text(path: &str) -> Option<String> {
    fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
}

fn number(path: &str) -> Option<u64> {
    text(path)?.parse().ok()
}

/// The value of a line such as `MemAvailable:   123 kB`.
fn field(meminfo: &str, name: &str) -> Option<u64> {
    let value = meminfo
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.split_whitespace().next()?.parse().ok()
}

/// The bracketed word of `always [madvise] never`.
fn chosen(text: &str) -> Option<String> {
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

/// How many numbers a list such as `0-3,8` names.
fn count(list: &str) -> usize {
    let width = |part: &str| match part.split_once('-') {
        Some((first, last)) => {
            let (first, last) = (
                first.parse::<usize>().unwrap_or(0),
                last.parse::<usize>().unwrap_or(0),
            );
            last.saturating_sub(first) + 1
        }
        None => 1,
    };
    list.split(',')
        .filter(|part| !part.is_empty())
        .map(width)
        .sum()
}

/// Magic numbers of statfs(2).
fn kind(magic: u64) -> String {
    let known = [
        (0xef53, "ext4"),
        (0x5846_5342, "xfs"),
        (0x9123_683e, "btrfs"),
        (0x0102_1994, "tmpfs"),
        (0x794c_7630, "overlayfs"),
        (0x6969, "nfs"),
        (0x2fc1_2fc1, "zfs"),
        (0xf2f5_2010, "f2fs"),
        (0x6573_5546, "fuse"),
    ];
    let name = known
        .iter()
        .find(|(number, _)| *number == magic)
        .map(|(_, name)| (*name).to_owned());
    name.unwrap_or_else(|| format!("file system {magic:#x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_notations_are_read() {
        assert_eq!(
            field("MemFree: 1 kB\nMemAvailable:   123 kB\n", "MemAvailable"),
            Some(123)
        );
        assert_eq!(chosen("always [madvise] never"), Some("madvise".to_owned()));
        assert_eq!((count("0"), count("0-3,8"), count("")), (1, 5, 0));
        assert_eq!(
            (kind(0xef53), kind(1)),
            ("ext4".to_owned(), "file system 0x1".to_owned())
        );
    }

    /// Instructions that are detected wrongly cost half the rate and fail no other test. The kernel lists a flag only where it
    /// keeps the registers.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_library_for_aes_is_that_of_the_flags_that_the_kernel_lists() {
        let listed = text("/proc/cpuinfo").unwrap();
        let flags = listed.lines().find(|line| line.starts_with("flags"));
        let flags: Vec<&str> = flags.unwrap().split_whitespace().collect();
        let has = |names: &[&str]| names.iter().all(|name| flags.contains(name));
        let wide = has(&["avx512f", "avx512bw", "avx512dq", "avx512vl"]);
        let ring = has(&["vaes", "vpclmulqdq", "avx2"]) && !wide;
        assert_eq!(AesLibrary::fastest() == AesLibrary::Ring, ring, "{flags:?}");
        assert_eq!(Cipher::has_aes(), has(&["aes", "pclmulqdq"]), "{flags:?}");
    }

    /// An aarch64 processor with instructions for AES agreed on ChaCha20-Poly1305 with every peer.
    #[cfg(target_arch = "aarch64")]
    #[test]
    fn aes_is_agreed_on_where_the_kernel_tells_of_its_instructions() {
        // The bits of `AT_HWCAP` (asm/hwcap.h) in the auxiliary vector.
        const AT_HWCAP: u64 = 16;
        const AES_AND_PMULL: u64 = 1 << 3 | 1 << 4;
        let vector = fs::read("/proc/self/auxv").unwrap();
        let words = vector
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        let words: Vec<u64> = words.collect();
        let found = words.chunks_exact(2).find(|entry| entry[0] == AT_HWCAP);
        let told = found.unwrap()[1] & AES_AND_PMULL == AES_AND_PMULL;
        assert_eq!(Cipher::has_aes(), told, "{words:x?}");
    }

    #[test]
    fn a_directory_that_is_not_there_yet_is_judged_by_the_one_above_it() {
        let directory = tempfile::tempdir().unwrap();
        let disk = Disk::gather(&directory.path().join("a/b"));
        assert_eq!(
            disk.path,
            fs::canonicalize(directory.path()).unwrap_or_else(|_| directory.path().to_owned())
        );
        assert!(disk.write.is_none() && disk.free.is_some());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
