//! The hash of a block, read out of the key of its value.

/// The hash of a block as the engine that made it tells it in its own events: 64 bits, with a sign where the engine gives one.
///
/// One number has one form, as in MessagePack: readers take the same number for the same block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockHash {
    /// Of vLLM and LMCache, and half of those of SGLang.
    Unsigned(u64),
    /// Below zero: the other half, and of LMCache where Python's own hash is negative.
    Negative(i64),
}

impl BlockHash {
    /// The hash in a key; none when it is no key of a known form:
    ///
    /// | writer | form | hash |
    /// |---|---|---|
    /// | any, as Mooncake reads it | a decimal number, or `0x` and hex | the number |
    /// | `slackwater.integrations.vllm` | `vllm:…:GROUP:HEX` | the last 64 bits |
    /// | vLLM's Mooncake connector | `…@tp_rank:…@…@HEX` | the last 64 bits |
    /// | `slackwater.integrations.sglang` | `sglang:…:HEX` | the first 64 bits, with a sign |
    /// | SGLang's Mooncake backend | `…HEX_…`, of 64 digits | the first 64 bits, with a sign |
    /// | LMCache, alone or after `lmcache:TAG:` | `MODEL@RANK@GROUP@HEX…` | the last 64 bits |
    #[must_use]
    pub fn of(key: &[u8]) -> Option<Self> {
        let key = std::str::from_utf8(key).ok()?;
        if let Some(number) = number(key) {
            return Some(Self::Unsigned(number));
        }
        if let Some(rest) = key.strip_prefix("vllm:") {
            let (before, digits) = rest.rsplit_once(':')?;
            let (_, group) = before.rsplit_once(':')?;
            is_decimal(group).then_some(())?;
            return last_bits(digits).map(Self::Unsigned);
        }
        if let Some(rest) = key.strip_prefix("sglang:") {
            // A page of another pool has its name after the hash.
            let (_, digits) = rest.rsplit_once(':')?;
            return first_bits(digits.split('_').next()?);
        }
        if let Some(rest) = key.strip_prefix("lmcache:") {
            let (_, key) = rest.split_once(':')?;
            return of_lmcache(key);
        }
        if key.split('@').any(|part| part.starts_with("tp_rank:")) {
            let (_, digits) = key.rsplit_once('@')?;
            return last_bits(digits).map(Self::Unsigned);
        }
        of_lmcache(key).or_else(|| {
            let mut parts = key.split('_').filter(|part| part.len() == DIGITS_OF_SHA256);
            parts.find_map(first_bits)
        })
    }
}

const DIGITS_OF_SHA256: usize = 64;
/// Hex digits of a 64-bit number.
const DIGITS: usize = 16;

fn is_decimal(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn number(key: &str) -> Option<u64> {
    match key.strip_prefix("0x") {
        Some(digits) if is_hex(digits) => u64::from_str_radix(digits, 16).ok(),
        None if is_decimal(key) => key.parse().ok(),
        _ => None,
    }
}

/// The last 64 bits of a number in hex, as vLLM makes an integer of a hash.
fn last_bits(digits: &str) -> Option<u64> {
    let last = digits.get(digits.len().saturating_sub(DIGITS)..)?;
    is_hex(digits).then(|| u64::from_str_radix(last, 16).ok())?
}

/// The first 64 bits of a SHA-256 in hex, as SGLang makes an integer of a page's hash.
fn first_bits(digits: &str) -> Option<BlockHash> {
    let first = digits.get(..DIGITS)?;
    let bits = is_hex(digits).then(|| u64::from_str_radix(first, 16).ok())?;
    bits.map(|bits| signed(bits.cast_signed()))
}

/// A number with a sign, in its one form.
fn signed(number: i64) -> BlockHash {
    match u64::try_from(number) {
        Ok(number) => BlockHash::Unsigned(number),
        Err(_) => BlockHash::Negative(number),
    }
}

/// The fourth part of a key of LMCache, with the mark of a value that begins with its description after it.
fn of_lmcache(key: &str) -> Option<BlockHash> {
    let mut parts = key.trim_end_matches('#').split('@').skip(1);
    let (rank, group, digits) = (parts.next()?, parts.next()?, parts.next()?);
    (is_hex(rank) && is_hex(group)).then_some(())?;
    match digits.strip_prefix('-') {
        Some(digits) if is_hex(digits) => {
            let size = i64::from_str_radix(digits, 16).ok()?;
            Some(signed(-size))
        }
        _ => last_bits(digits).map(BlockHash::Unsigned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA: &str = "f00dcafe01234567aaaaaaaaaaaaaaaabbbbbbbbbbbbbbbb0123456789abcdef";

    #[test]
    fn hashes_are_read_out_of_the_keys_of_engines() {
        let check = |key: &str, hash: Option<BlockHash>| {
            let key = key.replace("SHA", SHA);
            assert_eq!(BlockHash::of(key.as_bytes()), hash, "{key}");
        };
        let (last, first) = (0x0123_4567_89ab_cdef, 0xf00d_cafe_0123_4567_u64);
        let last = Some(BlockHash::Unsigned(last));
        let first = Some(BlockHash::Negative(first.cast_signed()));
        check("12345", Some(BlockHash::Unsigned(12_345)));
        check("18446744073709551615", Some(BlockHash::Unsigned(u64::MAX)));
        check("18446744073709551616", None);
        check("0xDEADbeef", Some(BlockHash::Unsigned(0xdead_beef)));
        check("0x", None);
        check("0x11111111111111111", None);
        check("vllm:tag:meta%2Fllama:0011aabb:0:SHA", last);
        check(
            "vllm:tag:meta%2Fllama:0011aabb:12:89abcdef",
            Some(BlockHash::Unsigned(0x89ab_cdef)),
        );
        check("vllm:tag:model:0011aabb:x:SHA", None);
        check("vllm:tag:model:0011aabb:0:", None);
        check("meta/llama@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@SHA", last);
        check("p@m@tp_rank:3@pcp0@dcp0@pp_rank:0@group:0@nohash", None);
        check("sglang::qwen:0-2:kv-layer_first-bfloat16-512:1:SHA", first);
        check("sglang::qwen:0-2:kv-page-bf16-512:whole:SHA_mamba", first);
        check("sglang::qwen:0-2:kv-page-bf16-512:whole:short", None);
        check("SHA_0_k", first);
        check("tag_model_SHA_1_0_v", first);
        check("SHA", first);
        let digits = format!("7{}", &SHA[1..]);
        let positive = BlockHash::Unsigned(0x700d_cafe_0123_4567);
        check(&digits, Some(positive));
        check(&format!("0x{}", &digits[..16]), Some(positive));
        check("lmcache::model@1@0@-0", Some(BlockHash::Unsigned(0)));
        check("lmcache:tag:model@00000001@0@SHA", last);
        check("lmcache:tag:model@00000001@0@SHA@salt", last);
        check(
            "lmcache::model@1@0@89abcdef@bfloat16#",
            Some(BlockHash::Unsigned(0x89ab_cdef)),
        );
        check(
            "lmcache::model@1@0@89abcdef#",
            Some(BlockHash::Unsigned(0x89ab_cdef)),
        );
        check("org/model@8@3@-7b@half", Some(BlockHash::Negative(-123)));
        check("org/model@8@3@zz@half", None);
        check("org/model@8@world@7b@half", None);
        check("user-data", None);
        check("", None);
        assert_eq!(BlockHash::of(b"\xff\xfe"), None);
    }
}
