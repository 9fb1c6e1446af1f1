//! What the master tells its clients of why a value is where it is.

use serde_json::{Value, json};
use slackwater_base::format_duration;
use slackwater_wire::{Description, Pin, ReplicaAt, ReplicaState, SegmentKind};

/// A dictionary for each replica, those in memory first, with the fields of those that a store explains.
pub(super) fn reasons(found: &Description) -> Vec<Value> {
    let kept = kept(found);
    let reason = |((at, state, _), segment): (&(ReplicaAt, ReplicaState, u32), &str)| {
        let tier = at.kind().tier();
        let mut words = format!("in {tier}");
        // A store that is served has one memory and one SSD, called by their tiers.
        if !segment.is_empty() && segment != tier {
            words += &format!(" of {segment}");
        }
        if *state != ReplicaState::Complete {
            words += &format!(", {}", state.name());
        }
        json!({
            "tier": tier,
            "held": *state == ReplicaState::Complete,
            "policy": null,
            "learned": null,
            "views": null,
            "words": words + &kept,
        })
    };
    let mut replicas: Vec<_> = found.named().collect();
    replicas.sort_by_key(|((at, ..), _)| at.kind() != SegmentKind::Memory);
    replicas.into_iter().map(reason).collect()
}

/// What keeps it from being evicted.
fn kept(found: &Description) -> String {
    let mut words = match found.pin {
        Pin::None => String::new(),
        Pin::Soft(Some(left)) => format!("; pinned for {} more", format_duration(left)),
        Pin::Soft(None) => "; pinned for a time".to_owned(),
        Pin::Hard => "; pinned until it is removed".to_owned(),
    };
    if !found.lease.is_zero() {
        let left = format_duration(found.lease);
        words += &format!("; readers hold it for {left} more");
    }
    words
}
