//! Reads, writes and syncs that fail, and values that rot.

use super::*;

#[test]
fn a_flipped_bit_in_a_value_loses_that_record_and_no_other() {
    for by_promotion in [false, true] {
        let mut world = world_of(4, 5000);
        let (file, offset) = world.place(&[1], 1);
        world.disk.flip(file, offset + 4999, 3);
        if by_promotion {
            let ticket = world.promote(&[1], 1, 5000);
            let extent = world.free.pop().unwrap();
            world.give(AgentInput::Order(Order::Staged { ticket, extent }));
            world.complete();
            assert_eq!(world.promotions_failed[&ticket], PromotionFailure::Corrupt);
        } else {
            assert_eq!(world.read(&[1], 1), None);
        }
        assert!(world.lost.is_empty(), "a crash could still bring it back");
        world.rest();
        assert_eq!(world.lost, [entry(&[1], 1)]);
        let stats = world.agent.stats();
        assert_eq!((stats.records_lost, stats.records_corrupt), (1, 1));
        world.disk.flip(file, offset + 4999, 3);
        let opened = world.reopen(Crash::LoseAll, "after the loss");
        assert_eq!(
            (opened.records, world.announced.contains_key(&vec![1])),
            (3, false)
        );
    }
}

#[test]
fn a_value_that_a_working_device_cannot_read_is_lost() {
    let mut world = world_of(2, 5000);
    let (file, offset) = world.place(&[1], 1);
    world.disk.make_unreadable(file, offset + 4096);
    for _ in 0..world.log.read_tries_max {
        assert_eq!(world.lost, [], "{:?}", world.now);
        let ticket = world.promote(&[1], 1, 5000);
        let extent = world.free.pop().unwrap();
        world.give(AgentInput::Order(Order::Staged { ticket, extent }));
        world.rest();
        assert_eq!(world.promotions_failed[&ticket], PromotionFailure::Device);
        assert_eq!(world.readable(&[0]), Some(1));
        world.now += Duration::from_secs(10);
    }
    assert_eq!(world.lost, [entry(&[1], 1)]);
    let stats = world.agent.stats();
    assert_eq!((stats.records_lost, stats.records_corrupt), (1, 0));
    assert_eq!(world.agent.arena().accesses(), 0);
}

/// A process out of descriptors could not open a file for a moment. The record to be read was
/// reported as lost, and a tombstone made the loss permanent: after reads, after promotions, and
/// after reclaim, which gave up whole files.
#[test]
fn a_lack_of_descriptors_costs_a_read_and_never_the_record() {
    let error = DiskError::Resources { errno: 24 };
    let mut world = world_of(2, 5000);
    let (file, _) = world.place(&[1], 1);
    world.disk.refuse_reads(file, Some(error));
    let mut out = Vec::new();
    let plan = world
        .agent
        .begin_read(world.now, &entry(&[1], 1), &mut out)
        .unwrap();
    assert!(!world.agent.end_read(
        world.now,
        plan,
        (ReadEnd::Failed(error), Duration::ZERO),
        &mut out
    ));
    world.take(out);
    let ticket = world.promote(&[1], 1, 5000);
    let extent = world.free.pop().unwrap();
    world.give(AgentInput::Order(Order::Staged { ticket, extent }));
    world.rest();
    assert_eq!(world.promotions_failed[&ticket], PromotionFailure::Busy);
    assert_eq!(world.lost, []);
    world.disk.refuse_reads(file, None);
    assert_eq!(world.readable(&[1]), Some(1));
}

/// As above, for each read with which reclaim scans and copies.
#[test]
fn reclaim_waits_for_descriptors_and_loses_nothing() {
    let mut reads = 0;
    for nth in 0.. {
        let mut world = World::new(small_log(2 << 20), nth);
        for key in 0..22u8 {
            world.put(&[key], 1, 9000);
            world.rest();
        }
        // A failed sync makes the newest file suspect, so it is the file to be emptied.
        world.put(&[100], 1, 9000);
        world.give(AgentInput::Flush(1));
        world.disk.fail_at(world.disk.completed() + 1, EIO);
        world.complete();
        world.complete();
        world.disk.fail_read_at(
            world.disk.completed() + nth,
            DiskError::Resources { errno: 24 },
        );
        world.rest();
        let done = world.disk.is_read_failure_pending();
        reads += u32::from(!done);
        assert_eq!(
            (&world.lost, world.agent.stats().records_lost),
            (&vec![], 0),
            "read {nth}"
        );
        assert!(world.agent.stats().files_reclaimed > 0, "read {nth}");
        world.check(&format!("read {nth} failed"));
        if done {
            break;
        }
    }
    assert!(reads >= 4, "headers and records were read: {reads}");
}

#[test]
fn values_that_changed_places_are_both_detected() {
    let mut world = world_of(2, 4096);
    let (first, second) = (world.place(&[0], 1), world.place(&[1], 1));
    assert_eq!(first.0, second.0);
    let mut content = world.disk.content(first.0).to_vec();
    let (low, high) = content.split_at_mut(second.1 as usize);
    low[first.1 as usize..][..BLOCK].swap_with_slice(&mut high[..BLOCK]);
    world.disk.plant(first.0, content);
    assert_eq!((world.read(&[0], 1), world.read(&[1], 1)), (None, None));
    world.rest();
    assert_eq!(world.lost.len(), 2);
}

