use super::*;
use crate::arena::{Access, Stale};

fn world() -> World {
    let mut world = World::new(small_log(2 << 20), 0);
    world.rest();
    world
}

/// A world in which one record of `length` bytes is durable.
fn world_with(key: &[u8], length: u64) -> World {
    let mut world = world();
    let ticket = world.put(key, 1, length);
    world.rest();
    assert_eq!(world.results[&ticket], Ok(()));
    world
}

impl World {
    /// Gives the promotion `ticket` an extent, and returns it.
    fn stage(&mut self, ticket: TicketId) -> ExtentRef {
        let at = self
            .stages
            .iter()
            .position(|stage| stage.0 == ticket)
            .expect("the promotion asks for an extent");
        self.stages.remove(at);
        let extent = self.free.pop().expect("there are free extents");
        self.give(AgentInput::Order(Order::Staged { ticket, extent }));
        extent
    }

    fn fence(&mut self, extent: ExtentRef) {
        self.give(AgentInput::Order(Order::Fence(vec![extent])));
    }
}

#[test]
fn a_lone_record_is_written_100_ms_after_it_came() {
    let mut world = world();
    let first = world.now;
    let ticket = world.put(b"a", 1, 100);
    world.drain();
    assert_eq!(
        world.agent.next_deadline(),
        Some(first + Duration::from_millis(100))
    );
    world.now = first + Duration::from_millis(99);
    world.put(b"b", 1, 100);
    world.drain();
    assert!(world.results.is_empty());
    world.rest();
    assert_eq!(world.results[&ticket], Ok(()));
    let batch = first + Duration::from_millis(100);
    assert!(
        world.now >= batch && world.now < batch + Duration::from_millis(5),
        "{}",
        world.now
    );
    assert_eq!(
        world.results.len(),
        2,
        "the later record shares the batch of the first"
    );
}

#[test]
fn a_full_batch_is_written_at_once() {
    let mut world = world();
    let before = world.now;
    for key in 0..8u8 {
        world.put(&[key], 1, 4096);
    }
    world.drain();
    assert_eq!(world.results.len(), 8);
    assert!(world.now < before + Duration::from_millis(1));
}

#[test]
fn a_flush_writes_what_is_queued_and_is_answered_when_it_is_durable() {
    let mut world = world();
    world.give(AgentInput::Flush(1));
    assert!(world.flushed.contains(&1), "nothing to be done");
    let ticket = world.put(b"a", 1, 100);
    world.give(AgentInput::Flush(2));
    assert!(!world.flushed.contains(&2));
    world.drain();
    assert!(world.flushed.contains(&2));
    assert_eq!(world.results[&ticket], Ok(()));
}

#[test]
fn stopping_writes_what_is_queued_and_takes_nothing_new() {
    let mut world = world();
    let ticket = world.put(b"a", 1, 100);
    world.remove(b"b", 1);
    world.give(AgentInput::Stop);
    assert_eq!(world.stopped, None);
    let late = world.put(b"c", 1, 100);
    assert_eq!(world.results[&late], Err(TaskFailure::Cancelled));
    world.drain();
    assert_eq!(world.stopped, Some(0));
    assert_eq!(world.results[&ticket], Ok(()));
    assert!(world.disk.is_idle());
}

#[test]
fn a_record_that_is_dropped_while_queued_is_never_written() {
    let mut world = world();
    let ticket = world.put(b"a", 1, 100);
    world.remove(b"a", 1);
    assert_eq!(world.results[&ticket], Err(TaskFailure::Cancelled));
    assert_eq!(world.dropped, [entry(b"a", 1)]);
    world.rest();
    assert_eq!(world.agent.stats().records_written, 0);
    assert!(world.disk.files().is_empty(), "not even a file was needed");
}

#[test]
fn a_record_that_is_dropped_while_it_is_written_is_dead_when_it_is_durable() {
    let mut world = world();
    let ticket = world.put(b"a", 1, 100);
    world.give(AgentInput::Flush(1));
    while world.disk.files().is_empty() {
        world.complete();
    }
    assert!(!world.results.contains_key(&ticket));
    world.remove(b"a", 1);
    assert!(world.dropped.is_empty(), "a crash could bring it back");
    world.rest();
    assert_eq!(world.results[&ticket], Err(TaskFailure::Cancelled));
    assert_eq!(world.dropped, [entry(b"a", 1)]);
    world.crash(Crash::Process);
    world.rest();
    world.check_opened("after the drop");
    assert!(world.announced.is_empty());
}

