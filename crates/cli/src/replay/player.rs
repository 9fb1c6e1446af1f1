use std::time::{Duration, Instant};

use slackwater_node::{GetOptions, Got, PutOptions, Stats, Store, StoreError, Stored, Tier};
use slackwater_replay::{Content, Request, spoil};
use slackwater_wire::{Chain, Class, Key};

use super::tally::ReplayCounts;

/// What a replay needs of a store, so that a test can give it one that answers wrongly.
pub(super) trait Cache {
    /// Reads the leading present keys.
    fn read(
        &self,
        keys: &[&[u8]],
        buffers: &mut [&mut [u8]],
        chain: Chain,
    ) -> Vec<Result<Option<Got>, StoreError>>;
    /// Puts what is not there.
    fn write(&self, entries: &[(&[u8], &[u8])], chain: Chain) -> Vec<Result<Stored, StoreError>>;
    /// Lets its time pass until so long after its opening.
    fn skip_to(&self, since_open: Duration) -> Result<(), StoreError>;
    /// The store's counters at this moment.
    fn stats(&self) -> Stats;
}

impl Cache for Store {
    fn read(
        &self,
        keys: &[&[u8]],
        buffers: &mut [&mut [u8]],
        chain: Chain,
    ) -> Vec<Result<Option<Got>, StoreError>> {
        self.get_batch_into(
            keys,
            buffers,
            &GetOptions {
                chain,
                prefix_only: true,
                ..GetOptions::default()
            },
        )
    }

    fn write(&self, entries: &[(&[u8], &[u8])], chain: Chain) -> Vec<Result<Stored, StoreError>> {
        self.put_batch(
            entries,
            &PutOptions {
                chain,
                ..PutOptions::default()
            },
        )
    }

    fn skip_to(&self, since_open: Duration) -> Result<(), StoreError> {
        Store::skip_to(self, since_open)
    }

    fn stats(&self) -> Stats {
        Store::stats(self)
    }
}

/// Plays requests against a cache, one after the other, and counts what happens.
pub(super) struct Player<'a> {
    cache: &'a dyn Cache,
    identity: u64,
    block_bytes: usize,
    /// Tokens of a block, where a last one that is not filled is not to be put.
    pub(super) block_tokens: Option<u64>,
    /// Room for the blocks of one call; longer chains take several calls.
    buffer: Vec<u8>,
    tally: ReplayCounts,
}

/// Room for the blocks of one call: part of the constant that a replay needs beside `--memory`.
const BUFFER_BYTES: usize = 16 << 20;

impl<'a> Player<'a> {
    pub(super) fn new(cache: &'a dyn Cache, identity: u64, block_bytes: usize) -> Self {
        let blocks =
            (BUFFER_BYTES / block_bytes).clamp(1, slackwater_wire::limits::BATCH_KEYS_MAX / 4);
        let buffer = vec![0; blocks * block_bytes];
        Self {
            cache,
            identity,
            block_bytes,
            block_tokens: None,
            buffer,
            tally: ReplayCounts::default(),
        }
    }

    /// What has happened so far.
    pub(super) fn tally(&self) -> &ReplayCounts {
        &self.tally
    }

    /// What happened, for good.
    pub(super) fn into_tally(self) -> ReplayCounts {
        self.tally
    }

    /// One request: reads the longest present prefix, checks every bit of it, puts the rest.
    ///
    /// # Errors
    /// The first error after which nothing can be trusted. Others are counted: a read that fails is a miss.
    pub(super) fn play(&mut self, request: &Request) -> Result<(), StoreError> {
        let keys = Keys::of(self.identity, self.block_bytes, &request.blocks);
        let started = Instant::now();
        let prefix = self.read_prefix(&keys, request)?;
        self.tally.busy += started.elapsed();
        self.write_rest(&keys, request, prefix)?;
        self.tally.requests += 1;
        self.tally.blocks += keys.len() as u64;
        Ok(())
    }

