use slackwater_base::{Planted, plant};

use super::*;

/// One step of a run; the steps are the same wherever the run is interrupted.
#[derive(Clone, Debug)]
enum Act {
    Put { key: u64, length: u64 },
    Remove { key: u64 },
    Complete,
    Rest,
}

fn script(seed: u64, acts: usize, keys: u64) -> Vec<Act> {
    let mut rng = Rng::new(seed);
    (0..acts)
        .map(|_| match rng.below(10) {
            0..=4 => Act::Put {
                key: rng.below(keys),
                length: 1 + rng.below(20_000),
            },
            5..=6 => Act::Remove {
                key: rng.below(keys),
            },
            7..=8 => Act::Complete,
            _ => Act::Rest,
        })
        .collect()
}

fn name(key: u64) -> Vec<u8> {
    format!("key-{key}").into_bytes()
}

/// Runs `acts` until `operations` of the disk have ended; false when the acts end earlier.
fn play(world: &mut World, acts: &[Act], operations: u64) -> bool {
    let end = world.disk.completed().saturating_add(operations);
    let mut version = world
        .known
        .values()
        .flat_map(|known| known.ordered.keys())
        .max()
        .copied()
        .unwrap_or(0);
    for act in acts {
        let steps = match act {
            Act::Put { key, length } => {
                version += 1;
                world.put(&name(*key), version, *length);
                0
            }
            Act::Remove { key } => {
                let newest = world
                    .known
                    .get(&name(*key))
                    .and_then(|known| known.ordered.keys().max().copied());
                if let Some(newest) = newest {
                    world.remove(&name(*key), newest);
                }
                0
            }
            Act::Complete => 1,
            Act::Rest => u64::MAX,
        };
        for _ in 0..steps {
            if world.disk.completed() == end {
                return true;
            }
            if !world.complete() {
                break;
            }
        }
        if matches!(act, Act::Rest) {
            world.now += Duration::from_millis(100);
            let mut out = Vec::new();
            world.agent.on_deadline(world.now, &mut out);
            world.take(out);
        }
        if world.disk.completed() == end {
            return true;
        }
    }
    false
}

/// Interrupts the same run after each operation of the disk and opens the log: nothing acknowledged
/// is gone, nothing dropped is back. A second opening finds the same, also when the first one is
/// interrupted.
fn every_operation(crash: Crash, seed: u64) {
    let acts = script(seed, 70, 12);
    let mut cut = 0;
    loop {
        let mut world = World::new(small_log(2 << 20), seed ^ cut);
        world.drain();
        let more = play(&mut world, &acts, cut);
        let moment = format!("{crash:?} after {cut} operations of seed {seed}");
        world.crash(crash);
        for _ in 0..cut % 7 {
            world.complete();
        }
        world.crash(crash);
        world.drain();
        let first = world.check_opened(&moment);
        let announced = world.announced.clone();
        world.crash(Crash::LoseAll);
        world.drain();
        let again = world.check_opened(&format!("{moment}, again"));
        assert_eq!(announced, world.announced, "{moment}");
        assert_eq!(
            (first.records, first.bytes),
            (again.records, again.bytes),
            "{moment}"
        );
        play(&mut world, &acts[..30], u64::MAX);
        world.rest();
        world.check(&format!("{moment}, at work again"));
        if !more {
            return;
        }
        cut += 1;
    }
}

#[test]
fn a_torn_crash_at_any_operation_loses_nothing_acknowledged() {
    every_operation(Crash::Tear, 1);
    every_operation(Crash::Tear, 2);
}

#[test]
fn a_power_cut_at_any_operation_loses_nothing_acknowledged() {
    every_operation(Crash::LoseAll, 3);
}

#[test]
fn a_killed_process_at_any_operation_loses_nothing_acknowledged() {
    every_operation(Crash::Process, 4);
}

/// The keys that an opening after a kill announced, and the keys that are there after a power cut
/// that follows. The process is killed during `act`, when `reached` returns true.
fn killed_then_cut(
    bug: Option<Planted>,
    act: impl Fn(&mut World),
    reached: impl Fn(&mut World) -> bool,
) -> [BTreeSet<Vec<u8>>; 2] {
    plant(bug);
    let mut world = World::new(small_log(1 << 20), 1);
    world.put(b"old", 1, 5000);
    world.rest();
    world.disk.set_forgetful(true);
    act(&mut world);
    world.give(AgentInput::Flush(1));
    while !reached(&mut world) {}
    let found = [Crash::Process, Crash::LoseAll].map(|crash| {
        world.crash(crash);
        world.drain();
        world.announced.keys().cloned().collect()
    });
    plant(None);
    found
}

