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
#[derive(Debug)]
pub(super) struct Pace {
    config: PaceConfig,
    window: f64,
    /// What a read takes without writes, in nanoseconds by its length; zero where that is not known.
    alone: [f64; CLASSES],
    /// How many times as long the last reads took, on a running average.
    slowdown: f64,
    /// What the device writes in a second; zero until it has written something.
    bytes_per_second: f64,
    under_way: usize,
    /// Pieces begun so far: a read during which none was begun, and none was under way, was alone.
    begun: u64,
    /// When the last piece ended: the device took up the next one then.
    ended_at: Instant,
    /// When the next piece may go, with a window below one.
    rests_until: Instant,
    readers: usize,
    read_at: Instant,
    delayed: Duration,
}

/// What a read met when it began.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadMark {
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
            slowdown: 1.0,
            bytes_per_second: 0.0,
            under_way: 0,
            begun: 0,
            ended_at: Instant::ZERO,
            rests_until: Instant::ZERO,
            readers: 0,
            read_at: Instant::ZERO,
            delayed: Duration::ZERO,
            config,
        }
    }

    /// Whether another piece may go now. What a caller waits for is never held to less than one piece at a time.
    pub(super) fn may_send(&self, now: Instant, awaited: bool) -> bool {
        let most = self.config.pieces_max.max(1);
        let window = match (self.is_read(now), awaited) {
            (false, _) => return self.under_way < most,
            (true, true) => self.window.max(1.0),
            (true, false) => self.window,
        };
        if window < 1.0 {
            return self.under_way == 0 && now >= self.rests_until;
        }
        self.under_way < most.min(window as usize)
    }

    /// When a piece that may not go now may go, if neither a piece nor a read ends before.
    pub(super) fn next_chance(&self, now: Instant) -> Option<Instant> {
        let rested = (self.under_way == 0).then_some(self.rests_until);
        let quiet = (self.readers == 0).then(|| self.read_at + self.quiet());
        rested.into_iter().chain(quiet).filter(|at| *at > now).min()
    }

    /// Bytes of the next piece: what the device writes in the time that a piece may take. Beside readers this is no more
    /// than a few of their reads.
    pub(super) fn piece_bytes(&self, now: Instant) -> u64 {
        let PaceConfig {
            piece_time,
            piece_bytes_min,
            piece_bytes_max,
            ..
        } = self.config;
        let mut seconds = piece_time.as_secs_f64();
        let alone = self.alone[class_of(USUAL_BYTES)];
        if self.is_read(now) && alone > 0.0 {
            seconds = seconds.min(READS_A_PIECE * alone / 1e9);
        }
        let bytes = (self.bytes_per_second * seconds) as u64;
        let bytes = if bytes == 0 { UNKNOWN_BYTES } else { bytes };
        let bytes = bytes.clamp(piece_bytes_min, piece_bytes_max.max(piece_bytes_min));
        (bytes - bytes % BLOCK_BYTES).max(BLOCK_BYTES)
    }

    /// A piece goes to the device.
    pub(super) fn piece_begun(&mut self, now: Instant, bytes: u64) -> PieceMark {
        self.under_way += 1;
        self.begun += 1;
        PieceMark { at: now, bytes }
    }

    /// A piece came back, written or not.
    pub(super) fn piece_ended(&mut self, now: Instant, piece: PieceMark) {
        self.under_way -= 1;
        let took = piece.at.max(self.ended_at).until(now).as_secs_f64();
        self.ended_at = now;
        if took > 0.0 && piece.bytes >= self.config.piece_bytes_min {
            let rate = piece.bytes as f64 / took;
            let known = self.bytes_per_second;
            self.bytes_per_second = if known == 0.0 {
                rate
            } else {
                known + (rate - known) / 8.0
            };
        }
        if self.window < 1.0 {
            let rest = took * (1.0 / self.window - 1.0);
            self.rests_until = now + Duration::from_secs_f64(rest.min(REST_MAX.as_secs_f64()));
        }
    }

    /// A reader waits for the device.
    pub(super) fn read_begun(&mut self) -> ReadMark {
        self.readers += 1;
        ReadMark {
            pieces: self.begun,
            beside: self.under_way > 0,
        }
    }

    /// A reader has `bytes` bytes after the device took `took` for them, or gave up where that is zero.
    pub(super) fn read_ended(&mut self, now: Instant, mark: ReadMark, bytes: u64, took: Duration) {
        self.readers -= 1;
        self.read_at = now;
        if took.is_zero() {
            return;
        }
        let took = took.as_nanos() as f64;
        let alone = &mut self.alone[class_of(bytes)];
        if mark.beside || self.begun != mark.pieces {
            if *alone == 0.0 {
                return;
            }
            self.delayed += Duration::from_nanos((took - *alone).max(0.0) as u64);
        } else if *alone == 0.0 {
            *alone = took;
        } else {
            // What disturbs a read without our doing only lengthens it: the estimate follows short ones sooner.
            let part = if took < *alone { 4.0 } else { 64.0 };
            *alone += (took - *alone) / part;
        }
        self.slowdown += (took / *alone - self.slowdown) / 8.0;
        let floor = self.config.share_min.clamp(SHARE_LEAST, 1.0);
        self.window = if self.slowdown > self.config.slowdown_max {
            (self.window * 0.7).max(floor)
        } else {
            (self.window * 1.02).min(self.config.pieces_max.max(1) as f64)
        };
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
        self.bytes_per_second as u64
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
        let alone = self.alone[class_of(USUAL_BYTES)];
        Duration::from_nanos((QUIET_READS * alone) as u64).clamp(QUIET_MIN, QUIET_MAX)
    }
}

