use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use slackwater_base::{Instant, Map, Rng};
use slackwater_client::{Answer, CallFlow, FlowOptions, Operations};
use slackwater_mq::Running;
use slackwater_trace::{SpanKind, TraceSpan};
use slackwater_transfer::{Engine, PeerStats};
use slackwater_wait::now;
use slackwater_wire::limits::BATCH_KEYS_MAX;
use slackwater_wire::{
    Description, ErrorCode, Exists, Key, KeyList, List, Listed, Remove, RemoveAll, RemoveMatching,
    ReplicaClear, Reply, Request, Tenant,
};

use crate::carry::Carrier;
use crate::drive::{Drive, Nothing};
use crate::get::{Outcome, Part, Sink};
use crate::link::Link;
use crate::locations::LocationCache;
use crate::tells::Telling;
use crate::waits::{Caller, Waits, here};
use crate::{
    CallOptions, ClientError, ConnectError, ConnectOptions, GetOptions, PutOptions, RemoveOptions,
    Stored,
};

/// A client of a store that another process serves. Clones share its link; every call is safe from any thread.
///
/// Values are 1 byte up to the size of the server's memory; keys are 1 to 1,024 bytes.
#[derive(Clone)]
pub struct Client(Arc<Connected>);

/// What the calls of a client share. Fields end in this order.
pub(crate) struct Connected {
    pub(crate) telling: Telling,
    pub(crate) link: Arc<Link>,
    pub(crate) engine: Engine,
    pub(crate) operations: Operations,
    pub(crate) seed: u64,
    pub(crate) options: ConnectOptions,
    #[expect(dead_code, reason = "the message layer stops when this is dropped")]
    pub(crate) running: Running,
}

/// One call.
pub(crate) struct Call<'a> {
    pub(crate) client: &'a Client,
    pub(crate) options: &'a CallOptions,
    pub(crate) begun: Instant,
    pub(crate) until: Instant,
    pub(crate) waits: Waits,
}

/// Most attempts of a call: its deadline ends it first.
const ATTEMPTS: u32 = 10_000;
/// Keys of one question of those that ask whether many objects are there: enough that the messages cost little, and few enough
/// that client and master work at the same time.
const EXISTS_PIECE: usize = 2048;
/// How long an answer may take before the request is sent again.
const ANSWER_TIME: std::time::Duration = std::time::Duration::from_secs(2);

impl Client {
    /// Connects to a server.
    ///
    /// # Errors
    /// When there is none, it is another one than expected, it refuses this client, or our key cannot be read.
    pub fn connect(options: &ConnectOptions) -> Result<Self, ConnectError> {
        Ok(Self(Arc::new(crate::connect::connect(options)?)))
    }

    /// Puts one value. Returns when it is visible, and with [`slackwater_wire::Durability::Disk`] durable.
    ///
    /// # Errors
    /// Refusals of the key, the value or the tenant; no space; the deadline; a cancellation.
    pub fn put(
        &self,
        key: &[u8],
        value: &[u8],
        options: &PutOptions,
    ) -> Result<Stored, ClientError> {
        only(self.put_batch(&[(key, value)], options))
    }

    /// Puts values, a result each; one that fails does not touch its neighbours. Of equal keys the first wins.
    pub fn put_batch(
        &self,
        entries: &[(&[u8], &[u8])],
        options: &PutOptions,
    ) -> Vec<Result<Stored, ClientError>> {
        here(self.call(&options.call).write(entries, options))
    }

    /// Reads one value into fresh memory; `None` when there is none.
    ///
    /// # Errors
    /// Refusals of the key or the tenant; the deadline; a cancellation.
    pub fn get(&self, key: &[u8], options: &GetOptions) -> Result<Option<Vec<u8>>, ClientError> {
        only(self.get_batch(&[key], options))
    }

    /// Reads values into fresh memory, a result each.
    pub fn get_batch(
        &self,
        keys: &[&[u8]],
        options: &GetOptions,
    ) -> Vec<Result<Option<Vec<u8>>, ClientError>> {
        here(self.call(&options.call).get(keys, options))
    }

    /// Reads one value into the front of the caller's buffer and says its length; `None` when there is none. The buffer's
    /// other bytes, and all of them when nothing is returned, are of no meaning afterwards.
    ///
    /// # Errors
    /// [`ClientError::BufferTooSmall`]; as for [`Client::get`].
    pub fn get_into(
        &self,
        key: &[u8],
        buffer: &mut [u8],
        options: &GetOptions,
    ) -> Result<Option<usize>, ClientError> {
        let mut sinks = [Sink::Given(buffer)];
        let call = self.call(&options.call);
        only(lengths(here(call.read(&[key], &mut sinks, options))))
    }

