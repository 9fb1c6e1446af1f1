//! Values that are read or written a part at a time, as layers of a model come and go.
//!
//! A read session reads the parts that are asked for and no others, all of one value. A write session keeps the value here
//! until its end, where it is put as a whole.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slackwater_remote::{ClientError, Part, PutOptions, ReadSession};
use slackwater_wait::now;
use slackwater_wire::ErrorCode;

use super::memory::{Number, Range, overlap, zeroed};
use super::plan::RawPlan;
use super::session::{Outcome, Session};
use super::{ABSENT, NO_ROOM, WRONG, stored};

/// The sessions of a client, by key.
#[derive(Default)]
pub(super) struct Sessions {
    reads: Mutex<BTreeMap<Vec<u8>, Arc<ReadSession>>>,
    writes: Mutex<BTreeMap<Vec<u8>, Arc<Mutex<Writing>>>>,
}

struct Writing {
    value: Vec<u8>,
    options: PutOptions,
}

const EXPIRED: i64 = ErrorCode::LeaseExpired.number() as i64;
const EXISTS: i64 = ErrorCode::ObjectAlreadyExists.number() as i64;

/// Where a part lies in memory, and its first byte in the value.
pub(super) type Place = (Range, u64);

/// Where the parts of one call lie: for each key the addresses, lengths, and offsets in the value.
pub(super) struct Parts {
    pub(super) starts: Vec<Vec<Number>>,
    pub(super) sizes: Vec<Vec<Number>>,
    pub(super) offsets: Vec<Vec<Number>>,
}

impl Parts {
    /// Memory and first byte in the value of each part, of each key; `None` where they do not fit together.
    pub(super) fn places(&self, keys: usize) -> Option<Vec<Vec<Place>>> {
        let keys = self.fit(keys).then_some(0..keys)?;
        keys.map(|key| self.places_of(key)).collect()
    }

    /// The same of one key.
    fn places_of(&self, key: usize) -> Option<Vec<Place>> {
        let (starts, sizes) = (&self.starts[key], &self.sizes[key]);
        let offsets = &self.offsets[key];
        if starts.len() != sizes.len() || offsets.len() != sizes.len() {
            return None;
        }
        let part = |((start, size), offset): ((&Number, &Number), &Number)| {
            Some((Range::new(*start, *size)?, offset.0 as u64))
        };
        starts.iter().zip(sizes).zip(offsets).map(part).collect()
    }

    fn fit(&self, keys: usize) -> bool {
        [self.starts.len(), self.sizes.len(), self.offsets.len()] == [keys; 3]
    }

    /// Memory, and first and last byte in the value, of each part of a key whose value is so long.
    fn of(&self, key: usize, bytes: usize) -> Option<Vec<(Range, usize, usize)>> {
        let (starts, sizes) = (&self.starts[key], &self.sizes[key]);
        let offsets = &self.offsets[key];
        if starts.len() != sizes.len() || offsets.len() != sizes.len() {
            return None;
        }
        let part = |((start, size), offset): ((&Number, &Number), &Number)| {
            let end = offset.0.checked_add(size.0).filter(|end| *end <= bytes)?;
            Some((Range::new(*start, *size)?, offset.0, end))
        };
        starts.iter().zip(sizes).zip(offsets).map(part).collect()
    }
}

/// Parts of the value of one session.
struct Asked {
    /// Which key of the call it is.
    index: usize,
    session: Arc<ReadSession>,
    places: Vec<Place>,
}

/// Parts in rounds that are read one after another, as those of one round share no byte.
fn rounds(asked: Vec<Asked>) -> Vec<Vec<Asked>> {
    let places = asked.iter().flat_map(|asked| &asked.places);
    let memory: Vec<Range> = places.map(|(into, _)| *into).collect();
    if !overlap(&memory) {
        return vec![asked];
    }
    let (mut rounds, mut round) = (Vec::new(), Vec::<Asked>::new());
    // The ranges of the round: the first address of each, and the one after its last.
    let mut taken = BTreeMap::new();
    for of_key in asked {
        for place in of_key.places {
            let (start, end) = (place.0.start(), place.0.end());
            let before = taken.range(..end).next_back();
            if start < end && before.is_some_and(|(_, before)| *before > start) {
                rounds.push(std::mem::take(&mut round));
                taken.clear();
            }
            if start < end {
                taken.insert(start, end);
            }
            match round.last_mut() {
                Some(last) if last.index == of_key.index => last.places.push(place),
                _ => round.push(Asked {
                    index: of_key.index,
                    session: Arc::clone(&of_key.session),
                    places: vec![place],
                }),
            }
        }
    }
    rounds.push(round);
    rounds
}

