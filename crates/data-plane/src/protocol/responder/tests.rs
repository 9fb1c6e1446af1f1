use slackwater_wire::Incarnation;
use slackwater_wire::data::{CapabilityKey, Data, Grant, Notify, Rights};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn limits() -> ResponderLimits {
    ResponderLimits {
        slice_bytes: 1 << 20,
        requests_max: 8,
        in_flight_bytes_max: 1 << 20,
        progress_timeout: 30 * SECOND,
        idle_timeout: 120 * SECOND,
        grace: SECOND,
    }
}

fn request(id: u64, op: Op) -> Request {
    let grant = Grant {
        incarnation: Incarnation(1),
        region: 1,
        generation: 1,
        offset: 0,
        bytes: 1 << 20,
        rights: Rights::BOTH,
        tenant: 0,
        holder: Incarnation(2),
        expires_nanos: u64::MAX,
        nonce: 0,
    };
    Request {
        id,
        op,
        urgent: false,
        offset: 0,
        bytes: 1000,
        time_left_nanos: u64::MAX,
        capability: CapabilityKey::new(&[7; 32]).mint(&grant),
        trace: None,
    }
}

/// A responder, and the seconds after which it closes the connection, at most ten minutes.
struct World {
    responder: Responder<()>,
    now: Instant,
}

impl World {
    fn new() -> Self {
        let now = Instant::from_nanos(1);
        Self {
            responder: Responder::new(limits(), now),
            now,
        }
    }

    fn give(&mut self, input: Input<'_, ()>) {
        let given = self.responder.handle(self.now, input, &mut Vec::new());
        given.expect("the peer keeps to the protocol");
    }

    fn begin(&mut self, id: u64, op: Op) {
        let admitted = Admitted {
            memory: (),
            chunk_bytes: None,
        };
        self.give(Input::Request(&request(id, op), Ok(admitted)));
    }

    fn payload(&mut self, id: u64, offset: u64) {
        self.give(Input::Frame(Frame::Data(Data {
            id,
            bytes: 1,
            last: false,
            offset,
        })));
        self.give(Input::Arrived(1));
    }

    /// The peer reads everything that is sent.
    fn read_all(&mut self) {
        while !self.responder.has_sent_all() {
            let sent = self.responder.gather(|piece| match piece {
                Piece::Bytes(bytes) => bytes.len(),
                Piece::Memory((), span) => span.bytes,
                Piece::Zeros(count) => count,
            });
            self.give(Input::Wrote(sent));
        }
    }

    /// Lets the peer do this every second.
    fn closes_after(mut self, mut each: impl FnMut(&mut Self, u64)) -> Option<(u64, bool)> {
        for second in 0..600 {
            each(&mut self, second);
            self.now += SECOND;
            if let Err(closed) = self.responder.on_deadline(self.now) {
                return Some((second + 1, matches!(closed, CloseReason::Idle)));
            }
        }
        None
    }
}

/// A peer began a write and then sent only pings, each of which counted as progress: the write stood still for as long
/// as the peer liked, and the memory that it held with it. In the same way a peer kept answers that it did not read.
#[test]
fn only_what_is_waited_for_counts_as_progress() {
    let ping = |world: &mut World| world.give(Input::Frame(Frame::Ping { token: 1 }));
    let mut writing = World::new();
    writing.begin(1, Op::Write);
    writing.payload(1, 0);
    let closed = writing.closes_after(|world, _| {
        ping(world);
        world.read_all();
    });
    assert_eq!(closed, Some((30, false)));
    let mut reading = World::new();
    reading.begin(1, Op::Read);
    let closed = reading.closes_after(|world, second| {
        if second % 10 == 0 {
            ping(world);
        }
    });
    assert_eq!(closed, Some((30, false)), "answers that are not read");
    let mut others = World::new();
    others.begin(1, Op::Write);
    let closed = others.closes_after(|world, second| {
        if second % 10 == 0 && second < 60 {
            world.begin(2 + second, Op::Write);
        }
        world.read_all();
    });
    assert_eq!(closed, Some((30, false)), "further writes without payload");
    let mut noticing = World::new();
    noticing.give(Input::Frame(Frame::Notify(Notify {
        id: 1,
        name_bytes: 100,
        bytes: 0,
    })));
    let closed = noticing.closes_after(|world, second| {
        if second < 90 {
            world.give(Input::Text(b"x"));
        }
    });
    assert_eq!(closed, Some((30, false)), "a notice of one byte a second");
}

#[test]
fn a_peer_that_goes_on_is_kept_and_an_idle_one_is_not() {
    let mut writing = World::new();
    writing.begin(1, Op::Write);
    let closed = writing.closes_after(|world, second| {
        if second % 20 == 0 {
            world.payload(1, second / 20);
        }
    });
    assert_eq!(closed, None);
    assert_eq!(World::new().closes_after(|_, _| {}), Some((120, true)));
    let pinging = World::new().closes_after(|world, second| {
        if second == 100 {
            world.give(Input::Frame(Frame::Ping { token: 1 }));
            world.read_all();
        }
    });
    assert_eq!(pinging, Some((220, true)));
}
