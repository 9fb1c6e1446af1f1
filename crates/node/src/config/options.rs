use std::path::PathBuf;
use std::time::Duration;

use slackwater_base::ByteSize;
use slackwater_meta::evict::PolicyKind;
use slackwater_meta::{
    MasterConfig, OffloadMode, OnHit, Promotion, PromotionAdmission, ReplicationMode, Tenancy,
};
use slackwater_pool::copy::IsaChoice;
use slackwater_tier::PaceConfig;
use slackwater_wait::Choice as WaitChoice;

use super::range::Range::{self, AtLeast, Between, Blocks, Clamped, ZeroOrAtLeast};
use super::value::words;
use super::{LogFilter, OptionSpec, Ratio, Sources, Threads, Value};

/// Declares the options: field, key, type, default and, where not every value of the type will do, range. Everything else about an option comes from its row.
macro_rules! options {
    ($($(#[doc = $doc:literal])+ $field:ident $key:literal: $type:ty = $default:expr $(, $range:expr)?;)*) => {
        /// Everything that can be configured, each option with a type that cannot hold nonsense.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($(#[doc = $doc])+ pub $field: $type,)*
            /// Where each value came from.
            pub sources: Sources,
        }

        impl Default for Config {
            fn default() -> Self {
                Self { $($field: $default,)* sources: Sources::default() }
            }
        }

        impl Config {
            /// Every option, in the order of the documentation.
            pub const OPTIONS: &'static [OptionSpec] = &[$(OptionSpec {
                key: $key,
                doc: concat!($($doc,)+).trim_ascii_start(),
                kind: <$type as Value>::KIND,
                range: || {
                    let texts = [$(Range::<$type>::text(&$range),)? String::new()];
                    texts.into_iter().next().unwrap_or_default()
                },
                choices: <$type as Value>::choices,
                set: |config, text| {
                    let value = <$type as Value>::parse(text)?;
                    $(Range::<$type>::check(&$range, &value)?;)?
                    config.$field = value;
                    Ok(())
                },
                show: |config| config.$field.show(),
            },)*];
        }
    };
}

/// Where the master acts on an option, its default is the master's own.
const MASTER: MasterConfig = MasterConfig::DEFAULT;

