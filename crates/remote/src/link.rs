//! The link to the master: messages with the epoch, and what is known of the nodes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackwater_base::Instant;
use slackwater_client::{Distance, Paces};
use slackwater_mq::{
    Answer, BegunRequest, ConnectionId, Mq, Refusal, RequestError, RequestOptions,
};
use slackwater_trace::{SpanKind, TraceSpan};
use slackwater_transfer::{Engine, PeerId, PeerStats, Segment};
use slackwater_wait::now;
use slackwater_wire::body::{self, BodyError};
use slackwater_wire::{
    Answered, Asked, Class, ClientId, Epoch, ErrorCode, Hello, Incarnation, OperationId,
    ReadRecord, RecordStaged, Release, Reply, Request, StagedRecord, TraceContext, Welcome,
};

use crate::pick::{Nearest, distance};
use crate::waits::{Caller, Waits};

/// See the module.
pub(crate) struct Link {
    mq: Mq,
    to: ConnectionId,
    client: ClientId,
    engine: Engine,
    /// The latest epoch that was seen.
    epoch: AtomicU64,
    nodes: Mutex<BTreeMap<Incarnation, PeerId>>,
    /// Those that are not across the network.
    near: Mutex<Arc<BTreeMap<Incarnation, Distance>>>,
    /// How fast they send.
    paces: Arc<Mutex<Paces>>,
    value_bytes_max: AtomicU64,
    /// How often records were asked for, those of one batch together.
    pub(crate) record_reads: AtomicU64,
    /// Why a message had no answer that counts, the last time that one had none, for errors.
    last: Mutex<Option<(Instant, String)>>,
}

/// Why a message has no answer that counts.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// None came in time.
    Late,
    /// The link broke, or the server could not take the message now.
    Lost,
    /// The server refused it for good.
    Refused(ErrorCode),
    /// The answer is no message of this release.
    Foreign(String),
    /// The caller does not wait any longer.
    Cancelled,
}

impl Unanswered {
    fn words(&self) -> &'static str {
        match self {
            Self::Late => "no answer came in time",
            Self::Lost => "the link broke, or the server was busy",
            Self::Refused(code) => code.name(),
            Self::Foreign(_) => "an answer of another release",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A request of the master that was sent. To drop it is to give it up.
pub(crate) struct UnderWay<'a> {
    begun: BegunRequest,
    until: Instant,
    caller: Caller<'a>,
    span: TraceSpan,
    is_heard: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.is_heard {
            return;
        }
        match self.caller.is_cancelled() {
            true => self.span.fail(Unanswered::Cancelled.words()),
            false => self.span.fail("the call ended before the answer"),
        }
    }
}

impl Link {
    pub(crate) fn new(mq: Mq, to: ConnectionId, client: ClientId, engine: Engine) -> Self {
        Self {
            mq,
            to,
            client,
            engine,
            epoch: AtomicU64::new(0),
            nodes: Mutex::default(),
            near: Mutex::default(),
            paces: Arc::default(),
            value_bytes_max: AtomicU64::new(u64::MAX),
            record_reads: AtomicU64::new(0),
            last: Mutex::default(),
        }
    }

    /// The choice of replicas for a read that begins now.
    pub(crate) fn pick(&self) -> Box<Nearest> {
        Box::new(Nearest {
            paces: Arc::clone(&self.paces),
            near: Arc::clone(&lock(&self.near)),
            reader: self.client,
            now: now(),
        })
    }

    /// Takes in how fast nodes send, or says it.
    pub(crate) fn pace<T>(&self, tell: impl FnOnce(&mut Paces) -> T) -> T {
        tell(&mut lock(&self.paces))
    }

    /// Length of the longest value that the server takes.
    pub(crate) fn value_bytes_max(&self) -> u64 {
        self.value_bytes_max.load(Ordering::Relaxed)
    }

