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
    /// Whether it takes `--dir`.
    pub(super) writes: bool,
    /// What one run took on 2 cores.
    pub(super) seconds: f64,
}

const NOTHING: &str = "There is no published table of this.";

/// All parts: first those that a table of another system belongs to.
pub(super) const PARTS: &[Part] = &[
    Part {
        name: "wait",
        title: "Waiting for completions",
        words: &["wait"],
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
        ],
        published: "Mooncake's client looked for completions 4,114,116 times in 100 ms; with a back-off that doubles up to 1 ms it \
                    looks 9 times (its change of the polling loop; one reader, a busy store).",
        writes: false,
        seconds: 60.0,
    },
    Part {
        name: "promotion",
        title: "Promotion on hit",
        words: &["promotion"],
        quick: &["promotion", "--samples", "20", "--value-bytes", "64KiB"],
        published: "Mooncake reads of 1 MiB from SSD took .52 ms at the median, and .24 ms once they were promoted; a promotion took up to \
                    one heartbeat of 10 s.",
        writes: true,
        seconds: 60.0,
    },
    Part {
        name: "mq",
        title: "Thousands of links",
        words: &["mq"],
        quick: &[
            "mq", "--links", "20", "--rates", "200", "--window", "200ms", "--rounds", "1",
        ],
        published: "OxenMQ's poll build takes a whole core with 2,000 links and a message each millisecond; its epoll build did so from \
                    2,000 links on, and 24 % with 200.",
        writes: false,
        seconds: 60.0,
    },
    Part {
        name: "pool",
        title: "Bursts of short tasks",
        words: &["pool"],
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
        writes: false,
        seconds: 60.0,
    },
    Part {
        name: "transfer",
        title: "Transfers",
        words: &["transfer"],
        quick: &["transfer", "--quick"],
        published: "Mooncake's TCP transport with several event loops went from 6.7 to 46 GB/s between two processes of one host (DRAM), and \
                    from 3.2 to 10.8 GB/s between hosts.",
        writes: false,
        seconds: 60.0,
    },
    Part {
        name: "store-served",
        title: "A store in another process",
        words: &["store", "--served"],
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
        writes: true,
        seconds: 60.0,
    },
    Part {
        name: "store",
        title: "A store in the process",
        words: &["store"],
        quick: &[
            "store",
            "--value-bytes",
            "64KiB",
            "--passes",
            "1",
            "--no-peers",
        ],
        published: NOTHING,
        writes: true,
        seconds: 60.0,
    },
    Part {
        name: "tiers",
        title: "Memory over SSD",
        words: &["tiers"],
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
        writes: true,
        seconds: 60.0,
    },
    Part {
        name: "master",
        title: "The master of a pool",
        words: &["master"],
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
        writes: true,
        seconds: 60.0,
    },
    Part {
        name: "restart",
        title: "Restart of the master",
        words: &["restart"],
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
        writes: true,
        seconds: 60.0,
    },
    Part {
        name: "meta",
        title: "The catalog",
        words: &["meta"],
        quick: &["meta", "--objects", "1000", "--samples", "1000"],
        published: NOTHING,
        writes: false,
        seconds: 60.0,
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
        writes: false,
        seconds: 60.0,
    },
];
