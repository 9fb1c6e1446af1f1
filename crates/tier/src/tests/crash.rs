use super::*;

/// What a run does, step by step: the same for every place it is cut off at.
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
            0..=4 => Act::Put { key: rng.below(keys), length: 1 + rng.below(20_000) },
            5..=6 => Act::Remove { key: rng.below(keys) },
            7..=8 => Act::Complete,
            _ => Act::Rest,
        })
        .collect()
}

fn name(key: u64) -> Vec<u8> {
    format!("key-{key}").into_bytes()
}

/// Plays acts until `operations` of the disk have ended; false when they are over before.
fn play(world: &mut World, acts: &[Act], operations: u64) -> bool {
    let end = world.disk.completed().saturating_add(operations);
    let mut version = world.known.values().flat_map(|known| known.ordered.keys()).max().copied().unwrap_or(0);
    for act in acts {
        let steps = match act {
            Act::Put { key, length } => {
                version += 1;
                world.put(&name(*key), version, *length);
                0
            }
            Act::Remove { key } => {
                let newest = world.known.get(&name(*key)).and_then(|known| known.ordered.keys().max().copied());
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

/// Cuts the same run off after every single operation of the disk, and opens what is left: nothing acknowledged is
/// gone, nothing dropped is back; opening again, also when the first opening is cut off, finds the same.
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
        assert_eq!((first.records, first.bytes), (again.records, again.bytes), "{moment}");
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

/// Small files and much churn, so that files are reclaimed all the while, cut off at many places in turn.
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

/// One bit rots in each life of the log, half of the time in headers: whatever is read is right, and what was dropped
/// or reported as lost stays away.
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
            if let Some(file) = files.get(rng.below(files.len().max(1) as u64) as usize).map(|file| file.file) {
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
