//! Late writes, which must not change reused memory.

use slackwater_transfer::{Cause, GrantSpec, Op, Refusal, Rights, Target};

use crate::alone;
use crate::child::{Child, end, hex};
use crate::world::{PATIENCE, over, request, submit};

const MIB: usize = 1 << 20;

/// A process floods a region with writes under a capability that it keeps for ever. The owner frees the bytes, gives
/// them another use and looks at them, again and again.
#[test]
fn late_writes_of_another_process_change_no_byte_of_freed_and_reused_memory() {
    let _alone = alone();
    for role in ["shared", "attached"] {
        let owner = end(role);
        let field = owner.filled(&vec![7; 4 * MIB]);
        for round in 0..8 {
            let mut child = Child::start("attached", 4 * MIB);
            child.ask(&format!(
                "open {}",
                serde_json::to_string(owner.engine.segment()).unwrap()
            ));
            let all = GrantSpec::whole(&field.region, Rights::BOTH);
            let capability = owner.engine.grant(field.region.id(), &all).unwrap();
            assert_eq!(child.ask(&format!("flood {}", hex(&capability))), "true");
            for step in 0..5u8 {
                owner
                    .engine
                    .invalidate(field.region.id(), PATIENCE)
                    .unwrap();
                let ours = vec![100 + round * 5 + step; 4 * MIB];
                field.store(&ours);
                for _ in 0..3 {
                    assert!(field.load() == ours, "{role}: round {round}, step {step}");
                }
            }
        }
    }
}

/// The same seen from the writer: what it learns of a write is true.
#[test]
fn a_writer_learns_that_its_capability_is_over() {
    let _alone = alone();
    for role in ["shared", "attached"] {
        let near = end("attached");
        let field = near.filled(&vec![5; MIB]);
        let mut child = Child::start(role, MIB);
        let peer = near.engine.open(child.segment.clone());
        let old = child.target(peer);
        let write = |target| vec![request(Op::Write, vec![field.range(0, MIB)], target)];
        near.engine.transfer(write(old), &submit()).unwrap();
        assert_eq!(child.ask("bytes"), "5");
        let fresh = child.ask("invalidate");
        let replayed = near.engine.submit(write(old), &submit());
        over(role, &replayed);
        let refused = Some(Cause::Refused(Refusal::Generation));
        assert_eq!(replayed.outcome(0).unwrap().cause, refused, "{role}");
        assert_eq!(child.ask("bytes"), "2", "{role}");
        let fresh = Target {
            capability: crate::child::capability(&fresh),
            ..old
        };
        near.engine.transfer(write(fresh), &submit()).unwrap();
        assert_eq!(child.ask("bytes"), "5", "{role}");
    }
}
