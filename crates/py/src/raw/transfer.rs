//! Values between a client and the memory that callers name.

use std::collections::BTreeSet;

use slackwater_remote::{ClientError, Part};
use slackwater_wire::{PutMode, ReplicaAt};

use super::memory::{Number, Range, Staging, overlap};
use super::plan::RawPlan;
use super::session::{Outcome, Session};
use super::sessions::Parts;
use super::{ABSENT, NO_ROOM, WRONG};

/// The memory of one value: its pieces in order; `None` when they are not all memory, lengths are missing, or they are
/// together longer than memory can be.
pub(super) type Pieces = Option<Vec<Range>>;

/// The pieces of each key. Pieces that meet are one.
pub(super) fn pieces(starts: &[Vec<Number>], sizes: &[Vec<Number>]) -> Vec<Pieces> {
    let of_key = |(starts, sizes): (&Vec<Number>, &Vec<Number>)| {
        if starts.len() != sizes.len() {
            return None;
        }
        let mut pieces: Vec<Range> = Vec::with_capacity(starts.len());
        let mut bytes: usize = 0;
        for (start, size) in starts.iter().zip(sizes) {
            let next = Range::new(*start, *size)?;
            bytes = bytes
                .checked_add(size.0)
                .filter(|sum| isize::try_from(*sum).is_ok())?;
            match pieces.last_mut() {
                Some(last) if last.meets(next) => *last = last.with(next.bytes()),
                _ => pieces.push(next),
            }
        }
        Some(pieces)
    };
    starts.iter().zip(sizes).map(of_key).collect()
}

fn total(pieces: &[Range]) -> usize {
    pieces.iter().map(|piece| piece.bytes()).sum()
}

impl Session {
    /// Whether keys are there: 1 or 0. What can be no key is not.
    pub(super) fn exist(&self, keys: &[&[u8]]) -> Vec<Outcome> {
        let is_key = |key: &&[u8]| slackwater_wire::Key::new(key).is_ok();
        let asked: Vec<&[u8]> = keys.iter().copied().filter(is_key).collect();
        let found = match self.client.exists(&asked, &self.call()) {
            Ok(found) => found,
            Err(error) => return vec![Err(error); keys.len()],
        };
        let mut found = found.into_iter();
        let answer = |key: &&[u8]| Ok(i64::from(is_key(key) && found.next().unwrap_or(false)));
        keys.iter().map(answer).collect()
    }

    /// Puts values that lie in one run of memory each.
    pub(super) fn put_from(
        &self,
        keys: &[&[u8]],
        runs: &[Option<Range>],
        plan: &RawPlan,
    ) -> Vec<Outcome> {
        // SAFETY: the caller of the call promises that the memory is there and stays as it is until it returns.
        let value = |run: &Option<Range>| run.map(|run| unsafe { run.as_slice() });
        let values: Vec<Option<&[u8]>> = runs.iter().map(value).collect();
        self.put_given(keys, 0, &values, plan)
    }

    /// Puts values whose pieces lie apart.
    pub(super) fn gather(&self, keys: &[&[u8]], all: &[Pieces], plan: &RawPlan) -> Vec<Outcome> {
        let wished = !plan.options.preferred.is_empty();
        if plan.near && keys.len() > 1 && !wished && self.own_name().is_none() {
            let mut outcomes = self.gather(&keys[..1], &all[..1], &plan.part(0..1, Vec::new()));
            let rest = plan.part(1..keys.len(), self.places_of(keys[0]));
            outcomes.extend(self.gather(&keys[1..], &all[1..], &rest));
            return outcomes;
        }
        let single = |pieces: &Pieces| pieces.as_ref().is_some_and(|pieces| pieces.len() == 1);
        if all.iter().all(single) {
            let runs: Vec<Option<Range>> = all.iter().flatten().map(|one| Some(one[0])).collect();
            return self.put_from(keys, &runs, plan);
        }
        let mut outcomes = Vec::with_capacity(keys.len());
        while outcomes.len() < keys.len() {
            let first = outcomes.len();
            let (count, bytes) = piece(&all[first..]);
            let Some(mut memory) = self.staging.take(bytes) else {
                outcomes.extend(vec![Ok(NO_ROOM); count]);
                continue;
            };
            let mut rest = &mut memory[..];
            let mut runs = Vec::with_capacity(count);
            for pieces in &all[first..first + count] {
                let Some(pieces) = pieces else {
                    runs.push(None);
                    continue;
                };
                let (value, after) = rest.split_at_mut(total(pieces));
                let mut at = 0;
                for piece in pieces {
                    // SAFETY: the caller of the call promises that the memory is there and stays as it is until it
                    // returns.
                    value[at..at + piece.bytes()].copy_from_slice(unsafe { piece.as_slice() });
                    at += piece.bytes();
                }
                runs.push(Some(&*value));
                rest = after;
            }
            outcomes.extend(self.put_given(keys, first, &runs, plan));
            self.staging.give_back(memory);
        }
        outcomes
    }

