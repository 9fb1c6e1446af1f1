use std::io::{Read, Write};
use std::time::Duration;

use slackwater_base::ByteSize;
use slackwater_node::Config;
use slackwater_node::serve::{ServeOptions, Server};

use super::ServedError;

/// Serves a store of this much memory until standard input ends.
pub(super) fn run(memory: u64) -> Result<(), ServedError> {
    let config = Config {
        memory: ByteSize(memory),
        ssd: ByteSize(0),
        ..Config::default()
    };
    let options = ServeOptions {
        listen: ([127, 0, 0, 1], 0).into(),
        ..ServeOptions::default()
    };
    let server = Server::start(config, &options)?;
    let mut out = std::io::stdout();
    let said = writeln!(out, "serving tcp://{}", server.address()).and_then(|()| out.flush());
    said.map_err(|error| ServedError::Call(error.to_string()))?;
    // The run has ended, or the process that measures: either closes the pipe.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let closed = server.close(Duration::from_secs(1));
    closed.map_err(|error| ServedError::Call(error.to_string()))
}
