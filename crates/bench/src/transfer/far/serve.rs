//! The far end: it waits, and is the other end of one run after another.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slackwater_base::{ByteSize, Instant};
use slackwater_mq::{
    Address, Admission, AllowList, Builder, Call, Category, ConnectionId, Level, LinkEvent,
    ListenOptions, Options, Running, load_key,
};
use slackwater_net::{Endpoint, UnixAccess};
use slackwater_transfer::{SealConfig, TcpConfig};
use slackwater_wait::now;

use super::bare::{BARE_BYTES, Listener};
use super::{Ask, Begun, CATEGORY, COMMAND, FarError, PROTOCOL, Reply, VERSION, named};
use crate::machine::Machine;
use crate::process::{Process, cpu_seconds, descriptor_limit};
use crate::transfer::ends::{self, Contact, End, engine, with_loops};
use crate::transfer::limits::iperf3_server;
use crate::transfer::{BenchError, Carrier, Place};

/// Event loops and engines that one run may have.
const LOOPS_MAX: usize = 64;
const TARGETS_MAX: usize = 16;

/// A run that asks nothing for so long is over when another one comes.
const SILENT: Duration = Duration::from_secs(120);

/// How a far end is started.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Where it listens for runs; their bytes come to other ports of the same address. Port 0 is a free one.
    pub listen: SocketAddr,
    /// The file of its secret key; without one it serves this machine alone.
    pub key_file: Option<PathBuf>,
    /// The list of the keys that may connect.
    pub allow: Option<PathBuf>,
    /// Memory that a run may ask for.
    pub memory: ByteSize,
}

/// A far end that waits for runs; it ends when dropped.
pub struct FarEnd {
    running: Running,
    address: Address,
    state: Arc<State>,
}

/// Takes lines for people.
type Say = Box<dyn Fn(&str) + Send + Sync>;

struct State {
    options: ServeOptions,
    seal: Option<SealConfig>,
    run: Mutex<Option<Run>>,
    say: Say,
}

/// What a run has here.
struct Run {
    owner: ConnectionId,
    remote: String,
    heard: Instant,
    #[expect(dead_code, reason = "it listens until the run is over")]
    bare: Listener,
    targets: Vec<End>,
    bytes: u64,
    loops: usize,
    iperf3: Option<Process>,
}

impl FarEnd {
    /// Starts one, which tells `say` of each run.
    ///
    /// # Errors
    /// [`FarError`]: keys are missing or wrong, or it cannot listen.
    pub fn start(
        options: ServeOptions,
        say: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, FarError> {
        let address = options.listen;
        if address.ip().is_unspecified() {
            return Err(FarError::Unspecified { address });
        }
        let seal = match (&options.key_file, &options.allow) {
            (None, _) if !address.ip().is_loopback() => {
                return Err(FarError::NeedsKeys { address });
            }
            (None, _) => None,
            (Some(_), None) => return Err(FarError::NeedsList),
            (Some(key), Some(list)) => Some(SealConfig {
                keys: load_key(key)?,
                clients: AllowList::load(list)?,
            }),
        };
        descriptor_limit();
        let admission = match &seal {
            None => Admission::Everybody(Level::Basic),
            Some(seal) => Admission::Listed(seal.clients.clone()),
        };
        let listening = ListenOptions {
            admission,
            encrypted: seal.is_some(),
            plain_anywhere: false,
            access: UnixAccess::default(),
            beside: false,
        };
        let keys = seal.as_ref().map(|seal| seal.keys.clone());
        let state = Arc::new(State {
            options,
            seal,
            run: Mutex::default(),
            say: Box::new(say),
        });
        let running = messages(keys, &state)?;
        let listen = |why: String| FarError::Listen { address, why };
        let endpoint = running
            .listen(&Endpoint::Tcp(address), &listening)
            .map_err(|error| listen(error.to_string()))?;
        let key = state.seal.is_some().then(|| running.public_key());
        Ok(Self {
            address: Address::of(&endpoint, key),
            running,
            state,
        })
    }

    /// What runs are told as their target.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for FarEnd {
    fn drop(&mut self) {
        self.running.stop();
        drop(self.state.run().take());
    }
}

fn messages(
    keys: Option<slackwater_zmtp::KeyPair>,
    state: &Arc<State>,
) -> Result<Running, FarError> {
    let failed = |error: &dyn std::fmt::Display| FarError::Messages(error.to_string());
    let mut builder = Builder::new(Options {
        keys,
        ..Options::default()
    });
    let access = slackwater_mq::Access {
        level: Level::Basic,
        ..Default::default()
    };
    let category = Category {
        access,
        ..Category::default()
    };
    builder
        .category(CATEGORY, category)
        .map_err(|error| failed(&error))?;
    let asked = Arc::clone(state);
    builder
        .request_command(COMMAND, move |call| asked.answer(call))
        .map_err(|error| failed(&error))?;
    let heard = Arc::clone(state);
    builder.on_link(move |event| {
        if let LinkEvent::Down { connection, .. } = event {
            heard.end_of(connection, "is gone");
        }
    });
    builder.start().map_err(|error| failed(&error))
}

impl State {
    fn run(&self) -> MutexGuard<'_, Option<Run>> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, call: &Call<'_>) {
        let ask = call.part(0).map(serde_json::from_slice::<Ask>);
        let reply = match ask {
            Some(Ok(ask)) => self.reply(call, ask),
            _ => Reply::Refused(format!(
                "this far end, slackwater {}, knows nothing of that",
                named(VERSION, PROTOCOL)
            )),
        };
        let text = serde_json::to_vec(&reply).expect("texts and numbers are always JSON");
        call.reply([text])
            .expect("a request command is only called with a tag");
    }

