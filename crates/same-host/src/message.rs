//! The messages of a host link, one packet each: fixed little-endian structures.
//!
//! The initiator opens with [`Hello`] and is answered with [`Welcome`], which carries the control page, or with
//! [`Goodbye`]. From then on it asks [`Attach`] and is answered with [`Attached`], one question at a time; the memories
//! that it does not have yet come with the answer. A question may carry a notice to deliver.
//!
//! With keys a greeting of the data plane follows the hello in the same packet, and another is the answer to it: the
//! handshake of sealed connections. Every packet after these is sealed; the first of the initiator is empty and proves its
//! key, and only then the welcome comes, with the first descriptor.

use slackwater_data_plane::seal::{PACKET_OVERHEAD, RECORD_BYTES_MAX};
use slackwater_wire::data::Capability;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `SLWKHOST` read as a little-endian number.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"SLWKHOST");
/// The version of these structures; both ends must have the same.
pub(crate) const VERSION: u32 = 3;
/// The most capabilities in one [`Attach`].
pub(crate) const ATTACH_MAX: usize = 64;
/// The most forgotten windows in one [`Attach`]; more wait for the next.
pub(crate) const DETACH_MAX: usize = 4096;
/// The longest notice, name and bytes together.
pub(crate) const NOTICE_MAX: usize = 16 << 10;
/// The longest text of a packet.
pub(crate) const PACKET_MAX: usize = 64 << 10;
/// The longest packet: one that is sealed.
pub(crate) const PACKET_BYTES: usize = PACKET_MAX + PACKET_OVERHEAD;
const _: () = assert!(PACKET_MAX <= RECORD_BYTES_MAX);

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Hello {
    pub(crate) magic: U64,
    pub(crate) version: U32,
    /// 1 where a greeting follows that asks for a sealed link, else 0.
    pub(crate) sealed: U32,
    /// The boot of the host.
    pub(crate) boot: [u8; 16],
    /// The initiator's incarnation.
    pub(crate) incarnation: U64,
    /// The incarnation of the target that the initiator expects.
    pub(crate) target: U64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Welcome {
    pub(crate) magic: U64,
    pub(crate) version: U32,
    /// The slots of the control page that comes with it.
    pub(crate) slots: U32,
    pub(crate) incarnation: U64,
    /// When the target's process started.
    pub(crate) started: U64,
    /// The address of the probe in the target's memory.
    pub(crate) probe_address: U64,
    /// The bytes there; a process that can read the target's memory finds them.
    pub(crate) probe: [u8; 16],
}

/// No link, or not any more. Shorter than a [`Welcome`], which tells them apart.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Goodbye {
    pub(crate) magic: U64,
    pub(crate) version: U32,
    pub(crate) reason: U32,
}

/// The protocols differ.
pub(crate) const GOODBYE_VERSION: u32 = 1;
/// Another host, or another boot of it.
pub(crate) const GOODBYE_BOOT: u32 = 2;
/// Another incarnation of the target was expected.
pub(crate) const GOODBYE_INCARNATION: u32 = 3;
/// Another user.
pub(crate) const GOODBYE_USER: u32 = 4;
/// The limit of links is reached.
pub(crate) const GOODBYE_FULL: u32 = 5;
/// The engine is closing.
pub(crate) const GOODBYE_CLOSING: u32 = 6;

/// A greeting that asks for a sealed link was expected.
pub(crate) const GOODBYE_SEALED: u32 = 7;
/// None was.
pub(crate) const GOODBYE_OPEN: u32 = 8;
/// The key is not in the list, or not any more.
pub(crate) const GOODBYE_KEY: u32 = 9;
/// The key may not map memory.
pub(crate) const GOODBYE_MAPS: u32 = 10;

