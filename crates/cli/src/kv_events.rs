//! Options by which a process with a master tells routers of requests what it holds.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Result, bail};
use clap::Args;
use slackwater_node::{KvEventsOptions, KvEventsPlaces};
use slackwater_wire::kv_events::{KvDialect, KvEventFormat};

/// Where and how KV events are told.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "KV events")]
pub(crate) struct KvEventsArguments {
    /// Publish which blocks are stored and removed, for routers of requests: by ZeroMQ, as vLLM and SGLang do. An address of
    /// this machine, as HOST:PORT or tcp://HOST:PORT, where * means every one; only loopback without keys
    #[arg(long, env = "SLACKWATER_KV_EVENTS", hide_env_values = true, value_name = "ADDRESS", num_args = 0..=1,
          require_equals = true, default_missing_value = DEFAULT, value_parser = place)]
    kv_events: Option<SocketAddr>,

    /// Where subscribers ask for events that they have missed [default: nowhere]
    #[arg(long, value_name = "ADDRESS", requires = "kv_events", value_parser = place)]
    kv_events_replay: Option<SocketAddr>,

    /// Tell everybody who reaches these addresses, unencrypted and without a key: for readers that know no keys, on a network
    /// that only trusted ones reach
    #[arg(long, env = "SLACKWATER_KV_EVENTS_OPEN", hide_env_values = true)]
    kv_events_open: bool,

    /// Topic of the messages, such as kv@POD@MODEL for llm-d
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        requires = "kv_events"
    )]
    kv_events_topic: String,

    /// Form of the events: map is of vLLM 0.33 and SGLang 0.5.23, legacy-array of those before, rfc1527 of Mooncake's master
    #[arg(long, value_name = "NAME", requires = "kv_events", value_parser = dialect,
          default_value = KvDialect::Map.name())]
    kv_events_dialect: KvDialect,

    /// Tokens of a block, where readers want to know; 0 says that it is not known
    #[arg(long, value_name = "N", requires = "kv_events", default_value_t = 0)]
    kv_events_block_size: u32,

    /// Data-parallel rank of the engine whose blocks these are
    #[arg(long, value_name = "N", requires = "kv_events")]
    kv_events_dp_rank: Option<u32>,

    /// Who holds the blocks, in rfc1527
    #[arg(long, value_name = "NAME", requires = "kv_events")]
    kv_events_backend: Option<String>,

    /// Model whose blocks these are, in rfc1527
    #[arg(long, value_name = "NAME", requires = "kv_events")]
    kv_events_model: Option<String>,

    /// Whether events name the key of the value, in rfc1527: also where no hash can be read out of the key [default: true]
    #[arg(long, value_name = "BOOL", requires = "kv_events")]
    kv_events_key: Option<bool>,

    /// Whether events have the fields of the form map too, in rfc1527 [default: true]
    #[arg(long, value_name = "BOOL", requires = "kv_events")]
    kv_events_type: Option<bool>,

    /// Events that may wait to be published; beyond them all that wait are dropped: readers see a gap in the numbers, and are
    /// told what is held anew
    #[arg(long, value_name = "N", requires = "kv_events", default_value_t = QUEUE,
          value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    kv_events_queue: u32,

    /// Messages kept for those who have missed them, and 64 MiB of them at most
    #[arg(long, value_name = "N", requires = "kv_events_replay", default_value_t = REPLAY,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    kv_events_replay_messages: u32,
}

const DEFAULT: &str = "127.0.0.1:5557";
const QUEUE: u32 = 65_536;
const REPLAY: u32 = 10_000;

impl KvEventsArguments {
    /// What is to be told; none when nothing is.
    pub(crate) fn options(&self) -> Result<Option<KvEventsOptions>> {
        let Some(listen) = self.kv_events else {
            if self.kv_events_open {
                tracing::warn!(
                    "--kv-events-open (SLACKWATER_KV_EVENTS_OPEN) has no effect: without --kv-events nothing is told"
                );
            }
            return Ok(None);
        };
        let of_rfc = [
            ("backend", self.kv_events_backend.is_some()),
            ("model", self.kv_events_model.is_some()),
            ("key", self.kv_events_key.is_some()),
            ("type", self.kv_events_type.is_some()),
        ];
        if self.kv_events_dialect != KvDialect::Rfc1527
            && let Some((name, _)) = of_rfc.iter().find(|(_, given)| *given)
        {
            bail!("--kv-events-{name} has a meaning with --kv-events-dialect rfc1527 only");
        }
        Ok(Some(KvEventsOptions {
            listen,
            replay: self.kv_events_replay,
            open: self.kv_events_open,
            topic: self.kv_events_topic.clone(),
            format: KvEventFormat {
                dialect: self.kv_events_dialect,
                block_tokens: self.kv_events_block_size,
                dp_rank: self.kv_events_dp_rank,
                backend: self.kv_events_backend.clone().unwrap_or_default(),
                model: self.kv_events_model.clone().unwrap_or_default(),
                with_key: self.kv_events_key.unwrap_or(true),
                with_type: self.kv_events_type.unwrap_or(true),
            },
            queue: self.kv_events_queue as usize,
            replay_messages: self.kv_events_replay_messages as usize,
        }))
    }
}