    /// Reads values into the caller's buffers, a result each, in the order of the keys.
    pub fn get_batch_into(
        &self,
        keys: &[&[u8]],
        buffers: &mut [&mut [u8]],
        options: &GetOptions,
    ) -> Vec<Result<Option<usize>, ClientError>> {
        let (count, given) = (keys.len(), buffers.len());
        if count != given {
            let wrong = ClientError::BufferCount {
                keys: count,
                buffers: given,
            };
            return vec![Err(wrong); count];
        }
        let buffers = buffers.iter_mut().map(|buffer| &mut **buffer);
        here(self.call(&options.call).get_into(keys, buffers, options))
    }

    /// Reads parts of values alone, and says the length of each value; `None` when there is none. The parts of a key are of
    /// one put. A part that does not lie in its value is left as it is; where no length is said, all are of no meaning.
    ///
    /// A value has one checksum, of all its bytes: parts are not compared with it, unless the only one is the whole value.
    pub fn get_parts(
        &self,
        keys: &[&[u8]],
        parts: Vec<Vec<Part<'_>>>,
        options: &GetOptions,
    ) -> Vec<Result<Option<usize>, ClientError>> {
        let (count, given) = (keys.len(), parts.len());
        if count != given {
            let wrong = ClientError::BufferCount {
                keys: count,
                buffers: given,
            };
            return vec![Err(wrong); count];
        }
        let mut sinks: Vec<Sink<'_>> = parts.into_iter().map(Sink::Parts).collect();
        let call = self.call(&options.call);
        lengths(here(call.read(keys, &mut sinks, options)))
    }

    /// Whether objects are there, a truth each.
    ///
    /// # Errors
    /// When one of the keys is empty or too long, or the tenant is refused; the deadline; a cancellation.
    pub fn exists(&self, keys: &[&[u8]], options: &CallOptions) -> Result<Vec<bool>, ClientError> {
        here(self.call(options).exists(keys))
    }

    /// Removes objects, a result each. When it returns, no crash of the server can bring them back.
    pub fn remove(&self, keys: &[&[u8]], options: &RemoveOptions) -> Vec<Result<(), ClientError>> {
        here(self.call(&options.call).remove(keys, options.force))
    }

    /// Removes objects that this client put and that nobody reads, or what one segment has of them, a result each.
    pub fn replica_clear(
        &self,
        keys: &[&[u8]],
        segment: Option<&str>,
        options: &CallOptions,
    ) -> Vec<Result<(), ClientError>> {
        here(self.call(options).remove_by(keys, |tenant, keys| {
            Request::ReplicaClear(ReplicaClear {
                tenant,
                keys,
                segment: segment.map(str::to_owned),
            })
        }))
    }

    /// Removes every object of the tenant in whose key a regular expression is found; how many.
    ///
    /// # Errors
    /// When the pattern is no regular expression, or the tenant is refused; the deadline; a cancellation.
    pub fn remove_matching(
        &self,
        pattern: &str,
        options: &RemoveOptions,
    ) -> Result<u64, ClientError> {
        let call = self.call(&options.call);
        here(call.remove_matching(pattern.to_owned(), options.force))
    }

    /// Removes every object of the tenant; how many.
    ///
    /// # Errors
    /// When the tenant is refused; the deadline; a cancellation.
    pub fn remove_all(&self, options: &RemoveOptions) -> Result<u64, ClientError> {
        here(self.call(&options.call).remove_all(options.force))
    }

    /// One page of keys in byte order, with the mark that says whether more follow. A page has at most 4,096 keys.
    ///
    /// # Errors
    /// When the pattern is no regular expression, or the tenant is refused; the deadline; a cancellation.
    pub fn list(&self, list: List, options: &CallOptions) -> Result<Listed, ClientError> {
        here(self.call(options).list(list))
    }

    /// Keys in byte order, page after page: so many, or as many as there are when that is less; and whether more follow.
    ///
    /// Not one moment's state: keys that come or go meanwhile may or may not be in it.
    ///
    /// # Errors
    /// As [`Client::list`], whose deadline each page has.
    pub fn list_up_to(
        &self,
        list: List,
        limit: usize,
        options: &CallOptions,
    ) -> Result<(Vec<Key>, bool), ClientError> {
        here(self.list_in(list, limit, options, Waits::Thread))
    }

