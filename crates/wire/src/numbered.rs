//! Messages in one direction between two processes whose link may break and come back: none is lost, and none is carried
//! out twice.
//!
//! The sender numbers its messages from one and keeps each until the receiver says that it has taken it. On a new link
//! the receiver says how far it came, and the rest is sent again. The receiver takes messages in their order, and leaves
//! out those that it has taken before.

use std::collections::VecDeque;

use slackwater_base::{Planted, planted};
use thiserror::Error;

/// Messages under way at most: half of what the queue of a link holds, should each leave alone.
pub(crate) const WINDOW: usize = 512;
/// Nothing more is sent while messages of so many bytes are under way. One message may go beyond.
const WINDOW_BYTES: usize = 8 << 20;
/// Items sent at once at most, if they are of more than one message.
const ITEMS_MAX: usize = crate::limits::BATCH_KEYS_MAX;
/// Bytes sent at once at most, if they are of more than one message.
const BYTES_MAX: usize = 1 << 20;
/// The receiver says how far it came after so many messages; before, only with what it sends anyway.
const OWED_MAX: u64 = 64;
/// The same by bytes: what fills the window is always enough to be told of.
const OWED_BYTES: usize = WINDOW_BYTES / 8;

/// A message that can be numbered.
pub trait Numbered {
    /// Items that it lists, one at least.
    fn items(&self) -> usize;

    /// Its length as bytes of a message, or a little more.
    fn bytes(&self) -> usize;
}

/// The other side's numbers are not those of this stream: the two do not belong together.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("number {said} is not of this stream, which is at {at}")]
pub struct OutOfStep {
    /// What the other side said.
    pub said: u64,
    /// The number that this side is at.
    pub at: u64,
}

/// The sending side of a stream.
#[derive(Clone, Debug)]
pub struct NumberedSender<T> {
    /// Not known to be taken yet, from number `first` on, with the bytes of each.
    kept: VecDeque<(T, usize)>,
    kept_bytes: usize,
    first: u64,
    /// How many of them were sent on the present link.
    sent: usize,
    sent_bytes: usize,
    /// The last number that was ever sent.
    last_sent: u64,
}

/// The receiving side of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct NumberedReceiver {
    taken: u64,
    told: u64,
    /// Bytes of what was taken since the sender was told.
    untold_bytes: usize,
}

impl<T: Clone + Numbered> NumberedSender<T> {
    /// A stream that begins.
    #[must_use]
    pub fn new() -> Self {
        Self {
            kept: VecDeque::new(),
            kept_bytes: 0,
            first: 1,
            sent: 0,
            sent_bytes: 0,
            last_sent: 0,
        }
    }

    /// Adds a message behind all others.
    pub fn push(&mut self, message: T) {
        let bytes = message.bytes();
        self.kept_bytes += bytes;
        self.kept.push_back((message, bytes));
    }

    /// Whether a sender that can wait should add another message now.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.kept.len() < WINDOW && self.kept_bytes < WINDOW_BYTES
    }

    /// The next messages to be sent on the present link, with the number of the first; none while there is nothing to
    /// send, or too much is under way.
    pub fn take(&mut self) -> Option<(u64, Vec<T>)> {
        let number = self.first + self.sent as u64;
        let (mut items, mut bytes) = (0, 0);
        let mut messages: Vec<T> = Vec::new();
        for (message, size) in self.kept.iter().take(WINDOW).skip(self.sent) {
            let full = items + message.items() > ITEMS_MAX || bytes + size > BYTES_MAX;
            if self.sent_bytes + bytes >= WINDOW_BYTES || (full && !messages.is_empty()) {
                break;
            }
            items += message.items();
            bytes += size;
            messages.push(message.clone());
        }
        self.sent += messages.len();
        self.sent_bytes += bytes;
        self.last_sent = self.last_sent.max(number + messages.len() as u64 - 1);
        (!messages.is_empty()).then_some((number, messages))
    }

    /// The receiver has taken everything up to this number.
    ///
    /// # Errors
    /// When nothing of that number was sent.
    pub fn acknowledge(&mut self, taken: u64) -> Result<(), OutOfStep> {
        let at = self.last_sent;
        if taken > at {
            return Err(OutOfStep { said: taken, at });
        }
        // What was taken from an earlier link and acknowledged late is not there any more.
        let count = (taken + 1).saturating_sub(self.first) as usize;
        for (_, bytes) in self.kept.drain(..count) {
            self.kept_bytes -= bytes;
            if self.sent > 0 {
                self.sent -= 1;
                self.sent_bytes -= bytes;
            }
        }
        self.first += count as u64;
        Ok(())
    }

    /// A new link begins, whose receiver has taken everything up to this number: the rest is to be sent again.
    ///
    /// # Errors
    /// When the receiver has taken more than was ever sent, or less than it has said before.
    pub fn resume(&mut self, taken: u64) -> Result<(), OutOfStep> {
        if taken.saturating_add(1) < self.first {
            let at = self.first - 1;
            return Err(OutOfStep { said: taken, at });
        }
        self.acknowledge(taken)?;
        if !planted(Planted::UntakenNotSentAgain) {
            (self.sent, self.sent_bytes) = (0, 0);
        }
        Ok(())
    }

    /// The number of the message that was added last.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.first + self.kept.len() as u64 - 1
    }

    /// Everything up to this number is known to be taken.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.first - 1
    }

    /// Messages that are not known to be taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether everything is known to be taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}

