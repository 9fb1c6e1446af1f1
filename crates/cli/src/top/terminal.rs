use std::io::{IsTerminal, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

use crate::interrupt::Interrupt;

/// A terminal that shows pages, as it was before when this is dropped.
pub(super) struct Terminal {
    /// How keys were read before; none where they come from elsewhere.
    before: Option<Termios>,
    /// Readable as soon as it is time to stop.
    stop: UnixStream,
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
}

/// Another screen and no cursor; what was there before.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Ctrl-C, where it is read as a key.
const CTRL_C: u8 = 3;

impl Terminal {
    pub(super) fn open(interrupt: &Interrupt) -> Result<Self> {
        let (stop, told) = UnixStream::pair().context("no pair of sockets")?;
        let stopped = interrupt.clone();
        std::thread::Builder::new()
            .name("stop".to_owned())
            .spawn(move || {
                stopped.wait();
                drop(told);
            })
            .context("cannot start a thread")?;
        let mut terminal = Self { before: None, stop };
        let keys = std::io::stdin();
        if keys.is_terminal() {
            let before = tcgetattr(&keys).context("the terminal does not say how it reads keys")?;
            let mut raw = before.clone();
            raw.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
            raw.special_codes[SpecialCodeIndex::VMIN] = 0;
            raw.special_codes[SpecialCodeIndex::VTIME] = 0;
            tcsetattr(&keys, OptionalActions::Now, &raw)
                .context("the terminal reads lines only")?;
            terminal.before = Some(before);
        }
        write(ENTER)?;
        Ok(terminal)
    }

    /// Waits for a key that asks for something, until `until` at most, or until `other` is readable.
    pub(super) fn wait(
        &mut self,
        until: Option<Instant>,
        other: Option<&UnixStream>,
    ) -> Result<Option<Key>> {
        let keys = std::io::stdin();
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let mut sources = vec![PollFd::new(&self.stop, PollFlags::IN)];
            if self.before.is_some() {
                sources.push(PollFd::new(&keys, PollFlags::IN));
            }
            sources.extend(other.map(|other| PollFd::new(other, PollFlags::IN)));
            match poll(&mut sources, left.map(timespec).as_ref()) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error).context("the terminal cannot be waited for"),
            }
            let readable = |at: usize| sources.get(at).is_some_and(|it| !it.revents().is_empty());
            if readable(0) {
                return Ok(Some(Key::Quit));
            }
            if self.before.is_none() || !readable(1) {
                return Ok(None);
            }
            let mut pressed = [0; 64];
            match keys.lock().read(&mut pressed) {
                // It was hung up, and would be readable for ever.
                Ok(0) => return Ok(Some(Key::Quit)),
                Ok(read) if asks_to_quit(&pressed[..read]) => return Ok(Some(Key::Quit)),
                Ok(_) => {}
                Err(error) => return Err(error).context("keys cannot be read"),
            }
        }
    }

    /// Columns and rows, as they are now.
    pub(super) fn size(&self) -> (usize, usize) {
        match tcgetwinsize(std::io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (usize::from(size.ws_col), usize::from(size.ws_row))
            }
            _ => (80, 24),
        }
    }

    /// Shows a page in the place of the last one.
    pub(super) fn draw(&mut self, lines: &[String]) -> Result<()> {
        // Each line is cleared to its end, and what is below the last one: nothing flickers.
        let page: Vec<String> = lines.iter().map(|line| format!("{line}\x1b[K")).collect();
        write(&format!("\x1b[H{}\x1b[J", page.join("\r\n")))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = write(LEAVE);
        if let Some(before) = &self.before {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn asks_to_quit(pressed: &[u8]) -> bool {
    pressed
        .iter()
        .any(|key| matches!(key, b'q' | b'Q' | &CTRL_C))
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

fn write(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.context("standard output")
}
