//! Links between processes that prove keys, and what others get.

use std::collections::BTreeSet;

use slackwater_data_plane::seal::{InitiatorHandshake, SealError, holder_of};
use slackwater_engine::{AllowList, Level, SealConfig, entropy};
use slackwater_wire::data::{GREETING_BYTES, Greeting};
use slackwater_zmtp::{KeyPair, SecretKey};

use super::*;
use crate::doorway::channel;
use crate::identity::ProcessName;
use crate::link_seal::{self, LinkSeal, greeting};
use crate::message::{Goodbye, PACKET_BYTES};

pub(super) const ALICE: u8 = 1;
pub(super) const BOB: u8 = 2;
const MALLORY: u8 = 3;

fn pair(byte: u8) -> KeyPair {
    KeyPair::of(SecretKey::from_bytes([byte; 32]))
}

fn public(byte: u8) -> PublicKey {
    pair(byte).public()
}

pub(super) fn list(levels: &[(u8, Level)]) -> AllowList {
    AllowList::of(levels.iter().map(|(key, level)| (public(*key), *level)))
}

fn keyed_by(own: u8, clients: &AllowList, limits: ServiceLimits) -> Owner {
    let life = Home::open().unwrap();
    let seal = SealConfig {
        keys: pair(own),
        clients: clients.clone(),
    };
    let service = Service::start(BOOT, Arc::clone(&life), limits, Some(seal)).unwrap();
    Owner {
        life,
        service: Arc::new(service),
    }
}

pub(super) fn keyed(own: u8, clients: &AllowList) -> Owner {
    keyed_by(own, clients, ServiceLimits::default())
}

impl Owner {
    /// A link from `from`, which takes this one for the owner of a key.
    pub(super) fn sealed_link(
        &self,
        from: &Owner,
        key: Option<u8>,
    ) -> Result<Arc<Link>, LinkError> {
        let (name, target) = (self.service.name(), self.life.incarnation());
        open_to(&from.service, name, target, key.map(public))
    }

    fn grant_to(&self, region: &Region, rights: Rights, key: u8) -> Capability {
        let spec = GrantSpec {
            holder: holder_of(&public(key)),
            ..GrantSpec::whole(region, rights)
        };
        self.life.grant(region, &spec)
    }

    pub(super) fn hello(&self, sealed: u32) -> Hello {
        Hello {
            magic: U64::new(MAGIC),
            version: U32::new(VERSION),
            sealed: U32::new(sealed),
            boot: BOOT,
            incarnation: U64::new(5),
            target: U64::new(self.life.incarnation().0),
        }
    }
}

/// A process that speaks for itself, packet by packet.
pub(super) struct Caller {
    pub(super) packets: Packets,
    buffer: Vec<u8>,
}

impl Caller {
    pub(super) fn of(owner: &Owner) -> Self {
        Self {
            packets: Packets::connect(owner.service.name()).unwrap(),
            buffer: vec![0; PACKET_BYTES],
        }
    }

    /// The text of the next packet, with how many descriptors came along; none when the link has ended.
    pub(super) fn hear(&mut self) -> Option<(Vec<u8>, usize)> {
        match self
            .packets
            .receive_until(&mut self.buffer, now() + PATIENCE)
        {
            Ok(Received::Packet(len, passed)) => Some((self.buffer[..len].to_vec(), passed.len())),
            Ok(Received::Closed) => None,
            other => panic!("nothing comes: {other:?}"),
        }
    }

    pub(super) fn say(&mut self, parts: &[&[u8]]) -> Option<(Vec<u8>, usize)> {
        self.packets.send(parts, &[]).unwrap();
        self.hear()
    }

    /// Begins the handshake with the key of `own`, for the owner of BOB's.
    pub(super) fn begin(&self, own: u8, hello: &Hello) -> InitiatorHandshake {
        let (here, there) = (ProcessName::own(), ProcessName::of_peer(&self.packets));
        let bound = channel(hello, here.unwrap(), there.unwrap());
        let target = Incarnation(hello.target.get());
        let said = greeting(Incarnation(5), target);
        InitiatorHandshake::begin(&pair(own), &entropy().unwrap(), public(BOB), said, &bound)
            .unwrap()
    }
}

