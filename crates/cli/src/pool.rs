//! `slackwater master` and `slackwater node`: the processes of a pool on several machines.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use slackwater_base::ByteSize;
use slackwater_mq::Address;
use slackwater_node::config::Role;
use slackwater_node::pool::{MasterOptions, MasterServer, NodeOptions, NodeServer};
use slackwater_wire::{ErrorCode, NodeName};

use crate::admin::AdminArguments;
use crate::config::Layers;
use crate::kv_events::{KvEventsArguments, shown};
use crate::serve::DRAIN;
use crate::service::{KeyFiles, Service, code, reload_of};
use crate::traces::TraceArguments;

/// How a master is served.
#[derive(Clone, Debug, Args)]
pub(crate) struct Master {
    /// Where requests come in
    #[arg(long, env = "SLACKWATER_LISTEN", hide_env_values = true, value_name = "HOST:PORT",
          default_value_t = MasterOptions::default().listen)]
    listen: SocketAddr,

    /// Where the master's journal and the number of its life are kept [default: there is no journal, and lives are told apart by
    /// the clock]
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,

    #[command(flatten)]
    keys: KeyFiles,

    #[command(flatten)]
    admin: AdminArguments,

    #[command(flatten)]
    events: KvEventsArguments,

    #[command(flatten)]
    traces: TraceArguments,
}

/// What a node lends.
#[derive(Clone, Debug, Args)]
pub(crate) struct Node {
    /// Where the master is; with its public key (curve://HOST:PORT/KEY) everything is encrypted
    #[arg(
        long,
        env = "SLACKWATER_MASTER",
        hide_env_values = true,
        value_name = "ADDRESS",
        default_value = "tcp://127.0.0.1:50051"
    )]
    master: Address,

    /// Where bytes come in and leave: an address that clients reach; port 0 takes a free one
    #[arg(long, env = "SLACKWATER_DATA", hide_env_values = true, value_name = "HOST:PORT",
          default_value_t = NodeOptions::default().data)]
    data: SocketAddr,

    /// What its memory is called, for puts and jobs that name it, and its SSD with /ssd after it; nodes of one name are meant
    /// together [default: memory- and ssd- with the number of the node]
    #[arg(
        long,
        env = "SLACKWATER_NAME",
        hide_env_values = true,
        value_name = "NAME"
    )]
    name: Option<NodeName>,

    /// Reach the master by TCP, and have processes of this machine reach the memory so, as if it were another machine's
    #[arg(long)]
    force_tcp: bool,

    #[command(flatten)]
    keys: KeyFiles,

    /// How long values that only this node's memory holds may go to other nodes when it is told to end; 0s ends at once
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = slackwater_base::parse_duration)]
    leave_time: Duration,

    /// Memory for what is read from SSD on behalf of clients; they can read values of up to half of it from there
    #[arg(long, value_name = "SIZE", default_value_t = NodeOptions::default().staging)]
    staging: ByteSize,

    #[command(flatten)]
    traces: TraceArguments,
}

pub(crate) fn master(arguments: &Master, layers: &Layers) -> Result<u8> {
    let (config, service) = Service::prepare(layers, Role::Master)?;
    let _exporter = arguments.traces.start("slackwater-master", 0.0)?;
    let options = MasterOptions {
        listen: arguments.listen,
        directory: arguments.directory.clone(),
        keys: arguments.keys.files(),
        kv_events: arguments.events.options()?,
    };
    let token = arguments.admin.token()?;
    let server = MasterServer::start(&config, &options)?;
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
    server.close(DRAIN);
    Ok(code(&service.interrupt))
}

pub(crate) fn node(arguments: &Node, layers: &Layers) -> Result<u8> {
    let (config, service) = Service::prepare(layers, Role::Node)?;
    let _exporter = arguments.traces.start("slackwater-node", 0.0)?;
    let options = NodeOptions {
        master: arguments.master.clone(),
        data: arguments.data,
        keys: arguments.keys.files(),
        staging: arguments.staging,
        name: arguments.name.clone(),
        file: None,
        force_tcp: arguments.force_tcp,
    };
    let master = arguments.master.clone();
    service
        .notify
        .status(&format!("looking for {}", arguments.master));
    let notify = Arc::clone(&service.notify);
    let told = move |node, taken: Result<(), ErrorCode>| {
        if let Err(code) = taken {
            return notify.status(&format!("{master} refuses this node: {code}"));
        }
        let lends = format!("node {node} lends to {master}");
        // The process that started this one may have closed its output.
        let _ = writeln!(std::io::stdout(), "{lends}");
        notify.status(&lends);
    };
    let server = NodeServer::start(config, options, told)?;
    let reload = reload_of(
        &arguments.keys,
        server.public_key(),
        server.reloader(),
        None,
    );
    service.started(reload);
    service.wait();
    if !arguments.leave_time.is_zero() {
        server.leave(arguments.leave_time);
    }
    server.close().context("the node was not closed cleanly")?;
    Ok(code(&service.interrupt))
}
