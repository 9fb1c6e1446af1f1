//! The options of the TCP mover: each declared once, with the names that it is known by.

use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use slackwater_base::{ByteSize, parse_duration};
use slackwater_engine::SealConfig;
use slackwater_keys::{AllowList, load_key};
use slackwater_net::{LocalPorts, NoPorts};
use thiserror::Error;

use super::config::TcpConfig;

/// One option.
#[derive(Debug)]
pub struct TcpOption {
    /// Its key within the section `transfer.tcp`.
    pub key: &'static str,
    /// Environment variables that set it, the preferred one first.
    pub env: &'static [&'static str],
    set: fn(&mut TcpConfig, &str) -> Result<(), String>,
}

/// An option has an invalid value.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{name}: {reason}")]
pub struct OptionError {
    /// The key, or the environment variable.
    pub name: String,
    /// What makes the value invalid.
    pub reason: String,
}

/// Variables of other engines that have no meaning here: they are accepted, and named once in the log.
pub const IGNORED: &[&str] = &[
    "MC_TCP_ENABLE_CONNECTION_POOL",
    "MC_TCP_PROTO",
    "MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER",
];

/// Names the variables of other engines that are set, once in a process.
fn tell_ignored(vars: &[(String, String)]) {
    static TOLD: Once = Once::new();
    let is_set = |name: &&str| vars.iter().any(|(known, _)| known == name);
    let ignored: Vec<&str> = IGNORED.iter().copied().filter(is_set).collect();
    if !ignored.is_empty() {
        TOLD.call_once(|| {
            let ignored = ignored.join(", ");
            tracing::warn!(%ignored, "variables of other transfer engines are set, and have no meaning here");
        });
    }
}

macro_rules! options {
    ($($key:ident [$($env:literal),*] $parse:expr;)* $(=> $name:ident [$seal_env:literal] $set:path;)*) => {
        /// Every option of the TCP mover.
        pub const OPTIONS: &[TcpOption] = &[$(TcpOption {
            key: stringify!($key),
            env: &[$($env),*],
            set: |config, text| {
                config.$key = $parse(text)?;
                Ok(())
            },
        },)* $(TcpOption { key: stringify!($name), env: &[$seal_env], set: $set },)*];
    };
}

options! {
    io_threads ["SLACKWATER_TCP_IO_THREADS", "MC_NUM_TCP_IO_THREADS"] number;
    max_transfers ["SLACKWATER_TCP_MAX_TRANSFERS", "MC_TCP_MAX_CONNECTIONS"] number;
    lanes_per_peer ["SLACKWATER_TCP_LANES_PER_PEER", "MC_TCP_LANES_PER_PEER", "MC_TCP_MAX_CONNECTIONS_PER_PEER"] number;
    slice_bytes ["SLACKWATER_TCP_SLICE_BYTES", "MC_TCP_SLICE_SIZE"] slice;
    stripe_bytes_min ["SLACKWATER_TCP_STRIPE_BYTES_MIN"] bytes;
    connect_timeout ["SLACKWATER_TCP_CONNECT_TIMEOUT"] duration;
    idle_timeout ["SLACKWATER_TCP_IDLE_TIMEOUT"] duration;
    served_idle_timeout ["SLACKWATER_TCP_SERVED_IDLE_TIMEOUT"] duration;
    gc_interval ["SLACKWATER_TCP_GC_INTERVAL"] duration;
    progress_timeout ["SLACKWATER_TCP_PROGRESS_TIMEOUT", "MC_TCP_PROGRESS_TIMEOUT_SEC"] seconds;
    ack_timeout ["SLACKWATER_TCP_ACK_TIMEOUT", "MC_TCP_STATUS_TIMEOUT_SEC"] seconds;
    drain_timeout ["SLACKWATER_TCP_DRAIN_TIMEOUT"] duration;
    address_rest ["SLACKWATER_TCP_ADDRESS_REST"] duration;
    crowd_patience ["SLACKWATER_TCP_CROWD_PATIENCE"] duration;
    queue_bytes ["SLACKWATER_TCP_QUEUE_BYTES"] bytes;
    queue_entries ["SLACKWATER_TCP_QUEUE_ENTRIES", "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER"] number;
    socket_buffer_bytes ["SLACKWATER_TCP_SOCKET_BUFFER_BYTES"] size;
    loopback_buffer_bytes ["SLACKWATER_TCP_LOOPBACK_BUFFER_BYTES"] size;
    connections_max ["SLACKWATER_TCP_CONNECTIONS_MAX"] number;
    connections_per_peer_max ["SLACKWATER_TCP_CONNECTIONS_PER_PEER_MAX"] number;
    in_flight_bytes_max ["SLACKWATER_TCP_IN_FLIGHT_BYTES_MAX"] bytes;
    bind ["SLACKWATER_TCP_BIND", "MC_TCP_BIND_ADDRESS"] addresses;
    advertise ["SLACKWATER_TCP_ADVERTISE"] addresses;
    local ["SLACKWATER_TCP_LOCAL"] hosts;
    topology ["SLACKWATER_TCP_TOPOLOGY"] file;
    local_ports ["SLACKWATER_TCP_LOCAL_PORTS"] ports;
    insecure ["SLACKWATER_TCP_INSECURE"] flag;
    => seal_key ["SLACKWATER_TCP_SEAL_KEY"] set_key;
    => seal_clients ["SLACKWATER_TCP_SEAL_CLIENTS"] set_clients;
}