fn refusal((packet, descriptors): (Vec<u8>, usize)) -> &'static str {
    assert_eq!(descriptors, 0);
    Goodbye::reason_in(&packet).expect("a goodbye")
}

#[test]
fn a_listed_key_gets_what_its_capabilities_allow_and_no_more() {
    let far = keyed(BOB, &list(&[(ALICE, Level::Admin)]));
    let near = keyed(ALICE, &AllowList::default());
    let region = far.region(Memory::shared(8192).unwrap());
    let link = far.sealed_link(&near, Some(BOB)).unwrap();
    let window = ask(&link, far.grant_to(&region, Rights::READ, ALICE)).unwrap();
    assert!(matches!(window.reach(0, 8192), Some(Reach::Mapped(_))));
    assert!(!window.is_writable(), "it is mapped for what was granted");
    let window = ask(&link, far.grant_to(&region, Rights::BOTH, ALICE)).unwrap();
    assert!(window.is_writable());
    // The holder is the key and not what the process claims to be.
    let of_claim = GrantSpec {
        holder: near.life.incarnation(),
        ..GrantSpec::whole(&region, Rights::READ)
    };
    for capability in [
        far.grant_to(&region, Rights::READ, MALLORY),
        far.life.grant(&region, &of_claim),
    ] {
        let refused = ask(&link, capability);
        assert!(
            matches!(refused, Err(WindowError::Refused(Refusal::Holder))),
            "{refused:?}"
        );
    }
    assert_eq!(far.service.counts(), (1, 2));
}

/// A sealed engine had no mover within its host, since any process of its user was let in there.
#[test]
fn a_process_that_proves_no_listed_key_gets_no_descriptor() {
    let far = keyed(BOB, &list(&[(ALICE, Level::Admin)]));
    let region = far.region(Memory::shared(4096).unwrap());
    let capability = far
        .life
        .grant(&region, &GrantSpec::whole(&region, Rights::READ));
    let question = Attach {
        question: U64::new(1),
        detach: U32::ZERO,
        attach: U32::new(1),
        notices: U32::ZERO,
        notice_name: U32::ZERO,
        notice_bytes: U32::ZERO,
        reserved: U32::ZERO,
    };
    let (open, sealed) = (far.hello(0), far.hello(1));
    // One that greets as if there were no keys, and one that asks without a greeting.
    let told = Caller::of(&far).say(&[open.as_bytes()]).unwrap();
    assert_eq!(refusal(told), "it has keys, and asks for one");
    let told = Caller::of(&far).say(&[question.as_bytes(), capability.as_bytes()]);
    assert_eq!(refusal(told.unwrap()), "another version");
    let told = Caller::of(&far).say(&[sealed.as_bytes()]).unwrap();
    assert_eq!(refusal(told), "it has keys, and asks for one");
    // One with a key that nobody has listed.
    let mut mallory = Caller::of(&far);
    let hello = mallory.begin(MALLORY, &sealed).hello().to_bytes();
    let told = mallory.say(&[sealed.as_bytes(), &hello]).unwrap();
    assert_eq!(refusal(told), "its list lacks our key");
    // One that repeats what Alice has said: the answer comes, but it cannot open it, nor prove that it is Alice.
    let mallory = Caller::of(&far);
    let hello = mallory.begin(ALICE, &sealed).hello().to_bytes();
    for proof in [&[0; 20][..], &[0; 36], question.as_bytes()] {
        let mut mallory = Caller::of(&far);
        let (answered, descriptors) = mallory.say(&[sealed.as_bytes(), &hello]).unwrap();
        assert_eq!((answered.len(), descriptors), (GREETING_BYTES, 0));
        assert_eq!(mallory.say(&[proof]), None, "closed without a word");
    }
    // One that changes the hello: the handshake is bound to all of it.
    let mut changed = sealed;
    changed.incarnation = U64::new(6);
    let told = Caller::of(&far).say(&[changed.as_bytes(), &hello]).unwrap();
    assert_eq!(refusal(told), "its list lacks our key");
    assert_eq!((far.service.counts(), region.in_flight()), ((0, 0), 0));
    assert_eq!(far.service.refused(), 7);
}

