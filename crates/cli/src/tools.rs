//! `slackwater keys` and `slackwater mq`: the message layer by hand.

mod load;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use slackwater_mq::tool::{self, Echo, Feed, Stopper, Target};
use slackwater_mq::{Address, Level};

use crate::interrupt::Interrupt;
use crate::{DONE, INTERRUPTED};

/// Keys of the message layer.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Keys {
    /// Make a key pair: the secret half goes to a file that only you can read, the public half is printed
    New {
        /// File for the secret half; never overwritten
        path: PathBuf,
    },
    /// Show the public key of a key file in the forms that tools expect
    Show {
        /// File with the secret half
        path: PathBuf,
    },
    /// Enter a public key into an allow-list, or change its entry
    Allow {
        /// The allow-list; made if it is missing
        list: PathBuf,
        /// The public key: hex, base32z, base64 or Z85
        key: String,
        /// What its owner may do
        #[arg(long, default_value = "basic", value_parser = level)]
        level: Level,
        /// Let it read and write memory of this machine itself, with the objects of all tenants in it; others are sent the
        /// bytes
        #[arg(long)]
        map_memory: bool,
        /// A name for people
        #[arg(long, default_value = "")]
        name: String,
    },
}

/// How to serve some keys only; the guide has the same lines.
const ALLOW_LIST: &str = "\
With an allow-list:
  slackwater keys new server.key
  slackwater keys new client.key
  slackwater keys allow allowed CLIENT_PUBLIC_KEY
  slackwater mq echo tcp://127.0.0.1:5000 --key-file server.key --allow allowed
  slackwater mq request curve://127.0.0.1:5000/SERVER_PUBLIC_KEY echo.echo hello --key-file client.key
`keys new` prints the public keys, and `mq echo` the address with its key.";

/// Talking to the message layer by hand.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Mq {
    /// Answer requests to `echo.echo` with their own parts, and print what `echo.say` brings, until Ctrl-C
    #[command(after_help = ALLOW_LIST)]
    Echo {
        /// Where to listen, such as tcp://127.0.0.1:5000 or ipc:///tmp/echo
        address: Address,
        /// Secret key; with one, links are encrypted. Needed for any address that is not loopback
        #[arg(long, value_name = "FILE")]
        key_file: Option<PathBuf>,
        /// The allow-list that `slackwater keys allow` writes: who may come in; everybody without
        #[arg(long, value_name = "FILE", requires = "key_file")]
        allow: Option<PathBuf>,
    },
    /// Send one command and wait until it has left
    Send {
        #[command(flatten)]
        peer: Peer,
        /// The command, such as echo.say
        command: String,
        /// Its parts
        parts: Vec<String>,
    },
    /// Send one request and print its answer
    Request {
        #[command(flatten)]
        peer: Peer,
        /// The command, such as echo.echo
        command: String,
        /// Its parts
        parts: Vec<String>,
    },
    /// Send many requests, and print how many are answered a second, how fast, and why others failed
    ///
    /// Ctrl-C ends it early, with the report of what was done. The exit code is 1 if a request failed.
    Load(load::Load),
    /// Print the messages of a stream, with its gaps, until Ctrl-C
    Sub {
        #[command(flatten)]
        peer: Peer,
        /// Prefixes of topics; all topics without
        topics: Vec<String>,
        /// End after so many messages
        #[arg(long, value_name = "N")]
        count: Option<u64>,
    },
}

/// Whom to talk to.
#[derive(Clone, Debug, Args)]
pub(crate) struct Peer {
    /// Where the peer is; with its public key (curve://HOST:PORT/KEY) the link is encrypted
    address: Address,
    /// Our secret key; one is made up without
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// How long connecting and asking may take, each
    #[arg(long, default_value = "5s", value_name = "DURATION", value_parser = slackwater_base::parse_duration)]
    timeout: Duration,
    /// The peer is a plain ZeroMQ socket, which answers no probe
    #[arg(long)]
    raw: bool,
}

impl Peer {
    fn target(&self) -> Target {
        let Peer {
            address,
            key_file,
            timeout,
            raw,
        } = self.clone();
        Target {
            address,
            key_file,
            timeout,
            raw,
        }
    }
}

pub(crate) fn keys(verb: &Keys) -> Result<u8> {
    let out = &mut std::io::stdout();
    match verb {
        Keys::New { path } => tool::keys_new(path, out).map(drop),
        Keys::Show { path } => tool::keys_show(path, out).map(drop),
        Keys::Allow {
            list,
            key,
            level,
            map_memory,
            name,
        } => {
            let memory = if *map_memory { "memory=mapped " } else { "" };
            tool::keys_allow(list, key, level.name(), &format!("{memory}{name}"), out)
        }
    }?;
    Ok(DONE)
}

pub(crate) fn mq(verb: &Mq) -> Result<u8> {
    let out = &mut std::io::stdout();
    let (stopper, feed) = Feed::new();
    match verb {
        Mq::Echo {
            address,
            key_file,
            allow,
        } => {
            let interrupt = until_interrupted(stopper)?;
            let endpoint = address.endpoint()?;
            let options = Echo {
                endpoint,
                key_file: key_file.clone(),
                allow_list: allow.clone(),
            };
            tool::echo(&options, &feed, out)?;
            return Ok(ended(&interrupt));
        }
        Mq::Send {
            peer,
            command,
            parts,
        } => tool::send(&peer.target(), command, &bytes(parts), out)?,
        Mq::Request {
            peer,
            command,
            parts,
        } => tool::request(&peer.target(), command, &bytes(parts), out)?,
        Mq::Load(load) => return load::run(load),
        Mq::Sub {
            peer,
            topics,
            count,
        } => {
            let interrupt = until_interrupted(stopper)?;
            tool::sub(&peer.target(), &bytes(topics), *count, &feed, out)?;
            return Ok(ended(&interrupt));
        }
    }
    Ok(DONE)
}

fn ended(interrupt: &Interrupt) -> u8 {
    if interrupt.requested() {
        INTERRUPTED
    } else {
        DONE
    }
}

/// Has the tool stopped by Ctrl-C.
fn until_interrupted(stopper: Stopper) -> Result<Interrupt> {
    let interrupt = Interrupt::install()?;
    let other = interrupt.clone();
    let watch = move || {
        other.wait();
        stopper.stop();
    };
    std::thread::Builder::new()
        .name("interrupt".to_owned())
        .spawn(watch)
        .context("cannot start a thread")?;
    Ok(interrupt)
}

fn bytes(texts: &[String]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.clone().into_bytes()).collect()
}

fn level(text: &str) -> Result<Level, String> {
    Level::parse(text)
        .ok_or_else(|| format!("`{text}` is no level (known: none, node, basic, admin)"))
}
