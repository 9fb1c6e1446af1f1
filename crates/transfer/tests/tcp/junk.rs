//! Frames in any order, with ids that collide: whatever a peer sends, nothing panics, and nothing is left behind.

use std::panic;
use std::sync::Mutex;
use std::sync::mpsc::Receiver;

use slackwater_base::Rng;
use slackwater_transfer::{Capability, Op, StageError};
use slackwater_wire::data::{Frame, Notify};

use crate::raw::{Raw, ask, data};
use crate::staged::{CHUNK, Copying, slow_engine};
use crate::support::*;

const BYTES: u64 = 4 * CHUNK as u64;
const FRAMES: usize = 80;
const SESSIONS: u64 = 200;

/// The places where the mover panicked; other code panics on purpose in this program.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn listen_for_panics() {
    let others = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if let Some(place) = info.location().filter(|place| {
            place.file().contains("tcp/src/") || place.file().contains("data-plane/src/")
        }) {
            PANICS.lock().unwrap().push(place.to_string());
        }
        others(info);
    }));
}

/// What a correct initiator would remember; this one remembers part of it.
struct Mind {
    rng: Rng,
    capabilities: [Capability; 2],
    next_id: u64,
    /// Writes that are not complete: number, bytes, and how many were sent.
    writes: Vec<(u64, u64, u64)>,
}

impl Mind {
    fn below(&mut self, bound: usize) -> usize {
        self.rng.below(bound as u64) as usize
    }

    /// An id that was used lately, or will be.
    fn any_id(&mut self) -> u64 {
        self.next_id.saturating_sub(5) + self.rng.below(6)
    }

    /// The next frame and the length of its payload.
    fn frame(&mut self) -> (Frame, usize) {
        let wild = self.rng.chance(0.04);
        match self.below(12) {
            0..3 => self.request(wild),
            3..8 if !self.writes.is_empty() => self.data(wild),
            8 => {
                let id = self.any_id();
                self.writes.retain(|(write, ..)| *write != id);
                (Frame::Cancel { id }, 0)
            }
            9 => {
                let (id, name_bytes, bytes) =
                    (self.any_id(), self.below(4) as u32, self.below(9) as u32);
                (
                    Frame::Notify(Notify {
                        id,
                        name_bytes,
                        bytes,
                    }),
                    (name_bytes + bytes) as usize,
                )
            }
            _ => (Frame::Ping { token: 5 }, 0),
        }
    }

    fn request(&mut self, wild: bool) -> (Frame, usize) {
        let id = if wild { self.any_id() } else { self.next_id };
        self.next_id += 1;
        let (op, bytes) = (
            [Op::Read, Op::Write][self.below(2)],
            self.rng.below(BYTES + 2),
        );
        if op == Op::Write && bytes > 0 {
            self.writes.push((id, bytes, 0));
        }
        let capability = self.capabilities[self.below(2)];
        (ask(op, id, capability, bytes), 0)
    }

    fn data(&mut self, wild: bool) -> (Frame, usize) {
        let index = self.below(self.writes.len());
        let (id, total, sent) = self.writes[index];
        let bytes = 1 + self.rng.below((total - sent).min(2 * CHUNK as u64));
        let last = sent + bytes == total;
        match last {
            true => drop(self.writes.remove(index)),
            false => self.writes[index].2 += bytes,
        }
        let offset = sent + u64::from(wild && last);
        (data(id, offset, bytes as u32, last != wild), bytes as usize)
    }
}

fn end_some(rng: &mut Rng, copies: &Receiver<Copying>) {
    for copy in copies.try_iter().take(rng.below(2) as usize) {
        let result = if rng.below(8) == 0 {
            Err(StageError("broken".to_owned()))
        } else {
            Ok(())
        };
        copy.end(result);
    }
}

#[test]
fn whatever_a_peer_sends_nothing_panics_and_nothing_is_left() {
    listen_for_panics();
    let (bob, device, copies) = slow_engine(BYTES as usize);
    let memory = region(&bob, BYTES as usize);
    let mut whole = 0;
    for seed in 0..SESSIONS {
        let capabilities = [grant(&bob, &device), grant(&bob, &memory)];
        let mut mind = Mind {
            rng: Rng::new(seed),
            capabilities,
            next_id: 1,
            writes: Vec::new(),
        };
        let mut peer = Raw::connect(&bob, 7);
        for _ in 0..1 + mind.below(FRAMES) {
            let (frame, payload) = mind.frame();
            peer.send(&[frame]);
            peer.send_bytes(&vec![7; payload]);
            end_some(&mut mind.rng, &copies);
            if mind.below(50) == 0 {
                // Copies that are held back would hold this up.
                copies.try_iter().for_each(|copy| copy.end(Ok(())));
                bob.invalidate(memory.id(), 20 * SECOND).unwrap();
            }
        }
        peer.send(&[Frame::Ping { token: u64::MAX }]);
        // It receives answers and payload; junk ends the connection.
        whole += usize::from(peer.hears(&Frame::Pong { token: u64::MAX }));
        drop(peer);
        until("nothing is left", || {
            copies.try_iter().for_each(|copy| copy.end(Ok(())));
            device.in_flight() == 0 && memory.in_flight() == 0
        });
        drop(bob.take_notices(slackwater_wait::now()));
        assert_eq!(PANICS.lock().unwrap().as_slice(), [""; 0], "seed {seed}");
    }
    assert!(
        (50..SESSIONS as usize).contains(&whole),
        "{whole} sessions were fine to their end"
    );
}
