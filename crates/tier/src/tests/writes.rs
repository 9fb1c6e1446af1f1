//! Batches on their way: pieces, groups of syncs, memory that goes before the sync, and bytes that readers bring.

use super::*;
use crate::config::PaceConfig;
use crate::io::Part;

/// A log whose batches are synced in groups and written in pieces of a block.
fn grouped() -> LogConfig {
    LogConfig {
        sync_bytes: 64 << 10,
        pace: PaceConfig {
            piece_bytes_min: 4096,
            piece_bytes_max: 4096,
            ..PaceConfig::DEFAULT
        },
        ..small_log(2 << 20)
    }
}

/// The memory of a value was held until its batch was synced, four megabytes after the other.
#[test]
fn memory_goes_when_the_record_can_be_read_and_a_promise_waits_for_the_sync() {
    let mut world = World::new(grouped(), 1);
    world.rest();
    let (offered, promised) = (world.offer(&[1], 1, 9000), world.put(&[2], 1, 9000));
    world.until_answered(offered);
    assert_eq!(world.results.get(&offered), Some(&Ok(())));
    assert_eq!(world.results.get(&promised), None, "its sync is under way");
    assert!(world.disk.has_unsynced());
    assert!(!world.agent.holds_durably(&entry(&[1], 1)));
    assert_eq!(world.readable(&[1]), Some(1), "it can be read");
    world.until_answered(promised);
    assert_eq!(world.results[&promised], Ok(()));
    assert!(world.agent.holds_durably(&entry(&[1], 1)));
    world.check("after the sync");
}

#[test]
fn one_sync_covers_what_nobody_waits_for_by_bytes_or_by_time() {
    let mut world = World::new(grouped(), 2);
    world.rest();
    let before = world.agent.stats().syncs;
    for key in 0..8 {
        world.offer(&[key], 1, 4000);
        world.run_for(Duration::from_millis(5));
    }
    world.rest();
    assert!(world.results.values().all(Result::is_ok));
    assert!(!world.disk.has_unsynced(), "in the end all is synced");
    let syncs = world.agent.stats().syncs - before;
    assert!(syncs <= 2, "{syncs} syncs");
    for key in 8..40 {
        world.offer(&[key], 1, 9000);
    }
    world.drain();
    assert!(
        world.agent.stats().syncs > before + syncs,
        "by bytes, before any time has passed"
    );
}

/// A caller that waited for a flush had every batch of the backlog synced by itself, while one sync covers them all.
#[test]
fn a_flush_is_a_sync_of_all_that_it_covers_and_waits_for_nothing_later() {
    let config = LogConfig {
        sync_bytes: 4 << 20,
        file_bytes: 2 << 20,
        ..small_log(64 << 20)
    };
    let mut world = World::new(config, 5);
    world.rest();
    let before = world.agent.stats();
    // One more than whole batches hold: the last of them shares its batch with the first that comes later.
    let early: Vec<u8> = (0..41).collect();
    for key in &early {
        world.offer(&[*key], 1, 9000);
    }
    world.give(AgentInput::Flush(7));
    let mut late = 41..;
    while world.complete() && !world.flushed.contains(&7) {
        // There is always something on its way that the flush does not cover, and a flush that does.
        let number = late.next().unwrap();
        world.offer(&[number], 1, 9000);
        world.give(AgentInput::Flush(u64::from(number)));
    }
    assert!(world.flushed.contains(&7), "no time has to pass");
    assert!(late.start < 41 + 40, "later ones up to {}", late.start);
    let after = world.agent.stats();
    assert!(
        early
            .iter()
            .all(|key| world.agent.holds_durably(&entry(&[*key], 1)))
    );
    let begun = after.syncs - before.syncs;
    assert_eq!(begun, 2, "its own, and that of the flush behind it");
    world.give(AgentInput::Stop);
    while world.stopped.is_none() {
        world.catch_up();
        assert!(
            world.complete() || world.stopped.is_some(),
            "no time has to pass"
        );
    }
    assert_eq!(world.stopped, Some(0));
    assert!(world.agent.stats().syncs - after.syncs <= 2);
}