impl<T: Clone + Numbered> Default for NumberedSender<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl NumberedReceiver {
    /// Of messages with these numbers, those to be carried out: the first ones may have been taken before.
    ///
    /// # Errors
    /// When messages before them are missing: the link is to be made anew.
    pub fn accept<T: Numbered>(
        &mut self,
        first: u64,
        mut messages: Vec<T>,
    ) -> Result<Vec<T>, OutOfStep> {
        let next = self.taken + 1;
        if messages.is_empty() {
            return Ok(messages);
        }
        if first > next || first == 0 {
            return Err(OutOfStep {
                said: first,
                at: self.taken,
            });
        }
        let known = usize::try_from(next - first).unwrap_or(usize::MAX);
        messages.drain(..known.min(messages.len()));
        self.taken += messages.len() as u64;
        self.untold_bytes += messages.iter().map(T::bytes).sum::<usize>();
        Ok(messages)
    }

    /// The last number that was taken.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// The last number that was taken, as it is being told to the sender.
    pub fn tell(&mut self) -> u64 {
        (self.told, self.untold_bytes) = (self.taken, 0);
        self.taken
    }

    /// Whether the sender should be told now, even if there is nothing else to send.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.taken - self.told >= OWED_MAX || self.untold_bytes >= OWED_BYTES
    }
}

#[cfg(test)]
mod tests {
    use slackwater_base::Rng;

    use super::*;

    /// A message of so many items and bytes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Sized(usize, usize);

    impl Numbered for Sized {
        fn items(&self) -> usize {
            self.0
        }

        fn bytes(&self) -> usize {
            self.1
        }
    }

    impl Numbered for u64 {
        fn items(&self) -> usize {
            1
        }

        fn bytes(&self) -> usize {
            WINDOW_BYTES / 40
        }
    }

    /// The parts in which messages of these items and bytes leave, as their number and the count of messages.
    fn parts(messages: impl IntoIterator<Item = Sized>) -> Vec<(u64, usize)> {
        let mut sender = NumberedSender::new();
        messages
            .into_iter()
            .for_each(|message| sender.push(message));
        let parts = std::iter::from_fn(|| sender.take());
        parts.map(|(first, part)| (first, part.len())).collect()
    }

    #[test]
    fn messages_are_cut_by_their_items_and_bytes() {
        let items = [ITEMS_MAX, 1, ITEMS_MAX - 1, 2 * ITEMS_MAX, 3];
        let cut = parts(items.map(|items| Sized(items, 1)));
        assert_eq!(cut, [(1, 1), (2, 2), (4, 1), (5, 1)]);
        let bytes = [BYTES_MAX, 1, BYTES_MAX - 1, 2 * BYTES_MAX, 3];
        let cut = parts(bytes.map(|bytes| Sized(1, bytes)));
        assert_eq!(cut, [(1, 1), (2, 2), (4, 1), (5, 1)]);
    }

    /// The window counted messages only. A burst of drops with long keys was more than the queue of the link holds: it was
    /// broken and made anew, and the same burst came again.
    #[test]
    fn what_is_under_way_is_bounded_in_messages_and_in_bytes() {
        let check = |size: Sized, under_way: usize| {
            let mut sender = NumberedSender::new();
            (0..2 * under_way).for_each(|_| sender.push(size));
            assert!(!sender.has_room(), "{size:?}");
            let mut receiver = NumberedReceiver::default();
            let mut came = 0;
            while let Some((first, part)) = sender.take() {
                came += receiver.accept(first, part).unwrap().len();
            }
            assert_eq!(came, under_way, "{size:?}");
            assert!(receiver.owes(), "{size:?}: a full window is always told of");
            sender.acknowledge(1).unwrap();
            assert_eq!(sender.take().unwrap().1.len(), 1, "{size:?}");
            assert_eq!(sender.take(), None, "{size:?}");
            sender.acknowledge(receiver.tell()).unwrap();
            assert!(!receiver.owes(), "{size:?}");
            let rest = std::iter::from_fn(|| sender.take().map(|(_, part)| part.len()));
            assert_eq!(rest.sum::<usize>(), under_way - 1, "{size:?}");
            sender.acknowledge(2 * under_way as u64).unwrap();
            assert!(sender.has_room() && sender.is_empty(), "{size:?}");
        };
        check(Sized(1, 1), WINDOW);
        check(Sized(1, BYTES_MAX / 4), 32);
        check(Sized(1, WINDOW_BYTES - 1), 2);
    }

