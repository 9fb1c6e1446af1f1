//! What the command line does with keys and the message layer, as functions that write to any sink.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use slackwater_net::{Endpoint, UnixAccess};
use slackwater_zmtp::{KeyPair, KeyTextError, PublicKey};
use thiserror::Error;

use crate::{
    Address, AddressError, Admission, AllowList, AllowListError, Builder, Call, Category,
    ConnectError, ConnectOptions, ConnectionId, Gap, KeyFileError, Level, ListenError,
    ListenOptions, Mq, Options, RegistryError, RequestError, RequestOptions, Running, StartError,
    load_key, new_keys, write_key,
};

/// Why a tool could not do its work.
#[derive(Debug, Error)]
#[expect(
    missing_docs,
    reason = "each variant only carries the error of the part that failed"
)]
pub enum ToolError {
    #[error(transparent)]
    KeyFile(#[from] KeyFileError),
    #[error(transparent)]
    KeyText(#[from] KeyTextError),
    #[error(transparent)]
    AllowList(#[from] AllowListError),
    #[error("`{0}` is no level (none, node, basic, admin)")]
    Level(String),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("the peer answered: {0}")]
    Request(#[from] RequestError),
    #[error("no randomness from the operating system: {0}")]
    Randomness(getrandom::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// How to reach a peer.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its address, with its key for an encrypted link.
    pub address: Address,
    /// Our secret key; made up when none.
    pub key_file: Option<PathBuf>,
    /// How long connecting and asking may take, each.
    pub timeout: Duration,
    /// Whether the peer is a plain ZeroMQ socket, which answers no probe.
    pub raw: bool,
}

impl Target {
    /// A message layer with the key of this target. Its links announce no routing id: several may be open, and none takes the
    /// place of a link that another process has with the same key.
    ///
    /// # Errors
    /// [`ToolError::KeyFile`] and [`ToolError::Start`].
    pub fn start(&self) -> Result<Running, ToolError> {
        let keys = self.key_file.as_deref().map(load_key).transpose()?;
        Ok(Builder::new(Options {
            keys,
            ephemeral_ids: true,
            ..Options::default()
        })
        .start()?)
    }

    /// Opens a link to the peer and waits until it is up.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(&self, mq: &Mq) -> Result<ConnectionId, ConnectError> {
        mq.connect_wait(&self.address, &self.connect_options())
    }

    fn connect_options(&self) -> ConnectOptions {
        ConnectOptions {
            probe: !self.raw,
            timeout: Some(self.timeout),
            ..ConnectOptions::default()
        }
    }
}

/// What an echo server offers.
#[derive(Clone, Debug)]
pub struct Echo {
    /// The endpoint to listen at.
    pub endpoint: Endpoint,
    /// Secret key; with one, links are encrypted.
    pub key_file: Option<PathBuf>,
    /// The keys that may connect; any when none.
    pub allow_list: Option<PathBuf>,
}

/// The input of a tool that prints until it is stopped: lines and the stop come through one channel, so that the tool
/// sleeps until there is something to do.
#[derive(Debug)]
pub struct Feed {
    told: Sender<Heard>,
    heard: Receiver<Heard>,
}

/// Stops the tool that has its [`Feed`].
#[derive(Clone, Debug)]
pub struct Stopper(Sender<Heard>);

#[derive(Debug)]
enum Heard {
    Line(String),
    Stop,
}

impl Feed {
    /// A feed and what stops it.
    #[must_use]
    pub fn new() -> (Stopper, Self) {
        let (told, heard) = channel();
        (Stopper(told.clone()), Self { told, heard })
    }

    /// Hands lines in, from any thread.
    fn teller(&self) -> impl Fn(String) + Send + Sync + use<> {
        let told = self.told.clone();
        // The printing end may have stopped.
        move |line| drop(told.send(Heard::Line(line)))
    }

    /// Prints up to `count` lines, each as soon as it comes, until the stop.
    fn print(&self, count: u64, out: &mut dyn Write) -> io::Result<()> {
        for _ in 0..count {
            match self.heard.recv() {
                Ok(Heard::Line(line)) => writeln!(out, "{line}").and_then(|()| out.flush())?,
                Ok(Heard::Stop) | Err(_) => break,
            }
        }
        Ok(())
    }
}

impl Stopper {
    /// Ends the tool after the lines that it has heard so far.
    pub fn stop(&self) {
        // The tool may have ended by itself.
        let _ = self.0.send(Heard::Stop);
    }
}

/// Makes a key pair, writes the secret half to `path` (mode 600, never over an existing file) and prints the public one.
///
/// # Errors
/// [`ToolError`].
pub fn keys_new(path: &Path, out: &mut dyn Write) -> Result<PublicKey, ToolError> {
    let keys = new_keys().map_err(ToolError::Randomness)?;
    write_key(path, &keys)?;
    show(&keys, out)?;
    Ok(keys.public())
}

/// Prints the public key of a key file in the forms that tools expect.
///
/// # Errors
/// [`ToolError`].
pub fn keys_show(path: &Path, out: &mut dyn Write) -> Result<PublicKey, ToolError> {
    let keys = load_key(path)?;
    show(&keys, out)?;
    Ok(keys.public())
}

/// Enters a public key into an allow-list, or changes its entry. The file is replaced as a whole, so that a process
/// that reloads it never reads half of it.
///
/// # Errors
/// [`ToolError`].
pub fn keys_allow(
    list: &Path,
    key: &str,
    level: &str,
    name: &str,
    out: &mut dyn Write,
) -> Result<(), ToolError> {
    let key: PublicKey = key.parse()?;
    let level = Level::parse(level).ok_or_else(|| ToolError::Level(level.to_owned()))?;
    let old = match std::fs::read_to_string(list) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error.into()),
    };
    let is_other = |line: &&str| {
        line.split_whitespace()
            .next()
            .and_then(|word| word.parse().ok())
            != Some(key)
    };
    let mut text: String = old
        .lines()
        .filter(is_other)
        .map(|line| format!("{line}\n"))
        .collect();
    text.push_str(format!("{key} {} {name}", level.name()).trim_end());
    text.push('\n');
    let fresh = list.with_extension("new");
    std::fs::write(&fresh, text)?;
    AllowList::load(&fresh)?;
    std::fs::rename(&fresh, list)?;
    let (level, print) = (level.name(), key.fingerprint());
    writeln!(out, "{key} ({print}) may connect as {level}")?;
    Ok(())
}

/// Answers `echo.echo` with its own parts and prints what `echo.say` brings, until `feed` is stopped.
///
/// # Errors
/// [`ToolError`].
pub fn echo(options: &Echo, feed: &Feed, out: &mut dyn Write) -> Result<(), ToolError> {
    let keys = options.key_file.as_deref().map(load_key).transpose()?;
    let encrypted = keys.is_some();
    let mut builder = Builder::new(Options {
        keys,
        ..Options::default()
    });
    builder.category("echo", Category::default())?;
    builder.request_command("echo.echo", |call: &Call<'_>| {
        call.reply(call.parts())
            .expect("a request command is only called with a tag");
    })?;
    let say = feed.teller();
    builder.command("echo.say", move |call: &Call<'_>| {
        let parts: Vec<String> = call
            .parts()
            .map(|part| part.escape_ascii().to_string())
            .collect();
        say(format!("{}: {}", call.remote(), parts.join(" ")));
    })?;
    let running = builder.start()?;
    let admission = match &options.allow_list {
        Some(path) => Admission::Listed(AllowList::load(path)?),
        None => Admission::Everybody(Level::Basic),
    };
    let listen = ListenOptions {
        admission,
        encrypted,
        plain_anywhere: false,
        access: UnixAccess::default(),
        beside: false,
    };
    let endpoint = running.listen(&options.endpoint, &listen)?;
    let key = encrypted.then(|| running.public_key());
    writeln!(out, "listening at {}", Address::of(&endpoint, key))?;
    out.flush()?;
    feed.print(u64::MAX, out)?;
    Ok(())
}