/// The outcome of reads of one session, of which the first that fails counts.
fn together(before: Outcome, next: Outcome) -> Outcome {
    match (before, next) {
        (Ok(sum @ 0..), Ok(more @ 0..)) => Ok(sum + more),
        (Ok(0..), next) => next,
        (before, _) => before,
    }
}

impl Session {
    /// Opens read sessions.
    pub(super) fn start_reads(&self, keys: &[&[u8]]) -> Vec<Outcome> {
        let open = |(key, found): (&&[u8], Outcome)| match found {
            Ok(1) => {
                let fresh = || Arc::new(ReadSession::new(key));
                lock(&self.sessions.reads)
                    .entry(key.to_vec())
                    .or_insert_with(fresh);
                Ok(0)
            }
            Ok(_) => Ok(ABSENT),
            error => error,
        };
        keys.iter().zip(self.exist(keys)).map(open).collect()
    }

    /// Reads parts of the values of read sessions: the sum of their lengths for each key.
    pub(super) fn read_parts(&self, keys: &[&[u8]], parts: &Parts) -> Vec<Outcome> {
        if !parts.fit(keys.len()) {
            return vec![Ok(WRONG); keys.len()];
        }
        let mut outcomes = vec![Ok(WRONG); keys.len()];
        let mut asked = Vec::new();
        for (index, key) in keys.iter().enumerate() {
            let session = lock(&self.sessions.reads).get(*key).cloned();
            if let (Some(session), Some(places)) = (session, parts.places_of(index)) {
                outcomes[index] = Ok(0);
                asked.push(Asked {
                    index,
                    session,
                    places,
                });
            }
        }
        let until = now() + self.client.deadline();
        let mut rounds = rounds(asked).into_iter();
        while let Some(mut round) = rounds.next() {
            // Of a session that has failed the rest is of no meaning.
            round.retain(|asked| matches!(outcomes[asked.index], Ok(0..)));
            // A value on a dead node takes half of the time, and leaves the rest to those after it.
            let share = if rounds.len() > 0 { 2 } else { 1 };
            let time = now().until(until) / share;
            for (asked, outcome) in round.iter().zip(self.read_round(&round, time)) {
                let before = std::mem::replace(&mut outcomes[asked.index], Ok(0));
                outcomes[asked.index] = together(before, outcome);
            }
        }
        outcomes
    }

    /// Reads parts that do not overlap, in so much time: of each session the sum of their lengths.
    fn read_round(&self, round: &[Asked], time: Duration) -> Vec<Outcome> {
        let part = |(into, from): &Place| {
            // SAFETY: the caller of the call promises that the memory is there and that nothing else uses it until the call
            // returns; the parts do not overlap.
            let into = unsafe { into.as_mut_slice() };
            Part { from: *from, into }
        };
        let parts = round
            .iter()
            .map(|asked| asked.places.iter().map(part).collect())
            .collect();
        let sessions: Vec<&ReadSession> = round.iter().map(|asked| &*asked.session).collect();
        let mut options = self.get_options();
        options.call.deadline = Some(time);
        let read = self.client.read_sessions(&sessions, parts, &options);
        let outcome = |(asked, length)| self.read_of(asked, length);
        round.iter().zip(read).map(outcome).collect()
    }

    /// The outcome of a read of parts of a value that is so long. A session that has expired is dropped.
    fn read_of(&self, asked: &Asked, length: Result<usize, ClientError>) -> Outcome {
        let length = match length {
            Err(error) if error.code() == ErrorCode::LeaseExpired => {
                let mut reads = lock(&self.sessions.reads);
                // Another session of the key may have begun since.
                let is_there = |there: &Arc<ReadSession>| Arc::ptr_eq(there, &asked.session);
                if reads.get(asked.session.key()).is_some_and(is_there) {
                    reads.remove(asked.session.key());
                }
                return Ok(EXPIRED);
            }
            length => length? as u64,
        };
        let is_in = |(into, from): &Place| {
            let end = from.checked_add(into.bytes() as u64);
            end.is_some_and(|end| end <= length)
        };
        let places = asked.places.iter();
        Ok(match places.clone().all(is_in) {
            true => places.map(|(into, _)| into.bytes() as i64).sum(),
            false => WRONG,
        })
    }

