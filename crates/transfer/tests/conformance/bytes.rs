//! Bytes arrive, all of them, and nothing else changes.

use std::time::Duration;

use slackwater_base::{Checksum, Rng};
use slackwater_transfer::{Cause, Op, Refusal, Request, Target};

use crate::check;
use crate::world::{World, at, noise, over, request, submit};

const MIB: usize = 1 << 20;

/// Written and read back, with bytes around it that must not change.
fn round_trip(world: &World, bytes: usize) {
    const MARGIN: usize = 64;
    let data = noise(bytes as u64, bytes);
    let near = world.near.filled(&data_within(&data, MARGIN, 1));
    let far = world.far.filled(&vec![2; bytes + 2 * MARGIN]);
    let back = world.near.filled(&vec![3; bytes + 2 * MARGIN]);
    let target = at(world.target(&far), MARGIN);
    let write = world.near.engine.submit(
        vec![request(Op::Write, vec![near.range(MARGIN, bytes)], target)],
        &submit(),
    );
    over(world.name, &write);
    assert_eq!(
        write.outcome(0).unwrap().cause,
        None,
        "{}: write of {bytes}",
        world.name
    );
    assert_eq!(
        write.outcome(0).unwrap().bytes,
        bytes as u64,
        "{}: write of {bytes}",
        world.name
    );
    assert!(
        far.load() == data_within(&data, MARGIN, 2),
        "{}: write of {bytes}",
        world.name
    );
    let read = world.near.engine.submit(
        vec![request(Op::Read, vec![back.range(MARGIN, bytes)], target)],
        &submit(),
    );
    over(world.name, &read);
    assert_eq!(
        read.outcome(0).unwrap().cause,
        None,
        "{}: read of {bytes}",
        world.name
    );
    assert!(
        back.load() == data_within(&data, MARGIN, 3),
        "{}: read of {bytes}",
        world.name
    );
    assert!(
        near.load() == data_within(&data, MARGIN, 1),
        "{}: the source of {bytes}",
        world.name
    );
}

fn data_within(data: &[u8], margin: usize, around: u8) -> Vec<u8> {
    let around = vec![around; margin];
    [&around, data, &around].concat()
}

#[test]
fn every_size_goes_there_and_back() {
    check(|world| {
        for bytes in [0, 1, 63, 64, 65, 4095, 4096, 4097, MIB, MIB + 1] {
            round_trip(world, bytes);
        }
    });
}

#[test]
fn a_large_request_goes_there_and_back() {
    check(|world| round_trip(world, 64 * MIB + 7));
}

#[test]
fn ranges_of_any_alignment_are_gathered_and_scattered() {
    check(|world| {
        let data = noise(1, 300_000);
        let near = world.near.filled(&data);
        let far = world.far.field(300_000);
        let target = world.target(&far);
        let mut rng = Rng::new(2);
        for round in 0..20 {
            // Pieces that have no byte in common, in a random order.
            let mut cuts: Vec<usize> = (0..8).map(|_| rng.below(100_000) as usize).collect();
            cuts.extend([0, 100_000]);
            cuts.sort_unstable();
            let mut pieces: Vec<(usize, usize)> = cuts
                .windows(2)
                .map(|cut| (cut[0], cut[1] - cut[0]))
                .collect();
            let by = rng.below(pieces.len() as u64) as usize;
            pieces.rotate_left(by);
            let gathered: Vec<u8> = pieces
                .iter()
                .flat_map(|&(start, len)| data[start..start + len].iter().copied())
                .collect();
            let offset = rng.below(1000) as usize;
            let local: Vec<_> = pieces
                .iter()
                .map(|&(start, len)| near.range(start, len))
                .collect();
            let write = vec![request(Op::Write, local.clone(), at(target, offset))];
            world.near.engine.transfer(write, &submit()).unwrap();
            assert!(
                far.load()[offset..offset + 100_000] == gathered,
                "{}: gather {round}",
                world.name
            );
            let back = world.near.field(300_000);
            let local = pieces
                .iter()
                .map(|&(start, len)| back.range(start + 7, len))
                .collect();
            world
                .near
                .engine
                .transfer(
                    vec![request(Op::Read, local, at(target, offset))],
                    &submit(),
                )
                .unwrap();
            assert!(
                back.load()[7..100_007] == data[..100_000],
                "{}: scatter {round}",
                world.name
            );
        }
    });
}

