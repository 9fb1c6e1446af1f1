use std::cell::{Cell, RefCell};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Wake;
use std::thread::JoinHandle;
use std::time::Duration;

use mio::{Events, Poll, Waker};
use slackwater_base::Instant;
use slackwater_wait::{
    Abandoned, Arrival, Choice, ChoiceError, Completion, Hook, Site, Stopped, Waiting, now, run_on,
    wait_for,
};
use thiserror::Error;

use crate::net::WAKER;
use crate::role::Role;
use crate::{Counters, Event, Limits, Net, Protocol};

/// A loop and its thread. Clones are handles to the same loop; [`Loop::stop`] ends it.
pub struct Loop<P: Protocol>(Arc<LoopShared<P>>);

/// A handle that does not keep the loop alive, for protocols that refer to other loops.
pub struct WeakLoop<P: Protocol>(Weak<LoopShared<P>>);

/// Why a loop could not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The kernel gives no poller, waker or thread.
    #[error("event loop: {0}")]
    System(#[from] io::Error),
    /// `SLACKWATER_WAIT` names no strategy.
    #[error("SLACKWATER_WAIT: {0}")]
    Wait(#[from] ChoiceError),
}

struct LoopShared<P: Protocol> {
    core: Mutex<Core<P>>,
    /// Commands of threads that found the core taken; see [`Limits::waiting_commands`].
    inbox: Mutex<Vec<P::Command>>,
    inbox_limit: usize,
    poller: Mutex<Poller>,
    role: Role,
    wakeup: Arc<Wakeup>,
    counters: Arc<Counters>,
    stopping: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What makes the poller return. As the waker of a completion it serves a caller that runs the loop until its answer is there.
struct Wakeup {
    waker: Waker,
    counters: Arc<Counters>,
}

struct Core<P> {
    net: Net,
    protocol: P,
    /// Until when the poller sleeps; `ZERO` while it is awake or has been woken.
    sleeps_until: Instant,
}

struct Poller {
    poll: Poll,
    events: Events,
}

impl Poller {
    /// Sleeps until the kernel has events, for no longer than this.
    fn poll(&mut self, timeout: Option<Duration>) {
        if self.poll.poll(&mut self.events, timeout).is_err() {
            // Interrupted by a signal: nothing came, and the next turn looks again.
            self.events.clear();
        }
    }

    /// The same until `due`, looking for them before it sleeps for as long as that has paid lately.
    fn look(&mut self, due: Instant) {
        self.events.clear();
        // Without an event by then the next turn does what is due.
        let _ = wait_for(
            &Coming(RefCell::new(self)),
            &Waiting::at(&EXPECTED).until(due),
        );
    }
}

/// The events of a poller.
struct Coming<'a>(RefCell<&'a mut Poller>);

impl Arrival for Coming<'_> {
    fn has_come(&self) -> bool {
        let poller = &mut self.0.borrow_mut();
        if poller.events.is_empty() {
            poller.poll(Some(Duration::ZERO));
        }
        !poller.events.is_empty()
    }

    fn sleep(&self, longest: Option<Duration>) {
        self.0.borrow_mut().poll(longest);
    }
}

const EVENTS: usize = 1024;

pub(crate) static ANSWER: Site = Site::new("answer of a link");
/// Where loops look for what they expect. What comes while one sleeps grows out of the caches (ADR 33).
pub(crate) static EXPECTED: Site = Site::new("bytes at a loop").with_dear_sleeps(16);

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// The wakeup of the loop that the thread serves, after which it looks at what it waits for.
    static RUNS: Cell<*const Wakeup> = const { Cell::new(std::ptr::null()) };
}

/// Whether the calling thread is inside a loop's protocol: it must not wait for anything that loop does.
#[must_use]
pub fn is_inside_a_loop() -> bool {
    INSIDE.get()
}

