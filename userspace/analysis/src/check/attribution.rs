//! Attributes each message's delay: to its rank's own GPU, to the peer whose data it needed, or to the peer
//! that had not taken earlier messages.
//!
//! A GPU fills the slot of a send once it has a free slot and the data that it is made of, and, on one
//! connection, in order. The pattern tells which receives a send is made of: in a ring, what came one ring
//! step earlier; in a tree, on the way up the children's, on the way down the parent's, and at the root,
//! where the way turns, the children's. So the time from one send to the next is the wait for whichever came
//! last, and after that the GPU's own. All times are of one rank: no clock is compared with another's.

use flow::schema::{MessageRow, Stage};
use foldhash::{HashMap, HashMapExt as _, HashSet};
use nccl_library::nccl::Direction;

use crate::slow::{RankWaits, Shares};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// This rank's GPU: it had all that it needed.
    Own,
    /// Data from this peer.
    Data(i32),
    /// A free slot: this peer, or the network to it, had not taken earlier messages.
    Slot(i32),
}

/// Waits of one rank by cause.
#[derive(Debug, Default)]
pub(super) struct Attribution {
    pub(super) waits: RankWaits,
    pub(super) shares: Shares,
    /// Messages that were judged.
    pub(super) messages: u64,
    /// Messages of patterns where the inputs of sends are not known.
    pub(super) not_judged: u64,
}

/// Key under which a send finds its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum DataPlace {
    /// Ring: repetition, ring step, slice.
    Ring(u64, u64, u64),
    /// On the way up, or the only way there is: by FIFO step.
    Up(u64),
    /// On the way down.
    Down(u64),
}

/// Fields of a message's row that tell what it waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimedMessage {
    pub(super) seq: u64,
    pub(super) channel: u32,
    op: Direction,
    peer: i32,
    stage: Stage,
    step: u64,
    loop_index: u64,
    ring_step: Option<u64>,
    slice: u64,
    is_measured: bool,
    begin: Option<u64>,
    filled: Option<u64>,
    arrived: Option<u64>,
    end: Option<u64>,
}

impl TimedMessage {
    pub(super) fn of(row: &MessageRow) -> Self {
        Self {
            seq: row.seq,
            channel: row.channel,
            op: row.op,
            peer: row.peer,
            stage: row.stage,
            step: row.step,
            loop_index: row.loop_index,
            ring_step: row.ring_step,
            slice: row.slice,
            is_measured: row.is_measured(),
            begin: row.begin(),
            filled: row.t_ready_ns.get().or(row.t_sent_ns.get()),
            arrived: row.t_arrived_ns.get(),
            end: row.t_end_ns.get(),
        }
    }
}

/// The receives that a send is made of.
#[derive(Clone, Copy, Debug)]
struct Inputs {
    /// Peer of the first input that has not come.
    missing: Option<i32>,
    /// Time and peer of the input that came last.
    last: Option<(u64, i32)>,
}

impl Inputs {
    const NONE: Self = Self { missing: None, last: None };

    fn add(&mut self, step: &TimedMessage) {
        match step.arrived {
            None => self.missing = self.missing.or(Some(step.peer)),
            Some(arrived) if self.last.is_none_or(|(last, _)| last <= arrived) => {
                self.last = Some((arrived, step.peer));
            }
            Some(_) => {}
        }
    }
}

fn place_of(line: &TimedMessage) -> Option<DataPlace> {
    match (line.stage, line.ring_step) {
        (Stage::Ring | Stage::ReduceScatter | Stage::Allgather, Some(ring_step)) => {
            Some(DataPlace::Ring(line.loop_index, ring_step, line.slice))
        }
        (Stage::TreeUp | Stage::PipelineFrom | Stage::PipelineTo, _) => Some(DataPlace::Up(line.step)),
        (Stage::TreeDown, _) => Some(DataPlace::Down(line.step)),
        _ => None,
    }
}

impl Attribution {
    pub(super) fn of_rank(rank: i32) -> Self {
        Self { waits: RankWaits { rank, ..RankWaits::default() }, ..Self::default() }
    }

    fn blame(&mut self, cause: Cause, from: u64, to: u64) {
        if to > from {
            let total = match cause {
                Cause::Own => &mut self.waits.own_gpu_ns,
                Cause::Data(peer) => self.waits.for_data_ns.entry(peer).or_default(),
                Cause::Slot(peer) => self.waits.for_slot_ns.entry(peer).or_default(),
            };
            *total = total.saturating_add(to - from);
            self.shares.add(cause == Cause::Own, from, to);
        }
    }