/// A flush whose batches were written while the one before it was synced was looked at by nobody until a sync was due by
/// time: a caller waited a tenth of a second, or whatever was configured, beside an idle device.
#[test]
fn a_flush_that_waited_behind_another_needs_no_time_either() {
    let mut world = World::new(small_log(64 << 20), 6);
    world.rest();
    for number in 1..=3 {
        world.offer(&[number], 1, 9000);
        world.give(AgentInput::Flush(u64::from(number)));
    }
    world.drain();
    assert_eq!(world.flushed, BTreeSet::from([1, 2, 3]));
}

/// What was written and not synced is a cache's loss after a power cut. Nothing else is: promised records stay, and no
/// dropped one comes back.
#[test]
fn a_power_cut_takes_only_what_nobody_was_promised() {
    for nth in 0..120 {
        let mut world = World::new(grouped(), nth);
        world.rest();
        for round in 1..4 {
            for key in 0..5 {
                world.put(&[key], round, 5000);
                world.offer(&[10 + key], round, 9000);
            }
            world.remove(&[1], round);
            world.remove(&[11], round);
            (0..nth / 2).for_each(|_| _ = world.complete());
        }
        let crash = [Crash::LoseAll, Crash::Tear, Crash::Process][nth as usize % 3];
        world.reopen(crash, "after a crash");
        world.check_opened("after a crash");
    }
}

/// The sync of a group failed after the memory of its records was given up: what the device shows of them may be gone after
/// the next power cut, so they count as lost, once.
#[test]
fn a_failed_sync_loses_what_was_given_up_and_keeps_what_was_promised() {
    let mut world = World::new(grouped(), 3);
    world.disk.set_forgetful(true);
    world.rest();
    let offered = world.offer(&[1], 1, 9000);
    let promised = world.put(&[2], 1, 9000);
    world.until_answered(offered);
    while !world.complete_sync(DiskError::Device { errno: 5 }) {}
    world.rest();
    assert_eq!(world.results[&promised], Ok(()), "written again elsewhere");
    assert_eq!(world.lost, [entry(&[1], 1)]);
    assert_eq!(world.agent.stats().records_lost, 1);
    assert_eq!(world.readable(&[1]), None);
    world.give(AgentInput::Flush(7));
    world.rest();
    assert!(world.flushed.contains(&7), "nothing is left unresolved");
    // Its tombstone was written again with every file that was emptied, until the log was opened anew.
    assert_eq!(world.agent.stats().files_abandoned, 1);
    assert_eq!(world.agent.stats().tombstones, 0, "nothing is left of it");
    world.reopen(Crash::LoseAll, "after the failed sync");
    assert_eq!(world.check_opened("after the failed sync").records, 1);
}

/// A write of four megabytes kept every reader waiting that came behind it.
#[test]
fn a_reader_meets_one_piece_at_a_time_and_the_rest_waits_for_it() {
    let mut world = World::new(grouped(), 4);
    world.put(&[0], 1, 9000);
    world.rest();
    let mut out = Vec::new();
    // Reads are slow beside writes, and fast without: the window goes to its floor.
    for turn in 0..200u64 {
        let took = if turn < 20 { 100 } else { 900 };
        if turn == 20 {
            world.offer(&[1], 1, 60_000);
            world.step_to_deadline();
        }
        let plan = world
            .agent
            .begin_read(world.now, &entry(&[0], 1), &mut out)
            .unwrap();
        world.now += Duration::from_micros(took);
        let end = (ReadEnd::Done, Duration::from_micros(took));
        world.agent.end_read(world.now, plan, end, &mut out);
        let more = std::mem::take(&mut out);
        world.take(more);
    }
    let stats = world.agent.stats();
    assert!(
        stats.write_window_milli <= 101,
        "{}",
        stats.write_window_milli
    );
    assert!(stats.reads_delayed > Duration::from_millis(1));
    let plan = world
        .agent
        .begin_read(world.now, &entry(&[0], 1), &mut out)
        .unwrap();
    world.take(std::mem::take(&mut out));
    world.drain();
    for _ in 0..3 {
        assert!(world.disk.is_idle(), "it rests");
        world.step_to_deadline();
        assert_eq!(world.disk.in_flight(), 1);
        world.complete();
    }
    let end = (ReadEnd::Done, Duration::ZERO);
    world.agent.end_read(world.now, plan, end, &mut out);
    world.take(out);
    world.rest();
    world.check("at rest");
    assert_eq!(world.readable(&[1]), Some(1));
}

