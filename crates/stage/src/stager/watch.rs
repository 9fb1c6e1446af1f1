//! The thread that finds the ends of copies and gives chunks to those that wait for them.

use std::sync::Arc;
use std::task::Poll;

use slackwater_base::Instant;
use slackwater_engine::StageError;
use slackwater_wait::{Waiting, now};

use super::{Core, End, SITE, UNCALLED, guarded};
use crate::chunks::{Chunks, Fetch, Next, Waiter};
use crate::device::DeviceError;
use crate::limits::Watch;

impl Core {
    pub(super) fn run(self: &Arc<Self>) {
        loop {
            let seen = self.changed.seen();
            let ended = self.ended();
            let idle = ended.is_empty();
            for (end, result) in ended {
                guarded(|| self.end(end, result));
            }
            let served = self.serve_line(0) | self.serve_line(1);
            if !idle || served {
                continue;
            }
            let (flying, closing, line) = {
                let state = self.state();
                let flying = state.flights.iter().any(|flights| !flights.is_empty());
                let line = state
                    .pools
                    .iter()
                    .map(Chunks::next_look)
                    .min()
                    .unwrap_or(Instant::NEVER);
                (flying, state.closing, line)
            };
            if closing && !flying {
                return self.turn_away();
            }
            let until = match self.limits.watch {
                _ if !flying => Instant::NEVER,
                Watch::Callback => now() + UNCALLED,
                Watch::Poll(pause) => now() + pause,
            };
            // Woken, or time to poll: both are handled above.
            let _ = self
                .changed
                .wait(seen, &Waiting::at(&SITE).until(until.min(line)));
        }
    }

    /// Collects the copies that have ended.
    fn ended(&self) -> Vec<(End, Result<(), DeviceError>)> {
        let mut ended = Vec::new();
        let mut state = self.state();
        for (way, queue) in self.queues.iter().enumerate() {
            let flights = &mut state.flights[way];
            let mut first = 0;
            while let Some(flight) = flights.get(first) {
                match queue.poll(flight.ticket) {
                    Poll::Ready(result) => {
                        ended.extend(flights.remove(first).map(|flight| (flight.end, result)));
                    }
                    Poll::Pending if queue.is_ordered() => break,
                    Poll::Pending => first += 1,
                }
            }
        }
        ended
    }

    /// Gives chunks to the waiters, and makes some while there may be more; says whether a waiter was served.
    fn serve_line(self: &Arc<Self>, pool: usize) -> bool {
        let mut served = false;
        loop {
            let next = self.state().pools[pool].next(now(), self.chunks_max);
            match next {
                Next::Nothing => return served,
                Next::Make => {
                    // Without the lock: pinning takes milliseconds.
                    let made = self.device.pin(self.limits.chunk_bytes);
                    let chunks = &mut self.state().pools[pool];
                    match made {
                        Ok(pinned) => chunks.made(pinned),
                        Err(_) => {
                            chunks.not_made();
                            return served;
                        }
                    }
                }
                Next::Fetch(fetch, chunk) => self.begin_fetch(fetch, chunk),
                Next::Call(free) => {
                    let turn = self.turn(pool);
                    guarded(|| free(turn));
                }
            }
            served = true;
        }
    }

    /// The end: waiters get nothing any more.
    fn turn_away(self: &Arc<Self>) {
        let lines = self.state().pools.each_mut().map(Chunks::turn_away);
        for (pool, wanted) in lines
            .into_iter()
            .enumerate()
            .flat_map(|(pool, line)| line.into_iter().map(move |w| (pool, w)))
        {
            match wanted {
                Waiter::Fetch(Fetch { access, done, .. }) => {
                    drop(access);
                    guarded(|| done(Err(StageError("staging is over".to_owned()))));
                }
                Waiter::Lend { free, .. } => {
                    let turn = self.turn(pool);
                    guarded(|| free(turn));
                }
            }
        }
    }
}
