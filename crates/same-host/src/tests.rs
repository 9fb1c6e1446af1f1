//! One end against the other, or against a test that plays the other end.

mod junk;
mod keys;
mod rights;
mod slow_owners;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use slackwater_base::Instant;
use slackwater_engine::{
    Cause, Deadline, Engine, GrantSpec, Home, HomeGuard, LocalRange, Memory, PeerId, Priority,
    Region, RegionSpec, Request, Revocation, SharedFile, Submit, Target,
};
use slackwater_memory::Mapping;
use slackwater_wait::now;
use slackwater_wire::Incarnation;
use slackwater_wire::data::{Capability, HostContact, Op, Refusal, Rights, Segment};
use slackwater_zmtp::PublicKey;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::carry::{NotCopied, under_mark};
use super::link::{Asked, Link, WindowError};
use super::message::{
    Attach, Attached, ENTRY_DESCRIPTOR, ENTRY_SHARED, Entry, Hello, MAGIC, NO_SLOT, PACKET_BYTES,
    PACKET_MAX, VERSION, Welcome,
};
use super::mover::{HostLimits, HostMover};
use super::opening::{LinkError, LinkTarget};
use super::packets::{Listener, Packets, Received};
use super::page::ControlPage;
use super::service::{Service, ServiceLimits};
use super::window::{OpenWindow, Reach};

pub(super) const PATIENCE: Duration = Duration::from_secs(20);
const BOOT: [u8; 16] = [7; 16];

/// The target's side of one engine.
pub(super) struct Owner {
    pub(super) life: HomeGuard,
    pub(super) service: Arc<Service>,
}

pub(super) fn owner(limits: ServiceLimits) -> Owner {
    let life = Home::open().unwrap();
    let service = Arc::new(Service::start(BOOT, Arc::clone(&life), limits, None).unwrap());
    Owner { life, service }
}

impl Owner {
    pub(super) fn region(&self, memory: Memory) -> Arc<Region> {
        self.life
            .regions()
            .register(RegionSpec {
                memory,
                rights: Rights::BOTH,
                gate: None,
            })
            .unwrap()
    }

    fn grant(&self, region: &Region) -> Capability {
        self.life
            .grant(region, &GrantSpec::whole(region, Rights::BOTH))
    }

    pub(super) fn link(&self, from: &Owner) -> Arc<Link> {
        open(&from.service, self.service.name(), self.life.incarnation()).unwrap()
    }
}

/// An engine with the host mover alone that reaches the owner of `contact`.
pub(super) fn reaching(
    target: Incarnation,
    contact: HostContact,
    limits: HostLimits,
) -> (Engine, PeerId) {
    let life = Home::open().unwrap();
    let host = HostMover::start(&life, limits, None).unwrap();
    let segment = |incarnation, host| Segment {
        name: "test".to_owned(),
        incarnation,
        addresses: Vec::new(),
        public_key: None,
        host,
    };
    let engine = Engine::assemble(life, segment(Incarnation(1), None), vec![Arc::new(host)]);
    let peer = engine.open(segment(target, Some(contact)));
    (engine, peer)
}

fn open(service: &Arc<Service>, name: &str, target: Incarnation) -> Result<Arc<Link>, LinkError> {
    open_to(service, name, target, None)
}

/// A link to the process at a socket, which is to prove that key.
fn open_to(
    service: &Arc<Service>,
    name: &str,
    target: Incarnation,
    key: Option<PublicKey>,
) -> Result<Arc<Link>, LinkError> {
    let call = LinkTarget {
        name,
        target,
        key,
        deadline: now() + PATIENCE,
        meanwhile: &|| Instant::NEVER,
    };
    Link::open(service, &call, || {})
}

pub(super) fn ask(link: &Arc<Link>, capability: Capability) -> Result<OpenWindow, WindowError> {
    let (mut opened, _) = link.ask(&[capability], None, now() + PATIENCE)?;
    opened.remove(0)
}

/// Asks by itself for a window that nobody else opens; none where its turn does not come in time.
fn ask_by(
    link: &Arc<Link>,
    capability: Capability,
    deadline: Instant,
) -> Option<Result<OpenWindow, WindowError>> {
    match link.ask_by(capability, deadline, || None::<()>)? {
        Asked::Answered(opened, _) => Some(opened),
        Asked::Known(()) => unreachable!(),
    }
}

