use std::collections::BTreeMap;

use slackwater_base::Map;
use slackwater_wire::limits::BATCH_KEYS_MAX;
use slackwater_wire::{
    ClientId, CopyTask, DiskEntry, ErrorCode, ExtentRef, NodeId, ObjectName, OffloadTask,
    OperationId, Order, Published, Reply, SegmentId,
};

use crate::Output;

/// The replies and orders of one step, gathered so that each node gets one order of a kind.
#[derive(Default)]
pub(crate) struct Outbox {
    replies: Vec<Output>,
    orders: Vec<Output>,
    offloads: BTreeMap<NodeId, Vec<OffloadTask>>,
    drops: BTreeMap<NodeId, Vec<DiskEntry>>,
    published: BTreeMap<NodeId, Vec<Published>>,
    fences: BTreeMap<NodeId, Vec<ExtentRef>>,
    /// What nodes have taken when they have taken all orders of this step.
    marks: BTreeMap<NodeId, u64>,
    copies: Vec<Output>,
    asked: Vec<Output>,
}

impl Outbox {
    pub(crate) fn reply(&mut self, client: ClientId, operation: OperationId, reply: Reply) {
        self.replies.push(Output::Reply {
            client,
            operation,
            reply,
        });
    }

    pub(crate) fn order(&mut self, node: NodeId, order: Order) {
        self.orders.push(Output::Order { node, order });
    }

    pub(crate) fn offload(&mut self, node: NodeId, task: OffloadTask) {
        self.offloads.entry(node).or_default().push(task);
    }

    pub(crate) fn drop(&mut self, node: NodeId, entry: DiskEntry) {
        self.drops.entry(node).or_default().push(entry);
    }

    pub(crate) fn fence(&mut self, node: NodeId, extent: ExtentRef) {
        self.fences.entry(node).or_default().push(extent);
    }

    pub(crate) fn publish(&mut self, node: NodeId, published: Published) {
        self.published.entry(node).or_default().push(published);
    }

    /// The mark behind the orders that a node is given in this step, with which there is one at least: one above `newest` if it
    /// has none yet.
    pub(crate) fn mark(&mut self, node: NodeId, newest: &mut u64) -> u64 {
        self.published.entry(node).or_default();
        *self.marks.entry(node).or_insert_with(|| {
            *newest += 1;
            *newest
        })
    }

    pub(crate) fn copy(&mut self, node: NodeId, task: CopyTask) {
        self.copies.push(Output::Copy { node, task });
    }

    pub(crate) fn announce_first(&mut self, nodes: Vec<NodeId>, names: Vec<ObjectName>) {
        self.asked.push(Output::AnnounceFirst { nodes, names });
    }

    /// A segment is gone: its extents cannot be fenced any more, and need not be.
    pub(crate) fn forget_segment(&mut self, segment: SegmentId) {
        for extents in self.fences.values_mut() {
            extents.retain(|extent| extent.segment != segment);
        }
        self.fences.retain(|_, extents| !extents.is_empty());
    }

    /// A node is gone: discards its orders.
    pub(crate) fn forget_node(&mut self, node: NodeId) {
        self.orders
            .retain(|output| !matches!(output, Output::Order { node: to, .. } if *to == node));
        self.offloads.remove(&node);
        self.drops.remove(&node);
        self.published.remove(&node);
        self.fences.remove(&node);
        self.marks.remove(&node);
    }

    /// Moves everything to `out`: orders to nodes before the replies about them.
    pub(crate) fn flush(&mut self, out: &mut Vec<Output>) {
        in_parts(&mut self.offloads, Order::Offload, out);
        in_parts(&mut self.drops, Order::Drop, out);
        out.append(&mut self.orders);
        in_parts(&mut self.published, Order::Published, out);
        in_parts(&mut self.fences, Order::Fence, out);
        let marks = std::mem::take(&mut self.marks).into_iter();
        out.extend(marks.map(|(node, mark)| Output::AwaitTaken { node, mark }));
        out.append(&mut self.copies);
        out.append(&mut self.asked);
        out.append(&mut self.replies);
    }
}

/// Orders each node as many items at a time as one message carries.
fn in_parts<T>(
    items: &mut BTreeMap<NodeId, Vec<T>>,
    order: fn(Vec<T>) -> Order,
    out: &mut Vec<Output>,
) {
    while let Some((node, items)) = items.pop_first() {
        let mut items = items.into_iter().peekable();
        loop {
            let order = order(items.by_ref().take(BATCH_KEYS_MAX).collect());
            out.push(Output::Order { node, order });
            if items.peek().is_none() {
                break;
            }
        }
    }
}

/// Identifies a reply that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AckId(u64);

/// One outcome within a reply that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Waiter {
    pub(crate) ack: AckId,
    pub(crate) at: u32,
}

/// Replies that are sent when everything that they acknowledge is durable, or noted by nodes.
#[derive(Default)]
pub(crate) struct Acks {
    next: u64,
    open: Map<AckId, Ack>,
}

struct Ack {
    client: ClientId,
    operation: OperationId,
    /// Number of writes, drops and marks that are waited for, plus one while the request is being handled.
    waiting: u32,
    answer: Answer,
}

/// The reply that will be sent.
pub(crate) enum Answer {
    Each(Vec<Result<(), ErrorCode>>),
    Count(u64),
    Failed(ErrorCode),
}

impl Acks {
    pub(crate) fn open(
        &mut self,
        client: ClientId,
        operation: OperationId,
        answer: Answer,
    ) -> AckId {
        self.next += 1;
        let id = AckId(self.next);
        self.open.insert(
            id,
            Ack {
                client,
                operation,
                waiting: 1,
                answer,
            },
        );
        id
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// The reply waits for one more write, drop or mark.
    pub(crate) fn wait(&mut self, waiter: Waiter) -> Waiter {
        self.at(waiter.ack).waiting += 1;
        waiter
    }

    pub(crate) fn fail(&mut self, waiter: Waiter, code: ErrorCode) {
        let ack = self.at(waiter.ack);
        match &mut ack.answer {
            Answer::Each(results) => results[waiter.at as usize] = Err(code),
            Answer::Count(_) => ack.answer = Answer::Failed(code),
            Answer::Failed(_) => {}
        }
    }

    /// Adds one object to an answer that is a number.
    pub(crate) fn count(&mut self, id: AckId) {
        if let Answer::Count(count) = &mut self.at(id).answer {
            *count += 1;
        }
    }

    /// One of them is there, or the request is handled; if the reply waits for nothing else, it is sent.
    pub(crate) fn done(&mut self, id: AckId, outbox: &mut Outbox) {
        let ack = self.at(id);
        ack.waiting -= 1;
        if ack.waiting > 0 {
            return;
        }
        let Ack {
            client,
            operation,
            answer,
            ..
        } = self.open.remove(&id).expect("found above");
        let reply = match answer {
            Answer::Each(results) => Reply::Each(results),
            Answer::Count(count) => Reply::Count(count),
            Answer::Failed(code) => Reply::Failed(code),
        };
        outbox.reply(client, operation, reply);
    }

    fn at(&mut self, id: AckId) -> &mut Ack {
        self.open
            .get_mut(&id)
            .expect("an answer stays open while it waits for anything")
    }
}
