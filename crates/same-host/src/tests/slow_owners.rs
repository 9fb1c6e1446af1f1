//! Owners that answer late, or never what is asked.

use super::*;

/// Longer than it takes to begin to wait.
const MOMENT: Duration = Duration::from_millis(20);

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

/// Refuses what it is asked for one window until `over` says so; how many questions there were.
fn refuse_until(liar: &mut Liar, over: impl Fn() -> bool) -> usize {
    let mut questions = 0;
    while !over() {
        if let Some(question) = liar.question_by(now() + Duration::from_millis(20)) {
            liar.say(question, &[refusal()], &[]);
            questions += 1;
        }
    }
    questions
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
        // Its caller may ask, and the control thread once more if the answer to that takes long.
        refuse_until(&mut liar, || read.is_finished());
        assert_eq!(read.join().unwrap(), Err(Cause::Refused(Refusal::Region)));
    });
    drop(liar);
    engine.close();
}

/// Callers on several threads found the link taken and left their questions to the control thread, which was woken for them,
/// asked, and woke others to copy. Now they take turns.
#[test]
fn callers_that_find_a_question_under_way_wait_for_their_turn() {
    let (far, near) = (
        owner(ServiceLimits::default()),
        owner(ServiceLimits::default()),
    );
    let region = far.region(Memory::shared(4096).unwrap());
    let link = far.link(&near);
    let under_way = link.turn();
    assert!(ask_by(&link, far.grant(&region), Instant::ZERO).is_none());
    std::thread::scope(|threads| {
        let asks = [(); 4].map(|()| {
            let asks = || ask_by(&link, far.grant(&region), now() + PATIENCE);
            threads.spawn(asks)
        });
        // One that gives up must not take the turn of another with it.
        let gives_up = threads.spawn(|| ask_by(&link, far.grant(&region), now() + MOMENT));
        eventually("all wait", || link.waiting() == 4 && gives_up.is_finished());
        drop(under_way);
        for ask in asks {
            let window = ask.join().unwrap().expect("its turn came").unwrap();
            assert!(window.mark().is_ok());
        }
        assert!(gives_up.join().unwrap().is_none());
    });
}

/// Callers who found a question under way asked one after another. Each answer had to wake the next, who woke the owner.
#[test]
fn one_question_asks_for_all_that_wait() {
    let (mut liar, link, capability) = Liar::linked();
    let memory = Mapping::shared(4096).unwrap();
    let fd = memory.file().unwrap().as_fd();
    let slot = |number: u32| Entry {
        flags: U32::new(if number == 0 {
            ENTRY_SHARED | ENTRY_DESCRIPTOR
        } else {
            ENTRY_SHARED
        }),
        slot: U32::new(number),
        ..shared(0, 8, 4096)
    };
    let under_way = link.turn();
    let asked = std::thread::scope(|threads| {
        let asks = [1, 2, 3].map(|waiting| {
            let asks = threads.spawn(|| ask_by(&link, capability, now() + PATIENCE));
            eventually("all wait", || link.waiting() == waiting);
            asks
        });
        // One that ends before its window is asked for, or gives the window back.
        let gives_up = threads.spawn(|| ask_by(&link, capability, now() + 10 * MOMENT));
        eventually("all wait", || link.waiting() == 4 || gives_up.is_finished());
        drop(under_way);
        let (question, asked) = liar.asked();
        // It has left the queue before its thread ends.
        assert!(gives_up.join().unwrap().is_none());
        assert!([3, 4].contains(&asked), "{asked}");
        let entries: Vec<Entry> = (0..asked).map(slot).collect();
        liar.say(question, &entries, &[fd]);
        for ask in asks {
            let window = ask.join().unwrap().expect("it is answered").unwrap();
            assert!(window.mark().is_ok());
        }
        asked
    });
    assert_eq!(link.waiting(), 0);
    assert!(link.ask(&[], None, now()).is_err());
    liar.question();
    let (told, _) = Attach::read_from_prefix(&liar.buffer).unwrap();
    assert_eq!(told.detach.get(), asked, "each window is given back once");
}