impl Goodbye {
    /// Why there is no link, or not any more, if a packet says that.
    pub(crate) fn reason_in(packet: &[u8]) -> Option<&'static str> {
        let goodbye = Self::read_from_bytes(packet).ok()?;
        (goodbye.magic.get() == MAGIC).then_some(match goodbye.reason.get() {
            GOODBYE_VERSION => "another version",
            GOODBYE_BOOT => "another host",
            GOODBYE_INCARNATION => "another life of the process",
            GOODBYE_USER => "another user",
            GOODBYE_FULL => "no room for another process",
            GOODBYE_CLOSING => "the engine is closing",
            GOODBYE_SEALED => "it has keys, and asks for one",
            GOODBYE_OPEN => "it has no keys",
            GOODBYE_KEY => "its list lacks our key",
            GOODBYE_MAPS => "its list does not let our key map memory (`memory=mapped`)",
            _ => "for a reason unknown here",
        })
    }
}

/// The head of a question: then `detach` × [`Detach`], then `attach` capabilities, then `notice_name` and `notice_bytes`
/// bytes of a notice, if there is one.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Attach {
    pub(crate) question: U64,
    pub(crate) detach: U32,
    pub(crate) attach: U32,
    /// 1 with a notice, else 0.
    pub(crate) notices: U32,
    pub(crate) notice_name: U32,
    pub(crate) notice_bytes: U32,
    pub(crate) reserved: U32,
}

/// A window that the initiator no longer uses.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub(crate) struct Detach {
    pub(crate) slot: U32,
    pub(crate) epoch: U32,
}

/// The head of an answer: then `attached` × [`Entry`], in the order of the question.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Attached {
    pub(crate) question: U64,
    pub(crate) attached: U32,
    /// 1 where the notice was taken.
    pub(crate) noticed: U32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Entry {
    /// 0, or why there is no window: the number of a [`Refusal`](slackwater_wire::data::Refusal), [`NO_SLOT`],
    /// [`NOT_HERE`] or [`BEFORE`].
    pub(crate) refused: U32,
    pub(crate) slot: U32,
    pub(crate) epoch: U32,
    /// [`ENTRY_SHARED`], [`ENTRY_DESCRIPTOR`] and [`ENTRY_REGION`].
    pub(crate) flags: U32,
    /// The number of the shared memory.
    pub(crate) memory: U64,
    /// How long that memory is.
    pub(crate) memory_len: U64,
    /// The first byte: from the start of the shared memory, or an address of the target's process.
    pub(crate) start: U64,
    pub(crate) len: U64,
    /// Of a window on a whole region: how far apart its extents begin, and how many can.
    pub(crate) granule: U64,
    pub(crate) granules: U64,
}

/// Every slot of the control page is in use: the initiator has to forget a window first.
pub(crate) const NO_SLOT: u32 = u32::MAX;
/// There is no window on this memory: the processor cannot reach it, or the capability is of the previous key.
pub(crate) const NOT_HERE: u32 = u32::MAX - 1;
/// An entry before it in the same answer is a window on the whole region.
pub(crate) const BEFORE: u32 = u32::MAX - 2;

/// The window lies in shared memory, not in the target's own.
pub(crate) const ENTRY_SHARED: u32 = 1;
/// A descriptor of that memory comes with the answer.
pub(crate) const ENTRY_DESCRIPTOR: u32 = 2;
/// The window is on all of the region, for reading. A descriptor of the generations of its extents comes with the answer,
/// after that of its memory.
pub(crate) const ENTRY_REGION: u32 = 4;

/// A question as its owner reads it.
#[derive(Debug)]
pub(crate) struct Question<'p> {
    pub(crate) head: Attach,
    pub(crate) detach: &'p [Detach],
    pub(crate) attach: &'p [Capability],
    pub(crate) notice_name: &'p [u8],
    pub(crate) notice_bytes: &'p [u8],
}

/// An answer as its initiator reads it.
#[derive(Debug)]
pub(crate) struct AttachAnswer<'p> {
    pub(crate) head: Attached,
    pub(crate) entries: &'p [Entry],
}

impl<'p> Question<'p> {
    /// `None` for a packet that is none, or asks for more than a peer may.
    pub(crate) fn read(packet: &'p [u8]) -> Option<Self> {
        let (head, rest) = Attach::read_from_prefix(packet).ok()?;
        let (detach, rest) = split(rest, head.detach.get())?;
        let (attach, rest) = split(rest, head.attach.get())?;
        let (notice_name, rest) = split(rest, head.notice_name.get())?;
        let (notice_bytes, rest) = split(rest, head.notice_bytes.get())?;
        let over = attach.len() > ATTACH_MAX || notice_name.len() + notice_bytes.len() > NOTICE_MAX;
        (!over && rest.is_empty()).then_some(Self {
            head,
            detach,
            attach,
            notice_name,
            notice_bytes,
        })
    }
}