    /// The names of the segments that have a value in memory; none where that cannot be said.
    fn places_of(&self, key: &[u8]) -> Vec<String> {
        let found = self.client.stat(key, &self.call()).ok().flatten();
        let replicas = found
            .into_iter()
            .flat_map(|found| found.replicas.into_iter().zip(found.names));
        let memory = replicas.filter(|((at, ..), _)| matches!(at, ReplicaAt::Memory(_)));
        memory.map(|(_, name)| name).collect()
    }

    /// Puts values, those of one group together; `first` is the place of the first in the call. What is no memory, or of
    /// no bytes, is refused.
    pub(super) fn put_given(
        &self,
        keys: &[&[u8]],
        first: usize,
        values: &[Option<&[u8]>],
        plan: &RawPlan,
    ) -> Vec<Outcome> {
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(values.len());
        while outcomes.len() < values.len() {
            let at = outcomes.len();
            if values[at].is_none_or(<[u8]>::is_empty) {
                outcomes.push(Ok(WRONG));
                continue;
            }
            let (options, count) = self.put_options(plan, first + at, keys.len());
            let named = keys[first + at..].iter().copied();
            let given = values[at..].iter().take(count);
            let full = given.map_while(|value| value.filter(|value| !value.is_empty()));
            // Of equal keys the last is to stay, so each replaces the one before in a request of its own.
            let mut replaced = BTreeSet::new();
            let is_new = |(key, _): &(&[u8], &[u8])| {
                options.mode == PutMode::Create || replaced.insert(key.to_vec())
            };
            let entries: Vec<(&[u8], &[u8])> = named.zip(full).take_while(is_new).collect();
            let put = self.client.put_batch(&entries, &options);
            outcomes.extend(put.into_iter().map(|one| one.map(|one| plan.code(one))));
        }
        outcomes
    }

    /// Reads values into one run of memory each: their lengths.
    pub(super) fn get_into(&self, keys: &[&[u8]], runs: &[Option<Range>]) -> Vec<Outcome> {
        let given: Vec<Range> = runs.iter().copied().flatten().collect();
        if given.len() < runs.len() || overlap(&given) {
            // One after another: memory that several keys name has the value of the last.
            let one = |(key, run): (&&[u8], &Option<Range>)| match run {
                None => vec![Ok(WRONG)],
                Some(run) => self.read_apart(&[key], &[*run]),
            };
            return keys.iter().zip(runs).flat_map(one).collect();
        }
        self.read_apart(keys, &given)
    }

    /// Reads a value into one run of memory if that takes no wait: its length.
    pub(super) fn read_at_hand(&self, key: &[u8], run: Range) -> Option<i64> {
        // SAFETY: as in `read_apart`.
        let buffer = unsafe { run.as_mut_slice() };
        let read = self
            .client
            .get_into_at_hand(key, buffer, &self.get_options())?;
        i64::try_from(read).ok()
    }

    /// Reads values into memory that does not overlap.
    fn read_apart(&self, keys: &[&[u8]], runs: &[Range]) -> Vec<Outcome> {
        // SAFETY: the caller of the call promises that the memory is there and that nothing else uses it until the call
        // returns; the runs do not overlap.
        let buffer = |run: &Range| unsafe { run.as_mut_slice() };
        let mut buffers: Vec<&mut [u8]> = runs.iter().map(buffer).collect();
        let options = self.get_options();
        let read = self.client.get_batch_into(keys, &mut buffers, &options);
        read.into_iter().map(length).collect()
    }

