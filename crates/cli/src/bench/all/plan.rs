//! What `slackwater bench all` measures, and what was published of the systems that Slackwater takes the place of.

/// A benchmark of the report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Its name here, in file names and for `--only`.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// The words after `slackwater bench`.
    pub(super) words: &'static [&'static str],
    /// The same for a taste of a few seconds.
    pub(super) quick: &'static [&'static str],
    /// What others published of the same, and on what.
    pub(super) published: &'static str,
    /// Where ours may be behind, by a part of the row's name, and why that stays.
    pub(super) behind: &'static [(&'static str, &'static str)],
    /// Whether it takes `--dir`.
    pub(super) writes: bool,
    /// About what one run took on 2 busy cores, until one has been timed.
    pub(super) seconds: f64,
}

const NOTHING: &str = "There is no published table of this.";

const OF_PROMOTION: &str = "Mooncake reads of 1 MiB from SSD took .52 ms at the median, and .24 ms once they were promoted; a promotion took up to \
    one heartbeat of 10 s.";

/// All parts: first those that a table of another system belongs to. A run takes turns once where a benchmark alone takes several: the
/// median is that of the runs.
pub(super) const PARTS: &[Part] = &[
    Part {
        name: "wait",
        title: "Waiting for completions",
        words: &["wait", "--rounds", "7"],
        quick: &[
            "wait",
            "--concurrency",
            "4",
            "--run",
            "20ms",
            "--rounds",
            "3",
            "--idle",
            "0s",
            "--copies-only",
        ],
        published: "Mooncake's client looked for completions 4,114,116 times in 100 ms; with a back-off that doubles up to 1 ms it \
                    looks 9 times (its change of the polling loop; one reader, a busy store).",
        behind: &[
            (
                "1 waiters",
                "a lone reader waits for nobody but the bytes, so that all strategies cost the same; the difference is smaller than the \
                 spread",
            ),
            (
                "64 waiters: mean",
                "the mean is that of the reads that ended. Of 64 threads that look without a pause on a few CPUs most get none: their \
                 reads last and are few, so that all together read a third of what ours do",
            ),
        ],
        writes: false,
        seconds: 60.0,
    },
    Part {
        name: "promotion",
        title: "Promotion on hit",
        words: &["promotion"],
        quick: &["promotion", "--samples", "20", "--value-bytes", "64KiB"],
        published: OF_PROMOTION,
        behind: &[],
        writes: true,
        seconds: 61.0,
    },
    Part {
        name: "promotion-served",
        title: "Promotion on hit in a pool",
        words: &["promotion", "--served", "--samples", "300"],
        quick: &[
            "promotion",
            "--served",
            "--samples",
            "20",
            "--value-bytes",
            "64KiB",
        ],
        published: OF_PROMOTION,
        behind: &[],
        writes: true,
        seconds: 15.0,
    },
    Part {
        name: "mq",
        title: "Thousands of links",
        // Four slices of 300 ms for each row, with heartbeats on and off; the median is that of the runs.
        words: &["mq", "--rates", "1000", "--window", "1s", "--rounds", "1"],
        quick: &[
            "mq",
            "--links",
            "20",
            "--rates",
            "200",
            "--heartbeats",
            "off",
            "--window",
            "200ms",
            "--rounds",
            "1",
            "--burst",
            "200",
        ],
        published: "OxenMQ's poll build takes a whole core with 2,000 links and a message each millisecond; its epoll build did so from \
                    2,000 links on, and 24 % with 200.",
        behind: &[],
        writes: false,
        seconds: 110.0,
    },
    Part {
        name: "pool",
        title: "Bursts of short tasks",
        words: &["pool", "--rounds", "1"],
        quick: &[
            "pool",
            "--threads",
            "2",
            "--tasks",
            "2us",
            "--gaps",
            "0s",
            "--rounds",
            "1",
        ],
        published: "kt-kernel's worker pool spent 78 % of its samples reading the clock and 13 % computing; with a pause and a sparse clock \
                    1.4 % and 93 %.",
        behind: &[
            (
                "overhead of a burst",
                "threads that slept since the last burst are woken, which takes tens of microseconds; those of the others look without \
                 a pause all that time, and take a core each for it (ADR 21)",
            ),
            (
                "wall ms a token",
                "it has the overhead of its bursts, which is some percent of the short tasks with short gaps",
            ),
            (
                "CPU ms a token",
                "the same work; the difference is smaller than the spread",
            ),
            (
                "% of CPU samples",
                "the difference is smaller than the spread",
            ),
        ],
        writes: false,
        seconds: 60.0,
    },
    Part {
        name: "transfer",
        title: "Transfers",
        // Batches of 128 blocks take four times as long as all other rows; those beside the incumbent's bench stay.
        words: &["transfer", "--rounds", "1", "--batch", "1,16"],
        quick: &["transfer", "--quick"],
        published: "Mooncake's TCP transport with several event loops went from 6.7 to 46 GB/s between two processes of one host (DRAM).",
        behind: &[(
            "1 threads x 1 blocks",
            "a lone read sleeps until its bytes are there, and is woken some times for a block of 1 MiB; the incumbent's thread looks for them \
             without a pause, and takes a core for it",
        )],
        writes: false,
        seconds: 100.0,
    },
    Part {
        name: "transfer-across",
        title: "Transfers between two machines",
        // The link is slower than the CPUs, so that what is compared is what each makes of it.
        words: &[
            "transfer",
            "--shaped",
            "4gbit",
            "--blocks",
            "64KiB,1MiB",
            "--batch",
            "1,16",
            "--window",
            "100ms",
            "--rounds",
            "1",
        ],
        quick: &[
            "transfer",
            "--shaped",
            "4gbit",
            "--op",
            "read",
            "--blocks",
            "64KiB",
            "--concurrency",
            "1",
            "--batch",
            "1",
            "--loops",
            "1",
            "--window",
            "50ms",
            "--rounds",
            "1",
        ],
        published: "Mooncake's TCP transport with several event loops went from 3.2 to 10.8 GB/s between hosts, where iperf3 reached 10.8: \
                    from 30 % of the network to 99 %.",
        behind: &[],
        writes: false,
        seconds: 25.0,
    },
    Part {
        name: "store-served",
        title: "A store in another process",
        words: &["store", "--served", "--rounds", "1"],
        quick: &[
            "store",
            "--served",
            "--ops",
            "get_into",
            "--blocks",
            "64KiB",
            "--concurrency",
            "1",
            "--rounds",
            "1",
            "--no-peers",
        ],
        published: NOTHING,
        behind: &[],
        writes: true,
        seconds: 60.0,
    },
    Part {
        name: "store",
        title: "A store in the process",
        words: &["store", "--passes", "3"],
        quick: &[
            "store",
            "--value-bytes",
            "64KiB",
            "--passes",
            "1",
            "--no-peers",
        ],
        published: NOTHING,
        behind: &[],
        writes: true,
        seconds: 16.0,
    },
    Part {
        name: "tiers",
        title: "Memory over SSD",
        words: &["tiers", "--requests", "2000"],
        quick: &[
            "tiers",
            "--requests",
            "50",
            "--sessions",
            "8",
            "--memory",
            "8MiB",
            "--ssd",
            "64MiB",
            "--in-flight",
            "1",
            "--no-contention",
        ],
        published: NOTHING,
        behind: &[],
        writes: true,
        seconds: 161.0,
    },
    Part {
        name: "master",
        title: "The master of a pool",
        words: &["master", "--rounds", "1"],
        quick: &[
            "master",
            "--objects",
            "1000",
            "--nodes",
            "1",
            "--ops",
            "lookup",
            "--batch",
            "64",
            "--clients",
            "1",
            "--window",
            "50ms",
            "--rounds",
            "1",
        ],
        published: NOTHING,
        behind: &[],
        writes: true,
        seconds: 60.0,
    },
    Part {
        name: "restart",
        title: "Restart of the master",
        words: &["restart", "--rounds", "1"],
        quick: &[
            "restart",
            "--objects",
            "500",
            "--nodes",
            "1",
            "--rounds",
            "1",
        ],
        published: "Mooncake's master forgets what its nodes hold.",
        behind: &[],
        writes: true,
        seconds: 84.0,
    },
    Part {
        name: "meta",
        title: "The catalog",
        words: &["meta", "--samples", "200000"],
        quick: &["meta", "--objects", "1000", "--samples", "1000"],
        published: NOTHING,
        behind: &[],
        writes: false,
        seconds: 261.0,
    },
    Part {
        name: "copy",
        title: "Copies with a checksum",
        words: &["copy"],
        quick: &[
            "copy",
            "--object-bytes",
            "64KiB",
            "--source-bytes",
            "1MiB",
            "--rounds",
            "1",
        ],
        published: NOTHING,
        behind: &[],
        writes: false,
        seconds: 15.0,
    },
];