    /// Whether a value may have this length. A node with more memory may have come since the limit was told: the server is asked
    /// then, and without an answer the old limit holds.
    pub(crate) async fn may_have(&self, bytes: u64, until: Instant, caller: Caller<'_>) -> bool {
        if bytes > self.value_bytes_max() {
            let _ = self.greet(until, caller).await;
        }
        bytes <= self.value_bytes_max()
    }

    /// Why a call that began then had no end in time: the last that went wrong with its messages, or with those of others.
    pub(crate) fn last_failure(&self, since: Instant) -> String {
        let last = lock(&self.last);
        let recent = last.as_ref().filter(|(at, _)| *at >= since);
        recent.map_or_else(
            || "the server answered, and the bytes did not move in time".to_owned(),
            |(_, why)| why.clone(),
        )
    }

    fn note(&self, failure: impl Into<String>) {
        *lock(&self.last) = Some((now(), failure.into()));
    }

    /// Learns the epoch and the nodes of the server.
    pub(crate) async fn greet(&self, until: Instant, caller: Caller<'_>) -> Result<(), Unanswered> {
        let hello = Hello {
            epoch: self.epoch(),
            client: self.client,
            host: (self.engine.segment().host.as_ref()).map(|host| host.boot_id.clone()),
        };
        let hello = encoded(&hello);
        let answer = self.exchange("pool.hello", &hello, until, caller).await?;
        let welcome: Welcome = self.decode(&answer)?;
        self.see(welcome.epoch)?;
        self.value_bytes_max
            .store(welcome.value_bytes_max, Ordering::Relaxed);
        let mut nodes = self.nodes();
        let own = self.engine.segment().host.as_ref();
        let far = |node: &Segment| (node.incarnation, distance(own, node));
        let near = (welcome.nodes.iter().map(far)).filter(|(_, far)| *far < Distance::Network);
        *lock(&self.near) = Arc::new(near.collect());
        let opened: BTreeMap<Incarnation, PeerId> = welcome
            .nodes
            .into_iter()
            .map(|node| (node.incarnation, self.engine.open(node)))
            .collect();
        for (_, gone) in nodes.iter().filter(|(of, _)| !opened.contains_key(of)) {
            self.engine.forget(*gone);
        }
        *nodes = opened;
        Ok(())
    }

    /// The node of an incarnation, asked for if it is new.
    pub(crate) async fn node(
        &self,
        incarnation: Incarnation,
        until: Instant,
        caller: Caller<'_>,
    ) -> Option<PeerId> {
        let known = self.known_node(incarnation);
        if known.is_some() {
            return known;
        }
        self.greet(until, caller).await.ok()?;
        self.known_node(incarnation)
    }

    /// The node of an incarnation, if it is not new.
    pub(crate) fn known_node(&self, incarnation: Incarnation) -> Option<PeerId> {
        self.nodes().get(&incarnation).copied()
    }

