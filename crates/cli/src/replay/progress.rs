use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use slackwater_node::Stats;
use slackwater_report::Unit;

use super::tally::ReplayCounts;

/// The live line on standard error; silent where that is no terminal.
pub(super) struct Progress {
    bar: ProgressBar,
    started: Instant,
    shown: Option<Instant>,
}

/// How often the line changes: often enough to look alive, too seldom to cost anything.
const PERIOD: Duration = Duration::from_millis(200);

impl Progress {
    pub(super) fn start(total: Option<u64>) -> Self {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
        let template = match total {
            Some(_) => "{bar:28.cyan/dim} {percent:>3} % · {msg} · {eta} left",
            None => "{spinner} {msg} · {elapsed}",
        };
        let style =
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("━╸─"));
        Self {
            bar,
            started: Instant::now(),
            shown: None,
        }
    }

    /// Shows the progress of the run, if it is time to. `stats` is asked only then.
    pub(super) fn tick(&mut self, done: u64, tally: &ReplayCounts, stats: impl FnOnce() -> Stats) {
        let now = Instant::now();
        if self.bar.is_hidden() || self.shown.is_some_and(|shown| now - shown < PERIOD) {
            return;
        }
        self.shown = Some(now);
        self.bar.set_position(done);
        self.bar
            .set_message(line(tally, &stats(), now - self.started));
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn line(tally: &ReplayCounts, stats: &Stats, elapsed: Duration) -> String {
    let rate = (tally.get_bytes + tally.put_bytes) as f64 / elapsed.as_secs_f64().max(1e-9);
    format!(
        "{} requests · hits {} · {} · {} promoted",
        Unit::Count.format(tally.requests as f64),
        Unit::Share.format(tally.prefix_hit_rate()),
        Unit::BytesPerSecond.format(rate),
        Unit::Count.format(stats.promotions.completed as f64),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_hits_rate_and_promotions() {
        let mut stats = Stats::default();
        stats.promotions.completed = 1234;
        let tally = ReplayCounts {
            requests: 250,
            blocks: 1000,
            prefix_hits: 366,
            get_bytes: 1 << 30,
            put_bytes: 1 << 30,
            ..ReplayCounts::default()
        };
        let text = line(&tally, &stats, Duration::from_secs(2));
        assert_eq!(
            text,
            "250 requests · hits 36.6 % · 1.07 GB/s · 1.23 k promoted"
        );
    }
}
