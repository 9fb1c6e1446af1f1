//! What a client by address has from its opening to its end.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use slackwater_mq::Address;
use slackwater_node::Config;
use slackwater_node::config::ConfigProblem;
use slackwater_node::pool::{FileMemory, NodeError, NodeOptions, NodeServer};
use slackwater_node::serve::ServeKeys;
use slackwater_remote::{
    CallOptions, Client, ClientError, ConnectError, ConnectOptions, GetOptions, PutOptions,
    RemoveOptions,
};
use slackwater_wire::{ErrorCode, NodeId, NodeName, Tenant};

use super::memory::{Registered, Staging};
use super::plan::RawPlan;
use super::sessions::Sessions;
use crate::cancelling::current;

/// What a call did for one key: a number that is not negative is success.
pub(super) type Outcome = Result<i64, ClientError>;

/// See the module.
pub(super) struct Session {
    pub(super) client: Client,
    tenant: Tenant,
    pub(super) registered: Registered,
    pub(super) staging: Staging,
    pub(super) sessions: Sessions,
    /// Length of the longest value that is put from bytes; 0 refuses calls with bytes.
    pub(super) staging_bytes: usize,
    address: Address,
    nodes: Mutex<Vec<NodeServer>>,
}

/// How a client is opened.
pub(super) struct Opening {
    pub(super) address: Address,
    pub(super) key_file: Option<PathBuf>,
    pub(super) deadline: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) force_tcp: bool,
    pub(super) tenant: Tenant,
    pub(super) staging: usize,
}

/// What this process lends to the pool.
pub(super) struct Loan {
    /// Bytes of memory.
    pub(super) memory: u64,
    /// The file that the memory is a piece of; none for memory of this process.
    pub(super) file: Option<FileMemory>,
    /// Bytes of an SSD and the directory there.
    pub(super) ssd: Option<(u64, PathBuf)>,
    /// Where its bytes come in and leave.
    pub(super) data: Option<std::net::SocketAddr>,
    /// The file of our secret key, and of the keys whose transfers are taken.
    pub(super) keys: Option<(PathBuf, PathBuf)>,
    /// How long the master may take to accept it.
    pub(super) timeout: Duration,
    /// What its memory is called.
    pub(super) name: Option<NodeName>,
}

/// Why nothing can be lent.
pub(super) enum LoanError {
    Config(Vec<ConfigProblem>),
    Node(NodeError),
    /// The master takes nodes, and not this one.
    Refused(ErrorCode),
    /// It did not say in that time.
    Unanswered(Duration),
}

/// What the master said about a node: it belongs to the pool, or why not.
type Answer = Result<(), ErrorCode>;

impl Session {
    pub(super) fn open(opening: Opening) -> Result<Self, ConnectError> {
        let client = Client::connect(&ConnectOptions {
            address: opening.address.clone(),
            key_file: opening.key_file,
            force_tcp: opening.force_tcp,
            connect_timeout: opening.connect_timeout,
            deadline: opening.deadline,
            ..ConnectOptions::default()
        })?;
        Ok(Self {
            client,
            tenant: opening.tenant,
            registered: Registered::default(),
            staging: Staging::default(),
            sessions: Sessions::default(),
            staging_bytes: opening.staging,
            address: opening.address,
            nodes: Mutex::default(),
        })
    }

