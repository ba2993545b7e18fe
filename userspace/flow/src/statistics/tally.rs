//! Fills the statistics of a session.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use super::{op_window::OpWindows, rank::RankStatistics, totals::Statistics};
use crate::{
    decode::{CommunicatorId, Event},
    quota::Shares,
    schema::{ApiCall, HostInfo, MessageRow, MessageSums, Op, RankKey},
};

/// Ranks that are kept apart: 64 communicators of the 8 ranks of a host. Each takes some kilobytes, more with
/// steps.
pub(super) const MAX_RANKS: usize = 512;
/// Ranks whose counted ops are remembered, a kilobyte each. Records of further ranks are left out and
/// counted.
const MAX_KNOWN_RANKS: usize = 8192;
/// Processes that are kept apart.
const MAX_PROCESSES: usize = 4096;
/// Time for which a process's statistics are still shown after its end: long enough for any scraper to see
/// the last of them.
const KEPT_AFTER_END_NS: u64 = 600_000_000_000;

/// Counts what passes through a pipeline.
#[derive(Debug, Default)]
pub struct Tally {
    /// Statistics until now. Readers share them; after that they are copied, rank by rank, when they change.
    statistics: Arc<Statistics>,
    counted: HashMap<RankKey, OpWindows>,
    /// Shares that processes have of `statistics.ranks`; `known`: those of `counted`.
    kept: Shares,
    known: Shares,
    /// Processes that have ended, and when, by the records' clock.
    ended: VecDeque<(u32, u64)>,
}

impl Tally {
    /// Returns the statistics until now.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Returns the statistics until now, to keep. Nothing is copied.
    pub fn snapshot(&self) -> Arc<Statistics> {
        Arc::clone(&self.statistics)
    }

    fn change(&mut self) -> &mut Statistics {
        Arc::make_mut(&mut self.statistics)
    }

    /// Counts an event, before the model gets it. `lost`: records of its process that are missing until now.
    pub fn event(&mut self, event: &Event, host: Option<&HostInfo>, lost: u64) {
        let Some(host) = host else { return };
        let Statistics { processes, launched, launched_left_out, .. } = self.change();
        if processes.len() < MAX_PROCESSES || processes.contains_key(&host.pid) {
            let process = processes.entry(host.pid).or_default();
            process.records += 1;
            process.lost = process.lost.max(lost);
        }
        let Some(&CommunicatorId { hash, rank, launched: Some(count), .. }) = communicator_of(event) else {
            return;
        };
        let key = (host.pid, hash, rank);
        if launched.len() < MAX_RANKS || launched.contains_key(&key) {
            let known = launched.entry(key).or_default();
            *known = count.max(*known);
        } else {
            *launched_left_out += 1;
        }
    }

    /// Counts an op on a channel.
    pub fn op(&mut self, op: &Op) {
        if let Some((rank, windows)) = self.rank(op.rank) {
            rank.op(op, windows);
        }
    }

    /// Counts messages of an op that was counted.
    pub fn messages(&mut self, op: &Op, messages: &[MessageRow]) {
        if self.counted.contains_key(&op.rank) {
            let Statistics { ranks, folded, .. } = self.change();
            ranks.get_mut(&op.rank).map_or(folded, Arc::make_mut).messages(messages);
        }
    }

    /// Counts messages that were only planned, of an op that was counted.
    pub fn message_sums(&mut self, op: &Op, sums: &[MessageSums]) {
        if self.counted.contains_key(&op.rank) {
            let Statistics { ranks, folded, .. } = self.change();
            ranks.get_mut(&op.rank).map_or(folded, Arc::make_mut).message_sums(sums);
        }
    }

    /// Counts a call of the API.
    pub fn call(&mut self, call: &ApiCall) {
        if let Some((rank, _)) = call.rank.and_then(|rank| self.rank(rank)) {
            rank.call(&call.row);
        }
    }

    /// Counts a record that could not be understood.
    pub fn undecodable(&mut self) {
        self.change().undecodable += 1;
    }

    /// Notes how many records wait to be counted.
    pub fn behind(&mut self, records: u64) {
        self.change().behind = records;
    }

    /// Notes how many records of a process are missing, as is known now.
    pub fn lost(&mut self, host: &HostInfo, lost: u64) {
        if let Some(process) = self.change().processes.get_mut(&host.pid) {
            process.lost = process.lost.max(lost);
        }
    }