#[test]
fn ends_of_which_one_has_no_keys_refuse_each_other_and_say_why() {
    let clients = list(&[(ALICE, Level::Admin), (MALLORY, Level::Basic)]);
    let (bob, plain) = (keyed(BOB, &clients), owner(ServiceLimits::default()));
    let [alice, mallory] = [ALICE, MALLORY].map(|own| keyed(own, &AllowList::default()));
    let check = |from: &Owner, to: &Owner, key, expected: &str| {
        let error = to.sealed_link(from, key).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let unsealed = SealError::Unsealed.to_string();
    check(&plain, &bob, Some(BOB), &unsealed);
    check(&plain, &bob, None, "it has keys, and asks for one");
    check(&alice, &plain, None, &unsealed);
    check(&alice, &plain, Some(BOB), "it has no keys");
    // Bob has another key than was expected, so the handshake shows none that is listed.
    check(&alice, &bob, Some(MALLORY), "its list lacks our key");
    check(&mallory, &bob, Some(BOB), "memory=mapped");
    assert!(bob.sealed_link(&alice, Some(BOB)).is_ok());
}

/// The owner of a key that is taken from the list could go on copying through the windows that were open.
#[test]
fn a_key_that_is_taken_from_the_list_ends_its_link() {
    for (left, expected) in [
        (Level::None, "its list lacks our key"),
        (Level::Basic, "memory=mapped"),
    ] {
        let clients = list(&[(ALICE, Level::Admin), (MALLORY, Level::Admin)]);
        let far = keyed(BOB, &clients);
        let region = far.region(Memory::shared(4096).unwrap());
        let [alice, other] = [ALICE, MALLORY].map(|own| {
            let near = keyed(own, &AllowList::default());
            let link = far.sealed_link(&near, Some(BOB)).unwrap();
            let window = ask(&link, far.grant_to(&region, Rights::READ, own)).unwrap();
            (near, link, window)
        });
        let (_near, link, window) = &alice;
        let mark = window.mark().unwrap();
        clients.replace([(public(MALLORY), Level::Admin), (public(ALICE), left)]);
        assert!(window.is_over() && window.mark().is_err());
        assert!(
            mark.finish().is_err(),
            "a copy that was under way does not count"
        );
        eventually("the end of the link", || link.is_gone());
        let farewell = link.farewell().unwrap();
        assert!(farewell.contains(expected), "{farewell}");
        assert!(
            other.2.mark().is_ok(),
            "the links of others are not concerned"
        );
        let again = ask(&other.1, far.grant_to(&region, Rights::BOTH, MALLORY));
        assert!(again.is_ok());
        drop((alice, other, again));
        assert!(reuse(&far, &region, PATIENCE));
    }
}

/// A key that is taken from the list between the handshake and its proof is not let in.
#[test]
fn the_list_is_read_when_the_key_is_proven() {
    let clients = list(&[(ALICE, Level::Admin)]);
    let far = keyed(BOB, &clients);
    let (mut alice, hello) = (Caller::of(&far), far.hello(1));
    let handshake = alice.begin(ALICE, &hello);
    let said = handshake.hello().to_bytes();
    let (answered, _) = alice.say(&[hello.as_bytes(), &said]).unwrap();
    let answered = Greeting::from_bytes(&answered.try_into().unwrap()).unwrap();
    let mut seal = LinkSeal::new(handshake.finish(&answered).unwrap());
    clients.replace([]);
    link_seal::send(&alice.packets, Some(&mut seal), &[], &[]).unwrap();
    let (mut told, descriptors) = alice.hear().unwrap();
    let len = told.len();
    let len = link_seal::open(Some(&mut seal), &mut told, len).unwrap();
    assert_eq!(
        refusal((told[..len].to_vec(), descriptors)),
        "its list lacks our key"
    );
}

#[test]
fn a_packet_that_does_not_open_ends_the_link() {
    let far = keyed(BOB, &list(&[(ALICE, Level::Admin)]));
    let near = keyed(ALICE, &AllowList::default());
    let region = far.region(Memory::shared(4096).unwrap());
    let link = far.sealed_link(&near, Some(BOB)).unwrap();
    let window = ask(&link, far.grant_to(&region, Rights::READ, ALICE)).unwrap();
    // A question that would be one on a link without keys.
    let question = Attach {
        question: U64::new(9),
        detach: U32::ZERO,
        attach: U32::ZERO,
        notices: U32::ZERO,
        notice_name: U32::ZERO,
        notice_bytes: U32::ZERO,
        reserved: U32::ZERO,
    };
    link.send_raw(question.as_bytes());
    eventually("the end of the link", || link.is_gone());
    assert!(window.is_over());
}

/// A hundred and more processes that connect and say nothing kept every other out.
#[test]
fn silent_callers_make_way_for_others() {
    let far = keyed(BOB, &list(&[(ALICE, Level::Admin)]));
    let near = keyed(ALICE, &AllowList::default());
    let silent: Vec<Caller> = (0..100)
        .flat_map(|_| [Caller::of(&far), Caller::of(&far), Caller::of(&far)])
        .inspect(|caller| {
            // Most likely it was taken from the kernel by then, so that the queue there is not full for the next.
            std::thread::sleep(Duration::from_micros(200));
            assert_eq!(caller.buffer.len(), PACKET_BYTES);
        })
        .collect();
    assert!(far.sealed_link(&near, Some(BOB)).is_ok());
    let ended = silent.iter().filter(|caller| caller.packets.is_closed());
    assert!(ended.count() >= 100, "the first ones were disconnected");
}

/// Without a bound a process on no list had the owner agree on keys as often as it liked, some fifty microseconds each.
#[test]
fn a_flood_of_handshakes_is_mostly_turned_away_unread() {
    let clients = list(&[(ALICE, Level::Admin), (MALLORY, Level::None)]);
    let far = keyed(BOB, &clients);
    let near = keyed(ALICE, &AllowList::default());
    let region = far.region(Memory::shared(4096).unwrap());
    let link = far.sealed_link(&near, Some(BOB)).unwrap();
    let hello = far.hello(1);
    let said = Caller::of(&far).begin(MALLORY, &hello).hello().to_bytes();
    let begun = now();
    let (mut agreed, mut reasons) = (0, BTreeSet::new());
    for _ in 0..1500 {
        let told = Caller::of(&far)
            .say(&[hello.as_bytes(), &said])
            .map(refusal);
        agreed += u32::from(told == Some("its list lacks our key"));
        reasons.insert(told);
    }
    let seconds = begun.until(now()).as_secs_f64();
    assert!(f64::from(agreed) <= 201.0 + 200.0 * seconds, "{agreed}");
    assert!(reasons.contains(&Some("no room for another process")));
    // The link that stands is answered all the same.
    assert!(ask(&link, far.grant_to(&region, Rights::READ, ALICE)).is_ok());
}

/// An owner that answers as a test tells it, with BOB's key.
struct KeyedLiar {
    liar: Liar,
    seal: Option<LinkSeal>,
}

impl KeyedLiar {
    /// A link to it, whose welcome is sent sealed or not.
    fn link(near: &Owner, sealed: bool) -> (Self, Result<Arc<Link>, LinkError>) {
        let mut liar = Liar::new();
        let name = liar.name.clone();
        let (mut seal, link) = std::thread::scope(|threads| {
            let link = threads.spawn(|| open_to(&near.service, &name, LIFE, Some(public(BOB))));
            let mut seal = liar.agree();
            let with = Some(&mut seal).filter(|_| sealed);
            let page = [liar.page.as_fd()];
            let sent = link_seal::send(liar.packets(), with, &[welcome().as_bytes()], &page);
            sent.unwrap();
            (Some(seal), link.join().unwrap())
        });
        let seal = seal.take();
        (Self { liar, seal }, link)
    }
}

impl Liar {
    /// Takes a call and agrees on keys.
    fn agree(&mut self) -> LinkSeal {
        eventually("a call", || {
            self.packets = self.listener.accept().unwrap();
            self.packets.is_some()
        });
        let packets = self.packets.as_ref().unwrap();
        let until = now() + PATIENCE;
        let Ok(Received::Packet(len, _)) = packets.receive_until(&mut self.buffer, until) else {
            panic!("a greeting comes")
        };
        let (hello, rest) = Hello::read_from_prefix(&self.buffer[..len]).unwrap();
        let said = Greeting::from_bytes(rest.try_into().unwrap()).unwrap();
        let (there, here) = (ProcessName::of_peer(packets), ProcessName::own());
        let bound = channel(&hello, there.unwrap(), here.unwrap());
        let seal = SealConfig {
            keys: pair(BOB),
            clients: list(&[(ALICE, Level::Admin)]),
        };
        let own = greeting(LIFE, Incarnation(hello.incarnation.get()));
        let (_, answered, keys) = seal
            .answer(&entropy().unwrap(), &said, own, &bound)
            .unwrap();
        packets.send(&[&answered.to_bytes()], &[]).unwrap();
        let mut seal = LinkSeal::new(keys);
        let Ok(Received::Packet(len, _)) = packets.receive_until(&mut self.buffer, until) else {
            panic!("a proof comes")
        };
        assert!(matches!(
            link_seal::open(Some(&mut seal), &mut self.buffer, len),
            Ok(0)
        ));
        seal
    }
}

#[test]
fn an_owner_that_seals_nothing_after_its_proof_makes_no_link() {
    let near = keyed(ALICE, &AllowList::default());
    assert!(KeyedLiar::link(&near, true).1.is_ok());
    let (_liar, link) = KeyedLiar::link(&near, false);
    assert!(matches!(link, Err(LinkError::Seal(SealError::Record))));
}

/// Questions that find the socket full are not sent; what is asked afterwards must still open.
#[test]
fn a_slow_owner_opens_what_comes_after_questions_that_were_not_sent() {
    let near = keyed(ALICE, &AllowList::default());
    let (mut owner, link) = KeyedLiar::link(&near, true);
    let link = link.unwrap();
    for _ in 0..100 {
        let asked = link.ask(&[], None, now());
        assert!(matches!(asked, Err(WindowError::TimedOut)), "{asked:?}");
    }
    std::thread::scope(|threads| {
        let asked = threads.spawn(|| link.ask(&[], None, now() + PATIENCE));
        let (liar, seal) = (&mut owner.liar, &mut owner.seal);
        for _ in 0..=16 {
            let packets = liar.packets.as_ref().unwrap();
            let received = packets.receive_until(&mut liar.buffer, now() + PATIENCE);
            let Ok(Received::Packet(len, _)) = received else {
                panic!("a question comes")
            };
            let len = link_seal::open(seal.as_mut(), &mut liar.buffer, len).unwrap();
            let (question, _) = Attach::read_from_prefix(&liar.buffer[..len]).unwrap();
            let head = Attached {
                question: question.question,
                attached: U32::ZERO,
                noticed: U32::ZERO,
            };
            link_seal::send(packets, seal.as_mut(), &[head.as_bytes()], &[]).unwrap();
        }
        asked.join().unwrap().unwrap();
    });
    // What it says is believed only if it opens.
    let packets = owner.liar.packets();
    packets.send(&[&[0; 36]], &[]).unwrap();
    let asked = link.ask(&[], None, now() + PATIENCE);
    assert!(matches!(asked, Err(WindowError::Garbled)), "{asked:?}");
}
