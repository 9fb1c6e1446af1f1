use slackwater_base::Checksum;
use slackwater_client::{Action, PutFlow, PutOutcome, WriteFailure};
use slackwater_trace::{SpanKind, TraceSpan};
use slackwater_transfer::Capability;
use slackwater_wait::{failpoint, now};
use slackwater_wire::limits::BATCH_KEYS_MAX;
use slackwater_wire::{Chain, ExtentRef, Key, PutConfig, PutEntry, PutStart, Reply, Request};
use std::pin::pin;

use crate::carry::{Carrier, NotMoved};
use crate::client::Call;
use crate::drive::Carry;
use crate::{ClientError, PutOptions, Stored};

type Outcome = Result<Stored, ClientError>;

/// Part of the server's memory that one request of a large batch may ask for: the first of its values must be published
/// before the last can find room.
const SHARE: u64 = 8;

/// One request's puts, one after another.
struct Writing<'a, 'v> {
    carrier: Carrier<'a>,
    values: Vec<&'v [u8]>,
}

impl Call<'_> {
    /// Puts values, an outcome each.
    pub(crate) async fn write(
        &self,
        entries: &[(&[u8], &[u8])],
        options: &PutOptions,
    ) -> Vec<Outcome> {
        let span = TraceSpan::root("slackwater.put", SpanKind::Client).keys(entries.len());
        let written = span.awaiting(pin!(self.write_all(entries, options))).await;
        span.each_over(written, ClientError::code)
    }

    async fn write_all(&self, entries: &[(&[u8], &[u8])], options: &PutOptions) -> Vec<Outcome> {
        if let Err(error) = self.check_room() {
            return vec![Err(error); entries.len()];
        }
        let mut outcomes = Vec::with_capacity(entries.len());
        let mut chain = options.chain.clone();
        let mut rest = entries;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(self.piece(rest));
            outcomes.extend(self.write_piece(piece, &chain, options).await);
            chain.parent = piece.last().and_then(|(key, _)| Key::new(key).ok());
            chain.position = chain.position.saturating_add(piece.len() as u32);
            rest = after;
        }
        outcomes
    }

    /// How many of the entries, one at least, go into one request.
    fn piece(&self, entries: &[(&[u8], &[u8])]) -> usize {
        let share = self.client.link().value_bytes_max() / SHARE;
        let mut bytes = 0;
        let fits = |(_, value): &&(&[u8], &[u8])| {
            bytes += slackwater_base::round_to_block(value.len() as u64);
            bytes <= share
        };
        let limited = entries.iter().take(BATCH_KEYS_MAX);
        limited.take_while(fits).count().max(1)
    }

    async fn check(&self, (key, value): &(&[u8], &[u8])) -> Result<Key, ClientError> {
        let key = Key::new(key)?;
        let (bytes, link) = (value.len() as u64, self.client.link());
        let fits = link.may_have(bytes, self.until, self.caller()).await;
        let limit = link.value_bytes_max();
        match bytes {
            0 => Err(ClientError::EmptyValue { key }),
            _ if !fits => Err(ClientError::ValueTooLarge { key, bytes, limit }),
            _ => Ok(key),
        }
    }

    async fn write_piece(
        &self,
        entries: &[(&[u8], &[u8])],
        chain: &Chain,
        options: &PutOptions,
    ) -> Vec<Outcome> {
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(entries.len());
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for entry in entries {
            outcomes.push(self.check(entry).await.map(|key| {
                keys.push(key);
                values.push(entry.1);
                Stored::New
            }));
        }
        if keys.is_empty() {
            return outcomes;
        }
        let named = keys.iter().zip(&values);
        let start = PutStart {
            tenant: self.options.tenant.clone(),
            entries: named
                .map(|(key, value)| PutEntry {
                    key: key.clone(),
                    bytes: value.len() as u64,
                })
                .collect(),
            chain: chain.clone(),
            config: PutConfig {
                mode: options.mode,
                replicas: options.replicas,
                preferred: options.preferred.clone(),
                pin: options.pin,
                group: options.group,
                durability: options.durability,
                wait: options.wait,
            },
        };
        let mut begun = Vec::new();
        let mut flow = PutFlow::start(self.begun, start, self.flow_options(), &mut begun);
        let mut writing = Writing {
            carrier: self.carrier(),
            values,
        };
        self.drive().run(&mut flow, begun, &mut writing).await;
        self.client.locations().forget(&keys);
        let ends = flow.outcomes().unwrap_or_default().into_iter().zip(&keys);
        let mut settled = ends.map(|(outcome, key)| match outcome {
            PutOutcome::Stored => Ok(Stored::New),
            PutOutcome::Existed => Ok(Stored::Existed),
            PutOutcome::Failed(code) => Err(self.failed("a put", key, code)),
            PutOutcome::Unknown => Err(self.unknown("a put")),
        });
        for outcome in outcomes.iter_mut().filter(|outcome| outcome.is_ok()) {
            if let Some(settled) = settled.next() {
                *outcome = settled;
            }
        }
        outcomes
    }
}

impl Writing<'_, '_> {
    /// Writes values to all their extents, an outcome each. Where bytes of one value differ, as its caller changed them
    /// meanwhile, a node finds that they have another checksum.
    async fn write(&self, puts: &[(usize, Vec<ExtentRef>)]) -> Vec<Result<Checksum, WriteFailure>> {
        failpoint("put.granted");
        let mut outcomes: Vec<Result<Checksum, WriteFailure>> = Vec::with_capacity(puts.len());
        let (mut places, mut writes) = (Vec::new(), Vec::new());
        for (place, (index, extents)) in puts.iter().enumerate() {
            let rights = extents.iter().map(|extent| {
                let right = self.carrier.rights.get(extent).copied();
                right.map(|right| (right, extent.offset, self.values[*index]))
            });
            match rights.collect::<Option<Vec<_>>>() {
                Some(rights) => {
                    outcomes.push(Ok(Checksum::of(&[])));
                    places.extend(rights.iter().map(|_| place));
                    writes.extend(rights);
                }
                None => outcomes.push(Err(WriteFailure::Stale)),
            }
        }
        let written = self.carrier.write_all(&writes).await;
        for (place, written) in places.into_iter().zip(written) {
            let written = written.map_err(|not_moved| match not_moved {
                NotMoved::Stale => WriteFailure::Stale,
                NotMoved::Failed => WriteFailure::Transfer,
                NotMoved::Cancelled => WriteFailure::Cancelled,
            });
            outcomes[place] = outcomes[place].and(written);
        }
        failpoint("put.written");
        outcomes
    }
}

impl Carry<PutFlow> for Writing<'_, '_> {
    fn granted(&mut self, _: &Request, _: &Reply, extents: Vec<(ExtentRef, Capability)>) {
        self.carrier.granted(&extents);
    }

    async fn carry(&mut self, flow: &mut PutFlow, moves: Vec<Action>, out: &mut Vec<Action>) {
        let put = |action| match action {
            Action::Write { index, extents } => (index, extents),
            _ => unreachable!("a flow that puts does not read"),
        };
        let puts: Vec<(usize, Vec<ExtentRef>)> = moves.into_iter().map(put).collect();
        let written = self.write(&puts).await;
        for ((index, _), written) in puts.into_iter().zip(written) {
            flow.on_written(now(), index, written, out);
        }
    }

    fn cancelled(&mut self, flow: &mut PutFlow, index: usize, out: &mut Vec<Action>) {
        let cancelled = Err(WriteFailure::Cancelled);
        flow.on_written(now(), index, cancelled, out);
    }
}
