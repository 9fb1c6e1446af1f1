//! The one routine in which every wait happens: worker, submitter, queue, transfer, get.

use std::fmt::Debug;
use std::time::Duration;

use slackwater_base::Instant;
use thiserror::Error;

use crate::clock::now;
use crate::futex::Parked;
use crate::pace::{LOOKS_PER_CLOCK, Pace};
use crate::site::{Site, Spun};
use crate::spinners::Token;
use crate::strategy::{Plan, Then, Wait, current};

/// How one wait is done.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<'a> {
    pub(crate) site: &'a Site,
    pub(crate) deadline: Instant,
    pub(crate) strategy: Option<&'a dyn Wait>,
    pub(crate) sleeper: Option<&'a dyn Sleeper>,
}

/// What a thread does around its park in the kernel, such as choosing the CPUs that it may wake on. Not called for waits
/// that end in the spin.
pub trait Sleeper: Debug {
    /// The thread is about to park.
    fn before_park(&self);
    /// The thread runs again.
    fn after_park(&self);
}

/// Why a wait ended without what it waited for.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Ended {
    /// The deadline passed.
    #[error("deadline passed while waiting")]
    TimedOut,
    /// The wait was cancelled, or what it waited on was closed.
    #[error("wait cancelled")]
    Cancelled,
}

/// Why a wait for a batch or a completion returned no value.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Stopped<E> {
    /// The wait ended first; the work may still be under way.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// The work is over and failed.
    #[error("{0}")]
    Failed(E),
}

impl<'a> Waiting<'a> {
    /// A wait at `site`, without a deadline, by the strategy of the process.
    #[must_use]
    pub fn at(site: &'a Site) -> Self {
        Self {
            site,
            deadline: Instant::NEVER,
            strategy: None,
            sleeper: None,
        }
    }

    /// Ends the wait at `deadline` of [`now`](crate::now).
    #[must_use]
    pub fn until(self, deadline: Instant) -> Self {
        Self { deadline, ..self }
    }

    /// Waits by this strategy.
    #[must_use]
    pub fn by(self, strategy: &'a dyn Wait) -> Self {
        Self {
            strategy: Some(strategy),
            ..self
        }
    }

    /// Lets `sleeper` arrange its sleep.
    #[must_use]
    pub fn arranging(self, sleeper: &'a dyn Sleeper) -> Self {
        Self {
            sleeper: Some(sleeper),
            ..self
        }
    }

    fn strategy(&self) -> &'a dyn Wait {
        match self.strategy {
            Some(strategy) => strategy,
            None => current(),
        }
    }

    /// Whether a waiter should rather do the awaited work itself, where it can.
    #[must_use]
    pub fn helps(&self) -> bool {
        self.strategy().helps()
    }
}

/// What the routine watches: one word and how to sleep on it.
pub(crate) trait Watched {
    /// Whether the wait is over.
    fn done(&self) -> bool;
    /// What a look costs beside the pauses, where it is more than a read of a word.
    const LOOK_NANOS: u64 = 0;
    /// Whether a completer heeds `looks_by`.
    const NAPS: bool = false;

    /// Sleeps unless the wait is over by now; returns after a wake, after `longest`, or spuriously. The waiter looks at
    /// `looks_by` at the latest, woken or not.
    fn park(&self, longest: Option<Duration>, looks_by: Instant) -> Parked;
    /// When the last wake was due, if it tells.
    fn woken_at(&self) -> Instant;
    /// The CPU of the completer, if it is known.
    fn completer_cpu(&self) -> Option<u32> {
        None
    }
}