#[test]
fn a_drop_of_what_the_device_never_held_is_answered_at_once() {
    let mut world = world();
    world.remove(b"a", 7);
    assert_eq!(world.dropped, [entry(b"a", 7)]);
    assert!(world.disk.is_idle());
}

#[test]
fn a_drop_that_comes_before_the_log_is_open_waits_for_it() {
    let mut world = world_with(b"a", 100);
    world.crash(Crash::LoseAll);
    world.remove(b"a", 1);
    assert!(world.dropped.is_empty());
    world.rest();
    assert_eq!(world.dropped, [entry(b"a", 1)]);
    assert_eq!(world.readable(b"a"), None);
}

/// Records are announced while the log is being opened. A promotion of one that came before the end was answered as if the
/// record were missing: the master forgot it, and nothing ever dropped it.
#[test]
fn a_promotion_that_comes_before_the_log_is_open_is_refused_as_busy() {
    let mut world = world_with(b"a", 100);
    world.crash(Crash::LoseAll);
    let ticket = world.promote(b"a", 1, 100);
    assert_eq!(world.promotions_failed[&ticket], PromotionFailure::Busy);
    world.rest();
    assert_eq!(world.readable(b"a"), Some(1));
}

#[test]
fn an_older_version_is_not_written_over_a_newer_one() {
    let mut world = world();
    world.put(b"a", 5, 100);
    world.rest();
    let late = world.put(b"a", 4, 100);
    assert_eq!(world.results[&late], Err(TaskFailure::Cancelled));
    let again = world.put(b"a", 5, 100);
    assert_eq!(world.results[&again], Ok(()), "it is there already");
    world.remove(b"a", 5);
    world.rest();
    let dead = world.put(b"a", 5, 100);
    assert_eq!(
        world.results[&dead],
        Err(TaskFailure::Cancelled),
        "its tombstone is kept"
    );
}

/// A removed segment accepts no access; those that began before come to their end.
#[test]
fn extents_of_a_removed_segment_are_stale() {
    let mut world = world_with(b"a", 100);
    let promotion = world.promote(b"a", 1, 100);
    let queued = world.put(b"b", 1, 100);
    let extent = *world.free.last().unwrap();
    let access = world.agent.begin_access(extent, Access::Write).unwrap();
    world.agent.remove_segment(MEMORY);
    assert!(matches!(
        world.agent.begin_access(extent, Access::Read),
        Err(Stale::Segment { segment: MEMORY })
    ));
    let mut out = Vec::new();
    assert!(
        !world.agent.end_access(access, &mut out),
        "its bytes do not count"
    );
    world.stage(promotion);
    assert_eq!(world.promotions_failed[&promotion], PromotionFailure::Stale);
    let late = world.put(b"c", 1, 100);
    assert_eq!(world.results[&late], Err(TaskFailure::Stale));
    world.rest();
    assert_eq!(world.results[&queued], Ok(()), "it began before");
}

#[test]
fn a_source_that_is_not_alive_is_stale() {
    let mut world = world();
    let source = *world.free.last().unwrap();
    world.fence(source);
    let ticket = world.put(b"a", 1, 100);
    assert_eq!(world.results[&ticket], Err(TaskFailure::Stale));
}

#[test]
fn a_fence_ends_a_queued_offload_and_waits_for_one_that_is_written() {
    let mut world = world();
    let queued = world.put(b"a", 1, 100);
    let source = world.offloads[&queued].1;
    world.fence(source);
    assert_eq!(world.results[&queued], Err(TaskFailure::Stale));
    assert_eq!(world.fenced, [source]);

    let written = world.put(b"b", 1, 100);
    let source = world.offloads[&written].1;
    world.give(AgentInput::Flush(1));
    while world.disk.files().is_empty() {
        world.complete();
    }
    world.fence(source);
    assert_eq!(world.fenced.len(), 1, "the device still reads the extent");
    world.drain();
    assert_eq!(world.fenced[1..], [source]);
    assert_eq!(world.results[&written], Ok(()));
}