impl Wakeup {
    fn interrupt(&self) {
        self.counters.wakes.add(1);
        // The only error is a full counter, and that wakes too.
        let _ = self.waker.wake();
    }
}

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    /// An answer is there. The caller that waits for it sleeps in the kernel or is about to, unless it is this very thread and
    /// serves its events.
    fn wake_by_ref(self: &Arc<Self>) {
        if RUNS.get() != Arc::as_ptr(self) {
            self.interrupt();
        }
    }
}

impl<P: Protocol> Clone for Loop<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<P: Protocol> WeakLoop<P> {
    /// The loop, if it still exists.
    #[must_use]
    pub fn upgrade(&self) -> Option<Loop<P>> {
        self.0.upgrade().map(Loop)
    }
}

impl<P: Protocol> Loop<P> {
    /// A handle that does not keep the loop alive.
    #[must_use]
    pub fn downgrade(&self) -> WeakLoop<P> {
        WeakLoop(Arc::downgrade(&self.0))
    }

    /// Starts a loop with its thread, called `name`.
    ///
    /// # Errors
    /// When the kernel gives no poller, waker or thread, or the environment names no strategy of waiting.
    pub fn start(name: &str, limits: Limits, protocol: P) -> Result<Self, StartError> {
        Self::start_on(name, &[], limits, protocol)
    }

    /// Starts a loop with its thread, which runs on some CPUs alone: on any where there are none, or where the kernel refuses.
    ///
    /// # Errors
    /// As [`Loop::start`].
    pub fn start_on(
        name: &str,
        cpus: &[usize],
        limits: Limits,
        protocol: P,
    ) -> Result<Self, StartError> {
        // Reported here, because a wait cannot report it.
        Choice::from_env()?;
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let counters = Arc::new(Counters::default());
        let net = Net::new(poll.registry().try_clone()?, limits, Arc::clone(&counters));
        let shared = Arc::new(LoopShared {
            core: Mutex::new(Core {
                net,
                protocol,
                sleeps_until: Instant::ZERO,
            }),
            inbox: Mutex::new(Vec::new()),
            inbox_limit: limits.waiting_commands,
            poller: Mutex::new(Poller {
                poll,
                events: Events::with_capacity(EVENTS),
            }),
            role: Role::new(),
            wakeup: Arc::new(Wakeup {
                waker,
                counters: Arc::clone(&counters),
            }),
            counters,
            stopping: AtomicBool::new(false),
            thread: Mutex::new(None),
        });
        let (background, cpus) = (Arc::clone(&shared), cpus.to_vec());
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                if !cpus.is_empty()
                    && let Err(error) = run_on(&cpus)
                {
                    tracing::warn!(%error, "an event loop runs on any CPU");
                }
                background.run();
            })?;
        *lock(&shared.thread) = Some(thread);
        Ok(Self(shared))
    }

    /// Hands a command to the protocol: run on this thread when no other is inside, else by the one that is. When
    /// too many commands wait for that one, this thread waits its turn.
    pub fn command(&self, command: P::Command) {
        self.0.command(command);
    }

    /// Waits for the value of `completion`, until `deadline` or its cancellation at most, running the loop meanwhile, unless that
    /// would displace another poller too often.
    ///
    /// # Errors
    /// As [`Completion::wait`].
    ///
    /// # Panics
    /// When called from inside a loop, where it would wait for itself.
    pub fn wait<T>(
        &self,
        completion: &mut Completion<T>,
        deadline: Instant,
    ) -> Result<T, Stopped<Abandoned>> {
        assert!(
            !is_inside_a_loop(),
            "a protocol must not wait for its own loop"
        );
        self.0.wait(completion, deadline)
    }

    /// The loop's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// Ends the loop: its thread finishes its turn and all connections close. Called from inside the loop, the
    /// thread ends after the turn.
    pub fn stop(&self) {
        self.0.stopping.store(true, Ordering::Release);
        self.0.role.stop();
        // Without its wake-up the thread would only notice at its next event.
        self.0.wakeup.interrupt();
        let thread = lock(&self.0.thread).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
            && !is_inside_a_loop()
        {
            let _ = thread.join();
            self.0.hold(|core| core.net.shut());
        }
    }
}