impl TcpConfig {
    /// Sets an option by its key or by one of its environment variables; says whether there is one of that name.
    ///
    /// # Errors
    /// The value is not valid for the option.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, OptionError> {
        let Some(option) = OPTIONS
            .iter()
            .find(|option| option.key == name || option.env.contains(&name))
        else {
            return Ok(IGNORED.contains(&name));
        };
        match (option.set)(self, value.trim()) {
            Ok(()) => Ok(true),
            Err(reason) => Err(OptionError {
                name: name.to_owned(),
                reason,
            }),
        }
    }

    /// The defaults, with what an environment sets.
    ///
    /// # Errors
    /// All values that are invalid.
    pub fn from_env(
        vars: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, Vec<OptionError>> {
        let (mut config, mut errors) = (Self::default(), Vec::new());
        let vars: Vec<(String, String)> = vars.into_iter().collect();
        for option in OPTIONS {
            // The preferred name wins, in whichever order they stand.
            let set = option
                .env
                .iter()
                .find_map(|env| vars.iter().find(|(name, _)| name == env));
            if let Some((name, value)) = set {
                errors.extend(config.set(name, value).err());
            }
        }
        tell_ignored(&vars);
        if errors.is_empty() {
            Ok(config)
        } else {
            Err(errors)
        }
    }
}

fn number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("`{text}` is no count"))
}

fn size(text: &str) -> Result<usize, String> {
    bytes(text).and_then(|bytes| {
        usize::try_from(bytes).map_err(|_| format!("`{text}` is more than an address can hold"))
    })
}

/// Slices below the smallest that peers expect are raised to it: the default of the incumbent is exactly that small.
fn slice(text: &str) -> Result<usize, String> {
    size(text).map(|bytes| bytes.max(slackwater_data_plane::protocol::SLICE_BYTES_MIN))
}

fn bytes(text: &str) -> Result<u64, String> {
    text.parse::<ByteSize>()
        .map(|size| size.0)
        .map_err(|error| error.to_string())
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

/// A duration; a bare number is of seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<u64>() {
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(_) => duration(text),
    }
}

/// A path; an empty text is none.
fn file(text: &str) -> Result<Option<PathBuf>, String> {
    Ok(Some(PathBuf::from(text)).filter(|_| !text.is_empty()))
}

fn flag(text: &str) -> Result<bool, String> {
    match text {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        other => Err(format!("`{other}` is neither true nor false")),
    }
}

/// Addresses with or without a port, separated by commas.
fn addresses(text: &str) -> Result<Vec<std::net::SocketAddr>, String> {
    let one = |text: &str| {
        let address = text.trim();
        address
            .parse()
            .or_else(|_| address.parse::<std::net::IpAddr>().map(|ip| (ip, 0).into()))
            .map_err(|_| format!("`{address}` is no address"))
    };
    text.split(',')
        .filter(|part| !part.trim().is_empty())
        .map(one)
        .collect()
}