/// Waits until `watched` is done or the deadline passed; says whether it is done.
pub(crate) fn wait(watched: &impl Watched, waiting: &Waiting<'_>) -> bool {
    let site = waiting.site;
    if watched.done() {
        site.was_ready();
        return true;
    }
    site.began();
    let strategy = waiting.strategy();
    let plan = strategy.plan(site);
    let mut spun = Spun::default();
    match spin(watched, waiting, strategy, plan, &mut spun) {
        Spin::Done => return true,
        Spin::TimedOut => return give_up(watched, site),
        Spin::Over => {}
    }
    match plan.then {
        Then::Park | Then::Nap { .. } => park(watched, waiting, &plan, spun.nanos),
        Then::Sleep(pause) => sleep(watched, waiting, pause),
    }
}

/// Looks without the right to spin, before it is asked for again: about a microsecond, less than any park. The thread
/// that ends a wait of this kind often holds the right itself until it has noticed.
const CROWDED_LOOKS: u64 = 16;

/// How a spin ended.
enum Spin {
    Done,
    TimedOut,
    Over,
}

/// Looks at the word up to `plan.spin` long. The clock is read after every [`LOOKS_PER_CLOCK`] looks, and not at all in a
/// spin shorter than that, whose length follows from the measured pause.
fn spin<W: Watched>(
    watched: &W,
    waiting: &Waiting<'_>,
    strategy: &dyn Wait,
    plan: Plan,
    spun: &mut Spun,
) -> Spin {
    let site = waiting.site;
    let pace = Pace::get().with_looks_of(W::LOOK_NANOS);
    let budget = plan.spin.as_nanos() as u64;
    let mut looks_left = pace.looks_in(budget);
    if looks_left == 0 {
        return Spin::Over;
    }
    let mut token = Token::take();
    let mut pauses = 1;
    let mut last_read: Option<Instant> = None;
    let ended = loop {
        let crowded = plan.needs_cpu && token.is_none();
        let round = looks_left.min(if crowded {
            CROWDED_LOOKS
        } else {
            LOOKS_PER_CLOCK
        });
        if look(watched, &pace, round, &mut pauses, spun) {
            break Spin::Done;
        }
        if crowded {
            token = Token::take();
            if token.is_some() {
                looks_left -= round;
                continue;
            }
            site.was_crowded();
        }
        if round < LOOKS_PER_CLOCK {
            break Spin::Over;
        }
        let read = now();
        spun.clock_reads += 1;
        let round_nanos = last_read.map_or(round * pace.look_nanos, |last| {
            read.since(last).as_nanos() as u64
        });
        last_read = Some(read);
        spun.nanos += round_nanos;
        if read >= waiting.deadline {
            break Spin::TimedOut;
        }
        if round_nanos > preempted_nanos(round * pace.look_nanos) {
            site.was_preempted();
            strategy.preempted(site);
            if plan.needs_cpu {
                break Spin::Over;
            }
        }
        looks_left = pace.looks_in(budget.saturating_sub(spun.nanos));
        if looks_left == 0 {
            break Spin::Over;
        }
    };
    // Without a read of the clock, the length follows from the number of looks.
    spun.nanos = spun.nanos.max(spun.looks * pace.look_nanos);
    let hit = matches!(ended, Spin::Done);
    site.spun(*spun, hit);
    if hit {
        site.gap(spun.nanos);
    }
    ended
}

/// Looks up to `round` times, with growing pauses between; says whether it is done.
fn look(
    watched: &impl Watched,
    pace: &Pace,
    round: u64,
    pauses: &mut u32,
    spun: &mut Spun,
) -> bool {
    for _ in 0..round {
        pace.relax(*pauses);
        *pauses = (*pauses * 2).min(pace.pauses_max);
        spun.looks += 1;
        if watched.done() {
            return true;
        }
    }
    false
}

/// A round that lasted this long was interrupted by something else running.
fn preempted_nanos(expected: u64) -> u64 {
    expected * 4 + 50_000
}

