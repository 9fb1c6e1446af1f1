//! A device that answers everything with errors for a time, and then works again.

use super::*;

/// A device was away for a second while a file was being emptied. The errors were taken for rot: all records of the
/// file were reported as lost, and the file, healthy, was deleted.
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

/// As above, for readers: each get of an outage cost the record that it wanted.
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

/// Many readers meet the same short disturbance of one place: they are one try.
#[test]
fn readers_that_come_together_are_one_try() {
    let mut world = world_of(2, 5000);
    for _ in 0..1000 {
        world.fail_to_read(&[1], 1, EIO);
        assert_eq!(world.readable(&[0]), Some(1), "the device works elsewhere");
    }
    world.rest();
    assert_eq!(world.lost, []);
    assert_eq!(world.readable(&[1]), Some(1));
}

/// What a working device cannot read must not keep a file, and with it all room, for ever.
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
