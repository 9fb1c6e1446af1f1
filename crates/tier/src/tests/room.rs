//! A log that is full, too long, or busy making room.

use super::*;

#[test]
fn a_log_that_is_full_of_live_records_says_so_and_goes_on_when_some_are_dropped() {
    let mut world = World::new(small_log(1 << 20), 0);
    let mut taken = 0u64;
    let mut version = 0;
    loop {
        let ticket = world.put(&taken.to_le_bytes(), version + 1, 4096);
        world.rest();
        if world.results[&ticket].is_err() {
            assert_eq!(world.results[&ticket], Err(TaskFailure::NoRoom));
            break;
        }
        (taken, version) = (taken + 1, version + 1);
    }
    let state = world.state.unwrap();
    assert!(!state.accepting && state.pressure > 0, "{state:?}");
    assert!(
        taken * 4096 >= state.capacity / 4,
        "{taken} records in {}",
        state.capacity
    );
    world.check("full");
    for round in 0..20u64 {
        // The master drops what it is asked to, the oldest first.
        if world.state.is_none_or(|state| state.accepting) {
            break;
        }
        assert!(round < 19, "dropping what was asked for makes room");
        let asked = std::mem::take(&mut world.asked).div_ceil(4096) as usize;
        let kept =
            (0..taken).filter(|key| world.known[key.to_le_bytes().as_slice()].drop_ordered == 0);
        let oldest = kept
            .take(asked)
            .map(|key| (key.to_le_bytes().to_vec(), key + 1));
        let oldest: Vec<_> = oldest.collect();
        world.remove_all(oldest);
        world.rest();
    }
    let ticket = world.put(b"more", version + 10, 4096);
    world.rest();
    assert_eq!(world.results[&ticket], Ok(()));
    world.check("with room again");
    world.reopen(Crash::LoseAll, "with room again");
    world.check_opened("with room again");
}

/// Records that were taken while there was room, and found none when their turn came, kept their sources pinned in memory
/// until something else was dropped.
#[test]
fn a_queue_that_the_log_has_no_room_for_is_given_back() {
    let mut world = World::new(small_log(1 << 20), 0);
    world.rest();
    let mut keys = 0u64..;
    loop {
        let tickets: Vec<_> = (keys.by_ref().take(40))
            .map(|key| world.put(&key.to_le_bytes(), key + 1, 4096))
            .collect();
        world.rest();
        let answer = |ticket| world.results.get(ticket).copied();
        let answers: Vec<_> = tickets.iter().filter_map(answer).collect();
        assert_eq!(
            answers.len(),
            tickets.len(),
            "each is written or given back"
        );
        if answers.contains(&Err(TaskFailure::NoRoom)) {
            break;
        }
    }
}

/// A log that was longer than its lowered capacity had no room for the tombstones that would have
/// brought it down, so nothing was dropped, nothing was deleted and no record was accepted any
/// more. A crash while reclaim had begun the one file that it may have beyond the capacity had the
/// same effect. And when the file with the fewest live bytes was a short new one full of them, none
/// of the longer old files was emptied; the master, asked once, dropped nothing more.
#[test]
fn a_log_longer_than_its_capacity_comes_down_to_it_and_takes_records_again() {
    let check = |before, after, files, together: u64, stride: usize| {
        let mut world = World::new(
            LogConfig {
                file_bytes: files,
                ..small_log(before)
            },
            3,
        );
        let name = format!("{before} to {after}, {together} in a batch, every {stride}th dropped");
        let mut taken = 0;
        loop {
            let tickets: Vec<TicketId> = (taken..taken + together)
                .map(|key| world.put(&key.to_le_bytes(), key + 1, 4096))
                .collect();
            world.rest();
            let kept = tickets
                .iter()
                .take_while(|ticket| world.results[*ticket].is_ok());
            taken += kept.count() as u64;
            if tickets.iter().any(|ticket| world.results[ticket].is_err()) {
                break;
            }
        }
        assert!(world.agent.stats().file_bytes > 3 * after, "{name}");
        world.log = small_log(after);
        world.crash(Crash::LoseAll);
        world.rest();
        let mut order = (0..stride).flat_map(|first| (first as u64..taken).step_by(stride));
        let mut rounds = 0;
        while world.state.is_none_or(|state| !state.accepting)
            || world.agent.stats().file_bytes > after
        {
            rounds += 1;
            assert!(
                rounds < 200,
                "{name}: {:?} {:?}",
                world.state,
                world.agent.stats()
            );
            // The master drops what it is asked to, once.
            let asked = std::mem::take(&mut world.asked).div_ceil(4096) as usize;
            let freed = order.by_ref().take(asked);
            let freed: Vec<_> = freed
                .map(|key| (key.to_le_bytes().to_vec(), key + 1))
                .collect();
            world.remove_all(freed);
            world.rest();
        }
        assert!(order.next().is_some(), "{name}: what still fits is kept");
        assert!(
            world
                .known
                .values()
                .all(|known| known.dropped == known.drop_ordered),
            "{name}: every removal is answered"
        );
        let ticket = world.put(b"more", 1 << 20, 4096);
        world.rest();
        assert_eq!(world.results[&ticket], Ok(()), "{name}");
        world.check(&name);
        world.reopen(Crash::LoseAll, &name);
        world.check_opened(&name);
    };
    for (together, stride) in [(1, 1), (7, 1), (7, 5), (7, 17), (7, 40)] {
        check(4 << 20, 1 << 20, 128 << 10, together, stride);
        check(8 << 20, 1 << 20, 512 << 10, together, stride);
        check(8 << 20, 2 << 20, 384 << 10, together, stride);
    }
}