/// For kills during a put and during a drop: announced keys stay, and with `bug` they do not.
fn announced_keys_stay(bug: Planted, reached: impl Fn(&mut World) -> bool) {
    let write = |world: &mut World| _ = world.put(b"new", 2, 5000);
    let remove = |world: &mut World| world.remove(b"old", 1);
    let names = |keys: &[&str]| {
        keys.iter()
            .map(|key| key.as_bytes().to_vec())
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(
        killed_then_cut(None, write, &reached),
        [names(&["new", "old"]), names(&["new", "old"])]
    );
    assert_eq!(
        killed_then_cut(None, remove, &reached),
        [names(&[]), names(&[])]
    );
    let bug = Some(bug);
    assert_eq!(
        killed_then_cut(bug, write, &reached),
        [names(&["new", "old"]), names(&["old"])],
        "the planted bug has no effect"
    );
    assert_eq!(
        killed_then_cut(bug, remove, &reached),
        [names(&[]), names(&["old"])],
        "the planted bug has no effect"
    );
}

/// A process was killed. The next one announced a record that was only in the cache, and left out a
/// record whose tombstone was only in the cache. After a power cut the first record was gone and
/// the second was back.
#[test]
fn what_an_opening_announced_outlives_the_next_power_cut() {
    announced_keys_stay(Planted::RecoveryWithoutSync, |world| {
        assert!(world.complete(), "a write is under way");
        world.disk.has_unsynced()
    });
}

/// A sync failed and marked pages clean that were never written. The process was killed. The next
/// one read those pages and synced the file, which succeeded because no page was dirty. After a
/// power cut a record that had been announced was gone, and a record whose tombstone had been read
/// was back.
#[test]
fn what_a_failed_sync_lost_is_written_again_before_it_is_announced() {
    announced_keys_stay(Planted::RecoveryTrustsCache, |world| {
        world.complete_sync(EIO)
    });
}

/// Whether a dropped record is back after its tombstone's file was reclaimed before its own, and the log opened again.
fn revived_by_reclaim(bug: Option<Planted>) -> bool {
    plant(bug);
    let mut world = World::new(small_log(1 << 20), 1);
    let mut version = 0;
    let mut put = |world: &mut World, name: &str| {
        version += 1;
        world.put(name.as_bytes(), version, 8192);
        world.rest();
        version
    };
    let dead = put(&mut world, "dead");
    let (home, _) = world.place(b"dead", dead);
    let tombstone = (0..)
        .find_map(|number| {
            let name = format!("stays-{number}");
            let version = put(&mut world, &name);
            let (file, _) = world.place(name.as_bytes(), version);
            (file != home).then(|| world.remove(name.as_bytes(), version))?;
            Some(file)
        })
        .expect("a file is full at some point");
    world.remove(b"dead", dead);
    world.rest();
    // The other records in the tombstone's file are soon dropped: it is the first file that reclaim
    // empties.
    for goes in 0..400 {
        let name = format!("goes-{goes}");
        let version = put(&mut world, &name);
        world.remove(name.as_bytes(), version);
        world.rest();
        if world.disk.content(tombstone).is_empty() {
            break;
        }
    }
    assert!(world.disk.content(tombstone).is_empty() && !world.disk.content(home).is_empty());
    // `World` would fail its own check on the announcement of a dropped record.
    world.known.remove(b"dead".as_slice());
    world
        .known
        .entry(b"dead".to_vec())
        .or_default()
        .ordered
        .insert(dead, 8192);
    world.crash(Crash::LoseAll);
    world.drain();
    plant(None);
    world.announced.contains_key(b"dead".as_slice())
}

#[test]
fn a_tombstone_outlives_its_file_as_long_as_the_record_it_keeps_dead() {
    assert!(!revived_by_reclaim(None));
    assert!(
        revived_by_reclaim(Some(Planted::TombstoneDroppedEarly)),
        "the planted bug has no effect"
    );
}

/// Small files and many overwrites, so that files are reclaimed all the time, interrupted in many
/// places.
#[test]
fn crashes_during_reclaim_neither_lose_nor_revive() {
    for seed in 0..12 {
        let mut world = World::new(small_log(1 << 20), seed);
        world.disk.shuffle();
        world.drain();
        let mut rng = Rng::new(seed);
        let mut reclaimed = 0;
        for round in 0..12 {
            let acts = script(rng.next_u64(), 60, 10);
            play(&mut world, &acts, 20 + rng.below(150));
            world.check(&format!("seed {seed} round {round}"));
            reclaimed += world.agent.stats().files_reclaimed;
            let crash = [Crash::Tear, Crash::LoseAll, Crash::Process][rng.below(3) as usize];
            world.crash(crash);
            world.drain();
            world.check_opened(&format!("seed {seed} round {round} after {crash:?}"));
        }
        assert!(reclaimed > 0, "seed {seed} reclaimed nothing");
    }
}

/// One bit flips after each opening of the log, half of the time in headers: whatever is read is
/// right, and what was dropped or reported as lost does not come back.
#[test]
fn rot_costs_records_but_never_brings_one_back() {
    let (mut lost, mut repaired) = (0, 0);
    for seed in 0..24 {
        let mut world = World::new(small_log(1 << 20), seed);
        world.rotten = true;
        world.drain();
        let mut rng = Rng::new(seed);
        for round in 0..10 {
            let acts = script(rng.next_u64(), 40, 10);
            play(&mut world, &acts, 20 + rng.below(120));
            let files = world.disk.files();
            if let Some(file) = files
                .get(rng.below(files.len().max(1) as u64) as usize)
                .map(|file| file.file)
            {
                let batches = world.batches(file);
                let byte = match batches.get(rng.below(batches.len().max(1) as u64) as usize) {
                    Some((start, _)) if rng.chance(0.5) => start + rng.below(200),
                    _ => rng.below(world.disk.content(file).len() as u64),
                };
                world.disk.flip(file, byte, rng.below(8) as u8);
            }
            world.check(&format!("seed {seed} round {round}"));
            world.crash([Crash::Tear, Crash::LoseAll, Crash::Process][rng.below(3) as usize]);
            world.drain();
            assert_eq!(world.refused, None);
            repaired += world.opened.unwrap().repaired;
            world.check_opened(&format!("seed {seed} round {round} opened"));
        }
        lost += world.lost.len();
    }
    assert!(lost > 0 && repaired > 0, "{lost} lost, {repaired} repaired");
}