/// Sleeps on the word until it is done or the deadline passed.
fn park<W: Watched>(watched: &W, waiting: &Waiting<'_>, plan: &Plan, spun_nanos: u64) -> bool {
    let site = waiting.site;
    let start = now();
    let naps = Naps::of::<W>(plan, start);
    let mut fell_asleep = start;
    loop {
        let looks_by = naps.next_look(fell_asleep);
        let until = if looks_by < Instant::NEVER {
            looks_by - naps.slack
        } else {
            Instant::NEVER
        };
        let longest = time_left(fell_asleep, until.min(waiting.deadline));
        let (parked, woke) = park_once(watched, waiting, longest, looks_by);
        let done = watched.done();
        site.parked(
            woke.since(fell_asleep).as_nanos() as u64,
            !done && parked != Parked::TimedOut,
        );
        if parked == Parked::TimedOut && until <= waiting.deadline {
            site.napped(done);
        }
        if done {
            learn_end(
                watched,
                site,
                Sleep {
                    start,
                    woke,
                    parked,
                    spun_nanos,
                },
            );
            return true;
        }
        if parked == Parked::TimedOut && woke >= waiting.deadline {
            return give_up(watched, site);
        }
        fell_asleep = now();
    }
}

/// When a sleeper looks without being woken.
#[derive(Clone, Copy, Debug)]
struct Naps {
    first: Instant,
    last: Instant,
    /// What the kernel adds to a timeout of this thread.
    slack: Duration,
}

impl Naps {
    /// Those that the plan names. None where the thread's timeouts are too late for it: a completer that was told of the
    /// next look does not wake.
    fn of<W: Watched>(plan: &Plan, start: Instant) -> Self {
        let none = Self {
            first: start,
            last: start,
            slack: Duration::ZERO,
        };
        match plan.then {
            Then::Nap { first, last } if W::NAPS => match timer_slack() {
                slack if slack < SOON => Self {
                    first: start + first,
                    last: start + last,
                    slack,
                },
                _ => none,
            },
            _ => none,
        }
    }

    /// The time by which a thread that parks at `now` looks again.
    fn next_look(&self, now: Instant) -> Instant {
        if now < self.last {
            self.first.max(now + SOON)
        } else {
            Instant::NEVER
        }
    }
}

/// A sleep that ended with what was waited for.
struct Sleep {
    start: Instant,
    woke: Instant,
    parked: Parked,
    spun_nanos: u64,
}

fn learn_end(watched: &impl Watched, site: &Site, sleep: Sleep) {
    let Sleep {
        start,
        woke,
        parked,
        spun_nanos,
    } = sleep;
    let sent = watched.woken_at();
    // A wake sent before the sleep began belongs to an earlier wait.
    let told = sent >= start && sent <= woke;
    if told && parked == Parked::Woken {
        site.woke(woke.since(sent).as_nanos() as u64);
    }
    if told && let Some(cpu) = watched.completer_cpu() {
        site.rhythm.completed_on(cpu);
    }
    let ready = if told { sent } else { woke };
    site.gap(spun_nanos + ready.since(start).as_nanos() as u64);
}

/// How long it is from `now` to `until`; nothing if that never comes.
fn time_left(now: Instant, until: Instant) -> Option<Duration> {
    (until < Instant::NEVER).then(|| now.until(until))
}

/// Parks once; returns why that ended, and when.
fn park_once(
    watched: &impl Watched,
    waiting: &Waiting<'_>,
    longest: Option<Duration>,
    looks_by: Instant,
) -> (Parked, Instant) {
    if let Some(sleeper) = waiting.sleeper {
        sleeper.before_park();
    }
    waiting.site.rhythm.before_park();
    let parked = watched.park(longest, looks_by);
    let woke = now();
    waiting.site.rhythm.after_park();
    if let Some(sleeper) = waiting.sleeper {
        sleeper.after_park();
    }
    (parked, woke)
}

