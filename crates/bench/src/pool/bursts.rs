//! The bursts of a decoding token, on any pool.

use std::hint::black_box;
use std::time::Duration;

use slackwater_wait::now;

use super::samples::{Samples, elsewhere, sampling};
use crate::usage::{process_cpu, thread_cpu};

/// The bursts of one run.
#[derive(Clone, Debug)]
pub(crate) struct Bursts {
    /// The length of a task in steps of [`task`].
    pub(crate) steps: u64,
    /// Time between two bursts, in which the caller is busy elsewhere.
    pub(crate) gap: Duration,
    pub(crate) tokens: usize,
    pub(crate) layers: usize,
    /// Layers before the measurement.
    pub(crate) warmup: usize,
    /// The tasks of each burst of a layer.
    pub(crate) tasks: Vec<usize>,
    /// No further layer is begun after so long.
    pub(crate) time_max: Duration,
}

/// What a run gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    pub(crate) wall: Duration,
    /// Without the caller's own CPU in the gaps.
    pub(crate) cpu: Duration,
    /// Each burst, in order.
    pub(crate) lengths: Vec<Duration>,
    /// Layers that were run: fewer than asked for where time ran out.
    pub(crate) layers: usize,
    /// What the threads did with their CPU time, where that could be sampled.
    pub(crate) samples: Option<Samples>,
}

impl Bursts {
    /// Runs the bursts; `burst(tasks)` runs `tasks` tasks and returns when all are done.
    pub(crate) fn run(&self, mut burst: impl FnMut(usize)) -> Times {
        let mut times = Times::default();
        self.layers(self.warmup, &mut burst, &mut times);
        times.lengths.clear();
        let (began, cpu) = (now(), process_cpu());
        let (gaps, samples) =
            sampling(|| self.layers(self.tokens * self.layers, &mut burst, &mut times));
        Times {
            wall: now().since(began),
            cpu: process_cpu().saturating_sub(cpu + gaps),
            layers: times.lengths.len() / self.tasks.len(),
            lengths: times.lengths,
            samples,
        }
    }

    /// Runs so many layers, or as many as there is time for; returns the CPU of the gaps.
    fn layers(&self, layers: usize, burst: &mut impl FnMut(usize), times: &mut Times) -> Duration {
        let (mut gaps, began) = (Duration::ZERO, now());
        for layer in 0..layers {
            if layer > 0 && now().since(began) > self.time_max {
                break;
            }
            for &tasks in &self.tasks {
                let start = now();
                burst(tasks);
                let end = now();
                times.lengths.push(end.since(start));
                if !self.gap.is_zero() {
                    let before = thread_cpu();
                    elsewhere(|| while now().since(end) < self.gap {});
                    gaps += thread_cpu().saturating_sub(before);
                }
            }
        }
        gaps
    }
}

/// A chain of multiplications: the next one needs the last, so it takes the same time in every compiler.
pub(crate) fn task(steps: u64) {
    let mut x = steps;
    for _ in 0..steps {
        x = black_box(
            x.wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407),
        );
    }
    black_box(x);
}

/// The steps of [`task`] that take `length` on a CPU of its own.
pub(crate) fn steps_of(length: Duration) -> u64 {
    const STEPS: u64 = 100_000;
    let best = (0..20).map(|_| {
        let start = now();
        task(STEPS);
        now().since(start)
    });
    let best = best.min().unwrap_or(Duration::from_micros(100));
    (STEPS as f64 * length.as_secs_f64() / best.as_secs_f64()).round() as u64
}
