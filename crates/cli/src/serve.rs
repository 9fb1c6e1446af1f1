//! `slackwater serve`: a store for other processes.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use slackwater_base::ByteSize;
use slackwater_mq::{Address, AllowListError};
use slackwater_node::logging;
use slackwater_node::serve::{ServeKeys, ServeOptions, Server};

use crate::config::Layers;
use crate::interrupt::Interrupt;
use crate::{DONE, INTERRUPTED};

/// How a store is served.
#[derive(Clone, Debug, Args)]
pub(crate) struct Serve {
    /// Where requests come in
    #[arg(long, env = "SLACKWATER_LISTEN", hide_env_values = true, value_name = "HOST:PORT",
          default_value_t = ServeOptions::default().listen)]
    listen: SocketAddr,

    /// Where bytes come in and leave [default: a free port beside --listen]
    #[arg(
        long,
        env = "SLACKWATER_DATA",
        hide_env_values = true,
        value_name = "HOST:PORT"
    )]
    data: Option<SocketAddr>,

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

    /// Memory for what is read from SSD on behalf of clients; they can read values of up to half of it from there
    #[arg(long, value_name = "SIZE", default_value_t = ServeOptions::default().staging)]
    staging: ByteSize,
}

/// Reads the allow-list again.
type Reload = Box<dyn Fn() -> Result<(), AllowListError> + Send + Sync>;

/// How long the end may take: requests that have come are answered within it.
const DRAIN: Duration = Duration::from_secs(5);

pub(crate) fn run(arguments: &Serve, layers: &Layers) -> Result<u8> {
    let mut config = layers.load()?;
    config
        .default_to("log", "info")
        .map_err(anyhow::Error::msg)?;
    logging::init(&config).map_err(anyhow::Error::msg)?;
    let reloader: Arc<OnceLock<Reload>> = Arc::default();
    let at_hangup = Arc::clone(&reloader);
    let interrupt = Interrupt::install_for_service(move || {
        match at_hangup.get().map(|reload| reload()) {
            // There is no list yet.
            None => {}
            Some(Ok(())) => tracing::info!("the allow-list was read again"),
            Some(Err(error)) => tracing::error!(%error, "the old allow-list stays in force"),
        }
    })?;
    let keys = arguments.key_file.clone().zip(arguments.allow.clone());
    let options = ServeOptions {
        listen: arguments.listen,
        data: arguments.data,
        keys: keys.map(|(key_file, allowed)| ServeKeys { key_file, allowed }),
        staging: arguments.staging,
    };
    let server = Server::start(config, &options)?;
    // It is empty until now.
    let _ = reloader.set(Box::new(server.reloader()));
    let address = Address {
        key: server.public_key(),
        ..Address::tcp(server.address())
    };
    // The process that started this one may have closed its output.
    let _ = writeln!(std::io::stdout(), "serving at {address}");
    interrupt.wait();
    server
        .close(DRAIN)
        .context("the store was not closed cleanly")?;
    if interrupt.is_termination() {
        Ok(DONE)
    } else {
        Ok(INTERRUPTED)
    }
}
