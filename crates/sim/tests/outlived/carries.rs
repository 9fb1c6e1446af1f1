//! Values that nodes bring from each other, as a master asks them to.
//!
//! The question goes with its link; the node that was asked goes on all the same, and its extent stays until the write ends.

use super::*;

/// Copies under way, and the ends that the steward of the master has not told it yet.
#[derive(Default)]
pub(super) struct Carries {
    under_way: Vec<Carry>,
    ends: VecDeque<(TicketId, Result<(), ErrorCode>)>,
    /// Nothing fails any more.
    pub(super) healed: bool,
}

/// A value that a node brings into its memory.
struct Carry {
    node: usize,
    /// The master waits for the answer.
    asked: bool,
    task: CopyTask,
    stage: Stage,
}

/// How far it is.
enum Stage {
    Asked,
    /// Its extent is accessed.
    Begun(AccessId),
    /// The bytes, which are still to be written, or why there are none.
    Read(AccessId, Result<Vec<u64>, ErrorCode>),
}

impl Carries {
    /// The master is gone: nobody waits for answers.
    pub(super) fn unask_all(&mut self) {
        self.under_way.iter_mut().for_each(|it| it.asked = false);
        self.ends.clear();
    }

    /// The link to a node is gone, and with it the questions.
    pub(super) fn fail(&mut self, node: usize) {
        let asked = self.under_way.iter_mut();
        for carry in asked.filter(|it| it.node == node && it.asked) {
            carry.asked = false;
            let code = ErrorCode::UnavailableInCurrentStatus;
            self.ends.push_back((carry.task.ticket, Err(code)));
        }
    }

    /// The process of a node is gone.
    pub(super) fn forget(&mut self, node: usize) {
        self.under_way.retain(|carry| carry.node != node);
    }
}

impl Pool {
    /// Asks a node for a copy, if there is a link.
    pub(super) fn ask_copy(&mut self, node: NodeId, task: CopyTask) {
        let at = node.0 as usize;
        let linked = |at: usize| {
            let link = self.nodes[at].link.as_ref();
            link.is_some_and(|link| link.greeted) && self.members.contains_key(&(at as u32))
        };
        let refused = match (linked(at), linked(task.from.0 as usize)) {
            (false, _) => Some(ErrorCode::UnavailableInCurrentStatus),
            (true, false) => Some(ErrorCode::ReplicaIsGone),
            (true, true) => None,
        };
        match refused {
            Some(code) => self.carries.ends.push_back((task.ticket, Err(code))),
            None => self.carries.under_way.push(Carry {
                node: at,
                asked: true,
                task,
                stage: Stage::Asked,
            }),
        }
    }

    /// A step of any copy, or the news of one that has ended.
    pub(super) fn carry_any(&mut self) {
        if self.rng.below(2) == 0 {
            return self.tell_end();
        }
        if !self.carries.under_way.is_empty() {
            let at = self.rng.below(self.carries.under_way.len() as u64);
            self.carry_on(at as usize);
        }
    }

    /// Everything that is under way ends, and the master is told.
    pub(super) fn carry_all(&mut self) {
        while !self.carries.under_way.is_empty() {
            self.carry_on(0);
        }
        while !self.carries.ends.is_empty() {
            self.tell_end();
        }
    }

    fn tell_end(&mut self) {
        if let Some((ticket, result)) = self.carries.ends.pop_front() {
            self.input(Input::Copied { ticket, result });
        }
    }

    fn carry_on(&mut self, at: usize) {
        let Carry {
            node,
            asked,
            task,
            stage,
        } = self.carries.under_way.swap_remove(at);
        let stage = match stage {
            Stage::Asked => match self.nodes[node].begin(&task.target, Access::Write) {
                Some(access) => Stage::Begun(access),
                None => return self.answer(asked, &task, Err(ErrorCode::ReplicaIsGone)),
            },
            Stage::Begun(access) => Stage::Read(access, self.read_source(&task)),
            Stage::Read(access, read) => {
                let result = self.write_target(node, &task, access, read);
                return self.answer(asked, &task, result);
            }
        };
        let carry = Carry {
            node,
            asked,
            task,
            stage,
        };
        self.carries.under_way.push(carry);
    }

    fn answer(&mut self, asked: bool, task: &CopyTask, result: Result<(), ErrorCode>) {
        if asked {
            self.carries.ends.push_back((task.ticket, result));
        }
    }

    /// Reads the bytes by the capability that the master made.
    fn read_source(&mut self, task: &CopyTask) -> Result<Vec<u64>, ErrorCode> {
        let ReplicaAt::Memory(extent) = task.source else {
            unreachable!("there are no disks");
        };
        let fails = !self.carries.healed && self.rng.below(12) == 0;
        let source = &mut self.nodes[task.from.0 as usize];
        let access = source.begin(&extent, Access::Read);
        let access = access.ok_or(ErrorCode::ReplicaIsGone)?;
        let first = (extent.offset / GRANULE) as usize;
        let count = task.bytes.div_ceil(GRANULE) as usize;
        let read = source.stamps[first..first + count].to_vec();
        match source.end_access(access) {
            _ if fails => Err(ErrorCode::TransferFail),
            true => Ok(read),
            false => Err(ErrorCode::ReplicaIsGone),
        }
    }

    /// Writes the bytes and verifies them in their extent.
    fn write_target(
        &mut self,
        node: usize,
        task: &CopyTask,
        access: AccessId,
        read: Result<Vec<u64>, ErrorCode>,
    ) -> Result<(), ErrorCode> {
        let node = &mut self.nodes[node];
        let filled = read.and_then(|read| {
            let first = (task.target.offset / GRANULE) as usize;
            node.stamps[first..first + read.len()].copy_from_slice(&read);
            match read.iter().all(|it| Checksum(*it) == task.checksum) {
                true => Ok(()),
                false => Err(ErrorCode::ChecksumMismatch),
            }
        });
        match node.end_access(access) {
            true => filled,
            false => Err(ErrorCode::ReplicaIsGone),
        }
    }
}