/// A value longer than a file was refused as if the SSD were full, and the master offered it nothing for a while.
#[test]
fn values_too_long_for_a_file_are_refused_as_too_long() {
    let mut world = world();
    let file_bytes = world.log.file_bytes_used();
    let entry = entry(b"a", 1);
    for (bytes, failure) in [(0, TaskFailure::Stale), (file_bytes, TaskFailure::TooLarge)] {
        let source = ExtentRef {
            bytes: file_bytes,
            ..world.free[0]
        };
        let ticket = world.ticket();
        world
            .offloads
            .insert(ticket, (entry.clone(), world.free[0], true));
        let task = OffloadTask {
            ticket,
            entry: entry.clone(),
            bytes,
            checksum: Checksum(1),
            source,
            promised: true,
        };
        world.give(AgentInput::Order(Order::Offload(vec![task])));
        assert_eq!(world.results[&ticket], Err(failure), "{bytes} bytes");
    }
    let longest = file_bytes - 4096 - 2 * 4096;
    let ticket = world.put(b"b", 1, longest.min(64 << 10));
    world.rest();
    assert_eq!(world.results[&ticket], Ok(()));
}

#[test]
fn a_promotion_puts_the_right_bytes_into_the_staged_extent() {
    let mut world = world_with(b"a", 5000);
    let ticket = world.promote(b"a", 1, 5000);
    assert_eq!(world.stages, [(ticket, 5000)]);
    let extent = world.stage(ticket);
    assert!(matches!(
        world.agent.begin_access(extent, Access::Read),
        Err(Stale::Busy { .. })
    ));
    world.drain();
    assert_eq!(world.promoted[&ticket], extent);
    assert_eq!(
        world.bytes.read(extent, 5000),
        value_of(&entry(b"a", 1), 5000)
    );
    assert!(world.agent.begin_access(extent, Access::Read).is_ok());
}

#[test]
fn impossible_promotions_are_refused_with_the_reason() {
    let check =
        |what: &str, failure: PromotionFailure, promote: &dyn Fn(&mut World) -> TicketId| {
            let mut world = world_with(b"a", 100);
            let ticket = promote(&mut world);
            assert_eq!(
                world.promotions_failed.get(&ticket),
                Some(&failure),
                "{what}"
            );
            assert!(world.stages.is_empty(), "{what}");
        };
    check("no bytes", PromotionFailure::Size, &|world| {
        world.promote(b"a", 1, 0)
    });
    check("another length", PromotionFailure::Size, &|world| {
        world.promote(b"a", 1, 99)
    });
    check("another version", PromotionFailure::Missing, &|world| {
        world.promote(b"a", 2, 100)
    });
    check("another key", PromotionFailure::Missing, &|world| {
        world.promote(b"b", 1, 100)
    });
    check("stopping", PromotionFailure::Busy, &|world| {
        world.give(AgentInput::Stop);
        world.promote(b"a", 1, 100)
    });
    check("dead extent", PromotionFailure::Stale, &|world| {
        let ticket = world.promote(b"a", 1, 100);
        let extent = *world.free.last().unwrap();
        world.fence(extent);
        world.stage(ticket);
        ticket
    });
    check("dropped meanwhile", PromotionFailure::Missing, &|world| {
        let ticket = world.promote(b"a", 1, 100);
        world.remove(b"a", 1);
        world.stage(ticket);
        ticket
    });
}

#[test]
fn a_promotion_whose_extent_dies_under_the_read_is_stale_and_then_fenced() {
    let mut world = world_with(b"a", 100);
    let ticket = world.promote(b"a", 1, 100);
    let extent = world.stage(ticket);
    world.fence(extent);
    assert!(world.fenced.is_empty(), "bytes may still arrive");
    world.drain();
    assert_eq!(world.fenced, [extent]);
    assert_eq!(world.promotions_failed[&ticket], PromotionFailure::Stale);
    assert!(world.promoted.is_empty());
}

#[test]
fn a_cancelled_promotion_is_not_reported() {
    for moment in 0..3 {
        let mut world = world_with(b"a", 100);
        if moment == 0 {
            world.config.promotions_in_flight_max = 1;
            world.crash(Crash::LoseAll);
            world.rest();
            world.promote(b"a", 1, 100);
            world.stages.clear();
        }
        let ticket = world.promote(b"a", 1, 100);
        assert_eq!(world.stages.is_empty(), moment == 0);
        if moment == 2 {
            let extent = world.stage(ticket);
            world.give(AgentInput::Order(Order::Cancel { ticket }));
            world.fence(extent);
            assert!(world.fenced.is_empty());
            world.drain();
            assert_eq!(world.fenced, [extent]);
        } else {
            world.give(AgentInput::Order(Order::Cancel { ticket }));
            let extent = world.free[0];
            world.give(AgentInput::Order(Order::Staged { ticket, extent }));
            world.fence(extent);
            assert_eq!(world.fenced, [extent], "it was never touched");
        }
        world.rest();
        assert!(
            world.promoted.is_empty() && world.promotions_failed.is_empty(),
            "moment {moment}"
        );
    }
}

