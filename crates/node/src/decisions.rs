use serde::Serialize;
use slackwater_base::Instant;
use slackwater_meta::{
    Choice, Decision, EvictionCause, OffloadCause, OffloadRefusal, PromotionCause, PromotionRefusal,
};
use slackwater_wire::{Key, SegmentKind};

use crate::store::Learned;

/// The latest decisions about single objects. Field names are a contract with scripts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LatestDecisions {
    /// Decisions that the master made since it started; those that are kept are a part of them.
    pub made: u64,
    /// The latest that were kept, the oldest first.
    pub latest: Vec<ToldDecision>,
}

/// One decision about one object.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToldDecision {
    /// Its number among those that were made.
    pub number: u64,
    /// Seconds since it was made.
    pub age_s: f64,
    /// What was decided: `evicted`, `offloaded`, `not_offloaded`, `promoted` or `not_promoted`.
    pub decision: &'static str,
    /// The cause, or the gate that refused: a word that does not change.
    pub cause: &'static str,
    /// The same as people say it.
    pub why: String,
    /// The tenant that the object belongs to.
    pub tenant: String,
    /// The object, on one line.
    pub key: String,
    /// Length of its value.
    pub bytes: u64,
    /// The number of the segment that is evicted from, or copied from.
    pub segment: u32,
    /// `memory` or `ssd`: what that segment is made of.
    pub tier: &'static str,
    /// What the policy of the segment had learned of the object; `None` for policies that know nothing but an order.
    pub learned: Option<Learned>,
}

impl LatestDecisions {
    /// What a master told at `now`; `shown` puts a key on one line.
    pub(crate) fn told(
        (latest, made): (Vec<Decision>, u64),
        now: Instant,
        shown: impl Fn(&Key) -> String,
    ) -> Self {
        let latest = latest.into_iter();
        let latest = latest.map(|decision| {
            let key = shown(&decision.key);
            ToldDecision::new(decision, now, key)
        });
        Self {
            made,
            latest: latest.collect(),
        }
    }
}

impl ToldDecision {
    fn new(decision: Decision, now: Instant, key: String) -> Self {
        let (name, cause, why) = said(decision.choice);
        Self {
            number: decision.number,
            age_s: decision.at.until(now).as_secs_f64(),
            decision: name,
            cause,
            why,
            tenant: decision.tenant.name().to_owned(),
            key,
            bytes: decision.bytes,
            segment: decision.segment.0,
            tier: match decision.tier {
                SegmentKind::Memory => "memory",
                SegmentKind::Disk => "ssd",
            },
            learned: decision.rating.map(Learned::from),
        }
    }
}

/// What was decided, its cause in a word, and its cause for people.
fn said(choice: Choice) -> (&'static str, &'static str, String) {
    let times = |heat: u8| format!("read {heat} times lately");
    let (name, cause, why) = match choice {
        Choice::Evicted { cause, last } => {
            let (word, why) = match cause {
                EvictionCause::Room => ("room", "room was needed"),
                EvictionCause::Quota => ("quota", "its tenant is at its quota"),
                EvictionCause::Written => ("written", "it is written to SSD"),
            };
            let left = if last {
                "this was the last copy"
            } else {
                "another copy stays"
            };
            ("evicted", word, format!("{why}; {left}"))
        }
        Choice::Offloaded(cause) => {
            let (word, why) = match cause {
                OffloadCause::Eager => ("put", "its put ended"),
                OffloadCause::Eviction => ("eviction", "it is to leave memory"),
                OffloadCause::Promise => ("promise", "somebody waits until it is on SSD"),
            };
            ("offloaded", word, why.to_owned())
        }
        Choice::NotOffloaded(refusal) => {
            let (word, why) = match refusal {
                OffloadRefusal::Busy => ("busy", "too many are under way"),
                OffloadRefusal::NoDisk => ("no_disk", "no SSD takes it"),
                OffloadRefusal::TooLong => ("too_long", "it is longer than the SSD"),
                OffloadRefusal::NotWorth => ("not_worth", "the SSD would evict it first"),
            };
            ("not_offloaded", word, why.to_owned())
        }
        Choice::Promoted(cause) => {
            let (word, why) = match cause {
                PromotionCause::Reads(heat) => ("frequency", times(heat)),
                PromotionCause::Worth => {
                    ("index", "worth more than what memory would drop".to_owned())
                }
                PromotionCause::Earlier => {
                    ("earlier", "earned before, or with its group".to_owned())
                }
            };
            ("promoted", word, why)
        }
        Choice::NotPromoted(refusal) => {
            let (word, why) = match refusal {
                PromotionRefusal::Reads(heat) => {
                    ("frequency", format!("{}, which is too rare", times(heat)))
                }
                PromotionRefusal::NotWorth => {
                    ("index", "worth less than what memory holds".to_owned())
                }
                PromotionRefusal::Watermark => ("watermark", "memory is too full".to_owned()),
                PromotionRefusal::Busy => ("cap", "too many are under way".to_owned()),
            };
            ("not_promoted", word, why)
        }
    };
    (name, cause, why)
}