impl<P: Protocol> Core<P> {
    fn take(&mut self, command: P::Command) {
        self.protocol.handle(&mut self.net, Event::Command(command));
        self.net.settle(&mut self.protocol);
    }
}

impl<P: Protocol> LoopShared<P> {
    fn run(&self) {
        while !self.stopping.load(Ordering::Acquire) && self.role.take_background() {
            let mut poller = lock(&self.poller);
            loop {
                self.turn(&mut poller, Instant::NEVER);
                if !self.role.keep_background() {
                    break;
                }
            }
        }
    }

    /// One turn: sleep until something is due, then serve it.
    fn turn(&self, poller: &mut Poller, at_most: Instant) {
        let (due, expecting) = self.hold(|core| {
            core.sleeps_until = core.net.next_turn().min(at_most);
            (core.sleeps_until, core.net.take_expecting())
        });
        self.counters.polls.add_alone(1);
        match expecting && due > now() {
            true => poller.look(due),
            false => poller.poll((due < Instant::NEVER).then(|| now().until(due))),
        }
        // An answer that this thread gives before the poll must wake it, as the look at the completion was earlier.
        let outer = RUNS.replace(Arc::as_ptr(&self.wakeup));
        self.hold(|core| {
            core.sleeps_until = Instant::ZERO;
            self.inside(core, |core| {
                poller
                    .events
                    .iter()
                    .for_each(|event| core.net.note(event.token(), event));
                core.net.serve(&mut core.protocol);
            });
        });
        RUNS.set(outer);
    }

    /// The only way to wait for the core: a command that did not get it meanwhile is in the inbox, which no other
    /// thread will empty.
    fn hold<R>(&self, work: impl FnOnce(&mut Core<P>) -> R) -> R {
        let result = work(&mut lock(&self.core));
        self.sweep();
        result
    }

    fn command(&self, command: P::Command) {
        match self.core.try_lock() {
            Ok(mut core) => {
                self.inside(&mut core, |core| core.take(command));
                drop(core);
            }
            Err(_) => {
                if let Some(command) = self.put_in(command) {
                    return self.hold(|core| self.inside(core, |core| core.take(command)));
                }
            }
        }
        self.sweep();
    }

    /// Puts a command into the inbox; gives it back when that is full, unless this thread is inside a loop, where it must
    /// not wait for another: what one event may ask of other loops is bounded by the event.
    fn put_in(&self, command: P::Command) -> Option<P::Command> {
        let mut inbox = lock(&self.inbox);
        if inbox.len() >= self.inbox_limit && !is_inside_a_loop() {
            return Some(command);
        }
        inbox.push(command);
        None
    }

    /// Empties the inbox unless a thread is inside the loop, which then does it when it leaves.
    fn sweep(&self) {
        while !lock(&self.inbox).is_empty() {
            let Ok(mut core) = self.core.try_lock() else {
                return;
            };
            self.inside(&mut core, |_| {});
        }
    }

    /// Runs `work` on the core between what the inbox held before and what it holds after, and wakes the poller if it
    /// would sleep too long. What the inbox held may be older commands of this very thread, which come first.
    fn inside(&self, core: &mut Core<P>, work: impl FnOnce(&mut Core<P>)) {
        // One loop may give another a command while it is itself at work.
        let outer = INSIDE.replace(true);
        core.net.set_now();
        self.empty_inbox(core);
        work(core);
        self.empty_inbox(core);
        INSIDE.set(outer);
        if core.net.next_turn() < core.sleeps_until {
            core.sleeps_until = Instant::ZERO;
            self.wakeup.interrupt();
        }
    }