    /// Takes all messages of one op on one channel. `horizon`: end of the watch, used for messages that did
    /// not end.
    pub(super) fn add_op(&mut self, lines: &[TimedMessage], horizon: Option<u64>) {
        // Connections without a proxy are not measured: what comes over NVLink counts as this rank's own.
        let mut seen: Vec<(Direction, i32)> = Vec::new();
        for line in lines.iter().filter(|line| line.is_measured) {
            if !seen.contains(&(line.op, line.peer)) {
                seen.push((line.op, line.peer));
            }
        }
        let measured: Vec<&TimedMessage> =
            lines.iter().filter(|line| seen.contains(&(line.op, line.peer))).collect();
        if measured.is_empty() {
            return;
        }
        let mut inputs: HashMap<DataPlace, Inputs> = HashMap::with_capacity(measured.len());
        let (mut goes_down, mut judged) = (false, true);
        for line in &measured {
            match place_of(line) {
                Some(place) if line.op == Direction::Recv => {
                    goes_down |= matches!(place, DataPlace::Down(_));
                    inputs.entry(place).or_insert(Inputs::NONE).add(line);
                }
                Some(_) => {}
                None => judged &= line.stage == Stage::P2p,
            }
        }
        if !judged {
            self.not_judged += measured.len() as u64;
            return;
        }
        let sends = measured.iter().filter(|line| line.op == Direction::Send);
        let used: HashSet<_> = sends.filter_map(|line| needed(place_of(line)?, goes_down)).collect();
        let mut before: HashMap<(Direction, i32, bool), Before> = HashMap::new();
        for line in measured {
            let place = place_of(line);
            let way = matches!(place, Some(DataPlace::Down(_)));
            let before = before.entry((line.op, line.peer, way)).or_default();
            if before.is_stuck {
                continue;
            }
            self.messages += 1;
            match line.op {
                Direction::Send => {
                    let needs = place.and_then(|place| needed(place, goes_down));
                    let inputs = needs.and_then(|place| inputs.get(&place)).copied();
                    self.send(line, inputs.unwrap_or(Inputs::NONE), before, horizon);
                }
                Direction::Recv => {
                    let is_used = place.is_some_and(|place| used.contains(&place));
                    self.receive(line, is_used, before, horizon);
                }
            }
        }
    }

    fn send(&mut self, line: &TimedMessage, inputs: Inputs, before: &mut Before, horizon: Option<u64>) {
        let TimedMessage { begin: free, filled, .. } = *line;
        let since = before.done.or(free);
        let (Some(since), Some(until)) = (since, filled.or(horizon)) else {
            before.is_stuck = true;
            return;
        };
        let (cause, came) = match (free, inputs.missing, inputs.last) {
            (None, _, _) => (Cause::Slot(line.peer), until),
            (Some(_), Some(missing), _) => (Cause::Data(missing), until),
            (Some(free), None, Some((arrived, peer))) if arrived > free => (Cause::Data(peer), arrived),
            (Some(free), None, _) => (Cause::Slot(line.peer), free),
        };
        let came = came.clamp(since, until.max(since));
        self.shares.connection(line.channel, true, line.peer);
        self.blame(cause, since, came);
        self.blame(Cause::Own, came, until);
        before.done = filled;
        before.is_stuck = filled.is_none();
    }

