//! `slackwater top`: what a served store or the master of a pool does, as it does it.
//!
//! It asks the admin address for what is counted, and shows what was counted in between. The page is drawn with the few
//! escape sequences that every terminal knows: a library for widgets would be a quarter more crates for one page.

mod http;
mod page;
mod sample;
mod terminal;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;

use self::http::Source;
use self::sample::{Sample, Snapshot};
use self::terminal::{Key, Terminal};
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
    let interval = arguments.interval.max(INTERVAL_MIN);
    let mut before = Sample::take(&source)?;
    let shows = !arguments.json && std::io::stdout().is_terminal();
    let interrupt = Interrupt::install()?;
    let mut terminal = shows.then(|| Terminal::open(&interrupt)).transpose()?;
    let mut taken = 0;
    loop {
        let until = Instant::now() + interval;
        let ended = match &mut terminal {
            Some(terminal) => terminal.wait(Some(until), None)? == Some(Key::Quit),
            None => interrupt.sleep_until(until),
        };
        if ended || interrupt.requested() {
            return Ok(match terminal {
                Some(_) => DONE,
                None => INTERRUPTED,
            });
        }
        // A server that is started again is asked again; keys are read while it answers.
        let taking = Taking::start(&source)?;
        if let Some(terminal) = &mut terminal
            && terminal.wait(None, Some(&taking.ended))? == Some(Key::Quit)
        {
            return Ok(DONE);
        }
        let next = taking.sample();
        // The server takes one sample a second for all who look.
        if next.as_ref().is_ok_and(|next| next.is(&before)) {
            continue;
        }
        let text = match (&next, &mut terminal) {
            (Ok(next), _) => Ok(Snapshot::between(&before, next)),
            (Err(error), Some(_)) => Err(format!("{error:#}")),
            (Err(_), None) => {
                next?;
                return Ok(DONE);
            }
        };
        match (&mut terminal, text) {
            (Some(terminal), Ok(snapshot)) => {
                let (width, height) = terminal.size();
                terminal.draw(&page::lines(&snapshot, width, height))?;
            }
            (Some(terminal), Err(why)) => terminal.draw(&[why])?,
            (None, Ok(snapshot)) => print(&snapshot, arguments.json)?,
            (None, Err(_)) => {}
        }
        if let Ok(next) = next {
            before = next;
        }
        taken += 1;
        if arguments.count.is_some_and(|count| taken >= count) {
            return Ok(DONE);
        }
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

fn print(snapshot: &Snapshot, json: bool) -> Result<()> {
    if json {
        return say(snapshot.json());
    }
    let lines = page::lines(snapshot, 120, usize::MAX);
    say(lines.join("\n") + "\n")
}
