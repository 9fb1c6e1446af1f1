//! A terminal that is lent: its screen, its keys, and that it is given back as it was.

use std::fs::File;
use std::io::{BufWriter, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ratatui::backend::{Backend, ClearType, WindowSize};
use ratatui::buffer::Cell;
use ratatui::layout::{Position, Size};
use ratatui::style::{Color, Modifier};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::dup;
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize,
    tcsetattr,
};

use super::cells::wide;
use super::keys::{Key, Keys};
use crate::interrupt::Interrupt;

/// The keys of a terminal, and what else is waited for beside them.
pub(super) struct Terminal {
    lent: Lent,
    /// Where keys come from; none where standard input is no terminal.
    input: Option<File>,
    keys: Keys,
    /// Readable as soon as it is time to stop.
    stop: UnixStream,
    /// Readable when the size has changed.
    resized: UnixStream,
}

/// What there is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    Keys(Vec<Key>),
    Resized,
    /// It is time to stop.
    Stop,
    /// The time has come.
    Due,
    /// The other source is readable.
    Ready,
}

/// Another screen and no cursor; what was there before.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";

impl Terminal {
    /// Takes the terminal of this process over; `resized` is readable when its size has changed.
    pub(super) fn open(interrupt: &Interrupt, resized: UnixStream) -> Result<Self> {
        let (stop, told) = UnixStream::pair().context("no pair of sockets")?;
        let stopped = interrupt.clone();
        std::thread::Builder::new()
            .name("stop".to_owned())
            .spawn(move || {
                stopped.wait();
                drop(told);
            })
            .context("cannot start a thread")?;
        let own = |of: &dyn AsFd| dup(of.as_fd()).map(File::from);
        let (stdin, stdout) = (std::io::stdin(), std::io::stdout());
        let input = stdin.is_terminal().then(|| own(&stdin)).transpose();
        let input = input.context("standard input")?;
        let kept = input.as_ref().map(File::try_clone).transpose();
        let lent = Lent::take(
            kept.context("standard input")?,
            own(&stdout).context("standard output")?,
        )?;
        Ok(Self {
            lent,
            input,
            keys: Keys::default(),
            stop,
            resized,
        })
    }

    /// What is drawn on.
    pub(super) fn screen(&self) -> Result<Screen> {
        let out = self.lent.output.try_clone().context("standard output")?;
        Ok(Screen {
            out: BufWriter::new(out),
        })
    }

    /// Waits for whatever comes first: a key, until `until`, or until `other` is readable.
    pub(super) fn wait(
        &mut self,
        until: Option<Instant>,
        other: Option<&UnixStream>,
    ) -> Result<Event> {
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let mut sources = vec![
                PollFd::new(&self.stop, PollFlags::IN),
                PollFd::new(&self.resized, PollFlags::IN),
            ];
            let input = self.input.as_ref();
            sources.extend(input.map(|input| PollFd::new(input, PollFlags::IN)));
            sources.extend(other.map(|other| PollFd::new(other, PollFlags::IN)));
            match poll(&mut sources, left.map(timespec).as_ref()) {
                Ok(0) => return Ok(Event::Due),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error).context("the terminal cannot be waited for"),
            }
            let readable = |at: usize| sources.get(at).is_some_and(|it| !it.revents().is_empty());
            let (is_stopped, is_resized) = (readable(0), readable(1));
            let has_keys = input.is_some() && readable(2);
            drop(sources);
            if is_stopped {
                return Ok(Event::Stop);
            }
            if is_resized {
                // Many changes are one.
                let mut told = [0; 64];
                self.resized
                    .read(&mut told)
                    .context("the size of the terminal")?;
                return Ok(Event::Resized);
            }
            if !has_keys {
                return Ok(Event::Ready);
            }
            let mut pressed = [0; 64];
            let input = self.input.as_mut().context("no keys")?;
            match input.read(&mut pressed) {
                // It was hung up, and would be readable for ever.
                Ok(0) => return Ok(Event::Stop),
                Ok(read) => {
                    let keys = self.keys.read(&pressed[..read]);
                    if !keys.is_empty() {
                        return Ok(Event::Keys(keys));
                    }
                }
                Err(error) => return Err(error).context("keys cannot be read"),
            }
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

/// Another screen of the terminal and its keys one by one, until this is dropped or a thread panics.
struct Lent {
    output: File,
}

/// How the terminal was before it was lent; none when it is not.
static BEFORE: Mutex<Option<Before>> = Mutex::new(None);

struct Before {
    output: File,
    /// How keys were read, and from where.
    keys: Option<(File, Termios)>,
}

impl Lent {
    fn take(input: Option<File>, output: File) -> Result<Self> {
        /// What a panic says is to be read on the screen that stays.
        static TOLD: Once = Once::new();
        TOLD.call_once(|| {
            let say = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                give_back();
                say(panic);
            }));
        });
        let keys = input.map(|input| {
            let before =
                tcgetattr(&input).context("the terminal does not say how it reads keys")?;
            let mut raw = before.clone();
            raw.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
            // Ctrl-S would stop what is drawn, and with it the keys that are read in between.
            raw.input_modes &= !InputModes::IXON;
            raw.special_codes[SpecialCodeIndex::VMIN] = 0;
            raw.special_codes[SpecialCodeIndex::VTIME] = 0;
            tcsetattr(&input, OptionalActions::Now, &raw)
                .context("the terminal reads lines only")?;
            anyhow::Ok((input, before))
        });
        let kept = Before {
            output: output.try_clone().context("standard output")?,
            keys: keys.transpose()?,
        };
        *before() = Some(kept);
        let mut lent = Self { output };
        lent.output
            .write_all(ENTER.as_bytes())
            .context("standard output")?;
        Ok(lent)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        give_back();
    }
}