/// Where events are told, in a line for each place.
pub(crate) fn shown(places: Option<KvEventsPlaces>) -> Vec<String> {
    let Some(KvEventsPlaces { listen, replay }) = places else {
        return Vec::new();
    };
    let replay = replay.map(|replay| format!("replays of KV events at tcp://{replay}"));
    let listen = format!("KV events at tcp://{listen}");
    [Some(listen), replay].into_iter().flatten().collect()
}

/// An address of this machine, in the words of ZeroMQ or ours.
fn place(text: &str) -> Result<SocketAddr, String> {
    let place = text.strip_prefix("tcp://").unwrap_or(text);
    if let Some(port) = place.strip_prefix("*:") {
        let port = port.parse().map_err(|_| wrong(text))?;
        return Ok((IpAddr::V4(Ipv4Addr::UNSPECIFIED), port).into());
    }
    place.parse().map_err(|_| wrong(text))
}

fn wrong(text: &str) -> String {
    format!("`{text}` is not written as 127.0.0.1:5557, tcp://127.0.0.1:5557 or tcp://*:5557")
}

fn dialect(text: &str) -> Result<KvDialect, String> {
    let mut all = KvDialect::ALL.into_iter();
    all.find(|dialect| dialect.name() == text).ok_or_else(|| {
        let names = KvDialect::ALL.map(KvDialect::name).join(", ");
        format!("`{text}` is none of {names}")
    })
}

#[cfg(test)]
mod tests {
    use clap::{FromArgMatches, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        events: KvEventsArguments,
    }

    fn options(words: &[&str]) -> Result<Option<KvEventsOptions>, String> {
        // What is in the environment of the test is no part of it.
        let words = [&["x"], words].concat();
        let command = <Command as clap::CommandFactory>::command();
        let command = command.mut_args(|arg| arg.env(None::<&str>));
        let matches = command.try_get_matches_from(words);
        let command = matches.and_then(|it| Command::from_arg_matches(&it));
        let command = command.map_err(|error| error.to_string())?;
        command.events.options().map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_said_is_as_the_server_has_it() {
        assert!(options(&[]).unwrap().is_none());
        let told = format!("{:?}", options(&["--kv-events"]).unwrap().unwrap());
        assert_eq!(told, format!("{:?}", KvEventsOptions::default()));
    }

    #[test]
    fn addresses_are_written_as_zeromq_or_we_do() {
        let check = |text: &str, expected: &str| {
            let told = options(&[&format!("--kv-events={text}")]).unwrap().unwrap();
            assert_eq!(told.listen.to_string(), expected);
        };
        check("127.0.0.1:7", "127.0.0.1:7");
        check("tcp://10.0.0.1:5557", "10.0.0.1:5557");
        check("tcp://*:5558", "0.0.0.0:5558");
        check("[::1]:1", "[::1]:1");
        for wrong in ["localhost", "tcp://*:x", "ipc://a", "5557"] {
            let error = options(&[&format!("--kv-events={wrong}")]).unwrap_err();
            assert!(error.contains("is not written as"), "{error}");
        }
    }

    #[test]
    fn options_without_effect_are_refused() {
        let check = |words: &[&str], part: &str| {
            let error = options(words).unwrap_err();
            assert!(error.contains(part), "{words:?}: {error}");
        };
        check(&["--kv-events-topic=t"], "--kv-events");
        check(
            &["--kv-events", "--kv-events-replay-messages=5"],
            "--kv-events-replay",
        );
        check(
            &["--kv-events", "--kv-events-dialect=rfc"],
            "is none of map",
        );
        for word in ["backend=b", "model=m", "key=false", "type=false"] {
            let word = format!("--kv-events-{word}");
            check(&["--kv-events", &word], "rfc1527 only");
            let words = ["--kv-events", "--kv-events-dialect=rfc1527", &word];
            assert!(options(&words).is_ok(), "{word}");
        }
    }
}