/// A read that failed at once was taken for what reads take without writes: those that took their usual time were ten times as
/// slow, and writes went to their least.
#[test]
fn a_read_that_fails_says_nothing_of_how_long_reads_take() {
    let mut world = World::new(grouped(), 4);
    world.put(&[0], 1, 9000);
    world.rest();
    let mut out = Vec::new();
    let bytes = Checksum::of(&value_of(&entry(&[0], 1), 9000));
    let reads = std::iter::repeat_n((ReadEnd::Checked(bytes), 100), 20);
    for (end, took) in std::iter::once((ReadEnd::Failed(EIO), 10)).chain(reads) {
        let plan = world.agent.begin_read(world.now, &entry(&[0], 1), &mut out);
        let took = Duration::from_micros(took);
        world.now += took;
        let right = (world.agent).end_read(world.now, plan.unwrap(), (end, took), &mut out);
        assert_eq!(right, end != ReadEnd::Failed(EIO));
    }
    let stats = world.agent.stats();
    let found = (stats.read_slowdown_milli, stats.write_window_milli);
    assert!(found.0 == 1000 && found.1 > 1000, "{found:?}");
}

#[test]
fn a_write_is_cut_into_pieces_that_join_to_the_same_bytes() {
    let mut world = World::new(grouped(), 5);
    let before = world.disk.completed();
    world.put(&[1], 1, 50_000);
    world.rest();
    assert!(world.disk.completed() - before > 12, "in pieces of a block");
    assert_eq!(world.readable(&[1]), Some(1));
    let extent = ExtentRef {
        bytes: 40_960,
        ..world.free[0]
    };
    let length = 33_000;
    let pieces = Part::Extent { extent, length }.cut(16_384);
    let expected = [(0, 16_384), (16_384, 16_384), (32_768, 232)];
    let found: Vec<_> = pieces
        .iter()
        .map(|piece| match piece {
            Part::Extent { extent: of, length } => (of.offset - extent.offset, *length),
            Part::Bytes(_) => panic!("an extent stays an extent"),
        })
        .collect();
    assert_eq!(found, expected);
}

/// The device was read twice for each promotion: by the reader that earned it, and again into memory.
#[test]
fn the_bytes_of_the_reader_are_what_is_promoted() {
    // What the reader does with the bytes, and who reads the device in the end.
    for (brings, reads) in [(true, 0), (false, 1)] {
        let mut config = agent_config();
        config.promotion_reader_wait = Duration::from_millis(5);
        let mut world = World::with(small_log(2 << 20), config, 6);
        world.put(b"a", 1, 5000);
        world.rest();
        let ticket = world.promote(b"a", 1, 5000);
        let extent = world.free.pop().unwrap();
        world.give(AgentInput::Order(Order::Staged { ticket, extent }));
        let before = world.disk.completed();
        assert!(world.disk.is_idle() && world.agent.expects_readers());
        let mut out = Vec::new();
        let plan = world
            .agent
            .begin_read(world.now, &entry(b"a", 1), &mut out)
            .unwrap();
        // A reader that takes its time is waited for.
        world.run_for(Duration::from_millis(50));
        assert!(world.promoted.is_empty() && world.disk.is_idle());
        if brings {
            let value = value_of(&entry(b"a", 1), 5000);
            assert_eq!(world.agent.promotion_of(&plan), Some((ticket, extent)));
            assert_eq!(world.agent.promotion_of(&plan), None, "one reader copies");
            world.bytes.write(extent, &value);
            world
                .agent
                .copied(world.now, ticket, Checksum::of(&value), &mut out);
        }
        world
            .agent
            .end_read(world.now, plan, (ReadEnd::Done, Duration::ZERO), &mut out);
        world.take(out);
        world.rest();
        assert_eq!(world.promoted.get(&ticket), Some(&extent), "{brings}");
        assert_eq!(world.disk.completed() - before, reads);
        assert_eq!(world.agent.stats().promotions_copied, u64::from(brings));
    }
}

