//! What operators see of a server while it works.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;

use rustix::event::PollFlags;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Action, Winsize, tcflow, tcsetwinsize};
use serde_json::Value;

use super::admin::Administered;
use super::pool::{Node, put};
use super::*;
use crate::place::{end, lasting_address, ready, stderr};

#[test]
fn snapshots_tell_what_happened_in_between() {
    let place = Place::new();
    let store = Administered::spawn(&place, &["serve", "--memory", "64MiB"]);
    let master = Administered::spawn(&place, &["master"]);
    let _node = Node::start(&place, &master.served.address, &["--memory", "64MiB"]);
    for (server, clients) in [(&store, false), (&master, true)] {
        let client = server.served.connect();
        let top = ["top", "--address", &server.admin, "--interval", "500ms"];
        let top = place
            .command(&[&top[..], &["--count", "3", "--json"]].concat())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut top = top;
        for name in 0.. {
            // It ends after three snapshots, however late the first one was.
            if top.try_wait().unwrap().is_some() {
                break;
            }
            put(&client, name);
            client
                .get(format!("k{name}").as_bytes(), &Default::default())
                .unwrap();
        }
        let output = top.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        let all: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(all.len(), 3);
        let puts = all.iter().map(|it| it["puts_per_s"].as_f64().unwrap());
        assert!(puts.sum::<f64>() > 1.0, "{text}");
        let reads = all
            .iter()
            .map(|it| it["reads_per_s"]["memory"].as_f64().unwrap());
        assert!(reads.sum::<f64>() > 1.0, "{text}");
        assert_eq!(all[2]["segments"][0]["tier"], "memory");
        assert_eq!(all[2]["clients"].is_null(), !clients);
        let pages = place.run(&["top", "--address", &server.admin, "--count", "1"]);
        let page = String::from_utf8(pages.stdout).unwrap();
        assert!(
            page.contains("SEGMENT") && page.contains("memory"),
            "{page}"
        );
        assert!(!page.contains('\x1b'), "no terminal, no escape sequences");
    }
    let closed = "127.0.0.1:9";
    let none = place.run(&["top", "--address", closed, "--count", "1"]);
    assert!(
        none.status.code() == Some(1) && stderr(&none).contains(closed),
        "{}",
        stderr(&none)
    );
}

#[test]
fn a_token_is_sent_where_it_is_named() {
    let place = Place::new();
    let file = place.path("token");
    std::fs::write(&file, "not-to-be-guessed-1\n").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let serve = ["serve", "--memory", "16MiB", "--admin-token-file", "token"];
    let store = Administered::spawn(&place, &serve);
    let top = ["top", "--address", &store.admin, "--count", "1", "--json"];
    let refused = place.run(&top);
    let said = stderr(&refused);
    assert!(
        refused.status.code() == Some(1) && said.contains("--token-file FILE"),
        "{said}"
    );
    assert!(!said.contains("not-to-be-guessed"), "{said}");
    let told = place.run(&[&top[..], &["--token-file", "token"]].concat());
    assert!(told.status.success(), "{}", stderr(&told));
}

/// A shell on a terminal of its own, in which `top` runs, and what the terminal shows.
struct Shown {
    shell: Child,
    terminal: File,
    screen: Screen,
    /// All that was sent to it.
    sent: Vec<u8>,
}

impl Shown {
    fn start(place: &Place, admin: &str, more: &str) -> Self {
        Self::start_by(place, "env", admin, more)
    }