    pub(crate) async fn list_in(
        &self,
        mut list: List,
        limit: usize,
        options: &CallOptions,
        waits: Waits,
    ) -> Result<(Vec<Key>, bool), ClientError> {
        let (mut keys, mut more) = (Vec::new(), true);
        while more && keys.len() < limit {
            list.limit = u32::try_from(limit - keys.len()).unwrap_or(u32::MAX);
            let page = self.call_in(options, waits).list(list.clone()).await?;
            // A page without a key would be asked for again for ever.
            more = page.more && !page.keys.is_empty();
            list.after = page.keys.last().cloned();
            keys.extend(page.keys);
        }
        Ok((keys, more))
    }

    /// Everything known about one object; neither a read nor a lease. `None` when there is no such object.
    ///
    /// # Errors
    /// When the key is empty or too long, or the tenant is refused; the deadline; a cancellation.
    pub fn stat(
        &self,
        key: &[u8],
        options: &CallOptions,
    ) -> Result<Option<Description>, ClientError> {
        here(self.call(options).stat(key))
    }

    /// How often reads asked nodes for what is on SSD only, those of one batch together.
    #[must_use]
    pub fn record_reads(&self) -> u64 {
        self.0.link.record_reads.load(Ordering::Relaxed)
    }

    /// What was moved between this process and the nodes of the server, by the way that it went: `host` for memory that a
    /// node of this machine shares, `tcp`, and others. Each way counts for itself: a request that went to a second way
    /// counts for that one.
    #[must_use]
    pub fn moved(&self) -> Vec<(&'static str, PeerStats)> {
        self.0.link.moved()
    }

    pub(crate) fn locations(&self) -> &LocationCache {
        self.0.telling.locations()
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.0.link
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// How long a call may take that says nothing else.
    #[must_use]
    pub fn deadline(&self) -> std::time::Duration {
        self.0.options.deadline
    }

    /// A call whose thread waits.
    pub(crate) fn call<'a>(&'a self, options: &'a CallOptions) -> Call<'a> {
        self.call_in(options, Waits::Thread)
    }

    pub(crate) fn call_in<'a>(&'a self, options: &'a CallOptions, waits: Waits) -> Call<'a> {
        let begun = now();
        let deadline = options.deadline.unwrap_or(self.0.options.deadline);
        Call {
            client: self,
            options,
            begun,
            until: begun + deadline,
            waits,
        }
    }
}

impl Call<'_> {
    pub(crate) fn flow_options(&self) -> FlowOptions {
        let Connected {
            operations, seed, ..
        } = &*self.client.0;
        FlowOptions {
            deadline: self.until,
            attempts: ATTEMPTS,
            answer_timeout: ANSWER_TIME,
            backoff: FlowOptions::BACKOFF,
            jitter: Rng::new(seed ^ self.begun.as_nanos()),
            operations: operations.clone(),
        }
    }