#[test]
fn a_full_disk_is_reported_refuses_and_is_tried_again() {
    for (name, error) in [
        ("full", DiskError::Full),
        ("read-only", DiskError::ReadOnly),
    ] {
        let mut world = World::new(small_log(2 << 20), 0);
        world.rest();
        assert!(world.state.unwrap().accepting, "{name}");
        let set = |world: &mut World, on: bool| match error {
            DiskError::Full => world.disk.set_full(on),
            _ => world.disk.set_read_only(on),
        };
        set(&mut world, true);
        let ticket = world.put(b"a", 1, 100);
        world.now += Duration::from_millis(100);
        world.give(AgentInput::Flush(1));
        world.drain();
        assert_eq!(world.results[&ticket], Err(TaskFailure::NoRoom), "{name}");
        assert!(!world.state.unwrap().accepting, "{name}");
        let refused = world.put(b"b", 1, 100);
        assert_eq!(world.results[&refused], Err(TaskFailure::NoRoom), "{name}");
        let tries = world.disk.completed();
        for _ in 0..40 {
            world.now = world.agent.next_deadline().expect("it is tried again");
            let mut out = Vec::new();
            world.agent.on_deadline(world.now, &mut out);
            world.take(out);
            world.drain();
        }
        assert!(
            world.disk.completed() - tries <= 80,
            "{name}: with back-off"
        );
        set(&mut world, false);
        world.rest();
        assert!(world.state.unwrap().accepting, "{name}");
        let ticket = world.put(b"c", 1, 100);
        world.rest();
        assert_eq!(world.results[&ticket], Ok(()), "{name}");
    }
}

#[test]
fn after_a_failed_sync_the_file_takes_nothing_more_and_what_was_acknowledged_is_moved() {
    let mut world = world_of(3, 3000);
    let (file, _) = world.place(&[0], 1);
    let ticket = world.put(&[3], 1, 3000);
    world.give(AgentInput::Flush(1));
    world.disk.fail_at(world.disk.completed() + 1, EIO);
    world.complete();
    world.complete();
    assert_eq!(
        world.results.get(&ticket),
        None,
        "it is kept for another try"
    );
    assert!(!world.state.unwrap().accepting);
    for key in 0..3u8 {
        assert_eq!(world.readable(&[key]), Some(1), "acknowledged before");
    }
    world.rest();
    assert!(world.state.unwrap().accepting);
    assert_eq!(world.results[&ticket], Ok(()));
    assert_eq!(world.agent.stats().files_abandoned, 1);
    assert!(world.disk.content(file).is_empty(), "evacuated and deleted");
    world.check("after the evacuation");
    let ticket = world.put(&[3], 2, 5000);
    world.rest();
    assert_eq!(world.results[&ticket], Ok(()));
    world.reopen(Crash::LoseAll, "after a failed sync");
    world.check_opened("after a failed sync");
}

/// Fails every single operation of a run in turn, with every kind of failure.
#[test]
fn whichever_operation_fails_nothing_acknowledged_is_lost_and_work_goes_on() {
    for error in [EIO, DiskError::Full, DiskError::ReadOnly] {
        for nth in 0.. {
            let mut world = World::new(small_log(2 << 20), nth);
            world.disk.fail_writing_at(nth, error);
            for key in 0..24u8 {
                world.put(&[key], 1, 9000);
                if key % 3 == 0 {
                    world.rest();
                }
                if key > 12 {
                    world.remove(&[key - 12], 1);
                }
            }
            world.rest();
            let moment = format!("{error:?} at {nth}");
            world.check(&moment);
            assert!(
                world
                    .known
                    .values()
                    .all(|known| known.dropped >= known.drop_ordered),
                "{moment}"
            );
            let failed = world
                .results
                .values()
                .filter(|result| result.is_err())
                .count();
            let done = world.disk.is_failure_pending();
            let ticket = world.put(b"last", 1, 100);
            world.rest();
            assert!(
                done || world.results[&ticket] == Ok(()),
                "{moment}: {:?}",
                world.state
            );
            world.crash(Crash::Tear);
            world.rest();
            world.check_opened(&moment);
            if done {
                assert_eq!(failed, 0, "nothing was to fail in the last run");
                break;
            }
        }
    }
}

/// Reclaim copies only records whose bytes are right, and reports a wrong one as lost. No test
/// failed when reclaim did not compare checksums.
#[test]
fn reclaim_loses_a_record_that_rotted_and_copies_the_others() {
    let mut world = world_of(10, 9000);
    let rotten = [8];
    let (file, offset) = world.place(&rotten, 1);
    let others = (0..10u8).filter(|key| *key != rotten[0] && world.place(&[*key], 1).0 == file);
    let others: Vec<u8> = others.collect();
    // One copy of a header is gone: the next opening has the file emptied.
    let batches = world.batches(file);
    world.rotten = true;
    world.rot_headers(file, &batches[..1], false);
    world.disk.flip(file, offset + 4999, 3);
    world.reopen(Crash::LoseAll, "with a rotten record");
    assert!(!others.is_empty() && world.disk.content(file).is_empty());
    assert_eq!(world.lost, [entry(&rotten, 1)]);
    assert_eq!(world.agent.stats().copied_bytes, 9000 * others.len() as u64);
    for key in others {
        assert_eq!(world.readable(&[key]), Some(1));
    }
    world.check_opened("afterwards");
}