    /// Starts it by `env` with variables. What the terminal is before and after is for [`Shown::end`].
    fn start_by(place: &Place, env: &str, admin: &str, more: &str) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let theirs = File::from(ioctl_tiocgptpeer(&ours, flags).unwrap());
        let command = env!("CARGO_BIN_EXE_slackwater");
        let top = format!("exec {env} {command} top --address {admin} {more}");
        let line = format!(
            "trap '' HUP; stty -a > before; sh -c 'echo $$ > pid; {top}'; echo code $? > code; stty -a > after"
        );
        let end = || Stdio::from(theirs.try_clone().unwrap());
        let mut shown = Self {
            // The shell leads a session whose terminal this is, so that changes of its size are told to what runs in it.
            shell: Command::new("setsid")
                .args(["--ctty", "sh", "-c", &line])
                .current_dir(place.path(""))
                .env("TERM", "xterm")
                .env_remove("NO_COLOR")
                .env_remove("SLACKWATER_ADMIN_TOKEN_FILE")
                .stdin(end())
                .stdout(end())
                .stderr(end())
                .spawn()
                .unwrap(),
            terminal: File::from(ours),
            screen: Screen::default(),
            sent: Vec::new(),
        };
        shown.resize(80, 24);
        shown
    }

    fn resize(&mut self, columns: u16, rows: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.terminal, size).unwrap();
    }

    fn press(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).unwrap();
    }

    /// Reads what is sent until the screen is so.
    fn until(&mut self, what: &str, holds: impl Fn(&Screen) -> bool) {
        let begun = std::time::Instant::now();
        while !holds(&self.screen) {
            // What is drawn again and again is no progress.
            assert!(
                begun.elapsed() < PATIENCE && self.read(),
                "never came true: {what}\n{}",
                self.screen.text()
            );
        }
    }

    /// Takes what is sent next; whether anything was.
    fn read(&mut self) -> bool {
        assert!(
            ready(&self.terminal, PollFlags::IN),
            "nothing is drawn:\n{}",
            self.screen.text()
        );
        let mut part = [0; 4096];
        // An error says that nobody has it any more.
        let read = self.terminal.read(&mut part).unwrap_or(0);
        self.sent.extend(&part[..read]);
        self.screen.take(&part[..read]);
        read > 0
    }

    /// The process of `top`, which has drawn something.
    fn pid(place: &Place) -> Pid {
        let said = std::fs::read_to_string(place.path("pid")).unwrap();
        Pid::from_raw(said.trim().parse().unwrap()).unwrap()
    }

    /// Waits for the end of the shell; the terminal is as it was.
    fn end(mut self, place: &Place) -> Vec<u8> {
        while self.read() {}
        assert_eq!(self.code(place), "code 0\n");
        assert!(!self.screen.is_other, "another screen stays");
        assert!(self.screen.has_cursor, "the cursor is gone");
        self.sent.clone()
    }

    /// Waits for the end of the shell; keys are read as before. What `top` ended with.
    fn code(&mut self, place: &Place) -> String {
        end(&mut self.shell);
        let read = |name: &str| std::fs::read_to_string(place.path(name)).unwrap();
        let (before, after) = (read("before"), read("after"));
        let modes = |text: &str| text.split_once('\n').unwrap().1.to_owned();
        assert_eq!(
            modes(&before),
            modes(&after),
            "its size may have changed, no mode"
        );
        read("code")
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        // It may have ended, as the test wanted.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// The letters on a terminal, as the sequences that were sent place them.
struct Screen {
    cells: Vec<Vec<char>>,
    row: usize,
    column: usize,
    /// The beginning of a sequence, or of a letter.
    begun: Vec<u8>,
    is_other: bool,
    has_cursor: bool,
}

impl Default for Screen {
    fn default() -> Self {
        Self {
            cells: vec![vec![' '; 250]; 100],
            row: 0,
            column: 0,
            begun: Vec::new(),
            is_other: false,
            has_cursor: true,
        }
    }
}

impl Screen {
    fn take(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.begun.push(*byte);
            match &self.begun[..] {
                [0x1b] | [0x1b, b'['] => {}
                [0x1b, b'[', .., 0x40..=0x7e] => {
                    let sequence = String::from_utf8(std::mem::take(&mut self.begun)).unwrap();
                    self.obey(&sequence[2..]);
                }
                [0x1b, ..] => {}
                [b'\r'] => (self.column, self.begun) = (0, Vec::new()),
                [b'\n'] => (self.row, self.begun) = (self.row + 1, Vec::new()),
                _ => {
                    if let Ok(letter) = std::str::from_utf8(&self.begun) {
                        self.cells[self.row][self.column] = letter.chars().next().unwrap();
                        self.column += 1;
                        self.begun.clear();
                    }
                }
            }
        }
    }

    fn obey(&mut self, sequence: &str) {
        match sequence {
            "?1049h" => self.is_other = true,
            "?1049l" => self.is_other = false,
            "?25h" => self.has_cursor = true,
            "?25l" => self.has_cursor = false,
            "2J" => self.cells.iter_mut().for_each(|row| row.fill(' ')),
            place if place.ends_with('H') => {
                let place = place.trim_end_matches('H').split_once(';').unwrap();
                self.row = place.0.parse::<usize>().unwrap() - 1;
                self.column = place.1.parse::<usize>().unwrap() - 1;
            }
            other => assert!(other.ends_with('m'), "what is {other}?"),
        }
    }

    fn text(&self) -> String {
        let rows = self.cells.iter().map(|row| row.iter().collect::<String>());
        rows.map(|row| row.trim_end().to_owned() + "\n").collect()
    }

    fn has(&self, words: &str) -> bool {
        self.text().contains(words)
    }

    /// Whether there is nothing beyond these.
    fn is_within(&self, columns: usize, rows: usize) -> bool {
        let blank = |cells: &[char]| cells.iter().all(|cell| *cell == ' ');
        let beside = self.cells.iter().all(|row| blank(&row[columns..]));
        beside && self.cells[rows..].iter().all(|row| blank(row))
    }
}