#[test]
fn a_promotion_that_no_reader_comes_for_reads_the_device_and_a_cancelled_one_does_not() {
    for cancelled in [false, true] {
        let mut config = agent_config();
        config.promotion_reader_wait = Duration::from_millis(5);
        let mut world = World::with(small_log(2 << 20), config, 7);
        world.put(b"a", 1, 5000);
        world.rest();
        let ticket = world.promote(b"a", 1, 5000);
        let extent = world.free.pop().unwrap();
        world.give(AgentInput::Order(Order::Staged { ticket, extent }));
        if cancelled {
            world.give(AgentInput::Order(Order::Cancel { ticket }));
            world.give(AgentInput::Order(Order::Fence(vec![extent])));
            assert_eq!(world.fenced, [extent], "nobody touches it");
        }
        world.rest();
        assert_eq!(world.promoted.contains_key(&ticket), !cancelled);
        assert!(!world.agent.expects_readers());
    }
}

/// A reader's buffer was written to by its owner while it was copied into the extent of a promotion. The master took that
/// for rot of the record, and dropped it.
#[test]
fn a_reader_whose_copy_is_wrong_has_the_device_read_and_a_cancelled_one_keeps_the_extent_until_it_is_done()
 {
    for cancelled in [false, true] {
        let mut config = agent_config();
        config.promotion_reader_wait = Duration::from_millis(5);
        let mut world = World::with(small_log(2 << 20), config, 8);
        world.put(b"a", 1, 5000);
        world.rest();
        let ticket = world.promote(b"a", 1, 5000);
        let extent = world.free.pop().unwrap();
        world.give(AgentInput::Order(Order::Staged { ticket, extent }));
        let mut out = Vec::new();
        let plan = world
            .agent
            .begin_read(world.now, &entry(b"a", 1), &mut out)
            .unwrap();
        assert!(world.agent.promotion_of(&plan).is_some());
        if cancelled {
            world.give(AgentInput::Order(Order::Cancel { ticket }));
            world.give(AgentInput::Order(Order::Fence(vec![extent])));
            assert_eq!(world.fenced, [], "the reader still writes to it");
        }
        world.bytes.write(extent, &[7; 5000]);
        let found = Checksum::of(&[7; 5000]);
        world.agent.copied(world.now, ticket, found, &mut out);
        world
            .agent
            .end_read(world.now, plan, (ReadEnd::Done, Duration::ZERO), &mut out);
        world.take(out);
        assert!(world.promoted.is_empty(), "not with these bytes");
        world.rest();
        assert_eq!(world.promotions_failed.get(&ticket), None);
        assert_eq!(world.promoted.contains_key(&ticket), !cancelled);
        if !cancelled {
            let promoted = world.bytes.read(extent, 5000);
            assert_eq!(promoted, value_of(&entry(b"a", 1), 5000));
        }
        assert_eq!(world.agent.stats().promotions_copied, 0);
        assert_eq!(world.fenced.len(), usize::from(cancelled));
        assert_eq!(world.readable(b"a"), Some(1), "the record is as it was");
    }
}

