//! `slackwater serve`: a store for other processes.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use slackwater_base::ByteSize;
use slackwater_mq::Address;
use slackwater_node::config::Role;
use slackwater_node::serve::{ServeOptions, Server};

use crate::admin::AdminArguments;
use crate::config::Layers;
use crate::kv_events::{KvEventsArguments, shown};
use crate::service::{KeyFiles, Service, code};
use crate::traces::TraceArguments;

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

    #[command(flatten)]
    keys: KeyFiles,

    #[command(flatten)]
    admin: AdminArguments,

    #[command(flatten)]
    events: KvEventsArguments,

    #[command(flatten)]
    traces: TraceArguments,

    /// Memory for what is read from SSD on behalf of clients; they can read values of up to half of it from there
    #[arg(long, value_name = "SIZE", default_value_t = ServeOptions::default().staging)]
    staging: ByteSize,
}

/// How long the end may take: requests that have come are answered within it.
pub(crate) const DRAIN: Duration = Duration::from_secs(5);

pub(crate) fn run(arguments: &Serve, layers: &Layers) -> Result<u8> {
    let (config, service) = Service::prepare(layers, Role::Server)?;
    let _exporter = arguments.traces.start("slackwater-serve", 0.0)?;
    let options = ServeOptions {
        listen: arguments.listen,
        data: arguments.data,
        keys: arguments.keys.files(),
        staging: arguments.staging,
        kv_events: arguments.events.options()?,
    };
    let token = arguments.admin.token()?;
    let server = Server::start(config, &options)?;
    let address = Address {
        key: server.public_key(),
        ..Address::tcp(server.address())
    };
    let operated = server.operated();
    let admin = arguments
        .admin
        .start(token, operated, &address, service.reloader())?;
    service.serve(
        &address,
        &shown(server.kv_events()),
        &arguments.keys,
        server.reloader(),
        &arguments.admin,
        admin,
    );
    server
        .close(DRAIN)
        .context("the store was not closed cleanly")?;
    Ok(code(&service.interrupt))
}
