//! How much of the device writes may take while readers wait for it.

use std::time::Duration;

use slackwater_base::{BLOCK_BYTES, Instant};

use crate::config::PaceConfig;

/// The controller of writes: how many pieces may be under way, and how long they are.
///
/// While nobody reads, writes have the whole device. While somebody does, `window` pieces may be under way: a window
/// below one is a share of the time, with a pause after each piece. It grows by a little with every read that took about as
/// long as reads take without writes, and shrinks by a part with every one that took longer than configured: additive
/// feedback as in congestion control (Chiu and Jain, 1989), with the latency as its signal (Brakmo and Peterson, 1995).
///
/// Until a read has shown what it takes without writes, these rest half of the time. Their pauses are saved up until one is long
/// enough for a whole read whose reader is away before it: with shorter ones a long read, or one that comes as often as they do, would
/// always have writes beside it. One of more than 45 ms, or of a reader that is mostly away for longer than [`QUIET_MAX`], may still
/// not be learned for long: writes keep the half meanwhile.
#[derive(Debug)]
pub(super) struct Pace {
    config: PaceConfig,
    window: f64,
    /// What a read takes without writes, in nanoseconds by the bytes that readers wait for at once; zero where that is not
    /// known. A read among eight takes several times as long as one by itself, whatever is written.
    alone: [f64; CLASSES],
    /// The class of the last read, by whose time pieces and pauses are measured.
    usual: usize,
    /// How many times as long the last reads took, on a running average.
    slowdown: f64,
    /// Bytes that the device wrote of late, and the seconds that it took for them: older ones count for less.
    wrote: (f64, f64),
    under_way: usize,
    /// Bytes of the pieces under way.
    writing: u64,
    /// Pieces begun so far: a read during which none was begun, and none was under way, was alone.
    begun: u64,
    /// Since when pieces have been under way, less the time that has had its rest.
    busy_since: Instant,
    /// Pieces under way that count for the rate, and since when there have been some, less the time that is counted.
    long: usize,
    long_since: Instant,
    /// Bytes of the pieces that ended in that time and were too short to count by themselves.
    short: u64,
    /// When the next piece may go, with a window below one.
    rests_until: Instant,
    /// Rests that are still to be taken, and are saved up until a read fits: one of those that have not shown yet what they take
    /// without writes.
    owed: Duration,
    fits: Duration,
    readers: usize,
    /// Bytes that they wait for.
    reading: u64,
    read_at: Instant,
    delayed: Duration,
}

/// How much depends on a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Nobody waits for it.
    Background,
    /// A caller does: there is always one piece under way.
    Awaited,
    /// What waits to be written takes memory from the values that are read: pieces have as many bytes under way as readers.
    Pressing,
}

/// What a read met when it began.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadMark {
    /// Bytes that readers waited for then, its own among them.
    reading: u64,
    pieces: u64,
    beside: bool,
}

/// A piece under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct PieceMark {
    at: Instant,
    bytes: u64,
}

impl Pace {
    pub(super) fn new(config: PaceConfig) -> Self {
        Self {
            window: 1.0,
            alone: [0.0; CLASSES],
            usual: 0,
            slowdown: 1.0,
            wrote: (0.0, 0.0),
            under_way: 0,
            writing: 0,
            begun: 0,
            busy_since: Instant::ZERO,
            long: 0,
            long_since: Instant::ZERO,
            short: 0,
            rests_until: Instant::ZERO,
            owed: Duration::ZERO,
            fits: Duration::ZERO,
            readers: 0,
            reading: 0,
            read_at: Instant::ZERO,
            delayed: Duration::ZERO,
            config,
        }
    }

    /// Whether another piece may go now.
    pub(super) fn may_send(&self, now: Instant, need: Need) -> bool {
        let pressing = if need == Need::Pressing { PRESSING } else { 1 };
        let most = self.config.pieces_max.max(1).saturating_mul(pressing);
        if !self.is_read(now) {
            return self.under_way < most;
        }
        let window = match need {
            Need::Background => self.window,
            Need::Awaited | Need::Pressing => self.window.max(1.0),
        };
        if window < 1.0 {
            return self.under_way == 0 && now >= self.rests_until;
        }
        let is_fair = need == Need::Pressing && self.writing < self.reading;
        self.under_way < most.min(window as usize) || is_fair
    }

    /// When a piece that may not go now may go, if neither a piece nor a read ends before.
    pub(super) fn next_chance(&self, now: Instant) -> Option<Instant> {
        let rested = (self.under_way == 0).then_some(self.rests_until);
        let quiet = (self.readers == 0).then(|| self.read_at + self.quiet());
        rested.into_iter().chain(quiet).filter(|at| *at > now).min()
    }