/// Writes stayed at the share that readers leave until all of memory waited for them, and nothing of it was left for reading.
#[test]
fn what_takes_memory_from_readers_is_written_beside_them() {
    for (offered, presses) in [(1, false), (4, true)] {
        let mut world = World::new(grouped(), 10);
        world.put(&[0], 1, 60_000);
        world.rest();
        let mut out = Vec::new();
        let mut read = |world: &mut World, took: u64| {
            let entry = entry(&[0], 1);
            let plan = world.agent.begin_read(world.now, &entry, &mut out).unwrap();
            world.take(std::mem::take(&mut out));
            world.now += Duration::from_micros(took);
            (plan, Duration::from_micros(took))
        };
        for turn in 0..100u64 {
            let (plan, took) = read(&mut world, if turn < 20 { 100 } else { 900 });
            if turn == 20 {
                (1..1 + offered).for_each(|key| _ = world.offer(&[key], 1, 60_000));
            }
            let mut out = Vec::new();
            let end = (ReadEnd::Done, took);
            world.agent.end_read(world.now, plan, end, &mut out);
            world.take(out);
        }
        let (plan, _) = read(&mut world, 1);
        if presses {
            // Two percent of the arena are more than one value and less than two.
            assert!(world.disk.in_flight() >= 15, "{}", world.disk.in_flight());
        } else {
            assert!(world.disk.in_flight() <= PaceConfig::DEFAULT.pieces_max);
        }
        let mut out = Vec::new();
        let end = (ReadEnd::Done, Duration::ZERO);
        world.agent.end_read(world.now, plan, end, &mut out);
        world.take(out);
        world.rest();
        assert!(world.results.values().all(Result::is_ok));
        world.check("at rest");
    }
}

/// A removal came while two batches were written at the share that readers leave: it waited for both, a hundred milliseconds,
/// although a caller waited for it.
#[test]
fn what_a_caller_waits_for_hurries_what_is_written_before_it() {
    for promised in [false, true] {
        let mut world = World::new(grouped(), 9);
        world.put(&[0], 1, 9000);
        world.rest();
        let mut out = Vec::new();
        // The window is at its floor, and a reader waits.
        for turn in 0..100u64 {
            if turn == 20 {
                for key in 1..8 {
                    world.offer(&[key], 1, 60_000);
                }
                world.step_to_deadline();
            }
            let took = Duration::from_micros(if turn < 20 { 100 } else { 900 });
            let entry = entry(&[0], 1);
            let plan = world.agent.begin_read(world.now, &entry, &mut out).unwrap();
            world.now += took;
            let end = (ReadEnd::Done, took);
            world.agent.end_read(world.now, plan, end, &mut out);
            world.take(std::mem::take(&mut out));
        }
        let entry = entry(&[0], 1);
        let plan = world.agent.begin_read(world.now, &entry, &mut out).unwrap();
        world.take(std::mem::take(&mut out));
        world.drain();
        assert!(world.disk.is_idle(), "it rests after the piece");
        let ticket = if promised {
            Some(world.put(&[9], 1, 9000))
        } else {
            world.remove(&[0], 1);
            None
        };
        assert!(!world.disk.is_idle(), "{promised}: the rest is over");
        let answered = |world: &World| match ticket {
            Some(ticket) => world.results.contains_key(&ticket),
            None => !world.dropped.is_empty(),
        };
        while !answered(&world) {
            if !world.complete() {
                world.step_to_deadline();
            }
        }
        world
            .agent
            .end_read(world.now, plan, (ReadEnd::Done, Duration::ZERO), &mut out);
        world.take(out);
        world.rest();
        world.check("at rest");
    }
}

/// A log whose batches hold some forty records.
fn long_batches() -> LogConfig {
    LogConfig {
        file_bytes: 512 << 10,
        batch_bytes: 256 << 10,
        ..small_log(4 << 20)
    }
}