    /// Ends read sessions; what is none is passed over.
    pub(super) fn end_reads(&self, keys: &[&[u8]]) {
        let mut reads = lock(&self.sessions.reads);
        for key in keys {
            reads.remove(*key);
        }
    }

    /// Opens write sessions of values of these lengths.
    pub(super) fn start_writes(
        &self,
        keys: &[&[u8]],
        sizes: &[Number],
        plan: &RawPlan,
    ) -> Vec<Outcome> {
        if keys.len() != sizes.len() || !plan.fits(keys.len()) {
            return vec![Ok(WRONG); keys.len()];
        }
        let mut outcomes = Vec::with_capacity(keys.len());
        for (index, found) in self.exist(keys).into_iter().enumerate() {
            outcomes.push(match found {
                Ok(1) => Ok(EXISTS),
                Ok(_) => Ok(self.start_write(keys, index, sizes[index].0, plan)),
                error => error,
            });
        }
        outcomes
    }

    fn start_write(&self, keys: &[&[u8]], index: usize, bytes: usize, plan: &RawPlan) -> i64 {
        let key = keys[index];
        let mut writes = lock(&self.sessions.writes);
        if bytes == 0 || slackwater_wire::Key::new(key).is_err() || writes.contains_key(key) {
            return WRONG;
        }
        let Some(value) = zeroed(bytes) else {
            return NO_ROOM;
        };
        let (options, _) = self.put_options(plan, index, keys.len());
        let writing = Arc::new(Mutex::new(Writing { value, options }));
        writes.insert(key.to_vec(), writing);
        0
    }

    /// Copies parts into the values of write sessions: the sum of their lengths for each key.
    pub(super) fn write_parts(&self, keys: &[&[u8]], parts: &Parts) -> Vec<Outcome> {
        if !parts.fit(keys.len()) {
            return vec![Ok(WRONG); keys.len()];
        }
        let copy = |(index, key): (usize, &&[u8])| {
            let Some(writing) = lock(&self.sessions.writes).get(*key).cloned() else {
                return Ok(WRONG);
            };
            Ok(copy_in(&mut lock(&writing).value, parts, index))
        };
        keys.iter().enumerate().map(copy).collect()
    }

    /// Puts the values of write sessions. A session whose put fails stays open, so that its end can be repeated.
    pub(super) fn end_writes(&self, keys: &[&[u8]]) -> Vec<Outcome> {
        let end = |key: &&[u8]| {
            let Some(writing) = lock(&self.sessions.writes).get(*key).cloned() else {
                return Ok(WRONG);
            };
            let writing = lock(&writing);
            // Another call may have started the session, on another thread and with its own way of being cancelled.
            let options = PutOptions {
                call: self.call(),
                ..writing.options.clone()
            };
            let put = self.client.put(key, &writing.value, &options)?;
            lock(&self.sessions.writes).remove(*key);
            Ok(match put {
                slackwater_remote::Stored::New => stored(put),
                slackwater_remote::Stored::Existed => EXISTS,
            })
        };
        keys.iter().map(end).collect()
    }

    /// Drops write sessions and what they hold.
    pub(super) fn revoke_writes(&self, keys: &[&[u8]]) -> Vec<Outcome> {
        let mut writes = lock(&self.sessions.writes);
        let revoke = |key: &&[u8]| Ok(writes.remove(*key).map_or(WRONG, |_| 0));
        keys.iter().map(revoke).collect()
    }
}

fn copy_in(value: &mut [u8], parts: &Parts, index: usize) -> i64 {
    let Some(parts) = parts.of(index, value.len()) else {
        return WRONG;
    };
    for (from, to, end) in &parts {
        // SAFETY: the caller of the call promises that the memory is there and stays as it is until the call returns.
        value[*to..*end].copy_from_slice(unsafe { from.as_slice() });
    }
    sum(&parts)
}

fn sum(parts: &[(Range, usize, usize)]) -> i64 {
    parts.iter().map(|(_, from, end)| (end - from) as i64).sum()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
