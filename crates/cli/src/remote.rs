//! `slackwater put`, `get`, `ls`, `stat` and `rm`: one call of a served store each.

use std::ffi::OsString;
use std::io::{IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use slackwater_base::{ByteSize, format_duration};
use slackwater_mq::Address;
use slackwater_remote::{
    CallOptions, Client, ConnectOptions, GetOptions, PutOptions, RemoveOptions, Stored,
};
use slackwater_wire::{
    Described, Description, Durability, ErrorCode, Key, List, Pin, PutMode, ReplicaAt,
    ReplicaState, Tenant,
};

use crate::answer::{self, say};
use crate::traces::CallTraceArguments;
use crate::{DONE, WRONG};

/// Which server, and how.
#[derive(Clone, Debug, Args)]
pub(crate) struct Connection {
    /// Where the server is; with its public key (curve://HOST:PORT/KEY) everything is encrypted
    #[arg(
        long,
        env = "SLACKWATER_CONNECT",
        hide_env_values = true,
        value_name = "ADDRESS",
        default_value = "tcp://127.0.0.1:50051"
    )]
    connect: Address,

    /// Our secret key, for a server that has one
    #[arg(
        long,
        env = "SLACKWATER_KEY_FILE",
        hide_env_values = true,
        value_name = "FILE"
    )]
    key_file: Option<PathBuf>,

    /// How long the call may take
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = slackwater_base::parse_duration)]
    timeout: Duration,

    /// Tenant of the keys [default: the default tenant]
    #[arg(long, default_value = "", value_name = "TENANT")]
    tenant: String,

    /// Print one JSON object on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// See the command.
#[derive(Clone, Debug, Args)]
pub(crate) struct Put {
    /// Key of the value
    key: OsString,

    /// File with the value; `-` reads standard input
    value: PathBuf,

    /// Replace a value that is there
    #[arg(long)]
    upsert: bool,

    /// Return only when the value is durable on SSD
    #[arg(long)]
    durable: bool,

    /// Copies in memory, on different nodes; fewer nodes give fewer copies
    #[arg(long, value_name = "N", default_value_t = 1)]
    replicas: u32,

    /// Return only when each of the copies is in memory of another host; refused where there are fewer hosts
    #[arg(long, conflicts_with = "durable")]
    replicated: bool,

    /// Never evict it
    #[arg(long)]
    pin: bool,

    #[command(flatten)]
    connection: Connection,

    #[command(flatten)]
    trace: CallTraceArguments,
}

/// See the command.
#[derive(Clone, Debug, Args)]
pub(crate) struct Get {
    /// Key of the value
    key: OsString,

    /// Write the value to this file instead
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    #[command(flatten)]
    connection: Connection,

    #[command(flatten)]
    trace: CallTraceArguments,
}

/// See the command.
#[derive(Clone, Debug, Args)]
pub(crate) struct Ls {
    /// Only keys in which this regular expression is found
    pattern: Option<String>,

    /// Stop after so many keys
    #[arg(long, value_name = "N")]
    limit: Option<usize>,

    #[command(flatten)]
    connection: Connection,
}

/// See the command.
#[derive(Clone, Debug, Args)]
pub(crate) struct Stat {
    /// Key of the value
    key: OsString,

    #[command(flatten)]
    connection: Connection,
}

/// See the command.
#[derive(Clone, Debug, Args)]
pub(crate) struct Rm {
    /// Keys of the values
    #[arg(required = true)]
    keys: Vec<OsString>,

    /// Also those that readers hold leases on
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    connection: Connection,
}

impl Connection {
    pub(crate) fn open(&self) -> Result<(Client, CallOptions)> {
        let call = CallOptions {
            tenant: Tenant::new(&self.tenant).context("the tenant has no such name")?,
            ..CallOptions::default()
        };
        let client = Client::connect(&ConnectOptions {
            address: self.connect.clone(),
            key_file: self.key_file.clone(),
            deadline: self.timeout,
            connect_timeout: self.timeout.min(ConnectOptions::default().connect_timeout),
            ..ConnectOptions::default()
        })?;
        Ok((client, call))
    }
}

pub(crate) fn put(arguments: &Put) -> Result<u8> {
    let value = read(&arguments.value)?;
    let (client, call) = arguments.connection.open()?;
    let choose = |chosen, one, other| if chosen { one } else { other };
    let options = PutOptions {
        call,
        mode: choose(arguments.upsert, PutMode::Upsert, PutMode::Create),
        pin: if arguments.pin { Pin::Hard } else { Pin::None },
        replicas: arguments.replicas,
        durability: match (arguments.durable, arguments.replicated) {
            (true, _) => Durability::Disk,
            (_, true) => Durability::Replicated,
            _ => Durability::Memory,
        },
        ..PutOptions::default()
    };
    let key = arguments.key.as_bytes();
    let stored = arguments
        .trace
        .during(|| Ok(client.put(key, &value, &options)?))?;
    let shown = arguments.key.display();
    if arguments.connection.json {
        let stored = stored == Stored::New;
        let key = shown.to_string();
        say(serde_json::json!({ "key": key, "bytes": value.len(), "stored": stored }))?;
    } else if stored == Stored::Existed {
        note(&format!(
            "{shown} is there already and stays as it is; --upsert replaces it"
        ));
    }
    Ok(DONE)
}