#[cfg(test)]
mod tests {
    use slackwater_wire::{SegmentId, Tenant};

    use super::*;

    #[test]
    fn a_decision_is_told_with_its_cause() {
        let check = |choice: Choice, decision: &str, cause: &str, why: &str| {
            let made = Decision {
                number: 7,
                at: Instant::from_nanos(500_000_000),
                tenant: Tenant::DEFAULT,
                key: Key::new(b"k").unwrap(),
                bytes: 10,
                segment: SegmentId(3),
                tier: SegmentKind::Disk,
                choice,
                rating: None,
            };
            let now = Instant::from_nanos(2_000_000_000);
            let told = LatestDecisions::told((vec![made], 9), now, ToString::to_string);
            let expected = ToldDecision {
                number: 7,
                age_s: 1.5,
                decision: match decision {
                    "evicted" => "evicted",
                    "offloaded" => "offloaded",
                    "not_offloaded" => "not_offloaded",
                    "promoted" => "promoted",
                    _ => "not_promoted",
                },
                cause: told.latest[0].cause,
                why: why.to_owned(),
                tenant: "default".to_owned(),
                key: "k".to_owned(),
                bytes: 10,
                segment: 3,
                tier: "ssd",
                learned: None,
            };
            assert_eq!(told.latest, [expected]);
            assert_eq!((told.latest[0].cause, told.made), (cause, 9));
        };
        let evicted = |cause, last| Choice::Evicted { cause, last };
        check(
            evicted(EvictionCause::Room, false),
            "evicted",
            "room",
            "room was needed; another copy stays",
        );
        check(
            evicted(EvictionCause::Quota, true),
            "evicted",
            "quota",
            "its tenant is at its quota; this was the last copy",
        );
        check(
            evicted(EvictionCause::Written, false),
            "evicted",
            "written",
            "it is written to SSD; another copy stays",
        );
        check(
            Choice::Offloaded(OffloadCause::Eviction),
            "offloaded",
            "eviction",
            "it is to leave memory",
        );
        check(
            Choice::NotOffloaded(OffloadRefusal::NotWorth),
            "not_offloaded",
            "not_worth",
            "the SSD would evict it first",
        );
        check(
            Choice::Promoted(PromotionCause::Reads(3)),
            "promoted",
            "frequency",
            "read 3 times lately",
        );
        check(
            Choice::NotPromoted(PromotionRefusal::Reads(1)),
            "not_promoted",
            "frequency",
            "read 1 times lately, which is too rare",
        );
        check(
            Choice::NotPromoted(PromotionRefusal::Watermark),
            "not_promoted",
            "watermark",
            "memory is too full",
        );
    }
}
