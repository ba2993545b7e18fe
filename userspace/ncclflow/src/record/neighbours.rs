//! Steps of one process's proxy that are of another process's ops: NCCL sends through another GPU of the node, and that rank's process
//! executes the op (PXN).

use std::{collections::HashMap, mem};

use super::{origins, output::Output};
use flow::{
    decode::{Origin, ProxyStepEvent},
    model::{CommunicatorSeat, Occupant, Seats},
};

#[cfg(test)]
mod tests;

/// Steps that are kept until it is known whether their process is the one that an op names: some hundred messages of each op that
/// is on its way when a recording begins.
const MAX_WAITING: usize = 1 << 16;

/// Who else there is, and the steps of which it is not known yet whose they are.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    pub(super) seats: Seats,
    waiting: Vec<ProxyStepEvent>,
    /// Changes of the seats when the waiting ones were looked at.
    seen: u64,
}

/// Whose a step is.
enum Whose {
    /// The op is this process's, and the step's process sits where the op wants it executed.
    Posters(u32, CommunicatorSeat),
    /// The step's process may be the one that an op names.
    NotKnown,
    Nobodys,
}

impl Neighbours {
    /// A step of a process that posted no such op.
    pub(super) fn step(
        &mut self,
        step: ProxyStepEvent,
        processes: &mut HashMap<u32, origins::Origin>,
        output: &mut Output,
    ) {
        match self.whose(&step, processes) {
            Whose::Posters(tgid, at) if give(tgid, at, &step, processes, output) => {}
            Whose::NotKnown if self.waiting.len() < MAX_WAITING => self.waiting.push(step),
            _ => unjoined(&step, processes),
        }
    }

    /// Somebody may have been found.
    pub(super) fn look_again(&mut self, processes: &mut HashMap<u32, origins::Origin>, output: &mut Output) {
        if self.waiting.is_empty() {
            return;
        }
        let changes = self.seats.changes();
        if mem::replace(&mut self.seen, changes) != changes {
            for step in mem::take(&mut self.waiting) {
                self.step(step, processes, output);
            }
        }
    }

    /// Nobody will be found any more for what this process did, or, without one, for anything.
    pub(super) fn give_up(&mut self, tgid: Option<u32>, processes: &mut HashMap<u32, origins::Origin>) {
        let is_over = |step: &mut ProxyStepEvent| tgid.is_none_or(|tgid| step.origin.tgid == tgid);
        for step in self.waiting.extract_if(.., is_over) {
            unjoined(&step, processes);
        }
    }

    fn whose(&self, step: &ProxyStepEvent, processes: &HashMap<u32, origins::Origin>) -> Whose {
        let (mut found, mut is_one, mut may_be) = (None, true, false);
        for (tgid, process) in processes {
            if *tgid == step.origin.tgid || !process.session.posts_elsewhere() {
                continue;
            }
            for at in process.session.executors(*tgid, step) {
                match self.seats.occupant(&at) {
                    Occupant::Process(occupant) if occupant == step.origin.tgid => {
                        is_one &= found.is_none();
                        found = Some((*tgid, at));
                    }
                    Occupant::Unknown => may_be = true,
                    Occupant::Process(_) | Occupant::Several => {}
                }
            }
        }
        match found {
            // A connection is one poster's.
            Some((tgid, at)) if is_one => Whose::Posters(tgid, at),
            None if may_be => Whose::NotKnown,
            _ => Whose::Nobodys,
        }
    }
}

fn give(
    tgid: u32,
    at: CommunicatorSeat,
    step: &ProxyStepEvent,
    processes: &mut HashMap<u32, origins::Origin>,
    output: &mut Output,
) -> bool {
    let Some(poster) = processes.get_mut(&tgid) else { return false };
    let by = Origin { tgid, lost: poster.lost_in_all(), ..step.origin };
    let origins::Origin { host, session, .. } = poster;
    session.step_elsewhere(at, step, &by, &mut |record| output.push(host.as_ref(), &record))
}

fn unjoined(step: &ProxyStepEvent, processes: &mut HashMap<u32, origins::Origin>) {
    if let Some(process) = processes.get_mut(&step.origin.tgid) {
        process.session.unjoined(step);
    }
}