    fn reply(&self, call: &Call<'_>, ask: Ask) -> Reply {
        match ask {
            Ask::Begin { version, protocol } => self.begin(call, &version, protocol),
            Ask::End => {
                self.end_of(call.from(), "is over");
                Reply::Done
            }
            Ask::Cpu => Reply::CpuSeconds(cpu_seconds(std::process::id())),
            ask => {
                let mut run = self.run();
                match run.as_mut().filter(|run| run.owner == call.from()) {
                    None => Reply::Refused("the run has not begun, or was given up".into()),
                    Some(run) => self.of_run(run, ask).unwrap_or_else(Reply::Refused),
                }
            }
        }
    }

    fn begin(&self, call: &Call<'_>, version: &str, protocol: u32) -> Reply {
        if (version, protocol) != (VERSION, PROTOCOL) {
            return Reply::OtherVersion {
                version: VERSION.to_owned(),
                protocol: PROTOCOL,
            };
        }
        let mut current = self.run();
        if let Some(run) = current.as_ref().filter(|run| !run.may_be_replaced(call)) {
            return Reply::Refused(format!(
                "a run from {} is under way; it serves one after the other",
                run.remote
            ));
        }
        // What the run before had is given back before this one asks for as much.
        drop(current.take());
        match self.fresh(call) {
            Ok((run, begun)) => {
                (self.say)(&format!("a run from {} begins", run.remote));
                *current = Some(run);
                Reply::Begun(begun)
            }
            Err(why) => Reply::Refused(why),
        }
    }

    fn fresh(&self, call: &Call<'_>) -> Result<(Run, Begun), String> {
        let memory = self.options.memory;
        let bytes = BARE_BYTES as u64;
        if bytes > memory.0 {
            let needs = ByteSize(bytes);
            return Err(format!(
                "its --memory is {memory}, and a run needs more than {needs}: start it with more"
            ));
        }
        let mut token = [0; 16];
        getrandom::fill(&mut token).map_err(|error| format!("it has no randomness: {error}"))?;
        let bare = Listener::start(self.options.listen.ip(), token)
            .map_err(|error| format!("it cannot listen for a bare socket: {error}"))?;
        let begun = Begun {
            version: VERSION.to_owned(),
            machine: serde_json::to_value(Machine::detect()).unwrap_or_default(),
            bare_port: bare.port(),
            bare_token: bare.token(),
        };
        let run = Run {
            owner: call.from(),
            remote: call.remote().to_owned(),
            heard: now(),
            bare,
            targets: Vec::new(),
            bytes,
            loops: 0,
            iperf3: None,
        };
        Ok((run, begun))
    }

    fn of_run(&self, run: &mut Run, ask: Ask) -> Result<Reply, String> {
        run.heard = now();
        match ask {
            Ask::Target { bytes, loops } => {
                let target = self.target(run, bytes, loops)?;
                Ok(Reply::Target(Box::new(target)))
            }
            Ask::Close => {
                run.close();
                Ok(Reply::Done)
            }
            Ask::Iperf3 => {
                // The one before ended with its test, or never had one.
                run.iperf3 = None;
                let (server, port) = iperf3_server(self.options.listen.ip())?;
                run.iperf3 = Some(server);
                Ok(Reply::Iperf3Port(port))
            }
            Ask::Begin { .. } | Ask::End | Ask::Cpu => Ok(Reply::Done),
        }
    }

    fn target(&self, run: &mut Run, bytes: usize, loops: Option<usize>) -> Result<Contact, String> {
        let (all, memory) = (run.bytes.saturating_add(bytes as u64), self.options.memory);
        if all > memory.0 {
            let all = ByteSize(all);
            return Err(format!(
                "{all} are more than its --memory of {memory}: start it with more"
            ));
        }
        let all_loops = run.loops.saturating_add(loops.unwrap_or(1));
        if loops == Some(0) || all_loops > LOOPS_MAX || run.targets.len() >= TARGETS_MAX {
            return Err(format!(
                "a run may have {TARGETS_MAX} engines, and {LOOPS_MAX} event loops in all of them"
            ));
        }
        let listen = SocketAddr::new(self.options.listen.ip(), 0);
        let target = engine(Carrier::Tcp, |config| TcpConfig {
            bind: vec![listen],
            advertise: Vec::new(),
            seal: self.seal.clone(),
            ..with_loops(config, loops)
        });
        let end = target.and_then(|engine| {
            End::over(engine, ends::memory(Carrier::Tcp, Place::Cpu, bytes)?, None)
        });
        let contact = end.and_then(|end| Ok::<_, BenchError>((end.contact()?, end)));
        let (contact, end) = contact.map_err(|error| error.to_string())?;
        run.targets.push(end);
        (run.bytes, run.loops) = (all, all_loops);
        Ok(contact)
    }

    /// Gives back what the run of this connection has, if it has one.
    fn end_of(&self, owner: ConnectionId, how: &str) {
        let mut current = self.run();
        if let Some(run) = current.take_if(|run| run.owner == owner) {
            (self.say)(&format!("the run from {} {how}", run.remote));
        }
    }
}

impl Run {
    fn may_be_replaced(&self, call: &Call<'_>) -> bool {
        self.owner == call.from() || now().since(self.heard) > SILENT
    }

    fn close(&mut self) {
        self.targets.clear();
        (self.bytes, self.loops) = (BARE_BYTES as u64, 0);
    }
}
