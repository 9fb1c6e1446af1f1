//! Files that are made out of deleted ones: behind what was written to them are headers and values of other files.

use super::*;

/// Puts values and drops those of the round before, round after round, until as many files were made out of deleted ones;
/// `between` is done after each round.
fn churn(world: &mut World, reused: u64, mut between: impl FnMut(&mut World, u64)) {
    let mut made = 0;
    for round in 1..200u64 {
        let key = |round: u64, nth: u8| vec![round as u8, nth];
        // No two files end at the same place.
        let length = 3000 + round * 1517 % 12_000;
        for nth in 0..3 {
            world.put(&key(round, nth), round, length);
        }
        world.rest();
        if round > 1 {
            world.remove_all((0..3).map(|nth| (key(round - 1, nth), round - 1)));
            world.rest();
        }
        let before = world.agent.stats().files_reused;
        between(world, round);
        // A process that begins counts anew.
        if world.agent.stats().files_reused < before {
            made += before;
        }
        if made + world.agent.stats().files_reused >= reused {
            return;
        }
    }
    panic!("{made} files were made out of deleted ones, not {reused}");
}

/// What a deleted file held was dropped, and its tombstones went with it: where its bytes are found behind the batches of
/// another file they count for nothing, whatever ended the process.
#[test]
pub(super) fn what_a_deleted_file_held_does_not_come_back_in_the_one_made_of_it() {
    for (seed, crash) in [(1, Crash::Process), (2, Crash::LoseAll), (3, Crash::Tear)] {
        let mut world = World::new(small_log(1 << 20), seed);
        let mut met_old_bytes = 0;
        churn(&mut world, 12, |world, round| {
            if round % 7 != 0 {
                return;
            }
            let opened = world.reopen(crash, &format!("{crash:?}, round {round}"));
            met_old_bytes += opened.torn;
            world.check("after an opening");
        });
        assert!(met_old_bytes > 0, "{crash:?}: no opening met old bytes");
    }
}

/// Old bytes behind the last batch of a file look like a batch that a crash tore: each opening had every such file emptied
/// first, and kept every tombstone until then.
#[test]
pub(super) fn a_log_that_was_stopped_opens_without_doubt() {
    let mut world = World::new(small_log(1 << 20), 1);
    churn(&mut world, 12, |_, _| ());
    world.give(AgentInput::Stop);
    world.drain();
    assert_eq!(world.stopped, Some(0));
    let opened = world.reopen(Crash::LoseAll, "after a stop");
    assert_eq!((opened.torn, opened.rotten), (0, 0));
    assert!(opened.records > 0, "{opened:?}");
    world.check("after a stop");
}

/// A file that takes no more to its last block has nothing behind it, and a write of the end would not fit.
#[test]
fn files_that_are_filled_to_the_last_block_need_no_end() {
    let mut world = World::new(small_log(1 << 20), 1);
    // Batches of one record with a block of headers at each end, of which a file takes 31 behind its first block.
    for version in 1..400 {
        world.put(&[0], version, 4096 - 100);
        world.rest();
    }
    let stats = world.agent.stats();
    assert!(stats.files_reused > 4, "{stats:?}");
    let opened = world.reopen(Crash::LoseAll, "filled");
    assert_eq!(opened.records, 1);
    world.check("filled");
}
