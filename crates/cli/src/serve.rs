//! `slackwater serve`: a store for other processes.

use std::fmt;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use slackwater_admin::{Admin, AdminOptions, Token};
use slackwater_base::ByteSize;
use slackwater_mq::Address;
use slackwater_node::serve::{ServeOptions, Server};

use crate::admin::ServedStore;
use crate::config::Layers;
use crate::service::{KeyFiles, code, prepare};

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

    /// Where operators and their tools ask by HTTP for health, metrics, keys, segments and quotas, or `none`
    #[arg(long, env = "SLACKWATER_ADMIN", hide_env_values = true, value_name = "HOST:PORT",
          default_value_t = AdminAddress::default())]
    admin: AdminAddress,

    /// File with the token that callers of --admin must send; needed for any address that is not loopback
    #[arg(
        long,
        env = "SLACKWATER_ADMIN_TOKEN_FILE",
        hide_env_values = true,
        value_name = "FILE"
    )]
    admin_token_file: Option<PathBuf>,

    /// Memory for what is read from SSD on behalf of clients; they can read values of up to half of it from there
    #[arg(long, value_name = "SIZE", default_value_t = ServeOptions::default().staging)]
    staging: ByteSize,
}

/// Where the admin address is, if anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdminAddress {
    None,
    At(SocketAddr),
}

impl Default for AdminAddress {
    fn default() -> Self {
        Self::At(([127, 0, 0, 1], AdminOptions::PORT).into())
    }
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::At(address) => address.fmt(f),
        }
    }
}

impl FromStr for AdminAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            address => match address.parse() {
                Ok(address) => Ok(Self::At(address)),
                Err(_) => Err("write it as 127.0.0.1:9003, or none".to_owned()),
            },
        }
    }
}

/// How long the end may take: requests that have come are answered within it.
pub(crate) const DRAIN: Duration = Duration::from_secs(5);

pub(crate) fn run(arguments: &Serve, layers: &Layers) -> Result<u8> {
    let (config, reloader, interrupt) = prepare(layers)?;
    let options = ServeOptions {
        listen: arguments.listen,
        data: arguments.data,
        keys: arguments.keys.files(),
        staging: arguments.staging,
    };
    let token = arguments.admin_token_file.as_deref().map(Token::load);
    let token = token.transpose()?;
    let server = Server::start(config, &options)?;
    // It is empty until now.
    let _ = reloader.set(Box::new(server.reloader()));
    let address = Address {
        key: server.public_key(),
        ..Address::tcp(server.address())
    };
    let admin = match arguments.admin {
        AdminAddress::None => None,
        AdminAddress::At(listen) => {
            let source = Arc::new(ServedStore::of(&server, address.to_string()));
            Some(Admin::start(AdminOptions { listen, token }, source)?)
        }
    };
    // The process that started this one may have closed its output.
    let mut out = std::io::stdout();
    let _ = writeln!(out, "serving at {address}");
    if let Some(admin) = &admin {
        let _ = writeln!(out, "admin at http://{}", admin.address());
    }
    interrupt.wait();
    drop(admin);
    server
        .close(DRAIN)
        .context("the store was not closed cleanly")?;
    Ok(code(&interrupt))
}
