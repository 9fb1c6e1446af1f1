//! Owners that answer late, or never what is asked.

use super::*;

/// An engine with the host mover alone, and the listener that it takes for an owner.
fn engine_to(liar: &Liar, limits: HostLimits) -> (Engine, PeerId) {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let contact = HostContact {
        boot_id: boot.trim().to_owned(),
        pid: std::process::id(),
        socket: liar.name.clone(),
    };
    reaching(LIFE, contact, limits)
}

fn target(peer: PeerId) -> Target {
    let elsewhere = owner(ServiceLimits::default());
    let region = elsewhere.region(Memory::anonymous(4096).unwrap());
    Target {
        peer,
        offset: 0,
        capability: elsewhere.grant(&region),
        key: None,
    }
}

/// A process that was stopped before it could greet held up requests to it past their deadlines, until the greeting
/// was given up.
#[test]
fn an_owner_that_does_not_greet_delays_no_request_past_its_deadline() {
    let mut liar = Liar::new();
    let (engine, peer) = engine_to(
        &liar,
        HostLimits {
            answer_timeout: 2 * PATIENCE,
            ..HostLimits::default()
        },
    );
    let ended = engine.read_now(&target(peer), &mut [0; 8], Duration::from_millis(500));
    assert_eq!(ended, Err(Cause::TimedOut(Deadline::Total)));
    // Nor past the end of the region that they are for, which waited for the process to answer.
    let here = engine
        .register(RegionSpec {
            memory: Memory::anonymous(8).unwrap(),
            rights: Rights::NONE,
            gate: None,
        })
        .unwrap();
    let read = Request {
        op: Op::Read,
        local: vec![LocalRange {
            region: here.id(),
            offset: 0,
            bytes: 8,
        }],
        target: target(peer),
        timeout: None,
        priority: Priority::Normal,
    };
    let batch = engine.submit(vec![read], &Submit::default());
    engine.unregister(here.id(), PATIENCE / 2).unwrap();
    assert!(matches!(
        batch.outcome(0).unwrap().cause,
        Some(Cause::Invalid(_))
    ));
    // The connection is kept: when the greeting comes, the requests of that time are asked for.
    liar.called();
    std::thread::scope(|threads| {
        let (engine, target) = (engine.clone(), target(peer));
        let read = threads.spawn(move || engine.read_now(&target, &mut [0; 8], PATIENCE));
        liar.packets()
            .send(&[welcome().as_bytes()], &[liar.page.as_fd()])
            .unwrap();
        let question = liar.question();
        let refused = Entry {
            refused: U32::new(Refusal::Region.number().into()),
            ..shared(0, 0, 0)
        };
        liar.say(question, &[refused], &[]);
        assert_eq!(read.join().unwrap(), Err(Cause::Refused(Refusal::Region)));
    });
    drop(liar);
    engine.close();
}

/// An owner without a free slot was asked again and again, as fast as it could answer, until the deadline.
#[test]
fn an_owner_that_never_has_a_slot_is_done_without() {
    let mut liar = Liar::new();
    let (engine, peer) = engine_to(&liar, HostLimits::default());
    let target = target(peer);
    std::thread::scope(|threads| {
        let (engine, target) = (engine.clone(), target);
        let read = threads.spawn(move || engine.read_now(&target, &mut [0; 8], PATIENCE));
        liar.called();
        liar.packets()
            .send(&[welcome().as_bytes()], &[liar.page.as_fd()])
            .unwrap();
        let question = liar.question();
        liar.say(
            question,
            &[Entry {
                refused: U32::new(NO_SLOT),
                ..shared(0, 0, 0)
            }],
            &[],
        );
        let ended = read.join().unwrap();
        assert!(matches!(ended, Err(Cause::Unreachable(_))), "{ended:?}");
    });
    drop(liar);
    engine.close();
}
