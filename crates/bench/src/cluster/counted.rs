//! A master and a node that tell what they count whenever they are asked.

use std::sync::mpsc::channel;

use slackwater_base::ByteSize;
use slackwater_node::pool::{MasterOptions, MasterServer, NodeOptions, NodeServer};
use slackwater_node::{Config, Operated};

use super::{ClusterError, failed};
use crate::process::{Process, ProcessError, orders, tell};
use crate::promotion::THRESHOLD;

/// What a master has counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfMaster {
    /// Promotions that ended with the value in memory.
    pub(crate) promoted: u64,
    pub(crate) promoted_bytes: u64,
}

/// What a node has counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfNode {
    /// Records read from SSD for a reader.
    pub(crate) ssd_reads: u64,
    /// Records read from SSD to be promoted.
    pub(crate) promotion_reads: u64,
    /// Bytes read from SSD, for whatever.
    pub(crate) read_bytes: u64,
}

impl OfMaster {
    pub(crate) fn ask(master: &mut Process) -> Result<Self, ProcessError> {
        master.say("count")?;
        let [promoted, promoted_bytes] = master.numbers("counted")?.map(|it| it as u64);
        Ok(Self {
            promoted,
            promoted_bytes,
        })
    }
}

impl OfNode {
    pub(crate) fn ask(node: &mut Process) -> Result<Self, ProcessError> {
        node.say("count")?;
        let [ssd_reads, promotion_reads, read_bytes] = node.numbers("counted")?.map(|it| it as u64);
        Ok(Self {
            ssd_reads,
            promotion_reads,
            read_bytes,
        })
    }
}

/// The master's part; it ends with its input.
pub(super) fn master() -> Result<(), ClusterError> {
    let config = Config {
        promotion_threshold: THRESHOLD,
        ..Config::default()
    };
    let options = MasterOptions {
        listen: ([127, 0, 0, 1], 0).into(),
        ..MasterOptions::default()
    };
    let server = MasterServer::start(&config, &options).map_err(failed)?;
    let operated = server.operated();
    tell(&format!("serving at tcp://{}", server.address()))?;
    for order in orders() {
        if order != ["count"] {
            return Err(ClusterError::Arguments(order));
        }
        let promotions = operated.stats().promotions;
        let (promoted, bytes) = (promotions.completed, promotions.completed_bytes);
        tell(&format!("counted {promoted} {bytes}"))?;
    }
    Ok(())
}

/// A node's part; without SSD it lends memory alone. It ends with its input, or closed when it is told to.
pub(super) fn node(
    master: &str,
    memory: &str,
    ssd: &str,
    directory: &str,
) -> Result<(), ClusterError> {
    let bytes = |text: &str| text.parse().map(ByteSize).map_err(failed);
    let config = Config {
        memory: bytes(memory)?,
        ssd: bytes(ssd)?,
        dir: Some(directory.into()),
        ..Config::default()
    };
    let options = NodeOptions {
        master: master
            .parse()
            .map_err(|_| failed(format!("`{master}` is no address")))?,
        ..NodeOptions::default()
    };
    let (told, taken) = channel();
    let joined = move |_, taken| {
        // Nobody asks again once it has joined.
        let _ = told.send(taken);
    };
    let server = NodeServer::start(config, options, joined).map_err(failed)?;
    taken.recv().map_err(failed)?.map_err(failed)?;
    let gone = || failed("the node has begun a new life");
    let io = server.stats().ok_or_else(gone)?.io.chosen;
    tell(&format!("lends {io}"))?;
    for order in orders() {
        match order.first().map(String::as_str) {
            Some("count") => {
                let stats = server.stats().ok_or_else(gone)?;
                let read_bytes = stats.ssd.map_or(0, |ssd| ssd.read_bytes);
                let (reads, promotion_reads) = (stats.ssd_reads, stats.promotion_reads);
                tell(&format!("counted {reads} {promotion_reads} {read_bytes}"))?;
            }
            Some("close") => {
                server.close().map_err(failed)?;
                return Ok(tell("closed")?);
            }
            _ => return Err(ClusterError::Arguments(order)),
        }
    }
    Ok(())
}