/// Waits for a state that comes by itself; the deadline is that of a failed test.
pub(super) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = now() + PATIENCE;
    while !holds() {
        assert!(now() < deadline, "{what} did not come");
        std::thread::yield_now();
    }
}

fn closing(region: &Region) -> Revocation {
    Revocation {
        region: region.id(),
        extent: None,
    }
}

/// Reopens the region once no access to it is under way; says whether that was within `patience`.
fn reuse(owner: &Owner, region: &Arc<Region>, patience: Duration) -> bool {
    region.close();
    owner.service.invalidate(&closing(region));
    owner
        .life
        .regions()
        .reopen(region, now() + patience)
        .is_ok()
}

/// A process that broke the protocol was treated like one that has ended, and its memory was reused; but it was alive
/// and in the middle of a copy, which went on over the next contents.
#[test]
fn a_peer_that_breaks_the_protocol_is_waited_for_as_long_as_it_copies() {
    for junk in [&b"no question of the protocol"[..], b""] {
        let (far, near) = (
            owner(ServiceLimits::default()),
            owner(ServiceLimits::default()),
        );
        let region = far.region(Memory::anonymous(4096).unwrap());
        let link = far.link(&near);
        let window = ask(&link, far.grant(&region)).unwrap();
        let mark = window.mark().unwrap();
        link.send_raw(junk);
        // The owner hangs up, so it has noticed.
        eventually("a hung-up link", || link.is_gone());
        assert!(window.mark().is_err(), "nothing more begins");
        assert!(
            !reuse(&far, &region, Duration::from_millis(1)),
            "a copy is under way"
        );
        drop(mark);
        assert!(reuse(&far, &region, PATIENCE));
    }
}

/// When an engine closed, it forgot which peers were copying, and the owner reused the memory under
/// their copies.
#[test]
fn a_closed_service_takes_its_memory_back_and_keeps_what_is_still_in_use() {
    let limits = ServiceLimits {
        closing: Duration::from_millis(1),
        ..ServiceLimits::default()
    };
    let (far, near) = (owner(limits), owner(limits));
    let (used, free) = (
        far.region(Memory::anonymous(4096).unwrap()),
        far.region(Memory::anonymous(4096).unwrap()),
    );
    let link = far.link(&near);
    let (busy, idle) = (
        ask(&link, far.grant(&used)).unwrap(),
        ask(&link, far.grant(&free)).unwrap(),
    );
    let mark = busy.mark().unwrap();
    far.service.close();
    assert!(
        busy.mark().is_err() && idle.mark().is_err(),
        "nothing more begins"
    );
    assert_eq!((used.in_flight(), free.in_flight()), (1, 0));
    drop(mark);
    assert_eq!(
        used.in_flight(),
        1,
        "there is nobody left who would learn that the copy has ended"
    );
    assert!(matches!(
        ask(&link, far.grant(&free)),
        Err(WindowError::Gone)
    ));
}

/// A new key revoked what was shown from then on, while a peer with an open window could use it for ever.
#[test]
fn a_new_key_takes_back_what_was_opened_under_the_old_one() {
    let (far, near) = (
        owner(ServiceLimits::default()),
        owner(ServiceLimits::default()),
    );
    let region = far.region(Memory::anonymous(4096).unwrap());
    let link = far.link(&near);
    let old = far.grant(&region);
    let window = ask(&link, old).unwrap();
    let mark = window.mark().unwrap();
    far.life.rotate(Duration::ZERO).unwrap();
    assert!(window.is_over() && window.mark().is_err());
    assert!(
        mark.finish().is_err(),
        "a copy that was under way does not count"
    );
    assert!(matches!(
        ask(&link, old),
        Err(WindowError::Refused(Refusal::Forged))
    ));
    assert!(ask(&link, far.grant(&region)).unwrap().mark().is_ok());
    drop(window);
    assert!(
        reuse(&far, &region, PATIENCE),
        "what was under way has been waited for"
    );
}

