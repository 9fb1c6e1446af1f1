use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// The CPUs this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus {
    /// The CPUs in the affinity masks of the process's threads, ascending.
    pub mask: Vec<usize>,
    /// How many threads can run at a time: the mask, or the cgroup's quota rounded up if that is less.
    pub usable: u32,
}

impl Cpus {
    /// The CPUs as they were when first asked for.
    #[must_use]
    pub fn current() -> &'static Self {
        static CURRENT: OnceLock<Cpus> = OnceLock::new();
        CURRENT.get_or_init(|| Self::detect(Path::new("/")))
    }

    /// Looks at the affinity masks of all threads of the process and at the quotas, in the files under `root`.
    #[must_use]
    pub fn detect(root: &Path) -> Self {
        // Not the caller's mask alone: it may be pinned to a part of what the process has.
        let mask = masks_of_threads(root).unwrap_or_else(affinity);
        let all = mask.len().max(1) as u32;
        // A quota of 2.5 CPUs lets three threads run, for some of the time.
        let usable = quota(root).map_or(all, |cpus| (cpus.ceil() as u32).clamp(1, all));
        Self { mask, usable }
    }
}

/// The CPU that the calling thread is on, or was a moment ago.
#[must_use]
pub fn current_cpu() -> usize {
    // Miri and loom have no CPUs to tell apart.
    if cfg!(any(miri, loom)) {
        0
    } else {
        rustix::thread::sched_getcpu()
    }
}

/// The CPUs that any thread of the process may run on; `None` where the kernel does not tell.
fn masks_of_threads(root: &Path) -> Option<Vec<usize>> {
    let mut all: Vec<usize> = fs::read_dir(root.join("proc/self/task"))
        .ok()?
        .filter_map(|thread| {
            let status = fs::read_to_string(thread.ok()?.path().join("status")).ok()?;
            let list = status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
            cpu_list(list)
        })
        .flatten()
        .collect();
    all.sort_unstable();
    all.dedup();
    (!all.is_empty()).then_some(all)
}

/// The CPUs that the calling thread may run on.
fn affinity() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..rustix::thread::CpuSet::MAX_CPU)
            .filter(|&cpu| set.is_set(cpu))
            .collect(),
        // A mask wider than the type: take what the standard library counts.
        Err(_) => {
            (0..std::thread::available_parallelism().map_or(1, std::num::NonZero::get)).collect()
        }
    }
}

/// The smallest CPU quota of the process's control group and its ancestors, in CPUs.
fn quota(root: &Path) -> Option<f64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    groups
        .lines()
        .filter_map(|line| group_quota(root, line))
        .min_by(f64::total_cmp)
}

/// The quota along the path of one line of `/proc/self/cgroup`: `0::/path` for version 2, `4:cpu,cpuacct:/path` for 1.
fn group_quota(root: &Path, line: &str) -> Option<f64> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let mounts: &[&str] = match controllers {
        "" => &["sys/fs/cgroup"],
        c if c.split(',').any(|name| name == "cpu") => {
            &["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"]
        }
        _ => return None,
    };
    let path = Path::new(path.trim_start_matches('/'));
    mounts
        .iter()
        .flat_map(|mount| {
            path.ancestors()
                .map(move |group| root.join(mount).join(group))
        })
        .filter_map(|dir| {
            if controllers.is_empty() {
                return parse_cpu_max(&fs::read_to_string(dir.join("cpu.max")).ok()?);
            }
            let quota: f64 = fs::read_to_string(dir.join("cpu.cfs_quota_us"))
                .ok()?
                .trim()
                .parse()
                .ok()?;
            let period: f64 = fs::read_to_string(dir.join("cpu.cfs_period_us"))
                .ok()?
                .trim()
                .parse()
                .ok()?;
            (quota > 0.0 && period > 0.0).then_some(quota / period)
        })
        .min_by(f64::total_cmp)
}