/// Sends one command and waits until it has left.
///
/// # Errors
/// [`ToolError`].
pub fn send(
    target: &Target,
    command: &str,
    parts: &[Vec<u8>],
    out: &mut dyn Write,
) -> Result<(), ToolError> {
    let running = target.start()?;
    let to = target.connect(&running)?;
    running.send(to, command, parts);
    running.stop();
    writeln!(
        out,
        "sent {command} with {} parts to {}",
        parts.len(),
        target.address
    )?;
    Ok(())
}

/// Sends one request and prints the parts of its answer, one a line, and how long it took.
///
/// # Errors
/// [`ToolError`].
pub fn request(
    target: &Target,
    command: &str,
    parts: &[Vec<u8>],
    out: &mut dyn Write,
) -> Result<(), ToolError> {
    let running = target.start()?;
    let to = target.connect(&running)?;
    let options = RequestOptions {
        timeout: Some(target.timeout),
        ..RequestOptions::default()
    };
    let asked = Instant::now();
    let answer = running.request_wait(to, command, parts, &options)?;
    let took = asked.elapsed();
    for part in answer.parts() {
        writeln!(out, "{}", part.escape_ascii())?;
    }
    writeln!(
        out,
        "({} parts in {})",
        answer.parts().len(),
        slackwater_base::format_duration(took)
    )?;
    Ok(())
}

/// Prints the messages of a stream, with its gaps, until `count` have been heard or `feed` is stopped.
///
/// # Errors
/// [`ToolError`].
pub fn sub(
    target: &Target,
    topics: &[Vec<u8>],
    count: Option<u64>,
    feed: &Feed,
    out: &mut dyn Write,
) -> Result<(), ToolError> {
    let running = target.start()?;
    let say = feed.teller();
    let everything = [Vec::new()];
    let topics = if topics.is_empty() {
        &everything[..]
    } else {
        topics
    };
    let topics: Vec<&[u8]> = topics.iter().map(Vec::as_slice).collect();
    let _link = running.subscribe(
        &target.address,
        &topics,
        &target.connect_options(),
        move |published| {
            let gap = match published.gap() {
                Some(Gap::Missing(count)) => format!("({count} not heard) "),
                Some(Gap::Restarted) => "(the stream began again) ".to_owned(),
                None => String::new(),
            };
            let (topic, body) = (
                published.topic.escape_ascii(),
                published.body.escape_ascii(),
            );
            say(format!("{gap}{} {topic} {body}", published.sequence));
        },
    );
    feed.print(count.unwrap_or(u64::MAX), out)?;
    Ok(())
}

fn show(keys: &KeyPair, out: &mut dyn Write) -> io::Result<()> {
    let public = keys.public();
    writeln!(out, "hex      {public}")?;
    writeln!(out, "base32z  {}", public.to_base32z())?;
    writeln!(out, "z85      {}", public.to_z85())?;
    writeln!(out, "print    {}", public.fingerprint())
}