    /// What was moved between this process and the nodes that are known, by the way that it went.
    pub(crate) fn moved(&self) -> Vec<(&'static str, PeerStats)> {
        let mut all: Vec<(&'static str, PeerStats)> = Vec::new();
        for (way, stats) in self
            .nodes()
            .values()
            .flat_map(|node| self.engine.stats(*node))
        {
            match all.iter_mut().find(|(known, _)| *known == way) {
                Some((_, sum)) => *sum = sum.and(&stats),
                None => all.push((way, stats)),
            }
        }
        all
    }

    /// Makes a request of the master and waits for its answer.
    pub(crate) async fn ask(
        &self,
        operation: OperationId,
        request: &Request,
        until: Instant,
        caller: Caller<'_>,
    ) -> Result<Answered, Unanswered> {
        self.hear(self.send(operation, request, until, caller)?)
            .await
    }

    /// Makes a request of the master whose answer [`Link::hear`] waits for, so that more can be done meanwhile.
    pub(crate) fn send<'a>(
        &self,
        operation: OperationId,
        request: &Request,
        until: Instant,
        caller: Caller<'a>,
    ) -> Result<UnderWay<'a>, Unanswered> {
        let mut span = TraceSpan::here(span_name(request), SpanKind::Client);
        let body = self.asked(operation, request, span.context());
        let body = body.inspect_err(|unanswered| span.fail(unanswered.words()))?;
        Ok(UnderWay {
            begun: self.begin(command(request), &body, until),
            until,
            caller,
            span,
            is_heard: false,
        })
    }

    /// The answer to a request that was sent.
    pub(crate) async fn hear(&self, mut under_way: UnderWay<'_>) -> Result<Answered, Unanswered> {
        let UnderWay {
            begun,
            until,
            caller,
            span,
            is_heard,
        } = &mut under_way;
        let answer = self.finish(begun, *until, *caller).await;
        *is_heard = true;
        let answered = answer.and_then(|answer| self.answered(&answer));
        answered.inspect_err(|unanswered| span.fail(unanswered.words()))
    }

    /// Makes a request of the master whose answer `heard` gets, on any thread. `heard` must not block.
    pub(crate) fn ask_later(
        self: &Arc<Self>,
        operation: OperationId,
        request: &Request,
        heard: impl FnOnce(Result<Answered, Unanswered>) + Send + 'static,
    ) {
        let Ok(body) = self.asked(operation, request, None) else {
            return heard(Err(Unanswered::Refused(ErrorCode::InvalidParams)));
        };
        let options = RequestOptions {
            inline: true,
            ..RequestOptions::default()
        };
        let link = Arc::clone(self);
        let told = move |answer: Result<Answer, RequestError>| {
            let answer = answer.map_err(|error| link.failed(&error));
            heard(answer.and_then(|answer| link.answered(&answer)));
        };
        self.mq
            .request(self.to, command(request), [&body], &options, told);
    }

    /// Has a record of an SSD read into memory of its node.
    pub(crate) async fn read_record(
        &self,
        mut record: ReadRecord,
        until: Instant,
        caller: Caller<'_>,
    ) -> Result<StagedRecord, Unanswered> {
        let mut span = TraceSpan::here("slackwater.read_record", SpanKind::Client);
        (record.epoch, record.client) = (self.epoch(), self.client);
        record.trace = span.context();
        let record = encoded(&record);
        let answer = self.exchange("records.read", &record, until, caller).await;
        let answer = answer.inspect_err(|unanswered| span.fail(unanswered.words()))?;
        let staged: RecordStaged = self.decode(&answer)?;
        self.see(staged.epoch)?;
        staged.result.map_err(Unanswered::Refused)
    }

    /// Gives the memory of a record back; the end of its lease does so too.
    pub(crate) fn release(&self, staged: &StagedRecord, fetched: bool) {
        let release = Release {
            client: self.client,
            generation: staged.generation,
            node: staged.node,
            fetched,
        };
        self.mq
            .send(self.to, "records.release", [encoded(&release)]);
    }

    fn asked(
        &self,
        operation: OperationId,
        request: &Request,
        trace: Option<TraceContext>,
    ) -> Result<Vec<u8>, Unanswered> {
        let asked = Asked {
            epoch: self.epoch(),
            client: self.client,
            operation,
            request: request.clone(),
            reads: body::LOOK_UPS,
            trace,
        };
        body::encode(&asked).map_err(|_| Unanswered::Refused(ErrorCode::InvalidParams))
    }

    fn answered(&self, answer: &Answer) -> Result<Answered, Unanswered> {
        let answered: Answered = self.decode(answer)?;
        self.see(answered.epoch)?;
        if let Reply::Failed(code) = answered.reply
            && code.class() == Class::Retry
        {
            // It is asked again until the call is over.
            self.note(code.to_string());
        }
        Ok(answered)
    }

    async fn exchange(
        &self,
        command: &str,
        body: &[u8],
        until: Instant,
        caller: Caller<'_>,
    ) -> Result<Answer, Unanswered> {
        let mut begun = self.begin(command, body, until);
        self.finish(&mut begun, until, caller).await
    }

    fn begin(&self, command: &str, body: &[u8], until: Instant) -> BegunRequest {
        let options = RequestOptions {
            timeout: Some(now().until(until)),
            ..RequestOptions::default()
        };
        self.mq.begin_request(self.to, command, [body], &options)
    }

    async fn finish(
        &self,
        begun: &mut BegunRequest,
        until: Instant,
        caller: Caller<'_>,
    ) -> Result<Answer, Unanswered> {
        let ends = caller.cancel.map(|cancel| {
            let end = begun.canceller();
            cancel.ends(move || _ = end())
        });
        let heard = match caller.waits {
            Waits::Thread => begun.wait(until),
            Waits::Task => begun.outcome().await,
        };
        drop(ends);
        match heard {
            // What is cancelled in the queue of the link is gone once that is up, or out of time before.
            Some(Err(RequestError::Gone | RequestError::Timeout)) | None
                if caller.is_cancelled() =>
            {
                Err(Unanswered::Cancelled)
            }
            Some(answer) => answer.map_err(|error| self.failed(&error)),
            None => Err(self.failed(&RequestError::Timeout)),
        }
    }

    fn failed(&self, error: &RequestError) -> Unanswered {
        match error {
            RequestError::Timeout => self.note("no answer came"),
            other => self.note(other.to_string()),
        }
        match error {
            RequestError::Timeout => Unanswered::Late,
            RequestError::Gone | RequestError::Full | RequestError::InsideLoop => Unanswered::Lost,
            RequestError::Refused(Refusal::Busy | Refusal::Failed | Refusal::Moved) => {
                Unanswered::Lost
            }
            RequestError::Refused(Refusal::Forbidden) => {
                Unanswered::Refused(ErrorCode::RoleNotPermitted)
            }
            RequestError::Refused(refusal) => Unanswered::Foreign(refusal.text().to_owned()),
        }
    }

    /// The message in an answer; the server may have refused instead.
    fn decode<M: body::Message>(&self, answer: &Answer) -> Result<M, Unanswered> {
        let bytes = answer.part(0).unwrap_or_default();
        let foreign = |error: BodyError| match body::decode::<Answered>(bytes) {
            Ok(Answered {
                reply: Reply::Failed(code),
                ..
            }) => Unanswered::Refused(code),
            _ => Unanswered::Foreign(error.to_string()),
        };
        body::decode(bytes).map_err(foreign)
    }

    fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    /// Takes the epoch of a message in. What a master says that has a successor does not count.
    fn see(&self, epoch: Epoch) -> Result<(), Unanswered> {
        let seen = self.epoch.fetch_max(epoch.0, Ordering::AcqRel);
        if seen <= epoch.0 {
            return Ok(());
        }
        tracing::warn!(epoch = epoch.0, seen, "an answer of an earlier master");
        self.note(ErrorCode::StaleEpoch.meaning());
        Err(Unanswered::Lost)
    }

    fn nodes(&self) -> MutexGuard<'_, BTreeMap<Incarnation, PeerId>> {
        lock(&self.nodes)
    }
}