impl<'p> AttachAnswer<'p> {
    /// `None` for a packet that is none.
    pub(crate) fn read(packet: &'p [u8]) -> Option<Self> {
        let (head, rest) = Attached::read_from_prefix(packet).ok()?;
        let (entries, rest) = split(rest, head.attached.get())?;
        rest.is_empty().then_some(Self { head, entries })
    }
}

/// `count` structures and what follows them.
fn split<T>(bytes: &[u8], count: u32) -> Option<(&[T], &[u8])>
where
    T: FromBytes + Immutable + KnownLayout + Unaligned,
{
    <[T]>::ref_from_prefix_with_elems(bytes, count as usize).ok()
}

#[cfg(test)]
mod tests {
    use slackwater_wire::data::Refusal;
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn structures_have_no_holes_and_packets_fit() {
        assert_eq!(size_of::<Hello>(), 48);
        assert_eq!(size_of::<Welcome>(), 56);
        assert_eq!(size_of::<Entry>(), 64);
        assert!(size_of::<Goodbye>() < size_of::<Welcome>());
        let question =
            size_of::<Attach>() + DETACH_MAX * size_of::<Detach>() + ATTACH_MAX * Capability::BYTES;
        assert!(question + NOTICE_MAX <= PACKET_MAX);
        assert!(size_of::<Attached>() + ATTACH_MAX * size_of::<Entry>() < PACKET_MAX);
    }

    /// Version 3 of the packets, byte for byte, each behind its length: a difference is a new version, never a change of this
    /// one.
    const GOLDEN: &[u8] = include_bytes!("../golden/host-v3.bin");

    fn hello(sealed: u32) -> Hello {
        Hello {
            magic: U64::new(MAGIC),
            version: U32::new(VERSION),
            sealed: U32::new(sealed),
            boot: std::array::from_fn(|index| index as u8),
            incarnation: U64::new(0x0102_0304_0506_0708),
            target: U64::new(0x1112_1314_1516_1718),
        }
    }

    fn welcome() -> Welcome {
        Welcome {
            magic: U64::new(MAGIC),
            version: U32::new(VERSION),
            slots: U32::new(0x400),
            incarnation: U64::new(0x1112_1314_1516_1718),
            started: U64::new(0x21),
            probe_address: U64::new(0x7f00_0000_1000),
            probe: std::array::from_fn(|index| 0x30 + index as u8),
        }
    }

    fn goodbye() -> Goodbye {
        Goodbye {
            magic: U64::new(MAGIC),
            version: U32::new(VERSION),
            reason: U32::new(GOODBYE_KEY),
        }
    }

    fn question(head: Attach, detach: &[Detach], attach: &[Capability], notice: &[u8]) -> Vec<u8> {
        [
            head.as_bytes(),
            detach.as_bytes(),
            attach.as_bytes(),
            notice,
        ]
        .concat()
    }

    fn full_question() -> Vec<u8> {
        let head = Attach {
            question: U64::new(0x41),
            detach: U32::new(2),
            attach: U32::new(1),
            notices: U32::new(1),
            notice_name: U32::new(4),
            notice_bytes: U32::new(5),
            reserved: U32::ZERO,
        };
        let detach = [(3, 4), (5, 6)].map(|(slot, epoch)| Detach {
            slot: U32::new(slot),
            epoch: U32::new(epoch),
        });
        let capability = Capability::from_bytes(&std::array::from_fn(|index| 0x80 + index as u8));
        question(head, &detach, &[capability], b"namewords")
    }

    fn empty_question() -> Vec<u8> {
        let head = Attach {
            question: U64::new(0x42),
            ..Attach::new_zeroed()
        };
        question(head, &[], &[], &[])
    }