/// The class of a read's length: a power of two of blocks.
fn class_of(bytes: u64) -> usize {
    let blocks = bytes.div_ceil(BLOCK_BYTES).max(1);
    (blocks.ilog2() as usize).min(CLASSES - 1)
}

const CLASSES: usize = 14;
/// The read by whose time pieces and pauses are measured: a block of KV cache.
const USUAL_BYTES: u64 = 64 << 10;
/// A piece until the device has shown how fast it writes.
const UNKNOWN_BYTES: u64 = 512 << 10;
/// Times of a read that one piece may take while somebody reads.
const READS_A_PIECE: f64 = 3.0;
/// Times of a read after which a reader that comes back is no longer expected, and the bounds of that.
const QUIET_READS: f64 = 2.0;
const QUIET_MIN: Duration = Duration::from_micros(100);
const QUIET_MAX: Duration = Duration::from_millis(5);
/// Least share of the time, whatever is configured: writes that never end would fill the memory.
const SHARE_LEAST: f64 = 0.01;
/// Longest pause after a piece: a device that took a second for one is not to be left alone for minutes.
const REST_MAX: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: u64 = 1 << 20;

    fn pace() -> Pace {
        Pace::new(PaceConfig::default())
    }

    fn at(micros: u64) -> Instant {
        Instant::ZERO + Duration::from_micros(micros)
    }

    /// Reads one block after the other, each taking `took`; every one meets a piece if `beside`.
    fn read(pace: &mut Pace, from: u64, count: u64, took: u64, beside: bool) -> u64 {
        for turn in 0..count {
            let now = at(from + turn * took);
            let piece = beside.then(|| pace.piece_begun(now, PIECE));
            let mark = pace.read_begun();
            let end = at(from + (turn + 1) * took);
            pace.read_ended(end, mark, USUAL_BYTES, Duration::from_micros(took));
            if let Some(piece) = piece {
                pace.piece_ended(end, piece);
            }
        }
        from + count * took
    }

    #[test]
    fn writes_have_the_device_to_themselves_while_nobody_reads() {
        let mut pace = pace();
        let most = PaceConfig::default().pieces_max;
        for _ in 0..most {
            assert!(pace.may_send(at(1), false));
            pace.piece_begun(at(1), PIECE);
        }
        assert!(!pace.may_send(at(1), false), "no more than {most}");
        assert!(!pace.may_send(at(1), true), "not even what is waited for");
    }

    #[test]
    fn the_window_shrinks_to_its_floor_while_reads_are_slow_and_grows_again() {
        let mut pace = pace();
        let now = read(&mut pace, 1, 20, 100, false);
        assert_eq!(pace.slowdown(), 1.0);
        let now = read(&mut pace, now, 100, 1000, true);
        assert!(pace.slowdown() > 5.0, "{}", pace.slowdown());
        assert_eq!(pace.window(), PaceConfig::default().share_min);
        assert_eq!(pace.delayed(), Duration::from_micros(100 * 900));
        read(&mut pace, now, 400, 100, true);
        assert_eq!(
            pace.window(),
            PaceConfig::default().pieces_max as f64,
            "{}",
            pace.slowdown()
        );
    }

    #[test]
    fn at_the_floor_a_piece_goes_at_a_time_and_rests_after_it() {
        let mut pace = pace();
        let now = read(&mut pace, 1, 20, 100, false);
        let now = read(&mut pace, now, 100, 1000, true);
        let mark = pace.read_begun();
        let begun = pace.next_chance(at(now)).unwrap_or(at(now));
        assert!(pace.may_send(begun, false));
        let piece = pace.piece_begun(begun, PIECE);
        assert!(!pace.may_send(begun, false), "one at a time");
        let ended = begun + Duration::from_micros(200);
        pace.piece_ended(ended, piece);
        assert!(!pace.may_send(ended, false), "it rests");
        assert!(pace.may_send(ended, true), "unless a caller waits");
        let again = pace.next_chance(ended).unwrap();
        let rest = ended.until(again);
        let share = 200.0 / (200.0 + rest.as_micros() as f64);
        assert!((share - 0.1).abs() < 0.02, "{share}");
        assert!(pace.may_send(again, false));
        pace.read_ended(again, mark, USUAL_BYTES, Duration::ZERO);
        let quiet = pace.next_chance(again).unwrap();
        assert!(pace.may_send(quiet, false), "nobody came back");
    }

    #[test]
    fn a_piece_takes_the_device_a_millisecond_and_less_while_somebody_reads() {
        let mut pace = pace();
        assert_eq!(pace.piece_bytes(at(1)), UNKNOWN_BYTES);
        for turn in 0..50 {
            let piece = pace.piece_begun(at(turn * 1000), PIECE);
            pace.piece_ended(at((turn + 1) * 1000), piece);
        }
        let near = |bytes: u64, expected: u64| bytes.abs_diff(expected) <= expected / 20;
        assert!(near(pace.bytes_per_second(), PIECE * 1000));
        assert!(near(pace.piece_bytes(at(60_000)), PIECE));
        let now = read(&mut pace, 60_000, 20, 100, false);
        assert!(near(pace.piece_bytes(at(now)), PIECE * 3 / 10));
        assert!(
            near(pace.piece_bytes(at(now + 10_000)), PIECE),
            "they are gone"
        );
    }

    /// Two pieces at once each seemed to take twice as long as the device needs for one.
    #[test]
    fn the_rate_is_that_of_the_device_however_many_pieces_wait() {
        let mut pace = pace();
        let mut waiting = pace.piece_begun(at(0), PIECE);
        for turn in 0..50 {
            let next = pace.piece_begun(at(turn * 1000), PIECE);
            pace.piece_ended(at((turn + 1) * 1000), std::mem::replace(&mut waiting, next));
        }
        assert!(pace.bytes_per_second().abs_diff(PIECE * 1000) < PIECE * 50);
    }
}