fn encoded<M: body::Message>(message: &M) -> Vec<u8> {
    body::encode(message).expect("a message about one object is short")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is asked of the master, in traces.
fn span_name(request: &Request) -> &'static str {
    match request {
        Request::Get(_) => "slackwater.look_up",
        Request::PutStart(_) => "slackwater.put_start",
        Request::PutEnd(_) => "slackwater.put_end",
        _ => "slackwater.request",
    }
}

/// The end of a put may have the server read the bytes, which it does on a worker.
fn command(request: &Request) -> &'static str {
    match request {
        Request::PutEnd(_) => "records.put_end",
        _ => "pool.request",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slackwater_mq::{
        Access, Address, Admission, Builder, Category, ConnectOptions, Level, ListenOptions,
        Options, Running,
    };
    use slackwater_net::{Endpoint, UnixAccess};
    use slackwater_transfer::EngineConfig;

    use super::*;
    use crate::Cancel;
    use crate::waits::here;

    /// A link to a server that is not there yet.
    fn early_link(endpoint: &Endpoint) -> (Running, Link) {
        let client = Builder::new(Options::default()).start().unwrap();
        let address = Address::of(endpoint, None);
        let to = client.connect(&address, &ConnectOptions::default(), |_| {});
        let engine = EngineConfig::new("client").start().unwrap();
        let link = Link::new(client.handle(), to, ClientId(1), engine);
        (client, link)
    }

    /// Waits until that holds.
    fn eventually(what: &str, holds: impl Fn() -> bool) {
        let end = now() + Duration::from_secs(20);
        while !holds() {
            assert!(now() < end, "not within 20 s: {what}");
            std::thread::yield_now();
        }
    }

    /// A request that waits in the queue of its link, and is cancelled.
    fn cancelled<'a>(
        client: &Running,
        link: &Link,
        until: Instant,
        cancel: &'a Cancel,
    ) -> UnderWay<'a> {
        let (operation, request) = (OperationId(1), Request::Quotas);
        let caller = Caller {
            cancel: Some(cancel),
            ..Caller::THREAD
        };
        let under_way = link.send(operation, &request, until, caller);
        let under_way = under_way.unwrap();
        // One that is cancelled on its way to the queue never comes there, nor has a time.
        eventually("the request is in the queue, or too late for it", || {
            client.metrics().requests.get() + client.metrics().timeouts.get() > 0
        });
        let end = under_way.begun.canceller();
        let ends = cancel.ends(move || _ = end());
        cancel.cancel();
        drop(ends);
        under_way
    }

    /// Where its time was over between the cancel and the caller's next look, the call was told that no answer came.
    #[test]
    fn a_request_that_is_cancelled_in_a_queue_was_cancelled_also_once_its_time_is_over() {
        let folder = tempfile::tempdir().unwrap();
        let (client, link) = early_link(&Endpoint::Unix(folder.path().join("late")));
        let cancel = Cancel::new();
        let until = now() + Duration::from_millis(50);
        let under_way = cancelled(&client, &link, until, &cancel);
        eventually("its time is over", || under_way.begun.is_done());
        assert_eq!(client.metrics().timeouts.get(), 1);
        let heard = here(link.hear(under_way));
        assert!(matches!(heard, Err(Unanswered::Cancelled)), "{heard:?}");
    }

    /// Where the link came up between the cancel and the caller's next look, the call was told that the link was gone.
    #[test]
    fn a_request_that_is_cancelled_in_a_queue_was_cancelled_also_once_its_link_is_up() {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::Unix(folder.path().join("late"));
        let (client, link) = early_link(&endpoint);
        let (cancel, until) = (Cancel::new(), now() + Duration::from_secs(20));
        let under_way = cancelled(&client, &link, until, &cancel);

        let mut server = Builder::new(Options::default());
        let access = Access {
            level: Level::Basic,
            ..Access::default()
        };
        let category = Category {
            access,
            ..Category::default()
        };
        server.category("later", category).unwrap();
        let answer = |call: &slackwater_mq::Call<'_>| call.reply([""]).unwrap();
        server.request_command("later.request", answer).unwrap();
        let server = server.start().unwrap();
        let everybody = ListenOptions {
            admission: Admission::Everybody(Level::Basic),
            encrypted: false,
            plain_anywhere: false,
            access: UnixAccess::default(),
            beside: false,
        };
        server.listen(&endpoint, &everybody).unwrap();
        // The queue of the link keeps its order.
        let later = here(link.exchange("later.request", &[], until, Caller::THREAD));
        assert!(later.is_ok(), "{later:?}");
        let heard = here(link.hear(under_way));
        assert!(matches!(heard, Err(Unanswered::Cancelled)), "{heard:?}");
    }
}
