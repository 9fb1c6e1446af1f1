//! What other threads ask of a loop.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use slackwater_base::Instant;
use slackwater_data_plane::Cause;
use slackwater_data_plane::protocol::initiating::{Input, Output};
use slackwater_engine::{BatchId, Part, Revocation, StageError, Staged, StagingTurn};
use slackwater_net::{ConnId, Connect, Endpoint, Listen, Net, NetError, Readiness, UnixAccess};
use slackwater_wait::now;
use slackwater_wire::data::Segment;

use super::LoopState;
use crate::client::ClientConnection;
use crate::conn::{Conn, Role};
use crate::scheduler::{LaneEnd, LaneId, LostLane, Route};
use crate::task::{Task, end};

/// A command of another thread.
pub(crate) enum Command {
    /// Listen on these addresses.
    Listen {
        addresses: Vec<SocketAddr>,
        answer: std::sync::mpsc::Sender<Result<Vec<SocketAddr>, NetError>>,
    },
    Connect {
        lane: LaneId,
        peer: Arc<Segment>,
        route: Route,
    },
    Start {
        lane: LaneId,
        tasks: Vec<Task>,
    },
    /// Serve a connection that another loop has accepted and greeted.
    Adopt {
        stream: TcpStream,
        conn: Box<Conn>,
    },
    Cancel(BatchId),
    Release(Revocation),
    /// A device has room for payload of this connection, which holds the turn until it has been served.
    Resume(ConnId, StagingTurn),
    /// A copy into the device has ended.
    Stored {
        conn: ConnId,
        id: u64,
        result: Result<(), StageError>,
    },
    /// A copy out of the device has ended.
    Fetched {
        conn: ConnId,
        id: u64,
        result: Result<Staged, StageError>,
    },
    /// Every task before this fence has ended.
    Fenced(Part),
    /// The list of keys has changed: connections of those that are gone end, also what is under way on them.
    Relisted,
    /// Check the scheduler's deadlines at this time.
    Wake(Instant),
    /// There are borrowed connections: collect idle ones from now on.
    Watch,
    /// Close all connections and listeners.
    Close,
}

impl LoopState {
    pub(super) fn command(&mut self, net: &mut Net, command: Command) {
        match command {
            Command::Listen { addresses, answer } => {
                // The caller may have gone; then nobody needs the answer.
                let _ = answer.send(self.listen(net, &addresses));
            }
            Command::Connect { lane, peer, route } => self.connect(net, lane, peer, route),
            Command::Start { lane, tasks } => self.start(lane, tasks),
            Command::Adopt { stream, mut conn } => {
                if let Some(id) = net.adopt(stream) {
                    conn.id = id;
                    self.keep(conn);
                    net.take_over(id);
                }
            }
            Command::Cancel(batch) => {
                self.give_up(|task| (task.batch() == batch).then_some(Cause::Cancelled));
            }
            Command::Release(revoked) => {
                for conn in self.busy_connections() {
                    self.server(conn, |end| end.release(&revoked));
                }
                if revoked.extent.is_none() {
                    self.give_up(Task::closing);
                }
            }
            Command::Resume(conn, _place) => {
                self.server(conn, |end| end.resumed());
                let readable = true;
                self.serve(
                    net,
                    conn,
                    Readiness {
                        readable,
                        ..Readiness::default()
                    },
                );
            }
            Command::Stored { conn, id, result } => {
                self.server(conn, |end| end.stored(id, result));
            }
            Command::Fetched { conn, id, result } => {
                self.server(conn, |end| end.fetched(id, result));
            }
            Command::Fenced(part) => end(part, Ok(0)),
            Command::Relisted => {
                let all: Vec<ConnId> = self.conns.iter().flatten().map(|conn| conn.id).collect();
                all.into_iter()
                    .for_each(|id| self.server(id, |end| end.relisted()));
            }
            Command::Watch => self.need(now() + self.context.config.gc_interval),
            Command::Wake(at) => self.need(at),
            Command::Close => self.close(net),
        }
    }

    fn listen(
        &mut self,
        net: &mut Net,
        addresses: &[SocketAddr],
    ) -> Result<Vec<SocketAddr>, NetError> {
        let mut bound = Vec::new();
        for address in addresses {
            let listen = Listen {
                endpoint: Endpoint::Tcp(*address),
                shared: true,
                access: UnixAccess::default(),
            };
            let (id, endpoint) = net.listen(&listen)?;
            self.listeners.push(id);
            if let Endpoint::Tcp(address) = endpoint {
                bound.push(address);
            }
        }
        Ok(bound)
    }

    fn connect(&mut self, net: &mut Net, lane: LaneId, peer: Arc<Segment>, route: Route) {
        let config = &self.context.config;
        let from = route.from.map(|from| SocketAddr::new(from, 0));
        let connect = Connect {
            endpoint: Endpoint::Tcp(route.to),
            timeout: config.connect_timeout,
            from,
            ports: config.local_ports,
        };
        let begun = match config.may_reach(&peer, &route.to) {
            true => net.connect(&connect).map_err(|error| error.to_string()),
            false => Err(format!(
                "{}: it is beyond this machine, and there are no keys",
                route.to
            )),
        };
        match begun {
            Ok(conn) => {
                let proof_by = now() + config.connect_timeout + config.greeting_timeout;
                let limits = config.initiator_limits(&peer);
                let client = Box::new(ClientConnection::new(peer, limits, now()));
                self.lanes.insert(lane, conn);
                self.keep(Box::new(Conn::new(
                    conn,
                    Role::Client(lane, client),
                    proof_by,
                )));
            }
            Err(error) => {
                let why = LaneEnd::Peer(Cause::Unreachable(error));
                self.lost(LostLane {
                    lane,
                    why,
                    again: Vec::new(),
                    failed: Vec::new(),
                });
            }
        }
    }

    fn start(&mut self, lane: LaneId, tasks: Vec<Task>) {
        let Some(conn) = self.lanes.get(&lane).copied() else {
            // The lane broke before the command arrived; the scheduler knows that and no longer counts these tasks.
            return self.context.schedule(
                Some((self.index, &mut self.own)),
                |scheduler, now, actions| scheduler.put_back(tasks, now, actions),
            );
        };
        self.with(conn, |conn, turn| {
            let Role::Client(_, client) = &mut conn.role else {
                return Ok(());
            };
            for task in tasks {
                if let Some(cause) = task.given_up() {
                    let outcome = Err(cause);
                    client.out.push(Output::Ended { task, outcome });
                    continue;
                }
                task.part().started();
                let (call, deadline) = (task.call(), task.deadline());
                client.handle(
                    turn.now,
                    Input::Start {
                        call,
                        deadline,
                        task,
                    },
                )?;
            }
            Ok(())
        });
        self.dirty.push(conn);
    }

    /// Gives up the tasks on all lanes for which there is a cause.
    fn give_up(&mut self, cause: impl Fn(&Task) -> Option<Cause>) {
        for id in self.busy_connections() {
            self.with(id, |conn, turn| {
                let Role::Client(_, client) = &mut conn.role else {
                    return Ok(());
                };
                let tasks = client.initiator.tasks();
                let over: Vec<(u64, Cause)> = tasks
                    .filter_map(|(id, task)| Some((id, cause(task)?)))
                    .collect();
                over.into_iter()
                    .try_for_each(|(id, cause)| client.handle(turn.now, Input::GiveUp(id, cause)))
            });
            self.dirty.push(id);
        }
    }
}
