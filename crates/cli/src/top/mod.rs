//! `slackwater top`: what a served store or the master of a pool does, as it does it.
//!
//! It asks the admin address for the samples that the page is told, and shows the same in a terminal: [`view`] makes words and
//! shares of samples, [`panes`] says what is where, and [`draw`] draws it. Where standard output is no terminal it prints
//! lines, or with `--json` objects, of what was counted between two samples.

mod cells;
mod draw;
#[cfg(test)]
mod examples;
mod figures;
mod http;
mod keys;
mod page;
mod panes;
mod sample;
mod terminal;
mod view;

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;

use self::cells::Looks;
use self::draw::Shown;
use self::http::Source;
use self::keys::Key;
use self::sample::{Sample, Snapshot};
use self::terminal::{Event, Screen, Terminal};
use self::view::{History, View};
use crate::answer::say;
use crate::interrupt::Interrupt;
use crate::{DONE, INTERRUPTED};

/// See the command.
#[derive(Clone, Debug, Args)]
pub(crate) struct Top {
    /// Where the admin address is, of `slackwater serve` or `slackwater master`
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9003")]
    address: SocketAddr,

    /// File with the token of the admin address
    #[arg(
        long,
        env = "SLACKWATER_ADMIN_TOKEN_FILE",
        hide_env_values = true,
        value_name = "FILE"
    )]
    token_file: Option<PathBuf>,

    /// Time between snapshots; a server has at most one a second
    #[arg(long, default_value = "1s", value_name = "DURATION", value_parser = slackwater_base::parse_duration)]
    interval: Duration,

    /// End after so many snapshots
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Print one JSON object for each interval instead of a page
    #[arg(long)]
    json: bool,
}

/// Shortest time between snapshots.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

pub(crate) fn run(arguments: &Top) -> Result<u8> {
    let token = arguments.token_file.as_deref().map(std::fs::read_to_string);
    let token = token.transpose().context("the token cannot be read")?;
    let source = Arc::new(Source {
        address: arguments.address,
        token: token.map(|token| token.trim().to_owned()),
    });
    let first = Sample::take(&source)?;
    match !arguments.json && std::io::stdout().is_terminal() {
        true => show(arguments, &source, first),
        false => tell(arguments, &source, first),
    }
}

impl Top {
    fn interval(&self) -> Duration {
        self.interval.max(INTERVAL_MIN)
    }

    fn is_enough(&self, taken: u64) -> bool {
        self.count.is_some_and(|count| taken >= count)
    }
}

/// Prints what was counted between samples, for as long as the server answers.
fn tell(arguments: &Top, source: &Source, first: Sample) -> Result<u8> {
    let interrupt = Interrupt::install()?;
    let (mut before, mut taken) = (first, 0);
    while !arguments.is_enough(taken) {
        if interrupt.sleep_until(Instant::now() + arguments.interval()) {
            return Ok(INTERRUPTED);
        }
        let next = Sample::take(source)?;
        // The server takes one sample a second for all who ask.
        if next.is(&before) {
            continue;
        }
        let snapshot = Snapshot::between(&before, &next);
        match arguments.json {
            true => say(snapshot.json())?,
            false => {
                let lines = page::lines(&snapshot, 120, usize::MAX);
                say(lines.join("\n") + "\n")?;
            }
        }
        before = next;
        taken += 1;
    }
    Ok(DONE)
}

/// Shows all of it on the terminal, and follows a server that is started again.
fn show(arguments: &Top, source: &Arc<Source>, first: Sample) -> Result<u8> {
    let (resized, told) = UnixStream::pair().context("no pair of sockets")?;
    told.set_nonblocking(true).context("a socket that waits")?;
    let resize = move || {
        // Where it is full, a change is to be seen already.
        let _ = (&told).write(&[0]);
    };
    let interrupt = Interrupt::install_for_terminal(resize, terminal::give_back_now)?;
    let mut history = History::default();
    history.push(first);
    let mut page = Page::open(&interrupt, resized, &history)?;
    let mut taken = 0;
    let mut next = Next::after(arguments.interval());
    while !arguments.is_enough(taken) {
        let event = match &next {
            Next::At(due) => page.terminal.wait(Some(*due), None)?,
            Next::Taken(taking) => page.terminal.wait(None, Some(&taking.ended))?,
        };
        match event {
            Event::Stop => break,
            Event::Keys(keys) if keys.contains(&Key::Quit) => break,
            Event::Keys(keys) => keys.into_iter().for_each(|key| page.shown.press(key)),
            Event::Resized => {}
            // A server that is started again is asked again; keys are read while it answers.
            Event::Due => {
                next = Next::Taken(Taking::start(source)?);
                continue;
            }
            Event::Ready => {
                let later = Next::after(arguments.interval());
                if let Next::Taken(taking) = std::mem::replace(&mut next, later) {
                    taken += u64::from(page.take(&mut history, taking.sample()));
                }
            }
        }
        page.draw()?;
    }
    Ok(DONE)
}

/// What is shown, and on what: the screen ends before its terminal is given back.
struct Page {
    screen: ratatui::Terminal<Screen>,
    terminal: Terminal,
    shown: Shown,
    view: View,
}

impl Page {
    fn open(interrupt: &Interrupt, resized: UnixStream, history: &History) -> Result<Self> {
        let view = history.view().context("the server told nothing")?;
        // https://no-color.org
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let terminal = Terminal::open(interrupt, resized)?;
        let screen = ratatui::Terminal::new(terminal.screen()?).context("standard output")?;
        let mut page = Self {
            screen,
            terminal,
            shown: Shown::new(Looks { colors: !no_color }),
            view,
        };
        page.draw()?;
        Ok(page)
    }

    /// Takes what the server told; whether that is new.
    fn take(&mut self, history: &mut History, told: Result<Sample>) -> bool {
        let is_new = match told {
            Ok(sample) => {
                self.shown.trouble = None;
                history.push(sample)
            }
            Err(error) => {
                self.shown.trouble = Some(crate::printable::printable(&format!("{error:#}")));
                true
            }
        };
        if !self.shown.is_paused
            && let Some(view) = history.view()
        {
            self.view = view;
        }
        is_new
    }

    fn draw(&mut self) -> Result<()> {
        let (view, shown) = (&self.view, &mut self.shown);
        let drawn = self.screen.draw(|frame| draw::draw(frame, view, shown));
        drawn.map(drop).context("standard output")
    }
}

/// When there is something to show again.
enum Next {
    /// A sample is taken then.
    At(Instant),
    /// One is being taken.
    Taken(Taking),
}

impl Next {
    fn after(interval: Duration) -> Self {
        Self::At(Instant::now() + interval)
    }
}

/// A sample that another thread takes.
struct Taking {
    thread: JoinHandle<Result<Sample>>,
    /// Readable as soon as it is taken.
    ended: UnixStream,
}

impl Taking {
    fn start(source: &Arc<Source>) -> Result<Self> {
        let (ended, open) = UnixStream::pair().context("no pair of sockets")?;
        let source = Arc::clone(source);
        let thread = std::thread::Builder::new()
            .name("sample".to_owned())
            .spawn(move || {
                let _open = open;
                Sample::take(&source)
            })
            .context("cannot start a thread")?;
        Ok(Self { thread, ended })
    }

    fn sample(self) -> Result<Sample> {
        match self.thread.join() {
            Ok(sample) => sample,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}