    fn full_answer() -> Vec<u8> {
        let head = Attached {
            question: U64::new(0x41),
            attached: U32::new(2),
            noticed: U32::new(1),
        };
        let window = Entry {
            slot: U32::new(7),
            epoch: U32::new(8),
            flags: U32::new(ENTRY_SHARED | ENTRY_DESCRIPTOR),
            memory: U64::new(0x51),
            memory_len: U64::new(0x2000),
            start: U64::new(0x1000),
            len: U64::new(0x800),
            ..Entry::new_zeroed()
        };
        let refused = Entry {
            refused: U32::new(Refusal::Generation.number().into()),
            ..Entry::new_zeroed()
        };
        [head.as_bytes(), window.as_bytes(), refused.as_bytes()].concat()
    }

    fn empty_answer() -> Vec<u8> {
        let head = Attached {
            question: U64::new(0x42),
            ..Attached::new_zeroed()
        };
        head.as_bytes().to_vec()
    }

    #[test]
    fn version_three_keeps_its_bytes() {
        let packets = [
            hello(0).as_bytes().to_vec(),
            hello(1).as_bytes().to_vec(),
            welcome().as_bytes().to_vec(),
            goodbye().as_bytes().to_vec(),
            full_question(),
            empty_question(),
            full_answer(),
            empty_answer(),
        ];
        let mut rest = GOLDEN;
        for (index, packet) in packets.iter().enumerate() {
            let (length, after) = rest.split_first_chunk::<4>().expect("another packet");
            let (golden, after) = after.split_at(u32::from_le_bytes(*length) as usize);
            assert_eq!(
                packet, golden,
                "packet {index}: other bytes are another version"
            );
            rest = after;
        }
        assert!(rest.is_empty());
        assert_eq!(
            Goodbye::reason_in(&packets[3]),
            Some("its list lacks our key")
        );
        assert_eq!(Goodbye::reason_in(&packets[2]), None, "a welcome is longer");
    }

    #[test]
    fn questions_and_answers_are_read_whole_or_not_at_all() {
        for packet in [full_question(), empty_question()] {
            let read = Question::read(&packet).expect("a question");
            let notice = [read.notice_name, read.notice_bytes].concat();
            assert_eq!(
                question(read.head, read.detach, read.attach, &notice),
                packet
            );
            let longer = [packet.as_slice(), &[0]].concat();
            assert!(Question::read(&longer).is_none());
            assert!((0..packet.len()).all(|cut| Question::read(&packet[..cut]).is_none()));
        }
        for packet in [full_answer(), empty_answer()] {
            let read = AttachAnswer::read(&packet).expect("an answer");
            assert_eq!(
                [read.head.as_bytes(), read.entries.as_bytes()].concat(),
                packet
            );
            let longer = [packet.as_slice(), &[0]].concat();
            assert!(AttachAnswer::read(&longer).is_none());
            assert!((0..packet.len()).all(|cut| AttachAnswer::read(&packet[..cut]).is_none()));
        }
    }

    #[test]
    fn a_question_for_more_than_a_peer_may_ask_is_none() {
        let check = |attach: usize, notice: usize, expected: bool| {
            let head = Attach {
                attach: U32::new(attach as u32),
                notice_bytes: U32::new(notice as u32),
                ..Attach::new_zeroed()
            };
            let capabilities = vec![Capability::from_bytes(&[7; Capability::BYTES]); attach];
            let packet = question(head, &[], &capabilities, &vec![0; notice]);
            assert_eq!(Question::read(&packet).is_some(), expected);
        };
        check(ATTACH_MAX, NOTICE_MAX, true);
        check(ATTACH_MAX + 1, 0, false);
        check(0, NOTICE_MAX + 1, false);
    }

    #[test]
    fn a_count_beyond_the_packet_is_refused() {
        let bytes = [0u8; 17];
        assert!(split::<Detach>(&bytes, 3).is_none());
        assert!(split::<Detach>(&bytes, u32::MAX).is_none());
        let (detach, rest) = split::<Detach>(&bytes, 2).unwrap();
        assert_eq!((detach.len(), rest.len()), (2, 1));
    }
}
