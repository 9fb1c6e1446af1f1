//! A device that answers everything with errors for a time, and then works again.

use super::*;

/// A device failed for a second while a file was being emptied. The errors were taken for bit rot:
/// all records of the file were reported as lost, and the intact file was deleted.
#[test]
fn an_outage_while_a_file_is_emptied_costs_no_record() {
    for span in [0.1, 1.0, 60.0, 3600.0].map(Duration::from_secs_f64) {
        for after in 0..6 {
            let mut world = draining(after);
            world.disk.set_outage(Some(EIO));
            world.run_for(span);
            let moment = format!("away for {span:?} after {after} operations");
            assert_eq!(world.agent.stats().records_lost, 0, "{moment}");
            world.disk.set_outage(None);
            world.rest();
            assert_eq!(
                (&world.lost, world.agent.stats().records_lost),
                (&vec![], 0)
            );
            assert!(world.agent.stats().files_reclaimed > 0, "{moment}");
            world.check(&moment);
        }
    }
}

/// As above, for readers: each get during an outage cost the record that it read.
#[test]
fn readers_during_an_outage_cost_no_record() {
    let mut world = world_of(2, 5000);
    for _ in 0..1000 {
        world.fail_to_read(&[1], 1, EIO);
        world.now += Duration::from_millis(10);
    }
    world.rest();
    assert_eq!(world.lost, []);
    assert_eq!(world.readable(&[1]), Some(1));
}

/// Many readers fail at one place within a short time: that counts as one try.
#[test]
fn reads_that_fail_together_are_one_try() {
    let mut world = world_of(2, 5000);
    for _ in 0..1000 {
        world.fail_to_read(&[1], 1, EIO);
        assert_eq!(world.readable(&[0]), Some(1), "the device works elsewhere");
    }
    world.rest();
    assert_eq!(world.lost, []);
    assert_eq!(world.readable(&[1]), Some(1));
}

/// A place that a working device cannot read must not keep a file, and with it all room, for ever.
#[test]
fn places_that_a_working_device_cannot_read_are_given_up_and_the_file_is_emptied() {
    for all in [false, true] {
        let mut world = draining(0);
        let (file, offset) = world.place(&[20], 1);
        if all {
            world.disk.refuse_reads(file, Some(EIO));
        } else {
            world.disk.make_unreadable(file, offset);
        }
        for _ in 0..1000 {
            world.run_for(Duration::from_secs(10));
            assert_eq!(world.readable(&[0]), Some(1), "the device works elsewhere");
        }
        assert!(world.disk.content(file).is_empty(), "all: {all}");
        let lost = world.agent.stats().records_lost;
        assert!(
            if all { lost > 1 } else { lost == 1 },
            "all: {all}, lost {lost}"
        );
    }
}

/// After one failed write every queued record was answered as one that the device may hold, and the
/// records of the failed batch were given up although the device worked again a moment later.
#[test]
fn a_failed_write_costs_nothing_that_a_short_outage_lets_be_written() {
    for nth in 0..2 {
        let mut world = world_of(1, 5000);
        // Two batches are written at a time; the others wait.
        let first = world.put(&[20], 1, 9000);
        world.give(AgentInput::Flush(1));
        let written = [first, world.put(&[21], 1, 9000)];
        let waiting: Vec<TicketId> = (1..8).map(|key| world.put(&[key], 1, 200)).collect();
        (0..nth).for_each(|_| assert!(world.complete()));
        world.disk.set_outage(Some(EIO));
        world.run_for(Duration::from_secs(1));
        for ticket in &written {
            assert_eq!(world.results.get(ticket), None, "{nth}: kept to be tried");
        }
        // When the first is written, the others are sent while it is synced.
        let refused = (nth == 0).then_some(Err(TaskFailure::Failing));
        for ticket in &waiting {
            assert_eq!(world.results.get(ticket).copied(), refused, "{nth}");
        }
        let state = world.state.unwrap();
        assert!(!state.accepting && state.failing, "{state:?}");
        world.disk.set_outage(None);
        world.rest();
        for ticket in &written {
            assert_eq!(world.results[ticket], Ok(()), "{nth}");
        }
        for key in 1..8 {
            let again = world.put(&[key], 1, 200);
            world.rest();
            assert_eq!(world.results[&again], Ok(()), "offered again: {key}");
        }
        world.check("after the outage");
        world.reopen(Crash::LoseAll, "after the outage");
        assert_eq!(world.check_opened("after the outage").records, 10);
    }
}

