//! Values that say whose they are: any part of one can be checked without knowing what was put.

use slackwater_base::hash64;

/// Bytes before the body.
pub(super) const HEADER: usize = 32;

/// Keys of the other tenant begin here. They have the names of the first tenant's: across the wall between them each would read
/// what says that it is of another key.
pub(super) const RIVAL: u64 = 10_000;

/// The name of a key of the load.
pub(super) fn name(key: u64) -> String {
    format!("trial/{}", key % RIVAL)
}

/// The value that put `put` writes under `key`: key, put, length, a hash of these, and words that follow from the put
/// and their place.
pub(super) fn make(key: u64, put: u64, bytes: usize) -> Vec<u8> {
    assert!(bytes >= HEADER, "{bytes} bytes have no room for a header");
    let mut value = Vec::with_capacity(bytes + 8);
    for word in [key, put, bytes as u64] {
        value.extend(word.to_le_bytes());
    }
    value.extend(hash64(&value).to_le_bytes());
    let body = (HEADER..bytes).step_by(8).flat_map(|at| word(put, at));
    value.extend(body);
    value.truncate(bytes);
    value
}

/// Who wrote a header, and how long its value is.
pub(super) fn header(key: u64, header: &[u8]) -> Result<(u64, usize), String> {
    let Some(header) = header.get(..HEADER) else {
        return Err(format!("{} bytes are no value", header.len()));
    };
    let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap());
    if number(24) != hash64(&header[..24]) {
        return Err("the header of no value".into());
    }
    if number(0) != key {
        return Err(format!("a value of key {}", number(0)));
    }
    Ok((number(8), number(16) as usize))
}

/// Checks bytes that begin at `from` of the value of a put, all of them behind its header.
pub(super) fn part(put: u64, from: usize, bytes: &[u8]) -> Result<(), String> {
    let expected = |at: usize| word(put, at & !7)[at & 7];
    match (from..)
        .zip(bytes)
        .find(|(at, byte)| expected(*at) != **byte)
    {
        Some((at, _)) => Err(format!("byte {at} of put {put} is another one")),
        None => Ok(()),
    }
}

/// The put that wrote all of a value.
pub(super) fn check(key: u64, value: &[u8]) -> Result<u64, String> {
    let (put, bytes) = header(key, value)?;
    if bytes != value.len() {
        return Err(format!("put {put} has {bytes} bytes, not {}", value.len()));
    }
    part(put, HEADER, &value[HEADER..])?;
    Ok(put)
}

fn word(put: u64, at: usize) -> [u8; 8] {
    let mixed = put.rotate_left(29) ^ (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 31)
        .wrapping_mul(0xd6e8_feb8_6659_fd93)
        .to_le_bytes()
}

#[test]
fn a_changed_byte_a_cut_and_a_mixture_are_noticed() {
    let value = make(7, 9, 1003);
    assert_eq!(check(7, &value), Ok(9));
    assert!(check(8, &value).is_err());
    assert!(check(7, &value[..1002]).is_err());
    assert!(check(7, &value[..31]).is_err());
    for at in 0..value.len() {
        let mut damaged = value.clone();
        damaged[at] ^= 64;
        assert!(check(7, &damaged).is_err(), "byte {at}");
    }
    assert_eq!(part(9, 501, &value[501..777]), Ok(()));
    assert!(part(9, 500, &value[501..777]).is_err());
    let mut mixed = value;
    mixed[600..].copy_from_slice(&make(7, 10, 1003)[600..]);
    assert!(check(7, &mixed).is_err());
}