/// Each cancellation walked the whole queue, so that withdrawing 50,000 promotions took the square of that.
#[test]
fn a_cancelled_promotion_leaves_its_place_in_the_queue_to_the_others() {
    let mut config = agent_config();
    config.promotions_in_flight_max = 1;
    config.promotions_queued_max = 3;
    let mut world = World::with(small_log(2 << 20), config, 0);
    world.rest();
    for key in 0..5u8 {
        world.put(&[key], 1, 100);
    }
    world.rest();
    let mut tickets: Vec<TicketId> = (0..4u8).map(|key| world.promote(&[key], 1, 100)).collect();
    let ticket = tickets.remove(2);
    world.give(AgentInput::Order(Order::Cancel { ticket }));
    tickets.push(world.promote(&[4], 1, 100));
    assert!(world.promotions_failed.is_empty(), "the place is free");
    for ticket in tickets {
        let staged: Vec<_> = world.stages.iter().map(|stage| stage.0).collect();
        assert_eq!(staged, [ticket], "one at a time, in order");
        world.stage(ticket);
        world.drain();
        assert!(world.promoted.contains_key(&ticket));
    }
    assert!(world.stages.is_empty() && world.promoted.len() == 4);
}

/// An order that came again, while its promotion was staged or read, was counted again: the bytes were never subtracted,
/// and once they made up the limit nothing was promoted any more.
#[test]
fn an_order_to_promote_that_comes_again_changes_nothing() {
    for moment in 0..3 {
        let mut config = agent_config();
        config.promotions_in_flight_max = 2;
        config.promotion_bytes_in_flight_max = 9000;
        let mut world = World::with(small_log(2 << 20), config, 0);
        world.rest();
        for key in 0..4u8 {
            world.put(&[key], 1, 4096);
        }
        world.rest();
        let mut tickets: Vec<TicketId> = (0..4).map(|key| world.promote(&[key], 1, 4096)).collect();
        let again = if moment == 0 { tickets[3] } else { tickets[0] };
        if moment == 2 {
            world.stage(again);
            tickets.remove(0);
        }
        let entry = entry(&[if moment == 0 { 3 } else { 0 }], 1);
        let checksum = Checksum::of(&value_of(&entry, 4096));
        let task = PromoteTask {
            ticket: again,
            entry,
            bytes: 4096,
            checksum,
        };
        for _ in 0..3 {
            world.give(AgentInput::Order(Order::Promote(vec![task.clone()])));
        }
        world.drain();
        for ticket in tickets {
            world.stage(ticket);
            world.drain();
        }
        assert!(world.stages.is_empty(), "{moment}: each is staged once");
        assert_eq!(world.promoted.len(), 4, "{moment}");
    }
}

#[test]
fn promotions_are_begun_in_order_and_no_more_than_allowed() {
    let mut config = agent_config();
    config.promotions_in_flight_max = 2;
    config.promotions_queued_max = 3;
    let mut world = World::with(small_log(2 << 20), config, 0);
    world.rest();
    for key in 0..6u8 {
        world.put(&[key], 1, 100);
    }
    world.rest();
    let tickets: Vec<TicketId> = (0..6u8).map(|key| world.promote(&[key], 1, 100)).collect();
    assert_eq!(
        world.stages.iter().map(|stage| stage.0).collect::<Vec<_>>(),
        tickets[..2]
    );
    assert_eq!(world.promotions_failed[&tickets[5]], PromotionFailure::Busy);
    world.stage(tickets[0]);
    assert_eq!(world.stages.len(), 1, "a read is in flight still");
    world.drain();
    assert!(world.promoted.contains_key(&tickets[0]));
    assert_eq!(
        world.stages.iter().map(|stage| stage.0).collect::<Vec<_>>(),
        tickets[1..3]
    );
}

/// A promotion that was refused its extent kept its bytes counted: after some of them no other was begun while one was
/// under way.
#[test]
fn a_promotion_without_a_fit_extent_gives_its_bytes_back() {
    let mut config = agent_config();
    config.promotion_bytes_in_flight_max = 200;
    let mut world = World::with(small_log(2 << 20), config, 0);
    world.rest();
    for key in 0..5u8 {
        world.put(&[key], 1, 100);
    }
    world.rest();
    for key in 0..3u8 {
        let ticket = world.promote(&[key], 1, 100);
        let dead = *world.free.last().unwrap();
        world.fence(dead);
        world.stage(ticket);
        assert_eq!(world.promotions_failed[&ticket], PromotionFailure::Stale);
    }
    world.promote(&[3], 1, 100);
    world.promote(&[4], 1, 100);
    assert_eq!(world.stages.len(), 2, "both fit the bytes in flight");
}

