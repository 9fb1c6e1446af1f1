use serde_json::{Value, json};
use slackwater_wire::{Description, Key, Pin, ReplicaAt, ReplicaState};

/// An object and its replicas, as JSON.
#[must_use]
pub fn described(found: &Description) -> Value {
    let replicas: Vec<_> = found
        .replicas
        .iter()
        .enumerate()
        .map(|(place, (at, state, readers))| {
            let segment = found.names.get(place);
            json!({ "tier": tier_name(at), "segment": segment, "state": state_name(*state), "readers": readers })
        })
        .collect();
    json!({
        "key": shown(&found.key),
        "tenant": found.tenant.name(),
        "bytes": found.bytes,
        "version": found.version.0,
        "checksum": format!("{:016x}", found.checksum.0),
        "pin": pin_name(&found.pin),
        "lease_ms": found.lease.as_millis() as u64,
        "replicas": replicas,
    })
}

/// A key on one line: the text that it is, or its bytes with escapes where it is none.
#[must_use]
pub fn shown(key: &Key) -> String {
    match std::str::from_utf8(key.as_bytes()) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => key.to_string(),
    }
}

/// The tier of a replica.
#[must_use]
pub fn tier_name(at: &ReplicaAt) -> &'static str {
    match at {
        ReplicaAt::Memory(_) => "memory",
        ReplicaAt::Disk { .. } => "ssd",
    }
}

/// The state of a replica.
#[must_use]
pub fn state_name(state: ReplicaState) -> &'static str {
    match state {
        ReplicaState::Processing => "being written",
        ReplicaState::Complete => "complete",
        ReplicaState::Removed => "being removed",
    }
}

/// The pin of an object.
#[must_use]
pub fn pin_name(pin: &Pin) -> &'static str {
    match pin {
        Pin::None => "none",
        Pin::Soft(_) => "soft",
        Pin::Hard => "hard",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_takes_one_line_whatever_its_bytes() {
        let check = |bytes: &[u8], expected: &str| {
            assert_eq!(shown(&Key::new(bytes).unwrap()), expected);
        };
        check(b"a/b c", "a/b c");
        check("caf\u{e9}".as_bytes(), "caf\u{e9}");
        check(b"a\nb", "a\\nb");
        check(b"\xff\x00", "\\xff\\x00");
    }
}
