//! Log lines: the libraries write them through `tracing`, a binary sets up where they go.

use std::io::IsTerminal;

use tracing::Dispatch;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::{Config, LogFormat};

/// Sets up the process's log lines as `config` says, to standard error: in colours where that is a terminal, unless `NO_COLOR` is
/// set. For binaries, once, at start.
///
/// # Errors
/// When `log` is no filter, or a subscriber is set up already.
pub fn init(config: &Config) -> Result<(), String> {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colours = std::io::stderr().is_terminal() && !plain;
    let dispatch = dispatch(config, std::io::stderr, colours)?;
    tracing::dispatcher::set_global_default(dispatch).map_err(|error| error.to_string())
}

/// What writes log lines as `config` says to the writers that `out` makes.
pub(crate) fn dispatch<W>(config: &Config, out: W, colours: bool) -> Result<Dispatch, String>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let text = config.log.as_str();
    let filter = EnvFilter::try_new(text).map_err(|error| format!("log = `{text}`: {error}"))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours)
        .with_writer(out);
    Ok(match config.log_format {
        LogFormat::Text => Dispatch::new(builder.finish()),
        LogFormat::Json => Dispatch::new(builder.json().finish()),
    })
}

/// What this thread logs in `act`.
#[cfg(test)]
pub(crate) fn logged(config: &Config, act: impl FnOnce()) -> String {
    let (sent, lines) = std::sync::mpsc::channel();
    let dispatch = dispatch(config, move || Line(sent.clone()), false).expect("the filter is one");
    tracing::dispatcher::with_default(&dispatch, act);
    lines.try_iter().collect()
}

/// Passes on what is logged.
#[cfg(test)]
struct Line(std::sync::mpsc::Sender<String>);

#[cfg(test)]
impl std::io::Write for Line {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let _ = self.0.send(String::from_utf8_lossy(bytes).into_owned());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