/// Sleeps and looks in turn until it is done or the deadline passed.
fn sleep(watched: &impl Watched, waiting: &Waiting<'_>, pause: Duration) -> bool {
    let site = waiting.site;
    let start = now();
    let mut asleep = start;
    loop {
        let left = asleep.until(waiting.deadline);
        if left.is_zero() {
            return give_up(watched, site);
        }
        std::thread::sleep(pause.min(left));
        let awake = now();
        let done = watched.done();
        site.parked(awake.since(asleep).as_nanos() as u64, !done);
        if done {
            site.gap(awake.since(start).as_nanos() as u64);
            return true;
        }
        asleep = awake;
    }
}

/// A waiter that looks by itself within this time is not woken, as a wake would take about as long.
pub(crate) const SOON: Duration = Duration::from_micros(60);

/// What the kernel adds to a timeout of this thread: a service manager may have set more than Linux does by default. One
/// system call, before a sleep of many.
#[cfg(not(any(loom, miri)))]
fn timer_slack() -> Duration {
    rustix::thread::current_timer_slack().map_or(TIMER_SLACK, Duration::from_nanos)
}

#[cfg(any(loom, miri))]
fn timer_slack() -> Duration {
    TIMER_SLACK
}

/// The slack of a thread where nobody set another.
const TIMER_SLACK: Duration = Duration::from_micros(50);

/// The deadline passed: the last look decides.
fn give_up(watched: &impl Watched, site: &Site) -> bool {
    let done = watched.done();
    if !done {
        site.timed_out();
    }
    done
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::countdown::Countdown;
    use crate::strategy::Adaptive;

    /// A service manager set a slack of 10 ms: waiters promised to look within 60 µs, so that nobody woke them, and looked
    /// 10 ms later.
    #[test]
    #[cfg_attr(miri, ignore = "Miri knows no timer slack")]
    fn a_thread_whose_timers_are_late_does_not_nap() {
        struct Napping;
        impl Watched for Napping {
            const NAPS: bool = true;
            fn done(&self) -> bool {
                false
            }
            fn park(&self, _longest: Option<Duration>, _looks_by: Instant) -> Parked {
                Parked::TimedOut
            }
            fn woken_at(&self) -> Instant {
                Instant::ZERO
            }
        }
        let start = Instant::ZERO + Duration::from_secs(1);
        let plan = Plan {
            then: Then::Nap {
                first: Duration::from_micros(100),
                last: Duration::from_micros(500),
            },
            spin: Duration::ZERO,
            needs_cpu: false,
        };
        let looks = |slack_micros: u64| {
            let slack = Duration::from_micros(slack_micros).as_nanos() as u64;
            let nap = move || {
                rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(slack)).unwrap();
                let naps = Naps::of::<Napping>(&plan, start);
                (naps.next_look(start) < Instant::NEVER).then_some(naps.slack)
            };
            // The slack stays with the thread.
            std::thread::spawn(nap).join().unwrap()
        };
        assert_eq!(looks(50), Some(Duration::from_micros(50)));
        assert_eq!(looks(1), Some(Duration::from_micros(1)));
        assert_eq!(looks(60), None);
        assert_eq!(looks(10_000), None);
    }

    #[test]
    fn long_waits_teach_a_site_to_park_at_once() {
        let site = Site::new("long");
        let adaptive = Adaptive::default();
        let batch = Countdown::<()>::new(1);
        // Gaps that only the deadline ends are not learned: what the wait would have lasted is unknown.
        for _ in 0..128 {
            site.gap(2_000_000);
        }
        let time_out = || {
            let waiting = Waiting::at(&site).by(&adaptive);
            let ended = batch.wait(&waiting.until(now() + Duration::from_micros(200)));
            assert_eq!(ended, Err(Stopped::Ended(Ended::TimedOut)));
        };
        time_out();
        assert_eq!(site.counts().budget, Some(Duration::ZERO));
        let looks = site.counts().looks;
        time_out();
        assert_eq!(site.counts().looks, looks, "no look in a spin");
    }
}