    /// Bytes of the next piece: what the device writes in the time that a piece may take. Beside readers this is no more
    /// than a few of their reads, and after them no more than a part of the time since: one that comes back finds the device
    /// taken for less time than it was away.
    pub(super) fn piece_bytes(&self, now: Instant) -> u64 {
        let PaceConfig {
            piece_time,
            piece_bytes_min,
            piece_bytes_max,
            ..
        } = self.config;
        let mut seconds = piece_time.as_secs_f64();
        let alone = self.alone[self.usual];
        if alone > 0.0 {
            let reads = READS_A_PIECE * alone / 1e9;
            let away = match self.is_read(now) {
                true => 0.0,
                false => self.read_at.until(now).as_secs_f64() / AWAY_A_PIECE,
            };
            seconds = seconds.min(reads.max(away));
        }
        let rate = self.rate();
        let bytes = if rate == 0.0 {
            UNKNOWN_BYTES
        } else {
            (rate * seconds) as u64
        };
        let bytes = bytes.clamp(piece_bytes_min, piece_bytes_max.max(piece_bytes_min));
        (bytes - bytes % BLOCK_BYTES).max(BLOCK_BYTES)
    }

    /// A piece goes to the device.
    pub(super) fn piece_begun(&mut self, now: Instant, bytes: u64) -> PieceMark {
        // Time is that of all pieces under way: which of them ends first makes no difference.
        if self.under_way == 0 {
            self.busy_since = self.busy_since.max(now);
        }
        if self.counts(bytes) {
            if self.long == 0 {
                (self.long_since, self.short) = (self.long_since.max(now), 0);
            }
            self.long += 1;
        }
        self.under_way += 1;
        self.writing += bytes;
        self.begun += 1;
        PieceMark { at: now, bytes }
    }

    /// A piece came back, written or not.
    pub(super) fn piece_ended(&mut self, now: Instant, piece: PieceMark) {
        self.under_way -= 1;
        self.writing -= piece.bytes;
        if self.counts(piece.bytes) {
            self.long -= 1;
            let took = self.long_since.until(now).as_secs_f64();
            self.long_since = self.long_since.max(now);
            // The device wrote those that ended meanwhile in the same time.
            let wrote = piece.bytes + std::mem::take(&mut self.short);
            // Bytes and times are summed, and not rates: pieces that end together seem to take no time but the first. The sums
            // age with the part of a piece's own time that is counted: a count of pieces would age them by what took no time.
            let own = took.max(piece.at.until(now).as_secs_f64());
            // The nanosecond is for a piece that took no time at all: it counts as a whole one, or bytes would pile up.
            let age = (took + 1e-9) / (own + 1e-9) / 8.0;
            let (bytes, seconds) = &mut self.wrote;
            *bytes += wrote as f64 - *bytes * age;
            *seconds += took - *seconds * age;
        } else {
            self.short += piece.bytes;
        }
        self.charge(now);
        if self.owed >= self.fits {
            // Pieces that overlap have the rests of all their time.
            let rest = std::mem::take(&mut self.owed);
            self.rests_until = (self.rests_until.max(now) + rest).min(now + REST_MAX);
        }
    }

    /// Has the time of pieces under way rested for, up to now: only that in which somebody read.
    fn charge(&mut self, now: Instant) {
        let read_until = match self.is_read(now) {
            true => now,
            false => self.read_at + self.quiet(),
        };
        let busy = self.busy_since.until(read_until);
        self.busy_since = self.busy_since.max(now);
        if self.window < 1.0 {
            self.owed += busy.mul_f64(1.0 / self.window - 1.0);
        }
    }

    /// Whether a piece counts for the rate. Of shorter ones most of the time is not the writing. Of two neighbours in a long batch
    /// one counts, so that a rate that is too low does not stay.
    fn counts(&self, bytes: u64) -> bool {
        bytes >= self.config.piece_bytes_min / 2
    }

    /// A reader waits for `bytes` bytes of the device.
    pub(super) fn read_begun(&mut self, now: Instant, bytes: u64) -> ReadMark {
        if self.under_way > 0 && !self.is_read(now) {
            // The time since the last reader has no rests.
            self.charge(now);
        }
        self.readers += 1;
        self.reading += bytes;
        ReadMark {
            reading: self.reading,
            pieces: self.begun,
            beside: self.under_way > 0,
        }
    }