/// Addresses without a port, separated by commas.
fn hosts(text: &str) -> Result<Vec<std::net::IpAddr>, String> {
    let one = |host: &str| {
        host.trim()
            .parse()
            .map_err(|_| format!("`{}` is no address of a host", host.trim()))
    };
    text.split(',')
        .filter(|part| !part.trim().is_empty())
        .map(one)
        .collect()
}

/// The first and the last port; nothing for those of the kernel.
fn ports(text: &str) -> Result<Option<LocalPorts>, String> {
    match text.is_empty() {
        true => Ok(None),
        false => text
            .parse()
            .map(Some)
            .map_err(|error: NoPorts| error.to_string()),
    }
}

/// Has the connections sealed under the key in a file.
fn set_key(config: &mut TcpConfig, file: &str) -> Result<(), String> {
    let keys = load_key(Path::new(file)).map_err(|error| error.to_string())?;
    let clients = config
        .seal
        .take()
        .map(|seal| seal.clients)
        .unwrap_or_default();
    config.seal = Some(SealConfig { keys, clients });
    Ok(())
}

/// Lets those connect whose keys are in a file.
fn set_clients(config: &mut TcpConfig, file: &str) -> Result<(), String> {
    let seal = config
        .seal
        .as_mut()
        .ok_or("a list of clients is of use with a seal_key alone")?;
    seal.clients = AllowList::load(Path::new(file)).map_err(|error| error.to_string())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(vars: &[(&str, &str)]) -> Result<TcpConfig, Vec<OptionError>> {
        TcpConfig::from_env(
            vars.iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        )
    }

    #[test]
    fn both_families_of_names_are_read_and_ours_wins() {
        let config = from(&[
            ("MC_NUM_TCP_IO_THREADS", "3"),
            ("MC_TCP_MAX_CONNECTIONS", "7"),
            ("SLACKWATER_TCP_MAX_TRANSFERS", "9"),
            ("MC_TCP_SLICE_SIZE", "4096"),
            ("MC_TCP_PROGRESS_TIMEOUT_SEC", "12"),
            ("SLACKWATER_TCP_ACK_TIMEOUT", "250ms"),
            ("SLACKWATER_TCP_CROWD_PATIENCE", "1ms"),
            ("MC_TCP_BIND_ADDRESS", "127.0.0.1, [::1]:15001"),
            ("MC_TCP_PROTO", "1"),
            ("SLACKWATER_TCP_LOCAL", "10.0.0.1,::2"),
            ("SLACKWATER_TCP_LOCAL_PORTS", "20000-20999"),
        ])
        .unwrap();
        assert_eq!(
            (config.io_threads, config.max_transfers, config.slice_bytes),
            (3, 9, 64 << 10)
        );
        assert_eq!(config.progress_timeout, Duration::from_secs(12));
        assert_eq!(config.ack_timeout, Duration::from_millis(250));
        assert_eq!(config.crowd_patience, Duration::from_millis(1));
        assert_eq!(
            config.local,
            [
                "10.0.0.1".parse::<std::net::IpAddr>().unwrap(),
                "::2".parse().unwrap()
            ]
        );
        let ports = config.local_ports.expect("a range");
        assert_eq!(ports.to_string(), "20000-20999");
        assert_eq!(
            config.bind,
            [
                "127.0.0.1:0".parse().unwrap(),
                "[::1]:15001".parse().unwrap()
            ]
        );
    }

    #[test]
    fn every_wrong_value_is_named() {
        let errors = from(&[
            ("MC_NUM_TCP_IO_THREADS", "many"),
            ("SLACKWATER_TCP_INSECURE", "maybe"),
            ("SLACKWATER_TCP_LOCAL_PORTS", "20000"),
            ("SLACKWATER_TCP_SEAL_CLIENTS", "f"),
        ])
        .unwrap_err();
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let expected = [
            "MC_NUM_TCP_IO_THREADS: `many` is no count",
            "SLACKWATER_TCP_LOCAL_PORTS: `20000` is no range of ports such as 20000-20999",
            "SLACKWATER_TCP_INSECURE: `maybe` is neither true nor false",
            "SLACKWATER_TCP_SEAL_CLIENTS: a list of clients is of use with a seal_key alone",
        ];
        assert_eq!(texts, expected);
        assert_eq!(TcpConfig::default().set("nothing", "1"), Ok(false));
        assert_eq!(TcpConfig::default().set("io_threads", "2"), Ok(true));
    }
}
