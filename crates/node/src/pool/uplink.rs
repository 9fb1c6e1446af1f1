//! A node's link to its master: orders that come down, and reports that go up, each once and in order.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slackwater_base::Instant;
use slackwater_mq::{
    Answer, Call, ConnectionId, Deferred, LinkEvent, Mq, Refusal, RequestError, RequestOptions,
    SendOptions,
};
use slackwater_trace::{SpanKind, TraceSpan};
use slackwater_wait::{Event, Park, Site, Waiting, failpoint, now};
use slackwater_wire::{
    AnnounceFirst, Attached, BytesCopied, CheckWritten, CopyBytes, Epoch, ErrorCode, JobState,
    NodeHello, NodeLeave, NodeLeft, NodeLife, NodeName, NodeWelcome, NumberedReceiver,
    NumberedSender, Orders, RecordStaged, Release, Report, Reports, StageRecord, Written,
    WrittenChecked, body,
};
use slackwater_zmtp::PublicKey;

use super::at_once::AtOnce;
use super::bring::Sources;
use crate::StoreError;
use crate::serve::memory::{ServedMemory, Transfers};
use crate::store::remote::{Deliver, Outbound};

/// See the module. Of its locks, that of orders is taken before the store's, and that of reports under it.
pub(super) struct Uplink {
    name: Option<NodeName>,
    transfers: Transfers,
    sources: Sources,
    /// None before it is known and after the end: the message layer holds this.
    mq: Mutex<Option<Mq>>,
    /// The latest epoch that was seen.
    epoch: AtomicU64,
    orders: Mutex<NumberedReceiver>,
    /// The last order that was carried out.
    taken: AtomicU64,
    pub(super) at_once: Mutex<AtOnce>,
    reports: Mutex<UplinkReports>,
    news: Arc<News>,
}

struct UplinkReports {
    life: NodeLife,
    /// The store waits for room to announce more.
    room_wanted: bool,
    sender: NumberedSender<Report>,
    /// The link on which the master has welcomed the node.
    link: Option<ConnectionId>,
    /// Up to which format the master reads reports.
    reads: u8,
    welcomed: bool,
}

/// What the thread of a node acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Happened {
    /// A link is up.
    Up(ConnectionId),
    /// The master has answered a hello on this link.
    Answered(ConnectionId, Attached),
    /// It has not.
    Unanswered(ConnectionId),
    /// What came on the link of this attempt does not fit, or it could not take what was sent: it must be made anew.
    Broken(Attempt),
    /// The store takes no orders any more.
    StoreBroken,
}

impl Happened {
    /// Whether it concerns this attempt, or the link that last came up in it: what an earlier one could not take, or was not
    /// answered, says nothing of it.
    pub(super) fn concerns(&self, link: Option<ConnectionId>, attempt: Attempt) -> bool {
        match self {
            Happened::Answered(of, _) | Happened::Unanswered(of) => Some(*of) == link,
            Happened::Broken(of) => *of == attempt,
            Happened::Up(_) | Happened::StoreBroken => true,
        }
    }
}

/// A link to the master that was asked for. Later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attempt(u64);

/// What happened to the links, for the thread of the node.
#[derive(Default)]
struct News {
    happened: Mutex<VecDeque<Happened>>,
    bell: Event,
    attempt: AtomicU64,
}

pub(crate) static HAPPENED: Site = Site::new("node, link");
/// The category of requests that wait.
pub(super) const ON_WORKERS: &str = "work";
/// How long the answer to a hello may take.
const HELLO_TIME: Duration = Duration::from_secs(5);

impl Uplink {
    pub(super) fn new(
        transfers: Transfers,
        life: NodeLife,
        name: Option<NodeName>,
        at_once: AtOnce,
    ) -> Self {
        Self {
            name,
            transfers,
            sources: Sources::default(),
            mq: Mutex::default(),
            epoch: AtomicU64::new(0),
            orders: Mutex::default(),
            taken: AtomicU64::new(0),
            at_once: Mutex::new(at_once),
            reports: Mutex::new(UplinkReports {
                life,
                room_wanted: false,
                sender: NumberedSender::new(),
                link: None,
                reads: body::FORMAT,
                welcomed: false,
            }),
            news: Arc::default(),
        }
    }

