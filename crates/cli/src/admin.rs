//! What a process with a master tells operators by HTTP.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use serde_json::Value;
use slackwater_admin::{Admin, AdminOptions, Failure, Segment, Source, Token, TokenInForce};
use slackwater_mq::Address;
use slackwater_node::serve::ServedStore;
use slackwater_node::{Operated, Store, StoreError};
use slackwater_wire::kv_events::KvEventCounts;
use slackwater_wire::{
    Description, ErrorCode, JobId, JobSpec, JobState, Key, List, Listed, MetricsFormat, QuotaState,
    SegmentState, Tenant, Watermarks,
};

use crate::service::Reloader;

/// Where and for whom a process answers operators.
#[derive(Clone, Debug, Args)]
pub(crate) struct AdminArguments {
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
}

impl AdminArguments {
    /// The token that callers must send, if there is a file with one.
    pub(crate) fn token(&self) -> Result<Option<Token>> {
        let token = self.admin_token_file.as_deref().map(Token::load);
        Ok(token.transpose()?)
    }

    /// What reads the token again; none where nobody is answered or asked for a token.
    pub(crate) fn reload(&self, admin: Option<&Admin>) -> Option<AdminReload> {
        Some(AdminReload {
            file: self.admin_token_file.clone()?,
            token: admin?.token(),
        })
    }

    /// Answers for `operated`, whose clients connect to `address`, unless it is turned off. Operators have files read again by
    /// `reloader`.
    pub(crate) fn start(
        &self,
        token: Option<Token>,
        operated: impl Operated,
        address: &Address,
        reloader: Arc<Reloader>,
    ) -> Result<Option<Admin>> {
        let AdminAddress::At(listen) = self.admin else {
            return Ok(None);
        };
        let source = Arc::new(Administered {
            operated,
            address: address.to_string(),
            reloader: Some(reloader),
        });
        Ok(Some(Admin::start(AdminOptions { listen, token }, source)?))
    }
}

/// Answers for a store that this process uses alone, and that is called `what`. Without a token, `listen` must be a loopback
/// address.
pub(crate) fn answer_for(store: &Store, what: &str, listen: SocketAddr) -> Result<Admin> {
    let source = Arc::new(Administered {
        operated: ServedStore::alone(store),
        address: what.to_owned(),
        reloader: None,
    });
    let options = AdminOptions {
        listen,
        token: None,
    };
    Ok(Admin::start(options, source)?)
}

/// A token that is read again.
pub(crate) struct AdminReload {
    file: PathBuf,
    token: TokenInForce,
}

impl AdminReload {
    pub(crate) fn read(&self) -> Result<Token> {
        Ok(Token::load(&self.file)?)
    }

    pub(crate) fn replace(&self, token: Token) {
        self.token.replace(token);
    }
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

/// A process with a master, and where its clients reach it.
struct Administered<O> {
    operated: O,
    address: String,
    /// None where there is nothing to be read again.
    reloader: Option<Arc<Reloader>>,
}

fn failure(error: StoreError) -> Failure {
    Failure {
        code: error.code(),
        message: error.to_string(),
    }
}

fn json(value: &impl serde::Serialize) -> Result<Value, Failure> {
    serde_json::to_value(value).map_err(|error| Failure {
        code: ErrorCode::SerializeFail,
        message: error.to_string(),
    })
}

impl<O: Operated> Source for Administered<O> {
    fn ready(&self) -> Result<(), String> {
        self.operated.check_serving()
    }

    fn epoch(&self) -> u64 {
        self.operated.epoch().0
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    fn metrics(&self, format: MetricsFormat) -> String {
        self.operated.metrics_text(format)
    }

    fn kv_events(&self) -> KvEventCounts {
        self.operated.kv_events()
    }

    fn stats(&self) -> Result<Value, Failure> {
        json(&self.operated.stats())
    }

    fn books(&self) -> Result<Value, Failure> {
        match self.operated.check_books().map_err(failure)? {
            Ok(books) => json(&books),
            Err(imbalance) => Err(Failure {
                code: ErrorCode::InternalError,
                message: imbalance.to_string(),
            }),
        }
    }

    fn segments(&self) -> Result<Vec<Segment>, Failure> {
        let looked = self.operated.look(|master, _| {
            let (states, watermarks) = (master.segments(), master.watermarks());
            states.into_iter().zip(watermarks).collect::<Vec<_>>()
        });
        let segment = |(state, watermarks): (SegmentState, Watermarks)| Segment {
            endpoint: self.operated.data_address(state.node),
            protocol: "tcp",
            watermarks,
            state,
        };
        Ok(looked.map_err(failure)?.into_iter().map(segment).collect())
    }

    fn list(&self, list: List) -> Result<Listed, Failure> {
        self.operated.list(list).map_err(failure)
    }

    fn describe(&self, tenant: &Tenant, key: &Key) -> Result<Option<Description>, Failure> {
        let found = self.operated.describe(tenant.clone(), key.clone());
        found.map_err(failure)
    }

    fn explain(&self, tenant: &Tenant, key: &Key) -> Result<Option<Value>, Failure> {
        let found = self.operated.explain(tenant, key).map_err(failure)?;
        found.map(|reasons| json(&reasons)).transpose()
    }

    fn decisions(&self) -> Result<Value, Failure> {
        json(&self.operated.decisions(Key::line).map_err(failure)?)
    }

    fn hottest(&self) -> Result<Value, Failure> {
        json(&self.operated.hottest(Key::line).map_err(failure)?)
    }

    fn quotas(&self) -> Result<Vec<QuotaState>, Failure> {
        self.operated.quotas().map_err(failure)
    }

    fn set_quota(&self, tenant: &Tenant, memory: u64, disk: u64) -> Result<(), Failure> {
        let set = self.operated.set_quota(tenant.clone(), memory, disk);
        set.map_err(failure)
    }

    fn delete_quota(&self, tenant: &Tenant) -> Result<(), Failure> {
        let deleted = self.operated.delete_quota(tenant.clone());
        deleted.map_err(failure)
    }

    fn start_job(&self, spec: JobSpec) -> Result<JobState, Failure> {
        self.operated.start_job(spec).map_err(failure)
    }

    fn query_job(&self, job: JobId) -> Result<JobState, Failure> {
        self.operated.query_job(job).map_err(failure)
    }

    fn cancel_job(&self, job: JobId) -> Result<JobState, Failure> {
        self.operated.cancel_job(job).map_err(failure)
    }

    fn jobs(&self) -> Result<Vec<JobState>, Failure> {
        self.operated.jobs().map_err(failure)
    }

    fn reload(&self) -> Result<(), Failure> {
        let reloader = self.reloader.as_ref();
        let reloader = reloader.ok_or_else(|| Failure {
            code: ErrorCode::UnavailableInCurrentMode,
            message: "this process has neither keys nor a token".to_owned(),
        })?;
        reloader.reload().map_err(|error| Failure {
            code: ErrorCode::FileReadFail,
            message: format!("{error:#}; what was in force stays in force"),
        })
    }

    fn remove(&self, tenant: &Tenant, key: &Key, force: bool) -> Result<(), Failure> {
        let removed = self.operated.remove(tenant.clone(), key.clone(), force);
        removed.map_err(failure)
    }

    fn remove_all(&self, tenant: Option<&Tenant>, force: bool) -> Result<u64, Failure> {
        let removed = self.operated.remove_all(tenant.cloned(), force);
        removed.map_err(failure)
    }
}
