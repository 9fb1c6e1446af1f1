//! Starts an engine with every mover that its process has.

use std::sync::Arc;

use slackwater_engine::{Engine, Home, HomeGuard, Local, Mover, SealConfig, Segment};
use slackwater_same_host::{HostLimits, HostMover};
use slackwater_stage::StagedMover;
use slackwater_tcp::{OptionError, Tcp, TcpConfig, TcpError};
use thiserror::Error;

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

/// Why an engine could not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The operating system gives no randomness.
    #[error("{0}")]
    System(String),
    /// The TCP mover could not start.
    #[error(transparent)]
    Tcp(#[from] TcpError),
}

impl EngineConfig {
    /// The defaults under a name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            tcp: TcpConfig::default(),
            force_tcp: false,
        }
    }

    /// The defaults under a name, changed by an environment. `MC_FORCE_TCP` counts by its presence, whatever its value,
    /// as in other engines.
    ///
    /// # Errors
    /// All values that are invalid.
    pub fn from_env(
        name: &str,
        vars: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, Vec<OptionError>> {
        let vars: Vec<(String, String)> = vars.into_iter().collect();
        let force_tcp = vars
            .iter()
            .any(|(name, _)| name == "MC_FORCE_TCP" || name == "SLACKWATER_FORCE_TCP");
        Ok(Self {
            name: name.to_owned(),
            tcp: TcpConfig::from_env(vars)?,
            force_tcp,
        })
    }

    /// Starts an engine with its movers: within the process by `memcpy`, within the host by shared memory or attach, beyond
    /// it by TCP; requests on device memory go over the one of the last two that reaches their peer. With keys all other
    /// processes have to prove one of the list, and those of the host go by TCP whose keys may not map memory.
    ///
    /// # Errors
    /// The configuration is wrong, or the operating system gives no randomness, thread or port.
    pub fn start(self) -> Result<Engine, StartError> {
        let life = Home::open().map_err(|error| StartError::System(error.to_string()))?;
        let seal = self.tcp.seal.clone();
        let key = seal.as_ref().map(|seal| seal.keys.public());
        let tcp = Arc::new(Tcp::start(&life, self.tcp)?);
        let host = match self.force_tcp {
            true => None,
            false => host_mover(&life, seal, &tcp),
        };
        let segment = Segment {
            name: self.name,
            incarnation: life.incarnation(),
            addresses: tcp.addresses().to_vec(),
            public_key: key.map(|key| *key.as_bytes()),
            host: host.as_ref().map(|host| host.contact()),
        };
        let mut movers: Vec<Arc<dyn Mover>> = Vec::new();
        if !self.force_tcp {
            let own = key.map_or_else(|| Local::new(&life), |key| Local::with_key(&life, &key));
            movers.push(Arc::new(own));
        }
        let mut wires: Vec<Arc<dyn Mover>> = host
            .into_iter()
            .map(|host| host as Arc<dyn Mover>)
            .collect();
        wires.push(tcp);
        movers.extend(wires.iter().map(Arc::clone));
        movers.push(Arc::new(StagedMover::over(wires)));
        Ok(Engine::assemble(life, segment, movers))
    }
}

/// The mover within the host; the engine works without it.
fn host_mover(
    life: &HomeGuard,
    seal: Option<SealConfig>,
    tcp: &Arc<Tcp>,
) -> Option<Arc<HostMover>> {
    let fallback = Arc::clone(tcp) as Arc<dyn Mover>;
    match HostMover::with_keys(life, HostLimits::default(), seal, Some(fallback)) {
        Ok(host) => Some(Arc::new(host)),
        Err(error) => {
            tracing::warn!(%error, "processes of this host are reached by TCP");
            None
        }
    }
}