    /// Takes a receive. Of an input to a send, only the arrival counts, and the send has it.
    fn receive(&mut self, line: &TimedMessage, is_used: bool, before: &mut Before, horizon: Option<u64>) {
        let end = line.end;
        let since = before.done.or(line.begin);
        *before = Before { done: end, is_stuck: end.is_none() || (since.is_none() && !is_used) };
        if !is_used && let (Some(since), Some(until)) = (since, end.or(horizon)) {
            let arrived = line.arrived.unwrap_or(until).clamp(since, until.max(since));
            self.shares.connection(line.channel, false, line.peer);
            self.blame(Cause::Data(line.peer), since, arrived);
            self.blame(Cause::Own, arrived, until);
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Before {
    /// Time at which the message before was filled, or taken.
    done: Option<u64>,
    /// The message before did not end, so those after it cannot.
    is_stuck: bool,
}

/// Returns the input of the send at this place.
fn needed(place: DataPlace, goes_down: bool) -> Option<DataPlace> {
    match place {
        DataPlace::Ring(loop_index, ring_step, slice) => {
            Some(DataPlace::Ring(loop_index, ring_step.checked_sub(1)?, slice))
        }
        // At the root the way down begins with what came up.
        DataPlace::Down(step) if !goes_down => Some(DataPlace::Up(step)),
        other => Some(other),
    }
}

#[cfg(test)]
mod tests {
    use flow::{made::rows::message_rows, schema::Observed};

    use super::*;

    impl Attribution {
        fn of(&self, cause: Cause) -> u64 {
            let known = match cause {
                Cause::Own => Some(&self.waits.own_gpu_ns),
                Cause::Data(peer) => self.waits.for_data_ns.get(&peer),
                Cause::Slot(peer) => self.waits.for_slot_ns.get(&peer),
            };
            known.copied().unwrap_or(0)
        }
    }

    struct Times {
        free: Option<u64>,
        ready: Option<u64>,
        arrived: Option<u64>,
        end: Option<u64>,
    }

    fn line(op: Direction, peer: i32, ring_step: u64, times: &Times) -> MessageRow {
        MessageRow {
            seq: 0,
            step: ring_step,
            op,
            peer,
            stage: Stage::Ring,
            loop_index: 0,
            ring_step: Some(ring_step),
            slice: 0,
            t_slot_free_ns: Observed::looked_for(times.free),
            t_ready_ns: Observed::looked_for(times.ready),
            t_arrived_ns: Observed::looked_for(times.arrived),
            t_end_ns: Observed::looked_for(times.end),
            ..message_rows()[0].clone()
        }
    }

    fn attributed(lines: &[MessageRow], horizon: Option<u64>) -> Attribution {
        let mut attribution = Attribution::default();
        let steps: Vec<TimedMessage> = lines.iter().map(TimedMessage::of).collect();
        attribution.add_op(&steps, horizon);
        attribution
    }

    #[test]
    fn each_span_is_the_fault_of_what_came_last() {
        let free = Some(0);
        let receive = |arrived| Times { free, ready: None, arrived, end: arrived.map(|time| time + 1) };
        let lines = [
            line(Direction::Recv, 1, 0, &receive(Some(50))),
            line(Direction::Recv, 1, 1, &receive(Some(60))),
            // Waits for itself; for data until 50; for the slot until 90.
            line(Direction::Send, 2, 0, &Times { free, ready: Some(10), arrived: None, end: Some(20) }),
            line(Direction::Send, 2, 1, &Times { free, ready: Some(55), arrived: None, end: Some(90) }),
            line(
                Direction::Send,
                2,
                2,
                &Times { free: Some(90), ready: Some(97), arrived: None, end: Some(99) },
            ),
        ];
        let found = attributed(&lines, None);
        assert_eq!(found.of(Cause::Own), 10 + 5 + 7);
        assert_eq!(found.of(Cause::Data(1)), 40);
        assert_eq!(found.of(Cause::Slot(2)), 35);
    }

    #[test]
    fn what_did_not_end_counts_until_the_job_was_no_longer_watched() {
        let free = Some(0);
        let arrived = line(Direction::Recv, 1, 0, &Times { free, ready: None, arrived: Some(50), end: None });
        let outstanding = line(Direction::Recv, 1, 0, &Times { free, ready: None, arrived: None, end: None });
        let first =
            line(Direction::Send, 2, 0, &Times { free, ready: Some(10), arrived: None, end: Some(20) });
        let stuck =
            |free| line(Direction::Send, 2, 1, &Times { free, ready: None, arrived: None, end: None });
        let culprit = attributed(&[arrived.clone(), first.clone(), stuck(free)], Some(1000));
        assert_eq!((culprit.of(Cause::Own), culprit.of(Cause::Data(1))), (10 + 950, 40));
        let starved = attributed(&[outstanding, first.clone(), stuck(free)], Some(1000));
        assert_eq!((starved.of(Cause::Own), starved.of(Cause::Data(1))), (10, 990));
        let second = line(Direction::Send, 2, 1, &Times { free, ready: Some(60), arrived: None, end: None });
        let third = line(Direction::Send, 2, 2, &Times { free: None, ready: None, arrived: None, end: None });
        let blocked = attributed(&[arrived, first, second, third], Some(1000));
        assert_eq!((blocked.of(Cause::Own), blocked.of(Cause::Slot(2))), (10 + 10, 940));
    }
}
