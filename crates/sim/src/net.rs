//! The network: links with delay, loss, duplication, reordering, one-way cuts and slowness.
//!
//! Messages between nodes and the master travel on streams, as over TCP: in order and once, late when packets are lost,
//! held while the link is cut. Requests of clients and their answers travel the same way, but each may also be lost,
//! repeated or delayed, as happens when a client reconnects. Bytes of the data plane travel as datagrams, which is the
//! worst that a mover may do: they are lost, duplicated, reordered, and may arrive long after the transfer has ended.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use slackwater_base::{Instant, Rng};

use crate::engine::Seed;

/// A process of the cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Process {
    /// The master.
    Master,
    /// A storage node.
    Node(u32),
    /// A client.
    Client(u32),
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Master => f.write_str("master"),
            Self::Node(n) => write!(f, "node{n}"),
            Self::Client(n) => write!(f, "client{n}"),
        }
    }
}

impl Process {
    fn index(self) -> u64 {
        match self {
            Self::Master => 0,
            Self::Node(n) => 1 << 32 | u64::from(n),
            Self::Client(n) => 2 << 32 | u64::from(n),
        }
    }
}

/// How links behave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkOptions {
    /// Least delay of a message.
    pub delay_min: Duration,
    /// Most delay of a message without faults.
    pub delay_max: Duration,
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that a datagram arrives twice.
    pub duplicate: f64,
    /// Probability that a datagram is delayed for much longer than the others.
    pub reorder: f64,
    /// Longest such delay.
    pub reorder_max: Duration,
    /// Bytes a second that a link carries.
    pub bytes_per_second: u64,
    /// What happens to requests of clients and their answers.
    pub messages: MessageFaults,
}

/// How often requests of clients and their answers are lost, repeated or delayed although the connection is open.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MessageFaults {
    /// Probability that a message is lost.
    pub loss: f64,
    /// Probability that a message arrives twice.
    pub repeat: f64,
    /// Probability that a copy of a message is delayed, so that others overtake it.
    pub delay: f64,
    /// Longest such delay.
    pub delay_max: Duration,
}

/// All links of the cluster.
#[derive(Debug)]
pub struct Net {
    seed: Seed,
    options: LinkOptions,
    links: BTreeMap<(Process, Process), Link>,
    calm: bool,
}

#[derive(Debug)]
struct Link {
    rng: Rng,
    cut_until: Instant,
    slow_until: Instant,
    /// When the last message of the stream arrives: later messages arrive after it.
    last: Instant,
}

impl Net {
    /// Links between any two processes, all with the same options and without faults.
    #[must_use]
    pub fn new(seed: Seed, options: LinkOptions) -> Self {
        Self {
            seed,
            options,
            links: BTreeMap::new(),
            calm: false,
        }
    }

    /// When a message of `bytes` that is sent now on the stream arrives.
    pub fn stream(&mut self, now: Instant, from: Process, to: Process, bytes: usize) -> Instant {
        let options = self.options();
        let link = self.link(from, to);
        let mut at = link.cut_until.max(now) + link.delay(now, &options, bytes);
        let mut retransmit = RETRANSMIT;
        while link.rng.chance(options.loss) {
            at += retransmit;
            retransmit *= 2;
        }
        link.last = at.max(link.last + Duration::from_nanos(1));
        link.last
    }

    /// When each copy of a client's request, or of the answer to one, of `bytes` arrives: none when it is lost.
    pub fn message(
        &mut self,
        now: Instant,
        from: Process,
        to: Process,
        bytes: usize,
    ) -> Vec<Instant> {
        let in_order = self.stream(now, from, to, bytes);
        let faults = self.options().messages;
        if faults == MessageFaults::default() {
            return vec![in_order];
        }
        let link = self.link(from, to);
        if link.rng.chance(faults.loss) {
            return Vec::new();
        }
        let mut copies = vec![in_order];
        if link.rng.chance(faults.repeat) {
            copies.push(in_order);
        }
        for at in &mut copies {
            if link.rng.chance(faults.delay) {
                *at += Duration::from_nanos(link.rng.below(nanos(faults.delay_max).max(1)));
            }
        }
        copies
    }

    /// When each copy of a datagram of `bytes` that is sent now arrives: none when it is lost.
    pub fn datagram(
        &mut self,
        now: Instant,
        from: Process,
        to: Process,
        bytes: usize,
    ) -> Vec<Instant> {
        let options = self.options();
        let link = self.link(from, to);
        let mut copies = Vec::new();
        if link.cut_until > now || link.rng.chance(options.loss) {
            return copies;
        }
        copies.push(now + link.delay(now, &options, bytes));
        if link.rng.chance(options.duplicate) {
            copies.push(now + link.delay(now, &options, bytes));
        }
        for at in &mut copies {
            if link.rng.chance(options.reorder) {
                *at += Duration::from_nanos(link.rng.below(nanos(options.reorder_max).max(1)));
            }
        }
        copies
    }

    /// Cuts one direction until `until`.
    pub fn cut(&mut self, from: Process, to: Process, until: Instant) {
        let link = self.link(from, to);
        link.cut_until = link.cut_until.max(until);
    }

    /// When the cut of one direction ends, or a time in the past.
    pub fn cut_until(&mut self, from: Process, to: Process) -> Instant {
        self.link(from, to).cut_until
    }