/// Fills a log to its end, one record in a batch, and returns how many it took.
fn fill(world: &mut World) -> u64 {
    fill_from(world, 0, 4096)
}

fn fill_from(world: &mut World, first: u64, length: u64) -> u64 {
    let mut taken = first;
    loop {
        let ticket = world.put(&taken.to_le_bytes(), taken + 1, length);
        world.rest();
        if world.results[&ticket].is_err() {
            return taken;
        }
        taken += 1;
    }
}

/// The master acts once on what it was asked. When a user's removal took as much as was asked for, but left no file worth
/// emptying, the log asked for nothing more.
#[test]
fn pressure_that_drops_leave_behind_is_asked_for_again() {
    let mut world = World::new(small_log(1 << 20), 0);
    let taken = fill(&mut world);
    let asked = std::mem::take(&mut world.asked);
    assert!(asked > 0);
    for key in 0..taken {
        world.remove(&key.to_le_bytes(), key + 1);
        world.rest();
        if world.state.is_none_or(|state| state.accepting) {
            return;
        }
        assert!(std::mem::take(&mut world.asked) > 0, "{key}");
    }
    panic!("dropping everything makes room");
}

/// Files of a log whose capacity was lowered are longer than the new ones. While one was being emptied, the deletion of
/// another brought the log down to its capacity, and with that reclaim lost the room it had begun with: it waited for ever,
/// and nothing was asked of the master.
#[test]
fn a_file_is_emptied_only_if_its_records_have_room() {
    for stride in [2, 3, 5] {
        let mut world = World::new(
            LogConfig {
                file_bytes: 512 << 10,
                ..small_log(8 << 20)
            },
            3,
        );
        let mut taken = 0u64;
        while world.agent.stats().files < 9 {
            world.put(&taken.to_le_bytes(), taken + 1, 30_000);
            world.rest();
            taken += 1;
        }
        for key in (0..taken).step_by(stride) {
            world.remove(&key.to_le_bytes(), key + 1);
        }
        world.rest();
        world.log = small_log(4 << 20);
        world.crash(Crash::LoseAll);
        world.rest();
        let kept = (0..taken).filter(|key| key % stride as u64 != 0);
        let mut kept = kept.collect::<Vec<_>>().into_iter();
        for round in 0.. {
            let state = world.state.expect("the log is open");
            if state.accepting && world.agent.stats().file_bytes <= 4 << 20 {
                break;
            }
            assert!(round < 200, "{stride}: {state:?} {:?}", world.agent.stats());
            let asked = std::mem::take(&mut world.asked).div_ceil(30_000) as usize;
            let oldest = kept.by_ref().take(asked);
            let oldest: Vec<_> = oldest
                .map(|key| (key.to_le_bytes().to_vec(), key + 1))
                .collect();
            world.remove_all(oldest);
            world.rest();
        }
        let ticket = world.put(b"more", 1 << 20, 4096);
        world.rest();
        assert_eq!(world.results[&ticket], Ok(()), "{stride}");
        world.check("with room again");
    }
}