    fn empty_inbox(&self, core: &mut Core<P>) {
        loop {
            let commands = std::mem::take(&mut *lock(&self.inbox));
            if commands.is_empty() {
                return;
            }
            // These came while the core was held, perhaps for long: they must not meet an older time than their own.
            core.net.set_now();
            for command in commands {
                core.protocol.handle(&mut core.net, Event::Command(command));
            }
            core.net.settle(&mut core.protocol);
        }
    }

    fn wait<T>(
        &self,
        completion: &mut Completion<T>,
        deadline: Instant,
    ) -> Result<T, Stopped<Abandoned>> {
        if !is_over(completion) && self.role.take_caller(|| self.wakeup.interrupt()) {
            self.run_until_done(completion, deadline);
            self.role.release_caller();
        }
        let waiting = Waiting::at(&ANSWER).until(deadline);
        if is_over(completion) {
            return completion.wait(&waiting);
        }
        self.role.park_begins();
        let outcome = completion.wait(&waiting);
        self.role.park_ends();
        outcome
    }

    /// Runs the loop, whose role this thread has, until the completion is done or cancelled. Another thread may do either while this
    /// one sleeps in the kernel, so its waker wakes the poller; where another waker stands already, this thread must park instead.
    fn run_until_done<T>(&self, completion: &Completion<T>, deadline: Instant) {
        let waker = Arc::clone(&self.wakeup).into();
        if completion.hook(Hook::Waker(waker)).is_ok() {
            let mut poller = lock(&self.poller);
            while !is_over(completion) && now() < deadline && !self.stopping.load(Ordering::Acquire)
            {
                self.turn(&mut poller, deadline);
            }
        }
    }
}

/// Whether a wait for it ends at once.
fn is_over<T>(completion: &Completion<T>) -> bool {
    completion.is_done() || completion.is_cancelled()
}

