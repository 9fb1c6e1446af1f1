//! Late and replayed requests change no byte of memory that was freed and reused.

use proptest::prelude::*;
use slackwater_transfer::{Cause, GrantSpec, Op, Refusal, Rights, Target};

use crate::movers::worlds;
use crate::world::{PATIENCE, World, over, request, submit};

const BYTES: usize = 4096;

#[derive(Clone, Debug)]
enum Step {
    /// A range is granted.
    Grant {
        offset: usize,
        bytes: usize,
        rights: Rights,
    },
    /// A request writes, or reads, under any capability ever granted.
    Use {
        op: Op,
        which: prop::sample::Index,
        offset: usize,
        bytes: usize,
        value: u8,
    },
    /// The memory is freed and gets another use.
    Reuse { value: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let rights = prop::sample::select(vec![Rights::READ, Rights::WRITE, Rights::BOTH]);
    let op = prop::sample::select(vec![Op::Read, Op::Write]);
    let (offset, bytes) = (0..BYTES, 0..BYTES);
    prop_oneof![
        3 => (offset.clone(), bytes.clone(), rights).prop_map(|(offset, bytes, rights)| Step::Grant { offset, bytes, rights }),
        8 => (op, any::<prop::sample::Index>(), offset, bytes, any::<u8>())
            .prop_map(|(op, which, offset, bytes, value)| Step::Use { op, which, offset, bytes, value }),
        2 => any::<u8>().prop_map(|value| Step::Reuse { value }),
    ]
}

/// One capability, as the model knows it.
struct Granted {
    target: Target,
    offset: usize,
    bytes: usize,
    rights: Rights,
    use_number: u32,
}

/// Every request either does what its capability allows under the present use of the memory, or changes nothing.
fn play(world: &World, steps: &[Step]) {
    let far = world.far.filled(&[0; BYTES]);
    let near = world.near.field(BYTES);
    let (mut shadow, mut uses, mut granted) = (vec![0; BYTES], 0, Vec::<Granted>::new());
    for step in steps {
        match step {
            Step::Grant {
                offset,
                bytes,
                rights,
            } => {
                let bytes = (*bytes).min(BYTES - offset);
                let all = GrantSpec::whole(&far.region, *rights);
                let spec = GrantSpec {
                    offset: *offset as u64,
                    bytes: bytes as u64,
                    ..all
                };
                let capability = world.far.engine.grant(far.region.id(), &spec).unwrap();
                let target = Target {
                    capability,
                    ..world.target(&far)
                };
                granted.push(Granted {
                    target,
                    offset: *offset,
                    bytes,
                    rights: *rights,
                    use_number: uses,
                });
            }
            Step::Use {
                op,
                which,
                offset,
                bytes,
                value,
            } if !granted.is_empty() => {
                let by = which.get(&granted);
                let bytes = (*bytes).min(BYTES - offset).max(1);
                near.store(&[*value; BYTES]);
                let target = Target {
                    offset: *offset as u64,
                    ..by.target
                };
                let batch = world.near.engine.submit(
                    vec![request(*op, vec![near.range(0, bytes)], target)],
                    &submit(),
                );
                over(world.name, &batch);
                let wanted = if *op == Op::Read {
                    Rights::READ
                } else {
                    Rights::WRITE
                };
                let inside = *offset >= by.offset && offset + bytes <= by.offset + by.bytes;
                let allowed = by.use_number == uses && by.rights.allow(wanted) && inside;
                let cause = batch.outcome(0).unwrap().cause;
                assert_eq!(
                    cause.is_none(),
                    allowed,
                    "{}: {step:?}: {cause:?}",
                    world.name
                );
                if by.use_number != uses {
                    let known =
                        [Refusal::Generation, Refusal::Rights, Refusal::Range].map(Cause::Refused);
                    assert!(
                        cause.is_some_and(|cause| known.contains(&cause)),
                        "{}: {step:?}",
                        world.name
                    );
                }
                match op {
                    Op::Write if allowed => shadow[*offset..offset + bytes].fill(*value),
                    Op::Read if allowed => {
                        assert!(near.load()[..bytes] == shadow[*offset..offset + bytes])
                    }
                    _ => {}
                }
            }
            Step::Use { .. } => {}
            Step::Reuse { value } => {
                world
                    .far
                    .engine
                    .invalidate(far.region.id(), PATIENCE)
                    .unwrap();
                uses += 1;
                shadow.fill(*value);
                far.store(&shadow);
            }
        }
        assert!(
            far.load() == shadow,
            "{}: {step:?} changed what it must not",
            world.name
        );
    }
    world
        .far
        .engine
        .unregister(far.region.id(), PATIENCE)
        .unwrap();
    world
        .near
        .engine
        .unregister(near.region.id(), PATIENCE)
        .unwrap();
}

#[test]
fn only_what_a_capability_allows_now_changes_a_byte() {
    for make in worlds() {
        let world = make();
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(48));
        let steps = prop::collection::vec(step(), 1..40);
        runner
            .run(&steps, |steps| {
                play(&world, &steps);
                Ok(())
            })
            .unwrap();
    }
}
