//! What routers of requests are told of the blocks that a store holds, in the forms that they read.
//!
//! A batch is `[timestamp in seconds, [event, …], data-parallel rank]`, as vLLM and SGLang publish it. Its events are maps
//! or, for older readers, arrays with the fields in the order of their declaration.

mod hash;
mod holders;

use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};

pub use hash::BlockHash;
use holders::Holders;

use crate::{Key, SegmentKind, Tenant};

/// Something that happened to what a store holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// The first replica of a value in a tier can be read.
    Stored(Held),
    /// The last replica of a value in a tier is gone.
    Removed(Held),
    /// A value can still be read in a tier: told once more, for readers who have missed that it was stored.
    Repeated(Held),
    /// Nothing is held any more, whatever was told before.
    Cleared,
}

impl KvEvent {
    /// The value that it is about; none when about all.
    #[must_use]
    pub fn held(&self) -> Option<&Held> {
        match self {
            Self::Stored(held) | Self::Removed(held) | Self::Repeated(held) => Some(held),
            Self::Cleared => None,
        }
    }
}

/// A value in a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The tenant that it belongs to.
    pub tenant: Tenant,
    /// Its key.
    pub key: Key,
    /// Memory or SSD.
    pub tier: SegmentKind,
}

/// The form of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvDialect {
    /// Maps with the fields of vLLM 0.33 and SGLang 0.5.23.
    #[default]
    Map,
    /// The same fields as arrays, for readers of before the summer of 2026.
    LegacyArray,
    /// Maps with the fields of RFC 1527, as Mooncake's master sends them.
    Rfc1527,
}

impl KvDialect {
    /// Every dialect.
    pub const ALL: [Self; 3] = [Self::Map, Self::LegacyArray, Self::Rfc1527];

    /// Its name in configurations.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Map => "map",
            Self::LegacyArray => "legacy-array",
            Self::Rfc1527 => "rfc1527",
        }
    }
}

/// How events are written: the dialect, and what is the same in all events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEventFormat {
    /// The form of events.
    pub dialect: KvDialect,
    /// Tokens of a block; 0 when that is not known.
    pub block_tokens: u32,
    /// The data-parallel rank of the engine whose blocks these are.
    pub dp_rank: Option<u32>,
    /// Who holds the blocks, in RFC 1527.
    pub backend: String,
    /// The model whose blocks these are, in RFC 1527; left out when empty.
    pub model: String,
    /// Whether events of RFC 1527 name the key, also those whose key has no hash in it.
    pub with_key: bool,
    /// Whether events of RFC 1527 have the fields of the dialect [`KvDialect::Map`] too.
    pub with_type: bool,
}

impl Default for KvEventFormat {
    fn default() -> Self {
        Self {
            dialect: KvDialect::default(),
            block_tokens: 0,
            dp_rank: None,
            backend: String::new(),
            model: String::new(),
            with_key: true,
            with_type: true,
        }
    }
}

/// A batch in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvBatch {
    /// Its bytes; none when no event is left of it.
    pub body: Option<Vec<u8>>,
    /// Events in it. Those that say of a block what readers know already are not.
    pub events: u64,
    /// Events that are not in it because no block can be named by their keys.
    pub unparsed: u64,
}

/// Writes the events of a store in their order, in one form.
///
/// Values share the hash of a block where they are parts of it, of ranks, groups or layers, or where tenants have the same
/// one. Readers take a block for one thing, which they hear of twice: when the first value of it is stored in a medium, and
/// when the last of them is gone. For that the values of each block in each medium are counted here, which takes memory in
/// proportion to what is held. RFC 1527 tells of values: of each with its key, and of its block where it is stored and
/// where the last value of it is gone; it tells tenants apart.
#[derive(Debug)]
pub struct KvEncoder {
    format: KvEventFormat,
    holders: Holders,
}

impl KvEncoder {
    /// A writer for a store that holds nothing yet.
    #[must_use]
    pub fn new(format: KvEventFormat) -> Self {
        Self {
            format,
            holders: Holders::default(),
        }
    }

