//! Messages in one direction between two processes whose link may break and come back: none is lost, and none is carried
//! out twice.
//!
//! The sender numbers its messages from one and keeps each until the receiver says that it has taken it. On a new link
//! the receiver says how far it came, and the rest is sent again. The receiver takes messages in their order, and leaves
//! out those that it has taken before.

use std::collections::VecDeque;

use thiserror::Error;

/// Messages under way at most, so that neither a link's queue nor the receiver's is flooded.
const WINDOW: usize = 1024;
/// Items in one message at most, if it has more than one part.
const ITEMS_MAX: usize = crate::limits::BATCH_KEYS_MAX;
/// The receiver says how far it came after so many messages; before, only with what it sends anyway.
const OWED_MAX: u64 = 64;

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
    /// Not known to be taken yet, from number `first` on.
    kept: VecDeque<T>,
    first: u64,
    /// How many of them were sent on the present link.
    sent: usize,
}

/// The receiving side of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct NumberedReceiver {
    taken: u64,
    told: u64,
}

impl<T: Clone> NumberedSender<T> {
    /// A stream that begins.
    #[must_use]
    pub fn new() -> Self {
        Self {
            kept: VecDeque::new(),
            first: 1,
            sent: 0,
        }
    }

    /// Adds a message behind all others.
    pub fn push(&mut self, message: T) {
        self.kept.push_back(message);
    }

    /// The next messages to be sent on the present link, with the number of the first; none while there is nothing to
    /// send, or too much is under way. `items` says how many items a message has.
    pub fn take(&mut self, items: impl Fn(&T) -> usize) -> Option<(u64, Vec<T>)> {
        let number = self.first + self.sent as u64;
        let mut room = ITEMS_MAX;
        let mut messages: Vec<T> = Vec::new();
        for message in self.kept.iter().take(WINDOW).skip(self.sent) {
            let size = items(message);
            if size > room && !messages.is_empty() {
                break;
            }
            room = room.saturating_sub(size);
            messages.push(message.clone());
        }
        self.sent += messages.len();
        (!messages.is_empty()).then_some((number, messages))
    }

    /// The receiver has taken everything up to this number.
    ///
    /// # Errors
    /// When nothing of that number was sent.
    pub fn acknowledge(&mut self, taken: u64) -> Result<(), OutOfStep> {
        let at = self.first + self.kept.len() as u64 - 1;
        if taken > at {
            return Err(OutOfStep { said: taken, at });
        }
        // What was taken from an earlier link and acknowledged late is not there any more.
        let count = (taken + 1).saturating_sub(self.first) as usize;
        self.kept.drain(..count);
        self.first += count as u64;
        self.sent = self.sent.saturating_sub(count);
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
        self.sent = 0;
        Ok(())
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

impl<T: Clone> Default for NumberedSender<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl NumberedReceiver {
    /// Of messages with these numbers, those to be carried out: the first ones may have been taken before.
    ///
    /// # Errors
    /// When messages before them are missing: the link is to be made anew.
    pub fn accept<T>(&mut self, first: u64, mut messages: Vec<T>) -> Result<Vec<T>, OutOfStep> {
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
        Ok(messages)
    }

    /// The last number that was taken.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// The last number that was taken, as it is being told to the sender.
    pub fn tell(&mut self) -> u64 {
        self.told = self.taken;
        self.taken
    }

    /// Whether the sender should be told now, even if there is nothing else to send.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.taken - self.told >= OWED_MAX
    }
}

#[cfg(test)]
mod tests {
    use slackwater_base::Rng;

    use super::*;

    fn take(sender: &mut NumberedSender<u64>) -> Option<(u64, Vec<u64>)> {
        sender.take(|_| 1)
    }

    #[test]
    fn messages_are_cut_by_their_items_and_held_back_by_the_window() {
        let mut sender = NumberedSender::new();
        for items in [ITEMS_MAX, 1, ITEMS_MAX - 1, 2 * ITEMS_MAX, 3] {
            sender.push(items);
        }
        let mut parts = Vec::new();
        while let Some((first, part)) = sender.take(|items| *items) {
            parts.push((first, part.len()));
        }
        assert_eq!(parts, [(1, 1), (2, 2), (4, 1), (5, 1)]);
        let mut sender = NumberedSender::new();
        (0..2 * WINDOW as u64).for_each(|message| sender.push(message));
        assert_eq!(take(&mut sender).unwrap().1.len(), WINDOW);
        assert_eq!(take(&mut sender), None);
        sender.acknowledge(10).unwrap();
        assert_eq!(take(&mut sender).unwrap().0, WINDOW as u64 + 1);
        assert_eq!(take(&mut sender), None);
    }

    #[test]
    fn numbers_of_another_stream_are_refused() {
        let mut sender = NumberedSender::new();
        (0..4).for_each(|message| sender.push(message));
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
                    4..6 => link.extend(take(&mut sender)),
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
            while let Some((first, messages)) = link.pop_front().or_else(|| take(&mut sender)) {
                carried.extend(receiver.accept(first, messages).unwrap());
            }
            sender.acknowledge(receiver.tell()).unwrap();
            assert!(sender.is_empty() && !receiver.owes());
            assert_eq!(carried, (1..=pushed).collect::<Vec<u64>>(), "seed {seed}");
        }
    }
}