    /// Reads values into pieces that lie apart: their lengths, which the pieces must have.
    pub(super) fn scatter(&self, keys: &[&[u8]], all: &[Pieces]) -> Vec<Outcome> {
        let exactly = |outcome: Outcome, pieces: &Pieces| match (outcome, pieces) {
            (Ok(read), Some(pieces))
                if read >= 0 && read.cast_unsigned() != total(pieces) as u64 =>
            {
                Ok(WRONG)
            }
            (outcome, _) => outcome,
        };
        let single = |pieces: &Pieces| pieces.as_ref().is_some_and(|pieces| pieces.len() == 1);
        if all.iter().all(single) {
            let runs: Vec<Option<Range>> = all.iter().flatten().map(|one| Some(one[0])).collect();
            let read = self.get_into(keys, &runs).into_iter();
            return read
                .zip(all)
                .map(|(outcome, pieces)| exactly(outcome, pieces))
                .collect();
        }
        let mut outcomes = Vec::with_capacity(keys.len());
        while outcomes.len() < keys.len() {
            let first = outcomes.len();
            let (count, bytes) = piece(&all[first..]);
            if bytes > Staging::PIECE
                && let Err(outcome) = self.check_length(keys[first], bytes)
            {
                outcomes.push(outcome);
                continue;
            }
            let all = &all[first..first + count];
            let Some(mut memory) = self.staging.take(bytes) else {
                outcomes.extend(vec![Ok(NO_ROOM); count]);
                continue;
            };
            let mut rest = &mut memory[..];
            let mut buffers: Vec<&mut [u8]> = Vec::with_capacity(count);
            for pieces in all {
                let (value, after) = rest.split_at_mut(pieces.as_deref().map_or(0, total));
                buffers.push(value);
                rest = after;
            }
            let (keys, options) = (&keys[first..first + count], self.get_options());
            let read = self.client.get_batch_into(keys, &mut buffers, &options);
            for ((read, pieces), value) in read.into_iter().zip(all).zip(&buffers) {
                let outcome = match pieces {
                    None => Ok(WRONG),
                    Some(_) => exactly(length(read), pieces),
                };
                if let (Ok(0..), Some(pieces)) = (&outcome, pieces) {
                    spread(value, pieces);
                }
                outcomes.push(outcome);
            }
            self.staging.give_back(memory);
        }
        outcomes
    }

    /// Memory is not taken for a length that a caller only claims: the value must have it. Otherwise the outcome.
    fn check_length(&self, key: &[u8], bytes: usize) -> Result<(), Outcome> {
        match self.client.stat(key, &self.call()) {
            Ok(Some(found)) if found.bytes == bytes as u64 => Ok(()),
            Ok(Some(_)) => Err(Ok(WRONG)),
            Ok(None) | Err(ClientError::Key(_)) => Err(Ok(ABSENT)),
            Err(error) => Err(Err(error)),
        }
    }

    /// Copies parts of values into registered memory; one result a part, and one for each key whose lists do not fit
    /// together.
    pub(super) fn get_parts(&self, keys: &[&[u8]], wanted: &Wanted<'_>) -> Vec<Outcome> {
        let Some(limit) = self.registered.end_of(wanted.start) else {
            return vec![Ok(WRONG); wanted.counts().iter().sum()];
        };
        let mut outcomes = Vec::new();
        for (piece, keys) in keys.chunks(Wanted::KEYS).enumerate() {
            let first = piece * Wanted::KEYS;
            let values = self.client.get_batch(keys, &self.get_options());
            for (index, value) in values.into_iter().enumerate() {
                outcomes.extend(wanted.copy(first + index, value, limit));
            }
        }
        outcomes
    }

    /// Reads parts of values alone, into memory that does not overlap: the lengths of the values.
    pub(super) fn read_alone(&self, keys: &[&[u8]], parts: &Parts) -> Vec<Outcome> {
        let wrong = || vec![Ok(WRONG); keys.len()];
        let Some(places) = parts.places(keys.len()) else {
            return wrong();
        };
        let all: Vec<Range> = places.iter().flatten().map(|(into, _)| *into).collect();
        if overlap(&all) {
            return wrong();
        }
        let part = |(into, from): (Range, u64)| {
            // SAFETY: the caller of the call promises that the memory is there and that nothing else uses it until the call
            // returns; the parts do not overlap.
            let into = unsafe { into.as_mut_slice() };
            Part { from, into }
        };
        let of_key = |places: Vec<(Range, u64)>| places.into_iter().map(part).collect();
        let parts: Vec<Vec<Part<'_>>> = places.into_iter().map(of_key).collect();
        let read = self.client.get_parts(keys, parts, &self.get_options());
        read.into_iter().map(length).collect()
    }
}