    /// Slows one direction to a hundredth until `until`.
    pub fn slow(&mut self, from: Process, to: Process, until: Instant) {
        let link = self.link(from, to);
        link.slow_until = link.slow_until.max(until);
    }

    /// A new connection on this link: its messages do not wait for those of the last one.
    pub fn reconnect(&mut self, from: Process, to: Process) {
        self.link(from, to).last = Instant::ZERO;
    }

    /// Ends all faults for good.
    pub fn heal(&mut self) {
        self.calm = true;
        for link in self.links.values_mut() {
            link.cut_until = Instant::ZERO;
            link.slow_until = Instant::ZERO;
        }
    }

    fn options(&self) -> LinkOptions {
        if self.calm {
            LinkOptions {
                loss: 0.0,
                duplicate: 0.0,
                reorder: 0.0,
                messages: MessageFaults::default(),
                ..self.options
            }
        } else {
            self.options
        }
    }

    fn link(&mut self, from: Process, to: Process) -> &mut Link {
        let seed = self.seed;
        self.links.entry((from, to)).or_insert_with(|| Link {
            rng: seed.stream("link", from.index().rotate_left(17) ^ to.index()),
            cut_until: Instant::ZERO,
            slow_until: Instant::ZERO,
            last: Instant::ZERO,
        })
    }
}

impl Link {
    fn delay(&mut self, now: Instant, options: &LinkOptions, bytes: usize) -> Duration {
        let spread = nanos(options.delay_max).saturating_sub(nanos(options.delay_min));
        let speed = if self.slow_until > now {
            options.bytes_per_second / 100
        } else {
            options.bytes_per_second
        };
        let wire = (bytes as u128 * 1_000_000_000 / u128::from(speed.max(1))) as u64;
        options.delay_min + Duration::from_nanos(self.rng.below(spread + 1) + wire)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The first time-out after which a lost packet of a stream is sent again; it doubles.
const RETRANSMIT: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    const ROUGH: LinkOptions = LinkOptions {
        delay_min: Duration::from_micros(10),
        delay_max: Duration::from_micros(500),
        loss: 0.3,
        duplicate: 0.5,
        reorder: 0.2,
        reorder_max: Duration::from_millis(100),
        bytes_per_second: 1 << 30,
        messages: MessageFaults {
            loss: 0.3,
            repeat: 0.5,
            delay: 0.2,
            delay_max: Duration::from_millis(100),
        },
    };
    const A: Process = Process::Master;
    const B: Process = Process::Client(3);

    #[test]
    fn a_stream_keeps_its_order_and_continues_after_a_cut() {
        let mut net = Net::new(Seed(1), ROUGH);
        let mut last = Instant::ZERO;
        for i in 0..500 {
            let at = net.stream(Instant::from_nanos(i * 1000), A, B, 100);
            assert!(at > last);
            last = at;
        }
        let until = last + Duration::from_secs(1);
        net.cut(A, B, until);
        assert!(net.stream(last, A, B, 1) > until);
        assert!(
            net.stream(last, B, A, 1) < until,
            "the other direction is not cut"
        );
    }

    #[test]
    fn datagrams_are_lost_duplicated_and_reordered_until_the_net_heals() {
        let mut net = Net::new(Seed(2), ROUGH);
        let (mut lost, mut doubled, mut overtaken, mut last) = (0, 0, 0, Instant::ZERO);
        for i in 0..1000 {
            let copies = net.datagram(Instant::from_nanos(i * 100_000), A, B, 10);
            lost += usize::from(copies.is_empty());
            doubled += usize::from(copies.len() == 2);
            for at in copies {
                overtaken += usize::from(at < last);
                last = at;
            }
        }
        assert!((200..400).contains(&lost) && (250..450).contains(&doubled) && overtaken > 100);
        net.heal();
        for i in 0..1000 {
            assert_eq!(net.datagram(Instant::from_nanos(i), A, B, 10).len(), 1);
        }
    }

    #[test]
    fn messages_are_lost_repeated_and_reordered_until_the_net_heals() {
        let mut net = Net::new(Seed(2), ROUGH);
        let (mut lost, mut doubled, mut overtaken, mut last) = (0, 0, 0, Instant::ZERO);
        for i in 0..1000 {
            let copies = net.message(Instant::from_nanos(i * 100_000), A, B, 10);
            lost += usize::from(copies.is_empty());
            doubled += usize::from(copies.len() == 2);
            for at in copies {
                overtaken += usize::from(at < last);
                last = at;
            }
        }
        assert!((200..400).contains(&lost) && (250..450).contains(&doubled) && overtaken > 100);
        net.heal();
        for i in 0..1000 {
            assert_eq!(net.message(Instant::from_nanos(i), A, B, 10).len(), 1);
        }
    }

    #[test]
    fn a_slow_link_takes_a_hundred_times_longer() {
        let calm = LinkOptions {
            loss: 0.0,
            delay_max: ROUGH.delay_min,
            ..ROUGH
        };
        let mut net = Net::new(Seed(3), calm);
        let brisk = net.stream(Instant::ZERO, A, B, 1 << 20).as_nanos();
        net.slow(A, B, Instant::NEVER);
        net.reconnect(A, B);
        assert!(net.stream(Instant::ZERO, A, B, 1 << 20).as_nanos() > 90 * brisk);
    }
}