/// The copies of a long file would have begun one of the shorter new ones after the other, past what a log may be longer than
/// its capacity: reclaim would wait for their room for ever, and ask nothing of the master meanwhile.
#[test]
fn a_long_file_is_not_emptied_into_the_room_of_one_short_one() {
    let mut world = World::new(
        LogConfig {
            file_bytes: 512 << 10,
            ..small_log(8 << 20)
        },
        5,
    );
    let taken = 49u64;
    for key in 0..taken {
        world.put(&key.to_le_bytes(), key + 1, 9000);
        world.rest();
    }
    // Each file is worth emptying, and holds more than a new one takes.
    for key in (0..taken).step_by(3) {
        world.remove(&key.to_le_bytes(), key + 1);
    }
    world.rest();
    world.reopen(Crash::LoseAll, "without the spare file");
    world.rest();
    let stats = world.agent.stats();
    assert_eq!((stats.files, stats.file_bytes), (2, 1 << 20));
    world.log = small_log(1 << 20);
    world.crash(Crash::LoseAll);
    world.rest();
    let kept = (0..taken).filter(|key| key % 3 != 0);
    let mut kept = kept.collect::<Vec<_>>().into_iter();
    for round in 0.. {
        let state = world.state.expect("the log is open");
        if state.accepting {
            break;
        }
        assert!(round < 200, "{state:?} {:?}", world.agent.stats());
        let asked = std::mem::take(&mut world.asked).div_ceil(9000) as usize;
        let oldest: Vec<_> = kept
            .by_ref()
            .take(asked)
            .map(|key| (key.to_le_bytes().to_vec(), key + 1))
            .collect();
        world.remove_all(oldest);
        world.rest();
    }
    let ticket = world.put(b"more", 1 << 20, 4096);
    world.rest();
    assert_eq!(world.results[&ticket], Ok(()));
    world.check("with room again");
}

/// A file that is being deleted was about to make room, and the master dropped records for more.
#[test]
fn nothing_is_asked_for_while_a_deletion_makes_room() {
    let mut world = World::new(small_log(1 << 20), 0);
    let taken = fill(&mut world);
    assert!(world.state.is_some_and(|state| state.pressure > 0));
    let (file, _) = world.place(&0u64.to_le_bytes(), 1);
    let in_file = |world: &mut World, key: &u64| world.place(&key.to_le_bytes(), key + 1).0 == file;
    let keys: Vec<u64> = (0..taken).filter(|key| in_file(&mut world, key)).collect();
    world.remove_all(
        keys.into_iter()
            .map(|key| (key.to_le_bytes().to_vec(), key + 1)),
    );
    let mut deleting = 0;
    loop {
        if world.disk.is_deleting() {
            deleting += 1;
            assert_eq!(world.state.map(|state| state.pressure), Some(0));
        }
        if !world.complete() {
            if world.agent.next_deadline().is_none() {
                break;
            }
            world.step_to_deadline();
        }
    }
    assert!(deleting > 0);
}

/// Removes all records of the file of key 0, of which [`fill`] made `taken`, and returns that file.
fn remove_first_file(world: &mut World, taken: u64) -> FileId {
    let (file, _) = world.place(&0u64.to_le_bytes(), 1);
    let keys = (0..taken).map(|key| (key.to_le_bytes().to_vec(), key + 1));
    let in_file: Vec<_> = keys
        .filter(|(key, version)| world.place(key, *version).0 == file)
        .collect();
    world.remove_all(in_file);
    file
}

/// The file that was emptied could not be deleted yet, for it was being read. The log refused what was queued and what came, and
/// had the master drop more, until the read was over.
#[test]
fn an_emptied_file_counts_as_room_while_it_is_read_for_a_second() {
    let check = |then: &str, meanwhile: &dyn Fn(&mut World), expected| {
        let mut world = World::new(small_log(1 << 20), 0);
        let taken = fill(&mut world);
        let mut out = Vec::new();
        let reading = world
            .agent
            .begin_read(world.now, &entry(&0u64.to_le_bytes(), 1), &mut out)
            .expect("the record is there");
        let file = remove_first_file(&mut world, taken);
        assert_eq!(reading.file, file);
        let mut more = 0..9u8;
        let ticket = loop {
            let key = more.next().expect("the log is full again");
            let ticket = world.put(&[key], taken + 1, 4096);
            world.run_for(world.log.batch_delay + world.log.sync_delay);
            match world.results.get(&ticket) {
                Some(result) => assert_eq!(*result, Ok(()), "{then}: {key}"),
                None => break ticket,
            }
        };
        assert!(world.disk.files().iter().any(|of| of.file == file));
        let state = world.state.expect("the log is open");
        assert!(state.accepting && state.pressure == 0, "{then}: {state:?}");
        meanwhile(&mut world);
        let end = (ReadEnd::Done, Duration::ZERO);
        let right = world.agent.end_read(world.now, reading, end, &mut out);
        assert!(!right, "it was removed meanwhile");
        world.take(out);
        world.rest();
        assert_eq!(world.results[&ticket], expected, "{then}");
        world.check(then);
        world
    };
    let world = check("the read ends", &|_| {}, Ok(()));
    assert!(world.state.is_some_and(|state| state.accepting));
    let longer = |world: &mut World| {
        world.run_for(Duration::from_secs(1));
        let state = world.state.expect("the log is open");
        assert!(!state.accepting && !state.failing && state.pressure > 0);
    };
    check("it stalls", &longer, Err(TaskFailure::NoRoom));
    // A put that waits for nothing is answered: it was promised, and would count as lost.
    let stop = |world: &mut World| {
        world.give(AgentInput::Stop);
        world.drain();
    };
    let world = check("the log stops", &stop, Err(TaskFailure::NoRoom));
    assert_eq!(world.stopped, Some(0));
}