/// Everything due is done a step at a time, until nothing is left; the most by which `count` grew in one of them.
fn most_in_a_step(world: &mut World, count: impl Fn(&World) -> usize) -> usize {
    let (mut most, mut before) = (0, count(world));
    loop {
        let due = world.agent.next_deadline();
        if due.is_some_and(|at| at <= world.now) || !world.complete() {
            let Some(at) = due else { return most };
            world.fall_due(at);
        }
        let after = count(world);
        (most, before) = (most.max(after - before), after);
    }
}

/// A sync of four thousand tombstones was committed and reported under one hold of the store's lock: for up to ten
/// milliseconds no reader could begin.
#[test]
fn what_ends_together_is_reported_a_few_at_a_time() {
    let mut world = World::new(long_batches(), 3);
    world.rest();
    for key in 0..50 {
        world.order_offload(&[key], 1, 4000, key % 2 == 0);
    }
    let most = most_in_a_step(&mut world, |world| world.results.len());
    assert_eq!(world.results.len(), 50);
    assert!(world.results.values().all(Result::is_ok));
    // Those that were promised are committed, and those that were not are released.
    assert!((8..=32).contains(&most), "{most} ends of records in a step");
    world.remove_all((0..50).map(|key| (vec![key], 1)));
    let most = most_in_a_step(&mut world, |world| world.dropped.len());
    assert_eq!(world.dropped.len(), 50);
    assert!((8..=16).contains(&most), "{most} drops in a step");
    world.check("after all of it");
}

/// Forty promised records in one batch, up to the step that takes in their sync.
fn synced_and_not_reported() -> (World, usize) {
    let mut world = World::new(long_batches(), 4);
    world.rest();
    for key in 0..40 {
        world.put(&[key], 1, 4000);
    }
    while world.results.is_empty() {
        if !world.complete() {
            world.step_to_deadline();
        }
    }
    let reported = world.results.len();
    assert!(reported < 40, "{reported} in one step");
    (world, reported)
}

#[test]
fn what_a_sync_covered_counts_whatever_fails_before_it_is_reported() {
    let (mut world, reported) = synced_and_not_reported();
    // A batch of its own, in the same file.
    for key in 100..104 {
        world.put(&[key], 1, 64 << 10);
    }
    let device = DiskError::Device { errno: 5 };
    world.disk.fail_at(world.disk.completed(), device);
    assert!(world.complete(), "the next batch is on its way");
    assert_eq!(world.agent.stats().files_abandoned, 1);
    assert!(
        world.results.len() <= reported + 16,
        "{} after {reported}",
        world.results.len()
    );
    world.catch_up();
    assert_eq!(world.results.len(), 40, "without another write");
    assert!(world.results.values().all(Result::is_ok));
    world.rest();
    world.check("after the failure");
    world.reopen(Crash::LoseAll, "after a power cut");
    for key in 0..40 {
        assert_eq!(world.readable(&[key]), Some(1));
    }
}

/// A batch of which some records were reported and the others were not, when its sync fails: these are written again.
#[test]
fn a_failed_sync_loses_only_what_was_reported() {
    let mut world = World::new(long_batches(), 5);
    world.rest();
    let tickets: Vec<TicketId> = (0..40)
        .map(|key| world.order_offload(&[key], 1, 4000, key == 0))
        .collect();
    while world.results.is_empty() {
        if !world.complete() {
            world.step_to_deadline();
        }
    }
    assert!(world.results.len() < 39, "some wait for the next step");
    assert!(world.complete_sync(DiskError::Device { errno: 5 }));
    let lost = world.results.len();
    world.rest();
    assert!(tickets.iter().all(|it| world.results[it].is_ok()));
    let gone = (0..40).filter(|key| world.readable(&[*key]).is_none());
    assert_eq!(gone.count(), lost);
}

#[test]
fn a_log_stops_when_all_is_reported() {
    let (mut world, _) = synced_and_not_reported();
    world.give(AgentInput::Stop);
    assert_eq!(world.stopped, None);
    world.rest();
    assert_eq!(world.stopped, Some(0));
    assert_eq!(world.results.len(), 40);
    assert!(world.results.values().all(Result::is_ok));
}