pub(crate) fn get(arguments: &Get) -> Result<u8> {
    let (client, call) = arguments.connection.open()?;
    if arguments.connection.json && arguments.output.is_none() {
        bail!("standard output is for the value: with --json name a file for it with --output");
    }
    let options = GetOptions {
        call,
        ..GetOptions::default()
    };
    let shown = arguments.key.display();
    let get = || Ok(client.get(arguments.key.as_bytes(), &options)?);
    let Some(value) = arguments.trace.during(get)? else {
        bail!("there is no object with the key {shown}")
    };
    match &arguments.output {
        None => answer::write(&value)?,
        Some(path) => std::fs::write(path, &value).with_context(|| path.display().to_string())?,
    }
    if arguments.connection.json {
        say(serde_json::json!({ "key": shown.to_string(), "bytes": value.len() }))?;
    }
    Ok(DONE)
}

pub(crate) fn ls(arguments: &Ls) -> Result<u8> {
    let (client, call) = arguments.connection.open()?;
    let limit = arguments.limit.unwrap_or(usize::MAX);
    let (mut after, mut count) = (None, 0);
    let mut keys = Vec::new();
    let mut more = true;
    while more && count < limit {
        let list = List {
            tenant: call.tenant.clone(),
            pattern: arguments.pattern.clone(),
            after: after.clone(),
            limit: u32::try_from(limit - count).unwrap_or(u32::MAX),
        };
        let page = client.list(list, &call)?;
        // A page without a key would be asked for again for ever.
        more = page.more && !page.keys.is_empty();
        after = page.keys.last().cloned();
        count += page.keys.len();
        if arguments.connection.json {
            keys.extend(page.keys.iter().map(Key::line));
        } else {
            lines(&page.keys)?;
        }
    }
    if arguments.connection.json {
        say(serde_json::json!({ "keys": keys, "more": more }))?;
    }
    Ok(DONE)
}

pub(crate) fn stat(arguments: &Stat) -> Result<u8> {
    let (client, call) = arguments.connection.open()?;
    let shown = arguments.key.display();
    let Some(found) = client.stat(arguments.key.as_bytes(), &call)? else {
        bail!("there is no object with the key {shown}")
    };
    if arguments.connection.json {
        say(serde_json::json!(Described::from(&found)))?;
    } else {
        say(sentence(&found))?;
    }
    Ok(DONE)
}

pub(crate) fn rm(arguments: &Rm) -> Result<u8> {
    let (client, call) = arguments.connection.open()?;
    let options = RemoveOptions {
        call,
        force: arguments.force,
    };
    let keys: Vec<&[u8]> = arguments.keys.iter().map(|key| key.as_bytes()).collect();
    let results = client.remove(&keys, &options);
    let removed = results.iter().filter(|result| result.is_ok()).count();
    let failed: Vec<String> = results
        .iter()
        .filter_map(|result| result.as_ref().err())
        .map(|error| match error.code() {
            ErrorCode::ObjectHasLease => format!("{error}; --force removes it all the same"),
            _ => error.to_string(),
        })
        .collect();
    if arguments.connection.json {
        say(serde_json::json!({ "removed": removed, "failed": failed }))?;
    } else {
        failed.iter().for_each(|error| note(error));
    }
    Ok(if failed.is_empty() { DONE } else { WRONG })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    if path != Path::new("-") {
        return std::fs::read(path).with_context(|| path.display().to_string());
    }
    let mut value = Vec::new();
    let mut input = std::io::stdin().lock();
    if input.is_terminal() {
        note("reading the value from standard input; Ctrl-D ends it");
    }
    input.read_to_end(&mut value).context("standard input")?;
    Ok(value)
}

fn sentence(found: &Description) -> String {
    let replica = |(place, (at, state, _)): (usize, &(ReplicaAt, ReplicaState, u32))| {
        let tier = at.kind().tier();
        let tier = match found.names.get(place) {
            // A store that is served has one memory and one SSD, called by their tiers.
            Some(name) if name != tier => format!("{tier} of {name}"),
            _ => tier.to_owned(),
        };
        match state {
            ReplicaState::Complete => tier,
            other => format!("{tier} ({})", other.name()),
        }
    };
    let replicas = found.replicas.iter().enumerate().map(replica);
    let replicas: Vec<String> = replicas.collect();
    let mut text = format!(
        "{}\n  {} bytes ({}) in {}\n  version {}, checksum {:016x}, pin {}",
        found.key,
        found.bytes,
        ByteSize(found.bytes),
        replicas.join(" and "),
        found.version,
        found.checksum.0,
        found.pin.name(),
    );
    if !found.lease.is_zero() {
        text += &format!(
            "\n  readers hold it for {} more",
            format_duration(found.lease)
        );
    }
    text
}

fn lines(keys: &[Key]) -> Result<()> {
    // A program gets the bytes of keys; on a terminal they are only shown.
    let terminal = std::io::stdout().is_terminal();
    let mut text = Vec::new();
    for key in keys {
        match terminal {
            true => text.extend_from_slice(key.line().as_bytes()),
            false => text.extend_from_slice(key.as_bytes()),
        }
        text.push(b'\n');
    }
    answer::write(&text)
}

#[expect(clippy::print_stderr, reason = "a word to the user beside the answer")]
pub(crate) fn note(words: &str) {
    eprintln!("slackwater: {words}");
}