/// A log that stopped while it emptied a file kept what was queued for the room to come, which came no more: puts that were
/// promised to be durable counted as lost, and nobody answered them.
#[test]
fn what_has_no_room_when_the_log_stops_is_given_back_though_a_file_is_being_emptied() {
    let mut world = World::new(small_log(1 << 20), 0);
    let taken = fill(&mut world);
    remove_first_file(&mut world, taken);
    let tickets: Vec<_> = (0..40u8)
        .map(|key| world.put(&[key], taken + 1, 4096))
        .collect();
    world.give(AgentInput::Stop);
    world.drain();
    assert_eq!(world.stopped, Some(0));
    let refused = Err(TaskFailure::NoRoom);
    let answers: Vec<_> = tickets.iter().map(|ticket| world.results[ticket]).collect();
    assert!(
        answers
            .iter()
            .all(|answer| answer.is_ok() || *answer == refused)
    );
    assert!(answers.contains(&refused), "{answers:?}");
}

/// The file that was emptied had to stay until a tombstone was durable, and meanwhile the master was asked to drop more.
#[test]
fn an_emptied_file_counts_as_room_while_its_tombstones_are_written() {
    let waited = (0..30).filter(|seed| its_tombstones_are_written_late(*seed));
    assert!(waited.count() > 0);
}

/// Whether they came later than the end of its emptying.
fn its_tombstones_are_written_late(seed: u64) -> bool {
    let mut world = World::new(small_log(1 << 20), seed);
    let (first, long) = (0u64.to_le_bytes(), 45_000);
    world.put(&first, 1, 4096);
    world.rest();
    for key in 1..3u64 {
        world.put(&key.to_le_bytes(), key + 1, long);
        world.rest();
    }
    // The older record of the key would come back if the file of the newer one went before the key's tombstone.
    let (older, _) = world.place(&first, 1);
    world.put(&first, 1 << 20, long);
    world.rest();
    let (file, _) = world.place(&first, 1 << 20);
    assert_ne!(older, file);
    let taken = fill_from(&mut world, 3, long);
    let keys = (1..taken).map(|key| (key.to_le_bytes().to_vec(), key + 1));
    let mut in_file: Vec<_> = keys
        .filter(|(key, version)| world.place(key, *version).0 == file)
        .collect();
    in_file.push((first.to_vec(), 1 << 20));
    world.disk.shuffle();
    world.remove_all(in_file);
    let before = world.agent.stats().files_reclaimed;
    let there = |world: &World| world.disk.files().iter().any(|of| of.file == file);
    let mut waited = false;
    while there(&world) {
        let state = world.state.expect("the log is open");
        assert!(state.accepting && state.pressure == 0, "{seed}: {state:?}");
        waited |= world.agent.stats().files_reclaimed > before && !world.disk.is_deleting();
        if !world.complete() {
            world.step_to_deadline();
        }
    }
    world.rest();
    world.check("its place is free");
    waited
}

/// The capacity of a log was lowered, and a record was longer than its new files. Reclaim had read it, and began and sealed
/// one file after the other, into none of which it fitted.
#[test]
fn a_record_longer_than_the_new_files_is_given_up() {
    let mut world = World::new(small_log(1 << 20), 3);
    world.put(b"long", 1, 60_000);
    for key in 0..4u8 {
        world.put(&[key], 1, 9000);
    }
    world.rest();
    let (file, _) = world.place(b"long", 1);
    let batches = world.batches(file);
    world.log.file_bytes = 32 << 10;
    // One copy of the headers is left, so the opening has the file emptied.
    world.rotten = true;
    world.rot_headers(file, &batches, false);
    world.reopen(Crash::LoseAll, "shorter files");
    assert!(world.disk.files().iter().all(|it| it.file != file));
    assert_eq!(world.lost, [entry(b"long", 1)]);
    for key in 0..4u8 {
        assert_eq!(world.readable(&[key]), Some(1));
    }
}