options! {
    /// Memory for values. On top come at most 80 MiB of buffers, and about 250 bytes a value.
    memory "memory": ByteSize = ByteSize::gib(1), AtLeast(ByteSize::mib(1));
    /// SSD space for values; 0 keeps everything in memory.
    ssd "ssd": ByteSize = ByteSize(0), ZeroOrAtLeast(ByteSize(slackwater_tier::LogConfig::CAPACITY_MIN));
    /// Directory of the SSD tier; made if it is missing. One process at a time holds it.
    dir "dir": Option<PathBuf> = None;
    /// Which replica goes when memory is short.
    policy "policy": PolicyKind = MASTER.eviction.policy;
    /// When values are written to SSD: as soon as they are put, or when memory is short.
    offload "offload": OffloadMode = MASTER.offload.mode;
    /// Whether tenants are told apart; each but the default one then needs a quota before it can put.
    tenants "tenants": bool = matches!(MASTER.tenancy, Tenancy::On);
    /// How long a read lease lasts for readers in other processes.
    lease_ttl "lease_ttl": Duration = MASTER.lease_ttl, Between(Duration::from_millis(100), DAY);
    /// How long a soft pin lasts when the put does not say.
    soft_pin_ttl "soft_pin_ttl": Duration = MASTER.soft_pin_ttl, Between(Duration::from_secs(1), MASTER.soft_pin_ttl_max);
    /// How long a put waits for space before it is refused.
    put_wait "put_wait": Duration = MASTER.put.wait, Between(Duration::ZERO, HOUR);
    /// How long after a restart of the master look-ups wait for nodes that it knows and that have yet to say what they hold.
    restart_wait "restart_wait": Duration = MASTER.absence.restart_wait, Between(Duration::ZERO, HOUR);
    /// How long any call may take in all, unless the call says otherwise.
    deadline "deadline": Duration = MASTER.put.wait_max, Between(Duration::from_millis(10), DAY);
    /// Used part of memory at which eviction begins; a node of a pool may have its own.
    evict_high "evict.high": Ratio = Ratio(MASTER.eviction.high_watermark), AtLeast(Ratio(0.01));
    /// Used part of memory at which eviction ends; a node may have its own.
    evict_low "evict.low": Ratio = Ratio(MASTER.eviction.low_watermark);
    /// Used part of the SSD at which eviction begins; a node may have its own.
    evict_ssd_high "evict.ssd_high": Ratio = Ratio(MASTER.eviction.disk_high_watermark), AtLeast(Ratio(0.01));
    /// Used part of the SSD at which eviction ends; a node may have its own.
    evict_ssd_low "evict.ssd_low": Ratio = Ratio(MASTER.eviction.disk_low_watermark);
    /// Tokens that a value holds, for policies that learn from the length of a request.
    evict_block_tokens "evict.block_tokens": u32 = MASTER.eviction.block_tokens, Between(1, 1_048_576);
    /// Whether a value on SSD alone that is read often enough is brought back into memory.
    promotion_enabled "promotion.enabled": bool = matches!(MASTER.promotion.on_hit, OnHit::Promote);
    /// What brings a value back: `frequency` counts its reads, `index` asks what eviction has learned whether memory
    /// would keep it.
    promotion_admission "promotion.admission": PromotionAdmission = MASTER.promotion.admission;
    /// Reads after which a value is brought back by `frequency`.
    promotion_threshold "promotion.threshold": u32 = MASTER.promotion.threshold,
        Clamped(*Promotion::THRESHOLD.start(), *Promotion::THRESHOLD.end());
    /// Promotions that may be under way at once.
    promotion_limit "promotion.limit": u32 = MASTER.promotion.queue_limit as u32, Between(1, 10_000_000);
    /// Promotions that a node works on at once; the hottest go first, the others when one of them ends.
    promotion_batch "promotion.batch": u32 = MASTER.promotion.batch_max as u32, Between(1, 4096);
    /// Bytes that promotions may read a second; 0 sets no limit.
    promotion_rate "promotion.rate": ByteSize = ByteSize(0);
    /// Used part of memory from which nothing is promoted; no more than that at which eviction begins.
    promotion_high "promotion.high": Ratio = Ratio(MASTER.promotion.watermark);
    /// How long a promotion may take to be staged, and again to be finished.
    promotion_deadline "promotion.deadline": Duration = MASTER.promotion.window, Between(Duration::from_millis(10), HOUR);
    /// Whether values that are read much get further replicas in memory of other nodes: `observe` counts those that would.
    replication_mode "replication.mode": ReplicationMode = MASTER.replication.mode;
    /// Reads of a value in a window from which it gets one.
    replication_reads "replication.reads": u32 = MASTER.replication.reads, Between(1, 1_000_000);
    /// The time in which reads of a value are counted together.
    replication_window "replication.window": Duration = MASTER.replication.window, Between(Duration::from_millis(100), HOUR);
    /// Replicas in memory that a value has at most so.
    replication_replicas "replication.replicas": u32 = MASTER.replication.replicas_max as u32, Between(2, 64);
    /// Used part of a node's memory up to which replicas are made there.
    replication_high "replication.high": Ratio = Ratio(MASTER.replication.watermark);
    /// Size of one file of the SSD log, which bounds the largest value on SSD; a small `ssd` has smaller files, a large one larger.
    file_bytes "file_bytes": ByteSize = ByteSize::mib(64), Blocks(ByteSize::mib(1), ByteSize::gib(4));
    /// How long a record may wait for others before it is written to SSD.
    flush_delay "flush_delay": Duration = slackwater_tier::LogConfig::BATCH_DELAY, Between(Duration::ZERO, Duration::from_secs(60));
    /// How long reads from SSD may take on average while values are written to it, in percent of what they take without.
    pace_read_percent "pace.read_percent": u32 = (100.0 * PaceConfig::DEFAULT.slowdown_max) as u32, Between(101, 100_000);
    /// Share of the SSD's time that writes have at least, however long reads take.
    pace_write_share "pace.write_share": Ratio = Ratio(PaceConfig::DEFAULT.share_min), AtLeast(Ratio(0.01));
    /// How SSD reads and writes are done: io_uring where the kernel allows it, or pread and pwrite.
    io "io": IoBackend = IoBackend::Auto;
    /// SSD operations under way at once.
    io_depth "io_depth": u32 = 32, Between(1, 1024);
    /// Memory for SSD reads that cannot go straight into the caller's buffer.
    read_buffers "read_buffers": ByteSize = ByteSize::mib(32), AtLeast(ByteSize::mib(1));
    /// Views that may be open at once.
    views_limit "views.limit": u32 = 4096, Between(1, 65_536);
    /// How long a view may be open; while one is for longer, its memory stays its own and there are no further views.
    views_time "views.time": Duration = Duration::from_secs(60), Between(Duration::from_millis(10), DAY);
    /// Memory for views of values on SSD, in which they stay until the views end.
    views_buffers "views.buffers": ByteSize = ByteSize::mib(16), AtLeast(ByteSize::mib(1));
    /// Huge pages under the memory of values: none, those the kernel makes by itself, or reserved ones.
    huge_pages "huge_pages": HugePages = HugePages::Transparent;
    /// Threads that copy a large value or batch between the caller and memory, the caller among them; 0 and 1 leave it to
    /// the caller. They start with the first such call.
    copy_threads "copy_threads": Threads = Threads::Auto;
    /// Which instructions copy and checksum values, in the whole process: the widest that the processor has, or those named.
    /// For tests and benchmarks: every choice gives the same bytes.
    isa "isa": IsaChoice = IsaChoice::Auto;
    /// How the store's callers wait: `adaptive` learns when looking pays, `park` sleeps at once, `spin` only looks,
    /// `sleep:10us` looks now and then. `adaptive:max_spin=20us,cpu_price=4` looks for 20 us at most (100 us otherwise, 100 ms
    /// at most) and takes a second of CPU to be worth four of latency (one otherwise). As a variable it holds for every engine
    /// and message layer of the process too.
    wait "wait": WaitChoice = WaitChoice::default();
    /// Which log lines are written: a level, or `target=level` pairs separated by commas.
    log "log": LogFilter = LogFilter::default();
    /// How log lines are written.
    log_format "log_format": LogFormat = LogFormat::Text;
}

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// How SSD reads and writes are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoBackend {
    /// io_uring where the kernel allows it, else pread and pwrite.
    Auto,
    /// io_uring or nothing.
    Uring,
    /// pread and pwrite on worker threads.
    Pread,
}

/// Huge pages under the memory of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePages {
    /// Ordinary pages.
    Off,
    /// Those that the kernel makes by itself where it finds room.
    Transparent,
    /// Reserved ones (`vm.nr_hugepages`); ordinary ones, with a warning, when there are too few.
    Reserved,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

words!(IoBackend: "backend" { Auto = "auto", Uring = "uring", Pread = "pread", });
words!(HugePages: "kind of pages" { Off = "off", Transparent = "transparent", Reserved = "reserved", });
words!(LogFormat: "format" { Text = "text", Json = "json", });
words!(PromotionAdmission: "rule" { Frequency = "frequency", Index = "index", });
words!(ReplicationMode: "mode" { Off = "off", Observe = "observe", Enforce = "enforce", });
words!(OffloadMode: "mode" {
    Off = "off",
    Eager = "eager",
    OnEvict = "on-evict",
    OnEvictForced = "on-evict-force",
});