    /// The acknowledgement of a message that had never left was believed, and the message was forgotten.
    #[test]
    fn only_what_was_sent_can_be_acknowledged() {
        let mut sender = NumberedSender::new();
        (0..4).for_each(|message| sender.push(message));
        let out_of_step = |said, at| Err(OutOfStep { said, at });
        assert_eq!(sender.acknowledge(1), out_of_step(1, 0));
        assert_eq!(sender.resume(1), out_of_step(1, 0));
        assert_eq!(sender.take().unwrap().0, 1);
        sender.push(4);
        assert_eq!(sender.acknowledge(5), out_of_step(5, 4));
        // What an earlier link carried may be acknowledged on the next one.
        assert_eq!((sender.resume(1), sender.acknowledge(4)), (Ok(()), Ok(())));
        assert_eq!(sender.take(), Some((5, vec![4])));
    }

    #[test]
    fn a_sender_knows_what_was_added_and_what_is_taken() {
        let mut sender = NumberedSender::new();
        assert_eq!((sender.last(), sender.taken()), (0, 0));
        (0..4).for_each(|message| sender.push(message));
        sender.take();
        assert_eq!((sender.last(), sender.taken()), (4, 0));
        sender.acknowledge(3).unwrap();
        assert_eq!((sender.last(), sender.taken()), (4, 3));
        sender.push(4);
        sender.resume(4).unwrap();
        assert_eq!((sender.last(), sender.taken()), (5, 4));
    }

    #[test]
    fn numbers_of_another_stream_are_refused() {
        let mut sender = NumberedSender::new();
        (0..4).for_each(|message| sender.push(message));
        sender.take();
        let check = |result: Result<(), OutOfStep>, said, at| {
            assert_eq!(result, Err(OutOfStep { said, at }));
        };
        check(sender.acknowledge(5), 5, 4);
        check(sender.resume(5), 5, 4);
        sender.acknowledge(2).unwrap();
        sender.acknowledge(1).unwrap();
        check(sender.resume(1), 1, 2);
        assert_eq!((sender.resume(2), sender.len()), (Ok(()), 2));
        let mut receiver = NumberedReceiver::default();
        let mut accept = |first, count: usize| receiver.accept(first, vec![0; count]);
        assert_eq!(accept(2, 1), Err(OutOfStep { said: 2, at: 0 }));
        assert_eq!(accept(0, 1), Err(OutOfStep { said: 0, at: 0 }));
        assert_eq!(accept(7, 0), Ok(vec![]));
        assert_eq!(accept(1, 3), Ok(vec![0; 3]));
        assert_eq!(accept(2, 3), Ok(vec![0; 1]));
        assert_eq!(accept(1, 2), Ok(vec![]));
    }

    /// Links that break anywhere, with messages and acknowledgements under way.
    #[test]
    fn every_message_is_carried_out_once_and_in_order_however_often_the_link_breaks() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let (mut sender, mut receiver) = (NumberedSender::new(), NumberedReceiver::default());
            let (mut pushed, mut carried) = (0, Vec::new());
            let mut link: VecDeque<(u64, Vec<u64>)> = VecDeque::new();
            let mut acknowledged: VecDeque<u64> = VecDeque::new();
            for _ in 0..2000 {
                match rng.below(12) {
                    0..4 => {
                        pushed += 1;
                        sender.push(pushed);
                    }
                    4..6 => link.extend(sender.take()),
                    6..9 => {
                        if let Some((first, messages)) = link.pop_front() {
                            carried.extend(receiver.accept(first, messages).unwrap());
                            acknowledged.push_back(receiver.tell());
                        }
                    }
                    9..11 => {
                        if let Some(taken) = acknowledged.pop_front() {
                            sender.acknowledge(taken).unwrap();
                        }
                    }
                    _ => {
                        link.clear();
                        acknowledged.clear();
                        sender.resume(receiver.taken()).unwrap();
                    }
                }
            }
            sender.acknowledge(receiver.tell()).unwrap();
            while let Some((first, messages)) = link.pop_front().or_else(|| sender.take()) {
                carried.extend(receiver.accept(first, messages).unwrap());
                sender.acknowledge(receiver.tell()).unwrap();
            }
            assert!(sender.is_empty() && !receiver.owes());
            assert_eq!(carried, (1..=pushed).collect::<Vec<u64>>(), "seed {seed}");
        }
    }
}