    /// How many leading blocks were there.
    fn read_prefix(&mut self, keys: &Keys, request: &Request) -> Result<usize, StoreError> {
        let mut prefix = 0;
        while prefix < keys.len() {
            let names = keys.slices(prefix, self.room());
            let asked = &mut self.buffer[..names.len() * self.block_bytes];
            spoil(asked);
            let mut buffers: Vec<&mut [u8]> = asked.chunks_mut(self.block_bytes).collect();
            let chain = request.chain(keys.parent(prefix), prefix);
            let started = Instant::now();
            let results = self.cache.read(&names, &mut buffers, chain);
            let took = started.elapsed();
            let mut found = 0;
            for (index, result) in results.into_iter().enumerate() {
                match result {
                    Ok(Some(got)) => self.check(names[index], index, got),
                    Ok(None) => break,
                    Err(error) => {
                        self.tally.read_error(&error);
                        trusted(error)?;
                        break;
                    }
                }
                found += 1;
            }
            self.tally.read_call(found, took);
            prefix += found;
            if found < names.len() {
                break;
            }
        }
        Ok(prefix)
    }

    fn check(&mut self, key: &[u8], index: usize, got: Got) {
        self.tally.prefix_hits += 1;
        self.tally.get_bytes += got.bytes as u64;
        match got.tier {
            Tier::Memory => self.tally.memory_hits += 1,
            Tier::Disk => self.tally.ssd_hits += 1,
        }
        let block = &self.buffer[index * self.block_bytes..][..self.block_bytes];
        let shown = key.escape_ascii();
        if got.bytes != self.block_bytes {
            self.tally.corrupt_reads += 1;
            tracing::error!(key = %shown, want = self.block_bytes, have = got.bytes, "a block has the wrong length");
        } else if let Err(wrong) = Content::of(key).check(block) {
            self.tally.corrupt_reads += 1;
            tracing::error!(key = %shown, offset = wrong.offset, "a block has the wrong bytes");
        }
    }

    fn write_rest(
        &mut self,
        keys: &Keys,
        request: &Request,
        prefix: usize,
    ) -> Result<(), StoreError> {
        let full = self
            .block_tokens
            .map_or(u64::MAX, |tokens| request.input_tokens / tokens);
        let end = keys.len().min(usize::try_from(full).unwrap_or(usize::MAX));
        let mut position = prefix;
        while position < end {
            let names = keys.slices(position, self.room().min(end - position));
            for (name, block) in names.iter().zip(self.buffer.chunks_mut(self.block_bytes)) {
                Content::of(name).fill(block);
            }
            let values = self.buffer.chunks(self.block_bytes);
            let entries: Vec<(&[u8], &[u8])> = names.iter().copied().zip(values).collect();
            let chain = request.chain_of_put(keys.parent(position), position);
            let started = Instant::now();
            let results = self.cache.write(&entries, chain);
            self.tally.busy += started.elapsed();
            for result in results {
                match result {
                    Ok(Stored::New) => self.tally.put(self.block_bytes),
                    Ok(Stored::Existed) => self.tally.present_beyond_prefix += 1,
                    Err(error) => {
                        self.tally.put_error(&error);
                        trusted(error)?;
                    }
                }
            }
            position += names.len();
        }
        Ok(())
    }

    fn room(&self) -> usize {
        self.buffer.len() / self.block_bytes
    }
}

/// The keys of a chain, in one run of bytes.
struct Keys {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Keys {
    /// A block's key names its source and its size: one directory serves many replays, and none reads another's.
    fn of(identity: u64, block_bytes: usize, blocks: &[u64]) -> Self {
        let mut keys = Self {
            bytes: Vec::new(),
            ends: Vec::with_capacity(blocks.len()),
        };
        for block in blocks {
            keys.bytes.extend_from_slice(
                format!("replay/{identity:016x}/{block_bytes}/{block}").as_bytes(),
            );
            keys.ends.push(keys.bytes.len());
        }
        keys
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[index]]
    }

    fn slices(&self, first: usize, limit: usize) -> Vec<&[u8]> {
        (first..self.len().min(first + limit))
            .map(|index| self.get(index))
            .collect()
    }

