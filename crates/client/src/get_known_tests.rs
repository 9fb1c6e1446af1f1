//! Reads of objects whose places are known.

use super::*;

fn known(replicas: &[ReplicaAt], now: Instant) -> Known {
    Known {
        object: object(replicas),
        valid_until: now + Duration::from_secs(5),
    }
}

impl World {
    /// A read of objects that are known.
    fn of_known(known: Vec<Known>) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let get = Get {
            tenant: Tenant::DEFAULT,
            keys: (0..known.len())
                .map(|key| Key::try_from(format!("k{key}").as_str()).unwrap())
                .collect(),
            chain: Chain::default(),
            hold: Hold::Lease,
            prefix_only: false,
        };
        let options = FlowOptions {
            deadline: now + Duration::from_secs(30),
            attempts: 3,
            answer_timeout: Duration::from_secs(60),
            backoff: FlowOptions::BACKOFF,
            jitter: Rng::new(1),
            operations: Operations::remote(),
        };
        let mut out = vec![];
        let pick = Box::new(LocalFirst::default());
        let flow = GetFlow::start_known(now, get, known, options, pick, &mut out);
        let operation = OperationId(0);
        Self {
            flow,
            out,
            now,
            operation,
        }
    }
}

#[test]
fn known_objects_are_read_without_a_look_up() {
    let now = Instant::from_nanos(1_000_000_000);
    let mut world = World::of_known(vec![known(&[memory(1)], now), known(&[memory(2)], now)]);
    assert!(world.asks().is_empty());
    for index in [0, 1] {
        world.read(index, Ok(GOOD));
    }
    let outcomes = world.flow.outcomes().unwrap();
    let hit = |outcome: &GetOutcome| matches!(outcome, GetOutcome::Hit { bytes: 100, .. });
    assert!(outcomes.iter().all(hit) && world.asks().is_empty());
}

/// What is known may be out of date: that is no reason to wait, and none to ask about the other objects.
#[test]
fn what_cannot_be_read_where_it_was_known_is_looked_up_at_once() {
    let now = Instant::from_nanos(1_000_000_000);
    let late = Known {
        valid_until: now - Duration::from_nanos(1),
        ..known(&[memory(1)], now)
    };
    let stale = Err(ReadFailure::Stale);
    for (first, result) in [
        (known(&[memory(1)], now), stale),
        (known(&[memory(1)], now), Ok(BAD)),
        (late, Ok(GOOD)),
    ] {
        let mut world = World::of_known(vec![first, known(&[memory(2)], now)]);
        world.read(0, result);
        assert!(world.asks().is_empty(), "the other one is being read");
        world.read(1, Ok(GOOD));
        assert_eq!(world.asks(), [1]);
        world.reply(vec![found(&[memory(3)])]);
        world.read(0, stale);
        assert!(
            world.asks().is_empty(),
            "from here on it is a look-up like any other"
        );
        world.tick();
        assert_eq!(world.asks(), [1]);
        world.reply(vec![Lookup::Missing]);
        let outcomes = world.flow.outcomes().unwrap();
        assert!(matches!(
            outcomes[..],
            [GetOutcome::Miss, GetOutcome::Hit { .. }]
        ));
    }
}

#[test]
fn the_next_replica_that_is_known_is_tried_before_a_look_up() {
    let now = Instant::from_nanos(1_000_000_000);
    let mut world = World::of_known(vec![known(&[memory(1), memory(2)], now)]);
    world.read(0, Err(ReadFailure::Transfer));
    assert!(world.asks().is_empty());
    world.read(0, Ok(GOOD));
    assert!(matches!(
        world.flow.outcomes().unwrap()[0],
        GetOutcome::Hit { .. }
    ));
}