fn before() -> std::sync::MutexGuard<'static, Option<Before>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Leaves the terminal as it was, once.
fn give_back() {
    restore(|_| true);
}

/// The same at once, also where its output is stopped: then its screen stays.
pub(super) fn give_back_now() {
    restore(|output| {
        let mut sources = [PollFd::new(output, PollFlags::OUT)];
        poll(&mut sources, Some(&timespec(Duration::ZERO))).is_ok_and(|ready| ready > 0)
    });
}

/// The keys go first: a terminal whose output is stopped takes no words.
fn restore(is_heard: impl FnOnce(&File) -> bool) {
    let Some(mut kept) = before().take() else {
        return;
    };
    // A terminal that is gone needs nothing.
    if let Some((input, before)) = &kept.keys {
        let _ = tcsetattr(input, OptionalActions::Now, before);
    }
    if is_heard(&kept.output) {
        let _ = kept.output.write_all(LEAVE.as_bytes());
    }
}

/// Draws cells by the few sequences that all terminals know: what a library for terminals does beyond that, reading keys
/// and signals, is not needed here, and it would bring a dozen crates.
pub(super) struct Screen {
    out: BufWriter<File>,
}

impl Screen {
    fn send(&mut self, text: &str) -> std::io::Result<()> {
        self.out.write_all(text.as_bytes())
    }
}

impl Backend for Screen {
    type Error = std::io::Error;