/// The parts of values that go to offsets from one address: for each key the offsets there, the offsets in its value, and
/// the lengths; `None` where they do not fit together.
pub(super) struct Wanted<'a> {
    start: Number,
    keys: Vec<Option<[&'a [Number]; 3]>>,
    sizes: &'a [Vec<Number>],
}

impl<'a> Wanted<'a> {
    /// Values that are read at a time.
    const KEYS: usize = 16;

    pub(super) fn new(
        start: Number,
        to: &'a [Vec<Number>],
        from: &'a [Vec<Number>],
        sizes: &'a [Vec<Number>],
        keys: usize,
    ) -> Self {
        let fit = to.len() == keys && from.len() == keys && sizes.len() == keys;
        let lists = |key: usize| {
            let lists = [&to[key][..], &from[key], &sizes[key]];
            let same = lists.iter().all(|list| list.len() == sizes[key].len());
            same.then_some(lists)
        };
        let keys = (0..keys).map(|key| fit.then(|| lists(key)).flatten());
        Self {
            start,
            keys: keys.collect(),
            sizes,
        }
    }

    /// How many results each key has.
    pub(super) fn counts(&self) -> Vec<usize> {
        let count = |(index, lists): (usize, &Option<[&[Number]; 3]>)| match lists {
            Some([_, _, sizes]) => sizes.len(),
            None => usize::from(self.sizes.get(index).is_none_or(|sizes| !sizes.is_empty())),
        };
        self.keys.iter().enumerate().map(count).collect()
    }

    fn copy(
        &self,
        index: usize,
        value: Result<Option<Vec<u8>>, ClientError>,
        limit: usize,
    ) -> Vec<Outcome> {
        let count = self.counts()[index];
        let (Some([to, from, sizes]), value) = (self.keys[index], value) else {
            return vec![Ok(WRONG); count];
        };
        let value = match value {
            Ok(Some(value)) => value,
            Ok(None) | Err(ClientError::Key(_)) => return vec![Ok(ABSENT); count],
            Err(error) => return vec![Err(error); count],
        };
        let part = |((to, from), size): ((&Number, &Number), &Number)| {
            let end = from.0.checked_add(size.0);
            let bytes = end.and_then(|end| value.get(from.0..end));
            let start = self.start.0.checked_add(to.0).map(Number);
            let to = start.and_then(|start| Range::new(start, *size));
            let to = to.filter(|to| to.end() <= limit);
            let (Some(bytes), Some(to)) = (bytes, to) else {
                return Ok(WRONG);
            };
            spread(bytes, &[to]);
            Ok(bytes.len() as i64)
        };
        to.iter().zip(from).zip(sizes).map(part).collect()
    }
}

/// Copies a value to its pieces, which together have its length or less.
pub(super) fn spread(value: &[u8], pieces: &[Range]) {
    let mut at = 0;
    for piece in pieces {
        // SAFETY: the caller of the call promises that the memory is there and that nothing else uses it until the call
        // returns; slices of pieces that overlap are made one after another.
        let to = unsafe { piece.as_mut_slice() };
        to.copy_from_slice(&value[at..at + piece.bytes()]);
        at += piece.bytes();
    }
}

/// How many of the keys, one at least, are put together at a time, and the bytes of their values.
fn piece(all: &[Pieces]) -> (usize, usize) {
    let mut bytes = 0;
    for (count, pieces) in all.iter().enumerate() {
        let more = pieces.as_deref().map_or(0, total);
        if count > 0 && bytes + more > Staging::PIECE {
            return (count, bytes);
        }
        bytes += more;
    }
    (all.len(), bytes)
}

/// The length of a value that was read. What can be no key names no value.
fn length(read: Result<Option<usize>, ClientError>) -> Outcome {
    match read {
        Ok(Some(bytes)) => Ok(bytes as i64),
        Ok(None) | Err(ClientError::Key(_)) => Ok(ABSENT),
        Err(error) => Err(error),
    }
}
