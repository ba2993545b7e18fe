//! Errors that NCCL, the driver of a GPU, or a network adapter reports.

use std::{sync::Arc, time::Duration};

use super::{HostState, Job, Steps, Turn, of_comm, of_rank};
use crate::{
    communicator::{CommState, Life},
    event::{AlertKind, Culprit, EventBody},
    reading::CommKey,
};
use inspect::adapters::Port;

/// Time after which an error of a GPU is over, if there is no other.
const XID_LASTS: Duration = Duration::from_mins(1);
/// Time after which a failure of a rank is told: that of ranks whose peer has died is no other alert than that.
const FAILED_AFTER: Duration = Duration::from_secs(3);
/// The same where a rank of this host has ended, or left: a dump tells first.
const MISSED_AFTER: Duration = Duration::from_mins(1);
/// Failure of a rank whose peer failed: the rank itself is not to blame.
const OF_A_PEER: &str = "ncclRemoteError";
/// Time for which a port is up again before its error is over.
const PORT_LASTS: Duration = Duration::from_secs(10);
/// Maximum number of errors of a job that are open at a time, of each tenant where several share it.
const MAX_ERRORS: usize = 64;

/// An error that is open.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ErrorOf {
    /// A rank of a communicator reports a failure.
    Rank(Arc<CommKey>, u32),
    /// The driver reports an error of the GPU at this address.
    Gpu(String),
    /// A port of a network adapter was up, and is not.
    Port(String),
}

#[derive(Debug)]
pub(super) struct OpenError {
    pub(super) alert: u64,
    pub(super) begun: Duration,
    seen: Duration,
    /// Tenant, where several share the job.
    whose: Option<String>,
}

impl Job {
    pub(super) fn watch_errors(&mut self, host: &HostState<'_>, turn: &mut Turn<'_>, steps: &mut Steps) {
        let (comms, now) = (turn.comms, turn.now);
        let ranks = || comms.iter().flat_map(|state| state.here().map(move |rank| (*state, rank)));
        for (state, rank) in ranks() {
            let Some(failure) = &rank.failure else { continue };
            let of = ErrorOf::Rank(Arc::clone(&state.key), rank.info.rank);
            let (number, pid) = (rank.info.rank, rank.process.key.pid);
            let since = *self.failing.entry((Arc::clone(&state.key), number)).or_insert(now);
            let is_missed = state.ranks.values().any(|rank| rank.life != Life::Here);
            let after = if is_missed { MISSED_AFTER } else { FAILED_AFTER };
            let whose = rank.process.whose();
            let is_due = now.saturating_sub(since) >= after && !self.is_told(whose, comms);
            if !is_due && !self.errors.contains_key(&of) {
                continue;
            }
            let sentence = || format!("NCCL reports {failure} on rank {number} (process {pid}).");
            let culprits = if failure == OF_A_PEER { Vec::new() } else { vec![of_rank(rank)] };
            steps.events.extend(self.begun_error(of, Some(whose), state, culprits, sentence, turn));
        }
        self.failing.retain(|(key, number), _| {
            ranks()
                .any(|(state, rank)| state.key == *key && rank.info.rank == *number && rank.failure.is_some())
        });
        for gpu in host.gpus.iter().filter(|gpu| !gpu.xids.is_empty()) {
            let rank = ranks().find(|(_, rank)| rank.info.bus_id.as_ref() == Some(&gpu.bus_id));
            let Some((state, rank)) = rank else { continue };
            let of = ErrorOf::Gpu(gpu.bus_id.clone());
            let sentence = || {
                let xids = flow::text::joined(&gpu.xids, ", ");
                let (bus_id, number) = (&gpu.bus_id, rank.info.rank);
                format!("The driver reports Xid {xids} of the GPU {bus_id} of rank {number}.")
            };
            let whose = Some(rank.process.whose());
            steps.events.extend(self.begun_error(of, whose, state, vec![of_rank(rank)], sentence, turn));
        }
        self.watch_ports(host.ports, turn, steps);
        let is_over = |of: &ErrorOf, error: &OpenError| match of {
            ErrorOf::Rank(..) => error.seen < now,
            ErrorOf::Gpu(_) => now.saturating_sub(error.seen) >= XID_LASTS,
            ErrorOf::Port(_) => now.saturating_sub(error.seen) >= PORT_LASTS,
        };
        let over: Vec<(u64, Duration)> = self
            .errors
            .extract_if(.., |of, error| is_over(of, error))
            .map(|(_, error)| (error.alert, error.begun))
            .collect();
        for (alert, begun) in over {
            steps.events.push(self.ended(
                AlertKind::Error,
                alert,
                begun,
                now,
                comms.len(),
                "it is not reported any more",
            ));
        }
    }

    /// Looks for ports that were up, and are not. Which one a communicator uses is not known, so only of jobs
    /// with ranks on other hosts, and no rank is named.
    fn watch_ports(&mut self, ports: Option<&[Port]>, turn: &mut Turn<'_>, steps: &mut Steps) {
        let Some(ports) = ports else { return };
        let is_far = |state: &&&CommState| (state.here().count() as u64) < u64::from(state.key.n_ranks);
        let far = turn.comms.iter().filter(is_far).max_by_key(|state| state.key.n_ranks);
        self.ports_up.extend(ports.iter().filter(|port| port.is_up()).map(Port::name));
        let Some(state) = far else { return };
        for name in self.ports_up.clone() {
            let found = ports.iter().find(|port| port.name() == name);
            if found.is_some_and(Port::is_up) {
                continue;
            }
            let how = found.map_or("is not there any more", |port| port.state.as_str());
            let sentence = || {
                format!(
                    "The port {name} of a network adapter of this host {}, and was up while the job ran. Which ranks \
                     use it is not known.",
                    if found.is_some() { format!("is {how}") } else { how.to_owned() }
                )
            };
            let of = ErrorOf::Port(name.clone());
            steps.events.extend(self.begun_error(of, None, state, Vec::new(), sentence, turn));
        }
    }

    /// Takes note that an error is seen. Returns its event, if it begins now.
    fn begun_error(
        &mut self,
        of: ErrorOf,
        whose: Option<&str>,
        state: &CommState,
        culprits: Vec<Culprit>,
        sentence: impl FnOnce() -> String,
        turn: &mut Turn<'_>,
    ) -> Option<EventBody> {
        let now = turn.now;
        if let Some(error) = self.errors.get_mut(&of) {
            error.seen = now;
            return None;
        }
        let whose = turn.sharer(whose);
        let count = self.errors.values().filter(|error| error.whose == whose).count();
        if count >= MAX_ERRORS || !self.may_begin(whose.as_deref(), turn) {
            return None;
        }
        let mut event = self.begun(AlertKind::Error, whose.as_deref(), turn);
        event.communicator = Some(of_comm(&state.key, state.name.clone()));
        event.culprits = culprits;
        event.sentence = sentence();
        let alert = event.alert.unwrap_or_default();
        self.errors.insert(of, OpenError { alert, begun: now, seen: now, whose });
        Some(event)
    }
}