    /// Lends memory to the master, and waits until it is part of the pool: the number of the node; otherwise why the
    /// server takes none of anybody.
    pub(super) fn lend(&self, loan: Loan) -> Result<Result<NodeId, String>, LoanError> {
        let mut flags = vec![("memory".to_owned(), loan.memory.to_string())];
        if let Some((bytes, directory)) = loan.ssd {
            flags.push(("ssd".to_owned(), bytes.to_string()));
            flags.push(("dir".to_owned(), directory.display().to_string()));
        } else if loan.file.is_some() {
            // Whatever the environment says.
            flags.push(("ssd".to_owned(), "0".to_owned()));
        }
        let config = Config::load(None, std::env::vars_os(), &flags).map_err(LoanError::Config)?;
        let defaults = NodeOptions::default();
        let options = NodeOptions {
            master: self.address.clone(),
            data: loan.data.unwrap_or(defaults.data),
            keys: loan
                .keys
                .map(|(key_file, allowed)| ServeKeys { key_file, allowed }),
            name: loan.name,
            file: loan.file,
            ..defaults
        };
        let told = Arc::new((Mutex::new(None::<Answer>), Condvar::new()));
        let teller = Arc::clone(&told);
        let hear = move |_, answer: Answer| {
            *teller.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
            teller.1.notify_all();
        };
        let node = NodeServer::start(config, options, hear).map_err(LoanError::Node)?;
        let answer = told.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (answer, _) = told
            .1
            .wait_timeout_while(answer, loan.timeout, |answer| answer.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        match *answer {
            Some(Ok(())) => {
                let number = node.node();
                self.nodes().push(node);
                Ok(Ok(number))
            }
            Some(Err(ErrorCode::NotSupported)) => {
                Ok(Err(ErrorCode::NotSupported.meaning().to_owned()))
            }
            Some(Err(code)) => Err(LoanError::Refused(code)),
            None => Err(LoanError::Unanswered(loan.timeout)),
        }
    }

    /// How a call of this thread is made.
    pub(super) fn call(&self) -> CallOptions {
        CallOptions {
            tenant: self.tenant.clone(),
            cancel: current(),
            ..CallOptions::default()
        }
    }

    /// Takes back what is lent by a node, whose values have so long to go to others. False when there is none.
    pub(super) fn take_back(&self, node: NodeId, time: Duration) -> bool {
        let mut nodes = self.nodes();
        let Some(at) = nodes.iter().position(|one| one.node() == node) else {
            return false;
        };
        let taken = nodes.swap_remove(at);
        drop(nodes);
        taken.leave(time);
        true
    }

    /// Takes back what is lent: the master is told, so that nobody waits for it. The client itself ends with its last call.
    pub(super) fn close(&self) {
        for node in std::mem::take(&mut *self.nodes()) {
            node.leave(Duration::ZERO);
        }
    }

    /// The options for the keys from `first` on, and how many of so many keys they are for.
    pub(super) fn put_options(
        &self,
        plan: &RawPlan,
        first: usize,
        keys: usize,
    ) -> (PutOptions, usize) {
        let (mut options, count) = plan.run(first, keys);
        options.call = self.call();
        if plan.near && options.preferred.is_empty() {
            options.preferred.extend(self.own_name());
        }
        (options, count)
    }

    /// The name of what this process lends, if it lends anything.
    pub(super) fn own_name(&self) -> Option<String> {
        let nodes = self.nodes();
        nodes
            .iter()
            .find_map(NodeServer::name)
            .map(NodeName::to_string)
    }

    pub(super) fn get_options(&self) -> GetOptions {
        GetOptions {
            call: self.call(),
            ..GetOptions::default()
        }
    }

    pub(super) fn remove_options(&self, force: bool) -> RemoveOptions {
        let call = self.call();
        RemoveOptions { call, force }
    }

    fn nodes(&self) -> MutexGuard<'_, Vec<NodeServer>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LoanError {
    pub(super) fn exception(&self, py: Python<'_>) -> PyErr {
        match self {
            Self::Config(problems) => crate::errors::misconfigured(py, problems),
            Self::Node(error) => {
                crate::errors::exception(py, ErrorCode::InvalidParams, &error.to_string())
            }
            Self::Refused(code) => {
                let reason = format!(
                    "the master takes no memory of this process: {}",
                    code.meaning()
                );
                crate::errors::exception(py, *code, &reason)
            }
            Self::Unanswered(time) => {
                let reason =
                    format!("the master did not take the memory of this process in {time:?}");
                crate::errors::exception(py, ErrorCode::RpcTimeout, &reason)
            }
        }
    }
}

/// The address of a server as the text says.
pub(super) fn address(text: &str) -> PyResult<Address> {
    text.parse()
        .map_err(|error| PyValueError::new_err(format!("address: {error}")))
}

/// Where bytes come in and leave, as the text says.
pub(super) fn data_address(text: &str) -> PyResult<std::net::SocketAddr> {
    text.parse()
        .map_err(|error| PyValueError::new_err(format!("data: {error}")))
}

/// The name of a node, as the text says.
pub(super) fn node_name(text: &str) -> PyResult<NodeName> {
    text.parse()
        .map_err(|error| PyValueError::new_err(format!("name: {error}")))
}