#[test]
fn a_segment_that_was_taken_back_is_not_accessed_any_more() {
    let mut world = world();
    let extent = *world.free.last().unwrap();
    assert!(world.agent.begin_access(extent, Access::Read).is_ok());
    world.agent.remove_segment(extent.segment);
    assert!(world.agent.begin_access(extent, Access::Read).is_err());
}

/// The state went out after every input, though nothing in it had changed.
#[test]
fn a_state_that_stays_alike_is_reported_once() {
    let mut world = world();
    assert_eq!(world.states, 1);
    for key in 0..20u8 {
        world.put(&[key], 1, 100);
        world.rest();
    }
    assert_eq!(world.states, 1);
}

#[test]
fn a_file_stays_while_it_is_read() {
    let mut world = world_with(b"a", 100);
    let mut out = Vec::new();
    let plan = world
        .agent
        .begin_read(world.now, &entry(b"a", 1), &mut out)
        .unwrap();
    for key in 0..40u8 {
        world.put(&[key], 1, 8000);
    }
    world.rest();
    world.remove(b"a", 1);
    world.rest();
    assert_eq!(world.dropped, [entry(b"a", 1)]);
    let value = value_of(&entry(b"a", 1), 100);
    assert_eq!(
        world.disk.content(plan.file)[plan.offset as usize..][..100],
        value
    );
    for key in 0..40u8 {
        world.remove(&[key], 1);
    }
    world.rest();
    assert!(!world.disk.content(plan.file).is_empty());
    assert!(world.agent.end_read(
        world.now,
        plan,
        (ReadEnd::Checked(Checksum::of(&value)), Duration::ZERO),
        &mut out
    ));
    world.take(out);
    world.rest();
    assert!(
        world.disk.content(plan.file).is_empty(),
        "nothing holds it any more"
    );
}

#[test]
fn a_reader_who_finds_nothing_has_the_record_reported_as_lost() {
    let mut world = world();
    assert_eq!(world.read(b"a", 3), None);
    assert_eq!(world.lost, [entry(b"a", 3)]);
}

#[test]
fn a_node_without_a_log_refuses_what_needs_one() {
    let mut world = World::new(small_log(2 << 20), 0);
    world.agent = Agent::new(agent_config());
    let ticket = world.put(b"a", 1, 100);
    assert_eq!(world.results[&ticket], Err(TaskFailure::Stale));
    world.remove(b"a", 1);
    assert_eq!(world.dropped.len(), 1);
    let ticket = world.promote(b"a", 1, 100);
    assert_eq!(world.promotions_failed[&ticket], PromotionFailure::Missing);
    world.give(AgentInput::Flush(1));
    assert!(world.flushed.contains(&1));
    world.give(AgentInput::Stop);
    assert_eq!(world.stopped, Some(0));
}

#[test]
fn tenants_with_equal_keys_have_records_of_their_own() {
    let mut world = world_with(b"a", 100);
    let theirs = DiskEntry {
        tenant: Tenant::new("acme").unwrap(),
        ..entry(b"a", 1)
    };
    assert!(!world.agent.holds(&theirs));
    world.give(AgentInput::Order(Order::Drop(vec![theirs])));
    world.rest();
    assert_eq!(world.readable(b"a"), Some(1));
}

/// A tombstone was forgotten when the file of the last record that it kept dead was deleted, although a newer record
/// that it also covered was just being written: that one was live when it became durable, after its drop.
#[test]
fn a_tombstone_outlives_the_files_while_a_record_that_it_covers_is_being_written() {
    let mut world = world_with(b"k", 100);
    for key in 0..8u8 {
        world.put(&[key], 1, 16_000);
        world.rest();
    }
    world.remove(b"k", 1);
    world.rest();
    for key in 0..8u8 {
        world.remove(&[key], 1);
    }
    while world.agent.stats().files_reclaimed == 0 {
        assert!(world.complete(), "a file of dead records is reclaimed");
    }
    let written = world.put(b"k", 2, 100);
    world.give(AgentInput::Flush(1));
    world.remove(b"k", 2);
    assert!(!world.results.contains_key(&written) && !world.dropped.contains(&entry(b"k", 2)));
    world.rest();
    assert!(world.dropped.contains(&entry(b"k", 2)));
    assert_eq!(world.readable(b"k"), None);
}