    /// A reader has `bytes` bytes after the device took `took` for them, or has none where that is zero.
    pub(super) fn read_ended(&mut self, now: Instant, mark: ReadMark, bytes: u64, took: Duration) {
        let most = self.reading.max(mark.reading);
        self.readers -= 1;
        self.reading -= bytes;
        self.read_at = now;
        if took.is_zero() {
            return;
        }
        // A read that met a stall of the device would have rests saved up for a thousand more.
        let fits = (took.saturating_mul(READS_A_REST))
            .saturating_add(QUIET_MAX)
            .min(REST_MAX);
        let took = took.as_nanos() as f64;
        self.usual = class_of(most);
        let floor = self.config.share_min.clamp(SHARE_LEAST, 1.0);
        let alone = &mut self.alone[self.usual];
        if mark.beside || self.begun != mark.pieces {
            if *alone == 0.0 {
                // Writes rest until a read has shown what it takes without them.
                self.window = self.window.min(UNKNOWN_WINDOW).max(floor);
                self.fits = fits;
                return;
            }
            self.delayed += Duration::from_nanos((took - *alone).max(0.0) as u64);
        } else if *alone == 0.0 {
            *alone = took;
            self.fits = Duration::ZERO;
        } else {
            // What disturbs a read without our doing only lengthens it: the estimate follows short ones sooner.
            let part = if took < *alone { 4.0 } else { 64.0 };
            *alone += (took - *alone) / part;
        }
        // Many known reads may come between two unknown ones; later than that no unknown one is expected.
        self.fits -= self.fits / 256;
        self.slowdown += (took / *alone - self.slowdown) / 8.0;
        self.window = if self.slowdown > self.config.slowdown_max {
            (self.window * 0.7).max(floor)
        } else {
            (self.window * 1.02).min(self.config.pieces_max.max(1) as f64)
        };
        if self.window >= 1.0 {
            // A window that sinks again owes nothing for the time before it rose.
            self.owed = Duration::ZERO;
            self.busy_since = self.busy_since.max(now);
            self.rests_until = self.rests_until.min(now);
        }
    }

    /// The part of its usual rate that reclaim may read at now.
    pub(super) fn share(&self, now: Instant) -> f64 {
        if self.is_read(now) {
            self.window.min(1.0)
        } else {
            1.0
        }
    }

    pub(super) fn window(&self) -> f64 {
        self.window
    }

    pub(super) fn slowdown(&self) -> f64 {
        self.slowdown
    }

    pub(super) fn bytes_per_second(&self) -> u64 {
        self.rate() as u64
    }

    /// Bytes that the device writes in a second; zero until it has written something.
    fn rate(&self) -> f64 {
        match self.wrote {
            (bytes, seconds) if seconds > 0.0 => bytes / seconds,
            _ => 0.0,
        }
    }

    pub(super) fn delayed(&self) -> Duration {
        self.delayed
    }

    /// Whether somebody reads: a reader waits for the device, or one was there a moment ago and will be back.
    fn is_read(&self, now: Instant) -> bool {
        self.readers > 0 || (self.begun_reading() && now < self.read_at + self.quiet())
    }

    fn begun_reading(&self) -> bool {
        self.read_at > Instant::ZERO
    }

    /// How long after a read the next one is still expected: the time of a few reads.
    fn quiet(&self) -> Duration {
        let alone = self.alone[self.usual];
        // A read is only seen without writes if none begin while its reader is away.
        let reads = Duration::from_nanos((QUIET_READS * alone) as u64).max(self.fits);
        reads.clamp(QUIET_MIN, QUIET_MAX)
    }
}

/// The class of what readers wait for: a power of two of blocks.
fn class_of(bytes: u64) -> usize {
    let blocks = bytes.div_ceil(BLOCK_BYTES).max(1);
    (blocks.ilog2() as usize).min(CLASSES - 1)
}

const CLASSES: usize = 14;
/// Times the pieces that are under way when what waits to be written takes memory from values.
const PRESSING: usize = 2;
/// The most that the window is while it is not known what reads take without writes.
const UNKNOWN_WINDOW: f64 = 0.5;
/// Times of a read that a rest takes meanwhile: the one under way ends, its reader is away, and a whole one follows.
const READS_A_REST: u32 = 2;
/// A piece until the device has shown how fast it writes.
const UNKNOWN_BYTES: u64 = 512 << 10;
/// Times of a read that one piece may take while somebody reads.
const READS_A_PIECE: f64 = 2.0;
/// Part of the time since the last read that one piece may take: two under way take half of it.
const AWAY_A_PIECE: f64 = 4.0;
/// Times of a read after which a reader that comes back is no longer expected, and the bounds of that.
const QUIET_READS: f64 = 2.0;
const QUIET_MIN: Duration = Duration::from_micros(100);
const QUIET_MAX: Duration = Duration::from_millis(5);
/// Least share of the time, whatever is configured: writes that never end would fill the memory.
const SHARE_LEAST: f64 = 0.01;
/// Longest pause after a piece: a device that took a second for one is not to be left alone for minutes.
const REST_MAX: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