/// The other half of the story: a caller with little time asked for all, was gone before the answer, and took it with it.
#[test]
fn those_whose_question_is_not_answered_ask_again() {
    let (mut liar, link, capability) = Liar::linked();
    let under_way = link.turn();
    std::thread::scope(|threads| {
        let hasty = threads.spawn(|| ask_by(&link, capability, now() + 10 * MOMENT));
        eventually("it waits", || link.waiting() == 1 || hasty.is_finished());
        let others =
            [(); 2].map(|()| threads.spawn(|| ask_by(&link, capability, now() + PATIENCE)));
        let all = || link.waiting() == 3 || hasty.is_finished() && link.waiting() == 2;
        eventually("all wait", all);
        drop(under_way);
        let (first, asked) = liar.asked();
        // On a busy machine the hasty one is too slow to ask.
        if asked == 3 {
            assert!(matches!(
                hasty.join().unwrap(),
                Some(Err(WindowError::TimedOut))
            ));
            let (again, asked) = liar.asked();
            assert_eq!(asked, 2);
            liar.say(first, &[refusal(); 3], &[]);
            liar.say(again, &[refusal(); 2], &[]);
        } else {
            liar.say(first, &[refusal(); 2], &[]);
        }
        for other in others {
            let ended = other.join().unwrap();
            assert!(
                matches!(ended, Some(Err(WindowError::Refused(Refusal::Region)))),
                "{ended:?}"
            );
        }
    });
    assert_eq!(link.waiting(), 0);
}

/// A caller with microseconds left found the turn free and asked for all that waited, could not wait for the answer, and put
/// them back to ask again. The owner opened their windows for nobody: a few such callers took all its slots.
#[test]
fn a_caller_without_time_for_an_answer_asks_for_itself_alone() {
    let (mut liar, link, capability) = Liar::linked();
    let _others = [(); 2].map(|()| link.join(capability));
    let hasty = ask_by(&link, capability, now() + Duration::from_micros(50));
    assert!(matches!(hasty, Some(Err(WindowError::TimedOut))));
    assert_eq!(liar.asked().1, 1);
    std::thread::scope(|threads| {
        let patient = threads.spawn(|| ask_by(&link, capability, now() + PATIENCE));
        let (question, asked) = liar.asked();
        assert_eq!(asked, 3, "the others were left where they were");
        liar.say(question - 1, &[refusal()], &[]);
        liar.say(question, &[refusal(); 3], &[]);
        patient.join().unwrap().unwrap().unwrap_err();
    });
}

/// Each put of a lone caller woke the control thread to ask for its window. Now the caller asks, for a moment; but several
/// requests would each wait for that moment, one after another, and what may not wait asks nobody.
#[test]
fn a_lone_caller_asks_by_itself_and_several_requests_ask_together() {
    let mut liar = Liar::new();
    let (engine, peer) = engine_to(&liar, HostLimits::default());
    let targets = [(); 3].map(|()| target(peer));
    let writes = targets.map(|target| (target, &[7; 8][..]));
    let refused = || Err(Cause::Refused(Refusal::Region));
    std::thread::scope(|threads| {
        let lone = || engine.write_now(&targets[0], &[7; 8], PATIENCE);
        let first = threads.spawn(lone);
        liar.called();
        liar.packets()
            .send(&[welcome().as_bytes()], &[liar.page.as_fd()])
            .unwrap();
        let question = liar.question();
        liar.say(question, &[refusal()], &[]);
        assert_eq!(first.join().unwrap(), refused());

        assert_eq!(engine.read_at_hand(&targets[0], &mut [0; 8]), None);
        let waiting = threads.spawn(lone);
        // Its caller's question, which is not answered in time, and that of the control thread.
        let asked = [0; 2].map(|_| liar.asked());
        assert_eq!(asked.map(|(_, windows)| windows), [1, 1]);
        for (question, _) in asked {
            liar.say(question, &[refusal()], &[]);
        }
        assert_eq!(waiting.join().unwrap(), refused());

        // A refusal that comes at once is not asked for again. Where the machine is busy it may come late.
        let once = (0..100).any(|_| {
            let waiting = threads.spawn(lone);
            let questions = refuse_until(&mut liar, || waiting.is_finished());
            assert_eq!(waiting.join().unwrap(), refused());
            questions == 1
        });
        assert!(once);

        let several = threads.spawn(|| engine.write_all(&writes, PATIENCE));
        let (question, windows) = liar.asked();
        assert_eq!(windows, 3);
        liar.say(question, &[refusal(); 3], &[]);
        let refused = Err(Cause::Refused(Refusal::Region));
        assert_eq!(several.join().unwrap(), [(); 3].map(|()| refused.clone()));
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