/// Reads `250000 100000` and `max 100000`.
fn parse_cpu_max(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

/// More than any kernel numbers.
const CPUS_MAX: usize = 1 << 20;

/// Reads a CPU list as the kernel writes it: `0-3,8,10-11`.
///
/// Returns `None` when the text is none. An empty text is an empty list.
#[must_use]
pub fn cpu_list(text: &str) -> Option<Vec<usize>> {
    let text = text.trim();
    if text.is_empty() {
        return Some(Vec::new());
    }
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        // Every range is short enough, and so is the list of them.
        if first > last || last > CPUS_MAX || cpus.len() > CPUS_MAX {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A directory tree for one test, removed with the value.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root =
                std::env::temp_dir().join(format!("slackwater-cpus-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_tightest_quota_on_the_path_counts() {
        let check = |name: &str, files: &[(&str, &str)], expected: Option<f64>| {
            assert_eq!(quota(&Tree::new(name, files).0), expected, "{name}");
        };
        check("none", &[("proc/self/cgroup", "0::/\n")], None);
        check(
            "unlimited",
            &[
                ("proc/self/cgroup", "0::/a\n"),
                ("sys/fs/cgroup/a/cpu.max", "max 100000\n"),
            ],
            None,
        );
        check(
            "parent",
            &[
                ("proc/self/cgroup", "0::/a/b\n"),
                ("sys/fs/cgroup/a/cpu.max", "150000 100000\n"),
                ("sys/fs/cgroup/a/b/cpu.max", "250000 100000\n"),
            ],
            Some(1.5),
        );
        check(
            "version-1",
            &[
                ("proc/self/cgroup", "7:memory:/m\n4:cpu,cpuacct:/c\n"),
                ("sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "50000\n"),
                ("sys/fs/cgroup/cpu/c/cpu.cfs_period_us", "100000\n"),
            ],
            Some(0.5),
        );
    }

    /// The process's CPUs were taken from the mask of the thread that asked first. Where that one was pinned, such as a
    /// worker or the caller's own, a pool had one thread and nothing spun, for the life of the process.
    #[test]
    fn a_pinned_thread_that_asks_first_does_not_hide_the_other_cpus() {
        let tree = Tree::new(
            "pinned",
            &[
                (
                    "proc/self/task/1/status",
                    "Name:\tx\nCpus_allowed_list:\t0-2\n",
                ),
                (
                    "proc/self/task/7/status",
                    "Cpus_allowed_list:\t2\nMems:\t0\n",
                ),
                ("proc/self/task/9/status", "Cpus_allowed_list:\t5\n"),
            ],
        );
        let cpus = Cpus::detect(&tree.0);
        assert_eq!((cpus.mask, cpus.usable), (vec![0, 1, 2, 5], 4));

        let before = Cpus::detect(Path::new("/"));
        let pinned = std::thread::spawn(|| {
            let mut one = rustix::thread::CpuSet::new();
            one.set(current_cpu());
            rustix::thread::sched_setaffinity(None, &one).unwrap();
            Cpus::detect(Path::new("/"))
        });
        assert_eq!(pinned.join().unwrap(), before);
        let own = Cpus::detect(Path::new("/nowhere")).mask;
        assert!(!own.is_empty() && own.iter().all(|cpu| before.mask.contains(cpu)));
    }

    #[test]
    fn a_quota_below_one_cpu_still_leaves_one() {
        let tree = Tree::new(
            "half",
            &[
                ("proc/self/cgroup", "0::/a\n"),
                ("sys/fs/cgroup/a/cpu.max", "50000 100000\n"),
            ],
        );
        assert_eq!(Cpus::detect(&tree.0).usable, 1);
    }

    #[test]
    fn cpu_lists_read_as_the_kernel_writes_them() {
        for (text, cpus) in [
            ("0-3,8,10-11\n", Some(vec![0, 1, 2, 3, 8, 10, 11])),
            ("", Some(vec![])),
            ("5", Some(vec![5])),
            ("3-1", None),
            ("a", None),
        ] {
            assert_eq!(cpu_list(text), cpus, "{text:?}");
        }
    }

    /// Each range was short enough, and a file of a page of them took gigabytes.
    #[test]
    fn many_long_ranges_are_no_cpu_list() {
        assert!(cpu_list("0-1048576").is_some());
        assert_eq!(cpu_list(&["0-1048576"; 400].join(",")), None);
    }
}
