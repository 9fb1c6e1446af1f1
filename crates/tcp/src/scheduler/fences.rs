//! The tasks that a fence waits for.

use std::collections::VecDeque;

use slackwater_engine::{BatchId, Part};

use super::Action;

/// Unfinished tasks of one peer by epoch; a fence ends an epoch.
#[derive(Debug)]
pub(super) struct Fences {
    /// From the oldest unfinished epoch to the one that new tasks enter; never empty.
    epochs: VecDeque<Epoch>,
    /// The number of the oldest.
    first: u64,
}

#[derive(Debug, Default)]
struct Epoch {
    unfinished: usize,
    /// A fence has ended it: no task enters any more.
    fenced: bool,
    /// The part that the fence completes; none when it was cancelled.
    waiting: Option<Part>,
}

impl Fences {
    pub(super) fn new() -> Self {
        Self {
            epochs: VecDeque::from([Epoch::default()]),
            first: 0,
        }
    }

    /// Counts a new task; returns its epoch.
    pub(super) fn enter(&mut self) -> u64 {
        let last = self.epochs.len() - 1;
        self.epochs[last].unfinished += 1;
        self.first + last as u64
    }

    /// A task of an epoch has ended.
    pub(super) fn leave(&mut self, epoch: u64, actions: &mut Vec<Action>) {
        let index = (epoch - self.first) as usize;
        self.epochs[index].unfinished -= 1;
        self.pass(actions);
    }

    /// Has `part` wait for everything that has entered.
    pub(super) fn fence(&mut self, part: Part, actions: &mut Vec<Action>) {
        if let Some(last) = self.epochs.back_mut() {
            (last.fenced, last.waiting) = (true, Some(part));
        }
        self.epochs.push_back(Epoch::default());
        self.pass(actions);
    }

    /// Cancels the fences of a batch.
    pub(super) fn cancel(&mut self, batch: BatchId, actions: &mut Vec<Action>) {
        for epoch in &mut self.epochs {
            actions.extend(
                epoch
                    .waiting
                    .take_if(|part| part.batch() == batch)
                    .map(Action::GiveUp),
            );
        }
    }

    /// Whether every task has ended.
    pub(super) fn are_quiet(&self) -> bool {
        self.epochs.iter().all(|epoch| epoch.unfinished == 0)
    }

    fn pass(&mut self, actions: &mut Vec<Action>) {
        while let Some(first) = self
            .epochs
            .front_mut()
            .filter(|first| first.unfinished == 0 && first.fenced)
        {
            actions.extend(first.waiting.take().map(Action::Fenced));
            self.epochs.pop_front();
            self.first += 1;
        }
    }
}
