//! Log lines: the libraries write them through `tracing`, a binary sets up where they go.

use tracing_subscriber::EnvFilter;

use crate::config::{Config, LogFormat};

/// Sets up the process's log lines as `config` says, to standard error. For binaries, once, at start.
///
/// # Errors
/// When `log` is no filter, or a subscriber is set up already.
pub fn init(config: &Config) -> Result<(), String> {
    let filter = EnvFilter::try_new(&config.log)
        .map_err(|error| format!("log = `{}`: {error}", config.log))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let done = match config.log_format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    done.map_err(|error| error.to_string())
}
