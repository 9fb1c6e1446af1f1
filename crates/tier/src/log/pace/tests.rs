use std::collections::BTreeSet;
use std::ops::Range;

use super::*;

const PIECE: u64 = 1 << 20;
/// A block of KV cache.
const BLOCK: u64 = 64 << 10;

fn pace() -> Pace {
    Pace::new(PaceConfig::default())
}

fn at(micros: u64) -> Instant {
    Instant::ZERO + Duration::from_micros(micros)
}

/// Has pieces of these bytes under way in these microseconds after `from`; those that end at once in this order.
fn write(pace: &mut Pace, from: Instant, pieces: &[(u64, Range<u64>)]) {
    let both = |(_, time): &(u64, Range<u64>)| [time.start, time.end];
    let times: BTreeSet<u64> = pieces.iter().flat_map(both).collect();
    let mut marks = vec![None; pieces.len()];
    for micros in times {
        let now = from + Duration::from_micros(micros);
        for (mark, (_, time)) in marks.iter_mut().zip(pieces) {
            if time.end == micros {
                pace.piece_ended(now, mark.take().unwrap());
            }
        }
        for (mark, (bytes, time)) in marks.iter_mut().zip(pieces) {
            if time.start == micros {
                *mark = Some(pace.piece_begun(now, *bytes));
            }
        }
    }
}