    fn draw<'a, I>(&mut self, content: I) -> std::io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let (mut at, mut style) = (None, None);
        for (x, y, cell) in content {
            if at != Some((x, y)) {
                self.set_cursor_position(Position { x, y })?;
            }
            let next = (cell.fg, cell.bg, cell.modifier);
            if style != Some(next) {
                self.send(&dressed(next))?;
                style = Some(next);
            }
            self.send(cell.symbol())?;
            at = Some((x + wide(cell.symbol()) as u16, y));
        }
        self.send("\x1b[0m")
    }

    fn hide_cursor(&mut self) -> std::io::Result<()> {
        self.send("\x1b[?25l")
    }

    fn show_cursor(&mut self) -> std::io::Result<()> {
        self.send("\x1b[?25h")
    }

    /// Nobody asks: what is drawn takes the whole screen.
    fn get_cursor_position(&mut self) -> std::io::Result<Position> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> std::io::Result<()> {
        let Position { x, y } = position.into();
        write!(self.out, "\x1b[{};{}H", y + 1, x + 1)
    }

    fn clear(&mut self) -> std::io::Result<()> {
        self.clear_region(ClearType::All)
    }

    fn clear_region(&mut self, region: ClearType) -> std::io::Result<()> {
        self.send(match region {
            ClearType::All => "\x1b[2J",
            ClearType::AfterCursor => "\x1b[J",
            ClearType::BeforeCursor => "\x1b[1J",
            ClearType::CurrentLine => "\x1b[2K",
            ClearType::UntilNewLine => "\x1b[K",
        })
    }

    /// Columns and rows, as they are now.
    fn size(&self) -> std::io::Result<Size> {
        Ok(match tcgetwinsize(self.out.get_ref()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => Size::new(size.ws_col, size.ws_row),
            _ => Size::new(80, 24),
        })
    }

    fn window_size(&mut self) -> std::io::Result<WindowSize> {
        Ok(WindowSize {
            columns_rows: self.size()?,
            pixels: Size::new(0, 0),
        })
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// The sequence that gives what follows these looks.
fn dressed((text, ground, modifier): (Color, Color, Modifier)) -> String {
    let weights = [
        (Modifier::BOLD, "1"),
        (Modifier::DIM, "2"),
        (Modifier::UNDERLINED, "4"),
        (Modifier::REVERSED, "7"),
    ];
    let weights = weights
        .iter()
        .filter(|(weight, _)| modifier.contains(*weight));
    let mut codes: Vec<String> = vec!["0".to_owned()];
    codes.extend(weights.map(|(_, code)| (*code).to_owned()));
    codes.extend(code(text).map(|code| (30 + code).to_string()));
    codes.extend(code(ground).map(|code| (40 + code).to_string()));
    format!("\x1b[{}m", codes.join(";"))
}

/// The number of a colour that every terminal has; what else there is stays as it is by default.
fn code(color: Color) -> Option<u8> {
    let all = [
        Color::Black,
        Color::Red,
        Color::Green,
        Color::Yellow,
        Color::Blue,
        Color::Magenta,
        Color::Cyan,
        Color::Gray,
    ];
    let at = all.iter().position(|it| *it == color)?;
    Some(at as u8)
}

#[cfg(test)]
mod tests {
    use ratatui::style::Style;
    use ratatui::text::{Line, Span};
    use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};

    use super::*;

    /// A terminal: the end that its reader has, and the end that is drawn on.
    fn pair() -> (File, File) {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let theirs = ioctl_tiocgptpeer(&ours, flags).unwrap();
        (File::from(ours), File::from(theirs))
    }

    /// All that is shown until nobody can draw any more.
    fn shown(mut terminal: File) -> String {
        let mut all = Vec::new();
        match terminal.read_to_end(&mut all) {
            // Its other end was closed.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {}
            other => _ = other.unwrap(),
        }
        String::from_utf8(all).unwrap()
    }

    /// The screen was left by the end of the page, which a panic comes before: its words were drawn over and lost, and
    /// the shell stayed without echo.
    #[test]
    fn a_panic_finds_the_terminal_as_it_was() {
        let (ours, theirs) = pair();
        let echoes = |of: &File| {
            let modes = tcgetattr(of).unwrap().local_modes;
            modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG)
        };
        let lend = || {
            let [input, output] = [(); 2].map(|()| theirs.try_clone().unwrap());
            Lent::take(Some(input), output).unwrap()
        };
        assert!(echoes(&theirs));
        // As it ends with a page.
        let lent = lend();
        assert!(!echoes(&theirs));
        drop(lent);
        assert!(echoes(&theirs));
        // As it ends with a panic of any thread, before that is told.
        let lent = lend();
        assert!(!echoes(&theirs));
        let panicked = std::thread::spawn(|| panic!("while a page is shown")).join();
        assert!(panicked.is_err() && echoes(&theirs));
        drop(lent);
        drop(theirs);
        assert_eq!(shown(ours), format!("{ENTER}{LEAVE}{ENTER}{LEAVE}"));
    }

    #[test]
    fn only_what_has_changed_is_drawn() {
        let (ours, theirs) = pair();
        let screen = Screen {
            out: BufWriter::new(theirs),
        };
        assert_eq!(screen.size().unwrap(), Size::new(80, 24), "it has no size");
        let mut terminal = ratatui::Terminal::new(screen).unwrap();
        for number in [1, 2] {
            let line = Line::from(vec![
                Span::styled(
                    "reads",
                    Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
                ),
                Span::raw(format!(" {number}")),
            ]);
            terminal
                .draw(|frame| frame.render_widget(line, frame.area()))
                .unwrap();
        }
        drop(terminal);
        let shown = shown(ours);
        assert_eq!(shown.matches("\x1b[0;1;31mreads").count(), 1, "{shown:?}");
        assert!(shown.contains("\x1b[1;7H\x1b[0m2\x1b[0m"), "{shown:?}");
    }
}
