use proptest::prelude::*;

use super::*;
use crate::io::DiskError;

/// One step of a random run.
#[derive(Clone, Copy, Debug)]
enum Act {
    Put { key: u8, length: u16 },
    Remove { key: u8 },
    Read { key: u8 },
    Complete(u8),
    Wait(u8),
    Fail(u8),
    Crash(Crash),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0..10u8, 1..20_000u16).prop_map(|(key, length)| Act::Put { key, length }),
        3 => (0..10u8).prop_map(|key| Act::Remove { key }),
        2 => (0..10u8).prop_map(|key| Act::Read { key }),
        5 => (0..12u8).prop_map(Act::Complete),
        3 => (0..120u8).prop_map(Act::Wait),
        1 => (0..20u8).prop_map(Act::Fail),
        1 => prop_oneof![Just(Crash::Process), Just(Crash::LoseAll), Just(Crash::Tear)].prop_map(Act::Crash),
    ]
}

fn run(acts: &[Act], seed: u64) {
    let mut world = World::new(small_log(1 << 20), seed);
    world.disk.shuffle();
    world.drain();
    let mut version = 0;
    for (step, act) in acts.iter().enumerate() {
        match *act {
            Act::Put { key, length } => {
                version += 1;
                world.put(&[key], version, u64::from(length));
            }
            Act::Remove { key } => {
                let known = world.known.get(&vec![key]);
                if let Some(newest) = known.and_then(|known| known.ordered.keys().max().copied()) {
                    world.remove(&[key], newest);
                }
            }
            Act::Read { key } => {
                world.readable(&[key]);
            }
            Act::Complete(count) => {
                for _ in 0..count {
                    world.complete();
                }
            }
            Act::Wait(millis) => {
                world.now += Duration::from_millis(u64::from(millis));
                let mut out = Vec::new();
                world.agent.on_deadline(world.now, &mut out);
                world.take(out);
            }
            Act::Fail(after) => {
                let errors = [
                    DiskError::Full,
                    DiskError::ReadOnly,
                    DiskError::Device { errno: 5 },
                ];
                let error = errors[usize::from(after) % errors.len()];
                world
                    .disk
                    .fail_writing_at(world.disk.completed() + u64::from(after), error);
            }
            Act::Crash(crash) => {
                world.crash(crash);
                world.drain();
                if world.refused.take().is_some_and(|error| error.may_pass()) {
                    // The device failed while the log was being opened: it is opened again.
                    world.crash(Crash::Process);
                    world.drain();
                }
                world.check_opened(&format!("step {step}, {crash:?}"));
            }
        }
        world.check(&format!("step {step}, {act:?}"));
    }
    world.rest();
    world.check("at rest");
    assert!(world.offloads.is_empty(), "every offload is answered");
    let unanswered = world
        .known
        .values()
        .filter(|known| known.dropped < known.drop_ordered)
        .count();
    assert!(unanswered == 0 || world.crashed, "every drop is answered");
    assert_eq!(world.agent.arena().accesses(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Puts, drops, reads, failures and crashes in any order, against a master that remembers every report.
    #[test]
    fn no_run_loses_what_was_acknowledged_or_revives_what_was_dropped(
        acts in prop::collection::vec(act(), 1..160),
        seed in any::<u64>(),
    ) {
        run(&acts, seed);
    }
}