/// A panic inside a lock is a bug that has already been reported; the data behind it is no less consistent than the
/// protocol left it, and others still want to shut down in order.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use slackwater_wait::{Completer, Ended};

    use super::*;

    struct Tell(Sender<u32>);

    impl Protocol for Tell {
        type Command = u32;

        fn handle(&mut self, _: &mut Net, event: Event<'_, u32>) {
            if let Event::Command(number) = event {
                self.0.send(number).expect("the test waits");
            }
        }
    }

    /// A fresh loop's thread took the core only to say until when it sleeps, and did not look into the inbox after it
    /// let go. A command that opened a listener at that moment stayed there, its caller waited for the answer, and the
    /// loop slept without end: once in forty runs a benchmark's server never printed its address.
    #[test]
    fn a_command_that_meets_any_holder_of_the_core_is_run_without_another_event() {
        let (told, numbers) = channel();
        let looping = Loop::start("tell", Limits::default(), Tell(told)).expect("a loop");
        for number in 0..100 {
            looping.0.hold(|_| {
                std::thread::scope(|scope| drop(scope.spawn(|| looping.command(number))))
            });
            assert_eq!(numbers.recv_timeout(Duration::from_secs(5)), Ok(number));
        }
        looping.stop();
        for number in 0..1000 {
            let (told, numbers) = channel();
            let looping = Loop::start("tell", Limits::default(), Tell(told)).expect("a loop");
            (0..number % 50 * 100).for_each(|_| std::hint::spin_loop());
            looping.command(number);
            assert_eq!(numbers.recv_timeout(Duration::from_secs(5)), Ok(number));
            looping.stop();
        }
    }

    /// Expects something each millisecond, or only wakes as often.
    struct Expect(bool, Sender<()>);

    impl Protocol for Expect {
        type Command = ();

        fn handle(&mut self, net: &mut Net, event: Event<'_, ()>) {
            if let Event::Timer { .. } | Event::Command(()) = event {
                net.set_timer(now() + Duration::from_millis(1), 0);
                if self.0 {
                    net.expect_soon();
                }
                let _ = self.1.send(());
            }
        }
    }

    #[test]
    fn a_loop_looks_before_it_sleeps_for_what_its_protocol_expects_and_for_nothing_else() {
        for expects in [false, true] {
            let (told, turns) = channel();
            let looping = Loop::start("expect", Limits::default(), Expect(expects, told));
            let (looping, before) = (looping.expect("a loop"), EXPECTED.counts());
            looping.command(());
            for _ in 0..10 {
                turns
                    .recv_timeout(Duration::from_secs(5))
                    .expect("its timers go on");
            }
            looping.stop();
            let after = EXPECTED.counts();
            let looked = (after.waits + after.ready) - (before.waits + before.ready);
            assert_eq!(looked > 0, expects, "{looked} looks");
        }
    }

    struct Answer;

    impl Protocol for Answer {
        type Command = Completer<u32>;

        fn handle(&mut self, _: &mut Net, event: Event<'_, Completer<u32>>) {
            if let Event::Command(completer) = event {
                completer.complete(7);
            }
        }
    }

    /// A caller that had taken the loop said until when it sleeps, and on leaving the core found a command that another thread had put
    /// in. It gave its own answer by that, woke nobody, as the answer was its own, and slept until its deadline.
    #[test]
    fn a_caller_that_gives_its_own_answer_before_it_sleeps_does_not_sleep() {
        let looping = Loop::start("answer", Limits::default(), Answer).expect("a loop");
        let shared = &looping.0;
        while !shared.role.take_caller(|| shared.wakeup.interrupt()) {
            std::thread::yield_now();
        }
        let (completer, completion) = Completion::new();
        assert!(shared.put_in(completer).is_none());
        let deadline = now() + Duration::from_secs(20);
        shared.run_until_done(&completion, deadline);
        shared.role.release_caller();
        assert!(completion.is_done() && now() < deadline);
        looping.stop();
    }

    /// A caller took the loop from its thread for a wait that had been given up before it began.
    #[test]
    fn a_wait_that_was_cancelled_before_does_not_run_the_loop() {
        let looping = Loop::start("answer", Limits::default(), Answer).expect("a loop");
        let shared = &looping.0;
        for _ in 0..100 {
            // In a burst of calls the next caller gets the role.
            while !shared.role.take_caller(|| shared.wakeup.interrupt()) {
                std::thread::yield_now();
            }
            shared.role.release_caller();
            let (_completer, mut completion) = Completion::<u32>::new();
            completion.cancel();
            let waited = looping.wait(&mut completion, now() + Duration::from_secs(20));
            assert_eq!(waited, Err(Stopped::Ended(Ended::Cancelled)));
            // A caller that runs the loop is woken by a hook of its own.
            assert!(completion.hook(Hook::Call(Box::new(|| {}))).is_ok());
        }
        looping.stop();
    }

    /// A thread that published faster than its loop could send put everything into the inbox, which grew for as long as
    /// the loop was busy emptying it.
    #[test]
    fn commands_that_wait_are_bounded_and_keep_their_order() {
        let (told, numbers) = channel();
        let limits = Limits {
            waiting_commands: 8,
            ..Limits::default()
        };
        let looping = Loop::start("tell", limits, Tell(told)).expect("a loop");
        let sender = looping.0.hold(|_| {
            let (ready, began) = channel();
            let sending = looping.clone();
            let sender = std::thread::spawn(move || {
                for number in 0..100 {
                    sending.command(number);
                    // Nothing listens any more after the eighth.
                    let _ = ready.send(());
                }
            });
            (0..8).for_each(|_| {
                began
                    .recv_timeout(Duration::from_secs(5))
                    .expect("eight have room")
            });
            assert!(numbers.try_recv().is_err(), "somebody is inside");
            sender
        });
        sender.join().expect("it ends");
        let heard: Vec<u32> = numbers.try_iter().collect();
        assert_eq!(heard, (0..100).collect::<Vec<_>>());
        looping.0.hold(|_| {
            let full = (0..9).find_map(|number| looping.0.put_in(number));
            assert_eq!(full, Some(8));
        });
        looping.stop();
    }
}
