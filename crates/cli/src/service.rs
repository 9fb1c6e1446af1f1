//! What the processes that serve have in common: their keys, their signals, their end.

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use anyhow::Result;
use clap::Args;
use slackwater_admin::Admin;
use slackwater_mq::{Address, AllowListError};
use slackwater_node::serve::ServeKeys;
use slackwater_node::{Config, logging};

use crate::config::Layers;
use crate::interrupt::Interrupt;
use crate::{DONE, INTERRUPTED};

/// The files with keys.
#[derive(Clone, Debug, Args)]
pub(crate) struct KeyFiles {
    /// Our secret key, as `slackwater keys new` makes it; with one, everything is encrypted. Needed for any address that
    /// is not loopback
    #[arg(
        long,
        env = "SLACKWATER_KEY_FILE",
        hide_env_values = true,
        value_name = "FILE",
        requires = "allow"
    )]
    key_file: Option<PathBuf>,

    /// The keys that may connect, as `slackwater keys allow` enters them
    #[arg(
        long,
        env = "SLACKWATER_ALLOW",
        hide_env_values = true,
        value_name = "FILE",
        requires = "key_file"
    )]
    allow: Option<PathBuf>,
}

impl KeyFiles {
    pub(crate) fn files(&self) -> Option<ServeKeys> {
        let keys = self.key_file.clone().zip(self.allow.clone());
        keys.map(|(key_file, allowed)| ServeKeys { key_file, allowed })
    }
}

/// Reads the allow-list again, once there is one.
pub(crate) type Reloader = Arc<OnceLock<Reload>>;
type Reload = Box<dyn Fn() -> Result<(), AllowListError> + Send + Sync>;

/// What every service does first: its configuration, its log and its signals.
pub(crate) fn prepare(layers: &Layers) -> Result<(Config, Reloader, Interrupt)> {
    let mut config = layers.load()?;
    config
        .default_to("log", "info")
        .map_err(anyhow::Error::msg)?;
    logging::init(&config).map_err(anyhow::Error::msg)?;
    let reloader = Reloader::default();
    let at_hangup = Arc::clone(&reloader);
    let interrupt = Interrupt::install_for_service(move || {
        match at_hangup.get().map(|reload| reload()) {
            // There is no list yet.
            None => {}
            Some(Ok(())) => tracing::info!("the allow-list was read again"),
            Some(Err(error)) => tracing::error!(%error, "the old allow-list stays in force"),
        }
    })?;
    Ok((config, reloader, interrupt))
}

/// Says where requests come in.
pub(crate) fn announce(address: &Address, admin: Option<&Admin>) {
    // The process that started this one may have closed its output.
    let mut out = std::io::stdout();
    let _ = writeln!(out, "serving at {address}");
    if let Some(admin) = admin {
        let _ = writeln!(out, "admin at http://{}", admin.address());
    }
}

/// The exit code after an interrupt.
pub(crate) fn code(interrupt: &Interrupt) -> u8 {
    if interrupt.is_termination() {
        DONE
    } else {
        INTERRUPTED
    }
}
