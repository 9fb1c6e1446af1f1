use crate::Cause;
use crate::cause::printable;

/// Bytes of a ZMTP 3.x greeting.
pub(crate) const GREETING_BYTES: usize = 64;

/// Our greeting, all of it at once: nothing in it depends on the peer's.
pub(crate) fn write(mechanism: &str, as_server: bool, wire: &mut Vec<u8>) {
    let mut greeting = [0u8; GREETING_BYTES];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[11] = 1;
    greeting[12..12 + mechanism.len()].copy_from_slice(mechanism.as_bytes());
    greeting[32] = u8::from(as_server);
    wire.extend_from_slice(&greeting);
}

/// The peer's greeting, byte by byte: a wrong one is refused at the first byte that shows it.
#[derive(Default)]
pub(crate) struct Greeting {
    have: u8,
    minor: u8,
    mechanism: [u8; 20],
}

impl Greeting {
    /// Takes bytes off `input`; the peer's minor version once all 64 are there and fit `ours`.
    pub(crate) fn read(
        &mut self,
        input: &mut &[u8],
        ours: &'static str,
    ) -> Result<Option<u8>, Cause> {
        while usize::from(self.have) < GREETING_BYTES {
            let Some((byte, rest)) = input.split_first() else {
                return Ok(None);
            };
            *input = rest;
            self.take(*byte)?;
        }
        let name = self
            .mechanism
            .split(|byte| *byte == 0)
            .next()
            .unwrap_or_default();
        if name == ours.as_bytes() {
            Ok(Some(self.minor))
        } else {
            Err(Cause::Mechanism {
                ours,
                theirs: printable(name),
            })
        }
    }

    /// The padding (bytes 1 to 8) and as-server (32) are not looked at: libzmq puts a length into the one and
    /// always 0 into the other.
    fn take(&mut self, byte: u8) -> Result<(), Cause> {
        match self.have {
            0 if byte != 0xff => return Err(Cause::NotZmtp { first: byte }),
            9 if byte != 0x7f => return Err(Cause::NotZmtp { first: byte }),
            10 if byte < 3 => return Err(Cause::Version { major: byte }),
            11 => self.minor = byte,
            at @ 12..32 => self.mechanism[usize::from(at) - 12] = byte,
            _ => {}
        }
        self.have += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_at_any_split_what_it_wrote() {
        let mut wire = Vec::new();
        write("CURVE", true, &mut wire);
        assert_eq!(wire.len(), GREETING_BYTES);
        for cut in 0..=GREETING_BYTES {
            let mut greeting = Greeting::default();
            let (mut first, mut second) = wire.split_at(cut);
            let early = greeting.read(&mut first, "CURVE").unwrap();
            assert_eq!(early.is_some(), cut == GREETING_BYTES);
            assert_eq!(greeting.read(&mut second, "CURVE"), Ok(Some(1)));
        }
    }

    #[test]
    fn wrong_greetings_are_refused_at_the_byte_that_shows_it() {
        let check = |change: &dyn Fn(&mut Vec<u8>), bytes: usize, want: Cause| {
            let mut wire = Vec::new();
            write("NULL", false, &mut wire);
            change(&mut wire);
            assert_eq!(
                Greeting::default().read(&mut &wire[..bytes], "NULL"),
                Err(want)
            );
        };
        check(&|w| w[0] = b'G', 1, Cause::NotZmtp { first: b'G' });
        check(&|w| w[9] = 0, 10, Cause::NotZmtp { first: 0 });
        check(&|w| w[10] = 2, 11, Cause::Version { major: 2 });
        check(
            &|w| w[12] = b'X',
            64,
            Cause::Mechanism {
                ours: "NULL",
                theirs: "XULL".into(),
            },
        );
    }

    #[test]
    fn a_later_major_version_is_a_peer_that_can_step_down() {
        let mut wire = Vec::new();
        write("NULL", false, &mut wire);
        wire[10] = 4;
        assert_eq!(
            Greeting::default().read(&mut &wire[..], "NULL"),
            Ok(Some(1))
        );
    }
}
