//! How far `bench all` is, and how long the rest will take.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::figures::Measured;

/// The runs to come, and what runs of the same part took.
pub(super) struct Pace {
    bar: ProgressBar,
    told: bool,
    parts: Vec<Expected>,
    over: u64,
    runs: u64,
}

/// A part's runs to come.
struct Expected {
    left: u32,
    /// What runs of it took, kept ones included.
    took: Vec<f64>,
    /// What one takes by the plan.
    planned: f64,
}

impl Pace {
    /// `missing` names the part of each run to come.
    pub(super) fn new(
        measured: &[Measured],
        missing: impl Iterator<Item = usize>,
        quick: bool,
    ) -> Self {
        let expected = |part: &Measured| Expected {
            left: 0,
            took: part.runs.iter().map(|run| run.seconds).collect(),
            planned: if quick {
                QUICK_SECONDS
            } else {
                part.part.seconds
            },
        };
        let mut parts: Vec<Expected> = measured.iter().map(expected).collect();
        let mut runs = 0;
        for at in missing {
            parts[at].left += 1;
            runs += 1;
        }
        let bar = ProgressBar::with_draw_target(Some(runs), ProgressDrawTarget::stderr());
        let style =
            ProgressStyle::with_template("{bar:28.cyan/dim} {pos}/{len} · {elapsed} · {msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("━╸─"));
        Self {
            bar,
            told: std::io::stderr().is_terminal(),
            parts,
            over: 0,
            runs,
        }
    }

    /// A run begins.
    pub(super) fn begin(&self, part: &str, number: usize) {
        let left = HumanDuration(Duration::from_secs_f64(self.seconds_left()));
        let message = format!("{part}, run {number} · about {left} left");
        if self.told {
            self.bar.set_message(message);
            self.bar.tick();
        } else {
            let (over, runs) = (self.over, self.runs);
            crate::remote::note(&format!("{over} of {runs} runs are over: {message}"));
        }
    }

    /// A run of a part is over; it took so long, or was not made.
    pub(super) fn over(&mut self, part: usize, seconds: Option<f64>) {
        let expected = &mut self.parts[part];
        expected.left -= 1;
        expected.took.extend(seconds);
        self.over += 1;
        self.bar.inc(1);
    }

    pub(super) fn say(&self, line: &str) {
        if self.told {
            self.bar.println(line);
        } else {
            crate::remote::note(line);
        }
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn seconds_left(&self) -> f64 {
        self.parts.iter().map(Expected::seconds_left).sum()
    }
}

impl Expected {
    fn seconds_left(&self) -> f64 {
        let one = match self.took.len() {
            0 => self.planned,
            runs => self.took.iter().sum::<f64>() / runs as f64,
        };
        f64::from(self.left) * one
    }
}

/// What a taste takes.
const QUICK_SECONDS: f64 = 5.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::all::plan::PARTS;

    #[test]
    fn the_time_left_is_that_of_the_same_parts_runs_and_the_plans_before_there_are_any() {
        let part = |at: usize| Measured {
            part: PARTS[at],
            command: String::new(),
            runs: Vec::new(),
            failure: None,
        };
        let mut pace = Pace::new(&[part(0), part(1)], [0, 0, 1].into_iter(), false);
        let planned = 2.0 * PARTS[0].seconds + PARTS[1].seconds;
        assert!((pace.seconds_left() - planned).abs() < 1e-9);
        pace.over(0, Some(7.0));
        assert!((pace.seconds_left() - (7.0 + PARTS[1].seconds)).abs() < 1e-9);
        pace.over(1, None);
        assert!((pace.seconds_left() - 7.0).abs() < 1e-9);
    }
}