/// The result of ending a mark could be ignored unnoticed: a copy during whose last chunk the window was taken back
/// was reported as complete, though its bytes may have come after the region's next use had begun.
#[test]
fn a_copy_whose_window_is_revoked_before_it_ends_does_not_count() {
    let (far, near) = (
        owner(ServiceLimits::default()),
        owner(ServiceLimits::default()),
    );
    let region = far.region(Memory::anonymous(4096).unwrap());
    let granted = far.grant(&region);
    let (window, claims) = (ask(&far.link(&near), granted).unwrap(), granted.claims());
    assert!(under_mark(&window, &claims, |_| Ok(())).is_ok());
    let revoked = under_mark(&window, &claims, |mark| {
        region.close();
        far.service.invalidate(&closing(&region));
        assert!(mark.is_stale() && region.in_flight() == 1);
        Ok(())
    });
    assert!(
        matches!(
            revoked,
            Err(NotCopied::Failed(Cause::Refused(Refusal::Generation)))
        ),
        "{revoked:?}"
    );
    let stale = under_mark(&window, &claims, |_| -> Result<(), Cause> {
        panic!("nothing is copied")
    });
    assert!(matches!(stale, Err(NotCopied::Stale)), "{stale:?}");
}

/// Memory that the initiator could not use kept its slot at the owner: after as many tries as there are slots, no
/// thread of that process got a window any more.
#[test]
fn memory_of_no_use_keeps_no_slot() {
    let limits = ServiceLimits {
        windows_per_peer: 2,
        ..ServiceLimits::default()
    };
    let (far, near) = (owner(limits), owner(limits));
    // Not sealed: its owner could cut it under a copy.
    let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, 4096).unwrap();
    let file = SharedFile {
        fd: Arc::new(fd),
        offset: 0,
    };
    let unsealed = far.region(Memory::anonymous(4096).unwrap().in_file(file));
    let sealed = far.region(Memory::shared(4096).unwrap());
    let link = far.link(&near);
    for _ in 0..5 {
        assert!(matches!(
            ask(&link, far.grant(&unsealed)),
            Err(WindowError::Memory(_))
        ));
    }
    assert!(ask(&link, far.grant(&sealed)).is_ok());
}

/// A listener that answers as a test tells it.
struct Liar {
    listener: Listener,
    name: String,
    page: ControlPage,
    packets: Option<Packets>,
    buffer: Vec<u8>,
}

const LIFE: Incarnation = Incarnation(99);

fn welcome() -> Welcome {
    let mut welcome = Welcome::new_zeroed();
    (welcome.magic, welcome.version) = (U64::new(MAGIC), U32::new(VERSION));
    (welcome.slots, welcome.incarnation) = (U32::new(4), U64::new(LIFE.0));
    welcome
}