/// Where many were replaced at once, some were refused in the step in which reclaim had made room for them.
#[test]
fn churn_within_the_stated_capacity_never_runs_out_of_room() {
    [4, 11].into_iter().for_each(churn);
}

/// Replaces values of a full log, `at_once` of them before all that follows is done.
fn churn(at_once: u64) {
    let mut world = World::new(small_log(2 << 20), 7);
    world.rest();
    let held = world.state.unwrap().capacity * 9 / 10 / 8192;
    let mut rng = Rng::new(7);
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    let refused = |world: &World| {
        let results = world.results.values();
        results
            .filter(|it| **it == Err(TaskFailure::NoRoom))
            .count()
    };
    for version in 1..1500u64 {
        let key = rng.below(held);
        if let Some(old) = live.insert(key, version) {
            world.remove(&key.to_le_bytes(), old);
        }
        world.put(&key.to_le_bytes(), version, 8192);
        if version % at_once == 0 {
            world.rest();
        }
        assert_eq!(refused(&world), 0, "{at_once} at once, version {version}");
    }
    world.rest();
    assert_eq!(refused(&world), 0, "{at_once} at once, in the end");
    let stats = world.agent.stats();
    assert!(
        stats.files_reclaimed > 20 && stats.file_bytes <= world.log.capacity,
        "{stats:?}"
    );
    assert!(
        stats.tombstones < 1500,
        "tombstones go with what they keep dead: {}",
        stats.tombstones
    );
    world.check("after the churn");
}

#[test]
fn reclaim_copies_no_faster_than_its_rate() {
    let mut log = small_log(1 << 20);
    log.reclaim_bytes_per_second = 64 << 10;
    let mut world = World::new(log, 0);
    let mut keys = 0u8;
    while world.agent.stats().files < 6 {
        world.put(&[keys], 1, 8192);
        keys += 1;
        world.rest();
    }
    for key in (0..keys).step_by(2) {
        world.remove(&[key], 1);
    }
    world.rest();
    let (start, copied) = (world.now, world.agent.stats().copied_bytes);
    while world.agent.stats().copied_bytes < copied + (96 << 10) {
        world.put(&[keys], 1, 8192);
        keys += 1;
        world.rest();
    }
    assert!(
        start.until(world.now) >= Duration::from_millis(1200),
        "{:?}",
        start.until(world.now)
    );
}

/// While its master was away a process began again and again and ended soon after. Each life had the same torn files to
/// empty, began with the oldest, and left one more file with the little that it had copied, until the device was full of
/// files with a record each and had no room for the one that would have emptied any of them.
#[test]
fn a_process_that_ends_again_and_again_does_not_fill_the_device() {
    let check = |crash, seed: u64, operations: u64| {
        let moment = format!("{crash:?} after up to {operations} operations, seed {seed}");
        let log = LogConfig {
            reclaim_bytes_in_flight_max: 4 << 10,
            ..small_log(512 << 10)
        };
        let mut world = World::new(log, seed);
        for key in 0..20u8 {
            world.put(&[key], 1, 2000);
        }
        world.rest();
        // One copy of headers is lost: the file is to be written again.
        let oldest = world.disk.files()[0].file;
        world.disk.flip(oldest, BLOCK as u64 + 100, 0);
        let mut rng = Rng::new(seed);
        for life in 0..80 {
            world.crash(crash);
            while world.opened.is_none() {
                assert!(world.complete(), "{moment}: life {life} opens");
            }
            for _ in 0..rng.below(operations) {
                world.complete();
            }
        }
        world.rest();
        world.check_opened(&moment);
        world.remove_all((0..10u8).map(|key| (vec![key], 1)));
        world.rest();
        let ticket = world.put(b"more", 1, 4096);
        world.rest();
        assert_eq!(world.results.get(&ticket), Some(&Ok(())), "{moment}");
        let held = world.agent.stats().file_bytes;
        assert!(held <= 512 << 10, "{moment}: {held} bytes of files");
        world.check(&moment);
    };
    for operations in [12, 16, 20] {
        for seed in 0..3 {
            check(Crash::Tear, seed, operations);
            check(Crash::Process, seed, operations);
        }
    }
}