    /// Notes that a process has ended, and that all its records are counted.
    pub fn process_ended(&mut self, host: &HostInfo, now_ns: u64) {
        self.ended.push_back((host.pid, now_ns));
        while let Some(&(pid, at_ns)) = self.ended.front()
            && (now_ns.saturating_sub(at_ns) > KEPT_AFTER_END_NS || self.ended.len() > MAX_PROCESSES)
        {
            self.ended.pop_front();
            self.forget(pid);
        }
    }

    /// Forgets which ops were counted, as the model numbers sends and receives from 0 again.
    pub fn numbers_begin_anew(&mut self) {
        self.counted.values_mut().for_each(|windows| *windows = OpWindows::default());
    }

    fn forget(&mut self, pid: u32) {
        let Statistics { ranks, processes, launched, folded_by_process, .. } = self.change();
        folded_by_process.remove(&pid);
        ranks.retain(|key, _| key.pid != pid);
        processes.remove(&pid);
        launched.retain(|key, _| key.0 != pid);
        self.counted.retain(|key, _| key.pid != pid);
        self.kept.forget(pid);
        self.known.forget(pid);
    }

    fn rank(&mut self, key: RankKey) -> Option<(&mut RankStatistics, &mut OpWindows)> {
        // Processes that have ended make room.
        while self.statistics.ranks.len() >= MAX_RANKS
            && !self.counted.contains_key(&key)
            && let Some((pid, _)) = self.ended.pop_front()
        {
            self.forget(pid);
        }
        let Self { statistics, counted, kept, known, .. } = self;
        let statistics = Arc::make_mut(statistics);
        let is_new = !counted.contains_key(&key);
        if is_new {
            if counted.len() >= MAX_KNOWN_RANKS && !forget_one(statistics, counted, kept, known, key.pid) {
                statistics.left_out += 1;
                return None;
            }
            known.take(key.pid, 1);
        }
        if is_new && statistics.ranks.len() >= MAX_RANKS {
            fold_one(statistics, kept, key.pid);
        }
        let windows = counted.entry(key).or_default();
        let Statistics { ranks, folded, folded_ranks, folded_by_process, .. } = statistics;
        if ranks.len() >= MAX_RANKS && !ranks.contains_key(&key) {
            if is_new {
                *folded_ranks += 1;
                *folded_by_process.entry(key.pid).or_default() += 1;
            }
            return Some((folded, windows));
        }
        let rank = ranks.entry(key).or_insert_with(|| {
            kept.take(key.pid, 1);
            Arc::default()
        });
        Some((Arc::make_mut(rank), windows))
    }
}

/// Makes room for a rank of this process among the ranks that are kept apart: a rank of the process that has
/// the most of them is counted together with others from now on.
fn fold_one(statistics: &mut Statistics, kept: &mut Shares, pid: u32) {
    let Some(largest) = kept.gives_up_for(pid) else { return };
    let Some(key) = statistics.ranks.keys().rev().find(|key| key.pid == largest).copied() else { return };
    statistics.ranks.remove(&key);
    statistics.launched.remove(&(key.pid, key.hash, key.rank));
    kept.give_back(largest, 1);
    statistics.folded_ranks += 1;
    *statistics.folded_by_process.entry(largest).or_default() += 1;
}

/// Makes room for a rank of this process among the ranks that are known: a rank of the process that has the
/// most of them is forgotten. `false`: this process has the most itself.
fn forget_one(
    statistics: &mut Statistics,
    counted: &mut HashMap<RankKey, OpWindows>,
    kept: &mut Shares,
    known: &mut Shares,
    pid: u32,
) -> bool {
    let Some(largest) = known.gives_up_for(pid) else { return false };
    let Some(key) = counted.keys().find(|key| key.pid == largest).copied() else { return false };
    counted.remove(&key);
    known.give_back(largest, 1);
    if statistics.ranks.remove(&key).is_some() {
        kept.give_back(largest, 1);
    }
    true
}

/// Returns the communicator of an event that names one.
fn communicator_of(event: &Event) -> Option<&CommunicatorId> {
    match event {
        Event::ProxyOp(event) => Some(&event.comm),
        Event::ApiCall(event) => Some(&event.comm),
        Event::Plan(event) => Some(&event.comm),
        Event::ApiLine(event) => event.comm.as_ref(),
        Event::CallWithoutCommunicator(_)
        | Event::ApiEntry(_)
        | Event::ApiReturn(_)
        | Event::ProxyPeer(_)
        | Event::ProxyStep(_)
        | Event::SendSize(_)
        | Event::PlanPart(_)
        | Event::Stack(_) => None,
    }
}
