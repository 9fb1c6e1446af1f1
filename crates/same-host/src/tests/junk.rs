//! Packets that are nearly those of the protocol.

use slackwater_base::Rng;
use slackwater_engine::{AllowList, Level};

use super::keys::{ALICE, BOB, Caller, keyed, list};
use super::*;

/// A packet with some of its bytes changed, cut off, or more behind it.
fn mangled(rng: &mut Rng, packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    match rng.below(4) {
        0 => packet.truncate(rng.below(packet.len() as u64) as usize + 1),
        1 => packet.resize(packet.len() + 1 + rng.below(200) as usize, 7),
        _ => {
            for _ in 0..=rng.below(3) {
                let at = rng.below(packet.len() as u64) as usize;
                packet[at] ^= 1 << rng.below(8);
            }
        }
    }
    packet
}

/// A question for one window, with a notice.
fn question(capability: &Capability) -> Vec<u8> {
    let head = Attach {
        question: U64::new(1),
        detach: U32::ZERO,
        attach: U32::new(1),
        notices: U32::new(1),
        notice_name: U32::new(4),
        notice_bytes: U32::new(4),
        reserved: U32::ZERO,
    };
    [head.as_bytes(), capability.as_bytes(), b"nameword"].concat()
}

#[test]
fn mangled_packets_open_nothing_and_leave_the_service_to_others() {
    let rng = &mut Rng::new(11);
    let (open, keys) = (
        owner(ServiceLimits::default()),
        list(&[(ALICE, Level::Admin)]),
    );
    let sealed = keyed(BOB, &keys);
    for far in [&open, &sealed] {
        let region = far.region(Memory::shared(4096).unwrap());
        // Of another owner, so that no question opens a window, whole or mangled.
        let elsewhere = owner(ServiceLimits::default());
        let foreign = elsewhere.grant(&elsewhere.region(Memory::shared(4096).unwrap()));
        let (plain, asking) = (far.hello(0), far.hello(1));
        for _ in 0..300 {
            let mut caller = Caller::of(far);
            let said = caller.begin(ALICE, &asking).hello().to_bytes();
            let with_key = [asking.as_bytes(), &said].concat();
            let greeting = match rng.below(2) {
                0 => plain.as_bytes().to_vec(),
                _ => with_key,
            };
            let first = match rng.below(2) {
                0 => mangled(rng, &greeting),
                _ => greeting,
            };
            let Some((_, descriptors)) = caller.say(&[&first]) else {
                continue;
            };
            // The control page alone, and where there are no keys.
            assert!(descriptors <= usize::from(std::ptr::eq(far, &open)));
            let asked = mangled(rng, &question(&foreign));
            if caller.packets.send(&[&asked], &[]).is_ok()
                && let Some((_, descriptors)) = caller.hear()
            {
                assert_eq!(descriptors, 0);
            }
        }
        eventually("the end of all of them", || far.service.counts() == (0, 0));
        assert_eq!(region.in_flight(), 0);
    }
    let near = keyed(ALICE, &AllowList::default());
    let link = sealed.sealed_link(&near, Some(BOB)).unwrap();
    link.ask(&[], None, now() + PATIENCE).unwrap();
    let link = open.link(&owner(ServiceLimits::default()));
    link.ask(&[], None, now() + PATIENCE).unwrap();
}
