//! A run's link to its far end.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use slackwater_mq::{
    Address, Builder, ConnectOptions, ConnectionId, LinkEvent, Options, RequestError,
    RequestOptions, Running, load_key,
};
use slackwater_net::Endpoint;

use super::{Ask, Begun, COMMAND, FarError, PROTOCOL, Reply, VERSION, named};
use crate::transfer::ends::Contact;

/// How long connecting may take, and an answer: memory of gigabytes is touched before there is one.
const CONNECTING: Duration = Duration::from_secs(5);
const ANSWERING: Duration = Duration::from_secs(60);

/// A far end that serves this run.
pub(super) struct Link {
    mq: Running,
    connection: ConnectionId,
    pub(super) address: Address,
    /// Where it is, and the bare sockets of this run.
    pub(super) bare: SocketAddr,
    pub(super) begun: Begun,
    pub(super) key_file: Option<PathBuf>,
    loss: Arc<Mutex<Loss>>,
}

/// The end of the link, which is that of the measurement.
#[derive(Default)]
struct Loss {
    why: Option<String>,
    /// The process that is moving bytes: it would wait for the far end until its own deadline.
    initiator: Option<Pid>,
}

impl Link {
    pub(super) fn open(address: &Address, key_file: Option<&Path>) -> Result<Self, FarError> {
        let resolved = address.endpoint().map_err(|why| FarError::Resolve {
            address: address.clone(),
            why,
        })?;
        let Endpoint::Tcp(place) = resolved else {
            return Err(FarError::NeedsCurve {
                address: address.clone(),
            });
        };
        match (&address.key, key_file) {
            (None, _) if !place.ip().is_loopback() => {
                return Err(FarError::NeedsCurve {
                    address: address.clone(),
                });
            }
            (None, Some(_)) => {
                return Err(FarError::KeyUnused {
                    address: address.clone(),
                });
            }
            (Some(_), None) => {
                return Err(FarError::NeedsKey {
                    address: address.clone(),
                });
            }
            _ => {}
        }
        let keys = key_file.map(load_key).transpose()?;
        let loss = Arc::new(Mutex::new(Loss::default()));
        let mut builder = Builder::new(Options {
            keys,
            ..Options::default()
        });
        let hearing = Arc::clone(&loss);
        builder.on_link(move |event| {
            if let LinkEvent::Down { reason, .. } = event {
                lost(&hearing, reason);
            }
        });
        let mq = builder
            .start()
            .map_err(|error| FarError::Messages(error.to_string()))?;
        let connecting = ConnectOptions {
            timeout: Some(CONNECTING),
            ..ConnectOptions::default()
        };
        let connection = mq.connect_wait(address, &connecting).map_err(Box::new)?;
        let mut link = Self {
            mq,
            connection,
            address: address.clone(),
            bare: place,
            begun: Begun {
                version: String::new(),
                machine: serde_json::Value::Null,
                bare_port: 0,
                bare_token: [0; 16],
            },
            key_file: key_file.map(Path::to_owned),
            loss,
        };
        link.begun = link.begin()?;
        link.bare.set_port(link.begun.bare_port);
        Ok(link)
    }

    /// Its host and port, without its key.
    pub(super) fn place(&self) -> String {
        Address {
            key: None,
            ..self.address.clone()
        }
        .to_string()
    }

    fn begin(&self) -> Result<Begun, FarError> {
        let ask = Ask::Begin {
            version: VERSION.to_owned(),
            protocol: PROTOCOL,
        };
        let during = "the beginning of the run";
        match self.ask(&ask, during)? {
            Reply::Begun(begun) => Ok(begun),
            Reply::OtherVersion { version, protocol } => Err(FarError::Version {
                address: self.address.clone(),
                theirs: named(&version, protocol),
                ours: named(VERSION, PROTOCOL),
            }),
            other => Err(self.unfit(during, &other)),
        }
    }

    pub(super) fn target(&self, bytes: usize, loops: Option<usize>) -> Result<Contact, FarError> {
        let during = "the start of an engine";
        match self.ask(&Ask::Target { bytes, loops }, during)? {
            Reply::Target(contact) => Ok(*contact),
            other => Err(self.unfit(during, &other)),
        }
    }

