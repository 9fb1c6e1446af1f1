use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use slackwater_net::{Counters, Endpoint, Listen, Net, NetError, is_inside_a_loop};
use slackwater_wait::{Completion, now};
use slackwater_zmtp::{PublicKey, SocketType};

use crate::context::{ConnectionId, Context, LinkId, Opened};
use crate::deliver::{Destination, SendError, SendOptions, Sending};
use crate::frames::{self, TAG_BYTES};
use crate::link_config::OutgoingKind;
use crate::request::{Answer, BegunRequest, RequestError, RequestOptions, Waiter};
use crate::shard::{Inspection, Listening, LoopCommand, Opening, Purpose, StreamSetup};
use crate::stream::{Published, Publisher, StreamOptions};
use crate::timer::{Ticking, Timer, TimerOptions};
use crate::{
    Address, Batch, BatchError, ConnectError, ConnectFailure, ConnectOptions, JobOutcome, Level,
    ListenError, ListenOptions, Metrics, NodeError, Route, RunOn,
};

/// A handle to a message layer, usable on any thread.
#[derive(Clone)]
pub struct Mq(pub(crate) Arc<Context>);

impl Mq {
    /// This side's public key.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        self.0.keys.public()
    }

    /// What it has done so far.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Calls `each` with the counters of every loop.
    pub fn loop_counters(&self, mut each: impl FnMut(&Counters)) {
        self.0
            .loops
            .load()
            .iter()
            .for_each(|looping| each(looping.counters()));
    }

    /// Commands that wait, for each category in the order of their registration.
    #[must_use]
    pub fn waiting_commands(&self) -> Vec<usize> {
        self.0.jobs.waiting()
    }

    /// Listens at `endpoint`; returns where (a port of 0 has become a real one). With several loops each has a
    /// listener on the same TCP port.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen(
        &self,
        endpoint: &Endpoint,
        options: &ListenOptions,
    ) -> Result<Endpoint, ListenError> {
        let purpose = Purpose::Commands(options.admission.clone());
        let loops = self.0.loops.load().len() as u16;
        let listen = |endpoint: &Endpoint| {
            let purpose = purpose.clone();
            self.listen_on(endpoint, options, SocketType::Router, purpose, 0..loops)
        };
        let bound = listen(endpoint)?;
        if let Endpoint::Tcp(address) = bound
            && options.beside
            && let Some(beside) = Endpoint::beside(address)
            && let Err(error) = listen(&beside)
        {
            tracing::warn!(
                %beside, %error,
                "processes of this host connect by TCP, or to what listens there if it is of their user or root"
            );
        }
        Ok(bound)
    }

    /// Opens a link to `address` without waiting; messages queue up meanwhile. `outcome` is called exactly once, on a
    /// loop, so it must not block. Once the link has been up it is opened again whenever it is lost, until
    /// [`Mq::disconnect`]. A host name is looked up on a worker before each round of attempts, and all its addresses are
    /// tried in order within [`ConnectOptions::timeout`].
    pub fn connect(
        &self,
        address: &Address,
        options: &ConnectOptions,
        outcome: impl FnOnce(Result<(), ConnectFailure>) + Send + 'static,
    ) -> ConnectionId {
        let mut opening = self.opening(address, options, SocketType::Dealer);
        opening.outcome = Some(Box::new(outcome));
        let id = opening.id;
        self.0.order(id.shard, LoopCommand::Open(Box::new(opening)));
        ConnectionId::Link(id)
    }

    /// Opens a link to `address` and waits until it is up.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect_wait(
        &self,
        address: &Address,
        options: &ConnectOptions,
    ) -> Result<ConnectionId, ConnectError> {
        if is_inside_a_loop() {
            return Err(ConnectError::InsideLoop);
        }
        let (told, outcome) = channel();
        let id = self.connect(address, options, move |outcome| {
            // The caller waits below.
            let _ = told.send(outcome);
        });
        let stopped = || ConnectFailure::Ended {
            reason: "the message layer is stopped".into(),
            attempts: Vec::new(),
        };
        let outcome = outcome.recv().unwrap_or_else(|_| Err(stopped()));
        outcome
            .map(|()| id)
            .map_err(|failure| ConnectError::Failed {
                address: address.clone(),
                failure: Box::new(failure),
            })
    }

    /// Opens a link to a node, unless there is one.
    ///
    /// # Errors
    /// [`NodeError`] when it is not a node, or its address is unknown.
    pub fn connect_node(
        &self,
        key: PublicKey,
        hint: Option<Address>,
    ) -> Result<ConnectionId, NodeError> {
        if self.0.links_of(&key, Route::Any).is_empty() {
            self.open_node(key, hint, self.0.options.keep_alive_node)?;
        }
        Ok(ConnectionId::Node(key))
    }

    /// A link to this message layer itself, with all permissions.
    #[must_use]
    pub fn connect_inproc(&self) -> ConnectionId {
        let shard = self.0.next_shard();
        let (client, server) = (self.0.new_link(shard), self.0.new_link(shard));
        self.0.order(
            shard,
            LoopCommand::OpenLocal {
                client: client.serial,
                server: server.serial,
            },
        );
        ConnectionId::Link(client)
    }

    /// Closes a link, or all links of a node, after writing what is queued.
    pub fn disconnect(&self, connection: ConnectionId) {
        self.end_links(connection, |serial, linger| LoopCommand::Disconnect {
            serial,
            linger,
        });
    }

    /// Closes a link, or all links of a node, that a peer opened, after writing what is queued, and has the peer open it anew:
    /// what was to be in step with the peer begins again. A link of the own opening ends as by [`Mq::disconnect`].
    pub fn renew(&self, connection: ConnectionId) {
        self.end_links(connection, |serial, linger| LoopCommand::Renew {
            serial,
            linger,
        });
    }

    fn end_links(&self, connection: ConnectionId, order: fn(u64, Duration) -> LoopCommand) {
        let linger = self.0.options.linger;
        let links = match connection {
            ConnectionId::Link(link) => vec![link],
            ConnectionId::Node(key) => self.0.links_of(&key, Route::Any),
        };
        for LinkId { shard, serial } in links {
            self.0.order(shard, order(serial, linger));
        }
    }

    /// Sends a command, which has no answer.
    pub fn send<P: AsRef<[u8]>>(
        &self,
        to: ConnectionId,
        command: &str,
        parts: impl IntoIterator<Item = P>,
    ) {
        self.send_with(to, command, parts, SendOptions::default());
    }

    /// Sends a command with options.
    pub fn send_with<P: AsRef<[u8]>>(
        &self,
        to: ConnectionId,
        command: &str,
        parts: impl IntoIterator<Item = P>,
        options: SendOptions,
    ) {
        let sending = Sending {
            message: frames::with_head(&[command.as_bytes()], parts),
            waiter: None,
            on_failure: options.on_failure,
            node: None,
        };
        self.route(to, sending, options.route, options.hint, options.keep_alive);
    }

    /// Sends a request. `callback` is called exactly once: with the reply, a refusal, or a timeout.
    pub fn request<P: AsRef<[u8]>>(
        &self,
        to: ConnectionId,
        command: &str,
        parts: impl IntoIterator<Item = P>,
        options: &RequestOptions,
        callback: impl FnOnce(Result<Answer, RequestError>) + Send + 'static,
    ) {
        let waiter = Waiter::new(Box::new(callback), options.inline);
        self.send_request(to, command, parts, options, waiter);
    }

    /// Sends a request whose reply [`BegunRequest::wait`] waits for, so that more can be done meanwhile.
    pub fn begin_request<P: AsRef<[u8]>>(
        &self,
        to: ConnectionId,
        command: &str,
        parts: impl IntoIterator<Item = P>,
        options: &RequestOptions,
    ) -> BegunRequest {
        let (completer, completion) = Completion::new();
        let shard = self.send_request(to, command, parts, options, Waiter::of(completer));
        BegunRequest::new(Arc::clone(&self.0), shard.unwrap_or(0), completion)
    }

    /// Sends a request and waits for its reply, running the loop itself where that is faster.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn request_wait<P: AsRef<[u8]>>(
        &self,
        to: ConnectionId,
        command: &str,
        parts: impl IntoIterator<Item = P>,
        options: &RequestOptions,
    ) -> Result<Answer, RequestError> {
        if is_inside_a_loop() {
            return Err(RequestError::InsideLoop);
        }
        let mut begun = self.begin_request(to, command, parts, options);
        // The loop's timer ends the request in time; waiting twice as long means that a defect does not hang the
        // caller.
        let deadline = now() + self.timeout(options) * 2;
        begun.wait(deadline).unwrap_or(Err(RequestError::Timeout))
    }

    /// Replaces the set of active nodes and drops links of those that are none any more.
    pub fn set_nodes(&self, nodes: impl IntoIterator<Item = PublicKey>) {
        self.0.nodes.store(Arc::new(nodes.into_iter().collect()));
        self.rights_changed();
    }

    /// Adds and removes active nodes; one in both lists stays.
    pub fn update_nodes(&self, added: &[PublicKey], removed: &[PublicKey]) {
        self.0.nodes.rcu(|nodes| {
            let mut nodes: BTreeSet<PublicKey> = BTreeSet::clone(nodes);
            removed.iter().for_each(|key| {
                nodes.remove(key);
            });
            nodes.extend(added);
            nodes
        });
        self.rights_changed();
    }

    /// The active nodes.
    #[must_use]
    pub fn nodes(&self) -> Arc<BTreeSet<PublicKey>> {
        self.0.nodes.load_full()
    }

    /// Checks the permissions of every link again: call it after an [`AllowList`](crate::AllowList) has changed.
    pub fn rights_changed(&self) {
        self.0.order_all(|| LoopCommand::Review);
    }

    /// Starts a batch; `completion` receives the outcome of every job.
    ///
    /// # Errors
    /// [`BatchError`].
    pub fn batch<R: Send + 'static>(
        &self,
        batch: Batch<R>,
        on: RunOn,
        completion: impl FnOnce(Vec<JobOutcome<R>>) + Send + 'static,
    ) -> Result<(), BatchError> {
        batch.start(&self.0, on, completion)
    }

    /// Runs one job; its result is dropped.
    ///
    /// # Errors
    /// [`BatchError::Full`].
    pub fn job(&self, on: RunOn, job: impl FnOnce() + Send + 'static) -> Result<(), BatchError> {
        on.run(&self.0, Box::new(job)).map_err(|_| BatchError::Full)
    }

    /// Runs foreign work, which holds so many bytes, under the limits of a category.
    ///
    /// # Errors
    /// [`SendError::Gone`] for an unknown category, [`SendError::Full`] when its queue is full.
    pub fn inject(
        &self,
        category: &str,
        bytes: usize,
        task: impl FnOnce() + Send + 'static,
    ) -> Result<(), SendError> {
        let index = self
            .0
            .registry
            .find_category(category)
            .ok_or(SendError::Gone)?;
        self.0
            .jobs
            .command(index, bytes, Box::new(task))
            .map_err(|_| SendError::Full)
    }

    /// Starts a periodic timer.
    #[must_use]
    pub fn add_timer(
        &self,
        options: TimerOptions,
        function: impl Fn() + Send + Sync + 'static,
    ) -> Timer {
        let number = self.0.new_link(0).serial;
        let ticking = Ticking {
            interval: options.interval.max(Duration::from_millis(1)),
            squelch: options.squelch,
            on: options.on,
            function: Arc::new(function),
            busy: Arc::new(AtomicBool::new(false)),
        };
        self.0.order(0, LoopCommand::AddTimer(number, ticking));
        Timer {
            context: Arc::clone(&self.0),
            shard: 0,
            number,
        }
    }

    /// Publishes a stream at `endpoint` and answers replay requests at `replay`.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn publish(
        &self,
        endpoint: &Endpoint,
        replay: Option<&Endpoint>,
        listen: &ListenOptions,
        options: &StreamOptions,
    ) -> Result<Publisher, ListenError> {
        let shard = self.0.next_shard();
        let stream = self.0.new_link(shard).serial;
        let setup = StreamSetup::Publish {
            cap_bytes: options.subscriber_bytes,
            replay_messages: options.replay_messages,
            replay_bytes: options.replay_bytes,
            first: options.first,
            topics: self.0.options.stream_topics,
        };
        self.0.order(shard, LoopCommand::OpenStream(stream, setup));
        let here = shard..shard + 1;
        let purpose = Purpose::Stream(stream, listen.admission.clone());
        let endpoint = self.listen_on(endpoint, listen, SocketType::Pub, purpose, here.clone())?;
        let purpose = Purpose::Replay(stream, listen.admission.clone());
        let replay = replay
            .map(|endpoint| self.listen_on(endpoint, listen, SocketType::Router, purpose, here))
            .transpose()?;
        Ok(Publisher {
            context: Arc::clone(&self.0),
            shard,
            stream,
            endpoint,
            replay,
        })
    }

    /// Listens to the topics of a stream that begin with any of `topics`, across reconnects. `handler` runs where
    /// messages are read and must not block.
    pub fn subscribe(
        &self,
        address: &Address,
        topics: &[&[u8]],
        options: &ConnectOptions,
        handler: impl Fn(&Published<'_>) + Send + Sync + 'static,
    ) -> ConnectionId {
        let mut opening = self.opening(address, options, SocketType::Sub);
        let id = opening.id;
        opening.stream = Some(id.serial);
        opening.probe = false;
        let topics = topics.iter().map(|topic| topic.to_vec()).collect();
        let setup = StreamSetup::Listen {
            topics,
            handler: Arc::new(handler),
        };
        self.0
            .order(id.shard, LoopCommand::OpenStream(id.serial, setup));
        self.0.order(id.shard, LoopCommand::Open(Box::new(opening)));
        ConnectionId::Link(id)
    }

    /// Stops listening and waits until what is queued has been carried out, at most `limit`; whether it has. Links
    /// stay open, so that answers still leave.
    #[must_use]
    pub fn drain(&self, limit: Duration) -> bool {
        self.0.order_all(|| LoopCommand::Drain);
        self.0.jobs.rest(limit)
    }

    /// Links and requests there are now.
    pub(crate) fn inspect(&self) -> Inspection {
        assert!(
            !is_inside_a_loop(),
            "a handler that runs inline must not wait for what its loop counts"
        );
        let mut all = Inspection::default();
        for looping in self.0.loops.load().iter() {
            let (answer, answered) = channel();
            looping.command(LoopCommand::Inspect(answer));
            if let Ok(one) = answered.recv() {
                all.peers += one.peers;
                all.up += one.up;
                all.pending += one.pending;
                all.connections += one.connections;
                all.queued += one.queued;
                all.timers += one.timers;
            }
        }
        all
    }

    /// Links that are up.
    ///
    /// # Panics
    /// When called by a handler that runs inline.
    #[must_use]
    pub fn links_up(&self) -> usize {
        self.inspect().up
    }

    /// Everything that is kept for peers: links in any state, pending requests, connections, queued messages, timers.
    ///
    /// # Panics
    /// When called by a handler that runs inline.
    #[must_use]
    pub fn books(&self) -> [usize; 5] {
        let Inspection {
            peers,
            pending,
            connections,
            queued,
            timers,
            ..
        } = self.inspect();
        [peers, pending, connections, queued, timers]
    }

    fn listen_on(
        &self,
        endpoint: &Endpoint,
        options: &ListenOptions,
        socket: SocketType,
        purpose: Purpose,
        shards: std::ops::Range<u16>,
    ) -> Result<Endpoint, ListenError> {
        if is_inside_a_loop() {
            return Err(ListenError::InsideLoop);
        }
        if let Endpoint::Tcp(address) = endpoint
            && !(options.encrypted || options.plain_anywhere)
            && !address.ip().is_loopback()
        {
            return Err(ListenError::NeedsKeys(*address));
        }
        let config = self.0.incoming_config(socket, options.encrypted);
        let is_tcp = matches!(endpoint, Endpoint::Tcp(_));
        let shared = is_tcp && shards.len() > 1;
        Net::check_free(endpoint)?;
        let mut bound = endpoint.clone();
        // A Unix socket has one listener; a TCP port one in each loop.
        let shards = if is_tcp {
            shards
        } else {
            shards.start..shards.start + 1
        };
        for shard in shards {
            let (answer, answered): (_, Receiver<Result<Endpoint, NetError>>) = channel();
            let listen = Listen {
                endpoint: bound.clone(),
                shared,
                access: options.access,
            };
            let listening = Listening {
                listen,
                config: Arc::clone(&config),
                purpose: purpose.clone(),
                answer,
            };
            self.0
                .order(shard, LoopCommand::Listen(Box::new(listening)));
            bound = answered.recv().map_err(|_| ListenError::Stopped)??;
        }
        Ok(bound)
    }

    fn opening(&self, address: &Address, options: &ConnectOptions, socket: SocketType) -> Opening {
        let timeout = options.timeout.unwrap_or(self.0.options.connect_timeout);
        let ephemeral = options.ephemeral_id.unwrap_or(self.0.options.ephemeral_ids);
        let config = self.0.outgoing_config(OutgoingKind {
            socket,
            server: address.key,
            ephemeral,
        });
        let shard = self.0.next_shard();
        Opening {
            id: self.0.new_link(shard),
            place: address.place.clone(),
            from: options.from,
            beside: options.beside,
            config,
            remote: address.to_string(),
            node: None,
            level: options.level,
            keep_alive: options.keep_alive,
            probe: options.probe,
            timeout,
            stream: None,
            outcome: None,
        }
    }

    fn open_node(
        &self,
        key: PublicKey,
        hint: Option<Address>,
        keep_alive: Duration,
    ) -> Result<LinkId, NodeError> {
        if !self.0.is_node(Some(&key)) {
            return Err(NodeError::NotANode(key));
        }
        let found = hint.or_else(|| self.0.lookup.as_ref().and_then(|lookup| lookup(&key)));
        let mut address = found.ok_or(NodeError::NoAddress(key))?;
        // Only the key identifies a node, whatever key the address names.
        address.key = Some(key);
        let options = ConnectOptions {
            probe: false,
            keep_alive: Some(keep_alive),
            level: Level::Basic,
            ..ConnectOptions::default()
        };
        let mut opening = self.opening(&address, &options, SocketType::Dealer);
        opening.node = Some(key);
        let id = opening.id;
        self.0.add_link_of(key, id, Opened::Here);
        self.0.order(id.shard, LoopCommand::Open(Box::new(opening)));
        Ok(id)
    }

    fn timeout(&self, options: &RequestOptions) -> Duration {
        options.timeout.unwrap_or(self.0.options.request_timeout)
    }

    fn send_request<P: AsRef<[u8]>>(
        &self,
        to: ConnectionId,
        command: &str,
        parts: impl IntoIterator<Item = P>,
        options: &RequestOptions,
        waiter: Waiter,
    ) -> Option<u16> {
        let deadline = now() + self.timeout(options);
        let sending = Sending {
            // The link's loop puts the tag in.
            message: frames::with_head(&[command.as_bytes(), &[0; TAG_BYTES]], parts),
            waiter: Some((waiter, deadline)),
            on_failure: None,
            node: None,
        };
        self.route(to, sending, options.route, options.hint.clone(), None)
    }

    /// Finds the link for a message and hands it over; the loop it went to.
    fn route(
        &self,
        to: ConnectionId,
        mut sending: Sending,
        route: Route,
        hint: Option<Address>,
        keep_alive: Option<Duration>,
    ) -> Option<u16> {
        match to {
            ConnectionId::Link(link) => {
                self.0.send(link, sending);
                Some(link.shard)
            }
            ConnectionId::Node(key) => {
                sending.node = Some(Destination {
                    key,
                    route,
                    hint,
                    keep_alive,
                    opened: false,
                });
                self.send_to_node(sending)
            }
        }
    }

    /// Hands a message to a link of its node, a new one where there is none; the loop it went to.
    pub(crate) fn send_to_node(&self, mut sending: Sending) -> Option<u16> {
        let link = sending.node.as_mut().and_then(|to| {
            let known = self.0.links_of(&to.key, to.route).last().copied();
            known.or_else(|| {
                if !to.may_open() {
                    return None;
                }
                to.opened = true;
                let keep_alive = to.keep_alive.unwrap_or(self.0.options.keep_alive_implicit);
                self.open_node(to.key, to.hint.take(), keep_alive).ok()
            })
        });
        match link {
            Some(link) => self.0.send(link, sending),
            None => self.0.fail(sending, SendError::Gone),
        }
        link.map(|link| link.shard)
    }
}