    /// Sends by this message layer.
    pub(super) fn send_by(&self, mq: Mq) {
        *lock(&self.mq) = Some(mq);
    }

    /// Sends nothing any more.
    pub(super) fn end(&self) {
        self.close();
        lock(&self.mq).take();
    }

    /// The next that happened, waited for until `until`; none then, or when it is over.
    pub(super) fn next(&self, until: Instant) -> Option<Happened> {
        loop {
            // Taken before the look: what happens from here on ends the wait.
            let seen = self.news.bell.seen();
            if let Some(happened) = lock(&self.news.happened).pop_front() {
                return Some(happened);
            }
            let waiting = Waiting::at(&HAPPENED).by(&Park).until(until);
            if self.news.bell.is_closed() || self.news.bell.wait(seen, &waiting).is_err() {
                return None;
            }
        }
    }

    /// Sleeps until `until`, or until it is over.
    pub(super) fn rest(&self, until: Instant) {
        while !self.news.bell.is_closed() && now() < until {
            let waiting = Waiting::at(&HAPPENED).by(&Park).until(until);
            // What happens meanwhile is looked at later.
            let _ = self.news.bell.wait(self.news.bell.seen(), &waiting);
        }
    }

    /// Nothing is waited for from now on.
    pub(super) fn close(&self) {
        self.news.bell.close();
    }

    /// Whether nothing is waited for any more.
    pub(super) fn is_closed(&self) -> bool {
        self.news.bell.is_closed()
    }

    fn tell(&self, happened: Happened) {
        self.news.tell(happened);
    }