    /// The block before this one, in its chain.
    fn parent(&self, first: usize) -> Option<Key> {
        let before = first.checked_sub(1)?;
        Some(Key::new(self.get(before)).expect("keys are short and not empty"))
    }
}

/// An error that only costs a hit comes back as nothing.
fn trusted(error: StoreError) -> Result<(), StoreError> {
    let code = error.code();
    let over = code.class() == Class::Fatal
        || matches!(error, StoreError::Closed | StoreError::Broken { .. });
    if over { Err(error) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use slackwater_wire::{ErrorCode, Expectation};

    use super::*;

    /// A cache of a map, with a fault to be found.
    #[derive(Default)]
    struct Fake {
        values: RefCell<BTreeMap<Vec<u8>, Vec<u8>>>,
        chains: RefCell<Vec<(&'static str, Chain, usize)>>,
        fault: Fault,
    }

    #[derive(Clone, Copy, Default, PartialEq)]
    enum Fault {
        #[default]
        None,
        FlipBit,
        LeaveBuffer,
        ShortLength,
        RefusePuts,
        Break,
    }

    impl Cache for Fake {
        fn read(
            &self,
            keys: &[&[u8]],
            buffers: &mut [&mut [u8]],
            chain: Chain,
        ) -> Vec<Result<Option<Got>, StoreError>> {
            self.chains.borrow_mut().push(("read", chain, keys.len()));
            let mut present = true;
            let mut read = |key: &[u8], buffer: &mut [u8]| {
                let values = self.values.borrow();
                let Some(value) = values.get(key).filter(|_| present) else {
                    present = false;
                    return Ok(None);
                };
                if self.fault == Fault::Break {
                    return Err(StoreError::Closed);
                }
                if self.fault != Fault::LeaveBuffer {
                    buffer.copy_from_slice(value);
                }
                if self.fault == Fault::FlipBit {
                    buffer[value.len() - 1] ^= 0x10;
                }
                let bytes = value.len() - usize::from(self.fault == Fault::ShortLength);
                Ok(Some(Got {
                    bytes,
                    tier: Tier::Disk,
                }))
            };
            keys.iter()
                .zip(buffers)
                .map(|(key, buffer)| read(key, buffer))
                .collect()
        }

        fn write(
            &self,
            entries: &[(&[u8], &[u8])],
            chain: Chain,
        ) -> Vec<Result<Stored, StoreError>> {
            self.chains
                .borrow_mut()
                .push(("write", chain, entries.len()));
            let write = |(key, value): &(&[u8], &[u8])| {
                if self.fault == Fault::RefusePuts {
                    return Err(StoreError::RefusedCall(ErrorCode::NoAvailableHandle));
                }
                let before = self
                    .values
                    .borrow_mut()
                    .insert(key.to_vec(), value.to_vec());
                Ok(if before.is_some() {
                    Stored::Existed
                } else {
                    Stored::New
                })
            };
            entries.iter().map(write).collect()
        }

        fn skip_to(&self, _since_open: Duration) -> Result<(), StoreError> {
            Ok(())
        }

        fn stats(&self) -> Stats {
            Stats::default()
        }
    }

    fn request(blocks: &[u64]) -> Request {
        Request {
            blocks: blocks.to_vec(),
            output_tokens: 9,
            hint: Some(3),
            expect: Some(Expectation::Ends),
            ..Request::default()
        }
    }

    fn played_with(fault: Fault) -> (ReplayCounts, Result<(), StoreError>) {
        let mut fake = Fake::default();
        Player::new(&fake, 1, 4096).play(&request(&[1, 2])).unwrap();
        fake.fault = fault;
        let mut player = Player::new(&fake, 1, 4096);
        // The first block is read twice: a buffer left alone holds the right bytes of the time before.
        let played = player
            .play(&request(&[1, 2]))
            .and_then(|()| player.play(&request(&[1, 2, 3])));
        (player.into_tally(), played)
    }

    #[test]
    fn reads_the_prefix_and_puts_the_rest_behind_its_parent() {
        let fake = Fake::default();
        let mut player = Player::new(&fake, 0xab, 4096);
        player.play(&request(&[1, 2])).unwrap();
        fake.chains.borrow_mut().clear();
        player.play(&request(&[1, 2, 3, 4])).unwrap();
        let tally = player.tally();
        assert_eq!(
            (
                tally.requests,
                tally.blocks,
                tally.prefix_hits,
                tally.ssd_hits
            ),
            (2, 6, 2, 2)
        );
        assert_eq!(
            (tally.put_bytes, tally.get_bytes, tally.corrupt_reads),
            (4 * 4096, 2 * 4096, 0)
        );
        let chains = fake.chains.borrow();
        let (what, chain, entries) = &chains[1];
        assert_eq!(
            (
                *what,
                *entries,
                chain.position,
                chain.hint,
                chain.expect,
                chain.output_tokens
            ),
            ("write", 2, 2, Some(3), Some(Expectation::Ends), Some(9))
        );
        assert_eq!(
            chain.parent,
            Some(Key::new(b"replay/00000000000000ab/4096/2").unwrap())
        );
    }

    #[test]
    fn long_chains_go_in_pieces_that_hang_together() {
        let fake = Fake::default();
        let mut player = Player::new(&fake, 1, 8 << 20);
        for _ in 0..2 {
            player.play(&request(&[1, 2, 3, 4, 5])).unwrap();
        }
        let tally = player.tally();
        assert_eq!(
            (tally.prefix_hits, tally.put_bytes, tally.corrupt_reads),
            (5, 40 << 20, 0)
        );
        let pieces: Vec<(&str, u32, usize)> = fake
            .chains
            .borrow()
            .iter()
            .map(|(what, chain, keys)| (*what, chain.position, *keys))
            .collect();
        let first = [
            ("read", 0, 2),
            ("write", 0, 2),
            ("write", 2, 2),
            ("write", 4, 1),
        ];
        assert_eq!(
            pieces,
            [
                &first[..],
                &[("read", 0, 2), ("read", 2, 2), ("read", 4, 1)]
            ]
            .concat()
        );
    }

    #[test]
    fn a_block_behind_a_hole_is_a_block_hit_and_no_prefix_hit() {
        let fake = Fake::default();
        let mut player = Player::new(&fake, 1, 4096);
        player.play(&request(&[1, 2, 3])).unwrap();
        fake.values
            .borrow_mut()
            .retain(|key, _| !key.ends_with(b"/2"));
        player.play(&request(&[1, 2, 3])).unwrap();
        assert_eq!(
            (
                player.tally().prefix_hits,
                player.tally().present_beyond_prefix
            ),
            (1, 1)
        );
    }

    #[test]
    fn a_last_block_that_is_not_full_is_put_only_where_blocks_have_no_size() {
        let fake = Fake::default();
        let mut player = Player::new(&fake, 1, 4096);
        player.block_tokens = Some(512);
        player
            .play(&Request {
                input_tokens: 1023,
                ..request(&[1, 2])
            })
            .unwrap();
        player
            .play(&Request {
                input_tokens: 1024,
                ..request(&[3, 4])
            })
            .unwrap();
        let names: Vec<Vec<u8>> = fake.values.borrow().keys().cloned().collect();
        assert_eq!(
            names
                .iter()
                .map(|name| name[name.len() - 1])
                .collect::<Vec<_>>(),
            b"134"
        );
    }

    #[test]
    fn every_lie_is_counted_as_corrupt() {
        for fault in [Fault::FlipBit, Fault::LeaveBuffer, Fault::ShortLength] {
            let (tally, played) = played_with(fault);
            assert_eq!(
                (played, tally.corrupt_reads, tally.prefix_hits),
                (Ok(()), 4, 4)
            );
        }
        assert_eq!(played_with(Fault::None).0.corrupt_reads, 0);
    }

    #[test]
    fn a_refused_put_costs_a_hit_and_a_broken_store_ends_the_run() {
        let (tally, played) = played_with(Fault::RefusePuts);
        assert_eq!(
            (played, tally.put_errors["NO_AVAILABLE_HANDLE"]),
            (Ok(()), 1)
        );
        assert_eq!(played_with(Fault::Break).1, Err(StoreError::Closed));
    }
}
