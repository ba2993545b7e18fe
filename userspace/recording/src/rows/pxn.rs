//! Proxy steps in one process that belong to another process's ops (PXN): NCCL sends through another GPU of
//! the node, and the process of that GPU's rank executes the op.

use std::mem;

use foldhash::HashMap;

use super::processes::{Output, TracedProcess};
use flow::{
    decode::{Origin, ProxyStepEvent},
    model::{CommunicatorRank, Node, Owner},
};

#[cfg(test)]
mod tests;

/// Most steps that are kept until it is known whether their process has the rank that an op names. Each op
/// that is under way when a recording begins has some hundred messages.
const MAX_WAITING: usize = 1 << 16;

/// Steps whose op's poster is not known yet.
#[derive(Debug, Default)]
pub(crate) struct PxnPeers {
    waiting: Vec<ProxyStepEvent>,
    /// [`flow::model::ProxyRanks::changes`] when the waiting steps were last looked at.
    seen: u64,
}

/// The process that posted a step's op.
enum Poster {
    /// This process, and the step's process has the rank that the op names.
    Process(u32, CommunicatorRank),
    /// An op names a rank whose process is not known; it may be the step's.
    NotKnown,
    Nobody,
}

impl PxnPeers {
    /// Takes a step of a process that posted no such op.
    pub(super) fn step(
        &mut self,
        step: ProxyStepEvent,
        processes: &mut HashMap<u32, TracedProcess>,
        node: &mut Node,
        output: &mut Output,
    ) {
        match poster_of(&step, processes, node) {
            Poster::Process(tgid, at) if give(tgid, at, &step, processes, node, output) => {}
            Poster::NotKnown if self.waiting.len() < MAX_WAITING => self.waiting.push(step),
            _ => unjoined(&step, processes),
        }
    }

    /// Looks at waiting steps again if a rank's process has become known.
    pub(crate) fn look_again(
        &mut self,
        processes: &mut HashMap<u32, TracedProcess>,
        node: &mut Node,
        output: &mut Output,
    ) {
        if self.waiting.is_empty() {
            return;
        }
        let changes = node.proxy_ranks.changes();
        if mem::replace(&mut self.seen, changes) != changes {
            for step in mem::take(&mut self.waiting) {
                self.step(step, processes, node, output);
            }
        }
    }

    /// Gives up the steps of this process, or of all: no poster will be found any more.
    pub(super) fn give_up(&mut self, tgid: Option<u32>, processes: &mut HashMap<u32, TracedProcess>) {
        let is_over = |step: &mut ProxyStepEvent| tgid.is_none_or(|tgid| step.origin.tgid == tgid);
        for step in self.waiting.extract_if(.., is_over) {
            unjoined(&step, processes);
        }
    }
}

fn poster_of(step: &ProxyStepEvent, processes: &HashMap<u32, TracedProcess>, node: &Node) -> Poster {
    let (mut found, mut is_one, mut may_be) = (None, true, false);
    for (tgid, process) in processes {
        if *tgid == step.origin.tgid || !process.session.posts_elsewhere() {
            continue;
        }
        for at in process.session.executors(*tgid, step) {
            match node.proxy_ranks.owner(&at) {
                Owner::Process(owner) if owner == step.origin.tgid => {
                    is_one &= found.is_none();
                    found = Some((*tgid, at));
                }
                Owner::Unknown => may_be = true,
                Owner::Process(_) | Owner::Several => {}
            }
        }
    }
    match found {
        // A connection belongs to one poster.
        Some((tgid, at)) if is_one => Poster::Process(tgid, at),
        None if may_be => Poster::NotKnown,
        _ => Poster::Nobody,
    }
}

fn give(
    tgid: u32,
    at: CommunicatorRank,
    step: &ProxyStepEvent,
    processes: &mut HashMap<u32, TracedProcess>,
    node: &mut Node,
    output: &mut Output,
) -> bool {
    let Some(poster) = processes.get_mut(&tgid) else { return false };
    let by = Origin { tgid, lost: poster.lost_in_all(), ..step.origin };
    let TracedProcess { host, session, .. } = poster;
    session.step_elsewhere(at, step, &by, node, &mut |record| output.push(host.as_ref(), &record))
}

fn unjoined(step: &ProxyStepEvent, processes: &mut HashMap<u32, TracedProcess>) {
    if let Some(process) = processes.get_mut(&step.origin.tgid) {
        process.session.unjoined(step);
    }
}