/// Nothing was drawn again until the next sample, so the page stayed cut, or broken, for as long as that took. With an hour
/// between samples only the change of the size can be what draws it.
#[test]
fn a_terminal_that_is_resized_is_drawn_anew_at_once() {
    let place = Place::new();
    let store = Administered::spawn(&place, &["serve", "--memory", "16MiB"]);
    let mut shown = Shown::start(&place, &store.admin, "--interval 1h");
    shown.until("a page", |screen| {
        screen.has("1 Overview 2 Nodes 3 Decisions") && screen.has("q: quit")
    });
    assert!(shown.screen.is_within(80, 24) && shown.screen.is_other);
    assert!(!shown.screen.has_cursor);
    assert!(shown.screen.text().starts_with("serving  epoch "));
    assert!(shown.screen.has("memory") && shown.screen.has("16.0 MiB"));
    // Below what fits nothing is left of what was there.
    shown.resize(40, 10);
    shown.until("a small page", |screen| {
        screen.text().contains("\n1 Overview 2 3 4 5 6 7 8\n") && screen.is_within(40, 10)
    });
    shown.resize(1, 1);
    shown.until("no more than a letter", |screen| screen.is_within(1, 1));
    shown.resize(40, 10);
    shown.press("2");
    shown.until("the nodes", |screen| {
        screen.has("1 2 Nodes 3 4 5 6 7 8") && screen.has("has a link")
    });
    shown.resize(200, 60);
    shown.until("a large page", |screen| {
        screen.has("1 Overview 2 Nodes 3 Decisions") && screen.has("q: quit")
    });
    shown.press("\x1b[Z");
    shown.until("everything", |screen| {
        screen.has("Chains that are read most") && screen.has("Jobs") && screen.has("Reasons")
    });
    shown.press("q");
    let sent = String::from_utf8(shown.end(&place)).unwrap();
    assert!(sent.contains(";32m"), "what serves is green");
}

/// Whatever ends it, and whether or not the server is still there.
#[test]
fn a_terminal_is_left_as_it_was() {
    let place = Place::new();
    for key in ["q", "\x03"] {
        let store = Administered::spawn(&place, &["serve", "--memory", "16MiB"]);
        let more = "--interval 200ms";
        let mut shown = Shown::start(&place, &store.admin, more);
        shown.until("a page", |screen| screen.has("q: quit"));
        drop(store);
        shown.until("that the server is gone", |screen| {
            screen.text().starts_with("no link") && screen.has("What is below is as it was")
        });
        shown.press(key);
        shown.end(&place);
    }
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    let place = Place::new();
    let store = Administered::spawn(&place, &["serve", "--memory", "16MiB"]);
    for signal in [Signal::TERM, Signal::INT] {
        let mut shown = Shown::start(&place, &store.admin, "--interval 1h");
        shown.until("a page", |screen| screen.has("q: quit"));
        kill_process(Shown::pid(&place), signal).unwrap();
        shown.end(&place);
    }
}