    /// Another link is about to be asked for: what comes of earlier ones breaks nothing any more.
    pub(super) fn begin_attempt(&self) -> Attempt {
        let mut reports = self.reports();
        reports.link = None;
        Attempt(self.news.attempt.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// A link came or went.
    pub(super) fn link(&self, event: &LinkEvent) {
        match event {
            LinkEvent::Up { connection, .. } => self.tell(Happened::Up(*connection)),
            LinkEvent::Down { connection, .. } => {
                let mut reports = self.reports();
                if reports.link == Some(*connection) {
                    reports.link = None;
                }
            }
            LinkEvent::Refused { .. } => {}
        }
    }

    /// The master does not know this life: the next one is new to it, and has taken and reported nothing.
    ///
    /// # Errors
    /// When the store is closed or broken.
    pub(super) fn begin_again(
        &self,
        life: NodeLife,
        memory: &ServedMemory,
    ) -> Result<(), StoreError> {
        // Before the queue is emptied: the next master must hear nothing of it.
        memory.store.stop_announcing()?;
        let mut orders = lock(&self.orders);
        let mut reports = self.reports();
        *reports = UplinkReports {
            life,
            room_wanted: false,
            sender: NumberedSender::new(),
            link: None,
            reads: body::FORMAT,
            welcomed: false,
        };
        *orders = NumberedReceiver::default();
        self.taken.store(0, Ordering::Release);
        Ok(())
    }

    /// Tells the master who this is.
    pub(super) fn greet(self: &Arc<Self>, link: ConnectionId, memory: &Arc<ServedMemory>) {
        let (life, welcomed) = {
            let reports = self.reports();
            (reports.life, reports.welcomed)
        };
        // Before it is told to one that takes this node anew: others may have heard it.
        if !welcomed && let Err(error) = memory.rotate_key() {
            tracing::error!(%error, "the key of capabilities stays as it was");
        }
        let hello = NodeHello {
            epoch: self.epoch(),
            node: memory.store.node(),
            life,
            welcomed,
            taken: self.taken.load(Ordering::Acquire),
            segments: memory.store.mounts(self.name.as_ref()),
            memory: memory.access(),
        };
        let body = body::encode(&hello).expect("a hello is short");
        let options = RequestOptions {
            timeout: Some(HELLO_TIME),
            inline: true,
            ..RequestOptions::default()
        };
        let (uplink, memory) = (Arc::downgrade(self), Arc::downgrade(memory));
        let heard = move |answer: Result<Answer, RequestError>| {
            if let (Some(uplink), Some(memory)) = (uplink.upgrade(), memory.upgrade()) {
                uplink.heard(link, &memory, answer);
            }
        };
        if let Some(mq) = self.mq() {
            mq.request(link, "nodes.hello", [body], &options, heard);
        }
    }

    fn heard(
        &self,
        link: ConnectionId,
        memory: &ServedMemory,
        answer: Result<Answer, RequestError>,
    ) {
        let welcome = match answer {
            Err(RequestError::Refused(Refusal::UnknownCommand)) => {
                let refused = Attached::Refused(ErrorCode::NotSupported);
                return self.tell(Happened::Answered(link, refused));
            }
            Ok(answer) => body::decode::<NodeWelcome>(answer.part(0).unwrap_or_default())
                .map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let welcome = match welcome {
            Ok(welcome) => welcome,
            Err(reason) => {
                tracing::warn!(reason, "the master did not answer");
                return self.tell(Happened::Unanswered(link));
            }
        };
        if let Err(stale) = self.hear(welcome.epoch) {
            return self.tell(Happened::Answered(link, Attached::Refused(stale)));
        }
        let mut reports = self.reports();
        let goes_on = match welcome.attached {
            Attached::New { .. } => true,
            Attached::Resumed { taken } => reports.sender.resume(taken).is_ok(),
            Attached::Unknown | Attached::Refused(_) => false,
        };
        let attached = match welcome.attached {
            Attached::Resumed { .. } if !goes_on => Attached::Unknown,
            attached => attached,
        };
        if goes_on {
            reports.link = Some(link);
            reports.reads = welcome.reads;
            reports.welcomed = true;
        }
        drop(reports);
        // Before any order is carried out, which may come from now on.
        if let Attached::New { floor } = attached
            && memory.store.begin_announcing(floor).is_err()
        {
            return self.tell(Happened::StoreBroken);
        }
        self.tell(Happened::Answered(link, attached));
        // Orders may have come before the welcome, and a master may wait to hear how far they were taken: while there was no link
        // to send by, nobody could tell it.
        self.send(goes_on);
    }

    /// `node.orders`, which is not answered.
    pub(super) fn orders(&self, memory: &ServedMemory, call: &Call<'_>) {
        let broken = || self.tell(Happened::Broken(self.news.attempt()));
        let Ok(message) = body::decode::<Orders>(call.part(0).unwrap_or_default()) else {
            return broken();
        };
        if self.hear(message.epoch).is_err() {
            return;
        }
        // Held until the orders are carried out, so that none overtakes another.
        let mut receiver = lock(&self.orders);
        let (acknowledged, room) = {
            let mut reports = self.reports();
            let acknowledged = reports.sender.acknowledge(message.taken);
            let room = reports.room_wanted && reports.sender.has_room();
            reports.room_wanted &= !room;
            (acknowledged, room)
        };
        let orders = acknowledged.and_then(|()| receiver.accept(message.first, message.orders));
        let Ok(orders) = orders else {
            return broken();
        };
        failpoint("node.ordered");
        if (room || !orders.is_empty()) && memory.store.obey(orders).is_err() {
            return self.tell(Happened::StoreBroken);
        }
        failpoint("node.obeyed");
        self.taken.store(receiver.taken(), Ordering::Release);
        let owes = receiver.owes() || message.asks;
        if owes {
            receiver.tell();
        }
        drop(receiver);
        self.send(owes);
    }

    /// `node.announce_first`, which is not answered.
    pub(super) fn announce_first(&self, memory: &ServedMemory, call: &Call<'_>) {
        let asked = body::decode::<AnnounceFirst>(call.part(0).unwrap_or_default());
        let Some(asked) = asked.ok().filter(|asked| self.hear(asked.epoch).is_ok()) else {
            return;
        };
        if memory.store.announce_first(&asked.names).is_err() {
            self.tell(Happened::StoreBroken);
        }
    }

    /// `bytes.check`: at once, unless it takes long or has to wait.
    pub(super) fn check(self: &Arc<Self>, memory: &Arc<ServedMemory>, call: &Call<'_>) {
        let body = call.part(0).unwrap_or_default();
        let written = match self.written(body) {
            Ok(written) => written,
            Err(code) => {
                let _ = call.reply([self.checked(Err(code))]);
                return;
            }
        };
        let begun = now();
        let admitted = lock(&self.at_once).admits(begun, &written);
        let check = || {
            let checked = memory.store.check_now(&written);
            // Also where writes are under way: clients decide how often that is.
            lock(&self.at_once).took(begun, now());
            checked
        };
        match admitted.then(check).flatten() {
            Some(result) => _ = call.reply([self.checked(result)]),
            None => self.on_worker(memory, call, |uplink, memory, body| {
                let written = uplink.written(body);
                let result = written.and_then(|written| memory.store.check_written(&written));
                uplink.checked(result)
            }),
        }
    }

    fn written(&self, body: &[u8]) -> Result<Vec<Written>, ErrorCode> {
        let check = body::decode::<CheckWritten>(body).map_err(|_| ErrorCode::DeserializeFail)?;
        self.hear(check.epoch)?;
        Ok(check.written)
    }

    fn checked(&self, result: Result<(), ErrorCode>) -> Vec<u8> {
        failpoint("node.checked");
        let epoch = self.epoch();
        body::encode(&WrittenChecked { epoch, result }).expect("an answer is short")
    }

    /// Leaves a request to a worker, which may wait.
    pub(super) fn on_worker(
        self: &Arc<Self>,
        memory: &Arc<ServedMemory>,
        call: &Call<'_>,
        answer: impl FnOnce(&Self, &ServedMemory, &[u8]) -> Vec<u8> + Send + 'static,
    ) {
        let body = call.part(0).unwrap_or_default().to_vec();
        let (uplink, memory) = (Arc::clone(self), Arc::clone(memory));
        let bytes = body.len();
        let task = move |deferred: Deferred| deferred.reply([answer(&uplink, &memory, &body)]);
        // Where too many wait the master is told, and may ask again; what is no request is not answered.
        let _ = call.defer_to(ON_WORKERS, bytes, task);
    }

    /// `bytes.copy`: on a worker, as it waits for the bytes.
    pub(super) fn copy(&self, memory: &ServedMemory, body: &[u8]) -> Vec<u8> {
        let result = body::decode::<CopyBytes>(body)
            .map_err(|_| ErrorCode::DeserializeFail)
            .and_then(|copy| {
                self.hear(copy.epoch)?;
                self.sources.bring(memory, &copy)
            });
        let epoch = self.epoch();
        body::encode(&BytesCopied { epoch, result }).expect("an answer is short")
    }

    /// `bytes.stage`: on a worker, as it waits for the SSD.
    pub(super) fn stage(&self, memory: &ServedMemory, body: &[u8]) -> Vec<u8> {
        let result = body::decode::<StageRecord>(body)
            .map_err(|_| ErrorCode::DeserializeFail)
            .and_then(|stage| {
                let holder = stage.holder.map(PublicKey::from_bytes);
                let trace = stage.record.trace;
                let mut span = TraceSpan::of(trace, "slackwater.node.stage", SpanKind::Server);
                let staged = span.during(|| memory.stage(holder, &stage.record, stage.lease));
                staged.inspect_err(|code| span.fail(code))
            });
        let epoch = self.epoch();
        body::encode(&RecordStaged { epoch, result }).expect("a place is short")
    }

    /// Tells the master that this node is about to end, and waits until what only its memory holds has gone, for `time` at
    /// most. What went and what did not; none without a link.
    pub(super) fn leave(&self, time: Duration) -> Option<Result<JobState, String>> {
        let (link, mq) = (self.reports().link?, self.mq()?);
        let leave = NodeLeave {
            epoch: self.epoch(),
            time,
        };
        let body = body::encode(&leave).expect("a leave is short");
        let options = RequestOptions {
            // The master answers at its end.
            timeout: Some(time + HELLO_TIME),
            ..RequestOptions::default()
        };
        let answer = mq.request_wait(link, "nodes.leave", [body], &options);
        let left = answer
            .map_err(|error| error.to_string())
            .and_then(|answer| {
                let left = body::decode::<NodeLeft>(answer.part(0).unwrap_or_default());
                left.map_err(|error| error.to_string())
            });
        Some(left.and_then(|left| match left.result {
            Ok(state) => Ok(*state),
            Err(code) => Err(code.to_string()),
        }))
    }

    /// `node.release`, which is not answered.
    pub(super) fn release(memory: &ServedMemory, call: &Call<'_>) {
        if let Ok(release) = body::decode::<Release>(call.part(0).unwrap_or_default()) {
            memory.give_back(&release);
        }
    }

    /// Sends what is queued, and with `always` at least how far orders were taken, and what the clock shows.
    pub(super) fn send(&self, always: bool) {
        let mut reports = self.reports();
        let (Some(link), Some(mq)) = (reports.link, self.mq()) else {
            return;
        };
        let mut alone = always;
        while let Some((first, messages)) = reports
            .sender
            .take()
            .or_else(|| alone.then(Default::default))
        {
            alone = false;
            let message = Reports {
                epoch: self.epoch(),
                taken: self.taken.load(Ordering::Acquire),
                first,
                clock_nanos: now().as_nanos(),
                reports: messages,
            };
            match body::encode_reports(reports.reads, &message) {
                Ok(body) => {
                    let (news, attempt) = (Arc::clone(&self.news), self.news.attempt());
                    // What a link cannot take is sent again on the next one.
                    let on_failure = move |_| news.tell(Happened::Broken(attempt));
                    let options = SendOptions {
                        on_failure: Some(Box::new(on_failure)),
                        ..SendOptions::default()
                    };
                    mq.send_with(link, "nodes.reports", [body], options);
                }
                Err(error) => return tracing::error!(%error, "a report could not be sent"),
            }
        }
    }

    fn mq(&self) -> Option<Mq> {
        lock(&self.mq).clone()
    }

    /// A master of this epoch has spoken.
    ///
    /// # Errors
    /// [`ErrorCode::StaleEpoch`] when a later one has before.
    fn hear(&self, epoch: Epoch) -> Result<(), ErrorCode> {
        match self.epoch.fetch_max(epoch.0, Ordering::AcqRel) {
            seen if seen > epoch.0 => Err(ErrorCode::StaleEpoch),
            _ => Ok(()),
        }
    }

    fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    fn reports(&self) -> MutexGuard<'_, UplinkReports> {
        lock(&self.reports)
    }
}

impl News {
    fn tell(&self, happened: Happened) {
        lock(&self.happened).push_back(happened);
        self.bell.notify_all();
    }

    fn attempt(&self) -> Attempt {
        Attempt(self.attempt.load(Ordering::Acquire))
    }
}

impl Deliver for Uplink {
    fn queue(&self, reports: Vec<Report>) {
        let mut queued = self.reports();
        reports
            .into_iter()
            .for_each(|report| queued.sender.push(report));
    }

    fn has_room(&self) -> bool {
        let mut reports = self.reports();
        let room = reports.sender.has_room();
        reports.room_wanted |= !room;
        room
    }

    fn deliver(&self, outbound: Outbound) {
        self.transfers.release(&outbound.released);
        self.send(false);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hello that failed on a link which was given up was sent again on that link, and failed again, for as long as the node lived.
    #[test]
    fn what_becomes_of_an_earlier_link_is_passed_over() {
        let node = |byte| ConnectionId::Node(slackwater_zmtp::PublicKey::from_bytes([byte; 32]));
        let (link, earlier) = (node(2), node(1));
        let (now, before) = (Attempt(2), Attempt(1));
        let check = |happened: fn(ConnectionId, Attempt) -> Happened, passed_over: bool| {
            assert!(happened(link, now).concerns(Some(link), now));
            assert_eq!(
                !happened(earlier, before).concerns(Some(link), now),
                passed_over
            );
            assert_eq!(!happened(earlier, before).concerns(None, now), passed_over);
        };
        check(|link, _| Happened::Up(link), false);
        check(|link, _| Happened::Unanswered(link), true);
        check(|link, _| Happened::Answered(link, Attached::Unknown), true);
        check(|_, attempt| Happened::Broken(attempt), true);
        check(|_, _| Happened::StoreBroken, false);
    }
}