    pub(super) fn close_targets(&self) -> Result<(), FarError> {
        self.ask(&Ask::Close, "the end of an engine").map(drop)
    }

    /// The CPU time that it has used so far.
    pub(super) fn cpu_seconds(&self, during: &str) -> Result<f64, FarError> {
        match self.ask(&Ask::Cpu, during)? {
            Reply::CpuSeconds(seconds) => Ok(seconds),
            other => Err(self.unfit(during, &other)),
        }
    }

    /// The port of a server of iperf3 for one test, or why there is none.
    pub(super) fn iperf3(&self) -> Result<Result<SocketAddr, String>, FarError> {
        let during = "the start of iperf3";
        match self.ask(&Ask::Iperf3, during) {
            Ok(Reply::Iperf3Port(port)) => Ok(Ok(SocketAddr::new(self.bare.ip(), port))),
            Ok(other) => Err(self.unfit(during, &other)),
            Err(FarError::Refused { why, .. }) => Ok(Err(format!("at the far end: {why}"))),
            Err(error) => Err(error),
        }
    }

    pub(super) fn end(&self) -> Result<(), FarError> {
        self.ask(&Ask::End, "the end of the run").map(drop)
    }

    /// Names the process that a loss of the link has to end: none, or one that is a child of this process and not waited for.
    pub(super) fn guard(&self, initiator: Option<u32>) {
        let mut loss = locked(&self.loss);
        loss.initiator = initiator.and_then(|id| Pid::from_raw(id.cast_signed()));
        if loss.why.is_some() {
            loss.end();
        }
    }

    /// The loss of the link, in the place of what followed from it.
    pub(super) fn loss(&self, during: &str) -> Option<FarError> {
        let why = locked(&self.loss).why.clone()?;
        Some(self.lost(during, why))
    }

    fn lost(&self, during: &str, why: String) -> FarError {
        FarError::Lost {
            address: self.address.clone(),
            during: during.to_owned(),
            why,
        }
    }

    fn ask(&self, ask: &Ask, during: &str) -> Result<Reply, FarError> {
        if let Some(lost) = self.loss(during) {
            return Err(lost);
        }
        let text = serde_json::to_vec(ask).expect("texts and numbers are always JSON");
        let options = RequestOptions {
            timeout: Some(ANSWERING),
            ..RequestOptions::default()
        };
        let answer = self
            .mq
            .request_wait(self.connection, COMMAND, [text], &options);
        let answer = answer.map_err(|error| match error {
            RequestError::Refused(refusal) => FarError::NotFar {
                address: self.address.clone(),
                why: refusal.text().to_owned(),
            },
            error => {
                let why = error.to_string();
                self.loss(during).unwrap_or_else(|| self.lost(during, why))
            }
        })?;
        let text = answer.part(0).unwrap_or_default();
        match serde_json::from_slice(text) {
            Ok(Reply::Refused(why)) => Err(FarError::Refused {
                address: self.address.clone(),
                during: during.to_owned(),
                why,
            }),
            Ok(reply) => Ok(reply),
            Err(_) => Err(self.no_answer(during, &String::from_utf8_lossy(text))),
        }
    }

    fn unfit(&self, during: &str, reply: &Reply) -> FarError {
        self.no_answer(during, &format!("{reply:?}"))
    }

    fn no_answer(&self, during: &str, answer: &str) -> FarError {
        FarError::Answer {
            address: self.address.clone(),
            during: during.to_owned(),
            answer: answer.chars().take(200).collect(),
        }
    }
}

fn locked(loss: &Mutex<Loss>) -> MutexGuard<'_, Loss> {
    loss.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lost(loss: &Mutex<Loss>, why: String) {
    let mut loss = locked(loss);
    loss.why.get_or_insert(why);
    loss.end();
}

impl Loss {
    fn end(&self) {
        // A child that is not waited for keeps its number, so it is no other process; one that has ended needs nothing.
        let _ = self
            .initiator
            .map(|initiator| kill_process(initiator, Signal::KILL));
    }
}
