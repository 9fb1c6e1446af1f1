use std::sync::Arc;

use crate::engine::{Engine, EngineError};
use crate::home::Home;
use crate::local::Local;
use crate::mover::Mover;
use crate::segment::Segment;
use crate::tcp::{OptionError, Tcp, TcpConfig};

/// What an engine is started with.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The name of its segment.
    pub name: String,
    /// The TCP mover.
    pub tcp: TcpConfig,
    /// Nothing but TCP, not even within the process.
    pub force_tcp: bool,
}

impl EngineConfig {
    /// The defaults under a name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), tcp: TcpConfig::default(), force_tcp: false }
    }

    /// The defaults under a name, with what an environment sets. `MC_FORCE_TCP` counts by its presence, whatever its
    /// value: so other engines read it.
    ///
    /// # Errors
    /// All values that are none.
    pub fn from_env(name: &str, vars: impl IntoIterator<Item = (String, String)>) -> Result<Self, Vec<OptionError>> {
        let vars: Vec<(String, String)> = vars.into_iter().collect();
        let force_tcp = vars.iter().any(|(name, _)| name == "MC_FORCE_TCP" || name == "SLACKWATER_FORCE_TCP");
        Ok(Self { name: name.to_owned(), tcp: TcpConfig::from_env(vars)?, force_tcp })
    }
}

impl Engine {
    /// Starts an engine with its movers: within the process by `memcpy`, beyond it by TCP.
    ///
    /// # Errors
    /// The configuration is wrong, or the operating system gives no randomness, thread or port.
    pub fn start(config: EngineConfig) -> Result<Self, EngineError> {
        let life = Home::open().map_err(|error| EngineError::System(error.to_string()))?;
        let tcp = Tcp::start(&life, config.tcp)?;
        let segment = Segment {
            name: config.name,
            incarnation: life.incarnation(),
            addresses: tcp.addresses().to_vec(),
            public_key: None,
            host: None,
        };
        let mut movers: Vec<Arc<dyn Mover>> = Vec::new();
        if !config.force_tcp {
            movers.push(Arc::new(Local::new(&life)));
        }
        movers.push(Arc::new(tcp));
        Ok(Self::assemble(life, segment, movers))
    }
}
