//! Queries of the policy: whether it would keep a block, and why it keeps one.

use std::time::Duration;

use slackwater_base::Instant;

use super::Gittins;
use super::class::{Class, NEUTRAL_LEVEL, TICK_SECONDS, Tick, plain_shape, shape};
use super::estimate::return_chance;
use super::outlook::Outlook;
use super::segments::Place;
use crate::evict::ghosts::tag;
use crate::evict::{Explanation, ReturnChance, Slot, Standing};

/// A block is copied to a tier when its index is this many times that of the next victim there: a block that is hardly
/// better would soon be evicted itself, and the copy would be useless. A factor of two saves more writes, and costs
/// hits where little is learned.
pub(super) const COPY_WORTH: f64 = 1.5;
/// What an SSD holds is written again when its index is this many times that of the next victim there. On the conversation trace
/// (512 MiB over 8 GiB) three has a tenth less written and read by the device than 1.5, six a fifth, all for the same hits; twelve
/// costs hits.
pub(super) const MOVE_WORTH: f64 = 6.0;
/// Points of the return curve that an explanation shows.
const HORIZONS_SECONDS: [u64; 4] = [10, 60, 600, 3600];

impl Gittins {
    /// Whether a block of this class and age in ticks is worth so many times as much as the next victim, by the byte.
    pub(super) fn keeps(&self, bytes: u64, class: Class, age: u32, times: f64) -> bool {
        let cell = class.cell(self.tables.bin_of(age));
        let price = self.tables.value(cell, age) / bytes.max(1) as f64;
        self.shelves
            .lowest(&self.segments, &self.tables, self.now)
            .is_none_or(|(lowest, _)| price > times * lowest)
    }

    /// Class and age in ticks of a gone block, if its hash is kept; those of a new one otherwise.
    pub(super) fn memory_of(&self, hash: u64) -> (Class, u32) {
        let mut candidates = self.checkpoints.find(tag(hash));
        let segment =
            candidates.find_map(|(number, generation)| self.segments.living(number, generation));
        match segment {
            Some(segment) if segment.place == Place::Ghost => {
                (segment.kept_as, self.now.since(segment.last_use))
            }
            _ => (Class::new(shape(0, None, Outlook::Unknown), 1.0), 0),
        }
    }

    /// The position is exact for the tail of a segment, which is the next victim; for other blocks it is that of the
    /// head.
    pub(super) fn standing_of(&self, now: Instant, slot: Slot, number: u32) -> Standing {
        let segment = &self.segments[number];
        let behind_head = if segment.tail == slot.0 {
            u32::from(segment.cached) - 1
        } else {
            0
        };
        Standing {
            age: duration(self.origin.tick(now).since(segment.last_use)),
            reuses: self.marks[slot.0 as usize].count(),
            position: segment.start + behind_head,
            class: segment.class.0,
            kept_as: segment.kept_as.0,
            features: segment.features.0,
            chain: number << 8 | u32::from(segment.generation),
        }
    }

    /// The class that a block is kept by, and its age in ticks.
    pub(super) fn read_standing(&self, standing: Standing) -> (Class, u32) {
        (Class::clamped(standing.kept_as), ticks(standing.age))
    }

    /// The index a byte of the next victim, by whatever rule it is the next.
    fn lowest_learned(&self, now: Tick) -> Option<f64> {
        let (_, number) = self.shelves.lowest(&self.segments, &self.tables, now)?;
        let segment = &self.segments[number];
        let age = now.since(segment.last_use);
        let index = self.tables.learned(segment.kept_as.cell(segment.bin), age);
        Some(index / self.shelves.block_bytes(segment.octave))
    }

    pub(super) fn explanation(&self, now: Instant, slot: Slot, number: u32) -> Explanation {
        let segment = &self.segments[number];
        let now = self.origin.tick(now);
        let age = now.since(segment.last_use);
        let curve = self.tables.curve(segment.class);
        let bin = self.tables.bin_of(age);
        let returns = HORIZONS_SECONDS.iter().map(|&seconds| ReturnChance {
            within: Duration::from_secs(seconds),
            chance: return_chance(curve, usize::from(bin), seconds as f64),
        });
        let reuses = self.marks[slot.0 as usize].count();
        let bytes = self.shelves.block_bytes(segment.octave);
        Explanation {
            reuses: reuses.into(),
            age: duration(age),
            class: in_words(segment.class, reuses),
            index: self.tables.learned(segment.kept_as.cell(bin), age),
            lowest_index: self.lowest_learned(now).unwrap_or(0.0) * bytes,
            leader: self.leading(),
            returns: returns.collect(),
        }
    }
}

fn in_words(class: Class, reuses: u8) -> String {
    const OUTPUTS: [&str; 5] = [
        "output below 40 tokens",
        "output below 150 tokens",
        "output below 350 tokens",
        "long output",
        "output unknown",
    ];
    let hint = match plain_shape(class.shape()).1 {
        Outlook::Unknown => "",
        Outlook::Leaves => ", with a hint after which few return",
        Outlook::Returns => ", with a hint after which many return",
    };
    let history = match OUTPUTS.get(plain_shape(class.shape()).0) {
        Some(output) => format!("not reused yet ({output}){hint}"),
        None if reuses == 1 => format!("reused once{hint}"),
        None => format!("reused {reuses} times{hint}"),
    };
    if class.level() == NEUTRAL_LEVEL {
        return history;
    }
    let times = ((class.level() as f64 - NEUTRAL_LEVEL as f64) / 2.0).exp2();
    format!("{history}, {times:.1} times as likely to return as others of that kind")
}

/// The age in ticks, rounded to the nearest, so that converting it back gives the same age.
pub(super) fn ticks(age: Duration) -> u32 {
    (age.as_secs_f64() / TICK_SECONDS).round() as u32
}

fn duration(ticks: u32) -> Duration {
    Duration::from_secs_f64(f64::from(ticks) * TICK_SECONDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_told_with_its_hint() {
        for (bucket, reuses, outlook, words) in [
            (
                0,
                0,
                Outlook::Unknown,
                "not reused yet (output below 150 tokens)",
            ),
            (
                0,
                0,
                Outlook::Leaves,
                "not reused yet (output below 150 tokens), with a hint after which few return",
            ),
            (
                1,
                1,
                Outlook::Returns,
                "reused once, with a hint after which many return",
            ),
            (4, 7, Outlook::Unknown, "reused 7 times"),
        ] {
            let class = Class::new(shape(bucket, Some(50), outlook), 1.0);
            assert_eq!(in_words(class, reuses), words);
        }
    }
}