#[test]
fn requests_of_a_batch_may_overlap() {
    check(|world| {
        let (ones, twos) = (
            world.near.filled(&vec![1; 8192]),
            world.near.filled(&vec![2; 8192]),
        );
        let far = world.far.field(12_288);
        let target = world.target(&far);
        let requests = vec![
            request(Op::Write, vec![ones.range(0, 8192)], target),
            request(Op::Write, vec![twos.range(0, 8192)], at(target, 4096)),
        ];
        world.near.engine.transfer(requests, &submit()).unwrap();
        let bytes = far.load();
        assert!(
            bytes[..4096].iter().all(|&byte| byte == 1),
            "{}",
            world.name
        );
        assert!(
            bytes[4096..8192].iter().all(|&byte| byte == 1 || byte == 2),
            "{}",
            world.name
        );
        assert!(
            bytes[8192..].iter().all(|&byte| byte == 2),
            "{}",
            world.name
        );
    });
}

#[test]
fn batches_of_one_to_ten_thousand_complete_each_request_once() {
    check(|world| {
        const STRIDE: usize = 24;
        let data = noise(9, 10_000 * STRIDE);
        let near = world.near.filled(&data);
        for count in [1, 2, 64, 65, 1000, 10_000] {
            let far = world.far.field(10_000 * STRIDE);
            let target = world.target(&far);
            let one = |index: usize| -> Request {
                request(
                    Op::Write,
                    vec![near.range(index * STRIDE, STRIDE)],
                    at(target, index * STRIDE),
                )
            };
            let batch = world
                .near
                .engine
                .submit((0..count).map(one).collect(), &submit());
            over(world.name, &batch);
            for index in 0..count {
                let outcome = batch.outcome(index).unwrap();
                assert_eq!(
                    (outcome.bytes, outcome.cause),
                    (STRIDE as u64, None),
                    "{}: {index} of {count}",
                    world.name
                );
            }
            let bytes = far.load();
            assert!(
                bytes[..count * STRIDE] == data[..count * STRIDE],
                "{}: {count}",
                world.name
            );
            assert!(
                bytes[count * STRIDE..].iter().all(|&byte| byte == 0),
                "{}: {count}",
                world.name
            );
        }
    });
}

/// Requests on memory of the caller's own go together, and one that fails does not touch its neighbours.
fn together(world: &World) {
    const EACH: usize = 10_000;
    const COUNT: usize = 40;
    const PATIENCE: Duration = Duration::from_secs(20);
    let far = world.far.filled(&vec![0; EACH * COUNT]);
    let (engine, target) = (&world.near.engine, world.target(&far));
    let values: Vec<Vec<u8>> = (0..COUNT).map(|value| noise(value as u64, EACH)).collect();
    let places = (0..COUNT).map(|place| at(target, place * EACH));
    let beyond = at(target, EACH * COUNT - 1);
    let mut writes: Vec<(Target, &[u8])> = places
        .clone()
        .zip(values.iter().map(Vec::as_slice))
        .collect();
    writes.push((beyond, &[1, 2]));
    writes.push((target, &[]));
    let mut written = engine.write_all(&writes, PATIENCE);
    assert_eq!(
        written.pop(),
        Some(Ok(Checksum::of(&[]))),
        "{}: nothing is no failure",
        world.name
    );
    let refused = Some(Err(Cause::Refused(Refusal::Range)));
    assert_eq!(written.pop(), refused, "{}", world.name);
    let sums: Vec<_> = values.iter().map(|value| Ok(Checksum::of(value))).collect();
    assert!(written == sums, "{}: {written:?}", world.name);
    let alone = engine.write_all(&writes[..1], PATIENCE);
    assert_eq!(alone, sums[..1], "{}", world.name);
    assert!(far.load() == values.concat(), "{}", world.name);
    let mut memory = vec![vec![0; EACH]; COUNT];
    let mut spare = [0; 2];
    let rooms = memory.iter_mut().map(Vec::as_mut_slice);
    let reads = places
        .zip(rooms)
        .map(|(target, room)| (target, room, PATIENCE));
    let mut reads: Vec<(Target, &mut [u8], Duration)> = reads.collect();
    reads.push((beyond, &mut spare, PATIENCE));
    let mut read = engine.read_all(&mut reads);
    assert!(read.pop().unwrap().is_err(), "{}", world.name);
    assert!(read == sums, "{}: {read:?}", world.name);
    assert!(memory == values, "{}", world.name);
    assert!(engine.read_all(&mut []).is_empty());
}

#[test]
fn requests_of_a_caller_that_waits_go_together() {
    check(together);
}