/// A file system that was mounted read-only after errors, as ext4 does it, passed for a full one.
#[test]
fn a_log_says_whether_its_device_fails_or_is_full() {
    let check = |error: DiskError, failing: bool| {
        let mut world = world_of(1, 5000);
        world.disk.set_outage(Some(error));
        world.put(&[1], 1, 9000);
        world.give(AgentInput::Flush(1));
        world.run_for(Duration::from_secs(1));
        let state = world.state.unwrap();
        let said = (state.accepting, state.failing);
        assert_eq!(said, (false, failing), "{error:?}");
    };
    check(EIO, true);
    check(DiskError::ReadOnly, true);
    check(DiskError::Full, false);
}

/// However long an outage lasts, and whenever it begins: memory is not held for long, nothing
/// acknowledged is lost, removals are carried out in the end, and records are accepted again.
#[test]
fn a_log_outlives_any_outage() {
    for (nth, span) in (0..30)
        .step_by(3)
        .flat_map(|nth| [1, 30, 4000].map(|seconds| (nth, seconds)))
    {
        let moment = format!("away for {span} s after {nth} operations");
        let mut world = World::new(small_log(2 << 20), nth);
        for key in 0..40u8 {
            world.put(&[key], 1, 9000);
            if key % 3 == 0 {
                world.rest();
            }
        }
        for key in 0..20u8 {
            world.remove(&[key * 2], 1);
            world.put(&[100 + key], 1, 5000);
        }
        (0..nth).for_each(|_| _ = world.complete());
        world.disk.set_outage(Some(EIO));
        world.run_for(Duration::from_secs(span));
        if Duration::from_secs(span) > world.log.retry_delay_max * 2 {
            assert_eq!(world.offloads.len(), 0, "{moment}: sources are held");
        }
        world.disk.set_outage(None);
        world.rest();
        assert_eq!(world.agent.stats().records_lost, 0, "{moment}");
        world.check(&moment);
        let carried_out = |known: &Known| known.dropped >= known.drop_ordered;
        assert!(world.known.values().all(carried_out), "{moment}");
        let ticket = world.put(b"last", 1, 100);
        world.rest();
        assert_eq!(
            world.results[&ticket],
            Ok(()),
            "{moment}: {:?}",
            world.state
        );
        world.crash(Crash::Tear);
        world.rest();
        world.check_opened(&moment);
    }
}

/// Every second sync failed for a while. Each file was abandoned with records in it, until there
/// were more files than the capacity allows: the file being emptied waited for room, and all others
/// waited for it. The log accepted records and tombstones, and never wrote one again.
#[test]
fn files_that_are_abandoned_one_after_the_other_leave_room_to_empty_them() {
    for (one_in, keys) in [(2, 30), (2, 32), (3, 40)] {
        let log = LogConfig {
            file_bytes: 1 << 20,
            ..small_log(4 << 20)
        };
        let mut world = World::new(log, one_in);
        for key in 0..keys {
            world.put(&[key], 1, 9000);
            world.rest();
        }
        let (mut syncs, mut failed) = (one_in - 1, 0);
        for key in 0..20 {
            world.remove(&[key], 1);
        }
        for _ in 0..40 {
            while !world.disk.is_idle() {
                syncs += u64::from(world.disk.next_is_sync());
                if world.disk.next_is_sync() && syncs % one_in == 0 {
                    failed += 1;
                    world.disk.fail_at(world.disk.completed(), EIO);
                }
                world.complete();
            }
            let Some(at) = world.agent.next_deadline() else {
                break;
            };
            world.now = world.now.max(at);
            let mut out = Vec::new();
            world.agent.on_deadline(world.now, &mut out);
            world.take(out);
        }
        let moment = format!("one sync in {one_in} fails, {failed} did");
        assert!(failed >= 5, "{moment}");
        world.rest();
        world.check(&moment);
        let carried_out = |known: &Known| known.dropped >= known.drop_ordered;
        assert!(world.known.values().all(carried_out), "{moment}");
        let ticket = world.put(b"last", 1, 100);
        world.rest();
        assert_eq!(world.results[&ticket], Ok(()), "{moment}");
        assert!(
            world.agent.stats().file_bytes <= world.log.capacity,
            "{moment}"
        );
    }
}

/// A log whose newest file is to be emptied because a sync of it failed, `after` further operations.
fn draining(after: u32) -> World {
    let mut world = World::new(small_log(2 << 20), u64::from(after));
    for key in 0..22u8 {
        world.put(&[key], 1, 9000);
        world.rest();
    }
    world.put(&[100], 1, 9000);
    world.give(AgentInput::Flush(1));
    world.disk.fail_at(world.disk.completed() + 1, EIO);
    for _ in 0..2 + after {
        world.complete();
    }
    world
}
