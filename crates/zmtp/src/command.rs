use crate::Cause;
use crate::cause::printable;

/// Bit of the flags byte: more frames of this message follow.
pub(crate) const MORE: u8 = 1;
/// Bit of the flags byte: the size has eight bytes.
pub(crate) const LONG: u8 = 2;
/// Bit of the flags byte: the frame is a command.
pub(crate) const COMMAND: u8 = 4;

/// The longest context a PING may carry.
const CONTEXT_BYTES: usize = 16;

/// A command of an established link.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command<'a> {
    Ping { ttl_tenths: u16, context: &'a [u8] },
    Pong,
    Subscribe(&'a [u8]),
    Cancel(&'a [u8]),
    Error(&'a [u8]),
}

impl<'a> Command<'a> {
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, Cause> {
        let (name, data) = split_name(body)?;
        match name {
            b"PING" => match data.split_first_chunk::<2>() {
                Some((ttl, context)) if context.len() <= CONTEXT_BYTES => Ok(Command::Ping {
                    ttl_tenths: u16::from_be_bytes(*ttl),
                    context,
                }),
                _ => Err(Cause::Malformed { what: "PING" }),
            },
            b"PONG" if data.len() <= CONTEXT_BYTES => Ok(Command::Pong),
            b"SUBSCRIBE" => Ok(Command::Subscribe(data)),
            b"CANCEL" => Ok(Command::Cancel(data)),
            b"ERROR" => Ok(Command::Error(error_reason(data)?)),
            _ => Err(Cause::UnexpectedCommand {
                name: printable(name),
            }),
        }
    }
}

/// The name and the data of a command body.
pub(crate) fn split_name(body: &[u8]) -> Result<(&[u8], &[u8]), Cause> {
    let malformed = Cause::Malformed {
        what: "command without a name",
    };
    match body.split_first() {
        Some((length, rest)) if *length > 0 => {
            rest.split_at_checked(usize::from(*length)).ok_or(malformed)
        }
        _ => Err(malformed),
    }
}

/// The reason in the data of an ERROR command.
pub(crate) fn error_reason(data: &[u8]) -> Result<&[u8], Cause> {
    let malformed = Cause::Malformed { what: "ERROR" };
    let (length, rest) = data.split_first().ok_or(malformed.clone())?;
    rest.get(..usize::from(*length)).ok_or(malformed)
}

/// Appends a frame header.
pub(crate) fn write_header(flags: u8, size: usize, wire: &mut Vec<u8>) {
    match u8::try_from(size) {
        Ok(short) => wire.extend_from_slice(&[flags, short]),
        Err(_) => {
            wire.push(flags | LONG);
            wire.extend_from_slice(&(size as u64).to_be_bytes());
        }
    }
}

/// The body of a command.
pub(crate) fn body(name: &str, pieces: &[&[u8]]) -> Vec<u8> {
    let mut body =
        Vec::with_capacity(1 + name.len() + pieces.iter().map(|piece| piece.len()).sum::<usize>());
    body.push(name.len() as u8);
    body.extend_from_slice(name.as_bytes());
    pieces
        .iter()
        .for_each(|piece| body.extend_from_slice(piece));
    body
}

/// Appends a whole unencrypted command frame.
pub(crate) fn write_frame(body: &[u8], wire: &mut Vec<u8>) {
    write_header(COMMAND, body.len(), wire);
    wire.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_read_or_say_what_is_wrong() {
        let check = |bytes: &[u8], want: Result<Command<'_>, Cause>| {
            assert_eq!(Command::read(bytes), want, "{}", bytes.escape_ascii());
        };
        check(
            b"\x04PING\x00\x05ctx",
            Ok(Command::Ping {
                ttl_tenths: 5,
                context: b"ctx",
            }),
        );
        check(b"\x04PING\x00", Err(Cause::Malformed { what: "PING" }));
        check(
            b"\x04PING\x00\x00aaaaaaaaaaaaaaaaa",
            Err(Cause::Malformed { what: "PING" }),
        );
        check(b"\x04PONG", Ok(Command::Pong));
        check(b"\x09SUBSCRIBEtopic", Ok(Command::Subscribe(b"topic")));
        check(b"\x06CANCEL", Ok(Command::Cancel(b"")));
        check(b"\x05ERROR\x03400", Ok(Command::Error(b"400")));
        check(b"\x05ERROR\x04400", Err(Cause::Malformed { what: "ERROR" }));
        check(
            b"\x05READY",
            Err(Cause::UnexpectedCommand {
                name: "READY".into(),
            }),
        );
        check(
            b"",
            Err(Cause::Malformed {
                what: "command without a name",
            }),
        );
        check(
            b"\x00",
            Err(Cause::Malformed {
                what: "command without a name",
            }),
        );
        check(
            b"\x05PING",
            Err(Cause::Malformed {
                what: "command without a name",
            }),
        );
    }

    #[test]
    fn sizes_over_one_byte_take_the_long_form() {
        let header = |size| {
            let mut wire = Vec::new();
            write_header(MORE, size, &mut wire);
            wire
        };
        assert_eq!(header(255), [1, 255]);
        assert_eq!(header(256), [3, 0, 0, 0, 0, 0, 0, 1, 0]);
    }
}