impl Liar {
    fn new() -> Self {
        static NAMES: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "slackwater-liar-{}-{}",
            std::process::id(),
            NAMES.fetch_add(1, Ordering::Relaxed)
        );
        let listener = Listener::bind(&name).unwrap();
        let (page, buffer) = (ControlPage::create(4).unwrap(), vec![0; PACKET_MAX]);
        Self {
            listener,
            name,
            page,
            packets: None,
            buffer,
        }
    }

    /// A liar with a link to it, and a capability to show.
    fn linked() -> (Self, Arc<Link>, Capability) {
        let near = owner(ServiceLimits::default());
        let region = near.region(Memory::anonymous(4096).unwrap());
        let mut liar = Self::new();
        let link = liar.link(&near, |_| {}).unwrap();
        (liar, link, near.grant(&region))
    }

    /// A link to it: it greets as the protocol wants, after `change`.
    fn link(
        &mut self,
        near: &Owner,
        change: impl Fn(&mut Welcome),
    ) -> Result<Arc<Link>, LinkError> {
        let mut welcome = welcome();
        change(&mut welcome);
        let name = self.name.clone();
        std::thread::scope(|threads| {
            let link = threads.spawn(|| open(&near.service, &name, LIFE));
            self.called();
            self.packets()
                .send(&[welcome.as_bytes()], &[self.page.as_fd()])
                .unwrap();
            link.join().unwrap()
        })
    }

    /// Accepts a connection and its greeting.
    fn called(&mut self) {
        eventually("a call", || {
            self.packets = self.listener.accept().unwrap();
            self.packets.is_some()
        });
        let received = self
            .packets
            .as_ref()
            .unwrap()
            .receive_until(&mut self.buffer, now() + PATIENCE);
        assert!(matches!(received, Ok(Received::Packet(len, _)) if len == size_of::<Hello>()));
    }

    fn packets(&self) -> &Packets {
        self.packets.as_ref().expect("somebody called")
    }

    /// The number of the next question.
    fn question(&mut self) -> u64 {
        self.asked().0
    }

    /// The same, if it comes in time.
    fn question_by(&mut self, deadline: Instant) -> Option<u64> {
        self.asked_by(deadline).map(|(question, _)| question)
    }

    /// The next question, and how many windows it asks for.
    fn asked(&mut self) -> (u64, u32) {
        self.asked_by(now() + PATIENCE).expect("a question comes")
    }

    fn asked_by(&mut self, deadline: Instant) -> Option<(u64, u32)> {
        let packets = self.packets.as_ref().unwrap();
        let Ok(Received::Packet(len, _)) = packets.receive_until(&mut self.buffer, deadline) else {
            return None;
        };
        let (head, _) = Attach::read_from_prefix(&self.buffer[..len]).unwrap();
        Some((head.question.get(), head.attach.get()))
    }

    fn say(&self, question: u64, entries: &[Entry], descriptors: &[BorrowedFd<'_>]) {
        let head = head(question, entries.len());
        self.packets()
            .send(&[head.as_bytes(), entries.as_bytes()], descriptors)
            .unwrap();
    }

    /// Asks for one window and answers it so.
    fn answered(
        &mut self,
        link: &Arc<Link>,
        entries: &[Entry],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<OpenWindow, WindowError> {
        let near = owner(ServiceLimits::default());
        let region = near.region(Memory::anonymous(4096).unwrap());
        let capability = near.grant(&region);
        std::thread::scope(|threads| {
            let asked = threads.spawn(|| ask(link, capability));
            let question = self.question();
            self.say(question, entries, descriptors);
            asked.join().unwrap()
        })
    }
}

fn head(question: u64, attached: usize) -> Attached {
    Attached {
        question: U64::new(question),
        attached: U32::new(attached as u32),
        noticed: U32::ZERO,
    }
}

fn refusal() -> Entry {
    Entry {
        refused: U32::new(Refusal::Region.number().into()),
        ..shared(0, 0, 0)
    }
}

/// A window in a slot on the memory of `shared(0, 8, 4096)`, which the owner counts as mapped already.
fn known(slot: u32) -> Entry {
    Entry {
        flags: U32::new(ENTRY_SHARED),
        slot: U32::new(slot),
        ..shared(0, 8, 4096)
    }
}

fn shared(start: u64, len: u64, memory_len: u64) -> Entry {
    let mut entry = Entry::new_zeroed();
    entry.flags = U32::new(ENTRY_SHARED | ENTRY_DESCRIPTOR);
    (entry.start, entry.len, entry.memory_len) =
        (U64::new(start), U64::new(len), U64::new(memory_len));
    entry
}

#[test]
fn false_answers_of_an_owner_open_no_window() {
    let near = owner(ServiceLimits::default());
    let mut liar = Liar::new();
    let link = liar.link(&near, |_| {}).unwrap();
    let memory = Mapping::shared(4096).unwrap();
    let fd = [memory.file().unwrap().as_fd()];
    let own = |start, len| Entry {
        flags: U32::ZERO,
        ..shared(start, len, 0)
    };
    let (honest, none): (&[BorrowedFd<'_>], &[BorrowedFd<'_>]) = (&fd, &[]);
    for (name, entries, descriptors) in [
        (
            "a range that wraps",
            vec![shared(u64::MAX, 2, 4096)],
            honest,
        ),
        (
            "a range beyond the memory",
            vec![shared(4000, 97, 4096)],
            honest,
        ),
        (
            "memory shorter than said",
            vec![shared(0, 8192, 8192)],
            honest,
        ),
        (
            "memory of more than there are addresses",
            vec![shared(0, 1, u64::MAX)],
            honest,
        ),
        ("no memory", vec![shared(0, 1, 0)], honest),
        (
            "a descriptor that is not there",
            vec![shared(0, 1, 4096)],
            none,
        ),
        (
            "a slot that the page has not",
            vec![Entry {
                slot: U32::new(4),
                ..shared(0, 1, 4096)
            }],
            honest,
        ),
        ("an address that wraps", vec![own(u64::MAX - 10, 11)], none),
        (
            "a refusal that is none",
            vec![Entry {
                refused: U32::new(77),
                ..shared(0, 1, 4096)
            }],
            none,
        ),
    ] {
        let opened = liar.answered(&link, &entries, descriptors);
        assert!(opened.is_err(), "{name}: {opened:?}");
    }
    let window = liar
        .answered(&link, &[shared(4000, 96, 4096)], honest)
        .unwrap();
    assert!(matches!(window.reach(0, 96), Some(Reach::Mapped(_))) && window.reach(1, 96).is_none());
    assert!(window.reach(u64::MAX, 2).is_none());
}

/// A process had no descriptor left for the memory that came with an answer. The answer was lost, its windows stayed open at
/// the owner, and each caller that waited asked for as many again.
#[test]
fn after_what_is_no_answer_nothing_is_asked_any_more() {
    let entry = |bytes: &[u8]| [head(1, 1).as_bytes(), bytes].concat();
    for (name, packet) in [
        (
            "a packet that cannot be received",
            vec![0; PACKET_BYTES + 1],
        ),
        ("no packet of the protocol", b"none".to_vec()),
        ("half an entry", entry(&refusal().as_bytes()[1..])),
        ("fewer windows than were asked for", entry(&[])),
        (
            "more windows",
            [entry(refusal().as_bytes()), refusal().as_bytes().to_vec()].concat(),
        ),
        (
            "the answer to a question that nobody asked",
            [head(7, 1).as_bytes(), refusal().as_bytes()].concat(),
        ),
    ] {
        let (mut liar, link, capability) = Liar::linked();
        std::thread::scope(|threads| {
            let asked = threads.spawn(|| ask(&link, capability));
            liar.question();
            liar.packets().send(&[&packet], &[]).unwrap();
            let ended = asked.join().unwrap();
            assert!(
                matches!(ended, Err(WindowError::Garbled)),
                "{name}: {ended:?}"
            );
        });
        let again = ask(&link, capability);
        assert!(
            matches!(again, Err(WindowError::Garbled)),
            "{name}: {again:?}"
        );
        assert_eq!(liar.question_by(now()), None, "{name}");
    }
}

/// A question was given up, and its answer brought the memory: the answer to the next named that by its number, and opened no
/// window.
#[test]
fn memory_that_comes_with_a_late_answer_is_known() {
    let (mut liar, link, capability) = Liar::linked();
    let memory = Mapping::shared(4096).unwrap();
    let fd = memory.file().unwrap().as_fd();
    for _ in 0..2 {
        let asked = link.ask(&[capability], None, now());
        assert!(matches!(asked, Err(WindowError::TimedOut)), "{asked:?}");
    }
    let window = std::thread::scope(|threads| {
        let asked = threads.spawn(|| ask(&link, capability));
        let questions = [0; 3].map(|_| liar.question());
        liar.say(questions[0], &[shared(0, 8, 4096)], &[fd]);
        liar.say(questions[1], &[known(1)], &[]);
        liar.say(questions[2], &[known(2)], &[]);
        asked.join().unwrap().unwrap()
    });
    assert!(matches!(window.reach(0, 8), Some(Reach::Mapped(_))));
    let kept = Arc::downgrade(window.memory().unwrap());
    drop(window);
    assert_eq!(kept.strong_count(), 0, "nothing else keeps it");
}

/// A question was given up, and answered while a window kept its memory mapped: without a descriptor. That window was revoked
/// and forgotten, which unmapped the memory, and neither the late answer nor the next one could be used.
#[test]
fn memory_of_the_time_of_a_question_stays_mapped_until_its_answer_has_come() {
    let (mut liar, link, capability) = Liar::linked();
    let memory = Mapping::shared(4096).unwrap();
    let fd = memory.file().unwrap().as_fd();
    let before = liar.answered(&link, &[shared(0, 8, 4096)], &[fd]).unwrap();
    let kept = Arc::downgrade(before.memory().unwrap());
    let asked = link.ask(&[capability], None, now());
    assert!(matches!(asked, Err(WindowError::TimedOut)), "{asked:?}");
    drop(before);
    let window = std::thread::scope(|threads| {
        let asked = threads.spawn(|| ask(&link, capability));
        let questions = [0; 2].map(|_| liar.question());
        liar.say(questions[0], &[known(1)], &[]);
        liar.say(questions[1], &[known(2)], &[]);
        asked.join().unwrap().unwrap()
    });
    assert!(matches!(window.reach(0, 8), Some(Reach::Mapped(_))));
    assert_eq!(kept.strong_count(), 1, "no answer is late any more");
}

/// An owner had released its last window on a memory, and passed the memory again with an answer that came late. All of it was
/// mapped anew, and each page touched for the first time, though a window of before was still there.
#[test]
fn memory_that_comes_again_with_a_late_answer_is_not_mapped_anew() {
    let (mut liar, link, capability) = Liar::linked();
    let memory = Mapping::shared(4096).unwrap();
    let fd = memory.file().unwrap().as_fd();
    let passed = |slot| Entry {
        slot: U32::new(slot),
        ..shared(0, 8, 4096)
    };
    let before = liar.answered(&link, &[passed(0)], &[fd]).unwrap();
    let asked = link.ask(&[capability], None, now());
    assert!(matches!(asked, Err(WindowError::TimedOut)), "{asked:?}");
    let after = std::thread::scope(|threads| {
        let asked = threads.spawn(|| ask(&link, capability));
        let questions = [0; 2].map(|_| liar.question());
        liar.say(questions[0], &[passed(1)], &[fd]);
        let known = Entry {
            flags: U32::new(ENTRY_SHARED),
            ..passed(2)
        };
        liar.say(questions[1], &[known], &[]);
        asked.join().unwrap().unwrap()
    });
    let mapped = [&before, &after].map(|window| window.memory().unwrap());
    assert!(Arc::ptr_eq(mapped[0], mapped[1]));
}

/// Late answers of a false owner, each with other memory, would have filled the addresses of this process.
#[test]
fn late_answers_keep_few_memories_mapped() {
    // No other shared memory of this process is as long.
    const BYTES: usize = 41 * 4096;
    let (mut liar, link, capability) = Liar::linked();
    let memories: Vec<Mapping> = (0..40).map(|_| Mapping::shared(BYTES).unwrap()).collect();
    let fds: Vec<BorrowedFd<'_>> = (memories.iter())
        .map(|memory| memory.file().unwrap().as_fd())
        .collect();
    let entries: Vec<Entry> = (0..40)
        .map(|number| Entry {
            memory: U64::new(number),
            ..shared(0, 8, BYTES as u64)
        })
        .collect();
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let length = |line: &str| {
            let (start, end) = line.split_once(' ')?.0.split_once('-')?;
            let address = |hex| usize::from_str_radix(hex, 16).ok();
            Some(address(end)? - address(start)?)
        };
        // Heaps and stacks of other tests may be as long for a moment.
        let shared = maps.lines().filter(|line| line.contains("/memfd:"));
        shared.filter(|line| length(line) == Some(BYTES)).count()
    };
    let before = mapped();
    let ask = || link.ask(&[capability], None, now());
    for _ in 0..2 {
        assert!(matches!(ask(), Err(WindowError::TimedOut)));
    }
    let question = liar.question();
    liar.say(question, &entries, &fds);
    // It finds that answer, and none to itself.
    assert!(matches!(ask(), Err(WindowError::TimedOut)));
    assert_eq!(mapped() - before, 16);
}