/// Reads one block after the other, each taking `took`; every one meets a piece if `beside`.
fn read(pace: &mut Pace, from: u64, count: u64, took: u64, beside: bool) -> u64 {
    for turn in 0..count {
        let now = at(from + turn * took);
        let piece = beside.then(|| pace.piece_begun(now, PIECE));
        let mark = pace.read_begun(now, BLOCK);
        let end = at(from + (turn + 1) * took);
        pace.read_ended(end, mark, BLOCK, Duration::from_micros(took));
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
        assert!(pace.may_send(at(1), Need::Background));
        pace.piece_begun(at(1), PIECE);
    }
    assert!(
        !pace.may_send(at(1), Need::Background),
        "no more than {most}"
    );
    assert!(
        !pace.may_send(at(1), Need::Awaited),
        "not even what is waited for"
    );
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
    let mark = pace.read_begun(at(now), BLOCK);
    let begun = pace.next_chance(at(now)).unwrap_or(at(now));
    assert!(pace.may_send(begun, Need::Background));
    let piece = pace.piece_begun(begun, PIECE);
    assert!(!pace.may_send(begun, Need::Background), "one at a time");
    let ended = begun + Duration::from_micros(200);
    pace.piece_ended(ended, piece);
    assert!(!pace.may_send(ended, Need::Background), "it rests");
    assert!(pace.may_send(ended, Need::Awaited), "unless a caller waits");
    let again = pace.next_chance(ended).unwrap();
    let rest = ended.until(again);
    let share = 200.0 / (200.0 + rest.as_micros() as f64);
    assert!((share - 0.1).abs() < 0.02, "{share}");
    assert!(pace.may_send(again, Need::Background));
    pace.read_ended(again, mark, BLOCK, Duration::ZERO);
    let quiet = pace.next_chance(again).unwrap();
    assert!(pace.may_send(quiet, Need::Background), "nobody came back");
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
    assert!(near(pace.piece_bytes(at(now)), PIECE * 2 / 10));
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

/// A piece that was overtaken had the other one's time left out, and of many that the log was told of together all but the
/// first made the bytes older and took no time: the rate was several times the device's, and pieces as many times too long.
#[test]
fn the_rate_is_that_of_the_device_in_whatever_order_pieces_end() {
    // Pieces by their ends, the time until the next ones begin, and bytes that the device writes in a millisecond.
    let check = |pieces: &[(u64, Range<u64>)], period: u64, bytes: f64| {
        let mut pace = pace();
        for turn in 0..60 {
            write(&mut pace, at(turn * period), pieces);
        }
        let part = pace.bytes_per_second() as f64 / (bytes * 1000.0);
        assert!((part - 1.0).abs() < 0.04, "{pieces:?}: {part}");
    };
    let together = |count: u64, apart: u64| -> Vec<_> {
        let first = count * 1000 - (count - 1) * apart;
        let ends = (0..count).map(|piece| first + piece * apart);
        ends.map(|end| (PIECE, 0..end)).collect()
    };
    let piece = PIECE as f64;
    check(&[(PIECE, 0..1000), (PIECE, 500..2000)], 2000, piece);
    check(&[(PIECE, 1000..1900), (PIECE, 0..2000)], 2000, piece);
    check(&[(PIECE, 1990..2000), (PIECE, 0..2000)], 2000, piece);
    check(&[(BLOCK, 500..600), (PIECE, 0..1060)], 1060, 1.0024 * piece);
    check(&[(PIECE, 0..1000)], 5000, piece);
    for apart in [0, 1, 20] {
        check(&together(2, apart), 2000, piece);
        check(&together(8, apart), 8000, piece);
    }
    check(&together(16, 0), 16_000, piece);
}

/// Callers that read the clock one after the other may come in another order.
#[test]
fn time_that_goes_back_is_counted_once() {
    let mut pace = pace();
    pace.window = 0.1;
    pace.read_begun(at(0), BLOCK);
    for turn in 0..60 {
        write(&mut pace, at(turn * 2000), &[(PIECE, 0..1000)]);
        write(&mut pace, at(turn * 2000), &[(PIECE, 500..2000)]);
    }
    let rate = pace.bytes_per_second();
    assert!(rate.abs_diff(PIECE * 1000) < PIECE * 40, "{rate}");
    pace.rests_until = Instant::ZERO;
    write(&mut pace, at(119_800), &[(PIECE, 0..300)]);
    assert_eq!(pace.rests_until, at(120_100 + 900));
}

/// Of pieces that took no time the bytes must not pile up, or the rate follows a slower device too late.
#[test]
fn pieces_that_take_no_time_are_forgotten_as_others() {
    let mut pace = pace();
    for _ in 0..100_000 {
        let piece = pace.piece_begun(at(1), PIECE);
        pace.piece_ended(at(1), piece);
    }
    for turn in 0..50 {
        write(&mut pace, at(turn * 1000), &[(PIECE, 0..1000)]);
    }
    let rate = pace.bytes_per_second();
    assert!(rate.abs_diff(PIECE * 1000) < PIECE * 40, "{rate}");
}

/// The short end of a batch that the log was told of together with the next piece took all of that one's time.
#[test]
fn a_piece_too_short_to_count_takes_no_time_from_the_next() {
    let mut pace = pace();
    for turn in 1..50 {
        let begun = at((turn - 1) * 1000);
        let (short, long) = (
            pace.piece_begun(begun, 8 << 10),
            pace.piece_begun(begun, PIECE),
        );
        pace.piece_ended(at(turn * 1000), short);
        pace.piece_ended(at(turn * 1000), long);
    }
    let rate = pace.bytes_per_second();
    assert!(rate.abs_diff(PIECE * 1000) < PIECE * 50, "{rate}");
    for turn in 50..200 {
        let short = pace.piece_begun(at((turn - 1) * 1000), 8 << 10);
        pace.piece_ended(at(turn * 1000), short);
    }
    assert_eq!(pace.bytes_per_second(), rate, "nor counts");
}

/// The bytes of short pieces were left out, and the time that the device took for them was not: beside pieces that barely
/// count it seemed to write half as fast as it did.
#[test]
fn short_pieces_count_with_the_one_in_whose_time_they_ended() {
    let least = PaceConfig::default().piece_bytes_min / 2;
    let short = least - BLOCK_BYTES;
    let check = |pieces: &[(u64, Range<u64>)], counted: u64| {
        let mut pace = pace();
        for turn in 0..50 {
            write(&mut pace, at(turn * 1000), pieces);
        }
        let (rate, expected) = (pace.bytes_per_second(), counted * 1000);
        let near = rate.abs_diff(expected) < expected / 50;
        assert!(near, "{pieces:?}: {rate} and not {expected}");
    };
    check(
        &[(short, 0..500), (short, 0..500), (least, 0..1000)],
        least + 2 * short,
    );
    check(
        &[(short, 0..300), (least, 0..600), (least, 0..1000)],
        2 * least + short,
    );
    // What was over when it began has no part of its half millisecond.
    check(&[(short, 0..500), (least, 500..1000)], 2 * least);
}

/// Of two pieces that the log was told of together the second one, which seemed to take no time, ended the pause after the first;
/// one that ended during the pause of another had none of its own; and one that was overtaken had none for the time before.
#[test]
fn pieces_are_followed_by_the_rests_of_all_their_time() {
    let short = 8 << 10;
    let check = |pieces: &[(u64, Range<u64>)], rests: u64| {
        let mut pace = pace();
        let now = read(&mut pace, 1, 20, 100, false);
        // Rests are saved up for a long read of which nothing is known, and no longer when no other comes.
        let (piece, mark) = (
            pace.piece_begun(at(now), PIECE),
            pace.read_begun(at(now), 8 * PIECE),
        );
        let now = now + 10_000;
        pace.read_ended(at(now), mark, 8 * PIECE, Duration::from_millis(10));
        pace.piece_ended(at(now), piece);
        let now = read(&mut pace, now, 3000, 1000, true);
        pace.read_begun(at(now), BLOCK);
        let begun = pace.next_chance(at(now)).unwrap();
        write(&mut pace, begun, pieces);
        let next = pace.next_chance(begun).unwrap();
        let found = begun.until(next).as_micros() as u64;
        assert!(found.abs_diff(rests) < 10, "{pieces:?}: {found}");
    };
    check(&[(PIECE, 0..200)], 200 + 1_800);
    check(&[(PIECE, 0..200), (PIECE, 0..200)], 200 + 1_800);
    check(&[(short, 0..200), (PIECE, 0..200)], 200 + 1_800);
    check(&[(PIECE, 0..200), (PIECE, 0..300)], 200 + 2_700);
    check(&[(PIECE, 200..250), (PIECE, 0..300)], 250 + 2_700);
    check(&[(short, 280..290), (PIECE, 0..300)], 290 + 2_700);
    check(&[(PIECE, 100..200), (PIECE, 0..400)], 200 + 3_600);
    let long = [(PIECE, 0..10_000), (PIECE, 0..20_000)];
    check(&long, 20_000 + 100_000);
}

/// Pieces that were written while nobody read were followed by rests all the same: the next reader found the writes of ten seconds
/// without it resting for 100 ms.
#[test]
fn pieces_rest_for_the_time_in_which_somebody_reads() {
    // Pieces that end before the next begins, and readers that come and go while they are under way, in microseconds of a later
    // second; and how long the pieces rest. A reader that went is expected back for 200 us.
    let check = |pieces: &[(u64, u64)], reads: &[(u64, u64)], rests: u64| {
        let mut pace = pace();
        let now = read(&mut pace, 1, 20, 100, false);
        read(&mut pace, now, 100, 1000, true);
        assert_eq!(pace.window(), PaceConfig::default().share_min);
        let (mut piece, mut reader) = (None, None);
        let end = pieces.iter().map(|(_, end)| *end).max().unwrap();
        for micros in 0..=end {
            let now = at(1_000_000 + micros);
            if reads.iter().any(|(_, end)| *end == micros) {
                pace.read_ended(now, reader.take().unwrap(), BLOCK, Duration::ZERO);
            }
            if pieces.iter().any(|(_, end)| *end == micros) {
                pace.piece_ended(now, piece.take().unwrap());
            }
            if pieces.iter().any(|(start, _)| *start == micros) {
                piece = Some(pace.piece_begun(now, PIECE));
            }
            if reads.iter().any(|(start, _)| *start == micros) {
                reader = Some(pace.read_begun(now, BLOCK));
            }
        }
        let ended = at(1_000_000 + end);
        pace.read_begun(ended, BLOCK);
        let next = pace.next_chance(ended).unwrap_or(ended);
        let found = ended.until(next).as_micros() as u64;
        let count = pieces.len();
        assert_eq!(found, rests, "{count} pieces, {reads:?}");
    };
    let hundred: Vec<_> = (0..100)
        .map(|turn| (turn * 100, (turn + 1) * 100))
        .collect();
    check(&hundred, &[], 0);
    check(&[(0, 10_000)], &[(9_900, 20_000)], 9 * 100);
    check(&[(0, 10_000)], &[(9_000, 9_100)], 9 * (100 + 200));
    check(
        &[(0, 10_000)],
        &[(9_000, 9_100), (9_200, 9_300)],
        9 * (300 + 200),
    );
    check(
        &[(0, 10_000)],
        &[(1_000, 1_100), (9_900, 20_000)],
        9 * (100 + 200 + 100),
    );
    // Only the first owes a rest, which begins when it ends.
    check(&[(0, 500), (600, 1_000)], &[(0, 100)], 9 * 300 - 500);
    check(
        &[(0, 100), (9_000, 9_100)],
        &[(0, 1_000), (5_000, 5_100)],
        0,
    );
    check(&[(0, 1_000)], &[(0, 20_000)], 9 * 1_000);
}

/// After one stall of the device pieces were as short as they may be, and, of records that do not fill one, shorter: none
/// counted any more, and they stayed short.
#[test]
fn pieces_of_any_length_recover_from_a_stall() {
    let shortest = PaceConfig::default().piece_bytes_min;
    let check = |lengths: [u64; 2]| {
        let mut pace = pace();
        let mut now = 0;
        let mut write = |pace: &mut Pace, bytes: u64, micros: u64| {
            let piece = pace.piece_begun(at(now), bytes);
            now += micros;
            pace.piece_ended(at(now), piece);
        };
        for _ in 0..50 {
            write(&mut pace, PIECE, 1000);
        }
        write(&mut pace, PIECE, 150_000);
        assert_eq!(pace.piece_bytes(at(1 << 40)), shortest);
        for length in lengths.into_iter().cycle().take(200) {
            write(&mut pace, length, length * 1000 / PIECE);
        }
        let found = pace.piece_bytes(at(1 << 40));
        assert!(found > PIECE / 2, "{lengths:?}: {found}");
    };
    check([shortest, shortest]);
    check([52 << 10, 48 << 10]);
    check([36 << 10, 36 << 10]);
    check([12 << 10, 56 << 10]);
}

/// A log that wrote without a pause from the start never saw a read by itself, so it never learned that its writes made
/// reads slow.
#[test]
fn writes_rest_until_a_read_has_shown_what_it_takes_without_them() {
    let mut pace = pace();
    let (mut now, mut piece) = (1, Some(pace.piece_begun(at(1), PIECE)));
    for _ in 0..50 {
        // Beside a piece a read takes as long as the piece is under way.
        let mark = pace.read_begun(at(now), BLOCK);
        let took = if piece.is_some() { 1000 } else { 100 };
        now += took;
        if let Some(piece) = piece.take() {
            pace.piece_ended(at(now), piece);
        }
        pace.read_ended(at(now), mark, BLOCK, Duration::from_micros(took));
        if pace.may_send(at(now), Need::Background) {
            piece = Some(pace.piece_begun(at(now), PIECE));
        }
    }
    assert!(pace.window() < 0.5, "{}", pace.window());
    assert!(pace.delayed() > Duration::ZERO);
}

/// Reads that took longer than a rest all had a piece beside them, as had short ones of a reader that was away for a moment: readers
/// were said not to be held up, while writes had half of the device or, however well that went, the least they may have.
#[test]
fn rests_are_saved_up_until_a_read_of_any_length_fits() {
    // Reads in turn with the microseconds that each takes by itself, and those that the reader is away between two.
    let check = |reads: &[(u64, u64)], away: u64| {
        let mut pace = pace();
        let (mut piece, mut learned) = (None::<(u64, PieceMark)>, None);
        let mut reads_left = reads.iter().cycle();
        let (mut read, mut back) = (None::<(u64, u64, u64, ReadMark)>, 1);
        let mut steps_written = 0;
        // In steps of 100 us, of which a read gets half beside a piece. A piece takes 1 ms.
        for micros in (1..1_000_000).step_by(100) {
            let step = if piece.is_some() { 50 } else { 100 };
            steps_written += u32::from(piece.is_some());
            if let Some((bytes, asked, left, mark)) = &mut read {
                *left = left.saturating_sub(step);
                if *left == 0 {
                    let took = Duration::from_micros(micros - *asked);
                    pace.read_ended(at(micros), *mark, *bytes, took);
                    (read, back) = (None, micros + away);
                }
            }
            if let Some((_, mark)) = piece.take_if(|(begun, _)| *begun + 1000 <= micros) {
                pace.piece_ended(at(micros), mark);
            }
            if read.is_none() && back <= micros {
                let (bytes, takes) = reads_left.next().unwrap();
                read = Some((*bytes, micros, *takes, pace.read_begun(at(micros), *bytes)));
            }
            if piece.is_none() && pace.may_send(at(micros), Need::Background) {
                piece = Some((micros, pace.piece_begun(at(micros), PIECE)));
            }
            let is_known = |(bytes, _): &(u64, u64)| pace.alone[class_of(*bytes)] > 0.0;
            if learned.is_none() && reads.iter().all(is_known) {
                learned = Some(micros);
            }
        }
        let (slowdown, share) = (pace.slowdown(), f64::from(steps_written) / 10_000.0);
        let case = format!("{reads:?}, {away}: {learned:?}, {slowdown}, {share}");
        assert!(learned.is_some_and(|now| now < 300_000), "{case}");
        assert!(slowdown > 1.2 && share > 0.3, "{case}");
        assert!(pace.delayed() > Duration::ZERO, "{case}");
        assert!(pace.fits.is_zero(), "they are saved up still: {case}");
    };
    check(&[(BLOCK, 3_000)], 0);
    check(&[(BLOCK, 10_000)], 0);
    check(&[(BLOCK, 30_000)], 0);
    check(&[(BLOCK, 10_000)], 1_000);
    // The reader is away for longer than two of its reads take.
    check(&[(BLOCK, 100)], 1_000);
    check(&[(BLOCK, 500)], 3_000);
    check(&[(BLOCK, 45_000)], 4_900);
    check(&[(BLOCK, 500), (PIECE, 500)], 3_000);
    // Those that are known come between those that are not.
    check(&[(BLOCK, 500), (BLOCK, 500), (8 * PIECE, 10_000)], 0);
    check(&[(PIECE, 8_000), (8 * PIECE, 30_000)], 0);
}

/// Writes that save up their rests until a read that met a stall fits leave the others none.
#[test]
fn no_rest_is_saved_up_beyond_the_longest() {
    let mut pace = pace();
    let now = at(read(&mut pace, 1, 1, 10_000_000, true) + 200_000);
    assert_eq!(pace.fits, REST_MAX, "it would fade for a thousand reads");
    pace.read_begun(now, BLOCK);
    write(&mut pace, now, &[(PIECE, 0..200_000)]);
    let ended = now + Duration::from_micros(200_000);
    assert_eq!(pace.next_chance(ended), Some(ended + REST_MAX));
}

/// A piece under way from before the window rose until after it had sunk again was rested for as if it had been small all the time.
#[test]
fn a_long_piece_rests_for_its_time_since_the_window_was_one() {
    let mut pace = pace();
    let learned = read(&mut pace, 1, 20, 100, false);
    let small = read(&mut pace, learned, 20, 1000, true);
    let least = PaceConfig::default().share_min;
    assert_eq!(pace.window(), least);
    let piece = pace.piece_begun(at(small), PIECE);
    let risen = read(&mut pace, small, 400, 100, false);
    assert!(pace.window() > 1.5, "{}", pace.window());
    // How long the window was below one before it rose makes no difference to the rest.
    let sunk = read(&mut pace, risen, 16, 500, false);
    assert_eq!(pace.window(), least);
    pace.piece_ended(at(sunk), piece);
    let rest = at(sunk).until(pace.rests_until).as_micros() as u64 + pace.owed.as_micros() as u64;
    let most = ((sunk - risen) as f64 * (1.0 / least - 1.0)) as u64;
    assert!(rest <= most, "{rest} µs, {most} at most");
}

/// What was saved up or had begun when reads brought the window to one was rested when others made it sink again, by pieces that
/// owed nothing of it.
#[test]
fn rests_end_with_the_need_for_them() {
    // The time of a piece, and what it has rested for or saved up by its end.
    let check = |is_saved: bool, busy: u64, rest: u64| {
        let mut pace = pace();
        let now = read(&mut pace, 1, 20, 100, false);
        let now = if is_saved {
            // The first of its class, and beside a piece: rests are saved up until two of it fit.
            let (piece, mark) = (
                pace.piece_begun(at(now), PIECE),
                pace.read_begun(at(now), 8 * PIECE),
            );
            pace.piece_ended(at(now), piece);
            pace.read_ended(at(now), mark, 8 * PIECE, Duration::from_millis(50));
            now
        } else {
            read(&mut pace, now, 20, 1000, false)
        };
        let mark = pace.read_begun(at(now), BLOCK);
        write(&mut pace, at(now), &[(PIECE, 0..busy)]);
        let now = now + busy;
        pace.read_ended(at(now), mark, BLOCK, Duration::ZERO);
        let (saved, rested) = (pace.owed, at(now).until(pace.rests_until));
        let rest = Duration::from_micros(rest);
        let expected = if is_saved {
            (rest, Duration::ZERO)
        } else {
            (Duration::ZERO, rest)
        };
        assert_eq!((saved, rested), expected);
        let now = read(&mut pace, now, 200, 100, false);
        assert!(pace.window() > 1.5, "{}", pace.window());
        let now = read(&mut pace, now, 20, 1000, false);
        assert_eq!(pace.window(), PaceConfig::default().share_min);
        // Nothing is saved up for a class that is known.
        let (mark, now) = (pace.read_begun(at(now), 8 * PIECE), now + 20_000);
        pace.read_ended(at(now), mark, 8 * PIECE, Duration::from_millis(20));
        pace.read_begun(at(now), BLOCK);
        write(&mut pace, at(now), &[(PIECE, 0..100)]);
        let ended = at(now + 100);
        let next = pace.next_chance(ended).unwrap();
        assert_eq!(ended.until(next), Duration::from_micros(900));
    };
    check(true, 80_000, 80_000);
    check(false, 10_000, 90_000);
}

/// Eight readers at once each waited for the others, and the log took that for the work of its writes.
#[test]
fn readers_that_wait_for_each_other_do_not_slow_writes_down() {
    let mut pace = pace();
    let mut now = read(&mut pace, 1, 20, 100, false);
    for turn in 0..100u64 {
        let beside = turn >= 20;
        let piece = beside.then(|| pace.piece_begun(at(now), PIECE));
        let marks: Vec<ReadMark> = (0..8).map(|_| pace.read_begun(at(now), BLOCK)).collect();
        now += 800;
        for mark in marks {
            pace.read_ended(at(now), mark, BLOCK, Duration::from_micros(800));
        }
        if let Some(piece) = piece {
            pace.piece_ended(at(now), piece);
        }
    }
    assert!(pace.slowdown() < 1.01, "{}", pace.slowdown());
    assert_eq!(pace.window(), PaceConfig::default().pieces_max as f64);
    read(&mut pace, now, 100, 1000, true);
    assert_eq!(pace.window(), PaceConfig::default().share_min);
}

/// Pieces and pauses were measured by blocks of 64 KiB, whatever was read.
#[test]
fn pieces_are_as_long_as_a_few_of_the_reads_that_there_are() {
    for (bytes, took, piece) in [
        (4096, 50, PIECE * 100 / 1000),
        (BLOCK, 100, PIECE * 2 / 10),
        (1 << 20, 900, PIECE),
    ] {
        let mut pace = pace();
        for turn in 0..50 {
            let piece = pace.piece_begun(at(turn * 1000), PIECE);
            pace.piece_ended(at((turn + 1) * 1000), piece);
        }
        let mark = pace.read_begun(at(60_000), bytes);
        let now = at(60_000 + took);
        pace.read_ended(now, mark, bytes, Duration::from_micros(took));
        let found = pace.piece_bytes(now);
        assert!(found.abs_diff(piece) <= piece / 20, "{bytes}: {found}");
        let quiet = now + Duration::from_micros(2 * took);
        assert!(pace.is_read(quiet - Duration::from_micros(1)), "{bytes}");
        assert!(!pace.is_read(quiet), "{bytes}");
    }
}

/// A reader that had to wait for a processor was taken for gone, and came back to two pieces of a millisecond each: one read in
/// a hundred took eight times as long as on an idle device.
#[test]
fn pieces_grow_as_readers_stay_away() {
    let mut pace = pace();
    for turn in 0..50 {
        let piece = pace.piece_begun(at(turn * 1000), PIECE);
        pace.piece_ended(at((turn + 1) * 1000), piece);
    }
    let last = read(&mut pace, 60_000, 20, 100, false);
    for (away, micros) in [
        (0, 200),
        (199, 200),
        (200, 200),
        (800, 200),
        (1_200, 300),
        (1_600, 400),
        (3_200, 800),
        (4_000, 1_000),
        (60_000, 1_000),
    ] {
        let (found, expected) = (pace.piece_bytes(at(last + away)), PIECE * micros / 1000);
        let near = found.abs_diff(expected) <= expected / 20;
        assert!(near, "{away} us: {found} and not {expected}");
    }
}

/// Eight readers kept the writes at the floor while all of memory waited to be written: nothing was left for what they read.
#[test]
fn what_presses_has_as_many_bytes_under_way_as_readers() {
    let mut pace = pace();
    let now = read(&mut pace, 1, 20, 100, false);
    let now = at(read(&mut pace, now, 100, 1000, true));
    let marks: Vec<ReadMark> = (0..4).map(|_| pace.read_begun(now, 2 * PIECE)).collect();
    pace.rests_until = now + Duration::from_secs(1);
    assert!(!pace.may_send(now, Need::Background), "it rests");
    let mut pieces = Vec::new();
    while pace.may_send(now, Need::Pressing) {
        pieces.push(pace.piece_begun(now, PIECE));
    }
    assert_eq!(pieces.len(), 8);
    assert!(!pace.may_send(now, Need::Awaited));
    for mark in marks {
        pace.read_ended(now, mark, 2 * PIECE, Duration::ZERO);
    }
    assert!(!pace.may_send(now, Need::Pressing), "readers are gone");
    pieces
        .drain(1..)
        .for_each(|piece| pace.piece_ended(now, piece));
    let quiet = now + Duration::from_millis(10);
    while pace.may_send(quiet, Need::Pressing) {
        pieces.push(pace.piece_begun(quiet, PIECE));
    }
    assert_eq!(pieces.len(), PRESSING * PaceConfig::default().pieces_max);
}