    pub(crate) fn caller(&self) -> Caller<'_> {
        Caller {
            waits: self.waits,
            cancel: self.options.cancel.as_ref(),
        }
    }

    pub(crate) fn drive(&self) -> Drive<'_> {
        Drive {
            link: &self.client.0.link,
            telling: &self.client.0.telling,
            caller: self.caller(),
        }
    }

    pub(crate) fn carrier(&self) -> Carrier<'_> {
        Carrier {
            engine: &self.client.0.engine,
            link: &self.client.0.link,
            caller: self.caller(),
            until: self.until,
            is_known: false,
            is_patient: false,
            silent: Vec::new(),
            rights: Map::default(),
        }
    }

    /// Refuses to begin anything while too much of what was granted before is not given back yet.
    pub(crate) fn check_room(&self) -> Result<(), ClientError> {
        if self.client.0.telling.is_full() {
            return Err(ClientError::RefusedCall(
                ErrorCode::TaskPendingLimitExceeded,
            ));
        }
        Ok(())
    }

    /// The error of a code that a flow ended with.
    pub(crate) fn failed(&self, what: &'static str, key: &Key, code: ErrorCode) -> ClientError {
        match code {
            ErrorCode::DeadlinePassed | ErrorCode::RpcFail => self.unknown(what),
            ErrorCode::Cancelled => ClientError::Cancelled { what },
            code => ClientError::Refused {
                key: key.clone(),
                code,
            },
        }
    }

    /// The error of a call without an outcome.
    pub(crate) fn unknown(&self, what: &'static str) -> ClientError {
        if self.caller().is_cancelled() {
            return ClientError::Cancelled { what };
        }
        ClientError::Deadline {
            what,
            // It may have ended before, where nothing could be tried again in time.
            after: self.begun.until(self.until.min(now())),
            reason: self.client.0.link.last_failure(self.begun),
        }
    }

    pub(crate) async fn ask(
        &self,
        what: &'static str,
        request: Request,
    ) -> Result<Reply, ClientError> {
        self.check_room()?;
        let mut begun = Vec::new();
        let mut flow = CallFlow::start(self.begun, request, self.flow_options(), &mut begun);
        self.drive().run(&mut flow, begun, &mut Nothing).await;
        self.reply(what, flow.into_answer())
    }

    fn reply(&self, what: &'static str, answer: Option<Answer>) -> Result<Reply, ClientError> {
        match answer {
            Some(Answer::Reply(reply)) => Ok(reply),
            Some(Answer::Unknown) | None => Err(self.unknown(what)),
        }
    }

    /// Reads values into fresh memory, a result each.
    pub(crate) async fn get(
        &self,
        keys: &[&[u8]],
        options: &GetOptions,
    ) -> Vec<Result<Option<Vec<u8>>, ClientError>> {
        let mut sinks: Vec<Sink<'_>> = keys.iter().map(|_| Sink::Fresh(Vec::new())).collect();
        let outcomes = self.read(keys, &mut sinks, options).await;
        let value = |(outcome, sink): (Outcome, Sink<'_>)| match (outcome?, sink) {
            (Some(_), Sink::Fresh(value)) => Ok(Some(value)),
            _ => Ok(None),
        };
        outcomes.into_iter().zip(sinks).map(value).collect()
    }

    /// Reads values into as many buffers, a result each.
    pub(crate) async fn get_into<'b>(
        &self,
        keys: &[&[u8]],
        buffers: impl Iterator<Item = &'b mut [u8]>,
        options: &GetOptions,
    ) -> Vec<Result<Option<usize>, ClientError>> {
        let mut sinks: Vec<Sink<'_>> = buffers.map(Sink::Given).collect();
        lengths(self.read(keys, &mut sinks, options).await)
    }

    pub(crate) async fn exists(&self, keys: &[&[u8]]) -> Result<Vec<bool>, ClientError> {
        let span = TraceSpan::root("slackwater.exists", SpanKind::Client).keys(keys.len());
        let found = span.awaiting(pin!(self.are_there(keys))).await;
        span.over(found, ClientError::code)
    }

    async fn are_there(&self, keys: &[&[u8]]) -> Result<Vec<bool>, ClientError> {
        const WHAT: &str = "exists";
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let asked = |keys: &[&[u8]]| {
            Ok::<_, ClientError>(Request::Exists(Exists {
                tenant: self.options.tenant.clone(),
                keys: KeyList::new(keys.iter().copied())?,
            }))
        };
        if keys.len() <= EXISTS_PIECE {
            return truths(self.ask(WHAT, asked(keys)?).await?, keys.len());
        }
        // A call that is refused for a later key must not have asked for those before.
        keys.iter().try_for_each(|key| Key::check(key))?;
        self.check_room()?;
        let send = |piece: &[&[u8]]| {
            let mut begun = Vec::new();
            let options = self.flow_options();
            // Not since the call began: a piece that is sent late has as much time for its answer.
            let flow = CallFlow::start(now(), asked(piece)?, options, &mut begun);
            Ok::<_, ClientError>((self.drive().send(flow, begun), piece.len()))
        };
        let mut found = Vec::with_capacity(keys.len());
        let mut pieces = keys.chunks(EXISTS_PIECE);
        // While the master looks at one piece, the next is written down and sent.
        let mut sent = pieces.next().map(send).transpose()?;
        while let Some((first, count)) = sent {
            sent = pieces.next().map(send).transpose()?;
            let reply = self.reply(WHAT, self.drive().hear(first).await)?;
            found.extend(truths(reply, count)?);
        }
        Ok(found)
    }

    pub(crate) async fn list(&self, list: List) -> Result<Listed, ClientError> {
        match self.ask("a list", Request::List(list)).await? {
            Reply::List(listed) => Ok(listed),
            reply => Err(refusal(&reply)),
        }
    }

    pub(crate) async fn stat(&self, key: &[u8]) -> Result<Option<Description>, ClientError> {
        let request = Request::Describe {
            tenant: self.options.tenant.clone(),
            key: Key::new(key)?,
        };
        match self.ask("a description", request).await? {
            Reply::Describe(description) => Ok(Some(*description)),
            Reply::Failed(ErrorCode::ObjectNotFound) => Ok(None),
            reply => Err(refusal(&reply)),
        }
    }

    pub(crate) async fn remove_matching(
        &self,
        pattern: String,
        force: bool,
    ) -> Result<u64, ClientError> {
        let matching = RemoveMatching {
            tenant: self.options.tenant.clone(),
            pattern,
            force,
        };
        self.count(Request::RemoveMatching(matching)).await
    }

    pub(crate) async fn remove_all(&self, force: bool) -> Result<u64, ClientError> {
        let tenant = Some(self.options.tenant.clone());
        self.count(Request::RemoveAll(RemoveAll { tenant, force }))
            .await
    }

    async fn count(&self, request: Request) -> Result<u64, ClientError> {
        let span = TraceSpan::root("slackwater.remove", SpanKind::Client);
        let reply = span.awaiting(pin!(self.ask("a removal", request))).await;
        let reply = span.over(reply, ClientError::code);
        self.client.locations().forget_all();
        match reply? {
            Reply::Count(removed) => Ok(removed),
            reply => Err(refusal(&reply)),
        }
    }

    pub(crate) async fn remove(&self, keys: &[&[u8]], force: bool) -> Vec<Result<(), ClientError>> {
        let request = |tenant, keys| {
            Request::Remove(Remove {
                tenant,
                keys,
                force,
            })
        };
        self.remove_by(keys, request).await
    }

    /// Removals that requests carry out, for so many keys each, a result each.
    async fn remove_by(
        &self,
        keys: &[&[u8]],
        request: impl Fn(Tenant, Vec<Key>) -> Request,
    ) -> Vec<Result<(), ClientError>> {
        let span = TraceSpan::root("slackwater.remove", SpanKind::Client).keys(keys.len());
        let mut removed = Vec::with_capacity(keys.len());
        for piece in keys.chunks(BATCH_KEYS_MAX) {
            removed.extend(
                span.awaiting(pin!(self.remove_piece(piece, &request)))
                    .await,
            );
        }
        span.each_over(removed, ClientError::code)
    }

    async fn remove_piece(
        &self,
        keys: &[&[u8]],
        request: impl Fn(Tenant, Vec<Key>) -> Request,
    ) -> Vec<Result<(), ClientError>> {
        let mut results: Vec<Result<(), ClientError>> = Vec::with_capacity(keys.len());
        let mut named = Vec::new();
        for key in keys {
            let key = Key::new(key).map(|key| named.push(key));
            results.push(key.map_err(ClientError::from));
        }
        if named.is_empty() {
            return results;
        }
        let request = request(self.options.tenant.clone(), named.clone());
        let removed = named.clone();
        let reply = self.ask("a removal", request).await;
        let each: Vec<Result<(), ClientError>> = match reply {
            Ok(Reply::Each(codes)) if codes.len() == named.len() => codes
                .into_iter()
                .zip(named)
                .map(|(code, key)| code.map_err(|code| ClientError::Refused { key, code }))
                .collect(),
            Ok(reply) => vec![Err(refusal(&reply)); named.len()],
            Err(error) => vec![Err(error); named.len()],
        };
        self.client.locations().forget(&removed);
        let mut each = each.into_iter();
        for result in results.iter_mut().filter(|result| result.is_ok()) {
            if let Some(outcome) = each.next() {
                *result = outcome;
            }
        }
        results
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("address", &self.0.options.address.to_string())
            .finish_non_exhaustive()
    }
}

pub(crate) fn only<T>(mut outcomes: Vec<Result<T, ClientError>>) -> Result<T, ClientError> {
    outcomes.pop().expect("one outcome for one key")
}

/// The length of each value that was read.
fn lengths(outcomes: Vec<Outcome>) -> Vec<Result<Option<usize>, ClientError>> {
    let length = |outcome: Outcome| outcome.map(|found| found.map(|found| found.bytes));
    outcomes.into_iter().map(length).collect()
}

/// What a master says of so many keys whose being there was asked for.
fn truths(reply: Reply, count: usize) -> Result<Vec<bool>, ClientError> {
    match reply {
        Reply::Exists(found) if found.len() == count => Ok(found),
        reply => Err(refusal(&reply)),
    }
}

/// What a reply of another kind than the request's means.
pub(crate) fn refusal(reply: &Reply) -> ClientError {
    match reply {
        Reply::Failed(code) => ClientError::RefusedCall(*code),
        _ => ClientError::RefusedCall(ErrorCode::InternalError),
    }
}