#[test]
fn a_false_greeting_makes_no_link() {
    let near = owner(ServiceLimits::default());
    for (name, change) in LIES {
        assert!(Liar::new().link(&near, change).is_err(), "{name}");
    }
}

type Lie = (&'static str, fn(&mut Welcome));

const LIES: [Lie; 4] = [
    ("another protocol", |welcome| welcome.magic = U64::new(1)),
    ("another life", |welcome| welcome.incarnation = U64::new(1)),
    ("no slots", |welcome| welcome.slots = U32::ZERO),
    ("more slots than the page has", |welcome| {
        welcome.slots = U32::new(u32::MAX)
    }),
];

/// Questions to a stopped owner, each with a short deadline, filled its socket; then it counted as ended, for good.
#[test]
fn an_owner_that_does_not_answer_is_slow_and_not_gone() {
    let near = owner(ServiceLimits::default());
    let mut liar = Liar::new();
    let link = liar.link(&near, |_| {}).unwrap();
    for _ in 0..2000 {
        let asked = link.ask(&[], None, now());
        assert!(matches!(asked, Err(WindowError::TimedOut)), "{asked:?}");
    }
    assert!(!link.is_gone());
    // It goes on: the late answers are no answers to the question that is asked now.
    std::thread::scope(|threads| {
        let asked = threads.spawn(|| link.ask(&[], None, now() + PATIENCE));
        for _ in 0..=16 {
            let question = liar.question();
            liar.say(question, &[], &[]);
        }
        asked.join().unwrap().unwrap();
    });
}