    /// Writes events of one moment, `millis` after the beginning of 1970. The first of them is number `first` of all, which
    /// only RFC 1527 tells.
    #[must_use]
    pub fn encode(&mut self, millis: u64, first: u64, events: &[KvEvent]) -> KvBatch {
        let said: Vec<Said> = events.iter().map(|event| self.count(event)).collect();
        let numbered = events.iter().zip(first..).zip(&said);
        let told = numbered.filter_map(|((event, number), said)| match said {
            Said::Told(hash) => Some(self.format.fields(millis, number, event, *hash)),
            Said::Known | Said::Unparsed => None,
        });
        let told: Vec<Value<'_>> = told.collect();
        let count = told.len() as u64;
        let batch = Value::List(vec![
            Value::Seconds(millis as f64 / 1000.0),
            Value::List(told),
            self.format.dp_rank.map_or(Value::Nil, Value::from),
        ]);
        let body = (count > 0)
            .then(|| rmp_serde::to_vec(&batch).expect("memory takes whatever is written to it"));
        let unparsed = said.iter().filter(|said| **said == Said::Unparsed);
        KvBatch {
            body,
            events: count,
            unparsed: unparsed.count() as u64,
        }
    }

    /// Counts what an event says of a block, and decides how it is told.
    fn count(&mut self, event: &KvEvent) -> Said {
        let is_rfc = self.format.dialect == KvDialect::Rfc1527;
        let with_key = is_rfc && self.format.with_key;
        let Some(held) = event.held() else {
            self.holders.clear();
            return Said::Told(None);
        };
        let Some(hash) = BlockHash::of(held.key.as_bytes()) else {
            return if with_key {
                Said::Told(None)
            } else {
                Said::Unparsed
            };
        };
        let tenant = is_rfc.then(|| held.tenant.clone());
        let changes = match event {
            KvEvent::Stored(_) => self.holders.add(tenant, hash, held.tier),
            KvEvent::Removed(_) => self.holders.remove(tenant, hash, held.tier),
            KvEvent::Repeated(_) | KvEvent::Cleared => true,
        };
        match (changes, with_key) {
            (true, _) => Said::Told(Some(hash)),
            (false, true) => Said::Told(matches!(event, KvEvent::Stored(_)).then_some(hash)),
            (false, false) => Said::Known,
        }
    }
}

/// How an event is told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    /// With the hash of a block, if it says anything of one.
    Told(Option<BlockHash>),
    /// Not at all: other values of the block are held there.
    Known,
    /// Not at all: its key names no block.
    Unparsed,
}