/// Its output was stopped, so what was left to draw was waited for, and the signal that did not wait left a shell without
/// echo.
#[test]
fn keys_are_read_as_before_when_another_signal_ends_what_cannot_draw() {
    let place = Place::new();
    let store = Administered::spawn(&place, &["serve", "--memory", "16MiB"]);
    let mut shown = Shown::start(&place, &store.admin, "--interval 1h");
    shown.until("a page", |screen| screen.has("q: quit"));
    let theirs = ioctl_tiocgptpeer(&shown.terminal, OpenptFlags::RDWR | OpenptFlags::NOCTTY);
    tcflow(theirs.unwrap(), Action::OOff).unwrap();
    let pid = Shown::pid(&place);
    // Those that come soon after the first are taken for the same one.
    until("the process has ended", || {
        kill_process(pid, Signal::TERM).is_err()
    });
    assert_eq!(shown.code(&place), "code 130\n");
}

/// No signal tells that the terminal is gone, where it is ignored.
#[test]
fn a_terminal_that_is_gone_ends_it() {
    let place = Place::new();
    let store = Administered::spawn(&place, &["serve", "--memory", "16MiB"]);
    let mut shown = Shown::start(&place, &store.admin, "--interval 1h");
    shown.until("a page", |screen| screen.has("q: quit"));
    shown.terminal = File::open("/dev/null").unwrap();
    end(&mut shown.shell);
    let code = std::fs::read_to_string(place.path("code")).unwrap();
    assert_eq!(code, "code 0\n");
}

#[test]
fn a_master_that_comes_back_is_shown_again() {
    let place = Place::new();
    let admin = lasting_address();
    let master = Administered::spawn(&place, &["master", "--admin", &admin]);
    let mut shown = Shown::start(&place, &admin, "--interval 200ms");
    shown.until("a page", |screen| screen.text().starts_with("not serving"));
    drop(master);
    let is_lost = |screen: &Screen| screen.has("What is below is as it was");
    shown.until("that the master is gone", is_lost);
    let arguments = ["master", "--listen", "127.0.0.1:0", "--admin", &admin];
    let _again = Served::spawn(place.command(&arguments));
    shown.until("that it is back", |screen| {
        screen.text().starts_with("not serving") && !is_lost(screen)
    });
    shown.press("q");
    shown.end(&place);
}

#[test]
fn a_terminal_without_colours_gets_none() {
    let place = Place::new();
    let store = Administered::spawn(&place, &["serve", "--memory", "16MiB"]);
    let shown = Shown::start(&place, &store.admin, "--count 1 --interval 100ms");
    let sent = String::from_utf8(shown.end(&place)).unwrap();
    assert!(sent.contains("\x1b[0;1;32m"), "{sent:?}");
    let plain = "env NO_COLOR=1";
    let shown = Shown::start_by(&place, plain, &store.admin, "--count 1 --interval 100ms");
    let sent = String::from_utf8(shown.end(&place)).unwrap();
    let sequences = sent
        .split("\x1b[")
        .filter_map(|part| Some(part.split_once('m')?.0));
    let is_codes = |codes: &&str| {
        codes
            .chars()
            .all(|code| code.is_ascii_digit() || code == ';')
    };
    let codes = sequences
        .filter(is_codes)
        .flat_map(|codes| codes.split(';'));
    assert!(sent.contains("\x1b[0;1m"), "{sent:?}");
    // The colours of letters and of what is behind them.
    assert!(!codes.clone().any(|code| code.len() > 1), "{sent:?}");
}