impl KvEventFormat {
    /// An event, with the hash of a block if it says anything of one.
    fn fields<'a>(
        &'a self,
        millis: u64,
        number: u64,
        event: &'a KvEvent,
        hash: Option<BlockHash>,
    ) -> Value<'a> {
        let hashes = || Value::List(hash.map(Value::Hash).into_iter().collect());
        match self.dialect {
            KvDialect::Map => Value::Map(self.of_engines(event, hashes)),
            KvDialect::LegacyArray => {
                let fields = self.of_engines(event, hashes);
                Value::List(fields.into_iter().map(|(_, value)| value).collect())
            }
            KvDialect::Rfc1527 => Value::Map(self.of_rfc(millis, number, event, hashes)),
        }
    }

    /// The fields of vLLM and SGLang, in their order. What a store does not know of a block is empty: its tokens, its parent.
    /// Fields that readers take for absent where they are missing are left out.
    fn of_engines<'a>(&self, event: &KvEvent, hashes: impl Fn() -> Value<'a>) -> Vec<Field<'a>> {
        match event {
            KvEvent::Stored(held) | KvEvent::Repeated(held) => vec![
                ("type", Value::Text("BlockStored")),
                ("block_hashes", hashes()),
                ("parent_block_hash", Value::Nil),
                ("token_ids", Value::List(Vec::new())),
                ("block_size", Value::from(self.block_tokens)),
                ("lora_id", Value::Nil),
                ("medium", Value::Text(medium_of_engines(held.tier))),
                ("lora_name", Value::Nil),
            ],
            KvEvent::Removed(held) => vec![
                ("type", Value::Text("BlockRemoved")),
                ("block_hashes", hashes()),
                ("medium", Value::Text(medium_of_engines(held.tier))),
            ],
            KvEvent::Cleared => vec![("type", Value::Text("AllBlocksCleared"))],
        }
    }

    fn of_rfc<'a>(
        &'a self,
        millis: u64,
        number: u64,
        event: &'a KvEvent,
        hashes: impl Fn() -> Value<'a>,
    ) -> Vec<Field<'a>> {
        let kind = match event {
            KvEvent::Stored(_) | KvEvent::Repeated(_) => "stored",
            KvEvent::Removed(_) => "removed",
            KvEvent::Cleared => "cleared",
        };
        let mut fields = vec![
            ("event_id", Value::Number(number)),
            ("timestamp", Value::Number(millis)),
            ("event_type", Value::Text(kind)),
            ("backend_id", Value::Text(&self.backend)),
        ];
        if !self.model.is_empty() {
            fields.push(("model_name", Value::Text(&self.model)));
        }
        if let Some(rank) = self.dp_rank {
            fields.push(("dp_rank", Value::from(rank)));
        }
        if let Some(held) = event.held() {
            let medium = match held.tier {
                SegmentKind::Memory => "cpu",
                SegmentKind::Disk => "disk",
            };
            fields.extend([
                ("tenant_id", Value::Text(held.tenant.name())),
                ("medium", Value::Text(medium)),
                ("seq_hashes", hashes()),
                ("block_hashes", hashes()),
                ("block_size", Value::from(self.block_tokens)),
            ]);
            if self.with_key {
                fields.push(("object_key", Value::Key(&held.key)));
            }
        }
        if self.with_type {
            for field in self.of_engines(event, hashes) {
                if fields.iter().all(|(name, _)| *name != field.0) {
                    fields.push(field);
                }
            }
        }
        fields
    }
}

/// The place of a block in the words of engines: vLLM's connectors write `cpu`, and its constant for anything behind it.
fn medium_of_engines(tier: SegmentKind) -> &'static str {
    match tier {
        SegmentKind::Memory => "cpu",
        SegmentKind::Disk => "STORAGE",
    }
}

type Field<'a> = (&'static str, Value<'a>);

/// What batches are made of.
enum Value<'a> {
    Nil,
    Number(u64),
    Seconds(f64),
    Hash(BlockHash),
    Text(&'a str),
    Key(&'a Key),
    List(Vec<Value<'a>>),
    Map(Vec<Field<'a>>),
}

impl From<u32> for Value<'_> {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl Serialize for Value<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Nil => serializer.serialize_none(),
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Seconds(seconds) => serializer.serialize_f64(*seconds),
            Self::Hash(BlockHash::Unsigned(hash)) => serializer.serialize_u64(*hash),
            Self::Hash(BlockHash::Negative(hash)) => serializer.serialize_i64(*hash),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Key(key) => match std::str::from_utf8(key.as_bytes()) {
                Ok(text) => serializer.serialize_str(text),
                Err(_) => serializer.serialize_bytes(key.as_bytes()),
            },
            Self::List(values) => {
                let mut list = serializer.serialize_seq(Some(values.len()))?;
                for value in values {
                    list.serialize_element(value)?;
                }
                list.end()
            }
            Self::Map(fields) => {
                let mut map = serializer.serialize_map(Some(fields.len()))?;
                for (name, value) in fields {
                    map.serialize_entry(name, value)?;
                }
                map.end()
            }
        }
    }
}

/// What was told of events since a store began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KvEventCounts {
    /// Whether events are told at all.
    pub enabled: bool,
    /// Messages published.
    pub published_batches: u64,
    /// Events in them.
    pub published_events: u64,
    /// Events that were dropped because too many waited to be published.
    pub dropped_events: u64,
    /// Events that were left out because no block can be named by their keys.
    pub skipped_unparsed_keys: u64,
}

#[cfg(test)]
mod tests;
